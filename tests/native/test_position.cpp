#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

#include "check.h"
#include "position.h"
#include "support.h"

using namespace pysampler;
using support::asleep_for;
using support::Child;
using support::Counting;
using support::Meanwhile;
using support::parking;
using support::Random;
using support::Record;
using support::Shared;
using support::until;

namespace {

constexpr std::uint64_t kWrap = 1ULL << 62;
constexpr std::uint64_t kWindow = 32;

// Records protected by two positions: how many were written, and how many of those may be
// overwritten.
struct Stream {
    explicit Stream(std::uint64_t start = 0) : written(start), read(start) {}
    Position written;
    Position read;
    std::array<Record, kWindow> records;
};

// Posts one by one, at most the window ahead of the reader.
void write(Stream& stream, std::uint64_t start, int count, WaitPolicy policy) {
    for (std::uint64_t p = start; p != start + static_cast<std::uint64_t>(count); ++p) {
        CHECK(stream.read.wait_until(p + 1 - kWindow, kForever, policy) == Outcome::kReady);
        stream.records[p % kWindow] = Record(1, p);
        stream.written.post(1);
    }
}

// Waits for a few records at a time.
template <class Policy>
void read(Stream& stream, std::uint64_t start, int count, Policy& policy) {
    Random random(start + 1);
    const std::uint64_t end = start + static_cast<std::uint64_t>(count);
    for (std::uint64_t p = start; p != end;) {
        const std::uint64_t some = std::min(1 + random.below(kWindow), end - p);
        CHECK(stream.written.wait_until(p + some, kForever, policy) == Outcome::kReady);
        for (std::uint64_t i = 0; i < some; ++i, ++p) {
            CHECK(stream.records[p % kWindow] == Record(1, p));
        }
        stream.read.post(some);
    }
}

}  // namespace

TEST(a_position_starts_at_its_argument_and_only_advances) {
    Position position(41);
    CHECK(position.load() == 41 && position.own() == 41);
    CHECK(!position.advance(1));
    position.post(2);
    CHECK(position.load() == 44);
    CHECK(position.reached(44) && position.reached(43) && !position.reached(45));
    CHECK(!position.lost() && !position.armed() && position.waiter() == 0);
}

TEST(positions_wrap_around) {
    Position position(kWrap - 2);
    CHECK(position.load() == kWrap - 2);
    CHECK(!position.reached(kWrap + 1) && !position.reached(1));
    position.post(4);
    CHECK(position.load() == 2);
    CHECK(position.reached(kWrap - 2) && position.reached(2) && !position.reached(3));
    CHECK(Position::distance(kWrap - 2, 2) == 4);
    CHECK(Position::distance(2, 2) == 0);
    CHECK(!position.lost() && !position.armed());  // the count does not overflow into these bits
    WaitPolicy policy = parking();
    CHECK(position.wait_until(kWrap + 2, kForever, policy) == Outcome::kReady);
    CHECK(position.wait_until(3, 1, policy) == Outcome::kTimedOut);
}

TEST(waiting_for_a_passed_target_returns_at_once) {
    Position position(10);
    WaitPolicy policy = parking();
    for (const std::uint64_t target : {std::uint64_t{10}, std::uint64_t{3}, kWrap - 5}) {
        CHECK(position.wait_until(target, 1, policy) == Outcome::kReady);
    }
    CHECK(policy.stats().waits == 0);
}

TEST(a_time_out_is_never_early_and_leaves_the_word_disarmed) {
    Position position;
    for (WaitPolicy policy : support::policies()) {
        for (int i = 0; i < 20; ++i) {
            const std::int64_t deadline = now_ns() + i * 20 * kMicrosecond;
            CHECK(position.wait_until(1, deadline, policy) == Outcome::kTimedOut);
            CHECK(now_ns() >= deadline);
            CHECK(!position.armed() && position.waiter() == 0 && position.wanted() == 0);
        }
    }
}

TEST(only_the_post_that_reaches_the_target_wakes) {
    Position position(kWrap - 3);
    WaitPolicy policy = parking();
    std::thread waiter([&] {
        CHECK(position.wait_until(kWrap + 5, kForever, policy) == Outcome::kReady);
        CHECK(position.reached(kWrap + 5));
    });
    const std::uint64_t before = futex_wake_count();
    for (std::uint64_t wanted = 8; wanted > 0; --wanted) {
        // The sleeper may wake spuriously between two looks; it arms again.
        until([&] { return asleep_for(position, wanted); });
        CHECK(futex_wake_count() == before);
        position.post(1);
    }
    waiter.join();
    CHECK(futex_wake_count() == before + 1);
    CHECK(!position.armed());
}

TEST(a_post_beyond_the_target_wakes_too) {
    Position position;
    std::thread waiter([&] {
        WaitPolicy policy = parking();
        CHECK(position.wait_until(3, kForever, policy) == Outcome::kReady);
    });
    until([&] { return position.armed(); });
    position.post(100);
    waiter.join();
}

TEST(without_a_sleeper_no_call_is_a_system_call) {
    Shared<Position> position;
    WaitPolicy policy = parking();
    support::check_makes_no_system_call([&] {
        for (std::uint64_t i = 1; i <= 100; ++i) {
            CHECK(position->wait_until(i, 1, policy) == Outcome::kTimedOut);
            position->post(1);
            CHECK(position->wait_until(i, kForever, policy) == Outcome::kReady);
        }
        CHECK(!position->advance(1));
    });
}

TEST(posts_survive_the_poster_and_the_loss_is_reported_after_them) {
    Position position;
    WaitPolicy policy = parking();
    position.post(2);
    position.mark_lost();
    CHECK(position.lost() && position.load() == 2);
    CHECK(position.wait_until(2, kForever, policy) == Outcome::kReady);
    CHECK(position.wait_until(3, kForever, policy) == Outcome::kLost);
    position.clear_lost();
    CHECK(position.wait_until(3, now_ns() + kMillisecond, policy) == Outcome::kTimedOut);
    position.post(1);
    CHECK(position.wait_until(3, kForever, policy) == Outcome::kReady);
    CHECK(position.load() == 3);
}

TEST(a_post_before_a_loss_during_a_wait_is_ready) {
    Position position;
    Meanwhile policy{[&] {
                         position.post(1);
                         position.mark_lost();
                     },
                     Outcome::kReady};
    CHECK(position.wait_until(1, kForever, policy) == Outcome::kReady);
}

TEST(a_loss_wakes_the_waiter) {
    Position position;
    std::thread waiter([&] {
        WaitPolicy policy = parking();
        CHECK(position.wait_until(5, kForever, policy) == Outcome::kLost);
    });
    until([&] { return position.armed(); });
    position.mark_lost();
    waiter.join();
}

TEST(a_second_waiter_gets_busy_and_does_not_disturb_the_first) {
    Position position;
    std::thread waiter([&] {
        WaitPolicy policy = parking();
        CHECK(position.wait_until(2, kForever, policy) == Outcome::kReady);
    });
    until([&] { return position.wanted() == 2; });
    const std::uint64_t first = position.waiter();
    WaitPolicy policy = parking();
    CHECK(position.wait_until(7, kForever, policy) == Outcome::kBusy);
    CHECK(position.wait_until(0, kForever, policy) == Outcome::kReady);
    CHECK(position.wanted() == 2 && position.waiter() == first);
    position.post(2);
    waiter.join();
}

TEST(a_waiter_replaces_a_killed_one_with_its_own_target) {
    Shared<Position> position;
    Child first([&] {
        WaitPolicy policy = parking();
        position->wait_until(1000, kForever, policy);
    });
    until([&] { return position->armed(); });
    WaitPolicy policy = parking();
    CHECK(position->wait_until(1, 1, policy) == Outcome::kBusy);
    first.send(SIGKILL);
    until([&] { return position->wait_until(1, 1, policy) != Outcome::kBusy; });
    Child second([&] {
        WaitPolicy own = parking();
        CHECK(position->wait_until(1, kForever, own) == Outcome::kReady);
    });
    until([&] { return position->wanted() == 1; });
    position->post(1);
    second.finish();
}

TEST(an_open_position_wakes_all_waiters) {
    OpenPosition position;
    constexpr std::uint64_t kWaiters = 3;
    std::array<std::atomic<std::uint64_t>, kWaiters> reached{};
    std::vector<std::thread> waiters;
    const auto count = static_cast<std::uint64_t>(support::rounds(5'000));
    for (auto& mine : reached) {
        waiters.emplace_back([&] {
            WaitPolicy policy = parking();
            for (std::uint64_t i = 1; i <= count; ++i) {
                CHECK(position.wait_until(i, kForever, policy) == Outcome::kReady);
                mine = i;
            }
        });
    }
    for (std::uint64_t i = 1; i <= count; ++i) {
        if (position.advance(1)) position.wake();
        for (const auto& theirs : reached) {
            until([&] { return theirs >= i; });
        }
    }
    for (std::thread& waiter : waiters) waiter.join();
}

TEST(an_open_position_wakes_only_on_ring) {
    OpenPosition position;
    WaitPolicy policy = parking();
    std::thread waiter([&] { CHECK(position.wait_until(3, kForever, policy) == Outcome::kReady); });
    until([&] { return position.armed(); });
    const std::uint64_t before = futex_wake_count();
    CHECK(position.advance(1) && position.advance(1) && position.advance(1));
    CHECK(futex_wake_count() == before);
    position.wake();
    waiter.join();
    CHECK(futex_wake_count() == before + 1);
    position.wake();
    CHECK(futex_wake_count() == before + 1);
}

TEST(a_loss_wakes_all_waiters) {
    OpenPosition position;
    std::vector<std::thread> waiters;
    for (std::uint64_t i = 0; i < 3; ++i) {
        waiters.emplace_back([&, i] {
            WaitPolicy policy = parking();
            CHECK(position.wait_until(i + 1, kForever, policy) == Outcome::kLost);
        });
    }
    until([&] { return position.armed(); });
    position.mark_lost();
    for (std::thread& waiter : waiters) waiter.join();
}

TEST(threads_stream_records_across_the_wrap) {
    for (const WaitPolicy& theirs : support::policies()) {
        const std::uint64_t start = kWrap - 64;
        Stream stream(start);
        const int count = support::rounds(150'000);
        std::thread writer([&] { write(stream, start, count, theirs); });
        WaitPolicy policy = theirs;
        read(stream, start, count, policy);
        writer.join();
    }
}

TEST(processes_stream_records_with_at_most_one_wake_per_arming) {
    const std::uint64_t start = kWrap - 64;
    Shared<Stream> stream(start);
    Shared<std::atomic<std::uint64_t>> wakes;
    const int count = support::rounds(100'000);
    Child writer([&] {
        const std::uint64_t before = futex_wake_count();
        write(*stream, start, count, WaitPolicy());
        wakes->store(futex_wake_count() - before);
    });
    Counting policy;
    read(*stream, start, count, policy);
    writer.finish();
    CHECK(wakes->load() <= policy.parks());
}

int main(int argc, char** argv) { return check::main(argc, argv); }
