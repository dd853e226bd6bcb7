#include "ring.h"

#include "records.h"

namespace pysampler::bindings {
namespace {

constexpr std::size_t kCellBytes = sizeof(RingCell);

class PyRing : public Handle {
 public:
    PyRing(const PySegment& segment, const py::object& slots, const py::dtype& dtype,
           const std::vector<py::ssize_t>& shape, const py::object& high, const py::object& low,
           const py::object& offset, const std::optional<WaitPolicy>& policy)
        : PyRing(segment, Record(dtype, shape), slots, high, low, offset, policy) {}

    static std::size_t bytes(const Record& record, const RingGeometry& geometry) {
        return kCellBytes + geometry.slots * record.bytes();
    }

    // -- the producer --

    py::array claim(const py::object& count, const Seconds& timeout, const Nanoseconds& deadline) {
        const std::uint64_t want = whole(count, "claim in ring", "count", 1);
        const std::int64_t until = deadline_of(timeout, deadline);
        const Turn turn(*this, producing_, "claim in");
        const Outcome outcome =
            room_([&](WaitPolicy& policy) { return ring_.wait_room(1, until, policy); });
        check_sound();
        check_outcome(*this, outcome, "claim in", "consumer", "it stayed full",
                      cell_->head.waiter());
        const Run run = ring_.claim(std::min(want, ring_.geometry().high));
        claimed_ = run.count;
        return view_of(turn, run);
    }

    void publish(const py::object& count) {
        const auto asked = whole_or_none(count, "publish", "count", 0);
        const Turn turn(*this, producing_, "publish in");
        const std::uint64_t n = asked.value_or(claimed_);
        if (n > claimed_) not_held("publish", n, claimed_, "claimed");
        claimed_ = 0;
        ring_.publish(n);
    }

    std::uint64_t push_many(const py::array& records, const Seconds& timeout,
                            const Nanoseconds& deadline) {
        const std::int64_t until = deadline_of(timeout, deadline);
        const Turn turn(*this, producing_, "push to");
        if (claimed_ > 0) still_held("push to", claimed_, "claimed", "published");
        const std::uint64_t total = record_.count_of(records);
        const auto* from = static_cast<const std::byte*>(records.data());
        std::uint64_t pushed = 0;
        const Outcome outcome = room_([&](WaitPolicy& policy) {
            for (;;) {
                for (Run run; pushed < total && (run = ring_.claim(total - pushed)).count > 0;) {
                    std::memcpy(slots_ + run.first * record_.bytes(),
                                from + pushed * record_.bytes(), run.count * record_.bytes());
                    ring_.publish(run.count);
                    pushed += run.count;
                }
                if (pushed == total) return Outcome::kReady;
                if (!ring_.sound()) return Outcome::kLost;  // there would never be room
                const Outcome waited = ring_.wait_room(1, until, policy);
                if (waited != Outcome::kReady) return waited;
            }
        });
        check_sound();
        if (outcome != Outcome::kTimedOut) {
            check_outcome(*this, outcome, "push to", "consumer", "", cell_->head.waiter());
        }
        return pushed;
    }

    // -- the consumer --

    py::array peek(const py::object& count, const py::object& least, const Seconds& timeout,
                   const Nanoseconds& deadline) {
        const std::uint64_t want = whole(count, "peek into ring", "count", 1);
        const std::uint64_t need = std::clamp<std::uint64_t>(
            least_of(least, want, "peek into ring"), 1, ring_.geometry().high);
        const std::int64_t until = deadline_of(timeout, deadline);
        const Turn turn(*this, consuming_, "peek into");
        Run run = ring_.peek(want);
        if (run.count < need) {
            const Outcome outcome =
                ready_([&](WaitPolicy& policy) { return ring_.wait_ready(need, until, policy); });
            check_sound();
            check_outcome(*this, outcome, "peek into", "producer", "too few records came in time",
                          cell_->tail.waiter());
            run = ring_.peek(want);
        }
        peeked_ = run.count;
        return view_of(turn, run);
    }

    void release(const py::object& count) {
        const auto asked = whole_or_none(count, "release", "count", 0);
        const Turn turn(*this, consuming_, "release in");
        const std::uint64_t n = asked.value_or(peeked_);
        if (n > peeked_) not_held("release", n, peeked_, "peeked at");
        peeked_ = 0;
        ring_.release(n);
    }

    py::array pop_many(const py::object& count, const py::object& least, const Seconds& timeout,
                       const Nanoseconds& deadline) {
        const Popping popping(count, least, timeout, deadline);
        const Turn turn(*this, consuming_, "pop from");
        if (peeked_ > 0) still_held("pop from", peeked_, "peeked at", "released");
        py::array records =
            pop_many_of(*this, ring_, record_, ready_, slots_, popping, cell_->tail.waiter());
        check_sound();
        return records;
    }

    // -- any thread --

    std::uint64_t size() const {
        const Pin pin(*this, "look at");
        return ring_.size();
    }
    const RingGeometry& geometry() const { return ring_.geometry(); }

    Part producer() const {
        const Pin pin(*this, "watch");
        return {"ring's producer",
                [segment = pin.segment(), cell = cell_](int) { cell->tail.mark_lost(); }};
    }
    Part consumer() const {
        const Pin pin(*this, "watch");
        return {"ring's consumer",
                [segment = pin.segment(), cell = cell_](int) { cell->head.mark_lost(); }};
    }
    void replaced() {
        const Pin pin(*this, "use");
        ring_.clear_lost();
    }

    std::string state() const {
        return repr([this] {
            std::string text = std::to_string(ring_.size()) + " of " +
                               std::to_string(ring_.geometry().slots) + " slots of " +
                               std::to_string(record_.bytes()) + " bytes, " +
                               std::to_string(ring_.published()) + " published";
            if (ring_.producer_lost()) text += ", producer lost";
            if (ring_.consumer_lost()) text += ", consumer lost";
            return text;
        });
    }

 private:
    PyRing(const PySegment& segment, const Record& record, const py::object& slots,
           const py::object& high, const py::object& low, const py::object& offset,
           const std::optional<WaitPolicy>& policy)
        : PyRing(segment, record, geometry_of(record, slots, high, low), offset, policy) {}

    PyRing(const PySegment& segment, const Record& record, const RingGeometry& geometry,
           const py::object& offset, const std::optional<WaitPolicy>& policy)
        : PyRing(Place(segment, offset, bytes(record, geometry)), record, geometry, policy) {}

    PyRing(const Place& place, Record record, const RingGeometry& geometry,
           const std::optional<WaitPolicy>& policy)
        : Handle("ring", place.segment, place.at),
          record_(std::move(record)),
          cell_(place.make<RingCell>()),
          slots_(reinterpret_cast<std::byte*>(cell_) + kCellBytes),
          ring_(cell_, geometry),
          room_(policy),
          ready_(policy) {
        named("Ring");
    }

    void check_sound() const {
        if (!ring_.sound()) {
            raise("LayoutError", "cannot use ring: its positions are garbage, " +
                                     std::to_string(cell_->head.load()) + " and " +
                                     std::to_string(cell_->tail.load()));
        }
    }

    py::array view_of(const Turn& turn, const Run& run) const {
        return view(turn.segment(), slots_ + run.first * record_.bytes(), record_.dtype(),
                    record_.shape_of(run.count));
    }

    Record record_;
    RingCell* cell_;
    std::byte* slots_;
    Ring ring_;
    Site room_;
    Site ready_;
    Side producing_;
    Side consuming_;
    std::uint64_t claimed_ = 0;
    std::uint64_t peeked_ = 0;
};

}  // namespace

void register_ring(py::module_& m) {
    const auto none = py::none();
    HandleClass<PyRing> ring(m, "Ring");
    ring.def(py::init<const PySegment&, const py::object&, const py::dtype&,
                      const std::vector<py::ssize_t>&, const py::object&, const py::object&,
                      const py::object&, const std::optional<WaitPolicy>&>(),
             py::arg("segment"), py::arg("slots"), py::arg("dtype"), py::arg("shape"),
             py::arg("high") = none, py::arg("low") = none, py::arg("offset") = none,
             py::arg("policy") = std::nullopt)
        .def("claim", &PyRing::claim, py::arg("count") = 1, py::kw_only(),
             py::arg("timeout") = none, py::arg("deadline") = none,
             "Return a view of free slots, to be filled before publish().\n\n"
             "Args:\n"
             "    count: How many slots at most; at least one, fewer if the ring "
             "wraps.\n" PYSAMPLER_WAIT_ARGS
             "\n"
             "Raises:\n"
             "    WaitTimeoutError: The ring stayed full.\n"
             "    LostError: The ring is full, and the consumer is known to be dead.\n")
        .def("publish", &PyRing::publish, py::arg("count") = none,
             "Hand claimed slots over to the consumer.\n\n"
             "Args:\n"
             "    count: How many of the claimed slots; None: all. The others are free again.\n")
        .def("producer", &PyRing::producer,
             "Return the part that a Watch marks lost when the producer dies.")
        .def("replaced", &PyRing::replaced,
             "Forget the loss of a side: another process has taken its place.")
        .def_static(
            "size_of",
            [](const py::object& slots, const py::dtype& dtype,
               const std::vector<py::ssize_t>& shape, const py::object& high,
               const py::object& low) {
                const Record record(dtype, shape);
                return PyRing::bytes(record, geometry_of(record, slots, high, low));
            },
            "Return how many bytes such a ring takes in a segment.");
    def_records(ring);
}

}  // namespace pysampler::bindings
