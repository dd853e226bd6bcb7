"""Shared arrays: one copy for all workers, which travels by descriptor."""

import copy
import multiprocessing
import os
import pickle
import signal
from multiprocessing import reduction
from pathlib import Path
from typing import NamedTuple

import cloudpickle
import gymnasium as gym
import numpy as np
import pytest

import pysampler
from pysampler._workers.shared_arrays import SharedArray
from pysampler.errors import ClosedError


class Pair(NamedTuple):
    first: np.ndarray
    second: np.ndarray


class Reads(gym.Env):
    """Observes rows of a table that it is made with."""

    action_space = gym.spaces.Discrete(2)

    def __init__(self, table):
        self.table = table
        self.observation_space = gym.spaces.Box(-np.inf, np.inf, table["rows"][0].shape, np.float64)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.at = 0
        return self.table["rows"][self.at], {}

    def step(self, action):
        self.at += 1
        return self.table["rows"][self.at], 0.0, False, False, {}


def look(env):
    """Return how the process of an env has its table."""
    table = env.unwrapped.table
    maps = Path("/proc/self/maps").read_text()
    return (
        type(table["rows"]).__name__,
        table["rows"].flags.writeable,
        "memfd:pysampler shared" in maps,
        [one.tolist() for one in table["rest"]],
    )


@pytest.fixture
def table():
    rows = np.arange(3000.0).reshape(-1, 3)
    return {"rows": rows, "rest": [np.arange(3, dtype=np.int16), np.zeros((2, 0))]}


@pytest.mark.parametrize(
    "context", ["forkserver", "fork", pytest.param("spawn", marks=pytest.mark.slow)]
)
def test_workers_map_the_memory_of_shared_arrays(table, context):
    shared = pysampler.share(table)
    with pysampler.VectorEnv(
        [lambda: Reads(shared)] * 3, num_workers=2, context=context, on_worker_loss="restart"
    ) as envs:
        for lost in (False, True):
            if lost:  # the worker that replaces it maps the memory, too
                os.kill(envs.apply(lambda _: os.getpid())[0], signal.SIGKILL)
            observations, _ = envs.reset()
            assert np.array_equal(observations, table["rows"][:1].repeat(3, 0))
            rest = [one.tolist() for one in table["rest"]]
            assert envs.apply(look) == (("SharedArray", False, True, rest),) * 3


def test_views_travel_as_views():
    shared = pysampler.share(np.arange(24).reshape(4, 6))
    views = [shared[1], shared[::-1, ::2], shared.T, shared[1:1]]
    with pysampler.VectorEnv(
        [lambda: gym.make("CartPole-v1")],
        num_workers=1,
        worker_init=lambda: setattr(gym, "views", (views, shared + 1)),
    ) as envs:
        (got,) = envs.apply(lambda _: [np.array(one) for one in gym.views[0]])
        assert all(np.array_equal(a, b) for a, b in zip(got, views, strict=True))
        kinds = envs.apply(lambda _: [type(one).__name__ for one in (*gym.views[0], gym.views[1])])
    assert kinds == ([*["SharedArray"] * 4, "ndarray"],)


def test_no_process_can_write_to_shared_arrays(table):
    shared = pysampler.share(table)["rows"]
    table["rows"][:] = -1  # shared arrays are a copy
    assert shared[1, 1] == 4
    with pytest.raises(ValueError, match="read-only"):
        shared[0] = 1
    with pytest.raises(ValueError, match="cannot set WRITEABLE"):
        shared.flags.writeable = True
    with pytest.raises(PermissionError):
        os.pwrite(shared._memory.fd, b"1", 0)
    with pytest.raises(PermissionError):
        os.ftruncate(shared._memory.fd, 0)


def test_results_of_operations_are_plain_arrays():
    shared = pysampler.share(np.arange(4.0))
    assert type(shared + 1) is np.ndarray
    assert isinstance(shared.sum(), float)
    assert type(pickle.loads(pickle.dumps(shared[[0, 2]]))) is np.ndarray
    assert copy.deepcopy(shared) is shared


def test_trees_keep_their_types():
    shared = pysampler.share({"a": (np.ones(2),), "b": [Pair(np.zeros(1), np.ones(1))]})
    assert isinstance(shared["a"], tuple)
    assert isinstance(shared["b"][0], Pair)
    assert isinstance(shared["b"][0].second, SharedArray)


@pytest.mark.parametrize("dumps", [pickle.dumps, cloudpickle.dumps])
def test_a_pickle_without_descriptors_is_refused(dumps):
    with pytest.raises(TypeError, match="cannot pickle a shared array: its memory travels by desc"):
        dumps({"table": pysampler.share(np.arange(3))})


def test_messages_to_running_workers_refuse_shared_arrays():
    shared = pysampler.share(np.arange(3))
    with pysampler.VectorEnv([lambda: gym.make("CartPole-v1")], num_workers=1) as envs:
        with pytest.raises(TypeError, match="cannot pickle a shared array"):
            envs.set_attr("table", [shared])
        envs.reset()


def test_only_arrays_of_plain_numbers_are_shared():
    with pytest.raises(TypeError, match=r"\['a'\]\[1\] is a float, expected an array"):
        pysampler.share({"a": [np.zeros(1), 1.0]})
    with pytest.raises(TypeError, match="it is a MaskedArray, expected an array"):
        pysampler.share(np.ma.array([1.0, 99.0], mask=[0, 1]))
    with pytest.raises(ValueError, match="dtype object holds Python objects"):
        pysampler.share(np.array([None]))


def test_memory_is_freed_with_the_last_array():
    shared = pysampler.share({"a": np.arange(3), "b": np.arange(4)})
    view = shared["b"][1:]
    fd = view._memory.fd
    del shared
    assert view.tolist() == [1, 2, 3]
    del view
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)


@pytest.fixture
def reused():
    """A shared array whose descriptor's number the program has reused, and that number."""
    shared = [pysampler.share(np.ones(9))]
    fd = shared[0]._memory.fd
    other = os.open(os.devnull, os.O_RDONLY)
    os.dup2(other, fd)
    os.close(other)
    yield shared, fd
    shared.clear()
    os.close(fd)


def test_a_file_that_reuses_the_number_of_a_shared_array_stays_open(reused):
    shared, fd = reused
    shared.clear()
    assert os.path.samestat(os.fstat(fd), Path(os.devnull).stat())


def test_a_shared_array_whose_descriptor_was_closed_is_not_sent(reused):
    shared, _ = reused
    assert shared[0].sum() == 9
    with pytest.raises(ClosedError, match="this program has closed their descriptor"):
        reduction.ForkingPickler.dumps(shared[0])
    with pytest.raises(ClosedError, match="this program has closed their descriptor"):
        pysampler.VectorEnv([lambda: Reads({"rows": shared[0]})], num_workers=1)


def _double(array, results):
    results.send((type(array).__name__, (array * 2).tolist()))


@pytest.mark.slow
@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_multiprocessing_sends_shared_arrays(method):
    ours, theirs = multiprocessing.Pipe()
    shared = pysampler.share(np.arange(3))
    context = multiprocessing.get_context(method)
    child = context.Process(target=_double, args=(shared, theirs))
    child.start()
    assert ours.recv() == ("SharedArray", [0, 2, 4])
    child.join()
