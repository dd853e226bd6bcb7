#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "check.h"
#include "trace.h"

using namespace pysampler;

namespace {

// Zeroed, like the memory of a segment.
struct Trace {
    std::unique_ptr<TraceSwitch> wanted = std::make_unique<TraceSwitch>();
    std::unique_ptr<TraceRing> ring = std::make_unique<TraceRing>();
    std::shared_ptr<Track> track = std::make_shared<Track>(*wanted, *ring);
    TraceReader reader{*ring};

    Trace() { wanted->until = kForever; }
};

bool operator==(const Slice& a, const Slice& b) {
    return a.begin == b.begin && a.end == b.end && a.kind == b.kind && a.id == b.id;
}

TEST(nothing_is_written_unless_a_trace_is_wanted) {
    Trace trace;
    trace.wanted->until = 0;
    CHECK(trace.track->begin() == 0);
    trace.track->add(TraceKind::kStep, 1, 2, 3);
    {
        const Traced traced(trace.track, TraceKind::kWait, 1);
    }
    trace.wanted->until = 3;  // a slice that ends then is no longer wanted
    trace.track->add(TraceKind::kStep, 1, 2, 3);
    CHECK(trace.ring->claimed == 0);
    trace.wanted->until = 4;
    trace.track->add(TraceKind::kStep, 1, 2, 3);
    CHECK(trace.ring->claimed == 1);
}

TEST(a_slice_is_read_once_as_it_was_written) {
    Trace trace;
    trace.track->add(TraceKind::kReset, 7, 20, 30);
    const std::vector<Slice> read = trace.reader.read();
    CHECK(read.size() == 1 && read[0] == (Slice{20, 30, TraceKind::kReset, 7}));
    CHECK(trace.reader.read().empty());
}

TEST(a_reader_sees_only_slices_after_its_construction) {
    Trace trace;
    trace.track->add(TraceKind::kStep, 1, 2, 3);
    TraceReader later(*trace.ring);
    CHECK(later.read().empty());
    trace.track->add(TraceKind::kStep, 2, 2, 3);
    const std::vector<Slice> read = later.read();
    CHECK(read.size() == 1 && read[0].id == 2);
}

TEST(a_scope_is_traced_even_if_the_owner_drops_its_track) {
    Trace trace;
    auto owned = std::make_shared<Track>(*trace.wanted, *trace.ring);
    const std::int64_t before = now_ns();
    {
        const Traced traced(owned, TraceKind::kWait, 2);
        owned.reset();
    }
    {
        const Traced none(nullptr, TraceKind::kWait, 2);
    }
    const std::vector<Slice> read = trace.reader.read();
    CHECK(read.size() == 1);
    CHECK(before <= read[0].begin && read[0].begin <= read[0].end && read[0].end <= now_ns());
}

TEST(overwritten_slices_are_counted_as_missed) {
    constexpr std::uint32_t kTooMany = 10;
    Trace trace;
    for (std::uint32_t i = 0; i < TraceRing::kSlices + kTooMany; ++i) {
        trace.track->add(TraceKind::kStep, i, 1, 2);
    }
    const std::vector<Slice> read = trace.reader.read();
    CHECK(read.size() == TraceRing::kSlices && trace.reader.missed() == kTooMany);
    for (std::uint32_t i = 0; i < read.size(); ++i) CHECK(read[i].id == i + kTooMany);
    CHECK(trace.reader.read().empty());
}

TEST(a_slice_under_way_is_read_later) {
    Trace trace;
    trace.track->add(TraceKind::kStep, 0, 1, 2);
    ++trace.ring->claimed;
    trace.track->add(TraceKind::kStep, 2, 1, 2);
    CHECK(trace.reader.read().size() == 1);
    CHECK(trace.reader.read().empty());
    trace.ring->slot(1).write({1, 2, TraceKind::kStep, 1}, 1);
    const std::vector<Slice> read = trace.reader.read();
    CHECK(read.size() == 2 && read[0].id == 1 && read[1].id == 2);
    CHECK(trace.reader.missed() == 0);
}

TEST(a_slice_whose_writer_died_is_missed_after_many_others) {
    constexpr std::uint32_t kAfter = 100;
    Trace trace;
    ++trace.ring->claimed;
    CHECK(trace.reader.read().empty() && trace.reader.missed() == 0);
    for (std::uint32_t i = 0; i < kAfter; ++i) trace.track->add(TraceKind::kStep, i, 1, 2);
    CHECK(trace.reader.read().size() == kAfter && trace.reader.missed() == 1);
}

TEST(a_slot_returns_no_slice_of_another_lap) {
    Trace trace;
    TraceSlot& slot = trace.ring->slot(5);
    slot.write({1, 2, TraceKind::kStep, 3}, 5);
    CHECK(slot.read(5).has_value());
    CHECK(!slot.read(5 + TraceRing::kSlices).has_value());
    slot.write({1, 2, TraceKind::kStep, 3}, 5 + TraceRing::kSlices);
    CHECK(!slot.read(5).has_value());
}

TEST(a_slice_read_while_it_is_overwritten_is_whole) {
    constexpr std::uint64_t kLaps = 1'000'000;
    TraceSlot slot{};
    std::atomic<std::uint64_t> written = 0;
    const std::jthread writer([&] {
        for (std::uint64_t lap = 0; lap < kLaps; ++lap) {
            const auto at = static_cast<std::int64_t>(lap);
            slot.write({at, at, TraceKind::kStep, static_cast<std::uint32_t>(lap)}, lap);
            written.store(lap + 1, std::memory_order_relaxed);
        }
    });
    std::uint64_t laps = 0;
    while (laps < kLaps) {
        laps = written.load(std::memory_order_relaxed);
        if (laps == 0) continue;
        const std::optional<Slice> slice = slot.read(laps - 1);
        if (!slice) continue;
        const auto at = static_cast<std::int64_t>(laps - 1);
        CHECK(slice->begin == at && slice->end == at);
        CHECK(slice->id == static_cast<std::uint32_t>(laps - 1));
    }
}

TEST(threads_write_slices_while_they_are_read) {
    constexpr std::uint32_t kThreads = 4, kEach = 3000;
    Trace trace;
    std::vector<Slice> read;
    const auto read_more = [&] {
        const std::vector<Slice> more = trace.reader.read();
        read.insert(read.end(), more.begin(), more.end());
    };
    {
        std::vector<std::jthread> threads;
        std::atomic<std::uint32_t> ended = 0;
        for (std::uint32_t id = 0; id < kThreads; ++id) {
            threads.emplace_back([&, id] {
                for (std::uint32_t i = 0; i < kEach; ++i) {
                    trace.track->add(TraceKind::kStep, id, id, id + 1);
                }
                ++ended;
            });
        }
        while (ended < kThreads) read_more();
    }
    read_more();
    std::vector<std::uint32_t> found(kThreads);
    for (const Slice& slice : read) {
        CHECK(slice.begin == slice.id && slice.end == slice.id + 1);
        ++found[slice.id];
    }
    CHECK(read.size() + trace.reader.missed() == kThreads * kEach);
    for (const std::uint32_t count : found) CHECK(count <= kEach);
}

}  // namespace

int main(int argc, char** argv) { return check::main(argc, argv); }
