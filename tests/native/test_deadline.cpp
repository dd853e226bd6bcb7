// The learned margins for keeping deadlines (deadline.h).
#include <cmath>
#include <cstdint>

#include "check.h"
#include "deadline.h"
#include "support.h"

using namespace pysampler;
using support::Random;

namespace {

// 5 us plus an exponentially distributed delay of 10 us on average.
std::int64_t delay(Random& random) {
    const double share = static_cast<double>(random.below(1'000'000) + 1) / 1e6;
    return 5 * kMicrosecond - static_cast<std::int64_t>(10e3 * std::log(share));
}

}  // namespace

TEST(return_margin_is_just_long_enough_to_be_in_time_nine_times_in_ten) {
    Random random(1);
    ReturnMargin margin;
    int late = 0;
    std::int64_t total = 0;
    for (int i = 0; i < 10'000; ++i) {
        const std::int64_t took = delay(random);
        late += took > margin.ns();
        total += margin.ns();
        margin.learn(took);
    }
    CHECK(late > 300 && late < 1'500);
    CHECK(total / 10'000 < 50 * kMicrosecond);
}

TEST(one_long_delay_hardly_changes_the_return_margin) {
    ReturnMargin margin;
    const std::int64_t before = margin.ns();
    margin.learn(kSecond);
    CHECK(margin.ns() > before && margin.ns() <= before + before / 4);
    for (int i = 0; i < 100; ++i) margin.learn(kSecond);
    CHECK(margin.ns() == ReturnMargin::kMax);
    for (int i = 0; i < 1'000; ++i) margin.learn(-kSecond);
    CHECK(margin.ns() > 0 && margin.ns() < 2 * kMicrosecond);
}

TEST(wake_margin_follows_the_worst_recent_overshoot) {
    WakeMargin margin;
    for (int i = 0; i < 10'000; ++i) margin.learn(20 * kMicrosecond);
    CHECK(margin.ns() >= 20 * kMicrosecond && margin.ns() < 25 * kMicrosecond);
    margin.learn(80 * kMicrosecond);
    CHECK(margin.ns() == 90 * kMicrosecond);
    for (int i = 0; i < 25; ++i) margin.learn(0);
    CHECK(margin.ns() > 80 * kMicrosecond);
    margin.learn(199 * kMicrosecond);
    CHECK(margin.ns() == 200 * kMicrosecond);
}

TEST(wake_margin_learns_nothing_from_a_cpu_that_another_program_had) {
    WakeMargin margin;
    for (int i = 0; i < 10'000; ++i) margin.learn(20 * kMicrosecond);
    const std::int64_t before = margin.ns();
    margin.learn(4 * kMillisecond);
    CHECK(margin.ns() == before);
}

int main(int argc, char** argv) { return check::main(argc, argv); }
