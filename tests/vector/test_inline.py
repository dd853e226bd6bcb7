"""Inline envs: closing in a signal handler, changed arguments, Ctrl-C, errors, replay."""

import contextlib
import functools
import signal
import sys
import time

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.envs.classic_control import CartPoleEnv
from gymnasium.wrappers import NormalizeReward
from made_up import interrupt_once, same
from told_envs import SmallEnv
from vectors import begun

import pysampler
from pysampler._vector import stepper
from pysampler._vector.results import Results
from pysampler.envs import classic
from pysampler.errors import ClosedError, EnvError

OBJECTS = gym.spaces.Sequence(gym.spaces.Box(-9, 9, (2,)))
INLINE = [{"num_workers": 0}, {"num_workers": 1, "main_envs": 1}]


class Counts(gym.Env):
    """Observes its step count and its last action."""

    observation_space = gym.spaces.Box(-99, 99, (2,), np.float64)
    action_space = OBJECTS
    interrupts = False

    def __init__(self, go=None):
        self.go = go  # a file that each step waits for
        self.steps = 0
        self.closed = False

    def reset(self, *, seed=None, options=None):
        return np.zeros(2), {}

    def step(self, action):
        if self.interrupts:
            Counts.interrupts = False
            raise KeyboardInterrupt
        while self.go is not None and not self.go.exists():
            time.sleep(0.001)  # poll: another process creates the file
        value = action[0][0]
        self.steps += 1
        return np.array([self.steps, value], np.float64), 0.0, False, False, {}

    def echo(self, values):
        return list(values)

    def close(self):
        self.closed = True


def objects(value=1.0):
    return tuple((np.full(2, value, np.float32),) for _ in range(2))


@contextlib.contextmanager
def signal_at(event, name, act):
    """Raise SIGUSR1 when Python calls, or returns from, the function of this name."""

    def trace(frame, kind, _):
        if frame.f_code.co_qualname == name and kind == event:
            sys.settrace(None)
            signal.raise_signal(signal.SIGUSR1)
        return trace

    before = signal.signal(signal.SIGUSR1, lambda *_: act())
    sys.settrace(trace)
    try:
        yield
    finally:
        sys.settrace(None)
        signal.signal(signal.SIGUSR1, before)


@pytest.mark.parametrize("kwargs", INLINE, ids=str)
@pytest.mark.parametrize("terminate", [False, True])
@pytest.mark.filterwarnings("ignore:.*while waiting for a pending call")
def test_closing_in_a_handler_before_a_note_runs_raises_closed_error(kwargs, terminate):
    envs = begun([Counts] * 2, **kwargs)
    envs.set_options(None, {"low": 1})  # runs with the next wait
    close = lambda: envs.close(terminate=terminate)  # noqa: E731
    with pytest.raises(ClosedError), signal_at("call", "InlineLane.run", close):
        envs.get_attr("steps")


@pytest.mark.parametrize("num_workers", [0, 1])
@pytest.mark.filterwarnings("ignore:.*while waiting for a pending call")
def test_recv_raises_closed_error_after_a_handler_closes(num_workers):
    envs = begun([Counts] * 2, num_workers=num_workers)
    envs.send(objects())
    with pytest.raises(ClosedError), signal_at("return", "PartialBatches._collect", envs.close):
        envs.recv()


@pytest.mark.parametrize("kwargs", [*INLINE, {"num_workers": 2}], ids=str)
def test_arguments_changed_after_sending_do_not_reach_the_envs(kwargs):
    with begun([Counts] * 2, **kwargs) as envs:
        actions, values = objects(), [1]
        envs.step_async(actions)
        for action in actions:
            action[0][:] = 7
        assert envs.step_wait()[0].tolist() == [[1, 1]] * 2
        envs.call_async("echo", values)
        values.append(2)
        assert envs.call_wait() == ([1], [1])


class Doubles(gym.Env):
    """Doubles its action in place."""

    observation_space = action_space = gym.spaces.Box(-9, 9, (2,), np.float32)

    def reset(self, *, seed=None, options=None):
        return np.zeros(2, np.float32), {}

    def step(self, action):
        action *= 2
        return np.float32(action), 0.0, False, False, {}


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ">f4"])
@pytest.mark.parametrize("kwargs", [*INLINE, {"context": "threads"}, {"num_workers": 1}], ids=str)
def test_an_env_that_writes_to_its_action_leaves_the_callers_as_it_is(kwargs, dtype):
    with begun([Doubles] * 2, **kwargs) as envs:
        actions = np.ones((2, 2), dtype)
        assert envs.step(actions)[0].tolist() == [[2, 2]] * 2
        assert actions.tolist() == [[1, 1]] * 2
        envs.send(actions)
        assert envs.recv()[0].tolist() == [[2, 2]] * 2
        assert actions.tolist() == [[1, 1]] * 2


def test_interrupted_step_with_object_actions_loses_the_envs_and_no_other_step_does():
    with begun([Counts] * 2, num_workers=0) as envs:
        second = envs._pool._inline._server.envs[1]
        second.interrupts = True
        with pytest.raises(KeyboardInterrupt):
            envs.step(objects())
        second.interrupts = False
        observations, _, _, truncated, infos = envs.step_wait()
        assert observations.tolist() == [[0, 0]] * 2
        assert truncated.all()
        assert infos["worker_lost"].all()
        again = objects(2.0)
        envs.step(again)  # begins again; this env counts on
        for steps in (1, 2):
            assert envs.step(again)[0].tolist() == [[steps + 1, 2], [steps, 2]]


COUNT = 16  # with which envs are native


def sync_of(count, mode):
    return lambda: gym.vector.SyncVectorEnv([cart] * count, autoreset_mode=mode)


def cart():
    return gym.make("CartPole-v1")


class Carts(classic.CartPole):
    """Steps in Python: C++ steps only the class itself."""


CARTS = {
    "in Python": functools.partial(pysampler.make_vec, "CartPole-v1", native=False),
    "native": functools.partial(pysampler.make_vec, "CartPole-v1", native=True),
    "BatchEnv": functools.partial(pysampler.make_vec, Carts),
    "wrapped": functools.partial(pysampler.make_vec, "CartPole-v1", wrappers=[NormalizeReward]),
    "vector env": None,
    "several": None,
}


@pytest.mark.parametrize("mode", ["NextStep", "SameStep", "Disabled"])
@pytest.mark.parametrize("call", ["step", "step of a list", "step_chunk"])
@pytest.mark.parametrize("kind", CARTS)
def test_interrupted_step_loses_all_envs_of_a_block_and_says_so(kind, call, mode, monkeypatch):
    make = CARTS[kind]
    if make is None:
        if call == "step_chunk":
            return  # a vector env makes none
        fns = {"vector env": [sync_of(COUNT, mode)], "several": [cart, sync_of(COUNT - 1, mode)]}
        make = lambda num_envs, **options: pysampler.VectorEnv(fns[kind], **options)  # noqa: E731
    steps = {
        "step": lambda envs: envs.step(np.zeros(COUNT, int)),
        "step of a list": lambda envs: envs.step([np.int32(0), np.int64(0)] * (COUNT // 2)),
        "step_chunk": lambda envs: envs.step_chunk(np.zeros((COUNT, 2), int)),
    }[call]
    options = {"num_envs": COUNT, "num_workers": 0, "autoreset_mode": mode}
    monkeypatch.setattr(stepper, "_CLASSIC", "")  # no handler can interrupt C++
    with make(**options) as envs, make(**options) as expected:
        envs.reset(seed=1)
        for _ in range(2):
            seen = steps(envs)[0].copy()
        left = [1]
        for one in (CartPoleEnv, classic.CartPole):
            interrupt_once(monkeypatch, one, "step", left=left)
        with pytest.raises(KeyboardInterrupt):
            steps(envs)
        observations, rewards, terminated, truncated, infos = envs.step_wait()
        lost = infos["final_info"] if mode == "SameStep" else infos
        assert lost["worker_lost"].tolist() == truncated.tolist() == [True] * COUNT
        assert not terminated.any()
        assert not rewards.any()
        last = np.stack(infos["final_obs"]) if mode == "SameStep" else observations
        same(last, seen)
        if mode == "NextStep":
            observations, rewards, _, truncated, _ = envs.step(np.zeros(COUNT, int))
            assert not rewards.any()
            assert not truncated.any()
        if mode == "Disabled":
            observations, _ = envs.reset(options={"reset_mask": truncated})
        assert (abs(observations) <= 0.05).all()
        if kind != "wrapped":  # which has learned more
            assert envs.step(np.zeros(COUNT, int))[1].tolist() == [1] * COUNT
            same(envs.reset(seed=2), expected.reset(seed=2))
            for k in range(6):  # which end no episode
                actions = np.full(COUNT, k % 2)
                same(envs.step(actions), expected.step(actions))


def interrupted(monkeypatch, kind, name, call, *arguments):
    interrupt_once(monkeypatch, kind, name)
    with pytest.raises(KeyboardInterrupt):
        call(*arguments)


@pytest.mark.parametrize("kind", ["in Python", "native"])
def test_second_interrupt_while_lost_envs_are_read_changes_no_final_observation(kind, monkeypatch):
    options = {"num_envs": COUNT, "num_workers": 0, "autoreset_mode": "SameStep"}
    monkeypatch.setattr(stepper, "_CLASSIC", "")  # no handler can interrupt C++
    actions = np.zeros(COUNT, int)
    with begun(CARTS[kind](**options), seed=1) as envs:
        seen = envs.step(actions)[0]
        step_of = CartPoleEnv if kind == "in Python" else classic.CartPole
        interrupted(monkeypatch, step_of, "step", envs.step, actions)
        interrupted(monkeypatch, Results, "_merged", envs.step_wait)
        same(np.stack(envs.step_wait()[4]["final_obs"]), seen)


class Talks(SmallEnv):
    """Observes its episode, also as text, which goes by mail."""

    observation_space = gym.spaces.Dict(
        {"number": gym.spaces.Box(0, 99, (1,), np.float64), "text": gym.spaces.Text(9)}
    )

    def observe(self):
        return {"number": np.full(1, self.resets, np.float64), "text": str(self.resets)}


def test_second_interrupt_changes_no_final_observation_without_a_fixed_shape(monkeypatch):
    with begun([Talks] * 2, num_workers=0, autoreset_mode="SameStep") as envs:
        interrupted(monkeypatch, Talks, "step", envs.step, [0, 0])
        interrupted(monkeypatch, Results, "_merged", envs.step_wait)
        observations, *_, infos = envs.step_wait()
        assert observations["text"] == ("2", "2")
        assert [(one["number"][0], one["text"]) for one in infos["final_obs"]] == [(1, "1")] * 2


def test_env_that_a_masked_reset_leaves_lost_has_the_observation_seen_last(monkeypatch):
    options = {"num_envs": 2, "num_workers": 0, "autoreset_mode": "Disabled"}
    with CARTS["in Python"](**options) as envs:
        seen, _ = envs.reset(seed=1)
        interrupted(monkeypatch, CartPoleEnv, "step", envs.step, np.zeros(2, int))
        same(envs.step_wait()[0], seen)
        observations, _ = envs.reset(options={"reset_mask": np.array([False, True])})
        same(observations[0], seen[0])


def test_replaying_a_batch_of_inline_envs_does_not_wait_for_workers(tmp_path):
    """Else it would hang: env 0 is released only after the batch."""
    go = tmp_path / "go"
    fns = [lambda: Counts(go), Counts]
    for way in ("record_to", "replay_from"):
        go.unlink(missing_ok=True)
        options = {"num_workers": 1, "main_envs": 1, way: tmp_path / "batches"}
        with pysampler.VectorEnv(fns, **options) as envs:
            envs.async_reset()
            envs.recv()
            envs.send(objects())
            assert envs.recv(min_envs=1, max_envs=1)[4]["env_id"].tolist() == [1]
            go.touch()
            envs.recv()


def test_inline_envs_are_closed_when_the_constructor_fails(tmp_path):
    made = []

    def make():
        made.append(Counts())
        return made[-1]

    with pytest.raises(FileNotFoundError):
        pysampler.VectorEnv([make] * 2, num_workers=0, record_to=tmp_path / "no" / "folder")
    assert [env.closed for env in made] == [True, True]


def test_inline_env_error_does_not_stop_the_other_envs():
    with begun([Counts] * 2, num_workers=0) as envs:
        with pytest.raises(EnvError, match="env 0 raised IndexError stepping"):
            envs.step(((), (np.ones(2, np.float32),)))
        assert envs.get_attr("steps") == (0, 1)


@pytest.mark.parametrize(
    "options",
    [
        {"step_timeout": 5.0},
        {"step_timeout": 5.0, "on_hang": "restart"},
        {"on_worker_loss": "restart"},
        {"recycle_after": 3},
        {"recycle_above": "1 GB"},
        {"worker_init": int},
    ],
    ids=str,
)
def test_options_that_need_workers_are_refused_without_them(options):
    name = next(iter(options))
    message = f"^cannot make vector env: {name} .* with num_workers=0, expected .*: "
    with pytest.raises(ValueError, match=message):
        pysampler.VectorEnv([Counts] * 2, num_workers=0, **options)
    with pytest.raises(ValueError, match=message):
        pysampler.make_vec("CartPole-v1", num_envs=2, num_workers=0, **options)
    with pytest.raises(ValueError, match=message):
        pysampler.evaluate("CartPole-v1", lambda obs: obs, 1, num_workers=0, **options)
    with pysampler.VectorEnv([Counts] * 2, num_workers="auto", **options) as envs:
        assert envs.num_workers > 0


def test_a_close_that_an_env_interrupts_closes_the_others():
    closed = []

    class Closes(Counts):
        def close(self):
            closed.append(self)
            if len(closed) == 1:
                raise KeyboardInterrupt

    envs = begun([Closes] * 3, num_workers=0)
    with pytest.raises(KeyboardInterrupt):
        envs.close()
    envs.close()
    assert len(closed) == len({*closed}) == 3
