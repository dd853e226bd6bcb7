"""Access to single envs that are simulated together: attributes, methods, rendering."""

import contextlib
import functools
import types

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.envs.mujoco import mujoco_rendering
from gymnasium.vector import SyncVectorEnv
from mujoco_in_tests import (
    CHEETAH,
    IDS,
    MODES,
    QUICK,
    compare,
    drawn_actions,
    each,
    identical,
    one_by_one,
    together,
)

import pysampler
from pysampler.errors import EnvError

WORKERS = pytest.mark.parametrize(("workers", "groups"), [(0, 2), (2, 2)])


@contextlib.contextmanager
def stepped(env_id=CHEETAH, count=4, arguments=None, steps=5, *, functions=False, **options):
    """Yield envs simulated together and gymnasium's own, both after some steps."""
    theirs = one_by_one(env_id, count, arguments)
    if functions:
        ours = pysampler.VectorEnv(theirs.env_fns, **options)
    else:
        ours = together(env_id, count, arguments, **options)
    identical(ours.reset(seed=2), theirs.reset(seed=2))
    compare(ours, theirs, drawn_actions(theirs.action_space, 3, steps))
    yield ours, theirs
    compare(ours, theirs, drawn_actions(theirs.action_space, 4, 5))
    ours.close()
    theirs.close()


ATTRIBUTES = [
    *("_elapsed_steps", "np_random_seed", "dt", "frame_skip", "metadata", "render_mode"),
    *("_reset_noise_scale", "init_qpos", "init_qvel", "spec", "has_reset"),
]


@WORKERS
def test_attributes_equal_single_envs(workers, groups):
    with stepped(num_workers=workers, groups=groups) as (ours, theirs):
        for name in ATTRIBUTES:
            identical(ours.get_attr(name), theirs.get_attr(name), name)
        generators = ours.np_random
        theirs_too = theirs.get_attr("np_random")
        for one, other in zip(generators, theirs_too, strict=True):
            assert one.bit_generator.state == other.bit_generator.state
        assert ours.np_random_seed == (2, 3, 4, 5)


@pytest.mark.parametrize("env_id", each(IDS))
def test_methods_see_the_state_of_each_env(env_id):
    """Methods that read the state and those that read the last step."""
    names = ["state_vector", "_get_obs", "_get_reset_info"]
    names += [name for name in ("is_healthy", "contact_cost") if offers(env_id, name)]
    with stepped(env_id, arguments={"max_episode_steps": 4}) as (ours, theirs):
        for name in names:
            identical(ours.call(name), theirs.call(name), name)
        assert len({row.tobytes() for row in ours.call("state_vector")}) == 4
        identical(
            ours.apply(lambda env: (env.unwrapped.data.time, env.unwrapped.data.ctrl.copy())),
            tuple((e.unwrapped.data.time, e.unwrapped.data.ctrl.copy()) for e in theirs.envs),
        )


@functools.cache
def offers(env_id, name):
    return hasattr(type(gym.make(env_id).unwrapped), name)


@WORKERS
def test_set_state_changes_the_env(workers, groups):
    with stepped("Ant-v5", num_workers=workers, groups=groups) as (ours, theirs):
        model = theirs.envs[0].unwrapped.model
        qpos, qvel = np.linspace(0.1, 0.9, model.nq), np.linspace(-1, 1, model.nv)
        for envs in (ours, theirs):
            envs.call("set_state", qpos, qvel)


def push(env, force):
    """Apply a lasting force and change the velocity."""
    env.unwrapped.data.xfrc_applied[1] = force
    env.unwrapped.data.qvel[0] += 0.25
    return env.unwrapped.data.qvel[0]


@WORKERS
def test_changes_of_the_simulation_persist(workers, groups):
    with stepped(num_workers=workers, groups=groups) as (ours, theirs):
        force = np.array([40.0, 0, 30, 0, 5, 0])
        seen = ours.apply(push, force, envs=[3, 0])
        identical(seen, tuple(push(theirs.envs[i], force) for i in (3, 0)))


@pytest.mark.parametrize("env_id", QUICK)
def test_envs_that_functions_made_are_made_again(env_id):
    """Only the first env of a worker stays beside the simulations."""
    with stepped(env_id, 5, functions=True, num_workers=1) as (ours, theirs):
        assert "native" in repr(ours)
        for name in ATTRIBUTES:
            identical(ours.get_attr(name), theirs.get_attr(name), name)
        force = np.array([4.0, 0, 3, 0, 5, 0])
        seen = ours.apply(push, force, envs=[1, 3])
        identical(seen, tuple(push(theirs.envs[i], force) for i in (1, 3)))


@pytest.mark.parametrize("kwargs", [{}, {"default_camera_config": {"distance": 9.0}}], ids=str)
@pytest.mark.parametrize("env_id", ["InvertedPendulum-v5", "InvertedDoublePendulum-v5"])
def test_pendulums_that_are_made_again_have_their_camera(env_id, kwargs):
    """They tell EzPickle their noise as the third argument, which is the camera."""

    def camera(env):
        return env.unwrapped.mujoco_renderer.default_cam_config

    make = functools.partial(gym.make, env_id, render_mode="rgb_array", **kwargs)
    with pysampler.VectorEnv([make] * 3, num_workers=1) as envs:
        assert envs.stats().native
        assert [*map(str, envs.apply(camera))] == [str(camera(make()))] * 3


@pytest.mark.parametrize(
    ("env_id", "name"),
    [
        ("InvertedPendulum-v5", "reset_noise_scale"),
        ("InvertedDoublePendulum-v5", "reset_noise_scale"),
        ("InvertedDoublePendulum-v5", "healthy_reward"),
    ],
)
def test_pendulums_of_functions_are_native_with_their_arguments(env_id, name):
    make = functools.partial(gym.make, env_id, **{name: 0.5})
    with pysampler.VectorEnv([make] * 3, num_workers=1) as envs:
        assert envs.stats().native
        assert envs.get_attr(f"_{name}") == (0.5,) * 3


@WORKERS
def test_apply_may_reset_and_step_one_env(workers, groups):
    """``apply`` may reset and step its env."""

    def restart(env):
        env.reset(seed=77)
        env.step(np.ones(6, np.float32))
        return env.step(np.ones(6, np.float32))[0]

    with stepped(num_workers=workers, groups=groups) as (ours, theirs):
        identical(ours.apply(restart, envs=[1]), (restart(theirs.envs[1]),))
        assert ours.get_attr("_elapsed_steps") == (5, 2, 5, 5)
        assert ours.np_random_seed == (2, 77, 4, 5)


@WORKERS
def test_generators_can_be_set(workers, groups):
    with stepped(num_workers=workers, groups=groups) as (ours, theirs):
        for envs in (ours, theirs):
            envs.set_attr("np_random", [np.random.Generator(np.random.PCG64(i)) for i in range(4)])
        identical(ours.reset(), theirs.reset())
        for envs in (ours, theirs):
            envs.set_attr(
                "np_random", [np.random.Generator(np.random.MT19937(i)) for i in range(4)]
            )
        identical(ours.reset(), theirs.reset())
        # In this process the program may hold on to the envs, which stay apart from then on.
        error = "cannot get state: the generator is MT19937" if workers else "has no methods"
        with pytest.raises(EnvError, match=error):
            ours.get_state()


class Halving(np.random.Generator):
    """A generator of a user's own."""

    def uniform(self, *args, **kwargs):
        return super().uniform(*args, **kwargs) / 2


GENERATORS = {
    "of a class of its own": lambda: [Halving(np.random.PCG64(i)) for i in range(4)],
    "old": lambda: [np.random.RandomState(i) for i in range(4)],
    "shared": lambda: [np.random.default_rng(3)] * 4,
}


@pytest.mark.parametrize("make", GENERATORS.values(), ids=GENERATORS)
def test_envs_whose_generators_a_block_cannot_use_leave_it(make):
    with stepped() as (ours, theirs):
        for envs in (ours, theirs):
            envs.set_attr("np_random", make())
        identical(ours.reset(), theirs.reset())
        assert "set_attr('np_random') was called" in ours.describe()


@pytest.mark.parametrize(("env_id", "count"), [(CHEETAH, 2), ("CartPole-v1", 16)])
def test_functions_may_give_envs_such_generators(env_id, count):
    def made():
        env = gym.make(env_id)
        env.unwrapped.np_random = Halving(np.random.PCG64(3))
        return env

    theirs = SyncVectorEnv([made] * count)
    with pysampler.VectorEnv([made] * count, num_workers=1) as ours, contextlib.closing(theirs):
        identical(ours.reset(), theirs.reset())
        assert "np_random of env" in ours.describe()


def test_attributes_before_the_first_reset_equal_single_envs():
    ours, theirs = together(CHEETAH), one_by_one(CHEETAH)
    for name in ("_elapsed_steps", "_has_reset"):
        assert ours.get_attr(name) == theirs.get_attr(name)
    seeds = ours.np_random_seed
    assert len(set(seeds)) == 3
    assert ours.np_random_seed == seeds
    ours.close()
    theirs.close()


# -- attributes -----------------------------------------------------------------------------------


@WORKERS
def test_users_attributes_can_be_set_per_env(workers, groups):
    with stepped(num_workers=workers, groups=groups) as (ours, theirs):
        for envs in (ours, theirs):
            envs.set_attr("label", ["a", "b", "c", "d"])
        assert ours.get_attr("label") == theirs.get_attr("label") == ("a", "b", "c", "d")
        for envs in (ours, theirs):
            envs.set_attr("label", 7)
            envs.set_attr("other", (1, 2, 3, 4))
        assert ours.get_attr("label") == theirs.get_attr("label") == (7,) * 4
        assert ours.get_attr("other") == theirs.get_attr("other") == (1, 2, 3, 4)
        ours.apply(lambda env: vars(env.unwrapped).setdefault("count", []).append(1), envs=[1, 2])
        ours.apply(lambda env: vars(env.unwrapped).setdefault("count", []).append(1), envs=[1])
        assert ours.apply(lambda env: len(getattr(env.unwrapped, "count", []))) == (0, 2, 1, 0)


@WORKERS
def test_an_attribute_set_on_one_env_is_only_on_it(workers, groups):
    with stepped(num_workers=workers, groups=groups) as (ours, _):
        ours.apply(lambda env: setattr(env.unwrapped, "mine", 5), envs=[2])
        has = ours.apply(lambda env: hasattr(env.unwrapped, "mine"))
        assert has == (False, False, True, False)


@pytest.mark.parametrize("workers", [0, 2])
def test_users_attributes_can_be_deleted(workers):
    with stepped(num_workers=workers) as (ours, _):
        ours.set_attr("label", "a")
        ours.apply(lambda env: vars(env).pop("label"), envs=[1])
        assert ours.apply(lambda env: "label" in vars(env)) == (True, False, True, True)


CHANGES = {
    "a weight": lambda env: setattr(env.unwrapped, "_ctrl_cost_weight", 0.5),
    "how long a step is": lambda env: setattr(env.unwrapped, "frame_skip", 2),
    "the time limit": lambda env: env.set_wrapper_attr("_max_episode_steps", 7),
    "a mass": lambda env: env.unwrapped.model.body_mass.__imul__(2.0).sum(),
    "gravity": lambda env: env.unwrapped.model.opt.gravity.__setitem__(2, -1.0),
    "where episodes begin": lambda env: setattr(env.unwrapped, "init_qpos", np.full(9, 0.25)),
    "the same in place": lambda env: env.unwrapped.init_qpos.__iadd__(0.5).sum(),
    "a method": lambda env: setattr(
        env.unwrapped, "_get_rew", lambda velocity, action: (velocity, {})
    ),
}


@WORKERS
@pytest.mark.parametrize("what", CHANGES)
@pytest.mark.parametrize("envs", [[1], [0, 3]])
def test_a_change_of_dynamics_acts_as_on_single_envs(what, envs, workers, groups):
    """A call ends the batch: its envs step one by one, until a reset finds some unchanged."""
    change = CHANGES[what]
    with stepped(num_workers=workers, groups=groups) as (ours, theirs):
        assert "in Python" not in ours.describe()
        ours.apply(change, envs=envs)
        for env in envs:
            change(theirs.envs[env])
        compare(ours, theirs, drawn_actions(theirs.action_space, 6, 9))
        assert "<lambda>() was called" in ours.describe()
        identical(ours.reset(seed=5), theirs.reset(seed=5))
        compare(ours, theirs, drawn_actions(theirs.action_space, 6, 9))
        if workers:
            assert "native" in ours.describe()
            assert "a call has changed it" in ours.describe()


@pytest.mark.parametrize("mode", MODES)
def test_envs_continue_where_their_batch_ended(mode):
    """Ended episodes, options, and the observations of envs that a reset leaves out."""
    options = {"max_episode_steps": 4}
    ours = together(CHEETAH, 4, options, num_workers=2, groups=2, autoreset_mode=mode)
    theirs = one_by_one(CHEETAH, 4, options, mode)
    identical(ours.reset(seed=2), theirs.reset(seed=2))
    rows = list(drawn_actions(theirs.action_space, 3, 14))
    compare(ours, theirs, rows[:2])
    mask = {"reset_mask": np.array([True, False, True, False])}
    identical(ours.reset(options=dict(mask)), theirs.reset(options=dict(mask)))
    compare(ours, theirs, rows[2:4])  # two episodes have ended
    for envs in (ours, theirs):
        envs.set_attr("_ctrl_cost_weight", 0.5)
    assert "in Python" in ours.describe()
    mask = {"reset_mask": np.array([True, True, False, False])}
    identical(ours.reset(options=dict(mask)), theirs.reset(options=dict(mask)))
    compare(ours, theirs, rows[4:])
    ours.close()
    theirs.close()


def test_the_options_of_running_episodes_outlast_their_batch():
    ours = together("HalfCheetahDir-v5", 2, num_workers=1)
    ours.set_options(None, {"task": {"direction": -1.0}})
    ours.reset(seed=1)
    zeros = np.zeros((2, 6), np.float32)
    assert ours.step(zeros)[4]["options_version"].tolist() == [1, 1]
    ours.set_options([1], {"task": {"direction": 1.0}})
    ours.set_attr("_ctrl_cost_weight", 0.5)
    assert ours.step(zeros)[4]["options_version"].tolist() == [1, 1]
    assert ours.reset()[1]["options_version"].tolist() == [1, 2]
    ours.close()


@WORKERS
def test_the_parameter_of_a_task_can_be_set(workers, groups):
    """The task's parameter is an attribute of each env, as in ordinary envs."""
    options = {"num_workers": workers, "groups": groups}
    with stepped("HalfCheetahDir-v5", **options) as (ours, theirs):
        for envs in (ours, theirs):
            envs.set_attr("direction", [-1.0, 1.0, 0.5, -1.0])
        assert ours.get_attr("direction") == (-1.0, 1.0, 0.5, -1.0)
        assert ours.get_attr("task") == theirs.get_attr("task") == (None,) * 4
        tasks = {"options": {"task": {"direction": -1.0}}}
        identical(ours.reset(**tasks), theirs.reset(**tasks))
        assert ours.get_attr("task") == theirs.get_attr("task")
        for envs in (ours, theirs):
            envs.call("reset_task", {"direction": 1.0})


@pytest.mark.parametrize("env_id", ["Reacher-v5", "Pusher-v5"])
def test_attributes_drawn_per_episode_equal_single_envs(env_id):
    with stepped(env_id) as (ours, theirs):
        names = {"Reacher-v5": ["goal"], "Pusher-v5": ["goal_pos", "cylinder_pos"]}[env_id]
        for name in names:
            identical(ours.get_attr(name), theirs.get_attr(name))
        ours.apply(lambda env: env.reset(seed=3)[1], envs=[1])
        theirs.envs[1].reset(seed=3)
        for name in names:
            identical(ours.get_attr(name), theirs.get_attr(name))


def test_effects_of_a_call_that_raises_are_kept():
    """As with an ordinary env."""

    def fail(env):
        env.step(np.ones(6))
        env.unwrapped.model.opt.gravity[2] = -1.0
        env.unwrapped.frame_skip = 1
        raise ZeroDivisionError

    with stepped() as (ours, theirs):
        with pytest.raises(ZeroDivisionError):
            ours.apply(fail, envs=[2])
        with contextlib.suppress(ZeroDivisionError):
            fail(theirs.envs[2])
        assert ours.get_attr("frame_skip") == (5, 5, 1, 5)


@pytest.mark.parametrize("workers", [0, 2])
def test_task_options_are_ignored_by_envs_without_tasks(workers):
    """gymnasium's envs ignore options."""
    with stepped(num_workers=workers) as (ours, theirs):
        options = {"options": {"task": 3}}
        identical(ours.reset(**options), theirs.reset(**options))
        identical(ours.call("state_vector"), theirs.call("state_vector"))


@pytest.mark.parametrize("workers", [0, 2])
def test_errors_in_calls_name_their_env(workers):
    with stepped(num_workers=workers) as (ours, _):
        with pytest.raises(AttributeError, match="no_such") as caught:
            ours.get_attr("no_such")
        assert caught.value.env == 0
        with pytest.raises(EnvError, match="env 2 .*raised ZeroDivisionError"):
            ours.apply(lambda env: 1 / 0, envs=[2])


# -- rendering ------------------------------------------------------------------------------------


class Viewer:
    """Needs no GL library. A picture's bytes are the time, qpos, the first body's position, and
    the camera's target: the bodies' median position at construction, as in gymnasium."""

    def __init__(self, model, data, *_):
        self.data = data
        self.cam = types.SimpleNamespace(lookat=np.median(data.geom_xpos, axis=0))

    def render(self, render_mode, camera_id):
        assert render_mode == "rgb_array"
        data = self.data
        numbers = np.concatenate(([data.time], data.qpos, data.xpos[1], self.cam.lookat))
        return np.repeat(numbers.view(np.uint8)[None, :, None], 3, axis=2)

    def close(self):
        pass


def seen_in(pictures):
    return [picture[0, :, 0].copy().view(np.float64) for picture in pictures]


@pytest.fixture
def without_gl(monkeypatch):
    monkeypatch.setattr(mujoco_rendering, "OffScreenViewer", Viewer)


@pytest.mark.parametrize("env_id", each(IDS))
def test_render_after_a_reset_equals_single_envs(env_id, without_gl):
    mode = {"render_mode": "rgb_array"}
    with stepped(env_id, arguments=mode) as (ours, theirs):
        identical(ours.reset(seed=4), theirs.reset(seed=4))
        for _ in range(2):
            identical(seen_in(ours.render()), seen_in(theirs.render()))
        assert len({picture.tobytes() for picture in ours.render()}) == 4


@pytest.mark.parametrize("workers", [0, 2])
def test_render_after_steps_is_close_to_single_envs(workers, without_gl):
    """Forked workers inherit the fake renderer."""
    arguments, options = {"render_mode": "rgb_array"}, {"num_workers": workers, "context": "fork"}
    with stepped(arguments=arguments, **options) as (ours, theirs):
        for actions in drawn_actions(theirs.action_space, 9, 3):
            pictures, expected = seen_in(ours.render()), seen_in(theirs.render())
            # In gymnasium, body positions lag the state by a substep.
            identical(*([one[:-6] for one in some] for some in (pictures, expected)))
            np.testing.assert_allclose(pictures, expected, atol=0.2)
            compare(ours, theirs, [actions])


def test_render_after_each_step_gives_distinct_frames(without_gl):
    """Rendering between steps, as for a video, changes nothing else."""
    with stepped(arguments={"render_mode": "rgb_array"}) as (ours, theirs):
        seen = set()
        for actions in drawn_actions(theirs.action_space, 9, 6):
            compare(ours, theirs, [actions])
            seen.update(picture.tobytes() for picture in ours.render())
        assert len(seen) == 24
