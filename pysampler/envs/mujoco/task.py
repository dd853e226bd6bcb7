"""A MuJoCo env written once for many simulations, in NumPy over ``[n, ...]``."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any, ClassVar

import mujoco
import numpy as np
from gymnasium import spaces

from pysampler.envs.mujoco._fields import fields_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Self

    import numpy.typing as npt

    Array = npt.NDArray[Any]

__all__ = ["Simulations", "Task", "draw"]


class Simulations:
    """Some simulations as a task sees them: fields of ``mjData`` as arrays ``[n, ...]``.

    Each field has the name that it has in ``mjData``: ``d.time``, ``d.qpos``, ``d.qvel``,
    ``d.act``, ``d.ctrl``, ``d.mocap_pos``, ``d.mocap_quat``, and those in ``Task.fields``. They
    cannot be written to, and the next step overwrites them: copy what is to be kept.

    Args:
        fields: The arrays, of all simulations.
        ids: The indices of those that are seen; None for all.

    Attributes:
        ids: What selects them from an array of all: ``self.goals[d.ids]``.
    """

    ids: Any

    def __init__(
        self, fields: Mapping[str, Array], ids: npt.NDArray[np.int32] | None = None
    ) -> None:
        self._fields = fields
        if ids is None:
            self.ids = slice(None)
            self.__dict__.update(fields)
        else:
            self.ids = ids

    def __getattr__(self, name: str) -> Array:  # of a field, when it is first read
        if name.startswith("_") or name not in self._fields:
            known = ", ".join(sorted(self._fields))
            raise AttributeError(f"no field {name!r}, expected one in Task.fields, or of {known}")
        array = self._fields[name][self.ids]
        self.__dict__[name] = array
        return array

    def __len__(self) -> int:
        return len(self.qpos)


class Task:
    """A MuJoCo env: its model, what it observes, its rewards and its ends.

    A subclass defines ``observe``, ``reward`` and ``reset``, and what else it needs. All its
    methods are for many simulations at once: arrays have a row for each. ``pysampler.make_vec``
    makes a vector env of it, and ``TaskEnv`` one ordinary env.

    >>> class Balance(Task):
    ...     def __init__(self):
    ...         pole = '''<mujoco><option timestep="0.02"/><worldbody><body>
    ...             <joint name="hinge" axis="0 1 0"/><geom size="0.1" pos="0 0 0.5"/>
    ...         </body></worldbody><actuator><motor joint="hinge" ctrlrange="-1 1"/></actuator>
    ...         </mujoco>'''
    ...         super().__init__(mujoco.MjModel.from_xml_string(pole))
    ...
    ...     def observe(self, d):
    ...         return np.concatenate((d.qpos, d.qvel), axis=1)
    ...
    ...     def reward(self, d, before, action):
    ...         return np.cos(d.qpos[:, 0])
    ...
    ...     def terminated(self, d):
    ...         return np.abs(d.qpos[:, 0]) > 1.0
    ...
    ...     def reset(self, rngs, ids):
    ...         return draw(rngs, lambda rng: rng.uniform(-0.1, 0.1, 1)), np.zeros((len(ids), 1))
    >>> import pysampler
    >>> envs = pysampler.make_vec(Balance, num_envs=3, vector_kwargs={"num_workers": 1})
    >>> observations, infos = envs.reset(seed=1)
    >>> observations.shape
    (3, 2)
    >>> envs.close()

    Args:
        model: The model, of which all simulations are.
        frame_skip: How many steps of MuJoCo's a step is.

    Attributes:
        fields: Further fields of ``mjData`` that the methods read: ``("xpos",)``.
        forces: Whether ``cfrc_ext``, ``cfrc_int`` and ``cacc`` are computed after each step.
        max_episode_steps: After how many steps an episode is truncated; None for no limit.
        dt: How many seconds of the simulation a step is.
        init_qpos: The positions of the model, which resets may begin from.
        init_qvel: The velocities of the model.
        action_space: The range of the actuators, float32.
        count: How many simulations there are.
    """

    fields: Sequence[str] = ()
    forces: bool = False
    # What an env has of its episode in attributes of its own: see ``write_to``.
    attributes: Sequence[str] = ()
    _remembered: Sequence[str] = ()  # the names of what allocate() has set
    max_episode_steps: int | None = None
    metadata: ClassVar[dict[str, Any]] = {"render_modes": ["rgb_array"]}

    def __init__(self, model: mujoco.MjModel, frame_skip: int = 1) -> None:
        self.model = model
        self.frame_skip = frame_skip
        self.dt = model.opt.timestep * frame_skip
        data = mujoco.MjData(model)
        self.init_qpos = data.qpos.copy()
        self.init_qvel = data.qvel.copy()
        low, high = model.actuator_ctrlrange.astype(np.float32).T
        self.action_space = spaces.Box(low, high, dtype=np.float32)
        self.count = 0

    def for_simulations(self, count: int) -> Self:
        """Return a copy for that many simulations, which has memory of its own."""
        task, other = copy.copy(self), copy.copy(self)
        task.count, other.count = count, count + 1
        task.allocate()
        other.allocate()  # tells which arrays have a row for each
        task._remembered = [
            name
            for name, value in vars(task).items()
            if isinstance(value, np.ndarray)
            and value is not vars(self).get(name)
            and (np.shape(value)[:1], np.shape(getattr(other, name))[:1])
            == ((count,), (count + 1,))
        ]
        return task

    def allocate(self) -> None:
        """Set arrays, with a row for each of ``count`` simulations, of what these remember."""

    @property
    def memory(self) -> dict[str, Array]:
        """The arrays that ``allocate`` has set, by name: they belong to the states."""
        return {name: getattr(self, name) for name in self._remembered}

    @property
    def observation_space(self) -> spaces.Box:
        """The space of a row of ``observe``."""
        data = mujoco.MjData(self.model)
        mujoco.mj_forward(self.model, data)
        row = self.for_simulations(1).observe(Simulations(fields_of(data, self.fields)))[0]
        return spaces.Box(-np.inf, np.inf, row.shape, row.dtype)

    def observe(self, d: Simulations) -> Array:
        """Return an observation of each simulation; called after ``reward`` and ``terminated``."""
        raise NotImplementedError(self._missing("observe(d)"))

    def before(self, d: Simulations) -> Any:  # noqa: ARG002 - nothing by default
        """Return what ``reward`` needs of the moment before a step: copies."""
        return None

    def reward(
        self, d: Simulations, before: Any, action: Array
    ) -> Array | tuple[Array, dict[str, Array]]:
        """Return the rewards of a step; or these and the infos, each an array.

        Args:
            d: The simulations after the step.
            before: What ``before`` returned.
            action: The actions, with the dtype that they were given with.
        """
        raise NotImplementedError(self._missing("reward(d, before, action)"))

    def control(self, action: Array) -> Array:
        """Return the controls of actions, a row each; by default they are the actions."""
        return action

    def terminated(self, d: Simulations) -> Array | bool:  # noqa: ARG002 - never by default
        """Return which simulations have terminated; called after ``reward``."""
        return False

    def reset(
        self, rngs: Sequence[np.random.Generator], ids: Array
    ) -> tuple[Array, Array] | dict[str, Array]:
        """Return the positions and velocities that episodes begin with.

        Or a dict of these and others: of ``qpos``, ``qvel``, ``act``, ``ctrl``, ``mocap_pos``,
        ``mocap_quat``. What is not in it begins as in the model.

        Args:
            rngs: The random generator of each simulation that is reset.
            ids: Their indices.
        """
        raise NotImplementedError(self._missing("reset(rngs, ids)"))

    def reset_info(self, d: Simulations) -> dict[str, Array]:  # noqa: ARG002 - none by default
        """Return the infos of a reset, each an array."""
        return {}

    def set_tasks(self, ids: Array, tasks: Sequence[Any]) -> None:
        """Set what simulations are to do from their next reset on: ``options={"task": ...}``."""

    def sample_tasks(self, count: int, rng: np.random.Generator) -> list[Any]:
        """Return tasks drawn with ``rng``, for ``MultiTaskSampler.sample_tasks``."""
        raise NotImplementedError(self._missing("sample_tasks(count, rng)"))

    def _missing(self, method: str) -> str:
        return f"{type(self).__name__} has no method {method}"

    # For calls of single envs, which one real env answers with the state of a simulation.

    def write_to(self, env: Any, i: int) -> None:
        """Give an env what simulation ``i`` remembers."""
        for name, every in self.memory.items():
            env.task.memory[name][0] = every[i]

    def read_from(self, env: Any, i: int) -> None:
        """Let simulation ``i`` remember what an env does."""
        for name, every in self.memory.items():
            every[i] = env.task.memory[name][0]


def draw(rngs: Sequence[np.random.Generator], of: Any) -> Array:
    """Return what a function draws from each generator, a row each."""
    return np.array([of(rng) for rng in rngs])
