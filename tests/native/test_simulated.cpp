// The production templates on the simulated platform of sim.h: every schedule and every stale read
// within a budget, then random ones; and each memory order weakened in turn, which a scenario must
// notice.
#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "board.h"
#include "check.h"
#include "doorbell.h"
#include "flag.h"
#include "position.h"
#include "ring.h"
#include "shared_ring.h"
#include "sim.h"
#include "support.h"

using namespace pysampler;
using sim::Budget;
using sim::Plain;
using sim::Policy;
using sim::Sim;
using sim::world;

namespace {

// -- scenarios
// --------------------------------------------------------------------------------------

// A question and its answer, twice, in one place that only two flags protect.
struct Exchange {
    BasicFlag<Sim> there, back;
    Plain<int> record;

    Exchange() {
        world.spawn([this] {
            Policy policy;
            for (int i = 1; i <= 2; ++i) {
                record.write(i);
                world.expect(there.set(), "set twice");
                world.expect(back.wait_until(kForever, policy) == Outcome::kReady, "no answer");
                world.expect(record.read() == -i, "the answer to another question");
                back.clear();
            }
        });
        world.spawn([this] {
            Policy policy;
            for (int i = 1; i <= 2; ++i) {
                world.expect(there.wait_until(kForever, policy) == Outcome::kReady, "no question");
                world.expect(record.read() == i, "another question");
                record.write(-i);
                there.clear();
                back.set();
            }
        });
    }
    void end() { world.expect(!there.is_set() && !back.is_set(), "a flag is left set"); }
};

// A poster that relies on the flag alone and may die; a reaper; a waiter with deadlines in between.
struct MortalPoster {
    BasicFlag<Sim> flag;
    Plain<int> record;
    int cleared = 0;

    MortalPoster() {
        const std::size_t poster = world.spawn(
            [this] {
                for (int i = 1; i <= 2; ++i) {
                    world.until([this, i] { return cleared == i - 1; });
                    while (flag.is_set()) {
                    }
                    record.write(i);
                    flag.set();
                }
            },
            true);
        world.spawn([this, poster] {
            world.until([poster] { return world.over(poster); });
            if (world.killed(poster)) flag.mark_lost();
        });
        world.spawn([this] {
            Policy policy;
            while (cleared < 2) {
                const Outcome outcome = flag.wait_until(cleared == 0 ? 1 : kForever, policy);
                if (outcome == Outcome::kLost) return;
                if (outcome == Outcome::kTimedOut) continue;
                world.expect(record.read() == cleared + 1, "another record");
                flag.clear();
                ++cleared;
            }
        });
    }
    void end() {}
};

// Writes of the other side before clear() or take() are visible after the next set() or post(), and
// a posted result is visible after a take() without a wait.
struct Receipts {
    BasicFlag<Sim> flag;
    BasicDoorbellCell<Sim> cell;
    BasicMember<Sim> member;
    BasicDoorbell<Sim> poster{&cell, &member, 1}, taker{&cell, &member, 1};
    Plain<int> result, by_flag, by_bell;
    bool posted = false, cleared = false, taken = false;

    Receipts() {
        world.spawn([this] {
            flag.set();
            result.write(1);
            poster.post(0, 1);
            posted = true;
            world.until([this] { return cleared; });
            if (flag.set()) world.expect(by_flag.read() == 1, "no receipt");
        });
        world.spawn([this] {
            world.until([this] { return posted; });
            by_flag.write(1);
            flag.clear();
            cleared = true;
        });
        world.spawn([this] {
            world.until([this] { return posted; });
            by_bell.write(1);
            world.expect(taker.take(0), "nothing to take");
            world.expect(result.read() == 1, "no result");
            taken = true;
        });
        world.spawn([this] {
            world.until([this] { return taken; });
            if (poster.post(0, 2)) world.expect(by_bell.read() == 1, "no receipt");
        });
    }
    void end() {}
};

// A waiter lowers its target: posters must not go by the old one.
struct Lower {
    BasicPosition<Sim, Waiters::kOne> position;

    Lower() {
        world.spawn([this] { position.post(1); });
        world.spawn([this] {
            Policy policy;
            position.wait_until(2, 1, policy);
            world.expect(position.wait_until(1, kForever, policy) == Outcome::kReady,
                         "not reached");
        });
    }
    void end() {}
};

// Two posters post once each, one of which may die; a waiter waits for both.
struct Sum {
    BasicPosition<Sim, Waiters::kOne> position;
    std::array<Plain<int>, 2> parts;
    bool lost = false;

    Sum() {
        for (std::size_t i = 0; i < 2; ++i) {
            world.spawn(
                [this, i] {
                    parts[i].write(1);
                    position.post(1);
                },
                i == 0);
        }
        world.spawn([this] {
            world.until([] { return world.over(0); });
            if (world.killed(0)) position.mark_lost();
        });
        world.spawn([this] {
            Policy policy;
            Outcome outcome = Outcome::kTimedOut;
            while (outcome == Outcome::kTimedOut) outcome = position.wait_until(2, 1, policy);
            if (outcome == Outcome::kReady) {
                world.expect(parts[0].read() + parts[1].read() == 2, "a part is missing");
            }
            lost = outcome == Outcome::kLost;
        });
    }
    void end() { world.expect(!lost || world.killed(0), "a loss without a death"); }
};

// Two waiters wait for different positions of one poster.
struct Audience {
    BasicPosition<Sim, Waiters::kMany> position;
    Plain<int> first, second;

    Audience() {
        world.spawn([this] {
            first.write(1);
            if (position.advance(1)) position.wake();
            second.write(1);
            if (position.advance(1)) position.wake();
        });
        for (const std::uint64_t target : {1U, 2U}) {
            world.spawn([this, target] {
                Policy policy;
                world.expect(position.wait_until(target, kForever, policy) == Outcome::kReady,
                             "not reached");
                world.expect((target == 1 ? first : second).read() == 1, "nothing written");
            });
        }
    }
    void end() {}
};

// Two waiters use one place, one after the other; the first may die there.
struct Succession {
    BasicPosition<Sim, Waiters::kOne> position;
    Plain<int> count;

    Succession() {
        for (std::size_t i = 0; i < 2; ++i) world.spawn([this] { wait(); }, i == 0);
        world.spawn([this] {
            count.write(0);
            position.post(1);
        });
    }
    void wait() {
        Policy policy;
        const std::size_t other = 1 - world.current();
        Outcome outcome;
        while ((outcome = position.wait_until(1, 1, policy)) != Outcome::kReady) {
            world.expect(outcome != Outcome::kLost, "a loss without a death");
            if (outcome == Outcome::kBusy) world.until([other] { return world.over(other); });
        }
        world.expect(count.read() == 0, "nothing written");
    }
    void end() {}
};

// Three records through two slots, one at a time or as they come.
struct Pipe {
    static constexpr RingGeometry kGeometry{.slots = 2, .slot_bytes = 4, .high = 2, .low = 1};
    BasicRingCell<Sim> cell;
    std::array<Plain<int>, 2> slots;
    BasicRing<Sim> producer{&cell, kGeometry}, consumer{&cell, kGeometry};

    Pipe() {
        const std::size_t author = world.spawn(
            [this] {
                Policy policy;
                for (int i = 1; i <= 3; ++i) {
                    Run run = producer.claim(1);
                    while (run.count == 0) {
                        world.expect(producer.wait_room(1, kForever, policy) == Outcome::kReady,
                                     "no room");
                        run = producer.claim(1);
                    }
                    slots[run.first].write(i);
                    producer.publish(1);
                }
            },
            true);
        world.spawn([this, author] {
            world.until([author] { return world.over(author); });
            if (world.killed(author)) consumer_side().mark_producer_lost();
        });
        world.spawn([this] {
            Policy policy;
            for (int read = 0; read < 3;) {
                if (consumer.wait_ready(1, kForever, policy) == Outcome::kLost) {
                    world.expect(world.killed(0), "a loss without a death");
                    return;
                }
                const Run run = consumer.peek(2);
                world.expect(run.count > 0, "ready, and nothing there");
                for (std::uint64_t k = 0; k < run.count; ++k) {
                    world.expect(slots[run.first + k].read() == ++read, "another record");
                }
                consumer.release(run.count);
            }
        });
    }
    BasicRing<Sim> consumer_side() { return BasicRing<Sim>(&cell, kGeometry); }
    void end() {}
};

// Two producers, one of which may die, write two records and one into two slots.
struct Pool {
    static constexpr RingGeometry kGeometry{.slots = 2, .slot_bytes = 4, .high = 2, .low = 1};
    BasicSharedRingCell<Sim> cell;
    std::array<Sim::Atomic<std::uint64_t>, 2> owners, words;
    std::array<Plain<int>, 2> slots;
    std::vector<BasicSharedRing<Sim>> handles;
    std::array<int, 2> last{};
    std::array<bool, 2> joined{};
    bool loss_known = false;

    Pool() {
        for (int i = 0; i < 4; ++i) {
            handles.push_back(
                BasicSharedRing<Sim>({&cell, owners.data(), words.data(), 2}, kGeometry));
        }
        for (std::size_t i = 0; i < 2; ++i) world.spawn([this, i] { produce(i); }, i == 0);
        world.spawn([this] {
            world.until([] { return world.over(0); });
            if (world.killed(0)) handles[2].mark_producer_lost(1);
        });
        world.spawn([this] { consume(); });
    }

    void produce(std::size_t i) {
        Policy policy;
        BasicSharedRing<Sim>& ring = handles[i];
        world.expect(ring.join(), "no place");
        joined[i] = true;
        for (int k = 1; k <= (i == 0 ? 2 : 1); ++k) {
            std::optional<std::uint64_t> position;
            while (!(position = ring.claim())) {
                world.expect(ring.wait_room(kForever, policy) == Outcome::kReady, "no room");
            }
            slots[*position % 2].write(static_cast<int>(i) * 10 + k);
            world.expect(ring.publish(*position), "the slot of the living was taken");
            ring.post(1);
        }
    }

    void consume() {
        Policy policy;
        BasicSharedRing<Sim>& ring = handles[3];
        while (!(last[1] == 1 && (last[0] == 2 || loss_known))) {
            Run run = ring.peek(1);
            // Once the dead producer is reaped, an empty ring means that it left nothing more.
            const Outcome outcome =
                run.count == 1 ? Outcome::kReady : ring.wait_ready(1, 1, policy);
            if (outcome == Outcome::kTimedOut) {
                if (world.killed(0) && world.over(2) && ring.peek(1).count == 0) loss_known = true;
                continue;
            }
            if (outcome == Outcome::kLost) {  // all that have joined; the other may still join
                loss_known = true;
                world.until([this] { return joined[1]; });
                continue;
            }
            if (run.count == 0) run = ring.peek(1);
            world.expect(run.count == 1, "ready, and nothing there");
            const int record = slots[run.first].read();
            const auto author = static_cast<std::size_t>(record / 10);
            world.expect(author < 2 && record % 10 == last[author] + 1, "another record");
            last[author] = record % 10;
            ring.release(1);
        }
    }
    void end() {
        world.expect(last[1] == 1, "a record of the living is lost");
        world.expect(last[0] == 2 || world.killed(0), "a record is lost");
    }
};

// Two members, one of which may die, post twice and once; a waiter waits for both.
struct Bell {
    BasicDoorbellCell<Sim> cell;
    std::array<BasicMember<Sim>, 2> members;
    std::array<Plain<int>, 2> results;
    std::vector<BasicDoorbell<Sim>> handles;
    std::array<int, 2> taken{};
    bool lost = false;

    Bell() {
        for (int i = 0; i < 4; ++i) handles.emplace_back(&cell, members.data(), 2);
        for (std::uint32_t i = 0; i < 2; ++i) {
            world.spawn(
                [this, i] {
                    for (int k = 1; k <= (i == 0 ? 2 : 1); ++k) {
                        world.until([this, i, k] { return taken[i] == k - 1; });
                        while (handles[i].is_ready(i)) {
                        }
                        results[i].write(k);
                        handles[i].post(i, k);
                    }
                },
                i == 0);
        }
        world.spawn([this] {
            world.until([] { return world.over(0); });
            if (world.killed(0)) handles[2].mark_lost(0);
        });
        world.spawn([this] { wait(); });
    }

    void wait() {
        Policy policy;
        BasicDoorbell<Sim>& bell = handles[3];
        while (taken[1] < 1 || (taken[0] < 2 && !lost)) {
            const std::uint32_t both = taken[1] == 0 && taken[0] < 2 && !lost ? 2 : 1;
            const Outcome outcome = bell.wait_until(both, kForever, policy);
            if (outcome == Outcome::kLost) {
                world.expect(!lost && bell.lost().size() == 1 && bell.lost()[0] == 0,
                             "reported twice");
                lost = true;
            }
            for (const std::uint32_t i : bell.ready()) {
                world.expect(results[i].read() == taken[i] + 1, "another result");
                world.expect(bell.take(i), "taken twice");
                ++taken[i];
            }
        }
    }
    void end() { world.expect(!lost || world.killed(0), "a loss without a death"); }
};

// Publishes versions 1, 2, and 3 over 1: no read returns a mixture or an older version than before.
struct Wall {
    BasicBoardCell<Sim> cell;
    std::array<BasicBoard<Sim>::Stamp, 2> stamps;
    std::array<Sim::Atomic<std::uint64_t>, 4> words;

    BasicBoard<Sim> board() { return {&cell, stamps.data(), words.data(), 2, 2}; }

    Wall() {
        world.spawn(
            [this] {
                for (std::uint64_t v = 1; v <= 3; ++v) {
                    auto mine = board();
                    mine.begin();
                    mine.write(0, std::array{v, v});
                    mine.publish();
                }
            },
            true);
        world.spawn([this] {
            auto mine = board();
            std::uint64_t last = 0;
            for (int i = 0; i < 2; ++i) {
                std::array<std::uint64_t, 2> copy{};
                const std::uint64_t version = mine.read(0, copy, 2);
                if (version == 0) continue;
                world.expect(copy[0] == copy[1], "torn");
                world.expect(copy[0] == version, "another version");
                world.expect(version >= last, "an older version than before");
                last = version;
            }
        });
    }
    void end() {}
};

// -- budgets of each scenario
// ---------------------------------------------------------------------------

// preemptions, stale reads, kills, early ends of a sleep
const std::vector<sim::Scenario> kScenarios = {
    sim::scenario<Exchange>("exchange", {{3, 0, 0, 0}, {2, 1, 0, 0}, {1, 2, 0, 1}}),
    sim::scenario<MortalPoster>("mortal poster", {{3, 0, 1, 0}, {2, 1, 1, 0}, {1, 2, 1, 1}}),
    sim::scenario<Receipts>("receipts", {{2, 0, 0, 0}, {1, 1, 0, 0}}),
    sim::scenario<Lower>("lower", {{3, 1, 0, 1}, {2, 2, 0, 1}}),
    sim::scenario<Sum>("sum", {{3, 0, 1, 0}, {2, 1, 1, 1}, {1, 2, 1, 0}}),
    sim::scenario<Audience>("audience", {{3, 0, 0, 0}, {2, 1, 0, 1}, {1, 2, 0, 0}}),
    sim::scenario<Succession>("succession", {{3, 0, 1, 0}, {2, 1, 1, 1}, {1, 2, 1, 0}}),
    sim::scenario<Pipe>("pipe", {{3, 0, 1, 0}, {2, 1, 1, 0}, {1, 2, 1, 0}}),
    sim::scenario<Pool>("pool", {{2, 0, 0, 0}, {1, 1, 1, 0}}),
    sim::scenario<Bell>("bell", {{3, 0, 0, 0}, {2, 1, 1, 0}, {1, 2, 1, 0}}),
    sim::scenario<Wall>("wall", {{3, 0, 1, 0}, {2, 2, 0, 0}, {1, 3, 0, 0}}),
};

// Memory orders that no scenario here needs.
const std::vector<sim::Spare> kSpare = {
    {"board.h", "publish", "advance() releases too; the stamp is read before the version says so"},
    {"board.h", "read", "the version was acquired before"},
    {"shared_ring.h", "claim", "the load, the exchange and the head's position each acquire it"},
    {"shared_ring.h", "free", "pass() releases too"},
    {"shared_ring.h", "aborted", "is() and free() order it too"},
    {"producers.h", "gone", "aborted() has acquired the claim, which comes after join()"},
    {"producers.h", "take_place", "rare"},
    {"producers.h", "mark_lost", "rare"},
    {"producers.h", "all_lost", "rare"},
    {"producers.h", "reap", "rare"},
    {"waiter.h", "claim", "orders the stores to target_: here no store is ever late"},
    {"waiter.h", "leave", "likewise"},
};

}  // namespace

TEST(all_executions_within_the_budgets_succeed) { sim::check_within_budgets(kScenarios); }

TEST(random_executions_succeed) { sim::check_at_random(kScenarios); }

TEST(weakening_any_memory_order_fails_a_scenario) {
    sim::check_that_orders_are_missed(kScenarios, kSpare);
}

int main(int argc, char** argv) { return check::main(argc, argv); }
