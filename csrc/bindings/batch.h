// The parent's side of the frames: actions of all envs in, results of all envs out.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "infos.h"
#include "leaf.h"
#include "space.h"

namespace pysampler::bindings {

class Batch {
 public:
    // Groups are (first env, how many).
    using Groups = std::vector<std::pair<std::size_t, std::size_t>>;

    // `frames` has the arrays of _frames.Frames. With `copy`, observations of all envs are
    // the caller's own, otherwise they are views of the frame.
    Batch(const py::object& frames, const std::shared_ptr<Infos>& infos, bool copy, Groups groups,
          std::uint32_t spare);

    // -- all envs --

    // True if the actions lie in the frame now: one array of just its dtype and shape, or a list or
    // tuple of what such an array would hold, or of Python's own numbers, which envs get as such.
    bool write(std::uint32_t frame, const py::handle& actions);

    // (observations, rewards, terminated, truncated, infos, mixed): see Infos::collect().
    // Observations with parts that lie in no frame are None.
    py::tuple read(std::uint32_t frame) const;

    // -- some envs --

    // The groups of these envs. Throws ValueError unless they are whole groups, IndexError where
    // there is no such env.
    std::vector<std::uint32_t> groups_of(const py::array_t<std::int64_t>& envs);
    // Groups with the frame each of them uses.
    using Parts = std::vector<std::pair<std::uint32_t, std::uint32_t>>;
    // As write(), row i for env i of those that groups_of() was asked for last, whose groups these
    // are.
    bool write_some(const Parts& parts, const py::handle& actions);
    // As read().
    py::tuple read_some(const Parts& parts) const;

    // The frame to use after this one: the next that is not referred to.
    std::uint32_t next(std::uint32_t frame) const;

 private:
    // Large observations that are to be the caller's own are not copied: the caller gets the rows
    // of the frame, which is not used again as long as anything refers to them. Where too few
    // frames would stay free, the rows are copied after all.
    static constexpr std::size_t kLent = 1 << 16;  // bytes of a leaf; smaller ones copy as fast

    void known(std::uint32_t frame) const;
    // Writes a list or tuple of actions, item i to the (frame, env) that `row(i)` says. Returns
    // what the frame says of their type, or nothing where they are something else.
    template <class Row>
    std::optional<std::int32_t> write_list(PyObject* actions, std::size_t count, Row&& row) const;
    void mark(std::uint32_t frame, std::uint32_t group, std::int32_t type) {
        action_types_.mutable_at(frame, groups_[group].first, 0) = type;
    }

    bool held(std::uint32_t frame) const;
    bool may_lend(std::uint32_t frame) const;

    py::object observations(std::uint32_t frame) const;
    py::tuple results(const py::object& observations, const Selection& batch) const;
    void add_final(const Selection& batch, py::dict& infos) const;

    std::shared_ptr<Infos> infos_;
    bool copy_;
    std::uint32_t count_;
    // [frame][leaf]: what views of lent rows refer to; empty where leaves are too small.
    std::vector<std::vector<py::object>> lent_;
    std::vector<Leaf> obs_leaves_;
    std::vector<Leaf> final_leaves_;
    Space obs_;
    bool has_odd_;
    std::vector<Leaf> action_leaves_;
    std::vector<Leaf> python_actions_;  // of a single leaf: ints, and floats
    py::array_t<std::int32_t> action_types_;
    std::vector<Leaf> results_;  // rewards, terminated, truncated
    py::array_t<std::uint8_t> has_final_;
    std::size_t envs_;
    bool single_action_;
    py::dtype objects_{"O"};
    Groups groups_;
    std::vector<std::uint32_t> group_of_;  // of each env
    std::vector<std::size_t> chosen_;      // envs, by groups_of()
    std::vector<std::uint32_t> frame_of_;  // of each group, in write_some()
    std::uint32_t spare_;                  // frames that are never lent
};

}  // namespace pysampler::bindings
