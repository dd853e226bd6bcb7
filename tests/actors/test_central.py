"""Actors(device=): the main process acts for the workers that ask."""

import functools
import itertools
import os
import threading

import numpy as np
import pytest
from actors_in_tests import OnDevice, Weighted, envs_of, fill, rest_of, taken
from fork_server_in_tests import wait_until
from interrupts import at_point
from programs import completed
from scripted import policy

import pysampler
from pysampler._actors.central import Requests
from pysampler.errors import EnvError, StopActors
from pysampler.sync import Segment

pytest.importorskip("torch", reason="policies on a device take tensors")


class WeightedOnDevice(Weighted):
    def __call__(self, observations):
        return super().__call__(observations.numpy())


@pytest.mark.parametrize("groups", [1, 2])
def test_records_carry_the_version_of_the_weights_that_acted(groups):
    acting = WeightedOnDevice()
    with (
        envs_of(num_workers=2, groups=groups) as envs,
        pysampler.Actors(envs, acting, device="cpu") as actors,
    ):
        for value in range(1, 6):
            version = actors.publish({"w": np.full(1000, float(value)), "b": value})
            seen = set()
            while len(seen) < 6:
                records = actors.take(64)
                np.testing.assert_array_equal(records.w, records.version - 1)
                seen |= set(records.env[records.version == version].tolist())


def test_module_on_a_device_acts_with_published_weights():
    import torch

    module = torch.nn.Linear(4, 2).double()
    with envs_of(num_workers=2) as envs, pysampler.Actors(envs, module, device="cpu") as actors:
        actors.take(1)
        with torch.no_grad():
            module.weight.zero_()
            module.bias.fill_(3.0)
        assert (actors.take(32).actions != 3.0).any()  # the copy that acts has its own weights
        version = actors.publish()
        while not (new := (records := actors.take(32)).version == version).any():
            pass
        assert (records.actions[new] == 3.0).all()


class Gated:
    """Its second call waits until a file exists; reports how many envs each call is for."""

    def __init__(self, gate):
        self.gate, self.calls = gate, 0

    def __call__(self, observations):
        wait_until(lambda: self.calls != 1 or self.gate.exists())
        self.calls += 1
        count = len(observations)
        return np.zeros((count, 2), np.float32), {"together": np.full(count, count)}


class Learned:
    """Begins episodes with a state that is one of its weights."""

    def __init__(self):
        self.first = np.zeros(())

    def state_dict(self):
        return {"first": self.first}

    def load_state_dict(self, weights):
        self.first = weights["first"].copy()

    def initial_state(self, count):
        return np.full((count, 1), self.first)

    def __call__(self, observations, state):
        return np.zeros((len(observations), 2), np.float32), {"state": state}


@pytest.mark.slow
def test_episodes_begin_with_the_published_initial_state():
    with (
        envs_of(num_workers=2) as envs,
        pysampler.Actors(envs, Learned(), device="cpu", steps=2, refresh_share=1) as actors,
    ):
        actors.publish({"first": np.full((), 7.0)})
        seen = set()
        while seen != set(range(1, 6)):  # env 0 has one episode only
            records = actors.take(16)
            seen |= set(records.env[records.state[:, 0] == 7.0].tolist())


class CountingCalls:
    """Reports how many calls it has had."""

    def __init__(self):
        self.calls = 0

    def __call__(self, observations):
        self.calls += 1
        count = len(observations)
        return np.zeros((count, 2), np.float32), {"call": np.full(count, self.calls)}


def test_records_begin_with_the_first_call_of_the_policy():
    with (
        envs_of(num_workers=1) as envs,
        pysampler.Actors(envs, CountingCalls(), device="cpu") as actors,
    ):
        assert (actors.take(6, min_records=6).call == 1).all()


class OnlyHere(OnDevice):
    """Cannot be unpickled in another process."""

    def __init__(self, policy):
        super().__init__(policy)
        self.pid = os.getpid()

    def __setstate__(self, state):
        assert os.getpid() == state["pid"]
        vars(self).update(state)


def test_policy_that_acts_here_does_not_travel_to_the_workers():
    """Its tensors may be on a GPU, and its modules need torch."""
    with (
        envs_of(num_workers=1) as envs,
        pysampler.Actors(envs, OnlyHere(policy), device="cpu") as actors,
    ):
        assert len(actors.take(6, min_records=6)) == 6


def test_workers_that_ask_meanwhile_are_acted_for_at_once(tmp_path):
    gate = tmp_path / "gate"
    with (
        envs_of(num_workers=3) as envs,
        pysampler.Actors(envs, Gated(gate), device="cpu", steps=4) as actors,
    ):
        actors.begin()
        requests = actors._requests
        wait_until(lambda: (requests._asked != requests._answered).all())
        gate.touch()
        together = set()
        # The first call was for one to three workers; the second is for all others, unless one is
        # between its request and its post.
        while max(together, default=0) < 4:
            together |= set(actors.take(6, min_records=6).together.ravel())
        assert together <= set(envs.stats().batch_sizes)


def test_error_of_the_policy_is_raised_by_take():
    def failing(observations):
        if (observations[:, 2] > 3).any():
            raise ValueError("no such action")
        return policy(observations.numpy())

    with envs_of(num_workers=2) as envs:
        actors = pysampler.Actors(envs, failing, device="cpu")
        said = "the policy raised ValueError acting: no such action"
        with pytest.raises(EnvError, match=said) as raised:
            while actors.take(8) is not None:
                pass
        assert isinstance(raised.value, ValueError)
        assert actors.closed
        assert envs.reset()[0].shape == (6, 4)


def test_error_of_the_policy_is_raised_if_the_workers_end_during_the_check(tmp_path, monkeypatch):
    go = tmp_path / "go"

    def failing(observations):
        if threading.current_thread() is not threading.main_thread():
            wait_until(go.exists)
            raise ValueError("no such action")
        return policy(observations.numpy())

    with envs_of(num_workers=1) as envs, pysampler.Actors(envs, failing, device="cpu") as actors:
        actors.begin()
        wait_some = envs._pool.wait_some

        def wait_for_all(least, most, deadline):
            go.touch()
            return wait_some(least, most, None)

        monkeypatch.setattr(envs._pool, "wait_some", wait_for_all)
        with pytest.raises(EnvError, match="no such action"):
            actors.take(1)


@pytest.mark.slow
def test_an_interrupt_in_the_first_call_does_not_break_actors_of_this_process():
    for n in itertools.count(1):
        with envs_of(2, num_workers=0) as envs:
            actors = pysampler.Actors(envs, OnDevice(policy), device="cpu")
            reached, _, _ = at_point(n, lambda: actors.take(1), only=["_prepared_packer"])  # noqa: B023
            taken(actors, 40)
            actors.close()
        if not reached:
            break
    assert n > 4


def test_stop_actors_in_the_policy_stops_all():
    def stopping(observations):
        if (observations[:, 2] > 3).any():
            raise StopActors
        return policy(observations.numpy())

    with envs_of(num_workers=2) as envs, pysampler.Actors(envs, stopping, device="cpu") as actors:
        while actors.take(8) is not None:
            pass
        assert actors.stopped


@pytest.mark.parametrize("end", ["close", "stop", "blocked"])
def test_thread_ends_with_the_actors(end):
    with envs_of(num_workers=2) as envs:
        actors = pysampler.Actors(envs, OnDevice(policy), device="cpu", high=16)
        actors.take(8)
        [thread] = [one for one in threading.enumerate() if one.name == "pysampler actors"]
        if end == "stop":
            rest_of(actors)
            assert actors.stopped
        elif end == "blocked":
            fill(actors)
        actors.close()
        thread.join()
        assert envs.reset()[0].shape == (6, 4)


def test_closing_during_a_slow_call_gives_the_envs_back(monkeypatch):
    monkeypatch.setattr("pysampler._actors.central.SHUTDOWN_TIMEOUT_S", 0.05)
    acts, may_end = threading.Event(), threading.Event()
    calls = []

    def slow(observations):
        calls.append(None)
        if len(calls) > 4:
            acts.set()
            may_end.wait()
        return policy(observations.numpy())

    for module in ("_actors.free_running", "_policies.copying"):
        monkeypatch.setattr(f"pysampler.{module}.copied", lambda given: given)
    with envs_of(num_workers=2) as envs:
        actors = pysampler.Actors(envs, slow, device="cpu")
        actors.begin()
        acts.wait()
        actors.close()
        assert not envs.closed
        assert envs.reset()[0].shape == (6, 4)
        may_end.set()


@pytest.mark.slow
def test_exit_during_a_call_ends_the_thread_first():
    """Python 3.11 ends daemon threads where they are, which aborts the process inside of torch."""
    program = """
import sys, torch, pysampler
net = torch.nn.Sequential(torch.nn.Linear(4, 2000), torch.nn.Linear(2000, 2))
policy = lambda seen: net(seen).argmax(-1)
actors = pysampler.Actors("CartPole-v1", policy, num_envs=8, num_workers=2, device="cpu")
actors.take(100, min_records=100)
sys.exit(3)
"""
    for _ in range(5):
        assert completed("-c", program, code=3).stderr == ""


def test_dropped_actors_end_their_thread():
    envs = pysampler.make_vec("CartPole-v1", 2, num_workers=1)
    zeros = functools.partial(np.zeros, dtype=np.int64)
    actors = pysampler.Actors(envs, lambda seen: zeros(len(seen)), device="cpu")
    actors.take(8)
    [thread] = [one for one in threading.enumerate() if one.name == "pysampler actors"]
    del actors
    thread.join()
    envs.close()


def test_phases_work_with_a_central_policy():
    with envs_of(num_workers=2) as envs:
        actors = pysampler.Actors(envs, WeightedOnDevice(), device="cpu", steps=4)
        for phase in actors.phases(high=24):
            versions = np.concatenate([records.version for records in phase.batches(8)])
            assert len(versions) == 24
            assert versions.max() == phase.number
            if phase.number == 4:
                break
            actors.publish({"w": np.full(1000, float(phase.number)), "b": phase.number})
        actors.close()


# -- requests -------------------------------------------------------------------------------------


def test_replacement_does_not_take_an_answer_to_a_lost_worker():
    requests = Requests(2, Segment(1 << 16))
    requests.ask(1, 7)
    words = requests.take()
    assert {group: Requests.frame_of(word) for group, word in words.items()} == {1: 7}
    requests.ask(1, 0)  # by the worker that replaces the one that asked before
    requests.answer(words, 3)
    assert not requests.wait(1)
    words = requests.take()
    assert {group: Requests.frame_of(word) for group, word in words.items()} == {1: 0}
    requests.answer(words, 4)
    assert requests.wait(1)
    assert requests.versions[1] == 4


def test_flag_of_a_lost_worker_delays_no_answer():
    requests = Requests(1, Segment(1 << 16))
    requests.ask(0, 7)
    requests.answer(requests.take(), 3)  # its worker dies before it clears the flag
    requests.ask(0, 0)
    requests.answer(requests.take(), 4)  # cannot set it again yet
    assert requests._to_set == {0}
    assert requests.wait(0)  # the old post; the answer is there all the same
    requests.take()
    assert requests._to_set == set()
    requests.ask(0, 1)
    assert not requests.wait(0)  # the post that was made up for


def test_post_that_the_parent_took_too_early_is_repeated():
    requests = Requests(1, Segment(1 << 16))
    requests.ask(0, 7)
    requests._bell.take([0])  # the parent read the word of a lost worker before this one
    assert not requests.wait(0)
    [word] = requests.take().values()
    requests.answer({0: word}, 1)
    requests._bell.post(0)  # repeated while it was answered
    assert requests.take() == {}
    assert requests.wait(0)
