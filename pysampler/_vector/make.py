"""``make_vec``, and ``install``, which puts VectorEnv in the place of gymnasium's AsyncVectorEnv.

``make_vec`` sorts its keyword arguments into options of the vector env and arguments of the env.
"""

from __future__ import annotations

import contextlib
import copy
import difflib
import functools
import importlib
import inspect
import re
from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, overload

import gymnasium as gym
from gymnasium.envs.registration import EnvSpec, VectorizeMode, load_env_creator

from pysampler._common.numbers import whole_number
from pysampler._vector import arguments
from pysampler._vector.env_maker import EnvMaker
from pysampler._vector.native.known import HANDOVER_US, maker_of_task, step_us_of
from pysampler._vector.registry import sendable
from pysampler._vector.vector_env import DEFAULTS, VectorEnv
from pysampler.envs.batch import BatchEnv
from pysampler.sync import usable_cpus

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["OPTIONS", "install", "make_vec", "uninstall", "vector_options"]

# The options of a vector env, for make_vec and samplers.
OPTIONS = frozenset(DEFAULTS)

# Options with which make_vec may step few known envs in this process: others may need workers.
# With more envs it starts a worker in any case: if they must step in Python, this process is slow.
_MOST_HERE = 64
_FOR_FEW = frozenset({"autoreset_mode", "check_actions", "copy", "infos"})

_gymnasium_class = gym.vector.AsyncVectorEnv


@overload
def make_vec(
    id: str | EnvSpec | Callable[..., gym.Env[Any, Any]],
    num_envs: int = 1,
    vectorization_mode: Literal["async", VectorizeMode.ASYNC] | None = None,
    vector_kwargs: dict[str, Any] | None = None,
    wrappers: Sequence[Callable[[gym.Env[Any, Any]], gym.Env[Any, Any]]] | None = None,
    **kwargs: Any,
) -> VectorEnv: ...


@overload
def make_vec(
    id: str | EnvSpec | Callable[..., gym.Env[Any, Any]],
    num_envs: int = 1,
    vectorization_mode: VectorizeMode | str | None = None,
    vector_kwargs: dict[str, Any] | None = None,
    wrappers: Sequence[Callable[[gym.Env[Any, Any]], gym.Env[Any, Any]]] | None = None,
    **kwargs: Any,
) -> gym.vector.VectorEnv[Any, Any, Any]: ...


def make_vec(
    id: str | EnvSpec | Callable[..., gym.Env[Any, Any]],  # noqa: A002 - as gymnasium has it
    num_envs: int = 1,
    vectorization_mode: VectorizeMode | str | None = None,
    vector_kwargs: dict[str, Any] | None = None,
    wrappers: Sequence[Callable[[gym.Env[Any, Any]], gym.Env[Any, Any]]] | None = None,
    **kwargs: Any,
) -> gym.vector.VectorEnv[Any, Any, Any]:
    """Make a :class:`pysampler.VectorEnv` of copies of one env, as ``gymnasium.make_vec`` does.

    Args:
        id: An env id, an ``EnvSpec``, a function that makes one env, or a subclass of
            :class:`pysampler.envs.mujoco.Task` or :class:`pysampler.envs.BatchEnv`.
        num_envs: The number of envs.
        vectorization_mode: None or "async" makes each env by itself. Without wrappers and options
            that are for workers, few envs of classic control or MuJoCo step in this process if that
            is faster, see ``VectorEnv.division``. "vector_entry_point" uses the
            vector env class that is registered for this id: each group of each worker gets one.
            "sync" returns gymnasium's ``SyncVectorEnv``.
        vector_kwargs: Options of ``VectorEnv`` in a dict, as in ``gymnasium.make_vec``. Use it for
            options whose names are also parameters of the env.
        wrappers: Functions or classes that each wrap an env; the last one is outermost.
        **kwargs: Options of ``VectorEnv``, such as ``num_workers``. All others are arguments of the
            env or task, such as ``max_episode_steps``. If a name is both, the env gets it.

    Returns:
        The vector env.

    >>> envs = make_vec("CartPole-v1", num_envs=4, num_workers=2)
    >>> observations, infos = envs.reset(seed=1)
    >>> observations.shape
    (4, 4)
    >>> envs.close()
    """
    wraps = arguments.wrappers(wrappers)
    mode_name = getattr(vectorization_mode, "value", vectorization_mode) or "async"
    arguments.one_of("vectorization_mode", mode_name, [mode.value for mode in VectorizeMode])
    if not isinstance(id, (str, EnvSpec)):
        if not callable(id):
            of_list = "; VectorEnv takes a list of functions" * isinstance(id, (list, tuple))
            raise gym.error.Error(
                f"Invalid id type: {type(id)}. Expected `str`, `EnvSpec`, a function or a class of "
                f"tasks{of_list}"
            )
        make, of_env = id, dict(kwargs)
        kind = id.func if isinstance(id, functools.partial) else id
        if isinstance(kind, type) and issubclass(kind, BatchEnv):
            options = vector_options("make vector env", vector_kwargs, _pop_options(of_env, id))
            if wraps:
                raise TypeError(
                    f"cannot make vector env: wrappers {wrappers!r} of {kind.__name__}, a "
                    "BatchEnv, expected none"
                )
            if "max_episode_steps" in of_env:
                make_some: Any = functools.partial(_make_limited, id)
            else:
                make_some = id
            return _make_nested(functools.partial(make_some, **of_env), num_envs, options)
        if (make_task_env := maker_of_task(id)) is not None:
            make, of_env = make_task_env, {"task": id, **kwargs}
        options = vector_options("make vector env", vector_kwargs, _pop_options(of_env, id))
        maker = EnvMaker(make, of_env, wraps)
        return _make_vector_env(maker, num_envs, options)
    spec = copy.deepcopy(id if isinstance(id, EnvSpec) else _spec_of(id))
    # An earlier make_vec stored these in the spec, so that the spec makes the same vector env.
    env_kwargs = dict(spec.kwargs)
    num_envs = env_kwargs.pop("num_envs", num_envs)
    mode = VectorizeMode(env_kwargs.pop("vectorization_mode", vectorization_mode) or "async")
    nested = mode is VectorizeMode.VECTOR_ENTRY_POINT
    taken = _pop_options(kwargs, spec.vector_entry_point if nested else spec.entry_point)
    vector_kwargs = vector_options(
        "make vector env", env_kwargs.pop("vector_kwargs", vector_kwargs), taken
    )
    wraps = tuple(env_kwargs.pop("wrappers", wraps) or ())
    if mode is VectorizeMode.SYNC:
        return gym.make_vec(id, num_envs, mode, vector_kwargs, wraps, **kwargs)
    if mode is VectorizeMode.ASYNC and spec.entry_point is None:
        raise gym.error.Error(
            f"Cannot create vectorized environment for {spec.id} because it doesn't have an entry "
            "point defined."
        )
    env_kwargs.update(kwargs)
    spec.kwargs = {}
    if nested and spec.vector_entry_point is None:
        raise gym.error.Error(
            f"Cannot create vectorized environment for {spec.id} because it doesn't have a vector "
            "entry point defined."
        )
    if nested:
        make_nested = functools.partial(
            gym.make_vec, sendable(spec), vectorization_mode=mode, wrappers=wraps, **env_kwargs
        )
        follows = {k: env_kwargs[k] for k in ("autoreset_mode",) if k in env_kwargs}
        envs = _make_nested(make_nested, num_envs, {**follows, **vector_kwargs})
    else:
        maker = EnvMaker(gym.make, {"id": sendable(spec), **env_kwargs}, wraps)
        few, why = None, ""
        if not wraps and not spec.additional_wrappers and _for_few(vector_kwargs):
            few, why = _workers_of_few(spec.entry_point, num_envs)
        options = vector_kwargs if few is None else {**vector_kwargs, "num_workers": few}
        envs = _make_vector_env(maker, num_envs, options)
        if why:
            envs.division = replace(envs.division, untried=why)
    spec = copy.deepcopy(spec)
    spec.kwargs = {**env_kwargs, "vectorization_mode": mode.value}
    if num_envs != 1:
        spec.kwargs["num_envs"] = num_envs
    if vector_kwargs:
        spec.kwargs["vector_kwargs"] = vector_kwargs
    if wraps:
        spec.kwargs["wrappers"] = wraps
    envs.spec = spec
    return envs


def _for_few(options: Mapping[str, Any]) -> bool:
    """Return whether no option, unless it has its default value, may need workers."""
    return all(
        name in _FOR_FEW
        or (name == "num_workers" and value in (None, "auto"))
        or (name in DEFAULTS and value is DEFAULTS[name])
        for name, value in options.items()
    )


def _workers_of_few(entry_point: Any, num_envs: Any) -> tuple[int | None, str]:
    """Return the number of workers for few envs of a known class, and the reason.

    None if there are enough envs for a worker per CPU, or if the class is unknown.
    """
    step_us = step_us_of(entry_point)
    if step_us is None:
        return None, ""
    count = whole_number("make vector env", "num_envs", num_envs, 1)
    worth = min(int(count * step_us / HANDOVER_US), count)
    cpus = usable_cpus()
    envs = "one" if count == 1 else f"all {count}"
    takes = f"takes about {count * step_us:.2g} us, handing it to workers {HANDOVER_US:.2g} us"
    why = f"a step of {envs} {takes}"
    if count == 1 or cpus == 1:
        why += f", and one {'env' if count == 1 else 'CPU'} leaves nothing to share"
    if min(worth, cpus) > 1:
        return (None, "") if worth >= cpus else (worth, why)
    return (0, why) if count <= _MOST_HERE else (1, why)


def _spec_of(env_id: str) -> EnvSpec:
    """Return the spec of an id; for "module:Env-v0", import the module first."""
    module, _, name = env_id.rpartition(":")
    if module:
        importlib.import_module(module)
    return gym.spec(name)


def vector_options(
    doing: str,
    vector_kwargs: Any,
    options: Mapping[str, Any] = MappingProxyType({}),
    function: Callable[..., Any] | None = None,
) -> dict[str, Any]:
    """Return the options of a vector env in one dict, or raise TypeError.

    Args:
        doing: The caller's action, for errors: "make vector env".
        vector_kwargs: Options in a dict, as in gymnasium, or None.
        options: Options given as keyword arguments.
        function: The caller, whose parameters are suggested for unknown names too.
    """
    if vector_kwargs is None:
        vector_kwargs = {}
    if not isinstance(vector_kwargs, Mapping):
        raise TypeError(
            f"cannot {doing}: vector_kwargs {vector_kwargs!r}, expected a dict of options of "
            "VectorEnv"
        )
    for name in options:
        if name not in OPTIONS:
            raise TypeError(f"cannot {doing}: unknown option {name!r}{_hint(name, function)}")
        if name in vector_kwargs:
            raise TypeError(f"cannot {doing}: {name} is given twice, also in vector_kwargs")
    return {**vector_kwargs, **options}


def _hint(name: str, function: Callable[..., Any] | None = None) -> str:
    """Return a suggestion for an unknown option, as the end of an error; "" if none is close."""
    own = () if function is None else inspect.signature(function).parameters
    close = difflib.get_close_matches(name, sorted(OPTIONS.union(own) - {"worker"}), n=1)
    return f"; did you mean {close[0]!r}?" if close else ""


def _pop_options(kwargs: dict[str, Any], entry_point: Any) -> dict[str, Any]:
    """Remove the options of a vector env from the arguments of an env, and return them.

    An option that is also a parameter of the env stays.
    """
    taken = OPTIONS.intersection(kwargs)
    if taken:
        with contextlib.suppress(Exception):  # making the env will raise the error
            creator = load_env_creator(entry_point) if isinstance(entry_point, str) else entry_point
            taken -= inspect.signature(creator).parameters.keys()
    return {name: kwargs.pop(name) for name in taken}


def _make_vector_env(maker: EnvMaker, num_envs: int, vector_kwargs: dict[str, Any]) -> VectorEnv:
    count = whole_number("make vector env", "num_envs", num_envs, 1)
    try:
        return VectorEnv([maker] * count, **vector_kwargs)
    except TypeError as error:
        unexpected = re.search(r"unexpected keyword argument '(\w+)'", str(error))
        if unexpected and (meant := _hint(unexpected[1], make_vec)):
            error.add_note(f"neither VectorEnv nor the env takes {unexpected[1]!r}{meant}")
        raise


def _make_nested(
    make: Callable[..., Any], num_envs: int, vector_kwargs: dict[str, Any]
) -> VectorEnv:
    """Return a vector env of vector envs, one for each group of each worker and of this process."""
    count = whole_number("make vector env", "num_envs", num_envs, 1)
    options = dict(vector_kwargs)
    inline = whole_number("make vector env", "main_envs", options.pop("main_envs", 0), 0)
    groups = whole_number("make vector env", "groups", options.get("groups", 1), 1)
    isolated = arguments.word_or_bool("isolate", options.get("isolate", False), "check") is True
    inline = 0 if isolated else arguments.main_envs(inline, count)
    workers = options.get("num_workers")
    if workers is None or workers == "auto":
        workers = max(1, usable_cpus() - bool(inline))
    workers = whole_number("make vector env", "num_workers", workers, 0)
    parts = count if isolated else max(1, workers) * groups
    sizes = arguments.parts(count - inline, min(parts, count - inline))
    options |= {"num_workers": min(workers, len(sizes)), "main_envs": int(inline > 0)}
    sizes += [inline] * bool(inline)
    envs = VectorEnv([functools.partial(make, num_envs=size) for size in sizes], **options)
    if envs.num_envs != count:
        envs.close()
        raise ValueError(
            f"cannot make vector env: {envs.num_envs} envs were made, expected {count}"
        )
    return envs


def _make_limited(
    kind: Callable[..., Any], max_episode_steps: int | None, **kwargs: Any
) -> BatchEnv:
    """Return a BatchEnv with another limit of its episodes."""
    env: BatchEnv = kind(**kwargs)
    env.max_episode_steps = max_episode_steps
    return env


def install() -> None:
    """Replace ``gymnasium.vector.AsyncVectorEnv`` with ``pysampler.VectorEnv``.

    Use it if other code makes the vector env: ``gymnasium.make_vec(vectorization_mode="async")``,
    TorchRL's ``GymEnv(num_envs=...)``. Call it first: modules that have already imported the name
    ``AsyncVectorEnv`` keep gymnasium's.
    """
    gym.vector.AsyncVectorEnv = VectorEnv  # type: ignore[misc, assignment]


def uninstall() -> None:
    """Undo ``install``: put gymnasium's ``AsyncVectorEnv`` back."""
    gym.vector.AsyncVectorEnv = _gymnasium_class  # type: ignore[misc]
