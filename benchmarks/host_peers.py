"""Samplers of others on hosts of a Ray cluster, beside ours: programs that hosts.py starts.

All sample the same envs with a policy of the same size, which draws actions from a normal
distribution and returns their log probabilities.
"""

from __future__ import annotations

import functools
import time
from typing import TYPE_CHECKING, Any

from hosting import CHEETAH, pin, start_cluster, stop_cluster

if TYPE_CHECKING:
    from collections.abc import Callable

HOSTS, ENVS, HORIZON, WIDTH = 2, 8, 128, 64
INPUTS, OUTPUTS = 17, 6


def _network(outputs: int) -> Any:
    from torch import nn

    layers = nn.Linear(INPUTS, WIDTH), nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, outputs)
    return nn.Sequential(layers[0], nn.Tanh(), layers[1], nn.Tanh(), layers[2])


def _policy() -> Any:
    import torch
    from torch import nn

    class Policy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.network = _network(2 * OUTPUTS)

        def forward(self, observations: Any) -> Any:
            mean, log_std = self.network(observations.float()).chunk(2, -1)
            normal = torch.distributions.Normal(mean, log_std.exp())
            actions = normal.sample()
            return actions, {"log_probs": normal.log_prob(actions).sum(-1)}

    return Policy()


def ours() -> tuple[Callable[[], int], Callable[[], Any]]:
    import pysampler.ray

    rollouts = pysampler.ray.Rollouts(
        *(CHEETAH, _policy(), HORIZON),
        hosts=HOSTS,
        num_envs=ENVS,
        vector_kwargs={"num_workers": 1},
    )
    return lambda: sum(one.steps for one in rollouts.take(1)), rollouts.close


def rllib(how: str) -> tuple[Callable[[], int], Callable[[], Any]]:
    from ray.rllib.algorithms.ppo import PPOConfig
    from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig
    from ray.rllib.execution.rollout_ops import synchronous_parallel_sample

    model = DefaultModelConfig(fcnet_hiddens=[WIDTH, WIDTH], fcnet_activation="tanh")
    batch = HOSTS * ENVS * HORIZON
    config = (
        PPOConfig()
        .environment(CHEETAH)
        .env_runners(
            num_env_runners=HOSTS,
            num_envs_per_env_runner=ENVS,
            rollout_fragment_length=HORIZON,
            num_cpus_per_env_runner=1,
        )
        .learners(num_learners=0)
        .rl_module(model_config=model)
        .training(train_batch_size_per_learner=batch)
    )
    algorithm = config.build_algo()
    group = algorithm.env_runner_group

    def together() -> int:
        """Take a sample of all runners, as PPO does."""
        taken = synchronous_parallel_sample(
            worker_set=group,
            max_env_steps=batch,
            concat=False,
            sample_timeout_s=60,
            _uses_new_env_runners=True,
        )
        return sum(len(episode) for episodes in taken for episode in episodes)

    def as_ready() -> int:
        """Take the samples that are there, as APPO does."""
        taken = group.foreach_env_runner_async_fetch_ready(
            func=lambda runner: runner.sample(), tag="sample", timeout_seconds=0.01
        )
        return sum(len(episode) for episodes in taken for episode in episodes)

    return {"together": together, "as ready": as_ready}[how], algorithm.stop


def _torchrl_env() -> Any:
    import gymnasium as gym
    from gymnasium.vector import AutoresetMode
    from torchrl.envs import GymWrapper

    kwargs = {"autoreset_mode": AutoresetMode.SAME_STEP}
    envs = gym.make_vec(CHEETAH, ENVS, vectorization_mode="sync", vector_kwargs=kwargs)
    return GymWrapper(envs)


def torchrl(how: str) -> tuple[Callable[[], int], Callable[[], Any]]:
    import torch
    from tensordict.nn import NormalParamExtractor, TensorDictModule
    from torch import nn
    from torchrl.collectors.distributed import RayCollector
    from torchrl.modules import ProbabilisticActor

    network = nn.Sequential(_network(2 * OUTPUTS), NormalParamExtractor()).double()
    names = ["loc", "scale"]
    policy = ProbabilisticActor(
        TensorDictModule(network, in_keys=["observation"], out_keys=names),
        in_keys=names,
        distribution_class=torch.distributions.Normal,
        return_log_prob=True,
    )
    together = how == "together"
    collector = RayCollector(
        *(_torchrl_env, policy),
        frames_per_batch=ENVS * HORIZON * (HOSTS if together else 1),
        total_frames=10**12,
        sync=together,
        num_collectors=HOSTS,
        remote_configs={"num_cpus": 1, "num_gpus": 0, "memory": 2**28},
    )
    batches = iter(collector)
    return lambda: next(batches).numel(), collector.shutdown


PEERS: dict[str, Callable[[], tuple[Callable[[], int], Callable[[], Any]]]] = {
    "pysampler.ray.Rollouts": ours,
    "RLlib EnvRunners, together (PPO)": functools.partial(rllib, "together"),
    "RLlib EnvRunners, as ready (APPO)": functools.partial(rllib, "as ready"),
    "TorchRL RayCollector, sync=True": functools.partial(torchrl, "together"),
    "TorchRL RayCollector, sync=False": functools.partial(torchrl, "as ready"),
}


def peer(name: str) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """Prepare a cluster and a sampler on it."""
    cluster = start_cluster(HOSTS)
    take, close = PEERS[name]()
    warm = time.monotonic() + 2
    while time.monotonic() < warm:
        take()

    def run(cell: dict[str, Any]) -> dict[str, Any]:
        began, steps = time.perf_counter(), 0
        while time.perf_counter() < began + cell["seconds"]:
            steps += take()
        return {"rate": steps / (time.perf_counter() - began)}

    def end(_: dict[str, Any]) -> dict[str, Any]:
        close()
        return stop_cluster(cluster)

    return lambda cell: {"run": run, "end": end}[cell["do"]](cell)


def alone(index: str) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """Prepare the sampler of one of our hosts, without Ray."""
    import pysampler

    pin(int(index))
    rollouts = pysampler.Rollouts(
        *(CHEETAH, _policy(), HORIZON),
        num_envs=ENVS,
        vector_kwargs={"num_workers": 1},
        seed=int(index) * ENVS,
    )
    next(rollouts)

    def run(cell: dict[str, Any]) -> dict[str, Any]:
        began, steps = time.perf_counter(), 0
        while time.perf_counter() < began + cell["seconds"]:
            steps += next(rollouts).steps
        return {"rate": steps / (time.perf_counter() - began)}

    return lambda cell: {"run": run, "end": lambda _: {}}[cell["do"]](cell)


KINDS: dict[str, Callable[..., Callable[[dict[str, Any]], dict[str, Any]]]] = {
    "peer": peer,
    "alone": alone,
}
