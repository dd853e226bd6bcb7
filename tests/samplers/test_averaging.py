"""Weights are averaged: what comes out, and what happens when trainers fail and workers die."""

import contextlib
import functools
import gc
import itertools
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import psutil
import pytest
from interrupts import at_each_point

from pysampler._learning.averaging import Averaging
from pysampler.errors import BusyError, ClosedError, EnvError, WaitTimeoutError, WorkerLostError

WORKERS = [0, 2]
DTYPES = ("f2", "f4", "f8", "g", "c8", "c16", "i1", "i4", "i8", "u2", "?")


class Drifts:
    """Its weights are of given (dtype, shape)s, and wander as its generator says."""

    def __init__(self, fields, index, seed):
        self.seed = seed
        self.random = np.random.default_rng(seed)
        self.weights = {str(n): self.draw(*field) for n, field in enumerate(fields)}
        self.taken = []

    def draw(self, dtype, shape):
        numbers = self.random.normal(size=shape) * 50
        return (np.abs(numbers) if np.dtype(dtype).kind in "u?" else numbers).astype(dtype)

    def train(self, steps):
        for _ in range(steps):
            self.weights = {
                name: array + self.draw(array.dtype, array.shape)
                for name, array in self.weights.items()
            }
        return {"seed": self.seed, "steps": steps}

    def state_dict(self):
        return self.weights

    def load_state_dict(self, weights):
        self.weights = weights


class Adds:
    """Two weights, to which each step of training adds ``index + 1``."""

    def __init__(self, index, seed):
        self.index, self.seed = index, seed
        self.rounds = 0
        self.w = np.full(2, float(index))

    def train(self, steps):
        began = float(self.w[0])
        self.w = self.w + steps * (self.index + 1)
        self.rounds += 1
        return {"began": began, "seed": self.seed}

    def state_dict(self):
        return {"w": self.w}

    def load_state_dict(self, weights):
        self.w = weights["w"]


class Hangs(Adds):
    """In its second round, trainer 1 tells that it is at work, and waits to go on."""

    def __init__(self, folder, index, seed):
        super().__init__(index, seed)
        self.folder = folder

    def train(self, steps):
        if (self.index, self.rounds) == (1, 1):
            (self.folder / "at work").write_text("")  # once somebody reads it
            (self.folder / "go on").read_text()  # until somebody writes
        return super().train(steps)


@pytest.fixture
def fifos(tmp_path):
    """A folder in which a trainer that hangs tells that it is at work, and waits to go on."""
    os.mkfifo(tmp_path / "at work")
    os.mkfifo(tmp_path / "go on")
    return tmp_path


def left():
    me = psutil.Process()
    mapped = Path("/proc/self/maps").read_text().count("memfd:pysampler")
    return me.num_fds(), me.num_threads(), mapped, len(me.children(recursive=True))


@pytest.fixture
def nothing_left():
    """No process, fd, thread or memory more than before; the nursery stays."""
    Averaging(Adds, 1).close()
    gc.collect()
    before = left()
    yield
    gc.collect()
    # Fewer, where an earlier test's garbage went.
    assert all(now <= then for now, then in zip(left(), before, strict=True)), (before, left())


def at_work(folder, then):
    """A thread that does something once the trainer is at work."""

    def run():
        (folder / "at work").read_text()
        then()

    thread = threading.Thread(target=run)
    thread.start()
    return thread


# -- averages --------------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [0, 1, 3])
@pytest.mark.parametrize("draw", range(4))
def test_averages_are_those_computed_by_hand(workers, draw, nothing_left):
    random = np.random.default_rng(draw)
    fields = [
        (dtype, tuple(random.integers(0, 4, random.integers(0, 4)).tolist()))
        for dtype in random.permutation(DTYPES)[:6].tolist()
    ]
    make = functools.partial(Drifts, fields)
    with Averaging(make, workers, seed=draw) as averaging:
        average = averaging.weights
        mine = None
        for number, round_ in enumerate(averaging.rounds(3, 4), 1):
            assert (round_.number, round_.lost) == (number, [])
            assert [report["steps"] for report in round_.reports] == [3] * max(workers, 1)
            if mine is None:
                seeds = [report["seed"] for report in round_.reports]
                assert len(set(seeds)) == len(seeds)
                mine = [make(i, seed) for i, seed in enumerate(seeds)]
                for name, array in mine[0].state_dict().items():
                    np.testing.assert_array_equal(average[name], array)
            for trainer in mine:
                trainer.load_state_dict(average)
                trainer.train(3)
            average = {
                name: np.mean([t.weights[name] for t in mine], axis=0, dtype=wide(array)).astype(
                    array.dtype
                )
                if array.dtype.kind in "fc"
                else mine[0].weights[name]
                for name, array in average.items()
            }
            assert averaging.weights.keys() == average.keys()
            for name, array in averaging.weights.items():
                assert array.dtype == average[name].dtype == np.dtype(fields[int(name)][0])
                np.testing.assert_array_equal(array, average[name])


def wide(array):
    return {"f2": "f8", "f4": "f8", "c8": "c16"}.get(array.dtype.str[1:], array.dtype)


def test_all_begin_with_the_weights_of_the_first_and_then_with_the_average():
    with Averaging(Adds, 3) as averaging:
        assert averaging.weights["w"].tolist() == [0.0, 0.0]
        for number, round_ in enumerate(averaging.rounds(2, 3)):
            assert [report["began"] for report in round_.reports] == [number * 4.0] * 3
            assert averaging.weights["w"].tolist() == [number * 4.0 + 4.0] * 2


def test_rounds_go_on_for_ever():
    with Averaging(Adds, 2) as averaging:
        for round_ in itertools.islice(averaging.rounds(1), 200):
            assert averaging.weights["w"][0] == round_.number * 1.5
        assert round_.number == 200


def test_one_worker_is_the_same_as_none():
    ends = []
    for workers in (0, 1):
        with Averaging(functools.partial(Drifts, [("f4", (3,)), ("i8", ())]), workers, seed=5) as a:
            reports = [round_.reports for round_ in a.rounds(2, 3)]
            ends.append((reports, {name: array.tolist() for name, array in a.weights.items()}))
    assert ends[0] == ends[1]


def test_weights_may_be_set():
    with Averaging(Adds, 2) as averaging:
        mine = np.array([10.0, 20.0])
        averaging.weights = {"w": mine}
        mine[:] = 0
        averaging.round(2)
        assert averaging.weights["w"].tolist() == [13.0, 23.0]
        with pytest.raises(ValueError, match=r"set weights: w is int64 \(2,\), expected float64"):
            averaging.weights = {"w": np.array([1, 2])}
        with pytest.raises(ValueError, match=r"names \['v'\], expected \['w'\]"):
            averaging.weights = {"v": np.zeros(2)}
        with pytest.raises(ValueError, match="cannot set weights: w has nan, expected numbers"):
            averaging.weights = {"w": np.array([1, np.nan])}
        assert averaging.weights["w"].tolist() == [13.0, 23.0]


def test_a_round_says_where_the_time_went():
    with Averaging(Adds, 2) as averaging:
        seconds = averaging.round(1).seconds
    assert (seconds["training"] > 0).all()
    assert (seconds["waiting"] > 0).all()
    one, other = seconds["training"] + seconds["waiting"]
    assert one == pytest.approx(other)


class Regression:
    """y = 3x - 1, by gradient; learned from its own samples."""

    def __init__(self, index, seed):
        import torch

        self.generator = torch.Generator().manual_seed(seed)
        self.module = torch.nn.Linear(1, 1)
        self.module.register_buffer("seen", torch.zeros((), dtype=torch.int64))
        self.optimizer = torch.optim.SGD(self.module.parameters(), 0.1)
        self.state_dict, self.load_state_dict = self.module.state_dict, self.module.load_state_dict

    def train(self, steps):
        import torch

        for _ in range(steps):
            x = torch.randn(64, 1, generator=self.generator)
            loss = (self.module(x) - (3 * x - 1)).pow(2).mean()
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            self.module.seen += 1
        return {"loss": loss.item(), "bias": self.module.bias.item()}


@pytest.mark.slow
@pytest.mark.parametrize("workers", WORKERS)
def test_a_torch_module_learns(workers):
    torch = pytest.importorskip("torch", reason="trainers of torch modules need torch")
    with Averaging(Regression, workers, seed=1) as averaging:
        reports = [round_.reports for round_ in averaging.rounds(10, 8)]
        weights = averaging.weights
    assert reports[-1][0]["loss"] < 1e-4 < 1e-2 < reports[0][0]["loss"]
    assert weights["seen"] == 80
    assert weights["bias"].dtype == np.float32
    mean = np.float32(np.mean([report["bias"] for report in reports[-1]]))
    assert weights["bias"].tolist() == [mean]
    module = Regression(0, 0).module
    module.load_state_dict({name: torch.from_numpy(array) for name, array in weights.items()})


# -- what goes wrong -------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", WORKERS)
@pytest.mark.parametrize(
    ("where", "doing"),
    [
        ("__init__", "being made"),
        ("train", r"in train\(\)"),
        ("load_state_dict", r"in load_state_dict\(\)"),
        ("state_dict", r"in state_dict\(\)"),
        ("close", r"in close\(\)"),
    ],
)
def test_what_a_trainer_raises_is_told_with_its_traceback(workers, where, doing, nothing_left):
    class Raises(Adds):
        def fail(self, *_):
            raise ValueError("told to")

    setattr(Raises, where, Raises.fail)
    place = r" in worker \d \(pid \d+\)" if workers else ""
    message = rf"trainer \d{place} raised ValueError {doing}: told to"
    with pytest.raises(EnvError, match=message) as caught:
        averaging = Averaging(Raises, workers)
        averaging.round(1)
        averaging.close()
    assert isinstance(caught.value, ValueError)
    if workers:
        assert ", in fail\n" in str(caught.value.__cause__.__cause__)


@pytest.mark.parametrize("workers", WORKERS)
def test_after_an_error_it_is_closed(workers, nothing_left):
    class Raises(Adds):
        def train(self, steps):
            if self.rounds == 1:
                raise ValueError("told to")
            return super().train(steps)

    with Averaging(Raises, workers) as averaging:
        averaging.round(2)
        before = averaging.weights["w"].tolist()
        with pytest.raises(EnvError):
            averaging.round(2)
        assert averaging.closed
        with pytest.raises(ClosedError, match="cannot train: this averaging is closed"):
            averaging.round(2)
        assert averaging.weights["w"].tolist() == before


def test_an_error_is_told_at_once_and_ends_the_others(fifos, nothing_left):
    class Raises(Adds):
        def train(self, steps):
            if self.index == 0:
                (fifos / "at work").write_text("")
                threading.Event().wait()
            (fifos / "at work").read_text()
            raise ValueError("told to")

    with Averaging(Raises, 2) as averaging:
        pids = averaging._pool.pids
        with pytest.raises(EnvError, match="trainer 1 .* raised ValueError in train"):
            averaging.round(1)
        assert not any(map(psutil.pid_exists, pids))


@pytest.mark.parametrize("workers", WORKERS)
def test_sys_exit_is_an_error_like_others(workers, nothing_left):
    class Exits(Adds):
        def train(self, steps):
            sys.exit(3)

    with (
        Averaging(Exits, workers) as averaging,
        pytest.raises(EnvError, match=r"trainer \d.* raised SystemExit in train\(\): 3"),
    ):
        averaging.round(1)


class Reports(Adds):
    def train(self, steps):
        return 3


@pytest.mark.parametrize("workers", WORKERS)
def test_a_report_is_a_dict(workers):
    with (
        Averaging(Reports, workers) as averaging,
        pytest.raises(TypeError, match=r"in train\(\): it returned 3, expected a dict or None"),
    ):
        averaging.round(1)


class Sick(Adds):
    """Has nan for a weight in its second round."""

    def state_dict(self):
        sick = (self.index, self.rounds) == (1, 2)
        return {"v": np.zeros(1), "w": np.full(2, np.nan) if sick else self.w}

    def load_state_dict(self, weights):
        self.w = weights["w"]


def test_nan_is_refused_and_the_average_stays(nothing_left):
    with Averaging(Sick, 2) as averaging:
        averaging.round(2)
        with pytest.raises(ValueError, match="cannot average weights: w of trainer 1 has nan"):
            averaging.round(2)
        assert averaging.weights["w"].tolist() == [3.0, 3.0]
        assert averaging.round(2).reports[1]["began"] == 3.0
        assert averaging.weights["w"].tolist() == [6.0, 6.0]


class Overflows(Adds):
    """Its weights are told: by trainer, for each round."""

    def __init__(self, told, index, seed):
        super().__init__(index, seed)
        self.told = told[index]

    def state_dict(self):
        return {"w": np.array([1.0, self.told if self.rounds == 1 else 0.0])}


@pytest.mark.parametrize(
    ("told", "message"),
    [
        ((np.inf, -np.inf), r"the mean of w is not finite: it has inf in trainers \[0, 1\]"),
        ((0.0, -np.inf), r"the mean of w is not finite: it has inf in trainers \[1\], expected"),
        ((1.7e308, 1.6e308), "cannot average weights: the mean of w is not finite$"),
    ],
)
def test_inf_is_refused_and_the_average_stays(told, message, nothing_left):
    with Averaging(functools.partial(Overflows, told), 2) as averaging:
        with pytest.raises(ValueError, match=message):
            averaging.round(1)
        assert averaging.weights["w"].tolist() == [1.0, 0.0]
        averaging.round(1)


def test_a_mask_that_is_inf_in_all_stays(nothing_left):
    with Averaging(functools.partial(Overflows, (-np.inf, -np.inf)), 2) as averaging:
        averaging.round(1)
        assert averaging.weights["w"].tolist() == [1.0, -np.inf]


def test_weights_that_numpy_has_no_numbers_for_are_named(nothing_left):
    torch = pytest.importorskip("torch", reason="NumPy has no bfloat16")

    class Narrow(Adds):
        def state_dict(self):
            return {"w": torch.zeros(2, dtype=torch.bfloat16)}

    with pytest.raises(TypeError, match=r"cannot send weights: w is torch.bfloat16, expected"):
        Averaging(Narrow, 0)


@pytest.mark.parametrize("workers", WORKERS)
def test_nan_at_the_beginning_is_refused(workers, nothing_left):
    def make(index, seed):
        trainer = Adds(index, seed)
        trainer.w = np.array([0, np.nan])
        return trainer

    with pytest.raises(ValueError, match="w of trainer 0 has nan, expected numbers"):
        Averaging(make, workers)


@pytest.mark.parametrize(
    ("one", "message"),
    [
        ({"w": np.zeros(3)}, r"w is float64 \(3,\), expected float64 \(2,\)"),
        ({"w": np.zeros(2, "f4")}, r"w is float32 \(2,\), expected float64 \(2,\)"),
        ({"v": np.zeros(2)}, r"names \['v'\], expected \['w'\]"),
        ({}, "there are no weights"),
        ({"w": np.array(["a", "b"])}, "w is of dtype <U1, expected numbers"),
    ],
)
@pytest.mark.parametrize("when", ["made", "trained"])
def test_weights_that_differ_are_refused(one, message, when, nothing_left):
    class Other(Adds):
        def state_dict(self):
            differs = self.index == 1 and (when == "made" or self.rounds == 1)
            return one if differs else {"w": self.w}

    with pytest.raises((ValueError, TypeError), match=f"trainer 1.*{message}"):
        Averaging(Other, 2).round(1)


@pytest.mark.parametrize(
    ("kwargs", "error", "message"),
    [
        ({"make": 3}, TypeError, "make is 3, expected a function"),
        ({"workers": -1}, ValueError, "workers -1, expected a whole number of at least 0"),
        ({"workers": True}, ValueError, "workers True"),
        ({"context": "thread"}, ValueError, "context 'thread', expected one of 'nursery'"),
        ({"max_restarts": (3, 10.0)}, ValueError, r"max_restarts \(3, 10.0\), expected a whole"),
        ({"max_restarts": -1}, ValueError, "max_restarts -1"),
        ({"restart_window": 0}, ValueError, "restart_window 0, expected seconds > 0"),
        ({"restart_window": "b"}, ValueError, "restart_window 'b'"),
        ({"seed": -1}, ValueError, "seed -1, expected a whole number of at least 0"),
        ({"on_worker_loss": "ignore"}, ValueError, "on_worker_loss 'ignore', expected one of"),
    ],
)
def test_wrong_arguments_are_refused(kwargs, error, message):
    with pytest.raises(error, match=f"cannot average: {message}"):
        Averaging(**{"make": Adds, "workers": 1, **kwargs})


def test_wrong_steps_are_refused():
    with Averaging(Adds, 0) as averaging:
        with pytest.raises(ValueError, match="cannot average: steps 0, expected a whole number"):
            averaging.round(0)
        for timeout in (-1, "x", float("nan")):
            with pytest.raises(ValueError, match=f"cannot train: timeout {timeout!r}, expected"):
                averaging.round(1, timeout)
        with pytest.raises(ValueError, match="cannot average: count 'x', expected a whole number"):
            next(averaging.rounds(1, "x"))
        averaging.round(1, float("inf"))
        averaging.round(1)


def test_what_cannot_be_pickled_is_said():
    lock = threading.Lock()

    def make(index, seed):
        with lock:
            return Adds(index, seed)

    with pytest.raises(TypeError, match='cannot send make to workers: .*context="fork"'):
        Averaging(make, 1)
    with Averaging(make, 1, context="fork") as averaging:
        averaging.round(1)


# -- workers die -----------------------------------------------------------------------------------


def kill_at_work(averaging, index, folder):
    pid = averaging._pool.pids[index]
    return at_work(folder, lambda: os.kill(pid, signal.SIGKILL))


def test_a_worker_that_is_killed_while_it_trains_is_told_of(fifos, nothing_left):
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


def test_a_worker_that_is_killed_while_it_trains_is_replaced_if_asked_for(fifos, nothing_left):
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
        assert averaging.weights["w"].tolist() == [4.0, 4.0]  # of 2 + 1 and 2 + 3
        third = averaging.round(1)
        assert third.lost == []
        assert [report["began"] for report in third.reports] == [4.0] * 3
        assert averaging.weights["w"].tolist() == [6.0, 6.0]
        seeds = [[report["seed"] for report in round_.reports] for round_ in (first, third)]
        assert seeds[0][1] != seeds[1][1]
        assert seeds[0][::2] == seeds[1][::2]


def test_a_worker_that_is_killed_between_rounds_is_replaced():
    with Averaging(Adds, 2, on_worker_loss="restart") as averaging:
        averaging.round(2)
        os.kill(averaging._pool.pids[0], signal.SIGKILL)
        assert averaging._pool._processes.children[0].ended(10)
        assert averaging.round(2).lost == [0]
        assert averaging.weights["w"].tolist() == [7.0, 7.0]
        assert averaging.round(2).lost == []


def test_if_all_are_lost_the_average_stays(tmp_path):
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


def test_a_worker_that_dies_again_and_again_is_told_of(nothing_left):
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


def test_the_first_may_be_lost_before_its_weights_are_known(tmp_path):
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


# -- it ends ---------------------------------------------------------------------------------------


def interrupted(averaging, folder, monkeypatch):
    """Ctrl-C in a round, once a trainer is at work and this process waits for it."""
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


def test_ctrl_c_leaves_a_round_that_the_next_one_drops(fifos, monkeypatch):
    with Averaging(functools.partial(Hangs, fifos), 2) as averaging:
        averaging.round(1)
        interrupted(averaging, fifos, monkeypatch)
        assert averaging.weights["w"].tolist() == [1.5, 1.5]
        (fifos / "go on").write_text("")
        round_ = averaging.round(1)
        assert [report["began"] for report in round_.reports] == [1.5, 1.5]
        assert averaging.weights["w"].tolist() == [3.0, 3.0]


def test_a_round_that_takes_too_long_is_left_and_the_next_one_drops_it(fifos):
    with Averaging(functools.partial(Hangs, fifos), 2) as averaging:
        averaging.round(1, timeout=60)
        thread = at_work(fifos, lambda: None)
        for _ in range(2):  # the second finds the first one's under way
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


def test_ctrl_c_and_close_wait_for_nobody(fifos, monkeypatch, nothing_left):
    with Averaging(functools.partial(Hangs, fifos), 2) as averaging:
        averaging.round(1)
        interrupted(averaging, fifos, monkeypatch)
    assert averaging.closed


class Interrupted(Adds):
    def train(self, steps):
        if self.rounds == 1:
            self.rounds = 2
            raise KeyboardInterrupt
        return super().train(steps)


def test_ctrl_c_without_workers_leaves_the_average(nothing_left):
    with Averaging(Interrupted, 0) as averaging:
        averaging.round(1)
        with pytest.raises(KeyboardInterrupt):
            averaging.round(1)
        assert averaging.weights["w"].tolist() == [1.0, 1.0]
        averaging.round(1)
        assert averaging.weights["w"].tolist() == [2.0, 2.0]


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


def test_what_is_closed_holds_nothing_though_it_is_there(nothing_left):
    before = left()
    with Averaging(Adds, 2) as averaging:
        averaging.round(1)
        assert left() != before
    assert all(now <= then for now, then in zip(left(), before, strict=True)), (before, left())
    assert averaging.weights["w"].tolist() == [1.5, 1.5]


@pytest.mark.parametrize("workers", WORKERS)
def test_what_nobody_refers_to_ends(workers, nothing_left):
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
def test_a_program_that_does_not_close_leaves_nobody():
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    *pids, weights = done.stdout.split()
    assert weights == "[3.]"
    assert not any(psutil.pid_exists(int(pid)) for pid in pids)


def test_one_thread_at_a_time(fifos):
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


def test_a_forked_child_is_told_that_it_is_not_its_own():
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
