// The nanosecond clock, and pausing or yielding a core between two checks.
#pragma once

#include <sched.h>
#include <time.h>

#include <cstdint>
#include <limits>

namespace pysampler {

// Deadlines are absolute, in ns on CLOCK_MONOTONIC, the clock of the futex calls.
inline constexpr std::int64_t kForever = std::numeric_limits<std::int64_t>::max();
inline constexpr std::int64_t kMicrosecond = 1'000;
inline constexpr std::int64_t kMillisecond = 1'000'000;
inline constexpr std::int64_t kSecond = 1'000'000'000;

inline std::int64_t now_ns() noexcept {
    timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * kSecond + t.tv_nsec;
}

inline timespec to_timespec(std::int64_t ns) noexcept {
    return {.tv_sec = ns / kSecond, .tv_nsec = ns % kSecond};
}

inline void cpu_pause() noexcept {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("isb" ::: "memory");  // "yield" is a no-op on most Arm cores
#endif
}

inline void cpu_yield() noexcept { sched_yield(); }

}  // namespace pysampler
