"""gymnasium's HalfCheetah and Ant, rewarded for a direction or a velocity."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium.envs.mujoco.ant_v5 import AntEnv
from gymnasium.envs.mujoco.half_cheetah_v5 import HalfCheetahEnv

from pysampler._common.tasks import Task, Tasks

__all__ = ["AntDir", "AntVel", "HalfCheetahDir", "HalfCheetahVel"]


class _Velocity(Tasks):
    """Tasks of running at a velocity from 0 to ``max_velocity``, as near to it as possible."""

    max_velocity: float
    velocity = 1.0

    def sample_tasks(self, count: int) -> list[Task]:
        """Draw velocities uniformly."""
        drawn = self.np_random.uniform(0.0, self.max_velocity, count)  # type: ignore[attr-defined]
        return [{"velocity": float(velocity)} for velocity in drawn]

    def reset_task(self, task: Task) -> None:
        """Set the velocity: ``{"velocity": number}``."""
        self.velocity = float(self._set(task, "velocity"))

    def _get_rew(self, x_velocity: float, action: Any) -> Any:
        return super()._get_rew(-abs(x_velocity - self.velocity), action)  # type: ignore[misc]


class HalfCheetahDir(Tasks, HalfCheetahEnv):
    """HalfCheetah that is rewarded for running forwards or backwards.

    Its tasks are ``{"direction": 1.0 or -1.0}``. It takes the arguments of gymnasium's
    ``HalfCheetahEnv``.
    """

    direction = 1.0

    def sample_tasks(self, count: int) -> list[Task]:
        """Draw directions, both equally likely."""
        return [{"direction": float(d)} for d in self.np_random.choice((-1.0, 1.0), count)]

    def reset_task(self, task: Task) -> None:
        """Set the direction: ``{"direction": 1.0 or -1.0}``."""
        self.direction = float(self._set(task, "direction"))

    def _get_rew(self, x_velocity: float, action: Any) -> Any:
        return super()._get_rew(self.direction * x_velocity, action)


class HalfCheetahVel(_Velocity, HalfCheetahEnv):
    """HalfCheetah that is rewarded for running at a velocity.

    Its tasks are ``{"velocity": 0 to 2}``. It takes the arguments of gymnasium's
    ``HalfCheetahEnv``.
    """

    max_velocity = 2.0


class AntDir(Tasks, AntEnv):
    """Ant that is rewarded for walking in a direction of the plane.

    Its tasks are ``{"direction": angle}``, in radians; 0 is forwards. It takes the arguments of
    gymnasium's ``AntEnv``.
    """

    direction = 0.0

    def sample_tasks(self, count: int) -> list[Task]:
        """Draw angles uniformly."""
        angles = self.np_random.uniform(0.0, 2 * np.pi, count)
        return [{"direction": float(angle)} for angle in angles]

    def reset_task(self, task: Task) -> None:
        """Set the direction: ``{"direction": angle}``, in radians."""
        self.direction = float(self._set(task, "direction"))

    def do_simulation(self, ctrl: Any, n_frames: int) -> None:
        """Simulate a step, and keep the velocity along both axes for ``_get_rew``."""
        before = self.data.body(self._main_body).xpos[:2].copy()
        super().do_simulation(ctrl, n_frames)
        self._velocity = (self.data.body(self._main_body).xpos[:2] - before) / self.dt

    def _get_rew(self, x_velocity: float, action: Any) -> Any:  # noqa: ARG002 - only one of two axes
        along = np.cos(self.direction), np.sin(self.direction)
        return super()._get_rew(float(self._velocity @ along), action)


class AntVel(_Velocity, AntEnv):
    """Ant that is rewarded for walking at a velocity.

    Its tasks are ``{"velocity": 0 to 3}``. It takes the arguments of gymnasium's ``AntEnv``.
    """

    max_velocity = 3.0
