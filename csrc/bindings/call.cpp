// The pending call of a vector env, and the one call of C++ that a usual step is.
#include <cstdint>
#include <utility>

#include "frame_access.h"
#include "guard.h"
#include "hot.h"
#include "py_pool.h"
#include "support.h"
#include "trace.h"

namespace pysampler::bindings {
namespace {

// What a vector env knows of its pending call: its name, and what has come back and is on its way
// to the caller. One thread at a time, in the guard.
//
// A signal handler may raise an exception between any two lines of Python, also when results have
// been taken from the pool and have not reached the caller. So they are kept here until Python sets
// `returned`, which it does where no handler can come between that and the return.
class Call {
 public:
    // `entry` is the guard's, for a step. `groups`: all of them, as what is kept names them.
    Call(const py::object& pool, const py::object& entry, py::object groups)
        : pool_object_(pool),
          entry_object_(entry),
          pool_(pool.cast<PyPool&>()),
          entry_(entry.cast<Entry&>()),
          groups_(std::move(groups)) {}

    // -- the pending call -----------------------------------------------------------------------

    // Before anything of it is sent.
    void begin(py::object name) { name_ = std::move(name); }
    const py::object& name() const { return name_; }

    // What has come back, as (groups, results, error); None if that is nothing.
    const py::object& kept() const { return kept_; }
    void keep(const py::object& groups, const py::object& results, const py::object& error) {
        kept_ = py::make_tuple(groups, results, error);
    }
    // Drops what was kept, since the caller gets it now. The value is ignored: this is a property
    // since Python runs signal handlers after a call, and not after an assignment. After send(),
    // other groups may still be pending.
    void set_returned(bool) {
        const py::object kept = std::exchange(kept_, py::none());
        if (!is_send()) name_ = py::none();
    }
    void forget() { name_ = kept_ = py::none(); }

    // -- its frames -----------------------------------------------------------------------------

    // From now on calls use these frames; None: none, until they are laid out anew.
    void use_frames(const py::object& frames) {
        frames_ = frames.is_none() ? nullptr : &frames.cast<FrameAccess&>();
        frames_object_ = frames;
        entries_when_armed_ = 0;
    }
    bool laid_out() const { return frames_ != nullptr; }

    // -- a step in one call ---------------------------------------------------------------------

    // Python has looked at all that could be unusual: if no other call enters the guard before it,
    // the next step is like this one.
    void arm_fast_path() { entries_when_armed_ = entry_.entries(); }

    // The results of a step of all envs. Where something unusual happens it returns whether the
    // commands were sent, and Python does the rest.
    py::object step(const py::handle& actions) {
        if (frames_ == nullptr || entry_.entries() != entries_when_armed_) return py::bool_(false);
        entry_.enter();
        py::object results;
        try {
            results = step_inside(actions);
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

    // -- garbage --------------------------------------------------------------------------------

    // An error that is kept may refer to the vector env by its traceback.
    int traverse(visitproc visit, void* arg) const {
        Py_VISIT(kept_.ptr());
        return 0;
    }
    void clear() { kept_ = py::none(); }

 private:
    // Writes the actions, wakes the workers, waits for all groups, and reads. Returns the five
    // results, or a bool. False: nothing was sent. True: all commands were accepted, and Python
    // waits, which first flushes what has not gone, and reads. If this has waited or read already,
    // that does no harm: nothing is taken from the pool before the results are kept.
    py::object step_inside(const py::handle& actions) {
        if (!kept_.is_none()) return not_sent();  // an exception came before the caller had it
        const std::uint32_t frame = frames_->next();
        if (!frames_->write(frame, actions)) return not_sent();  // of other types
        frames_->use(frame);
        name_ = step_name_;
        if (!pool_.step(frame)) return sent();  // a ring was full
        if (!pool_.wait_all_back()) return sent();
        const py::tuple read = read_results(frame);
        // Observations without a fixed shape come by mail, through the worker's outbox; the values
        // of some keys of infos have no common dtype.
        const py::handle observations = read[0], mixed_keys = read[5];
        if (observations.is_none() || PyObject_IsTrue(mixed_keys.ptr()) != 0) return sent();
        frames_->mark_all_seen();  // by the caller: this frame is not the next one to be written
        const auto stepped = py::reinterpret_steal<py::object>(PyTuple_GetSlice(read.ptr(), 0, 5));
        if (!stepped) throw py::error_already_set();
        keep(groups_, stepped, py::none());
        pool_.take_all();
        arm_fast_path();
        return stepped;
    }

    static py::object not_sent() { return py::bool_(false); }
    static py::object sent() { return py::bool_(true); }

    py::tuple read_results(std::uint32_t frame) const {
        const Traced reading(pool_.track(), TraceKind::kRead, 0);
        return frames_->read(frame);
    }

    bool is_send() const {
        return PyUnicode_Check(name_.ptr()) &&
               PyUnicode_CompareWithASCIIString(name_.ptr(), "send") == 0;
    }

    py::object pool_object_, entry_object_, frames_object_;  // keep what the references refer to
    PyPool& pool_;
    Entry& entry_;
    FrameAccess* frames_ = nullptr;
    py::object groups_;
    py::object name_ = py::none(), kept_ = py::none();
    std::uint64_t entries_when_armed_ = 0;  // of the guard, counted by arm_fast_path()
    py::str step_name_ = interned("step");
};

struct Step {
    static PyObject* call(Call& call, PyObject* const* args, Py_ssize_t count, PyObject* names) {
        if (count != 1 || names != nullptr) return nullptr;
        return call.step(args[0]).release().ptr();
    }
};

bool is_made(PyObject* self) {
    return reinterpret_cast<const py::detail::instance*>(self)->simple_holder_constructed;
}

// Lets the collector of cycles see what a call keeps.
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
        .def_property_readonly("name", &Call::name,
                               "The name of the call that was made last; None if it is completed.")
        .def("begin", &Call::begin, py::arg("name"),
             "Note that this call is pending, before anything of it is sent.")
        .def_property_readonly("kept", &Call::kept,
                               "What has come back and is on its way to the caller: (groups, "
                               "results, error), or None.")
        .def("keep", &Call::keep, py::arg("groups"), py::arg("results"), py::arg("error"),
             "Keep what has come back.")
        .def_property(
            "returned", [](const Call& self) { return self.kept().is_none(); }, &Call::set_returned,
            "Whether nothing is kept; to be set right before it is returned.")
        .def("forget", &Call::forget, "Note that nothing is pending or kept.")
        .def("use_frames", &Call::use_frames, py::arg("frames"),
             "Use these frames from now on; None: none, until they are laid out anew.")
        .def_property_readonly("laid_out", &Call::laid_out, "Whether there are frames to use.")
        .def("arm_fast_path", &Call::arm_fast_path,
             "Let the next step, if no other call comes before it, be done by step().")
        .def("step", &Call::step, py::arg("actions"),
             "Step all envs: return the results, or whether the actions were sent if Python has to "
             "do the rest.");
    Hot<Call, Step>::install(call, "step");
}

}  // namespace pysampler::bindings
