#include "infos.h"

#include <pybind11/critical_section.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <string>

#include "support.h"

namespace pysampler::bindings {
namespace {

using Npy = py::detail::npy_api;

}  // namespace

void Infos::add_node(const py::tuple& path, const py::array_t<bool>& mask) {
    find_or_make(path).mask.emplace(mask);
    masks_.emplace_back(mask);
}

void Infos::add_column(const py::tuple& path, const py::array_t<bool>& mask,
                       const py::array& values, const std::string& form) {
    find_or_make(path).columns.push_back({Mask(mask), Leaf(values),
                                          form == "array"    ? Form::kArray
                                          : form == "scalar" ? Form::kScalar
                                          : form == "object" ? Form::kObject
                                                             : Form::kPython,
                                          nullptr});
    masks_.emplace_back(mask);
}

void Infos::add_pickles(const py::tuple& path, const py::array_t<bool>& mask, const py::array& rows,
                        const py::object& type) {
    const Leaf leaf(rows);
    find_or_make(path).columns.push_back(
        {Mask(mask), leaf, Form::kPickle, std::make_shared<Pickles>(leaf, type)});
    masks_.emplace_back(mask);
}

Infos::Node& Infos::find_or_make(const py::tuple& path) {
    Node* node = &root_;
    for (const py::handle key : path) {
        std::size_t guess = 0;
        Node* child = find(*node, key.ptr(), guess);
        if (child == nullptr) {
            // Interned, so that it is the same object as a constant in the env's code.
            PyObject* name = key.inc_ref().ptr();
            PyUnicode_InternInPlace(&name);
            node->children.emplace_back();
            child = &node->children.back();
            child->key = py::reinterpret_steal<py::str>(name);
            child->mask_key = py::str("_{}").format(child->key);
            for (Node& sibling : node->children) {
                if (!sibling.key.equal(child->mask_key) && !sibling.mask_key.equal(child->key)) {
                    continue;
                }
                sibling.clashes = child->clashes = true;
            }
            node->index[child->key] = py::int_(node->children.size() - 1);
        }
        node = child;
    }
    return *node;
}

// The child with this key. Tries `guess` first and sets it to the index after the child.
Infos::Node* Infos::find(Node& parent, PyObject* key, std::size_t& guess) {
    const std::size_t count = parent.children.size();
    std::size_t at = guess;
    if (at >= count || parent.children[at].key.ptr() != key) {
        if (!PyUnicode_CheckExact(key)) return nullptr;
        PyObject* const found = PyDict_GetItemWithError(parent.index.ptr(), key);
        if (found == nullptr) {
            if (PyErr_Occurred() != nullptr) throw py::error_already_set();
            return nullptr;
        }
        at = PyLong_AsSize_t(found);
    }
    guess = at + 1 == count ? 0 : at + 1;
    return &parent.children[at];
}

// -- a worker --

void Infos::clear(std::uint32_t frame, std::size_t first, const Chosen& envs) const {
    for (const Mask& mask : masks_) envs.fill(mask.at(frame) + first, 0);
}

std::optional<py::dict> Infos::store(std::uint32_t frame, std::size_t env, PyObject* info,
                                     const char* key) {
    if (!PyDict_Check(info)) {
        throw py::type_error(std::string("info is a ") + Py_TYPE(info)->tp_name +
                             ", expected a dict");
    }
    if (key == nullptr) return store_in(root_, frame, env, info);
    py::dict wrapped;
    wrapped[key] = py::handle(info);
    return store_in(root_, frame, env, wrapped.ptr());
}

std::optional<py::dict> Infos::store_in(Node& node, std::uint32_t frame, std::size_t env,
                                        PyObject* info) {
    std::optional<py::dict> rest;
    const auto keep = [&rest](PyObject* key, PyObject* value) {
        if (!rest) rest.emplace();
        (*rest)[py::handle(key)] = py::handle(value);
    };
    PyObject *key, *value;
    Py_ssize_t position = 0;
    std::size_t guess = 0;
    const py::scoped_critical_section alone{py::handle(info)};
    while (PyDict_Next(info, &position, &key, &value)) {
        // Keep references: a key's __hash__, the collector, or another thread while that runs, may
        // remove them from the dict.
        const auto held_key = py::reinterpret_borrow<py::object>(key);
        const auto held_value = py::reinterpret_borrow<py::object>(value);
        Node* child = find(node, key, guess);
        if (child == nullptr) {
            keep(key, value);
            continue;
        }
        if (PyDict_Check(value)) {
            if (!child->mask) {
                keep(key, value);
                continue;
            }
            child->mask->at(frame)[env] = 1;
            if (auto inner = store_in(*child, frame, env, value)) keep(key, inner->ptr());
            continue;
        }
        const Column* taker = nullptr;
        for (const Column& column : child->columns) {
            if (accepts(column, value)) taker = &column;
        }
        if (taker == nullptr ||
            (taker->pickles != nullptr && !taker->pickles->store(frame, env, value))) {
            keep(key, value);
            continue;
        }
        if (taker->pickles == nullptr) taker->leaf.store(frame, env, value);
        taker->mask.at(frame)[env] = 1;
    }
    return rest;
}

std::optional<py::dict> Infos::store_rows(std::uint32_t frame, std::size_t first,
                                          const Chosen& chosen, const py::dict& infos, bool final) {
    std::optional<py::dict> rest;
    std::size_t guess = 0;
    Node* node = &root_;
    if (final) {
        node = find(root_, final_info_.ptr(), guess);
        if (node == nullptr || !node->mask) return infos;
        chosen.fill(node->mask->at(frame) + first, 1);
        guess = 0;
    }
    const py::scoped_critical_section alone{infos};
    for (const auto& item : infos) {
        // As in store_in().
        const auto key = py::reinterpret_borrow<py::object>(item.first);
        const auto value = py::reinterpret_borrow<py::object>(item.second);
        Node* const child = find(*node, key.ptr(), guess);
        const auto takes = [&](const Column& column) {
            if (column.form == Form::kPickle ||
                !column.leaf.store_rows(frame, first, py::reinterpret_borrow<py::array>(value),
                                        chosen)) {
                return false;
            }
            chosen.fill(column.mask.at(frame) + first, 1);
            return true;
        };
        if (child != nullptr && py::isinstance<py::array>(value) &&
            std::any_of(child->columns.begin(), child->columns.end(), takes)) {
            continue;
        }
        if (!rest) rest.emplace();
        (*rest)[key] = value;
    }
    return rest;
}

// Whether gymnasium would collect such a value in an array of the column's dtype and shape.
bool Infos::accepts(const Column& column, PyObject* value) {
    if (column.form == Form::kPickle) return column.pickles->accepts(value);
    if (column.form == Form::kArray) return column.leaf.matches(value);
    if (column.form != Form::kPython) return Py_TYPE(value) == column.leaf.scalar_type();
    switch (column.leaf.type_num()) {
        case Npy::NPY_DOUBLE_:
            return PyFloat_CheckExact(value);
        case Npy::NPY_BOOL_:
            return PyBool_Check(value);
        default: {
            int overflow = 0;
            if (!PyLong_CheckExact(value)) return false;
            PyLong_AsLongLongAndOverflow(value, &overflow);
            return overflow == 0;
        }
    }
}

// -- the parent --

bool Infos::any(const Selection& batch, const Mask& mask) {
    return std::any_of(batch.begin(), batch.end(), [&](const Rows& rows) {
        return std::memchr(mask.at(rows.frame) + rows.first, 1, rows.count) != nullptr;
    });
}

py::array_t<bool> Infos::copied(const Selection& batch, const Mask& mask) {
    py::array_t<bool> copy(static_cast<py::ssize_t>(batch.envs()));
    // A corrupt frame may hold any byte; a C++ bool must be 0 or 1.
    bool* to = copy.mutable_data();
    for (const auto& [frame, first, count] : batch) {
        const std::uint8_t* from = mask.at(frame) + first;
        to = std::transform(from, from + count, to, [](std::uint8_t one) { return one != 0; });
    }
    return copy;
}

// The values of columns that gymnasium collects as objects; sets `mask` for envs that have one.
py::array Infos::load_objects(const std::vector<const Column*>& columns, const Selection& batch,
                              bool* mask) {
    py::array all(py::dtype("O"), std::vector{static_cast<py::ssize_t>(batch.envs())});
    auto** const begin = static_cast<PyObject**>(all.mutable_data());
    for (std::size_t i = 0; i < batch.envs(); ++i) Py_XSETREF(begin[i], py::none().release().ptr());
    for (const Column* column : columns) {
        std::size_t at = 0;
        for (const auto& [frame, first, count] : batch) {
            for (std::size_t env = first; env < first + count; ++env, ++at) {
                if (!column->mask.at(frame)[env]) continue;
                mask[at] = true;
                const py::object value = column->pickles != nullptr
                                             ? column->pickles->load(frame, env)
                                             : column->leaf.load(frame, env);
                if (column->pickles == nullptr || Pickles::is_constant(value.ptr())) {
                    Py_XSETREF(begin[at], value.inc_ref().ptr());
                } else {  // numpy may store another object
                    all[py::int_(at)] = value;
                }
            }
        }
    }
    return all;
}

bool Infos::loads(const Node& node, const Selection& batch) const {
    py::dict unused;
    try {
        collect_from(node, batch, unused);
        return true;
    } catch (py::error_already_set& error) {
        if (!error.matches(PyExc_Exception)) throw;
        return false;
    }
}

std::pair<py::dict, py::list> Infos::collect(const Selection& batch) const {
    py::dict infos;
    py::list mixed;
    for (const Node& node : root_.children) {
        try {
            if (collect_from(node, batch, infos)) continue;
        } catch (py::error_already_set& error) {
            // This process lacks a class that the worker has: row() raises it where it is reported.
            // Or a signal handler raised, as it may at any Python code: then a second try succeeds.
            if (!error.matches(PyExc_Exception) || loads(node, batch)) throw;
        }
        mixed.append(node.key);
    }
    return {infos, mixed};
}

// Adds the values under this key. False if they do not fit into one array.
bool Infos::collect_from(const Node& node, const Selection& batch, py::dict& into) const {
    const bool nested = node.mask && any(batch, *node.mask);
    std::vector<const Column*> found;
    for (const Column& column : node.columns) {
        if (any(batch, column.mask)) found.push_back(&column);
    }
    if (!nested && found.empty()) return true;
    if (node.clashes || (nested && !found.empty())) return false;
    if (nested) {
        py::dict inner;
        for (const Node& child : node.children) {
            if (!collect_from(child, batch, inner)) return false;
        }
        into[node.key] = inner;
        into[node.mask_key] = copied(batch, *node.mask);
        return true;
    }
    const Column& first = *found[0];
    py::array_t<bool> seen = copied(batch, first.mask);
    if (std::all_of(found.begin(), found.end(), is_object)) {
        into[node.key] = load_objects(found, batch, seen.mutable_data());
        into[node.mask_key] = seen;
        return true;
    }
    py::object values = first.leaf.load_all(batch, seen.data());
    // Python's floats and numpy's doubles, for example, go into the same array.
    for (std::size_t i = 1; i < found.size(); ++i) {
        const Column& other = *found[i];
        if (std::max(other.form, first.form) > Form::kScalar ||
            other.leaf.type_num() != first.leaf.type_num()) {
            return false;
        }
        py::ssize_t at = 0;
        for (const auto& rows : batch) {
            for (std::size_t k = 0; k < rows.count; ++k, ++at) {
                const std::size_t env = rows.first + k;
                if (!other.mask.at(rows.frame)[env]) continue;
                other.leaf.copy_row(rows.frame, env, values.ptr(), static_cast<std::size_t>(at));
                seen.mutable_at(at) = true;
            }
        }
    }
    into[node.key] = values;
    into[node.mask_key] = seen;
    return true;
}

py::dict Infos::row(std::uint32_t frame, std::size_t env, const py::str& key) const {
    py::dict found;
    if (root_.index.contains(key)) {
        add_row(root_.children[root_.index[key].cast<std::size_t>()], frame, env, found);
    }
    return found;
}

void Infos::add_row(const Node& node, std::uint32_t frame, std::size_t env, py::dict& into) const {
    for (const Column& column : node.columns) {
        if (!column.mask.at(frame)[env]) continue;
        if (column.pickles != nullptr) {
            into[node.key] = column.pickles->load(frame, env);
            return;
        }
        py::object value = column.leaf.load(frame, env);
        if (column.form == Form::kPython) value = value.attr("item")();
        if (column.form == Form::kArray) value = py::array(value);  // even with zero dimensions
        into[node.key] = value;
        return;
    }
    if (!node.mask || !node.mask->at(frame)[env]) return;
    py::dict inner;
    for (const Node& child : node.children) add_row(child, frame, env, inner);
    into[node.key] = inner;
}

void register_infos(py::module_& m) {
    Class<Infos, std::shared_ptr<Infos>>(m, "Infos")
        .def(py::init<>())
        .def("add_node", &Infos::add_node, py::arg("path"), py::arg("mask"),
             "Add a node for nested dicts at the end of this path of keys.")
        .def("add_column", &Infos::add_column, py::arg("path"), py::arg("mask"), py::arg("values"),
             py::arg("form"), "Add a column for numbers, or for arrays of one shape.")
        .def("add_pickles", &Infos::add_pickles, py::arg("path"), py::arg("mask"), py::arg("rows"),
             py::arg("type"), "Add a column for small objects of this type.")
        .def_property_readonly("count", &Infos::count, "The number of nodes and columns.")
        .def(
            "store",
            [](Infos& infos, std::uint32_t frame, std::size_t env, const py::dict& info,
               const std::optional<std::string>& under) {
                return infos.store(frame, env, info.ptr(), under ? under->c_str() : nullptr);
            },
            py::arg("frame"), py::arg("env"), py::arg("info"), py::arg("under") = py::none(),
            "Write an env's info, at the top or under a key; return the rest as a dict, or None.")
        .def("row", &Infos::row, py::arg("frame"), py::arg("env"), py::arg("key"),
             "Return an env's value under a key as {key: value}, or an empty dict.");
}

}  // namespace pysampler::bindings
