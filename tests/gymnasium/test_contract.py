"""The behaviour that gymnasium's own tests require of AsyncVectorEnv, as tests of VectorEnv.

They pass with every supported version of gymnasium: ``make contract``.
"""

import functools
import multiprocessing
import re

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.error import AlreadyPendingCallError, ClosedEnvironmentError, NoAsyncCallError
from gymnasium.vector import AutoresetMode
from made_up import SpaceEnv, TellingEnv, same
from vectors import begun

from pysampler import VectorEnv


def cartpole(seed=None, **kwargs):
    env = gym.make("CartPole-v1", **kwargs)
    if seed is not None:
        env.reset(seed=seed)
    return env


def cartpoles(count, **kwargs):
    return [functools.partial(cartpole, seed, **kwargs) for seed in range(count)]


@pytest.fixture(params=[True, False], ids=["shared memory", "no shared memory"])
def shared(request):
    return request.param


def test_vector_env_is_a_direct_subclass_of_gymnasiums():
    assert VectorEnv.__bases__ == (gym.vector.VectorEnv,)


def test_attributes_describe_envs_and_spaces(shared):
    with VectorEnv(cartpoles(8), shared_memory=shared) as envs:
        assert isinstance(envs, gym.vector.VectorEnv)
        assert (envs.num_envs, envs.closed, envs.render_mode, envs.spec) == (8, False, None, None)
        assert envs.unwrapped is envs
        assert envs.single_observation_space.shape == (4,)
        assert isinstance(envs.observation_space, spaces.Box)
        assert envs.observation_space.shape == (8, 4)
        assert isinstance(envs.single_action_space, spaces.Discrete)
        assert isinstance(envs.action_space, spaces.MultiDiscrete)
    assert envs.closed


@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_autoreset_mode_is_set_without_changing_env_metadata(mode):
    for given in (mode, mode.value):
        with VectorEnv(cartpoles(1), autoreset_mode=given) as envs:
            assert envs.metadata["autoreset_mode"] is mode
            assert envs.autoreset_mode is mode
    assert "autoreset_mode" not in cartpole().metadata


def test_reset_and_step_return_the_expected_types(shared):
    with VectorEnv(cartpoles(8), shared_memory=shared) as envs:
        observations, infos = envs.reset()
        assert (observations.dtype, observations.shape) == (np.float32, (8, 4))
        assert infos == {}
        for actions in (envs.action_space.sample(), [int(a) for a in envs.action_space.sample()]):
            observations, rewards, terminated, truncated, infos = envs.step(actions)
            assert (observations.dtype, observations.shape) == (np.float32, (8, 4))
            assert (rewards.dtype, rewards.shape) == (np.float64, (8,))
            assert (terminated.dtype, terminated.shape) == (np.bool_, (8,))
            assert (truncated.dtype, truncated.shape) == (np.bool_, (8,))
            assert isinstance(infos, dict)


def test_render_returns_a_frame_per_env():
    pytest.importorskip("pygame")
    with VectorEnv(cartpoles(3, render_mode="rgb_array")) as envs:
        assert envs.render_mode == "rgb_array"
        envs.reset()
        frames = envs.render()
        assert isinstance(frames, tuple)
        assert [type(frame) for frame in frames] == [np.ndarray] * 3


def test_call_get_attr_and_set_attr_reach_every_env(shared):
    with begun([functools.partial(SpaceEnv, spaces.Discrete(3))] * 4, shared_memory=shared) as envs:
        assert envs.call("double", 3, plus=1) == (7,) * 4
        assert envs.call("ends") == envs.get_attr("ends") == (0.1,) * 4
        envs.set_attr("ends", [0, 1, 2, 3])
        assert envs.get_attr("ends") == (0, 1, 2, 3)
        envs.set_attr("ends", 5)
        assert envs.get_attr("ends") == (5,) * 4
        with pytest.raises(ValueError, match="Got `3` values for 4 environments"):
            envs.set_attr("ends", [1, 2, 3])
        envs.call_async("double", 4)
        assert envs.call_wait(timeout=60) == (8,) * 4
        for name in ("reset", "step", "close"):
            with pytest.raises(ValueError, match=f"use `{name}` directly"):
                envs.call(name)


def test_copy_false_returns_views(shared):
    with VectorEnv(cartpoles(4), shared_memory=shared) as copies:
        first, _ = copies.reset(seed=1)
        kept = first.copy()
        first[:] = 0
        assert np.array_equal(copies.reset(seed=1)[0], kept)
    with VectorEnv(cartpoles(4), shared_memory=shared, copy=False, frames=2) as views:
        first, _ = views.reset(seed=1)
        assert first is views.observations
        views.step(np.zeros(4, np.int64))
        assert np.array_equal(first, kept)  # until the frame is reused
        views.step(np.zeros(4, np.int64))
        assert not np.array_equal(first, kept)


def test_reset_seeds_each_env():
    with VectorEnv(cartpoles(3)) as envs:
        assert envs.np_random_seed == (0, 1, 2)  # from their construction
        a, _ = envs.reset(seed=42)
        assert envs.np_random_seed == (42, 43, 44)
        envs.reset()
        assert envs.np_random_seed == (42, 43, 44)
        b, _ = envs.reset(seed=[42, None, 44])
        assert np.array_equal(a[[0, 2]], b[[0, 2]])
        assert [type(rng) for rng in envs.np_random] == [np.random.Generator] * 3
        with pytest.raises(ValueError, match="num_envs=3 but got length=2"):
            envs.reset(seed=[1, 2])


def test_step_wait_raises_timeout_error(shared):
    envs = VectorEnv([TellingEnv] * 4, shared_memory=shared)
    envs.reset()
    envs.step_async(np.array([0, 0, TellingEnv.SLEEP, 0]))
    with pytest.raises(multiprocessing.TimeoutError):
        envs.step_wait(timeout=0.01)
    with pytest.warns(UserWarning, match="Calling `close` while waiting"):
        envs.close(terminate=True)


def test_out_of_order_calls_name_the_pending_call(shared):
    envs = VectorEnv(cartpoles(4), shared_memory=shared)
    for wait, begin in (("reset_wait", "reset_async"), ("step_wait", "step_async")):
        with pytest.raises(
            NoAsyncCallError,
            match=re.escape(f"Calling `{wait}` without any prior call to `{begin}`."),
        ):
            getattr(envs, wait)()
    envs.reset_async()
    with pytest.raises(
        AlreadyPendingCallError,
        match="Calling `step_async` while waiting for a pending call to `reset` to complete",
    ):
        envs.step_async(envs.action_space.sample())
    with pytest.warns(UserWarning, match="waiting for a pending call to `reset` to complete."):
        envs.close()
    with pytest.raises(ClosedEnvironmentError):
        envs.reset()


def test_different_spaces_raise():
    fns = cartpoles(4)
    fns[1] = functools.partial(SpaceEnv, spaces.Discrete(16), spaces.Discrete(4))
    with pytest.raises(RuntimeError):
        VectorEnv(fns)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_observation_modes_batch_spaces_or_raise(num_workers):
    def make(spaces_, mode):
        fns = [functools.partial(SpaceEnv, space) for space in spaces_]
        return VectorEnv(fns, observation_mode=mode, num_workers=num_workers)

    similar = [spaces.Box(0, high, (5,)) for high in (1, 2, 3)]
    with pytest.raises(ValueError, match="Invalid `observation_mode`.*actual got invalid"):
        make(similar, "invalid")
    with pytest.raises(RuntimeError, match="use `observation_mode='different'` instead"):
        make(similar, "same")
    batched = gym.vector.utils.batch_differing_spaces(similar)
    for mode in ("different", (batched, similar[0])):
        with make(similar, mode) as envs:
            assert envs.observation_space == batched
            assert envs.single_observation_space == similar[0]
            assert envs.reset()[0] in batched
    shapes = [spaces.Box(0, 1, (i,)) for i in (1, 2, 3)]
    kinds = [spaces.Box(0, 1, (3,)), spaces.Discrete(5), spaces.Dict(a=spaces.Discrete(2))]
    custom = (spaces.Box(0, 4, (3, 5)), spaces.Box(0, 4, (5,)))
    for different in (shapes, kinds):
        for mode in ("same", "different", custom):
            with pytest.raises((RuntimeError, ValueError, TypeError, AssertionError)):
                make(different, mode)
    with pytest.raises(TypeError, match="Expected both elements of observation_mode to be Spaces"):
        make(similar, (1, 2))


def test_env_errors_keep_their_type():
    with begun([TellingEnv] * 3) as envs:
        with pytest.raises(ValueError, match="told to raise") as caught:
            envs.step([0, TellingEnv.RAISE, TellingEnv.RAISE])
        assert caught.value.env == 1
        assert caught.value.__notes__ == ["env 2 also raised ValueError: told to raise"]


def counting(reset_info, step_info):
    class Env(gym.Env):
        """Ends when its action is 3."""

        observation_space = action_space = spaces.Discrete(4)

        def reset(self, *, seed=None, options=None):
            super().reset(seed=seed)
            return 0, dict(reset_info)

        def step(self, action):
            return int(action), 1, bool(action == 3), False, {**step_info, "action": int(action)}

    return Env


@pytest.mark.parametrize("num_workers", [0, 2])
def test_next_step_autoreset_ignores_the_action_after_an_end(num_workers):
    with begun([counting({"reset": 1}, {})] * 2, num_workers=num_workers) as envs:
        *_, infos = envs.step(np.array([1, 3]))
        same(infos["action"], np.array([1, 3]))
        # The action that follows an episode's end is ignored.
        observations, rewards, terminated, truncated, infos = envs.step(np.array([2, 2]))
        same(observations, np.array([2, 0]))
        same(rewards, np.array([1.0, 0.0]))
        assert not terminated.any()
        assert not truncated.any()
        same(infos["_reset"], np.array([False, True]))
        same(infos["_action"], np.array([True, False]))


@pytest.mark.parametrize("num_workers", [0, 2])
def test_same_step_autoreset_returns_final_obs_and_info(num_workers):
    with begun(
        [counting({"reset": 1}, {"x": 0.5})] * 2,
        num_workers=num_workers,
        autoreset_mode=AutoresetMode.SAME_STEP,
    ) as envs:
        observations, rewards, terminated, _, infos = envs.step(np.array([1, 3]))
        same(observations, np.array([1, 0]))
        same(rewards, np.array([1.0, 1.0]))
        same(terminated, np.array([False, True]))
        assert infos["final_obs"].tolist() == [None, 3]
        same(infos["_final_obs"], np.array([False, True]))
        same(infos["final_info"]["action"], np.array([0, 3]))
        same(infos["final_info"]["_x"], np.array([False, True]))
        same(infos["_reset"], np.array([False, True]))
        same(infos["action"], np.array([1, 0]))


@pytest.mark.parametrize("num_workers", [0, 2])
def test_reset_mask_resets_only_the_chosen_envs(num_workers):
    kwargs = {"autoreset_mode": AutoresetMode.DISABLED}
    fns = cartpoles(3)
    with VectorEnv(fns, num_workers=num_workers, **kwargs) as envs:
        first, _ = envs.reset(seed=[0, 1, 2])
        for _ in range(3):
            stepped = envs.step(np.ones(3, np.int64))[0]
        mask = np.array([True, True, False])
        again, _ = envs.reset(seed=[0, 1, 0], options={"reset_mask": mask})
        assert np.array_equal(again[:2], first[:2])
        assert np.array_equal(again[2], stepped[2])
        for bad, error, message in (
            (np.array([True]), ValueError, r"must have shape `\(3,\)`, got \(1,\)"),
            (np.array([[True, True, True]]), ValueError, r"must have shape `\(3,\)`, got \(1, 3\)"),
            (np.array([False] * 3), ValueError, "at least one True value"),
            (np.array([1, 1, 0]), TypeError, "must have `dtype=np.bool_`, got int64"),
            ([True, True, True], TypeError, "must be a numpy array, got <class 'list'>"),
        ):
            with pytest.raises(error, match=message):
                envs.reset(options={"reset_mask": bad})


@pytest.mark.parametrize("num_workers", [0, 2])
def test_wrong_number_of_actions_raises(num_workers):
    with begun(cartpoles(4), num_workers=num_workers) as envs:
        actions = envs.action_space.sample()
        for wrong in (actions[:3], np.append(actions, 0), list(actions[:3])):
            with pytest.raises(ValueError, match="cannot send actions"):
                envs.step(wrong)
        with pytest.raises(TypeError):
            envs.step(0)
        envs.step(actions)


def test_max_concurrency_limits_the_workers():
    with VectorEnv(cartpoles(4), max_concurrency=1) as envs:
        assert envs.num_workers == 1


def test_infos_of_different_envs_are_masked():
    class Env(gym.Env):
        observation_space = action_space = spaces.Box(0, 1, (1,))

        def __init__(self, *infos):
            self.infos = infos

        def reset(self, *, seed=None, options=None):
            return np.zeros(1, np.float32), self.infos[0]

        def step(self, action):
            return np.zeros(1, np.float32), 0, True, False, self.infos[1]

    with VectorEnv(
        [
            lambda: Env({"a": 1}, {"c": np.array([1, 2])}),
            lambda: Env({"a": 2, "b": 3}, {"c": np.array([3, 4])}),
        ]
    ) as envs:
        for _ in range(3):
            expected = {
                "a": np.array([1, 2]),
                "_a": np.array([True, True]),
                "b": np.array([0, 3]),
                "_b": np.array([False, True]),
            }
            same(envs.reset()[1], expected)
            expected = {"c": np.array([[1, 2], [3, 4]]), "_c": np.array([True, True])}
            same(envs.step(envs.action_space.sample())[4], expected)
