// The pending call of a vector env, and the fast path: a usual step is one call of C++.
#include <cstdint>
#include <mutex>
#include <utility>

#include "frame_access.h"
#include "guard.h"
#include "hot.h"
#include "py_pool.h"
#include "shown.h"
#include "support.h"
#include "trace.h"

namespace pysampler::bindings {
namespace {

// The pending call of a vector env: its name, and the results on their way to the caller.
// Owner: the thread in the guard; any thread may ask what is pending.
//
// A signal handler may raise an exception between any two lines of Python, even when results have
// been taken from the pool but have not reached the caller. So they are kept here until Python sets
// `returned`, at a place where no handler can run between that and the return.
class Call {
 public:
    // `entry` is the guard's entry for a step; `groups` names all groups in kept results.
    Call(const py::object& pool, const py::object& entry, py::object groups)
        : pool_object_(pool),
          entry_object_(entry),
          pool_(pool.cast<PyPool&>()),
          entry_(entry.cast<Entry&>()),
          groups_(std::move(groups)) {}

    // -- the pending call -----------------------------------------------------------------------

    // Called before the first command of the call is sent.
    void begin(py::object name) { exchange(name_, std::move(name)); }
    py::object name() const { return get(name_); }

    // The results on their way to the caller, as (groups, results, error), or None.
    py::object kept() const { return get(kept_); }
    void keep(const py::object& groups, const py::object& results, const py::object& error) {
        exchange(kept_, py::make_tuple(groups, results, error));
        entry_.keeps();
    }
    // Drops the kept results, since the caller gets them now. The value is ignored: this is a
    // property because Python runs signal handlers after a call but not after an assignment. After
    // send(), other groups may still be pending.
    void set_returned(bool) {
        const py::object kept = exchange(kept_, py::none());
        if (!is_send()) exchange(name_, py::none());
        entry_.returned();
    }
    // An exception keeps the results from the caller: from now on any thread may ask for them.
    void set_interrupted(bool) { entry_.returned(); }
    void forget() {
        const py::object kept = exchange(kept_, py::none());
        exchange(name_, py::none());
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

    // -- garbage --------------------------------------------------------------------------------

    // A kept error may refer to the vector env through its traceback.
    int traverse(visitproc visit, void* arg) const {
        Py_VISIT(kept_.ptr());
        return 0;
    }
    void clear() { exchange(kept_, py::none()); }

 private:
    py::object get(const py::object& field) const {
        const std::lock_guard lock(changing_);
        return field;
    }
    // Returns the old value: freeing it may run Python code, which must not find the lock held.
    py::object exchange(py::object& field, py::object value) {
        const std::lock_guard lock(changing_);
        return std::exchange(field, std::move(value));
    }

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
    // waited or read already: nothing is taken from the pool before the results are kept.
    py::object step_inside(const py::handle& actions) {
        if (!kept_.is_none()) return not_sent();  // an exception kept them from the caller
        const InUse frames(*this);
        const std::uint32_t frame = frames->next();
        if (!frames->write(frame, actions) || frames.left()) return not_sent();  // of other types
        frames->use(frame);
        exchange(name_, step_name_);
        if (!pool_.step(frame)) return sent();  // a ring was full
        if (!pool_.wait_all_back() || frames.left()) return sent();
        const auto read = traced([&] { return frames->read(frame); });
        if (frames.left() || needs_python(read)) return sent();
        frames->mark_all_seen();  // by the caller: the next step writes another frame
        return handed_over(read, 0);
    }

    py::object chunk_inside(const py::handle& actions) {
        const std::uint16_t steps = armed_chunk_;
        const InUse frames(*this);
        if (!kept_.is_none() || !frames->write_chunk(steps, actions)) return not_sent();
        if (frames.left()) return not_sent();
        exchange(name_, step_name_);
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
        keep(groups_, stepped, py::none());
        pool_.take_all();
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

    bool is_send() const {
        return PyUnicode_Check(name_.ptr()) &&
               PyUnicode_CompareWithASCIIString(name_.ptr(), "send") == 0;
    }

    py::object pool_object_, entry_object_, frames_object_;  // keep the C++ objects below alive
    PyPool& pool_;
    Entry& entry_;
    FrameAccess* frames_ = nullptr;
    Shown<bool> laid_out_ = false;  // whether there are frames
    py::object groups_;
    mutable std::mutex changing_;  // guards name_ and kept_, held while a reference is copied
    py::object name_ = py::none(), kept_ = py::none();
    Shown<std::uint64_t> entries_when_armed_;  // of the guard, counted by arm_fast_path()
    Shown<std::uint16_t> armed_chunk_;         // the steps of the chunk that is armed; 0: a step
    py::str step_name_ = interned("step");
};

struct StepCall {
    static PyObject* call(Call& call, PyObject* const* args, Py_ssize_t count, PyObject* names) {
        if (count != 1 || names != nullptr) return nullptr;
        return call.step(args[0]).release().ptr();
    }
};

struct ChunkCall {
    static PyObject* call(Call& call, PyObject* const* args, Py_ssize_t count, PyObject* names) {
        if (count != 1 || names != nullptr) return nullptr;
        return call.step_chunk(args[0]).release().ptr();
    }
};

bool is_made(PyObject* self) {
    return reinterpret_cast<const py::detail::instance*>(self)->simple_holder_constructed;
}

// Lets the cycle collector see the objects that a call keeps.
void collectable(PyHeapTypeObject* type) {
    type->ht_type.tp_flags |= Py_TPFLAGS_HAVE_GC;
    type->ht_type.tp_traverse = [](PyObject* self, visitproc visit, void* arg) {
        Py_VISIT(Py_TYPE(self));
        return is_made(self) ? unwrap<Call>(self)->traverse(visit, arg) : 0;
    };
    type->ht_type.tp_clear = [](PyObject* self) {
        if (is_made(self)) unwrap<Call>(self)->clear();
        return 0;
    };
}

}  // namespace

template <>
inline constexpr bool is_bound<Call> = true;

void register_call(py::module_& m) {
    Class<Call> call(m, "Call", py::custom_type_setup(collectable));
    call.def(py::init<const py::object&, const py::object&, py::object>(), py::arg("pool"),
             py::arg("entry"), py::arg("groups"))
        .def_property_readonly(
            "name", &Call::name,
            "The name of the pending call, or None; a send's until another call.")
        .def("begin", &Call::begin, py::arg("name"),
             "Note that this call is pending, before its first command is sent.")
        .def_property_readonly("kept", &Call::kept,
                               "The results on their way to the caller: (groups, results, error), "
                               "or None.")
        .def("keep", &Call::keep, py::arg("groups"), py::arg("results"), py::arg("error"),
             "Keep results, or an error, until they are returned.")
        .def_property(
            "returned", [](const Call& self) { return self.kept().is_none(); }, &Call::set_returned,
            "Whether nothing is kept; set it right before returning the kept results.")
        .def_property(
            "interrupted", [](const Call& self) { return !self.kept().is_none(); },
            &Call::set_interrupted,
            "Whether results are kept; set it when an exception keeps them from the caller.")
        .def("forget", &Call::forget, "Note that nothing is pending or kept.")
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
    Hot<Call, StepCall>::install(call, "step");
    Hot<Call, ChunkCall>::install(call, "step_chunk");
}

}  // namespace pysampler::bindings
