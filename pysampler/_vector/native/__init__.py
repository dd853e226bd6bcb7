"""Native envs: blocks that stand for gymnasium's own envs, step many at once, and equal them.

``known.py`` recognises such envs, ``trial.py`` compares blocks with real envs, ``real.py`` loads
states into real envs, and ``twins.py`` has the envs of classic control. ``_vector/mujoco`` has
those of MuJoCo.
"""
