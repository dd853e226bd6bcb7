"""Actors with a normalizer: the numbers in their records and the statistics."""

import functools
import os
import signal

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers.utils import RunningMeanStd
from gymnasium.wrappers.vector import NormalizeObservation, NormalizeReward
from policies_in_tests import mean_and_variance, still
from scripted import Mortal, Scripted
from small_envs import Small

import pysampler

GAMMA = 0.9
SCRIPT = "....t..cb"
make = functools.partial(Scripted, SCRIPT)


def all_of(actors, count):
    """Take at least ``count`` records, stop, and return all as one array."""
    rows = [actors.take(count, min_records=count).rows.copy()]
    actors.stop()
    rows += [records.rows.copy() for records in actors.batches(64)]
    return np.concatenate(rows)


@pytest.mark.parametrize("steps", [None, 6])
def test_records_of_one_process_equal_gymnasiums_wrappers(steps):
    normalizer = pysampler.Normalizer(gamma=GAMMA)
    with pysampler.VectorEnv([make] * 4, num_workers=0) as envs:
        actors = pysampler.Actors(envs, still, steps=steps, seed=3, normalize=normalizer)
        records = actors.take(48 // (steps or 1), min_records=48 // (steps or 1)).copy()
        actors.close()
    names = ("observations", "next_observations", "rewards", "returns", "terminated", "truncated")
    of_env = [records[records.env == env] for env in range(4)]
    got = {name: np.stack([one.by_step(name) for one in of_env], axis=1) for name in names}
    assert got["rewards"].shape == (12, 4)
    sync = SyncVectorEnv([make] * 4, autoreset_mode=AutoresetMode.SAME_STEP)
    rewarded = NormalizeReward(sync, gamma=GAMMA)
    observed = NormalizeObservation(SyncVectorEnv([make] * 4))
    observed.obs_rms = RunningMeanStd(shape=(4,))  # it keeps float32 otherwise
    raw, _ = rewarded.reset(seed=3)
    rewarded.accumulated_reward = np.zeros(4)  # likewise
    returns = np.zeros(4)
    for t in range(12):
        np.testing.assert_array_equal(
            got["observations"][t].astype(np.float32), observed.observations(raw)
        )
        raw, rewards, terminated, truncated, infos = rewarded.step(still(raw))
        np.testing.assert_array_equal(got["rewards"][t], rewards)
        np.testing.assert_array_equal(got["terminated"][t], terminated)
        after = np.array(raw)
        for env in np.flatnonzero(terminated | truncated):
            after[env] = infos["final_obs"][env]
        observed_now = observed.obs_rms  # counts the reset, normalizes the final observation
        counted = RunningMeanStd(shape=(4,))
        counted.mean, counted.var = observed_now.mean, observed_now.var
        counted.count = observed_now.count
        counted.update(np.asarray(raw))
        expected = (after - counted.mean) / np.sqrt(counted.var + 1e-8)
        np.testing.assert_array_equal(got["next_observations"][t], expected)
        returns += t + 1.0  # the envs' own
        np.testing.assert_array_equal(got["returns"][t], returns)
        returns[terminated | truncated] = 0
    rewarded.close()
    observed.close()


def steps_and_returns(count):
    """Return the third numbers of observations and the discounted returns of ``count`` steps."""
    steps, returns, so_far = [0], [], 0.0
    for life in range(count):
        end = SCRIPT[life % len(SCRIPT)]
        so_far = so_far * GAMMA * (end not in "tb") + life + 1
        returns.append(so_far)
        so_far *= end == "."
        steps.append((steps[-1] + 1) * (end == "."))
    return steps, returns


@pytest.mark.parametrize("num_workers", [0, 1, 2, 3])
@pytest.mark.parametrize("steps", [None, 5])
def test_statistics_cover_everything_the_envs_returned(num_workers, steps):
    normalizer = pysampler.Normalizer(gamma=GAMMA)
    with pysampler.VectorEnv([make] * 5, num_workers=num_workers) as envs:
        with pysampler.Actors(envs, still, steps=steps, seed=3, normalize=normalizer) as actors:
            taken = len(actors.take(20, min_records=20))
            assert actors.publish() == 0  # the policy has no weights
            before = normalizer.count
            assert before >= 5 + taken * (steps or 1)
            rows = all_of(actors, 80)
            assert normalizer.count >= max(before, 5 + (taken + len(rows)) * (steps or 1))
        made = [steps_and_returns(int(count)) for count in envs.stats().steps.count]
    state = normalizer.state_dict()
    seen, returns = (np.concatenate([one[part] for one in made]) for part in (0, 1))
    for name, values, at in (("observations", seen, 2), ("returns", returns, ())):
        assert state[f"{name}.count"] == pytest.approx(len(values) + 1e-4, abs=1e-6)
        mean, variance = mean_and_variance(values)
        np.testing.assert_allclose(state[f"{name}.mean"][at], mean, rtol=1e-10)
        np.testing.assert_allclose(state[f"{name}.variance"][at], variance, rtol=1e-10)


@pytest.mark.parametrize("steps", [None, 4])
def test_normalization_leaves_policy_states_alone(steps):
    def policy(observations, state):
        state = np.zeros(len(observations), np.int64) if state is None else state
        return still(observations), {"state": state + 1}

    states = []
    for normalizer in (None, pysampler.Normalizer()):
        with (
            pysampler.VectorEnv([make] * 2, num_workers=1) as envs,
            pysampler.Actors(envs, policy, steps=steps, normalize=normalizer) as actors,
        ):
            records = actors.take(12, min_records=12)
            states.append(records.state[records.env == 0][:3].copy())
    np.testing.assert_array_equal(*states)
    assert states[0].max() > 1


def constant(value, length=None, before=None):
    """Return an env that observes a constant."""
    return Small(length, cut=True, observe=lambda env: np.array([value]), before=before)


far = functools.partial(constant, 1e6, 5)


def idle(observations):
    return np.zeros((len(observations), 1))


def test_workers_use_the_merged_statistics_after_publish():
    normalizer = pysampler.Normalizer(rewards=False)
    fns = [functools.partial(constant, value) for value in (1.0, 3.0)]
    with (
        pysampler.VectorEnv(fns, num_workers=2) as envs,
        pysampler.Actors(envs, idle, high=64, normalize=normalizer) as actors,
    ):
        made = np.zeros(2, int)
        last = np.zeros(2)
        # Until the other env's number hardly shows in each worker's own statistics.
        while made.min() < 200 or abs(last).max() > 0.2:
            records = actors.take(64)
            for env, value in zip(records.env, records.next_observations[:, 0], strict=True):
                made[env] += 1
                last[env] = value
        actors.publish()
        assert normalizer.count >= made.sum()
        lowest = highest = 0.0
        while lowest > -0.3 or highest < 0.3:
            records = actors.take(64)
            values = records.next_observations[:, 0]
            lowest = min(lowest, values[records.env == 0].min(initial=0))
            highest = max(highest, values[records.env == 1].max(initial=0))


def test_a_replacement_continues_the_statistics_of_a_lost_worker(tmp_path):
    normalizer = pysampler.Normalizer(gamma=1.0)

    def die_in_step_100(env):
        if env.life == 99 and not (tmp_path / "died").exists():
            (tmp_path / "died").touch()
            os.kill(os.getpid(), signal.SIGKILL)

    fns = [lambda: constant(5.0, before=die_in_step_100), lambda: constant(7.0)]
    with pysampler.VectorEnv(fns, num_workers=2, on_worker_loss="restart") as envs:
        with pysampler.Actors(envs, idle, high=32, normalize=normalizer) as actors:
            counts = np.zeros(2, int)
            while counts.min() < 300:
                counts += np.bincount(actors.take(32).env, minlength=2)
                actors.publish()
            actors.stop()
            for records in actors.batches(32):
                counts += np.bincount(records.env, minlength=2)
        assert envs.stats().losses.tolist() == [1, 0]
        made = envs.stats().steps.count.astype(int)
    # Two first observations and one of the new env, perhaps steps whose records were not pushed.
    assert counts.sum() + 3 <= normalizer.count <= counts.sum() + 3 + 16
    state = normalizer.state_dict()
    fives = (7 - state["observations.mean"][0]) / 2 * normalizer.count
    assert counts[0] <= fives <= counts[0] + 2 + 16 + 1
    assert state["returns.count"] == pytest.approx(normalizer.count - 3 + 1e-4)
    # The n-th step of an episode has the return n; the new env began an episode.
    of_new, of_other = made[0] - 99, made[1]
    of_lost = normalizer.count - 3 - of_new - of_other
    assert of_lost in range(80, 100)
    returns = sum(n * (n + 1) / 2 for n in (of_lost, of_new, of_other))
    np.testing.assert_allclose(state["returns.mean"] * state["returns.count"], returns)


def near(observations):
    if abs(observations).max() > 10:
        raise ValueError("not normalised")
    return np.zeros((len(observations), 1))


def loaded():
    normalizer = pysampler.Normalizer()
    parts = {"mean": 1.0, "variance": 2.0, "count": 10.0}
    state = {f"returns.{part}": np.array(value) for part, value in parts.items()}
    state |= {f"observations.{part}": np.array([v]) for part, v in parts.items()}
    state["observations.mean"][:] = 1e6
    state["observations.count"] = np.array(10.0)
    normalizer.load_state_dict(state)
    return normalizer


def test_a_watcher_normalizes_without_updating_statistics():
    normalizer = loaded()
    with pysampler.Watcher(near, far, repeat=True, normalize=normalizer) as watcher:
        assert watcher.wait(3, timeout=60)["return"].tolist() == [5, 5, 5]
    assert normalizer.count == 10


def test_a_watcher_of_actors_uses_their_statistics():
    normalizer = loaded()
    with pysampler.VectorEnv([far] * 2, num_workers=1) as envs:
        with (
            pysampler.Actors(envs, near, normalize=normalizer) as actors,
            pysampler.Watcher(actors, far) as watcher,
        ):
            taken = len(actors.take(50, min_records=50))
            actors.publish()
            assert watcher.wait(2, timeout=60)["return"].tolist() == [5, 5]
        assert normalizer.count >= 10 + 2 + taken
        made = int(envs.stats().steps.count.sum())
    assert normalizer.count == 10 + 2 + made  # not those of the watcher


def test_actors_do_not_update_statistics_if_update_is_false():
    normalizer = loaded()
    normalizer.update = False
    with pysampler.Actors(
        lambda: constant(1e6 + 1, 5), near, num_envs=2, normalize=normalizer
    ) as actors:
        records = actors.take(20, min_records=20)
        expected = np.full((20, 1), 1 / np.sqrt(2.0 + 1e-8))
        np.testing.assert_allclose(records.observations, expected, rtol=1e-6)
        np.testing.assert_allclose(records.rewards, expected[:, 0], rtol=1e-6)
        actors.publish()
    assert normalizer.count == 10


@pytest.mark.parametrize("workers", [0, 2])
def test_statistics_are_kept_if_an_env_raises(workers):
    normalizer = pysampler.Normalizer()
    raising = functools.partial(Mortal, "raise", 32)
    taken = 0
    with (
        pysampler.VectorEnv([raising] * 2, num_workers=workers) as envs,
        pysampler.Actors(envs, idle, normalize=normalizer) as actors,
        pytest.raises(pysampler.EnvError, match="told to"),
    ):
        while True:
            records = actors.take(8, min_records=1)
            taken += len(records)
    # The error comes at once, though records may wait; all 31 steps before it were counted.
    assert normalizer.count >= max(taken, 31)


def test_stopped_actors_must_be_closed_before_others_update_statistics():
    normalizer = pysampler.Normalizer()
    actors = pysampler.Actors([make] * 2, still, normalize=normalizer)
    all_of(actors, 10)
    counted = normalizer.count
    with pytest.raises(ValueError, match="another open sampler updates the normalizer"):
        pysampler.Rollouts([make] * 2, still, 4, normalize=normalizer)
    actors.close()
    with pysampler.Rollouts([make] * 2, still, 4, normalize=normalizer) as rollouts:
        next(rollouts)
    assert normalizer.count > counted


def test_closed_actors_leave_the_statistics_of_the_sampler_after_them():
    normalizer = pysampler.Normalizer()
    envs = pysampler.VectorEnv([make] * 2)
    actors = pysampler.Actors(envs, still, normalize=normalizer)
    actors.take(10, min_records=10)
    envs.close()
    with pysampler.Rollouts([make] * 2, still, 50, normalize=normalizer) as rollouts:
        next(rollouts)
        counted = normalizer.count
        actors.close()
        assert normalizer.count == counted
