"""Phases: actors fill the ring and the learner drains it, in turn; no record is lost."""

import functools
import itertools
import os
import signal
import threading
from contextlib import closing

import numpy as np
import pytest
from actors_in_tests import expect_every_step
from fork_server_in_tests import wait_until
from gymnasium import spaces
from interrupts import at_point
from scripted import Mortal, by_env
from small_envs import Small

import pysampler
from pysampler._actors import actor_policy
from pysampler._actors.actors import _CHUNK
from pysampler._actors.free_running_policy import CHECK_SECONDS
from pysampler.errors import WorkerLostError
from pysampler.sync import now, sleep_until

# Observes when its last step was made, ns.
Timed = functools.partial(
    Small,
    observe=lambda env: np.array([now()]),
    spaces=(spaces.Box(0, 2**62, (1,), np.int64), Small.action_space),
)


def act(observations):
    return np.zeros((len(observations), 1))


def envs_of(count=4, **kwargs):
    fns = [functools.partial(Timed, 5 + i) for i in range(count)]
    return closing(pysampler.VectorEnv(fns, **kwargs))


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("low", [0, 10])
@pytest.mark.parametrize("size", [7, 64, 1000])
def test_phases_lose_no_record(workers, low, size):
    with envs_of(num_workers=workers) as envs:
        actors = pysampler.Actors(envs, act)
        batches = []
        for phase in actors.phases(64, low):
            before = sum(map(len, batches))
            batches += [records.copy() for records in phase.batches(size)]
            if workers > 0 and not actors.stopped:
                assert sum(map(len, batches)) - before == 64 - low
            if phase.number == 8:
                actors.stop()
        expect_every_step(envs, batches)


@pytest.mark.slow
def test_actors_make_no_step_while_the_learner_drains_a_phase():
    """No step falls between the moment all actors are blocked and the end of the phase."""
    with envs_of(num_workers=2) as envs:
        actors = pysampler.Actors(envs, act)
        made, learning = [], []
        for phase in actors.phases(64):
            assert phase.filling < phase.full
            # Both block once they have to hand over the steps under way.
            heads = actors._first_groups
            while (~actors._progress.blocked[heads].astype(bool)).any():
                os.sched_yield()
            began = now()
            for records in phase.batches(16):
                made.append(np.array(records.next_observations).ravel().copy())
                # Longer than the actors wait between two checks for a stop.
                sleep_until(now() + int(1.2e9 * CHECK_SECONDS) * (phase.number < 4))
            learning.append((began, now()))
            if phase.number == 10:
                actors.stop()
                break
        made += [
            np.array(r.next_observations).ravel().copy() for r in actors.batches(64, min_records=1)
        ]
        times = np.concatenate(made)
        assert len(times) >= 640
        for began, drained in learning:
            assert not ((times > began) & (times < drained)).any()


def test_actors_resume_although_the_ring_has_records_of_the_next_phase(monkeypatch):
    """The end of a phase wakes them. Their waits time out only after an hour."""
    events = [(threading.Event(), threading.Event()) for _ in range(2)]
    (_, first), (second_begun, second) = events

    def waiting(begun, go):
        """Return an env whose step sets one event, and waits for another."""
        return Timed(10, before=lambda env: (begun.set(), go.wait()))

    fns = [functools.partial(waiting, *both) for both in events]
    with closing(pysampler.VectorEnv(fns, num_workers=2, context="threads")) as envs:
        actors = pysampler.Actors(envs, act, steps=1)
        with monkeypatch.context() as patch:
            patch.setattr(actor_policy, "CHECK_SECONDS", 3600)
            phases = actors.phases(4)
            actors.begin()
            second_begun.wait()
            first.set()
            phase = next(phases)
            assert sum(map(len, (phase.take(2), phase.take(1)))) == 3
            second.set()  # pushes a record, since there is room, and then blocks
            wait_until(lambda: actors._progress.blocked[actors._first_groups].all())
            assert len(phase.take(4)) == len(actors) == 1
            first.clear()
            phase = next(phases)
        first.set()
        assert phase.all().env.tolist() == [1] * 4
        actors.stop()
        for _ in actors.batches(4, min_records=1):  # resumes those that wait for an hour
            pass


def test_records_left_in_a_phase_are_the_next_one():
    with envs_of(num_workers=2) as envs:
        actors = pysampler.Actors(envs, act)
        sizes = []
        for phase in actors.phases(64):
            sizes.append((phase.left, len(phase.take(24))))
            sleep_until(now() + int(1.2e9 * CHECK_SECONDS) * (phase.number < 4))
            if phase.number == 6:
                break
        assert sizes == 2 * [(64, 24), (40, 24), (16, 16)]


def test_a_phase_ends_despite_a_record_claimed_by_a_dead_process(tmp_path):
    gate = tmp_path / "gate"
    fns = [functools.partial(Timed, 10, before=lambda env: wait_until(gate.exists))] * 4
    with pysampler.VectorEnv(fns, num_workers=1) as envs:
        actors = pysampler.Actors(envs, act)
        phases = actors.phases(4 * _CHUNK + 2)  # nothing is left to hand over
        actors.begin()
        child = os.fork()
        if child == 0:
            actors._ring.push_many(np.zeros(1, actors._layout.dtype))
            actors._ring.claim()
            os._exit(0)
        os.waitpid(child, 0)
        gate.touch()
        for phase in phases:
            assert sum(map(len, phase.batches(16))) == 4 * _CHUNK + 2
            if phase.number == 3:
                break


@pytest.mark.parametrize("drop", [False, True])
def test_records_left_in_a_phase_return_in_the_next_unless_dropped(drop):
    with envs_of(num_workers=2) as envs:
        actors = pysampler.Actors(envs, act)
        seen = []
        for phase in actors.phases(64, drop=drop):
            seen.append(phase.take(8).copy())
            if phase.number == 5:
                actors.stop()
                break
        stats = actors.stats()
        assert sum(map(len, seen)) == stats.taken
        if drop:
            assert stats.dropped == 4 * 64 - sum(map(len, seen[:4]))
        else:
            assert stats.dropped == 0
            rest = [records.copy() for records in actors.batches(50, min_records=1)]
            expect_every_step(envs, seen + rest)


@pytest.mark.slow
def test_a_worker_killed_in_a_phase_does_not_block_it():
    with envs_of(
        num_workers=2, on_worker_loss="restart", max_restarts=8, restart_window=1.0
    ) as envs:
        actors = pysampler.Actors(envs, act)
        for phase in actors.phases(64):
            os.kill(envs._pool.pids[phase.number % 2], signal.SIGKILL)
            assert sum(len(records) for records in phase.batches(16)) == 64
            if phase.number == 6:
                break
        actors.close()


def test_all_returns_the_phase_as_one_batch():
    with envs_of(num_workers=2) as envs:
        actors = pysampler.Actors(envs, act)
        batches = []
        for phase in actors.phases(48):  # of 64 slots
            batches.append(phase.all().copy())
            assert (len(batches[-1]), phase.left, phase.all()) == (48, 0, None)
            if phase.number == 5:
                break
        actors.close()
        by_env(batches)


@pytest.mark.parametrize("left", [0, 24])
@pytest.mark.parametrize("drop", [False, True])
def test_an_interrupted_wait_does_not_end_the_phases(left, drop):
    """Each record is taken or dropped once, wherever a signal handler raises."""
    with envs_of(num_workers=2) as envs:
        actors = pysampler.Actors(envs, act)
        phases = actors.phases(64, drop=drop)
        batches = []
        for n in itertools.count(1):
            reached, phase, where = at_point(n, lambda: next(phases))
            assert (phase is None) == reached, where
            phase = next(phases) if phase is None else phase
            assert phase.number == n, where
            assert phase.left > 0, where
            while phase.left > left:
                batches.append(phase.take(phase.left - left).copy())
            if not reached:
                break
        actors.stop()
        batches += [records.copy() for records in actors.batches(64, min_records=1)]
        stats = actors.stats()
        assert stats.taken == sum(map(len, batches))
        assert stats.taken + stats.dropped == envs.stats().steps.count.sum()
        assert (stats.dropped > 0) == (drop and left > 0)
        if not drop:
            by_env(batches)


@pytest.mark.parametrize("workers", [0, 2])
def test_phases_end_after_a_stop_even_if_the_learner_takes_nothing(workers):
    with envs_of(num_workers=workers) as envs:
        actors = pysampler.Actors(envs, act)
        numbers = []
        for phase in actors.phases(64):
            numbers.append(phase.number)
            if phase.number == 2:
                actors.stop()
            assert phase.number < 10
        assert numbers == [1, 2, 3]
        assert sum(map(len, actors.batches(64, min_records=1))) == envs.stats().steps.count.sum()


def test_a_loss_is_raised_although_the_learner_takes_nothing_from_the_last_phase():
    with pysampler.VectorEnv([functools.partial(Mortal, "die", 40)], num_workers=1) as envs:
        actors = pysampler.Actors(envs, lambda observations: np.sin(observations[:, 1:]))
        with pytest.raises(WorkerLostError, match="worker 0"):
            for phase in actors.phases(64):
                assert 0 < phase.left < 64


def test_records_of_an_interrupted_take_stay_in_their_phase():
    with envs_of(num_workers=2) as envs:
        actors = pysampler.Actors(envs, act)
        phases = actors.phases(64)
        batches = []
        first = next(phases)
        actors._reader.returning = first.take(16)  # an exception came before the caller had them
        second = next(phases)
        assert (first.left, second.left) == (64, 64)
        batches += [records.copy() for records in second.batches(16)]
        actors.stop()
        batches += [records.copy() for records in actors.batches(64, min_records=1)]
        expect_every_step(envs, batches)


@pytest.mark.parametrize("count", ["x", 0, 2.5, None])
def test_phase_take_refuses_bad_counts(count):
    with envs_of(num_workers=0) as envs, pysampler.Actors(envs, act) as actors:
        phase = next(actors.phases(8))
        with pytest.raises(ValueError, match=f"cannot take records: count {count!r}"):
            phase.take(count)
        assert phase.left > 0


def test_bad_high_and_low_marks_are_refused():
    with envs_of(num_workers=0) as envs:
        actors = pysampler.Actors(envs, act)
        with pytest.raises(ValueError, match="cannot act: high 0"):
            actors.phases(0)
        with pytest.raises(ValueError, match="cannot act: low 5"):
            actors.phases(5, 5)
        actors.take(1)
        with pytest.raises(ValueError, match="begun already"):
            actors.phases(8)
        actors.close()
        actors = pysampler.Actors(envs, act, max_lag=1)
        with pytest.raises(ValueError, match="cannot act in phases: max_lag drops"):
            actors.phases(8)
