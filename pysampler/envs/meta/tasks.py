"""What makes an env one of many tasks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import gymnasium as gym

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["TaskWrapper", "Tasks"]

Task = dict[str, Any]


class Tasks:
    """For an env class, before its base: a reset may bring a task.

    The class says how tasks are drawn and set: ``sample_tasks(n)``, ``reset_task(task)``.
    """

    takes_tasks = True
    task: Task | None = None

    def sample_tasks(self, count: int) -> list[Task]:
        """So many, drawn from the env's own generator."""
        raise NotImplementedError

    def reset_task(self, task: Task) -> None:
        """The task from now on."""
        raise NotImplementedError

    def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Begin an episode, of the task in ``options`` if there is one."""
        if options and "task" in options:
            self.reset_task(options["task"])
        result: tuple[Any, dict[str, Any]] = super().reset(  # type: ignore[misc]
            seed=seed, options=dict(options) if options else None
        )
        return result

    def _one(self, task: Task, key: str) -> Any:
        """The one thing a task says."""
        if not isinstance(task, dict) or set(task) != {key}:
            raise ValueError(
                f"cannot set task of {type(self).__name__}: {task!r}, expected {{{key!r}: ...}}"
            )
        self.task = task
        return task[key]


class TaskWrapper(gym.Wrapper[Any, Any, Any, Any]):
    """Makes an env with ``reset_task`` take tasks as options of ``reset``."""

    takes_tasks = True

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        super().__init__(env)
        for name in ("sample_tasks", "reset_task"):
            if not callable(getattr(env.unwrapped, name, None)):
                raise TypeError(
                    f"cannot give tasks to {env.unwrapped}: it has no method {name}; expected "
                    "sample_tasks(n) and reset_task(task)"
                )

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Begin an episode, of the task in ``options`` if there is one."""
        if options and "task" in options:
            options = dict(options)
            self.env.unwrapped.reset_task(options.pop("task"))  # type: ignore[attr-defined]
        return self.env.reset(seed=seed, options=options or None)
