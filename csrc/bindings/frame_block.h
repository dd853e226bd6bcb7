// What every block of a worker knows of its envs, and their rows in the frames: the part of
// gymnasium's contract that does not depend on how the envs step.
#pragma once

#include <atomic>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "block.h"
#include "infos.h"
#include "leaf.h"
#include "meter.h"
#include "support.h"

namespace pysampler::bindings {

enum class Autoreset { kNextStep, kSameStep, kDisabled };
enum class KeepInfos { kNone, kFinal, kAll };

// A flag for each env, which Python sees as an array of bools.
class Flags {
 public:
    explicit Flags(std::size_t count)
        : array_(static_cast<py::ssize_t>(count)), data_(array_.mutable_data()), count_(count) {
        fill(false);
    }
    bool& operator[](std::size_t i) const { return data_[i]; }
    void fill(bool value) const { std::memset(data_, value ? 1 : 0, count_); }
    bool any() const { return std::memchr(data_, 1, count_) != nullptr; }
    const py::array_t<bool>& array() const { return array_; }

 private:
    py::array_t<bool> array_;
    bool* data_;
    std::size_t count_;
};

// Owner: the thread of the worker, or the one in the guard of the vector env.
class FrameBlock : public Block {
 public:
    // Kinds of results that do not fit into the frame.
    enum OverflowKind {
        kInfo = 0,
        kFinalObs = 1,
        kUnshapedObs = 2,
        kError = 3,
        kUnlike = 4,
        kLostEnv = 5,
        kUnseen = 6,     // a reset leaves an env out whose last observation only the caller knows
        kNoResults = 7,  // an exception, which an ERROR reports for one env, left this one without
    };

    // `first` is the index of the block's first env among the envs of the frames. `here`: this is
    // the user's process, so an exception may come from one of the user's signal handlers instead
    // of an env.
    FrameBlock(std::size_t count, std::size_t first, const std::shared_ptr<Meter>& meter,
               bool is_inline);

    // Uses these frames, a Frames of pysampler._frames, from now on. The envs stay as they are.
    virtual void use(const py::object& frames, const std::shared_ptr<Infos>& infos,
                     const std::string& autoreset, const std::string& keep);

    // The same as step(frame) with these actions, if not None, instead of those in the frame.
    virtual bool step_with(std::uint32_t frame, const py::object& actions) = 0;
    bool step(std::uint32_t frame) override { return step_with(frame, py::none()); }
    // Resets each env with its (seed, options), or leaves it unchanged if that is None and it is
    // not fresh. Returns whether some results do not fit into the frame, like step().
    virtual bool reset(std::uint32_t frame, const py::list& calls) = 0;

    // The envs replace others: they are fresh, and their next resets use these seeds. A step of a
    // fresh env ends the episode of the other one: its row is marked kLost and truncated. Only
    // kSameStep resets the env in that step; otherwise the caller knows its last observation. Those
    // that are `over` had ended their episodes, and lose nothing: except with kSameStep, where
    // another one has begun, they are not fresh.
    virtual void replace(const std::vector<std::optional<std::uint64_t>>& seeds,
                         const std::vector<bool>& over);
    // The seeds of next resets, by env, that replace() set and no reset has used.
    const py::dict& seeds() const { return seeds_; }
    // Whether an env has not been stepped or reset since it replaced another.
    bool fresh() const { return fresh_.any(); }
    bool is_fresh(std::size_t i) const { return fresh_[checked_env(i)]; }
    // Env i uses these options from its next reset on, unless that reset is given others. Each step
    // writes the version of the options of its episode.
    virtual void set_options(std::size_t i, const py::object& options, std::int64_t version);

    void set_ended(std::size_t i, bool ended) {
        ended_[checked_env(i)] = ended && autoreset_ == Autoreset::kNextStep;
        fresh_[i] = false;
    }
    // Steps leave env i alone, and its rows of the frame as they are, until it is reset.
    void rest(std::size_t i) { resting_[checked_env(i)] = true; }

    // For a signal handler or another thread: a call under way ends once its current env returns.
    void stop() { stopped_ = true; }

    // The results that do not fit into the frame: [(OverflowKind, index among the envs of the
    // frame, object)], with the step after a chunk.
    const py::list& peek_overflow() const { return overflow_; }
    py::list take_overflow();

    std::size_t first() const { return first_; }
    std::size_t count() const { return count_; }
    const Flags& ended() const { return ended_; }      // the next step resets these envs
    const Flags& resting() const { return resting_; }  // steps leave these envs alone
    const py::array_t<std::int64_t>& used() const { return used_; }  // versions of options
    const py::dict& options() const { return options_; }             // by env: (options, version)
    bool failed() const { return failed_; }
    // Which envs' last rewards were NumPy's float64, not Python's numbers: the type of their sums.
    py::object double_rewards = py::bool_(true);

 protected:
    std::size_t checked_env(std::size_t i) const;
    void begin(std::uint32_t frame);
    void use_action_types(std::uint32_t frame);
    // Returns the seed that replace() set for the next reset of env i, or None, and forgets it.
    py::object take_seed(std::size_t i) {
        return seeds_.empty() ? py::object(py::none()) : seeds_.attr("pop")(i, py::none());
    }
    // The options of a reset of env i that is given these. Notes their version.
    py::object options_of(std::size_t i, PyObject* given);
    void leave(OverflowKind kind, std::size_t i, const py::object& object);
    static py::object copied(PyObject* value);
    // Writes the end of the episode of a lost env that env i replaces.
    void write_lost(std::uint32_t frame, std::size_t i);
    // Ends the state of env i as fresh, and marks its row.
    void mark_lost(std::uint32_t frame, std::size_t i);
    void write_left_out(std::uint32_t frame, std::size_t i);
    void clear_results(std::uint32_t frame, std::size_t i);
    void write_options_version(std::uint32_t frame, std::size_t i) {
        if (!options_.empty()) options_versions_.mutable_at(frame, first_ + i) = used_.at(i);
    }
    bool is_users(const py::error_already_set& error) const;
    // Calls work(). Passes an exception of the envs to report(), so that the others still step.
    template <class Work, class Report>
    void guarded(Work&& work, Report&& report) {
        try {
            try {
                work();
            } catch (const py::builtin_exception& error) {
                error.set_error();
                throw py::error_already_set();
            }
        } catch (py::error_already_set& error) {
            if (is_users(error)) throw;
            if (error.trace()) PyException_SetTraceback(error.value().ptr(), error.trace().ptr());
            report(error.value());
        }
    }

    bool inline_;
    std::size_t first_;
    std::size_t count_;
    std::shared_ptr<Meter> meter_;
    Autoreset autoreset_ = Autoreset::kNextStep;
    KeepInfos keep_ = KeepInfos::kAll;
    Flags ended_, resting_;
    Flags fresh_;     // they replace others, and have not begun
    py::dict seeds_;  // by env, for the next reset, unless it is given one
    py::dict options_;
    py::array_t<std::int64_t> used_;
    std::atomic<bool> stopped_ = false;
    bool failed_ = false;  // the last step or reset raised before it had written all results

    std::vector<py::array> action_bytes_;
    std::vector<std::vector<py::ssize_t>> action_shapes_;
    py::array_t<std::int32_t> action_types_;
    std::vector<std::int32_t> types_in_use_;
    std::vector<Leaf> space_leaves_;   // for actions of the space's types
    std::vector<Leaf> action_leaves_;  // for actions of the types in use
    py::array_t<double> rewards_;
    std::size_t reward_size_ = 0;  // numbers of a reward that is an array; 0: a reward is a number
    py::array_t<bool> terminated_;
    py::array_t<bool> truncated_;
    py::array_t<std::uint8_t> has_final_;
    py::array_t<std::int64_t> options_versions_;
    std::shared_ptr<Infos> infos_;
    py::list overflow_;
    std::uint32_t step_ = 0;  // of the current chunk
    bool in_chunk_ = false;
};

}  // namespace pysampler::bindings
