"""Makes the env server of a worker."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pysampler._vector.env_server import EnvServer, prepare

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import gymnasium as gym

__all__ = ["make_server"]


def make_server(
    env_fns: Sequence[Callable[[], gym.Env[Any, Any]]],
    first: int,
    sizes: Sequence[int],
    specs: bytes,
    init: Callable[[], Any] | None,
    why_python: str | None,
    inline: bool,  # noqa: FBT001 - passed as one of a tuple
) -> EnvServer:
    """Prepare this process and make its envs.

    Args:
        env_fns: Functions that each make an env.
        first: The number of the first env.
        sizes: The sizes of the groups.
        specs: The env specs that the parent registered.
        init: The user's ``worker_init``.
        why_python: Why envs are stepped one by one; None: alike envs are stepped together.
        inline: Whether this is the user's process.
    """
    prepare(specs, init)
    if why_python is not None:
        return EnvServer(env_fns, first, sizes, why_python)
    from pysampler._vector.wrapped.server import BatchServer  # noqa: PLC0415 - only workers need it

    return BatchServer(env_fns, first, sizes, inline=inline)
