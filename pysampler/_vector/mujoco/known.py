"""Recognises envs that can be simulated together: those with a task in pysampler.envs.mujoco."""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any

from gymnasium import wrappers as gymnasium_wrappers
from gymnasium.wrappers import OrderEnforcing, PassiveEnvChecker, TimeLimit

from pysampler._tasks import TaskWrapper

if TYPE_CHECKING:
    from collections.abc import Sequence

    import gymnasium as gym

    from pysampler.envs.mujoco.task import Task

__all__ = [
    "BLOCK_WRAPPERS",
    "NotNativeError",
    "has_task",
    "is_of_a_task",
    "maker_of_task",
    "makes_known_envs",
    "name_of",
    "task_of",
]

_GYMNASIUM = "gymnasium.envs.mujoco"
_META = "pysampler.envs.meta.mujoco"
_TASK_ENV = "pysampler.envs.mujoco.env"
# The tasks of envs, by the module and the name of the exact class.
_TASKS = {
    (f"{_GYMNASIUM}.ant_v5", "AntEnv"): "Ant",
    (f"{_GYMNASIUM}.half_cheetah_v5", "HalfCheetahEnv"): "HalfCheetah",
    (f"{_GYMNASIUM}.hopper_v5", "HopperEnv"): "Hopper",
    (f"{_GYMNASIUM}.humanoid_v5", "HumanoidEnv"): "Humanoid",
    (f"{_GYMNASIUM}.humanoidstandup_v5", "HumanoidStandupEnv"): "HumanoidStandup",
    (
        f"{_GYMNASIUM}.inverted_double_pendulum_v5",
        "InvertedDoublePendulumEnv",
    ): "InvertedDoublePendulum",
    (f"{_GYMNASIUM}.inverted_pendulum_v5", "InvertedPendulumEnv"): "InvertedPendulum",
    (f"{_GYMNASIUM}.pusher_v5", "PusherEnv"): "Pusher",
    (f"{_GYMNASIUM}.reacher_v5", "ReacherEnv"): "Reacher",
    (f"{_GYMNASIUM}.swimmer_v5", "SwimmerEnv"): "Swimmer",
    (f"{_GYMNASIUM}.walker2d_v5", "Walker2dEnv"): "Walker2d",
    (_META, "AntDir"): "AntDir",
    (_META, "AntVel"): "AntVel",
    (_META, "HalfCheetahDir"): "HalfCheetahDir",
    (_META, "HalfCheetahVel"): "HalfCheetahVel",
}
# Wrappers whose work blocks do themselves.
BLOCK_WRAPPERS = TimeLimit, OrderEnforcing, PassiveEnvChecker, TaskWrapper


def makes_known_envs(entry_point: Any, wrappers: Sequence[Any]) -> bool:
    """Return whether this entry point makes envs of tasks, and these are gymnasium's wrappers.

    Such envs are all alike, so one of them tells about the others.
    """
    known = [one is TaskWrapper or one in vars(gymnasium_wrappers).values() for one in wrappers]
    if not all(known):
        return False
    if not isinstance(entry_point, str):
        entry_point = f"{entry_point.__module__}:{getattr(entry_point, '__qualname__', '')}"
    return entry_point == f"{_TASK_ENV}:make_env" or (tuple(entry_point.split(":")) in _TASKS)


def name_of(env: gym.Env[Any, Any]) -> str:
    """Return the name of an env: its id, or that of its class or task."""
    if isinstance(name := getattr(env.spec, "id", None), str):
        return name
    base: Any = env.unwrapped
    return type(base.task if is_of_a_task(env) else base).__name__


def has_task(env: Any) -> bool:
    """Return whether an env, without wrappers, is of a class that has a task."""
    return is_of_a_task(env) or (type(env).__module__, type(env).__name__) in _TASKS


def maker_of_task(thing: Any) -> Any:
    """Return the function that makes an env of a class of tasks; None for anything else."""
    tasks = sys.modules.get("pysampler.envs.mujoco.task")
    if tasks is None or not (isinstance(thing, type) and issubclass(thing, tasks.Task)):
        return None
    return importlib.import_module(_TASK_ENV).make_env


class NotNativeError(Exception):
    """An env cannot be simulated together with others."""


def task_of(env: gym.Env[Any, Any]) -> tuple[Task, int | None]:
    """Return the task of an env, and the number of steps after which its episodes are truncated.

    Raises:
        NotNativeError: The env has no task, or a wrapper or option that tasks do not support.
    """
    limit = None
    while env is not env.unwrapped:
        if type(env) not in BLOCK_WRAPPERS:
            raise NotNativeError(f"the wrapper {type(env).__name__} is Python code for one env")
        if isinstance(env, TimeLimit):
            steps = env._max_episode_steps
            limit = steps if limit is None else min(limit, steps)
        env = env.env  # type: ignore[attr-defined]
    kind = type(env)
    task: Task
    if kind.__module__ == _TASK_ENV:
        task = env.task  # type: ignore[attr-defined]
    else:
        name = _TASKS.get((kind.__module__, kind.__name__))
        if name is None:
            raise NotNativeError(f"{name_of(env)} has no task of pysampler.envs.mujoco")
        task = getattr(importlib.import_module("pysampler.envs.mujoco"), name).of(env)
    if task.frame_skip < 1:
        raise NotNativeError(f"frame_skip is {task.frame_skip}")
    return task, limit


def is_of_a_task(env: gym.Env[Any, Any]) -> bool:
    """Return whether an env was made of a task class, which the user may have written."""
    return type(env.unwrapped).__module__ == _TASK_ENV
