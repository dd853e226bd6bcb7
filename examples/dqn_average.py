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
import json
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

try:
    import gymnasium as gym
    import numpy as np
    import torch
    from torch import nn
    from tqdm import tqdm

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


@dataclass
class Progress:
    """The progress of the training."""

    steps: int = 0
    recent: deque[float] = field(default_factory=lambda: deque(maxlen=100))  # episode returns
    average: float | None = None  # mean return of the averaged network when last evaluated
    waited: float = 0.0  # seconds, a worker on average
    learned: list[tuple[int, float]] = field(default_factory=list)  # mean returns over steps
    evaluated: list[tuple[int, float]] = field(default_factory=list)
    began: float = field(default_factory=time.perf_counter)

    @property
    def mean(self) -> float | None:
        """The mean return of the last 100 episodes; None if none has ended."""
        return float(np.mean(self.recent)) if self.recent else None

    def __str__(self) -> str:
        seconds = time.perf_counter() - self.began
        learned = (
            "no episode has ended"
            if self.mean is None
            else f"return {self.mean:.1f} over the last {len(self.recent)} episodes"
        )
        average = "not evaluated" if self.average is None else f"returned {self.average:.1f}"
        return (
            f"{self.steps:,} steps in {seconds:.1f} s, {learned}; average {average}; workers "
            f"waited for {self.waited / seconds:.0%} of that"
        )


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


def plot(path: Path, curves: dict[str, list[tuple[int, float]]]) -> None:
    """Plot returns over steps of all workers."""
    from matplotlib import pyplot as plt  # noqa: PLC0415 - only with --plot

    figure, axes = plt.subplots(figsize=(7, 4), layout="constrained")
    for name, points in curves.items():
        axes.plot(*np.reshape(points, (-1, 2)).T, label=name)
    axes.set(xlabel="steps of all workers", ylabel="return of 100 episodes")
    axes.legend()
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


def train(options: argparse.Namespace, settings: Settings, progress: Progress) -> None:
    """Train in rounds; ``progress`` is up to date after each."""
    net = Net(*spaces_of(options.env), settings.width)
    make = functools.partial(Learner, options.env, settings)
    with (
        contextlib.closing(pysampler.make_vec(options.env, min(options.episodes, 20))) as envs,
        tqdm(total=options.steps, unit=" steps", unit_scale=True, disable=options.quiet) as bar,
        pysampler.Averaging(make, options.workers, seed=options.seed) as averaging,
    ):
        for finished in averaging.rounds(options.between):
            progress.steps += options.between * len(finished.reports)
            progress.waited += float(finished.seconds["waiting"].mean())
            progress.recent.extend(
                total for report in finished.reports for total in report["returns"]
            )
            mean, over = progress.mean, progress.steps >= options.steps
            if mean is not None:
                progress.learned.append((progress.steps, mean))
            if finished.number % options.every == 0 or over:
                weights = averaging.weights
                net.load_state_dict({n: torch.from_numpy(w) for n, w in weights.items()})
                now = pysampler.evaluate(envs, net, options.episodes, seed=options.seed).mean
                progress.average = now
                progress.evaluated.append((progress.steps, now))
                over = over or now >= options.until
            shown = {"return": mean, "average": progress.average}
            bar.update(progress.steps - bar.n)
            bar.set_postfix({n: "-" if x is None else f"{x:.1f}" for n, x in shown.items()})
            if over:
                return


def at_least(minimum: int) -> Callable[[str], int]:
    """Return a converter for options that are integers of at least ``minimum``."""

    def number(text: str) -> int:
        if (value := int(text)) < minimum:
            raise argparse.ArgumentTypeError(f"{value}, expected at least {minimum}")
        return value

    return number


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--env", default="CartPole-v1", help="id of an env with discrete actions")
    parser.add_argument(
        "--workers",
        type=at_least(0),
        default=4,
        help="worker processes; 0: one learner in this process",
    )
    parser.add_argument(
        "--between", type=at_least(1), default=500, help="steps of each worker between two averages"
    )
    parser.add_argument(
        "--steps",
        type=at_least(1),
        default=500_000,
        help="stop after this many steps of all workers",
    )
    parser.add_argument(
        "--every", type=at_least(1), default=5, help="rounds between two evaluations"
    )
    parser.add_argument(
        "--episodes", type=at_least(1), default=100, help="episodes of an evaluation"
    )
    parser.add_argument(
        "--until", type=float, default=475.0, help="stop at this return when evaluated"
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--plot", type=Path, help="plot the returns to this file")
    parser.add_argument("--quiet", action="store_true", help="show no progress bar")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    options = parser.parse_args()
    torch.set_num_threads(1)
    progress = Progress()
    with contextlib.suppress(KeyboardInterrupt):  # report what was learned so far
        train(options, Settings(), progress)
    result = {
        "env": options.env,
        "workers": options.workers,
        "return": progress.mean,
        "average": progress.average,
        "steps": progress.steps,
        "seconds": time.perf_counter() - progress.began,
        "waiting": progress.waited,
    }
    print(json.dumps(result) if options.json else progress)
    if options.plot is not None:
        curves = {"workers, exploring": progress.learned, "their average": progress.evaluated}
        plot(options.plot, curves)


if __name__ == "__main__":
    main()
