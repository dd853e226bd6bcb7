"""``pysampler tune`` tries sampling options for an env or a script and prints the best."""

import dataclasses
import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from programs import completed, processes_in
from terminals import on_screen, plain

from pysampler._cli.choices import Choice, choices_for
from pysampler._cli.contenders import _made
from pysampler._cli.main import main
from pysampler._cli.measuring import Setting, table
from pysampler._cli.sources import Call, load, source_of, written
from pysampler._cli.tune import advice_of
from pysampler._cli.turns import Measured, used_by_others
from pysampler.sync import usable_cpus

TUNE = ("-m", "pysampler", "tune")
SCRIPT = """
import argparse, pathlib, time
import gymnasium as gym
import pysampler

parser = argparse.ArgumentParser()
parser.add_argument("--envs", type=int, default=3)
parser.add_argument("--hang", action="store_true")
options = parser.parse_args()

class Marked(gym.Wrapper):
    pass

def make():
    return Marked(gym.make("CartPole-v1"))

if __name__ == "__main__":
    if options.hang:
        pathlib.Path("hangs").touch()
    while options.hang:
        time.sleep(1)
    try:
        envs = pysampler.VectorEnv([make] * options.envs, num_workers=1, infos="final")
    finally:
        pathlib.Path("went-on").touch()
"""


NAVIGATION = "pysampler.envs.meta:Navigation2D-v0"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "train.py").write_text(SCRIPT)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def source_in(folder, monkeypatch):
    """Return a function that runs a program as a script, and loads the source of its envs."""

    def source_in(program):
        make = "def make():\n    return gymnasium.make('CartPole-v1')"
        (folder / "train.py").write_text(f"import gymnasium, pysampler\n{make}\n{program}\n")
        code = "from pysampler._cli.script_process import main; main()"
        completed("-c", code, str(os.getpid()), "envs", "train.py")
        monkeypatch.setattr(sys, "path", sys.path[:])  # loading replaces it by the script's path
        return load(folder / "envs")

    return source_in


@pytest.mark.slow
def test_every_choice_is_tried():
    done = completed(
        *(*TUNE, "CartPole-v1", "--envs", "4", "--workers", "2", "--seconds", "1"),
        *("--policy-ms", "0.1", "--json"),
    )
    report = json.loads(done.stdout)
    setting = Setting("CartPole-v1", 4, 2, Call(""), step_seconds=1e-5, vector=True)
    assert report["isolation"]["threads"]["isolated"] is True
    assert "vector_entry_point in threads" in report["choices"]
    setting = dataclasses.replace(setting, isolation=report["isolation"])
    assert 'vectorization_mode="vector_entry_point"' in report["choices"]
    assert list(report["choices"]) == list(choices_for(setting, policy=True, native=True))
    for one in report["choices"].values():
        assert one["steps_per_second"] > 0
        assert one["slices"] >= 2
    finals = [name for name, one in report["choices"].items() if one["last_turns"]]
    assert "default" in finals
    assert 4 <= len(finals) <= 5
    assert report["lines"][0] == "import pysampler"
    assert report["lines"][1].startswith('envs = pysampler.make_vec("CartPole-v1", num_envs=4')


def test_lines_of_the_vector_class_make_it():
    call = source_of("CartPole-v1").call
    setting = Setting("CartPole-v1", 4, 2, call, step_seconds=1e-5, vector=True)
    lines = choices_for(setting)['vectorization_mode="vector_entry_point"'].lines(setting)
    made = {}
    exec("\n".join(lines), made)
    assert "CartPole-v1 of" in made["envs"].describe()
    made["envs"].close()


@pytest.mark.slow
def test_a_script_is_run_until_it_makes_a_vector_env(folder):
    options = "--script-args=--envs=2", "--workers", "1", "--seconds", "0.5"
    status, shown = on_screen(*TUNE, "train.py", *options)
    assert status == 0
    shown = plain(shown)
    assert "running train.py until it makes a vector env" in shown
    assert "trying num_workers=0" in shown
    last = shown[shown.rindex("train.py:23 makes 2 envs") :].splitlines()
    assert last[0] == "train.py:23 makes 2 envs (CartPole-v1) with pysampler's VectorEnv"
    assert last[1].startswith("train.py, 2 envs, 1 process; ")
    assert last[3].endswith("  of script [quartiles]")
    assert last[4].startswith("as in the script  ")
    assert max(map(len, last[: last.index("", 4)])) <= 80
    assert any(line.startswith("num_workers=0  ") and "[" in line for line in last)
    (line,) = [line for line in last if line.startswith("envs = ")][:1]
    assert line.startswith('envs = pysampler.VectorEnv(env_fns, infos="final"')
    assert not (folder / "went-on").exists()


@pytest.mark.slow
def test_envs_are_made_in_the_folder_and_environment_of_the_script(folder):
    """The script changes its folder and environment; it does not import from the first folder."""
    (folder / "queue.py").write_text("1 / 0")
    inner = folder / "inner"
    inner.mkdir()
    (inner / "level.txt").touch()
    (inner / "train.py").write_text(
        "import os\nimport gymnasium, pysampler\n"
        "os.chdir(os.path.dirname(os.path.abspath(__file__)))\nos.environ['OF_SCRIPT'] = 'yes'\n"
        "def make():\n"
        "    open('level.txt'), os.environ['OF_SCRIPT']\n"
        "    return gymnasium.make('CartPole-v1')\n"
        "pysampler.VectorEnv([make] * 2, autoreset_mode='Disabled', trace='of-script.json')\n"
    )
    done = completed("-P", *TUNE, "inner/train.py", "--seconds", "1", "--json")
    report = json.loads(done.stdout)
    assert report["found"] == "train.py:8 makes 2 envs (CartPole-v1) with pysampler's VectorEnv"
    assert list(report["choices"])[:2] == ["as in the script", "default"]
    assert report["choices"]["as in the script"]["fraction"] == 1
    assert report["choices"]["default"]["steps_per_second"] > 0
    assert not list(inner.glob("*.json"))


def test_arguments_are_written_as_python_source():
    class Odd:
        def __repr__(self):
            raise RuntimeError

    for value, text in (
        ("a", '"a"'),
        (np.float64(5.0), "5.0"),
        (float("inf"), 'float("inf")'),
        ({"a": (1, None)}, "{'a': (1, None)}"),
        (Odd(), "..."),
        (np.zeros(3), "..."),
        (object(), "..."),
        ("a" * 300, "..."),
    ):
        assert written(value) == text


OF_SB3 = "from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv"
OF_SB3_TOO = "from stable_baselines3.common.env_util import make_vec_env"
OURS = "from pysampler.adapters.sb3 import VecEnv"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("program", "what"),
    [
        ('pysampler.make_vec("CartPole-v1", 3)', '"CartPole-v1", num_envs=3'),
        ('pysampler.make_vec("Reacher-v5", 3)', '"Reacher-v5", num_envs=3'),
        (f'pysampler.make_vec("{NAVIGATION}", 3)', f'"{NAVIGATION}", num_envs=3'),
        (f'pysampler.Rollouts("{NAVIGATION}", len, 5, num_envs=2)', f'"{NAVIGATION}", num_envs=2'),
        (f'gymnasium.make_vec("{NAVIGATION}", 3)', f'"{NAVIGATION}", num_envs=3'),
        ('pysampler.Rollouts("CartPole-v1", len, 5, num_envs=2)', '"CartPole-v1", num_envs=2'),
        (
            'gymnasium.make_vec("CartPole-v1", 3, "sync", max_episode_steps=9)',
            'make_vec("CartPole-v1", num_envs=3, max_episode_steps=9)',
        ),
        ('gymnasium.make_vec("CartPole-v1", 3, "async")', 'make_vec("CartPole-v1", num_envs=3'),
        ("gymnasium.vector.SyncVectorEnv([lambda: 1, lambda: 2])", "env_fns"),
        ("pysampler.VectorEnv([lambda i=i: i for i in range(3)])", "env_fns"),
        (f"{OF_SB3}; DummyVecEnv([lambda: gymnasium.make('CartPole-v1')] * 3)", "VecEnv(env_fns)"),
        (
            f"{OF_SB3}; SubprocVecEnv([lambda: 1, lambda: 2], start_method='fork')",
            "VecEnv(env_fns)",
        ),
        (f"{OURS}; VecEnv([lambda: 1, lambda: 2])", "VecEnv(env_fns)"),
        (
            f"{OF_SB3_TOO}; make_vec_env('CartPole-v1', 3)",
            'make_vec_env("CartPole-v1", n_envs=3, vec_env_cls=VecEnv)',
        ),
    ],
)
def test_each_vector_env_constructor_is_recognized(source_in, program, what):
    if "stable_baselines3" in program or program.startswith(OURS):
        pytest.importorskip("stable_baselines3")
    source = source_in(program)
    assert what in source.call.written(source.count, {})
    assert len(source.env_fns(source.count)) == source.count
    assert source.found[0] == "train.py:4"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("program", "kept", "own"),
    [
        (
            "pysampler.VectorEnv([make] * 2, False, False, native=False, num_workers=1)",
            {"copy": False, "native": False},
            {"shared_memory": False, "num_workers": 1, "autoreset_mode": "SameStep"},
        ),
        (
            'pysampler.make_vec("CartPole-v1", 2, None, {"native": False, "trace": "run.json"})',
            {"native": False},
            {"autoreset_mode": "SameStep"},
        ),
        (
            "gymnasium.vector.AsyncVectorEnv([make] * 2, True, False, autoreset_mode='Disabled')",
            {"copy": False, "autoreset_mode": "Disabled"},
            {"autoreset_mode": "SameStep"},
        ),
        (
            "pysampler.VectorEnv([make] * 2, isolate=True)",
            {"isolate": True},
            {"autoreset_mode": "SameStep"},
        ),
        (
            "pysampler.VectorEnv([make] * 2, isolate='check')",
            {},
            {"isolate": "check", "autoreset_mode": "SameStep"},
        ),
        (
            "gymnasium.vector.SyncVectorEnv([make] * 2, False)",
            {"copy": False},
            {"autoreset_mode": "SameStep"},
        ),
    ],
)
def test_options_of_a_script_count_by_position_and_by_name(source_in, program, kept, own):
    source = source_in(program)
    assert source.count == 2
    assert source.options == kept
    assert source.as_found.keywords == {**kept, **own}


@pytest.mark.slow
@pytest.mark.parametrize("native", [False, True])
def test_native_of_a_script_is_respected_by_all_rows(source_in, native):
    source = source_in(f'pysampler.make_vec("CartPole-v1", 32, num_workers=0, native={native})')
    for order in ({"kind": "script"}, {"kind": "pysampler", "options": {"num_workers": 0}}):
        contender = _made(source, {"envs": 32, "warm": 0.0, **order})
        assert contender.about["native"] == native
        contender.close()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("program", "kind"),
    [
        ('gymnasium.make_vec("CartPole-v1", 3)', "CartPoleVectorEnv"),
        (
            'pysampler.make_vec("CartPole-v1", 3, "vector_entry_point", num_workers=0)',
            "VectorEnv",
        ),
    ],
)
def test_a_script_with_a_vector_entry_point_is_measured_by_its_python_env(source_in, program, kind):
    source = source_in(program)
    assert source.count == 3
    assert source.found[1].startswith("their vector entry point, CartPoleVectorEnv; ")
    assert source.call.written(3, {}) == 'pysampler.make_vec("CartPole-v1", num_envs=3)'
    assert type(source.env_fns(1)[0]().unwrapped).__name__ == "CartPoleEnv"
    envs = source.as_found(source.env_fns(3))
    assert type(envs).__name__ == kind
    assert envs.num_envs == 3
    envs.close()


@pytest.mark.slow
@pytest.mark.parametrize("made", ["DummyVecEnv([make] * 3)", "VecEnv([make] * 3, num_workers=1)"])
def test_vector_envs_of_sb3_are_stepped_as_in_the_script(source_in, made):
    pytest.importorskip("stable_baselines3")
    source = source_in(f"{OURS if made.startswith('VecEnv') else OF_SB3}; {made}")
    contender = _made(source, {"kind": "script", "envs": 3, "warm": 0.01})
    steps, _ = contender.run(0.01)
    assert steps % 3 == 0
    contender.close()


@pytest.mark.slow
@pytest.mark.parametrize("made", ["DummyVecEnv([make] * 3)", "VecEnv([make] * 3, num_workers=1)"])
def test_choices_for_sb3_are_stepped_as_sb3_steps_them(source_in, made, monkeypatch):
    pytest.importorskip("stable_baselines3")
    from pysampler.adapters import sb3

    source = source_in(f"{OURS if made.startswith('VecEnv') else OF_SB3}; {made}")
    stepped = []
    step_wait = sb3.VecEnv.step_wait
    monkeypatch.setattr(sb3.VecEnv, "step_wait", lambda envs: stepped.append(1) or step_wait(envs))
    for choice in choices_for(SETTING).values():
        if choice.loop == "step":
            stepped.clear()
            order = {**choice.order(SETTING, 0.0, 1.0), "envs": 3, "warm": 0.01}
            contender = _made(source, order)
            steps, _ = contender.run(0.01)
            assert len(stepped) >= steps // 3 > 0
            assert {"num_workers", "native", "described"} <= contender.about.keys()
            contender.close()
    for kind, name in (("sync", "DummyVecEnv"), ("async", "SubprocVecEnv")):
        contender = _made(source, {"kind": kind, "envs": 3, "warm": 0.01})
        assert type(contender._envs).__name__ == name
        contender.close()


OBJECTIVES = """
import gymnasium as gym
import numpy as np


class Objectives(gym.Wrapper):
    reward_space = gym.spaces.Box(-1, 1, (3,), np.float32)

    def step(self, action):
        observation, reward, *rest = self.env.step(action)
        return observation, np.full(3, reward, np.float32), *rest


def make():
    return Objectives(gym.make("CartPole-v1"))
"""


def test_steps_of_rollouts_with_several_rewards_are_counted_once(folder, monkeypatch):
    monkeypatch.setattr(sys, "path", sys.path[:])
    (folder / "objectives.py").write_text(OBJECTIVES)
    options = {"kind": "pysampler", "options": {"num_workers": 0}, "policy_in": "main"}
    contender = _made(source_of("objectives.py:make"), {"envs": 2, "warm": 0.0, **options})
    steps, _ = contender.run(0.0)
    assert steps == 16 * 2
    contender.close()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "arguments", "why"),
    [
        ("", [], "it ended without making a vector env"),
        ("1 / 0", [], "ZeroDivisionError: division by zero"),
        (SCRIPT, ["--script-args=--level 3"], "SystemExit: 2; train.py: error: unrecognized"),
        (
            SCRIPT,
            ["--script-args=--hang", "--limit", "1"],
            "it made no vector env within 1 s (--limit)",
        ),
        (
            "import stable_baselines3 as sb3; sb3.DQN('MlpPolicy', 'CartPole-v1')",
            [],
            "it trains on one env; use several, with make_vec_env",
        ),
        (
            f"{OF_SB3_TOO}; make_vec_env('CartPole-v1', 2, monitor_dir='m')",
            [],
            "trials would write to its monitor_dir: remove that argument",
        ),
        (
            (
                "import gymnasium as gym\n"
                "kind = 'gymnasium.envs.classic_control.cartpole:CartPoleVectorEnv'\n"
                "gym.register('Only-v0', vector_entry_point=kind)\ngym.make_vec('Only-v0', 2)"
            ),
            [],
            "train.py:4 makes Only-v0 with its vector entry point, CartPoleVectorEnv; to measure",
        ),
        (
            "import pysampler; pysampler.VectorEnv([])",
            [],
            "its vector env has 0 envs, expected at least 1",
        ),
        ("import os; os.abort()", [], "its process ended with SIGABRT"),
    ],
)
def test_a_script_without_a_vector_env_is_one_line(folder, capsys, script, arguments, why):
    if "stable_baselines3" in script:
        pytest.importorskip("stable_baselines3")
    (folder / "train.py").write_text(script)
    assert main(["tune", "train.py", *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    running, line = captured.err.splitlines()
    assert running == "running train.py until it makes a vector env"
    assert line.startswith(f"pysampler: cannot measure train.py: {why}")


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["nope.py"], "script not found: nope.py"),
        (["Nope-v1"], "cannot measure Nope-v1: NameNotFound"),
        (["ALE/Pong-v5"], "cannot measure ALE/Pong-v5: NamespaceNotFound"),
        (["CartPole-v1", "--script-args=x"], "--script-args needs a script"),
    ],
)
def test_an_unusable_argument_is_reported_in_one_line(folder, capsys, arguments, why):
    assert main(["tune", *arguments]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"pysampler: {why}")
    assert line.endswith("pass ale_py:ALE/Pong-v5") == (arguments == ["ALE/Pong-v5"])


@pytest.mark.slow
@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGKILL])
def test_no_process_outlives_an_interrupted_or_killed_command(folder, end):
    script = [str(folder / "train.py"), "--script-args=--hang"]
    command = subprocess.Popen(
        [sys.executable, *TUNE, *script], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    while not (folder / "hangs").exists():
        time.sleep(0.01)  # poll: the other process makes the file
    assert len(processes_in(folder)) == 2
    command.send_signal(end)
    errors = command.communicate()[1]
    assert command.returncode == (130 if end == signal.SIGINT else -signal.SIGKILL)
    assert b"Traceback" not in errors
    while processes_in(folder):
        time.sleep(0.01)  # poll: they are not children of this process


def test_help_fits_a_screen():
    status, shown = on_screen(*TUNE, "--help")
    assert status == 0
    assert len(shown.splitlines()) <= 24
    assert max(map(len, shown.splitlines())) <= 80


# -- choices ---------------------------------------------------------------------------------------

SETTING = Setting(
    env="CartPole-v1",
    envs=4,
    workers=2,
    call=Call('pysampler.make_vec("CartPole-v1", num_envs={}'),
    step_seconds=1e-5,
)
CHOICES = choices_for(SETTING, policy=True)


@pytest.mark.parametrize("name", CHOICES)
def test_the_printed_lines_of_each_choice_run(name):
    names = {"horizon": 3}
    names["policy"] = lambda observations: np.zeros(len(observations), np.int64)
    imported, made, *others = CHOICES[name].lines(SETTING)
    exec(f"{imported}\n{made}", names)
    envs = names["envs"]
    assert envs.num_envs == 4
    if CHOICES[name].loop == "recv":
        exec("\n".join(others), names)
        assert 0 < len(names["rewards"]) <= 4
        envs.recv()
    elif CHOICES[name].loop == "Rollouts":
        exec("\n".join(others), names)
        with names["rollouts"] as rollouts:
            assert next(rollouts).rewards.shape == (3, 4)
    else:
        assert others == []
    envs.close()


def test_envs_that_wait_get_more_workers_than_cpus():
    waiting = Setting("", 8, 2, Call(""), step_seconds=1e-2, waits=True)
    assert choices_for(waiting)["num_workers=8"] == Choice({"num_workers": 8})
    assert "num_workers=8" not in choices_for(SETTING)
    native = choices_for(SETTING, native=True)
    assert not any("auto" in choice.options.values() for choice in native.values())
    alone = Setting("", 8, 1, Call(""), step_seconds=1e-2)
    assert 'main_envs="auto"' not in choices_for(alone)


def test_tune_keeps_envs_in_workers_for_options_that_need_them():
    for kept, tried in (({"groups": "1"}, True), ({"step_timeout": "9.0"}, False)):
        setting = Setting("", 8, 2, Call(""), step_seconds=1e-5, kept=kept)
        assert ("num_workers=0" in choices_for(setting)) is tried


ISOLATED = dataclasses.replace(SETTING, isolation={"isolated": False})
ISOLATED_CHOICES = choices_for(ISOLATED, policy=True)


@pytest.mark.parametrize("name", ISOLATED_CHOICES)
def test_no_choice_lets_envs_share_a_process_if_they_must_not(name):
    choice = ISOLATED_CHOICES[name]
    assert not choice.options
    order = choice.order(ISOLATED, 0.0, 1.0)
    assert order["options"]["isolate"] is True
    assert ", isolate=True)" in choice.lines(ISOLATED)[1]
    finals = {"default": found(1.0), name: found(2.0)}
    advice, lines = advice_of(ISOLATED, ISOLATED_CHOICES, finals)
    assert advice.endswith("Only choices with a process for each env were tried (isolate=True).")
    assert all("isolate=True" in line for line in lines if line.startswith("envs = "))


def test_a_script_whose_envs_must_not_share_a_process_is_told_to_isolate_them():
    setting = dataclasses.replace(ISOLATED, found="train.py:4 makes 4 envs")
    choices = choices_for(setting)
    script = next(iter(choices))
    advice, lines = advice_of(setting, choices, {script: found(1.0), "default": found(0.9)})
    assert lines == []
    assert advice.endswith("(isolate=True). Add that option to the script unless it has it.")


def test_envs_that_the_check_cannot_judge_may_share_a_process():
    unsure = dataclasses.replace(SETTING, isolation={"isolated": None})
    assert choices_for(unsure, policy=True) == CHOICES


def in_threads(*, isolated=True, **changed):
    isolation = {"isolated": True, "threads": {"isolated": isolated}}
    return dataclasses.replace(SETTING, **{"isolation": isolation, **changed})


def test_threads_are_tried_where_they_may_pay():
    name = 'context="threads"'
    assert choices_for(in_threads())[name] == Choice({"context": "threads"})
    assert name in choices_for(in_threads(), native=True)
    vector = choices_for(in_threads(vector=True))
    assert vector["vector_entry_point in threads"].options["context"] == "threads"


@pytest.mark.parametrize(
    "setting",
    [
        SETTING,
        in_threads(isolated=False),
        in_threads(isolated=None),
        in_threads(workers=1),
        in_threads(kept={"context": '"fork"'}),
        in_threads(kept={"on_worker_loss": '"restart"'}),
        in_threads(isolation={**in_threads().isolation, "isolated": False}),
    ],
)
def test_threads_are_not_tried_where_envs_or_options_forbid_them(setting):
    setting = dataclasses.replace(setting, vector=True)
    choices = choices_for(setting, policy=True, native=True)
    assert not any("context" in choice.options for choice in choices.values())


def test_lines_and_advice_of_threads():
    setting = in_threads(workers=usable_cpus())
    choices, name = choices_for(in_threads()), 'context="threads"'
    assert choices[name].lines(setting)[1].endswith(', num_envs=4, context="threads")')
    advice, _ = advice_of(setting, choices, {"default": found(1.0), name: found(1.5)})
    assert "Its envs share the program: read what they must not do" in advice
    setting = in_threads(workers=1)
    assert choices[name].order(setting, 0.0, 1.0)["options"] == {
        "num_workers": 1,
        "context": "threads",
    }


def test_an_sb3_program_gets_sb3_lines():
    for call, made in (
        (Call("VecEnv(env_fns", imported=OURS, by_steps=True), "VecEnv(env_fns, num_workers=0)"),
        (
            Call("make_vec_env(..., n_envs={}", "vec_env_kwargs", OURS, by_steps=True),
            'make_vec_env(..., n_envs=4, vec_env_kwargs={"num_workers": 0})',
        ),
    ):
        setting = dataclasses.replace(SETTING, call=call, workers=usable_cpus())
        choices = choices_for(setting, policy=True)
        assert {choice.loop for choice in choices.values()} == {"step"}
        assert choices["num_workers=0"].lines(setting) == [OURS, f"envs = {made}"]


def found(*fractions):
    about = {"num_workers": 1, "main_envs": 2}
    return Measured([1.0] * 4, [*fractions] * (4 // len(fractions)), about)


def test_the_best_choice_is_advised_only_beyond_the_spread():
    auto, half = 'num_workers="auto"', "groups=2, recv of half"
    default = found(1.0)
    advice, lines = advice_of(
        SETTING, CHOICES, {"default": default, auto: found(0.8, 0.9, 2.1, 2.2)}
    )
    assert advice.startswith("Nothing beats the default")
    assert lines == CHOICES["default"].lines(SETTING)
    few = Measured([1.0] * 2, [1.5] * 2)
    assert advice_of(SETTING, CHOICES, {"default": default, auto: few})[0] == advice
    advice, lines = advice_of(SETTING, CHOICES, {"default": default, auto: found(1.5)})
    assert advice.startswith(
        f"{auto} is 1.50 [1.50, 1.50] times as fast as the default. It starts "
    )
    assert advice.endswith("1 worker and steps 2 envs in the program's own process.")
    assert lines == CHOICES[auto].lines(SETTING)
    alone = dataclasses.replace(found(1.5), about={"num_workers": 1, "main_envs": 0})
    advice, _ = advice_of(SETTING, CHOICES, {"default": default, auto: alone})
    assert advice.endswith("It starts 1 worker.")
    finals = {"default": default, auto: found(1.5), half: found(2.0)}
    advice, lines = advice_of(SETTING, CHOICES, finals)
    assert advice.startswith(f"{half} is 2.00 ")
    assert f"If it calls step, {auto} is 1.50 " in advice
    assert lines == [
        *CHOICES[half].lines(SETTING),
        *("", "# with step"),
        *CHOICES[auto].lines(SETTING)[1:],
    ]
    advice, _ = advice_of(SETTING, CHOICES, {"default": default, auto: found(1.0), half: found(2)})
    assert advice.endswith("nothing beats the default.")


def test_the_advice_for_a_script_compares_with_its_own_options():
    setting = dataclasses.replace(SETTING, found="train.py:4 makes 4 envs")
    choices = choices_for(setting)
    script, auto = next(iter(choices)), 'num_workers="auto"'
    assert script == "as in the script"
    advice, lines = advice_of(setting, choices, {script: found(1.0), "default": found(1.0)})
    assert advice.startswith("Nothing beats the script")
    assert lines == []
    advice, lines = advice_of(setting, choices, {script: found(1.0), auto: found(1.5)})
    assert advice.startswith(f"{auto} is 1.50 [1.50, 1.50] times as fast as the script. ")
    assert lines == CHOICES[auto].lines(SETTING)


@pytest.mark.parametrize("reference", ["as in the script", "default"])
def test_headings_fit_80_columns(reference, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    many = dataclasses.replace(SETTING, workers=16, envs=64, waits=True, vector=True)
    setting = dataclasses.replace(many, found="a/long/path/of/a/script/train_all_of_it.py:12 " * 3)
    choices = choices_for(setting if reference != "default" else many, policy=True)
    names = [reference, *choices]
    lines = table({name: Measured([1e6] * 4, [1.0] * 4) for name in names}, reference)
    assert lines[0].endswith(" [quartiles]")
    assert max(map(len, [*lines, *setting.heading()])) <= 80


def test_rates_agree_with_the_ratios_beside_them():
    """Also rates of an earlier stage in which the machine was faster."""
    default, early = Measured([6_000.0] * 4, [1.0] * 4), Measured([13_800.0] * 3, [0.8] * 3)
    rows = table({"default": default, "early": early}, "default")
    assert [row.split()[1] for row in rows[1:]] == ["6,000", "4,800"]
    assert early.to_dict(default)["steps_per_second"] == pytest.approx(4_800)


def test_a_busy_machine_is_mentioned_in_each_advice():
    auto = 'num_workers="auto"'
    quiet = Measured([100.0] * 4, [1.0] * 4, others=[0.0, 0.1])
    loaded = Measured([100.0] * 4, [1.0] * 4, others=[usable_cpus() / 2] * 2)
    quick = Measured([300.0] * 4, [1.0] * 4)
    for others in (0.9, 1.5):
        finals = {"default": quiet, auto: found(others)}
        assert "busy" not in advice_of(SETTING, CHOICES, finals, quiet)[0]
        assert "busy" in advice_of(SETTING, CHOICES, finals, quick)[0]
        expected = f"other programs use {usable_cpus() / 2:.1f} of {usable_cpus()} CPUs"
        assert expected in advice_of(SETTING, CHOICES, {**finals, "default": loaded}, loaded)[0]


@pytest.mark.slow
def test_cpu_use_of_other_programs_is_measured():
    command = [sys.executable, "-c", "print(flush=True)\nwhile True: pass"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as burner:
        burner.stdout.readline()
        while used_by_others(0.2) < 0.2:
            pass
        burner.kill()
