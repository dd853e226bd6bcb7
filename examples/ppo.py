"""PPO in one file: pysampler samples, torch learns.

    python examples/ppo.py                                      # CartPole-v1 until it returns 475
    python examples/ppo.py --env HalfCheetah-v5 --steps 1000000
    python examples/ppo.py --env HalfCheetah-v5 --vec gymnasium # the same with AsyncVectorEnv

The bar shows the mean return of the last 100 episodes, steps a second, and where the time goes.
"""

from __future__ import annotations

import argparse
import json
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from torch import nn
from torch.distributions import Categorical, Independent, Normal
from tqdm import tqdm

import pysampler


@dataclass
class Settings:
    """What an env is learned with."""

    envs: int = 8
    horizon: int = 128
    steps: int = 300_000
    epochs: int = 10
    batches: int = 4
    rate: float = 2.5e-3
    entropy: float = 0.0
    gamma: float = 0.98
    lam: float = 0.8
    until: float | None = None  # this mean return of the last 100 episodes


SETTINGS = {
    "CartPole-v1": Settings(until=475.0),
    "HalfCheetah-v5": Settings(64, 64, 1_000_000, 8, 16, 1e-3, gamma=0.99, lam=0.95),
}


class ActorCritic(nn.Module):
    """Two layers for what to do, two for what it is worth; observations are scaled."""

    def __init__(self, envs: gym.vector.VectorEnv, width: int = 64) -> None:
        super().__init__()
        inputs = int(np.prod(envs.single_observation_space.shape))
        space = envs.single_action_space
        self.discrete = isinstance(space, gym.spaces.Discrete)
        outputs = int(space.n if self.discrete else np.prod(space.shape))

        def mlp(outputs: int, scale: float) -> nn.Sequential:
            layers = [nn.Linear(inputs, width), nn.Linear(width, width), nn.Linear(width, outputs)]
            for layer, gain in zip(layers, (2**0.5, 2**0.5, scale), strict=True):
                nn.init.orthogonal_(layer.weight, gain)
                nn.init.zeros_(layer.bias)
            return nn.Sequential(layers[0], nn.Tanh(), layers[1], nn.Tanh(), layers[2])

        self.actor, self.critic = mlp(outputs, 0.01), mlp(1, 1.0)
        self.log_std = nn.Parameter(torch.zeros(0 if self.discrete else outputs))
        self.register_buffer("mean", torch.zeros(inputs))
        self.register_buffer("var", torch.ones(inputs))
        self.register_buffer("seen", torch.tensor(1e-4))

    def scaled(self, observations: torch.Tensor) -> torch.Tensor:
        scaled = (observations.float() - self.mean) / (self.var + 1e-8).sqrt()
        return scaled.clamp(-10, 10)

    def observe(self, observations: torch.Tensor) -> None:
        """Learn the scale of observations."""
        rows = observations.reshape(-1, len(self.mean)).float()
        total = self.seen + len(rows)
        off = rows.mean(0) - self.mean
        spread = self.var * self.seen + rows.var(0, unbiased=False) * len(rows)
        self.var.copy_((spread + off**2 * self.seen * len(rows) / total) / total)
        self.mean += off * len(rows) / total
        self.seen.copy_(total)

    def value(self, observations: torch.Tensor) -> torch.Tensor:
        return self.critic(self.scaled(observations)).squeeze(-1)

    def distribution(self, scaled: torch.Tensor) -> Any:
        outputs = self.actor(scaled)
        if self.discrete:
            return Categorical(logits=outputs, validate_args=False)
        normal = Normal(outputs, self.log_std.exp().expand_as(outputs), validate_args=False)
        return Independent(normal, 1, validate_args=False)

    def forward(self, observations: torch.Tensor) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """The policy: actions, and what to learn from them."""
        scaled = self.scaled(observations)
        distribution = self.distribution(scaled)
        actions = distribution.sample()
        value = self.critic(scaled).squeeze(-1)
        return actions, {"log_prob": distribution.log_prob(actions), "value": value}


@dataclass
class Batch:
    """A rollout as PPO takes it: [T, N] tensors, and what became of it."""

    observations: torch.Tensor
    actions: torch.Tensor
    log_probs: torch.Tensor
    values: torch.Tensor
    advantages: torch.Tensor
    returns: torch.Tensor
    ended: np.ndarray  # returns of the episodes that ended
    seconds: dict[str, float]


def with_pysampler(envs: Any, net: ActorCritic, s: Settings, options: Any) -> Iterator[Batch]:
    rollouts = pysampler.rollouts(
        envs, net, s.horizon, seed=options.seed, where=options.where, overlap=options.overlap
    )
    for rollout in rollouts:
        data = rollout.torch()
        with torch.no_grad():
            last, cut = net.value(data.last_observations), net.value(data.cut_observations)
        values = data.extras["value"]
        advantages, returns = data.gae(values, last, cut, gamma=s.gamma, lam=s.lam)
        yield Batch(
            *(data.observations[:-1], data.actions, data.extras["log_prob"], values),
            *(advantages, returns, rollout.ended.returns, rollout.seconds),
        )


def with_gymnasium(envs: Any, net: ActorCritic, s: Settings, options: Any) -> Iterator[Batch]:
    """The same by hand, with any vector env that resets envs in the step that ends an episode."""
    seen, _ = envs.reset(seed=options.seed)
    totals = np.zeros(s.envs)
    learned = time.perf_counter()
    while True:
        rows: dict[str, list[Any]] = {name: [] for name in "oavlrtcf"}
        ended, seconds = [], {"policy": 0.0, "waiting": 0.0, "learner": 0.0}
        seconds["learner"] = time.perf_counter() - learned
        for _ in range(s.horizon):
            began = time.perf_counter()
            with torch.no_grad():
                actions, said = net(torch.from_numpy(seen))
            acted = time.perf_counter()
            after, rewards, terminated, truncated, infos = envs.step(actions.numpy())
            seconds["policy"] += acted - began
            seconds["waiting"] += time.perf_counter() - acted
            over = terminated | truncated
            totals += rewards
            ended += totals[over].tolist()
            totals[over] = 0
            cut = np.flatnonzero(truncated & ~terminated)
            rows["f"] += [infos["final_obs"][env] for env in cut]
            for name, value in zip(
                "oavlrtc",
                (seen, actions, said["value"], said["log_prob"], rewards, terminated, truncated),
                strict=True,
            ):
                rows[name].append(value)
            seen = after
        with torch.no_grad():
            last = net.value(torch.from_numpy(seen)).numpy()
            finals = np.array(rows["f"]).reshape(-1, *seen.shape[1:])
            cut_values = net.value(torch.from_numpy(finals)).numpy()
        values = torch.stack(rows["v"])
        advantages, returns = pysampler.gae(
            *(np.stack(rows["r"]), values.numpy(), last, np.stack(rows["t"]), np.stack(rows["c"])),
            cut_values,
            gamma=s.gamma,
            lam=s.lam,
        )
        began = time.perf_counter()
        yield Batch(
            *(
                torch.from_numpy(np.stack(rows["o"])),
                torch.stack(rows["a"]),
                torch.stack(rows["l"]),
            ),
            *(values, torch.from_numpy(advantages), torch.from_numpy(returns)),
            *(np.array(ended), seconds),
        )
        learned = began


def learn(net: ActorCritic, optimizer: torch.optim.Optimizer, batch: Batch, s: Settings) -> None:
    """Some epochs of clipped updates."""
    count = batch.log_probs.numel()
    observations = batch.observations.reshape(count, -1)
    actions = batch.actions.reshape(count, *batch.actions.shape[2:])
    old, advantages, returns = (
        t.reshape(count) for t in (batch.log_probs, batch.advantages, batch.returns)
    )
    scaled = net.scaled(observations)
    for _ in range(s.epochs):
        for rows in torch.randperm(count).chunk(s.batches):
            distribution = net.distribution(scaled[rows])
            ratio = (distribution.log_prob(actions[rows]) - old[rows]).exp()
            gain = advantages[rows]
            gain = (gain - gain.mean()) / (gain.std() + 1e-8)
            policy_loss = -torch.min(ratio * gain, ratio.clamp(0.8, 1.2) * gain).mean()
            value_loss = (net.critic(scaled[rows]).squeeze(-1) - returns[rows]).pow(2).mean()
            loss = policy_loss + 0.5 * value_loss - s.entropy * distribution.entropy().mean()
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(net.parameters(), 0.5)
            optimizer.step()
    net.observe(observations)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--env", default="CartPole-v1")
    parser.add_argument("--vec", choices=("pysampler", "gymnasium"), default="pysampler")
    parser.add_argument("--where", choices=("centre", "workers"), default="centre")
    parser.add_argument("--overlap", action="store_true", help="sample while learning")
    parser.add_argument("--envs", type=int, help="how many")
    parser.add_argument("--workers", type=int, help="of pysampler; by default one a CPU")
    parser.add_argument("--steps", type=int, help="of all envs together, at most")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--quiet", action="store_true", help="no bar")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    options = parser.parse_args()
    settings = SETTINGS.get(options.env, Settings())
    settings.envs = options.envs or settings.envs
    settings.steps = options.steps or settings.steps

    torch.set_num_threads(1)  # for nets as small as this, more only get in the way of the envs
    torch.manual_seed(options.seed)
    mode = gym.vector.AutoresetMode.SAME_STEP
    if options.vec == "pysampler":
        kwargs = {"num_workers": options.workers, "autoreset_mode": mode}
        envs = pysampler.make_vec(options.env, settings.envs, vector_kwargs=kwargs)
    else:
        envs = gym.make_vec(
            options.env, settings.envs, "async", vector_kwargs={"autoreset_mode": mode}
        )
    net = ActorCritic(envs)
    optimizer = torch.optim.Adam(net.parameters(), settings.rate, eps=1e-5)
    source = with_pysampler if options.vec == "pysampler" else with_gymnasium
    recent: deque[float] = deque(maxlen=100)
    spent = dict.fromkeys(("policy", "envs", "waiting", "learner"), 0.0)
    began, steps = time.perf_counter(), 0
    bar = tqdm(total=settings.steps, unit=" steps", unit_scale=True, disable=options.quiet)
    try:
        for batch in source(envs, net, settings, options):
            recent.extend(batch.ended)
            steps += batch.log_probs.numel()
            for name, seconds in batch.seconds.items():
                spent[name] += seconds
            bar.update(batch.log_probs.numel())
            mean = float(np.mean(recent)) if recent else float("nan")
            shares = {n: f"{v / (time.perf_counter() - began):.0%}" for n, v in spent.items()}
            bar.set_postfix({"return": f"{mean:.1f}", **shares})
            solved = len(recent) == 100 and settings.until is not None and mean >= settings.until
            if solved or steps >= settings.steps:
                break
            for group in optimizer.param_groups:
                group["lr"] = settings.rate * (1 - steps / settings.steps)
            learn(net, optimizer, batch, settings)
    except KeyboardInterrupt:
        pass
    finally:
        bar.close()
        envs.close()
    seconds = time.perf_counter() - began
    sampling = spent["policy"] + spent["waiting"]
    result = {
        "env": options.env,
        "vec": options.vec,
        "return": mean,
        "steps": steps,
        "seconds": seconds,
        "sampling_steps_per_second": steps / sampling,
        "seconds_in": spent,
    }
    print(
        json.dumps(result)
        if options.json
        else f"{steps:,} steps in {seconds:.1f} s, return {mean:.1f} over the last {len(recent)} "
        f"episodes; {steps / sampling:,.0f} steps/s while sampling"
    )


if __name__ == "__main__":
    main()
