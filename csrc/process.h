// Who am I, and does that one still live: the two questions a waiter asks about its peers.
#pragma once

#include <signal.h>
#include <sys/types.h>
#include <unistd.h>

#include <cstdint>
#include <string>

namespace pysampler {

// A thread's name in shared memory: pid << 32 | tid. Never 0. Cached per thread, right after
// fork too.
std::uint64_t self_id() noexcept;

constexpr pid_t pid_of(std::uint64_t id) noexcept { return static_cast<pid_t>(id >> 32); }

// False once the process has ended, reaped or not: a zombie will never post.
bool process_alive(pid_t pid) noexcept;

// A file descriptor that becomes readable when the process ends; -1 (errno) if there is none.
// Call it while the process is known to be alive or unreaped: pids are used again.
int open_pidfd(pid_t pid) noexcept;

bool pidfd_ended(int pidfd) noexcept;

// The name that ps and top show: written over the arguments this process was started with, as far
// as there is room, and its first 15 bytes are the name of the calling thread.
void set_process_title(const std::string& title);

// From now on SIGINT, SIGTERM, SIGHUP, SIGUSR1 and SIGUSR2 neither end nor stop this process. They
// are caught, not ignored: a program that it starts has their defaults again. Unblocks them.
void outlive_signals();
// While it lives those signals wait, for the thread that made it. In a child that is forked
// meanwhile they do so until it outlives them.
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
// The defaults again, for a process forked from one that outlives them.
void default_signals();

// Processes below this one whose parent ends become its children. False where that is refused.
bool adopt_orphans();

}  // namespace pysampler
