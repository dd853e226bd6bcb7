"""Fast paths for common types return the same results as gymnasium; slow infos are logged."""

import gc
import logging
import os
import time
from http import HTTPStatus
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_checker import data_equivalence
from made_up import same
from vectors import begun

import pysampler
from pysampler._frames import infos


class Typed(gym.Env):
    """Returns observations, rewards and infos of changing types."""

    observation_space = gym.spaces.Box(-1, 1, (4,), np.float32)

    def __init__(self, first, actions):
        self.first, self.t = first, 0
        self.action_space = actions

    def step(self, action):
        self.t += 1
        self.action = action
        rewards = [np.float32(0.1), 1, np.array(2.5, np.float32), np.int64(3), 2.0, np.bool_(1)]
        return self.observation(), rewards[self.t % 6], False, self.t % 7 == 0, self.info()

    def reset(self, *, seed=None, options=None):
        self.t = self.first
        return self.observation(), self.info()

    def observation(self):
        wide = np.array([self.t, 0.1, 0.2, 0.3]) / 100
        narrow = wide.astype(np.float32)
        whole = np.array([0, 1, 0, -1], np.int16)
        return [wide, list(wide), narrow, tuple(narrow), whole, whole.tolist(), wide[::-1]][
            self.t % 7
        ]

    def info(self):
        info = {"flag": np.bool_(self.t % 2), "half": np.float32(self.t), "many": np.ones(300)}
        if self.t % 5 == 0:
            info["flag"] = True
        if self.t % 3 == 0:
            del info["flag"]
        return info


ACTIONS = [
    (gym.spaces.Discrete(3), [[0, 1, 2, 0], (1, 1, 1, 1), [np.int64(1)] * 4, [True, 0, 1, 2]]),
    (gym.spaces.Box(-1, 1, (2,)), [[[0.5, 1.0]] * 4, [[1, 0]] * 4, [np.ones(2, np.float32)] * 4]),
    (gym.spaces.Box(-1, 1, ()), [[0.5, 0.25, 1.0, -1.0], [0.5, 1, 0, 0]]),
]


@pytest.mark.parametrize(("space", "batches"), ACTIONS)
@pytest.mark.parametrize("num_workers", [0, 2])
def test_results_and_actions_match_sync_vector_env(space, batches, num_workers):
    env_fns = [lambda first=i: Typed(first, space) for i in range(4)]
    theirs = gym.vector.SyncVectorEnv(env_fns)
    with pysampler.VectorEnv(env_fns, num_workers=num_workers) as ours:
        for one, other in zip(theirs.reset(), ours.reset(), strict=True):
            assert data_equivalence(one, other)
        for t in range(30):
            actions = batches[t % len(batches)]
            for one, other in zip(theirs.step(actions), ours.step(actions), strict=True):
                assert data_equivalence(one, other), t
            given = zip(theirs.get_attr("action"), ours.get_attr("action"), strict=True)
            for one, other in given:
                assert type(one) is type(other)
                assert np.array_equal(one, other)


def test_lists_of_numbers_are_not_sent_as_messages(monkeypatch):
    with begun([lambda: gym.make("CartPole-v1")] * 4, num_workers=2) as envs:
        monkeypatch.setattr(envs, "_send_objects", lambda *_: pytest.fail("sent as a message"))
        envs.step([0, 1, 1, 0])
        envs.step((np.int64(0),) * 4)
        envs.send([1, 0, 0, 1], [2, 3, 0, 1])
        envs.recv()


def test_observation_overflow_warns_as_numpy_does():
    class Large(Typed):
        def observation(self):
            return np.full(4, 1e300)

    with (
        pysampler.VectorEnv([lambda: Large(0, gym.spaces.Discrete(2))], num_workers=0) as envs,
        np.errstate(over="warn"),
        pytest.warns(RuntimeWarning, match="overflow"),
    ):
        assert np.isinf(envs.reset()[0]).all()


class WithInfo(gym.Wrapper):
    """CartPole that returns this info from each step."""

    def __init__(self, info):
        super().__init__(gym.make("CartPole-v1"))
        self.info = info

    def step(self, action):
        *results, _ = self.env.step(action)
        return *results, self.info


def messages(envs, steps):
    """Step some times; return the number of messages in the last step."""
    envs.reset()
    for _ in range(steps):
        envs.step_async(np.zeros(envs.num_envs, np.int64))
        count = len(envs._pool.wait())
        envs.step_wait()
    return count


def test_many_infos_and_numpy_bools_travel_in_the_frame():
    info = {f"x{i}": float(i) for i in range(300)} | {"success": np.bool_(1), "s": "abc"}
    with pysampler.VectorEnv([lambda: WithInfo(info)] * 2, num_workers=1) as envs:
        assert messages(envs, 3) == 0


@pytest.mark.parametrize(
    ("info", "why"),
    [
        ({"image": np.ones(1 << 20)}, "no space left"),
        ({"a": {"name": "x" * 1000}}, "['a']['name']"),
    ],
)
def test_slow_infos_are_logged_once(info, why, caplog, monkeypatch):
    monkeypatch.setattr(infos, "_WARN_AFTER", 5)
    monkeypatch.setattr(infos, "_logged", set())
    with pysampler.VectorEnv([lambda: WithInfo(info)] * 2, num_workers=1) as envs:
        with caplog.at_level(logging.WARNING, "pysampler"):
            assert messages(envs, 6) == 1
        [record] = caplog.records
        assert "pickled with every step" in record.getMessage()
        assert why in record.getMessage()


@pytest.mark.parametrize("num_workers", [0, 2])
def test_strings_and_enums_in_infos_match_gymnasium(num_workers):
    info = {"s": "abc", "e": HTTPStatus.OK, "n": None, "t": ("x", 1), "in": {"s": b""}}
    with pysampler.VectorEnv([lambda: WithInfo(info)] * 3, num_workers=num_workers) as ours:
        theirs = gym.vector.SyncVectorEnv([lambda: WithInfo(info)] * 3)
        for envs in (ours, theirs):
            envs.reset(seed=1)
        for _ in range(60):
            actions = np.ones(3, np.int64)
            same(ours.step(actions), theirs.step(actions))
        if num_workers > 0:
            assert messages(ours, 3) == 0


class Waits:
    """Its pickling blocks until a file exists."""

    def __init__(self, folder):
        self.folder = folder

    def __reduce__(self):
        (self.folder / "begun").touch()
        while not (self.folder / "go").exists():
            time.sleep(0.001)
        return str, ("gone",)


def test_mail_is_sent_before_the_step_completes(tmp_path):
    with begun([lambda: WithInfo({"x": Waits(tmp_path)})] * 2, num_workers=1) as envs:
        envs.step_async(np.zeros(2, np.int64))
        while not (tmp_path / "begun").exists():
            time.sleep(0.001)
        assert envs._pool.ready == 0  # else the parent would wake up only to wait for the message
        (tmp_path / "go").touch()
        assert envs.step_wait()[4]["x"].tolist() == ["gone"] * 2


def test_memory_for_infos_is_allocated_on_demand():
    with pysampler.VectorEnv([lambda: WithInfo({"x": 1.0})] * 8, num_workers=2) as envs:
        options = {"horizon": 512, "info_keys": ["x"]}
        with pysampler.Rollouts(envs, lambda o: np.zeros(len(o), np.int64), **options) as rollouts:
            taken = []
            for _ in range(2):
                next(rollouts)
                taken.append(os.fstat(envs._core.results.frames._segment.fd).st_blocks * 512)
            frames = envs._core.results.frames
            assert taken[1] - taken[0] < frames.count * frames.envs * 9 + (1 << 16)
            assert taken[1] < frames.plan.size + frames.plan.infos // 8


@pytest.mark.slow
def test_idle_worker_does_not_wake_up():
    with begun([lambda: gym.make("CartPole-v1")] * 2, num_workers=1) as envs:
        [pid] = envs._pool.pids
        since, switches = time.monotonic(), ""
        while time.monotonic() - since < 0.5:  # it once woke every 50 ms
            lines = Path(f"/proc/{pid}/status").read_text().splitlines()
            now = next(line for line in lines if line.startswith("voluntary"))
            if now != switches:
                since, switches = time.monotonic(), now
            time.sleep(0.01)
        envs.step(envs.action_space.sample())


class Looking(gym.Env):
    """Reports whether its spaces keep their attributes in a dict, which slows their lookup."""

    def __init__(self):
        self.observation_space = gym.spaces.Box(-1, 1, (4,), np.float32)
        self.action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        spaces = self.observation_space, self.action_space
        dicts = [any("dtype" in d for d in gc.get_referents(s) if type(d) is dict) for s in spaces]
        return np.zeros(4, np.float32), {"in dicts": sum(dicts)}

    def step(self, action):
        return np.zeros(4, np.float32), 0.0, False, False, {}


@pytest.mark.parametrize("num_workers", [0, 1])
def test_pickling_spaces_does_not_slow_their_attributes(num_workers):
    with pysampler.VectorEnv([Looking] * 4, num_workers=num_workers) as envs:
        # Of equal spaces only the first is pickled, to send it to this process.
        assert envs.reset()[1]["in dicts"][1:].tolist() == [0, 0, 0]
