"""Averaging: the averages, and errors of trainers, weights and arguments."""

import functools
import itertools
import sys
import threading

import numpy as np
import psutil
import pytest
from averaging_in_tests import WORKERS, Adds

from pysampler._learning.averaging import Averaging
from pysampler.errors import ClosedError, EnvError

DTYPES = ("f2", "f4", "f8", "g", "c8", "c16", "i1", "i4", "i8", "u2", "?")


class Drifts:
    """Its weights have the given (dtype, shape)s and take a random walk."""

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


# -- averages --------------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [0, 1, 3])
@pytest.mark.parametrize("draw", range(4))
def test_averages_equal_those_computed_by_hand(workers, draw, nothing_left):
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


def test_trainers_begin_with_the_first_ones_weights_then_the_average():
    with Averaging(Adds, 3) as averaging:
        assert averaging.weights["w"].tolist() == [0.0, 0.0]
        for number, round_ in enumerate(averaging.rounds(2, 3)):
            assert [report["began"] for report in round_.reports] == [number * 4.0] * 3
            assert averaging.weights["w"].tolist() == [number * 4.0 + 4.0] * 2


def test_rounds_without_a_count_never_end():
    with Averaging(Adds, 2) as averaging:
        for round_ in itertools.islice(averaging.rounds(1), 200):
            assert averaging.weights["w"][0] == round_.number * 1.5
        assert round_.number == 200


def test_one_worker_equals_none():
    ends = []
    for workers in (0, 1):
        with Averaging(functools.partial(Drifts, [("f4", (3,)), ("i8", ())]), workers, seed=5) as a:
            reports = [round_.reports for round_ in a.rounds(2, 3)]
            ends.append((reports, {name: array.tolist() for name, array in a.weights.items()}))
    assert ends[0] == ends[1]


def test_weights_can_be_set():
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


def test_a_round_reports_training_and_waiting_seconds():
    with Averaging(Adds, 2) as averaging:
        seconds = averaging.round(1).seconds
    assert (seconds["training"] > 0).all()
    assert (seconds["waiting"] > 0).all()
    one, other = seconds["training"] + seconds["waiting"]
    assert one == pytest.approx(other)


class Regression:
    """Learns y = 3x - 1 by gradient descent from its own samples."""

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


# -- errors ----------------------------------------------------------------------------------------


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
def test_trainer_errors_carry_their_traceback(workers, where, doing, nothing_left):
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
def test_a_trainer_error_closes_the_averaging(workers, nothing_left):
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


def test_a_trainer_error_raises_at_once_and_ends_the_others(fifos, nothing_left):
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
def test_sys_exit_in_a_trainer_is_an_env_error(workers, nothing_left):
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
def test_a_report_must_be_a_dict(workers):
    with (
        Averaging(Reports, workers) as averaging,
        pytest.raises(TypeError, match=r"in train\(\): it returned 3, expected a dict or None"),
    ):
        averaging.round(1)


class NanInRound2(Adds):
    """One of its weights is nan in its second round."""

    def state_dict(self):
        is_nan = (self.index, self.rounds) == (1, 2)
        return {"v": np.zeros(1), "w": np.full(2, np.nan) if is_nan else self.w}

    def load_state_dict(self, weights):
        self.w = weights["w"]


def test_nan_is_refused_and_the_average_is_kept(nothing_left):
    with Averaging(NanInRound2, 2) as averaging:
        averaging.round(2)
        with pytest.raises(ValueError, match="cannot average weights: w of trainer 1 has nan"):
            averaging.round(2)
        assert averaging.weights["w"].tolist() == [3.0, 3.0]
        assert averaging.round(2).reports[1]["began"] == 3.0
        assert averaging.weights["w"].tolist() == [6.0, 6.0]


class Overflows(Adds):
    """One of its weights in the first round is given by trainer."""

    def __init__(self, value, index, seed):
        super().__init__(index, seed)
        self.value = value[index]

    def state_dict(self):
        return {"w": np.array([1.0, self.value if self.rounds == 1 else 0.0])}


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ((np.inf, -np.inf), r"the mean of w is not finite: it has inf in trainers \[0, 1\]"),
        ((0.0, -np.inf), r"the mean of w is not finite: it has inf in trainers \[1\], expected"),
        ((1.7e308, 1.6e308), "cannot average weights: the mean of w is not finite$"),
    ],
)
def test_inf_is_refused_and_the_average_is_kept(value, message, nothing_left):
    with Averaging(functools.partial(Overflows, value), 2) as averaging:
        with pytest.raises(ValueError, match=message):
            averaging.round(1)
        assert averaging.weights["w"].tolist() == [1.0, 0.0]
        averaging.round(1)


def test_weights_infinite_in_all_trainers_are_allowed(nothing_left):
    with Averaging(functools.partial(Overflows, (-np.inf, -np.inf)), 2) as averaging:
        averaging.round(1)
        assert averaging.weights["w"].tolist() == [1.0, -np.inf]


def test_dtypes_that_numpy_lacks_are_refused_by_name(nothing_left):
    torch = pytest.importorskip("torch", reason="NumPy has no bfloat16")

    class Narrow(Adds):
        def state_dict(self):
            return {"w": torch.zeros(2, dtype=torch.bfloat16)}

    with pytest.raises(TypeError, match=r"cannot send weights: w is torch.bfloat16, expected"):
        Averaging(Narrow, 0)


@pytest.mark.parametrize("workers", WORKERS)
def test_nan_in_initial_weights_is_refused(workers, nothing_left):
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
        ({}, "no weights, expected arrays"),
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
        ({"context": "thread"}, ValueError, "context 'thread', expected one of 'forkserver'"),
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


def test_an_unpicklable_make_is_refused():
    lock = threading.Lock()

    def make(index, seed):
        with lock:
            return Adds(index, seed)

    with pytest.raises(TypeError, match='cannot send make to workers: .*context="fork"'):
        Averaging(make, 1)
    with Averaging(make, 1, context="fork") as averaging:
        averaging.round(1)


def test_a_failed_round_closes_the_trainer_of_this_process():
    class Fails(Adds):
        closed = 0

        def train(self, steps):
            raise ValueError

        def close(self):
            Fails.closed += 1

    averaging = Averaging(Fails, workers=0)
    with pytest.raises(EnvError):
        averaging.round(1)
    assert Fails.closed == 1
    averaging.close()
    assert Fails.closed == 1
