"""Short runs of the fault campaign, the other campaigns and the fuzzers, to check that they work.

`make test-faults` runs them for longer. PYSAMPLER_FAULT_SECONDS sets the duration of the fault
campaign, and PYSAMPLER_FAULT_SEED the seed; the output says how to repeat a single case.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from programs import completed

SECONDS = os.environ.get("PYSAMPLER_FAULT_SECONDS", "5")
SEED = os.environ.get("PYSAMPLER_FAULT_SEED", "1")


@pytest.mark.faults
@pytest.mark.slow
@pytest.mark.timeout(float(SECONDS) + 180)
def test_fault_campaign_finds_no_hang_loss_or_leak(tmp_path):
    program = str(Path(__file__).with_name("campaign.py"))
    command = [
        *(sys.executable, program, "--seconds", SECONDS, "--seed", SEED),
        *("--out", str(tmp_path)),
    ]
    # Drop the output of envs; a case that hangs prints its traceback and ends the campaign.
    done = subprocess.run(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=False
    )
    [table] = tmp_path.glob("*.md") or [None]
    assert done.returncode == 0, (table and table.read_text(), done.stderr[-3000:])
    print(table.read_text())


@pytest.mark.faults
@pytest.mark.slow
@pytest.mark.timeout(180)
@pytest.mark.parametrize(
    "fuzzer",
    [
        *("fuzz_envs.py", "fuzz_files.py", "fuzz_primitives.py", "full_disks.py", "forks.py"),
        *("suspensions.py", "descriptors.py", "parent.py", "differential.py"),
    ],
)
def test_short_run_of_each_fuzzer_passes(fuzzer):
    program = str(Path(__file__).with_name(fuzzer))
    print(completed(program, "--seconds", "1", "--seed", SEED).stdout)
