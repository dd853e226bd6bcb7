"""Envs with many tasks: the mixin ``Tasks`` for env classes, and ``TaskWrapper`` for envs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import gymnasium as gym

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Task", "TaskWrapper", "Tasks"]

Task = dict[str, Any]
"""The parameters of a task, by name, as ``sample_tasks`` returns them."""


class Tasks:
    """A mixin for env classes with tasks: ``reset`` takes a task in its options.

    List it before the base class, and define ``sample_tasks`` and ``reset_task``.

    >>> class Walk(Tasks, gym.Env):
    ...     def sample_tasks(self, count):
    ...         return [{"speed": speed} for speed in self.np_random.uniform(0, 2, count)]
    ...
    ...     def reset_task(self, task):
    ...         self.speed = task["speed"]

    Attributes:
        takes_tasks: Tells samplers that ``reset`` takes ``options={"task": task}``.
        task: The current task; None until one is set.
    """

    takes_tasks = True
    task: Task | None = None

    def sample_tasks(self, count: int) -> list[Task]:
        """Draw tasks with the env's random generator.

        Args:
            count: The number of tasks.

        Returns:
            The tasks, each a dict.
        """
        raise NotImplementedError

    def reset_task(self, task: Task) -> None:
        """Set the task for the following steps and episodes.

        Args:
            task: A task, as ``sample_tasks`` returns them.

        Raises:
            ValueError: ``task`` is not a task of this env.
        """
        raise NotImplementedError

    def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Begin an episode.

        Args:
            seed: The seed of the random generator; None keeps its state.
            options: ``{"task": task}`` sets a task first.

        Returns:
            The first observation and its info.
        """
        if options and "task" in options:
            self.reset_task(options["task"])
        result: tuple[Any, dict[str, Any]] = super().reset(  # type: ignore[misc]
            seed=seed, options=dict(options) if options else None
        )
        return result

    def _set(self, task: Task, key: str) -> Any:
        """Set a task whose only key is ``key`` and return its value, or raise ValueError."""
        if not isinstance(task, dict) or set(task) != {key}:
            raise ValueError(
                f"cannot set task of {type(self).__name__}: {task!r}, expected {{{key!r}: ...}}"
            )
        self.task = task
        return task[key]


class TaskWrapper(gym.Wrapper[Any, Any, Any, Any]):
    """A wrapper with which ``reset`` takes a task in its options, for envs with ``reset_task``.

    >>> env = TaskWrapper(gym.make("pysampler.envs.meta:Navigation2D-v0"))
    >>> observation, info = env.reset(options={"task": {"goal": [0.1, 0.2]}})

    Args:
        env: An env whose unwrapped env has ``sample_tasks(count)`` and ``reset_task(task)``.

    Raises:
        TypeError: The unwrapped env lacks one of these methods.
    """

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
        """Begin an episode.

        Args:
            seed: The seed of the random generator; None keeps its state.
            options: ``{"task": task}`` sets a task first. Other options go to the env.

        Returns:
            The first observation and its info.
        """
        if options and "task" in options:
            options = dict(options)
            self.env.unwrapped.reset_task(options.pop("task"))  # type: ignore[attr-defined]
        return self.env.reset(seed=seed, options=options or None)
