"""gymnasium's MuJoCo envs, simulated together (native) and one by one."""

import functools
import importlib
import inspect

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from made_up import identical

import pysampler
import pysampler.envs.meta  # registers envs
from pysampler._vector.mujoco.stepper import TaskStepper

MODES = NEXT_STEP, SAME_STEP, DISABLED = list(AutoresetMode)
IDS = [
    f"{name}-v5"
    for name in (
        *("HalfCheetah", "Hopper", "Walker2d", "Swimmer", "Ant", "Humanoid", "HumanoidStandup"),
        *("InvertedPendulum", "InvertedDoublePendulum", "Reacher", "Pusher"),
    )
]
META_IDS = ["HalfCheetahDir-v5", "HalfCheetahVel-v5", "AntDir-v5", "AntVel-v5"]
CHEETAH = "HalfCheetah-v5"
# The quick set: an env that never terminates, one that soon does, and one with tasks.
QUICK = CHEETAH, "InvertedPendulum-v5", "HalfCheetahVel-v5"


def each(env_ids):
    """Return parameters for env ids; all but a few are marked slow."""
    return [pytest.param(one, marks=[] if one in QUICK else [pytest.mark.slow]) for one in env_ids]


def together(env_id, count=3, arguments=None, wrappers=None, **vector_kwargs):
    """Return envs that are simulated together, inline by default."""
    vector_kwargs = {"num_workers": 0, "native": True, **vector_kwargs}
    return pysampler.make_vec(
        env_id, count, vector_kwargs=vector_kwargs, wrappers=wrappers, **(arguments or {})
    )


def ordinary(env_id, count=3, arguments=None, **vector_kwargs):
    """Return the same envs, each simulated on its own."""
    return together(env_id, count, arguments, native=False, **vector_kwargs)


def one_by_one(env_id, count=3, arguments=None, mode=NEXT_STEP):
    """Return the same envs in a SyncVectorEnv."""
    env_fns = [functools.partial(gym.make, env_id, **(arguments or {}))] * count
    return SyncVectorEnv(env_fns, autoreset_mode=mode)


def drawn_actions(space, seed, steps, beyond=1.0):
    """Yield actions of alternating dtypes; each fifth is out of range by a factor ``beyond``."""
    rng = np.random.default_rng(seed)
    for step in range(steps):
        factor = beyond if step % 5 == 0 else 1.0
        actions = factor * rng.uniform(space.low, space.high)
        yield actions.astype((np.float32, np.float64)[step % 2])


def compare(ours, theirs, actions):
    """Step both with the same actions, and assert that all results are equal.

    With autoreset disabled, it resets the ended episodes of both.

    Returns:
        The number of ended episodes.
    """
    ended = 0
    for step, row in enumerate(actions):
        a, b = ours.step(row), theirs.step(row)
        identical(a, b, f"step {step}")
        over = b[2] | b[3]
        ended += int(over.sum())
        if theirs.metadata["autoreset_mode"] is DISABLED and over.any():
            resets = [one.reset(options={"reset_mask": over}) for one in (ours, theirs)]
            identical(*resets, f"reset after step {step}")
    return ended


def walk(envs, actions):
    """Return the results of steps and, with autoreset disabled, of resets after ends."""
    results = []
    for row in actions:
        results.append(envs.step(row))
        over = results[-1][2] | results[-1][3]
        if envs.autoreset_mode is DISABLED and over.any():
            results.append(envs.reset(options={"reset_mask": over}))
    return results


def made(env_id=CHEETAH, native="auto", wrappers=None, arguments=None, **vector_kwargs):
    """Return two inline envs, native or not as ``native`` chooses."""
    return together(env_id, 2, arguments, wrappers, native=native, **vector_kwargs)


def is_native(envs):
    """Return whether envs are native; assert that repr, stats, table and env server agree."""
    native = "native" in repr(envs)
    assert envs.stats().native == native
    assert ("in Python" in envs.describe()) != native
    [block] = envs._pool._inline._server.blocks
    assert isinstance(getattr(block, "stepper", None), TaskStepper) == native
    envs.close()
    return native


def assert_equal(env_id, arguments, mode=SAME_STEP, steps=30, **vector_kwargs):
    """Assert that native envs with these arguments match SyncVectorEnv, in short episodes."""
    arguments = {"max_episode_steps": 13, **arguments}
    ours = together(env_id, 3, arguments, autoreset_mode=mode, groups=2, **vector_kwargs)
    theirs = one_by_one(env_id, 3, arguments, mode)
    assert ours.observation_space == theirs.observation_space
    assert ours.action_space == theirs.action_space
    assert ours.metadata == theirs.metadata
    assert ours.render_mode == theirs.render_mode
    identical(ours.reset(seed=5), theirs.reset(seed=5), "reset")
    compare(ours, theirs, drawn_actions(theirs.action_space, 5, steps, beyond=2))
    ours.close()
    theirs.close()


def arguments_of(env_id):
    """Return the parameters of an env's class and their defaults."""
    module, _, name = gym.spec(env_id).entry_point.partition(":")
    parameters = inspect.signature(getattr(importlib.import_module(module), name)).parameters
    return {name: one.default for name, one in parameters.items() if name != "kwargs"}
