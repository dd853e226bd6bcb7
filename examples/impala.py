"""IMPALA in one file: actors run on, and V-trace makes good that their weights are behind.

    python examples/impala.py                          # CartPole-v1 until it returns 475
    python examples/impala.py --max-lag 1              # what is older is dropped
    python examples/impala.py --plot returns.png

Neither side waits for the other, but that a full ring blocks the actors, and an empty one the
learner. The bar shows the mean return of the last 100 episodes, how many versions behind the
weights were that acted, how many trajectories were too old and dropped, steps a second, and where
the time goes: of the learner in waiting and in learning, of the actors in acting and in being
blocked; the rest is their envs'. Ctrl-C ends it with what was learned so far.
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
    from torch.distributions import Categorical
    from tqdm import tqdm

    import pysampler
except KeyboardInterrupt:  # torch takes seconds
    sys.exit("stopped before anything was learned")


@dataclass
class Settings:
    """What an env is learned with."""

    length: int = 20  # steps of a trajectory
    batch: int = 16  # trajectories of an update
    ring: int = 64  # ... that may wait
    rate: float = 2e-3
    gamma: float = 0.99
    entropy: float = 0.01
    scale: float = 0.1  # of rewards


@dataclass
class Progress:
    """What has been learned so far."""

    steps: int = 0
    recent: deque[float] = field(default_factory=lambda: deque(maxlen=100))  # returns of episodes
    curve: list[tuple[int, float]] = field(default_factory=list)  # mean returns over steps
    lags: list[float] = field(default_factory=list)  # versions
    dropped: int = 0
    seconds_in: dict[str, float] = field(default_factory=dict)
    began: float = field(default_factory=time.perf_counter)

    @property
    def lag(self) -> float:
        """The mean of all."""
        return float(np.mean(self.lags)) if self.lags else 0.0

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
            f"{self.lag:.1f} versions behind, {self.dropped:,} trajectories dropped"
        )


class ActorCritic(nn.Module):
    """Two layers for what to do, two for what it is worth."""

    def __init__(self, observations: Any, actions: Any, width: int = 64) -> None:
        super().__init__()
        inputs, outputs = observations.shape[0], int(actions.n)

        def mlp(outputs: int, scale: float) -> nn.Sequential:
            layers = [nn.Linear(inputs, width), nn.Linear(width, width), nn.Linear(width, outputs)]
            for layer, gain in zip(layers, (2**0.5, 2**0.5, scale), strict=True):
                nn.init.orthogonal_(layer.weight, gain)
                nn.init.zeros_(layer.bias)
            return nn.Sequential(layers[0], nn.Tanh(), layers[1], nn.Tanh(), layers[2])

        self.actor, self.critic = mlp(outputs, 0.01), mlp(1, 1.0)

    def value(self, observations: torch.Tensor) -> torch.Tensor:
        return self.critic(observations.float()).squeeze(-1)

    def distribution(self, observations: torch.Tensor) -> Categorical:
        return Categorical(logits=self.actor(observations.float()), validate_args=False)

    def forward(self, observations: torch.Tensor) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """The policy: actions, and how likely they were."""
        distribution = self.distribution(observations)
        actions = distribution.sample()
        return actions, {"log_prob": distribution.log_prob(actions)}


def vtrace(
    log_rhos: torch.Tensor,
    rewards: torch.Tensor,
    values: torch.Tensor,
    next_values: torch.Tensor,
    terminated: torch.Tensor,
    truncated: torch.Tensor,
    *,
    gamma: float,
    most_rho: float = 1.0,
    most_c: float = 1.0,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Targets of values, and advantages of actions: [n, T] like all that they are made of.

    ``log_rhos``: how much likelier the actions are to the policy that learns than they were to the
    one that acted. ``next_values`` are of what came of each step, where an episode ended of its
    last observation: that counts unless it terminated. Beyond the end of an episode nothing does.
    """
    rhos, cs = log_rhos.exp().clamp(max=most_rho), log_rhos.exp().clamp(max=most_c)
    over = terminated | truncated
    errors = rhos * (rewards + gamma * next_values * ~terminated - values)
    decay = gamma * cs * ~over
    corrections, after = torch.empty_like(errors), torch.zeros_like(errors[:, 0])
    for t in reversed(range(errors.shape[1])):
        corrections[:, t] = after = errors[:, t] + decay[:, t] * after
    targets = values + corrections
    # What follows a step is worth its target, but where the episode or the trajectory ends.
    later = next_values.clone()
    later[:, :-1] = torch.where(over[:, :-1], next_values[:, :-1], targets[:, 1:])
    return targets, rhos * (rewards + gamma * later * ~terminated - values)


def learn(net: ActorCritic, optimizer: torch.optim.Optimizer, records: Any, s: Settings) -> None:
    """One update."""
    data = records.torch()
    distribution, values = net.distribution(data.observations), net.value(data.observations)
    log_prob = distribution.log_prob(data.actions)
    with torch.no_grad():
        targets, advantages = vtrace(
            *(log_prob - data.log_prob, data.rewards.float() * s.scale, values),
            *(net.value(data.next_observations), data.terminated, data.truncated),
            gamma=s.gamma,
        )
    policy_loss = -(advantages * log_prob).mean()
    value_loss = (targets - values).pow(2).mean()
    optimizer.zero_grad()
    (policy_loss + 0.5 * value_loss - s.entropy * distribution.entropy().mean()).backward()
    nn.utils.clip_grad_norm_(net.parameters(), 0.5)
    optimizer.step()


def seconds_in(stats: Any, learning: float) -> dict[str, float]:
    """Where the time goes: of the learner, and of one of the actors."""
    return {
        "waiting": stats.waiting,
        "learning": learning,
        "acting": float(stats.acting.mean()),
        "blocked": float(stats.blocked.mean()),
    }


def plot(path: Path, curve: list[tuple[int, float]]) -> None:
    """Returns over steps."""
    from matplotlib import pyplot as plt  # noqa: PLC0415 - only where it is asked for

    figure, axes = plt.subplots(figsize=(7, 4), layout="constrained")
    axes.plot(*np.reshape(curve, (-1, 2)).T)
    axes.set(xlabel="steps of all envs", ylabel="return of 100 episodes")
    figure.savefig(path)


def spaces_of(env_id: str) -> tuple[gym.spaces.Box, gym.spaces.Discrete]:
    """Return the env's observations and actions, or exit with what is expected of them."""
    try:
        with contextlib.closing(gym.make(env_id)) as env:
            observations, actions = env.observation_space, env.action_space
    except (gym.error.Error, ModuleNotFoundError) as error:
        sys.exit(f"cannot make {env_id}: {error}")
    vector = isinstance(observations, gym.spaces.Box) and len(observations.shape) == 1
    if not (vector and isinstance(actions, gym.spaces.Discrete)):
        sys.exit(
            f"cannot learn {env_id}: observations {observations} and actions {actions}, expected "
            "a Box of one dimension and a Discrete"
        )
    return observations, actions


def train(options: argparse.Namespace, s: Settings, progress: Progress) -> None:
    """Learn from what the actors sample, and note the progress at once."""
    net = ActorCritic(*spaces_of(options.env))
    optimizer = torch.optim.Adam(net.parameters(), s.rate, eps=1e-5, fused=True)
    learning = 0.0
    with (
        pysampler.Actors(
            *(options.env, net),
            num_envs=options.envs,
            vector_kwargs={"num_workers": options.workers},
            steps=s.length,
            high=s.ring,
            max_lag=options.max_lag,
            seed=options.seed,
        ) as actors,
        tqdm(total=options.steps, unit=" steps", unit_scale=True, disable=options.quiet) as bar,
    ):
        for records in actors.batches(s.batch):
            came = time.perf_counter()
            progress.lags.append(actors.version - float(records.version.mean()))
            progress.recent.extend(records.ended)
            progress.steps += records.rewards.size
            stats = actors.stats()
            progress.dropped, progress.seconds_in = stats.dropped, seconds_in(stats, learning)
            mean = progress.mean
            if mean is not None:
                progress.curve.append((progress.steps, mean))
            solved = len(progress.recent) == 100 and mean >= options.until
            if solved or progress.steps >= options.steps:
                return
            for group in optimizer.param_groups:
                group["lr"] = s.rate * (1 - progress.steps / options.steps)
            learn(net, optimizer, records, s)
            actors.publish()
            learning += time.perf_counter() - came
            if bar.update(progress.steps - bar.n):  # it was shown, so not too often
                spent = time.perf_counter() - progress.began
                shares = {n: f"{part / spent:.0%}" for n, part in progress.seconds_in.items()}
                bar.set_postfix(
                    {
                        "return": "-" if mean is None else f"{mean:.1f}",
                        "lag": f"{np.mean(progress.lags[-100:]):.1f}",
                        "dropped": stats.dropped,
                        **shares,
                    }
                )


def whole(least: int) -> Callable[[str], int]:
    """Make the reader of an option that is a whole number of at least ``least``."""

    def number(text: str) -> int:
        if (value := int(text)) < least:
            raise argparse.ArgumentTypeError(f"{value}, expected at least {least}")
        return value

    return number


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--env", default="CartPole-v1", help="one with discrete actions")
    parser.add_argument("--envs", type=whole(1), default=16, help="how many")
    parser.add_argument("--workers", type=whole(0), help="by default one a CPU")
    parser.add_argument(
        "--max-lag", type=whole(0), default=4, help="versions; what is older is dropped"
    )
    parser.add_argument("--steps", type=whole(1), default=2_000_000, help="of all envs, at most")
    parser.add_argument("--until", type=float, default=475.0, help="this return of 100 episodes")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--plot", type=Path, help="file to write")
    parser.add_argument("--quiet", action="store_true", help="no bar")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    options = parser.parse_args()
    torch.manual_seed(options.seed)
    torch.set_num_threads(1)
    progress = Progress()
    with contextlib.suppress(KeyboardInterrupt):  # what was learned so far counts
        train(options, Settings(), progress)
    result = {
        "env": options.env,
        "return": progress.mean,
        "steps": progress.steps,
        "seconds": time.perf_counter() - progress.began,
        "lag": progress.lag,
        "dropped": progress.dropped,
        "seconds_in": progress.seconds_in,
    }
    print(json.dumps(result) if options.json else progress)
    if options.plot is not None:
        plot(options.plot, progress.curve)


if __name__ == "__main__":
    main()
