"""Checkpoints that are refused: unsupported values, damaged files; and killed saves."""

import inspect
import io
import json
import os
import random
import signal
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from checkpoints_in_tests import Holder, make_replay, names
from disk import full_after
from interrupts import SEED
from made_up import same
from programs import completed

import pysampler
from pysampler._learning.checkpoints import Checkpoints
from pysampler.errors import LayoutError

ROUNDS = int(os.environ.get("PYSAMPLER_FAULT_ROUNDS", "5"))


class Pair(NamedTuple):
    x: int
    y: int


@pytest.mark.parametrize(
    ("part", "place", "what"),
    [
        (object(), "part", "a object, expected dicts"),
        ({"a": [1, {2, 3}]}, r"part\['a'\]\[1\]", "a set"),
        ({"a": {3: b"x"}}, r"part\['a'\]\[3\]", "a bytes"),
        ([Pair(1, 2)], r"part\[0\]", "a Pair"),
        ({(1, 2): 3}, "part", r"a dict with the key \(1, 2\), expected keys that are str or int"),
        ({True: 3}, "part", "a dict with the key True"),
        ([np.array([None])], r"part\[0\]", "an array of object"),
        ([np.zeros(1, "i4,O")], r"part\[0\]", "an array of "),
        (np.ma.zeros(3), "part", "a MaskedArray"),
        ([np.random.default_rng(1)], r"part\[0\]", "a Generator"),
        ([Holder(1)], r"part\[0\]", "a Holder"),
        ([make_replay(1)], r"part\[0\]", "a Replay"),
        (Holder({"x": object()}), r"part\['x'\]", "a object"),
    ],
)
def test_unsupported_values_are_refused_before_writing(part, place, what, tmp_path):
    checkpoints = Checkpoints(tmp_path / "new")
    with pytest.raises(TypeError, match=f"^cannot save checkpoint: {place} is {what}"):
        checkpoints.save(1, fine=np.zeros(3), replay=make_replay(1), part=part)
    assert names(tmp_path) == []


def test_a_recursive_or_too_deep_tree_is_refused(tmp_path):
    tree = {"x": [1]}
    tree["x"].append(tree)
    with pytest.raises(TypeError, match=r"part\['x'\]\[1\]\['x'\] is nested too deeply"):
        Checkpoints(tmp_path).save(1, part=tree)
    deep = 0
    for _ in range(99):
        deep = [deep]
    Checkpoints(tmp_path).save(1, part=deep)
    assert Checkpoints(tmp_path).restore()["part"] == deep
    with pytest.raises(TypeError, match="at most 100 levels"):
        Checkpoints(tmp_path).save(2, part=[deep])


@pytest.mark.parametrize("keep", [0, -1, 1.5, True, None])
def test_bad_keep_is_refused(keep, tmp_path):
    with pytest.raises(ValueError, match=f"keep {keep}, expected a whole number of at least 1"):
        Checkpoints(tmp_path, keep=keep)


@pytest.mark.parametrize("step", [-1, 1.0, True, None, "1"])
def test_bad_steps_are_refused(step, tmp_path):
    with pytest.raises(ValueError, match=f"step {step!r}, expected a whole number of at least 0"):
        Checkpoints(tmp_path).save(step)


@pytest.mark.parametrize("name", ["step", "a/b", "", "..", "a b"])
def test_bad_part_names_are_refused(name, tmp_path):
    with pytest.raises(ValueError, match=f"part {name!r}, expected a name other than 'step'"):
        Checkpoints(tmp_path).save(1, **{name: 1})


def test_save_refuses_a_step_that_is_not_newer(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(5, x=1)
    for step in (4, 5):
        with pytest.raises(ValueError, match=f"step {step}, expected a whole number of more than"):
            checkpoints.save(step, x=2)
    assert checkpoints.restore() == {"x": 1, "step": 5}


def test_restore_changes_no_part_unless_all_parts_fit(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    saved = {"held": Holder({"a": 1}), "random": np.random.default_rng(1), "number": 3}
    checkpoints.save(5, **saved, replay=make_replay())
    checkpoints.save(6, **saved, replay=make_replay())
    held = Holder("as before")
    twister = np.random.Generator(np.random.MT19937(1))
    for error, text, parts in (
        (ValueError, r"cannot restore critic: not in .* step 6, .* \['held', 'n", {"critic": held}),
        (ValueError, "state of 'PCG64', expected 'MT19937'", {"random": twister}),
        (ValueError, "state of None, expected 'PCG64'", {"held": np.random.default_rng()}),
        (ValueError, "state of 'int', expected 'PCG64'", {"number": np.random.default_rng()}),
        (
            TypeError,
            "a ReplayBuffer into a ReplayBuffer, .* are returned",
            {"replay": make_replay()},
        ),
        (TypeError, "a ReplayBuffer into a Holder", {"replay": held}),
        (TypeError, "a int into a int", {"number": 5}),
        (ValueError, r"no step 4, expected one of \[5, 6\]", {"step": 4}),
    ):
        given = {"held": held, **parts}
        with pytest.raises(error, match=text):
            checkpoints.restore(**given)
        assert held.state == "as before"


# -- damage ----------------------------------------------------------------------------------------


TREE = {"x": np.arange(10), "y": ["text", float("nan")], "z": np.float32(2)}


def saved_one(directory):
    checkpoints = Checkpoints(directory)
    for step in (1, 2):
        path = checkpoints.save(step, held=Holder(TREE), replay=make_replay())
    return checkpoints, path


def refuses(checkpoints, file):
    """Return whether restore refuses the file; otherwise check that all of it is restored."""
    held = Holder("as before")
    try:
        rest = checkpoints.restore(held=held)
    except LayoutError as error:
        assert repr(str(file)) in str(error)
        assert held.state == "as before"
        return True
    assert rest.keys() == {"replay", "step"}
    same(held.state, TREE)
    ours, theirs = make_replay().sample(50), rest["replay"].sample(50)
    np.testing.assert_array_equal(ours.fields["x"], theirs.fields["x"])
    return False


@pytest.mark.parametrize("part", [0, 0.01, 0.3, 0.5, 0.9, 0.999])
def test_a_truncated_file_is_refused(part, tmp_path):
    checkpoints, path = saved_one(tmp_path)
    whole = path.read_bytes()
    path.write_bytes(whole[: int(len(whole) * part)])
    assert refuses(checkpoints, path)
    assert checkpoints.restore(step=1)["step"] == 1


@pytest.mark.parametrize("part", [0, 0.2, 0.5, 0.8, 0.97])
@pytest.mark.parametrize("garbage", [bytes(64), b"\xff" * 64, random.Random(1).randbytes(64)])
def test_a_garbled_file_is_refused(part, garbage, tmp_path):
    checkpoints, path = saved_one(tmp_path)
    whole = bytearray(path.read_bytes())
    at = int(len(whole) * part)
    whole[at : at + 64] = garbage[: len(whole) - at]
    path.write_bytes(whole)
    assert refuses(checkpoints, path)


@pytest.mark.slow
@pytest.mark.parametrize("flip", [0x01, 0x08, 0x10, 0xFF])
def test_a_flipped_bit_is_refused_or_harmless(flip, tmp_path):
    checkpoints, path = saved_one(tmp_path)
    whole = path.read_bytes()
    refused = 0
    places = range(flip % 11, len(whole), 11)
    for at in places:
        damaged = bytearray(whole)
        damaged[at] ^= flip
        path.write_bytes(damaged)
        refused += refuses(checkpoints, path)
    assert refused > 0.6 * len(places)  # other bits are dates and redundant parts of the archive


def test_a_shrunken_shape_is_refused(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    path = checkpoints.save(1, held=Holder(np.zeros(9999)), replay=make_replay(9999, 9999))
    whole = path.read_bytes()
    assert b"(9999,)" in whole
    path.write_bytes(whole.replace(b"(9999,)", b"(   1,)"))
    assert refuses(checkpoints, path)


def test_a_missing_or_foreign_file_is_refused(tmp_path):
    checkpoints, path = saved_one(tmp_path)
    path.unlink()
    assert checkpoints.latest == 1
    path.mkdir()
    assert refuses(checkpoints, path)
    path.rmdir()
    np.savez(path, x=np.zeros(3))
    assert refuses(checkpoints, path)
    with path.open("wb") as other:
        np.save(other, np.zeros(3))
    assert refuses(checkpoints, path)
    path.write_bytes(b"checkpoint")
    assert refuses(checkpoints, path)


def test_a_file_of_another_step_is_refused(tmp_path):
    checkpoints, path = saved_one(tmp_path)
    path.with_name("checkpoint-000000000001.npz").replace(path)
    assert refuses(checkpoints, path)


def test_a_pipe_or_device_is_refused(tmp_path):
    checkpoints, path = saved_one(tmp_path)
    path.unlink()
    os.mkfifo(path)
    assert refuses(checkpoints, path)
    path.unlink()
    path.symlink_to("/dev/zero")
    assert refuses(checkpoints, path)


@pytest.mark.parametrize("part", ["0.npy", "replay/0.npy"])
def test_a_file_with_a_huge_declared_shape_is_refused(part, tmp_path):
    checkpoints, path = saved_one(tmp_path)
    with zipfile.ZipFile(path) as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}
    assert part in parts
    huge = io.BytesIO()
    np.lib.format.write_array_header_2_0(
        huge, {"descr": "<f8", "fortran_order": False, "shape": (1 << 40,)}
    )
    for compression in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        with zipfile.ZipFile(path, "w", compression) as archive:
            for name, content in parts.items():
                archive.writestr(name, huge.getvalue() if name == part else content)
        assert refuses(checkpoints, path)


@pytest.mark.parametrize("what", ["empty directory", "file"])
def test_an_empty_file_or_directory_is_refused(what, tmp_path):
    checkpoints, _ = saved_one(tmp_path)
    name = tmp_path / "checkpoint-000000000003.npz"
    name.touch() if what == "file" else name.mkdir()
    assert refuses(checkpoints, name)


@pytest.mark.parametrize(
    ("said", "text"),
    [
        ({"format": "pysampler checkpoint 2"}, "pysampler checkpoint 2"),
        ({"step": 1}, r"expected \('pysampler checkpoint 3', 2\)"),
        ({"trees": {"held": ["what"]}}, "a node"),
        ({"trees": {"held": ["what", 1, 2]}}, "KeyError"),
        ({"trees": {"held": ["array", "7"]}}, "KeyError"),
        ({"trees": {"held": ["list", ["array", "0"], ["array", "0"]]}}, "KeyError"),
        ({"trees": None}, "TypeError"),
        ({"replays": ["other"]}, "KeyError: 'about'"),
        ({"replays": ["replay", "replay"]}, "KeyError: 'about'"),
        ({"replays": [1]}, "AttributeError"),
        ({"replays": ["../replay"]}, "a part '../replay'"),
        ({"trees": {"a b": 1}}, "a part 'a b'"),
    ],
)
def test_other_formats_and_metadata_are_refused(said, text, tmp_path):
    checkpoints, path = saved_one(tmp_path)
    with np.load(path) as arrays:
        arrays = dict(arrays)
    about = {**json.loads(arrays["about"].tobytes()), **said}
    arrays["about"] = np.frombuffer(json.dumps(about).encode(), np.uint8)
    np.savez(path, **arrays)
    with pytest.raises(LayoutError, match=text):
        checkpoints.restore()


@pytest.mark.parametrize("part", ["0", "replay/0"])
def test_pickled_arrays_are_refused(part, tmp_path):
    checkpoints, path = saved_one(tmp_path)
    with np.load(path) as arrays:
        arrays = dict(arrays)
    arrays[part] = np.array([{"a": 1}])
    np.savez(path, **arrays)
    with pytest.raises(LayoutError, match="allow_pickle=False"):
        checkpoints.restore()


# -- interrupted saves -----------------------------------------------------------------------------


def test_a_failed_save_keeps_the_old_checkpoints(tmp_path, monkeypatch):
    checkpoints, _ = saved_one(tmp_path)
    before = names(tmp_path)
    monkeypatch.setattr(np.lib.format, "write_array", lambda *_, **__: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        checkpoints.save(3, x=np.zeros(3))
    assert names(tmp_path) == before
    assert checkpoints.restore(held=Holder(None))["step"] == 2


@pytest.mark.parametrize("room", [0, 10, 700, 5000, 8100])
def test_full_disk_keeps_old_checkpoints_and_names_the_new_one(tmp_path, room):
    checkpoints = Checkpoints(tmp_path, keep=1)
    checkpoints.save(1, x=np.zeros(1000))
    before = names(tmp_path)
    with full_after(room), pytest.raises(OSError, match="File too large") as caught:
        checkpoints.save(2, x=np.zeros(1000))
    assert caught.value.filename == str(tmp_path / "checkpoint-000000000002.npz")
    assert names(tmp_path) == before
    assert checkpoints.restore()["step"] == 1


@pytest.mark.parametrize("room", [0, 10, 700, 2000])
def test_full_disk_keeps_the_old_replay_and_names_it(tmp_path, room):
    path = tmp_path / "replay"
    make_replay(count=3).save(path)
    before = path.read_bytes()
    replay = make_replay()
    with full_after(room), pytest.raises(OSError, match="File too large") as caught:
        replay.save(path)
    assert caught.value.filename == str(path)
    assert path.read_bytes() == before
    assert names(tmp_path) == ["replay"]


def test_a_checkpoint_is_synced_before_it_is_renamed(tmp_path, monkeypatch):
    checkpoints, _ = saved_one(tmp_path)
    synced, fsync, replace = [], os.fsync, os.replace

    def log_fsync(descriptor):
        synced.append(os.fstat(descriptor).st_ino)
        fsync(descriptor)

    def log_replace(old, new):
        assert Path(new).name == "checkpoint-000000000003.npz"
        assert Path(old).stat().st_ino in synced
        assert tmp_path.stat().st_ino not in synced
        replace(old, new)

    def log_unlink(path):
        assert Path(path).name == "checkpoint-000000000001.npz"
        assert tmp_path.stat().st_ino in synced  # the new one is on disk first
        unlink(path)

    unlink = os.unlink
    monkeypatch.setattr(os, "fsync", log_fsync)
    monkeypatch.setattr(os, "replace", log_replace)
    monkeypatch.setattr(os, "unlink", log_unlink)
    checkpoints.save(3, x=np.zeros(3), replay=make_replay())
    assert checkpoints.steps() == [2, 3]


class Stopper:
    """Calls ``act`` before the call numbered ``point`` of those that may change files."""

    CALLS = frozenset(
        [
            *("mkdir", "open", "write", "flush", "fsync", "close", "rename", "replace"),
            *("unlink", "remove", "rmdir", "truncate"),
        ]
    )

    def __init__(self, point, act, but=()):
        self.left, self.act, self.calls = point, act, self.CALLS - {*but}

    def __call__(self, frame, event, called):
        if event == "c_call" and called.__name__ in self.calls:
            owner = type(getattr(called, "__self__", None)).__module__
            if "_io" in (called.__module__, owner) or called.__module__ == "posix":
                if self.left == 0:
                    self.act()
                self.left -= 1

    def __enter__(self):
        sys.setprofile(self)

    def __exit__(self, *_):
        sys.setprofile(None)


KILLED = """if True:
    import os, signal, sys, tempfile
    import numpy as np
    from pathlib import Path
    from pysampler import ReplayBuffer
    from pysampler._learning.checkpoints import Checkpoints

    replay = ReplayBuffer(4, {"x": np.zeros(2)})
    none = np.zeros(4)

    def save(checkpoints, step):
        replay.add({"x": np.full((4, 2), step)}, rewards=none, terminated=none, truncated=none,
                   env=none)
        checkpoints.save(step, x=np.full(100, step), y=[step, "text"], replay=replay)

    def check(checkpoints, step):
        saved = checkpoints.restore(step=step)
        assert saved["step"] == step and saved["y"] == [step, "text"], saved
        assert (saved["x"] == step).all()
        assert (saved["replay"].sample(9).fields["x"] == step).all()

    def die():
        os.kill(os.getpid(), signal.SIGKILL)

    point, status = 0, None
    while status != 0:
        with tempfile.TemporaryDirectory() as directory:
            checkpoints = Checkpoints(directory)
            for step in (1, 2):
                save(checkpoints, step)
            child = os.fork()
            if child == 0:
                with Stopper(point, die):
                    save(checkpoints, 3)
                os._exit(0)
            status = os.waitpid(child, 0)[1]
            assert status == 0 or os.WTERMSIG(status) == signal.SIGKILL, status
            there = checkpoints.steps()
            assert there in ([1, 2], [1, 2, 3], [2, 3]), there
            for step in there:
                check(checkpoints, step)
            print(there[0], there[-1], len(os.listdir(directory)) - len(there))
            save(checkpoints, 4)
            check(checkpoints, 4)
            assert len(os.listdir(directory)) == len(checkpoints.steps()) == 2
        point += 1
"""


@pytest.mark.faults
@pytest.mark.slow
def test_a_kill_at_any_call_of_save_leaves_complete_checkpoints():
    # A separate process without threads forks a child to be killed at each point.
    program = inspect.getsource(Stopper) + KILLED
    run = completed("-c", program, timeout=None, env={**os.environ, "OPENBLAS_NUM_THREADS": "1"})
    assert run.stderr == ""
    seen = [tuple(map(int, line.split())) for line in run.stdout.splitlines()]
    assert len(seen) > 50
    assert seen == sorted(seen, key=lambda one: one[:2])  # from old to new, never back
    assert {one[:2] for one in seen} == {(1, 2), (1, 3), (2, 3)}
    assert {left for *_, left in seen} == {0, 1}  # some kills leave a temporary file
    assert seen[-1] == (2, 3, 0)


@pytest.mark.slow
def test_ctrl_c_at_any_call_of_save_leaves_only_complete_checkpoints(tmp_path):
    def interrupt():
        raise KeyboardInterrupt

    replay = make_replay()
    seen = []
    interrupted = True
    while interrupted:
        directory = tmp_path / str(len(seen))
        checkpoints, _ = saved_one(directory)
        try:
            with Stopper(
                len(seen), interrupt, but={"close"}
            ):  # interrupting close would leak the file
                checkpoints.save(3, held=Holder(3), replay=replay)
            interrupted = False
        except KeyboardInterrupt:
            pass
        there = checkpoints.steps()
        seen.append(there)
        assert len(names(directory)) == len(there)
        for step in there:
            checkpoints.restore(step=step)
    assert {tuple(there) for there in seen} == {(1, 2), (1, 2, 3), (2, 3)}
    assert len(seen) > 30


LOOP = """if True:
    import sys
    import numpy as np
    from pysampler._learning.checkpoints import Checkpoints

    checkpoints = Checkpoints(sys.argv[1])
    step = checkpoints.latest or 0
    while True:
        print(step, flush=True)
        step += 1
        checkpoints.save(step, x=np.full(10_000, step), y=[step])
"""


@pytest.mark.faults
@pytest.mark.slow
def test_a_kill_at_random_leaves_complete_checkpoints(tmp_path):
    print(f"PYSAMPLER_FAULT_SEED={SEED}")
    dice = random.Random(SEED)
    checkpoints = Checkpoints(tmp_path)
    for _ in range(ROUNDS):
        with subprocess.Popen(
            [sys.executable, "-c", LOOP, tmp_path], stdout=subprocess.PIPE, text=True
        ) as child:
            try:
                assert child.stdout.readline() == f"{checkpoints.latest or 0}\n"
                with pytest.raises(subprocess.TimeoutExpired):
                    child.wait(dice.uniform(0, 0.1))
            finally:
                child.kill()
            done = [int(line) for line in child.stdout if line.endswith("\n")]
        assert child.returncode == -signal.SIGKILL
        if done:
            assert checkpoints.latest >= done[-1]
        for step in checkpoints.steps():
            saved = checkpoints.restore(step=step)
            assert (saved["x"] == step).all()
            assert saved["y"] == [step]
    checkpoints.save((checkpoints.latest or 0) + 1)
    assert len(names(tmp_path)) == len(checkpoints.steps())


def test_a_normalizer_that_knew_nothing_knows_nothing_after_a_failed_restore(tmp_path):
    used, unused = pysampler.Normalizer(), pysampler.Normalizer()

    def still(observations):
        return np.zeros(len(observations), np.int64)

    with pysampler.Rollouts(
        "CartPole-v1", still, 8, num_envs=2, num_workers=0, normalize=used
    ) as rollouts:
        next(rollouts)
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(1, normalizer=used, rng=np.random.default_rng(1))
    with pytest.raises(ValueError, match="all parts are unchanged"):
        checkpoints.restore(normalizer=unused, rng=Refuses())
    assert unused.state_dict() == {}


class Refuses:
    def state_dict(self):
        return {}

    def load_state_dict(self, state):
        raise ValueError("another shape")
