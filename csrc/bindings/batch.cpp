#include "batch.h"

#include <algorithm>

#include "hot.h"
#include "support.h"

namespace pysampler::bindings {

Batch::Batch(const py::object& frames, const std::shared_ptr<Infos>& infos, bool copy)
    : frames_(frames),
      infos_(infos),
      copy_(copy),
      count_(frames.attr("count").cast<std::uint32_t>()),
      obs_leaves_(leaves_of(frames.attr("observations"))),
      final_leaves_(leaves_of(frames.attr("final_observations"))),
      obs_(frames.attr("spec").attr("observation_tree"), obs_leaves_),
      has_odd_(obs_.has_odd()),
      action_leaves_(leaves_of(frames.attr("default_actions"))),
      action_types_(frames.attr("action_types")),
      has_final_(frames.attr("has_final")),
      envs_(frames.attr("envs").cast<std::size_t>()),
      single_action_(py::tuple(frames.attr("spec").attr("action_tree"))[0].cast<std::string>() ==
                     "leaf") {
    for (const char* name : {"rewards", "terminated", "truncated"}) {
        results_.emplace_back(frames.attr(name).cast<py::array>());
    }
    const auto large = [this](const Leaf& leaf) { return envs_ * leaf.row_bytes() >= kLent; };
    if (!copy_ || std::none_of(obs_leaves_.begin(), obs_leaves_.end(), large)) return;
    lent_.resize(count_);
    for (std::uint32_t frame = 0; frame < count_; ++frame) {
        for (const Leaf& leaf : obs_leaves_) {
            lent_[frame].push_back(large(leaf) ? leaf.rows_to_lend(frame) : py::object());
        }
    }
}

bool Batch::held(std::uint32_t frame) const {
    return !lent_.empty() &&
           std::any_of(lent_[frame].begin(), lent_[frame].end(),
                       [](const py::object& rows) { return rows && Py_REFCNT(rows.ptr()) > 1; });
}

bool Batch::may_lend(std::uint32_t frame) const {
    for (std::uint32_t other = 0; other < count_; ++other) {
        if (other != frame && !held(other)) return true;
    }
    return false;
}

std::uint32_t Batch::next(std::uint32_t frame) const {
    for (std::uint32_t i = 1; i < count_; ++i) {
        const std::uint32_t other = (frame + i) % count_;
        if (!held(other)) return other;
    }
    return count_ == 1 || held(frame) ? (frame + 1) % count_ : frame;
}

bool Batch::write(std::uint32_t frame, const py::handle& actions) {
    if (!single_action_ || !action_leaves_[0].matches_all(actions.ptr(), envs_)) return false;
    action_types_.mutable_at(frame, 0) = action_leaves_[0].type_num();
    action_leaves_[0].store_all(frame, actions.ptr(), envs_);
    return true;
}

py::tuple Batch::read(std::uint32_t frame) const {
    auto [infos, mixed] = infos_->collect(frame);
    add_final(frame, infos);
    return py::make_tuple(observations(frame), results_[0].load_all(frame, envs_),
                          results_[1].load_all(frame, envs_), results_[2].load_all(frame, envs_),
                          infos, mixed);
}

py::object Batch::observations(std::uint32_t frame) const {
    if (has_odd_) return py::none();
    const bool lend = !lent_.empty() && may_lend(frame);
    return obs_.build([&](std::size_t i) {
        if (!copy_) return obs_leaves_[i].view_all(frame);
        if (lend && lent_[frame][i]) return obs_leaves_[i].view_of(lent_[frame][i]);
        return obs_leaves_[i].load_all(frame, envs_);
    });
}

void Batch::add_final(std::uint32_t frame, py::dict& infos) const {
    const std::uint8_t* has = has_final_.data(frame, 0);
    if (std::all_of(has, has + envs_, [](std::uint8_t one) { return one == 0; })) return;
    const auto count = static_cast<py::ssize_t>(envs_);
    py::array rows(objects_, std::vector<py::ssize_t>{count});
    auto** at = static_cast<PyObject**>(rows.mutable_data());
    py::array_t<bool> mask(count);
    for (std::size_t env = 0; env < envs_; ++env) {
        mask.mutable_at(env) = has[env] != 0;
        py::object row = has[env] == 1 ? obs_.load(frame, env, final_leaves_) : py::none();
        Py_XSETREF(at[env], row.release().ptr());
    }
    infos["final_obs"] = rows;
    infos["_final_obs"] = mask;
}

namespace {

struct Write {
    static PyObject* call(Batch& batch, PyObject* const* args, Py_ssize_t count, PyObject* names) {
        std::uint32_t frame = 0;
        if (count != 2 || names != nullptr || !small(args[0], frame)) return nullptr;
        return PyBool_FromLong(batch.write(frame, args[1]));
    }
};

struct Read {
    static PyObject* call(Batch& batch, PyObject* const* args, Py_ssize_t count, PyObject* names) {
        std::uint32_t frame = 0;
        if (count != 1 || names != nullptr || !small(args[0], frame)) return nullptr;
        return batch.read(frame).release().ptr();
    }
};

}  // namespace

void register_batch(py::module_& m) {
    py::class_<Batch> batch(m, "Batch");
    batch
        .def(py::init<const py::object&, const std::shared_ptr<Infos>&, bool>(), py::arg("frames"),
             py::arg("infos"), py::arg("copy"))
        .def("write", &Batch::write, py::arg("frame"), py::arg("actions"),
             "Whether the actions were one array of just the right kind, and lie in the frame now.")
        .def("next", &Batch::next, py::arg("frame"),
             "The frame to use after this one: the next that nobody holds.")
        .def("read", &Batch::read, py::arg("frame"),
             "Observations, rewards, terminated, truncated, infos, and keys of infos whose values "
             "do not share a dtype.")
        .def("observations", &Batch::observations, py::arg("frame"),
             "The observations of a frame, None if parts of them lie in no frame.");
    Hot<Batch, Write>::install(batch, "write");
    Hot<Batch, Read>::install(batch, "read");
}

}  // namespace pysampler::bindings
