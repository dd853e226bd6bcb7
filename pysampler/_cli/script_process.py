"""The process in which a training script runs until it makes its first vector env.

The constructors of vector envs are replaced by a function that saves their arguments and exits.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.abc
import importlib.machinery
import os
import runpy
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv

import pysampler
from pysampler._cli.contenders import end_with, error_line
from pysampler._cli.hangs import report_hangs
from pysampler._cli.sources import SourceError, from_calls, save
from pysampler._vector import make

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

__all__ = ["main"]

# Options that the trials choose, so those of the script are dropped.
_CHOSEN = {
    *("num_workers", "main_envs", "groups", "max_concurrency", "record_to", "replay_from"),
    *("shared_memory", "start_method", "trace"),
}
# Classes whose constructor is replaced when a script imports them, by module.
_OF_SB3 = {
    "stable_baselines3.common.vec_env.dummy_vec_env": "DummyVecEnv",
    "stable_baselines3.common.vec_env.subproc_vec_env": "SubprocVecEnv",
    "pysampler.adapters.sb3": "VecEnv",
}


def main() -> None:
    """Run a script; the arguments are the pid of the parent, a file, the script and its arguments.

    The file gets the source of the envs; if there are none, the file beside it gets the reason.
    """
    parent, out, script, *arguments = sys.argv[1:]
    end_with(int(parent))
    why = Path(f"{out}.why")

    def hangs(place: str) -> NoReturn:
        why.write_text(place)
        os._exit(1)

    report_hangs(hangs)

    def found(
        _: Any, env_fns: Sequence[Callable[[], Any]], *__: Any, sb3: bool = False, **options: Any
    ) -> NoReturn:
        """Save the source of the envs of a vector env, and end the script immediately."""
        kept = {name: value for name, value in options.items() if name not in _CHOSEN}
        frame = sys._getframe(1)
        caller = frame.f_globals.get("__name__", ""), frame.f_code.co_name
        made_by = env_id = monitor = None
        if caller == ("gymnasium.envs.registration", "make_vec"):
            given = (frame.f_locals[name] for name in ("env_spec", "wrappers", "env_spec_kwargs"))
            made_by = tuple(given)
        elif caller == ("stable_baselines3.common.env_util", "make_vec_env"):
            env_id = frame.f_locals["env_id"]
            monitor = frame.f_locals["monitor_dir"]
        is_algorithm = caller == ("stable_baselines3.common.base_class", "_wrap_env")
        with _report_errors(why):
            if is_algorithm:
                raise SourceError("it trains on one env: give it several, with make_vec_env")
            if monitor is not None:
                raise SourceError("trials would write to its monitor_dir: remove that argument")
            source = from_calls(list(env_fns), kept, sb3=sb3, env_id=env_id, made_by=made_by)
            save(Path(out), source)
        os._exit(0)

    pysampler.VectorEnv.__init__ = found  # type: ignore[method-assign, assignment]
    AsyncVectorEnv.__init__ = found  # type: ignore[method-assign, assignment]
    SyncVectorEnv.__init__ = found  # type: ignore[method-assign, assignment]
    sys.meta_path.insert(0, _Replaced(_OF_SB3, functools.partialmethod(found, sb3=True)))
    make.choose = lambda *_: False  # type: ignore[attr-defined] # its trial makes vector envs
    sys.argv = [script, *arguments]
    sys.path.insert(0, str(Path(script).resolve().parent))
    with _report_errors(why):
        runpy.run_path(script, run_name="__main__")
    why.write_text(
        "it has ended without making a vector env; for one env, tune its id, or FILE:FUNCTION"
    )
    os._exit(0)


class _Replaced(importlib.abc.MetaPathFinder):
    """Replaces the ``__init__`` of classes when their modules are imported.

    Args:
        classes: The names of the classes, by module.
        init: The new ``__init__``.
    """

    def __init__(self, classes: Mapping[str, str], init: Any) -> None:
        self._classes, self._init = classes, init

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: Any = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Return a spec that replaces ``__init__`` after the import, for the modules of classes."""
        if fullname not in self._classes:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            run = spec.loader.exec_module

            def run_and_replace(module: Any) -> None:
                run(module)
                getattr(module, self._classes[fullname]).__init__ = self._init

            spec.loader.exec_module = run_and_replace  # type: ignore[method-assign]
        return spec


@contextlib.contextmanager
def _report_errors(why: Path) -> Any:
    """If the block raises, write the exception as one line to a file and end this process."""
    try:
        yield
    except BaseException as error:
        why.write_text(error_line(error))
        os._exit(1)
