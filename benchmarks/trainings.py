"""Whole trainings: seconds until PPO has made its steps, with the vector envs of each library.

    python benchmarks/trainings.py --out benchmarks/results
    python benchmarks/trainings.py --quick --out build/bench-smoke

One script in the style of CleanRL, with its wrappers and hyperparameters, trains with each vector
env; Stable-Baselines3 with its own PPO of the same hyperparameters, as its docs say. Each run is a
process of its own, one at a time, in turn.
"""

from __future__ import annotations

import functools
import os
import statistics
import time
from collections import deque
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import wrappers
from running import Measure, Options, busy_seconds, in_turn, once, ratios, say, spread, study, table
from wrapped import ASYNC, OURS, PYTHON, make_env, pool

POOL, SYNC = "EnvPool", "SyncVectorEnv"
MADE = "pysampler.make_vec"  # with statistics of all envs, so only where nothing wraps each
# Contenders with SB3's PPO, and the name of their vector env; None: ours.
SB3 = {
    "pysampler, PPO of SB3": None,
    "SubprocVecEnv, PPO of SB3": "SubprocVecEnv",
    "DummyVecEnv, PPO of SB3": "DummyVecEnv",
}
WAYS = [OURS, PYTHON, MADE, POOL, SYNC, ASYNC, *SB3]
LIMIT = 3600.0  # seconds within which a run must end


@dataclass(frozen=True)
class Settings:
    """The hyperparameters of a row: those of CleanRL, whose batch they keep with more envs."""

    env: str
    steps: int  # whole rollouts: all contenders make as many
    envs: int
    horizon: int
    rate: float
    epochs: int
    minibatches: int
    entropy: float


ROWS = [
    Settings("HalfCheetah-v5", 131_072, 64, 32, 3e-4, 10, 32, 0.0),
    Settings("CartPole-v1", 102_400, 4, 128, 2.5e-4, 4, 4, 0.01),
]
KNOWN = {s.env: s for s in ROWS}
GAMMA, GAE_LAMBDA, CLIP, VALUE, NORM = 0.99, 0.95, 0.2, 0.5, 0.5
CLEANRL = "HalfCheetah-v5"  # its script of continuous actions wraps each env, the other does not


# -- in the process of a run -----------------------------------------------------------------------


def plain(env_id: str) -> gym.Env:
    """Make an env as CleanRL's ppo.py does."""
    return wrappers.RecordEpisodeStatistics(gym.make(env_id))


def vector_env(way: str, s: Settings) -> Any:
    """Return the vector env of a contender."""
    import pysampler

    make = functools.partial(make_env if s.env == CLEANRL else plain, s.env)
    if way in (SYNC, ASYNC):
        return getattr(gym.vector, way)([make] * s.envs)
    if way == MADE:
        return wrappers.vector.RecordEpisodeStatistics(pysampler.make_vec(s.env, s.envs))
    if way == POOL:
        return pool(s.env, s.envs, len(os.sched_getaffinity(0)), normalized=s.env == CLEANRL)
    return pysampler.VectorEnv([make] * s.envs, native="auto" if way == OURS else False)


def ppo(envs: Any, s: Settings, seed: int, report: Callable[[int, float], None]) -> None:
    """Train, and report the return of each episode that ended."""
    import torch
    from torch import nn
    from torch.distributions import Categorical, Normal

    space, discrete = envs.single_action_space, hasattr(envs.single_action_space, "n")
    inputs = int(np.prod(envs.single_observation_space.shape))
    outputs = int(space.n) if discrete else int(np.prod(space.shape))

    def mlp(outputs: int, scale: float) -> nn.Sequential:
        layers: list[nn.Module] = []
        for width, gain in ((64, 2**0.5), (64, 2**0.5), (outputs, scale)):
            layers += [nn.Linear(64 if layers else inputs, width), nn.Tanh()]
            nn.init.orthogonal_(layers[-2].weight, gain)
            nn.init.zeros_(layers[-2].bias)
        return nn.Sequential(*layers[:-1])

    actor, critic = mlp(outputs, 0.01), mlp(1, 1.0)
    log_std = nn.Parameter(torch.zeros(0 if discrete else outputs))
    parameters = [*actor.parameters(), *critic.parameters(), log_std]
    optimizer = torch.optim.Adam(parameters, s.rate, eps=1e-5)

    def distribution(seen: torch.Tensor) -> Any:
        if discrete:
            return Categorical(logits=actor(seen), validate_args=False)
        mean = actor(seen)
        return Normal(mean, log_std.exp().expand_as(mean), validate_args=False)

    def log_prob(over: Any, actions: torch.Tensor) -> torch.Tensor:
        return over.log_prob(actions) if discrete else over.log_prob(actions).sum(-1)

    shape = (s.horizon, s.envs)
    observations = torch.zeros(*shape, inputs)
    actions = torch.zeros(shape, dtype=torch.int64) if discrete else torch.zeros(*shape, outputs)
    log_probs, rewards, dones, values = (torch.zeros(shape) for _ in range(4))
    first, _ = envs.reset(seed=seed)
    seen, done = torch.from_numpy(first).float(), torch.zeros(s.envs)
    dtype = space.dtype
    rounds = s.steps // (s.horizon * s.envs)
    for at in range(rounds):
        optimizer.param_groups[0]["lr"] = s.rate * (1 - at / rounds)
        for t in range(s.horizon):
            observations[t], dones[t] = seen, done
            with torch.no_grad():
                over = distribution(seen)
                actions[t] = over.sample()
                log_probs[t], values[t] = log_prob(over, actions[t]), critic(seen).flatten()
            after, reward, terminated, truncated, infos = envs.step(
                actions[t].numpy().astype(dtype)
            )
            seen, rewards[t] = torch.from_numpy(after).float(), torch.from_numpy(reward)
            done = torch.from_numpy(terminated | truncated).float()
            if "episode" in infos:
                for total in infos["episode"]["r"][infos["_episode"]].tolist():
                    report((at * s.horizon + t + 1) * s.envs, total)
        with torch.no_grad():
            next_value, last = critic(seen).flatten(), torch.zeros(s.envs)
            advantages, next_done = torch.zeros(shape), done
            for t in reversed(range(s.horizon)):
                delta = rewards[t] + GAMMA * next_value * (1 - next_done) - values[t]
                advantages[t] = last = delta + GAMMA * GAE_LAMBDA * (1 - next_done) * last
                next_value, next_done = values[t], dones[t]
            targets = advantages + values
        steps = dones.flatten() == 0  # after the end of an episode, a step only resets its env
        batch = [
            x.flatten(0, 1)[steps]
            for x in (observations, actions, log_probs, advantages, targets, values)
        ]
        for _ in range(s.epochs):
            for rows in torch.randperm(len(batch[0])).chunk(s.minibatches):
                o, a, old, gain, target, value = (x[rows] for x in batch)
                over = distribution(o)
                ratio = (log_prob(over, a) - old).exp()
                gain = (gain - gain.mean()) / (gain.std() + 1e-8)
                policy = torch.max(-gain * ratio, -gain * ratio.clamp(1 - CLIP, 1 + CLIP)).mean()
                new = critic(o).flatten()
                clipped = value + (new - value).clamp(-CLIP, CLIP)
                errors = torch.max((new - target) ** 2, (clipped - target) ** 2)
                entropy = over.entropy() if discrete else over.entropy().sum(-1)
                loss = policy - s.entropy * entropy.mean() + VALUE * 0.5 * errors.mean()
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(parameters, NORM)
                optimizer.step()


def sb3(way: str, s: Settings, seed: int, report: Callable[[int, float], None]) -> None:
    """Train with PPO of Stable-Baselines3."""
    from stable_baselines3 import PPO
    from stable_baselines3.common import vec_env
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.env_util import make_vec_env

    import pysampler.adapters.sb3

    class Reports(BaseCallback):
        def _on_step(self) -> bool:
            for info in self.locals["infos"]:
                if "episode" in info:
                    report(self.num_timesteps, info["episode"]["r"])
            return True

    envs: Any
    if SB3[way] is None:
        make = functools.partial(gym.make, s.env)
        envs = vec_env.VecMonitor(pysampler.adapters.sb3.VecEnv([make] * s.envs))
    else:
        envs = make_vec_env(s.env, s.envs, seed, vec_env_cls=getattr(vec_env, SB3[way]))
    if s.env == CLEANRL:
        envs = vec_env.VecNormalize(envs, gamma=GAMMA)
    model = PPO(
        *("MlpPolicy", envs),
        learning_rate=lambda left: s.rate * left,
        n_steps=s.horizon,
        batch_size=s.horizon * s.envs // s.minibatches,
        n_epochs=s.epochs,
        gamma=GAMMA,
        gae_lambda=GAE_LAMBDA,
        clip_range=CLIP,
        clip_range_vf=CLIP,
        ent_coef=s.entropy,
        vf_coef=VALUE * 0.5,
        max_grad_norm=NORM,
        seed=seed,
        device="cpu",
    )
    model.learn(s.steps, callback=Reports())
    envs.close()


def training(way: str, seed: int, settings: dict[str, Any]) -> dict[str, Any]:
    """Train, and return the seconds of it and the mean returns of the last 100 episodes.

    A run has the machine alone, whose CPU seconds count: SubprocVecEnv's processes are children of
    a server that it never waits for, so that no usage of a run's own children has theirs.
    """
    import torch

    torch.set_num_threads(1)
    torch.manual_seed(seed)
    s = Settings(**settings)
    recent: deque[float] = deque(maxlen=100)
    curve: list[tuple[float, int, float]] = []
    began, busy = time.perf_counter(), busy_seconds()

    def report(steps: int, total: float) -> None:
        recent.append(total)
        now = time.perf_counter() - began
        if not curve or now > curve[-1][0] + 1:
            curve.append((now, steps, statistics.fmean(recent)))

    if way in SB3:
        sb3(way, s, seed, report)
    else:
        envs = vector_env(way, s)
        ppo(envs, s, seed, report)
        envs.close()
    return {
        "seconds": time.perf_counter() - began,
        "cpu_seconds": busy_seconds() - busy,
        "return": statistics.fmean(recent) if recent else 0.0,
        "curve": curve,
    }


def contender(*arguments: Any) -> Measure:
    return lambda _: training(*arguments)


# -- in the process that measures ------------------------------------------------------------------


def run_of(s: Settings, way: str, seed: int) -> dict[str, Any] | None:
    """Run a training in a process of its own; return None, and say why, if it does not run."""
    if (run := once(__file__, way, seed, asdict(s), limit=LIMIT)) is not None:
        took, cpu = run["seconds"], run["cpu_seconds"]
        say(f"  {way}, seed {seed}: {took:.0f} s, {cpu:.0f} CPU s, return {run['return']:.0f}")
    return run


def report(results: dict[str, Any]) -> list[str]:
    parts = [
        (
            "PPO with the hyperparameters of CleanRL, one thread of torch. Each run has the "
            f"machine alone; medians [least, most] of the seeds {results['seeds']}, in turn. "
            "Seconds are from making the envs to closing them, CPU seconds those of the machine, "
            "the return is the mean of the last 100 episodes. EnvPool's envs share one mean of "
            "observations, as those of VecNormalize do; the others have one each.\n"
        )
    ]
    for case in results["cases"]:
        s, rows = case["settings"], []
        ours = [run["seconds"] for run in case["runs"][OURS]]
        for way, runs in case["runs"].items():
            if not runs:
                continue
            took = [run["seconds"] for run in runs]
            rows.append(
                [
                    way,
                    spread(took, 0),
                    "" if way == OURS else spread(ratios(took, ours)),
                    spread([run["cpu_seconds"] for run in runs], 0),
                    spread([run["return"] for run in runs], 0),
                ]
            )
        parts.append(
            f"## {s['env']}, {s['steps']:,} steps of {s['envs']} envs\n\n"
            + table(["", "seconds", "/ pysampler", "CPU seconds", "return"], rows)
        )
    return parts


def measure(options: Options) -> dict[str, Any]:
    rows = [KNOWN[env] for env in options.envs]
    if options.quick:
        rows = [replace(s, steps=2 * s.horizon * 8, envs=8) for s in rows]
    cases: list[dict[str, Any]] = []
    for s in rows:
        say(s.env)
        ways = [way for way in options.ways if way != MADE or s.env != CLEANRL]
        runs = in_turn(ways, options.seeds, functools.partial(run_of, s))
        cases.append({"settings": asdict(s), "runs": runs})
    return {"seeds": options.seeds, "cases": cases}


if __name__ == "__main__":
    study(
        *("Whole trainings", measure, report),
        contender=contender,
        quick={"seeds": [1], "envs": [ROWS[0].env]},
        choices={"ways": WAYS},
        envs=KNOWN,
        seeds=[1, 2, 3],
        ways=WAYS,
    )
