"""Public names: exports, documentation, types and reprs."""

import ast
import inspect
import json
import re
import subprocess
import sys
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest

import pysampler
from pysampler._vector.make import OPTIONS
from pysampler._vector.options import VectorOptions

ROOT = Path(pysampler.__file__).parents[1]
NAMES = sorted(set(pysampler.__all__) - {"__version__", "errors", "sync"})


@pytest.mark.parametrize("name", NAMES)
def test_public_names_exist_and_are_documented(name):
    thing = getattr(pysampler, name)
    assert inspect.getdoc(thing)
    assert name in dir(pysampler)


def test_all_errors_are_exported_by_the_package():
    assert set(pysampler.errors.__all__) <= set(pysampler.__all__)
    for name in pysampler.errors.__all__:
        assert getattr(pysampler, name) is getattr(pysampler.errors, name)


def test_import_in_a_checkout_that_is_not_compiled_says_what_to_do(tmp_path):
    (tmp_path / "pysampler").mkdir()
    (tmp_path / "pysampler/__init__.py").write_text(Path(pysampler.__file__).read_text())
    command = [sys.executable, "-S", "-c", "import pysampler"]  # -S: without what is installed
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.stderr.splitlines()[-1] == (
        f"ImportError: cannot import pysampler from {tmp_path}/pysampler: sources without the "
        "compiled module. To import the installed package, `cd` out of the checkout, or run "
        "`pip install -e .` in it"
    )


def test_an_unknown_name_raises_attribute_error():
    with pytest.raises(AttributeError, match="module 'pysampler' has no attribute 'rollouts'"):
        pysampler.rollouts  # noqa: B018


@pytest.mark.parametrize("name", ["Rollouts", "Actors", "Watcher", "evaluate", "MultiTaskSampler"])
def test_every_option_is_declared_and_documented(name):
    thing = getattr(pysampler, name)
    parameters = inspect.signature(thing).parameters
    # VectorEnv documents its options itself.
    rest = [one for one in parameters.values() if one.kind in (one.VAR_POSITIONAL, one.VAR_KEYWORD)]
    assert [one.annotation for one in rest] == ["Unpack[VectorOptions]"]
    documented = re.findall(r"^    (\w+): [A-Z]", inspect.getdoc(thing), re.MULTILINE)
    assert list(parameters) == documented[: len(parameters)]


def test_vector_options_equal_the_options_of_vector_env():
    declared = inspect.get_annotations(pysampler.VectorEnv.__init__)
    del declared["env_fns"], declared["return"]
    known = inspect.get_annotations(VectorOptions)
    known = {name: one.__forward_arg__ for name, one in known.items()}
    assert known == declared
    assert set(known) == OPTIONS


SPEAKERS = {"warning", "error", "exception", "critical", "warn"}


def test_log_lines_and_warnings_name_pysampler():
    """A program that configures no logging prints the bare message of a log line."""
    found = 0
    for path in (ROOT / "pysampler").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            function = getattr(node, "func", None)
            if getattr(function, "attr", "") not in SPEAKERS:
                continue
            if getattr(function.value, "id", "") not in ("log", "_log", "warnings"):
                continue  # gymnasium's logger says what gymnasium's vector envs say
            message = node.args[0]
            text = message.values[0] if isinstance(message, ast.JoinedStr) else message
            assert text.value.startswith("pysampler: "), f"{path}:{node.lineno}"
            found += 1
    assert found > 10


PROGRAM = """
import numpy as np
import numpy.typing as npt

import pysampler


def policy(observations: npt.NDArray[np.float32]) -> npt.NDArray[np.int64]:
    return (observations[:, 2] > 0).astype(np.int64)


def returns(env: str) -> float:
    with pysampler.Rollouts(env, policy, 32, num_envs=4, policy_in="workers") as rollouts:
        rollout: pysampler.Rollout = next(rollouts)
    with pysampler.Rollouts(env, policy, 32, num_envs=4, num_workers=2, wait="park"):
        pass
    with pysampler.make_vec(env, 4) as envs, pysampler.Actors(envs, policy) as actors:
        records: pysampler.Records | None = actors.take(32, min_records=4)
    assert records is not None
    return pysampler.evaluate(env, policy, 5).mean + rollout.steps + len(records)
"""
MISSPELT = "policy_in", "num_workers", "min_records"
CHECKERS = {
    "mypy": (["mypy", "--strict", "--no-incremental"], 'Unexpected keyword argument "{}"'),
    "pyright": (["basedpyright", "--level", "error"], 'No parameter named "{}"'),
}


@pytest.mark.slow
@pytest.mark.parametrize("checker", CHECKERS)
def test_type_checkers_find_misspelt_options(checker, tmp_path):
    """In programs with one misspelt option each, that is the only error."""
    (tmp_path / "program.py").write_text(PROGRAM)
    settings = {"typeCheckingMode": "standard", "extraPaths": [str(ROOT)]}
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(settings))
    for name in MISSPELT:
        (tmp_path / f"{name}.py").write_text(PROGRAM.replace(f"{name}=", f"{name}s="))
    command, message = CHECKERS[checker]
    done = subprocess.run(
        [sys.executable, "-m", *command, "."],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
    )
    errors = [line for line in done.stdout.splitlines() if "error:" in line]
    for name in MISSPELT:
        assert any(message.format(f"{name}s") in line for line in errors), done.stdout + done.stderr
    assert len(errors) == len(MISSPELT), done.stdout + done.stderr


def make():
    return gym.make("CartPole-v1")


def policy(observations):
    return (observations[:, 2] > 0).astype(np.int64)


def test_reprs_are_one_line_and_stats_a_small_table():
    with pysampler.Rollouts(make, policy, 64, num_envs=64, seed=1) as rollouts:
        rollout = next(rollouts)
        stats = rollouts.envs.stats()
        episode = next(rollout.episodes())
        things = [rollouts, rollout, rollout.copy(), episode, stats.steps]
    with pysampler.Actors(make, policy, num_envs=8) as actors:
        records = actors.take(256, min_records=64)
        replay = pysampler.ReplayBuffer(1000, actors.like)
        replay.extend(records)
        things += [actors, records, replay, replay.sample(32)]
    for thing in things:
        assert "\n" not in repr(thing)
        assert len(repr(thing)) < 200
        assert repr(thing).startswith("<pysampler")
    assert len(repr(stats).splitlines()) < 12


def test_errors_print_by_their_public_names():
    envs = pysampler.VectorEnv([make], num_workers=0)
    envs.close()
    with pytest.raises(pysampler.ClosedError) as caught:
        envs.reset()
    kind = type(caught.value)
    assert (kind.__module__, kind.__qualname__) == ("pysampler", "ClosedError")


@pytest.mark.parametrize("error", [None, KeyboardInterrupt])
def test_a_with_block_closes_the_vector_env(error):
    try:
        with pysampler.VectorEnv([make] * 2, num_workers=1) as envs:
            envs.reset()
            if error is not None:
                envs.step_async([0, 0])
                raise error
    except KeyboardInterrupt:
        pass
    assert envs.closed


def test_samplers_of_a_function_need_num_envs():
    for sample in (
        lambda: pysampler.Rollouts(make, policy, 5),
        lambda: pysampler.Actors(make, policy),
        lambda: pysampler.MultiTaskSampler(make, lambda observations, tasks, params: 0),
    ):
        with pytest.raises(ValueError, match="num_envs is missing, expected how many envs to make"):
            sample()
