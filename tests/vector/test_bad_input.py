"""User mistakes raise at once, name the culprit, and leave no process, fd or thread behind."""

import contextlib
import copy
import functools
import gc
import itertools
import logging
import os
import pickle
import re
import threading

import gymnasium as gym
import numpy as np
import psutil
import pytest
from gymnasium import spaces
from gymnasium.error import AlreadyPendingCallError, ClosedEnvironmentError, NoAsyncCallError
from made_up import SpaceEnv, TellingEnv
from programs import completed
from vectors import begun

import pysampler
from pysampler.errors import BusyError, ClosedError, EnvError, PysamplerError, WorkerLostError

WORKERS = [0, 2]


@pytest.fixture
def nothing_left():
    """Assert that a test leaves no process, fd or thread behind, except the fork server."""
    pysampler.VectorEnv([TellingEnv]).close()
    gc.collect()
    me = psutil.Process()
    fds, threads, children = me.num_fds(), me.num_threads(), me.children(recursive=True)
    yield
    gc.collect()
    # There may be fewer: garbage of an earlier test, threads that a library ended at a fork.
    assert me.num_fds() <= fds
    assert me.num_threads() <= threads
    assert set(me.children(recursive=True)) <= set(children)


def make(count=4, **kwargs):
    return pysampler.VectorEnv(
        [TellingEnv] * count, num_workers=kwargs.pop("num_workers", 2), **kwargs
    )


def test_more_workers_than_envs_are_warned_of(caplog):
    with caplog.at_level(logging.WARNING, "pysampler"), make(num_workers=9) as envs:
        assert envs.num_workers == 4
    assert caplog.messages == [
        "pysampler: num_workers=9 for 4 envs, expected at most one worker for each: 4 were started"
    ]


class Keywords(TellingEnv):
    """Accepts any keyword; one parameter has the name of a VectorEnv option."""

    def __init__(self, frames=1, **kwargs):
        super().__init__()
        self.given = {"frames": frames, **kwargs}


def make_keywords(**kwargs):
    return Keywords(**kwargs)


@pytest.mark.parametrize(
    "env",
    ["CartPole-v1", TellingEnv, Keywords, make_keywords],
    ids=["id", "class", "class with keywords", "function"],
)
def test_make_vec_accepts_vector_env_options(env):
    with pysampler.make_vec(env, 2, num_workers=1, autoreset_mode="SameStep") as envs:
        assert envs.num_workers == 1
        assert envs.autoreset_mode is gym.vector.AutoresetMode.SAME_STEP
        if env in (Keywords, make_keywords):
            assert envs.get_attr("given") == ({"frames": 1},) * 2


def test_make_vec_passes_parameters_of_the_env_to_the_env():
    with pysampler.make_vec(Keywords, 1, frames=5, num_workers=0, more=2) as envs:
        assert envs.get_attr("given") == ({"frames": 5, "more": 2},)
    with pysampler.make_vec(Keywords, 1, vector_kwargs={"frames": 5}, num_workers=0) as envs:
        assert envs.get_attr("given") == ({"frames": 1},)


def test_unknown_option_error_suggests_the_nearest_name():
    for env, name in itertools.product(("CartPole-v1", TellingEnv), ("num_worker", "workers")):
        with pytest.raises(TypeError, match=f"{name}'") as raised:
            pysampler.make_vec(env, 2, **{name: 2}, num_workers=0)
        told = f"neither VectorEnv nor the env takes {name!r}; did you mean 'num_workers'?"
        assert raised.value.__notes__[-1] == told
        with pytest.raises(TypeError, match="zzz") as raised:
            pysampler.make_vec(env, 2, zzz=2, num_workers=0)
        assert not any("mean" in note for note in getattr(raised.value, "__notes__", ()))
    with pytest.raises(TypeError, match="num_worker'"):
        pysampler.make_vec(TellingEnv, 2, vector_kwargs={"num_worker": 2})
    with pytest.raises(TypeError, match="num_workers is given twice, also in vector_kwargs"):
        pysampler.make_vec(TellingEnv, 2, num_workers=2, vector_kwargs={"num_workers": 2})


@pytest.mark.parametrize("workers", WORKERS)
@pytest.mark.parametrize(
    ("actions", "error", "message"),
    [
        (np.zeros(3, np.int64), ValueError, r"shape \(3,\), expected \(4,\)"),
        (np.zeros((4, 1), np.int64), ValueError, r"shape \(4, 1\), expected \(4,\)"),
        (np.zeros(4), TypeError, "dtype float64, expected int64"),
        (np.array(["a"] * 4), TypeError, "dtype <U1, expected int64"),
        ([0, 0, 0], ValueError, "3 of them, expected 4"),
        (0, TypeError, "int, expected an array"),
        (None, TypeError, "NoneType, expected an array"),
        ({"a": np.zeros(4)}, TypeError, "dict, expected an array"),
        (np.ma.zeros(4, np.int64), ValueError, "masked, expected an array without a mask"),
        ([np.ma.masked_equal(0, 0)] * 4, ValueError, "masked, expected an array without a mask"),
    ],
)
def test_wrong_actions_raise_and_later_steps_work(workers, actions, error, message):
    with begun(make(num_workers=workers)) as with_:
        with pytest.raises(error, match=f"cannot send actions: .*{message}"):
            with_.step(actions)
        assert with_.step(np.zeros(4, np.int64))[1].tolist() == [1] * 4


def test_nested_action_error_names_the_wrong_part():
    space = spaces.Dict(a=spaces.Tuple((spaces.Box(0, 1, (2,)), spaces.Discrete(2))))
    with pysampler.VectorEnv([functools.partial(SpaceEnv, spaces.Discrete(2), space)] * 2) as envs:
        good = {"a": (np.zeros((2, 2), np.float32), np.zeros(2, np.int64))}
        envs.reset()
        envs.step(good)
        with pytest.raises(ValueError, match=r"shape \(2, 3\) at \['a'\]\[0\], expected \(2, 2\)"):
            envs.step({"a": (np.zeros((2, 3), np.float32), good["a"][1])})
        with pytest.raises(ValueError, match=r"no 'a', expected \['a'\]"):
            envs.step({"b": good["a"]})
        with pytest.raises(TypeError, match=r"ndarray at \['a'\], expected a tuple"):
            envs.step({"a": np.zeros(2)})
        with pytest.raises(ValueError, match=r"1 parts at \['a'\], expected 2"):
            envs.step({"a": good["a"][:1]})


@pytest.mark.parametrize("workers", WORKERS)
@pytest.mark.parametrize(
    ("action", "error", "message"),
    [
        (TellingEnv.RAISE, ValueError, "env 2.* raised ValueError stepping: told to raise"),
        (TellingEnv.EXIT, EnvError, "env 2.* raised SystemExit stepping: 5"),
        (TellingEnv.BAD_SHAPE, ValueError, r"observation has shape \(3,\), expected \(2,\)"),
        (TellingEnv.FOUR, ValueError, r"env.step\(\) returned 4 values, expected 5"),
        (TellingEnv.NO_DICT, TypeError, "info is a list, expected a dict"),
        (TellingEnv.NOTHING, TypeError, r"env.step\(\) returned a NoneType, expected 5 values"),
        (TellingEnv.WORD, TypeError, "reward is a str, expected a number"),
        (TellingEnv.TWO_ENDS, TypeError, "terminated is a numpy.ndarray, expected a bool"),
    ],
)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_step_error_names_the_env_and_later_steps_work(
    workers, action, error, message, nothing_left
):
    with begun(make(num_workers=workers)) as envs:
        with pytest.raises(EnvError, match=message) as caught:
            envs.step(np.array([0, 0, action, 0]))
        assert isinstance(caught.value, error)
        assert caught.value.env == 2
        assert caught.value.worker == (1 if workers else None)
        # The pool works as before.
        envs.reset()
        assert envs.step(np.zeros(4, np.int64))[1].tolist() == [1] * 4


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_env_error_has_the_remote_traceback():
    with make() as envs:
        with pytest.raises(ValueError, match="told to raise") as caught:
            envs.step([0, TellingEnv.RAISE, 0, 0])
        cause = caught.value.__cause__
        assert type(cause) is ValueError
        assert 'raise ValueError("told to raise")' in str(cause.__cause__)


LOSSES = {
    "half": (spaces.Discrete(9), 2.5, "observation has 2.5, expected int64"),
    "numpy half": (spaces.Discrete(9), np.float32(2.5), "observation has 2.5, expected int64"),
    "nan": (spaces.MultiBinary(2), [1, np.nan], "observation has nan, expected int8"),
    "too large": (
        spaces.Box(0, 255, (2,), np.uint8),
        [1, 256],
        "observation has 256, expected uint8",
    ),
    "negative": (
        spaces.Box(0, 255, (2,), np.uint8),
        np.array([1, -1]),
        "observation has -1, expected uint8",
    ),
    "part": (
        spaces.Dict(a=spaces.Tuple((spaces.Discrete(2), spaces.MultiBinary(2)))),
        {"a": (1, np.array([0.0, 0.5]))},
        "observation['a'][1] has 0.5, expected int8",
    ),
    "no key": (
        spaces.Dict(a=spaces.Dict(b=spaces.Discrete(2), c=spaces.Discrete(2))),
        {"a": {"b": 1}},
        "observation['a'] lacks ['c']",
    ),
    "no item": (
        spaces.Tuple((spaces.Discrete(2), spaces.Discrete(2))),
        (1,),
        "observation lacks [1]",
    ),
    "array for a dict": (
        spaces.Dict(a=spaces.Dict(b=spaces.Discrete(2))),
        {"a": np.zeros(2)},
        "observation['a'] is an array, expected a dict",
    ),
    "array for a tuple": (
        spaces.Tuple((spaces.Discrete(2), spaces.Discrete(2))),
        np.zeros(1),
        "observation is an array, expected a tuple",
    ),
    "dict for an array": (
        spaces.Box(0, 1, (2,)),
        {"a": np.zeros(2)},
        "observation is a dict, expected an array of shape (2,)",
    ),
}


class Lossy(gym.Env):
    """Returns a value and an info in each step; the value may not fit its space."""

    action_space = spaces.Discrete(2)

    def __init__(self, space, value, info=None):
        self.observation_space, self.value, self.info = space, value, info or {}

    def reset(self, *, seed=None, options=None):
        return self.observation_space.sample(), {}

    def step(self, action):
        return self.value, 0.0, False, False, self.info


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.filterwarnings("ignore:invalid value")  # NumPy's
def test_observation_error_names_env_and_part(name, workers):
    space, value, message = LOSSES[name]
    with (
        begun(
            [lambda: Lossy(space, space.sample()), lambda: Lossy(space, value)], num_workers=workers
        ) as envs,
        pytest.raises(EnvError, match="env 1 .*" + re.escape(message)),
    ):
        envs.step(np.zeros(2, np.int64))


@pytest.mark.parametrize("within_itself", [False, True])
def test_error_of_an_info_that_cannot_be_pickled_names_its_keys(within_itself):
    def make_env():
        locks = [threading.Lock()]
        info = {"sim": {"lock": locks}}
        if within_itself:
            locks.insert(0, info)
        return Lossy(spaces.Discrete(2), 1, info)

    with (
        begun([make_env], num_workers=1) as envs,
        pytest.raises(TypeError, match=r"of which \['sim'\]\['lock'\].* cannot be pickled: "),
    ):
        envs.step(np.zeros(1, np.int64))


@pytest.mark.parametrize(
    ("space", "value"),
    [
        (spaces.Discrete(9), 2.0),
        (spaces.MultiBinary(2), [True, 0.0]),
        (spaces.Box(0, 255, (2,), np.uint8), np.array([0, 255])),
        (spaces.Box(-9, 9, (2,), np.int8), (-9, np.int64(9))),
    ],
)
def test_lossless_observation_cast_is_accepted(space, value):
    with begun([lambda: Lossy(space, value)] * 2, num_workers=0) as envs:
        observations = envs.step(np.zeros(2, np.int64))[0]
        np.testing.assert_array_equal(observations, [value] * 2)


@pytest.mark.parametrize("workers", WORKERS)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_reset_error_is_an_env_error(workers):
    with make(num_workers=workers) as envs:
        with pytest.raises(KeyError) as caught:
            envs.reset(options={"raise": True})
        assert isinstance(caught.value, EnvError)
        assert "raised KeyError resetting" in caught.value.args[0]
        envs.reset()


@pytest.mark.parametrize("workers", WORKERS)
def test_call_error_names_the_env_and_the_attribute(workers):
    with make(num_workers=workers) as envs:
        with pytest.raises(AttributeError, match=r"env 0.* raised AttributeError in nothing\(\)"):
            envs.call("nothing")
        with pytest.raises(AttributeError):
            envs.get_attr("nothing")
        assert envs.get_attr("RAISE") == (1,) * 4


@pytest.mark.parametrize("workers", WORKERS)
def test_constructor_error_names_the_env(workers, nothing_left):
    fns = [TellingEnv, TellingEnv, functools.partial(TellingEnv, "raise"), TellingEnv]
    with pytest.raises(ValueError, match="env 2.* raised ValueError being made: cannot be made"):
        pysampler.VectorEnv(fns, num_workers=workers)


@pytest.mark.parametrize("workers", WORKERS)
def test_system_exit_in_an_env_constructor_is_an_env_error(workers, nothing_left):
    with pytest.raises(EnvError, match="env 0.* raised SystemExit"):
        pysampler.VectorEnv([functools.partial(TellingEnv, "exit")], num_workers=workers)


class Leaving(TellingEnv):
    """Raises an exception that ends programs, in a call and in close()."""

    def __init__(self, kind=None):
        super().__init__()
        self.kind = kind

    def leave(self):
        if self.kind is not None:
            raise self.kind("left")
        return "stayed"

    def close(self):
        self.leave()


@pytest.mark.parametrize("workers", WORKERS)
@pytest.mark.parametrize("kind", [SystemExit, GeneratorExit])
@pytest.mark.parametrize("groups", [1, 2])
def test_system_exit_in_a_call_or_close_is_an_env_error(workers, kind, groups):
    fns = [Leaving, Leaving, functools.partial(Leaving, kind), Leaving]
    envs = begun(pysampler.VectorEnv(fns, num_workers=workers, groups=groups))
    with pytest.raises(EnvError, match=f"env 2.* raised {kind.__name__}"):
        envs.call("leave")
    assert envs.step([0] * 4)[1].tolist() == [1] * 4
    with pytest.raises(EnvError, match=f"env 2.* raised {kind.__name__}"):
        envs.close()


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("first", [True, False])
def test_ctrl_c_with_num_workers_0_leaves_the_call_pending(groups, first):
    fns = [Leaving, Leaving, Leaving, Leaving]
    with begun(fns, num_workers=0, groups=groups) as envs:
        at = 0 if first else 3

        def interrupted(*_, **__):
            raise KeyboardInterrupt

        env = envs._pool._inline._server.envs[at]
        for name, act, wait in (
            ("leave", lambda: envs.call("leave"), envs.call_wait),
            ("step", lambda: envs.step([0] * 4), envs.step_wait),
            ("reset", envs.reset, envs.reset_wait),
        ):
            setattr(env, name, interrupted)
            with pytest.raises(KeyboardInterrupt):
                act()
            if name != "reset":  # drops it
                with pytest.raises(gym.error.AlreadyPendingCallError):
                    act()
            delattr(env, name)
            wait()
            act()


def test_worker_that_exits_while_creating_envs_is_reported_lost(nothing_left):
    fns = [TellingEnv, TellingEnv, functools.partial(TellingEnv, "os._exit"), TellingEnv]
    with pytest.raises(WorkerLostError, match="worker 1 .* exit code 4 while envs 2-3 being made"):
        pysampler.VectorEnv(fns, num_workers=2)


def test_worker_that_exits_in_a_step_is_reported_lost(nothing_left):
    envs = begun(make())
    with pytest.raises(WorkerLostError) as caught:
        envs.step([0, 0, TellingEnv.OS_EXIT, 0])
    error = caught.value
    assert f"worker 1 (pid {error.pid}) lost: exit code 6 while stepping envs 2-3" in str(error)
    assert (error.worker, error.exit_code, error.envs) == (1, 6, range(2, 4))
    with pytest.raises(ClosedEnvironmentError):
        envs.reset()


def test_unpicklable_env_fns_error_suggests_fork(nothing_left):
    lock = threading.Lock()

    def env_fn():
        with lock:
            return TellingEnv()

    with pytest.raises(TypeError, match='cannot send env_fns to workers: .*pickle.*context="fork"'):
        pysampler.VectorEnv([env_fn])
    pysampler.VectorEnv([env_fn], context="fork").close()


@pytest.mark.parametrize("workers", WORKERS)
def test_envs_with_different_spaces_raise(workers, nothing_left):
    one, two = (functools.partial(SpaceEnv, spaces.Box(0, high, (2,))) for high in (1, 2))
    with pytest.raises(RuntimeError, match=r"Env 2 has Box\(0.0, 2.0.*, env 0 Box\(0.0, 1.0"):
        pysampler.VectorEnv([one, one, two], num_workers=workers)
    other = functools.partial(SpaceEnv, spaces.Box(0, 1, (2,)), spaces.Discrete(9))
    with pytest.raises(RuntimeError, match=r"env 1 has the action space Discrete\(9\)"):
        pysampler.VectorEnv([one, other], num_workers=workers)


def test_out_of_order_calls_raise():
    with make() as envs:
        with pytest.raises(NoAsyncCallError):
            envs.step_wait()
        envs.reset_async()
        for call in (envs.reset_async, lambda: envs.step_async(np.zeros(4, int)), envs.render):
            with pytest.raises(AlreadyPendingCallError):
                call()
        with pytest.raises(AlreadyPendingCallError):
            envs.set_attr("a", 1)
        with pytest.raises(NoAsyncCallError):
            envs.step_wait()
        envs.reset_wait()


@pytest.mark.parametrize("workers", WORKERS)
def test_calls_after_close_raise_closed_error(workers):
    envs = make(num_workers=workers)
    envs.close()
    envs.close()
    for call in (envs.reset, lambda: envs.step([0] * 4), envs.render, envs.step_wait):
        with pytest.raises(ClosedEnvironmentError) as caught:
            call()
        assert isinstance(caught.value, ClosedError)


def test_step_in_a_forked_child_raises():
    envs = begun(make())
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            envs.step([0] * 4)
        except PysamplerError as error:
            os.write(writing, str(error).encode())
        del envs
        os._exit(0)
    os.close(writing)
    message = os.read(reading, 1000).decode()
    os.close(reading)
    assert os.waitpid(pid, 0)[1] == 0
    assert "a fork" in message
    assert envs.step([0] * 4)[1].tolist() == [1] * 4
    envs.close()


def test_call_from_a_second_thread_raises_busy_error():
    with begun(make()) as envs:
        envs.step_async([TellingEnv.SLEEP] * 4)
        waiter = threading.Thread(target=envs.step_wait)
        waiter.start()
        with pytest.raises(BusyError, match="another thread"):
            while waiter.is_alive():
                with contextlib.suppress(TimeoutError):
                    envs.step_wait(timeout=0)
        waiter.join()
        envs.step([0] * 4)


def test_timed_out_step_stays_pending():
    with begun(make()) as envs:
        envs.step_async([TellingEnv.SLEEP, 0, 0, 0])
        with pytest.raises(TimeoutError, match=r"timed out after 0.001 second"):
            envs.step_wait(timeout=0.001)
        assert envs.step_wait()[1].tolist() == [1] * 4


def test_invalid_timeout_raises_and_the_call_stays_pending():
    with make() as envs:
        envs.reset_async()
        for timeout in ("x", float("nan")):
            with pytest.raises(
                ValueError, match=f"cannot call reset_wait: timeout {timeout!r}, expec"
            ):
                envs.reset_wait(timeout=timeout)
        envs.reset_wait(timeout=float("inf"))
        envs.step_async([0] * 4)
        assert envs.step_wait(timeout=float("inf"))[1].tolist() == [1] * 4
        envs.call_async("has_wrapper_attr", "task")
        envs.call_wait(timeout=1e300)


def test_close_does_not_wait_forever_for_a_hanging_env(monkeypatch, nothing_left):
    monkeypatch.setattr("pysampler._vector.core.SHUTDOWN_TIMEOUT_S", 0.1)
    envs = begun(make())
    envs.step_async([TellingEnv.HANG, 0, 0, 0])
    with pytest.warns(UserWarning, match="pending call to `step`"):
        envs.close()
    with pytest.raises(ClosedError):
        envs.reset()


def test_info_larger_than_the_mail_ring_arrives():
    with begun(make()) as envs:
        *_, infos = envs.step([TellingEnv.HUGE_INFO] * 4)
        assert [len(text) for text in infos["huge"]] == [1_000_000] * 4


def test_large_infos_of_one_group_do_not_block_another():
    with begun(make(num_workers=1, groups=4)) as envs:
        *_, infos = envs.step(np.full(4, TellingEnv.HUGE_INFO))
        assert [len(text) for text in infos["huge"]] == [1_000_000] * 4


def test_custom_space_requires_shared_memory_false():
    class Custom(gym.Space):
        def sample(self, mask=None, probability=None):
            return "x"

        def contains(self, x):
            return True

        def __eq__(self, other):
            return type(other).__name__ == "Custom"

        __hash__ = None

    fn = functools.partial(SpaceEnv, Custom(), Custom())
    with pytest.raises(ValueError, match="cannot put observations in .* shared_memory=False to pi"):
        pysampler.VectorEnv([fn] * 2)
    with pysampler.VectorEnv([fn] * 2, shared_memory=False) as envs:
        assert envs.reset()[0] == ("x", "x")
        assert envs.step(("a", "b"))[0] == ("x", "x")
    parts = spaces.Dict({"image": spaces.Discrete(2), "texts": spaces.Tuple([Custom()])})
    suggested = (
        r"cannot put part 'texts\.0' of the observations in shared memory: .*; pass "
        r"shared_memory=False to pickle it, or let a sampler .* leave_out=\['texts\.0'\]$"
    )
    with pytest.raises(ValueError, match=suggested):
        pysampler.VectorEnv([functools.partial(SpaceEnv, parts)] * 2)


@pytest.mark.parametrize("workers", WORKERS)
def test_close_raises_env_errors_after_closing_everything(workers, monkeypatch, nothing_left):
    monkeypatch.setenv("PYSAMPLER_TEST_CLOSE", "raise")
    envs = make(num_workers=workers)
    with pytest.raises(OSError, match=r"raised OSError in close\(\): cannot be closed"):
        envs.close()
    with pytest.raises(ClosedEnvironmentError):
        envs.reset()


def test_vector_env_cannot_be_pickled():
    with make() as envs, pytest.raises(TypeError, match="cannot pickle"):
        pickle.dumps(envs)


def test_check_actions_rejects_nan():
    fn = functools.partial(SpaceEnv, spaces.Box(0, 1, (2,)), spaces.Box(-1, 1, (2,)))
    bad = np.array([[0, 0], [0, np.nan]], np.float32)
    with begun([fn] * 2) as envs:
        envs.step(bad)
    with begun([fn] * 2, check_actions=True) as envs:
        with pytest.raises(ValueError, match="cannot send actions: nan for env 1"):
            envs.step(bad)
        envs.step(np.zeros((2, 2), np.float32))


EMPTIES = """
import contextlib, sys
import gymnasium as gym, numpy as np
import pysampler

BOX = gym.spaces.Box(-1, 1, (2,))

class Empties:
    "Empties the dict that holds it where it is converted or hashed."

    def __init__(self, holder):
        self.holder = holder

    def __array__(self, *_, **__):
        self.holder.clear()
        return np.zeros(2, np.float32)

    def __hash__(self):
        if sys._getframe(1).f_code.co_name != "_both":  # not where it becomes a key
            self.holder.clear()
        return 7

    def _both(self):
        self.holder[self] = [1]
        self.holder["x"] = 1.0

class Env(gym.Env):
    observation_space = gym.spaces.Dict(a=BOX, b=gym.spaces.Tuple([BOX, BOX]))
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        zeros = np.zeros(2, np.float32)
        return {"a": zeros, "b": (zeros, zeros)}, {"x": 1.0}

    def step(self, action):
        obs, info = self.reset()
        if action:
            obs["b"] = Empties(obs), obs["a"]
        else:
            Empties(info)._both()
        return obs, 1.0, False, False, info

with contextlib.closing(pysampler.VectorEnv([Env] * 2, num_workers=0)) as envs:
    envs.reset()
    for action in (1, 0):
        envs.step(np.full(2, action))
print("well")
"""


@pytest.mark.slow
def test_values_that_clear_their_own_dict_do_not_crash():
    # The debug allocator overwrites freed memory at once.
    assert completed("-c", EMPTIES, env=os.environ | {"PYTHONMALLOC": "debug"}).stdout == "well\n"


def test_recv_accepts_huge_min_envs_and_max_envs():
    with pysampler.VectorEnv([TellingEnv] * 2, num_workers=1) as envs:
        for asked in ({"min_envs": 2**63}, {"max_envs": 2**64}, {"max_envs": 10**30}):
            envs.async_reset()
            assert len(envs.recv(**asked)[1]) == 2


@pytest.mark.parametrize("how", [copy.copy, copy.deepcopy, pickle.dumps])
def test_owners_of_processes_or_memory_cannot_be_copied(how):
    def policy(observations):
        return np.zeros(len(observations), np.int64)

    class Trainer:
        def __init__(self, index, seed):
            self.weights = {"w": np.zeros(1)}

        def state_dict(self):
            return self.weights

    with contextlib.ExitStack() as stack:
        envs = stack.enter_context(contextlib.closing(make()))
        for one in (
            envs,
            stack.enter_context(pysampler.Rollouts(TellingEnv, policy, 5, num_envs=1)),
            stack.enter_context(pysampler.Actors(TellingEnv, policy, num_envs=1)),
            stack.enter_context(pysampler.Averaging(Trainer, workers=1)),
            pysampler.ReplayBuffer(5, {"x": np.zeros(1)}),
        ):
            with pytest.raises(TypeError, match=f"cannot (copy|pickle) {type(one).__name__}: it"):
                how(one)
        envs.reset()
        envs.step(np.zeros(4, np.int64))


@pytest.mark.parametrize("seed", ["1", 1.5, b"12"])
@pytest.mark.parametrize("workers", WORKERS)
def test_non_integer_seed_raises(workers, seed):
    with make(num_workers=workers) as envs:
        with pytest.raises(
            TypeError, match=r"cannot reset: seed .*expected a whole number, a list"
        ):
            envs.reset(seed=seed)
        envs.reset(seed=1)
