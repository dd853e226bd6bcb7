"""Lines of code, and how many of them a VectorEnv imports."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import size

# The goal is 5,500. The test fails if a vector env imports far more than it uses.
MOST_IMPORTED = 9_000
STEPS = """
import json, sys
import gymnasium as gym
import pysampler
if __name__ == "__main__":
    envs = pysampler.VectorEnv([lambda: gym.make("CartPole-v1")] * 4, num_workers=2)
    envs.reset(seed=1)
    envs.step(envs.action_space.sample())
    envs.close()
    modules = [one for name, one in sys.modules.items() if name.split(".")[0] == "pysampler"]
    print(json.dumps([one.__file__ for one in modules if one.__file__.endswith(".py")]))
"""


def test_comments_docstrings_and_blank_lines_are_not_counted():
    head = '"""A module.\n\nOf lines."""\n\n# a comment\n'
    source = head + 'def f():\n    "Return."\n    return """\n\n"""\n'
    assert size.lines_of_python(source) == 4
    assert size.lines_of_cpp("// a comment\n\nint a;  // b\n") == 1


@pytest.mark.slow
@pytest.mark.skipif(not (size.ROOT / ".git").exists(), reason="git lists the files")
def test_no_package_grows():
    found = size.sizes()
    grown = {part: found[part] for part, most in size.MOST.items() if found[part] > most}
    assert not grown, "write less, or delete something: tests/size.py only goes down"


@pytest.mark.slow
def test_a_vector_env_imports_only_part_of_the_package():
    done = subprocess.run([sys.executable, "-c", STEPS], stdout=subprocess.PIPE, check=True)
    files = json.loads(done.stdout)
    imported = sum(size.lines_of_python(Path(file).read_text()) for file in files)
    print(f"a vector env imports {imported:,} lines of code in {len(files)} modules")
    assert imported < MOST_IMPORTED
