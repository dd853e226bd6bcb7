"""TaskStepper: simulates many MuJoCo envs of a task together."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import TYPE_CHECKING, Any

import mujoco
import numpy as np

from pysampler import _core
from pysampler._vector.stepper import Stepper
from pysampler.envs.batch import Generators
from pysampler.envs.mujoco._checks import (
    check_before,
    check_begin,
    check_infos,
    check_observations,
    check_step,
)
from pysampler.envs.mujoco._fields import STATE, STATE_FIELDS, begin, fields_of, read_only
from pysampler.envs.mujoco.task import Simulations, Task

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from pysampler._vector.stepper import Advanced, Begun

    Array = npt.NDArray[Any]

__all__ = ["TaskStepper"]

_COMPONENTS = {name: getattr(mujoco.mjtState, f"mjSTATE_{name.upper()}") for name in STATE_FIELDS}
_NONE: dict[str, Any] = {}


class TaskStepper(Stepper):
    """Simulations of a task.

    Args:
        task: The task.
        count: The number of simulations.
    """

    def __init__(self, task: Task, count: int) -> None:
        self.task = task.for_simulations(count)
        super().__init__(count, task.action_space.shape)
        self._all: Array = np.arange(count, dtype=np.int32)
        # Methods of a task may change its memory, which its reset may leave as it is.
        self.steps_ended = type(task).allocate is Task.allocate
        self._make_simulations()

    def _make_simulations(self) -> None:
        task, model = self.task, _without_contacts(self.task.model)
        [library] = Path(mujoco.__file__).parent.glob("libmujoco.so*")
        self.simulations = _core.Simulations(str(library), model._address, self.count, STATE)
        self.rows = self.simulations.rows()
        data = mujoco.MjData(model)
        self._initial = np.empty(self.rows.shape[1])
        mujoco.mj_getState(model, data, self._initial, STATE)
        self.rows[:] = self._initial
        fields = {name: self._component(data, name) for name in STATE_FIELDS}
        fields_of(data, task.fields)  # raises if a name is wrong
        self.derived = {
            name: self._derived(data, name) for name in task.fields if name not in STATE_FIELDS
        }
        self.fields = {**fields, **self.derived}
        self._seen = read_only(self.fields)
        self._d = Simulations(self._seen)
        self._ctrl = self.fields["ctrl"]
        # Whether the results of the task's methods have been checked.
        self._checked_begin = self._checked_step = False

    def _component(self, data: mujoco.MjData, name: str) -> Array:
        """Return a part of the state as a view of the rows."""
        model, bit = self.task.model, _COMPONENTS[name]
        begin = mujoco.mj_stateSize(model, STATE & (int(bit) - 1))
        view = self.rows[:, begin : begin + mujoco.mj_stateSize(model, int(bit))]
        return (
            view[:, 0] if name == "time" else view.reshape(self.count, *getattr(data, name).shape)
        )

    def _derived(self, data: mujoco.MjData, name: str) -> Array:
        """Return a field that every call copies out of ``mjData``."""
        raw, one = self.simulations.field(name), getattr(data, name)
        if raw is None:
            raise ValueError(
                f"cannot make simulations: field {name!r} is not among those that MuJoCo copies "
                "out of a batch"
            )
        return raw.view(one.dtype).reshape(self.count, *one.shape)

    def _view(self, ids: Array | None) -> Simulations:
        return self._d if ids is None else Simulations(self._seen, ids)

    def advance(self, ids: Array | None, actions: Array, dropped: Array | None) -> Advanced:
        task, d = self.task, self._view(ids)
        before = task.before(d)
        self._ctrl[d.ids] = task.control(actions)
        # The physics of those that a reset follows would be for nothing.
        moving = ids if dropped is None else self._all[~dropped]
        failed = self.simulations.step(moving, task.frame_skip, task.forces)
        d = self._view(ids)  # a new one, if of some simulations: the old one caches fields
        result = task.reward(d, before, actions)
        rewards, infos = result if isinstance(result, tuple) else (result, _NONE)
        terminated = task.terminated(d)
        if isinstance(terminated, np.bool_):  # one for all, as a bool is
            terminated = bool(terminated)
        observations = task.observe(d)
        if not self._checked_step:
            count = self.count if ids is None else len(ids)
            check_before(task, before, self.fields)
            check_step(task, rewards, terminated, infos, count)
            check_observations(task, observations, count)
            self._checked_step = True
        if failed:
            self._blame(moving)
        return observations, rewards, terminated, infos

    def begin(self, ids: Array) -> Begun:
        # Of one simulation, views: copies with an array of ids take three times as long.
        at = slice(int(ids[0]), int(ids[0]) + 1) if len(ids) == 1 else ids
        self.rows[at] = self._initial
        begun = self.task.reset(Generators([self.rngs[i] for i in ids.tolist()]), ids)
        if not self._checked_begin:
            check_begin(self.task, begun, len(ids))
        begin(self.fields, at, begun)
        if self.simulations.begin(ids):
            self._blame(ids)
        d = Simulations(self._seen, at)
        observations, infos = self.task.observe(d), self.task.reset_info(d)
        if not self._checked_begin:
            check_observations(self.task, observations, len(ids))
            check_infos(self.task, "reset_info", infos, len(ids))
            self._checked_begin = True
        return observations, infos

    def observe(self, ids: Array | None) -> Array:
        return self.task.observe(self._view(ids))

    @property
    def kind(self) -> type:
        return type(self.task)

    @property
    def memory(self) -> dict[str, Array]:
        memory = {f"memory_{name}": one for name, one in self.task.memory.items()}
        return {"physics": self.rows, **self.derived, **memory}

    def take_options(self, places: Sequence[int], options: Sequence[Any]) -> None:
        pairs = zip(places, options, strict=True)
        tasks = {place: one["task"] for place, one in pairs if one and "task" in one}
        if tasks:
            self.task.set_tasks(np.array(list(tasks), np.int32), list(tasks.values()))

    def _blame(self, ids: Array | None) -> None:
        """Report an error for each simulation in which MuJoCo failed."""
        for i in self._all if ids is None else ids:
            if text := self.simulations.error(int(i)):
                self.errors.append((int(i), mujoco.FatalError(text)))


def _without_contacts(model: mujoco.MjModel) -> mujoco.MjModel:
    """Return a copy of a model that looks for no contacts, if no two geoms can touch.

    The results are the same. Sorting the bodies of a pendulum took a third of its physics.
    """
    types, affinities = (
        int(np.bitwise_or.reduce(bits, initial=0))
        for bits in (model.geom_contype, model.geom_conaffinity)
    )
    if types & affinities or model.npair or model.nflex:
        return model
    model = copy.copy(model)
    model.opt.disableflags |= mujoco.mjtDisableBit.mjDSBL_CONTACT
    return model
