"""Returned observations belong to the caller, also in forks of the process."""

import os
import resource

import numpy as np
import pytest
from forks_in_tests import Fork
from gymnasium import spaces
from told_envs import SmallEnv
from vectors import begun


class Counting(SmallEnv):
    """Observes an image filled with its step count."""

    observation_space = spaces.Box(0, 255, (128, 128), np.uint8)

    def observe(self):
        return np.full((128, 128), self.steps, np.uint8)


@pytest.fixture(params=[0, 2], ids=["in process", "in workers"])
def envs(request):
    with begun([Counting] * 4, num_workers=request.param) as envs:
        yield envs


def step(envs):
    return envs.step(np.zeros(4, np.int64))[0]


def test_fork_keeps_the_observations_held_at_its_start(envs):
    held = [step(envs) for _ in range(5)]

    def look(wait):
        before = [int(one.max()) for one in held]
        wait()
        return before, [(int(one.min()), int(one.max())) for one in held]

    fork = Fork(look)
    held.clear()
    for _ in range(10):
        step(envs)
    assert fork.result() == ([1, 2, 3, 4, 5], [(n, n) for n in range(1, 6)])


def write_in_a_fork(held):
    def write(wait):
        held[:] = 99
        return int(held.min())

    assert Fork(write).result() == 99
    assert (held == 1).all()


def test_writes_in_a_fork_do_not_reach_the_parent(envs):
    write_in_a_fork(step(envs))


def test_writes_in_a_fork_after_close_do_not_reach_the_parent():
    with begun([Counting] * 4, num_workers=2) as envs:
        held = step(envs)
    del envs
    write_in_a_fork(held)


def test_parent_does_not_reuse_frames_of_a_fork_without_descriptors(envs):
    held = step(envs)
    frames = envs._core.results.frames.observations[0]
    assert np.shares_memory(held, frames)
    soft, hard = limit_descriptors()
    spare = []
    try:
        while True:
            try:
                spare.append(os.dup(0))
            except OSError:
                break
        one_pipe = spare[-4:]  # just enough for Fork
        for fd in one_pipe:
            os.close(fd)
        del spare[-4:]

        def look(wait):
            wait()
            return int(held.min()), int(held.max())

        fork = Fork(look)
    finally:
        for fd in spare:
            os.close(fd)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    held = None
    for _ in range(10):
        step(envs)
    assert fork.result() == (1, 1)


def limit_descriptors():
    """Lower the limit to a few more descriptors; return the previous limits."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = os.dup(0)  # the lowest free one
    os.close(used)
    resource.setrlimit(resource.RLIMIT_NOFILE, (used + 64, hard))
    return soft, hard


def test_forked_replacement_worker_writes_to_the_shared_frames():
    with begun([Counting] * 4, num_workers=2, context="fork", on_worker_loss="restart") as envs:
        held = [step(envs), step(envs)]
        os.kill(envs._core.pool.pids[0], 9)
        while "worker_lost" not in envs.step(np.zeros(4, np.int64))[4]:
            pass
        step(envs)  # begins the next episode
        assert (step(envs)[:2] == 1).all()  # by the replacement worker
        assert [int(one.max()) for one in held] == [1, 2]
