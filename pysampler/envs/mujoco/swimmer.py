"""Swimmer-v5 as a task."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from pysampler.envs.mujoco._gymnasium import GymnasiumTask, place, squares

if TYPE_CHECKING:
    import mujoco
    import numpy.typing as npt

    from pysampler.envs.mujoco.task import Simulations

    Array = npt.NDArray[Any]
    Infos = dict[str, Array]

__all__ = ["Swimmer"]


class Swimmer(GymnasiumTask):
    """Swim as fast as possible: gymnasium's Swimmer-v5, whose arguments it takes."""

    def __init__(
        self,
        model: mujoco.MjModel,
        frame_skip: int = 4,
        *,
        forward_reward_weight: float = 1.0,
        ctrl_cost_weight: float = 1e-4,
        reset_noise_scale: float = 0.1,
        exclude_current_positions_from_observation: bool = True,
    ) -> None:
        super().__init__(model, frame_skip)
        self.forward_reward_weight = forward_reward_weight
        self.ctrl_cost_weight = ctrl_cost_weight
        self.reset_noise_scale = reset_noise_scale
        self.skipped = 2 if exclude_current_positions_from_observation else 0

    def observe(self, d: Simulations) -> Array:
        """Return positions, without x and y by default, and velocities."""
        return np.concatenate((d.qpos[:, self.skipped :], d.qvel), axis=1)

    def before(self, d: Simulations) -> Array:
        """Return x and y."""
        return d.qpos[:, :2].copy()

    def reward(self, d: Simulations, before: Array, action: Array) -> tuple[Array, Infos]:
        """Reward moving along x, less the cost of the controls."""
        velocity = (d.qpos[:, :2] - before) / self.dt
        forward = self.forward_reward_weight * velocity[:, 0]
        control = self.ctrl_cost_weight * squares(action)
        infos = {
            **self.reset_info(d),
            "x_velocity": velocity[:, 0],
            "y_velocity": velocity[:, 1],
            "reward_forward": forward,
            "reward_ctrl": -control,
        }
        return forward - control, infos

    def reset_info(self, d: Simulations) -> Infos:
        """Return x, y, and the distance from the origin."""
        return place(d)
