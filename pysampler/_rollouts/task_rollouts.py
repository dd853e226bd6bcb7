"""Rollouts of a policy that takes tasks, run as a whole or one batch of envs at a time."""

from __future__ import annotations

import copy
import weakref
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np

from pysampler._policies.calling import PolicyCaller
from pysampler._policies.signatures import takes_by_name
from pysampler._policies.trees import batch_from, mapped
from pysampler._rollouts.collected import RESERVED
from pysampler._rollouts.ready_runner import ReadyRunner
from pysampler._rollouts.rollouts import Rollouts
from pysampler._vector import arguments

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import numpy.typing as npt

    from pysampler._frames.spec import Spec
    from pysampler._policies.calling import Arrays, Outputs, PolicyOutputs, Rows
    from pysampler._rollouts.rollout import Rollout
    from pysampler._rollouts.runner import RunnerSetup
    from pysampler._vector.tuner import BatchTuner

__all__ = ["TaskRollouts"]

_T = TypeVar("_T")


class Received(NamedTuple):
    """The last results of the envs that wait for actions, a row for each."""

    envs: npt.NDArray[np.int64]
    observations: Any
    rewards: npt.NDArray[np.float64]
    terminated: npt.NDArray[np.bool_]
    truncated: npt.NDArray[np.bool_]
    infos: dict[str, Any]


class TaskRollouts(Rollouts):
    """Rollouts for a ``MultiTaskSampler``; ``reset_each`` must be set.

    Instead of ``next``, a caller may step a rollout: ``open``, then ``receive`` and ``write`` until
    ``receive`` returns None, then ``finish``.

    Attributes:
        task_of: The index of each env's task.
        params: The policy's ``params``.
        opened: Whether a caller is stepping a rollout.
    """

    _vector_rewards = False

    task_of: npt.NDArray[np.int64]
    params: Any = None
    opened = False
    earlier_tuner: BatchTuner | None = None  # of rollouts of another length, of the same sampler
    _runner: ReadyRunner | None  # with reset_each the policy acts for each env once it is ready
    _waiting: npt.NDArray[np.bool_]  # whether each env waits for actions

    @property
    def device(self) -> Any:
        """The torch device of the policy; None for a policy of arrays."""
        return self._options.device

    def _make_caller(self, policy: Any) -> PolicyCaller:
        return _TaskCaller(policy, self._spec, self)

    def _make_runner(self, setup: RunnerSetup) -> ReadyRunner:
        return ReadyRunner(setup, self.earlier_tuner)

    @property
    def tuner(self) -> BatchTuner | None:
        """The tuner of the options that are "auto"; None if there is none yet."""
        return self.earlier_tuner if self._runner is None else self._runner.tuner

    def open(self) -> None:
        """Begin the next rollout."""
        self._expect_free_slot()
        self._or_drop(self._open)

    def receive(self, timeout: int | None) -> Received | None:
        """Return the results of envs that wait for actions; None if the rollout is over."""
        return self._or_drop(lambda: self._receive(timeout))

    def write(self, actions: Any, extras: dict[str, Any], envs: Any = None) -> None:
        """Write actions and extras for envs that wait for actions, and step those envs.

        Args:
            actions: An action for each env.
            extras: The extras that the policy would return; NaN for floats that are left out.
            envs: The indices of waiting envs; None: all that wait.
        """
        runner = self._runner
        if runner is None or not self.opened or not self._waiting.any():
            raise ValueError("cannot send actions: no env waits for any; call step_recv() first")
        waiting = np.flatnonzero(self._waiting)
        chosen = waiting if envs is None else arguments.env_ids(envs)
        if wrong := set(chosen.tolist()) - set(waiting.tolist()):
            raise ValueError(f"cannot send actions: env {min(wrong)} does not wait for one")
        if len(np.unique(chosen)) != len(chosen):
            raise ValueError("cannot send actions: two actions for the same env")
        outputs = runner.policy.caller.checked((actions, extras), len(chosen))
        for name, column in runner.policy.extras.items():
            if column.dtype.kind == "f":
                missing = np.full((len(chosen), *column.shape[2:]), np.nan, column.dtype)
                outputs[1].setdefault(name, missing)
            elif name not in outputs[1]:
                raise ValueError(
                    f"cannot send actions: extras have no {name!r}, which the sampler's policy "
                    f"returns; expected it for each env, since {column.dtype} has no NaN"
                )
        with self._core.enter("step_send"):
            runner.policy.write(runner.frames_of(chosen), chosen, *outputs)
            self._waiting[chosen] = False
            answered = np.zeros_like(self._waiting)
            answered[chosen] = True
            done = [
                number
                for number, rows in enumerate(runner.rows)
                if answered[rows].any() and not self._waiting[rows].any()
            ]
            if done:
                self._or_drop(lambda: runner.step(done))

    def finish(self) -> Rollout:
        """Return the rollout. Call this once ``receive`` has returned None."""
        assert self._runner is not None
        self.opened = self._started = False
        return self._build(self._runner)

    def _open(self) -> None:
        self._prepared_runner()
        assert self._runner is not None
        self._start(self._runner, 0)
        self._waiting = np.zeros(self._runner.frames.envs, bool)
        self._add_waiting(self._runner.open())
        self.opened = True

    def _add_waiting(self, groups: list[int]) -> None:
        for group in groups:
            self._waiting[[*self._core.groups[group]]] = True

    def _receive(self, timeout: int | None) -> Received | None:
        runner = self._runner
        if runner is None or not self.opened:
            return None
        with self._core.enter("step_recv"):
            while not self._waiting.any() or runner.at_work:
                if runner.finished:
                    return None
                waiting = int(self._waiting.sum())
                self._add_waiting(runner.unfinished(runner.receive(timeout, waiting)))
                if self._waiting.any():
                    break
        envs = np.flatnonzero(self._waiting)
        at, frames = runner.frames_of(envs), runner.frames
        observations = batch_from(
            self._spec.observation_tree, lambda leaf: frames.observations[leaf][at, envs]
        )
        rows, keys = [*zip(at.tolist(), envs.tolist(), strict=True)], self._options.info_keys
        infos = self._core.results.infos_of(rows, keys, runner.mailed_infos) if keys else {}
        stepped = runner.lengths[envs] > 0  # others have only been reset
        return Received(
            envs,
            observations,
            np.where(stepped, runner.policy.rewards[at, envs], 0.0),
            stepped & frames.terminated[at, envs],
            stepped & frames.truncated[at, envs],
            infos,
        )

    def _or_drop(self, work: Callable[[], _T]) -> _T:
        """Call ``work``; drop the rollout if it raises."""
        try:
            return work()
        except BaseException:
            self.opened = False
            self._drop()
            raise


class _TaskCaller(PolicyCaller):
    """Calls a policy with observations, the index of each row's task, and parameters.

    A policy that takes ``params`` but no tasks is called with observations and ``params=...``. If
    ``params`` is a list with an item for each task, it is called once per task.
    """

    _positional: tuple[str, ...] = ("observations", "tasks", "params")

    def __init__(self, policy: Any, spec: Spec, rollouts: TaskRollouts) -> None:
        self._by_name = takes_by_name(policy, "params", 2)
        if self._by_name:
            self._positional = ("observations",)
        known = ("params",) if self._by_name else ()
        super().__init__(policy, spec, known=known, device=rollouts.device)
        self._rollouts = weakref.proxy(rollouts)
        self._params: Any = None  # of the current call

    def __call__(
        self, observations: Arrays, state: Any, envs: Rows, previous: Arrays | None = None
    ) -> Outputs:
        """Return actions, extras and new state for observations of these envs."""
        rollouts = self._rollouts
        self._params = params = rollouts.params
        if not self._by_name or not isinstance(params, (list, tuple)):
            return super().__call__(observations, state, envs, previous)
        count = int(rollouts.task_of.max()) + 1
        if len(params) != count:
            raise ValueError(f"cannot act: params for {len(params)} tasks, expected {count}")
        ids = np.arange(len(rollouts.task_of))[envs]
        parts = []
        for task in np.unique(rollouts.task_of[ids]):
            rows = np.flatnonzero(rollouts.task_of[ids] == task)
            self._params = params[task]
            own = None if state is None else mapped(lambda part, rows=rows: part[rows], state)
            before = None if previous is None else [one[rows] for one in previous]
            outputs = super().__call__([one[rows] for one in observations], own, ids[rows], before)
            parts.append((rows, copy.deepcopy(outputs)))  # the next call may reuse them
        return _joined(parts)

    def on_arrays(self) -> None:
        """Return None: the policy has further arguments."""

    def describe(self, actions: Arrays, extras: Mapping[str, Any], state: Any) -> PolicyOutputs:
        """Return the fields of the policy's outputs; ValueError if an extra has a reserved name."""
        if taken := sorted(RESERVED & extras.keys()):
            raise ValueError(
                f"cannot act: the policy's extra {taken[0]!r} has the name of a field of collected "
                "episodes; rename it"
            )
        return super().describe(actions, extras, state)

    def _call(self, batch: Any, state: Any, envs: Rows, named: dict[str, Any]) -> Any:
        if self._by_name:
            return self._call_with((batch,), state, envs, params=self._params, **named)
        positional = batch, self._rollouts.task_of[envs], self._params
        return self._call_with(positional, state, envs, **named)


def _joined(parts: Sequence[tuple[npt.NDArray[np.int64], Outputs]]) -> Outputs:
    """Join the outputs of calls for different rows, in the order of rows."""
    order = np.argsort(np.concatenate([rows for rows, _ in parts]))
    outputs = [output for _, output in parts]

    def join(*arrays: Any) -> Any:
        return np.concatenate(arrays)[order]

    names = [sorted(one[1]) for one in outputs]
    if any(one != names[0] for one in names):
        raise ValueError(
            f"cannot act: the policy returned extras {names} for different tasks, expected the "
            "same for all"
        )
    actions = [join(*leaves) for leaves in zip(*(one[0] for one in outputs), strict=True)]
    extras = mapped(join, *(one[1] for one in outputs))
    state = None if outputs[0][2] is None else mapped(join, *(one[2] for one in outputs))
    return actions, extras, state
