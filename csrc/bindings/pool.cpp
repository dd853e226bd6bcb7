// Python's ends of a pool's commands and completions: Pool in the parent, Worker in each worker.
#include <pybind11/stl.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "block.h"
#include "command.h"
#include "hot.h"
#include "leaf.h"
#include "meter.h"
#include "pool_worker.h"
#include "process.h"
#include "py_pool.h"
#include "support.h"

namespace pysampler::bindings {
namespace {

// A worker's end.
// Owner: the thread of the worker; serve() refuses a second one. Any thread may end the commands.
class PyWorker : public Handle {
 public:
    PyWorker(const PySegment& segment, std::size_t offset, const Groups& counts,
             std::uint32_t index, const std::shared_ptr<Meter>& meter,
             const std::optional<WaitPolicy>& policy, std::uint32_t inline_groups)
        : PyWorker(Place(segment, py::int_(offset), size_of(counts, inline_groups)), counts, index,
                   meter, policy, inline_groups) {}

    PyWorker(const Place& place, const Groups& counts, std::uint32_t index,
             const std::shared_ptr<Meter>& meter, const std::optional<WaitPolicy>& policy,
             std::uint32_t inline_groups)
        : Handle("worker", place.segment, place.at),
          worker_(pool_parts(place.memory, counts, inline_groups),
                  index < counts.size() ? index : throw py::index_error("no such worker")),
          first_(std::accumulate(counts.begin(), counts.begin() + index, std::uint32_t{0})),
          home_(index, counts.size()),
          meter_(meter),
          site_(policy) {
        named("Worker");
        prefer_short_slices();
        // While the others stay awake, this one's CPU is left for the parent.
        site_.policy().set_shares_cpu(home_ && index + 1 == counts.size());
        site_.policy().set_home(&home_);
        // As many groups as the parent still waits for are at work beside this worker.
        site_.policy().set_busy([this] { return worker_.wanted(); });
    }

    // Steps blocks as commanded, until a command comes that is not a step; returns that one as
    // (kind, group, frame, number). Calls `report(group, number)` after a step with overflow and
    // `flush()` when there is nothing else to do; both return whether there is more to flush.
    py::tuple serve(const py::list& blocks, const py::object& report, const py::object& flush) {
        const Turn turn(*this, serving_, "serve");
        const py::tuple held(blocks);  // keeps them alive: `report` may remove some from the list
        std::vector<Block*> all;
        all.reserve(held.size());
        for (const py::handle block : held) {  // None for a group without a block to step
            all.push_back(block.is_none() ? nullptr : &block.cast<Block&>());
        }
        bool unsent = call_in_worker(flush).cast<bool>();
        for (;;) {
            const std::optional<Command> command = worker_.next();
            if (!command) {
                if (!unsent) wait();
                unsent = unsent && call_in_worker(flush).cast<bool>();
                continue;
            }
            if (command->group < first_ || command->group - first_ >= all.size()) {
                raise("LayoutError", "cannot serve: a command to a group of another worker");
            }
            if (!is_for_block(*command)) {
                job_began_ = arrived();
                return py::make_tuple(command->kind, command->group, command->frame,
                                      command->number);
            }
            const std::int64_t began = arrived();
            Block& block = *all[command->group - first_];
            bool left = command->kind == Command::kStep
                            ? block.step(command->frame)
                            : block.step_chunk(command->frame, command->steps,
                                               command->kind == Command::kChunkLast);
            left |= std::exchange(has_overflow_, false);
            // Before the completion, so that the parent that it wakes finds the message and does
            // not wait for it on a CPU that this worker needs to send it.
            if (left) unsent = call_in_worker(report, command->group, command->number).cast<bool>();
            finish(TraceKind::kCommand, command->group, left, began);
        }
    }

    // The group has done its job. `message`: one follows.
    void complete(std::uint32_t group, bool message) {
        if (group >= worker_.groups()) throw py::index_error("cannot complete: no such group");
        finish(TraceKind::kJob, group, message, job_began_);
    }

    // Lets serve() raise LostError once no command is left. Any thread may call this.
    void end_commands() { worker_.end_commands(); }

    // The next step has overflow, whatever its block returns.
    void set_overflow(bool overflow) { has_overflow_ = overflow; }

 private:
    // The arrival time of a command; 0 if it is not traced.
    std::int64_t arrived() const { return meter_->track() ? meter_->track()->begin() : 0; }

    void finish(TraceKind kind, std::uint32_t group, bool message, std::int64_t began) {
        const std::int64_t now = now_ns();
        // First, so that a reader that sees the completion finds the command in the trace.
        if (began != 0) meter_->track()->add(kind, group, began, now);
        worker_.complete(group, message, now);
    }

    // Waits for a command. The longer the worker is idle, the more rarely it wakes to look for
    // signals that came just before it slept.
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
    Home home_;
    std::shared_ptr<Meter> meter_;
    Site site_;
    Side serving_;
    bool has_overflow_ = false;
    std::int64_t job_began_ = 0;
};

std::vector<Pool::Request> requests_of(const py::iterable& requests) {
    std::vector<Pool::Request> all;
    for (const py::handle one : requests) {
        const auto [group, kind, frame, message, steps] = one.cast<
            std::tuple<std::uint32_t, std::uint8_t, std::uint32_t, py::object, std::uint16_t>>();
        all.push_back({group, kind, frame,
                       message.is_none() ? std::nullopt
                                         : std::optional<std::string>(message.cast<py::bytes>()),
                       steps});
    }
    return all;
}

}  // namespace

void register_pool(py::module_& m) {
    Class<Block> block(m, "Block");  // a base class only
    block
        .def_readwrite("torn", &Block::torn,
                       "Whether an exception has ended a step half-way: replace the envs.")
        .def_readwrite("halted", &Block::halted,
                       "Whether an exception has ended a wait: the same command goes on with it.");
    Class<PyPool> pool(m, "Pool");
    pool.def(py::init<const PySegment&, const std::vector<std::uint32_t>&,
                      const std::vector<std::uint64_t>&, std::uint64_t,
                      const std::optional<WaitPolicy>&, std::uint32_t>(),
             py::arg("segment"), py::arg("groups"), py::arg("weights"), py::arg("capacity"),
             py::arg("policy") = std::nullopt, py::arg("inline") = 0)
        .def("step", &PyPool::step, py::arg("frame"),
             "Send a step to every group; return False if commands remain to be flushed.")
        .def("round", &PyPool::round, py::arg("frame"),
             "Step every group, wait until all are back, and take them; return False if something "
             "is left to do: flush, look for late envs, or read a message.")
        .def("step_some", &PyPool::step_some, py::arg("group_frames"),
             py::arg("kind") = static_cast<std::uint8_t>(Command::kStep), py::arg("steps") = 1,
             "Send a step, or a chunk of steps, to some groups, given as (group, frame) pairs; "
             "return False if commands remain to be flushed.")
        .def(
            "send",
            [](PyPool& self, const py::iterable& requests) {
                return self.send(requests_of(requests));
            },
            py::arg("requests"),
            "Send commands (group, kind, frame, message or None, steps), all or none of them; "
            "return False if commands remain to be flushed.")
        .def("resend", &PyPool::resend, py::arg("groups"),
             "Send groups in flight their last commands again, each with the message of a request, "
             "or None: (group, message) pairs. Return False if commands remain to be flushed.")
        .def("note", &PyPool::note, py::arg("messages"),
             "Send messages to workers before their next commands: (worker, message) pairs.")
        .def("send_notes", &PyPool::send_notes, py::arg("worker"),
             "Send a worker these messages now, without a command; return False if some remain to "
             "be flushed.")
        .def("set_inline_blocks", &PyPool::set_inline_blocks, py::arg("blocks"),
             "Set the blocks of the inline groups, for run_inline().")
        .def("run_inline", &PyPool::run_inline,
             "Step the inline groups that are due, up to a job or a note; return whether nothing "
             "is left.")
        .def_property_readonly("due", &PyPool::due,
                               "The inline job or note to run next: (kind, group, frame, note).")
        .def("note_inline", &PyPool::note_inline, py::arg("note"), "Add an inline note in order.")
        .def("set_overflow", &PyPool::set_overflow, py::arg("overflow"),
             "Set whether the next inline step has overflow, whatever its block returns.")
        .def("complete_inline", &PyPool::complete_inline, py::arg("message"),
             "Complete the job or note that was due; `message`: its answer must be read.")
        .def("cancel_inline", &PyPool::cancel_inline,
             "Drop the inline commands that are due; they are no longer in flight.")
        .def("flush", &PyPool::flush, py::arg("timeout") = py::none(), py::kw_only(),
             py::arg("deadline") = py::none(),
             "Wait until every command has gone to its worker; return False at the deadline.")
        .def_property_readonly("unsent", &PyPool::unsent, "How many commands have not gone yet.")
        .def("wait", &PyPool::wait, py::arg("timeout") = py::none(), py::kw_only(),
             py::arg("deadline") = py::none(),
             "Wait until all groups in flight are back; return False at the deadline.")
        .def("wait_some", &PyPool::wait_some, py::arg("least"), py::arg("most"), py::kw_only(),
             py::arg("deadline") = py::none(),
             "Wait until the groups that are back weigh `least`, or until the deadline; return "
             "them, longest ready first, up to a weight of `most`.")
        .def("take", &PyPool::take, py::arg("groups"),
             "Take groups that are back, or whose answers are no longer wanted.")
        .def("take_all", &PyPool::take_all, "Take all groups in flight.")
        .def_property("look_at", &PyPool::look_at, &PyPool::set_look_at,
                      "When to look for late envs next, in ns.")
        .def_property_readonly("look_due", &PyPool::look_due, "Whether `look_at` has passed.")
        .def("wake_left", &PyPool::wake_left,
             "Wake the workers that others should have woken, but may not have.")
        .def("until", &PyPool::until, py::arg("deadline"),
             "Return when a wait must end: at its deadline or at `look_at`.")
        .def_property_readonly("satisfied", &PyPool::satisfied, "If wait_some() was in time.")
        .def_property_readonly("ready_weight", &PyPool::ready_weight,
                               "The weight of groups that are back and not taken.")
        .def_property_readonly("pending_weight", &PyPool::pending_weight,
                               "The weight of groups in flight.")
        .def("renew", &PyPool::renew, py::arg("worker"),
             "Let another process replace a dead worker; its groups in flight need resend().")
        .def("forget_losses", &PyPool::forget_losses, "Do not report past losses again.")
        .def("number_of", &PyPool::number_of, py::arg("group"),
             "Return the number of a group's last command, which the answer repeats.")
        .def("interrupt_wait", &PyPool::interrupt_wait,
             "End the wait of this thread that the calling signal handler interrupted.")
        .def("inbox", &PyPool::inbox, py::arg("worker"), "Return the offset of a worker's inbox.")
        .def("worker", &PyPool::worker, py::arg("worker"),
             "Return the part that a Watch marks lost when the worker dies.")
        .def("frame_of", &PyPool::frame_of, py::arg("group"),
             "Return the frame of a group's last command.")
        .def("in_flight", &PyPool::in_flight, py::arg("group"),
             "Whether a group has a command in flight.")
        .def("is_ready", &PyPool::is_ready, py::arg("group"), "Whether a group is back.")
        .def("has_mail", &PyPool::has_mail, "Whether there are any `groups_with_mail`.")
        .def_property_readonly("groups_with_mail", &PyPool::groups_with_mail,
                               "The groups that the last wait found with a message to read.")
        .def_property_readonly("pending", &PyPool::pending, "How many groups are in flight.")
        .def_property_readonly("offset", &PyPool::offset, "Its offset in its segment.")
        .def("trace_to", &PyPool::trace_to, py::arg("track"),
             "Trace to this track from now on; None turns tracing off.")
        .def("count_waits_in", &PyPool::count_waits_in, py::arg("counter").noconvert(),
             "Add the ns that this process waits to the number in `counter`.")
        .def(
            "close",
            [](PyPool& self) {
                self.close();
                self.release_inline();
                self.trace_to(nullptr);
                self.count_waits_in({});
            },
            "Release the memory.")
        .def_static("size_of", &size_of, py::arg("groups"), py::arg("inline") = 0,
                    "Return how many bytes it takes in a segment.")
        .def("__repr__", &PyPool::state);
    Hot<PyPool, OfNumber<&PyPool::step>>::install(pool, "step");
    Hot<PyPool, OfNumber<&PyPool::round>>::install(pool, "round");
    Hot<PyPool, Timed<&PyPool::wait>>::install(pool, "wait");
    Hot<PyPool, Plain<&PyPool::run_inline>>::install(pool, "run_inline");
    Hot<PyPool, Plain<&PyPool::has_mail>>::install(pool, "has_mail");
    Class<PyWorker>(m, "Worker")
        .def(py::init<const PySegment&, std::size_t, const std::vector<std::uint32_t>&,
                      std::uint32_t, const std::shared_ptr<Meter>&,
                      const std::optional<WaitPolicy>&, std::uint32_t>(),
             py::arg("segment"), py::arg("offset"), py::arg("groups"), py::arg("index"),
             py::arg("meter"), py::arg("policy") = std::nullopt, py::arg("inline") = 0)
        .def("serve", &PyWorker::serve, py::arg("blocks"), py::arg("report"), py::arg("flush"),
             "Step blocks as commanded until another command comes; return that one as (kind, "
             "group, frame, number).")
        .def("complete", &PyWorker::complete, py::arg("group"), py::arg("message"),
             "Complete the group's command; `message`: one follows.")
        .def("set_overflow", &PyWorker::set_overflow, py::arg("overflow"),
             "Set whether the next step has overflow, whatever its block returns.")
        .def("end_commands", &PyWorker::end_commands,
             "Let serve() raise LostError once no command is left; any thread may call this.");
    Class<Command> command(m, "Command");
    command.attr("STEP") = static_cast<std::uint32_t>(Command::kStep);
    command.attr("REQUEST") = static_cast<std::uint32_t>(Command::kRequest);
    command.attr("NOTE") = static_cast<std::uint32_t>(Command::kNote);
    command.attr("CHUNK") = static_cast<std::uint32_t>(Command::kChunk);
    command.attr("CHUNK_LAST") = static_cast<std::uint32_t>(Command::kChunkLast);
}

}  // namespace pysampler::bindings
