"""Envs of many tasks, for meta-RL. Importing this module registers them with gymnasium.

========================= ==========================================================================
``HalfCheetahDir-v5``     run forwards or backwards: ``{"direction": 1.0 or -1.0}``
``HalfCheetahVel-v5``     run at a velocity: ``{"velocity": 0 to 2}``
``AntDir-v5``             walk in a direction of the plane: ``{"direction": angle}``
``AntVel-v5``             walk at a velocity: ``{"velocity": 0 to 3}``
``Navigation2D-v0``       go to a goal in the plane: ``{"goal": array of 2}``
``Bandit-v0``             arms that pay with different probabilities: ``{"probabilities": array}``
========================= ==========================================================================

``env.unwrapped.sample_tasks(n)`` draws tasks. ``env.unwrapped.reset_task(task)`` sets one, and so
does ``env.reset(options={"task": task})``, which a vector env sends with its commands. The MuJoCo
envs are gymnasium's v5 classes with another reward; they need ``gymnasium[mujoco]``.

>>> import gymnasium as gym
>>> env = gym.make("pysampler.envs.meta:Navigation2D-v0")
>>> [task] = env.unwrapped.sample_tasks(1)
>>> observation, info = env.reset(seed=1, options={"task": task})
>>> observation
array([0., 0.], dtype=float32)
"""

import gymnasium as gym

from pysampler._common.tasks import Task, Tasks, TaskWrapper

__all__ = ["Task", "TaskWrapper", "Tasks"]

for name, entry_point, steps in (
    ("HalfCheetahDir-v5", "mujoco:HalfCheetahDir", 1000),
    ("HalfCheetahVel-v5", "mujoco:HalfCheetahVel", 1000),
    ("AntDir-v5", "mujoco:AntDir", 1000),
    ("AntVel-v5", "mujoco:AntVel", 1000),
    ("Navigation2D-v0", "plain:Navigation2D", 100),
    ("Bandit-v0", "plain:Bandit", 100),
):
    if name not in gym.registry:
        gym.register(name, f"pysampler.envs.meta.{entry_point}", max_episode_steps=steps)
