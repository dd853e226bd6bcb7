"""Tianshou's collectors collect the same from the recipe's vector env as from their own."""

import os

import gymnasium as gym
import numpy as np
import pytest
from made_up import SpaceEnv
from recipes_in_tests import recipe

os.environ.setdefault("NUMBA_DISABLE_JIT", "1")  # to compile takes longer than all tests
pytest.importorskip("tianshou")
from tianshou.algorithm.algorithm_base import Policy
from tianshou.data import AsyncCollector, Batch, Collector, VectorReplayBuffer
from tianshou.env import DummyVectorEnv, VectorEnvNormObs

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]  # workers import torch

VectorEnv = recipe("tianshou_dqn").VectorEnv


class Lean(Policy):
    """Push the cart to where the pole leans."""

    def forward(self, batch, state=None, **kwargs):
        hidden = np.zeros(len(batch.obs))
        return Batch(act=(batch.obs[:, 2] > 0).astype(int), state=Batch(hidden=hidden))


def cartpole():
    return gym.make("CartPole-v1", max_episode_steps=40)


def both(env_fn=cartpole, envs=4, **options):
    return VectorEnv([env_fn] * envs, num_workers=2, **options), DummyVectorEnv([env_fn] * envs)


def close(*all_envs):
    for envs in all_envs:
        envs.close()


def collector(kind, envs):
    policy = Lean(action_space=gym.spaces.Discrete(2))
    return kind(policy, envs, VectorReplayBuffer(4000, len(envs)))


@pytest.mark.parametrize("much", [{"n_step": 600}, {"n_episode": 11}])
def test_a_collector_collects_the_same_as_from_tianshous_envs(much):
    buffers, stats = [], []
    made = both()
    for envs in made:
        one = collector(Collector, envs)
        envs.seed(5)
        one.reset()
        stats.append(one.collect(**much))
        buffers.append(one.buffer)
    assert stats[0].n_collected_steps == stats[1].n_collected_steps > 200
    np.testing.assert_array_equal(stats[0].returns, stats[1].returns)
    ours, theirs = buffers
    for name in ("obs", "act", "rew", "terminated", "truncated", "done", "obs_next"):
        a, b = ours[:][name], theirs[:][name]
        np.testing.assert_array_equal(a, b)
        assert a.dtype == b.dtype
    assert ours[:].truncated.any()
    assert ours[:].terminated.any()
    close(*made)


@pytest.mark.parametrize("options", [{"wait_num": 2}, {"timeout": 0.001}])
def test_an_async_collector_collects_whole_episodes(options):
    envs = VectorEnv([cartpole] * 4, num_workers=2, **options)
    one = collector(AsyncCollector, envs)
    for _ in range(2):  # the second collect begins with steps under way
        one.reset()
        stats = one.collect(n_step=400)
        assert stats.n_collected_steps >= 400
        assert stats.n_collected_episodes == len(stats.returns) > 0
        assert (stats.returns == stats.lens).all()
        steps = one.buffer[:]
        # The next observation is the following row's observation unless the episode ended.
        for env in range(4):
            rows = steps[steps.info["env_id"] == env]
            goes_on = ~rows.done[:-1]
            np.testing.assert_array_equal(rows.obs[1:][goes_on], rows.obs_next[:-1][goes_on])
    close(envs)


def same_results(ours, theirs):
    """Compare all but the number types in infos."""
    for a, b in zip(ours[:-1], theirs[:-1], strict=True):
        np.testing.assert_array_equal(a, b)
        assert a.dtype == b.dtype
    assert list(ours[-1]) == list(theirs[-1])


def test_envs_are_stepped_and_reset_by_their_ids():
    made = both()
    ours, theirs = made
    assert len(ours) == 4
    same_results(*(envs.reset(seed=3) for envs in made))
    for ids in ([2, 0], np.array([3]), 1, None):
        actions = np.ones(4 if ids is None else np.size(ids), int)
        same_results(*(envs.step(actions, ids) for envs in made))
    same_results(*(envs.reset([3, 1], seed=4) for envs in made))
    same_results(*(envs.step(np.zeros(4, int)) for envs in made))
    assert ours.seed(8) == theirs.seed(8) == [[8], [9], [10], [11]]
    same_results(*(envs.step(np.zeros(4, int)) for envs in made))
    close(*made)


def test_dict_observations_are_an_array_of_dicts():
    space = gym.spaces.Dict(a=gym.spaces.Box(0, 1, (2,)), b=gym.spaces.Discrete(5))
    made = both(lambda: SpaceEnv(space))
    for results in zip(*(envs.reset(seed=1) for envs in made), strict=True):
        assert [array.dtype for array in results] == [np.dtype(object)] * 2
    ours, theirs = (Batch(envs.step(np.zeros(4, int))[0]) for envs in made)
    assert ours.a.shape == theirs.a.shape
    assert ours.b.tolist() == theirs.b.tolist()
    np.testing.assert_array_equal(ours.a, theirs.a)
    close(*made)


def test_step_returns_the_first_ready_envs():
    envs = VectorEnv([cartpole] * 4, wait_num=2, num_workers=2)
    assert envs.is_async
    envs.reset(seed=1)
    *_, infos = envs.step(np.ones(4, int))
    ready = [info["env_id"] for info in infos]
    assert len(ready) >= 2
    assert sorted(ready + envs.waiting_id) == [0, 1, 2, 3]
    assert sorted(envs.ready_id) == sorted(ready)
    if envs.waiting_id:
        with pytest.raises(AssertionError, match="stepping now"):
            envs.step(np.ones(1, int), envs.waiting_id[:1])
        rest = envs.step(None, envs.waiting_id)[-1]
        assert sorted([info["env_id"] for info in rest] + ready) == [0, 1, 2, 3]
    assert envs.waiting_id == []
    close(envs)


class Gated(SpaceEnv):
    """Its step waits until a file exists."""

    def __init__(self, gate):
        super().__init__(gym.spaces.Discrete(3))
        self.gate = gate

    def step(self, action):
        import time

        while not self.gate.exists():
            time.sleep(0.001)  # there is nothing to wait on: another process makes the file
        return super().step(action)


@pytest.mark.parametrize("options", [{"wait_num": 1}, {"timeout": 0.01}])
def test_other_envs_reset_and_step_during_a_long_step(options, tmp_path):
    gates = [tmp_path / "quick", tmp_path / "slow"]
    gates[0].touch()
    envs = VectorEnv([lambda g=g: Gated(g) for g in gates], num_workers=2, **options)
    envs.reset()
    infos = envs.step(np.zeros(2, int))[-1]
    assert [info["env_id"] for info in infos] == [0]
    for _ in range(3):
        assert envs.reset(0)[0].shape == (1,)
        infos = envs.step(np.zeros(1, int), [0])[-1]
        assert [info["env_id"] for info in infos] == [0]
    assert envs.waiting_id == [1]
    gates[1].touch()
    assert envs.get_env_attr("infos", 0) == ["none"]  # waits for the step but keeps its results
    assert [info["env_id"] for info in envs.step(None, [1])[-1]] == [1]
    assert envs.waiting_id == []
    close(envs)


def test_env_attributes_can_be_read_and_set():
    envs = VectorEnv([cartpole] * 3, num_workers=1)
    assert envs.action_space == [gym.spaces.Discrete(2)] * 3
    envs.set_env_attr("gravity", 5.0, [0, 2])
    assert envs.get_env_attr("gravity") == [5.0, 9.8, 5.0]
    assert envs.get_env_attr("gravity", 2) == [5.0]
    envs.close()
    with pytest.raises(AssertionError, match="closed|cannot be called after close"):
        envs.reset()


# -- envs that Tianshou's own vector envs take -----------------------------------------------------


class Right(gym.Env):
    """Counts up to ``size``; the bounds of its space depend on ``size``."""

    action_space = gym.spaces.Discrete(2)

    def __init__(self, size, *, nested=False):
        self.size = size
        self.nested = nested
        index = gym.spaces.Box(0, size, (1,), np.float32)
        self.observation_space = index
        if nested:
            part = gym.spaces.Discrete(2)
            inner = gym.spaces.Dict(part=part, noise=gym.spaces.Box(0, 1, (1, 2), np.float64))
            self.observation_space = gym.spaces.Dict(index=index, inner=inner)

    def observe(self):
        index = np.array([self.at], np.float32)
        if not self.nested:
            return index
        part = np.int64(self.at % 2)
        return {"index": index, "inner": {"part": part, "noise": self.np_random.random((1, 2))}}

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.at = 0
        return self.observe(), {"_start": True}

    def step(self, action):
        self.at = max(self.at + 2 * int(action) - 1, 0)
        return self.observe(), 0.5, self.at == self.size, False, {"at": self.at}


def plain(value):
    """Return arrays and tuples as lists, to compare them."""
    if isinstance(value, np.ndarray):
        return plain(list(value)) if value.dtype == object else value.tolist()
    if isinstance(value, dict):
        return {key: plain(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(part) for part in value]
    return value


def sized(env_class, sizes=(2, 3, 5), peer=DummyVectorEnv, **options):
    fns = [lambda size=size: env_class(size, **options) for size in sizes]
    return VectorEnv(fns, num_workers=2), peer(fns)


@pytest.mark.parametrize("nested", [False, True])
def test_spaces_may_differ_in_their_bounds(nested):
    ours, theirs = made = sized(Right, nested=nested)
    assert ours.observation_space == theirs.observation_space
    results, ended = [envs.reset(seed=3) for envs in made], 0
    for ids in (None, [2, 0], None, [1], None):
        for a, b in zip(*results, strict=True):
            assert plain(a) == plain(b)
            assert a.dtype == b.dtype
        results = [envs.step(np.ones(3 if ids is None else len(ids), int), ids) for envs in made]
        ended += results[0][2].sum()
    assert ended > 0
    close(*made)


def test_negative_ids_count_from_the_end():
    made = both()
    same_results(*(envs.reset(seed=3) for envs in made))
    same_results(*(envs.reset(-1, seed=5) for envs in made))
    for envs in made:
        infos = envs.step(np.ones(2, int), [-1, 0])[-1]
        assert [info["env_id"] % 4 for info in infos] == [3, 0]
        envs.set_env_attr("gravity", 5.0, [-2])
        assert envs.get_env_attr("gravity", [2, -1]) == [5.0, 9.8]
        with pytest.raises(IndexError):
            envs.step(np.zeros(1, int), [4])
    close(*made)


def test_infos_keep_keys_that_begin_with_an_underscore():
    made = sized(Right)
    for envs in made:
        _, infos = envs.reset()
        assert list(infos) == [{"_start": True}] * 3
    close(*made)


def test_tianshous_normalization_equals_that_of_its_own_envs():
    made = [VectorEnvNormObs(envs) for envs in sized(Right)]
    assert plain(made[0].reset(seed=1)) == plain(made[1].reset(seed=1))
    for _ in range(2):
        ours, theirs = (envs.step(np.ones(3, int)) for envs in made)
        assert plain(ours) == plain(theirs)
        ended = np.flatnonzero(ours[2])
        if len(ended) > 0:
            assert plain(made[0].reset(ended)) == plain(made[1].reset(ended))
    np.testing.assert_array_equal(made[0].get_obs_rms().mean, made[1].get_obs_rms().mean)
    close(*made)


def test_an_async_env_steps_by_returned_ids():
    envs = VectorEnv([lambda size=size: Right(size) for size in range(90, 98)], wait_num=4)
    assert len(envs.reset(seed=1)[1]) == 8
    counts = np.zeros(8, int)
    ids = np.arange(8)
    for _ in range(20):
        _, _, _, _, infos = envs.step([1] * len(ids), ids)
        ids = Batch(infos).env_id
        assert len(ids) >= 4
        assert len(set(ids)) == len(ids)
        counts[ids] += 1
        assert Batch(infos).at.tolist() == counts[ids].tolist()
    assert sorted(envs.waiting_id + envs.ready_id) == list(range(8))
    close(envs)
