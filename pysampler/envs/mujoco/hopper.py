"""Walker2d-v5 and Hopper-v5 as tasks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from pysampler.envs.mujoco._gymnasium import GymnasiumTask, between, squares

if TYPE_CHECKING:
    import mujoco
    import numpy.typing as npt

    from pysampler.envs.mujoco.task import Simulations

    Array = npt.NDArray[Any]
    Infos = dict[str, Array]

__all__ = ["Hopper", "Walker2d"]


class Walker2d(GymnasiumTask):
    """Walk forward on two legs: gymnasium's Walker2d-v5, whose arguments it takes."""

    def __init__(
        self,
        model: mujoco.MjModel,
        frame_skip: int = 4,
        *,
        forward_reward_weight: float = 1.0,
        ctrl_cost_weight: float = 1e-3,
        healthy_reward: float = 1.0,
        terminate_when_unhealthy: bool = True,
        healthy_z_range: tuple[float, float] = (0.8, 2.0),
        healthy_angle_range: tuple[float, float] = (-1.0, 1.0),
        reset_noise_scale: float = 5e-3,
        exclude_current_positions_from_observation: bool = True,
    ) -> None:
        super().__init__(model, frame_skip)
        self.forward_reward_weight = forward_reward_weight
        self.ctrl_cost_weight = ctrl_cost_weight
        self.healthy_reward = healthy_reward
        self.terminate_when_unhealthy = terminate_when_unhealthy
        self.healthy_z_range = healthy_z_range
        self.healthy_angle_range = healthy_angle_range
        self.reset_noise_scale = reset_noise_scale
        self.skipped = 1 if exclude_current_positions_from_observation else 0

    def observe(self, d: Simulations) -> Array:
        """Return positions, without x by default, and clipped velocities."""
        return np.concatenate((d.qpos[:, self.skipped :], d.qvel.clip(-10, 10)), axis=1)

    def before(self, d: Simulations) -> Array:
        """Return x."""
        return d.qpos[:, 0].copy()

    def reward(self, d: Simulations, before: Array, action: Array) -> tuple[Array, Infos]:
        """Reward moving forward and being healthy, less the cost of the controls."""
        position = self.reset_info(d)
        velocity = (position["x_position"] - before) / self.dt
        self.healthy = self.is_healthy(d)
        forward = self.forward_reward_weight * velocity
        survive = self.healthy * self.healthy_reward
        control = self.ctrl_cost_weight * squares(action)
        infos = {
            **position,
            "x_velocity": velocity,
            "reward_forward": forward,
            "reward_ctrl": -control,
            "reward_survive": survive,
        }
        return forward + survive - control, infos

    def is_healthy(self, d: Simulations) -> Array:
        """Return the simulations that are upright."""
        z, angle = d.qpos[:, 1], d.qpos[:, 2]
        return between(z, self.healthy_z_range) & between(angle, self.healthy_angle_range)

    def terminated(self, d: Simulations) -> Array | bool:  # noqa: ARG002 - reward has set it
        """Return the simulations that are not healthy."""
        return ~self.healthy if self.terminate_when_unhealthy else False

    def reset_info(self, d: Simulations) -> Infos:
        """Return x, and z less its initial value."""
        return {
            "x_position": d.qpos[:, 0].copy(),
            "z_distance_from_origin": d.qpos[:, 1] - self.init_qpos[1],
        }


class Hopper(Walker2d):
    """Hop forward on one leg: gymnasium's Hopper-v5, whose arguments it takes."""

    def __init__(
        self,
        model: mujoco.MjModel,
        frame_skip: int = 4,
        *,
        forward_reward_weight: float = 1.0,
        ctrl_cost_weight: float = 1e-3,
        healthy_reward: float = 1.0,
        terminate_when_unhealthy: bool = True,
        healthy_state_range: tuple[float, float] = (-100.0, 100.0),
        healthy_z_range: tuple[float, float] = (0.7, float("inf")),
        healthy_angle_range: tuple[float, float] = (-0.2, 0.2),
        reset_noise_scale: float = 5e-3,
        exclude_current_positions_from_observation: bool = True,
    ) -> None:
        super().__init__(
            model,
            frame_skip,
            forward_reward_weight=forward_reward_weight,
            ctrl_cost_weight=ctrl_cost_weight,
            healthy_reward=healthy_reward,
            terminate_when_unhealthy=terminate_when_unhealthy,
            healthy_z_range=healthy_z_range,
            healthy_angle_range=healthy_angle_range,
            reset_noise_scale=reset_noise_scale,
            exclude_current_positions_from_observation=exclude_current_positions_from_observation,
        )
        self.healthy_state_range = healthy_state_range

    def is_healthy(self, d: Simulations) -> Array:
        """Return the simulations that are upright, with the rest of the state in range."""
        state = np.concatenate((d.qpos[:, 2:], d.qvel), axis=1)
        return super().is_healthy(d) & between(state, self.healthy_state_range).all(axis=1)
