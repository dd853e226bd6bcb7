"""Full disks: a small tmpfs, or a limit on the size of files."""

import contextlib
import resource
import subprocess

import pytest


@contextlib.contextmanager
def small_disk(path, size):
    """Mount a tmpfs of ``size`` bytes at ``path``; skip the test if that is not permitted."""
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
    """Limit files to ``size`` bytes: a write ends short, and the next one fails with EFBIG."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
