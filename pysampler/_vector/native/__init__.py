"""Native envs: blocks that replace gymnasium's own envs and step many at once, bit for bit.

``known.py`` recognises such envs, ``trial.py`` compares blocks with real envs, ``real.py`` loads
states into real envs, and ``twins.py`` handles classic control. MuJoCo is in ``_vector/mujoco``.
"""
