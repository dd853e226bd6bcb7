"""Corner cases of rollouts: infos, losses, states, forks, threads and lending."""

import functools
import os
import threading

import numpy as np
import pytest
from scripted import Scripted, policy
from small_envs import Small, still

import pysampler
from pysampler.errors import BusyError, ClosedError, EnvError


def sampled(env_fns, horizon, count, policy=still, *, vector=None, **options):
    envs = pysampler.VectorEnv(env_fns, **{"num_workers": 2, **(vector or {})})
    with envs, pysampler.Rollouts(envs, policy, horizon, seed=0, **options) as rollouts:
        return [next(rollouts).copy() for _ in range(count)]


BOTH = pytest.mark.parametrize("where", ["main", "workers"])


def test_infos_that_are_not_numbers_are_masked():
    def info(env):
        return {"x": [env.steps / 1, None, "s", {}][env.steps % 4]}

    for rollout in sampled([functools.partial(Small, info=info)] * 2, 8, 3, info_keys=["x"]):
        mask = rollout.info_masks["x"][:, 0].tolist()
        assert mask == [False, False, False, True] * 2
        assert (rollout.infos["x"][3::4] % 4 == 0).all()


def test_returns_sum_only_their_own_rewards():
    def reward(env, action):
        return {2: -np.inf, 5: 1e17, 7: np.nan}.get(env.episodes, 1.0)

    make = functools.partial(Small, 2, reward=reward)
    ended = [r.ended for r in sampled([make], 6, 3, vector={"num_workers": 1})]
    returns = np.concatenate([one.returns for one in ended])
    np.testing.assert_array_equal(returns, [2, -np.inf, 2, 2, 2e17, 2, np.nan, 2, 2])


def test_states_are_matched_by_key():
    class Swapping:
        def initial_state(self, count):
            return {"h": np.ones(count), "c": -np.ones(count)}

        def __call__(self, observations, state):
            assert (state["h"] == 1 + observations[:, 0]).all()
            assert (state["c"] == -1 - observations[:, 0]).all()
            return still(observations), {"state": {"c": state["c"] - 1, "h": state["h"] + 1}}

    sampled([functools.partial(Small, 3)] * 2, 8, 2, Swapping())


def test_each_episode_calls_initial_state():
    class Drawing:
        asked = 0

        def initial_state(self, count):
            self.asked += 1
            return np.full(count, self.asked)

        def __call__(self, observations, state):
            return still(observations), {"state": state}

    [rollout] = sampled([functools.partial(Small, 3)], 9, 1, Drawing(), vector={"num_workers": 0})
    first, second, third = rollout.state[[0, 3, 6], 0]
    assert first < second < third
    assert rollout.state[:, 0].tolist() == [first] * 3 + [second] * 3 + [third] * 3


def test_extras_that_change_their_dtype_are_refused():
    left = [0, 0, 0.75]

    def policy(observations):
        value = left.pop(0) if left else 0
        return still(observations), {"value": np.full(len(observations), value)}

    envs = pysampler.VectorEnv([functools.partial(Small, 9)] * 2, num_workers=0)
    match = r"value of float64 \(\) a row, before int64"
    with pysampler.Rollouts(envs, policy, 5) as rollouts, pytest.raises(ValueError, match=match):
        next(rollouts)
    envs.close()


@BOTH
@pytest.mark.parametrize("what", ["next", "close", "drop"])
def test_a_forked_child_does_not_disturb_rollouts(where, what):
    make = functools.partial(Small, 9)
    envs = pysampler.VectorEnv([make] * 2, num_workers=2)
    rollouts = pysampler.Rollouts(envs, still, 5, overlap=True, seed=0, policy_in=where)
    next(rollouts)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            if what == "next":
                next(rollouts)
        except ClosedError:
            pass
        try:
            if what == "close":
                rollouts.close()
            del rollouts
            code = 0
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0
    for _ in range(3):
        assert next(rollouts).valid.all()
    rollouts.close()
    envs.close()


def test_concurrent_next_raises_busy_error():
    envs = pysampler.VectorEnv([functools.partial(Scripted, ".", 0.01)] * 2, num_workers=2)
    with envs, pysampler.Rollouts(envs, policy, 30) as rollouts:
        found = []
        thread = threading.Thread(target=lambda: found.append(next(rollouts)))
        before = envs._pool.busy_seconds()
        thread.start()
        while envs._pool.busy_seconds() == before:
            pass
        with pytest.raises(BusyError, match="another thread"):
            next(rollouts)
        thread.join()
        assert found[0].valid.all()


def test_options_may_be_set_during_an_overlapped_rollout():
    envs = pysampler.VectorEnv([functools.partial(Scripted, "t")] * 2, num_workers=2)
    with envs, pysampler.Rollouts(envs, policy, 4, overlap=True) as rollouts:
        versions = []
        for number in range(20):
            rollout = next(rollouts)
            versions += rollout.options.max(axis=1).tolist()
            envs.set_options(None, {"number": number, "large": list(range(10_000))})
            envs.stats()
        assert versions == sorted(versions)
        assert versions[-1] > 10


def test_closing_the_envs_ends_rollouts_after_an_evaluation():
    envs = pysampler.VectorEnv([functools.partial(Small, 2)] * 2, num_workers=2)
    rollouts = pysampler.Rollouts(envs, still, 5, overlap=True)
    next(rollouts)
    assert len(pysampler.evaluate(rollouts, still, 4).returns) == 4
    next(rollouts)
    envs.close()
    with pytest.raises(ClosedError):
        next(rollouts)
    with pytest.raises(ClosedError):
        pysampler.evaluate(rollouts, still, 4)


def test_closing_owned_envs_allows_closing_the_rollouts():
    rollouts = pysampler.Rollouts("CartPole-v1", lambda o: np.zeros(len(o), int), 4, num_envs=2)
    next(rollouts)
    rollouts.envs.close()
    rollouts.close()
    assert rollouts.envs.closed


def test_a_failed_start_of_the_next_rollout_keeps_this_one():
    class Growing:
        lock = None

        def __call__(self, observations):
            return still(observations)

    growing = Growing()
    envs = pysampler.VectorEnv([functools.partial(Small, 9)] * 2, num_workers=1)
    with envs, pysampler.Rollouts(envs, growing, 4, overlap=True, policy_in="workers") as rollouts:
        next(rollouts)
        growing.lock = threading.Lock()  # cannot be pickled
        assert next(rollouts).valid.all()
        with pytest.raises(TypeError, match="cannot send the policy"):
            next(rollouts)
        growing.lock = None
        assert next(rollouts).valid.all()


@pytest.mark.filterwarnings("ignore:.*Worker-0")
@pytest.mark.filterwarnings("ignore:.*Traceback")
@pytest.mark.filterwarnings("ignore:.*Raising the last")
def test_rollouts_retry_after_a_failed_first_reset():
    class Shy(Small):
        tries = 0

        def reset(self, **kwargs):
            Shy.tries += 1
            if Shy.tries == 1:
                raise RuntimeError("not yet")
            return super().reset(**kwargs)

    envs = pysampler.VectorEnv([lambda: Shy(4)], num_workers=0)
    with envs, pysampler.Rollouts(envs, still, 5) as rollouts:
        with pytest.raises(EnvError, match="not yet"):
            next(rollouts)
        assert next(rollouts).valid.all()


def test_a_policy_cannot_pause_the_rollouts_it_acts_for():
    def policy(observations):
        rollouts.pause()

    envs = pysampler.VectorEnv([Scripted] * 2, num_workers=0)
    with (
        pysampler.Rollouts(envs, policy, 4) as rollouts,
        pytest.raises(BusyError, match="cannot pause rollouts"),
    ):
        next(rollouts)
    envs.close()
