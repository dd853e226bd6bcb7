"""VectorCore: the state that VectorEnv and the samplers share (pool, frames, pending call).

Who drives the envs asks the core for the next frame, lets the pool command its groups, and reads
the frame when they are back. ``VectorEnv.step`` does that for all envs at once, ``send`` and
``recv`` for some, samplers for many frames in a row.

What is pending is known in two places: the pool (``_core.Pool``) knows which groups are at work,
``_core.Call`` which call of the user they belong to, and what has come back and has not reached the
caller yet.
"""

from __future__ import annotations

import contextlib
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium import logger
from gymnasium.error import AlreadyPendingCallError
from gymnasium.vector.vector_env import AutoresetMode

from pysampler import _core
from pysampler._frames.frames import Frames, Plan, info_bytes
from pysampler._vector import arguments
from pysampler._vector.errors import VectorClosedError, VectorTimeoutError
from pysampler._vector.jobs import AddColumns, AttachFrames
from pysampler._vector.results import Results
from pysampler._workers.processes import SHUTDOWN_TIMEOUT_S
from pysampler.errors import (
    BusyError,
    ClosedError,
    EnvError,
    LostError,
    PysamplerError,
)
from pysampler.sync import Segment, now

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pysampler._frames.infos import Column
    from pysampler._frames.spec import Field, Spec
    from pysampler._vector.lease import Lease
    from pysampler._workers.jobs import Answer, Job
    from pysampler._workers.pool import Pool

__all__ = ["FrameLayout", "VectorCore"]

# Calls whose results survive an interrupt: the matching wait returns them. Results of all other
# calls are dropped.
_WITH_WAIT = "reset", "step", "call", "send"


@dataclass(frozen=True)
class FrameLayout:
    """What the frames hold, and how the envs write to them."""

    frames: int
    autoreset: AutoresetMode
    infos: arguments.Infos
    extras: Sequence[Field] = ()  # fields for what a policy returns
    spare_bytes: int = 0  # in the segment, beside the frames
    reserved: int = 0  # further frames, which have addresses, but no memory before Frames.take()


class VectorCore:
    """Envs in a pool, the frames they write to, and who may use them now.

    A vector env owns one. A sampler gets it with ``core_of(envs)``, calls ``lend``, lays out frames
    of its own, drives the pool, and calls ``take_back``. It never refers to the vector env, so that
    dropping the vector env ends the workers.

    Args:
        pool: The workers.
        spec: The spaces of one env as fields.
        usual: The frames of the vector env itself.
        copy: Whether results are the caller's own.
        restarts: Whether lost workers are replaced.
        resets_itself: Whether the envs end their episodes by themselves.
        closed_message: What calls after ``close()`` raise.

    Attributes:
        guard: Admits one thread of the process that made it.
        groups: The envs of each group.
        num_envs: The number of envs.
        results: Actions in, results out, on the present frames.
        lease: The sampler that uses the envs, or None.
        call: The pending call, and what has come back and is on its way to the caller.
        step_entry: The context of a step, in the guard.
    """

    def __init__(
        self,
        pool: Pool,
        spec: Spec,
        usual: FrameLayout,
        *,
        copy: bool,
        restarts: bool,
        resets_itself: bool,
        closed_message: str,
    ) -> None:
        self.pool = pool
        self.guard = _core.Guard("this vector env", closed_message, VectorClosedError)
        self.spec = spec
        self.groups = pool.members
        self.num_envs = self.groups[-1].stop
        self.all_groups = range(len(self.groups))
        self.everyone = np.arange(self.num_envs)
        self.step_entry = self.guard.entry("call step")
        self.call = _core.Call(pool.native, self.step_entry, self.all_groups)
        self.lease: Lease | None = None
        self.options_version = 0
        self.hurry = False  # an interrupt closes the envs: those in long steps are not waited for
        self._closed_message = closed_message
        self._usual = usual
        self._copy = copy
        self._restarts = restarts
        self._resets_itself = resets_itself
        self.lay_out(usual)

    # -- frames ----------------------------------------------------------------------------------

    def lay_out(self, layout: FrameLayout) -> tuple[Frames, Segment]:
        """Let the envs work on frames in a new segment, and return both."""
        final = layout.autoreset == AutoresetMode.SAME_STEP
        columns: list[Column] = []
        count = layout.frames + layout.reserved
        room = 0 if layout.infos == "none" else info_bytes(self.num_envs, count)
        plan = Plan(self.spec, self.num_envs, count, final, tuple(layout.extras), room)
        mode = "DISABLED" if self._resets_itself else layout.autoreset.name
        self.call.use_frames(None)  # until all of this is done
        if layout.reserved > 0:
            segment = Segment(max(1, layout.spare_bytes), plan.size + plan.infos)
            frames = Frames(plan, segment, segment.size - plan.size - plan.infos)
            frames.take(range(layout.frames))
        else:
            segment = Segment(plan.size + layout.spare_bytes, plan.infos)
            frames = Frames(plan, segment)
        attach = AttachFrames(plan, frames.offset, mode, layout.infos.upper(), columns)
        self.pool.lay_out(segment, attach)
        results = Results(
            frames,
            self.groups,
            columns,
            self.pool.error_of,
            copy=self._copy,
            final=final,
            restarts=self._restarts,
            workers=len(self.pool.assignments) > 0,
        )
        results.show_versions = self.options_version > 0
        self.results = results
        self.call.use_frames(results.access)
        return frames, segment

    def arm_fast_path(self) -> None:
        """Let the next step be one call of C++, if this one was usual and no other call comes."""
        if self.lease is None and self.pool.can_fast_step and self.results.plain:
            self.call.arm_fast_path()

    def announce_columns(self) -> None:
        """Tell the workers of columns of infos that they do not know yet."""
        if columns := self.results.new_columns():
            self.pool.note(lambda _: AddColumns(columns))
            self.results.announced(columns)

    def next_frame(self) -> int:
        """Return the frame that all envs use next."""
        self.announce_columns()
        frame: int = self.results.access.next_frame()
        return frame

    # -- who may use the envs --------------------------------------------------------------------

    @property
    def closed(self) -> bool:
        """Whether the workers have ended, or are being ended."""
        return self.pool.closed

    def closed_error(self) -> VectorClosedError:
        """Return the exception of calls after ``close()``."""
        return VectorClosedError(self._closed_message)

    def enter(self, what: str) -> _core.Entry:
        """Return a context for a call of one thread, in the process that made the envs.

        Raises:
            ClosedError: The envs are closed, or this process is a fork of the one that made them.
            BusyError: Another thread is at work.
        """
        if self.pool.closed:
            raise self.closed_error()
        return self.guard.entry(f"call {what}")

    @property
    def at_work(self) -> bool:
        """Whether anything is in flight, or has come back and is on its way to the caller."""
        return self.call.kept is not None or self.pool.pending > 0

    @property
    def pending(self) -> str | None:
        """The last call, if it is pending."""
        return self.call.name if self.at_work else None

    def expect_idle(self, what: str) -> None:
        """Raise AlreadyPendingCallError unless nothing is pending and no sampler has the envs."""
        call = self.call
        if call.name is None and self.lease is None and call.laid_out:
            return
        lease = self.lease
        if lease is not None and not lease.owner_calls:
            if lease.over:
                self._reclaim(lease)
                return
            raise AlreadyPendingCallError(
                f"cannot call {what}: {lease.name} have the envs until they are closed", lease.name
            )
        if call.name not in (None, *_WITH_WAIT) and self.at_work:
            self.drop_work("a call", stopped=True)
        pending = self.pending
        if not call.laid_out:
            self.drop_work("a call", stopped=True)
            self.lay_out(self._usual)
            return
        if pending is not None:
            raise AlreadyPendingCallError(
                f"Calling `{what}` while waiting for a pending call to `{pending}` to complete",
                pending,
            )

    # -- leases ----------------------------------------------------------------------------------

    def lend(self, lease: Lease) -> None:
        """Let a sampler use the envs exclusively."""
        with self.enter(lease.name):
            self.expect_idle(lease.name)
            self.lease = lease
            lease.over = False

    def take_back(self, lease: Lease, *, stopped: bool) -> None:
        """End a lease that is over: drop what is under way, and lay out the usual frames.

        Args:
            lease: The lease. If another one has replaced it, nothing is done.
            stopped: Whether only the pool is at work. Otherwise the workers are ended.
        """
        if self.lease is lease and not self.closed:
            # If another thread or the call that a signal handler interrupted is inside, that one
            # finds that the lease is over.
            with contextlib.suppress(BusyError, ClosedError), self.enter("close"):
                self.drop_work(lease.work, stopped=stopped)
                self.expect_idle("close")

    def _reclaim(self, lease: Lease) -> None:
        """Take the envs back from a sampler whose lease is over. May be repeated."""
        self.drop_work(lease.work, stopped=lease.stop())
        if self.closed:
            raise self.closed_error()
        if not self.call.laid_out or lease.laid_out:
            self.lay_out(self._usual)
        self.lease = None

    def drop_work(self, what: str, *, stopped: bool) -> None:
        """Wait for the end of what is under way and unwanted; end the workers if that fails.

        Args:
            what: What is under way, for the warning.
            stopped: Whether only the pool is at work. Otherwise the workers are ended.
        """
        pool = self.pool
        if pool.closed:
            return
        pool.drop_standing()
        pool.cancel_inline()
        if not stopped or not self._drained():
            left = pool.pending - pool.ready
            pool.kill()
            warnings.warn(
                f"the vector env was closed with {what} under way: {left} envs did not return",
                stacklevel=4,
            )
        self.call.forget()

    def _drained(self) -> bool:
        """Wait for all that is in flight, and return whether it came back in time."""
        pool = self.pool
        began = now()
        while not pool.closed and pool.pending:
            try:
                if not self._back_within(SHUTDOWN_TIMEOUT_S, began):
                    return False
                pool.take_all()
            except (EnvError, LostError):
                continue
            except (PysamplerError, MemoryError):  # an env is late, or its answer cannot be read
                return False
        return True

    def _back_within(self, seconds: float, began: int) -> bool:
        """Wait for what is in flight; return whether it came back in ``seconds`` since then.

        Seconds in which this process was suspended, and the workers perhaps too, do not count. A
        worker that is stopped alone is not waited for.
        """
        pool, stopped = self.pool, False
        while True:
            left = seconds - (now() - began - pool.paused_ns(began)) / 1e9
            if pool.wait(max(0.0, min(left, 1.0))) is not None:
                return True
            # Twice: after a suspension of all, workers may go on later than this process.
            before, stopped = stopped, pool.stopped()
            if left <= 0 or (before and stopped):
                return False
            pool.look_for_late()

    # -- commands and results --------------------------------------------------------------------

    def group_frames(self) -> list[tuple[int, int]]:
        """Return each group with the frame that all envs use."""
        return [(group, self.results.frame) for group in self.all_groups]

    def request(self, jobs: Mapping[int, Job], name: str) -> None:
        """Give groups jobs, on the frame that all envs use.

        Args:
            jobs: By group.
            name: The name of the call, for errors. See ``_WITH_WAIT``.
        """
        self.call.begin(name)
        self.pool.request(self.group_frames(), jobs)

    def wait_and_keep(
        self, what: str, timeout: float | None, read: Callable[[Sequence[Answer]], Any]
    ) -> None:
        """Wait until all that is pending has come back, and keep what ``read`` makes of it.

        Raises:
            WaitTimeoutError: It took longer than ``timeout`` seconds. It stays pending.
        """
        if self.call.kept is not None:
            return
        answers = self.pool.wait(arguments.seconds(timeout, what))
        if answers is None:
            raise VectorTimeoutError(
                f"The call to `{what}` has timed out after {timeout} second(s). What is pending "
                "stays so."
            )
        try:
            self.call.keep(self.all_groups, read(answers), None)
        except EnvError as error:
            self.call.keep(self.all_groups, None, error)

    def hand_over(self) -> Any:
        """Return the kept results, or raise the kept error; then nothing of it is pending.

        The caller sets ``call.returned`` right before it returns, in lines where Python runs no
        signal handlers: an interrupt before that loses nothing.
        """
        assert self.call.kept is not None
        groups, results, error = self.call.kept
        if groups is self.all_groups:
            self.pool.take_all()
        else:
            self.pool.take(groups)
        if error is None:
            return results
        self.call.returned = True
        raise error

    @property
    def envs_kept(self) -> int:
        """The number of envs that were taken from the pool and not yet returned."""
        groups = () if self.call.kept is None else self.call.kept[0]
        return sum(len(self.groups[g]) for g in groups if not self.pool.is_pending(g))

    # -- ending ----------------------------------------------------------------------------------

    def end(self, timeout: float | None, *, terminate: bool) -> None:
        """End the workers, after what is pending or at once.

        Args:
            timeout: Seconds to wait for what is pending; None is ``SHUTDOWN_TIMEOUT_S``.
            terminate: Whether to end them at once.
        """
        if (lease := self.lease) is not None:
            lease.over = True
            if not terminate:
                self.drop_work(lease.work, stopped=lease.stop())
        elif (pending := self.pending) is not None:
            if not self.hurry:
                logger.warn(
                    f"Calling `close` while waiting for a pending call to `{pending}` to complete."
                )
            self.pool.cancel_inline()
            terminate = terminate or not self._settled(
                SHUTDOWN_TIMEOUT_S if timeout is None else timeout
            )
        if terminate:
            self.pool.kill()
        else:
            self.pool.close()

    def _settled(self, timeout: float) -> bool:
        """Wait for what is pending, and return whether it came back in time."""
        try:
            if not self._back_within(timeout, now()):
                return False
            self.pool.take_all()
        except (EnvError, LostError, BusyError, ClosedError):
            pass
        except (PysamplerError, MemoryError):  # an env is late, or its answer cannot be read
            return False
        return True

    def release(self) -> None:
        """Drop our references to the frames; their memory is freed when the last view goes."""
        self.pool.kill()  # continues where a call was interrupted
        self.results = None  # type: ignore[assignment]
        self.call.use_frames(None)
        self.call.forget()
