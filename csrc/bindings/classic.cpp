#include "classic.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>
#include <optional>

namespace pysampler::bindings {

Classic::Classic(const py::array_t<double>& state, const py::array_t<std::int64_t>& phase,
                 const std::vector<double>& low, const std::vector<double>& high,
                 std::size_t observed)
    : width_(static_cast<std::size_t>(state.shape(1))),
      states_(state),
      phases_(phase),
      low_(low),
      high_(high),
      observed_(observed) {
    if (state.ndim() != 2 || phase.ndim() != 1 || phase.shape(0) != state.shape(0) ||
        low.size() != high.size() || low.size() > width_) {
        throw py::value_error("cannot make envs: expected a state and a phase for each");
    }
    state_ = states_.mutable_data();
    phase_ = phases_.mutable_data();
    const py::module_ numpy = py::module_::import("numpy");
    cos_ = numpy.attr("cos");
    sin_ = numpy.attr("sin");
}

Classic::Rows Classic::rows_of(const std::optional<Ids>& ids) const {
    const auto count = static_cast<std::size_t>(states_.shape(0));
    Rows rows(ids ? static_cast<std::size_t>(ids->size()) : count);
    for (std::size_t k = 0; k < rows.size(); ++k) {
        rows[k] = ids ? static_cast<std::size_t>(ids->data()[k]) : k;
        if (rows[k] >= count) throw py::index_error("no env " + std::to_string(rows[k]));
    }
    return rows;
}

// Replaces numbers by a function of them, such as numpy.cos.
void Classic::apply(const py::object& function, const py::array& values) {
    PyObject* call[] = {values.ptr(), values.ptr()};  // the second is `out`
    checked(PyObject_Vectorcall(function.ptr(), call, 2, nullptr));
}

py::object Classic::step(const std::optional<Ids>& ids, const py::array& actions) {
    if (!takes(actions, false)) return py::none();
    const Rows rows = rows_of(ids);
    if (static_cast<std::size_t>(actions.size()) != rows.size()) {
        throw py::value_error("cannot step: expected an action for each env");
    }
    py::array_t<double> rewards(static_cast<py::ssize_t>(rows.size()));
    py::array_t<bool> over(static_cast<py::ssize_t>(rows.size()));
    step_rows(rows, py::array::ensure(actions, py::array::c_style), rewards.mutable_data(),
              over.mutable_data());
    return py::make_tuple(rewards, over);
}

py::array Classic::observe(const std::optional<Ids>& ids) const {
    const Rows rows = rows_of(ids);
    py::array_t<float> observations({rows.size(), observed_});
    observe_rows(rows, observations.mutable_data());
    return observations;
}

void Classic::observe_rows(const Rows& rows, float* to) const {
    for (const std::size_t i : rows) {
        for (std::size_t k = 0; k < observed_; ++k) *to++ = static_cast<float>(row(i)[k]);
    }
}

void Classic::begin(const Ids& ids, const py::list& generators) {
    for (const std::size_t i : rows_of(ids)) {
        std::fill_n(row(i), width_, 0.0);
        for (std::size_t k = 0; k < low_.size(); ++k) {
            row(i)[k] = drawn(generators[i], low_[k], high_[k] - low_[k]);
        }
        begin_row(i);
    }
}

void Classic::begun(const Ids& ids) {
    for (const std::size_t i : rows_of(ids)) begin_row(i);
}

namespace {

// A power of the C library, which rounds otherwise than a product. The compiler must not know the
// exponent, or it would multiply.
template <class T>
T squared(T x) {
    static volatile T exponent = 2;
    return std::pow(x, exponent);
}

double clipped(double x, double low, double high) { return x < low ? low : x > high ? high : x; }

// Numbers for NumPy's functions, `count` for each env.
py::array_t<double> numbers(std::size_t count, std::size_t envs) {
    return py::array_t<double>({count, envs});
}

// Envs whose actions are whole numbers from 0 on.
class Discrete : public Classic {
 public:
    template <class... Arguments>
    explicit Discrete(std::int64_t actions, const Arguments&... arguments)
        : Classic(arguments...), actions_(actions) {}

    bool takes(const py::array& actions, bool) const override {
        const char kind = actions.dtype().kind();
        if (actions.ndim() != 1 || (kind != 'i' && (kind != 'u' || actions.itemsize() == 8))) {
            return false;
        }
        const auto wide = whole(actions);
        return std::all_of(wide.data(), wide.data() + wide.size(),
                           [this](std::int64_t one) { return one >= 0 && one < actions_; });
    }

 protected:
    using Whole = py::array_t<std::int64_t, py::array::c_style | py::array::forcecast>;
    static Whole whole(const py::array& actions) { return actions; }

 private:
    std::int64_t actions_;
};

// CartPole-v1: x, its speed, theta, its speed. The phase is 0 during an episode; after its end, 1 +
// the steps since.
class CartPole : public Discrete {
 public:
    CartPole(const py::array_t<double>& state, const py::array_t<std::int64_t>& phase,
             const std::vector<double>& low, const std::vector<double>& high, bool sutton_barto)
        : Discrete(2, state, phase, low, high, 4), sutton_barto_(sutton_barto) {}

 protected:
    void step_rows(const Rows& rows, const py::array& actions, double* rewards,
                   bool* over) override {
        constexpr double kGravity = 9.8, kPole = 0.1, kMass = kPole + 1.0, kLength = 0.5;
        constexpr double kPoleLength = kPole * kLength, kTau = 0.02, kForce = 10.0;
        constexpr double kFarthest = 2.4, kSteepest = 12 * 2 * std::numbers::pi / 360;
        const auto given = whole(actions);
        auto cosines = numbers(1, rows.size()), sines = numbers(1, rows.size());
        double *cosine = cosines.mutable_data(), *sine = sines.mutable_data();
        for (std::size_t k = 0; k < rows.size(); ++k) cosine[k] = sine[k] = row(rows[k])[2];
        apply(cos_, cosines);
        apply(sin_, sines);
        for (std::size_t k = 0; k < rows.size(); ++k) {
            double* const state = row(rows[k]);
            double x = state[0], x_dot = state[1], theta = state[2], theta_dot = state[3];
            const double force = given.data()[k] == 1 ? kForce : -kForce;
            const double temp = (force + kPoleLength * (theta_dot * theta_dot) * sine[k]) / kMass;
            const double theta_acc =
                (kGravity * sine[k] - cosine[k] * temp) /
                (kLength * (4.0 / 3.0 - kPole * (cosine[k] * cosine[k]) / kMass));
            const double x_acc = temp - kPoleLength * theta_acc * cosine[k] / kMass;
            x = x + kTau * x_dot;
            x_dot = x_dot + kTau * x_acc;
            theta = theta + kTau * theta_dot;
            theta_dot = theta_dot + kTau * theta_acc;
            over[k] = x < -kFarthest || x > kFarthest || theta < -kSteepest || theta > kSteepest;
            state[0] = x;
            state[1] = x_dot;
            state[2] = theta;
            state[3] = theta_dot;
            std::int64_t& beyond = phase_[rows[k]];
            rewards[k] =
                sutton_barto_ ? (over[k] ? -1.0 : 0.0) : (over[k] && beyond > 0 ? 0.0 : 1.0);
            beyond += over[k] ? 1 : 0;
        }
    }

 private:
    bool sutton_barto_;
};

// MountainCar-v0: position and velocity. The phase is 1 once it was stepped.
class MountainCar : public Discrete {
 public:
    MountainCar(const py::array_t<double>& state, const py::array_t<std::int64_t>& phase,
                const std::vector<double>& low, const std::vector<double>& high, double goal)
        : Discrete(3, state, phase, low, high, 2), goal_(goal) {}

 protected:
    void step_rows(const Rows& rows, const py::array& actions, double* rewards,
                   bool* over) override {
        constexpr double kForce = 0.001, kGravity = 0.0025, kFastest = 0.07;
        constexpr double kFirst = -1.2, kLast = 0.6, kGoal = 0.5;
        const auto given = whole(actions);
        // Unsigned numbers have no -1.
        const bool wraps = actions.dtype().kind() == 'u';
        const double left = wraps ? std::exp2(8 * actions.itemsize()) - 1 : -1;
        for (std::size_t k = 0; k < rows.size(); ++k) {
            double position = row(rows[k])[0], velocity = row(rows[k])[1];
            const std::int64_t action = given.data()[k];
            const double push = action == 0 ? left : static_cast<double>(action - 1);
            velocity += push * kForce + std::cos(3 * position) * -kGravity;
            velocity = clipped(velocity, -kFastest, kFastest);
            position = clipped(position + velocity, kFirst, kLast);
            if (position == kFirst && velocity < 0) velocity = 0;
            row(rows[k])[0] = position;
            row(rows[k])[1] = velocity;
            phase_[rows[k]] = 1;
            rewards[k] = -1.0;
            over[k] = position >= kGoal && velocity >= goal_;
        }
    }

 private:
    double goal_;
};

// Acrobot-v1: two angles and their speeds. The phase is 1 once it was stepped; before, the state is
// that of float32.
class Acrobot : public Discrete {
 public:
    Acrobot(const py::array_t<double>& state, const py::array_t<std::int64_t>& phase,
            const std::vector<double>& low, const std::vector<double>& high)
        : Discrete(3, state, phase, low, high, 6) {}

 protected:
    using Four = std::array<double, 4>;

    void begin_row(std::size_t i) override {
        Classic::begin_row(i);
        for (std::size_t k = 0; k < 4; ++k) {
            row(i)[k] = static_cast<double>(static_cast<float>(row(i)[k]));
        }
    }

    void step_rows(const Rows& rows, const py::array& actions, double* rewards,
                   bool* over) override {
        constexpr double kTau = 0.2;
        const std::size_t n = rows.size();
        const auto given = whole(actions);
        std::vector<Four> from(n), at, k1, k2, k3, k4;
        for (std::size_t k = 0; k < n; ++k) std::copy_n(row(rows[k]), 4, from[k].data());
        const auto moved = [&](double by, const std::vector<Four>& slope) {
            at = from;
            for (std::size_t k = 0; k < n; ++k) {
                for (std::size_t c = 0; c < 4; ++c) at[k][c] = from[k][c] + by * slope[k][c];
            }
            return derivatives(at, given.data());
        };
        k1 = derivatives(from, given.data());
        k2 = moved(kTau / 2.0, k1);
        k3 = moved(kTau / 2.0, k2);
        k4 = moved(kTau, k3);
        auto cosines = numbers(2, n);
        double* cosine = cosines.mutable_data();
        for (std::size_t k = 0; k < n; ++k) {
            double* const state = row(rows[k]);
            for (std::size_t c = 0; c < 4; ++c) {
                state[c] =
                    from[k][c] + kTau / 6.0 * (k1[k][c] + 2 * k2[k][c] + 2 * k3[k][c] + k4[k][c]);
            }
            state[0] = wrapped(state[0]);
            state[1] = wrapped(state[1]);
            state[2] = clipped(state[2], -4 * kPi, 4 * kPi);
            state[3] = clipped(state[3], -9 * kPi, 9 * kPi);
            cosine[k] = state[0];
            cosine[n + k] = state[1] + state[0];
            phase_[rows[k]] = 1;
        }
        apply(cos_, cosines);
        for (std::size_t k = 0; k < n; ++k) {
            over[k] = -cosine[k] - cosine[n + k] > 1.0;
            rewards[k] = over[k] ? 0.0 : -1.0;
        }
    }

    void observe_rows(const Rows& rows, float* to) const override {
        observe_as<double>(rows, to);
        Rows first;  // not stepped yet: cosines of float32
        std::vector<float*> places;
        for (std::size_t k = 0; k < rows.size(); ++k) {
            if (phase_[rows[k]] != 0) continue;
            first.push_back(rows[k]);
            places.push_back(to + 6 * k);
        }
        if (first.empty()) return;
        std::vector<float> observed(6 * first.size());
        observe_as<float>(first, observed.data());
        for (std::size_t k = 0; k < first.size(); ++k) {
            std::copy_n(observed.data() + 6 * k, 6, places[k]);
        }
    }

 private:
    static constexpr double kPi = std::numbers::pi;

    template <class T>
    void observe_as(const Rows& rows, float* to) const {
        const std::size_t n = rows.size();
        py::array_t<T> cosines({std::size_t{2}, n}), sines({std::size_t{2}, n});
        T *cosine = cosines.mutable_data(), *sine = sines.mutable_data();
        for (std::size_t k = 0; k < n; ++k) {
            cosine[k] = sine[k] = static_cast<T>(row(rows[k])[0]);
            cosine[n + k] = sine[n + k] = static_cast<T>(row(rows[k])[1]);
        }
        apply(cos_, cosines);
        apply(sin_, sines);
        for (std::size_t k = 0; k < n; ++k, to += 6) {
            for (std::size_t angle = 0; angle < 2; ++angle) {
                to[2 * angle] = static_cast<float>(cosine[angle * n + k]);
                to[2 * angle + 1] = static_cast<float>(sine[angle * n + k]);
            }
            to[4] = static_cast<float>(row(rows[k])[2]);
            to[5] = static_cast<float>(row(rows[k])[3]);
        }
    }

    static double wrapped(double angle) {
        constexpr double kTurn = kPi - -kPi;
        while (angle > kPi) angle -= kTurn;
        while (angle < -kPi) angle += kTurn;
        return angle;
    }

    // By the equations that gymnasium calls "book".
    std::vector<Four> derivatives(const std::vector<Four>& states,
                                  const std::int64_t* actions) const {
        constexpr double m1 = 1.0, m2 = 1.0, l1 = 1.0, lc1 = 0.5, lc2 = 0.5, moment = 1.0, g = 9.8;
        const std::size_t n = states.size();
        auto cosines = numbers(3, n), sines = numbers(1, n);
        double *cosine = cosines.mutable_data(), *sine2 = sines.mutable_data();
        for (std::size_t k = 0; k < n; ++k) {
            const auto [theta1, theta2, speed1, speed2] = states[k];
            cosine[k] = sine2[k] = theta2;
            cosine[n + k] = theta1 + theta2 - kPi / 2.0;
            cosine[2 * n + k] = theta1 - kPi / 2;
        }
        apply(cos_, cosines);
        apply(sin_, sines);
        std::vector<Four> found(n);
        for (std::size_t k = 0; k < n; ++k) {
            const auto [theta1, theta2, speed1, speed2] = states[k];
            const auto torque = static_cast<double>(actions[k] - 1);
            const double cos2 = cosine[k], sin2 = sine2[k];
            const double d1 = m1 * (lc1 * lc1) + m2 * (l1 * l1 + lc2 * lc2 + 2 * l1 * lc2 * cos2) +
                              moment + moment;
            const double d2 = m2 * (lc2 * lc2 + l1 * lc2 * cos2) + moment;
            const double phi2 = m2 * lc2 * g * cosine[n + k];
            const double phi1 = -m2 * l1 * lc2 * squared(speed2) * sin2 -
                                2 * m2 * l1 * lc2 * speed2 * speed1 * sin2 +
                                (m1 * lc1 + m2 * l1) * g * cosine[2 * n + k] + phi2;
            const double acceleration2 =
                (torque + d2 / d1 * phi1 - m2 * l1 * lc2 * squared(speed1) * sin2 - phi2) /
                (m2 * (lc2 * lc2) + moment - squared(d2) / d1);
            const double acceleration1 = -(d2 * acceleration2 + phi1) / d1;
            found[k] = {speed1, speed2, acceleration1, acceleration2};
        }
        return found;
    }
};

// Envs whose action is one number.
class Continuous : public Classic {
 public:
    using Classic::Classic;

    bool takes(const py::array& actions, bool) const override {
        const char kind = actions.dtype().kind();
        return actions.ndim() == 2 && actions.shape(1) == 1 &&
               (kind == 'i' || kind == 'u' ||
                (kind == 'f' && (actions.itemsize() == 4 || actions.itemsize() == 8)));
    }

 protected:
    void step_rows(const Rows& rows, const py::array& actions, double* rewards,
                   bool* over) override {
        if (py::isinstance<py::array_t<float>>(actions)) {
            step_with(rows, static_cast<const float*>(actions.data()), rewards, over);
            return;
        }
        const py::array_t<double, py::array::c_style | py::array::forcecast> wide = actions;
        step_with(rows, wide.data(), rewards, over);
    }
    virtual void step_with(const Rows& rows, const float* actions, double* rewards, bool* over) = 0;
    virtual void step_with(const Rows& rows, const double* actions, double* rewards,
                           bool* over) = 0;
};

// Pendulum-v1: angle, speed and the last torque. The phase is 1 once it was stepped with an action
// of float32, 2 with one of float64.
class Pendulum : public Continuous {
 public:
    Pendulum(const py::array_t<double>& state, const py::array_t<std::int64_t>& phase,
             const std::vector<double>& low, const std::vector<double>& high, double gravity)
        : Continuous(state, phase, low, high, 3), gravity_(gravity) {}

 protected:
    void step_with(const Rows& rows, const float* actions, double* rewards, bool* over) override {
        step_as(rows, actions, rewards, over);
    }
    void step_with(const Rows& rows, const double* actions, double* rewards, bool* over) override {
        step_as(rows, actions, rewards, over);
    }

    void observe_rows(const Rows& rows, float* to) const override {
        auto cosines = numbers(1, rows.size()), sines = numbers(1, rows.size());
        double *cosine = cosines.mutable_data(), *sine = sines.mutable_data();
        for (std::size_t k = 0; k < rows.size(); ++k) cosine[k] = sine[k] = row(rows[k])[0];
        apply(cos_, cosines);
        apply(sin_, sines);
        for (std::size_t k = 0; k < rows.size(); ++k, to += 3) {
            to[0] = static_cast<float>(cosine[k]);
            to[1] = static_cast<float>(sine[k]);
            to[2] = static_cast<float>(row(rows[k])[1]);
        }
    }

 private:
    // NumPy keeps what comes from the action alone in the action's type.
    template <class Action>
    void step_as(const Rows& rows, const Action* actions, double* rewards, bool* over) {
        constexpr double kTurn = 2 * std::numbers::pi, kTau = 0.05, kFastest = 8;
        auto sines = numbers(1, rows.size());
        double* sine = sines.mutable_data();
        for (std::size_t k = 0; k < rows.size(); ++k) sine[k] = row(rows[k])[0];
        apply(sin_, sines);
        for (std::size_t k = 0; k < rows.size(); ++k) {
            double &angle = row(rows[k])[0], &speed = row(rows[k])[1];
            const auto u = static_cast<Action>(clipped(static_cast<double>(actions[k]), -2.0, 2.0));
            const double normal = remainder(angle + std::numbers::pi, kTurn) - std::numbers::pi;
            const Action effort = static_cast<Action>(0.001) * squared(u);
            const double costs =
                squared(normal) + 0.1 * squared(speed) + static_cast<double>(effort);
            const Action torque = static_cast<Action>(3.0) * u;
            speed =
                clipped(speed + (3 * gravity_ / 2.0 * sine[k] + static_cast<double>(torque)) * kTau,
                        -kFastest, kFastest);
            angle = angle + speed * kTau;
            row(rows[k])[2] = static_cast<double>(u);
            phase_[rows[k]] = sizeof(Action) == sizeof(float) ? 1 : 2;
            rewards[k] = -costs;
            over[k] = false;
        }
    }

    // As Python's %.
    static double remainder(double x, double turn) {
        const double rest = std::fmod(x, turn);
        if (rest == 0) return std::copysign(0.0, turn);
        return rest < 0 ? rest + turn : rest;
    }

    double gravity_;
};

// MountainCarContinuous-v0: position and velocity. The phase is 1 once it was stepped: from then on
// its state is that of float32.
class MountainCarContinuous : public Continuous {
 public:
    MountainCarContinuous(const py::array_t<double>& state, const py::array_t<std::int64_t>& phase,
                          const std::vector<double>& low, const std::vector<double>& high,
                          double goal)
        : Continuous(state, phase, low, high, 2), goal_(goal) {}

    bool takes(const py::array& actions, bool python) const override {
        return !python && Continuous::takes(actions, python);
    }

 protected:
    void step_with(const Rows& rows, const float* actions, double* rewards, bool* over) override {
        step_all(rows, actions, rewards, over);
    }
    void step_with(const Rows& rows, const double* actions, double* rewards, bool* over) override {
        step_all(rows, actions, rewards, over);
    }

 private:
    template <class Action>
    void step_all(const Rows& rows, const Action* actions, double* rewards, bool* over) {
        for (std::size_t k = 0; k < rows.size(); ++k) {
            const std::size_t i = rows[k];
            over[k] = phase_[i] == 0 ? step_as<double>(row(i), actions[k])
                                     : step_as<float>(row(i), actions[k]);
            phase_[i] = 1;
            rewards[k] = (over[k] ? 100.0 : 0.0) - squared(static_cast<double>(actions[k])) * 0.1;
        }
    }

    // Returns whether the episode ends. `State` is the type of the state; numbers of Python have
    // that of the number beside them.
    template <class State, class Action>
    bool step_as(double* state, Action action) const {
        constexpr double kPower = 0.0015;
        const auto position = static_cast<State>(state[0]), velocity = static_cast<State>(state[1]);
        const double slope = 0.0025 * std::cos(static_cast<double>(3 * position));
        if (static_cast<Action>(-1) > action || static_cast<Action>(1) < action) {
            const double force = static_cast<Action>(-1) > action ? -1.0 : 1.0;  // of Python
            return move(state, position, velocity + static_cast<State>(force * kPower - slope));
        }
        return move(state, position,
                    velocity + (action * static_cast<Action>(kPower) - static_cast<Action>(slope)));
    }

    template <class State, class Velocity>
    bool move(double* state, State position, Velocity velocity) const {
        constexpr double kFastest = 0.07;
        for (const double limit : {kFastest, -kFastest}) {  // of Python
            const auto same = static_cast<Velocity>(limit);
            if (limit > 0 ? velocity > same : velocity < same) {
                return arrive(state, position + static_cast<State>(limit), limit, limit >= goal_);
            }
        }
        return arrive(state, position + velocity, static_cast<double>(velocity),
                      velocity >= static_cast<Velocity>(goal_));
    }

    template <class Position>
    bool arrive(double* state, Position position, double velocity, bool fast_enough) const {
        const Position first = static_cast<Position>(-1.2), last = static_cast<Position>(0.6);
        if (position > last) position = last;
        if (position < first) position = first;
        if (position == first && velocity < 0) velocity = 0;
        state[0] = static_cast<double>(static_cast<float>(position));
        state[1] = static_cast<double>(static_cast<float>(velocity));
        return position >= static_cast<Position>(0.45) && fast_enough;
    }

    double goal_;
};

}  // namespace

template <>
inline constexpr bool is_bound<CartPole> = true;
template <>
inline constexpr bool is_bound<MountainCar> = true;
template <>
inline constexpr bool is_bound<Acrobot> = true;
template <>
inline constexpr bool is_bound<Pendulum> = true;
template <>
inline constexpr bool is_bound<MountainCarContinuous> = true;

void register_classic(py::module_& m) {
    Class<Classic>(m, "Classic")
        .def("takes", &Classic::takes, py::arg("actions"), py::arg("python") = false,
             "Return whether all of these actions are valid.")
        .def("step", &Classic::step, py::arg("ids"), py::arg("actions"),
             "Step some envs, or all if ids is None; return rewards and terminated, or None if an "
             "action is not valid.")
        .def("observe", &Classic::observe, py::arg("ids"),
             "Return the observations of some envs, or of all if ids is None.")
        .def("begun", &Classic::begun, py::arg("ids"),
             "Begin episodes of some envs with the states that were drawn for them.");
    const auto add = []<class Env, class... Extra>(py::class_<Env, Classic> cls, Extra...) {
        cls.def(py::init<const py::array_t<double>&, const py::array_t<std::int64_t>&,
                         const std::vector<double>&, const std::vector<double>&, Extra...>());
    };
    add(Class<CartPole, Classic>(m, "CartPole"), bool{});
    add(Class<MountainCar, Classic>(m, "MountainCar"), double{});
    add(Class<Acrobot, Classic>(m, "Acrobot"));
    add(Class<Pendulum, Classic>(m, "Pendulum"), double{});
    add(Class<MountainCarContinuous, Classic>(m, "MountainCarContinuous"), double{});
}

}  // namespace pysampler::bindings
