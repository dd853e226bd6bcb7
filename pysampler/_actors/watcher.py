"""Watchers: another process runs episodes with the newest weights while you train."""

from __future__ import annotations

import contextlib
import os
import threading
import warnings
import weakref
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pysampler._actors.actors import Actors
from pysampler._actors.free_running import FreeRunningSampler
from pysampler._actors.watcher_policy import EPISODE, TakeWatcherPolicy, WatcherSetup, watcher_state
from pysampler._common.numbers import refusal, true_or_false, whole_number
from pysampler._policies.sampler import vector_env_of
from pysampler._vector import arguments
from pysampler._vector.make import vector_options
from pysampler._vector.video import expect_writer
from pysampler.errors import BusyError, ClosedError, LostError, PysamplerError, WaitTimeoutError
from pysampler.sync import SharedRing, now, sleep_until

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Unpack

    import numpy.typing as npt

    from pysampler._policies.calling import PolicyOutputs
    from pysampler._policies.normalize import Normalizer
    from pysampler._policies.sampler import PreparedFrames
    from pysampler._vector.options import VectorOptions

__all__ = ["Watcher"]

# The maximum number of episodes in the ring; further ones are only written to the file.
_SLOTS = 1 << 14
# A watcher copies weights from actors only if the time since the last copy is at least this many
# times as long as that copy took.
_MIN_PAUSES = 20
# How often a waiting call checks for ended episodes, in ns.
_CHECK_NS = 2_000_000


class Watcher(FreeRunningSampler):
    """Run episodes of a policy in a separate process while you train, to see how good it is.

    The training never waits for a watcher. One worker runs episode after episode until the watcher
    is closed; if it is lost, it is replaced. If the env or the policy raises, or a file cannot be
    written, the watcher ends with a warning and the training continues: from then on ``publish``
    and ``film`` do nothing. ``curve`` returns the episodes, also after ``close()``. You may call
    all methods except ``publish`` in any thread while another one publishes.

    Args:
        policy: A policy, to which you ``publish`` new weights now and then. Or
            :class:`pysampler.Actors`: then the watcher gets the weights that you ``publish`` to
            them, and skips large weights that come in quick succession.
        env: An env id, an ``EnvSpec`` or a function that makes an env.
        render_mode: The env's render mode: "human" opens a window; videos need "rgb_array".
        vector_kwargs: Options of :class:`pysampler.VectorEnv` in a dict.
        folder: A directory for ``returns.csv``, with a line for each episode, and for videos. None
            writes no files.
        video_every: Film every n-th episode, beginning with the first; None films only when you
            call ``film()``.
        settings: Keyword arguments for the policy, as in :class:`pysampler.Actors`.
        leave_out: Names of the parts of observations without a fixed shape, as in
            :class:`pysampler.Rollouts`; by default those of the actors.
        repeat: Run episodes without pause. By default each episode waits for weights newer than
            those of the last one, if the policy has weights.
        nice: The nice value of the worker, 0 to 19, or that of your program if it is higher: the
            higher, the more CPU time the worker leaves to the training.
        fps: Frames per second of videos; by default the env's ``render_fps``, or 30.
        normalize: Normalise observations with the statistics that this
            :class:`pysampler.Normalizer` has when you ``publish``; by default the actors'
            normalizer, if any. Returns are sums of the env's own rewards.
        seed: Seed of the first reset; None: a random one.
        options: Options of :class:`pysampler.VectorEnv`, such as ``step_timeout``.

    Attributes:
        envs: The vector env, with one env.
        policy: The policy.
        settings: The current settings: assign to an entry to change it.

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
    _note = TakeWatcherPolicy
    _counts = False

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
        leave_out: Sequence[str] = (),
        repeat: bool = False,
        nice: int = 10,
        fps: int | None = None,
        normalize: Normalizer | None = None,
        seed: int | None = None,
        **options: Unpack[VectorOptions],
    ) -> None:
        repeat = true_or_false("watch", "repeat", repeat)
        for name, value in (("video_every", video_every), ("fps", fps)):
            if value is not None:
                whole_number("watch", name, value, 1)
        if whole_number("watch", "nice", nice, 0) > 19:
            raise refusal(self._purpose, "nice", nice, "0 to 19")
        if not isinstance(folder, (str, os.PathLike, type(None))):
            raise refusal(self._purpose, "folder", folder, "a path")
        self._folder = None if folder is None else Path(folder).absolute()
        self._can_film = render_mode == "rgb_array" and folder is not None
        self._video_every, self._nice, self._repeat = video_every, nice, repeat
        self._collect_lock = threading.RLock()
        self._episodes = np.empty(0, EPISODE)
        self._held = 0  # the newest episodes, still in the ring
        self._waited_for = 0  # episodes that wait() does not count
        self._follow_at = 0  # in ns: do not follow before this time
        self._has_warned = False  # of missing episodes
        self._failure: Exception | None = None
        self._followed: weakref.ref[Actors] | None = None
        actors = policy if isinstance(policy, Actors) else None
        if actors is not None:
            policy = actors.policy
            normalize = actors.normalizer if normalize is None else normalize
            leave_out = leave_out or actors.leave_out
        # native=False: an ordinary env renders the same pictures as in gymnasium.
        own = {"num_workers": 1, "on_worker_loss": "restart", "native": False}
        of_env = {**own, **vector_options("watch", vector_kwargs, options, Watcher)}
        one_worker = "1: a watcher has one worker process"
        if of_env["num_workers"] == 0:
            raise refusal(self._purpose, "num_workers", 0, one_worker)
        kwargs: dict[str, Any] = {} if render_mode is None else {"render_mode": render_mode}
        with vector_env_of(
            env, 1, of_env, "watch", policy=policy, in_workers=True, env_kwargs=kwargs
        ) as made:
            if made.envs.num_envs != 1:
                raise refusal(self._purpose, "num_envs", made.envs.num_envs, "1")
            if made.envs.num_workers != 1:
                raise refusal(self._purpose, "num_workers", made.envs.num_workers, one_worker)
            if video_every is not None:
                self._expect_videos()
            if self._folder is not None:
                self._folder.mkdir(parents=True, exist_ok=True)
            self._fps = fps or int(made.envs.metadata.get("render_fps") or 30)
            super().__init__(
                *(made.envs, policy, settings, seed),
                owned=True,
                normalize=normalize,
                leave_out=leave_out,
            )
            self.begin()
        self._version = self.version  # of the last weights published here
        if actors is not None:
            self._followed = weakref.ref(actors)
            actors.followed_by(self.follow)

    def _expect_videos(self) -> None:
        if not self._can_film:
            raise ValueError(
                "cannot watch: videos need a folder, and an env with render_mode='rgb_array'"
            )
        expect_writer("watch")

    @property
    def curve(self) -> npt.NDArray[Any]:
        """The episodes so far, as a structured array with a row each.

        The fields are ``at`` (the ``at`` that you published last before the episode began),
        ``version`` (of the weights), ``length``, ``return`` and ``seconds``.

        If more than 16,384 episodes end between two calls of ``curve``, ``wait`` or ``publish``,
        the newest of those are missing, and you get a warning. ``returns.csv`` has them all.
        """
        self._update()
        return self._episodes

    def wait(self, count: int, timeout: float | None = None) -> npt.NDArray[Any]:
        """Wait until ``count`` more episodes have ended since the last ``wait`` or ``publish``.

        Args:
            count: The number of episodes.
            timeout: Raise WaitTimeoutError after this many seconds. None waits forever.

        Returns:
            The episodes, in the format of ``curve``.

        Raises:
            WaitTimeoutError: Too few episodes ended in time.
            ClosedError: Too few episodes ended before the watcher was stopped, closed or failed, or
                the actors that it follows were closed.
        """
        count = whole_number("watch", "count", count, 0)
        deadline = arguments.deadline(timeout, "watch")
        have = self._waited_for
        while True:
            over = self._update()
            if len(self._episodes) >= have + count:
                break
            got = f"{max(0, len(self._episodes) - have)} of {count} episodes"
            if over or self._has_nothing_to_show():
                raise ClosedError(f"cannot watch: the watcher ended after {got}") from self._failure
            if deadline is not None and now() >= deadline:
                raise WaitTimeoutError(f"cannot watch: {got} ended in time")
            check_at = now() + _CHECK_NS
            sleep_until(check_at if deadline is None else min(check_at, deadline))
        self._waited_for = max(self._waited_for, have + count)
        return self._episodes[have : have + count]

    def film(self) -> None:
        """Film the next episode, which then begins without waiting for new weights."""
        if self._failure is not None:
            return
        self._expect_open()
        self._expect_videos()
        self._state.videos_requested += 1

    def publish(self, weights: Any = None, at: int | None = None) -> int:
        """Publish new weights, which the worker loads before the next episode.

        Args:
            weights: A module or another object with ``state_dict()``, or a dict of arrays or
                tensors. None: the current weights of the policy.
            at: The progress of the training, such as its steps, for the field ``at`` of ``curve``.
                None keeps the last value.

        Returns:
            The version of the weights.

        Raises:
            TypeError: The policy has no weights, or ``weights`` has another type.
        """
        if at is not None:
            at = whole_number("watch", "at", at, 0)
        self._update()
        if self._failure is not None:
            return self._version
        self._expect_open()
        if at is not None:
            self._state.at = at
        with self._collect_lock:
            ended = len(self._episodes) - self._held + len(self._ring)
        self._version = super().publish(weights)
        self._waited_for = ended
        return self._version

    def follow(self, weights: Any, at: int) -> None:
        """Publish the actors' weights, unless that was done very recently; never raise."""
        began = now()
        if self.closed or began < self._follow_at:
            return
        try:
            self.publish(weights, at)
        except (BusyError, ClosedError):  # another thread publishes or has closed the watcher
            return
        except Exception as error:
            self._fail(error)
        self._follow_at = now() + _MIN_PAUSES * (now() - began)

    def _update(self) -> bool:
        """Collect the episodes that have ended; return whether no more come.

        If the worker has failed, warn.
        """
        self._collect()
        try:
            over = not self._in_own_process or self._check_workers()
        except ClosedError:  # another thread closed it
            over = True
        except PysamplerError as error:
            self._fail(error)
            over = True
        if over:
            self._collect()
        if (missing := self._state.missing) > 0 and not self._has_warned:
            self._has_warned = True
            warnings.warn(
                f"pysampler: {missing} episodes are missing in the curve: more than {_SLOTS} ended "
                "between two calls of the watcher",
                stacklevel=3,
            )
        return over

    def _has_nothing_to_show(self) -> bool:
        """Whether no more episodes come: all weights were evaluated, and the actors are closed."""
        if self._followed is None or self._repeat or self._board is None:
            return False
        actors = self._followed()
        if (actors is not None and not actors.closed) or len(self._episodes) == 0:
            return False
        shown = int(self._episodes["version"][-1])
        state = self._state
        return shown >= self._board.version and state.videos_requested <= state.videos_made

    def _collect(self) -> None:
        """Move the episodes that have ended out of the ring."""
        if not (self._has_begun and self._in_own_process):
            return
        if self._collect_lock._is_owned():  # type: ignore[attr-defined]
            return  # in a signal handler: the interrupted call does it
        with self._collect_lock, contextlib.suppress(ClosedError, LostError, WaitTimeoutError):
            self._release()
            while True:
                new = self._ring.peek(_SLOTS, timeout=0)
                # One statement after all calls: the call after an interrupted one continues from
                # here.
                self._episodes, self._held = np.concatenate([self._episodes, new]), len(new)
                self._release()

    def _release(self) -> None:
        if self._held > 0:
            held, self._held = self._held, 0
            self._ring.release(held)

    def _fail(self, error: Exception) -> None:
        self._failure = error
        self.let_go()
        warnings.warn(f"pysampler: the watcher has ended: {error}", stacklevel=4)

    def let_go(self) -> None:
        """Close the watcher, but leave the vector env open for other use."""
        if not self._closed:
            self._collect()  # the curve stays readable
        super().let_go()
        if self._followed is not None and (actors := self._followed()) is not None:
            actors.unfollowed_by(self.follow)

    def _ring_bytes(self, outputs: PolicyOutputs) -> int:  # noqa: ARG002
        return SharedRing.size_of(_SLOTS, EPISODE, (), 2, None, None) + 4096

    def _make_ring(self, prepared: PreparedFrames) -> tuple[SharedRing, WatcherSetup]:
        ring = SharedRing(_SLOTS, EPISODE, (), prepared.segment, producers=2)
        place, self._state = watcher_state(prepared.segment)
        return ring, WatcherSetup(
            *(ring.place(), place, self._folder, self._video_every, self._fps),
            *(self._nice, self._repeat),
        )

    def __repr__(self) -> str:
        return f"<pysampler.Watcher of {self.envs!r}{', closed' * self.closed}>"
