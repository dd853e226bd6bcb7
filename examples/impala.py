"""IMPALA in one file: actors run freely, and V-trace corrects for their older weights.

    python examples/impala.py                          # CartPole-v1 until it returns 475
    python examples/impala.py --max-lag 1              # drops trajectories of older weights
    python examples/impala.py --plot returns.png
    python examples/impala.py --ray auto               # actors on each node of a Ray cluster

Actors wait only when the ring is full, the learner only when it is empty. The progress bar shows
the mean return of the last 100 episodes, how many versions behind the weights of the actors were,
how many trajectories were dropped because they were too old, steps per second, and shares of time:
of the learner for waiting and for learning, of the actors for acting and for being blocked (the
rest goes to their envs). Ctrl-C stops the training and prints the result so far.
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
from functools import partial
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
except KeyboardInterrupt:  # importing torch takes seconds
    sys.exit("stopped before anything was learned")


@dataclass
class Settings:
    """The hyperparameters."""

    length: int = 20  # steps of a trajectory
    batch: int = 16  # trajectories of an update
    ring: int = 64  # trajectories that may wait
    rate: float = 2e-3
    gamma: float = 0.99
    entropy: float = 0.01
    scale: float = 0.1  # by which rewards are multiplied


@dataclass
class Progress:
    """The progress of the training."""

    steps: int = 0
    recent: deque[float] = field(default_factory=lambda: deque(maxlen=100))  # episode returns
    curve: list[tuple[int, float]] = field(default_factory=list)  # mean returns over steps
    lags: list[float] = field(default_factory=list)  # versions of the weights
    dropped: int = 0
    seconds_in: dict[str, float] = field(default_factory=dict)
    began: float = field(default_factory=time.perf_counter)

    @property
    def lag(self) -> float:
        """How many versions behind the weights of the actors were, on average."""
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
    """An actor and a critic with two hidden layers each."""

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
        """Act as the policy: return actions and their log-probabilities."""
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
    max_rho: float = 1.0,
    max_c: float = 1.0,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return targets of values and advantages of actions. All tensors are [n, T].

    ``log_rhos`` are logarithms of how much likelier the learner's policy is to take the actions
    than the policy that acted was. ``next_values`` are values of the observation after each step:
    the last one of the episode where that ended. They count unless the episode terminated.
    """
    rhos, cs = log_rhos.exp().clamp(max=max_rho), log_rhos.exp().clamp(max=max_c)
    done = terminated | truncated
    errors = rhos * (rewards + gamma * next_values * ~terminated - values)
    decay = gamma * cs * ~done
    corrections, correction = torch.empty_like(errors), torch.zeros_like(errors[:, 0])
    for t in reversed(range(errors.shape[1])):
        corrections[:, t] = correction = errors[:, t] + decay[:, t] * correction
    targets = values + corrections
    # The target of the next step, except where the episode or the trajectory ends.
    next_targets = next_values.clone()
    next_targets[:, :-1] = torch.where(done[:, :-1], next_values[:, :-1], targets[:, 1:])
    return targets, rhos * (rewards + gamma * next_targets * ~terminated - values)


def learn(net: ActorCritic, optimizer: torch.optim.Optimizer, records: Any, s: Settings) -> None:
    """Update the network with one batch of trajectories."""
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
    """Return how the learner spends its time, and an actor on average, unless it is on a host."""
    shares = {"waiting": stats.waiting, "learning": learning}
    if isinstance(stats, pysampler.ActorStats):
        shares |= {"acting": float(stats.acting.mean()), "blocked": float(stats.blocked.mean())}
    return shares


def plot(path: Path, curve: list[tuple[int, float]]) -> None:
    """Plot returns over steps."""
    from matplotlib import pyplot as plt  # noqa: PLC0415 - only with --plot

    figure, axes = plt.subplots(figsize=(7, 4), layout="constrained")
    axes.plot(*np.reshape(curve, (-1, 2)).T)
    axes.set(xlabel="steps of all envs", ylabel="return of 100 episodes")
    figure.savefig(path)


def spaces_of(env_id: str) -> tuple[gym.spaces.Box, gym.spaces.Discrete]:
    """Return the spaces of an env, or exit with a message if they are not supported."""
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


def hosted(options: argparse.Namespace) -> Callable[..., Any]:
    """Return what makes actors on hosts, or exit with a message if there is no Ray."""
    try:
        import pysampler.ray  # noqa: PLC0415 - only with --ray
    except ModuleNotFoundError as error:
        sys.exit(str(error))
    import ray  # noqa: PLC0415

    ray.init(options.address)
    return partial(pysampler.ray.Actors, hosts=options.ray, on_host_loss="restart")


def train(options: argparse.Namespace, s: Settings, progress: Progress) -> None:
    """Train on what the actors sample; ``progress`` is up to date after each batch."""
    net = ActorCritic(*spaces_of(options.env))
    optimizer = torch.optim.Adam(net.parameters(), s.rate, eps=1e-5, fused=True)
    learning = 0.0
    make_actors = pysampler.Actors if options.ray is None else hosted(options)
    with (
        make_actors(
            *(options.env, net),
            num_envs=options.envs,
            vector_kwargs={} if options.workers is None else {"num_workers": options.workers},
            steps=s.length,
            high=s.ring,
            max_lag=options.max_lag,
            seed=options.seed,
        ) as actors,
        tqdm(total=options.steps, unit=" steps", unit_scale=True, disable=options.quiet) as bar,
    ):
        for records in actors.batches(s.batch):
            began = time.perf_counter()
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
            learning += time.perf_counter() - began
            if bar.update(progress.steps - bar.n):  # only when the bar is redrawn
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


def at_least(minimum: int) -> Callable[[str], int]:
    """Return a converter for options that are integers of at least ``minimum``."""

    def number(text: str) -> int:
        if (value := int(text)) < minimum:
            raise argparse.ArgumentTypeError(f"{value}, expected at least {minimum}")
        return value

    return number


def hosts(text: str) -> int | str:
    """Return how many hosts an option asks for."""
    return text if text == "auto" else at_least(1)(text)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--env", default="CartPole-v1", help="id of an env with discrete actions")
    parser.add_argument("--envs", type=at_least(1), default=16, help="number of envs; of each host")
    parser.add_argument(
        "--workers", type=at_least(0), help="worker processes; default: one per CPU"
    )
    parser.add_argument(
        "--max-lag",
        type=at_least(0),
        default=4,
        help="drop trajectories of weights that are more versions behind",
    )
    parser.add_argument(
        "--steps",
        type=at_least(1),
        default=2_000_000,
        help="stop after this many steps of all envs",
    )
    parser.add_argument(
        "--until", type=float, default=475.0, help="stop at this mean return of 100 episodes"
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--ray",
        type=hosts,
        metavar="HOSTS",
        help="the number of hosts to sample on, or auto: all nodes",
    )
    parser.add_argument("--address", help="of a Ray cluster; default: RAY_ADDRESS, or this machine")
    parser.add_argument("--plot", type=Path, help="plot the returns to this file")
    parser.add_argument("--quiet", action="store_true", help="show no progress bar")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    options = parser.parse_args()
    if options.address is not None and options.ray is None:
        parser.error("--address is of a Ray cluster; expected --ray too")
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
        "dropped": progress.dropped,
        "seconds_in": progress.seconds_in,
    }
    print(json.dumps(result) if options.json else progress)
    if options.plot is not None:
        plot(options.plot, progress.curve)


if __name__ == "__main__":
    main()
