"""Samplers take any vector env of gymnasium, and return the same steps as of ours."""

import contextlib
import functools

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.envs.classic_control.cartpole import CartPoleVectorEnv
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers.vector import ClipReward
from made_up import SpaceEnv, same
from small_envs import Small

import pysampler
from pysampler.errors import EnvError

MODES = NEXT_STEP, SAME_STEP, DISABLED = list(AutoresetMode)
ENVS, HORIZON, ROLLOUTS = 4, 8, 6
ENV = functools.partial(
    SpaceEnv, spaces.Box(0, 100, (3,), np.float32), spaces.Discrete(3), "numbers"
)


def policy(observations):
    return (observations[:, 0] * 7).astype(int) % 3


class Recurrent:
    """A policy whose actions depend on the number of steps since its episode began."""

    recurrent = True

    def __call__(self, observations, state):
        return (policy(observations) + state) % 3, {"state": state + 1, "count": state}

    def initial_state(self, count):
        return np.zeros(count, np.int64)


def steps_of(envs, policy=policy, **options):
    """Return the valid steps of each env, and the episodes that ended, over several rollouts."""
    steps, episodes = [[] for _ in range(ENVS)], []
    with pysampler.Rollouts(envs, policy, HORIZON, seed=5, info_keys=["x"], **options) as rollouts:
        for _ in range(ROLLOUTS):
            rollout = next(rollouts)
            for env in range(ENVS):
                for t in np.flatnonzero(rollout.valid[:, env]):
                    over = rollout.terminated[t, env] or rollout.truncated[t, env]
                    after = rollout.final_observations[t] if over else rollout.observations[t + 1]
                    values = (
                        rollout.observations,
                        rollout.actions,
                        rollout.rewards,
                        rollout.terminated,
                        rollout.truncated,
                        rollout.infos["x"],
                        *rollout.extras.values(),
                    )
                    steps[env].append(
                        [*(one[t, env].tolist() for one in values), after[env].tolist()]
                    )
            ended = rollout.ended
            episodes += zip(ended.env, ended.returns, ended.lengths, strict=True)
    return steps, episodes


@pytest.fixture(scope="module", params=["plain", "recurrent"])
def acting(request):
    return policy if request.param == "plain" else Recurrent()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("where", ["here", "in workers", "in workers with the policy"])
def test_valid_steps_are_the_same_in_every_autoreset_mode(acting, where, mode):
    expected, all_ended = steps_of(pysampler.VectorEnv([ENV] * ENVS, num_workers=2), acting)
    options = {}
    if where == "here":
        envs = SyncVectorEnv([ENV] * ENVS, autoreset_mode=mode)
    else:
        make = functools.partial(SyncVectorEnv, [ENV] * 2, autoreset_mode=mode)
        envs = pysampler.VectorEnv([make] * 2, autoreset_mode=mode, num_workers=2)
        options = {"policy_in": "workers"} if "policy" in where else {}
    got, ended = steps_of(envs, acting, **options)
    fewer = [len(some) for some in got]
    assert fewer == [HORIZON * ROLLOUTS] * ENVS or mode is NEXT_STEP
    assert min(fewer) > HORIZON * ROLLOUTS / 2
    assert got == [some[:count] for some, count in zip(expected, fewer, strict=True)]
    assert ended
    for env in range(ENVS):
        own = [one for one in ended if one[0] == env]
        assert own == [one for one in all_ended if one[0] == env][: len(own)]
    envs.reset()  # closing the sampler left it open
    envs.close()


@pytest.fixture
def envs():
    with contextlib.closing(SyncVectorEnv([ENV] * ENVS)) as envs:
        yield envs


def test_steps_that_only_reset_an_env_belong_to_no_episode_and_have_no_advantage(envs):
    with pysampler.Rollouts(envs, policy, 64, seed=5) as rollouts:
        rollout = next(rollouts)
        resets = ~rollout.valid
        assert resets.any()
        assert not rollout.lost.any()
        over = rollout.terminated | rollout.truncated
        same(resets[1:], over[:-1])
        assert rollout.starts[1:][resets].all()
        assert rollout.steps == rollout.valid.sum()
        assert sum(len(episode) for episode in rollout.episodes()) == rollout.steps
        values = np.ones_like(rollout.rewards)
        advantages, returns = rollout.gae(values, values[0], np.ones(len(rollout.cut_indices[0])))
        assert not advantages[resets].any()
        assert not returns[resets].any()
        # Of a truncated step, the value of the final observation counts, as in the other modes.
        for t, env in zip(*rollout.cut_indices, strict=True):
            expected = rollout.rewards[t, env] + 0.99 - 1
            assert advantages[t, env] == pytest.approx(expected)


@pytest.mark.parametrize("mode", MODES)
def test_normalized_rewards_of_ended_episodes_do_not_count_resets(mode):
    envs = SyncVectorEnv([ENV] * ENVS, autoreset_mode=mode)
    normalizer = pysampler.Normalizer()
    with pysampler.Rollouts(envs, policy, HORIZON, seed=5, normalize=normalizer) as rollouts:
        steps = sum(next(rollouts).steps for _ in range(3))
    counts = [value for key, value in normalizer.state_dict().items() if "count" in key]
    assert any(float(count) == pytest.approx(steps, abs=1) for count in counts)
    envs.close()


def test_wrapped_vector_envs_are_stepped_with_their_wrappers():
    envs = ClipReward(SyncVectorEnv([ENV] * ENVS), 0.0, 0.5)
    with pysampler.Rollouts(envs, policy, HORIZON, seed=5) as rollouts:
        rewards = next(rollouts).rewards
    assert rewards.min() == 0
    assert rewards.max() == 0.5
    envs.close()


@pytest.mark.slow
@pytest.mark.parametrize("mode", [SAME_STEP, NEXT_STEP])
def test_vector_envs_of_tensors_get_tensors(mode):
    torch = pytest.importorskip("torch")

    class Tensors(gym.vector.VectorEnv):
        """A vector env that takes and returns tensors, as simulators on a GPU do."""

        def __init__(self):
            self.inner = SyncVectorEnv([ENV] * ENVS, autoreset_mode=mode)
            for name in ("num_envs", "metadata", "single_observation_space", "single_action_space"):
                setattr(self, name, getattr(self.inner, name))

        def reset(self, **kwargs):
            observations, infos = self.inner.reset(**kwargs)
            return torch.from_numpy(observations), infos

        def step(self, actions):
            assert isinstance(actions, torch.Tensor)
            *arrays, infos = self.inner.step(actions.numpy())
            infos = {key: _tensor_of(torch, value) for key, value in infos.items()}
            return *map(torch.from_numpy, arrays), infos

    expected = SyncVectorEnv([ENV] * ENVS, autoreset_mode=mode)
    assert steps_of(Tensors()) == steps_of(expected)
    expected.close()


def _tensor_of(torch, value):
    plain = isinstance(value, np.ndarray) and value.dtype != object
    return torch.from_numpy(value) if plain else value


def test_evaluate_counts_the_episodes_of_any_vector_env():
    evaluation = pysampler.evaluate(
        CartPoleVectorEnv(8), lambda o: np.ones(len(o), int), 24, seed=1
    )
    assert len(evaluation.returns) == 24
    same(evaluation.returns, evaluation.lengths.astype(float))
    assert 8 < evaluation.mean < 11  # always to the right


def test_vector_envs_that_reset_themselves_take_no_options_of_episodes():
    told = "cannot evaluate: episode 0 is EpisodeSpec.*the vector env resets its envs itself"
    for one in ({"seed": 1}, {"state": np.zeros(4)}):
        with pytest.raises(ValueError, match=told):
            pysampler.evaluate(CartPoleVectorEnv(2), policy, [pysampler.EpisodeSpec(**one)])


def test_seeds_of_vector_envs_that_reset_themselves_are_those_of_the_first_episodes():
    evaluation = pysampler.evaluate(CartPoleVectorEnv(2), lambda o: np.ones(len(o), int), 4, seed=7)
    assert [one.seed for one in evaluation.episodes] == [7, 8, None, None]


WHERE = ["here", "in workers", "in workers with the policy"]


def one_if_valid(env, action):
    assert env.action_space.contains(action), action
    return 1.0


def counted(where, mode, action_space=None, num_workers=2):
    """Return a vector env of four envs, whose episodes have three steps, and options."""
    make = functools.partial(
        Small,
        3,
        cut=True,
        info=lambda env: {"at": env.steps, "success": env.steps == 3},
        reset_info={"first": True},
        reward=one_if_valid,
        spaces=(Small.observation_space, action_space or spaces.Discrete(3)),
    )
    if where == "here":
        return SyncVectorEnv([make] * 4, autoreset_mode=mode), {}
    batch = functools.partial(SyncVectorEnv, [make] * 2, autoreset_mode=mode)
    envs = pysampler.VectorEnv([batch] * 2, autoreset_mode=mode, num_workers=num_workers)
    return envs, {"policy_in": "workers"} if "policy" in where else {}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("where", WHERE)
def test_statistics_describe_the_episode_that_ended(where, mode):
    def describe(episode):
        return {
            "observations": episode.observations[:, 0].tolist() == [0, 1, 2],
            "last": episode.last_observation.tolist() == [3],
            "at": episode.infos["at"].tolist() == [1, 2, 3],
            "reset": "first" in episode.infos,
        }

    statistics = pysampler.EpisodeStatistics(describe, keep=["observations", "infos"])
    envs, options = counted(where, mode)
    evaluation = pysampler.evaluate(envs, policy, 9, seed=1, statistics=statistics, **options)
    envs.close()
    expected = {"observations": 1.0, "last": 1.0, "at": 1.0, "reset": 0.0}
    assert [one.statistics for one in evaluation.episodes] == [expected] * 9
    assert evaluation.successes.tolist() == [True] * 9


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("where", WHERE)
@pytest.mark.parametrize(
    "space", [spaces.Discrete(2, start=1), spaces.Box(0.5, 1, (2,), np.float32)], ids=str
)
def test_envs_without_an_episode_get_valid_actions(space, where, mode):
    def ones(observations):
        return np.ones((len(observations), *space.shape), space.dtype)

    envs, options = counted(where, mode, space)
    for episodes in (2, 5):
        evaluation = pysampler.evaluate(envs, ones, episodes, seed=1, **options)
        assert evaluation.lengths.tolist() == [3] * episodes
    envs.close()


@pytest.mark.parametrize("where", WHERE[1:])
def test_a_vector_env_of_envs_without_an_episode_is_not_stepped(where):
    envs, options = counted(where, SAME_STEP, num_workers=1)
    pysampler.evaluate(envs, policy, 1, seed=1, **options)
    assert envs.stats().steps.count.tolist() == [3, 3, 0, 0]
    envs.reset()
    envs.step(envs.action_space.sample())  # all of them
    assert envs.stats().steps.count.tolist() == [4, 4, 1, 1]
    envs.close()


def test_vector_envs_without_autoreset_run_the_same_episodes():
    def right(observations):
        return np.ones(len(observations), int)

    envs = SyncVectorEnv([ENV] * 3, autoreset_mode="Disabled")
    nested = pysampler.evaluate(envs, right, 8, seed=7)
    envs.close()
    assert nested.episodes == pysampler.evaluate(ENV, right, 8, seed=7, num_workers=0).episodes


def test_open_rollouts_of_any_vector_env_can_be_evaluated(envs):
    with pysampler.Rollouts(envs, policy, HORIZON, seed=5) as rollouts:
        next(rollouts)
        assert len(pysampler.evaluate(rollouts, policy, 4, seed=1).returns) == 4
        next(rollouts)


def test_two_samplers_cannot_step_the_same_vector_env(envs):
    with pysampler.Rollouts(envs, policy, HORIZON, seed=5) as rollouts:
        next(rollouts)
        with pytest.raises(gym.error.AlreadyPendingCallError, match="rollouts have the envs"):
            pysampler.evaluate(envs, policy, 4)
        next(rollouts)
    assert len(pysampler.evaluate(envs, policy, 4).returns) == 4


def test_vector_env_that_is_refused_stays_open(envs):
    class Odd(gym.Space):
        pass

    envs.single_observation_space = Odd((2,), np.float32)
    with pytest.raises(ValueError, match="parts without a fixed shape"):
        pysampler.Rollouts(envs, policy, HORIZON)
    assert not envs.closed


def test_warm_up_is_named_if_single_envs_cannot_be_reset():
    envs = CartPoleVectorEnv(4)
    rollouts = pysampler.Rollouts(envs, lambda o: np.ones(len(o), int), HORIZON, warm_up=10, seed=1)
    with pytest.raises(EnvError, match="ignores options") as raised:
        next(rollouts)
    assert any("warm_up" in note for note in raised.value.__notes__)
    rollouts.close()


def test_multi_task_sampler_refuses_other_vector_envs(envs):
    with pytest.raises(TypeError, match="SyncVectorEnv, expected pysampler.VectorEnv"):
        pysampler.MultiTaskSampler(envs, policy)


def test_policy_cannot_act_in_the_workers_of_another_vector_env(envs):
    with pytest.raises(ValueError, match="pass functions that each make one"):
        pysampler.Rollouts(envs, policy, HORIZON, policy_in="workers")


def test_actors_refuse_vector_envs_that_reset_late():
    envs = pysampler.VectorEnv([functools.partial(SyncVectorEnv, [ENV] * 2)], num_workers=1)
    with envs, pytest.raises(ValueError, match="SAME_STEP: its own is NEXT_STEP"):
        pysampler.Actors(envs, policy).take(1)


@pytest.mark.parametrize("mode", [SAME_STEP, DISABLED])
def test_actors_record_the_envs_of_vector_envs(mode):
    make = functools.partial(SyncVectorEnv, [ENV] * 2, autoreset_mode=mode)
    envs = pysampler.VectorEnv([make] * 2, autoreset_mode=mode, num_workers=2)
    with envs, pysampler.Actors(envs, policy, seed=5) as actors:
        seen, ends = set(), 0
        while len(seen) < 4 or ends == 0:
            records = actors.take(50)
            seen |= set(records.env.tolist())
            ends += (records.terminated | records.truncated).sum()
    assert seen == {0, 1, 2, 3}


def test_dropped_rollouts_leave_the_vector_env_open():
    envs = gym.make_vec("CartPole-v1", 2, "vector_entry_point")
    rollouts = pysampler.Rollouts(envs, lambda o: np.ones(len(o), int), HORIZON)
    next(rollouts)
    del rollouts
    assert not envs.closed
    envs.step(np.ones(2, int))
    envs.close()


@pytest.mark.parametrize("where", ["main", "workers"])
def test_reset_of_some_envs_leaves_the_last_rewards_of_the_others(where):
    def acts(observations, previous_rewards):
        np.testing.assert_array_equal(previous_rewards, observations[:, 0] > 0)
        return np.zeros((len(observations), 1))

    env = functools.partial(Small, lambda env: int(env.np_random.integers(1, 9)))
    make = functools.partial(SyncVectorEnv, [env] * 2, autoreset_mode=DISABLED)
    with pysampler.VectorEnv([make] * 2, num_workers=2, autoreset_mode=DISABLED) as envs:
        evaluation = pysampler.evaluate(envs, acts, 12, seed=1, policy_in=where)
    assert len(set(evaluation.lengths.tolist())) > 3
