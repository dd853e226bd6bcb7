"""gymnasium's envs of classic control as BatchEnvs, with the same numbers.

C++ makes gymnasium's operations in the same order and types (``csrc/bindings/classic.cpp``), so
results are equal bit for bit where NumPy rounds arrays like single numbers (tests compare them).
Workers replace gymnasium's envs with these only if a trial finds that they are equal.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from gymnasium import spaces
from gymnasium.envs.classic_control.utils import maybe_parse_reset_bounds, verify_number_and_cast

from pysampler import _core
from pysampler.envs._errors import ChangedError, RowError
from pysampler.envs.batch import BatchEnv

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pysampler.envs.batch import Array, Generators, Ids

    # The lower and upper bounds of the numbers that a reset draws.
    Bounds = tuple[Any, Any]

__all__ = ["Acrobot", "CartPole", "MountainCar", "MountainCarContinuous", "Pendulum"]


class Classic(BatchEnv):
    """Base class of envs whose resets draw a state between two bounds, which options may change.

    Args:
        num_envs: The number of envs.
        arguments: Further arguments of the kernel.

    Attributes:
        kernel: What steps the envs.
        state: The numbers of each env's state, of which a reset draws the first.
        phase: 0 after a reset; each kernel says what other numbers mean.
    """

    # The default bounds, and options with which many episodes end soon, for trials.
    bounds: ClassVar[Any]
    wide: ClassVar[dict[str, Any]] = {}
    # The class of the kernel, the numbers of a state, and how many of them a reset draws.
    _kernel: ClassVar[Any]
    _width: ClassVar[int]
    _drawn: ClassVar[int]

    def __init__(self, num_envs: int, *arguments: Any) -> None:
        super().__init__(num_envs)
        self.state = self.rows((self._width,))
        self.phase = self.rows((), np.int64)
        low, high = (np.broadcast_to(bound, self._drawn).tolist() for bound in self.bounds)
        self.kernel: _core.Classic = self._kernel(self.state, self.phase, low, high, *arguments)
        self._given: dict[int, Bounds] = {}  # by env, the bounds of the next reset

    @classmethod
    def bounds_of(cls, options: Any) -> Bounds:
        """Return the bounds of a reset with these options."""
        return maybe_parse_reset_bounds(options, *cls.bounds)

    def set_options(self, ids: Ids, options: Sequence[dict[str, Any]]) -> None:
        """Use the bounds in these options for the reset that follows."""
        places = np.arange(self.num_envs)[ids].tolist()
        bounds = [self.bounds_of(one) for one in options]
        self._given.update(zip(places, bounds, strict=True))

    def reset(self, ids: Ids, rngs: Generators) -> None:
        """Begin episodes of the envs ``ids``; see ``BatchEnv.reset``."""
        places, given = np.arange(self.num_envs, dtype=np.int32)[ids], self._given
        self._given = {}
        self.state[ids] = 0
        for place, rng in zip(places.tolist(), rngs, strict=True):
            low, high = given.get(place, self.bounds)
            self.state[place, : self._drawn] = rng.uniform(low, high, (self._drawn,))
        self.kernel.begun(places)

    def step(self, ids: Ids, actions: Array) -> tuple[Array, Array]:
        """Step the envs ``ids``; see ``BatchEnv.step``."""
        results: Any = self.kernel.step(self._indices(ids), actions)
        if results is None:
            self._refuse(ids, actions)
        rewards, terminated = results
        return rewards, terminated

    def observe(self, ids: Ids) -> Array:
        """Return the observations of the envs ``ids``."""
        return self.kernel.observe(self._indices(ids))

    def _indices(self, ids: Ids) -> Array | None:
        """Return the indices of envs; None for all of them."""
        every = isinstance(ids, slice) and ids == slice(None)
        return None if every else np.arange(self.num_envs, dtype=np.int32)[ids]

    def _refuse(self, ids: Ids, actions: Array) -> None:
        """Raise RowError for an action that is not in the space."""
        space: Any = self.action_space
        wrong = (at for at in range(len(actions)) if not self.kernel.takes(actions[at : at + 1]))
        at = next(wrong, 0)
        if isinstance(space, spaces.Box):
            expected = f"whole numbers, float32 or float64 of shape {space.shape}"
        else:
            expected = f"a whole number from 0 to {space.n - 1}, at most 63 bits wide"
        place = int(np.arange(self.num_envs)[ids][at])
        raise RowError(place, f"action {actions[at]!r}, expected {expected}")

    # -- the state of gymnasium's env -------------------------------------------------------------

    @classmethod
    def arguments_of(cls, env: Any) -> dict[str, Any]:  # noqa: ARG003 - subclasses use it
        """Return the arguments, except ``num_envs``, with which these envs equal gymnasium's."""
        return {}

    def write_to(self, env: Any, place: int) -> None:
        """Write the state of the env at ``place`` to gymnasium's env."""
        raise NotImplementedError

    def read_from(self, env: Any, place: int) -> None:
        """Read the state of the env at ``place`` from gymnasium's env.

        Raises:
            ChangedError: These envs cannot have its state.
        """
        raise NotImplementedError


class CartPole(Classic):
    """gymnasium's CartPole-v1 as a ``BatchEnv``.

    >>> import pysampler
    >>> envs = pysampler.make_vec(CartPole, num_envs=1024, num_workers=1)
    >>> envs.reset(seed=1)[0].shape
    (1024, 4)
    >>> envs.close()

    Args:
        num_envs: The number of envs.
        sutton_barto_reward: As in gymnasium.
    """

    bounds = (-0.05, 0.05)
    wide: ClassVar = {"low": -0.3, "high": 0.3}
    max_episode_steps = 500
    action_space = spaces.Discrete(2)
    _HIGH = np.array([2.4 * 2, np.inf, 12 * 2 * math.pi / 360 * 2, np.inf], np.float32)
    observation_space = spaces.Box(-_HIGH, _HIGH, dtype=np.float32)
    _kernel, _width, _drawn = _core.CartPole, 4, 4  # x, its speed, theta, its speed

    def __init__(self, num_envs: int, *, sutton_barto_reward: bool = False) -> None:
        super().__init__(num_envs, sutton_barto_reward)

    @classmethod
    def arguments_of(cls, env: Any) -> dict[str, Any]:
        """Return the arguments with which these envs equal gymnasium's."""
        return {"sutton_barto_reward": env._sutton_barto_reward}

    def write_to(self, env: Any, place: int) -> None:
        """Write the state of the env at ``place`` to gymnasium's env."""
        env.state = self.state[place].copy()
        beyond = int(self.phase[place])  # 1 + the steps since the end of the episode
        env.steps_beyond_terminated = beyond - 1 if beyond else None

    def read_from(self, env: Any, place: int) -> None:
        """Read the state of the env at ``place`` from gymnasium's env."""
        beyond = env.steps_beyond_terminated
        _expect_floats(env.state, 4)
        self.state[place] = env.state
        self.phase[place] = 0 if beyond is None else beyond + 1


class _Car(Classic):
    """Base class of cars between two hills: position and velocity."""

    bounds = (-0.6, -0.4)
    wide: ClassVar = {"low": -1.2, "high": 0.55}
    observation_space = spaces.Box(
        np.array([-1.2, -0.07], np.float32), np.array([0.6, 0.07], np.float32), dtype=np.float32
    )
    _width, _drawn = 2, 1

    def __init__(self, num_envs: int, *, goal_velocity: float = 0) -> None:
        super().__init__(num_envs, goal_velocity)

    @classmethod
    def arguments_of(cls, env: Any) -> dict[str, Any]:
        """Return the arguments with which these envs equal gymnasium's."""
        return {"goal_velocity": env.goal_velocity}


class MountainCar(_Car):
    """gymnasium's MountainCar-v0 as a ``BatchEnv``.

    Args:
        num_envs: The number of envs.
        goal_velocity: As in gymnasium.
    """

    max_episode_steps = 200
    action_space = spaces.Discrete(3)
    _kernel = _core.MountainCar

    def write_to(self, env: Any, place: int) -> None:
        """Write the state of the env at ``place`` to gymnasium's env."""
        position, velocity = self.state[place].copy()
        if self.phase[place] == 0:
            env.state = np.array([position, velocity])
        else:  # at the wall gymnasium's is a Python number
            env.state = position, 0 if position == -1.2 and velocity == 0 else velocity

    def read_from(self, env: Any, place: int) -> None:
        """Read the state of the env at ``place`` from gymnasium's env."""
        _expect_floats(env.state, 2)
        self.state[place] = env.state
        self.phase[place] = not isinstance(env.state, np.ndarray)


class MountainCarContinuous(_Car):
    """gymnasium's MountainCarContinuous-v0 as a ``BatchEnv``.

    Args:
        num_envs: The number of envs.
        goal_velocity: As in gymnasium.
    """

    max_episode_steps = 999
    action_space = spaces.Box(-1.0, 1.0, (1,), np.float32)
    _kernel = _core.MountainCarContinuous

    def write_to(self, env: Any, place: int) -> None:
        """Write the state of the env at ``place`` to gymnasium's env."""
        env.state = self.state[place].astype(np.float32 if self.phase[place] else np.float64)

    def read_from(self, env: Any, place: int) -> None:
        """Read the state of the env at ``place`` from gymnasium's env."""
        _expect_floats(env.state, 2, float32=True)
        self.state[place] = env.state
        self.phase[place] = getattr(env.state, "dtype", None) == np.float32


class Acrobot(Classic):
    """gymnasium's Acrobot-v1 as a ``BatchEnv``.

    Args:
        num_envs: The number of envs.
    """

    bounds = (-0.1, 0.1)
    wide: ClassVar = {"low": -40.0, "high": 40.0}
    max_episode_steps = 500
    action_space = spaces.Discrete(3)
    _HIGH = np.array([1.0, 1.0, 1.0, 1.0, 4 * np.pi, 9 * np.pi], np.float32)
    observation_space = spaces.Box(-_HIGH, _HIGH, dtype=np.float32)
    _kernel, _width, _drawn = _core.Acrobot, 4, 4  # two angles and their speeds

    def __init__(self, num_envs: int) -> None:
        super().__init__(num_envs)

    def write_to(self, env: Any, place: int) -> None:
        """Write the state of the env at ``place`` to gymnasium's env."""
        env.state = self.state[place].astype(np.float64 if self.phase[place] else np.float32)

    def read_from(self, env: Any, place: int) -> None:
        """Read the state of the env at ``place`` from gymnasium's env."""
        _expect_floats(env.state, 4, float32=True)
        self.state[place] = env.state
        self.phase[place] = getattr(env.state, "dtype", None) != np.float32


class Pendulum(Classic):
    """gymnasium's Pendulum-v1 as a ``BatchEnv``.

    Args:
        num_envs: The number of envs.
        g: As in gymnasium.
    """

    bounds = (-np.array([np.pi, 1.0]), np.array([np.pi, 1.0]))
    max_episode_steps = 200
    action_space = spaces.Box(-2.0, 2.0, (1,), np.float32)
    _HIGH = np.array([1.0, 1.0, 8.0], np.float32)
    observation_space = spaces.Box(-_HIGH, _HIGH, dtype=np.float32)
    _kernel, _width, _drawn = _core.Pendulum, 3, 2  # angle, its speed and the last torque

    def __init__(self, num_envs: int, *, g: float = 10.0) -> None:
        super().__init__(num_envs, g)

    @classmethod
    def bounds_of(cls, options: Any) -> Bounds:
        """Return the bounds of a reset with these options."""
        if options is None:
            return cls.bounds
        given = options.get("x_init", np.pi), options.get("y_init", 1.0)
        high = np.array([verify_number_and_cast(one) for one in given])
        return -high, high

    @classmethod
    def arguments_of(cls, env: Any) -> dict[str, Any]:
        """Return the arguments with which these envs equal gymnasium's."""
        return {"g": env.g}

    def write_to(self, env: Any, place: int) -> None:
        """Write the state of the env at ``place`` to gymnasium's env."""
        *state, torque = self.state[place]
        env.state = np.array(state)
        kinds = None, np.float32, np.float64
        kind = kinds[int(self.phase[place])]
        env.last_u = None if kind is None else kind(torque)

    def read_from(self, env: Any, place: int) -> None:
        """Read the state of the env at ``place`` from gymnasium's env."""
        _expect_floats(env.state, 2)
        last = env.last_u
        if type(last) not in (type(None), np.float32, np.float64):
            raise ChangedError("last_u")
        self.state[place] = *env.state, 0.0 if last is None else last
        self.phase[place] = 0 if last is None else 1 if type(last) is np.float32 else 2


def _expect_floats(state: Any, count: int, *, float32: bool = False) -> None:
    """Raise ChangedError unless a state has ``count`` numbers of the expected type."""
    single = float32 and getattr(state, "dtype", None) == np.float32
    if np.shape(state) != (count,) or not (
        single or all(isinstance(one, (int, float)) for one in state)
    ):
        raise ChangedError("state")
