// Writes the results of a step or a reset of many envs into the rows of a frame, for all envs of a
// block or for some. In Python this would take longer than the physics of a small block.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "infos.h"
#include "leaf.h"
#include "meter.h"
#include "support.h"

namespace pysampler::bindings {

// Owner: that of the block which writes with it.
class BatchRows {
 public:
    // `elapsed` has the steps of each env's episode, which is truncated at the limit.
    BatchRows(std::size_t first, std::size_t count, const std::shared_ptr<Meter>& meter,
              const py::array_t<std::int64_t>& elapsed, std::int64_t limit);

    // Writes to these frames from now on. `all_infos`: not only those of an episode's end.
    void use(const py::object& frames, const std::shared_ptr<Infos>& infos, bool all_infos);

    // A step or a reset begins now.
    void start();
    // The same, and clears the infos of these envs, and their has_final.
    void begin(std::uint32_t frame);

    // Writes the results of a step of the envs `ids`; none: all envs of the block. Returns the rows
    // of those whose episodes have ended, and a dict of the infos that have no column; or None.
    // Without `truncated`, episodes are truncated at the limit. Steps of envs in the mask
    // `uncounted` do not count.
    std::pair<py::object, py::object> write(std::uint32_t frame, const std::optional<Ids>& ids,
                                            const py::object& observations,
                                            const py::object& rewards, const py::object& terminated,
                                            const py::dict& infos, const py::object& truncated,
                                            const py::object& uncounted);

    // Writes the first observations and the infos of the envs `ids`, whose resets began when the
    // last call ended; returns the infos that have no column, or None. With `has_final` it clears
    // their rewards, ends and infos first, since they made no step that counts.
    py::object write_resets(std::uint32_t frame, const Ids& ids, const py::array& observations,
                            const py::dict& infos, std::optional<std::uint8_t> has_final);

    // Writes the last observations of episodes of `envs`, which are these rows of the array, and
    // clears the infos of the envs.
    void write_finals(std::uint32_t frame, const Ids& envs, const Ids& rows,
                      const py::array& observations, std::uint8_t has_final);

    // Writes infos of `envs`, which are these rows of the arrays; with `final` to the dict
    // final_info. Returns the infos that have no column, or None.
    py::object write_infos(std::uint32_t frame, const Ids& envs, const Ids& rows,
                           const py::dict& infos, bool final);

    void write_observations(std::uint32_t frame, const Ids& ids, const py::array& observations) {
        write_observations(frame, observations, chosen_of(ids));
    }

 private:
    void expect(std::uint32_t frame) const;
    Chosen chosen_of(const Ids& envs) const;
    Chosen chosen_of(const Ids& envs, const Ids& rows) const;
    std::int64_t lap(const Chosen& chosen);
    void count_step(std::uint32_t frame, const Chosen& chosen);
    py::object ended_rows(std::uint32_t frame, const Chosen& chosen) const;
    void write_observations(std::uint32_t frame, const py::array& array, const Chosen& chosen);
    template <class T>
    T* at(const std::unique_ptr<Leaf>& leaf, std::uint32_t frame) const {
        return reinterpret_cast<T*>(leaf->row(frame, first_));
    }

    std::size_t first_;
    std::size_t count_;
    std::shared_ptr<Meter> meter_;
    py::array_t<std::int64_t> elapsed_;
    std::int64_t limit_;
    std::size_t frames_ = 0;
    std::shared_ptr<Infos> infos_;
    bool all_infos_ = false;
    std::vector<Leaf> observations_, finals_;
    std::unique_ptr<Leaf> rewards_, terminated_, truncated_, has_final_;  // once there are frames
    std::int64_t began_ = 0;
};

}  // namespace pysampler::bindings
