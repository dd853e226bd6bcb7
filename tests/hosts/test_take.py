"""``take`` of rollouts from simulated hosts: results, order, deadlines, memory."""

import functools
import itertools

import numpy as np
import pytest
from gymnasium import Wrapper
from hosts_in_tests import (
    HORIZON,
    Continuity,
    Life,
    assert_ended_equal,
    assert_equal,
    idle,
    leaves,
    local,
    policy,
    rollouts,
    scripted,
)
from small_envs import Small

import pysampler

SECOND = 1_000_000_000


@pytest.fixture
def three(simulated):
    """Three nodes; the second is slower, the third much slower."""
    simulated.add_node()
    for node, seconds in zip(simulated.alive, (0.1, 0.2, 10), strict=True):
        node.seconds = seconds
    return simulated


def answers(some, simulated):
    """Wait until all calls on their way have been answered."""
    some.take(timeout=0)  # sends the calls
    simulated.settle()


def test_take_returns_nothing_if_no_host_answers_in_time(three):
    with rollouts(hosts=3) as some:
        began = three.time
        taken = some.take(timeout=0.05)
        assert three.time == began + SECOND // 20
        assert len(taken) == 0
        assert taken.hosts == []
        assert list(taken) == []
        assert len(taken.copy()) == 0
        with pytest.raises(ValueError, match="cannot join rollouts: there are none"):
            taken.joined  # noqa: B018
        assert some.take().hosts == [0, 1, 2]  # late answers are not lost
        assert some.stats().taken == 3


def test_take_waits_for_min_hosts(three):
    with rollouts(hosts=3, in_flight=1) as some:
        began = three.time
        assert some.take(min_hosts=2).hosts == [0, 1]
        assert three.time == began + SECOND // 5
        assert some.take(min_hosts=1).hosts == [0]
        assert some.take(min_hosts=3).hosts == [2, 1, 0]  # host 2 answers for the first time
        assert three.time == began + 10 * SECOND
        began = three.time
        assert some.take().hosts == [2, 1, 0]
        assert three.time == began + 10 * SECOND


def test_take_returns_ready_rollouts_at_the_deadline(three):
    with rollouts(hosts=3) as some:
        began = three.time
        assert some.take(min_hosts=3, timeout=1).hosts == [0, 1]
        assert three.time == began + SECOND
        assert some.take(timeout=0).hosts == [0, 1]  # the second rollouts of both
        assert three.time == began + SECOND


def test_take_serves_the_host_that_waited_longest(three):
    for node in three.alive:
        node.seconds = 0.1
    with rollouts(hosts=3) as some:
        order = []
        for rollout in itertools.islice(some, 9):
            order.append((rollout.host, rollout.number))
            three.settle()
        assert order == [(host, number) for number in range(3) for host in range(3)]


def test_a_slow_host_is_served_as_soon_as_it_answers(three):
    with rollouts(hosts=3) as some:
        hosts = []
        while 2 not in hosts:
            hosts.append(next(some).host)
        # 10 s of the third host are 100 rollouts of the first and 50 of the second.
        assert abs(hosts.count(0) - 100) <= 2
        assert abs(hosts.count(1) - 50) <= 2


def test_rollouts_of_each_host_are_consecutive(three):
    check = Continuity()
    three.alive[2].seconds = 0.4
    with rollouts(hosts=3, in_flight=3) as some:
        for n in range(30):
            check.check([next(some)] if n % 3 == 0 else some.take(n % 2 + 1, timeout=0.15))
    assert sorted(check.counts) == [0, 1, 2]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ((0,), "cannot take rollouts: min_hosts 0, expected a whole number of at least 1"),
        ((3,), "cannot take rollouts: min_hosts 3, expected at most hosts, 2"),
        ((1.5,), "cannot take rollouts: min_hosts 1.5, expected"),
        ((None, -1), "cannot take rollouts: timeout -1, expected seconds >= 0 or None"),
        ((1, "soon"), "cannot take rollouts: timeout 'soon', expected seconds"),
    ],
)
def test_take_refuses_bad_arguments(simulated, arguments, expected):
    with rollouts() as some:
        with pytest.raises(ValueError, match=expected):
            some.take(*arguments)
        assert some.take().hosts == [0, 1]


# -- results -------------------------------------------------------------------------------------


def test_joined_shares_memory_with_its_rollouts(three):
    with rollouts(scripted(), policy, hosts=3, info_keys=("life", "half")) as some:
        for _ in range(3):
            taken = some.take()
            joined = taken.joined
            assert joined.rewards.shape == (HORIZON, 6)
            for position, one in enumerate(taken):
                envs = slice(2 * position, 2 * position + 2)
                np.testing.assert_array_equal(joined.lengths[envs], one.lengths)
                for name in FIELDS:
                    ours, theirs = dict(leaves(getattr(joined, name))), leaves(getattr(one, name))
                    for path, array in theirs:
                        np.testing.assert_array_equal(ours[path][:, envs], array, err_msg=path)
                        assert np.shares_memory(ours[path][:, envs], array), path
            ended = joined.ended
            assert len(ended) == sum(len(one.ended) for one in taken)
            assert (np.diff(ended.env) >= 0).all()
            for env, step, total, length in zip(
                *(ended.env, ended.step, ended.returns, ended.lengths), strict=True
            ):
                own = taken[env // 2].ended
                [row] = np.flatnonzero((own.env == env % 2) & (own.step == step))
                assert (own.returns[row], own.lengths[row]) == (total, length)
                assert (joined.terminated | joined.truncated)[step, env]
            assert joined.seconds.keys() == taken[0].seconds.keys()


def test_joined_has_the_oldest_version(simulated):
    weight = np.zeros(1)

    def weighted(observations):
        return np.zeros(len(observations), np.int64) + int(weight[0])

    simulated.alive[1].seconds = 100
    with rollouts(policy=weighted) as some:
        for _ in range(3):
            some.take(min_hosts=1)
            weight += 1
        taken = some.take(min_hosts=2)
        assert taken.joined.version == min(one.version for one in taken) == 1
        assert taken.joined.lag == max(one.lag for one in taken) == 3
        assert len({one.version for one in taken}) == 2


class Plans:
    """Plans the actions of a whole rollout, and counts its plans in an episode."""

    def __call__(self, observations, state):
        steps = np.arange(HORIZON)
        plans = observations.sum(axis=1)[:, None] + steps
        actions = np.sin(np.stack([plans, plans + 1], axis=-1)).astype(np.float32)
        return actions, {"plans": plans, "state": state + 1}

    def initial_state(self, count):
        return np.zeros(count)


@pytest.mark.parametrize("policy_in", ["main", "workers"])
def test_policies_may_act_for_chunks(simulated, policy_in):
    kwargs = {"horizon": 2 * HORIZON, "chunk": HORIZON, "policy_in": policy_in}
    own = [local(scripted(), Plans(), host=host, **kwargs) for host in range(2)]
    with rollouts(scripted(), Plans(), **kwargs) as some:
        for _ in range(5):
            for one in some.take():
                assert_equal(one, next(own[one.host]))
                assert not one.valid.all()
    for one in own:
        one.close()


class LateInfos(Wrapper):
    """Starts to return infos at a step that depends on its seed, so it differs by host."""

    def __init__(self):
        super().__init__(Life())

    def step(self, action):
        *results, _ = self.env.step(action)
        life, host = self.unwrapped.life, (self.unwrapped.number - 3) // 2
        kind, since = [(int, 8), (float, 3), (int, 1000)][host]
        return *results, {"life": kind(life), "in": {"half": life / 2}} if life >= since else {}


class ShapedInfos(Wrapper):
    """Returns infos whose shapes differ by host."""

    def __init__(self):
        super().__init__(Life())

    def step(self, action):
        *results, _ = self.env.step(action)
        host = (self.unwrapped.number - 3) // 2
        maps = [np.ones(3), {"depth": 1.0}]
        return *results, {"in": {"path": np.ones(3 + host)}, "map": maps[host], "one": 1}


def test_infos_of_other_shapes_are_missing(simulated):
    with rollouts(ShapedInfos, info_keys=("in", "map", "one")) as some:
        with pytest.warns(UserWarning, match="pysampler: info") as caught:
            kept = [some.take(), some.take(min_hosts=2)]
        messages = sorted(str(one.message).removeprefix("pysampler: ") for one in caught)
        wrong = "expected one shape; values of others than (3,) are marked as missing"
        assert messages == [
            f"info['in']['path'] has shapes (3,) and (4,), {wrong}",
            f"info['map'] has shapes (3,) and dict, {wrong}",
        ]
        assert {one.filename for one in caught} == {__file__}
        for taken in [*kept, kept[0].copy(), *(some.take() for _ in range(3))]:
            joined = taken.joined
            of_host = np.repeat(taken.hosts, 2) == 0
            for infos, masks in [
                (joined.infos["in"]["path"], joined.info_masks["in"]["path"]),
                (joined.infos["map"], joined.info_masks["map"]),
            ]:
                assert infos.shape == (HORIZON, 4, 3)
                assert (masks == of_host).all()
                assert (infos == of_host[:, None]).all()
            assert joined.info_masks["one"].all()


@pytest.mark.filterwarnings("ignore:.* has shapes")
def test_infos_of_other_shapes_are_missing_if_only_their_host_answers(simulated):
    for node, seconds in zip(simulated.alive, (0.1, 0.15), strict=True):
        node.seconds = seconds
    with rollouts(ShapedInfos, in_flight=1, info_keys=("in", "map", "one")) as some:
        kept = some.take(min_hosts=1)
        taken = some.take(min_hosts=1)  # into a new buffer
        assert (kept.hosts, taken.hosts) == ([0], [1])
        for one in (taken[0], taken.copy()[0]):
            for infos, masks in [
                (one.infos["in"]["path"], one.info_masks["in"]["path"]),
                (one.infos["map"], one.info_masks["map"]),
            ]:
                assert infos.shape == (HORIZON, 2, 3)
                assert infos.dtype == float
                assert not infos.any()
                assert masks.shape == (HORIZON, 2)
                assert not masks.any()
            assert one.info_masks["one"].all()


@pytest.mark.filterwarnings("ignore:.* has shapes")
def test_an_array_is_missing_where_the_first_host_gave_a_dict(simulated):
    for node, seconds in zip(simulated.alive, (0.15, 0.1), strict=True):
        node.seconds = seconds
    with rollouts(ShapedInfos, in_flight=1, info_keys=("map",)) as some:
        kept = some.take(min_hosts=1)
        taken = some.take(min_hosts=1)
        assert (kept.hosts, taken.hosts) == ([1], [0])
        assert (taken[0].infos, taken[0].info_masks) == ({"map": {}}, {"map": {}})


@pytest.mark.filterwarnings("ignore:.*no env has given info 'never'")
def test_infos_may_start_late_or_be_missing_on_some_hosts(three):
    keys = ("life", "in", "never")
    own = [local(LateInfos, idle, host=host, info_keys=keys) for host in range(3)]
    with rollouts(LateInfos, hosts=3, info_keys=keys) as some:
        for n in range(4):
            taken = some.take()
            assert taken.hosts == [0, 1, 2]
            for one in taken:
                assert_equal(one, expected := next(own[one.host]))
                assert_equal(taken.copy()[one.host], expected)
            life, mask = taken.joined.infos["life"], taken.joined.info_masks["life"]
            assert mask.any(axis=0).tolist() == [n > 0, n > 0, True, True, False, False]
            assert not life[:, 4:].any()
    for one in own:
        one.close()


def test_copies_stay_unchanged(simulated):
    with rollouts(scripted(), policy, info_keys=("life",)) as some:
        taken = some.take()
        copies = taken.copy(), [one.copy() for one in taken], [taken.joined.copy()]
        first = local(scripted(), policy, host=0, info_keys=("life",))
        expected = next(first)
        some.take()
        some.take()
        for one in (copies[0][0], copies[1][0]):
            assert_equal(one, expected)
        np.testing.assert_array_equal(copies[2][0].rewards[:, :2], expected.rewards)
        assert [one.number for one in copies[0]] == [0, 0]
        assert copies[0].hosts == [0, 1]
        assert_ended_equal(copies[0].joined.ended, copies[2][0].ended)
        first.close()


def size_on_the_way(one):
    """Return a rollout's size; final observations count only for steps that end an episode."""
    rows = {"final_observations": int((one.terminated | one.truncated).sum())}
    return sum(
        array[0, 0].nbytes * rows.get(name, array.shape[0] * array.shape[1])
        for name in FIELDS
        for _, array in leaves(getattr(one, name))
    )


def test_rollouts_name_their_host_node_and_version(simulated):
    with rollouts() as some:
        size = 0
        for number in range(2):
            for host, one in enumerate(some.take()):
                size += size_on_the_way(one)
                assert (one.host, one.number, one.restarts) == (host, number, 0)
                assert (one.version, one.lag) == (1, 0)
                assert one.node == f"10.0.0.{host} (0000000{host})"
        assert some.hosts == [0, 1]
        stats = some.stats()
        assert (stats.taken, stats.dropped, stats.lost, stats.version) == (4, 0, 0, 1)
        assert [host.taken for host in stats.hosts] == [2, 2]
        assert all(host.serves and not host.gone for host in stats.hosts)
        assert stats.bytes_received == size


FIELDS = [
    *("observations", "actions", "rewards", "terminated", "truncated", "final_observations"),
    *("starts", "valid", "lost", "extras", "state", "infos", "info_masks", "options"),
]


# -- memory --------------------------------------------------------------------------------------


class MixedInfos(Wrapper):
    """Returns an int info on the first host and a float on others."""

    def step(self, action):
        *results, _ = self.env.step(action)
        number, life = self.unwrapped.number, self.unwrapped.life
        return *results, {"life": life if number < 5 else life / 2}


def test_the_dtype_of_an_info_stays_once_all_hosts_have_given_it(simulated):
    with rollouts(lambda: MixedInfos(Life()), info_keys=("life",)) as some:
        taken = [next(some) for _ in range(6)]
        dtypes = [one.infos["life"].dtype for one in taken]
        assert dtypes == [int] + [float] * 5
        life = some.take().joined.infos["life"]
        assert life.dtype == float
        assert (life[:, 2:] % 1 > 0).any()


def test_held_results_stay_unchanged(simulated):
    with rollouts(info_keys=("life",)) as some:
        held = [some.take() for _ in range(8)]
        copies = [taken.copy() for taken in held]
        some.take()
    for taken, copy in zip(held, copies, strict=True):
        for one, other in zip(taken, copy, strict=True):
            assert_equal(one, other)


def test_arrays_are_writable(simulated):
    with rollouts(scripted(), policy, info_keys=("life",)) as some:
        taken = some.take()
        for one in (*taken, taken.joined, *taken.copy()):
            for name in (*FIELDS, "lengths"):
                for path, array in leaves(getattr(one, name)):
                    assert array.flags.writeable, (name, path)
            for name in ("env", "step", "returns", "lengths"):
                assert getattr(one.ended, name).flags.writeable, name


@pytest.mark.slow
def test_kept_results_pin_nothing_in_the_object_store(simulated):
    kept = []
    with rollouts() as some:
        some.take()
        before = simulated.stored_bytes
        for _ in range(5):
            taken = some.take()
            kept += [taken, taken.copy(), [one.copy() for one in taken], taken.joined]
        assert simulated.stored_bytes <= before


def test_copies_do_not_share_lengths(simulated):
    def uneven(observations):
        return np.zeros(len(observations), np.int64)

    with rollouts(policy=uneven) as some:
        one = some.take()[0].copy()
        joined = some.take().joined.copy()
        for later in some.take():
            assert not np.shares_memory(one.lengths, later.lengths)
            assert not np.shares_memory(joined.lengths, later.lengths)


def test_episodes_of_each_host_are_joined_apart(simulated):
    def seeds(episode):
        return {"seeds": len({*episode.observations[:, 0]})}

    statistics = pysampler.EpisodeStatistics(seeds, keep=["observations"])
    with rollouts(horizon=5) as some:
        for rollout in itertools.islice(some, 12):
            statistics.add(rollout)
    assert statistics.count > 8
    assert statistics.means == {"seeds": 1}


def test_episodes_of_joined_rollouts_are_refused(simulated):
    statistics = pysampler.EpisodeStatistics(lambda _: {})
    with rollouts() as some:
        joined = some.take().joined
        for one in (joined, joined.copy()):
            with pytest.raises(ValueError, match="expected that of each host"):
                statistics.add(one)


def test_parts_of_episodes_around_a_dropped_rollout_are_not_joined(simulated):
    make = functools.partial(
        Small,
        lambda env: 2 if env.episodes == 1 else 5,
        observe=lambda env: np.array([env.episodes], np.float64),
    )
    statistics = pysampler.EpisodeStatistics(
        lambda one: {"episodes": len({*one.observations[:, 0]})}, keep=["observations"]
    )
    with rollouts(make, lambda seen: seen, horizon=5, hosts=1, num_envs=1) as some:
        for number, rollout in enumerate(itertools.islice(some, 24)):
            if number % 3 != 1:  # it is dropped
                statistics.add(rollout)
    assert statistics.count > 4
    assert statistics.means == {"episodes": 1}
