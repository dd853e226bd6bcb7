"""DQN with averaging in one file: each worker trains on its own env; weights are averaged.

    python examples/dqn_average.py                      # CartPole-v1 until the average returns 475
    python examples/dqn_average.py --workers 1          # the same without averaging
    python examples/dqn_average.py --plot returns.png

The progress bar shows the mean return of the last 100 episodes of all workers, which explore, the
mean return of the averaged network without exploring when it was last evaluated, and steps per
second. Ctrl-C stops the training and prints the result so far.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import functools
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

try:
    import gymnasium as gym
    import numpy as np
    import torch
    from common import Run, at_least, parse, parser, run, spaces_of
    from torch import nn

    import pysampler
except KeyboardInterrupt:  # importing torch takes seconds
    sys.exit("stopped before anything was learned")


@dataclass
class Settings:
    """The hyperparameters of each worker."""

    width: int = 128
    rate: float = 1e-3
    gamma: float = 0.99
    n_step: int = 5
    capacity: int = 50_000
    batch: int = 128
    every: int = 4  # env steps per update
    follow: float = 0.02  # by which share the target network follows the network in each update
    warmup: int = 1_000  # steps before the first update
    exploring: int = 5_000  # steps until epsilon is at its minimum
    epsilon: float = 0.02  # the minimum


class Net(nn.Module):
    """A network for the values of actions; as a policy, it takes the best action."""

    def __init__(self, observations: Any, actions: Any, width: int) -> None:
        super().__init__()
        inputs, outputs = observations.shape[0], int(actions.n)
        self.q = nn.Sequential(
            *(nn.Linear(inputs, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU()),
            nn.Linear(width, outputs),
        )

    def forward(self, observations: torch.Tensor) -> torch.Tensor:
        return self.q(observations).argmax(-1)


class Learner:
    """A DQN learner with an env, replay buffer, optimizer and target network of its own."""

    def __init__(self, env_id: str, settings: Settings, _: int, seed: int) -> None:
        torch.manual_seed(seed)
        torch.set_num_threads(1)
        s = self.settings = settings
        self.random = np.random.default_rng(seed)
        self.env = gym.make(env_id)
        self.net = Net(self.env.observation_space, self.env.action_space, s.width)
        self.target = copy.deepcopy(self.net)
        self.optimizer = torch.optim.Adam(self.net.parameters(), s.rate, fused=True)
        self.seen, _ = self.env.reset(seed=seed)
        fields = {"seen": self.seen, "action": np.zeros((), np.int64), "next_seen": self.seen}
        self.replay = pysampler.ReplayBuffer(
            s.capacity, fields, n_step=s.n_step, gamma=s.gamma, seed=seed
        )
        self.steps, self.total = 0, 0.0

    def state_dict(self) -> dict[str, Any]:
        return self.net.state_dict()

    def load_state_dict(self, weights: Mapping[str, Any]) -> None:
        self.net.load_state_dict(weights)

    def train(self, steps: int) -> dict[str, Any]:
        returns, s = [], self.settings
        for _ in range(steps):
            if (total := self.step()) is not None:
                returns.append(total)
            if self.steps >= s.warmup and self.steps % s.every == 0:
                self.learn()
        return {"returns": returns}

    def step(self) -> float | None:
        """Step the env; return the return of its episode if that has ended."""
        s = self.settings
        epsilon = max(s.epsilon, 1 - (1 - s.epsilon) * self.steps / s.exploring)
        if self.random.random() < epsilon:
            action = int(self.random.integers(self.env.action_space.n))
        else:
            with torch.no_grad():
                action = int(self.net(torch.from_numpy(self.seen)))
        after, reward, terminated, truncated, _ = self.env.step(action)
        self.replay.add(
            {"seen": self.seen[None], "action": [action], "next_seen": after[None]},
            rewards=[reward],
            terminated=[terminated],
            truncated=[truncated],
            env=[0],
        )
        self.seen = after
        self.steps += 1
        self.total += float(reward)
        if not (terminated or truncated):
            return None
        total, self.total = self.total, 0.0
        self.seen, _ = self.env.reset()
        return total

    def learn(self) -> None:
        batch = self.replay.sample(self.settings.batch).torch()
        with torch.no_grad():
            next_values = self.target.q(batch.next_fields["next_seen"]).amax(-1)
        value = self.net.q(batch.fields["seen"]).gather(1, batch.fields["action"][:, None])[:, 0]
        loss = nn.functional.smooth_l1_loss(value, batch.rewards + batch.discounts * next_values)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        with torch.no_grad():
            for target, own in zip(self.target.parameters(), self.net.parameters(), strict=True):
                target.lerp_(own, self.settings.follow)

    def close(self) -> None:
        self.env.close()


def train(options: argparse.Namespace, run: Run) -> None:
    """Train in rounds until the average is good enough, or the steps are made."""
    settings = Settings()
    net = Net(*spaces_of(options.env, "discrete"), settings.width)
    make = functools.partial(Learner, options.env, settings)
    average, waited = None, 0.0
    with (
        contextlib.closing(pysampler.make_vec(options.env, min(options.episodes, 20))) as envs,
        pysampler.Averaging(make, options.workers, seed=options.seed) as averaging,
    ):
        run.start(net, lambda: net)
        for finished in averaging.rounds(options.between):
            steps = options.between * len(finished.reports)
            waited += float(finished.seconds["waiting"].mean())
            score = None
            if finished.number % options.every == 0 or run.steps + steps >= run.total:
                weights = averaging.weights
                net.load_state_dict({n: torch.from_numpy(w) for n, w in weights.items()})
                seed = options.seed + finished.number * options.episodes  # others each time
                score = average = pysampler.evaluate(envs, net, options.episodes, seed=seed).mean
            returns = [total for report in finished.reports for total in report["returns"]]
            run.advance(
                steps, returns, every=0.0, spent={"waiting": waited}, score=score, average=average
            )
            if run.over:
                return


def main() -> None:
    without = "device", "checkpoints"
    made = parser(__doc__, "CartPole-v1", without=without, steps=500_000, goal=475.0)
    text = "worker processes; 0: one learner in this process"
    made.add_argument("--workers", type=at_least(0), default=4, help=text)
    text = "steps of each worker between two averages"
    made.add_argument("--between", type=at_least(1), default=500, help=text)
    text = "rounds between two evaluations"
    made.add_argument("--every", type=at_least(1), default=5, help=text)
    options = parse(made)
    run(train, Run(options, plotted=("return", "average")))


if __name__ == "__main__":
    main()
