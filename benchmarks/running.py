"""Shared parts of the benchmarks: programs, contenders in processes, machine data, tables.

Most benchmarks are a call of ``study``: what they measure, and the page that they make of it. Those
whose contenders take turns with envs of several cases measure with ``rates_of_cases``.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import datetime
import importlib.metadata
import itertools
import json
import multiprocessing
import os
import platform
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pysampler._cli.turns import Answerer, MeasureError

Options = argparse.Namespace
Measure = Callable[[dict[str, Any]], dict[str, Any]]  # answers a request to a contender
LIMIT = 60.0  # seconds within which a contender must answer
LIBRARIES = ["numpy", "gymnasium", "mujoco", "torch", "envpool", "stable_baselines3", "tianshou"]
LIBRARIES += ["torchrl", "pufferlib", "ray"]
SLICES = {"workers": 2, "repetitions": 15, "seconds": 0.3}  # options of most studies
HELP = {
    "workers": "processes or threads that step envs",
    "repetitions": "how often each contender is measured",
    "seconds": "that a slice takes",
    "slices": "of each contender",
    "seeds": "of the runs of each contender, or how many",
    "kept": "only report runs that are there",
    "rounds": "of peers; 0 leaves them out",
    "patience": "seconds to wait for other programs, in all",
    "name": "of the files of results",
    "rlpyt": "a checkout of rlpyt",
    "horizon": "steps of each env, instead of --seconds",
    "timeouts": 'seconds, beside waiting for all and "auto"',
    "timeout_from": "where a time-out begins",
    "python": "step envs in Python instead of natively",
    "window": "seconds that are measured",
    "limit": "seconds until a run is given up",
    "episodes": "that are played at the end",
    "steps": "of all envs together",
    "most": "workers; by default as many as CPUs",
    "native": "folder of the native benchmarks",
    "only": "measure only what has this name, or has it in its name",
}


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

    def ask(self, **cell: Any) -> dict[str, Any]:
        """Return the answer to a request, or raise MeasureError."""
        if (said := self.measure(**cell)) is None:
            raise MeasureError(f"a contender has ended: {self.trouble}")
        return said

    def rate(self, **cell: Any) -> float:
        """Return the steps a second of the answer to a request."""
        return rate_of(self.ask(**cell))

    def _without_trouble(self, ask: Callable[[], Any]) -> Any:
        try:
            return ask()
        except MeasureError as error:
            self.trouble = str(error)


@contextlib.contextmanager
def started(
    program: Path | str, arguments: Mapping[str, Sequence[Any]], limit: float = LIMIT
) -> Iterator[dict[str, Contender]]:
    """Start contenders by name, each with its arguments; end them with the block."""
    with contextlib.ExitStack() as stack:
        yield {
            name: stack.enter_context(Contender(program, *own, limit=limit))
            for name, own in arguments.items()
        }


def once(program: Path | str, *arguments: Any, limit: float, **cell: Any) -> dict[str, Any] | None:
    """Return the only answer of a contender; None, and say why, if it does not run."""
    with Contender(program, *arguments, limit=limit) as one:
        said = one.measure(**cell)
    if said is None:
        say(f"  {arguments[0]} does not run: {one.trouble}")
    return said


def in_turn(
    names: Iterable[str], turns: Iterable[Any], measure: Callable[[str, Any], Any]
) -> dict[str, list[Any]]:
    """Return by name the results of ``measure(name, turn)`` in each turn, without None."""
    found: dict[str, list[Any]] = {name: [] for name in names}
    for turn in turns:
        for name, results in found.items():
            if (result := measure(name, turn)) is not None:
                results.append(result)
    return found


def answers_in_turn(
    running: Mapping[str, Contender], repetitions: int, **cell: Any
) -> dict[str, list[dict[str, Any]]]:
    """Ask contenders the same in turn, several times; return the answers of each."""
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in running}
    for name, one in turns(running, repetitions):
        found[name].append(one.ask(**cell))
    return found


def turns(running: Mapping[str, Any], repetitions: int) -> Iterator[tuple[str, Any]]:
    """Yield contenders in turn, every other time in the opposite order; say how far they are."""
    for repetition in range(repetitions):
        yield from list(running.items())[:: -1 if repetition % 2 else 1]
        say(f"  {repetition + 1}/{repetitions}", end="\r")


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


def in_interpreter(*arguments: Any) -> Any:
    """Run Python with these arguments, and return the JSON of the last line that it prints.

    It stores compiled modules, as users' programs do, whatever this environment says.
    """
    done = run(
        [sys.executable, *map(str, arguments)],
        120,
        stderr=subprocess.DEVNULL,
        env={k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"},
    )
    done.check_returncode()
    return json.loads(done.stdout.splitlines()[-1])


def run(
    command: list[str], limit: float | None = None, **options: Any
) -> subprocess.CompletedProcess[str]:
    """Run a command, for ``limit`` seconds at most; its whole session is ended with it."""
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, start_new_session=True, **options
    ) as process:
        try:
            out, errors = process.communicate(timeout=limit)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    return subprocess.CompletedProcess(command, process.returncode, out, errors)


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


def _cpu_ticks() -> list[int]:
    """Return what the CPUs of this machine did since its start, in the order of proc_stat(5)."""
    return [*map(int, Path("/proc/stat").read_text().split(maxsplit=9)[1:9])]


def _stolen() -> int:
    """Return the CPU time that the hypervisor gave to other machines, in ticks."""
    return _cpu_ticks()[7]


def busy_seconds() -> float:
    """Return for how long the CPUs of this machine have worked, all together."""
    user, nice, system, _, _, irq, softirq, _ = _cpu_ticks()
    return (user + nice + system + irq + softirq) / os.sysconf("SC_CLK_TCK")


@contextlib.contextmanager
def stolen_share(machine_data: dict[str, Any]) -> Iterator[None]:
    """Note which share of the CPU time went to other machines during the block."""
    before, begun = _stolen(), time.monotonic()
    yield
    ticks = (time.monotonic() - begun) * os.sysconf("SC_CLK_TCK") * machine_data["cpus"]
    machine_data["stolen"] = (_stolen() - before) / ticks


def cpu_clocks(envs: Any, workers: int) -> Callable[..., float]:
    """Return a function that returns the CPU time of some workers together, or all."""
    clocks = [Path(f"/proc/{pid}/schedstat") for pid in envs._pool.pids]

    def used(chosen: Sequence[int] = range(workers)) -> float:
        return sum(int(clocks[one].read_text().split()[0]) for one in chosen) / 1e9

    return used


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


def columns(rows: Iterable[Any], of: Mapping[str, Callable[[Any], Any]]) -> str:
    """Return a Markdown table: by the title of a column, what makes its cells of the rows."""
    return table(list(of), [[str(cell(row)) for cell in of.values()] for row in rows])


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
    return quartiles(ratios(rates, of))


def write(out: Path, name: str, results: dict[str, Any], text: str) -> Path:
    """Write ``<date>-<name>.json`` and ``.md`` to a folder; return their path without suffix.

    In the text ``{picture}`` stands for the file that ``curves.picture`` writes beside them.
    """
    out.mkdir(parents=True, exist_ok=True)
    stem = out / f"{results['machine']['date']}-{name}"
    stem.with_suffix(".json").write_text(json.dumps(results, indent=1) + "\n")
    stem.with_suffix(".md").write_text(text.replace("{picture}", f"{stem.name}.svg"))
    return stem


def study(
    title: str,
    measure: Callable[[Options], dict[str, Any]],
    report: Callable[[dict[str, Any]], Iterable[str]],
    *,
    file: str = "",
    contender: Callable[..., Measure] | Mapping[str, Callable[..., Measure]] | None = None,
    figures: Mapping[str, Callable[..., Any]] | None = None,
    picture: Callable[[dict[str, Any], Path], None] | None = None,
    quick: Mapping[str, Any] | None = None,
    choices: Mapping[str, Iterable[str]] | None = None,
    out: Path | None = None,
    **options: Any,
) -> None:
    """Run a benchmark as a program, or one of its contenders.

    It is a contender, or the interpreter of a figure, if its arguments are no options.

    Args:
        title: The title of the page.
        measure: Measures as the options say; returns the results, in "machine" what it adds to the
            description of the machine.
        report: Returns the parts of the page below its title.
        file: The name of the files of results; may have options in braces. By default, that of
            the program.
        contender: Prepares a contender for its arguments; returns the function that answers. Or
            such functions by the first argument.
        figures: By name: functions whose result ``in_interpreter`` returns.
        picture: Draws results; gets the path of their files, without suffix.
        quick: Values of options for a short run, unless they are given.
        choices: What options may be.
        out: The folder to write results to, unless ``--out`` says one.
        options: The defaults of all options; for one without default, its type, or that in a list.
            A mapping stands for any of its keys, by default all.
    """
    program, arguments = sys.modules["__main__"], [*map(literal, sys.argv[1:])]
    if arguments and not sys.argv[1].startswith("-"):
        kind, *others = arguments
        if figures and kind in figures:
            print(json.dumps(figures[kind](*others)))
        elif isinstance(contender, Mapping):
            answer(lambda: contender[kind](*others))
        elif contender:
            answer(lambda: contender(*arguments))
        return
    parsed = parse(program.__doc__ or "", options, quick, choices)
    m = machine()
    with stolen_share(m):
        measured = measure(parsed)
    m |= measured.pop("machine", {})
    # As they are in the file: with texts as keys.
    results = json.loads(json.dumps({"machine": m, **measured}))
    text = "\n".join([heading(title, m), *report(results)])
    print(text)
    if folder := parsed.out or out:
        file = file or Path(str(program.__file__)).stem.replace("_", "-")
        stem = write(folder, file.format(**vars(parsed)), results, text)
        if picture:
            picture(results, stem)


def literal(argument: str) -> Any:
    """Return what Python writes like this; the argument itself if it is none of that."""
    try:
        return ast.literal_eval(argument)
    except (SyntaxError, ValueError):
        return argument


def parse(
    about: str,
    defaults: Mapping[str, Any],
    quick: Mapping[str, Any] | None = None,
    choices: Mapping[str, Iterable[str]] | None = None,
) -> Options:
    """Parse options by their defaults, as ``study`` describes them."""
    parser = argparse.ArgumentParser(
        description=about, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    known = {name: list(of) for name, of in defaults.items() if isinstance(of, Mapping)}
    choices, defaults = {**(choices or {}), **known}, {**defaults, **known}
    for name, default in defaults.items():
        option = f"--{name.replace('_', '-')}"
        if default is False:
            parser.add_argument(option, action="store_true", help=HELP.get(name))
            continue
        many = isinstance(default, list | tuple)
        one = default[0] if many else default
        kind = one if isinstance(one, type) else type(one)
        parser.add_argument(
            option,
            type=kind,
            help=HELP.get(name, "") + (f" (default: {default})" if one is not kind else ""),
            **({"nargs": "+", "action": "extend"} if many else {}),
            **({"choices": list(choices[name])} if name in choices else {}),
        )
        defaults[name] = None if one is kind else default
    if quick is not None:
        parser.add_argument("--quick", action="store_true", help="see that it works")
    parser.add_argument("--out", type=Path, help="folder to write results to")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that contenders are ended
    options = parser.parse_args()
    if quick and options.quick:
        defaults.update(quick)
    for name, default in defaults.items():
        if getattr(options, name) is None:
            setattr(options, name, default)
    return options


def forked(count: int, run: Callable[..., None], *arguments: Any) -> list[Any]:
    """Start processes that run a function; return their pipes, which are its last argument."""
    fork = multiprocessing.get_context("fork")
    pipes = []
    for _ in range(count):
        ours, theirs = fork.Pipe()
        fork.Process(target=run, args=(*arguments, theirs), daemon=True).start()
        pipes.append(ours)
    return pipes


def apart(make: Callable[..., Measure], workers: int, *arguments: Any) -> Measure:
    """Return a function that measures in several processes at once, which never communicate.

    Each makes its own function from the arguments; the rates are added.
    """
    ask = asked_at_once(make, workers, *arguments)
    return warmed(lambda cell: {"rate": sum(one["rate"] for one in ask(cell))})


def asked_at_once(
    make: Callable[..., Any], workers: int, *arguments: Any
) -> Callable[[Any], list[Any]]:
    """Return a function that asks several processes at once, and returns their answers.

    Each makes its own function, which answers, from the arguments.
    """
    pipes = forked(workers, _answer, make, arguments)

    def ask(request: Any) -> list[Any]:
        for pipe in pipes:
            pipe.send(request)
        return [pipe.recv() for pipe in pipes]

    return ask


def _answer(make: Callable[..., Any], arguments: tuple[Any, ...], pipe: Any) -> None:
    measure = make(*arguments)
    while True:
        pipe.send(measure(pipe.recv()))


def rates_in_turn(
    program: str,
    names: Sequence[str],
    arguments: tuple[Any, ...],
    options: Options,
    limit: float = LIMIT,
) -> dict[str, list[float]]:
    """Let contenders step in turn, slice by slice; return the rates of those that ran."""
    rates: dict[str, list[float]] = {name: [] for name in names}
    with started(program, {name: (name, *arguments) for name in names}, limit) as running:
        for name, one in turns(running, options.repetitions):
            if (said := one.measure(seconds=options.seconds)) is not None:
                rates[name].append(said["rate"])
    drop_those_in_trouble(running, rates)
    return rates


def rates_of_cases(
    program: str,
    cases: Mapping[str, tuple[Any, ...]],
    names: Sequence[str],
    options: Options,
    limit: float = LIMIT,
) -> dict[str, dict[str, list[float]]]:
    """Return ``rates_in_turn`` by case, whose arguments contenders get after their name."""
    found = {}
    for case, arguments in cases.items():
        say(case)
        found[case] = rates_in_turn(program, names, arguments, options, limit)
    return found


def ratio_rows(
    cases: Mapping[str, dict[str, list[float]]], base: str, others: Sequence[str], *, of_base: bool
) -> list[list[str]]:
    """Return rows of a table: a case, the rate of ``base`` and the ratios to or of others.

    ``of_base``: the ratios are the rates of others as multiples of that of the base.
    """
    rows = []
    for case, rates in cases.items():
        own, row = rates.get(base, []), []
        for other in others:
            pair = [rates.get(other, []), own]
            row.append(multiples(*(pair if of_base else pair[::-1])))
        rows.append([case, f"{statistics.median(own):,.0f}" if own else "-", *row])
    return rows


def drop_those_in_trouble(running: dict[str, Contender], rates: dict[str, list[float]]) -> None:
    """Remove the rates of contenders that came in trouble, and say so."""
    for name, one in running.items():
        if one.trouble:
            say(f"  {name} does not run: {one.trouble}")
            del rates[name]


def rate_of(result: Mapping[str, Any], what: str = "steps") -> float:
    """Return how many steps a result has for each of its seconds."""
    return float(result[what] / result["seconds"])


def ratios(some: Iterable[float], of: Iterable[float]) -> list[float]:
    """Return the ratios of numbers that were measured in turn."""
    return [one / other for one, other in zip(some, of, strict=False)]


def repeated(batch: Callable[[], int]) -> Measure:
    """Return a function that calls ``batch``, which returns its steps, for some seconds."""

    def measure(cell: dict[str, Any]) -> dict[str, Any]:
        steps, begun = 0, time.perf_counter()
        while (took := time.perf_counter() - begun) < cell["seconds"]:
            steps += batch()
        return {"rate": steps / took, "steps": steps, "seconds": took}

    return measure


def rate_of_steps(envs: Any, actions: Any) -> Measure:
    """Return a function that steps a vector env with batches of actions for some seconds."""
    rounds, count = itertools.cycle(actions), int(envs.num_envs)

    def step() -> int:
        envs.step(next(rounds))
        return count

    return warmed(repeated(step))


def rate_of_sampled_steps(envs: Any) -> Measure:
    """Return a function that resets a vector env, then steps it with actions of its space."""
    envs.reset(seed=0)
    envs.action_space.seed(0)
    return rate_of_steps(envs, [envs.action_space.sample() for _ in range(64)])


def warmed(measure: Measure) -> Measure:
    """Return a function that measures, after a short time for which it has measured already."""
    measure({"seconds": 0.2})
    return measure


def rate_of_single_envs(envs: list[Any]) -> Measure:
    """Return a function that steps envs one by one, with random actions, for some seconds."""
    for i, env in enumerate(envs):
        env.reset(seed=i)
    actions = [[env.action_space.sample() for env in envs] for _ in range(64)]

    def step() -> int:
        for chosen in actions:
            for env, action in zip(envs, chosen, strict=True):
                _, _, terminated, truncated, _ = env.step(action)
                if terminated or truncated:
                    env.reset()
        return len(actions) * len(envs)

    return repeated(step)


def pyplot() -> Any:
    """Return matplotlib's pyplot, which draws to files."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plots

    plots.rcParams["figure.constrained_layout.use"] = True
    return plots


def say(text: str, end: str = "\n") -> None:
    """Print to stderr, at once."""
    print(text, end=end, file=sys.stderr, flush=True)
