"""Wrong options and functions are refused, in most cases before an env is made."""

import re

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import SyncVectorEnv
from gymnasium.wrappers import TimeLimit
from made_up import TellingEnv

import pysampler

WHOLE = "expected a whole number"
BYTES = "expected a number of bytes, or text with a un"

# Options, and the message for them.
OF_WRONG_VALUES = [
    ({"num_workers": -1}, "num_workers -1"),
    ({"num_workers": 1.5}, "num_workers 1.5"),
    ({"num_workers": "all"}, f"num_workers 'all', {WHOLE} or \"auto\""),
    ({"num_workers": "automatic"}, f"num_workers 'automatic', {WHOLE} or \"auto\""),
    ({"main_envs": 4}, "main_envs 4, expected fewer than the 4 envs"),
    ({"main_envs": -1}, f"main_envs -1, {WHOLE}"),
    ({"main_envs": "all"}, f"main_envs 'all', {WHOLE}"),
    ({"main_envs": "most"}, f'{WHOLE} or "auto"'),
    ({"main_envs": 1, "num_workers": 0}, "main_envs 1 with num_workers=0"),
    ({"main_envs": 1, "num_workers": "auto"}, "main_envs 1 with num_workers='auto'"),
    *[({"max_concurrency": one}, "max_concurrency") for one in (0, -1, 1.5, "1")],
    ({"groups": 0}, "groups 0"),
    ({"frames": 0}, "frames 0"),
    ({"wait": "sleep"}, "wait 'sleep'"),
    ({"infos": "some"}, "infos 'some'"),
    ({"context": "thread"}, "context 'thread'"),
    ({"autoreset_mode": "never"}, "autoreset_mode 'never', expected .*'SameStep'"),
    ({"preload": "numpy"}, "preload 'numpy'"),
    ({"preload": ["numpy", "nunpy"]}, "preload 'nunpy', expected the name of a module"),
    ({"preload": [""]}, "preload ''"),
    ({"preload": [np]}, "preload <module 'numpy'"),
    ({"on_worker_loss": "ignore"}, "on_worker_loss 'ignore'"),
    ({"on_hang": "kill"}, "on_hang 'kill'"),
    ({"on_hang": "restart"}, "on_hang 'restart' without a step_timeout"),
    ({"step_timeout": 0}, "step_timeout 0"),
    ({"step_timeout": float("nan")}, "step_timeout nan"),
    ({"step_timeout": float("inf")}, "step_timeout inf, expected seconds > 0, up to"),
    ({"step_timeout": "x"}, "step_timeout 'x'"),
    ({"max_restarts": -1}, f"max_restarts -1, {WHOLE} of at least 0"),
    ({"restart_window": 0}, "restart_window 0, expected seconds > 0"),
    ({"restart_window": "1"}, "restart_window '1', expected seconds > 0"),
    ({"recycle_after": 0}, f"recycle_after 0, {WHOLE} of at least 1"),
    *[
        ({"recycle_above": one}, re.escape(f"recycle_above {one!r}, {BYTES}"))
        for one in ("2 XB", "5", "2 iB", "0 GB", "1.2.3 GB", True)
    ],
    *[
        ({"spare_envs": one}, re.escape(f"spare_envs {one!r}, {WHOLE} of at least 0"))
        for one in (None, "", 0.0, [], -1)
    ],
    ({"spare_envs": 2, "num_workers": 0}, "num_workers 0 with spare_envs, whose resets need work"),
    ({"spare_envs": 2, "groups": 2}, "groups 2 with spare_envs, expected 1"),
    ({"spare_envs": 2, "main_envs": 1}, "main_envs 1 with spare_envs, expected 0"),
    ({"spare_envs": 20_000}, "spare_envs 20000, expected at most 1020 for 4 envs"),
    ({"spare_envs": 20_000, "num_workers": 2}, "spare_envs 20000, expected at most 2044"),
    *[
        ({"isolate": one}, f"make vector env: isolate {one!r}, expected 'check', True or False")
        for one in ("yes", 1, None)
    ],
]
OF_WRONG_TYPES = [
    *[
        ({name: "yes"}, f"cannot make vector env: {name} 'yes', expected True or False")
        for name in ("copy", "check_actions", "seed_globals")
    ],
    *[
        ({"shared_memory": one}, f"shared_memory {one}, expected .* num_workers=...")
        for one in (4, 1, None)
    ],
    ({"worker_init": 3}, "worker_init 3, expected a function"),
    ({"worker": print}, "expected None: workers run a loop .* wrap the envs"),
]


def never():
    pytest.fail("an env was made")


def named(rows):
    """Return test parameters that their options name."""
    return [pytest.param(*row, id=f"{row[0]}") for row in rows]


@pytest.mark.parametrize(("options", "message"), named(OF_WRONG_VALUES))
def test_wrong_values_of_options_are_refused_before_envs_are_made(options, message):
    with pytest.raises(ValueError, match=message):
        pysampler.VectorEnv([never] * 4, **options)


@pytest.mark.parametrize(("options", "message"), named(OF_WRONG_TYPES))
def test_wrong_types_of_options_are_refused_before_envs_are_made(options, message):
    with pytest.raises(TypeError, match=message):
        pysampler.VectorEnv([never] * 4, **options)


def several():
    return SyncVectorEnv([TellingEnv])


@pytest.mark.parametrize(
    ("env_fns", "options", "error", "message"),
    [
        ([], {}, ValueError, "no env_fns"),
        ([never, TellingEnv()], {}, TypeError, r"env_fns\[1\] is a TellingEnv, expected a func"),
        (TellingEnv, {}, TypeError, "env_fns .*expected a list of functions that each make"),
        (5, {}, TypeError, "env_fns .*expected a list of functions that each make"),
        (None, {}, TypeError, "env_fns .*expected a list of functions that each make"),
        ([several], {"recycle_after": 3}, ValueError, "env: recycle_after needs envs, not vec"),
        ([several], {"recycle_above": "1 GB"}, ValueError, "env: recycle_above needs envs, not v"),
        ([several] * 2, {"spare_envs": 1}, ValueError, "env: spare_envs needs envs, not vec"),
        (
            [lambda: SyncVectorEnv([TellingEnv] * 2)] * 2,
            {"spare_envs": 1},
            ValueError,
            "env: spare_envs needs envs, not vec",
        ),
    ],
)
def test_wrong_functions_are_refused(env_fns, options, error, message):
    with pytest.raises(error, match=message):
        pysampler.VectorEnv(env_fns, **{"num_workers": 1, **options})


NOT_WRAPPERS = TimeLimit, [TimeLimit, 100], "TimeLimit"
MODES = "'asyn', expected one of 'async', 'sync', 'vector_entry"


@pytest.mark.parametrize("env", ["CartPole-v1", TellingEnv], ids=["id", "class"])
@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        *[
            ({"num_envs": one}, ValueError, f"num_envs {one!r}, {WHOLE}")
            for one in (0, -1, 2.5, "2")
        ],
        ({"vectorization_mode": "asyn"}, ValueError, MODES),
        *[
            ({"wrappers": one}, TypeError, f"wrappers {one!r}, expected a list of functions or cl")
            for one in NOT_WRAPPERS
        ],
    ],
)
def test_wrong_arguments_of_make_vec_are_refused(env, options, error, message):
    with pytest.raises(error, match=re.escape(message)):
        pysampler.make_vec(env, **options)


@pytest.mark.parametrize(
    ("env_id", "options", "message"),
    [
        ("CartPole-v1", {"groups": 0}, "groups 0"),
        ("CartPole-v1", {"groups": "2"}, "groups '2'"),
        ("CartPole-v1", {"num_workers": "x"}, "num_workers 'x'"),
        ("CartPole-v1", {"main_envs": "auto"}, "main_envs 'auto'"),
        ("CartPole-v1", {"main_envs": 4}, "main_envs 4, expected fewer than the 4 envs"),
        ("Pendulum-v1", {}, "doesn't have a vector entry point"),
    ],
)
def test_wrong_options_of_a_vector_class_are_refused(env_id, options, message):
    with pytest.raises((ValueError, gym.error.Error), match=message):
        pysampler.make_vec(env_id, 4, "vector_entry_point", **options)


def test_make_vec_of_a_list_names_vector_env():
    with pytest.raises(gym.error.Error, match="VectorEnv takes a list of functions$"):
        pysampler.make_vec([TellingEnv])
