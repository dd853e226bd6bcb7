"""Samplers accept functions, lists of functions, and wrapped vector envs."""

import copy
import functools
import re

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.wrappers.vector import (
    FlattenObservation,
    NormalizeObservation,
    NormalizeReward,
    RecordEpisodeStatistics,
    RescaleAction,
    TransformObservation,
    TransformReward,
)

import pysampler

LIMIT = 7
make = functools.partial(gym.make, "CartPole-v1", max_episode_steps=LIMIT)


def right(observations):
    return np.arange(len(observations)) % 2


def vector_env(count=4, **options):
    return pysampler.VectorEnv([make] * count, num_workers=2, **options)


def rollouts_of(envs, **options):
    with pysampler.Rollouts(envs, right, 10, seed=3, keep_last=2, **options) as rollouts:
        return next(rollouts), next(rollouts)


@pytest.mark.parametrize("overlap", [False, True])
def test_policy_and_rollouts_get_wrapped_observations(overlap):
    with vector_env() as envs:
        plain = rollouts_of(envs, overlap=overlap)
    with vector_env() as envs:
        seen = []

        def policy(observations):
            seen.append(observations.copy())
            return right(observations)

        wrapped = NormalizeObservation(envs)
        with pysampler.Rollouts(wrapped, policy, 10, seed=3, keep_last=2) as rollouts:
            transformed = next(rollouts), next(rollouts)
        # The same wrapper gets the same observations in the same order.
        again = NormalizeObservation(envs)
        expected = [again.observations(plain[0].observations[0])]
        for rollout, other in zip(plain, transformed, strict=True):
            np.testing.assert_array_equal(other.observations[0], expected[-1])
            for t, raw in enumerate(rollout.observations[1:]):
                expected.append(again.observations(raw))
                np.testing.assert_array_equal(other.observations[t + 1], expected[-1])
                over = rollout.terminated[t] | rollout.truncated[t]
                again.update_running_mean = False
                final = again.observations(rollout.final_observations[t])
                again.update_running_mean = True
                np.testing.assert_array_equal(other.final_observations[t][over], final[over])
            assert other.observations.dtype == np.float32
            assert (rollout.terminated | rollout.truncated).any()
        np.testing.assert_array_equal(seen, expected[:-1])


def test_rewards_are_wrapped_and_returns_are_raw():
    with vector_env() as envs:
        wrapped = TransformReward(envs, lambda rewards: rewards * 3)
        first, second = rollouts_of(FlattenObservation(wrapped))
        np.testing.assert_array_equal(first.rewards, np.full((10, 4), 3.0))
        np.testing.assert_array_equal(second.rewards, np.full((10, 4), 3.0))
        assert set(first.ended.returns) == {LIMIT}
        assert envs.reset()[0].shape == (4, 4)  # the user has the envs again


def test_evaluation_gets_wrapped_observations():
    with vector_env() as envs:
        shapes = set()

        def policy(observations):
            shapes.add((observations.shape, observations.dtype))
            return right(observations)

        wrapped = NormalizeObservation(envs)
        wrapped.reset(seed=1)
        before = copy.deepcopy(vars(wrapped.obs_rms))
        evaluation = pysampler.evaluate(wrapped, policy, 8, seed=1)
        np.testing.assert_equal(vars(wrapped.obs_rms), before)
        assert shapes == {((4, 4), np.dtype(np.float32))}
        np.testing.assert_array_equal(evaluation.returns, np.full(8, LIMIT))


@pytest.mark.parametrize(
    ("wrapper", "instead"),
    [
        (RecordEpisodeStatistics, "leave it out, since rollout.ended has returns and lengths"),
        (NormalizeReward, "pass normalize=pysampler.Normalizer(observations=False)"),
        (RescaleAction, "wrap each env instead"),
    ],
)
def test_wrappers_that_do_more_than_transform_are_refused(wrapper, instead):
    function = functools.partial(gym.make, "Pendulum-v1")
    with pysampler.VectorEnv([function] * 2, num_workers=1) as envs:
        bounds = {"min_action": np.float32(-1), "max_action": np.float32(1)}
        options = bounds if wrapper is RescaleAction else {}
        with pytest.raises(
            TypeError, match=f"wrapped in {wrapper.__name__}, .*{re.escape(instead)}"
        ):
            pysampler.Rollouts(wrapper(envs, **options), right, 10)
        envs.reset()


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"policy_in": "workers"}, "acts in the workers"),
        ({"min_envs": 2}, "for all envs together"),
        ({"timeout": 1.0}, "for all envs together"),
        ({"reset_each": True}, "for all envs together"),
    ],
)
def test_wrappers_are_refused_unless_all_envs_act_together(options, why):
    with vector_env() as envs:
        wrapped = NormalizeObservation(envs)
        with pytest.raises(ValueError, match=f"wrapped in NormalizeObservation, and .*{why}"):
            pysampler.Rollouts(wrapped, right, 10, **options)
        envs.reset()


def test_wrappers_are_refused_with_several_groups():
    with (
        vector_env(groups=2) as envs,
        pytest.raises(ValueError, match="for all envs together"),
    ):
        pysampler.Rollouts(NormalizeObservation(envs), right, 10)


@pytest.mark.parametrize(
    "sampler",
    [
        pysampler.Actors,
        functools.partial(pysampler.Rollouts, horizon=3, policy_in="workers"),
        lambda envs, policy: pysampler.MultiTaskSampler(envs, policy),
    ],
    ids=["actors", "rollouts", "tasks"],
)
def test_samplers_that_act_in_workers_or_by_task_refuse_wrappers(sampler):
    with vector_env() as envs:
        with pytest.raises(ValueError, match="wrapped in NormalizeObservation"):
            sampler(NormalizeObservation(envs), right)
        envs.reset()


@pytest.mark.slow
@pytest.mark.parametrize("given", [list, tuple])
def test_a_list_of_functions_makes_one_env_each(given):
    lengths = [3, 5]
    functions = given(
        functools.partial(gym.make, "CartPole-v1", max_episode_steps=n) for n in lengths
    )
    with pysampler.Rollouts(functions, right, 16, seed=1) as rollouts:
        rollout = next(rollouts)
    assert rollouts.envs.closed
    for env, length in enumerate(lengths):
        assert set(rollout.ended.lengths[rollout.ended.env == env]) == {length}
    evaluation = pysampler.evaluate(functions, right, 4, seed=1)
    assert sorted(evaluation.lengths) == [3, 3, 5, 5]
    with pysampler.Actors(functions, right, seed=1) as actors:
        seen = set()
        while seen != {0, 1}:  # either env may be the first to act
            seen |= set(actors.take(64).env.tolist())


def test_num_envs_must_match_the_list_of_functions():
    with pytest.raises(ValueError, match="num_envs 3, but 2 functions"):
        pysampler.Rollouts([make] * 2, right, 10, num_envs=3)


def test_options_for_making_envs_are_refused_with_a_vector_env():
    with vector_env() as envs, pytest.raises(ValueError, match="groups is for envs to make"):
        pysampler.Rollouts(envs, right, 10, vector_kwargs={"groups": 2})


class Difference(gym.vector.VectorObservationWrapper):
    """Returns the change since the last call; counts its calls."""

    calls = 0
    before = 0.0

    def observations(self, observations):
        self.calls += 1
        difference = observations - self.before
        self.before = observations.copy()
        return difference


def test_final_observations_do_not_change_a_wrappers_state():
    with vector_env() as envs:
        [plain, _] = rollouts_of(envs)
    with vector_env() as envs:
        wrapper = Difference(envs)
        [rollout, _] = rollouts_of(wrapper)
        assert wrapper.calls == 21
    raw = np.concatenate([np.zeros_like(plain.observations[:1]), plain.observations])
    np.testing.assert_array_equal(rollout.observations, np.diff(raw, axis=0))
    assert plain.truncated.any()


class Resets(gym.vector.VectorRewardWrapper):
    def reset(self, **kwargs):
        self.scale = 2
        return super().reset(**kwargs)

    def rewards(self, rewards):
        return rewards * self.scale


def test_wrappers_that_override_reset_are_refused():
    with (
        vector_env() as envs,
        pytest.raises(TypeError, match="wrapped in Resets, .* wrap each env"),
    ):
        pysampler.Rollouts(Resets(envs), right, 10)


@pytest.mark.parametrize(
    ("wrapper", "what", "got"),
    [
        (lambda e: TransformObservation(e, lambda o: o[:, :1]), "observations", r"\(4, 1\)"),
        (lambda e: TransformObservation(e, lambda o: o[:1]), "observations", r"\(1, 4\)"),
        (lambda e: TransformReward(e, lambda r: r[:1]), "rewards", r"\(1,\)"),
    ],
)
def test_wrappers_must_return_the_shape_of_their_space(wrapper, what, got):
    with (
        vector_env() as envs,
        pysampler.Rollouts(wrapper(envs), right, 10) as rollouts,
        pytest.raises(ValueError, match=f"returned {what} of shape {got}, expected"),
    ):
        next(rollouts)


def test_an_evaluation_uses_the_wrappers_without_updating_them():
    with vector_env() as envs:
        wrapped = NormalizeObservation(envs)
        seen = []

        def policy(observations):
            seen.append(observations.dtype)
            return right(observations)

        with pysampler.Rollouts(wrapped, right, 10, seed=3) as rollouts:
            next(rollouts)
            count = wrapped.obs_rms.count
            pysampler.evaluate(rollouts, policy, 4)
            assert wrapped.obs_rms.count == count
            assert wrapped.update_running_mean
            next(rollouts)
            assert wrapped.obs_rms.count > count
        assert set(seen) == {np.dtype(np.float32)}


@pytest.mark.parametrize("given", [["CartPole-v1"] * 2, [], [make, None]])
def test_lists_must_hold_functions(given):
    with pytest.raises((TypeError, ValueError), match="cannot make vector env: .*env_fns"):
        pysampler.Rollouts(given, right, 10)


def test_rollouts_that_fail_to_resume_do_not_hold_the_envs():
    with vector_env() as envs, pysampler.Rollouts(envs, right, 10, seed=1) as rollouts:
        next(rollouts)
        rollouts.pause()
        envs.reset()
        envs.step_async([0] * 4)
        with pytest.raises(gym.error.AlreadyPendingCallError):
            next(rollouts)
        assert not rollouts.has_envs
        envs.step_wait()
        next(rollouts)
        assert rollouts.has_envs
        with pytest.raises(gym.error.AlreadyPendingCallError):
            envs.step([0] * 4)
        rollouts.close()
        _, infos = envs.reset()
        for _ in range(LIMIT + 1):
            *_, infos = envs.step([0] * 4)
            assert "final_obs" not in infos
