"""Rollouts: a policy and envs walk the ring of frames, T steps at a time.

A rollout is T + 1 frames in a row. Frame t holds the newest results of the envs and the policy's
outputs for them, except the actions: these are in frame t + 1, where the step that takes them
writes its results. The last observations of a rollout are copied to the first frame of the next.

A runner fills the frames: in this process (main_runner.py, ready_runner.py) or in the workers
(worker_runner.py). A builder turns the frames into a rollout (builder.py). Rollouts are views of
the frames, so that nothing is copied; a slot of frames is reused only once nothing refers to its
rollout.
"""

from __future__ import annotations

import functools
import gc
import itertools
import weakref
from typing import TYPE_CHECKING, Any, Literal

from pysampler._common.torch import is_module
from pysampler._frames.frames import addresses_are_limited
from pysampler._policies.calling import PolicyCaller
from pysampler._policies.copying import for_first_call
from pysampler._policies.normalize import normalization_of
from pysampler._policies.sampler import Sampler, vector_env_of, visible_spec
from pysampler._policies.seeds import entropy_from, restart_entropy, seed_from
from pysampler._policies.weights import weights_of
from pysampler._rollouts.builder import RolloutBuilder, frames_of
from pysampler._rollouts.cuda import cuda_in_use, register_memory, wait_for_copies
from pysampler._rollouts.main_runner import TurnRunner
from pysampler._rollouts.options import RolloutOptions
from pysampler._rollouts.ready_runner import ReadyRunner
from pysampler._rollouts.runner import RunnerSetup
from pysampler._rollouts.worker_runner import WorkerRunner
from pysampler._vector.make import vector_options
from pysampler._vector.vector_env import core_of
from pysampler.errors import BusyError
from pysampler.sync import now

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from typing import Unpack

    from pysampler._policies.normalize import Normalization, Normalizer
    from pysampler._rollouts.options import PolicyIn
    from pysampler._rollouts.rollout import Rollout
    from pysampler._rollouts.runner import RolloutRunner
    from pysampler._vector.options import VectorOptions


__all__ = ["Rollouts"]

# How many rollouts the user may hold at a time, unless ``keep_last`` asks for more.
_MOST_HELD = 8
_RUNS = itertools.count(1)  # of all rollouts in this process


class Rollouts(Sampler):
    """Sample rollouts: an endless iterator over ``horizon`` steps of all envs at a time.

    It begins with a reset. While it is open, envs are reset in the step that ends their episode,
    whatever the vector env's ``autoreset_mode``, and you cannot step the vector env directly;
    ``close()`` gives it back.

    If an env raises, you get an ``EnvError``: the current rollout is dropped, and the next one
    begins with a reset. With ``on_worker_loss="restart"`` a rollout survives the loss of a worker:
    the step is marked ``lost`` and not ``valid``, and the episode is truncated.

    Args:
        envs: A :class:`pysampler.VectorEnv` or another vector env; or an env id, an ``EnvSpec``, a
            function that makes an env, or a list of such functions: then a vector env is made, and
            closed with the rollouts. You can wrap a vector env if the wrappers only transform
            observations or rewards, such as ``gymnasium.wrappers.vector.NormalizeObservation``: the
            policy and the rollouts see the transformed values, and ``ended`` sums the envs' own
            rewards. Wrappers need a policy in "main" that acts for all envs together.
        policy: A callable or a torch module, as described below.
        horizon: The number of steps of each env in a rollout.
        num_envs: How many envs to make, if ``envs`` is an id, a spec or one function.
        vector_kwargs: Options of the vector env in a dict, as ``gymnasium.make_vec`` takes them.
        policy_in: Where the policy acts. In "main", this process calls it for all envs together. In
            "workers", each worker calls a copy for its own envs, and gets one command per rollout
            instead of one per step. Choose "workers" if inference time grows with the batch
            (networks on the CPU), and "main" for a GPU. Weights of a torch module reach the workers
            through shared memory; other policies are pickled whenever they change. If the vector
            env has ``groups=2``, a policy in "main" acts for one half of each worker's envs while
            the other half steps.
        overlap: Sample the next rollout while you learn from the last one. A copy of the policy
            acts, taken when you received the last rollout, so its data is one update old
            (``rollout.lag`` is 1). In "main" it acts in a thread: if it samples from torch's global
            generator, let the learner draw from another, or runs with the same seed differ.
        keep_last: How many rollouts you keep at a time. A rollout is never overwritten while you
            hold it, or an array or a tensor of it: the next one goes to other memory. There
            is room for 8, or for ``keep_last + 1`` if that is more, torch can use a GPU, or the
            address space is limited. Raise this to keep more, or keep ``rollout.copy()``.
        min_envs: Act as soon as this many envs are ready, instead of all, so that slow envs do not
            delay the others. "auto" measures which number gives the fastest rollouts;
            ``envs.stats().batches`` shows the choice. For a policy in "main".
        timeout: Act after this many seconds for the envs that are ready. None waits for
            ``min_envs``. "auto" measures whether a time-out makes rollouts faster. For a policy in
            "main".
        timeout_from: Count ``timeout`` from the last "call" of the policy, or from the moment the
            "first" env is ready.
        allow_partial: End a rollout as soon as the first envs have made all their steps, so that
            slow envs do not delay it. ``valid`` and ``lengths`` mark the steps that the others
            made. Their step in progress becomes the first of the next rollout, although this
            rollout's policy chose its action.
        reset_each: Reset all envs at the beginning of each rollout. Each env then steps without
            waiting for the others.
        info_keys: Keys of infos to put into ``rollout.infos``: numbers, arrays, dicts of these.
        normalize: A :class:`pysampler.Normalizer` of observations and rewards: the policy and the
            rollouts get normalised values, and ``ended`` sums the envs' own rewards.
        leave_out: Names of the parts of observations without a fixed shape (``Text``, ``Sequence``,
            ``Graph``): "mission", or "inner.mission" in a nested dict. Neither the policy nor the
            rollouts get them. You must name all such parts, otherwise you get an error. With a
            policy in "main" they are still sent to this process; to avoid that, wrap each env in
            ``gymnasium.wrappers.FilterObservation``.
        threads: Threads that torch may use while a policy in "main" acts on the CPU. With several
            threads, idle ones busy-wait and slow the workers down, so more than one is only faster
            for wide networks. None leaves torch's setting unchanged, and so does ``overlap``.
        device: The torch device of a policy in "main", which then gets tensors on this device even
            if it is not a module. By default a module acts where its parameters are, and other
            policies get arrays. A GPU reads the observations from page-locked memory, on a separate
            stream.
        warm_up: Before the first rollout, and before the next one after an evaluation, an error or
            an interrupt, each env makes a random number of random steps, up to this many. Use it if
            envs share a time limit: otherwise all their episodes end in the same steps. Returns and
            lengths of episodes include these steps; the policy's state begins after them.
        chunk: The number of steps that a policy acts for at once: it returns actions ``[rows,
            chunk]``, and then the shape of an action, and extras with the same first two
            dimensions. The envs make these steps in a row, with one command. An env whose episode
            ends waits for the others: its steps until the policy acts again are not ``valid``.
            ``state`` is that of the first step of each chunk. ``horizon`` must be a multiple.
        seed: Seed of the first reset, and of the policy's random numbers in workers and in
            ``generators``. None: a random one.
        options: Options of :class:`pysampler.VectorEnv`, such as ``num_workers``, for the
            envs to make.

    Attributes:
        envs: The vector env.
        horizon: The number of steps of each env in a rollout.
        normalizer: The ``normalize`` argument.

    **Arguments of a policy.** A policy is called as ``policy(observations)``, with a row for each
    env that it acts for: all envs, or some of them. A ``torch.nn.Module`` gets tensors on its
    device and runs without gradients; any other policy gets NumPy arrays, in dicts and tuples if
    the space is one. The arrays are copies, which the policy may write to. Parameters named
    ``state``, ``generators``, ``previous_actions`` and ``previous_rewards`` are described below;
    all others need a default value.

    **Return value of a policy.** Actions, or ``(actions, extras)``, where ``extras`` is a dict of
    arrays with a row for each env: ``{"values": values}`` becomes ``rollout.extras["values"]``.
    Arrays, tensors and lists are accepted. Names, shapes and dtypes must be the same in every call.
    If actions are tuples, the policy must return ``(actions, extras)``. NaN in actions is an error.

    **State.** A recurrent policy has a parameter named ``state``; or it has the attribute
    ``recurrent = True``, and takes its state as the second argument. The state is an array, or a
    dict or tuple of arrays, with a row for each env. The policy returns the new state as
    ``extras["state"]``, and gets those rows in the next call for the same envs. At the start of an
    episode, the state comes from the policy's method ``initial_state(count)``. Without such a
    method it is zeros, or None in the very first call, before its shape is known.

    **Previous actions and rewards.** A policy with a parameter named ``previous_actions`` gets the
    last action of each env, with the structure of an action; one with ``previous_rewards`` gets the
    reward for it, as float32. Both are zeros at the start of an episode and after a warm-up.
    Rollouts and records store them among the extras under the same names; if actions are dicts or
    tuples, one entry for each leaf: ``previous_actions0``, ``previous_actions1``.

    **Random numbers.** A policy with a parameter named ``generators`` gets a list of
    ``np.random.Generator``, one for each row. Each env's generator depends only on the seed and the
    index of the env: such a policy makes the same rollouts wherever it acts, with any number of
    workers and groups. For other random policies, each worker seeds the global generators of
    Python, NumPy and torch, and those of its copy of the policy: it calls the policy's method
    ``seed(number)``, if there is one, or else seeds all generators that the policy refers to.

    **Copies.** With ``policy_in="workers"`` or ``overlap``, a copy of the policy acts. Before each
    rollout the ``state_dict()`` of a torch module is copied. Any other policy is copied as a whole
    if it has changed; a function is copied with the globals of its module that it uses. State in
    other modules is not copied: a worker keeps the values from when it started. In workers, a torch
    module is moved to the CPU. With ``overlap`` in "main", the copy acts in another thread. Workers
    of this process (``context="threads"``, ``num_workers=0``) have copies, too, but use the same
    parameters of a module, and the policy itself if it cannot be pickled.

    >>> def policy(observations):
    ...     return (observations[:, 2] > 0).astype(int)
    >>> with Rollouts("CartPole-v1", policy, horizon=32, num_envs=4, seed=1) as rollouts:
    ...     rollout = next(rollouts)
    ...     rollout.observations.shape, rollout.rewards.shape
    ((33, 4, 4), (32, 4))
    """

    _resets_late = True  # late resets are steps that are not ``valid``
    _vector_rewards = True  # whether a reward may have several numbers

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
        min_envs: int | Literal["auto"] | None = None,
        timeout: float | Literal["auto"] | None = None,
        timeout_from: Literal["call", "first"] = "call",
        allow_partial: bool = False,
        reset_each: bool = False,
        info_keys: Iterable[str] = (),
        normalize: Normalizer | None = None,
        leave_out: Sequence[str] = (),
        threads: int | None = 1,
        device: Any = None,
        warm_up: int = 0,
        chunk: int | None = None,
        seed: int | list[int | None] | None = None,
        **options: Unpack[VectorOptions],
    ) -> None:
        vector_kwargs = vector_options(self._purpose, vector_kwargs, options, Rollouts)
        self._options = chosen = RolloutOptions(
            *(horizon, policy_in, overlap, keep_last, min_envs, timeout, timeout_from),
            *(allow_partial, reset_each, info_keys, threads, warm_up, device, chunk),
        )
        self.horizon = chosen.horizon
        self._policy = policy
        self._seed = seed
        self._entropy: int | list[int] | None = None  # for the policy's random numbers
        self._restarts = 0  # how often frames have been prepared
        self._slots = 0  # slots with memory
        self._most_slots = 0  # slots that may get memory
        self._slot = 0  # the slot of the newest rollout
        self._runner: RolloutRunner | None = None
        self._ending_runner: RolloutRunner | None = None
        self._started = False  # whether a rollout is under way
        self._interrupted = False  # whether the last call returned no rollout
        self._version = 0
        self._returned_at: int | None = None  # when the last rollout was returned, in ns
        self._learner_seconds = 0.0
        self._start_error: Exception | None = None  # why the next rollout could not be started
        with vector_env_of(
            *(envs, num_envs, vector_kwargs, self._purpose),
            policy=policy,
            in_workers=policy_in == "workers",
        ) as leasable:
            core = core_of(leasable.envs)
            if chosen.policy_in == "workers":
                leasable.expect_no_wrappers(self._purpose, "the policy acts in the workers")
            if chosen.as_ready or len(core.groups) > len(set(core.pool.worker_of)):
                why = "the policy does not act for all envs together"
                leasable.expect_no_wrappers(self._purpose, why)
            if normalize is not None:
                why = "`normalize` applies to the results of the envs themselves"
                leasable.expect_no_wrappers(self._purpose, why)
            self.normalizer = normalize
            self.given_envs = leasable.given
            self.transforms = leasable.transforms
            self.leave_out = leave_out
            self.chunk = chosen.chunk
            self._spec = visible_spec(
                *(self._purpose, leasable.envs, leave_out), vector_rewards=self._vector_rewards
            )
            self._normalization = normalization_of(normalize, self._spec, self._purpose)
            if leave_out:
                leasable.expect_no_wrappers(self._purpose, "they would see the parts in leave_out")
            if leasable.transforms is not None:
                self._spec = leasable.transforms.spec
            if chosen.chunk is not None:
                leasable.expect_chunks(self._purpose, normalize)
            self._caller = self._make_caller(policy)
            self._lease_envs(leasable.envs, owned=leasable.owned)
            if normalize is not None:
                normalize.claim(self)

    @property
    def normalization(self) -> Normalization | None:
        """The normalization of observations and rewards; None without ``normalize``."""
        return self._normalization

    def _make_caller(self, policy: Any) -> PolicyCaller:
        options = self._options
        return PolicyCaller(policy, self._spec, device=options.device, chunk=options.chunk)

    def __iter__(self) -> Iterator[Rollout]:
        return self

    def __next__(self) -> Rollout:
        """Sample the next rollout and return it."""
        with self._enter("sample rollouts"):
            self.resume()
            return self._next()

    def _next(self) -> Rollout:
        since = self._returned_at
        self._learner_seconds = 0.0 if since is None else (now() - since) / 1e9
        if self._interrupted:  # perhaps twice, without dropping the rollout under way
            self._abandon()
        self._expect_free_slot()
        self._interrupted = True
        try:
            if self._start_error is not None:
                error, self._start_error = self._start_error, None
                raise error
            runner = self._prepared_runner()
            if not self._started:
                self._start(runner, 0)
            runner.finish()
            self._started = False
            rollout = self._build(runner)
            if self._options.overlap:
                try:
                    self._start(runner, 1)
                except Exception as error:  # for the next call: this rollout is complete
                    if isinstance(error, BusyError) and not (self._started and runner.begun):
                        self._version -= self._started  # that call tries again
                        self._started = False
                    else:
                        self._start_error = error
        except Exception:
            self._drop()
            self._interrupted = False
            raise
        except BaseException:  # Ctrl-C does not wait for an env in a long step
            self._abandon()
            raise
        self._interrupted = False
        self._returned_at = now()
        return rollout

    # -- a rollout -------------------------------------------------------------------------------

    def _start(self, runner: RolloutRunner, lag: int) -> None:
        self._slot = self._free_slot(runner)
        self._core.announce_columns()
        self._lag = lag
        self._version += 1
        self._started = True
        caller = runner.policy.caller
        caller.find_device()
        if caller.on_gpu:
            register_memory(runner.frames.memory)
        wait_for_copies(runner.frames.memory)
        runner.start(frames_of(self._slot, self.horizon).start)

    def _expect_free_slot(self) -> None:
        """Raise BusyError if the next rollout has no room, before any part of it begins."""
        if self._runner is not None and not self._started:
            self._free_slot(self._runner)

    def _free_slot(self, runner: RolloutRunner) -> int:
        """Return a slot with no references to its rollout; BusyError if the user holds them all."""
        if (slot := self._unheld_slot()) is not None:
            return slot
        try:
            if self._slots < self._most_slots:
                runner.frames.take(frames_of(self._slots, self.horizon))
                self._slots += 1
                return self._slots - 1
            why = f"there is room for {self._most_slots}"
        except MemoryError as error:
            why = f"there is no memory for another ({error})"
        gc.collect()  # reference cycles may hold some, such as that of a kept exception
        if (slot := self._unheld_slot()) is not None:
            return slot
        raise BusyError(
            f"cannot sample rollouts: you hold {self._slots} of them, and {why}; keep "
            "rollout.copy(), drop arrays of rollouts that you do not need, or pass a larger "
            "keep_last"
        )

    def _unheld_slot(self) -> int | None:
        return next((slot for slot in range(self._slots) if not self._builder.held(slot)), None)

    def _build(self, runner: RolloutRunner) -> Rollout:
        return self._builder.build(
            *(runner, self._slot),
            version=self._version,
            lag=self._lag,
            learner_seconds=self._learner_seconds,
        )

    # -- beginning and ending --------------------------------------------------------------------

    def _prepared_runner(self) -> RolloutRunner:
        """Return the runner; on the first call reset the envs and lay out frames for it."""
        if self._runner is None:
            self._prepare()
        assert self._runner is not None
        return self._runner

    def _prepare(self) -> None:
        if self._ending_runner is not None or self._core.at_work:  # a call was interrupted
            self._drop()
        policy, caller = self._policy, self._caller
        if self._options.policy_in == "workers":
            caller = self._make_caller(
                for_first_call(policy, in_processes=self._core.pool.in_processes)
            )
        caller.find_device()
        caller.follow_weights()
        weights = weights_of(policy) if is_module(policy) else None
        seed = self._seed
        if self._restarts > 0:  # other callers have used the envs' random numbers since
            assert self._entropy is not None
            seed = seed_from(restart_entropy(self._entropy, self._restarts))
        slots = self._options.keep_last + self._options.overlap
        most = slots + 1
        if cuda_in_use():  # page-locks all reserved memory, too
            slots = most
        elif not addresses_are_limited():
            most = max(most, _MOST_HELD)
        prepared = self._prepare_frames(
            *(caller, seed, frames_of(slots, self.horizon).start),
            lambda _: self._shared_bytes(weights),
            reserved=(most - slots) * (self.horizon + 1),
            infos="all" if self._options.info_keys else "none",
            transforms=self.transforms,
            normalization=self._normalization,
            warm_up_steps=self._options.warm_up,
        )
        if self._entropy is None:
            self._entropy = entropy_from(self._seed)
        entropy = restart_entropy(self._entropy, self._restarts)
        self._restarts += 1
        self._slots, self._most_slots = slots, most
        self._started = False
        setup = RunnerSetup(
            *(self._core, self.envs.num_workers, policy, self._options),
            *(prepared, entropy, weights, self._make_caller),
        )
        self._builder = RolloutBuilder(setup, self._spec, next(_RUNS))
        self._runner = self._make_runner(setup)
        self._lease.stop = functools.partial(_end, weakref.ref(self._runner))

    def _make_runner(self, setup: RunnerSetup) -> RolloutRunner:
        if self._options.policy_in == "workers":
            return WorkerRunner(setup)
        return ReadyRunner(setup) if self._options.as_ready else TurnRunner(setup)

    def _request_stop(self) -> None:
        if self._runner is not None:
            self._runner.stop()

    def _abandon(self) -> None:
        """Drop the rollout under way without waiting: the next use of the envs waits instead."""
        self._request_stop()
        self._ending_runner = self._runner or self._ending_runner
        self._started = False
        self._runner = None
        self._returned_at = None

    def _end(self) -> bool:
        self._abandon()  # first: an interrupted end is repeated
        ended = self._ending_runner is None or self._ending_runner.end()
        self._ending_runner = None
        return ended

    def let_go(self) -> None:
        """Close the rollouts, but leave the vector env open for other use."""
        if self._closed or not self._in_own_process:
            return
        entry = self._guard.closing("close rollouts")
        with entry:
            self._lease.over = True
            if entry.nested:  # in a signal handler during next(): make it end
                self._request_stop()
                self._closed = True
            else:
                super().let_go()
            self._guard.close()

    def pause(self) -> None:
        """Give the vector env back until ``resume``; the next rollout begins with a reset."""
        with self._enter("pause rollouts"):
            self._give_back()

    def resume(self) -> None:
        """Take the vector env again after ``pause``. No step may be pending on it."""
        if self._closed or self.envs.closed or not self._lease.over:
            return
        try:
            self._take_over()
        finally:
            if self._closed:  # by a signal handler, perhaps before the lease began
                self._lease.over = True
        self._expect_open()

    def __repr__(self) -> str:
        return (
            f"<pysampler.Rollouts of {self.envs!r}, horizon {self.horizon}, policy in "
            f"{self._options.policy_in}{', closed' * self.closed}>"
        )


def _end(runner_ref: Callable[[], RolloutRunner | None]) -> bool:
    """End a runner. The lease calls this; it must not refer to the vector env."""
    runner = runner_ref()
    return runner is None or runner.end()
