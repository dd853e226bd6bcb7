// Kills one process before each of its accesses to shared memory in turn: the others must find
// everything it had finished and nothing half-done, and continue.
#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <new>
#include <optional>
#include <thread>
#include <vector>

#include "board.h"
#include "byte_ring.h"
#include "check.h"
#include "doorbell.h"
#include "flag.h"
#include "position.h"
#include "ring.h"
#include "segment.h"
#include "shared_ring.h"
#include "stepped.h"
#include "support.h"

using namespace pysampler;
using support::at_every_step;
using support::Child;
using support::died;
using support::mortal_child;
using support::parking;
using support::Record;
using support::Shared;
using support::Stepped;
using support::stepped;
using support::until;

namespace {

using SteppedFlag = BasicFlag<Stepped>;
using SteppedPosition = BasicPosition<Stepped, Waiters::kOne>;
using SteppedRing = BasicRing<Stepped>;
using SteppedSharedRing = BasicSharedRing<Stepped>;
using SteppedByteRing = BasicByteRing<Stepped>;
using SteppedDoorbell = BasicDoorbell<Stepped>;
using SteppedBoard = BasicBoard<Stepped>;

constexpr std::uint64_t kSlots = 8;
constexpr RingGeometry kGeometry{
    .slots = kSlots, .slot_bytes = sizeof(Record), .high = kSlots, .low = 4};

struct Pipe {
    Ring handle() { return Ring(&cell, kGeometry); }
    SteppedRing stepped_handle() {
        return SteppedRing(stepped<SteppedRing::Cell>(&cell), kGeometry);
    }

    RingCell cell;
    std::array<Record, kSlots> slots;
};

struct Pool {
    static constexpr std::uint32_t kPlaces = 2;
    SharedRing handle() {
        return SharedRing({&cell, owners.data(), words.data(), kPlaces}, kGeometry);
    }
    SteppedSharedRing stepped_handle() {
        using Word = Stepped::Atomic<std::uint64_t>;
        return SteppedSharedRing(
            {stepped<SteppedSharedRing::Cell>(&cell), stepped<Word>(owners.data()),
             stepped<Word>(words.data()), kPlaces},
            kGeometry);
    }

    SharedRingCell cell;
    std::array<std::atomic<std::uint64_t>, kPlaces> owners{};
    std::array<std::atomic<std::uint64_t>, kSlots> words{};
    std::array<Record, kSlots> slots;
    std::atomic<std::uint64_t> read{0};
};

template <class AnyRing>
bool produce(AnyRing& ring, Pool& pool, std::uint64_t author, std::uint64_t number) {
    const std::optional<std::uint64_t> position = ring.claim();
    if (!position) return false;
    pool.slots[*position % kSlots] = Record(author, number);
    CHECK(ring.publish(*position));
    return true;
}

struct Bell {
    Doorbell handle() { return Doorbell(&cell, members.data(), 2); }
    SteppedDoorbell stepped_handle() {
        return SteppedDoorbell(stepped<SteppedDoorbell::Cell>(&cell),
                               stepped<SteppedDoorbell::Member>(members.data()), 2);
    }
    Doorbell::Cell cell;
    std::array<Doorbell::Member, 2> members;
};

struct Wall {
    Board handle() { return Board(&cell, stamps.data(), words.data(), 2, 4); }
    SteppedBoard stepped_handle() {
        return SteppedBoard(stepped<SteppedBoard::Cell>(&cell),
                            stepped<SteppedBoard::Stamp>(stamps.data()),
                            stepped<Stepped::Atomic<std::uint64_t>>(words.data()), 2, 4);
    }
    BoardCell cell;
    std::array<Board::Stamp, 2> stamps;
    std::array<std::atomic<std::uint64_t>, 8> words{};
};

template <class AnyBoard>
void publish(AnyBoard& board, std::uint64_t contents) {
    board.begin();
    board.write(0, std::array{contents, contents, contents, contents});
    board.publish();
}

}  // namespace

TEST(a_flag_is_set_or_lost_after_its_poster_dies) {
    at_every_step([](int n) {
        Shared<Flag> flag;
        Child poster = mortal_child(n, [&] { stepped<SteppedFlag>(&*flag)->set(); });
        const bool dead = died(poster);
        flag->mark_lost();
        WaitPolicy policy = parking();
        const Outcome outcome = flag->wait_until(kForever, policy);
        CHECK(outcome == (flag->is_set() ? Outcome::kReady : Outcome::kLost));
        CHECK(dead || flag->is_set());
        return dead;
    });
}

TEST(a_flag_serves_the_next_waiter_after_its_waiter_dies) {
    at_every_step([](int n) {
        Shared<Flag> flag;
        Child first = mortal_child(n, [&] {
            WaitPolicy policy = parking();
            auto* own = stepped<SteppedFlag>(&*flag);
            CHECK(own->wait_until(kForever, policy) == Outcome::kReady);
            CHECK(own->clear());
        });
        // Post when the first waiter sleeps or is dead.
        until([&] {
            siginfo_t info{};
            CHECK(waitid(P_PID, static_cast<id_t>(first.pid()), &info,
                         WEXITED | WNOWAIT | WNOHANG) == 0);
            return info.si_pid != 0 || flag->parked();
        });
        CHECK(flag->set());
        const bool dead = died(first);
        WaitPolicy policy = parking();
        if (flag->is_set()) {
            CHECK(dead);
            CHECK(flag->wait_until(1, policy) == Outcome::kReady);
            CHECK(flag->clear());
        }
        CHECK(flag->wait_until(now_ns() + kMillisecond / 10, policy) == Outcome::kTimedOut);
        CHECK(!flag->parked() && flag->waiter() == 0);
        Child second([&] {
            WaitPolicy own = parking();
            CHECK(flag->wait_until(kForever, own) == Outcome::kReady);
        });
        until([&] { return flag->parked(); });
        CHECK(flag->set());
        second.finish();
        return dead;
    });
}

TEST(a_position_wakes_the_next_waiter_at_its_target_after_a_waiter_dies) {
    at_every_step([](int n) {
        Shared<Position> position;
        Child first = mortal_child(n, [&] {
            WaitPolicy policy = parking();
            auto* own = stepped<SteppedPosition>(&*position);
            CHECK(own->wait_until(100, now_ns() + kMillisecond, policy) == Outcome::kTimedOut);
        });
        const bool dead = died(first);
        Child second([&] {
            WaitPolicy policy = parking();
            CHECK(position->wait_until(2, kForever, policy) == Outcome::kReady);
        });
        until([&] { return position->wanted() == 2; });
        position->post(1);
        until([&] { return position->wanted() == 1; });
        position->post(1);
        second.finish();
        CHECK(position->load() == 2 && !position->armed());
        return dead;
    });
}

TEST(a_ring_holds_a_batch_or_nothing_after_its_producer_dies) {
    at_every_step([](int n) {
        Shared<Pipe> pipe;
        Child producer = mortal_child(n, [&] {
            SteppedRing ring = pipe->stepped_handle();
            const Run run = ring.claim(3);
            for (std::uint64_t i = 0; i < run.count; ++i) {
                pipe->slots[run.first + i] = Record(1, i);
            }
            ring.publish(run.count);
        });
        const bool dead = died(producer);
        Ring ring = pipe->handle();
        ring.mark_producer_lost();
        const Run run = ring.peek(kSlots);
        CHECK(run.count == 0 || run.count == 3);
        CHECK(dead || run.count == 3);
        for (std::uint64_t i = 0; i < run.count; ++i) CHECK(pipe->slots[i] == Record(1, i));
        ring.release(run.count);
        WaitPolicy policy = parking();
        CHECK(ring.wait_ready(1, kForever, policy) == Outcome::kLost);
        ring.clear_lost();
        Ring next = pipe->handle();
        CHECK(next.wait_room(kSlots, 1, policy) == Outcome::kReady);
        next.publish(next.claim(1).count);
        CHECK(ring.wait_ready(1, kForever, policy) == Outcome::kReady);
        return dead;
    });
}

TEST(a_ring_is_read_on_after_its_consumer_dies) {
    at_every_step([](int n) {
        Shared<Pipe> pipe;
        Ring producer = pipe->handle();
        for (std::uint64_t i = 0; i < 5; ++i) pipe->slots[i] = Record(1, i);
        producer.publish(5);
        Child consumer = mortal_child(n, [&] {
            SteppedRing ring = pipe->stepped_handle();
            CHECK(ring.peek(2).count == 2);
            ring.release(2);
        });
        const bool dead = died(consumer);
        const Run run = pipe->handle().peek(kSlots);
        CHECK((run.first == 0 && run.count == 5 && dead) || (run.first == 2 && run.count == 3));
        return dead;
    });
}

TEST(a_shared_ring_serves_the_others_after_a_producer_dies) {
    at_every_step([](int n) {
        Shared<Pool> pool;
        Child producer = mortal_child(n, [&] {
            SteppedSharedRing ring = pool->stepped_handle();
            CHECK(ring.join());
            for (std::uint64_t i = 0; i < 3; ++i) CHECK(produce(ring, *pool, 1, i));
            const std::optional<std::uint64_t> position = ring.claim();
            CHECK(position && ring.abandon(*position));
            ring.post(4);
            ring.leave();
        });
        const pid_t pid = producer.pid();
        const bool dead = died(producer);
        // Another producer continues before the loss is reported, and fills the ring after that.
        SharedRing living = pool->handle();
        CHECK(living.join());
        std::uint64_t made = 0;
        CHECK(produce(living, *pool, 2, made++));
        living.post(1);
        SharedRing consumer = pool->handle();
        consumer.mark_producer_lost(pid);
        WaitPolicy policy = parking();
        std::uint64_t of_the_dead = 0;
        for (std::uint64_t seen = 0; seen < 2 * kSlots;) {
            CHECK(consumer.wait_ready(1, kForever, policy) == Outcome::kReady);
            const Run run = consumer.peek(1);
            CHECK(run.count == 1);
            const Record record = pool->slots[run.first];
            if (record.author() == 1) {
                CHECK(seen == 0 && record == Record(1, of_the_dead++));
            } else {
                CHECK(record == Record(2, seen++));
            }
            consumer.release(1);
            while (made < 2 * kSlots && produce(living, *pool, 2, made)) {
                ++made;
                living.post(1);
            }
        }
        CHECK(of_the_dead <= 3 && (dead || of_the_dead == 3));
        CHECK(consumer.peek(1).count == 0 && consumer.size() == 0);
        CHECK(living.joined() && consumer.wait_ready(1, 1, policy) == Outcome::kTimedOut);
        SharedRing next = pool->handle();
        CHECK(next.join());  // the dead producer's place is free again
        return dead;
    });
}

TEST(a_shared_ring_loses_no_unread_record_after_its_consumer_dies) {
    at_every_step([](int n) {
        Shared<Pool> pool;
        SharedRing producer = pool->handle();
        CHECK(producer.join());
        for (std::uint64_t i = 0; i < 2; ++i) CHECK(produce(producer, *pool, 1, i));
        CHECK(producer.abandon(*producer.claim()));
        for (std::uint64_t i = 2; i < 4; ++i) CHECK(produce(producer, *pool, 1, i));
        producer.post(5);
        Child first = mortal_child(n, [&] {
            SteppedSharedRing ring = pool->stepped_handle();
            for (int i = 0; i < 2; ++i) {
                const Run run = ring.peek(kSlots);
                for (std::uint64_t k = 0; k < run.count; ++k) {
                    CHECK(pool->slots[run.first + k] == Record(1, pool->read));
                    ++pool->read;
                }
                ring.release(run.count);
            }
        });
        const bool dead = died(first);
        SharedRing second = pool->handle();
        std::optional<std::uint64_t> next;
        for (Run run = second.peek(1); run.count > 0; run = second.peek(1)) {
            const Record record = pool->slots[run.first];
            // Records may come again if the first consumer died before it had released them all.
            if (!next) CHECK(record.number() <= pool->read && dead);
            CHECK(record == Record(1, next ? *next : record.number()));
            next = record.number() + 1;
            second.release(1);
        }
        CHECK(next.value_or(pool->read) == 4);
        for (std::uint64_t i = 0; i < kSlots; ++i) CHECK(produce(producer, *pool, 1, i));
        CHECK(!producer.claim());
        CHECK(second.peek(kSlots).count == kSlots - 5);
        second.release(kSlots - 5);
        CHECK(second.peek(kSlots).count == 5);
        return dead;
    });
}

TEST(a_byte_ring_holds_a_message_or_nothing_after_its_writer_dies) {
    const std::uint64_t capacity = Segment::page();
    for (const std::uint64_t size : {std::uint64_t{100}, 3 * capacity}) {
        at_every_step([&](int n) {
            const auto segment = Segment::create(3 * capacity);
            const std::size_t at = segment->allocate(sizeof(RingCell));
            auto* cell = new (segment->at(at, sizeof(RingCell))) RingCell;
            const auto bytes = segment->map_twice(segment->allocate(capacity, capacity), capacity);
            const std::vector<std::byte> message(size, std::byte{7});
            Child writer = mortal_child(n, [&] {
                SteppedByteRing ring(stepped<SteppedByteRing::Cell>(cell), bytes.get(), capacity);
                WaitPolicy policy = parking();
                std::uint64_t written = 0;
                CHECK(ring.write(message, written, kForever, policy) == Outcome::kReady);
            });
            ByteRing ring(cell, bytes.get(), capacity);
            WaitPolicy policy = parking();
            // Read while the writer writes; its death is reported when it has come.
            bool dead = false;
            std::thread reaper([&] {
                dead = died(writer);
                ring.mark_producer_lost();
            });
            ByteRing reader(cell, bytes.get(), capacity);
            const Outcome outcome = reader.read(4 * capacity, kForever, policy);
            reaper.join();
            CHECK(outcome == Outcome::kReady || (outcome == Outcome::kLost && dead));
            if (outcome == Outcome::kReady) {
                CHECK(std::ranges::equal(reader.message(), message));
                reader.release();
            }
            reader.clear_lost();
            const std::vector<std::byte> other(50, std::byte{8});
            std::uint64_t written = 0;
            CHECK(ring.write(other, written, kForever, policy) == Outcome::kReady);
            CHECK(reader.read(4 * capacity, kForever, policy) == Outcome::kReady);
            CHECK(std::ranges::equal(reader.message(), other));
            return dead;
        });
    }
}

TEST(a_doorbell_reports_a_dead_member_and_serves_its_replacement) {
    at_every_step([](int n) {
        Shared<Bell> shared;
        Child member = mortal_child(n, [&] { CHECK(shared->stepped_handle().post(0, 1)); });
        const bool dead = died(member);
        Doorbell bell = shared->handle();
        bell.mark_lost(0);
        WaitPolicy policy = parking();
        CHECK(bell.wait_until(1, kForever, policy) == Outcome::kLost);
        CHECK(bell.lost().size() == 1 && bell.lost()[0] == 0);
        CHECK(dead || bell.is_ready(0));
        if (bell.is_ready(0)) CHECK(bell.take(0));
        bell.revive(0);
        // Whether or not the dead member had counted its post, waits end neither late nor early.
        CHECK(bell.wait_until(1, now_ns() + kMillisecond / 10, policy) == Outcome::kTimedOut);
        Child others([&] {
            Doorbell own = shared->handle();
            until([&] { return own.wanted() == 2; });
            CHECK(own.post(0, 2));
            CHECK(own.post(1, 3));
        });
        CHECK(bell.wait_until(2, kForever, policy) == Outcome::kReady);
        CHECK(bell.ready().size() == 2);
        others.finish();
        return dead;
    });
}

TEST(a_doorbell_serves_the_next_waiter_after_its_waiter_dies) {
    at_every_step([](int n) {
        Shared<Bell> shared;
        Doorbell bell = shared->handle();
        CHECK(bell.post(0, 1));
        Child first = mortal_child(n, [&] {
            SteppedDoorbell own = shared->stepped_handle();
            WaitPolicy policy = parking();
            CHECK(own.wait_until(2, now_ns() + kMillisecond, policy) == Outcome::kTimedOut);
            CHECK(own.take(0));
        });
        const bool dead = died(first);
        if (bell.is_ready(0)) CHECK(dead && bell.take(0));
        Child members([&] {
            Doorbell own = shared->handle();
            until([&] { return own.wanted() == 2; });
            CHECK(own.post(0, 2));
            CHECK(own.post(1, 3));
        });
        WaitPolicy policy = parking();
        CHECK(bell.wait_until(2, kForever, policy) == Outcome::kReady);
        CHECK(bell.ready().size() == 2);
        members.finish();
        return dead;
    });
}

TEST(a_board_holds_the_old_or_the_new_version_after_its_writer_dies) {
    at_every_step([](int n) {
        Shared<Wall> wall;
        Board board = wall->handle();
        publish(board, 1);
        Child writer = mortal_child(n, [&] {
            SteppedBoard own = wall->stepped_handle();
            publish(own, 2);
        });
        const bool dead = died(writer);
        for (std::uint64_t expected = board.version(); expected <= 3; ++expected) {
            std::array<std::uint64_t, 4> words;
            CHECK(board.read(0, words) == expected);
            for (const std::uint64_t word : words) CHECK(word == expected);
            if (expected < 3) publish(board, expected + 1);
        }
        return dead;
    });
}

// -- waiters that sleep meanwhile -----------------------------------------------------------------

namespace {

// `waiter` sleeps before `body` begins in a child that dies at step n; `reap` reports its death.
template <class Waiter, class Body, class Reap>
bool dies_beside_a_sleeper(int n, Waiter&& waiter, Body&& body, Reap&& reap) {
    Child sleeper(waiter);
    until([&] { return support::sleeps(sleeper.pid()); });
    Child poster = mortal_child(n, body);
    const pid_t pid = poster.pid();
    const bool dead = died(poster);
    reap(pid);
    sleeper.finish();
    return dead;
}

}  // namespace

TEST(the_death_of_a_flags_poster_wakes_its_waiter) {
    at_every_step([](int n) {
        Shared<Flag> flag;
        const auto waiter = [&] {
            WaitPolicy policy = parking();
            const Outcome outcome = flag->wait_until(kForever, policy);
            CHECK(outcome == (flag->is_set() ? Outcome::kReady : Outcome::kLost));
        };
        return dies_beside_a_sleeper(
            n, waiter, [&] { stepped<SteppedFlag>(&*flag)->set(); },
            [&](pid_t) { flag->mark_lost(); });
    });
}

TEST(the_death_of_a_positions_poster_wakes_its_waiter) {
    at_every_step([](int n) {
        Shared<Position> position;
        const auto waiter = [&] {
            WaitPolicy policy = parking();
            const Outcome outcome = position->wait_until(1, kForever, policy);
            CHECK(outcome == (position->load() == 1 ? Outcome::kReady : Outcome::kLost));
        };
        return dies_beside_a_sleeper(
            n, waiter, [&] { stepped<SteppedPosition>(&*position)->post(1); },
            [&](pid_t) { position->mark_lost(); });
    });
}

TEST(the_death_of_a_shared_rings_producer_wakes_its_consumer) {
    at_every_step([](int n) {
        Shared<Pool> pool;
        const auto consumer = [&] {
            SharedRing ring = pool->handle();
            WaitPolicy policy = parking();
            const Outcome outcome = ring.wait_ready(1, kForever, policy);
            CHECK(outcome == (ring.peek(1).count == 1 ? Outcome::kReady : Outcome::kLost));
        };
        SharedRing reaper = pool->handle();
        const auto producer = [&] {
            SteppedSharedRing ring = pool->stepped_handle();
            CHECK(ring.join());
            CHECK(produce(ring, *pool, 1, 0));
            ring.post(1);
        };
        return dies_beside_a_sleeper(n, consumer, producer, [&](pid_t pid) {
            // A producer that never joined is not a loss: another one produces instead.
            if (pool->owners[0] == 0) {
                CHECK(reaper.join());
                CHECK(produce(reaper, *pool, 2, 0));
                reaper.post(1);
            }
            reaper.mark_producer_lost(pid);
        });
    });
}

TEST(the_death_of_a_shared_rings_consumer_wakes_its_producers) {
    at_every_step([](int n) {
        Shared<Pool> pool;
        SharedRing first = pool->handle();
        CHECK(first.join());
        for (std::uint64_t i = 0; i < kSlots; ++i) CHECK(produce(first, *pool, 1, i));
        first.post(kSlots);
        const auto producer = [&] {
            SharedRing ring = pool->handle();
            CHECK(ring.join());
            WaitPolicy policy = parking();
            const Outcome outcome = ring.wait_room(kForever, policy);
            CHECK(outcome == Outcome::kLost || (outcome == Outcome::kReady && ring.claim()));
        };
        const auto consumer = [&] {
            SteppedSharedRing ring = pool->stepped_handle();
            CHECK(ring.peek(kSlots).count == kSlots);
            ring.release(kSlots);
        };
        return dies_beside_a_sleeper(n, producer, consumer,
                                     [&](pid_t) { first.mark_consumer_lost(); });
    });
}

TEST(the_death_of_a_doorbells_member_wakes_its_waiter) {
    at_every_step([](int n) {
        Shared<Bell> shared;
        const auto waiter = [&] {
            Doorbell bell = shared->handle();
            WaitPolicy policy = parking();
            const Outcome outcome = bell.wait_until(1, kForever, policy);
            CHECK(outcome == (bell.lost().empty() ? Outcome::kReady : Outcome::kLost));
        };
        Doorbell reaper = shared->handle();
        return dies_beside_a_sleeper(
            n, waiter, [&] { CHECK(shared->stepped_handle().post(0, 1)); },
            [&](pid_t) { reaper.mark_lost(0); });
    });
}

TEST(the_death_of_a_boards_writer_wakes_its_readers) {
    at_every_step([](int n) {
        Shared<Wall> wall;
        const auto reader = [&] {
            Board board = wall->handle();
            WaitPolicy policy = parking();
            const Outcome outcome = board.wait_version(1, kForever, policy);
            CHECK(outcome == (board.version() == 1 ? Outcome::kReady : Outcome::kLost));
        };
        Board board = wall->handle();
        const auto writer = [&] {
            SteppedBoard own = wall->stepped_handle();
            publish(own, 1);
        };
        return dies_beside_a_sleeper(n, reader, writer, [&](pid_t) { board.mark_writer_lost(); });
    });
}

int main(int argc, char** argv) { return check::main(argc, argv); }
