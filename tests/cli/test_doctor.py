"""``pysampler doctor``: its findings in a terminal and as JSON, and failing checks."""

import json
import re
import subprocess
import sys

import pytest
from programs import completed
from terminals import on_screen, plain

from pysampler._cli import doctor
from pysampler._cli.main import main

DOCTOR = ("-m", "pysampler", "doctor")
LEVELS = """
print("imported")  # which is not in the JSON
import gymnasium as gym
import numpy as np

class Counted(gym.Env):
    observation_space = gym.spaces.Box(0, 1000, (1,), np.float64)
    action_space = gym.spaces.Discrete(2)
    made = 0

    def __init__(self):
        Counted.made += 1

    def reset(self, *, seed=None, options=None):
        return np.array([float(Counted.made)]), {}

    def step(self, action):
        return np.array([0.0]), 0.0, False, False, {}

class Noisy(Counted):
    __init__ = gym.Env.__init__

    def reset(self, *, seed=None, options=None):
        return np.array([np.random.random()]), {}


def broken():
    raise ValueError("no such level")
"""
TOPICS = [
    *("versions", "torch", "MuJoCo", "hash seed", "CPUs", "stolen time", "other work"),
    *("shared memory", "waiting", "deadlines", "open files", "processes", "memory", "a vector env"),
]


@pytest.mark.slow
def test_this_machine_has_no_broken_findings():
    findings = json.loads(completed(*DOCTOR, "--json").stdout)
    assert [finding["topic"] for finding in findings] == TOPICS
    assert {finding["verdict"] for finding in findings} <= {"ok", "look"}
    assert all(finding["found"] for finding in findings)
    assert all(finding["advice"] for finding in findings if finding["verdict"] == "look")


@pytest.mark.parametrize(
    ("seed", "found"),
    [
        (None, "random here, 0 in workers"),
        ("random", "random here, random in workers too"),
        ("5", "5 here and in workers"),
    ],
)
def test_the_hash_seed_of_the_program_and_its_workers_is_reported(seed, found, monkeypatch):
    monkeypatch.delenv("PYTHONHASHSEED", raising=False)
    if seed is not None:
        monkeypatch.setenv("PYTHONHASHSEED", seed)
    assert doctor._hash_seed()[1].startswith(found)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("env", "verdict", "found", "advice"),
    [
        ("CartPole-v1", "ok", "envs of CartPole-v1 may share a process", ""),
        (
            "levels:Counted",
            "look",
            "envs of Counted must not share a process (200 steps compared)",
            "pass isolate=True, which gives each env a process",
        ),
        (
            "levels:Noisy",
            "look",
            "envs of Noisy must not share a process (200 steps compared)",
            "pass seed_globals=True, which gives each env generators of its own",
        ),
        (
            "levels:broken",
            "broken",
            "cannot check isolation: the env raised ValueError being made",
            "",
        ),
        ("Nope-v1", "broken", "SourceError: NameNotFound: Environment `Nope` doesn't exist.", ""),
    ],
)
def test_an_env_is_checked_for_interference(
    env, verdict, found, advice, tmp_path, monkeypatch, capfd
):
    (tmp_path / "levels.py").write_text(LEVELS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path[:])
    monkeypatch.delitem(sys.modules, "levels", raising=False)
    status = main(["doctor", "--json", "--env", env])
    assert status == int(verdict == "broken")
    finding = json.loads(capfd.readouterr().out)[-1]
    assert finding["topic"] == "isolation"
    assert finding["verdict"] == verdict
    assert found in finding["found"]
    may = "may" if verdict == "ok" else "must not"
    assert (f"{may} step in threads" in finding["found"]) == (verdict != "broken")
    assert finding["advice"] == advice


@pytest.mark.slow
@pytest.mark.parametrize("columns", [60, 200])
def test_lines_fit_the_terminal(columns):
    status, shown = on_screen(*DOCTOR, columns=columns)
    assert status == 0
    assert "\x1b[" in shown  # coloured
    lines = plain(shown).splitlines()
    assert [line.split("  ")[0] for line in lines if not line.startswith(" ")] == TOPICS
    assert max(map(len, lines)) <= columns


@pytest.mark.slow
def test_very_narrow_terminals_get_lines_of_60():
    status, shown = on_screen(*DOCTOR, columns=10)
    assert status == 0
    assert max(map(len, plain(shown).splitlines())) <= 60


@pytest.mark.slow
def test_output_is_plain_text_without_rich():
    program = "import sys; sys.modules['rich'] = None; from pysampler._cli.main import main; "
    status, shown = on_screen("-c", program + "sys.exit(main(['doctor']))")
    assert status == 0
    assert "\x1b[" not in shown
    assert shown.startswith("versions")


@pytest.mark.slow
def test_limits_below_the_workers_needs_are_broken():
    done = subprocess.run(
        [sys.executable, *DOCTOR, "--workers", "100000000"],
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert done.returncode == 1
    assert "memory         broken" in done.stdout
    assert "-> use fewer workers, or add memory" in done.stdout


def test_a_failing_check_is_reported_and_the_others_run(monkeypatch, capsys):
    def failing():
        raise OSError("told to")

    monkeypatch.setattr(doctor, "_shared_memory", failing)
    assert main(["doctor", "--json"]) == 1
    findings = {one["topic"]: one for one in json.loads(capsys.readouterr().out)}
    assert list(findings) == TOPICS
    assert findings["shared memory"]["verdict"] == "broken"
    assert findings["shared memory"]["found"] == "OSError: told to"


@pytest.mark.slow
def test_a_closed_pipe_is_not_an_error():
    done = subprocess.run(
        f"{sys.executable} -m pysampler doctor | head -1",
        shell=True,
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert done.stdout.startswith("versions")
    assert done.stderr == ""


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [["--help"], ["doctor", "--help"]])
def test_help_fits_a_screen(arguments):
    status, shown = on_screen("-m", "pysampler", *arguments)
    assert status == 0
    lines = shown.splitlines()
    assert len(lines) <= 24
    assert max(map(len, lines)) <= 80
    assert lines[0].startswith("usage: pysampler")


@pytest.mark.parametrize(
    "arguments",
    [
        *([], ["nothing"], ["doctor", "--workers", "many"], ["doctor", "--workers", "0"]),
        *(["dump", "--seconds", "-1"], ["dump", "--seconds", "nan"], ["top", "some"]),
    ],
)
def test_bad_usage_is_one_line_and_status_2(arguments, capsys):
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    line = capsys.readouterr().err.splitlines()[-1]
    assert line.startswith("pysampler")
    assert not re.search(r"\b_\w+ value", line)  # the name of a function
