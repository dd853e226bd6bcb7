"""A thread that samples the next rollout while the user works with the last one."""

from __future__ import annotations

import queue
import threading
from typing import TYPE_CHECKING, Any

from pysampler._rollouts.runner import closed_error
from pysampler._workers.children import has_left
from pysampler._workers.processes import SHUTDOWN_TIMEOUT_S

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Background"]

# The longest wait, in seconds. Python handles a signal before it waits, or when the signal
# interrupts the wait. A signal that arrives in between, while the GIL goes to another thread, would
# be handled only when the wait is over.
_SLICE = 0.1


class Background:
    """A thread that runs one task at a time; the caller waits for the task."""

    def __init__(self) -> None:
        self._tasks: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._errors: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()
        self._thread = threading.Thread(
            target=_work, args=(self._tasks, self._errors), name="pysampler rollouts", daemon=True
        )
        self._thread.start()

    def start(self, task: Callable[[], None]) -> None:
        """Run a task in the thread."""
        self._tasks.put(task)

    def wait(self) -> None:
        """Wait until the task has ended; raise its exception, if any.

        Raises:
            ClosedError: The thread ended before the task started.
        """
        while True:
            try:
                error = self._errors.get(timeout=_SLICE)
            except queue.Empty:  # handles a signal that came just before the wait
                # The thread first: it adds the result of its task before it ends.
                if not self._thread.is_alive() and self._errors.empty():
                    raise closed_error() from None
                continue
            break
        if error is not None:
            raise error

    def end(self) -> bool:
        """End the thread after its task, which must stop soon; return whether it ended in time."""
        self._tasks.put(None)
        return has_left(self._thread, SHUTDOWN_TIMEOUT_S)

    def __del__(self) -> None:
        if hasattr(self, "_tasks"):
            self._tasks.put(None)  # safe in any finalizer


def _work(tasks: Any, errors: Any) -> None:
    while (task := tasks.get()) is not None:
        try:
            task()
        except BaseException as error:
            errors.put(error)
        else:
            errors.put(None)
        del task
