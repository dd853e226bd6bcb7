"""``pysampler tune`` tries sampling options for an env and prints the best."""

import dataclasses
import functools
import json
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from gymnasium import spaces
from programs import completed, processes_in
from small_envs import Small
from terminals import on_screen, plain
from told_envs import Drawing, SmallEnv

import pysampler
from pysampler._cli.choices import Choice, choices_for
from pysampler._cli.contenders import Stepper, _made
from pysampler._cli.main import main
from pysampler._cli.measuring import Setting, table
from pysampler._cli.sources import Call, source_of
from pysampler._cli.tune import advice_of
from pysampler._cli.turns import Measured, used_by_others
from pysampler.sync import usable_cpus

TUNE = ("-m", "pysampler", "tune")
ENVS = """
import pathlib, time
import gymnasium as gym

def make():
    return gym.make("CartPole-v1")

def hanging():
    pathlib.Path("hangs").touch()
    while True:
        time.sleep(1)
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "levels.py").write_text(ENVS)
    monkeypatch.chdir(tmp_path)
    return tmp_path


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
def test_the_terminal_shows_the_choices_of_a_function(folder):
    options = "--envs", "2", "--workers", "1", "--seconds", "0.5"
    status, shown = on_screen(*TUNE, "levels.py:make", *options)
    assert status == 0
    shown = plain(shown)
    assert "trying num_workers=0" in shown
    last = shown[shown.rindex("levels.py:make, 2 envs, 1 process; ") :].splitlines()
    assert last[2].endswith("  of default [quartiles]")
    assert last[3].startswith("default  ")
    assert max(map(len, last[: last.index("", 3)])) <= 80
    assert any(line.startswith("num_workers=0  ") and "[" in line for line in last)
    (line,) = [line for line in last if line.startswith("envs = ")][:1]
    assert line.startswith("envs = pysampler.VectorEnv([make] * 2")


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


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["levels.py"], "cannot measure levels.py: name the function of levels.py that makes one"),
        (["Nope-v1"], "cannot measure Nope-v1: NameNotFound"),
        (["ALE/Pong-v5"], "cannot measure ALE/Pong-v5: NamespaceNotFound"),
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
    env = str(folder / "levels.py:hanging")
    command = subprocess.Popen(
        [sys.executable, *TUNE, env], stdout=subprocess.PIPE, stderr=subprocess.PIPE
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
        in_threads(isolation={**in_threads().isolation, "isolated": False}),
    ],
)
def test_threads_are_not_tried_where_envs_forbid_them(setting):
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


def test_headings_fit_80_columns(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    many = dataclasses.replace(SETTING, workers=16, envs=64, waits=True, vector=True)
    setting = dataclasses.replace(many, env="a/long/path/of/a/file/with_envs.py:make " * 3)
    choices = choices_for(setting, policy=True)
    lines = table({name: Measured([1e6] * 4, [1.0] * 4) for name in choices}, "default")
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


class Speaking(SmallEnv):
    action_space = spaces.Text(5)


@pytest.mark.parametrize(
    ("make", "recv", "mode"),
    [
        (Drawing, {"min_envs": 2}, "SameStep"),
        (Speaking, {"min_envs": 2}, "SameStep"),
        (functools.partial(Small, 2), None, "NextStep"),
    ],
)
def test_slices_count_the_steps_that_envs_make_in_them(make, recv, mode):
    """Neither steps that were begun before, nor those that only reset an env."""
    stepper = Stepper(
        lambda: pysampler.VectorEnv([make] * 4, num_workers=2, autoreset_mode=mode), recv=recv
    )
    envs = stepper._envs
    for _ in range(3):
        before = envs.stats().steps.count.sum()
        steps, _ = stepper.run(0.01)
        assert envs.pending == 0
        assert steps == envs.stats().steps.count.sum() - before
    stepper.close()
