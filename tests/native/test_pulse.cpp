#include <algorithm>
#include <cstdint>
#include <random>
#include <utility>
#include <vector>

#include "check.h"
#include "pulse.h"

using namespace pysampler;

namespace {

constexpr std::int64_t kInterval = 10;

// A process that is suspended at times, on a simulated clock. Its thread beats while it runs.
class Script {
 public:
    // Runs, or is suspended, for `ticks`.
    void run(std::int64_t ticks) {
        for (; ticks > 0; --ticks) {
            runs_.push_back(true);
            ++now_;
            beat_if_due();
        }
    }
    void suspend(std::int64_t ticks) {
        runs_.insert(runs_.end(), static_cast<std::size_t>(ticks), false);
        now_ += ticks;
    }
    void beat_if_due() {
        if (now_ < due_) return;
        pulse_.beat(now_);
        due_ = now_ + kInterval;
    }

    std::int64_t now() const { return now_; }
    // How long the process knows to have run since then, and how long it did run.
    std::int64_t known(std::int64_t since) const {
        return now_ - since - pulse_.paused(since, now_);
    }
    std::int64_t ran(std::int64_t since) const {
        return std::count(runs_.begin() + since, runs_.end(), true);
    }

 private:
    std::int64_t now_ = 0;
    std::int64_t due_ = kInterval;
    std::vector<bool> runs_;
    Pulse pulse_{kInterval, 0};
};

}  // namespace

TEST(a_running_process_has_no_pauses) {
    Script script;
    for (int i = 0; i < 100; ++i) {
        script.run(7);
        CHECK(script.known(0) == script.now());
    }
}

TEST(a_pause_is_known_before_and_after_the_beat_that_ends_it) {
    Script script;
    script.run(25);
    script.suspend(1000);
    CHECK(script.known(0) == 30);  // runs until the beat was due
    script.beat_if_due();
    CHECK(script.known(0) == 30);
    CHECK(script.known(20) == 10);
    CHECK(script.known(500) == 0);
    script.run(15);
    CHECK(script.known(0) == 45);
    CHECK(script.known(500) == 15);
    CHECK(script.known(1030) == 10);
}

// Random suspensions: no time in which the process ran is subtracted, so another process that works
// for too long is found late; and each suspension leaves at most an interval and a half, so that a
// process that was suspended too is not.
TEST(running_time_is_known_to_within_an_interval_and_a_half_per_suspension) {
    for (unsigned seed = 0; seed < 300; ++seed) {
        std::mt19937 dice(seed);
        const auto up_to = [&](int most) {
            return std::uniform_int_distribution<std::int64_t>(1, most)(dice);
        };
        Script script;
        std::vector<std::int64_t> suspensions;
        for (int i = 0; i < 20; ++i) {
            script.run(up_to(60));
            suspensions.push_back(script.now());
            script.suspend(up_to(seed % 2 == 0 ? 400 : 30));
            for (int look = 0; look < 2; ++look) {  // before the thread beats, and after
                for (int j = 0; j < 10; ++j) {
                    const std::int64_t since = up_to(static_cast<int>(script.now()));
                    const auto met = std::count_if(
                        suspensions.begin(), suspensions.end(),
                        [&](std::int64_t at) { return at >= since - kInterval - 400; });
                    CHECK(script.known(since) >= script.ran(since));
                    CHECK(script.known(since) <= script.ran(since) + met * kInterval * 3 / 2);
                }
                script.beat_if_due();
            }
        }
    }
}

TEST(a_thread_that_always_beats_late_still_counts_an_interval_per_beat) {
    Pulse pulse(kInterval, 0);
    for (std::int64_t beat = 1; beat <= 100; ++beat) {
        pulse.beat(beat * 5 * kInterval);
        const std::int64_t now = beat * 5 * kInterval;
        CHECK(now - pulse.paused(0, now) == beat * kInterval);
    }
}

int main(int argc, char** argv) { return check::main(argc, argv); }
