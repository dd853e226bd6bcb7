"""Videos of episodes of an evaluation.

Which episodes to film may depend on their results, so the chosen ones run once more, in envs that
film: an episode with the same seed goes the same way. This costs the time of these episodes only,
and rendering slows down none of the others.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np
from gymnasium.envs.registration import EnvSpec
from gymnasium.vector import VectorEnv as GymVectorEnv

from pysampler._common.numbers import whole_number
from pysampler._vector.env_maker import EnvMaker
from pysampler._vector.vector_env import VectorEnv
from pysampler._vector.video import Video, expect_writer, part_of
from pysampler._workers.exceptions import Raised

if TYPE_CHECKING:
    import os
    from collections.abc import Generator, Iterator, Mapping, Sequence

    from pysampler._rollouts.episodes import EpisodeResult, Start

__all__ = ["Filmed", "Record", "Videos"]

Record = int | Callable[["EpisodeResult"], bool]

# Options of the evaluation's vector env: one for films may have fewer envs, and not the same trace.
_NOT_FOR_FILMS = "main_envs", "spare_envs", "trace"
_OPTION = "pysampler_video"  # the option of a reset with the name of the file


def _no_pictures(env: Any, mode: str | None) -> str:
    return (
        f"cannot film {env}: its render_mode is {mode!r}, expected 'rgb_array'; pass the id of an "
        "env, or a function that makes envs with this mode"
    )


class Filmed(gym.Wrapper[Any, Any, Any, Any]):
    """Films the episodes whose reset gets the name of a file in its options."""

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        if env.render_mode != "rgb_array":
            raise ValueError(_no_pictures(env, env.render_mode))
        super().__init__(env)
        self._video: Video | None = None

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Begin an episode."""
        self._drop()
        path, options = (options or {}).get(_OPTION, (None, options))
        result = self.env.reset(seed=seed, options=options)
        if path is not None:
            with _own_errors():
                fps = round(self.metadata.get("render_fps") or 30)
                self._video = Video(self.env, 0, Path(path), fps)
                self._video.shoot()
        return result

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Step the env, and film it."""
        result = self.env.step(action)
        if self._video is not None:
            with _own_errors():
                self._video.shoot()
                if result[2] or result[3]:
                    self._video.keep()
                    self._video = None
        return result

    def skip_frames(self, unseen: bool) -> None:  # noqa: FBT001 - as chunks of steps call it
        """Skip none: the film shows each step."""

    def _drop(self) -> None:
        if self._video is not None:
            self._video.close()
            self._video = None

    def close(self) -> None:
        """Remove an incomplete video, and close the env."""
        self._drop()
        super().close()


@contextlib.contextmanager
def _own_errors() -> Iterator[None]:
    """Raise the errors of rendering and writing themselves: they end a reset or a step."""
    try:
        yield
    except Raised as error:
        raise error.__cause__ or error  # noqa: B904 - it has its own cause


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
        if not callable(record):
            if not isinstance(record, (int, float, np.number)):
                raise ValueError(
                    f"cannot evaluate: record {record!r}, expected a number or a function of an "
                    "EpisodeResult"
                )
            whole_number("evaluate", "record", record, 0)
        self._envs = envs
        self._options = {
            name: value
            for name, value in (vector_kwargs or {}).items()
            if name not in _NOT_FOR_FILMS
        }
        self._options["native"] = False  # the wrapper that films is Python
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
            functions = [_filming(one) for one in self._envs.env_fns[:count]]
            options = {
                "num_workers": min(self._envs.num_workers, len(functions)),
                "context": self._envs.context,
                "observation_mode": self._envs.observation_mode,
                "worker_init": self._envs.worker_init,
                "seed_globals": self._envs.seed_globals,
                "native": False,
            }
            return functions, None, options
        if isinstance(self._envs, (list, tuple)):
            return self._envs[:count], None, self._options
        return self._envs, count, self._options

    def begin(self, envs: VectorEnv) -> None:
        """Raise ValueError if it is known that envs made like those of a vector env cannot film."""
        if (
            isinstance(self._envs, (str, EnvSpec))
            or _filming(envs.env_fns[0]) is not (envs.env_fns[0])
        ):
            modes = envs.metadata.get("render_modes") or ["rgb_array"]
            if "rgb_array" not in modes:
                raise ValueError(
                    f"cannot film {envs}: its render_modes are {modes}, expected 'rgb_array' too"
                )
        elif envs.render_mode != "rgb_array":
            raise ValueError(_no_pictures(envs, envs.render_mode))

    def starts(self, starts: Sequence[Start], results: Mapping[int, EpisodeResult]) -> list[Start]:
        """Return the episodes to run once more, with the names of their files."""
        chosen = self._chosen(results)
        return [
            replace(start, options={_OPTION: (str(self._path(start.index)), start.options)})
            for start in starts
            if start.index in chosen
        ]

    def _chosen(self, results: Mapping[int, EpisodeResult]) -> set[int]:
        record = self._record
        if callable(record):
            return {index for index, result in results.items() if record(result)}
        return set(sorted(results)[:record])

    def _path(self, index: int) -> Path:
        return self._folder / f"episode-{index}.mp4"

    def film(
        self,
        results: dict[int, EpisodeResult],
        films: Generator[tuple[int, EpisodeResult]],
        chosen: Sequence[Start],
    ) -> Iterator[EpisodeResult]:
        """Film episodes, and name their files by their results, which get the names.

        Yields each result. If filming fails, it is a warning: the results are there already.
        """
        before = dict(results)
        filmed: dict[int, EpisodeResult] = {}
        try:
            with closing(films):
                for index, result in films:
                    filmed[index] = result
                    path = self._path(index).rename(self._name(index, result))
                    results[index] = replace(results[index], video=str(path))
                    yield results[index]
        except Exception as error:
            warnings.warn(f"pysampler: cannot film all episodes: {error}", stacklevel=3)
        finally:
            for start in chosen:  # a worker that was killed leaves its file
                for path in (self._path(start.index), part_of(self._path(start.index))):
                    path.unlink(missing_ok=True)
        unlike = [index for index, result in filmed.items() if not _alike(result, before[index])]
        if unlike:
            first = unlike[0]
            warnings.warn(
                f"pysampler: {len(unlike)} of {len(filmed)} filmed episodes went another way than "
                f"before, such as episode {first}: it returned {filmed[first].return_:.6g}, before "
                f"{before[first].return_:.6g}. The env or the policy is not deterministic",
                stacklevel=3,
            )

    def _name(self, index: int, result: EpisodeResult) -> Path:
        """Return the name of a new file for an episode."""
        end = {None: "", True: "-success", False: "-failure"}[result.success]
        sign = "minus-" * (result.return_ < 0)
        name = f"episode-{index}-seed-{result.seed}-return-{sign}{abs(result.return_):.6g}{end}"
        path, take = self._folder / f"{name}.mp4", 1
        while path.exists():  # of an earlier evaluation
            take += 1
            path = self._folder / f"{name}-take-{take}.mp4"
        return path


def _filming(function: Any) -> Any:
    """Return a function like this one whose env can be filmed, if it makes an env of an id."""
    if isinstance(function, EnvMaker) and "id" in function.kwargs:
        return function.rendering("rgb_array")
    return function


def _alike(one: EpisodeResult, other: EpisodeResult) -> bool:
    ends = [(each.length, each.terminated, each.success) for each in (one, other)]
    return ends[0] == ends[1] and np.array_equal(one.return_, other.return_, equal_nan=True)
