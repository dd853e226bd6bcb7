// A pool's commands and completions (pool.h, pool_worker.h) on the simulated platform of sim.h:
// every schedule and every stale read within a budget, a death at every access, then at random; and
// each memory order weakened in turn.
#include <array>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <vector>

#include "byte_ring.h"
#include "check.h"
#include "pool.h"
#include "pool_worker.h"
#include "segment.h"
#include "sim.h"

using namespace pysampler;
using sim::Plain;
using sim::Policy;
using sim::Sim;
using sim::world;

namespace {

constexpr std::uint32_t kEnd = 7;  // a kind of command that ends the worker
constexpr std::uint64_t kAll = ~std::uint64_t{0};

// The inbox bytes of each worker, mapped twice in a row. Bytes left over from the last execution
// are never read, since each execution begins with fresh cells.
std::byte* inbox_bytes(std::size_t worker) {
    static const auto segment = Segment::create(4 * Segment::page());
    static const std::array<std::shared_ptr<std::byte>, 2> mapped = {
        segment->map_twice(segment->allocate(Segment::page(), Segment::page()), Segment::page()),
        segment->map_twice(segment->allocate(Segment::page(), Segment::page()), Segment::page())};
    return mapped[worker].get();
}

// A pool whose workers have one group each, with plain memory beside it for the frames' content.
template <std::size_t workers, std::size_t slots>
struct Shared {
    std::array<BasicRingCell<Sim>, workers> command_cells, inbox_cells;
    std::array<std::array<Plain<Command>, slots>, workers> commands;
    BasicDoorbellCell<Sim> bell;
    std::array<BasicMember<Sim>, workers> members;
    std::array<Plain<Completion>, workers> completions;
    std::array<Plain<int>, workers> actions, results;

    BasicPoolParts<Sim> parts() {
        BasicPoolParts<Sim> parts{.commands = {},
                                  .geometry = {slots, sizeof(Command), slots, slots - 1},
                                  .bell = &bell,
                                  .members = members.data(),
                                  .completions = completions.data(),
                                  .groups = workers,
                                  .fan = fan};
        for (std::size_t i = 0; i < workers; ++i) {
            parts.commands.push_back({&command_cells[i], commands[i].data()});
        }
        return parts;
    }
    std::vector<BasicInbox<Sim>> inboxes() {
        std::vector<BasicInbox<Sim>> all;
        for (std::size_t i = 0; i < workers; ++i) {
            all.push_back({&inbox_cells[i], inbox_bytes(i), Segment::page()});
        }
        return all;
    }
    std::uint32_t fan = 4;
    BasicPool<Sim> pool(const std::vector<std::uint64_t>& weights) {
        return {parts(), inboxes(), std::vector<std::uint32_t>(workers, 1), weights};
    }
    BasicByteRing<Sim> inbox(std::size_t worker) {
        return {&inbox_cells[worker], inbox_bytes(worker), Segment::page()};
    }

    // The next command of a worker; nullopt if the parent is lost.
    std::optional<Command> next(BasicPoolWorker<Sim>& worker) {
        Policy policy;
        for (;;) {
            if (const std::optional<Command> command = worker.next()) return command;
            if (worker.wait(kForever, policy) == Outcome::kLost) return std::nullopt;
        }
    }
    std::string message(BasicByteRing<Sim>& inbox) {
        Policy policy;
        world.expect(inbox.read(kAll, kForever, policy) == Outcome::kReady, "no message");
        const auto bytes = inbox.message();
        std::string text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
        inbox.release();
        return text;
    }

    // Answers each action with its negative, until kEnd.
    void serve(std::uint32_t group) {
        BasicPoolWorker<Sim> worker(parts(), group);
        for (std::uint32_t number = 0;;) {
            const std::optional<Command> command = next(worker);
            if (!command || command->kind == kEnd) return;
            world.expect(command->group == group, "a command of another group");
            world.expect(number == 0 || command->number == number + 1, "a command is missing");
            number = command->number;
            world.expect(static_cast<int>(command->frame) == actions[group].read(),
                         "the action of another step");
            results[group].write(-actions[group].read());
            world.expect(worker.complete(group, number % 2 == 0, static_cast<int>(number)),
                         "completed twice");
        }
    }
    void act(BasicPool<Sim>& pool, std::uint32_t group, std::uint32_t step) {
        actions[group].write(static_cast<int>(step));
        pool.send({group, Command::kStep, step});
    }
    void check_result(BasicPool<Sim>& pool, std::uint32_t group) {
        world.expect(results[group].read() == -static_cast<int>(pool.frame_of(group)),
                     "the result of another step");
    }
    void end_workers(BasicPool<Sim>& pool) {
        for (std::uint32_t group = 0; group < workers; ++group) {
            pool.send({group, kEnd, 0});
            pool.take(group);  // the worker does not answer
        }
    }
};

// Two workers step at the same time.
struct Together : Shared<2, 2> {
    BasicPool<Sim> pool = Shared::pool({1, 1});

    Together() {
        world.spawn([this] {
            Policy policy;
            for (std::uint32_t group = 0; group < 2; ++group) act(pool, group, 1);
            world.expect(pool.wait(kForever, policy) == Outcome::kReady, "not back");
            world.expect(pool.back(kAll).size() == 2, "fewer than all");
            for (std::uint32_t group = 0; group < 2; ++group) {
                check_result(pool, group);
                pool.take(group);
            }
            end_workers(pool);
        });
        for (std::uint32_t group = 0; group < 2; ++group) {
            world.spawn([this, group] { serve(group); });
        }
    }
    void end() { world.expect(pool.pending() == 0, "something is left"); }
};

// A worker steps twice, with a message after the second; the parent may die.
struct Orphan : Shared<1, 2> {
    BasicPool<Sim> pool = Shared::pool({1});

    Orphan() {
        world.spawn(
            [this] {
                Policy policy;
                for (std::uint32_t step = 1; step <= 2; ++step) {
                    act(pool, 0, step);
                    world.expect(pool.wait(kForever, policy) == Outcome::kReady, "not back");
                    world.expect(pool.with_message(kAll).size() == step - 1,
                                 "the message of another step");
                    check_result(pool, 0);
                    pool.take(0);
                }
                end_workers(pool);
            },
            true);
        world.spawn([this] { serve(0); });
        world.spawn([this] {  // in the worker: watches the parent
            world.until([] { return world.over(0); });
            if (world.killed(0)) command_cells[0].tail.mark_lost();
        });
    }
    void end() { world.expect(pool.pending() == 0 || world.killed(0), "something is left"); }
};

// Two workers step. If both sleep, the first wakes the second, unless it dies before.
struct Relay : Shared<2, 2> {
    BasicPool<Sim> pool;

    Relay() : pool(made()) {
        world.spawn([this] { serve(0); }, true);
        world.spawn([this] { serve(1); });
        world.spawn([this] {
            for (std::uint32_t group = 0; group < 2; ++group) actions[group].write(1);
            pool.send_all(Command::kStep, 1, 1, [](std::uint32_t) {});
            Policy policy;
            if (pool.wait(kForever, policy) == Outcome::kLost) {
                world.expect(world.killed(0), "a loss without a death");
                pool.take(0);
                pool.forget_losses();
                world.expect(pool.wait(kForever, policy) == Outcome::kReady, "not back");
            } else {
                check_result(pool, 0);
                pool.take(0);
            }
            check_result(pool, 1);
            pool.take(1);
            end_workers(pool);
        });
        world.spawn([this] {
            world.until([] { return world.over(0); });
            if (world.killed(0)) pool.on_death(0)();
        });
    }
    BasicPool<Sim> made() {
        fan = 1;
        return Shared::pool({1, 1});
    }
    void end() { world.expect(pool.pending() == 0, "something is left"); }
};

// The same, but the parent replaces the first worker before any wait has found its loss.
struct RelayRenewed : Shared<2, 2> {
    BasicPool<Sim> pool;
    bool marked = false, replaced = false, done = false;

    RelayRenewed() : pool(made()) {
        world.spawn([this] { serve(0); }, true);
        world.spawn([this] { serve(1); });
        world.spawn([this] {
            for (std::uint32_t group = 0; group < 2; ++group) actions[group].write(1);
            pool.send_all(Command::kStep, 1, 1, [](std::uint32_t) {});
            world.until([this] { return marked || (members[0].state.truth() & 1) != 0; });
            if (marked) replace();
            Policy policy;
            if (pool.wait(kForever, policy) == Outcome::kLost) {
                world.expect(!replaced, "the replacement is lost");
                world.until([this] { return marked; });
                replace();
                world.expect(pool.wait(kForever, policy) == Outcome::kReady, "not back");
            }
            for (std::uint32_t group = 0; group < 2; ++group) {
                check_result(pool, group);
                pool.take(group);
            }
            end_workers(pool);
            done = true;
        });
        world.spawn([this] {
            world.until([] { return world.over(0); });
            if (!world.killed(0)) return;
            pool.on_death(0)();
            marked = true;
            world.until([this] { return replaced || done; });
            if (replaced) serve(0);
        });
    }
    void replace() {
        world.after(0);
        pool.renew(0);
        replaced = true;
        if (pool.in_flight(0)) pool.resend(0, std::nullopt);
    }
    BasicPool<Sim> made() {
        fan = 1;
        return Shared::pool({1, 1});
    }
    void end() { world.expect(pool.pending() == 0, "something is left"); }
};

// Groups of different weights come back in any order, with deadlines in between.
struct Some : Shared<2, 2> {
    BasicPool<Sim> pool = Shared::pool({1, 3});
    std::array<int, 2> returned{};

    Some() {
        world.spawn([this] {
            Policy policy;
            for (std::uint32_t group = 0; group < 2; ++group) act(pool, group, 1);
            collect(3, policy);
            world.expect(returned[1] == 1, "lighter than asked for");
            if (returned[0] == 1) act(pool, 0, 2);
            while (pool.pending() > 0) collect(1, policy);
            end_workers(pool);
        });
        for (std::uint32_t group = 0; group < 2; ++group) {
            world.spawn([this, group] { serve(group); });
        }
    }
    void collect(std::uint64_t weight, Policy& policy) {
        while (pool.wait_some(weight, 1, policy) == Outcome::kTimedOut) {
        }
        std::int64_t last = 0;
        for (const std::uint32_t group : pool.back(kAll)) {
            const std::int64_t at = members[group].posted_at.truth();
            world.expect(at >= last, "not longest ready first");
            last = at;
            check_result(pool, group);
            pool.take(group);
            ++returned[group];
        }
    }
    void end() { world.expect(pool.pending_weight() == 0, "something is left"); }
};

// A worker steps twice, may die, and is replaced.
struct Replacement : Shared<1, 2> {
    BasicPool<Sim> pool = Shared::pool({1});
    bool marked = false, replaced = false, done = false;

    Replacement() {
        world.spawn([this] {
            for (std::uint32_t step = 1; step <= 2; ++step) {
                act(pool, 0, step);
                wait();
                check_result(pool, 0);
                pool.take(0);
            }
            end_workers(pool);
            done = true;
        });
        world.spawn([this] { serve(0); }, true);
        world.spawn([this] {  // the reaper, then the replacement
            world.until([] { return world.over(1); });
            if (!world.killed(1)) return;
            pool.on_death(0)();
            marked = true;
            world.until([this] { return replaced || done; });
            if (replaced) serve(0);
        });
    }
    void wait() {
        Policy policy;
        for (;;) {
            const Outcome outcome = pool.wait(kForever, policy);
            if (outcome == Outcome::kReady) return;
            world.expect(outcome == Outcome::kLost, "neither ready nor lost");
            world.expect(pool.wait(kForever, policy) == Outcome::kLost, "reported once only");
            world.expect(world.killed(1) && !replaced, "a loss without a death");
            world.until([this] { return marked; });  // like Watch::settle()
            world.after(1);
            pool.renew(0);
            replaced = true;
            pool.resend(0, std::nullopt);
        }
    }
    void end() { world.expect(pool.pending() == 0, "something is left"); }
};

// Notes and a message larger than the inbox, through a ring of two slots, to a worker that may die.
struct Full : Shared<1, 2> {
    static constexpr std::size_t kLarge = 6000;
    BasicPool<Sim> pool = Shared::pool({1});
    Plain<int> beside;  // written before the commands are sent

    Full() {
        world.spawn([this] {
            Policy policy;
            beside.write(1);
            for (const char* text : {"a", "b", "c"}) pool.note(0, text);
            pool.send({0, Command::kRequest, 1, std::string(kLarge, 'd')});
            Outcome outcome = Outcome::kTimedOut;
            while (outcome == Outcome::kTimedOut) outcome = pool.flush(1, policy);
            if (outcome == Outcome::kReady) outcome = pool.wait(kForever, policy);
            if (outcome == Outcome::kLost) {
                world.expect(world.killed(1), "a loss without a death");
                world.expect(pool.lost().size() == 1, "no group is lost");
                return;
            }
            world.expect(outcome == Outcome::kReady && pool.unsent() == 0, "not back");
            pool.take(0);
        });
        world.spawn(
            [this] {
                BasicPoolWorker<Sim> worker(parts(), 0);
                auto own = inbox(0);
                for (const char* text : {"a", "b", "c"}) {
                    world.expect(next(worker)->kind == Command::kNote, "no note");
                    world.expect(message(own) == text, "another note");
                    world.expect(beside.read() == 1, "nothing written");
                }
                const std::optional<Command> command = next(worker);
                world.expect(command->kind == Command::kRequest && command->number == 1,
                             "another command");
                world.expect(message(own) == std::string(kLarge, 'd'), "another message");
                world.expect(worker.complete(0, true, 1), "completed twice");
            },
            true);
        world.spawn([this] {
            world.until([] { return world.over(1); });
            if (world.killed(1)) pool.on_death(0)();
        });
    }
    void end() { world.expect(pool.pending() == 0 || world.killed(1), "something is left"); }
};

// Group 1 is inline: the parent posts it itself, before it waits for group 0 of a worker.
struct Inline : Shared<2, 2> {
    BasicPool<Sim> pool{parts(), {inboxes()[0]}, std::vector<std::uint32_t>{1}, {1, 1}};

    Inline() {
        world.spawn([this] {
            Policy policy;
            for (std::uint32_t step = 1; step <= 2; ++step) {
                act(pool, 0, step);
                act(pool, 1, step);
                world.expect(pool.due() != nullptr && pool.due()->group == 1, "nothing is due");
                results[1].write(-actions[1].read());
                pool.complete_inline(false, static_cast<int>(step));
                world.expect(pool.due() == nullptr && pool.is_ready(1), "still due");
                world.expect(pool.wait(kForever, policy) == Outcome::kReady, "not back");
                world.expect(pool.back(kAll).size() == 2, "fewer than all");
                for (std::uint32_t group = 0; group < 2; ++group) {
                    check_result(pool, group);
                    pool.take(group);
                }
            }
            pool.send({0, kEnd, 0});
            pool.take(0);
        });
        world.spawn([this] { serve(0); });
    }
    void end() { world.expect(pool.pending() == 0, "something is left"); }
};

// preemptions, stale reads, kills, early ends of a sleep
const std::vector<sim::Scenario> kScenarios = {
    sim::scenario<Together>("together", {{2, 0, 0, 0}, {1, 1, 0, 0}}),
    sim::scenario<Relay>("relay", {{1, 0, 1, 0}, {2, 0, 0, 0}, {1, 1, 0, 0}, {0, 1, 1, 0}}),
    sim::scenario<RelayRenewed>("relay renewed", {{1, 0, 1, 0}}),
    sim::scenario<Orphan>("orphan", {{2, 0, 1, 0}, {1, 1, 1, 0}}),
    sim::scenario<Some>("some", {{2, 0, 0, 0}, {1, 1, 0, 1}}),
    sim::scenario<Replacement>("replacement", {{2, 0, 1, 0}, {1, 1, 1, 0}}),
    sim::scenario<Full>("full", {{2, 0, 0, 0}, {1, 0, 1, 0}, {1, 1, 0, 0}}),
    sim::scenario<Inline>("inline", {{2, 0, 0, 0}, {1, 1, 0, 1}}),
};

// Memory orders that no scenario here needs.
const std::vector<sim::Spare> kSpare = {
    {"doorbell.h", "post", "the command ring orders it too: a post answers a command"},
    {"doorbell.h", "take", "likewise: the next post answers a later command"},
    {"doorbell.h", "revive", "likewise"},
    {"position.h", "advance", "needed by waiters that lower their target: test_simulated.cpp"},
    {"position.h", "park", "likewise"},
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
