"""Envs that come with pysampler: ``envs.meta`` for meta-RL, ``envs.mujoco`` as batched tasks."""
