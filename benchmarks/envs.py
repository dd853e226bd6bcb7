"""The envs of the benchmarks, a policy, and networks."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces


def spin(us: float) -> None:
    """Keep a CPU busy for a time."""
    end = time.perf_counter_ns() + us * 1e3
    while time.perf_counter_ns() < end:
        pass


class Busy(gym.Env[Any, Any]):
    """An env that computes for a time, fixed or exponentially distributed; may return an image."""

    action_space = spaces.Discrete(2)

    def __init__(self, us: float, *, exponential: bool = False, image: bool = False) -> None:
        self._us = us
        self._exponential = exponential
        parts: dict[str, spaces.Space[Any]] = {"x": spaces.Box(-1, 1, (4,), np.float32)}
        if image:
            parts["image"] = spaces.Box(0, 255, (84, 84, 4), np.uint8)
        self.observation_space = spaces.Dict(parts) if image else parts["x"]
        arrays = {key: np.zeros(space.shape, space.dtype) for key, space in parts.items()}
        self._observation = arrays if image else arrays["x"]
        self._random = np.random.default_rng()

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return self._observation, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        spin(self._random.exponential(self._us) if self._exponential else self._us)
        return self._observation, 1.0, False, False, {}


class Shaped(gym.Wrapper[Any, Any, Any, Any], gym.utils.RecordConstructorArgs):
    """MountainCar with rewards for energy, which do not change what the best policy is.

    A step adds the energy after it, less by ``gamma``, and takes that before; an end has none (Ng,
    Harada and Russell 1999). A car that stands at the lowest point has none either.
    """

    def __init__(self, env: gym.Env[Any, Any], gamma: float = 0.99, scale: float = 3_000.0) -> None:
        gym.utils.RecordConstructorArgs.__init__(self, gamma=gamma, scale=scale)
        super().__init__(env)
        self._gamma, self._scale, self._had = gamma, scale, 0.0

    def _energy(self, seen: Any) -> float:
        position, speed = map(float, seen)
        height = (1 + math.sin(3 * position)) / 3
        return self._scale * (0.0025 * height + speed**2 / 2)

    def reset(self, **options: Any) -> tuple[Any, dict[str, Any]]:
        seen, info = self.env.reset(**options)
        self._had = self._energy(seen)
        return seen, info

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        seen, reward, terminated, truncated, info = self.env.step(action)
        had, self._had = self._had, 0.0 if terminated else self._energy(seen)
        return seen, float(reward) + self._gamma * self._had - had, terminated, truncated, info


class Skewed(gym.Env[Any, Any]):
    """An env that sleeps in steps and resets; its episodes end by chance, in 1 of 50 steps."""

    action_space = spaces.Discrete(2)
    observation_space = spaces.Box(-1, 1, (4,), np.float32)

    def __init__(
        self, step_seconds: float = 0.001, reset_seconds: float = 0.2, ends: float = 0.02
    ) -> None:
        self._step, self._reset, self._ends = step_seconds, reset_seconds, ends

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        time.sleep(self._reset)
        return np.zeros(4, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        time.sleep(self._step)
        return np.zeros(4, np.float32), 1.0, bool(self.np_random.random() < self._ends), False, {}


class Linear:
    """A policy that costs next to nothing, with any number of further parameters."""

    def __init__(self, env: str, parameters: int = 0) -> None:
        self._env = env
        shape = {"CartPole-v1": (4, 2), "HalfCheetah-v5": (17, 6)}.get(env, (1, 1))
        weight = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
        self.weights = {"weight": weight, "rest": np.zeros(parameters, np.float32)}

    def __call__(self, observations: Any) -> Any:
        if isinstance(observations, dict):  # pictures, at which it does not look
            return np.zeros(len(observations["x"]), np.int64)
        outputs = observations @ self.weights["weight"]
        return outputs.argmax(-1) if self._env == "CartPole-v1" else np.tanh(outputs)

    def change(self) -> None:
        self.weights["weight"] *= np.float32(0.999)

    def state_dict(self) -> dict[str, Any]:
        return self.weights

    def load_state_dict(self, weights: dict[str, Any]) -> None:
        self.weights = weights


def mlp(widths: Sequence[int], activation: str) -> Any:
    """Return a network of torch: layers between these widths, an activation between the layers."""
    from torch import nn

    layers: list[nn.Module] = []
    for inputs, outputs in itertools.pairwise(widths):
        layers += [nn.Linear(inputs, outputs), getattr(nn, activation)()]
    return nn.Sequential(*layers[:-1])


@dataclass(frozen=True)
class Case:
    """An env, how many of them, in how many workers, and the target of the ideal barrier."""

    name: str
    env: str  # an id of gymnasium's, or arguments of Busy
    envs: int
    target: float | None = None
    peers: bool = True
    workers: int = 2

    def make(self) -> gym.Env[Any, Any]:
        if self.env.startswith("Busy"):
            return eval(self.env)
        return gym.make(self.env)


CASES = {
    case.name: case
    for case in (
        Case("CartPole-v1, 64", "CartPole-v1", 64, 0.97),
        Case("CartPole-v1, 1024", "CartPole-v1", 1024, 0.97, peers=False),
        Case("HalfCheetah-v5, 64", "HalfCheetah-v5", 64, 0.97),
        Case("HalfCheetah-v5, 8", "HalfCheetah-v5", 8, 0.92),
        Case("20 us of work, 64", "Busy(20)", 64, 0.95),
        Case("exponential, mean 100 us, 16", "Busy(100, exponential=True)", 16),
        Case("200 us and an image, 16", "Busy(200, image=True)", 16, 0.95),
    )
}
