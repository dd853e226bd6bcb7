#include "space.h"

#include <algorithm>

namespace pysampler::bindings {
namespace {

// Calls store(), and puts the key in front of the message of its errors.
template <class Store>
bool named(const py::object& key, Store&& store) {
    try {
        return store();
    } catch (const py::value_error& error) {
        throw py::value_error("[" + py::repr(key).cast<std::string>() + "]" + error.what());
    }
}

// What a dict or a sequence has at a key; `got` is null, with a Python error set, if it has
// nothing.
py::object part(PyObject* value, PyObject* got, const py::object& key, const char* kind) {
    if (got != nullptr) return py::reinterpret_steal<py::object>(got);
    if (PyErr_ExceptionMatches(PyExc_LookupError) == 0) throw py::error_already_set();
    PyErr_Clear();
    if (py::isinstance<py::array>(py::handle(value))) {
        throw py::value_error(" is an array, expected a " + std::string(kind));
    }
    throw py::value_error(" lacks [" + py::repr(key).cast<std::string>() + "]");
}

}  // namespace

Space::Space(const py::tuple& node, const std::vector<Leaf>& leaves) {
    const auto kind = node[0].cast<std::string>();
    if (kind == "leaf" || kind == "unshaped") {
        kind_ = kind == "leaf" ? Kind::kLeaf : Kind::kUnshaped;
        index_ = node[1].cast<std::size_t>();
        if (kind_ == Kind::kLeaf && index_ >= leaves.size())
            throw py::index_error("cannot make space: no such leaf");
        return;
    }
    kind_ = kind == "dict" ? Kind::kDict : Kind::kTuple;
    for (const py::handle child : py::tuple(node[1])) {
        if (kind_ == Kind::kDict) {
            const auto pair = py::reinterpret_borrow<py::tuple>(child);
            children_.emplace_back(pair[0], Space(py::tuple(pair[1]), leaves));
        } else {
            children_.emplace_back(py::none(),
                                   Space(py::reinterpret_borrow<py::tuple>(child), leaves));
        }
    }
}

bool Space::has_unshaped() const {
    return kind_ == Kind::kUnshaped ||
           std::any_of(children_.begin(), children_.end(),
                       [](const auto& c) { return c.second.has_unshaped(); });
}

bool Space::store(std::uint32_t frame, std::size_t env, PyObject* value,
                  std::vector<py::object>* unshaped, const std::vector<Leaf>& leaves) const {
    switch (kind_) {
        case Kind::kLeaf:
            return leaves[index_].store(frame, env, value);
        case Kind::kUnshaped:
            unshaped->push_back(py::reinterpret_borrow<py::object>(value));
            return false;
        case Kind::kDict: {
            bool same = PyDict_CheckExact(value) &&
                        PyDict_GET_SIZE(value) == static_cast<Py_ssize_t>(children_.size());
            for (const auto& [key, child] : children_) {
                // Keeps a reference: Python code that runs meanwhile may remove it from the dict.
                const py::object item =
                    part(value, PyObject_GetItem(value, key.ptr()), key, "dict");
                same &= named(
                    key, [&] { return child.store(frame, env, item.ptr(), unshaped, leaves); });
            }
            return same;
        }
        case Kind::kTuple: {
            const bool plain = PyTuple_CheckExact(value) &&
                               PyTuple_GET_SIZE(value) == static_cast<Py_ssize_t>(children_.size());
            bool same = plain;
            for (std::size_t i = 0; i < children_.size(); ++i) {
                const auto at = static_cast<Py_ssize_t>(i);
                const py::object item =
                    plain ? py::reinterpret_borrow<py::object>(PyTuple_GET_ITEM(value, at))
                          : part(value, PySequence_GetItem(value, at), py::int_(i), "tuple");
                same &= named(py::int_(i), [&] {
                    return children_[i].second.store(frame, env, item.ptr(), unshaped, leaves);
                });
            }
            return same;
        }
    }
    return false;
}

py::object Space::load(std::uint32_t frame, std::size_t env,
                       const std::vector<Leaf>& leaves) const {
    return build([&](std::size_t i) { return leaves[i].load(frame, env); });
}

}  // namespace pysampler::bindings
