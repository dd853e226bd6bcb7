"""SAC beside that of Stable-Baselines3: env steps a second, and what as many steps have taught.

    python benchmarks/sac.py --out benchmarks/results
    python benchmarks/sac.py --env HalfCheetah-v5 --steps 50000 --seeds 1

The learner is that of examples/sac.py. All contenders have the same env, hyperparameters, steps and
updates. Each is a process of its own, run one at a time, in turn. Afterwards each plays the same
episodes without exploring.
"""

from __future__ import annotations

import argparse
import functools
import os
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any

from curves import example
from running import Contender, in_turn, ratios, say, spread, study, table

ENVS = 4
CPUS = len(os.sched_getaffinity(0))
THEIRS, OURS = "Stable-Baselines3", f"pysampler, {ENVS} envs"
THREADED, VECTOR = f"{THEIRS}, {CPUS} threads", f"{THEIRS}, {ENVS} envs"
WAYS = {
    THEIRS: "its default: one env, stepped by the learner; one thread of torch",
    THREADED: "the same, with a thread of torch for each CPU",
    VECTOR: f"{ENVS} envs in processes of their own (SubprocVecEnv), as many updates for each of "
    "their steps; one thread of torch",
    OURS: f"{ENVS} envs in one worker, which acts while the learner learns; one thread of torch",
}
SLICE = 10.0  # seconds of training between two answers
FIRST_EPISODE = 1_000_000  # seed of the first episode that is played, which no training has


def settings_of(env: str, steps: int) -> Any:
    """Return the hyperparameters of all contenders."""
    sac = example("sac")
    known = sac.SETTINGS.get(env, sac.Settings())
    return replace(known, start=min(known.start, steps // 4))


# -- in a contender's process ----------------------------------------------------------------------


class Ours:
    """The learner and the actors of examples/sac.py."""

    def __init__(self, env: str, s: Any, seed: int) -> None:
        sac = example("sac")
        spaces = sac.spaces_of(env, "bounded")
        self._learner = sac.SAC(spaces, s, seed)
        options = argparse.Namespace(env=env, envs=ENVS, workers=1, seed=seed)
        actors = sac.actors_of(self._learner, spaces[1], options)
        actors.begin()
        self._rounds = sac.train(actors, self._learner)
        self._policy = sac.Explorer(self._learner.actor, spaces[1], s.log_stds)

    @property
    def steps(self) -> int:
        return int(self._learner.steps)

    @property
    def updates(self) -> int:
        return int(self._learner.updates)

    def train(self, steps: int) -> None:
        """Train for at least one step and at most about ``steps``."""
        next(self._rounds)

    def act(self, observation: Any) -> Any:
        return self._policy(observation[None])[0][0]


class Theirs:
    """SAC of Stable-Baselines3."""

    def __init__(self, env: str, s: Any, seed: int, envs: int) -> None:
        from stable_baselines3 import SAC
        from stable_baselines3.common.env_util import make_vec_env
        from stable_baselines3.common.vec_env import SubprocVecEnv

        made = env if envs == 1 else make_vec_env(env, envs, seed, vec_env_cls=SubprocVecEnv)
        self._model = SAC(
            *("MlpPolicy", made),
            learning_rate=s.rate,
            buffer_size=s.capacity,
            learning_starts=s.start,
            batch_size=s.batch,
            tau=s.tau,
            gamma=s.gamma,
            gradient_steps=-1,  # as many as there were new steps
            policy_kwargs={"net_arch": [s.width] * 2},
            device="cpu",
            seed=seed,
        )

    @property
    def steps(self) -> int:
        return int(self._model.num_timesteps)

    @property
    def updates(self) -> int:
        return int(self._model._n_updates)

    def train(self, steps: int) -> None:
        """Train for about ``steps``."""
        self._model.learn(min(steps, 40), reset_num_timesteps=False)

    def act(self, observation: Any) -> Any:
        return self._model.predict(observation, deterministic=True)[0]


def training(way: str, seed: int, env: str, steps: int) -> Callable[[dict[str, Any]], Any]:
    """Trains for some time when told to, or plays."""
    import torch

    torch.set_num_threads(CPUS if way == THREADED else 1)
    torch.manual_seed(seed)
    s = settings_of(env, steps)
    trained: Ours | Theirs
    trained = (
        Ours(env, s, seed) if way == OURS else Theirs(env, s, seed, ENVS * (way == VECTOR) or 1)
    )
    seconds = 0.0

    def measure(cell: dict[str, Any]) -> dict[str, Any]:
        nonlocal seconds
        if cell["episodes"] > 0:
            return {"returns": played(env, trained.act, cell["episodes"])}
        began = time.perf_counter()
        while trained.steps < cell["until"] and time.perf_counter() < began + SLICE:
            trained.train(cell["until"] - trained.steps)
        seconds += time.perf_counter() - began
        return {"steps": trained.steps, "updates": trained.updates, "seconds": seconds}

    return measure


def played(env_id: str, act: Callable[[Any], Any], episodes: int) -> list[float]:
    """Return the returns of episodes, which are the same for all contenders."""
    import gymnasium as gym

    returns = []
    with gym.make(env_id) as env:
        for number in range(episodes):
            seen, _ = env.reset(seed=FIRST_EPISODE + number)
            total, ended = 0.0, False
            while not ended:
                seen, reward, terminated, truncated, _ = env.step(act(seen))
                total += float(reward)
                ended = terminated or truncated
            returns.append(total)
    return returns


# -- in the process that measures ------------------------------------------------------------------


def run_of(options: argparse.Namespace, way: str, seed: int) -> dict[str, Any]:
    """Train for as many steps as are asked for, then play."""
    with Contender(__file__, way, seed, options.env, options.steps) as one:

        def trained(until: int) -> dict[str, Any]:
            return one.ask(until=until, episodes=0)

        # Measured from a little after the first update.
        curve = [trained(settings_of(options.env, options.steps).start + 50)]
        while curve[-1]["steps"] < options.steps:
            curve.append(trained(options.steps))
        returns = one.ask(until=0, episodes=options.episodes)["returns"]
    run = {"seed": seed, "curve": curve, "returns": returns}
    mean = statistics.mean(returns)
    say(f"  {way}, seed {seed}: {rate(run):,.0f} steps/s, returns {mean:,.1f}")
    return run


def rate(run: dict[str, Any], what: str = "steps") -> float:
    """Return the env steps a second, or the updates, from the first update on."""
    first, *_, last = run["curve"]
    return float((last[what] - first[what]) / (last["seconds"] - first["seconds"]))


def report(results: dict[str, Any]) -> list[str]:
    rows = []
    theirs = [rate(run) for run in results["runs"][THEIRS]]
    for way, runs in results["runs"].items():
        rates = [rate(run) for run in runs]
        rows.append(
            [
                *(way, spread(rates, 0), spread(ratios(rates, theirs), 1)),
                spread(ratios((rate(run, "updates") for run in runs), rates), 2),
                spread([run["curve"][-1]["seconds"] for run in runs], 0),
                spread([statistics.mean(run["returns"]) for run in runs], 0),
            ]
        )
    header = ["", "env steps/s", f"of {THEIRS}", "updates per step", "seconds", "return"]
    settings = ", ".join(f"{name} {value}" for name, value in results["settings"].items())
    about = (
        f"{results['env']}, {results['steps']:,} steps on the CPU. Median [least, most] of "
        f"{len(results['seeds'])} seeds, in turn. Steps a second are those from the first "
        f"update on; the return is the mean of {results['episodes']} episodes after the "
        "training, without exploring, the same for all.\n\n"
        + "\n".join(f"- *{way}*: {WAYS[way]}." for way in results["runs"])
        + f"\n\nHyperparameters: {settings}.\n"
    )
    return [about, table(header, rows)]


def measure(options: argparse.Namespace) -> dict[str, Any]:
    settings = asdict(settings_of(options.env, options.steps))
    shared = "start", "width", "rate", "gamma", "tau", "batch", "capacity", "updates_per_step"
    runs = in_turn(WAYS, options.seeds, functools.partial(run_of, options))
    return {
        **{name: getattr(options, name) for name in ("env", "steps", "seeds", "episodes")},
        "settings": {name: settings[name] for name in shared},
        "runs": runs,
    }


if __name__ == "__main__":
    study(
        *("SAC", measure, report),
        file="sac-{env}",
        contender=training,
        quick={"seeds": [1], "steps": 600, "episodes": 2},
        env="Pendulum-v1",
        steps=10_000,
        seeds=[1, 2, 3],
        episodes=20,
    )
