"""MAML in one file: parameters from which one gradient step adapts to a new task.

    python examples/maml.py                             # Navigation2D-v0, a minute or two
    python examples/maml.py --env HalfCheetahDir-v5     # some minutes until it runs both ways
    python examples/maml.py --log run --plot curves.svg # writes run/progress.csv, and a plot

Each iteration draws tasks, samples them, adapts the parameters to each task by one step of policy
gradient, samples again, and takes a step of TRPO through that adaptation. The progress bar shows
the mean return before and after adapting: the gap between them is what is learned.

Adapting needs gradients that are more than noise. To check that, compare the gradients of one task
from two samples of 2,000 steps: on HalfCheetahDir-v5 their cosine is 0.0 if the first actions are
large and returns are those of whole episodes, and the policy never adapts. With the settings below
it is 0.25. Ctrl-C stops the training and prints the result so far.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

try:
    import numpy as np
    import torch
    from common import Run, at_least, parse, parser, run, spaces_of
    from torch import nn
    from torch.distributions import Independent, Normal, kl_divergence

    import pysampler
    import pysampler.envs.meta
except KeyboardInterrupt:  # importing torch takes seconds
    sys.exit("stopped before anything was learned")

Params = list[torch.Tensor]  # weights and biases in turn, then the log of the standard deviation


@dataclass
class Settings:
    """The hyperparameters. Actions are in units of half the range of the action space."""

    tasks: int = 20  # per iteration
    envs_per_task: int = 10
    length: int = 100  # steps of each env
    iterations: int = 40
    rate: float = 0.1  # learning rate of the adaptation
    gamma: float = 0.99
    gae_lambda: float = 1.0
    deviation: float = 1.0  # standard deviation of actions at first
    max_kl: float = 0.01  # of an iteration
    width: int = 32


SETTINGS = {
    # Actions change the velocity within a few steps: later rewards are noise.
    "HalfCheetahDir-v5": Settings(
        *(6, 20, 100, 150),
        rate=0.3,
        gamma=0.95,
        gae_lambda=0.9,
        deviation=0.5,
        max_kl=0.02,
        width=64,
    ),
}


def initial(inputs: int, outputs: int, s: Settings) -> Params:
    """Return parameters of a network with two hidden layers, whose actions are small at first."""
    params: Params = []
    for a, b in ((inputs, s.width), (s.width, s.width), (s.width, outputs)):
        weight = torch.empty(a, b)
        nn.init.xavier_uniform_(weight)
        params += [weight, torch.zeros(b)]
    params[-2] *= 0.1
    return [p.requires_grad_() for p in (*params, torch.full((outputs,), math.log(s.deviation)))]


def policy_of(params: Params, observations: torch.Tensor) -> Independent:
    """Return the policy of each task: observations [tasks, rows, inputs], params [tasks, ...]."""
    x = observations
    *layers, log_std = params
    for i in range(0, len(layers), 2):
        x = torch.baddbmm(layers[i + 1].unsqueeze(1), x, layers[i])
        x = torch.tanh(x) if i < len(layers) - 2 else x
    return Independent(Normal(x, log_std.unsqueeze(1).exp().expand_as(x)), 1)


@dataclass
class Policy:
    """The policy of all envs, which are in the order of their tasks. Clips actions to the space."""

    low: np.ndarray
    high: np.ndarray

    def __call__(
        self, observations: np.ndarray, _: np.ndarray, params: Params
    ) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        count = len(params[0])
        with torch.no_grad():
            rows = torch.from_numpy(observations).float().view(count, -1, observations.shape[1])
            sample = policy_of(params, rows).sample().view(len(observations), -1).numpy()
        share = (sample.clip(-1, 1) + 1) / 2
        return (self.low + share * (self.high - self.low)).astype(self.low.dtype), {
            "sample": sample
        }


@dataclass
class Data:
    """Samples as tensors [tasks, rows, ...]; rows that are padding have weight 0."""

    observations: torch.Tensor
    samples: torch.Tensor  # actions before they were clipped
    advantages: torch.Tensor
    weights: torch.Tensor  # sum to 1 for each task
    mean_return: float  # of the first episode of each env

    def to(self, device: str) -> Data:
        """Return the same on a device."""
        columns = (self.observations, self.samples, self.advantages, self.weights)
        return Data(*(column.to(device) for column in columns), self.mean_return)

    def mean(self, values: torch.Tensor) -> torch.Tensor:
        """Return the weighted mean over rows, for each task."""
        return (values * self.weights).sum(1)


def discounted(values: np.ndarray, factor: float) -> np.ndarray:
    """Return for each step the discounted sum of its value and all later ones."""
    totals, total = np.zeros(len(values)), 0.0
    for t in range(len(values) - 1, -1, -1):
        totals[t] = total = values[t] + factor * total
    return totals


def features(episode: Any) -> np.ndarray:
    """Return the features of the linear baseline, the same as in rllab."""
    seen = np.clip(episode.observations, -10, 10)
    # Not since the episode began: it may begin late, and is cut at the end of the sample.
    t = np.arange(episode.steps.start, episode.steps.stop)[:, None] / 100
    return np.hstack([seen, seen**2, t, t**2, t**3, np.ones_like(t)])


def advantages_of(episodes: list[Any], s: Settings) -> np.ndarray:
    """Return normalized advantages over a baseline that is fitted to these episodes of a task."""
    rows = [features(episode) for episode in episodes]
    x = np.concatenate(rows)
    y = np.concatenate([discounted(episode.rewards, s.gamma) for episode in episodes])
    baseline = np.linalg.solve(x.T @ x + 1e-5 * np.eye(x.shape[1]), x.T @ y)
    parts = []
    for row, episode in zip(rows, episodes, strict=True):
        values = np.append(row @ baseline, 0.0)  # time is a feature: nothing comes after the end
        errors = episode.rewards + s.gamma * values[1:] - values[:-1]
        parts.append(discounted(errors, s.gamma * s.gae_lambda))
    advantages = np.concatenate(parts)
    return (advantages - advantages.mean()) / (advantages.std() + 1e-8)


def data_of(collected: pysampler.Collected, s: Settings) -> Data:
    """Return the episodes of each task as rows."""
    parts, returns = [], []
    for episodes in collected.episodes:
        advantages = advantages_of(episodes, s)
        parts.append(
            (
                np.concatenate([episode.observations for episode in episodes]),
                np.concatenate([episode.extras["sample"] for episode in episodes]),
                advantages,
                np.full(len(advantages), 1 / len(advantages)),
            )
        )
        returns += [episode.rewards.sum() for episode in episodes if episode.steps.start == 0]
    longest = max(len(part[2]) for part in parts)

    def padded(column: tuple[np.ndarray, ...]) -> torch.Tensor:
        array = np.zeros((len(column), longest, *column[0].shape[1:]), np.float32)
        for row, values in zip(array, column, strict=True):
            row[: len(values)] = values
        return torch.from_numpy(array)

    columns = (padded(column) for column in zip(*parts, strict=True))
    return Data(*columns, float(np.mean(returns)))


def adapted(params: Params, data: Data, rate: float, *, differentiable: bool) -> Params:
    """Return parameters adapted to each task by a gradient step: [tasks, ...]."""
    own = [p.expand(len(data.observations), *p.shape) for p in params]
    log_probs = policy_of(own, data.observations).log_prob(data.samples)
    loss = -data.mean(log_probs * data.advantages).sum()
    gradients = torch.autograd.grad(loss, own, create_graph=differentiable)
    return [p - rate * g for p, g in zip(own, gradients, strict=True)]


def conjugate_gradient(product: Callable[[torch.Tensor], torch.Tensor], b: torch.Tensor) -> Any:
    """Return an approximate solution x of ``product(x) = b``."""
    x, r = torch.zeros_like(b), b.clone()
    p, rr = r.clone(), r @ r
    for _ in range(10):
        z = product(p)
        step = rr / (p @ z)
        x += step * p
        r -= step * z
        new = r @ r
        if new < 1e-10:
            break
        p = r + new / rr * p
        rr = new
    return x


def outer_step(params: Params, before: Data, after: Data, s: Settings) -> None:
    """Take a step of TRPO on the adapted policies, differentiating through the adaptation."""

    def policies() -> Independent:
        own = adapted(params, before, s.rate, differentiable=torch.is_grad_enabled())
        return policy_of(own, after.observations)

    now = policies()
    fixed = Independent(Normal(now.base_dist.loc.detach(), now.base_dist.scale.detach()), 1)
    old = fixed.log_prob(after.samples)

    def gain(new: Independent) -> torch.Tensor:
        return after.mean((new.log_prob(after.samples) - old).exp() * after.advantages).mean()

    def kl(new: Independent) -> torch.Tensor:
        return after.mean(kl_divergence(fixed, new)).mean()

    def flat(tensors: Any) -> torch.Tensor:
        return torch.cat([t.reshape(-1) for t in tensors])

    start = gain(now)
    gradient = flat(torch.autograd.grad(start, params, retain_graph=True))
    slope = flat(torch.autograd.grad(kl(now), params, create_graph=True))

    def curvature(vector: torch.Tensor) -> torch.Tensor:
        second = torch.autograd.grad(slope @ vector, params, retain_graph=True)
        return flat(second) + 1e-2 * vector

    direction = conjugate_gradient(curvature, gradient)
    length = torch.sqrt(2 * s.max_kl / (direction @ curvature(direction)))
    origin = [p.detach().clone() for p in params]
    for fraction in 0.7 ** torch.arange(12):
        move(params, origin, direction * length * fraction)
        new = policies()
        if kl(new) <= s.max_kl and gain(new) > start:
            return
    move(params, origin, torch.zeros_like(direction))


def move(params: Params, origin: Params, by: torch.Tensor) -> None:
    """Set the parameters to ``origin`` plus a flat vector."""
    begin = 0
    with torch.no_grad():
        for p, o in zip(params, origin, strict=True):
            p.copy_(o + by[begin : begin + p.numel()].view_as(p))
            begin += p.numel()


def train(options: argparse.Namespace, run: Run) -> None:
    """Train for some iterations."""
    s = options.settings
    observations, actions = spaces_of(options.env, "bounded", needs=("sample_tasks", "reset_task"))
    net = nn.ParameterList(initial(observations.shape[0], actions.shape[0], s)).to(options.device)
    run.restore(net=net)
    params, sampling = list(net), 0.0
    with pysampler.MultiTaskSampler(
        options.env,
        Policy(actions.low, actions.high),
        num_envs=s.tasks * s.envs_per_task,
        num_workers=options.workers,
        seed=options.seed,
    ) as sampler:

        def sampled(own: Params, tasks: list[Any] | None) -> Data:
            nonlocal sampling
            start = time.perf_counter()
            sampler.sample(s.length, [p.detach().cpu() for p in own], tasks)
            sampling += time.perf_counter() - start
            return data_of(sampler.collect(), s).to(options.device)

        run.start(net)
        while not run.over:
            tasks = sampler.sample_tasks(s.tasks)
            before = sampled([p.expand(s.tasks, *p.shape) for p in params], tasks)
            after = sampled(adapted(params, before, s.rate, differentiable=False), None)
            run.advance(
                1,
                every=0.0,
                spent={"sampling": sampling},
                score=after.mean_return,
                before=before.mean_return,
                after=after.mean_return,
                gap=after.mean_return - before.mean_return,
            )
            outer_step(params, before, after, s)  # after the weights with that score were kept
            run.checkpoint(net=net)


def main() -> None:
    made = parser(__doc__, "Navigation2D-v0", without=["episodes"])
    default = Settings()

    def setting(name: str, kind: Any, meaning: str) -> None:
        text = f"{meaning}; default: {getattr(default, name)}, {', '.join(SETTINGS)} has others"
        made.add_argument(f"--{name.replace('_', '-')}", type=kind, help=text)

    setting("tasks", at_least(1), "tasks per iteration")
    setting("envs_per_task", at_least(1), "envs of each task")
    setting("length", at_least(1), "steps of each env per sample")
    setting("iterations", at_least(1), "iterations of the outer loop")
    setting("rate", float, "learning rate of the adaptation")
    made.add_argument("--workers", type=at_least(0), help="worker processes; default: one per CPU")
    options = parse(made)
    given = {name: value for name, value in vars(options).items() if value is not None}
    settings = SETTINGS.get(options.env, default)
    options.settings = replace(settings, **{n: given[n] for n in vars(settings) if n in given})
    total = options.settings.iterations
    run(train, Run(options, unit="iterations", total=total, plotted=("before", "after", "gap")))


if __name__ == "__main__":
    main()
