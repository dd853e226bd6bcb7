#include "watch.h"

#include <pybind11/stl.h>
#include <unistd.h>

#include <cstring>

#include "process.h"
#include "support.h"

namespace pysampler::bindings {
namespace {

std::string describe(const Loss& loss) {
    std::string text = "pid " + std::to_string(loss.pid) + " lost";
    if (loss.signal) {
        text += ": signal " + std::to_string(*loss.signal);
        if (const char* name = sigabbrev_np(*loss.signal))
            text += std::string(" (SIG") + name + ")";
    }
    if (loss.exit_code) text += ": exit code " + std::to_string(*loss.exit_code);
    return text;
}

class PyWatch {
 public:
    PyWatch() : watch_(std::make_unique<Watch>()) {}
    // NOLINTNEXTLINE(bugprone-exception-escape): what pybind11 may throw without an interpreter
    ~PyWatch() { close(); }

    void add(pid_t pid, const std::vector<Part>& parts) {
        Watch& watch = open("add to");
        const py::gil_scoped_release release;
        watch.add(pid, [pid, parts] {
            for (const Part& part : parts) part.lost(pid);
        });
    }

    bool forget(pid_t pid) { return open("forget in").forget(pid); }

    // When that process ends, so does this one: at once, without cleaning up, from a thread that
    // needs nothing of the interpreter.
    void leave_with(pid_t pid, int code) {
        open("add to").add(pid, [code] { _exit(code); });
    }

    std::vector<Loss> wait(std::uint64_t known, const py::object& timeout,
                           const py::object& deadline) {
        Watch& watch = open("wait on");
        const std::int64_t until = deadline_of(timeout, deadline);
        Site site(std::nullopt);
        site([&](WaitPolicy& policy) { return watch.wait(known, until, policy); });
        std::vector<Loss> losses = watch.losses();
        losses.erase(losses.begin(),
                     losses.begin() + static_cast<std::ptrdiff_t>(
                                          std::min<std::uint64_t>(known, losses.size())));
        return losses;
    }

    std::vector<Loss> losses() { return open("look at").losses(); }
    std::vector<pid_t> watched() { return open("look at").watched(); }

    void close() {
        if (!watch_) return;
        const py::gil_scoped_release release;
        watch_.reset();
    }
    bool closed() const { return watch_ == nullptr; }

    std::string repr() const {
        if (!watch_) return "<pysampler.sync.Watch closed>";
        if (!watch_->mine()) return "<pysampler.sync.Watch of another process>";
        return "<pysampler.sync.Watch of " + std::to_string(watch_->watched().size()) +
               " processes, " + std::to_string(watch_->losses().size()) + " lost>";
    }

 private:
    Watch& open(const char* verb) {
        if (!watch_) raise("ClosedError", std::string("cannot ") + verb + " watch: it is closed");
        if (!watch_->mine()) {
            raise("ClosedError", std::string("cannot ") + verb +
                                     " watch: it was made by another process, make one here");
        }
        return *watch_;
    }

    std::unique_ptr<Watch> watch_;
};

}  // namespace

void register_watch(py::module_& m) {
    const auto none = py::none();
    py::class_<Loss>(m, "Loss")
        .def_readonly("pid", &Loss::pid)
        .def_readonly("noticed_at", &Loss::noticed_at)
        .def_readonly("exit_code", &Loss::exit_code)
        .def_readonly("signal", &Loss::signal)
        .def("__str__", &describe)
        .def("__repr__", [](const Loss& loss) { return "<" + describe(loss) + ">"; });
    py::class_<Part>(m, "Part").def("__repr__",
                                    [](const Part& part) { return "<" + part.name + ">"; });
    py::class_<PyWatch>(m, "Watch")
        .def(py::init<>())
        .def("add_pid", &PyWatch::add, py::arg("pid"), py::arg("parts"))
        .def("forget_pid", &PyWatch::forget, py::arg("pid"))
        .def("leave_with_pid", &PyWatch::leave_with, py::arg("pid"), py::arg("code"))
        .def("wait", &PyWatch::wait, py::arg("known") = 0, py::arg("timeout") = none, py::kw_only(),
             py::arg("deadline") = none)
        .def("close", &PyWatch::close)
        .def_property_readonly("losses", &PyWatch::losses)
        .def_property_readonly("watched", &PyWatch::watched)
        .def_property_readonly("closed", &PyWatch::closed)
        .def("__repr__", &PyWatch::repr);
    m.def("process_alive", [](pid_t pid) { return process_alive(pid); }, py::arg("pid"));
}

}  // namespace pysampler::bindings
