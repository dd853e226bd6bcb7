"""Base class of samplers that use a vector env exclusively: rollouts, actors, a watcher.

A sampler has a lease of the vector env, whose envs work on frames that are laid out for what the
policy returns, and gives it back as it was. Meanwhile nothing else can step the envs.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from gymnasium.vector.vector_env import AutoresetMode

from pysampler._closing import Closing, Single, ends_by_signal
from pysampler._policies.frame_policy import FramePolicy
from pysampler._torch import needs_torch
from pysampler._vector.lease import Lease
from pysampler._vector.make import make_vec, vector_options
from pysampler._vector.vector_env import VectorEnv
from pysampler._workers import nursery
from pysampler.errors import BusyError, ClosedError, EnvError, LostError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import TracebackType

    from pysampler._frames.frames import Frames
    from pysampler._policies.calling import Outputs, PolicyCaller, PolicyOutputs
    from pysampler.sync import Segment

__all__ = ["PreparedFrames", "Sampler", "vector_env_of"]


@dataclass(frozen=True)
class PreparedFrames:
    """Frames laid out for a policy, with the observations of a reset in the first of them."""

    frames: Frames
    segment: Segment
    policy: FramePolicy
    outputs: Outputs  # what the policy returned for those observations


class Sampler(Single, Closing):
    """Uses a vector env exclusively, until it is closed."""

    # How errors name what it does, itself, and what is under way.
    _purpose = "sample rollouts"
    _name = "rollouts"
    _what = "a rollout"

    _closed = True  # until it is open
    _hurry = False  # Ctrl-C ends it: an env in a long step does not hold that up

    def _lease_envs(self, envs: VectorEnv, *, owned: bool) -> None:
        """Lease a vector env, which is closed with the sampler if it is ``owned``."""
        if envs.worker is not None:
            raise ValueError(
                f"cannot {self._purpose}: what a `worker` function runs resets its env by itself; "
                "expected a vector env without one"
            )
        spec = envs._spec
        if spec.odd_observations or spec.odd_actions:
            raise ValueError(
                f"cannot {self._purpose}: {envs.single_observation_space} and "
                f"{envs.single_action_space} have parts without a fixed shape, which lie in no "
                "array"
            )
        self.envs = envs
        self._owned = owned
        self._take_over()
        self._closed = False

    def _take_over(self) -> None:
        """Take a lease of the vector env, which must be idle."""
        envs = self.envs
        with envs._entered(self._name):
            envs._expect_idle(self._name)
            self._lease = envs._lease = Lease(self._name, self._what)

    @property
    def closed(self) -> bool:
        """Whether the vector env has been given back."""
        return self._closed or self.envs.closed

    @property
    def _mine(self) -> bool:
        """Whether this process made the vector env, and is not a fork of that."""
        return self.envs._guard.mine

    def _expect_open(self) -> None:
        if not self._mine:
            raise ClosedError(f"cannot {self._purpose}: made by another process, this is a fork")
        if self.closed:
            raise ClosedError(f"cannot {self._purpose}: they are closed")

    # -- beginning -------------------------------------------------------------------------------

    def _prepare_frames(
        self,
        caller: PolicyCaller,
        seed: int | list[int | None] | None,
        count: int,
        beside: int | Callable[[PolicyOutputs], int],
        *,
        infos: Literal["all", "none"] = "none",
    ) -> PreparedFrames:
        """Reset the envs, call a policy for the first time, lay out frames for what it returns.

        ``count`` is the number of frames, ``beside`` the bytes that the rest of the segment takes.
        """
        envs = self.envs
        lease = self._lease
        try:
            lease.lent_back = True
            envs.reset(seed=seed)
        finally:
            lease.lent_back = False
        results = envs._results
        seen = [leaf[results.frame].copy() for leaf in results.frames.observations]
        versions = results.frames.options_versions[results.frame].copy()
        everyone = slice(0, envs.num_envs)
        own = [array.copy() for array in seen]  # the policy may write to its copies
        initial = caller.initial_state(envs.num_envs)
        caller.seed_generators(None, envs.num_envs)
        returned = caller(own, initial, everyone)
        outputs = caller.describe(*returned)
        size = beside if isinstance(beside, int) else beside(outputs)
        lease.laid_out = True
        frames, segment = envs._lay_out(count, AutoresetMode.SAME_STEP, infos, outputs.fields, size)
        for leaf, rows in zip(frames.observations, seen, strict=True):
            leaf[0] = rows
        frames.options_versions[0] = versions
        policy = FramePolicy(caller, outputs, frames)
        policy.begin_episodes(0, everyone, initial)
        return PreparedFrames(frames, segment, policy, returned)

    # -- ending ----------------------------------------------------------------------------------

    def _signal(self) -> None:
        """Signal what is under way to end, without waiting and without a lock."""
        raise NotImplementedError

    def _end(self) -> bool:
        """End what is under way; return whether nothing but the pool is at work."""
        raise NotImplementedError

    def _drop(self) -> None:
        """Drop what is under way, and wait for its end."""
        self.envs._drop_work(self._what, ended=self._end())

    def _give_back(self) -> None:
        """Give the vector env back: usable when this returns, unless another thread uses it."""
        envs, lease = self.envs, self._lease
        lease.over = True
        if self._hurry:  # the vector env waits for what is under way, in its next call
            self._signal()
            return
        ended = self._end()
        if envs._lease is lease and not envs.closed:
            # A thread that is inside finds that the lease is over, or a signal handler's does.
            with contextlib.suppress(BusyError, ClosedError), envs._entered("close"):
                envs._drop_work(self._what, ended=ended)
                envs._expect_idle("close")

    def let_go(self) -> None:
        """Give the vector env back without closing it."""
        if self._closed or not self._mine:
            return
        self._lease.over = True  # first: where the rest is interrupted, the vector env does it
        self._closed = True
        with contextlib.suppress(LostError, EnvError):
            self._give_back()

    def close(self) -> None:
        """End what is under way, and give the vector env back, or close it if it was made here."""
        if not hasattr(self, "envs"):
            return
        self.let_go()
        if self._mine and self._owned and not self.envs.closed:
            self.envs.close(terminate=self._hurry)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._hurry = ends_by_signal(kind)
        self.close()

    def __del__(self) -> None:
        # Finalizers may run anywhere: the vector env takes itself back in its next call.
        lease = getattr(self, "_lease", None)
        if lease is None or not self._mine:
            return
        lease.over = True
        with contextlib.suppress(Exception):
            self._signal()
        if self._owned:
            self.envs._pool.kill(wait=0)


@contextlib.contextmanager
def vector_env_of(
    envs: Any,
    num_envs: int | None,
    vector_kwargs: dict[str, Any] | None,
    purpose: str,
    policy: Any = None,
    **kwargs: Any,
) -> Iterator[tuple[VectorEnv, bool]]:
    """Hand out a vector env that was given or is made, and whether it was made here.

    One that was made is closed if an exception ends the block. ``policy`` is what its workers will
    act with, if they will; ``kwargs`` are those of the envs.
    """
    if isinstance(envs, VectorEnv):
        if num_envs is not None or vector_kwargs is not None:
            raise ValueError(f"cannot {purpose}: num_envs and vector_kwargs are of other envs")
        yield envs, False
        return
    options = vector_options(vector_kwargs)
    clean = options.get("context") in (None, "nursery") and options.get("num_workers") != 0
    if needs_torch(policy) and clean and options.get("preload") is None:
        nursery.preload(["torch"])  # once, and not in every worker
    if num_envs is None:
        raise ValueError(f"cannot {purpose}: num_envs is missing, expected how many envs to make")
    made = make_vec(envs, num_envs, vector_kwargs=options, **kwargs)
    try:
        if not isinstance(made, VectorEnv):
            raise TypeError(f"cannot {purpose}: of {type(made).__name__}")
        yield made, True
    except BaseException:
        made.close()
        raise
