// Shared memory on loan: arrays outside of the library refer to it, so it must not change any more,
// neither in this process nor in its forks.
//
// A forked child maps the same shared memory: it would see what the parent writes there later, and
// the parent what the child writes. So the child replaces the pages on loan by private copies, made
// at the fork. The parent's fork() returns once the child has them, since it may write there next.
#pragma once

#include <atomic>
#include <cstddef>

namespace pysampler {

class Loan {
 public:
    // `held` says whether anything outside of the library refers to the bytes. The thread that
    // forks calls it, during the fork; it must not allocate.
    Loan(std::byte* at, std::size_t bytes, bool (*held)(const Loan&)) noexcept;
    Loan& operator=(Loan&&) = delete;  // nor copies
    ~Loan();

    // Whether a child may still share these bytes, since it had no memory for its copy or did not
    // answer in time. They must not be written again.
    bool shared() const noexcept { return shared_.load(std::memory_order_relaxed); }

 private:
    friend struct Fork;

    std::byte* at_;
    std::size_t bytes_;
    bool (*held_)(const Loan&);
    bool copied_ = false;  // by the child of the fork under way
    // Relaxed: written and read by threads that take turns (Python's lock).
    std::atomic<bool> shared_ = false;
    Loan* next_;
    Loan* previous_ = nullptr;
};

}  // namespace pysampler
