"""gymnasium's classic control steps natively in large groups, and nothing but the speed changes."""

import functools
import os
import signal

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import wrappers
from gymnasium.envs.classic_control import AcrobotEnv, CartPoleEnv
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from made_up import same, step_alike

import pysampler
from pysampler.envs import classic
from pysampler.errors import EnvError

MODES = NEXT_STEP, SAME_STEP, DISABLED = list(AutoresetMode)
ENVS = "CartPole-v1", "MountainCar-v0", "Acrobot-v1"
COUNT = 16  # native in one group
pytestmark = pytest.mark.filterwarnings(
    "ignore:.*precision lowered by casting", "ignore:.*step\\(\\)"
)


def functions(env_id, count=COUNT, **kwargs):
    """Return functions that make envs, whose episodes are short."""
    return [functools.partial(gym.make, env_id, max_episode_steps=40, **kwargs)] * count


def both(env_id, count=COUNT, **options):
    """Return native envs and a SyncVectorEnv of the same functions."""
    env_fns = functions(env_id, count)
    ours = pysampler.VectorEnv(env_fns, **{"num_workers": 1, **options})
    assert ours.stats().native
    return ours, SyncVectorEnv(env_fns)


def drawn(envs, steps, seed=0):
    """Return actions for some steps."""
    rng = np.random.default_rng(seed)
    return rng.integers(0, envs.single_action_space.n, (steps, envs.num_envs))


def step_both(ours, theirs, steps, seed=0):
    for step, actions in enumerate(drawn(theirs, steps, seed)):
        same(ours.step(actions), theirs.step(actions), f"step {step}")


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("env_id", ENVS)
def test_results_equal_sync_vector_env(env_id, mode):
    ours = pysampler.VectorEnv(functions(env_id, 32), num_workers=2, autoreset_mode=mode)
    theirs = SyncVectorEnv(functions(env_id, 32), autoreset_mode=mode)
    assert ours.stats().native
    step_alike(
        *(ours, theirs, mode, 100, {"low": -0.5, "high": -0.45}),
        *({"low": -0.6, "high": -0.4}, list(range(32))),
    )


@pytest.mark.parametrize(
    "options",
    [
        {"num_workers": 0},
        {"num_workers": 1, "groups": 2},
        {"num_workers": 1, "main_envs": 16},
        {"num_workers": 1, "autoreset_mode": SAME_STEP},
    ],
)
@pytest.mark.parametrize("env_id", ["CartPole-v1"])
def test_results_of_ids_are_equal(env_id, options):
    mode = options.get("autoreset_mode", NEXT_STEP)
    ours = pysampler.make_vec(env_id, 32, max_episode_steps=40, **options)
    theirs = SyncVectorEnv(functions(env_id, 32), autoreset_mode=mode)
    assert ours.stats().native
    step_alike(ours, theirs, mode, 60, {}, None, [3] * 32)


@pytest.mark.parametrize(
    ("env_id", "kwargs"),
    [("CartPole-v1", {"sutton_barto_reward": True}), ("MountainCar-v0", {"goal_velocity": 0.02})],
)
def test_arguments_are_followed(env_id, kwargs):
    ours = pysampler.VectorEnv(functions(env_id, **kwargs), num_workers=1)
    assert ours.stats().native
    step_alike(ours, SyncVectorEnv(functions(env_id, **kwargs)), NEXT_STEP, 60, {}, None, None)


def wrapped(env_id):
    env = gym.make(env_id, max_episode_steps=40)
    env = wrappers.NormalizeObservation(env)
    return wrappers.TransformReward(env, lambda reward: np.clip(reward * 3, -2, 2))


@pytest.mark.parametrize("mode", MODES)
def test_wrappers_run_on_the_batch(mode):
    env_fns = [functools.partial(wrapped, "CartPole-v1")] * COUNT
    ours = pysampler.VectorEnv(env_fns, num_workers=1, autoreset_mode=mode)
    assert ours.stats().native
    assert ours.describe().count("on the batch") == 2
    theirs = SyncVectorEnv(env_fns, autoreset_mode=mode)
    step_alike(ours, theirs, mode, 80, {}, None, list(range(COUNT)))


@pytest.mark.parametrize("env_id", ENVS)
def test_calls_act_as_on_real_envs(env_id):
    ours, theirs = both(env_id)
    ours.reset(seed=1)
    theirs.reset(seed=1)
    for steps in (0, 1, 30):
        step_both(ours, theirs, steps, steps)
        states = ours.get_attr("state"), theirs.get_attr("state")
        for one, other in zip(*states, strict=True):
            assert type(one) is type(other)
            assert [type(x) for x in one] == [type(x) for x in other]
            same(np.array(one), np.array(other))
        same(ours.call("np_random_seed"), theirs.call("np_random_seed"))
    elapsed = ours.get_attr("_elapsed_steps")
    assert list(elapsed) == [env.get_wrapper_attr("_elapsed_steps") for env in theirs.envs]
    # The state of one env is taken over, and the envs stay native.
    for envs in (ours, theirs):
        envs.set_attr("state", list(envs.get_attr("state"))[::-1])
    step_both(ours, theirs, 30)
    assert "in Python" not in ours.describe()
    ours.close()
    theirs.close()


def test_pictures_are_gymnasiums():
    pytest.importorskip("pygame")
    env_fns = functions("CartPole-v1", render_mode="rgb_array")
    ours, theirs = pysampler.VectorEnv(env_fns, num_workers=1), SyncVectorEnv(env_fns)
    assert ours.stats().native
    ours.reset(seed=1)
    theirs.reset(seed=1)
    step_both(ours, theirs, 9)
    same(ours.render()[-1], theirs.render()[-1])
    step_both(ours, theirs, 9)
    assert "in Python" not in ours.describe()
    ours.close()
    theirs.close()


CHANGES = {
    "CartPole-v1": ("gravity", 3.0),
    "MountainCar-v0": ("force", 0.002),
    "Acrobot-v1": ("torque_noise_max", 0.5),
}


@pytest.mark.parametrize("env_id", ENVS)
def test_changed_attributes_are_followed_env_by_env(env_id):
    name, value = CHANGES[env_id]
    ours, theirs = both(env_id)
    ours.reset(seed=1)
    theirs.reset(seed=1)
    step_both(ours, theirs, 30)
    for envs in (ours, theirs):
        envs.set_attr(name, [value] * COUNT)
    step_both(ours, theirs, 60)
    assert f"in Python: {name} of env 0 was changed" in ours.describe()
    ours.close()
    theirs.close()


@pytest.mark.parametrize("env_id", ENVS[:2])
def test_states_in_another_precision_are_followed_env_by_env(env_id):
    ours, theirs = both(env_id)
    ours.reset(seed=1)
    theirs.reset(seed=1)
    for envs in (ours, theirs):
        envs.set_attr("state", [np.float32(one) for one in envs.get_attr("state")])
    step_both(ours, theirs, 30)
    assert "in Python: state of env 0 was changed" in ours.describe()
    ours.close()
    theirs.close()


def changed():
    env = gym.make("CartPole-v1")
    env.unwrapped.force_mag = 20.0
    return env


class Mine(CartPoleEnv):
    """A user's class, which may override anything."""


def change_the_class():
    AcrobotEnv.book_or_nips = "nips"


ORDINARY = {
    "changed by its function": (changed, {}, "force_mag was changed after the env was made"),
    "a subclass": (Mine, {}, "Mine has no native counterpart"),
    "drawn in a window": (
        functools.partial(CartPoleEnv, render_mode="human"),
        {},
        "each step of an env with render_mode='human' draws a picture",
    ),
    "a changed class": (
        functools.partial(gym.make, "Acrobot-v1"),
        {"worker_init": change_the_class},
        "differ from it",
    ),
    "no batches": (functools.partial(gym.make, "CartPole-v1"), {"native": False}, "native=False"),
}


@pytest.mark.parametrize("what", ORDINARY)
def test_envs_that_may_differ_stay_in_python(what):
    make, options, why = ORDINARY[what]
    envs = pysampler.VectorEnv([make] * COUNT, num_workers=1, **options)
    assert not envs.stats().native
    assert why in envs.describe()
    envs.close()


def test_few_envs_stay_in_python():
    with pytest.raises(ValueError, match=r"native=True, but too few envs to gain by it \(15\)"):
        pysampler.make_vec("CartPole-v1", 15, num_workers=1, native=True)
    with pysampler.make_vec("CartPole-v1", 31, num_workers=2, max_episode_steps=40) as ours:
        native, python = ours.describe().split("envs 16 to 30:")
        assert "in Python" not in native
        assert "in Python: too few envs to gain by it (15)" in python
        theirs = SyncVectorEnv(functions("CartPole-v1", 31))
        step_alike(ours, theirs, NEXT_STEP, 50, {}, None, None)


TRAPS = {
    "CartPole-v1": ("_ANGLE", 0.2),
    "MountainCar-v0": ("bounds", (-0.5, -0.4)),
    "Acrobot-v1": ("_FASTEST", (0.3, 0.3)),
}


@pytest.mark.parametrize("env_id", ENVS)
def test_a_difference_falls_back(env_id, monkeypatch):
    monkeypatch.setattr(getattr(classic, env_id.partition("-")[0]), *TRAPS[env_id])
    envs = pysampler.make_vec(env_id, COUNT, num_workers=0)
    assert "differ from it" in envs.describe()
    with pytest.raises(ValueError, match="native=True, but its simulations differ from it"):
        pysampler.make_vec(env_id, COUNT, num_workers=0, native=True)
    envs.close()


@pytest.mark.parametrize("mode", [NEXT_STEP, SAME_STEP])
def test_counts_are_those_of_envs_in_python(mode):
    """A step that resets an env counts as a reset, also where all envs step together."""
    totals = []
    for native in ("auto", False):
        envs = pysampler.make_vec(
            *("CartPole-v1", COUNT), num_workers=1, native=native, autoreset_mode=mode
        )
        envs.reset(seed=1)
        for actions in drawn(envs, 90):
            envs.step(actions)
        counted = envs.stats()
        totals.append((counted.steps.count.tolist(), counted.resets.count.tolist()))
        envs.close()
    assert totals[0] == totals[1]


@pytest.mark.parametrize("wrong", [2, -1])
def test_an_invalid_action_names_its_env(wrong):
    envs = pysampler.make_vec("CartPole-v1", 2 * COUNT, num_workers=2)
    envs.reset(seed=1)
    actions = np.zeros(2 * COUNT, int)
    actions[19] = wrong
    with pytest.raises(EnvError, match=f"(?s)env 19 .*action {wrong}, expected a whole number"):
        envs.step(actions)
    envs.close()


def test_actions_of_ended_envs_may_be_anything():
    ours, theirs = both("CartPole-v1")
    ours.reset(seed=1)
    theirs.reset(seed=1)
    ended, seen = np.zeros(COUNT, bool), 0
    for actions in drawn(theirs, 80):
        given = np.where(ended, 99, actions)
        result = ours.step(given)
        same(result, theirs.step(actions))
        ended = result[2] | result[3]
        seen += ended.sum()
    assert seen > 10
    ours.close()
    theirs.close()


@pytest.mark.parametrize("env_id", ENVS)
def test_states_are_restored(env_id):
    envs = pysampler.make_vec(env_id, COUNT, num_workers=1, max_episode_steps=20)
    envs.reset(seed=1)
    actions = drawn(envs, 60)
    for one in actions[:25]:
        envs.step(one)
    states = envs.get_state()
    first = [envs.step(one) for one in actions]
    envs.set_state(states)
    same([envs.step(one) for one in actions], first)
    envs.close()


def test_replaced_envs_begin_again():
    envs = pysampler.make_vec("CartPole-v1", 2 * COUNT, num_workers=2, on_worker_loss="restart")
    envs.reset(seed=1)
    os.kill(envs._pool.pids[0], signal.SIGKILL)
    *_, truncated, infos = envs.step(np.ones(2 * COUNT, int))
    assert list(truncated) == list(infos["worker_lost"]) == [True] * COUNT + [False] * COUNT
    observations, rewards, *_ = envs.step(np.ones(2 * COUNT, int))
    assert list(rewards) == [0] * COUNT + [1] * COUNT
    assert (np.abs(observations[:COUNT]) <= 0.05).all()
    assert envs.describe().count("CartPole-v1        native") == 1
    envs.close()


@pytest.mark.parametrize("at", [0, 20])
def test_an_interrupted_step_is_repeated_exactly(at, monkeypatch):
    """In step 20 some envs are reset, for which the step of the others comes to nothing."""
    envs, expected = (
        pysampler.make_vec("CartPole-v1", COUNT, num_workers=0, max_episode_steps=19)
        for _ in range(2)
    )
    actions = drawn(envs, 60)
    for one in (envs, expected):
        one.reset(seed=1)
        for row in actions[:at]:
            one.step(row)
    step, left = classic.CartPole.step, [1]

    def interrupted(self, ids, actions):
        results = step(self, ids, actions)
        if left:
            left.pop()
            raise KeyboardInterrupt
        return results

    monkeypatch.setattr(classic.CartPole, "step", interrupted)
    with pytest.raises(KeyboardInterrupt):
        envs.step(actions[at])
    same(envs.step_wait(), expected.step(actions[at]))
    for row in actions[at + 1 :]:
        same(envs.step(row), expected.step(row))
    envs.close()
    expected.close()
