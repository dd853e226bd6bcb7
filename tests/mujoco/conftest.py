import pytest


@pytest.fixture(autouse=True)
def there(tmp_path, monkeypatch):
    """MuJoCo writes of simulations that blow up to a file where it is."""
    monkeypatch.chdir(tmp_path)
