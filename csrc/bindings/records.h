// What the two rings of fixed slots share in Python: records of one dtype and shape.
#pragma once

#include <pybind11/numpy.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <string>
#include <vector>

#include "ring.h"
#include "support.h"

namespace pysampler::bindings {

// One record: an array of `dtype` and `shape`, C-contiguous; n records are one array too.
class Record {
 public:
    Record(py::dtype dtype, std::vector<py::ssize_t> shape)
        : dtype_(std::move(dtype)), shape_(std::move(shape)), bytes_(dtype_.itemsize()) {
        for (const py::ssize_t n : shape_) {
            if (__builtin_mul_overflow(bytes_, n, &bytes_)) bytes_ = -1;
        }
        if (bytes_ <= 0) {
            throw py::value_error("cannot make ring: records of " + std::to_string(bytes_) +
                                  " bytes, expected at least 1");
        }
    }

    std::uint64_t bytes() const { return static_cast<std::uint64_t>(bytes_); }
    const py::dtype& dtype() const { return dtype_; }
    const std::vector<py::ssize_t>& shape() const { return shape_; }

    std::vector<py::ssize_t> shape_of(std::uint64_t count) const {
        std::vector<py::ssize_t> shape{static_cast<py::ssize_t>(count)};
        shape.insert(shape.end(), shape_.begin(), shape_.end());
        return shape;
    }

    // `records` as bytes of whole records. It must be contiguous and of the dtype: sync.py sees to
    // that; this only makes sure that nothing is read beyond it.
    std::uint64_t count_of(const py::array& records) const {
        if (!(records.flags() & py::array::c_style) ||
            static_cast<std::uint64_t>(records.nbytes()) % bytes() != 0) {
            throw py::value_error("cannot push to ring: not a contiguous array of whole records");
        }
        return static_cast<std::uint64_t>(records.nbytes()) / bytes();
    }

 private:
    py::dtype dtype_;
    std::vector<py::ssize_t> shape_;
    py::ssize_t bytes_;
};

inline RingGeometry geometry_of(const Record& record, const py::object& slots,
                                const py::object& high, const py::object& low) {
    RingGeometry geometry{.slots = whole(slots, "make ring", "slots", 1),
                          .slot_bytes = record.bytes(),
                          .high = 0,
                          .low = 0};
    if (!std::has_single_bit(geometry.slots) || geometry.slots > Position::kMaxAhead) {
        throw py::value_error("cannot make ring: slots " + std::to_string(geometry.slots) +
                              ", expected a power of two up to 2**30");
    }
    geometry.high = high.is_none() ? geometry.slots : whole(high, "make ring", "high", 1);
    geometry.low = low.is_none() ? geometry.high - 1 : whole(low, "make ring", "low", 0);
    if (geometry.high > geometry.slots || geometry.low >= geometry.high) {
        throw py::value_error("cannot make ring: low " + std::to_string(geometry.low) + ", high " +
                              std::to_string(geometry.high) + ", slots " +
                              std::to_string(geometry.slots) + ", expected low < high <= slots");
    }
    if (record.bytes() > (std::uint64_t{1} << 62) / geometry.slots) {
        throw py::value_error("cannot make ring: " + std::to_string(geometry.slots) + " slots of " +
                              std::to_string(record.bytes()) + " bytes are too large");
    }
    return geometry;
}

// More slots handed over or back than the side holds.
[[noreturn]] inline void not_held(const char* verb, std::uint64_t got, std::uint64_t held,
                                  const char* how) {
    throw py::value_error(std::string("cannot ") + verb + " slots: " + std::to_string(got) +
                          ", expected at most the " + std::to_string(held) + " " + how);
}

// A copy in or out where the side already works on slots in place.
[[noreturn]] inline void still_held(const char* verb, std::uint64_t count, const char* how,
                                    const char* yet) {
    throw py::value_error(std::string("cannot ") + verb + " ring: " + std::to_string(count) +
                          " slots are " + how + " and not " + yet + " yet");
}

// Copies up to `most` published records out of the ring; returns how many.
template <class AnyRing>
std::uint64_t copy_out(AnyRing& ring, const std::byte* slots, std::byte* to, std::uint64_t most) {
    const std::uint64_t bytes = ring.geometry().slot_bytes;
    std::uint64_t copied = 0;
    while (copied < most) {
        const Run run = ring.peek(most - copied);
        if (run.count == 0) break;
        std::memcpy(to + copied * bytes, slots + run.first * bytes, run.count * bytes);
        ring.release(run.count);
        copied += run.count;
    }
    return copied;
}

// How many there must be, of up to `count` that are wanted.
inline std::uint64_t least_of(const py::object& least, std::uint64_t count, const char* verb) {
    const std::uint64_t wanted = whole(least, verb, "least", 0);
    if (wanted > count) {
        throw py::value_error(std::string("cannot ") + verb + ": least " + std::to_string(wanted) +
                              ", expected at most the count, " + std::to_string(count));
    }
    return wanted;
}

// What is asked of pop_many().
struct Popping {
    Popping(const py::object& up_to, const py::object& at_least, const Seconds& timeout,
            const Nanoseconds& deadline)
        : count(whole(up_to, "pop from ring", "count", 1)),
          least(least_of(at_least, count, "pop from ring")),
          until(deadline_of(timeout, deadline)) {}

    std::uint64_t count;
    std::uint64_t least;
    std::int64_t until;
};

// The records that are there once `least` are, or at the deadline, up to `most`; perhaps none. None
// is taken before it returns, so that Ctrl-C loses none; a producer that waits to be drained to the
// low mark therefore has to leave enough, and `least` is cut to that.
template <class AnyRing>
py::array pop_many_of(const Handle& handle, AnyRing& ring, const Record& record, Site& site,
                      const std::byte* slots, const Popping& popping, std::uint64_t waiter) {
    const std::uint64_t most = std::min(popping.count, ring.geometry().slots);
    const std::uint64_t want = std::min({popping.least, most, ring.geometry().low + 1});
    py::array records(record.dtype(), record.shape_of(most));
    auto* to = static_cast<std::byte*>(records.mutable_data());
    std::uint64_t popped = 0;
    const Outcome outcome = site([&](WaitPolicy& policy) {
        const Outcome waited =
            want == 0 ? Outcome::kReady : ring.wait_ready(want, popping.until, policy);
        if (waited != Outcome::kInterrupted && waited != Outcome::kBusy) {
            popped = copy_out(ring, slots, to, most);
        }
        return waited;
    });
    if (outcome == Outcome::kBusy) handle.busy("pop from", waiter);
    // What the dead have left is still handed out; then the loss is told.
    if (outcome == Outcome::kLost && popped == 0) handle.lost("pop from", "producer");
    return records[py::slice(0, static_cast<py::ssize_t>(popped), 1)].template cast<py::array>();
}

}  // namespace pysampler::bindings
