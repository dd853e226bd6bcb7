// A flag from one poster to one waiter: "there is something for you".
//
//   posts:  Position (position.h)        cleared: how many of them the waiter is done with
//
// It is set while the two differ. Each is written by one side only, so that a round trip hands over
// two lines each way, the fewest there can be, and clear() does not wait. All that matters for
// waking happens in the position, whose proof this shares: a system call if and only if the waiter
// sleeps; of a post and a time-out one wins, since the waiter looks once more after the deadline; a
// post survives its author, and the loss is told after it.
// tests/models/flag.pml is this, checked exhaustively. All zero is a fresh flag.
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

    // The poster. False if it was set already: one post, one clear.
    bool set() noexcept {
        // SYNC: acquire pairs with clear(): what the waiter was still reading may be reused.
        const std::uint64_t cleared = cleared_.load(std::memory_order_acquire);
        if (posts_.own() != cleared) return false;
        posts_.post(1);
        return true;
    }

    // Anyone. SYNC: acquire pairs with clear(), for a poster that looks before it writes.
    bool is_set() const noexcept {
        return posts_.reached(cleared_.load(std::memory_order_acquire) + 1);
    }

    // The waiter, when it is done with what the post was about. False if it was not set.
    bool clear() noexcept {
        if (!is_set()) return false;
        // SYNC: release pairs with set().
        cleared_.store(posts_.own(), std::memory_order_release);
        return true;
    }

    // The waiter: until it is set. kLost only if it is not.
    template <class Policy>
    Outcome wait_until(std::int64_t deadline, Policy& policy) noexcept {
        return posts_.wait_until(cleared_.load(std::memory_order_relaxed) + 1, deadline, policy);
    }

    // Anyone who knows that the poster is dead.
    void mark_lost() noexcept { posts_.mark_lost(); }
    bool lost() const noexcept { return posts_.lost(); }
    // The waiter: the poster has been replaced.
    void clear_lost() noexcept { posts_.clear_lost(); }

    bool parked() const noexcept { return posts_.armed(); }
    // How often it has been set, ever.
    std::uint64_t posts() const noexcept { return posts_.load(); }
    std::uint64_t waiter() const noexcept { return posts_.waiter(); }

 private:
    BasicPosition<Os, Waiters::kOne> posts_;
    alignas(kLine) typename Os::template Atomic<std::uint64_t> cleared_;
};

using Flag = BasicFlag<Linux>;

}  // namespace pysampler
