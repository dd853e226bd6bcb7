// What a pool's parent and its workers say to each other, and where that lies in the segment.
//
//   per worker:  ring of Commands      parent → worker: step group g from and into frame f
//   per group:   Completion, doorbell's member      worker → parent: done; a message follows
//
// All else (what has no fixed shape) goes through a byte ring beside this: the side channel.
#pragma once

#include <cstddef>
#include <cstdint>
#include <numeric>
#include <vector>

#include "doorbell.h"
#include "layout.h"
#include "ring.h"

namespace pysampler {

struct Command {
    enum Kind : std::uint32_t {
        kStep = 0,     // actions lie in the frame
        kRequest = 1,  // what to do is in a message of the side channel
        kNote = 2,     // likewise, without an answer: no completion
    };

    std::uint32_t kind;
    std::uint32_t group;
    std::uint32_t frame;
    std::uint32_t number;  // of the group's commands: an answer in the side channel repeats it
};
static_assert(sizeof(Command) == 16);

// Written by the worker before it posts, read by the parent before it takes.
struct alignas(kLine) Completion {
    std::uint32_t message;  // 1: one follows in the side channel
    std::int64_t began;     // ns of now_ns()
    std::int64_t ended;
};

// Offsets from where the pool's part of the segment begins.
class PoolLayout {
 public:
    // A worker has one command a group in flight, and a few notes before it.
    static constexpr std::uint32_t kGroups = 1024;
    static constexpr std::uint64_t kCommands = std::uint64_t{4} * kGroups;

    explicit PoolLayout(std::vector<std::uint32_t> groups) : groups_(std::move(groups)) {}

    std::uint32_t workers() const { return static_cast<std::uint32_t>(groups_.size()); }
    std::uint32_t groups() const {
        return std::accumulate(groups_.begin(), groups_.end(), std::uint32_t{0});
    }
    std::uint32_t groups_of(std::uint32_t worker) const { return groups_[worker]; }
    std::uint32_t first_group(std::uint32_t worker) const {
        return std::accumulate(groups_.begin(), groups_.begin() + worker, std::uint32_t{0});
    }

    std::size_t commands(std::uint32_t worker) const { return worker * kCommandRing; }
    std::size_t doorbell() const { return workers() * kCommandRing; }
    std::size_t completions() const { return doorbell() + line(Doorbell::bytes(groups())); }
    std::size_t bytes() const { return completions() + groups() * sizeof(Completion); }

    static constexpr RingGeometry geometry() {
        return {kCommands, sizeof(Command), kCommands, kCommands - 1};
    }

 private:
    static constexpr std::size_t line(std::size_t bytes) {
        return (bytes + kLine - 1) / kLine * kLine;
    }
    static constexpr std::size_t kCommandRing =
        (sizeof(RingCell) + kCommands * sizeof(Command) + kLine - 1) / kLine * kLine;

    std::vector<std::uint32_t> groups_;  // of each worker
};

}  // namespace pysampler
