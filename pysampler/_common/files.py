"""Files of saved arrays: uncompressed ``.npz`` files, which ``numpy.load`` reads too.

They are replaced atomically, so a crash never leaves half a file. Compression is refused, so that
reading a damaged or hostile file never takes more memory than its size.
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
    "atomic_write",
    "open_regular",
    "read_arrays",
    "stored_dtype",
    "why_not_regular",
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
# Most bytes in an array's header: NumPy's default limit is too small for large records.
_MAX_HEADER = 1 << 20


def why_not_regular(path: Path, *, follow: bool = True) -> str | None:
    """Return None for a regular file, else an error text: "a pipe, expected ..."."""
    kind = stat.S_IFMT(path.stat(follow_symlinks=follow).st_mode)
    if kind == stat.S_IFREG:
        return None
    return f"{_KINDS.get(kind, 'an unknown kind of file')}, expected a regular file"


def open_regular(path: Path, make_error: Callable[[str], Exception]) -> io.BufferedReader:
    """Open a file for reading, or raise ``make_error(cause)`` if it is not a regular file."""
    if (cause := why_not_regular(path)) is not None:  # opening a pipe would wait for its writer
        raise make_error(cause)
    return path.open("rb")


@contextlib.contextmanager
def atomic_write(path: Path, make_error: Callable[[str], Exception]) -> Iterator[IO[bytes]]:
    """Yield a file to write, which replaces ``path`` once it has reached the disk.

    If the block raises, ``path`` stays unchanged and the new file is removed. Raises
    ``make_error(cause)`` if ``path`` exists but is not a regular file, and an OSError that names
    ``path`` if it cannot be written.
    """
    with contextlib.suppress(FileNotFoundError):
        if (cause := why_not_regular(path, follow=False)) is not None:
            raise make_error(cause)
    saving = path.with_name(f".{path.name[:32]}.{secrets.token_hex(8)}.saving")
    try:
        with saving.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        saving.replace(path)
    except BaseException as error:
        with contextlib.suppress(OSError):
            saving.unlink()
        if isinstance(error, OSError) and error.errno is not None:
            raise OSError(error.errno, error.strerror, os.fspath(path)) from error
        raise
    _sync_directory(path.parent)


def _sync_directory(directory: Path) -> None:
    """Wait until the directory's entries are on the disk: ``rename`` alone does not ensure it."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def stored_dtype(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the dtype an array has after saving and reading: bytes for types foreign to NumPy."""
    return np.lib.format.descr_to_dtype(np.lib.format.dtype_to_descr(dtype))


def write_arrays(file: IO[bytes], arrays: Mapping[str, npt.NDArray[Any]]) -> None:
    """Write arrays to a file, each under its name."""
    with zipfile.ZipFile(file, "w") as archive:
        for name, array in arrays.items():
            with archive.open(zipfile.ZipInfo(name + _NPY), "w", force_zip64=True) as member:
                np.lib.format.write_array(member, array, version=(3, 0), allow_pickle=False)


def read_arrays(file: IO[bytes]) -> dict[str, npt.NDArray[Any]]:
    """Return the arrays in a file by name. A damaged file may raise any type of exception."""
    size = file.seek(0, os.SEEK_END)
    with zipfile.ZipFile(file) as archive:
        members = archive.infolist()
        if sum(member.file_size for member in members) > size:
            raise ValueError(f"its parts claim more than its {size} bytes")
        arrays: dict[str, npt.NDArray[Any]] = {}
        for member in members:
            name = member.filename.removesuffix(_NPY)
            if name in arrays:
                raise ValueError(f"it has two parts {name!r}")
            arrays[name] = _read(archive, member)
    return arrays


def _read(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> npt.NDArray[Any]:
    """Return one array; its claimed size is checked before memory is allocated."""
    if member.compress_type != zipfile.ZIP_STORED or member.file_size != member.compress_size:
        raise ValueError(f"{member.filename!r} is compressed")
    with archive.open(member) as stream:
        shape, dtype = _read_header(stream)
        expected, size = math.prod(shape) * dtype.itemsize, member.file_size - stream.tell()
    if size != expected and not dtype.hasobject:
        raise ValueError(f"{member.filename!r} has {size} bytes, expected {expected}")
    with archive.open(member) as stream:  # read to the end: only there zipfile checks the CRC
        array = np.lib.format.read_array(stream, allow_pickle=False, max_header_size=_MAX_HEADER)
        if stream.read(1):
            raise ValueError(f"{member.filename!r} has extra bytes after its array")
    return np.asarray(array)


def _read_header(stream: IO[bytes]) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """Return the shape and dtype in an array's header; names of fields may be garbled."""
    first = np.lib.format.read_magic(stream) == (1, 0)
    read = np.lib.format.read_array_header_1_0 if first else np.lib.format.read_array_header_2_0
    try:
        shape, _, dtype = read(stream, max_header_size=_MAX_HEADER)
    except MemoryError as error:  # a limit of Python's parser
        raise ValueError("its header is nested too deeply") from error
    return shape, dtype
