"""Recognises envs that a native block can replace, by their exact classes.

These are the envs with a task in pysampler.envs.mujoco, or a twin in pysampler.envs.classic.
"""

from __future__ import annotations

import importlib
import math
import sys
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import gymnasium as gym
from gymnasium import wrappers as gymnasium_wrappers
from gymnasium.wrappers import OrderEnforcing, PassiveEnvChecker, TimeLimit

from pysampler._common.tasks import TaskWrapper

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pysampler.envs.mujoco.task import Task

__all__ = [
    "BLOCK_WRAPPERS",
    "HANDOVER_US",
    "NotNativeError",
    "expect_known",
    "has_task",
    "is_of_a_task",
    "is_well_known",
    "kind_of",
    "limit_of",
    "maker_of_task",
    "makes_known_envs",
    "name_of",
    "share_of",
    "step_us_of",
    "task_of",
    "twin_of",
]

_GYMNASIUM = "gymnasium.envs.mujoco"
_META = "pysampler.envs.meta.mujoco"
_TASK_ENV = "pysampler.envs.mujoco.env"
_CLASSIC = "gymnasium.envs.classic_control"
# Microseconds that handing a step to workers takes.
HANDOVER_US = 12.0


class _Known(NamedTuple):
    """How blocks replace the envs of a class.

    Attributes:
        kind: By a task of pysampler.envs.mujoco, or a twin in pysampler.envs.classic.
        name: The class of the task or twin.
        step_us: Microseconds of a step of one of many envs, with random actions. They decide how
            many workers are worth it; see docs/tuning.md.
    """

    kind: Literal["task", "twin"]
    name: str
    step_us: float


# By the module and name of an env's exact class.
_KNOWN = {
    (f"{_GYMNASIUM}.ant_v5", "AntEnv"): _Known("task", "Ant", 130),
    (f"{_GYMNASIUM}.half_cheetah_v5", "HalfCheetahEnv"): _Known("task", "HalfCheetah", 21),
    (f"{_GYMNASIUM}.hopper_v5", "HopperEnv"): _Known("task", "Hopper", 50),
    (f"{_GYMNASIUM}.humanoid_v5", "HumanoidEnv"): _Known("task", "Humanoid", 130),
    (f"{_GYMNASIUM}.humanoidstandup_v5", "HumanoidStandupEnv"): _Known(
        "task", "HumanoidStandup", 250
    ),
    (f"{_GYMNASIUM}.inverted_double_pendulum_v5", "InvertedDoublePendulumEnv"): _Known(
        "task", "InvertedDoublePendulum", 23
    ),
    (f"{_GYMNASIUM}.inverted_pendulum_v5", "InvertedPendulumEnv"): _Known(
        "task", "InvertedPendulum", 8.8
    ),
    (f"{_GYMNASIUM}.pusher_v5", "PusherEnv"): _Known("task", "Pusher", 23),
    (f"{_GYMNASIUM}.reacher_v5", "ReacherEnv"): _Known("task", "Reacher", 12),
    (f"{_GYMNASIUM}.swimmer_v5", "SwimmerEnv"): _Known("task", "Swimmer", 30),
    (f"{_GYMNASIUM}.walker2d_v5", "Walker2dEnv"): _Known("task", "Walker2d", 64),
    (_META, "AntDir"): _Known("task", "AntDir", 130),
    (_META, "AntVel"): _Known("task", "AntVel", 130),
    (_META, "HalfCheetahDir"): _Known("task", "HalfCheetahDir", 21),
    (_META, "HalfCheetahVel"): _Known("task", "HalfCheetahVel", 21),
    (f"{_CLASSIC}.acrobot", "AcrobotEnv"): _Known("twin", "Acrobot", 0.29),
    (f"{_CLASSIC}.cartpole", "CartPoleEnv"): _Known("twin", "CartPole", 0.08),
    (f"{_CLASSIC}.continuous_mountain_car", "Continuous_MountainCarEnv"): _Known(
        "twin", "MountainCarContinuous", 0.03
    ),
    (f"{_CLASSIC}.mountain_car", "MountainCarEnv"): _Known("twin", "MountainCar", 0.03),
    (f"{_CLASSIC}.pendulum", "PendulumEnv"): _Known("twin", "Pendulum", 0.05),
}
# Wrappers that blocks replace.
BLOCK_WRAPPERS = TimeLimit, OrderEnforcing, PassiveEnvChecker, TaskWrapper
# Gymnasium's wrappers without functions of users.
_KNOWN_WRAPPERS = (
    *BLOCK_WRAPPERS,
    *(gymnasium_wrappers.RecordEpisodeStatistics, gymnasium_wrappers.NormalizeObservation),
    *(gymnasium_wrappers.NormalizeReward, gymnasium_wrappers.ClipReward),
    *(gymnasium_wrappers.ClipAction, gymnasium_wrappers.RescaleAction),
    *(gymnasium_wrappers.FlattenObservation, gymnasium_wrappers.ReshapeObservation),
    *(gymnasium_wrappers.RescaleObservation, gymnasium_wrappers.DtypeObservation),
    *(gymnasium_wrappers.FrameStackObservation, gymnasium_wrappers.AtariPreprocessing),
    *(gymnasium_wrappers.GrayscaleObservation, gymnasium_wrappers.ResizeObservation),
)
_WELL_KNOWN = (
    "gymnasium.envs.classic_control.",
    "gymnasium.envs.mujoco.",
    f"{_META}:",
    "ale_py.env:",
)


def makes_known_envs(entry_point: Any, wrappers: Sequence[Any], *, twins: bool = True) -> bool:
    """Return whether this entry point makes known envs, and these are gymnasium's wrappers.

    Such envs are all alike, so it is enough to look at one.

    Args:
        entry_point: The function or class that makes the envs, or its name.
        wrappers: Functions that wrap the envs.
        twins: Whether envs with twins count as known, too.
    """
    known = [one is TaskWrapper or one in vars(gymnasium_wrappers).values() for one in wrappers]
    if not all(known):
        return False
    if not isinstance(entry_point, str):
        entry_point = f"{entry_point.__module__}:{getattr(entry_point, '__qualname__', '')}"
    return kind_of(entry_point) in ("task", "twin" if twins else "task")


def kind_of(entry_point: str) -> Literal["task", "twin"] | None:
    """Return how blocks replace the envs that this function or class makes; None: they do not."""
    if entry_point == f"{_TASK_ENV}:make_env":
        return "task"
    known = _known_at(entry_point)
    return None if known is None else known.kind


def step_us_of(entry_point: Any) -> float | None:
    """Return the microseconds of a step of the envs that this class makes; None: unknown."""
    known = _known_at(str(entry_point))
    return None if known is None else known.step_us


def _known_at(entry_point: str) -> _Known | None:
    module, _, name = entry_point.partition(":")
    return _KNOWN.get((module, name))


def name_of(env: gym.Env[Any, Any]) -> str:
    """Return the name of an env: its id, or the name of its class or task."""
    if isinstance(name := getattr(env.spec, "id", None), str):
        return name
    base: Any = env.unwrapped
    return type(base.task if is_of_a_task(env) else base).__name__


def is_well_known(env: Any) -> bool:
    """Return whether no code of an env and its wrappers is of a user.

    Such an env returns new observations and infos in each step, and changes nothing else.
    """
    while env is not env.unwrapped:
        if type(env) not in _KNOWN_WRAPPERS:
            return False
        env = env.env
    return is_of_a_task(env) or ":".join(_key_of(env)).startswith(_WELL_KNOWN)


def has_task(env: Any) -> bool:
    """Return whether there is a task for the class of this env, which has no wrappers."""
    known = _KNOWN.get(_key_of(env))
    return is_of_a_task(env) or (known is not None and known.kind == "task")


def maker_of_task(thing: Any) -> Any:
    """Return a function that makes envs of a task class; None if ``thing`` is no such class."""
    tasks = sys.modules.get("pysampler.envs.mujoco.task")
    if tasks is None or not (isinstance(thing, type) and issubclass(thing, tasks.Task)):
        return None
    return importlib.import_module(_TASK_ENV).make_env


class NotNativeError(Exception):
    """No native block can replace an env; the message says why."""


def limit_of(env: gym.Env[Any, Any]) -> int | None:
    """Return the number of steps after which the episodes of an env are truncated; None: no limit.

    Raises:
        NotNativeError: The env has a wrapper that blocks cannot replace.
    """
    limit = None
    while env is not env.unwrapped:
        if type(env) not in BLOCK_WRAPPERS:
            raise NotNativeError(f"the wrapper {type(env).__name__} is Python code for one env")
        if isinstance(env, TimeLimit):
            steps = env._max_episode_steps
            limit = steps if limit is None else min(limit, steps)
        env = env.env  # type: ignore[attr-defined]
    return limit


def expect_known(base: gym.Env[Any, Any]) -> None:
    """Raise NotNativeError unless there is a task or a twin for an env without wrappers."""
    if not is_of_a_task(base) and _key_of(base) not in _KNOWN:
        raise NotNativeError(f"{name_of(base)} has no native counterpart")


def twin_of(base: Any) -> str:
    """Return the name of the twin, in pysampler.envs.classic, of an env that has one."""
    return _KNOWN[_key_of(base)].name


def share_of(base: Any) -> int:
    """Return the smallest number of known envs for each worker if there are several."""
    known = _KNOWN.get(_key_of(base))
    return 1 if known is None else math.ceil(HANDOVER_US / known.step_us)


def _key_of(base: Any) -> tuple[str, str]:
    return type(base).__module__, type(base).__name__


def task_of(base: Any) -> Task:
    """Return the task for an env without wrappers.

    Raises:
        NotNativeError: The env has an option that its task does not support.
    """
    task: Task
    if is_of_a_task(base):
        task = base.task
    else:
        name = _KNOWN[_key_of(base)].name
        task = getattr(importlib.import_module("pysampler.envs.mujoco"), name).of(base)
    if task.frame_skip < 1:
        raise NotNativeError(f"frame_skip is {task.frame_skip}")
    return task


def is_of_a_task(env: gym.Env[Any, Any]) -> bool:
    """Return whether an env was made from a task class, perhaps one that the user wrote."""
    return type(env.unwrapped).__module__ == _TASK_ENV
