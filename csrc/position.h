// A position that only advances, and that threads of any process can wait for. Each end of a ring,
// a doorbell's count of posts and a board's version are positions.
//
//   word:  position:62 | lost:1 | armed:1        target: the position the one waiter waits for
//
// Waking depends on this one word alone, so its modification order is the proof and no fence is
// needed. A waiter writes its target, then arms by a CAS from the very position it looked at. A
// poster advances by a fetch_add, which returns the armed bit as it was.
//   - If the advance comes before the CAS, the CAS sees it and fails, or the waiter had looked
//     after it.
//   - If the CAS comes before the advance, the poster sees armed, and then (acquire pairs with the
//     CAS's release) this target or one the waiter has set since; in the latter case the waiter
//     is awake and its next CAS sees the advance. If the target is reached the poster disarms, and
//     the poster that clears the bit makes the one wake.
// So a wake may come early, never late. The futex compares the low 32 bits: for those to wrap to
// the same value, armed, 2^30 posts would have to miss a target less than 2^30 away.
// tests/models/position.pml is a model of this, checked exhaustively.
#pragma once

#include <climits>
#include <cstdint>

#include "futex.h"
#include "layout.h"
#include "wait.h"
#include "waiter.h"

namespace pysampler {

// kOne: a single waiter, with a target. kMany: any number, all woken by each wake().
enum class Waiters { kOne, kMany };

template <class Os, Waiters waiters>
class BasicPosition {
    using Word = std::uint64_t;
    static constexpr Word kArmed = 1;
    static constexpr Word kLost = 2;
    static constexpr Word kUnit = 4;

    // After this many wake-ups in one sleep the word may be corrupt: return, so that the policy
    // checks the clock.
    static constexpr int kMaxMismatches = 1000;

 public:
    // How far ahead of the position a target may be; see above.
    static constexpr std::uint64_t kMaxAhead = 1ULL << 30;

    explicit BasicPosition(std::uint64_t start = 0) noexcept : word_(start * kUnit) {}

    // Any thread. Everything written before the position moved is visible once it is seen moved.
    // SYNC: pairs with the fetch_add in advance() and the fetch_or in mark_lost().
    std::uint64_t load() const noexcept { return word_.load(std::memory_order_acquire) / kUnit; }

    // The only poster: reads back its own last advance, so relaxed is enough.
    std::uint64_t own() const noexcept { return word_.load(std::memory_order_relaxed) / kUnit; }

    // A poster. Moves the position; true if the waiter was armed: then call wake(), now or once the
    // waiter's condition holds. With one waiter prefer post(), which knows the target.
    bool advance(std::uint64_t by) noexcept {
        // SYNC: release pairs with the load in load(); acquire pairs with the CAS in park(), so
        // that the target read after it is that waiter's, or newer.
        return word_.fetch_add(by * kUnit, std::memory_order_acq_rel) & kArmed;
    }

    // A poster. Wakes the waiter if it sleeps: one system call per arming, by one poster.
    void wake() noexcept {
        // Relaxed: the bit says who makes the call; the woken waiter acquires in load().
        if (word_.fetch_and(~kArmed, std::memory_order_relaxed) & kArmed) {
            Os::futex_wake(word_, INT_MAX);
        }
    }

    // Any thread that knows of an advance whose poster leaves the wake to it: wakes the waiter if
    // it sleeps. Relaxed: that advance happened before, and a waiter that armed before it did so
    // too.
    void wake_if_armed() noexcept {
        if (armed()) wake();
    }
    // The same, if another thread that knew of it is dead: it may have disarmed, and died before
    // the wake.
    void wake_anyway() noexcept { Os::futex_wake(word_, INT_MAX); }

    // A poster, with one waiter: advances, and wakes it only when its target is reached.
    void post(std::uint64_t by) noexcept
        requires(waiters == Waiters::kOne)
    {
        // Relaxed: advance() has acquired the target together with the armed bit.
        if (advance(by) && reached(target_.load(std::memory_order_relaxed))) wake();
    }

    // Any thread that knows that a poster is dead. Its posts stay posted. Wakes whether armed or
    // not: the dead poster may have disarmed and died before its wake.
    void mark_lost() noexcept {
        // SYNC: pairs with the load in load() and in lost(): everything the caller wrote about the
        // loss is visible with it.
        word_.fetch_or(kLost, std::memory_order_release);
        Os::futex_wake(word_, INT_MAX);
    }
    // Any thread. SYNC: pairs with the fetch_or in mark_lost().
    bool lost() const noexcept { return word_.load(std::memory_order_acquire) & kLost; }
    // The waiter: the poster has been replaced, or the waiter will examine the loss, after a
    // load(). Relaxed: that load still acquires the loss, since a fetch_and continues the release
    // sequence of the stores before it.
    void clear_lost() noexcept { word_.fetch_and(~kLost, std::memory_order_relaxed); }

    bool reached(std::uint64_t target) const noexcept {
        return static_cast<std::int64_t>((load() - target) * kUnit) >= 0;
    }

    // How far `from` is behind `to`: positions wrap at 2^62.
    static constexpr std::uint64_t distance(std::uint64_t from, std::uint64_t to) noexcept {
        return (to - from) * kUnit / kUnit;
    }
    // The same, negative where `from` is ahead.
    static constexpr std::int64_t lead(std::uint64_t from, std::uint64_t to) noexcept {
        return static_cast<std::int64_t>((to - from) * kUnit) / static_cast<std::int64_t>(kUnit);
    }

    // A waiter: waits until the position has reached `target`. kLost only if it has not.
    template <class Policy>
    Outcome wait_until(std::uint64_t target, std::int64_t deadline, Policy& policy,
                       Others others = {}) noexcept {
        if (reached(target)) return Outcome::kReady;
        if (!enter()) return Outcome::kBusy;
        const Outcome outcome = wait_inside(target, deadline, policy, others);
        leave();
        return outcome;
    }

    // The same in three steps, for a caller that checks more than the position. enter() returns
    // false if another thread waits here.
    bool enter() noexcept { return waiters == Waiters::kMany || place_.claim(); }
    template <class Policy>
    Outcome wait_inside(std::uint64_t target, std::int64_t deadline, Policy& policy,
                        Others others = {}) noexcept {
        const Outcome outcome = policy.wait(
            deadline, [&] { return over(target); },
            [&](std::int64_t until) { return park(target, until); }, others);
        return outcome == Outcome::kReady && !reached(target) ? Outcome::kLost : outcome;
    }
    void leave() noexcept {
        if (waiters == Waiters::kOne) place_.leave();
    }

    std::uint64_t waiter() const noexcept { return place_.id(); }
    // Relaxed: a hint, out of date at once.
    bool armed() const noexcept { return word_.load(std::memory_order_relaxed) & kArmed; }
    // How many posts the sleeping waiter still waits for, or 0. A hint for wait policies.
    std::uint64_t wanted() const noexcept
        requires(waiters == Waiters::kOne)
    {
        // SYNC: pairs with the CAS in park(): the target read next is that waiter's, or newer.
        const Word word = word_.load(std::memory_order_acquire);
        // SYNC: pairs with no store; keeps the second load of the word behind this one.
        const std::uint64_t target = target_.load(std::memory_order_acquire);
        // If the word has changed, the target may belong to another wait.
        if (!(word & kArmed) || word_.load(std::memory_order_relaxed) != word) return 0;
        const std::int64_t left = lead(word / kUnit, target);
        return left > 0 ? static_cast<std::uint64_t>(left) : 0;
    }

 private:
    // Relaxed: wait_inside() checks again with reached(), which acquires.
    bool over(std::uint64_t target) const noexcept {
        const Word word = word_.load(std::memory_order_relaxed);
        return (word & kLost) || static_cast<std::int64_t>(word - target * kUnit) >= 0;
    }

    bool park(std::uint64_t target, std::int64_t until) noexcept {
        // Relaxed: the CAS below releases the target, and the policy checks again after this.
        if constexpr (waiters == Waiters::kOne) target_.store(target, std::memory_order_relaxed);
        Word word = word_.load(std::memory_order_relaxed);
        if (over(target)) return true;
        // SYNC: pairs with the fetch_add in advance() and the load in wanted(): a poster that sees
        // the bit sees the target.
        if (!word_.compare_exchange_strong(word, word | kArmed, std::memory_order_release,
                                           std::memory_order_relaxed)) {
            return true;  // the position has moved: the policy checks again
        }
        word |= kArmed;
        FutexResult result;
        for (int i = 0; i < kMaxMismatches; ++i) {
            result = Os::futex_wait(word_, word, until);
            word = word_.load(std::memory_order_relaxed);
            // Posts that do not reach the target change the word without a wake: sleep on.
            if (result != FutexResult::kMismatch || !(word & kArmed) || over(target)) break;
        }
        // With many waiters the others may still sleep on the bit: it stays, which costs at most
        // one needless wake.
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
