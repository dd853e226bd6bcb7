"""The BatchEnvs of classic control have the numbers of gymnasium's envs, bit for bit."""

import functools

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from made_up import same
from vectors import begun

import pysampler
from pysampler.envs import check_batch_env, classic
from pysampler.errors import EnvError

MODES = NEXT_STEP, SAME_STEP, DISABLED = list(AutoresetMode)
ENVS = {
    "CartPole-v1": classic.CartPole,
    "MountainCar-v0": classic.MountainCar,
    "Acrobot-v1": classic.Acrobot,
}
CONTINUOUS = {  # with options of their resets
    "Pendulum-v1": {"x_init": 0.5, "y_init": 0.2},
    "MountainCarContinuous-v0": {"low": 0.1, "high": 0.2},
}
COUNT = 5
pytestmark = pytest.mark.filterwarnings(
    "ignore:.*precision lowered by casting", "ignore:.*step\\(\\)"
)


def compare(env_id, mode, steps, arguments=None, *, resets=True):
    arguments = arguments or {}
    make = functools.partial(gym.make, env_id, **arguments)
    with pysampler.make_vec(
        ENVS[env_id], 7, autoreset_mode=mode, num_workers=2, **arguments
    ) as ours:
        theirs = SyncVectorEnv([make] * 7, autoreset_mode=mode)
        if not resets:  # which asserts that there are some
            theirs = pysampler.VectorEnv([make] * 7, autoreset_mode=mode, num_workers=0)
        assert ours.single_observation_space == theirs.single_observation_space
        same(ours.reset(seed=3), theirs.reset(seed=3))
        rng = np.random.default_rng(0)
        for step in range(steps):
            # Mostly one direction, so that all of the state space is visited.
            actions = np.where(rng.random(7) < 0.7, step // 40 % 2 * 2, rng.integers(0, 3, 7))
            actions = np.minimum(actions, theirs.single_action_space.n - 1)
            a, b = ours.step(actions), theirs.step(actions)
            same(a, b, f"step {step}")
            ended = a[2] | a[3]
            if mode is DISABLED and ended.any() and resets:
                options = {"reset_mask": ended, "low": -0.5, "high": -0.45}
                same(ours.reset(options=options), theirs.reset(options=options), f"reset {step}")
        options = {"low": -0.6, "high": -0.45}
        same(ours.reset(options=options), theirs.reset(options=options))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("env_id", ENVS)
def test_results_are_gymnasiums(env_id, mode):
    compare(env_id, mode, 300)


@pytest.mark.slow
@pytest.mark.parametrize("env_id", ENVS)
def test_results_are_gymnasiums_for_long(env_id):
    compare(env_id, SAME_STEP, 6000)


def pushes(env_id, theirs, step, rng):
    """Return actions that swing up, within the limits and beyond."""
    scale = 3.0 if step % 3 else 0.5
    if env_id == "Pendulum-v1" or step % 50 > 40:
        return rng.uniform(-scale, scale, (COUNT, 1))
    speeds = [[env.unwrapped.state[1]] for env in theirs.envs]
    return np.sign(speeds) * (0.9 if step % 2 else 1.3)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int64, np.uint8])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("env_id", CONTINUOUS)
def test_results_of_continuous_actions_are_gymnasiums(env_id, mode, dtype):
    options = CONTINUOUS[env_id]
    with pysampler.make_vec(env_id, COUNT, autoreset_mode=mode, num_workers=1, native=True) as ours:
        theirs = SyncVectorEnv([functools.partial(gym.make, env_id)] * COUNT, autoreset_mode=mode)
        same(ours.reset(seed=3), theirs.reset(seed=3))
        rng, ends = np.random.default_rng(0), 0
        for step in range(450):
            actions = pushes(env_id, theirs, step, rng).astype(dtype)
            a, b = ours.step(actions), theirs.step(actions)
            same(a, b, f"step {step}")
            ended = a[2] | a[3]
            ends += ended.any()
            if mode is DISABLED and ended.any():
                masked = {"reset_mask": ended, **options}
                same(ours.reset(options=masked), theirs.reset(options=masked), f"reset {step}")
        assert ends or (env_id, dtype) == ("MountainCarContinuous-v0", np.uint8)
        assert ours.describe().count("native") > 2
        same(ours.reset(options=options), theirs.reset(options=options))


def test_last_torque_of_a_pendulum_is_gymnasiums():
    for dtype in (np.float32, np.float64):
        with pysampler.make_vec("Pendulum-v1", 2, num_workers=1, native=True) as ours:
            ours.reset(seed=1)
            assert ours.get_attr("last_u") == (None, None)
            ours.step(np.array([[0.3], [4.0]], dtype))
            found = ours.get_attr("last_u")
            assert [type(one) for one in found] == [dtype, dtype]
            assert found == (dtype(0.3), dtype(2.0))


@pytest.mark.parametrize(
    ("env_id", "arguments"),
    [
        ("CartPole-v1", {"sutton_barto_reward": True}),
        ("MountainCar-v0", {"goal_velocity": 0.02}),
    ],
)
def test_arguments_are_gymnasiums(env_id, arguments):
    compare(env_id, NEXT_STEP, 250, arguments)


@pytest.mark.parametrize("arguments", [{}, {"sutton_barto_reward": True}])
def test_steps_beyond_the_end_are_gymnasiums(arguments):
    compare("CartPole-v1", DISABLED, 100, arguments, resets=False)


@pytest.mark.parametrize("kind", [*ENVS.values(), classic.Pendulum, classic.MountainCarContinuous])
def test_rules_of_batch_envs_are_kept(kind):
    check_batch_env(kind)


@pytest.mark.parametrize("actions", [np.array([0, 9]), np.array([-1, 0]), np.array([0.0, 1.0])])
def test_actions_outside_of_the_space_raise(actions):
    with (
        begun(pysampler.make_vec(classic.CartPole, 2, num_workers=1), seed=1) as envs,
        pytest.raises((EnvError, TypeError), match="expected a whole number|dtype float64"),
    ):
        envs.step(actions)


@pytest.mark.parametrize("dtype", [np.float16, bool, object])
def test_continuous_actions_of_other_types_raise(dtype):
    with (
        begun(pysampler.make_vec(classic.Pendulum, 2, num_workers=0), seed=1) as envs,
        pytest.raises(EnvError, match="expected whole numbers, float32 or float64 of shape"),
    ):
        envs.step(np.zeros((2, 1), dtype))


def test_invalid_options_of_one_env_leave_those_of_others():
    bounds = [{"low": 0.2 + 0.01 * i, "high": 0.205 + 0.01 * i} for i in range(4)]
    with begun(pysampler.make_vec(classic.CartPole, 4, num_workers=0), seed=1) as envs:
        envs.set_options(None, [*bounds[:1], {"low": 1.0, "high": -1.0}, *bounds[2:]])
        with pytest.raises(EnvError):
            envs.reset(seed=5)
        mask = np.array([False, True, False, False])
        observations, _ = envs.reset(options={"reset_mask": mask, "low": 0.0, "high": 0.1})
    for i in (0, 2, 3):
        low, high = bounds[i].values()
        assert ((low <= observations[i]) & (observations[i] <= high)).all(), i


@pytest.mark.parametrize(
    "ids", [slice(0, 2), np.array([1, 3]), np.array([False, True, False, True]), np.array([-1])]
)
def test_envs_are_chosen_as_rows_of_arrays_are(ids):
    env = classic.CartPole(4)
    env.reset(slice(None), [np.random.default_rng(i) for i in range(4)])
    every = env.observe(slice(None))
    assert env.observe(ids).tolist() == every[ids].tolist()
    rewards, over = env.step(ids, np.ones(len(every[ids]), int))
    assert rewards.tolist() == [1.0] * len(every[ids])
    assert not over.any()
    assert (env.observe(slice(None)) != every).any(axis=1).sum() == len(every[ids])
