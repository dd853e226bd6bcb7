"""Tries, where envs are made, whether simulations of their task equal them.

A user's function may have changed an env after gymnasium made it, so the env is compared with a new
one of the same arguments. Then new envs are stepped beside simulations, bit for bit.
"""

from __future__ import annotations

import contextlib
import copy
import importlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import mujoco
import numpy as np

from pysampler import _core
from pysampler._frames.frames import Frames, Plan
from pysampler._frames.spec import spec_of
from pysampler._vector.env_calls import layers_of
from pysampler._vector.mujoco.block import TaskBlock
from pysampler._vector.mujoco.compare import first_difference
from pysampler._vector.mujoco.known import NotNativeError, is_of_a_task, task_of
from pysampler._vector.mujoco.real import MANAGED, digest_of
from pysampler._workers.counters import Counters
from pysampler.sync import Segment

if TYPE_CHECKING:
    from collections.abc import Callable

    import gymnasium as gym

    from pysampler.envs.mujoco.task import Task

__all__ = ["KnownTask", "known_task"]

# The envs and steps to compare, the most steps of an episode, and the step before which one env is
# reset alone: their episodes then end apart, so one is stepped while the other is reset.
_ENVS, _STEPS, _LIMIT, _RESET_ONE_AT = 2, 14, 5, 3
# gym.make sets this attribute after it has made an env.
_SET_LATER = {*MANAGED, "spec"}
_PLAIN = bool, int, float, str, tuple, type(None), np.ndarray


@dataclass
class KnownTask:
    """A task whose simulations equal some env, and what the env is like."""

    env: gym.Env[Any, Any]
    task: Task
    limit: int | None
    digest: bytes

    def has(self, env: gym.Env[Any, Any]) -> bool:
        """Return whether another env is of this task too, with the same arguments and model."""
        one, other = _parts(self.env), _parts(env)
        model: Any = other[-1].model
        return (
            [type(a) for a in one] == [type(b) for b in other]
            and all(_differing(a, b) is None for a, b in zip(one, other, strict=True))
            and digest_of(model) == self.digest
        )


def _parts(env: gym.Env[Any, Any]) -> list[Any]:
    """Return the objects whose attributes tell one env from another."""
    layers = list(layers_of(env))
    return [*layers, layers[-1].task] if is_of_a_task(env) else layers


def known_task(
    env: gym.Env[Any, Any], make: Callable[[], gym.Env[Any, Any]] | None = None
) -> KnownTask:
    """Return the task of an env, if its simulations equal the env bit for bit.

    Args:
        env: The env.
        make: Makes another one; None if the env has to be copied.

    Raises:
        NotNativeError: They do not, or the env has no task.
    """
    task, limit = task_of(env)
    _expect_batches()
    users = is_of_a_task(env)
    if users and make is None:
        raise NotNativeError("only make_vec simulates tasks of your own together")
    if env.render_mode == "human":
        raise NotNativeError("each step of an env with render_mode='human' draws a picture")
    known = KnownTask(env, task, limit, digest_of(task.model))
    with contextlib.ExitStack() as stack:
        new = []
        for _ in range(_ENVS):
            new.append(_new(env) if make is None else make())
            stack.callback(new[-1].close)
        if make is None:
            _expect_unchanged(known, new[0])
        try:
            _compare(new, known)
        except Exception as error:
            if users or isinstance(error, NotNativeError):
                raise
            raise NotNativeError(f"a trial raised {type(error).__name__}: {error}") from error
    return known


def _new(env: gym.Env[Any, Any]) -> gym.Env[Any, Any]:
    """Return a new env with the arguments of this one, which is what copies of these envs are."""
    try:
        return copy.deepcopy(env)
    except Exception as error:
        raise NotNativeError(f"a copy of the env cannot be made: {error!r}") from error


def _expect_unchanged(known: KnownTask, new: gym.Env[Any, Any]) -> None:
    for one, other in zip(layers_of(known.env), layers_of(new), strict=True):
        if (name := _differing(one, other)) is not None:
            raise NotNativeError(f"{name} was changed after the env was made")
    if digest_of(task_of(new)[0].model) != known.digest:
        raise NotNativeError("its model was changed after the env was made")


def _expect_batches() -> None:
    """Raise NotNativeError unless this MuJoCo can step batches of simulations."""
    try:
        importlib.import_module("mujoco.batch")
    except ImportError:
        version = mujoco.__version__
        raise NotNativeError(f"mujoco {version} has no batches, expected 3.17 or newer") from None
    if getattr(mujoco, "MJTNUM_DTYPE", np.float64) != np.float64:
        raise NotNativeError("this MuJoCo computes in single precision")


def _differing(one: Any, other: Any) -> str | None:
    """Return the name of an attribute, a number or an array, that differs between two objects."""
    ours, theirs = ({k: v for k, v in vars(x).items() if k not in _SET_LATER} for x in (one, other))
    name: str
    for name in ours.keys() | theirs.keys():
        a, b = ours.get(name), theirs.get(name)
        if callable(getattr(type(one), name, None)) or isinstance(a, _PLAIN) != isinstance(
            b, _PLAIN
        ):
            return name
        if isinstance(a, _PLAIN) and not _equal(a, b):
            return name
    return None


def _equal(a: Any, b: Any) -> bool:
    if isinstance(a, np.ndarray) or isinstance(b, np.ndarray):
        return type(a) is type(b) and a.dtype == b.dtype and np.array_equal(a, b)
    if isinstance(a, tuple) and isinstance(b, tuple):
        return len(a) == len(b) and all(map(_equal, a, b))
    return type(a) is type(b) and (not isinstance(a, _PLAIN) or bool(a == b))


def _compare(real: list[gym.Env[Any, Any]], known: KnownTask) -> None:
    """Step simulations beside real envs, in episodes that end apart.

    Raises:
        NotNativeError: They differ.
    """
    spec = spec_of(real[0].observation_space, real[0].action_space)
    plan = Plan(spec, _ENVS, 1, final=False)
    frames = Frames(plan, Segment(plan.size))
    counters = Counters(_ENVS, 1, np.zeros(Counters.size_of(_ENVS, 1), np.uint8))
    limit = _LIMIT if known.limit is None else min(known.limit, _LIMIT)
    block = TaskBlock(known.task, _ENVS, 0, limit, counters.meter(0))
    block.use(frames, _core.Infos(), "NEXT_STEP", "ALL")
    elapsed, ended = [0] * _ENVS, [False] * _ENVS
    for step in range(_STEPS):
        if step in (0, _RESET_ONE_AT):
            calls: list[Any] = [(1, None), (2, None) if step == 0 else None]
            theirs: dict[int, Any] = {}
            for i, call in enumerate(calls):
                if call is not None:
                    theirs[i] = real[i].reset(seed=call[0])
                    elapsed[i], ended[i] = 0, False
            block.reset(0, calls)
            _expect_equal(block, frames, theirs)
        actions = _actions(real[0].action_space, step)
        for i, env in enumerate(real):
            if ended[i]:
                theirs[i] = env.reset()
                elapsed[i], ended[i] = 0, False
                continue
            observation, reward, terminated, truncated, info = env.step(actions[i])
            elapsed[i] += 1
            truncated = truncated or elapsed[i] >= limit
            ended[i] = terminated or truncated
            flags = np.bool_(terminated), np.bool_(truncated)
            theirs[i] = observation, np.float64(reward), *flags, info
        block.step(0, actions)
        _expect_equal(block, frames, theirs)


def _actions(space: Any, step: int) -> Any:
    low, high = (np.clip(bound, -1.0, 1.0) for bound in (space.low, space.high))
    drawn = np.random.default_rng(step).uniform(low, high, (_ENVS, *space.shape))
    return drawn.astype(space.dtype)


def _expect_equal(block: TaskBlock, frames: Frames, theirs: dict[int, Any]) -> None:
    """Raise NotNativeError unless the block's last results equal those of real envs."""
    infos: list[dict[str, Any]] = [{} for _ in range(block.count)]  # none has a column
    for kind, i, value in block.take_overflow():
        if kind == _core.EnvBlock.ERROR:
            text = f"its simulations raised {type(value).__name__}: {value}"
            raise NotNativeError(text) from value
        infos[i] |= value
    [observations] = frames.observations
    for i, results in theirs.items():
        rows = observations, frames.rewards, frames.terminated, frames.truncated
        ours = *(array[0, i] for array in rows), infos[i]
        call = "reset" if len(results) == 2 else "step"
        if call == "reset":
            ours = ours[0], ours[4]
        if found := first_difference(ours, results, call):
            raise NotNativeError(f"its simulations differ from it: {found}")
