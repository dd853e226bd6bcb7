"""BatchEnv: the base class of envs that are written for many at once, as arrays.

A Python env takes about a microsecond for every few operations. Here one NumPy operation, or one
call of numba or C, serves all envs of a worker. The author writes the arithmetic; autoreset, time
limits, seeds, infos, states and the rest of gymnasium's contract are done by the worker.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from pysampler import _core

if TYPE_CHECKING:
    from collections.abc import Sequence

    import gymnasium as gym
    import numpy.typing as npt

    Array = npt.NDArray[Any]
    Ids = npt.NDArray[np.int32] | slice

__all__ = ["BatchEnv", "Generators"]


class Generators(list[np.random.Generator]):
    """A list of the random generators of some envs, each of which depends only on its env's seed.

    You may use single ones (``[rng.integers(4) for rng in rngs]``), or draw for all at once with
    ``uniform`` and ``standard_normal``.
    """

    def of(self, ids: Ids) -> Generators:
        """Return the generators of the envs ``ids``."""
        chosen = self[ids] if isinstance(ids, slice) else [self[i] for i in ids.tolist()]
        return type(self)(chosen)

    def uniform(self, low: Any, high: Any, shape: int | tuple[int, ...] | None = None) -> Array:
        """Draw uniform numbers from every generator, in one call of C++.

        The numbers are those of each generator's own ``uniform``.

        Args:
            low: The lower bound, or an array of bounds.
            high: The upper bound, or an array of bounds.
            shape: The shape of the numbers of one env; None: the shape of the bounds.

        Returns:
            An array with a row for each env.
        """
        if type(low) is type(high) is float and type(shape) is int:  # the usual case
            drawn = np.empty((len(self), shape))
            _core.uniform(self, low, high, drawn)
            return drawn
        shape = self.shape_of(low, high, shape)
        if np.ndim(low) == np.ndim(high) == 0 or np.shape(low) == np.shape(high) == shape:
            drawn = np.empty((len(self), math.prod(shape)))
            _core.uniform(self, low, high, drawn)
            return drawn.reshape(len(self), *shape)
        return np.array([one.uniform(low, high, shape) for one in self]).reshape(len(self), *shape)

    def standard_normal(self, shape: int | tuple[int, ...] = ()) -> Array:
        """Draw standard normal numbers from every generator, in one call of C++.

        The numbers are those of each generator's own ``standard_normal``.

        Args:
            shape: The shape of the numbers of one env.

        Returns:
            An array with a row for each env.
        """
        sizes = tuple(shape) if np.iterable(shape) else (shape,)
        drawn = np.empty((len(self), math.prod(sizes)))
        if not _core.standard_normal(self, drawn):
            return np.array([one.standard_normal(shape) for one in self])
        return drawn.reshape(len(self), *sizes)

    def shape_of(self, low: Any, high: Any, shape: int | tuple[int, ...] | None) -> tuple[int, ...]:
        """Return the shape of the numbers of one env between two bounds."""
        if shape is None:
            return np.broadcast_shapes(np.shape(low), np.shape(high))
        return tuple(np.atleast_1d(shape).tolist()) if shape != () else ()


class BatchEnv:
    """Base class for envs that you write as arrays: many step in one call, each is a row.

    In a subclass, set the spaces of one env, make its state with ``rows``, and define ``reset``,
    ``step`` and ``observe``. Autoreset, time limits, seeds and the rest of gymnasium's contract are
    done for you. Pass the class to :func:`pysampler.make_vec`, or functions that return an instance
    to :class:`pysampler.VectorEnv`.

    Methods are called for any subset of the envs, so rows must not depend on each other.
    :func:`check_batch_env` tests that. Keep all state in the arrays of ``rows`` and change them in
    place (``self.at[ids] = ...``, never ``self.at = ...``), because ``get_state`` and ``set_state``
    copy these arrays.

    >>> class Walk(BatchEnv):
    ...     observation_space = gym.spaces.Box(-5, 5, (), np.float64)
    ...     action_space = gym.spaces.Discrete(2)
    ...     max_episode_steps = 100
    ...
    ...     def __init__(self, num_envs):
    ...         super().__init__(num_envs)
    ...         self.at = self.rows()
    ...
    ...     def reset(self, ids, rngs):
    ...         self.at[ids] = rngs.uniform(-1, 1)
    ...
    ...     def step(self, ids, actions):
    ...         self.at[ids] += 2 * actions - 1
    ...         over = np.abs(self.at[ids]) > 4
    ...         return -over.astype(float), over
    ...
    ...     def observe(self, ids):
    ...         return self.at[ids]
    >>> import pysampler
    >>> envs = pysampler.make_vec(Walk, num_envs=1000, num_workers=1)
    >>> observations, infos = envs.reset(seed=1)
    >>> observations.shape
    (1000,)
    >>> envs.close()

    Args:
        num_envs: The number of envs. Subclasses must have a parameter of this name, too.

    Attributes:
        observation_space: The space of one env's observation, which must be one array.
        action_space: The space of one env's action, which must be one array or number.
        reward_space: A ``Box`` of k numbers, if a reward has several. None: one number.
        max_episode_steps: Truncate episodes after this many steps; None: no limit.
        num_envs: The number of envs.
        rngs: The random generators of all envs. In ``step``, draw from ``self.rngs.of(ids)``. Do
            not keep generators elsewhere, because ``set_state`` replaces these.
        memory: The arrays of ``rows``, by name.
    """

    observation_space: gym.Space[Any]
    action_space: gym.Space[Any]
    reward_space: gym.spaces.Box | None = None
    max_episode_steps: int | None = None
    metadata: ClassVar[dict[str, Any]] = {}
    render_mode: str | None = None
    spec: Any = None

    def __init__(self, num_envs: int) -> None:
        self.num_envs = num_envs
        self.memory: dict[str, Array] = {}
        self.rngs = Generators()

    def rows(self, shape: tuple[int, ...] = (), dtype: Any = np.float64) -> Array:
        """Make an array with a row for each env, as a part of their state. Call it in ``__init__``.

        Args:
            shape: The shape of a row.
            dtype: The dtype of the array, without Python objects.

        Returns:
            An array of zeros.
        """
        if np.dtype(dtype).hasobject:
            raise ValueError(
                f"cannot make rows of {np.dtype(dtype)}: states are copied byte by byte"
            )
        array = np.zeros((self.num_envs, *shape), dtype)
        self.memory[f"rows{len(self.memory)}"] = array
        return array

    def reset(self, ids: Ids, rngs: Generators) -> dict[str, Array] | None:
        """Begin an episode in the envs ``ids``. Subclasses define it.

        Args:
            ids: The envs, as an array of indices or a slice: ``self.at[ids]`` are their rows.
            rngs: Their random generators.

        Returns:
            A dict of infos, each an array with a row for each of the envs; or None.
        """
        raise NotImplementedError(self._missing("reset(ids, rngs)"))

    def step(self, ids: Ids, actions: Array) -> tuple[Any, ...]:
        """Step the envs ``ids``. Subclasses define it.

        Args:
            ids: The envs, as an array of indices or a slice. Usually all of them step:
                ``slice(None)``.
            actions: Their actions, in the dtype that the caller passed.

        Returns:
            Rewards, terminated, and optionally a dict of infos. Each array has a row for each of
            the envs. They are copied at once, so you may return the same arrays in every step.
        """
        raise NotImplementedError(self._missing("step(ids, actions)"))

    def observe(self, ids: Ids) -> Array:
        """Return the observations of the envs ``ids``, a row each. Subclasses define it.

        They are copied at once, so you may return the same array in every step.

        Args:
            ids: The envs, as an array of indices or a slice.
        """
        raise NotImplementedError(self._missing("observe(ids)"))

    def set_options(self, ids: Ids, options: Sequence[dict[str, Any]]) -> None:  # noqa: ARG002
        """Take the options of the reset that follows. Override it if the envs take options.

        It is not called for envs that are reset without options. If it raises for several envs, it
        is called again for each of them alone, so that only those that raise are not reset.

        Args:
            ids: The envs that are reset with options.
            options: The options of each of them.
        """
        raise ValueError(f"{type(self).__name__} takes no options, got {options[0]}")

    def close(self) -> None:
        """Release resources, such as files. Override it if the envs have any."""

    @property
    def unwrapped(self) -> BatchEnv:
        """This object: a ``BatchEnv`` has no wrappers."""
        return self

    def _missing(self, method: str) -> str:
        return f"{type(self).__name__} has no method {method}"
