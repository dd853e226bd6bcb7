"""Round trips between two processes, with pysampler and with peers, behind one interface.

Each is a function ``make(context) -> (ping, pong)``: ``ping()`` goes there and back once, in the
parent; ``pong()`` answers once, in the child.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from pysampler import sync

Call = Callable[[], Any]
Make = Callable[[Any], tuple[Call, Call]]


def _events(make: Callable[[], Any]) -> tuple[Call, Call]:
    there, back = make(), make()

    def ping() -> None:
        there.set()
        back.wait()
        back.clear()

    def pong() -> None:
        there.wait()
        there.clear()
        back.set()

    return ping, pong


def _semaphores(make: Callable[[], Any]) -> tuple[Call, Call]:
    there, back = make(), make()

    def ping() -> None:
        there.release()
        back.acquire()

    def pong() -> None:
        there.acquire()
        back.release()

    return ping, pong


def flag(_: Any) -> tuple[Call, Call]:
    return _events(sync.Flag)


def pipe(context: Any) -> tuple[Call, Call]:
    here, there = context.Pipe()

    def ping() -> None:
        here.send_bytes(b"x")
        here.recv_bytes()

    return ping, lambda: there.send_bytes(there.recv_bytes())


def _queue(make: Callable[[], Any]) -> tuple[Call, Call]:
    there, back = make(), make()

    def ping() -> None:
        there.put(0)
        back.get()

    def pong() -> None:
        there.get()
        back.put(0)

    return ping, pong


def condition(context: Any) -> tuple[Call, Call]:
    gate = context.Condition()
    turn = context.RawValue("i", 0)

    def pass_on(mine: int, next_: int) -> None:
        with gate:
            turn.value = next_
            gate.notify()
            gate.wait_for(lambda: turn.value == mine)

    def pong() -> None:
        with gate:
            gate.wait_for(lambda: turn.value == 1)
            turn.value = 0
            gate.notify()

    return lambda: pass_on(0, 1), pong


def eventfd(_: Any) -> tuple[Call, Call]:
    there, back = os.eventfd(0), os.eventfd(0)

    def ping() -> None:
        os.eventfd_write(there, 1)
        os.eventfd_read(back)

    def pong() -> None:
        os.eventfd_read(there)
        os.eventfd_write(back, 1)

    return ping, pong


def posix_semaphore(_: Any) -> tuple[Call, Call]:
    import posix_ipc

    def make() -> Any:
        one = posix_ipc.Semaphore(None, posix_ipc.O_CREX)
        one.unlink()
        return one

    return _semaphores(make)


def faster_fifo(_: Any) -> tuple[Call, Call]:
    import faster_fifo as peer

    return _queue(lambda: peer.Queue(1 << 16))


# In the order of the table; the first is ours.
STANDARD: dict[str, Make] = {
    "pysampler Flag": flag,
    "multiprocessing Pipe": pipe,
    "multiprocessing Semaphore": lambda context: _semaphores(lambda: context.Semaphore(0)),
    "multiprocessing SimpleQueue": lambda context: _queue(context.SimpleQueue),
    "multiprocessing Queue": lambda context: _queue(context.Queue),
    "multiprocessing Event": lambda context: _events(context.Event),
    "multiprocessing Condition": condition,
    "os.eventfd": eventfd,
}
INSTALLED: dict[str, Make] = {
    "POSIX semaphore (posix_ipc)": posix_semaphore,
    "faster-fifo Queue": faster_fifo,
}
