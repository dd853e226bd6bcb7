"""Envs run by a custom ``worker`` function, as in ``AsyncVectorEnv``.

The function runs in a thread of the process that its env lives in, and speaks gymnasium's protocol:
``(command, data)`` in, ``(result, success)`` out. Its results go into the frames like those of any
env. The function resets its env itself when an episode ends.
"""

from __future__ import annotations

import inspect
import queue
import threading
from multiprocessing import Pipe
from typing import TYPE_CHECKING, Any

from gymnasium.vector.utils import CloudpickleWrapper

if TYPE_CHECKING:
    from collections.abc import Callable

    import gymnasium as gym

__all__ = ["PipedEnv", "check_worker"]

# index, env_fn, pipe, parent_pipe, shared_memory, error_queue, autoreset_mode, and a semaphore
# since gymnasium 1.4.
_ARGUMENTS = (8, 7)


def check_worker(worker: Callable[..., None]) -> int:
    """Return the number of arguments to pass, or raise ValueError if no number fits."""
    signature = inspect.signature(worker)
    for count in _ARGUMENTS:
        try:
            signature.bind(*(None,) * count)
        except TypeError:
            continue
        return count
    raise ValueError(
        f"A custom `worker` must accept {_ARGUMENTS[0]} arguments. Got the signature {signature}."
    )


class PipedEnv:
    """An env run by a worker function, with the methods that an env server calls."""

    def __init__(
        self,
        worker: Callable[..., None],
        index: int,
        env_fn: Callable[[], gym.Env[Any, Any]],
        autoreset_mode: Any,
    ) -> None:
        self._pipe, theirs = Pipe()
        closed_by_worker, _ = Pipe()
        self._errors: queue.Queue[Any] = queue.Queue()
        arguments = (
            *(index, CloudpickleWrapper(env_fn), theirs, closed_by_worker),
            *(None, self._errors, autoreset_mode, None),
        )
        self._thread = threading.Thread(
            target=self._run, args=(worker, theirs, arguments[: check_worker(worker)]), daemon=True
        )
        self._thread.start()
        self.observation_space = self._call("observation_space")
        self.action_space = self._call("action_space")
        self.metadata = self._call("metadata")
        self.render_mode = self._call("render_mode")
        self.spec = self._call("spec")
        self.unwrapped = self

    def _run(self, worker: Callable[..., None], pipe: Any, arguments: tuple[Any, ...]) -> None:
        try:
            worker(*arguments)
        except BaseException as error:  # before its first answer, or after it reported an error
            self._errors.put((0, type(error), error, ""))
        finally:
            pipe.close()

    def _ask(self, command: str, data: Any) -> Any:
        try:
            self._pipe.send((command, data))
            result, success = self._pipe.recv()
        except (EOFError, OSError):
            success = False
        if success:
            return result
        _, kind, value, _ = self._errors.get(timeout=10)
        raise value if isinstance(value, BaseException) else kind(value)

    def _call(self, name: str, *args: Any, **kwargs: Any) -> Any:
        return self._ask("_call", (name, args, kwargs))

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        return self._ask("reset", {"seed": seed, "options": options})

    def step(self, action: Any) -> Any:
        return self._ask("step", action)

    def get_wrapper_attr(self, name: str) -> Callable[..., Any]:
        return lambda *args, **kwargs: self._call(name, *args, **kwargs)

    def set_wrapper_attr(self, name: str, value: Any) -> None:
        self._ask("_setattr", (name, value))

    def close(self) -> None:
        if self._thread.is_alive():
            self._ask("close", None)
            self._thread.join()
        self._pipe.close()
