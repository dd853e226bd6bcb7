"""What adapters share, without importing a training library: workers run most of it."""

from __future__ import annotations

import contextlib
import inspect
import sys
from typing import TYPE_CHECKING, Any, NamedTuple

import gymnasium as gym
import numpy as np

from pysampler._vector.env_calls import attribute_of, call, is_several
from pysampler.errors import EnvError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

MASK = "action_mask"  # the key of infos


class MaskInfo(gym.Wrapper[Any, Any, Any, Any]):
    """Put the result of the env's method ``action_masks`` into the infos, as ``action_mask``.

    Infos are columns of shared memory, so the masks are not pickled.
    """

    def reset(self, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        observation, info = self.env.reset(**kwargs)
        return observation, self._with_mask(info)

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        observation, reward, terminated, truncated, info = self.env.step(action)
        if not (terminated or truncated):  # no action follows, so no mask
            info = self._with_mask(info)
        return observation, reward, terminated, truncated, info

    def _with_mask(self, info: dict[str, Any]) -> dict[str, Any]:
        if MASK in info:
            return info
        return {**info, MASK: np.asarray(self.env.get_wrapper_attr("action_masks")(), np.bool_)}


def make_with_masks(env_fn: Callable[[], gym.Env[Any, Any]]) -> gym.Env[Any, Any]:
    """Make an env; if it has the method ``action_masks()``, the masks are put into the infos."""
    env = env_fn()
    if isinstance(env, gym.Env) and has_attribute(env, "action_masks"):
        with contextlib.suppress(TypeError, ValueError):  # another attribute of that name
            inspect.signature(env.get_wrapper_attr("action_masks")).bind()
            return MaskInfo(env)
    return env


@contextlib.contextmanager
def converting(results: Callable[[Any], Any]) -> Iterator[None]:
    """Convert the results in an error of envs as those of a step."""
    try:
        yield
    except EnvError as error:
        if error.results is not None:
            error.results = results(error.results)
        raise


class TuplesAsDicts(gym.ObservationWrapper[Any, Any, Any]):
    """Turn tuples in observations into dicts with the keys "0", "1" and so on.

    If the whole observation is a tuple, it gets the key "observation".
    """

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        super().__init__(env)
        self._space = env.observation_space
        if isinstance(self._space, gym.spaces.Tuple):
            self._space = gym.spaces.Dict(observation=self._space)
        self._is_tuple = self._space is not env.observation_space
        self.observation_space = _space_of_dicts(self._space)

    def observation(self, observation: Any) -> Any:
        """Return an observation without tuples."""
        if self._is_tuple:
            observation = {"observation": observation}
        return _dicts(self._space, observation)


def has_tuples(space: gym.Space[Any]) -> bool:
    """Return whether a space is a Tuple, or a Dict that contains one."""
    if isinstance(space, gym.spaces.Dict):
        return any(map(has_tuples, space.values()))
    return isinstance(space, gym.spaces.Tuple)


def _space_of_dicts(space: gym.Space[Any]) -> gym.Space[Any]:
    if isinstance(space, (gym.spaces.Dict, gym.spaces.Tuple)):
        return gym.spaces.Dict({key: _space_of_dicts(part) for key, part in _parts(space)})
    return space


def _dicts(space: gym.Space[Any], value: Any) -> Any:
    if isinstance(space, gym.spaces.Dict):
        return {key: _dicts(part, value[key]) for key, part in _parts(space)}
    if isinstance(space, gym.spaces.Tuple):
        parts = zip(_parts(space), value, strict=True)
        return {key: _dicts(part, one) for (key, part), one in parts}
    return value


def _parts(space: gym.spaces.Dict | gym.spaces.Tuple[Any]) -> Iterable[tuple[str, gym.Space[Any]]]:
    if isinstance(space, gym.spaces.Dict):
        return space.items()
    return ((str(number), part) for number, part in enumerate(space))


def get_attribute(env: gym.Env[Any, Any], name: str) -> Any:
    return call(env, name, (), {}) if is_several(env) else attribute_of(env, name)


def has_attribute(env: gym.Env[Any, Any], name: str) -> bool:
    try:
        attribute_of(env, name)
    except AttributeError:
        return False
    return True


def set_attribute(env: gym.Env[Any, Any], name: str, value: Any) -> None:
    """Set an attribute of the wrapper or env that has it."""
    if is_several(env):
        raise ValueError(
            f"cannot set {name} of some envs: {type(env).__name__} is a vector env; set it for all"
        )
    env.set_wrapper_attr(name, value)


def call_method(env: gym.Env[Any, Any], name: str, args: Any, kwargs: Any) -> Any:
    if is_several(env):
        return call(env, name, args, kwargs)
    return env.get_wrapper_attr(name)(*args, **kwargs)


class ClassName(NamedTuple):
    """The name of a class that can be imported.

    To unpickle the class itself would import its module: for SB3's ``Monitor``, SB3 and torch.
    """

    module: str
    qualname: str

    @classmethod
    def of(cls, kind: Any) -> Any:
        """Return the name of a class; or what was given, if that is no class with such a name."""
        if not isinstance(kind, type):
            return kind
        found: Any = sys.modules.get(kind.__module__)
        for part in kind.__qualname__.split("."):
            found = getattr(found, part, None)
        return cls(kind.__module__, kind.__qualname__) if found is kind else kind


def is_wrapped(env: Any, wrapper_class: Any) -> bool:
    """Return whether an env has a wrapper of a class, or of a subclass."""

    def is_one(wrapper: Any) -> bool:
        if isinstance(wrapper_class, ClassName):
            kinds = type(wrapper).__mro__
            return any((one.__module__, one.__qualname__) == wrapper_class for one in kinds)
        return isinstance(wrapper, wrapper_class)

    while not is_one(env):
        if env is env.unwrapped:
            return False
        env = env.env
    return True


# Batches of envs go on after these.
get_attribute.reads_of_pysampler = "attribute"  # type: ignore[attr-defined]
has_attribute.reads_of_pysampler = "nothing"  # type: ignore[attr-defined]
is_wrapped.reads_of_pysampler = "nothing"  # type: ignore[attr-defined]
