#include "env_block.h"

#include <pybind11/stl.h>

#include "number.h"

namespace pysampler::bindings {
namespace {

// A TypeError for the exception that Python is at, which becomes its cause. Ctrl-C stays itself.
[[noreturn]] void raise_type(const std::string& message) {
    if (!PyErr_ExceptionMatches(PyExc_Exception)) throw py::error_already_set();
    py::error_already_set cause;
    py::raise_from(cause, PyExc_TypeError, message.c_str());
    throw py::error_already_set();
}

// The five results of step, or two of reset, whatever sequence they come as.
template <std::size_t count>
std::array<PyObject*, count> take_apart(py::object& results, const char* method) {
    if (!PyTuple_Check(results.ptr())) {
        PyObject* parts = PySequence_Tuple(results.ptr());
        if (parts == nullptr) {
            raise_type(std::string("env.") + method + "() returned a " +
                       Py_TYPE(results.ptr())->tp_name + ", expected " + std::to_string(count) +
                       " values");
        }
        results = py::reinterpret_steal<py::object>(parts);
    }
    if (PyTuple_GET_SIZE(results.ptr()) != static_cast<Py_ssize_t>(count)) {
        throw py::value_error(std::string("env.") + method + "() returned " +
                              std::to_string(PyTuple_GET_SIZE(results.ptr())) +
                              " values, expected " + std::to_string(count));
    }
    std::array<PyObject*, count> parts;
    for (std::size_t i = 0; i < count; ++i) {
        parts[i] = PyTuple_GET_ITEM(results.ptr(), static_cast<Py_ssize_t>(i));
    }
    return parts;
}

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

bool truth(PyObject* value, const char* name) {
    if (value == Py_True) return true;
    if (value == Py_False) return false;
    const int truth = PyObject_IsTrue(value);
    if (truth >= 0) return truth != 0;
    raise_type(std::string(name) + " is a " + Py_TYPE(value)->tp_name + ", expected a bool");
}

}  // namespace

EnvBlock::EnvBlock(const py::list& envs, std::size_t first, const py::object& frames,
                   const std::shared_ptr<Infos>& infos, const std::shared_ptr<Meter>& meter,
                   const std::string& autoreset, const std::string& keep)
    : first_(first),
      count_(envs.size()),
      obs_(frames.attr("spec").attr("observation_tree"), leaves_of(frames.attr("observations"))),
      action_(frames.attr("spec").attr("action_tree"), leaves_of(frames.attr("default_actions"))),
      meter_(meter),
      ended_(count_, false),
      seeds_(count_),
      shown_(count_),
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
    action_leaves_ = leaves_of(frames.attr("default_actions"));
    action_types_ = py::array_t<std::int32_t>(frames.attr("action_types"));
    rewards_ = py::array_t<double>(frames.attr("rewards"));
    terminated_ = py::array_t<bool>(frames.attr("terminated"));
    truncated_ = py::array_t<bool>(frames.attr("truncated"));
    has_final_ = py::array_t<std::uint8_t>(frames.attr("has_final"));
    options_versions_ = py::array_t<std::int64_t>(frames.attr("options_versions"));
    action_bytes_.clear();
    for (const py::handle array : frames.attr("actions")) {
        action_bytes_.push_back(array.cast<py::array>());
    }
    action_shapes_.clear();
    types_in_use_.clear();
    for (const py::handle array : frames.attr("default_actions")) {
        const auto values = array.cast<py::array>();
        action_shapes_.emplace_back(values.shape() + 1, values.shape() + values.ndim());
        types_in_use_.push_back(values.dtype().num());
    }
    infos_ = infos;
    autoreset_ = mode;
}

// The parent may write actions of another type than the space's, as it was given them.
void EnvBlock::use_action_types(std::uint32_t frame) {
    for (std::size_t leaf = 0; leaf < types_in_use_.size(); ++leaf) {
        const std::int32_t type = action_types_.at(frame, first_, leaf);
        if (type == types_in_use_[leaf]) continue;
        action_leaves_[leaf] = action_leaf(action_bytes_[leaf], type, action_shapes_[leaf]);
        types_in_use_[leaf] = type;
    }
}

bool EnvBlock::step_with(std::uint32_t frame, const std::optional<py::list>& actions) {
    begin(frame);
    if (!actions) use_action_types(frame);
    for_each(frame, [&](std::size_t i) {
        if (ended_[i]) {
            reset_one(frame, i, nullptr, nullptr);
            return;
        }
        const py::object action =
            actions ? py::object((*actions)[i]) : action_.load(frame, first_ + i, action_leaves_);
        step_one(frame, i, action.ptr());
    });
    return !leftovers_.empty();
}

bool EnvBlock::reset(std::uint32_t frame, const py::list& calls) {
    begin(frame);
    for_each(frame, [&](std::size_t i) {
        const py::object call = calls[i];
        if (call.is_none()) {
            if (const py::object shown = shown_[i]) store_obs(frame, i, shown.ptr());
            return;
        }
        reset_one(frame, i, py::object(call[py::int_(0)]).ptr(),
                  py::object(call[py::int_(1)]).ptr());
    });
    return !leftovers_.empty();
}

void EnvBlock::replace(const std::vector<std::uint64_t>& seeds) {
    for (std::size_t i = 0; i < count_; ++i) {
        seeds_.at(i) = py::int_(seeds.at(i));
        ended_[i] = autoreset_ == Autoreset::kNextStep;
    }
}

bool EnvBlock::restore(std::uint32_t frame) {
    begin(frame);
    for_each(frame, [&](std::size_t i) {
        if (autoreset_ == Autoreset::kSameStep) {
            reset_one(frame, i, nullptr, nullptr);
        } else {
            clear_results(frame, i);
        }
    });
    return !leftovers_.empty();
}

void EnvBlock::set_options(std::size_t i, const py::object& options, std::int64_t version) {
    options_.resize(count_);
    options_.at(i).options = options;
    options_[i].version = version;
}

py::list EnvBlock::take_leftovers() { return std::exchange(leftovers_, py::list()); }

void EnvBlock::begin(std::uint32_t frame) {
    if (frame >= static_cast<std::size_t>(rewards_.shape(0)))
        throw py::index_error("no such frame");
    if (keep_ != KeepInfos::kNone) infos_->clear(frame, first_, count_);
    std::memset(has_final_.mutable_data(frame, first_), 0, count_);
}

// Calls work(i) for env after env, and tells the meter whose turn it is. The end of one is the
// beginning of the next: a look at the clock for each.
template <class Work>
void EnvBlock::for_each(std::uint32_t frame, Work&& work) {
    std::int64_t now = now_ns();
    for (std::size_t i = 0; i < count_; ++i) {
        meter_->at(static_cast<std::int64_t>(first_ + i), now);
        began_ = now;
        doing_ = Doing::kNothing;
        guarded(i, [&] { work(i); });
        now = now_ns();
        if (doing_ == Doing::kStep) meter_->stepped(first_ + i, now - began_);
        if (doing_ == Doing::kReset) meter_->was_reset(first_ + i, now - began_);
        show_version(frame, i);
    }
    meter_->idle(now);
}

// An exception of one env does not keep the others from their step.
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
        if (error.matches(PyExc_KeyboardInterrupt)) throw;  // the user's, not the env's
        if (error.trace()) PyException_SetTraceback(error.value().ptr(), error.trace().ptr());
        leave(kError, i, error.value());
    }
}

void EnvBlock::step_one(std::uint32_t frame, std::size_t i, PyObject* action) {
    doing_ = Doing::kStep;
    PyObject* call[] = {envs_[i].ptr(), action};
    py::object results = checked(PyObject_VectorcallMethod(step_name_.ptr(), call, 2, nullptr));
    const auto [obs, reward, terminated, truncated, info] = take_apart<5>(results, "step");
    const std::size_t env = first_ + i;
    rewards_.mutable_at(frame, env) = as_reward(reward);
    const bool died = truth(terminated, "terminated");
    const bool cut = truth(truncated, "truncated");
    terminated_.mutable_at(frame, env) = died;
    truncated_.mutable_at(frame, env) = cut;
    const bool ended = died || cut;
    if (ended && autoreset_ == Autoreset::kSameStep) {
        store_final(frame, i, obs, info);
        const std::int64_t now = now_ns();
        meter_->stepped(env, now - began_);
        began_ = now;
        results = call_reset(i, nullptr, nullptr);
        const auto [first_obs, reset_info] = take_apart<2>(results, "reset");
        if (keep_ == KeepInfos::kAll) store_info(frame, i, reset_info);
        store_obs(frame, i, first_obs);
        return;
    }
    ended_[i] = ended && autoreset_ == Autoreset::kNextStep;
    if (keep_ == KeepInfos::kAll || (keep_ == KeepInfos::kFinal && ended)) {
        store_info(frame, i, info);
    }
    store_obs(frame, i, obs);
}

// Without keywords where none are given: there are envs that take none.
py::object EnvBlock::call_reset(std::size_t i, PyObject* seed, PyObject* options) {
    doing_ = Doing::kReset;
    const auto none = [](PyObject* value) { return value == nullptr || value == Py_None; };
    bool keywords = seed != nullptr || options != nullptr;
    py::object own_seed = std::exchange(seeds_[i], py::object());
    if (none(seed)) seed = own_seed ? own_seed.ptr() : Py_None;
    // A mask alone comes as an empty dict.
    const bool asked = !none(options) && !(PyDict_Check(options) && PyDict_GET_SIZE(options) == 0);
    if (!options_.empty() && !asked && options_[i].options) {
        options = options_[i].options.ptr();
        options_[i].used = options_[i].version;
    } else if (!options_.empty()) {
        options_[i].used = 0;
    }
    if (none(options)) options = Py_None;
    keywords |= !none(seed) || !none(options);
    PyObject* call[] = {envs_[i].ptr(), seed, options};
    return checked(PyObject_VectorcallMethod(reset_name_.ptr(), call, 1,
                                             keywords ? reset_keywords_.ptr() : nullptr));
}

void EnvBlock::show_version(std::uint32_t frame, std::size_t i) {
    if (!options_.empty()) options_versions_.mutable_at(frame, first_ + i) = options_[i].used;
}

void EnvBlock::clear_results(std::uint32_t frame, std::size_t i) {
    rewards_.mutable_at(frame, first_ + i) = 0;
    terminated_.mutable_at(frame, first_ + i) = false;
    truncated_.mutable_at(frame, first_ + i) = false;
}

void EnvBlock::reset_one(std::uint32_t frame, std::size_t i, PyObject* seed, PyObject* options) {
    py::object results = call_reset(i, seed, options);
    const auto [obs, info] = take_apart<2>(results, "reset");
    ended_[i] = false;
    clear_results(frame, i);
    if (keep_ == KeepInfos::kAll) store_info(frame, i, info);
    store_obs(frame, i, obs);
}

void EnvBlock::store_obs(std::uint32_t frame, std::size_t i, PyObject* obs) {
    try {
        obs_.store(frame, first_ + i, obs, &odd_, obs_leaves_);
    } catch (const py::value_error& error) {
        odd_.clear();
        throw py::value_error(std::string("observation has ") + error.what());
    } catch (...) {
        odd_.clear();
        throw;
    }
    if (!odd_.empty()) {
        py::tuple values(odd_.size());
        for (std::size_t k = 0; k < odd_.size(); ++k) values[k] = std::move(odd_[k]);
        odd_.clear();
        leave(kOddObs, i, values);
    }
    shown_[i] = py::reinterpret_borrow<py::object>(obs);
}

// The last observation of an episode lies in the frame; where that loses its type, or a part
// without fixed shape, the object itself goes through the side channel too.
void EnvBlock::store_final(std::uint32_t frame, std::size_t i, PyObject* obs, PyObject* info) {
    const bool same = obs_.store(frame, first_ + i, obs, &odd_, final_leaves_);
    odd_.clear();
    has_final_.mutable_at(frame, first_ + i) = same ? 1 : 2;
    if (!same) leave(kFinalObs, i, copied(obs));
    if (keep_ == KeepInfos::kNone) return;
    if (auto rest = infos_->store(frame, first_ + i, info, "final_info")) {
        leave(kInfo, i, copied(rest->ptr()));
    }
}

// A reset may write to the same arrays before this is sent. What cannot be copied stays as it is.
py::object EnvBlock::copied(PyObject* value) {
    try {
        return py::module_::import("copy").attr("deepcopy")(py::handle(value));
    } catch (py::error_already_set& error) {
        if (!error.matches(PyExc_Exception)) throw;
        return py::reinterpret_borrow<py::object>(value);
    }
}

void EnvBlock::store_info(std::uint32_t frame, std::size_t i, PyObject* info) {
    if (auto rest = infos_->store(frame, first_ + i, info, nullptr)) leave(kInfo, i, *rest);
}

double EnvBlock::as_reward(PyObject* value) const {
    using Npy = py::detail::npy_api;
    if (const auto number = number_of(value)) {
        return number->whole ? static_cast<double>(number->integer) : number->real;
    }
    double reward = 0;
    if (plain_array(value) && array_of(value)->nd <= 1) {
        const auto* proxy = array_of(value);
        const int type = py::detail::array_descriptor_proxy(proxy->descr)->type_num;
        if ((proxy->nd == 0 || proxy->dimensions[0] == 1) &&
            cast_elements(type, proxy->data, Npy::NPY_DOUBLE_, &reward, 1)) {
            return reward;
        }
    }
    if (PyLong_CheckExact(value)) {
        reward = PyLong_AsDouble(value);
    } else {
        const py::object as_array =
            checked(Npy::get().PyArray_FromAny_(value, nullptr, 0, 0, 0, nullptr));
        if (array_of(as_array.ptr())->nd > 1 || py::len(as_array.attr("ravel")()) != 1) {
            throw py::value_error("reward has shape " +
                                  std::string(py::str(as_array.attr("shape"))) +
                                  ", expected a number");
        }
        reward = PyFloat_AsDouble(as_array.attr("item")().ptr());
        if (reward == -1.0 && PyErr_Occurred()) {
            raise_type(std::string("reward is a ") + Py_TYPE(value)->tp_name +
                       ", expected a number");
        }
    }
    if (reward == -1.0 && PyErr_Occurred()) throw py::error_already_set();
    return reward;
}

void EnvBlock::leave(Leftover kind, std::size_t i, const py::object& object) {
    leftovers_.append(py::make_tuple(static_cast<int>(kind), first_ + i, object));
}

void register_env_block(py::module_& m) {
    Class<EnvBlock, Block> block(m, "EnvBlock");
    block
        .def(
            py::init<const py::list&, std::size_t, const py::object&, const std::shared_ptr<Infos>&,
                     const std::shared_ptr<Meter>&, const std::string&, const std::string&>(),
            py::arg("envs"), py::arg("first"), py::arg("frames"), py::arg("infos"),
            py::arg("meter"), py::arg("autoreset"), py::arg("keep"))
        .def("use", &EnvBlock::use, py::arg("frames"), py::arg("infos"), py::arg("autoreset"),
             py::arg("keep"), "Work on other frames from now on; the envs stay as they are.")
        .def("step", &EnvBlock::step_with, py::arg("frame"), py::arg("actions") = py::none(),
             "Steps every env; whether something is left that has no place in the frame.")
        .def("reset", &EnvBlock::reset, py::arg("frame"), py::arg("calls"),
             "Resets each env with its (seed, options), or leaves it as it is for None.")
        .def("replace", &EnvBlock::replace, py::arg("seeds"),
             "The envs take the place of lost ones; seeds of their next resets.")
        .def("restore", &EnvBlock::restore, py::arg("frame"),
             "Instead of the step in which the others were lost.")
        .def("set_options", &EnvBlock::set_options, py::arg("i"), py::arg("options"),
             py::arg("version"), "What env i is reset with from its next reset on.")
        .def("take_leftovers", &EnvBlock::take_leftovers,
             "What had no place in the frame: (kind, env, object) each.");
    block.attr("INFO") = static_cast<int>(EnvBlock::kInfo);
    block.attr("FINAL_OBS") = static_cast<int>(EnvBlock::kFinalObs);
    block.attr("ODD_OBS") = static_cast<int>(EnvBlock::kOddObs);
    block.attr("ERROR") = static_cast<int>(EnvBlock::kError);
}

}  // namespace pysampler::bindings
