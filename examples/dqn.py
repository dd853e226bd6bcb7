"""DQN in one file: pysampler's actors sample all the time, torch learns all the time.

    python examples/dqn.py                          # CartPole-v1 until it returns 475
    python examples/dqn.py --actors 2 --envs-per-actor 4
    python examples/dqn.py --prioritised            # draws what it was most wrong about more often
    python examples/dqn.py --dueling --categorical --noisy  # or some of them: parts of Rainbow
    python examples/dqn.py --device cuda            # learns on a GPU; acting stays on the CPU
    python examples/dqn.py --one-process            # one env, stepped by the learner itself
    python examples/dqn.py --save best.pt --plot returns.png
    python examples/dqn.py --checkpoints run        # resumes from the last checkpoint, if any
    python examples/dqn.py --play best.pt           # evaluates saved weights without exploring
    python examples/dqn.py --play best.pt --show human      # or video

The progress bar shows the mean return of the last 100 episodes, steps and updates per second, the
size of the replay buffer, and which share of its time the learner waits. Actors run freely, so two
runs with the same seed differ. Ctrl-C stops the training and prints the result so far.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import functools
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

try:
    import gymnasium as gym
    import numpy as np
    import torch
    from common import (
        Run,
        add_play,
        at_least,
        learner_seconds,
        load,
        parse,
        parser,
        play,
        run,
        spaces_of,
    )
    from torch import nn

    import pysampler
except KeyboardInterrupt:  # importing torch takes seconds
    sys.exit("stopped before anything was learned")


RAINBOW = {
    "prioritised": "draw transitions by their errors",
    "dueling": "learn values of states, and advantages of actions",
    "categorical": "learn distributions of returns",
    "noisy": "explore by layers whose weights are noisy, instead of by epsilon",
}


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
    publish: int = 16  # updates between two versions of the actors' weights: a multiple of these
    exploring: int = 20_000  # steps until epsilon is at its minimum
    epsilons: tuple[float, float] = (0.01, 0.05)  # of the first env and the last, at the end
    alpha: float = 0.0  # of prioritised replay; 0: all transitions are drawn alike
    betas: tuple[float, float] = (0.4, 1.0)  # at first, and from ``unbiased`` steps on
    unbiased: int = 100_000
    # How the network is built (arXiv 1511.06581, 1707.06887, 1706.10295).
    dueling: bool = False  # values of states, and advantages of actions
    categorical: bool = False  # distributions of returns
    noisy: bool = False  # layers that explore by themselves, instead of epsilon
    atoms: int = 51  # returns of a distribution
    returns: tuple[float, float] = (0.0, 100.0)  # the least and the most; 1 / (1 - gamma)

    def epsilon(self, steps: int, envs: int) -> Any:
        """Return epsilon of each env: 1 at first, at last between ``epsilons``; 0 if noisy."""
        if self.noisy:
            return np.zeros(envs)
        return np.maximum(np.geomspace(*self.epsilons, envs), 1 - steps / self.exploring)

    def beta(self, steps: int) -> float:
        """Return how far importance weights make up for priorities."""
        return float(np.interp(steps, (0, self.unbiased), self.betas))


def network(inputs: int, outputs: int, width: int) -> nn.Sequential:
    """Return a network for the values of all actions."""
    return nn.Sequential(
        *(nn.Linear(inputs, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU()),
        nn.Linear(width, outputs),
    )


class NoisyLinear(nn.Linear):
    """A layer whose weights are drawn for each call, with deviations that it learns."""

    def __init__(self, inputs: int, outputs: int, deviation: float = 0.5) -> None:
        super().__init__(inputs, outputs)
        self.weight_deviation = nn.Parameter(torch.full_like(self.weight, deviation / inputs**0.5))
        self.bias_deviation = nn.Parameter(torch.full_like(self.bias, deviation / inputs**0.5))

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        if not self.training:
            return super().forward(rows)
        noise = torch.randn(self.in_features + self.out_features, device=rows.device)
        of_inputs, of_outputs = (noise.sign() * noise.abs().sqrt()).split(
            (self.in_features, self.out_features)
        )
        weight = self.weight + self.weight_deviation * of_outputs.outer(of_inputs)
        return nn.functional.linear(rows, weight, self.bias + self.bias_deviation * of_outputs)


class RainbowNet(nn.Module):
    """Values of all actions by a network that is dueling, categorical or noisy, or some of it.

    Its first layers are ``before``, if given, which return as many numbers as ``inputs``.
    """

    def __init__(
        self, inputs: int, outputs: int, s: Settings, before: Iterable[nn.Module] = ()
    ) -> None:
        super().__init__()
        linear = NoisyLinear if s.noisy else nn.Linear
        self.atoms = s.atoms if s.categorical else 1
        if not before:
            before, inputs = (nn.Linear(inputs, s.width), nn.ReLU()), s.width
        self.body = nn.Sequential(*before, linear(inputs, s.width), nn.ReLU())
        self.advantages = linear(s.width, outputs * self.atoms)
        self.value = linear(s.width, self.atoms) if s.dueling else None
        self.register_buffer("support", torch.linspace(*s.returns, self.atoms))

    def features(self, observations: torch.Tensor) -> torch.Tensor:
        """Return what values are computed from."""
        return self.body(observations)

    def heads(self, observations: torch.Tensor) -> torch.Tensor:
        """Return values of actions, or logits of their returns: [batch, actions, atoms]."""
        features = self.features(observations)
        found = self.advantages(features).unflatten(-1, (-1, self.atoms))
        if self.value is None:
            return found
        return self.value(features)[:, None] + found - found.mean(1, keepdim=True)

    def forward(self, observations: torch.Tensor) -> torch.Tensor:
        found = self.heads(observations)
        return found[..., 0] if self.atoms == 1 else found.softmax(-1) @ self.support

    def projected(self, probs: torch.Tensor, goals: torch.Tensor) -> torch.Tensor:
        """Return the distribution over ``support`` of returns ``goals``, [batch, atoms] as both."""
        goals = goals.clamp(self.support[0], self.support[-1])[..., None]
        apart = (goals - self.support).abs() / (self.support[1] - self.support[0])
        return (probs[:, None] @ (1 - apart).clamp(min=0))[:, 0]


class EpsilonGreedy:
    """An epsilon-greedy policy in NumPy: four times as fast as torch for few observations."""

    def __init__(self, net: nn.Module) -> None:
        self.load_state_dict({n: tensor.cpu().numpy() for n, tensor in net.state_dict().items()})

    def state_dict(self) -> dict[str, Any]:
        return self.weights

    def load_state_dict(self, weights: dict[str, Any]) -> None:
        self.weights, arrays = weights, list(weights.values())
        self.layers = list(zip(arrays[::2], arrays[1::2], strict=True))

    def values(self, observations: Any) -> Any:
        *hidden, (last, bias) = self.layers
        for weight, shift in hidden:
            observations = np.maximum(observations @ weight.T + shift, 0)
        return observations @ last.T + bias

    def __call__(self, observations: Any, epsilon: Any) -> Any:
        count, actions = (values := self.values(observations)).shape
        explores = np.random.random(count) < epsilon
        return np.where(explores, np.random.randint(actions, size=count), values.argmax(-1))


class TorchEpsilonGreedy(EpsilonGreedy):
    """The same with a network that NumPy does not compute."""

    def __init__(self, net: nn.Module) -> None:
        is_here = next(net.parameters()).device.type == "cpu"
        self.net = net if is_here else copy.deepcopy(net).cpu()

    def state_dict(self) -> dict[str, Any]:
        return self.net.state_dict()

    def load_state_dict(self, weights: dict[str, Any]) -> None:
        self.net.load_state_dict({name: torch.as_tensor(one) for name, one in weights.items()})

    def values(self, observations: Any) -> Any:
        with torch.no_grad():
            return self.net(torch.from_numpy(observations).float()).numpy()


class Learner:
    """Double DQN: a network, its target network, an optimizer and a replay buffer.

    Attributes:
        keeps_replay: Whether checkpoints have the replay buffer.

    Args:
        net: The network.
        like: The fields of a step, and of the replay buffer.
        s: The hyperparameters.
        seed: Seed of the draws from the replay buffer.
        **options: Further options of the replay buffer.
    """

    keeps_replay = True

    def __init__(
        self, net: nn.Module, like: dict[str, Any], s: Settings, seed: int, **options: Any
    ) -> None:
        self.net, self.target = net, copy.deepcopy(net)
        self.device = next(net.parameters()).device
        self.optimizer = torch.optim.Adam(net.parameters(), s.rate, fused=True)
        self.replay = pysampler.ReplayBuffer(
            *(s.capacity, like),
            **{"n_step": s.n_step, "gamma": s.gamma, "alpha": s.alpha, "seed": seed, **options},
        )
        self.settings = s
        self.steps = self.updates = 0

    def policy(self) -> Any:
        """Return what actors act with."""
        is_plain = isinstance(self.net, nn.Sequential)
        return (EpsilonGreedy if is_plain else TorchEpsilonGreedy)(self.net)

    def greedy(self) -> Any:
        """Return a policy that does not explore."""
        self.net.eval()  # without noise
        return functools.partial(self.policy(), epsilon=0.0)

    def published(self) -> nn.Module:
        """Return the module whose weights the actors use."""
        return self.net

    def add(self, records: pysampler.Records) -> None:
        """Add what actors recorded to the replay buffer."""
        self.replay.extend(records)

    @property
    def parts(self) -> dict[str, Any]:
        """What has a state of its own."""
        return {"net": self.net, "target": self.target, "optimizer": self.optimizer}

    def save(self, run: Run) -> None:
        """Save a checkpoint with all that is needed to resume, if one is due."""
        kept = {"replay": self.replay} if self.keeps_replay else {}
        run.checkpoint(**self.parts, **kept, updates=self.updates)

    def restore(self, run: Run) -> None:
        """Resume from the newest checkpoint, if there is one."""
        if found := run.restore(**self.parts):
            self.replay = found.get("replay", self.replay)
            self.updates, self.steps = found["updates"], run.steps

    def learn(self) -> None:
        """Do some updates, and copy the network to the target network when that is due."""
        for _ in range(self.settings.updates):
            self.update()
            if self.updates % self.settings.target == 0:
                self.target.load_state_dict(self.net.state_dict())

    def update(self) -> None:
        drawn = self.replay.sample(self.settings.batch, beta=self.settings.beta(self.steps))
        batch = drawn.torch(None if self.device.type == "cpu" else self.device)
        losses, errors = (self.of_returns if self.settings.categorical else self.of_values)(batch)
        self.descend((batch.weights * losses).mean())
        if self.replay.alpha > 0:
            self.replay.update(batch.indices, errors.detach().cpu().numpy() + 1e-3)

    def of_values(self, batch: pysampler.Batch) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the loss of each transition, and how wrong its value is."""
        goal = self.goals(batch)
        values = self.net(batch.fields["observations"])
        value = values.gather(1, batch.fields["actions"][:, None])[:, 0]
        losses = nn.functional.smooth_l1_loss(value, goal, reduction="none")
        return losses, (value - goal).abs()

    @torch.no_grad()
    def goals(self, batch: pysampler.Batch) -> torch.Tensor:
        """Return what the values should be. After the end of an episode ``discounts`` are 0."""
        after = batch.next_fields["next_observations"]
        best = self.net(after).argmax(-1, keepdim=True)
        return batch.rewards + batch.discounts * self.target(after).gather(1, best)[:, 0]

    def of_returns(self, batch: pysampler.Batch) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the same of distributions of returns: both are cross-entropies."""
        after, rows = batch.next_fields["next_observations"], range(len(batch.rewards))
        with torch.no_grad():
            best = self.net(after).argmax(-1)
            probs = self.target.heads(after)[rows, best].softmax(-1)
            goals = batch.rewards[:, None] + batch.discounts[:, None] * self.net.support
            goal = self.net.projected(probs, goals)
        found = self.net.heads(batch.fields["observations"])[rows, batch.fields["actions"]]
        losses = -(goal * found.log_softmax(-1)).sum(-1)
        return losses, losses

    def descend(self, loss: torch.Tensor) -> None:
        self.optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.net.parameters(), 10.0)
        self.optimizer.step()
        self.updates += 1


class Actors:
    """Actors in workers. They wait only if they get too far ahead, the learner if behind."""

    def __init__(self, learner: Learner, options: Any, env: Any = None) -> None:
        self.count = max(1, options.actors) * options.envs_per_actor
        self.settings = s = learner.settings
        self.actors = pysampler.Actors(
            options.env if env is None else env,
            learner.policy(),
            num_envs=self.count,
            num_workers=options.actors,
            high=2 * s.most * s.updates,
            settings={"epsilon": s.epsilon(learner.steps, self.count)},
            seed=options.seed,
        )
        self.extending = 0.0  # seconds spent on adding records to the replay buffer

    def sample(self, learner: Learner) -> tuple[int, Any]:
        """Add new steps to the replay buffer; return how many, and returns of ended episodes."""
        s = self.settings
        records = self.actors.take(s.updates * s.most, min_records=s.updates * s.every)
        began = time.perf_counter()
        learner.add(records)
        self.extending += time.perf_counter() - began
        return len(records), records.ended

    def publish(self, learner: Learner) -> None:
        self.actors.settings["epsilon"][:] = self.settings.epsilon(learner.steps, self.count)
        if learner.updates % self.settings.publish == 0:
            self.actors.publish(learner.published())

    @property
    def seconds(self) -> dict[str, float]:
        return learner_seconds(self.actors.stats(), self.extending)

    def close(self) -> None:
        self.actors.close()


class OneEnv:
    """The same without actors: the learner steps an env itself."""

    def __init__(self, learner: Learner, options: Any) -> None:
        self.settings = learner.settings
        self.env = gym.make(options.env)
        self.seen, _ = self.env.reset(seed=options.seed)
        self.policy = learner.policy()  # with the learner's own weights
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
        """Copy the weights from a GPU. On the CPU the policy has those of the network itself."""
        if learner.device.type != "cpu":
            self.policy = learner.policy()

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
    s = learner.settings
    while True:
        steps, returns = source.sample(learner)
        learner.steps += steps
        if len(learner.replay) >= min(s.warmup, s.capacity):
            learner.learn()
        source.publish(learner)
        yield steps, returns


def with_parts(s: Settings, options: argparse.Namespace) -> Settings:
    """Return hyperparameters with the parts of Rainbow that these options ask for."""
    parts = {name: getattr(options, name) for name in RAINBOW}
    return replace(s, alpha=0.6 if parts.pop("prioritised") else 0.0, **parts)


def learner_of(options: argparse.Namespace) -> Learner:
    """Return the learner that these options ask for."""
    settings = with_parts(Settings(), options)
    net, like = net_and_fields(options, settings)
    return Learner(net, like, settings, options.seed)


def learn(options: argparse.Namespace, run: Run, learner: Learner, env: Any) -> None:
    """Sample and learn until the run is over."""
    learner.restore(run)
    source = OneEnv(learner, options) if options.one_process else Actors(learner, options, env)
    with contextlib.closing(source):
        run.start(learner.net, learner.greedy, env)
        for steps, returns in train(source, learner):
            run.advance(
                steps,
                returns,
                spent=source.seconds,
                updates=learner.updates,
                replay=len(learner.replay),
            )
            learner.save(run)
            if run.over:
                return


def net_and_fields(options: argparse.Namespace, s: Settings) -> tuple[nn.Module, dict[str, Any]]:
    """Return the network and the fields of a step; exit with a message for other spaces."""
    observations, actions = spaces_of(options.env, "discrete")
    sizes = observations.shape[0], int(actions.n)
    is_plain = not (s.dueling or s.categorical or s.noisy)
    net = (network(*sizes, s.width) if is_plain else RainbowNet(*sizes, s)).to(options.device)
    seen = np.zeros(observations.shape, observations.dtype)
    action = np.zeros((), actions.dtype)
    return net, {"observations": seen, "next_observations": seen, "actions": action}


def run_or_play(options: argparse.Namespace, learner: Learner, env: Any = None) -> None:
    """Train a learner, or play its saved weights, in envs of ``env`` or of the option's id."""
    if options.play:
        load(learner.net, options.play)
        play(options, learner.greedy(), env)
    else:
        run(functools.partial(learn, learner=learner, env=env), Run(options))


def add_actors(made: argparse.ArgumentParser, actors: int = 4) -> None:
    """Add the options of actors; without ``--one-process``, they are what samples."""
    text = "worker processes; 0: act in this process"
    made.add_argument("--actors", type=at_least(0), default=actors, help=text)
    made.add_argument("--envs-per-actor", type=at_least(1), default=8)
    made.set_defaults(one_process=False)


def add_parts(made: argparse.ArgumentParser) -> None:
    """Add the options of Rainbow's parts."""
    for name, text in RAINBOW.items():
        made.add_argument(f"--{name}", action="store_true", help=text)


def main() -> None:
    made = parser(__doc__, "CartPole-v1", steps=1_000_000, until=475.0)
    add_actors(made)
    made.add_argument("--one-process", action="store_true", help="use one env and no actors")
    add_parts(made)
    add_play(made)
    options = parse(made)
    run_or_play(options, learner_of(options))


if __name__ == "__main__":
    main()
