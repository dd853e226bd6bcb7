"""evaluate runs the requested number of episodes without favoring short ones."""

import functools

import gymnasium as gym
import numpy as np
import pytest
from scripted import Counting, Scripted, policy
from small_envs import Small, still

import pysampler


def one_or_100(env):
    return 1 if env.np_random.random() < 0.5 else 100


@pytest.mark.parametrize("where", ["main", "workers"])
def test_evaluation_does_not_favor_short_episodes(where):
    make = functools.partial(Small, one_or_100, reward=lambda env, _: env.length > 1)
    evaluation = pysampler.evaluate(
        make, still, 400, seed=1, num_envs=8, vector_kwargs={"num_workers": 2}, policy_in=where
    )
    assert len(evaluation.returns) == len(evaluation.lengths) == 400
    np.testing.assert_array_equal(
        evaluation.returns, np.where(evaluation.lengths == 100, 100.0, 0.0)
    )
    # The first 400 episodes to end would be almost all short.
    assert 42 < evaluation.mean < 58


@pytest.mark.parametrize("episodes", [1, 3, 4, 5, 11])
def test_envs_take_the_next_episode_as_they_end_one(episodes):
    fns = [functools.partial(Scripted, script) for script in ("t", "..t", "......c", ".b")]
    with pysampler.VectorEnv(fns, num_workers=0) as envs:
        evaluation = pysampler.evaluate(envs, policy, episodes)
        envs.reset()  # the envs are free again
    # Round 0 begins episodes 0 to 3, of 1, 3, 7 and 2 steps. The first env begins 4 in round 1.
    assert evaluation.lengths.tolist() == [1, 3, 7, 2, 1, 1, 2, 1, 3, 1, 2][:episodes]
    assert f"over {episodes} episodes" in str(evaluation)


@pytest.mark.parametrize("where", ["main", "workers"])
def test_max_steps_ends_an_endless_episode(where):
    told = r"cannot evaluate: episode 0 \(seed 5\) took more than max_steps, 200; wrap envs"
    with pytest.raises(ValueError, match=told):
        pysampler.evaluate(Small, still, 1, max_steps=200, policy_in=where, seed=5)


@pytest.mark.slow
@pytest.mark.parametrize("length", [1, 20, 64, 65, 128, 200])
def test_an_episode_may_have_exactly_max_steps(length):
    env = functools.partial(Scripted, "." * (length - 1) + "t")
    evaluation = pysampler.evaluate(env, policy, 3, num_envs=2, max_steps=length)
    assert evaluation.lengths.tolist() == [length] * 3
    if length > 1:
        with pytest.raises(ValueError, match=f"took more than max_steps, {length - 1}"):
            pysampler.evaluate(env, policy, 3, num_envs=2, max_steps=length - 1)


def test_a_later_episode_may_not_have_more_than_max_steps():
    env = functools.partial(Scripted, "..t" + "." * 20 + "t")
    assert pysampler.evaluate(env, policy, 2, num_envs=1, max_steps=21).lengths.tolist() == [3, 21]
    with pytest.raises(ValueError, match="episode 1 .* took more than max_steps, 20"):
        pysampler.evaluate(env, policy, 2, num_envs=1, max_steps=20)


def test_max_steps_ignores_envs_that_are_done():
    """Further steps do not count towards max_steps."""
    fns = [functools.partial(Scripted, script) for script in ("t" + "." * 999, "." * 299 + "t")]
    with pysampler.VectorEnv(fns, num_workers=0) as envs:
        assert pysampler.evaluate(envs, policy, 2, max_steps=300).lengths.tolist() == [1, 300]


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"max_steps": 0}, "max_steps 0, expected a whole number of at least 1"),
        ({"max_steps": None}, "max_steps None"),
        ({"episodes": 2.5}, "episodes 2.5"),
    ],
)
def test_bad_options_are_refused(options, text):
    with pytest.raises(ValueError, match=f"cannot evaluate: {text}"):
        pysampler.evaluate(Small, still, **{"episodes": 3, **options})


def test_rollouts_lend_their_envs_to_an_evaluation_and_reset():
    envs = pysampler.VectorEnv([functools.partial(Scripted, "t")] * 4, num_workers=2)
    with envs, pysampler.Rollouts(envs, policy, 5, overlap=True, seed=3) as rollouts:
        first = next(rollouts).copy()
        with pytest.raises(ValueError, match="cannot evaluate: num_envs and vector_kwargs are for"):
            pysampler.evaluate(rollouts, Counting(), 8, num_envs=2)
        evaluation = pysampler.evaluate(rollouts, Counting(), 8, seed=9)
        assert evaluation.lengths.tolist() == [1] * 8
        again = next(rollouts)
        assert again.starts[0].all()
        assert (again.observations[0, :, 1] > first.observations[0, :, 1]).all()
        assert again.lag == 0
        assert again.version > first.version


def stacked_poles():
    env = gym.make("CartPole-v1")
    env.unwrapped.length = 0.6  # so it is stepped in Python, below a stack in arrays
    return gym.wrappers.FrameStackObservation(env, 4)


def halves(observations):
    return np.zeros((len(observations), 1), np.float16)  # so envs leave their batch


def plans(observations):
    return np.repeat((observations[:, 0, 2] > 0).astype(int)[:, None], 2, axis=1)


@pytest.mark.parametrize(
    ("make", "policy", "options"),
    [("Pendulum-v1", halves, {"num_envs": 1}), (stacked_poles, plans, {"num_envs": 8, "chunk": 2})],
    ids=["native", "stacked"],
)
def test_envs_may_leave_their_batch_while_workers_play_episodes(make, policy, options):
    here, there = (
        pysampler.evaluate(make, policy, 24, num_workers=1, seed=0, policy_in=where, **options)
        for where in ("main", "workers")
    )
    assert here.episodes == there.episodes
