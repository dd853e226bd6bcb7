"""Traces, read with the messages that Perfetto publishes."""

from dataclasses import dataclass, field
from pathlib import Path

from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as perfetto

BEGIN = perfetto.TrackEvent.TYPE_SLICE_BEGIN
END = perfetto.TrackEvent.TYPE_SLICE_END
COUNTER = perfetto.TrackEvent.TYPE_COUNTER
MONOTONIC = perfetto.BUILTIN_CLOCK_MONOTONIC


@dataclass
class Slice:
    name: str
    begin: int
    end: int
    depth: int
    flows: list[int] = field(default_factory=list)


@dataclass
class Track:
    name: str
    slices: list[Slice] = field(default_factory=list)
    values: list[tuple[int, float]] = field(default_factory=list)

    def named(self, *names):
        """Those whose names begin so."""
        return [one for one in self.slices if one.name.startswith(names)]


def read(path):
    """The tracks of a trace, by name, as a viewer makes them: events by time, then by place."""
    trace = perfetto.Trace()
    trace.ParseFromString(Path(path).read_bytes())
    tracks, names, clocks, events = {}, {}, {}, []
    for at, packet in enumerate(trace.packet):
        sequence = packet.trusted_packet_sequence_id
        names |= {(sequence, one.iid): one.name for one in packet.interned_data.event_names}
        if packet.HasField("track_descriptor"):
            told = packet.track_descriptor
            tracks[told.uuid] = Track(told.process.process_name or told.name)
        if packet.HasField("trace_packet_defaults"):
            defaults = packet.trace_packet_defaults
            clocks[sequence] = defaults.timestamp_clock_id
            assert defaults.track_event_defaults.track_uuid == sequence
        if packet.HasField("track_event"):
            assert clocks[sequence] == MONOTONIC
            events.append((packet.timestamp, at, sequence, packet.track_event))
    stacks = {number: [] for number in tracks}
    for at, _, sequence, event in sorted(events, key=lambda event: event[:2]):
        track, stack = tracks[sequence], stacks[sequence]
        if event.type == COUNTER:
            track.values.append((at, event.double_counter_value))
            continue
        name = names[sequence, event.name_iid]
        if event.type == BEGIN:
            stack.append(Slice(name, at, at, len(stack), list(event.flow_ids)))
            track.slices.append(stack[-1])
        else:
            assert event.type == END
            assert stack[-1].name == name, "slices overlap in part"
            stack.pop().end = at
    assert not any(stacks.values()), "slices without an end"
    return {track.name: track for track in tracks.values()}
