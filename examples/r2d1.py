"""R2D1 in one file: DQN with a memory, learned from sequences with stored states (R2D2's learner).

    python examples/r2d1.py                 # CartPole without velocities until it returns 475
    python examples/r2d1.py --forgetful     # the same network, whose memory is always empty
    python examples/r2d1.py --actors 2 --envs-per-actor 4
    python examples/r2d1.py --save best.pt --plot returns.png
    python examples/r2d1.py --play best.pt  # evaluates saved weights without exploring

The replay buffer keeps the state that each step was made with. A sequence begins with that of its
first step; some steps of burn-in bring it up to date with the newest weights, the steps after them
are learned from by n-step double Q-learning. Sequences are drawn by a mixture of their greatest and
mean errors. Each env explores with its own epsilon. After Kapturowski et al. 2019 (R2D2), with
rewards scaled instead of values rescaled. The rest is that of dqn.py.
"""

from __future__ import annotations

import argparse
import copy
import sys
from dataclasses import dataclass
from typing import Any

try:
    import dqn
    import numpy as np
    import torch
    from common import add_play, parse, parser, spaces_of
    from torch import nn

    import pysampler
except KeyboardInterrupt:  # importing torch takes seconds
    sys.exit("stopped before anything was learned")


@dataclass
class Settings(dqn.Settings):
    """The hyperparameters, chosen for CartPole without velocities."""

    n_step: int = 5
    batch: int = 32  # sequences
    burn_in: int = 8
    length: int = 16  # steps of a sequence that are learned from
    rate: float = 1e-3
    updates: int = 8
    publish: int = 8
    every: int = 4
    most: int = 8
    target: int = 100
    exploring: int = 10_000
    scale: float = 0.1  # by which rewards are multiplied
    alpha: float = 0.6
    eta: float = 0.9  # of priorities: the share of the greatest error, the rest is of the mean


class RecurrentNet(nn.Module):
    """Values of actions from observations and an LSTM's state; as a policy, it is epsilon-greedy.

    Args:
        inputs: The length of an observation.
        actions: The number of actions.
        width: That of each layer.
        forgets: Whether each step begins with an empty state.
    """

    def __init__(self, inputs: int, actions: int, width: int, *, forgets: bool = False) -> None:
        super().__init__()
        self.forgets = forgets
        self.body = nn.Sequential(nn.Linear(inputs, width), nn.ReLU())
        self.lstm = nn.LSTM(width, width, batch_first=True)
        self.head = nn.Linear(width, actions)

    def initial_state(self, count: int) -> torch.Tensor:
        return torch.zeros(count, 2 * self.lstm.hidden_size)

    def unrolled(
        self, observations: torch.Tensor, state: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return values [sequences, steps, actions] and the state after the last step."""
        features = self.body(observations)
        if self.forgets:  # each step is a sequence of its own
            outputs, _ = self.lstm(features.flatten(0, 1)[:, None])
            return self.head(outputs.view_as(features)), state
        parts = (part.contiguous()[None] for part in state.chunk(2, -1))
        outputs, parts = self.lstm(features, tuple(parts))
        return self.head(outputs), torch.cat(parts, -1)[0]

    def forward(
        self, observations: torch.Tensor, state: torch.Tensor, epsilon: Any = 0.0
    ) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """Act as the policy: return actions and the next state."""
        values, state = self.unrolled(observations[:, None], state)
        actions = values[:, 0].argmax(-1)
        drawn = torch.randint(self.head.out_features, actions.shape)
        explores = torch.rand(len(actions)) < torch.as_tensor(epsilon)
        return torch.where(explores, drawn, actions), {"state": state}

    def values(self, batch: pysampler.Sequences) -> tuple[torch.Tensor, torch.Tensor]:
        """Return values of the observations to learn from, and of those after each step.

        A sequence has no end but its last step, so what one step leads to is what the next one
        sees: values of both come from one pass, from each sequence's first step on. Unlike in R2D2,
        gradients flow through the burn-in too: one pass is twice as fast as two.
        """
        seen, after = (batch.fields[name] for name in ("observations", "next_observations"))
        first, columns = batch.first[:, None], torch.arange(seen.shape[1] + 1, device=seen.device)
        rows = torch.arange(len(seen), device=seen.device)[:, None]
        later = (first + columns[:-1]).clamp(max=len(columns) - 2)
        inputs = torch.cat((seen[rows, first], after[rows, later]), 1)
        outputs, _ = self.unrolled(inputs, batch.state("state0"))
        values = outputs[rows, columns[batch.burn_in :] - first]
        return values[:, :-1], values[:, 1:]


class Learner(dqn.Learner):
    """DQN's learner of sequences."""

    def policy(self) -> Any:
        return copy.deepcopy(self.net).cpu()

    greedy = policy

    def update(self) -> None:
        s = self.settings
        drawn = self.replay.sample_sequences(
            s.batch, s.length, burn_in=s.burn_in, beta=s.beta(self.steps)
        )
        batch = drawn.torch(None if self.device.type == "cpu" else self.device)
        actions, mask, rewards, discounts, last = (
            column[:, s.burn_in :]
            for column in (
                *(batch.fields["actions"], batch.mask, batch.rewards, batch.discounts),
                batch.last - s.burn_in,
            )
        )
        values, following = self.net.values(batch)
        with torch.no_grad():
            best = following.argmax(-1, keepdim=True)
            next_value = self.target.values(batch)[1].gather(-1, best)[..., 0]
            goal = s.scale * rewards + discounts * next_value.gather(1, last)
        value = values.gather(-1, actions[..., None])[..., 0]
        losses = nn.functional.smooth_l1_loss(value, goal, reduction="none") * mask
        steps = mask.sum(1)
        self.descend((batch.weights * losses.sum(1) / steps).mean())
        errors = (value - goal).detach().abs() * mask
        priorities = s.eta * errors.amax(1) + (1 - s.eta) * errors.sum(1) / steps
        self.replay.update(batch.indices, priorities.cpu().numpy() + 1e-3)


def learner_of(options: argparse.Namespace) -> Learner:
    """Return the learner; exit with a message for other spaces."""
    s = Settings()
    observations, actions = spaces_of(options.env, "discrete")
    net = RecurrentNet(
        observations.shape[0], int(actions.n), s.width, forgets=options.forgetful
    ).to(options.device)
    seen = np.zeros(observations.shape, observations.dtype)
    like = {"observations": seen, "next_observations": seen, "actions": np.zeros((), np.int64)}
    like["state0"] = np.zeros(2 * s.width, np.float32)
    return Learner(net, like, s, options.seed, sequences=True)


def main() -> None:
    made = parser(__doc__, "MaskedCartPole-v1", steps=500_000, until=475.0)
    dqn.add_actors(made)
    made.add_argument("--forgetful", action="store_true", help="always act with an empty memory")
    add_play(made)
    options = parse(made)
    dqn.run_or_play(options, learner_of(options))


if __name__ == "__main__":
    main()
