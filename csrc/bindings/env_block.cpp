#include "env_block.h"

#include <cstring>
#include <utility>

#include "results.h"

namespace pysampler::bindings {
EnvBlock::EnvBlock(const py::list& envs, std::size_t first, const std::shared_ptr<Meter>& meter,
                   bool is_inline)
    : FrameBlock(envs.size(), first, meter, is_inline),
      last_obs_(count_),
      has_last_(count_, false),
      reset_keywords_(py::make_tuple("seed", "options")) {
    for (const py::handle env : envs) envs_.push_back(py::reinterpret_borrow<py::object>(env));
}

void EnvBlock::use(const py::object& frames, const std::shared_ptr<Infos>& infos,
                   const std::string& autoreset, const std::string& keep) {
    FrameBlock::use(frames, infos, autoreset, keep);
    obs_leaves_ = leaves_of(frames.attr("observations"));
    final_leaves_ = leaves_of(frames.attr("final_observations"));
    if (obs_) return;
    const py::object spec = frames.attr("spec");
    obs_ = std::make_unique<Space>(spec.attr("observation_tree"), obs_leaves_);
    action_ = std::make_unique<Space>(spec.attr("action_tree"), space_leaves_);
    last_rows_ = own_rows(frames.attr("observations"));
}

bool EnvBlock::step_with(std::uint32_t frame, const py::object& actions) {
    std::optional<py::list> given;
    if (!actions.is_none()) given.emplace(actions);
    in_chunk_ = false;
    begin(frame);
    if (!given) use_action_types(frame);
    for_each(frame, [&](std::size_t i) {
        if (fresh_[i]) {
            end_lost(frame, i);
            return;
        }
        if (resting_[i]) return;
        if (ended_[i]) {
            begin_next(frame, i);
            return;
        }
        const py::object action =
            given ? py::object((*given)[i]) : action_->load(frame, first_ + i, action_leaves_);
        step_one(frame, i, action.ptr());
    });
    return !overflow_.empty();
}

bool EnvBlock::reset(std::uint32_t frame, const py::list& calls) {
    in_chunk_ = false;
    begin(frame);
    for_each(frame, [&](std::size_t i) {
        const py::object call = calls[i];
        const bool lost = fresh_[i];
        if (lost) mark_lost(frame, i);
        if (!call.is_none()) {
            reset_one(frame, i, py::object(call[py::int_(0)]).ptr(),
                      py::object(call[py::int_(1)]).ptr());
        } else if (lost) {
            reset_one(frame, i, nullptr, nullptr);
        } else {
            if (const py::object last = last_obs(i)) {
                store_obs(frame, i, last.ptr());
            } else {
                leave(kUnseen, i, py::none());
            }
            write_left_out(frame, i);
        }
    });
    return !overflow_.empty();
}

void EnvBlock::replace(const std::vector<std::optional<std::uint64_t>>& seeds,
                       const std::vector<bool>& over) {
    FrameBlock::replace(seeds, over);
    for (std::size_t i = 0; i < count_; ++i) {
        if (!fresh_[i]) continue;
        last_obs_[i] = py::object();  // the caller may not have seen it
        has_last_[i] = false;
    }
}

void EnvBlock::set_last(std::size_t i, const py::object& obs) {
    if (last_rows_.empty()) {
        last_obs_.at(i) = obs;
        return;
    }
    obs_->store(0, i, obs.ptr(), nullptr, last_rows_);
    has_last_.at(i) = true;
}

// One env after the other makes all of its steps, so that its memory stays in the cache.
bool EnvBlock::step_chunk(std::uint32_t frame, std::uint32_t steps, bool last) {
    in_chunk_ = true;
    overflow_ = py::list();
    for (std::uint32_t k = 0; k < steps; ++k) begin(frame + k);
    use_action_types(frame);
    std::int64_t now = now_ns();
    for (std::size_t i = 0; i < count_ && !stopped_; ++i) {
        bool over = resting_[i] && !fresh_[i];
        for (step_ = 0; step_ < steps && !stopped_; ++step_) {
            const std::uint32_t at = frame + step_;
            if (over) {
                clear_results(at, i);
                has_final_.mutable_at(at, first_ + i) = kSkipped;
                continue;
            }
            over = true;  // also if the env raises
            now =
                timed(at, i, now, [&] { over = step_in_chunk(at, i, last && step_ + 1 < steps); });
        }
        if (!told_unseen_.empty() && told_unseen_[i]) {
            guarded([&] { tell_unseen(i, false); },
                    [&](const py::object& error) { leave(kError, i, error); });
        }
    }
    step_ = 0;
    meter_->idle(now);
    return !overflow_.empty();
}

// Returns whether the env stops: its episode has ended, or begun.
bool EnvBlock::step_in_chunk(std::uint32_t frame, std::size_t i, bool unseen) {
    if (fresh_[i]) {
        end_lost(frame, i);
        return true;
    }
    find_skip_frames();
    unseen = unseen && !ended_[i] && !reaches_limit(i);
    tell_unseen(i, unseen);
    if (ended_[i]) {
        begin_next(frame, i);
        return true;
    }
    const py::object action = action_->load(frame, first_ + i, action_leaves_);
    return step_one(frame, i, action.ptr(), unseen);
}

// The wrappers around an env that may end its episode after a number of steps.
py::list EnvBlock::time_limits(const py::object& env) {
    py::list found;
    for (py::object one = env; !one.is_none(); one = py::getattr(one, "env", py::none())) {
        const py::object fields = py::getattr(one, "__dict__", py::dict());
        if (fields.contains("_max_episode_steps") && fields.contains("_elapsed_steps")) {
            found.append(one);
        }
    }
    return found;
}

// Whether a time limit ends the episode in the next step. The env itself cannot know this.
bool EnvBlock::reaches_limit(std::size_t i) const {
    for (const py::handle limit : limits_[i]) {
        const py::object elapsed = limit.attr("_elapsed_steps");
        if (!elapsed.is_none() && elapsed.cast<std::int64_t>() + 1 >=
                                      limit.attr("_max_episode_steps").cast<std::int64_t>()) {
            return true;
        }
    }
    return false;
}

// Finds the envs' methods skip_frames(unseen), once.
void EnvBlock::find_skip_frames() {
    if (!told_unseen_.empty()) return;
    limits_.clear();
    skip_frames_.clear();  // an exception may have ended an earlier call
    for (const py::object& env : envs_) {
        py::object found = py::getattr(env, "skip_frames", py::none());
        if (found.is_none() && py::hasattr(env, "has_wrapper_attr") &&
            env.attr("has_wrapper_attr")("skip_frames").cast<bool>()) {
            found = env.attr("get_wrapper_attr")("skip_frames");
        }
        limits_.push_back(found.is_none() ? py::list() : time_limits(env));
        skip_frames_.push_back(std::move(found));
    }
    told_unseen_.assign(count_, false);
}

// Calls the env's method skip_frames(unseen), if it has one, unless it was told so already.
void EnvBlock::tell_unseen(std::size_t i, bool unseen) {
    if (skip_frames_[i].is_none() || told_unseen_[i] == unseen) return;
    skip_frames_[i](unseen);
    told_unseen_[i] = unseen;
}

// Calls work(i) for each env i and updates the meter. The end of one env is the beginning of the
// next, so the clock is read once per env.
template <class Work>
void EnvBlock::for_each(std::uint32_t frame, Work&& work) {
    std::int64_t now = now_ns();
    for (std::size_t i = 0; i < count_ && !stopped_; ++i) {
        now = timed(frame, i, now, [&] { work(i); });
    }
    meter_->idle(now);
}

// Calls work(), a step or reset of env i that begins at `now`; returns when it ended.
template <class Work>
std::int64_t EnvBlock::timed(std::uint32_t frame, std::size_t i, std::int64_t now, Work&& work) {
    meter_->at(static_cast<std::int64_t>(first_ + i), now);
    meter_->expect_step(first_ + i);
    began_ = now;
    call_ = Call::kNothing;
    guarded(work, [&](const py::object& error) { leave(kError, i, error); });
    now = now_ns();
    if (call_ == Call::kStep) meter_->stepped(first_ + i, began_, now);
    if (call_ == Call::kReset) meter_->was_reset(first_ + i, began_, now);
    write_options_version(frame, i);
    return now;
}

bool EnvBlock::step_one(std::uint32_t frame, std::size_t i, PyObject* action, bool unseen) {
    call_ = Call::kStep;
    PyObject* call[] = {envs_[i].ptr(), action};
    py::object results = checked(
        called([&] { return PyObject_VectorcallMethod(step_name_.ptr(), call, 2, nullptr); }));
    const auto [obs, reward, terminated, truncated, info] = take_apart<5>(results, "step");
    const std::size_t env = first_ + i;
    if (reward_size_ == 0) {
        rewards_.mutable_at(frame, env) = as_reward(reward);
    } else {
        read_rewards(reward, rewards_.mutable_data(frame, env), reward_size_);
    }
    const bool was_terminated = as_bool(terminated, "terminated");
    const bool was_truncated = as_bool(truncated, "truncated");
    terminated_.mutable_at(frame, env) = was_terminated;
    truncated_.mutable_at(frame, env) = was_truncated;
    const bool ended = was_terminated || was_truncated;
    if (unseen && !ended) return false;
    if (ended && autoreset_ == Autoreset::kSameStep) {
        if (unseen) tell_unseen(i, false);
        report(i, store_final(frame, i, obs, info), obs, reward);
        const std::int64_t began = std::exchange(began_, now_ns());
        results = call_reset(i, nullptr, nullptr);
        meter_->stepped(env, began, began_);  // not if the reset has ended this process
        const auto [first_obs, reset_info] = take_apart<2>(results, "reset");
        if (keep_ == KeepInfos::kAll) store_info(frame, i, reset_info);
        store_obs(frame, i, first_obs);
        return true;
    }
    ended_[i] = ended && autoreset_ == Autoreset::kNextStep;
    if (keep_ == KeepInfos::kAll || (keep_ == KeepInfos::kFinal && ended)) {
        store_info(frame, i, info);
    }
    store_obs(frame, i, obs, reward);
    return ended;
}

// Passes keywords only if some are given, since some envs accept none.
py::object EnvBlock::call_reset(std::size_t i, PyObject* seed, PyObject* options) {
    if (!told_unseen_.empty()) tell_unseen(i, false);  // an exception has interrupted a chunk
    call_ = Call::kReset;
    resting_[i] = false;
    const auto none = [](PyObject* value) { return value == nullptr || value == Py_None; };
    bool keywords = seed != nullptr || options != nullptr;
    const py::object own_seed = take_seed(i);
    if (none(seed)) seed = own_seed.ptr();
    const py::object chosen = options_of(i, options);
    options = chosen.ptr();
    keywords |= !none(seed) || !none(options);
    PyObject* call[] = {envs_[i].ptr(), seed, options};
    PyObject* names = keywords ? reset_keywords_.ptr() : nullptr;
    return checked(
        called([&] { return PyObject_VectorcallMethod(reset_name_.ptr(), call, 1, names); }));
}

// Resets an env instead of stepping it.
void EnvBlock::begin_next(std::uint32_t frame, std::size_t i) {
    reset_one(frame, i, nullptr, nullptr);
    has_final_.mutable_at(frame, first_ + i) = kBegun;
}

// Ends the episode of the lost env that a fresh one replaces.
void EnvBlock::end_lost(std::uint32_t frame, std::size_t i) {
    write_lost(frame, i);
    if (autoreset_ != Autoreset::kSameStep) return;
    reset_one(frame, i, nullptr, nullptr);
    truncated_.mutable_at(frame, first_ + i) = true;
}

void EnvBlock::reset_one(std::uint32_t frame, std::size_t i, PyObject* seed, PyObject* options) {
    py::object results = call_reset(i, seed, options);
    const auto [obs, info] = take_apart<2>(results, "reset");
    ended_[i] = false;
    clear_results(frame, i);
    if (keep_ == KeepInfos::kAll) store_info(frame, i, info);
    store_obs(frame, i, obs);
}

// Returns the result of Space::store(). Errors name the part of the observation.
bool EnvBlock::write_obs(std::uint32_t frame, std::size_t i, PyObject* obs,
                         const std::vector<Leaf>& leaves) {
    unshaped_.clear();
    try {
        return obs_->store(frame, first_ + i, obs, &unshaped_, leaves);
    } catch (const py::value_error& error) {
        throw py::value_error(std::string("observation") + error.what());
    }
}

// `reward` is that of the step which returned `obs`; null for a reset.
void EnvBlock::store_obs(std::uint32_t frame, std::size_t i, PyObject* obs, PyObject* reward) {
    report(i, write_obs(frame, i, obs, obs_leaves_), obs, reward);
    if (!unshaped_.empty()) {
        leave(kUnshapedObs, i, py::tuple(py::cast(unshaped_)));
        unshaped_.clear();
    }
    if (last_rows_.empty()) {
        last_obs_[i] = py::reinterpret_borrow<py::object>(obs);
        return;
    }
    for (std::size_t leaf = 0; leaf < last_rows_.size(); ++leaf) {
        std::memcpy(last_rows_[leaf].row(0, i), obs_leaves_[leaf].row(frame, first_ + i),
                    obs_leaves_[leaf].row_bytes());
    }
    has_last_[i] = true;
}

// Private rows for an observation of each env; empty if observations are large or have parts
// without a fixed shape.
std::vector<Leaf> EnvBlock::own_rows(const py::object& arrays) const {
    constexpr std::size_t kSmall = 512;  // bytes of the largest observation to copy once more
    std::vector<Leaf> rows;
    std::size_t bytes = 0;
    for (const py::handle item : arrays) {
        const auto array = item.cast<py::array>();
        std::vector<py::ssize_t> shape{1, static_cast<py::ssize_t>(count_)};
        shape.insert(shape.end(), array.shape() + 2, array.shape() + array.ndim());
        rows.emplace_back(py::array(array.dtype(), shape));
        bytes += rows.back().row_bytes();
    }
    if (bytes > kSmall || obs_->has_unshaped()) rows.clear();
    return rows;
}

// The last observation of env i; a null object if there is none.
py::object EnvBlock::last_obs(std::size_t i) const {
    if (last_rows_.empty()) return last_obs_[i];
    return has_last_[i] ? obs_->load(0, i, last_rows_) : py::object();
}

// Writes the last observation of an episode to the frame. If that changes its type, or a part has
// no fixed shape, the object itself becomes overflow too.
bool EnvBlock::store_final(std::uint32_t frame, std::size_t i, PyObject* obs, PyObject* info) {
    const bool same = write_obs(frame, i, obs, final_leaves_);
    unshaped_.clear();
    has_final_.mutable_at(frame, first_ + i) = same ? 1 : 2;
    if (!same) leave(kFinalObs, i, copied(obs));
    if (keep_ != KeepInfos::kNone) {
        if (auto rest = infos_->store(frame, first_ + i, info, "final_info")) {
            leave(kInfo, i, copied(rest->ptr()));
        }
    }
    return same;
}

void EnvBlock::report_unlike(bool observations, bool ints) {
    ints_ = ints;
    unlike_observations_ = observations;
    unlike_rewards_ = true;
    doubles_ = py::array_t<bool>(static_cast<py::ssize_t>(count_));
    std::memset(doubles_.mutable_data(), 0, count_);
    double_rewards = doubles_;
}

// See report_unlike(). `same` is whether the frame holds the observation unchanged.
void EnvBlock::report(std::size_t i, bool same, PyObject* obs, PyObject* reward) {
    bool number = true;
    if (reward != nullptr && unlike_rewards_) {
        number = PyFloat_Check(reward) || (ints_ && PyLong_CheckExact(reward));
        doubles_.mutable_at(i) = !PyFloat_CheckExact(reward) && !PyLong_CheckExact(reward);
    }
    if ((same || !unlike_observations_) && number) return;
    py::list results;
    results.append(copied(obs));
    if (reward != nullptr) results.append(py::handle(reward));
    leave(kUnlike, i, py::tuple(results));
}

void EnvBlock::store_info(std::uint32_t frame, std::size_t i, PyObject* info) {
    if (auto rest = infos_->store(frame, first_ + i, info, nullptr)) {
        leave(kInfo, i, in_chunk_ ? copied(rest->ptr()) : *rest);
    }
}

void register_env_block(py::module_& m) {
    Class<EnvBlock, FrameBlock>(m, "EnvBlock")
        .def(py::init<const py::list&, std::size_t, const std::shared_ptr<Meter>&, bool>(),
             py::arg("envs"), py::arg("first"), py::arg("meter"), py::arg("inline") = false)
        .def("set_last", &EnvBlock::set_last, py::arg("i"), py::arg("observation"),
             "Set the last observation of env i, which a reset that leaves it unchanged returns.")
        .def(
            "last",
            [](const EnvBlock& self, std::size_t i) {
                const py::object last = self.last_obs(i);
                return last ? last : py::object(py::none());
            },
            py::arg("i"), "The last observation of env i, or None.")
        .def("report_unlike", &EnvBlock::report_unlike, py::arg("observations"), py::arg("ints"),
             "Report rewards, and observations too or not, that the frame cannot hold unchanged.");
}

}  // namespace pysampler::bindings
