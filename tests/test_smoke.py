"""Smoke test of an installed wheel, without optional dependencies."""

import pickle
import subprocess
import sys
from multiprocessing import get_context

import numpy as np
import pytest

import pysampler
from pysampler import sync


def _double(flag, answer, ring, array):
    assert flag.wait(timeout=30)
    array.view[:] *= 2
    ring.push([1.5, 2.5])
    answer.set()


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_handles_work_in_children_of_every_start_method(method):
    context = get_context(method)
    flag, answer = sync.Flag(), sync.Flag()
    segment = sync.Segment(1 << 16)
    ring = sync.Ring(4, np.float32, 2, segment)
    array = sync.Array(3, np.int64, segment)
    array.view[:] = 1, 2, 3
    child = context.Process(target=_double, args=(flag, answer, ring, array))
    child.start()
    flag.set()
    assert answer.wait(timeout=60)
    assert ring.pop().tolist() == [1.5, 2.5]
    assert array.view.tolist() == [2, 4, 6]
    child.join()
    assert child.exitcode == 0


def test_the_version_has_three_parts():
    assert pysampler.__version__.count(".") >= 2


def test_import_on_another_system_raises_one_clear_error():
    code = "import sys; sys.platform = 'win32'; import pysampler"
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    assert result.stderr.splitlines()[-1] == (
        "ImportError: pysampler needs Linux (it is built on futexes, memfds and pidfds); "
        "this is win32"
    )


def test_a_closed_handle_cannot_be_pickled():
    flag = sync.Flag()
    flag.close()
    with pytest.raises(pysampler.errors.ClosedError, match="cannot use Flag: it is closed"):
        pickle.dumps(flag)


def test_a_vector_env_steps():
    envs = pysampler.make_vec("CartPole-v1", num_envs=3, vector_kwargs={"num_workers": 2})
    assert envs.reset(seed=1)[0].shape == (3, 4)
    observations, rewards, *_ = envs.step(np.zeros(3, np.int64))
    assert observations.shape == (3, 4)
    assert rewards.tolist() == [1, 1, 1]
    envs.close()
