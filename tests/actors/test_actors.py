"""Actors: transitions, trajectories, weights and settings, against a plain loop."""

import functools
import os

import numpy as np
import pytest
from actors_in_tests import (
    SCRIPTS,
    OnDevice,
    RecurrentOnDevice,
    Weighted,
    envs_of,
    fill,
    rest_of,
    taken,
)
from gymnasium import spaces
from scripted import Counting, Scripted, by_env, policy, slow_rollout
from small_envs import Small

import pysampler

# -- the same as a plain loop ---------------------------------------------------------------------


@pytest.mark.parametrize("device", [None, "cpu"])
@pytest.mark.parametrize("workers", [0, 1, 2, 3])
@pytest.mark.parametrize("groups", [1, 2])
def test_transitions_equal_a_plain_loop(workers, groups, device):
    steps, acting = 100, policy
    if device is not None:
        pytest.importorskip("torch", reason="tensors on a device")
        acting = OnDevice(policy)
    fns = [functools.partial(Scripted, script) for script in SCRIPTS]
    expected = slow_rollout(fns, policy, steps, 5)
    with envs_of(num_workers=workers, groups=groups) as envs:
        actors = pysampler.Actors(envs, acting, seed=5, device=device)
        batches, made = [], np.zeros(6)
        while made.min() < steps:
            batches += taken(actors, 50)
            made = np.bincount(np.concatenate([records.env for records in batches]), minlength=6)
        batches += rest_of(actors)
    rows = by_env(batches)
    returns = np.zeros(6)
    for env, mine in rows.items():
        for t, row in enumerate(mine[:steps]):
            over = expected["terminated"][t, env] or expected["truncated"][t, env]
            after = expected["final"][t, env]
            if not over:
                after = expected["observations"][t + 1, env] if t + 1 < steps else None
            np.testing.assert_array_equal(row["observations"], expected["observations"][t, env])
            if after is not None:
                np.testing.assert_array_equal(row["next_observations"], after)
            for name in ("actions", "rewards", "terminated", "truncated"):
                np.testing.assert_array_equal(row[name], expected[name][t, env])
            for name, values in expected["extras"].items():
                np.testing.assert_array_equal(row[name], values[t, env])
            returns[env] += expected["rewards"][t, env]
            assert row["returns"] == returns[env]
            assert row["lengths"] == row["next_observations"][2]
            if over:
                returns[env] = 0
    ended = [(step, env) for step, env, _, _ in expected["ended"]]
    assert ended == [
        (t, env)
        for t in range(steps)
        for env in range(6)
        if rows[env][t]["terminated"] or rows[env][t]["truncated"]
    ]


@pytest.mark.parametrize("device", [None, "cpu"])
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("stateful", [False, True])
def test_trajectories_equal_a_plain_loop(workers, stateful, device):
    length, count = 7, 5
    acting = given = Counting() if stateful else policy
    if device is not None:
        pytest.importorskip("torch", reason="tensors on a device")
        given = RecurrentOnDevice(acting) if stateful else OnDevice(acting)
    fns = [functools.partial(Scripted, script) for script in SCRIPTS]
    expected = slow_rollout(fns, acting, length * count, 5, stateful=stateful)
    with envs_of(num_workers=workers) as envs:
        actors = pysampler.Actors(envs, given, steps=length, seed=5, device=device)
        batches = taken(actors, 6 * (count + 2)) + rest_of(actors)
    for env, mine in by_env(batches).items():
        for number, row in enumerate(mine[:count]):
            part = slice(number * length, (number + 1) * length)
            for name in ("observations", "actions", "rewards", "terminated", "truncated"):
                np.testing.assert_array_equal(row[name], expected[name][part, env])
            over = row["terminated"] | row["truncated"]
            final = expected["final"][part, env]
            np.testing.assert_array_equal(row["next_observations"][over], final[over])
            following = row["next_observations"][:-1][~over[:-1]]
            np.testing.assert_array_equal(following, row["observations"][1:][~over[:-1]])
            for name, values in expected["extras"].items():
                np.testing.assert_array_equal(row[name], values[part, env])
            if stateful:
                state = expected["states"][number * length]
                np.testing.assert_array_equal(row["state0"], state["steps"][env])
                np.testing.assert_array_equal(row["state1"], state["seen"][0][env])


Tree = functools.partial(
    Small,
    5,
    cut=True,
    observe=lambda env: {
        "a": np.full(2, env.steps / 100, np.float32),
        "b": (env.steps % 9, 3),
    },
    reward=lambda env, action: action["x"],
    spaces=(
        spaces.Dict(
            {"a": spaces.Box(-1, 1, (2,), np.float32), "b": spaces.Tuple([spaces.Discrete(9)] * 2)}
        ),
        spaces.Dict({"x": spaces.Discrete(3), "y": spaces.Box(-1, 1, (2,), np.float32)}),
    ),
)


def tree_policy(observations):
    count = len(observations["a"])
    return {"x": observations["b"][0] % 3, "y": np.zeros((count, 2), np.float32)}, {}


@pytest.mark.parametrize("steps", [None, 3])
def test_nested_spaces_keep_their_structure(steps):
    with pysampler.Actors(Tree, tree_policy, num_envs=2, steps=steps) as actors:
        records = actors.take(16, min_records=8)
        shape = (len(records),) if steps is None else (len(records), steps)
        first = records.observations["b"][0]
        assert first.shape == shape
        assert records.observations["a"].shape == (*shape, 2)
        np.testing.assert_array_equal(records.actions["x"], first % 3)
        np.testing.assert_array_equal(records.rewards, first % 3)
        np.testing.assert_array_equal(records.next_observations["b"][0], records.lengths % 9)
        assert set(actors.like) >= {
            "observations['a']",
            "next_observations['b'][0]",
            "actions['y']",
        }


def test_batches_are_views_of_the_shared_records():
    with envs_of(num_workers=2) as envs, pysampler.Actors(envs, policy) as actors:
        records = actors.take(64, min_records=8)
        assert records.rows.base is not None
        assert np.shares_memory(records.observations, records.rewards.base)
        assert np.shares_memory(records.rows, records.observations)
        torch = pytest.importorskip("torch", reason="tensors of the same memory")
        tensor = records.torch().observations
        assert isinstance(tensor, torch.Tensor)
        assert tensor.data_ptr() == records.observations.__array_interface__["data"][0]
        kept = records.copy()
        assert not np.shares_memory(kept.rows, records.rows)
        np.testing.assert_array_equal(kept[2:4].rewards, records.rewards[2:4])


# -- weights --------------------------------------------------------------------------------------


def test_published_weights_act_and_records_carry_their_version():
    acting = Weighted()
    with envs_of(num_workers=2) as envs, pysampler.Actors(envs, acting, refresh_share=1) as actors:
        versions = set(actors.take(8).version.tolist())
        for value in range(1, 6):
            version = actors.publish({"w": np.full(1000, float(value)), "b": value})
            assert version == value + 1 == actors.version
            while version not in versions:
                records = actors.take(64)
                np.testing.assert_array_equal(records.w, records.version - 1)
                versions |= set(records.version.tolist())
        assert 1 in versions


def test_records_beyond_max_lag_are_dropped_and_counted():
    acting = Weighted()
    with (
        envs_of(num_workers=2) as envs,
        pysampler.Actors(envs, acting, max_lag=1, high=64) as actors,
    ):
        assert actors.take(8) is not None
        for value in (1, 2, 3):
            fill(actors)
            actors.publish({"w": np.full(1000, float(value)), "b": value})
        records = actors.take(8, min_records=8)
        assert (records.version >= actors.version - 1).all()
        assert actors.stats().dropped >= 64 - 12


def test_slow_refreshes_happen_while_an_actor_is_blocked():
    with envs_of(num_workers=2) as envs:
        options = {"refresh_share": 1e-9, "high": 1024, "low": 1000}
        with pysampler.Actors(envs, Weighted(), **options) as actors:
            seen = set()
            while len(seen) < 6:  # all have loaded the first weights
                seen |= set(actors.take(16).env.tolist())
            actors.publish({"w": np.ones(1000), "b": 1})
            while not actors._progress.blocked[actors._first_groups].all():
                os.sched_yield()
            old = actors.take(32)
            assert (old.version == 1).all()
            seen = set()
            while len(seen) < 6:
                records = actors.take(16)
                seen |= set(records.env[records.version == 2].tolist())
            stats = actors.stats()
            assert (stats.blocked > 0).all()
            assert (stats.refreshing > 0).all()
            # ... or as soon as their records would be too old.
        with pysampler.Actors(envs, Weighted(), refresh_share=1e-9, max_lag=0) as actors:
            actors.take(1)
            for value in range(1, 5):
                version = actors.publish({"w": np.full(1000, float(value)), "b": value})
                assert (actors.take(16).version == version).all()


def test_publish_refuses_a_policy_without_weights():
    with envs_of(num_workers=1) as envs, pysampler.Actors(envs, policy) as actors:
        with pytest.raises(TypeError, match=r"cannot publish weights: .*state_dict"):
            actors.publish()
        with pytest.raises(TypeError, match="cannot publish weights"):
            actors.publish({"w": np.zeros(3)})


@pytest.mark.slow
def test_a_module_acts_with_published_weights():
    torch = pytest.importorskip("torch", reason="modules")
    module = torch.nn.Linear(4, 2).double()
    with envs_of(num_workers=2) as envs, pysampler.Actors(envs, module, refresh_share=1) as actors:
        with torch.no_grad():
            module.weight.zero_()
            module.bias.fill_(3.0)
        version = actors.publish(module)
        while True:
            records = actors.take(32)
            new = records.version == version
            assert (records.actions[new] == 3.0).all()
            if new.any():
                break
        with pytest.raises(ValueError, match="cannot publish to board"):
            actors.publish(torch.nn.Linear(4, 3))


# -- settings -------------------------------------------------------------------------------------


def exploring(observations, epsilon, noise):
    actions = np.zeros((len(observations), 2), np.float32)
    return actions, {"e": epsilon, "n": noise}


@pytest.mark.parametrize("workers", [0, 2])
def test_settings_are_per_env_and_can_be_changed(workers):
    epsilon = np.linspace(0, 1, 6)
    with envs_of(num_workers=workers) as envs:
        settings = {"epsilon": epsilon, "noise": 3}
        actors = pysampler.Actors(envs, exploring, settings=settings)
        held = actors.settings
        records = actors.take(64, min_records=32)
        np.testing.assert_array_equal(records.e, epsilon[records.env])
        assert (records.n == 3).all()
        held["noise"] = 4
        while not (records.n == 4).all():
            records = actors.take(64)
        actors.settings["noise"][:] = 5
        while not (records.n == 5).all():
            records = actors.take(64)
        actors.settings["epsilon"] = 0.25
        actors.settings["noise"] = np.arange(6)
        while not ((records.e == 0.25) & (records.n == records.env)).all():
            records = actors.take(64)
        with pytest.raises(KeyError, match="unknown setting 'epsilom'"):
            actors.settings["epsilom"] = 1
        with pytest.raises(ValueError, match="setting 'noise' .*expected a number, or one for"):
            actors.settings["noise"] = [1, 2]
        actors.close()
