// The tree of a space: Dict and Tuple nodes over leaves that lie in the frames, and odd leaves,
// whose values have no fixed shape and go through the side channel.
//
// From Python: ("leaf", i), ("odd", i), ("dict", ((key, node), ...)), ("tuple", (node, ...)).
#pragma once

#include <optional>
#include <utility>
#include <vector>

#include "leaf.h"

namespace pysampler::bindings {

class Space {
 public:
    Space(const py::tuple& node, const std::vector<Leaf>& leaves);

    bool has_odd() const;

    // Writes an observation of env into the frame. The values of odd leaves are appended to `odd`,
    // in order. True if every leaf was just what its row holds, the containers included.
    bool store(std::uint32_t frame, std::size_t env, PyObject* value, std::vector<py::object>* odd,
               const std::vector<Leaf>& leaves) const;

    // A new object, as gymnasium's iterate() makes them from a batch.
    py::object load(std::uint32_t frame, std::size_t env, const std::vector<Leaf>& leaves) const;
    // The batch of all envs: new arrays, or views of the frame.
    py::object load_all(std::uint32_t frame, std::size_t envs, const std::vector<Leaf>& leaves,
                        bool copy) const;

 private:
    template <class LoadLeaf>
    py::object build(LoadLeaf&& load_leaf) const;

    enum class Kind { kLeaf, kOdd, kDict, kTuple };

    Kind kind_;
    std::size_t index_ = 0;
    std::vector<std::pair<py::object, Space>> children_;  // key (of a Dict), node
};

}  // namespace pysampler::bindings
