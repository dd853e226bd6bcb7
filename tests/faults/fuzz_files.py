"""Fuzzes files: a damaged file loads exactly as it was saved, or is refused.

    python tests/faults/fuzz_files.py --seconds 600 --out benchmarks/results

Replays, checkpoints and recordings are saved; each case, decided by its seed, damages one of their
files, or replaces it: flipped bits, cut or spliced parts, made-up headers with right checksums,
pipes, devices, links. Loading must return exactly what was saved, or raise the documented error.
Cases run in forks with little memory and a watchdog.
"""

import contextlib
import io
import json
import os
import random
import resource
import select
import shutil
import signal
import socket
import sys
import tempfile
import time
import traceback
import zipfile
import zlib
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from pysampler import ReplayBuffer
from pysampler._learning.checkpoints import Checkpoints
from pysampler._vector.recording import BatchRecorder, BatchReplayer
from pysampler.errors import LayoutError, RecordingError

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))
import campaigns
from campaigns import Wrong

HANG = 20.0  # seconds that a case may take at most
ROOM = 1 << 28  # bytes that a fork may allocate beyond its start
CASES = 100  # per fork


@dataclass
class Report(campaigns.Report):
    ended: Counter = field(default_factory=Counter)
    damages: Counter = field(default_factory=Counter)


# -- saved objects, and their states once loaded ---------------------------------------------------


def replay_of(seed):
    dice = random.Random(seed)
    numbers = np.random.default_rng(seed)
    like = {"x": np.zeros((2,), dice.choice(["u1", "f4", "i8"])), "next_x": np.zeros(3, "f8")}
    if dice.random() < 0.5:
        like["text"] = np.array("abcd")
    replay = ReplayBuffer(
        dice.choice([1, 7, 50]),
        like,
        n_step=dice.choice([1, 3]),
        alpha=dice.choice([0.0, 0.7]),
        seed=seed,
    )
    for _ in range(dice.randrange(4)):
        grow(replay, numbers, dice.randrange(30))
    if replay.alpha and len(replay):
        batch = replay.sample(5)
        replay.update(batch.indices, numbers.random(5) + 0.1)
    return replay


def grow(replay, numbers, count):
    fields = {}
    for name in replay._names:
        one = replay._ring.fields[name]
        some = numbers.integers(0, 100, (count, *one.shape[1:]))
        fields[name] = some.astype(one.dtype)
    replay.add(
        fields,
        rewards=numbers.random(count),
        terminated=numbers.random(count) < 0.1,
        truncated=numbers.random(count) < 0.1,
        env=numbers.integers(0, 3, count),
    )


def state_of_replay(replay):
    """Return the whole state as text, for comparison."""
    there = len(replay)
    tree = replay._tree
    return repr(
        (
            *(replay.capacity, replay.n_step, replay.gamma, replay.alpha, replay.added),
            [(k, v.dtype, v.shape, v[:there].tobytes()) for k, v in replay._ring.fields.items()],
            replay._ring.newest.tolist(),
            replay._random.bit_generator.state,
            tree and (tree.leaves.tolist(), tree.highest),
        )
    )


def tree_of(seed):
    dice = random.Random(seed)
    numbers = np.random.default_rng(seed)
    return {
        "weights": [numbers.random((dice.randrange(4), 5)).astype(np.float32) for _ in range(3)],
        "steps": dice.randrange(1 << 80),
        "odd": (float("nan"), None, True, "text", {7: np.float32(3)}, 2j),
        "random": numbers.bit_generator.state,
    }


def state_of_tree(value):
    if isinstance(value, dict):
        return [(key, state_of_tree(one)) for key, one in value.items()]
    if isinstance(value, (list, tuple)):
        return type(value).__name__, [state_of_tree(one) for one in value]
    if isinstance(value, (np.ndarray, np.generic)):
        return type(value).__name__, str(value.dtype), value.shape, value.tobytes()
    return repr(value)


GROUPS = [range(i, i + 1) for i in range(150)]


class Replays:
    """Files of replays."""

    names = ("replay",)

    def save(self, directory, seed):
        replay_of(seed).save(directory / "replay")

    def read(self, directory):
        replay = ReplayBuffer.load(directory / "replay")
        return replay, state_of_replay(replay)

    def use(self, replay):
        """Check that a replay from a made-up file works, whatever it holds."""
        numbers = np.random.default_rng(1)
        grow(replay, numbers, 5)
        batch = replay.sample(10)
        if replay.alpha:
            replay.update(batch.indices, np.ones(10))
            weights = replay.sample(10).weights
            if not np.isfinite(weights).all():
                raise Wrong(f"weights {weights}")
        if not 0 <= batch.indices.min() <= batch.indices.max() < replay.added:
            raise Wrong(f"indices {batch.indices}")


class CheckpointsOf:
    """Files of checkpoints."""

    names = ("checkpoint-000000000003.npz",)

    def save(self, directory, seed):
        Checkpoints(directory).save(3, tree=tree_of(seed), r=replay_of(seed))

    def read(self, directory):
        if (found := Checkpoints(directory).restore()) is None:
            raise FileNotFoundError(directory)
        states = {
            name: state_of_replay(part) if isinstance(part, ReplayBuffer) else state_of_tree(part)
            for name, part in found.items()
        }
        return found, repr(states)

    def use(self, found):
        for part in found.values():
            if isinstance(part, ReplayBuffer):
                Replays().use(part)


class Recordings:
    """Files of recordings."""

    names = ("recording",)

    def save(self, directory, seed):
        dice = random.Random(seed)
        with contextlib.closing(BatchRecorder(directory / "recording", GROUPS)) as recorder:
            for number in range(dice.randrange(20)):
                count = dice.choice([0, 1, 3, 150])
                recorder.write(number, dice.sample(range(len(GROUPS)), count))

    def read(self, directory):
        """Return the batches before the error at the end, or at the damage."""
        replayer = BatchReplayer(directory / "recording", GROUPS)
        batches = []
        try:
            while True:
                batches.append(replayer.read())
                replayer.done(len(batches) - 1)
        except RecordingError as error:
            if "it ends" not in str(error) and "damaged after" not in str(error):
                raise
        return batches, repr(batches)

    def use(self, batches):
        for batch in batches:
            if len({*batch}) < len(batch) or not {*batch} <= {*range(len(GROUPS))}:
                raise Wrong(f"batch {batch}")


KINDS = [Replays(), CheckpointsOf(), Recordings()]

# -- damage ----------------------------------------------------------------------------------------

HOSTILE = [
    *(None, True, -1, 0, 1, 2.5, 7, 10**30, 2**62, 2**63, -(2**63), 2**64, 1e308, -1e308),
    *(float("nan"), float("inf"), "", "x", "x" * 5000, "\0", "\ud800", [], {}, [[]], [None] * 3),
    *({"a": 1}, [1, 2, 3], ["array", "0"], ["list", ["int", "z"]], ["tensor", "0", "load"]),
    *(["array", "about"], ["dict", [[[], 1]], None], ["Counter", [], ["int", "0x1"]]),
]


def of_bytes(dice, whole, others):
    """Damage a file without knowledge of its format."""
    size = len(whole)
    at, to = sorted(dice.randrange(size + 1) for _ in range(2))
    part = dice.randbytes(dice.choice([1, 4, 64, 1000]))
    other = dice.choice(others)
    how = dice.randrange(12)
    if how == 0:
        return whole[:at]
    if how == 1 and size:
        damaged = bytearray(whole)
        for _ in range(dice.choice([1, 1, 1, 8, 100])):
            damaged[dice.randrange(size)] ^= 1 << dice.randrange(8)
        return bytes(damaged)
    if how == 2:
        return whole[:at] + part + whole[at + len(part) :]
    if how == 3:
        return whole[:at] + bytes(to - at) + whole[to:]
    if how == 4:
        return whole[:at] + whole[to:]
    if how == 5:
        return whole[:at] + part + whole[at:]
    if how == 6:
        return whole[:to] + whole[at:]
    if how == 7:
        return whole[:at] + other[at:]
    if how == 8:
        return whole[:at] + other[dice.randrange(len(other) + 1) :]
    if how == 9:
        return dice.choice([b"", part, part + whole, whole + part, whole + other, other + whole])
    # Sizes and offsets of the archive: most are at its end.
    at = max(0, size - dice.randrange(400)) if dice.random() < 0.7 else at
    huge = dice.choice([b"\xff" * 2, b"\xff" * 4, b"\xff" * 8, b"\0\0\0\x7f", b"\0" * 7 + b"\x40"])
    return whole[:at] + huge + whole[at + len(huge) :]


def replaced(dice, tree):
    """Return the tree with one node replaced or removed."""
    value = dice.choice(HOSTILE)
    if not isinstance(tree, (dict, list)) or not tree or dice.random() < 0.15:
        return value
    made = tree.copy()
    key = dice.choice(list(tree)) if isinstance(tree, dict) else dice.randrange(len(tree))
    if dice.random() < 0.1:
        del made[key]
    else:
        made[key] = replaced(dice, tree[key])
    return made


def array_file(dice, part):
    """Return a file of another array, or an invalid one."""
    file = io.BytesIO()
    how = dice.randrange(5)
    if how == 0:
        shape = tuple(dice.choice([0, 1, 5, 1 << 20, 1 << 40, 1 << 62]) for _ in range(2))
        descr = dice.choice(["<f8", "|u1", "<U4", "|V0", "|O", ">i8", [("a", "<f4")], "x", 3])
        header = {"descr": descr, "fortran_order": dice.choice([False, True, 3]), "shape": shape}
        np.lib.format.write_array_header_2_0(file, header)
        return file.getvalue() + part[128:]
    if how == 1:
        text = dice.choice(["(" * 5000, "-" * 100_000, "{" + "1:" * 900, "{'shape':(-1,)}", "\\d"])
        return b"\x93NUMPY\x02\0" + len(text).to_bytes(4, "little") + text.encode()
    if how == 2:
        np.save(file, np.array([{"a": 1}], object), allow_pickle=True)
        return file.getvalue()
    shape = dice.choice([(), (0,), (1,), (7,), (3, 4), (50, 2)])
    dtype = dice.choice(["f8", "i8", "u1", "?", "U3", "c16", "M8[s]", "i4,f8"])
    np.save(file, np.zeros(shape, dtype))
    return file.getvalue()


def made_up(dice, whole, _):
    """Return a file with wrong parts but right checksums."""
    if not whole.startswith(b"PK"):
        line, _, rest = whole.partition(b"\n")
        if dice.random() < 0.7:
            line = json.dumps(replaced(dice, json.loads(line))).encode()
        else:
            line = dice.choice([b"[" * 100_000, b'{"a":' * 50_000, b"1" * 5000, b'"\xff"', b"NaN"])
        line += b"\n"
        return line + zlib.crc32(line).to_bytes(4, "little") + rest[4:]
    with zipfile.ZipFile(io.BytesIO(whole)) as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}
    name = dice.choice(list(parts))
    how = dice.randrange(8)
    if how < 4:
        about = io.BytesIO(parts["about.npy"])
        text = json.dumps(replaced(dice, json.loads(np.load(about).tobytes()))).encode()
        if dice.random() < 0.1:
            text = text.replace(b"]", b"[" * 10_000, 1)
        about = io.BytesIO()
        np.save(about, np.frombuffer(text, np.uint8))
        parts["about.npy"] = about.getvalue()
    elif how == 4:
        parts[dice.choice([name, name, "x", "about", "0.npy"])] = parts.pop(name)
    elif how < 7:
        parts[name] = array_file(dice, parts[name])
    made = io.BytesIO()
    pressed = zipfile.ZIP_DEFLATED if dice.random() < 0.1 else zipfile.ZIP_STORED
    with zipfile.ZipFile(made, "w", pressed) as archive:
        for one, content in parts.items():
            with archive.open(one, "w") as part:
                part.write(content)
                if how == 7 and one == name and pressed:
                    for _ in range(300):
                        part.write(bytes(1 << 20))
    return made.getvalue()


def something_else(dice, path, directory):
    """Replace a file by something that is not a regular file, or by a link."""
    whole = path.read_bytes()
    elsewhere = directory / "elsewhere"
    how = dice.randrange(9)
    if how == 0:  # huge and sparse
        with path.open("r+b") as file:
            file.truncate(1 << 40)
        return
    path.unlink()
    if how == 1:
        os.mkfifo(path)
    elif how == 2:
        path.mkdir()
    elif how == 3:
        path.symlink_to(dice.choice(["/dev/zero", "/dev/random", "/dev/full", "/dev/null"]))
    elif how == 4:
        path.symlink_to(dice.choice(["/proc/self/mem", "/proc/self/maps", "/proc/self/fd/0"]))
    elif how == 5:
        elsewhere.write_bytes(whole)
        path.symlink_to(elsewhere)
    elif how == 6:
        path.symlink_to(dice.choice([path, elsewhere, "/", directory]))
    elif how == 7:
        with socket.socket(socket.AF_UNIX) as server, contextlib.chdir(path.parent):
            server.bind(path.name)
    # else it is missing


# -- cases -----------------------------------------------------------------------------------------


class Saved:
    """The saved files of each kind, and their states when read."""

    def __init__(self, seed, count=8):
        self.trees = {kind: [] for kind in KINDS}  # bytes of each file, by name
        self.states = {kind: set() for kind in KINDS}
        for kind in KINDS:
            for at in range(count):
                with tempfile.TemporaryDirectory() as name:
                    directory = Path(name)
                    kind.save(directory, seed + at)
                    self.trees[kind].append({n: (directory / n).read_bytes() for n in kind.names})
                    self.states[kind].add(kind.read(directory)[1])

    def is_known(self, kind, state):
        if isinstance(kind, Recordings):  # may end early
            return any(known.startswith(state[:-1]) for known in self.states[kind])
        return state in self.states[kind]


def run_case(seed, saved, directory):
    """Return the kind of damage, and the outcome."""
    dice = random.Random(seed)
    kind = dice.choice(KINDS)
    files = dice.choice(saved.trees[kind])
    name = dice.choice(kind.names)
    others = [tree[name] for tree in saved.trees[kind]]
    for one, whole in files.items():
        (directory / one).parent.mkdir(parents=True, exist_ok=True)
        (directory / one).write_bytes(whole)
    path = directory / name
    damage = dice.choice([of_bytes] * 4 + [made_up] * 3 + [something_else])
    if damage is something_else:
        something_else(dice, path, directory)
    else:
        path.write_bytes(damage(dice, files[name], others))
    label = f"{type(kind).__name__} {damage.__name__}"
    try:
        found, state = kind.read(directory)
    except (LayoutError, RecordingError) as error:
        if str(directory) not in str(error) or "\n" in str(error)[:200]:
            raise Wrong(f"an error that does not name the file: {error}") from error
        return label, "refused"
    except ImportError:
        if damage is not made_up:
            raise
        return label, "refused without torch"  # for made-up tensors
    except MemoryError as error:
        # Allowed only for files that claim too large sizes with right checksums.
        if damage is not made_up or "segment" not in str(error):
            raise
        return label, "no room"
    except OSError:
        # Anything wrong with a checkpoint is a LayoutError, unless it is missing.
        checkpoint = isinstance(kind, CheckpointsOf) and os.path.lexists(path)
        if damage is not something_else or checkpoint:
            raise
        return label, "refused by the system"
    if damage is made_up:
        kind.use(found)
        return label, "taken"
    if not saved.is_known(kind, state):
        raise Wrong(f"{label}: what was read was never saved: {state[:300]}")
    return label, "as it was"


def run_cases(first, count, saved, out):
    """Run cases in a fork; write a line before and after each."""
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + ROOM, used + ROOM))
    for seed in range(first, first + count):
        os.write(out, f"{json.dumps(['case', seed])}\n".encode())
        directory = Path(tempfile.mkdtemp())
        try:
            result = ["end", *run_case(seed, saved, directory)]
        except BaseException:
            result = ["wrong", traceback.format_exc()[-2000:]]
        finally:
            shutil.rmtree(directory)
        os.write(out, f"{json.dumps(result)}\n".encode())


def lines_of(pipe, child):
    """Yield the lines of a fork; kill it if it writes nothing for too long."""
    rest = b""
    while True:
        if not select.select([pipe], [], [], HANG)[0]:
            os.kill(child, signal.SIGKILL)
        if not (part := os.read(pipe, 1 << 16)):
            return
        *lines, rest = (rest + part).split(b"\n")
        yield from map(json.loads, lines)


def campaign(seconds, seed, cases=None):
    report = Report()
    saved = Saved(0)
    end = time.monotonic() + seconds
    at = seed
    while time.monotonic() < end and (cases is None or report.cases < cases):
        count = CASES if cases is None else cases
        pipe, out = os.pipe()
        if (child := os.fork()) == 0:
            code = 1
            try:
                os.close(pipe)
                run_cases(at, count, saved, out)
                code = 0
            finally:
                os._exit(code)
        os.close(out)
        for kind, *result in lines_of(pipe, child):
            if kind == "case":
                at = result[0] + 1
            elif kind == "end":
                report.cases += 1
                report.damages[result[0]] += 1
                report.ended[result[1]] += 1
            else:
                report.cases += 1
                report.wrong.append((at - 1, result[0]))
        os.close(pipe)
        _, status = os.waitpid(child, 0)
        if status != 0:
            report.cases += 1
            report.wrong.append((at - 1, f"hung, or ended with {status}"))
    return report


def table(report):
    damages = ", ".join(f"{k} {v:,}" for k, v in sorted(report.damages.items()))
    rows = [
        ("cases", f"{report.cases:,}"),
        ("what was damaged, and how", damages),
        ("how they ended", ", ".join(f"{k} {v:,}" for k, v in report.ended.most_common())),
        ("hangs, other errors, read wrongly", str(len(report.wrong))),
    ]
    return campaigns.table(rows)


def main():
    args = campaigns.parser(__doc__, 600).parse_args()
    print(f"seed {args.seed}", file=sys.stderr, flush=True)
    if args.case is None:
        report = campaign(args.seconds, args.seed)
    else:
        report = campaign(1e9, args.case, cases=1)
    return campaigns.finish(args, "files", "Attacks on files", table(report), report, shown=20)


if __name__ == "__main__":
    sys.exit(main())
