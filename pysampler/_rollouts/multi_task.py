"""Sampling many tasks at once, for meta-RL: one task per env."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from pysampler._common.closing import Closing, Uncopyable
from pysampler._common.numbers import whole_number
from pysampler._common.tasks import TaskWrapper
from pysampler._policies.sampler import vector_env_of
from pysampler._policies.seeds import entropy_from, restart_entropy, seed_from
from pysampler._rollouts.collected import Collected
from pysampler._rollouts.task_rollouts import TaskRollouts
from pysampler._vector import arguments
from pysampler._vector.make import vector_options
from pysampler._vector.transforms import is_ours
from pysampler.errors import ClosedError, PysamplerError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Unpack

    import gymnasium as gym
    import numpy.typing as npt

    from pysampler._policies.normalize import Normalizer
    from pysampler._rollouts.rollout import Episode, Rollout
    from pysampler._vector.options import VectorOptions
    from pysampler._vector.vector_env import VectorEnv

__all__ = ["MultiTaskSampler", "Ready"]


@dataclass(frozen=True)
class Ready:
    """The envs that wait for actions, a row for each, from ``MultiTaskSampler.step_recv``.

    Attributes:
        envs: The indices of the envs.
        tasks: For each env, the index of its task in the sampler's ``tasks``.
        observations: The observations to act on.
        rewards: The rewards of the last steps; 0 for envs that were only reset.
        terminated: Whether the last step terminated an episode; the observation is then the first
            of the next episode.
        truncated: Whether the last step truncated an episode; likewise.
        infos: The infos of the last steps with the sampler's ``info_keys``, as in a vector env: an
            array under each key, and a mask under the key with a leading ``_``.
    """

    envs: npt.NDArray[np.int64]
    tasks: npt.NDArray[np.int64]
    observations: Any
    rewards: npt.NDArray[np.float64]
    terminated: npt.NDArray[Any]  # bool
    truncated: npt.NDArray[Any]  # bool
    infos: dict[str, Any]


class MultiTaskSampler(Uncopyable, Closing):
    """Sample many tasks at once, for meta-RL: each env has a task, and one policy acts for all.

    Args:
        envs: A :class:`pysampler.VectorEnv`, or an argument from which :class:`pysampler.Rollouts`
            would make one. ``env.unwrapped`` must have the methods ``sample_tasks(n)`` and
            ``reset_task(task)``. If you pass a vector env, its envs must also take tasks as options
            of ``reset``: those of :mod:`pysampler.envs.meta` do; wrap others in
            :class:`pysampler.envs.meta.TaskWrapper`.
        policy: A function ``policy(observations, tasks, params)`` that returns actions, or
            ``(actions, extras)``. Row i belongs to the task with the index ``tasks[i]``; ``params``
            is the argument of ``sample``, such as parameters adapted to each task. Or a function
            with a parameter ``params`` that is not its third, called as
            ``policy(observations, params=params)``: if ``params`` is a list, once per task, with
            that task's item. For the rest see :class:`pysampler.Rollouts`; recurrent policies have
            a parameter named ``state``.
        num_envs: How many envs to make, if ``envs`` is an id, a spec or one function.
        env_kwargs: Keyword arguments of each env to make.
        vector_kwargs: Options of the vector env in a dict, as ``gymnasium.make_vec`` takes them.
        min_envs: Act as soon as this many envs are ready, instead of all, so that slow envs do not
            delay the others. "auto" measures which number gives the fastest samples;
            ``envs.stats().batches`` shows the choice.
        timeout: Act after this many seconds for the envs that are ready. None waits for
            ``min_envs``. "auto" measures whether a time-out makes samples faster.
        timeout_from: Count ``timeout`` from the last "call" of the policy, or from the moment the
            "first" env is ready.
        seed: Seed of the tasks, the first reset and the policy's ``generators``; None: a random
            one.
        info_keys: Keys of infos to put into ``rollout.infos``: numbers, arrays, dicts of these.
        normalize: A :class:`pysampler.Normalizer`, whose statistics all tasks share.
        leave_out: Names of the parts of observations without a fixed shape, as in
            :class:`pysampler.Rollouts`.
        device: The torch device of the policy, as in :class:`pysampler.Rollouts`.
        options: Options of :class:`pysampler.VectorEnv`, such as ``num_workers``, for the
            envs to make.

    Attributes:
        envs: The vector env.
        policy: The policy.
        tasks: The tasks of the last sample.

    >>> import pysampler.envs.meta
    >>> def policy(observations, tasks, params):
    ...     return params[tasks] - observations
    >>> with MultiTaskSampler("Navigation2D-v0", policy, num_envs=6, seed=1) as sampler:
    ...     tasks = sampler.sample_tasks(3)
    ...     goals = np.array([task["goal"] for task in tasks], np.float32)
    ...     rollout = sampler.sample(20, params=goals, tasks=tasks)
    ...     collected = sampler.collect()
    >>> [len(episodes) > 2 for episodes in collected.episodes]
    [True, True, True]
    """

    def __init__(
        self,
        envs: Any,
        policy: Callable[..., Any],
        *,
        num_envs: int | None = None,
        env_kwargs: Mapping[str, Any] | None = None,
        vector_kwargs: dict[str, Any] | None = None,
        min_envs: int | Literal["auto"] | None = None,
        timeout: float | Literal["auto"] | None = None,
        timeout_from: Literal["call", "first"] = "call",
        seed: int | None = None,
        info_keys: Sequence[str] = (),
        normalize: Normalizer | None = None,
        leave_out: Sequence[str] = (),
        device: Any = None,
        **options: Unpack[VectorOptions],
    ) -> None:
        vector_kwargs = vector_options("sample tasks", vector_kwargs, options, MultiTaskSampler)
        if seed is not None:
            seed = whole_number("sample tasks", "seed", seed, 0)
        if not (isinstance(timeout, str) and timeout == "auto"):
            arguments.deadline(timeout, "sample tasks")  # raises if it is not a timeout
        self.policy = policy
        self._seed = seed
        self._seeds_used = 0
        self._options: dict[str, Any] = {
            "min_envs": min_envs,
            "timeout": timeout,
            "timeout_from": timeout_from,
            "info_keys": info_keys,
            "normalize": normalize,
            "leave_out": leave_out,
            "device": device,
            "reset_each": True,
        }
        self._rollouts: TaskRollouts | None = None
        self._rollout: Rollout | None = None
        self._random = np.random.default_rng(None if seed is None else [seed, 1])
        self._closed = False
        self.tasks: list[Any] = []
        self._tasks_are_set = True  # the envs have received ``tasks``
        with vector_env_of(
            *(envs, num_envs, vector_kwargs, "sample tasks"),
            policy=policy,
            wrappers=[TaskWrapper],
            env_kwargs=env_kwargs,
        ) as leasable:
            self.envs: VectorEnv = leasable.envs
            self._owned = leasable.owned
            self._task_of = np.zeros(self.envs.num_envs, np.int64)
            why = "the policy does not act for all envs together"
            leasable.expect_no_wrappers("sample tasks", why)
            if not is_ours(leasable.given):
                raise TypeError(
                    f"cannot sample tasks: {type(leasable.given).__name__}, expected "
                    "pysampler.VectorEnv, or what makes single envs"
                )
            takes = self.envs.apply(_takes_tasks)
            if not all(takes):
                raise TypeError(
                    f"cannot sample tasks: env {takes.index(False)} does not take tasks as options "
                    "of reset; wrap it in pysampler.envs.meta.TaskWrapper"
                )
            with TaskRollouts(self.envs, policy, 1, **self._options):
                pass  # raises on bad options here, instead of in the first sample

    def sample_tasks(self, count: int) -> list[Any]:
        """Return ``count`` tasks drawn by the first env, reproducibly for the sampler's seed."""
        count = whole_number("sample tasks", "count", count, 1)
        if self._rollouts is not None and self._rollouts.opened:
            self._end_rollouts()
        rollouts = self._rollouts
        with contextlib.nullcontext() if rollouts is None else rollouts.calling_envs():
            [(tasks, self._random)] = self.envs.apply(_sample_tasks, count, self._random, envs=[0])
        return list(tasks)

    def sample(
        self, max_length: int, params: Any = None, tasks: Sequence[Any] | None = None
    ) -> Rollout:
        """Reset all envs, make ``max_length`` steps of each, and return them as a rollout.

        Args:
            max_length: The number of steps of each env. When an episode ends, the next begins.
            params: Passed to the policy as its ``params``.
            tasks: One task for each env; or fewer, which go to equal shares of the envs, in order:
                the first of three to the first third. None repeats the tasks of the last sample;
                in the first sample it draws one for each env.
        """
        self._rollout = next(self._prepared(max_length, params, tasks))
        return self._rollout

    # -- sampling without a policy -----------------------------------------------------------------

    def begin(
        self, max_length: int, params: Any = None, tasks: Sequence[Any] | None = None
    ) -> None:
        """Begin a sample in which you choose the actions, with ``step_recv`` and ``step_send``.

        The policy is called once, to see its extras.

        Args:
            max_length: See ``sample``.
            params: See ``sample``.
            tasks: See ``sample``.
        """
        self._prepared(max_length, params, tasks).open()

    def step_recv(self, timeout: float | None = None) -> Ready | None:
        """Wait until ``min_envs`` envs have been reset or made their step, and return them.

        Args:
            timeout: Return the ready envs after this many seconds; if there are none, wait for the
                first. None: the sampler's ``timeout``.

        Returns:
            The envs that wait for actions, including those from earlier calls to which you have
            not sent any. None once each env has made all its steps: ``collect`` returns the data of
            the last steps.

        Raises:
            ValueError: No sample is under way.
        """
        if self._rollouts is None or not (self._rollouts.opened or self._rollout):
            raise ValueError("cannot receive: no sample is under way; call begin() first")
        limit = None if timeout is None else arguments.nanoseconds(timeout)
        received = self._rollouts.receive(limit)
        if received is None:
            if self._rollout is None and self._rollouts.opened:
                self._rollout = self._rollouts.finish()
            return None
        envs, *results = received
        return Ready(envs, self._task_of[envs], *results)

    def step_send(
        self, actions: Any, extras: dict[str, Any] | None = None, envs: Any = None
    ) -> None:
        """Step the envs that ``step_recv`` returned last, or some of them.

        Args:
            actions: An action for each of the envs, or a torch distribution to draw them from.
            extras: The extras that the sampler's policy would return. Missing floats, such as the
                ``log_probs`` of a policy that returns distributions, are NaN.
            envs: The indices of the envs to step; None: all that ``step_recv`` returned. The envs
                of a group begin their step once all of them have an action.
        """
        if self._rollouts is None:
            raise ValueError("cannot send actions: no sample is under way; call begin() first")
        self._rollouts.write(actions, extras or {}, envs)

    def _prepared(self, max_length: int, params: Any, tasks: Any) -> TaskRollouts:
        """Send the envs their tasks, and return rollouts of ``max_length`` steps."""
        if self._closed:
            raise ClosedError("cannot sample tasks: the sampler is closed")
        max_length = whole_number("sample rollouts", "max_length", max_length, 1)
        if tasks is None and not self.tasks:
            tasks = self.sample_tasks(self.envs.num_envs)
        elif tasks is None and not self._tasks_are_set:
            tasks = self.tasks
        if tasks is not None:
            self._expect_tasks(tasks)
        self._rollout = None  # first: after a failed sample there is nothing to collect
        if tasks is not None:
            self._set_tasks(tasks)
        rollouts = self._rollouts
        # They have no envs if a signal handler's exception interrupted their end.
        if (
            rollouts is None
            or rollouts.horizon != max_length
            or rollouts.opened
            or not rollouts.has_envs
        ):
            tuner = None if rollouts is None else rollouts.tuner
            self._end_rollouts()
            self._rollouts = rollouts = TaskRollouts(
                *(self.envs, self.policy, max_length), seed=self._next_seed(), **self._options
            )
            rollouts.earlier_tuner = tuner
        rollouts.task_of, rollouts.params = self._task_of, params
        return rollouts

    def collect(self) -> Collected:
        """Return the episodes of the last sample by task, as views of its rollout."""
        rollout = self._rollout
        if rollout is None:
            raise ValueError("cannot collect: there is no complete sample")
        episodes: list[list[Episode]] = [[] for _ in self.tasks]
        for episode in rollout.episodes():
            version = int(rollout.options[episode.steps.start, episode.env])
            if version != self._version:
                raise PysamplerError(
                    f"cannot collect: env {episode.env} was reset with options other than the "
                    f"tasks' (version {version}, expected {self._version})"
                )
            episodes[self._task_of[episode.env]].append(episode)
        return Collected(list(self.tasks), episodes)

    def _expect_tasks(self, tasks: Any) -> None:
        count = self.envs.num_envs
        if isinstance(tasks, (str, bytes)) or not isinstance(tasks, (Sequence, np.ndarray)):
            raise TypeError(f"cannot set tasks: {type(tasks).__name__}, expected a list of tasks")
        if len(tasks) == 0 or count % len(tasks):
            raise ValueError(
                f"cannot set tasks: {len(tasks)} tasks, expected {count}, one for each env, or a "
                "divisor of it"
            )

    def _set_tasks(self, tasks: Sequence[Any]) -> None:
        count = self.envs.num_envs
        tasks, task_of = list(tasks), np.arange(count) // (count // len(tasks))
        self._tasks_are_set = False  # until the envs have them and their version is known here
        version = self.envs.set_options(None, [{"task": tasks[task]} for task in task_of])
        self.tasks, self._task_of, self._version = tasks, task_of, version
        self._tasks_are_set = True

    def _next_seed(self) -> int | list[int | None] | None:
        """Return the seed of the next rollouts: the first time the seed of the sampler."""
        seed, self._seeds_used = self._seed, self._seeds_used + 1
        if self._seeds_used == 1 or seed is None:
            return seed
        return seed_from(restart_entropy(entropy_from(seed), self._seeds_used))

    def _end_rollouts(self) -> None:
        if self._rollouts is not None:
            self._rollouts.close()
            self._rollouts = None

    def close(self) -> None:
        """Close the sampler, and its vector env if the sampler made it."""
        self._closed = True
        self._end_rollouts()
        if self._owned and not self.envs.closed:
            self.envs.close()

    def __repr__(self) -> str:
        return f"<pysampler.MultiTaskSampler of {self.envs!r}{', closed' * self._closed}>"


def _takes_tasks(env: gym.Env[Any, Any]) -> bool:
    try:
        return bool(env.get_wrapper_attr("takes_tasks"))
    except AttributeError:
        return False


def _sample_tasks(
    env: gym.Env[Any, Any], count: int, generator: np.random.Generator
) -> tuple[list[Any], np.random.Generator]:
    """Return tasks drawn with ``generator``, and the generator; restore the env's own."""
    inner: Any = env.unwrapped
    own = inner.np_random
    inner.np_random = generator
    try:
        return list(inner.sample_tasks(count)), generator
    finally:
        inner.np_random = own


_takes_tasks.reads_of_pysampler = "nothing"  # type: ignore[attr-defined]
_sample_tasks.reads_of_pysampler = "tasks"  # type: ignore[attr-defined] # batches go on
