// Infos in the frames: a tree of keys with columns for numbers, plain arrays and small objects.
//
//   a node:    mask [frames, envs], a byte each
//   a column:  mask [frames, envs], values [frames, envs, *shape]
//   of small objects: mask [frames, envs], pickles [frames, envs, bytes]; see pickles.h
//
// The parent decides which columns exist and where; values without a column are sent by mail.
// Workers clear the masks of their envs in each step, and set those of the values that they write.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "leaf.h"
#include "pickles.h"

namespace pysampler::bindings {

// Owner: the thread that steps or reads the envs; each side of the frames has an Infos of its own.
class Infos {
 public:
    // Adds a node for nested dicts at the end of this path of keys, whose other nodes must exist.
    void add_node(const py::tuple& path, const py::array_t<bool>& mask);
    std::size_t count() const { return masks_.size(); }
    // Adds a column for values of the dtype and shape of `values` at the end of this path. `form`
    // is "python" for Python's own numbers, "scalar" for numpy's, "object" for numpy's numbers that
    // gymnasium collects as objects, or "array".
    void add_column(const py::tuple& path, const py::array_t<bool>& mask, const py::array& values,
                    const std::string& form);
    // The same for objects of exactly this type, pickled into `rows`.
    void add_pickles(const py::tuple& path, const py::array_t<bool>& mask, const py::array& rows,
                     const py::object& type);

    // -- a worker --

    void clear(std::uint32_t frame, std::size_t first, std::size_t count) {
        clear(frame, first, Chosen{count});
    }
    void clear(std::uint32_t frame, std::size_t first, const Chosen& envs) const;
    // Writes the values that have a column under `key` (or at the top). Returns the rest as a dict.
    std::optional<py::dict> store(std::uint32_t frame, std::size_t env, PyObject* info,
                                  const char* key = nullptr);
    // The same for many envs: `infos` has an array per key, with a row for each of those that are
    // chosen, counted from `first`. With `final` they belong to the dict final_info.
    std::optional<py::dict> store_rows(std::uint32_t frame, std::size_t first, const Chosen& chosen,
                                       const py::dict& infos, bool final);

    // -- the parent --

    // The infos of a batch as gymnasium's vector envs return them; and the top-level keys whose
    // values do not fit into one array, to be read with row() for each env.
    std::pair<py::dict, py::list> collect(const Selection& batch) const;
    // The env's value under this top-level key, as {key: value}, or an empty dict.
    py::dict row(std::uint32_t frame, std::size_t env, const py::str& key) const;

 private:
    // The type of a value before it was written.
    enum class Form { kPython, kScalar, kObject, kArray, kPickle };

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
        std::shared_ptr<Pickles> pickles;  // of kPickle
    };
    struct Node {
        py::str key;
        py::str mask_key;
        bool clashes = false;      // with a sibling: the key of one is the mask_key of the other
        std::optional<Mask> mask;  // of dicts, once there were any
        std::vector<Column> columns;
        std::deque<Node> children;
        py::dict index;  // of the children, by key
    };

    Node& find_or_make(const py::tuple& path);
    static Node* find(Node& parent, PyObject* key, std::size_t& guess);
    std::optional<py::dict> store_in(Node& node, std::uint32_t frame, std::size_t env,
                                     PyObject* info);
    static bool accepts(const Column& column, PyObject* value);

    static bool any(const Selection& batch, const Mask& mask);
    static py::array_t<bool> copied(const Selection& batch, const Mask& mask);
    static bool is_object(const Column* column) {
        return column->form == Form::kObject || column->form == Form::kPickle;
    }
    static py::array load_objects(const std::vector<const Column*>& columns, const Selection& batch,
                                  bool* mask);
    bool collect_from(const Node& node, const Selection& batch, py::dict& into) const;
    bool loads(const Node& node, const Selection& batch) const;
    void add_row(const Node& node, std::uint32_t frame, std::size_t env, py::dict& into) const;

    Node root_;
    std::vector<Mask> masks_;  // of all nodes and columns
    py::str final_info_ = interned("final_info");
};

}  // namespace pysampler::bindings
