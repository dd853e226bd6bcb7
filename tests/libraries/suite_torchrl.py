# /// script
# dependencies = ["pytest>=8", "pytest-timeout>=2.3", "torchrl>=0.14"]
# ///
"""Our tests of the TorchRL adapter with the newest TorchRL, whose own tests are not on PyPI."""

import importlib.metadata

from suites import run_ours

if __name__ == "__main__":
    version = importlib.metadata.version("torchrl")
    print(f"TorchRL {version}: {run_ours('test_torchrl.py')}")
