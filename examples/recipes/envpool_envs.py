# /// script
# dependencies = ["envpool>=1.2"]
# ///
"""EnvPool's envs as a gymnasium vector env, for pysampler's samplers.

Copy the class. EnvPool's own objects differ from gymnasium's: they have the spaces of one env,
infos without masks, rewards of float32, and take seeds only in `make`.

python envpool_envs.py --steps 10000
"""

import argparse

import envpool
import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_space

import pysampler


class VectorEnv(gym.vector.VectorEnv):
    """EnvPool's envs. Pass it to `pysampler.Rollouts`, `evaluate` or gymnasium's wrappers.

    EnvPool resets its envs itself: `evaluate` seeds only the first episode of each, so its results
    depend on the number of envs. It makes no videos of them.

    Args:
        task_id: The id of an env in EnvPool, for one player.
        num_envs: The number of envs.
        options: Further arguments of `envpool.make`, such as `num_threads`.
    """

    def __init__(self, task_id, num_envs=1, **options):
        self.how = {"task_id": task_id, "env_type": "gymnasium", "num_envs": num_envs, **options}
        self.envs = envpool.make(**self.how)
        if self.envs.config["batch_size"] not in (0, num_envs):
            raise ValueError("gymnasium's step is for all envs, expected no batch_size")
        self.metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP}
        self.num_envs = num_envs
        self.single_observation_space = self.envs.observation_space
        self.single_action_space = self.envs.action_space
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)

    def reset(self, *, seed=None, options=None):
        """Reset all envs. With a seed they are made again: EnvPool takes seeds only then."""
        if options:
            raise ValueError(f"cannot reset envs: EnvPool takes no options, got {options}")
        if seed is not None:
            seeds = [seed + i for i in range(self.num_envs)] if np.ndim(seed) == 0 else seed
            drawn = np.random.default_rng().integers(2**31, size=self.num_envs)
            self.envs.close()
            self.how["seed"] = [
                int(other if one is None else one % 2**31)
                for one, other in zip(seeds, drawn, strict=True)
            ]
            self.envs = envpool.make(**self.how)
        observations, infos = self.envs.reset()
        return observations, self.with_masks(infos)

    def step(self, actions):
        """Step all envs. EnvPool itself checks no actions."""
        actions = np.asarray(actions)
        if actions.shape != self.action_space.shape:
            raise ValueError(f"actions of {actions.shape}, expected {self.action_space.shape}")
        space = self.single_action_space
        if isinstance(space, gym.spaces.Discrete):
            outside = (actions < space.start) | (actions >= space.start + space.n)
            if outside.any():
                raise ValueError(f"actions {actions[outside]}, expected each one in {space}")
        chosen = actions.astype(space.dtype, casting="same_kind")
        observations, rewards, terminated, truncated, infos = self.envs.step(chosen)
        ends = terminated.astype(bool), truncated.astype(bool)
        return observations, rewards.astype(np.float64), *ends, self.with_masks(infos)

    def with_masks(self, infos):
        """Return EnvPool's infos in gymnasium's form."""
        masked = {}
        for key, value in infos.items():
            if key not in ("env_id", "players"):
                masked[key] = self.with_masks(value) if isinstance(value, dict) else value
                masked[f"_{key}"] = np.ones(self.num_envs, bool)
        return masked

    def close_extras(self, **_):
        """Close EnvPool's envs."""
        self.envs.close()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=1280, help="of each env")
    options = parser.parse_args()

    def policy(observations):  # push the cart to where the pole leans
        return (observations[:, 2] > 0).astype(np.int32)

    envs = VectorEnv("CartPole-v1", 64, num_threads=2)
    with pysampler.Rollouts(envs, policy, horizon=128, seed=1) as rollouts:
        returns = [next(rollouts).ended.returns for _ in range(options.steps // 128)]
    envs.close()
    print(
        f"EnvPool: {options.steps} steps of each env, return {np.concatenate(returns).mean():.0f}"
    )


if __name__ == "__main__":
    main()
