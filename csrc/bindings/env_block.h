// A block of ordinary Python envs: calls env.step, takes the five results apart and copies them
// into the frame, with the interpreter running nothing but the envs.
#pragma once

#include <cstdint>
#include <memory>
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

class EnvBlock : public Block {
 public:
    // What has no place in the frame; the first of each tuple in leftovers().
    enum Leftover { kInfo = 0, kFinalObs = 1, kOddObs = 2, kError = 3 };

    // `frames` has the arrays of _frames.Frames; `first` is the index among them of the
    // block's first env.
    EnvBlock(const py::list& envs, std::size_t first, const py::object& frames,
             const std::shared_ptr<Infos>& infos, const std::shared_ptr<Meter>& meter,
             const std::string& autoreset, const std::string& keep);

    // Works on other frames of the same spec from now on. The envs stay as they are.
    void use(const py::object& frames, const std::shared_ptr<Infos>& infos,
             const std::string& autoreset, const std::string& keep);

    bool step(std::uint32_t frame) override { return step_with(frame, std::nullopt); }
    // With these actions instead of those in the frame.
    bool step_with(std::uint32_t frame, const std::optional<py::list>& actions);
    // For each env (seed, options), or None to leave it as it is. True as for step().
    bool reset(std::uint32_t frame, const py::list& calls);

    // The envs take the place of lost ones: a step that was under way ended their episodes, and
    // these are the seeds of their next resets.
    void replace(const std::vector<std::uint64_t>& seeds);
    // Instead of the step in which the others were lost. Observations are left as they are, unless
    // envs reset in the same step.
    bool restore(std::uint32_t frame);
    // What env i is reset with from its next reset on, where nothing else is asked for; the version
    // of the options of its episode is written with each step.
    void set_options(std::size_t i, const py::object& options, std::int64_t version);

    // [(kind, index among the frame's envs, object)], handed over.
    py::list take_leftovers();

 private:
    void use_action_types(std::uint32_t frame);
    void step_one(std::uint32_t frame, std::size_t i, PyObject* action);
    void reset_one(std::uint32_t frame, std::size_t i, PyObject* seed, PyObject* options);
    py::object call_reset(std::size_t i, PyObject* seed, PyObject* options);
    void show_version(std::uint32_t frame, std::size_t i);
    void clear_results(std::uint32_t frame, std::size_t i);
    void store_obs(std::uint32_t frame, std::size_t i, PyObject* obs);
    void store_final(std::uint32_t frame, std::size_t i, PyObject* obs, PyObject* info);
    static py::object copied(PyObject* value);
    void store_info(std::uint32_t frame, std::size_t i, PyObject* info);
    double as_reward(PyObject* value) const;
    void begin(std::uint32_t frame);
    void leave(Leftover kind, std::size_t i, const py::object& object);
    template <class Work>
    void for_each(std::uint32_t frame, Work&& work);
    template <class Work>
    void guarded(std::size_t i, Work&& work);

    std::vector<py::object> envs_;
    std::size_t first_;
    std::size_t count_;
    std::vector<Leaf> obs_leaves_;
    std::vector<Leaf> final_leaves_;
    Space obs_;
    std::vector<py::array> action_bytes_;
    std::vector<std::vector<py::ssize_t>> action_shapes_;
    py::array_t<std::int32_t> action_types_;
    std::vector<std::int32_t> types_in_use_;
    std::vector<Leaf> action_leaves_;
    Space action_;
    py::array_t<double> rewards_;
    py::array_t<bool> terminated_;
    py::array_t<bool> truncated_;
    py::array_t<std::uint8_t> has_final_;
    std::shared_ptr<Infos> infos_;
    std::shared_ptr<Meter> meter_;
    Autoreset autoreset_ = Autoreset::kNextStep;
    KeepInfos keep_ = KeepInfos::kAll;
    std::vector<bool> ended_;        // to be reset by the next step
    std::vector<py::object> seeds_;  // of the next reset, where it is asked for none
    struct Options {
        py::object options;
        std::int64_t version = 0;  // of these
        std::int64_t used = 0;     // by the last reset
    };
    std::vector<Options> options_;  // empty until there are any
    py::array_t<std::int64_t> options_versions_;
    std::vector<py::object> shown_;  // the last observation of each, to show it again
    std::vector<py::object> odd_;
    enum class Doing { kNothing, kStep, kReset };
    Doing doing_ = Doing::kNothing;  // the env at work
    std::int64_t began_ = 0;
    py::list leftovers_;
    py::str step_name_{"step"};
    py::str reset_name_{"reset"};
    py::tuple reset_keywords_;
};

}  // namespace pysampler::bindings
