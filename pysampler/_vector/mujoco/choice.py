"""Whether envs can be simulated together in blocks, tried beside real envs."""

from __future__ import annotations

import importlib
import sys
import warnings
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode, SyncVectorEnv
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

__all__ = ["NotNativeError", "choose", "knows", "maker_of_task", "task_of"]

_GYMNASIUM = "gymnasium.envs.mujoco"
_META = "pysampler.envs.meta.mujoco"
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

# Steps that are compared, and after how many of them the envs are reset.
_STEPS, _RESET_AT = 12, 7
# Why envs that were tried cannot be simulated together, by what makes them; None if they can.
_tried: dict[bytes | None, str | None] = {}


def knows(entry_point: Any, wrappers: Sequence[Any]) -> bool:
    """Return whether the envs of an entry point may be such as can be simulated together."""
    if any(wrapper not in _WRAPPERS for wrapper in wrappers):
        return False
    if not isinstance(entry_point, str):
        entry_point = f"{entry_point.__module__}:{getattr(entry_point, '__qualname__', '')}"
    return entry_point == "pysampler.envs.mujoco.env:make_env" or (
        tuple(entry_point.split(":")) in _TASKS
    )


def maker_of_task(thing: Any) -> Any:
    """Return what makes an env of a class of tasks; None if it is no such class."""
    tasks = sys.modules.get("pysampler.envs.mujoco.task")
    if tasks is None or not (isinstance(thing, type) and issubclass(thing, tasks.Task)):
        return None
    return importlib.import_module("pysampler.envs.mujoco.env").make_env


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
    if kind.__module__ == "pysampler.envs.mujoco.env":
        return env.task, limit  # type: ignore[attr-defined]
    name = _TASKS.get((kind.__module__, kind.__name__))
    if name is None:
        raise NotNativeError(f"{kind.__name__} has no task")
    tasks = importlib.import_module("pysampler.envs.mujoco")
    return getattr(tasks, name).of(env), limit


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
            raise ValueError(f"cannot make vector env: native=True, but {text}") from None
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
        try:
            key = dumps(make_env)
        except Exception:  # workers that are forked, or none, do with what cannot be pickled
            key = None
        why = _tried[key] if key in _tried else _difference(env, make_env, make_vector_env)
        if key is not None:
            _tried[key] = why
        if why is not None:
            raise _DiffersError(why)
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


def _difference(
    env: gym.Env[Any, Any],
    make_env: Callable[[], gym.Env[Any, Any]],
    make_vector_env: Callable[[], VectorEnv],
) -> str | None:
    """Return in what envs that are simulated together differ from real ones; None if in nothing."""
    real = SyncVectorEnv([lambda: env, make_env], autoreset_mode=AutoresetMode.DISABLED)
    try:
        simulated = make_vector_env()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    rng = np.random.default_rng(0)
    try:
        space = real.single_action_space
        low, high = (np.clip(bound, -1.0, 1.0) for bound in (space.low, space.high))  # type: ignore[attr-defined]
        found = first_difference(simulated.reset(seed=1), real.reset(seed=1), "reset")
        over = np.zeros(2, bool)
        for step in range(_STEPS):
            if found is None and (over.any() or step == _RESET_AT):
                options = {"reset_mask": over if over.any() else np.array([True, False])}
                results = simulated.reset(options=options), real.reset(options=options)
                found = first_difference(*results, "reset")
            if found is not None:
                break
            actions = rng.uniform(low, high, (2, *space.shape)).astype(space.dtype)  # type: ignore[misc]
            ours, theirs = simulated.step(actions), real.step(actions)
            found = first_difference(ours, theirs, "step")
            over = theirs[2] | theirs[3]
        return found
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    finally:
        simulated.close()
        real.envs[1].close()
