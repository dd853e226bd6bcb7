// A block of Python envs: calls env.step, unpacks the five results and copies them into the frame.
// The only Python code that runs is the envs'.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "block.h"
#include "infos.h"
#include "leaf.h"
#include "meter.h"
#include "space.h"
#include "support.h"

namespace pysampler::bindings {

enum class Autoreset { kNextStep, kSameStep, kDisabled };
enum class KeepInfos { kNone, kFinal, kAll };

// Owner: the thread of the worker, or the one in the guard of the vector env.
class EnvBlock : public Block {
 public:
    // Kinds of results that do not fit into the frame.
    enum OverflowKind {
        kInfo = 0,
        kFinalObs = 1,
        kUnshapedObs = 2,
        kError = 3,
        kUnlike = 4,
        kLostEnv = 5,
        kUnseen = 6,  // a reset leaves an env out whose last observation only the caller knows
    };

    // `frames` is a Frames of pysampler._frames; `first` is the index of the block's first env
    // among its envs. `here`: this is the user's process, so an exception may come from one of the
    // user's signal handlers instead of an env.
    EnvBlock(const py::list& envs, std::size_t first, const py::object& frames,
             const std::shared_ptr<Infos>& infos, const std::shared_ptr<Meter>& meter,
             const std::string& autoreset, const std::string& keep, bool here);

    // Uses other frames of the same spec from now on. The envs stay as they are.
    void use(const py::object& frames, const std::shared_ptr<Infos>& infos,
             const std::string& autoreset, const std::string& keep);

    bool step(std::uint32_t frame) override { return step_with(frame, std::nullopt); }
    // The same with these actions, if given, instead of those in the frame.
    bool step_with(std::uint32_t frame, const std::optional<py::list>& actions);
    bool step_chunk(std::uint32_t frame, std::uint32_t steps, bool last) override;
    // Resets each env with its (seed, options), or leaves it unchanged if that is None and no env
    // is fresh. Returns whether some results do not fit into the frame, like step().
    bool reset(std::uint32_t frame, const py::list& calls);

    // The envs replace others: they are fresh, and their next resets use these seeds. A step of a
    // fresh env ends the episode of the other one: its row is marked kLost and truncated. Only
    // kSameStep resets the env in that step; otherwise the caller knows its last observation. Those
    // that are `over` had ended their episodes, and lose nothing: except with kSameStep, where
    // another one has begun, they are not fresh.
    void replace(const std::vector<std::optional<std::uint64_t>>& seeds,
                 const std::vector<bool>& over);
    // The seeds of next resets, by env, that replace() set and no reset has used.
    py::dict seeds() const;
    // Whether an env has not been stepped or reset since it replaced another.
    bool fresh() const { return std::find(fresh_.begin(), fresh_.end(), true) != fresh_.end(); }
    // Env i uses these options from its next reset on, unless that reset is given others. Each step
    // writes the version of the options of its episode, which is `used` if given.
    void set_options(std::size_t i, const py::object& options, std::int64_t version,
                     std::optional<std::int64_t> used);
    // A reset that leaves env i unchanged returns this observation.
    void set_last(std::size_t i, const py::object& obs);
    // Returns that observation, or a null object if env i has had none.
    py::object last_obs(std::size_t i) const;

    // Which envs' last rewards were NumPy's float64, not Python's numbers: the type of their sums.
    py::array_t<bool> double_rewards() const { return double_rewards_; }
    // From now on, the results of an env whose observation or reward would be read from the frame
    // as another type become overflow too: (observation, reward) of a step, (observation,) of a
    // reset. Rewards are read as float64, which Python's floats are taken for, and `ints` too.
    void report_unlike(bool observations, bool ints);
    // The version of the options of env i's episode.
    std::int64_t options_used(std::size_t i) const {
        return options_.empty() ? 0 : options_.at(i).used;
    }

    // The envs that the next step resets.
    py::list ended_envs() const {
        py::list envs;
        for (std::size_t i = 0; i < count_; ++i) {
            if (ended_[i]) envs.append(i);
        }
        return envs;
    }
    // Whether the next step resets env i.
    bool ended(std::size_t i) const { return ended_.at(i); }
    void set_ended(std::size_t i, bool ended) {
        ended_.at(i) = ended;
        fresh_[i] = false;
    }
    // Steps leave env i alone, and its rows of the frame as they are, until it is reset.
    void rest(std::size_t i) { resting_.at(i) = true; }
    bool rests(std::size_t i) const { return resting_.at(i); }

    // Returns and forgets the results that do not fit into the frame: [(OverflowKind, index among
    // the envs of the frame, object)].
    py::list take_overflow();

    // For a signal handler: ends the interrupted call as soon as its current env returns.
    void stop() { stopped_ = true; }
    const py::list& peek_overflow() const { return overflow_; }

 private:
    void use_action_types(std::uint32_t frame);
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
    void write_options_version(std::uint32_t frame, std::size_t i);
    void clear_results(std::uint32_t frame, std::size_t i);
    bool write_obs(std::uint32_t frame, std::size_t i, PyObject* obs,
                   const std::vector<Leaf>& leaves);
    void store_obs(std::uint32_t frame, std::size_t i, PyObject* obs, PyObject* reward = nullptr);
    void report(std::size_t i, bool same, PyObject* obs, PyObject* reward);
    std::vector<Leaf> own_rows(const py::object& arrays) const;
    bool store_final(std::uint32_t frame, std::size_t i, PyObject* obs, PyObject* info);
    static py::object copied(PyObject* value);
    void store_info(std::uint32_t frame, std::size_t i, PyObject* info);
    void begin(std::uint32_t frame);
    void leave(OverflowKind kind, std::size_t i, const py::object& object);
    template <class Work>
    void for_each(std::uint32_t frame, Work&& work);
    template <class Work>
    std::int64_t timed(std::uint32_t frame, std::size_t i, std::int64_t now, Work&& work);
    bool is_users(const py::error_already_set& error) const;
    template <class Work>
    void guarded(std::size_t i, Work&& work);

    std::vector<py::object> envs_;
    bool here_;
    std::size_t first_;
    std::size_t count_;
    std::vector<Leaf> obs_leaves_;
    std::vector<Leaf> final_leaves_;
    Space obs_;
    std::vector<py::array> action_bytes_;
    std::vector<std::vector<py::ssize_t>> action_shapes_;
    py::array_t<std::int32_t> action_types_;
    std::vector<std::int32_t> types_in_use_;
    std::vector<Leaf> space_leaves_;   // for actions of the space's types
    std::vector<Leaf> action_leaves_;  // for actions of the types in use
    Space action_;
    py::array_t<double> rewards_;
    std::size_t reward_size_ = 0;  // numbers of a reward that is an array; 0: a reward is a number
    py::array_t<bool> terminated_;
    py::array_t<bool> truncated_;
    py::array_t<std::uint8_t> has_final_;
    std::shared_ptr<Infos> infos_;
    std::shared_ptr<Meter> meter_;
    Autoreset autoreset_ = Autoreset::kNextStep;
    KeepInfos keep_ = KeepInfos::kAll;
    std::vector<bool> ended_;        // the next step resets these envs
    std::vector<bool> resting_;      // steps leave these envs alone
    std::vector<bool> fresh_;        // they replace others, and have not begun
    std::vector<py::object> seeds_;  // for the next reset, unless it is given one
    struct Options {
        py::object options;
        std::int64_t version = 0;  // of the options
        std::int64_t used = 0;     // the version that the last reset used
    };
    std::vector<Options> options_;  // empty before the first set_options()
    py::array_t<std::int64_t> options_versions_;
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
    py::list overflow_;
    std::uint32_t step_ = 0;  // of the current chunk
    bool in_chunk_ = false;
    // For each env, its method skip_frames(unseen), if it has one, and what it was told last. Empty
    // before the first chunk.
    std::vector<py::object> skip_frames_;
    std::vector<bool> told_unseen_;
    std::vector<py::list> limits_;  // of each env with that method, its time limits
    bool stopped_ = false;
    py::array_t<bool> double_rewards_;
    bool unlike_observations_ = false, unlike_rewards_ = false;  // report them
    bool ints_ = true;                                           // rewards may be ints
    py::str step_name_ = interned("step"), reset_name_ = interned("reset");
    py::tuple reset_keywords_;
};

}  // namespace pysampler::bindings
