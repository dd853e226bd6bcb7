"""Checks the models in this directory exhaustively, and that each broken variant fails.

python tests/models/check.py [model]
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

MODELS = Path(__file__).resolve().parent
MEMORY_MB = 1024
DEPTH = 200_000

# (model, defines, expected verdict, the promise that holds or is broken)
TABLE = [
    ("flag", "", "holds", "all of them, over three posts"),
    ("flag", "MUT_ARM_BLIND", "violated", "no wake-up is lost to a post while it parks"),
    ("flag", "MUT_ADVANCE_BLIND", "violated", "no wake-up is lost to a parking while it posts"),
    ("flag", "MUT_LOST_IF_ARMED", "violated", "a death between post and wake is told"),
    ("flag", "MUT_DISARM_BY_STORE", "violated", "a post and a time-out never both win"),
    ("flag", "MUT_LOST_FIRST", "violated", "a post survives its author"),
    ("flag", "MUT_CLEAR_EARLY", "violated", "what is being read is not overwritten"),
    ("flag", "MUT_SET_UNCLEARED", "violated", "one post, one clear"),
    ("flag", "MUT_WAKE_ALWAYS", "violated", "no system call unless parked"),
    ("position", "", "holds", "all of them, two posters post twice"),
    ("position", "N=3 POSTS=1 STIRS=2", "holds", "all of them, three posters"),
    ("position", "MUT_ARM_BLIND", "violated", "no wake-up is lost to an advance while it arms"),
    ("position", "MUT_ADVANCE_BLIND", "violated", "no wake-up is lost to an arming"),
    ("position", "MUT_TARGET_FIRST", "violated", "a smaller target is heeded"),
    ("position", "MUT_LOST_IF_ARMED", "violated", "a death between disarming and wake is told"),
    ("position", "MUT_WAKE_TWICE", "violated", "one system call an arming"),
    ("position", "MANY N=2 POSTS=1", "holds", "all of them, two waiters and two posters"),
    ("position", "MANY N=1 POSTS=3", "holds", "all of them, two waiters and three posts"),
    (
        "position",
        "MANY MUT_SLEEP_DISARMED",
        "violated",
        "no process sleeps on a bit that was taken",
    ),
    ("position", "MANY MUT_WAKE_ONE", "violated", "all who sleep are woken"),
    ("position", "MANY MUT_LOST_IF_ARMED", "violated", "a death is told to all who sleep"),
    ("doorbell", "K=2", "holds", "all of them, two members post twice"),
    ("doorbell", "K=1", "holds", "all of them, either of two members"),
    ("doorbell", "N=3 POSTS=1 DEATHS=1", "holds", "all of them, two of three members"),
    ("doorbell", "MUT_FLAG_AFTER_COUNT", "violated", "the scan finds who counted"),
    ("doorbell", "MUT_COUNT_AFTER_SCAN", "violated", "who was not found is counted"),
    ("doorbell", "MUT_TARGET_IGNORES_SCAN", "violated", "who was found is not waited for"),
    ("doorbell", "MUT_CLEAR_AFTER_SCAN", "violated", "a loss after the scan wakes"),
    ("doorbell", "MUT_REAPER_NO_WAKE", "violated", "a loss wakes"),
    ("doorbell", "MUT_LOST_IF_ARMED", "violated", "a death between disarming and wake is told"),
    ("doorbell", "MUT_LOST_BY_STORE", "violated", "a post survives its author"),
    ("doorbell", "MUT_TAKE_BY_STORE", "violated", "taking keeps a loss"),
    ("doorbell", "MUT_NOT_TOLD", "violated", "a loss is told once"),
    ("shared_ring", "", "holds", "all of them, both producers may die"),
    ("shared_ring", "RECORDS1=2 DEATHS=0", "holds", "all of them, two laps"),
    ("shared_ring", "SLOTS=1 HIGH=1 LOW=0", "holds", "all of them, three laps of one slot"),
    ("shared_ring", "DEATHS=1 STIRS=1", "holds", "all of them, with a time-out"),
    ("shared_ring", "SLOTS=4 COUNT=2", "holds", "all of them, the consumer waits for two"),
    ("shared_ring", "LEAVE DEATHS=1", "holds", "all of them, a producer may leave"),
    (
        "shared_ring",
        "SLOTS=1 HIGH=1 LOW=0 DEATHS=0 CONSUMER_DIES",
        "holds",
        "all of them, the consumer is replaced",
    ),
    ("shared_ring", "MUT_CLAIM_BY_FETCH_ADD", "violated", "every claim has an owner"),
    ("shared_ring", "MUT_CLAIM_BY_STORE DEATHS=0", "violated", "every claim has one owner"),
    ("shared_ring", "MUT_PUBLISH_EARLY", "violated", "no record is torn"),
    ("shared_ring", "MUT_POST_FIRST", "violated", "no wake-up is lost to a publishing"),
    ("shared_ring", "MUT_ABORT_BY_STORE", "violated", "a published record survives its author"),
    ("shared_ring", "MUT_FREE_THIS_LAP", "violated", "nothing is claimed for a lap that is over"),
    ("shared_ring", "MUT_RELEASE_FIRST", "violated", "what is being read is not overwritten"),
    ("shared_ring", "MUT_COUNT_AFTER_SCAN", "violated", "what was not found is counted"),
    ("shared_ring", "MUT_LOST_AFTER_SCAN", "violated", "a loss is told after what was published"),
    ("shared_ring", "MUT_LOST_IF_ARMED", "violated", "a death between disarming and wake is told"),
    (
        "shared_ring",
        "MUT_ROOM_UNSIGNED SLOTS=1 HIGH=1 LOW=0",
        "violated",
        "never more than HIGH in flight",
    ),
    ("shared_ring", "LEAVE MUT_LEAVE_SILENT DEATHS=0", "violated", "leaving wakes the consumer"),
    ("shared_ring", "MUT_ABORTED_ASIDE", "violated", "who is told ready finds something"),
    (
        "shared_ring",
        "MUT_ABORTED_ASIDE SLOTS=4 COUNT=2 DEATHS=1",
        "violated",
        "the dead wedge no consumer that waits for two",
    ),
    ("requests", "", "holds", "all of them, three requests and two deaths"),
    ("requests", "ALL=4 DEATHS=3 EARLY=1", "holds", "all of them, four requests and three deaths"),
    ("requests", "MUT_ANY_ANSWER", "violated", "an answer is to the request that it repeats"),
    ("requests", "MUT_FLAG_FIRST", "violated", "a flag is set after the answer that it is for"),
    ("requests", "MUT_ANSWERED_TWICE", "violated", "no actions are written while a worker steps"),
    (
        "shared_ring",
        "COUNT=2 LOW=0 RECORDS1=2 DEATHS=0",
        "violated",
        "none: who waits for more than LOW + 1 may wait for ever",
    ),
]


def run(command: list[str], directory: str) -> str:
    pipe, both = subprocess.PIPE, subprocess.STDOUT
    return subprocess.run(
        command, cwd=directory, check=True, text=True, stdout=pipe, stderr=both
    ).stdout


def search(model: str, defines: str, expected: str) -> str:
    """Return the output of a search, complete or stopped at its first error."""
    with tempfile.TemporaryDirectory() as directory:
        flags = [f"-D{define}" for define in defines.split()]
        run(["spin", "-a", *flags, str(MODELS / f"{model}.pml")], directory)
        # A violation is found quickly: compiling dominates, so it is not optimized.
        optimise = "-O2" if expected == "holds" else "-O0"
        options = [optimise, "-w", "-DSAFETY", "-DCOLLAPSE", f"-DMEMLIM={MEMORY_MB}"]
        run(["cc", *options, "-o", "pan", "pan.c"], directory)
        return run(["./pan", "-n", f"-m{DEPTH}"], directory)


def verdict(output: str) -> str:
    """Return `holds` only after a complete search, `violated` only for a protocol fault."""
    errors = re.search(r"errors: (\d+)", output)
    cut_short = re.search(r"depth too small|Search not completed|bound", output)
    if errors and errors[1] == "0" and not cut_short:
        return "holds"
    if re.search(r"^pan:1: (invalid end state|assertion violated)", output, re.MULTILINE):
        return "violated"
    return "search cut short"


def outcome(model: str, defines: str, expected: str) -> tuple[str, str, float]:
    """Return (output, verdict, seconds)."""
    start = time.monotonic()
    try:
        output = search(model, defines, expected)
        found = verdict(output)
    except subprocess.CalledProcessError as error:
        output = error.stdout
        found = f"cannot run {error.cmd[0]}: {output.strip()[-200:]}"
    return output, found, time.monotonic() - start


def main() -> int:
    names = sorted({row[0] for row in TABLE})
    wanted = sys.argv[1:] or names
    if not set(wanted) <= set(names):
        print(f"cannot check {' '.join(wanted)}: expected {' or '.join(names)}", file=sys.stderr)
        return 2
    if not shutil.which("spin"):
        print("cannot check models: no spin; `apt-get install spin` brings it", file=sys.stderr)
        return 2
    passed = failed = 0
    rows = [row for row in TABLE if row[0] in wanted]
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        results = pool.map(lambda row: outcome(*row[:3]), rows)
        for (model, defines, expected, promise), result in zip(rows, results, strict=True):
            output, found, seconds = result
            states = re.search(r"(\d+) states, stored", output)
            ok = found == expected
            passed += ok
            failed += not ok
            print(
                f"{'ok  ' if ok else 'FAIL'} {model:12}{defines:45} {found:9}"
                f"{int(states[1]) if states else 0:>11,} states {seconds:5.1f} s   {promise}"
                + ("" if ok else f"   (expected: {expected})"),
                flush=True,
            )
    print(f"{passed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
