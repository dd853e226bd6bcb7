// Shared memory: one sealed memfd, mapped by its creator and by the processes given its fd.
//
// It has no name: only processes that were given the fd can open it, and nothing is left behind
// when they die. Its memory is allocated at creation, which fails with a reason if it cannot be,
// and it is sealed against resizing, so accessing a mapped byte never raises SIGBUS.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>

#include "descriptor.h"
#include "layout.h"

namespace pysampler {

// Does not match this build's layout: another version, another kind of fd, a bad offset.
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
    // Creates a segment with at least `payload` bytes to allocate from, followed by `room` bytes
    // that have addresses but no memory before take(). Throws OutOfMemory, std::system_error.
    static std::shared_ptr<Segment> create(std::size_t payload, std::size_t room = 0);
    // Maps the segment behind `fd`, and takes ownership of `fd` even if it throws. Throws
    // LayoutError, std::system_error.
    static std::shared_ptr<Segment> attach(int fd);

    Segment& operator=(Segment&&) = delete;  // nor copies
    ~Segment();

    int fd() const noexcept { return fd_.fileno(); }
    std::size_t size() const noexcept { return size_; }
    std::uint64_t id() const noexcept { return id_; }
    // Bytes not yet allocated, in the process that created it; 0 elsewhere.
    std::size_t left() const noexcept {
        return mine() ? end_ - used_.load(std::memory_order_relaxed) : 0;
    }
    // Whether this process made it.
    bool mine() const noexcept;

    // The creator: allocates zeroed bytes that share no cache line with others, and returns their
    // offset. They are never freed. Any thread. Throws OutOfMemory, and LayoutError in another
    // process.
    std::size_t allocate(std::size_t bytes, std::size_t align = kLine);

    // The creator: allocates memory for these bytes of the room. May be repeated. Throws
    // OutOfMemory, and LayoutError unless they are in the room.
    void take(std::size_t offset, std::size_t bytes);

    // The address of `offset`. Throws LayoutError unless [offset, offset + bytes) is behind the
    // header and aligned.
    std::byte* at(std::size_t offset, std::size_t bytes, std::size_t align = kLine) const;

    // Maps the same bytes twice in a row, so that a run that wraps is contiguous. Offset and length
    // are whole pages. The mapping ends with the returned pointer.
    std::shared_ptr<std::byte> map_twice(std::size_t offset, std::size_t bytes) const;

    static std::size_t page() noexcept;

 private:
    Segment(int fd, std::byte* base, std::size_t size);

    Descriptor fd_;
    std::byte* base_;
    std::size_t size_;
    std::uint64_t id_ = 0;
    std::size_t end_;  // of the bytes to allocate from; behind it is the room
    std::atomic<std::size_t> used_{sizeof(SegmentHeader)};
    int creator_ = 0;  // pid, as this process knows it; 0 if attached
};

// How many bytes may still be allocated: the available memory, capped by the cgroups' limits.
std::size_t memory_left();

}  // namespace pysampler
