#include "shared_ring.h"

#include "process.h"
#include "records.h"

namespace pysampler::bindings {
namespace {

using Atomic = std::atomic<std::uint64_t>;

// Cell, owners, words, slots: each begins on a new cache line.
struct Layout {
    Layout(const Record& record, const RingGeometry& geometry, std::uint64_t producers)
        : owners(sizeof(SharedRingCell)),
          words(round_up(owners + producers * sizeof(Atomic), kLine)),
          slots(round_up(words + geometry.slots * sizeof(Atomic), kLine)),
          bytes(slots + geometry.slots * record.bytes()) {}

    std::size_t owners;
    std::size_t words;
    std::size_t slots;
    std::size_t bytes;
};

std::uint64_t producer_count(const py::object& producers) {
    const std::uint64_t count = whole(producers, "make ring", "producers", 1);
    if (count > SharedRing::Producers::kMax) {
        throw py::value_error("cannot make ring: producers " + std::to_string(count) +
                              ", expected at most " + std::to_string(SharedRing::Producers::kMax));
    }
    return count;
}

class PySharedRing : public Handle {
 public:
    PySharedRing(const PySegment& segment, const py::object& slots, const py::dtype& dtype,
                 const std::vector<py::ssize_t>& shape, const py::object& producers,
                 const py::object& high, const py::object& low, const py::object& offset,
                 const std::optional<WaitPolicy>& policy)
        : PySharedRing(segment, Record(dtype, shape), slots, producers, high, low, offset, policy) {
    }

    ~PySharedRing() { close(); }

    // -- a producer --

    py::array claim(const Seconds& timeout, const Nanoseconds& deadline) {
        const std::int64_t until = deadline_of(timeout, deadline);
        const Turn turn(*this, producing_, "claim in");
        join();
        if (claimed_) throw py::value_error("cannot claim in ring: a slot is claimed already");
        while (!(claimed_ = ring_.claim())) {
            check_sound();
            const Outcome outcome =
                room_([&](WaitPolicy& policy) { return ring_.wait_room(until, policy); });
            check_outcome(*this, outcome, "claim in", "consumer", "it stayed full", 0);
        }
        return view(turn.segment(), slot(*claimed_), record_.dtype(), record_.shape());
    }

    bool publish() { return finish("publish", &SharedRing::publish); }
    bool abandon() { return finish("abandon", &SharedRing::abandon); }

    std::uint64_t push_many(const py::array& records, const Seconds& timeout,
                            const Nanoseconds& deadline) {
        const std::int64_t until = deadline_of(timeout, deadline);
        const Turn turn(*this, producing_, "push to");
        join();
        const std::uint64_t total = record_.count_of(records);
        const auto* from = static_cast<const std::byte*>(records.data());
        std::uint64_t pushed = 0;
        const Outcome outcome = room_([&](WaitPolicy& policy) {
            for (;;) {
                std::uint64_t unposted = 0;
                bool mine = true;
                for (std::optional<std::uint64_t> p; pushed < total && (p = ring_.claim());) {
                    std::memcpy(slot(*p), from + pushed * record_.bytes(), record_.bytes());
                    mine = ring_.publish(*p);
                    if (!mine) break;
                    ++unposted;
                    ++pushed;
                }
                if (unposted > 0) ring_.post(unposted);
                if (!mine) return Outcome::kBusy;
                if (pushed == total) return Outcome::kReady;
                if (!ring_.sound()) return Outcome::kLost;
                const Outcome waited = ring_.wait_room(until, policy);
                if (waited != Outcome::kReady) return waited;
            }
        });
        check_sound();
        if (outcome == Outcome::kBusy) was_declared_dead();
        if (outcome != Outcome::kTimedOut) {
            check_outcome(*this, outcome, "push to", "consumer", "", 0);
        }
        return pushed;
    }

    // For a producer that found the ring full. May be repeated: unlike a claim, it takes no slot.
    bool wait_drained(const Seconds& timeout, const Nanoseconds& deadline) {
        const std::int64_t until = deadline_of(timeout, deadline);
        const Turn turn(*this, producing_, "wait for");
        const Outcome outcome =
            room_([&](WaitPolicy& policy) { return ring_.wait_room(until, policy); });
        if (outcome == Outcome::kTimedOut) return false;
        check_outcome(*this, outcome, "wait for", "consumer", "", 0);
        return true;
    }

    void leave() {
        const Turn turn(*this, producing_, "leave");
        give_place_back();
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
            check_outcome(*this, outcome, "peek into", "last producer",
                          "too few records came in time", cell_->published.waiter());
            run = ring_.peek(want);
        }
        peeked_ = run.count;
        return view(turn.segment(), slots_ + run.first * record_.bytes(), record_.dtype(),
                    record_.shape_of(run.count));
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
        return pop_many_of(*this, ring_, record_, ready_, slots_, popping,
                           cell_->published.waiter());
    }

    // -- any thread --

    std::uint64_t size() const {
        const Pin pin(*this, "look at");
        return ring_.size();
    }
    const RingGeometry& geometry() const { return ring_.geometry(); }
    std::uint32_t producers() const { return ring_.producers(); }

    // For any producer: the Watch is given its process with the part.
    Part producer() const {
        const Pin pin(*this, "watch");
        return {"ring's producer",
                [segment = pin.segment(), parts = parts_, geometry = ring_.geometry()](int pid) {
                    SharedRing(parts, geometry).mark_producer_lost(pid);
                }};
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
            if (ring_.consumer_lost()) text += ", consumer lost";
            return text;
        });
    }

 private:
    PySharedRing(const PySegment& segment, const Record& record, const py::object& slots,
                 const py::object& producers, const py::object& high, const py::object& low,
                 const py::object& offset, const std::optional<WaitPolicy>& policy)
        : PySharedRing(segment, record, geometry_of(record, slots, high, low),
                       producer_count(producers), offset, policy) {}

    PySharedRing(const PySegment& segment, const Record& record, const RingGeometry& geometry,
                 std::uint64_t producers, const py::object& offset,
                 const std::optional<WaitPolicy>& policy)
        : PySharedRing(Place(segment, offset, Layout(record, geometry, producers).bytes), record,
                       geometry, producers, policy) {}

    PySharedRing(const Place& place, Record record, const RingGeometry& geometry,
                 std::uint64_t producers, const std::optional<WaitPolicy>& policy)
        : Handle("ring", place.segment, place.at),
          record_(std::move(record)),
          layout_(record_, geometry, producers),
          cell_(place.make<SharedRingCell>()),
          slots_(place.memory + layout_.slots),
          parts_{cell_, reinterpret_cast<Atomic*>(place.memory + layout_.owners),
                 reinterpret_cast<Atomic*>(place.memory + layout_.words),
                 static_cast<std::uint32_t>(producers)},
          ring_(parts_, geometry),
          room_(policy),
          ready_(policy) {
        named("SharedRing");
        before_unmap([this] { give_place_back(); });
    }

    std::byte* slot(std::uint64_t position) const {
        return slots_ + (position & ring_.geometry().mask()) * record_.bytes();
    }

    // A handle inherited through fork belongs to the parent's producer: the child joins anew.
    void join() {
        const pid_t self = pid_of(self_id());
        if (joined_as_ == self) return;
        if (!ring_.join()) {
            raise("BusyError", "cannot join ring: all its " + std::to_string(ring_.producers()) +
                                   " places for producers are held by living processes");
        }
        joined_as_ = self;
        claimed_.reset();
    }

    void give_place_back() {
        if (joined_as_ == pid_of(self_id())) ring_.leave();
        joined_as_ = 0;
    }

    void check_sound() const {
        if (!ring_.sound()) raise("LayoutError", "cannot use ring: its slots are garbage");
    }

    bool finish(const char* verb, bool (SharedRing::*as)(std::uint64_t) noexcept) {
        const Turn turn(*this, producing_, verb);
        if (!claimed_ || joined_as_ != pid_of(self_id())) {
            throw py::value_error(std::string("cannot ") + verb + " slot: none is claimed");
        }
        const std::uint64_t position = *claimed_;
        claimed_.reset();
        if (!(ring_.*as)(position)) was_declared_dead();
        ring_.post(1);
        return true;
    }

    [[noreturn]] void was_declared_dead() {
        joined_as_ = 0;
        raise("LostError",
              "cannot publish slot: this process was declared dead, its slot was given to another");
    }

    Record record_;
    Layout layout_;
    SharedRingCell* cell_;
    std::byte* slots_;
    SharedRing::Parts parts_;
    SharedRing ring_;
    Site room_;
    Site ready_;
    Side producing_;
    Side consuming_;
    pid_t joined_as_ = 0;
    std::optional<std::uint64_t> claimed_;
    std::uint64_t peeked_ = 0;
};

}  // namespace

void register_shared_ring(py::module_& m) {
    const auto none = py::none();
    HandleClass<PySharedRing> ring(m, "SharedRing");
    ring.def(py::init<const PySegment&, const py::object&, const py::dtype&,
                      const std::vector<py::ssize_t>&, const py::object&, const py::object&,
                      const py::object&, const py::object&, const std::optional<WaitPolicy>&>(),
             py::arg("segment"), py::arg("slots"), py::arg("dtype"), py::arg("shape"),
             py::arg("producers") = 64, py::arg("high") = none, py::arg("low") = none,
             py::arg("offset") = none, py::arg("policy") = std::nullopt)
        .def("claim", &PySharedRing::claim, py::kw_only(), py::arg("timeout") = none,
             py::arg("deadline") = none,
             "Return a view of a free slot, to be filled before publish().\n\n"
             "Later records wait until the slot is published or abandoned.\n\n"
             "Args:\n" PYSAMPLER_WAIT_ARGS
             "\n"
             "Raises:\n"
             "    WaitTimeoutError: The ring stayed full.\n"
             "    LostError: The ring is full, and the consumer is known to be dead.\n"
             "    BusyError: All places for producers are held by living processes.\n")
        .def("publish", &PySharedRing::publish,
             "Hand the claimed slot over to the consumer; return True.\n\n"
             "Raises:\n"
             "    LostError: This process was declared dead, and its slot given to another.\n")
        .def("abandon", &PySharedRing::abandon,
             "Give the claimed slot up, so that the consumer skips it; return True.\n\n"
             "Raises:\n"
             "    LostError: This process was declared dead, and its slot given to another.\n")
        .def("wait_drained", &PySharedRing::wait_drained, py::kw_only(), py::arg("timeout") = none,
             py::arg("deadline") = none,
             "Wait until a full ring has drained to its low mark.\n\n"
             "Other producers may fill it again before the next claim.\n\n"
             "Args:\n" PYSAMPLER_WAIT_ARGS
             "\n"
             "Returns:\n"
             "    False if it has not drained at the deadline.\n\n"
             "Raises:\n"
             "    LostError: The consumer is known to be dead.\n")
        .def("leave", &PySharedRing::leave, "Give this process's place as a producer back.")
        .def("producer", &PySharedRing::producer,
             "Return the part that a Watch marks lost when a producer dies.")
        .def("replaced", &PySharedRing::replaced,
             "Forget the loss of the consumer: another process has taken its place.")
        .def_property_readonly("producers", &PySharedRing::producers,
                               "The number of places for producers.")
        .def_static(
            "size_of",
            [](const py::object& slots, const py::dtype& dtype,
               const std::vector<py::ssize_t>& shape, const py::object& producers,
               const py::object& high, const py::object& low) {
                const Record record(dtype, shape);
                return Layout(record, geometry_of(record, slots, high, low),
                              producer_count(producers))
                    .bytes;
            },
            "Return how many bytes such a ring takes in a segment.");
    def_records(ring);
}

}  // namespace pysampler::bindings
