// Shared by the bindings of Ring and SharedRing: records of one dtype and shape.
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

    // How many records the array holds. pysampler.sync converts it to the dtype and shape; this
    // only ensures that nothing is read beyond its end.
    std::uint64_t count_of(const py::array& records) const {
        if (!(records.flags() & py::array::c_style) ||
            static_cast<std::uint64_t>(records.nbytes()) % bytes() != 0) {
            throw py::value_error("cannot push to ring: " + std::to_string(records.nbytes()) +
                                  " bytes, expected contiguous records of " +
                                  std::to_string(bytes()));
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

// Throws for more slots published or released than the side holds.
[[noreturn]] inline void not_held(const char* verb, std::uint64_t got, std::uint64_t held,
                                  const char* how) {
    throw py::value_error(std::string("cannot ") + verb + " slots: " + std::to_string(got) +
                          ", expected at most the " + std::to_string(held) + " " + how);
}

// Throws for a push or pop while the side works on slots in place.
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

// The argument `least`: how many of `count` records to wait for.
inline std::uint64_t least_of(const py::object& argument, std::uint64_t count, const char* verb) {
    const std::uint64_t least = whole(argument, verb, "least", 0);
    if (least > count) {
        throw py::value_error(std::string("cannot ") + verb + ": least " + std::to_string(least) +
                              ", expected at most the count, " + std::to_string(count));
    }
    return least;
}

// The arguments of pop_many().
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

// Pops up to `count` records once there are `least`; at the deadline, whatever is there, perhaps
// none. Ctrl-C loses no record, since none is taken before the wait is over. So `least` is capped
// at `low` + 1, the number of records that a blocked producer always leaves in the ring.
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
    // The records of a dead producer come first, then the loss.
    if (outcome == Outcome::kLost && popped == 0) handle.lost("pop from", "producer");
    return records[py::slice(0, static_cast<py::ssize_t>(popped), 1)].template cast<py::array>();
}

// The methods and properties that Ring and SharedRing have in common.
template <class PyRing>
void def_records(Class<PyRing>& ring) {
    const auto none = py::none();
    ring.def("push_many", &PyRing::push_many, py::arg("records"), py::kw_only(),
             py::arg("timeout") = none, py::arg("deadline") = none,
             "Push records in order; return how many were pushed before the deadline.")
        .def("peek", &PyRing::peek, py::arg("count") = 1, py::arg("least") = 1, py::kw_only(),
             py::arg("timeout") = none, py::arg("deadline") = none,
             "Return a view of the next records, valid until release().\n\n"
             "Args:\n"
             "    count: How many records at most; fewer if the ring wraps.\n"
             "    least: How many records to wait for.\n" PYSAMPLER_WAIT_ARGS
             "\n"
             "Raises:\n"
             "    WaitTimeoutError: Fewer than `least` records came.\n"
             "    LostError: Fewer than `least` came, and the producers are known to be dead.\n")
        .def("release", &PyRing::release, py::arg("count") = none,
             "Give the slots of peeked records back to the producers.\n\n"
             "Args:\n"
             "    count: How many of the peeked records; None: all. The others stay in the ring.\n")
        .def("pop_many", &PyRing::pop_many, py::arg("count"), py::arg("least") = 1, py::kw_only(),
             py::arg("timeout") = none, py::arg("deadline") = none,
             "Remove the next records, and return a copy of them.\n\n"
             "Args:\n"
             "    count: How many records at most.\n"
             "    least: How many records to wait for.\n" PYSAMPLER_WAIT_ARGS
             "\n"
             "Returns:\n"
             "    The records; at the deadline fewer than `least`, perhaps none.\n\n"
             "Raises:\n"
             "    LostError: The ring is empty, and the producers are known to be dead.\n")
        .def("consumer", &PyRing::consumer,
             "Return the part that a Watch marks lost when the consumer dies.")
        .def("__len__", &PyRing::size)
        .def_property_readonly(
            "slots", [](const PyRing& r) { return r.geometry().slots; },
            "The number of records that fit.")
        .def_property_readonly(
            "high", [](const PyRing& r) { return r.geometry().high; },
            "The number of records at which producers block, until only `low` are left.")
        .def_property_readonly(
            "low", [](const PyRing& r) { return r.geometry().low; },
            "The number of records at which blocked producers continue.");
}

}  // namespace pysampler::bindings
