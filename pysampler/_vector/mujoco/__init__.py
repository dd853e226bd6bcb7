"""MuJoCo blocks: many simulations of a task in each group of a worker, in the place of envs.

``choice.py`` decides whether envs can be such and tries it beside one real env, ``host.py`` makes
the blocks in a worker, ``block.py`` steps and resets simulations.
"""
