"""Rollouts: a policy and envs walk the ring of frames, T steps at a time.

A rollout is T + 1 frames in a row. In frame t lies what the envs returned at last, and beside it
what the policy said to that; its actions lie in frame t + 1, where the step they are for writes its
results. The last observations of a rollout are written to the first frame of the next.

The walker is where the policy is (places.py): in this process, for all envs or those that are
ready, or in the workers, each for its own envs.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np

from pysampler import _core
from pysampler._numbers import is_real, true_or_false, whole_number
from pysampler._policies.calling import PolicyCaller
from pysampler._policies.progress import WorkerProgress
from pysampler._policies.sampler import Sampler, vector_env_of
from pysampler._policies.seeds import entropy_from, restart_entropy, seed_from
from pysampler._policies.trees import batch_from
from pysampler._policies.weights import weights_of
from pysampler._rollouts.places import Centre, Way, Workers, copied
from pysampler._rollouts.rollout import Rollout, wait_for_copies
from pysampler._rollouts.tally import InfoColumns, Tally
from pysampler._torch import is_module
from pysampler._vector.vector_env import VectorEnv
from pysampler.errors import ClosedError
from pysampler.sync import now

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import numpy.typing as npt


__all__ = ["Rollouts"]

PolicyIn = Literal["main", "workers"]


class Rollouts(Sampler):
    """An iterator over rollouts of ``horizon`` steps of all envs.

    It never ends, and begins with a reset. While it is open, the vector env resets envs in the step
    that ends their episode, whatever its own ``autoreset_mode``, and cannot be stepped by others;
    ``close()`` gives it back.

    A failed env is an ``EnvError``: the rollout under way is dropped, and the next begins with a
    reset. Where workers are replaced (``on_worker_loss="restart"``) the rollout goes on: the step
    is not ``valid``, ``lost`` says why, and the episode is truncated.

    Args:
        envs: A :class:`pysampler.VectorEnv`, or an env id, an ``EnvSpec`` or a function that makes
            an env: then a vector env is made of it, which is closed with the rollouts.
        policy: A callable or a torch module, as described below.
        horizon: The number of steps in a rollout.
        num_envs: How many envs to make.
        vector_kwargs: Further arguments of :class:`pysampler.VectorEnv`, for the envs to make.
        policy_in: Where the policy acts. In "main", this process asks it for all envs together. In
            "workers", each worker acts for its own envs: one command a rollout instead of one a
            step. Weights of a torch module reach the workers on a board, other policies are pickled
            whenever they have changed. If the vector env has ``groups=2``, a policy in "main" acts
            for one half of each worker's envs while the other half steps.
        overlap: Sample the next rollout while you use the last one, with a copy of the policy as it
            was when you got that: ``rollout.lag`` is 1.
        keep_last: How many of the newest rollouts stay as they are.
        min_envs: Act as soon as this many envs are ready, instead of all. Envs drift apart, and
            each step lands in its place all the same. For a policy in "main".
        timeout: Act after this many seconds for the envs that are ready. For a policy in "main".
        allow_partial: A rollout is over when the first envs have all their steps; ``valid`` and
            ``lengths`` say what the others have. What is under way then is their first step in the
            next rollout, acted by the policy of this one: nothing is lost.
        reset_each: Begin each rollout with a reset of all envs, without waiting for one another.
        info_keys: Keys of infos to put into ``rollout.infos``: numbers, arrays, dicts of these.
        threads: Threads that torch may use while a policy in "main" acts on the CPU. Idle threads
            busy-wait and slow the workers down, so that more than one pays for wide networks only.
            None leaves torch as it is, and so does ``overlap``.
        seed: Seed of the first reset, and of the policy's random numbers in workers and in
            ``generators``.

    **What a policy is called with.** ``policy(observations)``, a batch with a row for each env that
    it acts for: all envs, or some of them. A ``torch.nn.Module`` is called with tensors on its
    device, without gradients; anything else with NumPy arrays, or dicts and tuples of arrays where
    the space is one. They are copies, which the policy may write to. Parameters named ``state`` and
    ``generators`` have the meaning below; others must have a default, and are left alone.

    **What it may return.** Actions, or ``(actions, extras)``, where ``extras`` is a dict of arrays
    with a row for each env: ``{"values": values}`` becomes ``rollout.extras["values"]``. Arrays,
    tensors and lists will do. Names, shapes and dtypes stay those of the first call. Where actions
    are tuples, the policy must return ``(actions, extras)``. NaN in actions is an error.

    **State.** A recurrent policy has a parameter named ``state``; or it has the attribute
    ``recurrent = True``, and takes its state second. The state is an array, or a dict or tuple of
    arrays, with a row for each env. The policy returns the new one as ``extras["state"]``, and gets
    those rows in the next call for the same envs. An episode begins with the state that the
    policy's method ``initial_state(count)`` returns. Without such a method it begins with zeros,
    and the state is None in the very first call, before its shape is known.

    **Random numbers.** A policy with a parameter named ``generators`` gets a list of
    ``np.random.Generator``, one for each row. Each env has its own, which depends only on the seed
    and on the index of the env: such a policy makes the same rollouts wherever it acts, with any
    number of workers and groups. For other random policies, each worker seeds the global generators
    of Python, NumPy and torch. It seeds those of its copy of the policy too: by the policy's method
    ``seed(number)``, if there is one, or else all generators that the policy refers to.

    **Copies.** With ``policy_in="workers"`` and with ``overlap`` a copy of the policy acts. Of a
    module, its ``state_dict()`` is copied before each rollout; any other policy is copied as a
    whole, whenever it has changed; a function with what it refers to in its own module. What other
    modules hold is not copied: a worker has it as it was when the worker started.

    **Where it acts.** In "main", in this process, and with ``overlap`` in another thread of it.
    In "workers", in each worker for its own envs; a module is moved to the CPU there.

    >>> def policy(observations):
    ...     return (observations[:, 2] > 0).astype(int)
    >>> with Rollouts("CartPole-v1", policy, horizon=32, num_envs=4, seed=1) as rollouts:
    ...     rollout = next(rollouts)
    ...     rollout.observations.shape, rollout.rewards.shape
    ((33, 4, 4), (32, 4))
    """

    def __init__(
        self,
        envs: Any,
        policy: Any,
        horizon: int,
        *,
        num_envs: int | None = None,
        vector_kwargs: dict[str, Any] | None = None,
        policy_in: PolicyIn = "main",
        overlap: bool = False,
        keep_last: int = 1,
        min_envs: int | None = None,
        timeout: float | None = None,
        allow_partial: bool = False,
        reset_each: bool = False,
        info_keys: Iterable[str] = (),
        threads: int | None = 1,
        seed: int | list[int | None] | None = None,
    ) -> None:
        horizon = whole_number("sample rollouts", "horizon", horizon, 1)
        keep_last = whole_number("sample rollouts", "keep_last", keep_last, 1)
        overlap = true_or_false("sample rollouts", "overlap", overlap)
        allow_partial = true_or_false("sample rollouts", "allow_partial", allow_partial)
        reset_each = true_or_false("sample rollouts", "reset_each", reset_each)
        if policy_in not in get_args(PolicyIn):
            raise _refuse("policy_in", policy_in, 'one of "main", "workers"')
        drifting = min_envs is not None or timeout is not None or allow_partial or reset_each
        if policy_in == "workers" and drifting:
            raise ValueError(
                "cannot sample rollouts: min_envs, timeout, reset_each and allow_partial are for a "
                'policy in "main"; workers do not wait for one another'
            )
        if reset_each and allow_partial:
            raise ValueError(
                "cannot sample rollouts: with reset_each, what is under way at the end of a "
                "rollout would be lost; expected allow_partial=False"
            )
        if threads is not None:
            threads = whole_number("sample rollouts", "threads", threads, 1)
        if min_envs is not None:
            min_envs = whole_number("sample rollouts", "min_envs", min_envs, 1)
        if not (timeout is None or is_real(timeout, 0)):
            raise _refuse("timeout", timeout, "seconds >= 0 or None")
        if isinstance(info_keys, str):
            raise _refuse("info_keys", info_keys, f"a list of keys: [{info_keys!r}]")
        if not isinstance(info_keys, Iterable):
            raise _refuse("info_keys", info_keys, "a list of keys")
        acting = policy if policy_in == "workers" else None
        with vector_env_of(envs, num_envs, vector_kwargs, "sample rollouts", acting) as (
            made,
            owned,
        ):
            way = {
                "overlap": overlap,
                "partial": drifting,
                "min_envs": made.num_envs if min_envs is None else min(min_envs, made.num_envs),
                "timeout": None if timeout is None else int(min(timeout, 1e9) * 1e9),
                "whole": not allow_partial,
                "fresh": reset_each,
                "threads": threads,
            }
            self._set_up(made, policy, horizon, policy_in, keep_last, info_keys, seed, way, owned)

    def _set_up(
        self,
        envs: VectorEnv,
        policy: Any,
        horizon: int,
        policy_in: PolicyIn,
        keep_last: int,
        info_keys: Iterable[str],
        seed: int | list[int | None] | None,
        way: dict[str, Any],
        owned: bool,  # noqa: FBT001
    ) -> None:
        self._spec = envs._spec
        self.horizon = horizon
        self._actor = self._actor_of(policy)
        self._policy_in = policy_in
        self._way = Way(
            envs,
            policy,
            weakref.WeakMethod(self._actor_of),  # rollouts that are dropped are gone at once
            horizon,
            **way,
        )
        self._infos = list(info_keys)
        self._seed = seed
        self._entropy: int | list[int] | None = None  # of random numbers
        self._beginnings = 0
        self._slots = keep_last + way["overlap"]
        self._slot = 0
        self._place: Centre | Workers | None = None
        self._dropping: Centre | Workers | None = None  # that ends
        self._tally: Tally | None = None
        self._under_way = False  # a rollout has been started and not been finished
        self._version = 0
        self._handed_out_at: int | None = None
        self._learner_ns = 0
        self._busy = 0.0  # seconds of all envs together, up to the last rollout
        # Of next().
        self._turn = _core.Guard(
            "these rollouts", "cannot sample rollouts: they are closed", ClosedError
        )
        self._failed: Exception | None = None  # what the next rollout could not be started for
        self._lease_envs(envs, owned=owned)

    def _actor_of(self, policy: Any) -> PolicyCaller:
        return PolicyCaller(policy, self._spec)

    def __iter__(self) -> Iterator[Rollout]:
        return self

    def __next__(self) -> Rollout:
        """The next rollout."""
        self._expect_open()
        with self._turn.entry("sample rollouts"):
            self.resume()
            return self._next()

    def _next(self) -> Rollout:
        self._learner_ns = 0 if self._handed_out_at is None else now() - self._handed_out_at
        try:
            if self._failed is not None:
                error, self._failed = self._failed, None
                raise error
            if self._place is None:
                self._begin()
            assert self._place is not None
            if not self._under_way:
                self._start(0)
            self._place.finish()
            self._under_way = False
            rollout = self._made()
            if self._way.overlap:
                try:
                    self._start(1)
                except Exception as error:  # this rollout is there all the same
                    self._failed = error
        except Exception:
            self._drop()
            raise
        except BaseException:  # Ctrl-C: not held up by an env in a long step
            self._forget()
            raise
        self._handed_out_at = now()
        return rollout

    # -- a rollout -------------------------------------------------------------------------------

    def _start(self, lag: int) -> None:
        """Take over the policy as it is now, and let the next slot be filled."""
        assert self._place is not None
        self.envs._tell_columns()
        self._lag = lag
        self._version += 1
        self._under_way = True
        self._place.acting.caller.find_device()
        wait_for_copies(self._place.frames.memory)
        self._place.start(self._slot * (self.horizon + 1))

    def _made(self) -> Rollout:
        """The rollout that has been finished."""
        place, tally, envs = self._place, self._tally, self.envs
        assert place is not None
        assert tally is not None
        base = self._slot * (self.horizon + 1)
        self._slot = (self._slot + 1) % self._slots
        frames = place.frames
        steps = slice(base + 1, base + 1 + self.horizon)
        seen = slice(base, base + 1 + self.horizon)
        acted = slice(base, base + self.horizon)
        if self._way.fresh:
            tally.begin_episodes()
        marks = tally.count(base // (self.horizon + 1), frames, steps, place.lengths)
        rest, place.rest = place.rest, []
        columns = InfoColumns(envs._results, frames, self._infos, rest, steps, marks)
        said = place.acting.outputs
        count = len(said.extras)
        spec = self._spec
        rewards = frames.rewards[steps]
        if not self._way.whole:  # a step under way may yet be writing to its row
            rewards = np.where(marks["valid"], rewards, 0.0)
        before, self._busy = self._busy, envs._pool.busy_seconds()
        at_work = (self._busy - before) / max(1, envs.num_workers)
        seconds = {**place.seconds, "envs": at_work, "learner": self._learner_ns / 1e9}
        place.seconds = dict.fromkeys(place.seconds, 0.0)
        return Rollout(
            observations=_tree(spec.observation_tree, frames.observations, seen),
            actions=_tree(spec.action_tree, place.acting.actions, steps),
            rewards=rewards,
            terminated=frames.terminated[steps],
            truncated=frames.truncated[steps],
            final_observations=_tree(spec.observation_tree, frames.final_observations, steps),
            extras={
                name: array[acted]
                for (name, _), array in zip(said.extras, frames.extras[:count], strict=True)
            },
            state=place.acting.recorded_state(acted),
            infos=columns.values,
            info_masks=columns.masks,
            options=frames.options_versions[seen],
            version=self._version,
            lag=self._lag,
            seconds=seconds,
            memory=frames.memory,
            **marks,
        )

    # -- beginning and ending --------------------------------------------------------------------

    def _begin(self) -> None:
        """Reset the envs, ask the policy for the first time, lay out frames for what it says."""
        envs = self.envs
        if self._dropping is not None or envs._at_work:  # that was interrupted
            self._drop()
        actor = self._actor
        if self._policy_in == "workers":
            actor = self._actor_of(copied(self._way.policy))
        weights = weights_of(self._way.policy) if is_module(self._way.policy) else None
        board_bytes = sum(w.nbytes + 8 for w in (weights or {}).values()) * 3
        seed = self._seed
        if self._beginnings > 0:  # the envs' own numbers are those of what came in between
            assert self._entropy is not None
            seed = seed_from(restart_entropy(self._entropy, self._beginnings))
        begun = self._prepare_frames(
            *(actor, seed, self._slots * (self.horizon + 1)),
            board_bytes + WorkerProgress.size_of(len(envs._groups)) + (1 << 16),
            infos="all" if self._infos else "none",
        )
        if self._entropy is None:
            self._entropy = entropy_from(self._seed)
        entropy = restart_entropy(self._entropy, self._beginnings)
        self._beginnings += 1
        self._slot = 0
        self._under_way = False
        self._busy = envs._pool.busy_seconds()
        self._tally = Tally(self._slots, self.horizon, envs.num_envs)
        frames, acting = begun.frames, begun.policy
        if self._policy_in == "workers":
            self._place = Workers(self._way, acting, frames, begun.segment, weights, entropy)
        else:
            self._place = Centre(self._way, acting, frames, begun.outputs, entropy)
        self._lease.end = _ending(weakref.ref(self._place))

    def _signal(self) -> None:
        if self._place is not None:
            self._place.stop()

    def _forget(self) -> None:
        """Use none of what is under way; the next use of the envs waits for its end."""
        self._signal()
        self._dropping = self._place or self._dropping
        self._under_way = False
        self._place = None
        self._handed_out_at = None

    def _end(self) -> bool:
        self._forget()  # first: an interrupted end is gone through again
        ended = self._dropping is None or self._dropping.end()
        self._dropping = None
        return ended

    def let_go(self) -> None:
        """Close, but for the vector env."""
        if self._closed or not self._mine:
            return
        entry = self._turn.closing("close rollouts")
        with entry:
            self._lease.over = True
            if entry.nested:  # a signal handler, in the middle of next(), which ends by it
                self._signal()
                self._closed = True
            else:
                super().let_go()
            self._turn.close()

    def pause(self) -> None:
        """Give the vector env back for a while; the next rollout begins with a reset."""
        self._expect_open()
        with self._turn.entry("pause rollouts"):
            self._give_back()

    def resume(self) -> None:
        """After ``pause``. Nothing may be pending."""
        if self._closed or self.envs.closed or not self._lease.over:
            return
        self._take_over()

    def __repr__(self) -> str:
        return (
            f"<pysampler.Rollouts of {self.envs!r}, horizon {self.horizon}, policy in "
            f"{self._policy_in}{', closed' * self.closed}>"
        )


def _ending(place: Callable[[], Centre | Workers | None]) -> Callable[[], bool]:
    """For the lease, which must not keep what refers to the vector env."""

    def end() -> bool:
        at_work = place()
        return at_work is None or at_work.end()

    return end


def _tree(tree: Any, arrays: Sequence[npt.NDArray[Any]], steps: slice) -> Any:
    return batch_from(tree, lambda leaf: arrays[leaf][steps])


def _refuse(what: str, got: Any, expected: str) -> ValueError:
    return ValueError(f"cannot sample rollouts: {what} {got!r}, expected {expected}")
