"""The examples run, and say what became of it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"


def run(name, *arguments):
    command = [sys.executable, str(EXAMPLES / name), "--quiet", "--json", *arguments]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout.splitlines()[-1])


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
