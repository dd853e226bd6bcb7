// A guard of an object that one thread at a time may use: `with guard.entry("step"):`.
//
// Python runs signal handlers between any two of its instructions, so a lock that Python code takes
// and gives back can be left taken by an exception that comes in between. Here both happen inside
// one call, which `with` makes without looking for signals.
#include <memory>
#include <string>
#include <utility>

#include "hot.h"
#include "process.h"
#include "support.h"

namespace pysampler::bindings {
namespace {

struct GuardState {
    std::string thing;           // its name in errors: "this vector env"
    std::string closed_message;  // of the error of an entry after close()
    py::object closed_error;     // the type of that error
    pid_t owner = pid_of(self_id());
    std::uint64_t holder = 0;  // as in self_id(), 0 if none; changed with the GIL only
    std::string doing;         // what the holder does
    bool closed = false;
    bool closed_within = false;  // by a signal handler in the holder's own thread

    [[noreturn]] void refuse(const std::string& message) const {
        const py::object error = closed_error(message);
        PyErr_SetObject(closed_error.ptr(), error.ptr());
        throw py::error_already_set();
    }
};

class Entry {
 public:
    Entry(std::shared_ptr<GuardState> guard, std::string what, bool closing)
        : guard_(std::move(guard)), what_(std::move(what)), closing_(closing) {}

    void enter() {
        GuardState& guard = *guard_;
        if (pid_of(self_id()) != guard.owner) {
            guard.refuse("cannot " + what_ + ": made by process " + std::to_string(guard.owner) +
                         ", this is " + std::to_string(pid_of(self_id())) + ", a fork");
        }
        if (guard.closed) guard.refuse(guard.closed_message);
        const std::uint64_t self = self_id();
        if (guard.holder == 0) {
            guard.holder = self;
            guard.doing = what_;
            nested_ = false;
        } else if (closing_ && guard.holder == self) {
            nested_ = true;
        } else if (guard.holder == self) {
            raise("BusyError", "cannot " + what_ + ": this thread is at work in it (" +
                                   guard.doing + "); a signal handler may close it, no more");
        } else {
            raise("BusyError", "cannot " + what_ + ": another thread is using " + guard.thing);
        }
    }

    void exit(const py::handle& type) {
        GuardState& guard = *guard_;
        if (nested_) {
            guard.closed_within = guard.closed;
            return;
        }
        const bool closed_within = std::exchange(guard.closed_within, false);
        guard.holder = 0;
        // What failed because a signal handler closed the object raises an error that says so.
        if (closed_within && !type.is_none() &&
            PyErr_GivenExceptionMatches(type.ptr(), PyExc_Exception) != 0 &&
            PyErr_GivenExceptionMatches(type.ptr(), guard.closed_error.ptr()) == 0) {
            guard.refuse("cannot " + what_ + ": it was closed meanwhile");
        }
    }

    bool nested() const { return nested_; }

 private:
    std::shared_ptr<GuardState> guard_;
    std::string what_;
    bool closing_;
    bool nested_ = false;
};

class Guard {
 public:
    Guard(std::string thing, std::string closed_message, py::object closed_error)
        : state_(std::make_shared<GuardState>()) {
        state_->thing = std::move(thing);
        state_->closed_message = std::move(closed_message);
        state_->closed_error = std::move(closed_error);
    }

    Entry entry(std::string what) const { return {state_, std::move(what), false}; }
    Entry closing(std::string what) const { return {state_, std::move(what), true}; }
    void close() { state_->closed = true; }
    bool closed() const { return state_->closed; }
    bool inside() const { return state_->holder == self_id(); }
    bool busy() const { return state_->holder != 0 && !inside(); }
    bool mine() const { return pid_of(self_id()) == state_->owner; }

 private:
    std::shared_ptr<GuardState> state_;
};

// Called with every step.
struct Enter {
    static PyObject* call(Entry& entry, PyObject* const*, Py_ssize_t count, PyObject* names) {
        if (count != 0 || names != nullptr) return nullptr;
        entry.enter();
        return py::none().release().ptr();
    }
};
struct Exit {
    static PyObject* call(Entry& entry, PyObject* const* args, Py_ssize_t count, PyObject* names) {
        if (count != 3 || names != nullptr) return nullptr;
        entry.exit(args[0]);
        return py::none().release().ptr();
    }
};

}  // namespace

template <>
inline constexpr bool is_bound<Entry> = true;
template <>
inline constexpr bool is_bound<Guard> = true;

void register_guard(py::module_& m) {
    Class<Entry> entry(m, "Entry");
    entry.def("__enter__", &Entry::enter)
        .def("__exit__", [](Entry& self, const py::object& type, const py::object&,
                            const py::object&) { self.exit(type); })
        .def_property_readonly("nested", &Entry::nested,
                               "Whether this thread was inside already, as when a signal handler "
                               "closes the object.");
    Hot<Entry, Enter>::install(entry, "__enter__");
    Hot<Entry, Exit>::install(entry, "__exit__");
    Class<Guard>(m, "Guard")
        .def(py::init<std::string, std::string, py::object>(), py::arg("thing"),
             py::arg("closed_message"), py::arg("closed_error"))
        .def("entry", &Guard::entry, py::arg("what"),
             "Return a context in which this thread alone uses the object; BusyError on entry if "
             "another thread does.")
        .def("closing", &Guard::closing, py::arg("what"),
             "Return such a context for closing, which a signal handler may do while its own "
             "thread is inside.")
        .def_property_readonly("closed", &Guard::closed, "Whether it refuses all entries.")
        .def("close", &Guard::close, "Refuse all entries from now on.")
        .def_property_readonly("inside", &Guard::inside, "Whether this thread is inside.")
        .def_property_readonly("busy", &Guard::busy, "Whether another thread is inside.")
        .def_property_readonly("mine", &Guard::mine,
                               "Whether this process made it; False in a fork of that process.");
}

}  // namespace pysampler::bindings
