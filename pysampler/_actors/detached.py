"""Workers that act by themselves, as their parent sees them: actors, or a watcher."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from pysampler import _core
from pysampler._actors.alone import TakePolicyAlone
from pysampler._policies.calling import PolicyCaller
from pysampler._policies.copying import copied, pickled, send_policy
from pysampler._policies.progress import WorkerProgress
from pysampler._policies.sampler import Sampler
from pysampler._policies.seeds import entropy_from
from pysampler._policies.signatures import GENERATORS, STATE
from pysampler._policies.weights import has_weights, portable, weights_of
from pysampler._policies.worker_policy import PolicySetup
from pysampler._vector.results import first
from pysampler._vector.vector_env import core_of
from pysampler._workers.jobs import Failure
from pysampler._workers.processes import GRACE
from pysampler.errors import BusyError, ClosedError, PysamplerError
from pysampler.sync import Board, now

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import numpy.typing as npt

    from pysampler._policies.calling import PolicyOutputs
    from pysampler._policies.sampler import PreparedFrames
    from pysampler._vector.vector_env import VectorEnv
    from pysampler._workers.jobs import Job
    from pysampler.sync import SharedRing

__all__ = ["Detached"]

_METHODS = "state_dict() and load_state_dict()"


def _ending(progress: WorkerProgress) -> Callable[[], bool]:
    def end() -> bool:
        progress.stop(drop=True)
        return True

    return end


def setting(doing: str, name: str, value: Any, envs: int) -> npt.NDArray[Any]:
    """Return the value of a setting as an array, or raise ValueError."""
    expected = f"cannot {doing}: setting {name!r} {value!r}, expected a number, or one for each of"
    try:
        array = np.asarray(value)
    except ValueError:  # rows of different lengths
        raise ValueError(f"{expected} {envs} envs") from None
    if array.dtype.kind not in "biuf" or array.shape not in ((), (envs,)):
        raise ValueError(f"{expected} {envs} envs")
    return array


class Settings(Mapping[str, "npt.NDArray[Any]"]):
    """What a policy is called with by name: an array each, which the workers read as they act.

    Assigning to a name or to a part of its array changes it at once.
    """

    def __init__(self, arrays: dict[str, npt.NDArray[Any]], envs: int) -> None:
        self._arrays = arrays
        self._envs = envs

    def __getitem__(self, name: str) -> npt.NDArray[Any]:
        return self._arrays[name]

    def __setitem__(self, name: str, value: npt.ArrayLike) -> None:
        if name not in self._arrays:
            raise KeyError(f"no setting {name!r}, expected one of {sorted(self._arrays)}")
        self._arrays[name][:] = setting("change setting", name, value, self._envs)

    def __iter__(self) -> Iterator[str]:
        return iter(self._arrays)

    def __len__(self) -> int:
        return len(self._arrays)

    def __repr__(self) -> str:
        return f"<pysampler settings {self._arrays}>"


class Detached(Sampler):
    """They act with weights from a board, until they are told to stop."""

    def __init__(
        self,
        envs: VectorEnv,
        policy: Any,
        settings: Mapping[str, npt.ArrayLike] | None,
        seed: int | list[int | None] | None,
        *,
        owned: bool,
    ) -> None:
        count = envs.num_envs
        if settings is None:
            settings = {}
        if not isinstance(settings, Mapping) or not all(isinstance(name, str) for name in settings):
            raise self._refuse("settings", settings, "a dict of numbers by name")
        if own := [name for name in settings if name in (STATE, GENERATORS)]:
            raise self._refuse("settings", settings, f"other names than {own[0]!r}")
        self._given = {
            name: np.broadcast_to(setting(self._purpose, name, value, count), count).astype(
                np.float64
            )
            for name, value in settings.items()
        }
        self.settings = Settings(self._given, count)
        PolicyCaller(policy, core_of(envs).spec, self._given)  # or an error
        self.policy = policy
        self._seed = seed
        self._begun = self._stop = False
        self._beginning = threading.RLock()
        self._publishing = _core.Guard(
            f"the weights of {self._work_name}", "cannot publish weights: closed", ClosedError
        )
        self._looking = _core.Guard(
            f"the workers of {self._work_name}", "cannot look at workers: closed", ClosedError
        )
        self._board: Board | None = None
        self._in_workers = envs.num_workers > 0
        self._lease_envs(envs, owned=owned)

    # -- beginning -------------------------------------------------------------------------------

    def begin(self) -> None:
        """Start them, if they have not begun yet."""
        self._expect_open()
        with self._beginning:
            if self._begun:
                return
            self._expect_open()
            try:
                self._begin()
            except BaseException:
                self._drop()  # what is under way, a reset perhaps
                raise
            self._begun = True

    def _begin(self) -> None:
        envs = self.envs
        if self._core.at_work:  # a beginning that was interrupted
            self._drop()
        actor = PolicyCaller(copied(self.policy), self._core.spec, self._given)
        weights = weights_of(self.policy) if has_weights(self.policy) else None

        def room(said: PolicyOutputs) -> int:
            board = sum(array.nbytes + 8 for array in (weights or {}).values()) * 3
            fields = (len(self._given) + 1) * (8 * envs.num_envs + 256)
            shared = board + fields + WorkerProgress.size_of(len(self._core.groups)) + (1 << 16)
            return shared + self._room(said)

        begun = self._prepare_frames(actor, self._seed, self._frames, room)
        segment = begun.segment
        self._progress = WorkerProgress(len(self._core.groups), segment)
        self._lease.stop = _ending(self._progress)
        self._board = Board(weights, segment) if weights else None
        places = {}
        shared = {}
        for name, value in self._given.items():
            at, array = segment.array((envs.num_envs,), value.dtype, None)
            array[:] = value
            shared[name] = array
            places[name] = at, value.dtype
        self.settings = Settings(shared, envs.num_envs)
        if self._board is not None and weights is not None:
            self._board.publish(weights)
        setup = PolicySetup(
            pickled(portable(self.policy)),
            begun.policy.outputs,
            None if self._board is None else self._board.place(),
            self._progress.offset,
            groups=len(self._core.groups),
            entropy=entropy_from(self._seed),
            policies_before=0,
            own_process=self._in_workers,
            settings=places,
        )
        send_policy(self._core.pool, TakePolicyAlone, setup)
        self._ring, self._job_for = self._placed(begun)
        self._core.pool.watch_also(self._ring.producer())
        workers = np.array(self._core.pool.worker_of)
        self._heads = [int(np.argmax(workers == worker)) for worker in range(workers.max() + 1)]
        if self._stop:
            self._progress.stop()
        if self._in_workers:
            self._send()

    # Frames to lay out, bytes beside them, and what lies there: a ring, and what makes jobs of it.
    _frames = 2

    def _room(self, said: PolicyOutputs) -> int:
        raise NotImplementedError

    def _placed(self, begun: PreparedFrames) -> tuple[SharedRing, Callable[[int], Job]]:
        raise NotImplementedError

    def _send(self) -> None:
        """Let the workers act."""
        self._expect_open()  # a signal handler may have closed it while it began
        jobs = {group: self._job_for(group) for group in self._heads}
        with self._core.enter(self._name):
            self._core.pool.request([(group, 0) for group in jobs], jobs)

    # -- while they do ---------------------------------------------------------------------------

    def publish(self, weights: Any = None) -> int:
        """Give them new weights: a module, a dict of arrays, or by default the policy's as they
        are now. Returns the version.

        They are taken over as a whole.
        """
        self.begin()
        if self._board is None:
            lacks = "any in its state_dict()" if has_weights(self.policy) else _METHODS
            raise TypeError(
                f"cannot publish weights: the policy is a {type(self.policy).__name__} without "
                f"{lacks}"
            )
        chosen = self.policy if weights is None else weights
        if not (isinstance(chosen, Mapping) or hasattr(chosen, "state_dict")):
            raise TypeError(
                f"cannot publish weights: {type(chosen).__name__}, expected a dict of arrays, or "
                "what has a state_dict()"
            )
        arrays = chosen if isinstance(chosen, Mapping) else weights_of(chosen)
        with self._publishing.entry("publish weights"):
            return self._board.publish(arrays)

    @property
    def version(self) -> int:
        """Of the newest weights: 1 for those that they began with, 0 if there are none."""
        return 0 if self._board is None else self._board.version

    def stop(self) -> None:
        """Let them end by themselves. Any thread may call it, and a handler of signals."""
        if not self._in_own_process:  # a fork has the handlers of its parent, and not its actors
            return
        self._stop = True  # if they have not begun yet
        if hasattr(self, "_progress"):
            self._progress.stop()

    @property
    def stopped(self) -> bool:
        """Whether they were told to stop."""
        return self._progress.stopped if self._begun else self._stop

    def _look(self) -> bool:
        """Return whether all have ended, or raise what they raised. Replaces those that were lost.

        One thread looks at a time; another one that comes meanwhile leaves it to that.
        """
        if self.closed:  # by another thread
            return True
        pool = self._core.pool
        if pool.pending == 0:
            return True
        try:
            with self._looking.entry("look at workers"):
                if self.closed:
                    return True
                groups, answers = pool.wait_some(1, self.envs.num_envs, now())
                failures = []
                for group, said, _ in answers:
                    things = (
                        [said] if isinstance(said, Failure) else [t for *_, t in said.leftovers]
                    )
                    failures += [(group, thing) for thing in things if isinstance(thing, Failure)]
                if failures:  # not taken: a look that is interrupted here says it again
                    raise pool.error_of(*first(failures))
                pool.take(groups)
                pool.look_for_late()
        except BusyError:
            return False
        except Exception as error:
            if self._closed:  # meanwhile, by another thread or a signal handler
                return True
            if isinstance(error, PysamplerError):  # or else it is a signal handler's
                self.let_go()
            raise
        return pool.pending == 0

    # -- ending ----------------------------------------------------------------------------------

    def let_go(self) -> None:
        """Close, but for the vector env."""
        if self._closed or not self._in_own_process:
            return
        self._lease.over = True
        if self._at_work():  # a signal handler: what it came into ends by this
            self._stop = self._closed = True
            self._request_stop()
        else:
            super().let_go()

    def _at_work(self) -> bool:
        """Whether this thread is in the middle of a call of this object."""
        return self._looking.inside or self._beginning._is_owned()  # type: ignore[attr-defined]

    def _signal(self) -> None:
        if hasattr(self, "_progress"):
            self._progress.stop(drop=True)

    def _end(self) -> bool:
        self._request_stop()
        if self._beginning.acquire(timeout=GRACE):  # once another thread has left begin()
            self._beginning.release()
        return self._left(self._looking)

    def _left(self, guard: _core.Guard) -> bool:
        """Wait until another thread is not inside: it sees that this is closed, and leaves."""
        deadline = now() + int(GRACE * 1e9)
        while guard.busy and now() < deadline:
            time.sleep(0.001)
        return not guard.busy

    def _refuse(self, what: str, got: Any, expected: str) -> ValueError:
        return ValueError(f"cannot {self._purpose}: {what} {got!r}, expected {expected}")
