"""check_isolation(context="threads"): what envs of threads do to each other and to the program."""

import functools
import os
import random
import signal
import threading
from pathlib import Path

import numpy as np
import pytest
from interfering import Draws, Numbered, Plain, ReadsGlobals, ResetByClose, check
from programs import completed

import pysampler
from pysampler._vector.isolation.check import check_envs
from pysampler._vector.isolation.shared import SharedState


def check_threads(env_fn):
    return check(env_fn, threads=[True])


def test_envs_that_share_nothing_may_step_in_threads():
    found = check_threads(Plain)
    assert found.isolated is True
    assert (found.threads, found.reasons, found.remedy) == (True, (), "")
    assert str(found) == (
        "envs of Plain may step in threads: 20 steps beside others gave the same results as alone"
    )


class DrawsWithoutEffect(Plain):
    def act(self):
        random.random()


class GoesWithoutEffect(Plain):
    def act(self):
        os.chdir("/usr")


class SetsWithoutEffect(Plain):
    def begin(self):
        os.environ["PLAIN_LEVEL"] = "1"


class Writes(Plain):
    def begin(self):
        Path("scene.txt").write_text(str(self.position))

    def observation(self):
        read = Path("scene.txt").read_text()  # nothing, if another is about to write
        return np.array([self.position, float(read or 0)])


class Handles(Plain):
    def __init__(self):
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)


@pytest.mark.parametrize(
    ("env", "reasons"),
    [
        (Writes, ["observations of", "look for files that envs share"]),
        (Draws, ["observations of", "the env uses global random generators: np.random"]),
        (DrawsWithoutEffect, ["the env uses global random generators: random"]),
        (GoesWithoutEffect, ["the env changes the working directory"]),
        (SetsWithoutEffect, ["the env changes environment variables: PLAIN_LEVEL"]),
        (ReadsGlobals, ["observations of step", "SETTINGS"]),
        (Numbered, ["observations of the reset", "numbers"]),
        (ResetByClose, ["observations of step", "ResetByClose.open"]),
        (Handles, ["raised ValueError being made: signal only works in main thread"]),
    ],
)
def test_envs_that_interfere_in_threads_are_found_with_the_reason(
    env, reasons, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PLAIN_LEVEL", raising=False)
    found = check_threads(env)
    assert found.isolated is False
    remedies = {Draws: "context='forkserver', seed_globals=True"}
    if env.__name__.endswith("WithoutEffect"):
        remedies[env] = "context='forkserver'"
    assert found.remedy == remedies.get(env, "context='forkserver', isolate=True")
    assert str(found).startswith(f"envs of {env.__name__} must not step in threads (20 steps comp")
    assert "seed_globals" not in str(found)  # which threads refuse
    for reason, part in zip(found.reasons, reasons, strict=True):
        assert part in reason
    if not env.__name__.endswith("WithoutEffect"):
        assert found.reasons[0].startswith("beside others in threads, ")


def by_value(name):
    """Return a class as workers get it from a script: its methods have variables of their own."""
    variables = {"__name__": __name__, "COUNT": {"n": 0}, "Plain": Plain, "N": 0}
    text = f"""
class {name}(Plain):
    def act(self):
        global N
        N += 1
        COUNT["n"] += 1
"""
    exec(text, variables)
    return variables[name]


def test_variables_of_functions_pickled_by_value_are_looked_at():
    found = check_threads(by_value("Counts"))
    assert (found.isolated, found.remedy) == (None, "context='forkserver'")
    assert found.reasons[0].endswith(f": {__name__}.COUNT, {__name__}.N")


def test_functions_that_refer_to_themselves_are_checked():
    def make(depth=1):
        return make(depth - 1) if depth else Plain()

    assert changed_objects([make] * 2) == []
    assert check(make).isolated is True


class DrawsFrom(Plain):
    def __init__(self, generator):
        self.generator = generator

    def act(self):
        self.generator.random()


class MakesDrawing:
    def __init__(self, generator):
        self.generator = generator

    def __call__(self):
        return DrawsFrom(self.generator)


def draws(generator, *, wrapped=False):
    function = lambda: DrawsFrom(generator)  # noqa: E731
    return (lambda: function()) if wrapped else function


def draws_by_default(given):
    return lambda generator=given: DrawsFrom(generator)


def changed_objects(env_fns):
    """Return the objects of functions that envs change, by a run in this process."""
    shared = SharedState(env_fns)
    for function in env_fns:
        env = function()
        shared.look(env)
        env.reset(seed=1)
        env.step(1)
    shared.look()
    return [text for kind, text in shared.causes() if kind == "captured"]


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (draws, "generator"),
        (functools.partial(draws, wrapped=True), "generator"),
        (draws_by_default, "generator"),
        (lambda given: functools.partial(DrawsFrom, given), "argument 1"),
        (lambda given: functools.partial(DrawsFrom, generator=given), "generator"),
        (lambda given: MakesDrawing(given).__call__, "MakesDrawing"),
        (MakesDrawing, "MakesDrawing"),
    ],
)
def test_changes_of_an_object_that_functions_capture_are_found(make, name):
    given = np.random.default_rng(1)
    (text,) = changed_objects([make(given)] * 2)
    assert f"capture, one for all envs: {name}. Create" in text
    if name == "generator":
        assert len(changed_objects([make(given), make(given)])) == 1
    assert changed_objects([make(np.random.default_rng(i)) for i in range(2)]) == []


@pytest.mark.slow
def test_state_that_threads_share_makes_equal_results_doubtful():
    class Caches(Plain):
        cache: dict = {}  # noqa: RUF012

        def begin(self):
            self.cache[len(self.cache)] = 1

    shared, threaded = check_envs([Caches], threads=[False, True], steps=20, context="fork")
    assert (shared.isolated, threaded.isolated) == (True, None)
    assert str(threaded).startswith("the check cannot tell whether envs of Caches may step in thr")
    assert "attributes of modules or classes" in threaded.reasons[0]
    assert "Caches.cache" in threaded.reasons[0]


@pytest.mark.slow
def test_steps_of_threads_overlap():
    class Meets(Plain):
        """The first env in a step waits until another is in one."""

        first, met = threading.Lock(), threading.Event()

        def act(self):
            if threading.current_thread() is threading.main_thread():  # it is alone
                return
            if self.first.acquire(blocking=False):
                self.met.wait()
            self.met.set()

    assert check_threads(Meets).isolated is True


@pytest.mark.slow
def test_an_env_may_break_barriers_of_its_own():
    class Breaks(Plain):
        def act(self):
            if threading.current_thread() is not threading.main_thread():
                raise threading.BrokenBarrierError("mine")

    found = check_threads(Breaks)
    assert "an env raised BrokenBarrierError being stepped: mine" in found.reasons[0]


@pytest.mark.slow
def test_an_env_that_draws_from_global_generators_is_told_its_remedy():
    assert check(Draws).remedy == "seed_globals=True"
    assert check(ReadsGlobals).remedy == "isolate=True"
    assert check(Plain).remedy == ""


def test_options_that_threads_refuse_are_refused():
    with pytest.raises(
        ValueError, match="cannot check isolation: seed_globals True with context 'threads', exp"
    ):
        pysampler.check_isolation(Plain, seed_globals=True, context="threads")
    with pytest.raises(ValueError, match="cannot check isolation: context 'thread', expected one"):
        pysampler.check_isolation(Plain, context="thread")


def test_an_env_fn_that_cannot_be_pickled_is_told_to_move_to_a_module():
    lock = threading.Lock()

    def env_fn():
        with lock:
            return Plain()

    message = (
        "cannot check isolation: env_fn cannot be pickled for the processes of the check: "
        "TypeError: cannot pickle '_thread.lock' object; define env_fn and its env in a module"
    )
    with pytest.raises(TypeError, match=message) as raised:
        pysampler.check_isolation(env_fn, context="threads")
    assert "fork" not in str(raised.value)  # which checks processes
    with pytest.raises(TypeError, match='cannot send env_fns to workers.*context="fork"'):
        pysampler.check_isolation(env_fn)


LOCKED = """
import threading
import gymnasium as gym
lock = threading.Lock()

class Locked(gym.Wrapper):
    def step(self, action):
        with lock:
            return self.env.step(action)

def make():
    return Locked(gym.make("CartPole-v1"))
"""
SCRIPT = """
import locked
import pysampler
from gymnasium.envs.classic_control import CartPoleEnv

COUNT = {"n": 0}

class Counts(CartPoleEnv):
    def step(self, action):
        COUNT["n"] += 1
        return super().step(action)

if __name__ == "__main__":
    print(pysampler.check_isolation(locked.make, 20, context="threads"))
    print(pysampler.check_isolation(Counts, 20, context="threads"))
"""


@pytest.mark.slow
def test_envs_of_scripts_and_of_their_modules_are_checked(tmp_path):
    (tmp_path / "locked.py").write_text(LOCKED)
    (tmp_path / "script.py").write_text(SCRIPT)
    locked, counts, reason = completed(str(tmp_path / "script.py")).stdout.splitlines()
    assert locked.startswith("envs of CartPole-v1 may step in threads")
    assert counts.startswith("the check cannot tell whether envs of Counts may step in threads")
    assert reason == "- the env changes attributes of modules or classes: __main__.COUNT"


@pytest.mark.slow
def test_the_check_of_threads_leaves_this_program_as_it_is():
    before = Path.cwd(), random.getstate(), threading.active_count()
    assert pysampler.check_isolation(GoesWithoutEffect, 20, context="threads").isolated is False
    assert pysampler.check_isolation(Plain, 20, context="fork").threads is False
    assert before == (Path.cwd(), random.getstate(), threading.active_count())
