"""Mail: Ctrl-C at any moment neither loses nor duplicates a message; large messages."""

import fcntl
import itertools
import multiprocessing
import os
import socket
import sys
from pathlib import Path

import pytest

from pysampler._workers import mail
from pysampler.errors import LayoutError, WaitTimeoutError
from pysampler.sync import ByteRing, now


class InterruptedError(Exception):  # noqa: A001 - pytest itself catches KeyboardInterrupt
    pass


def interrupted(function, at):
    """Call ``function`` and raise before its ``at``-th line of mail.py; return if it got there."""
    left = at

    def trace(frame, event, _):
        nonlocal left
        if frame.f_code.co_filename != mail.__file__:
            return None
        if event == "line":
            left -= 1
            if left == 0:
                raise InterruptedError
        return trace

    sys.settrace(trace)
    try:
        function()
    except InterruptedError:
        return True
    finally:
        sys.settrace(None)
    return False


def ends(groups):
    ring, (ours, theirs) = ByteRing(1 << 17), multiprocessing.Pipe()
    outbox, inbox = mail.Outbox(ring, theirs.fileno()), mail.Inbox(ring, range(groups), ours.fileno)
    outbox.end = theirs  # keep it open as long as the outbox
    return outbox, inbox


@pytest.mark.parametrize("parcels", [True, False])
@pytest.mark.parametrize("size", [0, 10, mail._PART_BYTES, 3 * mail._PART_BYTES + 7])
def test_message_survives_an_interrupt_at_any_line(size, parcels, monkeypatch):
    if not parcels:  # as without memory for a parcel
        monkeypatch.setattr(mail._core, "send_parcel", lambda *_: False)
    messages = {0: bytes(size), 1: b"x" * size, 2: b"third"}
    for at in itertools.count(1):
        outbox, inbox = ends(3)
        for group, message in messages.items():
            assert not outbox.post(group, 7, message)
        within = interrupted(lambda inbox=inbox: [inbox.read(group, 7) for group in (1, 0)], at)
        for group in (2, 0, 1):
            assert inbox.read(group, 7, deadline=now()) == messages[group]
        within |= interrupted(lambda inbox=inbox: [inbox.drop(group) for group in messages], at)
        for group in messages:
            inbox.drop(group)
        outbox.post(1, 8, b"next")
        assert inbox.read(1, 8) == b"next"
        if not within:
            break
    assert at > 20


def test_answer_to_another_command_is_dropped():
    outbox, inbox = ends(2)
    outbox.post(0, 1, b"late" * mail._PART_BYTES)
    outbox.post(1, 1, b"of another group")
    outbox.post(0, 2, b"wanted")
    assert inbox.read(0, 2) == b"wanted"
    assert inbox.read(1, 1) == b"of another group"
    with pytest.raises(WaitTimeoutError):
        inbox.read(0, 3, deadline=now())


def test_large_message_takes_no_room_in_the_ring():
    outbox, inbox = ends(2)
    open_before = len(list(Path("/proc/self/fd").iterdir()))
    for number in range(50):
        large = bytes([number]) * (1 << 20)
        assert not outbox.post(0, number, large)  # nothing is left to send
        if number % 3 == 0:  # the others are dropped
            assert inbox.read(0, number) == large
    assert not outbox.post(1, 9, b"small")
    assert inbox.read(1, 9) == b"small"
    assert len(list(Path("/proc/self/fd").iterdir())) == open_before


def test_large_message_without_its_descriptor_raises():
    outbox, inbox = ends(1)
    outbox._ring.send(mail._HEAD.pack(0, 1, mail._PARCEL))
    with pytest.raises(LayoutError, match="a large message has no descriptor"):
        inbox.read(0, 1)


def test_unsealed_large_message_raises():
    outbox, inbox = ends(1)
    memory = os.memfd_create("not sealed", os.MFD_ALLOW_SEALING)
    try:
        os.write(memory, mail._HEAD.pack(0, 1, mail._LAST) + b"x" * 100)
        with socket.socket(fileno=os.dup(outbox.end.fileno())) as end:
            socket.send_fds(end, [bytes(4)], [memory])
        outbox._ring.send(mail._HEAD.pack(0, 1, mail._PARCEL))
        with pytest.raises(LayoutError, match="a large message is not complete"):
            inbox.read(0, 1, deadline=now())
    finally:
        os.close(memory)


def test_parcel_may_be_sealed_against_execution_too():
    """As the kernel does it where ``vm.memfd_noexec`` is set."""
    try:
        memfd = os.memfd_create("parcel", os.MFD_ALLOW_SEALING | 8)  # MFD_NOEXEC_SEAL
    except OSError:
        pytest.skip("the kernel has no MFD_NOEXEC_SEAL")
    os.write(memfd, b"bytes")
    seals = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
    fcntl.fcntl(memfd, fcntl.F_ADD_SEALS, seals)
    parcels = []
    ours, theirs = socket.socketpair()
    with ours, theirs:
        socket.send_fds(ours, [bytes(4)], [memfd])
        os.close(memfd)
        mail._core.receive_parcel(theirs.fileno(), parcels)
    assert bytes(parcels[0]) == b"bytes"
