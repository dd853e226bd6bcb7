#include "pickles.h"

#include <algorithm>
#include <cstring>

namespace pysampler::bindings {
namespace {

bool is_enum(PyObject* value) {
    static PyObject* const base =
        py::object(py::module_::import("enum").attr("Enum")).release().ptr();  // kept forever
    return PyType_IsSubtype(Py_TYPE(value), reinterpret_cast<PyTypeObject*>(base)) != 0;
}

}  // namespace

Pickles::Pickles(const Leaf& rows, const py::object& type)
    : rows_(rows),
      type_(type),
      dumps_(py::module_::import("pickle").attr("dumps")),
      loads_(py::module_::import("pickle").attr("loads")),
      protocol_(py::int_(5)) {}

bool Pickles::is_constant(PyObject* value) {
    if (value == Py_None || PyUnicode_CheckExact(value) || PyBytes_CheckExact(value) ||
        PyBool_Check(value) || PyLong_CheckExact(value) || PyFloat_CheckExact(value) ||
        PyType_Check(value)) {  // a class is pickled by its name
        return true;
    }
    if (!PyTuple_CheckExact(value)) return is_enum(value);
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(value); ++i) {
        if (!is_constant(PyTuple_GET_ITEM(value, i))) return false;
    }
    return true;
}

bool Pickles::store(std::uint32_t frame, std::size_t env, PyObject* value) {
    const auto write = [&](std::string_view pickle) {
        std::byte* const to = rows_.row(frame, env);
        to[0] = static_cast<std::byte>(pickle.size());
        std::memcpy(to + 1, pickle.data(), pickle.size());
        misfits_ = 0;
        return true;
    };
    if (const auto known = stored_.find(value); known != stored_.end()) {
        return write(known->second.pickle);
    }
    ++misfits_;
    const std::size_t room = std::min<std::size_t>(rows_.row_bytes() - 1, 255);
    // A long text cannot fit: do not pickle it.
    if (PyUnicode_CheckExact(value) &&
        static_cast<std::size_t>(PyUnicode_GET_LENGTH(value)) > room) {
        return false;
    }
    py::object pickle;
    try {
        pickle = dumps_(py::handle(value), protocol_);
    } catch (py::error_already_set& error) {
        if (!error.matches(PyExc_Exception)) throw;
        return false;
    }
    const auto bytes = pickle.cast<std::string_view>();
    if (bytes.size() > room) return false;
    if (is_constant(value)) {
        if (stored_.size() >= kRemembered) stored_.clear();
        stored_[value] = {py::reinterpret_borrow<py::object>(value), std::string(bytes)};
    }
    return write(bytes);
}

py::object Pickles::load(std::uint32_t frame, std::size_t env) {
    const std::byte* const from = rows_.row(frame, env);
    const std::size_t size = std::min(std::to_integer<std::size_t>(from[0]), rows_.row_bytes() - 1);
    const std::string_view pickle(reinterpret_cast<const char*>(from + 1), size);
    if (const auto known = loaded_.find(pickle); known != loaded_.end()) return known->second;
    const std::string copy(pickle);
    const py::object value = loads_(py::bytes(copy));
    if (is_constant(value.ptr())) {
        if (loaded_.size() >= kRemembered) loaded_.clear();
        loaded_[copy] = value;
    }
    return value;
}

}  // namespace pysampler::bindings
