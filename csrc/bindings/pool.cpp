// Both ends of a pool's commands and completions: Pool in the parent, Worker in each worker.
#include <pybind11/stl.h>

#include <algorithm>
#include <new>
#include <vector>

#include "block.h"
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

// The parent's end. One thread at a time.
class PyPool : public Handle {
 public:
    PyPool(const PySegment& segment, const std::vector<std::uint32_t>& groups,
           const std::vector<std::uint64_t>& weights, const std::optional<WaitPolicy>& policy)
        : Handle("pool", segment.segment(), place(segment, py::none(), layout_of(groups).bytes())),
          layout_(groups),
          bell_(make(base(), layout_)),
          completions_(completions_at(base(), layout_)),
          in_flight_(layout_.groups(), false),
          frames_(layout_.groups(), 0),
          weights_(weights),
          site_(policy) {
        named("Pool");
        if (weights_.size() != layout_.groups() ||
            std::any_of(weights_.begin(), weights_.end(), [](auto one) { return one == 0; })) {
            throw py::value_error("cannot make pool: expected a weight for each group");
        }
        for (std::uint32_t worker = 0; worker < layout_.workers(); ++worker) {
            RingCell* cell = ring_cell(base(), layout_, worker);
            rings_.emplace_back(cell, PoolLayout::geometry());
            slots_.push_back(command_slots(cell));
            for (std::uint32_t i = 0; i < layout_.groups_of(worker); ++i) {
                worker_of_.push_back(worker);
            }
        }
    }

    void send(std::uint32_t kind, std::uint32_t frame) {
        check("send to");
        for (std::uint32_t group = 0; group < layout_.groups(); ++group) {
            send_one(kind, group, frame);
        }
    }

    void send_to(std::uint32_t group, std::uint32_t kind, std::uint32_t frame) {
        check("send to");
        if (group >= layout_.groups()) throw py::index_error("cannot send to pool: no such group");
        send_one(kind, group, frame);
    }

    // Whether all that is in flight has come back. Then it is taken, but for the groups in
    // messages(), who have more to say: take() them when they have said it.
    bool wait(const py::handle& timeout, const py::handle& deadline) {
        const Turn turn(*this, waiting_, "wait on");
        messages_.clear();
        if (pending_ == 0) return true;
        if (!wait_for(pending_, deadline_of(timeout, deadline))) return false;
        for (const std::uint32_t group : bell_.ready()) {
            if (!in_flight_[group]) continue;
            if (completions_[group].message != 0) {
                messages_.push_back(group);
            } else {
                take(group);
            }
        }
        return true;
    }

    // Groups that have come back, longest ready first: as soon as their weights make `least` (or
    // all that is in flight), or at the deadline; no more than `most`, not taken. messages() are
    // those of them that have more to say.
    std::vector<std::uint32_t> wait_some(std::uint64_t least, std::uint64_t most,
                                         const py::handle& deadline) {
        const Turn turn(*this, waiting_, "wait on");
        messages_.clear();
        const std::int64_t until = deadline_of(py::none(), deadline);
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
                if (in_flight_[group]) weight += weights_[group];
            }
            satisfied_ = weight >= least;
            if (!in_time || satisfied_) break;
            want = static_cast<std::uint32_t>(bell_.ready().size()) + posts(least - weight);
        }
        std::vector<std::uint32_t> chosen;
        for (const std::uint32_t group : bell_.ready()) {
            if (!in_flight_[group]) continue;
            if (weights_[group] > most) break;
            most -= weights_[group];
            chosen.push_back(group);
            if (completions_[group].message != 0) messages_.push_back(group);
        }
        return chosen;
    }

    // A group has come back and said what it had to say, or nothing more is expected of it.
    void take(std::uint32_t group) {
        if (!in_flight_.at(group)) return;
        bell_.take(group);
        in_flight_[group] = false;
        --pending_;
        pending_weight_ -= weights_[group];
    }

    // Whether the last of those came to an end before its deadline.
    bool satisfied() const { return satisfied_; }

    // Weights of what has come back and was not taken.
    std::uint64_t ready_weight() const {
        check("look at");
        std::uint64_t weight = 0;
        for (std::uint32_t group = 0; group < layout_.groups(); ++group) {
            if (in_flight_[group] && bell_.is_ready(group)) weight += weights_[group];
        }
        return weight;
    }

    // (began, ended) of a group's last command.
    std::pair<std::int64_t, std::int64_t> times(std::uint32_t group) const {
        check("look at");
        if (group >= layout_.groups()) throw py::index_error("cannot look at pool: no such group");
        return {completions_[group].began, completions_[group].ended};
    }

    const std::vector<std::uint32_t>& messages() const { return messages_; }
    bool has_messages() const { return !messages_.empty(); }
    std::uint32_t pending() const { return pending_; }
    std::uint64_t pending_weight() const { return pending_weight_; }
    bool in_flight(std::uint32_t group) const { return in_flight_.at(group); }
    bool is_ready(std::uint32_t group) const { return bell_.is_ready(group); }

    // Another process takes the place of a worker known to be dead, whose loss has been told of in
    // full. What it had posted is dropped, and nothing of its groups is in flight any more.
    void renew(std::uint32_t worker) {
        check("renew");
        RingCell* cell = new (ring_cell(base(), layout_, worker)) RingCell;
        rings_.at(worker) = Ring(cell, PoolLayout::geometry());
        const std::uint32_t first = layout_.first_group(worker);
        for (std::uint32_t group = first; group < first + layout_.groups_of(worker); ++group) {
            take(group);
            completions_[group] = {};
            bell_.revive(group);
        }
    }
    std::uint32_t frame_of(std::uint32_t group) const { return frames_.at(group); }

    Part member(std::uint32_t group) const {
        check("watch");
        auto* cell = bell_cell(base(), layout_);
        return {"pool's group " + std::to_string(group),
                [segment = segment(), cell, count = layout_.groups(), group](int) {
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
    std::byte* base() const { return segment()->at(offset(), layout_.bytes()); }

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

    void send_one(std::uint32_t kind, std::uint32_t group, std::uint32_t frame) {
        const std::uint32_t worker = worker_of_[group];
        const Run run = rings_[worker].claim(1);
        // One command a group is in flight, so there is room unless somebody wrote garbage there.
        if (run.count == 0 || in_flight_[group]) {
            raise("BusyError", "cannot send to pool: group " + std::to_string(group) +
                                   " has not finished its last command");
        }
        slots_[worker][run.first] = {kind, group, frame, 0};
        if (kind == Command::kNote) {
            rings_[worker].publish(1);
            return;
        }
        in_flight_[group] = true;
        frames_[group] = frame;
        ++pending_;
        pending_weight_ += weights_[group];
        rings_[worker].publish(1);
    }

    // False at the deadline.
    bool wait_for(std::uint32_t groups, std::int64_t deadline) {
        const Outcome outcome =
            site_([&](WaitPolicy& policy) { return bell_.wait_until(groups, deadline, policy); });
        if (outcome == Outcome::kBusy) busy("wait on", bell_.waiter());
        if (outcome == Outcome::kLost) {
            py::dict attributes;
            attributes["members"] =
                py::cast(std::vector<std::uint32_t>(bell_.lost().begin(), bell_.lost().end()));
            raise("LostError", "cannot wait on pool: groups are lost", attributes);
        }
        return outcome == Outcome::kReady;
    }

    PoolLayout layout_;
    Doorbell bell_;
    Completion* completions_;
    std::vector<Ring> rings_;
    std::vector<Command*> slots_;
    std::vector<std::uint32_t> worker_of_;  // of each group
    std::vector<bool> in_flight_;
    std::vector<std::uint32_t> frames_;  // of the last command to each group
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
        : Handle("worker", segment.segment(),
                 place(segment, py::int_(offset), layout_of(groups).bytes())),
          layout_(groups),
          index_(index),
          cell_(ring_cell(base(), layout_, index)),
          ring_(cell_, PoolLayout::geometry()),
          completions_(completions_at(base(), layout_)),
          bell_(bell_cell(base(), layout_), bell_members(bell_cell(base(), layout_)),
                layout_.groups()),
          meter_(meter),
          site_(policy) {
        named("Worker");
        // This one waits beside those who are still at work.
        site_.policy().set_busy([this] { return bell_.wanted(); });
    }

    // Steps blocks as commanded, until a command comes that is none of its business:
    // (kind, group, frame). `report(group)` is called when a step left something over, `flush()`
    // when there is nothing else to do; both return whether there is more to flush.
    py::tuple serve(const py::list& blocks, const py::object& report, const py::object& flush) {
        const Turn turn(*this, serving_, "serve");
        std::vector<Block*> all;
        for (const py::handle block : blocks) all.push_back(block.cast<Block*>());
        const std::uint32_t first = layout_.first_group(index_);
        bool unsent = flush().cast<bool>();
        for (;;) {
            const Run run = ring_.peek(1);
            if (run.count == 0 && unsent) {
                unsent = flush().cast<bool>();
                continue;
            }
            if (run.count == 0) {
                const Outcome outcome = site_(
                    [&](WaitPolicy& policy) { return ring_.wait_ready(1, kForever, policy); });
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
                return py::make_tuple(command.kind, command.group, command.frame);
            }
            bool left = all[command.group - first]->step(command.frame);
            left |= std::exchange(left_over_, false);
            complete(command.group, left);
            if (left) unsent = report(command.group).cast<bool>();
        }
    }

    // The group is done; a message follows, or none.
    void complete(std::uint32_t group, bool message) {
        const std::int64_t ended = now_ns();
        completions_[group] = {message ? 1U : 0U, began_, ended};
        bell_.post(group, ended);  // releases it
    }

    // The next step has something left over, whatever its block says.
    void set_left_over(bool left_over) { left_over_ = left_over; }

 private:
    std::byte* base() const { return segment()->at(offset(), layout_.bytes()); }

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

struct Send {
    static PyObject* call(PyPool& pool, PyObject* const* args, Py_ssize_t count, PyObject* names) {
        std::uint32_t kind = 0, frame = 0;
        if (count != 2 || names != nullptr || !small(args[0], kind) || !small(args[1], frame)) {
            return nullptr;
        }
        pool.send(kind, frame);
        return py::none().release().ptr();
    }
};

}  // namespace

void register_pool(py::module_& m) {
    const py::class_<Block> block(m, "Block");  // only a base
    py::class_<PyPool> pool(m, "Pool");
    pool.def(py::init<const PySegment&, const std::vector<std::uint32_t>&,
                      const std::vector<std::uint64_t>&, const std::optional<WaitPolicy>&>(),
             py::arg("segment"), py::arg("groups"), py::arg("weights"),
             py::arg("policy") = std::nullopt)
        .def("send", &PyPool::send, py::arg("kind"), py::arg("frame"), "A command to every group.")
        .def("send_to", &PyPool::send_to, py::arg("group"), py::arg("kind"), py::arg("frame"),
             "A command to one group.")
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
        .def("take", &PyPool::take, py::arg("group"),
             "A group has come back, or nothing more is expected of it.")
        .def_property_readonly("satisfied", &PyPool::satisfied,
                               "Whether the last wait_some() came to an end before its deadline.")
        .def_property_readonly("ready_weight", &PyPool::ready_weight,
                               "Weights of what has come back and was not taken.")
        .def_property_readonly("pending_weight", &PyPool::pending_weight,
                               "Weights of what is in flight.")
        .def("renew", &PyPool::renew, py::arg("worker"),
             "Another process takes the place of a dead worker.")
        .def("frame_of", &PyPool::frame_of, py::arg("group"),
             "The frame of the last command to a group.")
        .def("member", &PyPool::member, py::arg("group"),
             "What a Watch marks lost when the group's worker dies.")
        .def("in_flight", &PyPool::in_flight, py::arg("group"), "Whether a command is.")
        .def("times", &PyPool::times, py::arg("group"),
             "When the group's last command began and ended, ns of now().")
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
    Hot<PyPool, Send>::install(pool, "send");
    Hot<PyPool, Timed<&PyPool::wait>>::install(pool, "wait");
    Hot<PyPool, Plain<&PyPool::has_messages>>::install(pool, "has_messages");
    py::class_<PyWorker>(m, "Worker")
        .def(py::init<const PySegment&, std::size_t, const std::vector<std::uint32_t>&,
                      std::uint32_t, const std::shared_ptr<Meter>&,
                      const std::optional<WaitPolicy>&>(),
             py::arg("segment"), py::arg("offset"), py::arg("groups"), py::arg("index"),
             py::arg("meter"), py::arg("policy") = std::nullopt)
        .def("serve", &PyWorker::serve, py::arg("blocks"), py::arg("report"), py::arg("flush"),
             "Steps blocks as commanded, until another command comes: (kind, group, frame).")
        .def("complete", &PyWorker::complete, py::arg("group"), py::arg("message"),
             "The group is done; whether a message follows.")
        .def("set_left_over", &PyWorker::set_left_over, py::arg("left_over"),
             "Whether the next step is to be reported in any case.");
    py::class_<Command> command(m, "Command");
    command.attr("STEP") = static_cast<std::uint32_t>(Command::kStep);
    command.attr("REQUEST") = static_cast<std::uint32_t>(Command::kRequest);
    command.attr("NOTE") = static_cast<std::uint32_t>(Command::kNote);
}

}  // namespace pysampler::bindings
