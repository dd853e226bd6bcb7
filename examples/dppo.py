"""DPPO in one file: writers fill a queue, then block while the learner trains on all of it.

    python examples/dppo.py                       # Pendulum-v1 until it returns -200
    python examples/dppo.py --envs 8 --workers 4
    python examples/dppo.py --plot returns.png

So nearly all data of an update comes from one policy; trajectories that were not finished when the
queue became full come with a later phase, one version behind. The progress bar shows the mean
return of the last 100 episodes, how many versions behind the weights of the writers were, steps per
second, and shares of time: of the learner for waiting for a full queue and for learning, of the
writers for acting and for being blocked (the rest goes to their envs). Ctrl-C stops the training
and prints the result so far.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

try:
    import gymnasium as gym
    import numpy as np
    import torch
    from torch import nn
    from torch.distributions import Independent, Normal
    from tqdm import tqdm

    import pysampler
except KeyboardInterrupt:  # importing torch takes seconds
    sys.exit("stopped before anything was learned")


@dataclass
class Settings:
    """The hyperparameters."""

    length: int = 50  # steps of a trajectory
    queue: int = 64  # trajectories that it holds
    epochs: int = 10
    rows: int = 400  # steps of a minibatch
    rate: float = 1e-3
    gamma: float = 0.9
    gae_lambda: float = 0.95
    scale: float = 0.1  # by which rewards are multiplied


@dataclass
class Progress:
    """The progress of the training."""

    steps: int = 0
    recent: deque[float] = field(default_factory=lambda: deque(maxlen=100))  # episode returns
    curve: list[tuple[int, float]] = field(default_factory=list)  # mean returns over steps
    lag: float = 0.0  # versions of the weights
    seconds_in: dict[str, float] = field(default_factory=dict)
    began: float = field(default_factory=time.perf_counter)

    @property
    def mean(self) -> float | None:
        """The mean return of the last 100 episodes; None if none has ended."""
        return float(np.mean(self.recent)) if self.recent else None

    def __str__(self) -> str:
        learned = (
            "no episode has ended"
            if self.mean is None
            else f"return {self.mean:.1f} over the last {len(self.recent)} episodes"
        )
        return (
            f"{self.steps:,} steps in {time.perf_counter() - self.began:.1f} s, {learned}; "
            f"{self.lag:.2f} versions behind"
        )


class ActorCritic(nn.Module):
    """An actor, whose normally distributed actions are clipped to the space, and a critic."""

    def __init__(self, observations: Any, actions: Any, width: int = 64) -> None:
        super().__init__()
        inputs, outputs = observations.shape[0], actions.shape[0]

        def mlp(outputs: int, scale: float) -> nn.Sequential:
            layers = [nn.Linear(inputs, width), nn.Linear(width, width), nn.Linear(width, outputs)]
            for layer, gain in zip(layers, (2**0.5, 2**0.5, scale), strict=True):
                nn.init.orthogonal_(layer.weight, gain)
                nn.init.zeros_(layer.bias)
            return nn.Sequential(layers[0], nn.Tanh(), layers[1], nn.Tanh(), layers[2])

        self.actor, self.critic = mlp(outputs, 0.01), mlp(1, 1.0)
        self.log_std = nn.Parameter(torch.zeros(outputs))
        self.register_buffer("low", torch.from_numpy(actions.low))
        self.register_buffer("high", torch.from_numpy(actions.high))

    def value(self, observations: torch.Tensor) -> torch.Tensor:
        return self.critic(observations.float()).squeeze(-1)

    def distribution(self, observations: torch.Tensor) -> Any:
        """Return the distribution of actions; -1 and 1 are the bounds of the action space."""
        mean = self.actor(observations.float())
        normal = Normal(mean, self.log_std.exp().expand_as(mean), validate_args=False)
        return Independent(normal, 1, validate_args=False)

    def forward(self, observations: torch.Tensor) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """Act as the policy: return actions, and what the learner needs to know about them."""
        distribution = self.distribution(observations)
        sample = distribution.sample()
        actions = torch.lerp(self.low, self.high, (sample.clamp(-1, 1) + 1) / 2)
        return actions, {"sample": sample, "log_prob": distribution.log_prob(sample)}


def prepared(records: Any, net: ActorCritic, s: Settings) -> dict[str, torch.Tensor]:
    """Return the data of an update, [n * T, ...], with generalized advantage estimates."""
    data = records.torch()
    with torch.no_grad():
        # Both of the current network: values of an older one would not be consistent with them.
        values, next_values = net.value(data.observations), net.value(data.next_observations)
    # The value after a step counts unless the episode terminated.
    errors = data.rewards.float() * s.scale + s.gamma * next_values * ~data.terminated - values
    decay = s.gamma * s.gae_lambda * ~(data.terminated | data.truncated)
    advantages, next_advantage = torch.empty_like(values), torch.zeros(len(values))
    for t in reversed(range(s.length)):
        advantages[:, t] = next_advantage = errors[:, t] + decay[:, t] * next_advantage
    rows = {
        "observations": data.observations,
        "sample": data.sample,
        "log_prob": data.log_prob,
        "advantages": advantages,
        "returns": advantages + values,
    }
    return {name: tensor.flatten(0, 1) for name, tensor in rows.items()}


def learn(
    net: ActorCritic, optimizer: torch.optim.Optimizer, data: dict[str, torch.Tensor], s: Settings
) -> None:
    """Update the network for some epochs with PPO's clipped objective."""
    count = len(data["log_prob"])
    for _ in range(s.epochs):
        for chosen in torch.randperm(count).split(s.rows):
            rows = {name: tensor[chosen] for name, tensor in data.items()}
            log_prob = net.distribution(rows["observations"]).log_prob(rows["sample"])
            ratio = (log_prob - rows["log_prob"]).exp()
            gain = rows["advantages"]
            gain = (gain - gain.mean()) / (gain.std() + 1e-8)
            policy_loss = -torch.min(ratio * gain, ratio.clamp(0.8, 1.2) * gain).mean()
            value_loss = (net.value(rows["observations"]) - rows["returns"]).pow(2).mean()
            optimizer.zero_grad()
            (policy_loss + 0.5 * value_loss).backward()
            nn.utils.clip_grad_norm_(net.parameters(), 0.5)
            optimizer.step()


def seconds_in(stats: Any, learning: float) -> dict[str, float]:
    """Return how the learner spends its time, and a writer on average."""
    return {
        "waiting": stats.waiting,
        "learning": learning,
        "acting": float(stats.acting.mean()),
        "blocked": float(stats.blocked.mean()),
    }


def plot(path: Path, curve: list[tuple[int, float]]) -> None:
    """Plot returns over steps."""
    from matplotlib import pyplot as plt  # noqa: PLC0415 - only with --plot

    figure, axes = plt.subplots(figsize=(7, 4), layout="constrained")
    axes.plot(*np.reshape(curve, (-1, 2)).T)
    axes.set(xlabel="steps of all envs", ylabel="return of 100 episodes")
    figure.savefig(path)


def spaces_of(env_id: str) -> tuple[gym.spaces.Box, gym.spaces.Box]:
    """Return the spaces of an env, or exit with a message if they are not supported."""
    try:
        with contextlib.closing(gym.make(env_id)) as env:
            observations, actions = env.observation_space, env.action_space
    except (gym.error.Error, ModuleNotFoundError) as error:
        sys.exit(f"cannot make {env_id}: {error}")
    vectors = [isinstance(x, gym.spaces.Box) and len(x.shape) == 1 for x in (observations, actions)]
    if not (all(vectors) and actions.is_bounded()):
        sys.exit(
            f"cannot learn {env_id}: observations {observations} and actions {actions}, expected "
            "a Box of one dimension each, that of actions bounded"
        )
    return observations, actions


def train(options: argparse.Namespace, s: Settings, progress: Progress) -> None:
    """Train in phases; ``progress`` is up to date after each."""
    net = ActorCritic(*spaces_of(options.env))
    optimizer = torch.optim.Adam(net.parameters(), s.rate, eps=1e-5, fused=True)
    learning = 0.0
    with (
        pysampler.Actors(
            *(options.env, net),
            num_envs=options.envs,
            vector_kwargs={"num_workers": options.workers},
            steps=s.length,
            seed=options.seed,
        ) as writers,
        tqdm(total=options.steps, unit=" steps", unit_scale=True, disable=options.quiet) as bar,
    ):
        for phase in writers.phases(high=s.queue, low=0):
            full = time.perf_counter()
            parts = []
            for records in phase.batches(s.queue):
                progress.steps += records.rewards.size
                progress.recent.extend(records.ended)
                parts.append(prepared(records, net, s))
            stats, mean = writers.stats(), progress.mean
            progress.lag, progress.seconds_in = stats.lag, seconds_in(stats, learning)
            if mean is not None:
                progress.curve.append((progress.steps, mean))
            solved = len(progress.recent) == 100 and mean >= options.until
            if solved or progress.steps >= options.steps:
                return
            for group in optimizer.param_groups:
                group["lr"] = s.rate * (1 - progress.steps / options.steps)
            data = {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
            learn(net, optimizer, data, s)
            writers.publish()
            learning += time.perf_counter() - full
            spent = time.perf_counter() - progress.began
            shares = {n: f"{part / spent:.0%}" for n, part in progress.seconds_in.items()}
            bar.update(progress.steps - bar.n)
            bar.set_postfix(
                {
                    "return": "-" if mean is None else f"{mean:.1f}",
                    "lag": f"{stats.lag:.1f}",
                    **shares,
                }
            )


def at_least(minimum: int) -> Callable[[str], int]:
    """Return a converter for options that are integers of at least ``minimum``."""

    def number(text: str) -> int:
        if (value := int(text)) < minimum:
            raise argparse.ArgumentTypeError(f"{value}, expected at least {minimum}")
        return value

    return number


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--env", default="Pendulum-v1", help="id of an env with bounded continuous actions"
    )
    parser.add_argument("--envs", type=at_least(1), default=16, help="number of envs")
    parser.add_argument(
        "--workers", type=at_least(0), help="worker processes; default: one per CPU"
    )
    parser.add_argument(
        "--steps", type=at_least(1), default=400_000, help="stop after this many steps of all envs"
    )
    parser.add_argument(
        "--until", type=float, default=-200.0, help="stop at this mean return of 100 episodes"
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--plot", type=Path, help="plot the returns to this file")
    parser.add_argument("--quiet", action="store_true", help="show no progress bar")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    options = parser.parse_args()
    torch.manual_seed(options.seed)
    torch.set_num_threads(1)
    progress = Progress()
    with contextlib.suppress(KeyboardInterrupt):  # report what was learned so far
        train(options, Settings(), progress)
    result = {
        "env": options.env,
        "return": progress.mean,
        "steps": progress.steps,
        "seconds": time.perf_counter() - progress.began,
        "lag": progress.lag,
        "seconds_in": progress.seconds_in,
    }
    print(json.dumps(result) if options.json else progress)
    if options.plot is not None:
        plot(options.plot, progress.curve)


if __name__ == "__main__":
    main()
