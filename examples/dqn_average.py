"""DQN by averaging, in one file: each worker learns from its own env, and all take the mean.

    python examples/dqn_average.py                      # CartPole-v1 until the average returns 475
    python examples/dqn_average.py --workers 1          # the same without anybody to average with
    python examples/dqn_average.py --plot returns.png

The bar shows the mean return of the last 100 episodes of all workers, which explore, what the
averaged network returned without exploring when it was last evaluated, and steps a second.
"""

from __future__ import annotations

import argparse
import copy
import functools
import json
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from torch import nn
from tqdm import tqdm

import pysampler
from pysampler.averaging import Averaging


@dataclass
class Settings:
    """What each worker learns with."""

    width: int = 128
    rate: float = 1e-3
    gamma: float = 0.99
    n_step: int = 5
    capacity: int = 50_000
    batch: int = 128
    every: int = 4  # env steps for an update
    follow: float = 0.02  # what the target network takes of the network, each update
    warmup: int = 1_000  # steps before the first
    exploring: int = 5_000  # steps until epsilon is at its end
    epsilon: float = 0.02


class Net(nn.Module):
    """What each action is worth; as a policy, the best."""

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
    """DQN with an env, a replay, an optimizer and a target network of its own."""

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
        self.replay = pysampler.Replay(
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
        """One of the env; the return of the episode if that has ended."""
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
            later = self.target.q(batch.next_fields["next_seen"]).amax(-1)
        value = self.net.q(batch.fields["seen"]).gather(1, batch.fields["action"][:, None])[:, 0]
        loss = nn.functional.smooth_l1_loss(value, batch.rewards + batch.discounts * later)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        with torch.no_grad():
            for mine, its in zip(self.target.parameters(), self.net.parameters(), strict=True):
                mine.lerp_(its, self.settings.follow)

    def close(self) -> None:
        self.env.close()


def plot(path: Path, curves: dict[str, list[tuple[int, float]]]) -> None:
    """Returns over steps of all workers."""
    from matplotlib import pyplot as plt  # noqa: PLC0415 - only where it is asked for

    figure, axes = plt.subplots(figsize=(7, 4), layout="constrained")
    for name, points in curves.items():
        axes.plot(*np.reshape(points, (-1, 2)).T, label=name)
    axes.set(xlabel="steps of all workers", ylabel="return of 100 episodes")
    axes.legend()
    figure.savefig(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--env", default="CartPole-v1", help="one with discrete actions")
    parser.add_argument("--workers", type=int, default=4, help="0: one learner, here")
    parser.add_argument("--between", type=int, default=500, help="steps between two averages")
    parser.add_argument("--steps", type=int, default=500_000, help="of all workers, at most")
    parser.add_argument("--every", type=int, default=5, help="rounds between two evaluations")
    parser.add_argument("--episodes", type=int, default=100, help="of an evaluation")
    parser.add_argument("--until", type=float, default=475.0, help="this return when evaluated")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--plot", type=Path, help="file to write")
    parser.add_argument("--quiet", action="store_true", help="no bar")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    options = parser.parse_args()
    torch.set_num_threads(1)
    settings = Settings()

    envs = pysampler.make_vec(options.env, min(options.episodes, 20))
    net = Net(envs.single_observation_space, envs.single_action_space, settings.width)
    make = functools.partial(Learner, options.env, settings)
    recent: deque[float] = deque(maxlen=100)
    learned: list[tuple[int, float]] = []
    evaluated: list[tuple[int, float]] = []
    steps, waited, mean, now = 0, 0.0, float("nan"), float("nan")
    began = time.perf_counter()
    bar = tqdm(total=options.steps, unit=" steps", unit_scale=True, disable=options.quiet)
    try:
        with Averaging(make, options.workers, seed=options.seed) as averaging:
            for one in averaging.rounds(options.between):
                steps += options.between * len(one.reports)
                waited += float(one.seconds["waiting"].mean())
                recent.extend(total for report in one.reports for total in report["returns"])
                mean = float(np.mean(recent)) if recent else mean
                learned.append((steps, mean))
                if one.number % options.every == 0 or steps >= options.steps:
                    weights = averaging.weights
                    net.load_state_dict({n: torch.from_numpy(w) for n, w in weights.items()})
                    now = pysampler.evaluate(net, envs, options.episodes, seed=options.seed).mean
                    evaluated.append((steps, now))
                bar.update(steps - bar.n)
                bar.set_postfix({"return": f"{mean:.1f}", "average": f"{now:.1f}"})
                if now >= options.until or steps >= options.steps:
                    break
    except KeyboardInterrupt:
        pass
    finally:
        bar.close()
        envs.close()
    seconds = time.perf_counter() - began
    result = {
        "env": options.env,
        "workers": options.workers,
        "return": mean,
        "average": now,
        "steps": steps,
        "seconds": seconds,
        "waiting": waited,
    }
    print(
        json.dumps(result)
        if options.json
        else f"{steps:,} steps in {seconds:.1f} s, return {mean:.1f} over the last {len(recent)} "
        f"episodes, {now:.1f} of the average; workers waited for {waited / seconds:.0%} of that"
    )
    if options.plot is not None:
        plot(options.plot, {"workers, exploring": learned, "their average": evaluated})


if __name__ == "__main__":
    main()
