#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <stdexcept>
#include <thread>
#include <vector>

#include "byte_ring.h"
#include "check.h"
#include "segment.h"
#include "support.h"

using namespace pysampler;
using support::Child;
using support::parking;
using support::Random;
using support::until;

namespace {

constexpr std::uint64_t kWrap = 1ULL << 62;
constexpr std::uint64_t kNoLimit = 1ULL << 40;

using Bytes = std::vector<std::byte>;

// A ring of one page in a segment, mapped twice.
class Memory {
 public:
    explicit Memory(std::uint64_t start = 0)
        : segment_(Segment::create(3 * Segment::page())),
          cell_(new (segment_->at(segment_->allocate(sizeof(RingCell)), sizeof(RingCell)))
                    RingCell(start)),
          bytes_(segment_->map_twice(segment_->allocate(capacity(), capacity()), capacity())) {}

    static std::uint64_t capacity() { return Segment::page(); }
    ByteRing handle() const { return ByteRing(cell_, bytes_.get(), capacity()); }
    RingCell& cell() const { return *cell_; }

    // Acts as a hostile producer: writes any header and publishes any number of bytes.
    void forge(std::uint32_t length, std::uint32_t kind, std::uint64_t advance) const {
        const std::array<std::uint32_t, 2> header{length, kind};
        std::memcpy(bytes_.get() + (cell_->tail.own() & (capacity() - 1)), header.data(), 8);
        cell_->tail.post(advance);
    }

 private:
    std::shared_ptr<Segment> segment_;
    RingCell* cell_;
    std::shared_ptr<std::byte> bytes_;
};

// Every byte depends on the message and its place in it.
Bytes message(std::uint64_t number, std::uint64_t size) {
    Bytes bytes(size);
    Random random(number);
    std::uint64_t word = 0;
    for (std::uint64_t i = 0; i < size; ++i) {
        if (i % 8 == 0) word = random.next();
        bytes[i] = static_cast<std::byte>(word >> i % 8 * 8);
    }
    return bytes;
}

std::uint64_t write(ByteRing& ring, const Bytes& bytes, std::int64_t deadline = kForever,
                    Outcome expected = Outcome::kReady) {
    WaitPolicy policy = parking();
    std::uint64_t written = 0;
    CHECK(ring.write(bytes, written, deadline, policy) == expected);
    return written;
}

void read(ByteRing& ring, const Bytes& expected) {
    WaitPolicy policy = parking();
    CHECK(ring.read(kNoLimit, kForever, policy) == Outcome::kReady);
    CHECK(std::ranges::equal(ring.message(), expected));
    ring.release();
    CHECK(ring.message().empty());
}

bool is_corrupt(ByteRing& ring) {
    WaitPolicy policy = parking();
    try {
        static_cast<void>(ring.read(kNoLimit, 1, policy));
    } catch (const CorruptRing&) {
        return true;
    }
    return false;
}

std::uint64_t some_size(Random& random) {
    switch (random.below(4)) {
        case 0:
            return random.below(16);
        case 1:
            return Memory::capacity() - random.below(24);
        case 2:
            return random.below(4 * Memory::capacity());
        default:
            return random.below(300);
    }
}

void write_all(const Memory& memory, std::uint64_t count, WaitPolicy policy) {
    ByteRing ring = memory.handle();
    Random random(5);
    for (std::uint64_t number = 0; number < count; ++number) {
        std::uint64_t written = 0;
        const Bytes bytes = message(number, some_size(random));
        CHECK(ring.write(bytes, written, kForever, policy) == Outcome::kReady);
        CHECK(written == bytes.size());
    }
}

void read_all(const Memory& memory, std::uint64_t count, WaitPolicy policy) {
    ByteRing ring = memory.handle();
    Random random(5);
    for (std::uint64_t number = 0; number < count; ++number) {
        const Bytes expected = message(number, some_size(random));
        CHECK(ring.read(kNoLimit, kForever, policy) == Outcome::kReady);
        CHECK(std::ranges::equal(ring.message(), expected));
        ring.release();
    }
    CHECK(ring.size() == 0);
}

}  // namespace

TEST(a_message_that_fits_is_sent_as_one_record) {
    const Memory memory;
    ByteRing ring = memory.handle();
    CHECK(ring.largest_whole() == Memory::capacity() - 8);
    for (std::uint64_t size = 0; size <= ring.largest_whole(); ++size) {
        const Bytes bytes = message(size, size);
        CHECK(write(ring, bytes) == size);
        CHECK(ring.size() == (size + 8 + 7) / 8 * 8);
        read(ring, bytes);
        CHECK(ring.size() == 0);
    }
}

TEST(messages_follow_each_other_across_the_wrap) {
    const Memory memory(kWrap - 64);
    ByteRing ring = memory.handle();
    constexpr std::uint64_t sizes[] = {0, 1, 7, 8, 9, 500};
    for (std::uint64_t lap = 0; lap < 100; ++lap) {
        for (const std::uint64_t size : sizes) write(ring, message(lap + size, size));
        for (const std::uint64_t size : sizes) read(ring, message(lap + size, size));
    }
}

TEST(a_message_is_read_in_place_until_it_is_released) {
    const Memory memory;
    ByteRing ring = memory.handle();
    WaitPolicy policy = parking();
    write(ring, message(1, 100));
    write(ring, message(2, 50));
    CHECK(ring.read(kNoLimit, kForever, policy) == Outcome::kReady);
    CHECK(ring.read(kNoLimit, kForever, policy) == Outcome::kReady);  // the same one
    CHECK(std::ranges::equal(ring.message(), message(1, 100)));
    CHECK(ring.size() == 112 + 64);
    ring.release();
    CHECK(ring.size() == 64);
    ring.release();  // nothing to release
    read(ring, message(2, 50));
}

TEST(a_larger_message_is_sent_in_parts_while_the_reader_drains) {
    for (std::uint64_t more :
         {std::uint64_t{0}, std::uint64_t{1}, Memory::capacity(), 10 * Memory::capacity() + 3}) {
        const Memory memory(kWrap - 4096);
        const Bytes bytes = message(more, memory.handle().largest_whole() + 1 + more);
        std::thread writer([&] {
            ByteRing ring = memory.handle();
            write(ring, bytes);
            write(ring, message(7, 10));
        });
        ByteRing ring = memory.handle();
        read(ring, bytes);
        read(ring, message(7, 10));
        writer.join();
    }
}

TEST(a_message_that_fits_is_never_sent_in_part) {
    const Memory memory;
    ByteRing ring = memory.handle();
    write(ring, message(1, Memory::capacity() - 100));
    CHECK(write(ring, message(2, 100), 1, Outcome::kTimedOut) == 0);
    read(ring, message(1, Memory::capacity() - 100));
    CHECK(ring.size() == 0);
}

TEST(a_time_out_is_never_early) {
    const Memory memory;
    ByteRing ring = memory.handle();
    for (WaitPolicy policy : support::policies()) {
        const std::int64_t deadline = now_ns() + 300 * kMicrosecond;
        CHECK(ring.read(kNoLimit, deadline, policy) == Outcome::kTimedOut);
        CHECK(now_ns() >= deadline);
    }
    write(ring, message(1, ring.largest_whole()));
    const std::int64_t deadline = now_ns() + 300 * kMicrosecond;
    write(ring, message(2, 1), deadline, Outcome::kTimedOut);
    CHECK(now_ns() >= deadline);
}

TEST(a_message_in_parts_resumes_after_a_time_out) {
    const Memory memory;
    ByteRing writer = memory.handle();
    ByteRing reader = memory.handle();
    WaitPolicy policy = parking();
    const Bytes bytes = message(1, 5 * Memory::capacity());
    std::uint64_t written = 0;
    int tries = 0;
    while (writer.write(bytes, written, 1, policy) != Outcome::kReady) {
        ++tries;
        CHECK(written > 0 && written < bytes.size());
        CHECK(reader.read(kNoLimit, 1, policy) == Outcome::kTimedOut);  // drains and keeps parts
        CHECK(reader.size() == 0);
    }
    CHECK(tries >= 4);
    read(reader, bytes);
}

TEST(a_message_abandoned_half_way_is_dropped) {
    const Memory memory;
    ByteRing writer = memory.handle();
    ByteRing reader = memory.handle();
    WaitPolicy policy = parking();
    for (const bool drained : {false, true}) {
        CHECK(write(writer, message(1, 9 * Memory::capacity()), 1, Outcome::kTimedOut) > 0);
        if (drained) CHECK(reader.read(kNoLimit, 1, policy) == Outcome::kTimedOut);
        std::thread next([&] {
            ByteRing other = memory.handle();  // of the same writer, or of its successor
            write(other, message(2, 3 * Memory::capacity()));
            write(other, message(3, 30));
        });
        read(reader, message(2, 3 * Memory::capacity()));
        read(reader, message(3, 30));
        next.join();
    }
}

TEST(the_end_of_a_message_without_its_beginning_is_dropped) {
    const Memory memory;
    ByteRing ring = memory.handle();
    memory.forge(16, 0, 24);
    memory.forge(16, 2, 24);
    write(ring, message(1, 40));
    read(ring, message(1, 40));
}

TEST(a_loss_is_reported_after_written_messages) {
    const Memory memory;
    ByteRing ring = memory.handle();
    WaitPolicy policy = parking();
    write(ring, message(1, 40));
    ring.mark_producer_lost();
    CHECK(ring.producer_lost());
    read(ring, message(1, 40));
    CHECK(ring.read(kNoLimit, kForever, policy) == Outcome::kLost);
    ring.clear_lost();
    CHECK(ring.read(kNoLimit, 1, policy) == Outcome::kTimedOut);

    ring.mark_consumer_lost();
    CHECK(ring.consumer_lost());
    write(ring, message(2, ring.largest_whole()));
    CHECK(write(ring, message(3, 1), kForever, Outcome::kLost) == 0);
}

TEST(a_loss_wakes_either_side) {
    const Memory memory;
    std::thread reader([&] {
        WaitPolicy policy = parking();
        CHECK(memory.handle().read(kNoLimit, kForever, policy) == Outcome::kLost);
    });
    until([&] { return memory.cell().tail.armed(); });
    memory.handle().mark_producer_lost();
    reader.join();
    std::thread writer([&] {
        ByteRing ring = memory.handle();
        write(ring, message(1, 3 * Memory::capacity()), kForever, Outcome::kLost);
    });
    until([&] { return memory.cell().head.armed(); });
    memory.handle().mark_consumer_lost();
    writer.join();
}

TEST(a_second_reader_gets_busy) {
    const Memory memory;
    std::thread first([&] {
        ByteRing ring = memory.handle();
        read(ring, message(1, 40));
    });
    until([&] { return memory.cell().tail.armed(); });
    ByteRing ring = memory.handle();
    WaitPolicy policy = parking();
    CHECK(ring.read(kNoLimit, kForever, policy) == Outcome::kBusy);
    write(ring, message(1, 40));
    first.join();
}

TEST(corrupt_headers_are_reported_and_nothing_is_read) {
    struct Forgery {
        std::uint32_t length;
        std::uint32_t kind;
        std::uint64_t advance;
    };
    const std::uint64_t capacity = Memory::capacity();
    const Forgery forgeries[] = {
        {9, 3, 16},             // longer than the published bytes
        {0xffff'ffff, 3, 64},   // the largest length
        {0xffff'fff8, 3, 64},   // a length that would wrap around in 32 bits
        {8, 4, 16},             // no such kind
        {8, 0xffff'ffff, 16},   //
        {0, 3, 4},              // less than a header
        {8, 3, capacity + 8},   // more than the ring holds
        {8, 3, kWrap - 16},     // far more
        {8, 3, kWrap / 2 - 1},  //
    };
    for (const Forgery& forgery : forgeries) {
        const Memory memory;
        ByteRing ring = memory.handle();
        memory.forge(forgery.length, forgery.kind, forgery.advance);
        CHECK(is_corrupt(ring) || !memory.cell().tail.reached(1));
        CHECK(ring.message().empty());
        CHECK(ring.size() <= capacity);
        CHECK(is_corrupt(ring) || !memory.cell().tail.reached(1));  // and stays so
    }
}

TEST(a_message_above_the_readers_limit_is_dropped_with_an_error) {
    const Memory memory;
    ByteRing ring = memory.handle();
    WaitPolicy policy = parking();
    write(ring, message(1, 101));
    write(ring, message(2, 100));
    bool thrown = false;
    try {
        static_cast<void>(ring.read(100, kForever, policy));
    } catch (const std::length_error&) {
        thrown = true;
    }
    CHECK(thrown);
    CHECK(ring.read(100, kForever, policy) == Outcome::kReady);
    CHECK(std::ranges::equal(ring.message(), message(2, 100)));
}

TEST(the_message_after_one_in_parts_above_the_limit_is_read) {
    const Memory memory;
    const std::uint64_t limit = 3 * Memory::capacity();
    std::thread writer([&] {
        ByteRing ring = memory.handle();
        write(ring, message(1, limit + 1));
        write(ring, message(2, limit));
    });
    ByteRing ring = memory.handle();
    WaitPolicy policy = parking();
    bool thrown = false;
    try {
        static_cast<void>(ring.read(limit, kForever, policy));
    } catch (const std::length_error&) {
        thrown = true;
    }
    CHECK(thrown);
    CHECK(ring.read(limit, kForever, policy) == Outcome::kReady);
    CHECK(std::ranges::equal(ring.message(), message(2, limit)));
    writer.join();
}

TEST(a_message_above_the_limit_raises_once_whatever_its_number_of_parts) {
    const Memory memory;
    std::thread writer([&] {
        ByteRing ring = memory.handle();
        write(ring, message(1, 5 * Memory::capacity()));
        write(ring, message(2, 10));
    });
    ByteRing ring = memory.handle();
    WaitPolicy policy = parking();
    int errors = 0;
    while (ring.message().empty()) {
        try {
            CHECK(ring.read(100, kForever, policy) == Outcome::kReady);
        } catch (const std::length_error&) {
            ++errors;
        }
    }
    writer.join();
    CHECK(errors == 1);
    CHECK(std::ranges::equal(ring.message(), message(2, 10)));
}

TEST(threads_pass_messages_across_the_wrap) {
    for (const WaitPolicy& policy : support::policies()) {
        const Memory memory(kWrap - 8192);
        const auto count = static_cast<std::uint64_t>(support::rounds(10'000));
        std::thread writer([&] { write_all(memory, count, policy); });
        read_all(memory, count, policy);
        writer.join();
    }
}

TEST(processes_pass_messages_across_the_wrap) {
    for (const WaitPolicy& policy : support::policies()) {
        const Memory memory(kWrap - 8192);
        const auto count = static_cast<std::uint64_t>(support::rounds(10'000));
        Child writer([&] { write_all(memory, count, policy); });
        read_all(memory, count, policy);
        writer.finish();
    }
}

// The writer's waits are short, and it gives up now and then; the reader's waits are short too.
TEST(complete_messages_arrive_between_abandoned_ones) {
    const Memory memory;
    const auto count = static_cast<std::uint64_t>(support::rounds(5'000));
    std::thread writer([&] {
        ByteRing ring = memory.handle();
        WaitPolicy policy = parking();
        policy.set_precise(false);
        Random random(1);
        for (std::uint64_t number = 0; number < count;) {
            const Bytes bytes = message(number, Random(number).below(4 * Memory::capacity()));
            std::uint64_t written = 0;
            const bool patient = random.below(4) != 0;
            Outcome outcome;
            do {
                outcome = ring.write(bytes, written, now_ns() + random.ns_below(20'000), policy);
            } while (outcome != Outcome::kReady && patient);
            if (outcome == Outcome::kReady) ++number;
        }
    });
    ByteRing ring = memory.handle();
    WaitPolicy policy = parking();
    policy.set_precise(false);
    Random random(2);
    for (std::uint64_t number = 0; number < count; ++number) {
        while (ring.read(kNoLimit, now_ns() + random.ns_below(20'000), policy) != Outcome::kReady) {
        }
        const Bytes expected = message(number, Random(number).below(4 * Memory::capacity()));
        CHECK(std::ranges::equal(ring.message(), expected));
        ring.release();
    }
    writer.join();
}

int main(int argc, char** argv) { return check::main(argc, argv); }
