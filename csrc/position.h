// A position that only advances, and those who sleep until it has come far enough. What a ring's
// ends, a doorbell's count of posts and a board's version have in common.
//
//   word:  position:62 | lost:1 | armed:1        target: where the one waiter wants it to be
//
// All that matters for waking happens at this one word, so its modification order is the proof
// and no fence is needed. A waiter writes its target, then arms by a CAS from the very position it
// looked at. A poster advances by a fetch_add, which returns the armed bit as it was.
//   - The advance comes before the CAS: the CAS sees it and fails, or the waiter had looked after
//   it.
//   - The CAS comes before the advance: the poster sees armed, and then (acquire pairs with the
//     CAS's release) this target or one the waiter has set since; in the latter case the waiter
//     is awake and its next CAS sees the advance. If the target is reached the poster disarms, and
//     the poster that takes the bit away makes the one wake.
// So a wake may come early, never late. The futex compares the low 32 bits: for those to come round
// to the same value armed, 2^30 posts would have to miss a target less than 2^30 away.
// tests/models/position.pml is this, checked exhaustively.
#pragma once

#include <climits>
#include <cstdint>

#include "futex.h"
#include "layout.h"
#include "wait.h"
#include "waiter.h"

namespace pysampler {

// kOne: a single waiter, with a target. kMany: any number, each woken whenever the poster says so.
enum class Waiters { kOne, kMany };

template <class Os, Waiters waiters>
class BasicPosition {
    using Word = std::uint64_t;
    static constexpr Word kArmed = 1;
    static constexpr Word kLost = 2;
    static constexpr Word kUnit = 4;

    // After this many wake-ups in one sleep the word may be corrupt: look at the clock.
    static constexpr int kMismatches = 1000;

 public:
    // The furthest ahead a waiter may ask for; see above.
    static constexpr std::uint64_t kMaxAhead = 1ULL << 30;

    explicit BasicPosition(std::uint64_t start = 0) noexcept : word_(start * kUnit) {}

    // Anyone. SYNC: acquire pairs with the release in advance(): what was written before the
    // position moved is seen by who sees it moved.
    std::uint64_t load() const noexcept { return word_.load(std::memory_order_acquire) / kUnit; }

    // A poster that alone advances the position: it relies on its own last value.
    std::uint64_t own() const noexcept { return word_.load(std::memory_order_relaxed) / kUnit; }

    // A poster. Moves the position on; true if the waiter was armed: then call ring(), now or when
    // what they wait for has come. One waiter: prefer post(), which knows.
    bool advance(std::uint64_t by) noexcept {
        // SYNC: release pairs with load(); acquire pairs with the arming CAS in park(), so that
        // the target read after it is that waiter's, or newer.
        return word_.fetch_add(by * kUnit, std::memory_order_acq_rel) & kArmed;
    }

    // A poster. Wakes the waiter if it sleeps: one system call per arming, by any poster.
    void ring() noexcept {
        if (word_.fetch_and(~kArmed, std::memory_order_relaxed) & kArmed) {
            Os::futex_wake(word_, INT_MAX);
        }
    }

    // A poster, with one waiter: advances, and wakes it only when its target is reached.
    void post(std::uint64_t by) noexcept
        requires(waiters == Waiters::kOne)
    {
        if (advance(by) && reached(target_.load(std::memory_order_relaxed))) ring();
    }

    // Anyone who knows that a poster is dead. What it had posted stays posted. Wakes whether armed
    // or not: the dead may have disarmed, and died before its wake.
    void mark_lost() noexcept {
        // SYNC: release pairs with load(): who looks into the loss sees who is lost.
        word_.fetch_or(kLost, std::memory_order_release);
        Os::futex_wake(word_, INT_MAX);
    }
    bool lost() const noexcept { return word_.load(std::memory_order_acquire) & kLost; }
    // The waiter: forget it (the poster has been replaced, or the loss is about to be looked into,
    // after a load()).
    void clear_lost() noexcept { word_.fetch_and(~kLost, std::memory_order_relaxed); }

    bool reached(std::uint64_t target) const noexcept {
        return static_cast<std::int64_t>((load() - target) * kUnit) >= 0;
    }

    // How far `from` is behind `to`: positions come round at 2^62.
    static constexpr std::uint64_t distance(std::uint64_t from, std::uint64_t to) noexcept {
        return (to - from) * kUnit / kUnit;
    }
    // The same, negative where `from` is ahead.
    static constexpr std::int64_t lead(std::uint64_t from, std::uint64_t to) noexcept {
        return static_cast<std::int64_t>((to - from) * kUnit) / static_cast<std::int64_t>(kUnit);
    }

    // A waiter: until the position has reached `target`, which takes `awaited` processes to bring
    // about (for the policy, see wait.h). kLost only if it has not.
    template <class Policy>
    Outcome wait_until(std::uint64_t target, std::int64_t deadline, Policy& policy,
                       std::uint64_t awaited = 1) noexcept {
        if (reached(target)) return Outcome::kReady;
        if (!enter()) return Outcome::kBusy;
        const Outcome outcome = wait_inside(target, deadline, policy, awaited);
        leave();
        return outcome;
    }

    // The same in three steps, for a caller that looks at more than the position. False from
    // enter() if another thread waits here.
    bool enter() noexcept { return waiters == Waiters::kMany || place_.claim(); }
    template <class Policy>
    Outcome wait_inside(std::uint64_t target, std::int64_t deadline, Policy& policy,
                        std::uint64_t awaited = 1) noexcept {
        const Outcome outcome = policy.wait(
            deadline, [&] { return over(target); },
            [&](std::int64_t until) { return park(target, until); }, awaited);
        return outcome == Outcome::kReady && !reached(target) ? Outcome::kLost : outcome;
    }
    void leave() noexcept {
        if (waiters == Waiters::kOne) place_.leave();
    }

    std::uint64_t waiter() const noexcept { return place_.id(); }
    bool armed() const noexcept { return word_.load(std::memory_order_relaxed) & kArmed; }
    // How many posts the sleeping waiter still wants; 0 if none sleeps.
    std::uint64_t wanted() const noexcept
        requires(waiters == Waiters::kOne)
    {
        const Word word = word_.load(std::memory_order_acquire);
        const std::uint64_t target = target_.load(std::memory_order_acquire);
        // A word that has changed may have been about another target.
        if (!(word & kArmed) || word_.load(std::memory_order_relaxed) != word) return 0;
        const std::int64_t left = lead(word / kUnit, target);
        return left > 0 ? static_cast<std::uint64_t>(left) : 0;
    }

 private:
    // Relaxed: wait_until() looks once more, with reached().
    bool over(std::uint64_t target) const noexcept {
        const Word word = word_.load(std::memory_order_relaxed);
        return (word & kLost) || static_cast<std::int64_t>(word - target * kUnit) >= 0;
    }

    bool park(std::uint64_t target, std::int64_t until) noexcept {
        if constexpr (waiters == Waiters::kOne) target_.store(target, std::memory_order_relaxed);
        Word word = word_.load(std::memory_order_relaxed);
        if (over(target)) return true;
        // SYNC: release pairs with advance(): who sees the bit sees the target.
        if (!word_.compare_exchange_strong(word, word | kArmed, std::memory_order_release,
                                           std::memory_order_relaxed)) {
            return true;  // moved on: the policy looks again
        }
        word |= kArmed;
        FutexResult result;
        for (int again = 0; again < kMismatches; ++again) {
            result = Os::futex_wait(word_, word, until);
            word = word_.load(std::memory_order_relaxed);
            // Posts that do not reach the target change the word without a wake: sleep on.
            if (result != FutexResult::kMismatch || !(word & kArmed) || over(target)) break;
        }
        // Others may sleep on the same bit where there are many: one wake for nothing, at most.
        if constexpr (waiters == Waiters::kOne) {
            word_.fetch_and(~kArmed, std::memory_order_relaxed);
        }
        return result != FutexResult::kInterrupted;
    }

    template <class T>
    using Atomic = typename Os::template Atomic<T>;

    alignas(kLine) Atomic<Word> word_;
    Atomic<std::uint64_t> target_{0};
    BasicWaiterPlace<Os> place_;
};

using Position = BasicPosition<Linux, Waiters::kOne>;
using OpenPosition = BasicPosition<Linux, Waiters::kMany>;

}  // namespace pysampler
