#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <optional>
#include <thread>
#include <vector>

#include "check.h"
#include "shared_ring.h"
#include "support.h"

using namespace pysampler;
using support::asleep_for;
using support::Child;
using support::Meanwhile;
using support::parking;
using support::Random;
using support::Record;
using support::Shared;
using support::until;

namespace {

constexpr std::uint64_t kWrap = 1ULL << 62;
constexpr std::uint64_t kSlots = 16;
constexpr std::uint32_t kPlaces = 3;
constexpr RingGeometry kGeometry{
    .slots = kSlots, .slot_bytes = sizeof(Record), .high = kSlots, .low = 8};

struct Memory {
    explicit Memory(std::uint64_t start = 0) : cell(start) {
        if (start != 0) handle().start_at(start);
    }
    SharedRing handle(const RingGeometry& geometry = kGeometry) {
        return SharedRing({&cell, owners.data(), words.data(), kPlaces}, geometry);
    }
    SharedRing producer(const RingGeometry& geometry = kGeometry) {
        SharedRing ring = handle(geometry);
        CHECK(ring.join());
        return ring;
    }
    Record& slot(std::uint64_t position) { return slots[position % kSlots]; }

    SharedRingCell cell;
    std::array<std::atomic<std::uint64_t>, kPlaces> owners{};
    std::array<std::atomic<std::uint64_t>, kSlots> words{};
    std::array<Record, kSlots> slots;
};

void push(SharedRing& ring, std::uint64_t count) {
    for (std::uint64_t i = 0; i < count; ++i) {
        const std::optional<std::uint64_t> position = ring.claim();
        CHECK(position && ring.publish(*position));
    }
    ring.post(count);
}

void pop(SharedRing& ring, std::uint64_t count) {
    while (count > 0) {
        const Run run = ring.peek(count);
        CHECK(run.count > 0);
        ring.release(run.count);
        count -= run.count;
    }
}

// Produces batches of random size, and abandons a slot now and then.
void produce(Memory& memory, std::uint64_t author, std::uint64_t count, WaitPolicy policy) {
    SharedRing ring = memory.producer();
    Random random(author);
    for (std::uint64_t number = 0; number < count;) {
        const std::uint64_t want = 1 + random.below(5);
        std::uint64_t batch = 0;
        while (batch < want && number < count) {
            const std::optional<std::uint64_t> position = ring.claim();
            if (!position) break;
            ++batch;
            if (random.below(8) == 0) {
                CHECK(ring.abandon(*position));
            } else {
                memory.slot(*position) = Record(author, number++);
                CHECK(ring.publish(*position));
            }
        }
        if (batch > 0) ring.post(batch);
        if (batch < want && number < count) {
            CHECK(ring.wait_room(kForever, policy) == Outcome::kReady);
        }
    }
    ring.leave();
}

void consume(Memory& memory, std::uint64_t producers, std::uint64_t count, WaitPolicy policy) {
    SharedRing ring = memory.handle();
    Random random(99);
    std::vector<std::uint64_t> next(producers);
    for (std::uint64_t left = producers * count; left > 0;) {
        const std::uint64_t want = std::min(1 + random.below(4), left);
        CHECK(ring.wait_ready(want, kForever, policy) == Outcome::kReady);
        const Run run = ring.peek(want);
        CHECK(run.count > 0);
        for (std::uint64_t i = 0; i < run.count; ++i) {
            const Record record = memory.slots[run.first + i];
            CHECK(record.author() < producers && record.whole());
            CHECK(record.number() == next[record.author()]++);
        }
        ring.release(run.count);
        left -= run.count;
    }
    CHECK(ring.peek(1).count == 0);
    for (const std::uint64_t seen : next) CHECK(seen == count);
}

}  // namespace

TEST(join_fails_without_a_free_place_and_leave_frees_one) {
    Memory memory;
    SharedRing a = memory.producer();
    SharedRing b = memory.producer();
    SharedRing c = memory.producer();
    SharedRing d = memory.handle();
    CHECK(a.joined() && c.joined() && d.producers() == kPlaces);
    CHECK(!d.join() && !d.joined());
    b.leave();
    CHECK(!b.joined());
    CHECK(d.join());
    CHECK(!b.join());
}

TEST(join_takes_the_place_of_a_dead_producer) {
    Shared<Memory> memory;
    Child first([&] {
        for (std::uint32_t i = 0; i < kPlaces; ++i) memory->producer();
        pause();
    });
    until([&] { return memory->owners[kPlaces - 1] != 0; });
    SharedRing ring = memory->handle();
    CHECK(!ring.join());
    ring.mark_producer_lost(first.pid());
    CHECK(ring.join());
}

TEST(slots_are_read_in_the_order_of_their_claims) {
    Memory memory;
    SharedRing a = memory.producer();
    SharedRing b = memory.producer();
    SharedRing consumer = memory.handle();
    const auto first = a.claim();
    const auto second = b.claim();
    CHECK(first == 0 && second == 1);
    CHECK(consumer.size() == 2 && consumer.peek(2).count == 0);
    CHECK(b.publish(*second));
    b.post(1);
    CHECK(consumer.peek(2).count == 0);  // the first is still being written
    CHECK(consumer.published() == 1);
    CHECK(a.publish(*first));
    a.post(1);
    const Run run = consumer.peek(5);
    CHECK(run.first == 0 && run.count == 2);
    consumer.release(1);
    CHECK(consumer.peek(5).first == 1 && consumer.peek(5).count == 1);
    consumer.release(1);
    CHECK(consumer.peek(1).count == 0 && consumer.size() == 0);
}

TEST(only_its_producer_publishes_a_slot_and_only_once) {
    Memory memory;
    SharedRing a = memory.producer();
    SharedRing b = memory.producer();
    const auto position = a.claim();
    CHECK(!b.publish(*position) && !b.abandon(*position));
    CHECK(a.publish(*position));
    CHECK(!a.publish(*position) && !a.abandon(*position));
}

TEST(an_abandoned_slot_is_skipped) {
    Memory memory;
    SharedRing a = memory.producer();
    SharedRing consumer = memory.handle();
    const auto first = a.claim();
    const auto second = a.claim();
    const auto third = a.claim();
    CHECK(a.publish(*first) && a.abandon(*second) && a.publish(*third));
    a.post(3);
    WaitPolicy policy = parking();
    CHECK(consumer.wait_ready(2, 1, policy) == Outcome::kReady);
    CHECK(consumer.peek(3).count == 1);
    consumer.release(1);
    CHECK(consumer.peek(3).first == 2 && consumer.peek(3).count == 1);
    consumer.release(1);
    CHECK(consumer.size() == 0);
    CHECK(consumer.wait_ready(1, 1, policy) == Outcome::kTimedOut);
}

TEST(a_run_ends_with_the_array) {
    Memory memory(kSlots * 4 - 2);
    SharedRing a = memory.producer();
    SharedRing consumer = memory.handle();
    push(a, 5);
    CHECK(consumer.peek(5).first == kSlots - 2 && consumer.peek(5).count == 2);
    consumer.release(2);
    CHECK(consumer.peek(5).first == 0 && consumer.peek(5).count == 3);
}

TEST(at_most_high_slots_are_claimed) {
    Memory memory;
    const RingGeometry geometry{.slots = kSlots, .slot_bytes = 64, .high = 5, .low = 2};
    SharedRing a = memory.producer(geometry);
    SharedRing consumer = memory.handle(geometry);
    for (int lap = 0; lap < 10; ++lap) {
        push(a, 5);
        CHECK(!a.claim());
        pop(consumer, 1);
        push(a, 1);
        CHECK(!a.claim());
        pop(consumer, 5);
    }
}

TEST(a_producer_with_a_stale_head_respects_high) {
    Memory memory;
    const RingGeometry geometry{.slots = kSlots, .slot_bytes = 64, .high = 5, .low = 2};
    SharedRing old = memory.producer(geometry);
    SharedRing busy = memory.producer(geometry);
    SharedRing consumer = memory.handle(geometry);
    for (std::uint64_t i = 0; i < 3 * kSlots; ++i) {
        push(busy, 1);
        pop(consumer, 1);
    }
    push(busy, 5);
    CHECK(!busy.claim());
    CHECK(!old.claim());
}

TEST(producers_sleep_until_a_full_ring_has_drained_to_low) {
    Memory memory(kWrap - 8);
    SharedRing first = memory.producer();
    push(first, kSlots);
    WaitPolicy policy = parking();
    CHECK(first.wait_room(1, policy) == Outcome::kTimedOut);
    std::atomic<int> found_it_full{0};
    std::vector<std::thread> producers;
    for (int i = 0; i < 2; ++i) {
        producers.emplace_back([&, policy]() mutable {
            SharedRing ring = memory.producer();
            CHECK(!ring.claim());
            ++found_it_full;
            CHECK(ring.wait_room(kForever, policy) == Outcome::kReady);
            CHECK(ring.size() <= kGeometry.low);
        });
    }
    SharedRing consumer = memory.handle();
    until([&] { return found_it_full == 2 && memory.cell.head.armed(); });
    const std::uint64_t before = futex_wake_count();
    pop(consumer, kSlots - kGeometry.low - 1);
    CHECK(futex_wake_count() == before);
    pop(consumer, 1);
    for (std::thread& producer : producers) producer.join();
}

TEST(time_outs_are_never_early) {
    Memory memory;
    SharedRing ring = memory.producer();
    push(ring, kSlots);
    for (WaitPolicy policy : support::policies()) {
        for (int i = 0; i < 20; ++i) {
            const std::int64_t deadline = now_ns() + i * 20 * kMicrosecond;
            CHECK(ring.wait_room(deadline, policy) == Outcome::kTimedOut);
            CHECK(now_ns() >= deadline);
        }
    }
    pop(ring, kSlots);
    for (WaitPolicy policy : support::policies()) {
        for (int i = 0; i < 20; ++i) {
            const std::int64_t deadline = now_ns() + i * 20 * kMicrosecond;
            CHECK(ring.wait_ready(1, deadline, policy) == Outcome::kTimedOut);
            CHECK(now_ns() >= deadline);
        }
    }
}

TEST(only_the_wanted_post_wakes) {
    Memory memory;
    SharedRing a = memory.producer();
    WaitPolicy policy = parking();
    std::thread consumer([&] {
        SharedRing ring = memory.handle();
        CHECK(ring.wait_ready(4, kForever, policy) == Outcome::kReady);
        CHECK(ring.peek(4).count == 4);
    });
    until([&] { return asleep_for(memory.cell.published, 4); });
    const std::uint64_t before = futex_wake_count();
    push(a, 3);
    CHECK(futex_wake_count() == before);
    until([&] { return asleep_for(memory.cell.published, 1); });
    push(a, 1);
    consumer.join();
    CHECK(futex_wake_count() == before + 1);
}

TEST(without_a_sleeper_no_call_is_a_system_call) {
    Shared<Memory> memory;
    WaitPolicy policy = parking();
    support::check_makes_no_system_call([&] {
        SharedRing ring = memory->producer();
        for (int i = 0; i < 100; ++i) {
            push(ring, 3);
            CHECK(ring.wait_room(kForever, policy) == Outcome::kReady);
            CHECK(ring.wait_ready(3, kForever, policy) == Outcome::kReady);
            pop(ring, 3);
        }
    });
}

TEST(published_slots_of_the_dead_stay_and_claimed_ones_are_skipped) {
    Shared<Memory> memory;
    Child dead([&] {
        SharedRing ring = memory->producer();
        ring.claim();
        push(ring, 1);
        ring.claim();
        raise(SIGKILL);
    });
    CHECK(WTERMSIG(dead.status()) == SIGKILL);
    const auto pid = static_cast<pid_t>(memory->owners[0] >> 32);
    SharedRing living = memory->producer();
    SharedRing consumer = memory->handle();
    push(living, 1);
    CHECK(consumer.peek(9).count == 0);  // the loss is not reported yet
    consumer.mark_producer_lost(pid);
    WaitPolicy policy = parking();
    CHECK(consumer.wait_ready(2, 1, policy) == Outcome::kReady);
    CHECK(consumer.peek(9).first == 1 && consumer.peek(9).count == 1);
    consumer.release(1);
    CHECK(consumer.peek(9).first == 3 && consumer.peek(9).count == 1);
    consumer.release(1);
    CHECK(consumer.size() == 0 && consumer.peek(1).count == 0);
    push(living, kSlots);  // every slot is usable again
    pop(consumer, kSlots);
}

TEST(a_producer_that_died_before_moving_the_tail_delays_no_other) {
    Memory memory;
    SharedRing a = memory.producer();
    CHECK(a.claim() == 0);
    memory.cell.tail = 0;  // as if it had died before it moved the tail
    SharedRing b = memory.producer();
    CHECK(b.claim() == 1);
}

TEST(a_producer_declared_dead_publishes_nothing) {
    Memory memory;
    SharedRing ghost = memory.producer();
    SharedRing consumer = memory.handle();
    const auto position = ghost.claim();
    consumer.mark_producer_lost(getpid());
    CHECK(consumer.peek(1).count == 0);  // skips the slot
    CHECK(!ghost.publish(*position) && !ghost.abandon(*position));
    SharedRing heir = memory.producer();  // in the same place
    push(heir, kSlots);
    CHECK(!ghost.publish(*position));
    CHECK(!ghost.publish(*position + kSlots));
    pop(consumer, kSlots);
}

TEST(leaving_after_being_declared_dead_keeps_the_successors_place) {
    Memory memory;
    SharedRing ghost = memory.producer();
    SharedRing consumer = memory.handle();
    consumer.mark_producer_lost(getpid());
    SharedRing heir = memory.producer();
    ghost.leave();
    const auto position = heir.claim();
    CHECK(consumer.peek(1).count == 0);
    CHECK(heir.publish(*position));
    CHECK(consumer.peek(1).count == 1);
}

TEST(slots_that_a_leaving_producer_had_claimed_are_skipped) {
    Memory memory;
    SharedRing a = memory.producer();
    SharedRing b = memory.producer();
    a.claim();
    push(b, 1);
    a.leave();
    SharedRing consumer = memory.handle();
    CHECK(consumer.peek(1).first == 1 && consumer.peek(1).count == 1);
}

TEST(a_loss_is_reported_when_all_producers_are_gone_and_one_died) {
    Memory memory;
    WaitPolicy policy = parking();
    SharedRing consumer = memory.handle();
    CHECK(consumer.wait_ready(1, 1, policy) == Outcome::kTimedOut);  // no producer has joined yet
    SharedRing leaver = memory.producer();
    leaver.leave();
    CHECK(consumer.wait_ready(1, 1, policy) == Outcome::kTimedOut);
    SharedRing dead = memory.producer();
    push(dead, 1);
    consumer.mark_producer_lost(getpid());
    CHECK(consumer.wait_ready(1, kForever, policy) == Outcome::kReady);
    CHECK(consumer.wait_ready(2, kForever, policy) == Outcome::kLost);
    pop(consumer, 1);
    CHECK(consumer.wait_ready(1, kForever, policy) == Outcome::kLost);
    SharedRing next = memory.producer();
    CHECK(consumer.wait_ready(1, 1, policy) == Outcome::kTimedOut);
    push(next, 1);
    CHECK(consumer.wait_ready(1, kForever, policy) == Outcome::kReady);
}

TEST(a_loss_wakes_the_consumer_which_serves_the_living) {
    Shared<Memory> memory;
    Child dead([&] {
        SharedRing ring = memory->producer();
        ring.claim();
        pause();
    });
    until([&] { return memory->cell.tail == 1; });
    SharedRing living = memory->producer();
    std::thread consumer([&] {
        WaitPolicy policy = parking();
        SharedRing ring = memory->handle();
        CHECK(ring.wait_ready(1, kForever, policy) == Outcome::kReady);
        CHECK(ring.peek(1).first == 1);
    });
    until([&] { return memory->cell.published.armed(); });
    push(living, 1);
    dead.send(SIGKILL);
    const pid_t pid = dead.pid();
    dead.status();
    living.mark_producer_lost(pid);
    consumer.join();
}

TEST(a_dead_claimant_is_found_at_the_deadline_without_a_watch) {
    Shared<Memory> memory;
    SharedRing living = memory->producer();
    Child dead([&] {
        SharedRing ring = memory->producer();
        ring.claim();
        raise(SIGKILL);
    });
    dead.status();
    push(living, 1);
    SharedRing consumer = memory->handle();
    WaitPolicy policy = parking();
    CHECK(consumer.peek(1).count == 0);
    CHECK(consumer.wait_ready(1, now_ns() + kMillisecond, policy) == Outcome::kReady);
    CHECK(consumer.peek(1).first == 1 && consumer.peek(1).count == 1);
}

TEST(a_slot_published_but_never_posted_is_ready_at_the_deadline) {
    Memory memory;
    SharedRing consumer = memory.handle();
    SharedRing dead = memory.producer();
    Meanwhile policy{[&] { CHECK(dead.publish(*dead.claim())); }, Outcome::kTimedOut};
    CHECK(consumer.wait_ready(1, kForever, policy) == Outcome::kReady);
    CHECK(consumer.peek(1).count == 1);
}

TEST(the_loss_of_the_consumer_wakes_every_producer) {
    Memory memory;
    SharedRing first = memory.producer();
    push(first, kSlots);
    std::vector<std::thread> producers;
    for (int i = 0; i < 2; ++i) {
        producers.emplace_back([&] {
            SharedRing ring = memory.producer();
            WaitPolicy policy = parking();
            CHECK(ring.wait_room(kForever, policy) == Outcome::kLost);
        });
    }
    until([&] { return memory.cell.head.armed(); });
    first.mark_consumer_lost();
    for (std::thread& producer : producers) producer.join();
    CHECK(first.consumer_lost());
    first.clear_lost();
    WaitPolicy policy = parking();
    CHECK(first.wait_room(1, policy) == Outcome::kTimedOut);
}

TEST(a_second_waiting_consumer_gets_busy_and_replaces_a_killed_one) {
    Shared<Memory> memory;
    Child first([&] {
        WaitPolicy policy = parking();
        static_cast<void>(memory->handle().wait_ready(1, kForever, policy));
    });
    until([&] { return memory->cell.published.armed(); });
    SharedRing ring = memory->producer();
    WaitPolicy policy = parking();
    CHECK(ring.wait_ready(1, kForever, policy) == Outcome::kBusy);
    first.send(SIGKILL);
    until([&] { return ring.wait_ready(1, 1, policy) != Outcome::kBusy; });
    push(ring, 1);
    CHECK(ring.wait_ready(1, kForever, policy) == Outcome::kReady);
}

TEST(a_second_consumer_takes_no_loss_from_the_first) {
    Memory memory;
    CHECK(memory.producer().joined());
    SharedRing consumer = memory.handle(), other = memory.handle();
    support::Meanwhile policy{[&] {
                                  consumer.mark_producer_lost(getpid());
                                  WaitPolicy own = parking();
                                  CHECK(other.wait_ready(1, kForever, own) == Outcome::kBusy);
                                  CHECK(memory.cell.published.lost());
                              },
                              Outcome::kLost};
    CHECK(consumer.wait_ready(1, kForever, policy) == Outcome::kLost);
}

TEST(a_consumer_that_died_between_free_and_pass_loses_nothing) {
    Memory memory;
    SharedRing a = memory.producer();
    push(a, 3);
    memory.words[0] = 1ULL << 32;  // free for the next lap, but the head has not moved
    SharedRing next = memory.handle();
    CHECK(next.peek(9).first == 1 && next.peek(9).count == 2);
    next.release(2);
    push(a, kSlots);
    pop(next, kSlots);
}

TEST(threads_pass_records_across_the_wrap) {
    for (const WaitPolicy& policy : support::policies()) {
        Memory memory(kWrap - 64);
        const auto count = static_cast<std::uint64_t>(support::rounds(20'000));
        std::vector<std::thread> producers;
        for (std::uint64_t i = 0; i < kPlaces; ++i) {
            producers.emplace_back([&, i] { produce(memory, i, count, policy); });
        }
        consume(memory, kPlaces, count, policy);
        for (std::thread& producer : producers) producer.join();
    }
}

TEST(processes_pass_records_across_the_wrap_of_the_laps) {
    for (const WaitPolicy& policy : support::policies()) {
        Shared<Memory> memory((1ULL << 32) * kSlots - 64);
        const auto count = static_cast<std::uint64_t>(support::rounds(20'000));
        std::array<Child, kPlaces> producers;
        for (std::uint64_t i = 0; i < kPlaces; ++i) {
            producers[i] = Child([&] { produce(*memory, i, count, policy); });
        }
        consume(*memory, kPlaces, count, policy);
        for (Child& producer : producers) producer.finish();
    }
}

int main(int argc, char** argv) { return check::main(argc, argv); }
