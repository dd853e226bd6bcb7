#include "infos.h"

#include <pybind11/stl.h>

#include <algorithm>
#include <cstring>

#include "support.h"

namespace pysampler::bindings {
namespace {

using Npy = py::detail::npy_api;

}  // namespace

Infos::Infos(const py::array_t<std::uint8_t>& area, std::size_t envs)
    : owner_(area),
      area_(const_cast<std::uint8_t*>(area.data())),
      frame_bytes_(static_cast<std::size_t>(area.strides(0))),
      envs_(envs) {}

void Infos::add_node(const py::tuple& path, std::size_t mask) {
    find_or_make(path).mask = mask;
    masks_.push_back(mask);
}

void Infos::add_column(const py::tuple& path, std::size_t mask, const py::dtype& dtype,
                       const std::vector<py::ssize_t>& shape, const std::string& form,
                       std::size_t values) {
    const auto frames = owner_.shape(0);
    std::vector<py::ssize_t> full{frames, static_cast<py::ssize_t>(envs_)};
    full.insert(full.end(), shape.begin(), shape.end());
    const py::array rows =
        over_frames(dtype, full, static_cast<py::ssize_t>(frame_bytes_), area_ + values, owner_);
    find_or_make(path).columns.push_back({mask, Leaf(rows),
                                          form == "array"    ? Form::kArray
                                          : form == "scalar" ? Form::kScalar
                                                             : Form::kPython});
    masks_.push_back(mask);
}

Infos::Node& Infos::find_or_make(const py::tuple& path) {
    Node* node = &root_;
    for (const py::handle key : path) {
        std::size_t guess = 0;
        Node* child = find(*node, key.ptr(), guess);
        if (child == nullptr) {
            // Interned: a key that is a constant in the env's code is then the same object.
            PyObject* name = key.inc_ref().ptr();
            PyUnicode_InternInPlace(&name);
            node->children.emplace_back();
            child = &node->children.back();
            child->key = py::reinterpret_steal<py::str>(name);
            child->mask_key = py::str("_{}").format(child->key);
        }
        node = child;
    }
    return *node;
}

// The child of that key, tried first at `guess`, which then is the place behind it.
Infos::Node* Infos::find(Node& parent, PyObject* key, std::size_t& guess) {
    const std::size_t count = parent.children.size();
    for (std::size_t i = 0; i < count; ++i) {
        const std::size_t at = guess + i < count ? guess + i : guess + i - count;
        if (parent.children[at].key.ptr() == key) {
            guess = at + 1 == count ? 0 : at + 1;
            return &parent.children[at];
        }
    }
    if (!PyUnicode_CheckExact(key)) return nullptr;
    for (std::size_t at = 0; at < count; ++at) {
        if (PyUnicode_Compare(parent.children[at].key.ptr(), key) == 0) {
            guess = at + 1 == count ? 0 : at + 1;
            return &parent.children[at];
        }
    }
    return nullptr;
}

// -- a worker -----------------------------------------------------------------------------------

void Infos::clear(std::uint32_t frame, std::size_t first, std::size_t count) {
    for (const std::size_t offset : masks_) std::memset(mask(frame, offset) + first, 0, count);
}

std::optional<py::dict> Infos::store(std::uint32_t frame, std::size_t env, PyObject* info,
                                     const char* key) {
    if (!PyDict_Check(info)) {
        throw py::type_error(std::string("info is ") + Py_TYPE(info)->tp_name +
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
    while (PyDict_Next(info, &position, &key, &value)) {
        // A key's __hash__, or the collector, may take them out of the dict.
        const auto held_key = py::reinterpret_borrow<py::object>(key);
        const auto held_value = py::reinterpret_borrow<py::object>(value);
        Node* child = find(node, key, guess);
        if (child == nullptr) {
            keep(key, value);
            continue;
        }
        if (PyDict_Check(value)) {
            if (child->mask == kNone) {
                keep(key, value);
                continue;
            }
            mask(frame, child->mask)[env] = 1;
            if (auto inner = store_in(*child, frame, env, value)) keep(key, inner->ptr());
            continue;
        }
        const Column* taker = nullptr;
        for (const Column& column : child->columns) {
            if (accepts(column, value)) taker = &column;
        }
        if (taker == nullptr) {
            keep(key, value);
            continue;
        }
        taker->leaf.store(frame, env, value);
        mask(frame, taker->mask)[env] = 1;
    }
    return rest;
}

// Whether gymnasium would make an array of the column's dtype and shape for such a value.
bool Infos::accepts(const Column& column, PyObject* value) {
    if (column.form == Form::kArray) return column.leaf.matches(value);
    if (column.form == Form::kScalar) return Py_TYPE(value) == column.leaf.scalar_type();
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

// -- the parent ---------------------------------------------------------------------------------

bool Infos::any(const Selection& batch, std::size_t offset) const {
    return std::any_of(batch.begin(), batch.end(), [&](const Rows& rows) {
        return std::memchr(mask(rows.frame, offset) + rows.first, 1, rows.count) != nullptr;
    });
}

py::array_t<bool> Infos::masks(const Selection& batch, std::size_t offset) const {
    py::array_t<bool> copy(static_cast<py::ssize_t>(batch.envs()));
    // A worker may have written anything; a bool that is neither 0 nor 1 is trouble.
    bool* to = copy.mutable_data();
    for (const auto& [frame, first, count] : batch) {
        const std::uint8_t* from = mask(frame, offset) + first;
        to = std::transform(from, from + count, to, [](std::uint8_t one) { return one != 0; });
    }
    return copy;
}

std::pair<py::dict, py::list> Infos::collect(const Selection& batch) const {
    py::dict infos;
    py::list mixed;
    for (const Node& node : root_.children) {
        if (!collect_from(node, batch, infos)) mixed.append(node.key);
    }
    return {infos, mixed};
}

// Adds what there is under this key. False if values do not fit into one array.
bool Infos::collect_from(const Node& node, const Selection& batch, py::dict& into) const {
    const bool nested = node.mask != kNone && any(batch, node.mask);
    std::vector<const Column*> found;
    for (const Column& column : node.columns) {
        if (any(batch, column.mask)) found.push_back(&column);
    }
    if (nested && !found.empty()) return false;
    if (nested) {
        py::dict inner;
        for (const Node& child : node.children) {
            if (!collect_from(child, batch, inner)) return false;
        }
        into[node.key] = inner;
        into[node.mask_key] = masks(batch, node.mask);
        return true;
    }
    if (found.empty()) return true;
    const Column& first = *found[0];
    py::array_t<bool> seen = masks(batch, first.mask);
    py::object values = first.leaf.load_all(batch, seen.data());
    // Python's floats and numpy's doubles, say: the same to an array.
    for (std::size_t i = 1; i < found.size(); ++i) {
        const Column& other = *found[i];
        if (other.form == Form::kArray || first.form == Form::kArray ||
            other.leaf.type_num() != first.leaf.type_num()) {
            return false;
        }
        py::ssize_t at = 0;
        for (const auto& rows : batch) {
            for (std::size_t k = 0; k < rows.count; ++k, ++at) {
                const std::size_t env = rows.first + k;
                if (!mask(rows.frame, other.mask)[env]) continue;
                other.leaf.copy_row(rows.frame, env, values.ptr(), static_cast<std::size_t>(at));
                seen.mutable_at(at) = true;
            }
        }
    }
    into[node.key] = values;
    into[node.mask_key] = seen;
    return true;
}

py::object Infos::row(std::uint32_t frame, std::size_t env, const py::str& key) const {
    for (const Node& node : root_.children) {
        if (node.key.equal(key)) return row_of(node, frame, env);
    }
    return py::none();
}

py::object Infos::row_of(const Node& node, std::uint32_t frame, std::size_t env) const {
    for (const Column& column : node.columns) {
        if (!mask(frame, column.mask)[env]) continue;
        py::object value = column.leaf.load(frame, env);
        return column.form == Form::kPython ? py::object(value.attr("item")()) : value;
    }
    if (node.mask == kNone || !mask(frame, node.mask)[env]) return py::none();
    py::dict inner;
    for (const Node& child : node.children) {
        py::object value = row_of(child, frame, env);
        if (!value.is_none()) inner[child.key] = value;
    }
    return inner;
}

void register_infos(py::module_& m) {
    Class<Infos, std::shared_ptr<Infos>>(m, "Infos")
        .def(py::init<const py::array_t<std::uint8_t>&, std::size_t>(), py::arg("area"),
             py::arg("envs"))
        .def("add_node", &Infos::add_node, py::arg("path"), py::arg("mask"),
             "A place for nested dicts at the end of this path of keys.")
        .def("add_column", &Infos::add_column, py::arg("path"), py::arg("mask"), py::arg("dtype"),
             py::arg("shape"), py::arg("form"), py::arg("values"),
             "A place for numbers, or arrays of a shape.")
        .def_property_readonly("count", &Infos::count, "How many places there are.")
        .def("row", &Infos::row, py::arg("frame"), py::arg("env"), py::arg("key"),
             "What one env had under a key, None if nothing.");
}

}  // namespace pysampler::bindings
