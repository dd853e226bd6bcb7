"""HalfCheetah-v5 as a task."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from pysampler.envs.mujoco._gymnasium import NoisyTask, squares

if TYPE_CHECKING:
    import mujoco
    import numpy.typing as npt

    from pysampler.envs.mujoco.task import Simulations

    Array = npt.NDArray[Any]
    Infos = dict[str, Array]

__all__ = ["HalfCheetah"]


class HalfCheetah(NoisyTask):
    """Run as fast as possible: gymnasium's HalfCheetah-v5, whose arguments it takes."""

    def __init__(
        self,
        model: mujoco.MjModel,
        frame_skip: int = 5,
        *,
        forward_reward_weight: float = 1.0,
        ctrl_cost_weight: float = 0.1,
        reset_noise_scale: float = 0.1,
        exclude_current_positions_from_observation: bool = True,
    ) -> None:
        super().__init__(model, frame_skip)
        self.forward_reward_weight = forward_reward_weight
        self.ctrl_cost_weight = ctrl_cost_weight
        self.reset_noise_scale = reset_noise_scale
        self.skipped = 1 if exclude_current_positions_from_observation else 0

    def observe(self, d: Simulations) -> Array:
        """Return positions, without x by default, and velocities."""
        return np.concatenate((d.qpos[:, self.skipped :], d.qvel), axis=1)

    def before(self, d: Simulations) -> Array:
        """Return x."""
        return d.qpos[:, 0].copy()

    def reward(self, d: Simulations, before: Array, action: Array) -> tuple[Array, Infos]:
        """Reward moving forward, less the cost of the controls."""
        x = d.qpos[:, 0].copy()
        velocity = (x - before) / self.dt
        forward = self.forward_reward_weight * self.progress(d, velocity)
        control = self.ctrl_cost_weight * squares(action)
        infos = {
            "x_position": x,
            "x_velocity": velocity,
            "reward_forward": forward,
            "reward_ctrl": -control,
        }
        return forward - control, infos

    def progress(self, d: Simulations, velocity: Array) -> Array:  # noqa: ARG002 - subclasses use it
        """Return the rewarded part of a velocity: all of it."""
        return velocity

    def reset_info(self, d: Simulations) -> Infos:
        """Return x."""
        return {"x_position": d.qpos[:, 0].copy()}
