"""MAML: parameters from which one gradient step is enough for a new task.

    python examples/maml.py                          # Navigation2D-v0, a few minutes on two cores
    python examples/maml.py --env HalfCheetahDir-v5 --tasks 10 --envs-per-task 4

Each iteration draws tasks, samples them, adapts the parameters to each by a step of REINFORCE,
samples again, and moves the parameters by a step of TRPO through that adaptation. The bar shows the
mean return of an episode before and after adapting: the distance between them is what is learned.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from torch.distributions import Independent, Normal, kl_divergence
from tqdm import tqdm

import pysampler
import pysampler.envs.meta

Params = list[torch.Tensor]  # weights and biases in turn, then the log of the deviation


def initial(inputs: int, outputs: int, width: int) -> Params:
    """Of two hidden layers."""
    params: Params = []
    for a, b in ((inputs, width), (width, width), (width, outputs)):
        weight = torch.empty(a, b)
        torch.nn.init.xavier_uniform_(weight)
        params += [weight, torch.zeros(b)]
    return [p.requires_grad_() for p in (*params, torch.zeros(outputs))]


def policy_of(params: Params, observations: torch.Tensor) -> Independent:
    """For [tasks, rows, inputs], with params [tasks, ...]: each task's own."""
    x = observations
    *layers, log_std = params
    for i in range(0, len(layers), 2):
        x = torch.baddbmm(layers[i + 1].unsqueeze(1), x, layers[i])
        x = torch.tanh(x) if i < len(layers) - 2 else x
    return Independent(Normal(x, log_std.unsqueeze(1).exp().expand_as(x)), 1)


def act(observations: np.ndarray, _: np.ndarray, params: tuple[Params, float]) -> np.ndarray:
    """The sampler's policy: all envs, in the order of their tasks."""
    weights, scale = params
    count = len(weights[0])
    with torch.no_grad():
        rows = torch.from_numpy(observations).float().view(count, -1, observations.shape[1])
        return (policy_of(weights, rows).sample() * scale).view(len(observations), -1).numpy()


@dataclass
class Data:
    """What was sampled: [tasks, rows, ...]; rows that are none have weight 0."""

    observations: torch.Tensor
    actions: torch.Tensor
    advantages: torch.Tensor
    weights: torch.Tensor  # sum to 1 for each task
    mean_return: float

    def mean(self, values: torch.Tensor) -> torch.Tensor:
        """Over rows, by task."""
        return (values * self.weights).sum(1)


def data_of(collected: pysampler.Collected, scale: float, gamma: float) -> Data:
    """Episodes by task, with advantages over a baseline fitted to each task."""
    parts, returns = [], []
    for episodes in collected.episodes:
        rows = []
        for episode in episodes:
            togo, total = np.zeros(len(episode)), 0.0
            for t in range(len(episode) - 1, -1, -1):
                togo[t] = total = episode.rewards[t] + gamma * total
            rows.append((episode.observations, episode.actions / scale, togo))
            if episode.begins:
                returns.append(float(episode.rewards.sum()))
        observations, actions, togo = (np.concatenate(column) for column in zip(*rows, strict=True))
        time_of = np.concatenate([np.arange(len(r[2])) for r in rows])[:, None] / 100
        clipped = np.clip(observations, -10, 10)
        features = np.hstack(
            [clipped, clipped**2, time_of, time_of**2, time_of**3, np.ones_like(time_of)]
        )
        squares = features.T @ features + 1e-5 * np.eye(features.shape[1])
        advantages = togo - features @ np.linalg.solve(squares, features.T @ togo)
        advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
        parts.append((observations, actions, advantages, np.full(len(togo), 1 / len(togo))))
    longest = max(len(part[2]) for part in parts)

    def padded(column: tuple[np.ndarray, ...]) -> torch.Tensor:
        array = np.zeros((len(column), longest, *column[0].shape[1:]), np.float32)
        for row, values in zip(array, column, strict=True):
            row[: len(values)] = values
        return torch.from_numpy(array)

    columns = (padded(column) for column in zip(*parts, strict=True))
    return Data(*columns, float(np.mean(returns)))


def adapted(params: Params, data: Data, rate: float, *, differentiable: bool) -> Params:
    """Each task's own parameters, [tasks, ...]: a gradient step away."""
    own = [p.expand(len(data.observations), *p.shape) for p in params]
    log_probs = policy_of(own, data.observations).log_prob(data.actions)
    loss = -data.mean(log_probs * data.advantages).sum()
    gradients = torch.autograd.grad(loss, own, create_graph=differentiable)
    return [p - rate * g for p, g in zip(own, gradients, strict=True)]


def conjugate_gradient(product: Callable[[torch.Tensor], torch.Tensor], b: torch.Tensor) -> Any:
    """x with product(x) = b, nearly."""
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


def outer_step(params: Params, before: Data, after: Data, rate: float, most_kl: float) -> None:
    """TRPO on what the adapted policies do, through the adaptation."""

    def policies() -> Independent:
        own = adapted(params, before, rate, differentiable=torch.is_grad_enabled())
        return policy_of(own, after.observations)

    now = policies()
    fixed = Independent(Normal(now.base_dist.loc.detach(), now.base_dist.scale.detach()), 1)
    old = fixed.log_prob(after.actions)

    def gain(new: Independent) -> torch.Tensor:
        return after.mean((new.log_prob(after.actions) - old).exp() * after.advantages).mean()

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
    length = torch.sqrt(2 * most_kl / (direction @ curvature(direction)))
    origin = [p.detach().clone() for p in params]
    for fraction in 0.7 ** torch.arange(12):
        move(params, origin, direction * length * fraction)
        new = policies()
        if kl(new) <= most_kl and gain(new) > start:
            return
    move(params, origin, torch.zeros_like(direction))


def move(params: Params, origin: Params, by: torch.Tensor) -> None:
    at = 0
    with torch.no_grad():
        for p, o in zip(params, origin, strict=True):
            p.copy_(o + by[at : at + p.numel()].view_as(p))
            at += p.numel()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--env", default="Navigation2D-v0")
    parser.add_argument("--tasks", type=int, default=20, help="in an iteration")
    parser.add_argument("--envs-per-task", type=int, default=10)
    parser.add_argument("--length", type=int, default=100, help="steps of each env")
    parser.add_argument("--iterations", type=int, default=40)
    parser.add_argument("--rate", type=float, default=0.1, help="of the adaptation")
    parser.add_argument("--workers", type=int, help="by default one a CPU")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--quiet", action="store_true", help="no bar")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    options = parser.parse_args()
    torch.manual_seed(options.seed)
    gamma, most_kl = 0.99, 0.01

    history: list[tuple[float, float]] = []
    began, sampling = time.perf_counter(), 0.0
    with pysampler.MultiTaskSampler(
        options.env,
        act,
        num_envs=options.tasks * options.envs_per_task,
        vector_kwargs={"num_workers": options.workers},
        seed=options.seed,
    ) as sampler:
        space = sampler.envs.single_action_space
        assert isinstance(space, gym.spaces.Box)
        scale = float(space.high[0])  # the policy speaks of units of this
        params = initial(sampler.envs.single_observation_space.shape[0], space.shape[0], 32)

        def sampled(own: Params, tasks: list[Any] | None) -> Data:
            nonlocal sampling
            start = time.perf_counter()
            sampler.sample(options.length, ([p.detach() for p in own], scale), tasks)
            sampling += time.perf_counter() - start
            return data_of(sampler.collect(), scale, gamma)

        bar = tqdm(range(options.iterations), disable=options.quiet)
        for _ in bar:
            tasks = sampler.sample_tasks(options.tasks)
            before = sampled([p.expand(options.tasks, *p.shape) for p in params], tasks)
            own = adapted(params, before, options.rate, differentiable=False)
            after = sampled(own, None)
            history.append((before.mean_return, after.mean_return))
            bar.set_postfix(before=f"{before.mean_return:.1f}", after=f"{after.mean_return:.1f}")
            outer_step(params, before, after, options.rate, most_kl)
    seconds = time.perf_counter() - began
    first, last = (np.mean(rows, axis=0) for rows in (history[:5], history[-5:]))
    result = {
        "env": options.env,
        "first": first.tolist(),
        "last": last.tolist(),
        "seconds": seconds,
        "sampling_seconds": sampling,
    }
    print(
        json.dumps(result)
        if options.json
        else f"return before and after adapting: at first {first[0]:.1f} and {first[1]:.1f}, at "
        f"last {last[0]:.1f} and {last[1]:.1f}; {seconds:.0f} s, {sampling:.0f} of them sampling"
    )


if __name__ == "__main__":
    main()
