"""The fork server: its workers belong to the right pools, whatever happens; its imports."""

import gc
import os
import signal
import socket
from pathlib import Path

import pytest
from fork_server_in_tests import alive, run, wait_until
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from interrupts import at_point

from pysampler._workers import children, fork_server
from pysampler._workers.launcher import Launcher


class Lines(RuleBasedStateMachine):
    """Pools that start, lose, replace and drop workers, while fork servers retire and die.

    The model knows the workers that must be alive: each one that was started and not ended, as
    long as its launcher exists. Neither the end of another worker nor an interrupt changes that.
    """

    def __init__(self):
        super().__init__()
        self.launchers = []
        self.workers = []  # by launcher: {index: child}
        self.gone = []

    @precondition(lambda self: len(self.launchers) < 3)
    @rule()
    def make(self):
        self.launchers.append(Launcher("forkserver"))
        self.workers.append({})

    @precondition(lambda self: self.launchers)
    @rule(which=st.integers(0, 9), index=st.integers(0, 2))
    def start(self, which, index):
        which %= len(self.launchers)
        before = self.workers[which].pop(index, None)
        self.workers[which][index] = self.launchers[which].start(index, None)
        if before is not None:  # one worker per index: the earlier one ends
            retired = before._process._line is not self.workers[which][index]._process._line
            if retired:
                before.kill()
            assert before.ended(60)
            self.gone.append(before.pid)

    @precondition(lambda self: self.launchers)
    @rule(which=st.integers(0, 9), index=st.integers(3, 4), point=st.integers(1, 120))
    def start_interrupted(self, which, index, point):
        which %= len(self.launchers)
        _, child, _ = at_point(point, lambda: self.launchers[which].start(index, None))
        if child is not None:
            child.kill()
            assert child.ended(60)
            assert child.status() in (-9, None)

    @precondition(lambda self: any(self.workers))
    @rule(pick=st.integers(0, 99))
    def kill(self, pick):
        which, index = sorted((w, i) for w, some in enumerate(self.workers) for i in some)[
            pick % sum(map(len, self.workers))
        ]
        child = self.workers[which].pop(index)
        child.kill()
        assert child.ended(60)
        # Only a living fork server knows the status, and it reports this worker's.
        assert child.status() in (-9, None)
        child.release()
        self.gone.append(child.pid)

    @precondition(lambda self: self.launchers)
    @rule(which=st.integers(0, 9), waits=st.booleans())
    def close(self, which, waits):
        which %= len(self.launchers)
        self.gone += [child.pid for child in self.workers.pop(which).values()]
        self.launchers.pop(which).close(wait=60 if waits else 0)

    @precondition(lambda self: self.launchers)
    @rule(which=st.integers(0, 9))
    def drop(self, which):
        """Drop launcher and children without closing them."""
        which %= len(self.launchers)
        self.gone += [child.pid for child in self.workers.pop(which).values()]
        self.launchers.pop(which)
        gc.collect()

    @rule()
    def retire(self):
        """Retire, like a fork server that has threads."""
        if fork_server._fork_servers:
            fork_server._fork_servers[-1].retire()

    @rule()
    def lose(self):
        if fork_server._fork_servers:
            dead = fork_server._fork_servers[-1]
            dead._process.kill()
            dead._process.ended(60)
            # Its workers survive it; their launchers end them.
            for which, launcher in enumerate(self.launchers):
                if any(line.fork_server is dead for line in launcher._lines):
                    for child in self.workers[which].values():
                        child.kill()
                        self.gone.append(child.pid)
                    self.workers[which].clear()

    @invariant()
    def expected_workers_are_alive(self):
        for some in self.workers:
            for child in some.values():
                assert not child.ended()
                assert alive(child.pid)

    def teardown(self):
        for launcher in self.launchers:
            launcher.close()
        pids = [child.pid for some in self.workers for child in some.values()] + self.gone
        wait_until(lambda: not any(map(alive, pids)))


Lines.TestCase.settings = settings(
    max_examples=15,
    derandomize=True,  # campaigns vary the seed instead
    stateful_step_count=30,
    suppress_health_check=list(HealthCheck),
)


# An interrupted start leaves its files to finalizers; exceptions in those are unraisable.
TestLines = pytest.mark.slow(
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")(Lines.TestCase)
)


def test_any_number_of_modules_may_be_preloaded():
    first = fork_server.current()
    names = [f"absent.module_{i:0500d}" for i in range(500)]  # too many for one message
    assert first.load(names)
    assert fork_server.current() is first
    wait_until(lambda: not first.loading())
    while not first.preloaded.issuperset(names):  # it had no room for some while it was busy
        assert first.load(names)
        wait_until(lambda: not first.loading())


def test_a_stopped_fork_server_does_not_keep_a_program_that_preloads_waiting():
    server = fork_server.current()
    os.kill(server._process.pid, signal.SIGSTOP)
    try:
        names = [f"absent.module_{i:0500d}" for i in range(5000)]
        assert server.load(names)
        assert not server.preloaded.issuperset(names)
    finally:
        os.kill(server._process.pid, signal.SIGCONT)
    wait_until(lambda: not server.loading())


def test_exit_codes_reach_a_pool_that_reads_its_line_late(monkeypatch):
    def small_pair(kind):
        pair = socket_pair(kind)
        pair[1].setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 0)  # room for a few messages
        return pair

    fork_server.current()
    launcher, socket_pair = Launcher("forkserver"), children.socket_pair
    with monkeypatch.context() as patch:
        patch.setattr(children, "socket_pair", small_pair)
        launcher._line()
    workers = [launcher.start(index, None) for index in range(20)]
    for worker in workers:
        worker.kill()
    wait_until(lambda: not any(Path(f"/proc/{worker.pid}").exists() for worker in workers))
    living = launcher.start(20, None)  # its answer comes after the exit codes
    assert [worker.status() for worker in workers] == [-signal.SIGKILL] * 20
    assert not living.ended()
    launcher.close(60)


@pytest.mark.slow
def test_fork_server_with_threads_retires_and_keeps_its_workers(tmp_path):
    (tmp_path / "starts_a_thread.py").write_text(
        "import threading\nthreading.Thread(target=threading.Event().wait, daemon=True).start()\n"
    )
    out = run(
        """
        import pysampler
        from pysampler._workers import fork_server
        kwargs = {"num_workers": 2}
        a = pysampler.make_vec("CartPole-v1", num_envs=2, vector_kwargs=kwargs)
        a.reset()
        first = fork_server._fork_servers[-1]
        kwargs["preload"] = ["starts_a_thread"]
        b = pysampler.make_vec("CartPole-v1", num_envs=2, vector_kwargs=kwargs)
        b.reset()
        assert first.retired and not first.ended
        print(a.step([0, 0])[1].tolist(), b.step([0, 0])[1].tolist())
        a.close()
        while not first.ended:  # with its last workers
            pass
        print(b.step([0, 0])[1].tolist())
        """,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
    )
    assert out == "[1.0, 1.0] [1.0, 1.0]\n[1.0, 1.0]\n"


@pytest.mark.slow
def test_threads_started_by_sitecustomize_do_not_retire_the_fork_server(tmp_path):
    (tmp_path / "sitecustomize.py").write_text(
        "import threading\nthreading.Thread(target=threading.Event().wait, daemon=True).start()\n"
    )
    out = run(
        """
        import pysampler
        from pysampler._workers import fork_server
        for _ in range(3):
            envs = pysampler.make_vec("CartPole-v1", num_envs=2, vector_kwargs={"num_workers": 2})
            envs.reset()
            print(len(fork_server._fork_servers), envs.step([0, 0])[1].tolist())
        """,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
    )
    assert out == "1 [1.0, 1.0]\n" * 3


FIRST = """
    import os, sys
    import gymnasium as gym
    import pysampler
    from pysampler._workers import pool, processes

    def make(index):
        before = "decimal" in sys.modules
        if index == 0:
            {first}
        import decimal
        env = gym.make("CartPole-v1")
        env.before = before
        if index == 2:
            os.close(os.open({path!r}, os.O_CREAT))
        return env

    pool.usable_cpus = lambda: 1
    processes._FIRST = {patience}
    env_fns = [lambda index=index: make(index) for index in range(3)]
    envs = pysampler.VectorEnv(env_fns, num_workers={workers}, preload={preload})
    print(*envs.get_attr("before"))
    envs.close()
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("workers", "preload", "imported"),
    [(3, None, "False True True"), (2, None, "False True False"), (3, [], "False False False")],
)
def test_fork_server_preloads_imports_of_the_first_worker(workers, preload, imported, tmp_path):
    path = str(tmp_path / "made")
    values = {"first": "pass", "patience": 60.0, "workers": workers, "preload": preload}
    assert run(FIRST.format(path=path, **values)) == f"{imported}\n"


@pytest.mark.slow
def test_workers_do_not_wait_long_for_imports_of_the_first(tmp_path):
    path = str(tmp_path / "made")
    first = f"while not os.path.exists({path!r}): pass"
    values = {"first": first, "patience": 0.05, "workers": 3, "preload": None}
    run(FIRST.format(path=path, **values))
