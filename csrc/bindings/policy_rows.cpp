// The rows that a policy reads and writes, and its turns with the block that steps the envs.
#include <pybind11/critical_section.h>

#include <atomic>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <tuple>
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

// Rows of the frames that a policy reads and writes: observations in one frame, extras in the same,
// actions in the next.
// Owner: none needed, it does not change. Rows belong to the thread of the policy.
class PolicyRows {
 public:
    // `observations`, `actions` and `extras` are arrays [frames, envs, ...].
    PolicyRows(const py::tuple& observation_tree, const py::list& observations,
               const py::array& actions, const py::dict& extras)
        : frames_(static_cast<std::size_t>(actions.shape(0))),
          envs_(static_cast<std::size_t>(actions.shape(1))),
          observations_(leaves_of(observations)),
          tree_(observation_tree, observations_),
          actions_(actions) {
        for (const auto& [name, array] : extras) {
            extras_.emplace_back(py::reinterpret_borrow<py::object>(name),
                                 Leaf(array.cast<py::array>()));
        }
    }

    // A copy of the observations of some spans: each a frame, the first env, and how many envs.
    py::object load(const py::list& spans) const {
        const Selection rows = selected(spans);
        return tree_.build([&](std::size_t i) { return observations_[i].load_all(rows); });
    }

    // Writes actions, or (actions, extras), if they are arrays of the frames' types and shapes;
    // writes nothing and returns false for anything else.
    bool store(const py::list& spans, const py::object& outputs) const {
        const Selection rows = selected(spans);
        PyObject* actions = outputs.ptr();
        std::vector<py::object> extras(extras_.size());
        if (!extras_.empty()) {
            if (!PyTuple_CheckExact(actions) || PyTuple_GET_SIZE(actions) != 2) return false;
            PyObject* given = PyTuple_GET_ITEM(actions, 1);
            actions = PyTuple_GET_ITEM(actions, 0);
            if (!PyDict_CheckExact(given) ||
                PyDict_GET_SIZE(given) != static_cast<Py_ssize_t>(extras_.size())) {
                return false;
            }
            for (std::size_t i = 0; i < extras_.size(); ++i) {
                const auto& [name, leaf] = extras_[i];
                extras[i] = item_of(given, name);
                if (!extras[i] || !leaf.matches_all(extras[i].ptr(), rows.envs())) return false;
            }
        }
        if (!actions_.matches_all(actions, rows.envs()) || may_have_nan(actions, rows.envs())) {
            return false;
        }
        std::size_t row = 0;
        for (const Rows& span : rows) {
            for (std::size_t i = 0; i < span.count; ++i, ++row) {
                actions_.store_row(span.frame + 1, span.first + i, actions, row);
                for (std::size_t k = 0; k < extras_.size(); ++k) {
                    extras_[k].second.store_row(span.frame, span.first + i, extras[k].ptr(), row);
                }
            }
        }
        return true;
    }

 private:
    // A reference to the value, which another thread may remove from the dict; null if it has none.
    static py::object item_of(PyObject* dict, const py::object& key) {
        const py::scoped_critical_section alone{py::handle(dict)};
        PyObject* const item = PyDict_GetItemWithError(dict, key.ptr());
        if (item == nullptr && PyErr_Occurred()) throw py::error_already_set();
        return py::reinterpret_borrow<py::object>(item);
    }

    Selection selected(const py::list& spans) const {
        Selection rows;
        for (const py::handle span : spans) {
            const auto [frame, first, count] =
                span.cast<std::tuple<std::uint32_t, std::size_t, std::size_t>>();
            if (frame + std::size_t{1} >= frames_) {
                throw py::index_error("cannot act at frame " + std::to_string(frame) +
                                      ": no such frame, or no next one");
            }
            if (first > envs_ || count > envs_ - first) {
                throw py::index_error("cannot act for " + std::to_string(count) + " envs from " +
                                      std::to_string(first) + ": there are " +
                                      std::to_string(envs_));
            }
            rows.add({frame, first, count});
        }
        return rows;
    }

    bool may_have_nan(PyObject* actions, std::size_t envs) const {
        const void* data = array_of(actions)->data;
        const std::size_t bytes = envs * actions_.row_bytes();
        switch (actions_.type_num()) {
            case py::detail::npy_api::NPY_FLOAT_:
                return has_nan<float>(data, bytes);
            case py::detail::npy_api::NPY_DOUBLE_:
                return has_nan<double>(data, bytes);
            default:
                return actions_.type_num() >
                       py::detail::npy_api::NPY_ULONGLONG_;  // neither bool nor whole
        }
    }

    std::size_t frames_;
    std::size_t envs_;
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
        call_in_worker(act, at);
        const std::int64_t acted = now_ns();
        policy_ns += acted - began;
        if (track) track->add(TraceKind::kPolicy, 0, began, acted);
        ++at;
        if (envs.step(at) && call_in_worker(overflow, at).cast<bool>()) break;
        if (!after_step.is_none()) call_in_worker(after_step, at);
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
                      "The rows of frames that a policy reads and writes, for some spans: each a "
                      "frame, the first env, and how many envs.")
        .def(py::init<const py::tuple&, const py::list&, const py::array&, const py::dict&>(),
             py::arg("observation_tree"), py::arg("observations"), py::arg("actions"),
             py::arg("extras"))
        .def("load", &PolicyRows::load, py::arg("spans"),
             "Return a copy of the observations of some spans.")
        .def("store", &PolicyRows::store, py::arg("spans"), py::arg("outputs"),
             "Write a policy's outputs for some spans; return False, and write nothing, unless "
             "they are arrays of the frames' types and shapes.");
    m.def("take_turns", &take_turns, py::arg("act"), py::arg("block"), py::arg("overflow"),
          py::arg("after_step"), py::arg("begin"), py::arg("end"), py::arg("steps"),
          py::arg("stopped"), py::arg("track"),
          "Let a policy act and a block step, in turns, from frame `begin` to `end`; return the ns "
          "that the policy took.");
}

}  // namespace pysampler::bindings
