"""DQN with several samplers: in one process, with pipes, and with pysampler's actors.

    python benchmarks/dqn.py --out benchmarks/results

The network, the learner and the env are those of examples/dqn.py. Each contender is a process of
its own, run one at a time, in turn: it trains until it has solved CartPole-v1, and is measured
meanwhile.
"""

from __future__ import annotations

import argparse
import functools
import pickle
import statistics
import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from multiprocessing import connection
from pathlib import Path
from typing import Any

import curves
import numpy as np
from curves import example
from running import Contender, Measure, forked, in_turn, rate_of, ratios, say, spread, study, table

ENV, ACTORS, UNTIL = "CartPole-v1", 4, 475.0
OURS = {f"pysampler, {ACTORS} x {envs}": envs for envs in (1, 8)}
PIPE, PIPED_NUMPY = "pipe", "pipe, NumPy"
WAYS = {
    "one process": "an env in the learner's loop",
    PIPE: f"{ACTORS} processes with an env and a torch network each; every step is a message, "
    "answered with the network's state_dict, pickled",
    PIPED_NUMPY: "the same, but the network and what is pickled are NumPy's, as pysampler has it",
    **{way: f"{ACTORS} actors, envs of each: {envs}" for way, envs in OURS.items()},
}
SLICE = 5.0  # seconds between two checks whether it is solved


# -- in a contender's process ----------------------------------------------------------------------


class Piped:
    """Actors written by hand with pipes: each step is a message, answered with weights."""

    def __init__(
        self, env: str, net: Any, s: Any, seed: int, policy_of: Callable[..., Any]
    ) -> None:
        self._settings = s
        self._policy = policy_of(net)
        self.seconds = {"waiting": 0.0, "taking": 0.0, "publishing": 0.0}
        self._totals = np.zeros(ACTORS)
        self._numbers: dict[Any, int] = {}
        for number in range(ACTORS):
            [pipe] = forked(1, act, env, self._policy, seed + number)
            self._numbers[pipe] = number
            self._answer(pipe, 0)

    def sample(self, learner: Any) -> tuple[int, Any]:
        """Receive steps for an update; actors go on at once with the newest weights."""
        s, spent = self._settings, self.seconds
        steps: list[Any] = []
        returns = []
        while len(steps) < s.updates * s.every:
            began = time.perf_counter()
            ready = connection.wait(self._numbers)
            spent["waiting"] += time.perf_counter() - began
            for pipe in ready:
                assert isinstance(pipe, connection.Connection)
                began = time.perf_counter()
                number = self._numbers[pipe]
                step = pipe.recv()
                steps.append((*step, number, False))
                self._totals[number] += step[3]
                if step[4] or step[5]:
                    returns.append(self._totals[number])
                    self._totals[number] = 0
                taken = time.perf_counter()
                self._answer(pipe, learner.steps + len(steps))
                spent["taking"] += taken - began
                spent["publishing"] += time.perf_counter() - taken
        began = time.perf_counter()
        example("dqn").add_steps(learner.replay, steps)
        spent["taking"] += time.perf_counter() - began
        return len(steps), returns

    def _answer(self, pipe: Any, steps: int) -> None:
        epsilon = self._settings.epsilon(steps, ACTORS)[self._numbers[pipe]]
        pipe.send_bytes(pickle.dumps((self._policy.state_dict(), epsilon)))

    def publish(self, learner: Any) -> None:
        """Do nothing: each answer has the weights."""


def act(env_id: str, policy: Any, seed: int, pipe: Any) -> None:
    """Run the process of an actor."""
    import gymnasium as gym

    np.random.seed(seed)
    env = gym.make(env_id)
    seen, _ = env.reset(seed=seed)
    while True:
        weights, epsilon = pickle.loads(pipe.recv_bytes())
        policy.load_state_dict(weights)
        action = policy(seen[None], epsilon)[0]
        after, reward, terminated, truncated, _ = env.step(action)
        pipe.send((seen, after, action, float(reward), terminated, truncated))
        seen = after
        if terminated or truncated:
            seen, _ = env.reset()


class WithTorch:
    """An epsilon-greedy policy with the torch network itself."""

    def __init__(self, net: Any) -> None:
        self._net = net
        self.state_dict, self.load_state_dict = net.state_dict, net.load_state_dict

    def __call__(self, observations: Any, epsilon: float) -> Any:
        import torch

        with torch.no_grad():
            values = self._net(torch.from_numpy(observations))
        if np.random.random() < epsilon:
            return np.random.randint(values.shape[1], size=1)
        return values.argmax(-1).numpy()


def training(way: str, seed: int) -> Measure:
    """Trains for some seconds when told to, and reports the result."""
    import torch

    dqn = example("dqn")
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    np.random.seed(seed)
    settings = dqn.Settings()
    options = argparse.Namespace(
        env=ENV, device="cpu", seed=seed, actors=ACTORS, envs_per_actor=OURS.get(way)
    )
    if way in (PIPE, PIPED_NUMPY):
        settings = replace(settings, updates=1)  # it learns as it receives
    began = time.perf_counter()
    learner = dqn.Learner(*dqn.net_and_fields(options, settings), settings, seed)
    source: Any
    if way in OURS:
        source = dqn.Actors(learner, options)
    elif way == "one process":
        source = dqn.OneEnv(learner, options)
    else:
        policy_of = dqn.EpsilonGreedy if way == PIPED_NUMPY else WithTorch
        source = Piped(ENV, learner.net, settings, seed, policy_of)
    rounds = dqn.train(source, learner)
    recent: deque[float] = deque(maxlen=100)
    solved: dict[str, float] = {}

    def measure(cell: dict[str, Any]) -> dict[str, Any]:
        start, steps, updates = time.perf_counter(), learner.steps, learner.updates
        before = dict(source.seconds)
        while time.perf_counter() < start + cell["seconds"]:
            if not cell["learn"]:
                learner.steps += source.sample(learner)[0]
                source.publish(learner)
                continue
            recent.extend(next(rounds)[1])
            if not solved and len(recent) == 100 and np.mean(recent) >= UNTIL:
                at = time.perf_counter() - began
                solved.update(seconds=at, steps=learner.steps, updates=learner.updates)
        seconds = time.perf_counter() - start
        return {
            "seconds": seconds,
            "steps": learner.steps - steps,
            "updates": learner.updates - updates,
            "shares": {n: (v - before[n]) / seconds for n, v in source.seconds.items()},
            "return": float(np.mean(recent)) if recent else None,
            "since": time.perf_counter() - began,
            "solved": solved,
        }

    return measure


# -- in the process that measures ------------------------------------------------------------------


def trained(way: str, seed: int, window: float, limit: float) -> dict[str, Any]:
    """Train until the env is solved, or for ``limit`` seconds."""
    with Contender(__file__, way, seed) as one:

        def measured(seconds: float, *, learn: bool = True) -> dict[str, Any]:
            return one.ask(seconds=seconds, learn=learn)

        said = measured(window / 4)
        while said["updates"] == 0 and said["since"] < limit:  # there is too little to learn from
            said = measured(window / 4)
        curve = [(said["since"], said["return"])]
        said = in_window = measured(window)
        while not said["solved"] and said["since"] < limit:
            curve.append((said["since"], said["return"]))
            said = measured(SLICE)
        curve.append((said["since"], said["return"]))
        alone = measured(window / 2, learn=False)
    run = {"window": in_window, "alone": alone, "solved": said["solved"] or None, "curve": curve}
    took = f"{run['solved']['seconds']:.0f} s" if run["solved"] else f"not in {limit:.0f} s"
    say(f"  {way}, seed {seed}: {rate_of(in_window):,.0f} steps/s, solved: {took}")
    return run


def report(results: dict[str, Any]) -> list[str]:
    runs = results["runs"]
    windows = {way: [run["window"] for run in of] for way, of in runs.items()}

    def gains(way: str, of: str, part: str) -> list[float]:
        return ratios(*([rate_of(run[part]) for run in runs[name]] for name in (way, of)))

    def gain(way: str, of: str) -> str:
        return f"{statistics.median(gains(way, of, 'window')):.1f}"

    parts = [
        "Target: pysampler at least 5 times the env steps a second of the pipe version: "
        + ", ".join(
            f"{gain(way, PIPE)} times with {way[11:]} ({gain(way, PIPED_NUMPY)} times those of "
            "pipes with NumPy)"
            for way in OURS
        )
        + ".\n\nOne network, learner, env and batch size. For an update there must be at least "
        f"{results['every']} new steps, or the learner waits; pysampler's takes in at most "
        f"{results['most']}, or the actors wait. Median [least, most] of "
        f"{len(results['seeds'])} seeds, in turn.\n\n"
        + "\n".join(f"- *{way}*: {text}." for way, text in WAYS.items())
        + "\n"
    ]
    rows = [
        [
            way,
            spread([rate_of(one) for one in of], 0),
            spread([rate_of(one, "updates") for one in of], 0),
            spread(gains(way, PIPE, "window"), 1),
            spread([rate_of(run["alone"]) for run in runs[way]], 0),
            spread(gains(way, PIPE, "alone"), 1),
        ]
        for way, of in windows.items()
    ]
    header = ["", "env steps/s", "updates/s", "steps, of pipe's", "steps/s without learning"]
    parts.append(
        f"## How fast\n\nOver {results['window']:g} s of training; then with a learner that takes "
        "what comes and does not learn.\n\n" + table([*header, "steps, of pipe's"], rows)
    )
    spent = ["waiting", "taking", "publishing"]
    rows = [
        [way, *(f"{statistics.median(one['shares'][n] for one in of):.1%}" for n in spent)]
        for way, of in windows.items()
    ]
    parts.append(
        "## What the learner spends on sampling\n\nParts of its time: *waiting* for records (in "
        "one process: stepping the env), *taking* in what came, to where it lies in the replay, "
        "*publishing* weights. The rest it learns.\n\n" + table(["", *spent], rows)
    )
    rows = []
    for way, of in runs.items():
        solved = [run["solved"] for run in of if run["solved"]]
        took = [f"{run['solved']['seconds']:.0f}" if run["solved"] else "-" for run in of]
        means = [
            f"{statistics.median(one[n] for one in solved):,.0f}" if solved else "-"
            for n in ("steps", "updates")
        ]
        rows.append([way, f"{len(solved)} of {len(of)}", ", ".join(took), *means])
    parts.append(
        f"## Until {UNTIL:.0f}\n\nSeconds from the start of the actors until 100 episodes returned "
        f"{UNTIL:.0f} on average, seed by seed; a run of more than {results['limit']:g} s is "
        "given up. Steps and updates are medians of those that did.\n\n"
        + table(["", "solved", "seconds", "steps", "updates"], rows)
    )
    return parts


def picture(results: dict[str, Any], stem: Path) -> None:
    """Draw returns over seconds, from the first episode that ended."""
    drawn = {
        way: [[point for point in run["curve"] if point[1] is not None] for run in runs]
        for way, runs in results["runs"].items()
    }
    labels = {"title": ENV, "x": "seconds", "y": "return of 100 episodes", "goal": UNTIL}
    curves.picture(stem, [[{**labels, "curves": drawn}]])


def measure(options: argparse.Namespace) -> dict[str, Any]:
    run = functools.partial(trained, window=options.window, limit=options.limit)
    runs = in_turn(WAYS, options.seeds, run)
    return {
        **{name: getattr(options, name) for name in ("seeds", "window", "limit")},
        **{name: getattr(example("dqn").Settings(), name) for name in ("every", "most")},
        "runs": runs,
    }


if __name__ == "__main__":
    study(
        *("DQN", measure, report),
        contender=training,
        picture=picture,
        quick={"seeds": [1], "window": 2, "limit": 10},
        seeds=[1, 2, 3],
        window=20.0,
        limit=180.0,
    )
