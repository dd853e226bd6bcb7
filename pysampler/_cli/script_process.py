"""The process in which a training script runs until it makes its first vector env.

The constructors of vector envs are replaced by functions that save their arguments and exit.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import functools
import importlib.abc
import importlib.machinery
import inspect
import os
import runpy
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import gymnasium as gym
from gymnasium.envs import registration
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv

import pysampler
from pysampler._cli.contenders import end_with, error_line, with_resets
from pysampler._cli.hangs import frames_of, own_frames, report_hangs
from pysampler._cli.isolation import ISOLATE
from pysampler._cli.sources import EnvSource, SourceError, from_calls, made_by_class, save

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence
    from types import FrameType

    # Ends the script with the source of its envs.
    Found = Callable[[Callable[[], EnvSource]], NoReturn]

__all__ = ["main"]

# Options that name files, which trials must neither write nor read.
_FILES = {"record_to", "replay_from", "trace"}
# Options that the trials choose, so those of the script are dropped.
_CHOSEN = _FILES | {
    *("num_workers", "main_envs", "groups", "max_concurrency", "shared_memory", "start_method"),
}
# Keyword arguments of ``make_vec`` that gymnasium keeps in the spec with those of the env.
_OF_MAKE_VEC = "num_envs", "vectorization_mode", "vector_kwargs", "wrappers"
# Classes whose constructor is replaced when a script imports them, by module.
_OF_SB3 = {
    "stable_baselines3.common.vec_env.dummy_vec_env": "DummyVecEnv",
    "stable_baselines3.common.vec_env.subproc_vec_env": "SubprocVecEnv",
    "pysampler.adapters.sb3": "VecEnv",
}
_GYMNASIUM_MAKES = "gymnasium.envs.registration", "make_vec"
_PYSAMPLER_MAKES = "pysampler._vector.make", "make_vec"
_SB3_MAKES = "stable_baselines3.common.env_util", "make_vec_env"
_SB3_WRAPS = "stable_baselines3.common.base_class", "_wrap_env"


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

    def found(source: Callable[[], EnvSource]) -> NoReturn:
        """Save the source of the envs of a vector env, and end the script immediately."""
        with _report_errors(why):
            save(Path(out), source())
        os._exit(0)

    for kind in (pysampler.VectorEnv, AsyncVectorEnv, SyncVectorEnv):
        _replace_init(kind, found)
    sys.meta_path.insert(0, _Replaced(_OF_SB3, lambda kind: _replace_init(kind, found, sb3=True)))
    _replace_make_vec(found)
    sys.argv = [script, *arguments]
    sys.path.insert(0, str(Path(script).resolve().parent))
    with _report_errors(why):
        runpy.run_path(script, run_name="__main__")
    why.write_text(
        "it ended without making a vector env; pass the id of its env, or FILE:FUNCTION, instead"
    )
    os._exit(0)


# -- the replaced functions ------------------------------------------------------------------------


def _replace_init(kind: Any, found: Found, *, sb3: bool = False) -> None:
    """Have the constructor of a class of vector envs call ``found``.

    Args:
        kind: The class.
        found: The function.
        sb3: Whether it is a VecEnv of Stable-Baselines3, or ``pysampler.adapters.sb3.VecEnv``.
    """
    signature = inspect.signature(kind.__init__)
    defaults = {name: one.default for name, one in signature.parameters.items()}
    defaults.pop("autoreset_mode", None)  # trials have another one

    def init(*arguments: Any, **options: Any) -> None:
        given = dict(signature.bind(*arguments, **options).arguments)
        given |= given.pop("kwargs", {})
        functions = given.pop("env_fns")
        options = {
            name: value
            for name, value in given.items()
            if name != "self" and value is not defaults.get(name, given)
        }
        frames = [*frames_of(sys._getframe(1))]
        found(lambda: _source(frames, kind, functions, options, sb3=sb3))

    kind.__init__ = init


def _replace_make_vec(found: Found) -> None:
    """Have gymnasium's ``make_vec`` call ``found`` if it makes envs of a registered class."""
    make_vec = gym.make_vec

    @functools.wraps(make_vec)
    def make_vec_or_found(*arguments: Any, **options: Any) -> Any:
        # Calls of all other constructors end this process.
        envs: Any = make_vec(*arguments, **options)
        spec = copy.deepcopy(envs.unwrapped.spec)
        kwargs = {name: value for name, value in spec.kwargs.items() if name not in _OF_MAKE_VEC}
        if kwargs.get("max_episode_steps") == spec.max_episode_steps:  # added by gymnasium
            kwargs.pop("max_episode_steps", None)
        spec.kwargs = {}
        env_id = inspect.signature(make_vec).bind(*arguments, **options).arguments["id"]
        frames = [*frames_of(sys._getframe(1))]
        found(lambda: _source_of_class(frames, env_id, spec, kwargs, envs.num_envs))

    modules: list[Any] = [gym, registration]
    for module in modules:
        module.make_vec = make_vec_or_found


class _Replaced(importlib.abc.MetaPathFinder):
    """Replaces the ``__init__`` of classes when their modules are imported.

    Args:
        classes: The names of the classes, by module.
        replace: Replaces the ``__init__`` of a class.
    """

    def __init__(self, classes: Mapping[str, str], replace: Callable[[Any], None]) -> None:
        self._classes, self._replace = classes, replace

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
                self._replace(getattr(module, self._classes[fullname]))

            spec.loader.exec_module = run_and_replace  # type: ignore[method-assign]
        return spec


# -- sources ---------------------------------------------------------------------------------------


def _source(
    frames: Sequence[FrameType],
    kind: Any,
    functions: Sequence[Callable[[], Any]],
    options: Mapping[str, Any],
    *,
    sb3: bool,
) -> EnvSource:
    """Return the source of the envs of a script.

    Args:
        frames: The frame that calls the constructor of a vector env, and those of its callers.
        kind: The class of the vector env.
        functions: A function for each env.
        options: Its other arguments.
        sb3: Whether it is a VecEnv of Stable-Baselines3, or ``pysampler.adapters.sb3.VecEnv``.
    """
    callers = [(one.f_globals.get("__name__", ""), one.f_code.co_name) for one in frames]
    given = frames[0].f_locals
    made_by = env_id = None
    if callers[0] == _SB3_WRAPS:
        raise SourceError("it trains on one env; use several, with make_vec_env")
    if callers[0] == _SB3_MAKES:
        env_id = given["env_id"]
        if given["monitor_dir"] is not None:
            raise SourceError("trials would write to its monitor_dir: remove that argument")
    elif callers[0] == _GYMNASIUM_MAKES:
        env_id = given["id"]
        made_by = given["env_spec"], given["wrappers"], given["env_spec_kwargs"]
    elif callers[1:2] == [_PYSAMPLER_MAKES]:
        given = frames[1].f_locals
        env_id = given["id"]
        if given.get("nested"):
            made = (given[name] for name in ("spec", "env_kwargs", "num_envs", "vector_kwargs"))
            return _source_of_class(frames, env_id, *made)
    kept = _kept_of(options)
    source = from_calls(list(functions), kept, sb3=sb3, env_id=env_id, made_by=made_by)
    own = _without(_FILES, options)
    return dataclasses.replace(
        source,
        found=(_place_of(frames), f"{kind.__module__.partition('.')[0]}'s {kind.__name__}"),
        as_found=functools.partial(kind, **(own if sb3 else with_resets(own))),
    )


def _source_of_class(
    frames: Sequence[FrameType],
    env_id: Any,
    spec: Any,
    kwargs: dict[str, Any],
    count: int,
    options: Mapping[str, Any] | None = None,
) -> EnvSource:
    """Return the source of the envs of a script that makes a vector env of a registered class.

    Args:
        frames: The frame that calls ``make_vec``, and those of its callers.
        env_id: The first argument of ``make_vec``.
        spec: The spec of the env, without arguments.
        kwargs: Its arguments.
        count: The number of envs.
        options: Options of pysampler's vector env; None if it is the class itself.
    """
    name = str(spec.vector_entry_point).rpartition(":")[2]
    if spec.entry_point is None:
        raise SourceError(
            f"{_place_of(frames)} makes {spec.id} with its vector entry point, {name}; to measure "
            "it, register an entry_point for one env, too"
        )
    functions = [functools.partial(gym.make, spec, **kwargs)] * count
    kept = _kept_of(options or {})
    source = from_calls(functions, kept, env_id=env_id, made_by=(spec, None, kwargs))
    own = None if options is None else _without(_FILES, options)
    return dataclasses.replace(
        source,
        found=(_place_of(frames), f"their vector entry point, {name}; other rows step Python envs"),
        as_found=functools.partial(made_by_class, spec, kwargs, own),
    )


def _kept_of(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a script that trials keep; of ``isolate`` only True."""
    return _without(_CHOSEN | ({ISOLATE} if options.get(ISOLATE) is not True else set()), options)


def _without(names: Collection[str], options: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if name not in names}


def _place_of(frames: Sequence[FrameType]) -> str:
    """Return the place in the script, or in a module of the user, that makes the vector env."""
    place = [*own_frames(frames), *frames][0]
    return f"{Path(place.f_code.co_filename).name}:{place.f_lineno}"


@contextlib.contextmanager
def _report_errors(why: Path) -> Any:
    """If the block raises, write the exception as one line to a file and end this process."""
    try:
        yield
    except BaseException as error:
        why.write_text(error_line(error))
        os._exit(1)
