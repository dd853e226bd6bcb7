"""What actors cost the learner: taking records, publishing weights, learning in phases.

    python benchmarks/actors.py --out benchmarks/results

Each contender is a process of its own. One works at a time; the actors of the others are blocked.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from envs import Linear, mlp, spin
from running import Contender, Measure, Options, pyplot, rate_of, ratios, say, spread, study, table

WORKERS, ENVS = 2, 16
CHEETAH, CARTPOLE = "HalfCheetah-v5", "CartPole-v1"
TAKES = [64, 256, 1024]  # records at once
BATCH = 256
PARAMETERS, EVERY = 1_000_000, 0.01  # seconds between two publications
HIGHS = [16, 64, 256, 1024, 4096, 16384, 65536]
US = 20  # that the learner of phases takes for a record
SPENT = ["waiting", "taking", "keeping"]
NICE = [0, 10, 19]
DRAWN = [256, 4096]  # of HIGHS, in the picture
SHOWN = 1.0  # seconds of it


# -- in a contender's process ----------------------------------------------------------------------


class Critics:
    """The two critics of SAC, to have the cost of an update."""

    def __init__(self) -> None:
        import torch
        from torch import nn

        torch.set_num_threads(1)
        self._critics, self._targets = (
            nn.ModuleList([mlp([17 + 6, 256, 256, 1], "ReLU") for _ in range(2)]) for _ in range(2)
        )
        self._optimizer = torch.optim.Adam(self._critics.parameters(), 3e-4, fused=True)

    def update(self, batch: Any) -> None:
        import torch

        data = batch.torch()
        actions = data.fields["actions"].float()
        before = torch.cat([data.fields["observations"].float(), actions], 1)
        after = torch.cat([data.next_fields["next_observations"].float(), actions], 1)
        with torch.no_grad():
            later = torch.min(*(target(after)[:, 0] for target in self._targets))
            goal = data.rewards + data.discounts * later
        loss = sum((critic(before)[:, 0] - goal).pow(2).mean() for critic in self._critics)
        self._optimizer.zero_grad()
        loss.backward()
        self._optimizer.step()


def made(env: str, policy: Any, **options: Any) -> Any:
    import pysampler

    kwargs = {"num_workers": WORKERS}
    return pysampler.Actors(env, policy, num_envs=ENVS, vector_kwargs=kwargs, seed=0, **options)


def ring(*, learns: bool) -> Measure:
    """Prepare a learner that takes the records there are, and may learn from a batch."""
    import pysampler

    actors = made(CHEETAH, Linear(CHEETAH), high=4 * max(TAKES))
    replay = pysampler.ReplayBuffer(100_000, actors.like, seed=0)
    replay.extend(actors.take(BATCH, min_records=BATCH))
    critics = Critics()

    def measure(cell: dict[str, Any]) -> dict[str, Any]:
        replay.extend(actors.take(4 * max(TAKES)))  # leave out records from before
        began, before = time.perf_counter(), actors.stats()
        keeping, updates = 0.0, 0
        while time.perf_counter() < began + cell["seconds"]:
            records = actors.take(cell["take"])
            taken = time.perf_counter()
            replay.extend(records)
            keeping += time.perf_counter() - taken
            if learns:
                critics.update(replay.sample(BATCH))
                updates += 1
        seconds, after = time.perf_counter() - began, actors.stats()
        return {
            "seconds": seconds,
            "records": after.taken - before.taken,
            "updates": updates,
            "waiting": (after.waiting - before.waiting) / seconds,
            "taking": (after.taking - before.taking) / seconds,
            "keeping": keeping / seconds,
        }

    return measure


def publishing(share: float) -> Measure:
    """Prepare a learner that takes records all the time, and may publish weights."""
    policy = Linear(CHEETAH, PARAMETERS)
    actors = made(CHEETAH, policy, refresh_share=share)
    actors.take(1)

    def measure(cell: dict[str, Any]) -> dict[str, Any]:
        actors.take(BATCH * 4)
        began, before = time.perf_counter(), actors.stats()
        due, published, lags = began, 0, []
        while (at := time.perf_counter()) < began + cell["seconds"]:
            if cell["publish"] and at >= due:
                actors.publish(policy)
                published += 1
                due = max(due + EVERY, at)
            if len(actors.take(BATCH, timeout=EVERY / 4)) > 0:
                lags.append(actors.stats().lag)
        seconds, after = time.perf_counter() - began, actors.stats()
        return {
            "seconds": seconds,
            "records": after.taken - before.taken,
            "published": published,
            "ms": 1e3 * (after.publishing - before.publishing) / max(1, published),
            "lag": float(np.mean(lags)),
            "refreshing": ((after.refreshing - before.refreshing) / seconds).tolist(),
        }

    return measure


def watched() -> Measure:
    """Prepare a learner that takes the records there are and learns, with a watcher or without."""
    import pysampler

    policy = Linear(CHEETAH)
    actors = made(CHEETAH, policy, high=4 * max(TAKES))
    replay = pysampler.ReplayBuffer(100_000, actors.like, seed=0)
    replay.extend(actors.take(BATCH, min_records=BATCH))
    critics = Critics()

    def measure(cell: dict[str, Any]) -> dict[str, Any]:
        watcher = None
        if cell["nice"] is not None:
            watcher = pysampler.Watcher(actors, CHEETAH, repeat=True, nice=cell["nice"])
            watcher.wait(1)
        began, before, updates = time.perf_counter(), actors.stats(), 0
        seen = 0 if watcher is None else len(watcher.curve)
        while time.perf_counter() < began + cell["seconds"]:
            if len(records := actors.take(BATCH, timeout=0)) > 0:
                replay.extend(records)
            critics.update(replay.sample(BATCH))
            updates += 1
            if updates % 10 == 0:
                actors.publish(policy)
        seconds, after = time.perf_counter() - began, actors.stats()
        if watcher is not None:
            seen = len(watcher.curve) - seen
            watcher.close()
        return {
            "seconds": seconds,
            "records": after.taken - before.taken,
            "updates": updates,
            "episodes": seen,
        }

    return measure


def in_phases() -> Measure:
    """Prepare actors and a learner with a fixed time per record: in turn, or concurrently."""
    import pysampler
    from pysampler.sync import now

    envs = pysampler.make_vec(CARTPOLE, ENVS, vector_kwargs={"num_workers": WORKERS})

    def measure(cell: dict[str, Any]) -> dict[str, Any]:
        rounds = {"in turn": in_turn, "together": together}[cell["how"]]
        began, end, count = 0, None, 0
        intervals, versions = [], []
        with pysampler.Actors(envs, Linear(CARTPOLE), seed=0, high=cell["high"]) as actors:
            for filling, full, taken, policies in rounds(actors, cell["high"]):
                if end is None:  # the first round is not measured
                    began = now()
                    end = began + int(cell["seconds"] * 1e9)
                    continue
                intervals.append(((filling - began) / 1e9, (full - began) / 1e9))
                count += taken
                versions.append(policies)
                if now() >= end:
                    break
            seconds = (now() - began) / 1e9
        shown = [one for one in intervals if one[0] < SHOWN and cell["high"] in DRAWN]
        return {
            "seconds": seconds,
            "records": count,
            "policies": float(np.mean(versions)),
            "intervals": shown,
        }

    return measure


def in_turn(actors: Any, high: int) -> Iterator[tuple[int, int, int, int]]:
    """Yield for each phase: begin and end of recording, records, and how many policies acted."""
    for phase in actors.phases(high):
        taken, versions = 0, set()
        for records in phase.batches(BATCH):
            versions.update(np.unique(records.version).tolist())
            taken += len(records)
            spin(US * len(records))
        actors.publish()
        yield phase.filling, phase.full, taken, len(versions)


def together(actors: Any, high: int) -> Iterator[tuple[int, int, int, int]]:
    """Yield the same without phases."""
    while True:
        taken, versions = 0, set()
        while taken < high:
            records = actors.take(min(BATCH, high - taken))
            versions.update(np.unique(records.version).tolist())
            taken += len(records)
            spin(US * len(records))
        actors.publish()
        yield 0, 0, taken, len(versions)


KINDS: dict[str, Callable[..., Measure]] = {
    "ring": lambda: ring(learns=False),
    "learning ring": lambda: ring(learns=True),
    "publishing": publishing,
    "watched": watched,
    "phases": in_phases,
}


# -- in the process that measures ------------------------------------------------------------------


def rates(results: list[dict[str, Any]], what: str = "records") -> list[float]:
    return [rate_of(one, what) for one in results]


def taking(repetitions: int, seconds: float) -> list[dict[str, Any]]:
    """Measure taking records, by how many are taken at once."""
    rows: list[dict[str, Any]] = [
        {"learns": learns, "take": take, "runs": []} for learns in (False, True) for take in TAKES
    ]
    with Contender(__file__, "ring") as idle, Contender(__file__, "learning ring") as learning:
        for _ in range(repetitions):
            for row in rows:
                one = learning if row["learns"] else idle
                row["runs"].append(one.ask(seconds=seconds, take=row["take"]))
    return rows


def published(repetitions: int, seconds: float) -> list[dict[str, Any]]:
    """Measure with publishing and without, pair by pair."""
    rows = []
    for share in (0.01, 1.0):
        with Contender(__file__, "publishing", share) as one:
            pairs = [
                [one.ask(seconds=seconds, publish=publish) for publish in (False, True)]
                for _ in range(repetitions)
            ]
        rows.append({"refresh_share": share, "pairs": pairs})
    return rows


def looked_on(repetitions: int, seconds: float) -> list[dict[str, Any]]:
    """Measure with a watcher and without, pair by pair."""
    rows: list[dict[str, Any]] = [{"nice": nice, "pairs": []} for nice in NICE]
    with Contender(__file__, "watched") as one:
        for _ in range(repetitions):
            for row in rows:
                pair = [one.ask(seconds=seconds, nice=nice) for nice in (None, row["nice"])]
                row["pairs"].append(pair)
    return rows


def phased(repetitions: int, seconds: float) -> list[dict[str, Any]]:
    """Measure in turn and concurrently, by the number of records in a phase."""
    rows: list[dict[str, Any]] = [{"high": high, "in turn": [], "together": []} for high in HIGHS]
    with Contender(__file__, "phases") as one:
        for repetition in range(repetitions):
            for row in rows:
                for how in ("in turn", "together"):
                    row[how].append(one.ask(seconds=seconds, high=row["high"], how=how))
                    if repetition > 0 or how == "together":
                        del row[how][-1]["intervals"]  # only the first are drawn
    return rows


def percent(values: list[float]) -> str:
    """Return the median, the minimum and the maximum as text."""
    return spread([100 * value for value in values], 1)


def report(results: dict[str, Any]) -> list[str]:
    receives = {
        row["take"]: statistics.median(sum(run[n] for n in SPENT) for run in row["runs"])
        for row in results["taking"]
        if row["learns"]
    }
    usual = results["publishing"][0]
    refreshing = statistics.median(max(on["refreshing"]) for _, on in usual["pairs"])
    parts = []
    parts.append(
        f"{ENVS} envs in {WORKERS} workers, a policy of one layer in NumPy. Medians [least, most]. "
        "Targets: a learner that learns receives in less than 5 % of its time: "
        f"{max(receives.values()):.1%}, at most, with {max(receives, key=lambda n: receives[n])} "
        "records at once; actors take over a million parameters, published 100 times a second, in "
        f"less than 2 % of theirs: {refreshing:.2%}.\n"
    )
    rows = [
        [
            f"SAC's, {BATCH}" if row["learns"] else "nothing",
            str(row["take"]),
            spread(rates(row["runs"]), 0),
            spread(rates(row["runs"], "updates"), 0) if row["learns"] else "-",
            *(percent([run[name] for run in row["runs"]]) for name in SPENT),
        ]
        for row in results["taking"]
    ]
    header = ["learns", "records at once, at most", "records/s", "updates/s"]
    parts.append(
        f"## Taking records in\n\n{CHEETAH}: what there is, at once, `replay.extend(take(n))`, and "
        "then an update as of SAC's two critics (256 wide) on a batch from the replay, or nothing. "
        "Of the learner's time, in %: *waiting* for the first record, *taking* records from the "
        "ring, *keeping* them in the replay.\n\n" + table([*header, *SPENT], rows)
    )
    rows = []
    for row in results["publishing"]:
        off, on = zip(*row["pairs"], strict=True)
        rows.append(
            [
                f"{row['refresh_share']:g}",
                spread(rates(on, "published"), 0),
                spread([run["ms"] for run in on]),
                percent([max(run["refreshing"]) for run in on]),
                spread([run["lag"] for run in on], 1),
                spread(rates(off), 0),
                spread(ratios(rates(on), rates(off))),
            ]
        )
    header = ["share", "published/s", "a call, ms", "taking over, %", "lag, versions"]
    parts.append(
        f"## Publishing weights\n\n{PARAMETERS:,} float32 parameters, {1 / EVERY:.0f} times a "
        f"second, while {CHEETAH} is sampled. *Share*: what part of its time an actor may spend "
        "on taking them over; *a call*: what it costs the learner; *taking over*: of the time of "
        "the actor that it costs most; *lag*: how many versions behind the records were that were "
        "taken. With publishing and without, in turn.\n\n"
        + table([*header, "records/s without", "with, of without"], rows)
    )
    rows = []
    for row in results["watching"]:
        off, on = zip(*row["pairs"], strict=True)
        parts_of = [
            spread(ratios(rates(on, what), rates(off, what))) for what in ("updates", "records")
        ]
        rows.append([str(row["nice"]), *parts_of, spread(rates(on, "episodes"), 1)])
    header = ["nice", "updates/s, of without", "records/s, of without", "episodes/s it sees"]
    parts.append(
        f"## A watcher\n\n{CHEETAH}: {WORKERS} workers act, a learner learns all the time, and a "
        "watcher runs one episode after the other: more processes than CPUs, and none of them "
        "waits. With it and without, in turn.\n\n" + table(header, rows)
    )
    rows = [
        [
            f"{row['high']:,}",
            *(spread(rates(row[how]), 0) for how in ("in turn", "together")),
            *(
                f"{np.median([run['policies'] for run in row[how]]):.1f}"
                for how in ("in turn", "together")
            ),
        ]
        for row in results["phases"]
    ]
    header = ["records in a phase", "records/s in phases", "both at a time"]
    parts.append(
        f"## Phases\n\n{CARTPOLE}, a learner that takes {US} us a record, weights published after "
        "each phase. In phases actors and learner work in turn; beside it the same without phases, "
        "weights published as often. How many policies made the records of a phase: the fewer, the "
        "nearer to what on-policy learning wants.\n\n"
        + table([*header, "policies in phases", "both at a time"], rows)
    )
    return parts


def picture(results: dict[str, Any], stem: Path) -> None:
    """Draw when actors record and when the learner learns."""
    rows = [row for row in results["phases"] if row["high"] in DRAWN]
    figure, axes = pyplot().subplots(len(rows), figsize=(8, 1.4 * len(rows)), sharex=True)
    for axis, row in zip(np.atleast_1d(axes), rows, strict=True):
        intervals = row["in turn"][0]["intervals"]
        ends = [filling for filling, _ in intervals[1:]]
        axis.broken_barh([(a, b - a) for a, b in intervals], (0.6, 0.8), color="C0", lw=0)
        learns = [(full, end - full) for (_, full), end in zip(intervals, ends, strict=False)]
        axis.broken_barh(learns, (-0.4, 0.8), color="C1", lw=0)
        axis.set_yticks([1, 0], ["actors record", "learner learns"])
        axis.set_xlim(0, SHOWN)
        axis.set_title(f"{row['high']:,} records in a phase", fontsize=9)
    axis.set_xlabel("seconds")
    figure.savefig(stem.with_suffix(".png"), dpi=150)


def measure(options: Options) -> dict[str, Any]:
    parts = {"taking": taking, "publishing": published, "watching": looked_on, "phases": phased}
    results = {}
    for name, part in parts.items():
        say(name)
        results[name] = part(options.repetitions, options.seconds)
    return results


if __name__ == "__main__":
    study(
        *("Actors", measure, report),
        contender=KINDS,
        picture=picture,
        quick={"repetitions": 1, "seconds": 1.0},
        repetitions=5,
        seconds=3.0,
    )
