// The tree of a space: Dict and Tuple nodes over leaves, which are stored in the frames, and
// unshaped leaves, whose values have no fixed shape and are sent by mail.
//
// In Python: ("leaf", i), ("unshaped", i), ("dict", ((key, node), ...)), ("tuple", (node, ...)).
#pragma once

#include <utility>
#include <vector>

#include "leaf.h"

namespace pysampler::bindings {

class Space {
 public:
    Space(const py::tuple& node, const std::vector<Leaf>& leaves);

    bool has_unshaped() const;

    // Writes an observation of env into the frame. The values of unshaped leaves are appended to
    // `unshaped`, in order. True if load() would return an equal object of the same types.
    bool store(std::uint32_t frame, std::size_t env, PyObject* value,
               std::vector<py::object>* unshaped, const std::vector<Leaf>& leaves) const;

    // The observation of env, a new object of the types that gymnasium's iterate() yields.
    py::object load(std::uint32_t frame, std::size_t env, const std::vector<Leaf>& leaves) const;
    // Dicts and tuples as in the tree, with `load_leaf(i)` for leaf i.
    template <class LoadLeaf>
    py::object build(LoadLeaf&& load_leaf) const {
        switch (kind_) {
            case Kind::kLeaf:
                return load_leaf(index_);
            case Kind::kDict: {
                py::dict all;
                for (const auto& [key, child] : children_) all[key] = child.build(load_leaf);
                return all;
            }
            case Kind::kTuple: {
                py::tuple all(children_.size());
                for (std::size_t i = 0; i < children_.size(); ++i) {
                    all[i] = children_[i].second.build(load_leaf);
                }
                return all;
            }
            case Kind::kUnshaped:
                break;
        }
        throw py::value_error("cannot read from frame: the space has parts without a fixed shape");
    }

 private:
    enum class Kind { kLeaf, kUnshaped, kDict, kTuple };

    Kind kind_;
    std::size_t index_ = 0;
    std::vector<std::pair<py::object, Space>> children_;  // (key or, in a Tuple, None; node)
};

}  // namespace pysampler::bindings
