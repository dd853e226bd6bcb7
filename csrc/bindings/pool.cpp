// Python's ends of a pool's commands and completions: Pool in the parent, Worker in each worker.
#include <pybind11/stl.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "block.h"
#include "command.h"
#include "hot.h"
#include "meter.h"
#include "pool_worker.h"
#include "py_pool.h"
#include "support.h"

namespace pysampler::bindings {
namespace {

// A worker's end.
class PyWorker : public Handle {
 public:
    PyWorker(const PySegment& segment, std::size_t offset, const Groups& counts,
             std::uint32_t index, const std::shared_ptr<Meter>& meter,
             const std::optional<WaitPolicy>& policy, std::uint32_t own)
        : PyWorker(Place(segment, py::int_(offset), size_of(counts, own)), counts, index, meter,
                   policy, own) {}

    PyWorker(const Place& place, const Groups& counts, std::uint32_t index,
             const std::shared_ptr<Meter>& meter, const std::optional<WaitPolicy>& policy,
             std::uint32_t own)
        : Handle("worker", place.segment, place.at),
          worker_(pool_parts(place.memory, counts, own),
                  index < counts.size() ? index : throw py::index_error("no such worker")),
          first_(std::accumulate(counts.begin(), counts.begin() + index, std::uint32_t{0})),
          meter_(meter),
          site_(policy) {
        named("Worker");
        // This one waits beside those that are still at work.
        site_.policy().set_busy([this] { return worker_.wanted(); });
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
        bool unsent = flush().cast<bool>();
        for (;;) {
            const std::optional<Command> command = worker_.next();
            if (!command) {
                if (unsent) {
                    unsent = flush().cast<bool>();
                } else {
                    wait();
                }
                continue;
            }
            if (command->group < first_ || command->group - first_ >= all.size()) {
                raise("LayoutError", "cannot serve: a command to a group of another worker");
            }
            if (command->kind != Command::kStep) {
                job_began_ = arrived();
                return py::make_tuple(command->kind, command->group, command->frame,
                                      command->number);
            }
            const std::int64_t began = arrived();
            bool left = all[command->group - first_]->step(command->frame);
            left |= std::exchange(has_overflow_, false);
            // Before the completion: the parent that it wakes finds the message, and does not wait
            // for it on a CPU that this worker needs to send it.
            if (left) unsent = report(command->group, command->number).cast<bool>();
            finish(TraceKind::kCommand, command->group, left, began);
        }
    }

    // The group is done; a message follows, or none.
    void complete(std::uint32_t group, bool message) {
        if (group >= worker_.groups()) throw py::index_error("cannot complete: no such group");
        finish(TraceKind::kJob, group, message, job_began_);
    }

    // The next step has something left over, whatever its block says.
    void set_overflow(bool overflow) { has_overflow_ = overflow; }

 private:
    // When a command arrived; 0 if that is not traced.
    std::int64_t arrived() const { return meter_->track() ? meter_->track()->begin() : 0; }

    void finish(TraceKind kind, std::uint32_t group, bool message, std::int64_t began) {
        const std::int64_t now = now_ns();
        // First: who sees the completion finds it in the trace.
        if (began != 0) meter_->track()->add(kind, group, began, now);
        worker_.complete(group, message, now);
    }

    // Until there is a command. The longer this is idle, the rarer it wakes to look for signals
    // that came just before it slept.
    void wait() {
        std::int64_t slice = kSlice;
        const auto sleep_longer = [&] {
            slice = std::min(2 * slice, kLongestSlice);
            site_.policy().set_slice(slice);
            return true;
        };
        const Outcome outcome =
            site_([&](WaitPolicy& policy) { return worker_.wait(kForever, policy); }, sleep_longer);
        check_outcome(*this, outcome, "serve", "parent", "", worker_.waiter());
        meter_->waited(site_.policy().stats());
    }

    PoolWorker worker_;
    std::uint32_t first_;  // of its groups
    std::shared_ptr<Meter> meter_;
    Site site_;
    Side serving_;
    bool has_overflow_ = false;
    std::int64_t job_began_ = 0;
};

struct Step {
    static PyObject* call(PyPool& pool, PyObject* const* args, Py_ssize_t count, PyObject* names) {
        std::uint32_t frame = 0;
        if (count != 1 || names != nullptr || !small(args[0], frame)) return nullptr;
        return PyBool_FromLong(pool.step(frame));
    }
};

struct WholeRound {
    static PyObject* call(PyPool& pool, PyObject* const* args, Py_ssize_t count, PyObject* names) {
        std::uint32_t frame = 0;
        if (count != 1 || names != nullptr || !small(args[0], frame)) return nullptr;
        return PyBool_FromLong(pool.round(frame));
    }
};

std::vector<Pool::Request> requests_of(const py::iterable& requests) {
    std::vector<Pool::Request> all;
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
                      const std::optional<WaitPolicy>&, std::uint32_t>(),
             py::arg("segment"), py::arg("groups"), py::arg("weights"), py::arg("capacity"),
             py::arg("policy") = std::nullopt, py::arg("own") = 0)
        .def("step", &PyPool::step, py::arg("frame"),
             "Let every group step. False if some of it has yet to be flushed.")
        .def("round", &PyPool::round, py::arg("frame"),
             "Let every group step, wait until all are back, and take them. False if something "
             "else is to be done: to look for late envs, or to read a message.")
        .def(
            "step_some", &PyPool::step_some, py::arg("group_frames"),
            "Let some groups step: (group, frame) each. False if some of it has yet to be flushed.")
        .def(
            "send",
            [](PyPool& self, const py::iterable& requests, const Groups& settled) {
                return self.send(requests_of(requests), settled);
            },
            py::arg("requests"), py::arg("settled") = Groups{},
            "Send commands to groups, to all or none: (group, kind, frame, message or None) each. "
            "Groups that are settled are new no more. False if some of it has yet to be flushed.")
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
        .def("set_inline_blocks", &PyPool::set_inline_blocks, py::arg("blocks"),
             "The blocks of the inline groups, which run_inline() steps.")
        .def("run_inline", &PyPool::run_inline,
             "Step the inline groups that are due, up to a job or a note; return whether nothing "
             "is left.")
        .def_property_readonly(
            "due", &PyPool::due,
            "The inline command or note to run next: (kind, group, frame, note), or None.")
        .def("note_inline", &PyPool::note_inline, py::arg("note"),
             "Let a note be due, in the order of commands.")
        .def("set_overflow", &PyPool::set_overflow, py::arg("overflow"),
             "Whether the next inline step has an answer in any case.")
        .def("complete_inline", &PyPool::complete_inline, py::arg("message"),
             "The job or note that was due is done; whether its answer has to be read.")
        .def("cancel_inline", &PyPool::cancel_inline,
             "Forget the inline commands that are due; they are not in flight any more.")
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
        .def("take", &PyPool::take, py::arg("groups"),
             "Groups have come back, or nothing more is expected of them.")
        .def("take_all", &PyPool::take_all, "All that is in flight has come back.")
        .def_property("look_at", &PyPool::look_at, &PyPool::set_look_at,
                      "When to look for late envs next, in ns.")
        .def_property_readonly("look_due", &PyPool::look_due, "Whether it is time for that.")
        .def("until", &PyPool::until, py::arg("deadline"),
             "Return how long a wait may last: to its deadline, or until one is to look.")
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
        .def("interrupt_wait", &PyPool::interrupt_wait,
             "In a signal handler that interrupted a wait of this thread: end that wait.")
        .def("inbox", &PyPool::inbox, py::arg("worker"), "Where a worker's inbox begins.")
        .def("worker", &PyPool::worker, py::arg("worker"),
             "What a Watch marks lost when the worker dies.")
        .def("frame_of", &PyPool::frame_of, py::arg("group"),
             "The frame of the last command to a group.")
        .def("in_flight", &PyPool::in_flight, py::arg("group"), "Whether a command is.")
        .def("is_ready", &PyPool::is_ready, py::arg("group"), "Whether it has come back.")
        .def("has_mail", &PyPool::has_mail, "Whether there are any.")
        .def_property_readonly("groups_with_mail", &PyPool::groups_with_mail,
                               "Groups of which a message follows, after a wait.")
        .def_property_readonly("pending", &PyPool::pending, "How many groups are in flight.")
        .def_property_readonly("offset", &PyPool::offset, "Where it begins in its segment.")
        .def("trace_to", &PyPool::trace_to, py::arg("track"),
             "Trace what comes on this track; None: trace nothing.")
        .def("count_waits_in", &PyPool::count_waits_in, py::arg("counter").noconvert(),
             "Add up in a number how long this process waits, in ns.")
        .def(
            "close",
            [](PyPool& self) {
                self.close();
                self.release_inline();
                self.trace_to(nullptr);
                self.count_waits_in({});
            },
            "Let go of the memory.")
        .def_static("size_of", &size_of, py::arg("groups"), py::arg("own") = 0,
                    "Bytes it takes in a segment.")
        .def("__repr__", &PyPool::state);
    Hot<PyPool, Step>::install(pool, "step");
    Hot<PyPool, WholeRound>::install(pool, "round");
    Hot<PyPool, Timed<&PyPool::wait>>::install(pool, "wait");
    Hot<PyPool, Plain<&PyPool::run_inline>>::install(pool, "run_inline");
    Hot<PyPool, Plain<&PyPool::has_mail>>::install(pool, "has_mail");
    Hot<PyPool, Plain<&PyPool::any_new>>::install(pool, "any_new");
    Class<PyWorker>(m, "Worker")
        .def(py::init<const PySegment&, std::size_t, const std::vector<std::uint32_t>&,
                      std::uint32_t, const std::shared_ptr<Meter>&,
                      const std::optional<WaitPolicy>&, std::uint32_t>(),
             py::arg("segment"), py::arg("offset"), py::arg("groups"), py::arg("index"),
             py::arg("meter"), py::arg("policy") = std::nullopt, py::arg("own") = 0)
        .def("serve", &PyWorker::serve, py::arg("blocks"), py::arg("report"), py::arg("flush"),
             "Steps blocks as commanded, until another command comes: (kind, group, frame, "
             "number).")
        .def("complete", &PyWorker::complete, py::arg("group"), py::arg("message"),
             "The group is done; whether a message follows.")
        .def("set_overflow", &PyWorker::set_overflow, py::arg("overflow"),
             "Whether the next step is to be reported in any case.");
    Class<Command> command(m, "Command");
    command.attr("STEP") = static_cast<std::uint32_t>(Command::kStep);
    command.attr("REQUEST") = static_cast<std::uint32_t>(Command::kRequest);
    command.attr("NOTE") = static_cast<std::uint32_t>(Command::kNote);
}

}  // namespace pysampler::bindings
