// The parent's side of the frames: actions of all envs in, results of all envs out.
#pragma once

#include <memory>
#include <vector>

#include "infos.h"
#include "leaf.h"
#include "space.h"

namespace pysampler::bindings {

class Batch {
 public:
    // `frames` has the arrays of pysampler.frames.Frames. With `copy`, observations are the
    // caller's own, otherwise they are views of the frame.
    Batch(const py::object& frames, const std::shared_ptr<Infos>& infos, bool copy);

    // True if the actions are one array of just the dtype and shape of the frame's, and lie there
    // now.
    bool write(std::uint32_t frame, const py::handle& actions);

    // (observations, rewards, terminated, truncated, infos, mixed): see Infos::collect().
    // Observations with parts that lie in no frame are None.
    py::tuple read(std::uint32_t frame) const;
    py::object observations(std::uint32_t frame) const;

 private:
    void add_final(std::uint32_t frame, py::dict& infos) const;

    py::object frames_;
    std::shared_ptr<Infos> infos_;
    bool copy_;
    std::vector<Leaf> obs_leaves_;
    std::vector<Leaf> final_leaves_;
    Space obs_;
    bool has_odd_;
    std::vector<Leaf> action_leaves_;
    py::array_t<std::int32_t> action_types_;
    std::vector<Leaf> results_;  // rewards, terminated, truncated
    py::array_t<std::uint8_t> has_final_;
    std::size_t envs_;
    bool single_action_;
    py::dtype objects_{"O"};
};

}  // namespace pysampler::bindings
