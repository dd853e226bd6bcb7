"""The time limit of the quick set of tests."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parent


def run_quick_set(folder, **environment):
    (folder / "test_one.py").write_text("def test_one():\n    assert sum(range(1000))\n")
    (folder / "pytest.ini").write_text(f"[pytest]\npythonpath = {TESTS} {TESTS / 'support'}\n")
    (folder / "conftest.py").write_text((TESTS / "conftest.py").read_text())
    return subprocess.run(
        [sys.executable, "-m", "pytest", "--quick", "-p", "no:cacheprovider", folder],
        env={k: v for k, v in os.environ.items() if k != "PYSAMPLER_QUICK_LIMIT"} | environment,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.slow
def test_slow_tests_fail_only_with_a_limit_in_the_environment(tmp_path):
    done = run_quick_set(tmp_path)
    assert done.returncode == 0, done.stdout
    done = run_quick_set(tmp_path, PYSAMPLER_QUICK_LIMIT="0")
    assert done.returncode == 1
    assert "test_one took 0.0 s, expected at most 0 s in the quick set" in done.stdout
