// Kills processes at random points of their work, some after stopping them, some while others are
// stopped. PYSAMPLER_FAULT_ROUNDS sets how many die in each test, PYSAMPLER_FAULT_SEED where; both
// are printed.
#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <thread>
#include <vector>

#include "board.h"
#include "check.h"
#include "doorbell.h"
#include "flag.h"
#include "ring.h"
#include "shared_ring.h"
#include "support.h"
#include "watch.h"

using namespace pysampler;
using support::Child;
using support::Random;
using support::Record;
using support::Shared;
using support::until;

namespace {

using Steps = std::atomic<std::uint64_t>;

std::uint64_t setting(const char* name, std::uint64_t otherwise) {
    const char* value = std::getenv(name);
    return value ? std::strtoull(value, nullptr, 0) : otherwise;
}

const std::uint64_t kRounds = setting("PYSAMPLER_FAULT_ROUNDS", support::kSanitized ? 20 : 60);
const std::uint64_t kSeed = setting("PYSAMPLER_FAULT_SEED", 1);

constexpr std::uint64_t kSlots = 16;
constexpr RingGeometry kGeometry{
    .slots = kSlots, .slot_bytes = sizeof(Record), .high = kSlots, .low = 8};

std::vector<std::int64_t> notices;  // from a kill to its notice

// Kills one process from a thread, while the caller continues.
class Killer {
 public:
    // Kills it a little after `steps` has reached `at`. Stops `other`, if any, meanwhile.
    Killer(const Child& victim, const Steps& steps, std::uint64_t at, const Child* other,
           Random& random)
        : pid_(victim.pid()),
          thread_([this, &steps, at, other = other ? other->pid() : 0,
                   before = random.ns_below(60 * kMicrosecond),
                   after = random.ns_below(500 * kMicrosecond), stop = random.below(4) == 0] {
              until([&] { return steps >= at; });
              if (other != 0) kill(other, SIGSTOP);
              if (stop) kill(pid_, SIGSTOP);
              support::spin_for(before);
              killed_at_ = now_ns();
              kill(pid_, SIGKILL);
              if (other == 0) return;
              support::spin_for(after);
              kill(other, SIGCONT);
          }) {}
    Killer(const Killer&) = delete;

    // Waits until the watch has noticed. False if the victim had finished before the kill.
    bool noticed(const Watch& watch) {
        thread_.join();
        std::optional<Loss> loss;
        until([&] {
            for (const Loss& known : watch.losses()) {
                if (known.pid == pid_) loss = known;
            }
            return loss.has_value();
        });
        if (loss->signal != SIGKILL) return false;
        CHECK(loss->noticed_at >= killed_at_);
        notices.push_back(loss->noticed_at - killed_at_);
        return true;
    }

 private:
    pid_t pid_;
    std::int64_t killed_at_ = 0;
    std::thread thread_;
};

void copy_slowly(Record& to, const Record& from, Steps& steps) {
    auto* words = reinterpret_cast<std::uint64_t*>(&to);
    const auto* source = reinterpret_cast<const std::uint64_t*>(&from);
    for (std::size_t i = 0; i < sizeof(Record) / 8; ++i) {
        words[i] = source[i];
        if (i % 4 == 0) ++steps;  // so that a kill may come between the halves
    }
}

// Checks that `body` leaves no descriptor open and no child behind.
template <class Body>
void leaves_nothing(Body&& body) {
    const std::size_t fds = support::open_fds();
    body();
    CHECK(support::open_fds() == fds);
    CHECK(support::no_child_left());
}

// -- a shared ring and its producers --------------------------------------------------------------

struct Pool {
    static constexpr std::uint32_t kProducers = 3;
    static constexpr std::uint64_t kRecords = 150;  // of each producer

    explicit Pool(std::uint64_t start) : cell(start) { handle().start_at(start); }
    SharedRing handle() {
        return SharedRing({&cell, owners.data(), words.data(), kProducers}, kGeometry);
    }

    SharedRingCell cell;
    std::array<std::atomic<std::uint64_t>, kProducers> owners{};
    std::array<std::atomic<std::uint64_t>, kSlots> words{};
    std::array<Record, kSlots> slots;
    std::array<Steps, kProducers> steps{};
};

// Claims slots, fills them, publishes them in either order, and posts even later.
void produce(Pool& pool, std::uint64_t author, std::uint64_t seed) {
    SharedRing ring = pool.handle();
    WaitPolicy policy;
    Random random(seed);
    Steps& steps = pool.steps[author];
    CHECK(ring.join());
    std::uint64_t unposted = 0;
    for (std::uint64_t number = 0; number < Pool::kRecords;) {
        std::vector<std::uint64_t> claimed;
        for (std::uint64_t i = random.below(3); i < 3 && number < Pool::kRecords; ++i) {
            const std::optional<std::uint64_t> position = ring.claim();
            if (!position) break;
            ++steps;
            copy_slowly(pool.slots[*position % kSlots], Record(author, number++), steps);
            claimed.push_back(*position);
        }
        if (random.below(2) == 0) std::ranges::reverse(claimed);
        for (const std::uint64_t position : claimed) {
            CHECK(ring.publish(position));
            ++steps;
        }
        unposted += claimed.size();
        if (claimed.empty() || random.below(2) == 0) {
            ring.post(unposted);
            unposted = 0;
        }
        if (claimed.empty()) CHECK(ring.wait_room(kForever, policy) == Outcome::kReady);
    }
    ring.post(unposted);
    ring.leave();
}

TEST(a_shared_ring_survives_killed_producers) {
    leaves_nothing([] {
        Random random(kSeed + 1);
        Shared<Pool> pool((1ULL << 62) - 1000);
        SharedRing ring = pool->handle();
        SharedRing reaper = pool->handle();
        Watch watch;
        WaitPolicy policy;
        std::uint64_t killed = 0;
        for (std::uint64_t round = 0; round < kRounds; ++round) {
            std::array<Child, Pool::kProducers> producers;
            for (std::uint64_t i = 0; i < producers.size(); ++i) {
                pool->steps[i] = 0;
                const std::uint64_t seed = random.next();
                producers[i] = Child([&] { produce(*pool, i, seed); });
            }
            for (const Child& producer : producers) {
                watch.add(producer.pid(),
                          [&reaper, pid = producer.pid()] { reaper.mark_producer_lost(pid); });
            }
            const std::uint64_t victim = random.below(3);
            const std::uint64_t other = (victim + 1 + random.below(2)) % 3;
            Killer killer(producers[victim], pool->steps[victim], random.below(2 * Pool::kRecords),
                          random.below(2) == 0 ? &producers[other] : nullptr, random);

            std::array<std::uint64_t, Pool::kProducers> next{};
            const auto drain = [&] {
                const Run run = ring.peek(1 + random.below(5));
                for (std::uint64_t i = 0; i < run.count; ++i) {
                    const Record record = pool->slots[run.first + i];
                    CHECK(record.whole() && record.author() < next.size());
                    std::uint64_t& expected = next[record.author()];
                    // The victim may have claimed earlier slots without publishing them.
                    CHECK(record.author() == victim ? record.number() >= expected
                                                    : record.number() == expected);
                    expected = record.number() + 1;
                }
                ring.release(run.count);
                return run.count > 0;
            };
            const auto missing = [&] {
                for (std::uint64_t i = 0; i < next.size(); ++i) {
                    if (i != victim && next[i] < Pool::kRecords) return true;
                }
                return false;
            };
            while (missing()) {
                const Outcome outcome = ring.wait_ready(1, kForever, policy);
                // Lost: the first producer to join died before the others joined.
                CHECK(outcome == Outcome::kReady || outcome == Outcome::kLost);
                while (drain()) {
                }
            }
            // The victim may wait for room before it reaches the point where it dies, so keep
            // reading; or it may have left, and then nothing comes.
            const auto known = [&] { return watch.losses().size() > 3 * round + 2; };
            while (!known()) {
                static_cast<void>(ring.wait_ready(1, now_ns() + kMillisecond, policy));
                while (drain()) {
                }
            }
            killed += killer.noticed(watch);
            for (std::uint64_t i = 0; i < producers.size(); ++i) {
                if (i != victim) producers[i].finish();
            }
            while (drain()) {
            }
            CHECK(ring.size() == 0);
        }
        CHECK(killed > 0 || kRounds < 10);
    });
}

// -- a ring and its producer ----------------------------------------------------------------------

struct Pipe {
    Ring handle() { return Ring(&cell, kGeometry); }
    RingCell cell;
    std::array<Record, kSlots> slots;
    Steps steps{0};
};

TEST(a_killed_producer_leaves_exactly_its_published_records) {
    leaves_nothing([] {
        Random random(kSeed + 2);
        Shared<Pipe> pipe;
        Ring ring = pipe->handle();
        Watch watch;
        WaitPolicy policy;
        std::uint64_t number = 0;
        for (std::uint64_t round = 0; round < kRounds; ++round) {
            const std::uint64_t seed = random.next();
            Child producer([&] {
                Ring own = pipe->handle();
                WaitPolicy waits;
                Random choice(seed);
                for (std::uint64_t next = own.published();;) {
                    const std::uint64_t want = 1 + choice.below(6);
                    CHECK(own.wait_room(want, kForever, waits) == Outcome::kReady);
                    const Run run = own.claim(want);
                    for (std::uint64_t i = 0; i < run.count; ++i) {
                        copy_slowly(pipe->slots[run.first + i], Record(seed, next++), pipe->steps);
                    }
                    own.publish(run.count);
                    ++pipe->steps;
                }
            });
            watch.add(producer.pid(), [&] { pipe->handle().mark_producer_lost(); });
            Killer killer(producer, pipe->steps, pipe->steps + random.below(400), nullptr, random);
            for (;;) {
                const Outcome outcome = ring.wait_ready(1 + random.below(6), kForever, policy);
                const Run run = ring.peek(kSlots);
                for (std::uint64_t i = 0; i < run.count; ++i) {
                    CHECK(pipe->slots[run.first + i] == Record(seed, number++));
                }
                ring.release(run.count);
                if (outcome == Outcome::kLost && run.count == 0) break;
            }
            CHECK(killer.noticed(watch));
            CHECK(number == ring.published());
            ring.clear_lost();
        }
    });
}

// -- a flag and its waiter ------------------------------------------------------------------------

struct Desk {
    Flag command;
    Flag reply;
    Record record;
    std::atomic<std::uint64_t> done{0};
    Steps steps{0};
};

[[noreturn]] void serve(Desk& desk) {
    WaitPolicy policy = support::parking();
    for (;;) {
        CHECK(desk.command.wait_until(kForever, policy) == Outcome::kReady);
        ++desk.steps;
        CHECK(desk.record.whole());
        desk.done = desk.record.number();
        ++desk.steps;
        CHECK(desk.command.clear());
        ++desk.steps;
        CHECK(desk.reply.set());
    }
}

TEST(replacing_a_flags_killed_waiter_loses_no_post) {
    leaves_nothing([] {
        Random random(kSeed + 3);
        Shared<Desk> desk;
        Watch watch;
        WaitPolicy policy;
        Child server;
        std::optional<Killer> killer;
        const auto employ = [&] {
            server = Child([&] { serve(*desk); });
            watch.add(server.pid(), [&] { desk->reply.mark_lost(); });
            killer.emplace(server, desk->steps, desk->steps + random.below(60), nullptr, random);
        };
        employ();
        std::uint64_t number = 0;
        for (std::uint64_t killed = 0; killed < kRounds;) {
            support::spin_for(random.ns_below(50 * kMicrosecond));  // so that it sleeps, or not yet
            desk->record = Record(1, ++number);
            CHECK(desk->command.set());
            for (;;) {
                const Outcome outcome = desk->reply.wait_until(kForever, policy);
                if (outcome == Outcome::kReady) {
                    CHECK(desk->reply.clear());
                    break;
                }
                CHECK(outcome == Outcome::kLost);
                CHECK(killer->noticed(watch));
                desk->reply.clear_lost();
                ++killed;
                const bool cleared = !desk->command.is_set();
                employ();
                if (cleared) break;  // the server died between its work and the reply
            }
            CHECK(desk->done == number && !desk->command.is_set());
        }
        // Lets the killer of the last server finish.
        desk->steps = ~0ULL;
        CHECK(killer->noticed(watch));
    });
}

// -- a doorbell and its members -------------------------------------------------------------------

struct Bell {
    static constexpr std::uint32_t kMembers = 4;
    Doorbell handle() { return Doorbell(&cell, members.data(), kMembers); }

    Doorbell::Cell cell;
    std::array<Doorbell::Member, kMembers> members;
    std::array<Flag, kMembers> go;
    std::array<std::uint64_t, kMembers> numbers{};
    std::array<Record, kMembers> records;
    std::array<Steps, kMembers> steps{};
};

[[noreturn]] void work(Bell& shared, std::uint32_t i) {
    Doorbell bell = shared.handle();
    WaitPolicy policy;
    for (;;) {
        CHECK(shared.go[i].wait_until(kForever, policy) == Outcome::kReady);
        ++shared.steps[i];
        CHECK(shared.go[i].clear());
        copy_slowly(shared.records[i], Record(i, shared.numbers[i]), shared.steps[i]);
        CHECK(bell.post(i, now_ns()));
        ++shared.steps[i];
    }
}

TEST(killed_members_of_a_doorbell_are_revived) {
    leaves_nothing([] {
        Random random(kSeed + 4);
        Shared<Bell> shared;
        Doorbell bell = shared->handle();
        Doorbell reaper = shared->handle();
        Watch watch;
        WaitPolicy policy;
        std::array<Child, Bell::kMembers> members;
        std::optional<Killer> killer;
        std::uint32_t victim = 0;
        const auto employ = [&](std::uint32_t i) {
            members[i] = Child([&] { work(*shared, i); });
            watch.add(members[i].pid(), [&reaper, i] { reaper.mark_lost(i); });
            CHECK(shared->go[i].set());
        };
        const auto condemn = [&] {
            victim = static_cast<std::uint32_t>(random.below(Bell::kMembers));
            const std::uint64_t other = (victim + 1 + random.below(3)) % Bell::kMembers;
            killer.emplace(members[victim], shared->steps[victim],
                           shared->steps[victim] + random.below(60),
                           random.below(2) == 0 ? &members[other] : nullptr, random);
        };
        const auto take = [&](std::uint32_t i) {
            CHECK(shared->records[i] == Record(i, shared->numbers[i]));
            CHECK(bell.take(i));
            ++shared->numbers[i];
        };
        for (std::uint32_t i = 0; i < Bell::kMembers; ++i) employ(i);
        condemn();
        for (std::uint64_t killed = 0; killed < kRounds;) {
            const auto want = static_cast<std::uint32_t>(1 + random.below(Bell::kMembers));
            const Outcome outcome = bell.wait_until(want, kForever, policy);
            if (outcome == Outcome::kReady) {
                CHECK(bell.lost().empty() && bell.ready().size() >= want);
                for (const std::uint32_t i : bell.ready()) {
                    take(i);
                    CHECK(shared->go[i].set());
                }
                continue;
            }
            CHECK(outcome == Outcome::kLost);
            CHECK(bell.lost().size() == 1 && bell.lost()[0] == victim);
            CHECK(killer->noticed(watch));
            ++killed;
            if (bell.is_ready(victim)) take(victim);  // a result survives its author
            shared->go[victim].clear();
            bell.revive(victim);
            employ(victim);
            condemn();
        }
        shared->steps[victim] = 1ULL << 63;
        CHECK(killer->noticed(watch));
    });
}

// -- a board and its writer -----------------------------------------------------------------------

struct Wall {
    static constexpr std::uint64_t kWords = 256;
    static std::uint64_t word(std::uint64_t version, std::uint64_t i) {
        return Random(version << 16 ^ i).next();
    }
    Board handle() { return Board(&cell, stamps.data(), words.data(), 3, kWords); }

    BoardCell cell;
    std::array<Board::Stamp, 3> stamps;
    std::array<std::atomic<std::uint64_t>, 3 * kWords> words{};
    Steps steps{0};
};

TEST(replacing_a_boards_killed_writer_exposes_no_half_version) {
    leaves_nothing([] {
        Random random(kSeed + 5);
        Shared<Wall> wall;
        Board board = wall->handle();
        Watch watch;
        WaitPolicy policy;
        std::uint64_t seen = 0;
        for (std::uint64_t round = 0; round < kRounds; ++round) {
            Child writer([&] {
                Board own = wall->handle();
                for (;;) {
                    const std::uint64_t version = own.begin();
                    for (std::uint64_t i = 0; i < Wall::kWords; ++i) {
                        own.write(i, std::array{Wall::word(version, i)});
                        if (i % 8 == 0) ++wall->steps;
                    }
                    own.publish();
                }
            });
            watch.add(writer.pid(), [&] { wall->handle().mark_writer_lost(); });
            Killer killer(writer, wall->steps, wall->steps + random.below(1000), nullptr, random);
            for (;;) {
                const Outcome outcome = board.wait_version(seen + 1, kForever, policy);
                if (outcome == Outcome::kLost) break;
                CHECK(outcome == Outcome::kReady);
                std::array<std::uint64_t, Wall::kWords> words;
                const std::uint64_t version = board.read(0, words);
                if (version == 0) continue;  // the writer overwrote it every time
                CHECK(version > seen);
                for (std::uint64_t i = 0; i < Wall::kWords; ++i) {
                    CHECK(words[i] == Wall::word(version, i));
                }
                seen = version;
            }
            CHECK(killer.noticed(watch));
            CHECK(board.version() == seen);
            board.clear_lost();
        }
    });
}

}  // namespace

int main(int argc, char** argv) {
    std::printf("PYSAMPLER_FAULT_ROUNDS=%llu PYSAMPLER_FAULT_SEED=%llu\n",
                static_cast<unsigned long long>(kRounds), static_cast<unsigned long long>(kSeed));
    std::fflush(stdout);
    const int result = check::main(argc, argv);
    if (!notices.empty()) {
        std::ranges::sort(notices);
        const auto us = [](std::size_t i) { return static_cast<double>(notices[i]) / 1e3; };
        std::printf("from kill to notice: p50 %.0f us, p99 %.0f us, max %.0f us, of %zu\n",
                    us(notices.size() / 2), us(notices.size() * 99 / 100), us(notices.size() - 1),
                    notices.size());
    }
    return result;
}
