"""One simulation of a task as an ordinary gymnasium env."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import gymnasium as gym
import mujoco
import numpy as np
from gymnasium.wrappers import OrderEnforcing, TimeLimit

from pysampler.envs.mujoco.task import Simulations, fields_of

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt

    from pysampler.envs.mujoco.task import Task

__all__ = ["TaskEnv", "make_env"]


class TaskEnv(gym.Env[Any, Any]):
    """One simulation of a task, as an env of gymnasium.

    >>> from pysampler.envs.mujoco import HalfCheetah
    >>> import gymnasium as gym
    >>> model = gym.make("HalfCheetah-v5").unwrapped.model
    >>> env = TaskEnv(HalfCheetah(model))
    >>> observation, info = env.reset(seed=1)
    >>> observation.shape
    (17,)

    Args:
        task: The task.
        render_mode: "rgb_array", or None to render nothing.

    Attributes:
        model: The model.
        data: The simulation.
        takes_tasks: Tells samplers that ``reset`` takes ``options={"task": task}``.
    """

    takes_tasks = True

    def __init__(self, task: Task, render_mode: str | None = None) -> None:
        self.task = task.for_simulations(1)
        self.metadata = dict(task.metadata)
        self.render_mode = render_mode
        self.model = task.model
        self.data = mujoco.MjData(self.model)
        self.observation_space = task.observation_space
        self.action_space = task.action_space
        self._fields = fields_of(self.data, task.fields)
        self._d = Simulations(self._fields)
        self._renderer: Any = None

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Begin an episode.

        Args:
            seed: The seed of the random generator; None to go on with it.
            options: ``{"task": ...}`` sets what the simulation is to do.

        Returns:
            The first observation and its info.
        """
        super().reset(seed=seed)
        if options and "task" in options:
            self.reset_task(options["task"])
        mujoco.mj_resetData(self.model, self.data)
        qpos, qvel = self.task.reset([self.np_random], np.zeros(1, np.int32))
        self.data.qpos[:], self.data.qvel[:] = qpos[0], qvel[0]
        mujoco.mj_forward(self.model, self.data)
        self._fields["time"][0] = self.data.time
        return self._observation(), _row(self.task.reset_info(self._d))

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Step the simulation."""
        action = np.asarray(action)
        if action.shape != self.action_space.shape:
            raise ValueError(
                f"cannot step: action of shape {action.shape}, expected {self.action_space.shape}"
            )
        self._fields["time"][0] = self.data.time
        before = self.task.before(self._d)
        self.data.ctrl[:] = action
        mujoco.mj_step(self.model, self.data, nstep=self.task.frame_skip)
        if self.task.forces:
            mujoco.mj_rnePostConstraint(self.model, self.data)
        self._fields["time"][0] = self.data.time
        result = self.task.reward(self._d, before, action[None])
        rewards, infos = result if isinstance(result, tuple) else (result, {})
        terminated = bool(np.all(self.task.terminated(self._d)))
        return self._observation(), rewards[0], terminated, False, _row(infos)

    def _observation(self) -> npt.NDArray[Any]:
        return self.task.observe(self._d)[0].copy()

    def sample_tasks(self, count: int) -> list[Any]:
        """Draw tasks with the random generator of the env."""
        return self.task.sample_tasks(count, self.np_random)

    def reset_task(self, task: Any) -> None:
        """Set what the simulation is to do from the next reset on."""
        self.task.set_tasks(np.zeros(1, np.int32), [task])

    def render(self) -> npt.NDArray[np.uint8] | None:
        """Return an image, if the render mode is "rgb_array"."""
        if self.render_mode is None:
            return None
        if self._renderer is None:
            self._renderer = mujoco.Renderer(self.model)
        self._renderer.update_scene(self.data)
        image: npt.NDArray[np.uint8] = self._renderer.render()
        return image

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
    """Return an env of one simulation of a task.

    Args:
        task: Makes the task: its class.
        render_mode: As of ``TaskEnv``.
        max_episode_steps: After how many steps an episode is truncated; by default the task's own.
        **kwargs: Arguments of the task.
    """
    made = task(**kwargs)
    steps = made.max_episode_steps if max_episode_steps is None else max_episode_steps
    env: gym.Env[Any, Any] = OrderEnforcing(TaskEnv(made, render_mode))
    return env if steps is None else TimeLimit(env, steps)


def _row(infos: dict[str, npt.NDArray[Any]]) -> dict[str, Any]:
    return {key: np.array(array[0]) if array.ndim > 1 else array[0] for key, array in infos.items()}
