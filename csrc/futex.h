// The futex system calls, and the `Linux` platform built on them.
//
// Every primitive is a template over a platform: `Linux` in production, a simulated one with
// stale reads and a deterministic scheduler in tests/native/sim.h. A platform provides Atomic,
// futex_wait, futex_wake, this thread's id (self_id), whether another thread's process lives
// (alive), and when to check that next (next_look).
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>

#include "clock.h"
#include "layout.h"
#include "process.h"

namespace pysampler {

enum class FutexResult {
    kWoken,        // by a wake, or spuriously: check again
    kMismatch,     // the word was not what the caller expected: check again
    kTimedOut,     // the deadline has passed
    kInterrupted,  // a signal handler ran
};

// The ways to sleep on a futex until an absolute deadline, best first. The plain call adds the
// thread's timer slack (50 us by default) to the deadline; the newer ones do not.
enum class FutexCall { kWaitv, kWait2, kBitset, kNap };

// The call that this process uses. Starts at kWaitv; a call that the kernel (or a container's
// seccomp profile) refuses is not tried again. kNap, short sleeps between checks, is the fallback
// where even FUTEX_WAIT is refused: slow, but nothing hangs.
FutexCall futex_call() noexcept;

// Any thread. Sleeps while *word == expected, until a wake or the deadline. The futex is shared,
// never private: several processes map the word.
FutexResult futex_wait_on(const std::uint32_t* word, std::uint32_t expected,
                          std::int64_t deadline) noexcept;

// Any thread. Wakes up to `count` sleepers; returns how many it woke.
int futex_wake_on(const std::uint32_t* word, int count) noexcept;

// How many wake calls this process has made, for tests and benchmarks.
std::uint64_t futex_wake_count() noexcept;

struct Linux {
    template <class T>
    using Atomic = std::atomic<T>;
    // Memory that only the atomics beside it protect: a test's platform checks each access to it.
    template <class T>
    using Plain = T;

    static_assert(Atomic<std::uint32_t>::is_always_lock_free);
    static_assert(Atomic<std::uint64_t>::is_always_lock_free);
    static_assert(sizeof(Atomic<std::uint64_t>) == 8);

    template <class T>
    static FutexResult futex_wait(const Atomic<T>& word, T expected,
                                  std::int64_t deadline) noexcept {
        return futex_wait_on(low_half(word), static_cast<std::uint32_t>(expected), deadline);
    }

    template <class T>
    static int futex_wake(const Atomic<T>& word, int count) noexcept {
        return futex_wake_on(low_half(word), count);
    }

    static std::uint64_t self_id() noexcept { return pysampler::self_id(); }
    static bool alive(std::uint64_t id) noexcept { return process_alive(pid_of(id)); }
    // When a thread that waits until `deadline` should check that its peers still live.
    static std::int64_t next_look(std::int64_t deadline) noexcept {
        return std::min(deadline, now_ns() + 50 * kMillisecond);
    }

 private:
    template <class T>
    static const std::uint32_t* low_half(const Atomic<T>& word) noexcept {
        static_assert(sizeof(T) == 4 || sizeof(T) == 8);
        return reinterpret_cast<const std::uint32_t*>(&word);
    }
};

}  // namespace pysampler
