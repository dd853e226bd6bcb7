"""The base class of MuJoCo envs whose methods compute many simulations, as arrays ``[n, ...]``."""

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
    """A task's view of some simulations: fields of ``mjData`` as arrays ``[n, ...]``.

    Fields have their names in ``mjData``: ``d.time``, ``d.qpos``, ``d.qvel``, ``d.act``,
    ``d.ctrl``, ``d.mocap_pos``, ``d.mocap_quat``, and those in ``Task.fields``. They are read-only,
    and the next step overwrites them: copy values that you keep.

    Args:
        fields: The arrays of all simulations.
        ids: The indices of the simulations in view; None for all.

    Attributes:
        ids: Selects them from an array of all simulations: ``self.goals[d.ids]``.
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

    def __getattr__(self, name: str) -> Array:  # for the first read of a field
        if name.startswith("_") or name not in self._fields:
            known = ", ".join(sorted(self._fields))
            raise AttributeError(f"no field {name!r}, expected one of Task.fields or {known}")
        array = self._fields[name][self.ids]
        self.__dict__[name] = array
        return array

    def __len__(self) -> int:
        return len(self.qpos)


class Task:
    """A MuJoCo env: its model, observations, rewards and terminations.

    A subclass defines ``observe``, ``reward`` and ``reset``, and overrides others as needed. All
    methods handle many simulations at once: arrays have a row for each. ``pysampler.make_vec``
    makes a vector env of a task, and ``TaskEnv`` a single ordinary env.

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
        model: The model of all simulations.
        frame_skip: The number of MuJoCo's steps in a step of the env.

    Attributes:
        fields: Further fields of ``mjData`` that the methods read: ``("xpos",)``.
        forces: Whether ``cfrc_ext``, ``cfrc_int`` and ``cacc`` are computed after each step.
        max_episode_steps: Truncate episodes after this many steps; None for no limit.
        dt: The simulated seconds of a step.
        init_qpos: The positions of the model, which resets may start from.
        init_qvel: The velocities of the model.
        action_space: The range of the actuators, float32.
        count: The number of simulations.
    """

    fields: Sequence[str] = ()
    forces: bool = False
    # Attributes in which an ordinary env keeps state of its episode: see ``write_to``.
    attributes: Sequence[str] = ()
    _remembered: Sequence[str] = ()  # the names of the arrays that allocate() has set
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
        """Return a copy for this many simulations, with separate memory."""
        task, other = copy.copy(self), copy.copy(self)
        task.count, other.count = count, count + 1
        task.allocate()
        other.allocate()  # the arrays whose length differs have a row for each simulation
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
        """Set attributes, the memory, to arrays with a row for each of ``count`` simulations."""

    @property
    def memory(self) -> dict[str, Array]:
        """The arrays that ``allocate`` has set, by name; states of simulations include them."""
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
        """Return the values before a step that ``reward`` needs, as copies."""
        return None

    def reward(
        self, d: Simulations, before: Any, action: Array
    ) -> Array | tuple[Array, dict[str, Array]]:
        """Return the rewards of a step, or rewards and a dict of infos, each an array.

        Args:
            d: The simulations after the step.
            before: The result of ``before``.
            action: The actions, in the dtype of the caller.
        """
        raise NotImplementedError(self._missing("reward(d, before, action)"))

    def control(self, action: Array) -> Array:
        """Return the controls for actions, a row each; by default the actions themselves."""
        return action

    def terminated(self, d: Simulations) -> Array | bool:  # noqa: ARG002 - never by default
        """Return which simulations have terminated; called after ``reward``."""
        return False

    def reset(
        self, rngs: Sequence[np.random.Generator], ids: Array
    ) -> tuple[Array, Array] | dict[str, Array]:
        """Return the initial positions and velocities of episodes.

        Or a dict of some of ``qpos``, ``qvel``, ``act``, ``ctrl``, ``mocap_pos`` and
        ``mocap_quat``. Missing fields begin as in the model.

        Args:
            rngs: The random generator of each simulation to reset.
            ids: The indices of these simulations.
        """
        raise NotImplementedError(self._missing("reset(rngs, ids)"))

    def reset_info(self, d: Simulations) -> dict[str, Array]:  # noqa: ARG002 - none by default
        """Return the infos of a reset, each an array."""
        return {}

    def set_tasks(self, ids: Array, tasks: Sequence[Any]) -> None:
        """Set the tasks of simulations from their next reset on: ``options={"task": ...}``."""

    def sample_tasks(self, count: int, rng: np.random.Generator) -> list[Any]:
        """Return tasks drawn with ``rng``, for ``MultiTaskSampler.sample_tasks``."""
        raise NotImplementedError(self._missing("sample_tasks(count, rng)"))

    def _missing(self, method: str) -> str:
        return f"{type(self).__name__} has no method {method}"

    # For calls of single envs: one ordinary env answers them, with the state of a simulation.

    def write_to(self, env: Any, i: int) -> None:
        """Copy the memory of simulation ``i`` to an env."""
        for name, every in self.memory.items():
            env.task.memory[name][0] = every[i]

    def read_from(self, env: Any, i: int) -> None:
        """Copy the memory of an env to simulation ``i``."""
        for name, every in self.memory.items():
            every[i] = env.task.memory[name][0]


def draw(rngs: Sequence[np.random.Generator], of: Any) -> Array:
    """Call a function with each generator, and return its results as the rows of an array."""
    return np.array([of(rng) for rng in rngs])
