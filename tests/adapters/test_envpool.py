"""EnvPool's envs as a gymnasium vector env: with a stand-in for EnvPool, and with the real one."""

import importlib.util
import sys
import types

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode
from made_up import same
from recipes_in_tests import recipe

import pysampler

REAL = pytest.param(
    "EnvPool",
    marks=pytest.mark.skipif(
        importlib.util.find_spec("envpool") is None, reason="envpool (740 MB) is not installed"
    ),
)
pytestmark = pytest.mark.filterwarnings("ignore:.*precision lowered by casting")
LIMIT = 5


class Pool:
    """What the adapter uses of an object of EnvPool: episodes of some steps, which are observed."""

    def __init__(self, task_id, *, env_type, num_envs, batch_size=0, seed=42):
        assert (task_id, env_type) == ("CartPole-v1", "gymnasium")
        self.config = {"num_envs": num_envs, "batch_size": batch_size}
        self.observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float32)
        self.action_space = spaces.Discrete(2, dtype=np.int32)
        seeds = [seed + i for i in range(num_envs)] if isinstance(seed, int) else seed
        self._rngs = [np.random.default_rng(one) for one in seeds]
        self._at = np.full(num_envs, -1)
        self._seen = np.zeros((num_envs, 2), np.float32)
        self._queue = []
        self.closed = False

    def _begin(self, i):
        self._at[i] = 0
        self._seen[i] = self._rngs[i].random(), 0
        return i, 0.0, False, False

    def _advance(self, i, action):
        if self._at[i] in (-1, LIMIT):
            return self._begin(i)
        self._at[i] += 1
        self._seen[i, 1] += action
        return i, float(action), False, self._at[i] == LIMIT

    def send(self, actions, env_id=None):
        assert actions.dtype == np.int32
        ids = range(len(self._at)) if env_id is None else env_id.tolist()
        self._queue += [self._advance(i, a) for i, a in zip(ids, actions, strict=True)]

    def async_reset(self):
        self._queue += map(self._begin, range(len(self._at)))

    def recv(self):
        size = self.config["batch_size"] or len(self._at)
        some, self._queue = self._queue[-size:], self._queue[:-size]
        return self._returned(some)

    def _returned(self, some):
        ids, rewards, terminated, truncated = map(np.array, zip(*some, strict=True))
        ids = ids.astype(np.int32)
        infos = {
            "env_id": ids,
            "players": {"env_id": ids},
            "elapsed_step": self._at[ids].astype(np.int32),
        }
        return self._seen[ids], rewards.astype(np.float32), terminated, truncated, infos

    def step(self, actions):
        self.send(actions)
        return self.recv()

    def reset(self, env_id=None):
        ids = range(len(self._at)) if env_id is None else env_id.tolist()
        observations, *_, infos = self._returned([self._begin(i) for i in ids])
        return observations, infos

    def close(self):
        self.closed = True


@pytest.fixture(params=["a stand-in", REAL])
def adapter(request, monkeypatch):
    """Return the adapter's class."""
    if request.param == "a stand-in":
        module = types.SimpleNamespace(make=Pool)
        monkeypatch.setitem(sys.modules, "envpool", module)
    return recipe("envpool_envs").VectorEnv


def test_interface_is_gymnasiums(adapter):
    envs = adapter("CartPole-v1", 4)
    assert isinstance(envs, gym.vector.VectorEnv)
    assert envs.metadata["autoreset_mode"] is AutoresetMode.NEXT_STEP
    assert envs.observation_space.shape == (4, *envs.single_observation_space.shape)
    observations, infos = envs.reset(seed=3)
    assert observations in envs.observation_space
    assert infos["_elapsed_step"].all()
    assert "env_id" not in infos
    for actions in np.ones((3, 4), np.int64):
        observations, rewards, terminated, truncated, infos = envs.step(actions)
        assert (rewards.dtype, terminated.dtype, truncated.dtype) == (np.float64, bool, bool)
    assert list(infos["elapsed_step"]) == [3] * 4
    envs.close()
    envs.close()


def test_fewer_episodes_than_envs_are_evaluated(adapter):
    envs = adapter("CartPole-v1", 4)
    found = pysampler.evaluate(envs, lambda o: np.ones(len(o), int), 2, seed=1)
    assert len(found.returns) == 2
    envs.close()


def test_seeds_repeat_episodes(adapter):
    envs = adapter("CartPole-v1", 3, seed=8)
    runs = []
    for seed in (5, 6, [5, 6, 7], np.int64(5), 2**40 + 5):
        runs.append([envs.reset(seed=seed)[0]])
        runs[-1] += [envs.step(np.ones(3, int))[0] for _ in range(12)]
    for run in runs[2:]:
        same(run, runs[0])
    assert (runs[0][0] != runs[1][0]).any()
    envs.close()


MISTAKES = {
    "options": lambda e: e.reset(options={"low": 1}),
    "too few actions": lambda e: e.step(np.ones(3, int)),
    "too many actions": lambda e: e.step(np.ones(5, int)),
    "an action outside": lambda e: e.step(np.array([0, 1, 7, 0])),
    "fractions": lambda e: e.step(np.full(4, 0.9)),
}


@pytest.mark.parametrize("what", MISTAKES)
def test_mistakes_raise_and_change_nothing(what, adapter):
    envs, other = adapter("CartPole-v1", 4), adapter("CartPole-v1", 4)
    same(envs.reset(seed=1)[0], other.reset(seed=1)[0])
    with pytest.raises((ValueError, TypeError), match="EnvPool takes no|actions |Cannot cast"):
        MISTAKES[what](envs)
    same(envs.step(np.ones(4, int))[:4], other.step(np.ones(4, int))[:4])
    envs.close()
    other.close()


def test_rollouts_and_pysamplers_vector_env_take_it(adapter):
    def policy(observations):
        return np.ones(len(observations), np.int64)

    with pysampler.Rollouts(adapter("CartPole-v1", 4), policy, horizon=8, seed=1) as rollouts:
        collected = [np.array(next(rollouts).valid) for _ in range(3)]
    assert {valid.shape for valid in collected} == {(8, 4)}
    assert sum(valid.sum() for valid in collected) < 96  # some steps only reset an env
    plain = adapter("CartPole-v1", 4)
    nested = pysampler.VectorEnv([lambda: adapter("CartPole-v1", 4)], num_workers=0)
    first = plain.reset(seed=2)[0]
    same(nested.reset(seed=2)[0], first)
    for _ in range(12):
        same(nested.step(np.ones(4, int))[:4], plain.step(np.ones(4, int))[:4])
    nested.close()
    plain.close()
