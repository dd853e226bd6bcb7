// A bounded ring of fixed-size slots from many producers to one consumer, in which a producer may
// die at any point. One word a slot says whose it is and for which lap:
//
//   slot:   lap:32 | incarnation:16 | owner:14 | state:2       owner:  pid:32 | - | incarnation:16
//   | lost:1
//
//   free(lap) ──claim──▶ claimed(lap, owner) ──publish──▶ published(lap) ──release──▶ free(lap + 1)
//                              └──── abandon, or the owner is dead ────▶ aborted(lap) ──skip──┘
//
// The claim is a CAS on the slot's word that stamps the owner in the same step: a slot that is
// claimed says by whom, so no producer that dies can leave a hole without a name. The tail is only
// a hint where to try, moved on by the producer that finds its slot taken; a producer that dies
// before moving it holds no one up. Every position is consumed or aborted exactly once, since each
// arrow above is a CAS or, from published and aborted on, the consumer's alone.
// tests/models/shared_ring.pml is this, checked exhaustively. All zero is a fresh ring.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>

#include "layout.h"
#include "position.h"
#include "ring.h"
#include "wait.h"

namespace pysampler {

// What lies in the segment: this, an owner word each, a slot word each, then the slots.
template <class Os>
struct BasicSharedRingCell {
    explicit BasicSharedRingCell(std::uint64_t start = 0)
        : published(0), head(start), tail(start) {}

    BasicPosition<Os, Waiters::kOne> published;  // how many were published or abandoned, ever
    BasicPosition<Os, Waiters::kMany> head;
    alignas(kLine) typename Os::template Atomic<std::uint64_t> tail;
};

template <class Os>
class BasicSharedRing {
    using Word = std::uint64_t;
    using Atomic = typename Os::template Atomic<Word>;
    enum State : Word { kFree = 0, kClaimed = 1, kPublished = 2, kAborted = 3 };

    static constexpr Word kOwnerLost = 1;

 public:
    using Cell = BasicSharedRingCell<Os>;
    static constexpr std::uint32_t kMaxProducers = 1U << 14;

    struct Parts {
        Cell* cell;
        Atomic* owners;
        Atomic* words;
        std::uint32_t producers;
    };

    BasicSharedRing(const Parts& parts, const RingGeometry& geometry)
        : parts_(parts), geometry_(geometry), head_seen_(parts.cell->head.load()) {}

    const RingGeometry& geometry() const noexcept { return geometry_; }
    std::uint32_t producers() const noexcept { return parts_.producers; }

    // Once, by the creator, for a ring that does not start at 0.
    void start_at(std::uint64_t position) noexcept {
        for (std::uint64_t p = position; p < position + geometry_.slots; ++p) {
            word(p).store(make(lap(p), 0, kFree), std::memory_order_relaxed);
        }
    }

    // -- a producer; each thread has a handle of its own -----------------------------------------

    // Takes one of the places for producers; false if all are held by the living.
    bool join() noexcept {
        const auto no_one = [](Word) { return false; };
        const auto dead = [](Word owner) { return !Os::alive(owner); };
        if (take_place(no_one)) return true;
        if (!take_place(dead)) return false;
        parts_.cell->published.mark_lost();  // the consumer may sleep on what the dead had claimed
        return true;
    }
    bool joined() const noexcept { return joined_; }

    // Gives the place back. Slots claimed and not published are aborted by the consumer, who may be
    // asleep on one of them.
    void leave() noexcept {
        if (!joined_) return;
        joined_ = false;
        Atomic& owner = parts_.owners[stamp_ & (kMaxProducers - 1)];
        Word mine = owner.load(std::memory_order_relaxed);
        // Not ours any more if this producer was declared dead and its place taken.
        if (incarnation(mine) != stamp_ >> 14 ||
            !owner.compare_exchange_strong(mine, mine & 0x1ffff, std::memory_order_acq_rel,
                                           std::memory_order_relaxed)) {
            return;
        }
        parts_.cell->published.mark_lost();
    }

    // A slot for this producer, by position; nothing if the ring is full up to `high`.
    std::optional<std::uint64_t> claim() noexcept {
        for (;;) {
            const std::uint64_t tail = parts_.cell->tail.load(std::memory_order_relaxed);
            if (!room(tail) || OpenPosition::lead(head_seen_, tail) < 0) {
                head_seen_ = parts_.cell->head.load();
                if (!room(tail)) return std::nullopt;
                if (OpenPosition::lead(head_seen_, tail) < 0) {  // a hint that fell behind
                    set_tail(tail, head_seen_);
                    continue;
                }
            }
            // SYNC: acquire pairs with release(): the consumer has read what lay here.
            Word seen = word(tail).load(std::memory_order_acquire);
            const auto ahead = static_cast<std::int32_t>(lap_of(seen) - lap(tail));
            if (ahead < 0) return std::nullopt;  // the last lap is still unread
            if (ahead == 0 && state(seen) == kFree) {
                if (!word(tail).compare_exchange_strong(seen, make(lap(tail), stamp_, kClaimed),
                                                        std::memory_order_acq_rel,
                                                        std::memory_order_relaxed)) {
                    continue;
                }
                set_tail(tail, tail + 1);
                return tail;
            }
            set_tail(tail, tail + 1);  // taken, by a producer that may have died before moving it
        }
    }

    // What was written to the slot is there for the consumer. False if the slot was taken away:
    // this producer had been declared dead. Does not wake: post() after one or many.
    bool publish(std::uint64_t position) noexcept { return finish(position, kPublished); }

    // The slot is skipped by the consumer.
    bool abandon(std::uint64_t position) noexcept { return finish(position, kAborted); }

    // After `count` slots were published or abandoned.
    void post(std::uint64_t count) noexcept { parts_.cell->published.post(count); }

    // Until a claim may succeed; and if the ring was full, until it has drained to `low`. Any
    // number of producers wait here. kLost if the consumer is.
    template <class Policy>
    Outcome wait_room(std::int64_t deadline, Policy& policy) noexcept {
        const std::uint64_t tail = parts_.cell->tail.load(std::memory_order_relaxed);
        head_seen_ = parts_.cell->head.load();
        // The tail is a hint and may lag behind: `high` slots in front of the head are certain.
        return parts_.cell->head.wait_until(tail - std::min(geometry_.low, geometry_.high - 1),
                                            deadline, policy);
    }

    // -- the consumer ----------------------------------------------------------------------------

    // Published slots in front of the head, up to `want`, to the end of the array, and to the first
    // that is not published. Skips what the dead have left at the head.
    Run peek(std::uint64_t want) noexcept {
        skip_aborted();
        const std::uint64_t head = parts_.cell->head.own();
        const std::uint64_t first = head & geometry_.mask();
        const std::uint64_t most = std::min(want, geometry_.slots - first);
        std::uint64_t count = 0;
        while (count < most && is(head + count, kPublished)) ++count;
        return {first, count};
    }

    // The first `count` slots of the last peek may be written again.
    void release(std::uint64_t count) noexcept {
        const std::uint64_t head = parts_.cell->head.own();
        for (std::uint64_t p = head; p < head + count; ++p) free(p);
        pass(count);
    }

    // Until the first `count` positions are published, those aborted among them aside, and the head
    // is published. kLost if every producer that ever joined has died or left, at least one by
    // dying, and they are not. A count above low + 1 may wait for producers who wait to be drained.
    template <class Policy>
    Outcome wait_ready(std::uint64_t count, std::int64_t deadline, Policy& policy) noexcept {
        auto& published = parts_.cell->published;
        if (!published.enter()) return Outcome::kBusy;
        const Outcome outcome = wait_inside(count, deadline, policy);
        published.leave();
        return outcome;
    }

    // -- anyone ----------------------------------------------------------------------------------

    // The reaper: a process is dead. What it had published stays; what it had claimed is aborted.
    void mark_producer_lost(pid_t pid) noexcept {
        for (std::uint32_t i = 0; i < parts_.producers; ++i) {
            Word seen = parts_.owners[i].load(std::memory_order_acquire);
            if (owner_pid(seen) == static_cast<std::uint32_t>(pid)) {
                parts_.owners[i].compare_exchange_strong(
                    seen, seen | kOwnerLost, std::memory_order_acq_rel, std::memory_order_relaxed);
            }
        }
        parts_.cell->published.mark_lost();
    }
    void mark_consumer_lost() noexcept { parts_.cell->head.mark_lost(); }
    bool consumer_lost() const noexcept { return parts_.cell->head.lost(); }
    void clear_lost() noexcept { parts_.cell->head.clear_lost(); }

    // False if there is garbage in it: a slot with room for it was never freed.
    bool sound() const noexcept {
        const std::uint64_t tail = tail_seen();
        const std::int64_t lead = OpenPosition::lead(parts_.cell->head.load(), tail);
        if (lead < 0 || lead >= static_cast<std::int64_t>(geometry_.high)) return true;  // no claim
        const Word seen = word(tail).load(std::memory_order_acquire);
        return static_cast<std::int32_t>(lap_of(seen) - lap(tail)) >= 0;
    }

    std::uint64_t published() const noexcept { return parts_.cell->published.load(); }
    // Claimed or published and not yet released, as far as the tail has been told.
    std::uint64_t size() const noexcept {
        const std::uint64_t head = parts_.cell->head.load();
        const std::uint64_t fill = OpenPosition::distance(head, tail_seen());
        return fill <= geometry_.slots ? fill : 0;
    }

 private:
    static constexpr Word make(std::uint32_t lap, Word stamp, State state) noexcept {
        return static_cast<Word>(lap) << 32 | stamp << 2 | state;
    }
    static constexpr std::uint32_t lap_of(Word word) noexcept {
        return static_cast<std::uint32_t>(word >> 32);
    }
    static constexpr State state(Word word) noexcept { return static_cast<State>(word & 3); }
    static constexpr std::uint32_t stamp_of(Word word) noexcept {
        return static_cast<std::uint32_t>(word) >> 2;
    }
    static constexpr std::uint32_t owner_pid(Word owner) noexcept {
        return static_cast<std::uint32_t>(owner >> 32);
    }
    static constexpr Word incarnation(Word owner) noexcept { return owner >> 1 & 0xffff; }

    std::uint32_t lap(std::uint64_t position) const noexcept {
        return static_cast<std::uint32_t>(position / geometry_.slots);
    }
    Atomic& word(std::uint64_t position) const noexcept {
        return parts_.words[position & geometry_.mask()];
    }
    bool is(std::uint64_t position, State wanted) const noexcept {
        // SYNC: acquire pairs with finish().
        const Word seen = word(position).load(std::memory_order_acquire);
        return lap_of(seen) == lap(position) && state(seen) == wanted;
    }

    // A tail hint behind the head is no reason to think the ring full; a head seen so long ago that
    // the tail is more than a ring ahead of it is one to look again.
    bool room(std::uint64_t tail) const noexcept {
        return OpenPosition::lead(head_seen_, tail) < static_cast<std::int64_t>(geometry_.high);
    }
    std::uint64_t tail_seen() const noexcept {
        return parts_.cell->tail.load(std::memory_order_relaxed);
    }
    void set_tail(std::uint64_t from, std::uint64_t to) noexcept {
        parts_.cell->tail.compare_exchange_strong(from, to, std::memory_order_relaxed,
                                                  std::memory_order_relaxed);
    }

    bool finish(std::uint64_t position, State as) noexcept {
        Word mine = make(lap(position), stamp_, kClaimed);
        // SYNC: release pairs with is().
        return word(position).compare_exchange_strong(mine, make(lap(position), stamp_, as),
                                                      std::memory_order_release,
                                                      std::memory_order_relaxed);
    }

    void free(std::uint64_t position) noexcept {
        // SYNC: release pairs with claim().
        word(position).store(make(lap(position) + 1, 0, kFree), std::memory_order_release);
    }

    void pass(std::uint64_t count) noexcept {
        if (count == 0) return;
        if (parts_.cell->head.advance(count) && size() <= geometry_.low) parts_.cell->head.ring();
    }

    bool dead(Word claimed) const noexcept {
        const std::uint32_t stamp = stamp_of(claimed);
        const std::uint32_t index = stamp & (kMaxProducers - 1);
        if (index >= parts_.producers) return true;  // garbage
        const Word owner = parts_.owners[index].load(std::memory_order_acquire);
        return (owner & kOwnerLost) || owner_pid(owner) == 0 || incarnation(owner) != stamp >> 14;
    }

    // Whether the position is out of the way: aborted, or claimed by the dead and aborted now. A
    // position already free for the next lap was released by a consumer that died before passing.
    bool aborted(std::uint64_t position) noexcept {
        Word seen = word(position).load(std::memory_order_acquire);
        if (lap_of(seen) == lap(position) + 1) return true;
        if (lap_of(seen) != lap(position)) return false;
        if (state(seen) == kClaimed && dead(seen)) {
            word(position).compare_exchange_strong(seen, make(lap(position), 0, kAborted),
                                                   std::memory_order_acq_rel,
                                                   std::memory_order_acquire);
            return is(position, kAborted);  // its owner may have published it before it died
        }
        return state(seen) == kAborted;
    }

    void skip_aborted() noexcept {
        const std::uint64_t head = parts_.cell->head.own();
        std::uint64_t skipped = 0;
        while (skipped < geometry_.slots && aborted(head + skipped)) {
            free(head + skipped);
            ++skipped;
        }
        pass(skipped);
    }

    // A free one, one whose holder is known to be lost, or one whose holder `gone(owner)`.
    template <class Gone>
    bool take_place(Gone&& gone) noexcept {
        const Word pid = static_cast<std::uint32_t>(pid_of(Os::self_id()));
        for (std::uint32_t i = 0; i < parts_.producers; ++i) {
            Word seen = parts_.owners[i].load(std::memory_order_relaxed);
            if (owner_pid(seen) != 0 && !(seen & kOwnerLost) && !gone(seen)) continue;
            // A new incarnation: what the last holder left claimed is not ours.
            const Word next = (incarnation(seen) + 1) & 0xffff;
            if (parts_.owners[i].compare_exchange_strong(seen, pid << 32 | next << 1,
                                                         std::memory_order_acq_rel,
                                                         std::memory_order_relaxed)) {
                stamp_ = next << 14 | i;
                joined_ = true;
                return true;
            }
        }
        return false;
    }

    template <class Policy>
    Outcome wait_inside(std::uint64_t count, std::int64_t deadline, Policy& policy) noexcept {
        auto& published = parts_.cell->published;
        for (;;) {
            published.clear_lost();
            const std::uint64_t seen = published.load();
            const bool lost = all_lost();  // before the scan: the last one may publish, then die
            const std::uint64_t missing = this->missing(count);
            if (missing == 0 && is(parts_.cell->head.own(), kPublished)) return Outcome::kReady;
            if (missing == 0) continue;  // the dead had claimed all of it: skipped, look further
            if (lost) return Outcome::kLost;
            const std::int64_t until = Os::next_look(deadline);
            const Outcome outcome = published.wait_inside(seen + missing, until, policy);
            if (outcome == Outcome::kReady || outcome == Outcome::kLost) continue;
            if (outcome == Outcome::kInterrupted) return outcome;
            // Nothing for long: are they alive? (Where a Watch runs, it has told already.)
            if (this->missing(count) == 0 || reap()) continue;
            if (outcome == Outcome::kTimedOut && until < deadline) continue;
            return outcome;
        }
    }

    // How many of the first `count` positions are neither published nor aborted: at least so many
    // posts must come. An aborted one in between is not made up for by one further on: those who
    // would fill that may be waiting for room.
    std::uint64_t missing(std::uint64_t count) noexcept {
        skip_aborted();
        const std::uint64_t head = parts_.cell->head.own();
        const std::uint64_t window = std::min(count, geometry_.slots);
        std::uint64_t missing = 0;
        for (std::uint64_t p = head; p < head + window; ++p) {
            if (!is(p, kPublished) && !aborted(p)) ++missing;
        }
        return missing;
    }

    bool all_lost() const noexcept {
        bool any = false;
        for (std::uint32_t i = 0; i < parts_.producers; ++i) {
            const Word owner = parts_.owners[i].load(std::memory_order_acquire);
            if (owner_pid(owner) == 0) continue;
            if (!(owner & kOwnerLost)) return false;
            any = true;
        }
        return any;
    }

    // For those without a Watch: a process that holds a place and is no more. True if there was
    // one.
    bool reap() noexcept {
        bool any = false;
        for (std::uint32_t i = 0; i < parts_.producers; ++i) {
            const Word owner = parts_.owners[i].load(std::memory_order_acquire);
            if (owner_pid(owner) == 0 || (owner & kOwnerLost) || Os::alive(owner)) continue;
            mark_producer_lost(static_cast<pid_t>(owner_pid(owner)));
            any = true;
        }
        return any;
    }

    Parts parts_;
    RingGeometry geometry_;
    std::uint64_t head_seen_;
    Word stamp_ = 0;
    bool joined_ = false;
};

using SharedRingCell = BasicSharedRingCell<Linux>;
using SharedRing = BasicSharedRing<Linux>;

}  // namespace pysampler
