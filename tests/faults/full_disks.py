"""Full and read-only disks: the old file survives or the new one is whole; errors name the file.

    python tests/faults/full_disks.py --seconds 300 --out benchmarks/results

Each case, decided by its seed, writes to a small tmpfs that becomes full or read-only: replays,
checkpoints, recordings, traces and merged traces, logs, weights and plots of examples, returns and
videos of a watcher. Violations are an old file that is neither unchanged nor replaced by a whole
new one, a file that cannot be read up to the last write, an error that does not name the file, and
a missing error. The disks are mounted in a new mount namespace; if that is not permitted, the
campaign says so and does nothing.
"""

import argparse
import contextlib
import io
import json
import os
import random
import subprocess
import sys
import tempfile
import traceback
import types
import warnings
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import gymnasium as gym
import numpy as np

import pysampler
from pysampler import ReplayBuffer
from pysampler._actors.watcher_policy import EPISODE, _append
from pysampler._cli.main import main as command
from pysampler._learning.checkpoints import Checkpoints
from pysampler._vector.recording import BatchRecorder, BatchReplayer
from pysampler._vector.video import Video

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "examples"), str(ROOT / "tests" / "support")]
import campaigns  # noqa: E402
from campaigns import Wrong, expect  # noqa: E402

HANG = 120.0  # seconds that a case may take at most
INNER = "--inside"  # runs in the mount namespace
GROUPS = [range(i, i + 1) for i in range(150)]


class Disk:
    """A small tmpfs that can become full or read-only."""

    def __init__(self, path, size):
        self.path = path
        self._filler = path / "filler"
        path.mkdir()
        self._mount("mount", "-t", "tmpfs", "-o", f"size={size}", "pysampler-faults", str(path))

    def _mount(self, *command):
        subprocess.run(command, check=True, capture_output=True)

    def fill(self, room):
        """Leave ``room`` bytes free, to within a page."""
        free = os.statvfs(self.path)
        taken = free.f_bavail * free.f_bsize - room
        if taken > 0:
            with self._filler.open("wb") as file:
                os.posix_fallocate(file.fileno(), 0, taken)

    def spoil(self, dice, size):
        """Become too full for ``size`` bytes, or read-only; return which."""
        if dice.random() < 0.3:
            self._mount("mount", "-o", "remount,ro", str(self.path))
            return "read-only"
        self.fill(dice.choice([0, dice.randrange(1 << 13), dice.randrange(2 * size)]))
        return "full"

    def free(self):
        self._filler.unlink(missing_ok=True)

    def names(self):
        """Return the names of all files but the filler."""
        files = (path for path in self.path.rglob("*") if path.is_file() and path != self._filler)
        return sorted(str(path.relative_to(self.path)) for path in files)

    def close(self):
        self._mount("umount", "--lazy", str(self.path))
        self.path.rmdir()


def failed(write, path, kind=OSError):
    """Write; return whether it failed; its error must name the file."""
    try:
        write()
    except kind as error:
        expect(str(path) in str(error), f"an error that does not name {path.name}: {error!r}")
        return True
    return False


def stderr_of(write, path):
    """Write; return its stderr, which must name the file unless it is empty."""
    errors = io.StringIO()
    with contextlib.redirect_stderr(errors):
        write()
    text = errors.getvalue()
    expect(not text or str(path) in text, f"an error that does not name {path.name}: {text}")
    return text


# -- files -----------------------------------------------------------------------------------------


def replay_of(dice):
    replay = ReplayBuffer(64, {"x": np.zeros(50), "next_x": np.zeros(50)}, seed=1)
    numbers = np.random.default_rng(dice.randrange(1 << 30))
    for _ in range(dice.randrange(1, 60)):
        x, none = numbers.random((1, 50)), np.zeros(1)
        fields = {"x": x, "next_x": x}
        replay.add(fields, rewards=none, terminated=none, truncated=none, env=none)
    return replay


def state(replay):
    return {name: array.tobytes() for name, array in replay.to_arrays().items()}


def replays(dice, disk):
    path = disk.path / "replay"
    replay_of(dice).save(path)
    before, new = path.read_bytes(), replay_of(dice)
    yield disk.spoil(dice, len(before))
    if failed(lambda: new.save(path), path):
        expect(path.read_bytes() == before, "the old replay is damaged")
        yield "old"
    else:
        expect(state(ReplayBuffer.load(path)) == state(new), "the new replay is not whole")
        yield "new"
    expect(disk.names() == ["replay"], f"files are left: {disk.names()}")


def checkpoints(dice, disk):
    kept = Checkpoints(disk.path / "run", keep=1)
    numbers = np.random.default_rng(1)
    kept.save(1, x=numbers.random(1000), replay=replay_of(dice))
    (old,) = disk.names()
    before = (disk.path / old).read_bytes()
    x = numbers.random(dice.randrange(1, 5000))
    yield disk.spoil(dice, len(before))
    if failed(lambda: kept.save(2, x=x), kept.directory / "checkpoint-000000000002.npz"):
        expect(disk.names() == [old], f"files are left: {disk.names()}")
        expect((disk.path / old).read_bytes() == before, "the old checkpoint is damaged")
        yield "old"
    else:
        expect(np.array_equal(kept.restore()["x"], x), "the new checkpoint is not whole")
        yield "new"


def recordings(dice, disk):
    path = disk.path / "recording"
    if dice.random() < 0.2:
        disk.spoil(dice, 1 << 10)
        if failed(lambda: BatchRecorder(path, GROUPS).close(), path):
            yield "read-only"
            yield "no file"
            return
        disk.free()
    recorder, done = BatchRecorder(path, GROUPS), []
    for batch in range(dice.randrange(200)):
        groups = dice.sample(range(150), dice.randrange(1, 150))
        if batch == 20:
            disk.fill(dice.randrange(1 << 13))
        if failed(lambda batch=batch, groups=groups: recorder.write(batch, groups), path):
            if dice.random() < 0.5:
                break
            disk.free()
            recorder.write(batch, groups)
        done.append(groups)
    recorder.close()
    yield "full"
    replayer = BatchReplayer(path, GROUPS)
    for batch, groups in enumerate(done):
        expect(replayer.read() == groups, f"batch {batch} was lost")
        replayer.done(batch)
    yield "all that was written"


class Counting(gym.Env):
    observation_space = gym.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(2, np.float32), {}

    def step(self, action):
        return np.zeros(2, np.float32), 1.0, False, False, {}


def traces(dice, disk):
    path = disk.path / "run.json"
    if dice.random() < 0.1:
        fault = disk.spoil(dice, 1 << 12)
        make = lambda: pysampler.VectorEnv([Counting], num_workers=1, trace=path).close()  # noqa: E731
        with warnings.catch_warnings(record=True, action="always") as caught:
            is_refused = failed(make, path)
        yield fault
        expect(is_refused or fault == "full", "a trace on a read-only disk is not refused")
        expect(is_refused or caught or path.stat().st_size, "neither an error nor a warning")
        yield "no file" if is_refused else "new"
        return
    envs = pysampler.VectorEnv([Counting] * 4, num_workers=2, trace=path)
    with warnings.catch_warnings(record=True, action="always") as caught:
        envs.reset(seed=1)
        for _ in range(dice.randrange(100, 1500)):
            envs.step(np.zeros(4, np.int64))
        disk.fill(dice.randrange(1 << 17))
        envs.close()
    yield "full"
    texts = [str(one.message) for one in caught]
    expect(all(str(path) in text for text in texts), f"a warning that does not name it: {texts}")
    events = trace_events(path)
    if texts:
        expect(len(texts) == 1, f"several warnings: {texts}")
        yield "all that was written"
    else:
        expect(events > 400, f"no warning, and the trace has {events} events")
        yield "new"


def trace_events(path):
    if not path.stat().st_size:
        return 0
    return len(json.loads(path.read_bytes())["traceEvents"])


def merges(dice, disk):
    its, path = disk.path / "its.json", disk.path / "both.json"
    its.write_text(json.dumps([{"ph": "i", "name": "x" * 99, "ts": 1}] * dice.randrange(200)))
    path.write_text("[]")
    yield disk.spoil(dice, its.stat().st_size)
    with contextlib.redirect_stdout(io.StringIO()):
        error = stderr_of(lambda: command(["trace", "--merge", str(its), "-o", str(path)]), path)
    if error:
        expect(path.read_text() == "[]", "the old trace is damaged")
    else:
        expect(
            json.loads(path.read_text())["traceEvents"] == json.loads(its.read_text()), "not whole"
        )
    expect(disk.names() == ["both.json", "its.json"], f"files are left: {disk.names()}")
    yield "old" if error else "new"


def trainings(dice, disk):
    """Logs, weights and checkpoints of an example that keeps training."""
    import common
    import torch

    weights, log = disk.path / "net.pt", disk.path / "progress.csv"
    options = types.SimpleNamespace(
        env="CartPole-v1", steps=10**9, quiet=True, log=disk.path, save=weights
    )
    options.checkpoints, options.checkpoint_seconds = disk.path / "run", 0
    progress = common.Run(options)
    net = torch.nn.Linear(30, 30)
    errors = io.StringIO()
    with contextlib.redirect_stderr(errors):
        progress.start(net)
        full = dice.randrange(1, 60)
        for step in range(full + dice.randrange(200)):
            if step == full:
                disk.fill(dice.randrange(1 << 15))
            with torch.no_grad():
                net.bias[:] = step
            progress.advance(1, [1.0], every=0, score=step, more=dice.random())
            if step % 10 == 0:
                progress.checkpoint(net=net)
        progress.close()
    yield "full"
    expect(len(set(torch.load(weights)["bias"].tolist())) == 1, "the weights are not whole")
    head, *rows = log.read_text().splitlines()
    expect({row.count(",") for row in rows} == {head.count(",")}, "a row is not whole")
    kept = Checkpoints(options.checkpoints)
    expect(kept.restore()["step"] == kept.latest, "a checkpoint is not whole")
    expect(not [name for name in disk.names() if name.endswith((".new", ".saving"))], "left files")
    lines = [line for line in errors.getvalue().splitlines() if line.startswith("cannot ")]
    expect(all(str(disk.path) in line for line in lines), f"an error names no file: {lines}")
    expect(lines or len(rows) == progress.steps, "rows were lost without an error")
    yield "all that was written" if lines else "new"


def plots(dice, disk):
    import common
    from matplotlib import pyplot

    path = disk.path / "returns.png"
    common.plot(path, {"return": [(1, 1.0, 1.0)]})
    before = path.read_bytes()
    yield disk.spoil(dice, len(before))
    new = {"return": [(1, 1.0, 2.0), (2, 3.0, 4.0)]}
    if failed(lambda: common.plot(path, new), path, SystemExit):
        expect(path.read_bytes() == before, "the old plot is damaged")
        yield "old"
    else:
        expect(path.read_bytes()[-8:-4] == b"IEND", "the new plot is not whole")
        yield "new"
    pyplot.close("all")
    expect(disk.names() == ["returns.png"], f"files are left: {disk.names()}")


def returns(dice, disk):
    path = disk.path / "returns.csv"
    whole = 0
    full = dice.randrange(50)
    for number in range(full + 200):
        if number == full:
            disk.fill(dice.randrange(1 << 13))
        if not failed(lambda: _append(path, np.zeros(1, EPISODE)[0]), path, Exception):
            whole += 1
        elif dice.random() < 0.1:
            disk.free()
    yield "full"
    head, *rows = path.read_text().splitlines() if whole else [""]
    expect(len(rows) == whole, f"{whole} rows were written, {len(rows)} are there")
    expect({row.count(",") for row in rows} <= {head.count(",")}, "a row is not whole")
    yield "all that was written"


class Noise:
    """An env whose images cannot be compressed."""

    def __init__(self, seed):
        self.numbers = np.random.default_rng(seed)

    def render(self):
        return self.numbers.integers(0, 256, (64, 64, 3), np.uint8)


def videos(dice, disk):
    import imageio_ffmpeg

    path = disk.path / "episode.mp4"
    disk.fill(dice.randrange(1 << 18))
    shots = dice.randrange(1, 60)

    def film():
        with Video(Noise(1), 0, path, 30) as video:
            for _ in range(shots):
                video.shoot()
            video.keep()

    if failed(film, path, Exception):
        expect(disk.names() == [], f"files are left: {disk.names()}")
        yield "full"
        yield "no file"
        return
    yield "full"
    if path.exists():
        frames = imageio_ffmpeg.count_frames_and_secs(path)[0]
        expect(frames == shots, f"{frames} of {shots} pictures are in the video")
    yield "new"


# Relative frequencies: traces and videos are slow, since they start processes.
KINDS = {
    replays: 8,
    checkpoints: 8,
    recordings: 8,
    traces: 2,
    merges: 6,
    trainings: 3,
    plots: 3,
    returns: 6,
    videos: 2,
}


# -- the campaign ----------------------------------------------------------------------------------


@dataclass
class Report(campaigns.Report):
    faults: Counter = field(default_factory=Counter)
    ended: Counter = field(default_factory=Counter)


def run_case(seed, folder):
    dice = random.Random(seed)
    kind = dice.choices([*KINDS], [*KINDS.values()])[0]
    disk = Disk(folder / f"disk-{seed}", 1 << 20)
    try:
        fault, end = kind(dice, disk)
    except Wrong as error:
        raise Wrong(f"{kind.__name__}: {error}") from None
    finally:
        disk.close()
    return f"{kind.__name__}, {fault}", end


def campaign(args):
    report = Report()
    with tempfile.TemporaryDirectory() as folder:
        for seed in campaigns.seeds(args, hang=HANG):
            report.cases += 1
            try:
                fault, ended = run_case(seed, Path(folder))
                report.faults[fault] += 1
                report.ended[ended] += 1
            except Wrong as error:
                report.wrong.append((seed, str(error)))
            except Exception:
                report.wrong.append((seed, traceback.format_exc()[-2000:]))
    return report


def table(report):
    faults = ", ".join(f"{name} {count:,}" for name, count in sorted(report.faults.items()))
    ended = ", ".join(f"{name} {count:,}" for name, count in report.ended.most_common())
    rows = [
        ("faults tried", f"{report.cases:,}"),
        ("what was written, and where", faults),
        ("what was there in the end", ended),
        ("lost, damaged, silent, without a name", str(len(report.wrong))),
    ]
    return campaigns.table(rows)


def inside():
    """Return whether this process has its own mount namespace; if not, try to exec into one."""
    if INNER in sys.argv:
        return True
    for more in ([], ["--user", "--map-root-user"]):
        unshare = ["unshare", "--mount", *more]
        try:
            probe = subprocess.run([*unshare, "true"], capture_output=True, text=True, check=False)
        except OSError as error:
            print(f"nothing is tried: {error}")
            return False
        if probe.returncode == 0:
            program = [sys.executable, __file__, *sys.argv[1:], INNER]
            os.execvp(unshare[0], [*unshare, *program])
    print(f"nothing is tried: no small disks can be mounted here: {probe.stderr.strip()}")
    return False


def main():
    parser = campaigns.parser(__doc__, 300)
    parser.add_argument(INNER, action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if not inside():
        return 0
    print(f"seed {args.seed}", file=sys.stderr, flush=True)
    report = campaign(args)
    return campaigns.finish(args, "disks", "Full disks", table(report), report, shown=20)


if __name__ == "__main__":
    sys.exit(main())
