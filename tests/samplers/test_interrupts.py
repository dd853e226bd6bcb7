"""Signal handlers that raise or close, during recordings and samplers."""

import contextlib
import itertools
import os
import threading

import numpy as np
import pytest
from interrupts import Interrupted, at_each_point, at_point, handler, points, signal_later
from interrupts_in_tests import (
    Counter,
    Slow,
    closing_while_pending,
    counters,
    garbage_goes_with_its_test,  # noqa: F401 - a fixture for all
)
from small_envs import Small

import pysampler
from pysampler._rollouts import main_runner
from pysampler.errors import ClosedError

# Objects that an exception leaves open are closed when dropped, and Python warns.
pytestmark = [
    pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning"),
    pytest.mark.filterwarnings("ignore:.*socket.socket:pytest.PytestUnraisableExceptionWarning"),
]


@pytest.mark.slow
@closing_while_pending
def test_recordings_hold_each_batch_once_despite_interrupts(tmp_path):
    path = tmp_path / "recording"
    batches = []
    with contextlib.closing(counters(6, groups=3, record_to=path)) as envs:
        envs.async_reset()

        def check(results, where):
            if results is None:
                results = envs.recv(2)
            ids = results[4]["env_id"].tolist()
            batches.append(ids)
            envs.send([0] * len(ids), ids)
            if len(batches) % 20 == 0 and os.fork() == 0:  # a buffered file would be written twice
                envs.close()
                os._exit(0)

        at_each_point(lambda: envs.recv(2), check)
    with contextlib.closing(counters(6, groups=3, replay_from=path)) as envs:
        envs.async_reset()
        for n, ids in enumerate(batches):
            _, results, _ = at_point(n % 90 + 1, envs.recv)
            results = envs.recv() if results is None else results
            assert results[4]["env_id"].tolist() == ids
            envs.send([0] * len(ids), ids)
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


# -- samplers -------------------------------------------------------------------------------------


def policy(observations):
    return (observations[:, 1] % 3).astype(np.int64)


@pytest.mark.slow
@pytest.mark.parametrize("where", ["main", "workers"])
def test_a_handler_may_close_rollouts_at_any_point(where):
    with contextlib.closing(counters()) as envs:
        for n in range(1, 1500, 61):
            some = pysampler.Rollouts(envs, policy, 4, policy_in=where)
            next(some)
            try:
                reached, rollout, at = at_point(
                    n, lambda s=some: next(s), lambda *_, s=some: s.close()
                )
            except ClosedError:
                pass
            else:
                assert not reached or (np.diff(rollout.observations[:, :, 1], axis=0) == 1).all(), (
                    at
                )
            some.close()
            envs.reset()
            envs.step([0] * 4)


def test_a_handler_may_close_rollouts_while_they_resume():
    with contextlib.closing(counters()) as envs:
        some = pysampler.Rollouts(envs, policy, 4)
        for n in itertools.count(1):
            some.pause()
            try:
                reached, _, _ = at_point(n, some.resume, lambda *_, s=some: s.close())
            except ClosedError:
                reached = True
            if not reached:
                break
            assert some.closed
            envs.reset()
            some = pysampler.Rollouts(envs, policy, 4)
        some.close()
        assert n > 5


@pytest.mark.slow
def test_a_handler_that_closes_rollouts_returns_no_partial_rollout():
    class Slow(Counter):
        def step(self, action):
            threading.Event().wait(0.01)  # an env that is slow
            return super().step(action)

    with contextlib.closing(pysampler.VectorEnv([Slow] * 2, num_workers=2)) as envs:
        some = pysampler.Rollouts(envs, policy, 40, policy_in="workers")
        next(some)
        timer = signal_later(0.1)
        with handler(lambda *_: some.close()):
            timer.start()
            with pytest.raises(ClosedError):
                next(some)
            timer.join()


@pytest.mark.slow
def test_a_handler_may_close_actors_at_any_point():
    with contextlib.closing(counters()) as envs:
        for n in range(1, 900, 37):
            actors = pysampler.Actors(envs, policy)
            with contextlib.suppress(ClosedError):
                at_point(
                    n, lambda a=actors: a.take(8, min_records=8), lambda *_, a=actors: a.close()
                )
            actors.close()
            envs.reset()
            envs.step([0] * 4)


@pytest.mark.slow
def test_a_second_interrupt_while_a_rollout_is_dropped_is_harmless(monkeypatch):
    with contextlib.closing(counters()) as envs:
        some = pysampler.Rollouts(envs, policy, 4, overlap=True)
        next(some)
        end = main_runner.MainRunner.end

        def interrupted(self):
            monkeypatch.setattr(main_runner.MainRunner, "end", end)
            raise Interrupted

        monkeypatch.setattr(main_runner.MainRunner, "end", interrupted)
        _, rollout, _ = at_point(1, lambda: next(some), only=("finish",))
        assert rollout is None
        with pytest.raises(Interrupted):
            next(some)
        for _ in range(3):
            assert (np.diff(next(some).observations[:, :, 1], axis=0) == 1).all()
        some.close()
        envs.reset()


class ElapsedError(Exception):
    """An ordinary exception that a handler may raise, such as a time-out."""


@contextlib.contextmanager
def elapsing(times):
    left = [times]

    def elapse(*_):
        if left[0]:
            left[0] -= 1
            raise ElapsedError

    with handler(elapse):
        yield


def test_an_exception_of_a_handler_is_not_an_env_error():
    with contextlib.closing(counters()) as envs, elapsing(1):
        envs.call_async("__class__")
        envs.call_wait()
        envs.reset()
        with pytest.raises(ElapsedError) as caught:
            envs.apply(lambda _: Slow(), envs=[0])
        assert type(caught.value) is ElapsedError  # not an EnvError
        assert isinstance(envs.apply(lambda _: Slow(), envs=[0])[0], Slow)
        assert envs.step([0] * 4)[1].tolist() == [1.0] * 4


class Reporting:
    """A trainer whose report takes long to read, so that a signal arrives meanwhile."""

    def __init__(self, index, seed):
        self.weights = {"w": np.zeros(1)}

    def state_dict(self):
        return self.weights

    def load_state_dict(self, weights):
        self.weights = weights

    def train(self, steps):
        return {"slow": Slow()}


def test_an_exception_of_a_handler_does_not_close_averaging():
    with pysampler.Averaging(Reporting, workers=1) as averaging, elapsing(1):
        with pytest.raises(ElapsedError):
            averaging.round(1)
        assert not averaging.closed
        averaging.round(1)


@pytest.mark.slow
def test_an_exception_of_a_handler_does_not_close_actors():
    with contextlib.closing(counters()) as envs, pysampler.Actors(envs, policy) as actors:
        actors.take(4)
        for n in range(1, 200, 7):

            def elapse(*_):
                raise ElapsedError

            with contextlib.suppress(ElapsedError):
                at_point(n, lambda: actors.take(8, min_records=8), elapse)
            assert not actors.closed
            assert actors.take(1) is not None


@pytest.mark.slow
@pytest.mark.parametrize("overlap", [False, True])
def test_rollouts_reset_again_after_an_interrupted_reset(overlap):
    with contextlib.closing(counters()) as envs:
        for n in points(7):
            some = pysampler.Rollouts(envs, policy, 4, overlap=overlap)
            reached, _, where = at_point(n, lambda one=some: next(one))
            for _ in range(2):
                steps = next(some).observations[:, :, 1]
                assert (np.diff(steps, axis=0) == 1).all(), where
            some.close()
            if not reached:
                break


@pytest.mark.parametrize("policy_in", ["main", "workers"])
@pytest.mark.parametrize("first", [ValueError, KeyboardInterrupt])
def test_a_rollout_ended_by_two_exceptions_leaves_no_steps(monkeypatch, first, policy_in):
    """The second exception comes where the first one would drop the pending rollout."""
    envs = pysampler.VectorEnv([Small] * 2, num_workers=1)
    with pysampler.Rollouts(envs, np.copy, 8, policy_in=policy_in) as rollouts:
        next(rollouts)

        def hit():
            raise Interrupted

        with monkeypatch.context() as patched:
            name = "_drop" if first is ValueError else "_abandon"
            patched.setattr(rollouts, name, hit)
            runner = rollouts._runner
            finish, calls = runner.finish, []

            def finish_half():
                calls.append(1)
                finish()
                raise first

            patched.setattr(runner, "finish", finish_half)
            with pytest.raises(Interrupted):
                next(rollouts)
        assert calls
        steps = next(rollouts).observations[:, 0, 0].tolist()
        assert steps == list(range(9))
