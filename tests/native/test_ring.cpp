#include <algorithm>
#include <array>
#include <cstdint>
#include <thread>

#include "check.h"
#include "ring.h"
#include "support.h"

using namespace pysampler;
using support::asleep_for;
using support::Child;
using support::parking;
using support::Random;
using support::Record;
using support::Shared;
using support::until;

namespace {

constexpr std::uint64_t kWrap = 1ULL << 62;
constexpr std::uint64_t kSlots = 16;
constexpr RingGeometry kGeometry{
    .slots = kSlots, .slot_bytes = sizeof(Record), .high = kSlots, .low = 6};

struct Memory {
    explicit Memory(std::uint64_t start = 0) : cell(start) {}
    Ring handle(const RingGeometry& geometry = kGeometry) { return Ring(&cell, geometry); }

    RingCell cell;
    std::array<Record, kSlots> slots;
};

void push(Ring& ring, std::uint64_t count) {
    while (count > 0) {
        const Run run = ring.claim(count);
        CHECK(run.count > 0);
        ring.publish(run.count);
        count -= run.count;
    }
}

void pop(Ring& ring, std::uint64_t count) {
    while (count > 0) {
        const Run run = ring.peek(count);
        CHECK(run.count > 0);
        ring.release(run.count);
        count -= run.count;
    }
}

void produce(Memory& memory, std::uint64_t count, WaitPolicy policy) {
    Ring ring = memory.handle();
    Random random(1);
    for (std::uint64_t number = 0; number < count;) {
        const std::uint64_t want = std::min(1 + random.below(kSlots / 2), count - number);
        CHECK(ring.wait_room(want, kForever, policy) == Outcome::kReady);
        const Run run = ring.claim(want);
        CHECK(run.count > 0 && run.count <= want);
        for (std::uint64_t i = 0; i < run.count; ++i) {
            memory.slots[run.first + i] = Record(1, number++);
        }
        ring.publish(run.count);
    }
}

void consume(Memory& memory, std::uint64_t count, WaitPolicy policy) {
    Ring ring = memory.handle();
    Random random(2);
    for (std::uint64_t number = 0; number < count;) {
        const std::uint64_t want = std::min(1 + random.below(kGeometry.low), count - number);
        CHECK(ring.wait_ready(want, kForever, policy) == Outcome::kReady);
        const Run run = ring.peek(want);
        CHECK(run.count > 0 && run.count <= want);
        for (std::uint64_t i = 0; i < run.count; ++i) {
            CHECK(memory.slots[run.first + i] == Record(1, number++));
        }
        ring.release(run.count);
        CHECK(ring.sound());
    }
    CHECK(ring.size() == 0);
}

}  // namespace

TEST(published_slots_are_read_once_in_order) {
    Memory memory;
    Ring ring = memory.handle();
    CHECK(ring.peek(1).count == 0 && ring.size() == 0);
    Run run = ring.claim(3);
    CHECK(run.first == 0 && run.count == 3);
    CHECK(ring.peek(1).count == 0);  // claimed is not published
    ring.publish(2);
    CHECK(ring.size() == 2 && ring.published() == 2);
    run = ring.peek(10);
    CHECK(run.first == 0 && run.count == 2);
    ring.release(1);
    run = ring.peek(10);
    CHECK(run.first == 1 && run.count == 1);
    ring.release(1);
    CHECK(ring.peek(1).count == 0 && ring.size() == 0);
    CHECK(ring.claim(1).first == 2);
}

TEST(a_run_ends_with_the_array) {
    Memory memory(kSlots - 3);
    Ring ring = memory.handle();
    Run run = ring.claim(kSlots);
    CHECK(run.first == kSlots - 3 && run.count == 3);
    ring.publish(3);
    run = ring.claim(kSlots);
    CHECK(run.first == 0 && run.count == kSlots - 3);
    ring.publish(2);
    run = ring.peek(kSlots);
    CHECK(run.first == kSlots - 3 && run.count == 3);
    ring.release(3);
    run = ring.peek(kSlots);
    CHECK(run.first == 0 && run.count == 2);
}

TEST(at_most_high_slots_are_full) {
    Memory memory;
    Ring ring = memory.handle({.slots = kSlots, .slot_bytes = 64, .high = 5, .low = 2});
    for (int lap = 0; lap < 10; ++lap) {
        push(ring, 5);
        CHECK(ring.claim(1).count == 0);
        pop(ring, 1);
        CHECK(ring.claim(9).count == 1);
        pop(ring, 4);
    }
}

TEST(a_producer_sleeps_until_a_full_ring_has_drained_to_low) {
    Memory memory(kWrap - 8);
    Ring consumer = memory.handle();
    WaitPolicy policy = parking();
    std::thread producer([&] {
        Ring ring = memory.handle();
        push(ring, kSlots);
        CHECK(ring.wait_room(1, kForever, policy) == Outcome::kReady);
        CHECK(ring.size() == kGeometry.low);
    });
    const std::uint64_t before = futex_wake_count();
    for (std::uint64_t size = kSlots; size > kGeometry.low; --size) {
        until([&] { return asleep_for(memory.cell.head, size - kGeometry.low); });
        CHECK(futex_wake_count() == before);
        pop(consumer, 1);
    }
    producer.join();
    CHECK(futex_wake_count() == before + 1);
}

TEST(wait_room_waits_for_several_slots) {
    Memory memory;
    Ring ring = memory.handle();
    WaitPolicy policy = parking();
    push(ring, kSlots - 2);
    CHECK(ring.wait_room(2, 1, policy) == Outcome::kReady);
    CHECK(ring.wait_room(3, 1, policy) == Outcome::kTimedOut);
    CHECK(ring.wait_room(kSlots, 1, policy) == Outcome::kTimedOut);
    pop(ring, kSlots - 2);
    CHECK(ring.wait_room(kSlots, 1, policy) == Outcome::kReady);
}

TEST(a_batch_is_one_advance_and_one_wake) {
    Memory memory;
    Ring producer = memory.handle();
    WaitPolicy policy = parking();
    std::thread consumer([&] {
        Ring ring = memory.handle();
        CHECK(ring.wait_ready(6, kForever, policy) == Outcome::kReady);
        CHECK(ring.peek(10).count >= 6);
    });
    const std::uint64_t before = futex_wake_count();
    until([&] { return asleep_for(memory.cell.tail, 6); });
    push(producer, 5);
    CHECK(futex_wake_count() == before);
    until([&] { return asleep_for(memory.cell.tail, 1); });
    push(producer, 2);
    consumer.join();
    CHECK(futex_wake_count() == before + 1);
}

TEST(time_outs_are_never_early) {
    Memory memory;
    Ring ring = memory.handle();
    push(ring, kSlots);
    for (WaitPolicy policy : support::policies()) {
        for (int i = 0; i < 20; ++i) {
            const std::int64_t deadline = now_ns() + i * 20 * kMicrosecond;
            CHECK(ring.wait_ready(kSlots + 1, deadline, policy) == Outcome::kTimedOut);
            CHECK(now_ns() >= deadline);
            CHECK(ring.wait_room(1, deadline + 20 * kMicrosecond, policy) == Outcome::kTimedOut);
            CHECK(now_ns() >= deadline + 20 * kMicrosecond);
        }
    }
}

TEST(without_a_sleeper_no_call_is_a_system_call) {
    Shared<Memory> memory;
    WaitPolicy policy = parking();
    support::check_makes_no_system_call([&] {
        Ring ring = memory->handle();
        for (int i = 0; i < 100; ++i) {
            CHECK(ring.wait_ready(1, 1, policy) == Outcome::kTimedOut);
            CHECK(ring.wait_room(3, kForever, policy) == Outcome::kReady);
            push(ring, 3);
            CHECK(ring.wait_ready(3, kForever, policy) == Outcome::kReady);
            pop(ring, 3);
        }
    });
}

TEST(published_slots_survive_the_producer_and_claimed_ones_do_not) {
    Memory memory;
    Ring ring = memory.handle();
    WaitPolicy policy = parking();
    push(ring, 2);
    CHECK(ring.claim(4).count == 4);
    ring.mark_producer_lost();
    CHECK(ring.producer_lost() && !ring.consumer_lost());
    CHECK(ring.wait_ready(2, kForever, policy) == Outcome::kReady);
    CHECK(ring.wait_ready(3, kForever, policy) == Outcome::kLost);
    pop(ring, 2);
    CHECK(ring.peek(1).count == 0);
    CHECK(ring.wait_ready(1, kForever, policy) == Outcome::kLost);
    ring.clear_lost();
    Ring next = memory.handle();  // continues behind the slots that the dead one published
    CHECK(next.claim(1).first == 2);
    next.publish(1);
    CHECK(ring.wait_ready(1, kForever, policy) == Outcome::kReady);
}

TEST(the_loss_of_the_consumer_is_reported_when_the_ring_is_full) {
    Memory memory;
    Ring ring = memory.handle();
    WaitPolicy policy = parking();
    push(ring, kSlots - 1);
    ring.mark_consumer_lost();
    CHECK(ring.wait_room(1, kForever, policy) == Outcome::kReady);
    push(ring, 1);
    CHECK(ring.wait_room(1, kForever, policy) == Outcome::kLost);
    ring.clear_lost();
    CHECK(ring.wait_room(1, 1, policy) == Outcome::kTimedOut);
}

TEST(a_loss_wakes_either_side) {
    Memory memory;
    std::thread consumer([&] {
        WaitPolicy policy = parking();
        CHECK(memory.handle().wait_ready(1, kForever, policy) == Outcome::kLost);
    });
    until([&] { return memory.cell.tail.armed(); });
    memory.handle().mark_producer_lost();
    consumer.join();

    Ring ring = memory.handle();
    ring.clear_lost();
    push(ring, kSlots);
    std::thread producer([&] {
        WaitPolicy policy = parking();
        CHECK(memory.handle().wait_room(1, kForever, policy) == Outcome::kLost);
    });
    until([&] { return memory.cell.head.armed(); });
    ring.mark_consumer_lost();
    producer.join();
}

TEST(a_second_waiting_consumer_gets_busy_and_replaces_a_killed_one) {
    Shared<Memory> memory;
    Child first([&] {
        WaitPolicy policy = parking();
        static_cast<void>(memory->handle().wait_ready(1, kForever, policy));
    });
    until([&] { return memory->cell.tail.armed(); });
    Ring ring = memory->handle();
    WaitPolicy policy = parking();
    CHECK(ring.wait_ready(1, kForever, policy) == Outcome::kBusy);
    first.send(SIGKILL);
    until([&] { return ring.wait_ready(1, 1, policy) != Outcome::kBusy; });
    push(ring, 1);
    CHECK(ring.wait_ready(1, kForever, policy) == Outcome::kReady);
}

TEST(garbage_positions_are_noticed_and_nothing_is_read) {
    Memory memory;
    Ring ring = memory.handle();
    push(ring, 3);
    CHECK(ring.sound());
    memory.cell.tail.advance(kSlots - 2);  // a fill of one more than the slots
    CHECK(!ring.sound());
    CHECK(ring.peek(1).count == 0);
    CHECK(memory.handle().peek(1).count == 0);
    CHECK(memory.handle().claim(1).count == 0);
    CHECK(ring.size() <= kSlots);
    memory.cell.tail.advance(kWrap / 2);
    CHECK(!ring.sound() && memory.handle().peek(1).count == 0);
    CHECK(memory.handle().claim(1).count == 0);
}

TEST(a_handle_with_stale_positions_reads_them_again) {
    Memory memory;
    Ring old_consumer = memory.handle();
    Ring old_producer = memory.handle();
    Ring ring = memory.handle();
    for (int i = 0; i < 10; ++i) {
        push(ring, kSlots);
        pop(ring, kSlots);
    }
    push(ring, 2);
    CHECK(old_consumer.peek(2).count == 2);
    CHECK(old_producer.claim(kSlots).count > 0);
}

TEST(threads_pass_records_across_the_wrap) {
    for (const WaitPolicy& policy : support::policies()) {
        Memory memory(kWrap - 64);
        const auto count = static_cast<std::uint64_t>(support::rounds(100'000));
        std::thread producer([&] { produce(memory, count, policy); });
        consume(memory, count, policy);
        producer.join();
    }
}

TEST(processes_pass_records_across_the_wrap) {
    for (const WaitPolicy& policy : support::policies()) {
        Shared<Memory> memory(kWrap - 64);
        const auto count = static_cast<std::uint64_t>(support::rounds(100'000));
        Child producer([&] { produce(*memory, count, policy); });
        consume(*memory, count, policy);
        producer.finish();
    }
}

int main(int argc, char** argv) { return check::main(argc, argv); }
