"""Modules that the fork server imports for the first vector env: they are known from its ids."""

import functools
import os
import sys

import gymnasium as gym
import pytest
from fork_server_in_tests import run

import pysampler
from pysampler._vector.preloads import modules_of_envs, modules_of_servers
from pysampler._workers import setup
from pysampler._workers.processes import Processes

CARTPOLE = "gymnasium.envs.classic_control.cartpole"
CHEETAH = "gymnasium.envs.mujoco.half_cheetah_v5"
ENV_ID = "CartPole-v1"


def make_by_id(env_id=ENV_ID):
    return lambda: gym.make(env_id)


def make_wrapped(*, env_id="CartPole-v1"):
    return gym.wrappers.NormalizeObservation(gym.make(env_id))


def refer_to_nothing():
    return None


@pytest.mark.parametrize(
    "env_fn",
    [
        lambda: gym.make("CartPole-v1"),
        lambda: gym.make(ENV_ID),
        make_by_id(),
        make_wrapped,
        lambda: make_wrapped(),
        lambda: next(gym.make(one) for one in [ENV_ID]),
        functools.partial(gym.make, "CartPole-v1"),
        functools.partial(gym.make, id=gym.spec("CartPole-v1")),
        functools.partial(functools.partial(make_wrapped), env_id="CartPole-v1"),
    ],
)
def test_ids_in_functions_name_the_modules_of_envs(env_fn):
    assert CARTPOLE in modules_of_envs([refer_to_nothing, env_fn], in_python=False)


def test_makers_of_make_vec_name_the_modules_of_envs():
    with pysampler.make_vec("CartPole-v1", num_envs=2, num_workers=0) as envs:
        assert CARTPOLE in modules_of_envs(envs.env_fns, in_python=False)


def test_modules_of_native_blocks_follow_those_of_known_envs():
    assert modules_of_envs([lambda: gym.make(ENV_ID)], in_python=True) == [CARTPOLE]
    twins = modules_of_envs([lambda: gym.make(ENV_ID)], in_python=False)
    assert twins == [CARTPOLE, "pysampler._vector.native.twins", "pysampler.envs.classic"]
    tasks = modules_of_envs([lambda: gym.make("HalfCheetah-v5")], in_python=False)
    assert tasks == [CHEETAH, "pysampler._vector.mujoco.trial", "pysampler.envs.mujoco"]


def test_modules_that_open_a_device_are_left_to_the_workers(monkeypatch):
    monkeypatch.setenv("MUJOCO_GL", "egl")
    assert modules_of_envs([lambda: gym.make("HalfCheetah-v5")], in_python=False) == []


def set_variable():
    os.environ["MUJOCO_GL"] = "egl"


def make_after_setting_a_variable():
    set_variable()
    return gym.make("CartPole-v1")


def make_with_another_variable():
    env = gym.make("CartPole-v1")
    os.environ.setdefault("MUJOCO_EGL_DEVICE_ID", "1")
    return env


@pytest.mark.parametrize("env_fn", [make_after_setting_a_variable, make_with_another_variable])
def test_modules_wait_for_variables_that_functions_set(env_fn):
    assert modules_of_envs([make_wrapped, env_fn], in_python=False) == []


class Lazy:
    """An object that must not be asked for anything outside of workers."""

    @property
    def __class__(self):
        raise RuntimeError("asked for its class")


LAZY = Lazy()


def make_with_a_lazy_object():
    env = gym.make("CartPole-v1")
    env.lazy = LAZY
    return env


def test_lazy_objects_that_functions_mention_stay_unmade():
    assert CARTPOLE in modules_of_envs([make_with_a_lazy_object], in_python=False)


class Unhashable(str):
    __hash__ = None


class Unready:
    @property
    def entry_point(self):
        raise RuntimeError("not ready")


@pytest.mark.parametrize(
    "env_fn", [functools.partial(gym.make, Unhashable("CartPole-v1")), Unready()]
)
def test_objects_of_users_raise_nothing_before_the_workers_use_them(env_fn):
    assert modules_of_envs([env_fn], in_python=False) == []


def test_modules_of_users_are_left_to_the_workers(monkeypatch):
    for env_id, entry_point in (("Own-v0", "own.envs:Env"), ("Own-v1", make_wrapped)):
        spec = gym.envs.registration.EnvSpec(env_id, entry_point)
        monkeypatch.setitem(gym.registry, env_id, spec)
        assert modules_of_envs([lambda env_id=env_id: gym.make(env_id)], in_python=False) == []


def test_functions_that_refer_to_themselves_are_no_endless_search():
    def make():
        return make()

    assert modules_of_envs([make] * 3, in_python=False) == []


def test_env_servers_have_a_module_for_each_kind():
    of_python = modules_of_servers(in_python=True)
    batched = "pysampler._vector.wrapped.server"
    assert modules_of_servers(in_python=False) == [*of_python, batched]
    assert batched not in of_python


PROGRAM = """
    import os, sys
    import gymnasium as gym
    import pysampler

    def modules(env=None):
        return {{name for name in sys.modules if name.startswith(("pysampler.", "gymnasium."))}}

    def make():
        at_first = modules()
        env = gym.make({env!r})
        env.at_first = at_first
        return env

    {before}
    envs = pysampler.VectorEnv([make] * 32, num_workers=1, {options})
    envs.reset()
    envs.step(envs.action_space.sample())
    print(sorted(envs.apply(modules, envs=[0])[0] - envs.get_attr("at_first")[0]))
    envs.close()
"""


def left_to_workers(env="CartPole-v1", before="", options=""):
    """Return gymnasium's and pysampler's modules that the worker of a first vector env imports."""
    program = PROGRAM.format(env=env, before=before, options=options)
    return run(program).strip()


@pytest.mark.slow
@pytest.mark.parametrize("env", ["CartPole-v1", "HalfCheetah-v5"])
def test_first_workers_find_all_modules_imported(env):
    pytest.importorskip("mujoco")
    assert left_to_workers(env) == "[]"


POLICY = """
    import sys
    import gymnasium as gym
    import pysampler

    def modules():
        return {name for name in sys.modules if name.startswith("pysampler.")}

    def make():
        sys.before = modules()
        return gym.make("CartPole-v1")

    def policy(observations):
        if hasattr(sys, "before"):  # in the worker
            trial = "pysampler._vector.native."  # its modules are imported if there is one
            print(sorted(name for name in modules() - sys.before if not name.startswith(trial)))
        return [0] * len(observations)

    with pysampler.Rollouts([make], policy, 1, num_workers=1, policy_in="workers") as rollouts:
        next(rollouts)
"""


@pytest.mark.slow
def test_workers_find_what_policies_need_imported():
    assert run(POLICY).splitlines()[-1] == "[]"


@pytest.mark.slow
def test_workers_import_nothing_of_what_makes_vector_envs():
    def modules(env):
        return {name for name in sys.modules if name.startswith("pysampler.")}

    with pysampler.make_vec("CartPole-v1", 2, num_workers=1) as envs:
        [loaded] = envs.apply(modules, envs=[0])
    assert "pysampler._vector.vector_env" not in loaded


OLDER_SERVER = """
    from pysampler._workers import fork_server
    fork_server.current()
    {change}
"""
VARIABLE = OLDER_SERVER.format(change='os.environ["SETTING"] = "1"')
PATH = OLDER_SERVER.format(change='sys.path.append("/elsewhere")')
DIRECTORY = OLDER_SERVER.format(change='os.chdir("/")')  # which "" in the path means


@pytest.mark.slow
@pytest.mark.parametrize(
    ("before", "options"),
    [
        ("", "preload=[]"),
        ("", "worker_init=lambda: None"),
        (VARIABLE, ""),
        (PATH, ""),
        (DIRECTORY, ""),
    ],
    ids=["preload", "worker_init", "variable", "path", "directory"],
)
def test_modules_of_envs_wait_for_what_they_may_read(before, options):
    assert CARTPOLE in left_to_workers(before=before, options=options)


@pytest.mark.slow
def test_vector_env_imports_little_besides_gymnasium():
    program = """
        import sys
        import gymnasium
        before = set(sys.modules)
        import pysampler
        pysampler.VectorEnv
        new = set(sys.modules) - before
        new -= {"importlib._abc", "importlib.util"}  # needed to find an editable install
        new = {name.partition(".")[0] for name in new}
        print(*sorted(name for name in new if not name.startswith("_")))
    """
    out = run(program).split()
    known = {"cloudpickle", "logging", "pysampler", "resource", "string", "termios", "uuid"}
    assert set(out) <= known


@pytest.mark.slow
def test_messages_to_more_workers_take_no_more_segments(monkeypatch):
    made = []
    segment = setup.Segment
    monkeypatch.setattr(setup, "Segment", lambda *sizes: made.append(sizes) or segment(*sizes))
    for workers in (1, 3):
        pysampler.make_vec("CartPole-v1", num_envs=3, num_workers=workers).close()
        assert len(made) == 1
        made.clear()


@pytest.mark.slow
def test_workers_make_envs_while_others_are_started(monkeypatch):
    calls = []
    for name in ("_start", "_set_up"):
        method = getattr(Processes, name)

        def noted(self, index, *arguments, method=method, name=name):
            calls.append((name, index))
            return method(self, index, *arguments)

        monkeypatch.setattr(Processes, name, noted)
    pysampler.make_vec("CartPole-v1", num_envs=2, num_workers=2).close()
    assert calls == [("_start", 0), ("_set_up", 0), ("_start", 1), ("_set_up", 1)]
