"""evaluate leaves the wrappers of envs as they are, and sums the envs' own rewards."""

import gc
import os
import signal

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import wrappers
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from interrupts import at_each_point
from vectors import begun

import pysampler

LENGTH = 20
FORMS = [{"native": "auto"}, {"native": False}, {"num_workers": 0}, {"num_workers": 0, "groups": 2}]


def pendulum():
    return gym.make("Pendulum-v1", max_episode_steps=LENGTH)


def cleanrl():
    env = wrappers.RecordEpisodeStatistics(pendulum())
    env = wrappers.NormalizeObservation(wrappers.ClipAction(env))
    env = wrappers.TransformObservation(env, lambda o: np.clip(o, -10, 10), env.observation_space)
    return wrappers.TransformReward(wrappers.NormalizeReward(env), lambda r: np.clip(r, -10, 10))


def still(observations):
    return np.zeros((len(observations), 1), np.float32)


def evaluated(make, policy=still, episodes=6, **options):
    return pysampler.evaluate(make, policy, episodes, seed=3, num_workers=0, **options)


def own(episodes=6, policy=still, **options):
    return evaluated(pendulum, policy, episodes, **options).returns


def held(envs):
    """Return what the wrappers of each env hold."""

    def numbers(env):
        found = []
        while env is not env.unwrapped:
            for name, value in vars(env).items():
                if name.endswith("_rms"):
                    found += [(name, *map(np.copy, vars(value).values()))]
                elif name in ("discounted_reward", "_update_running_mean", "episode_count"):
                    found.append((name, np.copy(value)))
                elif name.endswith("_queue"):
                    found.append((name, *value))
                elif name in ("step", "reset", "update"):
                    found.append((name, "replaced"))
            env = env.env
        return found

    return envs.apply(numbers)


@pytest.mark.parametrize("where", ["main", "workers"])
@pytest.mark.parametrize("options", FORMS)
def test_evaluation_of_rollouts_leaves_wrappers_as_they_are(options, where):
    options = {"num_workers": 1, **options}
    with (
        pysampler.VectorEnv([cleanrl] * 4, **options) as envs,
        pysampler.Rollouts(envs, still, 3 * LENGTH, seed=1) as rollouts,
    ):
        next(rollouts)
        rollouts.pause()
        before = held(envs)
        returns = pysampler.evaluate(rollouts, still, 6, seed=3, policy_in=where).returns
        np.testing.assert_array_equal(returns, own())
        rollouts.pause()
        np.testing.assert_equal(held(envs), before)
        next(rollouts)  # learns again
        rollouts.pause()
        assert all(rms.count > 2 * (3 * LENGTH) for rms in envs.get_attr("obs_rms"))


def test_statistics_are_used_while_they_are_frozen():
    seen = []

    def policy(observations):
        seen.append(observations.copy())
        return still(observations)

    with pysampler.VectorEnv([cleanrl] * 2, num_workers=1) as envs:
        for seed in range(20):
            envs.reset(seed=seed)
        rms = envs.get_attr("obs_rms")
        pysampler.evaluate(envs, policy, 2, seed=3)
    env = pendulum()
    for i in range(2):
        raw = env.reset(seed=3 + i)[0]
        expected = (raw - rms[i].mean) / np.sqrt(rms[i].var + 1e-8)
        np.testing.assert_allclose(seen[0][i], np.clip(expected, -10, 10), rtol=1e-6)


@pytest.mark.parametrize("num_workers", [0, 1])
def test_wrappers_learn_again_after_a_failed_evaluation(num_workers):
    def broken(observations):
        raise ArithmeticError

    with begun([cleanrl] * 2, num_workers=num_workers, seed=1) as envs:
        before = held(envs)
        with pytest.raises(ArithmeticError):
            pysampler.evaluate(envs, broken, 2, seed=3)
        np.testing.assert_equal(held(envs), before)
        envs.reset(seed=1)
        assert [rms.count for rms in envs.get_attr("obs_rms")] == pytest.approx([2, 2], abs=1e-3)


class Dies(gym.Wrapper):
    """Kills its process once, within an episode."""

    def __init__(self, env, file):
        super().__init__(env)
        self.file = file
        self.steps = 0

    def step(self, action):
        self.steps += 1
        if self.steps == 50 and not self.file.exists():
            self.file.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().step(action)


@pytest.mark.parametrize("where", ["main", "workers"])
def test_envs_that_replace_lost_ones_are_frozen_too(tmp_path, where):
    def make():
        return wrappers.TransformReward(Dies(pendulum(), tmp_path / "died"), lambda r: r / 9)

    with pysampler.VectorEnv([make] * 2, num_workers=1, on_worker_loss="restart") as envs:
        returns = pysampler.evaluate(envs, still, 6, seed=3, policy_in=where).returns
        assert (tmp_path / "died").exists()
        np.testing.assert_array_equal(returns, own())


@pytest.mark.parametrize("where", ["main", "workers"])
@pytest.mark.parametrize("knows", [False, True])
def test_a_loss_ends_an_evaluation_if_statistics_of_observations_are_lost_with_it(
    tmp_path, where, knows
):
    def make():
        env = wrappers.NormalizeObservation(Dies(pendulum(), tmp_path / "died"))
        if knows:
            env.obs_rms.count = 100
        return env

    with begun([make] * 2, num_workers=1, on_worker_loss="restart", seed=1) as envs:
        for _ in range(3):
            envs.step(np.zeros((2, 1), np.float32))
        if knows:  # where they are made
            returns = pysampler.evaluate(envs, still, 6, seed=3, policy_in=where).returns
            np.testing.assert_array_equal(returns, own())
        else:
            match = "worker 0 .*lost: .*, and with it what NormalizeObservation had learned"
            with pytest.raises(pysampler.WorkerLostError, match=match) as caught:
                pysampler.evaluate(envs, still, 6, seed=3, policy_in=where)
            assert len(caught.value.evaluation.episodes) == 4
        assert (tmp_path / "died").exists()


def test_reward_wrappers_of_gymnasium_do_not_change_returns():
    kinds = [
        lambda env: wrappers.ClipReward(env, -1, 1),
        lambda env: wrappers.TransformReward(wrappers.ClipReward(env, -1, 1), lambda r: -r),
        lambda env: wrappers.NormalizeReward(env),
        lambda env: wrappers.TimeLimit(wrappers.NormalizeReward(env), LENGTH),
    ]
    for kind in kinds:
        returns = evaluated(lambda kind=kind: kind(pendulum())).returns
        np.testing.assert_array_equal(returns, own())


def test_the_clipped_rewards_of_sb3_do_not_count():
    atari = pytest.importorskip("stable_baselines3.common.atari_wrappers")
    made = evaluated(lambda: atari.ClipRewardEnv(pendulum()))
    np.testing.assert_array_equal(made.returns, own())


class Shaped(gym.RewardWrapper):
    def reward(self, reward):
        return reward + 1.0


def test_reward_wrappers_of_users_are_part_of_the_env():
    made = evaluated(lambda: wrappers.ClipReward(Shaped(pendulum()), -1, 1))
    np.testing.assert_allclose(made.returns, own() + LENGTH)


def sevens():
    return wrappers.TransformReward(pendulum(), lambda r: r * 0 + 7)


def test_policies_get_the_changed_rewards():
    rewards = []

    def policy(observations, previous_rewards):
        rewards.append(previous_rewards.copy())
        return still(observations)

    made = evaluated(sevens, policy, 1)
    np.testing.assert_array_equal(made.returns, own(1))
    assert np.unique(rewards[1:]) == [7]


@pytest.mark.parametrize("where", ["main", "workers"])
def test_statistics_of_episodes_see_infos_as_the_env_returns_them(where):
    def describe(episode):
        return {"keys": len(episode.infos), "mean": episode.rewards.mean()}

    statistics = pysampler.EpisodeStatistics(describe, keep=["infos", "rewards"])
    made = evaluated(sevens, still, 3, policy_in=where, statistics=statistics)
    np.testing.assert_array_equal(made.returns, own(3))
    assert [one.statistics for one in made.episodes] == [{"keys": 0, "mean": 7}] * 3


@pytest.mark.parametrize("where", ["main", "workers"])
def test_chunks_sum_own_rewards(where):
    def policy(observations):
        return np.zeros((len(observations), 7, 1), np.float32)

    with begun([cleanrl] * 2, num_workers=1, seed=1) as envs:
        returns = pysampler.evaluate(envs, policy, 6, seed=3, chunk=7, policy_in=where).returns
    np.testing.assert_array_equal(returns, own())


@pytest.mark.parametrize("mode", [AutoresetMode.SAME_STEP, AutoresetMode.DISABLED])
def test_envs_of_a_sync_vector_env_are_frozen(mode):
    made = []

    def make():
        made.append(cleanrl())
        return made[-1]

    envs = SyncVectorEnv([make] * 2, autoreset_mode=mode)
    envs.reset(seed=1)
    counts = [one.get_wrapper_attr("obs_rms").count for one in made]
    evaluation = pysampler.evaluate(envs, still, 2, seed=3)
    np.testing.assert_array_equal(evaluation.returns, own(2))
    assert [one.get_wrapper_attr("obs_rms").count for one in made] == counts


def test_vector_envs_that_change_rewards_are_refused():
    envs = gym.wrappers.vector.NormalizeReward(SyncVectorEnv([pendulum] * 2))
    with pytest.raises(ValueError, match="NormalizeReward around a vector env changes"):
        pysampler.evaluate(envs, still, 2)


def test_statistics_around_a_vector_env_of_gymnasium_are_frozen():
    envs = gym.wrappers.vector.NormalizeObservation(SyncVectorEnv([pendulum] * 2))
    envs.reset(seed=1)
    count = envs.obs_rms.count
    np.testing.assert_array_equal(pysampler.evaluate(envs, still, 2, seed=3).returns, own(2))
    assert envs.obs_rms.count == count
    assert envs.update_running_mean


# -- envs that would learn from the evaluation -----------------------------------------------------


class OwnMean(gym.ObservationWrapper):
    """Normalises as the wrappers of many programs do."""

    def __init__(self, env):
        super().__init__(env)
        self.rms = wrappers.utils.RunningMeanStd(shape=env.observation_space.shape)

    def observation(self, observation):
        self.rms.update(observation[None])
        return (observation - self.rms.mean).astype(np.float32)


@pytest.mark.parametrize("wrapper", [wrappers.NormalizeObservation, OwnMean])
@pytest.mark.parametrize("options", FORMS)
def test_wrappers_without_statistics_are_refused(wrapper, options):
    def make():
        return wrapper(pendulum())

    options = {"num_workers": 1, **options}
    with pytest.raises(ValueError, match=f"{wrapper.__name__} of the envs has seen nothing yet"):
        pysampler.evaluate(make, still, 6, **options)
    with pysampler.VectorEnv([make] * 2, **options) as envs:
        with pytest.raises(ValueError, match="pass the rollouts or the vector env that you train"):
            pysampler.evaluate(envs, still, 6)
        envs.reset(seed=1)  # it has seen something now
        np.testing.assert_array_equal(pysampler.evaluate(envs, still, 6, seed=3).returns, own())


@pytest.mark.parametrize("wrapper", [wrappers.NormalizeObservation, OwnMean])
def test_given_statistics_are_frozen(wrapper):
    def make():
        env = wrapper(pendulum())
        rms = env.rms if wrapper is OwnMean else env.obs_rms
        rms.mean, rms.var, rms.count = np.array([0.5, 0.1, 2.0]), np.array([1.0, 2.0, 9.0]), 1000
        return env

    def policy(observations):
        return observations[:, :1].astype(np.float32)

    runs = [pysampler.evaluate(make, policy, 12, seed=3, num_envs=n, num_workers=1) for n in (2, 5)]
    assert runs[0].episodes == runs[1].episodes


def test_rollouts_that_have_not_begun_are_evaluated():
    with pysampler.Rollouts(cleanrl, still, 5, num_envs=2, num_workers=0) as rollouts:
        returns = pysampler.evaluate(rollouts, still, 6, seed=3).returns
    np.testing.assert_array_equal(returns, own())


def test_statistics_whose_update_is_their_own_learn_nothing():
    class Own:
        def __init__(self):
            self.mean, self.var, self.count = 0.0, 1.0, np.array([2.0])
            self.update = self.add

        def add(self, batch):
            self.count = self.count + len(batch)

    class Wrapper(gym.ObservationWrapper):
        def __init__(self, env):
            super().__init__(env)
            self.rms = Own()

        def observation(self, observation):
            self.rms.update(observation[None])
            return observation

    with begun([lambda: Wrapper(pendulum())] * 2, num_workers=0, seed=1) as envs:
        counts = [rms.count.tolist() for rms in envs.get_attr("rms")]
        pysampler.evaluate(envs, still, 3, seed=3)
        assert [rms.count.tolist() for rms in envs.get_attr("rms")] == counts


def test_members_without_a_namespace_are_no_statistics():
    class Odd:
        __dict__ = None

    class Wrapper(gym.Wrapper):
        def __init__(self, env):
            super().__init__(env)
            self.odd = Odd()

    found = pysampler.evaluate(lambda: Wrapper(pendulum()), still, 3, seed=3, num_workers=0)
    np.testing.assert_array_equal(found.returns, own(3))


@pytest.mark.parametrize(
    ("make", "expected"), [(pendulum, 0), (lambda: gym.Wrapper(pendulum()), 1)]
)
def test_evaluation_leaves_the_attributes_of_envs_fast(make, expected):
    """Python 3.11 reads attributes more slowly once an object's ``vars`` have been asked for.

    Only wrappers that may learn are asked: those of other classes than gymnasium's usual ones.
    """

    def slowed(env):
        layers = [env]
        while layers[-1] is not env.unwrapped:
            layers.append(layers[-1].env)
        held = [[d for d in gc.get_referents(one) if type(d) is dict] for one in layers]
        return sum(any("env" in d or "g" in d for d in dicts) for dicts in held)

    with pysampler.VectorEnv([make] * 2, num_workers=0, native=False) as envs:
        # Their first step may add more attributes than those of a class that are fast.
        envs.reset()
        envs.step(envs.action_space.sample())
        before = np.array(envs.apply(slowed))
        pysampler.evaluate(envs, still, 3, seed=3)
        assert (envs.apply(slowed) - before).tolist() == [expected, expected]


@pytest.mark.slow
def test_films_of_envs_without_statistics_are_a_warning(tmp_path):
    pytest.importorskip("imageio")

    def make():
        env = gym.make("Pendulum-v1", max_episode_steps=LENGTH, render_mode="rgb_array")
        return wrappers.NormalizeObservation(env)

    with pysampler.VectorEnv([make] * 2, num_workers=0) as envs:
        envs.reset(seed=1)
        with pytest.warns(UserWarning, match="cannot film all episodes: .* has seen nothing yet"):
            pysampler.evaluate(envs, still, 2, seed=3, videos=tmp_path)


@pytest.mark.slow
def test_an_interrupt_while_wrappers_freeze_or_thaw_leaves_none_frozen():
    with begun([cleanrl] * 2, num_workers=0, seed=1) as envs:
        counts = [one.count for one in envs.get_attr("obs_rms")]

        def check(*_):
            assert envs.get_attr("_update_running_mean") == (True, True)
            assert [one.count for one in envs.get_attr("obs_rms")] == counts
            np.testing.assert_array_equal(
                pysampler.evaluate(envs, still, 2, seed=3).returns, expected
            )

        expected = own(2)
        only = "freeze", "thaw", "_freeze", "_set"
        points = at_each_point(lambda: pysampler.evaluate(envs, still, 2, seed=3), check, only=only)
        assert points > 50
