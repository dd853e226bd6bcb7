// The tracks of a trace and their reader. A segment holds, at an offset, a switch and then a ring
// for each process.
#include "trace.h"

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "support.h"

namespace pysampler::bindings {
namespace {

std::size_t size_of(std::size_t tracks) {
    return round_up(sizeof(TraceSwitch) + tracks * sizeof(TraceRing), Segment::page());
}

std::size_t ring_at(std::size_t offset, std::size_t index) {
    return offset + sizeof(TraceSwitch) + index * sizeof(TraceRing);
}

std::shared_ptr<Track> track_of(const PySegment& segment, std::size_t offset, std::size_t index) {
    struct Owner {
        std::shared_ptr<Segment> segment;
        Track track;
    };
    const std::shared_ptr<Segment> memory = Pin(segment, "use").segment();
    const std::size_t ring = ring_at(offset, index);
    auto owner = std::make_shared<Owner>(
        memory,
        Track(*reinterpret_cast<TraceSwitch*>(memory->at(offset, sizeof(TraceSwitch), kLine)),
              *reinterpret_cast<TraceRing*>(memory->at(ring, sizeof(TraceRing), kLine))));
    return {owner, &owner->track};
}

// Keeps the array that holds the ring.
// Owner: the thread that records the trace.
class PyTraceReader {
 public:
    PyTraceReader(py::array_t<std::uint8_t> memory, std::size_t offset, std::size_t index)
        : memory_(std::move(memory)), reader_(ring_of(memory_, ring_at(offset, index))) {}

    py::bytes read() {
        const std::vector<Slice> slices = reader_.read();
        const auto bytes = std::as_bytes(std::span(slices));
        return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
    }

    std::uint64_t missed() const { return reader_.missed(); }

 private:
    static const TraceRing& ring_of(const py::array_t<std::uint8_t>& memory, std::size_t at) {
        const auto size = static_cast<std::size_t>(memory.size());
        const bool fits = memory.ndim() == 1 && memory.strides(0) == 1 && at <= size &&
                          size - at >= sizeof(TraceRing);
        if (!fits || reinterpret_cast<std::uintptr_t>(memory.data() + at) % kLine != 0) {
            throw py::value_error("cannot read trace: the memory has no ring at this offset");
        }
        return *reinterpret_cast<const TraceRing*>(memory.data() + at);
    }

    py::array_t<std::uint8_t> memory_;
    TraceReader reader_;
};

}  // namespace

template <>
inline constexpr bool is_bound<PyTraceReader> = true;

void register_trace(py::module_& m) {
    Class<Track, std::shared_ptr<Track>> track(m, "Track");
    track.def(py::init(&track_of), py::arg("segment"), py::arg("offset"), py::arg("index"))
        .def("begin", &Track::begin,
             "Return the time in ns at which a slice begins, or 0 if no slice is wanted.")
        .def(
            "end",
            [](Track& self, std::uint32_t kind, std::uint32_t id, std::int64_t began) {
                if (began != 0) self.add(static_cast<TraceKind>(kind), id, began, now_ns());
            },
            py::arg("kind"), py::arg("id"), py::arg("began"),
            "Write a slice that ends now, unless `began` is 0.")
        .def_static("size_of", &size_of, py::arg("tracks"),
                    "Return how many bytes the tracks of a trace take in a segment.");
    track.attr("SLICES") = TraceRing::kSlices;
    const auto kind = [&](const char* name, TraceKind value) {
        track.attr(name) = static_cast<std::uint32_t>(value);
    };
    kind("STEP", TraceKind::kStep);
    kind("RESET", TraceKind::kReset);
    kind("COMMAND", TraceKind::kCommand);
    kind("JOB", TraceKind::kJob);
    kind("POLICY", TraceKind::kPolicy);
    kind("SEND", TraceKind::kSend);
    kind("WAIT", TraceKind::kWait);
    kind("READ", TraceKind::kRead);
    kind("RECORDS", TraceKind::kRecords);
    kind("ROOM", TraceKind::kRoom);
    kind("SENT", TraceKind::kSent);
    kind("TAKEN", TraceKind::kTaken);

    Class<PyTraceReader>(m, "TraceReader")
        .def(py::init<py::array_t<std::uint8_t>, std::size_t, std::size_t>(),
             py::arg("memory").noconvert(), py::arg("offset"), py::arg("index"))
        .def("read", &PyTraceReader::read,
             "Return the slices that ended since the last call, each as 24 bytes.")
        .def_property_readonly("missed", &PyTraceReader::missed,
                               "How many slices were overwritten before they were read.");
}

}  // namespace pysampler::bindings
