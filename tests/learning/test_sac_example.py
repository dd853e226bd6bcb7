"""examples/sac.py: acting, learning, and resumed training."""

import argparse
import contextlib
import importlib.util
import json
import sys
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
from programs import completed
from small_envs import Small
from trainings_in_tests import killed_after

import pysampler

EXAMPLES = Path(__file__).parents[2] / "examples"
SEEN = gym.spaces.Box(-np.inf, np.inf, (3,), np.float64)
ACTIONS = gym.spaces.Box(
    np.array([-1, 0.1, -7], np.float32), np.array([3, 0.3, -5], np.float32), dtype=np.float32
)


def run(*arguments):
    program = str(EXAMPLES / "sac.py")
    done = completed(program, "--quiet", "--json", *arguments, timeout=None)
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture
def sac(monkeypatch):
    pytest.importorskip("torch")
    pytest.importorskip("tqdm")
    monkeypatch.syspath_prepend(EXAMPLES)
    spec = importlib.util.spec_from_file_location("sac", EXAMPLES / "sac.py")
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "sac", module)  # where dataclasses look for it
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def torch():
    return pytest.importorskip("torch")


def settings_of(sac, **given):
    return sac.Settings(**{"width": 16, "batch": 32, "capacity": 1000, "start": 20, **given})


def filled(learner, count=200, seed=1):
    """Add random steps to a learner's replay buffer and count them."""
    random = np.random.default_rng(seed)
    learner.replay.add(
        {
            "observations": random.normal(size=(count, 3)),
            "next_observations": random.normal(size=(count, 3)),
            "squashed": random.uniform(-1, 1, (count, 3)),
        },
        rewards=random.normal(size=count),
        terminated=random.random(count) < 0.1,
        truncated=random.random(count) < 0.1,
        env=np.zeros(count, np.int64),
    )
    learner.steps += count
    return learner


# -- a whole training ------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "updates_per_step"),
    [
        pytest.param([], 1, marks=pytest.mark.long),
        pytest.param(["--td3"], 1, marks=pytest.mark.long),
        pytest.param(["--ddpg"], 1, marks=pytest.mark.long),
        (["--workers", "0", "--updates-per-step", "0.25"], 0.25),
        pytest.param(
            ["--workers", "2", "--envs", "2", "--updates-per-step", "1.5"],
            1.5,
            marks=pytest.mark.long,
        ),
    ],
    ids=["SAC", "TD3", "DDPG", "in this process", "two workers"],
)
@pytest.mark.usefixtures("torch")
def test_training_makes_updates_in_proportion_to_steps(arguments, updates_per_step, tmp_path):
    weights = tmp_path / "best.pt"
    result = run("--steps", "1500", "--start", "1000", "--save", str(weights), *arguments)
    assert 1500 <= result["steps"] < 1516
    assert result["updates"] == int((result["steps"] - 1000) * updates_per_step)
    assert -2000 < result["return"] < 0
    assert (result["temperature"] is None) == bool({"--td3", "--ddpg"} & {*arguments})
    assert -2000 < run("--play", str(weights))["return"] < 0


@pytest.mark.long
@pytest.mark.parametrize("algorithm", [[], ["--td3"]], ids=" ".join)
@pytest.mark.usefixtures("torch")
def test_killed_training_resumes(algorithm, tmp_path):
    arguments = ["--checkpoints", str(tmp_path), "--checkpoint-seconds", "0", *algorithm]
    checkpoints = pysampler.Checkpoints(tmp_path)
    killed = killed_after(250, checkpoints, EXAMPLES / "sac.py", "--quiet", *arguments)
    result = run(*arguments, "--steps", str(killed + 150))
    assert result["resumed"] == killed
    assert result["steps"] == checkpoints.latest >= killed + 150
    saved = checkpoints.restore()
    assert saved["updates"] == result["steps"] - 100
    assert saved["replay"].added == result["steps"]


@pytest.mark.parametrize("algorithm", ["SAC", "TD3", "DDPG"])
def test_a_restored_learner_continues_exactly(sac, torch, algorithm, tmp_path):
    def learner(seed):
        torch.manual_seed(seed)
        return getattr(sac, algorithm)((SEEN, ACTIONS), settings_of(sac), seed)

    def progress():
        options = argparse.Namespace(
            env="Pendulum-v1", checkpoints=tmp_path, checkpoint_seconds=0, steps=10_000
        )
        return sac.Run(options)

    one, other = filled(learner(1)), learner(2)
    one.learn(5)
    saving, resuming = progress(), progress()
    saving.steps = one.steps
    one.save(saving)
    drawn = torch.rand(3)
    other.restore(resuming)
    assert torch.equal(torch.rand(3), drawn)
    assert resuming.resumed == 200
    assert (other.steps, other.updates) == (200, 5)
    for both in (one, other):
        torch.manual_seed(3)
        both.learn(5)
    for name, mine in one.state_dict().items():
        assert torch.equal(mine, other.state_dict()[name]), name


# -- acting ----------------------------------------------------------------------------------------


def test_the_explorer_acts_by_the_actors_mean(sac, torch):
    actor = sac.network(3, 3, 16)
    explorer = sac.Explorer(actor, ACTIONS, (-20, 2))
    observations = np.random.default_rng(1).normal(size=(100, 3))
    low, high = torch.from_numpy(ACTIONS.low), torch.from_numpy(ACTIONS.high)
    for _ in range(2):
        with torch.no_grad():
            mean = actor(torch.from_numpy(observations).float())[:, :3].tanh()
        actions, extras = explorer(observations)
        np.testing.assert_allclose(extras["squashed"], mean, atol=1e-5)
        np.testing.assert_allclose(actions, low + (mean + 1) / 2 * (high - low), atol=1e-5)
        assert actions.dtype == extras["squashed"].dtype == np.float32
        with torch.no_grad():  # the explorer shares the actor's weights
            actor[-1].bias += 0.3


def test_the_explorer_draws_from_the_learned_distribution(sac, torch):
    torch.manual_seed(1)
    np.random.seed(1)
    actor = sac.network(3, 3, 16)
    with torch.no_grad():
        actor[-1].bias[3:] = torch.tensor([-1.0, 0.0, 5.0])  # the last is above the bound
    explorer = sac.Explorer(actor, ACTIONS, (-20, -0.5))
    observations = np.repeat([[0.3, -0.2, 0.9]], 50_000, axis=0)
    _, extras = explorer(observations, spread=np.ones(50_000))
    with torch.no_grad():
        drawn, _ = sac.draw(actor, torch.from_numpy(observations).float(), (-20, -0.5))
    mine, theirs = np.arctanh(extras["squashed"].astype(float)), np.arctanh(drawn.double().numpy())
    np.testing.assert_allclose(mine.mean(0), theirs.mean(0), atol=0.02)
    np.testing.assert_allclose(mine.std(0), theirs.std(0), rtol=0.02)
    assert abs(mine.std(0)[2] - np.exp(-0.5)) < 0.02
    assert np.abs(np.corrcoef(mine.T) - np.eye(3)).max() < 0.02


@pytest.mark.parametrize(
    "explores",
    [{"random": 1.0}, {"spread": 1.0}, {"noise": 0.1}, {"noise": 5.0}, {"random": 0.5}],
    ids=str,
)
def test_actions_are_within_the_bounds(sac, torch, explores):
    actor = sac.network(3, 3, 16)
    with torch.no_grad():
        actor[-1].bias[:3] = torch.tensor([100.0, -100.0, 0.0])
        actor[-1].bias[3:] = 2.0
    actions, extras = sac.Explorer(actor, ACTIONS, (-20, 2))(np.zeros((5000, 3)), **explores)
    assert (actions >= ACTIONS.low).all()
    assert (actions <= ACTIONS.high).all()
    assert (np.abs(extras["squashed"]) <= 1).all()
    if explores == {"random": 1.0}:
        np.testing.assert_allclose(actions.mean(0), ACTIONS.low / 2 + ACTIONS.high / 2, rtol=0.05)
    else:  # the ends of the range are the bounds themselves
        assert (actions[:, 0] == ACTIONS.high[0]).any()
        assert (actions[:, 1] == ACTIONS.low[1]).any()


def test_log_probabilities_equal_a_squashed_normal(sac, torch):
    torch.manual_seed(1)
    actor = sac.network(3, 3, 16).double()
    observations = torch.randn(1000, 3, dtype=torch.float64)
    squashed, log_probs = sac.draw(actor, observations, (-20, 2))
    mean, log_std = actor(observations).chunk(2, -1)
    expected = torch.distributions.TransformedDistribution(
        torch.distributions.Normal(mean, log_std.exp()),
        torch.distributions.TanhTransform(cache_size=1),
    ).log_prob(squashed)
    torch.testing.assert_close(log_probs, expected.sum(-1), rtol=1e-5, atol=1e-5)


def test_log_probabilities_stay_finite_where_tanh_is_1(sac, torch):
    actor = sac.network(3, 3, 16)
    with torch.no_grad():
        actor[-1].bias[:3] = 50.0
    squashed, log_probs = sac.draw(actor, torch.zeros(10, 3), (-20, 2))
    assert (squashed == 1).all()
    assert log_probs.isfinite().all()


# -- learning --------------------------------------------------------------------------------------


def counter(ends):
    """Return an env that observes its steps; episodes end after three."""
    return Small(
        3,
        cut=ends == "truncated",
        observe=lambda env: np.full(3, env.steps, np.float32),
        spaces=(gym.spaces.Box(0, 10, (3,)), ACTIONS),
    )


@pytest.mark.parametrize("algorithm", ["SAC", "TD3", "DDPG"])
@pytest.mark.parametrize("ends", ["terminated", "truncated"])
def test_critics_bootstrap_at_truncation_but_not_at_termination(
    sac, torch, monkeypatch, algorithm, ends
):
    options = argparse.Namespace(env=lambda: counter(ends), envs=2, workers=0, seed=1)
    learner = getattr(sac, algorithm)((SEEN, ACTIONS), settings_of(sac, start=0), 1)
    values = learner.next_values
    # Each next observation is worth 100 per step.
    monkeypatch.setattr(learner, "next_values", lambda after: 0 * values(after) + 100 * after[:, 0])
    batches = []
    monkeypatch.setattr(learner, "update", lambda *batch: batches.append(batch))
    with contextlib.closing(sac.actors_of(learner, ACTIONS, options)) as actors:
        training = sac.train(actors, learner)
        while len(batches) < 10:
            next(training)
    seen, _, after, rewards, discounts = (torch.cat(parts) for parts in zip(*batches, strict=True))
    torch.testing.assert_close(after, seen + 1)  # final observations, not those of the next episode
    is_last = after[:, 0] == 3
    assert is_last.any()
    goals = learner.goals(after, rewards, discounts)
    expected = 1 + 0.99 * 100 * after[:, 0]
    if ends == "terminated":
        expected[is_last] = 1
    torch.testing.assert_close(goals, expected)


def test_sac_values_include_entropy(sac, torch):
    learner = sac.SAC((SEEN, ACTIONS), settings_of(sac), 1)
    with torch.no_grad():
        learner.log_temperature.fill_(0.5)
        after = torch.randn(50, 3)
        torch.manual_seed(1)
        values = learner.next_values(after)
        torch.manual_seed(1)
        squashed, log_probs = sac.draw(learner.actor, after, (-20, 2))
        both = learner.target_critics(after, squashed)
    torch.testing.assert_close(values, torch.minimum(*both) - np.exp(0.5) * log_probs)


def test_td3_smooths_target_actions(sac, torch, monkeypatch):
    learner = sac.TD3((SEEN, ACTIONS), settings_of(sac), 1)
    given = []
    critics = learner.target_critics.forward
    monkeypatch.setattr(
        learner.target_critics, "forward", lambda *both: given.append(both) or critics(*both)
    )
    with torch.no_grad():
        learner.target_actor[-1].bias[:] = torch.tensor([0.0, 0.0, 100.0, 0.0, 0.0, 0.0])
        after = torch.zeros(5000, 3)
        learner.next_values(after)
        mean = learner.target_actor(after)[:, :3].tanh()
    [(_, squashed)] = given
    noise = squashed - mean
    assert abs(noise[:, 0].std() - 0.2) < 0.02
    torch.testing.assert_close(noise[:, 0].abs().max(), torch.tensor(0.5))
    assert squashed.max() == 1


def test_ddpg_believes_its_first_critic(sac, torch):
    learner = sac.DDPG((SEEN, ACTIONS), settings_of(sac), 1)
    with torch.no_grad():
        after = torch.randn(50, 3)
        squashed = learner.target_actor(after)[:, :3].tanh()
        expected = learner.target_critics(after, squashed)[0]
        assert torch.equal(learner.next_values(after), expected)


def test_the_two_critics_share_no_weights(sac, torch):
    critics = sac.TwinCritics(6, 16)
    seen, squashed = torch.randn(10, 3), torch.randn(10, 3)
    values = critics(seen, squashed)
    assert values.shape == (2, 10)
    hidden = torch.cat((seen, squashed), -1)
    for index in range(2):
        one = hidden
        for layer, (weight, bias) in enumerate(zip(critics.weights, critics.biases, strict=True)):
            one = one @ weight[index] + bias[index]
            one = one.relu() if layer < 2 else one
        torch.testing.assert_close(values[index], one[:, 0])
    assert not torch.isclose(values[0], values[1]).any()


@pytest.mark.parametrize("algorithm", ["SAC", "TD3", "DDPG"])
def test_critics_do_not_learn_from_the_actors_loss(sac, torch, algorithm):
    learner = getattr(sac, algorithm)((SEEN, ACTIONS), settings_of(sac), 1)
    learner.actor_loss(torch.randn(50, 3)).backward()
    assert all(one.grad is None for one in learner.critics.parameters())
    assert all(one.requires_grad for one in learner.critics.parameters())
    assert all(one.grad is not None for one in learner.actor.parameters())


def test_the_temperature_rises_while_entropy_is_low(sac, torch):
    learner = sac.SAC((SEEN, ACTIONS), settings_of(sac), 1)
    for log_std, sign in ((-5.0, -1), (0.0, 1)):  # low and high entropy
        with torch.no_grad():
            learner.actor[-1].bias[3:] = log_std
        learner.log_temperature.grad = None
        learner.actor_loss(torch.zeros(500, 3)).backward()
        assert torch.sign(learner.log_temperature.grad) == sign


@pytest.mark.parametrize(("algorithm", "delay"), [("SAC", 1), ("TD3", 2), ("DDPG", 1)])
def test_actor_and_targets_update_once_per_delay(sac, torch, algorithm, delay):
    settings = settings_of(sac, tau=0.25, rate=0.01)  # moves larger than rounding
    learner = filled(getattr(sac, algorithm)((SEEN, ACTIONS), settings, 1))

    def state():
        return {name: tensor.clone() for name, tensor in learner.state_dict().items()}

    for update in range(4):
        before = state()
        learner.learn(1)
        after = state()
        moves = update % delay == 0
        assert not torch.equal(after["critics.weights.0"], before["critics.weights.0"])
        assert torch.equal(after["actor.0.weight"], before["actor.0.weight"]) != moves
        expected = before["target_critics.weights.0"]
        if moves:
            expected = 0.75 * expected + 0.25 * after["critics.weights.0"]
        torch.testing.assert_close(after["target_critics.weights.0"], expected)
        if algorithm != "SAC" and moves:
            expected = 0.75 * before["target_actor.0.weight"] + 0.25 * after["actor.0.weight"]
            torch.testing.assert_close(after["target_actor.0.weight"], expected)


def test_actions_are_random_until_learning_starts(sac):
    options = argparse.Namespace(env=lambda: counter("truncated"), envs=2, workers=0, seed=1)
    learner = sac.SAC((SEEN, ACTIONS), settings_of(sac, start=40), 1)
    with contextlib.closing(sac.actors_of(learner, ACTIONS, options)) as actors:
        training = sac.train(actors, learner)
        while learner.steps < 40:
            assert (actors.settings["random"] == 1).all()
            assert learner.updates == 0
            next(training)
        assert (actors.settings["random"] == 0).all()
        assert learner.updates == learner.steps - 40
    learner.steps = 50  # as if restored
    with contextlib.closing(sac.actors_of(learner, ACTIONS, options)) as actors:
        assert (actors.settings["random"] == 0).all()


# -- options ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--envs", "0"], "argument --envs: 0, expected at least 1"),
        (["--updates-per-step", "0"], "argument --updates-per-step: 0.0, expected more than 0"),
        (["--updates-per-step", "nan"], "argument --updates-per-step: nan, expected more than 0"),
        (["--show", "human"], "--show is of --play; expected --play too"),
    ],
)
def test_bad_options_are_refused(sac, monkeypatch, capsys, arguments, expected):
    monkeypatch.setattr(sys, "argv", ["sac.py", *arguments])
    with pytest.raises(SystemExit) as error:
        sac.main()
    assert error.value.code == 2
    assert expected in capsys.readouterr().err


def test_discrete_actions_are_refused(sac, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["sac.py", "--env", "CartPole-v1", "--quiet"])
    with pytest.raises(SystemExit, match="cannot learn CartPole-v1: .*expected .*a bounded Box"):
        sac.main()
