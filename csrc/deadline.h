// Learned margins for keeping deadlines: how early a sleep must end, and how early a wait. Used by
// wait.h and bindings/wait.cpp; wait.h says when no margin is kept because others want the CPU.
//
//      asleep            | awake, looking       | on the way back        |
//   ---------------------+----------------------+------------------------+-----> time
//             the sleep's end          the wait's end            the caller's deadline
//                        <----- WakeMargin -----><---- ReturnMargin ----->
//
// A sleep ends late by the time that the machine takes to wake a thread; a caller that slept gets
// back from its wait late, since code and data went cold meanwhile. Both delays are learned.
#pragma once

#include <algorithm>
#include <cstdint>

#include "clock.h"

namespace pysampler {

// How long before the end of a wait its sleep ends. Waking early costs a CPU for a moment, waking
// late misses the deadline: so this stays close to the largest overshoot of the last hundreds. One
// above kMax teaches nothing: another program had the CPU, and no margin would have helped. A wait
// that is shorter than the margin learns an overshoot of 0, or none of its length would ever sleep.
class WakeMargin {
 public:
    std::int64_t ns() const { return ns_; }

    void learn(std::int64_t overshoot) {
        if (overshoot > kMax) return;
        const std::int64_t wanted = overshoot + overshoot / 8;
        ns_ = std::clamp(wanted > ns_ ? wanted : ns_ - ns_ / 256, kMin, kMax);
    }

 private:
    static constexpr std::int64_t kMin = 5 * kMicrosecond;
    static constexpr std::int64_t kMax = 200 * kMicrosecond;

    std::int64_t ns_ = 60 * kMicrosecond;
};

// How long before a caller's deadline its wait ends. Results that become ready after that are left
// to the next call, so the margin is just long enough to be back in time about nine times in ten:
// it grows by a quarter when it was too short and shrinks by 1/64 otherwise.
class ReturnMargin {
 public:
    static constexpr std::int64_t kMax = 100 * kMicrosecond;

    std::int64_t ns() const { return ns_; }

    // `took`: from the planned end of the wait until the caller was back.
    void learn(std::int64_t took) {
        ns_ = std::clamp(took > ns_ ? ns_ + ns_ / 4 : ns_ - ns_ / 64, kMin, kMax);
    }

 private:
    static constexpr std::int64_t kMin = kMicrosecond;

    std::int64_t ns_ = 20 * kMicrosecond;
};

}  // namespace pysampler
