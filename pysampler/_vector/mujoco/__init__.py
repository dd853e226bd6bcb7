"""MuJoCo blocks: each group of a worker simulates many envs of a task together.

``known.py`` recognises envs that can be simulated together, ``choice.py`` compares them with real
envs, ``env_server.py`` makes the blocks in a worker, ``block.py`` steps and resets simulations.
"""
