"""Fields of ``mjData`` by name, and states of the physics."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, Any

import mujoco
import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy.typing as npt

    Array = npt.NDArray[Any]

__all__ = ["STATE", "STATE_FIELDS", "begin", "fields_of", "load", "read_only"]

# The parts of a state of the physics, as MuJoCo's bits.
STATE = int(mujoco.mjtState.mjSTATE_INTEGRATION)
# Fields that every task has: the controls, and the parts of the state that a reset can set.
STATE_FIELDS = ("time", "qpos", "qvel", "act", "ctrl", "mocap_pos", "mocap_quat")


def begin(
    fields: Mapping[str, Array], ids: Any, begun: tuple[Array, Array] | dict[str, Array]
) -> None:
    """Write the result of ``Task.reset`` to the fields of the simulations ``ids``."""
    if isinstance(begun, tuple):
        begun = dict(zip(("qpos", "qvel"), begun, strict=True))
    for name, rows in begun.items():
        if name not in STATE_FIELDS:
            known = ", ".join(STATE_FIELDS)
            raise ValueError(f"cannot begin with {name!r}, expected one of {known}")
        fields[name][ids] = rows


def read_only(fields: Mapping[str, Array]) -> dict[str, Array]:
    """Return read-only views of arrays."""
    views = {name: array[...] for name, array in fields.items()}
    for view in views.values():
        view.flags.writeable = False
    return views


def fields_of(data: mujoco.MjData, names: Sequence[str]) -> dict[str, Array]:
    """Return the fields of one simulation as arrays of one row, which are views except ``time``.

    Raises:
        ValueError: ``mjData`` has no such field.
    """
    if isinstance(names, str):
        raise ValueError(f"cannot make simulations: fields {names!r}, expected ({names!r},)")
    fields = {"time": np.array([data.time])}
    for name in (*STATE_FIELDS[1:], *names):
        array = getattr(data, name, None)
        if not isinstance(array, np.ndarray) and name != "time":
            known = [one for one in dir(data) if isinstance(getattr(data, one, None), np.ndarray)]
            alike = "".join(f": {one!r}?" for one in difflib.get_close_matches(name, known, 1, 0.7))
            raise ValueError(
                f"cannot make simulations: field {name!r}, expected an array of mjData{alike}"
            )
        fields.setdefault(name, np.asarray(array)[None])
    return fields


def load(model: mujoco.MjModel, data: mujoco.MjData, row: Any, fields: Mapping[str, Any]) -> None:
    """Set the state of ``mjData`` and the given fields, as they were after a step."""
    mujoco.mj_setState(model, data, row, STATE)
    mujoco.mj_forward(model, data)  # computes all other fields, which rendering needs
    mujoco.mj_setState(model, data, row, STATE)
    for name, array in fields.items():
        getattr(data, name)[...] = array
