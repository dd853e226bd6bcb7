"""Small envs of many tasks, in NumPy alone."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from pysampler.envs.meta.tasks import Task, Tasks

__all__ = ["Bandit", "Navigation2D"]


class _Plain(gym.Env[Any, Any]):
    """Where a reset with tasks ends: it only seeds."""


class Navigation2D(Tasks, _Plain):
    """A point in the plane that goes to a goal it is not shown, by at most 0.1 a step and axis.

    The reward is minus the distance; within 0.02 of the goal an episode terminates.
    """

    observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float32)
    action_space = spaces.Box(-0.1, 0.1, (2,), np.float32)
    goal = np.array([0.3, 0.3])

    def sample_tasks(self, count: int) -> list[Task]:
        """Goals from a square of half a unit around the origin."""
        return [{"goal": goal} for goal in self.np_random.uniform(-0.5, 0.5, (count, 2))]

    def reset_task(self, task: Task) -> None:
        """``{"goal": array of 2}``"""
        goal = np.asarray(self._one(task, "goal"), np.float64)
        if goal.shape != (2,):
            raise ValueError(f"cannot set goal: shape {goal.shape}, expected (2,)")
        self.goal = goal

    def reset(self, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        """At the origin."""
        super().reset(**kwargs)
        self._position = np.zeros(2)
        return self._position.astype(np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Move."""
        self._position = self._position + np.clip(action, -0.1, 0.1)
        x, y = self._position - self.goal
        distance = float(np.hypot(x, y))
        observation = self._position.astype(np.float32)
        return observation, -distance, distance < 0.02, False, {}


class Bandit(Tasks, _Plain):
    """Arms that pay 1 with probabilities of their own. Nothing is observed."""

    observation_space = spaces.Box(0.0, 1.0, (1,), np.float32)

    def __init__(self, arms: int = 10) -> None:
        self.arms = arms
        self.action_space = spaces.Discrete(arms)
        self.probabilities = np.full(arms, 0.5)

    def sample_tasks(self, count: int) -> list[Task]:
        """Every arm anything from 0 to 1."""
        drawn = self.np_random.uniform(0.0, 1.0, (count, self.arms))
        return [{"probabilities": one} for one in drawn]

    def reset_task(self, task: Task) -> None:
        """``{"probabilities": array, one for each arm}``"""
        probabilities = np.asarray(self._one(task, "probabilities"), np.float64)
        if probabilities.shape != (self.arms,):
            raise ValueError(
                f"cannot set probabilities: shape {probabilities.shape}, expected {(self.arms,)}"
            )
        self.probabilities = probabilities

    def reset(self, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        """Nothing to see."""
        super().reset(**kwargs)
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Pull an arm."""
        paid = float(self.np_random.random() < self.probabilities[int(action)])
        return np.zeros(1, np.float32), paid, False, False, {}
