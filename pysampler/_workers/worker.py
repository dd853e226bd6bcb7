"""A worker process: makes its env server, attaches to shared memory, and runs jobs until it closes.

Every worker begins in ``main``, whatever process it was forked from. It receives the function that
makes its env server pickled, with its arguments, unless it inherits them in a fork of the parent.
Then it serves commands (command_loop.py).
"""

from __future__ import annotations

import contextlib
import os
import pickle
import resource
import signal
import sys
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from pysampler import _core
from pysampler._workers.command_loop import CommandLoop
from pysampler._workers.jobs import failure_of
from pysampler._workers.limits import naming_process_limit
from pysampler._workers.mail import Outbox
from pysampler._workers.remote import dumps
from pysampler._workers.seeds import seed_globals
from pysampler._workers.setup import receive_message, unpack_server
from pysampler.sync import Watch

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from pysampler._workers.jobs import Server
    from pysampler._workers.setup import Attachment, Layout, Setup
    from pysampler.sync import Segment

__all__ = ["become_worker", "main"]

# Whether this process replaces a lost worker; the env server may read this during construction.
is_replacement = False


def main(fd: int, parent: int, inherited: Any = None) -> None:
    """Run a worker.

    Args:
        fd: The descriptor of the connection to the parent.
        parent: The pid of the process that the worker serves; the worker ends when it does.
        inherited: In a fork of the parent, the function that makes the env server, and arguments.
    """
    global is_replacement
    _core.outlive_signals()  # the parent handles them; this process ends with the parent
    os.set_inheritable(fd, False)  # noqa: FBT003
    os.register_at_fork(after_in_child=_default_signals)
    with contextlib.suppress(PermissionError):  # a spawned interpreter already leads one
        os.setsid()
    connection = Connection(fd)
    with _reporting_failure(connection, "starting"), naming_process_limit():
        watch = Watch()
    watch.leave_with(parent)
    watch._leave_at_end(fd, code=0)  # in case the parent may not signal this process
    try:
        setup: Setup = connection.recv()
        is_replacement = setup.is_replacement
    except (EOFError, ConnectionError):  # the parent gave up
        return
    with _reporting_failure(connection, "starting"):
        _imitate_parent(setup)
        server = _make_server(setup, connection, inherited)
        description = server.describe()
        _core.set_process_title(
            f"pysampler: worker {setup.index}/{setup.workers} {description.name}"
        )
        try:
            if not is_replacement:
                connection.send_bytes(dumps(description))
            attachment, segment = receive_message(connection)
        except (EOFError, ConnectionError):
            return
        _expect_sizes(attachment.sizes, description.sizes)
        link = _ProcessLink(attachment, segment, connection)
        loop = CommandLoop(setup.index, attachment, segment, server, link)
        if not is_replacement:  # for whose answers the parent does not wait
            with contextlib.suppress(ConnectionError):
                connection.send_bytes(b"attached")
    with _reporting_failure(connection, "serving"):
        loop.run()


def become_worker(fd: int, outputs: list[int], parent: int, server: Any = None) -> NoReturn:
    """Run a worker in this forked process and always exit, never return.

    Args:
        fd: The descriptor of the connection to the parent.
        outputs: Descriptors for stdout and stderr.
        parent: The pid of the process that the worker serves.
        server: In a fork of the parent, the function that makes the env server, and arguments.
    """
    code = 1
    try:
        # A worker has no stdin. Descriptors 0 to 2 are open here, to whatever files.
        null = os.open(os.devnull, os.O_RDONLY)
        for number, output in enumerate([null, *outputs]):
            if output != number:
                os.dup2(output, number)
                os.close(output)
            os.set_inheritable(number, True)  # noqa: FBT003
        main(fd, parent, server)
        code = 0
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else 1
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):
                stream.flush()
        os._exit(code)


def _default_signals() -> None:
    """Restore default signal handling in a process that an env has forked."""
    _core.default_signals()
    with contextlib.suppress(ValueError):
        signal.signal(signal.SIGINT, signal.default_int_handler)


@contextlib.contextmanager
def _reporting_failure(connection: Connection, doing: str) -> Iterator[None]:
    """On an exception, report it to the parent and exit."""
    try:
        yield
    except BaseException as error:
        # If an env exits, the exit code reports it.
        if isinstance(error, SystemExit) and doing == "serving":
            raise
        with contextlib.suppress(OSError):
            connection.send_bytes(dumps(failure_of(error, doing)))
        raise SystemExit(1) from None


def _imitate_parent(setup: Setup) -> None:
    """Adopt the parent's environment, paths, limits and logging."""
    os.environ.clear()
    os.environ.update(setup.environment)
    os.environ["PYSAMPLER_WORKER"] = str(setup.index)
    os.environ["PYSAMPLER_WORKERS"] = str(setup.workers)
    if setup.directory is not None:
        _enter(setup.directory)
    with contextlib.suppress(OSError, ValueError):
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (setup.open_files, hard))
    sys.path[:] = setup.path
    sys.argv[:] = setup.arguments
    sys.stdin = open(os.devnull)  # noqa: PTH123, SIM115
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError):
            # Whole lines, so that output of workers does not mix, even if Python is unbuffered.
            stream.reconfigure(line_buffering=True, write_through=False)  # type: ignore[union-attr]
    if setup.logging is not None:
        setup.logging.apply()
    # Otherwise all forks of one process would draw the same numbers.
    seed_globals(np.random.SeedSequence())
    _core.set_process_title(f"pysampler: worker {setup.index}/{setup.workers}")


def _enter(directory: str) -> None:
    """Change to a directory; if it was removed, to one that was removed too, and has no files."""
    try:
        os.chdir(directory)
    except FileNotFoundError:
        import tempfile  # noqa: PLC0415 - rare

        with tempfile.TemporaryDirectory() as removed:
            os.chdir(removed)
    except PermissionError:  # this process inherits it from a parent that sudo has started there
        pass


def _make_server(setup: Setup, connection: Connection, inherited: Any) -> Server:
    function, arguments = inherited if setup.server is None else unpack_server(setup, connection)
    return function(*arguments)


def _expect_sizes(expected: Sequence[int], got: Sequence[int]) -> None:
    """Raise ValueError if a replacement has made other numbers of envs than the lost worker."""
    if tuple(got) != tuple(expected):
        raise ValueError(
            f"the functions now make {sum(got)} envs, in groups of {[*got]}, expected "
            f"{sum(expected)}, in groups of {[*expected]}"
        )


class _ProcessLink:
    """The link of a worker process: its connection to the parent, its mail, and pickles."""

    def __init__(self, attachment: Attachment, segment: Segment, connection: Connection) -> None:
        at = attachment
        self._connection = connection
        self._inbox = _core.ByteRing(segment, at.capacity, offset=at.inbox)
        ring = _core.ByteRing(segment, at.capacity, offset=at.outbox)
        self._outbox = Outbox(ring, connection.fileno())
        self.receive = self._inbox.recv
        self.unpacked = pickle.loads
        self.flush = self._outbox.flush

    def receive_layout(self) -> tuple[Layout, Segment]:
        """Return the next layout and its segment."""
        return receive_message(self._connection)

    def post(self, group: int, number: int, answer: Any, doing: str) -> bool:
        """Send an answer; return whether ``flush`` must send a rest."""
        return self._outbox.post(group, number, _pickled(answer, doing))


def _pickled(answer: Any, doing: str) -> bytes:
    """Return the pickled answer, or a pickled failure if it cannot be pickled."""
    try:
        return dumps(answer)
    except Exception as error:
        keys = _keys_of_culprit(answer)
        where = f", of which {keys} cannot be pickled" if keys else ""
        return dumps(failure_of(error, f"sending the result of {doing}{where}"))


def _keys_of_culprit(part: Any, depth: int = 9) -> str:
    """Return the keys that lead to a part that cannot be pickled: "['sim']['lock']"."""
    parts: Iterable[tuple[Any, Any]] = ()
    if isinstance(part, dict):
        parts = part.items()
    elif isinstance(part, (list, tuple)):
        parts = enumerate(part)
    if depth == 0:  # a part may contain itself
        return ""
    for key, value in parts:
        try:
            dumps(value)
        except Exception:
            return (f"[{key!r}]" if isinstance(key, str) else "") + _keys_of_culprit(
                value, depth - 1
            )
    return ""
