#include "watch.h"

#include <pthread.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <ranges>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

#include "process.h"

#ifndef P_PIDFD
#define P_PIDFD 3
#endif

namespace pysampler {
namespace {

[[noreturn]] void fail(const char* what) {
    throw std::system_error(errno, std::generic_category(), what);
}

// How the process ended. Does not reap it: that is left to its parent.
Loss ending(pid_t pid, int pidfd) {
    Loss loss{pid, now_ns(), std::nullopt, std::nullopt};
    siginfo_t info{};
    if (waitid(static_cast<idtype_t>(P_PIDFD), static_cast<id_t>(pidfd), &info,
               WEXITED | WNOHANG | WNOWAIT) == 0 &&
        info.si_pid != 0) {
        (info.si_code == CLD_EXITED ? loss.exit_code : loss.signal) = info.si_status;
    }
    return loss;
}

void listen(int epoll, int fd, std::uint64_t mark, std::uint32_t events = EPOLLIN) {
    epoll_event event{.events = events, .data = {.u64 = mark}};
    if (epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event) != 0) fail("cannot watch process: epoll_ctl");
}

bool is_pidfd(int fd) {
    std::array<char, 64> target{};
    const std::string link = "/proc/self/fd/" + std::to_string(fd);
    const ssize_t size = readlink(link.c_str(), target.data(), target.size());
    return size > 0 &&
           std::string_view(target.data(), static_cast<std::size_t>(size)).find("pidfd") !=
               std::string_view::npos;
}

// No process has these for a pid.
constexpr std::uint64_t kWake = 0;
constexpr std::uint64_t kEnd = ~std::uint64_t{0};

constexpr std::int64_t kLongest = 3600 * kSecond;  // of a sleep, in epoll's int of ms
constexpr int kUnreachable = 2000;  // ms until a thread that cannot be woken sees that it must end

}  // namespace

Watch::Watch()
    : epoll_(epoll_create1(EPOLL_CLOEXEC)), wake_(eventfd(0, EFD_CLOEXEC)), owner_(getpid()) {
    if (epoll_ < 0 || wake_ < 0) {
        const int saved = errno;
        if (epoll_ >= 0) close(epoll_);
        if (wake_ >= 0) close(wake_);
        throw std::system_error(saved, std::generic_category(),
                                "cannot make watch: epoll_create1 or eventfd");
    }
    // The poll thread blocks all signals: the interpreter's threads handle them.
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    try {
        listen(epoll_, wake_, kWake);
        thread_ = std::make_unique<std::thread>([this] { run(); });
    } catch (...) {
        pthread_sigmask(SIG_SETMASK, &before, nullptr);
        close(wake_);
        close(epoll_);
        throw;
    }
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

Watch::~Watch() {
    stop();
    // In a child made by fork, a thread that does not exist there may hold the lock.
    if (mutex_.try_lock()) {
        for (const auto& [pid, entry] : entries_) release(entry.pidfd);
        mutex_.unlock();
    }
    if (!owns(wake_, kWake)) return;
    close(wake_);
    close(epoll_);
}

void Watch::stop() {
    if (!mine()) {
        // The thread stayed in the parent; its handle here can be neither joined nor destroyed.
        [[maybe_unused]] const std::thread* left = thread_.release();
    } else if (thread_) {
        {
            const std::lock_guard lock(mutex_);
            stopping_ = true;
            if (owns(wake_, kWake)) wake();
        }
        thread_->join();
        thread_.reset();
        noticed_.mark_lost();
    }
}

void Watch::wake() const {
    const std::uint64_t one = 1;
    while (write(wake_, &one, sizeof one) < 0 && errno == EINTR) {
    }
}

bool Watch::mine() const noexcept { return owner_ == getpid(); }

void Watch::add(pid_t pid, Action action) { put(pid, std::move(action), false); }
void Watch::set(pid_t pid, Action action) { put(pid, std::move(action), true); }

void Watch::put(pid_t pid, Action action, bool replacing) {
    const std::lock_guard lock(mutex_);
    auto known = entries_.find(pid);
    // The pid was reused before the poll thread noticed that the last process with it had ended.
    if (known != entries_.end() && pidfd_ended(known->second.pidfd)) {
        lose(known);
        known = entries_.end();
    }
    if (known == entries_.end()) {
        const int pidfd = open_pidfd(pid);
        if (pidfd < 0 && errno != ESRCH) fail("cannot watch process: pidfd_open");
        if (pidfd < 0 || pidfd_ended(pidfd)) {
            losses_.push_back(pidfd < 0 ? Loss{pid, now_ns(), std::nullopt, std::nullopt}
                                        : ending(pid, pidfd));
            if (pidfd >= 0) close(pidfd);
            action();
            if (noticed_.advance(1)) noticed_.wake();
            return;
        }
        try {
            listen(epoll_, pidfd, static_cast<std::uint64_t>(pid));
        } catch (...) {
            close(pidfd);
            throw;
        }
        known = entries_.emplace(pid, Entry{pidfd, {}}).first;
    }
    if (replacing) known->second.actions.clear();
    known->second.actions.push_back(std::move(action));
}

bool Watch::forget(pid_t pid) {
    const std::lock_guard lock(mutex_);
    const auto known = entries_.find(pid);
    if (known == entries_.end()) return false;
    drop(known);
    return true;
}

bool Watch::settle(pid_t pid) {
    const std::lock_guard lock(mutex_);
    const auto known = entries_.find(pid);
    if (known == entries_.end()) return true;
    if (!pidfd_ended(known->second.pidfd)) return false;
    lose(known);
    return true;
}

std::vector<pid_t> Watch::watched() const {
    const std::lock_guard lock(mutex_);
    const auto pids = std::views::keys(entries_);
    return {pids.begin(), pids.end()};
}

std::vector<Loss> Watch::losses() const {
    const std::lock_guard lock(mutex_);
    return losses_;
}

Outcome Watch::wait(std::uint64_t known, std::int64_t deadline, WaitPolicy& policy) noexcept {
    return noticed_.wait_until(known + 1, deadline, policy);
}

void Watch::set_end(int socket, Action action) {
    const std::lock_guard lock(mutex_);
    at_end_ = std::move(action);
    listen(epoll_, socket, kEnd, EPOLLRDHUP);
}

void Watch::beat_every(std::int64_t interval) {
    const std::lock_guard lock(mutex_);
    pulse_.emplace(interval, now_ns());
    wake();
}

std::int64_t Watch::paused(std::int64_t since) const {
    const std::lock_guard lock(mutex_);
    return pulse_ ? pulse_->paused(since, now_ns()) : 0;
}

bool Watch::broken() const {
    const std::lock_guard lock(mutex_);
    return broken_;
}

// Whether `fd` is still our file: its number may be another file's by now, but epoll knows files.
bool Watch::owns(int fd, std::uint64_t mark) const {
    epoll_event event{.events = EPOLLIN, .data = {.u64 = mark}};
    return epoll_ctl(epoll_, EPOLL_CTL_MOD, fd, &event) == 0;
}

bool Watch::intact() const {
    return owns(wake_, kWake) && std::ranges::all_of(entries_, [this](const auto& known) {
               return owns(known.second.pidfd, static_cast<std::uint64_t>(known.first));
           });
}

int Watch::until_beat() const {
    const std::lock_guard lock(mutex_);
    // For stop(): it cannot wake the thread if other code has closed the eventfd.
    if (!pulse_) return kUnreachable;
    const std::int64_t left = pulse_->due() - now_ns();
    return static_cast<int>(std::clamp<std::int64_t>(left, 0, kLongest) / kMillisecond) + 1;
}

// False if the thread must end.
bool Watch::beat(bool listening) {
    const std::lock_guard lock(mutex_);
    if (stopping_) return false;
    if (pulse_ && now_ns() >= pulse_->due()) pulse_->beat(now_ns());
    if (!pulse_) return listening && owns(wake_, kWake);
    if (listening && intact()) return true;
    broken_ = true;
    for (const auto& [pid, entry] : entries_) {
        for (const Action& action : entry.actions) action();
    }
    return false;
}

void Watch::run() {
    pthread_setname_np(pthread_self(), "pysampler-watch");
    std::array<epoll_event, 16> events;
    for (;;) {
        const int count = epoll_wait(epoll_, events.data(), events.size(), until_beat());
        if (!beat(count >= 0 || errno == EINTR)) return;
        for (int i = 0; i < count; ++i) {
            const std::uint64_t mark = events[static_cast<std::size_t>(i)].data.u64;
            if (mark == kWake) {
                std::uint64_t wakes;
                [[maybe_unused]] const ssize_t got = read(wake_, &wakes, sizeof wakes);
            } else if (mark == kEnd) {
                at_end_();
            } else {
                notice(static_cast<pid_t>(mark));
            }
        }
    }
}

// Closes a pidfd, unless other code has closed it and the number is another file's by now.
void Watch::release(int fd) const {
    // Explicitly: a child forked since holds the pidfd too, so closing ours does not remove it. The
    // child shares the epoll file, from which the parent may have removed it.
    if (mine() ? epoll_ctl(epoll_, EPOLL_CTL_DEL, fd, nullptr) == 0 : is_pidfd(fd)) close(fd);
}

void Watch::drop(std::map<pid_t, Entry>::iterator known) {
    release(known->second.pidfd);
    entries_.erase(known);
}

void Watch::notice(pid_t pid) {
    const std::lock_guard lock(mutex_);
    const auto known = entries_.find(pid);
    // The pid was forgotten, and perhaps added again, between the event and the lock.
    if (known == entries_.end() || !pidfd_ended(known->second.pidfd)) return;
    lose(known);
}

void Watch::lose(std::map<pid_t, Entry>::iterator known) {
    losses_.push_back(ending(known->first, known->second.pidfd));
    for (const Action& action : known->second.actions) action();
    drop(known);
    if (noticed_.advance(1)) noticed_.wake();
}

}  // namespace pysampler
