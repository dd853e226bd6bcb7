"""PettingZoo's parallel envs on a ``pysampler.VectorEnv``: each agent is a row of the batch.

To workers, a parallel env is one env. Its observations stack the agents' observations, rewards and
flags, so that all of them are in shared memory.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode
from gymnasium.vector import VectorEnv as GymVectorEnv
from gymnasium.vector.utils import batch_space, create_empty_array, iterate
from pettingzoo import ParallelEnv

from pysampler._common.numbers import whole_number
from pysampler._frames.spec import spec_of
from pysampler._policies.trees import mapped
from pysampler._vector.vector_env import VectorEnv
from pysampler.adapters._env_calls import converting

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy.typing as npt

__all__ = ["ParallelVectorEnv", "make_vec"]


class ParallelVectorEnv(GymVectorEnv[Any, Any, np.ndarray]):
    """Step PettingZoo's parallel envs as a vector env with a row for each agent of each env.

    The rows of the first env come first, in the order of its ``possible_agents``. All agents must
    have the same spaces; SuperSuit's ``pad_observations_v0`` and ``pad_action_space_v0`` can
    achieve that. An env is reset in the step that ends the episodes of all its agents: the infos of
    that step contain the last observations (``final_obs``).

    If the episode of one agent ends earlier, its row stays until the env is reset, with zeros as
    observations and rewards; its actions are ignored. The info ``active`` is True for rows of
    agents that act in the next step.

    Args:
        env_fns: Functions that each make a parallel env.
        options: Options of ``pysampler.VectorEnv``, except ``autoreset_mode``.

    Attributes:
        envs: The ``pysampler.VectorEnv``, with one env for each parallel env.
        possible_agents: The names of the first env's agents, in the order of its rows.

    >>> from mpe2 import simple_spread_v3  # doctest: +SKIP
    >>> envs = ParallelVectorEnv([simple_spread_v3.parallel_env] * 8)  # doctest: +SKIP
    >>> envs.num_envs  # doctest: +SKIP
    24
    """

    def __init__(
        self, env_fns: Sequence[Callable[[], ParallelEnv[Any, Any, Any]]], **options: Any
    ) -> None:
        self.envs = VectorEnv(
            [functools.partial(_stacked, env_fn) for env_fn in env_fns],
            autoreset_mode=AutoresetMode.SAME_STEP,
            **options,
        )
        first = self.envs.apply(_agents_and_spaces, envs=[0])[0]
        self.possible_agents, self.single_observation_space, self.single_action_space = first
        self._agents = len(self.possible_agents)
        self.num_envs = self.envs.num_envs * self._agents
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self.action_space = batch_space(self.single_action_space, self.num_envs)
        self.metadata = self.envs.metadata
        self.render_mode = self.envs.render_mode
        self._every_row = np.ones(self.num_envs, np.bool_)

    def reset(
        self, *, seed: int | list[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Reset all envs.

        Args:
            seed: A number, to which the index of each env is added; or a list with one for each
                env (not for each agent).
            options: The options for each env's ``reset``.

        Returns:
            Observations and infos.
        """
        parts, infos = self.envs.reset(seed=seed, options=options)
        active = parts["flags"][:, :, 2] != 0
        return self._flat(parts["observations"]), self._infos(infos, active)

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Step all envs.

        Args:
            actions: A batch of actions, one for each row. Those of inactive agents are ignored.

        Returns:
            Observations, rewards, terminated, truncated, infos.
        """
        with converting(self._results):
            return self._results(self.envs.step(self._by_env(actions)))

    def step_async(self, actions: Any) -> None:
        """Start a step; ``step_wait`` returns its results.

        Args:
            actions: See ``step``.
        """
        self.envs.step_async(self._by_env(actions))

    def step_wait(self, timeout: float | None = None) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Wait for the pending step, and return its results.

        Args:
            timeout: Raise WaitTimeoutError after this many seconds; the step stays pending. None
                waits forever.

        Returns:
            Observations, rewards, terminated, truncated, infos.
        """
        with converting(self._results):
            return self._results(self.envs.step_wait(timeout))

    def _results(self, stepped: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Convert the results of a step from a row per env to a row per agent."""
        parts, _, _, _, infos = stepped
        rewards = parts["rewards"].copy()  # a copy: a frame must not be changed
        flags = parts["flags"] != 0
        active = flags[:, :, 2].copy()
        if "final_obs" in infos:
            # The env was reset in this step: its last observation holds the last rewards and flags.
            lost = infos.get("final_info", {}).get("worker_lost")
            for env in np.flatnonzero(infos["_final_obs"]).tolist():
                last = infos["final_obs"][env]
                rewards[env], flags[env] = last["rewards"], last["flags"]
                if lost is not None and lost[env]:  # from the step before the loss
                    rewards[env], flags[env, :, 0] = 0, False
                    flags[env, :, 1] = flags[env, :, 2]
        if (failed := infos.get("env_error")) is not None:  # likewise
            rewards[failed], flags[failed, :, :2] = 0, False
        rows = flags.reshape(self.num_envs, 3)
        return (
            self._flat(parts["observations"]),
            rewards.reshape(-1),
            *(rows[:, 0].copy(), rows[:, 1].copy()),
            self._infos(infos, active),
        )

    def render(self) -> tuple[Any, ...] | None:
        """Return an image of each env, which shows all its agents."""
        return self.envs.render()

    def close_extras(self, **kwargs: Any) -> None:
        """Close the envs and end the workers."""
        self.envs.close(**kwargs)

    def _by_env(self, actions: Any) -> Any:
        """Return views of a batch of agents as a batch of envs."""
        return _mapped(self._array_by_env, self.single_action_space, actions)

    def _array_by_env(self, rows: Any) -> npt.NDArray[Any]:
        array = np.asarray(rows)
        if array.ndim == 0 or len(array) != self.num_envs:
            raise ValueError(
                f"cannot send actions: shape {array.shape}, expected a row for each of "
                f"{self.num_envs} agents"
            )
        return array.reshape(self.envs.num_envs, self._agents, *array.shape[1:])

    def _flat(self, observations: Any) -> Any:
        """Return views of a batch of envs as a batch of agents."""
        return _mapped(
            lambda array: array.reshape(self.num_envs, *array.shape[2:]),
            *(self.single_observation_space, observations),
        )

    def _infos(self, infos: dict[str, Any], active: npt.NDArray[Any]) -> dict[str, Any]:
        rows = self._info_rows(infos) if infos else {}
        rows["active"] = active.reshape(-1)
        rows["_active"] = self._every_row.copy()
        return rows

    def _info_rows(self, infos: dict[str, Any]) -> dict[str, Any]:
        """Return infos with a row per agent; infos of the env itself are repeated."""
        rows: dict[str, Any] = {}
        for key, value in infos.items():
            if key == "final_obs":
                rows[key] = self._final_rows(value, infos["_final_obs"])
            elif key == _AGENTS:
                for agent in range(self._agents):
                    self._add_infos(rows, value.get(str(agent), {}), agent)
            elif key == f"_{_AGENTS}":
                continue
            elif isinstance(value, dict):
                rows[key] = self._info_rows(value)
            else:
                rows[key] = np.repeat(value, self._agents, axis=0)
        return rows

    def _final_rows(self, finals: Any, present: npt.NDArray[np.bool_]) -> npt.NDArray[Any]:
        rows = np.full(self.num_envs, None, dtype=object)
        space = batch_space(self.single_observation_space, self._agents)
        for env in np.flatnonzero(present).tolist():
            for agent, row in enumerate(iterate(space, finals[env]["observations"])):
                rows[env * self._agents + agent] = row
        return rows

    def _add_infos(self, rows: dict[str, Any], infos: dict[str, Any], agent: int) -> None:
        """Add the infos of the agents with index ``agent``, one of each env, to ``rows``."""
        for key, value in infos.items():
            if isinstance(value, dict):
                self._add_infos(rows.setdefault(key, {}), value, agent)
                continue
            array = rows.get(key)
            if array is None:
                empty = None if value.dtype == object else 0
                array = np.full((self.num_envs, *value.shape[1:]), empty, value.dtype)
            elif array.dtype != value.dtype or array.shape[1:] != value.shape[1:]:
                array, value = (np.fromiter(one, object, len(one)) for one in (array, value))
            array[agent :: self._agents] = value
            rows[key] = array


def make_vec(
    env_fn: Callable[[], ParallelEnv[Any, Any, Any]], num_envs: int, **options: Any
) -> ParallelVectorEnv:
    """Make a :class:`ParallelVectorEnv` of copies of one parallel env.

    Args:
        env_fn: A function that makes a parallel env.
        num_envs: The number of parallel envs. The vector env has a row for each agent of each.
        options: Options of ``pysampler.VectorEnv``, except ``autoreset_mode``.

    Returns:
        The vector env.
    """
    count = whole_number("make vector env", "num_envs", num_envs, 1)
    return ParallelVectorEnv([env_fn] * count, **options)


# The key of an env's info that holds the infos of its agents, by index.
_AGENTS = "agents"


def _stacked(env_fn: Callable[[], ParallelEnv[Any, Any, Any]]) -> _StackedEnv:
    """Make a parallel env, wrapped for a worker."""
    return _StackedEnv(env_fn())


class _StackedEnv(gym.Env[Any, Any]):
    """A parallel env as one env; its observations stack the results of all agents."""

    def __init__(self, env: ParallelEnv[Any, Any, Any]) -> None:
        if not isinstance(env, ParallelEnv):
            raise TypeError(
                f"the function of an env returned {type(env).__name__}, expected a pettingzoo "
                "ParallelEnv; pettingzoo.utils.conversions.aec_to_parallel converts an AECEnv"
            )
        if not getattr(env, "possible_agents", None):
            raise ValueError(
                f"cannot stack agents: {type(env).__name__} has no possible_agents, expected a "
                "list of all possible agents"
            )
        self._env = env
        self.possible_agents = list(env.possible_agents)
        count = len(self.possible_agents)
        self.agent_observation_space = self._common(env.observation_space, "observation")
        self.agent_action_space = self._common(env.action_space, "action")
        spec = spec_of(self.agent_observation_space, self.agent_action_space)
        if spec.unshaped_observations or spec.unshaped_actions:
            raise ValueError(
                f"cannot stack agents: {self.agent_observation_space} and "
                f"{self.agent_action_space} have parts without a fixed shape"
            )
        self.observation_space = spaces.Dict(
            {
                "observations": batch_space(self.agent_observation_space, count),
                "rewards": spaces.Box(-np.inf, np.inf, (count,), np.float64),
                "flags": spaces.MultiBinary((count, 3)),
            }
        )
        self.action_space = batch_space(self.agent_action_space, count)
        self.metadata = env.metadata
        self.render_mode = getattr(env.unwrapped, "render_mode", None)
        zeros = create_empty_array(self.agent_observation_space, count)
        self._absent = next(iter(iterate(self.observation_space["observations"], zeros)))

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        observations, infos = self._env.reset(seed=seed, options=options)
        return self._stacked(observations, {}, {}, {}), self._info(infos)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Step the parallel env, with the actions of its active agents."""
        active = set(self._env.agents)
        rows = zip(self.possible_agents, iterate(self.action_space, action), strict=True)
        actions = {agent: row for agent, row in rows if agent in active}
        observations, rewards, terminated, truncated, infos = self._env.step(actions)
        over = all(
            terminated.get(agent, False) or truncated.get(agent, False)
            for agent in self._env.agents
        )
        stacked = self._stacked(observations, rewards, terminated, truncated)
        return stacked, 0.0, over, False, self._info(infos)

    def render(self) -> Any:
        return self._env.render()

    def close(self) -> None:
        self._env.close()

    def _common(self, space_of: Callable[[Any], Any], kind: str) -> spaces.Space[Any]:
        """Return the space of all agents, or raise ValueError if they differ."""
        first, *others = self.possible_agents
        space: spaces.Space[Any] = space_of(first)
        for agent in others:
            if (other := space_of(agent)) != space:
                raise ValueError(
                    f"cannot stack agents: the {kind} space of {agent!r} is {other}, that of "
                    f"{first!r} {space}, expected the same; supersuit.pad_observations_v0 and "
                    "pad_action_space_v0 make them equal"
                )
        return space

    def _stacked(
        self,
        observations: dict[Any, Any],
        rewards: dict[Any, Any],
        terminated: dict[Any, Any],
        truncated: dict[Any, Any],
    ) -> dict[str, Any]:
        agents, active = self.possible_agents, set(self._env.agents)
        rows = [observations.get(agent, self._absent) for agent in agents]
        flags = [
            (terminated.get(agent, False), truncated.get(agent, False), agent in active)
            for agent in agents
        ]
        return {
            "observations": mapped(
                lambda zero, *rows: np.array(rows, zero.dtype), self._absent, *rows
            ),
            "rewards": np.array([rewards.get(agent, 0) for agent in agents], np.float64),
            "flags": np.array(flags, np.int8),
        }

    def _info(self, infos: dict[Any, Any]) -> dict[str, Any]:
        present = {
            str(i): infos[agent] for i, agent in enumerate(self.possible_agents) if infos.get(agent)
        }
        return {_AGENTS: present} if present else {}


def _agents_and_spaces(env: _StackedEnv) -> tuple[list[Any], Any, Any]:
    return env.possible_agents, env.agent_observation_space, env.agent_action_space


def _mapped(function: Callable[[Any], Any], space: spaces.Space[Any], batch: Any) -> Any:
    """Apply a function to each array in a batch of a space."""
    if isinstance(space, spaces.Dict):
        return {key: _mapped(function, part, batch[key]) for key, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(_mapped(function, *both) for both in zip(space.spaces, batch, strict=True))
    return function(batch)
