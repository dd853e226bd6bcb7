"""Advantages against their definition as a loop."""

import functools
import math

import numpy as np
import pytest

pytest.importorskip("torch")
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from scripted import Scripted, policy
from small_envs import Small

import pysampler


def slow_gae(rewards, values, last, terminated, truncated, cut_values, lengths, gamma, lam):
    """Return each advantage as a sum over the rest of its episode."""
    steps, envs = rewards.shape
    cut = dict(zip(zip(*np.nonzero(truncated & ~terminated), strict=True), cut_values, strict=True))
    advantages = np.zeros((steps, envs))
    for env in range(envs):
        for t in range(lengths[env]):
            total, weight = 0.0, 1.0
            for later in range(t, lengths[env]):
                if terminated[later, env]:
                    after = 0.0
                elif truncated[later, env]:
                    after = cut[later, env]
                else:
                    after = last[env] if later + 1 == lengths[env] else values[later + 1, env]
                total += weight * (rewards[later, env] + gamma * after - values[later, env])
                weight *= gamma * lam
                if terminated[later, env] or truncated[later, env]:
                    break
            advantages[t, env] = total
    return advantages


@given(data=st.data(), steps=st.integers(1, 8), envs=st.integers(1, 4), whole=st.booleans())
def test_gae_equals_its_definition(data, steps, envs, whole):
    shape = steps, envs
    numbers = st.floats(-10, 10, width=32)
    draw = data.draw
    rewards, values = (draw(arrays.arrays(np.float64, shape, elements=numbers)) for _ in range(2))
    last = draw(arrays.arrays(np.float64, (envs,), elements=numbers))
    terminated, truncated = (draw(arrays.arrays(np.bool_, shape)) for _ in range(2))
    lengths = np.full(envs, steps)
    if not whole:
        lengths = draw(arrays.arrays(np.int64, (envs,), elements=st.integers(0, steps)))
    valid = np.arange(steps)[:, None] < lengths
    terminated &= valid
    truncated &= valid
    cut = np.nonzero(truncated & ~terminated)
    cut_values = draw(arrays.arrays(np.float64, (len(cut[0]),), elements=numbers))
    gamma, lam = draw(st.sampled_from([(0.99, 0.95), (1.0, 1.0), (0.5, 0.0), (0.0, 1.0)]))
    rest = terminated, truncated, cut_values
    advantages, returns = pysampler.gae(
        *(rewards, values, last, *rest),
        **({} if whole else {"valid": valid, "lengths": lengths}),
        gamma=gamma,
        gae_lambda=lam,
    )
    expected = slow_gae(rewards, values, last, *rest, lengths, gamma, lam)
    np.testing.assert_allclose(advantages, expected, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(returns, (expected + values) * valid, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("whole", [True, False])
def test_rollout_gae_bootstraps_where_episodes_were_cut(whole):
    fns = [functools.partial(Scripted, s, 0.001 * i) for i, s in enumerate(["..t", ".c", "...b"])]
    options = {} if whole else {"allow_partial": True, "min_envs": 1}
    envs = pysampler.VectorEnv(fns, num_workers=3)

    def value(observations):
        return observations[..., 2] * 1.5

    with envs, pysampler.Rollouts(envs, policy, 12, seed=1, **options) as rollouts:
        cuts = 0
        for _ in range(5):
            rollout = next(rollouts).copy()
            advantages, _ = rollout.gae(
                value(rollout.observations[:-1]),
                value(rollout.last_observations),
                value(rollout.cut_observations),
            )
            steps, cut_envs = rollout.cut_indices
            finals = np.zeros((12, 3))
            finals[steps, cut_envs] = value(rollout.cut_observations)
            made = np.arange(12)[:, None] < rollout.lengths
            expected = slow_gae(
                rollout.rewards,
                value(rollout.observations[:-1]),
                value(rollout.last_observations),
                rollout.terminated & made,
                rollout.truncated & made,
                value(rollout.cut_observations),
                rollout.lengths,
                0.99,
                0.95,
            )
            np.testing.assert_allclose(advantages, expected, rtol=1e-6, atol=1e-6)
            assert set(cut_envs.tolist()) <= {1}
            cuts += len(cut_envs)
            assert (rollout.observations[steps, cut_envs, 2] + 1 == 2).all()
    assert cuts > 0


def test_gae_of_tensors_returns_tensors_of_their_dtype():
    envs = pysampler.VectorEnv([functools.partial(Scripted, "..c")] * 2, num_workers=0)
    with envs, pysampler.Rollouts(envs, policy, 6) as rollouts:
        rollout = next(rollouts)
        data = rollout.torch()
        values = data.extras["value"]
        assert values.dtype == torch.float32
        last, cut = torch.zeros(2), torch.ones(len(data.cut_observations))
        results = data.gae(values, last, cut)
        expected = rollout.gae(rollout.extras["value"], last.numpy(), cut.numpy())
        for one, other in zip(results, expected, strict=True):
            assert one.dtype == torch.float32
            np.testing.assert_array_equal(one.numpy(), other)
        assert not any(math.isnan(x) for x in results[0].ravel())


@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan])
def test_a_reward_that_is_not_finite_reaches_no_earlier_episode(bad):
    def reward(env, _):
        return bad if env.episodes == 2 else 1.0

    with pysampler.Rollouts(
        functools.partial(Small, 3, reward=reward), lambda x: x, 6, num_envs=2, num_workers=0
    ) as rollouts:
        rollout = next(rollouts)
        advantages, returns = rollout.gae(np.zeros((6, 2)), np.zeros(2), np.zeros(0))
    for found in (advantages, returns):
        assert np.isfinite(found[:3]).all()
        assert not np.isfinite(found[3:]).any()
