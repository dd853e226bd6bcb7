"""Observers of a running pool: gauges, verdicts, damaged segments, and small terminals."""

import contextlib
import dataclasses
import functools
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import psutil
import pytest
from actors_in_tests import Weighted, fill
from scripted import Scripted
from small_envs import Small
from terminals import on_screen, plain

import pysampler
from pysampler._cli import programs
from pysampler._cli.look import PoolLooks, WorkerLook, _Since, _verdict
from pysampler._cli.main import main
from pysampler._cli.programs import AttachError, find
from pysampler._workers.counters import _DURATIONS
from pysampler._workers.header import HEADER, LAYOUT, LINE, MAGIC
from pysampler._workers.manifest import SegmentManifest

HERE = str(os.getpid())
ACTIONS = np.zeros((4, 2), np.float32)
TOP = "-m", "pysampler", "top"


class Busy(Scripted):
    """Its step uses some ms of CPU time, however long that takes."""

    def step(self, action):
        end = time.process_time() + 5e-3
        while time.process_time() < end:
            pass
        return super().step(action)


def looking():
    """Return the PoolLooks of this process's only pool."""
    (pool,) = find(os.getpid()).pools
    return PoolLooks(pool)


def four(**kwargs):
    envs = pysampler.VectorEnv([functools.partial(Scripted, ".")] * 4, **kwargs)
    return contextlib.closing(envs)


# -- gauges ----------------------------------------------------------------------------------------


def test_restarts_are_counted_and_main_envs_have_a_row():
    with four(num_workers=1, main_envs=2, on_worker_loss="restart") as envs:
        envs.reset(seed=0)
        os.kill(envs._pool.pids[0], signal.SIGKILL)
        envs.step(ACTIONS)
        looks = looking()
        envs.step(ACTIONS)
        envs.step(ACTIONS)
        look = looks.look()
        assert [worker.main for worker in look.workers] == [False, True]
        assert [worker.pid for worker in look.workers] == [*envs._pool.pids, os.getpid()]
        assert [worker.restarts for worker in look.workers] == [1, 0]
        assert look.workers[0].steps > 0  # its first steps are resets
        assert round(look.workers[1].steps * look.seconds) == 4
        assert [worker.lag for worker in look.workers] == [None, None]
        assert not any(worker.acts for worker in look.workers)
        assert look.records is look.most_records is look.workers[0].blocked is None
        assert envs.stats().losses.tolist() == [1, 0]


def test_blocked_actors_and_their_weight_lag_are_shown():
    with four(num_workers=2) as envs:
        actors = pysampler.Actors(envs, Weighted(), high=64)
        fill(actors)
        for _ in range(3):
            actors.publish()
        looks = looking()
        blocked_ns = envs._pool.gauges.blocked_ns
        before = blocked_ns.copy()
        while (blocked_ns - before).min() < 500_000_000:
            time.sleep(0.01)  # poll: workers write it and wake no reader
        look = looks.look()
        assert {worker.lag for worker in look.workers} <= {3, 4}  # one may not have loaded any yet
        assert all(worker.acts and worker.blocked > 0.5 for worker in look.workers)
        assert look.records == len(actors._ring)
        assert look.records >= look.most_records == 64
        assert look.verdict.startswith("the learner is the limit")
        while any(worker.lag for worker in looks.look().workers):
            actors.take(64)
        actors.close()
        envs.reset(seed=0)
        look = looks.look()
        assert [worker.acts for worker in look.workers] == [False, False]
        assert look.records is None


def test_returned_records_do_not_count_as_waiting():
    with four(num_workers=0) as envs, pysampler.Actors(envs, Weighted()) as actors:
        assert len(actors.take(4)) == 4
        assert envs._pool.gauges.records == len(actors) > 4


def test_workers_that_act_for_rollouts_do_not_count_as_waiting():
    def policy(observations):
        time.sleep(1e-3)  # most of a step
        return np.zeros((len(observations), 2), np.float32)

    with four(num_workers=2) as envs:
        rollouts = pysampler.Rollouts(envs, policy, 20, policy_in="workers")
        next(rollouts)
        looks = looking()
        next(rollouts)
        look = looks.look()
        assert all(worker.acts for worker in look.workers)
        assert look.verdict.startswith("the policy or the program is the limit")
        rollouts.close()


@pytest.mark.slow
def test_workers_starved_of_cpu_are_reported():
    burn = [sys.executable, "-c", "while True: pass"]
    cpu = min(os.sched_getaffinity(0))
    with contextlib.ExitStack() as stack:
        envs = stack.enter_context(contextlib.closing(pysampler.VectorEnv([Busy], num_workers=1)))
        (pid,) = envs._pool.pids
        os.sched_setaffinity(pid, {cpu})
        for _ in range(3):
            burner = stack.enter_context(subprocess.Popen(burn))
            stack.callback(burner.kill)
            os.sched_setaffinity(burner.pid, {cpu})
        envs.reset(seed=0)
        looks = looking()
        while True:
            envs.step(ACTIONS[:1])
            look = looks.look()
            if look.workers[0].starved > 0.3:
                break
        assert "workers wait for a CPU " in look.verdict


def durations(count, ns):
    """Return the durations of four envs, ``count`` of ``ns`` each."""
    made = _Since(*[np.zeros(4, _DURATIONS)] * 2)
    made.count, made.ns = np.full(4, count), np.full(4, count * ns)
    return made


def verdict(*, busy, program, steps, resets=None, since=0.0, sizes=(2, 2), **worker):
    """Return the verdict on a pool of one worker after one second."""
    kind = {
        "main": False,
        "pid": 1,
        "cpu": 0,
        "env": None,
        "since": since,
        "steps": 1.0,
        "step_p50": 0.0,
        "step_p99": 0.0,
        "reset_p50": 0.0,
        "reset_p99": 0.0,
        "busy": busy,
        "on_cpu": busy,
        "starved": 0.0,
        "blocked": None,
        "acts": False,
        "lag": None,
        "restarts": 0,
        **worker,
    }
    resets = durations(0, 0) if resets is None else resets
    about = SegmentManifest(
        "1", "env", [[0, 4]], [sizes], main=False, counters=256, gauges=512, trace=768
    )
    return _verdict([WorkerLook(**kind)], busy, program, steps, resets, 1.0, about)


def test_each_verdict_names_its_cause():
    steps = durations(10_000, 5_000)
    assert verdict(busy=0.2, program=0.9, steps=steps).startswith(
        "the program is the limit: it is busy elsewhere 90%"
    )
    assert verdict(busy=0.2, program=0.1, steps=steps).startswith(
        "waking workers is the limit: all envs step in 100.0 us"
    )
    assert verdict(busy=0.2, program=0.1, steps=steps, starved=0.4).startswith(
        "workers wait for a CPU 40% of the time"
    )
    assert verdict(busy=0.9, program=0.1, steps=steps, starved=0.4).startswith(
        "envs are the limit: workers step them 90% of the time; workers wait for a CPU 40%"
    )
    assert verdict(busy=0.9, program=0.1, steps=steps, on_cpu=0.1).startswith(
        "envs wait for something other than a CPU"
    )
    slow = durations(100, 10_000_000)
    assert verdict(busy=0.9, program=0.1, steps=steps, resets=slow).startswith(
        "resets are the limit: they take 95%"
    )
    none = durations(0, 0)
    assert verdict(busy=1.0, program=0.0, steps=none, env=3, since=4.8) == (
        "all wait for env 3, at work for 4.80 s"
    )
    assert verdict(busy=0.0, program=1.0, steps=none, since=4.8) == (
        "the program has sent no command for 4.8 s"
    )


def test_first_envs_of_groups_are_compared_with_each_other():
    steps = durations(100, 10_000)
    steps.ns[[0, 2]] = 100 * 500_000
    limit = "envs are the limit"
    assert verdict(busy=0.9, program=0.1, steps=steps).startswith(limit)
    steps.ns[2] *= 4
    found = verdict(busy=0.9, program=0.1, steps=steps)
    assert found.startswith("one env slow: 2 takes 4.0 times the usual; min_envs ")
    steps.ns[3] = 100 * 90_000
    assert verdict(busy=0.9, program=0.1, steps=steps, sizes=(4,)).startswith(
        "one env slow: 2 takes 40"
    )


# -- the segment's contents ------------------------------------------------------------------------


def test_a_segment_header_matches_its_python_dtype():
    with pysampler.sync.Segment(1 << 16) as segment:
        header = np.frombuffer(os.pread(segment.fd, HEADER.itemsize, 0), HEADER)[0]
        size = os.fstat(segment.fd).st_size
        assert header.item() == (MAGIC, LAYOUT, os.getpid(), size, segment.id)
        assert segment.array((1,), np.dtype(np.uint8), None)[0] == LINE
        assert segment.array((1,), np.dtype(np.uint8), None)[0] == 2 * LINE


GOOD = dataclasses.asdict(
    SegmentManifest("1", "env", [[0, 2]], [[2]], main=False, counters=256, gauges=512, trace=768)
)
GOOD["form"] = 2
BAD = [
    *({"envs": []}, {"envs": 7}, {"envs": None}, {"envs": [[0, 2, 3]]}),
    *({"envs": [[0, -2]]}, {"envs": [[1, 2]]}, {"envs": [[0, 2], [3, 4]]}),
    *({"envs": [[0, 1e9]]}, {"envs": [["0", "2"]]}, {"envs": [[0, 1 << 40]]}),
    *(
        {"counters": -1},
        {"counters": 1 << 60},
        {"trace": 1 << 60},
        {"gauges": "512"},
        {"gauges": True},
    ),
    *({"groups": []}, {"groups": [[1]]}, {"groups": [[3, -1]]}, {"groups": [["2"]]}),
    *({"noun": 3}, {"form": 1}, {"more": 1}, {"main": 0}, {"main": True, "envs": [[0, 2]]}),
]


@pytest.fixture(scope="module")
def pool_segment():
    """Return the writable manifest of a pool's segment, its worker's pid, and its size."""
    with four(num_workers=1) as envs:
        room = SegmentManifest.room_for(1, 1)
        _, memory = envs._pool._links.segment.array((room,), np.dtype(np.uint8), LINE)
        yield memory, envs._pool.pids[0], os.fstat(envs._pool._links.segment.fd).st_size


def written(memory, text):
    text = text if isinstance(text, bytes) else json.dumps({**GOOD, **text}).encode()
    memory[:4] = np.frombuffer(len(text).to_bytes(4, "little"), np.uint8)
    memory[4 : 4 + len(text)] = np.frombuffer(text, np.uint8)


def test_a_valid_manifest_is_read(pool_segment):
    memory, worker, _ = pool_segment
    written(memory, {})
    assert find(worker).pools[0].about.envs == [[0, 2]]


@pytest.mark.parametrize("text", [*BAD, b"[" * 400, b"[]", b"\xff", b"", b'{"form": 2}'], ids=repr)
def test_an_invalid_manifest_is_reported_in_one_line(pool_segment, text, capsys):
    memory, worker, _ = pool_segment
    written(memory, text)
    assert main(["dump", str(worker)]) == 2
    why = "it has no counters that this version can read; use the command pysampler of its"
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.startswith(f"pysampler: worker {worker}: {why}")


def test_counters_outside_the_segment_are_reported_in_one_line(pool_segment, capsys):
    memory, worker, size = pool_segment
    for name, value in (("envs", [[0, 1 << 20]]), ("counters", size - 8), ("gauges", size - 8)):
        written(memory, {name: value, **({"groups": [[1 << 20]]} if name == "envs" else {})})
        assert main(["dump", str(worker)]) == 2
        assert capsys.readouterr().err.endswith("its counters exceed its segment\n")


def test_a_deeply_nested_manifest_is_ignored():
    memory = np.zeros(1 << 18, np.uint8)
    written(memory[LINE:], b"[" * (1 << 17))
    assert SegmentManifest.read(memory) is None


def test_an_unsealed_memfd_is_not_mapped():
    fd = os.memfd_create("pysampler", os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, 1 << 16)
    with pytest.raises(AttachError, match="it is starting"):
        programs._mapped(Path(f"/proc/self/fd/{fd}"))
    os.close(fd)


# -- terminals -------------------------------------------------------------------------------------


@pytest.mark.slow
def test_control_characters_in_names_are_replaced():
    evil = type("E\x1b[2Jvil\x07", (Scripted,), {})
    envs = pysampler.VectorEnv([functools.partial(evil, ".")] * 2, num_workers=1)
    with contextlib.closing(envs):
        status, shown = on_screen("-m", "pysampler", "dump", HERE, "--seconds", "0.01")
    assert status == 0
    assert "E?[2Jvil?, 2 envs" in shown
    assert "\x1b" not in shown


@pytest.mark.slow
@pytest.mark.parametrize(("columns", "lines"), [(20, 3), (1, 1), (200, 5)])
def test_output_fits_a_small_terminal(columns, lines):
    with four(num_workers=2) as envs:
        envs.reset(seed=0)
        first = f"program {HERE}:"[:columns]
        top = *TOP, HERE, "--seconds", "0.05"
        status, shown = on_screen(*top, columns=columns, lines=lines, once=(first, interrupt_top))
    assert status == 0
    shown = plain(shown.replace("\x1b[H", "\n")).replace("\r", "\n").splitlines()
    assert max(map(len, shown)) <= columns
    assert any(line.startswith(first) for line in shown)


def interrupt_top():
    """Send SIGINT to top, as Ctrl-C does."""
    (child,) = (one for one in psutil.Process().children() if TOP[-1] in one.cmdline())
    child.send_signal(signal.SIGINT)


@pytest.mark.slow
def test_top_refuses_a_dumb_terminal():
    status, shown = on_screen(*TOP, kind="dumb")
    assert status == 2
    assert shown.startswith("pysampler: top needs a terminal that can redraw")


NO_TERMINAL = "pysampler: top needs a terminal; use pysampler dump, or dump --json"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "status", "told"),
    [
        *(("$dump >/dev/full", 2, "pysampler: No space left on device"), ("$dump >&- 2>&-", 0, "")),
        *(("$dump --json >&-", 0, ""), ("$top >&-", 2, NO_TERMINAL), ("$dump | head -1", 0, "")),
        ("($dump --json; echo $? >&2) | true", 0, "0"),
    ],
)
def test_closed_or_full_output_ends_the_command_cleanly(command, status, told):
    for name in ("dump", "top"):
        run = f"{sys.executable} -m pysampler {name} {HERE} --seconds 0.01"
        command = command.replace(f"${name}", run)
    with four(num_workers=1):
        done = subprocess.run(
            command, shell=True, capture_output=True, text=True, check=False, timeout=60
        )
    assert (done.returncode, done.stderr.rstrip()) == (status, told)


def test_step_over_several_looks_counts_once(tmp_path):
    os.mkfifo(tmp_path / "gate")

    def waits(env):
        (tmp_path / "gate").read_bytes()

    with contextlib.closing(
        pysampler.VectorEnv([functools.partial(Small, before=waits)], num_workers=1)
    ) as envs:
        envs.reset()
        looks, busy = looking(), 0.0
        envs.step_async(np.zeros((1, 1)))
        with (tmp_path / "gate").open("wb"):  # once the env has begun
            time.sleep(0.1)  # the step must take time: what the looks count of it is the subject
            for _ in range(2):
                look = looks.look()
                busy += look.busy * look.seconds
        envs.step_wait()
        look = looks.look()
        busy += look.busy * look.seconds
        [took] = envs.stats().steps.seconds
    assert busy == pytest.approx(took, rel=0.1)
