"""A batch stands for envs that nobody else can see or change; any other env steps in Python."""

import functools
import os
import signal
import time
from pathlib import Path
from typing import ClassVar

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces, wrappers
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from made_up import identical
from told_envs import SmallEnv
from vectors import begun, even_for_few

import pysampler

pytestmark = pytest.mark.filterwarnings("ignore:.*precision lowered by casting")
CARTPOLES = 16


class Steps(SmallEnv):
    """Counts its steps in its observations, to which it adds its actions."""

    action_space = spaces.Box(-1, 1, (2,), np.float64)

    def act(self, action):
        self.at = self.steps + 1 + action

    def observe(self):
        return self.at if self.steps else np.zeros(2)

    def reward(self, action):
        return float(self.steps)

    def ends(self, action):
        return self.steps == 4


def compare(env_fns, change=None, steps=6, envs=None, **options):
    """Step both beside each other, before and after a change of each env of SyncVectorEnv's."""
    given = {"num_workers": 1, "worker_init": even_for_few, **options}
    theirs = SyncVectorEnv(env_fns)
    theirs.action_space.seed(1)
    with pysampler.VectorEnv(env_fns, **given) as ours:
        identical(ours.reset(seed=1), theirs.reset(seed=1), "reset")
        for at in range(2 * steps):
            if at == steps and change is not None:
                ours.apply(change, envs=envs)
                for i in range(len(env_fns)) if envs is None else envs:
                    change(theirs.envs[i])
            actions = theirs.action_space.sample()
            identical(ours.step(actions), theirs.step(actions), f"step {at}")
        described = ours.describe()
    theirs.close()
    return described


def within(low):
    """Return an env with actions in bounds that are all close to zero."""
    env = Steps()
    env.action_space = spaces.Box(-low, low, (2,), np.float64)
    return wrappers.ClipAction(env)


def test_clipped_actions_keep_to_the_bounds_of_their_own_env():
    assert spaces.Box(-1e-9, 1e-9, (2,)) == spaces.Box(-5e-9, 5e-9, (2,))
    bounds = np.array([1e-9, 5e-9] * 3)
    env_fns = [functools.partial(within, low) for low in bounds]
    compare(env_fns, lambda env: None)
    with begun(env_fns, num_workers=1, worker_init=even_for_few) as envs:
        observations = envs.step(np.ones((6, 2)))[0]
        assert (observations - 1)[:, 0] == pytest.approx(bounds, abs=1e-15)


@pytest.mark.parametrize("env_id", ["Pendulum-v1", "HalfCheetah-v5"])
def test_bounds_changed_in_place_clip_actions(env_id):
    if env_id == "HalfCheetah-v5":
        pytest.importorskip("mujoco")

    def narrow(env):
        env.env.action_space.high[:] = 0.25

    compare([lambda: wrappers.ClipAction(gym.make(env_id))] * 4, narrow, envs=[1, 2])


@pytest.mark.parametrize("numbers", [(0.5, np.float64(0.5)), (np.float64(0.5), 0.5)])
def test_parameters_of_wrappers_are_alike_only_in_type_and_bits(numbers):
    def make(epsilon):
        env = wrappers.DtypeObservation(Steps(), np.float32)
        return wrappers.NormalizeObservation(env, epsilon=epsilon)

    compare([functools.partial(make, numbers[i % 2]) for i in range(4)])


def test_steps_of_an_outer_time_limit_can_be_set():
    def make():
        return gym.wrappers.TimeLimit(gym.make("CartPole-v1", max_episode_steps=50), 20)

    def nearly_over(env):
        env._elapsed_steps = 18

    described = compare([make] * CARTPOLES, nearly_over, steps=3)
    assert "nearly_over() was called" in described


def test_methods_that_a_call_replaces_are_used():
    def replace(env):
        from gymnasium.envs.classic_control import CartPoleEnv

        step = CartPoleEnv.step

        @functools.wraps(step)
        def doubled(self, action):
            observation, *rest = step(self, action)
            return observation * 2, *rest

        CartPoleEnv.step = doubled
        return step

    env_fns = [functools.partial(gym.make, "CartPole-v1")] * (2 * CARTPOLES)
    with begun(env_fns, seed=1, num_workers=1, groups=2) as envs:
        envs.apply(replace, envs=[0])
        observations = envs.step(np.ones(2 * CARTPOLES, int))[0]
        assert "in Python" in envs.describe()
        assert "native" not in envs.describe()
        halves = [one.tolist() for one in envs.get_attr("state")]
        assert observations == pytest.approx(2 * np.array(halves, np.float32))


def test_methods_that_a_later_env_function_replaces_are_used():
    def last():
        from gymnasium.wrappers import ClipReward

        ClipReward.step = lambda self, action: (*self.env.step(action)[:1], 7.0, False, False, {})
        return wrappers.ClipReward(Steps(), -1.0, 1.0)

    env_fns = [lambda: wrappers.ClipReward(Steps(), -1.0, 1.0)] * 4
    with begun([*env_fns, last], num_workers=1, worker_init=even_for_few) as envs:
        assert envs.step(np.zeros((5, 2)))[1].tolist() == [7.0] * 5
        assert "ClipReward.step was replaced" in envs.describe()


class Rewards(Steps):
    def reward(self, action):
        return [0.0, 1.0, 0.0, -2.0, 0.0][self.steps]


@pytest.mark.parametrize(
    "function",
    [
        lambda r: 1 / r,
        lambda r: 1.0 - r / (r - r),
        lambda r: r.clip(0, 1),
        lambda r: r.astype("f8"),
    ],
)
def test_functions_of_rewards_get_numbers_of_python(function):
    """Which raise where an array would hold infinities, and have no methods of arrays."""
    env_fns = [lambda: wrappers.TransformReward(Rewards(), function)] * 4
    with (
        begun(env_fns, num_workers=1, worker_init=even_for_few) as envs,
        pytest.raises((ZeroDivisionError, AttributeError)),
    ):
        for _ in range(2):
            envs.step(np.zeros((4, 2)))


@pytest.mark.parametrize("function", [lambda r: -r, lambda r: np.divide(1, -r)])
def test_rewards_that_are_integers_have_no_sign_of_zero(function):
    pytest.importorskip("mujoco")

    def make():
        return wrappers.TransformReward(gym.make("InvertedPendulum-v5"), function)

    with np.errstate(divide="ignore"):
        described = compare([make] * 4, steps=12)
    assert "its rewards are of a type that wrappers may treat otherwise" in described


@pytest.mark.parametrize("env_id", ["InvertedPendulum-v5", "HalfCheetah-v5"])
def test_sums_of_rewards_have_the_type_of_the_rewards(env_id):
    pytest.importorskip("mujoco")
    env_fns = [lambda: wrappers.RecordEpisodeStatistics(gym.make(env_id))] * 4
    theirs = SyncVectorEnv(env_fns)
    with pysampler.VectorEnv(env_fns, num_workers=1) as ours:
        assert "native" in ours.describe()
        kinds = []
        for envs in (ours, theirs):
            envs.reset(seed=1)
            envs.step(np.zeros(theirs.action_space.shape, np.float32))
            kinds.append([type(one) for one in envs.get_attr("episode_returns")])
        assert kinds[0] == kinds[1]


class Reuses(Steps):
    """Returns the same array and the same info in each step."""

    def __init__(self):
        self.buffer, self.kept = np.zeros(2), {}

    def observe(self):
        self.buffer[:] = super().observe()
        return self.buffer

    def begins(self):
        return self.kept

    def info(self, action):
        return self.kept


@pytest.mark.parametrize("count", [2, 16])
def test_stacked_frames_of_an_env_that_reuses_its_array_are_all_the_last(count):
    compare([lambda: wrappers.FrameStackObservation(Reuses(), 3)] * count)


def test_statistics_in_an_info_that_an_env_reuses_stay_there():
    env_fns = [lambda: wrappers.RecordEpisodeStatistics(Reuses())] * 4
    theirs = SyncVectorEnv(env_fns)
    with pysampler.VectorEnv(env_fns, num_workers=1, worker_init=even_for_few) as ours:
        for envs in (ours, theirs):
            envs.reset()
            with pytest.raises(AssertionError):  # the key is there at the end of the next episode
                for _ in range(10):
                    envs.step(np.zeros((4, 2)))


class Counting(Steps):
    """Has the key of ``RecordEpisodeStatistics`` in its infos."""

    def info(self, action):
        return {"episode": self.steps}


def test_statistics_with_a_key_that_the_env_uses_raise():
    env_fns = [lambda: wrappers.RecordEpisodeStatistics(Counting())] * 4
    with (
        begun(env_fns, num_workers=1, worker_init=even_for_few) as envs,
        pytest.raises(AssertionError),
    ):
        for _ in range(4):
            envs.step(np.zeros((4, 2)))


class Scaling(Steps):
    """Changes an array that a wrapper's function reads."""

    scale = np.ones(2)

    def act(self, action):
        super().act(action)
        self.scale[:] += 1


def test_functions_see_arrays_as_each_env_has_left_them():
    def make():
        scale = Scaling.scale
        return wrappers.TransformObservation(Scaling(), lambda obs: obs * scale, None)

    with (
        pysampler.VectorEnv([make] * 4, num_workers=1, worker_init=even_for_few) as ours,
        pysampler.VectorEnv([make] * 4, num_workers=1, native=False) as theirs,
    ):
        identical(ours.reset(seed=1), theirs.reset(seed=1))
        actions = np.ones((4, 2))
        identical(ours.step(actions), theirs.step(actions))


class Underscores(Steps):
    """Gives an info that is pickled, whose key begins like the mask of another one."""

    def info(self, action):
        return {"a": 1} | ({"__a": [object] * self.steps} if self.steps > 2 else {})


def test_a_key_with_underscores_leaves_the_masks_of_other_keys():
    compare([Underscores] * 3)


def test_threads_draw_pictures_one_at_a_time():
    pytest.importorskip("pygame")
    drawing = []

    class Draws(Steps):
        metadata: ClassVar = {"render_modes": ["rgb_array"]}
        render_mode = "rgb_array"

        def render(self):

            drawing.append(1)
            try:
                time.sleep(0.01)  # lets another thread draw, if it may
                return np.full((2, 2, 3), len(drawing), np.uint8)
            finally:
                drawing.pop()

    import pygame  # noqa: F401

    with begun([Draws] * 8, context="threads", num_workers=4) as envs:
        assert {picture.max() for picture in envs.render()} == {1}


# -- who may hold an env -------------------------------------------------------------------------


@pytest.fixture(params=["threads", "here", "main_envs"])
def held(request):
    """Return options of vector envs whose envs the program may hold."""
    return {
        "threads": {"context": "threads", "num_workers": 1},
        "here": {"num_workers": 0},
        "main_envs": {"num_workers": 1, "main_envs": CARTPOLES},
    }[request.param]


def test_envs_that_the_program_holds_are_the_ones_that_step(held):
    made = []

    def make():
        made.append(gym.make("CartPole-v1"))
        return made[-1]

    if "main_envs" in held:
        held["main_envs"] = 8
    count = 16
    with begun([make] * count, seed=1, **held) as envs:
        envs.step(np.ones(count, int))
        for env in made[-8:]:
            env.unwrapped.gravity = 1000.0
        own = [one.unwrapped.state[0] for one in made[-8:]]
        observations = envs.step(np.ones(count, int))[0]
        assert np.float32(own) != pytest.approx(observations[-8:, 0])
        states = np.array([one.unwrapped.state for one in made[-8:]], np.float32)
        assert observations[-8:].tolist() == states.tolist()


@pytest.mark.parametrize("held", ["threads", "here"], indirect=True)
@pytest.mark.parametrize("name", ["unwrapped", "env", "metadata", "state"])
def test_handing_out_a_part_of_an_env_ends_its_batch(held, name):
    with begun(pysampler.make_vec("CartPole-v1", CARTPOLES, vector_kwargs=held), seed=1) as envs:
        envs.get_attr("gravity")
        assert "in Python" not in envs.describe()
        parts = envs.get_attr(name)
        assert f"{name}() handed out a part of the env" in envs.describe()
        if name == "unwrapped":
            for env in parts:
                env.gravity = 1000.0
            envs.step(np.ones(CARTPOLES, int))
            observations = envs.step(np.ones(CARTPOLES, int))[0]
            states = np.array([env.state for env in parts], np.float32)
            assert observations.tolist() == states.tolist()
        envs.reset()  # the program may still hold it
        assert "handed out" in envs.describe()


# -- calls ---------------------------------------------------------------------------------------


def test_a_call_ends_a_batch_until_a_reset_of_all_envs_with_one_line_in_the_log(capfd):
    with pysampler.make_vec("CartPole-v1", CARTPOLES, num_workers=1) as envs:
        theirs = SyncVectorEnv([functools.partial(gym.make, "CartPole-v1")] * CARTPOLES)
        identical(envs.reset(seed=3), theirs.reset(seed=3))
        for gravity in (9.8, 5.0, 9.8):
            envs.set_attr("gravity", gravity)
            theirs.set_attr("gravity", gravity)
            assert "native" not in envs.describe()
            mask = np.arange(CARTPOLES) % 2 == 0
            options = {"reset_mask": mask}
            identical(envs.reset(options=dict(options)), theirs.reset(options=dict(options)))
            assert "native" not in envs.describe()
            identical(envs.reset(), theirs.reset())
            unchanged = gravity == 9.8
            assert ("in Python" not in envs.describe()) == unchanged
            assert ("a call has changed it" in envs.describe()) != unchanged
            for _ in range(30):
                actions = theirs.action_space.sample()
                identical(envs.step(actions), theirs.step(actions))
        theirs.close()
    line = "envs 0-15 do not step in a batch any more, since set_attr('gravity') was called"
    assert capfd.readouterr().err.count(line) == 1


def test_envs_that_a_call_left_as_they_were_step_together_again():
    def make(gravity):
        env = gym.make("CartPole-v1")
        env.unwrapped.gravity = gravity
        return env

    with begun(pysampler.make_vec("CartPole-v1", 2 * CARTPOLES, num_workers=1), seed=1) as envs:
        envs.apply(lambda env: setattr(env.unwrapped, "gravity", 1.0), envs=[0])
        envs.reset(seed=1)
        theirs = SyncVectorEnv(
            [functools.partial(make, 1.0 if i == 0 else 9.8) for i in range(2 * CARTPOLES)]
        )
        theirs.reset(seed=1)
        for _ in range(30):
            actions = theirs.action_space.sample()
            identical(envs.step(actions), theirs.step(actions))
        table = envs.describe()
        assert table.startswith("env 0:")
        assert "native" in table
        theirs.close()


def test_options_outlast_a_batch_that_ends_and_begins_again():
    bounds = {"low": 0.04, "high": 0.05}
    with pysampler.make_vec("CartPole-v1", CARTPOLES, num_workers=1) as envs:
        envs.set_options(None, bounds)
        envs.reset(seed=1)
        envs.call("has_reset")
        envs.apply(lambda env: None)
        assert "in Python" in envs.describe()
        observations, infos = envs.reset()
        assert "in Python" not in envs.describe()
        assert observations.min() >= np.float32(0.04)
        assert infos["options_version"].tolist() == [1] * CARTPOLES


def test_lists_given_as_arguments_are_never_shared():
    pytest.importorskip("mujoco")

    def make():
        return gym.make("Ant-v5", healthy_z_range=[0.2, 1.0])

    def narrow(env):
        env.unwrapped._healthy_z_range[:] = [5.0, 6.0]

    for envs in ([0], [1], [0, 2]):
        described = compare([make] * 3, narrow, steps=3, envs=envs)
        assert "narrow() was called" in described


def set_class_attribute(env):
    from gymnasium.envs.classic_control import AcrobotEnv

    AcrobotEnv.LINK_MASS_1 = 2.0


def replace_function(env):
    from gymnasium.envs.classic_control import acrobot

    acrobot.bound = lambda x, low, high=None: x


@pytest.mark.parametrize("change", [set_class_attribute, replace_function])
def test_changes_of_a_class_or_module_outlast_a_reset(change):
    """Through an env of another kind in the worker."""
    env_fns = [functools.partial(gym.make, "Acrobot-v1")] * 8
    env_fns += [lambda: gym.wrappers.TimeLimit(gym.make("Acrobot-v1"), 30)] * 8
    actions = np.arange(16) % 3
    with (
        pysampler.VectorEnv(env_fns, num_workers=1) as ours,
        pysampler.VectorEnv(env_fns, num_workers=1, native=False) as theirs,
    ):
        assert "in Python" not in ours.describe()
        for seed in (1, 2):
            identical(ours.reset(seed=seed), theirs.reset(seed=seed))
            for at in range(60):
                if at == 30 and seed == 1:
                    ours.apply(change, envs=[12])
                    theirs.apply(change, envs=[12])
                identical(ours.step(actions), theirs.step(actions), f"seed {seed} step {at}")


def test_data_that_a_call_lets_envs_share_stays_shared():
    pytest.importorskip("mujoco")

    def share(env):
        import builtins

        builtins.shared_data = getattr(builtins, "shared_data", env.unwrapped.data)
        env.unwrapped.data = builtins.shared_data

    env_fns = [functools.partial(gym.make, "HalfCheetah-v5")] * 3
    actions = np.ones((3, 6), np.float32)
    with (
        pysampler.VectorEnv(env_fns, num_workers=1) as ours,
        pysampler.VectorEnv(env_fns, num_workers=1, native=False) as theirs,
    ):
        for envs in (ours, theirs):
            envs.reset(seed=1)
            envs.apply(share)
        identical(ours.reset(seed=2), theirs.reset(seed=2))
        identical(ours.step(actions), theirs.step(actions))
        assert "shares its data with another env" in ours.describe()


class Fails(Steps):
    """Raises in a reset that its options tell to fail, and in the third."""

    calls = 0

    def reset(self, *, seed=None, options=None):
        self.calls += 1
        if (options or {}).get("fails") or self.calls == 3:
            raise ValueError("told to")
        return super().reset(seed=seed)


@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_a_reset_that_raises_leaves_the_env_as_it_was(mode):
    env_fns = [lambda: wrappers.NormalizeObservation(wrappers.NormalizeReward(Fails()))] * 3
    options = {"num_workers": 1, "autoreset_mode": mode}
    actions = np.ones((3, 2))
    results = []
    for native in ("auto", False):
        seen = []
        given = {"native": native, **options}
        with begun(env_fns, seed=1, worker_init=even_for_few, **given) as envs:
            for at in range(12):
                if at == 4:
                    envs.apply(lambda env: None, envs=[0])
                    with pytest.raises(ValueError, match="told to"):
                        envs.reset(options={"fails": True})
                try:
                    seen.append([np.array(one) for one in envs.step(actions)[:4]])
                except ValueError as error:
                    seen.append([np.array(one) for one in error.results[:4]])
            seen.append([np.array(one.mean) for one in envs.get_attr("obs_rms")])
            seen.append([np.array(one.var) for one in envs.get_attr("return_rms")])
        results.append(seen)
    identical(*results)


def test_envs_that_cannot_be_made_again_stay_in_python(tmp_path):
    mujoco = pytest.importorskip("mujoco")
    del mujoco
    model = gym.make("HalfCheetah-v5").unwrapped.fullpath
    path = tmp_path / "model.xml"
    path.write_text(Path(model).read_text())
    with pysampler.make_vec("HalfCheetah-v5", 2, num_workers=1, xml_file=str(path)) as envs:
        envs.reset(seed=1)
        envs.apply(lambda env: None)
        path.unlink()
        envs.reset(seed=1)
        assert "a new env to compare it with raised OSError" in envs.describe()


def test_seeds_of_a_reset_after_a_loss_outlast_the_batch():
    def make():
        return wrappers.NormalizeReward(gym.make("Pendulum-v1"))

    given = {"num_workers": 1, "worker_init": even_for_few, "on_worker_loss": "restart"}
    theirs = SyncVectorEnv([make] * 4)
    with begun([make] * 4, seed=1, **given) as ours:
        os.kill(ours._pool.pids[0], signal.SIGKILL)
        for envs in (ours, theirs):
            envs.reset(seed=2)
        ours.apply(lambda env: None)
        mask = {"reset_mask": np.array([True, False, True, True])}
        identical(ours.reset(options=dict(mask)), theirs.reset(options=dict(mask)))


class Draws(Steps):
    """Draws a number where an attribute is read."""

    @property
    def noise(self):
        return self.np_random.random()


@pytest.mark.parametrize("workers", [0, 1])
def test_reading_a_property_runs_it_once(workers):
    theirs = SyncVectorEnv([Draws] * 2)
    with pysampler.VectorEnv([Draws] * 2, num_workers=workers) as ours:
        for envs in (ours, theirs):
            envs.reset(seed=1)
        for _ in range(2):
            assert ours.get_attr("noise") == theirs.get_attr("noise")


def test_arguments_that_the_program_can_change_make_envs_in_python_here():
    pytest.importorskip("mujoco")
    bounds = [0.2, 1.0]
    with pysampler.make_vec("Ant-v5", 2, num_workers=0, healthy_z_range=bounds) as envs:
        envs.reset(seed=1)
        bounds[:] = [5.0, 6.0]
        assert envs.step(np.zeros((2, 8), np.float32))[2].all()


@pytest.mark.parametrize("name", ["gravity", "render", "np_random_seed", "action_space"])
def test_reading_in_workers_ends_no_batch(name):
    with begun(pysampler.make_vec("CartPole-v1", CARTPOLES, num_workers=1), seed=1) as envs:
        envs.get_attr(name)
        assert "in Python" not in envs.describe()
