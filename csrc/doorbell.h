// N members post; one waiter waits for k of them or for a deadline. The members' states say which
// are ready. The count of posts only serves to wake the waiter, and only the post that reaches the
// wanted number makes the system call.
//
//   posts:   Position (position.h)
//   member:  reported:1 | lost:1 | ready:1,  posted_at        on cache lines that nothing shares
//
// Order, and why a wake may be early, never late:
//   post:  member ready, then the count advances.   wait: reads the count, then scans the members.
// A member that the scan missed advances the count after that reading, so the target counts it.
// The thread that learns of a death (watch.h) marks the member lost and always wakes: the member
// may have died between its state and the count, or between the count and the wake. A result
// survives the death of its member: ready and lost are separate bits. tests/models/doorbell.pml is
// a model of this, checked exhaustively.
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

// The segment holds a BasicDoorbellCell, then a BasicMember for each member.
template <class Os>
struct BasicDoorbellCell {
    BasicPosition<Os, Waiters::kOne> posts;
};

template <class Os>
class BasicDoorbell {
    static constexpr std::uint32_t kReady = 1;
    static constexpr std::uint32_t kLost = 2;
    static constexpr std::uint32_t kReported = 4;

    using Order = std::pair<std::int64_t, std::uint32_t>;  // posted at, member

    // After this many scans in one wait the position may be corrupt: check the clock and signals.
    static constexpr std::uint32_t kMaxScans = 4096;

 public:
    using Cell = BasicDoorbellCell<Os>;
    using Member = BasicMember<Os>;

    static constexpr std::size_t bytes(std::size_t members) {
        return sizeof(Cell) + members * sizeof(Member);
    }

    BasicDoorbell(Cell* cell, Member* members, std::uint32_t count)
        : cell_(cell), members_(members), count_(count) {
        ready_.reserve(count);
        lost_.reserve(count);
        gone_.reserve(count);
        order_.reserve(count);
    }

    std::uint32_t members() const noexcept { return count_; }

    // Member i posts. False if its last post has not been taken or it was marked lost.
    bool post(std::uint32_t i, std::int64_t now) noexcept {
        Member& member = members_[i];
        // Relaxed: only spares the store and the CAS; the CAS decides.
        if (member.state.load(std::memory_order_relaxed) != 0) return false;
        // Relaxed: the CAS releases it.
        member.posted_at.store(now, std::memory_order_relaxed);
        std::uint32_t free = 0;
        // SYNC: release pairs with the load in state() and the fetch_and in take(); acquire pairs
        // with the fetch_and in take() and the store in revive().
        if (!member.state.compare_exchange_strong(free, kReady, std::memory_order_acq_rel,
                                                  std::memory_order_relaxed)) {
            return false;
        }
        cell_->posts.post(1);
        return true;
    }

    // The waiter: waits until `want` members are ready. `at_work` is how many processes run
    // meanwhile (for the policy, see wait.h). Returns kLost at once if a member was lost and no
    // wait has reported it yet, or if fewer than `want` are left. Unless the outcome is kBusy or
    // kInterrupted, ready() and lost() hold the members that were found.
    template <class Policy>
    Outcome wait_until(std::uint32_t want, std::int64_t deadline, Policy& policy,
                       std::uint64_t at_work = 0) {
        if (!cell_->posts.enter()) return Outcome::kBusy;
        const Outcome outcome = wait_inside(want, deadline, policy, at_work);
        cell_->posts.leave();
        return outcome;
    }

    // The waiter: the members that were ready at the last wait, longest ready first; and the newly
    // lost ones or, if too few are left, all lost ones.
    std::span<const std::uint32_t> ready() const noexcept { return ready_; }
    std::span<const std::uint32_t> lost() const noexcept { return lost_; }

    // The members that are ready now, longest ready first.
    std::vector<std::uint32_t> ready_now() const {
        std::vector<std::uint32_t> ids;
        for (std::uint32_t i = 0; i < count_; ++i) {
            if (is_ready(i)) ids.push_back(i);
        }
        std::vector<Order> order;
        sort(ids, order);
        return ids;
    }

    // The waiter, after it has read the result of member i: the member may now post again. False
    // if it had not posted.
    bool take(std::uint32_t i) noexcept {
        // SYNC: pairs with the CAS in post(): acquire, so that the result may be read without a
        // wait before; release, so that the member may overwrite what was read.
        return members_[i].state.fetch_and(~kReady, std::memory_order_acq_rel) & kReady;
    }

    bool is_ready(std::uint32_t i) const noexcept { return state(i) & kReady; }
    bool is_lost(std::uint32_t i) const noexcept { return state(i) & kLost; }
    // Relaxed: the caller has acquired it in state().
    std::int64_t posted_at(std::uint32_t i) const noexcept {
        return members_[i].posted_at.load(std::memory_order_relaxed);
    }

    // Any thread that knows that member i is dead. Always wakes.
    void mark_lost(std::uint32_t i) noexcept {
        // Relaxed: mark_lost() of the position releases it.
        members_[i].state.fetch_or(kLost, std::memory_order_relaxed);
        cell_->posts.mark_lost();
    }

    // The waiter: another process is member i from now on. The old one must be known to be dead,
    // not only stopped, and its post taken. SYNC: pairs with the CAS in post().
    void revive(std::uint32_t i) noexcept { members_[i].state.store(0, std::memory_order_release); }

    // The waiting thread, in a signal handler that runs inside its wait: gives that wait up, so
    // that another may begin. The first wait's policy must end it before it checks again.
    void interrupt_wait() noexcept { cell_->posts.leave(); }

    // How many posts the waiter sleeps for. A member passes this to the policy of its own waits:
    // policy.set_busy([&] { return bell.wanted(); }).
    std::uint64_t wanted() const noexcept { return cell_->posts.wanted(); }

    std::uint64_t posts() const noexcept { return cell_->posts.load(); }
    std::uint64_t waiter() const noexcept { return cell_->posts.waiter(); }

 private:
    std::uint32_t state(std::uint32_t i) const noexcept {
        // SYNC: pairs with the CAS in post().
        return members_[i].state.load(std::memory_order_acquire);
    }

    template <class Policy>
    Outcome wait_inside(std::uint32_t want, std::int64_t deadline, Policy& policy,
                        std::uint64_t at_work) {
        for (std::uint32_t scans = 0;; ++scans) {
            if (scans >= kMaxScans) {
                if constexpr (requires { policy.interrupted(); }) {
                    if (policy.interrupted()) return Outcome::kInterrupted;
                }
                if (now_ns() >= deadline) return Outcome::kTimedOut;
            }
            cell_->posts.clear_lost();
            const std::uint64_t seen = cell_->posts.load();
            collect();
            if (!lost_.empty()) return Outcome::kLost;
            if (ready_.size() >= want) return Outcome::kReady;
            if (gone_.size() > count_ - want) {
                lost_ = gone_;
                return Outcome::kLost;
            }
            const std::uint64_t missing = want - ready_.size();
            const Outcome outcome =
                cell_->posts.wait_inside(seen + missing, deadline, policy, {missing, at_work});
            if (outcome == Outcome::kReady || outcome == Outcome::kLost) continue;
            // No further scan: the caller raises, and ready members stay for its next wait.
            if (outcome == Outcome::kInterrupted) return outcome;
            collect();
            if (!lost_.empty()) return Outcome::kLost;
            return ready_.size() >= want ? Outcome::kReady : outcome;
        }
    }

    void collect() {
        ready_.clear();
        lost_.clear();
        gone_.clear();
        for (std::uint32_t i = 0; i < count_; ++i) {
            const std::uint32_t state = this->state(i);
            if (state & kReady) ready_.push_back(i);
            if ((state & kLost) && !(state & kReady)) gone_.push_back(i);
            if ((state & kLost) && !(state & kReported)) {
                // Relaxed: only the waiter reads the bit.
                members_[i].state.fetch_or(kReported, std::memory_order_relaxed);
                lost_.push_back(i);
            }
        }
        sort(ready_, order_);
    }

    // Longest ready first. Sorts a copy of the times, since the shared ones may change meanwhile.
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
    std::vector<std::uint32_t> ready_;
    std::vector<std::uint32_t> lost_;
    std::vector<Order> order_;
    std::vector<std::uint32_t> gone_;  // lost, reported or not, and with nothing left to take
};

using Doorbell = BasicDoorbell<Linux>;

}  // namespace pysampler
