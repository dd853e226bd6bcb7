"""The options of a vector env, for type checkers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, TypedDict

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Sequence

    import gymnasium as gym
    from gymnasium.vector import AutoresetMode

    from pysampler._vector import arguments

__all__ = ["HostedOptions", "VectorOptions"]


class HostedOptions(TypedDict, total=False):
    """The options of ``VectorEnv`` that samplers on a cluster take for the envs of each host."""

    shared_memory: bool
    copy: bool
    context: str | None
    daemon: bool
    worker: Callable[..., None] | None
    observation_mode: str | tuple[gym.Space[Any], gym.Space[Any]]
    autoreset_mode: str | AutoresetMode
    max_concurrency: int | None
    num_workers: int | Literal["auto"] | None
    main_envs: int | Literal["auto"]
    groups: int
    frames: int
    wait: arguments.Wait
    infos: arguments.Infos
    preload: Sequence[str] | None
    check_actions: bool
    on_worker_loss: arguments.OnLoss
    step_timeout: float | None
    on_hang: arguments.OnHang
    recycle_after: int | None
    recycle_above: int | str | None
    record_to: str | os.PathLike[str] | None
    replay_from: str | os.PathLike[str] | None
    worker_init: Callable[..., Any] | None
    seed_globals: bool
    trace: str | os.PathLike[str] | None
    native: Literal["auto"] | bool
    isolate: Literal["check"] | bool
    spare_envs: int


class VectorOptions(HostedOptions, total=False):
    """The options of ``VectorEnv``, which ``make_vec`` and the samplers take too.

    Only type checkers use this. ``VectorEnv`` declares the options; a test compares the two.
    """

    max_restarts: int
    restart_window: float
