#include "watch.h"

#include <unistd.h>

#include <csignal>
#include <memory>
#include <mutex>
#include <utility>

#include "support.h"

namespace pysampler::bindings {
namespace {

// Signals that end a process. glibc knows all names only since 2.32 (sigabbrev_np), musl does not.
constexpr std::pair<int, const char*> kSignals[] = {
    {SIGHUP, "SIGHUP"},   {SIGINT, "SIGINT"},   {SIGQUIT, "SIGQUIT"}, {SIGILL, "SIGILL"},
    {SIGTRAP, "SIGTRAP"}, {SIGABRT, "SIGABRT"}, {SIGBUS, "SIGBUS"},   {SIGFPE, "SIGFPE"},
    {SIGKILL, "SIGKILL"}, {SIGUSR1, "SIGUSR1"}, {SIGSEGV, "SIGSEGV"}, {SIGUSR2, "SIGUSR2"},
    {SIGPIPE, "SIGPIPE"}, {SIGALRM, "SIGALRM"}, {SIGTERM, "SIGTERM"}, {SIGXCPU, "SIGXCPU"},
    {SIGXFSZ, "SIGXFSZ"}, {SIGSYS, "SIGSYS"},   {SIGPROF, "SIGPROF"}, {SIGVTALRM, "SIGVTALRM"},
    {SIGIO, "SIGIO"},     {SIGPWR, "SIGPWR"},
};

std::string describe(const Loss& loss) {
    std::string text = "pid " + std::to_string(loss.pid) + " lost";
    if (loss.signal) {
        text += ": signal " + std::to_string(*loss.signal);
        for (const auto& [number, name] : kSignals) {
            if (number == *loss.signal) text += std::string(" (") + name + ")";
        }
    }
    if (loss.exit_code) text += ": exit code " + std::to_string(*loss.exit_code);
    return text;
}

// Owner: any thread; a mutex guards the pointer, another the Watch itself.
class PyWatch {
 public:
    PyWatch() : watch_(std::make_shared<Watch>()) {}
    // NOLINTNEXTLINE(bugprone-exception-escape): pybind11 throws only without an interpreter
    ~PyWatch() { close(); }

    void add(pid_t pid, const std::vector<Part>& parts, bool replacing) {
        const auto watch = open("add to");
        Released released;
        const auto action = [pid, parts] {
            for (const Part& part : parts) part.lost(pid);
        };
        replacing ? watch->set(pid, action) : watch->add(pid, action);
    }

    bool forget(pid_t pid) { return open("forget in")->forget(pid); }
    bool settle(pid_t pid) { return open("look at")->settle(pid); }

    // Ends this process when process `pid` ends: at once, without cleaning up, from a thread that
    // does not need the interpreter.
    void leave_with(pid_t pid, int code) {
        open("add to")->add(pid, [code] { _exit(code); });
    }

    // The same when the other end of a socket is shut or closed.
    void leave_at_end(int socket, int code) {
        open("add to")->set_end(socket, [code] { _exit(code); });
    }

    void beat_every(std::int64_t interval_ns) { open("use")->beat_every(interval_ns); }
    bool broken() const {
        const auto watch = present();
        return watch && watch->broken();
    }
    std::int64_t paused_ns(std::int64_t since) {
        const auto watch = present();
        return watch && watch->mine() ? watch->paused(since) : 0;
    }

    std::vector<Loss> wait(const py::object& known_losses, const Seconds& timeout,
                           const Nanoseconds& deadline) {
        const std::uint64_t known = whole(known_losses, "wait on watch", "known", 0);
        const std::int64_t until = deadline_of(timeout, deadline);
        const auto watch = open("wait on");
        Site site(std::nullopt);
        const Outcome outcome =
            site([&](WaitPolicy& policy) { return watch->wait(known, until, policy); });
        if (outcome == Outcome::kLost) raise("ClosedError", "cannot wait on watch: it was closed");
        std::vector<Loss> losses = watch->losses();
        losses.erase(losses.begin(),
                     losses.begin() + static_cast<std::ptrdiff_t>(
                                          std::min<std::uint64_t>(known, losses.size())));
        return losses;
    }

    std::vector<Loss> losses() { return open("look at")->losses(); }
    std::vector<pid_t> watched() { return open("look at")->watched(); }

    void close() {
        const std::shared_ptr<Watch> watch = taken();
        if (!watch) return;
        Released released;
        watch->stop();
    }
    bool closed() const { return present() == nullptr; }

    std::string repr() const {
        const auto watch = present();
        if (!watch) return "<pysampler.sync.Watch closed>";
        if (!watch->mine()) return "<pysampler.sync.Watch of another process>";
        return "<pysampler.sync.Watch of " + std::to_string(watch->watched().size()) +
               " processes, " + std::to_string(watch->losses().size()) + " lost>";
    }

 private:
    std::shared_ptr<Watch> open(const char* verb) const {
        std::shared_ptr<Watch> watch = present();
        if (!watch) raise("ClosedError", std::string("cannot ") + verb + " watch: it is closed");
        if (!watch->mine()) {
            raise("ClosedError",
                  std::string("cannot ") + verb + " watch: another process made it, make one here");
        }
        return watch;
    }

    std::shared_ptr<Watch> present() const {
        const std::lock_guard lock(changing_);
        return watch_;
    }
    std::shared_ptr<Watch> taken() {
        const std::lock_guard lock(changing_);
        return std::exchange(watch_, nullptr);
    }

    mutable std::mutex changing_;   // guards watch_
    std::shared_ptr<Watch> watch_;  // null once closed
};

}  // namespace

template <>
inline constexpr bool is_bound<PyWatch> = true;

void register_watch(py::module_& m) {
    const auto none = py::none();
    Class<Loss>(m, "Loss", "A process that has died, and how.")
        .def_readonly("pid", &Loss::pid, "The process that was lost.")
        .def_readonly("noticed_at", &Loss::noticed_at, "When it was noticed, in ns of now().")
        .def_readonly("exit_code", &Loss::exit_code,
                      "Its exit code, if it is a child that exited and was not joined yet.")
        .def_readonly("signal", &Loss::signal,
                      "The signal that ended it, if it is a child that was not joined yet.")
        .def("__str__", &describe)
        .def("__repr__", [](const Loss& loss) { return "<" + describe(loss) + ">"; });
    Class<Part>(m, "Part", "One process's role in a primitive, for Watch.add().")
        .def(
            "mark_lost", [](const Part& part) { part.lost(0); },
            "Do what a Watch does when the process dies; for the end of a thread.")
        .def("__repr__", [](const Part& part) { return "<" + part.name + ">"; });
    Class<PyWatch>(m, "Watch")
        .def(py::init<>())
        .def("_add_pid", &PyWatch::add, py::arg("pid"), py::arg("parts"),
             py::arg("replacing") = false)
        .def("_forget_pid", &PyWatch::forget, py::arg("pid"))
        .def("_settle_pid", &PyWatch::settle, py::arg("pid"))
        .def("_leave_with_pid", &PyWatch::leave_with, py::arg("pid"), py::arg("code"))
        .def("_leave_at_end", &PyWatch::leave_at_end, py::arg("socket"), py::arg("code"))
        .def("_beat_every", &PyWatch::beat_every, py::arg("interval_ns"))
        .def("_is_broken", &PyWatch::broken)
        .def("_paused_ns", &PyWatch::paused_ns, py::arg("since"))
        .def("wait", &PyWatch::wait, py::kw_only(), py::arg("known") = 0, py::arg("timeout") = none,
             py::arg("deadline") = none,
             "Wait until more processes are lost than the caller knows of.\n\n"
             "Args:\n"
             "    known: How many losses the caller knows of.\n" PYSAMPLER_WAIT_ARGS
             "\n"
             "Returns:\n"
             "    The losses after the first `known`, in order; empty at the deadline.\n\n"
             "Raises:\n"
             "    ClosedError: The watch was closed.\n")
        .def("close", &PyWatch::close, "Stop watching, and end the waits for losses.")
        .def_property_readonly("losses", &PyWatch::losses, "All losses so far, in order.")
        .def_property_readonly("watched", &PyWatch::watched, "The watched pids.")
        .def_property_readonly("closed", &PyWatch::closed, "Whether close() was called.")
        .def("__repr__", &PyWatch::repr);
}

}  // namespace pysampler::bindings
