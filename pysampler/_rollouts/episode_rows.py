"""EpisodeRows: which episode each env is in, and its return and length so far.

The rows live in the process in which the policy acts: the main process, or a worker for its envs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from pysampler._frames.frames import BEGUN
from pysampler._rollouts.episode_recorder import EpisodeRecorder
from pysampler._rollouts.episodes import EpisodeResult
from pysampler._vector.frozen import RETURN
from pysampler.sync import now

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    import numpy.typing as npt

    from pysampler._frames.frames import Frames
    from pysampler._policies.frame_policy import FramePolicy, Span
    from pysampler._rollouts.episode_recorder import Describes
    from pysampler._rollouts.episodes import Start

__all__ = ["EpisodeRows", "Finished"]

_SUCCESS = "is_success", "success"


@dataclass
class Finished:
    """An episode that is over.

    Attributes:
        env: The env that ran it.
        index: The episode.
        result: Its result, without its task.
    """

    env: int
    index: int
    result: EpisodeResult


class EpisodeRows:
    """The episodes that envs are in, a row for each env.

    Attributes:
        starts: By env, the episode that it is in.
        lost: By env, the episode that ended because a vector env in a block lost a worker.
    """

    def __init__(
        self,
        policy: FramePolicy,
        frames: Frames,
        max_steps: int,
        statistics: Describes | None = None,
        *,
        begins_late: bool = False,
    ) -> None:
        self._policy = policy
        self._frames = frames
        self._max_steps = max_steps
        self._begins_late = begins_late  # steps may only reset an env: vector envs do that
        self._recorder = None if statistics is None else EpisodeRecorder(policy, frames, statistics)
        self.starts: dict[int, Start] = {}
        self.lost: dict[int, Start] = {}
        self._busy = np.zeros(frames.envs, bool)
        self._returns = np.zeros(frames.envs)
        self._lengths = np.zeros(frames.envs, np.int64)
        self._began = np.zeros(frames.envs, np.int64)
        self._runs: dict[range, list[tuple[int, int]]] = {}  # by group, until envs begin or end
        self._unchecked = 0  # steps since lengths were compared with max_steps
        self._check_after = max_steps  # until no episode can be too long

    def begin(self, at: int, starts: Mapping[int, Start]) -> None:
        """Let envs begin episodes with the observations in a frame."""
        envs = np.fromiter(starts, np.int64, len(starts))
        self.starts.update(starts)
        self._busy[envs] = True
        self._runs.clear()
        self._returns[envs] = self._lengths[envs] = 0
        self._began[envs] = now()
        for env, start in starts.items():
            self._policy.caller.seed_generator(env, start.entropy)
            if self._recorder is not None:
                self._recorder.begin(env)
        self._policy.begin_episodes(at, envs)

    def forget(self, envs: Iterable[int]) -> dict[int, Start]:
        """Forget the episodes of envs, and return those that were not over."""
        lost = {env: self.starts.pop(env) for env in envs if env in self.starts}
        self._busy[list(lost)] = False
        self._runs.clear()
        return lost

    def runs(self, envs: range) -> list[tuple[int, int]]:
        """Return runs of a group's envs that are in an episode: the first, and how many."""
        if (known := self._runs.get(envs)) is not None:
            return known
        busy = self._busy[envs.start : envs.stop]
        edges = np.flatnonzero(np.diff(busy, prepend=False, append=False)).tolist()
        runs = [
            (envs.start + first, last - first)
            for first, last in zip(edges[::2], edges[1::2], strict=True)
        ]
        self._runs[envs] = runs
        return runs

    def spans(self, at: int, envs: range) -> list[Span]:
        """Return the spans of a group's envs that are in an episode, at their frame."""
        return [(at, first, count) for first, count in self.runs(envs)]

    def after_step(self, at: int, envs: range, infos: Mapping[int, Any]) -> list[Finished]:
        """Count a step of a group, and return the episodes that ended in it.

        Args:
            at: The frame with its results.
            envs: The envs of the group.
            infos: The infos of envs, at least of those whose episodes ended. The sums of rewards
                that ``Frozen`` adds are removed.

        Raises:
            ValueError: An episode took more than ``max_steps``.
        """
        frames, rows = self._frames, slice(envs.start, envs.stop)
        terminated = frames.terminated[at, rows]
        ended = terminated | frames.truncated[at, rows]
        own = infos and {env: info.pop(RETURN) for env, info in infos.items() if RETURN in info}
        lengths = self._lengths[rows]
        if self.runs(envs) == [(envs.start, len(envs))] and not self._begins_late:
            self._returns[rows] += frames.rewards[at, rows]
            lengths += 1
            counted = None
        else:
            counted = self._busy[rows] & (frames.has_final[at, rows] != BEGUN)
            self._returns[rows] += np.where(counted, frames.rewards[at, rows], 0)
            lengths += counted
            ended &= counted
        self._unchecked += 1
        if self._unchecked >= self._check_after:
            self._check(rows, ended)
        if (recorder := self._recorder) is not None:
            chosen = range(len(envs)) if counted is None else np.flatnonzero(counted).tolist()
            for row in chosen:
                env = envs.start + row
                recorder.add(at, env, infos.get(env, {}))
        if 1 not in ended.tobytes():  # faster than any() for few envs
            return []
        self._runs.clear()
        done = now()
        finished = []
        for row in np.flatnonzero(ended).tolist():
            env = envs.start + row
            self._busy[env] = False
            start, info = self.starts.pop(env), infos.get(env, {})
            if info.get("worker_lost"):
                self.lost[env] = start
                continue
            result = EpisodeResult(
                seed=start.seed,
                return_=float(own.get(env, self._returns[env])),
                length=int(lengths[row]),
                terminated=bool(terminated[row]),
                success=_success(info),
                seconds=(done - int(self._began[env])) / 1e9,
                statistics={} if recorder is None else recorder.describe(at, env),
            )
            finished.append(Finished(env, start.index, result))
        return finished

    def _check(self, rows: slice, ended: npt.NDArray[np.bool_]) -> None:
        """Raise ValueError if the episode of an env took more than ``max_steps``."""
        going = self._busy.copy()
        going[rows] &= ~ended
        lengths = np.where(going, self._lengths, 0)
        if (longest := int(lengths.max())) >= self._max_steps:
            start = self.starts[int(lengths.argmax())]
            raise ValueError(
                f"cannot evaluate: episode {start.index} (seed {start.seed}) took more than "
                f"max_steps, {self._max_steps}; wrap envs that never end in "
                "gymnasium.wrappers.TimeLimit"
            )
        self._unchecked, self._check_after = 0, self._max_steps - longest


def _success(info: Mapping[str, Any]) -> bool | None:
    for name in _SUCCESS:
        if info.get(name) is not None:
            return bool(np.all(info[name]))
    return None
