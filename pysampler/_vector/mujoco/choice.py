"""Decides whether envs are simulated together, by a short trial beside real envs.

That an env has a task does not prove that results are equal, so a few steps and resets are compared
bit for bit. The result is remembered for each maker of envs.
"""

from __future__ import annotations

import contextlib
import copy
import warnings
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import SyncVectorEnv
from gymnasium.wrappers import TimeLimit

from pysampler._vector.mujoco.compare import first_difference
from pysampler._vector.mujoco.known import NotNativeError, is_of_a_task, task_of
from pysampler._workers.remote import dumps

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Literal

    from gymnasium.vector import VectorEnv

    Native = Literal["auto", True, False]

__all__ = ["choose", "short"]

# The number of steps to compare, and the length of episodes in the trial.
_STEPS, _LIMIT = 14, 5
# Before this step one of two envs is reset. Their episodes then end in different steps, so one is
# stepped while the other is reset.
_RESET_ONE_AT = 3
# Results of trials, by the pickle of the env's maker: why envs cannot be simulated together, or
# None if they can.
_tried: dict[bytes | None, str | None] = {}


def choose(
    native: Native,
    make_env: Callable[[], gym.Env[Any, Any]],
    make_vector_env: Callable[[], VectorEnv],
) -> bool:
    """Return whether to simulate envs together.

    Args:
        native: The user's option: "auto", True or False.
        make_env: Makes one env.
        make_vector_env: Makes a vector env, in this process, that simulates two envs together.

    Raises:
        ValueError: ``native`` is True, but it is not possible.
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
    """Names a difference between envs that are simulated together and real ones."""


def _try_out(
    make_env: Callable[[], gym.Env[Any, Any]], make_vector_env: Callable[[], VectorEnv]
) -> None:
    env = make_env()
    try:
        task_of(env)
        _expect_batch()
        # Do not remember a user's task: its class may change later, as in a notebook.
        if is_of_a_task(env):
            _try(env, make_env, make_vector_env)
            return
        try:
            key = dumps(make_env)
        except Exception:  # with context="fork" or no workers, nothing has to be picklable
            key = None
        if key is None or key not in _tried:
            try:
                _try(env, make_env, make_vector_env)
            except _DiffersError as error:
                if error.__cause__ is None:  # an exception may be temporary, such as MemoryError
                    _tried[key] = str(error)
                raise
            _tried[key] = None
        elif (known := _tried[key]) is not None:
            raise _DiffersError(known)
    finally:
        env.close()


def _expect_batch() -> None:
    """Raise NotNativeError unless this MuJoCo can step batches of simulations."""
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
    """Return the env with episodes short enough to end within a trial."""
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
        theirs = getattr(real, call)(*args, **copy.deepcopy(kwargs))  # it pops the mask
    except Exception as error:
        if is_of_a_task(real.envs[0]):
            raise
        raise _differs(error) from error
    try:
        ours = getattr(simulated, call)(*args, **kwargs)
    except Exception as error:
        raise _differs(error) from error
    if found := first_difference(ours, theirs, call):
        raise _DiffersError(found)


def _differs(error: Exception) -> _DiffersError:
    return _DiffersError(f"{type(error).__name__}: {error}")
