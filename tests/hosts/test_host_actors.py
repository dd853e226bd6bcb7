"""Actors on simulated hosts: records, weights, settings, losses and stops."""

import threading

import numpy as np
import pytest
from hosts_in_tests import HasWeights, Life, Scripted, actors, idle, policy

import pysampler
from pysampler._common.closing import comes_true
from pysampler.errors import BusyError, EnvError, HostLostError, StopActors
from pysampler.ray._host import HostActor

SECOND = 1_000_000_000


class Weighted(HasWeights):
    """Returns its weight as an extra."""

    def __init__(self):
        super().__init__(w=np.zeros(1000))

    def __call__(self, observations):
        w = self.weights["w"]
        assert (w == w[0]).all(), "torn"
        return np.zeros(len(observations), np.int64), {"w": np.full(len(observations), w[0])}


def publishing(acts, **kwargs):
    """Return actors that load every published version."""
    return actors(policy=acts, refresh_share=1, **kwargs)


class Numbers:
    """Checks by the records' numbers that none is lost or repeated."""

    def __init__(self):
        self.next = {}

    def check(self, records):
        for env, number, host in zip(records.env, records.number, records.host, strict=True):
            assert env // 2 == host
            assert number == self.next.get(env, 0), (env, number)
            self.next[int(env)] = number + 1
        return records


def by_env(batches):
    """Return the records of some batches as rows by env and number."""
    rows = np.concatenate([batch.rows for batch in batches])
    return {(int(row["env"]), int(row["number"])): row for row in rows}


@pytest.mark.slow
@pytest.mark.parametrize("steps", [None, 3])
@pytest.mark.parametrize("kind", ["life", "scripted", "cartpole"])
def test_records_equal_local_actors(simulated, kind, steps):
    env, acts = {
        "life": (Life, idle),
        "scripted": (lambda: Scripted("..t.c"), policy),
        "cartpole": ("CartPole-v1", lambda observations: (observations[:, 2] > 0).astype(int)),
    }[kind]
    with actors(env, acts, steps=steps) as some:
        ours = by_env(some.take(40, min_records=40).copy() for _ in range(5))
    for host in range(2):
        with pysampler.Actors(
            *(env, acts),
            num_envs=2,
            steps=steps,
            high=8,
            seed=3 + 2 * host,
            vector_kwargs={"num_workers": 0},
        ) as local:
            theirs = by_env(local.take(8).copy() for _ in range(20))
        both = [
            key for key in ours if (key[0] - 2 * host, key[1]) in theirs and key[0] // 2 == host
        ]
        assert len(both) >= 40
        for env_index, number in both:
            row, expected = ours[env_index, number], theirs[env_index - 2 * host, number]
            assert row["host"] == host
            for name in set(expected.dtype.names) - {"env", "version"}:
                np.testing.assert_array_equal(row[name], expected[name], err_msg=name)


def test_batches_of_any_size_lose_no_record(simulated):
    check = Numbers()
    with actors(high=16, in_flight=3) as some:
        for count, least in [(1, 1), (100, 1), (7, 7), (16, 16), (3, 1), (64, 40), (500, 200)]:
            records = check.check(some.take(count, min_records=least))
            assert least <= len(records) <= count
        for batch in range(20):
            check.check(some.take(5 + batch))
        some.stop()
        while (records := some.take(9)) is not None:
            check.check(records)
        stats = some.stats()
        assert stats.taken == sum(check.next.values())
        assert (stats.dropped, stats.lost) == (0, 0)
        assert some.stopped
        assert some.take(5) is None


def test_take_waits_for_min_records_or_the_deadline(simulated):
    for node in simulated.alive:
        node.seconds = 1
    with actors(high=16) as some:
        began = simulated.time
        assert len(some.take(10, timeout=0.5)) == 0
        assert simulated.time == began + SECOND // 2
        assert len(some.take(40, min_records=32)) == 32
        assert simulated.time == began + SECOND
        assert len(some.take(40, 0.25, min_records=32)) == 0
        assert len(some.take(40, 1, min_records=40)) == 32


def test_take_serves_the_host_that_waited_longest(simulated):
    with actors(high=8) as some:
        order = []
        for _ in range(8):
            order += np.unique(some.take(8).host).tolist()
            simulated.settle()
        assert order == [0, 1] * 4


@pytest.mark.slow
def test_held_records_are_not_overwritten_and_a_loop_reuses_the_memory_of_two_batches(simulated):
    with actors() as some:
        held = [some.take(16, min_records=16) for _ in range(5)]
        copies = [one.copy() for one in held]
        simulated.settle()
        stored = simulated.stored_bytes
        addresses = set()
        for _ in range(8):
            records = some.take(16, min_records=16)
            addresses.add(records.rows.ctypes.data)
        simulated.settle()
        assert len(addresses) == 2
        assert records.rows.flags.writeable
        assert simulated.stored_bytes <= stored
        for one, copy in zip(held, copies, strict=True):
            assert (one.rows == copy.rows).all()
        numbers = {(int(r["env"]), int(r["number"])) for one in held for r in one.rows}
        assert len(numbers) == 5 * 16


def test_like_fits_a_replay_buffer(simulated):
    with actors() as some:
        buffer = pysampler.ReplayBuffer(100, some.like)
        for _ in range(4):
            buffer.extend(some.take(16, min_records=16))
        assert len(buffer) == 64


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ((0,), "count 0, expected a whole number of at least 1"),
        ((5, None, 0), "min_records 0, expected"),
        ((5, None, 6), "min_records 6, expected at most count, 5"),
        ((5, -1), "timeout -1, expected seconds"),
    ],
)
def test_take_refuses_bad_arguments(simulated, arguments, expected):
    with actors() as some:
        kwargs = {"min_records": arguments[2]} if len(arguments) > 2 else {}
        with pytest.raises(ValueError, match=f"cannot take records: {expected}"):
            some.take(*arguments[:2], **kwargs)


# -- weights -------------------------------------------------------------------------------------


def test_published_weights_reach_the_records_of_all_hosts(simulated):
    acts = Weighted()
    with publishing(acts) as some:
        assert some.version == 1
        for n in range(2, 7):
            acts.weights["w"] += 1
            assert some.publish() == some.version == n
            for _ in range(8):
                records = some.take(16, min_records=16)
                assert (records.w == records.version - 1).all()
                simulated.sleep(0.1)
            assert (records.version == n).all()
            assert set(records.host) == {0, 1}


def test_publish_accepts_policies_and_dicts_of_weights(simulated):
    acts = Weighted()
    with publishing(acts) as some:
        other = Weighted()
        other.weights["w"] += 10
        assert some.publish(other) == 2
        assert some.publish({"w": np.full(1000, 20.0)}) == 3
        for _ in range(8):
            records = some.take(16, min_records=16)
        assert (records.w == 20).all()
        assert (acts.weights["w"] == 0).all()
        with pytest.raises(TypeError, match="cannot publish weights: int, expected a dict"):
            some.publish(3)


def test_publish_refuses_a_policy_without_weights(simulated):
    with actors() as some:
        with pytest.raises(TypeError, match="cannot publish weights: the policy is a function"):
            some.publish()
        with pytest.raises(TypeError, match="cannot publish weights"):
            some.publish({"w": np.zeros(1)})
        assert (some.take(8).version == some.take(8).version).all()


@pytest.mark.slow
def test_a_host_grows_its_room_for_versions(simulated):
    acts = Weighted()
    with publishing(acts, hosts=1) as some:
        for n in range(2, 2100):
            acts.weights["w"] += 1
            some.publish()
            if n % 50 == 0:
                records = some.take(8)
                assert (records.w == records.version - 1).all()
        assert (some.version, int(records.version.max())) >= (2099, 2000)


def test_records_beyond_max_lag_are_dropped_and_counted(simulated):
    acts = Weighted()
    with publishing(acts, max_lag=1) as some:
        highest = {}
        for n in range(60):
            records = some.take(20)
            assert (records.version >= some.version - 1).all()
            for env, number in zip(records.env, records.number, strict=True):
                highest[env] = number + 1
            for _ in range(n % 4):
                acts.weights["w"] += 1
                some.publish()
        stats = some.stats()
        assert sum(highest.values()) <= stats.taken + stats.dropped
        assert stats.dropped > 0
        assert stats.lag <= 1


def test_a_restarted_host_has_the_newest_weights(simulated):
    acts = Weighted()
    with publishing(acts, on_host_loss="restart", hosts=1) as some:
        some.take(8)
        simulated.kill_process(simulated.alive[0])
        acts.weights["w"] += 1
        some.publish()
        simulated.sleep(1)
        while not len(records := some.take(8, timeout=0.1)) or records.lengths[0] > 1:
            pass
        assert (records.w == 1).all()
        assert (records.version == 2).all()


# -- settings ------------------------------------------------------------------------------------


def exploring(observations, epsilon):
    return np.zeros(len(observations), np.int64), {"epsilon": epsilon}


def settings_of(some, simulated):
    """Return the newest setting of each env on all hosts."""
    newest = {}
    for _ in range(6):
        for row in some.take(100, min_records=16).rows:
            newest[int(row["env"])] = float(row["epsilon"])
        simulated.sleep(0.1)
    return newest


def test_settings_are_per_env_across_all_hosts(simulated):
    with actors(policy=exploring, settings={"epsilon": [0.1, 0.2, 0.3, 0.4]}) as some:
        assert settings_of(some, simulated) == {0: 0.1, 1: 0.2, 2: 0.3, 3: 0.4}
        some.settings["epsilon"] = [4, 3, 2, 1]
        assert settings_of(some, simulated) == {0: 4, 1: 3, 2: 2, 3: 1}
        some.settings["epsilon"] = 7
        assert settings_of(some, simulated) == {0: 7, 1: 7, 2: 7, 3: 7}
        assert some.settings["epsilon"].tolist() == [7, 7, 7, 7]
        assert dict(some.settings).keys() == {"epsilon"}
        with pytest.raises(ValueError, match="read-only"):
            some.settings["epsilon"][0] = 3
        assert some.settings["epsilon"].tolist() == [7, 7, 7, 7]
        with pytest.raises(KeyError, match="unknown setting 'gamma', expected one of"):
            some.settings["gamma"] = 1
        for bad in ([1, 2], "x", [[1, 2], [3]]):
            with pytest.raises(ValueError, match="cannot change setting: setting 'epsilon'"):
                some.settings["epsilon"] = bad
        assert settings_of(some, simulated) == {0: 7, 1: 7, 2: 7, 3: 7}


def test_with_auto_every_host_gets_the_same_settings(simulated):
    with actors(policy=exploring, hosts="auto", settings={"epsilon": [0.1, 0.2]}) as some:
        assert settings_of(some, simulated) == {0: 0.1, 1: 0.2, 2: 0.1, 3: 0.2}
        some.settings["epsilon"] = [5, 6]
        simulated.add_node()
        simulated.sleep(3)
        settings_of(some, simulated)
        simulated.sleep(3)
        assert settings_of(some, simulated) == {0: 5, 1: 6, 2: 5, 3: 6, 4: 5, 5: 6}


@pytest.mark.parametrize("moment", ["while it is gone", "while it begins"])
def test_a_restarted_host_has_the_newest_settings(simulated, moment):
    with actors(policy=exploring, settings={"epsilon": 0.5}, on_host_loss="restart") as some:
        some.take(8)
        if moment == "while it is gone":
            simulated.kill_process(simulated.alive[0])
            while some.hosts == [0, 1]:
                some.take(8)
            some.settings["epsilon"] = 0.25
        else:
            # The call with its initial settings has been sent.
            def begins():
                simulated.at(0, lambda: some.settings.__setitem__("epsilon", 0.25))

            simulated.when_called["begin"] = begins
            simulated.kill_process(simulated.alive[0])
        for _ in range(30):
            some.take(8)
            simulated.sleep(0.2)
        assert some.hosts == [0, 1]
        assert settings_of(some, simulated) == dict.fromkeys(range(4), 0.25)


# -- losses and ends -----------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["raise", "restart"])
def test_a_lost_host_raises_or_restarts(simulated, mode):
    check = Numbers()
    with actors(on_host_loss=mode) as some:
        check.check(some.take(32, min_records=32))
        simulated.kill_process(simulated.alive[0])
        if mode == "raise":
            with pytest.raises(HostLostError, match="^host 0") as caught:
                while True:
                    check.check(some.take(8))
            assert caught.value.host == 0
            for _ in range(5):
                assert set(check.check(some.take(16, min_records=16)).host) == {1}
        else:
            begun = set()
            for _ in range(30):
                for row in some.take(16).rows:
                    env, number = int(row["env"]), int(row["number"])
                    if number > check.next[env]:  # the first of the host's new process
                        assert row["lengths"] == 1
                        assert env not in begun
                        begun.add(env)
                        check.next[env] = number
                    check.next[env] += 1
                    assert check.next[env] == number + 1
                simulated.sleep(0.1)
            assert begun == {0, 1}
            assert some.stats().hosts[0].restarts == 1
        assert some.stats().lost == 1


class Ending(Life):
    """Raises in its 20th step if it is the first env of the first host."""

    error = ValueError

    def step(self, action):
        if self.life == 20 and self.number == 3:
            raise self.error("told to")
        return super().step(action)


class Stopping(Ending):
    error = StopActors


def test_an_env_error_ends_only_the_actors_of_its_host(simulated):
    check = Numbers()
    with actors(Ending) as some:
        with pytest.raises(ValueError, match="^host 0 .*env 0 raised ValueError") as caught:
            while True:
                check.check(some.take(8))
        assert isinstance(caught.value, EnvError)
        for _ in range(5):
            assert set(check.check(some.take(16, min_records=16)).host) == {1}
        assert some.hosts == [1]
        assert some.stats().lost == 0


def test_stop_actors_in_an_env_stops_all_hosts(simulated):
    check = Numbers()
    with actors(Stopping) as some:
        for records in some.batches(8):
            check.check(records)
        assert some.stopped
        assert check.next[0] == 20
        assert check.next[2] >= 20


def test_batches_end_with_the_remaining_records(simulated):
    with actors() as some:
        sizes = []
        for records in some.batches(24):
            sizes.append(len(records))
            if len(sizes) == 4:
                some.stop()
                some.stop()
        assert sizes[:4] == [24] * 4
        assert sum(sizes) == some.stats().taken
        assert all(size == 24 for size in sizes[:-1])


def test_stop_works_while_the_only_host_restarts(simulated):
    with actors(hosts=1, on_host_loss="restart") as some:
        some.take(8)
        simulated.kill_process(simulated.alive[0])
        while some.hosts:
            some.take(8, timeout=0.1)
        some.stop()
        assert ends_within(some, 100)


@pytest.mark.parametrize("mode", ["raise", "restart"])
def test_a_host_lost_after_stop_does_not_restart(simulated, mode):
    with actors(on_host_loss=mode) as some:
        some.take(8)
        some.stop()
        simulated.kill_process(simulated.alive[0])
        try:
            assert ends_within(some, 100)
        except HostLostError as error:
            assert (mode, error.host) == ("raise", 0)
            assert ends_within(some, 100)


def test_a_node_that_joins_after_stop_gets_no_host(simulated):
    with actors(hosts="auto") as some:
        some.take(8)
        some.stop()
        simulated.add_node()
        simulated.sleep(3)
        assert ends_within(some, 100)


def ends_within(some, count):
    """Take the remaining records; return whether the stream ended within ``count`` takes."""
    return any(some.take(8, timeout=1) is None for _ in range(count))


def test_a_call_leaves_its_sampler_to_a_close_that_is_under_way():
    host = HostActor()

    class Closing:
        closed = False

        def close(self):
            raise BusyError("cannot call close: another thread is using this vector env")

    class Hosted:
        takes_policy_at_once = False

        def call(self, request):
            host._sampler = None  # as a control call does, before it closes the sampler
            return "content"

    host._hosted, host._sampler = Hosted(), Closing()
    answer = host.call("request", 0, None)
    assert (answer.content, answer.failure) == ("content", None)


def test_close_ends_a_call_that_has_not_begun_its_rollout():
    host, asked = HostActor(), threading.Event()

    def act(observations):
        if sampler._runner is None:  # the first call, before the frames are laid out
            closing.start()
            assert asked.wait(60)
        else:
            comes_true(lambda: sampler._runner._stopped, 5)
        return idle(observations)

    class Hosted:
        takes_policy_at_once = False

        def call(self, request):
            return next(sampler)

    def stop():
        asked.set()
        return True

    closing = threading.Thread(target=host.close)
    sampler = pysampler.Rollouts(Life, act, 3, num_envs=2, num_workers=0)
    sampler._lease.stop = stop
    host._hosted, host._sampler = Hosted(), sampler
    answer = host.call("request", 0, None)
    closing.join()
    assert answer.failure is not None
    assert "closed meanwhile" in str(answer.failure)
    assert sampler.closed
