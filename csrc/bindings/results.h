// What env.step() and env.reset() return, taken apart and checked. All throw Python's errors.
#pragma once

#include <pybind11/pybind11.h>

#include <array>
#include <cstddef>
#include <span>

namespace pysampler::bindings {

namespace py = pybind11;

// Fills `parts` with the values that env.`method`() returned, whatever sequence they came as.
// `results` keeps them alive: it becomes a tuple.
void take_apart(py::object& results, const char* method, std::span<PyObject*> parts);

template <std::size_t count>
std::array<PyObject*, count> take_apart(py::object& results, const char* method) {
    std::array<PyObject*, count> parts;
    take_apart(results, method, parts);
    return parts;
}

// `terminated` or `truncated`, which is its `name` in errors, as a bool.
bool as_bool(PyObject* value, const char* name);

// A reward: a number, or an array of one number.
double as_reward(PyObject* value);

}  // namespace pysampler::bindings
