// Binds our classes to Python so that objects cannot be used before __init__, nor pickled.
#pragma once

#include <pybind11/pybind11.h>

#include <memory>
#include <string>
#include <type_traits>

#include "handle.h"
#include "wait.h"

namespace pysampler {
struct Loss;
class Meter;
class Track;
class Block;
struct Command;
}  // namespace pysampler

namespace pysampler::bindings {

class Infos;
class FrameAccess;

template <class T, class... Classes>
inline constexpr bool is_one_of = (std::is_same_v<T, Classes> || ...);

// Whether T is a class of ours that is bound to Python. Classes that only one file names are added
// in that file.
template <class T>
inline constexpr bool is_bound = std::is_base_of_v<Handle, T> || std::is_base_of_v<Block, T> ||
                                 is_one_of<T, WaitCosts, WaitStats, WaitPolicy, Part, Loss, Meter,
                                           Track, Command, Infos, FrameAccess>;

// py::class_ for classes of ours. Their objects cannot be used before their __init__ was called
// (see the casters below), nor pickled, unless a Python class that derives from one knows how.
template <class T, class... Options>
class Class : public py::class_<T, Options...> {
    static_assert(is_bound<T>);

 public:
    template <class... Extra>
    Class(py::module_& m, const char* name, const Extra&... extra)
        : py::class_<T, Options...>(m, name, extra...) {
        this->def("__reduce__", [name](const py::object&) -> py::tuple {
            throw py::type_error(std::string("cannot pickle or copy ") + name +
                                 ": it stays in the process that made it");
        });
    }
};

// Methods and properties common to all handles; T::state() is the repr.
template <class T>
class HandleClass : public Class<T> {
 public:
    HandleClass(py::module_& m, const char* name) : Class<T>(m, name) {
        this->def("close", &T::close, "Release the memory, once no view of it is left.")
            .def_property_readonly("closed", &T::closed, "Whether close() was called.")
            .def_property_readonly("offset", &T::offset, "Its offset in its segment.")
            .def("__repr__", &T::state);
    }
};

[[noreturn]] inline void refuse_unmade(PyObject* object) {
    throw py::type_error(std::string("cannot use ") + Py_TYPE(object)->tp_name +
                         ": its __init__ has not been called");
}

}  // namespace pysampler::bindings

namespace pybind11::detail {

// pybind11 would return memory in which no object was constructed.
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

// None is refused too: pybind11 would pass a null pointer.
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
