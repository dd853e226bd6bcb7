"""MuJoCo blocks: many simulations of a task in each group of a worker, in the place of envs.

``known.py`` recognises envs that can be simulated together, ``choice.py`` tries that beside real
ones, ``env_server.py`` makes the blocks in a worker, ``block.py`` steps and resets simulations.
"""
