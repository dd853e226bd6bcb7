#include "byte_ring.h"

#include <bit>

#include "support.h"

namespace pysampler::bindings {
namespace {

std::uint64_t capacity_of(const py::object& capacity) {
    const std::uint64_t bytes = whole(capacity, "make byte ring", "capacity", 1);
    if (!std::has_single_bit(bytes) || bytes % Segment::page() != 0 || bytes > 1ULL << 30) {
        throw py::value_error("cannot make byte ring: capacity " + std::to_string(bytes) +
                              ", expected a power of two of whole pages of " +
                              std::to_string(Segment::page()) + " bytes, up to 2**30");
    }
    return bytes;
}

class PyByteRing : public Handle {
 public:
    PyByteRing(const PySegment& segment, const py::object& capacity, const py::object& offset,
               const std::optional<WaitPolicy>& policy)
        : PyByteRing(segment, capacity_of(capacity), offset, policy) {}

    // The array in whole pages, then the cell.
    static std::size_t bytes(std::uint64_t capacity) { return capacity + sizeof(RingCell); }

    void send(const py::buffer& message, const Seconds& timeout, const Nanoseconds& deadline) {
        const py::buffer_info info = message.request();
        if (PyBuffer_IsContiguous(info.view(), 'C') == 0) {
            throw py::value_error(
                "cannot send to byte ring: the message is not contiguous, expected bytes");
        }
        const auto* from = static_cast<const std::byte*>(info.ptr);
        const auto size = static_cast<std::size_t>(info.size * info.itemsize);
        const std::int64_t until = deadline_of(timeout, deadline);
        const Turn turn(*this, producing_, "send to");
        std::uint64_t written = 0;
        const Outcome outcome = room_(
            [&](WaitPolicy& policy) { return ring_.write({from, size}, written, until, policy); });
        check_outcome(*this, outcome, "send to", "consumer", "it stayed full",
                      cell_->head.waiter());
    }

    // A copy of the next message.
    py::bytes recv(const Seconds& timeout, const py::object& limit, const Nanoseconds& deadline) {
        const Receiving receiving(timeout, limit, deadline);
        const Turn turn(*this, consuming_, "receive from");
        wait_message("receive from", receiving);
        const auto message = ring_.message();
        py::bytes copy(reinterpret_cast<const char*>(message.data()), message.size());
        ring_.release();
        return copy;
    }

    // A view of the next message in the ring; of a copy if the message came in parts, since their
    // memory may be freed before the view.
    py::memoryview peek(const Seconds& timeout, const py::object& limit,
                        const Nanoseconds& deadline) {
        const Receiving receiving(timeout, limit, deadline);
        const Turn turn(*this, consuming_, "peek into");
        wait_message("peek into", receiving);
        const auto message = ring_.message();
        const auto size = static_cast<py::ssize_t>(message.size());
        const auto twice = twice_.lock();  // the turn keeps it alive
        const std::byte* first = twice.get();
        if (message.data() < first || message.data() >= first + 2 * capacity_) {
            return {py::bytes(reinterpret_cast<const char*>(message.data()), message.size())};
        }
        py::array_t<std::uint8_t> there(size, reinterpret_cast<const std::uint8_t*>(message.data()),
                                        keep(twice));
        there.attr("setflags")(py::arg("write") = false);
        return {there};
    }

    void release() {
        const Turn turn(*this, consuming_, "release in");
        ring_.release();
    }

    std::uint64_t size() const {
        const Pin pin(*this, "look at");
        return ring_.size();
    }
    std::uint64_t capacity() const { return capacity_; }

    Part producer() const {
        const Pin pin(*this, "watch");
        return {"byte ring's producer",
                [segment = pin.segment(), cell = cell_](int) { cell->tail.mark_lost(); }};
    }
    Part consumer() const {
        const Pin pin(*this, "watch");
        return {"byte ring's consumer",
                [segment = pin.segment(), cell = cell_](int) { cell->head.mark_lost(); }};
    }
    void replaced() {
        const Pin pin(*this, "use");
        ring_.clear_lost();
    }

    // Resets the ring. No other process may use it meanwhile: the peer must be dead.
    void renew() {
        const Turn turn(*this, producing_, "renew");
        const Turn other(*this, consuming_, "renew");
        ring_ = ByteRing(new (cell_) RingCell, twice_.lock().get(), capacity_);
    }

    std::string state() const {
        return repr([this] {
            std::string text =
                std::to_string(ring_.size()) + " of " + std::to_string(capacity_) + " bytes";
            if (ring_.producer_lost()) text += ", producer lost";
            if (ring_.consumer_lost()) text += ", consumer lost";
            return text;
        });
    }

 private:
    PyByteRing(const PySegment& segment, std::uint64_t capacity, const py::object& offset,
               const std::optional<WaitPolicy>& policy)
        : PyByteRing(Place(segment, offset, bytes(capacity), Segment::page()), capacity, policy) {}

    PyByteRing(const Place& place, std::uint64_t capacity, const std::optional<WaitPolicy>& policy)
        : Handle("byte ring", place.segment, place.at),
          capacity_(capacity),
          twice_(also(place.segment->map_twice(place.at, capacity))),
          cell_(place.make<RingCell>(capacity)),
          ring_(cell_, twice_.lock().get(), capacity),
          room_(policy),
          ready_(policy) {
        named("ByteRing");
    }

    struct Receiving {
        Receiving(const Seconds& timeout, const py::object& limit, const Nanoseconds& deadline)
            : most(whole_or_none(limit, "receive", "limit", 0).value_or(~std::uint64_t{0})),
              until(deadline_of(timeout, deadline)) {}

        std::uint64_t most;
        std::int64_t until;
    };

    void wait_message(const char* verb, const Receiving& receiving) {
        const auto [most, until] = receiving;
        Outcome outcome;
        try {
            outcome = ready_([&](WaitPolicy& policy) { return ring_.read(most, until, policy); });
        } catch (const std::length_error&) {
            throw py::value_error(std::string("cannot ") + verb + " byte ring: a message of over " +
                                  std::to_string(most) +
                                  " bytes, expected at most the limit; it was dropped");
        }
        check_outcome(*this, outcome, verb, "producer", "nothing came in time",
                      cell_->tail.waiter());
    }

    std::uint64_t capacity_;
    std::weak_ptr<std::byte> twice_;  // mapped as long as the handle
    RingCell* cell_;
    ByteRing ring_;
    Site room_;
    Site ready_;
    Side producing_;
    Side consuming_;
};

}  // namespace

void register_byte_ring(py::module_& m) {
    const auto none = py::none();
    HandleClass<PyByteRing>(m, "ByteRing")
        .def(py::init<const PySegment&, const py::object&, const py::object&,
                      const std::optional<WaitPolicy>&>(),
             py::arg("segment"), py::arg("capacity"), py::arg("offset") = none,
             py::arg("policy") = std::nullopt)
        .def("send", &PyByteRing::send, py::arg("message"), py::arg("timeout") = none,
             py::kw_only(), py::arg("deadline") = none,
             "Send a message, in parts if it is larger than the ring.\n\n"
             "Args:\n"
             "    message: Bytes, or any other object with a contiguous "
             "buffer.\n" PYSAMPLER_WAIT_ARGS
             "\n"
             "Raises:\n"
             "    WaitTimeoutError: The ring stayed full; the consumer will not get the message.\n"
             "    LostError: The ring is full, and the consumer is known to be dead.\n")
        .def("recv", &PyByteRing::recv, py::arg("timeout") = none, py::kw_only(),
             py::arg("limit") = none, py::arg("deadline") = none,
             "Remove the next message, and return a copy of it.\n\n"
             "Args:\n" PYSAMPLER_WAIT_ARGS
             "    limit: The most bytes to accept; None: any number.\n\n"
             "Raises:\n"
             "    WaitTimeoutError: No message came.\n"
             "    LostError: There is no message, and the producer is known to be dead.\n"
             "    ValueError: The message is larger than `limit`; it is dropped.\n")
        .def(
            "recv_into",
            [](PyByteRing& self, py::list& messages, const Seconds& timeout,
               const Nanoseconds& deadline) {
                messages.append(self.recv(timeout, py::none(), deadline));
            },
            py::arg("messages"), py::arg("timeout") = none, py::kw_only(),
            py::arg("deadline") = none,
            "Receive the next message and append it to a list; no signal handler runs in "
            "between.\n\n"
            "Args:\n"
            "    messages: The list.\n" PYSAMPLER_WAIT_ARGS
            "\n"
            "Raises:\n"
            "    WaitTimeoutError: No message came.\n"
            "    LostError: There is no message, and the producer is known to be dead.\n")
        .def("peek", &PyByteRing::peek, py::arg("timeout") = none, py::kw_only(),
             py::arg("limit") = none, py::arg("deadline") = none,
             "Return a read-only view of the next message, valid until release().\n\n"
             "Args:\n" PYSAMPLER_WAIT_ARGS
             "    limit: The most bytes to accept; None: any number.\n\n"
             "Raises:\n"
             "    WaitTimeoutError: No message came.\n"
             "    LostError: There is no message, and the producer is known to be dead.\n"
             "    ValueError: The message is larger than `limit`; it is dropped.\n")
        .def("release", &PyByteRing::release, "Remove the message that peek() returned.")
        .def("producer", &PyByteRing::producer,
             "Return the part that a Watch marks lost when the producer dies.")
        .def("consumer", &PyByteRing::consumer,
             "Return the part that a Watch marks lost when the consumer dies.")
        .def("replaced", &PyByteRing::replaced,
             "Forget the loss of a side: another process has taken its place.")
        .def("renew", &PyByteRing::renew,
             "Empty the ring and forget losses. No other process may use it meanwhile.")
        .def("__len__", &PyByteRing::size)
        .def_property_readonly("capacity", &PyByteRing::capacity,
                               "The number of bytes that fit, headers included.")
        .def_static(
            "size_of",
            [](const py::object& capacity) {
                // Room to begin at a whole page.
                return PyByteRing::bytes(capacity_of(capacity)) + Segment::page();
            },
            "Return how many bytes such a ring takes in a segment.");
}

}  // namespace pysampler::bindings
