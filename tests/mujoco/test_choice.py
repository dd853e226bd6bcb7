"""The choice between simulating envs together and running ordinary envs."""

import functools

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.envs.mujoco.half_cheetah_v5 import HalfCheetahEnv
from mujoco_in_tests import CHEETAH, IDS, META_IDS, each, identical, is_native, made

import pysampler


@pytest.mark.parametrize("env_id", each([*IDS, *META_IDS]))
@pytest.mark.parametrize("native", ["auto", True])
def test_gymnasiums_envs_are_native(env_id, native):
    assert is_native(made(env_id, native))


def test_native_is_the_default():
    envs = pysampler.make_vec(CHEETAH, 2, vector_kwargs={"num_workers": 0})
    assert is_native(envs)


class UsersCheetah(HalfCheetahEnv):
    """A user's class, which may override anything."""


class Elsewhere(HalfCheetahEnv):
    pass


class Unknown(gym.Wrapper):
    """A user's wrapper."""


Elsewhere.__name__ = Elsewhere.__qualname__ = "HalfCheetahEnv"  # in another module

# Envs that cannot be native, and the error with native=True.
ORDINARY = {
    "another env": (
        lambda native: made("FrozenLake-v1", native),
        "FrozenLake-v1 has no native counterpart",
    ),
    "an older version": (
        lambda native: made("HalfCheetah-v4", native),
        "HalfCheetah-v4 has no native counterpart",
    ),
    "a wrapper of the spec": (
        lambda native: made(gym.wrappers.StickyAction(gym.make(CHEETAH), 0.1).spec, native),
        "the wrapper StickyAction is Python code for one env",
    ),
    "wrappers": (
        lambda native: made(native=native, wrappers=[Unknown]),
        "the wrapper Unknown is Python code for one env",
    ),
    "a subclass": (
        lambda native: made(UsersCheetah, native),
        "UsersCheetah has no native counterpart",
    ),
    "a class of the same name": (
        lambda native: made(Elsewhere, native),
        "has no native counterpart",
    ),
    "a function of another env": (
        lambda native: made(lambda: gym.make("FrozenLake-v1"), native),
        "FrozenLake-v1 has no native counterpart",
    ),
    "a function that may return an env of the program": (
        lambda native: made(lambda: gym.make(CHEETAH), native),
        "the program may hold on to envs in its own process",
    ),
    "different spaces": (
        lambda native: made(native=native, observation_mode="different"),
        "observation_mode is given",
    ),
}


@pytest.mark.filterwarnings("ignore:.*out of date")
@pytest.mark.parametrize("what", [name for name in ORDINARY if name != "a worker of the user's"])
def test_other_envs_are_ordinary_without_a_warning(what):
    make, _ = ORDINARY[what]
    assert not is_native(make(native="auto"))
    assert not is_native(make(native=False))


@pytest.mark.filterwarnings("ignore:.*out of date")
@pytest.mark.parametrize("what", ORDINARY)
def test_native_true_raises_with_the_reason(what):
    make, why = ORDINARY[what]
    with pytest.raises(ValueError, match=f"cannot make vector env: native=True, but .*{why}"):
        make(native=True)


def test_native_false_makes_ordinary_envs():
    assert not is_native(made(native=False))


def test_native_accepts_numpy_bools():
    assert is_native(made(native=np.True_))
    assert not is_native(made(native=np.False_))


def test_unpicklable_arguments_work_without_workers():
    """Without workers nothing is pickled."""

    def make(arguments):
        return HalfCheetahEnv(ctrl_cost_weight=arguments.send(None))

    def weights():
        while True:
            yield 0.25

    pysampler.make_vec(make, 2, arguments=weights(), num_workers=0).close()


@pytest.mark.parametrize("native", ["yes", 2, 0, 1, None, "True"])
def test_native_refuses_other_values(native):
    with pytest.raises(ValueError, match="native .*, expected 'auto', True or False"):
        made(native=native)


@pytest.mark.parametrize("options", [{"num_workers": 0}, {"context": "threads"}, {}])
def test_functions_of_users_make_native_envs_only_where_the_program_cannot_hold_them(options):
    functions = [functools.partial(gym.make, CHEETAH)] * 2
    with pysampler.VectorEnv(functions, **options) as envs:
        assert envs.stats().native == (not options)
        assert ("the program may hold on to envs" in envs.describe()) == bool(options)


def test_functions_of_different_envs_step_in_batches_of_alike_ones():
    first, other = made(), made(arguments={"ctrl_cost_weight": 3.0})
    functions = [*first.env_fns, *other.env_fns, functools.partial(gym.make, "Hopper-v5")]
    for mixed in (functions[:2], functions[:3], functions[1:4]):
        envs = pysampler.VectorEnv(mixed, num_workers=0)
        theirs = gym.vector.SyncVectorEnv(mixed)
        assert envs.stats().native
        identical(envs.reset(seed=1), theirs.reset(seed=1))
        actions = np.ones((len(mixed), 6))
        for _ in range(3):
            identical(envs.step(actions), theirs.step(actions))
        envs.close()
        theirs.close()
    with pytest.raises(RuntimeError, match="spaces are not equivalent"):
        pysampler.VectorEnv(functions, num_workers=0)


@pytest.mark.parametrize(
    ("env_id", "name", "values"),
    [
        (CHEETAH, "forward_reward_weight", np.array([1, 3], np.float32)),
        ("Ant-v5", "healthy_z_range", [[0.2, 1.0], [0.74, 1.0]]),
    ],
    ids=["numbers of NumPy", "lists"],
)
def test_envs_of_other_arguments_step_with_their_own(env_id, name, values):
    functions = [functools.partial(gym.make, env_id, **{name: value}) for value in values]
    envs = pysampler.VectorEnv(functions, num_workers=0)
    theirs = gym.vector.SyncVectorEnv(functions)
    identical(envs.reset(seed=1), theirs.reset(seed=1))
    for _ in range(20):
        actions = np.ones(envs.action_space.shape)
        identical(envs.step(actions), theirs.step(actions))
    envs.close()
    theirs.close()


def test_envs_that_the_program_holds_stay_in_use():
    held = [gym.make(CHEETAH) for _ in range(2)]
    envs = pysampler.VectorEnv(
        [functools.partial(gym.make, CHEETAH), *(lambda env=one: env for one in held)],
        num_workers=0,
    )
    envs.reset(seed=1)
    held[1].unwrapped._ctrl_cost_weight = 100.0
    *_, infos = envs.step(np.ones((3, 6)))
    assert infos["reward_ctrl"].round(1).tolist() == [-0.6, -0.6, -600]
    assert held[0].unwrapped.data.time > 0
    envs.close()


def test_an_env_that_may_be_stepped_before_a_reset_is_ordinary():
    with pysampler.VectorEnv([HalfCheetahEnv] * 2, num_workers=1) as envs:
        assert "it has no OrderEnforcing" in envs.describe()
        action = np.ones((2, 6), np.float32)
        theirs = gym.vector.SyncVectorEnv([HalfCheetahEnv] * 2)
        identical(envs.step(action), theirs.step(action))
        theirs.close()


def test_render_mode_human_makes_ordinary_envs(monkeypatch):
    """Each step draws into a window."""
    drawn = []
    monkeypatch.setattr(HalfCheetahEnv, "render", lambda env: drawn.append(env))
    human = {"render_mode": "human"}
    envs = made(arguments=human)
    assert "native" not in repr(envs)
    envs.reset()
    envs.step(np.zeros((2, 6)))
    assert len(drawn) == 4
    envs.close()
    with pytest.raises(ValueError, match="native=True, but .*human"):
        made(native=True, arguments=human)


def test_render_mode_rgb_array_stays_native():
    assert is_native(made(arguments={"render_mode": "rgb_array"}))
