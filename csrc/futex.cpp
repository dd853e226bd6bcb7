#include "futex.h"

#include <linux/futex.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

// Older kernel headers lack these; the numbers are the same on every architecture we build for.
#ifndef SYS_futex_waitv
#define SYS_futex_waitv 449
#endif
#ifndef SYS_futex_wait
#define SYS_futex_wait 455
#endif

namespace pysampler {
namespace {

constexpr std::uint32_t kShared32 = 2;  // FUTEX2_SIZE_U32, without FUTEX2_PRIVATE
constexpr std::int64_t kNapLength = 50 * kMicrosecond;

// Relaxed, both: any value of the first is correct, a stale one costs a refused call; the second is
// a count.
std::atomic<FutexCall> call_in_use{FutexCall::kWaitv};
std::atomic<std::uint64_t> wakes{0};

struct Waitv {  // struct futex_waitv of linux/futex.h, absent before 5.16
    std::uint64_t val;
    std::uint64_t uaddr;
    std::uint32_t flags;
    std::uint32_t reserved;
};
static_assert(sizeof(Waitv) == 24);

long sleep_by(FutexCall call, const std::uint32_t* word, std::uint32_t expected,
              const timespec* until) noexcept {
    switch (call) {
        case FutexCall::kWaitv: {
            Waitv one{expected, reinterpret_cast<std::uint64_t>(word), kShared32, 0};
            return syscall(SYS_futex_waitv, &one, 1, 0, until, CLOCK_MONOTONIC);
        }
        case FutexCall::kWait2:
            return syscall(SYS_futex_wait, word, static_cast<unsigned long>(expected),
                           static_cast<unsigned long>(FUTEX_BITSET_MATCH_ANY), kShared32, until,
                           CLOCK_MONOTONIC);
        case FutexCall::kBitset: {
            // The slack belongs to the thread, and its children inherit it: restore it.
            const int slack = until ? prctl(PR_GET_TIMERSLACK) : -1;
            if (slack > 1) prctl(PR_SET_TIMERSLACK, 1UL);
            const long result = syscall(SYS_futex, word, FUTEX_WAIT_BITSET, expected, until,
                                        nullptr, FUTEX_BITSET_MATCH_ANY);
            const int saved = errno;
            if (slack > 1) prctl(PR_SET_TIMERSLACK, static_cast<unsigned long>(slack));
            errno = saved;
            return result;
        }
        case FutexCall::kNap: {
            // Relaxed: the primitive checks again, and acquires.
            if (__atomic_load_n(word, __ATOMIC_RELAXED) != expected) return errno = EAGAIN, -1;
            const std::int64_t now = now_ns();
            const std::int64_t end = until ? until->tv_sec * kSecond + until->tv_nsec : kForever;
            if (now >= end) return errno = ETIMEDOUT, -1;
            const timespec nap = to_timespec(std::min(end - now, kNapLength));
            return nanosleep(&nap, nullptr);
        }
    }
    return 0;
}

FutexCall next(FutexCall call) noexcept {
    return static_cast<FutexCall>(static_cast<int>(call) + 1);
}

}  // namespace

FutexCall futex_call() noexcept { return call_in_use.load(std::memory_order_relaxed); }

FutexResult futex_wait_on(const std::uint32_t* word, std::uint32_t expected,
                          std::int64_t deadline) noexcept {
    // The kernel refuses negative times; the epoch of CLOCK_MONOTONIC has passed as well.
    const timespec until = to_timespec(std::max<std::int64_t>(deadline, 0));
    for (FutexCall call = futex_call();;) {
        const long result = sleep_by(call, word, expected, deadline == kForever ? nullptr : &until);
        if (result >= 0) return FutexResult::kWoken;
        if (call == FutexCall::kNap && errno != EAGAIN && errno != ETIMEDOUT && errno != EINTR) {
            return FutexResult::kWoken;
        }
        switch (errno) {
            case EAGAIN:
                return FutexResult::kMismatch;
            case ETIMEDOUT:
                return FutexResult::kTimedOut;
            case EINTR:
                return FutexResult::kInterrupted;
            case ENOSYS:  // the kernel lacks it
            case EPERM:   // something forbids it
            case EACCES:
            case EINVAL:
                call = next(call);
                call_in_use.store(call, std::memory_order_relaxed);
                break;
            default:  // out of memory, say: use the next call, this time only
                call = next(call);
        }
    }
}

int futex_wake_on(const std::uint32_t* word, int count) noexcept {
    wakes.fetch_add(1, std::memory_order_relaxed);
    long woken;
    do {
        woken = syscall(SYS_futex, word, FUTEX_WAKE, count, nullptr, nullptr, 0);
    } while (woken < 0 && errno == EINTR);
    return woken < 0 ? 0 : static_cast<int>(woken);
}

std::uint64_t futex_wake_count() noexcept { return wakes.load(std::memory_order_relaxed); }

}  // namespace pysampler
