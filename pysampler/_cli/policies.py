"""Policies that an argument names: functions, modules, TorchScript, Stable-Baselines3."""

from __future__ import annotations

import importlib
import json
import pickle
import zipfile
from pathlib import Path
from typing import Any

from pysampler._cli.sources import SourceError, named
from pysampler._policies.predict import predict_policy

__all__ = ["is_file", "policy_of"]

_SCRIPTS = ".pt", ".pth"  # files of torch.jit.save

# Algorithms of Stable-Baselines3 by the module of their policies. PPO loads models of A2C too.
_ALGORITHMS = {
    "stable_baselines3.common": "PPO",
    "stable_baselines3.dqn": "DQN",
    "stable_baselines3.sac": "SAC",
    "stable_baselines3.td3": "TD3",
}


def is_file(text: str) -> bool:
    """Return whether an argument of the command names a file with a model."""
    return Path(text).suffix in (*_SCRIPTS, ".zip")


def policy_of(text: str, statistics: str | None = None) -> Any:
    """Return the policy that an argument of the command names, or raise SourceError.

    Args:
        text: "module:policy" or "file.py:policy", a function, a torch module, a class of either or
            an object with ``predict``; a file of ``torch.jit.save`` (".pt", ".pth"); or a file of
            Stable-Baselines3 (".zip").
        statistics: A file of ``VecNormalize.save``, for a model of Stable-Baselines3.
    """
    policy = _named_policy(text)
    if statistics is None:
        return policy
    if callable(policy) or not hasattr(policy, "predict"):
        raise SourceError(f"{statistics} is for a model of Stable-Baselines3, but not {text}")
    return predict_policy(policy, _statistics(Path(statistics)))


def _named_policy(text: str) -> Any:
    path = Path(text)
    if is_file(text):
        if not path.is_file():
            raise SourceError(f"file not found: {text}")
        return _model(path) if path.suffix == ".zip" else _script(path)
    policy = named(text)
    if isinstance(policy, type):
        policy = policy()
    if not (callable(policy) or hasattr(policy, "predict")):
        raise SourceError(f"{text} is a {type(policy).__name__}, expected a policy")
    return policy


def _script(path: Path) -> Any:
    torch = _imported("torch", path)
    try:
        return torch.jit.load(str(path), map_location="cpu").eval()
    except (RuntimeError, ValueError) as error:
        raise SourceError(
            f"cannot load {path}: it is not a file of torch.jit.save; load a state_dict or a "
            "pickled module in a file of yours, and pass FILE.py:policy"
        ) from error


def _model(path: Path) -> Any:
    library = _imported("stable_baselines3", path)
    try:
        with zipfile.ZipFile(path) as archive:
            content = json.loads(archive.read("data"))
        home = content["policy_class"]["__module__"].split(".")
        algorithm = getattr(library, _ALGORITHMS[".".join(home[:2])])
    except (zipfile.BadZipFile, KeyError, ValueError, TypeError) as error:
        raise SourceError(
            f"{path} is not a model of Stable-Baselines3's {', '.join(_ALGORITHMS.values())}; load "
            "it in a file of yours and pass FILE.py:policy"
        ) from error
    return algorithm.load(path, device="cpu")


def _statistics(path: Path) -> Any:
    vec_env = _imported("stable_baselines3.common.vec_env", path)
    try:
        # As in VecNormalize.load, but that needs a vector env.
        statistics = pickle.loads(path.read_bytes())
    except FileNotFoundError:
        raise SourceError(f"file not found: {path}") from None
    except (pickle.UnpicklingError, EOFError, AttributeError, ValueError) as error:
        raise SourceError(f"{path} is not a file of VecNormalize.save: {error}") from error
    if not isinstance(statistics, vec_env.VecNormalize):
        name = type(statistics).__name__
        raise SourceError(f"{path} has a {name}, expected a file of VecNormalize.save")
    return statistics


def _imported(name: str, path: Path) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise SourceError(f"cannot load {path}: {name} is not installed") from error
