// N members post, one waiter wants k of them or a deadline. The members' flags are the truth; the
// count of posts only wakes, and only the post that reaches the wanted number makes the call.
//
//   posts:   Position (position.h)
//   member:  told:1 | lost:1 | ready:1,  posted_at        on lines of its own
//
// Order, and why a wake may be early, never late:
//   post:  member ready, then the count advances.   wait: reads the count, then scans the members.
// A member not seen in the scan advances the count after that reading, so the target counts it.
// The reaper (the thread that learns of a death, watch.h) marks the member lost and always wakes:
// the dead may have stopped between the flag and the count, or between the count and the wake. A
// result survives its author: ready and lost are separate bits. tests/models/doorbell.pml is this,
// checked exhaustively.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "layout.h"
#include "position.h"
#include "wait.h"

namespace pysampler {

template <class Os>
struct BasicMember {
    alignas(kLine) typename Os::template Atomic<std::uint32_t> state{0};
    typename Os::template Atomic<std::int64_t> posted_at{0};
};

// What lies in the segment: BasicDoorbellCell, then one BasicMember each.
template <class Os>
struct BasicDoorbellCell {
    BasicPosition<Os, Waiters::kOne> posts;
};

template <class Os>
class BasicDoorbell {
    static constexpr std::uint32_t kReady = 1;
    static constexpr std::uint32_t kLost = 2;
    static constexpr std::uint32_t kTold = 4;

    using Order = std::pair<std::int64_t, std::uint32_t>;  // posted at, member

    static constexpr std::uint32_t kLooks = 4096;

 public:
    using Cell = BasicDoorbellCell<Os>;
    using Member = BasicMember<Os>;

    static constexpr std::size_t bytes(std::size_t members) {
        return sizeof(Cell) + members * sizeof(Member);
    }

    BasicDoorbell(Cell* cell, Member* members, std::uint32_t count)
        : cell_(cell), members_(members), count_(count) {
        found_.reserve(count);
        lost_.reserve(count);
        gone_.reserve(count);
        order_.reserve(count);
    }

    std::uint32_t members() const noexcept { return count_; }

    // Member i. False if its last post has not been taken, or it was marked lost: a ghost.
    bool post(std::uint32_t i, std::int64_t now) noexcept {
        Member& member = members_[i];
        if (member.state.load(std::memory_order_relaxed) != 0) return false;
        member.posted_at.store(now, std::memory_order_relaxed);
        std::uint32_t free = 0;
        // SYNC: release pairs with the scan in collect(), acquire with take().
        if (!member.state.compare_exchange_strong(free, kReady, std::memory_order_acq_rel,
                                                  std::memory_order_relaxed)) {
            return false;
        }
        cell_->posts.post(1);
        return true;
    }

    // The waiter: until `want` members are ready. kLost, at once, if a member was lost and this has
    // not been told before, or if fewer than `want` are left. ready() and lost() hold
    // what was found, unless it is kBusy or kInterrupted.
    template <class Policy>
    Outcome wait_until(std::uint32_t want, std::int64_t deadline, Policy& policy) {
        if (!cell_->posts.enter()) return Outcome::kBusy;
        const Outcome outcome = wait_inside(want, deadline, policy);
        cell_->posts.leave();
        return outcome;
    }

    // The waiter: who was ready at the last wait, longest ready first; who was newly lost or, if
    // too few are left, who is.
    std::span<const std::uint32_t> ready() const noexcept { return found_; }
    std::span<const std::uint32_t> lost() const noexcept { return lost_; }

    // Who is ready now, longest ready first.
    std::vector<std::uint32_t> ready_now() const {
        std::vector<std::uint32_t> ids;
        for (std::uint32_t i = 0; i < count_; ++i) {
            if (is_ready(i)) ids.push_back(i);
        }
        std::vector<Order> order;
        sort(ids, order);
        return ids;
    }

    // The waiter, when it has read what member i posted, which may now post again. False if it had
    // not posted. SYNC: release pairs with post().
    bool take(std::uint32_t i) noexcept {
        return members_[i].state.fetch_and(~kReady, std::memory_order_acq_rel) & kReady;
    }

    bool is_ready(std::uint32_t i) const noexcept { return state(i) & kReady; }
    bool is_lost(std::uint32_t i) const noexcept { return state(i) & kLost; }
    std::int64_t posted_at(std::uint32_t i) const noexcept {
        return members_[i].posted_at.load(std::memory_order_relaxed);
    }

    // The reaper: member i is dead. Always rings.
    void mark_lost(std::uint32_t i) noexcept {
        members_[i].state.fetch_or(kLost, std::memory_order_relaxed);
        cell_->posts.mark_lost();  // releases it
    }

    // The waiter: another process is member i from now on. The dead one must be known to be dead,
    // not only stopped, and what it had posted taken.
    void revive(std::uint32_t i) noexcept { members_[i].state.store(0, std::memory_order_release); }

    // The waiting thread, from a signal handler that runs inside its wait: that wait is given up,
    // another may begin. The one given up must be told to end before it looks again.
    void give_up_wait() noexcept { cell_->posts.leave(); }

    // How many posts the waiter sleeps for. A member whose wait begins while others are still at
    // work tells its policy: policy.set_busy([&] { return bell.wanted(); }).
    std::uint64_t wanted() const noexcept { return cell_->posts.wanted(); }

    std::uint64_t posts() const noexcept { return cell_->posts.load(); }
    std::uint64_t waiter() const noexcept { return cell_->posts.waiter(); }

 private:
    std::uint32_t state(std::uint32_t i) const noexcept {
        return members_[i].state.load(std::memory_order_acquire);
    }

    template <class Policy>
    Outcome wait_inside(std::uint32_t want, std::int64_t deadline, Policy& policy) {
        for (std::uint32_t looks = 0;; ++looks) {
            // As many as this, and something posts that is no member: time and signals count too.
            if (looks >= kLooks) {
                if constexpr (requires { policy.interrupted(); }) {
                    if (policy.interrupted()) return Outcome::kInterrupted;
                }
                if (now_ns() >= deadline) return Outcome::kTimedOut;
            }
            cell_->posts.clear_lost();
            const std::uint64_t seen = cell_->posts.load();
            collect();
            if (!lost_.empty()) return Outcome::kLost;
            if (found_.size() >= want) return Outcome::kReady;
            if (gone_.size() > count_ - want) {
                lost_ = gone_;
                return Outcome::kLost;
            }
            const std::uint64_t missing = want - found_.size();
            const Outcome outcome =
                cell_->posts.wait_inside(seen + missing, deadline, policy, missing);
            if (outcome == Outcome::kReady || outcome == Outcome::kLost) continue;
            // At once: the caller gets an exception instead of what was found, and asks again.
            if (outcome == Outcome::kInterrupted) return outcome;
            collect();
            if (!lost_.empty()) return Outcome::kLost;
            return found_.size() >= want ? Outcome::kReady : outcome;
        }
    }

    void collect() {
        found_.clear();
        lost_.clear();
        gone_.clear();
        for (std::uint32_t i = 0; i < count_; ++i) {
            const std::uint32_t state = this->state(i);
            if (state & kReady) found_.push_back(i);
            if ((state & kLost) && !(state & kReady)) gone_.push_back(i);
            if ((state & kLost) && !(state & kTold)) {
                members_[i].state.fetch_or(kTold, std::memory_order_relaxed);
                lost_.push_back(i);
            }
        }
        sort(found_, order_);
    }

    // Longest ready first. By a copy of the times: the shared ones may change under the sort.
    void sort(std::vector<std::uint32_t>& ids, std::vector<Order>& order) const {
        order.clear();
        for (const std::uint32_t i : ids) order.push_back({posted_at(i), i});
        std::sort(order.begin(), order.end());
        std::transform(order.begin(), order.end(), ids.begin(),
                       [](const Order& one) { return one.second; });
    }

    Cell* cell_;
    Member* members_;
    std::uint32_t count_;
    std::vector<std::uint32_t> found_;
    std::vector<std::uint32_t> lost_;
    std::vector<Order> order_;
    std::vector<std::uint32_t> gone_;  // lost, told or not, and with nothing left to take
};

using Doorbell = BasicDoorbell<Linux>;

}  // namespace pysampler
