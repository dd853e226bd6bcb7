"""EnvPool's envs as a gymnasium vector env, with ``send`` and ``recv`` as in pysampler."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import envpool
import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode
from gymnasium.vector import VectorEnv as GymVectorEnv
from gymnasium.vector.utils import batch_space

from pysampler._vector import arguments

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    Array = npt.NDArray[Any]
    # Observations, rewards, terminated, truncated, infos.
    Stepped = tuple[Any, Array, Array, Array, dict[str, Any]]

__all__ = ["VectorEnv"]


class VectorEnv(GymVectorEnv[Any, Any, Any]):
    """EnvPool's envs as a gymnasium vector env.

    Pass it to ``pysampler.Rollouts``, ``evaluate`` or gymnasium's vector wrappers, or return it
    from a function of ``pysampler.VectorEnv``. EnvPool's own objects differ from gymnasium: they
    have the spaces of one env, infos without masks, rewards of float32, and take seeds in ``make``
    only. The autoreset mode is EnvPool's, ``NEXT_STEP``.

    >>> envs = VectorEnv("CartPole-v1", 64, num_threads=2)  # doctest: +SKIP
    >>> rollouts = pysampler.Rollouts(envs, policy, horizon=128)  # doctest: +SKIP

    Args:
        task_id: The id of an env in EnvPool, for one player.
        num_envs: The number of envs.
        kwargs: Further arguments of ``envpool.make``, such as ``num_threads`` and ``batch_size``.

    Attributes:
        envs: EnvPool's object.
    """

    def __init__(self, task_id: str, num_envs: int = 1, **kwargs: Any) -> None:
        self._make = functools.partial(
            envpool.make, task_id, env_type="gymnasium", num_envs=num_envs, **kwargs
        )
        self.envs = self._make()
        if self.envs.config.get("max_num_players", 1) > 1:
            self.envs.close()
            raise ValueError(f"cannot make vector env: {task_id} has several players")
        self.metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP}
        self.num_envs = num_envs
        self.single_observation_space = self.envs.observation_space
        self.single_action_space = self.envs.action_space
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self.batch_size = int(self.envs.config["batch_size"]) or num_envs
        self._pending = np.zeros(num_envs, bool)  # envs whose results recv has not returned yet
        self._last: Any = None  # the last observations of all envs

    def reset(
        self, *, seed: int | Sequence[int] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Reset all envs, or those of ``options["reset_mask"]``.

        Args:
            seed: A number, to which each env's index is added, or a list with one for each env.
                Since EnvPool seeds envs when it makes them, all envs are made again.
            options: None, or ``{"reset_mask": mask}`` to reset only the envs where the mask is
                True.
        """
        self._expect_idle("reset")
        options = dict(options or {})
        mask = options.pop("reset_mask", None)
        if options:
            raise ValueError(f"cannot reset envs: EnvPool takes no options, got {options}")
        if mask is None:
            self._seed(seed)
            self._last, infos = self.envs.reset()
            return self._last, _with_masks(infos, np.ones(self.num_envs, bool))
        if seed is not None:
            raise ValueError("cannot reset some envs with seeds: EnvPool seeds all of them")
        if self._last is None:
            raise ValueError("cannot reset some envs: reset all of them before, without a mask")
        chosen = np.flatnonzero(arguments.reset_mask(mask, self.num_envs)).astype(np.int32)
        observations, infos = self.envs.reset(chosen)
        self._last = _placed(observations, infos["env_id"], self._last)
        return self._last, {}

    def _seed(self, seed: int | Sequence[int] | None) -> None:
        if seed is None:
            return
        given = arguments.seeds(seed, self.num_envs)
        drawn = np.random.default_rng().integers(0, 2**31, self.num_envs).tolist()
        pairs = zip(given, drawn, strict=True)
        seeds = [other if one is None else int(one) for one, other in pairs]
        self.envs.close()
        self.envs = self._make(seed=[one % 2**31 for one in seeds])  # EnvPool's seeds have 31 bits

    def step(self, actions: Any) -> Stepped:
        """Step all envs, and wait for the results.

        Args:
            actions: A batch of actions, one per env.

        Returns:
            Observations, rewards, terminated, truncated, infos.
        """
        self._expect_idle("step")
        self.send(actions)
        results = self.recv()
        del results[4]["env_id"]
        return results

    def _expect_idle(self, doing: str) -> None:
        """Raise an error unless all envs are idle and step together."""
        if self.closed:
            raise gym.error.ClosedEnvironmentError(f"cannot {doing}: the vector env is closed")
        if self.batch_size != self.num_envs:
            raise ValueError(
                f"cannot {doing} all envs: batch_size is {self.batch_size}; use async_reset(), "
                "send() and recv()"
            )
        if self._pending.any():
            raise gym.error.AlreadyPendingCallError(
                f"Calling `{doing}` while waiting for a pending call to `send` to complete", "send"
            )

    # -- some envs at a time ---------------------------------------------------------------------

    def async_reset(self, seed: int | Sequence[int] | None = None) -> None:
        """Start a reset of all envs; ``recv`` returns the results, with ``info["env_id"]``.

        Args:
            seed: See ``reset``.
        """
        self._begin("async_reset", np.arange(self.num_envs))
        self._seed(seed)
        self.envs.async_reset()

    def send(self, actions: Any, env_ids: Any = None) -> None:
        """Start a step of some or all envs; ``recv`` returns the results.

        Args:
            actions: A batch of actions: row i is for env ``env_ids[i]``.
            env_ids: The indices of the envs to step, none of which may be pending; None: all.
        """
        everyone = range(self.num_envs)
        envs = arguments.indices(everyone if env_ids is None else env_ids, self.num_envs)
        converted = self._converted(actions, len(envs))
        self._begin("send", np.array(envs, np.int64))
        self.envs.send(converted, np.array(envs, np.int32))

    def _begin(self, doing: str, envs: Array) -> None:
        if self.closed:
            raise gym.error.ClosedEnvironmentError(f"cannot {doing}: the vector env is closed")
        if self._pending[envs].any() or len({*envs.tolist()}) < len(envs):
            raise gym.error.AlreadyPendingCallError(
                f"Calling `{doing}` for an env that waits for a pending call to complete", "send"
            )
        self._pending[envs] = True

    def recv(self, min_envs: int | None = None, max_envs: int | None = None) -> Stepped:
        """Wait until ``batch_size`` envs are ready, and return their results.

        ``info["env_id"]`` is the env of each row.

        Args:
            min_envs: None or ``batch_size``: EnvPool cannot return other numbers of envs.
            max_envs: None or ``batch_size``.
        """
        for name, given in (("min_envs", min_envs), ("max_envs", max_envs)):
            if given not in (None, self.batch_size):
                raise ValueError(
                    f"cannot receive: {name} {given}, expected batch_size ({self.batch_size})"
                )
        if self._pending.sum() < self.batch_size:
            raise gym.error.NoAsyncCallError(
                f"Calling `recv` with {self._pending.sum()} envs pending, expected at least "
                f"{self.batch_size}",
                "send",
            )
        observations, rewards, terminated, truncated, infos = self.envs.recv()
        envs = infos["env_id"].astype(np.int64)
        self._pending[envs] = False
        if self.batch_size == self.num_envs:
            self._last = observations
        ends = terminated.astype(bool), truncated.astype(bool)
        masked = {**_with_masks(infos, np.ones(len(envs), bool)), "env_id": envs}
        return observations, rewards.astype(np.float64), *ends, masked

    def _converted(self, actions: Any, count: int) -> Array:
        """Return checked actions in EnvPool's dtype. EnvPool itself checks nothing."""
        space: Any = self.single_action_space
        array = np.asarray(actions)
        expected = count, *(space.shape or ())
        if array.shape != expected:
            raise ValueError(f"cannot step: actions of shape {array.shape}, expected {expected}")
        if not np.can_cast(array.dtype, space.dtype, "same_kind"):
            raise TypeError(f"cannot step: actions of {array.dtype}, expected {space.dtype}")
        if isinstance(space, gym.spaces.Discrete):
            outside = (array < space.start) | (array >= space.start + space.n)
            if outside.any():
                wrong = array[outside][0]
                raise ValueError(f"cannot step: action {wrong}, expected one of {space}")
        return array.astype(space.dtype)

    def close_extras(self, **_: Any) -> None:
        """Close EnvPool's envs."""
        self.envs.close()


def _with_masks(infos: dict[str, Any], mask: Array) -> dict[str, Any]:
    """Return EnvPool's infos in gymnasium's form, with masks and without ids."""
    masked: dict[str, Any] = {}
    for key, value in infos.items():
        if key not in ("env_id", "players"):
            masked[key] = _with_masks(value, mask) if isinstance(value, dict) else value
            masked[f"_{key}"] = mask
    return masked


def _placed(rows: Any, ids: Array, last: Any) -> Any:
    """Return the last observations with the rows of some envs replaced."""
    if isinstance(last, dict):
        return {key: _placed(rows[key], ids, one) for key, one in last.items()}
    observations = last.copy()
    observations[ids] = rows
    return observations
