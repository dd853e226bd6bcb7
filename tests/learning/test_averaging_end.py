"""Averaging whose workers die, are interrupted or are closed."""

import contextlib
import functools
import os
import signal
import threading

import psutil
import pytest
from averaging_in_tests import WORKERS, Adds, left
from interrupts import at_each_point
from programs import completed

from pysampler._learning.averaging import Averaging
from pysampler.errors import BusyError, ClosedError, WaitTimeoutError, WorkerLostError


class Hangs(Adds):
    """In its second round, trainer 1 writes "at work" and waits to read "go on"."""

    def __init__(self, folder, index, seed):
        super().__init__(index, seed)
        self.folder = folder

    def train(self, steps):
        if (self.index, self.rounds) == (1, 1):
            (self.folder / "at work").write_text("")  # blocks until the test reads it
            (self.folder / "go on").read_text()  # blocks until the test writes
        return super().train(steps)


def at_work(folder, then):
    """Start a thread that calls ``then`` once the trainer is at work."""

    def run():
        (folder / "at work").read_text()
        then()

    thread = threading.Thread(target=run)
    thread.start()
    return thread


def kill_at_work(averaging, index, folder):
    pid = averaging._pool.pids[index]
    return at_work(folder, lambda: os.kill(pid, signal.SIGKILL))


def test_a_worker_killed_while_training_raises(fifos, nothing_left):
    with Averaging(functools.partial(Hangs, fifos), 3) as averaging:
        averaging.round(1)
        pids = averaging._pool.pids
        killer = kill_at_work(averaging, 1, fifos)
        with pytest.raises(
            WorkerLostError, match=r"worker 1 \(pid \d+\) lost: signal 9 while training trainer 1"
        ):
            averaging.round(1)
        killer.join()
        assert averaging.closed
        assert averaging.weights["w"].tolist() == [2.0, 2.0]
        assert not any(map(psutil.pid_exists, pids))


def test_a_worker_killed_while_training_restarts_if_asked(fifos, nothing_left):
    make = functools.partial(Hangs, fifos)
    with Averaging(make, 3, on_worker_loss="restart", seed=1) as averaging:
        first = averaging.round(1)
        assert averaging.weights["w"][0] == 2.0
        killer = kill_at_work(averaging, 1, fifos)
        second = averaging.round(1)
        killer.join()
        assert second.lost == [1]
        assert second.reports[1] == {}
        assert second.seconds["training"][1] == 0
        assert averaging.weights["w"].tolist() == [4.0, 4.0]  # the mean of 2 + 1 and 2 + 3
        third = averaging.round(1)
        assert third.lost == []
        assert [report["began"] for report in third.reports] == [4.0] * 3
        assert averaging.weights["w"].tolist() == [6.0, 6.0]
        seeds = [[report["seed"] for report in round_.reports] for round_ in (first, third)]
        assert seeds[0][1] != seeds[1][1]
        assert seeds[0][::2] == seeds[1][::2]


def test_a_worker_killed_between_rounds_restarts():
    with Averaging(Adds, 2, on_worker_loss="restart") as averaging:
        averaging.round(2)
        os.kill(averaging._pool.pids[0], signal.SIGKILL)
        assert averaging._pool._processes.children[0].ended(10)
        assert averaging.round(2).lost == [0]
        assert averaging.weights["w"].tolist() == [7.0, 7.0]
        assert averaging.round(2).lost == []


def test_the_average_is_kept_if_all_workers_die(tmp_path):
    class Dies(Adds):
        def train(self, steps):
            if not (mark := tmp_path / str(self.index)).exists():
                mark.touch()
                os._exit(7)
            return super().train(steps)

    with Averaging(Dies, 2, on_worker_loss="restart") as averaging:
        assert averaging.round(2).lost == [0, 1]
        assert averaging.weights["w"].tolist() == [0.0, 0.0]
        averaging.round(2)
        assert averaging.weights["w"].tolist() == [3.0, 3.0]


def test_a_worker_lost_more_than_max_restarts_raises(nothing_left):
    class Dies(Adds):
        def train(self, steps):
            if self.index == 1:
                os._exit(7)
            return super().train(steps)

    options = {"on_worker_loss": "restart", "max_restarts": 1, "restart_window": 100.0}
    with Averaging(Dies, 2, **options) as averaging:
        assert averaging.round(1).lost == [1]
        with pytest.raises(WorkerLostError, match=r"exit code 7 .*; it was replaced before: "):
            averaging.round(1)


def test_the_first_worker_may_die_before_sending_its_weights(tmp_path):
    class Dies(Adds):
        asked = 0

        def state_dict(self):
            self.asked += 1
            if self.index == 0 and self.asked == 2 and not (tmp_path / "died").exists():
                (tmp_path / "died").touch()
                os._exit(7)
            return super().state_dict()

    with Averaging(Dies, 2, on_worker_loss="restart") as averaging:
        assert (tmp_path / "died").exists()
        assert averaging.round(1).lost == []


def test_the_first_worker_may_not_die_for_ever_before_sending_its_weights(nothing_left):
    class Dies(Adds):
        asked = 0

        def state_dict(self):
            self.asked += 1
            if self.asked == 2:
                os._exit(7)
            return super().state_dict()

    options = {"on_worker_loss": "restart", "max_restarts": 2, "restart_window": 1e-9}
    with pytest.raises(WorkerLostError, match="exit code 7"):
        Averaging(Dies, 1, **options)


# -- ends ------------------------------------------------------------------------------------------


def interrupted(averaging, folder, monkeypatch):
    """Send Ctrl-C in a round while a trainer works and this process waits for it."""
    waits = threading.Event()
    wait_some = averaging._pool.wait_some

    def tells(*args):
        waits.set()
        return wait_some(*args)

    monkeypatch.setattr(averaging._pool, "wait_some", tells)

    def interrupt():
        waits.wait()
        os.kill(os.getpid(), signal.SIGINT)

    thread = at_work(folder, interrupt)
    with pytest.raises(KeyboardInterrupt):
        averaging.round(1)
    thread.join()


def test_the_round_after_ctrl_c_drops_the_interrupted_one(fifos, monkeypatch):
    with Averaging(functools.partial(Hangs, fifos), 2) as averaging:
        averaging.round(1)
        interrupted(averaging, fifos, monkeypatch)
        assert averaging.weights["w"].tolist() == [1.5, 1.5]
        (fifos / "go on").write_text("")
        round_ = averaging.round(1)
        assert [report["began"] for report in round_.reports] == [1.5, 1.5]
        assert averaging.weights["w"].tolist() == [3.0, 3.0]


def test_the_round_after_a_timeout_drops_the_late_one(fifos):
    with Averaging(functools.partial(Hangs, fifos), 2) as averaging:
        averaging.round(1, timeout=60)
        thread = at_work(fifos, lambda: None)
        for _ in range(2):  # the second finds the first one still running
            told = r"cannot train: trainers \[1\] have not answered in time"
            with pytest.raises(WaitTimeoutError, match=told):
                averaging.round(1, timeout=0.05)
        thread.join()
        (fifos / "go on").write_text("")
        [round_] = averaging.rounds(1, 1, timeout=60)
        assert [report["began"] for report in round_.reports] == [1.5, 1.5]
        assert averaging.weights["w"].tolist() == [3.0, 3.0]


@pytest.mark.slow
def test_a_round_may_be_interrupted_at_each_point(nothing_left):
    with Averaging(Adds, 2) as averaging:
        trained = 0

        def check(result, where):
            nonlocal trained
            began = averaging.weights["w"][0]
            assert began == trained + 1.5 if result else began in (trained, trained + 1.5), where
            assert [r["began"] for r in averaging.round(1).reports] == [began] * 2, where
            trained = averaging.weights["w"][0]
            assert trained == began + 1.5, where

        assert at_each_point(lambda: averaging.round(1), check) > 100


def test_close_after_ctrl_c_does_not_wait_for_trainers(fifos, monkeypatch, nothing_left):
    with Averaging(functools.partial(Hangs, fifos), 2) as averaging:
        averaging.round(1)
        interrupted(averaging, fifos, monkeypatch)
    assert averaging.closed


class InterruptsRound2(Adds):
    def train(self, steps):
        if self.rounds == 1:
            self.rounds = 2
            raise KeyboardInterrupt
        return super().train(steps)


def test_ctrl_c_without_workers_keeps_the_average(nothing_left):
    with Averaging(InterruptsRound2, 0) as averaging:
        averaging.round(1)
        with pytest.raises(KeyboardInterrupt):
            averaging.round(1)
        assert averaging.weights["w"].tolist() == [1.0, 1.0]
        averaging.round(1)
        assert averaging.weights["w"].tolist() == [2.0, 2.0]


def test_training_interrupted_by_ctrl_c_is_not_repeated():
    asked = []

    class Asked(Adds):
        def train(self, steps):
            asked.append(steps)
            if steps == 1000 and len(asked) == 1:
                raise KeyboardInterrupt
            return super().train(steps)

    with Averaging(Asked, 0) as averaging:
        with pytest.raises(KeyboardInterrupt):
            averaging.round(1000)
        averaging.round(1)
    assert asked == [1000, 1]


@pytest.mark.parametrize("workers", WORKERS)
def test_trainers_are_closed(workers, tmp_path, nothing_left):
    class Closes(Adds):
        def close(self):
            (tmp_path / str(self.index)).touch()

    with Averaging(Closes, workers) as averaging:
        averaging.round(1)
        assert not list(tmp_path.iterdir())
    assert len(list(tmp_path.iterdir())) == max(workers, 1)
    averaging.close()
    assert averaging.closed
    assert repr(averaging) == f"<pysampler.Averaging {workers} workers, 1 rounds, closed>"


def test_a_closed_averaging_holds_no_resources(nothing_left):
    before = left()
    with Averaging(Adds, 2) as averaging:
        averaging.round(1)
        assert left() != before
    assert all(now <= then for now, then in zip(left(), before, strict=True)), (before, left())
    assert averaging.weights["w"].tolist() == [1.5, 1.5]


@pytest.mark.parametrize("workers", WORKERS)
def test_a_dropped_averaging_frees_its_resources(workers, nothing_left):
    averaging = Averaging(Adds, workers)
    averaging.round(1)
    del averaging


PROGRAM = """
import numpy as np
from pysampler._learning.averaging import Averaging

class Trainer:
    def __init__(self, index, seed): self.w = np.zeros(1)
    def train(self, steps): self.w += steps
    def state_dict(self): return {"w": self.w}
    def load_state_dict(self, weights): self.w = weights["w"]

averaging = Averaging(Trainer, 2)
averaging.round(3)
print(*averaging._pool.pids, averaging.weights["w"])
"""


@pytest.mark.slow
def test_a_program_that_never_closes_leaves_no_process():
    done = completed("-c", PROGRAM)
    assert done.stderr == ""
    *pids, weights = done.stdout.split()
    assert weights == "[3.]"
    assert not any(psutil.pid_exists(int(pid)) for pid in pids)


def test_concurrent_rounds_raise_busy_error(fifos):
    with Averaging(functools.partial(Hangs, fifos), 2) as averaging:
        averaging.round(1)
        told = []

        def meanwhile():
            with contextlib.suppress(BusyError):
                averaging.round(1)
                told.append("no error")
            (fifos / "go on").write_text("")

        thread = at_work(fifos, meanwhile)
        averaging.round(1)
        thread.join()
        assert not told


def test_use_in_a_forked_child_raises_closed_error():
    with Averaging(Adds, 1) as averaging:
        pid = os.fork()
        if pid == 0:
            code = 1
            with contextlib.suppress(BaseException):
                try:
                    averaging.round(1)
                except ClosedError:
                    code = 0
            os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        averaging.round(1)
