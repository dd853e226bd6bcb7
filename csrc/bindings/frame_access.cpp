#include "frame_access.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "hot.h"
#include "support.h"

namespace pysampler::bindings {
namespace {

bool is_final(std::uint8_t has) { return has != 0 && has <= kFinalByMail; }

}  // namespace

FrameAccess::FrameAccess(const py::object& frames, const std::shared_ptr<Infos>& infos, bool copy,
                         Groups groups, std::uint32_t spare)
    : infos_(infos),
      copy_(copy),
      count_(frames.attr("count").cast<std::uint32_t>()),
      ring_(frames.attr("ring").cast<std::uint32_t>()),
      obs_leaves_(leaves_of(frames.attr("observations"))),
      final_leaves_(leaves_of(frames.attr("final_observations"))),
      obs_(frames.attr("spec").attr("observation_tree"), obs_leaves_),
      has_unshaped_(obs_.has_unshaped()),
      action_leaves_(leaves_of(frames.attr("actions"))),
      action_types_(frames.attr("action_types")),
      has_final_(frames.attr("has_final")),
      envs_(frames.attr("envs").cast<std::size_t>()),
      single_action_(py::tuple(frames.attr("spec").attr("action_tree"))[0].cast<std::string>() ==
                     "leaf"),
      groups_(std::move(groups)),
      group_of_(envs_),
      frame_of_(groups_.size()),
      seen_(groups_.size()),
      spare_(spare) {
    for (std::uint32_t group = 0; group < groups_.size(); ++group) {
        const auto [first, count] = groups_[group];
        for (std::size_t env = first; env < first + count; ++env) group_of_.at(env) = group;
    }
    if (single_action_) {
        const auto bytes = py::list(frames.attr("other_actions"))[0].cast<py::array>();
        const auto actions = py::list(frames.attr("actions"))[0].cast<py::array>();
        const std::vector<py::ssize_t> shape(actions.shape() + 2, actions.shape() + actions.ndim());
        for (const int type : {py::detail::npy_api::NPY_INT64_, py::detail::npy_api::NPY_DOUBLE_}) {
            python_actions_.push_back(action_leaf(bytes, kPythonNumbers + type, shape));
        }
    }
    for (const char* name : {"rewards", "terminated", "truncated", "options_versions"}) {
        results_.emplace_back(frames.attr(name).cast<py::array>());
    }
    const auto large = [this](const Leaf& leaf) { return envs_ * leaf.row_bytes() >= kMinLent; };
    if (!copy_ || std::none_of(obs_leaves_.begin(), obs_leaves_.end(), large)) return;
    lent_.resize(ring_);
    for (std::uint32_t frame = 0; frame < ring_; ++frame) {
        for (const Leaf& leaf : obs_leaves_) {
            lent_[frame].emplace_back();
            if (large(leaf)) lent_[frame].back().emplace(leaf.view_all(frame));
        }
    }
}

void FrameAccess::check_frame(std::uint32_t frame) const {
    if (frame >= count_)
        throw py::index_error("cannot use frame " + std::to_string(frame) + ": no such frame");
}

bool FrameAccess::held(std::uint32_t frame) const {
    return frame < lent_.size() &&
           std::ranges::any_of(lent_[frame], [](const auto& rows) { return rows && rows->held(); });
}

bool FrameAccess::may_lend(std::uint32_t frame) const {
    std::uint32_t free = 0;
    for (std::uint32_t other = 0; other < ring_; ++other) {
        if (other != frame && !held(other)) ++free;
    }
    return free >= spare_;
}

std::uint32_t FrameAccess::after(std::uint32_t frame) const {
    for (std::uint32_t i = 1; i < ring_; ++i) {
        const std::uint32_t other = (frame + i) % ring_;
        if (!held(other)) return other;
    }
    return ring_ == 1 || held(frame) ? (frame + 1) % ring_ : frame;
}

std::uint32_t FrameAccess::next() const {
    std::uint32_t frame = frame_;
    for (std::uint32_t i = 0; i < ring_; ++i) {
        frame = after(frame);
        if (std::ranges::find(seen_, frame) == seen_.end()) break;
    }
    return frame;
}

std::uint32_t FrameAccess::use(std::uint32_t frame) {
    const std::uint32_t other = after(frame);
    if (other != frame && !held(other) && std::ranges::find(seen_, frame) != seen_.end()) {
        for (std::size_t env = 0; env < envs_; ++env) {
            if (seen_[group_of_[env]] == frame) copy_seen(env, frame, other);
        }
        std::ranges::replace(seen_, frame, other);
    }
    return frame_ = frame;
}

FrameAccess::GroupFrames FrameAccess::start(const std::vector<std::uint32_t>& groups) {
    GroupFrames group_frames;
    for (const std::uint32_t group : groups) {
        frame_of_.at(group) = after(seen_[group]);
        group_frames.emplace_back(group, frame_of_[group]);
    }
    return group_frames;
}

void FrameAccess::mark_seen(const std::vector<std::uint32_t>& groups) {
    for (const std::uint32_t group : groups) seen_.at(group) = frame_of_.at(group);
}

bool FrameAccess::write(std::uint32_t frame, const py::handle& actions) {
    check_frame(frame);
    if (!single_action_) return false;
    const Leaf& leaf = action_leaves_[0];
    std::optional<std::int32_t> type;
    if (leaf.matches_all(actions.ptr(), envs_)) {
        leaf.store_all(frame, actions.ptr(), envs_);
        type = leaf.type_num();
    } else {
        type = write_list(actions.ptr(), envs_, [&](std::size_t i) { return std::pair(frame, i); });
    }
    for (std::uint32_t group = 0; type && group < groups_.size(); ++group) {
        mark(frame, group, *type);
    }
    return type.has_value();
}

template <class Row>
std::optional<std::int32_t> FrameAccess::write_list(PyObject* actions, std::size_t count,
                                                    Row&& row) const {
    if (!(PyList_CheckExact(actions) || PyTuple_CheckExact(actions)) || count == 0 ||
        PySequence_Fast_GET_SIZE(actions) != static_cast<Py_ssize_t>(count)) {
        return std::nullopt;
    }
    const auto all = [&](auto&& store) {
        for (std::size_t i = 0; i < count; ++i) {
            const auto [frame, env] = row(i);
            const py::object item = item_of(actions, static_cast<Py_ssize_t>(i));
            if (!item || !store(frame, env, item.ptr())) return false;
        }
        return true;
    };
    const Leaf& leaf = action_leaves_[0];
    if (all([&](std::uint32_t frame, std::size_t env, PyObject* item) {
            return leaf.store_same(frame, env, item);
        })) {
        return leaf.type_num();
    }
    for (const Leaf& python : python_actions_) {
        if (all([&](std::uint32_t frame, std::size_t env, PyObject* item) {
                return python.store_python(frame, env, item);
            })) {
            return python.type_num() + kPythonNumbers;
        }
    }
    return std::nullopt;
}

std::vector<std::uint32_t> FrameAccess::groups_of(const py::array_t<std::int64_t>& envs) {
    if (envs.ndim() != 1) throw py::value_error("env_ids is not a list of indices");
    chosen_.clear();
    std::vector<std::uint32_t> groups;
    std::vector<std::size_t> seen(groups_.size());
    std::vector<bool> taken(envs_);
    for (py::ssize_t i = 0; i < envs.shape(0); ++i) {
        const std::int64_t env = envs.at(i);
        if (env < 0 || static_cast<std::size_t>(env) >= envs_) {
            throw py::index_error("env " + std::to_string(env) + ", expected 0 to " +
                                  std::to_string(envs_ - 1));
        }
        const auto at = static_cast<std::size_t>(env);
        if (taken[at]) throw py::value_error("env " + std::to_string(env) + " twice");
        taken[at] = true;
        chosen_.push_back(at);
        if (seen[group_of_[at]]++ == 0) groups.push_back(group_of_[at]);
    }
    for (const std::uint32_t group : groups) {
        const auto [first, count] = groups_[group];
        if (seen[group] == count) continue;
        throw py::value_error(
            std::to_string(seen[group]) + " envs of the group of envs " + std::to_string(first) +
            " to " + std::to_string(first + count - 1) +
            ", expected all: the envs of a group step together; pass more groups to make them "
            "smaller");
    }
    return groups;
}

bool FrameAccess::write_some(const GroupFrames& group_frames, const py::handle& actions) {
    if (!single_action_) return false;
    for (const auto& [group, frame] : group_frames) {
        check_frame(frame);
        frame_of_.at(group) = frame;
    }
    const auto row = [&](std::size_t i) {
        return std::pair(frame_of_[group_of_[chosen_[i]]], chosen_[i]);
    };
    const Leaf& leaf = action_leaves_[0];
    std::optional<std::int32_t> type;
    if (leaf.matches_all(actions.ptr(), chosen_.size())) {
        for (std::size_t i = 0; i < chosen_.size(); ++i) {
            const auto [frame, env] = row(i);
            leaf.store_row(frame, env, actions.ptr(), i);
        }
        type = leaf.type_num();
    } else {
        type = write_list(actions.ptr(), chosen_.size(), row);
    }
    for (const auto& [group, frame] : group_frames) {
        if (type) mark(frame, group, *type);
    }
    return type.has_value();
}

py::tuple FrameAccess::read(std::uint32_t frame) const {
    check_frame(frame);
    return results(observations(frame), Selection({frame, 0, envs_}));
}

py::tuple FrameAccess::read_some(const GroupFrames& group_frames) const {
    Selection batch;
    for (const auto& [group, frame] : group_frames) {
        check_frame(frame);
        const auto [first, count] = groups_.at(group);
        batch.add({frame, first, count});
    }
    return results(observations(batch), batch);
}

py::tuple FrameAccess::read_chunks(const Chunks& chunks) const {
    std::size_t total = 0;
    for (const auto& [group, frame, steps] : chunks) {
        if (steps == 0) throw py::value_error("cannot read a chunk of no steps");
        check_frame(frame + steps - 1);
        total += groups_.at(group).second;
    }
    py::array_t<std::int64_t> ends(static_cast<py::ssize_t>(total));
    py::array_t<std::int64_t> taken(static_cast<py::ssize_t>(total));
    std::int64_t* end = ends.mutable_data();
    std::int64_t* took = taken.mutable_data();
    Selection batch;
    for (const auto& [group, frame, steps] : chunks) {
        const auto [first, count] = groups_[group];
        std::uint32_t run_frame = frame;
        std::size_t run_first = first;
        for (std::size_t env = first; env < first + count; ++env, ++end, ++took) {
            std::uint32_t last = frame + steps - 1;
            while (last > frame && has_final_.at(last, env) == kSkipped) --last;
            *end = last;
            *took = has_final_.at(frame, env) == kBegun ? 0 : last - frame + 1;
            if (env > run_first && last != run_frame) {
                batch.add({run_frame, run_first, env - run_first});
                run_first = env;
            }
            run_frame = last;
        }
        batch.add({run_frame, run_first, first + count - run_first});
    }
    auto [infos, mixed] = infos_->collect(batch);
    add_final(batch, infos);
    return py::make_tuple(observations(batch), results_[1].load_all(batch),
                          results_[2].load_all(batch), infos, mixed, ends, taken);
}

bool FrameAccess::write_chunk(std::uint32_t steps, const py::handle& actions) {
    if (!single_action_ || steps > count_ - ring_) return false;
    const Leaf& leaf = action_leaves_[0];
    if (!leaf.matches_chunk(actions.ptr(), envs_, steps)) return false;
    for (std::uint32_t k = 0; k < steps; ++k) {
        for (std::size_t env = 0; env < envs_; ++env) {
            leaf.store_row(ring_ + k, env, actions.ptr(), env * steps + k);
        }
        for (std::uint32_t group = 0; group < groups_.size(); ++group) {
            mark(ring_ + k, group, leaf.type_num());
        }
    }
    return true;
}

py::tuple FrameAccess::read_chunk(std::uint32_t steps) {
    Chunks chunks;
    for (std::uint32_t group = 0; group < groups_.size(); ++group) {
        chunks.emplace_back(group, ring_, steps);
    }
    const py::tuple read = read_chunks(chunks);
    auto infos = read[3].cast<py::dict>();
    infos["steps"] = read[6];
    py::array_t<bool> mask(static_cast<py::ssize_t>(envs_));
    std::fill_n(mask.mutable_data(), envs_, true);
    infos["_steps"] = mask;
    note_seen(read[5].cast<py::array_t<std::int64_t>>().data());
    return py::make_tuple(read[0], results_[0].load_chunk(ring_, steps), read[1], read[2], infos,
                          read[4]);
}

// If an env raises or a worker is replaced next, its last results must be in a frame of steps.
void FrameAccess::note_seen(const std::int64_t* ends) {
    std::vector<std::uint32_t> all(groups_.size());
    std::iota(all.begin(), all.end(), 0U);
    start(all);
    for (std::size_t env = 0; env < envs_; ++env) {
        copy_seen(env, static_cast<std::uint32_t>(ends[env]), frame_of_[group_of_[env]]);
    }
    mark_seen(all);
}

// Copies what the caller saw of an env, except its reward, from one frame to another.
void FrameAccess::copy_seen(std::size_t env, std::uint32_t from, std::uint32_t to) const {
    const auto copy = [&](const Leaf& leaf) {
        std::memcpy(leaf.row(to, env), leaf.row(from, env), leaf.row_bytes());
    };
    std::ranges::for_each(obs_leaves_, copy);
    std::for_each(results_.begin() + 1, results_.end(), copy);
}

py::tuple FrameAccess::results(const py::object& observations, const Selection& batch) const {
    auto [infos, mixed] = infos_->collect(batch);
    add_final(batch, infos);
    return py::make_tuple(observations, results_[0].load_all(batch), results_[1].load_all(batch),
                          results_[2].load_all(batch), infos, mixed);
}

py::object FrameAccess::observations(const Selection& batch) const {
    if (has_unshaped_) return py::none();
    return obs_.build([&](std::size_t i) { return obs_leaves_[i].load_all(batch); });
}

py::object FrameAccess::observations(std::uint32_t frame) const {
    if (has_unshaped_) return py::none();
    const bool lend = frame < lent_.size() && may_lend(frame);
    return obs_.build([&](std::size_t i) {
        if (!copy_) return py::object(obs_leaves_[i].view_all(frame));
        if (lend && lent_[frame][i]) return lent_[frame][i]->view();
        return obs_leaves_[i].load_all(Selection({frame, 0, envs_}));
    });
}

void FrameAccess::add_final(const Selection& batch, py::dict& infos) const {
    if (std::none_of(batch.begin(), batch.end(), [this](const Rows& rows) {
            const std::uint8_t* has = has_final_.data(rows.frame, rows.first);
            return std::any_of(has, has + rows.count, is_final);
        })) {
        return;
    }
    const auto size = static_cast<py::ssize_t>(batch.envs());
    py::array objects(objects_, std::vector<py::ssize_t>{size});
    auto** to = static_cast<PyObject**>(objects.mutable_data());
    py::array_t<bool> mask(size);
    py::ssize_t at = 0;
    for (const auto& [frame, first, count] : batch) {
        for (std::size_t env = first; env < first + count; ++env, ++at) {
            const std::uint8_t has = has_final_.at(frame, env);
            mask.mutable_at(at) = is_final(has);
            py::object row = has == 1 ? obs_.load(frame, env, final_leaves_) : py::none();
            Py_XSETREF(to[at], row.release().ptr());
        }
    }
    infos["final_obs"] = objects;
    infos["_final_obs"] = mask;
}

namespace {

struct Write {
    static PyObject* call(FrameAccess& access, PyObject* const* args, Py_ssize_t count,
                          PyObject* names) {
        std::uint32_t frame = 0;
        if (count != 2 || names != nullptr || !small(args[0], frame)) return nullptr;
        return PyBool_FromLong(access.write(frame, args[1]));
    }
};

}  // namespace

void register_frame_access(py::module_& m) {
    Class<FrameAccess> access(m, "FrameAccess");
    access
        .def(py::init<const py::object&, const std::shared_ptr<Infos>&, bool, FrameAccess::Groups,
                      std::uint32_t>(),
             py::arg("frames"), py::arg("infos"), py::arg("copy"), py::arg("groups"),
             py::arg("spare"))
        .def("write", &FrameAccess::write, py::arg("frame"), py::arg("actions"),
             "Write actions of a common kind to the frame; return False for any other kind.")
        .def_property_readonly("frame", &FrameAccess::frame, "The frame that all envs use.")
        .def("next_frame", &FrameAccess::next_frame,
             "Choose and return the frame that all envs use next.")
        .def("frame_of", &FrameAccess::frame_of, py::arg("group"), "The frame that a group uses.")
        .def("start", &FrameAccess::start, py::arg("groups"),
             "Choose the frame that each of these groups uses next; return (group, frame) pairs.")
        .def("seen", &FrameAccess::seen, py::arg("group"),
             "The frame in which the caller last saw a group.")
        .def("read", &FrameAccess::read, py::arg("frame"),
             "Return observations, rewards, terminated, truncated, infos, and the keys of infos "
             "whose values do not share a dtype.")
        .def("groups_of", &FrameAccess::groups_of, py::arg("envs"),
             "Return the groups of these envs, which must be whole groups.")
        .def("write_some", &FrameAccess::write_some, py::arg("group_frames"), py::arg("actions"),
             "Write actions of a common kind, one row for each env last passed to groups_of(), "
             "whose groups these are; return False for any other kind.")
        .def("read_chunks", &FrameAccess::read_chunks, py::arg("chunks"),
             "Read the last results of each env after chunks of some groups, given as (group, "
             "first frame, steps): observations, terminated, truncated, infos, mixed keys as in "
             "read(), the frames of these results, and how many actions each env took.")
        .def("read_some", &FrameAccess::read_some, py::arg("group_frames"),
             "Like read(), for these groups and their frames, in this order.");
    Hot<FrameAccess, Write>::install(access, "write");
    Hot<FrameAccess, OfNumber<&FrameAccess::read>>::install(access, "read");
}

}  // namespace pysampler::bindings
