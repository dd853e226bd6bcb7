"""Divides envs between workers and this process, as the options say or by a trial of one env.

The trial measures a step of one env. From that, a model (``_round``) predicts the time of a step of
all envs for each division, without starting any workers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from pysampler import _core
from pysampler._vector import arguments
from pysampler._vector.waiting import MOST_ON_CPU
from pysampler._workers.counters import with_unit

if TYPE_CHECKING:
    from collections.abc import Callable

    import gymnasium as gym

    from pysampler._workers.processes import WorkerAssignment

__all__ = ["Division", "divide", "fastest"]

Count = int | Literal["auto"]

# Seconds that a step of all envs costs besides the envs' steps: without workers; and with workers
# that are awake, to send commands and to read results.
INLINE_STEP_COST_S, _SEND, _READ = 5e-6, 2e-6, 3e-6
# A division without workers, or that leaves this process free, is preferred if it is slower by less
# than this share.
_CLOSE = 0.05
# The model knows steps in Python. Workers that may step their envs together are preferred if the
# model has them slower than the fastest division by at most this factor.
_BATCH_GAIN = 1.25
# Envs that wait for something other than a CPU get more workers than CPUs if their steps take at
# least so many seconds: the model has no costs of workers that wait for a CPU.
_LONG_S = 1e-3


@dataclass(frozen=True)
class Division:
    """How envs are divided between workers and this process; print it for the reason.

    Attributes:
        num_workers: The number of worker processes or threads.
        main_envs: The number of envs that this process steps.
        step_seconds: Measured seconds per step of one env; None if nothing was "auto".
        round_seconds: Predicted seconds per step of all envs; None if nothing was "auto", or if
            workers may step the envs together.
        spare_envs: The number of spare envs, which the workers reset while others step.
        untried: Why it was chosen without a trial; empty if there was one, or by your options.
    """

    num_workers: int
    main_envs: int
    step_seconds: float | None = None
    round_seconds: float | None = None
    spare_envs: int = 0
    untried: str = ""

    def __str__(self) -> str:
        """Return the choice and the reason as a sentence."""
        workers = f"{self.num_workers} worker{'s' * (self.num_workers != 1)}"
        where = f"{workers}, {self.main_envs} env{'s' * (self.main_envs != 1)} in this process"
        if self.num_workers == 0:
            where = "no workers, all envs in this process"
        if self.step_seconds is None:
            return f"{where}, without a trial" + (self.untried and f": {self.untried}")
        if self.round_seconds is None:
            return f"{where}: workers may step envs of this kind together"
        return (
            f"{where}: a step of one env takes {with_unit(self.step_seconds)}, so a step of all "
            f"should take {with_unit(self.round_seconds)}, less than with other numbers"
        )

    def shares(self, envs: int) -> bool:
        """Return whether some of so many envs share a process."""
        return self.main_envs > 1 or self.num_workers + self.main_envs < envs

    def assignments(
        self, envs: int, groups: int
    ) -> tuple[list[WorkerAssignment], WorkerAssignment | None]:
        """Return the assignments of the workers, and that of this process or None."""
        if self.num_workers == 0:
            return [], arguments.assignments(envs, 1, groups)[0]
        away = arguments.assignments(envs - self.main_envs, self.num_workers, groups)
        if self.main_envs == 0:
            return away, None
        return away, arguments.assignments(self.main_envs, 1, groups, envs - self.main_envs)[0]


def divide(
    num_workers: Count | None,
    main_envs: Count,
    env_fns: list[Callable[[], gym.Env[Any, Any]]],
    most: int | None,
    *,
    groups: int = 1,
    native: bool = False,
    isolate: bool = False,
    untried: str = "",
) -> Division:
    """Return how to divide envs, or raise ValueError.

    Args:
        num_workers: See ``VectorEnv``.
        main_envs: See ``VectorEnv``.
        env_fns: The functions that make the envs.
        most: The largest number of processes that step envs.
        groups: The number of groups of each worker.
        native: Whether workers step known envs together.
        isolate: Whether each function must have a worker, whatever the other options are.
        untried: Why "auto" makes no trial, or "".
    """
    if isolate:
        return Division(len(env_fns), 0)
    for name, given in (("num_workers", num_workers), ("main_envs", main_envs)):
        if isinstance(given, str) and given != "auto":
            raise ValueError(
                f'cannot make vector env: {name} {given!r}, expected a whole number or "auto"'
            )
    if "auto" in (num_workers, main_envs):
        from pysampler._vector.env_trial import try_env  # noqa: PLC0415 - rare

    envs = len(env_fns)
    cpus = _core.usable_cpus() if most is None else min(most, _core.usable_cpus())
    if num_workers == "auto":
        if main_envs not in (0, "auto"):
            raise ValueError(
                f"cannot make vector env: main_envs {main_envs!r} with num_workers='auto', which "
                "chooses both"
            )
        workers = arguments.workers(None, envs, most)
        per_group = envs // (workers * groups) if native else 0
        seconds, on_cpu, share = try_env(env_fns[0], per_group)
        limit = envs if most is None else min(envs, most)
        chosen = fastest(envs, cpus, seconds, on_cpu=on_cpu, most=limit)
        assert chosen.round_seconds is not None
        if share and _round(envs, workers, 0, seconds) <= chosen.round_seconds * _BATCH_GAIN:
            return Division(max(1, min(workers, envs // (share * groups))), 0, seconds)
        return chosen
    if main_envs == "auto":
        workers = max(1, cpus - 1) if num_workers is None else num_workers
        workers = arguments.workers(workers, max(1, envs - 1), most)
        if workers == 0 or envs == 1:
            return Division(0, envs)
        seconds = try_env(env_fns[0])[0]
        inline = min(range(1, envs - workers + 1), key=lambda n: _round(envs, workers, n, seconds))
        return Division(workers, inline, seconds, _round(envs, workers, inline, seconds))
    inline = arguments.main_envs(main_envs, envs)
    if inline == 0:
        workers = arguments.workers(num_workers, envs, most)
        return Division(workers, envs * (not workers), untried=untried)
    num_workers = max(1, cpus - 1) if num_workers is None else num_workers
    workers = arguments.workers(num_workers, envs - inline, most)
    if workers == 0:
        raise ValueError(
            f"cannot make vector env: main_envs {inline} with num_workers=0, which steps all of "
            "them in this process"
        )
    return Division(workers, inline)


def fastest(
    envs: int, cpus: int, seconds: float, *, on_cpu: float = 1.0, most: int = 0
) -> Division:
    """Return the division with the shortest predicted step of all envs.

    Args:
        envs: The number of envs.
        cpus: The number of CPUs.
        seconds: The time of a step of one env.
        on_cpu: The share of a step for which an env needs a CPU.
        most: The largest number of workers, for envs that wait for something else.
    """
    divisions = [(0, envs)]
    if envs > 1 and cpus > 1:
        divisions += [(min(cpus, envs), 0)]
        workers = min(cpus - 1, envs - 1)
        divisions += [(workers, inline) for inline in range(1, envs - workers + 1)]
    needed = 0.0
    if on_cpu < MOST_ON_CPU and seconds >= _LONG_S:
        divisions += [(workers, 0) for workers in range(cpus + 1, most + 1)]
        needed = envs * seconds * on_cpu / cpus
    rounds = [
        max(needed * (workers > cpus), _round(envs, workers, inline, seconds))
        for workers, inline in divisions
    ]
    close = [
        (division, took)
        for division, took in zip(divisions, rounds, strict=True)
        if took <= min(rounds) * (1 + _CLOSE)
    ]
    # Prefer all envs here, or none here, if that is about as fast as the fastest.
    (workers, inline), took = next(
        (one for one in close if 0 in one[0]), min(close, key=lambda one: one[1])
    )
    return Division(workers, inline, seconds, took)


def _round(envs: int, workers: int, inline: int, seconds: float) -> float:
    """Return the predicted time of a step of all envs, in seconds."""
    if workers == 0:
        return INLINE_STEP_COST_S + envs * seconds
    costs = _core.wait_costs()
    # If the workers leave a CPU for this process, it stays awake and need not be woken.
    notice = costs.park_ns / 1e9 if workers >= costs.cpus else 0.0
    theirs = -(-(envs - inline) // workers) * seconds + notice
    return _SEND + max(inline * seconds, theirs) + _READ
