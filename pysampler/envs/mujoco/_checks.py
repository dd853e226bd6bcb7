"""Checks of the results of a task's methods at their first call; errors name the method."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import numpy.typing as npt

    from pysampler.envs.mujoco.task import Task

    Array = npt.NDArray[Any]

__all__ = ["check_before", "check_begin", "check_infos", "check_observations", "check_step"]


def check_begin(task: Task, begin: Any, count: int) -> None:
    """Raise TypeError unless ``reset`` returned positions and velocities, or fields by name."""
    if isinstance(begin, dict):
        for name, rows in begin.items():
            _expect_rows(task, f"reset: {name!r}", rows, count)
        return
    if not (isinstance(begin, tuple) and len(begin) == 2):
        raise TypeError(
            f"{_name(task)}.reset: expected positions and velocities, or a dict of fields; got "
            f"{_type_of(begin)}"
        )
    sizes = task.model.nq, task.model.nv
    for name, rows, size in zip(("positions", "velocities"), begin, sizes, strict=True):
        _expect_rows(task, f"reset: {name}", rows, count, (size,))


def check_before(task: Task, before: Any, fields: Mapping[str, Array]) -> None:
    """Raise ValueError if ``before`` returned memory that the step overwrites."""
    for array in _arrays_in(before):
        for name, field in fields.items():
            if np.may_share_memory(array, field):
                raise ValueError(
                    f"{_name(task)}.before: returned memory of d.{name}, which the step "
                    f"overwrites; return a copy: d.{name}.copy()"
                )


def check_step(task: Task, rewards: Any, terminated: Any, infos: Any, count: int) -> None:
    """Raise TypeError unless these are valid results of ``reward`` and ``terminated``."""
    if np.shape(rewards) != (count,):
        raise TypeError(f"{_name(task)}.reward: expected {count} numbers, got {_type_of(rewards)}")
    if not isinstance(terminated, (bool, np.bool_)):
        _expect_rows(task, "terminated", terminated, count, (), "b")
    check_infos(task, "reward", infos, count)


def check_infos(task: Task, of: str, infos: Any, count: int) -> None:
    """Raise TypeError unless infos are a dict of arrays with a row for each simulation."""
    if not isinstance(infos, dict):
        raise TypeError(f"{_name(task)}.{of}: expected a dict of infos, got {_type_of(infos)}")
    for key, value in infos.items():
        _expect_rows(task, f"{of}: info {key!r}", value, count)


def check_observations(task: Task, observations: Any, count: int) -> None:
    """Raise TypeError unless ``observe`` returned a row of the space for each simulation."""
    space = task.observation_space
    _expect_rows(task, "observe", observations, count, space.shape)
    if observations.dtype != space.dtype:
        raise TypeError(
            f"{_name(task)}.observe: expected {space.dtype} as in the space, got "
            f"{_type_of(observations)}"
        )


def _expect_rows(
    task: Task,
    part: str,
    rows: Any,
    count: int,
    shape: tuple[int, ...] | None = None,
    kinds: str | None = None,
) -> None:
    if (
        isinstance(rows, np.ndarray)
        and rows.ndim > 0
        and len(rows) == count
        and (shape is None or rows.shape[1:] == shape)
        and (kinds is None or rows.dtype.kind in kinds)
    ):
        return
    if shape is None:
        expected = f"an array with a row for each of {count} simulations"
    else:
        expected = f"{'bool' if kinds == 'b' else 'an array'}{(count, *shape)}"
    raise TypeError(f"{_name(task)}.{part}: expected {expected}, got {_type_of(rows)}")


def _type_of(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return f"{value.dtype}{value.shape}"
    return f"a {type(value).__name__}"


def _name(task: Task) -> str:
    return type(task).__name__


def _arrays_in(value: Any) -> Iterator[Array]:
    if isinstance(value, np.ndarray):
        yield value
    elif isinstance(value, dict):
        for one in value.values():
            yield from _arrays_in(one)
    elif isinstance(value, (tuple, list)):
        for one in value:
            yield from _arrays_in(one)
