"""Reacher-v5 as a task."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from pysampler.envs.mujoco._gymnasium import GymnasiumTask, norm, squares
from pysampler.envs.mujoco.task import draw

if TYPE_CHECKING:
    import mujoco
    import numpy.typing as npt

    from pysampler.envs.batch import Generators
    from pysampler.envs.mujoco.task import Simulations

    Array = npt.NDArray[Any]
    Infos = dict[str, Array]

__all__ = ["Reacher"]


class Reacher(GymnasiumTask):
    """Move the tip of an arm to a target: gymnasium's Reacher-v5, whose arguments it takes."""

    fields = ("xpos",)
    attributes = ("goal",)

    def __init__(
        self,
        model: mujoco.MjModel,
        frame_skip: int = 2,
        *,
        reward_dist_weight: float = 1,
        reward_control_weight: float = 1,
    ) -> None:
        super().__init__(model, frame_skip)
        self.reward_dist_weight = reward_dist_weight
        self.reward_control_weight = reward_control_weight
        self.tip = model.body("fingertip").id
        self.target = model.body("target").id

    def to_tip(self, d: Simulations) -> Array:
        """Return the vectors from the target to the tip."""
        return d.xpos[:, self.tip] - d.xpos[:, self.target]

    def observe(self, d: Simulations) -> Array:
        """Return the angles, the target, the velocities of the joints, and target to tip."""
        angles = d.qpos[:, :2]
        return np.concatenate(
            (np.cos(angles), np.sin(angles), d.qpos[:, 2:], d.qvel[:, :2], self.to_tip(d)[:, :2]),
            axis=1,
        )

    def reward(self, d: Simulations, before: None, action: Array) -> tuple[Array, Infos]:  # noqa: ARG002
        """Reward being near the target, less the cost of the controls."""
        near = -norm(self.to_tip(d)) * self.reward_dist_weight
        control = -squares(action) * self.reward_control_weight
        return near + control, {"reward_dist": near, "reward_ctrl": control}

    def reset(self, rngs: Generators, ids: Array) -> tuple[Array, Array]:  # noqa: ARG002
        """Begin near the initial state, with a target within reach."""
        model = self.model
        qpos = rngs.uniform(-0.1, 0.1, model.nq)
        qpos += self.init_qpos
        qpos[:, -2:] = draw(rngs, draw_target)
        qvel = rngs.uniform(-0.005, 0.005, model.nv)
        qvel += self.init_qvel
        qvel[:, -2:] = 0
        return qpos, qvel

    def write_to(self, env: Any, i: int) -> None:  # noqa: ARG002
        """Set the position of the target in gymnasium's env."""
        env.goal = env.data.qpos[-2:].copy()


def draw_target(rng: np.random.Generator) -> Array:
    """Draw a target, a point of a disk within reach."""
    while True:
        target = rng.uniform(low=-0.2, high=0.2, size=2)
        if np.linalg.norm(target) < 0.2:
            return target
