// What a process does, as slices of time, for another process that asks for it.
//
// The reader asks by setting a deadline; until then, each slice that ends is written to the ring of
// the process that it belongs to. Nothing waits for the reader: a slice that it did not read in
// time is overwritten, and it sees that. Asked for nothing, a process loads one word for each
// slice, which no process writes.
//
// The memory is a segment's room, of which the reader takes the pages before it asks.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "clock.h"
#include "layout.h"

namespace pysampler {

enum class TraceKind : std::uint32_t {
    kStep = 1,  // of an env
    kReset,     // of an env
    kCommand,   // a worker's, from its arrival to its completion; of a group
    kJob,       // the same of anything but a step
    kPolicy,    // acts
    kSend,      // the parent commands groups
    kWait,      // the parent waits for groups
    kRead,      // the parent reads results
    kRecords,   // the learner waits for records
    kRoom,      // an actor waits for room for its records
    kSent,      // a group has got a command, at one moment
    kTaken,     // what a group has done is known to the parent, at one moment
};

struct TraceSwitch {
    // Slices are wanted that end before this, in ns; 0 if none are.
    // SYNC: relaxed. The reader of the trace writes it; a slice more or less does not matter.
    std::atomic<std::int64_t> until;
    std::byte reserved[kLine - 8];
};
static_assert(sizeof(TraceSwitch) == kLine);

struct TraceSlice {
    std::int64_t begin;
    std::int64_t end;
    TraceKind kind;
    std::uint32_t id;  // of the env or the group
    // How many slices came before it, plus 1; 0 while it is being written.
    std::atomic<std::uint64_t> number;
};
static_assert(sizeof(TraceSlice) == 32);

// Any thread of the process writes.
struct TraceRing {
    static constexpr std::uint64_t kSlices = 1 << 14;

    std::atomic<std::uint64_t> claimed;
    std::byte reserved[kLine - 8];
    std::array<TraceSlice, kSlices> slices;
};
static_assert(sizeof(TraceRing) == kLine + TraceRing::kSlices * sizeof(TraceSlice));

class Track {
 public:
    Track(const TraceSwitch& wanted, TraceRing& ring) : wanted_(wanted), ring_(ring) {}

    // When a slice begins that is not timed anyway; 0 if none is wanted.
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
        const std::uint64_t at = ring_.claimed.fetch_add(1, std::memory_order_relaxed);
        TraceSlice& slice = ring_.slices[at % TraceRing::kSlices];
        slice.number.store(0, std::memory_order_relaxed);
        // SYNC: pairs with the second look at `number` in TraceReader.read (Python): a copy that
        // has any of what follows finds that 0, or a later number.
        std::atomic_thread_fence(std::memory_order_release);
        slice.begin = begin;
        slice.end = end;
        slice.kind = kind;
        slice.id = id;
        // SYNC: pairs with the first look at `number` there: if it is the one expected, all of the
        // slice was written before.
        slice.number.store(at + 1, std::memory_order_release);
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
    Traced(const Traced&) = delete;
    Traced& operator=(const Traced&) = delete;
    ~Traced() {
        if (begin_ != 0) track_->add(kind_, id_, begin_, now_ns());
    }

 private:
    std::shared_ptr<Track> track_;  // meanwhile the owner may let go of it
    TraceKind kind_;
    std::uint32_t id_;
    std::int64_t begin_;
};

}  // namespace pysampler
