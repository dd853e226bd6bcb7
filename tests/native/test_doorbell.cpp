#include <array>
#include <atomic>
#include <cstdint>
#include <span>
#include <thread>
#include <vector>

#include "check.h"
#include "doorbell.h"
#include "flag.h"
#include "support.h"

using namespace pysampler;
using support::asleep_for;
using support::Child;
using support::Counting;
using support::parking;
using support::Random;
using support::Record;
using support::Shared;
using support::until;

namespace {

constexpr std::uint32_t kMembers = 4;

struct Bell {
    Doorbell::Cell cell;
    std::array<Doorbell::Member, kMembers> members;
    std::array<Flag, kMembers> go;  // set by the waiter: member i may write its record again
    std::array<Record, kMembers> records;
    std::atomic<std::uint64_t> wakes{0};

    Doorbell handle() { return Doorbell(&cell, members.data(), kMembers); }
};

std::vector<std::uint32_t> list(std::span<const std::uint32_t> found) {
    return {found.begin(), found.end()};
}

// Member i writes a record each time its `go` is set.
void work(Bell& shared, std::uint32_t i, std::uint64_t count, WaitPolicy policy) {
    Doorbell bell = shared.handle();
    for (std::uint64_t n = 0; n < count; ++n) {
        CHECK(shared.go[i].wait_until(kForever, policy) == Outcome::kReady);
        shared.go[i].clear();
        shared.records[i] = Record(i, n);
        const std::uint64_t before = futex_wake_count();
        CHECK(bell.post(i, now_ns()));
        shared.wakes += futex_wake_count() - before;
    }
}

// Waits for a random number of members at a time, until each has brought `count` records.
template <class Policy>
void gather(Bell& shared, std::uint64_t count, Policy& policy, std::uint64_t seed) {
    Doorbell bell = shared.handle();
    Random random(seed);
    std::array<std::uint64_t, kMembers> next{};
    std::uint32_t at_work = kMembers;
    for (Flag& go : shared.go) go.set();
    while (at_work > 0) {
        const auto want = static_cast<std::uint32_t>(1 + random.below(at_work));
        CHECK(bell.wait_until(want, kForever, policy) == Outcome::kReady);
        CHECK(bell.ready().size() >= want);
        for (const std::uint32_t i : list(bell.ready())) {
            CHECK(shared.records[i] == Record(i, next[i]++));
            CHECK(bell.take(i));
            if (next[i] == count) {
                --at_work;
            } else {
                CHECK(shared.go[i].set());
            }
        }
    }
    CHECK(bell.posts() == kMembers * count);
}

}  // namespace

TEST(a_member_cannot_post_again_before_its_post_is_taken) {
    Bell shared;
    Doorbell bell = shared.handle();
    CHECK(bell.members() == kMembers);
    CHECK(!bell.is_ready(2) && !bell.take(2));
    CHECK(bell.post(2, 7));
    CHECK(bell.is_ready(2) && bell.posted_at(2) == 7 && bell.posts() == 1);
    CHECK(!bell.post(2, 8) && bell.posts() == 1);
    CHECK(bell.take(2) && !bell.is_ready(2));
    CHECK(!bell.take(2));
    CHECK(bell.post(2, 9) && bell.posts() == 2);
}

TEST(ready_members_come_longest_ready_first) {
    Bell shared;
    Doorbell bell = shared.handle();
    bell.post(0, 30);
    bell.post(1, 10);
    bell.post(3, 20);
    WaitPolicy policy = parking();
    CHECK(bell.wait_until(3, kForever, policy) == Outcome::kReady);
    CHECK(list(bell.ready()) == std::vector<std::uint32_t>({1, 3, 0}));
    CHECK(bell.lost().empty());
    CHECK(bell.wait_until(1, kForever, policy) == Outcome::kReady);
    CHECK(bell.ready().size() == 3);  // all ready members, not only as many as wanted
    bell.take(3);
    CHECK(bell.wait_until(0, 1, policy) == Outcome::kReady);
    CHECK(list(bell.ready()) == std::vector<std::uint32_t>({1, 0}));
    CHECK(policy.stats().waits == 0);
}

TEST(a_time_out_is_never_early_and_returns_the_ready_members) {
    Bell shared;
    Doorbell bell = shared.handle();
    bell.post(1, 1);
    for (WaitPolicy policy : support::policies()) {
        for (int i = 0; i < 20; ++i) {
            const std::int64_t deadline = now_ns() + i * 20 * kMicrosecond;
            CHECK(bell.wait_until(2, deadline, policy) == Outcome::kTimedOut);
            CHECK(now_ns() >= deadline);
            CHECK(list(bell.ready()) == std::vector<std::uint32_t>({1}));
            CHECK(bell.wanted() == 0 && bell.waiter() == 0);
        }
    }
}

TEST(only_the_last_wanted_post_wakes) {
    Bell shared;
    Doorbell poster = shared.handle();
    CHECK(poster.post(3, 1));
    WaitPolicy policy = parking();
    std::thread waiter([&] {
        Doorbell bell = shared.handle();
        CHECK(bell.wait_until(4, kForever, policy) == Outcome::kReady);
        CHECK(bell.ready().size() == 4);
    });
    const std::uint64_t before = futex_wake_count();
    for (std::uint32_t i = 0; i < 3; ++i) {
        until([&] { return asleep_for(poster, 3 - i); });
        CHECK(futex_wake_count() == before);
        CHECK(poster.post(i, 1));
    }
    waiter.join();
    CHECK(futex_wake_count() == before + 1);
    CHECK(poster.wanted() == 0);
}

TEST(without_a_sleeper_no_call_is_a_system_call) {
    Shared<Bell> shared;
    Doorbell bell = shared->handle();
    WaitPolicy policy = parking();
    support::check_makes_no_system_call([&] {
        for (int round = 0; round < 100; ++round) {
            CHECK(bell.wait_until(1, 1, policy) == Outcome::kTimedOut);
            CHECK(bell.post(0, round) && bell.post(1, round));
            CHECK(bell.wait_until(2, kForever, policy) == Outcome::kReady);
            CHECK(bell.take(0) && bell.take(1));
        }
    });
}

TEST(a_loss_is_reported_once_and_a_post_survives_its_author) {
    Bell shared;
    Doorbell bell = shared.handle();
    WaitPolicy policy = parking();
    bell.post(0, 1);
    bell.post(2, 1);
    bell.mark_lost(2);
    bell.mark_lost(3);
    bell.mark_lost(3);
    CHECK(bell.is_lost(2) && bell.is_lost(3) && !bell.is_lost(0));
    CHECK(bell.wait_until(1, kForever, policy) == Outcome::kLost);
    CHECK(list(bell.lost()) == std::vector<std::uint32_t>({2, 3}));
    CHECK(list(bell.ready()) == std::vector<std::uint32_t>({0, 2}));
    CHECK(bell.wait_until(2, kForever, policy) == Outcome::kReady);
    CHECK(bell.lost().empty());
    CHECK(bell.take(2));
    CHECK(bell.wait_until(2, now_ns() + kMillisecond, policy) == Outcome::kTimedOut);
}

TEST(a_lost_member_cannot_post_until_it_is_revived) {
    Bell shared;
    Doorbell bell = shared.handle();
    WaitPolicy policy = parking();
    bell.mark_lost(1);
    CHECK(!bell.post(1, 1) && bell.posts() == 0);
    CHECK(bell.wait_until(1, kForever, policy) == Outcome::kLost);
    CHECK(!bell.post(1, 1));
    bell.revive(1);
    CHECK(bell.post(1, 2));
    CHECK(bell.wait_until(1, kForever, policy) == Outcome::kReady);
    bell.take(1);
    bell.mark_lost(1);  // the loss of the new process is reported as well
    CHECK(bell.wait_until(1, kForever, policy) == Outcome::kLost);
    CHECK(list(bell.lost()) == std::vector<std::uint32_t>({1}));
}

TEST(a_loss_wakes_a_waiter_that_waits_for_others_too) {
    Bell shared;
    std::thread waiter([&] {
        Doorbell bell = shared.handle();
        WaitPolicy policy = parking();
        CHECK(bell.wait_until(4, kForever, policy) == Outcome::kLost);
        CHECK(list(bell.lost()) == std::vector<std::uint32_t>({2}));
        CHECK(bell.ready().size() == 1);
    });
    Doorbell reaper = shared.handle();
    until([&] { return reaper.wanted() == 4; });
    reaper.post(0, 1);
    reaper.mark_lost(2);
    waiter.join();
}

TEST(a_second_waiter_gets_busy) {
    Bell shared;
    std::thread waiter([&] {
        Doorbell bell = shared.handle();
        WaitPolicy policy = parking();
        CHECK(bell.wait_until(2, kForever, policy) == Outcome::kReady);
    });
    Doorbell bell = shared.handle();
    until([&] { return bell.wanted() == 2; });
    WaitPolicy policy = parking();
    CHECK(bell.wait_until(1, kForever, policy) == Outcome::kBusy);
    CHECK(bell.wanted() == 2);
    bell.post(0, 1);
    bell.post(1, 1);
    waiter.join();
}

TEST(a_second_waiter_takes_no_loss_from_the_first) {
    Bell shared;
    Doorbell bell = shared.handle(), other = shared.handle();
    support::Meanwhile policy{[&] {
                                  bell.mark_lost(2);
                                  WaitPolicy own = parking();
                                  CHECK(other.wait_until(1, kForever, own) == Outcome::kBusy);
                              },
                              Outcome::kTimedOut};
    CHECK(bell.wait_until(1, kForever, policy) == Outcome::kLost);
    CHECK(list(bell.lost()) == std::vector<std::uint32_t>{2});
}

TEST(an_interrupted_wait_leaves_losses_and_posts_to_the_next) {
    Bell shared;
    Doorbell bell = shared.handle();
    support::Meanwhile policy{[&] {
                                  bell.post(0, 1);
                                  bell.post(1, 1);
                                  bell.mark_lost(3);
                              },
                              Outcome::kInterrupted};
    CHECK(bell.wait_until(2, kForever, policy) == Outcome::kInterrupted);
    WaitPolicy own = parking();
    CHECK(bell.wait_until(2, kForever, own) == Outcome::kLost);  // not reported before
    CHECK(list(bell.lost()) == std::vector<std::uint32_t>{3});
    CHECK(bell.wait_until(2, kForever, own) == Outcome::kReady);
    CHECK(bell.ready().size() == 2);
}

TEST(an_abandoned_wait_frees_its_place) {
    Bell shared;
    Doorbell bell = shared.handle();
    support::Meanwhile policy{[&] {  // a signal handler of the waiting thread
                                  bell.interrupt_wait();
                                  bell.post(2, 1);
                                  WaitPolicy own = parking();
                                  CHECK(bell.wait_until(1, kForever, own) == Outcome::kReady);
                              },
                              Outcome::kInterrupted};
    CHECK(bell.wait_until(4, kForever, policy) == Outcome::kInterrupted);
    WaitPolicy own = parking();
    CHECK(bell.wait_until(1, kForever, own) == Outcome::kReady);
}

TEST(a_waiter_replaces_a_killed_one) {
    Shared<Bell> shared;
    Doorbell bell = shared->handle();
    Child first([&] {
        Doorbell own = shared->handle();
        WaitPolicy policy = parking();
        static_cast<void>(own.wait_until(4, kForever, policy));
    });
    until([&] { return bell.wanted() == 4; });
    first.send(SIGKILL);
    WaitPolicy policy = parking();
    until([&] { return bell.wait_until(1, 1, policy) != Outcome::kBusy; });
    Child member([&] {
        Doorbell own = shared->handle();
        until([&] { return own.wanted() == 1; });
        CHECK(own.post(3, 1));
    });
    CHECK(bell.wait_until(1, kForever, policy) == Outcome::kReady);
    CHECK(list(bell.ready()) == std::vector<std::uint32_t>({3}));
    member.finish();
}

TEST(threads_post_and_one_waiter_gathers_records) {
    for (const WaitPolicy& theirs : support::policies()) {
        Bell shared;
        const auto count = static_cast<std::uint64_t>(support::rounds(5'000));
        std::vector<std::thread> members;
        for (std::uint32_t i = 0; i < kMembers; ++i) {
            members.emplace_back([&, i] { work(shared, i, count, theirs); });
        }
        WaitPolicy policy = theirs;
        gather(shared, count, policy, 1);
        for (std::thread& member : members) member.join();
    }
}

TEST(processes_post_with_at_most_one_wake_per_arming) {
    for (const WaitPolicy& theirs : support::policies()) {
        Shared<Bell> shared;
        const auto count = static_cast<std::uint64_t>(support::rounds(5'000));
        std::array<Child, kMembers> members;
        for (std::uint32_t i = 0; i < kMembers; ++i) {
            members[i] = Child([&] { work(*shared, i, count, theirs); });
        }
        Counting policy;
        gather(*shared, count, policy, 2);
        for (Child& member : members) member.finish();
        CHECK(shared->wakes <= policy.parks());
    }
}

// The members post in any order while the waiter sleeps for all of them: one wake per arming. The
// waiter arms once per batch, except when the kernel (or an emulator) ends a sleep early.
TEST(processes_that_fill_a_batch_wake_once) {
    Shared<Bell> shared;
    const auto batches = static_cast<std::uint64_t>(support::rounds(5'000));
    std::array<Child, kMembers> members;
    for (std::uint32_t i = 0; i < kMembers; ++i) {
        members[i] = Child([&] {
            Doorbell bell = shared->handle();
            const std::uint64_t before = futex_wake_count();
            for (std::uint64_t batch = 0; batch < batches; ++batch) {
                until([&] { return bell.posts() / kMembers == batch && bell.wanted() > 0; });
                CHECK(bell.post(i, 1));
            }
            shared->wakes += futex_wake_count() - before;
        });
    }
    Doorbell bell = shared->handle();
    Counting policy;
    for (std::uint64_t batch = 0; batch < batches; ++batch) {
        CHECK(bell.wait_until(kMembers, kForever, policy) == Outcome::kReady);
        for (std::uint32_t i = 0; i < kMembers; ++i) CHECK(bell.take(i));
    }
    for (Child& member : members) member.finish();
    CHECK(shared->wakes <= policy.parks());
}

int main(int argc, char** argv) { return check::main(argc, argv); }
