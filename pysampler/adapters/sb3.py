"""Stable-Baselines3's ``VecEnv`` on a ``pysampler.VectorEnv``."""

from __future__ import annotations

import functools
from copy import deepcopy
from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium.spaces import Dict, Tuple
from gymnasium.vector import AutoresetMode
from gymnasium.vector import VectorEnv as GymVectorEnv
from gymnasium.vector.utils import concatenate, create_empty_array
from stable_baselines3.common.vec_env import VecEnv as Sb3VecEnv

from pysampler._vector.arguments import env_ids
from pysampler._vector.transforms import adopted
from pysampler._vector.vector_env import VectorEnv, core_of
from pysampler.adapters import _env_calls
from pysampler.adapters._env_calls import MASK

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    import gymnasium as gym

    from pysampler._workers.counters import Stats

__all__ = ["VecEnv"]

# Dtypes of batched Python numbers and bools. NumPy scalars in infos rarely have them.
_PYTHON_TYPES = (np.dtype(float), np.dtype(int), np.dtype(bool))


class VecEnv(Sb3VecEnv):  # type: ignore[misc]
    """A drop-in for Stable-Baselines3's ``SubprocVecEnv`` with pysampler's workers.

    An env is reset in the step that ends its episode. As SB3 expects, the info of that step
    contains the last observation (``terminal_observation``), and whether the episode was only
    truncated (``TimeLimit.truncated``).

    >>> from stable_baselines3 import PPO  # doctest: +SKIP
    >>> envs = VecMonitor(VecEnv([lambda: gym.make("CartPole-v1")] * 8))  # doctest: +SKIP
    >>> PPO("MlpPolicy", envs).learn(100_000)  # doctest: +SKIP

    Action masks for sb3-contrib's ``MaskablePPO`` come with the results of each step, as the info
    ``action_mask``, without an extra call of the envs. If an env does not return this info itself,
    the worker calls its method ``action_masks``.

    Args:
        env_fns: Functions that each make an env or a vector env; or a vector env of this process
            with the autoreset mode SAME_STEP or DISABLED.
        start_method: How workers start, as in SB3: "fork", "spawn", or "forkserver", pysampler's
            fork server and the default. The same as ``context``.
        kwargs: Options of ``pysampler.VectorEnv``, except ``autoreset_mode``.

    Attributes:
        envs: The ``pysampler.VectorEnv``.
    """

    def __init__(
        self,
        env_fns: Sequence[Callable[[], gym.Env[Any, Any]]] | GymVectorEnv[Any, Any, Any],
        start_method: str | None = None,
        **kwargs: Any,
    ) -> None:
        if start_method is not None:
            if kwargs.get("context") is not None:
                raise ValueError(
                    f"cannot make vector env: start_method {start_method!r} and context "
                    f"{kwargs['context']!r}, expected one of them"
                )
            kwargs["context"] = start_method
        self._masks: np.ndarray | None = None  # for the next actions; None if infos had none
        self._given: GymVectorEnv[Any, Any, Any] | None = None
        if isinstance(env_fns, GymVectorEnv):
            if kwargs:
                raise TypeError(
                    f"cannot make vector env: {next(iter(kwargs))} is for envs to make, not for "
                    f"{env_fns}"
                )
            self.envs = adopted(env_fns, AutoresetMode.SAME_STEP)
            self._given = env_fns
        else:
            makers = [
                functools.partial(_env_calls.make_with_masks, one) if callable(one) else one
                for one in env_fns
            ]
            self.envs = VectorEnv(makers, autoreset_mode=AutoresetMode.SAME_STEP, **kwargs)
        try:
            if self.envs.reward_space is not None:
                raise ValueError(
                    "cannot make vector env: rewards have several numbers, and Stable-Baselines3 "
                    "takes one; wrap each env to make one of them"
                )
            envs = self.envs
            super().__init__(envs.num_envs, envs.single_observation_space, envs.single_action_space)
            self.metadata = dict(self.envs.metadata)
            core_of(self.envs).batcher.keeps_types = True
            self._has_mask_method = self.has_attr("action_masks")
        except BaseException:
            self.envs.close(terminate=True)
            raise

    def reset(self) -> Any:
        """Reset all envs, with the seeds and options of ``seed`` and ``set_options``.

        The results of a pending step are dropped.

        Returns:
            The observations.
        """
        # SB3's step() begins with step_async(), so a pending step may be one that was interrupted.
        core_of(self.envs).awaited = False
        options = [one or None for one in self._options]
        observations, infos = self.envs.reset(seed=list(self._seeds), options=options)
        self._masks = _masks_in(infos)
        self.reset_infos = _info_rows(infos, self.num_envs)
        self._reset_seeds()
        self._reset_options()
        return observations

    def step_async(self, actions: Any) -> None:
        """Start a step of all envs.

        Args:
            actions: An action for each env. Dict actions may also be a dict of arrays with a row
                for each env.
        """
        self._masks = None
        self.envs.step_async(self._batched(actions))

    def _batched(self, actions: Any) -> Any:
        space = self.action_space
        if not isinstance(space, (Dict, Tuple)) or isinstance(actions, dict):
            return actions
        if len(actions) != self.num_envs:
            raise ValueError(
                f"cannot send actions: {len(actions)} of them, expected {self.num_envs}"
            )
        batch: Any = create_empty_array(space, self.num_envs)
        return concatenate(space, actions, batch)

    def step_wait(self) -> Any:
        """Wait for the pending step and return its results.

        Returns:
            Observations, rewards, dones and a list of infos.
        """
        with _env_calls.converting(self._results):
            return self._results(self.envs.step_wait())

    def _results(self, stepped: Any) -> Any:
        observations, rewards, terminated, truncated, infos = stepped
        self._masks = _masks_in(infos)
        done = terminated | truncated
        rows = _info_rows(infos, self.num_envs)
        for env in np.flatnonzero(done).tolist():
            row = rows[env]
            last = {**row.pop("final_info", {}), "terminal_observation": row.pop("final_obs")}
            # SB3 expects the info of the following reset here.
            self.reset_infos[env] = row
            rows[env] = last
        for env, row in enumerate(rows):
            row["TimeLimit.truncated"] = bool(truncated[env] and not terminated[env])
        return observations, rewards.astype(np.float32), done, rows

    def close(self) -> None:
        """Close the envs and end the workers."""
        self.envs.close()
        if self._given is not None:
            self._given.close()

    def stats(self) -> Stats:
        """Return counters of the envs and workers so far; print them to see a table."""
        return self.envs.stats()

    def has_attr(self, attr_name: str) -> bool:
        """Return whether all envs have an attribute.

        It also returns True for ``action_masks`` if the envs return masks as infos.

        Args:
            attr_name: The name of the attribute.
        """
        if attr_name == "action_masks" and self._masks is not None:
            return True
        return all(self._apply(None, _env_calls.has_attribute, attr_name))

    def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:
        """Return an attribute of envs.

        Args:
            attr_name: The name of the attribute.
            indices: The indices of the envs; None: all.

        Returns:
            The value of each env.
        """
        return self._apply(indices, _env_calls.get_attribute, attr_name)

    def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None:
        """Set an attribute of envs to one value.

        Args:
            attr_name: The name of the attribute.
            value: The value.
            indices: The indices of the envs; None: all.
        """
        self._forget_masks()
        if indices is None:
            self.envs.set_attr(attr_name, [value] * self.num_envs)
        else:
            self._apply(indices, _env_calls.set_attribute, attr_name, value)

    def env_method(
        self, method_name: str, *method_args: Any, indices: Any = None, **method_kwargs: Any
    ) -> list[Any]:
        """Call a method of envs.

        Args:
            method_name: The name of the method.
            method_args: Positional arguments of the method.
            indices: The indices of the envs; None: all.
            method_kwargs: Keyword arguments of the method.

        Returns:
            The result of each env.
        """
        if method_name == "action_masks" and not (method_args or method_kwargs):
            if self._masks is not None:
                return list(self._masks[self._get_indices(indices)])
        else:
            self._forget_masks()
        return self._apply(indices, _env_calls.call_method, method_name, method_args, method_kwargs)

    def env_is_wrapped(self, wrapper_class: type[Any], indices: Any = None) -> list[bool]:
        """Return whether envs have a wrapper.

        Args:
            wrapper_class: The class of the wrapper.
            indices: The indices of the envs; None: all.

        Returns:
            A bool for each env.
        """
        return self._apply(indices, _env_calls.is_wrapped, _env_calls.ClassName.of(wrapper_class))

    def _apply(self, indices: Any, function: Callable[..., Any], *args: Any) -> list[Any]:
        """Run a function on envs, in their workers."""
        return list(self.envs.apply(function, *args, envs=self._get_indices(indices)))

    def _get_indices(self, indices: Any) -> list[int]:
        return _env_indices(super()._get_indices(indices), self.num_envs)

    def _forget_masks(self) -> None:
        """Ask the envs for masks until the next step, because a call may have changed them."""
        if self._has_mask_method:
            self._masks = None

    def get_images(self) -> Sequence[np.ndarray | None]:
        """Return the image of each env, or None if the render mode is not ``rgb_array``."""
        if self.render_mode != "rgb_array":
            return [None] * self.num_envs
        return list[Any](self.envs.render() or ())

    def __repr__(self) -> str:
        return f"<pysampler.adapters.sb3.VecEnv of {self.envs!r}>"


def _masks_in(infos: dict[str, Any]) -> np.ndarray | None:
    """Return the masks of all envs, ``[N, ...]``, or None if an env returned none."""
    if MASK not in infos or not infos[f"_{MASK}"].all():
        return None
    masks: np.ndarray = infos[MASK]
    if masks.dtype == object and len({np.shape(one) for one in masks}) == 1:
        masks = np.stack([*masks])  # their dtypes differ
    return None if masks.dtype == object else np.asarray(masks)


def _info_rows(infos: dict[str, Any], count: int) -> list[dict[str, Any]]:
    """Return batched infos as one dict for each of ``count`` envs."""
    rows: list[dict[str, Any]] = [{} for _ in range(count)]
    for key, values in infos.items():
        mask = infos.get(f"_{key}")
        if mask is None:  # it is a mask itself
            continue
        present: Iterable[int] = np.flatnonzero(mask).tolist()
        if isinstance(values, dict):
            inner = _info_rows(values, count)
            for row in present:
                rows[row][key] = inner[row]
        else:
            shared = values.ndim > 1 or values.dtype.hasobject  # envs here may change objects later
            if values.ndim == 1 and values.dtype in _PYTHON_TYPES:
                values = values.tolist()
            for row in present:
                rows[row][key] = deepcopy(values[row]) if shared else values[row]
    return rows


def _env_indices(given: Iterable[int], count: int) -> list[int]:
    """Return valid indices of envs, or raise. Negative ones count from the end."""
    envs: list[int] = env_ids(list(given)).tolist()
    if bad := [index for index in envs if not -count <= index < count]:
        raise IndexError(f"cannot choose env {bad[0]}: expected {-count} to {count - 1}")
    return [index % count for index in envs]
