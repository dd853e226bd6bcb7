"""DPPO in one file: writers fill a queue, then block while the learner trains on all of it.

    python examples/dppo.py                       # Pendulum-v1 until it returns -200
    python examples/dppo.py --envs 8 --workers 4
    python examples/dppo.py --watch human         # or video: the newest policy, while it learns
    python examples/dppo.py --save best.pt --checkpoints run --plot returns.png

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
import sys
import time
from dataclasses import dataclass
from typing import Any

try:
    import torch
    from common import Run, add_watch, at_least, parse, parser, run, spaces_of, watcher
    from torch import nn
    from torch.distributions import Independent, Normal

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
    data = records.torch(net.low.device)
    with torch.no_grad():
        # Both of the current network: values of an older one would not be consistent with them.
        values, next_values = net.value(data.observations), net.value(data.next_observations)
    # The value after a step counts unless the episode terminated.
    errors = data.rewards.float() * s.scale + s.gamma * next_values * ~data.terminated - values
    decay = s.gamma * s.gae_lambda * ~(data.terminated | data.truncated)
    advantages, next_advantage = torch.empty_like(values), torch.zeros_like(values[:, 0])
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


def train(options: argparse.Namespace, run: Run) -> None:
    """Train in phases until the run is over."""
    s = Settings()
    net = ActorCritic(*spaces_of(options.env, "bounded")).to(options.device)
    optimizer = torch.optim.Adam(net.parameters(), s.rate, eps=1e-5, fused=True)
    run.restore(net=net, optimizer=optimizer)
    learning = 0.0
    with (
        pysampler.Actors(
            *(options.env, net),
            num_envs=options.envs,
            num_workers=options.workers,
            steps=s.length,
            seed=options.seed,
        ) as writers,
        watching(options, writers) as watched,
    ):
        run.start(net, lambda: net)
        for phase in writers.phases(high=s.queue, low=0):
            full = time.perf_counter()
            parts, returns, steps = [], [], 0
            for records in phase.batches(s.queue):
                steps += records.rewards.size
                returns += list(records.ended)
                parts.append(prepared(records, net, s))
            stats = writers.stats()
            spent = seconds_in(stats, learning)
            run.advance(steps, returns, spent=spent, lag=stats.lag, **newest(watched))
            if not run.over:
                for group in optimizer.param_groups:
                    group["lr"] = s.rate * (1 - run.steps / run.total)
                data = {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
                learn(net, optimizer, data, s)
                writers.publish()
            learning += time.perf_counter() - full
            run.checkpoint(net=net, optimizer=optimizer)
            if run.over:
                return


def watching(options: argparse.Namespace, writers: pysampler.Actors) -> Any:
    """Return a watcher that shows the newest policy beside the training; None without --watch."""
    if options.watch is None:
        return contextlib.nullcontext()
    return watcher(options, options.watch, writers, options.env, every=5)


def newest(watched: pysampler.Watcher | None) -> dict[str, float | None]:
    """Return the return of the newest episode that was watched."""
    if watched is None:
        return {}
    returns = watched.curve["return"]
    return {"watched": float(returns[-1]) if len(returns) else None}


def main() -> None:
    made = parser(__doc__, "Pendulum-v1", steps=400_000, until=-200.0)
    made.add_argument("--envs", type=at_least(1), default=16, help="number of envs")
    made.add_argument("--workers", type=at_least(0), help="worker processes; default: one per CPU")
    add_watch(made, "--watch", "show the newest policy in a window, or film it, while it learns")
    options = parse(made)
    run(train, Run(options))


if __name__ == "__main__":
    main()
