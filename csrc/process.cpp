#include "process.h"

#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <iterator>
#include <sstream>

namespace pysampler {
namespace {

thread_local std::uint64_t cached_id = 0;

// Signals that a terminal, a batch system or a service manager may send to a whole process group:
// the parent decides how to react.
constexpr int kOutlived[] = {SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2};

// The shortest that the kernel allows: it would raise less than that to this.
constexpr std::uint64_t kSliceNs = 100'000;

struct SchedAttributes {  // the first version of struct sched_attr: glibc has it since 2.41
    std::uint32_t size;
    std::uint32_t policy;
    std::uint64_t flags;
    std::int32_t nice;
    std::uint32_t priority;
    std::uint64_t runtime;
    std::uint64_t deadline;
    std::uint64_t period;
};
static_assert(sizeof(SchedAttributes) == 48);

// Whether these are the CPUs that the calling thread may use.
bool runs_on(const cpu_set_t& cpus) noexcept {
    cpu_set_t own;
    return sched_getaffinity(0, sizeof own, &own) == 0 && CPU_EQUAL(&own, &cpus);
}

sigset_t outlived() {
    sigset_t set;
    sigemptyset(&set);
    for (const int signal : kOutlived) sigaddset(&set, signal);
    return set;
}

// getpid and gettid are system calls, ~70 ns each: too slow for a hop of 100 ns. Only the thread
// that forked exists in the child, so it is enough to reset its copy.
[[maybe_unused]] const int at_fork = pthread_atfork(nullptr, nullptr, [] { cached_id = 0; });

}  // namespace

std::uint64_t self_id() noexcept {
    if (cached_id == 0) {
        cached_id = static_cast<std::uint64_t>(getpid()) << 32 |
                    static_cast<std::uint32_t>(syscall(SYS_gettid));
    }
    return cached_id;
}

void prefer_short_slices() noexcept {
    SchedAttributes own{};
    if (syscall(SYS_sched_getattr, 0, &own, sizeof own, 0) != 0 || own.policy != SCHED_OTHER) {
        return;
    }
    own.size = sizeof own;
    own.runtime = kSliceNs;  // kernels before 6.12 ignore it
    syscall(SYS_sched_setattr, 0, &own, 0);
}

std::uint32_t allowed_cpus() noexcept {
    cpu_set_t cpus;
    const bool known = sched_getaffinity(0, sizeof cpus, &cpus) == 0;
    return known ? static_cast<std::uint32_t>(CPU_COUNT(&cpus)) : 0;
}

Home::Home(std::uint32_t worker, std::size_t workers) noexcept {
    sched_getaffinity(0, sizeof all_, &all_);
    if (static_cast<std::size_t>(CPU_COUNT(&all_)) != workers) return;
    if (sched_getscheduler(0) != SCHED_OTHER || getpriority(PRIO_PROCESS, 0) > 0) return;
    std::uint32_t before = 0;
    for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
        if (CPU_ISSET(cpu, &all_) && before++ == worker) CPU_SET(cpu, &home_);
    }
}

std::uint32_t Home::worker_here() const noexcept {
    if (!*this) return UINT32_MAX;
    std::uint32_t before = 0;
    for (int cpu = sched_getcpu(); cpu-- > 0;) before += CPU_ISSET(cpu, &all_) ? 1 : 0;
    return before;
}

Home::Stay::Stay(Home* home) noexcept : home_(home != nullptr && *home ? home : nullptr) {
    if (home_ == nullptr) return;
    const bool moves = runs_on(home_->all_) || (home_->left_ && runs_on(home_->home_));
    if (!moves || sched_setaffinity(0, sizeof home_->home_, &home_->home_) != 0) home_ = nullptr;
}

Home::Stay::~Stay() {
    if (home_ == nullptr) return;
    // Another program may have given the thread other CPUs meanwhile. Or the CPU was taken from all
    // programs for a time: if it comes back, so does what the thread asked for, and no other.
    home_->left_ =
        !runs_on(home_->home_) || sched_setaffinity(0, sizeof home_->all_, &home_->all_) != 0;
}

int open_pidfd(pid_t pid) noexcept { return static_cast<int>(syscall(SYS_pidfd_open, pid, 0)); }

bool pidfd_ended(int pidfd) noexcept {
    pollfd entry{pidfd, POLLIN, 0};
    return poll(&entry, 1, 0) == 1;
}

bool process_alive(pid_t pid) noexcept {
    const int pidfd = open_pidfd(pid);
    // Out of descriptors: assume it is alive, the caller checks again.
    if (pidfd < 0) return errno != ESRCH && errno != EINVAL;
    const bool ended = pidfd_ended(pidfd);
    close(pidfd);
    return !ended;
}

void outlive_signals() {
    struct sigaction caught{};
    caught.sa_handler = [](int) {};
    caught.sa_flags = SA_RESTART;
    for (const int signal : kOutlived) sigaction(signal, &caught, nullptr);
    const sigset_t set = outlived();
    pthread_sigmask(SIG_UNBLOCK, &set, nullptr);
}

BlockedSignals::BlockedSignals() {
    const sigset_t set = outlived();
    pthread_sigmask(SIG_BLOCK, &set, &before_);
}

BlockedSignals::~BlockedSignals() {
    if (getpid() == owner_) pthread_sigmask(SIG_SETMASK, &before_, nullptr);
}

void default_signals() {
    for (const int signal : kOutlived) ::signal(signal, SIG_DFL);
}

bool adopt_orphans() { return prctl(PR_SET_CHILD_SUBREAPER, 1) == 0; }

void set_process_title(const std::string& title) {
    prctl(PR_SET_NAME, title.c_str());
    // Fields 48 and 49 are the addresses of the arguments; field 2, the name, may contain anything.
    std::ifstream file("/proc/self/stat");
    const std::string stat{std::istreambuf_iterator<char>(file), {}};
    std::istringstream fields(stat.substr(std::min(stat.rfind(')') + 1, stat.size())));
    std::string field;
    for (int i = 3; i < 48; ++i) fields >> field;
    std::uintptr_t begin = 0, end = 0;
    if (!(fields >> begin >> end) || begin == 0 || end <= begin) return;
    // NOLINTNEXTLINE(performance-no-int-to-ptr): the kernel gives a number
    auto* arguments = reinterpret_cast<char*>(begin);
    const std::size_t room = end - begin - 1;  // a zero stays at the end
    std::fill_n(arguments, room, '\0');
    std::copy_n(title.data(), std::min(title.size(), room), arguments);
}

}  // namespace pysampler
