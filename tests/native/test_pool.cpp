// A pool's commands and completions (pool.h, pool_worker.h) between real threads and processes;
// test_simulated_pool.cpp explores the schedules.
#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "check.h"
#include "pool.h"
#include "pool_worker.h"
#include "segment.h"
#include "stepped.h"
#include "support.h"

using namespace pysampler;
using support::at_every_step;
using support::at_every_step_of_a_wait;
using support::Child;
using support::died;
using support::mortal_child;
using support::parking;
using support::Random;
using support::Record;
using support::rounds;
using support::Stepped;
using support::until;

namespace {

using Groups = std::vector<std::uint32_t>;

constexpr std::uint32_t kEnd = 7;  // a kind of command that ends the worker
constexpr std::uint64_t kAll = ~std::uint64_t{0};

// A pool in a segment, with a record for each group's action and result.
template <class Os = Linux>
class Fixture {
 public:
    // The last `own` groups are inline.
    explicit Fixture(Groups counts, std::vector<std::uint64_t> weights = {}, std::uint32_t own = 0)
        : counts_(std::move(counts)),
          own_(own),
          groups_(std::accumulate(counts_.begin(), counts_.end(), own)),
          segment_(Segment::create(PoolLayout(counts_, own).bytes() +
                                   (counts_.size() + 1) * 3 * Segment::page() +
                                   2 * groups_ * sizeof(Record))),
          base_(segment_->at(segment_->allocate(PoolLayout(counts_, own).bytes(), kLine), 1)),
          actions(records()),
          results(records()) {
        for (std::size_t worker = 0; worker < counts_.size(); ++worker) {
            const std::size_t at =
                segment_->allocate(Segment::page() + sizeof(RingCell), Segment::page());
            mapped_.push_back(segment_->map_twice(at, Segment::page()));
            cells_.push_back(segment_->at(at + Segment::page(), sizeof(RingCell)));
        }
        if (weights.empty()) weights.assign(groups_, 1);
        pool.emplace(parts<Os>(), inboxes<Os>(), counts_, weights);
    }

    template <class As>
    BasicPoolParts<As> parts() const {
        const PoolParts plain = pool_parts(base_, counts_, own_);
        BasicPoolParts<As> parts{.commands = {},
                                 .geometry = plain.geometry,
                                 .bell = reinterpret_cast<BasicDoorbellCell<As>*>(plain.bell),
                                 .members = reinterpret_cast<BasicMember<As>*>(plain.members),
                                 .completions = plain.completions,
                                 .groups = plain.groups};
        for (const auto& [cell, slots] : plain.commands) {
            parts.commands.push_back({reinterpret_cast<BasicRingCell<As>*>(cell), slots});
        }
        return parts;
    }
    template <class As>
    std::vector<BasicInbox<As>> inboxes() const {
        std::vector<BasicInbox<As>> all;
        for (std::size_t i = 0; i < cells_.size(); ++i) {
            all.push_back({reinterpret_cast<BasicRingCell<As>*>(cells_[i]), mapped_[i].get(),
                           Segment::page()});
        }
        return all;
    }
    template <class As = Linux>
    BasicPoolWorker<As> worker(std::uint32_t index) const {
        return {parts<As>(), index};
    }
    ByteRing inbox(std::uint32_t index) const {
        const Inbox at = inboxes<Linux>()[index];
        return {at.cell, at.bytes, at.capacity};
    }
    std::uint32_t groups() const { return groups_; }

    // Sends the group the action of a step.
    void act(std::uint32_t group, std::uint32_t step) {
        actions[group] = Record(group, step);
        pool->send({group, Command::kStep, step});
    }
    void check_result(std::uint32_t group) const {
        CHECK(results[group] == Record(group + groups_, pool->frame_of(group)));
    }
    // Runs a worker: executes commands until one says kEnd or the parent is lost.
    template <class As = Linux>
    void serve(std::uint32_t index, WaitPolicy policy) const {
        BasicPoolWorker<As> own = worker<As>(index);
        for (;;) {
            const std::optional<Command> command = own.next();
            if (!command) {
                if (own.wait(kForever, policy) == Outcome::kLost) return;
                continue;
            }
            if (command->kind == kEnd) return;
            CHECK(command->kind == Command::kStep);
            CHECK(actions[command->group] == Record(command->group, command->frame));
            results[command->group] = Record(command->group + groups_, command->frame);
            own.complete(command->group, command->frame % 2 == 1, now_ns());
        }
    }
    void end_workers() {
        for (std::uint32_t worker = 0, group = 0; worker < counts_.size(); ++worker) {
            pool->send({group, kEnd, 0});
            pool->take(group);  // the worker does not answer
            group += counts_[worker];
        }
    }

 private:
    Record* records() {
        const std::size_t at = segment_->allocate(groups_ * sizeof(Record));
        return reinterpret_cast<Record*>(segment_->at(at, groups_ * sizeof(Record)));
    }

    Groups counts_;
    std::uint32_t own_;
    std::uint32_t groups_;
    std::shared_ptr<Segment> segment_;
    std::byte* base_;
    std::vector<std::shared_ptr<std::byte>> mapped_;
    std::vector<std::byte*> cells_;

 public:
    Record* actions;
    Record* results;
    std::optional<BasicPool<Os>> pool;
};

// Completes all commands of a worker.
void complete_all(PoolWorker worker, bool message = false) {
    while (const std::optional<Command> command = worker.next()) {
        CHECK(worker.complete(command->group, message, now_ns()));
    }
}

std::string text_of(ByteRing& inbox) {
    WaitPolicy policy = parking();
    CHECK(inbox.read(kAll, kForever, policy) == Outcome::kReady);
    std::string text(reinterpret_cast<const char*>(inbox.message().data()), inbox.message().size());
    inbox.release();
    return text;
}

}  // namespace

TEST(groups_come_back_and_accept_the_next_command) {
    Fixture fixture({2, 1});
    Pool& pool = *fixture.pool;
    WaitPolicy policy = parking();
    for (std::uint32_t step = 1; step <= 3; ++step) {
        for (std::uint32_t group = 0; group < 3; ++group) {
            CHECK(!pool.in_flight(group));
            pool.send({group, Command::kStep, step});
            CHECK(pool.in_flight(group));
        }
        CHECK(pool.pending() == 3 && pool.unsent() == 0);
        PoolWorker first = fixture.worker(0);
        for (std::uint32_t group = 0; group < 2; ++group) {
            const std::optional<Command> command = first.next();
            CHECK(command && command->group == group && command->frame == step &&
                  command->number == step && command->kind == Command::kStep);
            CHECK(first.complete(group, group == 1, now_ns()));
        }
        CHECK(!first.next());
        CHECK(pool.wait(0, policy) == Outcome::kTimedOut && pool.ready_weight() == 2);
        complete_all(fixture.worker(1));
        CHECK(pool.wait(kForever, policy) == Outcome::kReady);
        CHECK(pool.with_message(kAll) == Groups{1});
        for (std::uint32_t group = 0; group < 3; ++group) pool.take(group);
        CHECK(pool.pending() == 0 && pool.wait(0, policy) == Outcome::kReady);
    }
}

TEST(inline_groups_are_due_in_order_and_ready_like_others) {
    Fixture fixture({1}, {1, 2, 4}, 2);
    Pool& pool = *fixture.pool;
    WaitPolicy policy = parking();
    for (const std::uint32_t group : {2U, 0U, 1U}) pool.send({group, Command::kStep, 7});
    pool.note_inline();
    CHECK(pool.unsent() == 0 && pool.pending_weight() == 7);
    CHECK(pool.ready_weight() == 6);  // a wait would run the inline groups rather than block
    CHECK(pool.due()->group == 2 && pool.due()->frame == 7 && pool.due()->number == 1);
    pool.complete_inline(true, 100);
    complete_all(fixture.worker(0));
    CHECK(pool.due()->group == 1);
    pool.complete_inline(false, now_ns());
    CHECK(pool.due()->kind == Command::kNote);
    pool.complete_inline(false, now_ns());
    CHECK(pool.due() == nullptr);
    CHECK(pool.wait(kForever, policy) == Outcome::kReady);
    CHECK((pool.back(kAll) == Groups{2, 0, 1}));
    CHECK(pool.with_message(kAll) == Groups{2});
    for (std::uint32_t group = 0; group < 3; ++group) pool.take(group);
    CHECK(pool.pending() == 0);
}

TEST(cancelled_inline_groups_are_not_in_flight) {
    Fixture fixture({1}, {1, 1, 1}, 2);
    Pool& pool = *fixture.pool;
    WaitPolicy policy = parking();
    for (std::uint32_t group = 0; group < 3; ++group) pool.send({group, Command::kStep, 1});
    pool.note_inline();
    pool.complete_inline(false, now_ns());  // group 1
    pool.cancel_inline();
    CHECK(pool.in_flight(0) && pool.in_flight(1) && !pool.in_flight(2));
    CHECK(pool.due()->kind == Command::kNote);
    complete_all(fixture.worker(0));
    CHECK(pool.wait(kForever, policy) == Outcome::kReady);
    CHECK((pool.back(kAll) == Groups{1, 0}));
    pool.send({2, Command::kStep, 2});  // the group takes commands again
    CHECK(pool.in_flight(2) && !pool.is_ready(2));
}

TEST(groups_come_back_longest_ready_first_up_to_a_weight) {
    Fixture fixture({1, 1, 1}, {2, 3, 4});
    Pool& pool = *fixture.pool;
    WaitPolicy policy = parking();
    for (std::uint32_t group = 0; group < 3; ++group) pool.send({group, Command::kStep, 0});
    CHECK(pool.wait_some(0, 0, policy) == Outcome::kReady && pool.back(kAll).empty());
    std::int64_t at = 100;
    for (const std::uint32_t group : {2U, 0U, 1U}) {
        CHECK(fixture.worker(group).complete(group, group == 0, at++));
    }
    CHECK(pool.wait_some(1, kForever, policy) == Outcome::kReady);
    CHECK(pool.back(kAll) == (Groups{2, 0, 1}));
    CHECK(pool.back(6) == (Groups{2, 0}) && pool.with_message(6) == Groups{0});
    CHECK(pool.back(5) == Groups{2} && pool.with_message(5).empty() && pool.back(3).empty());
    pool.take(2);
    CHECK(pool.back(kAll) == (Groups{0, 1}) && pool.pending_weight() == 5);
}

TEST(a_wait_for_a_weight_continues_until_it_is_reached) {
    Fixture fixture({1, 1, 1}, {1, 1, 5});
    Pool& pool = *fixture.pool;
    WaitPolicy policy = parking();
    for (std::uint32_t group = 0; group < 3; ++group) pool.send({group, Command::kStep, 0});
    CHECK(fixture.worker(0).complete(0, false, 1));
    CHECK(pool.wait_some(2, 0, policy) == Outcome::kTimedOut && pool.back(kAll) == Groups{0});
    std::thread other([&] {
        until([&] { return pool.waiter() != 0; });
        CHECK(fixture.worker(1).complete(1, false, 2));
        CHECK(fixture.worker(2).complete(2, false, 3));
    });
    CHECK(pool.wait_some(3, kForever, policy) == Outcome::kReady);
    CHECK(pool.back(kAll) == (Groups{0, 1, 2}));
    CHECK(pool.wait_some(kAll, kForever, policy) == Outcome::kReady);  // all that are in flight
    other.join();
}

TEST(a_wait_for_groups_is_never_early) {
    Fixture fixture({1});
    WaitPolicy policy;
    fixture.pool->send({0, Command::kStep, 0});
    for (const std::int64_t length : {0L, 5'000L, 300'000L, 2'000'000L}) {
        const std::int64_t deadline = now_ns() + length;
        CHECK(fixture.pool->wait(deadline, policy) == Outcome::kTimedOut && now_ns() >= deadline);
        const std::int64_t next = now_ns() + length;
        CHECK(fixture.pool->wait_some(1, next, policy) == Outcome::kTimedOut && now_ns() >= next);
    }
}

TEST(many_workers_that_sleep_wake_each_other) {
    Groups counts(12, 1);
    counts[0] = counts[5] = 3;
    Fixture fixture(counts);
    Pool& pool = *fixture.pool;
    WaitPolicy policy = parking();
    std::vector<Child> workers;
    for (std::uint32_t index = 0; index < counts.size(); ++index) {
        workers.emplace_back([&] { fixture.serve(index, parking()); });
    }
    const PoolParts parts = fixture.parts<Linux>();
    for (std::uint32_t step = 1; step <= 100; ++step) {
        for (const auto& commands : parts.commands)
            until([&] { return commands.cell->tail.armed(); });
        for (std::uint32_t group = 0; group < pool.groups(); ++group) {
            fixture.actions[group] = Record(group, step);
        }
        const std::uint64_t before = futex_wake_count();
        std::uint32_t sent = 0;
        pool.send_all(Command::kStep, step, 1, [&](std::uint32_t) { ++sent; });
        CHECK(futex_wake_count() == before + parts.fan && sent == pool.groups());
        CHECK(pool.wait(kForever, policy) == Outcome::kReady);
        for (std::uint32_t group = 0; group < pool.groups(); ++group) {
            fixture.check_result(group);
            pool.take(group);
        }
    }
    fixture.end_workers();
    for (Child& worker : workers) worker.finish();
}

TEST(workers_are_woken_if_the_one_that_should_wake_them_is_stopped) {
    Fixture fixture(Groups(6, 1));
    Pool& pool = *fixture.pool;
    const PoolParts parts = fixture.parts<Linux>();
    std::vector<Child> workers;
    for (std::uint32_t index = 0; index < 6; ++index) {
        workers.emplace_back([&, index] {
            PoolWorker own = fixture.worker(index);
            WaitPolicy policy = parking();
            CHECK(own.wait(kForever, policy) == Outcome::kReady);
            // Worker 0 does not take its command, and so wakes neither 4 nor 5.
            if (index != 0) own.complete(own.next()->group, false, 1);
        });
        until([&] { return parts.commands[index].cell->tail.armed(); });
    }
    WaitPolicy policy = parking();
    pool.send_all(Command::kStep, 1, 1, [](std::uint32_t) {});
    CHECK(pool.wait_some(3, kForever, policy) == Outcome::kReady);
    pool.wake_left();
    CHECK(pool.wait_some(5, kForever, policy) == Outcome::kReady);
    const std::uint64_t before = futex_wake_count();
    pool.wake_left();
    CHECK(futex_wake_count() == before);  // once for a step
    for (Child& worker : workers) worker.finish();
}

TEST(a_worker_with_a_note_wakes_no_others) {
    Fixture fixture(Groups(6, 1));
    Pool& pool = *fixture.pool;
    const PoolParts parts = fixture.parts<Linux>();
    std::atomic<bool> stop{false};
    std::vector<std::thread> asleep;
    for (std::uint32_t index = 0; index < 6; ++index) {
        asleep.emplace_back([&, index] {
            PoolWorker worker = fixture.worker(index);
            WaitPolicy policy = parking();
            while (!stop) worker.wait(kForever, policy);
        });
        until([&] { return parts.commands[index].cell->tail.armed(); });
    }
    pool.note(0, "a");
    const std::uint64_t before = futex_wake_count();
    stop = true;
    pool.send_all(Command::kStep, 1, 1, [](std::uint32_t) {});
    CHECK(futex_wake_count() == before + 6);
    for (std::thread& thread : asleep) thread.join();
    CHECK(fixture.worker(0).next()->kind == Command::kNote);
}

TEST(notes_come_before_the_next_command_and_messages_of_any_size_arrive) {
    Fixture fixture({1});
    Pool& pool = *fixture.pool;
    const std::vector<std::string> texts = {"a", std::string(5 * Segment::page(), 'x'), ""};
    std::atomic<bool> kept{false};
    std::thread worker([&] {
        PoolWorker own = fixture.worker(0);
        ByteRing inbox = fixture.inbox(0);
        WaitPolicy policy = parking();
        until([&] { return kept.load(); });
        for (const std::string& text : texts) {
            CHECK(own.wait(kForever, policy) == Outcome::kReady);
            CHECK(own.next()->kind == (text.empty() ? Command::kRequest : Command::kNote));
            CHECK(text_of(inbox) == text);
        }
        CHECK(own.complete(0, false, 1));
    });
    WaitPolicy policy = parking();
    pool.note(0, texts[0]);
    pool.note(0, texts[1]);
    pool.send({0, Command::kRequest, 0, texts[2]});
    CHECK(pool.unsent() > 0);
    kept = true;
    CHECK(pool.wait(kForever, policy) == Outcome::kReady && pool.unsent() == 0);
    worker.join();
}

TEST(notes_may_go_without_a_command) {
    Fixture fixture({1, 1});
    Pool& pool = *fixture.pool;
    pool.note(1, "a");
    PoolWorker worker = fixture.worker(1);
    CHECK(!worker.next());
    pool.send_notes(1);
    CHECK(pool.pending() == 0 && pool.unsent() == 0);
    CHECK(worker.next()->kind == Command::kNote && !worker.next());
}

TEST(a_note_may_be_queued_while_another_thread_waits) {
    Fixture fixture({1});
    Pool& pool = *fixture.pool;
    pool.send({0, Command::kStep, 0});
    std::thread waiter([&] {
        WaitPolicy policy = parking();
        CHECK(pool.wait(kForever, policy) == Outcome::kReady);
    });
    until([&] { return pool.waiter() != 0; });
    pool.note(0, "later");
    CHECK(pool.pending() == 1 && pool.ready_weight() == 0);
    complete_all(fixture.worker(0));
    waiter.join();
    pool.take(0);
    pool.send({0, Command::kStep, 1});
    PoolWorker worker = fixture.worker(0);
    CHECK(worker.next()->kind == Command::kNote && worker.next()->kind == Command::kStep);
}

TEST(commands_without_room_are_kept_in_order) {
    constexpr auto kNotes = static_cast<std::uint32_t>(2 * PoolLayout::kCommands);
    Fixture fixture({1});
    Pool& pool = *fixture.pool;
    WaitPolicy policy = parking();
    for (std::uint32_t i = 0; i < kNotes; ++i) pool.note(0, std::to_string(i));
    pool.send({0, Command::kStep, 3});
    CHECK(pool.unsent() > 0 && pool.wait(0, policy) == Outcome::kTimedOut);
    PoolWorker worker = fixture.worker(0);
    ByteRing inbox = fixture.inbox(0);
    for (std::uint32_t i = 0; i <= kNotes; ++i) {
        std::optional<Command> command;
        while (!(command = worker.next())) CHECK(pool.flush(0, policy) != Outcome::kLost);
        CHECK(command->kind == (i < kNotes ? Command::kNote : Command::kStep));
        while (i < kNotes && inbox.size() == 0) CHECK(pool.flush(0, policy) != Outcome::kLost);
        if (i < kNotes) CHECK(text_of(inbox) == std::to_string(i));
    }
    CHECK(pool.unsent() == 0);
}

// Once with a full command ring, once with a full inbox: either wait for room ends.
TEST(a_workers_death_ends_the_wait_for_room) {
    for (const bool message : {false, true}) {
        Fixture fixture({2, 1});
        Pool& pool = *fixture.pool;
        WaitPolicy policy = parking();
        for (std::uint64_t i = 0; !message && i < 2 * PoolLayout::kCommands; ++i) {
            pool.take(0);
            pool.send({0, Command::kStep, 0});
        }
        if (message) pool.send({0, Command::kRequest, 0, std::string(2 * Segment::page(), 'x')});
        CHECK(pool.flush(now_ns() + kMillisecond, policy) == Outcome::kTimedOut);
        std::thread reaper([&, on_death = pool.on_death(0)] { on_death(); });
        CHECK(pool.flush(kForever, policy) == Outcome::kLost);
        CHECK(pool.lost() == (Groups{0, 1}));
        reaper.join();
        pool.renew(0);
        CHECK(pool.unsent() == 0 && pool.lost().empty() && pool.in_flight(0));
    }
}

TEST(every_wait_reports_a_loss_until_it_is_forgotten_or_renewed) {
    Fixture fixture({2, 1});
    Pool& pool = *fixture.pool;
    WaitPolicy policy = parking();
    for (std::uint32_t group = 0; group < 3; ++group) pool.send({group, Command::kStep, 5});
    complete_all(fixture.worker(0));
    pool.on_death(0)();
    for (int i = 0; i < 2; ++i) {
        CHECK(pool.wait(kForever, policy) == Outcome::kLost && pool.lost() == (Groups{0, 1}));
        CHECK(pool.wait_some(1, kForever, policy) == Outcome::kLost);
    }
    pool.forget_losses();
    CHECK(pool.lost().empty() && pool.wait_some(2, 0, policy) == Outcome::kReady);
    pool.renew(0);
    CHECK(!pool.is_ready(0) && pool.in_flight(0) && pool.in_flight(1));
    for (const std::uint32_t group : {0U, 1U}) pool.resend(group, std::nullopt);
    CHECK(pool.pending() == 3);
    complete_all(fixture.worker(0));
    complete_all(fixture.worker(1));
    CHECK(pool.wait(kForever, policy) == Outcome::kReady);
}

TEST(a_signal_handler_that_gives_a_wait_up_may_use_the_pool) {
    Fixture fixture({1});
    Pool& pool = *fixture.pool;
    WaitPolicy policy = parking(), own = parking();
    pool.send({0, Command::kStep, 0});
    policy.set_slice(kMillisecond);
    policy.set_go_on([&] {
        pool.interrupt_wait();
        complete_all(fixture.worker(0));
        CHECK(pool.wait(kForever, own) == Outcome::kReady);
        pool.take(0);
        pool.send({0, Command::kStep, 1});
        return false;
    });
    CHECK(pool.wait(kForever, policy) == Outcome::kInterrupted);
    complete_all(fixture.worker(0));
    CHECK(pool.wait(kForever, own) == Outcome::kReady && pool.frame_of(0) == 1);
}

TEST(garbage_positions_of_a_command_ring_raise) {
    Fixture fixture({1});
    Pool& pool = *fixture.pool;
    WaitPolicy policy = parking();
    for (std::uint64_t i = 0; i < 2 * PoolLayout::kCommands; ++i) {
        pool.send({0, Command::kStep, 0});
        pool.take(0);
    }
    CHECK(pool.unsent() > 0 && pool.flush(0, policy) == Outcome::kTimedOut);
    fixture.parts<Linux>().commands[0].cell->head.post(1U << 20);  // ahead of the tail
    bool thrown = false;
    try {
        pool.flush(0, policy);
    } catch (const CorruptRing&) {
        thrown = true;
    }
    CHECK(thrown);
}

TEST(a_completion_at_any_step_of_a_wait_is_seen) {
    at_every_step_of_a_wait([](int n, std::int64_t deadline) {
        Fixture<Stepped> fixture({1, 1});
        WaitPolicy policy = parking();
        Stepped::at = 0;
        for (std::uint32_t group = 0; group < 2; ++group) {
            fixture.pool->send({group, Command::kStep, 0});
        }
        complete_all(fixture.worker(0));
        Stepped::begin(n, [&] { complete_all(fixture.worker(1)); });
        const Outcome outcome = fixture.pool->wait(deadline, policy);
        CHECK(outcome == (n > 0 ? Outcome::kReady : Outcome::kTimedOut));
        CHECK(fixture.pool->back(kAll).size() == (n > 0 ? 2 : 1));
    });
}

TEST(a_death_at_any_step_of_a_wait_is_seen) {
    at_every_step_of_a_wait([](int n, std::int64_t deadline) {
        Fixture<Stepped> fixture({1, 1});
        WaitPolicy policy = parking();
        Stepped::at = 0;
        for (std::uint32_t group = 0; group < 2; ++group) {
            fixture.pool->send({group, Command::kStep, 0});
        }
        const auto parts = fixture.parts<Linux>();
        Stepped::begin(n, [&] { Doorbell(parts.bell, parts.members, 2).mark_lost(1); });
        const Outcome outcome = fixture.pool->wait(deadline, policy);
        CHECK(outcome == (n > 0 ? Outcome::kLost : Outcome::kTimedOut));
        CHECK(fixture.pool->lost() == (n > 0 ? Groups{1} : Groups{}));
    });
}

TEST(replacing_a_worker_killed_at_any_step_does_not_disturb_others) {
    const Fixture<>* at = nullptr;
    at_every_step([&](int n) {
        Fixture fixture({2, 1});
        at = &fixture;
        Pool& pool = *fixture.pool;
        WaitPolicy policy = parking();
        Child mortal = mortal_child(n, [&] { at->serve<Stepped>(0, parking()); });
        Child other([&] { at->serve(1, parking()); });
        bool dead = false;
        std::thread reaper([&] {
            dead = died(mortal);
            if (dead) pool.on_death(0)();
        });
        Child heir;
        for (std::uint32_t step = 1; step <= 2; ++step) {
            for (std::uint32_t group = 0; group < 3; ++group) fixture.act(group, step);
            Outcome outcome;
            while ((outcome = pool.wait(kForever, policy)) == Outcome::kLost) {
                CHECK(!std::ranges::count(pool.lost(), 2U));
                reaper.join();
                pool.renew(0);
                for (const std::uint32_t group : {0U, 1U}) {
                    CHECK(pool.in_flight(group));
                    fixture.act(group, step);
                }
                heir = Child([&] { at->serve(0, parking()); });
            }
            CHECK(outcome == Outcome::kReady);
            CHECK(pool.with_message(kAll).size() == (step == 1 ? 3 : 0));
            for (std::uint32_t group = 0; group < 3; ++group) {
                fixture.check_result(group);
                pool.take(group);
            }
        }
        fixture.end_workers();
        other.finish();
        if (reaper.joinable()) reaper.join();
        if (heir.pid() > 0) heir.finish();
        return dead;
    });
}

TEST(the_commands_of_a_parent_killed_at_any_step_are_whole) {
    at_every_step([](int n) {
        Fixture<Stepped> fixture({1});
        Child parent = mortal_child(n, [&] {
            WaitPolicy policy = parking();
            for (std::uint32_t step = 1; step <= 3; ++step) {
                fixture.pool->note(0, "a note");
                fixture.pool->send({0, Command::kRequest, step, std::string(5000, 'x')});
                CHECK(fixture.pool->wait(kForever, policy) == Outcome::kReady);
                CHECK(fixture.pool->with_message(kAll) == Groups{0});
                fixture.pool->take(0);
            }
        });
        bool dead = false;
        std::thread watcher([&] {
            dead = died(parent);
            fixture.parts<Linux>().commands[0].cell->tail.mark_lost();
            fixture.inboxes<Linux>()[0].cell->tail.mark_lost();
        });
        PoolWorker worker = fixture.worker(0);
        ByteRing inbox = fixture.inbox(0);
        WaitPolicy policy = parking();
        std::uint32_t done = 0;
        while (worker.wait(kForever, policy) == Outcome::kReady) {
            const std::optional<Command> command = worker.next();
            CHECK(command);
            if (inbox.read(kAll, kForever, policy) == Outcome::kLost) break;
            const bool note = command->kind == Command::kNote;
            CHECK(inbox.message().size() == (note ? 6 : 5000));
            inbox.release();
            if (note) continue;
            CHECK(command->kind == Command::kRequest && command->number == ++done);
            CHECK(command->frame == done && worker.complete(0, true, now_ns()));
        }
        watcher.join();
        CHECK(dead || done == 3);
        return dead;
    });
}

// Under the thread sanitizer too: records are plain memory.
TEST(many_rounds_of_many_threads_keep_records_apart) {
    for (const WaitPolicy& policy : support::policies()) {
        Fixture fixture({3, 1, 2}, {1, 2, 1, 1, 4, 1});
        Pool& pool = *fixture.pool;
        std::vector<std::thread> workers;
        for (std::uint32_t i = 0; i < 3; ++i) {
            workers.emplace_back([&, i] { fixture.serve(i, policy); });
        }
        WaitPolicy own = policy;
        Random random(7);
        std::vector<std::uint32_t> steps(fixture.groups(), 0);
        const auto most = static_cast<std::uint32_t>(rounds(2000));
        for (std::uint32_t group = 0; group < fixture.groups(); ++group) {
            fixture.act(group, ++steps[group]);
        }
        while (pool.pending() > 0) {
            const std::int64_t deadline =
                random.below(3) == 0 ? now_ns() + random.ns_below(50'000) : kForever;
            const Outcome outcome = pool.wait_some(1 + random.below(10), deadline, own);
            CHECK(outcome == Outcome::kReady || outcome == Outcome::kTimedOut);
            const std::uint64_t weight = random.below(2) == 0 ? kAll : 4;
            const Groups messages = pool.with_message(weight);
            for (const std::uint32_t group : pool.back(weight)) {
                fixture.check_result(group);
                CHECK(std::ranges::count(messages, group) == steps[group] % 2);
                pool.take(group);
                if (steps[group] < most) fixture.act(group, ++steps[group]);
            }
        }
        fixture.end_workers();
        for (std::thread& worker : workers) worker.join();
    }
}

int main(int argc, char** argv) { return check::main(argc, argv); }
