"""PettingZoo's parallel envs: one row for each agent, equal to SuperSuit's."""

import functools
from contextlib import closing

import numpy as np
import pettingzoo
import pytest
import supersuit
from gymnasium.vector.utils import iterate
from parallel_in_tests import Dying, Joining, Leaving, Unequal

import pysampler
from pysampler.adapters.pettingzoo import ParallelVectorEnv, make_vec

WORKERS = [0, 2]


def knights(max_cycles=7):
    """Return a real env whose knights and archers die one after another."""
    return pettingzoo.make(
        "parallel",
        "butterfly/knights_archers_zombies-v11",
        max_cycles=max_cycles,
        spawn_delay=5,
    )


def black_death():
    return supersuit.black_death_v3(Leaving())


def even():
    return Leaving((4, 4))


def supersuit_vec(env_fn, count):
    vec = supersuit.pettingzoo_env_to_vec_env_v1(env_fn())
    return closing(supersuit.concat_vec_envs_v1(vec, count, num_cpus=0))


@pytest.mark.slow
@pytest.mark.parametrize("workers", WORKERS)
@pytest.mark.parametrize("env_fn", [knights, even, black_death])
def test_results_equal_supersuits(env_fn, workers):
    actions_of = np.random.default_rng(0)
    with closing(make_vec(env_fn, 4, num_workers=workers)) as ours, supersuit_vec(env_fn, 4) as its:
        assert ours.num_envs == its.num_envs
        assert ours.single_observation_space == its.observation_space
        assert ours.single_action_space == its.action_space
        observations, _ = ours.reset(seed=3)
        np.testing.assert_array_equal(observations, its.reset(seed=3)[0])
        ends = 0
        for _ in range(30):
            actions = actions_of.integers(0, its.action_space.n, its.num_envs)
            observations, rewards, terminated, truncated, infos = ours.step(actions)
            theirs = its.step(actions)
            np.testing.assert_array_equal(rewards.astype(np.float32), theirs[1])
            np.testing.assert_array_equal(terminated, theirs[2])
            np.testing.assert_array_equal(truncated, theirs[3])
            assert observations.dtype == theirs[0].dtype
            if env_fn is not knights:
                np.testing.assert_array_equal(observations, theirs[0])
            ended = terminated | truncated
            if ended.all():
                ends += 1
                for row, info in enumerate(theirs[4]):
                    np.testing.assert_array_equal(
                        infos["final_obs"][row], info["terminal_observation"]
                    )
                if env_fn is knights:  # SuperSuit resets without a seed: reset both with one
                    observations, _ = ours.reset(seed=ends)
                    np.testing.assert_array_equal(observations, its.reset(seed=ends)[0])
            else:
                np.testing.assert_array_equal(observations, theirs[0])
        assert ends > 3


@pytest.mark.slow
def test_dying_agents_have_the_rows_of_supersuits_black_death():
    env_fn = functools.partial(knights, 300)
    actions_of = np.random.default_rng(0)
    dead = functools.partial(supersuit.black_death_v3, env_fn())
    with closing(make_vec(env_fn, 2, num_workers=1)) as ours, supersuit_vec(dead, 2) as its:
        observations, infos = ours.reset(seed=0)
        np.testing.assert_array_equal(observations, its.reset(seed=0)[0])
        alive = {8}
        while "final_obs" not in infos:
            actions = actions_of.integers(0, 6, 8)
            observations, rewards, _, _, infos = ours.step(actions)
            theirs = its.step(actions)
            np.testing.assert_array_equal(rewards.astype(np.float32), theirs[1])
            if "final_obs" not in infos:
                np.testing.assert_array_equal(observations, theirs[0])
                alive.add(int(infos["active"].sum()))
    assert len(alive) > 2


@pytest.mark.parametrize("workers", WORKERS)
def test_agents_that_end_early_keep_their_rows_until_the_reset(workers):
    with closing(make_vec(Leaving, 2, num_workers=workers)) as envs:
        observations, infos = envs.reset(seed=7)
        assert envs.possible_agents == ["a", "b", "c"]
        assert observations[:, 2].tolist() == [7, 7, 7, 8, 8, 8]
        assert infos["active"].all()
        seen = []
        for step in range(1, 6):
            observations, rewards, terminated, truncated, infos = envs.step(np.full(6, step))
            seen.append(
                (
                    observations[:3, 0].tolist(),
                    rewards[:3].tolist(),
                    terminated[:3].tolist(),
                    truncated[:3].tolist(),
                    infos["active"][:3].tolist(),
                )
            )
            assert ("final_obs" in infos) == (step == 5)
    no, yes = False, True
    assert seen == [
        ([1, 1, 1], [1, 1, 1], [no, no, no], [no, no, no], [yes, yes, yes]),
        ([2, 2, 2], [2, 2, 2], [yes, no, no], [no, no, no], [no, yes, yes]),
        ([0, 3, 3], [0, 3, 3], [no, no, yes], [no, no, no], [no, yes, no]),
        ([0, 4, 0], [0, 4, 0], [no, no, no], [no, no, no], [no, yes, no]),
        ([0, 0, 0], [0, 5, 0], [no, no, no], [no, yes, no], [yes, yes, yes]),
    ]
    assert infos["_final_obs"].all()
    assert infos["final_obs"][1].tolist() == [5, 1, 7]
    assert infos["final_obs"][2].tolist() == [0, 0, 0]


def test_infos_of_agents_fill_their_rows():
    with closing(make_vec(Leaving, 2, num_workers=1)) as envs:
        envs.reset()
        *_, infos = envs.step(np.zeros(6, np.int64))
        assert infos["steps"].tolist() == [1, 0, 1, 1, 0, 1]
        assert infos["_steps"].tolist() == [True, False, True] * 2


def test_infos_of_the_last_step_are_kept():
    with closing(make_vec(even, 2, num_workers=1)) as envs:
        envs.reset()
        for _ in range(4):
            *_, infos = envs.step(np.zeros(4, np.int64))
        assert infos["final_info"]["steps"].tolist() == [4, 0, 4, 0]
        assert "steps" not in infos


def test_observations_may_be_dicts_and_tuples():
    nested = functools.partial(Leaving, (1, 2), "nested")
    with closing(make_vec(nested, 3, num_workers=2)) as envs:
        observations, _ = envs.reset(seed=5)
        assert observations in envs.observation_space
        rows = list(iterate(envs.observation_space, observations))
        assert all(row in envs.single_observation_space for row in rows)
        assert [row["box"].tolist() for row in rows[2:4]] == [[0, 0, 6], [0, 1, 6]]
        envs.step(envs.action_space.sample())
        observations, _, _, _, infos = envs.step(envs.action_space.sample())
        assert infos["final_obs"][1]["both"][1] == 2
        assert infos["final_obs"][1]["box"].tolist() == [2, 1, 5]
        assert observations["box"][1].tolist() == [0, 1, -1]


def test_observations_are_views_with_copy_false():
    with closing(make_vec(Leaving, 2, num_workers=1, copy=False)) as envs:
        observations, _ = envs.reset()
        assert np.shares_memory(observations, envs.envs.observations["observations"])


def test_a_lost_worker_truncates_its_agents_without_rewards():
    options = {"num_workers": 2, "on_worker_loss": "restart"}
    with closing(make_vec(Dying, 2, **options)) as envs:
        envs.reset(seed=1)
        envs.step(np.array([1, 1, 1, 2, 2, 2]))
        _, rewards, terminated, truncated, infos = envs.step(np.array([9, 1, 1, 2, 2, 2]))
        assert rewards.tolist() == [0, 0, 0, 2, 2, 2]
        assert truncated.tolist() == [True, True, True, False, False, False]
        assert terminated.tolist() == [False, False, False, True, False, False]
        assert infos["worker_lost"].tolist() == [True, True, True, False, False, False]
        assert infos["final_obs"][0].tolist() == [1, 0, 1]


def test_actions_for_too_few_agents_are_refused():
    with closing(make_vec(Leaving, 2, num_workers=0)) as envs:
        envs.reset()
        with pytest.raises(ValueError, match=r"shape \(2,\), expected a row for each of 6 agents"):
            envs.step(np.zeros(2, np.int64))


def test_agents_with_different_spaces_are_refused():
    with pytest.raises(pysampler.EnvError, match=r"the action space of 'b' is Discrete\(11\)"):
        ParallelVectorEnv([Unequal], num_workers=1)


def test_envs_that_are_not_parallel_are_refused():
    with pytest.raises(pysampler.EnvError, match="AECEnv, expected a pettingzoo Parallel"):
        ParallelVectorEnv([pettingzoo.AECEnv], num_workers=1)


@pytest.mark.parametrize("workers", WORKERS)
def test_an_env_continues_while_a_late_joiner_is_active(workers):
    with closing(make_vec(Joining, 1, num_workers=workers)) as envs:
        envs.reset(seed=0)
        ended = []
        for _ in range(4):
            _, _, terminated, truncated, _ = envs.step(np.zeros(3, np.int64))
            ended.append((terminated | truncated).tolist())
    assert ended == [[False] * 3, [True, True, False], [False] * 3, [False, False, True]]


@pytest.mark.parametrize("lengths", [[(5, 2)], [(5, 2), (2, 2)]])
def test_rollouts_refuse_an_agent_that_ends_before_the_others(lengths):
    """Its last observation is in no info, also if another env is reset in that step."""
    makers = [functools.partial(Leaving, one) for one in lengths]
    with (
        closing(ParallelVectorEnv(makers, num_workers=0)) as envs,
        pysampler.Rollouts(envs, lambda o: np.zeros(len(o), int), 8, seed=1) as rollouts,
        pytest.raises(ValueError, match="ended episodes without info"),
    ):
        next(rollouts)


class Refusing(Leaving):
    def step(self, actions):
        if 9 in actions.values():
            raise ValueError("nine")
        return super().step(actions)


@pytest.mark.parametrize("wait", [False, True])
def test_results_in_an_error_have_a_row_for_each_agent(wait):
    with closing(make_vec(functools.partial(Refusing, (4, 4)), 2, num_workers=0)) as envs:
        envs.reset(seed=1)
        envs.step(np.array([5, 6, 7, 8]))
        actions = np.array([1, 2, 9, 4])
        with pytest.raises(ValueError, match="nine") as caught:
            if wait:
                envs.step_async(actions)
                envs.step_wait()
            envs.step(actions)
        observations, rewards, *_, infos = caught.value.results
    assert observations[:, 0].tolist() == [2, 2, 1, 1]
    assert rewards.tolist() == [1, 2, 0, 0]
    assert infos["env_error"].tolist() == [False, False, True, True]
