// Counts the steps of a rollout and the returns of its episodes, once the rollout is in the frames.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "support.h"

namespace pysampler::bindings {
namespace {

// The elements of an array of this shape.
template <class T>
T* elements(const py::array& array, const std::vector<py::ssize_t>& shape, const char* name) {
    const bool fits =
        py::isinstance<py::array_t<T, py::array::c_style>>(array) &&
        std::equal(array.shape(), array.shape() + array.ndim(), shape.begin(), shape.end());
    if (!fits) throw py::value_error(std::string("cannot count steps: unexpected ") + name);
    return static_cast<T*>(const_cast<void*>(array.data()));
}

// Owner: the thread in the guard of the sampler.
class Tally {
 public:
    // `lost` is the value of has_final for steps in which an env was lost; from `begun` on they
    // are for steps that only reset an env, and for those that were not made.
    // `returns` has the numbers of each env side by side.
    Tally(std::vector<double> returns, std::vector<std::int64_t> lengths, std::uint8_t lost,
          std::uint8_t begun)
        : lost_(lost),
          begun_(begun),
          returns_(std::move(returns)),
          lengths_(std::move(lengths)),
          begins_(lengths_.size()),
          size_(lengths_.empty() ? 1 : returns_.size() / lengths_.size()) {
        if (size_ == 0 || returns_.size() != size_ * lengths_.size()) {
            throw py::value_error("cannot count steps: expected a return for each length");
        }
        std::ranges::transform(lengths_, begins_.begin(), [](std::int64_t n) { return n == 0; });
    }

    void begin_episodes() {
        std::ranges::fill(begins_, true);
        std::ranges::fill(returns_, 0.0);
        std::ranges::fill(lengths_, 0);
    }

    // Reads [T, N] arrays in which each env made `made` steps, and fills `starts` [T + 1, N],
    // `valid` and `lost` [T, N]. Rewards may have several numbers, [T, N, k]. Returns the episodes
    // that ended: their envs, steps, returns (k numbers each) and lengths.
    py::tuple count(const py::array& rewards, const py::array& terminated,
                    const py::array& truncated, const py::array& has_final, const py::array& made,
                    const py::array& starts, const py::array& valid, const py::array& lost) {
        const auto envs = static_cast<py::ssize_t>(lengths_.size());
        const py::ssize_t steps = rewards.ndim() >= 2 ? rewards.shape(0) : 0;
        const std::vector<py::ssize_t> shape{steps, envs};
        std::vector<py::ssize_t> of_rewards = shape;
        if (rewards.ndim() > 2) of_rewards.push_back(static_cast<py::ssize_t>(size_));
        const auto* reward = elements<double>(rewards, of_rewards, "rewards");
        // As bytes: a corrupt frame may hold any byte, a C++ bool must be 0 or 1.
        const auto* over = bytes(terminated, shape, "terminated");
        const auto* cut = bytes(truncated, shape, "truncated");
        const auto* final = elements<std::uint8_t>(has_final, shape, "has_final");
        const auto* until = elements<std::int64_t>(made, {envs}, "lengths");
        auto* start = elements<bool>(starts, {steps + 1, envs}, "starts");
        auto* is_valid = elements<bool>(valid, shape, "valid");
        auto* is_lost = elements<bool>(lost, shape, "lost");

        std::vector<Ended> ended;
        std::copy_n(begins_.begin(), envs, start);
        start += envs;  // the row of the observations after a step
        for (py::ssize_t t = 0; t < steps; ++t) {
            for (py::ssize_t env = 0; env < envs; ++env) {
                const auto at = t * envs + env;
                const auto i = static_cast<std::size_t>(env);
                const bool was_made = t < until[env];
                is_lost[at] = was_made && final[at] == lost_;
                const bool is_begun = was_made && final[at] >= begun_;
                is_valid[at] = was_made && !is_lost[at] && !is_begun;
                start[at] = is_begun || (was_made && (over[at] != 0 || cut[at] != 0));
                if (!was_made || is_begun) continue;
                double* sums = returns_.data() + i * size_;
                for (std::size_t k = 0; k < size_; ++k) {
                    sums[k] += reward[static_cast<std::size_t>(at) * size_ + k];
                }
                ++lengths_[i];
                begins_[i] = start[at];
                if (!start[at]) continue;
                if (!is_lost[at]) {
                    ended.push_back({env, t, std::vector<double>(sums, sums + size_), lengths_[i]});
                }
                std::fill_n(sums, size_, 0.0);
                lengths_[i] = 0;
            }
        }
        std::ranges::stable_sort(ended, {}, &Ended::env);
        std::vector<py::ssize_t> of_returns{static_cast<py::ssize_t>(ended.size())};
        if (rewards.ndim() > 2) of_returns.push_back(static_cast<py::ssize_t>(size_));
        py::array_t<double> returns(of_returns);
        double* to = returns.mutable_data();
        for (const Ended& one : ended) to = std::ranges::copy(one.returns, to).out;
        return py::make_tuple(column(ended, &Ended::env), column(ended, &Ended::step), returns,
                              column(ended, &Ended::length));
    }

 private:
    struct Ended {
        std::int64_t env;
        std::int64_t step;
        std::vector<double> returns;
        std::int64_t length;
    };

    static const std::uint8_t* bytes(const py::array& array, const std::vector<py::ssize_t>& shape,
                                     const char* name) {
        return reinterpret_cast<const std::uint8_t*>(elements<bool>(array, shape, name));
    }

    template <class T>
    static py::array_t<T> column(const std::vector<Ended>& ended, T Ended::* field) {
        py::array_t<T> values(static_cast<py::ssize_t>(ended.size()));
        std::ranges::transform(ended, values.mutable_data(), field);
        return values;
    }

    std::uint8_t lost_, begun_;
    std::vector<double> returns_;  // of the episode under way in each env
    std::vector<std::int64_t> lengths_;
    std::vector<std::uint8_t> begins_;  // whether the next observation begins an episode
    std::size_t size_;                  // numbers of a reward
};

}  // namespace

template <>
inline constexpr bool is_bound<Tally> = true;

void register_tally(py::module_& m) {
    Class<Tally>(m, "Tally", "Counts the steps and returns of episodes across rollouts.")
        .def(py::init<std::vector<double>, std::vector<std::int64_t>, std::uint8_t, std::uint8_t>(),
             py::arg("returns"), py::arg("lengths"), py::arg("lost"), py::arg("begun"))
        .def("begin_episodes", &Tally::begin_episodes,
             "Begin an episode in every env, since all were reset.")
        .def("count", &Tally::count, py::arg("rewards"), py::arg("terminated"),
             py::arg("truncated"), py::arg("has_final"), py::arg("made"), py::arg("starts"),
             py::arg("valid"), py::arg("lost"),
             "Count the first `made` steps of each env, and fill `starts`, `valid` and `lost`; "
             "return the envs, steps, returns and lengths of the episodes that ended.");
}

}  // namespace pysampler::bindings
