"""Parents with stopped processes, lost privileges or closed descriptors, or that exit mid-step."""

import os
import signal
import textwrap

import gymnasium as gym
import pytest
from fork_server_in_tests import alive, wait_until
from made_up import TellingEnv
from programs import completed
from vectors import begun

import pysampler
from pysampler._vector import core
from pysampler._workers import children, fork_server
from pysampler._workers.pool import Pool
from pysampler.errors import PysamplerError

CONTEXTS = ["forkserver", "fork", "spawn"]


# Python 3.12 and newer warn of a fork beside threads, such as a watch: these programs mean to.
FORKING = "ignore:This process:DeprecationWarning"


def run(program, *arguments):
    """Run a program that must succeed; return its stdout and stderr."""
    done = completed("-W", FORKING, "-c", textwrap.dedent(program), *arguments)
    return done.stdout, done.stderr


# -- stopped processes -----------------------------------------------------------------------------


@pytest.fixture
def stopping(monkeypatch):
    """Return a function that stops a process (SIGSTOP) until the end of the test."""
    monkeypatch.setattr(children, "STOPPED", 0.1)
    monkeypatch.setattr("pysampler._workers.processes.STOPPED", 0.1)
    pids = []

    def stop(pid):
        pids.append(pid)
        os.kill(pid, signal.SIGSTOP)

    yield stop
    for pid in pids:
        if alive(pid):
            os.kill(pid, signal.SIGCONT)


def test_constructor_error_names_a_stopped_fork_server(stopping):
    pysampler.VectorEnv([TellingEnv], num_workers=1).close()
    pid = fork_server.current()._process.pid
    stopping(pid)
    with pytest.raises(
        PysamplerError, match=rf"the fork server \(pid {pid}\) is stopped; continue it"
    ):
        pysampler.VectorEnv([TellingEnv], num_workers=1)
    os.kill(pid, signal.SIGCONT)
    pysampler.VectorEnv([TellingEnv], num_workers=1).close()


class Stopping(gym.Wrapper):
    """Stops its worker from its constructor."""

    def __init__(self):
        super().__init__(TellingEnv())
        os.kill(os.getpid(), signal.SIGSTOP)


@pytest.mark.parametrize("context", CONTEXTS)
@pytest.mark.usefixtures("stopping")
def test_constructor_error_names_a_stopped_worker(context):
    with pytest.raises(PysamplerError, match=r"cannot start workers: worker 1 \(pid \d+\) is stop"):
        pysampler.VectorEnv([TellingEnv, Stopping], num_workers=2, context=context)


def test_close_does_not_wait_for_a_stopped_worker(stopping, monkeypatch):
    monkeypatch.setattr(Pool.close, "__defaults__", (1e6,))
    envs = begun([TellingEnv] * 2, num_workers=2)
    stopping(envs._pool.pids[1])
    with pytest.warns(UserWarning, match=r"workers \[1\] are stopped \(SIGSTOP\): they are killed"):
        envs.close()


@pytest.mark.slow
def test_close_does_not_wait_for_the_step_of_a_stopped_worker(stopping, monkeypatch):
    monkeypatch.setattr(core, "SHUTDOWN_TIMEOUT_S", 1e6)
    envs = begun([TellingEnv] * 2, num_workers=2)
    stopping(envs._pool.pids[1])
    envs.step_async([0, 0])
    with pytest.warns(UserWarning, match="Calling `close` while waiting"):
        envs.close()


# -- lost privileges, closed descriptors -----------------------------------------------------------

PROGRAM = """
import os, sys, threading, warnings
import gymnasium as gym
import pysampler
from pysampler.errors import PysamplerError

class Hanging(gym.Env):
    observation_space = action_space = gym.spaces.Discrete(2)
    def reset(self, *, seed=None, options=None):
        return 0, {}
    def step(self, action):
        while action == 1:
            threading.Event().wait()
        return 0, 0.0, False, False, {}

envs = pysampler.VectorEnv([Hanging] * 2, num_workers=2, context=sys.argv[1])
envs.reset()
pids = envs._pool.pids
"""


@pytest.mark.slow
@pytest.mark.skipif(os.getuid() != 0, reason="only root may take another user id")
@pytest.mark.parametrize("terminate", [False, True])
@pytest.mark.parametrize("context", CONTEXTS)
def test_close_after_setuid_ends_workers(context, terminate):
    program = """
os.setuid(65534)
if sys.argv[2] == "True":
    envs.step_async([0, 1])
    warnings.simplefilter("ignore")
    envs.close(terminate=True)
else:
    envs.close()
print(*pids, flush=True)
"""
    out, err = run(PROGRAM + program, context, str(terminate))
    assert err == ""
    wait_until(lambda: not any(alive(int(pid)) for pid in out.split()))


@pytest.mark.slow
@pytest.mark.parametrize("hanging", [0, 1])
@pytest.mark.parametrize("context", CONTEXTS)
def test_step_error_reports_descriptors_closed_by_the_program(context, hanging):
    program = """
os.closerange(3, 1000)
try:
    envs.step([0, int(sys.argv[2])])
    while True:
        envs.step([0, 0])
except PysamplerError as error:
    print(error)
assert envs.closed
again = pysampler.VectorEnv([Hanging] * 2, num_workers=2, context=sys.argv[1])
again.reset()
again.step([0, 0])
again.close()
print(*pids)
"""
    out, err = run(PROGRAM + program, context, str(hanging))
    assert err == ""
    told, pids = out.splitlines()
    assert "something in this process closed file descriptors of pysampler" in told
    wait_until(lambda: not any(alive(int(pid)) for pid in pids.split()))


@pytest.mark.slow
@pytest.mark.parametrize("context", CONTEXTS)
def test_files_that_reuse_closed_descriptor_numbers_stay_open(context):
    program = """
os.closerange(3, 1000)
files = [os.open(os.devnull, os.O_RDONLY) for _ in range(60)]  # a daemon's logs, say
with contextlib.suppress(PysamplerError):
    envs.step([0, 0])
envs.close()
del envs
gc.collect()
for fd in files:
    os.fstat(fd)
print(*pids)
"""
    out, err = run("import contextlib, gc\n" + PROGRAM + program, context)
    assert err == ""
    wait_until(lambda: not any(alive(int(pid)) for pid in out.split()))


@pytest.mark.slow
@pytest.mark.parametrize("context", CONTEXTS)
def test_fork_closes_no_files_that_reuse_inherited_numbers(context):
    program = """
pid = os.fork()
if pid == 0:  # becomes a daemon
    os.closerange(3, 1000)
    files = [os.open(os.devnull, os.O_RDONLY) for _ in range(60)]
    del envs
    gc.collect()
    try:
        [os.fstat(fd) for fd in files]
    except OSError:
        os._exit(7)
    os._exit(0)
assert os.waitpid(pid, 0)[1] == 0
envs.step([0, 0])
envs.close()
"""
    assert run("import gc\n" + PROGRAM + program, context) == ("", "")


@pytest.mark.slow
@pytest.mark.parametrize("context", CONTEXTS)
def test_fork_keeps_no_pidfds_of_a_vector_env_that_its_parent_closed(context):
    program = """
ours, theirs = os.pipe()
pid = os.fork()
if pid == 0:
    os.read(ours, 1)
    del envs
    gc.collect()
    links = [os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")
             if os.path.lexists(f"/proc/self/fd/{fd}")]
    os._exit(sum("pidfd" in link for link in links))
envs.close()
os.write(theirs, b"x")
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""
    assert run("import gc\n" + PROGRAM + program, context) == ("0\n", "")


@pytest.mark.slow
def test_watch_closes_after_the_program_closed_its_descriptors():
    """Its thread waits for no other file, such as the program's own epoll."""
    program = """
    import os, select, time
    from pysampler import sync

    before = set(os.listdir("/proc/self/task"))
    watch = sync.Watch()
    [thread] = set(os.listdir("/proc/self/task")) - before
    os.closerange(3, 1000)
    epoll = [select.epoll() for _ in range(60)]
    for one in epoll:
        one.register(1, select.EPOLLOUT)  # always ready
    while os.path.exists(f"/proc/self/task/{thread}"):
        time.sleep(0.01)  # poll: the end of a thread wakes nobody
    watch.close()
    """
    assert run(program) == ("", "")


# -- exits -----------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("restart", ["raise", "restart"])
@pytest.mark.parametrize("context", CONTEXTS)
def test_daemon_thread_stepping_at_exit_prints_nothing(context, restart):
    program = """
fns = [Hanging] * 2
other = pysampler.VectorEnv(
    fns, num_workers=2, context=sys.argv[1], on_worker_loss=sys.argv[2]
)
other.reset()
stepped = threading.Event()
def steps():
    while True:
        other.step([0, 0])
        stepped.set()
threading.Thread(target=steps, daemon=True).start()
stepped.wait()
"""
    for _ in range(2):
        assert run(PROGRAM + program, context, restart) == ("", "")
