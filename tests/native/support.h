// Shared by the tests of several primitives: memory shared with a child, children, waiting for a
// state, records that show whether they are whole, and a kernel that refuses system calls.
#pragma once

#include <dirent.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <new>
#include <utility>
#include <vector>

#include "check.h"
#include "process.h"
#include "segment.h"
#include "wait.h"

namespace support {

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
inline constexpr bool kSanitized = true;
#elif defined(__has_feature)
inline constexpr bool kSanitized =
    __has_feature(thread_sanitizer) || __has_feature(address_sanitizer);
#else
inline constexpr bool kSanitized = false;
#endif

// Fewer rounds under a sanitizer, which makes each several times slower.
constexpr int rounds(int n) { return kSanitized ? n / 8 : n; }

inline void skipped(const char* why) { std::printf("   skipped: %s\n", why); }

// Whether threads have homes (process.h) here, and other CPUs beside those.
inline bool have_homes() {
    const std::uint32_t cpus = pysampler::allowed_cpus();
    const bool have = cpus > 1 && pysampler::Home(0, cpus);
    if (!have) skipped("one CPU, or nice");
    return have;
}

// Waits for a state that must come; if it does not, the watchdog ends the test.
template <class State>
void until(State&& state) {
    while (!state()) sched_yield();
}

inline void spin_for(std::int64_t ns) {
    for (const std::int64_t end = pysampler::now_ns() + ns; pysampler::now_ns() < end;) {
        pysampler::cpu_pause();
    }
}

// splitmix64: the same numbers from the same seed everywhere.
class Random {
 public:
    explicit Random(std::uint64_t seed) : state_(seed) {}
    std::uint64_t next() {
        std::uint64_t z = state_ += 0x9e3779b97f4a7c15;
        z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
        z = (z ^ z >> 27) * 0x94d049bb133111eb;
        return z ^ z >> 31;
    }
    std::uint64_t below(std::uint64_t n) { return next() % n; }
    std::int64_t ns_below(std::int64_t n) {
        return static_cast<std::int64_t>(below(static_cast<std::uint64_t>(n)));
    }

 private:
    std::uint64_t state_;
};

// Every word depends on the author and the number, so a mixture of two records is recognized. Plain
// memory, so that the thread sanitizer sees a missing synchronization.
class Record {
 public:
    Record() = default;
    Record(std::uint64_t author, std::uint64_t number) : author_(author), number_(number) {
        for (std::size_t i = 0; i < rest_.size(); ++i) rest_[i] = expected(i);
    }
    std::uint64_t author() const { return author_; }
    std::uint64_t number() const { return number_; }
    bool whole() const {
        bool right = true;
        for (std::size_t i = 0; i < rest_.size(); ++i) right = right && rest_[i] == expected(i);
        return right;
    }
    bool operator==(const Record&) const = default;

 private:
    std::uint64_t expected(std::size_t i) const {
        return Random(author_ << 48 ^ number_ << 3 ^ i).next();
    }

    std::uint64_t author_ = 0;
    std::uint64_t number_ = 0;
    std::array<std::uint64_t, 6> rest_{};
};

// A T in its own segment: children see it at the same address.
template <class T>
class Shared {
 public:
    template <class... Args>
    explicit Shared(Args&&... args)
        : segment_(pysampler::Segment::create(sizeof(T))),
          value_(new (segment_->at(segment_->allocate(sizeof(T)), sizeof(T)))
                     T(std::forward<Args>(args)...)) {}
    T* operator->() const { return value_; }
    T& operator*() const { return *value_; }

 private:
    std::shared_ptr<pysampler::Segment> segment_;
    T* value_;
};

// Runs `body` in a fork. The child is killed and reaped with the object, and with the parent.
class Child {
 public:
    Child() = default;
    template <class Body>
    explicit Child(Body&& body) : pid_(fork()) {
        CHECK(pid_ >= 0);
        if (pid_ > 0) return;
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        alarm(check::watchdog_seconds);
        body();
        _exit(0);
    }
    Child(Child&& other) noexcept : pid_(std::exchange(other.pid_, 0)) {}
    Child& operator=(Child&& other) noexcept {
        std::swap(pid_, other.pid_);
        return *this;
    }
    ~Child() {
        if (pid_ <= 0) return;
        kill(pid_, SIGKILL);
        status();
    }

    pid_t pid() const { return pid_; }
    void send(int signal) const { CHECK(kill(pid_, signal) == 0); }
    // Waits for the child's end and reaps it.
    int status() {
        int status = 0;
        while (waitpid(pid_, &status, 0) < 0) CHECK(errno == EINTR);
        pid_ = 0;
        return status;
    }
    // Waits for the child's end, which must be successful.
    void finish() { CHECK(status() == 0); }

 private:
    pid_t pid_ = 0;
};

inline std::size_t open_fds() {
    DIR* fds = opendir("/proc/self/fd");
    CHECK(fds != nullptr);
    std::size_t count = 0;
    while (readdir(fds) != nullptr) ++count;
    closedir(fds);
    return count;
}

inline bool no_child_left() { return waitpid(-1, nullptr, WNOHANG) < 0 && errno == ECHILD; }

// Whether a thread is asleep in the kernel, where only a wake or a signal reaches it.
inline bool sleeps(pid_t tid) {
    char path[64], state = 0;
    std::snprintf(path, sizeof path, "/proc/%d/stat", tid);
    std::FILE* file = std::fopen(path, "r");
    if (file == nullptr) return false;  // the thread has ended
    const bool known = std::fscanf(file, "%*d (%*[^)]) %c", &state) == 1;
    std::fclose(file);
    return known && state == 'S';  // it may also end between the two lines above
}

// Whether a waiter sleeps at a position or a doorbell and waits for `posts` more posts. A waiter
// that is only about to sleep wants them too, but may see them in time and then needs no wake.
template <class Site>
bool asleep_for(const Site& site, std::uint64_t posts) {
    return site.wanted() == posts && sleeps(static_cast<pid_t>(site.waiter() & 0xffffffff)) &&
           site.wanted() == posts;
}

// Parks at once: no wait gets lucky. The first policy in a process measures the machine, which
// makes wake calls.
inline pysampler::WaitPolicy parking() { return pysampler::WaitPolicy::fixed(0, 0); }
inline pysampler::WaitPolicy awake() {
    return pysampler::WaitPolicy::fixed(20 * pysampler::kMicrosecond, 0);
}
// The policies that a stress test goes through.
inline std::array<pysampler::WaitPolicy, 3> policies() {
    return {parking(), pysampler::WaitPolicy(), awake()};
}

// Parks at once and counts the parks: each arms a primitive at most once.
class Counting {
 public:
    template <class Ready, class Park>
    pysampler::Outcome wait(std::int64_t deadline, Ready&& ready, Park&& park,
                            pysampler::Others others = {}) {
        return policy_.wait(
            deadline, ready,
            [&](std::int64_t until) {
                ++parks_;
                return park(until);
            },
            others);
    }
    std::uint64_t parks() const { return parks_; }

 private:
    pysampler::WaitPolicy policy_ = parking();
    std::uint64_t parks_ = 0;
};

// A policy whose waits run `event` and end with `outcome`.
template <class Event>
struct Meanwhile {
    Event event;
    pysampler::Outcome outcome;

    template <class Ready, class Park>
    pysampler::Outcome wait(std::int64_t, Ready&&, Park&&, pysampler::Others = {}) {
        event();
        return outcome;
    }
};
template <class Event>
Meanwhile(Event, pysampler::Outcome) -> Meanwhile<Event>;

// -- a kernel that refuses ------------------------------------------------------------------------

// Installed for the rest of this process. False if the kernel (or an emulator) has no such filters.
inline bool filter_calls(std::vector<sock_filter> program) {
    sock_fprog all{static_cast<unsigned short>(program.size()), program.data()};
    return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
           prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &all) == 0;
}

inline sock_filter load(std::size_t offset) {
    return {BPF_LD | BPF_W | BPF_ABS, 0, 0, static_cast<std::uint32_t>(offset)};
}
inline sock_filter skip_unless(std::uint32_t value, std::uint8_t skip) {
    return {BPF_JMP | BPF_JEQ | BPF_K, 0, skip, value};
}
inline sock_filter answer(std::uint32_t action) { return {BPF_RET | BPF_K, 0, 0, action}; }

inline bool refuse_call(long call, int error) {
    return filter_calls(
        {load(offsetof(seccomp_data, nr)), skip_unless(static_cast<std::uint32_t>(call), 1),
         answer(SECCOMP_RET_ERRNO | static_cast<std::uint32_t>(error)), answer(SECCOMP_RET_ALLOW)});
}

// Refuses the call only with this second argument, the operation of a multiplexed call.
inline bool refuse_operation(long call, std::uint32_t operation, int error) {
    return filter_calls(
        {load(offsetof(seccomp_data, nr)), skip_unless(static_cast<std::uint32_t>(call), 3),
         load(offsetof(seccomp_data, args) + sizeof(std::uint64_t)), skip_unless(operation, 1),
         answer(SECCOMP_RET_ERRNO | static_cast<std::uint32_t>(error)), answer(SECCOMP_RET_ALLOW)});
}

// Runs `body` in a child that its first system call kills. Prepare anything that needs system calls
// (a policy, memory) outside.
template <class Body>
void check_makes_no_system_call(Body&& body) {
    if (kSanitized) return skipped("a sanitizer makes its own system calls");
    constexpr int kNoFilters = 77;
    Child child([&] {
        pysampler::self_id();  // cached: makes its system calls once per thread
        // Reading the clock is a system call only if the kernel trusts no user-space clock.
        if (!filter_calls({load(offsetof(seccomp_data, nr)), skip_unless(SYS_exit_group, 1),
                           answer(SECCOMP_RET_ALLOW), skip_unless(SYS_clock_gettime, 1),
                           answer(SECCOMP_RET_ALLOW), answer(SECCOMP_RET_KILL_PROCESS)})) {
            _exit(kNoFilters);
        }
        body();
    });
    const int status = child.status();
    if (WIFEXITED(status) && WEXITSTATUS(status) == kNoFilters) {
        return skipped("no system call filters here");
    }
    CHECK(status == 0);
}

}  // namespace support
