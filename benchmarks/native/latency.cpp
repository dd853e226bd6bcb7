// How long a hop takes and how late a deadline is kept. JSON lines on stdout.
//
//   round_trip:  two processes; a bare word and PAUSE as the limit, then Flag with the real policy
//   deadline:    waits that nothing ends; the kernel alone (park only), then precise
//   fan_in:      N posters, one waiter for all: time and wakes a batch
//   notice:      from kill() of a process to the action of the Watch
#include <signal.h>

#include <cstdio>
#include <cstring>
#include <string>

#include "common.h"
#include "doorbell.h"
#include "flag.h"
#include "watch.h"

using namespace pysampler;

namespace {

void print(const char* what, const std::string& which, std::vector<std::int64_t>& ns,
           const std::string& more = "") {
    std::printf(
        "{\"bench\": \"%s\", \"case\": \"%s\", \"p50_ns\": %ld, \"p99_ns\": %ld, \"p99.9_ns\": "
        "%ld%s}\n",
        what, which.c_str(), bench::quantile(ns, 0.5), bench::quantile(ns, 0.99),
        bench::quantile(ns, 0.999), more.c_str());
    std::fflush(stdout);
}

void raw_round_trip(int trips, std::vector<std::int64_t>& took) {
    auto segment = Segment::create(1 << 16);
    struct Line {
        alignas(kLine) std::atomic<std::uint32_t> turn{0};
    };
    Line* there = bench::place<Line>(*segment);
    Line* back = bench::place<Line>(*segment);
    const auto await = [](Line* line, std::uint32_t turn) {
        while (line->turn.load(std::memory_order_acquire) != turn) cpu_pause();
    };
    const pid_t child = bench::fork_child([&] {
        for (std::uint32_t i = 1; i <= static_cast<std::uint32_t>(trips); ++i) {
            await(there, i);
            back->turn.store(i, std::memory_order_release);
        }
    });
    for (std::uint32_t i = 1; i <= static_cast<std::uint32_t>(trips); ++i) {
        const std::int64_t start = now_ns();
        there->turn.store(i, std::memory_order_release);
        await(back, i);
        took.push_back(now_ns() - start);
    }
    waitpid(child, nullptr, 0);
}

void flag_round_trip(int trips, std::vector<std::int64_t>& took) {
    auto segment = Segment::create(1 << 16);
    Flag* there = bench::place<Flag>(*segment);
    Flag* back = bench::place<Flag>(*segment);
    const auto take = [](Flag* flag, WaitPolicy& policy) {
        flag->wait_until(kForever, policy);
        flag->clear();
    };
    const pid_t child = bench::fork_child([&] {
        WaitPolicy policy;
        for (int i = 0; i < trips; ++i) {
            take(there, policy);
            back->set();
        }
    });
    WaitPolicy policy;
    for (int i = 0; i < trips; ++i) {
        const std::int64_t start = now_ns();
        there->set();
        take(back, policy);
        took.push_back(now_ns() - start);
    }
    waitpid(child, nullptr, 0);
}

void round_trips(int repetitions) {
    std::vector<std::int64_t> raw, flag;
    std::vector<std::int64_t> raw_medians, flag_medians;
    for (int i = 0; i < repetitions; ++i) {
        std::vector<std::int64_t> once;
        raw_round_trip(50'000, once);
        raw_medians.push_back(bench::quantile(once, 0.5));
        raw.insert(raw.end(), once.begin(), once.end());
        once.clear();
        flag_round_trip(50'000, once);
        flag_medians.push_back(bench::quantile(once, 0.5));
        flag.insert(flag.end(), once.begin(), once.end());
    }
    const auto spread = [](std::vector<std::int64_t>& medians) {
        return ", \"medians_ns\": [" + std::to_string(bench::quantile(medians, 0)) + ", " +
               std::to_string(bench::quantile(medians, 0.5)) + ", " +
               std::to_string(bench::quantile(medians, 1)) + "]";
    };
    print("round_trip", "a word and PAUSE", raw, spread(raw_medians));
    print("round_trip", "Flag", flag, spread(flag_medians));
}

void deadlines() {
    for (const std::int64_t length :
         {kMicrosecond, 10 * kMicrosecond, 100 * kMicrosecond, kMillisecond, 10 * kMillisecond}) {
        const int waits = length >= kMillisecond ? 300 : 2000;
        WaitPolicy kernel = WaitPolicy::fixed(0, 0);
        kernel.set_precise(false);
        WaitPolicy precise;
        std::vector<std::int64_t> late[2];
        std::int64_t cpu[2] = {0, 0};
        // In turn, in blocks: what the guard learns is not mixed with the other's sleeps.
        for (int block = 0; block < 4; ++block) {
            for (int which = 0; which < 2; ++which) {
                WaitPolicy& policy = which == 0 ? kernel : precise;
                const std::int64_t before = bench::cpu_ns();
                for (int i = 0; i < waits / 4; ++i) {
                    const std::int64_t deadline = now_ns() + length;
                    sleep_until(deadline, policy);
                    late[which].push_back(now_ns() - deadline);
                }
                cpu[which] += bench::cpu_ns() - before;
            }
        }
        for (int which = 0; which < 2; ++which) {
            print("deadline",
                  std::to_string(length / 1000) + " us, " + (which == 0 ? "kernel" : "precise"),
                  late[which],
                  ", \"cpu_ns\": " +
                      std::to_string(cpu[which] / static_cast<std::int64_t>(late[which].size())));
        }
    }
}

void fan_in(std::uint32_t posters, int batches) {
    auto segment = Segment::create(1 << 20);
    std::vector<Flag*> go;
    for (std::uint32_t i = 0; i < posters; ++i) go.push_back(bench::place<Flag>(*segment));
    auto* at = segment->at(segment->allocate(Doorbell::bytes(posters)), Doorbell::bytes(posters));
    auto* cell = new (at) Doorbell::Cell;
    auto* members = new (at + sizeof(Doorbell::Cell)) Doorbell::Member[posters];
    auto* wakes = bench::place<std::atomic<std::uint64_t>>(*segment, 0U);
    std::vector<pid_t> children;
    for (std::uint32_t i = 0; i < posters; ++i) {
        children.push_back(bench::fork_child([&] {
            Doorbell bell(cell, members, posters);
            WaitPolicy policy;
            policy.set_busy([&bell] { return bell.wanted(); });
            const std::uint64_t before = futex_wake_count();
            for (int batch = 0; batch < batches; ++batch) {
                go[i]->wait_until(kForever, policy);
                go[i]->clear();
                bell.post(i, now_ns());
            }
            *wakes += futex_wake_count() - before;
        }));
    }
    Doorbell bell(cell, members, posters);
    WaitPolicy policy;
    std::vector<std::int64_t> took;
    for (int batch = 0; batch < batches; ++batch) {
        const std::int64_t start = now_ns();
        for (Flag* flag : go) flag->set();
        while (bell.wait_until(posters, kForever, policy) != Outcome::kReady) {
        }
        for (std::uint32_t i = 0; i < posters; ++i) bell.take(i);
        if (batch > batches / 10) took.push_back(now_ns() - start);
    }
    for (const pid_t child : children) waitpid(child, nullptr, 0);
    print("fan_in", std::to_string(posters), took,
          ", \"wakes_per_batch\": " + std::to_string(static_cast<double>(wakes->load()) / batches));
}

void notice(int kills) {
    Watch watch;
    WaitPolicy policy;
    std::vector<std::int64_t> took;
    for (int i = 0; i < kills; ++i) {
        const pid_t child = bench::fork_child([] { pause(); });
        std::int64_t noticed = 0;
        watch.add(child, [&noticed] { noticed = now_ns(); });
        const std::int64_t start = now_ns();
        kill(child, SIGKILL);
        watch.wait(static_cast<std::uint64_t>(i), kForever, policy);
        took.push_back(noticed - start);
        waitpid(child, nullptr, 0);
    }
    print("notice", std::to_string(kills), took);
}

}  // namespace

int main() {
    round_trips(5);
    deadlines();
    for (const std::uint32_t posters : {1U, 2U, 8U, 64U, 512U}) {
        fan_in(posters, posters >= 64 ? 300 : 5000);
    }
    notice(1000);
}
