"""Videos of envs."""

from __future__ import annotations

import contextlib
import importlib
from typing import TYPE_CHECKING, Any

import numpy as np

from pysampler._common.closing import Closing
from pysampler._workers.exceptions import Raised

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import gymnasium as gym

__all__ = ["NoVideo", "Video", "expect_writer", "naming_file", "part_of"]


class NoVideo(Closing):
    """Does nothing, instead of a ``Video``, in an episode that is not filmed."""

    def shoot(self) -> None:
        """Add a picture of the env."""

    def keep(self) -> None:
        """Give the complete file its final name."""

    def close(self) -> None:
        """Remove the file if it has not been kept."""


class Video(NoVideo):
    """Writes pictures of an env to a file, which gets its final name when it is complete.

    Args:
        env: The env.
        index: Its index, for errors.
        path: The name of the file.
        fps: Frames a second.
    """

    def __init__(self, env: gym.Env[Any, Any], index: int, path: Path, fps: int) -> None:
        import imageio  # noqa: PLC0415 - only where videos are requested

        self._env, self._index, self._path = env, index, path
        self._part = part_of(path)
        with naming_file(path):
            self._writer: Any = imageio.get_writer(self._part, fps=fps, macro_block_size=1)

    def shoot(self) -> None:
        """Add a picture of the env."""
        try:
            picture = self._env.render()
            if not isinstance(picture, np.ndarray):
                raise TypeError(f"it returned {type(picture).__name__}, expected an array")
        except Exception as error:
            raise Raised(self._index, "render()") from error
        with naming_file(self._path):
            self._writer.append_data(picture)

    def keep(self) -> None:
        """Give the complete file its final name."""
        with naming_file(self._path):
            self._writer.close()
            self._check()
            self._part.rename(self._path)
        self._writer = None

    def _check(self) -> None:
        """Raise OSError unless the video can be read: the writer does not report a full disk."""
        import imageio  # noqa: PLC0415 - only where videos are requested

        try:
            imageio.get_reader(self._part).close()
        except Exception as error:
            raise OSError("the video is incomplete: is the disk full?") from error

    def close(self) -> None:
        """Remove the file if it has not been kept."""
        if self._writer is not None:
            with contextlib.suppress(Exception):  # report the earlier exception instead
                self._writer.close()
            self._part.unlink(missing_ok=True)


def part_of(path: Path) -> Path:
    """Return the file that a video is in until it is complete."""
    return path.with_suffix(".part" + path.suffix)


def expect_writer(purpose: str) -> None:
    """Raise ImportError unless videos can be written."""
    try:
        importlib.import_module("imageio")
        importlib.import_module("imageio_ffmpeg").get_ffmpeg_exe()
    except (ImportError, RuntimeError) as error:
        raise ImportError(
            f"cannot {purpose}: videos need imageio and its ffmpeg: pip install 'imageio[ffmpeg]'"
        ) from error


@contextlib.contextmanager
def naming_file(path: Path) -> Iterator[None]:
    """Report an exception as a failure to write this file, instead of an error of the policy."""
    try:
        yield
    except Exception as error:
        raise Raised(None, f"writing {path}") from error
