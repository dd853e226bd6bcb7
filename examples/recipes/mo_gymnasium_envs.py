# /// script
# dependencies = ["mo-gymnasium>=1.3"]
# ///
"""MO-Gymnasium on pysampler: rewards and advantages have a column for each objective.

An actor and a critic in NumPy learn to dive for treasures. The objectives are treasure and time;
their weights decide which treasure the actor prefers.

python mo_gymnasium_envs.py --weights 1 1 --steps 20000
"""

import argparse

import mo_gymnasium
import numpy as np

import pysampler

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--weights", type=float, nargs=2, default=(1.0, 0.1), help="treasure, time")
parser.add_argument("--steps", type=int, default=6400, help="of each env")
parser.add_argument("--envs", type=int, default=16)
options = parser.parse_args()

rng = np.random.default_rng(1)
logits = np.zeros((11, 11, 4))  # of each action in each place of the map
values = np.zeros((11, 11, 2))  # of each objective


def at(table, places):
    return table[places[..., 0], places[..., 1]]


def make_env():
    return mo_gymnasium.make("deep-sea-treasure-v0")


def policy(observations):
    scores = at(logits, observations)
    return (scores + rng.gumbel(size=scores.shape)).argmax(axis=1)  # draws from the softmax


if __name__ == "__main__":
    ended = []
    with pysampler.Rollouts(make_env, policy, 64, num_envs=options.envs, seed=1) as rollouts:
        for _ in range(options.steps // 64):
            rollout = next(rollouts)
            places = rollout.observations[:-1]
            advantages, _ = rollout.gae(
                at(values, places),
                at(values, rollout.last_observations),
                at(values, rollout.cut_observations),
            )  # [T, N, 2]
            odds = np.exp(at(logits, places))
            gradients = np.eye(4)[rollout.actions] - odds / odds.sum(axis=-1, keepdims=True)
            gradients *= (advantages @ options.weights)[..., np.newaxis]
            index = places[..., 0], places[..., 1]
            visits = np.zeros((11, 11, 1))
            np.add.at(visits, index, 1)
            np.add.at(logits, index, 0.2 * gradients / at(visits, places))
            np.add.at(values, index, 0.2 * advantages / at(visits, places))
            ended.append(rollout.ended.returns)
    first, last = np.concatenate(ended[:5]).mean(axis=0), np.concatenate(ended[-5:]).mean(axis=0)
    print(
        f"deep-sea-treasure: treasure {first[0]:.1f} in {-first[1]:.0f} steps at first, "
        f"{last[0]:.1f} in {-last[1]:.0f} steps at last"
    )
