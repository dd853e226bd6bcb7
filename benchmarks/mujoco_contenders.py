"""Vector envs of MuJoCo, and their physics alone: each runs in a process of its own (running.py).

All begin with the same seed, take the same random actions and make the same rounds, so that what
pysampler, gymnasium and the physics alone compute in a slice is the same, bit for bit.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import gymnasium as gym
import numpy as np
from running import Measure, answer, forked

LEAST = 2  # rounds of a slice


@dataclass(frozen=True)
class Case:
    env: str
    envs: int
    workers: int

    @property
    def warm(self) -> int:
        """The number of rounds before anything is measured."""
        return 50 if self.envs <= 4096 else 10

    def actions(self) -> np.ndarray:
        """Return random actions of 64 rounds, which are then repeated."""
        env = gym.make(self.env)
        low, high = env.action_space.low, env.action_space.high
        env.close()
        size = (64, self.envs, *low.shape)
        return np.random.default_rng(0).uniform(low, high, size).astype(np.float32)


def stepping(case: Case, envs: Any, actions: np.ndarray) -> Measure:
    """Warm up; return what makes some rounds and says how long they took."""
    rounds = itertools.cycle(actions)
    for _ in range(case.warm):
        envs.step(next(rounds))

    def measure(cell: dict[str, Any]) -> dict[str, Any]:
        begun = time.perf_counter()
        for _ in range(cell["rounds"]):
            envs.step(next(rounds))
        seconds = time.perf_counter() - begun
        return {"rate": case.envs * cell["rounds"] / seconds}

    return measure


def pysampler_envs(case: Case, *, native: bool) -> Any:
    import pysampler

    options = {"num_workers": case.workers, "native": native}
    return pysampler.make_vec(case.env, case.envs, vector_kwargs=options)


def pysampler(case: Case, *, native: bool) -> Measure:
    envs = pysampler_envs(case, native=native)
    envs.reset(seed=0)
    return stepping(case, envs, case.actions())


def gymnasium(case: Case, *, kind: str) -> Measure:
    envs = getattr(gym.vector, kind)([functools.partial(gym.make, case.env)] * case.envs)
    envs.reset(seed=0)
    return stepping(case, envs, case.actions())


def envpool(case: Case) -> Measure:
    import envpool as package

    envs = package.make(case.env, "gymnasium", num_envs=case.envs, num_threads=case.workers)
    envs.reset()
    measure = stepping(case, envs, case.actions().astype(envs.action_space.dtype))
    folder = Path(package.__file__).parent
    library = ctypes.CDLL(str(folder / "mujoco" / "mujoco_gym_envpool.so"))
    library.mj_versionString.restype = ctypes.c_char_p
    versions = {"EnvPool": package.__version__, "its MuJoCo": library.mj_versionString().decode()}
    return lambda cell: versions if "versions" in cell else measure(cell)


# -- the physics alone -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Recording:
    """What simulations did in a vector env: where they began, and each reset."""

    actions: np.ndarray
    begin: int  # the round
    states: np.ndarray
    resets: Mapping[int, tuple[np.ndarray, np.ndarray]]  # by round: the envs, and what was set
    last_states: np.ndarray


def physics(case: Case) -> Measure:
    """Prepare processes that simulate what a recording says, without envs, and never communicate.

    The first request says how long slices are and how many there will be: {"seconds", "slices"}.
    """
    pipes: list[Any] = []

    def measure(cell: dict[str, Any]) -> dict[str, Any]:
        if "slices" in cell:
            rounds, recording = recorded(case, cell["seconds"], cell["slices"])
            pipes[:] = start(case, recording)
            return {"rounds": rounds}
        for pipe in pipes:
            pipe.send(cell.get("rounds", 0))
        said = [pipe.recv() for pipe in pipes]
        if "check" in cell:
            return {"same": all(said)}
        # Each round as long as the slower of the processes, which wait for one another at no cost.
        barrier = np.max(said, axis=0).sum()
        return {
            "rate": sum(case.envs / len(said) * len(one) / sum(one) for one in said),
            "barrier": case.envs * cell["rounds"] / barrier,
        }

    return measure


def recorded(case: Case, seconds: float, slices: int) -> tuple[int, Recording]:
    """Return how many rounds a slice has, and a recording of all."""
    envs, actions = pysampler_envs(case, native=True), case.actions()
    envs.reset(seed=0)
    begun = time.perf_counter()
    for at in range(case.warm):
        *_, terminated, truncated, _ = envs.step(actions[at % len(actions)])
    rate = case.warm / (time.perf_counter() - begun)
    rounds = max(LEAST, round(seconds * rate))
    states, resets = envs.get_state()["physics"], {}
    with Model(case) as model:
        for at in range(case.warm, case.warm + rounds * slices):
            ended = np.flatnonzero(terminated | truncated)
            *_, terminated, truncated, _ = envs.step(actions[at % len(actions)])
            if len(ended):
                resets[at] = ended, envs.get_state(ended)["physics"][:, : model.settable]
    last_states = envs.get_state()["physics"]
    envs.close()
    return rounds, Recording(actions, case.warm, states, resets, last_states)


class Model:
    """An env's task, and where a state has its parts."""

    def __init__(self, case: Case) -> None:
        import mujoco

        from pysampler._vector.native.known import task_of
        from pysampler.envs.mujoco._fields import STATE

        self._env = gym.make(case.env)
        self.task = task_of(self._env.unwrapped)
        model = self.task.model
        self.settable = 1 + model.nq + model.nv  # time, positions and velocities come first
        controls = mujoco.mj_stateSize(model, STATE & (int(mujoco.mjtState.mjSTATE_CTRL) - 1))
        self.controls = slice(controls, controls + model.nu)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._env.close()

    def simulations(self, count: int) -> tuple[Any, np.ndarray]:
        """Return simulations, and the state of one that has not begun."""
        import mujoco

        from pysampler import _core
        from pysampler.envs.mujoco._fields import STATE

        model = self.task.model
        [library] = Path(mujoco.__file__).parent.glob("libmujoco.so*")
        simulations = _core.Simulations(str(library), model._address, count, STATE)
        fresh = np.empty(simulations.rows().shape[1])
        mujoco.mj_getState(model, mujoco.MjData(model), fresh, STATE)
        return simulations, fresh


def start(case: Case, recording: Recording) -> list[Any]:
    pipes = []
    for places in np.array_split(np.arange(case.envs), case.workers):
        pipes += forked(1, simulate, case, recording, slice(places[0], places[-1] + 1))
    return pipes


def simulate(case: Case, recording: Recording, places: slice, pipe: Any) -> None:
    """Make as many rounds as are asked for; of none, say whether the states are the recorded."""
    with Model(case) as model:
        count, task = places.stop - places.start, model.task
        simulations, fresh = model.simulations(count)
        rows = simulations.rows()
        rows[:] = recording.states[places]
        everyone = np.arange(count, dtype=np.int32)
        resets = {}
        for at, (ended, states) in recording.resets.items():
            own = (ended >= places.start) & (ended < places.stop)
            begin = (ended[own] - places.start).astype(np.int32)
            if len(begin):
                resets[at] = begin, np.setdiff1d(everyone, begin), states[own]
        at, actions = recording.begin, recording.actions[:, places]
        while True:
            rounds = pipe.recv()
            seconds = np.zeros(rounds)
            for k in range(rounds):
                begun = time.perf_counter()
                rows[:, model.controls] = actions[at % len(actions)]
                if at in resets:
                    begin, going, states = resets[at]
                    rows[begin] = fresh
                    rows[begin, : model.settable] = states
                    simulations.begin(begin)
                else:
                    going = None
                if going is None or len(going):
                    simulations.step(going, task.frame_skip, task.forces)
                at += 1
                seconds[k] = time.perf_counter() - begun
            same = np.array_equal(rows, recording.last_states[places])
            pipe.send(seconds if rounds else same)


# -- memory ----------------------------------------------------------------------------------------


def memory(case: Case) -> Measure:
    """Prepare to make native envs, once: how long that takes, and how much memory they have."""

    def measure(_: dict[str, Any]) -> dict[str, Any]:
        import psutil

        import pysampler  # noqa: F401 - its import is not measured

        begun = time.perf_counter()
        envs = pysampler_envs(case, native=True)
        made = time.perf_counter() - begun
        envs.reset(seed=0)
        reset = time.perf_counter() - begun - made
        for _ in range(3):
            envs.step(envs.action_space.sample())
        me = psutil.Process()
        processes = [me, *me.children(recursive=True)]
        pss = sum(one.memory_full_info().pss for one in processes)
        envs.close()
        return {"make": made, "reset": reset, "megabytes": pss / 1e6}

    return measure


CONTENDERS: dict[str, Callable[[Case], Measure]] = {
    "bare physics": physics,
    "pysampler, native": functools.partial(pysampler, native=True),
    "EnvPool": envpool,
    "pysampler, ordinary": functools.partial(pysampler, native=False),
    "gymnasium SyncVectorEnv": functools.partial(gymnasium, kind="SyncVectorEnv"),
    "gymnasium AsyncVectorEnv": functools.partial(gymnasium, kind="AsyncVectorEnv"),
    "memory": memory,
}


if __name__ == "__main__":
    name, env, envs, workers = sys.argv[1:]
    answer(lambda: CONTENDERS[name](Case(env, int(envs), int(workers))))
