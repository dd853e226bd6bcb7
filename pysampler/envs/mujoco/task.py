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

    from pysampler.envs.batch import Generators

    Array = npt.NDArray[Any]

__all__ = ["Simulations", "Task", "draw"]


class Simulations:
    """The argument ``d`` of a task's methods: fields of ``mjData`` as arrays ``[n, ...]``.

    Fields have their names in ``mjData``: ``d.time``, ``d.qpos``, ``d.qvel``, ``d.act``,
    ``d.ctrl``, ``d.mocap_pos``, ``d.mocap_quat``, and those in ``Task.fields``. They are read-only,
    and the next step overwrites them: copy values that you keep.

    Args:
        fields: The arrays of all simulations.
        ids: The indices of the simulations to show; None: all.

    Attributes:
        ids: The index of these simulations in arrays of all simulations, as in
            ``self.goals[d.ids]``.
    """

    ids: Any

    def __init__(
        self, fields: Mapping[str, Array], ids: npt.NDArray[np.int32] | slice | None = None
    ) -> None:
        self._fields = fields
        if ids is None:
            self.ids = slice(None)
            self.__dict__.update(fields)
        else:
            self.ids = ids

    def __getattr__(self, name: str) -> Array:  # for the first read of a field
        if name.startswith("_"):  # there are no fields yet where a copy is being made
            raise AttributeError(name)
        if name not in self._fields:
            known = ", ".join(sorted(self._fields))
            raise AttributeError(f"no field {name!r}, expected one of Task.fields or {known}")
        array = self._fields[name][self.ids]
        self.__dict__[name] = array
        return array

    def __len__(self) -> int:
        return len(self.qpos)


class Task:
    """Base class for MuJoCo envs whose simulations a worker steps together.

    In a subclass, define ``observe``, ``reward`` and ``reset``, and override other methods as
    needed. All methods handle many simulations at once: arrays have a row for each. Pass the class
    to :func:`pysampler.make_vec` for a vector env, or to :func:`make_env` for a single ordinary
    env.

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
    ...         return rngs.uniform(-0.1, 0.1, 1), np.zeros((len(ids), 1))
    >>> import pysampler
    >>> envs = pysampler.make_vec(Balance, num_envs=3, num_workers=1)
    >>> observations, infos = envs.reset(seed=1)
    >>> observations.shape
    (3, 2)
    >>> envs.close()

    Args:
        model: The ``MjModel`` of all simulations.
        frame_skip: The number of MuJoCo steps per step of the env.

    Attributes:
        fields: Names of further fields of ``mjData`` that the methods read: ``("xpos",)``.
        forces: Set True to compute ``cfrc_ext``, ``cfrc_int`` and ``cacc`` after each step, if the
            methods read them.
        max_episode_steps: Truncate episodes after this many steps; None: no limit.
        dt: The simulated seconds per step of the env.
        init_qpos: The initial positions of the model, for ``reset`` to start from.
        init_qvel: The initial velocities of the model.
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
        """Make arrays with a row for each of ``count`` simulations, if the task has own state.

        Override it and set attributes: ``self.goals = np.zeros((self.count, 2))``. States of
        simulations then include these arrays.
        """

    @property
    def memory(self) -> dict[str, Array]:
        """The arrays that ``allocate`` made, by name."""
        return {name: getattr(self, name) for name in self._remembered}

    @property
    def observation_space(self) -> spaces.Box:
        """The space of one observation: unbounded, with the shape and dtype of ``observe``."""
        data = mujoco.MjData(self.model)
        mujoco.mj_forward(self.model, data)
        row = self.for_simulations(1).observe(Simulations(fields_of(data, self.fields)))[0]
        return spaces.Box(-np.inf, np.inf, row.shape, row.dtype)

    def observe(self, d: Simulations) -> Array:
        """Return an observation of each simulation. Called after ``reward`` and ``terminated``."""
        raise NotImplementedError(self._missing("observe(d)"))

    def before(self, d: Simulations) -> Any:  # noqa: ARG002 - nothing by default
        """Return copies of the values before a step that ``reward`` needs, such as positions."""
        return None

    def reward(
        self, d: Simulations, before: Any, action: Array
    ) -> Array | tuple[Array, dict[str, Array]]:
        """Return the rewards of a step, or rewards and a dict of infos.

        Args:
            d: The simulations after the step.
            before: The result of the method ``before``.
            action: The actions, in the dtype that the caller passed.

        Returns:
            Arrays with a row for each simulation.
        """
        raise NotImplementedError(self._missing("reward(d, before, action)"))

    def control(self, action: Array) -> Array:
        """Return the controls of the actuators for actions; by default the actions themselves."""
        return action

    def terminated(self, d: Simulations) -> Array | bool:  # noqa: ARG002 - never by default
        """Return whether each simulation has terminated, by default none. ``reward`` ran before."""
        return False

    def reset(self, rngs: Generators, ids: Array) -> tuple[Array, Array] | dict[str, Array]:
        """Return the initial states of episodes.

        Args:
            rngs: The random generator of each simulation to reset: a list, whose methods
                ``uniform`` and ``standard_normal`` draw from all of them.
            ids: The indices of these simulations.

        Returns:
            Positions and velocities, with a row for each of these simulations. Or a dict of some of
            ``qpos``, ``qvel``, ``act``, ``ctrl``, ``mocap_pos`` and ``mocap_quat``; the others
            begin as in the model.
        """
        raise NotImplementedError(self._missing("reset(rngs, ids)"))

    def reset_info(self, d: Simulations) -> dict[str, Array]:  # noqa: ARG002 - none by default
        """Return a dict of the infos of a reset, each an array with a row for each simulation."""
        return {}

    def set_tasks(self, ids: Array, tasks: Sequence[Any]) -> None:
        """Set the tasks of the simulations ``ids``, from ``options={"task": task}`` of a reset.

        Override it if the env has tasks. It is called before ``reset``.
        """

    def sample_tasks(self, count: int, rng: np.random.Generator) -> list[Any]:
        """Return ``count`` tasks drawn with ``rng``. Override it for ``MultiTaskSampler``."""
        raise NotImplementedError(self._missing("sample_tasks(count, rng)"))

    def _missing(self, method: str) -> str:
        return f"{type(self).__name__} has no method {method}"

    # For calls of single envs: one ordinary env answers them, with the state of a simulation.

    def write_to(self, env: Any, i: int) -> None:
        """Copy the memory of simulation ``i`` to a single env."""
        for name, every in self.memory.items():
            env.task.memory[name][0] = every[i]

    def read_from(self, env: Any, i: int) -> None:
        """Copy the memory of a single env to simulation ``i``."""
        for name, every in self.memory.items():
            every[i] = env.task.memory[name][0]


def draw(rngs: Sequence[np.random.Generator], of: Any) -> Array:
    """Call ``of(rng)`` for each generator, and return the results as rows of an array.

    Use it in ``Task.reset``: ``draw(rngs, lambda rng: rng.integers(4, size=3))``. For uniform and
    normal numbers ``rngs.uniform(-0.1, 0.1, 3)`` and ``rngs.standard_normal(3)`` are faster.
    """
    return np.array([of(rng) for rng in rngs])
