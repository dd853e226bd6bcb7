"""States of envs simulated together: get, restore, transfer."""

import contextlib
import pickle

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.error import AlreadyPendingCallError, ClosedEnvironmentError
from mujoco_in_tests import (
    CHEETAH,
    DISABLED,
    IDS,
    META_IDS,
    MODES,
    NEXT_STEP,
    SAME_STEP,
    drawn_actions,
    each,
    identical,
    together,
    walk,
)

WAYS = pytest.mark.parametrize(("workers", "groups"), [(0, 1), (0, 3), (2, 2)])


@contextlib.contextmanager
def walking(env_id=CHEETAH, count=5, arguments=None, steps=7, **options):
    """Yield envs in the middle of their episodes, and actions for the next steps."""
    with contextlib.closing(together(env_id, count, arguments, **options)) as envs:
        envs.reset(seed=1)
        actions = list(drawn_actions(envs.action_space, 2, steps + 20))
        walk(envs, actions[:steps])
        yield envs, actions[steps:]


@pytest.mark.parametrize("env_id", each([*IDS, *META_IDS]))
@pytest.mark.parametrize("mode", MODES)
def test_steps_after_set_state_repeat_exactly(env_id, mode):
    """Including ends, automatic resets, their random draws, and derived fields that lag."""
    limit = {"max_episode_steps": 6}
    with walking(env_id, 3, limit, autoreset_mode=mode) as (envs, actions):
        for _ in range(2):  # at different steps of episodes
            states = envs.get_state()
            assert states.shape == (3,)
            first = walk(envs, actions)
            envs.reset(seed=50)
            envs.set_state(states)
            identical(envs.get_state().tobytes(), states.tobytes())
            identical(walk(envs, actions), first)
            walk(envs, actions[:4])


@WAYS
def test_restoring_some_envs_leaves_the_others(workers, groups):
    with walking(num_workers=workers, groups=groups) as (envs, actions):
        states = envs.get_state([3, 0])
        identical(states, envs.get_state()[[3, 0]])
        first = walk(envs, actions[:4])
        later = envs.get_state()
        others = walk(envs, actions[:4])
        envs.set_state(later)
        envs.set_state(states, [3, 0])
        again = walk(envs, actions[:4])
        for one, two, three in zip(again, first, others, strict=True):
            for a, b, c in zip(one[:4], two[:4], three[:4], strict=True):
                identical(a[[0, 3]], b[[0, 3]])
                identical(a[[1, 2, 4]], c[[1, 2, 4]])


@WAYS
def test_all_envs_can_start_from_one_state(workers, groups):
    """In every group and worker; afterwards they differ only by their actions."""
    with walking(num_workers=workers, groups=groups) as (envs, actions):
        envs.set_state(np.repeat(envs.get_state([2]), 5))
        assert envs.np_random_seed == (3,) * 5
        for row in actions[:3]:
            observations, rewards, *_ = envs.step(np.repeat(row[:1], 5, axis=0))
            assert (observations == observations[0]).all()
            assert (rewards == rewards[0]).all()
        first = envs.reset()[0]
        assert (first == first[0]).all()  # the generators are equal too
        observations = envs.step(actions[3])[0]
        assert len(np.unique(observations, axis=0)) == 5


@WAYS
def test_states_can_be_reordered(workers, groups):
    order = [4, 1, 3, 0, 2]
    with walking(num_workers=workers, groups=groups) as (envs, actions):
        states = envs.get_state()
        identical(envs.get_state(order), states[order])
        identical(envs.get_state([1, 1, 4]), states[[1, 1, 4]])
        assert envs.get_state([]).shape == (0,)
        expected = walk(envs, actions[:4])
        envs.set_state(states[order], order)
        identical(walk(envs, actions[:4]), expected)
        envs.set_state(states, order)  # env 4 continues from state 0, and so on
        moved = [row[np.argsort(order)] for row in actions[:4]]
        for one, other in zip(walk(envs, moved), expected, strict=True):
            for a, b in zip(one[:4], other[:4], strict=True):
                identical(a[order], b)


def test_states_can_be_saved_and_set_in_another_vector_env(tmp_path):
    """With other numbers of envs, workers and groups; through a file and pickle."""
    with walking(num_workers=2) as (envs, actions):
        states = envs.get_state()
        np.save(tmp_path / "states.npy", states)
        expected = walk(envs, actions[:5])
    for kept in (np.load(tmp_path / "states.npy"), pickle.loads(pickle.dumps(states))):
        with walking(count=7, num_workers=0, groups=4, steps=0) as (envs, _):
            envs.set_state(kept, [6, 5, 4, 3, 2])
            wide = [np.concatenate((row[:2], row[::-1])) for row in actions[:5]]
            for one, other in zip(walk(envs, wide), expected, strict=True):
                for a, b in zip(one[:4], other[:4], strict=True):
                    identical(a[:1:-1], b)


def test_state_rows_have_named_fields():
    with walking(steps=3) as (envs, _):
        states = envs.get_state()
        assert {"physics", "elapsed", "generator"} <= set(states.dtype.names)
        assert states["elapsed"].tolist() == [3] * 5
        states["elapsed"] = 999
        envs.set_state(states)
        assert envs.step(np.zeros((5, 6)))[3].tolist() == [True] * 5


def test_states_are_copies():
    with walking() as (envs, actions):
        states = envs.get_state()
        kept = states.copy()
        walk(envs, actions)
        identical(states.tobytes(), kept.tobytes())


@pytest.mark.parametrize("mode", [NEXT_STEP, SAME_STEP])
def test_states_include_a_pending_reset(mode):
    with walking(arguments={"max_episode_steps": 7}, autoreset_mode=mode) as (envs, actions):
        states = envs.get_state()
        assert states["ended"].tolist() == [mode == NEXT_STEP] * 5
        first = walk(envs, actions[:3])
        envs.set_state(states)
        identical(walk(envs, actions[:3]), first)


def test_states_before_the_first_reset_restore():
    envs = together(CHEETAH, 3)
    states = envs.get_state()
    envs.reset(seed=1)
    reset = envs.get_state()
    envs.set_state(states, [0, 1, 2])
    with pytest.raises(gym.error.ResetNeeded):
        envs.step(np.zeros((3, 6)))
    envs.set_state(reset)
    envs.step(np.zeros((3, 6)))
    envs.close()


@WAYS
def test_states_include_the_task(workers, groups):
    """In steps and in attributes."""
    with walking("HalfCheetahVel-v5", num_workers=workers, groups=groups) as (envs, actions):
        tasks = [{"velocity": i / 4} for i in range(5)]
        envs.set_options(None, [{"task": task} for task in tasks])
        envs.reset(seed=1)
        envs.set_options(None, None)
        states = envs.get_state()
        expected = envs.step(actions[0])[1]
        envs.set_state(states[[1, 2, 3, 4, 0]], [0, 1, 2, 3, 4])
        assert envs.get_attr("velocity") == (0.25, 0.5, 0.75, 1.0, 0.0)
        rewards = envs.step(actions[0][[1, 2, 3, 4, 0]])[1]
        identical(rewards, expected[[1, 2, 3, 4, 0]])
        envs.reset(options={"task": {"velocity": 2.0}})
        envs.set_state(states)
        assert envs.get_attr("velocity") == (0.0, 0.25, 0.5, 0.75, 1.0)
        rewards = envs.apply(lambda env, row: env.step(row)[1], actions[0][3], envs=[3])
        identical(np.array(rewards), expected[[3]])


@pytest.mark.parametrize("seed", [None, 2**64 + 5, 2**127], ids=str)
def test_states_include_generators_of_any_seed(seed):
    """None: a 128-bit seed from the system."""
    with contextlib.closing(together(CHEETAH, 2)) as envs:
        actions = list(drawn_actions(envs.action_space, 2, 3))
        envs.reset(seed=seed)
        seeds = envs.np_random_seed
        states = envs.get_state()
        first = walk(envs, actions), envs.reset()
        envs.set_state(states)
        assert envs.np_random_seed == seeds
        identical((walk(envs, actions), envs.reset()), first)


@WAYS
def test_set_state_accepts_a_list_of_rows(workers, groups):
    with walking(num_workers=workers, groups=groups) as (envs, actions):
        states = envs.get_state()
        expected = walk(envs, actions[:3])
        envs.set_state(list(states))
        identical(walk(envs, actions[:3]), expected)


def test_states_can_be_set_in_another_autoreset_mode():
    """The state of an ended episode; with DISABLED the reset is left to the user."""
    limit = {"max_episode_steps": 7}
    with walking(arguments=limit) as (envs, _):
        states = envs.get_state()
        assert states["ended"].all()
    with walking(arguments=limit, autoreset_mode=DISABLED, steps=2) as (envs, actions):
        envs.set_state(states)
        assert envs.step(actions[0])[3].all()


def test_seeds_beyond_255_bits_have_no_state():
    with contextlib.closing(together(CHEETAH, 2)) as envs:
        envs.reset(seed=[1, 2**300])
        with pytest.raises(ValueError, match="cannot get state: a seed of more than 255 bits"):
            envs.get_state()


WRONG = {
    "two axes": (lambda envs, states: envs.set_state(states[None]), "an array of 2 dimensions"),
    "too few": (lambda envs, states: envs.set_state(states[:2]), "2 states, expected 5"),
    "too many": (lambda envs, states: envs.set_state(states, [0]), "5 states, expected 1"),
    "one row": (lambda envs, states: envs.set_state(states[0], [0]), r"one row.*states\[i:i\+1\]"),
    "plain numbers": (
        lambda envs, states: envs.set_state(np.zeros(5)),
        "cannot set state: it belongs to other envs",
    ),
    "objects": (
        lambda envs, states: envs.set_state(np.full(5, None)),
        "cannot set state: it belongs to other envs",
    ),
    "of another env": (
        lambda envs, states: envs.set_state(_state_of("Hopper-v5")),
        "cannot set state: it belongs to other envs",
    ),
    "of another env of that size": (
        lambda envs, states: envs.set_state(np.repeat(_state_of("Walker2d-v5")[:1], 5)),
        "cannot set state: it belongs to Walker2d, not to HalfCheetah",
    ),
    "no such env": (lambda envs, states: envs.get_state([5]), "env 5"),
    "none of these": (lambda envs, states: envs.set_state(states[:1], [-1]), "env -1"),
}


def _state_of(env_id):
    with walking(env_id) as (envs, _):
        return envs.get_state()


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("wrong", WRONG)
def test_wrong_states_are_refused_and_change_nothing(wrong, workers):
    call, message = WRONG[wrong]
    with walking(num_workers=workers) as (envs, actions):
        states = envs.get_state()
        with pytest.raises((ValueError, IndexError), match=message):
            call(envs, states)
        expected = walk(envs, actions[:2])
        envs.set_state(states)
        identical(walk(envs, actions[:2]), expected)


def test_get_and_set_state_raise_while_pending_or_closed():
    with walking() as (envs, actions):
        states = envs.get_state()
        envs.step_async(actions[0])
        for call in (envs.get_state, lambda: envs.set_state(states)):
            with pytest.raises(AlreadyPendingCallError):
                call()
        envs.step_wait()
    for call in (envs.get_state, lambda: envs.set_state(states)):
        with pytest.raises(ClosedEnvironmentError):
            call()
