#include "wait.h"

#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <fstream>
#include <mutex>
#include <optional>
#include <string>
#include <system_error>
#include <thread>

#include "cgroup.h"
#include "futex.h"
#include "process.h"

namespace pysampler {
namespace {

constexpr std::int64_t kMinPark = kMicrosecond;
constexpr std::int64_t kMaxPark = 100 * kMicrosecond;
constexpr int kRounds = 31;

std::mutex costs_mutex;  // process-local; taken once per policy object, never on a wait
std::optional<WaitCosts> known_costs;

// Without this, a child forked while another thread measures would find the mutex locked forever.
// NOLINTNEXTLINE(bugprone-throwing-static-initialization): the handlers are not called here
[[maybe_unused]] const int at_fork = pthread_atfork(
    [] { costs_mutex.lock(); }, [] { costs_mutex.unlock(); }, [] { costs_mutex.unlock(); });

std::int64_t quantile(std::array<std::int64_t, kRounds>& values, std::size_t percent) {
    const auto at = values.begin() + kRounds * percent / 100;
    std::nth_element(values.begin(), at, values.end());
    return *at;
}

// One hop, from a wake here until the woken thread runs there: half a round trip between two
// threads that park in turn, on the first and the last CPU of the mask. Unpinned, both may run on
// one CPU, where a hop costs a tenth of one between two idle CPUs. The 90th percentile,
// since a CPU that happens to be busy with another process is cheap to wake.
std::int64_t measure_park() {
    std::atomic<std::uint32_t> turn{0};
    std::array<std::array<std::int64_t, kRounds>, 2> trips;
    const auto play = [&](std::uint32_t side) {
        Home home(side * (allowed_cpus() - 1), allowed_cpus());
        const Home::Stay stay(&home);
        std::int64_t last = now_ns();
        for (std::uint32_t mine = side, seen; mine < 2 * kRounds; mine += 2) {
            // SYNC: each thread's acquire pairs with the other's release: each waits for the other.
            while ((seen = turn.load(std::memory_order_acquire)) != mine)
                Linux::futex_wait(turn, seen, kForever);
            const std::int64_t now = now_ns();
            trips[side][mine / 2] = now - std::exchange(last, now);
            turn.store(mine + 1, std::memory_order_release);
            Linux::futex_wake(turn, 1);
        }
    };
    std::thread there(play, 1);
    try {
        std::thread(play, 0).join();  // not in the caller, whose CPUs are not ours to set
    } catch (const std::system_error&) {
        play(0);  // without a second thread
    }
    there.join();
    return quantile(trips[0], 90) / 2;
}

std::int64_t measure_yield() {
    std::array<std::int64_t, kRounds> calls;
    for (std::int64_t& call : calls) {
        const std::int64_t start = now_ns();
        cpu_yield();
        call = now_ns() - start;
    }
    return quantile(calls, 10);  // in the slower ones another thread wanted to run
}

// The smallest CPU quota of this process's cgroups. The file says "MAX PERIOD" or "max PERIOD";
// version 1 has two files.
double cgroup_quota() {
    double quota = HUGE_VAL;
    for_each_cgroup("cpu", [&](const std::string& folder, bool v2) {
        double max = 0, period = 0;
        if (v2) {
            std::ifstream(folder + "/cpu.max") >> max >> period;
        } else {
            std::ifstream(folder + "/cpu.cfs_quota_us") >> max;
            std::ifstream(folder + "/cpu.cfs_period_us") >> period;
        }
        if (max > 0 && period > 0) quota = std::min(quota, max / period);
    });
    return quota;
}

}  // namespace

int usable_cpus() {
    const auto mask = static_cast<int>(allowed_cpus());
    const int allowed = mask > 0 ? mask : static_cast<int>(sysconf(_SC_NPROCESSORS_ONLN));
    const double quota = std::ceil(cgroup_quota());
    return std::max(1, quota < allowed ? static_cast<int>(quota) : allowed);
}

const WaitCosts& WaitCosts::here() {
    const std::lock_guard lock(costs_mutex);
    if (!known_costs) {
        known_costs.emplace();
        known_costs->cpus = usable_cpus();
        known_costs->yield_ns = measure_yield();
        try {
            known_costs->park_ns = std::clamp(measure_park(), kMinPark, kMaxPark);
        } catch (const std::system_error&) {  // cannot start a thread
            known_costs->park_ns = WaitCosts{}.park_ns;
        }
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
    static const std::atomic<std::uint32_t> never_woken{0};
    // Nothing ends it early, so a thread that stayed awake would gain nothing; a yield of it may
    // take milliseconds.
    const Outcome outcome = policy.wait(
        deadline, [] { return false; },
        [](std::int64_t until) {
            return Linux::futex_wait(never_woken, 0U, until) != FutexResult::kInterrupted;
        },
        {.awaited = UINT64_MAX});
    return outcome == Outcome::kTimedOut;
}

}  // namespace pysampler
