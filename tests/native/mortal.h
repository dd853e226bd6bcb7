// A platform on which a process dies at the n-th thing it does to shared memory: before each load,
// store, exchange and system call there is a point to be killed at.
#pragma once

#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstdint>

#include "check.h"
#include "futex.h"
#include "support.h"

namespace support {

struct Mortal {
    static inline int lives = 0;

    static void step() {
        if (--lives == 0) kill(getpid(), SIGKILL);
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
    static pysampler::FutexResult futex_wait(const Atomic<T>& word, T expected,
                                             std::int64_t deadline) noexcept {
        step();
        return pysampler::Linux::futex_wait(word, expected, deadline);
    }
    template <class T>
    static int futex_wake(const Atomic<T>& word, int count) noexcept {
        step();
        return pysampler::Linux::futex_wake(word, count);
    }
    static std::uint64_t self_id() noexcept { return pysampler::self_id(); }
    static bool alive(std::uint64_t id) noexcept { return pysampler::Linux::alive(id); }
};

// The same cell, as a mortal sees it.
template <class To, class From>
To* mortal(From* cell) {
    static_assert(sizeof(To) == sizeof(From) && alignof(To) == alignof(From));
    return reinterpret_cast<To*>(cell);
}

// `trial(n)` begins anew, runs something in a child that dies at its n-th step, and looks at what
// is left; it says whether the child died. Goes on until one lives through all of it.
template <class Trial>
void at_every_step(Trial&& trial) {
    int n = 1;
    while (trial(n)) ++n;
    CHECK(n > 2);
}

// A child with so many steps to live. Whatever it does after them is not done.
template <class Body>
Child mortal_child(int lives, Body&& body) {
    return Child([&] {
        Mortal::lives = lives;
        body();
    });
}

// How it ended: true if by the kill.
inline bool died(Child& child) {
    const int status = child.status();
    CHECK(status == 0 || (WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL));
    return status != 0;
}

}  // namespace support
