"""Envs that come with pysampler, and ``BatchEnv``, the base class for envs that step together.

``envs.meta`` has envs for meta-RL, ``envs.mujoco`` tasks that MuJoCo simulates together.
"""

from typing import TYPE_CHECKING, Any

from pysampler.envs.batch import BatchEnv, Generators

if TYPE_CHECKING:
    from pysampler.envs.batch_checks import check_batch_env

__all__ = ["BatchEnv", "Generators", "check_batch_env"]


def __getattr__(name: str) -> Any:
    if name != "check_batch_env":
        raise AttributeError(f"module 'pysampler.envs' has no attribute {name!r}")
    from pysampler.envs.batch_checks import check_batch_env  # noqa: PLC0415 - vector envs need none

    return check_batch_env
