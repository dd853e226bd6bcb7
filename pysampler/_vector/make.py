"""Vector envs by name, and in the place of gymnasium's."""

from __future__ import annotations

import contextlib
import copy
import difflib
import importlib
import inspect
import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, overload

import gymnasium as gym
import numpy as np
from gymnasium.envs.registration import EnvSpec, VectorizeMode, load_env_creator

from pysampler._numbers import whole_number
from pysampler._vector.mujoco.choice import choose, short
from pysampler._vector.mujoco.known import knows, maker_of_task
from pysampler._vector.vector_env import VectorEnv

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["OPTIONS", "EnvMaker", "install", "make_vec", "uninstall", "vector_options"]

# What make_vec and samplers take for the vector env: it declares them.
OPTIONS = frozenset(inspect.signature(VectorEnv).parameters) - {"env_fns"} | {"native"}

_gymnasiums_own = gym.vector.AsyncVectorEnv


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
    """Make a :class:`pysampler.VectorEnv` of an env, as ``gymnasium.make_vec`` does.

    Args:
        id: An env id, an ``EnvSpec``, a function that makes one env, or a class of MuJoCo tasks
            (:class:`pysampler.envs.mujoco.Task`).
        num_envs: The number of envs.
        vectorization_mode: None or "async" make a ``pysampler.VectorEnv``; "sync" and
            "vector_entry_point" are left to gymnasium.
        vector_kwargs: Options of the vector env, as ``gymnasium.make_vec`` takes them.
        wrappers: Wrappers of each env.
        **kwargs: Options of ``VectorEnv``, such as ``num_workers``, and ``native``: whether
            gymnasium's MuJoCo envs are simulated together, many in each worker, with the same
            results bit for bit. "auto", the default: where it is possible and a trial beside real
            envs finds no difference; True raises ValueError where it is not; False never. All
            others are arguments of the env, or of the task, and its ``max_episode_steps``; so are
            options that the env names among its own parameters: pass those in ``vector_kwargs``.

    Returns:
        The vector env.

    >>> envs = make_vec("CartPole-v1", num_envs=4, num_workers=2)
    >>> observations, infos = envs.reset(seed=1)
    >>> observations.shape
    (4, 4)
    >>> envs.close()
    """
    if not isinstance(id, (str, EnvSpec)):
        if not callable(id):
            raise gym.error.Error(
                f"Invalid id type: {type(id)}. Expected `str`, `EnvSpec`, a function or a class of "
                "tasks"
            )
        make, arguments = id, dict(kwargs)
        if (make_task_env := maker_of_task(id)) is not None:
            make, arguments = make_task_env, {"task": id, **kwargs}
        options = vector_options("make vector env", vector_kwargs, _taken(arguments, id))
        maker = EnvMaker(make, arguments, tuple(wrappers or ()))
        return _made(maker, num_envs, options)
    spec = copy.deepcopy(id if isinstance(id, EnvSpec) else _spec_of(id))
    # An earlier make_vec has put these there, so that the spec makes the same again.
    env_kwargs = dict(spec.kwargs)
    num_envs = env_kwargs.pop("num_envs", num_envs)
    mode = env_kwargs.pop("vectorization_mode", vectorization_mode)
    taken = _taken(kwargs, spec.entry_point)
    vector_kwargs = vector_options(
        "make vector env", env_kwargs.pop("vector_kwargs", vector_kwargs), taken
    )
    wrappers = env_kwargs.pop("wrappers", wrappers) or ()
    if mode is not None and VectorizeMode(mode) is not VectorizeMode.ASYNC:
        return gym.make_vec(id, num_envs, mode, vector_kwargs, wrappers, **kwargs)
    if spec.entry_point is None:
        raise gym.error.Error(
            f"Cannot create vectorized environment for {spec.id} because it doesn't have an entry "
            "point defined."
        )
    env_kwargs.update(kwargs)
    spec.kwargs = {}
    maker = EnvMaker(gym.make, {"id": spec, **env_kwargs}, tuple(wrappers))
    envs = _made(maker, num_envs, vector_kwargs)
    spec = copy.deepcopy(spec)
    spec.kwargs = {**env_kwargs, "vectorization_mode": VectorizeMode.ASYNC.value}
    if num_envs != 1:
        spec.kwargs["num_envs"] = num_envs
    if vector_kwargs:
        spec.kwargs["vector_kwargs"] = vector_kwargs
    if wrappers:
        spec.kwargs["wrappers"] = wrappers
    envs.spec = spec
    return envs


def _spec_of(env_id: str) -> EnvSpec:
    """Return the spec of an id; of "module:Env-v0" once the module has been imported."""
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
        doing: What cannot be done then, for errors.
        vector_kwargs: Options in a dict, as gymnasium takes them, or None.
        options: Those given by themselves.
        function: Whose own parameters could have been meant by a name that is no option.
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
            raise TypeError(f"cannot {doing}: unknown option {name!r}{_meant(name, function)}")
        if name in vector_kwargs:
            raise TypeError(f"cannot {doing}: {name} is given twice, also in vector_kwargs")
    return {**vector_kwargs, **options}


def _meant(name: str, function: Callable[..., Any] | None = None) -> str:
    """Return which option may be meant by a name, as the end of an error; "" if none is close."""
    own = () if function is None else inspect.signature(function).parameters
    close = difflib.get_close_matches(name, sorted(OPTIONS.union(own)), n=1)
    return f"; did you mean {close[0]!r}?" if close else ""


def _taken(kwargs: dict[str, Any], entry_point: Any) -> dict[str, Any]:
    """Take the options of a vector env out of the arguments of an env, and return them.

    What the env itself names is its own.
    """
    taken = OPTIONS.intersection(kwargs)
    if taken:
        with contextlib.suppress(Exception):  # an error says so when the env is made
            creator = load_env_creator(entry_point) if isinstance(entry_point, str) else entry_point
            taken -= inspect.signature(creator).parameters.keys()
    return {name: kwargs.pop(name) for name in taken}


def _made(maker: EnvMaker, num_envs: int, vector_kwargs: dict[str, Any]) -> VectorEnv:
    count = whole_number("make vector env", "num_envs", num_envs, 1)
    options = dict(vector_kwargs)
    native = options.pop("native", "auto")
    try:
        return VectorEnv([_chosen(maker, native, options)] * count, **options)
    except TypeError as error:
        unexpected = re.search(r"unexpected keyword argument '(\w+)'", str(error))
        if unexpected and (meant := _meant(unexpected[1])):
            error.add_note(f"neither VectorEnv nor the env takes {unexpected[1]!r}{meant}")
        raise


def _chosen(maker: EnvMaker, native: Any, options: dict[str, Any]) -> EnvMaker:
    """Return what makes the envs: ordinary ones, or such as are simulated together."""
    if not isinstance(native, (bool, np.bool_)) and native != "auto":
        raise ValueError(
            f"cannot make vector env: native {native!r}, expected 'auto', True or False"
        )
    native = native if native == "auto" else bool(native)
    if native is False or (native == "auto" and not knows(maker.entry_point, maker.wrappers)):
        return maker
    together = maker.together()
    why_not = None
    if maker.render_mode == "human":
        why_not = "each step of an env with render_mode='human' draws a picture"
    for name, usual in (("worker", None), ("observation_mode", "same")):
        if not isinstance(given := options.get(name, usual), type(usual)) or given != usual:
            why_not = f"{name} is given"
    if why_not is not None:
        if native == "auto":
            return maker
        raise ValueError(f"cannot make vector env: native=True, but {why_not}")

    def two() -> VectorEnv:
        return VectorEnv([together.wrapped(short)] * 2, num_workers=0)

    return together if choose(native, maker, two) else maker


class EnvMaker:
    """A function that makes one env; a class, so that it pickles by reference."""

    def __init__(
        self,
        make: Callable[..., gym.Env[Any, Any]],
        kwargs: dict[str, Any],
        wrappers: Sequence[Callable[[gym.Env[Any, Any]], gym.Env[Any, Any]]],
    ) -> None:
        self._make = make
        self.kwargs = kwargs
        self.wrappers = wrappers
        self.native = False  # whether envs are simulated together

    @property
    def entry_point(self) -> Any:
        """What makes the envs, or its name."""
        spec = self.kwargs.get("id")
        return self._make if spec is None else spec.entry_point

    @property
    def render_mode(self) -> str | None:
        """The render mode of the envs."""
        mode: str | None = self.kwargs.get("render_mode")
        spec = self.kwargs.get("id")
        return spec.kwargs.get("render_mode") if mode is None and spec is not None else mode

    def wrapped(self, wrapper: Callable[[gym.Env[Any, Any]], gym.Env[Any, Any]]) -> EnvMaker:
        """Return a maker of the same envs in a further wrapper."""
        maker = copy.copy(self)
        maker.wrappers = (*self.wrappers, wrapper)
        return maker

    def together(self) -> EnvMaker:
        """Return a maker of the same envs, which are simulated together."""
        maker = copy.copy(self)
        maker.native = True
        return maker

    def __call__(self) -> gym.Env[Any, Any]:
        env = self._make(**self.kwargs)
        for wrapper in self.wrappers:
            env = wrapper(env)
        return env


def install() -> None:
    """Replace ``gymnasium.vector.AsyncVectorEnv`` by ``pysampler.VectorEnv``.

    Use it where a library makes the vector env: ``gymnasium.make_vec(vectorization_mode="async")``,
    TorchRL's ``GymEnv(num_envs=...)``. Names that were imported before stay what they were.
    """
    gym.vector.AsyncVectorEnv = VectorEnv  # type: ignore[misc, assignment]


def uninstall() -> None:
    """Undo ``install``."""
    gym.vector.AsyncVectorEnv = _gymnasiums_own  # type: ignore[misc]
