"""Policies may take previous actions and rewards, which are zero where episodes begin."""

import functools

import gymnasium as gym
import numpy as np
import pytest
from fork_server_in_tests import wait_until
from small_envs import Small

import pysampler

SEEN = gym.spaces.Box(-np.inf, np.inf, (1,))


Walk = functools.partial(
    Small,
    lambda env: int(env.np_random.geometric(0.2)),
    cut=lambda env: env.length % 2 == 1,
    observe=lambda env: np.ones(1, np.float32),
    reward=lambda env, _: env.np_random.integers(1, 1 << 20),  # exact in float32
    spaces=(SEEN, gym.spaces.Box(-1, 1, (2,))),
)


class Policy:
    """Acts at random by env; returns its arguments as extras."""

    def __call__(self, observations, *, generators, previous_actions, previous_rewards):
        actions = np.array([one.uniform(-1, 1, 2) for one in generators], np.float32)
        seen = {"before": previous_actions.copy(), "reward": previous_rewards.copy()}
        previous_actions[:] = 7  # they are copies
        return actions, seen


def expect_previous(rollouts, count):
    """Check rollouts against their own actions and rewards."""
    last = None
    for _ in range(count):
        rollout = next(rollouts).copy()
        actions = np.array(rollout.actions)
        for t in range(len(actions)):
            begins = rollout.starts[t]
            if t == 0 and last is None:
                assert begins.all()
            before, reward = (
                (actions[t - 1], rollout.rewards[t - 1]) if t else last or (actions[0], 0.0)
            )
            before = np.where(begins[:, None], 0.0, before)
            reward = np.where(begins, 0.0, reward)
            np.testing.assert_array_equal(rollout.extras["before"][t], before)
            np.testing.assert_array_equal(rollout.extras["reward"][t], reward)
        for name, own in (("previous_actions", "before"), ("previous_rewards", "reward")):
            np.testing.assert_array_equal(rollout.extras[name], rollout.extras[own])
        last = actions[-1], rollout.rewards[-1].copy()


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"overlap": True},
        {"keep_last": 3},
        {"policy_in": "workers"},
        {"policy_in": "workers", "overlap": True},
        {"min_envs": 2},
        {"min_envs": 1, "keep_last": 2},
        {"reset_each": True},
    ],
    ids=str,
)
@pytest.mark.parametrize(("workers", "groups"), [(0, 1), (2, 1), (2, 2)])
def test_rollouts_pass_previous_actions_and_rewards(options, workers, groups):
    with pysampler.Rollouts(
        Walk, Policy(), 7, num_envs=6, num_workers=workers, groups=groups, seed=1, **options
    ) as rollouts:
        if not options.get("reset_each"):
            expect_previous(rollouts, 8)
            return
        for _ in range(3):  # each begins anew
            rollout = next(rollouts)
            assert rollout.starts[0].all()
            assert not rollout.extras["before"][0].any()
            assert not rollout.extras["reward"][0].any()


def test_partial_rollouts_pass_previous_rewards():
    options = {"num_workers": 2, "groups": 3, "min_envs": 1, "allow_partial": True}
    with pysampler.Rollouts(Walk, Policy(), 5, num_envs=6, seed=1, **options) as rollouts:
        for _ in range(30):
            rollout = next(rollouts)
            for t, env in zip(*np.nonzero(rollout.valid[1:]), strict=True):
                if rollout.starts[t + 1, env]:
                    assert rollout.extras["reward"][t + 1, env] == 0
                else:
                    assert rollout.extras["reward"][t + 1, env] == rollout.rewards[t, env]


def test_a_partial_rollout_in_the_memory_of_the_last_one_has_previous_rewards(tmp_path):
    """Env 0 makes one step of the first rollout, whose next is under way when that ends."""
    second_step, third_step, go = (tmp_path / name for name in ("second", "third", "go"))

    def slow(env):
        if env.life == 1:
            second_step.touch()
            wait_until(go.exists)
        elif env.life == 2:
            third_step.touch()

    def fast(env):
        if env.life in {3, 7}:
            wait_until((second_step if env.life == 3 else third_step).exists)

    fns = [
        functools.partial(Small, before=before, reward=lambda env, _: 10.0 * env.life)
        for before in (slow, fast)
    ]

    def policy(observations, previous_rewards):
        return np.zeros((len(observations), 1)), {"seen": previous_rewards.copy()}

    options = {"num_workers": 2, "min_envs": 1, "allow_partial": True}
    with pysampler.Rollouts(fns, policy, 4, **options) as rollouts:
        first = next(rollouts)
        lengths = first.lengths.tolist()
        del first
        go.touch()
        second = next(rollouts)
        assert lengths == [1, 4]
        assert second.extras["previous_rewards"][0, 0] == second.extras["seen"][0, 0] == 10


@pytest.mark.parametrize("steps", [None, 4])
@pytest.mark.parametrize("workers", [0, 2])
def test_actors_pass_previous_actions_and_rewards(steps, workers):
    with pysampler.Actors(
        Walk, Policy(), num_envs=4, vector_kwargs={"num_workers": workers}, steps=steps, seed=1
    ) as actors:
        assert {"previous_actions", "previous_rewards"} <= actors.like.keys()
        last = {}
        checked = 0
        while checked < 400:
            records = actors.take(40)
            for i in np.argsort(records.number, kind="stable"):
                env = int(records.env[i])
                fields = ("actions", "rewards", "terminated", "truncated", "before", "reward")
                columns = [np.atleast_1d(getattr(records, name)[i]) for name in fields[1:4]]
                actions = np.array(records.actions[i]).reshape(-1, 2)
                before = np.array(records.before[i]).reshape(-1, 2)
                np.testing.assert_array_equal(
                    before, np.array(records.previous_actions[i]).reshape(-1, 2)
                )
                reward = np.atleast_1d(records.reward[i])
                for t, (acted, got, terminated, truncated) in enumerate(
                    zip(actions, *columns, strict=True)
                ):
                    expected = last.get(env, (np.zeros(2), 0.0))
                    np.testing.assert_array_equal(before[t], expected[0])
                    assert reward[t] == expected[1]
                    over = terminated or truncated
                    last[env] = (np.zeros(2), 0.0) if over else (acted, got)
                    checked += 1


def test_modules_get_previous_actions_and_rewards_as_tensors():
    torch = pytest.importorskip("torch")

    class Net(torch.nn.Module):
        def forward(self, observations, state, previous_rewards, previous_actions):
            assert isinstance(previous_rewards, torch.Tensor)
            state = observations.new_zeros(len(observations)) if state is None else state
            seen = {"sum": state + previous_rewards, "state": state + previous_rewards}
            return previous_actions + 0.125, seen

    with pysampler.Rollouts(Walk, Net(), 6, num_envs=3, num_workers=0, seed=1) as rollouts:
        for _ in range(4):
            rollout = next(rollouts)
            running = ~rollout.starts[:-1]
            steps = rollout.actions * 8
            np.testing.assert_array_equal(steps[~running], 1)
            np.testing.assert_array_equal(
                steps[1:][running[1:]], (rollout.actions[:-1] * 8 + 1)[running[1:]]
            )


def test_previous_dict_actions_keep_their_structure():
    parts = {"push": gym.spaces.Discrete(3), "by": gym.spaces.Box(-1, 1, (2,))}
    make = functools.partial(Walk, spaces=(SEEN, gym.spaces.Dict(parts)))

    def policy(observations, previous_actions):
        count = len(observations)
        push = (previous_actions["push"] + 1) % 3
        return {"push": push, "by": previous_actions["by"] + np.full((count, 2), 0.1, np.float32)}

    with pysampler.Rollouts(make, policy, 20, num_envs=2, num_workers=0, seed=1) as rollouts:
        rollout = next(rollouts)
        for t in range(1, 20):
            before = np.where(rollout.starts[t], 0, rollout.actions["push"][t - 1])
            np.testing.assert_array_equal(rollout.actions["push"][t], (before + 1) % 3)


def test_a_setting_named_previous_rewards_takes_precedence():
    def policy(observations, previous_rewards=None):
        return np.full((len(observations), 2), previous_rewards.mean(), np.float32)

    settings = {"previous_rewards": [0.5, 0.5]}
    with pysampler.Actors(Walk, policy, num_envs=2, num_workers=0, settings=settings) as actors:
        assert (actors.take(20).actions == 0.5).all()
        assert "previous_rewards" not in actors.like


def test_extras_named_previous_rewards_are_refused():
    def policy(observations, previous_rewards):
        return np.zeros((len(observations), 2)), {"previous_rewards": previous_rewards}

    with (
        pysampler.Rollouts(Walk, policy, 6, num_envs=2, num_workers=0) as rollouts,
        pytest.raises(ValueError, match="'previous_rewards' has the name of one of its"),
    ):
        next(rollouts)
