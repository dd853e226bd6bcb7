#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

#include "check.h"
#include "trace.h"

using namespace pysampler;

namespace {

// Zeroed, as the memory of a segment is.
struct Trace {
    std::unique_ptr<TraceSwitch> wanted = std::make_unique<TraceSwitch>();
    std::unique_ptr<TraceRing> ring = std::make_unique<TraceRing>();
    std::shared_ptr<Track> track = std::make_shared<Track>(*wanted, *ring);
};

TEST(nothing_is_written_unless_it_is_wanted) {
    const Trace trace;
    CHECK(trace.track->begin() == 0);
    trace.track->add(TraceKind::kStep, 1, 2, 3);
    {
        const Traced traced(trace.track, TraceKind::kWait, 1);
    }
    trace.wanted->until = 3;  // what ends then is not wanted any more
    trace.track->add(TraceKind::kStep, 1, 2, 3);
    CHECK(trace.ring->claimed == 0);
    trace.wanted->until = 4;
    trace.track->add(TraceKind::kStep, 1, 2, 3);
    CHECK(trace.ring->claimed == 1);
}

TEST(a_slice_is_what_was_done) {
    const Trace trace;
    trace.wanted->until = kForever;
    trace.track->add(TraceKind::kReset, 7, 20, 30);
    const TraceSlice& slice = trace.ring->slices[0];
    CHECK(slice.begin == 20 && slice.end == 30);
    CHECK(slice.kind == TraceKind::kReset && slice.id == 7);
    CHECK(slice.number == 1);
}

TEST(a_scope_is_a_slice_even_if_the_owner_lets_go_of_its_track) {
    const Trace trace;
    trace.wanted->until = kForever;
    auto owned = std::make_shared<Track>(*trace.wanted, *trace.ring);
    const std::int64_t before = now_ns();
    {
        const Traced traced(owned, TraceKind::kWait, 2);
        owned.reset();
    }
    const TraceSlice& slice = trace.ring->slices[0];
    CHECK(before <= slice.begin && slice.begin <= slice.end && slice.end <= now_ns());
    {
        const Traced none(nullptr, TraceKind::kWait, 2);
    }
    CHECK(trace.ring->claimed == 1);
}

TEST(the_newest_overwrite_the_oldest) {
    const Trace trace;
    trace.wanted->until = kForever;
    for (std::uint32_t i = 0; i <= TraceRing::kSlices; ++i) {
        trace.track->add(TraceKind::kStep, i, 1, 2);
    }
    CHECK(trace.ring->slices[0].id == TraceRing::kSlices);
    CHECK(trace.ring->slices[0].number == TraceRing::kSlices + 1);
    CHECK(trace.ring->slices[1].id == 1);
}

TEST(threads_write_slices_of_their_own) {
    constexpr std::uint32_t kThreads = 4, kEach = 3000;
    const Trace trace;
    trace.wanted->until = kForever;
    {
        std::vector<std::jthread> threads;
        for (std::uint32_t id = 0; id < kThreads; ++id) {
            threads.emplace_back([&trace, id] {
                for (std::uint32_t i = 0; i < kEach; ++i) {
                    trace.track->add(TraceKind::kStep, id, id, id + 1);
                }
            });
        }
    }
    std::vector<std::uint32_t> found(kThreads);
    for (std::uint64_t at = 0; at < kThreads * kEach; ++at) {
        const TraceSlice& slice = trace.ring->slices[at];
        CHECK(slice.number == at + 1 && slice.begin == slice.id && slice.end == slice.id + 1);
        ++found[slice.id];
    }
    for (const std::uint32_t count : found) CHECK(count == kEach);
}

}  // namespace

int main(int argc, char** argv) { return check::main(argc, argv); }
