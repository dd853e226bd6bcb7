"""The base class of samplers: one thread at a time, and exclusive use of its vector env."""

import contextlib
import gc
import signal
import threading

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.error import AlreadyPendingCallError
from interrupts import Interrupted
from scripted import Scripted
from vectors import begun

from pysampler import _core
from pysampler._policies.sampler import Leasable, Sampler, makes_envs
from pysampler.errors import BusyError, ClosedError


class Counting(Sampler):
    """A sampler that does not sample."""

    _purpose = "count"
    _name = "counts"

    def __init__(self, envs, *, owned=False):
        self.stops = []
        self._lease_envs(envs, owned=owned)
        self._lease.stop = lambda: True

    def within(self, function=lambda: None):
        with self._enter("count"):
            return function()

    def _request_stop(self):
        self.stops.append("requested")

    def _end(self):
        self.stops.append("ended")
        return True


@pytest.fixture
def envs():
    with begun([Scripted] * 2, num_workers=0, seed=3) as envs:
        yield envs


def test_concurrent_calls_raise_busy_error(envs):
    refusals = []

    def from_another_thread():
        try:
            sampler.within()
        except BusyError as error:
            refusals.append(str(error))

    def within():
        thread = threading.Thread(target=from_another_thread)
        thread.start()
        thread.join()

    with Counting(envs) as sampler:
        sampler.within(within)
        assert refusals == ["cannot count: another thread is using these counts"]
        from_another_thread()
        assert len(refusals) == 1


def test_reentrant_calls_raise_and_errors_release_the_guard(envs):
    with Counting(envs) as sampler:
        with pytest.raises(BusyError, match="this thread is already using it"):
            sampler.within(sampler.within)
        assert sampler.within(lambda: 3) == 3


def test_a_closed_sampler_raises_closed_error(envs):
    sampler = Counting(envs)
    assert (sampler.closed, sampler.has_envs) == (False, True)
    sampler.close()
    sampler.close()
    assert (sampler.closed, sampler.has_envs) == (True, False)
    with pytest.raises(ClosedError, match="^cannot count: they are closed$"):
        sampler.within()
    assert sampler.stops == ["ended"]


def test_the_vector_env_refuses_calls_until_the_sampler_is_closed(envs):
    with Counting(envs) as sampler:
        with pytest.raises(AlreadyPendingCallError, match="counts have the envs until"):
            envs.reset()
        with pytest.raises(AlreadyPendingCallError, match="cannot call get_attr: counts have"):
            envs.get_attr("spec")
        with pytest.raises(AlreadyPendingCallError, match="cannot call call: counts have"):
            envs.call("render")
        with pytest.raises(AlreadyPendingCallError, match="counts"):
            Counting(envs)
        with sampler.calling_envs():
            observations, _ = envs.reset(seed=[5, 6])
        assert observations[:, 0].tolist() == [5, 6]
        with pytest.raises(AlreadyPendingCallError, match="counts"):
            envs.reset()
    assert envs.step(np.zeros((2, 2), np.float32))[0][:, 2].tolist() == [1, 1]


def test_a_dropped_sampler_requests_a_stop_and_frees_the_vector_env(envs):
    sampler = Counting(envs)
    stops = sampler.stops
    del sampler
    gc.collect()
    assert stops == ["requested"]  # a finalizer does not wait
    assert envs.reset(seed=[5, 6])[0][:, 0].tolist() == [5, 6]


@pytest.mark.parametrize("owned", [True, False])
def test_closing_a_sampler_closes_only_an_owned_vector_env(envs, owned):
    Counting(envs, owned=owned).close()
    assert envs.closed == owned


def test_wrappers_are_refused_with_the_reason(envs):
    class Names:
        names = "NormalizeReward"

    plain = Leasable(envs, owned=False, transforms=None, given=envs)
    plain.expect_no_wrappers("count", "that matters")
    wrapped = Leasable(envs, owned=False, transforms=Names(), given=envs)
    with pytest.raises(ValueError, match="cannot count: .* in NormalizeReward, and that matters; "):
        wrapped.expect_no_wrappers("count", "that matters")


def test_makes_envs_accepts_ids_specs_and_functions(envs):
    assert all(map(makes_envs, ["CartPole-v1", gym.spec("CartPole-v1"), Scripted]))
    assert not any(map(makes_envs, [envs, [Scripted], (Scripted, Scripted)]))


def test_a_guard_is_free_after_a_handler_raised_anywhere():
    """Python 3.14 runs handlers between ``__enter__`` and the block, too."""
    guard = _core.Guard("this", "closed", ClosedError)
    due = False

    def interrupt(*_):
        nonlocal due
        if due:
            due = False
            signal.setitimer(signal.ITIMER_REAL, 0)
            raise Interrupted

    before = signal.signal(signal.SIGALRM, interrupt)
    gc.disable()  # what a handler raises within a callback of the collector is lost
    try:
        for _ in range(200):
            with contextlib.suppress(Interrupted):
                due = True
                signal.setitimer(signal.ITIMER_REAL, 0.0002, 0.0002)
                while due:
                    with guard.entry("count"):
                        len(())
            assert not guard.inside
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        gc.enable()
