"""Videos of episodes of an evaluation.

Which episodes are the best is known at the end, so the chosen ones run once more, in envs that
film: an episode with the same seed goes the same way. This costs the time of these episodes only,
and rendering slows down none of the others.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gymnasium as gym
from gymnasium.envs.registration import EnvSpec
from gymnasium.vector import VectorEnv as GymVectorEnv

from pysampler._numbers import whole_number
from pysampler._vector.vector_env import VectorEnv
from pysampler._vector.video import Video, expect_writer

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence

    from pysampler._rollouts.episodes import Start
    from pysampler._rollouts.evaluation_results import EpisodeResult

__all__ = ["Filmed", "Record", "Videos"]

Record = int | Mapping[str, int] | Callable[["EpisodeResult"], bool]

_OPTION = "pysampler_video"  # the option of a reset with the name of the file


class Filmed(gym.Wrapper[Any, Any, Any, Any]):
    """Films the episodes whose reset gets the name of a file in its options."""

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        if env.render_mode != "rgb_array":
            raise ValueError(
                f"cannot film {env}: its render_mode is {env.render_mode!r}, expected 'rgb_array'; "
                "pass the id of an env, or a function that makes envs with this mode"
            )
        super().__init__(env)
        self._video: Video | None = None

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Begin an episode."""
        self._drop()
        given = dict(options or {})
        path = given.pop(_OPTION, None)
        result = self.env.reset(seed=seed, options=given or None)
        if path is not None:
            fps = round(self.metadata.get("render_fps", 30))
            self._video = Video(self.env, 0, Path(path), fps)
            self._video.shoot()
        return result

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Step the env, and film it."""
        result = self.env.step(action)
        if self._video is not None:
            self._video.shoot()
            if result[2] or result[3]:
                self._video.keep()
                self._video = None
        return result

    def _drop(self) -> None:
        if self._video is not None:
            self._video.close()
            self._video = None

    def close(self) -> None:
        """Remove an incomplete video, and close the env."""
        self._drop()
        super().close()


class Videos:
    """The episodes to film, and their files.

    Args:
        folder: The directory of the files.
        record: Which episodes to film.
        envs: The envs of the evaluation.
        vector_kwargs: Options of the vector env to make.

    Attributes:
        making: Options of ``vector_env_of`` for envs that film.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        record: Record,
        envs: Any,
        vector_kwargs: dict[str, Any] | None,
    ) -> None:
        expect_writer("evaluate")
        self._folder = Path(folder)
        self._record = record
        if isinstance(record, Mapping):
            if not record or record.keys() - {"best", "worst"}:
                raise ValueError(
                    f'cannot evaluate: record {record!r}, expected {{"best": 3, "worst": 3}}'
                )
            for name, count in record.items():
                whole_number("evaluate", f"record[{name!r}]", count, 0)
        elif not callable(record):
            whole_number("evaluate", "record", record, 0)
        self._envs, self._options = envs, vector_kwargs
        self.making: dict[str, Any] = {"wrappers": [Filmed]}
        if isinstance(envs, (str, EnvSpec)):
            self.making["env_kwargs"] = {"render_mode": "rgb_array"}
        elif isinstance(envs, GymVectorEnv) and not isinstance(envs, VectorEnv):
            raise ValueError(
                f"cannot evaluate: videos of {envs}, expected an env id, functions that each make "
                "an env, or a pysampler.VectorEnv without wrappers"
            )
        self._folder.mkdir(parents=True, exist_ok=True)

    def envs(self, count: int) -> tuple[Any, int | None, dict[str, Any] | None]:
        """Return the envs to make for some episodes, their number and the vector env's options."""
        count = min(count, 8)
        if isinstance(self._envs, VectorEnv):
            return [self._envs.env_fns[0]] * count, None, {"num_workers": self._envs.num_workers}
        if isinstance(self._envs, (list, tuple)):
            return [self._envs[0]] * count, None, self._options
        return self._envs, count, self._options

    def starts(self, starts: Sequence[Start], results: Mapping[int, EpisodeResult]) -> list[Start]:
        """Return the episodes to run once more, with the names of their files."""
        return [
            replace(start, options={**(start.options or {}), _OPTION: str(self._path(start.index))})
            for start in starts
            if start.index in self._chosen(results)
        ]

    def _chosen(self, results: Mapping[int, EpisodeResult]) -> set[int]:
        record = self._record
        if callable(record):
            return {index for index, result in results.items() if record(result)}
        if not isinstance(record, Mapping):
            return set(sorted(results)[:record])
        ordered = sorted(results, key=lambda index: results[index].return_)
        worst = ordered[: record.get("worst", 0)]
        return {*worst, *ordered[len(ordered) - record.get("best", 0) :]}

    def _path(self, index: int) -> Path:
        return self._folder / f"episode-{index}.mp4"

    def name(
        self, results: dict[int, EpisodeResult], filmed: Mapping[int, EpisodeResult]
    ) -> dict[int, EpisodeResult]:
        """Name the files of filmed episodes by their results, and return all results with them."""
        unlike = []
        for index, result in filmed.items():
            ends = {None: "", True: "-success", False: "-failure"}[result.success]
            name = f"episode-{index}-seed-{result.seed}-return-{result.return_:.6g}{ends}.mp4"
            path = self._path(index).rename(self._folder / name)
            if replace(result, statistics={}) != replace(results[index], statistics={}):
                unlike.append(index)
            results[index] = replace(results[index], video=str(path))
        if unlike:
            first = unlike[0]
            warnings.warn(
                f"pysampler: {len(unlike)} of {len(filmed)} filmed episodes went another way than "
                f"before, such as episode {first}: it returned {filmed[first].return_:.6g}, before "
                f"{results[first].return_:.6g}. The env or the policy is not deterministic",
                stacklevel=4,
            )
        return results
