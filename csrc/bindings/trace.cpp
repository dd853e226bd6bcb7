// A track of a trace. Its segment has, at an offset, a switch and then a ring for each process.
#include "trace.h"

#include <cstddef>
#include <memory>

#include "support.h"

namespace pysampler::bindings {
namespace {

std::size_t size_of(std::size_t tracks) {
    return round_up(sizeof(TraceSwitch) + tracks * sizeof(TraceRing), Segment::page());
}

std::shared_ptr<Track> track_of(const PySegment& segment, std::size_t offset, std::size_t index) {
    struct Owner {
        std::shared_ptr<Segment> segment;
        Track track;
    };
    const std::shared_ptr<Segment> memory = Pin(segment, "use").segment();
    const std::size_t ring = offset + sizeof(TraceSwitch) + index * sizeof(TraceRing);
    auto owner = std::make_shared<Owner>(
        memory,
        Track(*reinterpret_cast<TraceSwitch*>(memory->at(offset, sizeof(TraceSwitch), kLine)),
              *reinterpret_cast<TraceRing*>(memory->at(ring, sizeof(TraceRing), kLine))));
    return {owner, &owner->track};
}

}  // namespace

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
}

}  // namespace pysampler::bindings
