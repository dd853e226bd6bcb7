"""Torch modules with ``params=`` that return distributions, as policies for many tasks."""

import functools

import gymnasium as gym
import numpy as np
import pytest

pytest.importorskip("torch")
import torch
from small_envs import Small
from torch.distributions import Bernoulli, Categorical, Independent, Normal
from torch.nn.functional import linear

import pysampler
import pysampler.envs.meta


class Gaussian(torch.nn.Module):
    """Given parameters replace its own, as in meta-learning."""

    def __init__(self, *, independent):
        super().__init__()
        self.mean = torch.nn.Linear(2, 2)
        self.independent = independent
        self.seen = []

    def forward(self, observations, params=None):
        params = dict(self.named_parameters()) if params is None else params
        mean = linear(observations, params["mean.weight"], params["mean.bias"])
        self.seen.append((len(observations), float(params["mean.bias"].detach()[0])))
        normal = Normal(mean, 1e-3)
        return Independent(normal, 1) if self.independent else normal


def sampler_of(policy, **options):
    return pysampler.MultiTaskSampler(
        "Navigation2D-v0", policy, num_envs=6, seed=1, num_workers=0, groups=2, **options
    )


def params_of(policy, bias):
    own = {name: value.detach().clone() for name, value in policy.named_parameters()}
    own["mean.bias"] = torch.full((2,), bias)
    own["mean.weight"].zero_()
    return own


@pytest.mark.parametrize("independent", [True, False])
def test_actions_are_drawn_from_a_modules_distribution(independent):
    policy = Gaussian(independent=independent)
    with sampler_of(policy) as sampler:
        tasks = sampler.sample_tasks(3)
        rollout = sampler.sample(4, tasks=tasks)
        with torch.no_grad():
            observations = torch.from_numpy(rollout.observations[:4].copy())
            means = policy.mean(observations).numpy()
        np.testing.assert_allclose(rollout.actions, means, atol=0.01)
        expected = policy(observations).log_prob(torch.from_numpy(rollout.actions.copy()))
        if not independent:
            expected = expected.sum(-1)
        np.testing.assert_allclose(
            rollout.extras["log_probs"], expected.detach().numpy(), rtol=1e-4, atol=1e-3
        )


@pytest.mark.parametrize("options", [{}, {"min_envs": 1}], ids=str)
def test_each_task_uses_its_own_parameters(options):
    policy = Gaussian(independent=True)
    with sampler_of(policy, **options) as sampler:
        tasks = sampler.sample_tasks(3)
        params = [params_of(policy, bias) for bias in (-0.05, 0.0, 0.05)]
        rollout = sampler.sample(5, params, tasks)
        biases = np.repeat([-0.05, 0.0, 0.05], 2)
        np.testing.assert_allclose(rollout.actions[..., 0], np.tile(biases, (5, 1)), atol=0.01)
        one = params_of(policy, 0.08)
        policy.seen.clear()
        rollout = sampler.sample(5, one, tasks)
        np.testing.assert_allclose(rollout.actions, 0.08, atol=0.01)
        sampler.sample(5, tuple(params))
        with pytest.raises(ValueError, match="params for 2 tasks, expected 3"):
            sampler.sample(5, params[:2])


def test_a_function_with_params_returns_actions():
    """A function that takes ``params`` by keyword and returns actions."""

    def policy(observations, *, params=None):
        return np.full((len(observations), 2), 0.0 if params is None else params, np.float32)

    with sampler_of(policy) as sampler:
        tasks = sampler.sample_tasks(2)
        assert (sampler.sample(3, tasks=tasks).actions == 0).all()
        rollout = sampler.sample(3, [0.01, 0.02])
        assert rollout.actions[0, :, 0].tolist() == pytest.approx([0.01] * 3 + [0.02] * 3)


def test_rollouts_accept_distributions():
    """Any module may return a distribution; its extras are kept."""

    class Discrete(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.net = torch.nn.Linear(4, 2)

        def forward(self, observations):
            return Categorical(logits=self.net(observations)), {"values": observations.sum(-1)}

    policy = Discrete()
    with pysampler.Rollouts("CartPole-v1", policy, 8, num_envs=4, seed=1, num_workers=1) as some:
        rollout = next(some).torch()
        with torch.no_grad():
            expected = Categorical(logits=policy.net(rollout.observations[:8]))
            torch.testing.assert_close(
                rollout.extras["log_probs"], expected.log_prob(rollout.actions)
            )
            torch.testing.assert_close(rollout.extras["values"], rollout.observations[:8].sum(-1))


def test_extras_must_have_equal_names_for_all_tasks():
    def policy(observations, *, params):
        zeros = np.zeros((len(observations), 2), np.float32)
        return zeros, ({"value": np.zeros(len(zeros))} if params else {})

    with (
        pysampler.MultiTaskSampler("Navigation2D-v0", policy, num_envs=4, num_workers=0) as sampler,
        pytest.raises(ValueError, match="for different tasks, expected the same"),
    ):
        sampler.sample(3, params=[0, 1], tasks=sampler.sample_tasks(2))


# Its actions are bits, and its rewards count them.
Switches = functools.partial(
    Small,
    observe=lambda env: np.zeros(3, np.float32),
    reward=lambda env, action: action.sum() if action.dtype == np.int8 else -1.0,
    spaces=(gym.spaces.Box(-1, 1, (3,)), gym.spaces.MultiBinary(3)),
)


def test_bool_actions_fit_multi_binary_but_not_discrete():
    flags = functools.partial(
        Switches, reward=lambda env, action: env.action_space.contains(action)
    )
    with pysampler.Rollouts(flags, lambda o: o >= 0, 4, num_envs=2, num_workers=0) as rollouts:
        assert next(rollouts).rewards.all()
    envs = pysampler.make_vec("CartPole-v1", 2, num_workers=0)
    with (
        pysampler.Rollouts(envs, lambda o: o[:, 2] > 0, 4) as rollouts,
        pytest.raises(TypeError, match=r"dtype bool, expected int64; use .astype\(np.int64\)"),
    ):
        next(rollouts)
    envs.close()


@pytest.mark.slow
def test_bernoulli_draws_have_the_dtype_of_multi_binary():
    class Bits(torch.nn.Module):
        def forward(self, observations):
            return Independent(Bernoulli(logits=observations), 1)

    with pysampler.Rollouts(Switches, Bits(), 8, num_envs=4, num_workers=2) as rollouts:
        rollout = next(rollouts)
        assert rollout.actions.shape == (8, 4, 3)
        np.testing.assert_array_equal(rollout.actions.sum(-1), rollout.rewards)
        np.testing.assert_allclose(rollout.extras["log_probs"], 3 * np.log(0.5), rtol=1e-6)
