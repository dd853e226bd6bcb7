"""Shared parts of the benchmarks: contenders in their own processes, machine data, tables."""

from __future__ import annotations

import argparse
import contextlib
import datetime
import importlib.metadata
import json
import multiprocessing
import os
import platform
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pysampler._cli.turns import Answerer, MeasureError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

LIMIT = 60.0  # seconds within which a contender must answer
LIBRARIES = ["numpy", "gymnasium", "mujoco", "torch", "envpool", "stable_baselines3", "tianshou"]
LIBRARIES += ["torchrl", "ray"]


class Contender(Answerer):
    """A program that prints "ready", then answers each line of JSON with another.

    ``limit`` is seconds within which it must answer, ``trouble`` the reason why it no longer does.
    """

    def __init__(self, program: Path | str, *arguments: Any, limit: float = LIMIT) -> None:
        super().__init__([str(program), *map(str, arguments)], limit)
        self.trouble = ""
        self._without_trouble(lambda: self.line(limit))

    def measure(self, **cell: Any) -> dict[str, Any] | None:
        """Return the answer to a request; None if the contender is, or comes, in trouble."""
        return None if self.trouble else self._without_trouble(lambda: self.request(cell))

    def _without_trouble(self, ask: Callable[[], Any]) -> Any:
        try:
            return ask()
        except MeasureError as error:
            self.trouble = str(error)


def answer(make: Callable[[], Callable[[dict[str, Any]], dict[str, Any]]]) -> None:
    """Run as a contender: ``make`` prepares, and returns a function that answers requests."""
    out = os.fdopen(os.dup(1), "w", buffering=1)
    # What envs print must not mix with the answers.
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    measure = make()
    print("ready", file=out)
    with contextlib.suppress(BrokenPipeError):
        for line in sys.stdin:
            print(json.dumps(measure(json.loads(line))), file=out)


def in_interpreter(*arguments: str) -> Any:
    """Run Python with these arguments, and return the JSON of the last line that it prints.

    It stores compiled modules, as users' programs do, whatever this environment says.
    """
    done = subprocess.run(
        [sys.executable, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        check=True,
        timeout=120,
        start_new_session=True,
        env={k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"},
    )
    return json.loads(done.stdout.splitlines()[-1])


def machine() -> dict[str, Any]:
    """Return what describes this machine, and the date."""
    model = next(
        (
            line.split(":", 1)[1].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if line.startswith("model name")
        ),
        platform.machine(),
    )
    return {
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d"),
        "processor": model,
        "cpus": len(os.sched_getaffinity(0)),
        "virtual": "hypervisor" in Path("/proc/cpuinfo").read_text(),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "commit": _commit(),
        "versions": dict(_versions()),
    }


def _commit() -> str:
    """Return the commit that is measured, with a plus if files have changed since."""
    command = ["git", "-C", Path(__file__).parent, "describe", "--always", "--dirty=+"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()


def _versions() -> Iterator[tuple[str, str]]:
    """Yield the names and versions of libraries that results may depend on."""
    for name in LIBRARIES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            yield name, importlib.metadata.version(name)


def _stolen() -> int:
    """Return the CPU time that the hypervisor gave to other machines, in ticks."""
    return int(Path("/proc/stat").read_text().split(maxsplit=9)[8])


@contextlib.contextmanager
def stolen_share(machine_data: dict[str, Any]) -> Iterator[None]:
    """Note which share of the CPU time went to other machines during the block."""
    before, begun = _stolen(), time.monotonic()
    yield
    ticks = (time.monotonic() - begun) * os.sysconf("SC_CLK_TCK") * machine_data["cpus"]
    machine_data["stolen"] = (_stolen() - before) / ticks


def cpu_clocks(envs: Any, workers: int) -> Callable[..., float]:
    """Return a function that returns the CPU time of some workers together, or all."""
    first = [worker * (envs.num_envs // workers) for worker in range(workers)]
    pids = envs.apply(_pid, envs=first)
    clocks = [Path(f"/proc/{pid}/schedstat") for pid in pids]

    def used(chosen: Sequence[int] = range(workers)) -> float:
        return sum(int(clocks[one].read_text().split()[0]) for one in chosen) / 1e9

    return used


def _pid(_: Any) -> int:
    return os.getpid()


def heading(title: str, m: dict[str, Any]) -> str:
    """Return the title of a report: what was measured, when and where."""
    versions = ", ".join(f"{name} {version}" for name, version in m["versions"].items())
    return (
        f"# {title}, measured {m['date']}\n\n{m['processor']}, {m['cpus']} CPUs"
        f"{', virtual' if m['virtual'] else ''}, Linux {m['kernel']}, Python {m['python']}. "
        f"{m['stolen']:.1%} of its CPU time went to other machines meanwhile. pysampler "
        f"{m['commit']}; {versions}.\n"
    )


def table(header: list[str], rows: list[list[str]]) -> str:
    """Return a Markdown table."""
    body = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(row) + " |" for row in body) + "\n"


def spread(values: list[float], digits: int = 2) -> str:
    """Return the median, the minimum and the maximum as text."""
    middle = sorted(values)[len(values) // 2]
    return f"{middle:.{digits}f} [{min(values):.{digits}f}, {max(values):.{digits}f}]"


def quartiles(values: list[float], digits: int = 2) -> str:
    """Return the median and the quartiles as text."""
    if len(values) < 2:
        return f"{values[0]:.{digits}f}" if values else "-"
    low, middle, high = statistics.quantiles(values, method="inclusive")
    return f"{middle:.{digits}f} [{low:.{digits}f}, {high:.{digits}f}]"


def multiples(rates: list[float], of: list[float]) -> str:
    """Return the quartiles of rates as multiples of others that were measured in turn."""
    return quartiles([rate / other for rate, other in zip(rates, of, strict=False)])


def write(out: Path, name: str, results: dict[str, Any], text: str) -> Path:
    """Write ``<date>-<name>.json`` and ``.md`` to a folder; return their path without suffix."""
    out.mkdir(parents=True, exist_ok=True)
    stem = out / f"{results['machine']['date']}-{name}"
    stem.with_suffix(".json").write_text(json.dumps(results, indent=1) + "\n")
    stem.with_suffix(".md").write_text(text)
    return stem


def publish(options: argparse.Namespace, name: str, results: dict[str, Any], text: str) -> None:
    """Print the text of results, and write both to the folder that the options name, if any."""
    print(text)
    if options.out:
        write(options.out, name, results, text)


def options_of(
    parser: argparse.ArgumentParser, seconds: float, **defaults: int
) -> argparse.Namespace:
    """Parse the options of a benchmark in slices, which take ``seconds`` by default."""
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--repetitions", type=int, default=15)
    parser.add_argument("--seconds", type=float, default=seconds, help="that a slice takes")
    parser.add_argument("--quick", action="store_true", help="a short run, to see that it works")
    parser.add_argument("--out", type=Path, help="folder to write results to")
    parser.set_defaults(**defaults)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that contenders are ended
    return parser.parse_args()


def apart(
    make: Callable[..., Callable[[dict[str, Any]], dict[str, Any]]], workers: int, *arguments: Any
) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """Return a function that measures in several processes at once, which never communicate.

    Each makes its own function from the arguments; the rates are added.
    """
    fork = multiprocessing.get_context("fork")
    pipes = []
    for _ in range(workers):
        ours, theirs = fork.Pipe()
        fork.Process(target=_alone, args=(make, arguments, theirs), daemon=True).start()
        pipes.append(ours)

    def measure(cell: dict[str, Any]) -> dict[str, Any]:
        for pipe in pipes:
            pipe.send(cell)
        return {"rate": sum(pipe.recv()["rate"] for pipe in pipes)}

    measure({"seconds": 0.2})  # warm
    return measure


def _alone(make: Callable[..., Any], arguments: tuple[Any, ...], pipe: Any) -> None:
    measure = make(*arguments)
    while True:
        pipe.send(measure(pipe.recv()))


def rates_in_turn(
    program: str,
    names: list[str],
    arguments: tuple[Any, ...],
    options: argparse.Namespace,
    limit: float = LIMIT,
) -> dict[str, list[float]]:
    """Let contenders step in turn, slice by slice; return the rates of those that ran."""
    running: dict[str, Contender] = {}
    rates: dict[str, list[float]] = {name: [] for name in names}
    try:
        for name in names:
            running[name] = Contender(Path(program), name, *arguments, limit=limit)
        for repetition in range(options.repetitions):
            for name in names[:: -1 if repetition % 2 else 1]:
                if (said := running[name].measure(seconds=options.seconds)) is not None:
                    rates[name].append(said["rate"])
            say(f"  {repetition + 1}/{options.repetitions}", end="\r")
    finally:
        for one in running.values():
            one.end()
    drop_those_in_trouble(running, rates)
    return rates


def drop_those_in_trouble(running: dict[str, Contender], rates: dict[str, list[float]]) -> None:
    """Remove the rates of contenders that came in trouble, and say so."""
    for name, one in running.items():
        if one.trouble:
            say(f"  {name} does not run: {one.trouble}")
            del rates[name]


def rate_of_steps(envs: Any, actions: Any) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """Return a function that steps a vector env with batches of actions for some seconds."""
    turn = 0

    def measure(cell: dict[str, Any]) -> dict[str, Any]:
        nonlocal turn
        begun = time.perf_counter()
        steps = 0
        while (seconds := time.perf_counter() - begun) < cell["seconds"]:
            envs.step(actions[turn % len(actions)])
            turn, steps = turn + 1, steps + 1
        return {"rate": envs.num_envs * steps / seconds}

    measure({"seconds": 0.2})  # warm
    return measure


def rate_of_single_envs(envs: list[Any]) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """Return a function that steps envs one by one, with random actions, for some seconds."""
    for i, env in enumerate(envs):
        env.reset(seed=i)
    actions = [[env.action_space.sample() for env in envs] for _ in range(64)]

    def measure(cell: dict[str, Any]) -> dict[str, Any]:
        steps, begun = 0, time.perf_counter()
        while (took := time.perf_counter() - begun) < cell["seconds"]:
            for chosen in actions:
                for env, action in zip(envs, chosen, strict=True):
                    _, _, terminated, truncated, _ = env.step(action)
                    if terminated or truncated:
                        env.reset()
            steps += len(actions) * len(envs)
        return {"rate": steps / took}

    return measure


def say(text: str, end: str = "\n") -> None:
    """Print to stderr, at once."""
    print(text, end=end, file=sys.stderr, flush=True)
