// Checks arguments from Python (whole numbers, deadlines) and raises errors of pysampler.errors.
#pragma once

#include <pybind11/pybind11.h>
#include <pybind11/typing.h>

#include <cmath>
#include <optional>
#include <string>

#include "clock.h"

namespace pysampler::bindings {

namespace py = pybind11;

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

// A whole number of at least `min`, from Python or numpy. `value` is the argument `what` of the
// call that errors name by `verb_and_thing`. Throws ValueError.
inline std::uint64_t whole(const py::handle& value, const char* verb_and_thing, const char* what,
                           std::uint64_t min) {
    const auto refuse = [&](const std::string& expected) {
        throw py::value_error(std::string("cannot ") + verb_and_thing + ": " + what + " " +
                              std::string(py::repr(value)) + ", expected a whole number " +
                              expected);
    };
    const auto enough = [min] { return "of at least " + std::to_string(min); };
    if (!PyIndex_Check(value.ptr()) || PyBool_Check(value.ptr())) refuse(enough());
    const py::object index = py::reinterpret_steal<py::object>(PyNumber_Index(value.ptr()));
    if (!index) throw py::error_already_set();
    int overflow = 0;
    const long long number = PyLong_AsLongLongAndOverflow(index.ptr(), &overflow);
    if (overflow > 0) refuse("below 2**63");
    if (overflow < 0 || number < 0 || static_cast<std::uint64_t>(number) < min) refuse(enough());
    return static_cast<std::uint64_t>(number);
}

inline std::optional<std::uint64_t> whole_or_none(const py::handle& value,
                                                  const char* verb_and_thing, const char* what,
                                                  std::uint64_t min) {
    if (value.is_none()) return std::nullopt;
    return whole(value, verb_and_thing, what, min);
}

// Types for signatures only: any object is accepted and checked in deadline_of().
using Seconds = py::typing::Optional<py::float_>;
using Nanoseconds = py::typing::Optional<py::int_>;

// Documents both in the docstrings of waits.
#define PYSAMPLER_WAIT_ARGS                          \
    "    timeout: Seconds to wait; None: forever.\n" \
    "    deadline: When to stop waiting, in ns of now(), instead of a timeout.\n"

// The deadline of `timeout` seconds from now, or `deadline` in ns of now(); kForever if neither is
// given. Throws ValueError.
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
    // Beyond 292 years the sum does not fit into 64 bits.
    return ns >= static_cast<double>(kForever - now) ? kForever
                                                     : now + static_cast<std::int64_t>(ns);
}

}  // namespace pysampler::bindings
