// A bounded ring of fixed-size slots from one producer to one consumer.
//
//   head (consumer's) ───▶ [ ready to read ] ◀─── tail (producer's)        slot = position & mask
//
// Positions are 62-bit and free-running; each side caches the other's position and reads it again
// only when the cached one is not enough. Advancing the tail is the commit: a producer that dies
// before it leaves nothing. A batch is one advance. Both ends can be waited for (position.h).
//
// The geometry stays in the handle, outside the shared memory, so corrupt shared memory is
// harmless: indices are masked, and a fill above the capacity is noticed (sound()).
#pragma once

#include <algorithm>
#include <cstdint>

#include "layout.h"
#include "position.h"
#include "wait.h"

namespace pysampler {

// The segment holds this cell, then the slots.
template <class Os>
struct BasicRingCell {
    explicit BasicRingCell(std::uint64_t start = 0) : tail(start), head(start) {}

    BasicPosition<Os, Waiters::kOne> tail;
    BasicPosition<Os, Waiters::kOne> head;
};

// `slots` is a power of two. A producer that finds `high` slots full blocks until only `low` are.
struct RingGeometry {
    std::uint64_t slots;
    std::uint64_t slot_bytes;
    std::uint64_t high;
    std::uint64_t low;

    std::uint64_t mask() const noexcept { return slots - 1; }
};

// Consecutive slots.
struct Run {
    std::uint64_t first;  // index of the first slot
    std::uint64_t count;
};

template <class Os>
class BasicRing {
 public:
    using Cell = BasicRingCell<Os>;

    BasicRing(Cell* cell, const RingGeometry& geometry)
        : cell_(cell),
          geometry_(geometry),
          head_seen_(cell->head.load()),
          tail_seen_(cell->tail.load()) {}

    const RingGeometry& geometry() const noexcept { return geometry_; }

    // -- the producer --

    // Free slots from the tail on, up to `want` or the end of the array: write them, then
    // publish().
    Run claim(std::uint64_t want) noexcept {
        const std::uint64_t tail = cell_->tail.own();
        if (room(tail) < want) head_seen_ = cell_->head.load();
        return run(tail, std::min(want, room(tail)));
    }

    void publish(std::uint64_t count) noexcept { cell_->tail.post(count); }
    // The same, but leaves the wake of a consumer that waits for one slot to others.
    void publish_unwoken(std::uint64_t count) noexcept { cell_->tail.advance(count); }

    // Waits until at least `count` slots are free and, if the ring was full, until it has drained
    // to `low`. kLost if the consumer is lost.
    template <class Policy>
    Outcome wait_room(std::uint64_t count, std::int64_t deadline, Policy& policy) noexcept {
        const std::uint64_t tail = cell_->tail.own();
        if (room(tail) >= count) return Outcome::kReady;
        head_seen_ = cell_->head.load();
        if (room(tail) >= count) return Outcome::kReady;
        const std::uint64_t fill = std::min(geometry_.low, geometry_.high - count);
        return cell_->head.wait_until(tail - fill, deadline, policy);
    }

    // -- the consumer --

    // Published slots from the head on, up to `want` or the end of the array: read them, then
    // release().
    Run peek(std::uint64_t want) noexcept {
        const std::uint64_t head = cell_->head.own();
        if (ready(head) < want) tail_seen_ = cell_->tail.load();
        return run(head, std::min(want, ready(head)));
    }

    void release(std::uint64_t count) noexcept { cell_->head.post(count); }

    // Waits until at least `count` slots are published. kLost if the producer is lost before that.
    // A count above low + 1 can deadlock: a blocked producer waits for the ring to drain.
    template <class Policy>
    Outcome wait_ready(std::uint64_t count, std::int64_t deadline, Policy& policy) noexcept {
        return cell_->tail.wait_until(cell_->head.own() + count, deadline, policy);
    }

    // -- any thread --

    std::uint64_t size() const noexcept { return std::min(fill(), geometry_.slots); }
    // Called by one of the two sides: false if the positions are garbage.
    bool sound() const noexcept { return fill() <= geometry_.slots; }

    void mark_producer_lost() noexcept { cell_->tail.mark_lost(); }
    void mark_consumer_lost() noexcept { cell_->head.mark_lost(); }
    void clear_lost() noexcept {
        cell_->tail.clear_lost();
        cell_->head.clear_lost();
    }
    bool producer_lost() const noexcept { return cell_->tail.lost(); }
    bool consumer_lost() const noexcept { return cell_->head.lost(); }
    std::uint64_t published() const noexcept { return cell_->tail.load(); }

 private:
    std::uint64_t fill() const noexcept {
        const std::uint64_t head = cell_->head.load();
        return Position::distance(head, cell_->tail.load());
    }
    std::uint64_t room(std::uint64_t tail) const noexcept {
        const std::uint64_t fill = Position::distance(head_seen_, tail);
        return fill < geometry_.high ? geometry_.high - fill : 0;
    }
    // A fill above `slots` means that another consumer has moved the head since this handle read
    // the tail (peek() reads it again), or that the tail is garbage (then nothing is ever ready;
    // see sound()).
    std::uint64_t ready(std::uint64_t head) const noexcept {
        const std::uint64_t fill = Position::distance(head, tail_seen_);
        return fill <= geometry_.slots ? fill : 0;
    }
    Run run(std::uint64_t position, std::uint64_t count) const noexcept {
        const std::uint64_t first = position & geometry_.mask();
        return {first, std::min(count, geometry_.slots - first)};
    }

    Cell* cell_;
    RingGeometry geometry_;
    std::uint64_t head_seen_;  // by the producer
    std::uint64_t tail_seen_;  // by the consumer
};

using RingCell = BasicRingCell<Linux>;
using Ring = BasicRing<Linux>;

}  // namespace pysampler
