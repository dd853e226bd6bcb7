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

namespace pysampler::bindings {

namespace py = pybind11;

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
    const auto refuse = [&](const std::string& got) {
        throw py::value_error(std::string("cannot ") + verb_and_thing + ": " + what + " " + got +
                              ", expected a whole number of at least " + std::to_string(least));
    };
    if (!PyIndex_Check(value.ptr()) || PyBool_Check(value.ptr())) refuse(py::repr(value));
    const py::object index = py::reinterpret_steal<py::object>(PyNumber_Index(value.ptr()));
    if (!index) throw py::error_already_set();
    int overflow = 0;
    const long long number = PyLong_AsLongLongAndOverflow(index.ptr(), &overflow);
    if (overflow != 0 || number < 0 || static_cast<std::uint64_t>(number) < least) {
        refuse(py::repr(value));
    }
    return static_cast<std::uint64_t>(number);
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
    // Beyond 292 years a double no longer fits; nobody will come to complain.
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

// A part of a segment that Python holds. Closing drops the mapping, once no view is left.
class Handle {
 public:
    Handle(const char* name, std::shared_ptr<Segment> segment, std::size_t offset)
        : name_(name), segment_(std::move(segment)), offset_(offset) {}

    void close() { segment_.reset(); }
    bool closed() const { return segment_ == nullptr; }
    std::size_t offset() const { return offset_; }
    const std::shared_ptr<Segment>& segment() const { return segment_; }

    void check(const char* verb) const {
        if (segment_) return;
        raise("ClosedError", std::string("cannot ") + verb + " " + name_ + ": it is closed");
    }
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
        return std::string("<pysampler.sync.") + class_name_ +
               (segment_ ? " " + state : " closed") + ">";
    }

    static std::string waiter_text(std::uint64_t id) {
        return "pid " + std::to_string(id >> 32) + " thread " + std::to_string(id & 0xffffffff);
    }

 protected:
    void named(const char* class_name) { class_name_ = class_name; }

 private:
    const char* name_;  // as in an error
    const char* class_name_ = "";
    std::shared_ptr<Segment> segment_;
    std::size_t offset_;
};

class PySegment : public Handle {
 public:
    explicit PySegment(std::shared_ptr<Segment> segment)
        : Handle("segment", std::move(segment), 0) {
        named("Segment");
    }
};

// Where a part lies: at `offset`, or freshly allocated if it is None.
inline std::size_t place(const PySegment& segment, const py::object& offset, std::size_t bytes,
                         std::size_t align = kLine) {
    segment.check("use");
    const std::size_t at = offset.is_none()
                               ? segment.segment()->allocate(bytes, align)
                               : static_cast<std::size_t>(whole(offset, "attach", "offset", 0));
    segment.segment()->at(at, bytes, align);
    return at;
}

// A side of a handle at which one thread at a time may be. Changed with the GIL only.
class Side {
    friend class Turn;

 public:
    std::uint64_t by() const { return by_; }
    void leave() { by_ = 0; }

 private:
    std::uint64_t by_ = 0;  // as in self_id()
};

// A call at a side: keeps the memory mapped, whoever closes the handle meanwhile, and others out.
class Turn {
 public:
    Turn(const Handle& handle, Side& side, const char* verb) : side_(side) {
        handle.check(verb);
        // A child made by fork while a thread was here has no such thread.
        if (side.by_ != 0 && pid_of(side.by_) == pid_of(self_id())) handle.busy(verb, side.by_);
        side.by_ = self_id();
        segment_ = handle.segment();
    }
    Turn(const Turn&) = delete;
    Turn& operator=(const Turn&) = delete;
    ~Turn() { side_.by_ = 0; }

    const std::shared_ptr<Segment>& segment() const { return segment_; }

 private:
    Side& side_;
    std::shared_ptr<Segment> segment_;
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
