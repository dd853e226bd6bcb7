"""gymnasium's HalfCheetah and Ant, with rewards for other ways to run."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium.envs.mujoco.ant_v5 import AntEnv
from gymnasium.envs.mujoco.half_cheetah_v5 import HalfCheetahEnv

from pysampler.envs.meta.tasks import Task, Tasks

__all__ = ["AntDir", "AntVel", "HalfCheetahDir", "HalfCheetahVel"]


class HalfCheetahDir(Tasks, HalfCheetahEnv):
    """Forwards or backwards."""

    direction = 1.0

    def sample_tasks(self, count: int) -> list[Task]:
        """Either, as likely."""
        return [{"direction": float(d)} for d in self.np_random.choice((-1.0, 1.0), count)]

    def reset_task(self, task: Task) -> None:
        """``{"direction": 1.0 or -1.0}``"""
        self.direction = float(self._one(task, "direction"))

    def _get_rew(self, x_velocity: float, action: Any) -> Any:
        return super()._get_rew(self.direction * x_velocity, action)


class HalfCheetahVel(Tasks, HalfCheetahEnv):
    """At a velocity."""

    velocity = 1.0

    def sample_tasks(self, count: int) -> list[Task]:
        """Uniform from 0 to 2."""
        return [{"velocity": float(v)} for v in self.np_random.uniform(0.0, 2.0, count)]

    def reset_task(self, task: Task) -> None:
        """``{"velocity": number}``"""
        self.velocity = float(self._one(task, "velocity"))

    def _get_rew(self, x_velocity: float, action: Any) -> Any:
        return super()._get_rew(-abs(x_velocity - self.velocity), action)


class AntDir(Tasks, AntEnv):
    """In a direction of the plane."""

    direction = 0.0

    def sample_tasks(self, count: int) -> list[Task]:
        """Any angle."""
        angles = self.np_random.uniform(0.0, 2 * np.pi, count)
        return [{"direction": float(angle)} for angle in angles]

    def reset_task(self, task: Task) -> None:
        """``{"direction": angle}``, 0 being gymnasium's own forwards."""
        self.direction = float(self._one(task, "direction"))

    def do_simulation(self, ctrl: Any, n_frames: int) -> None:
        """Simulate, and remember how fast it went."""
        before = self.data.body(self._main_body).xpos[:2].copy()
        super().do_simulation(ctrl, n_frames)
        self._velocity = (self.data.body(self._main_body).xpos[:2] - before) / self.dt

    def _get_rew(self, x_velocity: float, action: Any) -> Any:  # noqa: ARG002 - one of two
        along = np.cos(self.direction), np.sin(self.direction)
        return super()._get_rew(float(self._velocity @ along), action)


class AntVel(Tasks, AntEnv):
    """At a velocity."""

    velocity = 1.0

    def sample_tasks(self, count: int) -> list[Task]:
        """Uniform from 0 to 3."""
        return [{"velocity": float(v)} for v in self.np_random.uniform(0.0, 3.0, count)]

    def reset_task(self, task: Task) -> None:
        """``{"velocity": number}``"""
        self.velocity = float(self._one(task, "velocity"))

    def _get_rew(self, x_velocity: float, action: Any) -> Any:
        return super()._get_rew(-abs(x_velocity - self.velocity), action)
