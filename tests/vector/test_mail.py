"""The side channel: what was received is neither lost nor counted twice, whenever Ctrl-C comes."""

import itertools
import sys

import pytest

from pysampler import mail
from pysampler.errors import WaitTimeoutError
from pysampler.sync import ByteRing, now


class InterruptedError(Exception):  # noqa: A001 - stands for KeyboardInterrupt, which pytest takes
    pass


def interrupted(function, at):
    """Call it and raise before its at-th line (of mail.py); whether that was within it."""
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


@pytest.mark.parametrize("size", [0, 10, mail._PART, 3 * mail._PART + 7])
def test_a_message_survives_an_interruption_anywhere(size):
    messages = {0: bytes(size), 1: b"x" * size, 2: b"third"}
    for at in itertools.count(1):
        ring = ByteRing(1 << 17)
        outbox, inbox = mail.Outbox(ring), mail.Inbox(ring, range(3))
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


def test_a_message_that_answers_another_command_is_dropped():
    ring = ByteRing(1 << 17)
    outbox, inbox = mail.Outbox(ring), mail.Inbox(ring, range(2))
    outbox.post(0, 1, b"late" * mail._PART)
    outbox.post(1, 1, b"of another group")
    outbox.post(0, 2, b"wanted")
    assert inbox.read(0, 2) == b"wanted"
    assert inbox.read(1, 1) == b"of another group"
    with pytest.raises(WaitTimeoutError):
        inbox.read(0, 3, deadline=now())
