"""Episodes to run: their seeds, options, tasks and states, in the order of the results."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pysampler._common.numbers import whole_number

__all__ = ["EpisodeSpec", "Start", "longest_first", "name_episodes", "starts_of"]

_NAMED = 5  # episodes in an error


@dataclass(frozen=True)
class EpisodeSpec:
    """One episode of an evaluation.

    Attributes:
        seed: The seed of the env's reset and of the policy's random numbers. None: the seed of the
            evaluation plus the place of this episode in the list.
        options: Options of the reset.
        task: A task, passed to the reset as ``options["task"]``: see :class:`pysampler.envs.Tasks`.
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
