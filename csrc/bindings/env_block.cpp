#include "env_block.h"

#include <cstring>

#include "results.h"

namespace pysampler::bindings {
namespace {

Autoreset autoreset_of(const std::string& name) {
    if (name == "NEXT_STEP") return Autoreset::kNextStep;
    if (name == "SAME_STEP") return Autoreset::kSameStep;
    if (name == "DISABLED") return Autoreset::kDisabled;
    throw py::value_error("cannot make block: autoreset " + name +
                          ", expected NEXT_STEP, SAME_STEP or DISABLED");
}

KeepInfos keep_of(const std::string& name) {
    if (name == "NONE") return KeepInfos::kNone;
    if (name == "FINAL") return KeepInfos::kFinal;
    if (name == "ALL") return KeepInfos::kAll;
    throw py::value_error("cannot make block: keep " + name + ", expected NONE, FINAL or ALL");
}

}  // namespace

EnvBlock::EnvBlock(const py::list& envs, std::size_t first, const py::object& frames,
                   const std::shared_ptr<Infos>& infos, const std::shared_ptr<Meter>& meter,
                   const std::string& autoreset, const std::string& keep, bool here)
    : here_(here),
      first_(first),
      count_(envs.size()),
      obs_(frames.attr("spec").attr("observation_tree"), leaves_of(frames.attr("observations"))),
      action_(frames.attr("spec").attr("action_tree"), leaves_of(frames.attr("actions"))),
      meter_(meter),
      ended_(count_, false),
      resting_(count_, false),
      fresh_(count_, false),
      seeds_(count_),
      last_rows_(own_rows(frames.attr("observations"))),
      last_obs_(count_),
      has_last_(count_, false),
      reset_keywords_(py::make_tuple("seed", "options")) {
    for (const py::handle env : envs) envs_.push_back(py::reinterpret_borrow<py::object>(env));
    use(frames, infos, autoreset, keep);
}

void EnvBlock::use(const py::object& frames, const std::shared_ptr<Infos>& infos,
                   const std::string& autoreset, const std::string& keep) {
    const Autoreset mode = autoreset_of(autoreset);
    keep_ = keep_of(keep);
    obs_leaves_ = leaves_of(frames.attr("observations"));
    final_leaves_ = leaves_of(frames.attr("final_observations"));
    action_leaves_ = space_leaves_ = leaves_of(frames.attr("actions"));
    action_types_ = py::array_t<std::int32_t>(frames.attr("action_types"));
    rewards_ = py::array_t<double>(frames.attr("rewards"));
    reward_size_ = rewards_.ndim() > 2 ? static_cast<std::size_t>(rewards_.shape(2)) : 0;
    terminated_ = py::array_t<bool>(frames.attr("terminated"));
    truncated_ = py::array_t<bool>(frames.attr("truncated"));
    has_final_ = py::array_t<std::uint8_t>(frames.attr("has_final"));
    options_versions_ = py::array_t<std::int64_t>(frames.attr("options_versions"));
    action_bytes_.clear();
    for (const py::handle array : frames.attr("other_actions")) {
        action_bytes_.push_back(array.cast<py::array>());
    }
    action_shapes_.clear();
    types_in_use_.clear();
    for (const py::handle array : frames.attr("actions")) {
        const auto values = array.cast<py::array>();
        action_shapes_.emplace_back(values.shape() + 2, values.shape() + values.ndim());
        types_in_use_.push_back(values.dtype().num());
    }
    infos_ = infos;
    autoreset_ = mode;
    resting_.assign(count_, false);
}

// The parent writes actions of another type than the space's if the user passed such actions.
void EnvBlock::use_action_types(std::uint32_t frame) {
    for (std::size_t leaf = 0; leaf < types_in_use_.size(); ++leaf) {
        const std::int32_t type = action_types_.at(frame, first_, leaf);
        if (type == types_in_use_[leaf]) continue;
        action_leaves_[leaf] = type == space_leaves_[leaf].type_num()
                                   ? space_leaves_[leaf]
                                   : action_leaf(action_bytes_[leaf], type, action_shapes_[leaf]);
        types_in_use_[leaf] = type;
    }
}

bool EnvBlock::step_with(std::uint32_t frame, const std::optional<py::list>& actions) {
    begin(frame);
    if (!actions) use_action_types(frame);
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
            actions ? py::object((*actions)[i]) : action_.load(frame, first_ + i, action_leaves_);
        step_one(frame, i, action.ptr());
    });
    return !overflow_.empty();
}

bool EnvBlock::reset(std::uint32_t frame, const py::list& calls) {
    begin(frame);
    const bool all = fresh();  // the others have lost their episodes, too
    for_each(frame, [&](std::size_t i) {
        const py::object call = calls[i];
        if (fresh_[i]) {
            fresh_[i] = false;
            has_final_.mutable_at(frame, first_ + i) = kLost;
            leave(kLostEnv, i, py::none());
        }
        if (!call.is_none()) {
            reset_one(frame, i, py::object(call[py::int_(0)]).ptr(),
                      py::object(call[py::int_(1)]).ptr());
        } else if (all) {
            reset_one(frame, i, nullptr, nullptr);
        } else {
            if (const py::object last = last_obs(i)) {
                store_obs(frame, i, last.ptr());
            } else {
                leave(kUnseen, i, py::none());
            }
            terminated_.mutable_at(frame, first_ + i) = ended_[i];
            truncated_.mutable_at(frame, first_ + i) = false;
        }
    });
    return !overflow_.empty();
}

void EnvBlock::replace(const std::vector<std::optional<std::uint64_t>>& seeds,
                       const std::vector<bool>& over) {
    for (std::size_t i = 0; i < count_; ++i) {
        if (const auto& seed = seeds.at(i)) seeds_[i] = py::int_(*seed);
        const bool is_over = !over.empty() && over.at(i) && autoreset_ != Autoreset::kSameStep;
        ended_[i] = is_over && autoreset_ == Autoreset::kNextStep;
        fresh_[i] = !is_over;
        if (is_over) continue;
        last_obs_[i] = py::object();  // the caller may not have seen it
        has_last_[i] = false;
    }
}

py::dict EnvBlock::seeds() const {
    py::dict seeds;
    for (std::size_t i = 0; i < count_; ++i) {
        if (seeds_[i]) seeds[py::int_(i)] = seeds_[i];
    }
    return seeds;
}

void EnvBlock::set_options(std::size_t i, const py::object& options, std::int64_t version,
                           std::optional<std::int64_t> used) {
    options_.resize(count_);
    options_.at(i).options = options;
    options_[i].version = version;
    if (used) options_[i].used = *used;
}

void EnvBlock::set_last(std::size_t i, const py::object& obs) {
    if (last_rows_.empty()) {
        last_obs_.at(i) = obs;
        return;
    }
    obs_.store(0, i, obs.ptr(), nullptr, last_rows_);
    has_last_.at(i) = true;
}

// One env after the other makes all of its steps, so that its memory stays in the cache.
bool EnvBlock::step_chunk(std::uint32_t frame, std::uint32_t steps, bool last) {
    for (std::uint32_t k = 0; k < steps; ++k) begin(frame + k);
    in_chunk_ = true;
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
        if (!told_unseen_.empty() && told_unseen_[i]) guarded(i, [&] { tell_unseen(i, false); });
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
    const py::object action = action_.load(frame, first_ + i, action_leaves_);
    return step_one(frame, i, action.ptr(), unseen);
}

// The wrappers around an env that may end its episode after a number of steps.
py::list EnvBlock::time_limits(const py::object& env) {
    py::list found;
    for (py::object one = env; !one.is_none(); one = py::getattr(one, "env", py::none())) {
        const py::object fields = py::getattr(one, "__dict__", py::none());
        if (!fields.is_none() && fields.contains("_max_episode_steps") &&
            fields.contains("_elapsed_steps")) {
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
    if (!skip_frames_.empty()) return;
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

py::list EnvBlock::take_overflow() { return std::exchange(overflow_, py::list()); }

void EnvBlock::begin(std::uint32_t frame) {
    if (frame >= static_cast<std::size_t>(rewards_.shape(0)))
        throw py::index_error("cannot use frame " + std::to_string(frame) + ": no such frame");
    in_chunk_ = false;
    overflow_ = py::list();
    if (keep_ != KeepInfos::kNone) infos_->clear(frame, first_, count_);
    std::memset(has_final_.mutable_data(frame, first_), 0, count_);
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
    guarded(i, work);
    now = now_ns();
    if (call_ == Call::kStep) meter_->stepped(first_ + i, began_, now);
    if (call_ == Call::kReset) meter_->was_reset(first_ + i, began_, now);
    write_options_version(frame, i);
    return now;
}

// Whether an exception comes from the user, such as Ctrl-C, rather than from an env.
bool EnvBlock::is_users(const py::error_already_set& error) const {
    if (error.matches(PyExc_KeyboardInterrupt)) return true;
    return here_ && !error.matches(PyExc_Exception) && !error.matches(PyExc_SystemExit) &&
           !error.matches(PyExc_GeneratorExit);
}

// Calls work(). An exception of env i becomes overflow, so that the other envs still step.
template <class Work>
void EnvBlock::guarded(std::size_t i, Work&& work) {
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
        leave(kError, i, error.value());
    }
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
        const std::int64_t now = now_ns();
        meter_->stepped(env, began_, now);
        began_ = now;
        results = call_reset(i, nullptr, nullptr);
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
    py::object own_seed = std::exchange(seeds_[i], py::object());
    if (none(seed)) seed = own_seed ? own_seed.ptr() : Py_None;
    // An empty dict here held only a mask of envs: it requests no options.
    const bool requested =
        !none(options) && !(PyDict_Check(options) && PyDict_GET_SIZE(options) == 0);
    if (!options_.empty() && !requested && options_[i].options) {
        options = options_[i].options.ptr();
        options_[i].used = options_[i].version;
    } else if (!options_.empty()) {
        options_[i].used = 0;
    }
    if (none(options)) options = Py_None;
    keywords |= !none(seed) || !none(options);
    PyObject* call[] = {envs_[i].ptr(), seed, options};
    PyObject* names = keywords ? reset_keywords_.ptr() : nullptr;
    return checked(
        called([&] { return PyObject_VectorcallMethod(reset_name_.ptr(), call, 1, names); }));
}

void EnvBlock::write_options_version(std::uint32_t frame, std::size_t i) {
    if (!options_.empty()) options_versions_.mutable_at(frame, first_ + i) = options_[i].used;
}

void EnvBlock::clear_results(std::uint32_t frame, std::size_t i) {
    std::fill_n(rewards_.mutable_data(frame, first_ + i), std::max<std::size_t>(1, reward_size_),
                0.0);
    terminated_.mutable_at(frame, first_ + i) = false;
    truncated_.mutable_at(frame, first_ + i) = false;
}

// Resets an env instead of stepping it.
void EnvBlock::begin_next(std::uint32_t frame, std::size_t i) {
    reset_one(frame, i, nullptr, nullptr);
    has_final_.mutable_at(frame, first_ + i) = kBegun;
}

// Ends the episode of the lost env that a fresh one replaces.
void EnvBlock::end_lost(std::uint32_t frame, std::size_t i) {
    fresh_[i] = false;
    has_final_.mutable_at(frame, first_ + i) = kLost;
    leave(kLostEnv, i, py::none());
    clear_results(frame, i);
    truncated_.mutable_at(frame, first_ + i) = true;
    ended_[i] = autoreset_ == Autoreset::kNextStep;
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
        return obs_.store(frame, first_ + i, obs, &unshaped_, leaves);
    } catch (const py::value_error& error) {
        throw py::value_error(std::string("observation") + error.what());
    }
}

// `reward` is that of the step which returned `obs`; null for a reset.
void EnvBlock::store_obs(std::uint32_t frame, std::size_t i, PyObject* obs, PyObject* reward) {
    report(i, write_obs(frame, i, obs, obs_leaves_), obs, reward);
    if (!unshaped_.empty()) {
        py::tuple values(unshaped_.size());
        for (std::size_t k = 0; k < unshaped_.size(); ++k) values[k] = std::move(unshaped_[k]);
        unshaped_.clear();
        leave(kUnshapedObs, i, values);
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
    if (bytes > kSmall || obs_.has_unshaped()) rows.clear();
    return rows;
}

// The last observation of env i; a null object if there is none.
py::object EnvBlock::last_obs(std::size_t i) const {
    if (last_rows_.empty()) return last_obs_[i];
    return has_last_[i] ? obs_.load(0, i, last_rows_) : py::object();
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
    double_rewards_ = py::array_t<bool>(static_cast<py::ssize_t>(count_));
    std::memset(double_rewards_.mutable_data(), 0, count_);
}

// See report_unlike(). `same` is whether the frame holds the observation unchanged.
void EnvBlock::report(std::size_t i, bool same, PyObject* obs, PyObject* reward) {
    bool number = true;
    if (reward != nullptr && unlike_rewards_) {
        number = PyFloat_Check(reward) || (ints_ && PyLong_CheckExact(reward));
        double_rewards_.mutable_at(i) = !PyFloat_CheckExact(reward) && !PyLong_CheckExact(reward);
    }
    if ((same || !unlike_observations_) && number) return;
    py::list results;
    results.append(copied(obs));
    if (reward != nullptr) results.append(py::handle(reward));
    leave(kUnlike, i, py::tuple(results));
}

// A copy, since a reset, or the next step of a chunk, may write to the same arrays before they are
// sent; the object itself if it cannot be copied.
py::object EnvBlock::copied(PyObject* value) {
    try {
        return py::module_::import("copy").attr("deepcopy")(py::handle(value));
    } catch (py::error_already_set& error) {
        if (!error.matches(PyExc_Exception)) throw;
        return py::reinterpret_borrow<py::object>(value);
    }
}

void EnvBlock::store_info(std::uint32_t frame, std::size_t i, PyObject* info) {
    if (auto rest = infos_->store(frame, first_ + i, info, nullptr)) {
        leave(kInfo, i, in_chunk_ ? copied(rest->ptr()) : *rest);
    }
}

void EnvBlock::leave(OverflowKind kind, std::size_t i, const py::object& object) {
    if (in_chunk_) {
        overflow_.append(py::make_tuple(static_cast<int>(kind), first_ + i, object, step_));
    } else {
        overflow_.append(py::make_tuple(static_cast<int>(kind), first_ + i, object));
    }
}

void register_env_block(py::module_& m) {
    Class<EnvBlock, Block> block(m, "EnvBlock");
    block
        .def(
            py::init<const py::list&, std::size_t, const py::object&, const std::shared_ptr<Infos>&,
                     const std::shared_ptr<Meter>&, const std::string&, const std::string&, bool>(),
            py::arg("envs"), py::arg("first"), py::arg("frames"), py::arg("infos"),
            py::arg("meter"), py::arg("autoreset"), py::arg("keep"), py::arg("here") = false)
        .def("use", &EnvBlock::use, py::arg("frames"), py::arg("infos"), py::arg("autoreset"),
             py::arg("keep"),
             "Use other frames of the same spec from now on; the envs stay unchanged.")
        .def("step", &EnvBlock::step_with, py::arg("frame"), py::arg("actions") = py::none(),
             "Step every env with the actions in the frame or these; return whether there is "
             "overflow.")
        .def("step_chunk", &EnvBlock::step_chunk, py::arg("frame"), py::arg("steps"),
             py::arg("last"),
             "Let every env make several steps, from the frame on, until its episode ends; with "
             "`last`, write only its last results, and all rewards.")
        .def("reset", &EnvBlock::reset, py::arg("frame"), py::arg("calls"),
             "Reset each env with its (seed, options), or leave it unchanged if that is None and "
             "no env is fresh; return whether there is overflow.")
        .def("replace", &EnvBlock::replace, py::arg("seeds"), py::arg("over"),
             "Let the envs replace others, of which some had ended their episodes: their next "
             "resets use these seeds.")
        .def_property_readonly("seeds", &EnvBlock::seeds,
                               "By env, the seeds that replace() set and no reset has used.")
        .def_property_readonly("fresh", &EnvBlock::fresh,
                               "Whether an env has not begun since it replaced another.")
        .def("set_options", &EnvBlock::set_options, py::arg("i"), py::arg("options"),
             py::arg("version"), py::arg("used") = py::none(),
             "Use these options for env i from its next reset on; `used` is the version of its "
             "current episode.")
        .def("set_last", &EnvBlock::set_last, py::arg("i"), py::arg("observation"),
             "Set the last observation of env i, which a reset that leaves it unchanged returns.")
        .def("ended", &EnvBlock::ended, py::arg("i"), "Whether the next step resets env i.")
        .def("ended_envs", &EnvBlock::ended_envs, "The envs that the next step resets.")
        .def("rests", &EnvBlock::rests, py::arg("i"), "Whether steps leave env i alone.")
        .def("rest", &EnvBlock::rest, py::arg("i"),
             "Let steps leave env i alone until it is reset.")
        .def("set_ended", &EnvBlock::set_ended, py::arg("i"), py::arg("ended"),
             "Set whether the next step resets env i.")
        .def(
            "last",
            [](const EnvBlock& self, std::size_t i) {
                const py::object last = self.last_obs(i);
                return last ? last : py::object(py::none());
            },
            py::arg("i"), "The last observation of env i, or None.")
        .def("report_unlike", &EnvBlock::report_unlike, py::arg("observations"), py::arg("ints"),
             "Report rewards, and observations too or not, that the frame cannot hold unchanged.")
        .def_property_readonly("double_rewards", &EnvBlock::double_rewards,
                               "Which envs' last rewards were NumPy's float64.")
        .def("options_used", &EnvBlock::options_used, py::arg("i"),
             "The version of the options of env i's episode.")
        .def("stop", &EnvBlock::stop,
             "End the interrupted call as soon as its env returns; for signal handlers.")
        .def("peek_overflow", &EnvBlock::peek_overflow,
             "Return the overflow, like take_overflow(), without forgetting it.")
        .def("take_overflow", &EnvBlock::take_overflow,
             "Return and forget the results that did not fit: (kind, env, object) tuples, with "
             "the step after a chunk.");
    block.attr("INFO") = static_cast<int>(EnvBlock::kInfo);
    block.attr("FINAL_OBS") = static_cast<int>(EnvBlock::kFinalObs);
    block.attr("UNSHAPED_OBS") = static_cast<int>(EnvBlock::kUnshapedObs);
    block.attr("ERROR") = static_cast<int>(EnvBlock::kError);
    block.attr("UNLIKE") = static_cast<int>(EnvBlock::kUnlike);
    block.attr("LOST") = static_cast<int>(EnvBlock::kLostEnv);
    block.attr("UNSEEN") = static_cast<int>(EnvBlock::kUnseen);
}

}  // namespace pysampler::bindings
