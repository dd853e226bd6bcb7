# /// script
# dependencies = ["metaworld>=3", "packaging"]  # as gymnasium's MuJoCo envs do
# ///
"""Meta-World's MT10 on pysampler: ten tasks in one vector env, and their success in infos.

Meta-World's scripted experts act in the workers. The one-hot code at the end of each observation
selects the expert.

python metaworld_envs.py --steps 1500
"""

import argparse
import functools

import gymnasium as gym
import metaworld
import numpy as np
from metaworld.env_dict import MT10_V3
from metaworld.policies import ENV_POLICY_MAP

import pysampler

gym.register_envs(metaworld)
parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--steps", type=int, default=500, help="of each env")
options = parser.parse_args()

TASKS = list(MT10_V3)
experts = [ENV_POLICY_MAP[task]() for task in TASKS]


def make_env(index):
    return gym.make(
        "Meta-World/MT1",
        env_name=TASKS[index],
        seed=index,  # resets ignore seeds
        use_one_hot=True,
        env_id=index,
        num_tasks=len(TASKS),
        disable_env_checker=True,  # it warns of goals outside the observation space
    )


def policy(observations):
    states, tasks = observations[:, : -len(TASKS)], observations[:, -len(TASKS) :].argmax(axis=1)
    actions = [experts[task].get_action(state) for task, state in zip(tasks, states, strict=True)]
    return np.array(actions, np.float32).clip(-1, 1)


if __name__ == "__main__":
    with pysampler.Rollouts(
        [functools.partial(make_env, index) for index in range(len(TASKS))],
        policy,
        horizon=500,  # as an episode
        policy_in="workers",
        info_keys=["success"],
    ) as rollouts:
        successes = np.array(
            [next(rollouts).infos["success"].max(axis=0) for _ in range(options.steps // 500)]
        )  # of each episode and task, at any step
    for task, rate in zip(TASKS, successes.mean(axis=0), strict=True):
        print(f"{task:24} {rate:.0%}")
    print(f"MT10: success in {successes.mean():.0%} of {successes.size} episodes")
