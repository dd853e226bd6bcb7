"""``pysampler trace`` writes a timeline of each process; untraced programs write none."""

import json
import os
import signal
import subprocess
import sys
import time

import gymnasium as gym
import numpy as np
import pytest
import traces
from disk import full_after, small_disk
from gymnasium import spaces
from terminals import on_screen, plain

from pysampler import Actors, Rollouts, VectorEnv, _core
from pysampler._cli.main import main
from pysampler._cli.programs import find, programs
from pysampler._cli.recorder import SLICE, Recorder
from pysampler._cli.rounds import PARTS, idle, of_program, rounds_of
from pysampler._cli.trace_dump import DumpWriter, read_dump
from pysampler._workers.header import LINE
from pysampler.sync import Segment, now

STEPS = 20
RING = LINE + _core.Track.SLICES * 32  # bytes
MAIN, WORKERS = "main process, Counting", ["worker 0, Counting", "worker 1, Counting"]
# Steps in two workers until its stdin ends.
PROGRAM = """
import sys, threading
import pysampler
if __name__ == "__main__":
    envs = pysampler.make_vec("CartPole-v1", 4, vector_kwargs={"num_workers": 2, "native": False})
    envs.reset(seed=1)
    ended = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), ended.set()), daemon=True).start()
    print("steps", flush=True)
    while not ended.is_set():
        envs.step(envs.action_space.sample())
    envs.close()
"""


class Counting(gym.Env):
    """Ends an episode each ten steps."""

    observation_space = spaces.Box(-1, 1, (2,), np.float32)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return np.zeros(2, np.float32), {}

    def step(self, action):
        self.steps += 1
        return np.zeros(2, np.float32), 1.0, self.steps == 10, False, {}


def counting(trace=None, **options):
    return VectorEnv([Counting] * 4, num_workers=2, trace=trace, **options)


def stepped(envs, steps=STEPS):
    envs.reset(seed=1)
    for _ in range(steps):
        envs.step(np.zeros(4, int))
    return envs


@pytest.fixture
def program():
    """A program that steps until its stdin is closed."""
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout.readline() == "steps\n"
    yield process
    with process:
        process.stdin.close()


@pytest.mark.slow
def test_each_step_reset_command_and_wait_is_a_slice(tmp_path):
    with counting(tmp_path / "run.json") as envs:
        stepped(envs)
    tracks = traces.read(tmp_path / "run.json")
    for index, name in enumerate(WORKERS):
        worker = tracks[name]
        # An episode ends with the tenth step, and the step after that resets the env.
        resets = 1 + STEPS // 11
        for env in (2 * index, 2 * index + 1):
            assert len(worker.named(f"reset {env}")) == resets
            assert len(worker.named(f"step {env}")) == STEPS + 1 - resets
        assert len(worker.named("job of group")) == 2  # the reset, and the end
        assert len(worker.named("group")) == STEPS
        for one in worker.named("step", "reset"):  # each is inside a command
            assert one.depth == 1
        for one in worker.named("waits"):
            assert one.depth == 0
    main = tracks[MAIN]
    assert len(main.named("send to 2 groups")) == STEPS + 2
    assert len(main.named("wait for 2 groups")) >= STEPS + 1


@pytest.mark.slow
def test_arrows_connect_a_send_to_its_command_and_its_reader(tmp_path):
    with counting(tmp_path / "run.json") as envs:
        stepped(envs)
    tracks = traces.read(tmp_path / "run.json")
    main = tracks[MAIN]
    senders = {flow: one for one in main.named("send") for flow in one.flows}
    readers = {flow: one for one in main.named("read", "program") for flow in one.flows}
    commands = [one for name in WORKERS for one in tracks[name].named("group", "job")]
    assert len({flow for one in commands for flow in one.flows}) == len(commands)
    for number, one in enumerate(commands):
        (flow,) = one.flows
        assert senders[flow].begin < one.begin
        if number % (STEPS + 2) < STEPS:  # the reader of the last ones may not be shown
            assert one.end <= readers[flow].begin
    # Each send starts the next command of each worker.
    sends = main.named("send")
    for name in WORKERS:
        order = [one.flows[0] for one in tracks[name].named("group", "job")]
        assert [senders[flow] for flow in order] == sends


@pytest.mark.slow
def test_merge_combines_a_trace_with_torchs_profile(tmp_path):
    torch = pytest.importorskip("torch")
    ours, its, both = (tmp_path / name for name in ("ours.json", "its.json", "both.json"))
    activities = [torch.profiler.ProfilerActivity.CPU]
    with counting(ours) as envs, torch.profiler.profile(activities=activities) as profile:
        stepped(envs)
        with torch.profiler.record_function("between"):
            torch.ones(3).sum()
        stepped(envs)
    profile.export_chrome_trace(str(its))
    assert main(["trace", "--merge", str(ours), str(its), "-o", str(both)]) == 0
    events = json.loads(both.read_text())["traceEvents"]
    (between,) = {one["ts"] for one in events if one["name"] == "between"}
    steps = [one["ts"] for one in events if one["name"] == "step 0"]
    before = sum(at < between for at in steps)
    assert before == len(steps) - before > 0


def test_merge_refuses_files_that_are_not_traces(tmp_path, capsys):
    (tmp_path / "none.json").write_text('{"a": 1}')
    both = str(tmp_path / "both.json")
    assert main(["trace", "--merge", str(tmp_path / "none.json"), "-o", both]) == 2
    assert capsys.readouterr().err.strip().endswith("none.json is not a JSON trace")
    assert main(["trace", "--merge", str(tmp_path / "absent.json"), "-o", both]) == 2
    assert capsys.readouterr().err.endswith("absent.json: No such file or directory\n")
    assert main(["trace", "--merge", both]) == 2
    assert "-o FILE" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("policy_in", ["main", "workers"])
def test_the_policy_is_a_slice_in_the_process_where_it_acts(tmp_path, policy_in):
    def policy(observations):
        return np.zeros(len(observations), int)

    with (
        counting(tmp_path / "run.json") as envs,
        Rollouts(envs, policy, 8, policy_in=policy_in) as rollouts,
    ):
        next(iter(rollouts))
    tracks = traces.read(tmp_path / "run.json")
    acted = {name: len(tracks[name].named("policy")) for name in (MAIN, *WORKERS)}
    here, there = (8, 0) if policy_in == "main" else (0, 8)
    assert acted[MAIN] <= here  # the first answer comes from the trial of the policy
    assert acted[MAIN] >= here - 1
    assert [acted[name] for name in WORKERS] == [there, there]


@pytest.mark.slow
def test_waits_of_actors_and_learner_are_slices(tmp_path):
    def policy(observations):
        return np.zeros(len(observations), int)

    with (
        counting(tmp_path / "run.json") as envs,
        Actors(envs, policy, high=16, low=4) as actors,
    ):
        while actors.stats().ready < 16:
            time.sleep(0.001)  # poll: a ring that fills up wakes actors only
        actors.take(100)
        actors.take(4, min_records=4)
    tracks = traces.read(tmp_path / "run.json")
    assert tracks[MAIN].named("waits for records")
    assert tracks[MAIN].named("program")
    waits = [tracks[name].named("waits for room") for name in WORKERS]
    assert any(waits)
    inside = [tracks[name].named("step", "policy", "waits for room") for name in WORKERS]
    assert {one.depth for slices in inside for one in slices} == {1}


@pytest.mark.slow
def test_envs_of_the_main_process_are_on_its_track(tmp_path):
    path = tmp_path / "run.json"
    with VectorEnv([Counting] * 4, num_workers=1, main_envs=2, trace=path) as envs:
        stepped(envs)
    main = traces.read(path)[MAIN]
    assert {one.name for one in main.named("step")} == {"step 2", "step 3"}


@pytest.mark.slow
def test_a_running_program_is_traced_until_ctrl_c(program, tmp_path):
    path = tmp_path / "run.json"
    code, shown = on_screen(
        *("-m", "pysampler", "trace", str(program.pid), "-o", str(path), "--seconds", "100"),
        once=("slices ", lambda: None),
        keys=b"\x03",
    )
    assert code == 0, shown
    text = plain(shown)
    (heading,) = [line for line in text.splitlines() if f"tracing program {program.pid}" in line]
    assert len(heading.rpartition("\r")[2]) <= 80
    for part in PARTS:
        assert f"\n  {part} " in text
    tracks = traces.read(path)
    assert tracks["worker 0, CartPole-v1"].named("step 0")
    speed = [value for _, value in tracks["env steps/s, CartPole-v1"].values]
    assert max(speed) > 0


@pytest.mark.slow
def test_a_killed_program_leaves_a_complete_trace(program, tmp_path):
    path = tmp_path / "run.json"
    code, shown = on_screen(
        *("-m", "pysampler", "trace", str(program.pid), "-o", str(path), "--seconds", "100"),
        once=("slices ", program.kill),
    )
    assert code == 0, shown
    assert "; the program ended" in shown
    assert traces.read(path)["worker 1, CartPole-v1"].named("step 2")


@pytest.mark.slow
def test_dropping_a_vector_env_ends_its_trace(tmp_path):
    path = tmp_path / "run.json"
    envs = stepped(counting(path))
    tracer = envs._tracer
    child = os.fork()  # holds the tracer's stdin open
    if child == 0:
        signal.pause()
    try:
        del envs
        tracer.close()
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    assert traces.read(path)[MAIN].named("send")


@pytest.mark.slow
def test_a_forked_child_that_exits_does_not_end_the_trace(tmp_path):
    path = tmp_path / "run.json"
    with counting(path) as envs:
        stepped(envs)
        child = os.fork()
        if child == 0:
            envs._tracer.close()
            envs.__del__()
            os._exit(0)
        os.waitpid(child, 0)
        stepped(envs)
    assert len(traces.read(path)[MAIN].named("send")) == 2 * (STEPS + 1) + 1


@pytest.mark.slow
def test_the_tracer_ignores_modules_of_the_current_directory(tmp_path, monkeypatch):
    (tmp_path / "select.py").write_text("raise ImportError('another select')")
    monkeypatch.chdir(tmp_path)
    with counting("run.json") as envs:
        stepped(envs)
    assert traces.read("run.json")[MAIN].named("send")


@pytest.mark.slow
def test_groups_sent_one_by_one_have_one_arrow_each(tmp_path):
    path = tmp_path / "run.json"
    with counting(path, groups=2) as envs:
        envs.reset(seed=1)
        for _ in range(10):
            for env in range(4):
                envs.send(np.zeros(1, int), [env])
            for _ in range(4):
                envs.recv(min_envs=1, max_envs=1)
    main = traces.read(path)[MAIN]
    alone = main.named("send to 1 group")
    assert len(alone) == 40
    assert {len(one.flows) for one in alone} == {1}
    assert len({one.flows[0] for one in alone}) == 40


def test_a_late_read_leaves_a_hole_in_the_trace():
    with counting() as envs:
        (pool,) = find(os.getpid()).pools
        recorder = Recorder(pool)
        read = [recorder.read()]
        stepped(envs)
        read.append(recorder.read())
        assert recorder.holes == []
        os.pwrite(recorder._fd, (now() - 1).to_bytes(8, "little"), pool.about.trace)
        stepped(envs)
        read.append(recorder.read())
        stepped(envs)
        read.append(recorder.read())
        recorder.close()
    assert len(recorder.reasons) == 1
    ((begin, end),) = recorder.holes
    *workers, parent = (np.concatenate(slices) for slices in zip(*read, strict=True))
    for slices in (
        *(idle(worker, recorder.holes) for worker in workers),
        of_program(parent, recorder.holes),
    ):
        assert len(slices) > 0
        assert not ((slices["begin"] < end) & (slices["end"] > begin)).any()
    with_hole, without = (rounds_of(parent, workers, 2, holes) for holes in (recorder.holes, ()))
    assert len(with_hole["send"]) == len(without["send"]) - 1


def test_a_second_trace_is_whole_or_says_why_not():
    with counting() as envs:
        (pool,) = find(os.getpid()).pools
        first, second = Recorder(pool), Recorder(pool)
        first.read()
        second.read()
        first.close()
        stepped(envs)
        second.read()
        assert (second.holes, second.reasons) == ([], set())
        # A recorder of another version, or one that has seen no other, ends the trace of all.
        os.pwrite(second._fd, bytes(8), pool.about.trace)
        second.read()
        assert len(second.holes) == 1
        assert second.reasons == {"another trace of the program ended"}
        second.close()


def claimed(envs):
    """Return the number of slices that each process has written."""
    (pool,) = find(os.getpid()).pools
    rings = range(pool.about.trace + LINE, pool.memory.size, RING)[:3]
    return [int(pool.memory[at : at + 8].view(np.uint64)[0]) for at in rings]


def test_processes_write_no_slices_unless_traced():
    with counting() as envs:
        stepped(envs)
        assert claimed(envs) == [0, 0, 0]
        segment = envs._core.pool._links.segment
        room = _core.Track.size_of(3)
        held = os.fstat(segment.fd).st_blocks * 512
        assert held <= segment.size - room + 4096 * 4  # reading `claimed` takes some pages


def test_tracing_stops_soon_after_the_tracer_dies():
    with counting() as envs:
        (pool,) = find(os.getpid()).pools
        recorder = Recorder(pool)
        recorder.read()
        until = pool.memory[pool.about.trace :][:8].view(np.int64)
        stepped(envs, 1)
        assert min(claimed(envs)) > 0
        os.pwrite(recorder._fd, (now() - 1).to_bytes(8, "little"), pool.about.trace)
        assert until[0] < now()  # as if nothing had been read for a second
        before = claimed(envs)
        stepped(envs, 1)
        assert claimed(envs) == before
        recorder.close()
        assert until[0] == 0


def test_a_trace_reader_reads_the_newest_slices_of_a_track():
    size = _core.Track.size_of(1)
    with Segment(4096, size) as segment:
        at = segment.size - size
        os.posix_fallocate(segment.fd, at, size)
        whole = segment.array((segment.size - LINE,), np.dtype(np.uint8), LINE)[1]
        reader = _core.TraceReader(whole, at - LINE, 0)
        whole[at - LINE :][:8].view(np.int64)[0] = np.iinfo(np.int64).max
        track = _core.Track(segment, at, 0)
        for number in range(_core.Track.SLICES + 10):
            track.end(_core.Track.STEP, number, 1)
        read = np.frombuffer(reader.read(), SLICE)
        assert reader.missed == 10
        assert read["id"].tolist() == list(range(10, _core.Track.SLICES + 10))
        assert (read["begin"] == 1).all()
        assert (read["kind"] == _core.Track.STEP).all()
        assert len(reader.read()) == 0
        for wrong in (1, 4096, 2**40):
            with pytest.raises(ValueError, match="has no ring at this offset"):
                _core.TraceReader(whole, at - LINE + wrong, 0)


@pytest.mark.parametrize("main_envs", [0, 1])
def test_the_parts_of_a_round_add_up(main_envs):
    with counting(main_envs=main_envs) as envs:
        (pool,) = find(os.getpid()).pools
        recorder = Recorder(pool)
        recorder.read()
        stepped(envs)
        *workers, parent = recorder.read()
        recorder.close()
    rounds = rounds_of(parent, workers, sum(map(len, pool.about.groups)))
    sends = np.sort(parent["begin"][parent["kind"] == _core.Track.SEND])
    assert sum(rounds.values()).tolist() == np.diff(sends).tolist()
    assert min(part.min() for part in rounds.values()) >= 0
    assert (rounds["step"] > 0).all()


@pytest.mark.slow
def test_unusable_trace_paths_are_refused(tmp_path):
    def refused(path):
        with pytest.raises(OSError, match="cannot trace to") as caught:
            VectorEnv([Counting] * 2, num_workers=1, trace=path)
        return str(caught.value)

    with pytest.raises(ValueError, match="trace needs workers"):
        VectorEnv([Counting] * 2, num_workers=0, trace=tmp_path / "run.json")
    assert "No such file or directory" in refused(tmp_path / "absent" / "run.json")
    os.mkfifo(tmp_path / "pipe")
    assert "No such device or address" in refused(tmp_path / "pipe")
    assert "a device, expected a regular file" in refused("/dev/full")
    with counting(tmp_path / "run.json") as envs:
        stepped(envs)
        assert "another trace writes to" in refused(tmp_path / "run.json")
    assert traces.read(tmp_path / "run.json")[MAIN].named("send")
    assert os.getpid() not in [one.pid for one in programs()]


@pytest.mark.slow
def test_merged_files_keep_their_tracks_and_clocks_apart(tmp_path):
    paths = [tmp_path / "one.json", tmp_path / "two.json"]
    for path in paths:
        with counting(path) as envs:
            stepped(envs)
    absolute = tmp_path / "absolute.json"
    base = json.loads(paths[0].read_text())["baseTimeNanoseconds"]
    absolute.write_text(json.dumps([{"ph": "i", "name": "then", "ts": base / 1e3 + 5}]))
    for order in ([absolute, *paths], [*paths, absolute]):
        both = tmp_path / "both.json"
        assert main(["trace", "--merge", *map(str, order), "-o", str(both)]) == 0
        merged = json.loads(both.read_text())
        events = merged["traceEvents"]
        tracks = {one["tid"] for one in events if one["name"] == "thread_name"}
        assert len(tracks) == 6
        begun = [one["id"] for one in events if one["ph"] == "s"]
        assert len(set(begun)) == 2 * 2 * (STEPS + 2)
        again = tmp_path / "again.json"
        assert main(["trace", "--merge", str(both), str(paths[0]), "-o", str(again)]) == 0
        begun = [
            one["id"] for one in json.loads(again.read_text())["traceEvents"] if one["ph"] == "s"
        ]
        assert len(set(begun)) == 3 * 2 * (STEPS + 2)
        (then,) = [one["ts"] for one in events if one["name"] == "then"]
        then += merged.get("baseTimeNanoseconds", 0) / 1e3
        assert then == pytest.approx(base / 1e3 + 5, abs=1)


@pytest.mark.slow
def test_each_arrow_in_json_has_a_beginning_and_an_end(tmp_path):
    path = tmp_path / "run.json"
    with counting(path) as envs:
        stepped(envs)
    arrows = {}
    for event in json.loads(path.read_text())["traceEvents"]:
        if "id" in event:
            arrows.setdefault(event["id"], []).append((event["ts"], event["ph"]))
    assert len(arrows) == 2 * (STEPS + 2)
    orders = {"".join(phase for _, phase in sorted(arrow)) for arrow in arrows.values()}
    assert orders <= {"stf", "sf"}


@pytest.mark.slow
def test_full_disk_warns_and_leaves_a_dump_that_converts(tmp_path):
    with small_disk(tmp_path / "disk", 1 << 16) as disk:
        envs = counting(disk / "run.json")
        stepped(envs, 500)
        with pytest.warns(RuntimeWarning) as caught:
            envs.close()
        (warning,) = caught
        expected = f"pysampler: trace {disk / 'run.json'} ends early: No space left on device; "
        assert str(warning.message).startswith(f"{expected}pysampler trace --merge ")
        into = tmp_path / "other.json"
        assert main(["trace", "--merge", str(dump_of(disk / "run.json")), "-o", str(into)]) == 0
    assert len(traces.read(into)[MAIN].named("send")) > 100


@pytest.mark.slow
def test_a_killed_tracer_warns_and_leaves_a_dump_that_converts(tmp_path, capsys):
    envs = stepped(counting(tmp_path / "run.json"))
    dump, into = dump_of(tmp_path / "run.json"), tmp_path / "later.json"
    before = dump.stat().st_size
    while dump.stat().st_size < before + 10_000:
        envs.step(np.zeros(4, int))
    envs._tracer._process.kill()
    with pytest.warns(RuntimeWarning, match="has ended with -9; pysampler trace --merge .*.raw -o"):
        envs.close()
    assert main(["trace", "--merge", str(dump), "-o", str(into)]) == 0
    assert "rounds of" in capsys.readouterr().out
    assert traces.read(into)[MAIN].named("send")
    assert main(["trace", "--merge", str(dump), str(into), "-o", str(tmp_path / "both.json")]) == 0
    assert (tmp_path / "both.json").stat().st_size > into.stat().st_size


@pytest.mark.slow
def test_a_terminated_tracer_leaves_a_whole_trace(tmp_path):
    envs = stepped(counting(tmp_path / "run.json"))
    envs._tracer._process.terminate()
    envs._tracer._process.wait(60)
    envs.close()
    assert traces.read(tmp_path / "run.json")[MAIN].named("send")
    assert list(tmp_path.iterdir()) == [tmp_path / "run.json"]


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_right_after_a_trace_has_begun_ends_it_whole(tmp_path, monkeypatch, sent):
    signals = [sent]

    def says(*args, **options):
        while signals:
            os.kill(os.getpid(), signals.pop())

    monkeypatch.setattr("pysampler._cli.trace.print", says, raising=False)
    path = tmp_path / "run.json"
    with counting() as envs:
        pool = str(pool_of(envs).number)
        assert main(["trace", str(os.getpid()), "--pool", pool, "-o", str(path)]) == 0
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
    assert list(tmp_path.iterdir()) == [path]


def stop_until_waited_for(process, request):
    wait = process.wait

    def continued(timeout):
        process.send_signal(signal.SIGCONT)
        return wait(timeout)

    request.addfinalizer(lambda: process.send_signal(signal.SIGCONT))
    process.wait = continued
    process.send_signal(signal.SIGSTOP)


@pytest.mark.slow
def test_next_trace_to_a_file_waits_for_the_end_of_the_last(tmp_path, request):
    (tmp_path / "link.json").symlink_to(tmp_path / "run.json")
    for steps in (3, 5):
        envs = stepped(counting(tmp_path / "link.json"), steps)
        stop_until_waited_for(envs._tracer._process, request)
        del envs  # ends the trace without waiting
    stepped(counting(tmp_path / "link.json"), 7).close()
    assert len(traces.read(tmp_path / "run.json")[MAIN].named("send")) == 9
    assert sorted(tmp_path.iterdir()) == [tmp_path / "link.json", tmp_path / "run.json"]


def dump_of(path):
    """Return the dump of a trace that is being written."""
    [dump] = path.parent.glob(f"{path.name}.*.raw")
    return dump


@pytest.mark.parametrize("damage", ["nothing", "a list", "a float", "a huge array", "zeros"])
def test_damaged_dumps_are_refused_or_read_so_far(tmp_path, damage):
    dump = tmp_path / "some.raw"
    with counting() as envs, DumpWriter(dump, pid=1, command="program", base=0) as writer:
        writer.add_pool(pool_of(envs))
        if damage == "zeros":
            writer.add_hole(0, (1, 2))
    parts = {
        "nothing": b"",
        "a list": np.frombuffer(b"[1]", np.uint8),
        "a float": np.zeros(3),
        "a huge array": b"\x93NUMPY\x01\x00v\x00"
        + b"{'descr': '<f8', 'fortran_order': False, 'shape': (10000000000000,)}".ljust(117)
        + b"\n",
        "zeros": bytes(4096),
    }
    with dump.open("ab") as file:
        part = parts[damage]
        file.write(part) if isinstance(part, bytes) else np.save(file, part)
    _, pools, unread = read_dump(dump)
    assert [one.name for one in pools] == ["Counting"]
    assert (unread > 0) == (damage != "nothing")
    for content in (b"", b"text", bytes(100)):
        (tmp_path / "other.raw").write_bytes(content)
        with pytest.raises(ValueError, match="other.raw is not the dump of a trace"):
            read_dump(tmp_path / "other.raw")


def pool_of(envs):
    """Return a vector env's pool; the collector may not have ended others yet."""
    [pool] = [one for one in find(os.getpid()).pools if one.number == envs._core.pool.number]
    return pool


def test_half_a_dump_has_its_whole_parts(tmp_path):
    """Whatever ended it, and wherever."""
    dump = tmp_path / "run.json.raw"
    with counting() as envs:
        pool = pool_of(envs)
        recorder = Recorder(pool)
        with DumpWriter(dump, pid=1, command="program", base=0) as writer:
            number = writer.add_pool(pool)
            recorder.read()
            for _ in range(3):
                stepped(envs, 2)
                writer.add_slices(number, recorder.read())
        recorder.close()
    whole = dump.read_bytes()
    counts = []
    for size in range(0, len(whole) + 1, 97):
        dump.write_bytes(whole[:size])
        try:
            _, pools, _ = read_dump(dump)
        except ValueError:
            assert counts == []
            continue
        counts.append(sum(len(track) for pool in pools for track in pool.tracks))
    assert counts == sorted(counts)
    assert counts[-1] > 0


@pytest.mark.slow
def test_full_disk_is_reported_on_stderr_if_the_envs_are_never_closed(tmp_path, capfd):
    with small_disk(tmp_path / "disk", 1 << 14) as disk:  # room for the dump only
        envs = stepped(counting(disk / "run.json"))
        tracer = envs._tracer
        del envs
        tracer._process.wait(60)
    assert "No space left on device; pysampler trace --merge " in capfd.readouterr().err


def test_merge_on_a_full_disk_leaves_the_old_file(tmp_path, capfd):
    its, both = tmp_path / "its.json", tmp_path / "both.json"
    its.write_text(json.dumps([{"ph": "i", "name": "x" * 99, "ts": 1}] * 99))
    both.write_text("[]")
    with full_after(500):
        assert main(["trace", "--merge", str(its), "-o", str(both)]) == 2
        told = capfd.readouterr().err
    assert "File too large" in told
    assert str(both) in told
    assert both.read_text() == "[]"
    assert sorted(tmp_path.iterdir()) == [both, its]


@pytest.mark.slow
def test_no_more_workers_are_at_work_than_there_are(tmp_path):
    """Also if a step is longer than the time between two reads of the trace."""

    class Slow(Counting):
        def step(self, action):
            time.sleep(0.15)  # longer than the time between two reads
            return super().step(action)

    with VectorEnv([Slow], num_workers=1, trace=tmp_path / "run.json") as envs:
        envs.reset(seed=1)
        for _ in range(3):
            envs.step(np.zeros(1, int))
    events = json.loads((tmp_path / "run.json").read_text())["traceEvents"]
    at_work = [
        one["args"]["value"]
        for one in events
        if one["ph"] == "C" and one["name"].startswith("workers at work")
    ]
    assert len(at_work) > 3
    assert max(at_work) < 2
