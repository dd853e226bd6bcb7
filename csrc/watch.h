// Watches processes: one thread polls their pidfds, without the GIL, and runs actions at once when
// a process dies. Actions mark a flag or a member lost, or end this process with its parent. The
// thread can also notice that this process was suspended.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "position.h"
#include "pulse.h"
#include "wait.h"

namespace pysampler {

struct Loss {
    pid_t pid;
    std::int64_t noticed_at;       // ns, as now_ns()
    std::optional<int> exit_code;  // known for children that are not reaped yet
    std::optional<int> signal;     // likewise
};

class Watch {
 public:
    using Action = std::function<void()>;

    Watch();
    Watch& operator=(Watch&&) = delete;  // nor copies
    ~Watch();

    // Any thread of the process that constructed it, while `pid` is known to be alive or unreaped.
    // The action runs once: in the poll thread when the process ends or, if it has ended already,
    // in the caller before this returns. It must not block. Throws std::system_error.
    void add(pid_t pid, Action action);
    // The same, but replaces all other actions of this pid.
    void set(pid_t pid, Action action);
    // Drops every action of this pid; false if there was none.
    bool forget(pid_t pid);
    // False if the process lives. If it has ended, its actions have run before this returns.
    bool settle(pid_t pid);

    std::vector<pid_t> watched() const;
    // Every loss so far, in the order in which they were noticed.
    std::vector<Loss> losses() const;
    // Threads, any number: waits until there are more than `known` losses. kLost after stop().
    Outcome wait(std::uint64_t known, std::int64_t deadline, WaitPolicy& policy) noexcept;

    // The action runs once, in the poll thread, when the other end of `socket` is shut or closed.
    void set_end(int socket, Action action);

    // From now on the poll thread wakes at this interval. It notices when this process was
    // suspended, and when other code in it has closed the descriptors that the watch depends on:
    // then all actions run, and the watch is broken.
    void beat_every(std::int64_t interval);
    // How long this process was suspended since then, in ns, as far as is known.
    std::int64_t paused(std::int64_t since) const;
    bool broken() const;

    // Ends the poll thread and the waits. No action runs afterwards.
    void stop();

    // False in a child made by fork, which does not have the poll thread.
    bool mine() const noexcept;

 private:
    struct Entry {
        int pidfd;
        std::vector<Action> actions;
    };

    void run();
    bool beat(bool listening);
    int until_beat() const;
    void wake() const;
    bool owns(int fd, std::uint64_t mark) const;
    bool intact() const;
    void release(int fd) const;
    void notice(pid_t pid);
    void lose(std::map<pid_t, Entry>::iterator known);
    void put(pid_t pid, Action action, bool replacing);
    void drop(std::map<pid_t, Entry>::iterator known);

    OpenPosition noticed_;  // first: on cache lines of its own
    int epoll_;
    int wake_;  // an eventfd
    pid_t owner_;
    mutable std::mutex mutex_;
    std::map<pid_t, Entry> entries_;
    std::vector<Loss> losses_;
    Action at_end_;
    std::optional<Pulse> pulse_;
    bool stopping_ = false;
    bool broken_ = false;
    std::unique_ptr<std::thread> thread_;
};

}  // namespace pysampler
