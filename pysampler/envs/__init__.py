"""Envs that come with pysampler, and ``BatchEnv``, the base class for envs that step together.

``envs.meta`` has envs for meta-RL, ``envs.mujoco`` tasks that MuJoCo simulates together.
"""

from pysampler.envs.batch import BatchEnv, Generators
from pysampler.envs.batch_checks import check_batch_env

__all__ = ["BatchEnv", "Generators", "check_batch_env"]
