"""Helpers for tests of actors."""

import functools
import os
import select
import signal
from contextlib import closing

import numpy as np
from scripted import Scripted, by_env

import pysampler

SCRIPTS = [".", "t", "..t", ".c", "....b", "......t"]


def envs_of(count=6, **kwargs):
    fns = [functools.partial(Scripted, SCRIPTS[i % len(SCRIPTS)]) for i in range(count)]
    return closing(pysampler.VectorEnv(fns, **kwargs))


def taken(actors, count, size=50):
    batches, have = [], 0
    while have < count:
        batches.append(actors.take(size).copy())
        have += len(batches[-1])
    return batches


def fill(actors):
    """Run until the ring is full and every actor is blocked; else one may find room later."""
    actors.begin()
    blocked = actors._progress.blocked
    while len(actors._ring) < actors._ring.high or not blocked[actors._first_groups].all():
        os.sched_yield()


def kill_worker(envs, index=0):
    """Kill a worker and wait until it has ended."""
    process = os.pidfd_open(envs._pool.pids[index])
    signal.pidfd_send_signal(process, signal.SIGKILL)
    select.select([process], [], [])
    os.close(process)


def rest_of(actors):
    actors.stop()
    return [records.copy() for records in iter(lambda: actors.take(50), None)]


class Weighted:
    """A policy that acts by its weights and reports them."""

    def __init__(self):
        self.weights = {"w": np.zeros(1000), "b": np.zeros((), np.int64)}

    def state_dict(self):
        return self.weights

    def load_state_dict(self, weights):
        self.weights = {name: value.copy() for name, value in weights.items()}

    def __call__(self, observations):
        w = self.weights["w"]
        assert (w == w[0]).all(), "torn"
        assert w[0] == self.weights["b"], "torn"
        return np.full((len(observations), 2), w[0] / 10, np.float32), {
            "w": np.full(len(observations), w[0])
        }


class OnDevice:
    """A policy of arrays that takes tensors, as policies on a device do."""

    def __init__(self, policy):
        self._policy = policy

    def __call__(self, observations):
        return self._policy(observations.numpy())


class RecurrentOnDevice(OnDevice):
    """The same with a state, which is a dict of an array and a tuple of one."""

    def initial_state(self, count):
        return self._policy.initial_state(count)

    def __call__(self, observations, state):
        state = {"steps": state["steps"].numpy(), "seen": (state["seen"][0].numpy(),)}
        return self._policy(observations.numpy(), state)


def expect_every_step(envs, batches):
    """Assert that batches have all steps of each env, in order."""
    rows = by_env(batches)
    assert [len(rows[env]) for env in range(envs.num_envs)] == envs.stats().steps.count.tolist()
