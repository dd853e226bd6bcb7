// The parent's side of the frames: actions of all envs in, results of all envs out.
#pragma once

#include <algorithm>
#include <memory>
#include <optional>
#include <tuple>
#include <vector>

#include "infos.h"
#include "leaf.h"
#include "lent.h"
#include "space.h"

namespace pysampler::bindings {

// Owner: the thread in the guard of the vector env, or of the sampler that leases it. It touches
// rows of a frame only while no group that has the frame is in flight.
class FrameAccess {
 public:
    // The envs of each group: (first env, count).
    using Groups = std::vector<std::pair<std::size_t, std::size_t>>;

    // `frames` is a Frames of pysampler._frames. With `copy`, observations of all envs belong to
    // the caller, otherwise they are views of the frame. `spare` frames are never lent.
    FrameAccess(const py::object& frames, const std::shared_ptr<Infos>& infos, bool copy,
                Groups groups, std::uint32_t spare);

    // -- all envs --

    // Writes the actions and returns true if they are of a common kind: one array of the space's
    // dtype and shape, or a list or tuple of such rows or of plain Python numbers, which envs get
    // as Python numbers. Otherwise returns false.
    bool write(std::uint32_t frame, const py::handle& actions);

    // (observations, rewards, terminated, truncated, infos, mixed): see Infos::collect().
    // Observations are None if the space has unshaped parts.
    py::tuple read(std::uint32_t frame) const;

    // -- some envs --

    // The groups of these envs. Throws ValueError unless they are whole groups, IndexError for an
    // env that does not exist.
    std::vector<std::uint32_t> groups_of(const py::array_t<std::int64_t>& envs);
    // Groups, and the frame that each uses.
    using GroupFrames = std::vector<std::pair<std::uint32_t, std::uint32_t>>;
    // Like write(); row i is for the i-th env last passed to groups_of(), whose groups these are.
    bool write_some(const GroupFrames& group_frames, const py::handle& actions);
    // Like read().
    py::tuple read_some(const GroupFrames& group_frames) const;

    // -- chunks of steps --

    // Groups, the first frame of each one's chunk, and the number of steps.
    using Chunks = std::vector<std::tuple<std::uint32_t, std::uint32_t, std::uint32_t>>;
    // Like read(), from the frame of each env's last step. Then these frames, and how many actions
    // each env took.
    py::tuple read_chunks(const Chunks& chunks) const;

    // The first of the frames for chunks, which all groups use.
    std::uint32_t chunk_frame() const { return ring_; }
    // For a chunk of all envs, whose actions are one array of the space's dtype: like write() and
    // read(). After read_chunk() the caller sees the results.
    bool write_chunk(std::uint32_t steps, const py::handle& actions);
    py::tuple read_chunk(std::uint32_t steps);

    // -- which frames are used --

    // The frame that all envs use, and the one to use next: no observation refers to it, and it is
    // not the one that the caller saw last, which is needed if a worker is lost.
    std::uint32_t frame() const { return frame_; }
    std::uint32_t next() const;
    // use() copies what the caller saw in that frame to another, if groups were seen in all frames.
    std::uint32_t use(std::uint32_t frame);
    std::uint32_t next_frame() { return use(next()); }
    // The same for groups that are commanded independently.
    std::uint32_t frame_of(std::uint32_t group) const { return frame_of_.at(group); }
    GroupFrames start(const std::vector<std::uint32_t>& groups);

    // The caller sees the frames that all envs, or some groups, use.
    void mark_all_seen() { std::ranges::fill(seen_, frame_); }
    void mark_seen(const std::vector<std::uint32_t>& groups);
    std::uint32_t seen(std::uint32_t group) const { return seen_.at(group); }

 private:
    // The next frame after this one that no observation refers to.
    std::uint32_t after(std::uint32_t frame) const;

    // Large observations are lent instead of copied: the caller gets the rows of the frame, which
    // is not used again as long as anything refers to them. They are copied if fewer than `spare`
    // frames would be left. In bytes of a leaf; copying smaller ones is as fast as lending.
    static constexpr std::size_t kMinLent = 1 << 16;

    void check_frame(std::uint32_t frame) const;
    // Writes a list or tuple of actions, item i to the (frame, env) of `row(i)`. Returns their type
    // as frames store it, or nullopt if they are not of a common kind.
    template <class Row>
    std::optional<std::int32_t> write_list(PyObject* actions, std::size_t count, Row&& row) const;
    void mark(std::uint32_t frame, std::uint32_t group, std::int32_t type) {
        action_types_.mutable_at(frame, groups_[group].first, 0) = type;
    }

    void note_seen(const std::int64_t* ends);
    void copy_seen(std::size_t env, std::uint32_t from, std::uint32_t to) const;

    bool held(std::uint32_t frame) const;
    bool may_lend(std::uint32_t frame) const;

    py::object observations(const Selection& batch) const;
    py::object observations(std::uint32_t frame) const;
    py::tuple results(const py::object& observations, const Selection& batch) const;
    void add_final(const Selection& batch, py::dict& infos) const;

    std::shared_ptr<Infos> infos_;
    bool copy_;
    std::uint32_t count_;
    std::uint32_t ring_;  // how many frames take turns; the others are for chunks
    std::vector<std::vector<std::optional<Lent>>> lent_;  // [frame][leaf]; none of small leaves
    std::vector<Leaf> obs_leaves_;
    std::vector<Leaf> final_leaves_;
    Space obs_;
    bool has_unshaped_;
    std::vector<Leaf> action_leaves_;
    std::vector<Leaf> python_actions_;  // for a single leaf: one of ints, one of floats
    py::array_t<std::int32_t> action_types_;
    std::vector<Leaf> results_;  // rewards, terminated, truncated, versions of options
    py::array_t<std::uint8_t> has_final_;
    std::size_t envs_;
    bool single_action_;
    py::dtype objects_{"O"};
    Groups groups_;
    std::vector<std::uint32_t> group_of_;  // of each env
    std::vector<std::size_t> chosen_;      // envs last passed to groups_of()
    std::uint32_t frame_ = 0;              // of all envs
    std::vector<std::uint32_t> frame_of_;  // of each group, if groups are commanded independently
    std::vector<std::uint32_t> seen_;      // for each group, the frame that the caller saw last
    std::uint32_t spare_;                  // frames that are never lent
};

}  // namespace pysampler::bindings
