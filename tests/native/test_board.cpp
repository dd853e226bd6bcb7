#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <span>
#include <thread>
#include <vector>

#include "board.h"
#include "check.h"
#include "support.h"

using namespace pysampler;
using support::Child;
using support::parking;
using support::Random;
using support::Shared;
using support::until;

namespace {

constexpr std::uint64_t kWords = 64;
constexpr std::uint32_t kBuffers = 3;

using Words = std::array<std::uint64_t, kWords>;

struct Memory {
    Board handle(std::uint32_t buffers = kBuffers) {
        return Board(&cell, stamps.data(), words.data(), buffers, kWords);
    }
    BoardCell cell;
    std::array<Board::Stamp, kBuffers> stamps;
    std::array<std::atomic<std::uint64_t>, kBuffers * kWords> words{};
};

// Every word depends on the version.
Words contents(std::uint64_t version) {
    Words words;
    Random random(version);
    for (std::uint64_t& word : words) word = random.next();
    return words;
}

void publish(Board& board) {
    const std::uint64_t version = board.begin();
    const Words words = contents(version);
    const std::span<const std::uint64_t> all(words);
    board.write(0, all.first(kWords / 2));
    board.write(kWords / 2, all.subspan(kWords / 2));
    CHECK(board.publish() == version);
}

// Returns the version read, which must be whole and no older than `at_least`; 0 if none was read.
std::uint64_t read(const Board& board, std::uint64_t at_least, int tries = 1000) {
    Words words;
    const std::uint64_t version = board.read(0, words, tries);
    CHECK(version == 0 || (version >= at_least && words == contents(version)));
    return version;
}

void write_all(Memory& memory, std::uint64_t versions, std::uint32_t buffers) {
    Board board = memory.handle(buffers);
    while (board.version() < versions) publish(board);
}

void read_all(Memory& memory, std::uint64_t versions, std::uint32_t buffers, WaitPolicy policy) {
    const Board board = memory.handle(buffers);
    Board waits = memory.handle(buffers);
    for (std::uint64_t seen = 0; seen < versions;) {
        CHECK(waits.wait_version(seen + 1, kForever, policy) == Outcome::kReady);
        const std::uint64_t version = read(board, seen + 1);
        if (version != 0) seen = version;  // else the writer overwrote it every time
    }
}

}  // namespace

TEST(read_returns_nothing_before_the_first_version) {
    Memory memory;
    Board board = memory.handle();
    CHECK(board.version() == 0 && board.words_each() == kWords && board.buffers() == kBuffers);
    CHECK(read(board, 0) == 0);
    CHECK(board.begin() == 1);
    CHECK(read(board, 0) == 0);
    CHECK(board.version() == 0);
}

TEST(the_newest_version_can_be_read_repeatedly) {
    Memory memory;
    Board board = memory.handle();
    for (std::uint64_t version = 1; version <= 20; ++version) {
        publish(board);
        CHECK(board.version() == version);
        CHECK(read(board, version, 1) == version);
        CHECK(read(board, version, 1) == version);
    }
}

TEST(a_part_is_read_from_its_offset) {
    Memory memory;
    Board board = memory.handle();
    publish(board);
    std::array<std::uint64_t, 5> part;
    CHECK(board.read(7, part) == 1);
    const Words all = contents(1);
    CHECK(std::equal(part.begin(), part.end(), all.begin() + 7));
    CHECK(board.read(0, {}) == 1);
}

TEST(a_half_written_version_is_not_visible) {
    Memory memory;
    Board board = memory.handle();
    publish(board);
    board.begin();
    const Words next = contents(2);
    board.write(0, std::span(next).first(10));
    CHECK(read(board, 1, 1) == 1);
    board.write(10, std::span(next).subspan(10));
    CHECK(read(board, 1, 1) == 1);
    board.publish();
    CHECK(read(board, 2, 1) == 2);
}

TEST(a_buffer_that_is_being_overwritten_is_not_read) {
    Memory memory;
    Board board = memory.handle(1);
    publish(board);
    CHECK(read(board, 1, 1) == 1);
    board.begin();
    CHECK(read(board, 1) == 0);
    const Words next = contents(2);
    board.write(0, next);
    CHECK(read(board, 1) == 0);
    board.publish();
    CHECK(read(board, 2, 1) == 2);
}

TEST(any_number_of_readers_wait_for_a_version_and_never_return_early) {
    Memory memory;
    Board board = memory.handle();
    for (WaitPolicy policy : support::policies()) {
        const std::int64_t deadline = now_ns() + 200 * kMicrosecond;
        CHECK(board.wait_version(1, deadline, policy) == Outcome::kTimedOut);
        CHECK(now_ns() >= deadline);
    }
    std::atomic<int> done{0};
    std::vector<std::thread> readers;
    for (int i = 0; i < 3; ++i) {
        readers.emplace_back([&] {
            WaitPolicy policy = parking();
            Board own = memory.handle();
            CHECK(own.wait_version(2, kForever, policy) == Outcome::kReady);
            CHECK(read(own, 2) == 2);
            ++done;
        });
    }
    until([&] { return memory.cell.version.armed(); });
    publish(board);
    CHECK(done == 0);
    publish(board);
    for (std::thread& reader : readers) reader.join();
    WaitPolicy policy = parking();
    CHECK(board.wait_version(1, 1, policy) == Outcome::kReady);
}

TEST(without_a_sleeper_no_call_is_a_system_call) {
    Shared<Memory> memory;
    WaitPolicy policy = parking();
    support::check_makes_no_system_call([&] {
        Board board = memory->handle();
        for (std::uint64_t version = 1; version <= 100; ++version) {
            publish(board);
            CHECK(board.wait_version(version, kForever, policy) == Outcome::kReady);
            CHECK(read(board, version) == version);
        }
    });
}

TEST(losing_the_writer_wakes_readers_and_keeps_its_versions) {
    Memory memory;
    Board board = memory.handle();
    publish(board);
    std::thread reader([&] {
        WaitPolicy policy = parking();
        CHECK(memory.handle().wait_version(2, kForever, policy) == Outcome::kLost);
    });
    until([&] { return memory.cell.version.armed(); });
    board.mark_writer_lost();
    reader.join();
    CHECK(board.writer_lost());
    CHECK(read(board, 1) == 1);
    WaitPolicy policy = parking();
    CHECK(board.wait_version(1, kForever, policy) == Outcome::kReady);
    board.clear_lost();
    CHECK(board.wait_version(2, 1, policy) == Outcome::kTimedOut);
}

TEST(a_writer_that_dies_half_way_is_replaced) {
    Shared<Memory> memory;
    Board board = memory->handle();
    for (std::uint64_t version = 1; version <= 10; ++version) {
        Child dead([&] {
            Board own = memory->handle();
            own.begin();
            const Words other = contents(1000 + version);
            own.write(0, std::span(other).first(30));
            raise(SIGKILL);
        });
        CHECK(WTERMSIG(dead.status()) == SIGKILL);
        CHECK(read(board, version - 1, 1) == version - 1);
        publish(board);
        CHECK(read(board, version, 1) == version);
    }
}

TEST(threads_never_read_a_torn_version) {
    for (const std::uint32_t buffers : {kBuffers, 2U, 1U}) {
        Memory memory;
        const auto versions = static_cast<std::uint64_t>(support::rounds(200'000));
        std::vector<std::thread> readers;
        for (const WaitPolicy& policy : support::policies()) {
            readers.emplace_back([&, policy] { read_all(memory, versions, buffers, policy); });
        }
        write_all(memory, versions, buffers);
        for (std::thread& reader : readers) reader.join();
    }
}

TEST(processes_never_read_a_torn_version) {
    for (const std::uint32_t buffers : {kBuffers, 2U, 1U}) {
        Shared<Memory> memory;
        const auto versions = static_cast<std::uint64_t>(support::rounds(200'000));
        std::vector<Child> readers;
        for (const WaitPolicy& policy : support::policies()) {
            readers.emplace_back([&] { read_all(*memory, versions, buffers, policy); });
        }
        write_all(*memory, versions, buffers);
        for (Child& reader : readers) reader.finish();
    }
}

int main(int argc, char** argv) { return check::main(argc, argv); }
