// Slices of threads (process.h).
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <thread>

#include "check.h"
#include "process.h"
#include "support.h"

using namespace pysampler;
using support::Child;

namespace {

struct Attributes {  // of the scheduler, as the kernel reports them
    std::uint32_t size, policy;
    std::uint64_t flags;
    std::int32_t nice;
    std::uint32_t priority;
    std::uint64_t runtime, deadline, period;
};

Attributes attributes() {
    Attributes own{};
    CHECK(syscall(SYS_sched_getattr, 0, &own, sizeof own, 0) == 0);
    return own;
}

// Whether normal threads choose their slices here: older kernels ignore the wish.
bool have_slices() {
    bool have = true;
    std::thread([&] {
        prefer_short_slices();
        have = attributes().runtime == 100'000;
    }).join();
    if (!have) support::skipped("this kernel has no slices");
    return have;
}

}  // namespace

TEST(short_slices_change_neither_the_policy_nor_the_nice_value) {
    if (!have_slices()) return;
    Child([] {
        const int niceness = nice(1);  // of the tests, which may be nice, and one more
        const Attributes before = attributes();
        prefer_short_slices();
        const Attributes after = attributes();
        CHECK(before.runtime > 100'000 && after.runtime == 100'000);
        CHECK(after.policy == SCHED_OTHER && after.nice == niceness && after.flags == before.flags);
    }).finish();
}

TEST(a_thread_that_other_settings_rule_keeps_them) {
    if (!have_slices()) return;
    Child([] {
        const sched_param none{};
        CHECK(sched_setscheduler(0, SCHED_BATCH, &none) == 0);
        const std::uint64_t before = attributes().runtime;
        prefer_short_slices();
        CHECK(attributes().policy == SCHED_BATCH && attributes().runtime == before);
    }).finish();
    Child([] {
        const sched_param none{};
        CHECK(sched_setscheduler(0, SCHED_OTHER | SCHED_RESET_ON_FORK, &none) == 0);
        prefer_short_slices();
        CHECK(attributes().flags != 0 && attributes().runtime == 100'000);
    }).finish();
}

TEST(a_kernel_that_refuses_slices_is_left_alone) {
    if (support::kSanitized) return support::skipped("the sanitizer's calls would be refused too");
    constexpr int kNoFilters = 77;
    Child child([] {
        const std::uint64_t before = attributes().runtime;
        if (!support::refuse_call(SYS_sched_setattr, EPERM)) _exit(kNoFilters);
        prefer_short_slices();
        CHECK(attributes().runtime == before);
        CHECK(support::refuse_call(SYS_sched_getattr, ENOSYS));
        prefer_short_slices();
    });
    const int status = child.status();
    if (WIFEXITED(status) && WEXITSTATUS(status) == kNoFilters) {
        return support::skipped("no system call filters here");
    }
    CHECK(status == 0);
}

namespace {

cpu_set_t own_cpus() {
    cpu_set_t cpus;
    CHECK(sched_getaffinity(0, sizeof cpus, &cpus) == 0);
    return cpus;
}

bool equal(const cpu_set_t& one, const cpu_set_t& other) { return CPU_EQUAL(&one, &other); }

}  // namespace

TEST(as_many_workers_as_cpus_stay_each_on_its_own_and_then_on_all) {
    if (!support::have_homes()) return;
    Child([] {
        const cpu_set_t all = own_cpus();
        const std::uint32_t cpus = allowed_cpus();
        CHECK(cpus == static_cast<std::uint32_t>(CPU_COUNT(&all)));
        cpu_set_t seen;
        CPU_ZERO(&seen);
        for (std::uint32_t worker = 0; worker < cpus; ++worker) {
            Home home(worker, cpus);
            CHECK(home);
            {
                const Home::Stay stay(&home);
                const cpu_set_t one = own_cpus();
                CHECK(CPU_COUNT(&one) == 1 && home.worker_here() == worker);
                CPU_OR(&seen, &seen, &one);
            }
            CHECK(equal(own_cpus(), all));
            const Home::Stay none(nullptr);
            CHECK(equal(own_cpus(), all));
        }
        CHECK(equal(seen, all));
    }).finish();
}

TEST(workers_that_are_fewer_or_more_than_cpus_have_no_home) {
    Child([] {
        const cpu_set_t all = own_cpus();
        const std::uint32_t cpus = allowed_cpus();
        for (const std::uint32_t workers : {cpus - 1, cpus + 1, 2 * cpus}) {
            Home home(0, workers);
            const Home::Stay stay(&home);
            CHECK(!home && home.worker_here() == UINT32_MAX && equal(own_cpus(), all));
        }
    }).finish();
}

TEST(a_thread_that_yields_to_usual_programs_has_no_home) {
    Child([] {
        CHECK(nice(1) > 0);
        CHECK(!Home(0, allowed_cpus()));
    }).finish();
    Child([] {
        const sched_param none{};
        CHECK(sched_setscheduler(0, SCHED_BATCH, &none) == 0);
        CHECK(!Home(0, allowed_cpus()));
    }).finish();
}

namespace {

// The CPU of a worker's home.
cpu_set_t cpu_of(std::uint32_t worker) {
    Home home(worker, allowed_cpus());
    const Home::Stay stay(&home);
    return own_cpus();
}

void set_cpus(const cpu_set_t& cpus) { CHECK(sched_setaffinity(0, sizeof cpus, &cpus) == 0); }

}  // namespace

TEST(a_thread_whose_cpus_others_change_keeps_those) {
    if (!support::have_homes()) return;
    Child([] {
        const cpu_set_t last = cpu_of(1);
        Home home(0, allowed_cpus());
        {
            const Home::Stay stay(&home);
            set_cpus(last);
        }
        CHECK(equal(own_cpus(), last));
        const Home::Stay stay(&home);
        CHECK(equal(own_cpus(), last));
    }).finish();
}

TEST(a_thread_awake_at_home_gets_all_cpus_after_the_next_sleep) {
    if (!support::have_homes()) return;
    Child([] {
        const cpu_set_t all = own_cpus(), own = cpu_of(0), other = cpu_of(1);
        Home home(0, allowed_cpus());
        {
            const Home::Stay stay(&home);
            set_cpus(other);  // its CPU is taken from all programs
        }
        set_cpus(own);  // and given back
        {
            const Home::Stay stay(&home);
        }
        CHECK(equal(own_cpus(), all));
        set_cpus(own);  // by a user, who sees it awake
        {
            const Home::Stay stay(&home);
        }
        CHECK(equal(own_cpus(), own));
    }).finish();
}

int main(int argc, char** argv) { return check::main(argc, argv); }
