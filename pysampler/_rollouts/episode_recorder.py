"""EpisodeRecorder: keeps the steps of the episodes under way, for statistics of whole episodes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from pysampler._frames.frames import FINAL, FINAL_BY_MAIL
from pysampler._policies.trees import batch_from
from pysampler._rollouts.evaluation_results import COLUMNS
from pysampler._rollouts.rollout import Episode
from pysampler._vector.blocks import copied_info

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pysampler._frames.frames import Frames
    from pysampler._policies.frame_policy import FramePolicy

__all__ = ["Describes", "EpisodeRecorder", "expect_describes"]

_MISSING = object()  # instead of an info that a step lacks
_PARTS = "observations", "actions", "rewards", "extras", "infos"


class Describes(Protocol):
    """Computes statistics of an episode: a :class:`pysampler.EpisodeStatistics`.

    Attributes:
        keep: The parts of episodes that it reads.
    """

    keep: Sequence[str]

    def describe(self, episode: Episode) -> dict[str, float]:
        """Return the statistics of an episode, by name."""


def expect_describes(statistics: Any) -> None:
    """Raise TypeError or ValueError unless this computes statistics of episodes."""
    if not (hasattr(statistics, "describe") and hasattr(statistics, "keep")):
        raise TypeError(
            f"cannot evaluate: statistics is a {type(statistics).__name__}, expected a "
            "pysampler.EpisodeStatistics"
        )
    if unknown := [name for name in statistics.keep if name not in _PARTS]:
        raise ValueError(
            f"cannot evaluate: statistics keep {unknown[0]!r}, expected some of {_PARTS}"
        )


class EpisodeRecorder:
    """Copies the parts of each step that ``statistics`` read, env by env."""

    def __init__(self, policy: FramePolicy, frames: Frames, statistics: Describes) -> None:
        self._policy = policy
        self._frames = frames
        self._statistics = statistics
        self._steps: dict[int, list[dict[str, Any]]] = {}  # by env
        # For each part its leaves, and how many frames before the results of its step they are.
        sources = {
            "observations": (policy.observations, 1),
            "actions": (policy.actions, 0),
            "rewards": ([frames.rewards], 0),
            "extras": (list(policy.extras.values()), 1),
        }
        self._parts = {name: sources[name] for name in statistics.keep if name != "infos"}

    def begin(self, env: int) -> None:
        """Drop the steps of an env, which begins an episode."""
        self._steps[env] = []

    def add(self, at: int, env: int, info: Mapping[str, Any]) -> None:
        """Add the step of an env whose results are in a frame."""
        step: dict[str, Any] = {
            name: [np.array(leaf[at - back, env]) for leaf in leaves]
            for name, (leaves, back) in self._parts.items()
        }
        if "infos" in self._statistics.keep:
            step["infos"] = copied_info(dict(info))  # the env may change its own arrays
        self._steps[env].append(step)

    def describe(self, at: int, env: int) -> dict[str, float]:
        """Return the statistics of the episode of an env, which ended in a frame."""
        steps, policy, frames = self._steps.pop(env), self._policy, self._frames
        spec = policy.caller.spec
        stacked = {
            name: [np.stack(leaves) for leaves in zip(*(s[name] for s in steps), strict=True)]
            for name in self._parts
        }

        def tree(of: Any, leaves: Sequence[Any] | None) -> Any:
            return None if leaves is None else batch_from(of, leaves.__getitem__)

        reset = frames.has_final[at, env] in (FINAL, FINAL_BY_MAIL)  # in the same step
        newest = policy.final_observations if reset else policy.observations
        last = [leaf[at, env].copy() for leaf in newest]
        terminated = bool(frames.terminated[at, env])
        keeps_last = "observations" in self._parts and not terminated
        kept: dict[str, Any] = {"extras": None, "infos": None}
        if (extras := stacked.get("extras")) is not None:
            kept["extras"] = dict(zip(policy.extras, extras, strict=True))
        if "infos" in self._statistics.keep:
            kept["infos"] = _stacked_infos([step["infos"] for step in steps])
        episode = Episode(
            env=env,
            steps=slice(0, len(steps)),
            observations=tree(spec.observation_tree, stacked.get("observations")),
            actions=tree(spec.action_tree, stacked.get("actions")),
            rewards=stacked.get("rewards", [None])[0],
            last_observation=tree(spec.observation_tree, last) if keeps_last else None,
            begins=True,
            terminated=terminated,
            truncated=bool(frames.truncated[at, env]),
            **kept,
        )
        described = self._statistics.describe(episode)
        if taken := [name for name in described if name in COLUMNS]:
            raise ValueError(
                f"cannot evaluate: a statistic is named {taken[0]!r}, expected none of {COLUMNS}, "
                "which are columns of each episode"
            )
        return {name: float(value) for name, value in described.items()}


def _stacked_infos(infos: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the values of each key as an array, with 0, False or None for steps without it."""
    keys = dict.fromkeys(key for info in reversed(infos) for key in info)
    return {key: _stacked([info.get(key, _MISSING) for info in infos]) for key in keys}


def _stacked(values: list[Any]) -> Any:
    empty = None
    try:
        if any(value is _MISSING for value in values):
            like = np.asarray(next(value for value in values if value is not _MISSING))
            empty = np.zeros_like(like)[()] if like.dtype.kind in "biufc" else None
        return np.array([empty if value is _MISSING else value for value in values])
    except ValueError:  # their shapes differ
        given = (empty if value is _MISSING else value for value in values)
        return np.fromiter(given, object, len(values))
