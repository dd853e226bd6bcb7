// A flag from one poster to one waiter: "there is something for you".
//
//   posts:  Position (position.h)        cleared: how many posts the waiter has finished with
//
// The flag is set while the two differ. Each is written by one side only, so a round trip moves two
// cache lines each way, the fewest possible, and clear() does not wait. Waking concerns only the
// position, whose proof holds here too: a post makes a system call if and only if the waiter
// sleeps; a post at the deadline is not missed, since the waiter checks once more after it; a post
// survives the death of its poster, and the loss is reported after it.
// tests/models/flag.pml is a model of this, checked exhaustively. All zero is a new flag.
#pragma once

#include <cstdint>

#include "futex.h"
#include "layout.h"
#include "position.h"
#include "wait.h"

namespace pysampler {

template <class Os>
class BasicFlag {
 public:
    explicit BasicFlag(std::uint64_t start = 0) noexcept : posts_(start), cleared_(start) {}

    // The poster. False if the flag was set already: each post needs its clear().
    bool set() noexcept {
        // SYNC: pairs with the store in clear(): the poster may overwrite what the waiter has read.
        const std::uint64_t cleared = cleared_.load(std::memory_order_acquire);
        if (posts_.own() != cleared) return false;
        posts_.post(1);
        return true;
    }

    // Any thread.
    bool is_set() const noexcept {
        // SYNC: pairs with the store in clear(), for a poster that checks before it writes.
        return posts_.reached(cleared_.load(std::memory_order_acquire) + 1);
    }

    // The waiter, when it has handled the post. False if the flag was not set.
    bool clear() noexcept {
        if (!is_set()) return false;
        // SYNC: pairs with the load in set() and in is_set().
        cleared_.store(posts_.own(), std::memory_order_release);
        return true;
    }

    // The waiter: waits until the flag is set. kLost only if it is not.
    template <class Policy>
    Outcome wait_until(std::int64_t deadline, Policy& policy) noexcept {
        // Relaxed: only the waiter writes it.
        return posts_.wait_until(cleared_.load(std::memory_order_relaxed) + 1, deadline, policy);
    }

    // Any thread that knows that the poster is dead.
    void mark_lost() noexcept { posts_.mark_lost(); }
    bool lost() const noexcept { return posts_.lost(); }
    // The waiter: the poster has been replaced.
    void clear_lost() noexcept { posts_.clear_lost(); }

    bool parked() const noexcept { return posts_.armed(); }
    // How many times it has been set.
    std::uint64_t posts() const noexcept { return posts_.load(); }
    std::uint64_t waiter() const noexcept { return posts_.waiter(); }

 private:
    BasicPosition<Os, Waiters::kOne> posts_;
    alignas(kLine) typename Os::template Atomic<std::uint64_t> cleared_;
};

using Flag = BasicFlag<Linux>;

}  // namespace pysampler
