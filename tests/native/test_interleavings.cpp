// One side makes its whole move before each single step of the other's. The simulated platform
// covers every schedule and stale reads; these tests use the real futex.
#include <array>
#include <atomic>
#include <cstdint>
#include <optional>
#include <thread>
#include <vector>

#include "board.h"
#include "check.h"
#include "doorbell.h"
#include "flag.h"
#include "position.h"
#include "ring.h"
#include "shared_ring.h"
#include "stepped.h"
#include "support.h"

using namespace pysampler;
using support::at_every_step;
using support::at_every_step_of_a_wait;
using support::parking;
using support::Record;
using support::stepped;
using support::Stepped;
using support::until;

namespace {

using SteppedFlag = BasicFlag<Stepped>;
using SteppedPosition = BasicPosition<Stepped, Waiters::kOne>;
using SteppedOpenPosition = BasicPosition<Stepped, Waiters::kMany>;
using SteppedDoorbell = BasicDoorbell<Stepped>;
using SteppedSharedRing = BasicSharedRing<Stepped>;
using SteppedBoard = BasicBoard<Stepped>;

struct Bell {
    Doorbell handle() { return Doorbell(&cell, members.data(), 2); }
    SteppedDoorbell stepped_handle() {
        return SteppedDoorbell(stepped<SteppedDoorbell::Cell>(&cell),
                               stepped<SteppedDoorbell::Member>(members.data()), 2);
    }
    Doorbell::Cell cell;
    std::array<Doorbell::Member, 2> members;
};

struct Pool {
    static constexpr std::uint64_t kSlots = 4;
    static constexpr RingGeometry kGeometry{
        .slots = kSlots, .slot_bytes = sizeof(Record), .high = kSlots, .low = 2};
    SharedRing handle() { return SharedRing({&cell, owners.data(), words.data(), 2}, kGeometry); }
    SteppedSharedRing stepped_handle() {
        using Word = Stepped::Atomic<std::uint64_t>;
        return SteppedSharedRing({stepped<SteppedSharedRing::Cell>(&cell),
                                  stepped<Word>(owners.data()), stepped<Word>(words.data()), 2},
                                 kGeometry);
    }

    SharedRingCell cell;
    std::array<std::atomic<std::uint64_t>, 2> owners{};
    std::array<std::atomic<std::uint64_t>, kSlots> words{};
    std::array<Record, kSlots> slots;
};

template <class AnyRing>
bool produce(AnyRing& ring, Pool& pool, std::uint64_t author, std::uint64_t number) {
    const std::optional<std::uint64_t> position = ring.claim();
    if (!position) return false;
    pool.slots[*position % Pool::kSlots] = Record(author, number);
    const bool published = ring.publish(*position);
    ring.post(1);
    return published;
}

std::vector<Record> drain(SharedRing& ring, Pool& pool) {
    std::vector<Record> records;
    for (Run run = ring.peek(1); run.count > 0; run = ring.peek(1)) {
        records.push_back(pool.slots[run.first]);
        ring.release(1);
    }
    return records;
}

// Whether the move had at least n steps, so that the event happened.
bool happened(int n) { return Stepped::taken >= n; }

// A waiter in a thread, which goes to sleep in the middle of the other side's move.
class Latecomer {
 public:
    template <class Wait>
    void come(Wait&& wait) {
        std::atomic<pid_t> tid{0};
        thread_ = std::thread([this, &tid, wait] {
            tid = gettid();
            wait();
            over_ = true;
        });
        until([&] { return tid != 0; });
        until([&] { return over_ || asleep(tid); });
    }
    ~Latecomer() {
        if (thread_.joinable()) thread_.join();
    }

 private:
    static bool asleep(pid_t tid) { return support::sleeps(tid); }

    std::atomic<bool> over_{false};
    std::thread thread_;
};

}  // namespace

TEST(a_flag_posted_at_any_step_of_a_wait_is_seen) {
    at_every_step_of_a_wait([](int n, std::int64_t deadline) {
        Flag flag;
        WaitPolicy policy = parking();
        Stepped::begin(n, [&] { CHECK(flag.set()); });
        const Outcome outcome = stepped<SteppedFlag>(&flag)->wait_until(deadline, policy);
        CHECK(outcome == (n > 0 ? Outcome::kReady : Outcome::kTimedOut));
        CHECK(!flag.parked() && flag.waiter() == 0);
    });
}

TEST(a_flag_lost_at_any_step_of_a_wait_is_lost) {
    at_every_step_of_a_wait([](int n, std::int64_t deadline) {
        Flag flag;
        WaitPolicy policy = parking();
        Stepped::begin(n, [&] { flag.mark_lost(); });
        const Outcome outcome = stepped<SteppedFlag>(&flag)->wait_until(deadline, policy);
        CHECK(outcome == (n > 0 ? Outcome::kLost : Outcome::kTimedOut));
    });
}

TEST(a_flag_lost_at_any_step_of_a_post_is_set) {
    at_every_step([](int n) {
        Flag flag;
        Stepped::begin(n, [&] { flag.mark_lost(); });
        CHECK(stepped<SteppedFlag>(&flag)->set());
        CHECK(flag.is_set() && flag.lost() == happened(n));
        return happened(n);
    });
}

TEST(a_waiter_that_comes_to_a_flag_at_any_step_of_a_post_sees_it) {
    at_every_step([](int n) {
        Flag flag;
        Latecomer waiter;
        Stepped::begin(n, [&] {
            waiter.come([&] {
                WaitPolicy policy = parking();
                CHECK(flag.wait_until(kForever, policy) == Outcome::kReady);
            });
        });
        CHECK(stepped<SteppedFlag>(&flag)->set());
        return happened(n);
    });
}

TEST(a_position_posted_at_any_step_of_a_wait_is_seen) {
    for (const std::uint64_t target : {1U, 2U}) {  // reached, and passed
        at_every_step_of_a_wait([=](int n, std::int64_t deadline) {
            Position position(3);
            WaitPolicy policy = parking();
            Stepped::begin(n, [&] { position.post(2); });
            const Outcome outcome =
                stepped<SteppedPosition>(&position)->wait_until(3 + target, deadline, policy);
            CHECK(outcome == (n > 0 ? Outcome::kReady : Outcome::kTimedOut));
            CHECK(!position.armed() && position.waiter() == 0);
        });
    }
}

// The first post is not enough and comes at any step; the second comes when the waiter sleeps.
TEST(a_post_short_of_the_target_at_any_step_of_a_wait_does_not_end_it) {
    at_every_step_of_a_wait([](int n, std::int64_t deadline) {
        Position position;
        WaitPolicy policy = parking();
        std::thread poster;
        Stepped::begin(n, [&] {
            position.post(1);
            poster = std::thread([&] {
                until([&] { return position.wanted() == 1; });
                position.post(1);
            });
        });
        const Outcome outcome =
            stepped<SteppedPosition>(&position)->wait_until(2, deadline, policy);
        CHECK(outcome == (n > 0 ? Outcome::kReady : Outcome::kTimedOut));
        if (poster.joinable()) poster.join();
    });
}

TEST(a_position_lost_at_any_step_of_a_wait_is_lost) {
    at_every_step_of_a_wait([](int n, std::int64_t deadline) {
        Position position;
        WaitPolicy policy = parking();
        Stepped::begin(n, [&] { position.mark_lost(); });
        const Outcome outcome =
            stepped<SteppedPosition>(&position)->wait_until(1, deadline, policy);
        CHECK(outcome == (n > 0 ? Outcome::kLost : Outcome::kTimedOut));
    });
}

TEST(a_waiter_that_comes_to_a_position_at_any_step_of_a_post_sees_it) {
    at_every_step([](int n) {
        Position position;
        Latecomer waiter;
        Stepped::begin(n, [&] {
            waiter.come([&] {
                WaitPolicy policy = parking();
                CHECK(position.wait_until(1, kForever, policy) == Outcome::kReady);
            });
        });
        stepped<SteppedPosition>(&position)->post(1);
        return happened(n);
    });
}

TEST(an_open_position_rung_at_any_step_of_a_wait_is_seen) {
    at_every_step_of_a_wait([](int n, std::int64_t deadline) {
        OpenPosition position;
        WaitPolicy policy = parking();
        Stepped::begin(n, [&] {
            if (position.advance(1)) position.wake();
        });
        const Outcome outcome =
            stepped<SteppedOpenPosition>(&position)->wait_until(1, deadline, policy);
        CHECK(outcome == (n > 0 ? Outcome::kReady : Outcome::kTimedOut));
    });
}

TEST(a_waiter_that_comes_to_an_open_position_at_any_step_of_a_ring_sees_it) {
    at_every_step([](int n) {
        OpenPosition position;
        Latecomer first;  // so that wake() has a waiter to wake
        first.come([&] {
            WaitPolicy policy = parking();
            CHECK(position.wait_until(1, kForever, policy) == Outcome::kReady);
        });
        Latecomer second;
        Stepped::begin(n, [&] {
            second.come([&] {
                WaitPolicy policy = parking();
                CHECK(position.wait_until(1, kForever, policy) == Outcome::kReady);
            });
        });
        auto* poster = stepped<SteppedOpenPosition>(&position);
        if (poster->advance(1)) poster->wake();
        return happened(n);
    });
}

TEST(a_member_that_posts_at_any_step_of_a_wait_is_counted) {
    for (const std::uint32_t want : {1U, 2U}) {
        at_every_step_of_a_wait([=](int n, std::int64_t deadline) {
            Bell shared;
            WaitPolicy policy = parking();
            Doorbell poster = shared.handle();
            if (want == 2) CHECK(poster.post(0, 1));
            Stepped::begin(n, [&] { CHECK(poster.post(1, 2)); });
            SteppedDoorbell bell = shared.stepped_handle();
            CHECK(bell.wait_until(want, deadline, policy) ==
                  (n > 0 ? Outcome::kReady : Outcome::kTimedOut));
            CHECK(bell.ready().size() == want - (n > 0 ? 0 : 1));
        });
    }
}

TEST(a_member_lost_at_any_step_of_a_wait_is_reported_once) {
    at_every_step_of_a_wait([](int n, std::int64_t deadline) {
        Bell shared;
        WaitPolicy policy = parking();
        Doorbell reaper = shared.handle();
        Stepped::begin(n, [&] { reaper.mark_lost(1); });
        SteppedDoorbell bell = shared.stepped_handle();
        CHECK(bell.wait_until(1, deadline, policy) ==
              (n > 0 ? Outcome::kLost : Outcome::kTimedOut));
        CHECK(bell.lost().size() == (n > 0 ? 1 : 0));
        CHECK(bell.wait_until(1, 1, policy) == Outcome::kTimedOut && bell.lost().empty());
    });
}

TEST(a_waiter_that_comes_to_a_doorbell_at_any_step_of_a_post_is_woken) {
    at_every_step([](int n) {
        Bell shared;
        Latecomer waiter;
        Stepped::begin(n, [&] {
            waiter.come([&] {
                Doorbell bell = shared.handle();
                WaitPolicy policy = parking();
                CHECK(bell.wait_until(1, kForever, policy) == Outcome::kReady);
                CHECK(bell.ready().size() == 1);
            });
        });
        CHECK(shared.stepped_handle().post(0, 1));
        return happened(n);
    });
}

TEST(two_producers_never_take_the_same_slot_at_any_step) {
    at_every_step([](int n) {
        Pool pool;
        SharedRing other = pool.handle();
        CHECK(other.join());
        SteppedSharedRing ring = pool.stepped_handle();
        CHECK(ring.join());
        Stepped::begin(n, [&] { CHECK(produce(other, pool, 2, 0)); });
        CHECK(produce(ring, pool, 1, 0));
        const bool both = happened(n);
        SharedRing consumer = pool.handle();
        const std::vector<Record> records = drain(consumer, pool);
        CHECK(records.size() == (both ? 2 : 1));
        std::uint64_t authors = 0;
        for (const Record& record : records) {
            CHECK(record.whole());
            authors += record.author();
        }
        CHECK(authors == (both ? 3 : 1));
        return both;
    });
}

TEST(a_consumer_at_any_step_of_a_claim_and_publish_reads_whole_records) {
    at_every_step([](int n) {
        Pool pool;
        SteppedSharedRing ring = pool.stepped_handle();
        CHECK(ring.join());
        for (std::uint64_t i = 0; i < Pool::kSlots - 1; ++i) CHECK(produce(ring, pool, 1, i));
        SharedRing consumer = pool.handle();
        std::uint64_t next = 0;
        const auto read = [&] {
            for (const Record& record : drain(consumer, pool)) CHECK(record == Record(1, next++));
        };
        Stepped::begin(n, read);
        CHECK(produce(ring, pool, 1, Pool::kSlots - 1));
        const bool come = happened(n);
        read();
        CHECK(next == Pool::kSlots && consumer.size() == 0);
        return come;
    });
}

// Either the producer publishes, or its slot is taken away.
TEST(a_producer_declared_dead_at_any_step_publishes_or_is_skipped) {
    at_every_step([](int n) {
        Pool pool;
        SteppedSharedRing ring = pool.stepped_handle();
        CHECK(ring.join());
        SharedRing consumer = pool.handle();
        std::vector<Record> records;
        Stepped::begin(n, [&] {
            consumer.mark_producer_lost(getpid());
            records = drain(consumer, pool);
        });
        const bool published = produce(ring, pool, 1, 0);
        const bool come = happened(n);
        for (const Record& record : drain(consumer, pool)) records.push_back(record);
        CHECK(records.size() == (published ? 1 : 0));
        CHECK(come || published);
        SharedRing heir = pool.handle();
        CHECK(heir.join());
        for (std::uint64_t i = 0; i < Pool::kSlots; ++i) CHECK(produce(heir, pool, 2, i));
        CHECK(drain(consumer, pool).size() == Pool::kSlots);
        return come;
    });
}

TEST(a_consumer_that_drains_at_any_step_of_a_wait_for_room_wakes_it) {
    at_every_step_of_a_wait([](int n, std::int64_t deadline) {
        Pool pool;
        SharedRing first = pool.handle();
        CHECK(first.join());
        for (std::uint64_t i = 0; i < Pool::kSlots; ++i) CHECK(produce(first, pool, 1, i));
        SharedRing consumer = pool.handle();
        SteppedSharedRing ring = pool.stepped_handle();
        WaitPolicy policy = parking();
        Stepped::begin(n, [&] { CHECK(drain(consumer, pool).size() == Pool::kSlots); });
        CHECK(ring.wait_room(deadline, policy) == (n > 0 ? Outcome::kReady : Outcome::kTimedOut));
    });
}

TEST(a_producer_that_posts_at_any_step_of_a_consumers_wait_wakes_it) {
    at_every_step_of_a_wait([](int n, std::int64_t deadline) {
        Pool pool;
        SharedRing producer = pool.handle();
        CHECK(producer.join());
        SteppedSharedRing ring = pool.stepped_handle();
        WaitPolicy policy = parking();
        Stepped::begin(n, [&] { CHECK(produce(producer, pool, 1, 0)); });
        CHECK(ring.wait_ready(1, deadline, policy) ==
              (n > 0 ? Outcome::kReady : Outcome::kTimedOut));
    });
}

TEST(the_only_producers_death_at_any_step_of_a_wait_is_reported) {
    at_every_step_of_a_wait([](int n, std::int64_t deadline) {
        Pool pool;
        SharedRing producer = pool.handle();
        CHECK(producer.join());
        CHECK(producer.claim() == 0);
        SteppedSharedRing ring = pool.stepped_handle();
        WaitPolicy policy = parking();
        Stepped::begin(n, [&] { producer.mark_producer_lost(getpid()); });
        CHECK(ring.wait_ready(1, deadline, policy) ==
              (n > 0 ? Outcome::kLost : Outcome::kTimedOut));
    });
}

TEST(publishing_at_any_step_of_a_read_never_tears_it) {
    struct Wall {
        BoardCell cell;
        std::array<Board::Stamp, 2> stamps;
        std::array<std::atomic<std::uint64_t>, 8> words{};
    };
    for (const int versions : {1, 2, 3}) {
        at_every_step([=](int n) {
            Wall wall;
            Board board(&wall.cell, wall.stamps.data(), wall.words.data(), 2, 4);
            const auto publish = [&] {
                const std::uint64_t version = board.begin();
                board.write(0, std::array{version, version, version, version});
                board.publish();
            };
            publish();
            Stepped::begin(n, [&] {
                for (int i = 0; i < versions; ++i) publish();
                board.begin();  // and half of another version
                board.write(0, std::array{std::uint64_t{99}});
            });
            const SteppedBoard reader(stepped<SteppedBoard::Cell>(&wall.cell),
                                      stepped<SteppedBoard::Stamp>(wall.stamps.data()),
                                      stepped<Stepped::Atomic<std::uint64_t>>(wall.words.data()), 2,
                                      4);
            std::array<std::uint64_t, 4> words;
            const std::uint64_t version = reader.read(0, words);
            CHECK(version >= 1 && version <= board.version());
            for (const std::uint64_t word : words) CHECK(word == version);
            return happened(n);
        });
    }
}

int main(int argc, char** argv) { return check::main(argc, argv); }
