// Both ends of a pool's commands and completions: Pool in the parent, Worker in each worker.
#include <pybind11/stl.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <new>
#include <span>
#include <string>
#include <vector>

#include "block.h"
#include "byte_ring.h"
#include "command.h"
#include "hot.h"
#include "meter.h"
#include "support.h"

namespace pysampler::bindings {
namespace {

PoolLayout layout_of(const std::vector<std::uint32_t>& groups) {
    for (const std::uint32_t count : groups) {
        if (count == 0 || count > PoolLayout::kGroups) {
            throw py::value_error("cannot make pool: a worker of " + std::to_string(count) +
                                  " groups, expected 1 to " + std::to_string(PoolLayout::kGroups));
        }
    }
    if (groups.empty()) throw py::value_error("cannot make pool: no workers");
    return PoolLayout(groups);
}

RingCell* ring_cell(std::byte* base, const PoolLayout& layout, std::uint32_t worker) {
    return reinterpret_cast<RingCell*>(base + layout.commands(worker));
}
Command* command_slots(RingCell* cell) { return reinterpret_cast<Command*>(cell + 1); }
Doorbell::Cell* bell_cell(std::byte* base, const PoolLayout& layout) {
    return reinterpret_cast<Doorbell::Cell*>(base + layout.doorbell());
}
Doorbell::Member* bell_members(Doorbell::Cell* cell) {
    return reinterpret_cast<Doorbell::Member*>(cell + 1);
}
Completion* completions_at(std::byte* base, const PoolLayout& layout) {
    return reinterpret_cast<Completion*>(base + layout.completions());
}

// The parent's end of a worker's inbox: messages, each after the command it belongs to.
class Inbox {
 public:
    // At `offset` of the segment; the part before its cell is mapped twice in a row at `twice`.
    Inbox(const Segment& segment, std::size_t offset, std::byte* twice, std::uint64_t capacity)
        : capacity_(capacity),
          offset_(offset),
          twice_(twice),
          cell_(new (segment.at(offset + capacity, sizeof(RingCell))) RingCell),
          ring_(cell_, twice, capacity) {}

    void renew() { ring_ = ByteRing(new (cell_) RingCell, twice_, capacity_); }

    ByteRing& ring() { return ring_; }
    RingCell* cell() const { return cell_; }
    std::size_t offset() const { return offset_; }

 private:
    std::uint64_t capacity_;
    std::size_t offset_;
    std::byte* twice_;
    RingCell* cell_;
    ByteRing ring_;
};

// A command and its message, if it has one, on their way to a worker.
struct Parcel {
    Command command{};
    bool has_message = false;
    std::string message{};
    bool published = false;     // the command
    std::uint64_t written = 0;  // of the message
};

// What a caller asks of a group.
struct Request {
    std::uint32_t group;
    std::uint32_t kind;
    std::uint32_t frame;
    std::optional<std::string> message;
};

// The parent's end. One thread at a time, but for note().
//
// A call that sends to several groups sends to all or, if one of them cannot be sent to, to none;
// from then on they are in flight. What does not fit the rings waits in unsent_, and goes with
// flush() or the next wait: an exception of a signal handler can come before or after, and never
// between a command and its message.
class PyPool : public Handle {
 public:
    PyPool(const PySegment& segment, const std::vector<std::uint32_t>& groups,
           const std::vector<std::uint64_t>& weights, std::uint64_t capacity,
           const std::optional<WaitPolicy>& policy)
        : PyPool(Place(segment, py::none(), layout_of(groups).bytes()), groups, weights, capacity,
                 policy) {}

    PyPool(const Place& place, const std::vector<std::uint32_t>& groups,
           const std::vector<std::uint64_t>& weights, std::uint64_t capacity,
           const std::optional<WaitPolicy>& policy)
        : Handle("pool", place.segment, place.at),
          layout_(groups),
          base_(place.memory),
          bell_(make(base_, layout_)),
          completions_(completions_at(base_, layout_)),
          groups_(layout_.groups()),
          unsent_(layout_.workers()),
          notes_(layout_.workers()),
          weights_(weights),
          site_(policy) {
        named("Pool");
        if (weights_.size() != layout_.groups() ||
            std::any_of(weights_.begin(), weights_.end(), [](auto one) { return one == 0; })) {
            throw py::value_error("cannot make pool: expected a weight for each group");
        }
        for (std::uint32_t worker = 0; worker < layout_.workers(); ++worker) {
            RingCell* cell = ring_cell(base_, layout_, worker);
            rings_.emplace_back(cell, PoolLayout::geometry());
            slots_.push_back(command_slots(cell));
            const std::size_t inbox =
                place.segment->allocate(capacity + sizeof(RingCell), Segment::page());
            inboxes_.emplace_back(*place.segment, inbox,
                                  also(place.segment->map_twice(inbox, capacity)).get(), capacity);
            for (std::uint32_t i = 0; i < layout_.groups_of(worker); ++i) {
                worker_of_.push_back(worker);
            }
        }
    }

    // A step of every group. False if some of it has yet to be flushed.
    bool step(std::uint32_t frame) {
        const Pin pin(*this, "send to");
        for (std::uint32_t group = 0; group < layout_.groups(); ++group) expect_idle(group);
        for (std::uint32_t group = 0; group < layout_.groups(); ++group) {
            post({group, Command::kStep, frame, std::nullopt});
        }
        return unsent_count_ == 0;
    }

    // A step of some groups, each with its frame. False as above.
    bool step_some(const std::vector<std::pair<std::uint32_t, std::uint32_t>>& parts) {
        const Pin pin(*this, "send to");
        for (const auto& [group, frame] : parts) {
            known(group);
            expect_idle(group);
        }
        for (const auto& [group, frame] : parts) post({group, Command::kStep, frame, std::nullopt});
        return unsent_count_ == 0;
    }

    // What each group is asked for; with it, groups that are `told` are new no more. False as
    // above.
    bool send(const std::vector<Request>& requests, const std::vector<std::uint32_t>& told) {
        const Pin pin(*this, "send to");
        for (const Request& request : requests) {
            known(request.group);
            expect_idle(request.group);
        }
        for (const std::uint32_t group : told) known(group);
        for (const Request& request : requests) post(request);
        for (const std::uint32_t group : told) groups_[group].is_new = false;
        any_new_ = any_new_ && std::any_of(groups_.begin(), groups_.end(),
                                           [](const Group& group) { return group.is_new; });
        return unsent_count_ == 0;
    }

    // Messages to workers, which go before their next commands and have no answer. Any thread.
    void note(const std::vector<std::pair<std::uint32_t, std::string>>& messages) {
        const Pin pin(*this, "send to");
        for (const auto& [worker, message] : messages) known_worker(worker);
        for (const auto& [worker, message] : messages) notes_[worker].push_back(message);
    }

    // Until all that was sent has gone. False at the deadline.
    bool flush(const py::handle& timeout, const py::handle& deadline) {
        const std::int64_t until = deadline_of(timeout, deadline);
        const Turn turn(*this, waiting_, "send to");
        return flush_until(until);
    }
    std::uint64_t unsent() const { return unsent_count_; }

    // Whether all that is in flight has come back: take_all() when it has been read. Groups in
    // messages() have more to say.
    bool wait(const py::handle& timeout, const py::handle& deadline) {
        const std::int64_t until = deadline_of(timeout, deadline);
        const Turn turn(*this, waiting_, "wait on");
        messages_.clear();
        if (pending_ == 0) return true;
        if (!flush_until(until) || !wait_for(pending_, until)) return false;
        for (const std::uint32_t group : bell_.ready()) {
            if (!groups_[group].in_flight) continue;
            if (completions_[group].message != 0) messages_.push_back(group);
        }
        return true;
    }

    // Groups that have come back, longest ready first: as soon as their weights make `least` (or
    // all that is in flight), or at the deadline; no more than `most`, not taken. messages() are
    // those of them that have more to say.
    std::vector<std::uint32_t> wait_some(std::uint64_t least, std::uint64_t most,
                                         const py::handle& deadline) {
        const std::int64_t until = deadline_of(py::none(), deadline);
        const Turn turn(*this, waiting_, "wait on");
        messages_.clear();
        flush_until(until);
        const std::uint64_t heaviest = *std::max_element(weights_.begin(), weights_.end());
        const auto posts = [heaviest](std::uint64_t weight) {
            return static_cast<std::uint32_t>((weight + heaviest - 1) / heaviest);
        };
        least = std::min(least, pending_weight_);
        // So many posts at the very least; where groups differ in weight perhaps more.
        for (std::uint32_t want = posts(least);;) {
            const bool in_time = wait_for(want, until);
            std::uint64_t weight = 0;
            for (const std::uint32_t group : bell_.ready()) {
                if (groups_[group].in_flight) weight += weights_[group];
            }
            satisfied_ = weight >= least;
            if (!in_time || satisfied_) break;
            want = static_cast<std::uint32_t>(bell_.ready().size()) + posts(least - weight);
        }
        std::vector<std::uint32_t> chosen;
        for (const std::uint32_t group : bell_.ready()) {
            if (!groups_[group].in_flight) continue;
            if (weights_[group] > most) break;
            most -= weights_[group];
            chosen.push_back(group);
            if (completions_[group].message != 0) messages_.push_back(group);
        }
        return chosen;
    }

    // Groups have come back and said what they had to say, or nothing more is expected of them.
    void take(const std::vector<std::uint32_t>& groups) {
        const Pin pin(*this, "take from");
        for (const std::uint32_t group : groups) known(group);
        for (const std::uint32_t group : groups) take(group);
    }

    void take_all() {
        const Pin pin(*this, "take from");
        for (std::uint32_t group = 0; pending_ > 0 && group < layout_.groups(); ++group) {
            take(group);
        }
    }

    // Whether the last of those came to an end before its deadline.
    bool satisfied() const { return satisfied_; }

    // Weights of what has come back and was not taken.
    std::uint64_t ready_weight() const {
        const Pin pin(*this, "look at");
        std::uint64_t weight = 0;
        for (std::uint32_t group = 0; group < layout_.groups(); ++group) {
            if (groups_[group].in_flight && bell_.is_ready(group)) weight += weights_[group];
        }
        return weight;
    }

    const std::vector<std::uint32_t>& messages() const { return messages_; }
    bool has_messages() const { return !messages_.empty(); }
    std::uint32_t pending() const { return pending_; }
    std::uint64_t pending_weight() const { return pending_weight_; }
    bool in_flight(std::uint32_t group) const { return known(group).in_flight; }
    bool is_ready(std::uint32_t group) const {
        const Pin pin(*this, "look at");
        known(group);
        return bell_.is_ready(group);
    }
    // Of the last command to a group.
    std::uint32_t frame_of(std::uint32_t group) const { return known(group).frame; }
    std::uint32_t number_of(std::uint32_t group) const { return known(group).number; }

    // Another process takes the place of a worker known to be dead, whose loss has been marked
    // everywhere. What it had posted, and what was on its way to it, is dropped. Groups of it that
    // are in flight stay so, and are owed(): they must be sent something once more. Again and again
    // if need be.
    void renew(std::uint32_t worker) {
        known_worker(worker);
        const Pin pin(*this, "renew");
        Inbox& inbox = inboxes_[worker];
        RingCell* cell = new (ring_cell(base_, layout_, worker)) RingCell;
        rings_[worker] = Ring(cell, PoolLayout::geometry());
        inbox.renew();
        unsent_count_ -= unsent_[worker].size();
        unsent_[worker].clear();
        notes_[worker].clear();
        const std::uint32_t first = layout_.first_group(worker);
        for (std::uint32_t group = first; group < first + layout_.groups_of(worker); ++group) {
            completions_[group] = {};
            bell_.revive(group);
            groups_[group].is_new = true;
            groups_[group].lost = false;
            groups_[group].owed = groups_[group].in_flight;
        }
        any_new_ = true;
    }
    bool owed(std::uint32_t group) const { return known(group).owed; }
    // Whether a group's worker was replaced and the group has not been told since.
    bool is_new(std::uint32_t group) const { return known(group).is_new; }
    bool any_new() const { return any_new_; }
    // Losses told so far are not told again.
    void forget_losses() {
        for (Group& group : groups_) group.lost = false;
    }
    // In a signal handler: the wait that it interrupted ends with a ClosedError once the handler
    // returns, and the handler itself may wait.
    void give_up_wait() {
        if (waiting_.by() != self_id()) return;
        ++given_up_;
        waiting_.leave();
        bell_.give_up_wait();
    }

    std::size_t inbox(std::uint32_t worker) const {
        known_worker(worker);
        return inboxes_[worker].offset();
    }
    Part inbox_consumer(std::uint32_t worker) const {
        known_worker(worker);
        const Pin pin(*this, "watch");
        return {"pool's inbox " + std::to_string(worker),
                [segment = pin.segment(), cell = inboxes_[worker].cell()](int) {
                    cell->head.mark_lost();
                }};
    }

    Part member(std::uint32_t group) const {
        known(group);
        const Pin pin(*this, "watch");
        auto* cell = bell_cell(base_, layout_);
        return {"pool's group " + std::to_string(group),
                [segment = pin.segment(), cell, count = layout_.groups(), group](int) {
                    Doorbell(cell, bell_members(cell), count).mark_lost(group);
                }};
    }

    std::string state() const {
        return closed() ? repr("")
                        : repr(std::to_string(layout_.workers()) + " workers, " +
                               std::to_string(layout_.groups()) + " groups, " +
                               std::to_string(pending_) + " in flight");
    }

 private:
    static Doorbell make(std::byte* base, const PoolLayout& layout) {
        for (std::uint32_t worker = 0; worker < layout.workers(); ++worker) {
            new (ring_cell(base, layout, worker)) RingCell;
        }
        Doorbell::Cell* cell = new (bell_cell(base, layout)) Doorbell::Cell;
        for (std::uint32_t group = 0; group < layout.groups(); ++group) {
            new (bell_members(cell) + group) Doorbell::Member;
            new (completions_at(base, layout) + group) Completion{};
        }
        return {cell, bell_members(cell), layout.groups()};
    }

    struct Group {
        bool in_flight = false;
        bool is_new = false;
        bool owed = false;
        bool lost = false;  // which has been told of, and nothing has been done about yet
        std::uint32_t frame = 0;
        std::uint32_t number = 0;
    };

    const Group& known(std::uint32_t group) const {
        if (group < groups_.size()) return groups_[group];
        throw py::index_error("cannot use pool: group " + std::to_string(group) +
                              ", expected one below " + std::to_string(groups_.size()));
    }
    void known_worker(std::uint32_t worker) const {
        if (worker < layout_.workers()) return;
        throw py::index_error("cannot use pool: worker " + std::to_string(worker) +
                              ", expected one below " + std::to_string(layout_.workers()));
    }

    void expect_idle(std::uint32_t group) const {
        if (!groups_[group].in_flight || groups_[group].owed) return;
        raise("BusyError", "cannot send to pool: group " + std::to_string(group) +
                               " has not finished its last command");
    }

    void take(std::uint32_t group) {
        if (!groups_[group].in_flight) return;
        bell_.take(group);
        groups_[group].in_flight = false;
        groups_[group].owed = false;
        --pending_;
        pending_weight_ -= weights_[group];
    }

    void post(const Request& request) {
        Group& group = groups_[request.group];
        const std::uint32_t worker = worker_of_[request.group];
        std::deque<Parcel>& unsent = unsent_[worker];
        for (std::string& message : notes_[worker]) {
            unsent.push_back({{Command::kNote, request.group, 0, 0}, true, std::move(message)});
            ++unsent_count_;
        }
        notes_[worker].clear();
        if (!group.in_flight) {
            group.in_flight = true;
            ++pending_;
            pending_weight_ += weights_[request.group];
        }
        group.owed = false;
        group.frame = request.frame;
        ++group.number;
        const Command command{request.kind, request.group, request.frame, group.number};
        if (!request.message && unsent.empty() && publish(worker, command)) return;
        unsent.push_back({command, request.message.has_value(), request.message.value_or("")});
        ++unsent_count_;
        WaitPolicy none(site_.policy().costs());
        if (deliver(worker, 0, none) == Outcome::kBusy) raise_garbage(worker);
    }

    bool publish(std::uint32_t worker, const Command& command) {
        const Run run = rings_[worker].claim(1);
        if (run.count == 0) return false;
        slots_[worker][run.first] = command;
        rings_[worker].publish(1);
        return true;
    }

    // Sends what there is for a worker; kReady if nothing is left, kBusy if its ring is garbage.
    Outcome deliver(std::uint32_t worker, std::int64_t deadline, WaitPolicy& policy) {
        std::deque<Parcel>& unsent = unsent_[worker];
        while (!unsent.empty()) {
            Parcel& parcel = unsent.front();
            if (!parcel.published) {
                const Outcome outcome = rings_[worker].wait_room(1, deadline, policy);
                if (outcome != Outcome::kReady) return outcome;
                // The ring says that it has room. If it has none, its positions are garbage.
                if (!publish(worker, parcel.command)) return Outcome::kBusy;
                parcel.published = true;
            }
            if (parcel.has_message) {
                const Outcome outcome = inboxes_[worker].ring().write(
                    std::as_bytes(std::span(parcel.message)), parcel.written, deadline, policy);
                if (outcome != Outcome::kReady) return outcome;
            }
            unsent.pop_front();
            --unsent_count_;
        }
        return Outcome::kReady;
    }

    bool flush_until(std::int64_t deadline) {
        for (std::uint32_t worker = 0; unsent_count_ > 0 && worker < layout_.workers(); ++worker) {
            if (unsent_[worker].empty()) continue;
            const Outcome outcome = site_(
                [&](WaitPolicy& policy) { return deliver(worker, deadline, policy); }, wanted());
            if (outcome == Outcome::kLost) {
                const std::uint32_t first = layout_.first_group(worker);
                std::vector<std::uint32_t> groups(layout_.groups_of(worker));
                std::iota(groups.begin(), groups.end(), first);
                raise_lost(groups);
            }
            if (outcome == Outcome::kBusy) raise_garbage(worker);
            if (outcome == Outcome::kTimedOut) return false;
            check_outcome(*this, outcome, "send to", "worker", "", 0);
        }
        return true;
    }

    // For a wait that begins: whether it is still wanted.
    std::function<bool()> wanted() const {
        return [this, before = given_up_] { return given_up_ == before && !closed(); };
    }

    [[noreturn]] static void raise_garbage(std::uint32_t worker) {
        raise("LayoutError", "cannot send to pool: the commands of worker " +
                                 std::to_string(worker) +
                                 " lie in a ring whose positions are garbage");
    }

    void raise_known_losses() const {
        std::vector<std::uint32_t> lost;
        for (std::uint32_t group = 0; group < groups_.size(); ++group) {
            if (groups_[group].lost) lost.push_back(group);
        }
        if (!lost.empty()) raise_lost(lost);
    }

    [[noreturn]] static void raise_lost(const std::vector<std::uint32_t>& groups) {
        py::dict attributes;
        attributes["members"] = py::cast(groups);
        raise("LostError", "cannot wait on pool: groups are lost", attributes);
    }

    // False at the deadline.
    bool wait_for(std::uint32_t groups, std::int64_t deadline) {
        raise_known_losses();
        const Outcome outcome =
            site_([&](WaitPolicy& policy) { return bell_.wait_until(groups, deadline, policy); },
                  wanted());
        if (outcome == Outcome::kBusy) busy("wait on", bell_.waiter());
        if (outcome == Outcome::kInterrupted) {
            raise("ClosedError", "cannot wait on pool: it was closed meanwhile");
        }
        if (outcome == Outcome::kLost) {
            // The doorbell tells of it once, and an exception may come before it is dealt with.
            for (const std::uint32_t group : bell_.lost()) groups_[group].lost = true;
            raise_known_losses();
        }
        return outcome == Outcome::kReady;
    }

    PoolLayout layout_;
    std::byte* base_;
    Doorbell bell_;
    Completion* completions_;
    std::vector<Ring> rings_;
    std::vector<Command*> slots_;
    std::vector<Inbox> inboxes_;
    std::vector<std::uint32_t> worker_of_;  // of each group
    std::vector<Group> groups_;
    bool any_new_ = false;
    std::vector<std::deque<Parcel>> unsent_;       // by worker
    std::uint64_t unsent_count_ = 0;               // of all
    std::vector<std::vector<std::string>> notes_;  // by worker, before its next command
    std::uint64_t given_up_ = 0;                   // how often give_up_wait() ended one
    std::uint32_t pending_ = 0;
    std::vector<std::uint64_t> weights_;  // of each group: its envs
    std::uint64_t pending_weight_ = 0;
    bool satisfied_ = false;
    std::vector<std::uint32_t> messages_;
    Site site_;
    Side waiting_;
};

// A worker's end.
class PyWorker : public Handle {
 public:
    PyWorker(const PySegment& segment, std::size_t offset, const std::vector<std::uint32_t>& groups,
             std::uint32_t index, const std::shared_ptr<Meter>& meter,
             const std::optional<WaitPolicy>& policy)
        : PyWorker(Place(segment, py::int_(offset), layout_of(groups).bytes()), groups, index,
                   meter, policy) {}

    PyWorker(const Place& place, const std::vector<std::uint32_t>& groups, std::uint32_t index,
             const std::shared_ptr<Meter>& meter, const std::optional<WaitPolicy>& policy)
        : Handle("worker", place.segment, place.at),
          layout_(groups),
          index_(index < groups.size() ? index : throw py::index_error("no such worker")),
          cell_(ring_cell(place.memory, layout_, index)),
          ring_(cell_, PoolLayout::geometry()),
          completions_(completions_at(place.memory, layout_)),
          bell_(bell_cell(place.memory, layout_), bell_members(bell_cell(place.memory, layout_)),
                layout_.groups()),
          meter_(meter),
          site_(policy) {
        named("Worker");
        // This one waits beside those who are still at work.
        site_.policy().set_busy([this] { return bell_.wanted(); });
    }

    // Steps blocks as commanded, until a command comes that is none of its business:
    // (kind, group, frame, number). `report(group, number)` is called when a step left something
    // over, `flush()` when there is nothing else to do; both return whether there is more to flush.
    py::tuple serve(const py::list& blocks, const py::object& report, const py::object& flush) {
        const Turn turn(*this, serving_, "serve");
        const py::tuple held(blocks);  // which `report` may take out of the list
        std::vector<Block*> all;
        all.reserve(held.size());
        for (const py::handle block : held) {  // None where commands have no block to step
            all.push_back(block.is_none() ? nullptr : &block.cast<Block&>());
        }
        const std::uint32_t first = layout_.first_group(index_);
        bool unsent = flush().cast<bool>();
        for (;;) {
            const Run run = ring_.peek(1);
            if (run.count == 0 && unsent) {
                unsent = flush().cast<bool>();
                continue;
            }
            if (run.count == 0) {
                // The longer it has been idle, the rarer it wakes to look for signals that came
                // just before it slept.
                std::int64_t slice = kSlice;
                const auto sleep_longer = [&] {
                    slice = std::min(2 * slice, kLongestSlice);
                    site_.policy().set_slice(slice);
                    return true;
                };
                const Outcome outcome =
                    site_([&](WaitPolicy& policy) { return ring_.wait_ready(1, kForever, policy); },
                          sleep_longer);
                check_outcome(*this, outcome, "serve", "parent", "", cell_->tail.waiter());
                meter_->waited(site_.policy().stats());
                continue;
            }
            const Command command = command_slots(cell_)[run.first];
            ring_.release(1);
            if (command.group < first || command.group - first >= all.size()) {
                raise("LayoutError", "cannot serve: a command to a group of another worker");
            }
            began_ = now_ns();
            if (command.kind != Command::kStep) {
                return py::make_tuple(command.kind, command.group, command.frame, command.number);
            }
            bool left = all[command.group - first]->step(command.frame);
            left |= std::exchange(left_over_, false);
            complete(command.group, left);
            if (left) unsent = report(command.group, command.number).cast<bool>();
        }
    }

    // The group is done; a message follows, or none.
    void complete(std::uint32_t group, bool message) {
        if (group >= layout_.groups()) throw py::index_error("cannot complete: no such group");
        const std::int64_t ended = now_ns();
        completions_[group] = {message ? 1U : 0U, began_, ended};
        bell_.post(group, ended);  // releases it
    }

    // The next step has something left over, whatever its block says.
    void set_left_over(bool left_over) { left_over_ = left_over; }

 private:
    PoolLayout layout_;
    std::uint32_t index_;
    RingCell* cell_;
    Ring ring_;
    Completion* completions_;
    Doorbell bell_;
    std::shared_ptr<Meter> meter_;
    Site site_;
    Side serving_;
    std::int64_t began_ = 0;
    bool left_over_ = false;
};

struct Step {
    static PyObject* call(PyPool& pool, PyObject* const* args, Py_ssize_t count, PyObject* names) {
        std::uint32_t frame = 0;
        if (count != 1 || names != nullptr || !small(args[0], frame)) return nullptr;
        return PyBool_FromLong(pool.step(frame));
    }
};

std::vector<Request> requests_of(const py::iterable& requests) {
    std::vector<Request> all;
    for (const py::handle one : requests) {
        const auto [group, kind, frame, message] =
            one.cast<std::tuple<std::uint32_t, std::uint32_t, std::uint32_t, py::object>>();
        all.push_back({group, kind, frame,
                       message.is_none() ? std::nullopt
                                         : std::optional<std::string>(message.cast<py::bytes>())});
    }
    return all;
}

}  // namespace

void register_pool(py::module_& m) {
    const Class<Block> block(m, "Block");  // only a base
    Class<PyPool> pool(m, "Pool");
    pool.def(py::init<const PySegment&, const std::vector<std::uint32_t>&,
                      const std::vector<std::uint64_t>&, std::uint64_t,
                      const std::optional<WaitPolicy>&>(),
             py::arg("segment"), py::arg("groups"), py::arg("weights"), py::arg("capacity"),
             py::arg("policy") = std::nullopt)
        .def("step", &PyPool::step, py::arg("frame"),
             "Let every group step. False if some of it has yet to be flushed.")
        .def(
            "step_some", &PyPool::step_some, py::arg("parts"),
            "Let some groups step: (group, frame) each. False if some of it has yet to be flushed.")
        .def(
            "send",
            [](PyPool& self, const py::iterable& requests, const std::vector<std::uint32_t>& told) {
                return self.send(requests_of(requests), told);
            },
            py::arg("requests"), py::arg("told") = std::vector<std::uint32_t>{},
            "Ask groups, all or none: (group, kind, frame, message or None) each. Groups that are "
            "told are new no more. False if some of it has yet to be flushed.")
        .def(
            "note",
            [](PyPool& self, const std::vector<std::pair<std::uint32_t, py::bytes>>& messages) {
                std::vector<std::pair<std::uint32_t, std::string>> all;
                all.reserve(messages.size());
                for (const auto& [worker, message] : messages) all.emplace_back(worker, message);
                self.note(all);
            },
            py::arg("messages"),
            "Messages to workers, before their next commands: (worker, message) each.")
        .def(
            "flush",
            [](PyPool& self, const Seconds& timeout, const Nanoseconds& deadline) {
                return self.flush(timeout, deadline);
            },
            py::arg("timeout") = py::none(), py::kw_only(), py::arg("deadline") = py::none(),
            "Until all that was sent has gone; False at the deadline.")
        .def_property_readonly("unsent", &PyPool::unsent, "How many commands have yet to go.")
        .def(
            "wait",
            [](PyPool& self, const Seconds& timeout, const Nanoseconds& deadline) {
                return self.wait(timeout, deadline);
            },
            py::arg("timeout") = py::none(), py::kw_only(), py::arg("deadline") = py::none(),
            "Until all that is in flight has come back; False at the deadline.")
        .def(
            "wait_some",
            [](PyPool& self, std::uint64_t least, std::uint64_t most, const Nanoseconds& deadline) {
                return self.wait_some(least, most, deadline);
            },
            py::arg("least"), py::arg("most"), py::kw_only(), py::arg("deadline") = py::none(),
            "Groups that have come back, longest ready first: at least so many weights, unless the "
            "deadline comes first, at most so many.")
        .def("take", py::overload_cast<const std::vector<std::uint32_t>&>(&PyPool::take),
             py::arg("groups"), "Groups have come back, or nothing more is expected of them.")
        .def("take_all", &PyPool::take_all, "All that is in flight has come back.")
        .def_property_readonly("satisfied", &PyPool::satisfied,
                               "Whether the last wait_some() came to an end before its deadline.")
        .def_property_readonly("ready_weight", &PyPool::ready_weight,
                               "Weights of what has come back and was not taken.")
        .def_property_readonly("pending_weight", &PyPool::pending_weight,
                               "Weights of what is in flight.")
        .def("renew", &PyPool::renew, py::arg("worker"),
             "Another process takes the place of a dead worker. Its groups in flight are owed.")
        .def("owed", &PyPool::owed, py::arg("group"),
             "Whether a group in flight must be sent something once more.")
        .def("is_new", &PyPool::is_new, py::arg("group"),
             "Whether its worker was replaced, and the group has not been told since.")
        .def("any_new", &PyPool::any_new, "Whether a group is new.")
        .def("forget_losses", &PyPool::forget_losses, "Do not tell of losses again.")
        .def("number_of", &PyPool::number_of, py::arg("group"),
             "The number of the last command to a group; a message that answers it has the same.")
        .def("give_up_wait", &PyPool::give_up_wait,
             "In a signal handler that interrupted a wait of this thread: end that wait.")
        .def("inbox", &PyPool::inbox, py::arg("worker"), "Where a worker's inbox begins.")
        .def("inbox_consumer", &PyPool::inbox_consumer, py::arg("worker"),
             "What a Watch marks lost when the worker dies.")
        .def("frame_of", &PyPool::frame_of, py::arg("group"),
             "The frame of the last command to a group.")
        .def("member", &PyPool::member, py::arg("group"),
             "What a Watch marks lost when the group's worker dies.")
        .def("in_flight", &PyPool::in_flight, py::arg("group"), "Whether a command is.")
        .def("is_ready", &PyPool::is_ready, py::arg("group"), "Whether it has come back.")
        .def("has_messages", &PyPool::has_messages, "Whether there are any.")
        .def_property_readonly("messages", &PyPool::messages,
                               "Groups of which a message follows, after a wait.")
        .def_property_readonly("pending", &PyPool::pending, "How many groups are in flight.")
        .def_property_readonly("offset", &PyPool::offset, "Where it begins in its segment.")
        .def("close", &PyPool::close, "Let go of the memory.")
        .def_static(
            "size_of",
            [](const std::vector<std::uint32_t>& groups) { return layout_of(groups).bytes(); },
            py::arg("groups"), "Bytes it takes in a segment.")
        .def("__repr__", &PyPool::state);
    Hot<PyPool, Step>::install(pool, "step");
    Hot<PyPool, Timed<&PyPool::wait>>::install(pool, "wait");
    Hot<PyPool, Plain<&PyPool::has_messages>>::install(pool, "has_messages");
    Hot<PyPool, Plain<&PyPool::any_new>>::install(pool, "any_new");
    Class<PyWorker>(m, "Worker")
        .def(py::init<const PySegment&, std::size_t, const std::vector<std::uint32_t>&,
                      std::uint32_t, const std::shared_ptr<Meter>&,
                      const std::optional<WaitPolicy>&>(),
             py::arg("segment"), py::arg("offset"), py::arg("groups"), py::arg("index"),
             py::arg("meter"), py::arg("policy") = std::nullopt)
        .def("serve", &PyWorker::serve, py::arg("blocks"), py::arg("report"), py::arg("flush"),
             "Steps blocks as commanded, until another command comes: (kind, group, frame, "
             "number).")
        .def("complete", &PyWorker::complete, py::arg("group"), py::arg("message"),
             "The group is done; whether a message follows.")
        .def("set_left_over", &PyWorker::set_left_over, py::arg("left_over"),
             "Whether the next step is to be reported in any case.");
    Class<Command> command(m, "Command");
    command.attr("STEP") = static_cast<std::uint32_t>(Command::kStep);
    command.attr("REQUEST") = static_cast<std::uint32_t>(Command::kRequest);
    command.attr("NOTE") = static_cast<std::uint32_t>(Command::kNote);
}

}  // namespace pysampler::bindings
