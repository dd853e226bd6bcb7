"""MuJoCo envs as tasks: each method computes many simulations at once, in NumPy."""

from pysampler.envs.mujoco.ant import Ant
from pysampler.envs.mujoco.env import TaskEnv, make_env
from pysampler.envs.mujoco.half_cheetah import HalfCheetah
from pysampler.envs.mujoco.hopper import Hopper, Walker2d
from pysampler.envs.mujoco.humanoid import Humanoid, HumanoidStandup
from pysampler.envs.mujoco.meta import AntDir, AntVel, HalfCheetahDir, HalfCheetahVel
from pysampler.envs.mujoco.pendulums import InvertedDoublePendulum, InvertedPendulum
from pysampler.envs.mujoco.pusher import Pusher
from pysampler.envs.mujoco.reacher import Reacher
from pysampler.envs.mujoco.swimmer import Swimmer
from pysampler.envs.mujoco.task import Simulations, Task, draw

__all__ = [
    "Ant",
    "AntDir",
    "AntVel",
    "HalfCheetah",
    "HalfCheetahDir",
    "HalfCheetahVel",
    "Hopper",
    "Humanoid",
    "HumanoidStandup",
    "InvertedDoublePendulum",
    "InvertedPendulum",
    "Pusher",
    "Reacher",
    "Simulations",
    "Swimmer",
    "Task",
    "TaskEnv",
    "Walker2d",
    "draw",
    "make_env",
]
