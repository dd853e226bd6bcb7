// What is learned about keeping deadlines: how early a sleep ends, and how early a wait. wait.h and
// bindings/wait.cpp use it; wait.h says when no margin is kept, since others want the CPU.
//
//      asleep            | awake, looking       | on the way back        |
//   ---------------------+----------------------+------------------------+-----> time
//             the sleep's end          the wait's end            the caller's deadline
//                        <----- WakeMargin -----><---- ReturnMargin ----->
//
// A sleep ends late, by what the machine takes to wake a thread; a caller that was asleep is back
// from its wait late, by code and data that went cold meanwhile. Both are learned.
#pragma once

#include <algorithm>
#include <cstdint>

#include "clock.h"

namespace pysampler {

// How long before the end of a wait its sleep ends. To be awake early costs a CPU for a moment, to
// be late misses the deadline: so this is close to the largest overshoot of the last thousand.
class WakeMargin {
 public:
    std::int64_t ns() const { return ns_; }

    void learn(std::int64_t overshoot) {
        const std::int64_t wanted = overshoot + overshoot / 8;
        ns_ = std::clamp(wanted > ns_ ? wanted : ns_ - ns_ / 1024, kMin, kMax);
    }

 private:
    static constexpr std::int64_t kMin = 5 * kMicrosecond;
    static constexpr std::int64_t kMax = 200 * kMicrosecond;

    std::int64_t ns_ = kMax;
};

// How long before a caller's deadline its wait ends. What becomes ready after that is left for the
// next call, so this is no longer than it takes to be back in time nine times in ten or so: it
// grows by a quarter where that was too short, and shrinks by 1/64 where not.
class ReturnMargin {
 public:
    static constexpr std::int64_t kMax = 100 * kMicrosecond;

    std::int64_t ns() const { return ns_; }

    // `took`: from when the wait was to end until the caller was back.
    void learn(std::int64_t took) {
        ns_ = std::clamp(took > ns_ ? ns_ + ns_ / 4 : ns_ - ns_ / 64, kMin, kMax);
    }

 private:
    static constexpr std::int64_t kMin = kMicrosecond;

    std::int64_t ns_ = 20 * kMicrosecond;
};

}  // namespace pysampler
