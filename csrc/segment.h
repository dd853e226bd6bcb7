// Shared memory: one sealed memfd, mapped by its creator and by the processes given its fd.
//
// It has no name: only who was given it can open it, and nothing is left behind whatever dies.
// The memory is there before the first use (or creation fails with a reason), and sealed against
// resizing, so a mapped byte never raises SIGBUS.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>

#include "layout.h"

namespace pysampler {

// Not what this build of pysampler lays out: another version, a foreign fd, a bad offset.
class LayoutError : public std::runtime_error {
 public:
    using std::runtime_error::runtime_error;
};

// The machine, a limit or a cgroup has too little memory left.
class OutOfMemory : public std::runtime_error {
 public:
    using std::runtime_error::runtime_error;
};

class Segment {
 public:
    // At least `payload` bytes to allocate from, and behind them `room` bytes that have addresses,
    // and no memory before take(). Throws OutOfMemory, std::system_error.
    static std::shared_ptr<Segment> create(std::size_t payload, std::size_t room = 0);
    // Takes ownership of `fd`, also when it throws. Throws LayoutError, std::system_error.
    static std::shared_ptr<Segment> attach(int fd);

    Segment(const Segment&) = delete;
    Segment& operator=(const Segment&) = delete;
    ~Segment();

    int fd() const noexcept { return fd_; }
    std::size_t size() const noexcept { return size_; }
    std::uint64_t id() const noexcept { return id_; }
    // Bytes still to allocate, in the process that made it; 0 elsewhere.
    std::size_t left() const noexcept { return mine() ? end_ - used_ : 0; }
    bool mine() const noexcept;

    // The creator: the offset of fresh, zeroed bytes on lines of their own. Never given back.
    // Throws OutOfMemory, and LayoutError in another process.
    std::size_t allocate(std::size_t bytes, std::size_t align = kLine);

    // The creator: memory for these bytes of the room. May be repeated. Throws OutOfMemory, and
    // LayoutError unless they lie there.
    void take(std::size_t offset, std::size_t bytes);

    // Throws LayoutError unless [offset, offset + bytes) lies behind the header, aligned.
    std::byte* at(std::size_t offset, std::size_t bytes, std::size_t align = kLine) const;

    // The same bytes twice in a row, so that a run which wraps is contiguous. Offset and length are
    // whole pages. Unmapped with the returned pointer.
    std::shared_ptr<std::byte> map_twice(std::size_t offset, std::size_t bytes) const;

    static std::size_t page() noexcept;

 private:
    Segment(int fd, std::byte* base, std::size_t size);

    int fd_;
    std::byte* base_;
    std::size_t size_;
    std::uint64_t id_ = 0;
    std::size_t end_;  // of what is allocated from; behind it is the room
    std::size_t used_ = sizeof(SegmentHeader);
    int creator_ = 0;  // pid, as this process knows it; 0 if attached
};

// What may still be taken: available memory, and what the cgroup's limit leaves.
std::size_t memory_left();

}  // namespace pysampler
