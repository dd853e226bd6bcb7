#include "results.h"

#include <string>

#include "leaf.h"
#include "number.h"

namespace pysampler::bindings {
namespace {

// Throws a TypeError whose cause is the Python error that is set. KeyboardInterrupt passes through.
[[noreturn]] void raise_type(const std::string& message) {
    if (!PyErr_ExceptionMatches(PyExc_Exception)) throw py::error_already_set();
    py::error_already_set cause;
    py::raise_from(cause, PyExc_TypeError, message.c_str());
    throw py::error_already_set();
}

std::string names(std::size_t parts) {
    return parts == 2 ? "(observation, info)"
                      : "(observation, reward, terminated, truncated, info)";
}

}  // namespace

void take_apart(py::object& results, const char* method, std::span<PyObject*> parts) {
    if (PyDict_Check(results.ptr()) || py::isinstance<py::array>(results)) {
        // Perhaps an env from before gymnasium: an observation, whose items are not results.
        throw py::type_error(std::string("env.") + method + "() returned " +
                             (PyDict_Check(results.ptr()) ? "a dict" : "an array") + ", expected " +
                             names(parts.size()));
    }
    if (!PyTuple_Check(results.ptr())) {
        PyObject* tuple = PySequence_Tuple(results.ptr());
        if (tuple == nullptr) {
            raise_type(std::string("env.") + method + "() returned a " +
                       Py_TYPE(results.ptr())->tp_name + ", expected " +
                       std::to_string(parts.size()) + " values: " + names(parts.size()));
        }
        results = py::reinterpret_steal<py::object>(tuple);
    }
    if (PyTuple_GET_SIZE(results.ptr()) != static_cast<Py_ssize_t>(parts.size())) {
        throw py::value_error(std::string("env.") + method + "() returned " +
                              std::to_string(PyTuple_GET_SIZE(results.ptr())) +
                              " values, expected " + std::to_string(parts.size()) + ": " +
                              names(parts.size()));
    }
    for (std::size_t i = 0; i < parts.size(); ++i) {
        parts[i] = PyTuple_GET_ITEM(results.ptr(), static_cast<Py_ssize_t>(i));
    }
}

bool as_bool(PyObject* value, const char* name) {
    if (value == Py_True) return true;
    if (value == Py_False) return false;
    const int truth = PyObject_IsTrue(value);
    if (truth >= 0) return truth != 0;
    raise_type(std::string(name) + " is a " + Py_TYPE(value)->tp_name + ", expected a bool");
}

double as_reward(PyObject* value) {
    using Npy = py::detail::npy_api;
    if (const auto number = number_of(value)) {
        return number->whole ? static_cast<double>(number->integer) : number->real;
    }
    double reward = 0;
    if (plain_array(value) && array_of(value)->nd <= 1) {
        const auto* proxy = array_of(value);
        const int type = py::detail::array_descriptor_proxy(proxy->descr)->type_num;
        if ((proxy->nd == 0 || proxy->dimensions[0] == 1) &&
            cast_elements(type, proxy->data, Npy::NPY_DOUBLE_, &reward, 1)) {
            return reward;
        }
    }
    if (PyLong_CheckExact(value)) {
        reward = PyLong_AsDouble(value);
    } else {
        const py::object as_array =
            checked(Npy::get().PyArray_FromAny_(value, nullptr, 0, 0, 0, nullptr));
        if (array_of(as_array.ptr())->nd > 1 || py::len(as_array.attr("ravel")()) != 1) {
            throw py::value_error("reward has shape " +
                                  std::string(py::str(as_array.attr("shape"))) +
                                  ", expected a number");
        }
        reward = PyFloat_AsDouble(as_array.attr("item")().ptr());
        if (reward == -1.0 && PyErr_Occurred()) {
            raise_type(std::string("reward is a ") + Py_TYPE(value)->tp_name +
                       ", expected a number");
        }
    }
    if (reward == -1.0 && PyErr_Occurred()) throw py::error_already_set();
    return reward;
}

void read_rewards(PyObject* value, double* to, std::size_t count) {
    using Doubles = py::array_t<double, py::array::c_style | py::array::forcecast>;
    Doubles array;
    try {
        const auto given = py::array(py::reinterpret_borrow<py::object>(value));
        if (std::string("biuf").find(given.dtype().kind()) == std::string::npos) {
            PyErr_SetString(PyExc_TypeError, "its elements are not numbers");
            throw py::error_already_set();
        }
        array = Doubles(given);
    } catch (py::error_already_set& error) {
        error.restore();
        raise_type(std::string("reward is a ") + Py_TYPE(value)->tp_name +
                   ", expected an array of " + std::to_string(count) + " numbers");
    }
    const bool alone = count == 1 && array.ndim() == 0;
    if (!alone && (array.ndim() != 1 || static_cast<std::size_t>(array.shape(0)) != count)) {
        throw py::value_error("reward has shape " + std::string(py::str(array.attr("shape"))) +
                              ", expected (" + std::to_string(count) +
                              ",), the shape of the env's reward_space; a wrapper that makes one "
                              "number of it needs reward_space = None");
    }
    std::copy_n(array.data(), count, to);
}

}  // namespace pysampler::bindings
