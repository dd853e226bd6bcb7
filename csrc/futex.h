// The only place with the futex system calls, and the `Linux` platform built on them.
//
// Every primitive is a template over a platform: `Linux` in production, a simulated one with
// stale reads and a deterministic scheduler in tests/native/sim.h. A platform gives Atomic,
// futex_wait, futex_wake, the two questions of process.h, and when to ask them.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>

#include "clock.h"
#include "layout.h"
#include "process.h"

namespace pysampler {

enum class FutexResult {
    kWoken,        // by a wake, or for no reason: look again
    kMismatch,     // the word was not what the caller expected: look again
    kTimedOut,     // the deadline has passed
    kInterrupted,  // a signal handler ran
};

// The ways to sleep on a futex until an absolute deadline, best first. The plain call adds the
// thread's timer slack (50 us by default) to the deadline; the newer ones do not.
enum class FutexCall { kWaitv, kWait2, kBitset, kNap };

// Which of them this process uses. Starts at kWaitv; a call the kernel (or a container's
// seccomp profile) refuses is not tried again. kNap, short sleeps and another look, is what is
// left where even FUTEX_WAIT is refused: slow, but nothing hangs.
FutexCall futex_call() noexcept;

// Anyone. Sleeps while *word == expected, until a wake or the deadline. Shared, never private:
// the word lies in memory that several processes map.
FutexResult futex_wait_on(const std::uint32_t* word, std::uint32_t expected,
                          std::int64_t deadline) noexcept;

// Anyone. Wakes up to `count` sleepers; returns how many.
int futex_wake_on(const std::uint32_t* word, int count) noexcept;

// How many wakes this process has asked of the kernel: what tests and benchmarks count.
std::uint64_t futex_wake_count() noexcept;

struct Linux {
    template <class T>
    using Atomic = std::atomic<T>;
    // Memory that only the atomics beside it protect: a test's platform sees who touches it when.
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
    // When one that waits until `deadline` should look whether its peers still live.
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
