"""``pysampler bench`` compares vector envs on one env, and always ends with its processes."""

import dataclasses
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from programs import completed, processes_in
from terminals import on_screen, plain
from told_envs import SmallEnv

from pysampler._cli import bench, measuring
from pysampler._cli.contenders import Ideal
from pysampler._cli.main import main
from pysampler._cli.measuring import Setting
from pysampler._cli.sources import Call, EnvSource, source_of
from pysampler._cli.turns import Measured

BENCH = ("-m", "pysampler", "bench")
ENVS = """
import os, pathlib, time
import gymnasium as gym

def make():
    return gym.make("CartPole-v1")

def raising():
    raise ValueError("no such level")

def hanging():
    pathlib.Path("hangs").write_text(str(os.getpid()))
    while True:
        time.sleep(1)

def number():
    return 3

def several():
    return gym.make_vec("CartPole-v1", 3, "vector_entry_point")

class Dies(gym.Wrapper):
    def step(self, action):
        os._exit(3)

def dying():
    return Dies(gym.make("CartPole-v1"))

def only_as_main():
    if "AsyncVectorEnv" in __import__("multiprocessing").current_process().name:
        raise RuntimeError("not in this process")
    return gym.make("CartPole-v1")
"""
# Deadlocks in C, where Python runs no signal handlers.
STUCK = """
import ctypes

def make():
    libc = ctypes.PyDLL(None)
    mutex = ctypes.create_string_buffer(64)
    libc.pthread_mutex_lock(mutex)
    libc.pthread_mutex_lock(mutex)
"""
NAMES = ["ideal", "pysampler", 'pysampler, num_workers="auto"']
NAMES += ["gymnasium SyncVectorEnv", "gymnasium AsyncVectorEnv"]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "levels.py").write_text(ENVS)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def wait_until(true):
    """Poll: other processes do not wake this one."""
    while not true():
        time.sleep(0.01)


@pytest.mark.slow
def test_all_contenders_are_measured():
    done = completed(*BENCH, "CartPole-v1", "--envs", "4", "--seconds", "0.5", "--json")
    report = json.loads(done.stdout)
    assert report["envs"] == 4
    assert list(report["contenders"]) == NAMES
    for one in report["contenders"].values():
        assert one["steps_per_second"] > 0
        low, high = one["quartiles"]
        assert 0 < low <= one["fraction"] <= high
    assert report["advice"]
    assert report["isolation"] == {
        "isolated": True,
        "verdict": (
            "envs of CartPole-v1 may share a process: 200 steps beside others gave the same "
            "results as alone"
        ),
        "reasons": [],
    }


@pytest.mark.slow
def test_the_terminal_table_shows_all_contenders(folder):
    status, shown = on_screen(
        *BENCH, "levels.py:make", "--envs", "2", "--workers", "2", "--seconds", "0.5"
    )
    assert status == 0
    assert "turn 1: " in plain(shown)
    last = shown[shown.rindex("levels.py:make, 2 envs, 2 processes") :].splitlines()
    assert [line.split("  ")[0] for line in last[4:9]] == NAMES
    assert all("█" in line or "▏" in line or "[" in line for line in last[4:9])
    assert max(map(len, last[:9])) <= 80
    assert last[9] == ""
    assert last[10] != ""  # the advice
    assert "envs of CartPole-v1 may share a process" in "\n".join(last)


@pytest.mark.slow
def test_a_failing_contender_is_reported_and_the_others_are_measured(folder):
    """Also without rich, as plain text."""
    command = ["bench", "levels:only_as_main", "--envs", "2", "--seconds", "0.3"]
    program = "import sys; sys.modules['rich'] = None; from pysampler._cli.main import main; "
    status, shown = on_screen("-c", f"{program}sys.exit(main({command}))")
    assert status == 1
    assert "\x1b[" not in shown
    assert "starting ideal" in shown
    lines = shown[shown.rindex("levels:only_as_main, 2 envs") :].splitlines()
    (row,) = [line for line in lines if "does not run: " in line]
    assert row.startswith("gymnasium AsyncVectorEnv")
    assert all("[" in line for line in lines[4:8])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("env", "why"),
    [
        ("Nope-v1", "NameNotFound: Environment `Nope` doesn't exist."),
        ("nothing_like:it", "cannot import nothing_like: ModuleNotFoundError"),
        ("levels:nope", "levels has no function or env nope"),
        ("levels.py:nope", "levels.py has no function nope"),
        ("levels.py", "name the function of levels.py that makes one env, as in levels.py:make"),
        ("nothing.py", "nothing.py has no function without arguments; write one that makes one"),
        ("nope.py", "file not found: nope.py"),
        ("nope.py:make", "file not found: nope.py"),
        ("levels.py:raising", "ValueError: no such level"),
        ("levels:number", "int is not a gymnasium env: it has no reset"),
        ("levels:several", "CartPoleVectorEnv steps many envs; pass a function that makes one"),
        ("levels:dying", "its process ended with status 3"),
    ],
)
def test_an_unusable_env_is_reported_in_one_line(folder, capsys, env, why):
    (folder / "nothing.py").write_text("def make(name):\n    raise ValueError(name)\n")
    assert main(["bench", env, "--seconds", "0.1"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    (line,) = captured.err.splitlines()
    assert line.startswith(f"pysampler: cannot measure {env}: {why}")


@pytest.mark.slow
def test_a_hanging_env_is_reported(folder, capsys):
    assert main(["bench", "levels:hanging", "--limit", "1"]) == 2
    line = capsys.readouterr().err
    assert line.startswith(
        "pysampler: cannot measure levels:hanging: it hangs: no answer within 1 s"
    )


@pytest.mark.slow
def test_the_hanging_line_is_named(folder, capsys):
    assert main(["bench", "levels:hanging", "--limit", "10"]) == 2
    line = capsys.readouterr().err
    assert line.endswith("no answer within 10 s; line 14 of levels.py runs: time.sleep(1)\n")


@pytest.mark.slow
def test_a_loop_at_import_is_named(folder, capsys):
    loop = "import time\ndef train():\n    while True:\n        time.sleep(0.01)\n"
    (folder / "train.py").write_text(f"from levels import make\n{loop}train()\n")
    assert main(["bench", "train.py:make", "--limit", "10"]) == 2
    line = capsys.readouterr().err.splitlines()[-1]
    assert "no answer within 10 s while train.py is imported; line 5 of train.py runs: " in line
    assert 'if __name__ == "__main__"' in line


@pytest.mark.slow
def test_no_line_is_named_if_c_code_hangs(folder, capsys):
    (folder / "stuck.py").write_text(STUCK)
    assert main(["bench", "stuck:make", "--limit", "10"]) == 2
    line = capsys.readouterr().err
    assert line == "pysampler: cannot measure stuck:make: it hangs: no answer within 10 s\n"


@pytest.mark.slow
def test_ctrl_c_ends_all_contenders(folder):
    """The terminal signals only the command; its contenders run in their own sessions."""
    command = []

    def interrupt():
        begun = processes_in(folder)
        assert len(begun) > 5  # the command, the contenders, their processes
        command.append(next(pid for pid in begun if os.getpgid(pid) == pid and is_command(pid)))
        os.kill(command[0], signal.SIGINT)

    status, shown = on_screen(*BENCH, "levels:make", "--envs", "8", once=("turn 1: ", interrupt))
    assert status == 130
    assert "Traceback" not in shown
    wait_until(lambda: not processes_in(folder))


def is_command(pid):
    return b"pysampler\0bench\0" in Path(f"/proc/{pid}/cmdline").read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize("at", ["hangs", "steps"])
def test_no_process_outlives_a_killed_command(folder, at):
    """Whether an env hangs or all contenders have processes."""
    function = {"hangs": "hanging", "steps": "make"}[at]
    command = subprocess.Popen(
        [sys.executable, *BENCH, f"levels.py:{function}"], stderr=subprocess.PIPE, text=True
    )
    if at == "hangs":
        wait_until((folder / "hangs").exists)
    else:
        assert any(line.startswith("turn ") for line in command.stderr)
    assert len(processes_in(folder)) > 1
    command.kill()
    command.communicate()
    wait_until(lambda: not processes_in(folder))


@pytest.mark.parametrize("wrong", [["--seconds", "0"], ["--envs", "0"], ["--limit", "nan"], []])
def test_bad_usage_is_reported(wrong, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["bench", *(["CartPole-v1"] if wrong else []), *wrong])
    assert ended.value.code == 2
    assert capsys.readouterr().err.splitlines()[-1].startswith("pysampler bench: error: ")


def test_help_fits_a_screen():
    status, shown = on_screen(*BENCH, "--help")
    assert status == 0
    assert len(shown.splitlines()) <= 24
    assert max(map(len, shown.splitlines())) <= 80


# -- advice ----------------------------------------------------------------------------------------

SETTING = Setting(
    "Some-v0",
    8,
    4,
    Call('pysampler.make_vec("Some-v0", num_envs={}'),
    step_seconds=1e-5,
)


def advised(
    default, auto, sync, asynchronous, ideal=400.0, alone=100.0, about=(3, 2), setting=SETTING
):
    """Return the advice for these fractions of the ideal; the default may be a trouble instead."""
    trouble = default if isinstance(default, str) else ""
    default = 0.0 if trouble else default
    fractions = dict(zip(NAMES, [1.0, default, auto, sync, asynchronous], strict=True))
    measured = {
        name: Measured([part * ideal] * 4, [part * f for f in (0.99, 1, 1, 1.01)])
        for name, part in fractions.items()
    }
    measured[NAMES[2]].about = dict(zip(("num_workers", "main_envs"), about, strict=True))
    if trouble:
        measured[NAMES[1]] = Measured(trouble=trouble)
    return bench.advice_of(setting, measured, [alone] * 4)


def test_sharing_a_process_is_not_advised_if_envs_must_not(monkeypatch):
    monkeypatch.setattr(measuring, "usable_cpus", lambda: 4)
    setting = dataclasses.replace(SETTING, workers=2, isolation={"isolated": False})
    orders = bench._orders(setting)
    assert orders["pysampler"]["options"]["isolate"] is True
    assert orders[NAMES[2]]["options"]["isolate"] is True
    advice, lines = advised(0.5, 0.4, 0.6, 0.1, setting=setting)
    assert "SyncVectorEnv" not in advice
    made = 'envs = pysampler.make_vec("Some-v0", num_envs=8, isolate=True)'
    assert lines == ["import pysampler", made]


def test_the_advice_is_the_fastest_beyond_the_spread(monkeypatch):
    monkeypatch.setattr(measuring, "usable_cpus", lambda: 4)
    monkeypatch.setattr(bench, "usable_cpus", lambda: 4)
    made = 'envs = pysampler.make_vec("Some-v0", num_envs=8'
    plain_lines = ["import pysampler", f"{made})"]
    auto_lines = ["import pysampler", f'{made}, num_workers="auto")']
    advice, lines = advised(0.9, 0.91, 0.2, 0.1)
    assert advice.startswith("The default is close to the ideal")
    assert lines == plain_lines
    advice, lines = advised(0.5, 0.8, 0.2, 0.1)
    assert advice.startswith('num_workers="auto" is 1.60 times as fast as the default: it starts 3')
    assert lines == auto_lines
    advice, lines = advised(0.1, 0.3, 0.2, 0.1, about=(0, 8))
    assert advice.startswith("Envs this fast need no workers")
    assert lines == auto_lines
    advice, lines = advised("RuntimeError: no fork", 0.8, 0.2, 0.1)
    assert advice == 'The default does not run, but num_workers="auto" does.'
    assert lines == auto_lines
    advice, lines = advised(0.5, 0.4, 0.6, 0.1)
    assert advice.startswith(
        "gymnasium SyncVectorEnv is 1.20 times as fast as pysampler here: use it, try "
        "num_workers=0, or look for"
    )
    assert lines == []
    for sync, asynchronous, about in ((0.6, 0.1, (0, 8)), (0.1, 0.6, (3, 2))):
        advice, _ = advised(0.5, 0.4, sync, asynchronous, about=about)
        assert "use it, or look for" in advice
    advice, _ = advised(0.5, 0.4, 0.2, 0.1)
    assert "Workers wait" in advice
    assert "independent processes" not in advice
    advice, _ = advised(0.9, 0.9, 0.2, 0.1, alone=200.0)
    assert "4 independent processes are only 2.0 times as fast as one" in advice
    monkeypatch.setattr(bench, "usable_cpus", lambda: 2)  # for four processes
    assert "independent processes" not in advised(0.9, 0.9, 0.2, 0.1, alone=200.0)[0]
    waits = dataclasses.replace(SETTING, waits=True)
    advice, _ = advised(0.9, 0.9, 0.2, 0.1, setting=waits)
    assert "envs wait for something other than a CPU, so try more workers than CPUs" in advice


def test_few_envs_are_a_limit_that_needs_no_option(monkeypatch):
    monkeypatch.setattr(measuring, "usable_cpus", lambda: 4)
    for envs, workers, option in ((1, 1, ""), (3, 3, ""), (3, 2, ", max_concurrency=2")):
        setting = dataclasses.replace(SETTING, envs=envs, workers=workers)
        _, lines = advised(0.1, 0.3, 0.2, 0.1, about=(0, 8), setting=setting)
        assert lines[1].endswith(f', num_envs={envs}, num_workers="auto"{option})')


@pytest.mark.parametrize("place", ["levels", "levels.py"])
def test_the_printed_program_imports_the_function(folder, monkeypatch, place):
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "levels", raising=False)
    call = source_of(f"{place}:make").call
    monkeypatch.delitem(sys.modules, "levels")
    assert call.imported == "import pysampler\nfrom levels import make"
    assert call.written(2, {}) == "pysampler.VectorEnv([make] * 2)"


class Slow(SmallEnv):
    """Starts a process when it is made; its step takes longer than a slice."""

    def __init__(self):
        child = multiprocessing.get_context("fork").Process(target=os.getpid)
        child.start()
        child.join()

    def act(self, action):
        time.sleep(0.02)  # a step must take time: its part of a slice is the subject


@pytest.mark.slow
def test_ideal_counts_parts_of_steps():
    ideal = Ideal(EnvSource(Call(""), Slow), 1, 1)
    steps, seconds = ideal.run(0.01)
    ideal.close()
    assert 0 < steps < 1
    assert seconds == 0.01
