"""Envs simulated together, in partial batches and samplers, equal ordinary envs."""

import contextlib

import numpy as np
import pytest
from gymnasium.error import AlreadyPendingCallError
from mujoco_in_tests import (
    CHEETAH,
    NEXT_STEP,
    SAME_STEP,
    drawn_actions,
    identical,
    one_by_one,
    ordinary,
    together,
)
from scripted import by_env

import pysampler
from pysampler.errors import EnvError

HOPPER = "Hopper-v5"  # its episodes also terminate
SHORT = {"max_episode_steps": 11}
BOTH = together, ordinary


def row(results, at):
    """Return one env's results from a batch."""
    *arrays, infos = results
    return *(array[at] for array in arrays), row_of_infos(infos, at)


def row_of_infos(infos, at):
    if not isinstance(infos, dict):
        return infos[at]
    names = [name for name in infos if not name.startswith("_") and name != "env_id"]
    return {name: row_of_infos(infos[name], at) for name in names if infos[f"_{name}"][at]}


@pytest.mark.slow
@pytest.mark.parametrize("mode", [NEXT_STEP, SAME_STEP])
@pytest.mark.parametrize(("workers", "groups"), [(0, 3), (1, 7), (2, 1), (2, 3), (5, 2)])
def test_partial_batches_return_the_same_as_step(mode, workers, groups):
    """Ready envs are answered at once; each env returns the same results as in step."""
    options = {"num_workers": workers, "groups": groups, "autoreset_mode": mode}
    ours, theirs = together(HOPPER, 7, SHORT, **options), one_by_one(HOPPER, 7, SHORT, mode)
    steps = 30
    # All of one dtype, the dtype of infos.
    actions = [row.astype(np.float32) for row in drawn_actions(theirs.action_space, 4, steps)]
    first = theirs.reset(seed=5)[0]
    expected = [theirs.step(one) for one in actions]
    dice = np.random.default_rng(1)
    done = np.full(7, -1)  # the last step that each env returned
    ours.async_reset(seed=5)
    while ours.pending:
        results = ours.recv(min_envs=[None, 1, 3][dice.integers(3)])
        envs = results[4]["env_id"]
        for at, env in enumerate(envs):
            if done[env] < 0:
                identical(results[0][at], first[env], "reset")
            else:
                identical(row(results, at), row(expected[done[env]], env), f"{env} {done[env]}")
        done[envs] += 1
        if len(going_on := envs[done[envs] < steps]):
            ours.send(np.array([actions[done[env]][env] for env in going_on]), going_on)
    assert done.tolist() == [steps] * 7
    identical(ours.reset(seed=9), theirs.reset(seed=9), "reset of all")
    identical(ours.step(actions[0]), theirs.step(actions[0]), "step of all")
    ours.close()
    theirs.close()


@pytest.mark.parametrize("workers", [0, 2])
def test_some_envs_can_be_reset_with_seeds(workers):
    # Groups of two envs.
    options = {"num_workers": workers, "groups": 2 - workers // 2}
    ours, theirs = (make(CHEETAH, 4, **options) for make in BOTH)
    batches = []
    for envs in (ours, theirs):
        envs.reset(seed=1)
        envs.send(np.zeros((2, 6)), [2, 3])
        with pytest.raises(AlreadyPendingCallError):
            envs.async_reset(env_ids=[2, 3])
        envs.async_reset(seed=[5, 9], env_ids=[1, 0])
        seen = []
        while envs.pending:
            seen.append(envs.recv(min_envs=1, max_envs=2))
        rows = {env: row(one, at) for one in seen for at, env in enumerate(one[4]["env_id"])}
        batches.append(rows)
    assert batches[0].keys() == batches[1].keys() == {0, 1, 2, 3}
    for env in range(4):
        identical(batches[0][env], batches[1][env], f"env {env}")
    assert ours.np_random_seed == (9, 5, 3, 4)
    ours.close()
    theirs.close()


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 2])
def test_options_set_between_steps_equal_ordinary_envs(workers):
    """Tasks of automatic resets, each with its options version."""
    options = {"num_workers": workers, "groups": 2, "autoreset_mode": SAME_STEP}
    limit = {"max_episode_steps": 3}
    ours, theirs = (make("HalfCheetahVel-v5", 4, limit, **options) for make in BOTH)
    steps = list(drawn_actions(theirs.action_space, 1, 16))
    for envs in (ours, theirs):
        envs.reset(seed=1)
    for step, actions in enumerate(steps):
        if step == 4:
            for envs in (ours, theirs):
                envs.set_options([1, 3], [{"task": {"velocity": 0.3}}, {"task": {"velocity": 1.9}}])
        if step == 9:
            for envs in (ours, theirs):
                envs.set_options(None, {"task": {"velocity": 0.1}})
        if step == 13:
            for envs in (ours, theirs):
                envs.set_options([0], None)
        identical(ours.step(actions), theirs.step(actions), f"step {step}")
    assert ours.get_attr("velocity") == theirs.get_attr("velocity") == (0.1,) * 4
    resets = [envs.reset(options={"task": {"velocity": 0.6}}) for envs in (ours, theirs)]
    identical(*resets)
    assert ours.get_attr("velocity") == (0.6,) * 4
    for envs in (ours, theirs):
        with pytest.raises(EnvError, match="cannot set task of HalfCheetahVel") as caught:
            envs.reset(options={"task": {"speed": 0.6}})
        assert caught.value.env in range(4)
    ours.close()
    theirs.close()


@pytest.mark.slow
def test_recordings_replay_with_native_and_ordinary_envs(tmp_path):
    """A recording of ready envs does not depend on how they are simulated."""

    def run(make, **recording):
        envs = make(HOPPER, 6, SHORT, num_workers=2, groups=3, **recording)
        actions = np.random.default_rng(3)
        with contextlib.closing(envs):
            envs.async_reset(seed=2)
            batches = []
            for _ in range(120):
                batches.append(envs.recv(min_envs=1))
                ids = batches[-1][4]["env_id"]
                envs.send(actions.uniform(-1, 1, (len(ids), 3)), ids)
            while envs.pending:
                batches.append(envs.recv())
            return batches

    recorded = run(together, record_to=tmp_path / "recording")
    for make in BOTH:
        identical(run(make, replay_from=tmp_path / "recording"), recorded)


# -- samplers -------------------------------------------------------------------------------------


def policy(observations):
    x = observations.sum(axis=-1)
    actions = np.stack([np.sin(x), np.cos(x), np.sin(3 * x)], axis=-1).astype(np.float32)
    return actions, {"value": x / 3}


WAYS = [
    {"policy_in": where, "num_workers": workers, "groups": groups, "overlap": overlap}
    for where in ("main", "workers")
    for workers, groups, overlap in ((0, 2, False), (2, 1, True), (2, 2, False))
]


def sampled(make, *, policy_in, overlap, **options):
    keys = ("x_position", "reward_survive", "z_distance_from_origin")
    sampling = {"policy_in": policy_in, "overlap": overlap, "info_keys": keys, "seed": 4}
    with (
        contextlib.closing(make(HOPPER, 5, SHORT, **options)) as envs,
        pysampler.Rollouts(envs, policy, 9, **sampling) as rollouts,
    ):
        return [next(rollouts).copy() for _ in range(4)]


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS, ids=str)
def test_rollouts_equal_ordinary_envs(way):
    ours, theirs = sampled(together, **way), sampled(ordinary, **way)
    assert sum(len(rollout.ended.env) for rollout in ours) >= 15
    for one, other in zip(ours, theirs, strict=True):
        names = ("observations", "actions", "rewards", "terminated", "truncated", "starts")
        for name in (*names, "infos", "info_masks", "extras", "valid", "lost"):
            identical(getattr(one, name), getattr(other, name), name)
        over = one.terminated | one.truncated
        identical(one.final_observations[over], other.final_observations[over])
        # The order of episodes that end together is random.
        tables = [(e.step, e.env, e.returns, e.lengths) for e in (one.ended, other.ended)]
        assert sorted(zip(*tables[0], strict=True)) == sorted(zip(*tables[1], strict=True))


def acted(make, steps=60, **options):
    with contextlib.closing(make(HOPPER, 5, SHORT, **options)) as envs:
        actors = pysampler.Actors(envs, policy, seed=4)
        batches, made = [], np.zeros(5)
        while made.min() < steps:
            batches.append(actors.take(50).copy())
            made += np.bincount(batches[-1].env, minlength=5)
        actors.stop()
        batches += [records.copy() for records in iter(lambda: actors.take(50), None)]
    return {env: rows[:steps] for env, rows in by_env(batches).items()}


@pytest.mark.slow
@pytest.mark.parametrize(("workers", "groups"), [(0, 2), (1, 1), (2, 2)])
def test_actors_equal_ordinary_envs(workers, groups):
    """Compares per env: the order between envs is random."""
    ours, theirs = (acted(make, num_workers=workers, groups=groups) for make in BOTH)
    assert ours.keys() == theirs.keys() == set(range(5))
    names = [name for name in ours[0][0].dtype.names if name not in ("version", "worker")]
    assert {"observations", "next_observations", "rewards", "returns"} <= set(names)
    for env, rows in ours.items():
        for number, (one, other) in enumerate(zip(rows, theirs[env], strict=True)):
            assert one.dtype == other.dtype
            for name in names:
                identical(one[name], other[name], f"env {env}, record {number}, {name}")
        assert sum(one["terminated"] or one["truncated"] for one in rows) >= 5


@pytest.mark.slow
def test_evaluations_equal_ordinary_envs():
    results = []
    for make in BOTH:
        envs = make(HOPPER, 4, SHORT, num_workers=2)
        results.append(pysampler.evaluate(envs, policy, 12, seed=3))
        envs.close()
    identical(np.sort(results[0].returns), np.sort(results[1].returns))
    identical(np.sort(results[0].lengths), np.sort(results[1].lengths))
