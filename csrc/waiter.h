// The one place at a flag or a position where a thread waits, and which thread that is.
#pragma once

#include <cstdint>

#include "futex.h"
#include "layout.h"

namespace pysampler {

template <class Os>
class BasicWaiterPlace {
 public:
    // False if another thread, of any process, waits here. One that was killed while it waited is
    // no waiter: its place is taken.
    bool claim() noexcept {
        const std::uint64_t self = Os::self_id();
        for (std::uint64_t owner = 0;;) {
            // SYNC: acquire pairs with leave(): what the last waiter wrote comes before the next's.
            if (id_.compare_exchange_strong(owner, self, std::memory_order_acquire,
                                            std::memory_order_relaxed)) {
                return true;
            }
            if (owner != 0 && Os::alive(owner)) return false;
        }
    }
    void leave() noexcept { id_.store(0, std::memory_order_release); }

    // As in self_id(); 0 for none. For people and errors.
    std::uint64_t id() const noexcept { return id_.load(std::memory_order_relaxed); }

 private:
    alignas(kLine) typename Os::template Atomic<std::uint64_t> id_{0};
};

}  // namespace pysampler
