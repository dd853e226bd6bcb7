# /// script
# dependencies = ["pytest>=8", "pytest-timeout>=2.3", "tianshou>=2"]
# ///
"""Our tests of the recipe with the newest Tianshou, whose own tests are not on PyPI."""

import importlib.metadata

from suites import run_ours

if __name__ == "__main__":
    version = importlib.metadata.version("tianshou")
    print(f"Tianshou {version}: {run_ours('test_tianshou.py')}")
