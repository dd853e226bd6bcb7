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
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

try:
    import numpy as np
    import torch
    from common import Run, add_hosts, at_least, parse, parser, run, spaces_of
    from torch import nn
    from torch.distributions import Categorical

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
    data = records.torch(next(net.parameters()).device)
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


def hosted(options: argparse.Namespace) -> Callable[..., Any]:
    """Return what makes actors on hosts, or exit with a message if there is no Ray."""
    try:
        import pysampler.ray  # noqa: PLC0415 - only with --ray
    except ModuleNotFoundError as error:
        sys.exit(str(error))
    import ray  # noqa: PLC0415

    ray.init(options.address)
    return partial(pysampler.ray.Actors, hosts=options.ray, on_host_loss="restart")


def train(options: argparse.Namespace, run: Run) -> None:
    """Train on what the actors sample until the run is over."""
    s = Settings()
    net = ActorCritic(*spaces_of(options.env, "discrete")).to(options.device)
    optimizer = torch.optim.Adam(net.parameters(), s.rate, eps=1e-5, fused=True)
    run.restore(net=net, optimizer=optimizer)
    learning, lags = 0.0, []
    make_actors = pysampler.Actors if options.ray is None else hosted(options)
    with make_actors(
        *(options.env, net),
        num_envs=options.envs,
        num_workers=options.workers,
        steps=s.length,
        high=s.ring,
        max_lag=options.max_lag,
        seed=options.seed,
    ) as actors:
        run.start(net, lambda: net)
        for records in actors.batches(s.batch):
            began = time.perf_counter()
            lags.append(actors.version - float(records.version.mean()))
            stats = actors.stats()
            run.advance(
                records.rewards.size,
                records.ended,
                spent=seconds_in(stats, learning),
                lag=float(np.mean(lags)),
                dropped=stats.dropped,
            )
            if not run.over:
                for group in optimizer.param_groups:
                    group["lr"] = s.rate * (1 - run.steps / run.total)
                learn(net, optimizer, records, s)
                actors.publish()
            learning += time.perf_counter() - began
            run.checkpoint(net=net, optimizer=optimizer)
            if run.over:
                return


def main() -> None:
    made = parser(__doc__, "CartPole-v1", steps=2_000_000, until=475.0)
    made.add_argument("--envs", type=at_least(1), default=16, help="number of envs; of each host")
    made.add_argument("--workers", type=at_least(0), help="worker processes; default: one per CPU")
    text = "drop trajectories of weights that are more versions behind"
    made.add_argument("--max-lag", type=at_least(0), default=4, help=text)
    add_hosts(made)
    options = parse(made)
    run(train, Run(options))


if __name__ == "__main__":
    main()
