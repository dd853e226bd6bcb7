// Processes: the id of this thread, whether another process lives, signals and titles.
#pragma once

#include <signal.h>
#include <sys/types.h>
#include <unistd.h>

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

// Sets the name that ps and top show: it overwrites the arguments that this process was started
// with, as far as there is room, and its first 15 bytes are the name of the calling thread.
void set_process_title(const std::string& title);

// From now on SIGINT, SIGTERM, SIGHUP, SIGUSR1 and SIGUSR2 neither end nor stop this process. They
// are caught, not ignored, so programs that it starts have the defaults. Unblocks them.
void outlive_signals();
// Blocks those signals, in the thread that made it, while it lives. In a child that is forked
// meanwhile they stay blocked until outlive_signals().
class BlockedSignals {
 public:
    BlockedSignals();
    BlockedSignals(const BlockedSignals&) = delete;
    BlockedSignals& operator=(const BlockedSignals&) = delete;
    ~BlockedSignals();

 private:
    pid_t owner_ = getpid();
    sigset_t before_;
};
// Restores the defaults, in a process forked from one that called outlive_signals().
void default_signals();

// Makes this process the parent of its descendants whose own parent ends. False where that is
// refused.
bool adopt_orphans();

}  // namespace pysampler
