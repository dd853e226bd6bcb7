"""Pusher-v5 as a task."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from pysampler.envs._errors import ChangedError
from pysampler.envs.mujoco._gymnasium import GymnasiumTask, norm, squares
from pysampler.envs.mujoco.task import draw

if TYPE_CHECKING:
    import mujoco
    import numpy.typing as npt

    from pysampler.envs.batch import Generators
    from pysampler.envs.mujoco.task import Simulations

    Array = npt.NDArray[Any]
    Infos = dict[str, Array]

__all__ = ["Pusher"]


class Pusher(GymnasiumTask):
    """Push an object to a goal: gymnasium's Pusher-v5, whose arguments it takes."""

    fields = ("xpos",)
    attributes = ("goal_pos", "cylinder_pos", "init_qpos")

    def __init__(
        self,
        model: mujoco.MjModel,
        frame_skip: int = 5,
        *,
        reward_near_weight: float = 0.5,
        reward_dist_weight: float = 1,
        reward_control_weight: float = 0.1,
    ) -> None:
        super().__init__(model, frame_skip)
        self.reward_near_weight = reward_near_weight
        self.reward_dist_weight = reward_dist_weight
        self.reward_control_weight = reward_control_weight
        self.tip = model.body("tips_arm").id
        self.object = model.body("object").id
        self.goal = model.body("goal").id

    def allocate(self) -> None:
        """Keep the initial position of each object, which only ``write_to`` needs."""
        self.placed = np.zeros((self.count, 2))

    def observe(self, d: Simulations) -> Array:
        """Return the arm's joints, and the positions of its tip, the object and the goal."""
        places = d.xpos[:, [self.tip, self.object, self.goal]].reshape(len(d), 9)
        return np.concatenate((d.qpos[:, :7], d.qvel[:, :7], places), axis=1)

    def reward(self, d: Simulations, before: None, action: Array) -> tuple[Array, Infos]:  # noqa: ARG002
        """Reward an object near the goal, and a tip near the object, less control costs."""
        tip, thing, goal = d.xpos[:, self.tip], d.xpos[:, self.object], d.xpos[:, self.goal]
        near = -norm(thing - tip) * self.reward_near_weight
        distance = -norm(thing - goal) * self.reward_dist_weight
        control = -squares(action) * self.reward_control_weight
        infos = {"reward_dist": distance, "reward_ctrl": control, "reward_near": near}
        return distance + control + near, infos

    def reset(self, rngs: Generators, ids: Array) -> tuple[Array, Array]:
        """Begin at the initial state, with the object at some distance from the goal."""
        model = self.model
        qpos = np.tile(self.init_qpos, (len(rngs), 1))
        qpos[:, -4:-2] = self.placed[ids] = draw(rngs, draw_object)
        qpos[:, -2:] = 0  # the goal
        qvel = rngs.uniform(-0.005, 0.005, model.nv)
        qvel += self.init_qvel
        qvel[:, -4:] = 0
        return qpos, qvel

    def write_to(self, env: Any, i: int) -> None:
        """Set the goal and the initial position of the object in gymnasium's env."""
        env.goal_pos = np.zeros(2, int)
        env.cylinder_pos = self.placed[i].copy()
        # gymnasium's resets write to init_qpos.
        env.init_qpos = np.concatenate((self.init_qpos[:-4], self.placed[i], (0, 0)))

    def read_from(self, env: Any, i: int) -> None:
        """Read the initial position of the object."""
        if not np.array_equal(env.init_qpos[:-4], self.init_qpos[:-4]):
            raise ChangedError("init_qpos")
        self.placed[i] = env.cylinder_pos


def draw_object(rng: np.random.Generator) -> Array:
    """Draw the position of the object, relative to the goal."""
    while True:
        place = np.array([rng.uniform(low=-0.3, high=0), rng.uniform(low=-0.2, high=0.2)])
        if np.linalg.norm(place) > 0.17:
            return place
