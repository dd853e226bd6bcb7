"""Rollouts of a policy that is called with tasks, as a whole or one batch of envs at a time."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any, TypeVar

from pysampler._policies.calling import PolicyCaller
from pysampler._policies.trees import batch_from
from pysampler._rollouts.collected import RESERVED
from pysampler._rollouts.ready_walker import ReadyWalker
from pysampler._rollouts.rollouts import Rollouts

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import numpy as np
    import numpy.typing as npt

    from pysampler._frames.spec import Spec
    from pysampler._policies.calling import Arrays, PolicyOutputs, Rows
    from pysampler._rollouts.rollout import Rollout
    from pysampler._rollouts.walker import WalkerSetup

__all__ = ["TaskRollouts"]

_T = TypeVar("_T")


class TaskRollouts(Rollouts):
    """Rollouts for a ``MultiTaskSampler``; ``reset_each`` must be set.

    Besides ``next``, a caller may step a rollout: ``open``, then ``receive`` and ``write`` until
    ``receive`` returns None, then ``finish``.

    Attributes:
        task_of: The index of each env's task.
        params: What the policy is called with beside observations and tasks.
        opened: Whether a caller is stepping a rollout.
    """

    task_of: npt.NDArray[np.int64]
    params: Any = None
    opened = False
    _walker: ReadyWalker | None  # with reset_each each env is acted for once it is ready
    _ready: list[int]  # groups that wait for actions

    def _make_caller(self, policy: Any) -> PolicyCaller:
        return _TaskCaller(policy, self._spec, self)

    def _make_walker(self, setup: WalkerSetup) -> ReadyWalker:
        return ReadyWalker(setup)

    def open(self) -> None:
        """Begin the next rollout."""
        self._or_drop(self._open)

    def receive(self, deadline: int | None) -> tuple[npt.NDArray[np.int64], Any] | None:
        """Return envs that wait for actions and their observations; None if the rollout is over."""
        return self._or_drop(lambda: self._receive(deadline))

    def write(self, actions: Any, extras: dict[str, Any]) -> None:
        """Write actions and extras for the envs that ``receive`` returned, and step those envs."""
        walker = self._walker
        if walker is None or not self.opened or not self._ready:
            raise ValueError("cannot send actions: no env waits for any; call step_recv() first")
        at, envs = walker.rows_of(self._ready)
        outputs = walker.policy.caller.checked((actions, extras), len(self._core.everyone[envs]))
        with self._core.enter("step_send"):
            walker.policy.write(at, envs, *outputs)
            ready, self._ready = self._ready, []
            self._or_drop(lambda: walker.step(ready))

    def finish(self) -> Rollout:
        """Return the rollout, once ``receive`` has returned None."""
        assert self._walker is not None
        self.opened = self._started = False
        return self._build(self._walker)

    def _open(self) -> None:
        if self._walker is None:
            self._prepare()
        assert self._walker is not None
        self._start(self._walker, 0)
        self._ready = self._walker.open()
        self.opened = True

    def _receive(self, deadline: int | None) -> tuple[npt.NDArray[np.int64], Any] | None:
        walker = self._walker
        if walker is None or not self.opened:
            return None
        with self._core.enter("step_recv"):
            while not self._ready:
                if walker.finished:
                    return None
                self._ready = walker.unfinished(walker.receive(deadline))
        at, envs = walker.rows_of(self._ready)
        frames = walker.frames
        observations = batch_from(
            self._spec.observation_tree,
            lambda leaf: frames.observations[leaf][at, envs].copy(),
        )
        return self._core.everyone[envs].copy(), observations

    def _or_drop(self, work: Callable[[], _T]) -> _T:
        """Call ``work``; drop the rollout if that raises."""
        try:
            return work()
        except BaseException:
            self.opened = False
            self._drop()
            raise


class _TaskCaller(PolicyCaller):
    """Calls a policy with observations, the index of each row's task, and parameters."""

    _positional = ("observations", "tasks", "params")

    def __init__(self, policy: Any, spec: Spec, rollouts: TaskRollouts) -> None:
        super().__init__(policy, spec)
        self._rollouts = weakref.proxy(rollouts)

    def describe(self, actions: Arrays, extras: Mapping[str, Any], state: Any) -> PolicyOutputs:
        """Return the fields of what the policy returned; ValueError if it took a reserved name."""
        if taken := sorted(RESERVED & extras.keys()):
            raise ValueError(
                f"cannot act: the policy's {taken[0]!r} is the name of something else in what is "
                "collected; call it otherwise"
            )
        return super().describe(actions, extras, state)

    def _call(self, batch: Any, state: Any, envs: Rows) -> Any:
        rollouts = self._rollouts
        return self._call_with((batch, rollouts.task_of[envs], rollouts.params), state, envs)
