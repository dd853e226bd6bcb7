// How a parent wakes many sleeping workers: what a round costs, and who makes the system calls.
//
// In a round the parent gives every worker a command, each works for the given time, the last one
// to finish wakes the parent. The strategies differ in who wakes the workers:
//
//   each       the parent makes one FUTEX_WAKE for each worker
//   broadcast  all workers sleep on one word: the parent makes one FUTEX_WAKE for all of them
//   waitv      the same, but workers sleep on that word and one of their own (futex_waitv)
//   relay K    the parent wakes the first K workers, and each wakes K further ones before it works
//
// One JSON line per cell: medians of a round, of the time until the last worker has begun, and of
// the parent's CPU time, all in ns.
#include <linux/futex.h>
#include <sys/syscall.h>

#include <atomic>
#include <climits>
#include <cstdio>
#include <cstring>
#include <string>

#include "common.h"
#include "layout.h"

using namespace pysampler;

namespace {

using Word = std::atomic<std::uint32_t>;

long futex_wait(const Word& word, std::uint32_t expected) {
    return syscall(SYS_futex, &word, FUTEX_WAIT, expected, nullptr, nullptr, 0);
}

void futex_wake(const Word& word, int count) {
    syscall(SYS_futex, &word, FUTEX_WAKE, count, nullptr, nullptr, 0);
}

long futex_wait_two(const Word& one, const Word& other, std::uint32_t expected) {
#ifndef SYS_futex_waitv
    constexpr long SYS_futex_waitv = 449;
#endif
    struct Waiter {
        std::uint64_t value, address;
        std::uint32_t flags, reserved;
    } waiters[2] = {{expected, reinterpret_cast<std::uintptr_t>(&one), 2, 0},
                    {expected, reinterpret_cast<std::uintptr_t>(&other), 2, 0}};
    return syscall(SYS_futex_waitv, waiters, 2, 0, nullptr, 0);
}

struct Slot {
    alignas(kLine) Word round{0};
    alignas(kLine) std::atomic<std::int64_t> began{0};
};

struct Shared {
    alignas(kLine) Word round{0};  // of a broadcast
    alignas(kLine) Word left{0};   // workers that have not finished this round
    alignas(kLine) Word done{0};   // rounds; the parent sleeps on it
    alignas(kLine) std::atomic<bool> stop{false};
};

enum class Kind { kEach, kBroadcast, kWaitv, kRelay };

struct Strategy {
    const char* name;
    Kind kind;
    std::uint32_t fan = 0;
};

constexpr Strategy kStrategies[] = {
    {"each", Kind::kEach},        {"broadcast", Kind::kBroadcast}, {"waitv", Kind::kWaitv},
    {"relay 2", Kind::kRelay, 2}, {"relay 4", Kind::kRelay, 4},    {"relay 8", Kind::kRelay, 8},
};

struct Result {
    std::int64_t round_ns, begun_ns, parent_cpu_ns;
};

Result run(const Strategy& strategy, std::uint32_t workers, std::int64_t work,
           std::int64_t for_ns) {
    auto segment = Segment::create(1 << 20);
    auto* shared = bench::place<Shared>(*segment);
    std::vector<Slot*> slots;
    for (std::uint32_t i = 0; i < workers; ++i) slots.push_back(bench::place<Slot>(*segment));
    // The workers that one with this index wakes; the parent's is -1.
    const auto wake_next = [&](std::int64_t index) {
        for (std::uint32_t k = 1; k <= strategy.fan; ++k) {
            const std::int64_t next = (index + 1) * strategy.fan + k - 1;
            if (next < workers) futex_wake(slots[static_cast<std::size_t>(next)]->round, 1);
        }
    };

    std::vector<pid_t> children;
    for (std::uint32_t i = 0; i < workers; ++i) {
        children.push_back(bench::fork_child([&] {
            for (std::uint32_t round = 0;; ++round) {
                while (slots[i]->round.load(std::memory_order_acquire) == round) {
                    if (strategy.kind == Kind::kBroadcast) {
                        futex_wait(shared->round, round);
                    } else if (strategy.kind == Kind::kWaitv) {
                        futex_wait_two(slots[i]->round, shared->round, round);
                    } else {
                        futex_wait(slots[i]->round, round);
                    }
                }
                if (shared->stop.load()) break;
                slots[i]->began.store(now_ns(), std::memory_order_relaxed);
                if (strategy.kind == Kind::kRelay) wake_next(i);
                for (const std::int64_t end = now_ns() + work; now_ns() < end;) {
                }
                if (shared->left.fetch_sub(1, std::memory_order_acq_rel) == 1) {
                    shared->done.fetch_add(1, std::memory_order_release);
                    futex_wake(shared->done, 1);
                }
            }
        }));
    }

    std::vector<std::int64_t> rounds, begun;
    const auto send = [&](std::uint32_t round) {
        for (Slot* slot : slots) slot->round.store(round, std::memory_order_release);
        switch (strategy.kind) {
            case Kind::kEach:
                for (Slot* slot : slots) futex_wake(slot->round, 1);
                break;
            case Kind::kBroadcast:
            case Kind::kWaitv:
                shared->round.store(round, std::memory_order_release);
                futex_wake(shared->round, INT_MAX);
                break;
            case Kind::kRelay:
                wake_next(-1);
        }
    };
    std::int64_t cpu = 0;
    std::uint32_t round = 0;
    for (const std::int64_t end = now_ns() + for_ns; now_ns() < end || round < 12;) {
        if (round == 10) {
            rounds.clear();
            begun.clear();
            cpu = bench::cpu_ns();
        }
        shared->left.store(workers, std::memory_order_relaxed);
        const std::int64_t start = now_ns();
        send(++round);
        while (shared->done.load(std::memory_order_acquire) < round) {
            futex_wait(shared->done, round - 1);
        }
        rounds.push_back(now_ns() - start);
        std::int64_t last = start;
        for (Slot* slot : slots) {
            last = std::max(last, slot->began.load(std::memory_order_relaxed));
        }
        begun.push_back(last - start);
    }
    cpu = (bench::cpu_ns() - cpu) / static_cast<std::int64_t>(rounds.size());
    shared->stop.store(true);
    ++round;
    for (Slot* slot : slots) {
        slot->round.store(round, std::memory_order_release);
        futex_wake(slot->round, INT_MAX);
    }
    shared->round.store(round, std::memory_order_release);
    futex_wake(shared->round, INT_MAX);
    for (const pid_t child : children) waitpid(child, nullptr, 0);
    return {bench::quantile(rounds, 0.5), bench::quantile(begun, 0.5), cpu};
}

}  // namespace

// wakes [WORKERS,... [WORK_US,... [REPETITIONS [MS_EACH]]]]
int main(int argc, char** argv) {
    const auto counts = bench::numbers(argc > 1 ? argv[1] : "2,8,16,64");
    const auto works = bench::numbers(argc > 2 ? argv[2] : "0,20,200");
    const int repetitions = argc > 3 ? std::atoi(argv[3]) : 3;
    const std::int64_t each = (argc > 4 ? std::atoll(argv[4]) : 150) * kMillisecond;
    for (const std::int64_t count : counts) {
        for (const std::int64_t work : works) {
            constexpr std::size_t n = std::size(kStrategies);
            std::vector<std::int64_t> round[n], begun[n], cpu[n];
            for (int repetition = 0; repetition < repetitions; ++repetition) {
                for (std::size_t s = 0; s < n; ++s) {
                    const Result r = run(kStrategies[s], static_cast<std::uint32_t>(count),
                                         work * kMicrosecond, each);
                    round[s].push_back(r.round_ns);
                    begun[s].push_back(r.begun_ns);
                    cpu[s].push_back(r.parent_cpu_ns);
                }
            }
            for (std::size_t s = 0; s < n; ++s) {
                std::printf(
                    "{\"workers\": %ld, \"work_us\": %ld, \"strategy\": \"%s\", \"round_ns\": %ld, "
                    "\"begun_ns\": %ld, \"parent_cpu_ns\": %ld}\n",
                    count, work, kStrategies[s].name, bench::quantile(round[s], 0.5),
                    bench::quantile(begun[s], 0.5), bench::quantile(cpu[s], 0.5));
            }
            std::fflush(stdout);
        }
    }
}
