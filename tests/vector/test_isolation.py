"""check_isolation: envs that interfere within a process are found, with the reason."""

import functools
import itertools
import os
import random
import signal
import sys
import time
import types
from collections import deque
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import SyncVectorEnv
from interfering import SETTINGS, Draws, Numbered, Plain, ReadsGlobals, ResetByClose, check

import pysampler
from pysampler._vector.isolation import check as check_module
from pysampler._vector.isolation.check import check_envs
from pysampler.envs.classic import CartPole
from pysampler.errors import EnvError, EnvTimeoutError, WorkerLostError


def test_envs_that_share_nothing_may_share_a_process():
    found = check(Plain)
    assert found.isolated is True
    assert (found.steps, found.reasons, found.ignored) == (20, (), ())
    assert str(found) == (
        "envs of Plain may share a process: 20 steps beside others gave the same results as alone"
    )


class DrawsInReset(Plain):
    def begin(self):
        self.position += random.random()


class Counts(Plain):
    count = 0

    def begin(self):
        Counts.count += 1

    def observation(self):
        return np.array([self.position, Counts.count])


NESTED = {"a": {"b": {"c": {"d": [(1, float("nan")), np.zeros(3)]}}}}  # nothing changes it


class Proxy:
    """As of a web framework: whatever it is asked for, it asks an object that is not there."""

    def __getattribute__(self, name):
        raise RuntimeError("no context")


proxy = Proxy()
generator = np.random.default_rng(1)


class DrawsFromModule(Plain):
    def observation(self):
        return np.array([self.position, generator.random()])


class ChangesDirectory(Plain):
    def __init__(self):
        super().__init__()
        self.there = Path.cwd().name == "usr"
        os.chdir("/usr")

    def observation(self):
        return np.array([self.position, self.there])


class ReadsEnvironment(Plain):
    def observation(self):
        return np.array([self.position, float(os.environ.get("LEVEL", 0))])

    def act(self):
        os.environ["LEVEL"] = str(float(os.environ.get("LEVEL", 0)) + 1)


class WritesFile(Plain):
    path = "scene.txt"

    def begin(self):
        Path(self.path).write_text(str(self.position))

    def observation(self):
        return np.array([self.position, float(Path(self.path).read_text())])


class Refuses(Plain):
    made = 0

    def __init__(self):
        super().__init__()
        Refuses.made += 1
        if Refuses.made > 1:
            raise RuntimeError("one emulator per process")


class RefusesInReset(Plain):
    alive = 0

    def __init__(self):
        super().__init__()
        RefusesInReset.alive += 1

    def begin(self):
        if RefusesInReset.alive > 1:
            raise RuntimeError("another one is open")


class Paints(Plain):
    render_mode = "rgb_array"
    canvas = np.zeros((64, 64, 3), np.uint8)

    def act(self):
        self.canvas[:] = int(self.position)

    def render(self):
        return self.canvas.copy()


@pytest.mark.parametrize(
    ("env", "what", "cause"),
    [
        (Draws, "observations of the reset differ", "global random generators: np.random"),
        (DrawsInReset, "observations of the reset differ", "global random generators: random"),
        (Counts, "observations of the reset differ", "Counts.count"),
        (ReadsGlobals, "observations of step 0 differ", "SETTINGS"),
        (Numbered, "observations of the reset differ", "numbers"),
        (DrawsFromModule, "observations of the reset differ", "generator"),
        (ResetByClose, "observations of step 10 differ", "ResetByClose.open"),
        (ChangesDirectory, "observations of the reset differ", "changes the working directory"),
        (ReadsEnvironment, "observations of step 0 differ", "environment variables: LEVEL"),
        (WritesFile, "observations of step 0 differ", "look for files that envs share"),
        (Refuses, "an env raised RuntimeError being made: one emulator", "Refuses.made"),
        (RefusesInReset, "an env raised RuntimeError being reset: another", "InReset.alive"),
        (Paints, "frames of render() after step", "Paints.canvas"),
    ],
)
def test_interference_is_found_with_its_cause(env, what, cause, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = check(env)
    assert found.isolated is False
    difference, *causes = found.reasons
    assert difference.startswith(f"beside others, {what}")
    assert len(causes) == 1
    assert cause in causes[0]
    verdict = f"envs of {env.__name__} must not share a process (20 steps compared)"
    assert str(found).startswith(f"{verdict}:\n- beside others, ")


@pytest.mark.parametrize("env", [Draws, DrawsInReset])
def test_envs_with_generators_of_their_own_may_share_a_process(env):
    assert check(env, seed_globals=True).isolated is True


def test_isolate_check_lets_envs_with_generators_of_their_own_share_a_process():
    options = {"num_workers": 1, "context": "fork", "isolate": "check", "seed_globals": True}
    with pysampler.VectorEnv([Draws] * 2, **options) as envs:
        assert envs.num_workers == 1


def test_state_outside_of_python_is_suspected_if_nothing_else_changes():
    class Hidden(Plain):
        def __init__(self):
            super().__init__()
            self.first = signal.setitimer(signal.ITIMER_REAL, 1000) == (0, 0)

        def info(self):
            return {"first": self.first}

    found = check(Hidden)
    assert found.isolated is False
    assert "and for state in a library" in found.reasons[1]


def test_an_env_that_is_not_deterministic_alone_is_not_judged():
    class Unseeded(Plain):
        def observation(self):
            return np.frombuffer(os.urandom(4) + bytes(12))

    found = check(Unseeded)
    assert found.isolated is None
    assert "run again alone, observations of the reset differ" in found.reasons[0]
    assert str(found).startswith("the check cannot tell whether envs of Unseeded may share a proc")


@pytest.mark.slow
def test_an_env_that_depends_on_the_time_is_not_judged():
    """Beside others everything takes longer."""

    class RealTime(Plain):
        waited, ended = 0.0, None  # between steps: a busy machine takes longer in all of them

        def act(self):
            self.waited += 0.0 if self.ended is None else time.monotonic() - self.ended
            time.sleep(0.002)
            self.ended = time.monotonic()

        def observation(self):
            return np.array([self.position, self.waited > 0.03])

    assert check(RealTime).isolated is None


class NeedsDisplay(Plain):
    render_mode = "rgb_array"

    def render(self):
        raise OSError("no display")


class SharesDisplay(NeedsDisplay):
    user = None

    def render(self):
        SharesDisplay.user = SharesDisplay.user or self
        if SharesDisplay.user is not self:
            raise OSError("the display is taken")
        return np.zeros((8, 8, 3), np.uint8)


def test_an_env_that_cannot_render_alone_is_judged_by_the_rest():
    assert check(NeedsDisplay).isolated is True


def test_an_env_that_cannot_render_beside_others_must_not_share_its_process():
    found = check(SharesDisplay)
    assert found.isolated is False
    assert found.reasons[0].startswith("beside others, frames of render() after step 0 differ")


def test_infos_that_differ_alone_are_not_compared():
    class Timed(Plain):
        def info(self):
            return {"at": time.perf_counter_ns(), "self": self, "place": [1, os.getpid()]}

    found = check(Timed)
    assert found.isolated is True
    assert found.ignored == ("infos['at']", "infos['place'][1]", "infos['self']")
    assert "not compared, since they differ alone or do not pickle: infos['at']" in str(found)


class Opaque:
    def __init__(self, name):
        self.name = name

    def __repr__(self):
        return "Opaque()"


class Shut(Opaque):
    def __reduce__(self):
        raise TypeError("no")


def test_objects_in_infos_are_compared_by_their_pickles():
    assert check(type("Wrapped", (Named,), {"wrap": staticmethod(Opaque)})).isolated is False


def test_objects_that_do_not_pickle_are_listed_as_not_compared():
    found = check(type("Wrapped", (Named,), {"wrap": staticmethod(Shut)}))
    assert found.isolated is True
    assert found.ignored == ("infos['found']",)


def test_infos_that_equal_alone_are_compared():
    class Told(Plain):
        made = 0

        def __init__(self):
            super().__init__()
            Told.made += 1

        def info(self):
            return {"at": time.perf_counter_ns(), "deep": {"made": [Told.made]}}

    assert "infos['deep']['made'][0] of the reset differ (3, not 1)" in check(Told).reasons[0]


def test_modules_imported_late_and_caches_are_no_interference():
    class Lazy(Plain):
        cache: dict = {}  # noqa: RUF012

        def begin(self):
            import colorsys

            self.cache[len(self.cache)] = colorsys.rgb_to_hsv(1, 1, 1)

    assert check(Lazy).isolated is True


def test_imports_in_an_env_are_no_cause():
    """They set environment variables, say, but only once in a process."""

    class Late(Counts):
        def __init__(self):
            super().__init__()
            if "marked" not in sys.modules:
                sys.modules["marked"] = types.ModuleType("marked")
                os.environ["MARKED"] = str(random.random())

    [_, cause] = check(Late).reasons
    assert "Counts.count" in cause


def test_an_env_that_raises_alone_is_an_error():
    class Broken(Plain):
        def act(self):
            raise ValueError("no such level")

    text = "cannot check isolation: the env raised ValueError being stepped: no such level"
    with pytest.raises(EnvError, match=text) as raised:
        check(Broken)
    assert isinstance(raised.value, ValueError)
    assert "in act" in str(raised.value.__cause__.__cause__)


def test_a_function_that_makes_no_env_is_an_error():
    with pytest.raises(
        EnvError, match="the env raised TypeError being made: .* returned int, expected a gymnasium"
    ):
        check(lambda: 3)


def test_an_env_that_ends_its_process_beside_others_must_not_share_it():
    class Crashes(Plain):
        alive = 0

        def __init__(self):
            super().__init__()
            Crashes.alive += 1
            if Crashes.alive > 1:
                os.kill(os.getpid(), signal.SIGKILL)

    found = check(Crashes)
    assert found.isolated is False
    assert "the process of the envs ended: worker 2" in found.reasons[0]
    assert "signal 9" in found.reasons[0]


def test_an_env_that_ends_its_process_alone_is_an_error():
    class Crashes(Plain):
        def act(self):
            os.kill(os.getpid(), signal.SIGKILL)

    with pytest.raises(WorkerLostError, match="signal 9"):
        check(Crashes)


@pytest.mark.slow
def test_an_env_that_hangs_beside_others_must_not_share_its_process(monkeypatch):
    monkeypatch.setattr("pysampler._vector.isolation.check._PATIENCE", 0.01)

    class Hangs(Plain):
        alive = 0

        def __init__(self):
            super().__init__()
            Hangs.alive += 1
            while Hangs.alive > 1:
                signal.pause()

    found = check(Hangs)
    assert found.isolated is False
    assert "did not answer within" in found.reasons[0]


def test_an_env_that_hangs_alone_is_an_error(monkeypatch):
    monkeypatch.setattr(check_module, "_LONGEST", 0.1)

    class Hangs(Plain):
        def begin(self):
            signal.pause()

    with pytest.raises(EnvTimeoutError, match="alone, the env did not answer within"):
        check(Hangs)


@pytest.mark.slow
def test_siblings_are_made_by_the_other_functions():
    class First(Plain):
        def observation(self):
            return np.array([self.position, Counts.count])

    assert check(First).isolated is True
    [found] = check_envs([First, Plain, First, Counts], steps=20, context="fork")
    assert found.isolated is False
    assert found.name == "First"


def test_the_worker_init_runs_before_the_envs_are_made():
    def init():
        SETTINGS["gravity"] = 1.0

    class Reads(Plain):
        def observation(self):
            assert SETTINGS["gravity"] == 1
            return np.array([self.position, 0.0])

    assert check(Reads, steps=5, worker_init=init).isolated is True


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["NextStep", "SameStep", "Disabled"])
def test_functions_may_make_vector_envs(mode):
    def make():
        return SyncVectorEnv([Plain] * 2, autoreset_mode=mode)

    def make_drawing():
        return SyncVectorEnv([Draws] * 2, autoreset_mode=mode)

    assert check(make, steps=40).isolated is True
    assert check(make_drawing, steps=40).isolated is False


def test_causes_are_looked_for_in_wrapped_vector_envs_of_other_modules():
    module = types.ModuleType("elsewhere")
    module.Plain, module.np, module.__name__ = Plain, np, "elsewhere"
    exec(
        "class Other(Plain):\n"
        "    made = 0\n"
        "    def begin(self):\n"
        "        Other.made += 1\n"
        "    def info(self):\n"
        "        return {'made': Other.made}\n",
        vars(module),
    )
    make = functools.partial(SyncVectorEnv, [module.Other] * 2)
    found = check(make)
    assert "Other.made" in found.reasons[1]


def test_a_batch_env_is_refused():
    class Batch(pysampler.envs.BatchEnv):
        single_observation_space = gym.spaces.Box(-1, 1, (2,), np.float64)
        single_action_space = gym.spaces.Discrete(2)

    with pytest.raises(TypeError, match="env_fn made a Batch, a BatchEnv, expected one env"):
        check(lambda: Batch(2))


def test_isolate_check_leaves_batch_envs_as_they_are():
    with pysampler.make_vec(
        CartPole, 4, isolate="check", num_workers=1, context="fork", vector_kwargs={"groups": 2}
    ) as envs:
        assert envs.num_workers == 1
        envs.reset(seed=1)


def test_slow_envs_are_stepped_less_often(monkeypatch):
    monkeypatch.setattr("pysampler._vector.isolation.check._SECONDS", 0.0)
    found = check(Plain)
    assert (found.isolated, found.steps) == (True, 2)


class ResetsOften(Plain):
    """Shows how often all envs were reset, from its own second reset on."""

    resets = 0

    def __init__(self):
        super().__init__()
        self.own = 0

    def begin(self):
        ResetsOften.resets += 1
        self.own += 1

    def observation(self):
        return np.array([self.position, ResetsOften.resets if self.own > 1 else 0.0])


def test_slow_envs_are_reset_twice(monkeypatch):
    monkeypatch.setattr("pysampler._vector.isolation.check._SECONDS", 0.0)
    found = check(ResetsOften)
    assert found.isolated is False
    assert "of the second reset differ" in str(found)
    assert "(2 steps compared)" in str(found)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("CartPole-v1",), "env_fn 'CartPole-v1', expected a function that makes an env"),
        (([],), r"env_fn \[\], expected a function that makes an env, or a list"),
        (([Plain, 3],), r"env_fn \[.*, 3\], expected a function"),
        ((Plain, 0), "steps 0, expected"),
        ((Plain, 10, -1), "seed -1, expected"),
    ],
)
def test_bad_arguments_are_refused(arguments, message):
    with pytest.raises((TypeError, ValueError), match=f"cannot check isolation: {message}"):
        pysampler.check_isolation(*arguments)


@pytest.mark.slow
def test_the_check_runs_in_new_interpreters():
    """Nothing that this program has done to its modules or generators reaches them."""
    sys.modules["random"].marked = True
    before = random.getstate(), np.random.get_state()[1].tolist(), dict(os.environ), Path.cwd()

    class Looks(Plain):
        def info(self):
            return {"marked": hasattr(sys.modules["random"], "marked"), "hash": hash("a")}

        def begin(self):
            assert not hasattr(sys.modules["random"], "marked")
            np.random.random()

    try:
        found = pysampler.check_isolation(Looks, steps=20)
    finally:
        del sys.modules["random"].marked
    assert found.isolated is True
    assert not found.ignored
    after = random.getstate(), np.random.get_state()[1].tolist(), dict(os.environ), Path.cwd()
    assert before == after


@pytest.mark.slow
def test_addresses_of_objects_are_no_interference():
    class Placed(Plain):
        def info(self):
            return {"place": id(self), "text": repr(object())}

    found = pysampler.check_isolation(Placed, steps=20)
    assert found.isolated is True
    assert found.ignored == ("infos['place']", "infos['text']")


# -- VectorEnv(isolate=) ---------------------------------------------------------------------------


def pids(envs):
    return list(envs.apply(lambda env: os.getpid()))


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"num_workers": 0},
        {"num_workers": 2, "groups": 2},
        {"num_workers": "auto"},
        {"num_workers": 1, "main_envs": 2},
        {"main_envs": "auto"},
        {"max_concurrency": 1},
        pytest.param({"context": None}, marks=pytest.mark.slow),
    ],
)
def test_isolate_gives_each_env_a_process_whatever_else_is_said(options):
    with pysampler.VectorEnv([Plain] * 3, isolate=True, **{"context": "fork", **options}) as envs:
        assert envs.division.num_workers == 3
        assert len({os.getpid(), *pids(envs)}) == 4
        reference = SyncVectorEnv([Plain] * 3)
        assert np.array_equal(envs.reset(seed=1)[0], reference.reset(seed=1)[0])
        for _ in range(5):
            actions = np.array([1, 2, 3])
            ours, theirs = envs.step(actions), reference.step(actions)
            assert np.array_equal(ours[0], theirs[0])
            assert np.array_equal(ours[1], theirs[1])


def test_isolate_gives_native_envs_a_process_each():
    with pysampler.make_vec("CartPole-v1", 3, isolate=True, num_workers=1) as envs:
        assert len(set(pids(envs))) == 3


def test_isolate_gives_envs_of_a_batch_a_process_each():
    how = {"num_workers": 1, "groups": 2, "main_envs": 1}
    with pysampler.make_vec(CartPole, 5, isolate=True, context="fork", **how) as envs:
        assert envs.num_envs == 5
        assert envs.division.num_workers == 5


def test_isolate_makes_envs_that_interfere_give_the_results_of_one_alone():
    with pysampler.VectorEnv([Counts] * 3, num_workers=1) as envs:
        assert envs.reset(seed=[1, 1, 1])[0][:, 1].tolist() == [1, 2, 3]
    with pysampler.VectorEnv([Counts] * 3, num_workers=1, isolate=True) as envs:
        assert envs.reset(seed=[1, 1, 1])[0][:, 1].tolist() == [1, 1, 1]


def test_isolate_check_lets_envs_share_if_they_may(caplog):
    with pysampler.VectorEnv([Plain] * 4, num_workers=2, isolate="check", context="fork") as envs:
        assert envs.num_workers == 2
    assert not caplog.records


def test_isolate_check_gives_each_env_a_process_and_warns_with_the_reason(caplog):
    with pysampler.VectorEnv([Draws] * 3, num_workers=2, isolate="check", context="fork") as envs:
        assert envs.num_workers == 3
    [record] = caplog.records
    text = record.getMessage()
    verdict = "envs of Draws must not share a process (200 steps compared)"
    assert text.startswith(f"pysampler: {verdict}: beside others, observations of the reset differ")
    assert "the env uses global random generators: np.random. seed_globals=True gives" in text
    assert text.endswith("isolate='check' starts 3 workers, one for each")


def test_isolate_check_gives_each_env_a_process_if_it_cannot_tell(caplog):
    class Unseeded(Plain):
        def observation(self):
            return np.array([self.position, int.from_bytes(os.urandom(3))])

    options = {"num_workers": 1, "isolate": "check", "context": "fork"}
    with pysampler.VectorEnv([Unseeded] * 2, **options) as envs:
        assert envs.num_workers == 2
    assert "cannot tell whether envs of Unseeded may share a process" in caplog.text


@pytest.mark.parametrize(
    "options", [{"num_workers": 2}, {"num_workers": 1, "main_envs": 1}], ids=str
)
def test_isolate_check_is_left_out_if_no_process_has_two_envs(options, monkeypatch):
    def refuse(*_, **__):
        raise AssertionError("it was checked")

    monkeypatch.setattr("pysampler._vector.isolation.check.may_share", refuse)
    pysampler.VectorEnv([Draws] * 2, isolate="check", **options).close()
    with pytest.raises(AssertionError, match="it was checked"):
        pysampler.VectorEnv([Draws] * 3, isolate="check", **options)


@pytest.mark.slow
def test_isolate_check_works_in_samplers_and_make_vec(caplog):
    def policy(observations):
        return np.zeros(len(observations), np.int64)

    envs = [Draws] * 3
    with pysampler.Rollouts(envs, policy, 5, num_workers=1, isolate="check") as rollouts:
        assert rollouts.envs.num_workers == 3
    with pysampler.make_vec(Plain, 3, num_workers=1, isolate="check") as vector_env:
        assert vector_env.num_workers == 1
    assert len(caplog.records) == 1


# -- modules known to interfere --------------------------------------------------------------------


@pytest.fixture
def robosuite(monkeypatch):
    """An installed robosuite of some version, and an env that uses it through another module."""
    monkeypatch.setattr("pysampler._vector.stacks._logged", set())

    def made(version, name="robosuite"):
        simulator, between = types.ModuleType(name), types.ModuleType("between")

        class Renderer:
            pass

        Renderer.__module__ = name
        simulator.Renderer = between.Renderer = Renderer
        for module in simulator, between:
            monkeypatch.setitem(sys.modules, module.__name__, module)
        monkeypatch.setattr("importlib.metadata.version", lambda _: version)

        def observation(self):
            return np.array([self.position, 0.0])

        observation = types.FunctionType(
            observation.__code__, {"np": np, "between": between, "__name__": "lab"}
        )
        return type("Robot", (Plain,), {"observation": observation})

    return made


@pytest.mark.parametrize("options", [{"num_workers": 0}, {"num_workers": 1, "context": "fork"}])
def test_envs_known_to_interfere_are_warned_of_once(options, robosuite, caplog):
    for _ in range(2):
        pysampler.VectorEnv([robosuite("1.5.2")] * 2, **options).close()
    [record] = caplog.records
    assert record.getMessage() == (
        "pysampler: envs of robosuite 1.5.2 must not share a process: they render each other's "
        "scenes; pass isolate=True"
    )


def test_a_module_is_found_by_an_attribute_of_the_env(robosuite, caplog):
    robosuite("1.5.2")

    class Late(Plain):
        def __init__(self):
            super().__init__()
            self.renderer = sys.modules["robosuite"].Renderer()

    pysampler.VectorEnv([Late] * 2, num_workers=0).close()
    assert "envs of robosuite 1.5.2" in caplog.text


def test_libsumo_is_known_to_interfere_in_every_version(robosuite, caplog):
    pysampler.VectorEnv([robosuite("99.1", "libsumo")] * 2, num_workers=0).close()
    assert "libsumo" in caplog.text


@pytest.mark.parametrize("version", ["1.5.3", "1.10.0", "2.0"])
def test_mended_versions_are_not_warned_of(version, robosuite, caplog):
    pysampler.VectorEnv([robosuite(version)] * 2, num_workers=0).close()
    assert not caplog.records


def test_what_is_known_of_a_module_is_a_reason(robosuite):
    class Renders(robosuite("1.5.2")):
        made = itertools.count()

        def __init__(self):
            super().__init__()
            self.number = next(self.made)

        def info(self):
            return {"number": self.number}

    *_, last = check(Renders).reasons
    assert last.startswith("envs of robosuite 1.5.2 must not share a process: they render")


def test_isolated_envs_are_not_warned_of(robosuite, caplog):
    env = robosuite("1.5.2")
    pysampler.VectorEnv([env] * 2, context="fork", isolate=True).close()
    pysampler.VectorEnv([env], num_workers=0).close()
    assert not caplog.records


def test_envs_that_do_not_use_an_imported_module_are_not_warned_of(robosuite, caplog):
    robosuite("1.5.2")
    pysampler.VectorEnv([Plain] * 2, num_workers=0).close()
    pysampler.make_vec("CartPole-v1", 2, num_workers=0).close()
    assert not caplog.records


class Slow(Plain):
    """Steps slowly, and loses its context when another env is closed."""

    lost = False

    def step(self, action):
        time.sleep(0.05)
        return super().step(action)

    def observation(self):
        return np.array([self.position, float(Slow.lost)])

    def close(self):
        Slow.lost = True


@pytest.mark.slow
def test_siblings_of_slow_envs_are_closed_too(monkeypatch):
    monkeypatch.setattr(check_module, "_SECONDS", 0.3)
    found = check(Slow, steps=200)
    assert found.isolated is False
    assert "observations of step" in str(found)


class Named(Plain):
    made = itertools.count()

    def __init__(self):
        super().__init__()
        self.number = next(Named.made)

    def info(self):
        return {"found": self.wrap(f"cube{self.number}")}


@pytest.mark.parametrize(
    "wrap",
    [
        lambda name: np.array([name], object),
        lambda name: {name},
        lambda name: deque([name]),
        lambda name: types.SimpleNamespace(name=name),
    ],
)
def test_infos_are_compared_by_their_contents(wrap):
    assert check(type("Wrapped", (Named,), {"wrap": staticmethod(wrap)})).isolated is False


def test_worker_init_of_a_check_may_take_its_worker():
    seen = []
    check(Plain, worker_init=lambda worker: seen.append(worker.number))
