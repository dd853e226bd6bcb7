"""SAC in one file: pysampler's actors sample all the time, torch learns all the time.

    python examples/sac.py                          # Pendulum-v1, 20,000 steps
    python examples/sac.py --env HalfCheetah-v5 --envs 8 --device cuda
    python examples/sac.py --td3                    # TD3 instead
    python examples/sac.py --ddpg                   # DDPG instead
    python examples/sac.py --updates-per-step 0.5   # half as many updates, twice the steps a second
    python examples/sac.py --workers 0              # acts in this process, for debugging
    python examples/sac.py --save best.pt --plot returns.png
    python examples/sac.py --checkpoints run        # resumes from the last checkpoint, if any
    python examples/sac.py --play best.pt           # evaluates saved weights without exploring
    python examples/sac.py --play best.pt --show human      # or video

Each step pays for a fixed number of updates: the learner waits if there are no new steps, and the
actors wait if they are a few dozen steps ahead. The progress bar shows the mean return of the last
20 episodes, the temperature, and which share of its time the learner spends on the actors. Actors
run freely, so two runs with the same seed differ. Ctrl-C stops the training and prints the result
so far.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import functools
import math
import sys
from collections.abc import Iterator
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
    from torch.nn import functional

    import pysampler
except KeyboardInterrupt:  # importing torch takes seconds
    sys.exit("stopped before anything was learned")


@dataclass
class Settings:
    """The hyperparameters: as in the SAC paper (arXiv 1812.05905, table 1), if nothing is said."""

    steps: int = 1_000_000
    start: int = 10_000  # random steps before the first update, as in RL Zoo for MuJoCo
    width: int = 256
    rate: float = 3e-4
    gamma: float = 0.99
    tau: float = 0.005  # how far target networks move towards the others in an update
    batch: int = 256
    capacity: int = 1_000_000
    updates_per_step: float = 1.0
    log_stds: tuple[float, float] = (-20.0, 2.0)  # as in the authors' code
    # TD3, as in its paper (arXiv 1802.09477); what else it needs is the same as for SAC.
    noise: float = 0.1  # standard deviation of exploration
    smoothing: float = 0.2  # standard deviation of the noise of target actions
    most_smoothing: float = 0.5
    delay: int = 2
    # How many steps are taken at most before their updates: actors get at most twice as far ahead.
    round: int = 16


SETTINGS = {
    # As in RL Zoo, with the `start` of Stable-Baselines3.
    "Pendulum-v1": Settings(steps=20_000, start=100, rate=1e-3, capacity=100_000),
    "HalfCheetah-v5": Settings(),
}


# -- networks --------------------------------------------------------------------------------------


def network(inputs: int, actions: int, width: int) -> nn.Sequential:
    """Return an actor: means of all actions before tanh, and logarithms of standard deviations."""
    return nn.Sequential(
        *(nn.Linear(inputs, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU()),
        nn.Linear(width, 2 * actions),
    )


class TwinCritics(nn.Module):
    """Two critics, whose layers are stacked: each is one matrix product for both."""

    def __init__(self, inputs: int, width: int) -> None:
        super().__init__()
        shapes = [(inputs, width), (width, width), (width, 1)]
        pairs = [[nn.Linear(*shape) for _ in range(2)] for shape in shapes]
        self.weights = nn.ParameterList(
            torch.stack([layer.weight.detach().T for layer in pair]) for pair in pairs
        )
        self.biases = nn.ParameterList(
            torch.stack([layer.bias.detach()[None] for layer in pair]) for pair in pairs
        )

    def forward(self, observations: torch.Tensor, squashed: torch.Tensor) -> torch.Tensor:
        """Return values [2, batch]."""
        values = torch.cat((observations, squashed), -1).expand(2, -1, -1)
        for weight, bias in zip(self.weights[:-1], self.biases[:-1], strict=True):
            values = torch.baddbmm(bias, values, weight).relu()
        return torch.baddbmm(self.biases[-1], values, self.weights[-1])[..., 0]


def draw(
    actor: nn.Module, observations: torch.Tensor, log_stds: tuple[float, float]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Draw actions in [-1, 1]; return them, and their log-probabilities."""
    mean, log_std = actor(observations).chunk(2, -1)
    log_std = log_std.clamp(*log_stds)
    noise = torch.randn_like(mean)
    before = mean + log_std.exp() * noise
    log_normal = -0.5 * noise.square() - log_std - 0.5 * math.log(2 * math.pi)
    # The logarithm of tanh's derivative, 1 - tanh(x)^2, which rounding cannot make infinite.
    log_slope = 2 * (math.log(2) - before - functional.softplus(-2 * before))
    return before.tanh(), (log_normal - log_slope).sum(-1)


# -- acting ----------------------------------------------------------------------------------------


class Explorer:
    """The actor in NumPy: several times as fast as torch for few observations.

    Called with observations alone, it acts without exploring.

    Args:
        actor: The actor, whose weights it has; on the CPU these are the same memory.
        space: The space of actions.
        log_stds: The bounds of logarithms of standard deviations.
    """

    def __init__(
        self, actor: nn.Module, space: gym.spaces.Box, log_stds: tuple[float, float]
    ) -> None:
        self.low, self.high, self.dtype = space.low, space.high, space.dtype
        self.middle, self.half = (space.high + space.low) / 2, (space.high - space.low) / 2
        self.log_stds = log_stds
        self.load_state_dict({n: tensor.cpu().numpy() for n, tensor in actor.state_dict().items()})

    def state_dict(self) -> dict[str, Any]:
        return self.weights

    def load_state_dict(self, weights: dict[str, Any]) -> None:
        self.weights, arrays = weights, list(weights.values())
        self.layers = list(zip(arrays[::2], arrays[1::2], strict=True))

    def __call__(
        self, observations: Any, *, random: Any = 0.0, spread: Any = 0.0, noise: Any = 0.0
    ) -> tuple[Any, dict[str, Any]]:
        """Return actions, and what they were before they were scaled to the bounds.

        Args:
            observations: An observation of each env.
            random: The probability of an action that is drawn from all alike.
            spread: Noise before tanh, in the actor's standard deviations: 1 for SAC.
            noise: The standard deviation of noise after tanh, for TD3.
        """
        *hidden, (last, bias) = self.layers
        values = observations.astype(np.float32)
        for weight, shift in hidden:
            values = np.maximum(values @ weight.T + shift, 0)
        mean, log_std = np.split(values @ last.T + bias, 2, axis=-1)
        random, spread, noise = (np.reshape(one, (-1, 1)) for one in (random, spread, noise))
        stds = spread * np.exp(log_std.clip(*self.log_stds))
        squashed = np.tanh(mean + stds * np.random.standard_normal(mean.shape))
        squashed += noise * np.random.standard_normal(mean.shape)
        drawn = np.random.uniform(-1, 1, mean.shape)
        is_random = np.random.random((len(mean), 1)) < random
        squashed = np.where(is_random, drawn, squashed.clip(-1, 1)).astype(np.float32)
        actions = (self.middle + self.half * squashed).clip(self.low, self.high)
        return actions.astype(self.dtype), {"squashed": squashed}


# -- learning --------------------------------------------------------------------------------------


class SAC(nn.Module):
    """An actor, two critics and their target networks, an optimizer and a replay buffer.

    Args:
        spaces: Those of observations and of actions.
        s: The hyperparameters.
        seed: Seed of the draws from the replay buffer.
        device: Of the networks.
    """

    def __init__(self, spaces: Any, s: Settings, seed: int, device: str = "cpu") -> None:
        super().__init__()
        seen, actions = (space.shape[0] for space in spaces)
        self.settings, self.device = s, torch.device(device)
        self.delay = 1  # updates of the critics for each of the actor
        self.exploring = {"spread": 1.0, "noise": 0.0}  # what the explorer is called with
        self.actor = network(seen, actions, s.width)
        self.critics = TwinCritics(seen + actions, s.width)
        self.log_temperature = nn.Parameter(torch.zeros(()))
        self.target_entropy = -float(actions)
        learned = list(self.to(device).parameters())
        self.optimizer = torch.optim.Adam(learned, s.rate, fused=True)
        self.target_critics = copy.deepcopy(self.critics).requires_grad_(requires_grad=False)
        self.averaged = [(self.target_critics, self.critics)]
        like = {
            "observations": np.zeros(seen, np.float32),
            "next_observations": np.zeros(seen, np.float32),
            "squashed": np.zeros(actions, np.float32),
        }
        self.replay = pysampler.ReplayBuffer(s.capacity, like, gamma=s.gamma, seed=seed)
        self.steps = self.updates = 0
        self.due = 0.0  # updates

    @property
    def temperature(self) -> float | None:
        """What a unit of entropy counts for."""
        return self.log_temperature.exp().item()

    def count(self, steps: int) -> None:
        """Count steps, and the updates that those after the first ``start`` are followed by."""
        s = self.settings
        before, self.steps = self.steps, self.steps + steps
        self.due += max(0, self.steps - max(before, s.start)) * s.updates_per_step

    def save(self, run: Run) -> None:
        """Save a checkpoint with all that is needed to resume, if one is due."""
        parts = {"replay": self.replay, "updates": self.updates}
        run.checkpoint(learner=self, optimizer=self.optimizer, **parts)

    def restore(self, run: Run) -> None:
        """Resume from the newest checkpoint, if there is one."""
        if found := run.restore(learner=self, optimizer=self.optimizer):
            self.replay, self.updates, self.steps = found["replay"], found["updates"], run.steps

    def learn(self, updates: int) -> None:
        """Do some updates, with batches that are drawn, and copied to the device, at once."""
        drawn = self.replay.sample(updates * self.settings.batch)
        batch = drawn.torch(None if self.device.type == "cpu" else self.device)
        columns = (
            *(batch.fields["observations"], batch.fields["squashed"]),
            *(batch.next_fields["next_observations"], batch.rewards, batch.discounts),
        )
        parts = (column.split(self.settings.batch) for column in columns)
        for part in zip(*parts, strict=True):
            self.update(*part)

    def update(
        self,
        seen: torch.Tensor,
        squashed: torch.Tensor,
        after: torch.Tensor,
        rewards: torch.Tensor,
        discounts: torch.Tensor,
    ) -> None:
        """Do a step of gradient for all networks, and move the target networks."""
        goals = self.goals(after, rewards, discounts)
        loss = 0.5 * (self.critics(seen, squashed) - goals).square().mean(-1).sum()
        of_all = self.updates % self.delay == 0
        if of_all:
            loss = loss + self.actor_loss(seen)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.updates += 1
        if of_all:
            with torch.no_grad():
                for target, source in self.averaged:
                    torch._foreach_lerp_(
                        list(target.parameters()), list(source.parameters()), self.settings.tau
                    )

    @torch.no_grad()
    def goals(
        self, after: torch.Tensor, rewards: torch.Tensor, discounts: torch.Tensor
    ) -> torch.Tensor:
        """Return what the critics should say. Discounts are 0 only where an episode terminated."""
        return rewards + discounts * self.next_values(after)

    def next_values(self, after: torch.Tensor) -> torch.Tensor:
        """Return values of the observations after the steps, by the target networks."""
        squashed, log_probs = draw(self.actor, after, self.settings.log_stds)
        values = self.target_critics(after, squashed).amin(0)
        return values - self.log_temperature.exp() * log_probs

    def actor_loss(self, seen: torch.Tensor) -> torch.Tensor:
        """Return the loss of the actor, and of the temperature."""
        squashed, log_probs = draw(self.actor, seen, self.settings.log_stds)
        values = self.judged(seen, squashed).amin(0)
        surplus = (log_probs.detach() + self.target_entropy).mean()
        loss = (self.log_temperature.exp().detach() * log_probs - values).mean()
        return loss - self.log_temperature * surplus

    def judged(self, seen: torch.Tensor, squashed: torch.Tensor) -> torch.Tensor:
        """Return what the critics say to the actor, from whose loss they do not learn."""
        self.critics.requires_grad_(requires_grad=False)
        values = self.critics(seen, squashed)
        self.critics.requires_grad_(requires_grad=True)
        return values


class TD3(SAC):
    """TD3: of the actor's outputs only the means count; the same noise for all explores."""

    temperature = None

    def __init__(self, spaces: Any, s: Settings, seed: int, device: str = "cpu") -> None:
        super().__init__(spaces, s, seed, device)
        self.delay, self.exploring = s.delay, {"spread": 0.0, "noise": s.noise}
        self.target_actor = copy.deepcopy(self.actor).requires_grad_(requires_grad=False)
        self.averaged.append((self.target_actor, self.actor))

    def next_values(self, after: torch.Tensor) -> torch.Tensor:
        s = self.settings
        means = self.target_actor(after).chunk(2, -1)[0].tanh()
        noise = (s.smoothing * torch.randn_like(means)).clamp(-s.most_smoothing, s.most_smoothing)
        return self.target_critics(after, (means + noise).clamp(-1, 1)).amin(0)

    def actor_loss(self, seen: torch.Tensor) -> torch.Tensor:
        return -self.judged(seen, self.actor(seen).chunk(2, -1)[0].tanh())[0].mean()


class DDPG(TD3):
    """DDPG: TD3 without its delay and noise of target actions, and with one critic that counts."""

    def __init__(self, spaces: Any, s: Settings, seed: int, device: str = "cpu") -> None:
        super().__init__(spaces, replace(s, delay=1), seed, device)

    def next_values(self, after: torch.Tensor) -> torch.Tensor:
        means = self.target_actor(after).chunk(2, -1)[0].tanh()
        return self.target_critics(after, means)[0]


# -- a training ------------------------------------------------------------------------------------


def actors_of(learner: SAC, space: gym.spaces.Box, options: argparse.Namespace) -> pysampler.Actors:
    """Return actors that explore with the weights of a learner."""
    s = learner.settings
    return pysampler.Actors(
        options.env,
        Explorer(learner.actor, space, s.log_stds),
        num_envs=options.envs,
        num_workers=options.workers,
        high=2 * s.round,
        low=s.round,
        settings={"random": float(learner.steps < s.start), **learner.exploring},
        seed=options.seed,
    )


def train(actors: pysampler.Actors, learner: SAC) -> Iterator[tuple[int, Any]]:
    """Train forever; yield how many steps were sampled, and returns of ended episodes."""
    while True:
        records = actors.take(learner.settings.round)
        learner.replay.extend(records)
        learner.count(len(records))
        sampled = len(records), records.ended
        if learner.steps >= learner.settings.start:
            actors.settings["random"] = 0.0
        if learner.due >= 1:
            learner.learn(int(learner.due))
            learner.due %= 1
            actors.publish(learner.actor)
        yield sampled


def learn(options: argparse.Namespace, run: Run) -> None:
    """Sample and learn until the run is over."""
    spaces = spaces_of(options.env, "bounded")
    algorithm = DDPG if options.ddpg else TD3 if options.td3 else SAC
    learner = algorithm(spaces, options.settings, options.seed, options.device)
    learner.restore(run)
    log_stds = options.settings.log_stds
    with contextlib.closing(actors_of(learner, spaces[1], options)) as actors:
        run.start(learner.actor, functools.partial(Explorer, learner.actor, spaces[1], log_stds))
        for steps, returns in train(actors, learner):
            run.advance(
                steps,
                returns,
                spent=learner_seconds(actors.stats()),
                updates=learner.updates,
                temperature=learner.temperature,
            )
            learner.save(run)
            if run.over:
                return


def saved_policy(options: argparse.Namespace) -> Explorer:
    """Return the policy of saved weights."""
    seen, space = spaces_of(options.env, "bounded")
    actor = network(seen.shape[0], space.shape[0], options.settings.width)
    load(actor, options.play)
    return Explorer(actor, space, options.settings.log_stds)


def ratio(text: str) -> float:
    """Return a number above 0, for an option."""
    if not 0 < (value := float(text)) < math.inf:
        raise argparse.ArgumentTypeError(f"{value}, expected more than 0")
    return value


def main() -> None:
    made = parser(__doc__, "Pendulum-v1", steps=None)
    kinds = made.add_mutually_exclusive_group()
    kinds.add_argument("--td3", action="store_true", help="learn by TD3 instead of SAC")
    kinds.add_argument("--ddpg", action="store_true", help="learn by DDPG instead of SAC")
    made.add_argument("--envs", type=at_least(1), default=4, help="number of envs; default: 4")
    text = "worker processes; 0: act in this process; default: 1"
    made.add_argument("--workers", type=at_least(0), default=1, help=text)
    text = "random steps before the first update"
    made.add_argument("--start", type=at_least(0), help=text)
    made.add_argument("--updates-per-step", type=ratio, metavar="R", help="default: 1")
    add_play(made)
    options = parse(made)
    given = {name: getattr(options, name) for name in ("steps", "start", "updates_per_step")}
    given = {name: value for name, value in given.items() if value is not None}
    options.settings = replace(SETTINGS.get(options.env, Settings()), **given)
    if options.play:
        play(options, saved_policy(options))
        return
    run(learn, Run(options, total=options.settings.steps, window=20))


if __name__ == "__main__":
    main()
