"""examples/dqn_atari.py learns from pixels, with and without Atari games installed."""

import importlib.util
import json
import sys
from dataclasses import replace
from pathlib import Path

import cloudpickle
import gymnasium as gym
import numpy as np
import pytest
from replay_in_tests import add_alone
from small_envs import Small

import pysampler

torch = pytest.importorskip("torch")
pytest.importorskip("tqdm")

EXAMPLES = Path(__file__).parents[2] / "examples"


class Catch(gym.Env):
    """A ball falls from the top of 5 x 5 pixels; a bar at the bottom may catch it."""

    observation_space = gym.spaces.Box(0, 255, (5, 5, 1), np.uint8)
    action_space = gym.spaces.Discrete(3)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.row, self.bar, self.ball = 0, 2, int(self.np_random.integers(5))
        return self._image(), {}

    def step(self, action):
        self.bar = min(max(self.bar + int(action) - 1, 0), 4)
        self.row += 1
        ends = self.row == 4
        return self._image(), ends * (1.0 if self.bar == self.ball else -1.0), ends, False, {}

    def _image(self):
        image = np.zeros((5, 5, 1), np.uint8)
        image[self.row, self.ball] = image[4, self.bar] = 255
        return image


def stacked_noise():
    """Return stacks of random frames; episodes of 20 steps alternate between both ends."""
    env = Small(
        20,
        cut=lambda env: env.episodes % 2 == 0,
        observe=lambda env: env.np_random.integers(0, 256, (6, 5), dtype=np.uint8),
        reward=lambda env, _: 23.0 - 2 * env.steps,
        spaces=(gym.spaces.Box(0, 255, (6, 5), np.uint8), gym.spaces.Discrete(3)),
    )
    return gym.wrappers.FrameStackObservation(env, 4)


@pytest.fixture
def dqn(monkeypatch):
    monkeypatch.syspath_prepend(EXAMPLES)
    spec = importlib.util.spec_from_file_location("dqn_atari", EXAMPLES / "dqn_atari.py")
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "dqn_atari", module)  # where dataclasses look for it
    spec.loader.exec_module(module)
    torch.manual_seed(1)
    yield module
    torch.set_flush_denormal(False)


@pytest.fixture
def call(dqn, monkeypatch, capsys):
    """Return a function that calls main with options and returns its result."""
    gym.register("Catch-v0", Catch)
    # Workers cannot import this file, nor the example by its name here.
    for module in (sys.modules[__name__], dqn):
        cloudpickle.register_pickle_by_value(module)

    def called(*options):
        monkeypatch.setattr(sys, "argv", ["dqn_atari", "--quiet", "--json", *map(str, options)])
        dqn.main()
        return json.loads(capsys.readouterr().out.splitlines()[-1])

    yield called
    for module in (sys.modules[__name__], dqn):
        cloudpickle.unregister_pickle_by_value(module)
    del gym.registry["Catch-v0"]


def quick(settings, **changes):
    return replace(
        settings, warmup=100, exploring=2000, target=50, epsilons=(0.01, 0.02), **changes
    )


@pytest.fixture
def quick_settings(dqn, monkeypatch):
    monkeypatch.setattr(dqn, "SMALL", quick(dqn.SMALL, rate=2e-3, most=4))
    monkeypatch.setattr(dqn, "ATARI", quick(dqn.ATARI))


def learner_of(dqn, **changes):
    """Return a learner of stacks of four frames."""
    space = stacked_noise().observation_space
    settings = replace(dqn.ATARI, capacity=300, **changes)
    net = dqn.Network(space, 3, settings, is_stack=True)
    one = np.zeros(space.shape, space.dtype)
    like = {"observations": one, "next_observations": one, "actions": np.zeros((), np.int64)}
    return dqn.Learner(net, like, settings, 3, stacks=["observations"]), like


def test_batches_equal_a_plain_buffer_with_clipped_rewards(dqn):
    learner, like = learner_of(dqn)
    s = learner.settings
    plain = pysampler.ReplayBuffer(300, like, n_step=s.n_step, gamma=s.gamma, seed=3)
    random, returns = np.random.default_rng(1), set()

    def policy(observations):
        return random.integers(3, size=len(observations))

    options = {"num_envs": 3, "vector_kwargs": {"num_workers": 0}, "seed": 1}
    with pysampler.Actors(stacked_noise, policy, **options) as actors:
        for _ in range(20):  # more than the buffers keep
            records = actors.take(40, min_records=40).copy()
            rewards = records.rewards.copy()
            learner.add(records)
            returns.update(records.ended.tolist())
            rows = records.rows
            plain.add(
                {name: rows[name] for name in like},
                rewards=np.sign(rewards),
                **{name: rows[name] for name in ("terminated", "truncated", "env")},
            )
            drawn, expected = learner.replay.sample(50), plain.sample(50)
            for name in ("observations", "actions"):
                np.testing.assert_array_equal(drawn.fields[name], expected.fields[name])
            np.testing.assert_array_equal(
                drawn.next_fields["next_observations"], expected.next_fields["next_observations"]
            )
            np.testing.assert_array_equal(drawn.rewards, expected.rewards)
            np.testing.assert_array_equal(drawn.discounts, expected.discounts)
    assert returns == {20 * 23.0 - 2 * 210.0}  # the env's rewards, not clipped
    assert drawn.fields["observations"].dtype == np.uint8
    # Frames are as small as their indices here, and each record also stores its oldest index.
    assert learner.replay.nbytes < plain.nbytes * 0.55


def test_goals_bootstrap_at_truncation_but_not_at_termination(dqn):
    learner, _ = learner_of(dqn, n_step=2, gamma=0.5)
    with torch.no_grad():  # the target is another network
        learner.target.advantages.bias += torch.tensor([1.0, 2.0, 3.0])
    images = np.random.default_rng(1).integers(0, 256, (6, 4, 6, 5), dtype=np.uint8)
    learner.replay.add(
        {"observations": images, "next_observations": images[::-1], "actions": np.zeros(6, int)},
        rewards=[1, 2, 4, 8, 16, 32],
        terminated=[0, 0, 1, 0, 0, 0],
        truncated=[0, 0, 0, 0, 1, 0],
        env=np.zeros(6, int),
    )
    with torch.no_grad():
        after = torch.from_numpy(images[::-1].copy())
        best = learner.net(after).argmax(1)
        values = learner.target(after)[np.arange(6), best]
    expected = [
        1 + 1.0 + values[1] / 4,
        2 + 2.0,
        4.0,
        8 + 8.0 + values[4] / 4,
        16 + values[4] / 2,
        32 + values[5] / 2,
    ]
    batch = learner.replay.sample(100)
    goals = learner.goals(batch.torch())
    assert set(batch.indices) == {0, 1, 2, 3, 4, 5}
    for index, goal in zip(batch.indices, goals, strict=True):
        torch.testing.assert_close(goal.float(), torch.as_tensor(expected[index]).float())


@pytest.mark.slow
def test_updates_move_values_of_taken_actions_to_the_goals(dqn):
    learner, _ = learner_of(dqn, n_step=1, gamma=0.0, rate=1e-3)
    images = np.random.default_rng(1).integers(0, 256, (6, 4, 6, 5), dtype=np.uint8)
    actions, rewards = np.arange(6) % 3, np.array([1.0, -1, 0, -1, 0, 1])
    fields = {"observations": images, "next_observations": images, "actions": actions}
    add_alone(learner.replay, fields, rewards=rewards)
    for _ in range(100):
        learner.update()
    with torch.no_grad():
        values = learner.net(torch.from_numpy(images)).numpy()
    np.testing.assert_allclose(values[np.arange(6), actions], rewards, atol=0.1)


def test_the_target_network_is_copied_every_few_updates(dqn):
    learner, _ = learner_of(dqn, target=10, updates=4)
    images = np.zeros((6, 4, 6, 5), np.uint8)
    fields = {"observations": images, "next_observations": images, "actions": np.zeros(6, int)}
    add_alone(learner.replay, fields)
    first = learner.net.advantages.bias.tolist()
    for updates in range(4, 41, 4):
        before = learner.target.advantages.bias.tolist()
        learner.learn()
        assert learner.updates == updates
        changed = learner.target.advantages.bias.tolist() != before
        assert changed == (updates % 20 in {0, 12})
    assert learner.target.advantages.bias.tolist() == learner.net.advantages.bias.tolist() != first


def test_epsilon_is_the_share_of_random_actions(dqn):
    net = dqn.Network(stacked_noise().observation_space, 3, dqn.SMALL, is_stack=True)
    policy = dqn.EpsilonGreedy(net)
    images = torch.randint(0, 256, (300, 4, 6, 5), dtype=torch.uint8)
    with torch.no_grad():
        net.advantages.weight *= 10  # so that no single action is the best for all images
        best = net(images).argmax(1)
        assert len(best.unique()) > 1
        assert torch.equal(policy(images, torch.zeros(300)), best)
        assert torch.equal(policy(images, 0.0), best)
        each = torch.arange(300) >= 150
        acted = policy(images, each.double())
    assert torch.equal(acted[:150], best[:150])
    assert (acted[150:] != best[150:]).float().mean() > 0.5  # two of three
    assert acted[150:].unique().tolist() == [0, 1, 2]


def test_the_network_scales_bytes_and_accepts_either_channel_order(dqn):
    box = gym.spaces.Box
    net = dqn.Network(box(0, 255, (4, 6, 5), np.uint8), 3, dqn.SMALL, is_stack=True)
    channels_last = dqn.Network(box(0, 255, (6, 5, 4), np.uint8), 3, dqn.SMALL, is_stack=False)
    of_parts = dqn.Network(box(0, 1, (4, 6, 5), np.float32), 3, dqn.SMALL, is_stack=True)
    for other in (channels_last, of_parts):
        other.load_state_dict(net.state_dict())
    images = torch.randint(0, 256, (10, 4, 6, 5), dtype=torch.uint8)
    with torch.no_grad():
        values = net(images)
        torch.testing.assert_close(channels_last(images.permute(0, 2, 3, 1)), values)
        torch.testing.assert_close(of_parts(images / 255), values)
        net.bfloat16 = True
        rough = net(images)
    assert rough.dtype == torch.float32
    assert not torch.equal(rough, values)
    torch.testing.assert_close(rough, values, rtol=0, atol=0.02)


def test_84_x_84_images_use_the_dqn_network(dqn):
    net = dqn.Network(gym.spaces.Box(0, 255, (4, 84, 84), np.uint8), 6, dqn.SMALL, is_stack=True)
    assert sum(p.numel() for p in net.parameters()) == 1_687_206
    small = dqn.Network(gym.spaces.Box(0, 1, (10, 10, 4), bool), 3, dqn.SMALL, is_stack=False)
    assert sum(p.numel() for p in small.parameters()) == 592 + 131_200 + 387


@pytest.mark.slow
@pytest.mark.parametrize("actors", [0, 1])
def test_training_on_pixels_saves_plays_and_resumes(actors, call, quick_settings, tmp_path):
    arguments = ["--env", "Catch-v0", "--actors", actors, "--save", tmp_path / "best.pt"]
    kept = ["--checkpoints", tmp_path / "run", "--checkpoint-replay"]
    result = call(*arguments, *kept, "--steps", "15000", "--until", "0.9")
    assert result["return"] >= 0.9  # a random policy gets about -0.6
    assert result["updates"] >= (result["steps"] - 200) / 4  # actors wait for these updates
    played = call("--env", "Catch-v0", "--play", tmp_path / "best.pt")
    assert played["return"] > 0.5

    steps = result["steps"]
    longer = ["--steps", steps + 200, "--until", 2]
    resumed = call(*arguments, *kept, *longer)
    assert resumed["resumed"] == steps
    assert resumed["steps"] >= steps + 200
    assert resumed["replay"] == resumed["steps"]
    assert resumed["return"] > 0.7  # with the saved weights and the old epsilon
    saved = pysampler.Checkpoints(tmp_path / "run").restore()
    assert saved["updates"] == resumed["updates"] > result["updates"]


@pytest.mark.slow
def test_checkpoints_omit_the_replay_buffer_unless_asked(call, quick_settings, tmp_path):
    arguments = ["--env", "Catch-v0", "--actors", "0", "--checkpoints", tmp_path]
    first = call(*arguments, "--steps", "500")
    saved = pysampler.Checkpoints(tmp_path).restore()
    assert "replay" not in saved
    assert saved["updates"] == first["updates"] > 0
    resumed = call(*arguments, "--steps", "900")
    assert resumed["resumed"] == first["steps"]
    assert resumed["replay"] == resumed["steps"] - first["steps"]  # filled anew, before updates
    assert 0 < resumed["updates"] - first["updates"] <= resumed["replay"] / 2


def test_a_small_capacity_shortens_the_warm_up(call, dqn, monkeypatch):
    monkeypatch.setattr(dqn, "SMALL", replace(dqn.SMALL, warmup=10_000))
    result = call("--env", "Catch-v0", "--actors", "0", "--capacity", "100", "--steps", "200")
    assert result["replay"] == 100
    assert result["updates"] > 0


@pytest.mark.parametrize(
    ("env", "module", "package"),
    [
        ("ALE/Pong-v5", "ale_py", r"'pysampler\[atari\]'"),
        ("ALE/Pong-v5", "cv2", r"'pysampler\[atari\]'"),
        ("MinAtar/Breakout-v7", "minatar", "minatar"),
    ],
)
def test_missing_packages_are_named(env, module, package, call, monkeypatch):
    if module == "cv2":
        pytest.importorskip("ale_py", reason="games of the ALE are not installed")
    for name in (module, f"{module}.gym"):
        monkeypatch.setitem(sys.modules, name, None)  # as if it were not installed
    with pytest.raises(SystemExit, match=rf"cannot make {env}: .*{module}.*pip install {package}$"):
        call("--env", env)


def test_unsupported_envs_are_refused(call):
    with pytest.raises(SystemExit, match=r"cannot learn CartPole-v1: .*expected a Box of 3 dim"):
        call("--env", "CartPole-v1")
    with pytest.raises(SystemExit, match=r"cannot make Nowhere-v0: .*Nowhere"):
        call("--env", "Nowhere-v0")
    gym.register("Tiny-v0", lambda: gym.wrappers.ReshapeObservation(Catch(), (1, 5, 5)))
    try:
        with pytest.raises(SystemExit, match=r"cannot learn Tiny-v0: images \(1, 5, 5\), expected"):
            call("--env", "Tiny-v0")
    finally:
        del gym.registry["Tiny-v0"]


@pytest.mark.slow
@pytest.mark.parametrize("actors", [0, 1])
def test_pong_trains_on_stacks_of_four_screens(actors, call, quick_settings, tmp_path):
    for module in ("ale_py", "cv2"):
        pytest.importorskip(module, reason="pip install 'pysampler[atari]'")
    arguments = ["--actors", actors, "--envs-per-actor", "2", "--capacity", "2000"]
    kept = ["--checkpoints", tmp_path, "--checkpoint-replay"]
    result = call(*arguments, *kept, "--steps", "200")
    assert result["env"] == "ALE/Pong-v5"
    assert result["updates"] > 0
    replay = pysampler.Checkpoints(tmp_path).restore()["replay"]
    drawn = replay.sample(100)
    images = drawn.fields["observations"]
    assert images.shape == (100, 4, 84, 84)
    assert images.dtype == np.uint8
    assert len(np.unique(images)) > 3  # the field, ball, bats and borders


@pytest.mark.slow
def test_minatar_trains_on_its_own_channels(call, quick_settings):
    pytest.importorskip("minatar", reason="pip install minatar")
    arguments = ["--env", "MinAtar/Breakout-v1", "--actors", "0", "--steps", "600"]
    result = call(*arguments)
    assert result["updates"] > 0
    assert 0 <= result["return"] < 5
