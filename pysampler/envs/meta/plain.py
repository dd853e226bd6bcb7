"""Small envs of many tasks that need only NumPy."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from pysampler._common.tasks import Task, Tasks

__all__ = ["Bandit", "Navigation2D"]


class _PlainEnv(gym.Env[Any, Any]):
    """The base of envs with ``Tasks``; its ``reset`` only seeds."""


class Navigation2D(Tasks, _PlainEnv):
    """A point in the plane that must find a goal: ``{"goal": array of 2}``.

    The observation is its position, not the goal. An action moves it by up to 0.1 along each axis.
    The reward is minus the distance to the goal; within 0.02 of it the episode terminates.

    >>> env = Navigation2D()
    >>> env.reset_task({"goal": [0.1, 0.0]})
    >>> observation, info = env.reset()
    >>> observation, reward, terminated, truncated, info = env.step([0.1, 0.0])
    >>> terminated
    True
    """

    observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float32)
    action_space = spaces.Box(-0.1, 0.1, (2,), np.float32)
    goal = np.array([0.3, 0.3])

    def sample_tasks(self, count: int) -> list[Task]:
        """Draw goals uniformly, each coordinate from -0.5 to 0.5."""
        return [{"goal": goal} for goal in self.np_random.uniform(-0.5, 0.5, (count, 2))]

    def reset_task(self, task: Task) -> None:
        """Set the goal: ``{"goal": array of 2}``."""
        goal = np.asarray(self._set(task, "goal"), np.float64)
        if goal.shape != (2,):
            raise ValueError(f"cannot set goal: shape {goal.shape}, expected (2,)")
        self.goal = goal

    def reset(self, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        """Begin an episode at the origin. See ``Tasks.reset``."""
        super().reset(**kwargs)
        self._position = np.zeros(2)
        return self._position.astype(np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Move by ``action``, clipped to the action space."""
        self._position = self._position + np.clip(action, -0.1, 0.1)
        x, y = self._position - self.goal
        distance = float(np.hypot(x, y))
        observation = self._position.astype(np.float32)
        return observation, -distance, distance < 0.02, False, {}


class Bandit(Tasks, _PlainEnv):
    """A bandit whose arms pay 1 or nothing: ``{"probabilities": array, one for each arm}``.

    The observation is always zero.

    Args:
        arms: The number of arms.
    """

    observation_space = spaces.Box(0.0, 1.0, (1,), np.float32)

    def __init__(self, arms: int = 10) -> None:
        self.arms = arms
        self.action_space = spaces.Discrete(arms)
        self.probabilities = np.full(arms, 0.5)

    def sample_tasks(self, count: int) -> list[Task]:
        """Draw the probability of each arm uniformly from 0 to 1."""
        drawn = self.np_random.uniform(0.0, 1.0, (count, self.arms))
        return [{"probabilities": row} for row in drawn]

    def reset_task(self, task: Task) -> None:
        """Set the probabilities: ``{"probabilities": array, one for each arm}``."""
        probabilities = np.asarray(self._set(task, "probabilities"), np.float64)
        if probabilities.shape != (self.arms,):
            raise ValueError(
                f"cannot set probabilities: shape {probabilities.shape}, expected {(self.arms,)}"
            )
        self.probabilities = probabilities

    def reset(self, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        """Begin an episode. See ``Tasks.reset``."""
        super().reset(**kwargs)
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Pull the arm ``action``."""
        paid = float(self.np_random.random() < self.probabilities[int(action)])
        return np.zeros(1, np.float32), paid, False, False, {}
