"""Tianshou's ``BaseVectorEnv`` on a ``pysampler.VectorEnv``."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium.spaces import Dict, Tuple
from gymnasium.vector import AutoresetMode
from tianshou.env import BaseVectorEnv

from pysampler._common.torch import to_array
from pysampler._vector.vector_env import VectorEnv as PysamplerVectorEnv
from pysampler.adapters import _env_calls
from pysampler.adapters._rows import env_indices, info_rows

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    import gymnasium as gym
    import numpy.typing as npt

    from pysampler._workers.counters import Stats

    # Observation, reward, terminated, truncated, info of one env.
    Row = tuple[Any, float, bool, bool, dict[str, Any]]

__all__ = ["VectorEnv"]


class VectorEnv(BaseVectorEnv):  # type: ignore[misc]
    """A drop-in for Tianshou's ``SubprocVectorEnv`` and ``ShmemVectorEnv``, on pysampler's workers.

    Collectors step subsets of the envs and reset those whose episodes have ended, so each env is a
    group. With ``wait_num`` or ``timeout`` the vector env is asynchronous: a step returns the
    results of the envs that are ready, and ``info["env_id"]`` their indices.

    Bounds of observations may differ between envs. Envs may lack spaces: observations and actions
    without a space of a known kind are pickled.

    >>> from tianshou.data import Collector  # doctest: +SKIP
    >>> envs = VectorEnv([lambda: gym.make("CartPole-v1")] * 8)  # doctest: +SKIP
    >>> Collector(policy, envs).collect(n_step=1000, reset_before_collect=True)  # doctest: +SKIP

    Args:
        env_fns: Functions that each make an env.
        wait_num: Return from a step as soon as this many envs are ready; None: all.
        timeout: Return from a step after this many seconds with the envs that are ready, at least
            one. None waits for ``wait_num``.
        kwargs: Options of ``pysampler.VectorEnv``, except ``autoreset_mode`` and ``groups``.

    Attributes:
        envs: The ``pysampler.VectorEnv``.
    """

    def __init__(
        self,
        env_fns: Sequence[Callable[[], gym.Env[Any, Any]]],
        wait_num: int | None = None,
        timeout: float | None = None,
        **kwargs: Any,
    ) -> None:
        count = len(env_fns)
        if wait_num is not None and not 1 <= wait_num <= count:
            raise ValueError(f"cannot make vector env: wait_num {wait_num}, expected 1 to {count}")
        if timeout is not None and timeout <= 0:
            raise ValueError(
                f"cannot make vector env: timeout {timeout}, expected more than 0 seconds, or None"
            )
        # The attributes of the base class, whose __init__ would make a worker for each env.
        self.env_num = count
        self.wait_num = wait_num or count
        self.timeout = timeout
        self.is_async = self.wait_num != count or timeout is not None
        self.waiting_id: list[int] = []
        self.ready_id = list(range(count))
        self.is_closed = False
        self._kept: dict[int, Row] = {}  # results not returned yet, longest ready first
        self.envs = PysamplerVectorEnv(
            [
                functools.partial(_env_calls.make_with_spaces, env_fn)
                if callable(env_fn)
                else env_fn
                for env_fn in env_fns
            ],
            autoreset_mode=AutoresetMode.DISABLED,
            groups=count,
            **{"shared_memory": False, "observation_mode": "different", **kwargs},
        )
        if isinstance(self.envs.single_observation_space, Tuple):
            self.envs.close()
            raise TypeError(
                "cannot make vector env: observations are tuples, expected arrays or dicts, which "
                "Tianshou supports"
            )

    # -- stepping --------------------------------------------------------------------------------

    def reset(
        self,
        env_id: int | list[int] | np.ndarray | None = None,
        *,
        seed: int | None = None,
        options: dict[str, Any] | None = None,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Reset envs, none of which may be stepping.

        Args:
            env_id: The indices of the envs; None: all.
            seed: The seed that each of them gets; None: no seed.
            options: The options for each env's ``reset``.

        Returns:
            The observations, and an array of infos.
        """
        self._assert_is_not_closed()
        envs = self._chosen(env_id)
        rows = self._reset(envs, [seed] * len(envs), options)
        for row in rows:
            del row[4]["env_id"]
        return _stacked(row[0] for row in rows), np.array([row[4] for row in rows])

    def step(
        self,
        action: Any,
        id: int | list[int] | np.ndarray | None = None,  # noqa: A002
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Step envs, and return the results of those that are ready.

        Args:
            action: A batch of actions, one for each env. If the vector env is asynchronous, None
                starts no step and waits for all of these envs.
            id: The indices of the envs; None: all.

        Returns:
            Observations, rewards, terminated, truncated and an array of infos, for the same envs in
            the same order. If the vector env is asynchronous, for the envs that are ready: see
            ``info["env_id"]``.
        """
        self._assert_is_not_closed()
        if action is None and not self.is_async:
            raise ValueError("cannot step: no actions, expected a row for each env")
        least, timeout = self.wait_num, self.timeout
        if action is None:
            envs = env_indices(self._wrap_id(id), self.env_num)
            least, timeout = len(envs), None
        else:
            envs = self._chosen(id)
            self._send(action, envs)
        rows = self._ready_rows(least, timeout) if self.is_async else self._rows_of(envs)
        observations, rewards, terminated, truncated, infos = zip(*rows, strict=True)
        ended, cut = np.array(terminated), np.array(truncated)
        return _stacked(observations), np.array(rewards), ended, cut, np.array(infos)

    def _send(self, action: Any, envs: list[int]) -> None:
        actions = to_array(action)
        if len(actions) != len(envs):
            raise ValueError(f"cannot step: {len(actions)} actions, expected {len(envs)}")
        self.envs.send(actions, envs)
        if self.is_async:
            self.waiting_id += envs
            self.ready_id = [env for env in self.ready_id if env not in set(envs)]

    def _reset(
        self, envs: list[int], seeds: list[int | None], options: dict[str, Any] | None
    ) -> list[Row]:
        self.envs.async_reset(seed=seeds, options=options, env_ids=envs)
        return self._rows_of(envs)

    def _chosen(self, given: int | list[int] | np.ndarray | None) -> list[int]:
        """Return indices of envs that are not stepping."""
        envs = env_indices(self._wrap_id(given), self.env_num)
        if self.is_async:
            self._assert_id(envs)
        return envs

    def _rows_of(self, envs: list[int]) -> list[Row]:
        """Wait for these envs, and return a row for each; keep the results of other envs."""
        while missing := sum(env not in self._kept for env in envs):
            self._receive(missing)
        return [self._kept.pop(env) for env in envs]

    def _ready_rows(self, least: int, timeout: float | None) -> list[Row]:
        """Wait for some of the stepping envs, and return a row for each that is ready."""
        wanted = min(least, len(self.waiting_id)) - len(self._kept)
        if wanted > 0:
            self._receive(wanted, timeout)
        if not self._kept:
            self._receive(1)
        rows, self._kept = self._kept, {}
        self.ready_id += rows
        self.waiting_id = [env for env in self.waiting_id if env not in rows]
        return list(rows.values())

    def _receive(self, least: int, timeout: float | None = None) -> None:
        """Wait for the next ready envs, and keep their results."""
        observations, rewards, terminated, truncated, infos = self.envs.recv(least, timeout=timeout)
        split = _split(self.envs.single_observation_space, observations, len(rewards))
        rows = zip(
            *(split, rewards.tolist(), terminated.tolist(), truncated.tolist()),
            info_rows(infos, len(rewards)),
            strict=True,
        )
        self._kept.update(zip(infos["env_id"].tolist(), rows, strict=True))

    # -- calls -----------------------------------------------------------------------------------

    def get_env_attr(self, key: str, id: int | list[int] | np.ndarray | None = None) -> list[Any]:  # noqa: A002
        """Return an attribute of envs.

        Args:
            key: The name of the attribute.
            id: The indices of the envs; None: all.

        Returns:
            The value of each env.
        """
        return self._apply(id, _env_calls.get_attribute, key)

    def set_env_attr(
        self,
        key: str,
        value: Any,
        id: int | list[int] | np.ndarray | None = None,  # noqa: A002
    ) -> None:
        """Set an attribute of envs, without their wrappers, to one value.

        Args:
            key: The name of the attribute.
            value: The value.
            id: The indices of the envs; None: all.
        """
        self._apply(id, _env_calls.set_unwrapped, key, value)

    def seed(self, seed: int | list[int] | None = None) -> list[list[int] | None]:
        """Reset all envs with seeds, and seed their action spaces.

        Args:
            seed: A number, to which the index of each env is added; or a list with one for each.

        Returns:
            The seed of each env, in a list.
        """
        self._assert_is_not_closed()
        envs = self._chosen(None)
        seeds: Any = [None] * len(envs)
        if seed is not None:
            seeds = [seed + env for env in envs] if isinstance(seed, int) else list(seed)
        for env, one in zip(envs, seeds, strict=True):
            self.envs.apply(_env_calls.seed_action_space, one, envs=[env])
        self._reset(envs, seeds, None)
        return [None if one is None else [one] for one in seeds]

    def render(self, **kwargs: Any) -> list[Any]:
        """Return the image of each env.

        Args:
            kwargs: The arguments for each env's ``render``.
        """
        return self._apply(None, _env_calls.call_method, "render", (), kwargs)

    def stats(self) -> Stats:
        """Return counters of the envs and workers so far; print them to see a table."""
        return self.envs.stats()

    def close(self) -> None:
        """Close the envs and end the workers."""
        self._assert_is_not_closed()
        self.envs.close()
        self.is_closed = True

    def _apply(self, given: Any, function: Callable[..., Any], *args: Any) -> list[Any]:
        """Run a function on envs, in their workers, after pending steps have ended."""
        self._assert_is_not_closed()
        envs = self._chosen(given)
        while self.envs.pending:
            self._receive(self.envs.pending)
        return list(self.envs.apply(function, *args, envs=envs))

    def __repr__(self) -> str:
        return f"<pysampler.adapters.tianshou.VectorEnv of {self.envs!r}>"


def _split(space: gym.Space[Any], batch: Any, count: int) -> list[Any]:
    """Split a batch of observations into one for each env."""
    if isinstance(space, Dict):
        split = {key: _split(part, batch[key], count) for key, part in space.items()}
        return [{key: values[row] for key, values in split.items()} for row in range(count)]
    if isinstance(space, Tuple):
        parts = [_split(part, one, count) for part, one in zip(space, batch, strict=True)]
        return list(zip(*parts, strict=True))
    return list(batch)


def _stacked(observations: Iterable[Any]) -> npt.NDArray[Any]:
    """Return observations in Tianshou's format: one array, or an array of objects."""
    rows = list(observations)
    if isinstance(rows[0], (np.ndarray, np.generic)):
        try:
            return np.stack(rows)
        except ValueError:  # their shapes differ
            pass
    batch = np.empty(len(rows), dtype=object)
    for i, row in enumerate(rows):  # one by one: NumPy would unpack the rows
        batch[i] = row
    return batch
