// Unpacks and checks the results of env.step() and env.reset(). All functions throw Python errors,
// and keep nothing.
#pragma once

#include <pybind11/pybind11.h>

#include <array>
#include <cstddef>
#include <span>

namespace pysampler::bindings {

namespace py = pybind11;

// Fills `parts` with the values that env.`method`() returned, in any kind of sequence. `results`
// becomes a tuple that keeps them alive.
void take_apart(py::object& results, const char* method, std::span<PyObject*> parts);

template <std::size_t count>
std::array<PyObject*, count> take_apart(py::object& results, const char* method) {
    std::array<PyObject*, count> parts;
    take_apart(results, method, parts);
    return parts;
}

// `terminated` or `truncated` as a bool; errors use its `name`.
bool as_bool(PyObject* value, const char* name);

// A reward: a number, or an array of one number.
double as_reward(PyObject* value);

// A reward of several numbers.
void read_rewards(PyObject* value, double* to, std::size_t count);

}  // namespace pysampler::bindings
