"""Helpers for tests of vector envs."""

from gymnasium.vector import AutoresetMode
from made_up import same

import pysampler


def begun(envs, seed=None, **options):
    """Reset a vector env and return it; close it if that fails.

    Args:
        envs: The vector env, or functions for a VectorEnv.
        seed: The seed of the reset.
        options: Options of the VectorEnv.
    """
    if isinstance(envs, list):
        envs = pysampler.VectorEnv(envs, **options)
    try:
        envs.reset(seed=seed)
    except BaseException:
        envs.close()
        raise
    return envs


def alike(ours, theirs, steps=10, actions=None, **reset):
    """Reset and step two vector envs; assert that all results are equal.

    Args:
        ours: One vector env.
        theirs: The other, which draws the actions by default.
        steps: The number of steps.
        actions: The actions of each step.
        reset: Arguments of the reset.
    """
    same(ours.reset(**reset), theirs.reset(**reset), "reset")
    for step in range(steps):
        given = theirs.action_space.sample() if actions is None else actions
        same(ours.step(given), theirs.step(given), f"step {step}")


def info_of(infos, at, without=()):
    """Return one env's info out of those of a batch, except some keys."""
    found = {}
    for key, values in infos.items():
        if not key.startswith("_") and key not in without and infos[f"_{key}"][at]:
            inside = isinstance(values, dict)
            found[key] = info_of(values, at, without) if inside else values[at]
    return found


def reset_ended(envs, results):
    """Reset the envs whose episodes have ended, in the mode DISABLED."""
    ended = results[2] | results[3]
    if envs.autoreset_mode is AutoresetMode.DISABLED and ended.any():
        envs.reset(options={"reset_mask": ended})


def even_for_few():
    """Let workers run layers around envs in Python even where that gains no time."""
    from pysampler._vector.wrapped import server

    server._COSTS = -1e9
