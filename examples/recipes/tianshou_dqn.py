# /// script
# dependencies = ["tianshou>=2"]
# ///
"""Tianshou's DQN on pysampler: pass `VectorEnv` where you passed `SubprocVectorEnv`.

Copy the class and the three functions below it. Collectors step subsets of the envs and reset those
whose episodes have ended, so each env is a group. Observations are arrays or dicts of arrays. Infos
are batched as gymnasium batches them, so the values of a key have one type.

python tianshou_dqn.py --steps 50000
"""

import argparse
import os

os.environ.setdefault("NUMBA_DISABLE_JIT", "1")  # remove it for long runs: compiling takes a while
import gymnasium as gym
import numpy as np
from tianshou.algorithm import DQN
from tianshou.algorithm.modelfree.dqn import DiscreteQLearningPolicy
from tianshou.algorithm.optim import AdamOptimizerFactory
from tianshou.data import Collector, VectorReplayBuffer
from tianshou.env import BaseVectorEnv
from tianshou.trainer import OffPolicyTrainerParams
from tianshou.utils.net.common import Net

import pysampler


class VectorEnv(BaseVectorEnv):
    """Tianshou's vector env on pysampler's workers.

    Args:
        env_fns: Functions that each make an env.
        wait_num: Return from a step as soon as this many envs are ready; None: all.
        timeout: Return from a step after this many seconds with the envs that are ready.
        options: Options of `pysampler.VectorEnv`, such as `num_workers`.
    """

    def __init__(self, env_fns, wait_num=None, timeout=None, **options):
        # The attributes of the base class, whose __init__ would make a worker for each env.
        self.env_num = len(env_fns)
        self.wait_num, self.timeout = wait_num or self.env_num, timeout
        self.is_async = self.wait_num != self.env_num or timeout is not None
        self.waiting_id, self.ready_id = [], list(range(self.env_num))
        self.is_closed = False
        self.kept = {}  # by env, results that no call has returned yet, the longest ready first
        self.envs = pysampler.VectorEnv(
            env_fns,
            autoreset_mode="Disabled",
            groups=self.env_num,
            shared_memory=False,
            observation_mode="different",
            **options,
        )

    def reset(self, env_id=None, *, seed=None, options=None):
        envs = self.chosen(env_id)
        rows = self.start_reset(envs, [seed] * len(envs), options)
        for row in rows:
            del row[4]["env_id"]
        return stacked([row[0] for row in rows]), np.array([row[4] for row in rows])

    def step(self, action, id=None):  # noqa: A002 - as Tianshou has it
        if action is None:  # wait for these envs, of which all are stepping
            envs = [range(self.env_num)[env] for env in self._wrap_id(id)]
            rows = self.ready_rows(len(envs))
        else:
            envs = self.chosen(id)
            self.envs.send(np.asarray(action), envs)
            if self.is_async:
                self.waiting_id += envs
                self.ready_id = [env for env in self.ready_id if env not in envs]
                rows = self.ready_rows(self.wait_num, self.timeout)
            else:
                rows = self.rows_of(envs)
        observations, rewards, terminated, truncated, infos = zip(*rows, strict=True)
        ends = np.array(terminated), np.array(truncated)
        return stacked(observations), np.array(rewards), *ends, np.array(infos)

    def start_reset(self, envs, seeds, options):
        self.envs.async_reset(seed=seeds, options=options, env_ids=envs)
        return self.rows_of(envs)

    def chosen(self, env_id):
        """Return the indices of envs, none of which may be stepping."""
        self._assert_is_not_closed()
        envs = [range(self.env_num)[env] for env in self._wrap_id(env_id)]
        if self.is_async:
            self._assert_id(envs)
        return envs

    def rows_of(self, envs):
        """Wait for these envs and return their results; keep those of others."""
        while missing := sum(env not in self.kept for env in envs):
            self.receive(missing)
        return [self.kept.pop(env) for env in envs]

    def ready_rows(self, least, timeout=None):
        """Wait for some of the stepping envs; return the results of those that are ready."""
        wanted = min(least, len(self.waiting_id)) - len(self.kept)
        if wanted > 0:
            self.receive(wanted, timeout)
        if not self.kept:
            self.receive(1)
        rows, self.kept = self.kept, {}
        self.ready_id += rows
        self.waiting_id = [env for env in self.waiting_id if env not in rows]
        return list(rows.values())

    def receive(self, least, timeout=None):
        observations, rewards, terminated, truncated, infos = self.envs.recv(least, timeout=timeout)
        numbers = rewards.tolist(), terminated.tolist(), truncated.tolist()
        rows = zip(split(observations), *numbers, info_rows(infos, len(rewards)), strict=True)
        self.kept.update(zip(infos["env_id"].tolist(), rows, strict=True))

    def apply(self, env_id, function, *args):
        """Call a function with each env, in its worker, after pending steps have ended."""
        envs = self.chosen(env_id)
        while self.envs.pending:
            self.receive(self.envs.pending)
        return list(self.envs.apply(function, *args, envs=envs))

    def get_env_attr(self, key, id=None):  # noqa: A002
        return self.apply(id, lambda env: env.get_wrapper_attr(key))

    def set_env_attr(self, key, value, id=None):  # noqa: A002
        self.apply(id, lambda env: setattr(env.unwrapped, key, value))

    def render(self, **kwargs):
        return self.apply(None, lambda env: env.render(**kwargs))

    def seed(self, seed=None):
        envs = self.chosen(None)
        given = [None] * len(envs) if seed is None else seed
        seeds = [seed + env for env in envs] if isinstance(seed, int) else list(given)
        for env, one in zip(envs, seeds, strict=True):
            self.envs.apply(lambda env, one=one: env.action_space.seed(one), envs=[env])
        self.start_reset(envs, seeds, None)
        return [None if one is None else [one] for one in seeds]

    def close(self):
        self._assert_is_not_closed()
        self.envs.close()
        self.is_closed = True


def split(batch):
    """Return a batch of observations as one for each env."""
    if isinstance(batch, dict):
        parts = {key: split(part) for key, part in batch.items()}
        rows = zip(*parts.values(), strict=True)
        return [dict(zip(parts, row, strict=True)) for row in rows]
    return list(batch)


def info_rows(infos, count):
    """Return gymnasium's batched infos as a dict for each env."""
    rows = [{} for _ in range(count)]
    for key, values in infos.items():
        if (present := infos.get(f"_{key}")) is None:  # it says which envs have another key
            continue
        if isinstance(values, dict):
            values = info_rows(values, count)
        elif values.ndim == 1 and values.dtype in (int, float, bool):
            values = values.tolist()  # numbers of Python
        for row in np.flatnonzero(present):
            rows[row][key] = values[row]
    return rows


def stacked(observations):
    """Return observations as Tianshou has them: one array, or an array of dicts."""
    if isinstance(observations[0], dict):
        return np.array([*observations, None], object)[:-1]
    return np.stack(observations)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--envs", type=int, default=8)
    options = parser.parse_args()
    made = [lambda: gym.make("CartPole-v1")] * options.envs
    envs, test_envs = VectorEnv(made), VectorEnv(made)
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


if __name__ == "__main__":
    main()
