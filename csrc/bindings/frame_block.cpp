#include "frame_block.h"

#include <algorithm>
#include <utility>

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

FrameBlock::FrameBlock(std::size_t count, std::size_t first, const std::shared_ptr<Meter>& meter,
                       bool is_inline)
    : inline_(is_inline),
      first_(first),
      count_(count),
      meter_(meter),
      ended_(count),
      resting_(count),
      fresh_(count),
      used_(static_cast<py::ssize_t>(count)) {
    std::fill_n(used_.mutable_data(), count, 0);
}

void FrameBlock::use(const py::object& frames, const std::shared_ptr<Infos>& infos,
                     const std::string& autoreset, const std::string& keep) {
    autoreset_ = autoreset_of(autoreset);
    keep_ = keep_of(keep);
    infos_ = infos;
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
    resting_.fill(false);
}

std::size_t FrameBlock::checked_env(std::size_t i) const {
    if (i < count_) return i;
    throw py::index_error("env " + std::to_string(i) + " is not in a block of " +
                          std::to_string(count_));
}

// The parent writes actions of another type than the space's if the user passed such actions.
void FrameBlock::use_action_types(std::uint32_t frame) {
    for (std::size_t leaf = 0; leaf < types_in_use_.size(); ++leaf) {
        const std::int32_t type = action_types_.at(frame, first_, leaf);
        if (type == types_in_use_[leaf]) continue;
        action_leaves_[leaf] = type == space_leaves_[leaf].type_num()
                                   ? space_leaves_[leaf]
                                   : action_leaf(action_bytes_[leaf], type, action_shapes_[leaf]);
        types_in_use_[leaf] = type;
    }
}

void FrameBlock::replace(const std::vector<std::optional<std::uint64_t>>& seeds,
                         const std::vector<bool>& over) {
    for (std::size_t i = 0; i < count_; ++i) {
        if (const auto& seed = seeds.at(i)) seeds_[py::int_(i)] = py::int_(*seed);
        const bool is_over = !over.empty() && over.at(i) && autoreset_ != Autoreset::kSameStep;
        ended_[i] = is_over && autoreset_ == Autoreset::kNextStep;
        fresh_[i] = !is_over;
    }
}

void FrameBlock::set_options(std::size_t i, const py::object& options, std::int64_t version) {
    options_[py::int_(checked_env(i))] = py::make_tuple(options, version);
}

py::object FrameBlock::options_of(std::size_t i, PyObject* given) {
    // An empty dict here held only a mask of envs: it requests no options.
    const bool requested = given != nullptr && given != Py_None &&
                           !(PyDict_Check(given) && PyDict_GET_SIZE(given) == 0);
    if (!options_.empty()) {
        used_.mutable_at(i) = 0;
        const py::int_ env(i);
        if (!requested && options_.contains(env)) {
            const py::tuple own = options_[env];
            used_.mutable_at(i) = own[1].cast<std::int64_t>();
            return own[0];
        }
    }
    return py::reinterpret_borrow<py::object>(given == nullptr ? Py_None : given);
}

void FrameBlock::begin(std::uint32_t frame) {
    if (frame >= static_cast<std::size_t>(rewards_.shape(0)))
        throw py::index_error("cannot use frame " + std::to_string(frame) + ": no such frame");
    if (!in_chunk_) overflow_ = py::list();
    failed_ = false;
    if (keep_ != KeepInfos::kNone) infos_->clear(frame, first_, count_);
    std::memset(has_final_.mutable_data(frame, first_), 0, count_);
}

py::list FrameBlock::take_overflow() { return std::exchange(overflow_, py::list()); }

void FrameBlock::leave(OverflowKind kind, std::size_t i, const py::object& object) {
    const int number = static_cast<int>(kind);
    if (in_chunk_) {
        overflow_.append(py::make_tuple(number, first_ + i, object, step_));
    } else {
        overflow_.append(py::make_tuple(number, first_ + i, object));
    }
}

// A copy, since a reset, or the next step of a chunk, may write to the same arrays before they are
// sent; the object itself if it cannot be copied.
py::object FrameBlock::copied(PyObject* value) {
    try {
        return py::module_::import("copy").attr("deepcopy")(py::handle(value));
    } catch (py::error_already_set& error) {
        if (!error.matches(PyExc_Exception)) throw;
        return py::reinterpret_borrow<py::object>(value);
    }
}

void FrameBlock::mark_lost(std::uint32_t frame, std::size_t i) {
    fresh_[i] = false;
    has_final_.mutable_at(frame, first_ + i) = kLost;
    leave(kLostEnv, i, py::none());
}

void FrameBlock::write_lost(std::uint32_t frame, std::size_t i) {
    mark_lost(frame, i);
    clear_results(frame, i);
    truncated_.mutable_at(frame, first_ + i) = true;
    ended_[i] = autoreset_ == Autoreset::kNextStep;
}

// A reset leaves env i unchanged.
void FrameBlock::write_left_out(std::uint32_t frame, std::size_t i) {
    terminated_.mutable_at(frame, first_ + i) = ended_[i];
    truncated_.mutable_at(frame, first_ + i) = false;
}

void FrameBlock::clear_results(std::uint32_t frame, std::size_t i) {
    std::fill_n(rewards_.mutable_data(frame, first_ + i), std::max<std::size_t>(1, reward_size_),
                0.0);
    terminated_.mutable_at(frame, first_ + i) = false;
    truncated_.mutable_at(frame, first_ + i) = false;
}

// Whether an exception comes from the user, such as Ctrl-C, rather than from an env.
bool FrameBlock::is_users(const py::error_already_set& error) const {
    if (error.matches(PyExc_KeyboardInterrupt)) return true;
    return inline_ && !error.matches(PyExc_Exception) && !error.matches(PyExc_SystemExit) &&
           !error.matches(PyExc_GeneratorExit);
}

void register_frame_block(py::module_& m) {
    Class<FrameBlock, Block> block(m, "FrameBlock");
    block
        .def("use", &FrameBlock::use, py::arg("frames"), py::arg("infos"), py::arg("autoreset"),
             py::arg("keep"), "Use these frames from now on; the envs stay unchanged.")
        .def("step", &FrameBlock::step_with, py::arg("frame"), py::arg("actions") = py::none(),
             "Step every env with the actions in the frame or these; return whether there is "
             "overflow.")
        .def("step_chunk", &FrameBlock::step_chunk, py::arg("frame"), py::arg("steps"),
             py::arg("last"),
             "Let every env make several steps, from the frame on, until its episode ends; with "
             "`last`, only its last results are read, and all rewards.")
        .def("reset", &FrameBlock::reset, py::arg("frame"), py::arg("calls"),
             "Reset each env with its (seed, options), or leave it unchanged if that is None and "
             "it is not fresh; return whether there is overflow.")
        .def("replace", &FrameBlock::replace, py::arg("seeds"), py::arg("over"),
             "Let the envs replace others, of which some had ended their episodes: their next "
             "resets use these seeds.")
        .def("set_options", &FrameBlock::set_options, py::arg("i"), py::arg("options"),
             py::arg("version"), "Use these options for env i from its next reset on.")
        .def("set_ended", &FrameBlock::set_ended, py::arg("i"), py::arg("ended"),
             "Set whether the next step resets env i, which is not fresh any more.")
        .def("is_fresh", &FrameBlock::is_fresh, py::arg("i"), "Whether env i has yet to begin.")
        .def("rest", &FrameBlock::rest, py::arg("i"), "Let steps leave env i alone until a reset.")
        .def("stop", &FrameBlock::stop,
             "End the interrupted call as soon as its env returns; for signal handlers.")
        .def("peek_overflow", &FrameBlock::peek_overflow,
             "Return the overflow, like take_overflow(), without forgetting it.")
        .def("take_overflow", &FrameBlock::take_overflow,
             "Return and forget the results that did not fit: (kind, env, object) tuples, with "
             "the step after a chunk.")
        .def_property_readonly("first", &FrameBlock::first, "The index of the first env.")
        .def_property_readonly("count", &FrameBlock::count, "The number of envs.")
        .def_property_readonly("fresh", &FrameBlock::fresh,
                               "Whether an env has not begun since it replaced another.")
        .def_property_readonly("failed", &FrameBlock::failed,
                               "Whether the last call raised before it had written all results.")
        .def_property_readonly("seeds", &FrameBlock::seeds,
                               "By env, the seeds that replace() set and no reset has used.")
        .def_property_readonly("options", &FrameBlock::options,
                               "By env, the options of its later resets and their version.")
        .def_property_readonly(
            "ended", [](const FrameBlock& self) { return self.ended().array(); },
            "Whether the next step resets each env.")
        .def_property_readonly(
            "resting", [](const FrameBlock& self) { return self.resting().array(); },
            "Whether steps leave each env alone.")
        .def_property_readonly("used", &FrameBlock::used, "By env, the version of its options.")
        .def_readwrite("double_rewards", &FrameBlock::double_rewards,
                       "Which envs' last rewards were NumPy's float64; True: those of all.");
    block.attr("INFO") = static_cast<int>(FrameBlock::kInfo);
    block.attr("FINAL_OBS") = static_cast<int>(FrameBlock::kFinalObs);
    block.attr("UNSHAPED_OBS") = static_cast<int>(FrameBlock::kUnshapedObs);
    block.attr("ERROR") = static_cast<int>(FrameBlock::kError);
    block.attr("UNLIKE") = static_cast<int>(FrameBlock::kUnlike);
    block.attr("LOST") = static_cast<int>(FrameBlock::kLostEnv);
    block.attr("UNSEEN") = static_cast<int>(FrameBlock::kUnseen);
    block.attr("NO_RESULTS") = static_cast<int>(FrameBlock::kNoResults);
}

}  // namespace pysampler::bindings
