// The parent's end of a pool of workers: commands go out, completions come in.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "block.h"
#include "command.h"
#include "pool.h"
#include "process.h"
#include "support.h"
#include "trace.h"

namespace pysampler::bindings {

using Groups = std::vector<std::uint32_t>;

// The bytes of a pool's part of the segment. `counts`: how many groups each worker has;
// `inline_groups`: how many this process runs itself.
inline std::size_t size_of(const Groups& counts, std::uint32_t inline_groups) {
    for (const std::uint32_t count : counts) {
        if (count == 0 || count > PoolLayout::kGroups) {
            throw py::value_error("cannot make pool: a worker of " + std::to_string(count) +
                                  " groups, expected 1 to " + std::to_string(PoolLayout::kGroups));
        }
    }
    if (counts.empty() && inline_groups == 0) throw py::value_error("cannot make pool: no groups");
    return PoolLayout(counts, inline_groups).bytes();
}

// The parent's end.
// Owner: the thread in the guard of the vector env; any thread may pass notes and ask what is
// pending or ready.
//
// A call that sends to several groups sends to all of them or, if one does not accept a command, to
// none. A signal handler can raise before or after a send, never between a command and its message.
class PyPool : public Handle {
 public:
    PyPool(const PySegment& segment, const Groups& counts,
           const std::vector<std::uint64_t>& weights, std::uint64_t capacity,
           const std::optional<WaitPolicy>& policy, std::uint32_t inline_groups)
        : PyPool(Place(segment, py::none(), size_of(counts, inline_groups)), counts, weights,
                 capacity, policy, inline_groups) {}

    PyPool(const Place& place, const Groups& counts, const std::vector<std::uint64_t>& weights,
           std::uint64_t capacity, const std::optional<WaitPolicy>& policy,
           std::uint32_t inline_groups)
        : Handle("pool", place.segment, place.at),
          inline_(inline_groups),
          parts_(pool_parts(place.memory, counts, inline_groups)),
          pool_(parts_, inboxes(*place.segment, counts.size(), capacity), counts,
                checked(weights, parts_.groups)),
          home_(0, counts.size()),
          site_(policy) {
        named("Pool");
        if (!counts.empty()) prefer_short_slices();
    }

    // Sends a step to every group and wakes sleeping workers. False if commands remain to be
    // flushed.
    bool step(std::uint32_t frame) { return send_all(Command::kStep, frame, 1); }

    // The same for a chunk of steps from this frame on, of which only the last results are read.
    bool step_chunk_of_all(std::uint32_t frame, std::uint16_t steps) {
        return send_all(Command::kChunkLast, frame, steps);
    }

    // Sends a step to some groups, each with its frame; or a chunk of steps, with its first frame.
    // False as above.
    bool step_some(const std::vector<std::pair<std::uint32_t, std::uint32_t>>& group_frames,
                   std::uint8_t kind, std::uint16_t steps) {
        return send_each(group_frames, [&](const auto& one) {
            return Pool::Request{one.first, kind, one.second, std::nullopt, steps};
        });
    }

    // Sends a command to each of some groups. False as above.
    bool send(const std::vector<Pool::Request>& requests) {
        return send_each(requests, [](const auto& one) -> const auto& { return one; });
    }

    // Sends groups in flight their last commands again, some with a message. False as above.
    bool resend(const std::vector<std::pair<std::uint32_t, std::optional<py::bytes>>>& groups) {
        const Pin pin(*this, "send to");
        take_notes();
        for (const auto& [group, message] : groups) {
            std::optional<std::string> bytes;
            if (message) bytes = static_cast<std::string>(*message);
            if (pool_.in_flight(known(group))) pool_.resend(group, std::move(bytes));
        }
        return pool_.unsent() == 0;
    }

    // Sends messages to workers, before their next commands and without an answer. Any thread.
    void note(const std::vector<std::pair<std::uint32_t, py::bytes>>& messages) {
        const Pin pin(*this, "send to");
        for (const auto& [worker, message] : messages) known_worker(worker);
        for (const auto& [worker, message] : messages)
            add_note({worker, static_cast<std::string>(message), {}});
    }
    // Sends a worker these messages now. False if some remain to be flushed.
    bool send_notes(std::uint32_t worker) {
        const Pin pin(*this, "send to");
        known_worker(worker);
        take_notes();
        sound([&] { pool_.send_notes(worker); });
        return pool_.unsent() == 0;
    }

    // -- inline groups --------------------------------------------------------------------------

    // The blocks of the inline groups, in their order, which run_inline() steps. The list may
    // change.
    void set_inline_blocks(const py::list& blocks) { inline_blocks_ = blocks; }

    // Steps the inline groups that are due, in the order of sending, up to a job or a note, which
    // Python runs, or a block that is torn, whose envs Python replaces. Returns whether nothing is
    // left. A step that a signal handler's exception ends stays due, and its block is torn: no
    // Python runs between the end of a step and its completion.
    bool run_inline() {
        take_notes();
        while (const Command* due = pool_.due()) {
            const Turn turn(*this, waiting_, "wait on");
            if (!is_for_block(*due)) return false;
            const Command command = *due;
            const std::uint32_t at = command.group - (pool_.groups() - inline_);
            if (at >= inline_blocks_.size()) throw py::value_error("cannot use pool: no blocks");
            const py::object block = inline_blocks_[at];
            const std::uint64_t before = given_up_;
            auto& envs = block.cast<Block&>();
            if (envs.torn) return false;
            envs.torn = true;
            const bool left = command.kind == Command::kStep
                                  ? envs.step(command.frame)
                                  : envs.step_chunk(command.frame, command.steps,
                                                    command.kind == Command::kChunkLast);
            if (given_up_ != before || closed()) {
                raise("ClosedError", "cannot wait on pool: it was closed meanwhile");
            }
            mend_block(at);
            envs.torn = false;  // its envs may have gone on in another block
            pool_.complete_inline(std::exchange(has_overflow_, false) || left, now_ns());
        }
        return true;
    }

    // The job or note that is due, as (kind, group, frame, note), or None.
    py::object due() const {
        const Pin pin(*this, "wait on");
        const Command* due = pool_.due();
        if (due == nullptr) return py::none();
        const py::object note = due->kind == Command::kNote ? notes_.front() : py::none();
        return py::make_tuple(due->kind, due->group, due->frame, note);
    }
    void note_inline(py::object note) {
        const Pin pin(*this, "send to");
        add_note({kInline, {}, std::move(note)});
    }
    // Python has run due(). `message`: the answer is more than the results in the frame.
    void complete_inline(bool message) {
        const Pin pin(*this, "use");
        const Command* due = pool_.due();
        if (due == nullptr) throw py::value_error("cannot use pool: nothing is due");
        const py::object done = due->kind == Command::kNote ? notes_.front() : py::none();
        if (due->kind == Command::kNote) {
            notes_.pop_front();
        } else {
            mend_block(due->group - (pool_.groups() - inline_));
        }
        pool_.complete_inline(message, now_ns());
    }
    // The next inline step has overflow, whatever its block returns.
    void set_overflow(bool overflow) { has_overflow_ = overflow; }
    void cancel_inline() {
        const Pin pin(*this, "use");
        for (const py::handle block : inline_blocks_) {
            if (!py::isinstance<Block>(block)) continue;  // of trainers
            auto& envs = block.cast<Block&>();
            if (std::exchange(envs.halted, false)) envs.torn = true;  // its command is given up
        }
        pool_.cancel_inline();
    }
    // Drops everything due, and the Python objects that belong to it.
    void release_inline() {
        pool_.release_inline();
        const py::list blocks = std::exchange(inline_blocks_, py::list());
        const std::deque<py::object> notes = std::exchange(notes_, {});
        std::vector<Noted> noted;  // destroyed without the lock, since that may run Python code
        const std::lock_guard lock(noting_);
        noted.swap(noted_);
    }

    // Waits until every command, and its message, has gone to its worker. False at the deadline.
    bool flush(const Seconds& timeout, const Nanoseconds& deadline) {
        const std::int64_t until = deadline_of(timeout, deadline);
        const Turn turn(*this, waiting_, "send to");
        if (pool_.unsent() == 0) return true;
        return in_time("send to", [&](WaitPolicy& policy) { return pool_.flush(until, policy); });
    }
    std::size_t unsent() const { return pool_.unsent(); }

    // Waits until every group in flight is back; call take_all() when the results are read. A
    // message follows from groups_with_mail(). False at the deadline.
    bool wait(const py::handle& timeout, const py::handle& deadline) {
        const std::int64_t until = deadline_of(timeout, deadline);
        const Turn turn(*this, waiting_, "wait on");
        with_mail_.clear();
        if (pool_.pending() == 0) return true;
        if (!in_time("wait on", [&](WaitPolicy& policy) { return pool_.wait(until, policy); })) {
            return false;
        }
        with_mail_ = pool_.with_message(pool_.pending_weight());
        return true;
    }

    // Runs the inline groups, then waits until the doorbell has every group. True: all are back,
    // without mail. False: Python's Pool.wait() must do the rest, since
    //   - an inline job or note is due,
    //   - a group has mail: an env's exception, or objects in infos,
    //   - a worker died, or
    //   - it is time to look for late envs (step_timeout).
    // Throws the exception of a signal handler, and ClosedError if one has closed the pool.
    bool wait_all_back() {
        if (!run_inline()) return false;
        const Turn turn(*this, waiting_, "wait on");
        with_mail_.clear();
        const auto wait = [&](WaitPolicy& policy) { return pool_.wait(look_at_, policy); };
        if (outcome_of("wait on", wait) != Outcome::kReady) return false;
        with_mail_ = pool_.with_message(pool_.pending_weight());
        return with_mail_.empty();
    }

    // Steps every group, waits for all and takes them. False if something is left to do: flush,
    // wait or read.
    bool round(std::uint32_t frame) {
        if (!step(frame) || !wait_all_back()) return false;
        take_all();
        return true;
    }

    // Waits until the groups that are back weigh `least` (or all in flight are back), or until the
    // deadline. Returns them, not taken, longest ready first, up to a weight of `most`. A message
    // follows from groups_with_mail().
    Groups wait_some(std::uint64_t least, std::uint64_t most, const Nanoseconds& deadline) {
        const std::int64_t until = deadline_of(py::none(), deadline);
        const Turn turn(*this, waiting_, "wait on");
        with_mail_.clear();
        satisfied_ = in_time(
            "wait on", [&](WaitPolicy& policy) { return pool_.wait_some(least, until, policy); });
        with_mail_ = pool_.with_message(most);
        return pool_.back(most);
    }

    // The groups are back and their messages read, or their answers no longer wanted.
    void take(const Groups& groups) {
        const Pin pin(*this, "take from");
        for (const std::uint32_t group : groups) known(group);
        for (const std::uint32_t group : groups) taken(group);
    }
    void take_all() {
        const Pin pin(*this, "take from");
        for (std::uint32_t group = 0; group < pool_.groups(); ++group) taken(group);
    }

    // -- late envs ------------------------------------------------------------------------------

    // When Python next looks for late envs, in ns; never, by default.
    void set_look_at(std::int64_t at) { look_at_ = at; }
    std::int64_t look_at() const { return look_at_; }
    bool look_due() const { return now_ns() >= look_at_; }
    // Before a look: a worker that another should have woken is not late itself.
    void wake_left() {
        const Pin pin(*this, "look at");
        pool_.wake_left();
    }
    // When a wait must end: at its deadline or at look_at(), whichever comes first.
    py::object until(const py::object& deadline) const {
        if (look_at_ == kForever) return deadline;
        if (deadline.is_none()) return py::int_(look_at_);
        return py::int_(std::min(deadline.cast<std::int64_t>(), look_at_));
    }

    // Whether the last wait_some() ended before its deadline.
    bool satisfied() const { return satisfied_; }

    std::uint64_t ready_weight() const {
        const Pin pin(*this, "look at");
        return pool_.ready_weight();
    }
    const Groups& groups_with_mail() const { return with_mail_; }
    bool has_mail() const { return !with_mail_.empty(); }
    std::uint32_t pending() const { return pool_.pending(); }
    std::uint64_t pending_weight() const { return pool_.pending_weight(); }
    bool in_flight(std::uint32_t group) const { return pool_.in_flight(known(group)); }
    bool is_ready(std::uint32_t group) const {
        const Pin pin(*this, "look at");
        return pool_.is_ready(known(group));
    }
    std::uint32_t frame_of(std::uint32_t group) const { return pool_.frame_of(known(group)); }
    std::uint32_t number_of(std::uint32_t group) const { return pool_.number_of(known(group)); }

    void renew(std::uint32_t worker) {
        known_worker(worker);
        const Pin pin(*this, "renew");
        take_notes();
        pool_.renew(worker);
    }
    void forget_losses() { pool_.forget_losses(); }

    // Traces to this track from now on; null turns tracing off.
    void trace_to(std::shared_ptr<Track> track) { track_ = std::move(track); }
    const std::shared_ptr<Track>& track() const { return track_; }
    // Adds the ns that this process waits to the array's one number; an empty array: to none.
    void count_waits_in(const py::array_t<std::int64_t>& counter) { waited_ns_ = counter; }

    // For a signal handler: the wait that it interrupted ends with a ClosedError once the handler
    // returns, and the handler itself may wait.
    void interrupt_wait() {
        if (waiting_.by() != self_id()) return;
        ++given_up_;
        waiting_.leave();
        pool_.interrupt_wait();
    }

    std::size_t inbox(std::uint32_t worker) const {
        known_worker(worker);
        return inboxes_at_[worker];
    }
    Part worker(std::uint32_t worker) const {
        known_worker(worker);
        const Pin pin(*this, "watch");
        return {"pool's worker " + std::to_string(worker),
                [segment = pin.segment(), on_death = pool_.on_death(worker)](int) { on_death(); }};
    }

    std::string state() const {
        return repr([this] {
            return std::to_string(pool_.workers()) + " workers, " + std::to_string(pool_.groups()) +
                   " groups, " + std::to_string(pool_.pending()) + " in flight";
        });
    }

 private:
    template <class Each, class RequestOf>
    bool send_each(const Each& each, RequestOf&& request_of) {
        const Pin pin(*this, "send to");
        take_notes();
        const Traced sending(track_, TraceKind::kSend, static_cast<std::uint32_t>(each.size()));
        for (const auto& one : each) expect_idle(known(request_of(one).group));
        for (const auto& one : each) {
            const Pool::Request& request = request_of(one);
            mark(TraceKind::kSent, request.group);
            pool_.send(request);
        }
        return pool_.unsent() == 0;
    }
    bool send_all(std::uint8_t kind, std::uint32_t frame, std::uint16_t steps) {
        const Pin pin(*this, "send to");
        take_notes();
        const Traced sending(track_, TraceKind::kSend, pool_.groups());
        for (std::uint32_t group = 0; group < pool_.groups(); ++group) expect_idle(group);
        sound([&] {
            pool_.send_all(
                kind, frame, steps, [this](std::uint32_t group) { mark(TraceKind::kSent, group); },
                home_.worker_here());
        });
        return pool_.unsent() == 0;
    }

    // A note that some thread has passed, for a worker or for this process.
    struct Noted {
        std::uint32_t worker;
        std::string message;
        py::object inline_note;
    };
    static constexpr std::uint32_t kInline = UINT32_MAX;

    // The block of this inline group has done its command.
    void mend_block(std::size_t at) {
        if (at >= inline_blocks_.size()) return;
        const py::handle block = inline_blocks_[at];
        if (py::isinstance<Block>(block)) block.cast<Block&>().torn = false;
    }
    void add_note(Noted note) {
        const std::lock_guard lock(noting_);
        noted_.push_back(std::move(note));
        any_noted_.store(true, std::memory_order_release);
    }
    // Queues the notes of all threads before what is sent next.
    void take_notes() {
        // SYNC: pairs with the store in add_note(); a note added after this goes out with the next
        // command.
        if (!any_noted_.load(std::memory_order_acquire)) return;
        std::vector<Noted> noted;
        {
            const std::lock_guard lock(noting_);
            noted.swap(noted_);
            any_noted_.store(false, std::memory_order_relaxed);
        }
        for (Noted& note : noted) {
            if (note.worker == kInline) {
                notes_.push_back(std::move(note.inline_note));
                pool_.note_inline();
            } else {
                pool_.note(note.worker, std::move(note.message));
            }
        }
    }

    // Counts how long this process waits, for programs that monitor it.
    class Waiting {
     public:
        explicit Waiting(const py::array_t<std::int64_t>& counter)
            : counter_(counter), began_(now_ns()) {}
        Waiting& operator=(Waiting&&) = delete;  // nor copies
        ~Waiting() {
            if (counter_.size() > 0) *counter_.mutable_data() += now_ns() - began_;
        }

     private:
        py::array_t<std::int64_t> counter_;  // a reference: the owner may drop it meanwhile
        std::int64_t began_;
    };

    // Traces a moment of a group, if a trace is wanted.
    void mark(TraceKind kind, std::uint32_t group) {
        if (track_ == nullptr) return;
        const std::int64_t now = track_->begin();
        if (now != 0) track_->add(kind, group, now, now);
    }
    void taken(std::uint32_t group) {
        if (pool_.in_flight(group)) mark(TraceKind::kTaken, group);
        pool_.take(group);
    }

    static std::vector<std::uint64_t> checked(const std::vector<std::uint64_t>& weights,
                                              std::size_t groups) {
        if (weights.size() == groups && std::ranges::count(weights, 0U) == 0) return weights;
        throw py::value_error("cannot make pool: expected a weight for each group");
    }

    std::vector<Inbox> inboxes(Segment& segment, std::size_t workers, std::uint64_t capacity) {
        std::vector<Inbox> all;
        for (std::size_t worker = 0; worker < workers; ++worker) {
            const std::size_t at = segment.allocate(capacity + sizeof(RingCell), Segment::page());
            inboxes_at_.push_back(at);
            all.push_back({reinterpret_cast<RingCell*>(segment.at(at + capacity, sizeof(RingCell))),
                           also(segment.map_twice(at, capacity)).get(), capacity});
        }
        return all;
    }

    std::uint32_t known(std::uint32_t group) const {
        if (group < pool_.groups()) return group;
        throw py::index_error("cannot use pool: group " + std::to_string(group) +
                              ", expected one below " + std::to_string(pool_.groups()));
    }
    void known_worker(std::uint32_t worker) const {
        if (worker < pool_.workers()) return;
        throw py::index_error("cannot use pool: worker " + std::to_string(worker) +
                              ", expected one below " + std::to_string(pool_.workers()));
    }
    void expect_idle(std::uint32_t group) const {
        if (!pool_.in_flight(group)) return;
        raise("BusyError", "cannot send to pool: group " + std::to_string(group) +
                               " has not finished its last command");
    }

    // Translates the error here: exceptions thrown below a Hot method reach no translator.
    template <class Call>
    static std::invoke_result_t<Call> sound(Call&& call) {
        try {
            return call();
        } catch (const CorruptRing& error) {
            raise("LayoutError", error.what());
        }
    }

    // Calls `wait(policy)` without the GIL. False at the deadline.
    template <class Wait>
    bool in_time(const char* verb, Wait&& wait) {
        const Outcome outcome = outcome_of(verb, wait);
        if (outcome == Outcome::kLost) {
            py::dict attributes;
            attributes["members"] = py::cast(pool_.lost());
            raise("LostError", std::string("cannot ") + verb + " pool: groups are lost",
                  attributes);
        }
        return outcome == Outcome::kReady;
    }

    // Calls `wait(policy)` without the GIL. Returns kReady, kTimedOut or kLost.
    template <class Wait>
    Outcome outcome_of(const char* verb, Wait&& wait) {
        const Traced traced(track_, TraceKind::kWait, pool_.pending());
        const Waiting counted(waited_ns_);
        const auto wanted = [this, before = given_up_] {
            if (given_up_ != before || closed()) return false;
            pool_.wake_left();
            return true;
        };
        const Outcome outcome = sound([&] { return site_(wait, wanted); });
        if (outcome == Outcome::kTimedOut) pool_.wake_left();
        if (outcome == Outcome::kInterrupted) {
            raise("ClosedError", std::string("cannot ") + verb + " pool: it was closed meanwhile");
        }
        if (outcome == Outcome::kBusy) busy(verb, pool_.waiter());
        return outcome;
    }

    std::uint32_t inline_;  // how many groups, the last ones, are inline
    py::list inline_blocks_;
    std::deque<py::object> notes_;  // the inline notes that are due
    std::mutex noting_;             // guards noted_
    std::vector<Noted> noted_;      // by any thread, not yet queued
    std::atomic<bool> any_noted_{false};
    bool has_overflow_ = false;
    std::int64_t look_at_ = kForever;
    PoolParts parts_;
    std::vector<std::size_t> inboxes_at_;  // offsets, by worker
    Pool pool_;
    Home home_;
    Groups with_mail_;
    bool satisfied_ = false;
    std::uint64_t given_up_ = 0;  // how often interrupt_wait() ended a wait
    Site site_;
    Side waiting_;
    std::shared_ptr<Track> track_;
    py::array_t<std::int64_t> waited_ns_;
};

}  // namespace pysampler::bindings
