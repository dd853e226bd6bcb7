"""A minute of each fault campaign: against the workers, their parent, and (15 s) against files.

PYSAMPLER_FAULT_SECONDS and PYSAMPLER_FAULT_SEED set how long, and which cases; what it prints says
how to repeat a single one.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

SECONDS = os.environ.get("PYSAMPLER_FAULT_SECONDS", "60")
SEED = os.environ.get("PYSAMPLER_FAULT_SEED")


@pytest.mark.faults
@pytest.mark.slow
@pytest.mark.timeout(float(SECONDS) + 180)
@pytest.mark.parametrize("campaign", ["campaign.py", "parent.py"])
def test_nothing_hangs_is_lost_or_left(campaign, tmp_path):
    run(campaign, SECONDS, SEED, tmp_path)


@pytest.mark.faults
@pytest.mark.slow
def test_what_is_read_was_saved_or_is_told_to_be_damaged(tmp_path):
    run("fuzz_files.py", "15", SEED or "1", tmp_path)


def run(campaign, seconds, seed, tmp_path):
    program = str(Path(__file__).with_name(campaign))
    command = [sys.executable, program, "--seconds", seconds, "--out", str(tmp_path)]
    if seed is not None:
        command += ["--seed", seed]
    # What envs print goes nowhere; a case that hangs prints where, and ends the campaign.
    done = subprocess.run(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=False
    )
    [told] = tmp_path.glob("*.md") or [None]
    assert done.returncode == 0, (told and told.read_text(), done.stderr[-3000:])
    print(told.read_text())
