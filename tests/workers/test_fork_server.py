"""The fork server: its workers belong to the right pools, whatever happens; its imports."""

import contextlib
import gc
import os
import signal
import threading
from pathlib import Path

import pytest
from fork_server_in_tests import alive, run, wait_until
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from interrupts import at_point
from made_up import TellingEnv

import pysampler
from pysampler._workers import children, fork_server
from pysampler._workers.launcher import Launcher


class Pools(RuleBasedStateMachine):
    """Pools that start, lose, replace and drop workers, while fork servers retire and die.

    The model knows the workers that must be alive: each one that was started and not ended, as
    long as its launcher exists. Neither the end of another worker nor an interrupt changes that.
    """

    def __init__(self):
        super().__init__()
        self.launchers = []
        self.workers = []  # by launcher: {index: child}
        self.gone = []
        gc.freeze()  # else each collection looks at all that other tests have imported

    @precondition(lambda self: len(self.launchers) < 3)
    @rule()
    def make(self):
        self.launchers.append(Launcher("forkserver"))
        self.workers.append({})

    @precondition(lambda self: self.launchers)
    @rule(which=st.integers(0, 9), index=st.integers(0, 2))
    def start(self, which, index):
        which %= len(self.launchers)
        if (before := self.workers[which].pop(index, None)) is not None:
            self.end(before)
        self.workers[which][index] = self.launchers[which].start(None)

    def end(self, child):
        child.kill()
        assert child.ended(60)
        self.gone.append(child.pid)

    @precondition(lambda self: self.launchers)
    @rule(which=st.integers(0, 9), point=st.integers(1, 120))
    def start_interrupted(self, which, point):
        which %= len(self.launchers)
        _, child, _ = at_point(point, lambda: self.launchers[which].start(None))
        if child is not None:
            self.end(child)
            assert child.status() in (-9, None)

    @precondition(lambda self: any(self.workers))
    @rule(pick=st.integers(0, 99))
    def kill(self, pick):
        which, index = sorted((w, i) for w, some in enumerate(self.workers) for i in some)[
            pick % sum(map(len, self.workers))
        ]
        child = self.workers[which].pop(index)
        self.end(child)
        # Only a living fork server knows the status, and it reports this worker's.
        assert child.status() in (-9, None)
        child.release()

    @precondition(lambda self: self.launchers)
    @rule(which=st.integers(0, 9), waits=st.booleans())
    def close(self, which, waits):
        which %= len(self.launchers)
        workers = self.workers.pop(which).values()
        for child in workers:
            self.end(child)
        self.launchers.pop(which).close([child.pid for child in workers], 60 if waits else 0)

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
            # Its workers survive it, and their pools end them.
            for some in self.workers:
                for index, child in list(some.items()):
                    if child._process._server is dead:
                        self.end(some.pop(index))

    @invariant()
    def expected_workers_are_alive(self):
        for some in self.workers:
            for child in some.values():
                assert not child.ended()
                assert alive(child.pid)

    def teardown(self):
        for some in self.workers:
            for child in some.values():
                self.end(child)
        for launcher in self.launchers:
            launcher.close()
        wait_until(lambda: not any(map(alive, self.gone)))
        gc.unfreeze()


Pools.TestCase.settings = settings(
    max_examples=15,
    derandomize=True,  # campaigns vary the seed instead
    stateful_step_count=30,
    suppress_health_check=list(HealthCheck),
)


# An interrupted start leaves its files to finalizers; exceptions in those are unraisable.
TestPools = pytest.mark.slow(
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")(Pools.TestCase)
)


def test_any_number_of_modules_may_be_preloaded():
    first = fork_server.current()
    names = [f"absent.module_{i:0500d}" for i in range(500)]  # too many for one message
    first.load(names)
    assert first.busy()
    assert fork_server.current() is first
    wait_until(lambda: not first.busy())


def test_a_stopped_fork_server_does_not_keep_a_program_that_preloads_waiting():
    server = fork_server.current()
    os.kill(server._process.pid, signal.SIGSTOP)
    try:
        server.load([f"absent.module_{i:0500d}" for i in range(5000)])
        assert server.busy()
    finally:
        os.kill(server._process.pid, signal.SIGCONT)
    wait_until(lambda: not server.busy())


def test_answers_to_requests_that_were_given_up_are_dropped():
    launcher = Launcher("forkserver")
    server = fork_server.current()
    for _ in range(3):
        ours, theirs = children.socket_pair()
        with contextlib.closing(ours), contextlib.closing(theirs):
            server._send(("fork", server._number()), theirs.fileno(), 1, 2)
    workers = [launcher.start(None) for _ in range(20)]
    assert len({worker.pid for worker in workers}) == 20
    for worker in workers[1:]:
        worker.kill()
    wait_until(lambda: not any(Path(f"/proc/{worker.pid}").exists() for worker in workers[1:]))
    assert [worker.status() for worker in workers[1:]] == [-signal.SIGKILL] * 19
    assert not workers[0].ended()
    workers[0].kill()
    launcher.close([workers[0].pid], 60)
    assert not Path(f"/proc/{workers[0].pid}").exists()


def test_a_retired_fork_server_tells_exit_codes_until_its_last_pool_closes(monkeypatch):
    monkeypatch.setattr(fork_server, "_fork_servers", [])
    launchers = [Launcher("forkserver") for _ in range(2)]
    workers = [one.start(None) for one in launchers]
    server = fork_server.current()
    server.retire()
    assert fork_server.current() is not server
    for launcher, worker in zip(launchers, workers, strict=True):
        worker.kill()
        assert worker.ended(60)
        assert worker.status() == -signal.SIGKILL
        assert not server.ended
        launcher.close([worker.pid], 60)
    assert server._process.ended(60)
    fork_server.current().leave()


def test_a_launcher_that_is_dropped_parts_with_its_fork_server(monkeypatch):
    monkeypatch.setattr(fork_server, "_fork_servers", [])
    launcher = Launcher("forkserver")
    worker = launcher.start(None)
    server = fork_server.current()
    server.retire()
    worker.kill()
    del launcher
    assert server._process.ended(60)


def test_an_import_that_ends_the_fork_server_is_made_by_no_other(tmp_path, monkeypatch):
    monkeypatch.setattr(fork_server, "_fork_servers", [])
    (tmp_path / "ends_it.py").write_text("import os\nos._exit(7)\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pysampler.VectorEnv([TellingEnv], num_workers=1, preload=["ends_it"]) as envs:
        envs.reset()
    fork_server.preload(["ends_it"])
    server = fork_server._fork_servers[-1]
    assert server._process.ended(60)
    assert server.how_it_ended() == "the fork server ended with exit code 7"


def test_a_signal_handler_may_start_workers_while_its_thread_waits_for_one(monkeypatch):
    launcher = Launcher("forkserver")
    server = fork_server.current()
    wait_until(lambda: not server.busy())
    started = []

    def readable(file, timeout=0, look=children.is_readable):
        found = look(file, timeout)
        if file is server._door and not started:  # the answer has come, and a handler reads it
            started.append(None)
            started[0] = launcher.start(None)
        return found and look(file)

    monkeypatch.setattr(children, "is_readable", readable)
    child = launcher.start(None)
    monkeypatch.undo()
    assert child.pid != started[0].pid
    for one in (child, started[0]):
        one.kill()
    launcher.close()
    assert child.status() == started[0].status() == -signal.SIGKILL


def test_threads_that_start_workers_do_not_keep_others_from_exit_codes():
    launcher = Launcher("forkserver")
    over = threading.Event()

    def start():
        while not over.is_set():
            one = launcher.start(None)
            one.kill()
            one.release()

    thread = threading.Thread(target=start)
    thread.start()
    try:
        for _ in range(20):
            child = launcher.start(None)
            child.kill()
            assert child.ended(60)
            assert child.status() == -signal.SIGKILL
    finally:
        over.set()
        thread.join()


def test_an_interrupted_request_for_imports_leaves_the_server_idle(monkeypatch):
    server = fork_server.current()

    def interrupted(*_, **__):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(server, "_send", interrupted)
        with pytest.raises(KeyboardInterrupt):
            server.load(["decimal"])
    wait_until(lambda: not server.busy())


def test_an_import_that_ignores_ends_of_children_does_not_keep_the_server_from_reaping(
    tmp_path, monkeypatch
):
    (tmp_path / "ignores.py").write_text(
        "import signal\nsignal.signal(signal.SIGCHLD, signal.SIG_IGN)\nsignal.set_wakeup_fd(-1)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(fork_server, "_fork_servers", [])
    fork_server.preload(["ignores"])
    launcher = Launcher("forkserver")
    child = launcher.start(None)
    child.kill()
    assert child.ended(60)
    assert child.status() == -signal.SIGKILL
    fork_server.current().leave()


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
        while not first.ended:  # with its last workers, once no pool asks it for exit codes
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
