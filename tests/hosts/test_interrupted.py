"""Signal handlers that raise at any point of a call, on simulated hosts."""

import contextlib
import functools
import itertools
import logging
import types
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
import ray
from hosts_in_tests import HORIZON, Life, actors, rollouts, weighted
from interrupts import Interrupted, at_each_point, at_point, points
from simulated_ray import SimulatedRay, installed

import pysampler.ray
from pysampler.errors import ClosedError, EnvError, HostLostError


def functions_in(package):
    """Return the names of all functions that the modules of a package define."""
    names = set()
    for path in Path(package.__file__).parent.glob("*.py"):
        left = [compile(path.read_text(), path, "exec")]
        while left:
            code = left.pop()
            names.add(code.co_name)
            left += [one for one in code.co_consts if isinstance(one, types.CodeType)]
    return names


# A call that is interrupted while Ray sends it is lost with its answer; its number is missing then.
SENDS = {"send"}
OTHERS = functions_in(pysampler.ray) - SENDS


@pytest.fixture(autouse=True)
def quiet():
    """Silence the log of hundreds of losses."""
    logging.disable(logging.WARNING)
    yield
    logging.disable(logging.NOTSET)


class Gapless:
    """Checks that rollouts of each host are consecutive, and counts missing ones."""

    def __init__(self):
        self.last = {}
        self.missing = self.taken = 0

    def check(self, taken, where):
        self.taken += len(taken)
        for one in taken:
            number, life = self.last.get(one.host, (-1, 0))
            missing, steps = one.number - number - 1, one.observations[0, :, 1] - life
            self.missing += missing
            # The interrupted call may not have been sent.
            assert (steps == steps[0]).all(), where
            assert 0 <= steps[0] <= missing * HORIZON, where
            assert (np.diff(one.observations[:, :, 1], axis=0) == 1).all(), where
            assert one.restarts == 0
            self.last[one.host] = one.number, one.observations[-1, 0, 1]


@pytest.mark.slow
@pytest.mark.parametrize("only", [OTHERS, SENDS], ids=["", "sending"])
@pytest.mark.parametrize("in_flight", [1, 2])
def test_interrupts_lose_no_rollout(simulated, in_flight, only):
    weight, gapless = np.zeros(1), Gapless()
    with rollouts(policy=weighted(weight), in_flight=in_flight) as some:

        def program():
            weight[0] += 1
            return some.take()

        def check(result, where):
            if result is not None:
                gapless.check(result, where)
            gapless.check([next(some)], where)
            gapless.check(some.take(min_hosts=1), where)
            for _ in range(in_flight - 1):
                gapless.check(some.take(), where)
            for one in (taken := some.take()):  # begun after the policy changed
                assert (one.extras["w"] == weight[0]).all(), where
            gapless.check(taken, where)

        points = at_each_point(program, check, only=only, step=2)
        assert some.stats().taken == gapless.taken
    assert points > (200 if only is OTHERS else 10)
    assert gapless.missing == 0 or only is SENDS


@pytest.mark.slow
def test_interrupts_lose_no_record(simulated):
    numbers = {}

    def check(records, where):
        for env, number in zip(records.env, records.number, strict=True):
            assert number == numbers.get(env, -1) + 1, where
            numbers[env] = number

    with actors() as some:
        check(first := some.take(1), "at first")
        row = first.rows.itemsize - first.host.itemsize  # the driver adds this field

        def interrupted(result, where):
            if result is not None:
                check(result, where)
            records = some.take(5)
            assert len(records) <= 5, where
            check(records, where)
            check(some.take(20, min_records=20), where)

        program = functools.partial(some.take, 30, min_records=30)
        points = at_each_point(program, interrupted, only=OTHERS, step=2)
        some.stop()
        while (records := some.take(100)) is not None:
            check(records, "at the end")
        stats = some.stats()
        assert stats.taken == sum(numbers.values()) + 4
        assert stats.bytes_received == stats.taken * row
    assert points > 200


class Raising(Life):
    """Raises once, on the first host."""

    def step(self, action):
        result = super().step(action)
        if (self.life, self.number) == (13, 3):
            raise ValueError("told to")
        return result


BOOKKEEPING = {
    *("_look_after_hosts", "_continue_start", "_begin", "_start", "_receive", "_receive_one"),
    *("_lose", "_look_for_hung", "_kill", "_give_up", "_release", "_raise_errors"),
    "_expect_return",
}


@pytest.mark.slow
@pytest.mark.parametrize("loss", ["killed", "stopped", "raises"])
@pytest.mark.parametrize("mode", ["raise", "restart"])
def test_each_loss_and_each_error_is_raised_once(monkeypatch, loss, mode):
    for point in points(3):
        with installed(SimulatedRay(), monkeypatch) as simulated:
            raised, where, reached = after_a_loss(simulated, loss, mode, point)
            if loss == "raises":
                assert len(raised) == 1, where
                assert isinstance(raised[0], EnvError)
                assert isinstance(raised[0], ValueError)
            elif mode == "raise":
                assert [type(error) for error in raised] == [HostLostError], where
            else:
                assert raised == [], (raised, where)
        if not reached:
            break
    assert point > 100


def after_a_loss(simulated, loss, mode, point):
    """Lose a host while a call is interrupted at ``point``; return the errors, where, reached."""
    raised = []
    env = Raising if loss == "raises" else Life
    kwargs = {"on_host_loss": mode, "host_timeout": 0.4, "num_envs": 1}
    with rollouts(env, **kwargs) as some:
        for _ in range(2):
            some.take()
        if loss == "killed":
            simulated.kill_process(simulated.alive[0])
        elif loss == "stopped":
            simulated.process_on(simulated.alive[0]).stopped = True

        def take(count):
            for _ in range(count):
                try:
                    some.take(timeout=0.3)
                except (EnvError, HostLostError) as error:
                    raised.append(error)
                simulated.sleep(0.1)
            return True

        reached, _, where = at_point(point, lambda: take(8), only=BOOKKEEPING)
        take(40)
        stats = some.stats()
        if loss == "raises":
            expected = 0, [0, 0], [0, 1]
        elif mode == "restart":
            expected = 1, [1, 0], [0, 1]
        else:
            expected = 1, [0, 0], [1]
        restarts = [host.restarts for host in stats.hosts]
        assert (stats.lost, restarts, some.hosts) == expected, where
        seeds = {one.host: one.observations[0, 0, 0] for one in some.take()}
        assert seeds[1] == 4
        assert seeds.get(0, 3) != 3 or loss == "raises" or mode == "raise", where
    return raised, where, reached


@pytest.mark.slow
@pytest.mark.parametrize("make", [rollouts, actors])
@pytest.mark.parametrize("mode", [ray.SCRIPT_MODE, ray.WORKER_MODE])
def test_an_interrupted_close_can_be_repeated(simulated, make, mode):
    simulated.mode = mode
    for point in itertools.count(1):
        some = make(num_envs=1)
        some.take(1)
        reached, _, where = at_point(point, some.close)
        some.close()
        assert some.closed
        assert simulated.running == [], where
        assert simulated.groups == [], where
        assert simulated.keepers == set(), where
        if not reached:
            break
    assert point > 20


LOSSES = {"_lose", "become", "_kill", "_receive", "_receive_one", "_add", "actor", "_actor"}


@pytest.mark.slow
@pytest.mark.parametrize("hosts", [2, "auto"])
def test_a_handler_that_closes_during_a_loss_leaves_no_host(monkeypatch, hosts):
    def sample(some, simulated):
        with contextlib.suppress(ClosedError):
            for _ in range(6):
                some.take(timeout=0.5)
                simulated.sleep(0.1)

    for point in itertools.count(1, 3):
        with installed(SimulatedRay(), monkeypatch) as simulated:
            some = rollouts(num_envs=1, hosts=hosts, on_host_loss="restart")
            some.take(min_hosts=2)
            simulated.kill_process(simulated.alive[0])
            reached, _, where = at_point(
                *(point, lambda: sample(some, simulated), lambda *_: some.close()),  # noqa: B023
                only=LOSSES,
            )
            some.close()
            assert simulated.running == [], where
        if not reached:
            break
    assert point > 30


class Alone(Life):
    """Only one may exist in a process at a time."""

    exists: ClassVar[bool] = False

    def __init__(self):
        super().__init__()
        assert not Alone.exists
        Alone.exists = True

    def close(self):
        Alone.exists = False


def test_an_interrupted_begin_makes_no_second_sampler_beside_the_first(monkeypatch):
    for point in itertools.count(1):
        with (
            installed(SimulatedRay(), monkeypatch) as simulated,
            rollouts(Alone, num_envs=1, hosts=1, on_host_loss="restart") as some,
        ):
            some.take(1)
            simulated.kill_process(simulated.alive[0])
            reached, _, _ = at_point(point, lambda: some.take(1), only={"_begin"})
            assert len(some.take(1)) == 1
        if not reached:
            break
    assert point > 2


@pytest.mark.slow
@pytest.mark.parametrize("make", [rollouts, actors])
def test_an_interrupted_constructor_leaves_no_host(monkeypatch, make):
    for point in itertools.count(1, 9):
        with installed(SimulatedRay(), monkeypatch):
            reached, some, _ = at_point(point, lambda: make(num_envs=1))
            if some is not None:
                some.close()
        if not reached:
            break
    assert point > 100


@pytest.mark.slow
def test_an_interrupted_with_block_ends_all_hosts(simulated):
    def program():
        with rollouts(num_envs=1) as some:
            for node in simulated.alive:
                node.seconds = 100
            simulated.at(5, interrupt)
            some.take()

    def interrupt():
        raise Interrupted

    with pytest.raises(Interrupted):
        program()
    assert simulated.running == []
    assert simulated.groups == []


def test_a_rollout_that_arrives_with_an_interrupt_is_kept(simulated):
    gapless = Gapless()
    with rollouts() as some:
        simulated.alive[1].seconds = 10
        gapless.check(some.take(), "")
        gapless.check(some.take(), "")

        def interrupt():
            raise KeyboardInterrupt

        for _ in range(3):
            simulated.at(1, interrupt)
            with pytest.raises(KeyboardInterrupt):
                some.take(min_hosts=2)
        gapless.check(some.take(), "")
        gapless.check(some.take(), "")
