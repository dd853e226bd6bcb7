import pytest


@pytest.fixture(autouse=True)
def in_tmp_path(tmp_path, monkeypatch):
    """MuJoCo logs unstable simulations to a file in the current directory."""
    monkeypatch.chdir(tmp_path)
