"""Looks on while you train: episodes of the newest weights, in another process."""

from __future__ import annotations

import contextlib
import functools
import importlib
import os
import threading
import warnings
import weakref
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pysampler._actors.actors import Actors
from pysampler._actors.alone import EPISODE, Show, ShowEpisodes, Shown
from pysampler._actors.detached import Detached
from pysampler._numbers import true_or_false, whole_number
from pysampler._policies.sampler import vector_env_of
from pysampler._vector import arguments
from pysampler._vector.make import vector_options
from pysampler.errors import (
    BusyError,
    ClosedError,
    LostError,
    PysamplerError,
    WaitTimeoutError,
)
from pysampler.sync import SharedRing, now, sleep_until

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import numpy.typing as npt

    from pysampler._policies.calling import PolicyOutputs
    from pysampler._policies.sampler import PreparedFrames
    from pysampler._vector.vector_env import VectorEnv
    from pysampler._workers.jobs import Job

__all__ = ["Watcher"]

# Episodes that wait to be asked for; more are left out, though not from the file.
_SLOTS = 1024
# What actors are given reaches a watcher too, if giving it the last took less than one part in so
# many of the time since.
_OFTEN = 20
# How often one who waits for episodes looks whether some have ended, in ns.
_NAP = 2_000_000


class Watcher(Detached):
    """Watches a policy in an env of its own, beside a training, which it never holds up.

    One worker runs episode after episode until the watcher is closed. If it is lost it is replaced.
    An env or a policy that raises, or a file that cannot be written, ends the watcher with a
    warning, and not the training: from then on ``publish`` and ``film`` do nothing. ``curve`` has
    what was collected, also after ``close()``. All but ``publish`` may be called in any thread,
    while another one publishes.

    Args:
        policy: A policy; ``publish`` new weights to the watcher now and then. Or
            :class:`pysampler.Actors`: then the watcher follows what they ``publish``, but for large
            weights that come one upon the other.
        env: An env id, an ``EnvSpec`` or a function that makes an env.
        render_mode: Of the env: "human" opens a window, "rgb_array" lets videos be made.
        vector_kwargs: Further arguments of :class:`pysampler.VectorEnv`.
        folder: Where to write ``returns.csv``, a line for each episode, and videos.
        video_every: Film the first of each this many episodes. ``film()`` asks for one more.
        settings: What the policy is called with by name (see :class:`pysampler.Actors`).
        repeat: Go on without new weights. Otherwise each episode is of newer ones than the last, if
            the policy has weights at all.
        nice: How far the worker stands back behind other processes: up to 19.
        fps: Frames a second of videos; by default what the env says.
        seed: Seed of the first reset.

    >>> class Push:
    ...     def __init__(self):
    ...         self.side = np.ones(1)
    ...     def state_dict(self):
    ...         return {"side": self.side}
    ...     def load_state_dict(self, weights):
    ...         self.side = weights["side"].copy()
    ...     def __call__(self, observations):
    ...         return (observations[:, 2] * self.side > 0).astype(int)
    >>> with Watcher(Push(), "CartPole-v1", seed=1) as watcher:
    ...     good = watcher.wait(1)["return"][0]
    ...     version = watcher.publish({"side": -np.ones(1)})
    ...     bad = watcher.wait(1)["return"][0]
    ...     bool(good > bad)
    True
    """

    _purpose = "watch"
    _name = "watch"
    _work_name = "a watcher"

    def __init__(
        self,
        policy: Any,
        env: Any,
        render_mode: str | None = None,
        *,
        vector_kwargs: dict[str, Any] | None = None,
        folder: str | os.PathLike[str] | None = None,
        video_every: int | None = None,
        settings: Mapping[str, npt.ArrayLike] | None = None,
        repeat: bool = False,
        nice: int = 10,
        fps: int | None = None,
        seed: int | None = None,
    ) -> None:
        self._followed: weakref.ref[Actors] | None = None
        actors = policy if isinstance(policy, Actors) else None
        policy = policy if actors is None else actors.policy
        options = {"num_workers": 1, "on_worker_loss": "restart", **vector_options(vector_kwargs)}
        kwargs: dict[str, Any] = {} if render_mode is None else {"render_mode": render_mode}
        with vector_env_of(env, 1, options, "watch", policy_in_workers=policy, **kwargs) as given:
            envs = given.envs
            self._set_up(envs, render_mode, folder, video_every, repeat, nice, fps)
            super().__init__(envs, policy, settings, seed, owned=True)
            self.begin()
        self._version = self.version  # of the last weights that were published here
        if actors is not None:
            self._followed = weakref.ref(actors)
            actors.followed_by(self.follow)

    def _set_up(
        self,
        envs: VectorEnv,
        render_mode: str | None,
        folder: str | os.PathLike[str] | None,
        video_every: int | None,
        repeat: bool,  # noqa: FBT001
        nice: int,
        fps: int | None,
    ) -> None:
        repeat = true_or_false("watch", "repeat", repeat)
        if video_every is not None:
            whole_number("watch", "video_every", video_every, 1)
        self._films = render_mode == "rgb_array" and folder is not None
        if fps is not None:
            whole_number("watch", "fps", fps, 1)
        if whole_number("watch", "nice", nice, 0) > 19:
            raise self._refuse("nice", nice, "0 to 19")
        if envs.num_envs != 1:
            raise self._refuse("num_envs", envs.num_envs, "1")
        if envs.num_workers != 1:
            raise self._refuse("num_workers", envs.num_workers, "1: it has a process of its own")
        if not isinstance(folder, (str, os.PathLike, type(None))):
            raise self._refuse("folder", folder, "a path")
        self._folder = None if folder is None else Path(folder).absolute()
        if video_every is not None:
            self._expect_films()
        if self._folder is not None:
            self._folder.mkdir(parents=True, exist_ok=True)
        self._every, self._nice, self._repeat = video_every, nice, repeat
        self._fps = fps or int(envs.metadata.get("render_fps") or 30)
        self._moving = threading.RLock()  # episodes, from the ring
        self._episodes = np.empty(0, EPISODE)
        self._held = 0  # of the last of them: still in the ring too
        self._passed = 0  # by the last wait(), or before the last weights
        self._follow_at = 0
        self._failure: Exception | None = None

    def _expect_films(self) -> None:
        if not self._films:
            raise ValueError(
                "cannot watch: videos need a folder, and an env with render_mode='rgb_array'"
            )
        try:
            importlib.import_module("imageio")
            importlib.import_module("imageio_ffmpeg").get_ffmpeg_exe()
        except (ImportError, RuntimeError) as error:
            raise ImportError(
                "cannot watch: videos need imageio and its ffmpeg; pip install 'pysampler[video]'"
            ) from error

    @property
    def curve(self) -> npt.NDArray[Any]:
        """Episodes so far: ``at`` (how far the learner was), ``version``, ``length``, ``return``
        and ``seconds``."""
        self._tend()
        return self._episodes

    def wait(self, count: int, timeout: float | None = None) -> npt.NDArray[Any]:
        """The next so many episodes; WaitTimeoutError if too few end in time.

        They are those that ended after the ones that the last call returned, and after the last
        ``publish``. ClosedError if too few ended before the watcher was stopped, closed or failed,
        or the actors that it follows were closed.
        """
        count = whole_number("watch", "count", count, 0)
        deadline = arguments.deadline(timeout, "watch")
        have = self._passed
        while True:
            over = self._tend()
            if len(self._episodes) >= have + count:
                break
            ended = f"{max(0, len(self._episodes) - have)} of {count} episodes ended"
            if over or self._is_left_alone():
                raise ClosedError(f"cannot watch: it is over, and {ended}") from self._failure
            if deadline is not None and now() >= deadline:
                raise WaitTimeoutError(f"cannot watch: {ended} in time")
            soon = now() + _NAP
            sleep_until(soon if deadline is None else min(soon, deadline))
        self._passed = max(self._passed, have + count)
        return self._episodes[have : have + count]

    def film(self) -> None:
        """Let the next episode be filmed, whether there are new weights or not."""
        if self._failure is not None:
            return
        self._expect_open()
        self._expect_films()
        self._state.wanted += 1

    def publish(self, weights: Any = None, at: int | None = None) -> int:
        """New weights, as for actors; ``at`` says how far the learner is, for the curve."""
        if at is not None:
            at = whole_number("watch", "at", at, 0)
        self._tend()
        if self._failure is not None:
            return self._version
        self._expect_open()
        if at is not None:
            self._state.at = at
        with self._moving:
            self._passed = len(self._episodes) - self._held + len(self._ring)
        self._version = super().publish(weights)
        return self._version

    def follow(self, weights: Any, at: int) -> None:
        """What actors were given, unless that was just now. What fails here is not theirs."""
        began = now()
        if self.closed or began < self._follow_at:
            return
        try:
            self.publish(weights, at)
        except (BusyError, ClosedError):  # another thread publishes, or has closed it
            return
        except Exception as error:
            self._fail(error)
        self._follow_at = now() + _OFTEN * (now() - began)

    def _tend(self) -> bool:
        """Take over what has ended; whether nothing more comes. A failure is a warning."""
        self._collect()
        try:
            over = not self._in_own_process or self._look()
        except ClosedError:  # by another thread
            over = True
        except PysamplerError as error:
            self._fail(error)
            over = True
        if over:
            self._collect()
        return over

    def _is_left_alone(self) -> bool:
        """Whether all weights have been shown, and the actors that published them are closed."""
        if self._followed is None or self._repeat or self._board is None:
            return False
        actors = self._followed()
        if (actors is not None and not actors.closed) or len(self._episodes) == 0:
            return False
        shown = int(self._episodes["version"][-1])
        return shown >= self._board.version and self._state.wanted <= self._state.filmed

    def _collect(self) -> None:
        """Move the episodes that have ended out of the ring."""
        if not (self._begun and self._in_own_process) or self._moving._is_owned():  # type: ignore[attr-defined]
            return  # in a signal handler: what it came into does that
        with self._moving, contextlib.suppress(ClosedError, LostError, WaitTimeoutError):
            self._give_up()
            while True:
                new = self._ring.peek(_SLOTS, timeout=0)
                # Together: who is interrupted after it goes on from here.
                self._episodes, self._held = np.concatenate([self._episodes, new]), len(new)
                self._give_up()

    def _give_up(self) -> None:
        """What has been taken over out of the ring."""
        if self._held > 0:
            held, self._held = self._held, 0
            self._ring.release(held)

    def _fail(self, error: Exception) -> None:
        self._failure = error
        self.let_go()
        warnings.warn(f"the watcher has ended: {error}", stacklevel=4)

    def let_go(self) -> None:
        """Close, but for the vector env."""
        if not self._closed:
            self._collect()  # it stays readable
        super().let_go()
        if self._followed is not None and (actors := self._followed()) is not None:
            actors.unfollowed_by(self.follow)

    def _room(self, said: PolicyOutputs) -> int:  # noqa: ARG002
        return SharedRing.size_of(_SLOTS, EPISODE, (), 2, None, None) + 4096

    def _placed(self, begun: PreparedFrames) -> tuple[SharedRing, Callable[[int], Job]]:
        ring = SharedRing(_SLOTS, EPISODE, (), begun.segment, producers=2)
        self._state = Shown(*begun.segment.array((4,), np.dtype(np.int64), None))
        show = Show(
            *(ring.place(), self._state.offset, self._folder, self._every, self._fps, self._nice),
            self._repeat,
        )
        return ring, functools.partial(ShowEpisodes, show=show)

    def __repr__(self) -> str:
        return f"<pysampler.Watcher of {self.envs!r}{', closed' * self.closed}>"
