"""One simulation of a task as an ordinary gymnasium env."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import mujoco
import numpy as np
from gymnasium.wrappers import OrderEnforcing, TimeLimit

from pysampler.envs.batch import Generators
from pysampler.envs.mujoco._checks import (
    check_before,
    check_begin,
    check_infos,
    check_observations,
    check_step,
)
from pysampler.envs.mujoco._fields import STATE, begin, fields_of, load, read_only
from pysampler.envs.mujoco.task import Simulations

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt

    from pysampler.envs.mujoco.task import Task

__all__ = ["TaskEnv", "make_env"]

# The attributes in which gymnasium's envs keep their random generator.
_GENERATOR = "_np_random", "_np_random_seed"


class TaskEnv(gym.Env[Any, Any]):
    """One simulation of a task, as an ordinary gymnasium env.

    >>> from pysampler.envs.mujoco import HalfCheetah
    >>> import gymnasium as gym
    >>> model = gym.make("HalfCheetah-v5").unwrapped.model
    >>> env = TaskEnv(HalfCheetah(model))
    >>> observation, info = env.reset(seed=1)
    >>> observation.shape
    (17,)

    Args:
        task: The task: an instance, not the class.
        render_mode: "rgb_array" for images by ``render()``; None renders nothing.

    Attributes:
        model: The ``MjModel``.
        data: The ``MjData`` of the simulation.
        takes_tasks: Tells samplers that ``reset`` takes ``options={"task": task}``.
    """

    takes_tasks = True

    def __init__(self, task: Task, render_mode: str | None = None) -> None:
        if isinstance(task, type):
            raise TypeError(f"expected a task, got its class; use TaskEnv({task.__name__}(...))")
        if render_mode not in (None, "rgb_array"):
            raise ValueError(f"render_mode {render_mode!r}, expected 'rgb_array' or None")
        self.task = task.for_simulations(1)
        self.metadata = dict(task.metadata)
        self.render_mode = render_mode
        self.model = task.model
        self.data = mujoco.MjData(self.model)
        self.observation_space = task.observation_space
        self.action_space = task.action_space
        self._fields = fields_of(self.data, task.fields)
        self._d = Simulations(read_only(self._fields))
        self._checked_begin = self._checked_step = False
        self._renderer: Any = None

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Begin an episode.

        Args:
            seed: The seed of the random generator; None keeps its state.
            options: ``{"task": task}`` sets a task first.

        Returns:
            The first observation and its info.
        """
        super().reset(seed=seed)
        if options and "task" in options:
            self.reset_task(options["task"])
        mujoco.mj_resetData(self.model, self.data)
        task = self.task
        begun = task.reset(Generators([self.np_random]), np.zeros(1, np.int32))
        if not self._checked_begin:
            check_begin(task, begun, 1)
        self._fields["time"][0] = 0
        begin(self._fields, slice(None), begun)
        self.data.time = self._fields["time"][0]
        mujoco.mj_forward(self.model, self.data)
        observations, infos = task.observe(self._d), task.reset_info(self._d)
        if not self._checked_begin:
            check_observations(task, observations, 1)
            check_infos(task, "reset_info", infos, 1)
            self._checked_begin = True
        return observations[0].copy(), _row(infos)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Step the simulation by ``frame_skip`` steps of MuJoCo.

        Args:
            action: The action.

        Returns:
            Observation, reward, terminated, truncated (always False), info.
        """
        action = np.asarray(action)
        if action.shape != self.action_space.shape:
            raise ValueError(
                f"cannot step: action of shape {action.shape}, expected {self.action_space.shape}"
            )
        self._fields["time"][0] = self.data.time
        task, actions = self.task, action[None]
        before = task.before(self._d)
        self.data.ctrl[:] = task.control(actions)[0]
        mujoco.mj_step(self.model, self.data, nstep=self.task.frame_skip)
        if self.task.forces:
            mujoco.mj_rnePostConstraint(self.model, self.data)
        self._fields["time"][0] = self.data.time
        result = task.reward(self._d, before, actions)
        rewards, infos = result if isinstance(result, tuple) else (result, {})
        terminated = task.terminated(self._d)
        observations = task.observe(self._d)
        if not self._checked_step:
            check_before(task, before, self._fields)
            check_step(task, rewards, terminated, infos, 1)
            check_observations(task, observations, 1)
            self._checked_step = True
        over = bool(np.all(terminated))
        return observations[0].copy(), rewards[0], over, False, _row(infos)

    def get_state(self) -> dict[str, Any]:
        """Return the state of the physics, of the task's memory and of the random generator."""
        row = np.empty(mujoco.mj_stateSize(self.model, STATE))
        mujoco.mj_getState(self.model, self.data, row, STATE)
        return {
            "physics": row,
            "fields": {name: getattr(self.data, name).copy() for name in self.task.fields},
            "memory": {name: array.copy() for name, array in self.task.memory.items()},
            "generator": copy.deepcopy(
                {name: vars(self)[name] for name in _GENERATOR if name in vars(self)}
            ),
        }

    def set_state(self, state: dict[str, Any]) -> None:
        """Set the env to a state that ``get_state`` returned."""
        load(self.model, self.data, state["physics"], state["fields"])
        self._fields["time"][0] = self.data.time
        for name, array in self.task.memory.items():
            array[:] = state["memory"][name]
        vars(self).update(copy.deepcopy(state["generator"]))

    def sample_tasks(self, count: int) -> list[Any]:
        """Return ``count`` tasks, drawn with the random generator of the env."""
        return self.task.sample_tasks(count, self.np_random)

    def reset_task(self, task: Any) -> None:
        """Set the task, which is used from the next reset on."""
        self.task.set_tasks(np.zeros(1, np.int32), [task])

    def render(self) -> npt.NDArray[np.uint8] | None:
        """Return an image; None without ``render_mode="rgb_array"``."""
        if self.render_mode is None:
            return None
        if self._renderer is None:
            self._renderer = mujoco.Renderer(self.model)
        self._renderer.update_scene(self.data)
        return self._renderer.render()

    def close(self) -> None:
        """Close the renderer."""
        if self._renderer is not None:
            self._renderer.close()


def make_env(
    task: Callable[..., Task],
    render_mode: str | None = None,
    max_episode_steps: int | None = None,
    **kwargs: Any,
) -> gym.Env[Any, Any]:
    """Make an ordinary env of one simulation of a task, with a time limit.

    Args:
        task: The class of the task.
        render_mode: "rgb_array" for images by ``render()``; None renders nothing.
        max_episode_steps: Truncate episodes after this many steps; None: the limit of the task.
        **kwargs: Arguments of the task.
    """
    made = task(**kwargs)
    steps = made.max_episode_steps if max_episode_steps is None else max_episode_steps
    env: gym.Env[Any, Any] = OrderEnforcing(TaskEnv(made, render_mode))
    return env if steps is None else TimeLimit(env, steps)


def _row(infos: dict[str, npt.NDArray[Any]]) -> dict[str, Any]:
    return {key: np.array(array[0]) if array.ndim > 1 else array[0] for key, array in infos.items()}
