"""A model of a learner with many hosts, fed by what hosts.py has measured.

    python benchmarks/scale.py              # docs/design/scale.md and its pictures, from the newest
    python benchmarks/scale.py --results build/bench-smoke/2026-11-23-hosts.json --print

The model is in scale_model.py. It is checked against what was measured with 1, 2 and 4 hosts.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from hosting import CASES, CHEETAH, IMAGE
from hosts import LEARNS, PARAMETERS, middle
from pictures import PICTURES, THEMES, Svg, newest
from running import table
from scale_model import (
    INLINE_LIMITS,
    RAYLET_THREADS,
    TEN_GBIT,
    Costs,
    World,
    simulated,
)

PAGE = PICTURES.parent / "design" / "scale.md"
TOLERANCE = 0.15


# -- the check -------------------------------------------------------------------------------------


def row_of(results: dict[str, Any], case: str, nodes: int) -> Any:
    """Return what was measured of rollouts, beside samplers without Ray."""
    for row in results["compared"]:
        if (row["kind"], row["case"], row["nodes"]) == ("Rollouts", case, nodes):
            return row
    return None


def checks(results: dict[str, Any], costs: Costs) -> list[dict[str, Any]]:
    """Return what the model predicts of this machine beside what was measured.

    How long a host takes for a rollout is what its sampler takes without Ray: with as many
    processes on the same CPUs (``same``), or the only one on the machine (``one``).
    """
    cpus = results["machine"]["cpus"]
    found = []
    for row in results["compared"]:
        alone = row_of(results, row["case"], 1)
        if row["kind"] != "Rollouts" or alone is None:
            continue
        measured = [pair["hosts"] for pair in row["pairs"]]
        in_memory = CASES[row["case"]].in_memory and results.get("in_memory", False)
        world = replace(world_of(row, cpus), in_memory=in_memory)
        one = replace(world, seconds=world_of(alone, cpus).seconds)
        found.append(
            {
                "what": row["case"],
                "nodes": row["nodes"],
                "measured": middle(measured, "rate"),
                "same": simulated(costs, world).rate,
                "one": simulated(costs, one).rate,
            }
        )
    for row in results["learners"]:
        plain = row_of(results, CHEETAH, row["nodes"])
        alone = row_of(results, CHEETAH, 1)
        if plain is None or alone is None:
            continue
        world = replace(
            world_of(plain, cpus),
            in_memory=results.get("in_memory", False),
            min_hosts=None,
            in_flight=row["in_flight"],
            learns=LEARNS,
            policy_mb=4 * PARAMETERS / 1e6,
        )
        outcome = simulated(costs, world)
        one = simulated(costs, replace(world, seconds=world_of(alone, cpus).seconds))
        found.append(
            {
                "what": f"{CHEETAH}, learner, in_flight={row['in_flight']}",
                "nodes": row["nodes"],
                "measured": middle(row["runs"], "rate"),
                "same": outcome.rate,
                "one": one.rate,
                "updates": (middle(row["runs"], "updates"), outcome.takes),
                "lag": (middle(row["runs"], "lag"), outcome.lag),
            }
        )
    return found


def world_of(row: dict[str, Any], cpus: int) -> World:
    """Return the world in which a row was measured; the learner takes what is ready."""
    case, plain = CASES[row["case"]], [pair["plain"] for pair in row["pairs"]]
    steps, hosts = case.envs * case.horizon, row["nodes"]
    return World(
        hosts,
        steps,
        seconds=steps * min(hosts, cpus) / middle(plain, "rate"),
        mb=row["pairs"][0]["hosts"]["bytes"] / 1e6,
        variation=min(0.5, middle(plain, "variation")),
        min_hosts=1,
        cpus=cpus,
    )


def error(row: dict[str, Any], how: str) -> float:
    return float(row[how] / row["measured"] - 1)


# -- what follows for more hosts -------------------------------------------------------------------

HOSTS = [1, 2, 4, 10, 100, 1000]
DRAWN = [1, 2, 4, 10, 20, 40, 100, 200, 400, 1000]
MANY_CPUS = 16
LARGE_POLICY = 10.0  # MB


def types(results: dict[str, Any]) -> dict[str, World]:
    """Return hosts of different kinds, and a learner that takes of all of them and learns."""
    found = {}
    for name in (CHEETAH, IMAGE):
        row = row_of(results, name, 1)
        one = replace(
            world_of(row, 1),
            cpus=None,
            min_hosts=None,
            learns=LEARNS,
            policy_mb=4 * PARAMETERS / 1e6,
            variation=0.1,
        )
        found[f"{name}, 1 CPU a host"] = one
        found[f"{name}, {MANY_CPUS} CPUs a host"] = replace(
            one, steps=MANY_CPUS * one.steps, mb=MANY_CPUS * one.mb
        )
    return found


def capacities(costs: Costs, world: World, *, inline: bool) -> dict[str, float]:
    """Return for how many hosts each thing suffices, if the learner only takes, of all at once."""
    cost = costs.result(world.mb, inline=inline)
    each = {
        "learner's thread": costs.look + costs.rollout + cost.thread + costs.copy * world.mb,
        "Ray's thread": cost.driver_threads,
        "Ray's copying": cost.driver_raylet / RAYLET_THREADS,
        "10 Gbit/s": world.mb / TEN_GBIT,
        "25 Gbit/s": world.mb / (2.5 * TEN_GBIT),
    }
    return {name: world.seconds / one if one > 0 else np.inf for name, one in each.items()}


# -- the page --------------------------------------------------------------------------------------


def count(value: float) -> str:
    """Return a number of hosts as text, with two digits that count."""
    if value >= 1e5:
        return "no limit"
    digits = 10 ** max(0, len(str(int(value))) - 2)
    return f"{int(value) // digits * digits:,}"


def check_part(results: dict[str, Any], costs: Costs) -> str:
    rows = checks(results, costs)
    cells = [
        [
            *(row["what"], str(row["nodes"]), f"{row['measured']:,.0f}"),
            *(f"{row[how]:,.0f} ({error(row, how):+.0%})" for how in ("same", "one")),
            *(
                f"{row[name][0]:.1f}, {row[name][1]:.1f}" if name in row else "-"
                for name in ("updates", "lag")
            ),
        ]
        for row in rows
    ]
    header = ["", "nodes", "measured, steps/s", "predicted from as many samplers"]
    header += ["predicted from one sampler", "updates/s", "lag"]
    inside = [sum(abs(error(row, how)) <= TOLERANCE for row in rows) for how in ("same", "one")]
    worst = [max((abs(error(row, how)) for row in rows), default=0.0) for how in ("same", "one")]
    return (
        table(header, cells)
        + f"\nOf {len(rows)} predictions {inside[0]} are within {TOLERANCE:.0%} (the worst is off "
        f"by {worst[0]:.0%}) if the sampling rate under sharing is given, {inside[1]} (the worst: "
        f"{worst[1]:.0%}) from the rate of one sampler alone. Updates a second and lag: measured, "
        "predicted.\n"
    )


def costs_part(_: dict[str, Any], costs: Costs) -> str:
    ms = 1e3
    rows = [
        ["a `take`, for itself, `c`", f"{ms * costs.take:.2f} ms"],
        ["for each host that there is, `n`", f"{ms * costs.look:.3f} ms"],
        ["for each rollout that it returns, `r`", f"{ms * costs.rollout:.2f} ms"],
        ["copying to the learner's buffer, `b`", f"{ms * costs.copy:.3f} ms a MB"],
        [
            "looking whether the policy has changed",
            f"{ms * costs.same[1]:.2f} ms and {ms * costs.same[0]:.2f} ms a MB",
        ],
        [
            "publishing it: `p`, `q`, `a`",
            (
                f"{ms * costs.changed[1]:.2f} ms, {ms * costs.changed[0]:.2f} ms a MB, and "
                f"{ms * costs.announce:.2f} ms a host"
            ),
        ],
    ]
    for mb, inline in ((0.08, False), (0.5, False), (0.5, True), (8.0, False)):
        cost = costs.result(mb, inline=inline)
        ray = cost.host_raylet + cost.driver_raylet + cost.driver_threads + cost.thread
        rows.append(
            [
                f"Ray, a result of {mb:g} MB{', inline' * inline}",
                f"{ms * cost.host:.1f} ms of the host's CPU time, {ms * ray:.1f} ms of others'",
            ]
        )
    rows.append(["a host that was killed is back after, `R`", f"{costs.restart:.1f} s"])
    return table(["", "costs"], rows)


def predictions_part(results: dict[str, Any], costs: Costs) -> str:
    parts = []
    for name, world in types(results).items():
        rows = []
        for hosts in HOSTS:
            two, one = (simulated(costs, replace(world, hosts=hosts, in_flight=n)) for n in (2, 1))
            rows.append(
                [
                    *(f"{hosts:,}", f"{two.rate:,.0f}", f"{two.share:.0%}", f"{one.share:.0%}"),
                    *(f"{two.takes:.2g}", f"{two.lag:.1f}, {one.lag:.1f}", two.limit),
                ]
            )
        header = ["hosts", "steps/s", "of what they can", "with in_flight=1"]
        header += ["updates/s", "lag, with 2, 1", "limited by"]
        parts.append(
            f"**{name}**: a rollout of {world.steps:,} steps and {world.mb:.2g} MB every "
            f"{1e3 * world.seconds:.0f} ms.\n\n" + table(header, rows)
        )
    return "\n".join(parts)


def limits_part(results: dict[str, Any], costs: Costs) -> str:
    rows = []
    for name, world in types(results).items():
        for inline in (True, False) if world.mb <= INLINE_LIMITS[True] else (False,):
            found = capacities(costs, world, inline=inline)
            rows.append([f"{name}{', inline' * inline}", *(count(one) for one in found.values())])
    names = list(capacities(costs, world, inline=False))
    small, large = 4 * PARAMETERS / 1e6, LARGE_POLICY
    publishing = [
        [
            f"{hosts:,}",
            *(
                f"{1e3 * (costs.publish(mb, changed=True) + costs.announce * hosts):,.0f}"
                for mb in (small, large)
            ),
            *(f"{1e3 * mb * hosts / TEN_GBIT:,.0f}" for mb in (small, large)),
        ]
        for hosts in HOSTS[3:]
    ]
    header = ["hosts", f"thread, {small:g} MB", f"{large:g} MB"]
    header += [f"10 Gbit/s, {small:g} MB", f"{large:g} MB"]
    return (
        table(["enough for this number of hosts", *names], rows)
        + "\nPublishing once, in ms: of the learner's thread, and of its link if all hosts fetch "
        "from the learner's node.\n\n" + table(header, publishing)
    )


def losses_part(results: dict[str, Any], costs: Costs) -> str:
    world = replace(types(results)[f"{CHEETAH}, {MANY_CPUS} CPUs a host"], hosts=10, length=600)
    rows = []
    whole = simulated(costs, world).rate
    for text, seconds in (("a minute", 60.0), ("ten minutes", 600.0), ("a day", 86400.0)):
        formula = 1 / (1 + (costs.restart + world.seconds) / seconds)
        found = "-"
        if seconds < 1000:
            found = f"{simulated(costs, replace(world, losses=1 / seconds)).rate / whole:.1%}"
        rows.append([text, f"{formula:.1%}", found])
    return table(["each host is lost once in", "by the formula", "simulated"], rows)


PARTS = {
    "costs": costs_part,
    "check": check_part,
    "predictions": predictions_part,
    "limits": limits_part,
    "losses": losses_part,
}


def page(results: dict[str, Any], costs: Costs, text: str) -> str:
    """Return the page with what the results say between its marks."""
    machine = results["machine"]
    source = (
        f"Measured {machine['date']} on {machine['cpus']} CPUs ({machine['processor']}, Linux "
        f"{machine['kernel']}).\n"
    )
    parts = {"source": source, **{name: make(results, costs) for name, make in PARTS.items()}}
    for name, part in parts.items():
        begin, end = f"<!-- {name}: made by benchmarks/scale.py -->\n", f"<!-- end of {name} -->"
        before, found, rest = text.partition(begin)
        assert found, f"cannot write {PAGE.name}: no mark {begin!r}"
        text = before + begin + "\n" + part + "\n" + end + rest.partition(end)[2]
    return text


# -- the picture -----------------------------------------------------------------------------------


def picture(results: dict[str, Any], costs: Costs, theme: str) -> str:
    """Draw the check, and what hosts of different kinds bring the learner."""
    rows = [row for row in checks(results, costs) if row["what"] in CASES]
    drawn = types(results)
    height = max(330, 78 + 19 * len(rows))
    svg = Svg(760, height, theme, "Hosts on Ray: the model beside measurements, and many hosts")
    _draw_check(svg, rows)
    _draw_hosts(svg, costs, drawn, height)
    return svg.done()


def _draw_check(svg: Svg, rows: list[dict[str, Any]]) -> None:
    svg.text(0, 18, "Measured and predicted", size=15, bold=True)
    svg.text(0, 38, "env steps a second; the mark is the prediction", size=12, fill="soft")
    most = {
        row["what"]: max(
            max(one["measured"], one["same"]) for one in rows if one["what"] == row["what"]
        )
        for row in rows
    }
    y = 52
    last = ""
    for row in rows:
        if row["what"] != last:
            y += 16
            svg.text(0, y, row["what"], size=12, bold=True)
            last, y = row["what"], y + 6
        length = 190 / most[row["what"]]
        label = f"{row['nodes']} node{'s' * (row['nodes'] > 1)}"
        svg.text(52, y + 12, label, size=11, anchor="end", fill="soft")
        svg.box(58, y + 2, length * row["measured"], 13, "ours", radius=1.5)
        at = 58 + length * row["same"]
        svg.box(at - 1.5, y - 1, 3, 19, "cpp", radius=0)
        end = max(at, 58 + length * row["measured"]) + 6
        svg.text(end, y + 13, f"{row['measured']:,.0f} ({error(row, 'same'):+.0%})", size=11)
        y += 20


def _draw_hosts(svg: Svg, costs: Costs, drawn: dict[str, World], height: int) -> None:
    left, right, top, bottom = 440, 750, 60, height - 110
    svg.text(left - 40, 18, "What the learner receives", size=15, bold=True)
    svg.text(left - 40, 38, "of what the hosts can make, predicted", size=12, fill="soft")

    def x(hosts: float) -> float:
        return left + (right - left) * float(np.log10(hosts)) / 3

    def y(share: float) -> float:
        return bottom - (bottom - top) * min(share, 1.0)

    for share in (0, 0.25, 0.5, 0.75, 1):
        svg.line([(left, y(share)), (right, y(share))], "line")
        svg.text(left - 6, y(share) + 4, f"{share:.0%}", size=11, anchor="end", fill="soft")
    for hosts in (1, 10, 100, 1000):
        svg.text(x(hosts), bottom + 16, f"{hosts:,}", size=11, anchor="middle", fill="soft")
    svg.text((left + right) / 2, bottom + 32, "hosts", size=11, anchor="middle", fill="soft")
    for at, ((name, world), colour) in enumerate(
        zip(drawn.items(), ("blue", "ours", "peer", "cpp"), strict=True)
    ):
        shares = [simulated(costs, replace(world, hosts=hosts)).share for hosts in DRAWN]
        points = [(x(hosts), y(share)) for hosts, share in zip(DRAWN, shares, strict=True)]
        svg.line(points, colour)
        for px, py in points:
            svg.box(px - 2, py - 2, 4, 4, colour, radius=2)
        svg.box(left, bottom + 42 + 16 * at, 10, 10, colour, radius=0)
        svg.text(left + 16, bottom + 51 + 16 * at, name, size=11, fill="soft")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--results", type=Path, help="by default the newest of two CPUs")
    parser.add_argument("--print", action="store_true", help="print the check, and write nothing")
    options = parser.parse_args()
    results = json.loads((options.results or newest("hosts")[0]).read_text())
    costs = Costs(results["costs"])
    if options.print:
        print(check_part(results, costs))
        return
    PAGE.write_text(page(results, costs, PAGE.read_text()))
    for theme in THEMES:
        (PICTURES / f"scale-{theme}.svg").write_text(picture(results, costs, theme))


if __name__ == "__main__":
    main()
