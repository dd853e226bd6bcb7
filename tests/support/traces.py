"""Reads traces like a viewer of Chrome's JSON format."""

import json
from dataclasses import dataclass, field
from pathlib import Path


@dataclass
class Slice:
    name: str
    begin: int
    end: int
    depth: int = 0
    flows: list[int] = field(default_factory=list)


@dataclass
class Track:
    name: str
    slices: list[Slice] = field(default_factory=list)
    values: list[tuple[int, float]] = field(default_factory=list)

    def named(self, *names):
        """Return the slices whose names begin with one of ``names``."""
        return [one for one in self.slices if one.name.startswith(names)]


def ns(us):
    return round(us * 1000)


def read(path):
    """Return the tracks of a trace by name, slices sorted by start, then longest first."""
    events = json.loads(Path(path).read_text())["traceEvents"]
    names = {one["tid"]: one["args"]["name"] for one in events if one["name"] == "thread_name"}
    tracks = {name: Track(name) for name in names.values()}
    for event in events:
        if event["ph"] == "C":
            counter = tracks.setdefault(event["name"], Track(event["name"]))
            counter.values.append((ns(event["ts"]), event["args"]["value"]))
        elif event["ph"] == "X":
            begin, length = ns(event["ts"]), ns(event["dur"])
            own = Slice(event["name"], begin, begin + length)
            tracks[names[event["tid"]]].slices.append(own)
    for track in tracks.values():
        track.slices.sort(key=lambda one: (one.begin, -one.end))
        stack = []
        for one in track.slices:
            while stack and stack[-1].end <= one.begin:
                stack.pop()
            assert not stack or one.end <= stack[-1].end, "slices overlap in part"
            one.depth = len(stack)
            stack.append(one)
    # An arrow belongs to the innermost slice that begins with it.
    begun = {(track.name, one.begin): one for track in tracks.values() for one in track.slices}
    for event in events:
        if "id" in event:
            begun[names[event["tid"]], ns(event["ts"])].flows.append(event["id"])
    return tracks
