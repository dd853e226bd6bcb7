"""Inheritance by workers and env subprocesses, and their ends; signals, forks, descriptors."""

import contextlib
import gc
import itertools
import os
import resource
import signal
import socket
import subprocess
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import connection
from pathlib import Path

import gymnasium as gym
import psutil
import pytest
from fork_server_in_tests import alive, run, wait_until
from interrupts import at_point
from made_up import TellingEnv
from programs import completed
from vectors import begun

import pysampler
from pysampler._workers import fork_server
from pysampler._workers.launcher import Launcher
from pysampler.errors import WorkerLostError


class Server(gym.Wrapper):
    """Starts background processes, like an env with a simulator."""

    def __init__(self):
        super().__init__(TellingEnv())
        os.system("sleep 1000 & echo $! > /dev/null")
        self.server = subprocess.Popen(["sh", "-c", "sleep 1000 & echo $!; wait"], stdout=-1)
        self.sleeper = int(self.server.stdout.readline())

    def pids(self):
        return self.server.pid, self.sleeper


@pytest.mark.slow
@pytest.mark.parametrize("context", ["forkserver", "spawn", "fork"])
def test_env_subprocesses_end_only_with_their_own_worker(context):
    with pysampler.VectorEnv([Server] * 2, num_workers=2, context=context) as envs:
        pids = [pid for both in envs.call("pids") for pid in both]
        # The ends of other pools' workers must not affect them.
        pysampler.VectorEnv([TellingEnv], num_workers=1).close()
        pysampler.VectorEnv([TellingEnv], num_workers=1, context="spawn").close()
        assert all(map(alive, pids))
        envs.reset()
    wait_until(lambda: not any(map(alive, pids)))


@pytest.mark.slow
def test_killing_a_worker_ends_its_env_subprocesses():
    with begun([Server] * 2, num_workers=2, on_worker_loss="restart") as envs:
        pids = envs.call("pids")
        os.kill(envs._pool.pids[1], signal.SIGKILL)
        while not envs.step([0, 0])[3][1]:
            pass
        wait_until(lambda: not any(map(alive, pids[1])))
        assert all(map(alive, pids[0]))


@pytest.mark.slow
def test_workers_do_not_import_from_the_current_directory(tmp_path):
    for name in ("json", "os", "pickle", "socket", "pysampler"):
        (tmp_path / f"{name}.py").write_text(f"open('imported-{name}', 'w')\nraise SystemExit(3)\n")
    program = tmp_path / "elsewhere" / "program.py"
    program.parent.mkdir()
    program.write_text(
        "import pysampler\n"
        "for context in ('forkserver', 'spawn'):\n"
        "    kwargs = {'num_workers': 1, 'context': context}\n"
        "    envs = pysampler.make_vec('CartPole-v1', num_envs=1, vector_kwargs=kwargs)\n"
        "    print(envs.reset()[0].shape)\n"
        "    envs.close()\n"
    )
    assert completed(str(program), cwd=tmp_path).stdout == "(1, 4)\n" * 2
    assert not list(tmp_path.glob("imported*"))


@pytest.mark.slow
@pytest.mark.parametrize("closed", [(1,), (0, 1, 2), (2,)])
def test_workers_start_with_standard_streams_closed(closed, tmp_path):
    run(f"""
        import os
        for fd in {closed}:
            os.close(fd)
        import pysampler
        from pysampler._workers import fork_server
        for _ in range(2):
            envs = pysampler.make_vec("CartPole-v1", num_envs=2, vector_kwargs={{"num_workers": 2}})
            envs.reset()
            assert envs.step([0, 0])[1].tolist() == [1, 1]
            envs.close()
            while fork_server._fork_servers[-1].busy():  # it must survive its imports
                assert not fork_server._fork_servers[-1].ended
        assert len(fork_server._fork_servers) == 1
        open({str(tmp_path / "done")!r}, "w").close()
    """)
    assert (tmp_path / "done").exists()


@pytest.mark.slow
@pytest.mark.parametrize("context", ["forkserver", "spawn"])
def test_env_subprocesses_inherit_no_descriptors(context):
    def env_fn():
        import subprocess
        import sys

        from made_up import TellingEnv

        env = TellingEnv()
        show = "import os; print(*sorted(map(int, os.listdir('/proc/self/fd')))[3:-1])"
        # Inherit like a program started by os.system: all that is inheritable.
        env.inherited = subprocess.run(
            [sys.executable, "-c", show],
            close_fds=False,
            capture_output=True,
            text=True,
            check=True,
        ).stdout.split()
        return env

    with pysampler.VectorEnv([env_fn] * 2, num_workers=2, context=context) as envs:
        assert envs.get_attr("inherited") == ([], [])


@pytest.mark.slow
def test_fork_server_exits_while_a_fork_of_its_parent_lives():
    out = run("""
        import os, pysampler
        from pysampler._workers import fork_server
        envs = pysampler.make_vec("CartPole-v1", num_envs=2, vector_kwargs={"num_workers": 2})
        envs.reset()
        hold, release = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(release)
            os.read(hold, 1)
            os._exit(0)
        os.close(hold)
        envs.close()
        one = fork_server._fork_servers[-1]
        while one.busy():
            pass
        one.leave()
        print(one._process.status())
        os.close(release)
        os.waitpid(child, 0)
    """)
    assert out == "0\n"  # by itself, not because it was killed in the end


@pytest.mark.slow
@pytest.mark.parametrize("sent", ["SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2", "SIGINT"])
@pytest.mark.parametrize("context", ["forkserver", "spawn", "fork"])
def test_workers_survive_a_signal_sent_to_all_processes(context, sent):
    """SLURM, systemd and `timeout` signal every process of a job; the parent decides."""
    out = run(f"""
        import os, signal, subprocess, pysampler, psutil
        from gymnasium.envs.classic_control import CartPoleEnv
        class Simulator(CartPoleEnv):
            def __init__(self):
                super().__init__()
                self.process = subprocess.Popen(["sleep", "1000"])
            def ended_by(self):
                return self.process.wait()
        asked = []
        signal.signal(signal.{sent}, lambda *_: asked.append(True))
        envs = pysampler.VectorEnv([Simulator] * 2, num_workers=2, context={context!r})
        envs.reset()
        for process in psutil.Process().children(recursive=True):
            process.send_signal(signal.{sent})
        os.kill(os.getpid(), signal.{sent})
        assert asked == [True]
        print(envs.step([0, 0])[1].tolist())
        # Subprocesses of envs have the default handlers.
        print(envs.call("ended_by") == (-signal.{sent},) * 2)
        envs.close()
    """)
    assert out == "[1.0, 1.0]\nTrue\n"


@pytest.mark.slow
def test_workers_survive_signals_while_they_start():
    out = run("""
        import os, signal, pysampler, psutil, threading
        signal.signal(signal.SIGTERM, lambda *_: None)
        stop = threading.Event()
        def send():
            while not stop.is_set():
                for process in psutil.Process().children(recursive=True):
                    try:
                        process.send_signal(signal.SIGTERM)
                    except psutil.NoSuchProcess:
                        pass
        thread = threading.Thread(target=send)
        thread.start()
        for context in ("forkserver", "spawn", "fork"):
            kwargs = {"num_workers": 2, "context": context}
            for _ in range(3):
                envs = pysampler.make_vec("CartPole-v1", num_envs=2, vector_kwargs=kwargs)
                envs.reset()
                envs.close()
        stop.set()
        thread.join()
        print("well")
    """)
    assert out == "well\n"


@pytest.mark.slow
def test_pools_made_in_threads_do_not_disturb_another_pool():
    def make():
        for _ in range(15):
            with begun([TellingEnv] * 2, num_workers=2) as envs:
                assert envs.step([0, 0])[1].tolist() == [1, 1]

    with begun([TellingEnv] * 2, num_workers=2) as other, ThreadPoolExecutor(3) as threads:
        made = [threads.submit(make) for _ in range(3)]
        while not all(one.done() for one in made):
            assert other.step([0, 0])[1].tolist() == [1, 1]
        for one in made:
            one.result()


@pytest.mark.slow
def test_fork_exits_cleanly_while_another_thread_makes_pools():
    out = run("""
        import os, threading, pysampler
        stop = threading.Event()
        def make():
            while not stop.is_set():
                kwargs = {"num_workers": 2}
                pysampler.make_vec("CartPole-v1", num_envs=2, vector_kwargs=kwargs).close()
        pysampler.make_vec("CartPole-v1", num_envs=2).close()
        thread = threading.Thread(target=make)
        thread.start()
        for _ in range(30):
            child = os.fork()
            if child == 0:
                raise SystemExit(0)  # runs the exit handlers
            assert os.waitpid(child, 0)[1] == 0
        stop.set()
        thread.join()
        print("well")
    """)
    assert out == "well\n"


@pytest.mark.slow
def test_collecting_pools_in_cycles_does_not_deadlock():
    """Finalizers can run while their thread waits for the fork server to start a worker."""
    out = run("""
        import gc, pysampler
        gc.set_threshold(50, 2, 2)
        class Trainer:
            def __init__(self):
                kwargs = {"num_workers": 3}
                self.envs = pysampler.make_vec("CartPole-v1", num_envs=3, vector_kwargs=kwargs)
                self.me = self
        for _ in range(60):
            Trainer().envs.reset()
        print("well")
    """)
    assert out == "well\n"


@pytest.mark.slow
def test_env_subprocesses_end_if_the_program_exits_during_a_preload(tmp_path):
    (tmp_path / "takes_long.py").write_text("import time\ntime.sleep(100)\n")
    out = run(
        """
        import subprocess
        import pysampler
        from pysampler._workers import fork_server
        from gymnasium.envs.classic_control import CartPoleEnv
        class Simulator(CartPoleEnv):
            def __init__(self):
                super().__init__()
                self.process = subprocess.Popen(["sleep", "1000"])
                self.pid = self.process.pid
        envs = pysampler.VectorEnv([Simulator] * 2, num_workers=2)
        envs.reset()
        print(*envs.get_attr("pid"), *envs._pool.pids, flush=True)
        fork_server.preload(["takes_long"])
        """,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
    )
    wait_until(lambda: not any(alive(int(pid)) for pid in out.split()))


@pytest.mark.slow
@pytest.mark.parametrize("context", ["forkserver", "spawn", "fork"])
def test_workers_print_to_a_replaced_stdout(context, tmp_path):
    log = tmp_path / "log"
    run(f"""
        import os, sys
        os.close(1)
        assert os.open({str(log)!r}, os.O_CREAT | os.O_WRONLY | os.O_APPEND) == 1
        import pysampler
        from gymnasium.envs.classic_control import CartPoleEnv
        class Says(CartPoleEnv):
            def step(self, action):
                os.write(1, b"said by an env\\n")
                return super().step(action)
        envs = pysampler.VectorEnv([Says] * 2, num_workers=2, context={context!r})
        envs.reset()
        envs.step([0, 0])
        envs.close()
    """)
    assert log.read_text() == "said by an env\n" * 2


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_children_of_an_interrupted_start_are_reaped():
    for n in range(1, 400, 17):
        # A point in the child of the fork ends that worker.
        with contextlib.suppress(WorkerLostError):
            at_point(n, lambda: pysampler.VectorEnv([TellingEnv] * 2, context="fork"))

    def zombies():
        return [c for c in psutil.Process().children() if c.status() == psutil.STATUS_ZOMBIE]

    wait_until(lambda: not zombies())


@pytest.mark.slow
@pytest.mark.parametrize("context", ["forkserver", "spawn"])
def test_interrupts_in_the_standard_library_leak_no_descriptors(context):
    """No Python code, ours or not, runs between opening a descriptor and making its owner."""
    pysampler.VectorEnv([TellingEnv], num_workers=1, context=context).close()
    before = psutil.Process().num_fds()
    for n in itertools.count(1):
        launcher = Launcher(context)
        reached, child, _ = at_point(
            *(n, lambda own=launcher: own.start(None)),
            only=("socketpair", "__init__", "socket_pair", "fork", "_start_here", "start"),
            also=[socket.__file__, connection.__file__],
        )
        if child is not None:
            child.kill()
            assert child.ended(60)
        launcher.close()
        del launcher, child
        gc.collect()

        wait_until(lambda: psutil.Process().num_fds() <= before)
        if not reached:
            break
    assert n > 10


@pytest.mark.slow
def test_fork_server_out_of_descriptors_keeps_serving_its_pools(capfd):
    first = pysampler.VectorEnv([TellingEnv], num_workers=1)
    one = fork_server._fork_servers[-1]
    taken = {int(fd.name) for fd in Path(f"/proc/{one._process.pid}/fd").iterdir()}
    lowest = min(set(range(len(taken) + 1)) - taken)
    _, hard = resource.prlimit(one._process.pid, resource.RLIMIT_NOFILE)
    resource.prlimit(one._process.pid, resource.RLIMIT_NOFILE, (lowest, hard))
    second = pysampler.VectorEnv([TellingEnv], num_workers=1)
    assert fork_server._fork_servers[-1] is not one
    assert not one.ended
    for envs in (first, second):
        envs.reset()
        envs.close()
    one.leave()  # later tests start another
    assert "Traceback" not in capfd.readouterr().err
