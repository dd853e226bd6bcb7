"""Hosts on the driver's machine: the driver reads their rollouts in their memory."""

import contextlib
import functools
import gc
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from fork_server_in_tests import wait_until
from gymnasium import spaces
from hosts_in_tests import Continuity, Life, assert_equal, idle, local, rollouts
from scripted import Gated, gate_in
from small_envs import Small

import pysampler
from pysampler._vector.vector_env import core_of
from pysampler.errors import ClosedError, EnvError
from pysampler.ray._host_memory import HostMemory
from pysampler.ray._rollouts import HostedRollouts

PIXELS = (16, 16)


# Observes pictures whose pixels are the number of steps made.
Pictures = functools.partial(
    Small,
    7,
    observe=lambda env: np.full(PIXELS, env.life % 256, np.uint8),
    spaces=(spaces.Box(0, 255, PIXELS, np.uint8), spaces.Discrete(2)),
)


@pytest.fixture
def elsewhere(monkeypatch):
    """Hosts whose memory the driver cannot map, as on another machine."""
    monkeypatch.setattr(HostMemory, "map", lambda _: None)


@pytest.fixture
def answered(simulated, monkeypatch):
    """The sizes in bytes of all results that went through Ray."""
    sizes, finish = [], simulated.finish

    def finished(ref, *args, **kwargs):
        finish(ref, *args, **kwargs)
        sizes.append(len(ref.data) + sum(buffer.nbytes for buffer in ref.buffers))

    monkeypatch.setattr(simulated, "finish", finished)
    return sizes


def equal_to_local(some, count=8):
    own = [local(Pictures, idle, host=host) for host in range(2)]
    for _ in range(count):
        for one in some.take():
            assert_equal(one, next(own[one.host]))
    for one in own:
        one.close()


def test_rollouts_in_memory_do_not_pass_through_ray(answered):
    with rollouts(Pictures) as some:
        equal_to_local(some)
        answered.clear()
        [one, *_] = some.take()
        assert max(answered) < one.observations.nbytes


def test_rollouts_of_other_machines_pass_through_ray(elsewhere, answered):
    with rollouts(Pictures) as some:
        equal_to_local(some)
        answered.clear()
        [one, *_] = some.take()
        assert max(answered) > one.observations.nbytes


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("in_flight", [1, 2, 3, 10])
def test_a_rollout_is_not_overwritten_before_it_is_copied(simulated, in_flight, overlap):
    check = Continuity()
    with rollouts(in_flight=in_flight, overlap=overlap) as some:
        for _ in range(3 * in_flight + 2):
            check.check(some.take(timeout=0))  # sends the calls
            simulated.settle()
            check.check(some.take())


def test_a_call_whose_answer_was_lost_overwrites_no_rollout(simulated):
    with rollouts(hosts=1) as some:
        lives = [some.take().joined.observations[:, 0, 1] for _ in range(4)]
        [host] = some._fleet.hosts
        some.take(min_hosts=1, timeout=0)
        for _ in range(5):  # as if a signal handler had raised each time that a call was sent
            some._fleet.send()
            simulated.settle()
            host.calls.pop()
        life = some.take().joined.observations[:, 0, 1]
        np.testing.assert_array_equal(life, lives[-1] + len(life) - 1)


def test_take_accepts_rollouts_whose_steps_in_progress_have_ended_episodes(simulated, tmp_path):
    with gate_in(tmp_path) as (gate, open_gate):
        kwargs = {"hosts": 1, "in_flight": 1, "min_envs": 1, "allow_partial": True}
        envs = [functools.partial(Gated, gate), Gated]
        with rollouts(envs, horizon=4, vector_kwargs={"num_workers": 2}, **kwargs) as some:
            [process] = simulated.processes
            for length in (0, 1):  # through Ray, then in the memory of the host
                some.take(timeout=0)  # the host samples
                frames = core_of(process.instance._sampler.envs).results.frames
                ends = frames.terminated[:, 0].sum()
                open_gate()
                wait_until(lambda ends=ends, all_=frames.terminated: all_[:, 0].sum() > ends)
                [one] = some.take()
                assert one.lengths.tolist() == [length, 4]
                assert one.terminated.sum(axis=0).tolist() == [length, 4]
                assert some._fleet.hosts[0].memory is not None
            open_gate()


def test_rollouts_that_can_no_longer_be_mapped_are_dropped(simulated, monkeypatch):
    with rollouts() as some:
        for _ in range(4):
            some.take()
        for host in some._fleet.hosts:
            host.memory = None
        monkeypatch.setattr(HostMemory, "map", lambda _: None)
        numbers = [[one.number for one in some.take()] for _ in range(3)]
        assert numbers[0][0] > 4
        assert np.diff(numbers, axis=0).tolist() == [[1, 1], [1, 1]], "not sent through Ray"
        assert some.stats().dropped == 2, "one in flight of each host"


class Failing(Life):
    def step(self, action):
        if self.life == 23:
            self.life += 1
            raise ValueError("step 24")
        return super().step(action)


def test_memory_is_mapped_anew_when_envs_move(simulated):
    with rollouts(Failing, hosts=1) as some:
        some.take()
        some.take()
        [host] = some._fleet.hosts
        before = None
        with pytest.raises(EnvError, match="step 24"):
            while True:
                some.take()
                before = before or host.memory
        for _ in range(4):
            life = some.take().joined.observations[:, 0, 1]
            np.testing.assert_array_equal(np.diff(life), np.ones(len(life) - 1))
        assert host.memory.id != before.id


@pytest.mark.parametrize("loss", ["raise", "restart"])
def test_memory_of_a_lost_host_is_unmapped(simulated, loss):
    with rollouts(on_host_loss=loss) as some:
        for _ in range(4):
            some.take()
        hosts = some._fleet.hosts
        assert all(host.memory is not None for host in hosts)
        simulated.kill_process(simulated.alive[0])
        with pytest.raises(pysampler.errors.HostLostError) if loss == "raise" else _nothing():
            while hosts[0].memory is not None:
                some.take(1)
        assert hosts[0].memory is None
        assert hosts[1].memory is not None


def mappings():
    """Return the number of mapped segments; hosts of the simulation are in this process."""
    gc.collect()
    return Path("/proc/self/maps").read_text().count("/memfd:pysampler")


def take_some(some):
    for _ in range(4):
        some.take()
    next(some)  # leaves the answer of the other host


@pytest.mark.slow
def test_close_unmaps_the_memory_of_hosts(simulated):
    before, some = mappings(), rollouts()
    take_some(some)
    assert mappings() > before
    some.close()
    assert mappings() == before


@pytest.mark.slow
def test_close_in_a_signal_handler_while_take_maps_memory_unmaps_it(simulated, monkeypatch):
    before, some, map_ = mappings(), rollouts(hosts=1), HostMemory.map

    def closing(memory):
        segment = map_(memory)
        some.close()  # as a handler does
        return segment

    monkeypatch.setattr(HostMemory, "map", closing)
    with contextlib.suppress(ClosedError):
        some.take()
    assert some._fleet.hosts[0].memory is None
    assert mappings() == before


@pytest.mark.slow
def test_close_after_the_end_of_ray_unmaps_the_memory_of_hosts(simulated, monkeypatch):
    some = rollouts()
    take_some(some)
    monkeypatch.setattr(simulated, "is_initialized", lambda: False)
    some.close()
    assert all(host.memory is None and not host.calls for host in some._fleet.hosts)
    some._fleet._placement.end()  # the simulated Ray still runs


class Dying(Life):
    def step(self, action):
        if self.life == 13:
            os._exit(1)
        return super().step(action)


@pytest.mark.slow
def test_a_new_sampler_of_a_host_begins_without_the_memory_of_the_last_one(simulated, monkeypatch):
    mapped, begin = [], HostedRollouts.begin

    def noted(self, *arguments):
        mapped.append(mappings())
        return begin(self, *arguments)

    monkeypatch.setattr(HostedRollouts, "begin", noted)
    kwargs = {"hosts": 1, "in_flight": 1, "vector_kwargs": {"num_workers": 1}}
    with rollouts(Dying, on_host_loss="restart", **kwargs) as some:
        while some.stats().lost == 0:
            some.take()
        some.take()
    assert mapped == [mapped[0]] * 2


_nothing = functools.partial(pytest.MonkeyPatch.context)

HOST = """
import sys
import gymnasium as gym
import pysampler
from pysampler._vector.vector_env import core_of
from pysampler.ray._host_memory import HostMemory
with pysampler.VectorEnv([lambda: gym.make("CartPole-v1")] * 2, num_workers=0) as envs:
    core = core_of(envs)
    memory = HostMemory.of(core)
    rewards = core.results.frames.rewards
    rewards[:] = 7.5
    part = memory.part(rewards)
    print(memory.pid, memory.fd, memory.id, memory.offset, memory.address, memory.size)
    print(part.offset, *part.shape)
    sys.stdout.flush()
    sys.stdin.read()
"""


@pytest.fixture
def process():
    host = subprocess.Popen(
        [sys.executable, "-c", HOST], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with host:
        yield host
        host.stdin.close()


@pytest.mark.slow
def test_memory_of_another_process_is_read_even_after_its_death(process):
    memory = HostMemory(*map(int, process.stdout.readline().split()))
    offset, *shape = map(int, process.stdout.readline().split())
    segment = memory.map()
    process.kill()
    process.wait()
    end = offset + 8 * int(np.prod(shape))
    assert (memory.view(segment)[offset:end].view(np.float64) == 7.5).all()
    assert memory.map() is None


def test_only_the_named_segment_is_mapped():
    with pysampler.VectorEnv([Life] * 2, num_workers=0) as envs:
        memory = HostMemory.of(core_of(envs))
        assert memory.map().id == memory.id
        assert replace(memory, id=memory.id + 1).map() is None
        with Path(os.devnull).open() as other:
            assert replace(memory, fd=other.fileno()).map() is None
        assert replace(memory, pid=2**22 + 1).map() is None
        fd = os.memfd_create("pysampler")
        try:
            assert replace(memory, fd=fd).map() is None
        finally:
            os.close(fd)
        assert isinstance(memory.part(np.zeros(3)), np.ndarray)


def test_no_file_but_a_segment_is_opened():
    opened = []

    def profile(_, event, function):
        if event == "c_call" and function.__name__ == "open":
            opened.append(function)

    with pysampler.VectorEnv([Life] * 2, num_workers=0) as envs, Path(os.devnull).open() as other:
        memory = HostMemory.of(core_of(envs))
        with profiled(profile):
            assert replace(memory, fd=other.fileno()).map() is None
        assert opened == []
        with profiled(profile):
            assert memory.map() is not None
        assert len(opened) == 1


@pytest.mark.filterwarnings("ignore:unclosed file")
def test_an_interrupt_leaves_no_file_open():
    def profile(_, event, function):
        if event == "c_return" and function.__name__ == "open":
            raise KeyboardInterrupt

    with pysampler.VectorEnv([Life] * 2, num_workers=0) as envs:
        memory = HostMemory.of(core_of(envs))
        before = os.listdir("/proc/self/fd")  # noqa: PTH208
        with pytest.raises(KeyboardInterrupt), profiled(profile):
            memory.map()
        assert os.listdir("/proc/self/fd") == before  # noqa: PTH208


@contextlib.contextmanager
def profiled(profile):
    before = sys.getprofile()
    sys.setprofile(profile)
    try:
        yield
    finally:
        sys.setprofile(before)
