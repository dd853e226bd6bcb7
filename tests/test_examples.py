"""The examples run, and say what became of it."""

import contextlib
import importlib.util
import json
import signal
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

import pysampler

EXAMPLES = Path(__file__).parents[1] / "examples"


def run(name, *arguments):
    command = [sys.executable, str(EXAMPLES / name), "--quiet", "--json", *arguments]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout.splitlines()[-1])


@contextlib.contextmanager
def loaded(name):
    pytest.importorskip("torch")
    pytest.importorskip("tqdm")
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # where dataclasses look for it
    spec.loader.exec_module(module)
    yield module
    del sys.modules[name]


@pytest.fixture
def impala():
    with loaded("impala") as module:
        yield module


@pytest.fixture
def dqn():
    with loaded("dqn") as module:
        yield module


@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["--vec", "gymnasium"],
        ["--where", "workers", "--overlap"],
        ["--env", "HalfCheetah-v5", "--envs", "4"],
    ],
    ids=" ".join,
)
def test_ppo(arguments):
    result = run("ppo.py", "--steps", "4096", *arguments)
    assert result["steps"] >= 4096
    if "--env" not in arguments:
        assert result["return"] > 15  # of episodes that ended; random ones are of about 20


@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments",
    [[], ["--env", "HalfCheetahDir-v5", "--tasks", "2", "--envs-per-task", "2", "--length", "20"]],
    ids=" ".join,
)
def test_maml(arguments):
    result = run("maml.py", "--iterations", "2", *arguments)
    assert len(result["first"]) == len(result["last"]) == 2
    if not arguments:  # a step of gradient helps from the beginning
        before, after = result["last"]
        assert after > before


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 2])
def test_dqn_average(workers, tmp_path):
    plot = ["--plot", str(tmp_path / "returns.png")] if find_spec("matplotlib") else []
    arguments = ["--between", "750", "--every", "3", "--episodes", "4", "--steps", "4500", *plot]
    result = run("dqn_average.py", "--workers", str(workers), *arguments)
    assert result["steps"] == 4500
    assert result["return"] > 15
    assert result["average"] > 8  # what it is by then is as it comes
    assert (tmp_path / "returns.png").exists() == bool(plot)


@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments",
    [[], ["--actors", "0"], ["--actors", "2", "--envs-per-actor", "1"], ["--one-process"]],
    ids=" ".join,
)
def test_dqn(arguments, tmp_path):
    weights, plot = tmp_path / "best.pt", []
    if find_spec("matplotlib"):
        plot = ["--plot", str(tmp_path / "returns.png")]
    result = run("dqn.py", "--steps", "8000", "--save", str(weights), *plot, *arguments)
    steps, updates = result["steps"], result["updates"]
    assert steps >= 8000
    assert (steps - 1000) / 16 <= updates <= steps / 4
    assert result["return"] > 15
    assert run("dqn.py", "--play", str(weights))["return"] > 8  # no episode is shorter
    assert (tmp_path / "returns.png").exists() == bool(plot)


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [[], ["--one-process"]], ids=" ".join)
def test_dqn_goes_on_when_it_was_killed(arguments, tmp_path):
    arguments = ["--checkpoints", str(tmp_path), "--between", "0", "--until", "501", *arguments]
    checkpoints = pysampler.Checkpoints(tmp_path)
    command = [sys.executable, str(EXAMPLES / "dqn.py"), "--quiet", *arguments]
    training = subprocess.Popen(command, start_new_session=True)
    try:
        while (checkpoints.latest or 0) <= 2000 and training.poll() is None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                training.wait(0.05)
    finally:
        training.kill()
    assert training.wait() == -signal.SIGKILL
    killed = checkpoints.latest
    result = run("dqn.py", *arguments, "--steps", str(killed + 3000))
    assert result["resumed"] == killed
    assert result["steps"] == checkpoints.latest >= killed + 3000
    assert (result["steps"] - 1000) / 16 <= result["updates"] <= result["steps"] / 4


def test_dqn_learns_on_as_if_nothing_had_been(dqn, tmp_path):
    import torch

    settings = dqn.Settings(updates=5, target=4, warmup=1, n_step=3)
    like = {"observations": np.zeros(4, np.float32), "actions": np.zeros((), np.int64)}
    like["next_observations"] = like["observations"]
    random = np.random.default_rng(1)

    def learner(seed):
        torch.manual_seed(seed)
        return dqn.Learner(dqn.network(4, 2, 8), like, settings, seed)

    one, other = learner(1), learner(2)
    seen = random.normal(size=(51, 4)).astype(np.float32)
    ends = random.random((2, 50)) < 0.1
    one.steps = 50
    dqn.keep(
        one.replay,
        [(seen[i], seen[i + 1], i % 2, 1.0, *ends[:, i], 0, i == 0) for i in range(50)],
    )
    one.learn()
    checkpoints = pysampler.Checkpoints(tmp_path)
    one.save(checkpoints, best=3.5)
    drawn = torch.rand(3)
    assert other.restore(checkpoints) == {"best": 3.5}
    assert torch.equal(torch.rand(3), drawn)
    for both in (one, other):
        both.learn()
    assert (other.steps, other.updates) == (one.steps, one.updates) == (50, 10)
    for name in ("net", "target"):
        for mine, theirs in zip(
            *(getattr(both, name).parameters() for both in (one, other)), strict=True
        ):
            assert torch.equal(mine, theirs)


def test_what_acts_for_dqn_does_what_its_network_says(dqn):
    import torch

    net = dqn.network(4, 3, 16)
    policy = dqn.EpsilonGreedy(net)
    observations = np.random.default_rng(1).normal(size=(100, 4)).astype(np.float32)
    for _ in range(2):
        with torch.no_grad():
            best = net(torch.from_numpy(observations)).argmax(-1).numpy()
        np.testing.assert_array_equal(policy(observations, np.zeros(100)), best)
        explores = np.arange(100) >= 50
        acted = policy(observations, explores.astype(float))
        np.testing.assert_array_equal(acted[:50], best[:50])
        assert set(acted[50:]) == {0, 1, 2}
        assert (acted[50:] != best[50:]).any()
        with torch.no_grad():  # it has the weights themselves, whatever they become
            net[-1].bias += torch.tensor([0.5, -0.5, 0.0])


@pytest.mark.slow
def test_dppo():
    result = run("dppo.py", "--steps", "9600")
    assert result["steps"] >= 9600
    assert -2000 < result["return"] < 0
    assert result["seconds_in"]["blocked"] > 0  # while the learner learned


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [[], ["--max-lag", "0"]], ids=" ".join)
def test_impala(arguments):
    result = run("impala.py", "--steps", "16000", *arguments)
    assert result["steps"] >= 16000
    assert result["return"] > 25  # random ones are of about 20
    if arguments:
        assert result["lag"] == 0
        assert result["dropped"] > 0


def trajectories(torch, gamma=0.9):
    """Arguments of V-trace: 5 trajectories of 12 steps, in which episodes end in either way."""
    rng = np.random.default_rng(3)
    rewards, values, next_values, log_rhos = torch.from_numpy(rng.normal(size=(4, 5, 12)))
    ends = torch.from_numpy(rng.choice(3, (5, 12), p=[0.7, 0.15, 0.15]))
    terminated, truncated = ends == 1, ends == 2
    going_on = (ends == 0)[:, :-1]
    next_values[:, :-1][going_on] = values[:, 1:][going_on]
    assert terminated.any()
    assert truncated.any()
    return log_rhos, rewards, values, next_values, terminated, truncated, gamma


def test_on_policy_vtrace_is_the_discounted_return(impala):
    import torch

    log_rhos, *given, gamma = trajectories(torch)
    rewards, values, next_values, terminated, truncated = (tensor.numpy() for tensor in given)
    targets, advantages = impala.vtrace(
        torch.zeros_like(log_rhos), *given, gamma=gamma, most_rho=np.inf, most_c=np.inf
    )
    expected = np.zeros((5, 12))
    for env, t in np.ndindex(5, 12):
        total, discount = 0.0, 1.0
        for k in range(t, 12):
            total += discount * rewards[env, k]
            discount *= gamma * (not terminated[env, k])
            if terminated[env, k] or truncated[env, k] or k == 11:
                total += discount * next_values[env, k]
                break
        expected[env, t] = total
    np.testing.assert_allclose(targets, expected)
    np.testing.assert_allclose(advantages, expected - values)
    # So are the returns of generalised estimation with lambda = 1.
    _, returns = pysampler.gae(
        *(rewards.T, values.T, next_values[:, -1], terminated.T, truncated.T),
        next_values.T[truncated.T],
        gamma=gamma,
        lam=1.0,
    )
    np.testing.assert_allclose(targets, returns.T)


def test_vtrace_clips_what_is_likelier_than_it_was(impala):
    import torch

    log_rhos, *given, gamma = trajectories(torch)
    targets, advantages = (
        tensor.numpy()
        for tensor in impala.vtrace(log_rhos, *given, gamma=gamma, most_rho=1.2, most_c=0.8)
    )
    rewards, values, next_values, terminated, truncated = (tensor.numpy() for tensor in given)
    ratios = np.exp(log_rhos.numpy())
    rhos, cs = np.minimum(ratios, 1.2), np.minimum(ratios, 0.8)
    assert (ratios > 1.2).any()
    assert (ratios < 0.8).any()
    errors = rhos * (rewards + gamma * next_values * ~terminated - values)
    over = terminated | truncated
    expected, gains = values.copy(), np.zeros((5, 12))
    for env, t in np.ndindex(5, 12):
        weight = 1.0
        for k in range(t, 12):  # the sum, as the paper has it
            expected[env, t] += weight * errors[env, k]
            weight *= gamma * cs[env, k] * ~over[env, k]
        last = over[env, t] or t == 11
        later = next_values[env, t] if last else targets[env, t + 1]
        gains[env, t] = rewards[env, t] + gamma * later * ~terminated[env, t] - values[env, t]
    np.testing.assert_allclose(targets, expected)
    np.testing.assert_allclose(advantages, rhos * gains)
