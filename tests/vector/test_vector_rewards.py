"""Envs whose rewards are arrays: those with a ``reward_space``, as mo-gymnasium has them."""

import itertools

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from made_up import same
from vectors import begun, reset_ended

import pysampler
from pysampler.envs import BatchEnv, check_batch_env
from pysampler.envs.meta import TaskWrapper
from pysampler.errors import EnvError

pytestmark = pytest.mark.filterwarnings("ignore:.*precision lowered by casting")
MODES = NEXT_STEP, SAME_STEP, DISABLED = list(AutoresetMode)
COUNT = 5
WEIGHTS = np.array([1.0, -0.5, 2.0])


class Walk(gym.Env):
    """A walk on a line, rewarded for its place, its step and each of a few steps."""

    observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float64)
    action_space = spaces.Discrete(3)
    reward_space = spaces.Box(-np.inf, np.inf, (3,), np.float32)

    def __init__(self, dtype=np.float32):
        self.dtype = dtype

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.at, self.left = self.np_random.normal(), 6
        return np.array([self.at, self.left]), {}

    def step(self, action):
        self.at += int(action) - 1 + self.np_random.normal()
        self.left -= 1
        ends = abs(self.at) > 3, self.left == 0
        reward = np.array([self.at, int(action) - 1, 0.25]).astype(self.dtype)
        return np.array([self.at, self.left]), reward, *ends, {}


class Weighted(gym.Wrapper):
    """Makes one number of a reward."""

    reward_space = None

    def step(self, action):
        observation, reward, *rest = self.env.step(action)
        return observation, float(reward @ WEIGHTS), *rest


class Part(gym.Wrapper):
    """Makes one number of a reward: the part ``at``."""

    reward_space = None

    def __init__(self, env, at):
        super().__init__(env)
        self.at = at

    def step(self, action):
        observation, reward, *rest = self.env.step(action)
        return observation, float(reward[self.at]), *rest


def parts(mode, count=COUNT):
    """Return three vector envs, each of which sees one part of the rewards."""
    return [
        SyncVectorEnv([lambda at=at: Part(Walk(), at)] * count, autoreset_mode=mode)
        for at in range(3)
    ]


def policy(observations):
    return (observations[:, 0] < 0).astype(np.int64) * 2


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    "options",
    [{"num_workers": 2}, {"num_workers": 0}, {"num_workers": 1, "main_envs": 2}],
    ids=str,
)
def test_each_part_of_rewards_equals_sync_vector_env(mode, options):
    with pysampler.VectorEnv([Walk] * COUNT, autoreset_mode=mode, **options) as ours:
        assert ours.reward_space == Walk.reward_space
        theirs = parts(mode)
        first, _ = ours.reset(seed=3)
        for envs in theirs:
            same(envs.reset(seed=3)[0], first)
        rng = np.random.default_rng(0)
        for _ in range(40):
            actions = rng.integers(0, 3, COUNT)
            observations, rewards, terminated, truncated, _ = ours.step(actions)
            assert rewards.shape == (COUNT, 3)
            assert rewards.dtype == np.float64
            for at, envs in enumerate(theirs):
                results = envs.step(actions)
                same(results[:4], (observations, rewards[:, at], terminated, truncated))
                if mode is DISABLED and (over := terminated | truncated).any():
                    envs.reset(options={"reset_mask": over})
            if mode is DISABLED and over.any():
                ours.reset(options={"reset_mask": over})


@pytest.mark.parametrize("dtype", [np.float64, np.int64, np.float16])
def test_dtypes_of_rewards_become_float64(dtype):
    with begun([lambda: Walk(dtype)] * 2, seed=1, num_workers=1) as envs:
        rewards = envs.step(np.zeros(2, int))[1]
        assert rewards.dtype == np.float64
        assert list(rewards[:, 1]) == [-1, -1]


def test_some_envs_are_received():
    with pysampler.VectorEnv([Walk] * 4, num_workers=2, groups=2) as envs:
        envs.async_reset(seed=1)
        for _ in range(20):
            observations, rewards, _, _, infos = envs.recv(min_envs=1, max_envs=2)
            assert rewards.shape == (len(observations), 3)
            envs.send(np.ones(len(observations), int), infos["env_id"])
        envs.recv()
        assert envs._core.results.nothing()[1].shape == (0, 3)


def test_a_wrapper_may_make_one_number_of_a_reward():
    with pysampler.VectorEnv([lambda: Weighted(Walk())] * 2, num_workers=1) as envs:
        assert envs.reward_space is None
        envs.reset(seed=1)
        assert envs.step(np.zeros(2, int))[1].shape == (2,)


class Wrong(Walk):
    def __init__(self, reward):
        super().__init__()
        self.wrong = reward

    def step(self, action):
        observation, _, *rest = super().step(action)
        return observation, self.wrong, *rest


@pytest.mark.parametrize(
    ("reward", "said"),
    [
        (1.0, r"reward has shape \(\), expected \(3,\), the shape of the env's reward_space"),
        (["1", "2", "3"], r"reward is a list, expected an array of 3 numbers"),
        (np.ones(2), r"reward has shape \(2,\), expected \(3,\)"),
        ("high", r"reward is a str, expected an array of 3 numbers"),
    ],
)
def test_rewards_of_another_shape_raise(reward, said):
    with (
        begun([lambda: Wrong(reward)] * 2, seed=1, num_workers=1) as envs,
        pytest.raises(EnvError, match=said),
    ):
        envs.step(np.zeros(2, int))


class Two(Walk):
    reward_space = spaces.Box(0, 1, (2,))


class Square(Walk):
    reward_space = spaces.Box(0, 1, (2, 2))


@pytest.mark.parametrize(
    ("functions", "workers", "said"),
    [
        ([Walk, Two], 1, "its reward_space is Box.*2,.*that of the others Box.*3,"),
        ([Walk, Two], 2, "cannot batch rewards: some envs have the reward_space"),
        ([Walk, lambda: Weighted(Walk())], 2, "others None"),
        ([Square] * 2, 1, "expected a Box of one dimension, or None"),
    ],
)
def test_reward_spaces_must_be_alike(functions, workers, said):
    with pytest.raises((ValueError, EnvError), match=said):
        pysampler.VectorEnv(functions, num_workers=workers)


class Batched(BatchEnv):
    """Counts steps, rewarded in two ways."""

    observation_space = spaces.Box(-np.inf, np.inf, (1,), np.float64)
    action_space = spaces.Discrete(2)
    reward_space = spaces.Box(-np.inf, np.inf, (2,))
    max_episode_steps = 4

    def __init__(self, num_envs):
        super().__init__(num_envs)
        self.at = self.rows((1,))

    def reset(self, ids, rngs):
        self.at[ids] = rngs.uniform(0, 1, 1)

    def step(self, ids, actions):
        self.at[ids, 0] += actions
        at = self.at[ids, 0]
        return np.stack((at, actions), axis=1), at > 9

    def observe(self, ids):
        return self.at[ids]


def test_batch_envs_may_have_them():
    check_batch_env(Batched)


@pytest.mark.parametrize("mode", MODES)
def test_results_of_batch_envs_have_them(mode):
    with begun(pysampler.make_vec(Batched, 4, num_workers=2, autoreset_mode=mode), seed=1) as envs:
        for step in range(12):
            results = envs.step(np.ones(4, int))
            rewards = results[1]
            assert rewards.shape == (4, 2)
            fresh = mode is NEXT_STEP and step % 5 == 4
            assert (rewards[:, 1] == (not fresh)).all()
            reset_ended(envs, results)


def test_nested_vector_envs_may_have_them():
    with pysampler.VectorEnv([lambda: Nested(3)] * 2, num_workers=1) as nested:
        assert nested.reward_space.shape == (2,)
        nested.reset(seed=1)
        for _ in range(9):
            assert nested.step(np.ones(6, int))[1].shape == (6, 2)


class Nested(gym.vector.VectorEnv):
    """A vector env with vector rewards, as mo-gymnasium's MOSyncVectorEnv is one."""

    reward_space = Batched.reward_space
    single_observation_space = Batched.observation_space
    single_action_space = Batched.action_space

    def __init__(self, count):
        self.num_envs = count
        self.metadata = {"autoreset_mode": NEXT_STEP}
        self.observation_space = gym.vector.utils.batch_space(self.single_observation_space, count)
        self.action_space = gym.vector.utils.batch_space(self.single_action_space, count)

    def reset(self, *, seed=None, options=None):
        return np.zeros((self.num_envs, 1)), {}

    def step(self, actions):
        none = np.zeros(self.num_envs, bool)
        rewards = np.ones((self.num_envs, 2), np.float32)
        return np.zeros((self.num_envs, 1)), rewards, none, none, {}


@pytest.mark.parametrize("options", [{}, {"policy_in": "workers"}, {"overlap": True}], ids=str)
def test_rollouts_have_a_column_for_each_part(options):
    envs = pysampler.VectorEnv([Walk] * COUNT, num_workers=2)
    with pysampler.Rollouts(envs, policy, horizon=9, seed=2, warm_up=4, **options) as rollouts:
        collected = [next(rollouts) for _ in range(3)]
        rewards = np.concatenate([np.array(one.rewards) for one in collected])
        over = np.concatenate([np.array(one.terminated | one.truncated) for one in collected])
        ended = [(one.ended.env, one.ended.returns) for one in collected]
    assert rewards.shape == (27, COUNT, 3)
    for env in range(COUNT):
        last = np.flatnonzero(over[:, env]) + 1
        returns = np.concatenate([totals[of == env] for of, totals in ended])
        assert returns.shape == (len(last), 3)
        # The first episode began in the warm-up.
        sums = [rewards[a:b, env].sum(0) for a, b in itertools.pairwise(last)]
        np.testing.assert_allclose(returns[1:], np.array(sums).reshape(-1, 3))


def test_rollouts_of_some_envs_have_zeros_for_steps_that_were_not_made():
    envs = pysampler.VectorEnv([Walk] * 4, num_workers=2, groups=2)
    with pysampler.Rollouts(
        envs, policy, horizon=6, seed=2, min_envs=1, allow_partial=True
    ) as rollouts:
        rollout = next(rollouts)
        assert rollout.rewards.shape == (6, 4, 3)
        assert (rollout.rewards[~rollout.valid] == 0).all()
        assert (rollout.rewards[rollout.valid][:, 2] == 0.25).all()


class Same(gym.vector.VectorObservationWrapper):
    def observations(self, observations):
        return observations


class Doubled(gym.vector.VectorRewardWrapper):
    def rewards(self, rewards):
        return rewards * 2


@pytest.mark.parametrize("count", [3, 4])
def test_rollouts_through_vector_wrappers_have_their_shapes(count):
    shapes = []

    def noting(observations):
        shapes.append(observations.shape)
        return policy(observations)

    plain, inner = (pysampler.VectorEnv([Walk] * count, num_workers=1) for _ in range(2))
    with (
        pysampler.Rollouts(Doubled(Same(inner)), noting, horizon=4, seed=1) as rollouts,
        pysampler.Rollouts(plain, policy, horizon=4, seed=1) as expected,
    ):
        ours, theirs = next(rollouts), next(expected)
        same(np.array(ours.observations), np.array(theirs.observations))
        same(np.array(ours.rewards), 2 * np.array(theirs.rewards))
    assert set(shapes) == {(count, 2)}
    inner.close()
    plain.close()


class Number(Walk):
    reward_space = spaces.Box(-1, 1, ())

    def step(self, action):
        observation, _, *rest = super().step(action)
        return observation, 0.5, *rest


class Text(Number):
    reward_space = "from -1 to 1"


class OneNumber(Number):
    reward_space = spaces.Box(-1, 1, (1,))


@pytest.mark.parametrize(("kind", "shape"), [(Number, (2,)), (Text, (2,)), (OneNumber, (2, 1))])
def test_single_rewards_may_have_a_space(kind, shape):
    with begun([kind] * 2, seed=1, num_workers=1) as envs:
        assert envs.step(np.ones(2, int))[1].shape == shape


def test_previous_rewards_are_arrays():
    seen = []

    def remembers(observations, *, previous_rewards):
        seen.append(np.array(previous_rewards))
        return policy(observations)

    envs = pysampler.VectorEnv([Walk] * 2, num_workers=1)
    with pysampler.Rollouts(envs, remembers, horizon=5, seed=2) as rollouts:
        rollout = next(rollouts)
        rewards, starts = np.array(rollout.rewards), np.array(rollout.starts)
    assert seen[0].shape == (2, 3)
    assert not seen[0].any()
    for t in range(1, 5):
        expected = np.where(starts[t][:, None], 0, rewards[t - 1]).astype(np.float32)
        same(seen[t], expected)


def test_advantages_are_those_of_each_part():
    rng = np.random.default_rng(1)
    rewards, values = rng.normal(size=(2, 7, 4, 3))
    last = rng.normal(size=(4, 3))
    terminated, truncated = rng.random((2, 7, 4)) < 0.2
    valid = rng.random((7, 4)) < 0.9
    cut = rng.normal(size=((truncated & ~terminated).sum(), 3))
    both = pysampler.gae(rewards, values, last, terminated, truncated, cut, valid=valid)
    for at in range(3):
        one = (part[..., at] for part in (rewards, values, last))
        expected = pysampler.gae(*one, terminated, truncated, cut[:, at], valid=valid)
        for ours, theirs in zip(both, expected, strict=True):
            same(ours[..., at], theirs)
    with pytest.raises(ValueError, match="values of shape"):
        pysampler.gae(rewards, values[..., 0], last, terminated, truncated, cut)


@pytest.mark.parametrize("n_step", [1, 3])
def test_replay_keeps_each_part(n_step):
    rng = np.random.default_rng(1)
    count = 40
    rewards = rng.normal(size=(count, 3))
    ends = rng.random(count) < 0.1
    fields = {"observations": np.arange(count), "next_observations": np.arange(1, count + 1)}
    like = {"observations": np.array(0), "next_observations": np.array(0)}
    whole = pysampler.ReplayBuffer(64, {**like, "rewards": np.zeros(3)}, n_step=n_step, seed=1)
    common = {"terminated": ends, "truncated": np.zeros(count, bool), "env": np.zeros(count, int)}
    whole.add(fields, rewards=rewards, **common)
    batch = whole.sample(32)
    assert batch.rewards.shape == (32, 3)
    for at in range(3):
        part = pysampler.ReplayBuffer(64, like, n_step=n_step, seed=1)
        part.add(fields, rewards=rewards[:, at], **common)
        same(part.sample(32).rewards, batch.rewards[:, at])
    again = pysampler.ReplayBuffer.from_arrays(whole.to_arrays())
    same(again.sample(32).rewards, whole.sample(32).rewards)
    with pytest.raises(ValueError, match=r"rewards of shape \(40,\), expected \(40, 3\)"):
        whole.add(fields, rewards=rewards[:, 0], **common)


class Tasked(Walk):
    """A walk with tasks, which are all alike."""

    def sample_tasks(self, count):
        return [0] * count

    def reset_task(self, task):
        pass


REFUSED = {
    "actors": lambda envs: pysampler.Actors(envs, policy),
    "tasks": lambda _: pysampler.MultiTaskSampler(
        lambda: TaskWrapper(Tasked()), lambda o, t, p: policy(o), num_envs=2, num_workers=1
    ),
    "evaluation": lambda envs: pysampler.evaluate(envs, policy, 2),
    "normalization": lambda envs: pysampler.Rollouts(
        envs, policy, horizon=4, normalize=pysampler.Normalizer()
    ),
}


@pytest.mark.parametrize("what", REFUSED)
def test_samplers_that_need_one_number_refuse_them(what):
    with (
        pysampler.VectorEnv([Walk] * 2, num_workers=1) as envs,
        pytest.raises(ValueError, match="cannot .*: a reward has (3|several) numbers"),
    ):
        REFUSED[what](envs)


def test_wrappers_stay_in_python():
    with pysampler.VectorEnv(
        [lambda: gym.wrappers.ClipAction(Boxed())] * 64, num_workers=1
    ) as envs:
        assert "its rewards are arrays" in envs.describe()


class Boxed(Walk):
    action_space = spaces.Box(0, 2, (), np.float64)


def test_mo_gymnasiums_envs_are_followed():
    mo_gymnasium = pytest.importorskip("mo_gymnasium")
    from mo_gymnasium.wrappers import LinearReward
    from mo_gymnasium.wrappers.vector import MOSyncVectorEnv

    def make():
        return mo_gymnasium.make("deep-sea-treasure-v0")

    ours, theirs = pysampler.VectorEnv([make] * 3, num_workers=2), MOSyncVectorEnv([make] * 3)
    assert ours.reward_space == theirs.reward_space
    same(ours.reset(seed=1)[0], theirs.reset(seed=1)[0])
    rng = np.random.default_rng(0)
    for _ in range(60):
        actions = rng.integers(0, 4, 3)
        a, b = ours.step(actions), theirs.step(actions)
        same(a[:1] + a[2:4], b[:1] + b[2:4])
        np.testing.assert_array_equal(a[1].astype(np.float32), b[1])
    ours.close()
    with begun([lambda: LinearReward(make(), np.array([1.0, 0.5]))] * 2, seed=1) as scalar:
        assert scalar.step(np.zeros(2, int))[1].shape == (2,)
