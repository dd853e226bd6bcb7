// A flag from one poster to one waiter: "there is something for you".
//
//   word:  generation:29 | lost:1 | parked:1 | set:1
//
// set() is a CAS to `set` that returns the parked bit it cleared: a system call if and only if the
// waiter sleeps. The waiter parks by a CAS from "not set"; that it fails means the post came first.
// So of a post and a time-out one wins: the waiter looks once more after the deadline.
// clear() moves to the next generation, so a word seen before it is never mistaken for a new one.
// A peer's death is a bit of its own: a post survives its author, and the loss is told after it.
// tests/models/flag.pml is this, checked exhaustively. All zero is a fresh flag.
#pragma once

#include <cstdint>

#include "futex.h"
#include "layout.h"
#include "wait.h"
#include "waiter.h"

namespace pysampler {

template <class Os>
class BasicFlag {
    using Word = std::uint32_t;
    static constexpr Word kSet = 1;
    static constexpr Word kParked = 2;
    static constexpr Word kLost = 4;
    static constexpr Word kGeneration = 8;

 public:
    // The poster. False if it was set already: one post, one clear.
    bool set() noexcept {
        Word word = word_.load(std::memory_order_relaxed);
        do {
            if (word & kSet) return false;
            // SYNC: release pairs with is_set() in the waiter: it sees what was written before the
            // post. Acquire pairs with clear(): what the waiter was still reading may be reused.
        } while (!word_.compare_exchange_weak(
            word, (word & ~kParked) | kSet, std::memory_order_acq_rel, std::memory_order_relaxed));
        if (word & kParked) Os::futex_wake(word_, 1);
        return true;
    }

    // Anyone.
    bool is_set() const noexcept { return word_.load(std::memory_order_acquire) & kSet; }

    // The waiter, when it is done with what the post was about. False if it was not set.
    bool clear() noexcept {
        if (!(word_.load(std::memory_order_relaxed) & kSet)) return false;
        // Nobody else changes a set flag but mark_lost(), whose bit the addition leaves alone.
        // SYNC: release pairs with set().
        word_.fetch_add(kGeneration - kSet, std::memory_order_release);
        return true;
    }

    // The waiter: until it is set. kLost only if it is not.
    template <class Policy>
    Outcome wait_until(std::int64_t deadline, Policy& policy) noexcept {
        if (is_set()) return Outcome::kReady;
        if (!place_.claim()) return Outcome::kBusy;
        Outcome outcome = policy.wait(
            deadline, [&] { return word_.load(std::memory_order_acquire) & (kSet | kLost); },
            [&](std::int64_t until) { return park(until); });
        place_.leave();
        if (outcome == Outcome::kReady && !is_set()) outcome = Outcome::kLost;
        return outcome;
    }

    // Anyone who knows that the poster is dead. Wakes whether parked or not: the dead may have set
    // the flag, and died before its wake.
    void mark_lost() noexcept {
        word_.fetch_or(kLost, std::memory_order_acq_rel);
        Os::futex_wake(word_, 1);
    }
    bool lost() const noexcept { return word_.load(std::memory_order_acquire) & kLost; }
    // The waiter: the poster has been replaced.
    void clear_lost() noexcept { word_.fetch_and(~kLost, std::memory_order_acq_rel); }

    bool parked() const noexcept { return word_.load(std::memory_order_relaxed) & kParked; }
    std::uint32_t generation() const noexcept {
        return word_.load(std::memory_order_relaxed) / kGeneration;
    }
    std::uint64_t waiter() const noexcept { return place_.id(); }

 private:
    bool park(std::int64_t until) noexcept {
        Word word = word_.load(std::memory_order_relaxed);
        if (word & (kSet | kLost)) return true;
        if (!word_.compare_exchange_strong(word, word | kParked, std::memory_order_relaxed,
                                           std::memory_order_relaxed)) {
            return true;  // posted meanwhile: the policy looks again
        }
        const FutexResult result = Os::futex_wait(word_, word | kParked, until);
        word_.fetch_and(~kParked, std::memory_order_relaxed);
        return result != FutexResult::kInterrupted;
    }

    alignas(kLine) typename Os::template Atomic<Word> word_{0};
    BasicWaiterPlace<Os> place_;
};

using Flag = BasicFlag<Linux>;

}  // namespace pysampler
