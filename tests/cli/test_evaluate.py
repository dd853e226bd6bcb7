"""``pysampler evaluate`` runs policies of functions, modules, TorchScript and SB3."""

import csv
import ctypes
import json
import subprocess
import sys

import numpy as np
import pytest

import pysampler
from pysampler._cli.main import main

FILE = """
import ctypes
import os

import gymnasium as gym
import numpy as np


def right(observations):
    return np.ones(len(observations), int)


class Left:
    def __call__(self, observations):
        return np.zeros(len(observations), int)


class Model:
    def predict(self, observations, deterministic):
        assert deterministic
        return np.zeros(len(observations), int), None


def plan(observations):
    return np.ones((len(observations), 3), int)


model = Model()
number = 3


def misled(observations):
    raise ValueError("cannot find my file")


calls = []


def stopped(observations):
    calls.append(None)
    if len(calls) == 11:
        raise KeyboardInterrupt
    return np.ones(len(observations), int)


class Diverging(gym.Wrapper):
    def step(self, action):
        os.write(1, b"an env\\n")
        observation, _, *rest = self.env.step(action)
        return observation, float("nan"), *rest


def diverging():
    print("an import")
    return Diverging(make())


def talking(observations):
    print("a policy")
    ctypes.CDLL(None).puts(b"C code")
    return np.ones(len(observations), int)


def broken(observations):
    raise BrokenPipeError("the robot is off")


class Broken(gym.Wrapper):
    def reset(self, **options):
        raise BrokenPipeError("the robot is off")


def make_broken():
    return Broken(make())


def interrupted(observations):
    raise KeyboardInterrupt


def named(name):
    return gym.make(name)


def make(render_mode=None):
    return gym.make("CartPole-v1", max_episode_steps=5, render_mode=render_mode)
"""
EIGHT = ("--episodes", "8", "--workers", "1", "--json")


@pytest.fixture
def file(tmp_path, monkeypatch):
    path = tmp_path / f"policies_of_{tmp_path.name}.py"
    path.write_text(FILE)
    monkeypatch.setattr("sys.path", list(__import__("sys").path))
    return path


def evaluated(capsys, *arguments):
    assert main(["evaluate", *map(str, arguments)]) == 0
    return json.loads(capsys.readouterr().out)


def test_a_function_of_a_file_is_evaluated(file, capsys):
    report = evaluated(capsys, f"{file}:right", "CartPole-v1", "--seed", 3, *EIGHT)
    expected = pysampler.evaluate("CartPole-v1", lambda o: np.ones(len(o), int), 8, seed=3)
    assert report["mean"] == expected.mean
    assert report["interval"] == list(expected.interval())
    assert [row["seed"] for row in report["episodes"]] == list(range(3, 11))


@pytest.mark.parametrize("workers", [0, 1])
def test_stdout_has_only_valid_json(file, capfd, workers):
    arguments = f"{file}:talking", f"{file}:diverging", "--workers", str(workers)
    assert main(["evaluate", *arguments, "--episodes", "2", "--json"]) == 0
    ctypes.CDLL(None).fflush(None)
    out, err = capfd.readouterr()
    report = json.loads(out, parse_constant=pytest.fail)
    assert report["mean"] is None
    assert [row["return"] for row in report["episodes"]] == [None, None]
    assert all(text in err for text in ("an import", "an env", "a policy", "C code"))


@pytest.mark.parametrize("name", ["Left", "model"])
def test_classes_and_models_are_policies(file, capsys, name):
    report = evaluated(capsys, f"{file}:{name}", f"{file}:make", *EIGHT)
    assert [row["length"] for row in report["episodes"]] == [5] * 8


def test_a_policy_may_act_for_several_steps(file, capsys):
    chunked = evaluated(capsys, f"{file}:plan", "CartPole-v1", "--chunk", 3, *EIGHT)
    single = evaluated(capsys, f"{file}:right", "CartPole-v1", *EIGHT)
    lengths = [[row["length"] for row in report["episodes"]] for report in (chunked, single)]
    assert lengths[0] == lengths[1]


@pytest.mark.parametrize(("policy", "env"), [("broken", "make"), ("right", "make_broken")])
@pytest.mark.parametrize("workers", [0, 1])
def test_a_broken_pipe_of_an_env_or_a_policy_is_raised(file, policy, env, workers):
    arguments = f"{file}:{policy}", f"{file}:{env}", "--workers", str(workers)
    with pytest.raises(BrokenPipeError, match="the robot is off"):
        main(["evaluate", *arguments])


@pytest.mark.slow
def test_a_policy_of_a_file_acts_in_the_workers(file, capsys):
    report = evaluated(capsys, f"{file}:right", f"{file}:make", "--policy-in", "workers", *EIGHT)
    assert [row["length"] for row in report["episodes"]] == [5] * 8


def test_the_results_are_printed_and_written(file, capsys, tmp_path):
    table = tmp_path / "table.csv"
    arguments = ["--episodes", "3", "--workers", "0", "--csv", str(table)]
    assert main(["evaluate", f"{file}:right", f"{file}:make", *arguments]) == 0
    assert capsys.readouterr().out.startswith("return 5 [5, 5] +- 0 over 3 episodes of 5 steps")
    with table.open() as opened:
        assert len(list(csv.DictReader(opened))) == 3


@pytest.mark.slow
def test_videos_are_named(file, capsys, tmp_path):
    pytest.importorskip("imageio_ffmpeg")
    pytest.importorskip("pygame")
    arguments = ["--episodes", "2", "--workers", "0", "--videos", str(tmp_path / "videos")]
    assert main(["evaluate", f"{file}:right", "CartPole-v1", *arguments, "--record", "1"]) == 0
    *_, path = capsys.readouterr().out.split()
    assert path.startswith(str(tmp_path / "videos" / "episode-0-seed-0-return-"))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
@pytest.mark.parametrize("where", ["main", "workers"])
def test_torchscript_is_evaluated(tmp_path, capsys, where):
    torch = pytest.importorskip("torch")

    class Right(torch.nn.Module):
        def forward(self, observations):
            return torch.ones(observations.shape[0], dtype=torch.int64)

    torch.jit.script(Right()).save(str(tmp_path / "right.pt"))
    script = tmp_path / "right.pt"
    report = evaluated(capsys, script, "CartPole-v1", "--policy-in", where, *EIGHT)
    assert report["mean"] < 12


@pytest.mark.slow
@pytest.mark.parametrize("name", ["PPO", "A2C", "DQN", "SAC", "TD3"])
def test_a_model_of_sb3_is_evaluated(tmp_path, capsys, name):
    sb3 = pytest.importorskip("stable_baselines3")
    env = "Pendulum-v1" if name in ("SAC", "TD3") else "CartPole-v1"
    model = getattr(sb3, name)("MlpPolicy", env, device="cpu", seed=1)
    model.save(tmp_path / "model.zip")
    report = evaluated(capsys, tmp_path / "model.zip", env, *EIGHT)

    def policy(observations):
        return model.predict(observations, deterministic=True)[0]

    expected = pysampler.evaluate(env, policy, 8, seed=0)
    assert [row["return"] for row in report["episodes"]] == pytest.approx(expected.returns)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "policy"), [("RecurrentPPO", "MlpLstmPolicy"), ("MaskablePPO", "MlpPolicy")]
)
def test_a_model_of_sb3_contrib_is_not_taken_for_ppo(tmp_path, capsys, name, policy):
    sb3_contrib = pytest.importorskip("sb3_contrib")
    model = getattr(sb3_contrib, name)(policy, "CartPole-v1", device="cpu")
    model.save(tmp_path / "model.zip")
    assert main(["evaluate", str(tmp_path / "model.zip"), "CartPole-v1", "--workers", "0"]) == 2
    assert "is not a model of Stable-Baselines3's PPO, DQN, SAC, TD3" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("policy", "env", "text"),
    [
        ("missing.py:policy", "CartPole-v1", "file not found: missing.py"),
        ("missing.pt", "CartPole-v1", "file not found: missing.pt"),
        ("policy", "CartPole-v1", "got 'policy', expected module:name or file.py:name"),
        ("{}:missing", "CartPole-v1", "has no function missing"),
        ("{}:number", "CartPole-v1", "number is a int, expected a policy"),
        ("{}:right", "Missing-v1", "Environment `Missing` doesn't exist."),
        ("{}:right", "{}:named", "named needs name, expected a function of no arguments"),
        ("{}:right", "Pendulum-v1", "cannot act: the policy returned actions of shape (8,)"),
    ],
)
def test_what_cannot_be_evaluated_is_told_in_a_line(file, capsys, policy, env, text):
    assert main(["evaluate", policy.format(file), env.format(file)]) == 2
    error = capsys.readouterr().err
    assert text in error
    assert error.startswith("pysampler: ")
    assert error.count("\n") == 1


def test_a_table_for_a_missing_folder_is_refused_before_the_first_episode(file, capsys, tmp_path):
    table = tmp_path / "missing" / "table.csv"
    assert main(["evaluate", f"{file}:misled", f"{file}:make", "--csv", str(table)]) == 2
    assert f"there is no folder {table.parent}" in capsys.readouterr().err


@pytest.mark.slow
def test_the_results_are_printed_before_a_table_that_cannot_be_written(file, tmp_path):
    arguments = ["--episodes", "3", "--workers", "0", "--csv", str(tmp_path)]
    command = [sys.executable, "-m", "pysampler", "evaluate", f"{file}:right", f"{file}:make"]
    done = subprocess.run([*command, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stdout.startswith("return 5 [5, 5]")
    assert str(tmp_path) in done.stderr


def test_errors_of_a_policy_keep_their_traceback(file):
    with pytest.raises(ValueError, match="cannot find my file"):
        main(["evaluate", f"{file}:misled", f"{file}:make", "--workers", "0"])


def test_ctrl_c_says_how_to_continue(file, capsys, tmp_path):
    arguments = ["--workers", "0", "--resume", str(tmp_path / "results")]
    assert main(["evaluate", f"{file}:interrupted", f"{file}:make", *arguments]) == 130
    told = "pysampler: interrupted after 0 of 100 episodes; "
    kept = f"{tmp_path / 'results'} has them, and the same command runs the others"
    assert capsys.readouterr().err == f"{told}{kept}\n"
    assert main(["evaluate", f"{file}:stopped", f"{file}:make", *arguments[:2]]) == 130
    lines = capsys.readouterr().err.splitlines()
    assert lines[-2] == "pysampler: interrupted after 16 of 100 episodes; --resume FILE keeps them"
    assert lines[-1].startswith("pysampler: return 5 [5, 5] +- 0 over 16 episodes")


def test_a_resumed_file_is_told_of(file, capsys, tmp_path):
    arguments = ["--workers", "0", "--episodes", "5", "--resume", str(tmp_path / "results")]
    for _ in range(2):
        assert main(["evaluate", f"{file}:right", f"{file}:make", *arguments]) == 0
    assert capsys.readouterr().err.endswith(
        f"pysampler: 5 of 5 episodes were read from {tmp_path / 'results'}\n"
    )


def test_options_of_the_vector_env_are_passed_on(file, capsys, monkeypatch):
    given = {}

    def evaluate(*args, **options):
        given.update(options)
        return pysampler.Evaluation([])

    monkeypatch.setattr(pysampler, "evaluate", evaluate)
    options = ["--isolate", "--seed-globals", "--step-timeout", "2.5", "--max-steps", "7"]
    options += ["--on-worker-loss", "restart", "--videos", "out", "--record", "2"]
    assert main(["evaluate", f"{file}:right", f"{file}:make", *options]) == 0
    assert given["vector_kwargs"] == {
        "isolate": True,
        "seed_globals": True,
        "step_timeout": 2.5,
        "on_worker_loss": "restart",
    }
    assert given["max_steps"] == 7
    assert given["record"] == 2


def test_a_choice_of_films_without_a_folder_is_refused(file, capsys):
    assert main(["evaluate", f"{file}:right", "CartPole-v1", "--record", "2"]) == 2
    assert "--record is for --videos FOLDER" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
def test_a_model_of_another_env_is_told_in_a_line(tmp_path, capsys):
    torch = pytest.importorskip("torch")
    torch.jit.script(torch.nn.Linear(7, 2)).save(str(tmp_path / "other.pt"))
    assert main(["evaluate", str(tmp_path / "other.pt"), "CartPole-v1", "--workers", "0"]) == 2
    error = capsys.readouterr().err
    assert "other.pt failed in CartPole-v1: " in error
    assert error.endswith("is it a policy for this env?\n")
    assert error.count("\n") == 1
    torch.save(torch.nn.Linear(4, 2).state_dict(), tmp_path / "weights.pt")
    assert main(["evaluate", str(tmp_path / "weights.pt"), "CartPole-v1"]) == 2
    assert "is not a file of torch.jit.save; load a state_dict" in capsys.readouterr().err


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
def test_other_files_are_no_policies(tmp_path, capsys):
    for name in ("some.zip", "some.pt"):
        (tmp_path / name).write_bytes(b"something")
        assert main(["evaluate", str(tmp_path / name), "CartPole-v1"]) == 2
        assert "pysampler: " in capsys.readouterr().err
