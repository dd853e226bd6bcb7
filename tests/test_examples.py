"""The examples: training, resuming, interrupts, options and full disks."""

import argparse
import contextlib
import importlib.util
import json
import signal
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
from disk import full_after
from made_up import same
from trainings_in_tests import killed_after

import pysampler

EXAMPLES = Path(__file__).parents[1] / "examples"
BENCHMARKS = EXAMPLES.parent / "benchmarks"
# Arguments with which each example samples in this process.
ALONE = {
    "dppo": ["--workers", "0"],
    "dqn": ["--actors", "0"],
    "dqn_average": ["--workers", "0", "--between", "50"],
    "impala": ["--workers", "0"],
    "maml": ["--workers", "0", "--tasks", "2", "--length", "10"],
    "ppo": ["--workers", "0"],
    "ppo_learners": ["--learners", "1", "--workers", "0"],
    "r2d1": ["--actors", "0"],
    "sac": ["--workers", "0"],
}
# Examples that accept only discrete actions, and those that accept either kind.
DISCRETE = {"dqn", "dqn_average", "impala", "r2d1"}
EITHER = {"ppo", "ppo_learners"}


def run(name, *arguments):
    command = [sys.executable, str(EXAMPLES / name), "--quiet", "--json", *arguments]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout.splitlines()[-1])


@contextlib.contextmanager
def loaded(name, folder=EXAMPLES):
    if folder == EXAMPLES:
        pytest.importorskip("torch")
        pytest.importorskip("tqdm")
    spec = importlib.util.spec_from_file_location(name, folder / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # where dataclasses look for it
    sys.path.insert(0, str(folder))  # as for a program
    try:
        spec.loader.exec_module(module)
        yield module
    finally:
        sys.path.remove(str(folder))
        del sys.modules[name]


@pytest.fixture(params=sorted(ALONE))
def example(request, monkeypatch):
    """Yield an example and a function that calls its main with arguments."""
    with loaded(request.param) as module:

        def call(*arguments):
            monkeypatch.setattr(sys, "argv", [request.param, "--quiet", *arguments])
            try:
                module.main()
            except KeyboardInterrupt:  # would end pytest
                pytest.fail("it was interrupted")

        yield module, call


@pytest.fixture
def maml():
    with loaded("maml") as module:
        yield module


@pytest.fixture
def ppo():
    with loaded("ppo") as module:
        yield module


@pytest.fixture
def impala():
    with loaded("impala") as module:
        yield module


@pytest.fixture
def dqn():
    with loaded("dqn") as module:
        yield module


@pytest.mark.parametrize("made", ["nothing", "something"])
def test_an_interrupt_ends_with_a_result(example, made, monkeypatch, capsys):
    module, call = example
    common = sys.modules["common"]

    class Bar(common.tqdm):
        def __init__(self, *args, **kwargs):
            if made == "nothing":
                raise KeyboardInterrupt
            super().__init__(*args, **kwargs)

        def set_postfix(self, *args, **kwargs):
            raise KeyboardInterrupt

    monkeypatch.setattr(common, "tqdm", Bar)
    call(*ALONE[module.__name__])
    [line] = capsys.readouterr().out.splitlines()
    assert "nan" not in line
    call(*ALONE[module.__name__], "--json")
    result = json.loads(capsys.readouterr().out)
    done = result.get("steps", result.get("iterations"))
    assert (done > 0) == (made == "something")
    assert "waiting" not in result or result["waiting"] >= 0


@pytest.mark.slow
@pytest.mark.parametrize("after", ["imports", "a while"])
def test_ctrl_c_leaves_no_traceback(after):
    command = [sys.executable, "-u", str(EXAMPLES / "ppo.py"), "--envs", "2", "--steps", "1000000"]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        if after == "a while":
            while "return=" not in process.stderr.readline(200):
                assert process.poll() is None
        else:
            maps = Path(f"/proc/{process.pid}/maps")
            while "libtorch" not in maps.read_text():
                assert process.poll() is None
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    finally:
        process.kill()
    assert "Traceback" not in err
    if after == "a while":
        assert "steps in" in out
    else:
        assert "stopped before anything was learned" in err


@pytest.mark.parametrize("number", ["0", "-3", "1.5"])
def test_numbers_of_envs_below_one_are_refused(example, number, capsys):
    module, call = example
    option = {"maml": "--envs-per-task", "dqn_average": "--between"}
    option |= dict.fromkeys(("dqn", "r2d1"), "--envs-per-actor")
    option = option.get(module.__name__, "--envs")
    with pytest.raises(SystemExit) as error:
        call(option, number)
    assert error.value.code == 2
    err = capsys.readouterr().err
    assert f"argument {option}: " in err
    assert number in err


class DictEnv(gym.Env):
    """Observes a dict."""

    observation_space = gym.spaces.Dict({"one": gym.spaces.Box(-1, 1, (2,))})
    action_space = gym.spaces.Dict({"one": gym.spaces.Discrete(2)})

    def sample_tasks(self, count):
        return [{}] * count

    def reset_task(self, task):
        pass


@pytest.fixture
def dict_env():
    gym.register("Dict-v0", DictEnv)
    yield "Dict-v0"
    del gym.registry["Dict-v0"]


def test_unsupported_spaces_are_refused(example, dict_env):
    module, call = example
    with pytest.raises(SystemExit, match=r"cannot learn Dict-v0: .*Dict.* expected a Box of one"):
        call("--env", dict_env)
    with pytest.raises(SystemExit, match="cannot learn FrozenLake-v1: .*expected"):
        call("--env", "FrozenLake-v1")
    other = "Pendulum-v1" if module.__name__ in DISCRETE else "Bandit-v0"
    if module.__name__ not in EITHER:
        with pytest.raises(SystemExit, match=f"cannot learn {other}: .*expected"):
            call("--env", other)


def test_unknown_envs_are_refused(example):
    _, call = example
    with pytest.raises(SystemExit, match=r"cannot make Nowhere-v0: .*Nowhere"):
        call("--env", "Nowhere-v0")


@pytest.mark.parametrize("overlap", [False, True])
def test_ppo_estimates_advantages_with_one_networks_values(ppo, overlap):
    import torch

    options = argparse.Namespace(seed=1, policy_in="main", overlap=overlap)
    settings = ppo.Settings(envs=2, horizon=40, gamma=1.0, gae_lambda=1.0)
    with contextlib.closing(
        pysampler.make_vec("CartPole-v1", 2, vector_kwargs={"num_workers": 0})
    ) as envs:
        net = ppo.ActorCritic(envs.single_observation_space, envs.single_action_space)
        batches = ppo.with_pysampler(envs, net, settings, options)
        for _ in range(3):
            batch = next(batches)
            with torch.no_grad():
                values = net.value(batch.observations)
                torch.testing.assert_close(batch.returns - batch.advantages, values)
                net.critic[-1].bias += 100  # the network changes while the next batch is sampled


@pytest.mark.slow
def test_recurrent_ppo_repeats_what_the_policy_did(ppo):
    """Sequences begin with the right states, and episodes with empty ones."""
    import torch

    options = argparse.Namespace(seed=1, policy_in="main", overlap=False)
    settings = ppo.Settings(envs=3, horizon=48, gamma=1.0, gae_lambda=1.0)
    with contextlib.closing(
        pysampler.make_vec("MaskedCartPole-v1", 3, vector_kwargs={"num_workers": 0})
    ) as envs:
        net = ppo.RecurrentActorCritic(envs.single_observation_space, envs.single_action_space)
        torch.nn.init.normal_(net.actor[-1].weight)
        batches = ppo.with_pysampler(envs, net, settings, options)
        for _ in range(2):
            batch = next(batches)
            observations, actions, old, advantages, returns, *memory = batch.sequences(16)
            assert observations.shape == (9, 16, 2)
            assert memory[0][:, 1:].any()
            with torch.no_grad():
                features = net.features(net.normalized(observations), *memory)
                found = net.distribution(features).log_prob(actions)
                torch.testing.assert_close(found, old)
                values = net.critic(features).squeeze(-1)
                torch.testing.assert_close(returns - advantages, values)
                net.observe(batch.observations)


def test_recurrent_ppo_values_truncated_episodes_with_their_states(ppo):
    import torch

    space = gym.spaces.Box(-1, 1, (2,))
    net = ppo.RecurrentActorCritic(space, gym.spaces.Discrete(2))
    with pysampler.Rollouts(
        lambda: gym.make("MaskedCartPole-v1", max_episode_steps=7),
        *(net, 20),
        num_envs=2,
        vector_kwargs={"num_workers": 0},
        seed=1,
    ) as rollouts:
        data = next(rollouts).torch()
        with torch.no_grad():
            _, last, cut = net.values(data)
            steps, envs = data.cut_indices
            assert len(steps) == 4
            for step, env, value in zip(steps, envs, cut, strict=True):
                state = net.initial_state(1)
                seen = [*data.observations[step - 6 : step + 1, env], data.cut_observations[0]]
                seen[-1] = data.final_observations[step, env]
                for one in seen:
                    state = net.step(net.normalized(one[None]), state)
                torch.testing.assert_close(net.critic(state[:, :64])[0, 0], value)
            state = net.initial_state(2)
            for one in data.observations[14:]:
                state = net.step(net.normalized(one), state)
            torch.testing.assert_close(net.critic(state[:, :64])[:, 0], last)


@pytest.mark.parametrize("memory", [[], ["--lstm"]], ids=" ".join)
def test_a2c_takes_one_step_for_each_rollout(ppo, memory, monkeypatch):
    import torch

    steps = []

    def step(self, *args):
        steps.append(type(self).__name__)

    monkeypatch.setattr(torch.optim.RMSprop, "step", step)
    arguments = ["--a2c", "--workers", "0", "--steps", "160", "--episodes", "1"]
    monkeypatch.setattr(sys, "argv", ["ppo", "--quiet", *arguments, *memory])
    ppo.main()
    assert steps == ["RMSprop"] * 3  # 5 steps of 8 envs each, and none after the last


@pytest.mark.parametrize("arguments", [["--lstm"], ["--overlap"]], ids=" ".join)
def test_options_of_pysampler_are_refused_with_other_vector_envs(
    ppo, arguments, monkeypatch, capsys
):
    monkeypatch.setattr(sys, "argv", ["ppo", "--vec", "gymnasium", *arguments])
    with pytest.raises(SystemExit):
        ppo.main()
    assert "--lstm are pysampler's" in capsys.readouterr().err


def test_masked_cart_pole_shows_positions_only(dqn):
    masked, whole = gym.make("MaskedCartPole-v1"), gym.make("CartPole-v1")
    pairs = [(masked.reset(seed=3), whole.reset(seed=3))]
    pairs += [(masked.step(1), whole.step(1)) for _ in range(3)]
    for (seen, *_), (all_of_it, *_) in pairs:
        np.testing.assert_array_equal(seen, all_of_it[[0, 2]])
        assert seen in masked.observation_space


@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["--env", "MaskedCartPole-v1", "--lstm"],
        pytest.param(["--a2c"], marks=pytest.mark.long),
        pytest.param(["--vec", "gymnasium"], marks=pytest.mark.long),
        ["--policy-in", "workers", "--overlap"],
        pytest.param(["--env", "HalfCheetah-v5", "--envs", "4"], marks=pytest.mark.long),
    ],
    ids=" ".join,
)
def test_ppo_trains(arguments):
    result = run("ppo.py", "--steps", "2048", *arguments)
    assert result["steps"] >= 2048
    if "HalfCheetah-v5" not in arguments:
        assert result["return"] > 15  # of ended episodes; a random policy gets about 20


@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments",
    [
        [],
        pytest.param(
            ["--env", "HalfCheetahDir-v5", "--tasks", "2", "--envs-per-task", "2"],
            marks=pytest.mark.long,
        ),
    ],
    ids=" ".join,
)
def test_maml_trains(arguments):
    result = run("maml.py", "--iterations", "2", *arguments)
    assert result["iterations"] == 2
    assert result["gap"] == result["after"] - result["before"]
    if not arguments:  # a gradient step helps from the beginning
        assert result["gap"] > 0


@contextlib.contextmanager
def sampled_by(maml, settings, seed):
    """Yield parameters and a function that samples Navigation2D-v0 with each task's own."""
    import torch

    torch.manual_seed(seed)
    low = np.full(2, -0.1, np.float32)
    with pysampler.MultiTaskSampler(
        "Navigation2D-v0",
        maml.Policy(low, -low),
        num_envs=settings.tasks * settings.envs_per_task,
        vector_kwargs={"num_workers": 0},
        seed=seed,
    ) as sampler:
        tasks = sampler.sample_tasks(settings.tasks)

        def sample(own):
            sampler.sample(settings.length, [p.detach() for p in own], tasks)
            return maml.data_of(sampler.collect(), settings)

        yield maml.initial(2, 2, settings), sample


def test_a_step_of_maml_improves_the_return_of_each_task(maml):
    settings = maml.Settings(tasks=4, length=50, rate=0.5)
    with sampled_by(maml, settings, seed=1) as (params, sample):
        before = sample([p.expand(4, *p.shape) for p in params])
        after = sample(maml.adapted(params, before, settings.rate, differentiable=False))
    assert after.mean_return > before.mean_return + 1


def test_maml_learns_through_its_adaptation(maml):
    import torch

    settings = maml.Settings(tasks=2, envs_per_task=3, length=20, width=8)
    with sampled_by(maml, settings, seed=1) as (params, sample):
        data = sample([p.expand(2, *p.shape) for p in params])
    data = maml.Data(
        *(getattr(data, n).double() for n in ("observations", "samples", "advantages", "weights")),
        data.mean_return,
    )
    params = [p.detach().double().requires_grad_() for p in params]
    along = [torch.randn_like(p) for p in params]

    def gain(params):
        own = maml.adapted(params, data, 0.5, differentiable=True)
        log_probs = maml.policy_of(own, data.observations).log_prob(data.samples)
        return data.mean(log_probs * data.advantages).mean()

    slope = sum(
        (g * a).sum() for g, a in zip(torch.autograd.grad(gain(params), params), along, strict=True)
    )
    up, down = (
        gain([(p + by * a).detach().requires_grad_() for p, a in zip(params, along, strict=True)])
        for by in (1e-5, -1e-5)
    )
    torch.testing.assert_close(slope, (up - down) / 2e-5, rtol=1e-4, atol=1e-6)


@pytest.mark.long
def test_maml_writes_its_curves_and_resumes(tmp_path):
    pytest.importorskip("matplotlib")
    import torch

    arguments = [*ALONE["maml"], "--log", str(tmp_path / "log"), "--checkpoint-seconds", "0"]
    arguments += ["--checkpoints", str(tmp_path / "checkpoints")]
    saved, plot = tmp_path / "net.pt", tmp_path / "curves.svg"
    arguments += ["--save", str(saved), "--plot", str(plot)]
    assert run("maml.py", *arguments, "--iterations", "3")["iterations"] == 3
    assert plot.exists()
    assert torch.load(saved, weights_only=True)["0"].shape == (2, 32)
    result = run("maml.py", *arguments, "--iterations", "5")
    assert (result["iterations"], result["resumed"]) == (5, 3)
    heading, *rows = (tmp_path / "log" / "progress.csv").read_text().splitlines()
    assert heading == "iterations,seconds,before,after,gap"
    assert [row.split(",")[0] for row in rows] == ["1", "2", "3", "4", "5"]


def test_benchmarks_leave_out_missing_peers(monkeypatch, capsys):
    monkeypatch.syspath_prepend(BENCHMARKS)
    monkeypatch.setitem(sys.modules, "posix_ipc", None)  # as if it were not installed
    with loaded("primitives", BENCHMARKS) as primitives:
        found = primitives.installed(
            {name: primitives.INSTALLED[name] for name in ("POSIX semaphore (posix_ipc)",)}
            | {"multiprocessing Pipe": primitives.STANDARD["multiprocessing Pipe"]}
        )
    assert list(found) == ["multiprocessing Pipe"]
    assert "without POSIX semaphore (posix_ipc): " in capsys.readouterr().err


def test_benchmarks_read_curves_at_steps_and_seconds(monkeypatch):
    monkeypatch.syspath_prepend(BENCHMARKS)
    with loaded("curves", BENCHMARKS) as curves:
        curve = [(10, 1.0, 0.0), (20, 2.0, 5.0), (30, 3.0, 1.0), (40, 4.0, 6.0)]
        assert curves.reached(curve, 5.0, curves.STEPS) == 20
        assert curves.reached(curve, 6.0, curves.SECONDS) == 4.0
        assert curves.reached(curve, 7.0, curves.SECONDS) is None
        assert curves.return_at(curve, curves.SECONDS, 2.5) == 2.5
        assert curves.return_at(curve) == 4.0  # the last three
        assert np.isnan(curves.return_at(curve, curves.STEPS, 5))
        text = curves.spread_to_goal([curve, curve[:1], curve[2:]], 5.0, curves.STEPS)
        assert text == "30 [20, 40] (2 of 3)"
        assert curves.compared([1.0, 2.0], [3.0, None], "s") == "fewer s in every run"
        assert curves.compared([None, None], [3.0, 4.0], "s") == "more s in every run"
        assert curves.compared([1.0, None], [3.0, 4.0], "s") == "no clear difference in s"


@pytest.mark.slow
def test_episodes_of_torchrl_workloads_are_as_long_as_in_torchrl(monkeypatch):
    pytest.importorskip("torchrl")
    monkeypatch.syspath_prepend(BENCHMARKS)
    with loaded("torchrl_workloads", BENCHMARKS) as workloads:
        env = workloads.Counting(3, (0.0, 0.0))
        env.reset()
        ends = [env.step(1)[2] for _ in range(4)]
        assert ends == [False, False, False, True]
        theirs = workloads.torchrl_env(3, (0.0, 0.0))
        step = theirs.reset().set("action", theirs.action_spec.one())
        for end in ends:
            step = theirs.step(step)["next"]
            assert bool(step["done"]) == end
            step.set("action", theirs.action_spec.one())


def test_distance_of_weights_is_relative_to_their_mean(monkeypatch):
    monkeypatch.syspath_prepend(BENCHMARKS)
    with loaded("averaging", BENCHMARKS) as averaging:
        assert averaging.distance([[3.0, 0.0], [5.0, 0.0]]) == 0.25
        assert averaging.distance([[3.0, 4.0]]) == 0.0


def test_rollouts_become_trajectories_of_one_env_each(monkeypatch):
    def policy(observations):
        zeros = np.zeros((len(observations), 1), np.float32)
        return zeros, {"sample": zeros, "log_prob": zeros[:, 0]}

    monkeypatch.syspath_prepend(BENCHMARKS)
    pytest.importorskip("torch")
    with (
        loaded("phases", BENCHMARKS) as phases,
        pysampler.Rollouts("Pendulum-v1", policy, 256, num_envs=2, num_workers=0) as rollouts,
    ):
        rollout = next(rollouts)
        records = phases.trajectories(rollout, 64).torch(None)
        assert records.observations.shape == (8, 64, 3)
        same(records.observations[5].numpy(), rollout.observations[64:128, 1])
        assert np.argwhere(records.truncated.numpy()).tolist() == [[3, 7], [7, 7]]
        follows = (records.next_observations[:, :-1] == records.observations[:, 1:]).all(-1)
        assert np.argwhere(~follows.numpy()).tolist() == [[3, 7], [7, 7]]
        same(records.next_observations[3, 7].numpy(), rollout.final_observations[199, 0])


@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments",
    [
        ["vector.py", "--slices=2", "--seconds=0.05", "--no-peers", "--case=CartPole-v1, 64"],
        [
            *("scaling.py", "--slices=2", "--seconds=0.05", "--no-peers", "--most=2"),
            "--case=CartPole-v1, 64",
        ],
        ["cliffs.py", "--repetitions=1", "--only=a rollout's frames"],
    ],
    ids=lambda arguments: arguments[0],
)
def test_benchmarks_run(arguments):
    """Benchmarks use private names, and no other check runs them before a merge."""
    name, *options = arguments
    command = [sys.executable, str(BENCHMARKS / name), *options]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert "does not run" not in result.stderr
    assert "| --- |" in result.stdout


@pytest.mark.slow
@pytest.mark.parametrize("workers", [pytest.param(0, marks=pytest.mark.long), 2])
def test_dqn_average_trains(workers, tmp_path):
    plot = ["--plot", str(tmp_path / "returns.png")] if find_spec("matplotlib") else []
    arguments = ["--between", "500", "--every", "3", "--episodes", "4", "--steps", "3000", *plot]
    arguments += ["--save", str(tmp_path / "average.pt")]
    result = run("dqn_average.py", "--workers", str(workers), *arguments)
    assert result["steps"] == 3000
    assert result["return"] > 15
    assert result["average"] > 8  # it varies so early in training
    assert (tmp_path / "returns.png").exists() == bool(plot)


@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments",
    [
        *([], pytest.param(["--one-process"], marks=pytest.mark.long)),
        pytest.param(["--actors", "0"], marks=pytest.mark.long),
        pytest.param(["--actors", "2", "--envs-per-actor", "1"], marks=pytest.mark.long),
        pytest.param(["--prioritised"], marks=pytest.mark.long),
        pytest.param(["--dueling", "--categorical", "--noisy"], marks=pytest.mark.long),
    ],
    ids=" ".join,
)
def test_dqn_trains(arguments, tmp_path):
    weights, plot = tmp_path / "best.pt", []
    if find_spec("matplotlib"):
        plot = ["--plot", str(tmp_path / "returns.png")]
    parts = {"--dueling", "--categorical", "--noisy"} & {*arguments}
    least = 12_000 if parts else 4000  # these do not explore before they have learned a little
    result = run("dqn.py", "--steps", str(least), "--save", str(weights), *plot, *arguments)
    steps, updates = result["steps"], result["updates"]
    assert steps >= least
    assert (steps - 1000) / 16 <= updates <= steps / 4
    assert result["return"] > 15
    played = run("dqn.py", "--play", str(weights), *parts)
    assert 8 < played["low"] <= played["return"] <= played["high"]  # 8: the shortest episode
    assert (tmp_path / "returns.png").exists() == bool(plot)


@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments", [pytest.param([], marks=pytest.mark.long), ["--one-process"]], ids=" ".join
)
def test_killed_dqn_resumes(arguments, tmp_path):
    arguments = ["--checkpoints", str(tmp_path), "--until", "501", *arguments]
    arguments += ["--checkpoint-seconds", "0"]
    checkpoints = pysampler.Checkpoints(tmp_path)
    killed = killed_after(1500, checkpoints, EXAMPLES / "dqn.py", "--quiet", *arguments)
    result = run("dqn.py", *arguments, "--steps", str(killed + 1500))
    assert result["resumed"] == killed
    assert result["steps"] == checkpoints.latest >= killed + 1500
    assert (result["steps"] - 1000) / 16 <= result["updates"] <= result["steps"] / 4


def test_a_restored_dqn_learner_continues_exactly(dqn, tmp_path):
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
    dqn.add_steps(
        one.replay,
        [(seen[i], seen[i + 1], i % 2, 1.0, *ends[:, i], 0, i == 0) for i in range(50)],
    )
    one.learn()
    common = sys.modules["common"]
    options = argparse.Namespace(env="CartPole-v1", steps=1, quiet=True, log=None, save=None)
    options.checkpoints, options.checkpoint_seconds = tmp_path, 0
    progress = common.Run(options)
    progress.advance(50, [3.5])
    one.save(progress)
    drawn = torch.rand(3)
    resumed = common.Run(options)
    other.restore(resumed)
    assert (resumed.steps, resumed.mean) == (50, 3.5)
    assert torch.equal(torch.rand(3), drawn)
    for both in (one, other):
        both.learn()
    assert (other.steps, other.updates) == (one.steps, one.updates) == (50, 10)
    for name in ("net", "target"):
        for mine, theirs in zip(
            *(getattr(both, name).parameters() for both in (one, other)), strict=True
        ):
            assert torch.equal(mine, theirs)


def test_dqn_acts_by_its_network(dqn):
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
        with torch.no_grad():  # the policy shares the network's weights
            net[-1].bias += torch.tensor([0.5, -0.5, 0.0])


def rainbow_net(dqn, **parts):
    settings = dqn.Settings(width=16, atoms=11, returns=(-5.0, 5.0), **parts)
    return dqn.RainbowNet(4, 3, settings)


def test_dueling_advantages_have_a_mean_of_zero(dqn):
    import torch

    net, seen = rainbow_net(dqn, dueling=True), torch.randn(20, 4)
    torch.testing.assert_close(net(seen).mean(-1), net.value(net.body(seen))[:, 0])


def test_projected_returns_keep_their_mean_within_the_support(dqn):
    import torch

    net = rainbow_net(dqn, categorical=True)
    probs, goals = torch.rand(20, 11).softmax(-1), torch.rand(20, 11) * 10 - 5
    found = net.projected(probs, goals)
    torch.testing.assert_close(found.sum(-1), torch.ones(20))
    torch.testing.assert_close(found @ net.support, (probs * goals).sum(-1))
    beyond = net.projected(probs, goals + 100)
    torch.testing.assert_close(beyond[:, -1], torch.ones(20))


@pytest.mark.slow
def test_categorical_dqn_learns_the_distribution_of_returns(dqn):
    """Of the rewards 1 and 3, which end episodes and are as likely, it expects 2."""
    import torch

    torch.manual_seed(1)
    settings = dqn.Settings(
        width=16, atoms=11, returns=(-5.0, 5.0), categorical=True, n_step=1, rate=0.02
    )
    like = {name: np.zeros(4, np.float32) for name in ("observations", "next_observations")}
    like["actions"] = np.zeros((), np.int64)
    learner = dqn.Learner(dqn.RainbowNet(4, 3, settings), like, settings, 1)
    seen, ends = np.ones(4), (True, False, 0, True)
    steps = [(seen, seen, 0, reward, *ends) for reward in (1.0, 3.0) * 50]
    dqn.add_steps(learner.replay, steps)
    for _ in range(40):
        learner.update()
    with torch.no_grad():
        probs = learner.net.heads(torch.ones(1, 4))[0, 0].softmax(-1)
        assert float(learner.net(torch.ones(1, 4))[0, 0]) == pytest.approx(2, abs=0.2)
    np.testing.assert_allclose(probs[[6, 8]], 0.5, atol=0.1)


def test_noisy_layers_draw_their_weights_only_while_they_learn(dqn):
    import torch

    net, seen = rainbow_net(dqn, noisy=True), torch.randn(20, 4)
    assert not torch.equal(net(seen), net(seen))
    net.eval()
    assert torch.equal(net(seen), net(seen))
    assert not dqn.Settings(noisy=True).epsilon(0, 4).any()


def test_torch_policies_act_with_published_weights(dqn):
    import torch

    net, other = (rainbow_net(dqn, dueling=True, categorical=True) for _ in range(2))
    policy = dqn.TorchEpsilonGreedy(net)
    policy.load_state_dict({name: one.numpy() for name, one in other.state_dict().items()})
    seen = torch.randn(50, 4)
    assert (policy(seen.numpy(), 0.0) == other(seen).argmax(-1).numpy()).all()


@pytest.mark.slow
def test_r2d1_values_follow_from_stored_states():
    """The values of sequences are those of a plain loop over their steps."""
    with loaded("r2d1") as r2d1:
        import torch

        net = r2d1.RecurrentNet(2, 2, 8)

        def policy(observations, state, generators):
            """Act at random, with the states of the net."""
            with torch.no_grad():
                _, extras = net(torch.from_numpy(observations), torch.from_numpy(state))
            actions = np.array([one.integers(2) for one in generators])
            return actions, {"state": extras["state"].numpy()}

        policy.initial_state = lambda count: np.zeros((count, 16), np.float32)
        with pysampler.Actors(
            lambda: gym.make("MaskedCartPole-v1", max_episode_steps=15),
            policy,
            num_envs=2,
            vector_kwargs={"num_workers": 0},
            seed=1,
        ) as actors:
            replay = pysampler.ReplayBuffer(900, actors.like, sequences=True, seed=1)
            replay.extend(actors.take(300, min_records=300))
        batch = replay.sample_sequences(30, 5, burn_in=3).torch()
        assert not batch.mask.all()
        assert batch.fields["truncated"].any()
        with torch.no_grad():
            values, following = net.values(batch)
            for row in range(30):
                state = batch.state("state0")[row : row + 1]
                for column in np.flatnonzero(batch.mask[row]):
                    seen, after = (
                        batch.fields[name][row, column][None, None]
                        for name in ("observations", "next_observations")
                    )
                    torch.testing.assert_close(batch.fields["state0"][row, column], state[0])
                    value, state = net.unrolled(seen, state)
                    next_value, _ = net.unrolled(after, state)
                    if column >= 3:
                        torch.testing.assert_close(values[row, column - 3], value[0, 0])
                        torch.testing.assert_close(following[row, column - 3], next_value[0, 0])


def test_r2d1_mixes_the_greatest_and_the_mean_error_of_a_sequence(monkeypatch):
    with loaded("r2d1") as r2d1:
        import torch

        options = argparse.Namespace(env="MaskedCartPole-v1", forgetful=False, device="cpu", seed=1)
        learner = r2d1.learner_of(options)
        count, zeros = 20, np.zeros(20, bool)
        fields = {name: np.zeros((count, 2)) for name in ("observations", "next_observations")}
        fields |= {"actions": zeros.astype(int), "state0": np.zeros((count, 128))}
        # A single episode, of which only the last step has a reward.
        learner.replay.add(
            fields,
            rewards=10.0 * (np.arange(count) == count - 1),
            terminated=np.arange(count) == count - 1,
            truncated=zeros,
            env=zeros.astype(int),
        )
        learner.replay.gamma = 0.0
        with torch.no_grad():
            for net in (learner.net, learner.target):
                net.head.weight.zero_()
                net.head.bias.zero_()
        given = []
        monkeypatch.setattr(learner.replay, "update", lambda *both: given.append(both))
        learner.update()
        [(indices, priorities)] = given
        steps = np.minimum(count - indices, 16)  # of each sequence, which may reach the reward
        error = (indices + steps == count) * 1.0  # scaled by 0.1
        np.testing.assert_allclose(priorities, error * (0.9 + 0.1 / steps) + 1e-3, rtol=1e-5)


def test_r2d1_without_memory_ignores_its_state():
    with loaded("r2d1") as r2d1:
        import torch

        net = r2d1.RecurrentNet(2, 2, 8, forgets=True)
        seen, states = torch.randn(4, 6, 2), torch.randn(2, 4, 16)
        values = [net.unrolled(seen, state)[0] for state in states]
        assert torch.equal(*values)
        one, _ = net.unrolled(seen[:, 3:4], states[0])
        torch.testing.assert_close(one[:, 0], values[0][:, 3])


@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments", [[], pytest.param(["--forgetful"], marks=pytest.mark.long)], ids=" ".join
)
def test_r2d1_trains(arguments, tmp_path):
    weights = tmp_path / "best.pt"
    steps = ["--steps", "2000", "--actors", "1", "--episodes", "5"]
    result = run("r2d1.py", *steps, "--save", str(weights), *arguments)
    assert result["steps"] >= 2000
    assert result["updates"] >= (result["steps"] - 1000) / 8
    assert result["return"] > 15
    assert run("r2d1.py", "--play", str(weights), *arguments)["return"] > 8


# -- goals, and how good the result is -------------------------------------------------------------


@pytest.fixture
def plain_options():
    return argparse.Namespace(
        env="CartPole-v1", steps=100, quiet=True, log=None, save=None, seed=3, episodes=40
    )


def test_a_goal_needs_three_evaluations_in_a_row(dqn, plain_options):
    plain_options.goal = 10.0
    progress = sys.modules["common"].Run(plain_options)
    for score in (12.0, 11.0, 9.0, 10.0, None, 10.0):
        progress.advance(1, score=score, every=0)
        assert not progress.over
    progress.advance(1, score=10.0, every=0)
    assert progress.over


def test_the_best_weights_are_evaluated_at_the_end(dqn, plain_options, monkeypatch):
    import torch

    common = sys.modules["common"]
    monkeypatch.setattr(common, "evaluated", lambda options, policy, env: policy)
    progress, net = common.Run(plain_options), torch.nn.Linear(1, 1)
    progress.start(net, lambda: float(net.bias.detach()))
    for score in (1.0, 3.0, 2.0):
        with torch.no_grad():
            net.bias.fill_(score)
        progress.advance(1, score=score, every=0)
    progress.evaluate()
    assert progress.evaluation == progress.result["evaluation"] == 3.0
    seconds = progress.seconds
    assert progress.seconds == seconds  # evaluating is no training


def test_evaluations_at_the_end_have_fresh_seeds_and_an_interval(dqn, plain_options, monkeypatch):
    common, seeds = sys.modules["common"], []

    def evaluate(env, policy, episodes, *, seed, num_workers):
        seeds.append(seed)
        returns = np.random.default_rng(1).normal(100, 20, episodes)
        results = [
            pysampler.EpisodeResult(0, value, 1, terminated=True) for value in returns.tolist()
        ]
        return pysampler.Evaluation(results)

    monkeypatch.setattr(pysampler, "evaluate", evaluate)
    found = common.evaluated(plain_options, None, "CartPole-v1")
    assert seeds[0] >= 2**31  # beyond what --seed takes
    assert found["episodes"] == 40
    widths = found["return"] - found["low"], found["high"] - found["return"]
    returns = np.random.default_rng(1).normal(100, 20, 40)
    expected = 1.96 * returns.std() / 40**0.5
    np.testing.assert_allclose(widths, expected, rtol=0.2)


def test_interrupted_trainings_are_not_evaluated(dqn, plain_options):
    progress = sys.modules["common"].Run(plain_options)
    progress.start(policy=lambda: pytest.fail("it was evaluated"))
    progress.interrupted = True
    progress.evaluate()
    assert progress.evaluation is None


@pytest.mark.slow
def test_dppo_trains():
    result = run("dppo.py", "--steps", "9600")
    assert result["steps"] >= 9600
    assert -2000 < result["return"] < 0
    assert result["seconds_in"]["blocked"] > 0  # during the learner's updates


@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments", [[], pytest.param(["--max-lag", "0"], marks=pytest.mark.long)], ids=" ".join
)
def test_impala_trains(arguments):
    result = run("impala.py", "--steps", "16000", *arguments)
    assert result["steps"] >= 16000
    assert result["return"] > 25  # a random policy gets about 20
    if arguments:
        assert result["lag"] == 0
        assert result["dropped"] > 0


@pytest.fixture(scope="module")
def cluster():
    """The address of a local Ray cluster with two nodes for hosts."""
    from ray.cluster_utils import Cluster

    head = {"num_cpus": 0, "include_dashboard": False, "object_store_memory": 150 * 2**20}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    try:
        for _ in range(2):
            cluster.add_node(num_cpus=1, object_store_memory=100 * 2**20)
        yield cluster.address
    finally:
        cluster.shutdown()


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    "arguments",
    [["--ray", "2"], pytest.param(["--ray", "auto", "--overlap"], marks=pytest.mark.long)],
    ids=" ".join,
)
def test_ppo_learns_from_hosts(arguments, cluster):
    result = run("ppo.py", "--address", cluster, "--steps", "5000", *arguments)
    assert result["steps"] == 3 * 128 * 8 * 2  # two hosts' envs at once
    assert result["return"] > 25  # a random policy gets about 20
    assert result["seconds_in"]["waiting"] > 0


@pytest.mark.long
@pytest.mark.timeout(400)
def test_impala_learns_from_hosts(cluster):
    result = run("impala.py", "--ray", "2", "--address", cluster, "--steps", "16000")
    assert result["steps"] >= 16000
    assert result["return"] > 25
    assert result["lag"] <= 4
    assert result["seconds_in"].keys() == {"waiting", "learning"}  # the actors run elsewhere


@pytest.mark.parametrize("example", ["impala", "ppo"], indirect=True)
def test_ray_option_without_ray_is_refused(example, monkeypatch):
    _, call = example
    monkeypatch.setitem(sys.modules, "ray", None)  # as if it were not installed
    monkeypatch.delitem(sys.modules, "pysampler.ray", raising=False)
    with pytest.raises(
        SystemExit, match=r"pysampler\.ray needs Ray: pip install 'pysampler\[ray\]'"
    ):
        call("--ray", "auto")


@pytest.mark.parametrize("example", ["impala", "ppo"], indirect=True)
@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--ray", "0"], "argument --ray: 0, expected at least 1"),
        (["--address", "somewhere"], "--address is of a Ray cluster; expected --ray too"),
    ],
)
def test_bad_ray_options_are_refused(example, arguments, expected, capsys):
    _, call = example
    with pytest.raises(SystemExit) as error:
        call(*arguments)
    assert error.value.code == 2
    assert expected in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("name", ["impala", "ppo"])
def test_ray_is_imported_only_with_hosts(name):
    program = (
        "import os, runpy, sys\n"
        "path, *_ = sys.argv = sys.argv[1:]\n"
        "sys.path.insert(0, os.path.dirname(path))\n"
        "runpy.run_path(path, run_name='__main__')\n"
        "assert 'ray' not in sys.modules\n"
    )
    path = str(EXAMPLES / f"{name}.py")
    arguments = [path, "--quiet", "--steps", "1", *ALONE[name]]
    subprocess.run([sys.executable, "-c", program, *arguments], check=True)


def trajectories(torch, gamma=0.9):
    """Return arguments of V-trace: 5 trajectories of 12 steps with ends of both kinds."""
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
        torch.zeros_like(log_rhos), *given, gamma=gamma, max_rho=np.inf, max_c=np.inf
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
    # Generalized advantage estimation with lambda = 1 gives the same returns.
    _, returns = pysampler.gae(
        *(rewards.T, values.T, next_values[:, -1], terminated.T, truncated.T),
        next_values.T[truncated.T],
        gamma=gamma,
        gae_lambda=1.0,
    )
    np.testing.assert_allclose(targets, returns.T)


def test_vtrace_clips_importance_ratios(impala):
    import torch

    log_rhos, *given, gamma = trajectories(torch)
    targets, advantages = (
        tensor.numpy()
        for tensor in impala.vtrace(log_rhos, *given, gamma=gamma, max_rho=1.2, max_c=0.8)
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
        for k in range(t, 12):  # the sum in the paper
            expected[env, t] += weight * errors[env, k]
            weight *= gamma * cs[env, k] * ~over[env, k]
        last = over[env, t] or t == 11
        later = next_values[env, t] if last else targets[env, t + 1]
        gains[env, t] = rewards[env, t] + gamma * later * ~terminated[env, t] - values[env, t]
    np.testing.assert_allclose(targets, expected)
    np.testing.assert_allclose(advantages, rhos * gains)


@pytest.mark.long
def test_dppo_watches_saves_and_resumes(tmp_path):
    pytest.importorskip("imageio")
    arguments = ["--watch", "video", "--videos", str(tmp_path / "videos")]
    arguments += ["--save", str(tmp_path / "net.pt"), "--plot", str(tmp_path / "returns.png")]
    arguments += ["--checkpoints", str(tmp_path / "run"), "--checkpoint-seconds", "0"]
    command = [sys.executable, str(EXAMPLES / "dppo.py"), "--json", "--until", "0", *arguments]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    try:
        while not (tmp_path / "videos" / "returns.csv").exists():  # the watcher has started
            assert process.poll() is None
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(0.05)
        process.send_signal(signal.SIGINT)
        result = json.loads(process.communicate(timeout=100)[0])
    finally:
        process.kill()
    assert "watched" in result
    for made in ("net.pt", "returns.png"):
        assert (tmp_path / made).exists(), made
    again = run("dppo.py", "--steps", str(result["steps"] + 3200), *arguments)
    assert again["resumed"] == result["steps"]


@pytest.mark.slow
def test_a_log_of_another_run_is_refused(tmp_path):
    arguments = ["--steps", "1024", "--workers", "0", "--log", str(tmp_path)]
    run("ppo.py", *arguments)
    rows = (tmp_path / "progress.csv").read_text()
    assert rows.startswith("steps,seconds,return")
    assert list(tmp_path.glob("events.out.tfevents*"))
    command = [sys.executable, str(EXAMPLES / "ppo.py"), *arguments]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 2
    assert "has the log of another run" in result.stderr
    assert (tmp_path / "progress.csv").read_text() == rows


def advance_to_the_end(common, options, steps=30):
    """Run a training whose disk is full from the middle on."""
    import torch

    progress = common.Run(options)
    progress.start(torch.nn.Linear(30, 30))
    for step in range(steps):
        with full_after(100 if step >= steps // 2 else 1 << 30):
            progress.advance(1, [1.0], every=0, score=step)
            progress.checkpoint(net=progress.net)
    with full_after(100):
        progress.close()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_full_disk_does_not_end_training_and_leaves_whole_files(dqn, tmp_path, capsys):
    import torch

    common = sys.modules["common"]
    options = argparse.Namespace(env="CartPole-v1", steps=100, quiet=True, log=tmp_path)
    options.save, options.checkpoints = tmp_path / "net.pt", tmp_path / "run"
    options.checkpoint_seconds = 0
    advance_to_the_end(common, options)
    err = capsys.readouterr().err
    for path in ("net.pt", "run/checkpoint-000000000030.npz", "progress.csv", "events.out"):
        assert f"{tmp_path}/{path}" in err
    assert err.count("cannot log to") == 2  # once per kind
    torch.load(options.save)
    assert pysampler.Checkpoints(options.checkpoints).latest == 15
    head, *rows = (tmp_path / "progress.csv").read_text().splitlines()
    assert {row.count(",") for row in rows} == {head.count(",")}
    assert len(rows) >= 10
    assert not [*tmp_path.glob("*.new"), *tmp_path.glob("run/.*")]


def test_full_disk_keeps_the_log_of_a_resumed_run(dqn, tmp_path):
    common = sys.modules["common"]
    path = tmp_path / "progress.csv"
    path.write_text(rows := "steps,seconds,return\n" + "".join(f"{i},1,2\n" for i in range(99)))
    with full_after(100), pytest.raises(SystemExit, match=r"cannot log to .*progress\.csv"):
        common.Log(tmp_path, "steps", 50)
    assert path.read_text() == rows


def test_full_disk_keeps_the_old_plot(dqn, tmp_path):
    pytest.importorskip("matplotlib")
    common = sys.modules["common"]
    path = tmp_path / "returns.png"
    common.plot(path, {"return": [(1, 1.0, 1.0)]})
    before = path.read_bytes()
    with full_after(100), pytest.raises(SystemExit, match=r"cannot plot to .*returns\.png"):
        common.plot(path, {"return": [(1, 1.0, 2.0)]})
    assert path.read_bytes() == before
    assert [*tmp_path.iterdir()] == [path]


def test_unknown_devices_are_refused(example, capsys):
    module, call = example
    with pytest.raises(SystemExit) as error:
        call("--device", "cuda:77")
    assert error.value.code == 2
    has_none = module.__name__ == "dqn_average"
    expected = "unrecognized arguments" if has_none else "argument --device: 'cuda:77': "
    assert expected in capsys.readouterr().err


@pytest.mark.long
def test_ctrl_c_saves_weights_and_the_log_resumes(tmp_path):
    arguments = ["--checkpoints", str(tmp_path / "run"), "--log", str(tmp_path / "log")]
    arguments += [
        "--save",
        str(tmp_path / "net.pt"),
        "--workers",
        "0",
        "--checkpoint-seconds",
        "99",
    ]
    command = [sys.executable, str(EXAMPLES / "ppo.py"), "--steps", "1000000", "--json", *arguments]
    table = tmp_path / "log" / "progress.csv"
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        while not (table.exists() and table.read_text().count("\n") > 2):
            assert process.poll() is None
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=100)
    finally:
        process.kill()
    assert process.returncode == 0, err
    stopped = json.loads(out)["steps"]
    assert pysampler.Checkpoints(tmp_path / "run").latest == stopped
    assert (tmp_path / "net.pt").exists()
    with table.open("a") as file:
        file.write(f"{stopped + 999},1.0,2.0\n")  # of a run that was killed later
    result = run("ppo.py", "--steps", str(stopped + 2048), *arguments)
    assert result["resumed"] == stopped
    steps = [int(row.split(",")[0]) for row in table.read_text().splitlines()[1:]]
    assert steps == sorted(set(steps))
    assert stopped + 999 not in steps
    # A checkpoint of another example or env is refused.
    for name, *other in (("impala.py",), ("ppo.py", "--env", "Acrobot-v1")):
        command = [sys.executable, str(EXAMPLES / name), "--quiet", *arguments, *other]
        refused = subprocess.run(command, capture_output=True, text=True, check=False)
        assert refused.returncode == 1
        assert "cannot resume from" in refused.stderr
        assert "Traceback" not in refused.stderr


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--plot", "returns.xyz"], "expected a name that ends in .pdf, .png or .svg"),
        (["--save", "nowhere/net.pt"], "expected a file in a directory that exists"),
        (["--log", "/proc/log"], "argument --log: "),
        (["--seed", "-1"], "argument --seed: -1, expected 0 to 2147483647"),
        (["--until", "nan"], "argument --until: nan, expected a number"),
    ],
    ids=str,
)
def test_bad_paths_and_numbers_are_refused_at_once(arguments, expected, capsys):
    with loaded("impala") as impala, pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["impala", "--quiet", *arguments])
        with pytest.raises(SystemExit) as error:
            impala.main()
    assert error.value.code == 2
    assert expected in capsys.readouterr().err


def test_files_without_weights_are_refused(tmp_path, dqn, monkeypatch):
    (tmp_path / "net.pt").write_text("no weights")
    for path in (tmp_path / "net.pt", tmp_path / "nowhere.pt"):
        monkeypatch.setattr(sys, "argv", ["dqn", "--play", str(path)])
        with pytest.raises(SystemExit, match="cannot load .*: no weights of this example"):
            dqn.main()


@pytest.mark.slow
def test_gridworlds_are_equal_and_keep_the_rules():
    arguments = "--envs", "8", "--workers", "1", "--seconds", "0.05"
    command = [sys.executable, str(EXAMPLES / "gridworld.py"), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=200)
    assert "CGridWorld" in done.stdout
    spec = importlib.util.spec_from_file_location("gridworld", EXAMPLES / "gridworld.py")
    gridworld = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(gridworld)
    kinds = [gridworld.GridWorld, gridworld.CGridWorld]
    if gridworld.numba is not None:
        kinds.append(gridworld.NumbaGridWorld)
    for kind in kinds:
        ours = pysampler.make_vec(kind, 6, num_workers=0)
        theirs = gym.vector.SyncVectorEnv([gridworld.one_grid_world] * 6)
        same(ours.reset(seed=1), theirs.reset(seed=1))
        theirs.action_space.seed(1)
        for _ in range(500):
            actions = theirs.action_space.sample()
            same(ours.step(actions), theirs.step(actions))
        ours.close()
        theirs.close()
