// Handles: Python objects that refer to parts of a segment and can be closed.
#pragma once

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "arguments.h"
#include "process.h"
#include "segment.h"
#include "wait.h"

namespace pysampler::bindings {

namespace py = pybind11;

// A part of a segment, held by Python. Its memory is accessed through a Pin only.
// Owner: any thread. Each side of a ring, and each wait, is refused to a second thread (Turn).
class Handle {
    friend class Pin;

 public:
    Handle(const char* name, std::shared_ptr<Segment> segment, std::size_t offset)
        : name_(name), segment_(std::move(segment)), offset_(offset) {}
    // Of one that Python does not have yet.
    Handle(Handle&& other) noexcept
        : name_(other.name_),
          class_name_(other.class_name_),
          segment_(std::move(other.segment_)),
          mappings_(std::move(other.mappings_)),
          offset_(other.offset_) {}

    // Releases the memory once no call uses it and no view is left.
    void close() {
        // SYNC: pairs with pin() and unpin(): one of them, or this, finds no pin left, and once.
        if (state_.fetch_or(kClosed, std::memory_order_acq_rel) == 0) unmap();
    }
    bool closed() const { return (state_.load(std::memory_order_acquire) & kClosed) != 0; }
    std::size_t offset() const { return offset_; }

    [[noreturn]] void busy(const char* verb, std::uint64_t waiter) const {
        raise("BusyError", std::string("cannot ") + verb + " " + name_ + ": " +
                               (waiter == 0 ? "another thread" : waiter_text(waiter)) +
                               " waits here, and only one may");
    }
    [[noreturn]] void timed_out(const char* verb, const char* why) const {
        raise("WaitTimeoutError", std::string("cannot ") + verb + " " + name_ + ": " + why);
    }
    [[noreturn]] void lost(const char* verb, const char* peer) const {
        raise("LostError",
              std::string("cannot ") + verb + " " + name_ + ": the " + peer + " is lost");
    }

    // What Python shows. `state()` describes the memory, which stays mapped meanwhile.
    template <class State>
    std::string repr(State&& state) const {
        auto& self = const_cast<Handle&>(*this);
        std::string text = "closed";
        if (self.pin()) {
            struct Unpin {
                Handle& handle;
                ~Unpin() { handle.unpin(); }
            } const at_the_end{self};
            text = state();
        }
        return std::string("<pysampler.sync.") + class_name_ + " " + text + ">";
    }

    static std::string waiter_text(std::uint64_t id) {
        return "pid " + std::to_string(id >> 32) + " thread " + std::to_string(id & 0xffffffff);
    }

 protected:
    void named(const char* class_name) { class_name_ = class_name; }
    // Has `last` called once the handle is closed and no call uses it: the memory is still mapped.
    void before_unmap(std::function<void()> last) { last_ = std::move(last); }
    const Segment& segment() const { return *segment_; }
    // Keeps another mapping for as long as the segment's.
    const std::shared_ptr<std::byte>& also(std::shared_ptr<std::byte> mapping) {
        return mappings_.emplace_back(std::move(mapping));
    }

 private:
    static constexpr std::uint32_t kClosed = 1U << 31;

    // Keeps the memory mapped until unpin(); false if the handle is closed.
    bool pin() {
        std::uint32_t state = state_.load(std::memory_order_relaxed);
        do {
            if ((state & kClosed) != 0) return false;
            // SYNC: pairs with close(), which unmaps only if it finds no pin.
        } while (!state_.compare_exchange_weak(state, state + 1, std::memory_order_acquire,
                                               std::memory_order_relaxed));
        return true;
    }
    void unpin() {
        // SYNC: pairs with close() and other unpins: the last one's unmap() follows all uses.
        if (state_.fetch_sub(1, std::memory_order_acq_rel) == (kClosed | 1)) unmap();
    }

    void unmap() {
        if (last_) last_();
        segment_.reset();
        mappings_.clear();
    }

    const char* name_;  // in errors
    const char* class_name_ = "";
    std::shared_ptr<Segment> segment_;
    std::vector<std::shared_ptr<std::byte>> mappings_;
    std::function<void()> last_;
    std::size_t offset_;
    std::atomic<std::uint32_t> state_{0};  // the number of pins, and kClosed
};

// A call that uses the memory of a handle: the memory stays mapped even if another thread closes
// the handle meanwhile. Throws ClosedError if the handle is closed already.
//
// Convert arguments before constructing a Pin: conversion may run Python code that closes the
// handle.
class Pin {
 public:
    Pin(const Handle& handle, const char* verb) : handle_(const_cast<Handle&>(handle)) {
        if (!handle_.pin()) {
            raise("ClosedError",
                  std::string("cannot ") + verb + " " + handle.name_ + ": it is closed");
        }
    }
    Pin(const Pin&) = delete;
    Pin& operator=(const Pin&) = delete;
    ~Pin() { handle_.unpin(); }

    const std::shared_ptr<Segment>& segment() const { return handle_.segment_; }

 private:
    Handle& handle_;
};

class PySegment : public Handle {
 public:
    explicit PySegment(std::shared_ptr<Segment> segment)
        : Handle("segment", std::move(segment), 0) {
        named("Segment");
    }

    std::string state() const;  // in segment.cpp
};

// A part of a segment: at `offset`, or newly allocated if that is None.
struct Place {
    Place(const PySegment& in, const py::object& offset, std::size_t size,
          std::size_t align = kLine)
        : fresh(offset.is_none()),
          at(fresh ? 0 : static_cast<std::size_t>(whole(offset, "attach", "offset", 0))) {
        const Pin pin(in, "use");
        segment = pin.segment();
        if (fresh) at = segment->allocate(size, align);
        memory = segment->at(at, size, align);
    }

    bool fresh;
    std::size_t at;
    std::shared_ptr<Segment> segment;
    std::byte* memory;

    // Constructs a T there, unless another handle has done so.
    template <class T>
    T* make(std::size_t offset = 0) const {
        return fresh ? new (memory + offset) T : reinterpret_cast<T*>(memory + offset);
    }
};

// One side of a handle (a ring's producer, say), for one thread at a time.
class Side {
 public:
    std::uint64_t by() const { return by_.load(std::memory_order_relaxed); }
    // Whether this thread has the side now. In a forked child, the thread that had it does not
    // exist.
    bool take() {
        const std::uint64_t self = self_id();
        std::uint64_t by = 0;
        // SYNC: pairs with leave(): this user sees what the last one did.
        while (!by_.compare_exchange_weak(by, self, std::memory_order_acquire,
                                          std::memory_order_relaxed)) {
            if (by != 0 && pid_of(by) == pid_of(self)) return false;
        }
        return true;
    }
    void leave() { by_.store(0, std::memory_order_release); }

 private:
    std::atomic<std::uint64_t> by_{0};  // the user's self_id(), or 0
};

// A call that uses a side, and refuses other threads until it ends. Throws BusyError.
class Turn : public Pin {
 public:
    Turn(const Handle& handle, Side& side, const char* verb) : Pin(handle, verb), side_(side) {
        if (!side.take()) handle.busy(verb, side.by());
    }
    Turn(const Turn&) = delete;
    Turn& operator=(const Turn&) = delete;
    ~Turn() { side_.leave(); }

 private:
    Side& side_;
};

// Throws the error for a wait's outcome; `peer` names the other side, `why` explains a time-out.
inline void check_outcome(const Handle& handle, Outcome outcome, const char* verb, const char* peer,
                          const char* why, std::uint64_t waiter) {
    switch (outcome) {
        case Outcome::kReady:
            return;
        case Outcome::kInterrupted:
            raise("ClosedError", std::string("cannot ") + verb + ": it was closed meanwhile");
        case Outcome::kTimedOut:
            handle.timed_out(verb, why);
        case Outcome::kLost:
            handle.lost(verb, peer);
        case Outcome::kBusy:
            handle.busy(verb, waiter);
    }
}

// A base object for arrays, which keeps the mapping as long as one of them lives.
template <class Owner>
py::capsule keep(const std::shared_ptr<Owner>& owner) {
    return py::capsule(new std::shared_ptr<Owner>(owner),
                       [](void* p) { delete static_cast<std::shared_ptr<Owner>*>(p); });
}

// An array over memory of the segment.
inline py::array view(const std::shared_ptr<Segment>& segment, std::byte* at,
                      const py::dtype& dtype, std::vector<py::ssize_t> shape) {
    return py::array(dtype, std::move(shape), at, keep(segment));
}

// One process's role in a primitive. A Watch calls `lost` when that process dies.
struct Part {
    std::string name;
    std::function<void(int)> lost;  // marks the role lost; takes the pid
};

}  // namespace pysampler::bindings
