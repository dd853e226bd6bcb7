#include <linux/futex.h>
#include <pthread.h>
#include <time.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <thread>

#include "check.h"
#include "flag.h"
#include "futex.h"
#include "process.h"
#include "support.h"
#include "wait.h"

using namespace pysampler;
using support::Child;
using support::Random;
using support::Shared;
using support::until;

namespace {

std::atomic<int> clock_readings{0};
std::atomic<int> yields{0};

void on_signal(int) {}

// Without SA_RESTART, like CPython's handlers.
void take_signals() {
    struct sigaction action{};
    action.sa_handler = on_signal;
    CHECK(sigaction(SIGUSR1, &action, nullptr) == 0);
}

// A signal that comes before the thread sleeps interrupts nothing: sends signals until one does.
void interrupt(std::thread& thread, const std::atomic<bool>& out) {
    until([&] {
        if (!out) pthread_kill(thread.native_handle(), SIGUSR1);
        return out.load();
    });
    thread.join();
}

// Costs of an invented machine, so that nothing depends on the real one.
WaitCosts costs(int cpus, std::int64_t park_ns = 100 * kMicrosecond) {
    return {.park_ns = park_ns, .yield_ns = 500, .cpus = cpus};
}

// A site under the test's control: ready by a condition, parked by yielding.
struct Site {
    int looks = 0;
    int parks = 0;
    int looks_before_park = 0;
    std::int64_t first_park_at = 0;

    template <class Ready>
    Outcome wait(WaitPolicy& policy, std::int64_t deadline, Ready&& ready, Others others = {}) {
        *this = {};
        return policy.wait(
            deadline,
            [&] {
                ++looks;
                return ready();
            },
            [&](std::int64_t) {
                if (parks++ == 0) {
                    looks_before_park = looks;
                    first_park_at = now_ns();
                }
                sched_yield();
                return true;
            },
            others);
    }
};

bool never() { return false; }

// Ready once it has parked and `ns` have passed, so that a wait delayed by the scheduler parks too.
Outcome wait_for(Site& site, WaitPolicy& policy, std::int64_t ns, Others others = {}) {
    const std::int64_t until = now_ns() + ns;
    return site.wait(policy, kForever, [&] { return site.parks > 0 && now_ns() >= until; }, others);
}

}  // namespace

// Counts every reading of the clock in this program.
extern "C" int clock_gettime(clockid_t clock, timespec* time) noexcept {
    clock_readings.fetch_add(1, std::memory_order_relaxed);
    return static_cast<int>(syscall(SYS_clock_gettime, clock, time));
}

// Counts every yield in this program.
extern "C" int sched_yield() noexcept {
    yields.fetch_add(1, std::memory_order_relaxed);
    return static_cast<int>(syscall(SYS_sched_yield));
}

// The first test, since this process must not have measured anything yet.
TEST(adopted_costs_are_used_once_and_clamped) {
    Child([] {
        WaitCosts::adopt(0, 5);
        WaitCosts::adopt(7 * kMicrosecond, 500);
        WaitCosts::adopt(9 * kMicrosecond, 900);
        CHECK(WaitCosts::here().park_ns == 7 * kMicrosecond);
        CHECK(WaitCosts::here().yield_ns == 500);
        CHECK(WaitCosts::here().cpus == usable_cpus());
    }).finish();
    Child([] {
        WaitCosts::adopt(kForever, kForever);
        CHECK(WaitCosts::here().park_ns == 100 * kMicrosecond);
        CHECK(WaitCosts::here().yield_ns == 100 * kMicrosecond);
    }).finish();
}

TEST(usable_cpus_respects_the_affinity_mask) {
    CHECK(usable_cpus() >= 1);
    Child([] {
        cpu_set_t mask;
        CHECK(sched_getaffinity(0, sizeof mask, &mask) == 0);
        CHECK(usable_cpus() <= CPU_COUNT(&mask));
        int cpu = 0;
        while (!CPU_ISSET(cpu, &mask)) ++cpu;
        CPU_ZERO(&mask);
        CPU_SET(cpu, &mask);
        CHECK(sched_setaffinity(0, sizeof mask, &mask) == 0);
        CHECK(usable_cpus() == 1);
    }).finish();
}

// -- the system call ------------------------------------------------------------------------------

TEST(a_futex_wait_returns_at_once_if_the_word_differs) {
    const std::uint32_t word = 1;
    CHECK(futex_wait_on(&word, 2, kForever) == FutexResult::kMismatch);
}

TEST(a_futex_wait_is_never_early) {
    const std::uint32_t word = 1;
    Random random(1);
    for (int i = 0; i < 100; ++i) {
        const std::int64_t deadline = now_ns() + random.ns_below(300 * kMicrosecond);
        FutexResult result;
        do result = futex_wait_on(&word, 1, deadline);
        while (result == FutexResult::kWoken);
        CHECK(result == FutexResult::kTimedOut);
        CHECK(now_ns() >= deadline);
    }
}

TEST(a_futex_wait_until_the_past_times_out) {
    const std::uint32_t word = 1;
    for (const std::int64_t deadline : {std::int64_t{-kSecond}, std::int64_t{0}, std::int64_t{1}}) {
        CHECK(futex_wait_on(&word, 1, deadline) == FutexResult::kTimedOut);
    }
}

TEST(a_wake_reaches_another_process_and_returns_how_many_it_woke) {
    Shared<std::atomic<std::uint32_t>> word;
    Child child([&] {
        while (word->load() == 0) Linux::futex_wait(*word, 0U, kForever);
    });
    // Only a sleeper is counted: wait until the child sleeps.
    until([&] { return Linux::futex_wake(*word, 1) == 1; });
    word->store(1);
    Linux::futex_wake(*word, 1);
    child.finish();
    const std::uint64_t before = futex_wake_count();
    CHECK(Linux::futex_wake(*word, 1) == 0);
    CHECK(futex_wake_count() == before + 1);
}

TEST(a_signal_interrupts_a_futex_wait) {
    take_signals();
    const std::uint32_t word = 1;
    for (const std::int64_t deadline : {kForever, now_ns() + 1000 * kSecond}) {
        std::atomic<bool> out{false};
        std::thread thread([&] {
            FutexResult result;
            do result = futex_wait_on(&word, 1, deadline);
            while (result == FutexResult::kWoken);
            CHECK(result == FutexResult::kInterrupted);
            out = true;
        });
        interrupt(thread, out);
    }
}

// An old kernel returns ENOSYS, a container's profile EPERM; neither call is tried again.
TEST(a_refused_call_falls_back_to_the_next_best) {
    if (support::kSanitized) return support::skipped("the sanitizer's calls would be refused too");
    Shared<std::atomic<std::uint32_t>> word;
    constexpr int kNoFilters = 77;
    const auto never_early = [&] {
        const std::int64_t deadline = now_ns() + kMillisecond;
        FutexResult result;
        do result = Linux::futex_wait(*word, 0U, deadline);
        while (result == FutexResult::kWoken);
        CHECK(result == FutexResult::kTimedOut);
        CHECK(now_ns() >= deadline);
    };
    const auto woken = [&] {
        word->store(0);
        Child waker([&] {
            word->store(1);
            until([&] { return word->load() == 2 || Linux::futex_wake(*word, 1) < 0; });
        });
        while (word->load() == 0) Linux::futex_wait(*word, 0U, kForever);
        word->store(2);
        waker.finish();
        word->store(0);
    };
    Child child([&] {
        const long waitv = 449, wait2 = 455;
        const int slack = prctl(PR_GET_TIMERSLACK);
        never_early();
        if (!support::refuse_call(waitv, EPERM)) _exit(kNoFilters);
        never_early();
        CHECK(futex_call() >= FutexCall::kWait2);
        woken();
        CHECK(support::refuse_call(wait2, ENOSYS));
        never_early();
        CHECK(futex_call() == FutexCall::kBitset);
        woken();
        CHECK(prctl(PR_GET_TIMERSLACK) == slack);
        CHECK(support::refuse_operation(SYS_futex, FUTEX_WAIT_BITSET, EPERM));
        never_early();
        CHECK(futex_call() == FutexCall::kNap);
        woken();
        CHECK(Linux::futex_wait(*word, 1U, kForever) == FutexResult::kMismatch);
        CHECK(Linux::futex_wait(*word, 0U, 1) == FutexResult::kTimedOut);
    });
    const int status = child.status();
    if (WIFEXITED(status) && WEXITSTATUS(status) == kNoFilters) {
        return support::skipped("no system call filters here");
    }
    CHECK(status == 0);
}

// -- the policy -----------------------------------------------------------------------------------

TEST(a_ready_wait_neither_reads_the_clock_nor_parks) {
    for (WaitPolicy policy : support::policies()) {
        Site site;
        const int before = clock_readings;
        CHECK(site.wait(policy, kForever, [] { return true; }) == Outcome::kReady);
        CHECK(clock_readings == before);
        CHECK(site.looks == 1 && site.parks == 0);
        CHECK(policy.stats().waits == 0);
    }
}

TEST(a_deadline_in_the_past_returns_at_once) {
    for (WaitPolicy policy : support::policies()) {
        Site site;
        for (const std::int64_t deadline : {std::int64_t{-1}, std::int64_t{1}, now_ns()}) {
            CHECK(site.wait(policy, deadline, never) == Outcome::kTimedOut);
            CHECK(site.parks == 0);
        }
        CHECK(policy.stats().waits == 0 && policy.stats().parks == 0);
        CHECK(site.wait(policy, 1, [] { return true; }) == Outcome::kReady);
    }
}

TEST(a_wait_is_never_early) {
    Random random(2);
    for (WaitPolicy policy : support::policies()) {
        for (const bool precise : {true, false}) {
            policy.set_precise(precise);
            for (int i = 0; i < 50; ++i) {
                const std::int64_t deadline = now_ns() + random.ns_below(500 * kMicrosecond);
                CHECK(sleep_until(deadline, policy));
                CHECK(now_ns() >= deadline);
            }
        }
    }
}

TEST(a_sleep_never_yields_its_cpu) {
    for (WaitPolicy policy : {support::parking(), WaitPolicy()}) {
        for (int i = 0; i < 20; ++i) {
            const int before = yields;
            CHECK(sleep_until(now_ns() + kMillisecond / 4, policy));
            CHECK(yields == before);
        }
    }
}

TEST(waits_shorter_than_the_wake_margin_shorten_it_until_they_sleep) {
    WaitPolicy policy = support::parking();
    const std::int64_t length = policy.guard_ns() / 2;
    for (int i = 0; i < 2'000 && policy.stats().parks == 0; ++i) {
        CHECK(sleep_until(now_ns() + length, policy));
    }
    CHECK(policy.stats().parks > 0);
}

TEST(ready_at_the_deadline_is_not_a_time_out) {
    Random random(3);
    for (WaitPolicy policy : support::policies()) {
        for (int i = 0; i < 50; ++i) {
            Site site;
            const std::int64_t deadline = now_ns() + kMillisecond + random.ns_below(kMillisecond);
            const auto ready = [=] { return now_ns() >= deadline; };
            CHECK(site.wait(policy, deadline, ready) == Outcome::kReady);
        }
    }
}

TEST(ready_just_before_a_passed_deadline_is_not_a_time_out) {
    WaitPolicy policy = support::parking();
    Site site;
    const std::int64_t deadline = now_ns() + kMillisecond;
    const auto ready = [&] {
        if (site.looks > 1) return true;
        until([&] { return now_ns() > deadline; });  // delayed between this look and the clock
        return false;
    };
    CHECK(site.wait(policy, deadline, ready) == Outcome::kReady);
}

TEST(a_slice_interrupts_and_is_never_early) {
    for (WaitPolicy policy : {support::parking(), WaitPolicy(), WaitPolicy::fixed(kForever, 0),
                              WaitPolicy::fixed(0, kForever)}) {
        policy.set_slice(kMillisecond);
        Flag flag;
        const std::int64_t start = now_ns();
        CHECK(flag.wait_until(kForever, policy) == Outcome::kInterrupted);
        CHECK(now_ns() >= start + kMillisecond);
        CHECK(!sleep_until(kForever, policy));
        const std::int64_t deadline = now_ns() + kMillisecond / 2;
        Outcome outcome;
        do {
            outcome = flag.wait_until(deadline, policy);  // interrupted if delayed for a slice
        } while (outcome == Outcome::kInterrupted && now_ns() >= start + kMillisecond);
        CHECK(outcome == Outcome::kTimedOut);
    }
}

TEST(a_signal_interrupts_a_wait) {
    take_signals();
    for (const bool with_deadline : {false, true}) {
        Flag flag;
        std::atomic<bool> out{false};
        std::thread thread([&] {
            WaitPolicy policy = support::parking();
            const std::int64_t deadline = with_deadline ? now_ns() + 1000 * kSecond : kForever;
            CHECK(flag.wait_until(deadline, policy) == Outcome::kInterrupted);
            CHECK(!flag.parked() && flag.waiter() == 0);
            out = true;
        });
        interrupt(thread, out);
    }
}

TEST(a_fixed_policy_keeps_to_its_budget_and_never_learns) {
    Site site;
    WaitPolicy at_once = WaitPolicy::fixed(0, 0);
    CHECK(!at_once.adaptive());
    for (std::uint64_t i = 1; i <= 20; ++i) {
        CHECK(wait_for(site, at_once, 0) == Outcome::kReady);
        CHECK(site.looks_before_park == 1);
        CHECK(at_once.stats().waits == i && at_once.stats().parks == i);
    }
    for (WaitPolicy policy :
         {WaitPolicy::fixed(300 * kMicrosecond, 0), WaitPolicy::fixed(0, 300 * kMicrosecond)}) {
        for (int i = 0; i < 20; ++i) {
            const std::int64_t start = now_ns();
            CHECK(wait_for(site, policy, 0) == Outcome::kReady);
            CHECK(site.first_park_at >= start + 300 * kMicrosecond);
            CHECK(site.looks_before_park > 1);
        }
    }
}

TEST(a_site_of_short_waits_stays_awake) {
    WaitPolicy policy(costs(8));
    Site site;
    for (std::uint64_t i = 1; i <= 20; ++i) {
        int more = 3;
        CHECK(site.wait(policy, kForever, [&] { return more-- == 0; }) == Outcome::kReady);
        CHECK(site.parks == 0);
        CHECK(policy.stats().waits == i && policy.stats().parks == 0);
    }
}

TEST(a_site_of_long_waits_learns_to_park_at_once) {
    const WaitCosts cheap = costs(8, kMicrosecond);
    WaitPolicy policy(cheap);
    const std::int64_t patience = policy.patience_ns();
    CHECK(patience == WaitPolicy::kLeastPatience);
    CHECK(WaitPolicy(costs(8, 24 * kMicrosecond)).patience_ns() == 40 * 24 * kMicrosecond);
    Site site;
    CHECK(wait_for(site, policy, 10 * patience) == Outcome::kReady);
    CHECK(site.looks_before_park > 1);  // not known yet
    for (int i = 0; i < 10; ++i) CHECK(wait_for(site, policy, 3 * patience) == Outcome::kReady);
    CHECK(policy.usual_ns() >= patience);
    const std::uint64_t parks = policy.stats().parks;
    CHECK(wait_for(site, policy, 3 * patience) == Outcome::kReady);
    CHECK(site.looks_before_park == 1);
    CHECK(policy.stats().parks > parks);
    // It unlearns that: each wait is ready at the first look after a park, or the second one awake.
    until([&] {
        int more = 1;
        CHECK(site.wait(policy, kForever, [&] { return more-- == 0; }) == Outcome::kReady);
        return site.parks == 0;
    });
}

TEST(an_interrupted_wait_teaches_at_most_that_it_is_long) {
    WaitPolicy policy(costs(8));
    const std::int64_t usual = policy.usual_ns();
    for (int i = 0; i < 20; ++i) {
        const Outcome outcome = policy.wait(kForever, never, [](std::int64_t) { return false; });
        CHECK(outcome == Outcome::kInterrupted);
        CHECK(policy.usual_ns() >= usual);
    }
}

TEST(an_interrupted_wait_continues_if_go_on_returns_true) {
    WaitPolicy policy = support::parking();
    policy.set_slice(kMillisecond);
    int times = 0;
    policy.set_go_on([&] { return ++times < 3; });
    Flag flag;
    CHECK(flag.wait_until(kForever, policy) == Outcome::kInterrupted && times == 3);
    policy.set_go_on([&] { return flag.set(); });  // the wait keeps its place meanwhile
    CHECK(flag.wait_until(kForever, policy) == Outcome::kReady);
}

TEST(a_wait_for_as_many_processes_as_cpus_parks_at_once) {
    WaitPolicy policy(costs(4));
    Site site;
    CHECK(wait_for(site, policy, 0, {.awaited = 4}) == Outcome::kReady);
    CHECK(site.looks_before_park == 1);
    CHECK(wait_for(site, policy, 0, {.awaited = 3}) == Outcome::kReady);
    CHECK(site.looks_before_park > 1);
    WaitPolicy alone(costs(1));
    CHECK(wait_for(site, alone, 0) == Outcome::kReady);
    CHECK(site.looks_before_park == 1);
}

TEST(only_a_short_wait_stays_awake_while_others_need_every_cpu) {
    for (const std::uint64_t at_work : {3, 4}) {
        WaitPolicy policy(costs(4));
        Site site;
        CHECK(wait_for(site, policy, 0, {.awaited = 1, .at_work = at_work}) == Outcome::kReady);
        CHECK(site.looks_before_park > 1);  // before it has learned anything
        until([&] {
            wait_for(site, policy, 4 * policy.costs().park_ns);
            return policy.usual_ns() > 3 * policy.costs().park_ns;
        });
        CHECK(wait_for(site, policy, 0, {.awaited = 1, .at_work = at_work}) == Outcome::kReady);
        CHECK((site.looks_before_park > 1) == (at_work == 3));
    }
}

TEST(only_a_short_wait_stays_awake_on_the_cpu_of_the_awaited) {
    WaitPolicy policy(costs(4)), alone(costs(4));
    policy.set_shares_cpu(true);
    const std::int64_t hop = policy.costs().park_ns;
    // Teaches a policy that its waits take between `hops` and `hops + 2`; returns whether the next
    // one sleeps at once.
    const auto sleeps = [&](WaitPolicy& learner, std::int64_t hops) {
        Site site;
        until([&] {
            wait_for(site, learner, (hops + 1) * hop);
            return learner.usual_ns() > hops * hop && learner.usual_ns() < (hops + 2) * hop;
        });
        CHECK(wait_for(site, learner, 0) == Outcome::kReady);
        return site.looks_before_park == 1;
    };
    CHECK(!sleeps(policy, 1) && sleeps(policy, 5));
    CHECK(!sleeps(alone, 1) && !sleeps(alone, 5));
}

TEST(a_wait_is_at_home_only_while_it_sleeps) {
    if (!support::have_homes()) return;
    const std::uint32_t cpus = allowed_cpus();
    Home home(0, cpus);
    WaitPolicy adaptive(costs(4)), fixed = support::parking();
    for (WaitPolicy* policy : {&adaptive, &fixed}) {
        policy->set_home(&home);
        policy->set_slice(0);
        std::uint32_t asleep = 0, between = 0;
        policy->set_go_on([&] {  // signal handlers run here
            between = allowed_cpus();
            return true;
        });
        const Outcome outcome = policy->wait(
            kForever, [&] { return between != 0; },
            [&](std::int64_t) {
                asleep = allowed_cpus();
                return true;
            });
        CHECK(outcome == Outcome::kReady && between == cpus);
        CHECK(asleep == (policy->adaptive() ? 1 : cpus));
    }
    CHECK(allowed_cpus() == cpus);
}

TEST(crowding_is_forgotten_when_every_wait_parks_at_once) {
    WaitPolicy policy({.park_ns = kMicrosecond, .yield_ns = -kMicrosecond, .cpus = 8});
    Site site;
    until([&] {  // with these costs every yield counts as long
        CHECK(wait_for(site, policy, 0) == Outcome::kReady);
        return policy.crowded();
    });
    for (int i = 0; i < 100; ++i)
        CHECK(wait_for(site, policy, 0, {.awaited = 8}) == Outcome::kReady);
    CHECK(!policy.crowded());
}

TEST(a_wait_yields_its_cpu_to_busy_processes_that_need_all) {
    Site site;
    int asked = 0;
    WaitPolicy policy(costs(4));
    policy.set_busy([&] {
        ++asked;
        return std::uint64_t{4};
    });
    CHECK(wait_for(site, policy, 0) == Outcome::kReady);
    CHECK(asked == 1);                                             // it then slept
    CHECK(policy.stats().awake_ns >= 2 * policy.costs().park_ns);  // the cost of sleeping
    asked = 0;
    until([&] {  // repeated, since a single yield may use up the patience
        WaitPolicy keeps(costs(4));
        keeps.set_busy([&] {
            ++asked;
            return std::uint64_t{3};
        });
        CHECK(wait_for(site, keeps, 0) == Outcome::kReady);
        return asked > 1;
    });
}

TEST(stats_report_time_awake_and_parked) {
    WaitPolicy policy = WaitPolicy::fixed(kMillisecond, 0);
    const std::int64_t start = now_ns();
    CHECK(sleep_until(start + 50 * kMillisecond, policy));
    const WaitStats& stats = policy.stats();
    CHECK(stats.waits == 1 && stats.parks >= 1);
    CHECK(stats.awake_ns >= kMillisecond && stats.parked_ns > 0);
    CHECK(stats.awake_ns + stats.parked_ns <= now_ns() - start);
}

TEST(setting_a_flag_without_a_waiter_makes_no_wake_call) {
    Flag flag;
    const std::uint64_t before = futex_wake_count();
    for (int i = 0; i < 1000; ++i) {
        CHECK(flag.set());
        CHECK(flag.clear());
    }
    CHECK(futex_wake_count() == before);
}

int main(int argc, char** argv) { return check::main(argc, argv); }
