"""Envs simulated together return exactly the results of SyncVectorEnv."""

import contextlib
import copy
import itertools

import gymnasium as gym
import numpy as np
import pytest
from mujoco_in_tests import (
    CHEETAH,
    DISABLED,
    IDS,
    META_IDS,
    MODES,
    NEXT_STEP,
    SAME_STEP,
    compare,
    drawn_actions,
    each,
    identical,
    one_by_one,
    ordinary,
    together,
)

# Some envs terminate within a few steps, some never: the limit truncates all of them.
SHORT = {"max_episode_steps": 17}


def both(env_id, count, mode, arguments=None, **vector_kwargs):
    stack = contextlib.ExitStack()
    ours = together(env_id, count, arguments, autoreset_mode=mode, **vector_kwargs)
    theirs = one_by_one(env_id, count, arguments, mode)
    stack.callback(ours.close)
    stack.callback(theirs.close)
    return stack, ours, theirs


def reset_alike(ours, theirs, **arguments):
    """Copies ``options``, because SyncVectorEnv removes the mask from them."""
    results = []
    for envs in (ours, theirs):
        given = {name: dict(v) if name == "options" else v for name, v in arguments.items()}
        results.append(envs.reset(**given))
    identical(*results, f"reset with {arguments}")


@pytest.mark.slow
@pytest.mark.parametrize("env_id", IDS)
def test_1000_steps_with_resets_equal_sync_vector_env(env_id):
    """Uneven groups; episodes end by termination, time limit, and resets of all kinds."""
    number = IDS.index(env_id)
    arguments = {"max_episode_steps": 90}
    stack, ours, theirs = both(env_id, 3, MODES[number % 3], arguments, num_workers=2)
    with stack:
        reset_alike(ours, theirs, seed=number)
        actions = list(drawn_actions(theirs.action_space, number, 1000, beyond=1.5))
        between = [
            {},
            {"options": {"reset_mask": np.array([True, False, True])}},
            {"seed": [5, None, 5]},
            {"seed": 100, "options": {"reset_mask": np.array([False, True, True])}},
            {"options": {"unknown": 1}},
            {"seed": 2**40},
            {"options": {"reset_mask": np.ones(3, bool)}},
        ]
        ended = 0
        for piece, arguments in enumerate([*between, None]):
            ended += compare(ours, theirs, actions[125 * piece : 125 * (piece + 1)])
            if arguments is not None:
                reset_alike(ours, theirs, **arguments)
        assert ended >= 20


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("env_id", IDS)
def test_any_number_of_workers_equals_sync_vector_env(env_id, mode):
    """Seven envs in uneven groups, against one recorded run of SyncVectorEnv."""
    theirs = one_by_one(env_id, 7, SHORT, mode)
    actions = list(drawn_actions(theirs.action_space, 3, 32))
    mask = np.array([True, False, True, True, False, False, True])
    calls = [("reset", {"seed": 3}), *(("step", {"actions": row}) for row in actions[:19])]
    calls += [("reset", {"options": {"reset_mask": mask}})]
    calls += [("step", {"actions": row}) for row in actions[19:]]
    calls += [("reset", {"seed": list(range(7))}), ("step", {"actions": actions[0]})]
    expected = []
    for name, arguments in calls:
        result = getattr(theirs, name)(**_copied(arguments))
        expected.append((name, arguments, result))
        if mode == DISABLED and name == "step" and (over := result[2] | result[3]).any():
            arguments = {"options": {"reset_mask": over}}
            expected.append(("reset", arguments, theirs.reset(**_copied(arguments))))
    theirs.close()
    # Across envs and modes, each division is covered.
    others = [(0, 2), (5, 1)], [(1, 3)]
    for workers, groups in ((2, 2), *others[(IDS.index(env_id) + MODES.index(mode)) % 2]):
        ours = together(env_id, 7, SHORT, num_workers=workers, groups=groups, autoreset_mode=mode)
        for at, (name, arguments, result) in enumerate(expected):
            ours_now = getattr(ours, name)(**_copied(arguments))
            identical(ours_now, result, f"{workers} workers, {name} {at}")
        ours.close()


def _copied(arguments):
    return {name: dict(v) if name == "options" else v for name, v in arguments.items()}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    "env_id",
    [
        "InvertedPendulum-v5",
        "InvertedDoublePendulum-v5",
        *(
            pytest.param(f"{name}-v5", marks=pytest.mark.slow)
            for name in ("Hopper", "Ant", "Pusher")
        ),
    ],
)
def test_many_resets_in_one_step_equal_sync_vector_env(env_id, mode):
    """Each draws from its own generator, although all begin in one call."""
    stack, ours, theirs = both(env_id, 12, mode, {"max_episode_steps": 9})
    with stack:
        reset_alike(ours, theirs, seed=1)
        actions = drawn_actions(theirs.action_space, 2, 24)
        ended = [compare(ours, theirs, [row]) for row in actions]
        assert sum(1 < count < 12 for count in ended) > 1 or max(ended) == 12
        reset_alike(ours, theirs, options={"reset_mask": np.arange(12) % 3 > 0})
        compare(ours, theirs, drawn_actions(theirs.action_space, 3, 12))


@pytest.mark.parametrize("env_id", each(META_IDS))
@pytest.mark.parametrize("mode", [NEXT_STEP, SAME_STEP])
def test_task_envs_equal_sync_vector_env(env_id, mode):
    """A task given in one reset also holds for all later resets, automatic or not."""
    stack, ours, theirs = both(env_id, 3, mode, {"max_episode_steps": 6}, groups=2)
    with stack:
        [name] = {"direction", "velocity"} & set(dir(theirs.envs[0].unwrapped))
        reset_alike(ours, theirs, seed=1)
        actions = list(drawn_actions(theirs.action_space, 1, 30))
        compare(ours, theirs, actions[:10])
        reset_alike(ours, theirs, options={"task": {name: 0.7}})
        compare(ours, theirs, actions[10:20])
        reset_alike(ours, theirs, seed=4)
        assert ours.get_attr(name) == theirs.get_attr(name) == (0.7,) * 3
        compare(ours, theirs, actions[20:])


DTYPES = ["f2", "f4", "f8", "g", "i1", "i4", "i8", "u1", "u8", "?"]


@pytest.mark.parametrize("env_id", each(IDS))
@pytest.mark.filterwarnings("ignore")  # overflows, and gymnasium's warnings about rewards
def test_actions_of_any_dtype_equal_sync_vector_env(env_id):
    stack, ours, theirs = both(env_id, 3, NEXT_STEP, SHORT)
    with stack:
        reset_alike(ours, theirs, seed=1)
        rng = np.random.default_rng(2)
        for _, dtype in itertools.product(range(3), DTYPES):
            numbers = rng.integers(0, 20, theirs.action_space.shape) - 10 * (dtype[0] != "u")
            compare(ours, theirs, [(numbers / (1 if dtype[0] in "iu" else 7)).astype(dtype)])


def _mixed(rows):
    return [row.astype(dtype) for row, dtype in zip(rows, ("f8", "f4", "i8"), strict=True)]


KINDS = {
    "list of arrays": list,
    "tuple of arrays": tuple,
    "lists of numbers": lambda rows: rows.tolist(),
    "lists of whole numbers": lambda rows: rows.astype(int).tolist(),
    "tuples of numbers": lambda rows: [tuple(row) for row in rows.tolist()],
    "arrays of several dtypes": _mixed,
    "column-major": np.asfortranarray,
    "every other of a larger array": lambda rows: np.repeat(rows, 2, axis=1)[:, ::2],
    "objects": lambda rows: rows.astype(object),
}


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.filterwarnings("ignore")
def test_actions_in_any_container_equal_sync_vector_env(kind, workers):
    stack, ours, theirs = both(CHEETAH, 3, NEXT_STEP, {"max_episode_steps": 4}, num_workers=workers)
    with stack:
        reset_alike(ours, theirs, seed=1)
        drawn = drawn_actions(theirs.action_space, 1, 12, beyond=4)
        compare(ours, theirs, [KINDS[kind](row.astype(np.float64)) for row in drawn])


@pytest.mark.parametrize("env_id", each(IDS))
@pytest.mark.parametrize("odd", [np.nan, np.inf, 1e30], ids=str)
@pytest.mark.filterwarnings("ignore")
def test_nan_inf_and_huge_actions_equal_sync_vector_env(env_id, odd):
    """MuJoCo ignores the controls or resets the simulation; other envs are unaffected."""
    stack, ours, theirs = both(env_id, 3, SAME_STEP, SHORT)
    with stack:
        reset_alike(ours, theirs, seed=1)
        actions = list(drawn_actions(theirs.action_space, 1, 24))
        for at in (3, 4, 15):
            actions[at][1, -1] = odd
        compare(ours, theirs, actions)


@pytest.mark.parametrize("env_id", ["HalfCheetah-v5", "InvertedPendulum-v5", "Ant-v5"])
@pytest.mark.filterwarnings("ignore")
def test_unstable_simulations_equal_sync_vector_env(env_id):
    """MuJoCo resets such a simulation in the middle of a step."""
    stack, ours, theirs = both(env_id, 3, NEXT_STEP, SHORT)
    with stack:
        reset_alike(ours, theirs, seed=1)
        actions = list(drawn_actions(theirs.action_space, 1, 8))
        compare(ours, theirs, actions[:4])
        model = theirs.envs[1].unwrapped.model
        for envs in (ours, theirs):
            envs.call("set_state", np.zeros(model.nq), np.full(model.nv, 1e9))
        compare(ours, theirs, actions[4:])


@pytest.mark.parametrize("env_id", [CHEETAH, "Humanoid-v5", "InvertedPendulum-v5", "Reacher-v5"])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("infos", ["final", "none"])
def test_omitted_infos_equal_ordinary_envs(env_id, mode, infos):
    """The remaining columns have the values, dtypes and masks of ordinary envs."""
    options = {"autoreset_mode": mode, "infos": infos}
    ours, theirs = (make(env_id, 3, SHORT, **options) for make in (together, ordinary))
    identical(ours.reset(seed=1), theirs.reset(seed=1))
    assert compare(ours, theirs, drawn_actions(theirs.action_space, 1, 25)) > 0
    ours.close()
    theirs.close()


@pytest.mark.parametrize("env_id", ["HalfCheetah-v5", "Reacher-v5"])
def test_the_shorter_of_two_time_limits_applies(env_id):
    spec = copy.deepcopy(gym.spec(env_id))
    spec.max_episode_steps = 9
    ours = together(spec, 2)
    theirs = gym.vector.SyncVectorEnv([lambda: gym.make(spec)] * 2)
    identical(ours.reset(seed=1), theirs.reset(seed=1))
    assert compare(ours, theirs, drawn_actions(theirs.action_space, 1, 21)) == 4
    ours.close()
    theirs.close()


@pytest.mark.parametrize("count", [1, 2])
def test_episodes_without_a_seed_differ(count):
    """Each generator is seeded by the system and continues across episodes."""
    envs = together(CHEETAH, count)
    seen = [row.tobytes() for _ in range(3) for row in envs.reset()[0]]
    assert len(set(seen)) == 3 * count
    envs.close()
