"""Tests, when envs are made, whether native blocks give the same results as the envs.

A user's function may have changed an env after gymnasium made it, so it is compared with a new env
of the same arguments. Then new envs and a block make the same steps, and all bits must agree.
"""

from __future__ import annotations

import contextlib
import copy
import sys
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np

from pysampler import _core
from pysampler._frames.frames import Frames, Plan
from pysampler._frames.spec import spec_of
from pysampler._vector.env_calls import layers_of, trial_or
from pysampler._vector.native.compare import first_difference
from pysampler._vector.native.known import NotNativeError, limit_of
from pysampler._vector.native.real import MANAGED
from pysampler._vector.same import same
from pysampler._workers.counters import Counters
from pysampler.sync import Segment

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Self

    from pysampler._vector.native.real import RealEnv

    Env = gym.Env[Any, Any]

__all__ = ["KnownEnv"]

# The length of episodes, and the step before which one env is reset alone, so that episodes end
# at different times: one env is stepped while the other is reset.
_LIMIT, _RESET_ONE_AT = 5, 3
_CHANGING = MANAGED - {"_cached_spec"}
# gym.make sets this attribute after it has made an env.
_SET_LATER = {*MANAGED, "spec"}
# Objects that each env has for itself. Models are compared apart.
_OWN = {"env", "task", "model", "data", "mujoco_renderer", "_fields", "_d"}


class KnownEnv:
    """An env that a native block may replace, with the means to make such a block.

    Args:
        env: The env, in wrappers that blocks can replace.

    Raises:
        NotNativeError: The env has a wrapper or an option that blocks do not support.
    """

    real: type[RealEnv]  # wraps an env, to load states of a block into it
    # The number of envs and of steps that a trial compares, and the options of the first resets.
    _envs, _steps = 2, 14
    _options: dict[str, Any] | None = None
    _users = False  # whether only a function of the user can make it again

    def __init__(self, env: Env) -> None:
        self.env = env
        self.limit = limit_of(env)
        self.base: Any = env.unwrapped
        # Of the results in a trial.
        self.reward_types: set[type] = set()
        self.info_keys: set[str] = set()
        # Copies, to make such an env again after a call has changed this one.
        self._wrappers = [copy.copy(layer) for layer in layers_of(env)][:-1]
        self._spec = copy.deepcopy(self.base.spec)
        self._unused: Env | None = None

    # -- defined by each kind of envs --------------------------------------------------------------

    def block(
        self, count: int, first: int, limit: int | None, meter: _core.Meter, *, inline: bool = False
    ) -> _core.BatchBlock:
        """Make a block of such envs, with episodes of at most ``limit`` steps."""
        raise NotImplementedError

    def _new_base(self) -> Env:
        """Return a new env, without wrappers, with the arguments of this one."""
        raise NotImplementedError

    def _parts(self, env: Env) -> Sequence[Any]:
        """Return the objects whose attributes distinguish one env from another."""
        return list(layers_of(env))

    def _objects(self, env: Env) -> list[Any]:
        """Return the objects of which an env consists."""
        return list(layers_of(env))

    def _state(self, env: Env) -> list[Any]:
        """Return all that steps and resets change in an env."""
        return [vars(one).get(name) for one in layers_of(env) for name in _CHANGING]

    # -- comparing -------------------------------------------------------------------------------

    def new(self) -> Env:
        """Return a new env with the arguments, the wrappers and the spec of this one."""
        new = self._new_base()
        new.spec = copy.deepcopy(self._spec)
        for layer in reversed(self._wrappers):
            wrapper: Any = copy.copy(layer)
            wrapper.env, new = new, wrapper
        return new

    def again(self, make: Callable[[], Env] | None) -> Self:
        """Return this kind of env as it was before any call, known by a new env.

        Args:
            make: Makes such an env; None: an env of the same arguments is made.
        """
        again = type(self)(self.new() if make is None else make())
        again.reward_types, again.info_keys = self.reward_types, self.info_keys
        return again

    def has(self, env: Env) -> bool:
        """Return whether another env is like this one, with the same arguments."""
        one, other = self._parts(self.env), self._parts(env)
        return [type(a) for a in one] == [type(b) for b in other] and all(
            _differing(a, b) is None for a, b in zip(one, other, strict=True)
        )

    def could_be_new(self, env: Env) -> bool:
        """Return whether another env, which equals this one, is unused, and nothing refers to it.

        Then ``new`` can make it again.
        """
        if self._users or env is self.env:
            return False
        if self._unused is None:
            self._unused = self.new()
        unused = self._unused  # as many references as the caller and this method have to the other
        pairs = zip(self._objects(env), self._objects(unused), strict=True)
        return (
            all(sys.getrefcount(one) == sys.getrefcount(other) for one, other in pairs)
            and env.unwrapped.spec == self._spec
            and env.action_space._np_random is env.observation_space._np_random is None  # no seeds
            and same(self._state(env), self._state(unused))
        )

    def expect_equal(self, make: Callable[[], Env] | None) -> None:
        """Compare new envs with a block, step by step.

        Args:
            make: Makes such an env; None if the function that made this one may have changed it.

        Raises:
            NotNativeError: They differ.
        """
        if self.env.render_mode == "human":
            raise NotNativeError("each step of an env with render_mode='human' draws a picture")
        with contextlib.ExitStack() as stack:
            new: list[Env] = []
            for _ in range(self._envs):
                new.append(self.new() if make is None else make())
                stack.callback(new[-1].close)
            if make is None:
                self._expect_unchanged(new[0])
            with trial_or(NotNativeError, Exception if self._users else NotNativeError):
                self._compare(new)

    def _expect_unchanged(self, new: Env) -> None:
        for one, other in zip(layers_of(self.env), layers_of(new), strict=True):
            if (name := _differing(one, other)) is not None:
                raise NotNativeError(f"{name} was changed after the env was made")

    def _compare(self, real: list[Env]) -> None:
        """Compare a block with real envs, in episodes that end at different times."""
        spec = spec_of(real[0].observation_space, real[0].action_space)
        count = len(real)
        plan = Plan(spec, count, 1, final=False)
        frames = Frames(plan, Segment(plan.size))
        counters = Counters(count, 1, np.zeros(Counters.size_of(count, 1), np.uint8))
        limit = _LIMIT if self.limit is None else min(self.limit, _LIMIT)
        block = self.block(count, 0, limit, counters.meter(0))
        block.use(frames, _core.Infos(), "NEXT_STEP", "ALL")
        elapsed, ended = [0] * count, [False] * count
        for step in range(self._steps):
            if step in (0, _RESET_ONE_AT):
                calls: list[Any] = [
                    (1 + i, self._options) if i == 0 or step == 0 else None for i in range(count)
                ]
                theirs: dict[int, Any] = {}
                for i, call in enumerate(calls):
                    if call is not None:
                        theirs[i] = real[i].reset(seed=call[0], options=call[1])
                        elapsed[i], ended[i] = 0, False
                block.reset(0, calls)
                _expect_equal(block, frames, theirs)
            actions = _actions(real[0].action_space, count, step)
            for i, env in enumerate(real):
                if ended[i]:
                    theirs[i] = env.reset()
                    elapsed[i], ended[i] = 0, False
                    continue
                observation, reward, terminated, truncated, info = env.step(actions[i])
                self.reward_types.add(type(reward))
                self.info_keys.update(info)
                elapsed[i] += 1
                truncated = truncated or elapsed[i] >= limit
                ended[i] = terminated or truncated
                flags = np.bool_(terminated), np.bool_(truncated)
                theirs[i] = observation, np.float64(reward), *flags, info
            block.step(0, actions)
            _expect_equal(block, frames, theirs)


def _differing(one: Any, other: Any) -> str | None:
    """Return the name of an attribute that differs between two objects; None if none does."""
    ours, theirs = vars(one), vars(other)
    own = _OWN if isinstance(one, gym.Env) else {"model"}  # of a task
    name: str
    for name in (ours.keys() | theirs.keys()) - _SET_LATER - own:
        if callable(getattr(type(one), name, None)) or not same(ours.get(name), theirs.get(name)):
            return name
    return None


def _actions(space: Any, count: int, seed: int) -> Any:
    rng = np.random.default_rng(seed)
    if isinstance(space, gym.spaces.Discrete):
        return space.start + rng.integers(space.n, size=count, dtype=space.dtype)
    low, high = (np.clip(bound, -1.0, 1.0) for bound in (space.low, space.high))
    return rng.uniform(low, high, (count, *space.shape)).astype(space.dtype)


def _expect_equal(block: _core.BatchBlock, frames: Frames, theirs: dict[int, Any]) -> None:
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
