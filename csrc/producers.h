// The places for producers at a shared ring, and the process that holds each.
//
//   owner:  pid:32 | - | incarnation:16 | lost:1      a word for each place, pid 0 if it is free
//   stamp:  incarnation:16 | index:14                 names one holder of one place
//
// A place gets a new incarnation each time it changes hands, so a stamp tells a producer from
// earlier and later holders of its place. All zero: all places are free.
#pragma once

#include <cstdint>
#include <optional>

#include "futex.h"

namespace pysampler {

template <class Os>
class BasicProducers {
    using Word = std::uint64_t;
    using Atomic = typename Os::template Atomic<Word>;

    static constexpr Word kLost = 1;
    static constexpr Word kNoPid = 0x1ffff;  // the bits of an owner that are not its pid

 public:
    static constexpr int kIndexBits = 14;
    static constexpr std::uint32_t kMax = 1U << kIndexBits;

    // The result of join().
    struct Joined {
        std::uint32_t stamp;
        bool after_dead;  // the last holder had died, and nothing had reported it
    };

    BasicProducers(Atomic* owners, std::uint32_t count) : owners_(owners), count_(count) {}

    std::uint32_t count() const noexcept { return count_; }

    // A producer. Takes a place; nullopt if living processes hold all of them.
    std::optional<Joined> join() noexcept {
        const auto none = [](Word) { return false; };
        const auto ended = [](Word owner) { return !Os::alive(owner); };
        if (const auto stamp = take_place(none)) return Joined{*stamp, false};
        if (const auto stamp = take_place(ended)) return Joined{*stamp, true};
        return std::nullopt;
    }

    // The producer of this stamp gives its place back. False if it no longer holds it, since it was
    // declared dead and another took the place.
    bool leave(std::uint32_t stamp) noexcept {
        Atomic& owner = owners_[index(stamp)];
        // Relaxed: the CAS decides.
        Word seen = owner.load(std::memory_order_relaxed);
        // SYNC: release pairs with the load in gone() and the CAS in take_place(): writes to
        // claimed slots come before those of the next producer; acquire pairs with the CAS in
        // mark_lost().
        return incarnation(seen) == stamp >> kIndexBits &&
               owner.compare_exchange_strong(seen, seen & kNoPid, std::memory_order_acq_rel,
                                             std::memory_order_relaxed);
    }

    // Any thread. Whether the producer of this stamp has left, or is known to be dead.
    bool gone(std::uint32_t stamp) const noexcept {
        if (index(stamp) >= count_) return true;  // garbage
        // SYNC: pairs with the CAS in leave(), mark_lost() and take_place().
        const Word owner = owners_[index(stamp)].load(std::memory_order_acquire);
        return (owner & kLost) || pid(owner) == 0 || incarnation(owner) != stamp >> kIndexBits;
    }

    // Any thread that knows that this process is dead.
    void mark_lost(std::uint32_t dead_pid) noexcept {
        for (std::uint32_t i = 0; i < count_; ++i) {
            // SYNC: pairs with the CAS in take_place().
            Word seen = owners_[i].load(std::memory_order_acquire);
            if (pid(seen) != dead_pid) continue;
            // SYNC: release pairs with the load in all_lost() and gone(): everything the process
            // had published is visible with the loss; acquire pairs with the CAS in take_place().
            owners_[i].compare_exchange_strong(seen, seen | kLost, std::memory_order_acq_rel,
                                               std::memory_order_relaxed);
        }
    }

    // Any thread. Whether at least one place is held, and the holders of all held places are known
    // to be dead.
    bool all_lost() const noexcept {
        bool any = false;
        for (std::uint32_t i = 0; i < count_; ++i) {
            // SYNC: pairs with the CAS in mark_lost() and in take_place().
            const Word owner = owners_[i].load(std::memory_order_acquire);
            if (pid(owner) == 0) continue;
            if (!(owner & kLost)) return false;
            any = true;
        }
        return any;
    }

    // Any thread. Marks dead holders lost; false if there are none. For processes without a Watch.
    bool reap() noexcept {
        bool any = false;
        for (std::uint32_t i = 0; i < count_; ++i) {
            // SYNC: pairs with the CAS in take_place().
            const Word owner = owners_[i].load(std::memory_order_acquire);
            if (pid(owner) == 0 || (owner & kLost) || Os::alive(owner)) continue;
            mark_lost(pid(owner));
            any = true;
        }
        return any;
    }

 private:
    static constexpr std::uint32_t index(std::uint32_t stamp) noexcept {
        return stamp & (kMax - 1);
    }
    static constexpr std::uint32_t pid(Word owner) noexcept {
        return static_cast<std::uint32_t>(owner >> 32);
    }
    static constexpr std::uint32_t incarnation(Word owner) noexcept {
        return static_cast<std::uint32_t>(owner >> 1 & 0xffff);
    }

    // Takes a place that is free, whose holder is known to be lost, or for which `ended(owner)`.
    template <class Ended>
    std::optional<std::uint32_t> take_place(Ended&& ended) noexcept {
        const Word self = static_cast<std::uint32_t>(pid_of(Os::self_id()));
        for (std::uint32_t i = 0; i < count_; ++i) {
            // Relaxed: the CAS decides.
            Word seen = owners_[i].load(std::memory_order_relaxed);
            if (pid(seen) != 0 && !(seen & kLost) && !ended(seen)) continue;
            const std::uint32_t next = (incarnation(seen) + 1) & 0xffff;
            // SYNC: acquire pairs with the CAS in leave() and in mark_lost(); release pairs with
            // the load in gone(), which sees what those released.
            if (owners_[i].compare_exchange_strong(seen, self << 32 | Word{next} << 1,
                                                   std::memory_order_acq_rel,
                                                   std::memory_order_relaxed)) {
                return next << kIndexBits | i;
            }
        }
        return std::nullopt;
    }

    Atomic* owners_;
    std::uint32_t count_;
};

}  // namespace pysampler
