"""Reset options, recordings of batches, and counters."""

import contextlib
import functools
import inspect
import json
import os
import random
import zlib

import gymnasium as gym
import numpy as np
import pytest
from disk import full_after
from gymnasium import spaces
from gymnasium.vector import AutoresetMode
from made_up import SpaceEnv, TellingEnv, same
from told_envs import KILL, SmallEnv
from vectors import begun

import pysampler
from pysampler._vector.arguments import CONFLICTS, refuse
from pysampler._vector.recording import BatchRecorder, BatchReplayer
from pysampler._workers.counters import Counters, Stats, slow_envs
from pysampler.errors import EnvError, RecordingError


class Tasked(gym.Env):
    """Observes its task."""

    observation_space = spaces.Box(-1, 100, (), np.float64)
    action_space = spaces.Discrete(2)
    task = -1

    def reset(self, *, seed=None, options=None):
        self.task = -1 if options is None else options["task"]
        return float(self.task), {}

    def step(self, action):
        return float(self.task), 0.0, action == 1, False, {}


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP])
def test_options_apply_from_the_next_reset(mode, workers):
    with pysampler.VectorEnv(
        [Tasked] * 5, num_workers=workers, groups=2, autoreset_mode=mode, frames=2
    ) as envs:
        observations, infos = envs.reset()
        assert "options_version" not in infos
        assert envs.set_options([1, 4], [{"task": 11}, {"task": 14}]) == 1
        assert envs.set_options([4], {"task": 24}) == 2
        observations, *_, infos = envs.step(np.zeros(5, np.int64))
        assert observations.tolist() == [-1] * 5
        assert infos["options_version"].tolist() == [0] * 5
        for _ in range(2):  # until they are changed
            observations, *_, infos = envs.step(np.ones(5, np.int64))
            if mode == AutoresetMode.NEXT_STEP:
                observations, *_, infos = envs.step(np.ones(5, np.int64))
            assert observations.tolist() == [-1, 11, -1, -1, 24]
            assert infos["options_version"].tolist() == [0, 1, 0, 0, 2]
        observations, infos = envs.reset(options={"task": 7})
        assert observations.tolist() == [7] * 5
        assert infos["options_version"].tolist() == [0] * 5
        envs.set_options(None, None)
        observations, infos = envs.reset()
        assert observations.tolist() == [-1] * 5
        assert infos["options_version"].tolist() == [3] * 5


def test_options_and_options_version_change_together():
    with begun([Tasked] * 4, num_workers=2, groups=2) as envs:
        envs.send(np.zeros(4, np.int64))
        for task in range(30):
            envs.set_options(None, {"task": task})
            _, _, _, _, infos = envs.recv(min_envs=1)
            envs.async_reset(env_ids=infos["env_id"])
        while envs.pending:
            observations, *_, infos = envs.recv(min_envs=1)
            # The task and options_version of an env change together.
            assert (observations + 1).tolist() == infos["options_version"].tolist()


@pytest.mark.parametrize("workers", [0, 2])
def test_reset_accepts_options_per_env(workers):
    with pysampler.VectorEnv([Tasked] * 4, num_workers=workers, groups=2) as envs:
        each = [{"task": 5}, None, {"task": 7}, {"task": 8}]
        assert envs.reset(options=each)[0].tolist() == [5, -1, 7, 8]
        assert envs.reset()[0].tolist() == [-1] * 4
        envs.async_reset(options=each)
        observations, *_, infos = envs.recv()
        assert observations[np.argsort(infos["env_id"])].tolist() == [5, -1, 7, 8]
        for reset in (envs.reset, envs.async_reset):
            with pytest.raises(ValueError, match="cannot reset: 3 options, expected 4"):
                reset(options=each[:3])
        assert envs.reset(options={"task": 2})[0].tolist() == [2] * 4


def test_wrong_options_raise():
    with pysampler.VectorEnv([Tasked] * 2, num_workers=1) as envs:
        for ids, options, error, match in [
            ([2], {}, IndexError, "env 2"),
            (0, {}, TypeError, r"0 dimensions, expected a list of indices: \[0\]"),
            ([0], [{}, {}], ValueError, "2 of them"),
            (
                [0],
                3,
                TypeError,
                "cannot set options: int, expected a dict, None, or a list with one",
            ),
            (
                None,
                5,
                TypeError,
                "cannot set options: int, expected a dict, None, or a list with one",
            ),
            ([0, 1], [{}, 3], TypeError, "int"),
        ]:
            with pytest.raises(error, match=match):
                envs.set_options(ids, options)


class Unpickled:
    def __reduce__(self):
        return _refuse, ()


def _refuse():
    raise RuntimeError("not here")


def test_options_that_cannot_be_unpickled_fail_the_next_step():
    with begun([Tasked] * 2, num_workers=1) as envs:
        envs.set_options(None, {"task": Unpickled()})
        with pytest.raises(EnvError, match="RuntimeError"):
            envs.step(np.zeros(2, np.int64))
        assert envs.step(np.zeros(2, np.int64))[0].tolist() == [-1, -1]


# -- recordings ------------------------------------------------------------------------------------


class Delayed(SpaceEnv):
    """Steps take a random time if ``delays`` is set."""

    def __init__(self, delays):
        super().__init__(spaces.Box(0, 1, (3,)), infos="all")
        self.delays = random.SystemRandom() if delays else None

    def step(self, action):
        if self.delays is not None:
            for _ in range(self.delays.randrange(3000)):
                pass
        return super().step(action)


def run(delays, **kwargs):
    fns = [functools.partial(Delayed, delays)] * 6
    with pysampler.VectorEnv(fns, num_workers=2, groups=3, **kwargs) as envs:
        batches = []
        dice = np.random.default_rng(3)
        envs.async_reset(seed=1)
        for turn in range(300):
            timeout = None if turn % 3 or envs.ready else 0.0001
            results = envs.recv(min_envs=1 + turn % 3, timeout=timeout)
            batches.append(results)
            ids = results[4]["env_id"]
            if turn % 50 == 49:
                envs.async_reset(env_ids=ids)
            elif len(ids):
                envs.send(dice.integers(0, 3, len(ids)), ids)
        while envs.pending:
            batches.append(envs.recv())
    return batches


@pytest.mark.slow
def test_replay_repeats_a_recorded_run_exactly(tmp_path):
    path = tmp_path / "recording"
    recorded = run(delays=True, record_to=path)
    assert path.stat().st_size < 100 + 12 * len(recorded)  # a few bytes a batch
    replayed = run(delays=False, replay_from=path)
    assert len({tuple(batch[4]["env_id"]) for batch in recorded}) > 5  # the order did vary
    same(replayed, recorded)


@pytest.mark.filterwarnings("ignore:.*Calling `close`")
@pytest.mark.parametrize("room_again", [False, True])
def test_full_disk_error_names_the_recording_and_whole_batches_stay(tmp_path, room_again):
    path = tmp_path / "recording"

    def make(**options):
        return pysampler.VectorEnv([TellingEnv] * 300, num_workers=0, groups=300, **options)

    envs = make(record_to=path)
    envs.async_reset(seed=1)
    envs.recv(min_envs=300)
    size = path.stat().st_size
    envs.send(np.zeros(300, np.int64))
    with full_after(size + 100), pytest.raises(OSError, match="File too large") as caught:
        envs.recv(min_envs=300)
    assert caught.value.filename == str(path)
    assert path.stat().st_size == size
    expected = "ends after 1 batches"
    if room_again:
        envs.recv(min_envs=300)
        expected = "ends after 2 batches"
    envs.close(terminate=True)
    replayed = make(replay_from=path)
    replayed.async_reset(seed=1)
    with pytest.raises(RecordingError, match=expected):
        while True:
            replayed.send(np.zeros(len(replayed.recv()[0]), np.int64))
    replayed.close(terminate=True)


@pytest.mark.slow
def test_recording_of_other_envs_raises(tmp_path):
    path = tmp_path / "recording"
    run(delays=False, record_to=path)

    def replay(count=6, **kwargs):
        return pysampler.VectorEnv([TellingEnv] * count, replay_from=path, **kwargs)

    with pytest.raises(RecordingError, match="pass the same num_workers and groups"):
        replay(5, num_workers=2, groups=3)
    with pytest.raises(RecordingError, match=r"groups of \[1, 1, 1, 1, 1, 1\]"):
        replay(num_workers=2)
    whole = path.read_bytes()
    path.write_bytes(b"{}" + whole)
    with pytest.raises(RecordingError, match="not a pysampler recording"):
        replay(num_workers=2, groups=3)
    head = whole.partition(b"\n")[0]
    assert json.loads(head)["groups"] == [1] * 6

    record(path, 6, [[4]])
    path.write_bytes(path.read_bytes()[:-3])
    envs = replay(num_workers=2, groups=3)
    envs.async_reset()
    with pytest.raises(RecordingError, match="damaged after batch 0"):
        envs.recv()
    closed(envs)

    record(path, 6, [[4]])
    envs = replay(num_workers=2, groups=3)
    envs.async_reset(env_ids=[0])
    with pytest.raises(RecordingError, match="env 4 is in it, and has nothing pending"):
        envs.recv()
    closed(envs)

    record(path, 6, [])
    envs = replay(num_workers=2, groups=3)
    envs.async_reset()
    with pytest.raises(RecordingError, match="ends after 0 batches"):
        envs.recv()
    closed(envs)


def groups_of(count):
    return [range(i, i + 1) for i in range(count)]


def record(path, count, batches):
    with contextlib.closing(BatchRecorder(path, groups_of(count))) as recorder:
        for number, groups in enumerate(batches):
            recorder.write(number, groups)


def replayed(path, count):
    """Return the batches of a recording, and the text of the error at their end."""
    batches = []
    with pytest.raises(RecordingError) as caught:
        replayer = BatchReplayer(path, groups_of(count))
        while True:
            batches.append(replayer.read())
            replayer.done(len(batches) - 1)
    assert str(caught.value).startswith(f"cannot replay {path}: ")
    return batches, str(caught.value).removeprefix(f"cannot replay {path}: ")


BATCHES = [[0], [2, 1], [], [199], list(range(200)), [7, 150]]


@pytest.mark.slow
def test_damaged_recording_replays_up_to_the_damage(tmp_path):
    path = tmp_path / "recording"
    record(path, 200, BATCHES)
    assert replayed(path, 200) == (BATCHES, "it ends after 6 batches")
    whole = path.read_bytes()
    head = whole.index(b"\n") + 1
    for at in range(len(whole)):
        for damaged in (
            whole[:at],
            whole[:at] + bytes([whole[at] ^ 1 << at % 8]) + whole[at + 1 :],
            whole[:at] + whole[at + 1 :],
            whole[:at] + b"\0" + whole[at:],
        ):
            if damaged == whole:
                continue
            path.write_bytes(damaged)
            batches, error = replayed(path, 200)
            assert batches == BATCHES[: len(batches)]
            assert len(batches) < 6 or error == "it ends after 6 batches"
            if at < head + 4:
                assert not batches
            elif error != f"it ends after {len(batches)} batches":
                assert error == f"damaged after batch {len(batches)}"


def test_reordered_batches_are_detected(tmp_path):
    path = tmp_path / "recording"
    record(path, 4, [[0], [1], [2]])
    whole = path.read_bytes()
    begin = whole.index(b"\n") + 5
    for order in ([1, 0, 2], [0, 0, 1], [0, 2, 1], [2]):
        parts = [whole[begin + 6 * i : begin + 6 * i + 6] for i in order]
        path.write_bytes(whole[:begin] + b"".join(parts))
        batches, error = replayed(path, 4)
        assert batches == [[0], [1], [2]][: len(batches)]
        assert "damaged" in error


@pytest.mark.parametrize("groups", [[1, 1], [4], [0, 1, 2, 3, 0], [1 << 62]])
def test_impossible_batch_is_rejected_despite_a_valid_checksum(groups, tmp_path):
    path = tmp_path / "recording"
    record(path, 4, [[0], groups])
    assert replayed(path, 4) == ([[0]], "damaged after batch 1")


@pytest.mark.parametrize(
    ("head", "message"),
    [
        (b"", "not a pysampler recording"),
        (b"\0" * 100, "not a pysampler recording"),
        (b"[" * 100_000, "not a pysampler recording"),
        (b"[]", "not a pysampler recording"),
        (b"{}", "not a pysampler recording"),
        (b'{"format": 2}', "not a pysampler recording"),
        (
            b'{"format": "pysampler recording 1", "groups": [1]}',
            "'pysampler recording 1', expected",
        ),
        (b'{"format": "pysampler recording 2"}', "recorded with groups of None envs"),
        (b'{"format": "pysampler recording 2", "groups": {}}', "recorded with groups of {} envs"),
        (
            b'{"format": "pysampler recording 2", "groups": ["x"]}',
            "groups of ['x'] envs, got groups of [1, 1]",
        ),
    ],
)
def test_unknown_recording_header_raises(head, message, tmp_path):
    path = tmp_path / "recording"
    line = head + b"\n"
    path.write_bytes(line + zlib.crc32(line).to_bytes(4, "little"))
    batches, error = replayed(path, 2)
    assert batches == []
    assert message in error


def test_recording_must_be_a_regular_file(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path, kind in (
        (tmp_path / "pipe", "pipe"),
        (tmp_path, "directory"),
        ("/dev/zero", "device"),
    ):
        with pytest.raises(RecordingError, match=f"it is a {kind}, expected a regular file"):
            BatchReplayer(path, groups_of(2))
        with pytest.raises(ValueError, match=f"cannot record to .* it is a {kind}, expected a reg"):
            BatchRecorder(path, groups_of(2))
    with pytest.raises(FileNotFoundError):
        BatchReplayer(tmp_path / "nothing", groups_of(2))


def test_partial_write_to_a_recording_is_completed(tmp_path, monkeypatch):
    path = tmp_path / "recording"
    pwrite = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda fd, data, at: pwrite(fd, data[:3], at))
    record(path, 200, BATCHES)
    assert replayed(path, 200) == (BATCHES, "it ends after 6 batches")


def closed(envs):
    with pytest.warns(UserWarning, match="pending"):
        envs.close()


# -- counters --------------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP])
def test_stats_count_steps_and_resets(mode, workers):
    with begun([Tasked] * 4, num_workers=workers, autoreset_mode=mode) as envs:
        for _ in range(10):
            envs.step(np.array([0, 0, 0, 1]))
        stats = envs.stats()
        if mode == AutoresetMode.NEXT_STEP:
            assert stats.steps.count.tolist() == [10, 10, 10, 5]
            assert stats.resets.count.tolist() == [1, 1, 1, 6]
        else:
            assert stats.steps.count.tolist() == [10, 10, 10, 10]
            assert stats.resets.count.tolist() == [1, 1, 1, 11]
        assert (stats.steps.buckets.sum(axis=1) == stats.steps.count).all()
        for times in (stats.steps, stats.resets):
            assert (times.seconds > 0).all()
            assert (times.quantile(0.5) <= times.quantile(0.99)).all()
        assert len(stats.waits) == max(workers, 1)
        assert "worker 0" in str(stats)
        assert envs.stats().steps.count.tolist() == stats.steps.count.tolist()


class Slow(Tasked):
    def __init__(self, loops):
        self.loops = loops

    def step(self, action):
        for _ in range(self.loops):
            pass
        return super().step(action)


def test_stats_name_a_slow_env():
    loops = [100, 100, 30_000, 100]
    with begun([functools.partial(Slow, n) for n in loops], num_workers=2) as envs:
        for _ in range(99):
            envs.step(np.zeros(4, np.int64))
        assert "times the usual" not in str(envs.stats())  # 99 steps may be too few to tell
        envs.step(np.zeros(4, np.int64))
        stats = envs.stats()
        assert stats.steps.quantile(0.5).argmax() == stats.steps.mean.argmax() == 2
        assert "env 2 of worker 1 takes" in str(stats)
        assert stats.worker_of.tolist() == [0, 0, 1, 1]


def slow_of(us, sizes):
    count = np.full(len(us), 100, np.uint64)
    return [env for env, _ in slow_envs(count, np.array(us) / 1e6, sizes, 2, 100)]


def test_first_env_of_a_group_is_compared_with_other_first_envs():
    cold = [400, 10, 10, 500, 10, 10]
    assert slow_of(cold, [3, 3]) == []
    assert slow_of(cold, [6]) == [3]
    assert slow_of([400, 10, 10, 900, 10, 200], [3, 3]) == [5, 3]
    assert slow_of([400, 10], [2]) == []  # there is no other first env
    assert slow_of([10, 400], [2]) == [1]
    assert slow_of([10, 400], [1, 1]) == [1]
    assert slow_of([400], [1]) == []


def test_stats_do_not_name_a_cold_first_env_as_slow():
    memory = np.zeros(Counters.size_of(4, 1), np.uint8)
    counters = Counters(4, 1, memory)
    counters.envs["steps"]["count"] = 100
    counters.envs["steps"]["total_ns"] = [40_000_000, 1_000_000] * 2
    assert "times the usual" not in str(Stats.of(counters, [(2, 2)], [0]))
    assert "env 2 of worker 0 takes 400.0 us, 40.0" in str(Stats.of(counters, [(4,)], [0]))


def test_quantiles_stay_right_after_more_steps_than_32_bits_count():
    memory = np.zeros(Counters.size_of(1, 1), np.uint8)
    counters = Counters(1, 1, memory)
    [row] = counters.envs["steps"]
    row["count"] = 2**32 + 1000
    row["buckets"][5] = 2**32 - 1
    row["buckets"][30] = 1000
    before = Stats.of(counters, [(1,)], [0]).steps.quantile(0.5)
    row["buckets"][5] += 1
    assert Stats.of(counters, [(1,)], [0]).steps.quantile(0.5) == before


def test_masked_reset_counts_only_the_envs_it_resets():
    with pysampler.VectorEnv(
        [Tasked] * 3, num_workers=1, autoreset_mode=AutoresetMode.DISABLED
    ) as envs:
        envs.set_options(None, {"task": 3})
        envs.reset()
        envs.step(np.array([0, 1, 0]))
        infos = envs.reset(options={"reset_mask": np.array([False, True, False])})[1]
        assert infos["options_version"].tolist() == [1] * 3
        stats = envs.stats()
        assert stats.steps.count.tolist() == [1, 1, 1]
        assert stats.resets.count.tolist() == [1, 2, 1]


def test_replaying_an_empty_batch_does_not_wait(tmp_path):
    path = tmp_path / "recording"
    record(path, 1, [[], [0]])
    with pysampler.VectorEnv([TellingEnv], num_workers=1, replay_from=path) as envs:
        envs.async_reset()
        assert len(envs.recv(timeout=1e6)[1]) == 0
        assert len(envs.recv(timeout=0)[1]) == 1


def test_stats_convert_to_a_dict_and_an_html_table():
    with begun([TellingEnv] * 3, num_workers=2) as envs:
        for _ in range(5):
            envs.step(np.zeros(3, np.int64))
        stats = envs.stats()
        numbers = stats.to_dict()
        assert numbers["steps"] + numbers["resets"] == 18
        assert numbers["step_seconds"] == pytest.approx(stats.steps.seconds.sum())
        assert numbers["step_p99"] >= numbers["step_p50"] > 0
        assert numbers["losses"] == 0
        assert all(type(number) in (int, float) for number in numbers.values())
        table = stats._repr_html_()
        rows = [line.split() for line in str(stats).splitlines()]
        for row in rows[1:3]:
            assert f"<td>worker {row[1]}</td><td>{row[2]}</td><td>{row[3]}</td>" in table
        assert table.count("<tr>") == 3


class Kept(Tasked):
    def get_state(self):
        return self.task

    def set_state(self, state):
        self.task = state


@pytest.mark.parametrize("kind", ["CartPole-v1", Kept])
@pytest.mark.parametrize("workers", [0, 1])
def test_state_has_the_version_of_its_options(kind, workers):
    with pysampler.make_vec(kind, 2, num_workers=workers) as envs:
        envs.set_options(None, {"low": 0.0, "high": 0.01, "task": 3})
        envs.reset(seed=1)
        states = envs.get_state()
        envs.set_options(None, {"low": 0.01, "high": 0.02, "task": 4})
        envs.reset(seed=1)
        assert envs.step(np.zeros(2, int))[4]["options_version"].tolist() == [2, 2]
        envs.set_state(states)
        assert envs.step(np.zeros(2, int))[4]["options_version"].tolist() == [1, 1]


# Values that no other option forbids by themselves.
UNUSUAL = {
    "on_worker_loss": "restart",
    "on_hang": "restart",
    "step_timeout": 60.0,
    "recycle_after": 5,
    "recycle_above": "2 GB",
    "worker_init": int,
    "isolate": True,
    "seed_globals": True,
    "main_envs": 1,
    "groups": 2,
    "observation_mode": "different",
    "record_to": "batches",
    "replay_from": "batches",
    "check_actions": True,
    "copy": False,
    "frames": 4,
    "infos": "final",
    "wait": "park",
    "native": False,
}
SETTINGS = {
    "num_workers=0": {"num_workers": 0},
    "context 'threads'": {"context": "threads", "num_workers": 1},
    "spare_envs": {"spare_envs": 1, "num_workers": 2},
}


def never():
    pytest.fail("an env was made")


@pytest.mark.parametrize("option", CONFLICTS)
@pytest.mark.parametrize("name", UNUSUAL)
def test_each_pair_of_options_goes_together_or_is_refused_before_envs_are_made(option, name):
    given = {**SETTINGS[option], name: UNUSUAL[name]}
    if name == "on_hang" and option != "num_workers=0":
        given["step_timeout"] = 60.0
    conflict = CONFLICTS[option].get(name)
    if conflict is not None and conflict.text(UNUSUAL[name]):
        with pytest.raises(ValueError, match=rf"{name} .* with {option}, "):
            pysampler.VectorEnv([never] * 2, **given)
    else:
        refuse(option, given)
        assert conflict is None or conflict.refused


@pytest.mark.parametrize("option", CONFLICTS)
def test_defaults_go_together_with_each_option(option):
    defaults = {
        name: parameter.default
        for name, parameter in inspect.signature(pysampler.VectorEnv).parameters.items()
    }
    assert set(CONFLICTS[option]) <= set(defaults)
    refuse(option, {**defaults, **SETTINGS[option]})


class Optioned(SmallEnv):
    """Observes the option x of its reset."""

    def observe(self):
        return np.array([(self.options or {}).get("x", -1), self.steps], np.float64)


def test_replacement_gets_options_as_they_were_set():
    """The program may change its dict afterwards."""
    with pysampler.VectorEnv([Optioned] * 2, num_workers=2, on_worker_loss="restart") as envs:
        task = {"x": 1}
        version = envs.set_options([0], task)
        envs.reset(seed=1)
        task["x"] = 2
        envs.set_options([1], task)
        *_, truncated, infos = envs.step(np.array([KILL, 0]))
        assert truncated.tolist() == [True, False]
        assert infos["options_version"].tolist() == [version, 0]  # of the episode that was lost
        observations, *_, infos = envs.step(np.zeros(2, int))
        assert observations[0].tolist() == [1, 0]
        assert infos["options_version"].tolist() == [version, 0]
