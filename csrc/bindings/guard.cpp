// A guard for an object that one thread at a time may use: `with guard.entry("step"):`.
#include "guard.h"

#include <memory>
#include <string>
#include <utility>

#include "hot.h"
#include "support.h"

namespace pysampler::bindings {
namespace {

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

// Hot: called with every step.
struct Exit {
    static PyObject* call(Entry& entry, PyObject* const* args, Py_ssize_t count, PyObject* names) {
        if (count != 3 || names != nullptr) return nullptr;
        entry.exit(args[0]);
        return py::none().release().ptr();
    }
};

}  // namespace

template <>
inline constexpr bool is_bound<Guard> = true;

void register_guard(py::module_& m) {
    Class<Entry> entry(m, "Entry");
    entry.def("__enter__", &Entry::enter)
        .def("__exit__", [](Entry& self, const py::object& type, const py::object&,
                            const py::object&) { self.exit(type); })
        .def_property_readonly("nested", &Entry::nested,
                               "Whether this thread was inside already: a signal handler closes "
                               "the object.");
    Hot<Entry, Plain<&Entry::enter>>::install(entry, "__enter__");
    Hot<Entry, Exit>::install(entry, "__exit__");
    Class<Guard>(m, "Guard")
        .def(py::init<std::string, std::string, py::object>(), py::arg("thing"),
             py::arg("closed_message"), py::arg("closed_error"))
        .def("entry", &Guard::entry, py::arg("what"),
             "Return a context in which only this thread uses the object; entering raises "
             "BusyError if another thread does.")
        .def("closing", &Guard::closing, py::arg("what"),
             "Return such a context for closing, which a signal handler may enter while its own "
             "thread is inside.")
        .def_property_readonly("closed", &Guard::closed, "Whether it refuses all entries.")
        .def("close", &Guard::close, "Refuse all entries from now on.")
        .def_property_readonly("inside", &Guard::inside, "Whether this thread is inside.")
        .def_property_readonly("busy", &Guard::busy, "Whether another thread is inside.")
        .def_property_readonly("mine", &Guard::mine,
                               "Whether this process made it; False in a fork of that process.");
}

}  // namespace pysampler::bindings
