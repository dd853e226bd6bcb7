"""Statistics of complete episodes, which may span several rollouts or batches of records."""

import functools
import os
import signal

import numpy as np
import pytest
from small_envs import Small

import pysampler


def is_odd(env):
    return env.length % 2 == 1


def random_length(env):
    return int(env.np_random.integers(1, 25))


Steps = functools.partial(
    Small, random_length, cut=is_odd, info=lambda env: {"at": float(env.steps)}
)


def policy(observations):
    return observations % 9, {"double": observations[:, 0] * 2}


def describe(episode):
    count = len(episode)
    assert episode.steps == slice(0, count)
    np.testing.assert_array_equal(episode.observations[:, 0], np.arange(count))
    np.testing.assert_array_equal(episode.actions[:, 0], np.arange(count) % 9)
    np.testing.assert_array_equal(episode.extras["double"], 2 * np.arange(count))
    if episode.infos:
        np.testing.assert_array_equal(episode.infos["at"], np.arange(count) + 1)
    assert (episode.last_observation is None) == episode.terminated
    if not episode.terminated:
        assert episode.last_observation[0] == count
    return {"length": count, "sum": episode.rewards.sum()}


EVERYTHING = ["observations", "actions", "rewards", "extras", "infos"]


@pytest.mark.parametrize("options", [{}, {"min_envs": 1, "allow_partial": True}], ids=str)
def test_statistics_of_rollouts(options):
    statistics = pysampler.EpisodeStatistics(describe, keep=EVERYTHING, window=7)
    newest = []
    options = {"num_envs": 4, "num_workers": 2, "info_keys": ["at"], **options}
    with pysampler.Rollouts(Steps, policy, 10, seed=1, **options) as rollouts:
        for _ in range(20):
            rollout = next(rollouts)
            found = statistics.add(rollout)
            np.testing.assert_array_equal(found.get("length", []), rollout.ended.lengths)
            np.testing.assert_array_equal(found.get("sum", []), rollout.ended.returns)
            newest = [*newest, *rollout.ended.lengths][-7:]
            assert statistics.means.get("length", 0) == (np.mean(newest) if newest else 0)
    assert statistics.count > 30


@pytest.mark.parametrize("steps", [None, 6])
def test_statistics_of_records(steps):
    statistics = pysampler.EpisodeStatistics(describe, keep=EVERYTHING)
    lengths = []
    options = {"num_envs": 4, "num_workers": 2, "steps": steps}
    with pysampler.Actors(Steps, policy, seed=1, **options) as actors:
        for _ in range(30):
            records = actors.take(20, min_records=7)
            found = statistics.add(records)
            over = records.terminated | records.truncated
            assert sorted(found.get("length", [])) == sorted(records.lengths[over])
            lengths += found.get("length", np.zeros(0)).tolist()
    assert len(lengths) == statistics.count > 5


def test_episodes_with_missing_parts_are_left_out():
    statistics = pysampler.EpisodeStatistics(describe, keep=EVERYTHING)
    with pysampler.Rollouts(Steps, policy, 10, num_envs=6, num_workers=0, seed=1) as rollouts:
        next(rollouts)  # not passed to the statistics
        for number in range(30):
            rollout = next(rollouts)
            if number % 3 == 2:
                continue
            found = statistics.add(rollout)  # ``describe`` checks that they are whole
            assert len(found.get("length", ())) <= len(rollout.ended)
    assert statistics.count > 10
    statistics = pysampler.EpisodeStatistics(describe, keep=EVERYTHING)
    with pysampler.Actors(Steps, policy, num_envs=2, num_workers=0) as actors:
        for number in range(200):
            records = actors.take(11, min_records=11)
            if number % 4:
                statistics.add(records)
    assert statistics.count > 5


def test_lost_and_warm_up_episodes_do_not_count():
    statistics = pysampler.EpisodeStatistics(describe, keep=EVERYTHING)
    options = {"num_envs": 4, "num_workers": 2, "on_worker_loss": "restart"}
    with pysampler.Rollouts(Steps, policy, 9, warm_up=30, seed=1, **options) as rollouts:
        whole = 0
        for number in range(20):
            rollout = next(rollouts)
            found = statistics.add(rollout)
            whole += len(rollout.ended) - len(found.get("length", ()))
            if number in (3, 8):
                os.kill(rollouts.envs._pool.pids[0], signal.SIGKILL)
    assert 0 < whole <= 4  # at most one per env, begun in the warm-up
    assert statistics.count > 10


def test_fields_that_are_not_kept_are_none():
    def describe(episode):
        assert episode.observations is episode.extras is episode.infos is None
        assert episode.last_observation is None
        return {"right": episode.actions.mean()}

    statistics = pysampler.EpisodeStatistics(describe, keep="actions")
    with pysampler.Rollouts("CartPole-v1", lambda o: (o[:, 2] > 0) * 1, 99, num_envs=4) as rollouts:
        found = statistics.add(next(rollouts))
    assert set(found) == {"right"}
    assert "EpisodeStatistics of" in repr(statistics)


@pytest.mark.parametrize(
    ("returned", "expected"),
    [(3, "expected a dict of numbers"), ({"a": "x"}, "expected a dict"), (None, "expected a dict")],
)
def test_functions_must_return_a_dict_of_numbers(returned, expected):
    statistics = pysampler.EpisodeStatistics(lambda _: returned)
    with (
        pysampler.Rollouts("CartPole-v1", lambda o: (o[:, 2] > 0) * 1, 99, num_envs=4) as rollouts,
        pytest.raises(TypeError, match=expected),
    ):
        statistics.add(next(rollouts))


def test_bad_arguments_are_refused():
    with pytest.raises(ValueError, match="'rewads', expected some of"):
        pysampler.EpisodeStatistics(describe, keep=["rewads"])
    with pytest.raises(TypeError, match="expected a function"):
        pysampler.EpisodeStatistics(None)
    with pytest.raises(ValueError, match="window"):
        pysampler.EpisodeStatistics(describe, window=0)
    with pytest.raises(TypeError, match="expected a Rollout or Records"):
        pysampler.EpisodeStatistics(describe).add({})


@pytest.mark.parametrize("steps", [None, 4])
def test_parts_of_two_episodes_are_never_joined(steps):
    """Lengths alone would not show a gap of exactly one episode's length."""

    def describe(episode):
        return {"lowest": episode.observations.min(), "highest": episode.observations.max()}

    eight = functools.partial(Small, 8, cut=True, observe=lambda env: np.array([env.episodes]))
    options = {"num_envs": 1, "num_workers": 0, "steps": steps}
    with pysampler.Actors(eight, np.copy, **options) as actors:
        taken = actors.take(100, min_records=40)
        records = taken.copy()
    half = 4 if steps is None else 1
    lost = np.ones(len(records), bool)
    lost[half : 3 * half] = False  # the end of the first and the beginning of the second
    statistics = pysampler.EpisodeStatistics(describe, keep=["observations"])
    whole = statistics.add(records[lost])
    assert (whole["lowest"] == whole["highest"]).all()
    assert 1 not in whole["lowest"]
    assert 2 not in whole["lowest"]
    apart = pysampler.EpisodeStatistics(describe, keep=["observations"])
    apart.add(records[:half])
    whole = apart.add(records[3 * half :])
    assert (whole["lowest"] == whole["highest"]).all()
    assert 2 not in whole["lowest"]


def test_changed_names_are_refused_also_in_the_first_batch():
    names = iter("aab")
    statistics = pysampler.EpisodeStatistics(lambda _: {next(names): 1.0})
    with pysampler.Rollouts("CartPole-v1", lambda o: (o[:, 2] > 0) * 1, 99, num_envs=4) as rollouts:
        rollout = next(rollouts)
        assert len(rollout.ended) >= 3
        with pytest.raises(TypeError, match="as before"):
            statistics.add(rollout)
    assert statistics.means == {}
    assert "of 0 episodes" in repr(statistics)


@pytest.mark.parametrize("value", [2.5, {"x": 2.5}, np.full(3, 2.5)], ids=str)
def test_an_info_that_comes_with_the_last_step_is_that_of_an_episode_over_several_rollouts(value):
    def last_info(env):
        return {"last": value} if env.steps == 25 else {}

    def describe(episode):
        last = episode.infos["last"]
        last = last["x"] if isinstance(value, dict) else last
        assert len(last) == 25
        return {"sum": last.sum(), "last": last[-1].mean()}

    statistics = pysampler.EpisodeStatistics(describe, keep=["infos"])
    env = functools.partial(Small, 25, info=last_info)
    with pysampler.Rollouts(
        env, policy, 10, num_envs=2, num_workers=0, info_keys=["last"]
    ) as rollouts:
        found = [statistics.add(next(rollouts)) for _ in range(3)]
    assert found[-1]["sum"].tolist() == [np.sum(2.5 * np.ones(np.shape(value)))] * 2
    assert found[-1]["last"].tolist() == [2.5, 2.5]


def test_parts_before_an_evaluation_are_not_of_the_episodes_after_it():
    """Warm-up steps begin other episodes, of which a part may be as long."""
    lengths = []
    statistics = pysampler.EpisodeStatistics(
        lambda episode: {"episodes": len(np.unique(episode.observations))}, keep="observations"
    )
    make = functools.partial(*(Small, 3), observe=lambda env: np.array([env.episodes], np.float64))
    with pysampler.Rollouts(
        *(make, lambda o: np.zeros((len(o), 1)), 1), num_envs=16, num_workers=1, warm_up=1, seed=1
    ) as rollouts:
        statistics.add(next(rollouts))
        pysampler.evaluate(rollouts, lambda o: np.zeros((len(o), 1)), 2, seed=0)
        for _ in range(4):
            lengths += statistics.add(next(rollouts)).get("episodes", np.zeros(0)).tolist()
    assert set(lengths) == {1}


@pytest.mark.parametrize("kind", ["rollouts", "records"])
def test_episodes_of_two_samplers_are_never_joined(kind):
    def batches_of(reward):
        options = {"num_envs": 1, "num_workers": 0}
        make = functools.partial(Small, 4, reward=reward)
        if kind == "rollouts":
            with pysampler.Rollouts(make, policy, 2, **options) as rollouts:
                yield from rollouts
        with pysampler.Actors(make, policy, **options) as actors:
            yield from actors.batches(2)

    statistics = pysampler.EpisodeStatistics(lambda one: {"sum": one.rewards.sum()})
    both = batches_of(1.0), batches_of(100.0)
    sums = {float(one) for _ in range(6) for some in both for one in added(statistics, some)}
    assert sums <= {4.0, 400.0}


def added(statistics, batches):
    return statistics.add(next(batches)).get("sum", ())
