"""Errors of envs simulated together name their env, as with ordinary envs."""

import contextlib

import mujoco
import numpy as np
import pytest
from gymnasium.error import ResetNeeded
from mujoco_in_tests import (
    CHEETAH,
    DISABLED,
    compare,
    drawn_actions,
    identical,
    ordinary,
    together,
)

from pysampler.envs.mujoco import Task, draw
from pysampler.errors import EnvError


@pytest.mark.parametrize("workers", [0, 2])
def test_a_step_before_a_reset_raises_reset_needed(workers):
    ours, theirs = (make(CHEETAH, 3, num_workers=workers) for make in (together, ordinary))
    actions = np.zeros((3, 6), np.float32)
    texts = []
    for envs in (ours, theirs):
        with pytest.raises(ResetNeeded) as caught:
            envs.step(actions)
        assert isinstance(caught.value, EnvError)
        texts.append((caught.value.env, str(caught.value).partition(" raised ")[2]))
    assert texts[0] == texts[1]
    identical(ours.reset(seed=1), theirs.reset(seed=1))
    compare(ours, theirs, [actions] * 2)
    ours.close()
    theirs.close()


def test_a_step_names_the_env_that_was_not_reset():
    ours, theirs = (make(CHEETAH, 3, autoreset_mode=DISABLED) for make in (together, ordinary))
    for envs in (ours, theirs):
        envs.reset(seed=1, options={"reset_mask": np.array([True, False, True])})
        with pytest.raises(ResetNeeded) as caught:
            envs.step(np.zeros((3, 6), np.float32))
        assert caught.value.env == 1
    resets = [envs.reset(options={"reset_mask": np.arange(3) == 1}) for envs in (ours, theirs)]
    same_envs = [0, 2]  # env 1 was reset without a seed
    identical(resets[0][0][same_envs], resets[1][0][same_envs])
    got = [envs.step(np.ones((3, 6), np.float32)) for envs in (ours, theirs)]
    identical(got[0][0][same_envs], got[1][0][same_envs])
    ours.close()
    theirs.close()


@pytest.mark.parametrize("make", [together, ordinary])
def test_a_wrong_task_names_its_env_and_the_others_are_reset(make):
    envs = make("HalfCheetahDir-v5", 3, num_workers=1)
    envs.reset(seed=1)
    envs.set_options([1], {"task": {"wrong": 1}})
    with pytest.raises(EnvError, match="cannot set task of HalfCheetahDir") as caught:
        envs.reset(seed=1)
    assert caught.value.env == 1
    envs.set_options([1], None)
    envs.reset(seed=[None, 2, None])
    assert envs.get_attr("np_random_seed") == (1, 2, 3)
    envs.close()


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("wrong", [np.zeros(5), np.zeros((1, 6)), 1.0, "abcdef"], ids=str)
def test_a_wrong_action_shape_names_its_env(wrong, workers):
    """The other envs have stepped, and all continue."""
    made = (make(CHEETAH, 3, num_workers=workers, groups=2) for make in (together, ordinary))
    ours, theirs = made
    identical(ours.reset(seed=1), theirs.reset(seed=1))
    errors = []
    for envs in (ours, theirs):
        with pytest.raises(EnvError) as caught:
            envs.step([np.ones(6), wrong, np.ones(6)])
        errors.append(caught.value)
    assert [error.env for error in errors] == [1, 1]
    assert "env 1" in str(errors[0])
    assert isinstance(errors[0], ValueError) == isinstance(errors[1], ValueError)
    compare(ours, theirs, drawn_actions(theirs.action_space, 1, 5))
    ours.close()
    theirs.close()


def test_a_wrong_batch_shape_is_refused():
    envs = together(CHEETAH, 3)
    envs.reset()
    with pytest.raises(ValueError, match=r"shape \(3, 5\), expected \(3, 6\)"):
        envs.step(np.zeros((3, 5)))
    with pytest.raises(ValueError, match="expected 3|expected \\(3, 6\\)"):
        envs.step([np.zeros(6)] * 2)
    envs.close()


@pytest.mark.parametrize("workers", [0, 2])
def test_a_bad_seed_names_its_env(workers):
    ours, theirs = (make(CHEETAH, 3, num_workers=workers) for make in (together, ordinary))
    for envs in (ours, theirs):
        with pytest.raises(EnvError, match="Seed must be greater or equal to zero") as caught:
            envs.reset(seed=[1, -2, 3])
        assert caught.value.env == 1
    identical(ours.reset(seed=1), theirs.reset(seed=1))
    ours.close()
    theirs.close()


# -- errors of MuJoCo -----------------------------------------------------------------------------


def falling(memory):
    """A model of falling balls: MuJoCo needs more memory when they touch the floor."""
    balls = "".join(
        f'''<body pos="{i} 0 0.3"><joint name="z{i}" type="slide" axis="0 0 1"/>
        <geom size="0.1"/></body>'''
        for i in range(3)
    )
    return mujoco.MjModel.from_xml_string(f"""<mujoco><size memory="{memory}"/>
        <option timestep="0.01"/><worldbody><geom type="plane" size="5 5 1"/>{balls}</worldbody>
        <actuator><motor joint="z0" ctrlrange="-1 1"/></actuator></mujoco>""")


def fails_when_it_touches_the_floor(memory):
    data = mujoco.MjData(model := falling(memory))
    try:
        mujoco.mj_forward(model, data)
        mujoco.mj_step(model, data, nstep=10)
    except mujoco.FatalError:
        return False
    try:
        mujoco.mj_step(model, data, nstep=40)
    except mujoco.FatalError:
        return True
    return False


class Falling(Task):
    def __init__(self, memory):
        super().__init__(falling(memory))

    def observe(self, d):
        return np.concatenate((d.qpos, d.qvel), axis=1)

    def reward(self, d, before, action):
        return d.qpos[:, 0].copy()

    def reset(self, rngs, ids):
        heights = draw(rngs, lambda rng: np.full(3, rng.uniform(0, 1)))
        return heights, np.zeros((len(ids), 3))


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("groups", [1, 2])
def test_a_failed_simulation_names_its_env(groups, workers):
    """The other envs have stepped."""
    memory = next(filter(fails_when_it_touches_the_floor, range(1000, 20000, 50)))
    options = {"num_workers": workers, "groups": groups, "autoreset_mode": DISABLED}
    failed = []
    pair = [make(Falling, 5, {"memory": memory}, **options) for make in (together, ordinary)]
    with contextlib.closing(pair[0]), contextlib.closing(pair[1]):
        identical(*(envs.reset(seed=3) for envs in pair))
        for step in range(90):
            got = []
            for envs in pair:
                try:
                    got.append(envs.step(np.zeros((5, 1))))
                except EnvError as error:
                    got.append(error)
            assert type(got[0]) is type(got[1])
            if isinstance(got[0], EnvError):
                assert [error.env for error in got] == [got[0].env] * 2
                assert all(isinstance(error, mujoco.FatalError) for error in got)
                assert str(got[0]).partition("stepping")[2] == str(got[1]).partition("stepping")[2]
                failed.append(got[0].env)
                mask = np.arange(5) == got[0].env
                identical(*(envs.reset(options={"reset_mask": mask}) for envs in pair))
            else:
                identical(*got, f"step {step}")
    assert set(failed) == set(range(5))
