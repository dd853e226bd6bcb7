"""Rollouts: a policy and envs walk the ring of frames, T steps at a time.

A rollout is T + 1 frames in a row. In frame t lies what the envs returned at last, and beside it
what the policy said to that; its actions lie in frame t + 1, where the step they are for writes its
results. The last observations of a rollout are written to the first frame of the next.

A walker fills the frames where the policy acts: in this process (main_walker.py), or in the workers
(worker_walker.py).
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

import numpy as np

from pysampler._policies.calling import PolicyCaller
from pysampler._policies.copying import copied
from pysampler._policies.progress import WorkerProgress
from pysampler._policies.sampler import Sampler, vector_env_of
from pysampler._policies.seeds import entropy_from, restart_entropy, seed_from
from pysampler._policies.trees import batch_from
from pysampler._policies.weights import weights_of
from pysampler._rollouts.config import RolloutConfig, RolloutOptions
from pysampler._rollouts.main_walker import MainWalker
from pysampler._rollouts.rollout import Rollout, wait_for_copies
from pysampler._rollouts.tally import InfoColumns, Tally
from pysampler._rollouts.worker_walker import WorkerWalker
from pysampler._torch import is_module
from pysampler._vector.vector_env import core_of
from pysampler.sync import now

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    import numpy.typing as npt

    from pysampler._policies.sampler import Leasable
    from pysampler._rollouts.config import PolicyIn


__all__ = ["Rollouts"]


class Rollouts(Sampler):
    """An iterator over rollouts of ``horizon`` steps of all envs.

    It never ends, and begins with a reset. While it is open, the vector env resets envs in the step
    that ends their episode, whatever its own ``autoreset_mode``, and cannot be stepped by others;
    ``close()`` gives it back.

    A failed env is an ``EnvError``: the rollout under way is dropped, and the next begins with a
    reset. Where workers are replaced (``on_worker_loss="restart"``) the rollout goes on: the step
    is not ``valid``, ``lost`` says why, and the episode is truncated.

    Args:
        envs: A :class:`pysampler.VectorEnv`; or an env id, an ``EnvSpec``, a function that makes an
            env, or a list of such functions: then a vector env is made, which is closed with the
            rollouts. A vector env may be wrapped in wrappers that only transform observations or
            rewards, as ``gymnasium.wrappers.vector.NormalizeObservation``: the policy and the
            rollouts see what they return, ``ended`` counts the envs' own rewards. Then all envs
            act together, for a policy in "main".
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
        options = RolloutOptions(
            *(horizon, policy_in, overlap, keep_last, min_envs, timeout),
            *(allow_partial, reset_each, info_keys, threads),
        )
        with vector_env_of(
            *(envs, num_envs, vector_kwargs, self._purpose),
            policy_in_workers=policy if policy_in == "workers" else None,
        ) as given:
            self._set_up(given, policy, options, seed)

    def _set_up(
        self,
        given: Leasable,
        policy: Any,
        options: RolloutOptions,
        seed: int | list[int | None] | None,
    ) -> None:
        if options.policy_in == "workers":
            self._expect_no_wrappers(given, "the policy acts in the workers")
        core = core_of(given.envs)
        if options.as_ready or len(core.groups) > len(set(core.pool.worker_of)):
            self._expect_no_wrappers(given, "the policy does not act for all envs together")
        self._transforms = given.transforms
        self._spec = core.spec if given.transforms is None else given.transforms.spec
        self._options = options
        self.horizon = options.horizon
        self._caller = self._caller_of(policy)
        caller_of = weakref.WeakMethod(self._caller_of)
        self._config = RolloutConfig(core, given.envs.num_workers, policy, caller_of, options)
        self._seed = seed
        self._entropy: int | list[int] | None = None  # of random numbers
        self._beginnings = 0
        self._slots = options.keep_last + options.overlap
        self._slot = 0
        self._walker: MainWalker | WorkerWalker | None = None
        self._ending: MainWalker | WorkerWalker | None = None  # a walker that is being ended
        self._tally: Tally | None = None
        self._under_way = False  # a rollout has been started and not been finished
        self._version = 0
        self._handed_out_at: int | None = None
        self._learner_ns = 0
        self._busy = 0.0  # seconds of all envs together, up to the last rollout
        self._failed: Exception | None = None  # why the next rollout could not be started
        self._lease_envs(given.envs, owned=given.owned)

    def _caller_of(self, policy: Any) -> PolicyCaller:
        return PolicyCaller(policy, self._spec)

    def __iter__(self) -> Iterator[Rollout]:
        return self

    def __next__(self) -> Rollout:
        """Return the next rollout."""
        with self._enter("sample rollouts"):
            self.resume()
            return self._next()

    def _next(self) -> Rollout:
        self._learner_ns = 0 if self._handed_out_at is None else now() - self._handed_out_at
        try:
            if self._failed is not None:
                error, self._failed = self._failed, None
                raise error
            if self._walker is None:
                self._begin()
            assert self._walker is not None
            if not self._under_way:
                self._start(0)
            self._walker.finish()
            self._under_way = False
            rollout = self._made()
            if self._options.overlap:
                try:
                    self._start(1)
                except Exception as error:  # this rollout is there all the same
                    self._failed = error
        except Exception:
            self._drop()
            raise
        except BaseException:  # Ctrl-C does not wait for an env in a long step
            self._forget()
            raise
        self._handed_out_at = now()
        return rollout

    # -- a rollout -------------------------------------------------------------------------------

    def _start(self, lag: int) -> None:
        """Begin to fill the next slot, with the policy as it is now."""
        assert self._walker is not None
        self._core.announce_columns()
        self._lag = lag
        self._version += 1
        self._under_way = True
        self._walker.policy.caller.find_device()
        wait_for_copies(self._walker.frames.memory)
        self._walker.start(self._slot * (self.horizon + 1))

    def _made(self) -> Rollout:
        """Return the rollout that has been finished."""
        walker, tally, envs = self._walker, self._tally, self.envs
        assert walker is not None
        assert tally is not None
        base = self._slot * (self.horizon + 1)
        self._slot = (self._slot + 1) % self._slots
        frames = walker.frames
        steps = slice(base + 1, base + 1 + self.horizon)
        seen = slice(base, base + 1 + self.horizon)
        acted = slice(base, base + self.horizon)
        if self._options.reset_each:
            tally.begin_episodes()
        marks = tally.count(base // (self.horizon + 1), frames, steps, walker.lengths)
        rest, walker.mailed_infos = walker.mailed_infos, []
        columns = InfoColumns(
            self._core.results, frames, self._options.info_keys, rest, steps, marks
        )
        policy, spec = walker.policy, self._spec
        rewards = policy.rewards[steps]
        if self._options.allow_partial:  # a step under way may yet be writing to its row
            rewards = np.where(marks["valid"], rewards, 0.0)
        before, self._busy = self._busy, self._core.pool.busy_seconds()
        at_work = (self._busy - before) / max(1, envs.num_workers)
        seconds = {**walker.seconds, "envs": at_work, "learner": self._learner_ns / 1e9}
        walker.seconds = dict.fromkeys(walker.seconds, 0.0)
        return Rollout(
            observations=_tree(spec.observation_tree, policy.observations, seen),
            actions=_tree(spec.action_tree, policy.actions, steps),
            rewards=rewards,
            terminated=frames.terminated[steps],
            truncated=frames.truncated[steps],
            final_observations=_tree(spec.observation_tree, policy.final_observations, steps),
            extras={name: array[acted] for name, array in policy.extras.items()},
            state=policy.recorded_state(acted),
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
        """Reset the envs, call the policy once, and lay out frames for what it returns."""
        envs = self.envs
        if self._ending is not None or self._core.at_work:  # an earlier call was interrupted
            self._drop()
        actor = self._caller
        if self._options.policy_in == "workers":
            actor = self._caller_of(copied(self._config.policy))
        weights = weights_of(self._config.policy) if is_module(self._config.policy) else None
        board_bytes = sum(w.nbytes + 8 for w in (weights or {}).values()) * 3
        seed = self._seed
        if self._beginnings > 0:  # the envs have drawn numbers for others in between
            assert self._entropy is not None
            seed = seed_from(restart_entropy(self._entropy, self._beginnings))
        begun = self._prepare_frames(
            *(actor, seed, self._slots * (self.horizon + 1)),
            board_bytes + WorkerProgress.size_of(len(self._core.groups)) + (1 << 16),
            infos="all" if self._options.info_keys else "none",
            transforms=self._transforms,
        )
        if self._entropy is None:
            self._entropy = entropy_from(self._seed)
        entropy = restart_entropy(self._entropy, self._beginnings)
        self._beginnings += 1
        self._slot = 0
        self._under_way = False
        self._busy = self._core.pool.busy_seconds()
        self._tally = Tally(self._slots, self.horizon, envs.num_envs)
        frames, frame_policy = begun.frames, begun.policy
        if self._options.policy_in == "workers":
            self._walker = WorkerWalker(
                self._config, frame_policy, frames, begun.segment, weights, entropy
            )
        else:
            self._walker = MainWalker(self._config, frame_policy, frames, begun.outputs, entropy)
        self._lease.stop = _end_of(weakref.ref(self._walker))

    def _signal(self) -> None:
        if self._walker is not None:
            self._walker.stop()

    def _forget(self) -> None:
        """Drop what is under way, without waiting: the next use of the envs waits for its end."""
        self._signal()
        self._ending = self._walker or self._ending
        self._under_way = False
        self._walker = None
        self._handed_out_at = None

    def _end(self) -> bool:
        self._forget()  # first: an interrupted end is gone through again
        ended = self._ending is None or self._ending.end()
        self._ending = None
        return ended

    def let_go(self) -> None:
        """Give the vector env back without closing it."""
        if self._closed or not self._mine:
            return
        entry = self._guard.closing("close rollouts")
        with entry:
            self._lease.over = True
            if entry.nested:  # a signal handler in the middle of next(), which then ends
                self._signal()
                self._closed = True
            else:
                super().let_go()
            self._guard.close()

    def pause(self) -> None:
        """Give the vector env back for a while; the next rollout begins with a reset."""
        with self._enter("pause rollouts"):
            self._give_back()

    def resume(self) -> None:
        """Take the vector env again, after ``pause``. Nothing may be pending on it."""
        if self._closed or self.envs.closed or not self._lease.over:
            return
        self._take_over()

    def __repr__(self) -> str:
        return (
            f"<pysampler.Rollouts of {self.envs!r}, horizon {self.horizon}, policy in "
            f"{self._options.policy_in}{', closed' * self.closed}>"
        )


def _end_of(walker: Callable[[], MainWalker | WorkerWalker | None]) -> Callable[[], bool]:
    """Return what ends a walker, for the lease, which must not refer to the vector env."""

    def end() -> bool:
        at_work = walker()
        return at_work is None or at_work.end()

    return end


def _tree(tree: Any, arrays: Sequence[npt.NDArray[Any]], steps: slice) -> Any:
    return batch_from(tree, lambda leaf: arrays[leaf][steps])
