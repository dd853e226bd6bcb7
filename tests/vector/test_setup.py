"""Worker setup before the envs are made, and the errors of setup and of envs."""

import functools
import linecache
import logging
import os
import pickle
import shutil
import signal
import sys
import textwrap
import threading
import traceback
from pathlib import Path

import gymnasium as gym
import numpy as np
import psutil
import pytest
from made_up import TellingEnv
from programs import completed
from vectors import begun

import pysampler
from pysampler._vector.env_server import EnvServer
from pysampler._vector.serving import WorkerInfo, worker_init_for
from pysampler.errors import EnvError


def run(program, *flags, **kwargs):
    """Run a user program; return its stdout and stderr."""
    done = completed(*flags, "-c", textwrap.dedent(program), **kwargs)
    return done.stdout, done.stderr


@pytest.mark.slow
def test_registering_envs_in_a_module_causes_no_warning(tmp_path):
    (tmp_path / "myenvs.py").write_text(
        textwrap.dedent("""
        import gymnasium as gym
        from gymnasium.envs.classic_control import CartPoleEnv

        class Mine(CartPoleEnv):
            pass

        for n in range(20):
            gym.register(f"Mine{n}-v0", entry_point="myenvs:Mine")
        """)
    )
    env = {**os.environ, "PYTHONPATH": str(tmp_path)}
    out, err = run(
        """
        import gymnasium as gym, myenvs, pysampler
        for _ in range(2):
            envs = pysampler.make_vec("Mine3-v0", num_envs=4, vector_kwargs={"num_workers": 2})
            envs.reset()
            envs.close()
        envs = pysampler.VectorEnv([lambda: gym.make("Mine4-v0")] * 2, num_workers=2)
        print(envs.reset()[0].shape)
        envs.close()
        """,
        env=env,
    )
    assert out == "(2, 4)\n"
    assert "Overriding" not in err
    # An env that a worker itself registers twice still causes gymnasium's warning.
    _, err = run(
        """
        import gymnasium as gym, myenvs, pysampler
        def make():
            import myenvs
            gym.register("Mine5-v0", entry_point="myenvs:Mine")
            return gym.make("Mine5-v0")
        pysampler.VectorEnv([make]).close()
        """,
        env=env,
    )
    assert err.count("Overriding environment Mine5-v0 already in registry") == 1


@pytest.mark.slow
def test_registered_env_specs_can_hold_arrays(tmp_path):
    (tmp_path / "arrays.py").write_text(
        textwrap.dedent("""
        import gymnasium as gym
        import numpy as np
        from gymnasium.envs.classic_control import CartPoleEnv

        class Weighted(CartPoleEnv):
            def __init__(self, weights=None):
                super().__init__()
                self.weights = weights

        gym.register("Weighted-v0", entry_point=Weighted, kwargs={"weights": np.arange(3)})
        """)
    )
    out, err = run(
        """
        import arrays, pysampler
        for _ in range(2):
            envs = pysampler.make_vec("Weighted-v0", 2, vector_kwargs={"num_workers": 2})
            envs.reset()
            print(envs.get_attr("weights"))
            envs.close()
        """,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
    )
    assert out == 2 * "(array([0, 1, 2]), array([0, 1, 2]))\n", err
    assert "Overriding" not in err


@pytest.mark.slow
def test_entry_points_can_be_names_in_the_script():
    out, err = run(
        """
        import gymnasium as gym, pysampler
        from gymnasium.envs.classic_control import CartPoleEnv
        from gymnasium.vector import SyncVectorEnv

        class Pole(CartPoleEnv):
            pass

        def make_poles(num_envs, **kwargs):
            return SyncVectorEnv([Pole] * num_envs)

        names = {"entry_point": "__main__:Pole", "vector_entry_point": "__main__:make_poles"}
        gym.register("Pole-v0", **names)
        gym.register("Missing-v0", entry_point="__main__:Missing")
        for mode in ("async", "vector_entry_point"):
            with pysampler.make_vec("Pole-v0", 2, vectorization_mode=mode, num_workers=2) as envs:
                print(envs.reset()[0].shape, envs.spec.entry_point)
        with pysampler.VectorEnv([lambda: gym.make("Pole-v0")] * 2, num_workers=2) as envs:
            print(envs.reset()[0].shape)
        """
    )
    assert out == 2 * "(2, 4) __main__:Pole\n" + "(2, 4)\n", err


class NoSpaces:
    def reset(self, **kwargs):
        return None, {}

    def step(self, action):
        return None, 0, False, False, {}


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize(
    ("made", "told"),
    [
        (None, "the function of env 1 returned NoneType, expected a gymnasium.Env"),
        (3, "the function of env 1 returned int, expected a gymnasium.Env"),
        (TellingEnv, "returned the class TellingEnv, expected a gymnasium.Env"),
        (NoSpaces(), "env 1 is a NoSpaces, expected a gymnasium.Env: it has no metadata, "),
        (gym.Env(), "Env whose observation_space is NoneType, expected a gymnasium.Space"),
    ],
)
def test_error_names_an_env_fn_that_does_not_return_an_env(workers, made, told):
    with pytest.raises(EnvError, match=told) as caught:
        pysampler.VectorEnv([TellingEnv, lambda: made], num_workers=workers)
    assert isinstance(caught.value, TypeError)
    assert caught.value.env == 1


class OldGym(NoSpaces):
    """An env written for the old gym package."""

    observation_space = gym.spaces.Box(-1, 1, (3,))
    action_space = gym.spaces.Discrete(2)

    def reset(self):
        return np.zeros(3, np.float32)


class Unready(TellingEnv):
    metadata = None


class OldReset(gym.Env):
    observation_space = gym.spaces.Box(-1, 1, (3,))
    action_space = gym.spaces.Discrete(2)
    results = np.zeros(3, np.float32)

    def reset(self, *, seed=None, options=None):
        return self.results


class OldDictReset(OldReset):
    results = {"position": 1.0, "velocity": 2.0}  # noqa: RUF012


@pytest.mark.parametrize("workers", [0, 2, "auto"])
@pytest.mark.parametrize(
    ("made", "told"),
    [
        (OldGym, r"OldGym, expected a gymnasium.Env: it has no metadata, .*; wrap it in a gym"),
        (Unready, "is an Unready whose metadata is None, expected a dict"),
    ],
)
def test_error_names_the_attribute_that_a_non_gymnasium_env_lacks(workers, made, told):
    with pytest.raises(EnvError, match=f"env 1.* raised TypeError being made: env 1.*{told}") as e:
        pysampler.VectorEnv([TellingEnv, made], num_workers=0 if workers == "auto" else workers)
    assert e.value.env == 1
    with pytest.raises(TypeError, match=f"env 0.*{told}"):
        pysampler.VectorEnv([made], num_workers=workers)


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize(("made", "got"), [(OldReset, "an array"), (OldDictReset, "a dict")])
def test_error_after_reset_without_info_states_the_expected_return(workers, made, got):
    with pysampler.VectorEnv([made], num_workers=workers) as envs:
        told = rf"env 0.*: env.reset\(\) returned {got}, expected \(observation, info\)"
        with pytest.raises(TypeError, match=told):
            envs.reset()


def test_error_in_the_num_workers_auto_trial_names_the_env():
    told = "env 0 raised ValueError being made, in the trial of num_workers='auto': cannot be made"
    with pytest.raises(EnvError, match=told) as caught:
        pysampler.VectorEnv([functools.partial(TellingEnv, "raise")] * 2, num_workers="auto")
    assert isinstance(caught.value, ValueError)
    assert caught.value.env == 0


@pytest.mark.parametrize(
    ("made", "what"), [("Unsendable", "observation_space"), ("Odd", "metadata")]
)
def test_error_names_the_env_attribute_that_cannot_be_pickled(made, what):
    told = f"env 1 in worker 1 .* raised LookupError sending its {what}: not to be sent"
    with pytest.raises(EnvError, match=told):
        pysampler.VectorEnv([TellingEnv, globals()[made]], num_workers=2)


def test_duck_typed_env_is_accepted():
    class Plain(NoSpaces):
        observation_space = gym.spaces.Box(-1, 1, (2,))
        action_space = gym.spaces.Discrete(2)
        metadata = {}  # noqa: RUF012
        render_mode = spec = None

        @property
        def unwrapped(self):
            return self

        def reset(self, **kwargs):
            return np.zeros(2, np.float32), {}

        def close(self):
            pass

    with pysampler.VectorEnv([Plain], num_workers=1) as envs:
        assert envs.reset()[0].shape == (1, 2)


class Undescribed(TellingEnv):
    @property
    def metadata(self):
        raise LookupError("no metadata")


class Unsendable(TellingEnv):
    class Space(gym.spaces.Box):
        def __reduce__(self):
            raise LookupError("not to be sent")

    observation_space = Space(-1, 1, (2,))


class Odd(TellingEnv):
    metadata = {"odd": Unsendable.Space(-1, 1, (2,))}  # noqa: RUF012


@pytest.mark.parametrize("env", [Undescribed, Unsendable])
def test_failure_to_describe_an_env_is_an_env_error(env):
    with pytest.raises(EnvError, match="LookupError"):
        pysampler.VectorEnv([env], num_workers=1)


@pytest.mark.slow
def test_worker_init_runs_before_the_envs_are_made(tmp_path):
    (tmp_path / "cfg.py").write_text("X = 1\n")
    out, _ = run(
        """
        import cfg, pysampler
        from gymnasium.envs.classic_control import CartPoleEnv
        cfg.X = 5
        class Mine(CartPoleEnv):
            def __init__(self):
                import cfg
                super().__init__()
                self.x = cfg.X
        def set_up():
            import cfg
            cfg.X = 5
        for context in ("forkserver", "spawn", "fork"):
            for init in (None, set_up):
                kwargs = {"num_workers": 2, "context": context, "worker_init": init}
                envs = pysampler.VectorEnv([Mine] * 2, **kwargs)
                print(context, envs.get_attr("x"))
                envs.close()
        """,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
    )
    assert out.splitlines() == [
        *("forkserver (1, 1)", "forkserver (5, 5)", "spawn (1, 1)", "spawn (5, 5)"),
        *("fork (5, 5)", "fork (5, 5)"),
    ]


HASHES = """
import os, pysampler, subprocess, sys
from gymnasium.envs.classic_control import CartPoleEnv
def look(env):
    child = subprocess.check_output([sys.executable, "-c", "print(hash('abc'))"])
    return hash("abc"), os.environ.get("PYTHONHASHSEED"), int(child) == hash("abc")
envs = pysampler.VectorEnv([CartPoleEnv] * 2, num_workers=2, context=sys.argv[1])
print([one[0] - hash("abc") if sys.argv[1] == "fork" else one[0] for one in envs.apply(look)])
print([one[1:] for one in envs.apply(look)])
envs.close()
"""


@pytest.mark.slow
@pytest.mark.parametrize("context", ["forkserver", "spawn", "fork"])
def test_workers_use_the_same_hash_seed_in_every_run(context):
    plain = {name: value for name, value in os.environ.items() if name != "PYTHONHASHSEED"}
    runs = [completed("-c", HASHES, context, env=plain).stdout.splitlines() for _ in range(2)]
    first, second = runs[0][0].strip("[]").split(", ")
    assert first == second
    assert runs[0] == runs[1]  # for "fork": relative to the parent's hash
    assert (first == "0") == (context == "fork")
    assert runs[0][1] == "[(None, False), (None, False)]"  # not their subprocesses
    chosen = completed("-c", HASHES, context, env={**plain, "PYTHONHASHSEED": "5"})
    assert chosen.stdout.splitlines()[1] == "[('5', True), ('5', True)]"


def test_worker_init_error_is_raised():
    def set_up():
        raise LookupError("no such setting")

    with pytest.raises(EnvError, match=r"raised LookupError in worker_init\(\): no such setting"):
        pysampler.VectorEnv([TellingEnv], num_workers=1, worker_init=set_up)


class KnowsItsWorker(TellingEnv):
    """Reads the worker's number while it is made."""

    def __init__(self):
        super().__init__()
        self.of = os.environ["PYSAMPLER_WORKER"], os.environ["PYSAMPLER_WORKERS"]


@pytest.mark.parametrize("context", ["forkserver", pytest.param("spawn", marks=pytest.mark.slow)])
def test_workers_know_their_number_before_envs_are_made(context):
    def init(worker):
        os.environ["DEVICE"] = f"{worker.number} of {worker.count} for {[*worker.envs]}"

    options = {"num_workers": 2, "context": context, "on_worker_loss": "restart"}
    with pysampler.VectorEnv([KnowsItsWorker] * 3, worker_init=init, **options) as envs:
        for lost in (False, True):
            if lost:  # the worker that replaces it has its number
                envs.reset()
                os.kill(envs.apply(lambda _: os.getpid())[2], signal.SIGKILL)
                envs.reset()
            assert envs.get_attr("of") == (("0", "2"), ("0", "2"), ("1", "2"))
            devices = envs.apply(lambda _: os.environ["DEVICE"])
            assert devices == (*["0 of 2 for [0, 1]"] * 2, "1 of 2 for [2]")


class ReadsItsLevel(TellingEnv):
    """Reads a file of the working directory while it is made."""

    def __init__(self):
        super().__init__()
        self.pid = os.getpid()
        self.level = Path("level.txt").read_text()
        self.made_in = str(Path.cwd()), sys.path[0], sys.argv[0], os.environ["MODE"]

    def step(self, action):
        return *super().step(action)[:2], True, False, {}


@pytest.mark.parametrize("how", ["restart", "recycle", "spare"])
@pytest.mark.parametrize(
    "context", ["forkserver", "fork", pytest.param("spawn", marks=pytest.mark.slow)]
)
def test_replacements_are_made_where_the_vector_env_was(how, context, tmp_path, monkeypatch):
    def enter(name):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "level.txt").write_text(name)
        monkeypatch.chdir(folder)
        monkeypatch.setattr(sys, "path", [str(folder), *sys.path])
        monkeypatch.setattr(sys, "argv", [name])
        monkeypatch.setenv("MODE", name)
        return str(folder), str(folder), name, name

    options = {"recycle_after": 1} if how == "recycle" else {"on_worker_loss": "restart"}
    if how == "spare":
        options["spare_envs"] = 1

    def make():
        return pysampler.VectorEnv([ReadsItsLevel], num_workers=1, context=context, **options)

    first = enter("first")
    with begun(make()) as envs:
        [pid] = envs.get_attr("pid")
        second = enter("second")
        if how != "recycle":
            os.kill(pid, signal.SIGKILL)
            envs.reset()
        while envs.get_attr("pid") == (pid,):
            envs.step([TellingEnv.OK])
        assert envs.get_attr("level") == ("first",)
        assert envs.get_attr("made_in") == (first,)
    with make() as envs:
        assert envs.get_attr("made_in") == (second,)


def test_replacement_reads_no_other_file_if_the_directory_was_removed(tmp_path, monkeypatch):
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "level.txt").write_text(name)
    monkeypatch.chdir(tmp_path / "first")
    with begun([TellingEnv], num_workers=1, on_worker_loss="restart") as envs:
        monkeypatch.chdir(tmp_path / "second")
        shutil.rmtree(tmp_path / "first")
        os.kill(envs.apply(lambda _: os.getpid())[0], signal.SIGKILL)
        envs.reset()
        assert envs.apply(lambda _: Path("level.txt").exists()) == (False,)


def test_worker_init_gets_its_worker_if_it_takes_an_argument():
    def prefix(text, other):
        return text, other

    worker = WorkerInfo(1, 2, range(2, 4))
    for init, got in (
        (lambda: "nothing", "nothing"),
        (lambda n=3: n, 3),
        (lambda w: w, worker),
        (lambda n=3, worker=None: (n, worker), (3, worker)),
        (lambda *, worker: worker, worker),
        (functools.partial(prefix, "a"), ("a", worker)),
    ):
        assert worker_init_for(init, worker)() == got
    assert worker_init_for(None, worker) is None
    with pytest.raises(TypeError, match=r"worker_init takes \(text, other\), expected no argument"):
        worker_init_for(prefix, worker)
    assert worker_init_for(dict, worker)() == {}  # written in C


@pytest.mark.slow
@pytest.mark.parametrize("context", ["forkserver", "spawn", "fork"])
def test_workers_use_the_parents_logging_setup(context):
    _, err = run(f"""
        import logging, warnings, pysampler
        from gymnasium.envs.classic_control import CartPoleEnv
        logging.basicConfig(level=logging.INFO, format="%(levelname)s=%(name)s=%(message)s")
        logging.captureWarnings(True)
        class Mine(CartPoleEnv):
            def __init__(self):
                super().__init__()
                logging.getLogger("mine").info("made")
                logging.getLogger("mine").debug("not said")
                warnings.warn("careful")
        pysampler.VectorEnv([Mine], num_workers=1, context={context!r}).close()
    """)
    assert "INFO=mine=made\n" in err
    assert "not said" not in err
    assert "WARNING=py.warnings=" in err


def test_workers_do_not_set_up_logging_by_themselves():
    before = logging.getLogger().handlers

    def handlers(env):
        return len(logging.getLogger().handlers), logging.getLogger().level

    logging.getLogger().handlers = []
    try:
        with pysampler.VectorEnv([TellingEnv], num_workers=1) as envs:
            assert envs.apply(handlers) == ((0, logging.getLogger().level),)
    finally:
        logging.getLogger().handlers = before


def test_worker_replacement_is_logged(caplog):
    with begun([TellingEnv], num_workers=1, on_worker_loss="restart") as envs:
        envs.step([TellingEnv.OS_EXIT])
    [record] = [one for one in caplog.records if one.name == "pysampler"]
    assert record.levelname == "WARNING"
    assert record.message.startswith("pysampler: worker 0 (pid")
    assert "exit code 6 while stepping env 0; another worker takes its place" in record.message


def test_errors_of_several_envs_are_raised_as_one_with_notes(capfd):
    with begun([TellingEnv] * 4, num_workers=2) as envs:
        with pytest.raises(EnvError, match="env 1 in worker 0") as caught:
            envs.step([0, TellingEnv.RAISE, 0, TellingEnv.RAISE])
        assert caught.value.__notes__ == ["env 3 also raised ValueError: told to raise"]
        assert "Shutting it down" not in capfd.readouterr().err


# "" is Python's default; Ray sets the other one when it is initialised.
@pytest.mark.parametrize("debugger", ["", "ray.util.rpdb._driver_set_trace"])
def test_breakpoint_in_a_worker_suggests_num_workers_0(debugger, monkeypatch):
    monkeypatch.setenv("PYTHONBREAKPOINT", debugger)

    def make():
        env = TellingEnv()
        breakpoint()
        return env

    with pytest.raises(EnvError, match="pass num_workers=0"):
        pysampler.VectorEnv([make], num_workers=1)


def test_workers_use_the_debugger_that_the_user_chose(monkeypatch):
    monkeypatch.setenv("PYTHONBREAKPOINT", "builtins.print")

    def make():
        breakpoint()  # prints
        return TellingEnv()

    pysampler.VectorEnv([make], num_workers=1).close()


def test_traceback_shows_source_that_only_the_parent_has():
    source = "def fails(env):\n    return 1 / 0  # in a cell\n"
    name = "<ipython-input-7-abc>"
    linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
    cell = {"__name__": "__main__"}
    exec(compile(source, name, "exec"), cell)
    with pysampler.VectorEnv([TellingEnv], num_workers=1) as envs:
        with pytest.raises(ZeroDivisionError) as caught:
            envs.apply(cell["fails"])
        assert "return 1 / 0  # in a cell" in "".join(traceback.format_exception(caught.value))


@pytest.mark.slow
def test_workers_start_in_a_deleted_working_directory():
    out, err = run(
        """
        import os, tempfile
        directory = tempfile.mkdtemp()
        os.chdir(directory)
        os.rmdir(directory)
        import pysampler
        envs = pysampler.make_vec("CartPole-v1", num_envs=2, vector_kwargs={"num_workers": 2})
        envs.reset()
        print(envs.step([0, 0])[1])
        envs.close()
        """,
        "-P",  # else Python 3.13.0 looks for the directory and cannot import NumPy
    )
    assert (out, err) == ("[1. 1.]\n", "")


@pytest.mark.slow
@pytest.mark.parametrize("executable", [None, ""])
@pytest.mark.parametrize("context", ["forkserver", "spawn"])
def test_missing_sys_executable_error_suggests_a_fix(executable, context):
    out, err = run(
        f"""
        import sys
        import pysampler
        sys.executable = {executable!r}
        try:
            pysampler.make_vec("CartPole-v1", vector_kwargs={{"context": {context!r}}})
        except pysampler.errors.PysamplerError as error:
            print(error)
        """
    )
    assert "expected the path of the interpreter; set it, or pass context=" in out, err


# -- exceptions -----------------------------------------------------------------------------------


class UnwritableError(Exception):
    def __str__(self):
        raise ValueError("no text")


class Raising(TellingEnv):
    def __init__(self, error):
        super().__init__()
        self.error = error

    def step(self, action):
        raise self.error


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize(
    ("error", "kind", "text"),
    [
        (UnwritableError(), EnvError, "UnwritableError stepping: <its __str__ raised ValueError>"),
        (UnicodeDecodeError("utf8", b"a", 0, 1, "odd"), UnicodeDecodeError, "position 0: odd"),
        (KeyError("k"), KeyError, "env 0 .*raised KeyError stepping: 'k'"),
    ],
    ids=lambda value: None if isinstance(value, str) else "",
)
def test_env_error_contains_the_text_of_the_exception(workers, error, kind, text):
    with begun([functools.partial(Raising, error)] * 2, num_workers=workers) as envs:
        with pytest.raises(kind, match=text) as raised:
            envs.step([0, 0])
        assert isinstance(raised.value, EnvError)


class SimError(RuntimeError):
    """Cannot be pickled: neither its constructor nor its attributes allow it."""

    def __init__(self, code, *, text):
        super().__init__(f"{text} ({code})")
        self.code, self.lock = code, threading.Lock()


@pytest.mark.parametrize("workers", [0, 1])
def test_except_clause_catches_the_exception_type_of_the_env(workers):
    def fails(env):
        raise SimError(7, text="unstable")

    with pysampler.VectorEnv([TellingEnv], num_workers=workers) as envs:
        with pytest.raises(SimError, match=r"env 0.* raised SimError .*: unstable \(7\)") as raised:
            envs.apply(fails)
        assert isinstance(raised.value, EnvError)
        assert raised.value.code == raised.value.__cause__.code == 7
        assert type(raised.value.__cause__) is SimError
        notes = ["SimError.lock (lock) could not be sent to this process"]
        assert getattr(raised.value, "__notes__", []) == notes[:workers]


class Infos(TellingEnv):
    def step(self, action):
        return *super().step(self.OK)[:4], {"odd": np.zeros(int(action) + 1)}


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("partial", [False, True])
def test_infos_that_cannot_be_batched_raise_env_error(workers, partial):
    """gymnasium stores the arrays of a key in one array with the shape of the first."""
    with pysampler.VectorEnv([Infos] * 2, num_workers=workers, groups=2) as envs:
        for _ in range(2):
            envs.reset()
            with pytest.raises(EnvError, match="cannot batch infos of envs: ValueError") as caught:
                if partial:
                    envs.send([1, 2], [0, 1])
                    envs.recv(2)
                else:
                    envs.step([1, 2])
            assert isinstance(caught.value, ValueError)  # as gymnasium raises it


class Holding(gym.Env):
    """Holds an array and writes to it."""

    observation_space = action_space = gym.spaces.Discrete(2)

    def __init__(self, held):
        self.held = held
        held[0] += 1

    def reset(self, *, seed=None, options=None):
        return 0, {}


@pytest.mark.parametrize("loss", ["raise", "restart"])
def test_array_in_env_fns_is_sent_once_and_private_to_each_worker(loss):
    held = np.ones(1 << 20)
    frozen = np.ones(1 << 16)
    frozen.flags.writeable = False

    def make(frozen=frozen):
        env = Holding(held)
        env.frozen = frozen
        return env

    before = len(pickle.dumps(held))
    with pysampler.VectorEnv(
        [lambda: make() for _ in range(4)], num_workers=2, on_worker_loss=loss
    ) as envs:
        packed = envs._pool._processes._packed
        assert (packed is None) == (loss == "raise")
        if packed is not None:
            assert sum(map(len, packed.pickled)) < before / 10
            assert packed.segment.size < 2 * before
        assert (
            envs.apply(lambda env: (env.held[0], env.held.sum(), env.frozen.flags.writeable))
            == ((3, held.size + 2, False),) * 4
        )
        assert held[0] == 1
        if loss == "restart":
            psutil.Process(envs._pool.pids[0]).kill()
            envs.reset()
            assert envs.apply(lambda env: env.held[0]) == (3, 3, 3, 3)


def test_equal_spaces_are_sent_once():
    class Wide(Holding):
        def __init__(self):
            self.observation_space = gym.spaces.Box(0, 255, (100,), np.uint8)

    server = EnvServer([Wide] * 20, 0, [20])
    assert len({id(space) for space in server.describe().observation_spaces}) == 1
    assert len(pickle.dumps(server.describe())) < 5000


class Reusing(gym.Env):
    """Reuses its arrays for all observations and infos; their dtypes are not its space's."""

    observation_space = gym.spaces.Box(-9, 9, (2,), np.float32)
    action_space = gym.spaces.Discrete(3)

    def __init__(self):
        self.observation = np.zeros(2)
        self.info = {"last": np.zeros(2, "M8[s]")}

    def reset(self, *, seed=None, options=None):
        self.observation[:] = 0
        self.info["last"][:] = 0
        return self.observation, self.info

    def step(self, action):
        self.observation[:] = action
        self.info["last"][:] = int(action)
        return self.observation, 0.0, True, False, self.info


@pytest.mark.parametrize("workers", [0, 2])
def test_final_obs_and_info_are_copied_before_the_reset(workers):
    with begun([Reusing] * 4, num_workers=workers, autoreset_mode="SameStep") as envs:
        observations, _, _, _, infos = envs.step([1, 2, 1, 2])
        assert (observations == 0).all()
        for env, action in enumerate((1, 2, 1, 2)):
            assert infos["final_obs"][env].tolist() == [action] * 2
            assert infos["final_obs"][env].dtype == np.float64
            assert infos["final_info"]["last"][env].astype(int).tolist() == [action] * 2


@pytest.mark.slow
def test_env_worker_does_not_import_samplers():
    out, _ = run("""
        import sys
        import gymnasium as gym, numpy as np
        import pysampler

        def modules(env):
            return sorted(name for name in sys.modules if name.startswith("pysampler._"))

        def make():
            return gym.make("CartPole-v1")

        for _ in range(2):
            still = lambda observations: np.zeros(len(observations), int)
            with pysampler.Rollouts(make, still, 4, num_envs=1) as some:
                next(some)
            envs = pysampler.VectorEnv([make], num_workers=1)
            envs.reset()
            envs.step([0])
            print(*envs.apply(modules)[0])
            envs.close()
    """)
    for line in out.splitlines():
        rooms = {name.split(".")[1] for name in line.split()}
        assert rooms == {"_common", "_core", "_frames", "_vector", "_workers"}, line


@pytest.mark.slow
def test_fork_server_preloads_the_pysampler_modules_of_env_workers():
    out, _ = run("""
        import sys
        import gymnasium as gym
        import pysampler

        def modules(env=None):
            return {name for name in sys.modules if name.startswith("pysampler.")}

        def make():
            env = gym.make("CartPole-v1")
            env.at_first = modules()
            return env

        envs = pysampler.VectorEnv([make], num_workers=1)
        envs.reset()
        envs.step([0])
        print(envs.apply(modules)[0] - envs.get_attr("at_first")[0])
        envs.close()
    """)
    assert out == "set()\n"
