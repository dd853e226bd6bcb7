"""DQN in one file: pysampler's actors sample all the time, torch learns all the time.

    python examples/dqn.py                          # CartPole-v1 until it returns 475
    python examples/dqn.py --actors 2 --envs-per-actor 4
    python examples/dqn.py --one-process            # one env, stepped by the learner itself
    python examples/dqn.py --save best.pt --plot returns.png
    python examples/dqn.py --checkpoints run        # resumes from the last checkpoint, if any
    python examples/dqn.py --play best.pt           # evaluates saved weights without exploring

The progress bar shows the mean return of the last 100 episodes, steps and updates per second, the
size of the replay buffer, and which share of its time the learner waits. Actors run freely, so two
runs with the same seed differ. Ctrl-C stops the training and prints the result so far.
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
from collections.abc import Callable, Iterator
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
    """The hyperparameters, chosen for CartPole-v1."""

    width: int = 64
    rate: float = 5e-4
    gamma: float = 0.99
    n_step: int = 8
    capacity: int = 50_000
    batch: int = 128
    warmup: int = 1_000  # steps before the first update
    updates: int = 16  # in a row, before the next records are taken
    every: int = 4  # steps per update, at least: with fewer the learner waits
    most: int = 16  # steps per update, at most: with more the actors wait
    target: int = 200  # updates between two copies of the network to the target network
    exploring: int = 20_000  # steps until epsilon is at its minimum
    epsilons: tuple[float, float] = (0.01, 0.05)  # of the first env and the last, at the end

    def epsilon(self, steps: int, envs: int) -> Any:
        """Return epsilon of each env: 1 at first, at last between ``epsilons``."""
        return np.maximum(np.geomspace(*self.epsilons, envs), 1 - steps / self.exploring)


@dataclass
class Progress:
    """The progress of the training."""

    steps: int = 0
    recent: deque[float] = field(default_factory=lambda: deque(maxlen=100))  # episode returns
    updates: int = 0
    resumed: tuple[int, int] = (0, 0)  # steps and updates of earlier runs
    points: list[tuple[int, float, float]] = field(default_factory=list)  # steps, seconds, return
    spent: dict[str, float] = field(default_factory=dict)
    began: float = field(default_factory=time.perf_counter)

    @property
    def mean(self) -> float | None:
        """The mean return of the last 100 episodes; None if none has ended."""
        return float(np.mean(self.recent)) if self.recent else None

    def __str__(self) -> str:
        seconds = time.perf_counter() - self.began
        steps, updates = self.resumed
        after = f" after {steps:,} steps" * (steps > 0)
        learned = (
            "no episode has ended"
            if self.mean is None
            else f"return {self.mean:.1f} over the last {len(self.recent)} episodes"
        )
        return (
            f"{self.steps - steps:,} steps and {self.updates - updates:,} updates in {seconds:.1f} "
            f"s{after}, {learned}; the learner waited for "
            f"{self.spent.get('waiting', 0.0) / seconds:.0%} of that"
        )


def network(inputs: int, outputs: int, width: int) -> nn.Sequential:
    """Return a network for the values of all actions."""
    return nn.Sequential(
        *(nn.Linear(inputs, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU()),
        nn.Linear(width, outputs),
    )


class EpsilonGreedy:
    """An epsilon-greedy policy in NumPy: four times as fast as torch for few observations."""

    def __init__(self, net: nn.Module) -> None:
        self.load_state_dict({name: tensor.numpy() for name, tensor in net.state_dict().items()})

    def state_dict(self) -> dict[str, Any]:
        return self.weights

    def load_state_dict(self, weights: dict[str, Any]) -> None:
        self.weights, arrays = weights, list(weights.values())
        self.layers = list(zip(arrays[::2], arrays[1::2], strict=True))

    def __call__(self, observations: Any, epsilon: Any) -> Any:
        *hidden, (last, bias) = self.layers
        values = observations
        for weight, shift in hidden:
            values = np.maximum(values @ weight.T + shift, 0)
        best = (values @ last.T + bias).argmax(-1)
        explores = np.random.random(len(best)) < epsilon
        return np.where(explores, np.random.randint(len(bias), size=len(best)), best)


class Learner:
    """Double DQN: a network, its target network, an optimizer and a replay buffer."""

    def __init__(self, net: nn.Module, like: dict[str, Any], s: Settings, seed: int) -> None:
        self.net, self.target = net, copy.deepcopy(net)
        self.optimizer = torch.optim.Adam(net.parameters(), s.rate, fused=True)
        self.replay = pysampler.ReplayBuffer(
            s.capacity, like, n_step=s.n_step, gamma=s.gamma, seed=seed
        )
        self.settings = s
        self.steps = self.updates = 0

    def save(self, checkpoints: pysampler.Checkpoints, **more: Any) -> None:
        """Save all that is needed to resume, and ``more``."""
        checkpoints.save(
            self.steps,
            **{name: getattr(self, name) for name in ("net", "target", "optimizer", "replay")},
            updates=self.updates,
            random=torch.get_rng_state(),
            more=more,
        )

    def restore(self, checkpoints: pysampler.Checkpoints) -> dict[str, Any]:
        """Resume from the newest checkpoint, if there is one; return its ``more``."""
        parts = {"net": self.net, "target": self.target, "optimizer": self.optimizer}
        found = checkpoints.restore(**parts)
        if found is None:
            return {}
        self.replay, self.steps, self.updates = found["replay"], found["step"], found["updates"]
        torch.set_rng_state(found["random"])
        more: dict[str, Any] = found["more"]
        return more

    def learn(self) -> None:
        """Do some updates, and copy the network to the target network when that is due."""
        for _ in range(self.settings.updates):
            self.update()
            if self.updates % self.settings.target == 0:
                self.target.load_state_dict(self.net.state_dict())

    def update(self) -> None:
        batch = self.replay.sample(self.settings.batch).torch()
        after = batch.next_fields["next_observations"]
        with torch.no_grad():
            best = self.net(after).argmax(-1, keepdim=True)
            next_values = self.target(after).gather(1, best)[:, 0]
            goal = batch.rewards + batch.discounts * next_values
        values = self.net(batch.fields["observations"])
        value = values.gather(1, batch.fields["actions"][:, None])[:, 0]
        loss = nn.functional.smooth_l1_loss(value, goal)
        self.optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.net.parameters(), 10.0)
        self.optimizer.step()
        self.updates += 1


class Actors:
    """Actors in workers. They wait only if they get too far ahead, the learner if behind."""

    def __init__(self, env: str, net: nn.Module, s: Settings, options: Any) -> None:
        self.count = max(1, options.actors) * options.envs_per_actor
        self.settings = s
        self.actors = pysampler.Actors(
            env,
            EpsilonGreedy(net),
            num_envs=self.count,
            vector_kwargs={"num_workers": options.actors},
            high=2 * s.most * s.updates,
            settings={"epsilon": s.epsilon(0, self.count)},
            seed=options.seed,
        )
        self.like = self.actors.like
        self.extending = 0.0  # seconds spent on adding records to the replay buffer

    def sample(self, learner: Learner) -> tuple[int, Any]:
        """Add new steps to the replay buffer; return how many, and returns of ended episodes."""
        s = self.settings
        records = self.actors.take(s.updates * s.most, min_records=s.updates * s.every)
        began = time.perf_counter()
        learner.replay.extend(records)
        self.extending += time.perf_counter() - began
        return len(records), records.ended

    def publish(self, learner: Learner) -> None:
        self.actors.settings["epsilon"][:] = self.settings.epsilon(learner.steps, self.count)
        self.actors.publish(learner.net)

    @property
    def seconds(self) -> dict[str, float]:
        """How much time the learner spent on the actors, by activity."""
        stats = self.actors.stats()
        taking = stats.taking + self.extending
        return {"waiting": stats.waiting, "taking": taking, "publishing": stats.publishing}

    def close(self) -> None:
        self.actors.close()


class OneEnv:
    """The same without actors: the learner steps an env itself."""

    def __init__(self, env: str, net: nn.Module, s: Settings, options: Any) -> None:
        self.settings = s
        self.env = gym.make(env)
        self.seen, _ = self.env.reset(seed=options.seed)
        self.policy = EpsilonGreedy(net)  # with the learner's own weights
        action = np.zeros((), self.env.action_space.dtype)
        self.like = {"observations": self.seen, "next_observations": self.seen, "actions": action}
        self.total, self.begins = 0.0, True
        self.seconds = {"waiting": 0.0, "taking": 0.0, "publishing": 0.0}

    def sample(self, learner: Learner) -> tuple[int, Any]:
        began = time.perf_counter()
        s = self.settings
        epsilon = s.epsilon(learner.steps, 3)[1]
        steps, returns = [], []
        for _ in range(s.updates * s.every):
            action = self.policy(self.seen[None], epsilon)[0]
            after, reward, terminated, truncated, _ = self.env.step(action)
            ends = terminated, truncated
            steps.append((self.seen, after, action, float(reward), *ends, 0, self.begins))
            self.seen, self.begins = after, terminated or truncated
            self.total += float(reward)
            if self.begins:
                returns.append(self.total)
                self.total = 0.0
                self.seen, _ = self.env.reset()
        stepped = time.perf_counter()
        add_steps(learner.replay, steps)
        self.seconds["waiting"] += stepped - began
        self.seconds["taking"] += time.perf_counter() - stepped
        return len(steps), returns

    def publish(self, learner: Learner) -> None:
        """Do nothing: the policy has the weights of the network itself."""

    def close(self) -> None:
        self.env.close()


def add_steps(replay: pysampler.ReplayBuffer, steps: list[Any]) -> None:
    """Add steps of one env to the replay buffer."""
    seen, after, actions, rewards, terminated, truncated, env, begins = map(
        np.array, zip(*steps, strict=True)
    )
    replay.add(
        {"observations": seen, "next_observations": after, "actions": actions},
        rewards=rewards,
        terminated=terminated,
        truncated=truncated,
        env=env,
        begins=begins,
    )


def train(source: Any, learner: Learner) -> Iterator[tuple[int, Any]]:
    """Train forever; yield how many steps were sampled, and returns of ended episodes."""
    while True:
        steps, returns = source.sample(learner)
        learner.steps += steps
        if learner.steps >= learner.settings.warmup:
            learner.learn()
        source.publish(learner)
        yield steps, returns


def save(net: nn.Module, path: Path) -> None:
    """Save the weights, replacing the file atomically."""
    torch.save(net.state_dict(), path.with_suffix(".new"))
    path.with_suffix(".new").replace(path)


def plot(path: Path, points: list[tuple[int, float, float]]) -> None:
    """Plot returns over steps, and over seconds."""
    from matplotlib import pyplot as plt  # noqa: PLC0415 - only with --plot

    steps, seconds, returns = np.reshape(points, (-1, 3)).T
    figure, axes = plt.subplots(1, 2, figsize=(9, 4), sharey=True, layout="constrained")
    for axis, x, label in zip(axes, (steps, seconds), ("env steps", "seconds"), strict=True):
        axis.plot(x, returns)
        axis.set(xlabel=label)
    axes[0].set(ylabel="return of 100 episodes")
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


def learn(
    net: nn.Module, options: argparse.Namespace, settings: Settings, progress: Progress
) -> None:
    """Sample and learn; ``progress`` is up to date after each step."""
    checkpoints = pysampler.Checkpoints(options.checkpoints) if options.checkpoints else None
    source = (OneEnv if options.one_process else Actors)(options.env, net, settings, options)
    with contextlib.closing(source):
        learner = Learner(net, source.like, settings, options.seed)
        before = learner.restore(checkpoints) if checkpoints else {}
        progress.steps, progress.updates = progress.resumed = learner.steps, learner.updates
        progress.recent.extend(before.get("recent", ()))
        points = progress.points = before.get("points", [])
        earlier = points[-1][1] if points else 0.0  # seconds
        best, shown, saved = before.get("best", -np.inf), 0.0, time.perf_counter()
        with tqdm(
            total=options.steps,
            initial=learner.steps,
            unit=" steps",
            unit_scale=True,
            disable=options.quiet,
        ) as bar:
            for steps, returns in train(source, learner):
                progress.recent.extend(returns)
                progress.steps, progress.updates = learner.steps, learner.updates
                bar.update(steps)
                seconds, mean = time.perf_counter() - progress.began, progress.mean
                full = len(progress.recent) == 100
                over = (full and mean >= options.until) or learner.steps >= options.steps
                if not over and seconds < shown + 0.25:
                    continue
                shown, progress.spent = seconds, dict(source.seconds)
                if mean is not None:
                    points.append((learner.steps, earlier + seconds, mean))
                if options.save and full and mean > best:
                    best = mean
                    save(net, options.save)
                if checkpoints and (over or time.perf_counter() > saved + options.between):
                    recent = list(progress.recent)
                    learner.save(checkpoints, recent=recent, points=points, best=best)
                    saved = time.perf_counter()
                bar.set_postfix(
                    {
                        "return": "-" if mean is None else f"{mean:.1f}",
                        "updates/s": f"{(learner.updates - progress.resumed[1]) / seconds:,.0f}",
                        "replay": f"{len(learner.replay):,}",
                        "waiting": f"{progress.spent['waiting'] / seconds:.0%}",
                    }
                )
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
        "--actors", type=at_least(0), default=4, help="worker processes; 0: act in this process"
    )
    parser.add_argument("--envs-per-actor", type=at_least(1), default=8)
    parser.add_argument("--one-process", action="store_true", help="use one env and no actors")
    parser.add_argument(
        "--steps",
        type=at_least(1),
        default=1_000_000,
        help="stop after this many steps of all envs",
    )
    parser.add_argument(
        "--until", type=float, default=475.0, help="stop at this mean return of 100 episodes"
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--save", type=Path, help="save the best weights to this file")
    parser.add_argument("--play", type=Path, help="only evaluate saved weights")
    parser.add_argument(
        "--checkpoints", type=Path, help="save checkpoints here, and resume from them"
    )
    parser.add_argument(
        "--between", type=float, default=10.0, help="seconds between two checkpoints"
    )
    parser.add_argument("--plot", type=Path, help="plot the returns to this file")
    parser.add_argument("--quiet", action="store_true", help="show no progress bar")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    options = parser.parse_args()
    if options.checkpoints:  # a resumed run sees other episodes
        options.seed += pysampler.Checkpoints(options.checkpoints).latest or 0
    torch.set_num_threads(1)
    torch.manual_seed(options.seed)
    np.random.seed(options.seed)
    settings, progress = Settings(), Progress()
    observations, actions = spaces_of(options.env)
    net = network(observations.shape[0], int(actions.n), settings.width)
    if options.play:
        net.load_state_dict(torch.load(options.play, weights_only=True))
        greedy = functools.partial(EpsilonGreedy(net), epsilon=0)
        played = pysampler.evaluate(options.env, greedy, 20, seed=options.seed)
        print(json.dumps({"return": played.mean}) if options.json else played)
        return
    with contextlib.suppress(KeyboardInterrupt):  # report what was learned so far
        learn(net, options, settings, progress)
    result = {
        "env": options.env,
        "actors": 0 if options.one_process else options.actors,
        "return": progress.mean,
        "steps": progress.steps,
        "resumed": progress.resumed[0],
        "updates": progress.updates,
        "seconds": time.perf_counter() - progress.began,
        "seconds_in": progress.spent,
    }
    print(json.dumps(result) if options.json else progress)
    if options.plot:
        plot(options.plot, progress.points)


if __name__ == "__main__":
    main()
