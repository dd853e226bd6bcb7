"""Worker processes: their start, names, output and ends."""

import os
import shutil
import signal
import subprocess
import sys
import textwrap
import time
import types

import cloudpickle
import psutil
import pytest
from fork_server_in_tests import alive, wait_until
from made_up import TellingEnv
from programs import completed
from vectors import begun

import pysampler
from pysampler import _core
from pysampler._workers import children, fork_server
from pysampler._workers.children import environment
from pysampler._workers.launcher import Launcher, open_files
from pysampler._workers.setup import Setup
from pysampler.errors import WorkerLostError

CARTPOLE = """
import gymnasium as gym, numpy as np, pysampler
envs = pysampler.make_vec("CartPole-v1", num_envs=4, vector_kwargs={"num_workers": 2})
"""


def run(program, *arguments, **kwargs):
    """Run a user program that must succeed; return its stdout."""
    return completed(*arguments, input=program, **kwargs).stdout


IN_MAIN = """
import functools
import gymnasium as gym
import numpy as np
import pysampler
from pysampler._workers import fork_server

class Mine(gym.Env):
    observation_space = gym.spaces.Discrete(1000)
    action_space = gym.spaces.Discrete(2)
    def __init__(self, number):
        self.number = number
    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        return self.number, {"mine": Told(self.number)}
    def step(self, action):
        return self.number, 0.0, False, False, {}

class Told:
    def __init__(self, number):
        self.number = number

gym.register("Mine-v0", entry_point=Mine)
secret = 40

def closure(number):
    def make():
        return Mine(secret + number)
    return make

envs = pysampler.VectorEnv([
    closure(1),
    lambda: Mine(secret + 2),
    functools.partial(Mine, 43),
    lambda: gym.make("Mine-v0", number=44),
])
observations, infos = envs.reset()

def number_of(env):
    return env.unwrapped.number

assert envs.apply(number_of) == (41, 42, 43, 44)
print(observations.tolist(), [type(t) is Told and t.number for t in infos["mine"]])
envs.close()
"""


@pytest.mark.slow
@pytest.mark.parametrize("how", ["script", "-c", "stdin", "module"])
def test_script_needs_no_main_guard(how, tmp_path):
    if how == "-c":
        out = run("", "-c", IN_MAIN)
    elif how == "stdin":
        out = run(IN_MAIN)
    else:
        (tmp_path / "program.py").write_text(IN_MAIN)
        where = ["program.py"] if how == "script" else ["-m", "program"]
        out = run("", *where, cwd=tmp_path)
    assert out == "[41, 42, 43, 44] [41, 42, 43, 44]\n"


@pytest.mark.slow
def test_workers_import_modules_beside_the_script(tmp_path):
    (tmp_path / "beside.py").write_text(
        IN_MAIN.replace("envs = ", "if 0: envs = ").split("if 0:")[0]
    )
    (tmp_path / "program.py").write_text(
        "import beside, pysampler\n"
        "envs = pysampler.VectorEnv([lambda: beside.Mine(7)])\n"
        "print(envs.reset()[0])\n"
    )
    assert run("", str(tmp_path / "program.py"), cwd="/") == "[7]\n"


@pytest.mark.slow
def test_parent_with_threads_and_held_locks_is_not_forked():
    out = run(
        CARTPOLE.replace(
            "envs =",
            textwrap.dedent("""
            import threading
            stop = threading.Event()
            lock = threading.Lock()
            def hold():
                with lock:
                    stop.wait()
            for _ in range(20):
                threading.Thread(target=hold, daemon=True).start()
            a = np.random.rand(500, 500) @ np.random.rand(500, 500)
            envs ="""),
        )
        + "print(envs.reset()[0].shape, envs.get_attr('spec')[0].id)\nstop.set()\n"
    )
    assert out == "(4, 4) CartPole-v1\n"


@pytest.mark.slow
def test_workers_run_after_the_parent_used_torch_threads():
    pytest.importorskip("torch")
    out = run(
        "import torch\ntorch.set_num_threads(4)\nx = torch.rand(600, 600) @ torch.rand(600, 600)\n"
        + CARTPOLE
        + "envs.reset(seed=1)\nfor _ in range(20): (x @ x).sum(); r = envs.step([0] * 4)[1]\n"
        "print(r.tolist())\n"
    )
    assert out == "[1.0, 1.0, 1.0, 1.0]\n"


@pytest.mark.slow
def test_forks_of_a_program_with_torch_threads_use_one_thread():
    """With more, torch would wait for threads of the program, which a fork does not have."""
    pytest.importorskip("torch")
    out = run(
        "import torch, gymnasium as gym, pysampler\ntorch.set_num_threads(4)\n"
        "x = torch.rand(600, 600)\n(x @ x).sum()\n"
        "def make():\n    assert torch.get_num_threads() == 1 and (x @ x).sum() > 0\n"
        "    return gym.make('CartPole-v1')\n"
        "with pysampler.VectorEnv([make] * 2, num_workers=2, context='fork') as envs:\n"
        "    print(envs.reset()[0].shape)\nprint(torch.get_num_threads())\n"
    )
    assert out == "(2, 4)\n4\n"


@pytest.mark.slow
@pytest.mark.parametrize("context", ["forkserver", "fork", "spawn"])
def test_prints_of_workers_reach_the_parents_stdout(context, capfd):
    with pysampler.VectorEnv([TellingEnv] * 2, num_workers=2, context=context) as envs:
        envs.step([TellingEnv.PRINT, TellingEnv.PRINT])
    assert capfd.readouterr().out == "said by an env\n" * 2


@pytest.mark.parametrize("context", ["forkserver", "spawn"])
def test_worker_processes_have_names(context):
    with pysampler.make_vec("CartPole-v1", 4, num_workers=2, context=context) as envs:
        processes = [psutil.Process(pid) for pid in envs._pool.pids]
        names = [" ".join(p.cmdline()).strip() for p in processes]
        assert names == [f"pysampler: worker {i}/2 CartPole-v1" for i in range(2)]
        assert {p.name() for p in processes} <= {"pysampler: work", *names}


@pytest.mark.slow
def test_libraries_in_workers_use_one_thread_by_default():
    program = """
import os
import gymnasium as gym, pysampler
def env_fn():
    env = gym.make("CartPole-v1")
    env.unwrapped.threads = [os.environ.get(n) for n in ("OMP_NUM_THREADS", "MKL_NUM_THREADS")]
    return env
print(pysampler.VectorEnv([env_fn]).get_attr("threads")[0])
"""
    clean = {k: v for k, v in os.environ.items() if not k.endswith("_NUM_THREADS")}
    assert run(program, env=clean) == "['1', '1']\n"
    assert run(program, env={**clean, "OMP_NUM_THREADS": "3"}) == "['3', '1']\n"


def test_workers_draw_different_random_numbers():
    def env_fn():
        import random

        import numpy as np

        env = TellingEnv()
        env.drawn = (random.random(), np.random.rand())
        return env

    with pysampler.VectorEnv([env_fn] * 4, num_workers=4) as envs:
        assert len(set(envs.get_attr("drawn"))) == 4


@pytest.mark.slow
@pytest.mark.parametrize(
    ("end", "code"),
    [
        ("", 0),
        ("sys.exit(3)", 3),
        ("raise ValueError", 1),
        ("os._exit(4)", 4),
        ("os.kill(os.getpid(), 9)", -9),
        ("os.kill(os.getpid(), 15)", -15),
        ("envs.step_async([0] * 4)", 0),
        ("envs.close()", 0),
        ("del envs", 0),
    ],
)
@pytest.mark.parametrize("context", ["forkserver", "fork", "spawn"])
def test_workers_end_however_the_parent_ends(end, code, context):
    program = CARTPOLE.replace('"num_workers": 2', f'"num_workers": 2, "context": "{context}"')
    program += "import os, sys\nenvs.reset()\nprint(*envs._pool.pids, flush=True)\n" + end
    done = completed("-c", program, code=code)
    pids = [int(pid) for pid in done.stdout.split()]
    assert len(pids) == 2
    wait_until(lambda: not any(map(alive, pids)))
    if code == 0:
        assert not done.stderr


@pytest.mark.slow
def test_ctrl_c_ends_a_wait_and_close_still_works():
    program = CARTPOLE.replace('"CartPole-v1"', "Slow") + textwrap.dedent("""
    print(*envs._pool.pids, flush=True)
    try:
        envs.reset()
    except KeyboardInterrupt:
        envs.close(terminate=True)
        print("closed", flush=True)
    """)
    slow = textwrap.dedent("""
    import time, warnings
    warnings.simplefilter("ignore")
    import gymnasium as gym
    class Slow(gym.Env):
        observation_space = action_space = gym.spaces.Discrete(2)
        def reset(self, **kwargs):
            print("resetting", flush=True)
            time.sleep(1000)  # an env that hangs
    """)
    process = subprocess.Popen(
        [sys.executable, "-c", slow + program],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    pids = [int(pid) for pid in process.stdout.readline().split()]
    assert process.stdout.readline() == "resetting\n"
    # To the whole group, like a terminal.
    os.killpg(process.pid, signal.SIGINT)
    rest = process.communicate(timeout=60)[0]
    assert rest.split()[-1] == "closed"
    assert process.returncode == 0
    wait_until(lambda: not any(map(alive, pids)))


@pytest.mark.parametrize("context", ["forkserver", "fork", "spawn"])
def test_killed_worker_raises_worker_lost_error(context):
    envs = begun([TellingEnv] * 4, num_workers=2, context=context)
    envs.step_async([TellingEnv.SLEEP] * 4)
    pid = envs._pool.pids[1]
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(WorkerLostError) as caught:
        envs.step_wait()
    # The kill may come before the step began.
    told = f"worker 1 (pid {pid}) lost: signal 9 while stepping envs 2-3"
    assert str(caught.value) in (told, f"{told}, at env 2")
    assert caught.value.exit_code == -9
    assert envs.closed


@pytest.mark.slow
def test_dead_fork_server_is_replaced():
    pysampler.VectorEnv([TellingEnv]).close()
    dead = fork_server.current()
    os.kill(dead._process.pid, signal.SIGKILL)
    assert dead._process.ended(60)
    begun([TellingEnv]).close()
    assert fork_server.current() is not dead


@pytest.mark.slow
def test_collected_vector_env_ends_its_workers():
    envs = begun([TellingEnv] * 2, num_workers=2)
    pids = envs._pool.pids
    del envs
    wait_until(lambda: not any(map(alive, pids)))


def memory(*pids):
    return [psutil.Process(pid).memory_info().rss for pid in (os.getpid(), *pids)]


@pytest.mark.slow
def test_steps_leak_no_memory():
    with begun(pysampler.make_vec("CartPole-v1", 64, num_workers=2), seed=1) as envs:
        actions = envs.action_space.sample()
        for _ in range(300):
            envs.step(actions)
        before = memory(*envs._pool.pids)
        for _ in range(2000):
            envs.step(actions)
        after = memory(*envs._pool.pids)
        # Less than four bytes per env step.
        assert all(b - a < 4 * 2000 * 64 for a, b in zip(before, after, strict=True))


@pytest.mark.slow
def test_env_can_make_a_pool_in_its_worker():
    def env_fn():
        import made_up

        import pysampler

        inner = pysampler.VectorEnv([made_up.TellingEnv] * 2, num_workers=2)
        env = made_up.TellingEnv()
        env.inner = inner.reset()[0].shape
        inner.close()
        return env

    with pysampler.VectorEnv([env_fn] * 2, num_workers=2) as envs:
        assert envs.get_attr("inner") == ((2, 2), (2, 2))


def test_fork_server_with_an_unread_answer_exits_silently(capfd):
    left = fork_server.ForkServer()
    left.load([])
    wait_until(lambda: not left.busy())
    left.load([])
    left._door.close()  # as at the end of the process, with an unread answer
    assert left._process.ended(timeout=100)
    assert left._process.status() == 0
    assert not capfd.readouterr().err


def test_leave_can_be_called_twice_while_the_fork_server_imports():
    busy = fork_server.ForkServer()
    busy.load(["torch"])
    busy.leave()
    busy.leave()
    assert busy.ended


def test_worker_with_an_unread_first_answer_exits_silently(capfd):
    server = types.SimpleNamespace(describe=lambda: types.SimpleNamespace(name="left"))
    child = Launcher("forkserver").start(None)
    child.connection.send(
        Setup(
            index=0,
            workers=1,
            environment=environment(),
            directory="/",
            path=sys.path,
            arrays=(),
            open_files=open_files(),
            arguments=[],
            server=cloudpickle.dumps((lambda: server, ())),
            logging=None,
            is_replacement=False,
            shared=0,
        )
    )
    child.connection.poll(None)
    child.connection.close()
    assert child.ended(timeout=100)
    assert child.status() == 0
    assert not capfd.readouterr().err
    child.release()


LEADER = "sleep 1000 <&- >&- 2>&- & echo $!; exec >&-; {then}"


def start_leader(then, owner=children.OwnProcess):
    """Start a child that leads a group with a descendant, and return its owner and that."""
    reading, writing = os.pipe()
    shell = shutil.which("sh")
    command = [shell, "-c", LEADER.format(then=then)]
    actions = [(os.POSIX_SPAWN_DUP2, writing, 1)]
    child = owner(
        lambda: os.posix_spawn(shell, command, os.environ, file_actions=actions, setpgroup=0)
    )
    os.close(writing)
    with open(reading) as told:  # noqa: PTH123 - a descriptor
        return child, psutil.Process(int(told.read()))


@pytest.mark.parametrize("reaper", ["program", "system"])
def test_the_group_of_a_child_reaped_elsewhere_is_killed(reaper):
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN if reaper == "system" else signal.SIG_DFL)
    try:
        child, descendant = start_leader("exit 3")
        assert child.ended(60)
        if reaper == "program":
            os.waitpid(child.pid, 0)
        assert child.status() is None
    finally:
        signal.signal(signal.SIGCHLD, before)
    wait_until(lambda: not alive(descendant.pid))


def test_a_group_is_left_alone_if_another_process_has_the_number_of_the_child():
    # A child of a child stands for it: a process that this one can neither wait for nor reap.
    started = subprocess.Popen(
        ["setsid", "--fork", "sh", "-c", "echo $$; exec sleep 1000"], stdout=subprocess.PIPE
    )
    with started.stdout as told:
        another = int(told.readline())
    try:
        child = _core.OwnChild(lambda: another)
        assert child.status() is None
        del child
        assert alive(another)
    finally:
        os.kill(another, signal.SIGKILL)
        started.wait()


def test_the_group_of_an_ended_child_is_killed_and_the_child_reaped():
    child, descendant = start_leader("exit 3")
    assert child.ended(60)
    assert child.status() == 3
    assert not psutil.pid_exists(child.pid)
    wait_until(lambda: not alive(descendant.pid))
    assert child.status() == 3


def test_a_child_ends_with_its_owner_and_is_reaped():
    child, descendant = start_leader("exec sleep 1000", owner=_core.OwnChild)
    pid = child.pid
    assert alive(pid)
    del child
    assert not psutil.pid_exists(pid)
    wait_until(lambda: not alive(descendant.pid))


def test_a_child_is_reaped_though_signals_come_meanwhile():
    sleep = shutil.which("sleep")
    before = signal.signal(signal.SIGALRM, lambda *_: None)
    signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
    try:
        for _ in range(20):
            child = _core.OwnChild(lambda: os.posix_spawn(sleep, [sleep, "1000"], os.environ))
            pid = child.pid
            del child
            assert not psutil.pid_exists(pid)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_a_child_ends_with_its_owner_if_another_file_has_the_number_of_its_descriptor():
    child, descendant = start_leader("exec sleep 1000", owner=_core.OwnChild)
    pid, number = child.pid, child.fileno()
    another = os.pidfd_open(descendant.pid)
    os.dup2(another, number)  # as a program does that closes all files and opens others
    del child
    assert not psutil.pid_exists(pid)
    os.close(another)
    os.close(number)


def test_a_fork_does_not_end_the_children_of_its_parent():
    child, _ = start_leader("exec sleep 1000", owner=_core.OwnChild)
    if (forked := os.fork()) == 0:
        try:
            del child
        finally:
            os._exit(0)
    os.waitpid(forked, 0)
    assert alive(child.pid)


SLICES = """
import ctypes, platform, struct
def slice_of(thread=0):
    attributes = ctypes.create_string_buffer(48)
    number = {"x86_64": 315, "aarch64": 275}[platform.machine()]
    if ctypes.CDLL(None).syscall(number, thread, attributes, 48, 0):
        return None
    return struct.unpack_from("Q", attributes, 24)[0]
before = slice_of()
alone = pysampler.make_vec("CartPole-v1", num_envs=1, vector_kwargs={"num_workers": 0})
print(slice_of() == before, end=" ")
envs = pysampler.make_vec("CartPole-v1", num_envs=4, vector_kwargs={"num_workers": 2})
print(before, slice_of(), *map(slice_of, envs._pool.pids))
"""


def test_a_pool_prefers_short_slices_in_its_workers_and_in_the_thread_that_makes_it():
    alone, before, *pool = run("import pysampler" + SLICES).split()
    if before in {"None", "0"}:  # before Linux 6.12
        pytest.skip("this kernel has no slices")
    assert alone == "True"
    assert pool == ["100000"] * 3


class SeesCpus(TellingEnv):
    """Its info says which CPUs it may use."""

    def step(self, action):
        *results, _ = super().step(action)
        return *results, {"cpus": len(os.sched_getaffinity(0))}


def test_as_many_workers_as_cpus_sleep_each_on_its_own_and_step_on_all():
    allowed = os.sched_getaffinity(0)
    one_each = sorted([cpu] for cpu in allowed)
    with begun([SeesCpus] * len(allowed), seed=1, num_workers=len(allowed)) as envs:

        def all_sleep_at_home():
            """Step, with longer pauses than workers wait awake, which they learn to expect."""
            cpus = envs.step([TellingEnv.OK] * len(allowed))[4]["cpus"]
            assert cpus.tolist() == [len(allowed)] * len(allowed)
            until, homes = time.monotonic() + 0.01, []
            while time.monotonic() < until and homes != one_each:
                homes = sorted([*os.sched_getaffinity(pid)] for pid in envs._pool.pids)
            return homes == one_each

        wait_until(all_sleep_at_home)
        envs.step([TellingEnv.OK] * len(allowed))
    assert os.sched_getaffinity(0) == allowed
