"""The MuJoCo envs of ``envs.meta`` as batched tasks: each simulation has its own goal."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from pysampler.envs.mujoco._gymnasium import GymnasiumTask, dot
from pysampler.envs.mujoco.ant import Ant
from pysampler.envs.mujoco.half_cheetah import HalfCheetah

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Self

    import numpy.typing as npt

    from pysampler.envs.mujoco.task import Simulations

    Array = npt.NDArray[Any]

__all__ = ["AntDir", "AntVel", "HalfCheetahDir", "HalfCheetahVel"]


class _OneNumber(GymnasiumTask):
    """Tasks of one number: ``{name: number}``.

    Attributes:
        wanted: The number of each simulation.
        given: Whether the number was set as a task, and is not the initial one.
    """

    name: str
    initial: float

    @classmethod
    def of(cls, env: Any) -> Self:
        """Return the task of an env, with the env's number as the initial one."""
        task = super().of(env)
        task.initial = getattr(env, cls.name)
        return task

    def allocate(self) -> None:
        """Give each simulation a number."""
        self.wanted = np.full(self.count, self.initial)
        self.given = np.zeros(self.count, bool)

    def set_tasks(self, ids: Array, tasks: Sequence[Any]) -> None:
        """Set the numbers: ``{name: number}`` for each."""
        self.wanted[ids] = [self._number(task) for task in tasks]
        self.given[ids] = True

    def _number(self, task: Any) -> float:
        if not isinstance(task, dict) or set(task) != {self.name}:
            raise ValueError(
                f"cannot set task of {type(self).__name__}: {task!r}, "
                f"expected {{{self.name!r}: ...}}"
            )
        return float(task[self.name])

    @property
    def attributes(self) -> Sequence[str]:  # type: ignore[override]
        """The number, and the task that set it."""
        return self.name, "task"

    def write_to(self, env: Any, i: int) -> None:
        """Set the number and the task of gymnasium's env."""
        setattr(env, self.name, float(self.wanted[i]))
        if self.given[i]:
            env.task = {self.name: float(self.wanted[i])}

    def read_from(self, env: Any, i: int) -> None:
        """Read both from gymnasium's env."""
        self.wanted[i] = getattr(env, self.name)
        self.given[i] = env.task is not None


class _Directions(_OneNumber):
    name = "direction"
    initial = 1.0


class _Velocities(_OneNumber):
    """Run at a velocity, as near to it as possible."""

    name = "velocity"
    initial = 1.0

    def progress(self, d: Simulations, velocity: Array) -> Array:
        """Return minus the absolute difference between a velocity and the task's."""
        along: Array = super().progress(d, velocity)  # type: ignore[misc]
        return -np.abs(along - self.wanted[d.ids])


class HalfCheetahDir(_Directions, HalfCheetah):
    """Run forwards or backwards. Tasks: ``{"direction": 1.0 or -1.0}``."""

    def progress(self, d: Simulations, velocity: Array) -> Array:
        """Return the velocity in the direction of the task."""
        return self.wanted[d.ids] * velocity


class HalfCheetahVel(_Velocities, HalfCheetah):
    """Run at a velocity. Tasks: ``{"velocity": 0 to 2}``."""


class AntDir(_Directions, Ant):
    """Walk in a direction of the plane. Tasks: ``{"direction": angle}``; 0 is forwards."""

    initial = 0.0

    def progress(self, d: Simulations, velocity: Array) -> Array:
        """Return the velocity in the direction of the task."""
        angle = self.wanted[d.ids]
        return dot(velocity, np.stack((np.cos(angle), np.sin(angle)), axis=1))


class AntVel(_Velocities, Ant):
    """Walk at a velocity. Tasks: ``{"velocity": 0 to 3}``."""
