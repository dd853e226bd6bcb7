// The pending call of a vector env, and the fast path: a usual step is one call of C++.
#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "frame_access.h"
#include "guard.h"
#include "hot.h"
#include "py_pool.h"
#include "shown.h"
#include "support.h"
#include "trace.h"

namespace pysampler::bindings {
namespace {

// The calls that may be pending.
constexpr std::array kNames{"step",  "send",      "reset",     "call",    "describe",
                            "apply", "get_state", "set_state", "set_attr"};
constexpr int kNone = -1, kStep = 0, kSend = 1;

// The pending call of a vector env: its name, and which results are on their way to the caller.
// Owner: the thread in the guard; any thread may ask what is pending.
//
// A signal handler may raise an exception between any two lines of Python, even when results have
// been read but have not reached the caller. So reading consumes nothing: groups stay in flight,
// and their results in the frames, until Python sets `returned`, at a place where no handler can
// run between that and the return. Until then they can be read again.
class Call {
 public:
    // `entry` is the guard's entry for a step.
    Call(const py::object& pool, const py::object& entry)
        : pool_object_(pool),
          entry_object_(entry),
          pool_(pool.cast<PyPool&>()),
          entry_(entry.cast<Entry&>()) {
        for (const char* name : kNames) names_.push_back(interned(name));
    }

    // -- the pending call -----------------------------------------------------------------------

    // Called before the first command of the call is sent.
    void begin(const std::string& what) {
        const auto* const found = std::ranges::find(kNames, what);
        if (found == kNames.end()) throw py::value_error("cannot begin call: " + what);
        const auto name = static_cast<int>(found - kNames.begin());
        if (name_ != kSend || name != kSend) read_ = {};  // of a call that was given up
        name_ = name;
    }
    py::object name() const {
        const int name = name_;
        return name < 0 ? py::object(py::none()) : names_[static_cast<std::size_t>(name)];
    }

    // The results of these groups have been read, or of all groups. Once they are returned, the
    // groups are taken, and if `seen`, the caller has seen their frames.
    void hand_over(std::optional<Groups> groups, bool seen) {
        read_ = {true, seen, std::move(groups)};
        entry_.keeps();
    }
    bool returned() const { return !read_.any; }
    // The groups that were handed over and not returned, or None.
    py::object on_their_way() const { return read_.any ? py::cast(read_.groups) : py::none(); }
    // The caller gets these results now; false: an exception keeps them, so any thread may ask for
    // them. A property, because Python runs signal handlers after a call but not after an
    // assignment. After send(), other groups may still be pending.
    void set_returned(bool returned) {
        const Read read = returned ? std::exchange(read_, {}) : Read{};
        if (read.seen && laid_out()) {
            read.groups ? frames_->mark_seen(*read.groups) : frames_->mark_all_seen();
        }
        if (read.any && !pool_.closed()) read.groups ? pool_.take(*read.groups) : pool_.take_all();
        if (returned && name_ != kSend) name_ = kNone;
        entry_.returned();
    }
    void forget() {
        read_ = {};
        name_ = kNone;
        entry_.keeps_nothing();
    }

    // -- its frames -----------------------------------------------------------------------------

    // From now on calls use these frames. None: there are none until they are laid out anew.
    void use_frames(const py::object& frames) {
        frames_ = frames.is_none() ? nullptr : &frames.cast<FrameAccess&>();
        frames_object_ = frames;
        laid_out_ = frames_ != nullptr;
        entries_when_armed_ = 0;
    }
    bool laid_out() const { return laid_out_; }

    // -- a step in one call ---------------------------------------------------------------------

    // Python has checked everything that could be unusual: unless another call enters the guard
    // first, the next step may take the fast path; or the next chunk of this many steps, if any.
    void arm_fast_path(std::uint16_t chunk) {
        entries_when_armed_ = entry_.entries();
        armed_chunk_ = chunk;
    }

    // Returns the results of a step of all envs. If anything unusual happens, returns whether the
    // commands were sent, and Python does the rest.
    py::object step(const py::handle& actions) {
        if (!is_armed() || armed_chunk_ != 0) return py::bool_(false);
        return entered([&] { return is_still_armed() ? step_inside(actions) : not_sent(); });
    }

    // The same for a chunk of steps, for each env's last observation.
    py::object step_chunk(const py::handle& actions) {
        if (!is_armed() || armed_chunk_ == 0) return py::bool_(false);
        return entered([&] { return is_still_armed() ? chunk_inside(actions) : not_sent(); });
    }

 private:
    bool is_armed() const { return laid_out_ && entry_.entries() == entries_when_armed_; }
    // In the guard: whether no other thread has been there since is_armed().
    bool is_still_armed() const { return entry_.entries() == entries_when_armed_ + 1; }

    // Calls `work` in the guard.
    template <class Work>
    py::object entered(Work&& work) {
        entry_.enter();
        py::object results;
        try {
            results = work();
        } catch (py::error_already_set& error) {
            entry_.exit(error.type());
            throw;
        } catch (const py::builtin_exception& error) {
            error.set_error();
            const py::error_already_set raised;
            entry_.exit(raised.type());
            throw;
        } catch (...) {
            entry_.exit(py::none());
            throw;
        }
        entry_.exit(py::none());
        return results;
    }

    // The frames during a step. Converting actions, waiting and unpickling infos run signal
    // handlers, which may close the vector env: then it leaves its frames, and Python raises.
    class InUse {
     public:
        explicit InUse(const Call& call)
            : call_(call), object_(call.frames_object_), frames_(call.frames_) {}
        FrameAccess* operator->() const { return frames_; }
        bool left() const { return call_.frames_ != frames_; }

     private:
        const Call& call_;
        py::object object_;  // keeps the frames alive
        FrameAccess* frames_;
    };

    // Writes the actions, wakes the workers, waits for all groups, and reads. Returns the five
    // results, or a bool. False: nothing was sent. True: all commands were accepted, and Python
    // waits (which flushes unsent commands first) and reads. It may do so even if this function has
    // waited or read already: nothing is taken from the pool before the caller has the results.
    py::object step_inside(const py::handle& actions) {
        if (read_.any) return not_sent();  // an exception came before the caller had the results
        const InUse frames(*this);
        const std::uint32_t frame = frames->next();
        if (!frames->write(frame, actions) || frames.left()) return not_sent();  // of other types
        frames->use(frame);
        name_ = kStep;
        if (!pool_.step(frame)) return sent();  // a ring was full
        if (!pool_.wait_all_back() || frames.left()) return sent();
        const auto read = traced([&] { return frames->read(frame); });
        if (frames.left() || needs_python(read)) return sent();
        return handed_over(read, 0);
    }

    py::object chunk_inside(const py::handle& actions) {
        const std::uint16_t steps = armed_chunk_;
        const InUse frames(*this);
        if (read_.any || !frames->write_chunk(steps, actions)) return not_sent();
        if (frames.left()) return not_sent();
        name_ = kStep;
        if (!pool_.step_chunk_of_all(frames->chunk_frame(), steps)) return sent();
        if (!pool_.wait_all_back() || frames.left()) return sent();
        const auto read = traced([&] { return frames->read_chunk(steps); });
        return frames.left() || needs_python(read) ? sent() : handed_over(read, steps);
    }

    // Observations without a fixed shape come by mail, through the worker's outbox; and the values
    // of some keys of infos may have no common dtype.
    static bool needs_python(const py::tuple& read) {
        const py::handle observations = read[0], mixed_keys = read[5];
        return observations.is_none() || PyObject_IsTrue(mixed_keys.ptr()) != 0;
    }

    py::object handed_over(const py::tuple& read, std::uint16_t chunk) {
        const auto stepped = py::reinterpret_steal<py::object>(PyTuple_GetSlice(read.ptr(), 0, 5));
        if (!stepped) throw py::error_already_set();
        hand_over(std::nullopt, chunk == 0);  // a chunk has marked its frames
        arm_fast_path(chunk);
        return stepped;
    }

    static py::object not_sent() { return py::bool_(false); }
    static py::object sent() { return py::bool_(true); }

    template <class Read>
    py::tuple traced(Read&& read) const {
        const Traced reading(pool_.track(), TraceKind::kRead, 0);
        return read();
    }

    py::object pool_object_, entry_object_, frames_object_;  // keep the C++ objects below alive
    PyPool& pool_;
    Entry& entry_;
    FrameAccess* frames_ = nullptr;
    Shown<bool> laid_out_ = false;  // whether there are frames
    struct Read {
        bool any = false;
        bool seen = false;
        std::optional<Groups> groups;  // or all
    };
    Read read_;
    Shown<int> name_ = kNone;                  // an index of kNames
    std::vector<py::object> names_;            // the same, as Python has them
    Shown<std::uint64_t> entries_when_armed_;  // of the guard, counted by arm_fast_path()
    Shown<std::uint16_t> armed_chunk_;         // the steps of the chunk that is armed; 0: a step
};

}  // namespace

template <>
inline constexpr bool is_bound<Call> = true;

void register_call(py::module_& m) {
    Class<Call> call(m, "Call");
    call.def(py::init<const py::object&, const py::object&>(), py::arg("pool"), py::arg("entry"))
        .def_property_readonly("name", &Call::name, "The pending call; a send until another.")
        .def("begin", &Call::begin, py::arg("name"),
             "Note that this call is pending, before its first command is sent.")
        .def("hand_over", &Call::hand_over, py::arg("groups"), py::arg("seen"),
             "Note that the results of these groups, None: all, have been read: once they are "
             "`returned` the groups are taken, and the caller has `seen` their frames.")
        .def_property_readonly("on_their_way", &Call::on_their_way,
                               "The groups that were handed over and not returned, or None.")
        .def_property(
            "returned", [](const Call& self) { return self.returned(); }, &Call::set_returned,
            "Whether no results are on their way; set it right before returning them, or to False "
            "when an exception keeps them from the caller.")
        .def("forget", &Call::forget, "Note that nothing is pending.")
        .def("use_frames", &Call::use_frames, py::arg("frames"),
             "Use these frames from now on; None: there are none until they are laid out anew.")
        .def_property_readonly("laid_out", &Call::laid_out, "Whether there are frames to use.")
        .def("arm_fast_path", &Call::arm_fast_path, py::arg("chunk") = 0,
             "Let step() do the next step, or step_chunk() the next chunk of this many steps, "
             "unless another call comes first.")
        .def("step", &Call::step, py::arg("actions"),
             "Step all envs and return the results; if Python must do the rest, return whether the "
             "actions were sent.")
        .def("step_chunk", &Call::step_chunk, py::arg("actions"),
             "The same for a chunk of steps, of which only the last observations are returned.");
    Hot<Call, Unary<&Call::step>>::install(call, "step");
    Hot<Call, Unary<&Call::step_chunk>>::install(call, "step_chunk");
}

}  // namespace pysampler::bindings
