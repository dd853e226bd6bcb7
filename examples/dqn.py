"""DQN in one file: actors of pysampler's sample all the time, torch learns all the time.

    python examples/dqn.py                          # CartPole-v1 until it returns 475
    python examples/dqn.py --actors 2 --envs-per-actor 4
    python examples/dqn.py --one-process            # the same with an env in the learner's loop
    python examples/dqn.py --save best.pt --plot returns.png
    python examples/dqn.py --checkpoints run        # goes on from the last one, if there is one
    python examples/dqn.py --play best.pt           # what was saved, without exploring

The bar shows the mean return of the last 100 episodes, steps and updates a second, how much there
is in the replay, and how much of its time the learner waits. Actors run freely, so that a seed
does not make two runs the same. Ctrl-C ends it with what was learned so far.
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
except KeyboardInterrupt:  # torch takes seconds
    sys.exit("stopped before anything was learned")


@dataclass
class Settings:
    """What CartPole-v1 is learned with."""

    width: int = 64
    rate: float = 5e-4
    gamma: float = 0.99
    n_step: int = 8
    capacity: int = 50_000
    batch: int = 128
    warmup: int = 1_000  # steps before the first update
    updates: int = 16  # at a time, between two looks at what was sampled
    every: int = 4  # steps for each of them, at least: or the learner waits
    most: int = 16  # and at most: or the actors wait
    target: int = 200  # updates until the target network is what the network is
    exploring: int = 20_000  # steps until epsilon is at its least
    epsilons: tuple[float, float] = (0.01, 0.05)  # of the first env and the last, at the end

    def epsilon(self, steps: int, envs: int) -> Any:
        """How often each env's actor does anything: 1 in the beginning, later its own share."""
        return np.maximum(np.geomspace(*self.epsilons, envs), 1 - steps / self.exploring)


@dataclass
class Progress:
    """What has been learned so far."""

    steps: int = 0
    recent: deque[float] = field(default_factory=lambda: deque(maxlen=100))  # returns of episodes
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
    """What each action is worth."""
    return nn.Sequential(
        *(nn.Linear(inputs, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU()),
        nn.Linear(width, outputs),
    )


class EpsilonGreedy:
    """Such a network in NumPy, which takes a quarter of torch's time for a few observations."""

    def __init__(self, net: nn.Module) -> None:
        self.load_state_dict({name: one.numpy() for name, one in net.state_dict().items()})

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
    """Double DQN: a network, its target, and what there is to learn from."""

    def __init__(self, net: nn.Module, like: dict[str, Any], s: Settings, seed: int) -> None:
        self.net, self.target = net, copy.deepcopy(net)
        self.optimizer = torch.optim.Adam(net.parameters(), s.rate, fused=True)
        self.replay = pysampler.ReplayBuffer(
            s.capacity, like, n_step=s.n_step, gamma=s.gamma, seed=seed
        )
        self.settings = s
        self.steps = self.updates = 0

    def save(self, checkpoints: pysampler.Checkpoints, **more: Any) -> None:
        """All that learning goes on from, and more."""
        checkpoints.save(
            self.steps,
            **{name: getattr(self, name) for name in ("net", "target", "optimizer", "replay")},
            updates=self.updates,
            random=torch.get_rng_state(),
            more=more,
        )

    def restore(self, checkpoints: pysampler.Checkpoints) -> dict[str, Any]:
        """Go on from the newest, if there is one: what more there was in it."""
        parts = {"net": self.net, "target": self.target, "optimizer": self.optimizer}
        found = checkpoints.restore(**parts)
        if found is None:
            return {}
        self.replay, self.steps, self.updates = found["replay"], found["step"], found["updates"]
        torch.set_rng_state(found["random"])
        more: dict[str, Any] = found["more"]
        return more

    def learn(self) -> None:
        """From some batches."""
        for _ in range(self.settings.updates):
            self.update()
            if self.updates % self.settings.target == 0:
                self.target.load_state_dict(self.net.state_dict())

    def update(self) -> None:
        batch = self.replay.sample(self.settings.batch).torch()
        after = batch.next_fields["next_observations"]
        with torch.no_grad():
            best = self.net(after).argmax(-1, keepdim=True)
            later = self.target(after).gather(1, best)[:, 0]
            goal = batch.rewards + batch.discounts * later
        values = self.net(batch.fields["observations"])
        value = values.gather(1, batch.fields["actions"][:, None])[:, 0]
        loss = nn.functional.smooth_l1_loss(value, goal)
        self.optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.net.parameters(), 10.0)
        self.optimizer.step()
        self.updates += 1


class Actors:
    """Workers that act by themselves. They and the learner wait only to keep in step."""

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
        self.keeping = 0.0

    def sample(self, learner: Learner) -> tuple[int, Any]:
        """What was done meanwhile: how many steps, and the returns of episodes that ended."""
        s = self.settings
        records = self.actors.take(s.updates * s.most, min_records=s.updates * s.every)
        began = time.perf_counter()
        learner.replay.extend(records)
        self.keeping += time.perf_counter() - began
        return len(records), records.ended

    def publish(self, learner: Learner) -> None:
        self.actors.settings["epsilon"][:] = self.settings.epsilon(learner.steps, self.count)
        self.actors.publish(learner.net)

    @property
    def seconds(self) -> dict[str, float]:
        """What the learner spent on the actors."""
        stats = self.actors.stats()
        taking = stats.taking + self.keeping
        return {"waiting": stats.waiting, "taking": taking, "publishing": stats.publishing}

    def close(self) -> None:
        self.actors.close()


class OneEnv:
    """The same in one process: an env in the learner's loop, which waits for each step."""

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
        keep(learner.replay, steps)
        self.seconds["waiting"] += stepped - began
        self.seconds["taking"] += time.perf_counter() - stepped
        return len(steps), returns

    def publish(self, learner: Learner) -> None:
        """There is nothing to stop."""

    def close(self) -> None:
        self.env.close()


def keep(replay: pysampler.ReplayBuffer, steps: list[Any]) -> None:
    """Steps that were made one by one."""
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
    """For ever: how many steps were sampled, and the returns of episodes that ended in them."""
    while True:
        steps, returns = source.sample(learner)
        learner.steps += steps
        if learner.steps >= learner.settings.warmup:
            learner.learn()
        source.publish(learner)
        yield steps, returns


def save(net: nn.Module, path: Path) -> None:
    """In the place of what is there, as a whole."""
    torch.save(net.state_dict(), path.with_suffix(".new"))
    path.with_suffix(".new").replace(path)


def plot(path: Path, points: list[tuple[int, float, float]]) -> None:
    """Returns over steps, and over seconds."""
    from matplotlib import pyplot as plt  # noqa: PLC0415 - only where it is asked for

    steps, seconds, returns = np.reshape(points, (-1, 3)).T
    figure, axes = plt.subplots(1, 2, figsize=(9, 4), sharey=True, layout="constrained")
    for one, x, label in zip(axes, (steps, seconds), ("env steps", "seconds"), strict=True):
        one.plot(x, returns)
        one.set(xlabel=label)
    axes[0].set(ylabel="return of 100 episodes")
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


def learn(
    net: nn.Module, options: argparse.Namespace, settings: Settings, progress: Progress
) -> None:
    """Learn from what is sampled, and note the progress at once."""
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
    parser.add_argument(
        "--actors", type=whole(0), default=4, help="0: they act when it is their turn"
    )
    parser.add_argument("--envs-per-actor", type=whole(1), default=8)
    parser.add_argument("--one-process", action="store_true", help="one env, no actors")
    parser.add_argument("--steps", type=whole(1), default=1_000_000, help="of all envs, at most")
    parser.add_argument("--until", type=float, default=475.0, help="this return of 100 episodes")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--save", type=Path, help="where the best weights go, as there are better")
    parser.add_argument("--play", type=Path, help="evaluate weights that were saved, no more")
    parser.add_argument("--checkpoints", type=Path, help="directory to save them in, and go on")
    parser.add_argument("--between", type=float, default=10.0, help="seconds from one to the next")
    parser.add_argument("--plot", type=Path, help="file to write")
    parser.add_argument("--quiet", action="store_true", help="no bar")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    options = parser.parse_args()
    if options.checkpoints:  # what goes on sees other episodes
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
    with contextlib.suppress(KeyboardInterrupt):  # what was learned so far counts
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
