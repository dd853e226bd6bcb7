"""The process in which a training script runs until it makes its first vector env."""

from __future__ import annotations

import contextlib
import os
import runpy
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv

import pysampler
from pysampler._cli.contenders import end_with, error_line
from pysampler._cli.sources import from_calls, save
from pysampler._vector import make

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["main"]

# What trials choose: the script's own choice is not kept.
_CHOSEN = {
    *("num_workers", "main_envs", "groups", "max_concurrency", "record_to", "replay_from"),
    "shared_memory",
}


def main() -> None:
    """Run a script; the arguments are the pid of the parent, a file for its envs, and its own.

    The file for its envs gets what makes them; the file beside it why there are none.
    """
    parent, out, script, *arguments = sys.argv[1:]
    end_with(int(parent))
    why = Path(f"{out}.why")

    def found(_: Any, env_fns: Sequence[Callable[[], Any]], *__: Any, **options: Any) -> NoReturn:
        """Write down what a vector env is made of, and end the script there and then."""
        kept = {name: value for name, value in options.items() if name not in _CHOSEN}
        with _why_not(why):
            save(Path(out), from_calls(list(env_fns), kept))
        os._exit(0)

    pysampler.VectorEnv.__init__ = found  # type: ignore[method-assign, assignment]
    AsyncVectorEnv.__init__ = found  # type: ignore[method-assign, assignment]
    SyncVectorEnv.__init__ = found  # type: ignore[method-assign, assignment]
    make.choose = lambda *_: False  # type: ignore[attr-defined] # its trial makes vector envs
    sys.argv = [script, *arguments]
    sys.path.insert(0, str(Path(script).resolve().parent))
    with _why_not(why):
        runpy.run_path(script, run_name="__main__")
    why.write_text("it has ended without making a VectorEnv, or one of gymnasium")
    os._exit(0)


@contextlib.contextmanager
def _why_not(why: Path) -> Any:
    """Write an exception in one line to a file, and end this process."""
    try:
        yield
    except BaseException as error:
        why.write_text(error_line(error))
        os._exit(1)
