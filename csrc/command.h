// The shared memory between a pool's parent and its workers (pool.h says how they use it).
//
//   per worker:  ring of Commands                  parent -> worker: step group g with frame f,
//                                                  and wake these workers first
//   per group:   Completion, doorbell's member     worker -> parent: done; a message follows or not
//
// The last groups may be inline, run by the parent itself (pool.h): they have no ring. Messages,
// which have no fixed shape, go through two byte rings per worker: its inbox and its outbox.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <vector>

#include "doorbell.h"
#include "layout.h"
#include "ring.h"

namespace pysampler {

struct Command {
    enum Kind : std::uint8_t {
        kStep = 0,       // the actions are in the frame
        kRequest = 1,    // a message in the inbox says what to do
        kNote = 2,       // likewise, but there is no answer and no completion
        kChunk = 3,      // several steps: those of step k are in `frame` + k
        kChunkLast = 4,  // likewise; of each env, only the last results are read
    };

    std::uint8_t kind;
    bool relays;          // the worker wakes others, see pool.h
    std::uint16_t steps;  // of a chunk; 1 for other commands
    std::uint32_t group;
    std::uint32_t frame;
    std::uint32_t number;  // counts the group's commands; the message that answers one repeats it
};

// Whether a block does what the command says, rather than Python.
constexpr bool is_for_block(const Command& command) {
    return command.kind == Command::kStep || command.kind == Command::kChunk ||
           command.kind == Command::kChunkLast;
}

// Written by the worker before it posts, read by the parent before it takes.
struct alignas(kLine) Completion {
    std::uint32_t message;  // 1: one follows in the outbox
};

// Pointers to the shared parts. Slots and completions are plain memory.
template <class Os>
struct BasicPoolParts {
    struct Commands {
        BasicRingCell<Os>* cell;
        typename Os::template Plain<Command>* slots;
    };

    // Of the worker whose index is given, those that it wakes: a tree below the parent.
    std::uint32_t first_below(std::uint32_t worker) const { return fan * (worker + 1); }
    std::uint32_t end_below(std::uint32_t worker) const {
        return std::min(first_below(worker) + fan, static_cast<std::uint32_t>(commands.size()));
    }
    // Wakes those that sleep, `last` after the others. `dead`: the worker may have begun to, and is
    // dead.
    void wake_below(std::uint32_t worker, bool dead = false,
                    std::uint32_t last = UINT32_MAX) const noexcept {
        for (const bool at_last : {false, true}) {
            for (std::uint32_t i = first_below(worker); i < end_below(worker); ++i) {
                auto& tail = commands[i].cell->tail;
                if ((i == last) == at_last) dead ? tail.wake_anyway() : tail.wake_if_armed();
            }
        }
    }

    std::vector<Commands> commands;  // of each worker
    RingGeometry geometry;           // of their rings
    BasicDoorbellCell<Os>* bell;
    BasicMember<Os>* members;                              // of each group
    typename Os::template Plain<Completion>* completions;  // likewise
    std::uint32_t groups;
    std::uint32_t fan = 4;  // how many workers the parent, and each worker, wakes in a round
};

// Offsets from the beginning of the pool's part of the segment.
class PoolLayout {
 public:
    // A worker has one command per group in flight, and a few notes before it.
    static constexpr std::uint32_t kGroups = 1024;
    static constexpr std::uint64_t kCommands = std::uint64_t{4} * kGroups;

    // `groups`: how many each worker has. `own`: how many the parent runs itself.
    explicit PoolLayout(const std::vector<std::uint32_t>& groups, std::size_t own = 0)
        : workers_(groups.size()), groups_(std::accumulate(groups.begin(), groups.end(), own)) {}

    std::size_t commands(std::size_t worker) const { return worker * kCommandRing; }
    std::size_t doorbell() const { return workers_ * kCommandRing; }
    std::size_t completions() const { return doorbell() + line(Doorbell::bytes(groups_)); }
    std::size_t bytes() const { return completions() + groups_ * sizeof(Completion); }

    static constexpr RingGeometry geometry() {
        return {kCommands, sizeof(Command), kCommands, kCommands - 1};
    }

 private:
    static constexpr std::size_t line(std::size_t bytes) {
        return (bytes + kLine - 1) / kLine * kLine;
    }
    static constexpr std::size_t kCommandRing =
        (sizeof(RingCell) + kCommands * sizeof(Command) + kLine - 1) / kLine * kLine;

    std::size_t workers_;
    std::size_t groups_;
};

using PoolParts = BasicPoolParts<Linux>;

// The parts of a pool whose part of the segment begins at `base`.
inline PoolParts pool_parts(std::byte* base, const std::vector<std::uint32_t>& counts,
                            std::uint32_t own = 0) {
    const PoolLayout layout(counts, own);
    PoolParts parts{.commands = {},
                    .geometry = PoolLayout::geometry(),
                    .bell = reinterpret_cast<Doorbell::Cell*>(base + layout.doorbell()),
                    .members = reinterpret_cast<Doorbell::Member*>(base + layout.doorbell() +
                                                                   sizeof(Doorbell::Cell)),
                    .completions = reinterpret_cast<Completion*>(base + layout.completions()),
                    .groups = std::accumulate(counts.begin(), counts.end(), own)};
    for (std::size_t worker = 0; worker < counts.size(); ++worker) {
        auto* cell = reinterpret_cast<RingCell*>(base + layout.commands(worker));
        parts.commands.push_back({cell, reinterpret_cast<Command*>(cell + 1)});
    }
    return parts;
}

}  // namespace pysampler
