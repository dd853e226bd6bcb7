"""Base classes and functions of gymnasium's v5 MuJoCo envs as tasks.

The results equal gymnasium's bit for bit: the functions follow the operations and the dtypes of its
scalar code.
"""

from __future__ import annotations

import copy
import inspect
from typing import TYPE_CHECKING, Any

import numpy as np

from pysampler.envs.mujoco.task import Task

if TYPE_CHECKING:
    from typing import Self

    import numpy.typing as npt

    from pysampler.envs.batch import Generators
    from pysampler.envs.mujoco.task import Simulations

    Array = npt.NDArray[Any]

__all__ = ["GymnasiumTask", "NoisyTask", "between", "dot", "flat", "norm", "place", "squares"]

# NumPy 1 computes a Python number times one float32 in float64, but not times an array of float32.
_NUMPY_1 = np.lib.NumpyVersion(np.__version__) < "2.0.0"


class GymnasiumTask(Task):
    """Base class: takes its arguments from an env, and draws initial states."""

    reset_noise_scale: float

    @classmethod
    def of(cls, env: Any) -> Self:
        """Return the task of gymnasium's env, which keeps its arguments as attributes."""
        task = cls(env.model, **cls.arguments_of(env))
        task.init_qpos = env.init_qpos.copy()
        task.init_qvel = env.init_qvel.copy()
        return task

    @classmethod
    def arguments_of(cls, env: Any) -> dict[str, Any]:
        """Return copies of the arguments for the task of an env."""
        names = [name for name in inspect.signature(cls).parameters if name != "model"]
        return {
            name: copy.deepcopy(getattr(env, name if name == "frame_skip" else f"_{name}"))
            for name in names
        }

    def write_to(self, env: Any, i: int) -> None:
        """Copy the state of simulation ``i``'s episode to attributes of gymnasium's env."""

    def read_from(self, env: Any, i: int) -> None:
        """Copy the state of the episode from gymnasium's env to simulation ``i``."""

    def reset(self, rngs: Generators, ids: Array) -> tuple[Array, Array]:  # noqa: ARG002
        """Begin near the initial state, with uniform noise up to ``reset_noise_scale``."""
        nq = self.model.nq
        drawn = self.uniform(rngs, nq + self.model.nv)  # equal to one draw after the other
        return self.init_qpos + drawn[:, :nq], self.init_qvel + drawn[:, nq:]

    def uniform(self, rngs: Generators, size: int) -> Array:
        """Draw uniform noise up to ``reset_noise_scale``, a row for each generator."""
        scale = self.reset_noise_scale
        return rngs.uniform(-scale, scale, size)

    def normal(self, rngs: Generators, size: int) -> Array:
        """Draw normal noise with standard deviation ``reset_noise_scale``, a row for each."""
        return self.reset_noise_scale * rngs.standard_normal(size)


class NoisyTask(GymnasiumTask):
    """Base class of tasks whose initial velocities are drawn from a normal distribution."""

    def reset(self, rngs: Generators, ids: Array) -> tuple[Array, Array]:  # noqa: ARG002
        """Begin near the initial state."""
        positions = self.init_qpos + self.uniform(rngs, self.model.nq)
        return positions, self.init_qvel + self.normal(rngs, self.model.nv)


def place(d: Simulations) -> dict[str, Array]:
    """Return x, y, and the distance from the origin."""
    x_and_y = d.qpos[:, :2].copy()
    return {
        "x_position": x_and_y[:, 0],
        "y_position": x_and_y[:, 1],
        "distance_from_origin": norm(x_and_y),
    }


def between(values: Array, limits: tuple[float, float]) -> Array:
    """Return which values lie between two limits; NaN does not."""
    low, high = limits
    return (low < values) & (values < high)


def squares(action: Array) -> Array:
    """Return the sum of the squares of each row, in the dtype of gymnasium's costs."""
    total: Array = np.square(action).sum(axis=1)
    if _NUMPY_1 and total.dtype in (np.float16, np.float32):
        return total.astype(np.float64)
    return total


def dot(a: Array, b: Array) -> Array:
    """Return the dot product of each row of ``a`` and ``b``, by BLAS as for two vectors."""
    return np.matmul(a[:, None, :], b[:, :, None])[:, 0, 0]


def norm(rows: Array) -> Array:
    """Return the norm of each row, computed like ``np.linalg.norm`` of one vector."""
    return np.sqrt(dot(rows, rows))


def flat(field: Array) -> Array:
    """Return a field of all bodies, the first of which is the world, as one row per simulation."""
    return field.reshape(len(field), field.shape[1] * field.shape[2])
