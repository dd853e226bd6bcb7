// Infos in the frames: a tree of keys, and for each that is a number or a plain array a column.
//
//   area (a frame's):  ... | mask of a node or column, a byte an env | values of a column, a row an
//   env
//
// The parent decides which columns there are and where; what is not in one goes through the side
// channel. Workers clear the masks of their envs with each step and set those of what they write.
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
    // `area` is bytes [frames, bytes].
    Infos(const py::array_t<std::uint8_t>& area, std::size_t envs);

    // A node for a nested dict at the end of this path of keys, or a column for values that make
    // numpy arrays of that dtype and shape there. The path's nodes must exist.
    void add_node(const py::tuple& path, std::size_t mask);
    std::size_t count() const { return masks_.size(); }
    // `form` is "python" for its own numbers, "scalar" for numpy's, or "array".
    void add_column(const py::tuple& path, std::size_t mask, const py::dtype& dtype,
                    const std::vector<py::ssize_t>& shape, const std::string& form,
                    std::size_t values);

    // -- a worker --

    void clear(std::uint32_t frame, std::size_t first, std::size_t count);
    // Writes what has a place under `key` (or at the top); a dict of the rest, or nothing.
    std::optional<py::dict> store(std::uint32_t frame, std::size_t env, PyObject* info,
                                  const char* key = nullptr);

    // -- the parent --

    // What gymnasium's vector envs make of the infos of a batch; and the keys at the top whose
    // values do not share a dtype, which row() must be asked for env by env.
    std::pair<py::dict, py::list> collect(const Selection& batch) const;
    // What env had under this key at the top: a value, a dict, or None if nothing.
    py::object row(std::uint32_t frame, std::size_t env, const py::str& key) const;

 private:
    static constexpr std::size_t kNone = ~std::size_t{0};

    // What a value was before it was written, for where it must be that again.
    enum class Form { kPython, kScalar, kArray };

    struct Column {
        std::size_t mask;
        Leaf leaf;
        Form form;
    };
    struct Node {
        py::str key;
        py::str mask_key;
        std::size_t mask = kNone;  // where dicts have been seen here
        std::vector<Column> columns;
        std::deque<Node> children;
    };

    Node& find_or_make(const py::tuple& path);
    static Node* find(Node& parent, PyObject* key, std::size_t& guess);
    std::optional<py::dict> store_in(Node& node, std::uint32_t frame, std::size_t env,
                                     PyObject* info);
    static bool accepts(const Column& column, PyObject* value);

    std::uint8_t* mask(std::uint32_t frame, std::size_t offset) const {
        return area_ + frame * frame_bytes_ + offset;
    }
    bool any(const Selection& batch, std::size_t offset) const;
    py::array_t<bool> masks(const Selection& batch, std::size_t offset) const;
    bool collect_from(const Node& node, const Selection& batch, py::dict& into) const;
    py::object row_of(const Node& node, std::uint32_t frame, std::size_t env) const;

    py::array_t<std::uint8_t> owner_;
    std::uint8_t* area_;
    std::size_t frame_bytes_;
    std::size_t envs_;
    Node root_;
    std::vector<std::size_t> masks_;
};

}  // namespace pysampler::bindings
