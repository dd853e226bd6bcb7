"""Programs in a pseudo-terminal."""

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios


def on_screen(*arguments, columns=80, lines=24, kind="xterm-256color", once=None, keys=b""):
    """Run the interpreter in a terminal; return its exit status and output.

    ``kind``: the value of TERM. ``once``: a pair of a text and a function, which is called when
    the terminal shows the text, and may return the next pair. Then ``keys`` are pressed.
    """
    parent, child = pty.openpty()
    fcntl.ioctl(child, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
    environment = {**os.environ, "TERM": kind}
    for name in ("COLUMNS", "LINES", "NO_COLOR"):
        environment.pop(name, None)
    process = subprocess.Popen(
        [sys.executable, *arguments],
        stdin=child,
        stdout=child,
        stderr=child,
        env=environment,
        start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(child, termios.TIOCSCTTY, 0),
    )
    os.close(child)
    shown = b""
    try:
        while True:
            try:
                part = os.read(parent, 1 << 16)
            except OSError:  # EIO: the program has ended
                break
            if not part:
                break
            shown += part
            if once is not None and once[0] in plain(shown.decode(errors="replace")):
                once = once[1]()
                if once is None:
                    os.write(parent, keys)
    finally:
        os.close(parent)
    return process.wait(), shown.decode().replace("\r\n", "\n")


def plain(text):
    """Return text without the escape codes for colors and cursor moves."""
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)
