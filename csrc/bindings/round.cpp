// One step of all envs of a vector env, in one call: actions out, wait, results in.
#include <cstdint>
#include <memory>
#include <utility>

#include "batch.h"
#include "clock.h"
#include "guard.h"
#include "hot.h"
#include "py_pool.h"
#include "support.h"
#include "trace.h"

namespace pysampler::bindings {
namespace {

// Does what VectorEnv.step() does where nothing unusual happens, on the same state: the attributes
// of a VectorCore and its Results. Where something does, Python goes on from there, and says when
// the next step is usual again. Any other call that enters the guard is unusual.
class Round {
 public:
    // `pool` has the commands of workers; None if there are none, and the core's pool, a LocalPool,
    // steps all. `kept(groups, results, error)` is a tuple's type, `patience_ns` the time after
    // which Python looks for envs that are late, or negative. `own`: how many groups the core's
    // pool, a Team, steps in this process beside the workers. What refers back to the core is read
    // from it in each step: the collector of cycles does not see what an object of C++ holds.
    Round(const py::object& pool, const py::object& batch, const py::object& entry, py::object kept,
          py::object groups, std::int64_t patience_ns, std::uint32_t own)
        : pool_object_(pool),
          batch_object_(batch),
          entry_object_(entry),
          pool_(pool.is_none() ? nullptr : pool.cast<PyPool*>()),
          batch_(batch.cast<Batch&>()),
          entry_(entry.cast<Entry&>()),
          kept_(std::move(kept)),
          groups_(std::move(groups)),
          patience_ns_(patience_ns),
          own_(own) {}

    // The call that is inside the guard has left nothing over: the next step is usual.
    void expect_usual() { usual_after_ = entry_.entries(); }

    // The results of the step. None if nothing was sent; False if all of it was, and the rest is to
    // be done.
    py::object step(const py::handle& core, const py::handle& actions) {
        if (entry_.entries() != usual_after_) return py::none();
        entry_.enter();
        py::object results;
        try {
            results = inside(core, actions);
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

 private:
    py::object inside(const py::handle& core, const py::handle& actions) {
        if (!get(core, kept_name_).is_none()) return py::none();  // an exception came behind it
        const py::object held = get(core, results_name_);
        std::uint32_t frame = 0;
        if (!small(get(held, frame_name_).ptr(), frame)) return py::none();
        frame = batch_.next(frame);
        if (!batch_.write(frame, actions)) return py::none();
        const py::int_ chosen(frame);
        set(held, frame_name_, chosen);
        set(core, state_name_, step_name_);  // pending as soon as any of it is sent
        const bool here = pool_ == nullptr || own_ > 0;
        const py::object team = here ? get(core, pool_name_) : py::none();
        if (!(pool_ == nullptr ? local_step(team, chosen) : pool_step(team, chosen))) {
            return py::bool_(false);
        }
        const py::tuple read = read_results(frame);
        if (PyTuple_GET_ITEM(read.ptr(), 0) == Py_None ||
            PyObject_IsTrue(PyTuple_GET_ITEM(read.ptr(), 5)) != 0) {
            return py::bool_(false);
        }
        set(held, shown_name_, chosen);
        const auto stepped = py::reinterpret_steal<py::object>(PyTuple_GetSlice(read.ptr(), 0, 5));
        if (!stepped) throw py::error_already_set();
        set(core, kept_name_, kept(stepped));
        if (pool_ != nullptr) pool_->take_all();
        if (here) call(team, take_own_name_);
        expect_usual();
        return stepped;
    }

    // Both return whether all results are in the frame.
    bool pool_step(const py::object& team, const py::int_& frame) {
        if (own_ > 0) set(team, due_name_, due(frame));
        if (!pool_->step(frame)) return false;
        if (own_ > 0 && !call(team, do_due_name_).cast<bool>()) return false;
        return pool_->all_back(deadline());
    }
    bool local_step(const py::object& local, const py::int_& frame) {
        call(local, step_name_, frame);
        return get(local, plain_name_).cast<bool>();
    }

    py::tuple read_results(std::uint32_t frame) {
        static const std::shared_ptr<Track> none;
        const Traced reading(pool_ == nullptr ? none : pool_->track(), TraceKind::kRead, 0);
        return batch_.read(frame);
    }

    std::int64_t deadline() const { return patience_ns_ < 0 ? kForever : now_ns() + patience_ns_; }

    // Without the Python code of a named tuple.
    py::object kept(const py::object& stepped) const {
        const py::tuple values = py::make_tuple(py::make_tuple(groups_, stepped, py::none()));
        return checked(PyTuple_Type.tp_new(reinterpret_cast<PyTypeObject*>(kept_.ptr()),
                                           values.ptr(), nullptr));
    }

    // What the team has to do in this process: {group: (frame, None)}.
    py::dict due(const py::int_& frame) const {
        py::dict all;
        for (std::uint32_t group = 0; group < own_; ++group) {
            all[py::int_(group)] = py::make_tuple(frame, py::none());
        }
        return all;
    }

    template <class... Args>
    static py::object call(const py::object& object, const py::str& name, const Args&... args) {
        PyObject* all[] = {object.ptr(), args.ptr()...};
        return checked(PyObject_VectorcallMethod(name.ptr(), all, 1 + sizeof...(args), nullptr));
    }
    static py::object get(const py::handle& object, const py::str& name) {
        return checked(PyObject_GetAttr(object.ptr(), name.ptr()));
    }
    static void set(const py::handle& object, const py::str& name, const py::handle& value) {
        if (PyObject_SetAttr(object.ptr(), name.ptr(), value.ptr()) != 0) {
            throw py::error_already_set();
        }
    }

    py::object pool_object_, batch_object_, entry_object_;  // keep what the references refer to
    PyPool* pool_;
    Batch& batch_;
    Entry& entry_;
    py::object kept_, groups_;
    std::int64_t patience_ns_;
    std::uint32_t own_;
    std::uint64_t usual_after_ = 0;  // how many entries
    py::str state_name_ = interned("state"), kept_name_ = interned("kept"),
            results_name_ = interned("results"), pool_name_ = interned("pool"),
            frame_name_ = interned("frame"), shown_name_ = interned("_shown"),
            step_name_ = interned("step"), due_name_ = interned("due"),
            do_due_name_ = interned("do_due"), take_own_name_ = interned("take_own"),
            plain_name_ = interned("plain");
};

struct Step {
    static PyObject* call(Round& round, PyObject* const* args, Py_ssize_t count, PyObject* names) {
        if (count != 2 || names != nullptr) return nullptr;
        return round.step(args[0], args[1]).release().ptr();
    }
};

}  // namespace

template <>
inline constexpr bool is_bound<Round> = true;

void register_round(py::module_& m) {
    Class<Round> round(m, "Round");
    round
        .def(py::init<const py::object&, const py::object&, const py::object&, py::object,
                      py::object, std::int64_t, std::uint32_t>(),
             py::arg("pool"), py::arg("batch"), py::arg("entry"), py::arg("kept"),
             py::arg("groups"), py::arg("patience_ns"), py::arg("own"))
        .def("expect_usual", &Round::expect_usual,
             "Let the next step, if no other call comes before it, be done in one call.")
        .def("step", &Round::step, py::arg("core"), py::arg("actions"),
             "Step all envs, and return the results; None if nothing was sent, False if all was "
             "and the rest is to be done.");
    Hot<Round, Step>::install(round, "step");
}

}  // namespace pysampler::bindings
