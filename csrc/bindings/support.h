// What every binding needs: errors of pysampler.errors, deadlines from Python's arguments, waits
// that let other threads run and answer Ctrl-C, handles that know whether they are closed.
#pragma once

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <pybind11/typing.h>
#include <unistd.h>

#include <atomic>
#include <cmath>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "process.h"
#include "segment.h"
#include "wait.h"

namespace pysampler {
struct Loss;
class Meter;
class Block;
struct Command;
}  // namespace pysampler

namespace pysampler::bindings {

namespace py = pybind11;

class Infos;
class Batch;

// -- errors -------------------------------------------------------------------------------------

// Raises pysampler.errors.<name>(message), with attributes.
[[noreturn]] inline void raise(const char* name, const std::string& message,
                               const py::dict& attributes = {}) {
    const py::object type = py::module_::import("pysampler.errors").attr(name);
    const py::object error = type(message);
    for (const auto& [key, value] : attributes) error.attr(py::str(key)) = value;
    PyErr_SetObject(type.ptr(), error.ptr());
    throw py::error_already_set();
}

template <class T>
std::string text(const T& value) {
    return py::str(py::cast(value));
}

// A whole number that must be at least `least`; Python's own ints of any size, numpy's too.
inline std::uint64_t whole(const py::handle& value, const char* verb_and_thing, const char* what,
                           std::uint64_t least) {
    const auto refuse = [&](const std::string& expected) {
        throw py::value_error(std::string("cannot ") + verb_and_thing + ": " + what + " " +
                              std::string(py::repr(value)) + ", expected a whole number " +
                              expected);
    };
    const auto enough = [least] { return "of at least " + std::to_string(least); };
    if (!PyIndex_Check(value.ptr()) || PyBool_Check(value.ptr())) refuse(enough());
    const py::object index = py::reinterpret_steal<py::object>(PyNumber_Index(value.ptr()));
    if (!index) throw py::error_already_set();
    int overflow = 0;
    const long long number = PyLong_AsLongLongAndOverflow(index.ptr(), &overflow);
    if (overflow > 0) refuse("below 2**63");
    if (overflow < 0 || number < 0 || static_cast<std::uint64_t>(number) < least) refuse(enough());
    return static_cast<std::uint64_t>(number);
}

inline std::optional<std::uint64_t> whole_or_none(const py::handle& value,
                                                  const char* verb_and_thing, const char* what,
                                                  std::uint64_t least) {
    if (value.is_none()) return std::nullopt;
    return whole(value, verb_and_thing, what, least);
}

// -- deadlines ----------------------------------------------------------------------------------

// What the signatures say; anything is let in and looked at in deadline_of().
using Seconds = py::typing::Optional<py::float_>;
using Nanoseconds = py::typing::Optional<py::int_>;

// `timeout` in seconds from now, or `deadline` in ns of now(); neither: for ever. A deadline that
// has passed is a look without a wait.
inline std::int64_t deadline_of(const py::handle& timeout, const py::handle& deadline) {
    if (!deadline.is_none()) {
        if (!timeout.is_none()) {
            throw py::value_error("cannot wait: both timeout and deadline given, expected one");
        }
        return static_cast<std::int64_t>(whole(deadline, "wait", "deadline", 0));
    }
    if (timeout.is_none()) return kForever;
    const double seconds = PyFloat_AsDouble(timeout.ptr());
    if (seconds == -1.0 && PyErr_Occurred()) throw py::error_already_set();
    if (std::isnan(seconds) || seconds < 0) {
        throw py::value_error("cannot wait: timeout " + std::string(py::repr(timeout)) +
                              ", expected seconds >= 0 or None");
    }
    if (seconds == 0) return 0;
    const double ns = seconds * static_cast<double>(kSecond);
    const std::int64_t now = now_ns();
    // Beyond 292 years a double no longer fits.
    return ns >= static_cast<double>(kForever - now) ? kForever
                                                     : now + static_cast<std::int64_t>(ns);
}

// -- waits --------------------------------------------------------------------------------------

// A signal that comes between the last look at Python's signal flags and the system call does not
// interrupt it: no wait sleeps longer than this without another look.
inline constexpr std::int64_t kSlice = 50 * kMillisecond;
// An idle worker's: no user waits for what its handlers do.
inline constexpr std::int64_t kLongestSlice = 60 * kSecond;

// Lets other threads of the interpreter run while it lives.
class Released {
 public:
    Released() : state_(PyEval_SaveThread()) {}
    Released(const Released&) = delete;
    Released& operator=(const Released&) = delete;
    ~Released() { restore(); }

    // Runs Python's signal handlers. Whether to go on: false with a Python error set,
    // KeyboardInterrupt as a rule, or if `wanted()`, asked with the GIL, says that this wait is
    // not.
    template <class Wanted>
    bool answer_signals(Wanted&& wanted) {
        restore();
        const bool go_on = PyErr_CheckSignals() == 0 && wanted();
        state_ = PyEval_SaveThread();
        return go_on;
    }

 private:
    // While the interpreter ends, Pythons before 3.14 unwind a daemon thread here. What it would
    // unwind owns Python objects, and it has no right to touch them: it stays instead.
    void restore() {
        try {
            PyEval_RestoreThread(state_);
        } catch (...) {
            for (;;) pause();
        }
    }

    PyThreadState* state_;
};

// Calls `wait(policy)` without the GIL. Signals are answered meanwhile. An exception of a handler
// is thrown whatever the outcome: no wait returns a value with an exception set. What the wait
// found must still be there for the next one, so the primitives consume nothing before they return.
// kInterrupted is returned only if `wanted()` said that the wait is not.
template <class Wait, class Wanted>
Outcome wait_released(WaitPolicy& policy, Wait&& wait, Wanted&& wanted) {
    Outcome outcome;
    {
        Released released;
        struct Forget {
            WaitPolicy& policy;
            ~Forget() { policy.set_go_on(nullptr); }
        } const at_the_end{policy};
        policy.set_slice(kSlice);
        policy.set_go_on([&] { return released.answer_signals(wanted); });
        outcome = wait(policy);
    }
    if (PyErr_Occurred() != nullptr) throw py::error_already_set();
    return outcome;
}

template <class Wait>
Outcome wait_released(WaitPolicy& policy, Wait&& wait) {
    return wait_released(policy, wait, [] { return true; });
}

// One policy for a site, lent to one thread at a time; a second one at the same site, where more
// than one may wait, gets a fresh policy.
class Site {
 public:
    // A copy of the given policy, or the adaptive one.
    explicit Site(const std::optional<WaitPolicy>& policy)
        : policy_(policy ? *policy : WaitPolicy()) {}

    template <class Wait, class Wanted>
    Outcome operator()(Wait&& wait, Wanted&& wanted) {
        if (taken_.test_and_set(std::memory_order_acquire)) {
            WaitPolicy fresh(policy_.costs());
            return wait_released(fresh, wait, wanted);
        }
        struct Return {
            std::atomic_flag& taken;
            ~Return() { taken.clear(std::memory_order_release); }
        } const at_the_end{taken_};
        return wait_released(policy_, wait, wanted);
    }
    template <class Wait>
    Outcome operator()(Wait&& wait) {
        return (*this)(wait, [] { return true; });
    }

    WaitPolicy& policy() { return policy_; }
    const WaitPolicy& policy() const { return policy_; }

 private:
    WaitPolicy policy_;
    std::atomic_flag taken_;
};

// -- handles ------------------------------------------------------------------------------------

// A part of a segment that Python holds. Its memory is reached through a Pin only.
class Handle {
    friend class Pin;

 public:
    Handle(const char* name, std::shared_ptr<Segment> segment, std::size_t offset)
        : name_(name), segment_(std::move(segment)), offset_(offset) {}

    // The memory goes once no call is at work in it and no view is left.
    void close() {
        closed_ = true;
        if (pins_ == 0) unmap();
    }
    bool closed() const { return closed_; }
    std::size_t offset() const { return offset_; }

    [[noreturn]] void busy(const char* verb, std::uint64_t waiter) const {
        raise("BusyError", std::string("cannot ") + verb + " " + name_ + ": " +
                               (waiter == 0 ? "another thread" : waiter_text(waiter)) +
                               " waits here, and only one may");
    }
    [[noreturn]] void timed_out(const char* verb, const char* why) const {
        raise("WaitTimeoutError", std::string("cannot ") + verb + " " + name_ + ": " + why);
    }
    [[noreturn]] void lost(const char* verb, const char* peer) const {
        raise("LostError",
              std::string("cannot ") + verb + " " + name_ + ": the " + peer + " is lost");
    }

    std::string repr(const std::string& state) const {
        return std::string("<pysampler.sync.") + class_name_ + (closed_ ? " closed" : " " + state) +
               ">";
    }

    static std::string waiter_text(std::uint64_t id) {
        return "pid " + std::to_string(id >> 32) + " thread " + std::to_string(id & 0xffffffff);
    }

 protected:
    void named(const char* class_name) { class_name_ = class_name; }
    // Memory that is mapped beside the segment, for as long as that is.
    const std::shared_ptr<std::byte>& also(std::shared_ptr<std::byte> mapping) {
        return beside_.emplace_back(std::move(mapping));
    }

 private:
    void unmap() {
        segment_.reset();
        beside_.clear();
    }

    const char* name_;  // as in an error
    const char* class_name_ = "";
    std::shared_ptr<Segment> segment_;
    std::vector<std::shared_ptr<std::byte>> beside_;
    std::size_t offset_;
    bool closed_ = false;
    unsigned pins_ = 0;  // changed with the GIL only
};

// A call that is at work in the memory of a handle, which must be open when it begins: the memory
// stays, also where another thread closes the handle meanwhile.
//
// Arguments are converted before: that may run Python, which may close the handle.
class Pin {
 public:
    Pin(const Handle& handle, const char* verb) : handle_(const_cast<Handle&>(handle)) {
        if (handle.closed_) {
            raise("ClosedError",
                  std::string("cannot ") + verb + " " + handle.name_ + ": it is closed");
        }
        ++handle_.pins_;
    }
    Pin(const Pin&) = delete;
    Pin& operator=(const Pin&) = delete;
    ~Pin() {
        if (--handle_.pins_ == 0 && handle_.closed_) handle_.unmap();
    }

    const std::shared_ptr<Segment>& segment() const { return handle_.segment_; }

 private:
    Handle& handle_;
};

class PySegment : public Handle {
 public:
    explicit PySegment(std::shared_ptr<Segment> segment)
        : Handle("segment", std::move(segment), 0) {
        named("Segment");
    }
};

// A part of a segment: at `offset`, or freshly allocated if it is None.
struct Place {
    Place(const PySegment& in, const py::object& offset, std::size_t size,
          std::size_t align = kLine)
        : fresh(offset.is_none()),
          at(fresh ? 0 : static_cast<std::size_t>(whole(offset, "attach", "offset", 0))) {
        const Pin pin(in, "use");
        segment = pin.segment();
        if (fresh) at = segment->allocate(size, align);
        memory = segment->at(at, size, align);
    }

    bool fresh;
    std::size_t at;
    std::shared_ptr<Segment> segment;
    std::byte* memory;

    // Makes a T there, unless another handle has.
    template <class T>
    T* make(std::size_t offset = 0) const {
        return fresh ? new (memory + offset) T : reinterpret_cast<T*>(memory + offset);
    }
};

// A side of a handle at which one thread at a time may be. Changed with the GIL only.
class Side {
    friend class Turn;

 public:
    std::uint64_t by() const { return by_; }
    void leave() { by_ = 0; }

 private:
    std::uint64_t by_ = 0;  // as in self_id()
};

// A call at a side: keeps others out of it.
class Turn : public Pin {
 public:
    Turn(const Handle& handle, Side& side, const char* verb) : Pin(handle, verb), side_(side) {
        // A child made by fork while a thread was here has no such thread.
        if (side.by_ != 0 && pid_of(side.by_) == pid_of(self_id())) handle.busy(verb, side.by_);
        side.by_ = self_id();
    }
    Turn(const Turn&) = delete;
    Turn& operator=(const Turn&) = delete;
    ~Turn() { side_.by_ = 0; }

 private:
    Side& side_;
};

// The `peer` of a handle's wait is what the other side is called.
inline void check_outcome(const Handle& handle, Outcome outcome, const char* verb, const char* peer,
                          const char* why, std::uint64_t waiter) {
    switch (outcome) {
        case Outcome::kReady:
            return;
        case Outcome::kInterrupted:
            raise("ClosedError", std::string("cannot ") + verb + ": it was closed meanwhile");
        case Outcome::kTimedOut:
            handle.timed_out(verb, why);
        case Outcome::kLost:
            handle.lost(verb, peer);
        case Outcome::kBusy:
            handle.busy(verb, waiter);
    }
}

// A base object for arrays that keeps the mapping for as long as one of them lives.
template <class Owner>
py::capsule keep(const std::shared_ptr<Owner>& owner) {
    return py::capsule(new std::shared_ptr<Owner>(owner),
                       [](void* p) { delete static_cast<std::shared_ptr<Owner>*>(p); });
}

// `array(dtype, shape)` over memory of the segment.
inline py::array view(const std::shared_ptr<Segment>& segment, std::byte* at,
                      const py::dtype& dtype, std::vector<py::ssize_t> shape) {
    return py::array(dtype, std::move(shape), at, keep(segment));
}

// What happens to one part of a primitive when its process dies; Watch runs it.
struct Part {
    std::string name;
    std::function<void(int)> lost;  // given the pid
};

// -- classes ------------------------------------------------------------------------------------

template <class T, class... Classes>
inline constexpr bool is_one_of = (std::is_same_v<T, Classes> || ...);

// Whether T is a class of ours that Python knows. One that only its own file names says so there.
template <class T>
inline constexpr bool is_bound =
    std::is_base_of_v<Handle, T> || std::is_base_of_v<Block, T> ||
    is_one_of<T, WaitCosts, WaitStats, WaitPolicy, Part, Loss, Meter, Command, Infos, Batch>;

// As py::class_. Objects cannot be used before their __init__ was called (see the casters below),
// nor be pickled, unless a class in Python that derives from it knows how.
template <class T, class... Options>
class Class : public py::class_<T, Options...> {
    static_assert(is_bound<T>);

 public:
    Class(py::module_& m, const char* name) : py::class_<T, Options...>(m, name) {
        this->def("__reduce__", [name](const py::object&) -> py::tuple {
            throw py::type_error(std::string("cannot pickle or copy ") + name +
                                 ": it stays in the process that made it");
        });
    }
};

[[noreturn]] inline void refuse_unmade(PyObject* object) {
    throw py::type_error(std::string("cannot use ") + Py_TYPE(object)->tp_name +
                         ": its __init__ has not been called");
}

// -- the table of contents of module.cpp ----------------------------------------------------------

void register_wait(py::module_&);
void register_segment(py::module_&);
void register_flag(py::module_&);
void register_doorbell(py::module_&);
void register_ring(py::module_&);
void register_shared_ring(py::module_&);
void register_byte_ring(py::module_&);
void register_board(py::module_&);
void register_watch(py::module_&);
void register_pool(py::module_&);
void register_guard(py::module_&);
void register_process(py::module_&);
void register_parcel(py::module_&);
void register_infos(py::module_&);
void register_meter(py::module_&);
void register_env_block(py::module_&);
void register_batch(py::module_&);

}  // namespace pysampler::bindings

namespace pybind11::detail {

// pybind11 would hand out memory in which no object was made.
template <class T>
    requires pysampler::bindings::is_bound<T>
class type_caster<T> : public type_caster_base<T> {
 public:
    bool load(handle source, bool convert) {
        return this->template load_impl<type_caster>(source, convert);
    }
    void load_value(value_and_holder&& loaded) {
        if (!loaded.holder_constructed()) {
            pysampler::bindings::refuse_unmade(reinterpret_cast<PyObject*>(loaded.inst));
        }
        type_caster_base<T>::load_value(std::move(loaded));
    }
};

// None is no object either.
template <class T>
    requires pysampler::bindings::is_bound<T>
class type_caster<std::shared_ptr<T>> : public copyable_holder_caster<T, std::shared_ptr<T>> {
 public:
    bool load(handle source, bool convert) {
        return !source.is_none() && make_caster<T>().load(source, convert) &&
               copyable_holder_caster<T, std::shared_ptr<T>>::load(source, convert);
    }
};

}  // namespace pybind11::detail
