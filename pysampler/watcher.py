"""Somebody who looks on while you train: episodes of the newest weights, in another process."""

from __future__ import annotations

import importlib.util
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pysampler.actors import Actors
from pysampler.alone import EPISODE, Show, Shown
from pysampler.borrowing import vector_env_of
from pysampler.detached import Detached
from pysampler.errors import LostError, PysamplerError, WaitTimeoutError
from pysampler.numbers import whole_number
from pysampler.sync import SharedRing, now

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping

    import numpy.typing as npt

    from pysampler.borrowing import Begun
    from pysampler.policies import Said
    from pysampler.vector_env import VectorEnv

__all__ = ["Watcher", "watch"]

# Episodes that wait to be asked for; more are left out, though not from the file.
_SLOTS = 1024
# What actors are given reaches a watcher too, if giving it the last took less than one part in so
# many of the time since.
_OFTEN = 20


def watch(
    policy: Any,
    env: Any,
    render_mode: str | None = None,
    *,
    vector_kwargs: dict[str, Any] | None = None,
    **options: Any,
) -> Watcher:
    """Watch a policy in an env of its own, beside a training, which it never holds up.

    ``policy`` is that of some actors if they are given: then what they ``publish`` is followed, but
    for large weights that come one upon the other. Otherwise ``publish`` new weights to the watcher
    now and then. ``env`` is an id, a spec or a function, made with this ``render_mode``: "human"
    opens a window, "rgb_array" lets videos be made. ``options`` are those of :class:`Watcher`.

    >>> class Push:
    ...     def __init__(self):
    ...         self.side = np.ones(1)
    ...     def state_dict(self):
    ...         return {"side": self.side}
    ...     def load_state_dict(self, weights):
    ...         self.side = weights["side"].copy()
    ...     def __call__(self, observations):
    ...         return (observations[:, 2] * self.side > 0).astype(int)
    >>> with watch(Push(), "CartPole-v1", seed=1) as watcher:
    ...     good = watcher.wait(1)["return"][0]
    ...     version = watcher.publish({"side": -np.ones(1)})
    ...     bad = watcher.wait(1)["return"][0]
    ...     bool(good > bad)
    True
    """
    made, _ = vector_env_of(
        env,
        1,
        {"num_workers": 1, "on_worker_loss": "restart", **(vector_kwargs or {})},
        *("watch", policy._policy if isinstance(policy, Actors) else policy),
        **({} if render_mode is None else {"render_mode": render_mode}),
    )
    try:
        watcher = Watcher(made, policy, render_mode=render_mode, **options)
        watcher.begin()
    except BaseException:
        made.close()
        raise
    return watcher


class Watcher(Detached):
    """One env in one worker, which runs episode after episode until it is closed.

    - ``folder``: ``returns.csv`` is written there, a line for each episode, and videos.
    - ``video_every``: episodes, of which the first is filmed. ``film()`` asks for one more.
    - ``settings``: what the policy is called with by name (see :class:`pysampler.Actors`).
    - ``repeat``: go on without new weights; otherwise each episode is of newer ones than the last,
      if the policy has weights at all.
    - ``nice``: how far it stands back behind other processes: up to 19.
    - ``fps``: of videos.

    A worker that is lost is replaced; an env or a policy that raises ends the watcher with a
    warning, and not the training.
    """

    _purpose = "watch"
    _name = "watch"
    _what = "a watcher"
    _request = "show"

    def __init__(
        self,
        envs: VectorEnv,
        policy: Any,
        *,
        render_mode: str | None = None,
        folder: str | os.PathLike[str] | None = None,
        video_every: int | None = None,
        settings: Mapping[str, npt.ArrayLike] | None = None,
        repeat: bool = False,
        nice: int = 10,
        fps: int | None = None,
        seed: int | None = None,
    ) -> None:
        if video_every is not None:
            whole_number("watch", "video_every", video_every, 1)
        self._films = render_mode == "rgb_array" and folder is not None
        if video_every is not None:
            self._expect_films()
        if whole_number("watch", "nice", nice, 0) > 19:
            raise self._refuse("nice", nice, "0 to 19")
        if envs.num_envs != 1:
            raise self._refuse("num_envs", envs.num_envs, "1")
        self._folder = None if folder is None else Path(folder).absolute()
        if self._folder is not None:
            self._folder.mkdir(parents=True, exist_ok=True)
        self._every, self._nice, self._repeat = video_every, nice, repeat
        self._fps = fps or int(envs.metadata.get("render_fps", 30))
        self._episodes = np.empty(0, EPISODE)
        self._passed = 0  # by the last wait(), or before the last weights
        self._follow_at = 0
        actors = policy if isinstance(policy, Actors) else None
        super().__init__(
            *(envs, policy if actors is None else actors._policy, settings, seed), owned=True
        )
        if actors is not None:
            actors.followed_by(self.follow)

    def _expect_films(self) -> None:
        if not self._films:
            raise ValueError(
                "cannot watch: videos need a folder, and an env with render_mode='rgb_array'"
            )
        if importlib.util.find_spec("imageio") is None:
            raise ImportError("cannot watch: videos need imageio; pip install 'pysampler[video]'")

    @property
    def curve(self) -> npt.NDArray[Any]:
        """Episodes so far: ``at`` (how far the learner was), ``version``, ``length``, ``return``
        and ``seconds``."""
        self.begin()
        self._tend()
        if not self.closed:
            new = self._ring.pop_many(_SLOTS, 0, timeout=0)
            self._episodes = np.concatenate([self._episodes, new])
        return self._episodes

    def wait(self, count: int, timeout: float | None = None) -> npt.NDArray[Any]:
        """The next so many episodes; WaitTimeoutError if too few end in time.

        They are those that ended after the ones that the last call returned, and after the last
        ``publish``.
        """
        deadline = None if timeout is None else now() + int(timeout * 1e9)
        have = self._passed
        while len(self.curve) < have + count:
            if deadline is not None and now() >= deadline:
                raise WaitTimeoutError(f"cannot watch: fewer than {count} episodes ended in time")
            until = now() + 20_000_000
            try:
                self._ring.peek(1, deadline=until if deadline is None else min(until, deadline))
                self._ring.release(0)
            except (LostError, WaitTimeoutError):
                continue
        self._passed = have + count
        return self._episodes[have : have + count]

    def film(self) -> None:
        """Let the next episode be filmed, whether there are new weights or not."""
        self._expect_open()
        self._expect_films()
        self._state.wanted += 1

    def publish(self, weights: Any = None, at: int | None = None) -> int:
        """New weights, as for actors; ``at`` says how far the learner is, for the curve."""
        self.begin()
        if at is not None:
            self._state.at = at
        # In this order: a thread that moves them from the ring meanwhile does not make them more.
        self._passed = len(self._episodes) + len(self._ring)
        return super().publish(weights)

    def follow(self, weights: Any, at: int) -> None:
        """What actors were given, unless that was just now. What fails here is not theirs."""
        began = now()
        if self.closed or began < self._follow_at:
            return
        self._tend()
        if not self.closed:
            self.publish(weights, at)
        self._follow_at = now() + _OFTEN * (now() - began)

    def _tend(self) -> None:
        try:
            self._look()
        except PysamplerError as error:
            warnings.warn(f"nobody watches any more: {error}", stacklevel=3)

    def _room(self, said: Said) -> int:  # noqa: ARG002
        return SharedRing.size_of(_SLOTS, EPISODE, (), 2, None, None) + 4096

    def _placed(self, begun: Begun) -> tuple[SharedRing, tuple[Any, ...]]:
        ring = SharedRing(_SLOTS, EPISODE, (), begun.segment, producers=2)
        self._state = Shown(*begun.segment.array((4,), np.dtype(np.int64), None))
        show = Show(
            *(ring.place(), self._state.offset, self._folder, self._every, self._fps, self._nice),
            self._repeat,
        )
        return ring, (show,)

    def __repr__(self) -> str:
        return f"<pysampler.Watcher of {self.envs!r}{', closed' * self.closed}>"
