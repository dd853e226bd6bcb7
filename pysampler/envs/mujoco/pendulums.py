"""InvertedPendulum-v5 and InvertedDoublePendulum-v5 as tasks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from pysampler.envs.mujoco._gymnasium import GymnasiumTask, NoisyTask

if TYPE_CHECKING:
    import mujoco
    import numpy.typing as npt

    from pysampler.envs.mujoco.task import Simulations

    Array = npt.NDArray[Any]
    Infos = dict[str, Array]

__all__ = ["InvertedDoublePendulum", "InvertedPendulum"]


class InvertedPendulum(GymnasiumTask):
    """Balance a pole on a cart: gymnasium's InvertedPendulum-v5, whose arguments it takes."""

    def __init__(
        self, model: mujoco.MjModel, frame_skip: int = 2, *, reset_noise_scale: float = 0.01
    ) -> None:
        super().__init__(model, frame_skip)
        self.reset_noise_scale = reset_noise_scale

    def observe(self, d: Simulations) -> Array:
        """Return positions and velocities."""
        return np.concatenate((d.qpos, d.qvel), axis=1)

    def reward(self, d: Simulations, before: None, action: Array) -> tuple[Array, Infos]:  # noqa: ARG002
        """Reward balancing with the integer 1."""
        state = np.concatenate((d.qpos, d.qvel), axis=1)
        self.fallen = ~np.isfinite(state).all(axis=1) | (np.abs(state[:, 1]) > 0.2)
        survive = (~self.fallen).astype(int)
        return survive, {"reward_survive": survive}

    def terminated(self, d: Simulations) -> Array:  # noqa: ARG002 - reward has set it
        """Return the simulations in which the pole has fallen."""
        return self.fallen


class InvertedDoublePendulum(NoisyTask):
    """Balance two poles: gymnasium's InvertedDoublePendulum-v5, whose arguments it takes."""

    fields = ("site_xpos", "qfrc_constraint")

    def __init__(
        self,
        model: mujoco.MjModel,
        frame_skip: int = 5,
        *,
        healthy_reward: float = 10.0,
        reset_noise_scale: float = 0.1,
    ) -> None:
        super().__init__(model, frame_skip)
        self.healthy_reward = healthy_reward
        self.reset_noise_scale = reset_noise_scale

    def observe(self, d: Simulations) -> Array:
        """Return the position of the cart, the angles, the velocities and the force on the cart."""
        angles = d.qpos[:, 1:]
        clipped = np.concatenate((d.qvel, d.qfrc_constraint[:, :1]), axis=1).clip(-10, 10)
        return np.concatenate((d.qpos[:, :1], np.sin(angles), np.cos(angles), clipped), axis=1)

    def reward(self, d: Simulations, before: None, action: Array) -> tuple[Array, Infos]:  # noqa: ARG002
        """Reward balancing, less the costs of the tip's distance and of fast rotation."""
        x, y = d.site_xpos[:, 0, 0], d.site_xpos[:, 0, 2]
        self.fallen = y <= 1
        # float_power uses the C library's pow, like gymnasium's scalar ** 2.
        distance = 0.01 * np.float_power(x, 2) + np.float_power(y - 2, 2)
        speeds = np.float_power(d.qvel[:, 1:3], 2)
        velocity = 1e-3 * speeds[:, 0] + 5e-3 * speeds[:, 1]
        survive = self.healthy_reward * ~self.fallen
        infos = {
            "reward_survive": survive,
            "distance_penalty": -distance,
            "velocity_penalty": -velocity,
        }
        return survive - distance - velocity, infos

    def terminated(self, d: Simulations) -> Array:  # noqa: ARG002 - reward has set it
        """Return the simulations in which the tip is too low."""
        return self.fallen
