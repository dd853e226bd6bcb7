"""VectorCore: the state that VectorEnv and the samplers share (pool, frames, pending call).

A caller asks the core for the next frame, has the pool command its groups, and reads the frame when
they are back. ``VectorEnv.step`` does this for all envs at once, ``send`` and ``recv`` for some,
and samplers for many frames in a row.

Two objects track pending work. ``_core.Pool`` knows which groups are at work. ``_core.Call`` knows
the user's call that they belong to, and keeps its results until they have reached the caller.
"""

from __future__ import annotations

import contextlib
import functools
import warnings
from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium import logger
from gymnasium.error import AlreadyPendingCallError
from gymnasium.vector.vector_env import AutoresetMode

from pysampler import _core
from pysampler._common.closing import Released
from pysampler._frames.frames import Frames, Plan, info_bytes
from pysampler._vector import arguments
from pysampler._vector.errors import VectorClosedError, VectorTimeoutError
from pysampler._vector.jobs import AddColumns, AttachFrames
from pysampler._vector.results import Batcher, Results
from pysampler._workers.processes import SHUTDOWN_TIMEOUT_S
from pysampler.errors import BusyError, ClosedError, EnvError, LostError, PysamplerError
from pysampler.sync import Segment, now

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pysampler._frames.infos import Column
    from pysampler._frames.spec import Field, Spec
    from pysampler._vector.lease import Lease
    from pysampler._vector.tuner import BatchTuner
    from pysampler._workers.jobs import Answer, Job
    from pysampler._workers.pool import Pool

__all__ = ["FrameLayout", "VectorCore"]

# Calls whose results survive an interrupt, and the methods that return them then. Results of all
# other calls are dropped.
_WAIT_OF = {"reset": "reset_wait", "step": "step_wait", "call": "call_wait", "send": "recv"}


@dataclass(frozen=True)
class FrameLayout:
    """The layout of the frames, and how envs write to them."""

    frames: int
    autoreset: AutoresetMode
    infos: arguments.Infos
    extras: Sequence[Field] = ()  # fields for outputs of a policy
    spare_bytes: int = 0  # further bytes in the segment
    reserved: int = 0  # further frames: reserved, allocated by Frames.take()
    resets_late: bool = False  # whether nested vector envs may reset in the next step, see BEGUN
    chunk: int = 0  # further frames, for chunks of up to this many steps
    frozen: bool = False  # whether the envs' wrappers stay as they are


class VectorCore:
    """Envs in a pool, the frames they write to, and the sampler that may use them.

    Each vector env owns one. A sampler gets it with ``core_of(envs)``, calls ``lend``, lays out its
    frames, drives the pool, and calls ``take_back``. The core never refers to the vector env, so
    dropping the vector env ends the workers.

    Args:
        pool: The workers.
        spec: The spaces of one env as fields.
        usual: The layout of the frames while no sampler uses the vector env.
        copy: Whether returned observations are copies.
        restarts: Whether lost workers are replaced.
        closed_message: The message of the error that calls after ``close()`` raise.
        nested: The names and autoreset modes of vector envs among the envs; None: any mode.

    Attributes:
        guard: Admits one thread at a time, in the process that made it.
        groups: The envs of each group.
        num_envs: The number of envs.
        results: Writes actions to the current frames and reads results from them.
        lease: The sampler that uses the envs, or None.
        call: The pending call, and which results are on their way to the caller.
        awaited: Whether the user started the pending call with a method that does not wait, such as
            ``step_async``. If not, an exception has interrupted it.
        step_entry: The guard's context for a step.
        tuner: The tuner that chose the newest partial batch; None if there was none.
        batch_sizes: By size, the number of partial batches.
    """

    def __init__(
        self,
        pool: Pool,
        spec: Spec,
        usual: FrameLayout,
        *,
        copy: bool,
        restarts: bool,
        closed_message: str,
        nested: Sequence[tuple[str, AutoresetMode | None]] = (),
    ) -> None:
        self.pool = pool
        self._nested = nested
        self.guard = _core.Guard("this vector env", closed_message, VectorClosedError)
        self.spec = spec
        self.groups = pool.group_envs
        self.num_envs = self.groups[-1].stop
        self.all_groups = range(len(self.groups))
        self.everyone = np.arange(self.num_envs)
        self.step_entry = self.guard.entry("call step")
        self.call = _core.Call(pool.native, self.step_entry)
        self.awaited = False
        self.lease: Lease | None = None
        self.tuner: BatchTuner | None = None
        self.batch_sizes: Counter[int] = Counter()
        self.options_version = 0
        self.batcher = Batcher()
        self.hurry = False  # closing after an interrupt: do not wait for long steps
        self._closed_message = closed_message
        self._usual = usual
        self._copy = copy
        self._restarts = restarts
        self._carried: Results | None = None  # has the last observations, for the next layout
        self.lay_out(usual)

    # -- frames ----------------------------------------------------------------------------------

    def lay_out(self, layout: FrameLayout) -> tuple[Frames, Segment]:
        """Move the envs to frames in a new segment; return the frames and the segment."""
        final = layout.autoreset == AutoresetMode.SAME_STEP
        self._expect_mode(layout)
        columns: list[Column] = []
        count = layout.frames + layout.reserved + layout.chunk
        room = 0 if layout.infos == "none" else info_bytes(self.num_envs, count)
        extras = tuple(layout.extras)
        plan = Plan(self.spec, self.num_envs, count, final, extras, room, layout.chunk)
        self.call.use_frames(None)  # if an exception comes in between, the next call starts over
        if layout.reserved > 0:
            segment = Segment(max(1, layout.spare_bytes), plan.size + plan.infos)
            frames = Frames(plan, segment, segment.size - plan.size - plan.infos)
            frames.take(range(layout.frames))
        else:
            segment = Segment(plan.size + layout.spare_bytes, plan.infos)
            frames = Frames(plan, segment)
        infos = layout.infos.upper()
        mode = layout.autoreset.name
        attach = AttachFrames(plan, frames.offset, mode, infos, columns, layout.frozen)
        self.pool.lay_out(segment, attach)
        results = Results(
            frames,
            self.groups,
            columns,
            self.pool.error_of,
            self.batcher,
            copy=self._copy,
            final=final,
            restarts=self._restarts,
            workers=len(self.pool.assignments) > 0,
        )
        results.show_versions = self.options_version > 0
        if self._carried is not None:
            results.take_last(self._carried)
        self.results, self._carried = results, None
        self.call.use_frames(results.access)
        return frames, segment

    @property
    def why_no_chunks(self) -> str | None:
        """Why the envs cannot make chunks of steps; None if they can."""
        return f"{self._nested[0][0]} steps all of its envs or none" if self._nested else None

    def lay_out_chunks(self, steps: int) -> None:
        """Lay out frames with room for a chunk of this many steps; nothing may be pending."""
        self._carried = self.results
        layout = replace(self._usual, chunk=steps)
        try:
            self.lay_out(layout)
        except MemoryError as error:
            raise MemoryError(f"cannot send a chunk of {steps} steps: {error}") from None
        self._usual = layout  # only now: if it fails, the next call lays out what there was

    @property
    def own_autoreset(self) -> AutoresetMode | None:
        """The autoreset mode of vector envs among the envs; None if there are none."""
        return next((mode for _, mode in self._nested), None)

    def _expect_mode(self, layout: FrameLayout) -> None:
        """Raise ValueError if a vector env among the envs cannot follow an autoreset mode.

        With DISABLED it leaves resets to its caller, who can then do them in the same step.
        """
        mode = layout.autoreset
        follow = {mode}
        if mode is AutoresetMode.SAME_STEP:
            follow.add(AutoresetMode.DISABLED)
            if layout.resets_late:
                follow.add(AutoresetMode.NEXT_STEP)
        for name, own in self._nested:
            if own is not None and own not in follow:
                either = " or DISABLED" * (mode is AutoresetMode.SAME_STEP)
                raise ValueError(
                    f"cannot use {name} with the autoreset mode {mode.name}: its own is "
                    f"{own.name}, expected {mode.name}{either}"
                )

    def arm_fast_path(self, chunk: int = 0) -> None:
        """Let the next step be one call of C++, if this step was usual and no other call comes.

        Args:
            chunk: The number of steps if this was a chunk, for the next one.
        """
        if self.lease is None and self.pool.can_fast_step and self.results.usual:
            self.call.arm_fast_path(chunk)

    def announce_columns(self) -> None:
        """Before a command: tell the workers about columns of infos that are new to them."""
        self.results.lost_finals.clear()
        if columns := self.results.new_columns():
            self.pool.note(lambda _: AddColumns(columns))
            self.results.announced(columns)

    def next_frame(self) -> int:
        """Return the frame that all envs use next."""
        self.announce_columns()
        return self.results.access.next_frame()

    # -- access to the envs ----------------------------------------------------------------------

    @property
    def closed(self) -> bool:
        """Whether the workers have ended or are ending."""
        return self.pool.closed

    def closed_error(self) -> VectorClosedError:
        """Return the exception of calls after ``close()``."""
        return VectorClosedError(self._closed_message)

    def enter(self, what: str) -> _core.Entry:
        """Return the guard's context for a call.

        Raises:
            ClosedError: The envs are closed, or this process is a fork of the one that made them.
            BusyError: Another thread is in a call.
        """
        if self.pool.closed:
            raise self.closed_error()
        return self.guard.entry(f"call {what}")

    @property
    def at_work(self) -> bool:
        """Whether anything is in flight, or its results have not reached the caller yet."""
        return self.pool.pending > 0

    @property
    def pending(self) -> str | None:
        """The name of the pending call, or None."""
        return self.call.name if self.at_work else None

    def expect_idle(self, what: str, *, resets_all: bool = False) -> None:
        """Raise AlreadyPendingCallError if a call is pending or a sampler uses the envs.

        First drop an interrupted call whose results no wait returns, and reclaim an ended lease.

        Args:
            what: The name of the caller's call, for errors.
            resets_all: Whether it resets all envs: then drop any interrupted call.
        """
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
        if self.at_work and call.name is not None:
            if call.name not in _WAIT_OF:
                self.drop_work("a call", stopped=True)
            elif resets_all and not self.awaited:
                self._finish_interrupted()
        pending = self.pending
        if not call.laid_out:
            self.drop_work("a call", stopped=True)
            self.lay_out(self._usual)
            return
        if pending is not None:
            drops = "" if self.awaited else ", and `reset` of all envs drops them"
            raise AlreadyPendingCallError(
                f"Calling `{what}` while waiting for a pending call to `{pending}` to complete: "
                f"`{_WAIT_OF[pending]}` returns its results{drops}",
                pending,
            )

    def _finish_interrupted(self) -> None:
        """Wait for an interrupted call, however long it takes, and drop its results."""
        if self.call.name != "reset":  # an env that hung would hang again
            self.pool.cancel_inline()
        self.pool.wait()
        self.pool.take_all()
        self.call.forget()

    # -- leases ----------------------------------------------------------------------------------

    def lend(self, lease: Lease) -> None:
        """Let a sampler use the envs exclusively."""
        with self.enter(lease.name):
            self.expect_idle(lease.name)
            self.lease = lease
            lease.over = False
            self.tuner = None

    def take_back(self, lease: Lease, *, stopped: bool) -> None:
        """End a lease that is over: drop its pending work and lay out the usual frames.

        Args:
            lease: The lease. If another one has replaced it, this does nothing.
            stopped: Whether only the pool is at work. Otherwise the workers are ended.
        """
        if self.lease is lease and not self.closed:
            # If another thread is in a call, or this signal handler interrupted one, that
            # call finds that the lease is over.
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
        """Wait for pending work and drop its results; end the workers if it does not finish.

        Args:
            what: The name of the work, for the warning.
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
                f"pysampler: the vector env was closed with {what} under way: {left} envs did not "
                "return",
                stacklevel=4,
            )
        self.call.forget()

    def _drained(self) -> bool:
        """Wait for everything in flight, and return whether it came back in time."""
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
        """Wait for everything in flight; return whether it came back within ``seconds``.

        Time during which this process was suspended does not count, since the workers may have been
        suspended too. If only a worker is stopped, this does not wait for it.

        Args:
            seconds: How long to wait, from ``began`` on.
            began: In ns of ``now()``.
        """
        pool, stopped = self.pool, False
        while True:
            left = seconds - (now() - began - pool.paused_ns(began)) / 1e9
            if pool.wait(max(0.0, min(left, 1.0))) is not None:
                return True
            # Look twice: after a suspension of all, workers may resume later than this process.
            before, stopped = stopped, pool.stopped()
            if left <= 0 or (before and stopped):
                return False
            pool.look_for_late()

    # -- commands and results --------------------------------------------------------------------

    def group_frames(self) -> list[tuple[int, int]]:
        """Return each group with the frame that all envs use."""
        return [(group, self.results.frame) for group in self.all_groups]

    def begin(self, name: str, *, awaited: bool) -> None:
        """Note that a call is pending, before its first command is sent.

        Args:
            name: The name of the call, for errors. See ``_WAIT_OF``.
            awaited: See ``VectorCore``.
        """
        self.awaited = awaited
        self.call.begin(name)

    def request(self, jobs: Mapping[int, Job], name: str, *, awaited: bool = False) -> None:
        """Send jobs to groups, to run on the frame that all envs use.

        Args:
            jobs: The job of each group.
            name: See ``begin``.
            awaited: See ``begin``.
        """
        self.begin(name, awaited=awaited)
        self.pool.request(self.group_frames(), jobs)

    def finish(
        self,
        what: str,
        timeout: float | None,
        read: Callable[[Sequence[Answer]], Any],
        *,
        groups: Sequence[int] | None = None,
        seen: bool = False,
    ) -> Any:
        """Wait for all pending groups, and return what ``read`` makes of their answers.

        The caller sets ``call.returned`` right before it returns, in lines where Python runs no
        signal handlers. If an exception comes before that, the next wait reads the same results.

        Args:
            what: The name of the wait, for errors.
            timeout: In seconds; None: no limit.
            read: Returns the results, or raises an EnvError.
            groups: The groups that are read, each in its own frame; None: all, in one frame.
            seen: Whether the caller sees observations.

        Raises:
            WaitTimeoutError: It took longer. The call stays pending.
        """
        answers = self.pool.wait(arguments.seconds(timeout, what))
        if answers is None:
            raise VectorTimeoutError(
                f"The call to `{what}` has timed out after {timeout} second(s). The call stays "
                "pending."
            )
        try:
            results = read(answers)
        except EnvError as error:
            self.call.hand_over(groups, seen and error.results is not None)
            self.call.returned = True
            raise
        self.call.hand_over(groups, seen)
        return results

    # -- ending ----------------------------------------------------------------------------------

    def end(self, timeout: float | None, *, terminate: bool) -> None:
        """End the workers.

        Args:
            timeout: Seconds to wait for pending calls; None: ``SHUTDOWN_TIMEOUT_S``.
            terminate: Whether to end the workers without waiting.
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
        """Wait for the pending call, and return whether it came back in time."""
        try:
            if not self._back_within(timeout, now()):
                return False
            self.pool.take_all()
        except (EnvError, LostError, BusyError, ClosedError):
            pass
        except (PysamplerError, MemoryError):  # an env is late, or its answer cannot be read
            return False
        return True

    def release(self, *, at_once: bool) -> None:
        """Drop our references to the frames; their memory is freed when the last view goes.

        Args:
            at_once: Whether to take the arrays from objects that exceptions may still refer to:
                only if no call goes on after this one.
        """
        self.pool.kill()  # continues where a call was interrupted
        results: Any = self.results
        self.results = Released(functools.partial(VectorClosedError, self._closed_message))  # type: ignore[assignment]
        if at_once and isinstance(results, Results):
            results.release()
        self.call.use_frames(None)
        self.call.forget()
