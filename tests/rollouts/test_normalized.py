"""Rollouts with a normalizer, against gymnasium's wrappers and raw results."""

import functools

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers.utils import RunningMeanStd
from gymnasium.wrappers.vector import NormalizeObservation, NormalizeReward
from policies_in_tests import mean_and_variance, still
from scripted import Mortal, Scripted

import pysampler
from pysampler._vector.vector_env import core_of

GAMMA = 0.9
HORIZON = 7
SCRIPT = "....t..cb"


def rollouts_of(envs, count=3, policy=still, **options):
    with pysampler.Rollouts(envs, policy, HORIZON, seed=3, **options) as rollouts:
        return [next(rollouts).copy() for _ in range(count)]


def vector_env(count=5, num_workers=2, **options):
    return pysampler.VectorEnv(
        [functools.partial(Scripted, SCRIPT)] * count, num_workers=num_workers, **options
    )


def both(normalizer, make=vector_env, **options):
    """Return the same rollouts raw and normalized."""
    with make() as envs:
        plain = rollouts_of(envs, **options)
    with make() as envs:
        return plain, rollouts_of(envs, **options, normalize=normalizer)


def discounted(rollouts):
    """Return the discounted returns of all steps, computed as in gymnasium."""
    returns = np.zeros(rollouts[0].rewards.shape[1])
    found = []
    for rollout in rollouts:
        for t, rewards in enumerate(rollout.rewards):
            terminated, valid = rollout.terminated[t], rollout.valid[t]
            made = returns * GAMMA * (1 - terminated) + rewards
            returns = np.where(valid | rollout.lost[t], made, returns)
            found.append(made[valid])
            returns[(terminated | rollout.truncated[t]) & (valid | rollout.lost[t])] = 0
    return np.concatenate(found)


def expect_counted(normalizer, observations, returns):
    state = normalizer.state_dict()
    for name, rows in (("observations", observations), ("returns", returns)):
        mean, variance = mean_and_variance(rows)
        assert state[f"{name}.count"] == pytest.approx(len(rows) + 1e-4, abs=1e-6)
        np.testing.assert_allclose(state[f"{name}.mean"], mean, rtol=1e-10)
        np.testing.assert_allclose(state[f"{name}.variance"], variance, rtol=1e-10)


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("mode", list(AutoresetMode)[:2])
def test_observations_equal_gymnasiums_wrapper_bit_for_bit(overlap, mode):
    normalizer = pysampler.Normalizer(gamma=GAMMA)
    make = functools.partial(vector_env, autoreset_mode=mode)
    plain, normalized = both(normalizer, make, overlap=overlap)
    envs = SyncVectorEnv([functools.partial(Scripted, SCRIPT)] * 5)
    wrapper = NormalizeObservation(envs)
    wrapper.obs_rms = RunningMeanStd(shape=(4,))  # it keeps float32 otherwise
    expected = wrapper.observations(plain[0].observations[0])
    for raw, rollout in zip(plain, normalized, strict=True):
        assert rollout.observations.dtype == np.float64
        for t in range(HORIZON):
            np.testing.assert_array_equal(rollout.observations[t].astype(np.float32), expected)
            expected = wrapper.observations(raw.observations[t + 1])
            over = raw.terminated[t] | raw.truncated[t]
            wrapper.update_running_mean = False
            final = wrapper.observations(raw.final_observations[t])
            wrapper.update_running_mean = True
            got = rollout.final_observations[t].astype(np.float32)
            np.testing.assert_array_equal(got[over], final[over])
        np.testing.assert_array_equal(rollout.last_observations.astype(np.float32), expected)
    envs.close()


def test_rewards_equal_gymnasiums_wrapper():
    with vector_env() as envs:
        normalizer = pysampler.Normalizer(gamma=GAMMA)
        normalized = rollouts_of(envs, normalize=normalizer)
    wrapped = NormalizeReward(
        SyncVectorEnv(
            [functools.partial(Scripted, SCRIPT)] * 5, autoreset_mode=AutoresetMode.SAME_STEP
        ),
        gamma=GAMMA,
    )
    wrapped.reset(seed=3)
    wrapped.accumulated_reward = np.zeros(5)  # it keeps float32 otherwise
    for rollout in normalized:
        for t in range(HORIZON):
            _, rewards, terminated, truncated, _ = wrapped.step(still(rollout.observations[t]))
            np.testing.assert_array_equal(rollout.rewards[t], rewards)
            np.testing.assert_array_equal(rollout.terminated[t], terminated)
            np.testing.assert_array_equal(rollout.truncated[t], truncated)
    assert normalizer.state_dict()["returns.variance"] == wrapped.return_rms.var
    wrapped.close()


@pytest.mark.parametrize("num_workers", [0, 2])
def test_numbers_are_close_to_gymnasiums_default_wrappers(num_workers):
    """Approximately, since the unchanged wrappers use float32 statistics."""
    normalizer = pysampler.Normalizer()

    def policy(observations):
        return np.clip(observations[:, :1], -2, 2).astype(np.float32)

    with pysampler.Rollouts(
        "Pendulum-v1", policy, 50, num_envs=3, seed=5, num_workers=num_workers, normalize=normalizer
    ) as rollouts:
        rollout = next(rollouts)
        # No episode ends, so autoreset modes do not differ.
        wrapped = NormalizeReward(NormalizeObservation(gym.make_vec("Pendulum-v1", 3)))
        observations, _ = wrapped.reset(seed=5)
        for t in range(50):
            close = functools.partial(np.testing.assert_allclose, rtol=1e-3, atol=1e-4)
            close(rollout.observations[t], observations)
            observations, rewards, *_ = wrapped.step(policy(observations))
            close(rollout.rewards[t], rewards)
        wrapped.close()
        assert rollout.observations.dtype == np.float32


WAYS = [
    {"policy_in": "main"},
    {"policy_in": "main", "min_envs": 1},
    {"policy_in": "main", "timeout": 0.0},
    {"policy_in": "main", "reset_each": True},
    {"policy_in": "workers"},
    {"policy_in": "workers", "overlap": True},
    {"policy_in": "workers", "info_keys": ["life"]},  # groups pause at the first infos
]


@pytest.mark.parametrize("way", WAYS, ids=str)
@pytest.mark.parametrize(("num_workers", "groups"), [(1, 1), (2, 1), (3, 1), (2, 2)])
def test_statistics_cover_everything_the_envs_returned(way, num_workers, groups):
    normalizer = pysampler.Normalizer(gamma=GAMMA)
    make = functools.partial(vector_env, num_workers=num_workers, groups=groups)
    plain, normalized = both(normalizer, make, **way)
    seen = [
        rollout.observations[1 if number and not way.get("reset_each") else 0 :].reshape(-1, 4)
        for number, rollout in enumerate(plain)
    ]
    returns = discounted(plain)
    if way.get("reset_each"):
        returns = np.concatenate([discounted([rollout]) for rollout in plain])
    expect_counted(normalizer, np.concatenate(seen), returns)
    for raw, rollout in zip(plain, normalized, strict=True):
        np.testing.assert_array_equal(rollout.ended.returns, raw.ended.returns)
        np.testing.assert_array_equal(rollout.starts, raw.starts)


@pytest.mark.parametrize("groups", [1, 2])
def test_steps_missing_from_partial_rollouts_are_not_counted(groups):
    normalizer = pysampler.Normalizer(gamma=GAMMA)
    seen = []

    def policy(observations):
        seen.append(len(observations))
        return still(observations)

    fns = [functools.partial(Scripted, ".", slow=0.003 * (i == 0)) for i in range(4)]
    with pysampler.VectorEnv(fns, num_workers=2, groups=groups) as envs:
        rollouts = rollouts_of(
            envs, 4, policy, min_envs=1, allow_partial=True, normalize=normalizer
        )
    assert not all(rollout.valid.all() for rollout in rollouts)
    assert normalizer.count == 4 + sum(rollout.steps for rollout in rollouts)
    state = normalizer.state_dict()
    assert state["returns.count"] == pytest.approx(normalizer.count - 4 + 1e-4)
    # Each env observes its number of steps, so each number counts once.
    made = sum(rollout.lengths for rollout in rollouts)
    steps = np.concatenate([np.arange(count + 1) for count in made])
    mean, variance = mean_and_variance(steps)
    np.testing.assert_allclose(state["observations.mean"][2], mean)
    np.testing.assert_allclose(state["observations.variance"][2], variance)
    for rollout in rollouts:
        assert np.isfinite(rollout.observations[:-1][rollout.valid]).all()
        assert (rollout.rewards[~rollout.valid] == 0).all()


def test_workers_begin_each_rollout_with_merged_statistics():
    """Each worker continues from them with the results of its own envs."""
    normalizer = pysampler.Normalizer(rewards=False)
    with vector_env() as envs:
        plain = rollouts_of(envs, policy_in="workers")
    with vector_env() as envs:
        groups_of_envs = [list(group) for group in core_of(envs).groups]
        with pysampler.Rollouts(
            envs, still, HORIZON, seed=3, policy_in="workers", normalize=normalizer
        ) as rollouts:
            for number, raw in enumerate(plain):
                common = RunningMeanStd(shape=(4,))
                before = [r.observations[1:] for r in plain[:number]]
                for batch in (plain[0].observations[:1], *before):
                    common.update(batch.reshape(-1, 4))
                rollout = next(rollouts)
                for rows in groups_of_envs:
                    own = RunningMeanStd(shape=(4,))
                    own.mean, own.var, own.count = common.mean, common.var, common.count
                    for t in range(1, HORIZON + 1):
                        own.update(raw.observations[t, rows])
                        expected = (raw.observations[t, rows] - own.mean) / np.sqrt(own.var + 1e-8)
                        np.testing.assert_allclose(
                            rollout.observations[t, rows], expected, rtol=1e-9, atol=1e-9
                        )
    assert len(groups_of_envs) == 2


def counting(observations, state):
    state = np.zeros(len(observations), np.int64) if state is None else state
    return still(observations), {"x": observations[:, 2], "state": state + 1}


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_normalization_leaves_policy_states_alone(way):
    plain, normalized = both(pysampler.Normalizer(), policy=counting, **way)
    for raw, rollout in zip(plain, normalized, strict=True):
        np.testing.assert_array_equal(rollout.state, raw.state)
        assert rollout.extras.keys() == {"x"}


@pytest.mark.slow
def test_the_policy_gets_the_observations_of_the_rollout():
    for way in WAYS:
        with vector_env() as envs:
            [rollout] = rollouts_of(
                envs, 1, lambda o: (still(o), {"seen": o}), normalize=pysampler.Normalizer(), **way
            )
        np.testing.assert_array_equal(rollout.extras["seen"], rollout.observations[:-1])


@pytest.mark.parametrize("way", WAYS, ids=str)
@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("at", [1, 5, HORIZON, HORIZON + 1])
def test_a_lost_worker_does_not_spoil_the_statistics(way, groups, at, tmp_path):
    fns = [functools.partial(Mortal, "die", at, tmp_path / "died")] + [Mortal] * 3
    normalizer = pysampler.Normalizer(gamma=GAMMA, epsilon=1e-12)
    with pysampler.VectorEnv(fns, num_workers=2, groups=groups, on_worker_loss="restart") as envs:
        rollouts = rollouts_of(
            envs, 4, lambda o: np.zeros((len(o), 1)), normalize=normalizer, **way
        )
        assert envs.stats().losses.tolist() == [1, 0]
    assert sum(rollout.lost.sum() for rollout in rollouts) == 2
    resets = 16 if way.get("reset_each") else 4
    state = normalizer.state_dict()
    if way["policy_in"] == "main":
        # First observations of the new envs replace the results of the lost step.
        assert normalizer.count == resets + 4 * 4 * HORIZON
        assert state["returns.count"] == pytest.approx(4 * 4 * HORIZON - 2 + 1e-4)
        expect_returns = discounted([of_ones(rollout) for rollout in rollouts])
        if not way.get("reset_each"):
            mean, variance = mean_and_variance(expect_returns)
            np.testing.assert_allclose(state["returns.mean"], mean)
            np.testing.assert_allclose(state["returns.variance"], variance)
    else:  # without the lost worker's steps in that rollout
        missing = resets + 4 * 4 * HORIZON - normalizer.count
        lost_at = (at - 1) % HORIZON
        assert missing in ({2 * lost_at} if groups == 1 else {lost_at, lost_at + HORIZON})
    for rollout in rollouts:
        for t, env in np.argwhere(rollout.lost):
            # Normalized once, not twice.
            np.testing.assert_array_equal(
                rollout.final_observations[t, env], rollout.observations[t, env]
            )
            assert rollout.rewards[t, env] == 0
        assert np.isfinite(rollout.observations).all()


def of_ones(rollout):
    """Return the rollout with the raw rewards of ``Mortal``."""
    rollout.rewards[:] = rollout.valid
    return rollout


@pytest.mark.parametrize("where", ["main", "workers"])
def test_rollouts_reset_after_an_env_error(where, tmp_path):
    fns = [functools.partial(Mortal, "raise", 10, tmp_path / "raised"), Mortal, Mortal]
    normalizer = pysampler.Normalizer()
    with (
        pysampler.VectorEnv(fns, num_workers=2) as envs,
        pysampler.Rollouts(
            *(envs, lambda o: (np.zeros((len(o), 1)), {"seen": o}), HORIZON),
            policy_in=where,
            normalize=normalizer,
        ) as rollouts,
    ):
        next(rollouts)
        with pytest.raises(ValueError, match="told to"):
            next(rollouts)
        before = normalizer.count
        rollout = next(rollouts)
        assert normalizer.count == before + 3 * (1 + HORIZON)
        np.testing.assert_array_equal(rollout.extras["seen"], rollout.observations[:-1])
        assert abs(rollout.observations).max() < 10


class Rich(gym.Env):
    """Observes a dict with floats, an image and a number."""

    observation_space = spaces.Dict(
        {
            "floats": spaces.Box(-np.inf, np.inf, (2,), np.float32),
            "image": spaces.Box(0, 255, (3, 3), np.uint8),
            "pair": spaces.Tuple([spaces.Discrete(7), spaces.Box(-1, 1, (), np.float64)]),
        }
    )
    action_space = spaces.Discrete(2)

    def _observe(self):
        return {
            "floats": np.array([self.t, -self.t], np.float32),
            "image": np.full((3, 3), self.t, np.uint8),
            "pair": (self.t % 7, np.array(self.t / 100)),
        }

    def reset(self, *, seed=None, options=None):
        self.t = 10
        return self._observe(), {}

    def step(self, action):
        self.t += 1
        return self._observe(), 1.0, False, self.t == 15, {}


@pytest.mark.parametrize("where", ["main", "workers"])
def test_only_float_parts_are_normalized(where):
    normalizer = pysampler.Normalizer(rewards=False)
    with pysampler.Rollouts(
        *(Rich, lambda o: np.zeros(len(o["floats"]), np.int64), HORIZON),
        num_envs=3,
        policy_in=where,
        normalize=normalizer,
    ) as rollouts:
        rollout = next(rollouts)
        t = rollout.observations["image"][:, 0, 0, 0]
        assert t.tolist() == [10, 11, 12, 13, 14, 10, 11, 12]
        np.testing.assert_array_equal(rollout.observations["pair"][0][:, 0], t % 7)
        assert rollout.final_observations["image"][4, 0, 0, 0] == 15
        assert rollout.final_observations["floats"][4, 0, 0] > 1
        assert rollout.observations["floats"].dtype == np.float32
        assert abs(rollout.observations["floats"]).max() < 3
        assert abs(rollout.observations["pair"][1]).max() < 3
        np.testing.assert_array_equal(rollout.rewards, np.ones((HORIZON, 3)))
    assert normalizer.state_dict().keys() == {
        f"observations{name}.{part}"
        for name in ("['floats']", "['pair'][1]")
        for part in ("mean", "variance", "count")
    }
    mean, _ = mean_and_variance(np.repeat(t, 3).astype(np.float64))
    np.testing.assert_allclose(
        normalizer.state_dict()["observations['floats'].mean"], [mean, -mean]
    )


def test_observations_false_normalizes_only_rewards():
    normalizer = pysampler.Normalizer(observations=False, gamma=GAMMA)
    plain, normalized = both(normalizer)
    for raw, rollout in zip(plain, normalized, strict=True):
        np.testing.assert_array_equal(rollout.observations, raw.observations)
        assert not np.array_equal(rollout.rewards, raw.rewards)
    assert normalizer.count == 3 * 5 * HORIZON


@pytest.mark.parametrize("where", ["main", "workers"])
def test_evaluation_normalizes_without_updating_statistics(where):
    normalizer = pysampler.Normalizer()
    with vector_env() as envs:
        rollouts_of(envs, normalize=normalizer)
        before = normalizer.state_dict()
        largest = np.sqrt(before["observations.variance"]) * 4 + before["observations.mean"]
        assert largest.max() < 30

        def policy(observations):
            if not np.isfinite(observations).all() or abs(observations[:, 2]).max() > 5:
                raise ValueError("not normalized")
            return still(observations)

        evaluation = pysampler.evaluate(
            envs, policy, 10, seed=1, policy_in=where, normalize=normalizer
        )
        plain = pysampler.evaluate(envs, still, 10, seed=1)
    assert len(evaluation.returns) == len(plain.returns)
    assert evaluation.returns.min() > 5  # the envs' own
    assert normalizer.update
    for name, value in before.items():
        np.testing.assert_array_equal(normalizer.state_dict()[name], value)


def test_an_evaluation_of_open_rollouts_uses_their_statistics():
    normalizer = pysampler.Normalizer()
    with (
        vector_env() as envs,
        pysampler.Rollouts(envs, still, HORIZON, seed=3, normalize=normalizer) as rollouts,
    ):
        next(rollouts)
        state = normalizer.state_dict()
        seen = []

        def policy(observations):
            seen.append(observations)
            return still(observations)

        pysampler.evaluate(rollouts, policy, 5, seed=3)
        first = np.array([[3 + i, 4, 0, 0] for i in range(5)], np.float64)
        scale = np.sqrt(state["observations.variance"] + 1e-8)
        close = functools.partial(np.testing.assert_allclose, rtol=1e-12)
        close(seen[0][:, [0, 2, 3]], ((first - state["observations.mean"]) / scale)[:, [0, 2, 3]])
        assert normalizer.count == 5 * (1 + HORIZON)
        next(rollouts)
        assert normalizer.count == 2 * 5 * (1 + HORIZON)


@pytest.mark.parametrize("where", ["main", "workers"])
def test_statistics_are_not_updated_while_update_is_false(where):
    normalizer = pysampler.Normalizer()
    with (
        vector_env() as envs,
        pysampler.Rollouts(envs, still, HORIZON, policy_in=where, normalize=normalizer) as rollouts,
    ):
        next(rollouts)
        state, normalizer.update = normalizer.state_dict(), False
        next(rollouts)
        assert normalizer.count == int(state["observations.count"])
        normalizer.update = True
        next(rollouts)
        assert normalizer.count > int(state["observations.count"])


def test_all_tasks_share_statistics():
    normalizer = pysampler.Normalizer()

    def policy(observations, tasks, params):
        return 0.1 - 0.01 * observations

    with pysampler.MultiTaskSampler(
        "pysampler.envs.meta:Navigation2D-v0", policy, num_envs=4, seed=1, normalize=normalizer
    ) as sampler:
        first = sampler.sample(20)
        assert normalizer.count == 4 * 21
        expected = policy(first.observations[:-1], None, None)
        np.testing.assert_array_equal(first.actions, expected)
        assert abs(first.observations).max() > 0.5
        sampler.begin(5)
        ready = sampler.step_recv()
        while ready is not None:
            sampler.step_send(policy(ready.observations, ready.tasks, None))
            ready = sampler.step_recv()
        assert normalizer.count == 4 * 21 + 4 * 6


def test_a_normalizer_with_wrappers_is_refused():
    with (
        vector_env() as envs,
        pytest.raises(ValueError, match=r"wrapped in NormalizeObservation, and `normalize`"),
    ):
        pysampler.Rollouts(NormalizeObservation(envs), still, 5, normalize=pysampler.Normalizer())
