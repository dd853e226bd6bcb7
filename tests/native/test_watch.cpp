#include <dirent.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include <atomic>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include "check.h"
#include "doorbell.h"
#include "flag.h"
#include "ring.h"
#include "support.h"
#include "watch.h"

using namespace pysampler;
using support::Child;
using support::parking;
using support::until;

namespace {

Child sleeper() {
    return Child([] {
        for (;;) pause();
    });
}

// Waits until this many losses are known.
void wait_for(Watch& watch, std::uint64_t losses) {
    WaitPolicy policy = parking();
    CHECK(watch.wait(losses - 1, kForever, policy) == Outcome::kReady);
    CHECK(watch.losses().size() >= losses);
}

}  // namespace

TEST(a_killed_child_is_noticed_with_its_signal) {
    Watch watch;
    Child child = sleeper();
    std::atomic<int> runs{0};
    watch.add(child.pid(), [&] { ++runs; });
    CHECK(watch.watched() == std::vector<pid_t>({child.pid()}));
    CHECK(runs == 0 && watch.losses().empty());
    const std::int64_t killed_at = now_ns();
    child.send(SIGKILL);
    wait_for(watch, 1);
    const Loss loss = watch.losses().at(0);
    CHECK(runs == 1);
    CHECK(loss.pid == child.pid() && loss.noticed_at >= killed_at && loss.noticed_at <= now_ns());
    CHECK(loss.signal == SIGKILL && !loss.exit_code);
    CHECK(watch.watched().empty());
    CHECK(WTERMSIG(child.status()) == SIGKILL);  // the watch has not reaped it
}

TEST(a_child_that_exits_is_noticed_with_its_exit_code) {
    Watch watch;
    for (const int code : {0, 3}) {
        Child child([=] { _exit(code); });
        const std::size_t known = watch.losses().size();
        watch.add(child.pid(), [] {});
        wait_for(watch, known + 1);
        const Loss loss = watch.losses().back();
        CHECK(loss.pid == child.pid() && loss.exit_code == code && !loss.signal);
    }
}

TEST(a_child_that_aborts_is_noticed_with_its_signal) {
    Watch watch;
    Child child([] {
        std::signal(SIGABRT, SIG_DFL);
        std::abort();
    });
    watch.add(child.pid(), [] {});
    wait_for(watch, 1);
    CHECK(watch.losses().at(0).signal == SIGABRT);
}

TEST(a_reaped_process_is_reported_before_add_returns) {
    Watch watch;
    Child child([] {});
    const pid_t pid = child.pid();
    child.finish();
    int runs = 0;
    watch.add(pid, [&] { ++runs; });
    CHECK(runs == 1 && watch.losses().size() == 1);
    const Loss loss = watch.losses()[0];
    CHECK(loss.pid == pid && !loss.exit_code && !loss.signal);
    CHECK(watch.watched().empty());
    WaitPolicy policy = parking();
    CHECK(watch.wait(0, 1, policy) == Outcome::kReady);
}

TEST(a_dead_unreaped_process_is_reported_before_add_returns) {
    Watch watch;
    for (int i = 0; i < 20; ++i) {
        Child child([=] { _exit(i); });
        siginfo_t info;
        CHECK(waitid(P_PID, static_cast<id_t>(child.pid()), &info, WEXITED | WNOWAIT) == 0);
        std::thread::id runner;
        watch.add(child.pid(), [&] { runner = std::this_thread::get_id(); });
        CHECK(runner == std::this_thread::get_id());
        CHECK(watch.losses().back().pid == child.pid());
        CHECK(watch.losses().back().exit_code == i);
    }
    CHECK(watch.watched().empty());
}

TEST(every_action_of_a_process_runs_once) {
    Watch watch;
    Child child = sleeper();
    std::atomic<int> first{0}, second{0};
    watch.add(child.pid(), [&] { ++first; });
    watch.add(child.pid(), [&] { ++second; });
    child.send(SIGKILL);
    wait_for(watch, 1);
    CHECK(first == 1 && second == 1);
    CHECK(watch.losses().size() == 1);
}

TEST(set_replaces_all_other_actions) {
    Watch watch;
    Child child = sleeper();
    std::atomic<int> before{0}, after{0};
    watch.add(child.pid(), [&] { ++before; });
    watch.add(child.pid(), [&] { ++before; });
    watch.set(child.pid(), [&] { ++after; });
    child.send(SIGKILL);
    wait_for(watch, 1);
    CHECK(before == 0 && after == 1);
}

TEST(a_settled_process_is_not_reported_again) {
    for (int i = 0; i < 100; ++i) {
        Watch watch;
        Child child = sleeper();
        std::atomic<int> runs{0};
        watch.add(child.pid(), [&] { ++runs; });
        CHECK(!watch.settle(child.pid()));
        CHECK(runs == 0);
        child.send(SIGKILL);
        until([&] { return watch.settle(child.pid()); });  // notices here or in the poll thread
        CHECK(runs == 1 && watch.losses().size() == 1);
        CHECK(watch.settle(child.pid()));
        CHECK(runs == 1);
    }
}

TEST(forgotten_processes_are_not_reported) {
    Watch watch;
    Child forgotten = sleeper();
    Child watched = sleeper();
    std::atomic<int> runs{0};
    watch.add(forgotten.pid(), [&] { runs = -1; });
    watch.add(watched.pid(), [&] { ++runs; });
    CHECK(watch.forget(forgotten.pid()));
    CHECK(!watch.forget(forgotten.pid()));
    CHECK(!watch.forget(getpid()));
    forgotten.send(SIGKILL);
    forgotten.status();
    watched.send(SIGKILL);
    wait_for(watch, 1);
    CHECK(runs == 1 && watch.losses().size() == 1);
}

TEST(a_forgotten_process_may_be_watched_again) {
    Watch watch;
    Child child = sleeper();
    std::atomic<int> runs{0};
    watch.add(child.pid(), [&] { runs = -1; });
    CHECK(watch.forget(child.pid()));
    watch.add(child.pid(), [&] { ++runs; });
    child.send(SIGKILL);
    wait_for(watch, 1);
    CHECK(runs == 1);
}

TEST(a_stopped_process_is_not_lost) {
    Watch watch;
    Child stopped = sleeper();
    Child killed = sleeper();
    watch.add(stopped.pid(), [] {});
    watch.add(killed.pid(), [] {});
    stopped.send(SIGSTOP);
    int status = 0;
    CHECK(waitpid(stopped.pid(), &status, WUNTRACED) == stopped.pid() && WIFSTOPPED(status));
    killed.send(SIGKILL);
    wait_for(watch, 1);
    CHECK(watch.losses().size() == 1 && watch.losses()[0].pid == killed.pid());
    stopped.send(SIGKILL);  // SIGKILL ends a stopped process too
    wait_for(watch, 2);
}

TEST(many_deaths_are_each_noticed_once) {
    const std::size_t fds = support::open_fds();
    {
        Watch watch;
        constexpr std::uint64_t kMany = 40;  // more than one epoll_wait returns
        std::vector<Child> children;
        std::atomic<std::uint64_t> runs{0};
        for (std::uint64_t i = 0; i < kMany; ++i) {
            children.push_back(sleeper());
            watch.add(children.back().pid(), [&] { ++runs; });
        }
        CHECK(watch.watched().size() == kMany);
        for (const Child& child : children) child.send(SIGKILL);
        wait_for(watch, kMany);
        CHECK(runs == kMany && watch.losses().size() == kMany && watch.watched().empty());
    }
    CHECK(support::open_fds() == fds && support::no_child_left());
}

TEST(a_wait_for_losses_never_times_out_early) {
    Watch watch;
    for (WaitPolicy policy : support::policies()) {
        const std::int64_t deadline = now_ns() + 200 * kMicrosecond;
        CHECK(watch.wait(0, deadline, policy) == Outcome::kTimedOut);
        CHECK(now_ns() >= deadline);
    }
}

TEST(a_death_wakes_all_who_wait_for_the_dead) {
    Watch watch;
    Flag flag;
    RingCell cell;
    const RingGeometry geometry{.slots = 4, .slot_bytes = 8, .high = 4, .low = 2};
    Doorbell::Cell posts;
    Doorbell::Member members[2];
    Doorbell reaper(&posts, members, 2);
    Child child = sleeper();
    watch.add(child.pid(), [&] {
        flag.mark_lost();
        Ring(&cell, geometry).mark_producer_lost();
        reaper.mark_lost(1);
    });
    std::thread at_flag([&] {
        WaitPolicy policy = parking();
        CHECK(flag.wait_until(kForever, policy) == Outcome::kLost);
    });
    std::thread at_ring([&] {
        WaitPolicy policy = parking();
        CHECK(Ring(&cell, geometry).wait_ready(1, kForever, policy) == Outcome::kLost);
    });
    std::thread at_bell([&] {
        WaitPolicy policy = parking();
        Doorbell bell(&posts, members, 2);
        CHECK(bell.wait_until(2, kForever, policy) == Outcome::kLost);
        CHECK(bell.lost().size() == 1 && bell.lost()[0] == 1);
    });
    until([&] { return flag.parked() && cell.tail.armed() && reaper.wanted() == 2; });
    child.send(SIGKILL);
    at_flag.join();
    at_ring.join();
    at_bell.join();
}

TEST(a_child_notices_that_its_parent_is_gone) {
    enum { kNothing, kWatching, kNoticed };
    support::Shared<std::atomic<int>> stage;
    Child parent([&] {
        const pid_t self = getpid();
        if (fork() == 0) {
            alarm(check::watchdog_seconds);
            Watch watch;
            watch.add(self, [&] { *stage = kNoticed; });
            *stage = kWatching;
            wait_for(watch, 1);
            CHECK(!watch.losses()[0].signal && !watch.losses()[0].exit_code);  // not its child
            _exit(0);
        }
        for (;;) pause();
    });
    until([&] { return *stage == kWatching; });
    parent.send(SIGKILL);
    until([&] { return *stage == kNoticed; });
}

TEST(watching_an_invalid_pid_raises) {
    Watch watch;
    for (const pid_t pid : {0, -1}) {
        bool thrown = false;
        try {
            watch.add(pid, [] {});
        } catch (const std::system_error&) {
            thrown = true;
        }
        CHECK(thrown);
    }
    CHECK(watch.watched().empty() && watch.losses().empty());
}

TEST(destroying_a_watch_ends_its_thread) {
    const std::size_t fds = support::open_fds();
    Child child = sleeper();
    for (int i = 0; i < 50; ++i) {
        Watch watch;
        watch.add(child.pid(), [] { CHECK(false); });
    }
    CHECK(support::open_fds() == fds);
}

TEST(a_forked_child_can_destroy_an_inherited_watch) {
    Child watched = sleeper();
    auto watch = std::make_unique<Watch>();
    std::atomic<int> runs{0};
    watch->add(watched.pid(), [&] { ++runs; });
    CHECK(watch->mine());
    const std::size_t fds = support::open_fds();
    Child([&] {
        CHECK(!watch->mine());
        watch.reset();
        CHECK(support::open_fds() == fds - 3);
    }).finish();
    watched.send(SIGKILL);  // the parent's watch continues
    wait_for(*watch, 1);
    CHECK(runs == 1);
}

TEST(the_poll_thread_sleeps_although_a_child_inherited_the_pidfd) {
    for (const bool forgotten : {false, true}) {
        Watch watch;
        Child watched = sleeper();
        watch.add(watched.pid(), [] {});
        Child heir = sleeper();  // inherits the pidfd
        if (forgotten) watch.forget(watched.pid());
        watched.send(SIGKILL);
        if (!forgotten) wait_for(watch, 1);
        // The poll thread must be asleep at every look; a spinning one would not be.
        pid_t poller = 0;
        DIR* threads = opendir("/proc/self/task");
        while (const dirent* thread = readdir(threads)) {
            const pid_t tid = std::atoi(thread->d_name);
            if (tid != 0 && tid != getpid()) poller = tid;
        }
        closedir(threads);
        until([=] { return support::sleeps(poller); });
        const auto ran_ns = [=] {
            std::uint64_t ns = 0;
            std::ifstream("/proc/self/task/" + std::to_string(poller) + "/schedstat") >> ns;
            return ns;
        };
        const std::uint64_t before = ran_ns();
        WaitPolicy policy = parking();
        const std::uint64_t known = watch.losses().size();
        CHECK(watch.wait(known, now_ns() + 20 * kMillisecond, policy) == Outcome::kTimedOut);
        CHECK(ran_ns() == before);
    }
}

TEST(failing_to_start_the_poll_thread_changes_nothing) {
    if (support::kSanitized) return support::skipped("the sanitizer needs its own threads");
    Child([] {
        if (setuid(65534) != 0) return support::skipped("cannot change the user");
        const rlimit none{0, 0};
        CHECK(setrlimit(RLIMIT_NPROC, &none) == 0);
        const std::size_t fds = support::open_fds();
        bool thrown = false;
        try {
            Watch watch;
        } catch (const std::system_error&) {
            thrown = true;
        }
        if (!thrown) return support::skipped("no limit on threads here");
        sigset_t mask;
        pthread_sigmask(SIG_SETMASK, nullptr, &mask);
        CHECK(!sigismember(&mask, SIGINT));
        CHECK(support::open_fds() == fds);
    }).finish();
}

TEST(the_poll_thread_handles_no_signals) {
    static std::atomic<pid_t> taken_by{0};
    struct sigaction action{}, before{};
    action.sa_handler = [](int) { taken_by = gettid(); };
    CHECK(sigaction(SIGUSR1, &action, &before) == 0);
    Watch watch;
    sigset_t mask, saved;
    sigemptyset(&mask);
    sigaddset(&mask, SIGUSR1);
    CHECK(pthread_sigmask(SIG_BLOCK, &mask, &saved) == 0);
    kill(getpid(), SIGUSR1);  // no other thread could handle it
    WaitPolicy policy = parking();
    watch.wait(0, now_ns() + kMillisecond, policy);
    CHECK(taken_by == 0);
    CHECK(pthread_sigmask(SIG_SETMASK, &saved, nullptr) == 0);
    CHECK(taken_by == gettid());
    CHECK(sigaction(SIGUSR1, &before, nullptr) == 0);
}

int main(int argc, char** argv) { return check::main(argc, argv); }
