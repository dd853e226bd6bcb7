#include <atomic>
#include <cstdint>
#include <thread>

#include "check.h"
#include "flag.h"
#include "support.h"

using namespace pysampler;
using support::Child;
using support::Meanwhile;
using support::parking;
using support::Random;
using support::Record;
using support::Shared;
using support::until;

namespace {

// A question and its answer, in one record that only the two flags protect.
struct Exchange {
    Flag there;
    Flag back;
    Record record;
};

void ask(Exchange& exchange, int rounds, WaitPolicy policy) {
    for (std::uint64_t i = 0; i < static_cast<std::uint64_t>(rounds); ++i) {
        exchange.record = Record(1, i);
        CHECK(exchange.there.set());
        CHECK(exchange.back.wait_until(kForever, policy) == Outcome::kReady);
        CHECK(exchange.record == Record(2, i));
        CHECK(exchange.back.clear());
    }
}

void reply(Exchange& exchange, int rounds, WaitPolicy policy) {
    for (std::uint64_t i = 0; i < static_cast<std::uint64_t>(rounds); ++i) {
        CHECK(exchange.there.wait_until(kForever, policy) == Outcome::kReady);
        CHECK(exchange.record == Record(1, i));
        exchange.record = Record(2, i);
        CHECK(exchange.there.clear());
        CHECK(exchange.back.set());
    }
}

}  // namespace

TEST(each_post_needs_its_clear) {
    Flag flag;
    CHECK(!flag.is_set() && !flag.clear());
    CHECK(flag.set() && flag.is_set());
    CHECK(!flag.set());
    CHECK(flag.clear() && !flag.is_set());
    CHECK(!flag.clear());
}

TEST(the_count_of_posts_wraps_around) {
    constexpr std::uint64_t last = (1ULL << 62) - 1;
    Flag flag(last);
    WaitPolicy policy = parking();
    CHECK(flag.posts() == last && !flag.is_set() && !flag.clear());
    CHECK(flag.set() && flag.posts() == 0 && !flag.set());
    CHECK(flag.wait_until(1, policy) == Outcome::kReady);
    CHECK(flag.clear() && !flag.is_set());
    CHECK(flag.wait_until(1, policy) == Outcome::kTimedOut);
    CHECK(flag.set() && flag.posts() == 1);
}

TEST(clearing_keeps_a_loss) {
    Flag flag;
    flag.set();
    flag.mark_lost();
    CHECK(flag.clear());
    CHECK(!flag.is_set() && flag.lost());
}

TEST(waiting_for_a_set_flag_returns_at_once) {
    Flag flag;
    flag.set();
    WaitPolicy policy = parking();
    for (const std::int64_t deadline : {std::int64_t{-1}, std::int64_t{1}, kForever}) {
        CHECK(flag.wait_until(deadline, policy) == Outcome::kReady);
    }
    CHECK(policy.stats().waits == 0);
}

TEST(a_time_out_is_never_early_and_leaves_no_waiter) {
    Flag flag;
    for (WaitPolicy policy : support::policies()) {
        for (int i = 0; i < 20; ++i) {
            const std::int64_t deadline = now_ns() + i * 20 * kMicrosecond;
            CHECK(flag.wait_until(deadline, policy) == Outcome::kTimedOut);
            CHECK(now_ns() >= deadline);
            CHECK(!flag.parked() && flag.waiter() == 0);
        }
    }
    WaitPolicy policy = parking();
    CHECK(flag.wait_until(1, policy) == Outcome::kTimedOut);
    CHECK(policy.stats().waits == 0);
}

TEST(a_post_wakes_once_if_and_only_if_the_waiter_sleeps) {
    Flag flag;
    WaitPolicy policy = parking();
    const std::uint64_t before = futex_wake_count();
    CHECK(flag.set() && flag.clear());
    CHECK(futex_wake_count() == before);
    std::thread waiter([&] {
        CHECK(flag.wait_until(kForever, policy) == Outcome::kReady);
        CHECK(policy.stats().parks >= 1);
    });
    until([&] { return flag.parked(); });
    CHECK(pid_of(flag.waiter()) == getpid());
    CHECK(flag.set());
    CHECK(futex_wake_count() == before + 1);
    waiter.join();
}

TEST(without_a_sleeper_no_call_is_a_system_call) {
    Shared<Flag> flag;
    WaitPolicy policy = parking();
    support::check_makes_no_system_call([&] {
        for (int i = 0; i < 100; ++i) {
            CHECK(flag->wait_until(1, policy) == Outcome::kTimedOut);
            CHECK(flag->set());
            CHECK(flag->wait_until(kForever, policy) == Outcome::kReady);
            CHECK(flag->clear());
        }
    });
}

TEST(a_post_survives_its_author_and_the_loss_is_reported_after_it) {
    Flag flag;
    WaitPolicy policy = parking();
    flag.set();
    flag.mark_lost();
    CHECK(flag.lost());
    CHECK(flag.wait_until(kForever, policy) == Outcome::kReady);
    flag.clear();
    CHECK(flag.wait_until(kForever, policy) == Outcome::kLost);
    CHECK(flag.wait_until(1, policy) == Outcome::kLost);
    flag.clear_lost();
    CHECK(flag.wait_until(now_ns() + kMillisecond, policy) == Outcome::kTimedOut);
    CHECK(flag.set());
    CHECK(flag.wait_until(kForever, policy) == Outcome::kReady);
}

TEST(a_post_before_a_loss_during_a_wait_is_ready) {
    Flag flag;
    Meanwhile policy{[&] {
                         flag.set();
                         flag.mark_lost();
                     },
                     Outcome::kReady};
    CHECK(flag.wait_until(kForever, policy) == Outcome::kReady);
}

TEST(a_loss_wakes_the_waiter) {
    Flag flag;
    std::thread waiter([&] {
        WaitPolicy policy = parking();
        CHECK(flag.wait_until(kForever, policy) == Outcome::kLost);
    });
    until([&] { return flag.parked(); });
    flag.mark_lost();
    waiter.join();
    CHECK(!flag.parked());
}

TEST(a_second_waiter_gets_busy_and_does_not_disturb_the_first) {
    Flag flag;
    std::thread waiter([&] {
        WaitPolicy policy = parking();
        CHECK(flag.wait_until(kForever, policy) == Outcome::kReady);
    });
    until([&] { return flag.parked(); });
    const std::uint64_t first = flag.waiter();
    WaitPolicy policy = parking();
    CHECK(flag.wait_until(kForever, policy) == Outcome::kBusy);
    CHECK(flag.wait_until(1, policy) == Outcome::kBusy);
    CHECK(flag.parked() && flag.waiter() == first);
    flag.set();
    waiter.join();
    CHECK(flag.waiter() == 0);
}

TEST(a_waiter_replaces_a_killed_one_before_it_is_reaped) {
    Shared<Flag> flag;
    Child first([&] {
        WaitPolicy policy = parking();
        flag->wait_until(kForever, policy);
    });
    until([&] { return flag->parked(); });
    WaitPolicy policy = parking();
    CHECK(flag->wait_until(1, policy) == Outcome::kBusy);
    CHECK(pid_of(flag->waiter()) == first.pid());
    first.send(SIGKILL);
    until([&] { return flag->wait_until(now_ns() + kMillisecond, policy) != Outcome::kBusy; });
    CHECK(flag->wait_until(now_ns() + kMillisecond, policy) == Outcome::kTimedOut);

    Child second([&] {
        WaitPolicy own = parking();
        CHECK(flag->wait_until(kForever, own) == Outcome::kReady);
    });
    until([&] { return flag->parked(); });
    flag->set();
    second.finish();
}

TEST(threads_exchange_records) {
    for (const WaitPolicy& policy : support::policies()) {
        Exchange exchange;
        const int count = support::rounds(20'000);
        std::thread there([&] { reply(exchange, count, policy); });
        ask(exchange, count, policy);
        there.join();
    }
}

TEST(processes_exchange_records) {
    for (const WaitPolicy& policy : support::policies()) {
        Shared<Exchange> exchange;
        const int count = support::rounds(20'000);
        Child there([&] { reply(*exchange, count, policy); });
        ask(*exchange, count, policy);
        there.finish();
    }
}

// With one flag alone, the waiter's reads before clear() come before the poster's next writes.
TEST(clear_orders_reads_before_the_next_write) {
    Flag flag;
    Record record;
    const auto count = static_cast<std::uint64_t>(support::rounds(50'000));
    std::thread waiter([&] {
        WaitPolicy policy;
        for (std::uint64_t i = 0; i < count; ++i) {
            CHECK(flag.wait_until(kForever, policy) == Outcome::kReady);
            CHECK(record == Record(1, i));
            CHECK(flag.clear());
        }
    });
    for (std::uint64_t i = 0; i < count; ++i) {
        until([&] { return !flag.is_set(); });
        record = Record(1, i);
        CHECK(flag.set());
    }
    waiter.join();
}

TEST(a_post_and_a_time_out_never_both_win) {
    Flag flag;
    Record record;
    const auto count = static_cast<std::uint64_t>(support::rounds(10'000));
    std::thread waiter([&] {
        Random random(1);
        WaitPolicy policy = parking();
        policy.set_precise(false);
        for (std::uint64_t i = 0; i < count; ++i) {
            Outcome outcome;
            do {
                outcome = flag.wait_until(now_ns() + random.ns_below(60 * kMicrosecond), policy);
                CHECK(outcome == Outcome::kReady || outcome == Outcome::kTimedOut);
            } while (outcome != Outcome::kReady);
            CHECK(flag.posts() == i + 1);
            CHECK(record == Record(1, i));
            CHECK(flag.clear());
        }
    });
    Random random(2);
    for (std::uint64_t i = 0; i < count; ++i) {
        until([&] { return !flag.is_set(); });
        support::spin_for(random.ns_below(60 * kMicrosecond));
        record = Record(1, i);
        CHECK(flag.set());
    }
    waiter.join();
    CHECK(!flag.parked() && flag.waiter() == 0);
}

int main(int argc, char** argv) { return check::main(argc, argv); }
