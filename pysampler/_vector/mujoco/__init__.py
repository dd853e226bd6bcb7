"""MuJoCo blocks: each group of a worker simulates many envs of a task together.

``block.py`` steps and resets simulations, ``trial.py`` recognises envs that they can replace, and
``real.py`` loads their states into real envs.
"""
