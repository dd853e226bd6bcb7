// The place for the one waiter at a flag or a position, and the thread that holds it.
#pragma once

#include <cstdint>

#include "futex.h"
#include "layout.h"

namespace pysampler {

template <class Os>
class BasicWaiterPlace {
 public:
    // Any thread. False if another thread, of any process, holds the place. Takes the place over
    // from a thread that was killed while it waited.
    bool claim() noexcept {
        const std::uint64_t self = Os::self_id();
        for (std::uint64_t owner = 0;;) {
            // SYNC: pairs with the store in leave(): the last waiter's writes come before this
            // one's.
            if (id_.compare_exchange_strong(owner, self, std::memory_order_acquire,
                                            std::memory_order_relaxed)) {
                return true;
            }
            if (owner != 0 && Os::alive(owner)) return false;
        }
    }
    // The thread that holds the place. SYNC: pairs with the CAS in claim().
    void leave() noexcept { id_.store(0, std::memory_order_release); }

    // The holder's self_id(), or 0. Relaxed: only printed.
    std::uint64_t id() const noexcept { return id_.load(std::memory_order_relaxed); }

 private:
    alignas(kLine) typename Os::template Atomic<std::uint64_t> id_{0};
};

}  // namespace pysampler
