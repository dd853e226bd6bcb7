"""With ``warm_up`` envs begin at different steps of their episodes."""

import numpy as np
import pytest
from gymnasium.vector.vector_env import AutoresetMode
from small_envs import Small

import pysampler

LIMIT = 20


def clock():
    """Return an env whose rewards are its step numbers, too."""
    return Small(LIMIT, cut=True, reward=lambda env, _: env.steps)


def stay(observations):
    return np.zeros((len(observations), 1))


def made(envs=12, **kwargs):
    return pysampler.make_vec(clock, envs, vector_kwargs=kwargs)


@pytest.mark.parametrize("mode", list(AutoresetMode))
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("warm_up", [1, LIMIT // 2, LIMIT, 3 * LIMIT])
def test_rollouts_begin_within_episodes(mode, workers, warm_up):
    with made(num_workers=workers, autoreset_mode=mode) as envs:
        space = envs.action_space
        with pysampler.Rollouts(envs, stay, LIMIT, warm_up=warm_up, seed=1) as rollouts:
            rollout = next(rollouts)
            first = rollout.observations[0, :, 0]
            assert len(np.unique(first)) > min(warm_up, 4) - (warm_up == 1)
            assert first.max() <= min(warm_up, LIMIT - 1)
            np.testing.assert_array_equal(rollout.starts[0], first == 0)
            # Each ended once, with the return and length of the whole episode.
            assert sorted(rollout.ended.env) == list(range(12))
            assert (rollout.ended.lengths == LIMIT).all()
            assert (rollout.ended.returns == sum(range(LIMIT + 1))).all()
            np.testing.assert_array_equal(rollout.ended.step, LIMIT - 1 - first[rollout.ended.env])
        assert envs.action_space is space


def test_without_warm_up_all_episodes_end_together():
    with made() as envs, pysampler.Rollouts(envs, stay, LIMIT, seed=1) as rollouts:
        rollout = next(rollouts)
        assert rollout.starts[0].all()
        assert (rollout.ended.step == LIMIT - 1).all()


@pytest.mark.parametrize("steps", [None, 5])
@pytest.mark.parametrize("workers", [0, 2])
def test_actors_begin_within_episodes(steps, workers):
    with (
        made(num_workers=workers) as envs,
        pysampler.Actors(envs, stay, steps=steps, warm_up=LIMIT, seed=1) as actors,
    ):
        begins = set()
        for _ in range(20):
            records = actors.take(24, min_records=12)
            at = records.observations[..., 0]
            np.testing.assert_array_equal(records.lengths, at + 1)
            np.testing.assert_array_equal(records.returns, (at + 1) * (at + 2) / 2)
            begins |= set(at[records.number == 0].ravel().tolist())
        assert len(begins) > 4


def test_warm_up_repeats_by_seed():
    firsts = []
    for seed in (1, 1, 2, [1] * 12):
        with pysampler.Rollouts(clock, stay, 2, num_envs=12, warm_up=9, seed=seed) as rollouts:
            firsts.append(next(rollouts).observations[0].tolist())
    assert firsts[0] == firsts[1]
    assert firsts[0] != firsts[2]


@pytest.mark.slow
def test_native_envs_begin_within_episodes():
    pytest.importorskip("gymnasium.envs.mujoco")  # tests/mujoco can be imported as mujoco
    with pysampler.make_vec("HalfCheetah-v5", 8, vector_kwargs={"num_workers": 2}) as envs:
        assert envs.stats().native
        policy = lambda observations: np.zeros((8, 6), np.float32)  # noqa: E731
        with pysampler.Rollouts(envs, policy, 1000, warm_up=1000, seed=1) as rollouts:
            ended = next(rollouts).ended
            assert sorted(ended.env) == list(range(8))
            assert (ended.lengths == 1000).all()
            assert len(np.unique(ended.step)) > 4


@pytest.mark.parametrize("warm_up", [-1, 2.5, "many"])
def test_bad_warm_up_is_refused(warm_up):
    with made(num_workers=0) as envs:
        for make in (
            lambda: pysampler.Rollouts(envs, stay, 2, warm_up=warm_up),
            lambda: pysampler.Actors(envs, stay, warm_up=warm_up),
        ):
            with pytest.raises((ValueError, TypeError), match="warm_up"):
                make()


def test_warm_up_with_reset_each_is_refused():
    with made(num_workers=0) as envs, pytest.raises(ValueError, match="reset_each begins all"):
        pysampler.Rollouts(envs, stay, 2, warm_up=3, reset_each=True)
