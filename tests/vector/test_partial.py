"""Partial batches: send, recv, async_reset."""

import functools
import os
import random
import threading
import warnings

import gymnasium as gym
import numpy as np
import pytest
from fork_server_in_tests import wait_until
from gymnasium import spaces
from gymnasium.error import AlreadyPendingCallError, ClosedEnvironmentError, NoAsyncCallError
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from made_up import SpaceEnv, TellingEnv, same
from told_envs import KILL, SmallEnv
from vectors import begun, info_of

import pysampler
from pysampler import _core
from pysampler._vector.tuner import BatchTuner, WaitRule
from pysampler.errors import EnvError, WorkerLostError
from pysampler.sync import now

BOX = spaces.Box(0, 100, (2,), np.float32)
OBSERVATIONS = {
    "box": BOX,
    "nested": spaces.Dict(a=BOX, b=spaces.Tuple((spaces.Discrete(4), spaces.Box(0, 1, ())))),
    "odd": spaces.Dict(a=BOX, t=spaces.Text(4)),
}


class Gated(SmallEnv):
    """With action 1, steps only once something was written to its pipe."""

    observation_space = spaces.Box(0, 1, (1,), np.float32)

    def __init__(self, gate):
        self.gate = gate

    def observe(self):
        return np.full(1, self.steps > 0, np.float32)

    def act(self, action):
        if action == 1:
            self.gate.read_bytes()  # blocks until a writer has come and gone

    def reward(self, action):
        return float(action)

    def ends(self, action):
        return False


@pytest.fixture
def gated(tmp_path):
    """Yield four envs in four groups, and a function that lets one step."""
    gates = [tmp_path / str(i) for i in range(4)]
    for gate in gates:
        os.mkfifo(gate)

    def let(env):
        gates[env].write_bytes(b"")

    envs = begun([functools.partial(Gated, gate) for gate in gates], num_workers=4)
    yield envs, let
    with warnings.catch_warnings(action="ignore"):  # about pending calls
        envs.close(terminate=True)


# "either" is an int or a float: its dtype depends on the other envs of the batch.
VARYING = "env_id", "either"


def rows(results, at):
    """Return all results of one env."""
    observations, *numbers, infos = results
    take = functools.partial(row_of, at=at)
    return take(observations), *(array[at] for array in numbers), info_of(infos, at, VARYING)


def row_of(batch, at):
    if isinstance(batch, dict):
        return {key: row_of(value, at) for key, value in batch.items()}
    if isinstance(batch, tuple) and not (batch and isinstance(batch[0], str)):
        return tuple(row_of(value, at) for value in batch)
    return batch[at]


@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP])
@pytest.mark.parametrize("space", OBSERVATIONS)
@pytest.mark.parametrize(("workers", "groups"), [(0, 3), (1, 7), (2, 1), (2, 3), (5, 2)])
def test_send_and_recv_return_the_same_results_as_step(mode, space, workers, groups):
    """Answering envs as they become ready does not change the results of any."""
    fns = [functools.partial(SpaceEnv, OBSERVATIONS[space], spaces.Discrete(5), infos="all")] * 7
    with pysampler.VectorEnv(fns, autoreset_mode=mode, num_workers=workers, groups=groups) as ours:
        theirs = SyncVectorEnv(fns, autoreset_mode=mode)
        steps = 40
        actions = np.random.default_rng(1).integers(0, 5, (steps, 7))
        first = theirs.reset(seed=5)[0]
        expected = [theirs.step(row) for row in actions]
        dice = random.Random(1)
        done = [-1] * 7  # the last step each env has returned
        ours.async_reset(seed=5)
        while ours.pending:
            results = ours.recv(
                min_envs=dice.choice([None, 1, 3, "auto"]),
                timeout=dice.choice([None, 0, 0.001, "auto"]),
            )
            envs = results[4]["env_id"]
            assert len(results[1]) == len(envs)
            for at, env in enumerate(envs):
                if done[env] < 0:
                    same(row_of(results[0], at), row_of(first, env), "reset")
                else:
                    same(rows(results, at), rows(expected[done[env]], env), f"{env} {done[env]}")
                done[env] += 1
            going_on = np.array([env for env in envs if done[env] < steps], np.int64)
            if len(going_on):
                ours.send(np.array([actions[done[env], env] for env in going_on]), going_on)
        assert done == [steps] * 7
        same(ours.reset(seed=9), theirs.reset(seed=9), "reset of all")
        same(ours.step(actions[0]), theirs.step(actions[0]), "step of all")


def test_recv_returns_envs_in_the_order_they_became_ready(gated):
    envs, let = gated
    envs.send(np.ones(4, np.int64))
    assert (envs.pending, envs.ready) == (4, 0)
    for env in (2, 0, 3):
        let(env)
        while envs.ready < [2, 0, 3].index(env) + 1:
            pass
    results = envs.recv(min_envs=1, max_envs=1)
    assert results[4]["env_id"].tolist() == [2]
    assert (envs.pending, envs.ready) == (3, 2)
    assert envs.recv(min_envs=2)[4]["env_id"].tolist() == [0, 3]
    let(1)
    assert envs.recv()[4]["env_id"].tolist() == [1]
    assert (envs.pending, envs.ready) == (0, 0)


@pytest.mark.parametrize("timeout", [0, 0.001, 0.02])
def test_recv_returns_the_ready_envs_at_its_timeout(gated, timeout):
    envs, let = gated
    envs.send(np.ones(4, np.int64))
    begun = now()
    observations, rewards, terminated, truncated, infos = envs.recv(timeout=timeout)
    assert now() - begun >= timeout * 1e9
    assert observations.shape == (0, 1)
    assert rewards.shape == terminated.shape == truncated.shape == infos["env_id"].shape == (0,)
    assert envs.pending == 4
    let(1)
    wait_until(lambda: envs.ready)
    assert envs.recv(timeout=timeout)[4]["env_id"].tolist() == [1]
    with pytest.raises(AlreadyPendingCallError, match="`send` for env 0"):
        envs.send([0, 0], [0, 1])
    envs.send([0], [1])
    assert envs.recv(min_envs=1)[1].tolist() == [0]


def test_recv_can_count_its_timeout_from_the_first_ready_env(gated):
    envs, let = gated
    envs.send(np.ones(4, np.int64))
    later = threading.Timer(0.05, let, [2])
    later.start()
    begun = now()
    assert envs.recv(timeout=0.02, timeout_from="first")[4]["env_id"].tolist() == [2]
    assert now() - begun >= 20_000_000
    later.join()
    let(0)
    wait_until(lambda: envs.ready)
    begun = now()
    assert envs.recv(timeout=0.02, timeout_from="first")[4]["env_id"].tolist() == [0]
    assert now() - begun >= 20_000_000
    let(1)
    let(3)
    assert len(envs.recv(min_envs=2, timeout=100, timeout_from="first")[1]) == 2


def test_stats_count_batches_by_their_number_of_envs(gated):
    envs, let = gated
    assert envs.stats().batch_sizes == {}
    envs.send(np.zeros(4, np.int64))
    envs.recv()
    for env in (0, 1):
        envs.send([1], [env])
        let(env)
        envs.recv()
    envs.send([1], [0])
    assert len(envs.recv(timeout=0)[1]) == 0  # is no batch
    assert envs.stats().batch_sizes == {4: 1, 1: 2}
    assert "envs in 3 batches: 1 (67%), 4 (33%)" in str(envs.stats())
    let(0)
    envs.recv()


def test_recv_auto_waits_for_the_chosen_number_of_envs(gated, monkeypatch):
    monkeypatch.setattr(BatchTuner, "called", lambda tuner: setattr(tuner, "rule", WaitRule(2)))
    envs, let = gated
    envs.send(np.ones(4, np.int64))
    let(2)
    wait_until(lambda: envs.ready)
    later = threading.Timer(0.05, let, [0])
    later.start()
    assert envs.recv("auto")[4]["env_id"].tolist() == [2, 0]
    later.join()


def test_auto_timeout_never_returns_an_empty_batch(gated, monkeypatch):
    monkeypatch.setattr(
        BatchTuner, "called", lambda tuner: setattr(tuner, "rule", WaitRule(4, 0.01))
    )
    envs, let = gated
    envs.send(np.ones(4, np.int64))
    let(1)
    assert envs.recv(timeout="auto")[4]["env_id"].tolist() == [1]
    # No env is ready when the time-out ends.
    later = threading.Timer(0.05, let, [3])
    later.start()
    begun = now()
    assert envs.recv(timeout="auto")[4]["env_id"].tolist() == [3]
    assert now() - begun > 10_000_000
    later.join()


def test_explicit_timeout_applies_with_auto_min_envs(gated):
    envs, _ = gated
    envs.send(np.ones(4, np.int64))
    begun = now()
    assert len(envs.recv("auto", timeout=0.02)[1]) == 0
    assert now() - begun >= 20_000_000


@pytest.mark.parametrize(("action", "ready", "timeout"), [(1, 1, 0.06), (0, 4, 60)])
def test_some_envs_are_not_returned_before_the_timeout(gated, monkeypatch, action, ready, timeout):
    """Whatever the margin by which the wait ends early; a whole batch is returned at once."""
    envs, _ = gated
    deadlines = []

    class Early(_core.TimedReturn):
        def wait_until(self, deadline):
            return deadline - 20_000_000

        def hold_until(self, deadline):
            deadlines.append(deadline)
            super().hold_until(deadline)

    monkeypatch.setattr(envs, "_timed_return", Early())
    envs.send(np.array([0, action, action, action]))
    while envs.ready < ready:
        pass
    assert len(envs.recv(timeout=timeout)[1]) == ready
    assert [now() >= deadline for deadline in deadlines] == [True] * (ready < 4)


def test_zero_timeouts_do_not_change_the_deadline_margin(gated):
    envs, _ = gated
    envs.send(np.ones(4, np.int64))
    margin = envs._timed_return.margin_ns
    for _ in range(50):
        assert len(envs.recv(timeout=0)[1]) == 0
    assert envs._timed_return.margin_ns == margin
    envs.recv(timeout=0.001)
    assert envs._timed_return.margin_ns != margin


def test_check_for_late_envs_does_not_end_the_wait(tmp_path):
    gates = [tmp_path / str(i) for i in range(2)]
    for gate in gates:
        os.mkfifo(gate)
    with begun(
        [functools.partial(Gated, gate) for gate in gates],
        num_workers=2,
        step_timeout=0.3,
        on_hang="wait",
    ) as envs:
        envs.send(np.ones(2, np.int64))
        gates[0].write_bytes(b"")

        with warnings.catch_warnings(record=True, action="always") as caught:

            def let_the_late_one():
                while not caught:
                    pass
                gates[1].write_bytes(b"")

            helper = threading.Thread(target=let_the_late_one, daemon=True)
            helper.start()
            assert sorted(envs.recv(min_envs=2)[4]["env_id"]) == [0, 1]
            helper.join()
        assert "env 1 in worker 1" in str(caught[0].message)


def test_resets_and_steps_can_be_pending_together(gated):
    envs, let = gated
    envs.send([1, 1], [0, 1])
    envs.async_reset(env_ids=[3])
    results = envs.recv(min_envs=1)
    assert (results[4]["env_id"].tolist(), results[0].tolist()) == ([3], [[0]])
    let(0)
    let(1)
    assert envs.recv()[0].tolist() == [[1], [1]]
    envs.reset()


@pytest.mark.parametrize("workers", [0, 2])
def test_env_error_in_recv_does_not_affect_other_envs(workers):
    with begun([TellingEnv] * 4, num_workers=workers, groups=4) as envs:
        envs.send(np.array([0, TellingEnv.RAISE, 0, 0]))
        with pytest.raises(EnvError, match="env 1") as caught:
            while True:
                envs.recv(min_envs=4)
        assert caught.value.env == 1
        left = []
        while envs.pending:
            left += envs.recv(min_envs=1)[4]["env_id"].tolist()
        assert set(left) <= {0, 2, 3}
        envs.send(np.zeros(4, np.int64))
        assert envs.recv()[1].tolist() == [1] * 4


def test_recv_starves_no_env():
    with begun([TellingEnv] * 6, num_workers=2, groups=3) as envs:
        envs.send(np.zeros(6, np.int64))
        turns = np.zeros(6, int)
        while turns.min() < 50:
            batch = envs.recv(min_envs=1, max_envs=2)[4]["env_id"]
            turns[batch] += 1
            envs.send(np.zeros(len(batch), np.int64), batch)
        envs.recv()


def test_lost_worker_ends_the_wait_in_recv():
    envs = begun([TellingEnv] * 4, num_workers=2, groups=2)
    envs.send(np.array([0, 0, TellingEnv.OS_EXIT, 0]))
    with pytest.raises(WorkerLostError, match="exit code 6 while stepping envs 2-3, at env 2"):
        while envs.pending:
            envs.recv(min_envs=4)
    assert envs.closed


WRONG = {
    "no such env": (lambda e: e.send([0], [9]), IndexError, "env 9, expected 0 to 3"),
    "negative": (lambda e: e.send([0], [-1]), IndexError, "env -1"),
    "twice": (lambda e: e.send([0, 0], [1, 1]), ValueError, "env 1 twice"),
    "part of a group": (
        lambda e: e.send([0], [1]),
        ValueError,
        "1 envs of the group of envs 0 to 1, expected all",
    ),
    "no number": (lambda e: e.send([0], [0.5]), TypeError, "float64"),
    "a mask": (lambda e: e.send([0] * 4, [True] * 4), TypeError, r"bool.*np.flatnonzero\(mask\)"),
    "one index": (lambda e: e.send([0], 2), TypeError, r"expected a list of indices: \[2\]"),
    "too few actions": (lambda e: e.send(np.zeros(1, int), [0, 1]), ValueError, "expected"),
    "too many in a list": (lambda e: e.send([0] * 3, [0, 1]), ValueError, "3 of them"),
    "nothing pending": (lambda e: e.recv(), NoAsyncCallError, "without any prior call to `send`"),
    "seeds": (lambda e: e.async_reset(seed=[1], env_ids=[0, 1]), ValueError, "length=1"),
}


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("wrong", WRONG)
def test_wrong_send_and_recv_calls_raise(wrong, workers):
    with begun([TellingEnv] * 4, num_workers=workers, groups=2 - workers // 2) as envs:
        call, error, match = WRONG[wrong]
        with pytest.raises(error, match=match):
            call(envs)
        assert envs.pending == 0
        assert envs.step(np.zeros(4, np.int64))[1].tolist() == [1] * 4


WRONG_SIZES = [
    ({"min_envs": -1}, "min_envs -1"),
    ({"min_envs": 1.5}, "min_envs 1.5"),
    ({"max_envs": 1}, "max_envs 1, but groups have up to 2 envs"),
    ({"min_envs": 4, "max_envs": 2}, "min_envs 4, more than max_envs 2"),
    ({"timeout": -1}, "timeout -1"),
    ({"timeout": float("nan")}, "timeout nan"),
    ({"min_envs": "all"}, "min_envs 'all', expected a number, None or \"auto\""),
    ({"timeout": "soon"}, "timeout 'soon', expected a number, None or \"auto\""),
    ({"timeout_from": "last"}, 'timeout_from \'last\', expected one of "call", "first"'),
    ({"timeout_from": "first"}, 'timeout_from "first" with timeout None, expected seconds'),
    ({"timeout": "auto", "timeout_from": "first"}, "with timeout 'auto', expected seconds"),
]


@pytest.mark.parametrize(("arguments", "match"), WRONG_SIZES)
def test_wrong_recv_arguments_raise(arguments, match):
    with begun([TellingEnv] * 4, num_workers=2) as envs:
        envs.send(np.zeros(4, np.int64))
        with pytest.raises(ValueError, match=match):
            envs.recv(**arguments)
        assert envs.recv(min_envs=10)[1].tolist() == [1] * 4


@pytest.mark.parametrize("workers", [0, 2])
def test_error_names_the_pending_send(workers):
    envs = begun([TellingEnv] * 4, num_workers=workers)
    envs.send(np.zeros(4, np.int64))
    for call in (
        lambda: envs.step(np.zeros(4, np.int64)),
        envs.reset,
        lambda: envs.call("action_space"),
        lambda: envs.set_attr("a", 1),
    ):
        with pytest.raises(AlreadyPendingCallError, match="pending call to `send`"):
            call()
    with pytest.warns(UserWarning, match="pending call to `send`"):
        envs.close()
    assert (envs.pending, envs.ready) == (0, 0)
    for call in (envs.recv, envs.async_reset, lambda: envs.send([0] * 4)):
        with pytest.raises(ClosedEnvironmentError):
            call()


@pytest.mark.parametrize("workers", [0, 2])
def test_empty_send_leaves_nothing_pending(workers):
    with begun([TellingEnv] * 4, num_workers=workers) as envs:
        envs.send(np.zeros(0, np.int64), [])
        assert envs.step(np.zeros(4, np.int64))[1].tolist() == [1] * 4


class Interrupted(TellingEnv):
    """Raises KeyboardInterrupt in its first step."""

    interrupts = 1

    def step(self, action):
        if self.interrupts:
            self.interrupts = 0
            raise KeyboardInterrupt
        return super().step(action)


def test_recv_resumes_an_inline_step_after_ctrl_c():
    with begun([TellingEnv, Interrupted], num_workers=0, groups=2) as envs:
        envs.send(np.zeros(2, np.int64))
        with pytest.raises(KeyboardInterrupt):
            envs.recv()
        assert envs.pending == 2
        assert envs.recv()[4]["env_id"].tolist() == [0, 1]
        envs.send(np.zeros(2, np.int64))
        assert envs.recv()[4]["env_id"].tolist() == [0, 1]


class Adds(SmallEnv):
    """Returns the sum of its action as its reward."""

    action_space = gym.spaces.Box(-10, 10, (6,), np.float32)

    def reward(self, action):
        return float(action.sum())

    def ends(self, action):
        return False

    def info(self, action):
        return {"dtype": np.dtype(action.dtype).num}


@pytest.mark.parametrize("num_workers", [0, 2])
def test_pending_groups_can_have_actions_of_different_dtypes(num_workers):
    """They share a frame, and do not overwrite each other."""
    dtypes = [np.float32, np.float64, np.int8, np.float16]
    with pysampler.VectorEnv(
        [Adds] * 4, num_workers=num_workers, groups=4 // (num_workers or 1)
    ) as envs:
        envs.async_reset()
        for _ in range(4):
            envs.recv(min_envs=1, max_envs=1)
        for value in range(1, 20):
            for env, dtype in enumerate(dtypes):
                envs.send(np.full((1, 6), value + env, dtype), [env])
            rewards = np.zeros(4)
            for _ in range(4):
                _, reward, _, _, infos = envs.recv(min_envs=1, max_envs=1)
                [env] = infos["env_id"]
                rewards[env] = reward[0]
                assert infos["dtype"][0] == np.dtype(dtypes[env]).num
            assert rewards.tolist() == [6.0 * (value + env) for env in range(4)]


def test_async_reset_refuses_a_mask():
    with pysampler.VectorEnv([lambda: gym.make("CartPole-v1")] * 2, num_workers=1) as envs:
        with pytest.raises(ValueError, match="options have a reset_mask, expected env_ids"):
            envs.async_reset(options={"reset_mask": np.array([True, False])})
        envs.async_reset(seed=1)
        assert len(envs.recv()[0]) == 2


@pytest.mark.parametrize("mode", [AutoresetMode.SAME_STEP, AutoresetMode.NEXT_STEP])
def test_step_keeps_what_was_seen_of_groups_in_all_frames(mode):
    """A worker that is lost in it leaves the last observations of its envs, also of others."""
    kwargs = {"num_workers": 3, "autoreset_mode": mode, "on_worker_loss": "restart"}
    with pysampler.VectorEnv([SmallEnv] * 3, **kwargs) as envs:
        envs.async_reset(seed=1)
        envs.recv()
        for env in (0, 0, 1):  # now the groups were seen in different frames, and in all of them
            envs.send(np.array([0]), [env])
            last = envs.recv()[0]
        observations, _, _, truncated, infos = envs.step(np.array([KILL, 0, 0]))
        assert truncated.tolist() == [True, False, False]
        final = infos["final_obs"][0] if mode is AutoresetMode.SAME_STEP else observations[0]
        assert final.tolist() == [2, 1]
    assert last.tolist() == [[1, 2]]
