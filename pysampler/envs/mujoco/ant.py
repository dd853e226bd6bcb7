"""Ant-v5 as a task."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from pysampler.envs.mujoco._gymnasium import NoisyTask, flat, place, squares

if TYPE_CHECKING:
    import mujoco
    import numpy.typing as npt

    from pysampler.envs.mujoco.task import Simulations

    Array = npt.NDArray[Any]
    Infos = dict[str, Array]

__all__ = ["Ant"]


class Ant(NoisyTask):
    """Walk forward on four legs: gymnasium's Ant-v5, whose arguments it takes."""

    fields = ("xpos", "cfrc_ext")
    forces = True

    def __init__(
        self,
        model: mujoco.MjModel,
        frame_skip: int = 5,
        *,
        forward_reward_weight: float = 1,
        ctrl_cost_weight: float = 0.5,
        contact_cost_weight: float = 5e-4,
        healthy_reward: float = 1.0,
        main_body: int | str = 1,
        terminate_when_unhealthy: bool = True,
        healthy_z_range: tuple[float, float] = (0.2, 1.0),
        contact_force_range: tuple[float, float] = (-1.0, 1.0),
        reset_noise_scale: float = 0.1,
        exclude_current_positions_from_observation: bool = True,
        include_cfrc_ext_in_observation: bool = True,
    ) -> None:
        super().__init__(model, frame_skip)
        self.forward_reward_weight = forward_reward_weight
        self.ctrl_cost_weight = ctrl_cost_weight
        self.contact_cost_weight = contact_cost_weight
        self.healthy_reward = healthy_reward
        self.body = model.body(main_body).id
        self.terminate_when_unhealthy = terminate_when_unhealthy
        self.healthy_z_range = healthy_z_range
        self.contact_force_range = contact_force_range
        self.reset_noise_scale = reset_noise_scale
        self.skipped = 2 if exclude_current_positions_from_observation else 0
        self.include_cfrc_ext = include_cfrc_ext_in_observation

    def observe(self, d: Simulations) -> Array:
        """Return positions, without x and y by default, velocities and clipped contact forces."""
        parts = [d.qpos[:, self.skipped :], d.qvel]
        if self.include_cfrc_ext:
            of_bodies = flat(d.cfrc_ext)[:, 6:]  # without the world
            parts.append(of_bodies.clip(*self.contact_force_range))
        return np.concatenate(parts, axis=1)

    def before(self, d: Simulations) -> Array:
        """Return the x and y of the main body."""
        return d.xpos[:, self.body, :2].copy()

    def reward(self, d: Simulations, before: Array, action: Array) -> tuple[Array, Infos]:
        """Reward moving along x and being healthy, less the costs of controls and contacts."""
        velocity = (d.xpos[:, self.body, :2] - before) / self.dt
        self.healthy = self.is_healthy(d)
        forward = self.progress(d, velocity) * self.forward_reward_weight
        survive = self.healthy * self.healthy_reward
        control = self.ctrl_cost_weight * squares(action)
        forces = flat(d.cfrc_ext).clip(*self.contact_force_range)
        contact = self.contact_cost_weight * squares(forces)
        infos = {
            **self.reset_info(d),
            "x_velocity": velocity[:, 0],
            "y_velocity": velocity[:, 1],
            "reward_forward": forward,
            "reward_ctrl": -control,
            "reward_contact": -contact,
            "reward_survive": survive,
        }
        return forward + survive - (control + contact), infos

    def progress(self, d: Simulations, velocity: Array) -> Array:  # noqa: ARG002 - subclasses use it
        """Return the rewarded part of a velocity: the one along x."""
        return velocity[:, 0]

    def is_healthy(self, d: Simulations) -> Array:
        """Return which simulations are neither too low nor too high, and have a finite state."""
        low, high = self.healthy_z_range
        state = np.concatenate((d.qpos, d.qvel), axis=1)
        z = state[:, 2]
        return np.isfinite(state).all(axis=1) & (low <= z) & (z <= high)

    def terminated(self, d: Simulations) -> Array | bool:  # noqa: ARG002 - reward has set it
        """Return the simulations that are not healthy."""
        return ~self.healthy if self.terminate_when_unhealthy else False

    def reset_info(self, d: Simulations) -> Infos:
        """Return x, y, and the distance from the origin."""
        return place(d)
