// Infos in the frames: a tree of keys, and for each that is a number or a plain array a column.
//
//   a node:    mask [frames, envs], a byte each
//   a column:  mask [frames, envs], values [frames, envs, *shape]
//
// The parent decides which columns there are and where; what has no column is sent by mail. Workers
// clear the masks of their envs with each step, and set those of the values that they write.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "leaf.h"

namespace pysampler::bindings {

class Infos {
 public:
    // Adds a node for nested dicts at the end of this path of keys, whose nodes must exist.
    void add_node(const py::tuple& path, const py::array_t<bool>& mask);
    std::size_t count() const { return masks_.size(); }
    // Adds a column for values of the dtype and shape of `values` at the end of this path. `form`
    // is "python" for Python's own numbers, "scalar" for numpy's, "object" for numpy's numbers that
    // gymnasium collects as objects, or "array".
    void add_column(const py::tuple& path, const py::array_t<bool>& mask, const py::array& values,
                    const std::string& form);

    // -- a worker --

    void clear(std::uint32_t frame, std::size_t first, std::size_t count);
    // Writes what has a column under `key` (or at the top). Returns a dict of the rest, if any.
    std::optional<py::dict> store(std::uint32_t frame, std::size_t env, PyObject* info,
                                  const char* key = nullptr);

    // -- the parent --

    // The infos of a batch as gymnasium's vector envs return them; and the keys at the top whose
    // values do not share a dtype, to be read by row() for each env.
    std::pair<py::dict, py::list> collect(const Selection& batch) const;
    // The value of env under this key at the top: a number, an array, a dict, or None.
    py::object row(std::uint32_t frame, std::size_t env, const py::str& key) const;

 private:
    // The type of a value before it was written.
    enum class Form { kPython, kScalar, kObject, kArray };

    // Which envs have a value, [frames, envs].
    class Mask {
     public:
        explicit Mask(const py::array_t<bool>& array)
            : owner_(array),
              bytes_(reinterpret_cast<std::uint8_t*>(const_cast<bool*>(array.data()))),
              frame_bytes_(static_cast<std::size_t>(array.strides(0))) {}
        std::uint8_t* at(std::uint32_t frame) const { return bytes_ + frame * frame_bytes_; }

     private:
        py::array_t<bool> owner_;
        std::uint8_t* bytes_;
        std::size_t frame_bytes_;
    };
    struct Column {
        Mask mask;
        Leaf leaf;
        Form form;
    };
    struct Node {
        py::str key;
        py::str mask_key;
        std::optional<Mask> mask;  // of dicts, if there have been any
        std::vector<Column> columns;
        std::deque<Node> children;
    };

    Node& find_or_make(const py::tuple& path);
    static Node* find(Node& parent, PyObject* key, std::size_t& guess);
    std::optional<py::dict> store_in(Node& node, std::uint32_t frame, std::size_t env,
                                     PyObject* info);
    static bool accepts(const Column& column, PyObject* value);

    static bool any(const Selection& batch, const Mask& mask);
    static py::array_t<bool> copied(const Selection& batch, const Mask& mask);
    static py::object load_all(const Column& column, const Selection& batch, const bool* mask);
    bool collect_from(const Node& node, const Selection& batch, py::dict& into) const;
    py::object row_of(const Node& node, std::uint32_t frame, std::size_t env) const;

    Node root_;
    std::vector<Mask> masks_;  // of all nodes and columns
};

}  // namespace pysampler::bindings
