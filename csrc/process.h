// Processes: this thread's id, whether another process lives, signals and titles.
#pragma once

#include <sched.h>
#include <signal.h>
#include <sys/types.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <string>

namespace pysampler {

// The id of this thread in shared memory: pid << 32 | tid, never 0. Cached, and correct after fork.
std::uint64_t self_id() noexcept;

constexpr pid_t pid_of(std::uint64_t id) noexcept { return static_cast<pid_t>(id >> 32); }

// False once the process has ended, reaped or not: a zombie never posts.
bool process_alive(pid_t pid) noexcept;

// A file descriptor that becomes readable when the process ends; -1 (errno) if there is no such
// process. Call it while the process is known to be alive or unreaped: pids are reused.
int open_pidfd(pid_t pid) noexcept;

bool pidfd_ended(int pidfd) noexcept;

// Sets the name that ps and top show: overwrites this process's command-line arguments with as much
// of the title as fits, and names the calling thread after its first 15 bytes.
void set_process_title(const std::string& title);

// From now on SIGINT, SIGTERM, SIGHUP, SIGUSR1 and SIGUSR2 neither end nor stop this process. They
// are caught, not ignored, so that programs it starts get the defaults. Unblocks them.
void outlive_signals();
// Blocks those signals in the constructing thread during its lifetime. In a child forked meanwhile
// they stay blocked until outlive_signals().
class BlockedSignals {
 public:
    BlockedSignals();
    BlockedSignals& operator=(BlockedSignals&&) = delete;  // nor copies
    ~BlockedSignals();

 private:
    pid_t owner_ = getpid();
    sigset_t before_;
};
// Restores the defaults, in a process forked from one that called outlive_signals().
void default_signals();

// Asks the scheduler to run the calling thread sooner once it is woken, for as short as it lets it
// (0.1 ms at a time, Linux 6.12 and newer): its share of the CPUs stays the same. A pool hands its
// work on every few microseconds. With usual slices, each process that wakes beside other busy
// programs waits until one of those has used up its own, 2 to 4 ms. Threads and processes that the
// thread starts inherit it. Does nothing if refused, or under another policy than SCHED_OTHER.
void prefer_short_slices() noexcept;

// How many CPUs the calling thread may use; 0 if they are more than a cpu_set_t holds.
std::uint32_t allowed_cpus() noexcept;

// The CPU that a worker sleeps on. Worker i sleeps on the i-th CPU that the constructing thread may
// use, if the pool has a worker for each; other pools have no homes, nor do threads that yield to
// usual programs, whose home another program may keep for long.
//
// A woken thread gets the CPU that it slept on, that of the thread that wakes it, or an idle one if
// the kernel looks for one, which it does not on small machines that are half busy. There, two
// workers were woken on one CPU and stepped one after the other, or one on the parent's CPU before
// the parent had woken the rest.
class Home {
 public:
    Home(std::uint32_t worker, std::size_t workers) noexcept;
    explicit operator bool() const noexcept { return CPU_COUNT(&home_) == 1; }
    // The worker of the pool whose home is the CPU of the calling thread; UINT32_MAX if none is.
    std::uint32_t worker_here() const noexcept;

    // Keeps the calling thread at a home, if any, unless it may use other CPUs than before. For
    // sleeps only: what a thread starts inherits its CPUs.
    class Stay {
     public:
        explicit Stay(Home* home) noexcept;
        Stay& operator=(Stay&&) = delete;  // nor copies
        ~Stay();

     private:
        Home* home_;
    };

 private:
    cpu_set_t all_{}, home_{};
    bool left_ = false;  // a thread that stayed there has not got all its CPUs back
};

// Makes this process the parent of its descendants whose own parent ends. False if refused.
bool adopt_orphans();

}  // namespace pysampler
