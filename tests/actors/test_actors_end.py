"""Actors that block, stop, fail or are interrupted."""

import functools
import itertools
import os
import signal
import sys
import textwrap
import threading
import time
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import numpy as np
import psutil
import pytest
from actors_in_tests import Weighted, envs_of, expect_every_step, fill, kill_worker, rest_of, taken
from fork_server_in_tests import wait_until
from hammers import together
from interrupts import at_point
from programs import completed
from scripted import Mortal, Scripted, by_env, policy
from small_envs import Small

import pysampler
from pysampler._vector import core
from pysampler.errors import BusyError, ClosedError, EnvError, StopActors, WorkerLostError


@pytest.mark.slow
def test_acting_in_this_process_goes_on_after_interrupts():
    """Wherever a signal handler raises: after lost steps all envs begin new episodes."""
    only = "_run", "_act_and_step", "_step", "_hand_over", "_begin_first_frame", "count", "pack"
    last = {}
    with envs_of(num_workers=0) as envs, pysampler.Actors(envs, policy) as actors:
        for n in itertools.count(1):
            reached, first, _ = at_point(n, lambda: actors.take(96, min_records=96), only=only)
            second = actors.take(96, min_records=96)
            assert len(second) == 96
            for row in [*([] if first is None else first.rows), *second.rows]:
                number, length = last.get(row["env"], (-1, 0))
                assert row["number"] > number
                assert row["lengths"] in ({length + 1, 1} if row["number"] == number + 1 else {1})
                assert row["lengths"] == row["next_observations"][2]
                over = row["terminated"] or row["truncated"]
                last[row["env"]] = row["number"], 0 if over else row["lengths"]
            if not reached:
                break


def test_actors_block_on_a_full_ring_and_resume_once_it_drains():
    with envs_of(num_workers=2) as envs, pysampler.Actors(envs, policy, high=40, low=8) as actors:
        actors.begin()
        fill(actors)
        before = envs.stats().steps.count.sum()
        drained = 0
        while drained < 24:  # not yet low
            drained += len(actors.take(8))
        assert len(actors) + drained <= 40  # slots given back are not filled yet
        batches = taken(actors, 200)
        assert len(batches) > 0
        assert envs.stats().steps.count.sum() > before
        actors.stop()
        assert all(len(actors) <= 40 for _ in iter(lambda: actors.take(7), None))


def test_actors_act_while_the_learner_has_a_batch():
    with envs_of(num_workers=2) as envs, pysampler.Actors(envs, policy, high=32) as actors:
        fill(actors)
        assert len(actors.take(32)) == 32
        wait_until(lambda: len(actors) >= 32)


def test_a_batch_stays_unchanged_until_the_next_take():
    with envs_of(num_workers=2) as envs, pysampler.Actors(envs, policy, high=32) as actors:
        for _ in range(5):
            records = actors.take(16, min_records=8)
            kept = records.copy()
            fill(actors)
            np.testing.assert_array_equal(records.rows, kept.rows)


def test_take_returns_available_records_at_the_deadline(monkeypatch, tmp_path):
    monkeypatch.setattr(core, "SHUTDOWN_TIMEOUT_S", 0.1)
    hangs = tmp_path / "hangs"
    with pysampler.VectorEnv([functools.partial(Mortal, "hang", 3, hangs)], num_workers=1) as envs:
        actors = pysampler.Actors(envs, lambda o: np.sin(o[:, 1:]), high=64)
        actors.begin()
        wait_until(hangs.exists)
        assert len(actors.take(5, timeout=0.5)) <= 2
        assert len(actors.take(5, timeout=0.01, min_records=5)) <= 2
        assert len(actors.take(5, timeout=0)) == 0
        with pytest.warns(UserWarning, match="closed with actors under way"):
            actors.close()


def test_a_batch_is_joined_across_the_end_of_the_ring():
    with envs_of(num_workers=2) as envs, pysampler.Actors(envs, policy, high=64, low=60) as actors:
        batches = [actors.take(48, min_records=48).copy() for _ in range(40)]
        assert {len(batch) for batch in batches} == {48}
        by_env(batches)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("max_lag", [None, 2])
def test_a_batch_may_be_larger_than_the_ring(workers, max_lag):
    kwargs = {"high": 8, "low": 3, "max_lag": max_lag}
    with (
        envs_of(4, num_workers=workers) as envs,
        pysampler.Actors(envs, policy, **kwargs) as actors,
    ):
        batches = [batch.copy() for batch, _ in zip(actors.batches(100), range(4), strict=False)]
        assert [len(batch) for batch in batches] == [100] * 4
        by_env(batches)
        assert len(actors.take(100, timeout=0, min_records=100)) <= 100


# -- the end --------------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [0, 2])
def test_stop_loses_no_recorded_step(workers):
    with envs_of(num_workers=workers) as envs:
        actors = pysampler.Actors(envs, policy, high=40)
        batches = taken(actors, 100)
        batches += rest_of(actors)
        expect_every_step(envs, batches)
        assert actors.take(5) is None
        assert actors.stopped


@pytest.mark.parametrize("workers", [0, 2])
def test_actors_stopped_before_they_begin_make_no_step(workers):
    with envs_of(num_workers=workers) as envs, pysampler.Actors(envs, policy) as actors:
        actors.stop()
        assert actors.stopped
        assert actors.take(5) is None
        assert envs.stats().steps.count.sum() == 0


class Stopping(Scripted):
    def step(self, action):
        if self.life == 20:
            raise StopActors
        return super().step(action)


def stopping(observations):
    if (observations[:, 2] == 20).any():
        raise StopActors
    return policy(observations)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("who", ["env", "policy", "thread"])
def test_an_env_a_policy_or_a_thread_may_stop_all_actors(who, workers):
    fns = [Scripted, Scripted, Scripted, Stopping if who == "env" else Scripted]
    with closing(pysampler.VectorEnv(fns, num_workers=workers)) as envs:
        actors = pysampler.Actors(envs, stopping if who == "policy" else policy)
        if who == "thread":
            actors.begin()
            thread = threading.Thread(target=actors.stop)
            thread.start()
        batches = [records.copy() for records in actors.batches(10, min_records=1)]
        rows = by_env(batches)
        if who == "thread":
            thread.join()
        else:  # one env, or the envs of the first policy to reach 20
            assert 20 in ({len(rows[3])} if who == "env" else {len(mine) for mine in rows.values()})
        assert actors.take(5) is None


def test_closed_actors_return_the_vector_env():
    with envs_of(num_workers=2) as envs:
        with pysampler.Actors(envs, policy) as actors:
            actors.take(5)
            with pytest.raises(Exception, match="actors"):
                envs.step(envs.action_space.sample())
            with pytest.raises(Exception, match="actors"):
                pysampler.Actors(envs, policy)
        envs.reset(seed=1)
        envs.step(envs.action_space.sample())
        with pytest.raises(ClosedError):
            actors.take(1)
        with pysampler.Actors(envs, policy, steps=3) as again:
            assert len(again.take(4, min_records=4)) == 4


def test_a_learner_that_raises_stops_the_actors():
    pids = []

    def learn():
        with pysampler.Actors(Scripted, policy, num_envs=2) as actors:
            actors.take(5)
            pids.extend(actors.envs._pool.pids)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        learn()
    assert len(pids) > 0
    assert not any(psutil.pid_exists(pid) for pid in pids)


def test_an_env_error_reaches_the_learner():
    fns = [Mortal, functools.partial(Mortal, "raise", 30)]
    with closing(pysampler.VectorEnv(fns, num_workers=2)) as envs:
        actors = pysampler.Actors(envs, lambda o: np.sin(o[:, 1:]))
        with pytest.raises(EnvError, match="env 1 .* raised ValueError") as caught:
            taken(actors, 10**9)
        assert isinstance(caught.value, ValueError)
        with pytest.raises(ClosedError, match="they are closed, after .*: env 1 .* raised Value"):
            actors.take(1)
        envs.reset()


def failing(observations):
    if (observations[:, 1] > 10).any():
        raise KeyError("lost it")
    return np.sin(observations[:, 1:])


def test_a_policy_error_reaches_the_learner():
    with closing(pysampler.VectorEnv([Mortal] * 2, num_workers=2)) as envs:
        actors = pysampler.Actors(envs, failing)
        with pytest.raises(EnvError, match=r"the policy.* raised KeyError acting"):
            taken(actors, 10**9)


def counted(observations):
    return np.sin(observations[:, 1:])


@pytest.mark.parametrize("workers", [1, 2])
def test_records_pushed_before_a_loss_come_before_its_error(workers):
    with envs_of(num_workers=workers) as envs, pysampler.Actors(envs, policy, high=32) as actors:
        fill(actors)
        kill_worker(envs)
        batches = []
        with pytest.raises(WorkerLostError, match="worker 0"):
            while True:
                batches.append(actors.take(8, min_records=8).copy())
        assert sum(map(len, batches)) >= 32
        by_env(batches)
        with pytest.raises(ClosedError, match="they are closed, after WorkerLostError: "):
            actors.take(1)


def test_a_loss_does_not_end_a_loop_until_stopped():
    with envs_of(num_workers=2) as envs, pysampler.Actors(envs, policy, high=32) as actors:
        fill(actors)
        kill_worker(envs)
        with pytest.raises(WorkerLostError, match="worker 0"):
            while not actors.stopped:
                actors.take(1000, min_records=1000)
        assert actors.stopped


@pytest.mark.slow
def test_an_interrupt_while_a_loss_is_noticed_loses_neither_records_nor_the_error():
    """Wherever a signal handler raises in the first take after the loss."""
    only = "_check_workers", "wait_some", "_recover", "recover", "kill", "end", "_end", "_is_lost"
    for n in itertools.count(1):
        with envs_of(2, num_workers=1) as envs, pysampler.Actors(envs, policy, high=32) as actors:
            fill(actors)
            kill_worker(envs)
            reached, first, where = at_point(n, lambda: actors.take(8), only=only)
            batches = [] if first is None else [first]
            with pytest.raises(WorkerLostError, match="worker 0"):
                while True:
                    batches.append(actors.take(8))
            assert sum(map(len, batches)) >= 32, where
            by_env(batches)
        if not reached:
            break
    assert n > 8


class Stillborn(Mortal):
    """Its second reset raises; a step after that is recorded if the error goes unnoticed."""

    steps = 0

    def reset(self, *, seed=None, options=None):
        if self.mark.exists():
            raise ValueError("no reset")
        return super().reset(seed=seed, options=options)


@pytest.mark.parametrize("length", [None, 3])
def test_an_error_in_the_first_reset_of_a_replacement_raises(tmp_path, length):
    fns = [functools.partial(Stillborn, "die", 20, tmp_path / "died"), Mortal]
    with closing(pysampler.VectorEnv(fns, num_workers=2, on_worker_loss="restart")) as envs:
        actors = pysampler.Actors(envs, counted, steps=length)
        rows = []
        with pytest.raises(EnvError, match="no reset"):
            while True:
                rows += list(actors.take(16).copy().rows)
        for row in rows:
            before, after = row["observations"].reshape(-1, 2), row["next_observations"]
            np.testing.assert_array_equal(after.reshape(-1, 2), np.add(before, (0, 1)))


def test_a_blocked_actor_that_is_killed_is_replaced():
    made = envs_of(num_workers=2, on_worker_loss="restart")
    with made as envs, pysampler.Actors(envs, policy, high=32, seed=3) as actors:
        for _ in range(3):
            fill(actors)
            killed = envs._pool.pids[1]
            os.kill(killed, signal.SIGKILL)
            seen = set()
            while len(seen) < 6 or envs._pool.pids[1] == killed:
                seen |= set(actors.take(16).env.tolist())
            envs._pool._recovery.losses[1].clear()  # too many losses would end the pool


class MadeSlowly(Scripted):
    """Its second instance is made only once there is the file ``gate``."""

    def __init__(self, mark, gate):
        super().__init__()
        while mark.exists() and not gate.exists():
            time.sleep(0.001)  # poll: the test makes the file
        mark.touch()


@pytest.mark.slow
def test_take_returns_at_the_deadline_while_the_only_worker_is_replaced(tmp_path):
    gate = tmp_path / "gate"
    fns = [functools.partial(MadeSlowly, tmp_path / "mark", gate)]
    made = pysampler.VectorEnv(fns, num_workers=1, on_worker_loss="restart")
    with made as envs, pysampler.Actors(envs, policy) as actors:
        actors.take(1)
        kill_worker(envs)
        while len(actors.take(64, timeout=0.05)) > 0:
            pass
        gate.touch()
        assert len(actors.take(1)) == 1


@pytest.mark.slow
def test_weights_are_never_torn_while_workers_are_killed():
    acting = Weighted()
    made = envs_of(num_workers=2, on_worker_loss="restart", max_restarts=99, restart_window=1.0)
    with made as envs, pysampler.Actors(envs, acting, refresh_share=1) as actors:
        for value in range(1, 400):
            actors.publish({"w": np.full(1000, float(value)), "b": value})
            if value % 100 == 0:
                os.kill(envs._pool.pids[value // 100 % 2], signal.SIGKILL)
            records = actors.take(64)  # raises if a worker found them torn
            np.testing.assert_array_equal(records.w, records.version - 1)
        assert envs.stats().losses.sum() == 3


@pytest.mark.slow
def test_the_program_exits_cleanly_with_open_actors():
    script = """
        import numpy as np, pysampler
        def policy(observations):
            return (observations[:, 2] > 0).astype(int)
        actors = pysampler.Actors("CartPole-v1", policy, num_envs=4)
        print(len(actors.take(10)), *actors.envs._pool.pids)
    """
    done = completed("-c", textwrap.dedent(script))
    assert done.stderr == ""
    wait_until(lambda: not any(psutil.pid_exists(int(pid)) for pid in done.stdout.split()[1:]))


def test_concurrent_take_raises_busy_error(tmp_path, monkeypatch):
    monkeypatch.setattr(core, "SHUTDOWN_TIMEOUT_S", 0.1)
    hangs = functools.partial(Mortal, "hang", 1, tmp_path / "hangs")
    with closing(pysampler.VectorEnv([hangs], num_workers=1)) as envs:
        actors = pysampler.Actors(envs, counted)
        actors.begin()
        ready = threading.Event()

        def wait():
            ready.set()
            assert actors.take(1) is None  # closed meanwhile

        thread = threading.Thread(target=wait, daemon=True)
        thread.start()
        ready.wait()
        while True:
            try:
                actors.take(1, timeout=0)
            except BusyError:
                break
        wait_until((tmp_path / "hangs").exists)
        with pytest.warns(UserWarning, match="under way"):
            actors.close()


# -- Ctrl-C, forks and threads -------------------------------------------------------------------


@pytest.mark.parametrize("least", [1, 40])
@pytest.mark.parametrize("max_lag", [None, 0])
def test_ctrl_c_at_any_line_of_take_loses_no_record(least, max_lag):
    """Interrupt before each line of a take in turn, then take again."""
    made = envs_of(num_workers=2)
    options = {"high": 64, "low": 48, "max_lag": max_lag, "refresh_share": 1}
    with made as envs, pysampler.Actors(envs, Weighted(), **options) as actors:
        rows, interrupted = [], 0
        for line in range(1, 60):
            if max_lag is not None and line % 10 == 0:
                actors.publish({"w": np.full(1000, float(line)), "b": line})
            left = line

            def trace(frame, event, _):
                nonlocal left
                if "pysampler" not in frame.f_code.co_filename:
                    return None
                reading = "RecordReader.take", "RecordReader._choose"
                if event == "line" and frame.f_code.co_qualname in reading:
                    left -= 1
                    if left == 0:
                        raise KeyboardInterrupt
                return trace

            sys.settrace(trace)
            try:
                records = actors.take(45, min_records=least)
            except KeyboardInterrupt:
                interrupted += 1
                sys.settrace(None)
                records = actors.take(45, min_records=least)
            finally:
                sys.settrace(None)
            assert least <= len(records) <= 45
            rows.append(records.copy())
        assert interrupted > 8
        stats = actors.stats()
        assert stats.taken == sum(map(len, rows))
        numbers = defaultdict(list)
        for batch in rows:
            for row in batch.rows:
                numbers[int(row["env"])].append(int(row["number"]))
        gaps = sum(max(mine) + 1 - len(mine) for mine in numbers.values())
        assert all(mine == sorted(set(mine)) for mine in numbers.values())
        if max_lag is None:
            assert gaps == 0
        assert gaps <= stats.dropped


def test_ctrl_c_while_actors_begin_leaves_the_vector_env_usable():
    with envs_of(num_workers=2) as envs:
        actors = pysampler.Actors(envs, policy)
        for where, owner in (("reset", envs), ("_start_workers", actors), ("lay_out", envs._core)):
            whole = getattr(owner, where)

            def interrupted(*args, whole=whole, **kwargs):
                if whole.__name__ == "reset":
                    envs.reset_async(seed=1)  # and no wait
                else:
                    whole(*args, **kwargs)
                raise KeyboardInterrupt

            setattr(owner, where, interrupted)
            with pytest.raises(KeyboardInterrupt):
                actors.take(1)
            delattr(owner, where)
        by_env(taken(actors, 200) + rest_of(actors))
        actors.close()
        envs.reset()


class InterruptedLoad(Weighted):
    """Raises KeyboardInterrupt the first time that it loads published weights."""

    has_raised = False

    def load_state_dict(self, weights):
        if weights["b"] == 1 and not self.has_raised:
            self.has_raised = True
            raise KeyboardInterrupt
        super().load_state_dict(weights)


def test_weights_are_loaded_again_after_ctrl_c():
    options = {"high": 64, "refresh_share": 1}
    with (
        envs_of(num_workers=0) as envs,
        pysampler.Actors(envs, InterruptedLoad(), **options) as actors,
    ):
        assert (actors.take(6).w == 0).all()
        version = actors.publish({"w": np.ones(1000), "b": 1})
        records = None
        with pytest.raises(KeyboardInterrupt):
            while True:
                actors.take(64)
        while records is None or records.version[-1] < version:
            records = actors.take(64)
            assert (records.w == (records.version == version)).all()


class Failing(Scripted):
    def __init__(self, error):
        super().__init__()
        self.error = error

    def step(self, action):
        if self.life == 5:
            raise self.error
        return super().step(action)


def envs_of_failing(*errors, workers=1):
    fns = [functools.partial(Failing, error) for error in errors]
    return closing(pysampler.VectorEnv(fns, num_workers=workers))


@pytest.mark.parametrize("workers", [0, 1])
def test_an_env_error_takes_precedence_over_a_stop(workers):
    made = envs_of_failing(StopActors(), ValueError("a bug"), workers=workers)
    with made as envs, pytest.raises(EnvError, match="a bug"):
        taken(pysampler.Actors(envs, policy), 10**9)


@pytest.mark.parametrize("kind", [ValueError, WorkerLostError])
def test_an_env_error_comes_before_the_records_that_are_left(kind):
    """Also if the env itself has lost a worker."""
    with envs_of_failing(kind("a bug")) as envs, pysampler.Actors(envs, policy) as actors:
        actors.begin()
        wait_until(lambda: envs._pool.ready)
        assert len(actors) > 0
        with pytest.raises(EnvError, match="a bug"):
            actors.take(1)


def test_stop_in_a_forked_child_does_not_stop_the_actors():
    with envs_of(num_workers=2) as envs, pysampler.Actors(envs, policy) as actors:
        actors.take(1)
        child = os.fork()
        if child == 0:
            actors.stop()
            os._exit(0)
        os.waitpid(child, 0)
        assert not actors.stopped
        taken(actors, 100)


def test_threads_that_use_actors_at_once_begin_them_once():
    for _ in range(3):
        with envs_of(num_workers=2) as envs, pysampler.Actors(envs, Weighted()) as actors:
            together(actors.publish, lambda: actors.take(5), actors.stats)
            assert actors.version == 2


def test_batches_after_a_stop_are_never_empty():
    with envs_of(num_workers=2) as envs, pysampler.Actors(envs, Weighted(), max_lag=0) as actors:
        actors.take(1)
        fill(actors)
        actors.publish({"w": np.ones(1000), "b": 1})
        actors.stop()
        assert all(len(records) > 0 for records in actors.batches(1000, min_records=1))


# -- bad input ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"steps": 0}, "steps 0"),
        ({"high": 0}, "high 0"),
        ({"high": 4, "low": 4}, "low 4"),
        ({"low": -1}, "low -1"),
        ({"max_lag": -1}, "max_lag -1"),
        ({"refresh_share": 0}, "refresh_share 0"),
        ({"settings": {"epsilon": [1, 2]}}, "setting 'epsilon'"),
        ({"settings": {"epsilon": "x"}}, "setting 'epsilon'"),
    ],
    ids=str,
)
def test_bad_options_are_refused_before_anything_starts(options, match):
    with envs_of(num_workers=0) as envs:
        with pytest.raises(ValueError, match=f"cannot act: {match}"):
            pysampler.Actors(envs, policy, **options)
        envs.reset()


def test_bad_take_arguments_are_refused():
    with envs_of(num_workers=0) as envs, pysampler.Actors(envs, policy, high=8, low=3) as actors:
        with pytest.raises(ValueError, match="min_records 9, expected at most count, 8"):
            actors.take(8, min_records=9)
        with pytest.raises(ValueError, match="cannot take records: count 0"):
            actors.take(0)
        with pytest.raises(AttributeError, match="records have no 'reward'"):
            actors.take(1).reward  # noqa: B018


@pytest.mark.parametrize("name", ["returns", "copy", "state0", "no name"])
def test_policy_outputs_named_like_record_fields_are_refused(name):
    def clashing(observations):
        return policy(observations)[0], {name: observations[:, 0]}

    with (
        envs_of(num_workers=0) as envs,
        pytest.raises(ValueError, match=f"extra '{name}' has the name of another"),
    ):
        pysampler.Actors(envs, clashing).take(1)


class Held(Scripted):
    """Signals that its reset has begun, then waits for permission to continue."""

    def __init__(self, folder):
        super().__init__()
        self.folder = folder

    def reset(self, **kwargs):
        (self.folder / "at work").write_text("")
        (self.folder / "go on").read_text()
        return super().reset(**kwargs)


def test_close_waits_for_a_thread_that_begins_the_actors(tmp_path):
    os.mkfifo(tmp_path / "at work")
    os.mkfifo(tmp_path / "go on")
    actors = pysampler.Actors(functools.partial(Held, tmp_path), policy, num_envs=1)
    with ThreadPoolExecutor(2) as threads:
        beginning = threads.submit(actors.begin)
        (tmp_path / "at work").read_text()
        closing = threads.submit(actors.close)
        wait_until(lambda: actors.closed)
        (tmp_path / "go on").write_text("")
        assert isinstance(beginning.exception(), ClosedError)
        closing.result()
    assert actors.envs.closed


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:pysampler")
def test_losses_that_are_longer_ago_than_the_window_do_not_count_while_actors_act():
    with (
        pysampler.VectorEnv(
            [functools.partial(Small, 3, before=lambda env: env.life == 30 and os._exit(3))],
            num_workers=1,
            on_worker_loss="restart",
            max_restarts=1,
            restart_window=1e-6,
        ) as envs,
        pysampler.Actors(envs, lambda observations: observations) as actors,
    ):
        while envs.stats().losses.sum() < 4:
            assert actors.take(8, min_records=1) is not None


def test_options_are_refused_while_workers_act_by_themselves():
    with envs_of(num_workers=1) as envs:
        envs.set_options(None, {"x": 1})
        with pysampler.Actors(envs, policy) as actors:
            envs.set_options(None, {"x": 2})
            actors.take(1)
            with pytest.raises(BusyError, match="cannot set options: actors read none until"):
                envs.set_options(None, {"x": 3})
        envs.set_options(None, {"x": 4})
