"""Episodes: their seeds, options, tasks and states, in the order of the results; and these."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from pysampler._common.numbers import whole_number

__all__ = ["EpisodeResult", "EpisodeSpec", "Start", "longest_first", "name_episodes", "starts_of"]

_NAMED = 5  # episodes in an error


@dataclass(frozen=True)
class EpisodeSpec:
    """One episode of an evaluation.

    Attributes:
        seed: The seed of the env's reset and of the policy's random numbers. None: the seed of the
            evaluation plus the place of this episode in the list.
        options: Options of the reset.
        task: A task, passed to the reset as ``options["task"]``: see
            :class:`pysampler.envs.meta.Tasks`.
        state: A state to begin in, for envs whose reset takes it as ``options["state"]``.
    """

    seed: int | None = None
    options: Mapping[str, Any] | None = None
    task: Any = None
    state: Any = None

    @property
    def reset_options(self) -> dict[str, Any] | None:
        """All options of the reset together; None if there are none."""
        named = {"task": self.task, "state": self.state}
        own = {name: value for name, value in named.items() if value is not None}
        return None if self.options is None and not own else {**(self.options or {}), **own}


@dataclass(frozen=True)
class EpisodeResult:
    """The result of one episode.

    Two results are equal if the episodes went the same way, at whatever speed.

    Attributes:
        seed: The seed of its reset and of the policy's random numbers. None if a vector env reset
            itself.
        return_: The sum of its rewards.
        length: The number of its steps.
        terminated: Whether it terminated; otherwise it was truncated.
        success: The last info's "is_success" or "success"; None if it has neither.
        task: Its task, if its :class:`pysampler.EpisodeSpec` has one.
        seconds: The time from its first observation to its last, in which the process steps other
            envs too: ``steps_per_second`` of a row is its length by this time.
        statistics: Your statistics, by name.
        video: The file of its video, if it was filmed.
    """

    seed: int | None
    return_: float
    length: int
    terminated: bool
    success: bool | None = None
    task: Any = None
    seconds: float = field(default=0.0, compare=False)
    statistics: dict[str, float] = field(default_factory=dict)
    video: str | None = field(default=None, compare=False)

    @property
    def row(self) -> dict[str, Any]:
        """The columns of this episode in a table, without those that are None."""
        columns = {
            "seed": self.seed,
            "task": self.task,
            "return": self.return_,
            "length": self.length,
            "terminated": self.terminated,
            "success": self.success,
            "seconds": self.seconds,
            "steps_per_second": self.length / self.seconds if self.seconds > 0 else None,
            **self.statistics,
            "video": self.video,
        }
        return {name: value for name, value in columns.items() if value is not None}


@dataclass(frozen=True)
class Start:
    """How an episode begins.

    Attributes:
        index: The episode's place in the results.
        seed: The seed of the reset.
        repeat: How many earlier episodes of the evaluation have the same seed. The policy's random
            numbers differ between them.
        options: The options of the reset.
    """

    index: int
    seed: int
    repeat: int = 0
    options: dict[str, Any] | None = None

    @property
    def entropy(self) -> tuple[int, int]:
        """Entropy of the policy's random numbers."""
        return self.seed, self.repeat


def starts_of(
    episodes: int | Iterable[EpisodeSpec], seed: int | None
) -> tuple[list[EpisodeSpec], list[Start], int]:
    """Return the episodes of an evaluation, how each begins, and the seed that was used."""
    if isinstance(episodes, Iterable) and not isinstance(episodes, (str, bytes)):
        specs = list(episodes)
    else:
        specs = [EpisodeSpec()] * whole_number("evaluate", "episodes", episodes, 1)
    if not specs:
        raise ValueError("cannot evaluate: episodes is empty, expected at least one EpisodeSpec")
    if seed is None:
        seed = int(np.random.SeedSequence().generate_state(1)[0]) >> 1
    elif not isinstance(seed, (int, np.integer)) or isinstance(seed, bool) or seed < 0:
        raise ValueError(f"cannot evaluate: seed {seed!r}, expected a whole number of at least 0")
    seen: Counter[int] = Counter()
    starts = []
    for index, spec in enumerate(specs):
        if not isinstance(spec, EpisodeSpec):
            raise TypeError(
                f"cannot evaluate: episode {index} is a {type(spec).__name__}, expected a "
                "pysampler.EpisodeSpec"
            )
        own = int(seed) + index if spec.seed is None else spec.seed
        own = whole_number("evaluate", f"the seed of episode {index}", own, 0)
        starts.append(Start(index, own, seen[own], spec.reset_options))
        seen[own] += 1
    return specs, starts, int(seed)


def longest_first(
    starts: Iterable[Start], earlier: Iterable[tuple[int | None, float]]
) -> list[Start]:
    """Return starts by the lengths of earlier episodes, the longest and the unknown ones first.

    Args:
        starts: The episodes.
        earlier: The seed and length of each earlier episode.
    """
    seen: Counter[int | None] = Counter()
    lengths = {}
    for seed, length in earlier:
        lengths[seed, seen[seed]] = length
        seen[seed] += 1
    return sorted(starts, key=lambda start: -lengths.get(start.entropy, np.inf))


def name_episodes(error: Any, starts: Sequence[Start], *, seeded: bool) -> None:
    """Let the error of an env or a worker name the episode that it ended, or those it may have.

    Args:
        error: The error, which gets the attribute ``episode``: the place of the only episode, or
            None if there are several.
        starts: The episodes.
        seeded: Whether their seeds are those of the resets.
    """
    error.episode = starts[0].index if len(starts) == 1 else None
    if not starts:
        return
    names = [f"{one.index} (seed {one.seed})" if seeded else f"{one.index}" for one in starts]
    names[_NAMED:] = ["others"] * (len(names) > _NAMED)
    *most, last = names
    text = f"episode {', '.join(most)} or {last}" if most else f"episode {last}"
    error.args = (f"cannot evaluate {text}: {error}",)
