"""rlpyt's samplers beside Rollouts: the same envs, network and outputs, on the CPU.

    git clone https://github.com/astooke/rlpyt build/rlpyt
    python benchmarks/rlpyt_samplers.py --rlpyt build/rlpyt --out benchmarks/results
    python benchmarks/rlpyt_samplers.py --rlpyt build/rlpyt --quick --out build/bench-smoke

rlpyt needs the gym of 2020. It is imported from the checkout, and small stand-in modules give it
gymnasium's envs behind the old interface. Each of its samplers takes turns with the Rollouts that
do the same: CpuSampler with policy_in="workers", GpuSampler with policy_in="main" (both act on the
CPU), AlternatingSampler with groups=2.
"""

from __future__ import annotations

import importlib.util
import itertools
import multiprocessing
import os
import statistics
import subprocess
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import running
from running import Measure, Options

APART, RLPYT, PYTHON, AUTO = "no sampler", "rlpyt", "native=False", 'native="auto"'
HORIZON = 128
WARM_UP = 100  # random steps of each env at most, rlpyt's default
COUNTS = [16, 64]
PICTURES = "Pictures-v0"
INFOS = {"HalfCheetah-v5": ["x_position", "x_velocity", "reward_forward", "reward_ctrl"]}
ENVS = {  # and whether pysampler has them in C++
    "CartPole-v1": True,
    "HalfCheetah-v5": True,
    PICTURES: False,
}
# The module of each sampler of rlpyt; options of the Rollouts that do the same, and of their envs.
SAMPLERS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "CpuSampler": ("cpu.sampler", {"policy_in": "workers"}, {}),
    "GpuSampler": ("gpu.sampler", {}, {}),
    "AlternatingSampler": ("gpu.alternating_sampler", {}, {"groups": 2}),
}
NEEDED = ["torch", "mujoco", "psutil"]


class Pictures(gym.Env):
    """An env that costs little more than its pictures: four screens of 84 x 84, the newest last."""

    observation_space = gym.spaces.Box(0, 255, (4, 84, 84), np.uint8)
    action_space = gym.spaces.Discrete(6)

    def __init__(self) -> None:
        random = np.random.default_rng(0)
        self._screens = random.integers(0, 256, (8, *self.observation_space.shape), np.uint8)
        self._at = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return self._screens[self._at].copy(), {}

    def step(self, action: Any) -> Any:
        self._at = (self._at + 1) % len(self._screens)
        return self._screens[self._at].copy(), 1.0, False, False, {}


gym.register(PICTURES, Pictures, max_episode_steps=1000)


# -- stand-ins for rlpyt ---------------------------------------------------------------------------


class OldEnv:
    """An env of gymnasium behind gym's interface of 2020.

    It stands in for the old TimeLimit as well: rlpyt looks for one, to know that infos may have
    "TimeLimit.truncated".
    """

    def __init__(self, env: gym.Env) -> None:
        self.env = env
        self.observation_space, self.action_space = env.observation_space, env.action_space
        self._seed: int | None = None
        self.close = env.close

    def seed(self, seed: int) -> None:
        self._seed = seed

    def reset(self) -> Any:
        observation, _ = self.env.reset(seed=self._seed)
        self._seed = None
        return observation

    def step(self, action: Any) -> Any:
        observation, reward, terminated, truncated, info = self.env.step(action)
        if truncated:
            info["TimeLimit.truncated"] = not terminated
        return observation, reward, terminated or truncated, info


class OldWrapper:
    """gym.Wrapper, as far as rlpyt's wrapper needs it."""

    def __init__(self, env: Any) -> None:
        self.env = env
        self.seed, self.close = env.seed, env.close


def stand_in() -> None:
    """Let ``import gym`` find what rlpyt's env and spaces import from it.

    Nothing else needs a stand-in: NumPy has np.bool again, and psutil is the real one.
    """
    modules: dict[str, dict[str, Any]] = {
        "gym": {"make": lambda env_id: OldEnv(gym.make(env_id)), "Wrapper": OldWrapper},
        "gym.wrappers": {},
        "gym.wrappers.time_limit": {"TimeLimit": OldEnv},
        "gym.spaces": {},
        "gym.spaces.dict": {"Dict": gym.spaces.Dict},
    }
    for name, attributes in modules.items():
        sys.modules[name] = types.ModuleType(name)
        vars(sys.modules[name]).update(attributes)


# -- in a contender's process ----------------------------------------------------------------------


def network(env_id: str) -> Any:
    """Return a module: observations to parameters of a distribution, and values."""
    import torch
    from torch import nn

    pictures, outputs = env_id == PICTURES, {"CartPole-v1": 2}.get(env_id, 6)
    if pictures:
        body = nn.Sequential(
            *(nn.Conv2d(4, 8, 8, 8), nn.ReLU(), nn.Conv2d(8, 16, 4, 2), nn.ReLU()),
            *(nn.Flatten(), nn.Linear(16 * 4 * 4, 64), nn.ReLU()),
        )
    else:
        inputs = {"CartPole-v1": 4}.get(env_id, 17)
        body = nn.Sequential(nn.Linear(inputs, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh())

    class Network(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = body
            self.head, self.value = nn.Linear(64, outputs), nn.Linear(64, 1)
            self.log_std = nn.Parameter(torch.zeros(6))

        def forward(self, observations: Any) -> Any:
            leading = observations.shape[: -3 if pictures else -1]  # rlpyt tries it without any
            inputs = observations.reshape(-1, *observations.shape[len(leading) :]).float()
            hidden = self.body(inputs.mul_(1 / 255) if pictures else inputs)
            head, values = self.head(hidden), self.value(hidden)
            return head.reshape(*leading, outputs), values.reshape(leading)

    torch.set_num_threads(1)
    torch.manual_seed(0)
    return Network()


def policy(env_id: str) -> Any:
    """Return a module that draws actions, and returns what rlpyt's agents return beside them."""
    import torch

    class Policy(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = network(env_id)

        def forward(self, observations: Any) -> Any:
            head, values = self.net(observations)
            if env_id == "HalfCheetah-v5":
                log_std = self.net.log_std.expand_as(head).clone()
                actions = head + log_std.exp() * torch.randn_like(head)
                return actions, {"mean": head, "log_std": log_std, "value": values}
            probabilities = head.softmax(-1)
            actions = torch.multinomial(probabilities, 1).squeeze(-1)
            return actions, {"prob": probabilities, "value": values}

    return Policy()


def alone(env_id: str, count: int) -> Measure:
    """Return a function that acts for envs of this process and steps them, without a sampler."""
    import torch

    act, envs = policy(env_id), [gym.make(env_id) for _ in range(count)]
    seen = [env.reset(seed=i)[0] for i, env in enumerate(envs)]

    def step() -> int:
        with torch.no_grad():
            actions = act(torch.from_numpy(np.stack(seen)))[0].numpy()
        for i, env in enumerate(envs):
            seen[i], _, terminated, truncated, _ = env.step(actions[i])
            if terminated or truncated:
                seen[i] = env.reset()[0]
        return count

    return running.repeated(step)


def ours(env_id: str, count: int, workers: int, sampler: str, native: Any) -> Iterator[Any]:
    import pysampler

    _, options, vector_options = SAMPLERS[sampler]
    kwargs = {"num_workers": workers, "native": native, **vector_options}
    envs = pysampler.make_vec(env_id, count, vector_kwargs=kwargs)
    return pysampler.Rollouts(
        *(envs, policy(env_id), HORIZON),
        info_keys=INFOS.get(env_id, ()),
        warm_up=WARM_UP,
        seed=0,
        **options,
    )


def theirs(path: str, env_id: str, count: int, workers: int, sampler: str) -> Iterator[Any]:
    sys.path.insert(0, path)
    stand_in()
    multiprocessing.set_start_method("fork")  # rlpyt's workers inherit what they are given
    import torch
    from rlpyt.agents.pg.categorical import CategoricalPgAgent
    from rlpyt.agents.pg.gaussian import GaussianPgAgent
    from rlpyt.envs.gym import make

    class Model(torch.nn.Module):
        """The network as rlpyt's agents call it."""

        def __init__(self) -> None:
            super().__init__()
            self.net = network(env_id)

        def forward(self, observation: Any, prev_action: Any, prev_reward: Any) -> Any:
            head, values = self.net(observation)
            if env_id == "HalfCheetah-v5":
                return head, self.net.log_std.expand_as(head).clone(), values
            return head.softmax(-1), values

    agent = (GaussianPgAgent if env_id == "HalfCheetah-v5" else CategoricalPgAgent)(ModelCls=Model)
    module = importlib.import_module(f"rlpyt.samplers.parallel.{SAMPLERS[sampler][0]}")
    one = getattr(module, sampler)(
        EnvCls=make,
        env_kwargs={"env_id": env_id},
        batch_T=HORIZON,
        batch_B=count,
        max_decorrelation_steps=WARM_UP,
    )
    allowed = sorted(os.sched_getaffinity(0))
    affinity: dict[str, Any] = {"workers_cpus": [allowed[w % len(allowed)] for w in range(workers)]}
    if sampler == "AlternatingSampler":  # twice as many workers, of which one half works at a time
        affinity = {"workers_cpus": affinity["workers_cpus"] * 2, "alternating": True}
    one.initialize(agent, affinity=affinity, seed=0)
    return map(one.obtain_samples, itertools.count())


def sampling(name: str, path: str, *arguments: Any) -> Measure:
    if name == APART:
        env_id, count, workers, _ = arguments
        return running.apart(alone, workers, env_id, count // workers)
    if name == RLPYT:
        samples = theirs(path, *arguments)
    else:
        samples = ours(*arguments, False if name == PYTHON else "auto")

    def sample() -> int:
        next(samples)
        return HORIZON * arguments[1]

    sample()  # warm
    return running.repeated(sample)


# -- in the process that measures ------------------------------------------------------------------


def report(results: dict[str, Any]) -> list[str]:
    rows = []
    for case in results["cases"]:
        rates = case["rates"]
        row = [case["env"], str(case["envs"]), case["sampler"]]
        for name in (RLPYT, APART, PYTHON, AUTO):
            each, peer = rates.get(name, []), rates.get(RLPYT, [])
            row.append(f"{statistics.median(each):,.0f}" if each else "-")
            if name != RLPYT:
                row.append(running.multiples(each, peer))
        rows.append(row)
    header = ["env", "envs", "rlpyt's sampler", "rlpyt, steps/s"]
    for name in (APART, PYTHON, AUTO):
        header += [f"{name}, steps/s", "/ rlpyt"]
    return [
        (
            f"rlpyt at commit {results['commit'][:10]}, on stand-ins for the gym of its time. "
            f"Samples of {HORIZON} steps of each env, {results['workers']} workers; "
            "`AlternatingSampler` has twice as many workers, as its documentation says. Beside "
            "`CpuSampler` runs `Rollouts` with the policy in workers, beside `GpuSampler` with "
            "the policy in the main process, beside `AlternatingSampler` the same with "
            "`groups=2`. There is no GPU: all agents and policies act on the CPU, on one "
            "thread of torch in each process. All have the same network (two hidden layers of "
            f"64; for `{PICTURES}` two small convolutions and a layer of 64), draw actions in "
            "the same way, and store the distribution, the value and the env's infos with each "
            "step.\n\n"
            "*No sampler* is as many processes, each of which steps its share of gymnasium's "
            "envs, acts for them with the same network, stores nothing and never waits for "
            "another. Where that is below twice rlpyt's speed, a sampler of envs in Python "
            "cannot be twice as fast. "
            f"`{AUTO}`, the default, simulates envs in C++. `{PICTURES}` costs little more than "
            "its 28 kB of pictures. "
            "Ratios are medians [quartiles] of slices in turn.\n"
        ),
        running.table(header, rows),
    ]


def measure(options: Options) -> dict[str, Any]:
    path = Path(options.rlpyt or "").resolve()
    if not ((path / "rlpyt" / "samplers").is_dir() and (path / ".git").exists()):
        raise SystemExit(f"--rlpyt must name a git checkout of rlpyt, got {path}")
    if missing := [name for name in NEEDED if importlib.util.find_spec(name) is None]:
        raise SystemExit(f"not installed: {', '.join(missing)}")
    commit = subprocess.check_output(["git", "-C", path, "rev-parse", "HEAD"], text=True).strip()
    cases = []
    for env_id, count, sampler in itertools.product(options.envs, options.counts, options.samplers):
        running.say(f"{env_id}, {count} envs, {sampler}")
        names = [APART, RLPYT, PYTHON, *([AUTO] if ENVS[env_id] else [])]
        what = path, env_id, count, options.workers, sampler
        rates = running.rates_in_turn(__file__, names, what, options)
        cases.append({"env": env_id, "envs": count, "sampler": sampler, "rates": rates})
    return {"workers": options.workers, "commit": commit, "cases": cases}


if __name__ == "__main__":
    running.study(
        *("rlpyt's samplers, and rollouts", measure, report),
        contender=sampling,
        quick={"counts": COUNTS[:1], "repetitions": 1, "seconds": 0.1},
        rlpyt=str,
        envs=ENVS,
        counts=COUNTS,
        samplers=SAMPLERS,
        **running.SLICES | {"seconds": 1.0},
    )
