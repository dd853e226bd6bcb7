// A platform on which an event (a kill, or a move of the other side) happens before the n-th step,
// where each load, store, exchange and system call on shared memory is a step.
#pragma once

#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstdint>
#include <functional>

#include "check.h"
#include "futex.h"
#include "support.h"

namespace support {

struct Stepped {
    static inline int taken = 0;  // steps so far, by one thread
    static inline int at = 0;     // the step before which the event happens
    static inline std::function<void()> event;
    static inline int slept_at = 0;  // the first step that was a sleep

    static void step() {
        if (++taken == at) event();
    }
    template <class Event>
    static void begin(int n, Event&& happens) {
        taken = slept_at = 0;
        at = n;
        event = happens;
    }

    template <class T>
    class Atomic : public std::atomic<T> {
        using Base = std::atomic<T>;

     public:
        using Base::Base;
        T load(std::memory_order order) const noexcept { return step(), Base::load(order); }
        void store(T to, std::memory_order order) noexcept { step(), Base::store(to, order); }
        T fetch_add(T by, std::memory_order order) noexcept {
            return step(), Base::fetch_add(by, order);
        }
        T fetch_or(T bits, std::memory_order order) noexcept {
            return step(), Base::fetch_or(bits, order);
        }
        T fetch_and(T bits, std::memory_order order) noexcept {
            return step(), Base::fetch_and(bits, order);
        }
        bool compare_exchange_weak(T& seen, T wanted, std::memory_order yes,
                                   std::memory_order no) noexcept {
            return step(), Base::compare_exchange_weak(seen, wanted, yes, no);
        }
        bool compare_exchange_strong(T& seen, T wanted, std::memory_order yes,
                                     std::memory_order no) noexcept {
            return step(), Base::compare_exchange_strong(seen, wanted, yes, no);
        }
    };

    template <class T>
    using Plain = T;

    template <class T>
    static pysampler::FutexResult futex_wait(const Atomic<T>& word, T expected,
                                             std::int64_t deadline) noexcept {
        step();
        if (slept_at == 0) slept_at = taken;
        return pysampler::Linux::futex_wait(word, expected, deadline);
    }
    template <class T>
    static int futex_wake(const Atomic<T>& word, int count) noexcept {
        step();
        return pysampler::Linux::futex_wake(word, count);
    }
    static std::uint64_t self_id() noexcept { return pysampler::self_id(); }
    static bool alive(std::uint64_t id) noexcept { return pysampler::Linux::alive(id); }
    static std::int64_t next_look(std::int64_t deadline) noexcept {
        return pysampler::Linux::next_look(deadline);
    }
};

// The same cell, on the stepped platform.
template <class To, class From>
To* stepped(From* cell) {
    static_assert(sizeof(To) == sizeof(From) && alignof(To) == alignof(From));
    return reinterpret_cast<To*>(cell);
}

// Calls trial(1), trial(2), ... until one returns false. `trial(n)` starts from scratch, makes the
// event happen at the n-th step, and returns whether there were that many steps.
template <class Trial>
void at_every_step(Trial&& trial) {
    int n = 1;
    while (trial(n)) ++n;
    Stepped::at = 0;  // keep the event out of the next test
    CHECK(n > 1);
}

// Makes the event happen at each step of a wait, up to the step at which it sleeps. `trial(n,
// deadline)` waits for it; the first call, with n = 0, only counts the steps.
template <class Trial>
void at_every_step_of_a_wait(Trial&& trial) {
    do trial(0, pysampler::now_ns() + pysampler::kMillisecond);
    while (Stepped::slept_at == 0);  // again if the wait was delayed beyond its deadline
    const int last = Stepped::slept_at;
    for (int n = 1; n <= last; ++n) {
        trial(n, pysampler::kForever);
        CHECK(Stepped::taken >= n);
    }
    Stepped::at = 0;
}

// A child that dies at its n-th step.
template <class Body>
Child mortal_child(int n, Body&& body) {
    return Child([&] {
        Stepped::begin(n, [] { kill(getpid(), SIGKILL); });
        body();
    });
}

// Waits for the child; true if the kill ended it.
inline bool died(Child& child) {
    const int status = child.status();
    CHECK(status == 0 || (WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL));
    return status != 0;
}

}  // namespace support
