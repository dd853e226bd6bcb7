"""BatchEnv: the base class of envs that are written for many at once, as arrays.

A Python env pays about a microsecond for every few operations. Here one NumPy operation, or one
call of numba or C, serves all envs of a worker. The author writes the arithmetic; autoreset, time
limits, seeds, infos, states and everything else of gymnasium's contract are done around it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    import gymnasium as gym
    import numpy.typing as npt

    Array = npt.NDArray[Any]
    Ids = npt.NDArray[np.int32] | slice

__all__ = ["BatchEnv", "Generators"]


class Generators(list[np.random.Generator]):
    """The random generators of some envs: a list of them, each depends only on its env's seed."""

    def of(self, ids: Ids) -> Generators:
        """Return the generators of some of these envs."""
        chosen = self[ids] if isinstance(ids, slice) else [self[i] for i in ids.tolist()]
        return type(self)(chosen)

    def uniform(self, low: Any, high: Any, shape: int | tuple[int, ...] | None = None) -> Array:
        """Return numbers from ``low`` to ``high``: the same as ``uniform`` of each generator.

        Args:
            low: The least number, or an array of them.
            high: The largest number, or an array of them.
            shape: The shape of the numbers of one env; by default that of the bounds.
        """
        shape = self.shape_of(low, high, shape)
        return np.array([one.uniform(low, high, shape) for one in self]).reshape(len(self), *shape)

    def shape_of(self, low: Any, high: Any, shape: int | tuple[int, ...] | None) -> tuple[int, ...]:
        """Return the shape of the numbers of one env between two bounds."""
        if shape is None:
            return np.broadcast_shapes(np.shape(low), np.shape(high))
        return tuple(np.atleast_1d(shape).tolist()) if shape != () else ()


class BatchEnv:
    """Many envs that step together, each a row of arrays.

    A subclass sets the spaces of one env, makes its state with ``rows``, and defines ``reset``,
    ``step`` and ``observe``. ``pysampler.make_vec`` makes a vector env of it, and
    ``pysampler.VectorEnv`` takes functions that return one. The envs may be in any state, and the
    methods get any of them: rows must not depend on each other. ``check_batch_env`` tests that.

    All state must be in the arrays of ``rows``, changed in place (``self.at[ids] = ...``, never
    ``self.at = ...``): those are what ``get_state`` returns and ``set_state`` sets.

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
        num_envs: The number of envs. Subclasses have this parameter too, by this name.

    Attributes:
        observation_space: The space of an observation, which must be one array.
        action_space: The space of an action, which must be one array or number.
        reward_space: A space of k numbers, if a reward has several; by default it is one number.
        max_episode_steps: Truncate episodes after this many steps; None for no limit.
        num_envs: The number of envs.
        rngs: The random generators of all envs: ``self.rngs.of(ids)`` in ``step``. Keep no others:
            ``set_state`` puts new ones here.
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
        """Return an array of zeros with a row for each env, as a part of their state.

        Args:
            shape: The shape of a row.
            dtype: The dtype.
        """
        if np.dtype(dtype).hasobject:
            raise ValueError(
                f"cannot make rows of {np.dtype(dtype)}: states are copied byte by byte"
            )
        array = np.zeros((self.num_envs, *shape), dtype)
        self.memory[f"rows{len(self.memory)}"] = array
        return array

    def reset(self, ids: Ids, rngs: Generators) -> dict[str, Array] | None:
        """Begin episodes of some envs.

        Args:
            ids: The rows of these envs, in an array of indices or as a slice.
            rngs: The random generator of each of them: ``self.rngs.of(ids)``.

        Returns:
            Infos, each an array with a row for each of these envs; or None. All of these envs have
            the same keys.
        """
        raise NotImplementedError(self._missing("reset(ids, rngs)"))

    def step(self, ids: Ids, actions: Array) -> tuple[Any, ...]:
        """Step some envs; usually all of them: ``ids`` is ``slice(None)`` then.

        Args:
            ids: The rows of these envs.
            actions: Their actions, in the dtype of the caller.

        Returns:
            Rewards and whether each env has terminated, and optionally infos as ``reset`` returns
            them. Each array has a row for each of these envs. They are copied at once, so you may
            return the same arrays in every step.
        """
        raise NotImplementedError(self._missing("step(ids, actions)"))

    def observe(self, ids: Ids) -> Array:
        """Return the observations of some envs, a row each. They are copied at once.

        Args:
            ids: The rows of these envs.
        """
        raise NotImplementedError(self._missing("observe(ids)"))

    def set_options(self, ids: Ids, options: Sequence[dict[str, Any]]) -> None:  # noqa: ARG002
        """Use the ``options`` of resets, which come next. Override it if the envs take some.

        It is called only for envs that were given options, not to return to the usual ones.

        Args:
            ids: The rows of the envs that were given options.
            options: The options of each of them.
        """
        raise ValueError(f"{type(self).__name__} takes no options, got {options[0]}")

    def close(self) -> None:
        """Release what the envs hold. Override it if need be."""

    @property
    def unwrapped(self) -> BatchEnv:
        """The envs themselves."""
        return self

    def _missing(self, method: str) -> str:
        return f"{type(self).__name__} has no method {method}"
