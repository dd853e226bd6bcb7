// Traces the work of a process as slices of time, on request of another process.
//
// The reader asks by setting a deadline; until then, a process writes each slice that ends to its
// ring. It never waits for the reader: a slice not read in time is overwritten, and the reader
// notices. While no trace is wanted, a slice costs a process one load of a word that stays in its
// cache, since no process writes it.
//
// The memory is a segment's room; the reader takes its pages before it asks.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "clock.h"
#include "layout.h"

namespace pysampler {

enum class TraceKind : std::uint32_t {
    kStep = 1,  // of an env
    kReset,     // of an env
    kCommand,   // in a worker, from its arrival to its completion; of a group
    kJob,       // the same for anything but a step
    kPolicy,    // the policy acts
    kSend,      // the parent commands groups
    kWait,      // the parent waits for groups
    kRead,      // the parent reads results
    kRecords,   // the learner waits for records
    kRoom,      // an actor waits for room for its records
    kSent,      // a group has got a command, at one moment
    kTaken,     // the parent knows a group's results, at one moment
};

struct TraceSwitch {
    // Slices that end before this, in ns, are wanted; 0 if none are.
    // SYNC: relaxed. The reader of the trace writes it; one slice more or less does not matter.
    std::atomic<std::int64_t> until;
    std::byte reserved[kLine - 8];
};
static_assert(sizeof(TraceSwitch) == kLine);

struct Slice {
    std::int64_t begin;
    std::int64_t end;
    TraceKind kind;
    std::uint32_t id;  // of the env or the group
};
static_assert(sizeof(Slice) == 24);

// A seqlock without fences, which ThreadSanitizer does not know: a reader that copied any part of a
// newer slice does not find the expected number afterwards. A writer that stalls while others write
// a whole lap of the ring may leave a mixed slice: a wrong picture, nothing worse.
class TraceSlot {
 public:
    // Writes the slice that `before` others preceded.
    void write(const Slice& slice, std::uint64_t before) {
        number_.store(0, std::memory_order_relaxed);
        set(begin_, slice.begin);
        set(end_, slice.end);
        set(kind_, slice.kind);
        set(id_, slice.id);
        set(number_, before + 1);
    }

    // The slice that `before` others preceded, if the slot holds that one.
    std::optional<Slice> read(std::uint64_t before) const {
        if (get(number_) != before + 1) return std::nullopt;
        const Slice slice{get(begin_), get(end_), get(kind_), get(id_)};
        if (number_.load(std::memory_order_relaxed) != before + 1) return std::nullopt;
        return slice;
    }

 private:
    template <typename T>
    static void set(std::atomic<T>& field, T value) {
        // SYNC: pairs with the load in get(): a reader of a field of this slice finds number_ at 0,
        // or newer, when it looks again; a reader of its number finds all its fields, or newer.
        field.store(value, std::memory_order_release);
    }

    template <typename T>
    static T get(const std::atomic<T>& field) {
        // SYNC: pairs with the store in set(): see there.
        return field.load(std::memory_order_acquire);
    }

    std::atomic<std::int64_t> begin_;
    std::atomic<std::int64_t> end_;
    std::atomic<TraceKind> kind_;
    std::atomic<std::uint32_t> id_;
    // How many slices came before it, plus 1; 0 while it is being written.
    std::atomic<std::uint64_t> number_;
};
static_assert(sizeof(TraceSlot) == 32);

// Any thread of the process writes.
struct TraceRing {
    static constexpr std::uint64_t kSlices = 1 << 14;

    // How many slices were written or are being written.
    // SYNC: relaxed. Each slot's number says which slice it holds.
    std::atomic<std::uint64_t> claimed;
    std::byte reserved[kLine - 8];
    std::array<TraceSlot, kSlices> slots;

    TraceSlot& slot(std::uint64_t before) { return slots[before % kSlices]; }
    const TraceSlot& slot(std::uint64_t before) const { return slots[before % kSlices]; }
};
static_assert(sizeof(TraceRing) == kLine + TraceRing::kSlices * sizeof(TraceSlot));

// Owner: any thread of the process.
class Track {
 public:
    Track(const TraceSwitch& wanted, TraceRing& ring) : wanted_(wanted), ring_(ring) {}

    // The time now, for a slice that is not timed anyway; 0 if no trace is wanted.
    std::int64_t begin() const {
        return wanted_.until.load(std::memory_order_relaxed) == 0 ? 0 : now_ns();
    }

    void add(TraceKind kind, std::uint32_t id, std::int64_t begin, std::int64_t end) {
        if (end < wanted_.until.load(std::memory_order_relaxed)) [[unlikely]] {
            write(kind, id, begin, end);
        }
    }

 private:
    [[gnu::noinline]] void write(TraceKind kind, std::uint32_t id, std::int64_t begin,
                                 std::int64_t end) {
        const std::uint64_t before = ring_.claimed.fetch_add(1, std::memory_order_relaxed);
        ring_.slot(before).write({begin, end, kind, id}, before);
    }

    const TraceSwitch& wanted_;
    TraceRing& ring_;
};

// A slice from here to the end of the scope, on a track if there is one.
class Traced {
 public:
    Traced(const std::shared_ptr<Track>& track, TraceKind kind, std::uint32_t id)
        : kind_(kind), id_(id), begin_(track == nullptr ? 0 : track->begin()) {
        if (begin_ != 0) track_ = track;
    }
    Traced& operator=(Traced&&) = delete;  // nor copies
    ~Traced() {
        if (begin_ != 0) track_->add(kind_, id_, begin_, now_ns());
    }

 private:
    std::shared_ptr<Track> track_;  // shared: the owner may drop it meanwhile
    TraceKind kind_;
    std::uint32_t id_;
    std::int64_t begin_;
};

// Reads the slices of one process, from now on, in any process.
class TraceReader {
 public:
    explicit TraceReader(const TraceRing& ring)
        : ring_(ring), next_(ring.claimed.load(std::memory_order_relaxed)) {}

    // The slices that ended since the last call, in the order in which they ended.
    std::vector<Slice> read() {
        const std::uint64_t end = ring_.claimed.load(std::memory_order_relaxed);
        if (end > next_ + TraceRing::kSlices) {
            missed_ += end - TraceRing::kSlices - next_;
            next_ = end - TraceRing::kSlices;
        }
        std::vector<Slice> read;
        read.reserve(end > next_ ? end - next_ : 0);
        for (; next_ < end; ++next_) {
            if (const std::optional<Slice> slice = ring_.slot(next_).read(next_)) {
                read.push_back(*slice);
            } else if (end - next_ <= kUnderWay) {
                break;  // the next call returns it, unless its writer died while writing
            } else {
                ++missed_;
            }
        }
        return read;
    }

    // How many slices were overwritten before they were read.
    std::uint64_t missed() const { return missed_; }

 private:
    // How many of the newest slices may be claimed but not yet written.
    static constexpr std::uint64_t kUnderWay = 64;

    const TraceRing& ring_;
    std::uint64_t next_;
    std::uint64_t missed_ = 0;
};

}  // namespace pysampler
