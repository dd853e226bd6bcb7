"""Envs whose episodes end by a script, and their rollouts made by a plain loop."""

import contextlib
import os
import threading
import time
from collections import defaultdict

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv


class Scripted(gym.Env):
    """Observes (its seed, episode, steps, last action); ends episodes by its script.

    The n-th character of ``script`` is for the n-th step of its life: "." the episode continues,
    "t" terminated, "c" cut off (truncated), "b" both; then the script repeats. ``slow``: seconds
    that a step takes.
    """

    observation_space = spaces.Box(-(2.0**40), 2.0**40, (4,), np.float64)

    def __init__(self, script=".", slow=0.0, action_space=None):
        self.action_space = action_space or spaces.Box(-10, 10, (2,), np.float32)
        self.script = script
        self.slow = slow
        self.life = 0
        self.episode = -1
        self.seed = -1

    def _observe(self, action=0.0):
        return np.array([self.seed, self.episode, self.steps, action], np.float64)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.seed = self.seed if seed is None else seed
        self.episode += 1
        self.steps = 0
        return self._observe(), {"life": -self.life}

    def step(self, action):
        if self.slow:
            time.sleep(self.slow)  # a slow env
        end = self.script[self.life % len(self.script)]
        self.life += 1
        self.steps += 1
        action = float(np.sum(action))
        reward = self.life + action / 7
        info = {"life": self.life, "half": np.full(2, self.life / 2, np.float32)}
        return self._observe(action), reward, end in "tb", end in "cb", info


class Mortal(gym.Env):
    """Observes (seed, steps); dies, raises or hangs in step ``at`` of its life."""

    observation_space = spaces.Box(-(2.0**40), 2.0**40, (2,), np.float64)
    action_space = spaces.Box(-1, 1, (1,), np.float64)

    def __init__(self, fault=None, at=-1, mark=None):
        self.fault, self.at, self.mark = fault, at, mark
        self.life = 0
        self.seed = -1

    def _observe(self):
        return np.array([self.seed, self.steps], np.float64)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.seed = self.seed if seed is None else seed
        self.steps = 0
        return self._observe(), {}

    def step(self, action):
        self.life += 1
        self.steps += 1
        # Only the first time: its replacement finds the mark.
        if self.life == self.at and (self.mark is None or not self.mark.exists()):
            if self.mark is not None:
                self.mark.touch()
            if self.fault == "die":
                os._exit(7)
            if self.fault == "raise":
                raise ValueError("told to")
            if self.fault == "hang":
                threading.Event().wait()
        return self._observe(), 1.0, False, False, {}


class Gated(gym.Env):
    """Ends an episode in each step; a step first takes a byte from the FIFO ``gate``, if any."""

    observation_space = spaces.Box(0, 1, (1,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self, gate=None):
        self.gate = None if gate is None else os.open(gate, os.O_RDWR)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(1, np.float32), {}

    def step(self, action):
        if self.gate is not None:
            os.read(self.gate, 1)
        return np.ones(1, np.float32), 1.0, True, False, {}

    def close(self):
        if self.gate is not None:
            os.close(self.gate)


@contextlib.contextmanager
def gate_in(folder):
    """Yield the path of a FIFO for ``Gated`` and a function that lets one step pass."""
    path = folder / "gate"
    os.mkfifo(path)
    end = os.open(path, os.O_RDWR)
    try:
        yield path, lambda: os.write(end, b"1")
    finally:
        os.close(end)


def policy(observations):
    """Return actions and extras that depend only on the observations, and differ by them."""
    x = observations.sum(axis=-1)
    actions = np.stack([np.sin(x), np.cos(x)], axis=-1).astype(np.float32)
    return actions, {"value": (x / 3).astype(np.float32), "pair": np.stack([x, -x], axis=-1)}


class Counting:
    """A policy with a state: the steps since the episode began, and decaying sums."""

    def initial_state(self, count):
        return {"steps": np.zeros(count, np.int64), "seen": (np.full((count, 2), 0.5),)}

    def __call__(self, observations, state):
        actions = (state["seen"][0] + state["steps"][:, None]).astype(np.float32)
        seen = state["seen"][0] * 0.5 + observations[:, 2:]
        new = {"steps": state["steps"] + 1, "seen": (seen,)}
        return actions, {"value": seen.sum(axis=1), "state": new}


def slow_rollout(env_fns, policy, steps, seed, *, stateful=False):
    """Return the expected rollout: a plain loop over gymnasium's SyncVectorEnv."""
    envs = SyncVectorEnv(env_fns, autoreset_mode=AutoresetMode.SAME_STEP)
    count = envs.num_envs
    observations, _ = envs.reset(seed=seed)
    names = ["observations", "actions", "rewards", "terminated", "truncated"]
    rows = {name: [] for name in (*names, "final", "life", "starts")}
    extras, states = {}, []
    state = policy.initial_state(count) if stateful else None
    starts = np.ones(count, bool)
    returns, lengths, ended = np.zeros(count), np.zeros(count, int), []
    for step in range(steps):
        actions, outputs = policy(observations, state) if stateful else policy(observations)
        outputs = dict(outputs)
        if stateful:
            states.append(state)
            state = outputs.pop("state")
        for name, value in outputs.items():
            extras.setdefault(name, []).append(value)
        after, rewards, terminated, truncated, infos = envs.step(actions)
        over = terminated | truncated
        final = np.zeros_like(after)
        life = np.array(infos.get("life", np.zeros(count, int)))
        for env in np.flatnonzero(over):
            final[env] = infos["final_obs"][env]
            life[env] = infos["final_info"]["life"][env]
        returns, lengths = returns + rewards, lengths + 1
        ended += [(step, env, returns[env], lengths[env]) for env in np.flatnonzero(over)]
        returns[over], lengths[over] = 0, 0
        values = (observations, actions, rewards, terminated, truncated, final, life, starts)
        for name, value in zip(rows, values, strict=True):
            rows[name].append(value)
        if stateful:
            fresh = policy.initial_state(count)
            state["steps"] = np.where(over, fresh["steps"], state["steps"])
            seen = np.where(over[:, None], fresh["seen"][0], state["seen"][0])
            state["seen"] = (seen,)
        observations, starts = after, over
    envs.close()
    result = {name: np.array(values) for name, values in rows.items()}
    result["extras"] = {name: np.array(values) for name, values in extras.items()}
    result["states"] = states
    result["ended"] = ended
    result["last"] = observations
    return result


def by_env(batches):
    """Return the rows of each env; assert that their numbers are complete and in order."""
    rows = defaultdict(list)
    for batch in batches:
        for row in batch.rows:
            rows[int(row["env"])].append(row.copy())
    for env, mine in rows.items():
        numbers = [int(row["number"]) for row in mine]
        assert numbers == list(range(len(numbers))), (env, numbers)
    return rows
