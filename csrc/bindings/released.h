// Waits during which other Python threads run and signals are handled.
#pragma once

#include <pybind11/pybind11.h>
#include <unistd.h>

#include <atomic>
#include <optional>
#include <utility>

#include "wait.h"

namespace pysampler::bindings {

namespace py = pybind11;

// A signal that comes between the last check of Python's signal flags and the system call does not
// interrupt the call: no wait sleeps longer than this without another check.
inline constexpr std::int64_t kSlice = 50 * kMillisecond;
// The longest slice of an idle worker: no user waits for its signal handlers.
inline constexpr std::int64_t kLongestSlice = 60 * kSecond;

// Threads of this program that come back for the GIL at the same time wait for their turn awake:
// each holds it for a few microseconds, while to sleep at the GIL takes two hops. A turn is only a
// hint, so relaxed is enough: a thread that has waited for as long as a sleep costs takes the turn
// of another, which may hold the GIL for long, or have been left behind by a fork.
class GilTurn {
 public:
    static void wait() {
#ifndef Py_GIL_DISABLED
        std::int64_t until = 0;
        while (taken_.load(std::memory_order_relaxed) ||
               taken_.exchange(true, std::memory_order_relaxed)) {
            const std::int64_t now = now_ns();
            if (until == 0) until = now + 2 * WaitCosts::here().park_ns;
            if (now >= until) break;
            cpu_yield();
        }
        mine_ = true;
#endif
    }
    // Called after the GIL was released.
    static void end() {
#ifndef Py_GIL_DISABLED
        if (std::exchange(mine_, false)) taken_.store(false, std::memory_order_relaxed);
#endif
    }

 private:
    static inline std::atomic<bool> taken_{false};
    static inline thread_local bool mine_ = false;
};

// Releases the GIL while it lives.
class Released {
 public:
    Released() : state_(PyEval_SaveThread()) { GilTurn::end(); }
    Released& operator=(Released&&) = delete;  // nor copies
    ~Released() { restore(); }

    // Runs Python's signal handlers. Returns whether to go on: false with a Python error set,
    // usually KeyboardInterrupt, or if `wanted()`, which is called with the GIL, returns false.
    template <class Wanted>
    bool answer_signals(Wanted&& wanted) {
        restore();
        const bool go_on = PyErr_CheckSignals() == 0 && wanted();
        state_ = PyEval_SaveThread();
        GilTurn::end();
        return go_on;
    }

 private:
    // While the interpreter ends, Pythons before 3.14 unwind a daemon thread here. Its frames own
    // Python objects that it may no longer touch, so it sleeps forever instead.
    void restore() {
        GilTurn::wait();
        try {
            PyEval_RestoreThread(state_);
        } catch (...) {
            for (;;) pause();
        }
    }

    PyThreadState* state_;
};

// Returns the result of `call`, a function of Python's C interface that may run Python code. It
// throws nothing, so if it does not return, the interpreter ends, and Python before 3.14 unwinds
// this daemon thread: as in Released, it sleeps forever instead.
template <class Call>
PyObject* called(Call&& call) {
    struct Stays {
        bool returned = false;
        ~Stays() {
            while (!returned) pause();
        }
    } stays;
    PyObject* result = call();
    stays.returned = true;
    return result;
}

// Calls `wait(policy)` without the GIL, and handles signals meanwhile. An exception of a handler
// is thrown whatever the outcome: no wait returns a value with an exception set. The next wait must
// find what this one found, so the primitives consume nothing before they return. Returns
// kInterrupted only if `wanted()` returned false.
template <class Wait, class Wanted>
Outcome wait_released(WaitPolicy& policy, Wait&& wait, Wanted&& wanted) {
    Outcome outcome;
    {
        Released released;
        struct Reset {
            WaitPolicy& policy;
            ~Reset() { policy.set_go_on(nullptr); }
        } const at_the_end{policy};
        policy.set_slice(kSlice);
        policy.set_go_on([&] { return released.answer_signals(wanted); });
        outcome = wait(policy);
    }
    if (PyErr_Occurred() != nullptr) throw py::error_already_set();
    return outcome;
}

template <class Wait>
Outcome wait_released(WaitPolicy& policy, Wait&& wait) {
    return wait_released(policy, wait, [] { return true; });
}

// The policy of one site, used by one thread at a time; a second thread that waits at the same
// site gets a new policy.
class Site {
 public:
    // A copy of the given policy, or the adaptive one.
    explicit Site(const std::optional<WaitPolicy>& policy)
        : policy_(policy ? *policy : WaitPolicy()) {}

    template <class Wait, class Wanted>
    Outcome operator()(Wait&& wait, Wanted&& wanted) {
        // SYNC: pairs with the store in ~Return(): the policy as the last waiter left it.
        if (taken_.exchange(true, std::memory_order_acquire)) {
            WaitPolicy fresh(policy_.costs());
            return wait_released(fresh, wait, wanted);
        }
        struct Return {
            std::atomic<bool>& taken;
            ~Return() { taken.store(false, std::memory_order_release); }
        } const at_the_end{taken_};
        return wait_released(policy_, wait, wanted);
    }
    template <class Wait>
    Outcome operator()(Wait&& wait) {
        return (*this)(wait, [] { return true; });
    }

    WaitPolicy& policy() { return policy_; }
    const WaitPolicy& policy() const { return policy_; }

 private:
    WaitPolicy policy_;
    std::atomic<bool> taken_{false};
};

}  // namespace pysampler::bindings
