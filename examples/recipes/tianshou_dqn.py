# /// script
# dependencies = ["tianshou>=2"]
# ///
"""Tianshou's DQN on pysampler: pass `VectorEnv` where you passed `SubprocVectorEnv`.

python tianshou_dqn.py --steps 50000
"""

import argparse
import os

os.environ.setdefault("NUMBA_DISABLE_JIT", "1")  # remove it for long runs: compiling takes a while
import gymnasium as gym
from tianshou.algorithm import DQN
from tianshou.algorithm.modelfree.dqn import DiscreteQLearningPolicy
from tianshou.algorithm.optim import AdamOptimizerFactory
from tianshou.data import Collector, VectorReplayBuffer
from tianshou.trainer import OffPolicyTrainerParams
from tianshou.utils.net.common import Net

from pysampler.adapters.tianshou import VectorEnv

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--steps", type=int, default=2000)
parser.add_argument("--envs", type=int, default=8)
options = parser.parse_args()

envs, test_envs = (VectorEnv([lambda: gym.make("CartPole-v1")] * options.envs) for _ in range(2))
policy = DiscreteQLearningPolicy(
    model=Net(state_shape=(4,), action_shape=2, hidden_sizes=[64, 64]),
    action_space=gym.spaces.Discrete(2),
    eps_training=0.1,
    eps_inference=0.0,
)
algorithm = DQN(policy=policy, optim=AdamOptimizerFactory(lr=1e-3), target_update_freq=100)
buffer = VectorReplayBuffer(20_000, options.envs)
collector = Collector(algorithm, envs, buffer, exploration_noise=True)
result = algorithm.run_training(
    OffPolicyTrainerParams(
        training_collector=collector,
        test_collector=Collector(algorithm, test_envs),
        max_epochs=1,
        epoch_num_steps=options.steps,
        collection_step_num_env_steps=10 * options.envs,
        update_step_num_gradient_steps_per_sample=0.1,
        batch_size=64,
        test_step_num_episodes=options.envs,
        show_progress=False,
    )
)
envs.close()
test_envs.close()
print(f"Tianshou's DQN: {collector.collect_step} steps, return {result.best_reward:.0f}")
