"""Closed objects: each public attribute answers or raises ClosedError, and their memory is free."""

import functools
import gc
import inspect
import os
import signal
from pathlib import Path

import numpy as np
import pytest
from made_up import TellingEnv

import pysampler
from pysampler._common import closing
from pysampler.errors import ClosedError, WorkerLostError


def still(observations):
    return np.zeros(len(observations), np.int64)


def vector_env(**options):
    return pysampler.VectorEnv([TellingEnv] * 2, **options)


def sampler(kind, **options):
    return kind([TellingEnv] * 2, still, num_workers=2, **options)


MAKE = {
    "processes": functools.partial(vector_env, num_workers=2),
    "this process": functools.partial(vector_env, num_workers=0),
    "both": functools.partial(vector_env, num_workers=1, main_envs=1),
    "threads": functools.partial(vector_env, num_workers=2, context="threads"),
    "spares": functools.partial(vector_env, num_workers=2, spare_envs=1),
    "rollouts": functools.partial(sampler, pysampler.Rollouts, horizon=4),
    "rollouts in workers": functools.partial(
        sampler, pysampler.Rollouts, horizon=4, policy_in="workers"
    ),
    "actors": functools.partial(sampler, pysampler.Actors, high=100),
}


@pytest.mark.parametrize("make", MAKE.values(), ids=MAKE)
@pytest.mark.parametrize("used", [False, True])
def test_each_attribute_of_a_closed_object_answers_or_raises_closed_error(make, used):
    closed = make()
    if used and isinstance(closed, pysampler.VectorEnv):
        closed.reset()
        closed.step([0, 0])
    closed.close()
    looked = 0
    for name in dir(closed):
        if name.startswith("_"):
            continue
        try:
            value = getattr(closed, name)
            if inspect.ismethod(value) and not _needed(value):
                value()
        except ClosedError:
            pass
        looked += 1
    assert looked > 5
    assert repr(closed)
    closed.close()


def _needed(method):
    """Return the parameters that have no default."""
    kinds = inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD
    parameters = inspect.signature(method).parameters.values()
    return [one for one in parameters if one.default is one.empty and one.kind not in kinds]


def mapped():
    links = [str(fd.readlink()) for fd in Path("/proc/self/fd").iterdir() if fd.is_symlink()]
    maps = Path("/proc/self/maps").read_text().splitlines()
    return sum("memfd" in link for link in links), sum("memfd" in line for line in maps)


def test_close_after_a_loss_frees_memory_that_the_exception_refers_to():
    gc.collect()
    gc.disable()
    try:
        before, errors = mapped(), []
        for _ in range(3):
            envs = vector_env(num_workers=2)
            envs.reset()
            os.kill(envs._pool.pids[0], signal.SIGKILL)
            with pytest.raises(WorkerLostError) as raised:
                while True:
                    envs.step([0, 0])
            errors.append(raised.value)
            envs.close()
        assert mapped() == before
    finally:
        gc.enable()


@pytest.mark.parametrize(("sleep", "looks"), [(0.0625, 16), (3600.0, 10)])
def test_waits_count_the_time_of_other_threads_and_no_suspensions(monkeypatch, sleep, looks):
    clock = [0.0]

    class Time:
        monotonic = staticmethod(lambda: clock[0])

        @staticmethod
        def sleep(_):
            clock[0] += sleep

    monkeypatch.setattr(closing, "time", Time)
    assert not closing.comes_true(lambda: False, 0.95)
    assert round(clock[0] / sleep) == looks
