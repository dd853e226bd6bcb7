// How long this process was suspended: stopped by a signal, in a frozen cgroup, on a paused
// machine. The clock keeps running meanwhile, so before another process is called late, these
// pauses must be subtracted: it may have been suspended together with this one.
//
//   beats   |    |    |    |                        |    |    |
//           ----------------------------------------------------> time
//                          due: <--- a pause ------->
//
// A thread beats at an interval. If a beat is late by more than half an interval, the process
// counts as suspended since the beat was due. A thread that was merely denied its CPU looks the
// same: the time that is not a pause then still grows by an interval with each beat.
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

    // The total of all pauses from `since` until `now`, including one that no beat has ended yet.
    std::int64_t paused(std::int64_t since, std::int64_t now) const {
        std::int64_t sum = missed(now) ? now - std::clamp(since, due(), now) : 0;
        for (const auto& [begin, end] : pauses_) sum += end - std::clamp(since, begin, end);
        return sum;
    }

 private:
    struct Pause {
        std::int64_t begin, end;
    };
    // More pauses than there can be during any wait.
    static constexpr std::size_t kKept = 1000;

    bool missed(std::int64_t now) const { return now - due() > interval_ / 2; }

    std::int64_t interval_;
    std::int64_t last_;
    std::deque<Pause> pauses_;
};

}  // namespace pysampler
