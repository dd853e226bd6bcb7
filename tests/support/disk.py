"""Disks that are full: a small one of memory, or files that may not grow any further."""

import contextlib
import resource
import subprocess

import pytest


@contextlib.contextmanager
def small_disk(path, size):
    """Mount a disk of ``size`` bytes here; skip the test where that is not permitted."""
    path.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "pysampler-test", str(path)]
    try:
        subprocess.run(mount, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"cannot mount a small disk: {getattr(error, 'stderr', error)}")
    try:
        yield path
    finally:
        subprocess.run(["umount", "--lazy", str(path)], check=True)


@contextlib.contextmanager
def full_after(size):
    """Let no file grow beyond ``size`` bytes: a write ends short, the next one with EFBIG."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
