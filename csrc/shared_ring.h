// A bounded ring of fixed-size slots from many producers to one consumer, in which a producer may
// die at any point. One word per slot says which lap it belongs to and which producer has it:
//
//   slot:   lap:32 | stamp:30 (producers.h) | state:2
//
//   free(lap) ──claim──▶ claimed(lap, stamp) ──publish──▶ published(lap) ──release──▶ free(lap + 1)
//                              └──── abandon, or the producer is dead ───▶ aborted(lap) ──skip──┘
//
// The claim is a CAS on the slot's word that stores the producer's stamp in the same step: a
// claimed slot always names its producer, so a producer that dies cannot leave a gap. The tail is
// only a hint where to try: a producer that finds its slot taken moves it, so a producer that dies
// before moving it delays no other. Every position is consumed or aborted exactly once, since each
// arrow above is a CAS or, from published and aborted on, done by the consumer alone.
// tests/models/shared_ring.pml is a model of this, checked exhaustively. All zero is a new ring.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>

#include "layout.h"
#include "position.h"
#include "producers.h"
#include "ring.h"
#include "wait.h"

namespace pysampler {

// The segment holds this cell, the owner of each place, the word of each slot, then the slots.
template <class Os>
struct BasicSharedRingCell {
    explicit BasicSharedRingCell(std::uint64_t start = 0)
        : published(0), head(start), tail(start) {}

    BasicPosition<Os, Waiters::kOne> published;  // how many slots were published or abandoned
    BasicPosition<Os, Waiters::kMany> head;
    alignas(kLine) typename Os::template Atomic<std::uint64_t> tail;
};

template <class Os>
class BasicSharedRing {
    using Word = std::uint64_t;
    using Atomic = typename Os::template Atomic<Word>;
    enum State : Word { kFree = 0, kClaimed = 1, kPublished = 2, kAborted = 3 };

 public:
    using Cell = BasicSharedRingCell<Os>;
    using Producers = BasicProducers<Os>;

    struct Parts {
        Cell* cell;
        Atomic* owners;
        Atomic* words;
        std::uint32_t producers;
    };

    BasicSharedRing(const Parts& parts, const RingGeometry& geometry)
        : parts_(parts),
          producers_(parts.owners, parts.producers),
          geometry_(geometry),
          head_seen_(parts.cell->head.load()) {}

    const RingGeometry& geometry() const noexcept { return geometry_; }
    std::uint32_t producers() const noexcept { return producers_.count(); }

    // The creator, for a ring that does not start at 0. Relaxed: no other process has it yet.
    void start_at(std::uint64_t position) noexcept {
        for (std::uint64_t p = position; p < position + geometry_.slots; ++p) {
            word(p).store(make(lap(p), 0, kFree), std::memory_order_relaxed);
        }
    }

    // -- a producer; each thread needs its own handle --

    // Takes a place for producers; false if living processes hold all of them.
    bool join() noexcept {
        const auto joined = producers_.join();
        if (!joined) return false;
        stamp_ = joined->stamp;
        joined_ = true;
        // The consumer may sleep on a slot that the dead holder had claimed.
        if (joined->after_dead) parts_.cell->published.mark_lost();
        return true;
    }
    bool joined() const noexcept { return joined_; }

    // Gives the place back. The consumer, which may sleep on a claimed and unpublished slot, aborts
    // those.
    void leave() noexcept {
        if (!joined_) return;
        joined_ = false;
        if (producers_.leave(stamp_)) parts_.cell->published.mark_lost();
    }

    // Claims a slot and returns its position; nullopt if the ring is full up to `high`.
    std::optional<std::uint64_t> claim() noexcept {
        for (;;) {
            const std::uint64_t tail = tail_hint();
            if (!room(tail) || OpenPosition::lead(head_seen_, tail) < 0) {
                head_seen_ = parts_.cell->head.load();
                if (!room(tail)) return std::nullopt;
                if (OpenPosition::lead(head_seen_, tail) < 0) {  // a hint that fell behind
                    set_tail(tail, head_seen_);
                    continue;
                }
            }
            // SYNC: pairs with the store in free(): the consumer has read the slot's last content.
            Word seen = word(tail).load(std::memory_order_acquire);
            const auto ahead = static_cast<std::int32_t>(lap_of(seen) - lap(tail));
            if (ahead < 0) return std::nullopt;  // the last lap is still unread
            if (ahead == 0 && state(seen) == kFree) {
                // SYNC: release pairs with the load in aborted(): with the claim, the consumer sees
                // the producer's place; acquire pairs with the store in free().
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

    // Hands the slot to the consumer. False if the slot was taken away, since this producer had
    // been declared dead. Does not wake: call post() after one or many.
    bool publish(std::uint64_t position) noexcept { return finish(position, kPublished); }

    // Makes the consumer skip the slot.
    bool abandon(std::uint64_t position) noexcept { return finish(position, kAborted); }

    // Wakes the consumer if needed, after `count` slots were published or abandoned.
    void post(std::uint64_t count) noexcept { parts_.cell->published.post(count); }

    // Waits until a claim may succeed and, if the ring was full, until it has drained to `low`. Any
    // number of producers may wait here. kLost if the consumer is lost.
    template <class Policy>
    Outcome wait_room(std::int64_t deadline, Policy& policy) noexcept {
        const std::uint64_t tail = tail_hint();
        head_seen_ = parts_.cell->head.load();
        // The tail is a hint and may lag behind; a tail `high` slots ahead of the head does not.
        return parts_.cell->head.wait_until(tail - std::min(geometry_.low, geometry_.high - 1),
                                            deadline, policy);
    }

    // -- the consumer --

    // Published slots from the head on, up to `want`, the end of the array or the first unpublished
    // one. Skips slots at the head that dead producers had claimed.
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

    // Waits until the head is published and each of the first `count` positions is published or
    // aborted. kLost if that is not so and all producers have died or left, at least one by dying.
    // A count above low + 1 can deadlock: blocked producers wait for the ring to drain.
    template <class Policy>
    Outcome wait_ready(std::uint64_t count, std::int64_t deadline, Policy& policy) noexcept {
        auto& published = parts_.cell->published;
        if (!published.enter()) return Outcome::kBusy;
        const Outcome outcome = wait_inside(count, deadline, policy);
        published.leave();
        return outcome;
    }

    // -- any thread --

    // Process `pid` is known to be dead. Its published slots stay; its claimed ones are aborted.
    void mark_producer_lost(pid_t pid) noexcept {
        producers_.mark_lost(static_cast<std::uint32_t>(pid));
        parts_.cell->published.mark_lost();
    }
    void mark_consumer_lost() noexcept { parts_.cell->head.mark_lost(); }
    bool consumer_lost() const noexcept { return parts_.cell->head.lost(); }
    void clear_lost() noexcept { parts_.cell->head.clear_lost(); }

    // False if the words are garbage: there is room for a slot that was never freed.
    bool sound() const noexcept {
        const std::uint64_t tail = tail_hint();
        const std::int64_t lead = OpenPosition::lead(parts_.cell->head.load(), tail);
        if (lead < 0 || lead >= static_cast<std::int64_t>(geometry_.high)) return true;  // full
        // SYNC: pairs with the store in free().
        const Word seen = word(tail).load(std::memory_order_acquire);
        return static_cast<std::int32_t>(lap_of(seen) - lap(tail)) >= 0;
    }

    std::uint64_t published() const noexcept { return parts_.cell->published.load(); }
    // Slots claimed or published and not yet released, judged by the tail, a hint.
    std::uint64_t size() const noexcept {
        const std::uint64_t head = parts_.cell->head.load();
        const std::uint64_t fill = OpenPosition::distance(head, tail_hint());
        return fill <= geometry_.slots ? fill : 0;
    }

 private:
    static constexpr Word make(std::uint32_t lap, std::uint32_t stamp, State state) noexcept {
        return static_cast<Word>(lap) << 32 | Word{stamp} << 2 | state;
    }
    static constexpr std::uint32_t lap_of(Word word) noexcept {
        return static_cast<std::uint32_t>(word >> 32);
    }
    static constexpr State state(Word word) noexcept { return static_cast<State>(word & 3); }
    static constexpr std::uint32_t stamp_of(Word word) noexcept {
        return static_cast<std::uint32_t>(word) >> 2;
    }

    std::uint32_t lap(std::uint64_t position) const noexcept {
        return static_cast<std::uint32_t>(position / geometry_.slots);
    }
    Atomic& word(std::uint64_t position) const noexcept {
        return parts_.words[position & geometry_.mask()];
    }
    bool is(std::uint64_t position, State wanted) const noexcept {
        // SYNC: pairs with the CAS in finish() and in aborted().
        const Word seen = word(position).load(std::memory_order_acquire);
        return lap_of(seen) == lap(position) && state(seen) == wanted;
    }

    // The tail is a hint: one behind the head does not make the ring full.
    bool room(std::uint64_t tail) const noexcept {
        return OpenPosition::lead(head_seen_, tail) < static_cast<std::int64_t>(geometry_.high);
    }
    // Relaxed, here and in set_tail(): a hint, the words of the slots decide.
    std::uint64_t tail_hint() const noexcept {
        return parts_.cell->tail.load(std::memory_order_relaxed);
    }
    void set_tail(std::uint64_t from, std::uint64_t to) noexcept {
        parts_.cell->tail.compare_exchange_strong(from, to, std::memory_order_relaxed,
                                                  std::memory_order_relaxed);
    }

    bool finish(std::uint64_t position, State as) noexcept {
        Word mine = make(lap(position), stamp_, kClaimed);
        // SYNC: pairs with the load in is().
        return word(position).compare_exchange_strong(mine, make(lap(position), stamp_, as),
                                                      std::memory_order_release,
                                                      std::memory_order_relaxed);
    }

    void free(std::uint64_t position) noexcept {
        // SYNC: pairs with the load in claim() and in sound().
        word(position).store(make(lap(position) + 1, 0, kFree), std::memory_order_release);
    }

    void pass(std::uint64_t count) noexcept {
        if (count == 0) return;
        if (parts_.cell->head.advance(count) && size() <= geometry_.low) parts_.cell->head.wake();
    }

    // Whether to skip the position: it is aborted, or a dead producer had claimed it and this call
    // aborts it. A position already free for the next lap was released by a consumer that died
    // before pass().
    bool aborted(std::uint64_t position) noexcept {
        // SYNC: pairs with the CAS in claim(): the producer's place is read after it.
        Word seen = word(position).load(std::memory_order_acquire);
        if (lap_of(seen) == lap(position) + 1) return true;
        if (lap_of(seen) != lap(position)) return false;
        if (state(seen) == kClaimed && producers_.gone(stamp_of(seen))) {
            // SYNC: acquire pairs with the CAS in claim() and, if it fails, in finish(); release
            // pairs with the load in is() of a consumer that takes over.
            word(position).compare_exchange_strong(seen, make(lap(position), 0, kAborted),
                                                   std::memory_order_acq_rel,
                                                   std::memory_order_acquire);
            return is(position, kAborted);  // its producer may have published it before it died
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

    template <class Policy>
    Outcome wait_inside(std::uint64_t count, std::int64_t deadline, Policy& policy) noexcept {
        auto& published = parts_.cell->published;
        for (;;) {
            published.clear_lost();
            const std::uint64_t seen = published.load();
            // Before the scan: the last producer may publish, then die.
            const bool lost = producers_.all_lost();
            const std::uint64_t missing = this->missing(count);
            if (missing == 0 && is(parts_.cell->head.own(), kPublished)) return Outcome::kReady;
            if (missing == 0) continue;  // all of it was claimed by dead producers: skipped
            if (lost) return Outcome::kLost;
            const std::int64_t until = Os::next_look(deadline);
            const Outcome outcome = published.wait_inside(seen + missing, until, policy);
            if (outcome == Outcome::kReady || outcome == Outcome::kLost) continue;
            if (outcome == Outcome::kInterrupted) return outcome;
            // Nothing came for long: have producers died? A Watch would say so at once.
            if (this->missing(count) == 0 || reap()) continue;
            if (outcome == Outcome::kTimedOut && until < deadline) continue;
            return outcome;
        }
    }

    // How many of the first `count` positions are neither published nor aborted: at least as many
    // posts must come. An aborted position counts as done and no later one is awaited in its
    // place, since producers may need room to fill that.
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

    bool reap() noexcept {
        if (!producers_.reap()) return false;
        parts_.cell->published.mark_lost();
        return true;
    }

    Parts parts_;
    Producers producers_;
    RingGeometry geometry_;
    std::uint64_t head_seen_;
    std::uint32_t stamp_ = 0;  // of this producer's place, once it has joined
    bool joined_ = false;
};

using SharedRingCell = BasicSharedRingCell<Linux>;
using SharedRing = BasicSharedRing<Linux>;

}  // namespace pysampler
