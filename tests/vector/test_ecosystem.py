"""Wrappers, scripts and make_vec of gymnasium work with this vector env."""

import sys

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import wrappers
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers import vector as vector_wrappers
from made_up import SpaceEnv, TellingEnv, same
from vectors import begun

import pysampler


def both(*args, **kwargs):
    return pysampler.VectorEnv(*args, num_workers=2, **kwargs), SyncVectorEnv(*args, **kwargs)


def cartpole():
    return gym.make("CartPole-v1")


def run(wrap, mode=AutoresetMode.SAME_STEP, steps=200, env_fn=cartpole):
    """Assert that the wrapper returns equal results around ours and gymnasium's."""
    ours, theirs = (wrap(envs) for envs in both([env_fn] * 4, autoreset_mode=mode))
    same_(ours.reset(seed=1), theirs.reset(seed=1))
    theirs.action_space.seed(2)
    for _ in range(steps):
        actions = theirs.action_space.sample()
        same_(ours.step(actions), theirs.step(actions))
    ours.close()


def same_(a, b):
    """Compare all but the wall-clock times of RecordEpisodeStatistics."""
    for infos in (a[-1], b[-1]):
        if isinstance(infos, dict):
            infos.get("episode", {}).pop("t", None)
    same(a, b)


@pytest.mark.parametrize(
    ("wrapper", "mode"),
    [
        (vector_wrappers.RecordEpisodeStatistics, AutoresetMode.SAME_STEP),
        (vector_wrappers.RecordEpisodeStatistics, AutoresetMode.NEXT_STEP),
        (vector_wrappers.NormalizeObservation, AutoresetMode.NEXT_STEP),
        (vector_wrappers.NormalizeReward, AutoresetMode.SAME_STEP),
        (vector_wrappers.DictInfoToList, AutoresetMode.SAME_STEP),
        (vector_wrappers.FlattenObservation, AutoresetMode.NEXT_STEP),
    ],
)
def test_gymnasium_vector_wrappers_give_equal_results(wrapper, mode):
    run(wrapper, mode)


def test_record_episode_statistics_works_with_manual_resets():
    envs = vector_wrappers.RecordEpisodeStatistics(
        pysampler.VectorEnv([cartpole] * 3, autoreset_mode="Disabled")
    )
    envs.reset(seed=1)
    for _ in range(100):
        *_, terminated, truncated, infos = envs.step(np.ones(3, np.int64))
        ended = terminated | truncated
        if ended.any():
            assert infos["_episode"].tolist() == ended.tolist()
            assert (infos["episode"]["l"][ended] > 5).all()
            options = {"reset_mask": ended}
            envs.reset(options=options)
    envs.close()


def test_reset_does_not_modify_its_options():
    with pysampler.VectorEnv([TellingEnv] * 2, autoreset_mode="Disabled") as envs:
        options = {"reset_mask": np.array([True, False]), "other": 1}
        envs.reset(options=options)
        assert options.keys() == {"reset_mask", "other"}


@pytest.mark.slow
def test_numpy_to_torch_wrapper_works_with_copies_and_views():
    torch = pytest.importorskip("torch")
    for copy in (True, False):
        envs = vector_wrappers.NumpyToTorch(
            pysampler.VectorEnv([cartpole] * 4, num_workers=2, copy=copy)
        )
        observations, _ = envs.reset(seed=1)
        assert isinstance(observations, torch.Tensor)
        before = observations.clone()
        later, rewards, *_ = envs.step(torch.zeros(4, dtype=torch.int64))
        assert rewards.tolist() == [1] * 4
        # A view is valid until its frame is reused.
        assert torch.equal(observations, before)
        assert not torch.equal(later, before)
        envs.close()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_record_video_writes_a_file(tmp_path):
    pytest.importorskip("moviepy")
    pytest.importorskip("pygame")
    envs = pysampler.make_vec("CartPole-v1", 2, render_mode="rgb_array")
    envs = vector_wrappers.RecordVideo(envs, str(tmp_path), episode_trigger=lambda i: i == 0)
    envs.reset(seed=1)
    for _ in range(60):
        envs.step(np.zeros(2, np.int64))
    envs.close()
    assert list(tmp_path.glob("*.mp4"))


def test_loop_of_a_ppo_script_runs_with_wrapped_envs():
    def thunk():
        env = gym.make("Pendulum-v1")
        env = wrappers.FlattenObservation(env)
        env = wrappers.RecordEpisodeStatistics(env)
        env = wrappers.ClipAction(env)
        env = wrappers.NormalizeObservation(env)
        env = wrappers.TransformObservation(env, lambda o: np.clip(o, -10, 10), None)
        env = wrappers.NormalizeReward(env, gamma=0.99)
        return wrappers.TransformReward(env, lambda r: np.clip(r, -10, 10))

    with begun([thunk] * 4, seed=1, autoreset_mode=AutoresetMode.SAME_STEP) as envs:
        returns = []
        for _ in range(450):
            actions = np.random.default_rng(0).normal(size=(4, 1)).astype(np.float32)
            _, _, terminations, truncations, infos = envs.step(actions)
            done = np.logical_or(terminations, truncations)
            if "final_info" in infos and "episode" in infos["final_info"]:
                mask = infos["final_info"]["_episode"]
                assert mask.tolist() == done.tolist()
                returns += infos["final_info"]["episode"]["r"][mask].tolist()
                assert (infos["final_info"]["episode"]["l"][mask] == 200).all()
                assert all(o.shape == (3,) for o in infos["final_obs"][mask])
        assert len(returns) == 8


def test_install_makes_gymnasium_use_our_vector_env():
    pysampler.install()
    try:
        envs = gym.make_vec("CartPole-v1", num_envs=2, vectorization_mode="async")
        assert type(envs) is pysampler.VectorEnv
        assert repr(envs) == "VectorEnv(CartPole-v1, num_envs=2, num_workers=2, native)"
        envs.close()
        again = gym.make_vec(envs.spec)
        assert type(again) is pysampler.VectorEnv
        again.close()
    finally:
        pysampler.uninstall()
    envs = gym.make_vec("CartPole-v1", num_envs=2, vectorization_mode="async")
    assert type(envs) is gym.vector.AsyncVectorEnv
    envs.close()


@pytest.mark.slow
def test_make_vec_matches_gymnasium_make_vec():
    kwargs = {"wrappers": (wrappers.TimeAwareObservation,), "max_episode_steps": 7}
    with pysampler.make_vec("CartPole-v1", 3, **kwargs) as ours:
        theirs = gym.make_vec("CartPole-v1", 3, "async", **kwargs)
        assert ours.spec == theirs.spec
        assert ours.observation_space == theirs.observation_space
        same(ours.reset(seed=1), theirs.reset(seed=1))
        for _ in range(20):
            same(ours.step(np.zeros(3, np.int64)), theirs.step(np.zeros(3, np.int64)))
        theirs.close()
    with pysampler.make_vec(ours.spec) as again:
        assert (again.num_envs, again.observation_space) == (3, ours.observation_space)
    gym.make_vec(ours.spec).close()
    sync = pysampler.make_vec("CartPole-v1", 2, vectorization_mode="sync")
    assert type(sync) is SyncVectorEnv
    with pysampler.make_vec(SpaceEnv, 2, observation_space=gym.spaces.Discrete(3)) as one:
        assert one.reset()[0].shape == (2,)
    with pytest.raises(gym.error.Error, match="Invalid id type"):
        pysampler.make_vec(3)


def test_apply_calls_the_function_with_each_env():
    with pysampler.VectorEnv([TellingEnv] * 4, num_workers=2) as envs:
        assert envs.apply(lambda env, x: (type(env).__name__, x), 3) == (("TellingEnv", 3),) * 4
        envs.set_attr("number", [10, 11, 12, 13])
        assert envs.apply(lambda env: env.number, envs=[3, 0]) == (13, 10)
        with pytest.raises(IndexError, match="cannot choose env 4"):
            envs.apply(repr, envs=[4])
        for mask in ([True, False, True, False], np.array([True, False, True, False])):
            with pytest.raises(
                TypeError, match=r"dtype bool, .*for a mask, pass np.flatnonzero\(mask\)"
            ):
                envs.apply(repr, envs=mask)
        with pytest.raises(TypeError, match="indices of dtype float64, expected whole numbers$"):
            envs.apply(repr, envs=[0.0, 1.5])
        with pytest.raises(ZeroDivisionError, match="env 0.* in <lambda>"):
            envs.apply(lambda _: 1 / 0)


def test_env_id_can_name_the_module_that_registers_it(tmp_path, monkeypatch):
    (tmp_path / "registers_env_in_test.py").write_text(
        "import gymnasium as gym\n"
        "gym.register('Named-v0', 'gymnasium.envs.classic_control:CartPoleEnv')\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    try:
        with pysampler.make_vec("registers_env_in_test:Named-v0", 2) as envs:
            assert envs.reset(seed=1)[0].shape == (2, 4)
        with pytest.raises(ModuleNotFoundError, match="not_there_in_test"):
            pysampler.make_vec("not_there_in_test:Named-v0", 2)
    finally:
        gym.registry.pop("Named-v0", None)
        sys.modules.pop("registers_env_in_test", None)
