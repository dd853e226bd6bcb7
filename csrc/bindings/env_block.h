// A block of Python envs: calls env.step, unpacks the five results and copies them into the frame.
// The only Python code that runs is the envs'.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "frame_block.h"
#include "space.h"

namespace pysampler::bindings {

class EnvBlock : public FrameBlock {
 public:
    EnvBlock(const py::list& envs, std::size_t first, const std::shared_ptr<Meter>& meter,
             bool is_inline);

    void use(const py::object& frames, const std::shared_ptr<Infos>& infos,
             const std::string& autoreset, const std::string& keep) override;
    bool step_with(std::uint32_t frame, const py::object& actions) override;
    bool step_chunk(std::uint32_t frame, std::uint32_t steps, bool last) override;
    bool reset(std::uint32_t frame, const py::list& calls) override;
    void replace(const std::vector<std::optional<std::uint64_t>>& seeds,
                 const std::vector<bool>& over) override;

    // A reset that leaves env i unchanged returns this observation.
    void set_last(std::size_t i, const py::object& obs);
    // Returns that observation, or a null object if env i has had none.
    py::object last_obs(std::size_t i) const;

    // From now on, the results of an env whose observation or reward would be read from the frame
    // as another type become overflow too: (observation, reward) of a step, (observation,) of a
    // reset. Rewards are read as float64, which Python's floats are taken for, and `ints` too.
    void report_unlike(bool observations, bool ints);

 private:
    // Returns whether the episode has ended. `unseen`: the caller reads only the reward,
    // unless it has.
    bool step_one(std::uint32_t frame, std::size_t i, PyObject* action, bool unseen = false);
    bool step_in_chunk(std::uint32_t frame, std::size_t i, bool unseen);
    void tell_unseen(std::size_t i, bool unseen);
    void find_skip_frames();
    static py::list time_limits(const py::object& env);
    bool reaches_limit(std::size_t i) const;
    void begin_next(std::uint32_t frame, std::size_t i);
    void end_lost(std::uint32_t frame, std::size_t i);
    void reset_one(std::uint32_t frame, std::size_t i, PyObject* seed, PyObject* options);
    py::object call_reset(std::size_t i, PyObject* seed, PyObject* options);
    bool write_obs(std::uint32_t frame, std::size_t i, PyObject* obs,
                   const std::vector<Leaf>& leaves);
    void store_obs(std::uint32_t frame, std::size_t i, PyObject* obs, PyObject* reward = nullptr);
    void report(std::size_t i, bool same, PyObject* obs, PyObject* reward);
    std::vector<Leaf> own_rows(const py::object& arrays) const;
    bool store_final(std::uint32_t frame, std::size_t i, PyObject* obs, PyObject* info);
    void store_info(std::uint32_t frame, std::size_t i, PyObject* info);
    template <class Work>
    void for_each(std::uint32_t frame, Work&& work);
    template <class Work>
    std::int64_t timed(std::uint32_t frame, std::size_t i, std::int64_t now, Work&& work);

    std::vector<py::object> envs_;
    std::vector<Leaf> obs_leaves_;
    std::vector<Leaf> final_leaves_;
    std::unique_ptr<Space> obs_, action_;  // once there are frames
    // The last observation of each env, for a reset that leaves the env unchanged: the user and
    // samplers may write to the frame that had it. Small ones are copied to rows: keeping the
    // objects would make each step use memory that has left the cache during a round.
    std::vector<Leaf> last_rows_;
    std::vector<py::object> last_obs_;  // used without last_rows_
    std::vector<bool> has_last_;        // used with last_rows_
    std::vector<py::object> unshaped_;
    enum class Call { kNothing, kStep, kReset };
    Call call_ = Call::kNothing;  // of the current env
    std::int64_t began_ = 0;
    // For each env, its method skip_frames(unseen), if it has one, and what it was told last. Empty
    // before the first chunk.
    std::vector<py::object> skip_frames_;
    std::vector<bool> told_unseen_;
    std::vector<py::list> limits_;  // of each env with that method, its time limits
    py::array_t<bool> doubles_;     // see double_rewards
    bool unlike_observations_ = false, unlike_rewards_ = false;  // report them
    bool ints_ = true;                                           // rewards may be ints
    py::str step_name_ = interned("step"), reset_name_ = interned("reset");
    py::tuple reset_keywords_;
};

}  // namespace pysampler::bindings
