"""Hosts that die, hang or raise; they are simulated, and time passes only during waits."""

import functools
import logging
import math
import os
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hosts_in_tests import Continuity, Life, actors, idle, rollouts, weighted

import pysampler
from pysampler._workers.exceptions import error_from
from pysampler.errors import ClosedError, EnvError, EnvTimeoutError, HostLostError
from pysampler.ray._host import HostActor

SECOND = 1_000_000_000


@pytest.fixture(params=["killed", "stopped"])
def lose(request, simulated):
    """Return a function that kills or stops the host on a node."""
    if request.param == "killed":
        return simulated.kill_process

    def stop(node):
        simulated.process_on(node).stopped = True

    return stop


def take_until(so, some, simulated, check=None):
    """Take rollouts until ``so()`` is true."""
    end = simulated.time + 1000 * SECOND
    while not so():
        taken = some.take(min_hosts=1, timeout=1)
        if check is not None:
            check.check(taken)
        simulated.sleep(0.1)
        assert simulated.time < end


# -- "raise" -------------------------------------------------------------------------------------


def test_a_lost_host_raises_once_and_the_others_continue(simulated, lose):
    check = Continuity()
    with rollouts(host_timeout=30) as some:
        check.check(some.take())
        lose(simulated.alive[0])
        with pytest.raises(HostLostError, match=r"^host 0 \(pid \d+ on node 10.0.0.0") as caught:
            while True:
                check.check(some.take(min_hosts=2))
        assert caught.value.host == 0
        for _ in range(5):
            assert check.check(some.take()).hosts == [1]
        assert some.hosts == [1]
        stats = some.stats()
        assert stats.lost == 1
        assert [(host.serves, host.gone) for host in stats.hosts] == [(False, True), (True, False)]
        assert len(simulated.running) == 1
        lose(simulated.alive[1])
        with pytest.raises(HostLostError, match="^host 1") as caught:
            while True:
                some.take()
        assert caught.value.host == 1
        for _ in range(2):
            with pytest.raises(HostLostError, match="cannot sample rollouts: all hosts are gone"):
                some.take()


def test_two_hosts_lost_at_once_raise_one_error_each(simulated):
    with rollouts() as some:
        some.take()
        for node in simulated.alive:
            simulated.kill_process(node)
        lost_hosts = []
        for _ in range(2):
            with pytest.raises(HostLostError) as caught:
                some.take()
            lost_hosts.append(caught.value.host)
        assert lost_hosts == [0, 1]


@pytest.mark.parametrize("seconds", [0.001, 30])
def test_host_timeout_counts_only_while_the_learner_waits(simulated, seconds):
    """After a long absence of the learner, fetching ready answers takes a moment, or longer."""
    simulated.fetch_seconds = seconds
    with rollouts(host_timeout=10) as some:
        for number in range(3):
            taken = some.take()
            assert [one.number for one in taken] == [number, number]
            simulated.sleep(20)  # the learner learns
        assert some.stats().lost == 0


def test_host_timeout_applies_to_each_call(simulated):
    for node in simulated.alive:
        node.seconds = 9
    with rollouts(host_timeout=10, in_flight=3) as some:
        for _ in range(6):
            some.take()
        assert some.stats().lost == 0
        simulated.alive[0].seconds = 20
        with pytest.raises(HostLostError, match=r"host 0 .*no answer for 10 s \(host_timeout\)"):
            while True:
                some.take()


def test_without_host_timeout_a_host_may_take_any_time(simulated):
    with rollouts(host_timeout=None) as some:
        some.take()
        simulated.process_on(simulated.alive[0]).stopped = True
        for _ in range(3):
            some.take(timeout=1000)
        assert some.stats().lost == 0
        assert some.hosts == [0, 1]


# -- "restart" -----------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_lost_host_restarts_with_new_envs(simulated, lose, caplog):
    check = Continuity()
    with rollouts(on_host_loss="restart", host_timeout=30) as some:
        check.check(some.take())
        lose(simulated.alive[0])
        take_until(lambda: some.hosts == [1], some, simulated, check)
        before = dict(check.counts)
        assert check.check(some.take()).hosts == [1]  # take does not wait for host 0
        take_until(lambda: some.hosts == [0, 1], some, simulated, check)
        for _ in range(3):
            check.check(some.take())
        assert check.counts[0] > before[0]
        assert check.counts[1] > before[1]
        stats = some.stats()
        assert (stats.lost, [host.restarts for host in stats.hosts]) == (1, [1, 0])
    assert [record.levelno for record in caplog.records] == [logging.WARNING] * 2
    assert caplog.messages[0].startswith("pysampler: host 0 (pid")
    assert caplog.messages[0].endswith("; restarting it")
    assert caplog.messages[1].startswith("pysampler: host 0 (pid")
    assert caplog.messages[1].endswith(" is back, with new envs")


def test_seeds_of_restarted_envs_are_new_and_reproducible(simulated):
    def seeds(losses):
        with rollouts(on_host_loss="restart", hosts=1) as some:
            for restarts in range(losses):
                simulated.kill_process(simulated.alive[0])
                take_until(
                    lambda: some.stats().hosts[0].restarts > restarts and some.hosts,  # noqa: B023
                    *(some, simulated),
                )
            [one] = some.take()
            assert one.restarts == losses
            return tuple(one.observations[0, :, 0])

    first, second, third = seeds(0), seeds(1), seeds(2)
    assert first == (3, 4)
    assert len({*first, *second, *third}) == 6
    assert (seeds(1), seeds(2)) == (second, third)


def test_take_waits_for_the_only_host_to_restart(simulated):
    with rollouts(on_host_loss="restart", hosts=1) as some:
        some.take()
        simulated.kill_process(simulated.alive[0])
        assert some.take(timeout=0.1).hosts == []
        [one] = some.take()
        assert one.restarts == 1


def test_a_restarted_host_has_the_newest_policy(simulated):
    weight = np.zeros(1)
    with rollouts(policy=weighted(weight), on_host_loss="restart", hosts=1) as some:
        some.take()
        simulated.kill_process(simulated.alive[0])
        some.take(timeout=0.1)
        weight += 1
        while not len(taken := some.take(timeout=0.1)):
            pass
        assert (taken[0].extras["w"] == 1).all()
        assert (taken[0].version, taken[0].lag) == (2, 0)


def test_a_host_lost_more_than_max_restarts_raises(simulated):
    with rollouts(on_host_loss="restart", max_restarts=2, restart_window=100) as some:
        for losses in range(2):
            simulated.kill_process(simulated.alive[0])
            take_until(lambda: some.stats().lost > losses, some, simulated)  # noqa: B023
            take_until(lambda: some.hosts == [0, 1], some, simulated)
        simulated.kill_process(simulated.alive[0])
        with pytest.raises(HostLostError, match=r"host 0 .* lost: .*; 3 times in 100 s") as caught:
            take_until(lambda: False, some, simulated)
        assert caught.value.host == 0
        assert some.hosts == [1]


def test_losses_are_forgotten_after_restart_window(simulated):
    with rollouts(on_host_loss="restart", max_restarts=1, restart_window=100) as some:
        for losses in range(4):
            simulated.kill_process(simulated.alive[0])
            take_until(lambda: some.stats().lost > losses, some, simulated)  # noqa: B023
            simulated.sleep(101)
            take_until(lambda: some.hosts == [0, 1], some, simulated)
        assert some.stats().hosts[0].restarts == 4


def test_max_restarts_0_allows_no_restart(simulated):
    with rollouts(on_host_loss="restart", max_restarts=0) as some:
        simulated.kill_process(simulated.alive[0])
        with pytest.raises(HostLostError, match="1 times in 300"):
            take_until(lambda: False, some, simulated)


def test_a_host_that_dies_in_each_start_raises_in_the_end(simulated):
    begun = []

    def begins():
        """Kill the host each time it makes its sampler, except the first."""
        begun.append(simulated.time)
        if len(begun) > 1:
            simulated.at(0, simulated.running[0].die)

    with rollouts(on_host_loss="restart", max_restarts=3, hosts=1) as some:
        some.take()
        simulated.when_called["begin"] = begins
        begins()
        simulated.kill_process(simulated.alive[0])
        with pytest.raises(HostLostError, match=r"while it started.*; 4 times in 300"):
            take_until(lambda: False, some, simulated)
        assert len(begun) == 4


@pytest.mark.slow
def test_a_host_that_hangs_in_its_start_is_killed(simulated):
    with rollouts(on_host_loss="restart", start_timeout=20, max_restarts=1) as some:
        some.take()
        node = simulated.alive[0]

        def hangs():
            simulated.process_on(node).stopped = True

        simulated.when_called["begin"] = hangs
        simulated.kill_process(node)
        began = simulated.time
        with pytest.raises(HostLostError, match=r"has not made its sampler for 20 s"):
            take_until(lambda: False, some, simulated)
        assert simulated.time >= began + 20 * SECOND


def test_start_timeout_excludes_the_wait_for_a_place(simulated):
    """start_timeout limits the sampler's construction, which begins once there is a place."""
    with rollouts(on_host_loss="restart", start_timeout=20) as some:
        node = simulated.alive[0]
        simulated.remove_node(node)
        take_until(lambda: some.hosts == [1], some, simulated)
        for _ in range(100):
            simulated.sleep(1)
            some.take()
        simulated.add_node()
        take_until(lambda: some.hosts == [0, 1], some, simulated)
        assert some.stats().lost == 1


def test_an_absent_learner_does_not_make_a_start_late(simulated):
    with rollouts(on_host_loss="restart", start_timeout=20) as some:
        simulated.kill_process(simulated.alive[0])
        some.take(1, timeout=0.1)
        simulated.sleep(2)
        some.take(1, timeout=0.1)  # pings the host
        for _ in range(5):
            simulated.sleep(30)
            some.take(1, timeout=0.1)
        take_until(lambda: some.hosts == [0, 1], some, simulated)
        assert some.stats().lost == 1


def test_an_absent_learner_does_not_miss_a_restart(simulated):
    with rollouts(on_host_loss="restart", hosts=1, start_timeout=20) as some:
        simulated.kill_process(simulated.alive[0])
        assert some.take(timeout=0.1).hosts == []
        simulated.sleep(30)
        [one] = some.take()
        assert one.restarts == 1


def test_take_raises_if_no_host_restarts_in_time(simulated):
    with rollouts(on_host_loss="restart", start_timeout=20) as some:
        began = simulated.time
        for node in simulated.alive:
            simulated.remove_node(node)
        with pytest.raises(
            HostLostError, match=r"no host has come back within .*, 20 s: 2 hosts need 2 nodes"
        ):
            some.take()
        assert simulated.time >= began + 20 * SECOND
        simulated.add_node()
        while not len(taken := some.take(timeout=1)):
            pass
        assert taken[0].restarts == 1


def test_a_host_that_dies_in_its_first_start_raises_or_restarts(simulated):
    for node in simulated.alive:
        node.seconds = 2
    simulated.at(3, lambda: simulated.kill_process(simulated.alive[0]))
    with rollouts(on_host_loss="restart") as some:
        assert [host.restarts for host in some.stats().hosts] == [1, 0]
        assert some.take().hosts == [0, 1]
    simulated.at(3, lambda: simulated.kill_process(simulated.alive[0]))
    with pytest.raises(HostLostError, match="host 0 .*lost: while it started"):
        rollouts()


# -- envs and workers ----------------------------------------------------------------------------


class Failing(Life):
    """Fails in step ``at`` of its life, on the first host."""

    def __init__(self, how, at, *, first=3):
        super().__init__()
        self.how, self.at, self.first = how, at, first

    def step(self, action):
        result = super().step(action)
        if self.life == self.at and self.number == self.first:
            if self.how == "raise":
                raise ValueError("told to")
            os._exit(7)
        return result


def test_an_env_error_raises_once_and_all_hosts_continue(simulated):
    check = Continuity()
    with rollouts(lambda: Failing("raise", at=13)) as some:
        for _ in range(2):
            check.check(some.take())
        with pytest.raises(ValueError, match=r"^host 0 \(pid \d+ on .*\): env 0 raised") as caught:
            some.take()
        assert isinstance(caught.value, EnvError)
        assert caught.value.env == 0
        assert "told to" in str(caught.value.__cause__)
        taken = {one.host: one for one in some.take()}
        check.check([taken[1]])
        assert taken[0].starts[0].all()  # the host resets its envs
        assert taken[0].restarts == 0
        check.check([next(some)])
        assert some.hosts == [0, 1]
        assert some.stats().lost == 0


class Closes(Life):
    """Raises in each step, and leaves a file when it is closed."""

    def __init__(self, folder):
        super().__init__()
        self.folder = folder

    def step(self, action):
        raise ValueError("told to")

    def close(self):
        (self.folder / f"closed {self.number}").touch()


@pytest.mark.slow
def test_envs_of_a_host_are_closed_after_an_env_error(simulated, tmp_path):
    make = functools.partial(Closes, tmp_path)
    some = rollouts(make, hosts=1, vector_kwargs={"num_workers": 1})
    with pytest.raises(ValueError, match="told to"):
        some.take()
    some.close()
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.parametrize("option", ["host_timeout", "start_timeout", "restart_window"])
def test_times_of_hosts_may_be_infinite(simulated, option):
    with rollouts(on_host_loss="restart", **{option: math.inf}) as some:
        some.take()
        simulated.kill_process(simulated.alive[0])
        take_until(lambda: some.stats().lost, some, simulated)
        take_until(lambda: some.hosts == [0, 1], some, simulated)


@pytest.mark.parametrize("options", [{}, {"overlap": True}, {"policy_in": "workers"}])
def test_close_ends_the_rollout_under_way_and_closes_the_envs(tmp_path, options):
    stepping = threading.Event()

    class Steps(Closes):
        def step(self, action):
            stepping.set()
            return Life.step(self, action)

    class Hosted:
        def call(self, sampler):
            return next(sampler)

    sampler = pysampler.Rollouts(
        *(lambda: Steps(tmp_path), idle, 100_000),
        num_envs=2,
        num_workers=0,
        seed=3,
        **options,
    )
    host = HostActor()
    host._hosted, host._sampler = Hosted(), sampler
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(host.call, sampler, 0, None)
        assert stepping.wait(60)
        host.close()  # as Ray does, in the thread of control calls
        assert len(list(tmp_path.iterdir())) == 2
        assert isinstance(error_from(answer.result().failure, ""), ClosedError)


def test_a_failing_env_constructor_fails_the_samplers_constructor(simulated):
    def unmakeable():
        raise KeyError("no such file")

    with pytest.raises(KeyError, match="host 0.*no such file") as caught:
        rollouts(unmakeable)
    assert isinstance(caught.value, EnvError)
    del caught
    assert simulated.groups == []


@pytest.mark.slow
@pytest.mark.parametrize("on_worker_loss", ["raise", "restart"])
@pytest.mark.parametrize("on_host_loss", ["raise", "restart"])
def test_a_lost_worker_on_a_host_follows_both_loss_options(simulated, on_host_loss, on_worker_loss):
    kwargs = {"num_workers": 2, "on_worker_loss": on_worker_loss}
    with rollouts(
        *(lambda: Failing("exit", at=8),), on_host_loss=on_host_loss, vector_kwargs=kwargs
    ) as some:
        some.take()
        if on_worker_loss == "restart":  # the worker restarts and the host continues
            [one, other] = some.take()
            assert one.lost.any()
            assert not other.lost.any()
            assert some.stats().lost == 0
        elif on_host_loss == "restart":
            take_until(lambda: some.stats().lost, some, simulated)
            take_until(lambda: some.hosts == [0, 1], some, simulated)
            assert some.stats().hosts[0].restarts == 1
        else:
            with pytest.raises(
                HostLostError, match=r"^host 0 .* lost: .*worker 0 .*exit"
            ) as caught:
                some.take()
            assert caught.value.host == 0
            assert some.take().hosts == [1]


# -- missing packages ----------------------------------------------------------------------------


@pytest.mark.parametrize("on_host_loss", ["raise", "restart"])
def test_a_host_that_cannot_be_constructed_is_not_retried(simulated, monkeypatch, on_host_loss):
    def lacks_something(self):
        raise ImportError("no module named what it needs")

    monkeypatch.setattr("pysampler.ray._host.HostActor.__init__", lacks_something)
    with pytest.raises(
        HostLostError, match=r"host \d cannot be created: .*what it needs.*expected"
    ):
        rollouts(on_host_loss=on_host_loss)
    assert not simulated.running


class Late(Life):
    """Waits in its 13th step for some seconds, once."""

    def __init__(self, mark, seconds):
        super().__init__()
        self.mark, self.seconds = mark, seconds

    def step(self, action):
        if self.life == 12 and not self.mark.exists():
            self.mark.touch()
            threading.Event().wait(self.seconds)
        return super().step(action)


LATE = {"vector_kwargs": {"num_workers": 1, "step_timeout": 0.5}, "hosts": 1}


@pytest.mark.filterwarnings("ignore:pysampler")
def test_a_host_with_a_late_env_restarts(simulated, tmp_path):
    make = functools.partial(Late, tmp_path / "late", None)
    with actors(make, on_host_loss="restart", **LATE) as some:
        while some.stats().lost == 0:
            some.take(8, timeout=1)
            simulated.sleep(0.1)
        assert len(some.take(8, min_records=8)) == 8


def test_a_host_whose_late_env_returns_goes_on(simulated, tmp_path):
    make = functools.partial(Late, tmp_path / "late", 0.75)
    with rollouts(make, **LATE) as some:
        with pytest.raises(EnvTimeoutError, match="step_timeout is 0.5"):
            while True:
                some.take()
        assert len(some.take()) == 1
        assert some.stats().lost == 0
