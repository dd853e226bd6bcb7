"""Each call of a vector env works after its workers were replaced as it does before."""

import functools
import os
import signal

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from made_up import same
from told_envs import SmallEnv
from vectors import begun

import pysampler
from pysampler.errors import EnvError

LARGE = 40_000  # bytes: more than a worker's outbox takes
HOW = {
    "one worker": {"num_workers": 1},
    "groups": {"num_workers": 1, "groups": 2},
    "a worker here": {"num_workers": 1, "main_envs": 1},
}


class Large(gym.Env):
    """Has large infos, pictures, states and errors, which depend on its seed and its steps."""

    metadata = {"render_modes": ["rgb_array"]}  # noqa: RUF012
    observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float64)
    action_space = spaces.Discrete(4)
    render_mode = "rgb_array"

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.at = self.np_random.integers(0, 100, LARGE, np.uint8)
        self.task = (options or {}).get("task", 0)
        return self.observe(), {"text": self.at.tobytes(), "task": self.task}

    def observe(self):
        return np.array([self.at[0], self.task], np.float64)

    def step(self, action):
        if action == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        self.at = self.at + np.uint8(1 + action)
        if action == 2:
            error = ValueError("broken")
            error.at = self.at
            raise error
        over = bool(self.at[0] % 7 == 0)
        return self.observe(), float(self.at[1]), over, False, {"text": self.at.tobytes()}

    def render(self):
        return self.at[:30_000].reshape(100, 100, 3)

    def get_state(self):
        return {"at": self.at, "task": self.task, "rng": self.np_random.bit_generator.state}

    def set_state(self, state):
        self.at, self.task = state["at"], state["task"]
        self.np_random.bit_generator.state = state["rng"]


def stepped(envs, action=1, count=3):
    return [envs.step(np.full(4, action)) for _ in range(count)]


def restored(envs):
    states = envs.get_state()
    first = stepped(envs)
    envs.set_state(states)
    return first, stepped(envs)


def failed(envs):
    with pytest.raises(EnvError, match="broken") as caught:
        envs.step(np.array([1, 1, 2, 1]))
    error = caught.value
    return error.env, error.at, error.results, stepped(envs, count=1)


def with_options(envs):
    envs.set_options([1, 2], [{"task": 5}, {"task": 6}])
    infos = [envs.reset(seed=4)[1], envs.reset(options={"task": 7}, seed=5)[1]]
    return [one["task"] for one in infos]


def sent(envs):
    envs.send(np.ones(4, int))
    found = {}
    while len(found) < 4:
        observations, rewards, *_, infos = envs.recv(min_envs=1)
        found |= {
            int(i): (o, r) for i, o, r in zip(infos["env_id"], observations, rewards, strict=True)
        }
    return [found[i] for i in range(4)]


def masked(envs):
    stepped(envs)
    return envs.reset(options={"reset_mask": np.array([True, False, False, True])}, seed=9)


CALLS = {
    "step": stepped,
    "apply": lambda envs: envs.apply(lambda env: env.unwrapped.at),
    "apply to some": lambda envs: envs.apply(lambda env, n: env.unwrapped.at[:n], 20_000, envs=[3]),
    "get_attr": lambda envs: envs.get_attr("at"),
    "set_attr": lambda envs: (envs.set_attr("task", [1, 2, 3, 4]), stepped(envs)),
    "call": lambda envs: envs.call("observe"),
    "render": lambda envs: envs.render(),
    "states": restored,
    "error": failed,
    "options": with_options,
    "send": sent,
    "reset some": masked,
    "chunk": lambda envs: envs.step_chunk(np.ones((4, 3), int)),
}


@pytest.mark.slow
@pytest.mark.parametrize("recycles", [False, True], ids=["lost", "renewed"])
@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("how", HOW)
def test_a_call_does_the_same_after_workers_were_replaced(how, call, recycles):
    found = []
    for replaced in (False, True):
        options = {"recycle_after": 1} if recycles and replaced else {}
        with pysampler.VectorEnv(
            [Large] * 4, on_worker_loss="restart", autoreset_mode="Disabled", **HOW[how], **options
        ) as envs:
            envs.reset(seed=1)
            workers = set(envs._pool.pids)
            if replaced and recycles:
                for seed in range(3):
                    envs.reset(seed=seed)
            elif replaced:
                for i in range(4):
                    if envs.apply(lambda _: os.getpid())[i] in workers:
                        envs.step(np.where(np.arange(4) == i, 3, 0))
                        envs.reset(seed=1)
            if replaced:
                assert not workers & set(envs._pool.pids)
            envs.reset(seed=2)
            found.append(CALLS[call](envs))
    same(*found)


class Stateful(SmallEnv):
    """Observes a random number, and has a state."""

    def observe(self):
        return np.array([self.np_random.random() if self.steps == 0 else 0, self.steps])

    def ends(self, action):
        return self.steps == 2

    def get_state(self):
        return self.steps, self.np_random.bit_generator.state

    def set_state(self, state):
        self.steps, self.np_random.bit_generator.state = state


@pytest.mark.parametrize("native", [False, True])
def test_restored_env_draws_the_numbers_of_its_state_after_a_loss(native):
    """Not those of the seed that its replacement got for its next reset."""
    make = functools.partial(gym.make, "CartPole-v1", max_episode_steps=2) if native else Stateful
    found = []
    for loses in (False, True):
        with begun([make], num_workers=1, on_worker_loss="restart", seed=1) as envs:
            states = envs.get_state()
            if loses:
                os.kill(envs._pool.pids[0], signal.SIGKILL)
            envs.step(np.zeros(1, int))
            envs.set_state(states)
            found.append([envs.step(np.zeros(1, int))[0] for _ in range(3)])
    same(*found)


def test_seeds_of_replacements_outlast_a_call_that_ends_their_batch():
    found = []
    for _ in range(2):
        make = functools.partial(gym.make, "CartPole-v1")
        with begun([make] * 2, num_workers=1, on_worker_loss="restart", seed=1) as envs:
            os.kill(envs._pool.pids[0], signal.SIGKILL)
            envs.step(np.zeros(2, int))
            envs.apply(bool)
            found.append(envs.reset()[0])
    same(*found)
