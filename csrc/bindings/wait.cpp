#include "wait.h"

#include <pybind11/pybind11.h>

#include <mutex>

#include "process.h"
#include "support.h"

namespace pysampler::bindings {
namespace {

void sleep_to(std::int64_t at) {
    // Learns how late this thread's wake-ups come; a fresh policy would begin with a guess.
    thread_local WaitPolicy policy = [] {
        prefer_short_slices();  // beside busy programs it would wake milliseconds late
        return WaitPolicy();
    }();
    // The way back through the GIL went cold: it is taken a little earlier, and kept.
    thread_local ReturnMargin margin;
    const std::int64_t end = at == kForever ? at : at - margin.ns();
    if (end > now_ns()) {
        wait_released(policy, [end](WaitPolicy& own) {
            return sleep_until(end, own) ? Outcome::kTimedOut : Outcome::kInterrupted;
        });
        margin.learn(now_ns() - end);
    }
    while (now_ns() < at) cpu_pause();
}

void sleep_until_deadline(const py::object& deadline) {
    sleep_to(static_cast<std::int64_t>(whole(deadline, "sleep", "deadline", 0)));
}

// Makes one caller's calls return at their deadlines: their waits end a little earlier. If threads
// call at the same time, it learns nothing from the first.
// Owner: any thread; a mutex guards it.
class TimedReturn {
 public:
    // When to end the wait of a call that should return at `deadline`.
    std::int64_t wait_until(std::int64_t deadline) {
        const std::lock_guard lock(learns_);
        const std::int64_t end = deadline - margin_.ns();
        learning_ = end > now_ns() ? deadline : 0;  // a wait that never began teaches nothing
        return end;
    }

    // Called last by a call whose wait timed out. Keeps the GIL: another thread would hold it for
    // longer than the time that is left.
    void hold_until(std::int64_t deadline) {
        const std::int64_t now = now_ns();
        learn(deadline, now);
        if (deadline - now > ReturnMargin::kMax) {
            sleep_to(deadline);
        } else {
            while (now_ns() < deadline) cpu_pause();
        }
    }

    std::int64_t margin_ns() const {
        const std::lock_guard lock(learns_);
        return margin_.ns();
    }

 private:
    void learn(std::int64_t deadline, std::int64_t now) {
        const std::lock_guard lock(learns_);
        if (learning_ == deadline) margin_.learn(now - (deadline - margin_.ns()));
        learning_ = 0;
    }

    mutable std::mutex learns_;  // guards all of it
    ReturnMargin margin_;
    std::int64_t learning_ = 0;  // the deadline to learn from, or 0
};

WaitPolicy fixed(const py::object& spin_ns, const py::object& yield_ns) {
    return WaitPolicy::fixed(
        static_cast<std::int64_t>(whole(spin_ns, "make wait policy", "spin_ns", 0)),
        static_cast<std::int64_t>(whole(yield_ns, "make wait policy", "yield_ns", 0)));
}

std::string policy_repr(const WaitPolicy& policy) {
    return "<pysampler.sync.WaitPolicy " + std::string(policy.adaptive() ? "adaptive" : "fixed") +
           ", usual wait " + std::to_string(policy.usual_ns()) + " ns, guard " +
           std::to_string(policy.guard_ns()) + " ns, " + std::to_string(policy.stats().waits) +
           " waits, " + std::to_string(policy.stats().parks) + " parks>";
}

}  // namespace

template <>
inline constexpr bool is_bound<TimedReturn> = true;

void register_wait(py::module_& m) {
    Class<WaitCosts>(m, "WaitCosts", "The costs of waiting on this machine.")
        .def_readonly("park_ns", &WaitCosts::park_ns,
                      "The time from a wake until the woken thread runs, in ns.")
        .def_readonly("yield_ns", &WaitCosts::yield_ns,
                      "The time of a sched_yield with no other thread to run, in ns.")
        .def_readonly("cpus", &WaitCosts::cpus, "The number of CPUs that this process may use.")
        .def("__repr__", [](const WaitCosts& c) {
            return "WaitCosts(park_ns=" + std::to_string(c.park_ns) +
                   ", yield_ns=" + std::to_string(c.yield_ns) + ", cpus=" + std::to_string(c.cpus) +
                   ")";
        });
    Class<WaitStats>(m, "WaitStats", "The cost of all waits at one handle so far.")
        .def_readonly("waits", &WaitStats::waits, "The waits that were not ready at once.")
        .def_readonly("parks", &WaitStats::parks, "The number of times that they slept.")
        .def_readonly("awake_ns", &WaitStats::awake_ns, "The time spent awake, in ns.")
        .def_readonly("parked_ns", &WaitStats::parked_ns, "The time spent asleep, in ns.")
        .def_readonly("spin_ns", &WaitStats::spin_ns,
                      "The part of awake_ns spent spinning, without yielding the CPU, in ns.")
        .def("__repr__", [](const WaitStats& s) {
            return "WaitStats(waits=" + std::to_string(s.waits) +
                   ", parks=" + std::to_string(s.parks) +
                   ", awake_ns=" + std::to_string(s.awake_ns) +
                   ", parked_ns=" + std::to_string(s.parked_ns) + ")";
        });
    Class<WaitPolicy>(m, "WaitPolicy",
                      "How to wait: spin, yield, then park, for times learned from the machine and "
                      "from the waits so far. Each handle uses a copy of the policy given to it.")
        .def(py::init<>())
        .def_static("fixed", &fixed, py::kw_only(), py::arg("spin_ns") = 0, py::arg("yield_ns") = 0,
                    "Return a policy that never learns.\n\n"
                    "Args:\n"
                    "    spin_ns: How long to spin first, in ns.\n"
                    "    yield_ns: How long to yield the CPU after that, before sleeping, in ns.\n")
        .def_property_readonly("adaptive", &WaitPolicy::adaptive, "Whether it learns.")
        .def_property_readonly("usual_ns", &WaitPolicy::usual_ns,
                               "How long waits usually last, in ns.")
        .def_property_readonly("guard_ns", &WaitPolicy::guard_ns,
                               "How long before a deadline it wakes up, in ns.")
        .def_property_readonly("stats", &WaitPolicy::stats, "The cost of its waits.")
        .def("__repr__", &policy_repr);
    Class<TimedReturn>(m, "TimedReturn")
        .def(py::init<>())
        .def("wait_until", &TimedReturn::wait_until, py::arg("deadline"),
             "Return when to end the wait of a call that should return at the deadline.")
        .def("hold_until", &TimedReturn::hold_until, py::arg("deadline"),
             "Wait until the deadline, at the end of a call whose wait timed out.")
        .def_property_readonly("margin_ns", &TimedReturn::margin_ns,
                               "How long before its deadline a wait ends.");
    m.def("now", &now_ns, "Return the time on the monotonic clock of deadlines, in ns.");
    m.def("sleep_until", &sleep_until_deadline, py::arg("deadline"),
          "Sleep until a deadline, to within about a microsecond if a CPU is free. The calling "
          "thread prefers short slices of the CPU from then on.\n\n"
          "Args:\n"
          "    deadline: A time of now(), in ns.\n");
    m.def("usable_cpus", &usable_cpus,
          "Return how many CPUs this process may use: those of its affinity mask, or its cgroup's "
          "quota rounded up if that is less.");
    m.def(
        "wait_costs",
        [] {
            Released released;
            return WaitCosts::here();
        },
        "Return the costs of waiting on this machine, measured once.");
}

}  // namespace pysampler::bindings
