"""Humanoid-v5 and HumanoidStandup-v5 as tasks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from pysampler.envs.mujoco._gymnasium import GymnasiumTask, between, flat, norm, squares

if TYPE_CHECKING:
    import mujoco
    import numpy.typing as npt

    from pysampler.envs.mujoco.task import Simulations

    Array = npt.NDArray[Any]
    Infos = dict[str, Array]

__all__ = ["Humanoid", "HumanoidStandup"]


class _Body(GymnasiumTask):
    """Base class of both: observations and contact costs."""

    forces = True

    def __init__(
        self,
        model: mujoco.MjModel,
        frame_skip: int,
        *,
        exclude_current_positions_from_observation: bool,
        include_cinert_in_observation: bool,
        include_cvel_in_observation: bool,
        include_qfrc_actuator_in_observation: bool,
        include_cfrc_ext_in_observation: bool,
    ) -> None:
        super().__init__(model, frame_skip)
        self.skipped = 2 if exclude_current_positions_from_observation else 0
        included = {
            "cinert": include_cinert_in_observation,
            "cvel": include_cvel_in_observation,
            "qfrc_actuator": include_qfrc_actuator_in_observation,
            "cfrc_ext": include_cfrc_ext_in_observation,
        }
        self.observed = [name for name, wanted in included.items() if wanted is True]
        self.fields = sorted({"cfrc_ext", "ten_length", "ten_velocity", *self.observed})

    def observe(self, d: Simulations) -> Array:
        """Return positions, without x and y by default, velocities, and included fields."""
        parts = [d.qpos[:, self.skipped :], d.qvel]
        for name in self.observed:
            field = getattr(d, name)
            if name == "qfrc_actuator":
                parts.append(field[:, 6:])  # without the free joint, which has no actuator
            else:
                parts.append(flat(field)[:, field.shape[2] :])  # without the world
        return np.concatenate(parts, axis=1)

    def contact_cost(self, d: Simulations, weight: float, limits: tuple[float, float]) -> Array:
        """Return the cost of contact forces."""
        cost: Array = weight * squares(flat(d.cfrc_ext))
        return cost.clip(*limits)

    def reset_info(self, d: Simulations) -> Infos:
        """Return x, y and the tendons."""
        return {
            "x_position": d.qpos[:, 0].copy(),
            "y_position": d.qpos[:, 1].copy(),
            "tendon_length": d.ten_length.copy(),
            "tendon_velocity": d.ten_velocity.copy(),
        }


class Humanoid(_Body):
    """Walk forward on two legs: gymnasium's Humanoid-v5, whose arguments it takes."""

    def __init__(
        self,
        model: mujoco.MjModel,
        frame_skip: int = 5,
        *,
        forward_reward_weight: float = 1.25,
        ctrl_cost_weight: float = 0.1,
        contact_cost_weight: float = 5e-7,
        contact_cost_range: tuple[float, float] = (-np.inf, 10.0),
        healthy_reward: float = 5.0,
        terminate_when_unhealthy: bool = True,
        healthy_z_range: tuple[float, float] = (1.0, 2.0),
        reset_noise_scale: float = 1e-2,
        exclude_current_positions_from_observation: bool = True,
        include_cinert_in_observation: bool = True,
        include_cvel_in_observation: bool = True,
        include_qfrc_actuator_in_observation: bool = True,
        include_cfrc_ext_in_observation: bool = True,
    ) -> None:
        super().__init__(
            model,
            frame_skip,
            exclude_current_positions_from_observation=exclude_current_positions_from_observation,
            include_cinert_in_observation=include_cinert_in_observation,
            include_cvel_in_observation=include_cvel_in_observation,
            include_qfrc_actuator_in_observation=include_qfrc_actuator_in_observation,
            include_cfrc_ext_in_observation=include_cfrc_ext_in_observation,
        )
        self.fields = (*self.fields, "xipos")
        self.forward_reward_weight = forward_reward_weight
        self.ctrl_cost_weight = ctrl_cost_weight
        self.contact_cost_weight = contact_cost_weight
        self.contact_cost_range = contact_cost_range
        self.healthy_reward = healthy_reward
        self.terminate_when_unhealthy = terminate_when_unhealthy
        self.healthy_z_range = healthy_z_range
        self.reset_noise_scale = reset_noise_scale
        self.masses = model.body_mass.copy()
        self.mass = self.masses.sum()

    def before(self, d: Simulations) -> Array:
        """Return x and y of the center of mass."""
        return (np.einsum("b,nbj->nj", self.masses, d.xipos) / self.mass)[:, :2]

    def reward(self, d: Simulations, before: Array, action: Array) -> tuple[Array, Infos]:  # noqa: ARG002
        """Reward moving along x and being healthy, less the costs of controls and contacts."""
        velocity = (self.before(d) - before) / self.dt
        self.healthy = between(d.qpos[:, 2], self.healthy_z_range)
        forward = self.forward_reward_weight * velocity[:, 0]
        survive = self.healthy * self.healthy_reward
        control = self.ctrl_cost_weight * squares(d.ctrl)
        contact = self.contact_cost(d, self.contact_cost_weight, self.contact_cost_range)
        infos = {
            **self.reset_info(d),
            "x_velocity": velocity[:, 0],
            "y_velocity": velocity[:, 1],
            "reward_survive": survive,
            "reward_forward": forward,
            "reward_ctrl": -control,
            "reward_contact": -contact,
        }
        return forward + survive - (control + contact), infos

    def terminated(self, d: Simulations) -> Array | bool:  # noqa: ARG002 - reward has set it
        """Return the simulations that are not healthy."""
        return ~self.healthy if self.terminate_when_unhealthy else False

    def reset_info(self, d: Simulations) -> Infos:
        """Return x, y, the distance from the origin, and the tendons."""
        return {**super().reset_info(d), "distance_from_origin": norm(d.qpos[:, :2])}


class HumanoidStandup(_Body):
    """Stand up from lying: gymnasium's HumanoidStandup-v5, whose arguments it takes."""

    def __init__(
        self,
        model: mujoco.MjModel,
        frame_skip: int = 5,
        *,
        uph_cost_weight: float = 1,
        ctrl_cost_weight: float = 0.1,
        impact_cost_weight: float = 0.5e-6,
        impact_cost_range: tuple[float, float] = (-np.inf, 10.0),
        reset_noise_scale: float = 1e-2,
        exclude_current_positions_from_observation: bool = True,
        include_cinert_in_observation: bool = True,
        include_cvel_in_observation: bool = True,
        include_qfrc_actuator_in_observation: bool = True,
        include_cfrc_ext_in_observation: bool = True,
    ) -> None:
        super().__init__(
            model,
            frame_skip,
            exclude_current_positions_from_observation=exclude_current_positions_from_observation,
            include_cinert_in_observation=include_cinert_in_observation,
            include_cvel_in_observation=include_cvel_in_observation,
            include_qfrc_actuator_in_observation=include_qfrc_actuator_in_observation,
            include_cfrc_ext_in_observation=include_cfrc_ext_in_observation,
        )
        self.uph_cost_weight = uph_cost_weight  # gymnasium accepts it, but does not use it
        self.ctrl_cost_weight = ctrl_cost_weight
        self.impact_cost_weight = impact_cost_weight
        self.impact_cost_range = impact_cost_range
        self.reset_noise_scale = reset_noise_scale

    def reward(self, d: Simulations, before: None, action: Array) -> tuple[Array, Infos]:  # noqa: ARG002
        """Reward height, less the costs of controls and impacts."""
        height = d.qpos[:, 2] / self.model.opt.timestep
        control = self.ctrl_cost_weight * squares(d.ctrl)
        impact = self.contact_cost(d, self.impact_cost_weight, self.impact_cost_range)
        infos = {
            **self.reset_info(d),
            "reward_linup": height,
            "reward_quadctrl": -control,
            "reward_impact": -impact,
        }
        return height - control - impact + 1, infos

    def reset_info(self, d: Simulations) -> Infos:
        """Return x, y, z less its initial value, and the tendons."""
        z = d.qpos[:, 2] - self.init_qpos[2]
        return {**super().reset_info(d), "z_distance_from_origin": z}
