"""Signal handlers that raise or close at each point of our Python lose nothing and never hang."""

import asyncio
import contextlib
import functools
import gc
import itertools
import os
import signal
import threading
import time
import weakref

import gymnasium as gym
import numpy as np
import psutil
import pytest
from fork_server_in_tests import wait_until
from gymnasium.error import AlreadyPendingCallError
from gymnasium.vector import SyncVectorEnv
from interrupts import Interrupted, at_each_point, at_point, handler, points, signal_later
from interrupts_in_tests import (
    Counter,
    closing_while_pending,
    counters,
    garbage_goes_with_its_test,  # noqa: F401 - a fixture for all
    reset_if_lost,
)
from made_up import interrupt_once, same
from told_envs import SmallEnv
from vectors import begun

import pysampler
import pysampler._frames.infos as frames_infos
from pysampler._common.closing import comes_true
from pysampler._vector import chunks, env_server, vector_env
from pysampler._workers import fork_server
from pysampler.errors import BusyError, ClosedError, WorkerLostError

# An interrupted function cannot close its files; their finalizers do, and Python warns of that.
pytestmark = [
    pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning"),
    pytest.mark.filterwarnings("ignore:.*socket.socket:pytest.PytestUnraisableExceptionWarning"),
]


@pytest.mark.slow
@pytest.mark.parametrize("main_envs", [0, 2])
@pytest.mark.parametrize("talks", [True, False])
def test_next_wait_returns_an_interrupted_step(talks, main_envs):
    with begun(counters(talks=talks, main_envs=main_envs)) as envs:
        steps = 0

        def check(results, where):
            nonlocal steps
            if results is None and envs.pending:
                results = envs.step_wait()
            if results is not None and reset_if_lost(envs, results, main_envs) is not None:
                steps += 1
                envs.set_attr("steps", steps)
            elif results is not None:
                steps += 1
                observations, rewards, _, _, infos = results
                assert observations[:, 1].tolist() == [steps] * 4, where
                assert rewards.tolist() == [steps] * 4, where
                if talks:
                    assert infos["text"].tolist() == [f"{n} {steps}" for n in range(4)], where
            assert envs.get_attr("steps") == (steps,) * 4, where

        assert at_each_point(lambda: envs.step([0] * 4), check) > 20


@pytest.mark.slow
@pytest.mark.parametrize("main_envs", [0, 2])
@pytest.mark.parametrize("arguments", [{"min_envs": 2}, {"min_envs": "auto", "timeout": "auto"}])
def test_interrupted_recv_loses_no_results(arguments, main_envs):
    with counters(6, groups=3, main_envs=main_envs) as envs:
        envs.async_reset()
        got = np.zeros(6, int)  # returned steps
        envs.recv()
        envs.send([0] * 6)

        def take(results):
            for env, seen in zip(results[4]["env_id"], results[0], strict=True):
                got[env] += 1
                assert seen.tolist() == [env, got[env]]

        def check(results, where):
            if results is None:
                assert envs.pending == 6, where
                results = envs.recv(2)
            if (counted := reset_if_lost(envs, results, main_envs)) is not None:
                got[:] = counted
                envs.send([0] * 6)
            else:
                take(results)
                ids = results[4]["env_id"]
                envs.send([0] * len(ids), ids)
            assert envs.pending == 6, where

        assert at_each_point(lambda: envs.recv(**arguments), check) > 20
        while envs.pending:
            take(envs.recv())
        assert envs.get_attr("steps") == tuple(got)


@pytest.mark.slow
@pytest.mark.parametrize("main_envs", [0, 2])
def test_interrupted_send_is_sent_whole_or_not_at_all(main_envs):
    with counters(4, groups=2, main_envs=main_envs) as envs:
        envs.async_reset()
        envs.recv()
        steps = np.zeros(4, int)

        def check(result, where):
            assert envs.pending in (0, 4), where
            if envs.pending:
                steps[:] += 1
                seen = envs.recv()
                if (counted := reset_if_lost(envs, seen, main_envs)) is not None:
                    steps[:] = counted
                    return
                assert sorted(map(tuple, seen[0])) == [(n, steps[n]) for n in range(4)], where

        assert at_each_point(lambda: envs.send([0] * 4), check) > 10
        assert envs.get_attr("steps") == tuple(steps)


@pytest.mark.slow
@pytest.mark.parametrize("main_envs", [0, 2])
def test_call_never_returns_the_answer_of_an_interrupted_call(main_envs):
    with begun(counters(main_envs=main_envs)) as envs:
        question = 0

        def ask():
            nonlocal question
            question += 1
            return envs.call("asked", question)

        def check(answers, where):
            if answers is None and envs.pending:
                answers = envs.call_wait()
            if answers is not None:
                assert answers == tuple((n, question) for n in range(4)), where
            # The next call gets its own answer.
            assert envs.call("asked", -1) == tuple((n, -1) for n in range(4)), where

        assert at_each_point(ask, check) > 20


@pytest.mark.slow
@pytest.mark.parametrize("size", [10, 200_000])
def test_messages_of_any_size_survive_interrupts(size):
    with begun(counters()) as envs:
        payload = b"x" * size

        def check(answers, where):
            if answers is None and envs.pending:
                answers = envs.call_wait()
            assert answers in (None, tuple((n, payload) for n in range(4))), where
            assert envs.step([0] * 4)[1].shape == (4,), where

        step = 1 if size < 1000 else 3
        assert at_each_point(lambda: envs.call("asked", payload), check, step=step) > 20


@pytest.mark.slow
def test_next_wait_returns_an_interrupted_reset():
    with counters() as envs:
        resets = 0

        def check(result, where):
            nonlocal resets
            if result is None and envs.pending:
                result = envs.reset_wait()
            if result is not None:
                resets += 1
                assert result[1]["text"].tolist() == [f"reset {resets}"] * 4, where

        assert at_each_point(lambda: envs.reset(seed=1), check) > 20
        assert envs.get_attr("resets") == (resets,) * 4


class SignalsParent(SmallEnv):
    """Sends a signal to the program when its action, its options or a call say so."""

    action_space = gym.spaces.Discrete(2)

    def __init__(self, parent, number):
        self.parent, self.number = parent, number
        self.signalled = False

    def observe(self):
        return np.array([self.steps, self.np_random.integers(1000)], np.float64)

    def signal(self, number):
        if number == self.number and not self.signalled:  # a repeated call does not
            self.signalled = True
            os.kill(self.parent, signal.SIGUSR1)

    def begins(self):
        if self.options:
            self.signal(self.options["signal"])
        return {"reset": True}

    def act(self, action):
        if action == 1:
            self.signal(self.number)
        else:
            self.signalled = False

    def ends(self, action):
        return False

    def info(self, action):
        return {"steps": self.steps}


LANES = {
    "processes": {"num_workers": 2},
    "threads": {"num_workers": 2, "context": "threads"},
    "num_workers=0": {"num_workers": 0},
    "main_envs": {"num_workers": 1, "main_envs": 2},
    "spares": {"num_workers": 2, "spare_envs": 1},
}


def interruptible(lane, count=4):
    parent = os.getpid()
    if lane == "nested":
        inner = lambda: interruptible("processes", count)  # noqa: E731
        return pysampler.VectorEnv([inner], num_workers=0)
    fns = [lambda n=n: SignalsParent(parent, n) for n in range(count)]
    return pysampler.VectorEnv(fns, **LANES[lane])


def raises(*_):
    raise Interrupted


def program_of(envs):
    """Return the results of a reset and some steps, flat."""
    each = [envs.reset(seed=5), *(envs.step([0] * envs.num_envs) for _ in range(3))]
    return [one for results in each for one in results]


INTERRUPTED_CALLS = {
    "step": lambda envs: envs.step(np.array([0, 1, 0, 0])),
    "the last env's step": lambda envs: envs.step(np.array([0, 0, 0, 1])),
    "chunk": lambda envs: envs.step_chunk(np.array([[0, 0, 0], [0, 1, 0], [0] * 3, [0] * 3])),
    "reset": lambda envs: envs.reset(options={"signal": 1}),
    "call": lambda envs: envs.call("signal", 1),
}


@pytest.mark.parametrize("call", INTERRUPTED_CALLS)
@pytest.mark.parametrize("lane", [*LANES, "nested"])
def test_reset_drops_an_interrupted_call(lane, call):
    if call == "chunk" and lane in ("spares", "nested"):
        pytest.skip("no chunks")
    with interruptible(lane) as fresh:
        expected = program_of(fresh)
    with interruptible(lane) as envs:
        for _ in range(2):  # the second time by the fast path, where there is one
            program_of(envs)
            with handler(raises), pytest.raises(Interrupted):
                INTERRUPTED_CALLS[call](envs)
            same(program_of(envs), expected)


def expect_step(envs, lane, starts=None):
    """Wait for a step that was interrupted, or for the next one; return which envs go on.

    Args:
        envs: The vector env.
        lane: Its lane. Envs in this process may have been lost in the step.
        starts: Which envs have begun an episode; None: all, and the step was interrupted.
    """
    _, rewards, *_, infos = envs.step_wait()
    lost = infos.get("worker_lost", np.zeros(4, bool))
    assert rewards.tolist() == (~lost if starts is None else starts & ~lost).tolist()
    here = {"num_workers=0": 4, "main_envs": 2, "spares": 4}.get(lane, 0)
    assert not lost[: 4 - here].any()
    assert lost.all() or lane != "num_workers=0" or starts is not None
    return ~lost


@pytest.mark.parametrize("lane", LANES)
def test_calls_but_reset_name_what_ends_an_interrupted_step(lane):
    with begun(interruptible(lane), seed=5) as envs:
        with handler(raises), pytest.raises(Interrupted):
            envs.step(np.array([0, 1, 0, 0]))
        some = {"reset_mask": np.array([True, False, True, False])}
        for call in (lambda: envs.step([0] * 4), lambda: envs.reset(options=some)):
            with pytest.raises(
                AlreadyPendingCallError,
                match="`step_wait` returns its results, and `reset` of all envs drops them$",
            ):
                call()
        expect_step(envs, lane)


@pytest.mark.parametrize("lane", LANES)
@closing_while_pending
def test_reset_refuses_a_step_async_and_names_its_wait(lane):
    with begun(interruptible(lane), seed=5) as envs:
        with handler(raises), pytest.raises(Interrupted):
            envs.step(np.array([0, 1, 0, 0]))
        going = expect_step(envs, lane)
        envs.step_async([0] * 4)
        with pytest.raises(AlreadyPendingCallError, match="`step_wait` returns its results$"):
            envs.reset()
        expect_step(envs, lane, going)
        envs.async_reset()
        with pytest.raises(AlreadyPendingCallError, match="`recv` returns its results$"):
            envs.reset()


@pytest.mark.slow
@pytest.mark.parametrize(
    "lane", ["processes", "threads", "num_workers=0", "main_envs", "native", "native num_workers=0"]
)
def test_reset_works_after_an_interrupt_at_any_point(lane):
    if lane.startswith("native"):
        workers = 0 if "=0" in lane else 1
        envs = pysampler.make_vec("CartPole-v1", num_envs=32, num_workers=workers, native=True)
    else:
        envs = interruptible(lane)
    with contextlib.closing(envs):
        expected = program_of(envs)
        program = functools.partial(program_of, envs)
        assert at_each_point(program, lambda *_: same(program_of(envs), expected)) > 20


class Large:
    """Can be referred to weakly."""


@pytest.mark.parametrize("lane", ["processes", "threads", "num_workers=0", "main_envs"])
def test_answers_are_freed_with_the_next_call(lane):
    with begun(interruptible(lane), seed=1) as envs:
        answers = envs.apply(lambda env: Large())
        left = [weakref.ref(one) for one in answers]
        del answers
        envs.step([0] * 4)
        gc.collect()
        assert [one() for one in left] == [None] * 4


def test_answers_of_groups_that_the_next_call_leaves_out_are_freed():
    with begun(counters(2, num_workers=0, groups=2)) as envs:
        left = [weakref.ref(one) for one in envs.apply(lambda env: Large())]
        envs.send([0], [0])
        gc.collect()
        assert [one() for one in left] == [None] * 2
        envs.recv(1)


def test_recv_after_a_reset_that_was_interrupted_waits_for_what_was_sent(monkeypatch):
    with begun(counters(2, num_workers=0, groups=2)) as envs:
        for kind, name, call in (
            (chunks.Chunks, "last_of", lambda: step_all(envs)),
            (pysampler._workers.pool.Pool, "take_all", envs.reset),
        ):
            interrupt_once(monkeypatch, kind, name)
            with pytest.raises(KeyboardInterrupt):
                call()
        envs.send([0], [0])
        assert envs.recv(1)[4]["env_id"].tolist() == [0]


def step_all(envs):
    envs.step_chunk(np.zeros((2, 2), int), observations="all")


@pytest.mark.slow
def test_interrupted_worker_replacement_completes():
    with begun(counters(on_worker_loss="restart", max_restarts=999, restart_window=1.0)) as envs:
        for n in points(7):
            os.kill(envs._pool.pids[1], signal.SIGKILL)
            reached, results, where = at_point(n, lambda: envs.step([0] * 4))
            if results is None:
                results = envs.step_wait() if envs.pending else envs.step([0] * 4)
            while not results[3][2:].all():  # truncated: the loss may show a moment later
                results = envs.step([0] * 4)
            assert not results[3][:2].any(), where
            assert results[4]["worker_lost"].tolist() == [False, False, True, True], where
            envs.step([0] * 4)
            if not reached:
                break


def workers_alive():
    pids = set()
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            if "worker" in process.name():
                pids.add(process.pid)
    return pids


@pytest.mark.slow
@pytest.mark.parametrize("context", ["forkserver", "spawn", "fork"])
def test_interrupted_pool_creation_does_not_affect_other_pools(context):
    with begun(counters()) as other:
        mine = set(other._pool.pids)
        step = {"forkserver": 11, "fork": 17, "spawn": 101}[context]

        def check(envs, where):
            if envs is not None:
                envs.reset()
                envs.close()
            assert other.step([0] * 4)[1].shape == (4,), where

        at_each_point(lambda: counters(context=context), check, step=step)
        gc.collect()
        counters().close()  # all that an interrupted one left has been asked to end
        wait_until(lambda: workers_alive() <= mine)
        assert other.get_attr("number") == (0, 1, 2, 3)


@pytest.mark.slow
def test_interrupted_close_leaves_no_workers():
    with begun(counters()) as other:
        mine = set(other._pool.pids)
        for n in points(7):
            with begun(counters()) as envs:
                reached, _, where = at_point(n, envs.close)
            wait_until(lambda: workers_alive() <= mine)
            assert other.step([0] * 4)[1].shape == (4,), where
            if not reached:
                break


# -- handlers that close or step ------------------------------------------------------------------


@pytest.mark.slow
@closing_while_pending
def test_handler_can_close_at_any_point_of_a_step():
    for n in range(1, 400, 5):
        with begun(counters()) as envs:
            closed = []

            def close(*_, envs=envs, closed=closed):
                envs.close()
                closed.append(True)

            try:
                reached, results, where = at_point(n, lambda envs=envs: envs.step([0] * 4), close)
            except ClosedError:
                reached = True
            else:
                assert not reached or results is not None, where
            assert bool(closed) == reached
            assert envs.closed == reached
        if not reached:
            break
    assert n > 20


@closing_while_pending
def test_closing_in_a_handler_ends_an_endless_wait():
    class Hangs(Counter):
        def step(self, action):
            threading.Event().wait()

    envs = begun([Hangs], num_workers=1)
    timer = signal_later(0.05)
    with handler(lambda *_: envs.close(terminate=True)):
        envs.step_async([0])
        timer.start()
        with pytest.raises(ClosedError):
            envs.step_wait()
        timer.join()
    assert envs.closed


def test_handler_cannot_step_during_a_step():
    with begun(counters()) as envs:
        refused = []

        def step(*_):
            try:
                envs.step([0] * 4)
            except BusyError as error:
                refused.append(str(error))

        reached, results, _ = at_point(12, lambda: envs.step([0] * 4), step)
        assert reached
        assert results[1].tolist() == [1.0] * 4
        assert "signal handler" in refused[0]


class Gated(SmallEnv):
    """Steps once a file exists."""

    def __init__(self, gate):
        self.gate, self.closed = gate, gate.with_name("closed")

    def act(self, action):
        while not self.gate.exists():
            time.sleep(0.001)

    def close(self):
        self.closed.touch()


@contextlib.contextmanager
def stepping_thread(lane, gate):
    """A vector env that another thread steps, and the thread's results or error, once it ends."""
    outcome = []

    def run():
        try:
            outcome.append(envs.step([0] * 4))
        except BaseException as error:
            outcome.append(error)

    with begun([lambda: Gated(gate)] * 4, **LANES[lane]) as envs:
        thread = threading.Thread(target=run)
        thread.start()
        while True:  # until the other thread is inside
            try:
                envs.stats()
            except BusyError:
                break
        try:
            yield envs, thread, outcome
        finally:
            gate.touch()
            thread.join()


ONE_GUARD = [lane for lane in LANES if lane != "spares"]


@pytest.fixture
def gate(tmp_path, monkeypatch):
    """A gate that opens when ``close`` waits for the call of another thread."""

    def opening(condition, seconds):
        gate.touch()
        return comes_true(condition, seconds)

    gate = tmp_path / "gate"
    monkeypatch.setattr(vector_env, "_CALL_OF_ANOTHER", 60.0)
    monkeypatch.setattr(vector_env, "comes_true", opening)
    return gate


@pytest.mark.parametrize("lane", ONE_GUARD)
def test_close_waits_for_the_call_of_another_thread(lane, gate):
    with stepping_thread(lane, gate) as (envs, thread, outcome):
        envs.close()
        thread.join()
        assert outcome[0][1].tolist() == [1] * 4
        assert Gated(gate).closed.exists()


@closing_while_pending
@pytest.mark.filterwarnings("ignore:pysampler. another thread", "ignore:.*cannot be killed")
@pytest.mark.parametrize("lane", ONE_GUARD)
def test_close_ends_a_long_call_of_another_thread(lane, tmp_path, monkeypatch):
    gate = tmp_path / "gate"
    monkeypatch.setattr(vector_env, "_CALL_OF_ANOTHER", 0.01)
    with stepping_thread(lane, gate) as (envs, thread, outcome):
        envs.close()
        assert envs.closed
        if lane in ("num_workers=0", "main_envs"):
            gate.touch()
        thread.join()
        if lane != "num_workers=0":
            assert isinstance(outcome[0], ClosedError)
        with pytest.raises(ClosedError):
            envs.step([0] * 4)


def test_close_warns_of_a_call_that_it_cannot_end(tmp_path, monkeypatch):
    gate = tmp_path / "gate"
    monkeypatch.setattr(vector_env, "_CALL_OF_ANOTHER", 0.01)
    with stepping_thread("num_workers=0", gate) as (envs, thread, outcome):
        with pytest.warns(UserWarning, match="another thread is still in a call"):
            envs.close()
        gate.touch()
        thread.join()
        assert outcome[0][1].tolist() == [1] * 4
        with pytest.raises(ClosedError):
            envs.step([0] * 4)
        assert not Gated(gate).closed.exists()
        envs.close()
        assert Gated(gate).closed.exists()


def test_close_does_not_hide_ctrl_c_of_asyncio(gate):
    class SignalsOnce(Gated):
        def step(self, action):
            if not self.signalled.is_set():
                self.signalled.set()
                os.kill(os.getpid(), signal.SIGINT)
            return super().step(action)

    async def main():
        envs = begun([functools.partial(SignalsOnce, gate)], num_workers=0)
        try:
            await asyncio.to_thread(envs.step, [0])
        finally:
            envs.close()

    SignalsOnce.signalled = threading.Event()
    with pytest.raises(KeyboardInterrupt):
        asyncio.run(main())


def test_finalizers_do_not_call_the_fork_server(monkeypatch):
    """A finalizer can run in the middle of a request of its own thread to the fork server."""
    envs = counters()
    envs.cycle = envs
    asked = []
    for name in ("_send", "_receive"):
        monkeypatch.setattr(fork_server.ForkServer, name, lambda self, *_: asked.append(self))
    del envs
    gc.collect()
    assert not asked


# -- losses ---------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("on_loss", ["restart", "raise"])
def test_interrupted_report_of_a_loss_is_repeated(on_loss):
    """While the other workers are idle, only that loss can end the wait."""
    for n in itertools.count(1, 2 if on_loss == "raise" else 9):
        envs = counters(4, num_workers=4, on_worker_loss=on_loss)
        with contextlib.closing(envs):
            envs.async_reset()
            envs.recv()
            envs.send([0, 0], [0, 1])
            os.kill(envs._pool.pids[0], signal.SIGKILL)
            raised = []

            def receive(envs=envs, raised=raised):
                try:
                    return envs.recv(2)
                except (WorkerLostError, ClosedError) as error:  # closed: interrupted mid-raise
                    raised.append(error)

            reached, results, where = at_point(n, receive)
            if on_loss == "raise":
                if not raised and results is None:
                    results = receive()
                assert raised or results is not None, where
            else:
                if results is None:
                    results = envs.recv(2)
                assert sorted(results[4]["env_id"]) == [0, 1], where
            if not reached:
                break


@pytest.mark.slow
@closing_while_pending
def test_closing_during_a_replacement_keeps_the_fork_server():
    counters().close()
    only = fork_server.current()
    for n in range(1, 400, 29):
        with begun(counters(on_worker_loss="restart")) as envs:
            os.kill(envs._pool.pids[0], signal.SIGKILL)
            with contextlib.suppress(ClosedError, WorkerLostError):
                at_point(n, lambda envs=envs: envs.step([0] * 4), lambda *_, e=envs: e.close())
        assert fork_server.current() is only


@closing_while_pending
def test_close_in_a_second_handler_does_not_stop_the_first():
    class Slow(Counter):
        def step(self, action):
            gate = threading.Event()
            gate.wait(0.5)  # an env that is slow
            return super().step(action)

    envs = begun([Slow], num_workers=1)
    done = []

    def close(*_):
        envs.close()
        done.append(True)

    timers = [signal_later(0.1), signal_later(0.2)]
    with handler(close):
        for timer in timers:
            timer.start()
        with pytest.raises(ClosedError):
            envs.step([0])
        for timer in timers:
            timer.join()
    assert done == [True, True]


class Tag:
    """An info whose unpickling runs code, where a signal may arrive."""

    arrives = False

    def __reduce__(self):
        return _tag, ()


def _tag():
    if Tag.arrives:
        Tag.arrives = False
        signal.raise_signal(signal.SIGUSR1)
    return Tag()


class Tagged(Counter):
    def step(self, action):
        *results, _ = super().step(action)
        return *results, {"tag": Tag()}


@pytest.fixture(params=["step", "chunk"])
def tagged(request):
    """Vector envs whose next step, or chunk of steps, is one call of C++; and that call."""
    with begun([Tagged] * 4, num_workers=2) as envs:
        for _ in range(6):  # infos come by mail before they have a column
            envs.step([0] * 4)
        step = functools.partial(envs.step, [0] * 4)
        if request.param == "chunk":
            step = functools.partial(envs.step_chunk, np.zeros((4, 3), np.int64))
            for _ in range(3):
                step()
        yield envs, step
        Tag.arrives = False


@closing_while_pending
def test_handler_can_close_while_a_step_unpickles_infos(tagged):
    envs, step = tagged
    Tag.arrives = True
    with handler(lambda *_: envs.close()), pytest.raises(ClosedError):
        step()
    assert not Tag.arrives
    assert envs.closed


def test_exception_of_a_handler_while_infos_are_unpickled_reaches_the_caller(tagged):
    envs, step = tagged

    def late(*_):
        raise TimeoutError("too late")

    Tag.arrives = True
    with handler(late), pytest.raises(TimeoutError, match="too late"):
        step()
    assert not Tag.arrives
    assert envs.pending
    assert isinstance(envs.step_wait()[4]["tag"][0], Tag)
    step()


class TwoInfos(SmallEnv):
    """Has one info in resets, another in steps."""

    def begins(self):
        return {"begins": 1}

    def info(self, action):
        return {"steps": self.steps}

    def ends(self, action):
        return self.steps == 4


@pytest.mark.parametrize("options", [{"num_workers": 0}, {"spare_envs": 2}])
def test_infos_of_steps_end_with_them_after_an_interrupted_step(monkeypatch, options):
    add, left = env_server.add_columns, []

    def interrupted(infos, frames, columns):
        if columns and left:
            add(infos, frames, columns[: 2 - len(left)])
            raise left.pop()
        add(infos, frames, columns)

    def run(interrupts):
        envs_of = TwoInfos
        if not options.get("spare_envs"):
            envs_of = lambda: SyncVectorEnv([TwoInfos] * 2, autoreset_mode="Disabled")  # noqa: E731
        count = 2 if options.get("spare_envs") else 1
        found = []
        with begun([envs_of] * count, seed=1, autoreset_mode="SameStep", **options) as envs:
            left[:] = [Interrupted()] * interrupts
            for _ in range(10):
                infos = None
                while infos is None:
                    with contextlib.suppress(Interrupted):
                        results = envs.step_wait() if envs.pending else envs.step(np.zeros(2, int))
                        infos = results[4]
                found.append(
                    [infos.get(key, np.zeros(2)).tolist() for key in ("_begins", "_steps")]
                )
        return found

    monkeypatch.setattr(env_server, "add_columns", interrupted)
    expected = run(0)
    assert run(2) == expected
    assert not left


@pytest.mark.parametrize("workers", [0, 1])
def test_infos_of_a_step_that_is_given_up_have_columns_later(workers, monkeypatch):
    add, left = frames_infos.add_columns, [Interrupted()]

    def interrupted(*given):
        if left:
            raise left.pop()
        add(*given)

    with begun([TwoInfos] * 2, seed=1, num_workers=workers) as envs:
        monkeypatch.setattr(frames_infos, "add_columns", interrupted)
        with pytest.raises(Interrupted):
            envs.step(np.zeros(2, int))
        assert not left
        infos = envs.reset(seed=1)[1]
        assert infos.get("begins", np.zeros(2)).tolist() == [1, 1]
        for steps in (1, 2):
            assert envs.step(np.zeros(2, int))[4]["steps"].tolist() == [steps] * 2
