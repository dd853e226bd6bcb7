"""Vector envs and their parts, called by more threads than one, with Python's lock and without."""

import contextlib
import functools
import gc
import sys
import threading

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.error import AlreadyPendingCallError, NoAsyncCallError
from hammers import calling, together
from told_envs import SmallEnv
from vectors import begun

import pysampler
from pysampler import _core
from pysampler._workers.jobs import Note
from pysampler.errors import BusyError, ClosedError

LANES = {
    "threads": {"context": "threads", "num_workers": 2},
    "inline": {"num_workers": 0},
}
REFUSED = (BusyError, ClosedError, AlreadyPendingCallError, NoAsyncCallError)
ACTIONS = np.zeros(4, np.int64)


class Counted(SmallEnv):
    """Counts its steps: in its observations, and in its infos with a text beside."""

    def observe(self):
        return np.full(2, float(self.steps))

    def begins(self):
        return {"steps": 0, "text": "begun"}

    def info(self, action):
        return {"steps": self.steps, "text": str(self.steps), "own": {"half": self.steps / 2}}


class Count(Note):
    doing = "counting"
    applied = None  # a list for each thread that sends

    def __init__(self, sender, number):
        self.sender, self.number = sender, number

    def apply(self, server):
        self.applied[self.sender].append((id(server), self.number))


@pytest.mark.slow
@pytest.mark.parametrize("lanes", LANES)
def test_no_note_of_any_thread_is_lost(lanes, monkeypatch):
    """Nor does one overtake another of its thread."""
    senders, each = 3, 200
    monkeypatch.setattr(Count, "applied", [[] for _ in range(senders)])
    with begun([Counted] * 4, **LANES[lanes]) as envs:
        pool, over = envs._pool, threading.Event()
        left = list(range(senders))

        def send(sender):
            for number in range(each):
                pool.note(lambda envs, number=number: Count(sender, number))
            left.remove(sender)
            if not left:
                over.set()

        step = calling(lambda: envs.step(ACTIONS), until=over)
        together(step, *(functools.partial(send, sender) for sender in range(senders)))
        envs.step(ACTIONS)
        servers = max(1, envs.num_workers)
    for applied in Count.applied:
        of_servers = {}
        for server, number in applied:
            of_servers.setdefault(server, []).append(number)
        assert list(of_servers.values()) == [list(range(each))] * servers


@pytest.mark.slow
@pytest.mark.parametrize("lanes", LANES)
def test_steps_of_several_threads_are_whole_or_refused(lanes):
    """Others ask meanwhile what is pending; no step is made twice, and no result is mixed."""
    with begun([Counted] * 4, **LANES[lanes]) as envs:
        for _ in range(3):
            envs.step(ACTIONS)  # infos get their columns
        over, counts = threading.Event(), [[], []]

        def step(mine):
            while sum(map(len, counts)) < 200:
                try:
                    observations, *_, infos = envs.step(ACTIONS)
                except (BusyError, AlreadyPendingCallError):
                    continue
                assert (observations == observations[0, 0]).all()
                assert (infos["steps"] == observations[0, 0]).all()
                assert list(infos["text"]) == [str(int(observations[0, 0]))] * 4
                mine.append(int(observations[0, 0]))
            over.set()

        looks = [lambda: envs.pending, lambda: envs.ready, lambda: repr(envs), lambda: envs.closed]
        looks += [lambda: envs.stats().steps.count, lambda: envs.set_options(None, {"a": 1})]
        look = calling(*looks, until=over, refused=REFUSED)
        together(*(functools.partial(step, mine) for mine in counts), look, look)
        made = sorted(counts[0] + counts[1])
        assert made == list(range(4, 4 + len(made)))


def test_results_on_their_way_to_a_thread_are_not_those_of_another():
    with begun([Counted] * 4, **LANES["threads"]) as envs:
        for _ in range(3):
            envs.step(ACTIONS)
        results, call = [], envs._core.call
        # A thread that has left the guard, and has not returned from step() yet.
        together(lambda: results.append(call.step(ACTIONS)))
        assert (results[0][0] == 4).all()
        with pytest.raises(BusyError, match="another thread is using this vector env"):
            envs.step(ACTIONS)
        assert not call.returned
        call.returned = True
        call.forget()
        assert (envs.step(ACTIONS)[0] == 5).all()


def test_another_thread_gets_the_results_of_a_thread_that_an_exception_has_ended():
    """As of ``PyThreadState_SetAsyncExc``, or of a handler in the main thread."""

    def traced(frame, event, _):
        if event == "line" and not envs._core.call.returned:
            raise KeyError
        return traced

    def interrupted():
        sys.settrace(lambda frame, *_: traced if frame.f_code is step else None)
        with pytest.raises(KeyError):
            envs.step(ACTIONS)

    step = pysampler.VectorEnv.step.__code__
    with begun([Counted] * 4, **LANES["threads"]) as envs:
        for _ in range(3):
            envs.step(ACTIONS)
        together(interrupted)
        with pytest.raises(AlreadyPendingCallError):
            envs.step(ACTIONS)
        assert (envs.step_wait()[0] == 4).all()
        assert (envs.step(ACTIONS)[0] == 5).all()


@pytest.mark.slow
def test_parts_of_several_threads_are_whole_or_refused():
    with begun([Counted] * 4, groups=2, **LANES["threads"]) as envs:
        over, received = threading.Event(), [0]

        def receive():
            while received[0] < 400:
                try:
                    observations, *_, infos = envs.recv(timeout=0.001)
                except REFUSED:
                    continue
                received[0] += len(observations)
                assert (observations[:, 0] == observations[:, 1]).all()
                if len(observations) > 0:
                    envs_back = infos["env_id"]
                    while True:
                        try:
                            envs.send(ACTIONS[envs_back], envs_back)
                            break
                        except BusyError:
                            pass
            over.set()

        envs.send(ACTIONS)
        look = calling(lambda: envs.pending, lambda: envs.ready, until=over, refused=REFUSED)
        together(receive, receive, look)
        while envs.pending:
            envs.recv()


# Results may be on their way to the thread that steps.
@pytest.mark.filterwarnings("ignore:.*while waiting for a pending call")
@pytest.mark.slow
@pytest.mark.parametrize("lanes", LANES)
def test_vector_envs_may_be_closed_by_several_threads_at_once(lanes):
    for _ in range(8):
        envs = begun([Counted] * 4, **LANES[lanes])
        over = threading.Event()
        refused = (*REFUSED, gym.error.ClosedEnvironmentError)
        use = calling(lambda envs=envs: envs.step(ACTIONS), until=over, refused=refused)
        looks = [lambda envs=envs: envs.pending, lambda envs=envs: repr(envs)]
        look = calling(*looks, until=over, refused=refused)

        def close(envs=envs, over=over):
            while not envs.closed:
                with contextlib.suppress(BusyError):
                    envs.close()
            over.set()

        together(use, look, close, close)
        assert envs.closed
        with pytest.raises(gym.error.ClosedEnvironmentError):
            envs.step(ACTIONS)
    gc.collect()


@pytest.mark.slow
def test_rollouts_and_their_envs_refuse_a_second_thread():
    policy = lambda obs: np.zeros(len(obs), np.int64)  # noqa: E731
    options = {"vector_kwargs": LANES["threads"], "policy_in": "main"}
    with pysampler.Rollouts([Counted] * 4, policy, 4, **options) as rollouts:
        over, made = threading.Event(), []

        def sample():
            while len(made) < 20:
                try:
                    rollout = next(rollouts)
                except (BusyError, AlreadyPendingCallError):
                    continue
                rewards = np.asarray(rollout.rewards)
                assert (rewards == 1).all()
                made.append(rewards.size)
            over.set()

        look = calling(
            lambda: rollouts.envs.stats(), lambda: repr(rollouts), until=over, refused=REFUSED
        )
        together(sample, sample, look)


@pytest.mark.slow
def test_lists_of_actions_may_change_while_they_are_written():
    """The actions of such a step are old or new ones, or the list is refused."""
    with begun([Counted] * 4, num_workers=0) as envs:
        actions, over = [0, 1, 0, 1], threading.Event()

        def change():
            while not over.is_set():
                actions[:] = [1, 0, 1, 0]
                actions.pop()
                actions.append(0)

        def step():
            for _ in range(2_000):
                try:
                    envs.step(actions)
                except ValueError as error:
                    assert "actions" in str(error)
            over.set()

        together(change, step)


def test_a_trace_may_be_written_by_several_threads():
    segment = pysampler.sync.Segment(_core.Track.size_of(1))
    track = _core.Track(segment, segment.size - _core.Track.size_of(1), 0)
    together(*(lambda: [track.end(1, 2, track.begin()) for _ in range(1_000)] for _ in range(3)))
