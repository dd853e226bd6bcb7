"""The trial that compares envs simulated together with real ones."""

import functools
import re
import sys
import warnings

import gymnasium as gym
import mujoco
import numpy as np
import pytest
from mujoco_in_tests import CHEETAH, drawn_actions, identical, is_native, made, one_by_one

import pysampler.envs.mujoco as tasks
from pysampler import VectorEnv
from pysampler._vector import stacks
from pysampler._vector.mujoco.trial import KnownTask
from pysampler._vector.native.known import NotNativeError
from pysampler._vector.native.trial import KnownEnv
from pysampler._vector.wrapped.server import BatchServer
from pysampler.envs.mujoco import _gymnasium, ant, half_cheetah, pendulums


@pytest.fixture(autouse=True)
def nothing_logged(monkeypatch):
    """Forget which warnings were logged."""
    monkeypatch.setattr(stacks, "_logged", set())


def plain_sum(action):
    """Sum sequentially, not pairwise."""
    total = np.zeros(len(action), action.dtype)
    for column in np.square(action).T:
        total += column
    return total


def multiplied(x, exponent):
    assert exponent == 2
    return x * x


def in_time(cls):
    """Return a class whose body positions do not lag by a substep."""

    class InTime(cls):
        def reward(self, d, before, action):
            data, places = mujoco.MjData(self.model), d.xpos.copy()
            for i in range(len(d)):
                data.qpos[:] = d.qpos[i]
                mujoco.mj_kinematics(self.model, data)
                places[i] = data.xpos
            vars(d)["xpos"] = places
            return super().reward(d, before, action)

    return InTime


def breaking(trap, monkeypatch):
    """Break one detail of a task; return the id of an env that shows it."""
    if trap == "pairwise sum":
        monkeypatch.setattr(ant, "squares", plain_sum)
        return "Ant-v5"
    if trap == "pow":
        monkeypatch.setattr(np, "float_power", multiplied)
        return "InvertedDoublePendulum-v5"
    if trap == "lagging substep":
        monkeypatch.setattr(tasks, "Ant", in_time(tasks.Ant))
        return "Ant-v5"
    if trap == "draws":
        normal = _gymnasium.GymnasiumTask.normal
        swapped = {"normal": _gymnasium.GymnasiumTask.uniform, "uniform": normal}
        for name, method in swapped.items():
            monkeypatch.setattr(_gymnasium.GymnasiumTask, name, method)
        return CHEETAH
    if trap == "dtype":
        rewarding = half_cheetah.HalfCheetah.reward

        def in_doubles(*given):
            rewards, infos = rewarding(*given)
            return rewards, {**infos, "reward_ctrl": infos["reward_ctrl"].astype(np.float64)}

        monkeypatch.setattr(half_cheetah.HalfCheetah, "reward", in_doubles)
        return CHEETAH
    if trap == "a whole number":
        reward = pendulums.InvertedPendulum.reward
        monkeypatch.setattr(
            pendulums.InvertedPendulum,
            "reward",
            lambda *a: (reward(*a)[0], {"reward_survive": reward(*a)[0] * 1.0}),
        )
        return "InvertedPendulum-v5"
    if trap == "an info":
        monkeypatch.setattr(half_cheetah.HalfCheetah, "reset_info", lambda task, d: {})
        return CHEETAH
    raise AssertionError(trap)


TRAPS = {
    "pairwise sum": r"rewards\[\]: .*, expected .* of a step",
    "pow": r"\d+, expected .* of a step",
    "lagging substep": r"rewards\[\]: .*, expected .* of a step",
    "draws": r"observations\[\d+\]: .*, expected .* of a reset",
    "dtype": r"infos\['reward_ctrl'\]: float64\(\), expected float32\(\) of a step",
    "a whole number": r"infos\['reward_survive'\]: float64\(\), expected int64\(\)",
    "an info": r"the keys of infos \(x_position\) of a reset",
}


# A differently rounded square shows once in hundreds of steps, which a trial does not reach.
@pytest.mark.parametrize("trap", [trap for trap in TRAPS if trap != "pow"])
def test_a_difference_falls_back_and_is_logged_once(trap, monkeypatch, caplog):
    env_id = breaking(trap, monkeypatch)
    said = rf"its simulations differ from it: .*{TRAPS[trap]}"
    made(env_id).close()
    envs = made(env_id)
    [record] = caplog.records
    assert re.search(f"{env_id} is stepped in Python, which is slow: {said}", record.getMessage())
    theirs = one_by_one(env_id, 2)
    identical(envs.reset(seed=1), theirs.reset(seed=1))
    for actions in drawn_actions(theirs.action_space, 1, 10):
        identical(envs.step(actions), theirs.step(actions))
    assert re.search(said, envs.describe())
    assert not is_native(envs)
    with pytest.raises(ValueError, match=f"native=True, but {said}"):
        made(env_id, native=True)


@pytest.mark.parametrize("trap", TRAPS)
def test_each_difference_fails_the_equality_tests(trap, monkeypatch):
    """Without the trial: shows that the equality tests could fail."""
    env_id = breaking(trap, monkeypatch)
    monkeypatch.setattr(KnownEnv, "_compare", lambda *_: None)
    ours, theirs = made(env_id, native=True), one_by_one(env_id, 2)
    with pytest.raises(AssertionError):
        for seed in range(10):
            identical(ours.reset(seed=seed), theirs.reset(seed=seed))
            for actions in drawn_actions(theirs.action_space, 1, 20):
                identical(ours.step(actions), theirs.step(actions))
    assert is_native(ours)
    theirs.close()


def test_a_trial_runs_once_for_alike_envs(monkeypatch):
    tried = []
    compare = KnownEnv._compare
    monkeypatch.setattr(KnownEnv, "_compare", lambda *given: tried.append(given) or compare(*given))
    assert is_native(made())
    assert len(tried) == 1
    functions = []
    for weight in (0.1, 0.1, 0.3):
        with made(arguments={"ctrl_cost_weight": weight}) as envs:
            functions.append(envs.env_fns[0])
    tried.clear()
    envs = VectorEnv(functions, num_workers=0)
    assert envs.stats().native
    envs.close()
    assert len(tried) == 2


def test_a_difference_is_tried_once_for_alike_envs(monkeypatch):
    tried = []

    def differs(*_):
        tried.append(1)
        raise NotNativeError("this and that")

    monkeypatch.setattr(KnownEnv, "_compare", differs)
    assert not is_native(made())
    assert len(tried) == 1


def test_a_failure_to_make_simulations_falls_back(monkeypatch, caplog):
    """For example a MuJoCo version with other functions."""

    def fails(task, count):
        raise OSError("no such function")

    monkeypatch.setattr(half_cheetah.HalfCheetah, "for_simulations", fails)
    assert not is_native(made())
    assert "a trial raised OSError: no such function" in caplog.text


def test_a_mujoco_without_batches_makes_ordinary_envs(monkeypatch):
    monkeypatch.setitem(sys.modules, "mujoco.batch", None)
    monkeypatch.delattr(mujoco, "batch", raising=False)
    with warnings.catch_warnings(action="error"):
        assert not is_native(made())
    version = mujoco.__version__
    said = f"native=True, but mujoco {version} has no batches, expected 3.17 or newer"
    with pytest.raises(ValueError, match=said):
        made(native=True)


def test_a_single_precision_mujoco_makes_ordinary_envs(monkeypatch):
    monkeypatch.setattr(mujoco, "MJTNUM_DTYPE", np.float32, raising=False)
    assert not is_native(made())
    with pytest.raises(ValueError, match="this MuJoCo computes in single precision"):
        made(native=True)


def test_episodes_may_end_during_the_trial():
    for limit in (1, 2, 7, 8):
        assert is_native(made(native=True, arguments={"max_episode_steps": limit}))


def test_the_trial_leaves_the_random_numbers_alone():
    """The program's draws from NumPy and spaces do not depend on the trial."""
    np.random.seed(1)
    made().close()
    first = np.random.random()
    np.random.seed(1)
    assert first == np.random.random()


# -- envs that are made again ----------------------------------------------------------------------

HELD = []


def cheetah(**kwargs):
    return gym.make(CHEETAH, **kwargs)


def held():
    HELD.append(cheetah())
    return HELD[-1]


def its_data_is_held():
    HELD.append(cheetah().unwrapped.data)
    env = cheetah()
    HELD.append(env.unwrapped.data)
    return env


def reset():
    env = cheetah()
    env.reset(seed=1)
    return env


def moved():
    env = cheetah()
    env.unwrapped.data.qpos[0] = 1.0
    return env


def with_another_field():
    env = gym.make("Ant-v5")
    env.unwrapped.data.cfrc_ext[1] += 1.0
    return env


def of_another_spec():
    env = cheetah()
    env.unwrapped.spec.kwargs["width"] = 480
    return env


def test_functions_envs_are_kept_only_as_the_first_of_their_kind():
    made = []
    server = BatchServer([lambda: made.append(1) or cheetah()] * 4, 0, [4])
    first, *others = server.envs
    assert others == [None] * 3
    again = server.made(2)
    assert KnownTask(first).has(again)
    assert again.spec == first.spec
    assert again is not first
    assert len(made) == 4
    server.close()


@pytest.mark.parametrize(
    "used", [held, its_data_is_held, reset, moved, with_another_field, of_another_spec]
)
def test_envs_of_functions_are_kept_if_they_may_be_in_use(used):
    HELD.clear()
    unused = functools.partial(gym.make, used().spec.id)
    server = BatchServer([unused, used, unused], 0, [3])
    assert [env is None for env in server.envs] == [False, False, True]
    assert len(set(map(id, server._found))) == 1
    server.close()
