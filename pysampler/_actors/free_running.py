"""The base class of actors and watchers, whose workers act without further commands."""

from __future__ import annotations

import functools
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from pysampler import _core
from pysampler._actors.central import CentralActor, Requests
from pysampler._actors.free_running_policy import FreeRunningJob
from pysampler._actors.settings import Settings, setting_arrays
from pysampler._common.closing import comes_true
from pysampler._policies.calling import PolicyCaller
from pysampler._policies.copying import copied, for_first_call, source_of
from pysampler._policies.frame_policy import FramePolicy
from pysampler._policies.normalize import normalization_of
from pysampler._policies.progress import WorkerProgress
from pysampler._policies.sampler import Sampler, visible_spec
from pysampler._policies.seeds import entropy_from, seed_policy
from pysampler._policies.shared_statistics import SharedStatistics
from pysampler._policies.signatures import PolicyElsewhere
from pysampler._policies.weights import (
    SharedWeights,
    chosen_weights,
    has_weights,
    weights_of,
    without_weights,
)
from pysampler._policies.worker_policy import PolicySetup
from pysampler._vector.results import first
from pysampler._workers.jobs import Failure
from pysampler._workers.processes import SHUTDOWN_TIMEOUT_S
from pysampler.errors import BusyError, ClosedError, PysamplerError
from pysampler.sync import Board, now

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from pysampler._policies.calling import PolicyOutputs
    from pysampler._policies.normalize import Normalizer
    from pysampler._policies.sampler import PreparedFrames
    from pysampler._policies.worker_policy import TakePolicy
    from pysampler._vector.vector_env import VectorEnv
    from pysampler.errors import WorkerLostError
    from pysampler.sync import SharedRing

__all__ = ["FreeRunningSampler"]


class FreeRunningSampler(Sampler):
    """Base class for samplers whose workers act until they are stopped, with weights from a board.

    Args:
        envs: The vector env.
        policy: The policy.
        settings: Keyword arguments of the policy: a number, or one for each env.
        seed: Seed of the first reset and of the policy's random numbers.
        owned: Whether the vector env is closed with the sampler.
        normalize: A normalizer.
        leave_out: Names of the parts of observations to hide from the policy.

    Attributes:
        policy: The policy.
        settings: The settings. You can change them while the workers act.
        normalizer: The normalizer.
    """

    _note: ClassVar[type[TakePolicy]]  # the note that sends the policy to the workers
    _frame_count = 2
    _warm_up = 0  # maximum number of random steps per env before the first record
    _device: Any = None  # the main process acts on it; None: the workers act
    _central: CentralActor | None = None
    _counts = True  # whether workers may update the normalizer's statistics
    _raises_loss_last = False  # whether the caller raises ``_loss``, rather than _check_workers

    def __init__(
        self,
        envs: VectorEnv,
        policy: Any,
        settings: Mapping[str, npt.ArrayLike] | None,
        seed: int | list[int | None] | None,
        *,
        owned: bool,
        normalize: Normalizer | None = None,
        leave_out: Sequence[str],
    ) -> None:
        count = envs.num_envs
        self.settings = Settings(setting_arrays(self._purpose, settings, count), count)
        self.leave_out = leave_out
        self._spec = visible_spec(self._purpose, envs, leave_out)
        # Raises if the policy does not fit.
        PolicyCaller(policy, self._spec, self.settings, device=self._device)
        self.normalizer = normalize
        self._normalization = normalization_of(
            normalize, self._spec, self._purpose, counts=self._counts
        )
        self._statistics: SharedStatistics | None = None
        self.policy = policy
        self._seed = seed
        self._has_begun = self._stop_requested = False
        self._begin_lock = threading.RLock()
        self._publish_guard = _core.Guard(
            f"the weights of {self._work_name}", "cannot publish weights: closed", ClosedError
        )
        self._check_guard = _core.Guard(
            f"the workers of {self._work_name}", "cannot check workers: closed", ClosedError
        )
        self._board: Board | SharedWeights | None = None
        self._has_workers = envs.num_workers > 0
        self._lease_envs(envs, owned=owned)
        if normalize is not None and self._counts:
            normalize.claim(self)

    # -- beginning -------------------------------------------------------------------------------

    def begin(self) -> None:
        """Start the workers, if they have not been started yet."""
        self._expect_open()
        with self._begin_lock:
            if self._has_begun:
                return
            self._expect_open()
            try:
                self._begin()
            except BaseException:
                self._drop()  # the current work, perhaps a reset
                raise
            self._has_begun = True

    def _begin(self) -> None:
        if self._core.at_work:  # an earlier call was interrupted
            self._drop()
        num_envs, groups = self.envs.num_envs, len(self._core.groups)
        workers = np.array(self._core.pool.worker_of)
        # The first group of each worker: it gets the worker's job.
        self._first_groups = [
            int(np.argmax(workers == worker)) for worker in range(workers.max() + 1)
        ]
        normalization = self._normalization
        if normalization is not None and not self._counts:
            normalization = normalization.copy(update=False)
        in_processes = self._core.pool.in_processes
        caller = PolicyCaller(
            for_first_call(self.policy, in_processes=in_processes),
            *(self._spec, self.settings),
            device=self._device,
        )
        weights = weights_of(self.policy) if has_weights(self.policy) else None

        def spare_bytes(outputs: PolicyOutputs) -> int:
            numbers = (len(self.settings) + 1) * (8 * num_envs + 256)
            workers = len(self._first_groups)
            seen = 0 if normalization is None else SharedStatistics.size_of(normalization, workers)
            shared = self._shared_bytes(weights) + numbers + seen
            requests = 0 if self._device is None else Requests.size_of(groups)
            return shared + self._ring_bytes(outputs) + requests

        prepared = self._prepare_frames(
            *(caller, self._seed, self._frame_count, spare_bytes),
            normalization=normalization,
            warm_up_steps=self._warm_up,
        )
        segment = prepared.segment
        self._gauges = self._core.pool.gauges
        self._progress = WorkerProgress(segment, groups)
        self._lease.stop = functools.partial(_end, self._progress)
        # Workers that do not act still need the initial states of episodes.
        acts = self._device is None or hasattr(self.policy, "initial_state")
        if weights:
            by_reference = self._device is None and not in_processes
            self._board = SharedWeights(weights) if by_reference else Board(weights, segment)
        places = {}
        shared = {}
        for name, value in self.settings.items():
            offset, shared[name] = segment.array((num_envs,), value.dtype, None)
            places[name] = offset, value.dtype
        self.settings.move_to(shared)
        if self._normalization is not None:
            first_envs = [self._core.groups[group].start for group in self._first_groups]
            update = self._counts and self._normalization.statistics.update
            self._statistics = SharedStatistics(
                self._normalization, first_envs, segment, update=update
            )
        if self._board is not None and weights is not None:
            self._gauges.newest = self._board.publish(weights)
        sent = self.policy if acts else PolicyElsewhere(self.policy)
        setup = PolicySetup(
            source_of(sent, in_processes=in_processes),
            *(prepared.policy.outputs, self._progress.place, entropy_from(self._seed)),
            board=self._board.place() if acts and self._board is not None else None,
            statistics=None if self._statistics is None else self._statistics.place(),
            settings=places,
        )
        self._note.send(self._core.pool, setup)
        self._requests = None if self._device is None else Requests(groups, segment)
        self._ring, self._job_setup = self._make_ring(prepared)
        self._core.pool.watch_also(self._ring.producer())
        if self._stop_requested:
            self._progress.stop()
        if self._requests is not None:
            own = copied(self.policy)
            caller = PolicyCaller(own, self._spec, shared, device=self._device)
            seeds = np.random.SeedSequence(setup.entropy, spawn_key=(0, 0))
            seed_policy(own, seeds, own_process=False)
            caller.seed_generators(setup.entropy, num_envs)
            self._central = CentralActor(
                FramePolicy(caller, prepared.policy.outputs, prepared.frames),
                *(self._core.groups, self._requests, self._progress, self._board),
                self._core.batch_sizes,
            )
        if self._has_workers:
            self._start_workers()

    def _ring_bytes(self, outputs: PolicyOutputs) -> int:
        """Return the number of bytes that ``_make_ring`` needs, given the policy's outputs."""
        raise NotImplementedError

    def _make_ring(self, prepared: PreparedFrames) -> tuple[SharedRing, Any]:
        """Return the ring that the workers push to, and the setup of their jobs."""
        raise NotImplementedError

    def _start_workers(self) -> None:
        self._expect_open()  # a signal handler may have closed the sampler meanwhile
        jobs = {group: FreeRunningJob(group, self._job_setup) for group in self._first_groups}
        self._lease.free_running = True
        with self._core.enter(self._name):
            self._core.pool.request([(group, 0) for group in jobs], jobs)

    # -- while the workers act -------------------------------------------------------------------

    def publish(self, weights: Any = None) -> int:
        """Publish new weights, which each worker loads as a whole, and merged statistics.

        Args:
            weights: A module or another object with ``state_dict()``, or a dict of arrays or
                tensors; by default the current weights of the policy.

        Returns:
            The version of the weights.

        Raises:
            TypeError: The policy has no weights, or ``weights`` has another type.
        """
        self.begin()
        if self._board is None and (self._statistics is None or weights is not None):
            raise without_weights(self.policy)
        arrays = None if self._board is None else chosen_weights(weights, self.policy)
        with self._publish_guard.entry("publish weights"):
            if self._statistics is not None:  # first: workers with new weights need them
                self._statistics.merge()
                self._statistics.publish()
            if self._board is None or arrays is None:
                return 0
            version = self._gauges.newest = self._board.publish(arrays)
            return version

    def _merge_statistics(self) -> None:
        # Another sampler may have claimed the normalizer once the envs were closed.
        normalizer = self.normalizer
        if self._statistics and normalizer and normalizer.is_claimed_by(self):
            self._statistics.merge()

    @property
    def version(self) -> int:
        """The version of the newest weights, from 1 on; 0 if the policy has no weights."""
        return 0 if self._board is None else self._board.version

    def stop(self) -> None:
        """Ask the workers to stop. Any thread or signal handler may call it."""
        if not self._in_own_process:  # a fork inherits its parent's handlers, but not its workers
            return
        self._stop_requested = True  # if the workers have not begun yet
        if hasattr(self, "_progress"):
            self._progress.stop()

    @property
    def stopped(self) -> bool:
        """Whether the workers have been asked to stop."""
        # A loss stops them, too, but a loop until they are stopped must not end before its error.
        if not self._has_begun or (self._loss is not None and not self._closed):
            return self._stop_requested
        return self._progress.stopped

    def _check_workers(self) -> bool:
        """Return whether all workers have ended; raise their errors; replace lost workers.

        Only one thread checks at a time; any other returns False meanwhile.
        """
        if self.closed or self._is_lost():  # closed by another thread
            return True
        if self._have_all_ended():
            return True
        pool = self._core.pool
        try:
            with self._check_guard.entry("check workers"):
                if self.closed:
                    return True
                groups, answers = pool.wait_some(1, self.envs.num_envs, now())
                failures = []
                for group, report in answers:
                    if isinstance(report, Failure):
                        failures.append((group, report))
                    else:
                        failures += [
                            (group, content)
                            for *_, content in report.overflow
                            if isinstance(content, Failure)
                        ]
                if failures:  # not taken, so that the next check raises it after an interrupt
                    raise pool.error_of(*first(failures))
                pool.take(groups)
                pool.look_for_late()
        except BusyError:
            return False
        except Exception as error:
            if self._closed or self._is_lost():  # closed by another thread or a signal handler
                return True
            if isinstance(error, PysamplerError):  # otherwise a signal handler raised it
                self._let_go_after(error)
            raise
        return self._have_all_ended()

    @property
    def _loss(self) -> WorkerLostError | None:
        """The loss of a worker that the caller raises once it wants no more records."""
        if not (self._has_begun and self._raises_loss_last):
            return None
        return self._core.pool.fatal_loss

    def _is_lost(self) -> bool:
        """Return whether a worker was lost, and stop the others."""
        if self._loss is None:
            return False
        self._progress.stop()
        return True

    def _have_all_ended(self) -> bool:
        """Return whether all workers have ended; raise the error of the central policy."""
        ended = self._core.pool.pending == 0
        # Read afterwards: the thread that acts stores its error before it ends the workers.
        if self._central is not None and self._central.error is not None:
            self._let_go_after(self._central.error)
            raise self._central.error
        return ended

    def _let_go_after(self, error: PysamplerError) -> None:
        """Close the sampler because of an error, which later calls name."""
        first_line, *_ = str(error).split("\n")
        self._after = f", after {type(error).__name__}: {first_line}"
        self.let_go()

    @property
    def closed(self) -> bool:
        """Whether the sampler or its vector env was closed, and no records are left."""
        # The loss of a worker has closed the vector env.
        return self._closed or (self.envs.closed and self._loss is None)

    # -- ending ----------------------------------------------------------------------------------

    def let_go(self) -> None:
        """Close the sampler, but leave the vector env open for other use."""
        if self._closed or not self._in_own_process:
            return
        self._lease.over = True
        if self._in_call():  # in a signal handler: let the interrupted call end
            self._stop_requested = self._closed = True
            self._request_stop()
        else:
            super().let_go()
        self._merge_statistics()

    def _in_call(self) -> bool:
        """Whether this thread is inside a call that must end before the sampler does."""
        return self._check_guard.inside or self._begin_lock._is_owned()  # type: ignore[attr-defined]

    def _request_stop(self) -> None:
        if hasattr(self, "_progress"):
            self._progress.stop(drop=True)

    def _end(self) -> bool:
        self._request_stop()
        # Wait until another thread has left begin().
        if self._begin_lock.acquire(timeout=SHUTDOWN_TIMEOUT_S):
            self._begin_lock.release()
        if self._central is not None:  # the envs need not wait for a slow call
            self._central.wait_ended()
        return self._wait_until_left(self._check_guard)

    def _wait_until_left(self, guard: _core.Guard) -> bool:
        """Wait until another thread leaves its call, which notices that this is closed."""
        return comes_true(lambda: not guard.busy, SHUTDOWN_TIMEOUT_S)


def _end(progress: WorkerProgress) -> bool:
    """End the workers. The lease calls this; it must not refer to the sampler."""
    progress.stop(drop=True)
    return True
