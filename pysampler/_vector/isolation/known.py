"""Modules whose envs are known to interfere with each other in a process.

The evidence is in the documentation ("Can envs share a process?"), with a link for each entry.
"""

from __future__ import annotations

import contextlib
import re
import sys
import types
from typing import TYPE_CHECKING, Any, NamedTuple

from pysampler._vector.env_calls import layers_of

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["INTERFERING", "Interference", "interfering"]


class Interference(NamedTuple):
    """How envs interfere.

    Attributes:
        how: What happens, as a clause.
        last: The last version where it does; None: it does in every version known.
    """

    how: str
    last: str | None = None


# By the name of the module, which is also that of the distribution.
INTERFERING = {
    "habitat_sim": Interference("a second simulator may crash"),
    "libsumo": Interference("all of them step one simulation, or hang"),
    "robosuite": Interference("they render each other's scenes", "1.5.2"),
}


def interfering(envs: Iterable[Any]) -> list[str]:
    """Return what is known of the modules that these envs use, as sentences; usually nothing.

    An env uses a module if its attributes or the modules of its classes refer to it, directly or
    through other modules.
    """
    versions = {name: _version(name) for name in INTERFERING if name in sys.modules}
    loaded = [name for name, version in versions.items() if not _is_mended(name, version)]
    if not loaded:
        return []
    from pysampler._vector.isolation.shared import namespaces_of  # noqa: PLC0415 - rare

    used: set[str] = set()
    seen: set[int] = set()
    for env in envs:
        for layer in layers_of(env):
            _follow("", getattr(layer, "__dict__", {}), used, seen)
        for name, namespace in namespaces_of(env):
            _follow(name, namespace, used, seen)
    return [
        f"envs of {f'{name} {versions[name]}'.strip()} must not share a process: "
        f"{INTERFERING[name].how}"
        for name in loaded
        if name in used
    ]


def _version(name: str) -> str:
    import importlib.metadata  # noqa: PLC0415 - rare, and slow to import

    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return ""


def _is_mended(name: str, version: str) -> bool:
    last = INTERFERING[name].last
    return last is not None and _numbers(version) > _numbers(last)


def _numbers(version: str) -> list[int]:
    return [int(part) for part in re.findall(r"\d+", version.partition("+")[0])]


def _follow(name: str, namespace: dict[str, Any], used: set[str], seen: set[int]) -> None:
    """Add the packages of all modules that a namespace refers to, in as many steps as it takes."""
    from pysampler._vector.isolation.shared import LIBRARIES, package_of  # noqa: PLC0415 - rare

    left = [(name, namespace)]
    while left:
        name, namespace = left.pop()
        used.add(package_of(name))
        if id(namespace) in seen or package_of(name) in LIBRARIES | INTERFERING.keys():
            continue
        seen.add(id(namespace))
        for value in list(namespace.values()):
            with contextlib.suppress(Exception):  # a proxy of another object may raise any
                is_module = isinstance(value, types.ModuleType)
                other = value.__name__ if is_module else value.__module__
                left.append((other, vars(sys.modules[other])))
