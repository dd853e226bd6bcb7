// gymnasium's envs of classic control, many at once: the arithmetic of its source, statement by
// statement, in the types that it has there, so that results are equal bit for bit. Sines and
// cosines are NumPy's, of all envs in one call, since NumPy rounds otherwise than the C library.
//
// The states are arrays of a BatchEnv of pysampler/envs/classic.py, a row for each env.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "leaf.h"
#include "support.h"

namespace pysampler::bindings {

// The number that a generator of NumPy draws from `low` to `low` + `range`.
double drawn(py::handle generator, double low, double range);

// Owner: that of the block which steps with it, or the program that steps the BatchEnv.
class Classic {
 public:
    using Rows = std::vector<std::size_t>;

    // `state` is [envs, numbers]. A reset sets `phase` to 0; each class says what else it means.
    // Resets draw the first numbers of a state between these bounds.
    Classic(const py::array_t<double>& state, const py::array_t<std::int64_t>& phase,
            const std::vector<double>& low, const std::vector<double>& high, std::size_t observed);
    virtual ~Classic() = default;

    // Whether all of these actions are valid, of a type that step() can take. `python`: they were
    // numbers of Python.
    virtual bool takes(const py::array& actions, bool python) const = 0;
    // Steps the envs `ids`, or all if there are none; returns rewards and terminated, or None if it
    // takes() not all actions.
    py::object step(const std::optional<Ids>& ids, const py::array& actions);
    // The observations of some envs, or all.
    py::array observe(const std::optional<Ids>& ids) const;
    // Begins episodes of some envs, with one generator for each env of the block.
    void begin(const Ids& ids, const py::list& generators);
    // The same with states that were drawn already.
    void begun(const Ids& ids);

 protected:
    virtual void step_rows(const Rows& rows, const py::array& actions, double* rewards,
                           bool* over) = 0;
    virtual void observe_rows(const Rows& rows, float* to) const;
    virtual void begin_row(std::size_t i) { phase_[i] = 0; }

    double* row(std::size_t i) const { return state_ + i * width_; }
    static void apply(const py::object& function, const py::array& values);

    std::size_t width_;
    std::int64_t* phase_;
    py::object cos_, sin_;

 private:
    Rows rows_of(const std::optional<Ids>& ids) const;

    py::array_t<double> states_;
    py::array_t<std::int64_t> phases_;
    double* state_;
    std::vector<double> low_, high_;
    std::size_t observed_;
};

template <>
inline constexpr bool is_bound<Classic> = true;

}  // namespace pysampler::bindings
