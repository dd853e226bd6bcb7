"""Files that hold what was saved: whole or not there at all, read in no more memory than they take.

Arrays lie in them as in NumPy's ``.npz``, uncompressed: ``numpy.load`` reads them too.
"""

from __future__ import annotations

import contextlib
import math
import os
import secrets
import stat
import zipfile
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import io
    from collections.abc import Callable, Iterator, Mapping

    import numpy.typing as npt

__all__ = [
    "in_file",
    "irregular",
    "open_regular",
    "read_arrays",
    "replacing",
    "write_arrays",
]

_NPY = ".npy"
_KINDS = {
    stat.S_IFDIR: "a directory",
    stat.S_IFLNK: "a symbolic link",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}
# Bytes that the description of an array may take: NumPy's own limit is too small for large records.
_DESCRIPTION = 1 << 20


def irregular(path: Path, *, follow: bool = True) -> str | None:
    """Return what is wrong with what lies at ``path``; None if it is a regular file."""
    kind = stat.S_IFMT(path.stat(follow_symlinks=follow).st_mode)
    if kind == stat.S_IFREG:
        return None
    return f"{_KINDS.get(kind, 'no file')}, expected a regular file"


def open_regular(path: Path, refuse: Callable[[str], Exception]) -> io.BufferedReader:
    """Open a file to read. Raises what ``refuse`` makes of the cause if it is not a regular one."""
    if (wrong := irregular(path)) is not None:  # to open a pipe would wait for its writer
        raise refuse(wrong)
    return path.open("rb")


@contextlib.contextmanager
def replacing(path: Path, refuse: Callable[[str], Exception]) -> Iterator[IO[bytes]]:
    """Give a file to write, which becomes ``path`` once it is on the disk.

    If an exception comes through, what lay at ``path`` stays, and nothing else is left. Raises what
    ``refuse`` makes of the cause if something else than a regular file lies there.
    """
    with contextlib.suppress(FileNotFoundError):
        if (wrong := irregular(path, follow=False)) is not None:
            raise refuse(wrong)
    saving = path.with_name(f".{path.name[:32]}.{secrets.token_hex(8)}.saving")
    try:
        with saving.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        saving.replace(path)
    except BaseException:
        saving.unlink(missing_ok=True)
        raise
    _sync_directory(path.parent)


def _sync_directory(directory: Path) -> None:
    """Wait until the names in a directory are on the disk."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def in_file(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return what a file makes of a dtype: bytes, of types that are not NumPy's."""
    return np.lib.format.descr_to_dtype(np.lib.format.dtype_to_descr(dtype))


def write_arrays(file: IO[bytes], arrays: Mapping[str, npt.NDArray[Any]]) -> None:
    """Write arrays by name."""
    with zipfile.ZipFile(file, "w") as archive:
        for name, array in arrays.items():
            with archive.open(zipfile.ZipInfo(name + _NPY), "w", force_zip64=True) as member:
                np.lib.format.write_array(member, array, version=(3, 0), allow_pickle=False)


def read_arrays(file: IO[bytes]) -> dict[str, npt.NDArray[Any]]:
    """Return the arrays that were written, by name. Raises some Exception if they are damaged."""
    size = file.seek(0, os.SEEK_END)
    with zipfile.ZipFile(file) as archive:
        members = archive.infolist()
        if sum(member.file_size for member in members) > size:
            raise ValueError(f"its parts are said to take more than its {size} bytes")
        arrays: dict[str, npt.NDArray[Any]] = {}
        for member in members:
            name = member.filename.removesuffix(_NPY)
            if name in arrays:
                raise ValueError(f"it has two parts {name!r}")
            arrays[name] = _read(archive, member)
    return arrays


def _read(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> npt.NDArray[Any]:
    if member.compress_type != zipfile.ZIP_STORED or member.file_size != member.compress_size:
        raise ValueError(f"{member.filename!r} is compressed")
    with archive.open(member) as stream:
        shape, dtype = _description(stream)
        said, there = math.prod(shape) * dtype.itemsize, member.file_size - stream.tell()
    if said != there and not dtype.hasobject:  # before memory is taken for it
        raise ValueError(f"{member.filename!r} has {there} bytes, expected {said}")
    with archive.open(member) as stream:  # from its beginning to its end: its sum is checked there
        array = np.lib.format.read_array(stream, allow_pickle=False, max_header_size=_DESCRIPTION)
        if stream.read(1):
            raise ValueError(f"{member.filename!r} goes on behind its array")
    return np.asarray(array)


def _description(stream: IO[bytes]) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """Return shape and dtype of the array that begins here. Names of its fields may be garbled."""
    first = np.lib.format.read_magic(stream) == (1, 0)
    read = np.lib.format.read_array_header_1_0 if first else np.lib.format.read_array_header_2_0
    try:
        shape, _, dtype = read(stream, max_header_size=_DESCRIPTION)
    except MemoryError as error:  # Python's parser has such a limit
        raise ValueError("a description nested too deep") from error
    return shape, dtype
