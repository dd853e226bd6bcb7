"""gymnasium's CartPole-v1, MountainCar-v0 and Acrobot-v1 as BatchEnvs, with the same numbers.

They make gymnasium's operations in the same order, on arrays: results are equal bit for bit where
NumPy rounds arrays like single numbers (tests compare them). But the square of a single number by
``**`` is a power of the C library, which rounds differently from a product. So workers replace
gymnasium's envs with these only if a trial finds that they are equal.

Pendulum and MountainCarContinuous are not here: they mix float32 and float64 numbers from step to
step, which arrays would have to follow row by row.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from gymnasium import spaces
from gymnasium.envs.classic_control.utils import maybe_parse_reset_bounds

from pysampler.envs._errors import ChangedError, RowError
from pysampler.envs.batch import BatchEnv

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pysampler.envs.batch import Array, Generators, Ids

__all__ = ["Acrobot", "CartPole", "MountainCar"]


class _Classic(BatchEnv):
    """Base class of envs whose resets draw a state between two bounds, which options may change.

    Attributes:
        bounds: The default bounds.
        wide: Bounds with which many episodes end soon, for trials.
    """

    bounds: ClassVar[tuple[float, float]]
    wide: ClassVar[tuple[float, float]]
    action_space: spaces.Discrete

    def __init__(self, num_envs: int) -> None:
        super().__init__(num_envs)
        self._given: dict[int, tuple[float, float]] = {}  # by env, the bounds of the next reset

    def set_options(self, ids: Ids, options: Sequence[dict[str, Any]]) -> None:
        """Use the bounds in these options for the reset that follows."""
        places = np.arange(self.num_envs)[ids].tolist()
        bounds = [maybe_parse_reset_bounds(one, *self.bounds) for one in options]
        self._given = dict(zip(places, bounds, strict=True))

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

    # -- helpers ---------------------------------------------------------------------------------

    def drawn(self, ids: Ids, rngs: Generators, shape: tuple[int, ...]) -> Array:
        """Draw a state for each of some envs, between their bounds."""
        if not self._given:
            return rngs.uniform(*self.bounds, shape)
        places, given = np.arange(self.num_envs)[ids].tolist(), self._given
        self._given = {}
        bounds = [given.get(i, self.bounds) for i in places]
        drawn = [rng.uniform(*one, shape) for rng, one in zip(rngs, bounds, strict=True)]
        return np.array(drawn).reshape(len(places), *shape)

    def expect_actions(self, ids: Ids, actions: Array) -> None:
        """Raise RowError unless all actions of some envs are in the space."""
        at = 0
        if actions.dtype.kind in "iu":
            wrong = self.outside(actions)
            if not wrong.any():
                return
            at = int(wrong.argmax())
        raise RowError(
            int(np.arange(self.num_envs)[ids][at]),
            f"action {actions[at]}, expected a whole number from 0 to {self.action_space.n - 1}",
        )

    def outside(self, actions: Array) -> Array:
        """Return which of these whole numbers are not in the action space."""
        as_unsigned = actions.view(f"u{actions.dtype.itemsize}")  # negative ones are large
        outside: Array = as_unsigned >= self.action_space.n
        return outside


class CartPole(_Classic):
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

    bounds, wide = (-0.05, 0.05), (-0.3, 0.3)
    max_episode_steps = 500
    action_space = spaces.Discrete(2)
    _X, _ANGLE = 2.4, 12 * 2 * math.pi / 360
    _HIGH = np.array([_X * 2, np.inf, _ANGLE * 2, np.inf], np.float32)
    observation_space = spaces.Box(-_HIGH, _HIGH, dtype=np.float32)

    def __init__(self, num_envs: int, *, sutton_barto_reward: bool = False) -> None:
        super().__init__(num_envs)
        self._sutton_barto = sutton_barto_reward
        self.state = self.rows((4,))  # x, its speed, theta, its speed
        self.beyond = self.rows((), np.int64)  # 0 during an episode; after its end, 1 + steps since

    @classmethod
    def arguments_of(cls, env: Any) -> dict[str, Any]:
        """Return the arguments with which these envs equal gymnasium's."""
        return {"sutton_barto_reward": env._sutton_barto_reward}

    def write_to(self, env: Any, place: int) -> None:
        """Write the state of the env at ``place`` to gymnasium's env."""
        env.state = self.state[place].copy()
        beyond = int(self.beyond[place])
        env.steps_beyond_terminated = beyond - 1 if beyond else None

    def read_from(self, env: Any, place: int) -> None:
        """Read the state of the env at ``place`` from gymnasium's env."""
        beyond = env.steps_beyond_terminated
        _expect_floats(env.state, 4)
        self.state[place] = env.state
        self.beyond[place] = 0 if beyond is None else beyond + 1

    def reset(self, ids: Ids, rngs: Generators) -> None:
        """Begin episodes of the envs ``ids``; see ``BatchEnv.reset``."""
        self.state[ids] = self.drawn(ids, rngs, (4,))
        self.beyond[ids] = 0

    def step(self, ids: Ids, actions: Array) -> tuple[Array, Array]:
        """Step the envs ``ids``; see ``BatchEnv.step``."""
        self.expect_actions(ids, actions)
        gravity, masspole, length, tau = 9.8, 0.1, 0.5, 0.02
        total_mass = masspole + 1.0
        polemass_length = masspole * length
        x, x_dot, theta, theta_dot = self.state[ids].T.copy()
        force = np.where(actions == 1, 10.0, -10.0)
        cos, sin = np.cos(theta), np.sin(theta)
        temp = (force + polemass_length * np.square(theta_dot) * sin) / total_mass
        theta_acc = (gravity * sin - cos * temp) / (
            length * (4.0 / 3.0 - masspole * np.square(cos) / total_mass)
        )
        x_acc = temp - polemass_length * theta_acc * cos / total_mass
        x = x + tau * x_dot
        theta = theta + tau * theta_dot
        self.state[ids] = np.array((x, x_dot + tau * x_acc, theta, theta_dot + tau * theta_acc)).T
        over = (np.abs(x) > self._X) | (np.abs(theta) > self._ANGLE)
        beyond = self.beyond[ids]
        again = over & (beyond > 0)  # without a reset in between
        self.beyond[ids] = beyond + over
        if self._sutton_barto:
            return np.where(over, -1.0, 0.0), over
        return 1.0 - again, over

    def observe(self, ids: Ids) -> Array:
        """Return the observations of the envs ``ids``."""
        return self.state[ids].astype(np.float32)


class MountainCar(_Classic):
    """gymnasium's MountainCar-v0 as a ``BatchEnv``.

    Args:
        num_envs: The number of envs.
        goal_velocity: As in gymnasium.
    """

    bounds, wide = (-0.6, -0.4), (-1.2, 0.55)
    max_episode_steps = 200
    action_space = spaces.Discrete(3)
    observation_space = spaces.Box(
        np.array([-1.2, -0.07], np.float32), np.array([0.6, 0.07], np.float32), dtype=np.float32
    )

    def __init__(self, num_envs: int, *, goal_velocity: float = 0) -> None:
        super().__init__(num_envs)
        self._goal_velocity = goal_velocity
        self.state = self.rows((2,))  # position and velocity
        self.fresh = self.rows((), bool)  # not stepped since a reset

    @classmethod
    def arguments_of(cls, env: Any) -> dict[str, Any]:
        """Return the arguments with which these envs equal gymnasium's."""
        return {"goal_velocity": env.goal_velocity}

    def write_to(self, env: Any, place: int) -> None:
        """Write the state of the env at ``place`` to gymnasium's env."""
        position, velocity = self.state[place].copy()
        if self.fresh[place]:
            env.state = np.array([position, velocity])
        else:  # at the wall gymnasium's is a Python number
            env.state = position, 0 if position == -1.2 and velocity == 0 else velocity

    def read_from(self, env: Any, place: int) -> None:
        """Read the state of the env at ``place`` from gymnasium's env."""
        _expect_floats(env.state, 2)
        self.state[place] = env.state
        self.fresh[place] = isinstance(env.state, np.ndarray)

    def reset(self, ids: Ids, rngs: Generators) -> None:
        """Begin episodes of the envs ``ids``; see ``BatchEnv.reset``."""
        self.state[ids, 0] = self.drawn(ids, rngs, ())
        self.state[ids, 1] = 0
        self.fresh[ids] = True

    def step(self, ids: Ids, actions: Array) -> tuple[Array, Array]:
        """Step the envs ``ids``; see ``BatchEnv.step``."""
        self.expect_actions(ids, actions)
        position, velocity = self.state[ids].T
        slopes = np.fromiter(map(math.cos, (3 * position).tolist()), float, len(position))
        velocity = velocity + ((actions - 1) * 0.001 + slopes * (-0.0025))
        velocity = np.clip(velocity, -0.07, 0.07)
        position = np.clip(position + velocity, -1.2, 0.6)
        velocity[(position == -1.2) & (velocity < 0)] = 0
        self.state[ids] = np.array((position, velocity)).T
        self.fresh[ids] = False
        return np.full(len(position), -1.0), (position >= 0.5) & (velocity >= self._goal_velocity)

    def observe(self, ids: Ids) -> Array:
        """Return the observations of the envs ``ids``."""
        return self.state[ids].astype(np.float32)


class Acrobot(_Classic):
    """gymnasium's Acrobot-v1 as a ``BatchEnv``.

    Args:
        num_envs: The number of envs.
    """

    bounds, wide = (-0.1, 0.1), (-40.0, 40.0)
    max_episode_steps = 500
    action_space = spaces.Discrete(3)
    _FASTEST = 4 * np.pi, 9 * np.pi
    _HIGH = np.array([1.0, 1.0, 1.0, 1.0, *_FASTEST], np.float32)
    observation_space = spaces.Box(-_HIGH, _HIGH, dtype=np.float32)

    def __init__(self, num_envs: int) -> None:
        super().__init__(num_envs)
        self.state = self.rows((4,))  # two angles and their speeds
        self.fresh = self.rows((), bool)  # not stepped since a reset, whose state is float32

    def write_to(self, env: Any, place: int) -> None:
        """Write the state of the env at ``place`` to gymnasium's env."""
        env.state = self.state[place].astype(np.float32 if self.fresh[place] else np.float64)

    def read_from(self, env: Any, place: int) -> None:
        """Read the state of the env at ``place`` from gymnasium's env."""
        fresh = getattr(env.state, "dtype", None) == np.float32
        if not fresh or env.state.shape != (4,):
            _expect_floats(env.state, 4)
        self.state[place] = env.state
        self.fresh[place] = fresh

    def reset(self, ids: Ids, rngs: Generators) -> None:
        """Begin episodes of the envs ``ids``; see ``BatchEnv.reset``."""
        self.state[ids] = self.drawn(ids, rngs, (4,)).astype(np.float32)
        self.fresh[ids] = True

    def step(self, ids: Ids, actions: Array) -> tuple[Array, Array]:
        """Step the envs ``ids``; see ``BatchEnv.step``."""
        self.expect_actions(ids, actions)
        torque, dt = np.array([-1.0, 0.0, 1.0])[actions], 0.2
        y = self.state[ids].T.copy()
        k1 = _derivatives(y, torque)
        k2 = _derivatives(y + dt / 2.0 * k1, torque)
        k3 = _derivatives(y + dt / 2.0 * k2, torque)
        k4 = _derivatives(y + dt * k3, torque)
        y = y + dt / 6.0 * (k1 + 2 * k2 + 2 * k3 + k4)
        first, second = map(_wrapped, y[:2])
        speeds = [
            np.clip(speed, -top, top) for speed, top in zip(y[2:], self._FASTEST, strict=True)
        ]
        self.state[ids] = np.array((first, second, *speeds)).T
        self.fresh[ids] = False
        over = -np.cos(first) - np.cos(second + first) > 1.0
        return np.where(over, 0.0, -1.0), over

    def observe(self, ids: Ids) -> Array:
        """Return the observations of the envs ``ids``."""
        rows = self.state[ids].T.copy()
        observations, fresh = _observed(rows), self.fresh[ids]
        if fresh.any():
            observations[fresh] = _observed(rows[:, fresh].astype(np.float32))
        return observations


def _expect_floats(state: Any, count: int) -> None:
    """Raise ChangedError unless a state consists of ``count`` numbers in double precision."""
    if np.shape(state) != (count,) or not all(isinstance(one, (int, float)) for one in state):
        raise ChangedError("state")


def _derivatives(y: Array, torque: Array) -> Array:
    """Return the derivatives of angles and speeds, by the equations that gymnasium calls "book"."""
    m1 = m2 = l1 = moment = 1.0
    lc1 = lc2 = 0.5
    g = 9.8
    theta1, theta2, speed1, speed2 = y
    cos2, sin2 = np.cos(theta2), np.sin(theta2)
    d1 = m1 * lc1**2 + m2 * (l1**2 + lc2**2 + 2 * l1 * lc2 * cos2) + moment + moment
    d2 = m2 * (lc2**2 + l1 * lc2 * cos2) + moment
    phi2 = m2 * lc2 * g * np.cos(theta1 + theta2 - np.pi / 2.0)
    phi1 = (
        -m2 * l1 * lc2 * np.float_power(speed2, 2) * sin2
        - 2 * m2 * l1 * lc2 * speed2 * speed1 * sin2
        + (m1 * lc1 + m2 * l1) * g * np.cos(theta1 - np.pi / 2)
        + phi2
    )
    acceleration2 = (
        torque + d2 / d1 * phi1 - m2 * l1 * lc2 * np.float_power(speed1, 2) * sin2 - phi2
    ) / (m2 * lc2**2 + moment - np.float_power(d2, 2) / d1)
    acceleration1 = -(d2 * acceleration2 + phi1) / d1
    return np.array([speed1, speed2, acceleration1, acceleration2])


def _observed(rows: Array) -> Array:
    """Return observations of rows of angles and speeds."""
    angles = [function(angle) for angle in rows[:2] for function in (np.cos, np.sin)]
    return np.stack([*angles, *rows[2:]], axis=1).astype(np.float32)


def _wrapped(angle: Array) -> Array:
    """Return angles from -pi to pi, by adding or subtracting whole turns like gymnasium."""
    turn = np.pi - -np.pi
    while (far := angle > np.pi).any():
        angle = np.where(far, angle - turn, angle)
    while (far := angle < -np.pi).any():
        angle = np.where(far, angle + turn, angle)
    return angle
