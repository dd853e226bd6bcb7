// What the native benchmarks share: fixed amounts of work, quantiles, JSON lines on stdout.
#pragma once

#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <new>
#include <vector>

#include "clock.h"
#include "segment.h"

namespace bench {

inline std::int64_t cpu_ns(clockid_t clock = CLOCK_THREAD_CPUTIME_ID) {
    timespec t;
    clock_gettime(clock, &t);
    return t.tv_sec * pysampler::kSecond + t.tv_nsec;
}

// Burns CPU time, not wall time: being preempted is not work.
inline void work(std::int64_t ns) {
    const std::int64_t end = cpu_ns() + ns;
    while (cpu_ns() < end) {
    }
}

inline std::int64_t quantile(std::vector<std::int64_t>& values, double q) {
    const auto at =
        values.begin() + static_cast<std::ptrdiff_t>(q * static_cast<double>(values.size() - 1));
    std::nth_element(values.begin(), at, values.end());
    return *at;
}

// The numbers of a list such as "1,2,4".
inline std::vector<std::int64_t> numbers(const char* list) {
    std::vector<std::int64_t> values;
    for (const char* at = list; at != nullptr; at = std::strchr(at, ',')) {
        if (*at == ',') ++at;
        values.push_back(std::atoll(at));
    }
    return values;
}

// A T in shared memory, which a forked child sees too.
template <class T, class... Args>
T* place(pysampler::Segment& segment, Args&&... args) {
    const std::size_t at = segment.allocate(sizeof(T), alignof(T));
    return new (segment.at(at, sizeof(T))) T(static_cast<Args&&>(args)...);
}

// Runs `body` in a child, which ends with it.
template <class Body>
pid_t fork_child(Body&& body) {
    const pid_t pid = fork();
    if (pid < 0) std::abort();
    if (pid == 0) {
        body();
        _exit(0);
    }
    return pid;
}

}  // namespace bench
