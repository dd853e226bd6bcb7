# /// script
# dependencies = ["robosuite==1.5.2", "mujoco<3.4"]  # a later MuJoCo needs a later robosuite
# ///
"""robosuite on pysampler: two robots with cameras, in one process and in a process each.

Up to 1.5.2, envs that share a process render each other's scenes. The check finds it, and
isolate=True avoids it. robosuite renders with EGL, in software if there is no GPU; where there is
no EGL, set MUJOCO_GL=osmesa.

python robosuite_envs.py --steps 20
"""

import argparse
import functools

import gymnasium as gym
import numpy as np
import robosuite

import pysampler

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--steps", type=int, default=10)
options = parser.parse_args()


class Lift(gym.Env):
    """robosuite's Lift with one camera, and resets that follow their seeds."""

    def __init__(self, robot):
        self.lift = robosuite.make(
            "Lift",
            robots=robot,
            has_renderer=False,
            has_offscreen_renderer=True,
            camera_names="agentview",
            camera_heights=64,
            camera_widths=64,
            seed=0,
        )
        low, high = self.lift.action_spec
        self.action_space = gym.spaces.Box(low, high, dtype=np.float64)
        self.observation_space = gym.spaces.Box(0, 255, (64, 64, 3), np.uint8)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        if seed is not None:  # the parts of the env have this generator, so it is not replaced
            self.lift.rng.bit_generator.state = np.random.default_rng(seed).bit_generator.state
        return self.lift.reset()["agentview_image"], {}

    def step(self, action):
        seen, reward, truncated, _ = self.lift.step(action)  # it ends only by its horizon
        return seen["agentview_image"], reward, False, truncated, {}

    def close(self):
        self.lift.close()


def pictures(env_fns, **how):
    """Return what the camera of the first env sees."""
    with pysampler.VectorEnv(env_fns, **how) as envs:
        observations, _ = envs.reset(seed=1)
        seen = [observations[0]]
        for action in actions:
            observations, *_ = envs.step(np.tile(action, (envs.num_envs, 1)))
            seen.append(observations[0])
    return seen


if __name__ == "__main__":
    robots = [functools.partial(Lift, "Panda"), functools.partial(Lift, "Sawyer")]
    print(pysampler.check_isolation(robots, options.steps))
    actions = np.random.default_rng(0).uniform(-1, 1, (options.steps, 7))
    alone = pictures(robots[:1])
    shared = pictures(robots, num_workers=1)  # the log warns of it
    isolated = pictures(robots, isolate=True)
    same = [sum(map(np.array_equal, alone, seen)) for seen in (shared, isolated)]
    print(
        f"Lift: of {len(alone)} pictures of an env, {same[0]} are as alone if it shares a process, "
        f"{same[1]} if not"
    )
