"""Sampling many tasks at once, for meta-RL: each env has its own, each record says which."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from pysampler._closing import Closing, Uncopyable
from pysampler._numbers import whole_number
from pysampler._policies.calling import PolicyCaller
from pysampler._policies.sampler import vector_env_of
from pysampler._policies.seeds import entropy_from, restart_entropy, seed_from
from pysampler._policies.trees import batch_from, mapped
from pysampler._rollouts.main_walker import MainWalker
from pysampler._rollouts.rollouts import Rollouts
from pysampler._vector import arguments
from pysampler.envs.meta.tasks import TaskWrapper
from pysampler.errors import ClosedError, PysamplerError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import gymnasium as gym
    import numpy.typing as npt

    from pysampler._frames.spec import Spec
    from pysampler._policies.calling import Arrays, PolicyOutputs, Rows
    from pysampler._rollouts.rollout import Episode, Rollout
    from pysampler._vector.vector_env import VectorEnv

__all__ = ["Collected", "MultiTaskSampler", "Ready"]


@dataclass(frozen=True)
class Ready:
    """Envs that wait for actions: row i of each is about env ``envs[i]``."""

    envs: npt.NDArray[np.int64]
    tasks: npt.NDArray[np.int64]  # indices into the sampler's tasks
    observations: Any


@dataclass(frozen=True)
class Collected:
    """Episodes by task: ``episodes[i]`` are of ``tasks[i]``, views of the rollout's arrays."""

    tasks: list[Any]
    episodes: list[list[Episode]]

    def ragged(self) -> dict[str, Any]:
        """All steps one behind the other: episode i is ``[offsets[i] : offsets[i + 1]]``.

        ``task``, ``env``, ``terminated``, ``truncated`` have one row for each episode, and so has
        ``last_observations``: what it was at after its last step; where it terminated, nothing.
        """
        flat = [episode for some in self.episodes for episode in some]
        offsets = np.cumsum([0, *map(len, flat)])
        return {
            "offsets": offsets,
            **self._about(flat),
            **{
                name: mapped(lambda *parts: np.concatenate(parts), *values)
                for name, values in _steps(flat).items()
            },
        }

    def padded(self) -> dict[str, Any]:
        """``[episodes, longest, ...]`` arrays with zeros behind each, and a ``mask`` of steps."""
        flat = [episode for some in self.episodes for episode in some]
        lengths = np.array([len(episode) for episode in flat])
        longest = int(lengths.max(initial=0))

        def pad(*parts: npt.NDArray[Any]) -> npt.NDArray[Any]:
            array = np.zeros((len(parts), longest, *parts[0].shape[1:]), parts[0].dtype)
            for row, part in zip(array, parts, strict=True):
                row[: len(part)] = part
            return array

        return {
            "mask": np.arange(longest) < lengths[:, None],
            **self._about(flat),
            **{name: mapped(pad, *values) for name, values in _steps(flat).items()},
        }

    def _about(self, flat: Sequence[Episode]) -> dict[str, Any]:
        of_task = [task for task, some in enumerate(self.episodes) for _ in some]
        lasts = [
            one.last_observation
            if one.last_observation is not None
            else mapped(lambda array: np.zeros_like(array[0]), one.observations)
            for one in flat
        ]
        return {
            "task": np.array(of_task, np.int64),
            "env": np.array([one.env for one in flat], np.int64),
            "terminated": np.array([one.terminated for one in flat], np.bool_),
            "truncated": np.array([one.truncated for one in flat], np.bool_),
            "last_observations": mapped(lambda *rows: np.stack(rows), *lasts) if flat else None,
        }


# What is beside the policy's extras in what is collected.
_TAKEN = {
    *("observations", "actions", "rewards", "offsets", "mask", "task", "env", "terminated"),
    *("truncated", "last_observations"),
}


def _steps(flat: Sequence[Episode]) -> dict[str, list[Any]]:
    if not flat:
        return {}
    columns = {
        "observations": [one.observations for one in flat],
        "actions": [one.actions for one in flat],
        "rewards": [one.rewards for one in flat],
    }
    return {**columns, **{n: [one.extras[n] for one in flat] for n in flat[0].extras}}


class MultiTaskSampler(Uncopyable, Closing):
    """Samples a policy in many envs, each with a task of its own.

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

    - ``envs``: a :class:`pysampler.VectorEnv`, or what :func:`pysampler.make_vec` makes one of:
      then ``num_envs`` and ``vector_kwargs`` are its. Envs have ``sample_tasks(n)`` and
      ``reset_task(task)`` (``env.unwrapped``); those of a vector env must also take tasks as
      options of ``reset``, as those of :mod:`pysampler.envs.meta` do and ``TaskWrapper`` makes
      others.
    - ``policy(observations, tasks, params)`` returns actions, or (actions, extras), for a batch:
      row i is of task ``tasks[i]``, an index; ``params`` are what ``sample`` was given: those
      adapted to each task, say. One that is recurrent takes a parameter named ``state``, as for
      rollouts.
    - ``min_envs``, ``timeout``: it is asked as soon as ``min_envs`` envs are ready, or ``timeout``
      seconds later for those that are; by default for all. Tasks and resets do not wait either.
    """

    def __init__(
        self,
        envs: Any,
        policy: Callable[..., Any],
        *,
        num_envs: int | None = None,
        vector_kwargs: dict[str, Any] | None = None,
        min_envs: int | None = None,
        timeout: float | None = None,
        seed: int | None = None,
        info_keys: Sequence[str] = (),
    ) -> None:
        if seed is not None:
            seed = whole_number("sample tasks", "seed", seed, 0)
        arguments.deadline(timeout, "sample tasks")  # or an error
        self.policy = policy
        self._seed = seed
        self._begun = 0  # rollouts
        self._options: dict[str, Any] = {
            "min_envs": min_envs,
            "timeout": timeout,
            "info_keys": info_keys,
        }
        self._rollouts: _TaskRollouts | None = None
        self._rollout: Rollout | None = None
        self._random = np.random.default_rng(None if seed is None else [seed, 1])
        self._closed = False
        self.tasks: list[Any] = []
        self._given = True  # to the envs
        with vector_env_of(
            *(envs, num_envs, vector_kwargs, "sample tasks"), wrappers=[TaskWrapper]
        ) as given:
            self.envs: VectorEnv = given.envs
            self._owned = given.owned
            self._task_of = np.zeros(self.envs.num_envs, np.int64)
            if given.transforms is not None:
                raise ValueError(
                    "cannot sample tasks: the vector env is wrapped in "
                    f"{given.transforms.names}, and the policy does not act for all envs together; "
                    "wrap each env instead"
                )
            takes = self.envs.apply(_takes_tasks)
            if not all(takes):
                raise TypeError(
                    f"cannot sample tasks: env {takes.index(False)} takes no tasks as options of "
                    "reset; wrap it in pysampler.envs.meta.TaskWrapper"
                )
            with _TaskRollouts(self.envs, policy, 1, reset_each=True, **self._options):
                pass  # what it refuses is refused here, not with the first sample

    def sample_tasks(self, count: int) -> list[Any]:
        """So many tasks, drawn by the first env with the sampler's own random numbers."""
        count = whole_number("sample tasks", "count", count, 1)
        if self._rollouts is not None and self._rollouts.opened:
            self._end_rollouts()
        own = contextlib.nullcontext() if self._rollouts is None else self._rollouts.calling_envs()
        with own:
            [(tasks, self._random)] = self.envs.apply(_sample_tasks, count, self._random, envs=[0])
        return list(tasks)

    def sample(
        self, max_length: int, params: Any = None, tasks: Sequence[Any] | None = None
    ) -> Rollout:
        """Reset all envs and let each make so many steps, in as many episodes as that takes.

        ``tasks``: one for each env, or fewer, shared out evenly in order: the first of three is for
        the first third of the envs. None: those of the last time, at first drawn, one for each.
        """
        self._rollout = next(self._prepared(max_length, params, tasks))
        return self._rollout

    # -- the same by hand --------------------------------------------------------------------------

    def begin(
        self, max_length: int, params: Any = None, tasks: Sequence[Any] | None = None
    ) -> None:
        """Give the envs their tasks and let them reset; then ``step_recv`` and ``step_send``."""
        self._prepared(max_length, params, tasks).open()

    def step_recv(self, timeout: float | None = None) -> Ready | None:
        """Envs that have been reset, or made their step, and wait for actions.

        As soon as ``min_envs`` are, or after so many seconds the first that is. None if nothing is
        under way any more: each env has all its steps, and ``collect`` has them.
        """
        if self._rollouts is None:
            return None
        rows = self._rollouts.receive(arguments.deadline(timeout))
        if rows is None:
            if self._rollout is None and self._rollouts.opened:
                self._rollout = self._rollouts.finish()
            return None
        envs, observations = rows
        return Ready(envs, self._task_of[envs], observations)

    def step_send(self, actions: Any, extras: dict[str, Any] | None = None) -> None:
        """Let the envs step that ``step_recv`` returned last: an action for each of its rows.

        ``extras`` are what the sampler's policy would say beside them.
        """
        if self._rollouts is None:
            raise ValueError("cannot send actions: nothing is sampled; call begin() first")
        self._rollouts.write(actions, extras or {})

    def _prepared(self, max_length: int, params: Any, tasks: Any) -> _TaskRollouts:
        if self._closed:
            raise ClosedError("cannot sample tasks: the sampler is closed")
        max_length = whole_number("sample rollouts", "max_length", max_length, 1)
        if tasks is None and not self.tasks:
            tasks = self.sample_tasks(self.envs.num_envs)
        elif tasks is None and not self._given:
            tasks = self.tasks
        if tasks is not None:
            self._expect_tasks(tasks)
        self._rollout = None  # the last sample is this one, however it ends
        if tasks is not None:
            self._give(tasks)
        rollouts = self._rollouts
        # Over: a signal handler's exception came into their end.
        if (
            rollouts is None
            or rollouts.horizon != max_length
            or rollouts.opened
            or not rollouts.has_envs
        ):
            self._end_rollouts()
            options = {**self._options, "seed": self._next_seed(), "reset_each": True}
            self._rollouts = rollouts = _TaskRollouts(self.envs, self.policy, max_length, **options)
        rollouts.task_of, rollouts.params = self._task_of, params
        return rollouts

    def collect(self) -> Collected:
        """The episodes of the last sample, by task. Their arrays are views: until the next one."""
        rollout = self._rollout
        if rollout is None:
            raise ValueError("cannot collect: nothing has been sampled, or not all of it")
        episodes: list[list[Episode]] = [[] for _ in self.tasks]
        for episode in rollout.episodes():
            version = int(rollout.options[episode.steps.start, episode.env])
            if version != self._version:
                raise PysamplerError(
                    f"cannot collect: env {episode.env} was reset with other options than those of "
                    f"the tasks (version {version}, expected {self._version})"
                )
            episodes[self._task_of[episode.env]].append(episode)
        return Collected(list(self.tasks), episodes)

    def _expect_tasks(self, tasks: Any) -> None:
        count = self.envs.num_envs
        if isinstance(tasks, (str, bytes)) or not isinstance(tasks, (Sequence, np.ndarray)):
            raise TypeError(f"cannot set tasks: {type(tasks).__name__}, expected a list of tasks")
        if len(tasks) == 0 or count % len(tasks):
            raise ValueError(
                f"cannot set tasks: {len(tasks)} of them, expected {count}, one for each env, or "
                "a number that divides it"
            )

    def _give(self, tasks: Sequence[Any]) -> None:
        count = self.envs.num_envs
        tasks, task_of = list(tasks), np.arange(count) // (count // len(tasks))
        self._given = False  # until the envs have these, and it is known here
        version = self.envs.set_options(None, [{"task": tasks[task]} for task in task_of])
        self.tasks, self._task_of, self._version = tasks, task_of, version
        self._given = True

    def _next_seed(self) -> int | list[int | None] | None:
        """Return the seed of the next rollouts: the first is the one that was given."""
        seed, self._begun = self._seed, self._begun + 1
        if self._begun == 1 or seed is None:
            return seed
        return seed_from(restart_entropy(entropy_from(seed), self._begun))

    def _end_rollouts(self) -> None:
        if self._rollouts is not None:
            self._rollouts.close()
            self._rollouts = None

    def close(self) -> None:
        """End what is under way; close the envs if they were made here."""
        self._closed = True
        self._end_rollouts()
        if self._owned and not self.envs.closed:
            self.envs.close()

    def __repr__(self) -> str:
        return f"<pysampler.MultiTaskSampler of {self.envs!r}{', closed' * self._closed}>"


class _TaskRollouts(Rollouts):
    """Rollouts of a policy that is told of tasks; also by hand."""

    task_of: npt.NDArray[np.int64]
    params: Any = None
    opened = False  # by hand, and not finished
    _ready: list[int]  # groups that wait for actions

    def _caller_of(self, policy: Any) -> PolicyCaller:
        return _TaskActor(policy, self._spec, self)

    def open(self) -> None:
        """Begin the next rollout."""
        self._by_hand(self._open)

    def receive(self, deadline: int | None) -> tuple[npt.NDArray[np.int64], Any] | None:
        """Envs that wait for actions, and what they observe; None if the rollout is over."""
        rows: tuple[npt.NDArray[np.int64], Any] | None
        rows = self._by_hand(lambda: self._receive(deadline))
        return rows

    def write(self, actions: Any, extras: dict[str, Any]) -> None:
        """For those envs; and let them step."""
        if not self.opened or not self._ready:
            raise ValueError("cannot send actions: no env waits for any; call step_recv() first")
        walker = self._walker
        assert isinstance(walker, MainWalker)
        at, envs = walker.rows_of(self._ready)
        said = walker.policy.caller.checked((actions, extras), len(self._ids(envs)))
        with self._core.enter("step_send"):
            walker.policy.write(at, envs, *said)
            ready, self._ready = self._ready, []
            self._by_hand(lambda: walker.step(ready))

    def finish(self) -> Rollout:
        """The rollout, once there is no more to receive."""
        self.opened = self._under_way = False
        return self._made()

    def _open(self) -> None:
        if self._walker is None:
            self._begin()
        self._start(0)
        assert isinstance(self._walker, MainWalker)
        self._ready = self._walker.open_by_hand()
        self.opened = True

    def _receive(self, deadline: int | None) -> tuple[npt.NDArray[np.int64], Any] | None:
        walker = self._walker
        if walker is None or not self.opened:
            return None
        assert isinstance(walker, MainWalker)
        with self._core.enter("step_recv"):
            while not self._ready:
                if walker.over:
                    return None
                self._ready = walker.unfinished(walker.receive_some(deadline))
        at, envs = walker.rows_of(self._ready)
        frames = walker.frames
        observations = batch_from(
            frames.spec.observation_tree,
            lambda leaf: frames.observations[leaf][at, envs].copy(),
        )
        return self._ids(envs), observations

    def _ids(self, envs: Rows) -> npt.NDArray[np.int64]:
        return np.arange(self.envs.num_envs)[envs]

    def _by_hand(self, work: Callable[[], Any]) -> Any:
        try:
            return work()
        except BaseException:
            self.opened = False
            self._drop()
            raise


class _TaskActor(PolicyCaller):
    """Tells the policy of tasks and parameters."""

    _positional = ("observations", "tasks", "params")

    def __init__(self, policy: Any, spec: Spec, owner: _TaskRollouts) -> None:
        super().__init__(policy, spec)
        self._owner = weakref.proxy(owner)

    def describe(self, actions: Arrays, extras: Mapping[str, Any], state: Any) -> PolicyOutputs:
        """What it said, as fields."""
        if taken := sorted(_TAKEN & extras.keys()):
            raise ValueError(
                f"cannot act: the policy's {taken[0]!r} is the name of something else in what is "
                "collected; call it otherwise"
            )
        return super().describe(actions, extras, state)

    def _call(self, batch: Any, state: Any, envs: Rows) -> Any:
        """Ask the policy itself."""
        owner = self._owner
        return self._call_with((batch, owner.task_of[envs], owner.params), state, envs)


def _takes_tasks(env: gym.Env[Any, Any]) -> bool:
    try:
        return bool(env.get_wrapper_attr("takes_tasks"))
    except AttributeError:
        return False


def _sample_tasks(
    env: gym.Env[Any, Any], count: int, generator: np.random.Generator
) -> tuple[list[Any], np.random.Generator]:
    """Tasks drawn with a generator of the caller's; the env's own is as it was."""
    inner: Any = env.unwrapped
    own = inner.np_random
    inner.np_random = generator
    try:
        return list(inner.sample_tasks(count)), generator
    finally:
        inner.np_random = own
