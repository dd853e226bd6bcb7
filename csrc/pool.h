// Commands from a pool's parent to its workers, and the completions that come back.
//
//   parent                                                worker (pool_worker.h)
//   send()      --- command ring ---------------------->  next()
//               --- inbox: the command's message, if any
//   wait(), wait_some()  <-- Completion, then doorbell -- complete()
//   take()      the group may be sent a command again
//
// A group has at most one command in flight. So a completion is never overwritten unread: the
// parent reads it before it sends the next command, and the worker writes the next one only after
// it has read that command. Ring and doorbell order everything written beside them; the pool needs
// no synchronization beyond theirs.
//
// To wake a worker is a system call, and takes a while until it runs. When all groups are sent a
// step, their commands are there before a worker is woken: the first one may take the parent's CPU.
// If many sleep, the parent wakes a few of them, and each wakes a few others before it works:
//
//   parent --- 0 1 2 3     0 --- 4 5 6 7     1 --- 8 9 10 11     (BasicPoolParts::fan is 4)
//
// The commands of those that a worker wakes are sent before its own, so it sees them asleep if they
// are. A worker may die, be stopped or hang before it has woken them: the parent does it when a
// wait finds the loss, or before renew(), and wake_left() does if the wait is long.
//
// The last groups may be *inline*: the parent runs their commands itself, in the thread that would
// otherwise wait. They are in flight and ready like others, and post on the same doorbell.
//
//   send()  --- due(), in the order of sending --->  complete_inline()
//
// When a worker dies, the doorbell says which of its commands were done. Every wait reports the
// loss until renew() or forget_losses(). renew() constructs everything shared with that worker
// anew, so that nothing the dead process wrote reaches its replacement.
//
// tests/native/test_simulated_pool.cpp runs this one access at a time.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <new>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "command.h"
#include "command_sender.h"
#include "doorbell.h"
#include "shown.h"
#include "wait.h"

namespace pysampler {

// The parent's end, which constructs the shared memory.
//
// One thread at a time, except for note() and functions that only read a state: those may also be
// called while another thread is inside a wait. A wait that returns kInterrupted has touched
// nothing since the interrupt, so a signal handler that gives the wait up may use the pool.
template <class Os>
class BasicPool {
 public:
    using Parts = BasicPoolParts<Os>;
    using Inbox = BasicInbox<Os>;

    // A command to a group, and its message if it has one.
    struct Request {
        std::uint32_t group;
        std::uint8_t kind;
        std::uint32_t frame;
        std::optional<std::string> message{};
        std::uint16_t steps = 1;
    };

    // `counts`: how many groups each worker has. `weights`: one for each group, at least 1. Groups
    // beyond those of the workers are inline.
    BasicPool(const Parts& parts, const std::vector<Inbox>& inboxes,
              const std::vector<std::uint32_t>& counts, const std::vector<std::uint64_t>& weights)
        : parts_(parts),
          bell_(made(parts)),
          groups_(parts.groups),
          heaviest_(*std::max_element(weights.begin(), weights.end())) {
        std::uint32_t first = 0;
        for (std::uint32_t worker = 0; worker < counts.size(); ++worker) {
            const std::uint32_t end = first + counts[worker];
            workers_.push_back(
                {{parts.commands[worker], inboxes[worker], parts.geometry}, first, end});
            for (; first < end; ++first) {
                groups_[first].worker = worker;
                groups_[first].weight = weights[first];
            }
        }
        for (; first < groups(); ++first) {
            groups_[first].worker = workers();
            groups_[first].weight = weights[first];
        }
    }

    std::uint32_t workers() const noexcept { return static_cast<std::uint32_t>(workers_.size()); }
    std::uint32_t groups() const noexcept { return static_cast<std::uint32_t>(groups_.size()); }

    // -- commands -------------------------------------------------------------------------------

    // The group must not have a command in flight. It has one from now on, even if the ring is
    // full: flush() or the next wait then sends it. Throws CorruptRing.
    void send(const Request& request) {
        const Group& group = groups_[request.group];
        const Command command = begun(request);
        if (group.worker == workers()) {
            due_.push_back(command);
        } else {
            workers_[group.worker].sender.send(command, request.message);
        }
    }

    // Sends a group in flight its last command again, after renew(). A request needs its message.
    void resend(std::uint32_t group, std::optional<std::string> message) {
        const Group& last = groups_[group];
        std::uint8_t kind = last.kind;
        if (message) kind = Command::kRequest;
        send({group, kind, last.frame, std::move(message), last.steps});
    }

    // Sends every group such a command, which has no message; none may be in flight. Calls
    // `sending` with each group before. Throws CorruptRing. `last`: the worker to wake after the
    // others, since it takes the CPU of the parent.
    template <class Sending>
    void send_all(std::uint8_t kind, std::uint32_t frame, std::uint16_t steps, Sending&& sending,
                  std::uint32_t last = kParent) {
        const auto request = [&](std::uint32_t group) {
            sending(group);
            return Request{group, kind, frame, std::nullopt, steps};
        };
        std::uint32_t first = 0;
        if (wakes_in_turn()) {
            for (std::uint32_t index = workers(); index-- > 0;) {
                Worker& worker = workers_[index];
                for (std::uint32_t group = worker.first; group < worker.end; ++group) {
                    Command command = begun(request(group));
                    command.relays = group == worker.first;
                    worker.sender.send_unwoken(command);
                }
            }
            parts_.wake_below(kParent, false, last);
            relayed_ = workers() > parts_.fan;
            first = workers_.back().end;
        }
        for (std::uint32_t group = first; group < groups(); ++group) send(request(group));
    }

    // Once after a send_all(): wakes all who may sleep since the worker that should have woken them
    // is stopped, or hangs. The thread that waits calls it if a wait is long, or ends early.
    void wake_left() {
        if (!std::exchange(relayed_, false)) return;
        for (std::uint32_t index = 0; index < workers(); ++index) {
            if (works(workers_[index])) parts_.commands[index].cell->tail.wake_anyway();
        }
    }

    // Sends a worker a message that arrives before its next command and has no answer.
    void note(std::uint32_t worker, std::string message) {
        workers_[worker].sender.note(std::move(message));
    }
    // Sends these notes now, without a command: to a worker that gets no more commands.
    void send_notes(std::uint32_t worker) {
        workers_[worker].sender.send_notes(workers_[worker].first);
    }

    // -- inline groups --------------------------------------------------------------------------

    // The parent's next inline command, or nullptr. The pool keeps the order of notes and jobs, the
    // parent their content.
    const Command* due() const { return due_.empty() ? nullptr : &due_.front(); }

    // Adds a note to the parent itself, in order with its commands.
    void note_inline() { due_.push_back({Command::kNote, false, 1, 0, 0, 0}); }

    // The parent has done due(). `message`: the answer is more than the results in the frame.
    void complete_inline(bool message, std::int64_t now) {
        const Command done = due_.front();
        due_.pop_front();
        if (done.kind == Command::kNote) return;
        // SYNC: none needed, the same thread reads it.
        parts_.completions[done.group] = Completion{message ? 1U : 0U};
        bell_.post(done.group, now);
    }

    // Drops everything due, when the pool is closed. Touches no shared memory.
    void release_inline() { due_.clear(); }

    // Drops the commands that are due: they are no longer in flight. Notes stay.
    void cancel_inline() {
        const std::deque<Command> before = std::exchange(due_, {});
        for (const Command& command : before) {
            if (command.kind == Command::kNote) {
                due_.push_back(command);
            } else {
                take(command.group);
            }
        }
    }

    // Waits until every command, and its message, has gone to its worker. kLost if a worker is
    // lost: lost() has its groups. Throws CorruptRing.
    template <class Policy>
    Outcome flush(std::int64_t deadline, Policy& policy) {
        for (Worker& worker : workers_) {
            if (worker.sender.unsent() == 0) continue;
            const Outcome outcome = worker.sender.deliver(deadline, policy);
            if (outcome == Outcome::kReady) continue;
            for (std::uint32_t group = worker.first; group < worker.end; ++group) {
                if (outcome == Outcome::kLost) note_loss(group);
            }
            return outcome;
        }
        return Outcome::kReady;
    }

    // How many commands, or their messages, have not yet gone to their worker entirely.
    std::size_t unsent() const {
        std::size_t count = 0;
        for (const Worker& worker : workers_) count += worker.sender.unsent();
        return count;
    }

    // -- completions ----------------------------------------------------------------------------

    // Waits until every group in flight is back. Returns kLost at once if a worker is lost: lost()
    // has its groups. Flushes first, so it may throw CorruptRing.
    template <class Policy>
    Outcome wait(std::int64_t deadline, Policy& policy) {
        if (pending_ == 0) return Outcome::kReady;
        const Outcome flushed = flush(deadline, policy);
        return flushed == Outcome::kReady ? wait_for(pending_, deadline, policy) : flushed;
    }

    // The same, until groups that weigh `min_weight` together, or all in flight, are back.
    template <class Policy>
    Outcome wait_some(std::uint64_t min_weight, std::int64_t deadline, Policy& policy) {
        const Outcome flushed = flush(deadline, policy);
        if (flushed != Outcome::kReady && flushed != Outcome::kTimedOut) return flushed;
        min_weight = std::min(min_weight, pending_weight());
        // The fewest posts that can weigh enough; if groups differ in weight, it may take more.
        for (std::uint32_t want = min_posts(min_weight);;) {
            const Outcome outcome = wait_for(want, deadline, policy);
            if (outcome != Outcome::kReady && outcome != Outcome::kTimedOut) return outcome;
            std::uint64_t weight = 0;
            for (const std::uint32_t group : bell_.ready()) {
                if (groups_[group].in_flight) weight += groups_[group].weight;
            }
            if (weight >= min_weight) return Outcome::kReady;
            if (outcome == Outcome::kTimedOut) return outcome;
            want =
                static_cast<std::uint32_t>(bell_.ready().size()) + min_posts(min_weight - weight);
        }
    }

    // The groups that the last wait found to be back, longest ready first, up to `max_weight`
    // together.
    std::vector<std::uint32_t> back(std::uint64_t max_weight) const {
        std::vector<std::uint32_t> groups;
        for_each_back(max_weight, [&](std::uint32_t group) { groups.push_back(group); });
        return groups;
    }
    // Those of them whose completion a message follows.
    std::vector<std::uint32_t> with_message(std::uint64_t max_weight) const {
        std::vector<std::uint32_t> groups;
        for_each_back(max_weight, [&](std::uint32_t group) {
            // SYNC: the wait that found the group has acquired the completion from complete().
            const Completion completion = parts_.completions[group];
            if (completion.message != 0) groups.push_back(group);
        });
        return groups;
    }

    // The group is back and its completion was read, or its answer is no longer wanted.
    void take(std::uint32_t group) {
        if (!groups_[group].in_flight) return;
        bell_.take(group);
        groups_[group].in_flight = false;
        pending_ -= 1;
        pending_weight_ -= groups_[group].weight;
    }

    // -- losses ---------------------------------------------------------------------------------

    // Groups that a wait found to be lost and that were not renewed since.
    std::vector<std::uint32_t> lost() const {
        return groups_where([](const Group& group) { return group.lost; });
    }
    void forget_losses() {
        for (Group& group : groups_) group.lost = false;
        any_lost_ = false;
    }

    // Returns the action for a Watch (watch.h) to run when this worker dies: it ends every wait for
    // the worker. It may run in any thread, as long as the memory stays mapped.
    auto on_death(std::uint32_t index) const {
        const Worker& worker = workers_[index];
        return [sender = worker.sender.on_death(), parts = parts_, first = worker.first,
                end = worker.end] {
            sender();
            BasicDoorbell<Os> bell(parts.bell, parts.members, parts.groups);
            for (std::uint32_t group = first; group < end; ++group) bell.mark_lost(group);
        };
    }

    // Another process is this worker from now on. The old one must be known to be dead, and its
    // loss marked everywhere. Its posts, and commands on their way to it, are dropped. Groups in
    // flight stay in flight, and must be sent a command again. May be repeated.
    void renew(std::uint32_t index) {
        Worker& worker = workers_[index];
        // A worker that is slow to wake this one may still do it, in the cell that is made anew:
        // the replacement then looks for a command early.
        if (!worker.dead) parts_.wake_below(index, true);
        worker.sender.renew();
        worker.dead = false;
        for (std::uint32_t group = worker.first; group < worker.end; ++group) {
            bell_.revive(group);
            groups_[group].lost = false;
        }
        any_lost_ = !lost().empty();
    }

    // -- states ---------------------------------------------------------------------------------

    // Any thread may ask how many groups are in flight, and which weigh how much.
    std::uint32_t pending() const { return pending_; }
    std::uint64_t pending_weight() const { return pending_weight_; }
    // The weight of groups that are back and not taken, whether or not a wait has found them.
    // Inline groups count: a wait would run them rather than block.
    std::uint64_t ready_weight() const {
        std::uint64_t weight = 0;
        for (std::uint32_t group = 0; group < groups(); ++group) {
            const bool is_inline = groups_[group].worker == workers();
            if (groups_[group].in_flight && (is_inline || is_ready(group))) {
                weight += groups_[group].weight;
            }
        }
        return weight;
    }
    bool in_flight(std::uint32_t group) const { return groups_[group].in_flight; }
    bool is_ready(std::uint32_t group) const { return bell_.is_ready(group); }
    // Frame and number of the group's last command.
    std::uint32_t frame_of(std::uint32_t group) const { return groups_[group].frame; }
    std::uint32_t number_of(std::uint32_t group) const { return groups_[group].number; }

    // See BasicDoorbell::interrupt_wait().
    void interrupt_wait() noexcept { bell_.interrupt_wait(); }
    std::uint64_t waiter() const noexcept { return bell_.waiter(); }

 private:
    // Its index in the tree of wakes, in which those of the workers follow.
    static constexpr std::uint32_t kParent = UINT32_MAX;

    struct Worker {
        BasicCommandSender<Os> sender;
        std::uint32_t first, end;  // its groups
        bool dead = false;         // a wait has found its loss
    };

    struct Group {
        std::uint32_t worker = 0;
        std::uint64_t weight = 0;
        Shown<bool> in_flight = false;
        bool lost = false;
        std::uint8_t kind = Command::kStep;  // of the last command, as what follows
        std::uint16_t steps = 1;
        std::uint32_t frame = 0;
        std::uint32_t number = 0;
    };

    // The group has this command in flight from now on.
    Command begun(const Request& request) {
        Group& group = groups_[request.group];
        if (!group.in_flight) {
            group.in_flight = true;
            pending_ += 1;
            pending_weight_ += group.weight;
        }
        group.kind = request.kind;
        group.steps = request.steps;
        group.frame = request.frame;
        ++group.number;
        return {request.kind, false, request.steps, request.group, request.frame, group.number};
    }

    // Whether all commands may go out before the first wake: the parent wakes every worker, or many
    // sleep and wake each other. Each worker must live, and have no commands kept back.
    bool wakes_in_turn() const {
        const auto asleep = [](const Worker& worker) { return worker.sender.sleeps(); };
        const auto reads = [](const Worker& worker) {
            return !worker.dead && worker.sender.empty();
        };
        return workers() > 0 &&
               (workers() <= parts_.fan ||
                std::count_if(workers_.begin(), workers_.end(), asleep) > parts_.fan) &&
               std::all_of(workers_.begin(), workers_.end(), reads);
    }

    static BasicDoorbell<Os> made(const Parts& parts) {
        new (parts.bell) BasicDoorbellCell<Os>;
        for (std::uint32_t group = 0; group < parts.groups; ++group) {
            new (parts.members + group) BasicMember<Os>;
            new (parts.completions + group) typename Os::template Plain<Completion>{};
        }
        return {parts.bell, parts.members, parts.groups};
    }

    template <class Policy>
    Outcome wait_for(std::uint32_t posts, std::int64_t deadline, Policy& policy) {
        if (any_lost_) return Outcome::kLost;
        // If all are awaited, the doorbell already knows how many are at work.
        const std::uint64_t at_work = posts < pending_ ? workers_at_work() : 0;
        const Outcome outcome = bell_.wait_until(posts, deadline, policy, at_work);
        if (outcome == Outcome::kLost) {
            // The doorbell reports a loss once, and the caller may be interrupted before it acts.
            for (const std::uint32_t group : bell_.lost()) note_loss(group);
        }
        return outcome;
    }

    bool works(const Worker& worker) const {
        for (std::uint32_t group = worker.first; group < worker.end; ++group) {
            if (groups_[group].in_flight && !is_ready(group)) return true;
        }
        return false;
    }
    std::uint64_t workers_at_work() const {
        const auto working = [this](const Worker& worker) { return works(worker); };
        return static_cast<std::uint64_t>(std::count_if(workers_.begin(), workers_.end(), working));
    }

    template <class Visit>
    void for_each_back(std::uint64_t max_weight, Visit&& visit) const {
        for (const std::uint32_t group : bell_.ready()) {
            if (!groups_[group].in_flight) continue;
            if (groups_[group].weight > max_weight) break;
            max_weight -= groups_[group].weight;
            visit(group);
        }
    }

    void note_loss(std::uint32_t group) {
        groups_[group].lost = true;
        any_lost_ = true;
        const std::uint32_t index = groups_[group].worker;
        if (index < workers() && !std::exchange(workers_[index].dead, true)) {
            parts_.wake_below(index, true);
        }
    }

    template <class Condition>
    std::vector<std::uint32_t> groups_where(Condition&& condition) const {
        std::vector<std::uint32_t> found;
        for (std::uint32_t group = 0; group < groups(); ++group) {
            if (condition(groups_[group])) found.push_back(group);
        }
        return found;
    }

    std::uint32_t min_posts(std::uint64_t weight) const {
        return static_cast<std::uint32_t>((weight + heaviest_ - 1) / heaviest_);
    }

    Parts parts_;
    BasicDoorbell<Os> bell_;
    std::vector<Group> groups_;
    std::vector<Worker> workers_;
    std::deque<Command> due_;  // inline commands and notes, for the parent
    std::uint64_t heaviest_;
    Shown<std::uint32_t> pending_;  // groups in flight
    Shown<std::uint64_t> pending_weight_;
    bool any_lost_ = false;
    bool relayed_ = false;  // all were sent a step, and workers wake each other
};

using Pool = BasicPool<Linux>;

}  // namespace pysampler
