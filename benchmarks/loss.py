"""What happens when a worker is killed: a real run of three workers, recorded as a timeline.

    python benchmarks/loss.py --out benchmarks/results

Six envs step for a few milliseconds each, in three workers. The program receives the envs of one
worker at a time and sends them on at once. One worker gets SIGKILL in the middle of a step.
``benchmarks/pictures.py`` draws the result.
"""

from __future__ import annotations

import itertools
import json
import logging
import os
import signal
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from running import Options, study

import pysampler

WORKERS, EACH, STEP = 3, 2, 0.004  # s
BEFORE, AFTER = 0.04, 0.08  # s around the kill


class Noting(gym.Env[Any, Any]):
    """An env that sleeps in each step, and notes when it began and ended."""

    action_space = spaces.Discrete(2)
    observation_space = spaces.Box(-1, 1, (1,), np.float32)

    def __init__(self, index: int, folder: str) -> None:
        self._index = index
        self._file = os.open(f"{folder}/{index}", os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def _note(self, *values: Any) -> None:
        os.write(self._file, (json.dumps([self._index, *values]) + "\n").encode())

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._note("reset", time.monotonic(), time.monotonic())
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        begun = time.monotonic()
        time.sleep(STEP)
        self._note("step", begun, time.monotonic())
        return np.zeros(1, np.float32), 1.0, False, False, {}


class Kept(logging.Handler):
    """Keeps what pysampler logs, and when."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[tuple[float, str]] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append((time.monotonic(), record.getMessage()))


def record(folder: Path) -> dict[str, Any]:
    """Return what envs, the program and the log said, in seconds from the kill."""
    kept = Kept()
    log = logging.getLogger("pysampler")
    log.addHandler(kept)
    log.propagate = False
    envs = pysampler.VectorEnv(
        [lambda i=i: Noting(i, str(folder)) for i in range(WORKERS * EACH)],
        num_workers=WORKERS,
        on_worker_loss="restart",
    )
    with envs:
        pid = envs.apply(lambda _: os.getpid())[EACH]  # of the second worker
        envs.async_reset(seed=0)
        received: list[dict[str, Any]] = []
        killed = [float("inf")]

        def kill() -> None:
            killed[0] = time.monotonic()
            os.kill(pid, signal.SIGKILL)

        timer = threading.Timer(0.3, kill)
        timer.start()
        while time.monotonic() < killed[0] + AFTER:
            *_, truncated, infos = envs.recv(min_envs=EACH)
            row = {"at": time.monotonic(), "envs": infos["env_id"].tolist()}
            row["restarted"] = infos["env_id"][truncated].tolist()
            received.append(row)
            envs.send(np.zeros(len(infos["env_id"]), np.int64), infos["env_id"])
        timer.join()
        envs.recv()
    spans = [
        json.loads(line)
        for path in sorted(folder.iterdir())
        for line in path.read_text().splitlines()
    ]
    zero = killed[0]
    shown = (-BEFORE, AFTER)
    return {
        "window": shown,
        "workers": WORKERS,
        "envs_each": EACH,
        "spans": [
            [env, kind, round(begun - zero, 6), round(ended - zero, 6)]
            for env, kind, begun, ended in spans
            if shown[0] <= begun - zero and ended - zero <= shown[1]
        ],
        "received": [
            {**row, "at": round(row["at"] - zero, 6)}
            for row in received
            if shown[0] <= row["at"] - zero <= shown[1]
        ],
        "log": [[round(at - zero, 6), text] for at, text in kept.lines],
    }


def measure(_: Options) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        return {"run": record(Path(folder))}


def report(results: dict[str, Any]) -> list[str]:
    run = results["run"]
    lost = set(range(EACH, 2 * EACH))
    seen = next(row["at"] for row in run["received"] if set(row["restarted"]) & lost)
    others = [row["at"] for row in run["received"] if not set(row["envs"]) & lost]
    longest = max(b - a for a, b in itertools.pairwise(others))
    said, text = run["log"][0]
    about = (
        f"Three workers with {EACH} envs each, whose steps take {STEP * 1e3:.0f} ms; the second is "
        f"killed in a step. In ms from the kill:\n\n- {said * 1e3:.1f}: the program has noticed, "
        f"and logs: {text}\n- {seen * 1e3:.1f}: it receives the envs of the worker again, "
        "truncated and begun anew in another process\n\nThe envs of the other workers came back at "
        f"most {longest * 1e3:.1f} ms apart meanwhile.\n"
    )
    return [about]


if __name__ == "__main__":
    study("A worker is killed", measure, report)
