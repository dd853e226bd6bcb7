// Fast paths for methods that are called a million times a second. pybind11 takes ~150 ns to match
// the arguments of a call to a C++ function; here they are matched by hand. Calls that do not match
// fall back to pybind11's method, which has the error messages.
#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>
#include <exception>
#include <string>
#include <type_traits>
#include <vector>

#include "support.h"

namespace pysampler::bindings {

// The C++ object in a Python object; nullptr if the Python object has several C++ bases.
template <class T>
T* unwrap(PyObject* self) {
    const auto* instance = reinterpret_cast<const py::detail::instance*>(self);
    if (!instance->simple_layout) return nullptr;
    if (!instance->simple_holder_constructed) refuse_unmade(self);
    return static_cast<T*>(instance->simple_value_holder[0]);
}

// `Call` has a static function
// `PyObject* call(T&, PyObject* const* args, Py_ssize_t count, PyObject* names)`
// that returns nullptr, with no Python error set, for arguments that do not match.
template <class T, class Call>
class Hot {
 public:
    // Replaces the method `name`.
    static void install(py::class_<T>& type, const char* name) {
        const py::object made = type.attr(name);
        doc_ = py::str(made.attr("__doc__"));
        method_ = {name, reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(&Hot::call)),
                   METH_FASTCALL | METH_KEYWORDS, doc_.c_str()};
        made_ = made.inc_ref().ptr();  // never released, like the type
        PyObject* descriptor =
            PyDescr_NewMethod(reinterpret_cast<PyTypeObject*>(type.ptr()), &method_);
        if (descriptor == nullptr) throw py::error_already_set();
        type.attr(name) = py::reinterpret_steal<py::object>(descriptor);
    }

 private:
    static PyObject* call(PyObject* self, PyObject* const* args, Py_ssize_t count,
                          PyObject* names) {
        try {
            if (T* object = unwrap<T>(self)) {
                PyObject* result = Call::call(*object, args, count, names);
                if (result != nullptr) return result;
            }
        } catch (py::error_already_set& error) {
            error.restore();
            return nullptr;
        } catch (const py::builtin_exception& error) {
            error.set_error();
            return nullptr;
        } catch (const std::exception& error) {
            PyErr_SetString(PyExc_RuntimeError, error.what());
            return nullptr;
        }
        const Py_ssize_t all = count + (names == nullptr ? 0 : PyTuple_GET_SIZE(names));
        std::vector<PyObject*> with_self{self};
        with_self.insert(with_self.end(), args, args + all);
        return PyObject_Vectorcall(made_, with_self.data(), static_cast<std::size_t>(count) + 1,
                                   names);
    }

    static inline std::string doc_;
    static inline PyMethodDef method_{};
    static inline PyObject* made_ = nullptr;
};

// Reads a whole number of 32 bits; returns false, with no Python error set, for anything else.
inline bool small(PyObject* value, std::uint32_t& number) {
    if (!PyLong_CheckExact(value)) return false;
    int overflow = 0;
    const long long wide = PyLong_AsLongLongAndOverflow(value, &overflow);
    if (overflow != 0 || wide < 0 || wide > UINT32_MAX) return false;
    number = static_cast<std::uint32_t>(wide);
    return true;
}

// What `function` returns, as Python has it: nothing, a bool or an object.
template <class Function>
PyObject* answered(Function&& function) {
    using Result = decltype(function());
    if constexpr (std::is_void_v<Result>) {
        function();
        return py::none().release().ptr();
    } else if constexpr (std::is_same_v<Result, bool>) {
        return PyBool_FromLong(function());
    } else {
        return function().release().ptr();
    }
}

// f(), without arguments.
template <auto method>
struct Plain {
    template <class T>
    static PyObject* call(T& object, PyObject* const*, Py_ssize_t count, PyObject* names) {
        if (count != 0 || names != nullptr) return nullptr;
        return answered([&] { return (object.*method)(); });
    }
};

// f(number), by position.
template <auto method>
struct OfNumber {
    template <class T>
    static PyObject* call(T& object, PyObject* const* args, Py_ssize_t count, PyObject* names) {
        std::uint32_t number = 0;
        if (count != 1 || names != nullptr || !small(args[0], number)) return nullptr;
        return answered([&] { return (object.*method)(number); });
    }
};

// f(x), by position.
template <auto method>
struct Unary {
    template <class T>
    static PyObject* call(T& object, PyObject* const* args, Py_ssize_t count, PyObject* names) {
        if (count != 1 || names != nullptr) return nullptr;
        return answered([&] { return (object.*method)(py::handle(args[0])); });
    }
};

// bool f(timeout=None, *, deadline=None).
template <auto method>
struct Timed {
    template <class T>
    static PyObject* call(T& object, PyObject* const* args, Py_ssize_t count, PyObject* names) {
        if (count > 1) return nullptr;
        py::handle timeout = count == 1 ? args[0] : Py_None, deadline = Py_None;
        const Py_ssize_t named = names == nullptr ? 0 : PyTuple_GET_SIZE(names);
        for (Py_ssize_t i = 0; i < named; ++i) {
            PyObject* name = PyTuple_GET_ITEM(names, i);
            if (PyUnicode_CompareWithASCIIString(name, "deadline") == 0) {
                deadline = args[count + i];
            } else if (count == 0 && PyUnicode_CompareWithASCIIString(name, "timeout") == 0) {
                timeout = args[count + i];
            } else {
                return nullptr;
            }
        }
        return PyBool_FromLong((object.*method)(timeout, deadline));
    }
};

}  // namespace pysampler::bindings
