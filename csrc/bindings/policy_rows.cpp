// Calls a policy on the rows of some envs, in turns with the block that steps them. Everything
// between two calls of the policy, or of an env, is C++.
#include <atomic>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "block.h"
#include "clock.h"
#include "leaf.h"
#include "space.h"
#include "support.h"
#include "trace.h"

namespace pysampler::bindings {
namespace {

// `data` need not be aligned.
template <class T>
bool has_nan(const void* data, std::size_t bytes) {
    const auto* at = static_cast<const std::byte*>(data);
    for (const std::byte* end = at + bytes; at != end; at += sizeof(T)) {
        T value;
        std::memcpy(&value, at, sizeof value);
        if (std::isnan(value)) return true;
    }
    return false;
}

// The rows of consecutive envs, for a policy that takes only their observations and returns
// actions, or (actions, extras).
class PolicyRows {
 public:
    // `observations`, `actions` and `extras` are arrays [frames, envs, ...]; the policy acts for
    // `count` envs from `first` on. `unusual(frame, returned)` writes results that are not of the
    // common kind, or raises an error that says what is wrong with them.
    PolicyRows(py::object policy, py::object unusual, const py::tuple& observation_tree,
               const py::list& observations, const py::array& actions, const py::dict& extras,
               std::size_t first, std::size_t count)
        : policy_(std::move(policy)),
          unusual_(std::move(unusual)),
          first_(first),
          count_(count),
          frames_(static_cast<std::size_t>(actions.shape(0))),
          observations_(leaves_of(observations)),
          tree_(observation_tree, observations_),
          actions_(actions) {
        for (const auto& [name, array] : extras) {
            extras_.emplace_back(py::reinterpret_borrow<py::object>(name),
                                 Leaf(array.cast<py::array>()));
        }
    }

    // Calls the policy with a copy of the observations in a frame; writes its extras to the same
    // frame and its actions to the next one.
    void act(std::uint32_t frame) const {
        if (frame + std::size_t{1} >= frames_) {
            throw py::index_error("cannot act at frame " + std::to_string(frame) +
                                  ": no such frame, or no next one");
        }
        const Selection rows({frame, first_, count_});
        const py::object batch =
            tree_.build([&](std::size_t i) { return observations_[i].load_all(rows); });
        const auto returned = checked(PyObject_CallOneArg(policy_.ptr(), batch.ptr()));
        if (!write(frame, returned.ptr())) unusual_(frame, returned);
    }

 private:
    // Writes arrays of the frames' types and shapes; writes nothing and returns false for anything
    // else.
    bool write(std::uint32_t frame, PyObject* returned) const {
        PyObject* actions = returned;
        std::vector<PyObject*> extras(extras_.size());
        if (!extras_.empty()) {
            if (!PyTuple_CheckExact(returned) || PyTuple_GET_SIZE(returned) != 2) return false;
            actions = PyTuple_GET_ITEM(returned, 0);
            PyObject* given = PyTuple_GET_ITEM(returned, 1);
            if (!PyDict_CheckExact(given) ||
                PyDict_GET_SIZE(given) != static_cast<Py_ssize_t>(extras_.size())) {
                return false;
            }
            for (std::size_t i = 0; i < extras_.size(); ++i) {
                const auto& [name, leaf] = extras_[i];
                extras[i] = PyDict_GetItemWithError(given, name.ptr());
                if (extras[i] == nullptr && PyErr_Occurred()) throw py::error_already_set();
                if (extras[i] == nullptr || !leaf.matches_all(extras[i], count_)) return false;
            }
        }
        if (!actions_.matches_all(actions, count_) || may_have_nan(actions)) return false;
        store(actions_, frame + 1, actions);
        for (std::size_t i = 0; i < extras_.size(); ++i) store(extras_[i].second, frame, extras[i]);
        return true;
    }

    bool may_have_nan(PyObject* actions) const {
        using Npy = py::detail::npy_api;
        const void* data = array_of(actions)->data;
        const std::size_t bytes = count_ * actions_.row_bytes();
        switch (actions_.type_num()) {
            case Npy::NPY_FLOAT_:
                return has_nan<float>(data, bytes);
            case Npy::NPY_DOUBLE_:
                return has_nan<double>(data, bytes);
            default:
                return actions_.type_num() > Npy::NPY_ULONGLONG_;  // neither bool nor whole
        }
    }

    void store(const Leaf& leaf, std::uint32_t frame, PyObject* rows) const {
        for (std::size_t i = 0; i < count_; ++i) leaf.store_row(frame, first_ + i, rows, i);
    }

    py::object policy_;
    py::object unusual_;
    std::size_t first_;
    std::size_t count_;
    std::size_t frames_;
    std::vector<Leaf> observations_;
    Space tree_;
    Leaf actions_;
    std::vector<std::pair<py::object, Leaf>> extras_;
};

std::atomic_ref<std::int64_t> cell(py::array_t<std::int64_t>& array) {
    if (array.size() != 1) throw py::value_error("cannot take turns: expected one number");
    return std::atomic_ref(*array.mutable_data());
}

// Lets a policy act and its block step from frame `begin` to `end`, until `stopped`. After each
// step with overflow, `overflow(frame)` returns whether an env raised, which ends the loop; then
// `after_step(frame)` is called, unless it is None, and `steps` increased. The policy's calls are
// traced to `given`, unless that is None. Returns the ns that the policy took.
std::int64_t take_turns(const py::object& act, const py::object& block, const py::object& overflow,
                        const py::object& after_step, std::uint32_t begin, std::uint32_t end,
                        py::array_t<std::int64_t> steps, py::array_t<std::int64_t> stopped,
                        const py::object& given) {
    auto& envs = block.cast<Block&>();
    const auto made = cell(steps), stop = cell(stopped);
    const auto track = given.is_none() ? nullptr : given.cast<std::shared_ptr<Track>>();
    std::int64_t policy_ns = 0;
    for (std::uint32_t at = begin; at < end && stop.load(std::memory_order_relaxed) == 0;) {
        const std::int64_t began = now_ns();
        act(at);
        const std::int64_t acted = now_ns();
        policy_ns += acted - began;
        if (track) track->add(TraceKind::kPolicy, 0, began, acted);
        ++at;
        if (envs.step(at) && overflow(at).cast<bool>()) break;
        if (!after_step.is_none()) after_step(at);
        // Last: a replacement of this worker finds all steps up to here in the frames. Relaxed is
        // enough after the end of a process; release keeps the compiler from moving the store up.
        made.store(made.load(std::memory_order_relaxed) + 1, std::memory_order_release);
    }
    return policy_ns;
}

}  // namespace

template <>
inline constexpr bool is_bound<PolicyRows> = true;

void register_policy_rows(py::module_& m) {
    Class<PolicyRows>(m, "PolicyRows",
                      "Lets a policy that takes only observations act for consecutive envs.")
        .def(py::init<py::object, py::object, const py::tuple&, const py::list&, const py::array&,
                      const py::dict&, std::size_t, std::size_t>(),
             py::arg("policy"), py::arg("unusual"), py::arg("observation_tree"),
             py::arg("observations"), py::arg("actions"), py::arg("extras"), py::arg("first"),
             py::arg("count"))
        .def("act", &PolicyRows::act, py::arg("frame"),
             "Call the policy with the observations in a frame, and write its results.");
    m.def("take_turns", &take_turns, py::arg("act"), py::arg("block"), py::arg("overflow"),
          py::arg("after_step"), py::arg("begin"), py::arg("end"), py::arg("steps"),
          py::arg("stopped"), py::arg("track"),
          "Let a policy act and a block step, in turns, from frame `begin` to `end`; return the ns "
          "that the policy took.");
}

}  // namespace pysampler::bindings
