// How long this process did not run: stopped by a signal, in a frozen cgroup, on a paused machine.
// The clock goes on meanwhile. So it is no evidence against processes that may have been suspended
// with this one, unless these times are taken off.
//
//   beats   |    |    |    |                        |    |    |
//           ----------------------------------------------------> time
//                          due: <--- a pause ------->
//
// A thread beats at an interval. Where it comes later than that by more than half an interval, the
// process did not run from when the beat was due. A thread that others keep from its CPU looks
// the same: then the time that is left still grows by an interval with each beat.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>

namespace pysampler {

// One thread at a time. All times in ns of the same clock.
class Pulse {
 public:
    Pulse(std::int64_t interval, std::int64_t now) : interval_(interval), last_(now) {}

    void beat(std::int64_t now) {
        if (missed(now)) {
            pauses_.push_back({due(), now});
            if (pauses_.size() > kKept) pauses_.pop_front();
        }
        last_ = now;
    }

    std::int64_t due() const { return last_ + interval_; }

    // How much of the time from `since` until `now` were pauses, counting one that no beat has
    // ended yet.
    std::int64_t paused(std::int64_t since, std::int64_t now) const {
        std::int64_t sum = missed(now) ? now - std::clamp(since, due(), now) : 0;
        for (const auto& [begin, end] : pauses_) sum += end - std::clamp(since, begin, end);
        return sum;
    }

 private:
    struct Pause {
        std::int64_t begin, end;
    };
    // More than anything that is waited for will see.
    static constexpr std::size_t kKept = 1000;

    bool missed(std::int64_t now) const { return now - due() > interval_ / 2; }

    std::int64_t interval_;
    std::int64_t last_;
    std::deque<Pause> pauses_;
};

}  // namespace pysampler
