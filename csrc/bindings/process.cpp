// Processes: pidfds, descriptors, fork, and this process's signals and title.
#include "process.h"

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <optional>
#include <string>
#include <system_error>
#include <vector>

#include "descriptor.h"
#include "support.h"

namespace pysampler::bindings {
namespace {

// The pidfd of a process, closed with the object: a plain number would leak if a signal handler
// raised between opening and storing it.
class Pidfd : public Descriptor {
 public:
    explicit Pidfd(pid_t pid) : Descriptor(pid > 0 ? open_pidfd(pid) : -1) {
        if (pid > 0 && fileno() < 0 && errno != ESRCH) {
            throw std::system_error(errno, std::generic_category(),
                                    "cannot open process " + std::to_string(pid) + ": pidfd_open");
        }
    }

    // False if this process cannot: it has dropped its privileges, or other code has closed the
    // descriptor.
    bool kill() const {
        if (fileno() < 0) return true;
        if (syscall(SYS_pidfd_send_signal, fileno(), SIGKILL, nullptr, 0) == 0) return true;
        if (errno == EPERM || errno == EBADF) return false;
        if (errno == ESRCH) return true;
        throw std::system_error(errno, std::generic_category(),
                                "cannot kill process: pidfd_send_signal");
    }
};

// A child of this process, owned from its start on: no Python code runs in between. Unless it was
// reaped, it is killed with the object.
class OwnChild : public Pidfd {
 public:
    // `start` returns its pid: 0 in a fork, where the object owns nothing.
    explicit OwnChild(const py::object& start) : OwnChild(start().cast<pid_t>()) {}
    ~OwnChild() {
        siginfo_t info{};
        if (reaped_ || getpid() != parent_) return;
        PyThreadState* const thread = PyEval_SaveThread();
        // By its number, which is its own until it is reaped.
        if (waitid(P_PID, pid_, &info, WEXITED | WNOWAIT | WNOHANG) == 0) ::kill(pid_, SIGKILL);
        for (int ms = 0; ms < kDyingMs && (status(), !reaped_); ++ms) usleep(1000);
        PyEval_RestoreThread(thread);
    }

    pid_t pid() const { return pid_; }

    // Reaps it after killing its process group, in which its descendants are. Returns the exit
    // code, or minus the signal; nothing if it lives or was reaped by other code or the system.
    std::optional<int> status() {
        if (reaped_) return status_;
        siginfo_t info{};
        // Its number is its own until it is reaped. After that no process gets the number of a
        // group that has members, so a process with this number leads another group.
        if (waitid(P_PID, pid_, &info, WEXITED | WNOWAIT | WNOHANG) == 0 ||
            (::kill(pid_, 0) != 0 && errno == ESRCH)) {
            killpg(pid_, SIGKILL);
        }
        int status = 0;
        const pid_t ended = waitpid(pid_, &status, WNOHANG);
        reaped_ = ended != 0;
        if (ended > 0) status_ = WIFSIGNALED(status) ? -WTERMSIG(status) : WEXITSTATUS(status);
        return status_;
    }

 private:
    explicit OwnChild(pid_t pid) try : Pidfd(pid), pid_(pid), reaped_(pid <= 0) {
    } catch (...) {  // out of descriptors
        ::kill(pid, SIGKILL);
        while (waitpid(pid, nullptr, 0) < 0 && errno == EINTR) continue;
        throw;
    }

    static constexpr int kDyingMs = 1000;  // a killed process may end later: then it stays a zombie
    const pid_t parent_ = getpid();
    pid_t pid_;
    bool reaped_;
    std::optional<int> status_;
};

// The descriptor of a socket, detached from it: closed with the object, without the ResourceWarning
// that the socket would give.
class Detached : public Descriptor {
 public:
    explicit Detached(const py::object& socket) : Descriptor(socket.attr("detach")().cast<int>()) {}

    // Works even if a fork has a copy, which would hide a close() from the other end.
    void shut() const { ::shutdown(fileno(), SHUT_WR); }
};

// Sends a message and descriptors through a Unix socket, all or nothing.
void send_descriptors(int socket, const py::bytes& message, const std::vector<int>& descriptors) {
    const std::string bytes = message;
    std::vector<char> room(CMSG_SPACE(descriptors.size() * sizeof(int)));
    iovec part{const_cast<char*>(bytes.data()), bytes.size()};
    msghdr header{};
    header.msg_iov = &part;
    header.msg_iovlen = 1;
    header.msg_control = room.data();
    header.msg_controllen = room.size();
    cmsghdr* control = CMSG_FIRSTHDR(&header);
    control->cmsg_level = SOL_SOCKET;
    control->cmsg_type = SCM_RIGHTS;
    control->cmsg_len = CMSG_LEN(descriptors.size() * sizeof(int));
    std::memcpy(CMSG_DATA(control), descriptors.data(), descriptors.size() * sizeof(int));
    ssize_t sent;
    int error;
    {
        Released released;
        do {
            sent = sendmsg(socket, &header, MSG_NOSIGNAL);
            error = errno;
        } while (sent < 0 && error == EINTR);
    }
    if (sent < 0) {
        throw std::system_error(error, std::generic_category(), "cannot send descriptors: sendmsg");
    }
}

// Python's own threads may go on after Thread.join().
bool has_thread(pid_t number) { return syscall(SYS_tgkill, getpid(), number, 0) == 0; }

// In C++, since in Python a signal handler could raise before the signal mask is restored.
int fork_with_signals_blocked() {
    // Signals that have arrived are for the parent: handle them now, not in code that runs at fork.
    if (PyErr_CheckSignals() != 0) throw py::error_already_set();
    const BlockedSignals blocked;
    return py::module_::import("os").attr("fork")().cast<int>();
}

}  // namespace

template <>
inline constexpr bool is_bound<Pidfd> = true;
template <>
inline constexpr bool is_bound<OwnChild> = true;
template <>
inline constexpr bool is_bound<Detached> = true;

void register_process(py::module_& m) {
    Class<Pidfd>(m, "Pidfd")
        .def(py::init<pid_t>(), py::arg("pid"))
        .def("fileno", &Pidfd::fileno, "Return the descriptor, or -1 once it is closed.")
        .def("kill", &Pidfd::kill,
             "Send SIGKILL unless the process has ended; return False if that is not permitted.")
        .def("close", &Pidfd::close, "Close the descriptor.");
    Class<OwnChild, Pidfd>(m, "OwnChild")
        .def(py::init<const py::object&>(), py::arg("start"))
        .def_property_readonly("pid", &OwnChild::pid, "Its pid; 0 in a fork.")
        .def("status", &OwnChild::status,
             "Reap it and kill its group; return its exit code, or minus the signal, if known.");
    Class<Detached>(m, "Detached")
        .def(py::init<const py::object&>(), py::arg("socket"))
        .def("fileno", &Detached::fileno, "Return the descriptor, or -1 once it is closed.")
        .def("shut", &Detached::shut, "Tell the other end that nothing more will be sent.")
        .def("close", &Detached::close, "Close the descriptor.");
    m.def("send_descriptors", &send_descriptors, py::arg("socket"), py::arg("message"),
          py::arg("descriptors"),
          "Send a short message and descriptors through a Unix socket, all or nothing.");
    m.def("set_process_title", &set_process_title, py::arg("title"),
          "Set the name that ps and top show, truncated to the room there is.");
    m.def("adopt_orphans", &adopt_orphans,
          "Make this process the parent of descendants whose own parent ends; return whether the "
          "system allows it.");
    m.def("outlive_signals", &outlive_signals,
          "Catch SIGINT, SIGTERM, SIGHUP, SIGUSR1 and SIGUSR2, so that they end neither this "
          "process nor its system calls. Programs that it starts get the defaults.");
    m.def("fork_with_signals_blocked", &fork_with_signals_blocked,
          "Call os.fork(). In the child, those signals are blocked until outlive_signals().");
    m.def("has_thread", &has_thread, py::arg("number"),
          "Return whether this process has a thread with this number of the kernel.");
    m.def("default_signals", &default_signals, "Undo outlive_signals() in a forked child.");
}

}  // namespace pysampler::bindings
