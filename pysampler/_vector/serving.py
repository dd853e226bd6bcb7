"""Makes the env server of a worker."""

from __future__ import annotations

import functools
import inspect
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pysampler._vector.env_server import EnvServer, prepare

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import gymnasium as gym

__all__ = ["WorkerInfo", "make_server", "worker_init_for"]


@dataclass(frozen=True)
class WorkerInfo:
    """The place of a worker, passed to a ``worker_init`` that takes an argument.

    Attributes:
        number: The number of the worker, from 0. A worker that replaces another has its number.
        count: The number of workers.
        envs: The indices in ``env_fns`` of the functions that this worker calls.
    """

    number: int
    count: int
    envs: range


def worker_init_for(init: Callable[..., Any] | None, worker: WorkerInfo) -> Any:
    """Return the function without arguments that a worker runs first, or None.

    Raises:
        TypeError: ``init`` is not a function of no argument or of a ``WorkerInfo``.
    """
    if init is None:
        return None
    if not callable(init):
        raise TypeError(f"cannot make vector env: worker_init {init!r}, expected a function")
    try:
        signature = inspect.signature(init)
    except (TypeError, ValueError):  # written in C
        return init
    named = signature.parameters.get("worker")
    by_name = named is not None and named.kind is not inspect.Parameter.POSITIONAL_ONLY
    given = () if by_name else (worker,), {"worker": worker} if by_name else {}
    for arguments, keywords in (given,) if by_name else (((), {}), given):
        try:
            signature.bind(*arguments, **keywords)
        except TypeError:
            continue
        return functools.partial(init, *arguments, **keywords)
    raise TypeError(
        f"cannot make vector env: worker_init takes {signature}, expected no argument or one for a "
        "WorkerInfo"
    )


def make_server(
    env_fns: Sequence[Callable[[], gym.Env[Any, Any]]],
    first: int,
    sizes: Sequence[int],
    specs: bytes,
    init: Callable[[], Any] | None,
    why_python: str | None,
    in_main: bool,  # noqa: FBT001 - passed as one of a tuple
    seed_globals: bool = False,  # noqa: FBT001, FBT002 - likewise
) -> EnvServer:
    """Prepare this process and make its envs.

    Args:
        env_fns: Functions that each make an env.
        first: The number of the first env.
        sizes: The sizes of the groups.
        specs: The env specs that the parent registered.
        init: The user's ``worker_init``.
        why_python: Why envs are stepped one by one; None: alike envs are stepped together.
        in_main: Whether this is the main process, where the program may hold on to envs.
        seed_globals: Whether each env has its own states of the global generators.
    """
    prepare(specs, init)
    if why_python is not None:
        return EnvServer(env_fns, first, sizes, why_python, seed_globals=seed_globals)
    from pysampler._vector.wrapped.server import BatchServer  # noqa: PLC0415 - only workers need it

    return BatchServer(env_fns, first, sizes, in_main=in_main)
