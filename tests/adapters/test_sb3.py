"""Stable-Baselines3 and sb3-contrib train on pysampler's VecEnv as on their own."""

import contextlib
import functools
import json
import os
import signal
import subprocess
import sys

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import SyncVectorEnv
from interrupts import Interrupted, handler
from made_up import describe, same
from small_envs import Small

pytest.importorskip("stable_baselines3")
from stable_baselines3 import PPO, SAC
from stable_baselines3.common.callbacks import CheckpointCallback, EvalCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import (
    DummyVecEnv,
    VecFrameStack,
    VecMonitor,
    VecNormalize,
    VecTransposeImage,
)

import pysampler
from pysampler._cli.main import main
from pysampler.adapters import _env_calls
from pysampler.adapters.sb3 import VecEnv
from pysampler.errors import EnvError

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]  # workers import torch


def test_vec_env_equals_sb3s_dummy_vec_env():
    def env_fn():
        return Monitor(gym.make("Pendulum-v1", max_episode_steps=15))

    ours, theirs = VecEnv([env_fn] * 3, num_workers=2), DummyVecEnv([env_fn] * 3)
    for envs in (ours, theirs):
        envs.seed(5)
        envs.action_space.seed(1)
    same(ours.reset(), theirs.reset())
    for _ in range(40):
        actions = np.stack([theirs.action_space.sample() for _ in range(3)])
        a, b = ours.step(actions), theirs.step(actions)
        for x, y in zip(a[:3], b[:3], strict=True):
            same(x, y)
        for row, other in zip(a[3], b[3], strict=True):
            assert row.keys() == other.keys()
            assert row["TimeLimit.truncated"] == other["TimeLimit.truncated"]
            if "episode" in row:
                assert (row["episode"]["r"], row["episode"]["l"]) == (
                    other["episode"]["r"],
                    other["episode"]["l"],
                )
                same(row["terminal_observation"], other["terminal_observation"])
    assert ours.env_is_wrapped(Monitor) == [True] * 3
    assert ours.env_is_wrapped(gym.wrappers.ClipAction, [1]) == [False]
    ours.set_attr("told", 4, [0, 2])
    assert ours.get_attr("told", [2, 0]) == [4, 4]
    assert ours.env_method("get_wrapper_attr", "told", indices=0) == [4]
    ours.close()
    theirs.close()


@pytest.mark.filterwarnings("ignore")
def test_ppo_learns():
    envs = VecEnv([lambda: Monitor(gym.make("CartPole-v1"))] * 8, num_workers=2)
    model = PPO("MlpPolicy", envs, n_steps=64, batch_size=256, seed=0, device="cpu")
    model.learn(2048)
    early = np.mean([info["r"] for info in model.ep_info_buffer])
    model.learn(20480, reset_num_timesteps=False)
    late = np.mean([info["r"] for info in model.ep_info_buffer])
    assert late > 2 * early
    envs.close()


class Camera(gym.Env):
    """Observes an image and a state; pays for the first action."""

    observation_space = spaces.Dict(
        image=spaces.Box(0, 255, (36, 36, 3), np.uint8), state=spaces.Box(-1, 1, (3,), np.float32)
    )
    action_space = spaces.Box(-1, 1, (2,), np.float32)

    def observe(self):
        return {
            "image": self.np_random.integers(0, 255, (36, 36, 3), np.uint8),
            "state": self.np_random.uniform(-1, 1, 3).astype(np.float32),
        }

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return self.observe(), {}

    def step(self, action):
        self.steps += 1
        return self.observe(), float(action[0]), False, self.steps == 8, {}


def monitored(count):
    return VecMonitor(VecEnv([Camera] * count, num_workers=1))


def test_sb3s_wrappers_callbacks_and_files_work_on_dicts_with_images(tmp_path):
    envs = VecNormalize(monitored(4), norm_obs_keys=["state"])
    test_envs = VecTransposeImage(
        VecNormalize(monitored(2), training=False, norm_obs_keys=["state"])
    )
    model = PPO("MultiInputPolicy", envs, n_steps=8, batch_size=16, n_epochs=1, device="cpu")
    evaluating = EvalCallback(
        test_envs, n_eval_episodes=2, eval_freq=8, log_path=str(tmp_path), verbose=0
    )
    saving = CheckpointCallback(8, str(tmp_path), save_vecnormalize=True)
    model.learn(64, callback=[evaluating, saving])
    files = [path.name for path in tmp_path.iterdir()]
    assert len(np.load(tmp_path / "evaluations.npz")["timesteps"]) == 2
    assert {"rl_model_64_steps.zip", "rl_model_vecnormalize_64_steps.pkl"} <= {*files}
    assert model.get_env().unwrapped.stats().steps.count.sum() > 0

    model.save(tmp_path / "model")
    envs.save(tmp_path / "normalization.pkl")
    restored = VecNormalize.load(tmp_path / "normalization.pkl", monitored(4))
    same(restored.obs_rms["state"].mean, envs.obs_rms["state"].mean)
    again = PPO.load(tmp_path / "model", env=restored, device="cpu")
    again.learn(32)
    assert again.num_timesteps == 32
    for each in (envs, test_envs, restored):
        each.close()


def test_sac_saves_and_loads_its_replay_buffer(tmp_path):
    envs = VecMonitor(VecEnv([lambda: gym.make("Pendulum-v1")] * 4, num_workers=1))
    model = SAC("MlpPolicy", envs, buffer_size=500, learning_starts=20, device="cpu")
    model.learn(60)
    model.save_replay_buffer(tmp_path / "replay")
    fresh = SAC("MlpPolicy", envs, buffer_size=500, device="cpu")
    fresh.load_replay_buffer(tmp_path / "replay.pkl")
    assert fresh.replay_buffer.size() == model.replay_buffer.size() == 15
    same(fresh.replay_buffer.actions[:15], model.replay_buffer.actions[:15])
    envs.close()


WITHOUT_SB3_IN_WORKERS = """
import sys
import gymnasium as gym
from stable_baselines3.common.vec_env import VecMonitor
from pysampler.adapters.sb3 import VecEnv

envs = VecMonitor(VecEnv([lambda: gym.make("CartPole-v1")] * 2))
assert not any(envs.unwrapped.envs.apply(lambda env: "stable_baselines3" in sys.modules))
envs.close()
"""


def test_vec_monitor_does_not_import_sb3_in_workers():
    subprocess.run([sys.executable, "-c", WITHOUT_SB3_IN_WORKERS], check=True, timeout=60)


def test_infos_none_keeps_what_sb3_bootstraps_from():
    envs = VecMonitor(
        VecEnv([lambda: gym.make("Pendulum-v1", max_episode_steps=3)] * 2, infos="none")
    )
    envs.reset()
    for _ in range(3):
        infos = envs.step(np.zeros((2, 1), np.float32))[3]
    for info in infos:
        assert info["terminal_observation"].shape == (3,)
        assert info["TimeLimit.truncated"]
        assert info["episode"]["l"] == 3
    envs.close()


def test_sb3s_make_vec_env_makes_ours():
    ours = make_vec_env(
        *("CartPole-v1", 3), seed=4, vec_env_cls=VecEnv, vec_env_kwargs={"start_method": "fork"}
    )
    theirs = make_vec_env("CartPole-v1", 3, seed=4)
    np.testing.assert_array_equal(ours.reset(), theirs.reset())
    for _ in range(12):
        for a, b in zip(ours.step([1, 1, 1])[:3], theirs.step([1, 1, 1])[:3], strict=True):
            np.testing.assert_array_equal(a, b)
    for envs in (ours, theirs):
        assert envs.env_is_wrapped(Monitor) == [True] * 3
        assert envs.has_attr("action_space")
        assert not envs.has_attr("no_such_thing")
        envs.close()


def test_start_method_is_an_alias_of_context():
    with pytest.raises(ValueError, match="start_method 'fork' and context 'spawn', expected one"):
        VecEnv([lambda: gym.make("CartPole-v1")], start_method="fork", context="spawn")
    for method in (None, "fork", "forkserver"):
        envs = VecEnv([lambda: gym.make("CartPole-v1")], start_method=method)
        assert envs.envs.context == method
        envs.close()
    with pytest.raises(ValueError, match="context 'thread'"):
        VecEnv([lambda: gym.make("CartPole-v1")], start_method="thread")


def test_repr_is_short_and_stats_count():
    envs = VecEnv([lambda: gym.make("CartPole-v1")] * 4, num_workers=2)
    inner = "VectorEnv(CartPole-v1, num_envs=4, num_workers=2, native)"
    assert repr(envs) == f"<pysampler.adapters.sb3.VecEnv of {inner}>"
    envs.reset()
    envs.step(np.zeros(4, int))
    assert envs.stats().steps.count.tolist() == [1] * 4
    envs.close()


# -- masks -----------------------------------------------------------------------------------------


class OneAllowed(gym.Env):
    """Pays for the one action that is allowed, and ends when another is taken."""

    observation_space = spaces.Box(0, 1, (4,), np.float32)
    action_space = spaces.Discrete(4)

    def __init__(self, *, source="method"):
        self.asked = 0
        self.source = source
        if source == "method":
            self.action_masks = self.masks

    def masks(self):
        self.asked += 1
        return [action == self.allowed for action in range(4)]

    def allow(self, action):
        self.allowed = action

    def draw(self):
        self.allowed = int(self.np_random.integers(4))
        info = {"action_mask": np.array(self.masks())} if self.source == "info" else {}
        return np.zeros(4, np.float32), info

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return self.draw()

    def step(self, action):
        self.steps += 1
        paid = action == self.allowed
        observation, info = self.draw()
        return observation, float(paid), not paid, self.steps == 20, info


def masked(source="method", envs=4):
    return VecEnv([lambda: OneAllowed(source=source)] * envs, num_workers=2)


@pytest.mark.parametrize("source", ["method", "info"])
def test_action_masks_arrive_with_the_steps(source):
    envs = masked(source)
    assert envs.has_attr("action_masks") == (source == "method")  # infos exist after a reset
    envs.seed(1)
    envs.reset()
    assert envs.has_attr("action_masks")
    rng = np.random.default_rng(1)
    for _ in range(60):
        masks = np.stack(envs.env_method("action_masks"))
        assert masks.dtype == bool
        assert masks.argmax(1).tolist() == envs.get_attr("allowed")
        assert masks.sum(1).tolist() == [1] * 4
        same(envs.env_method("action_masks", indices=[2, 1]), list(masks[[2, 1]]))
        actions = np.where(rng.random(4) < 0.9, masks.argmax(1), rng.integers(4, size=4))
        rewards = envs.step(actions)[1]
        assert rewards.tolist() == (actions == masks.argmax(1)).tolist()
    # Once per reset and step, however often we read the masks.
    stats = envs.stats()
    assert (envs.get_attr("asked") <= stats.steps.count + stats.resets.count).all()
    envs.close()


def test_masks_are_refreshed_after_calls_that_may_change_them():
    envs = masked()
    envs.reset()
    for change in (
        lambda: envs.set_attr("allowed", 3),
        lambda: envs.env_method("allow", 3),
    ):
        envs.step(np.zeros(4, int))
        change()
        assert np.argmax(envs.env_method("action_masks"), 1).tolist() == [3] * 4
    envs.close()


def test_envs_without_masks_have_none():
    envs = VecEnv([lambda: gym.make("CartPole-v1")] * 2, num_workers=1)
    envs.reset()
    assert not envs.has_attr("action_masks")
    assert envs.env_is_wrapped(_env_calls.MaskInfo) == [False] * 2
    with pytest.raises(AttributeError, match="action_masks"):
        envs.env_method("action_masks")
    envs.close()


@pytest.mark.parametrize("source", ["method", "info"])
def test_maskable_ppo_learns_and_takes_no_masked_action(source):
    sb3_contrib = pytest.importorskip("sb3_contrib")
    from sb3_contrib.common.maskable.utils import get_action_masks, is_masking_supported

    envs = masked(source)
    model = sb3_contrib.MaskablePPO("MlpPolicy", envs, n_steps=32, batch_size=64, device="cpu")
    model.learn(512)
    assert is_masking_supported(envs)
    observations, total = envs.reset(), 0.0
    for _ in range(40):
        actions, _ = model.predict(observations, action_masks=get_action_masks(envs))
        observations, rewards, *_ = envs.step(actions)
        total += rewards.sum()
    assert total == 160
    envs.close()


# -- inputs and outputs of SB3's own vector envs ---------------------------------------------------


class RecordsInputs(gym.Env):
    """Exposes its inputs: reset options as an attribute, actions in infos."""

    def __init__(self, space=None):
        self.observation_space = spaces.Box(0, 9, (1,), np.float32)
        self.action_space = space or spaces.Discrete(5)
        self.index = 0
        self.options = None

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.options = options
        return np.zeros(1, np.float32), {"_private": 3, "count": 4}

    def step(self, action):
        info = {
            "action": describe(action),
            "_hidden": 0.5,
            "float": 0.25,
            "int": 7,
            "bool": True,
            "float32": np.float32(0.5),
            "array": np.ones(2),
            "nested": {"float": 1.5, "_bool": False},
            8: 0.75,
        }
        return np.ones(1, np.float32), 1.0, False, False, info


def both(env_fn, envs=3, **options):
    return VecEnv([env_fn] * envs, num_workers=2, **options), DummyVecEnv([env_fn] * envs)


def test_negative_indices_count_from_the_end():
    made = both(RecordsInputs)
    for envs in made:
        envs.set_attr("index", 5, [0, -1])
        assert envs.get_attr("index") == [5, 0, 5]
        envs.set_attr("index", 6, -2)
        assert envs.get_attr("index", np.array([-2, 0])) == [6, 5]
        assert envs.env_method("get_wrapper_attr", "index", indices=[-1]) == [5]
        assert envs.env_is_wrapped(Monitor, -1) == [False]
        with pytest.raises(IndexError):
            envs.get_attr("index", [-4])
        envs.close()


def test_masks_accept_negative_indices():
    envs = masked()
    envs.reset()
    envs.step(np.zeros(4, int))
    same(envs.env_method("action_masks", indices=[-1]), envs.env_method("action_masks")[3:])
    with pytest.raises(IndexError, match=r"cannot choose env 4: expected -4 to 3"):
        envs.env_method("action_masks", indices=[4])
    envs.close()


PARTS = [spaces.Discrete(3), spaces.MultiBinary(2), spaces.Box(-1, 1, (2,), np.float32)]


@pytest.mark.parametrize(
    "space",
    [
        *PARTS,
        spaces.Tuple(PARTS),
        spaces.Dict(a=PARTS[0], b=spaces.Tuple(PARTS[1:])),
        spaces.Tuple([spaces.Text(4), spaces.Discrete(3)]),
    ],
    ids=str,
)
@pytest.mark.parametrize("kind", [list, tuple])
def test_a_sequence_of_actions_has_one_per_env(space, kind):
    ours, theirs = made = both(lambda: RecordsInputs(space))
    for envs in made:
        envs.reset()
    space.seed(1)
    actions = kind(space.sample() for _ in range(3))
    for a, b in zip(ours.step(actions)[3], theirs.step(actions)[3], strict=True):
        assert a["action"] == b["action"]
    with pytest.raises(ValueError, match="cannot send actions: 2 of them, expected 3"):
        ours.step(actions[:2])
    for envs in made:
        envs.close()


def test_a_dict_of_action_batches_is_accepted():
    envs = VecEnv([lambda: RecordsInputs(spaces.Dict(a=spaces.Discrete(4)))] * 3, num_workers=1)
    envs.reset()
    infos = envs.step({"a": np.arange(3)})[3]
    assert [info["action"] for info in infos] == [describe({"a": np.int64(i)}) for i in range(3)]
    envs.close()


def test_options_per_env_apply_to_one_reset():
    made = both(RecordsInputs)
    each = [{"goal": np.arange(3.0)}, {}, {"goal": np.ones(3)}]
    for envs in made:
        envs.set_options(each)
        envs.reset()
        same(envs.get_attr("options"), [each[0], None, each[2]])
        envs.reset()
        assert envs.get_attr("options") == [None] * 3
        envs.set_options(each[0])
        envs.reset()
        same(envs.get_attr("options"), [each[0]] * 3)
        envs.close()


def test_infos_keep_their_types():
    made = both(RecordsInputs)
    resets = []
    for envs in made:
        envs.reset()
        resets.append(envs.reset_infos)
    assert resets[0] == resets[1]
    ours, theirs = (envs.step([1, 2, 3])[3] for envs in made)
    for a, b in zip(ours, theirs, strict=True):
        assert set(a) == set(b)
        for key in ("_hidden", "float", "int", "bool", "float32", 8, "TimeLimit.truncated"):
            assert type(a[key]) is type(b[key]), key
            assert a[key] == b[key]
        assert a["nested"] == b["nested"]
        assert type(a["nested"]["_bool"]) is bool
        same(a["array"], b["array"])
    for envs in made:
        envs.close()


def test_close_works_twice_and_with_a_pending_step():
    envs = VecEnv([RecordsInputs] * 2, num_workers=1)
    envs.reset()
    envs.step_async([0, 0])
    envs.close()
    envs.close()


def local_wrapper():
    class Local(gym.Wrapper):
        pass

    return Local


def test_env_is_wrapped_tells_local_classes_of_one_name_apart():
    one, other = local_wrapper(), local_wrapper()
    envs = VecEnv([lambda: one(gym.make("CartPole-v1"))], num_workers=1)
    assert envs.env_is_wrapped(one) == [True]
    assert envs.env_is_wrapped(other) == [False]
    assert envs.env_is_wrapped((other, one)) == [True]
    envs.close()


def test_env_is_wrapped_is_per_env_and_render_tiles():
    envs = VecEnv(
        [
            lambda: gym.make("CartPole-v1", render_mode="rgb_array"),
            lambda: Monitor(gym.make("CartPole-v1", render_mode="rgb_array")),
        ],
        num_workers=1,
    )
    assert envs.env_is_wrapped(Monitor) == [False, True]
    assert VecFrameStack(envs, 2).env_is_wrapped(Monitor) == [False, True]
    envs.reset()
    picture = envs.render()
    assert picture.shape[1:] == (2 * 600, 3) or picture.shape[0] == 2 * 400
    np.testing.assert_array_equal(picture, envs.render("rgb_array"))
    with pytest.warns(UserWarning, match="render"):
        assert envs.render("human_no") is None
    envs.close()


@pytest.mark.parametrize("wrapper", [None, VecNormalize, lambda envs: VecFrameStack(envs, 2)])
def test_terminal_observations_pass_through_sb3s_wrappers(wrapper):
    made = [
        kind([functools.partial(Small, n, cut=True) for n in (2, 3, 5)])
        for kind in (VecEnv, DummyVecEnv)
    ]
    if wrapper is not None:
        made = [wrapper(envs) for envs in made]
    same(*(envs.reset() for envs in made))
    for _ in range(11):
        ours, theirs = (envs.step(np.zeros((3, 1))) for envs in made)
        same(ours[0], theirs[0])
        for a, b in zip(ours[3], theirs[3], strict=True):
            assert a.keys() == b.keys()
            if "terminal_observation" in a:
                same(a["terminal_observation"], b["terminal_observation"])
    for envs in made:
        envs.close()


def test_unseeded_envs_differ_between_workers():
    envs = VecEnv([lambda: gym.make("Pendulum-v1")] * 3, num_workers=3)
    envs.seed()
    observations = envs.reset()
    assert len(np.unique(observations[:, 0])) == 3
    envs.close()


class Pendulums(SyncVectorEnv):
    """Pendulums as one vector env."""

    def __init__(self, count=2, mode="SameStep"):
        super().__init__([pendulum] * count, autoreset_mode=mode)


def pendulum():
    return gym.make("Pendulum-v1", max_episode_steps=15)


@pytest.mark.parametrize("mode", ["SameStep", "Disabled"])
@pytest.mark.parametrize("where", ["in workers", "here"])
def test_vector_envs_equal_single_ones(where, mode):
    ours = VecEnv([functools.partial(Pendulums, 2, mode)] * 2, num_workers=2)
    if where == "here":
        ours.close()
        ours = VecEnv(Pendulums(4, mode))
    theirs = VecEnv([pendulum] * 4, num_workers=2)
    for envs in (ours, theirs):
        envs.seed(5)
    same(ours.reset(), theirs.reset())
    theirs.action_space.seed(1)
    for _ in range(40):
        actions = np.stack([theirs.action_space.sample() for _ in range(4)])
        same(ours.step(actions), theirs.step(actions))
    assert ours.get_attr("g") == [10.0] * 4
    ours.set_attr("g", 5.0)
    assert ours.get_attr("g", [1]) == [5.0]
    assert ours.env_method("get_wrapper_attr", "g", indices=[0, 3]) == [5.0] * 2
    with pytest.raises(EnvError, match="cannot set g of some envs: Pendulums is a vector env"):
        ours.set_attr("g", 4.0, indices=[0])
    ours.close()
    theirs.close()


def test_vector_env_of_this_process_is_closed_with_the_adapter_but_not_if_refused():
    envs = Pendulums(2, "NextStep")
    with pytest.raises(ValueError, match="SAME_STEP: its own is NEXT_STEP"):
        VecEnv(envs)
    with pytest.raises(TypeError, match="num_workers is for envs to make"):
        VecEnv(envs, num_workers=2)
    assert not envs.closed
    envs.close()
    envs = Pendulums(2)
    VecEnv(envs).close()
    assert envs.closed


def test_ppo_learns_with_spare_envs():
    env_fns = [lambda: gym.make("Pendulum-v1", max_episode_steps=15)] * 2
    envs = VecMonitor(VecEnv(env_fns, num_workers=2, spare_envs=2))
    envs.reset()
    ended = []
    for _ in range(40):
        _, _, dones, infos = envs.step(np.zeros((2, 1), np.float32))
        ended += [infos[slot] for slot in np.flatnonzero(dones)]
    assert [info["episode"]["l"] for info in ended] == [15] * 4
    assert all(info["terminal_observation"].shape == (3,) for info in ended)
    assert all(info["TimeLimit.truncated"] for info in ended)
    PPO("MlpPolicy", envs, n_steps=32, batch_size=32).learn(128)
    envs.close()


# -- models trained in VecNormalize, as policies of evaluate ---------------------------------------


def normalized_model(kind=PPO, **options):
    envs = VecNormalize(VecMonitor(VecEnv([lambda: gym.make("Pendulum-v1")] * 2, num_workers=0)))
    options = {"n_steps": 256, "batch_size": 64, **options} if kind is PPO else options
    model = kind("MlpPolicy", envs, device="cpu", seed=1, **options)
    model.learn(512)
    return model


def returns_of(model, statistics, seeds=3):
    """Return what SB3's own way of evaluating the model gives, with a seed for each episode."""
    returns = []
    for seed in range(seeds):
        env = gym.make("Pendulum-v1")
        observation, over, total = env.reset(seed=seed)[0], False, 0.0
        while not over:
            normalized = statistics.normalize_obs(observation[None])
            action = model.predict(normalized, deterministic=True)[0][0]
            observation, reward, terminated, truncated, _ = env.step(action)
            over, total = terminated or truncated, total + reward
        returns.append(total)
    return returns


@pytest.mark.parametrize("where", ["main", "workers"])
@pytest.mark.parametrize("kind", [PPO, SAC])
def test_evaluate_uses_the_statistics_of_vec_normalize(tmp_path, kind, where):
    model = normalized_model(kind)
    envs = model.get_vec_normalize_env()
    expected = returns_of(model, envs)
    count = envs.obs_rms.count
    model.save(tmp_path / "model.zip")
    envs.save(tmp_path / "statistics.pkl")
    loaded = kind.load(
        tmp_path / "model.zip", env=VecNormalize.load(tmp_path / "statistics.pkl", envs.venv)
    )
    for each in (model, loaded):
        evaluation = pysampler.evaluate(
            *("Pendulum-v1", each, 3), seed=0, num_workers=1, policy_in=where, batch=1
        )
        np.testing.assert_allclose(evaluation.returns, expected, rtol=1e-5)
    assert envs.obs_rms.count == count
    # Nothing in the file tells whether an off-policy model got other float32 than the env's.
    refused = pytest.raises(ValueError, match="trained in VecNormalize, whose statistics it lacks")
    with pytest.warns(match="if the model was trained in") if kind is SAC else refused:
        pysampler.evaluate("Pendulum-v1", kind.load(tmp_path / "model.zip"), 3)
    with pytest.raises(ValueError, match="normalize with a model that has the statistics"):
        pysampler.evaluate("Pendulum-v1", model, 3, normalize=pysampler.Normalizer())
    with pytest.raises(ValueError, match=r"shape \(4,\), expected \(3,\) as in VecNormalize"):
        pysampler.evaluate("CartPole-v1", model, 3)
    envs.close()


@pytest.mark.parametrize("kind", [PPO, SAC])
def test_evaluate_takes_models_that_were_not_trained_in_vec_normalize(tmp_path, kind):
    envs = VecMonitor(VecEnv([lambda: gym.make("Pendulum-v1")] * 2, num_workers=0))
    model = kind("MlpPolicy", envs, device="cpu", seed=1)
    model.learn(2048 if kind is PPO else 200)
    model.save(tmp_path / "model.zip")
    expected = pysampler.evaluate("Pendulum-v1", model, 3, seed=0, batch=1)
    loaded = kind.load(tmp_path / "model.zip", env=envs, force_reset=False)
    assert pysampler.evaluate("Pendulum-v1", loaded, 3, seed=0, batch=1).episodes == (
        expected.episodes
    )
    envs.close()
    alone = kind.load(tmp_path / "model.zip")
    unsure = pytest.warns(UserWarning, match="if the model was trained in VecNormalize")
    with unsure if kind is SAC else contextlib.nullcontext():
        found = pysampler.evaluate("Pendulum-v1", alone, 3, seed=0, batch=1)
    assert found.episodes == expected.episodes


def test_the_command_evaluates_with_a_file_of_vec_normalize(tmp_path, capsys):
    model = normalized_model()
    model.save(tmp_path / "model.zip")
    model.get_vec_normalize_env().save(tmp_path / "statistics.pkl")
    expected = returns_of(model, model.get_vec_normalize_env())
    command = ["evaluate", str(tmp_path / "model.zip"), "Pendulum-v1", "--episodes", "3", "--json"]
    assert main([*command, "--vec-normalize", str(tmp_path / "statistics.pkl")]) == 0
    episodes = json.loads(capsys.readouterr().out)["episodes"]
    np.testing.assert_allclose([one["return"] for one in episodes], expected, rtol=1e-5)
    assert main(command) == 2
    assert "trained in VecNormalize" in capsys.readouterr().err
    assert main([*command, "--vec-normalize", str(tmp_path / "model.zip")]) == 2
    assert "is not a file of VecNormalize.save" in capsys.readouterr().err
    assert main([*command, "--vec-normalize", str(tmp_path / "missing.pkl")]) == 2
    assert "file not found" in capsys.readouterr().err


class Interrupts(gym.Wrapper):
    """Sends a signal to the program in its third step."""

    def __init__(self, parent):
        super().__init__(Monitor(gym.make("CartPole-v1", max_episode_steps=9)))
        self.parent, self.steps = parent, 0

    def step(self, action):
        self.steps += 1
        if self.steps == 3:
            os.kill(self.parent, signal.SIGUSR1)
        return self.env.step(action)


def _raise(*_):
    raise Interrupted


@pytest.mark.parametrize(
    "options", [{"num_workers": 2}, {"num_workers": 0}, {"context": "threads"}, SyncVectorEnv]
)
def test_sb3_trains_and_evaluates_after_an_interrupted_step(options):
    fns = [functools.partial(Interrupts, os.getpid()), lambda: Monitor(gym.make("CartPole-v1"))]
    if options is SyncVectorEnv:
        envs = VecEnv(SyncVectorEnv(fns, autoreset_mode="SameStep"))
    else:
        envs = VecEnv(fns, **options)
    model = PPO("MlpPolicy", envs, n_steps=8, batch_size=16, seed=0, device="cpu")
    with handler(_raise), pytest.raises(Interrupted):
        model.learn(16)
    model.learn(16)
    assert model.num_timesteps == 16
    returns, _ = evaluate_policy(model, envs, 4, return_episode_rewards=True)
    assert len(returns) == 4
    envs.close()


def test_reset_drops_a_pending_step():
    envs = VecEnv([lambda: gym.make("CartPole-v1")] * 2, num_workers=1)
    envs.seed(1)
    first = envs.reset()
    envs.step_async(np.zeros(2, int))
    envs.seed(1)
    same(envs.reset(), first)
    assert envs.step(np.zeros(2, int))[1].tolist() == [1, 1]
    envs.close()


def test_masks_of_other_dtypes_are_masks():
    def masked(dtype):
        return Small(reset_info={"action_mask": np.array([1, 0, 1], dtype)})

    envs = VecEnv([lambda: masked(bool), lambda: masked("i1")], num_workers=1)
    envs.reset()
    assert np.stack(envs.env_method("action_masks")).tolist() == [[1, 0, 1]] * 2
    envs.close()


class Assorted(gym.Env):
    """Returns infos of types and shapes that differ from env to env."""

    observation_space = gym.spaces.Box(-1, 1, (1,))
    action_space = gym.spaces.Discrete(2)
    values = (1, 1.5, True, np.float32(2.5), "text", None, np.arange(2), [1, [2]])

    def __init__(self, number):
        self.number, self.steps = number, 0

    def results(self):
        some = {"assorted": self.values[self.number], "row": np.zeros(self.number % 3 + 1)}
        return np.zeros(1, np.float32), {
            **some,
            "inner": {"one": 1 if self.number < 4 else 1.5},
        }

    def reset(self, *, seed=None, options=None):
        return self.results()

    def step(self, action):
        self.steps += 1
        observation, info = self.results()
        return observation, 0.0, self.steps % 3 == 0, False, info


def described(info):
    return {
        key: described(one) if isinstance(one, dict) else (type(one), str(one))
        for key, one in info.items()
    }


@pytest.mark.parametrize("workers", [0, 2])
def test_infos_keep_the_types_that_each_env_gives_them(workers):
    makers = [functools.partial(Assorted, number) for number in range(8)]
    envs, theirs = VecEnv(makers, num_workers=workers), DummyVecEnv(makers)
    envs.reset()
    theirs.reset()
    assert [*map(described, envs.reset_infos)] == [*map(described, theirs.reset_infos)]
    for _ in range(7):
        ours, expected = envs.step([0] * 8)[3], theirs.step([0] * 8)[3]
        assert [*map(described, ours)] == [*map(described, expected)]
    envs.close()


@pytest.mark.parametrize("masks", [np.ones(2, bool), lambda player: None], ids=["array", "player"])
def test_an_attribute_that_only_has_the_name_of_action_masks_is_left_alone(masks):
    class Named(Small):
        action_masks = staticmethod(masks) if callable(masks) else masks

    with contextlib.closing(VecEnv([Named] * 2, num_workers=1)) as envs:
        envs.reset()
        envs.step(np.zeros((2, 1)))
        assert "action_mask" not in envs.reset_infos[0]


def test_metadata_are_those_of_the_envs():
    with contextlib.closing(VecEnv([Small] * 2, num_workers=0)) as envs:
        assert envs.metadata["render_fps"] == Small.metadata["render_fps"]


@pytest.mark.parametrize("workers", [0, 1])
def test_infos_that_the_program_keeps_do_not_change(workers):
    def path(env):
        env.path = [*getattr(env, "path", ())] if env.steps == 1 else env.path
        env.path.append(env.steps)
        return {"path": env.path}

    env = functools.partial(Small, 50, info=path)
    with contextlib.closing(VecEnv([env], num_workers=workers)) as envs:
        envs.reset()
        kept = [envs.step(np.zeros((1, 1)))[3][0]["path"] for _ in range(4)]
    assert kept == [[1], [1, 2], [1, 2, 3], [1, 2, 3, 4]]


def test_results_in_an_error_are_those_of_sb3():
    def reward(env, action):
        if action[0] > 0.5:
            raise ValueError("too much")
        return 1.0

    make = functools.partial(Small, 4, reward=reward)
    with contextlib.closing(VecEnv([make] * 2, num_workers=0)) as envs:
        envs.reset()
        with pytest.raises(ValueError, match="too much") as caught:
            envs.step(np.array([[0.0], [1.0]]))
    _, rewards, dones, infos = caught.value.results
    assert rewards.dtype == np.float32
    assert dones.tolist() == [False, False]
    assert [one.get("env_error", False) for one in infos] == [False, True]
