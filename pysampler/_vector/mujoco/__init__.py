"""MuJoCo blocks: each group of a worker simulates many envs of a task together.

``known.py`` recognises envs that can be simulated together, ``trial.py`` compares them with real
envs, ``block.py`` steps and resets simulations, and ``real.py`` loads their states into real envs.
"""
