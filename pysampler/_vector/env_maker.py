"""EnvMaker: makes one env, in workers that import nothing of what makes vector envs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pysampler._vector.native.known import makes_known_envs

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import gymnasium as gym

__all__ = ["EnvMaker"]


class EnvMaker:
    """A callable that makes one env. It is a class, so that it pickles by reference."""

    def __init__(
        self,
        make: Callable[..., gym.Env[Any, Any]],
        kwargs: dict[str, Any],
        wrappers: Sequence[Callable[[gym.Env[Any, Any]], gym.Env[Any, Any]]],
    ) -> None:
        self._make = make
        self.kwargs = kwargs
        self.wrappers = wrappers

    @property
    def entry_point(self) -> Any:
        """The function that makes the envs, or its name."""
        spec = self.kwargs.get("id")
        return self._make if spec is None else spec.entry_point

    @property
    def makes_alike(self) -> bool:
        """Whether all envs are known to be alike, so that it is enough to look at one."""
        return makes_known_envs(self.entry_point, self.wrappers)

    @property
    def makes_tasks(self) -> bool:
        """Whether all envs are of a MuJoCo task: timing their steps in Python would mislead."""
        return makes_known_envs(self.entry_point, self.wrappers, twins=False)

    def rendering(self, mode: str) -> EnvMaker:
        """Return a maker of envs with this render mode; this one if it has a mode already."""
        if self.kwargs.get("render_mode") is not None:
            return self
        return EnvMaker(self._make, {**self.kwargs, "render_mode": mode}, self.wrappers)

    def __call__(self) -> gym.Env[Any, Any]:
        env = self._make(**self.kwargs)
        for wrapper in self.wrappers:
            env = wrapper(env)
        return env
