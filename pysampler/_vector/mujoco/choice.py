"""Whether envs can be simulated together in blocks, tried beside real envs."""

from __future__ import annotations

import contextlib
import copy
import importlib
import sys
import warnings
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import SyncVectorEnv
from gymnasium.wrappers import OrderEnforcing, PassiveEnvChecker, TimeLimit

from pysampler._vector.mujoco.compare import first_difference
from pysampler._workers.remote import dumps
from pysampler.envs.meta.tasks import TaskWrapper

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Literal

    from pysampler._vector.vector_env import VectorEnv
    from pysampler.envs.mujoco.task import Task

    Native = Literal["auto", True, False]

__all__ = ["NotNativeError", "choose", "knows", "maker_of_task", "short", "task_of"]

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
# What blocks do themselves.
_WRAPPERS = TimeLimit, OrderEnforcing, PassiveEnvChecker, TaskWrapper

# Steps that are compared, and the length of episodes meanwhile. After the reset of one those of the
# two envs do not end together, so that one of them is stepped while the other is reset.
_STEPS, _LIMIT = 14, 5
_RESET_ONE_AT = 3
# Why envs that were tried cannot be simulated together, by what makes them; None if they can.
_tried: dict[bytes | None, str | None] = {}


def knows(entry_point: Any, wrappers: Sequence[Any]) -> bool:
    """Return whether the envs of an entry point may be such as can be simulated together."""
    if any(wrapper not in _WRAPPERS for wrapper in wrappers):
        return False
    if not isinstance(entry_point, str):
        entry_point = f"{entry_point.__module__}:{getattr(entry_point, '__qualname__', '')}"
    return entry_point == f"{_TASK_ENV}:make_env" or (tuple(entry_point.split(":")) in _TASKS)


def maker_of_task(thing: Any) -> Any:
    """Return what makes an env of a class of tasks; None if it is no such class."""
    tasks = sys.modules.get("pysampler.envs.mujoco.task")
    if tasks is None or not (isinstance(thing, type) and issubclass(thing, tasks.Task)):
        return None
    return importlib.import_module(_TASK_ENV).make_env


class NotNativeError(Exception):
    """Says why an env cannot be simulated together with others."""


def task_of(env: gym.Env[Any, Any]) -> tuple[Task, int | None]:
    """Return the task that an env is, and after how many steps its episodes are truncated.

    Raises:
        NotNativeError: There is none.
    """
    limit = None
    while env is not env.unwrapped:
        if type(env) not in _WRAPPERS:
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
            named = kind.__name__ if env.spec is None else env.spec.id
            raise NotNativeError(f"{named} has no task of pysampler.envs.mujoco")
        task = getattr(importlib.import_module("pysampler.envs.mujoco"), name).of(env)
    if task.frame_skip < 1:
        raise NotNativeError(f"frame_skip is {task.frame_skip}")
    return task, limit


def choose(
    native: Native,
    make_env: Callable[[], gym.Env[Any, Any]],
    make_vector_env: Callable[[], VectorEnv],
) -> bool:
    """Return whether envs are simulated together.

    Args:
        native: Whether they have to be, or must not.
        make_env: Makes one env.
        make_vector_env: Makes a vector env of two that are simulated together, in this process.

    Raises:
        ValueError: They have to be, and cannot.
    """
    if native is False:
        return False
    try:
        _try_out(make_env, make_vector_env)
    except NotNativeError as error:
        if native is True:
            raise ValueError(f"cannot make vector env: native=True, but {error}") from None
        return False
    except _DiffersError as error:
        text = f"the envs cannot be simulated together: {error}"
        if native is True:
            why = f"cannot make vector env: native=True, but {text}"
            raise ValueError(why) from error.__cause__
        warnings.warn(f"{text}; they run as ordinary envs", stacklevel=5)  # at make_vec's caller
        return False
    return True


class _DiffersError(Exception):
    """Says in what envs that are simulated together differ from real ones."""


def _try_out(
    make_env: Callable[[], gym.Env[Any, Any]], make_vector_env: Callable[[], VectorEnv]
) -> None:
    env = make_env()
    try:
        task_of(env)
        _expect_batch()
        if _is_users(env):  # its class may have been changed since the last time, as in a notebook
            _try(env, make_env, make_vector_env)
            return
        try:
            key = dumps(make_env)
        except Exception:  # workers that are forked, or none, do with what cannot be pickled
            key = None
        if key is None or key not in _tried:
            try:
                _try(env, make_env, make_vector_env)
            except _DiffersError as error:
                if error.__cause__ is None:  # or else it may have been for lack of memory
                    _tried[key] = str(error)
                raise
            _tried[key] = None
        elif (known := _tried[key]) is not None:
            raise _DiffersError(known)
    finally:
        env.close()


def _expect_batch() -> None:
    """Raise NotNativeError unless this MuJoCo can step many simulations in a batch."""
    import mujoco  # noqa: PLC0415 - an extra

    try:
        import mujoco.batch  # noqa: PLC0415
    except ImportError:
        version = mujoco.__version__
        raise NotNativeError(f"mujoco {version} has no batches, expected 3.17 or newer") from None
    if getattr(mujoco, "MJTNUM_DTYPE", np.float64) != np.float64:
        raise NotNativeError("this MuJoCo computes in single precision")


def _try(
    env: gym.Env[Any, Any],
    make_env: Callable[[], gym.Env[Any, Any]],
    make_vector_env: Callable[[], VectorEnv],
) -> None:
    """Step two envs that are simulated together beside two real ones.

    Raises:
        _DiffersError: They differ.
    """
    with contextlib.ExitStack() as stack:
        other = make_env()
        stack.callback(other.close)
        real = SyncVectorEnv([lambda: short(env), lambda: short(other)])
        try:
            simulated = make_vector_env()
        except Exception as error:
            raise _differs(error) from error
        stack.callback(simulated.close)
        _compare(real, simulated, "reset", seed=1)
        for step in range(_STEPS):
            if step == _RESET_ONE_AT:
                _compare(real, simulated, "reset", options={"reset_mask": np.array([True, False])})
            _compare(real, simulated, "step", _actions(real, step))


def short(env: gym.Env[Any, Any]) -> gym.Env[Any, Any]:
    """Return an env whose episodes end within a trial."""
    return TimeLimit(env, _LIMIT)


def _actions(envs: SyncVectorEnv, step: int) -> Any:
    space: Any = envs.single_action_space
    low, high = (np.clip(bound, -1.0, 1.0) for bound in (space.low, space.high))
    drawn = np.random.default_rng(step).uniform(low, high, (2, *space.shape))
    return drawn.astype(space.dtype)


def _compare(
    real: SyncVectorEnv, simulated: VectorEnv, call: str, *args: Any, **kwargs: Any
) -> None:
    try:
        theirs = getattr(real, call)(*args, **copy.deepcopy(kwargs))  # it takes the mask out
    except Exception as error:
        if _is_users(real.envs[0]):
            raise
        raise _differs(error) from error
    try:
        ours = getattr(simulated, call)(*args, **kwargs)
    except Exception as error:
        raise _differs(error) from error
    if found := first_difference(ours, theirs, call):
        raise _DiffersError(found)


def _is_users(env: gym.Env[Any, Any]) -> bool:
    """Return whether an env is one of a task that the user may have written."""
    return type(env.unwrapped).__module__ == _TASK_ENV


def _differs(error: Exception) -> _DiffersError:
    return _DiffersError(f"{type(error).__name__}: {error}")
