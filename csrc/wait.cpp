#include "wait.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <fstream>
#include <mutex>
#include <optional>
#include <sstream>
#include <string>
#include <thread>

#include "futex.h"

namespace pysampler {
namespace {

constexpr std::int64_t kMinPark = kMicrosecond;
constexpr std::int64_t kMaxPark = 100 * kMicrosecond;
constexpr int kRounds = 31;

std::mutex costs_mutex;  // process-local; taken once per policy object, never on a wait
std::optional<WaitCosts> known_costs;

template <std::size_t N>
std::int64_t quantile(std::array<std::int64_t, N>& values, std::size_t percent) {
    const auto at = values.begin() + N * percent / 100;
    std::nth_element(values.begin(), at, values.end());
    return *at;
}

void pin(int cpu) {
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(cpu, &one);
    sched_setaffinity(0, sizeof one, &one);  // this thread; where it is refused, unpinned will do
}

// One hop: a wake here until the woken thread runs there. Half a round trip between two threads,
// both parked in turn, on the first and the last CPU of the mask: left to itself the scheduler may
// put both on one, where a hop is a tenth of what it is between two that go idle. The 90th
// percentile, since a CPU that somebody else keeps busy is cheap to wake, and it is not always.
std::int64_t measure_park() {
    cpu_set_t allowed;
    CPU_ZERO(&allowed);
    sched_getaffinity(0, sizeof allowed, &allowed);
    int first = 0;
    while (first < CPU_SETSIZE - 1 && !CPU_ISSET(first, &allowed)) ++first;
    int last = CPU_SETSIZE - 1;
    while (last > first && !CPU_ISSET(last, &allowed)) --last;

    std::atomic<std::uint32_t> turn{0};
    const auto await = [&turn](std::uint32_t mine) {
        for (std::uint32_t seen; (seen = turn.load(std::memory_order_acquire)) != mine;) {
            Linux::futex_wait(turn, seen, kForever);
        }
    };
    const auto pass = [&turn](std::uint32_t next) {
        turn.store(next, std::memory_order_release);
        Linux::futex_wake(turn, 1);
    };
    std::array<std::int64_t, kRounds> trips;
    std::thread there([&] {
        pin(last);
        for (std::uint32_t i = 0; i < kRounds; ++i) {
            await(2 * i + 1);
            pass(2 * i + 2);
        }
    });
    std::thread here([&] {
        pin(first);
        for (std::uint32_t i = 0; i < kRounds; ++i) {
            const std::int64_t start = now_ns();
            pass(2 * i + 1);
            await(2 * i + 2);
            trips[i] = now_ns() - start;
        }
    });
    here.join();
    there.join();
    return quantile(trips, 90) / 2;
}

std::int64_t measure_yield() {
    std::array<std::int64_t, kRounds> calls;
    for (std::int64_t& call : calls) {
        const std::int64_t start = now_ns();
        cpu_yield();
        call = now_ns() - start;
    }
    return quantile(calls, 10);  // the others met somebody who wanted to run
}

// "MAX PERIOD" or "max PERIOD", from the cgroup this process is in; version 1 splits it in two.
double cgroup_quota() {
    const auto number = [](const std::string& path) -> double {
        std::ifstream file(path);
        double value = -1;
        file >> value;
        return file ? value : -1;
    };
    double quota = HUGE_VAL;
    std::ifstream groups("/proc/self/cgroup");
    for (std::string line; std::getline(groups, line);) {
        std::istringstream fields(line);
        std::string id, controllers, path;
        std::getline(fields, id, ':');
        std::getline(fields, controllers, ':');
        std::getline(fields, path);
        const bool v2 = controllers.empty();
        if (!v2 && ("," + controllers + ",").find(",cpu,") == std::string::npos) continue;
        const std::string root = v2 ? "/sys/fs/cgroup" : "/sys/fs/cgroup/cpu";
        // A quota may be set on any group above; inside a container the path may not be visible,
        // and the root is the container's own group.
        for (;;) {
            const std::string dir = root + (path == "/" ? "" : path);
            if (v2) {
                std::ifstream file(dir + "/cpu.max");
                double max = 0, period = 0;
                if (file >> max >> period && period > 0) quota = std::min(quota, max / period);
            } else {
                const double max = number(dir + "/cpu.cfs_quota_us");
                const double period = number(dir + "/cpu.cfs_period_us");
                if (max > 0 && period > 0) quota = std::min(quota, max / period);
            }
            if (path.empty() || path == "/") break;
            path.resize(path.rfind('/'));
        }
    }
    return quota;
}

}  // namespace

int usable_cpus() {
    cpu_set_t set;
    CPU_ZERO(&set);
    // More CPUs than a cpu_set_t holds: the call fails, and what is online is the best answer.
    const int allowed = sched_getaffinity(0, sizeof set, &set) == 0
                            ? CPU_COUNT(&set)
                            : static_cast<int>(sysconf(_SC_NPROCESSORS_ONLN));
    const double quota = std::ceil(cgroup_quota());
    return std::max(1, quota < allowed ? static_cast<int>(quota) : allowed);
}

const WaitCosts& WaitCosts::here() {
    const std::lock_guard lock(costs_mutex);
    if (!known_costs) {
        known_costs = WaitCosts{.park_ns = std::clamp(measure_park(), kMinPark, kMaxPark),
                                .yield_ns = measure_yield(),
                                .cpus = usable_cpus()};
    }
    return *known_costs;
}

void WaitCosts::adopt(std::int64_t park_ns, std::int64_t yield_ns) {
    const std::lock_guard lock(costs_mutex);
    if (known_costs || park_ns <= 0 || yield_ns <= 0) return;
    known_costs = WaitCosts{.park_ns = std::clamp(park_ns, kMinPark, kMaxPark),
                            .yield_ns = std::clamp<std::int64_t>(yield_ns, 50, kMaxPark),
                            .cpus = usable_cpus()};
}

bool sleep_until(std::int64_t deadline, WaitPolicy& policy) {
    static const std::atomic<std::uint32_t> nobody_wakes{0};
    const Outcome outcome = policy.wait(
        deadline, [] { return false; },
        [](std::int64_t until) {
            return Linux::futex_wait(nobody_wakes, 0U, until) != FutexResult::kInterrupted;
        });
    return outcome == Outcome::kTimedOut;
}

}  // namespace pysampler
