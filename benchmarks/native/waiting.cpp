// Which way of waiting wins: a parent and W workers, all strategies in turn in one run.
//
// The parent sets a flag for each worker, each works for the given CPU time and posts to the
// doorbell, the parent waits for all, thinks, and goes round again. One JSON line per cell and
// strategy: rounds/s (median of the repetitions) and the CPU the waiters burnt per round.
#include <cstdio>
#include <string>

#include "common.h"
#include "doorbell.h"
#include "flag.h"

using namespace pysampler;

namespace {

struct Strategy {
    const char* name;
    WaitPolicy (*parent)();
    WaitPolicy (*worker)();
};

WaitPolicy adaptive() { return WaitPolicy(); }
WaitPolicy park() { return WaitPolicy::fixed(0, 0); }
WaitPolicy spin50() { return WaitPolicy::fixed(50 * kMicrosecond, 0); }
WaitPolicy yield1ms() { return WaitPolicy::fixed(0, kMillisecond); }
WaitPolicy spin_forever() { return WaitPolicy::fixed(kForever, 0); }

constexpr Strategy kStrategies[] = {
    {"adaptive", adaptive, adaptive},
    {"park/park", park, park},
    {"park/spin50", park, spin50},
    {"spin50/spin50", spin50, spin50},
    {"park/yield1ms", park, yield1ms},
    {"yield1ms/yield1ms", yield1ms, yield1ms},
    {"spin/spin", spin_forever, spin_forever},
};

struct Result {
    std::int64_t rounds;
    std::int64_t wall_ns;
    std::int64_t waiting_cpu_ns;  // of parent and workers, per round, work and thinking taken off
    std::int64_t worker_cpu_ns;   // of the workers alone
};

struct Report {
    std::atomic<std::int64_t> cpu_ns{0};
};

Result run(const Strategy& strategy, std::int64_t work, std::uint32_t workers, std::int64_t think,
           std::int64_t for_ns) {
    auto segment = Segment::create(1 << 20);
    std::vector<Flag*> flags;
    for (std::uint32_t i = 0; i < workers; ++i) flags.push_back(bench::place<Flag>(*segment));
    auto* bell_at =
        segment->at(segment->allocate(Doorbell::bytes(workers)), Doorbell::bytes(workers));
    auto* cell = new (bell_at) Doorbell::Cell;
    auto* members = new (bell_at + sizeof(Doorbell::Cell)) Doorbell::Member[workers];
    auto* stop = bench::place<std::atomic<bool>>(*segment, false);
    auto* report = bench::place<Report>(*segment);

    std::vector<pid_t> children;
    for (std::uint32_t i = 0; i < workers; ++i) {
        children.push_back(bench::fork_child([&] {
            Doorbell bell(cell, members, workers);
            WaitPolicy policy = strategy.worker();
            policy.set_busy([&bell] { return bell.wanted(); });
            std::int64_t rounds = 0, start = 0;
            for (;;) {
                flags[i]->wait_until(kForever, policy);
                if (rounds++ == 0) start = bench::cpu_ns();
                flags[i]->clear();
                if (stop->load()) break;
                bench::work(work);
                bell.post(i, now_ns());
            }
            report->cpu_ns += bench::cpu_ns() - start - (rounds - 1) * work;
        }));
    }
    Doorbell bell(cell, members, workers);
    WaitPolicy policy = strategy.parent();
    std::int64_t rounds = 0, start = 0, end = 0, cpu = 0;
    const std::int64_t warm_up = 10;
    for (;;) {
        const std::int64_t now = now_ns();
        if (rounds == warm_up) {
            start = now;
            cpu = bench::cpu_ns();
        }
        end = now;
        if (rounds > warm_up + 2 && now - start > for_ns) break;
        for (Flag* flag : flags) flag->set();
        while (bell.wait_until(workers, kForever, policy) != Outcome::kReady) {
        }
        for (std::uint32_t i = 0; i < workers; ++i) bell.take(i);
        bench::work(think);
        ++rounds;
    }
    rounds -= warm_up;
    const std::int64_t parent_cpu = bench::cpu_ns() - cpu - rounds * think;
    stop->store(true);
    for (Flag* flag : flags) flag->set();
    for (const pid_t child : children) waitpid(child, nullptr, 0);
    const std::int64_t worker_cpu = report->cpu_ns.load() / (rounds + warm_up);
    return {rounds, end - start, parent_cpu / rounds + worker_cpu, worker_cpu};
}

}  // namespace

// waiting [WORK_US,... [WORKERS,... [THINK_US,... [REPETITIONS [MS_EACH]]]]]
int main(int argc, char** argv) {
    const auto works = bench::numbers(argc > 1 ? argv[1] : "20,150,1000,10000");
    const auto counts = bench::numbers(argc > 2 ? argv[2] : "1,2,4,8");
    const auto thinks = bench::numbers(argc > 3 ? argv[3] : "5,200,5000");
    const int repetitions = argc > 4 ? std::atoi(argv[4]) : 3;
    const std::int64_t each = (argc > 5 ? std::atoll(argv[5]) : 150) * kMillisecond;
    for (const std::int64_t work : works) {
        for (const std::int64_t count : counts) {
            for (const std::int64_t think : thinks) {
                constexpr std::size_t n = std::size(kStrategies);
                std::vector<std::int64_t> round_ns[n], cpu[n], worker_cpu[n];
                for (int repetition = 0; repetition < repetitions; ++repetition) {
                    for (std::size_t s = 0; s < n; ++s) {
                        const Result r =
                            run(kStrategies[s], work * kMicrosecond,
                                static_cast<std::uint32_t>(count), think * kMicrosecond, each);
                        round_ns[s].push_back(r.wall_ns / r.rounds);
                        cpu[s].push_back(r.waiting_cpu_ns);
                        worker_cpu[s].push_back(r.worker_cpu_ns);
                    }
                }
                for (std::size_t s = 0; s < n; ++s) {
                    std::printf(
                        "{\"work_us\": %ld, \"workers\": %ld, \"think_us\": %ld, \"strategy\": "
                        "\"%s\", \"round_ns\": %ld, \"waiting_cpu_ns\": %ld, "
                        "\"worker_cpu_ns\": %ld}\n",
                        work, count, think, kStrategies[s].name, bench::quantile(round_ns[s], 0.5),
                        bench::quantile(cpu[s], 0.5), bench::quantile(worker_cpu[s], 0.5));
                }
                std::fflush(stdout);
            }
        }
    }
}
