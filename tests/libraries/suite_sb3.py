# /// script
# dependencies = ["pytest>=8", "pytest-timeout>=2.3", "stable-baselines3>=2.9"]
# ///
"""Stable-Baselines3's tests of vector envs, with our `VecEnv` instead of `SubprocVecEnv`.

They come from the sdist of the installed version. Then our own tests of the adapter run.
"""

import importlib.metadata
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

from suites import run_ours, run_tests

IN_ITS_PLACE = """
from stable_baselines3.common import env_util, vec_env

from pysampler.adapters.sb3 import VecEnv

vec_env.SubprocVecEnv = env_util.SubprocVecEnv = VecEnv
"""
OTHERS = ["test_utils.py::test_make_vec_env"]
# It expects multiprocessing's error text for an unknown start method.
NOT_OURS = ["--deselect", "tests/test_vec_envs.py::test_subproc_start_method"]


def main() -> None:
    version = importlib.metadata.version("stable-baselines3")
    with tempfile.TemporaryDirectory() as folder:
        name = "stable-baselines3"
        source = ["--no-deps", f"--no-binary={name}", f"{name}=={version}"]
        download = [sys.executable, "-m", "pip", "download", "-q", "-d", folder, *source]
        subprocess.run(download, check=True)
        (archive,) = Path(folder).glob("*.tar.gz")
        with tarfile.open(archive) as sdist:
            sdist.extractall(folder, filter="data")
        (tests,) = Path(folder).glob("*/tests")
        (tests / "conftest.py").write_text(IN_ITS_PLACE)
        files = sorted(file.name for file in tests.glob("test_vec_*.py"))
        theirs = run_tests([*files, *OTHERS, *NOT_OURS], tests)
    print(f"SB3 {version}'s suite: {theirs}; ours: {run_ours('test_sb3.py')}")


if __name__ == "__main__":
    main()
