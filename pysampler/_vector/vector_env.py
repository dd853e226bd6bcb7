"""The drop-in for ``gymnasium.vector.AsyncVectorEnv``."""

from __future__ import annotations

import functools
import multiprocessing
import warnings
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np
from gymnasium import logger
from gymnasium.error import (
    AlreadyPendingCallError,
    ClosedEnvironmentError,
    NoAsyncCallError,
)
from gymnasium.vector.utils import batch_space, iterate
from gymnasium.vector.vector_env import AutoresetMode
from gymnasium.vector.vector_env import VectorEnv as GymVectorEnv

from pysampler import _core
from pysampler._closing import Single, ends_by_signal
from pysampler._frames.frames import Frames, Plan, info_room
from pysampler._frames.spec import Spaces, spec_of
from pysampler._numbers import true_or_false
from pysampler._vector import arguments
from pysampler._vector.host import Description, EnvHost, call, make_host, registered
from pysampler._vector.jobs import (
    AddColumns,
    Apply,
    AttachFrames,
    Replacements,
    Reset,
    Restore,
    SetAttribute,
    SetOptions,
    StepWith,
)
from pysampler._vector.piped import PipedEnv, check_worker
from pysampler._vector.recording import Recorder, Replayer
from pysampler._vector.results import Results, first
from pysampler._workers.jobs import Failure
from pysampler._workers.local import LocalPool
from pysampler._workers.pool import Pool
from pysampler._workers.processes import GRACE, Share
from pysampler._workers.recovery import MAX_RESTARTS, RESTART_WINDOW
from pysampler.errors import (
    BusyError,
    ClosedError,
    EnvError,
    LostError,
    PysamplerError,
    RecordingError,
    WaitTimeoutError,
)
from pysampler.sync import Segment, now

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Mapping, Sequence
    from types import TracebackType
    from typing import Self

    import numpy.typing as npt
    from gymnasium.core import RenderFrame

    from pysampler._frames.frames import Frames
    from pysampler._frames.infos import Column
    from pysampler._frames.spec import Field
    from pysampler._vector.lease import Lease
    from pysampler._vector.results import Stepped
    from pysampler._workers.counters import Stats
    from pysampler._workers.jobs import Answer, Job

__all__ = ["VectorEnv"]


# Calls that nothing waits for but themselves: of an interrupted one, the answers are dropped.
_WHOLE = "apply", "set_attr"


class _TimeoutError(WaitTimeoutError, multiprocessing.TimeoutError):
    """Also what gymnasium raises."""


class _ClosedError(ClosedError, ClosedEnvironmentError):
    """Also what gymnasium raises."""


for _own in (_TimeoutError, _ClosedError):  # tracebacks show the public names
    _own.__module__, _own.__name__ = "pysampler", _own.__bases__[0].__name__
    _own.__qualname__ = _own.__name__


class Seeds:
    """Of envs that take the place of lost ones: a sequence that starts with a reset's seed."""

    def __init__(self) -> None:
        self._sequence = np.random.SeedSequence()

    def start(self, seed: Any) -> None:
        """The seed of a reset of all envs."""
        if isinstance(seed, (int, np.integer)):
            self._sequence = np.random.SeedSequence(abs(int(seed)))
        elif seed is not None and all(one is not None for one in seed):
            self._sequence = np.random.SeedSequence([abs(int(one)) for one in seed])

    def draw(self, count: int) -> list[int]:
        """So many fresh ones."""
        return [int(child.generate_state(1)[0]) for child in self._sequence.spawn(count)]


class VectorEnv(GymVectorEnv[Any, Any, np.ndarray]):
    """Many envs, several in each of a few worker processes, stepped together.

    Takes what ``gymnasium.vector.AsyncVectorEnv`` takes, raises what it raises, and returns what
    ``SyncVectorEnv`` returns, bit for bit. Of its arguments these mean something else here:

    - ``shared_memory``: results always travel in shared memory; False only lets spaces through that
      gymnasium does not know.
    - ``context``: None is "nursery", workers forked from a clean interpreter; "fork" forks this
      process, "spawn" starts an interpreter for each worker.
    - ``daemon``: workers always end with this process, and may have children.
    - ``worker``: runs in a thread of the process its env lives in.
    - ``max_concurrency``: no more workers than that.

    And it takes:

    - ``num_workers``: processes, at most one an env. By default the CPUs this process may use;
      0 steps the envs in this process, for debugging.
    - ``groups``: parts of a worker's envs that are commanded apart.
    - ``frames``: how many steps' results there is room for. With ``copy=False`` a returned
      observation is a view that stays as it is for ``frames - 1`` further steps. With copies, large
      observations are not copied either: a frame that is still referred to is not written again.
    - ``wait``: how to wait for one another. "adaptive" learns; "spin", "yield" and "park" do not.
    - ``infos``: "all"; "final" for those of steps that end an episode, "none" for no infos of envs.
      ``final_obs`` is always there where envs are reset in the same step.
    - ``preload``: names of modules for the nursery to import before it forks the workers. By
      default it learns those of installed packages from the first vector env, for the next. A
      generator that a module makes as it is imported is then the same in all workers: do not
      preload such a module, or seed it in ``worker_init``.
    - ``check_actions``: refuse actions that are not a number.
    - ``on_worker_loss``: "raise" ``WorkerLostError``, or "restart": another worker takes its place
      with new envs. The step it was lost in ends their episodes: ``truncated``, with the last
      observation seen and ``info["worker_lost"]``; their next resets have fresh seeds. The others
      never notice. More than ``max_restarts`` of one worker within ``restart_window`` seconds
      raise all the same.
    - ``step_timeout``: seconds after which an env in a worker that has not answered is late.
      ``on_hang`` says what is done then: "raise" ``EnvTimeoutError``, which names it and leaves the
      step pending, "wait" and warn, or "restart" its worker.
    - ``worker_init``: a function without arguments that each worker runs before it makes its envs:
      for what the program has set up in modules (``cfg.SIZE = 5``), which a clean interpreter that
      imports them anew does not have. The level and the format of the root logger are taken over
      anyway.
    - ``record_to``: a file to write which envs formed each batch of ``recv``; ``replay_from``: that
      of an earlier run, whose batches ``recv`` then returns in the same order.

    Calls from another thread meanwhile get ``BusyError``, from a forked child ``ClosedError``.

    >>> envs = VectorEnv([lambda: gym.make("CartPole-v1")] * 8, num_workers=2)
    >>> envs
    VectorEnv(CartPole-v1, num_envs=8, num_workers=2)
    >>> observations, infos = envs.reset(seed=1)
    >>> observations, rewards, terminated, truncated, infos = envs.step(envs.action_space.sample())
    >>> rewards
    array([1., 1., 1., 1., 1., 1., 1., 1.])
    >>> envs.close()
    """

    _hurry = False  # Ctrl-C ends a `with` block

    def __init__(
        self,
        env_fns: Sequence[Callable[[], gym.Env[Any, Any]]],
        shared_memory: bool = True,  # noqa: FBT001, FBT002 - as gymnasium has it
        copy: bool = True,  # noqa: FBT001, FBT002
        context: str | None = None,
        daemon: bool = True,  # noqa: FBT001, FBT002
        worker: Callable[..., None] | None = None,
        observation_mode: str | tuple[gym.Space[Any], gym.Space[Any]] = "same",
        autoreset_mode: str | AutoresetMode = AutoresetMode.NEXT_STEP,
        max_concurrency: int | None = None,
        *,
        num_workers: int | None = None,
        groups: int = 1,
        frames: int = 3,
        wait: arguments.Wait = "adaptive",
        infos: arguments.Infos = "all",
        preload: Sequence[str] | None = None,
        check_actions: bool = False,
        on_worker_loss: arguments.OnLoss = "raise",
        max_restarts: int = MAX_RESTARTS,
        restart_window: float = RESTART_WINDOW,
        step_timeout: float | None = None,
        on_hang: arguments.OnHang = "raise",
        record_to: str | os.PathLike[str] | None = None,
        replay_from: str | os.PathLike[str] | None = None,
        worker_init: Callable[[], Any] | None = None,
    ) -> None:
        self.env_fns = arguments.env_fns(env_fns)
        self.num_envs = len(self.env_fns)
        self.shared_memory = shared_memory
        self.copy = true_or_false("make vector env", "copy", copy)
        self.context = context
        self.daemon = daemon
        self.worker = worker
        self.observation_mode = observation_mode
        self.autoreset_mode = arguments.autoreset_mode(autoreset_mode)
        self.max_concurrency = max_concurrency
        self.num_workers = arguments.workers(num_workers, self.num_envs, max_concurrency)
        if not (worker_init is None or callable(worker_init)):
            raise TypeError(
                f"cannot make vector env: worker_init {worker_init!r}, expected a function"
            )
        self._check_actions = true_or_false("make vector env", "check_actions", check_actions)
        self._guard = _core.Guard(
            "this vector env",
            str(self._closed_error()),
            _ClosedError,
        )
        # Of the calls that are made all the time.
        self._entries = {
            name: self._guard.entry(f"call {name}") for name in ("step", "send", "recv")
        }
        self._state: str | None = None  # what was called last; _pending says if it still is
        # What has come back and is on its way to the caller: groups, results, or an error instead.
        self._kept: tuple[Sequence[int], Any, EnvError | None] | None = None
        self._lease: Lease | None = None  # of rollouts, actors or a watcher on these envs
        self._layout_due = False  # the frames are another's, or half laid out
        options = arguments.Options(
            groups=groups,
            frames=frames,
            wait=wait,
            infos=infos,
        )
        faults = arguments.faults(
            *("make vector env", on_worker_loss, max_restarts, restart_window),
            *(step_timeout, on_hang),
        )
        self._seeds = Seeds()
        self._replacements = Replacements(self._seeds.draw)
        self._step_timeout = step_timeout
        self._options_version = 0
        self._timed_return = _core.TimedReturn()
        self._batches = 0  # that recv has returned
        self._recorder: Recorder | None = None
        self._replayer: Replayer | None = None
        process = arguments.context(context)
        modules = arguments.preload(preload)
        shares = arguments.shares(self.num_envs, max(self.num_workers, 1), groups)
        specs = registered() if self.num_workers > 0 and process != "fork" else b""

        functions = self.env_fns
        if worker is not None:
            check_worker(worker)
            if "restart" in (on_worker_loss, on_hang):
                raise ValueError("cannot make vector env: what `worker` runs cannot be restarted")
            functions = [
                functools.partial(PipedEnv, worker, i, env_fn, self.autoreset_mode)
                for i, env_fn in enumerate(functions)
            ]

        def make(share: Share) -> tuple[Callable[..., EnvHost], tuple[Any, ...]]:
            chosen = functions[share.first : share.members.stop]
            return make_host, (specs, chosen, share.first, share.sizes, worker_init)

        self._pool: Pool | LocalPool
        if self.num_workers == 0:
            worker_init = None  # there are no workers
            self._pool = LocalPool(shares[0], make)
        else:
            self._pool = Pool(
                shares,
                make,
                context=process,
                preload=modules,
                policy=options.policy,
                faults=faults,
                restore=Restore(),
                for_replaced=self._replacements.notes,
            )
        try:
            self._restarts = "restart" in (on_worker_loss, on_hang)
            self._open(self._pool.descriptions, options)
            self._pool.descriptions.clear()  # envs' spaces may be large
            if replay_from is not None:
                self._replayer = Replayer(replay_from, self._groups)
            if record_to is not None:
                self._recorder = Recorder(record_to, self._groups)
        except BaseException:
            self._pool.kill()
            raise

    def _open(self, descriptions: Sequence[Description], options: arguments.Options) -> None:
        one = descriptions[0]
        self.metadata = {**one.metadata, "autoreset_mode": self.autoreset_mode}
        self.render_mode = one.render_mode
        self._name = one.name
        spaces = Spaces.of(
            [space for d in descriptions for space in d.observation_spaces],
            [space for d in descriptions for space in d.action_spaces],
            self.observation_mode,
        )
        self.single_observation_space = spaces.single_observation
        self.observation_space = spaces.observations
        self.single_action_space = spaces.single_action
        self.action_space = spaces.actions
        if self.shared_memory:
            arguments.refuse_custom(self.single_observation_space)
        self._spec = spec_of(self.single_observation_space, self.single_action_space)
        self._groups = self._pool.members
        self._largest = max(map(len, self._groups))
        self._all_groups = range(len(self._groups))
        self._everyone = np.arange(self.num_envs)
        self._usual_layout = options.frames, self.autoreset_mode, options.infos
        self._lay_out(*self._usual_layout)
        self.observations = self._results.observations()

    def _lay_out(
        self,
        frames: int,
        autoreset: AutoresetMode,
        infos: arguments.Infos,
        extras: Sequence[Field] = (),
        beside: int = 0,
    ) -> tuple[Frames, Segment]:
        """Give the envs so many frames, in a new segment with so many bytes for other things."""
        final = autoreset == AutoresetMode.SAME_STEP
        columns: list[Column] = []
        room = 0 if infos == "none" else info_room(self.num_envs, frames)
        plan = Plan(self._spec, self.num_envs, frames, final, tuple(extras), room)
        mode = "DISABLED" if self.worker else autoreset.name
        self._layout_due = True  # until all of this is done
        segment = Segment(plan.size + beside, plan.infos)
        laid_out = Frames(plan, segment)
        attach = AttachFrames(plan, laid_out.offset, mode, infos.upper(), columns)
        self._pool.lay_out(segment, attach)
        results = Results(
            laid_out,
            self._groups,
            columns,
            self._pool.error_of,
            copy=self.copy,
            final=final,
            restarts=self._restarts,
        )
        results.show_versions = self._options_version > 0
        self._results = results
        # Called with every step.
        self._write, self._read = results.batch.write, results.read
        self._layout_due = False
        return laid_out, segment

    # -- reset -----------------------------------------------------------------------------------

    def reset(
        self,
        *,
        seed: int | list[int | None] | None = None,
        options: dict[str, Any] | None = None,
    ) -> tuple[Any, dict[str, Any]]:
        """Reset all envs, or those of ``options["reset_mask"]``."""
        self.reset_async(seed=seed, options=options)
        return self.reset_wait()

    def reset_async(
        self,
        seed: int | list[int | None] | None = None,
        options: dict[str, Any] | None = None,
    ) -> None:
        """Let the envs reset; ``reset_wait`` has what they return."""
        with self._entered("reset_async"):
            seeds = arguments.seeds(seed, self.num_envs)
            self._expect_idle("reset_async")
            self._seeds.start(seed)
            mask = None
            if options is not None and "reset_mask" in options:
                mask = arguments.reset_mask(options["reset_mask"], self.num_envs)
                options = {k: v for k, v in options.items() if k != "reset_mask"}
            self._next_frame()
            jobs = {
                group: Reset(
                    [seeds[env] for env in envs],
                    options,
                    None if mask is None else [bool(mask[env]) for env in envs],
                )
                for group, envs in enumerate(self._groups)
            }
            self._request(jobs, "reset")

    def reset_wait(self, timeout: float | None = None) -> tuple[Any, dict[str, Any]]:
        """Wait for the reset that is pending, and return what the envs return from it."""
        with self._entered("reset_wait"):
            self._expect("reset", "reset_wait")
            observations, _, _, _, infos = self._finish("reset_wait", timeout)
        self._state = self._kept = None
        return observations, infos

    # -- step ------------------------------------------------------------------------------------

    # A signal handler may raise an exception nearly anywhere. What has come back is kept until the
    # lines behind the `with` block, in which Python runs no handler. The next wait returns it.

    def step(self, actions: Any) -> Stepped:
        """Step all envs."""
        if self._pool.closed:
            raise self._closed_error()
        with self._entries["step"]:
            self._send(actions)
            results = self._finish("step_wait", None)
        self._state = self._kept = None
        return results

    def step_async(self, actions: Any) -> None:
        """Let the envs step; ``step_wait`` has what they return."""
        with self._entered("step_async"):
            self._send(actions)

    def _send(self, actions: Any) -> None:
        if self._state is not None or self._lease is not None or self._layout_due:
            self._expect_idle("step_async")
        if self._check_actions:
            arguments.refuse_nan(self._spec, self.num_envs, actions)
        frame = self._next_frame()
        self._state = "step"  # pending as soon as anything of it is sent
        if self._write(frame, actions) or self._results.write(actions):
            self._pool.step(frame)
        else:
            self._send_objects(actions, self._everyone, self._all_parts())

    def _send_objects(
        self, actions: Any, envs: npt.NDArray[np.int64], parts: Sequence[tuple[int, int]]
    ) -> None:
        """Actions that are not arrays, or of spaces without a fixed shape: as gymnasium does."""
        space = self.action_space
        if len(envs) < self.num_envs:
            space = batch_space(self.single_action_space, len(envs))
        items = list(iterate(space, actions))
        if len(items) != len(envs):
            raise ValueError(f"cannot send actions: {len(items)} of them, expected {len(envs)}")
        by_env = dict(zip(envs.tolist(), items, strict=True))
        jobs = {g: StepWith([by_env[env] for env in self._groups[g]]) for g, _ in parts}
        self._pool.request(parts, jobs)

    def step_wait(self, timeout: float | None = None) -> Stepped:
        """Wait for the step that is pending, and return what the envs return from it."""
        with self._entered("step_wait"):
            self._expect("step", "step_wait")
            results = self._finish("step_wait", timeout)
        self._state = self._kept = None
        return results

    # -- some envs at a time ---------------------------------------------------------------------

    def send(self, actions: Any, env_ids: Any = None) -> None:
        """Let envs step, all or those of some indices; ``recv`` has what they return.

        Row i of the actions is for env ``env_ids[i]``: pass ``info["env_id"]`` of a batch to answer
        it. The envs of a group step together, so the indices are those of whole groups, in any
        order (``groups`` says how many groups a worker has). None of them may be pending.
        """
        if self._pool.closed:
            raise self._closed_error()
        with self._entries["send"]:
            envs = self._envs(env_ids)
            groups = self._idle_groups("send", envs)
            if self._check_actions:
                arguments.refuse_nan(self._spec, len(envs), actions)
            self._tell_columns()
            parts = self._results.start(groups)
            self._state = "send"
            if self._results.batch.write_some(parts, actions) or self._results.write(actions, envs):
                self._pool.step_some(parts)
            else:
                self._send_objects(actions, envs, parts)

    def async_reset(
        self,
        seed: int | Sequence[int | None] | None = None,
        options: dict[str, Any] | None = None,
        env_ids: Any = None,
    ) -> None:
        """Let envs reset, all or those of some indices; ``recv`` has what they return.

        A number as seed is that of env 0, the next one that of env 1 and so on, whichever envs are
        reset; a list has one for each of ``env_ids``.
        """
        with self._entered("async_reset"):
            chosen = self._envs(env_ids)
            groups = self._idle_groups("async_reset", chosen)
            envs = chosen.tolist()
            if isinstance(seed, (int, np.integer)):
                seeds: list[int | None] = [int(seed) + env for env in envs]
            else:
                seeds = arguments.seeds(seed, len(envs))
            if env_ids is None:
                self._seeds.start(seed)
            by_env = dict(zip(envs, seeds, strict=True))
            self._tell_columns()
            jobs = {
                group: Reset([by_env[env] for env in self._groups[group]], options)
                for group in groups
            }
            self._state = "send"
            self._pool.request(self._results.start(groups), jobs)

    def recv(
        self,
        min_envs: int | None = None,
        max_envs: int | None = None,
        timeout: float | None = None,
    ) -> Stepped:
        """What envs return from ``send`` and ``async_reset``, as soon as ``min_envs`` are ready.

        By default that is all that are pending; more are never waited for. All that are ready are
        returned, longest ready first, by whole groups and up to ``max_envs``. After ``timeout``
        seconds, those that are ready, perhaps none: then every array is empty. ``info["env_id"]``
        says whose rows they are; rewards of resets are 0. All arrays are the caller's own.

        An env that raised does so here; what others had to return comes with the next call.

        EnvPool users: there ``recv`` waits for ``batch_size`` envs for ever and returns just that
        many; here that is ``min_envs=batch_size, max_envs=batch_size`` with groups whose size
        divides it (otherwise it may be fewer), and ``timeout`` is new.
        ``info["env_id"]`` and ``async_reset()`` mean the same; episodes end as the
        ``autoreset_mode`` says.
        """
        deadline = arguments.deadline(timeout)
        wait_end = None if deadline is None else self._timed_return.wait_until(deadline)
        if self._pool.closed:
            raise self._closed_error()
        with self._entries["recv"]:
            self._expect("send", "recv")
            least, most = self.num_envs, self.num_envs
            if min_envs is not None or max_envs is not None:
                least, most = arguments.batch(min_envs, max_envs, self.num_envs, self._largest)
            if self._kept is None:
                self._collect(least, most, wait_end)
            some = self._kept is not None
            if self._kept is not None:
                self._note_batch(self._kept[0])
            results: Stepped = self._kept_results() if some else self._results.nothing()
        if some:
            self._batches += 1
            self._kept = None
            return results
        if deadline is not None and self._replayer is None:
            self._timed_return.hold_until(deadline)
        return results

    def _collect(self, least: int, most: int, deadline: int | None) -> None:
        """Keep what some groups return that have come back, if there are any."""
        kept: tuple[Sequence[int], Any, EnvError | None] | None
        if self._replayer is None:
            groups, answers = self._pool.wait_some(least, most, deadline)
        else:
            groups, answers = self._replayed(self._replayer)
        if answers and (failures := self._results.failed(answers)):
            groups = sorted({group for group, _ in failures})
            kept = groups, None, self._pool.error_of(*first(failures))
        elif groups:
            try:
                kept = groups, self._results.read_some(groups, answers), None
            except EnvError as error:
                kept = groups, None, error
        else:
            kept = None
        if kept is None:  # an empty batch cannot be lost
            self._note_batch(())
            self._batches += 1
        self._kept = kept

    def _note_batch(self, groups: Sequence[int]) -> None:
        """For the recording, once for each batch however often it is called."""
        if self._recorder is not None:
            self._recorder.write(self._batches, groups)
        if self._replayer is not None:
            self._replayer.done(self._batches)

    def _replayed(self, replayer: Replayer) -> tuple[list[int], list[Answer]]:
        groups = replayer.read()
        if idle := [group for group in groups if not self._pool.is_pending(group)]:
            raise RecordingError(
                f"cannot replay batch {replayer.batch + 1}: env {self._groups[idle[0]][0]} is in "
                "it, and has nothing pending; this program does not do what the recorded one did"
            )
        return groups, self._pool.wait_for(groups)

    @property
    def pending(self) -> int:
        """How many envs ``recv`` has yet to return."""
        return 0 if self.closed else self._pool.pending + self._envs_kept

    @property
    def ready(self) -> int:
        """How many of those it would return at once."""
        return 0 if self.closed else self._pool.ready + self._envs_kept

    @property
    def _envs_kept(self) -> int:
        """How many envs have been taken from the pool and not been returned."""
        groups = () if self._kept is None else self._kept[0]
        return sum(len(self._groups[g]) for g in groups if not self._pool.is_pending(g))

    def set_options(self, env_ids: Any, options: Any) -> int:
        """What envs are reset with from their next reset on, automatic or not: their tasks, say.

        One dict for all of ``env_ids`` (None: all envs), or a list with one for each; None instead
        of a dict takes it back. It travels with the next commands: nothing waits for it, and it may
        be called while envs are at work. Returns its version: ``info["options_version"]`` says for
        each env which version its episode was reset with, 0 for none. ``reset(options=...)`` goes
        before it.
        """
        with self._entered("set_options"):
            envs = arguments.indices(self._envs(env_ids), self.num_envs)
            each = arguments.options(options, envs)
            self._options_version += 1
            self._results.show_versions = True
            options = {env: (one, self._options_version) for env, one in each}
            self._replacements.options.update(options)

            def note_for(envs: range) -> SetOptions | None:
                chosen = {env: options[env] for env in envs if env in options}
                return SetOptions(chosen) if chosen else None

            self._pool.note(note_for)
            return self._options_version

    def stats(self) -> Stats:
        """What envs and workers have done so far; a table when printed.

        >>> envs = VectorEnv([lambda: gym.make("CartPole-v1")] * 4, num_workers=2)
        >>> _ = envs.reset()
        >>> _ = envs.step(envs.action_space.sample())
        >>> envs.stats().steps.count
        array([1, 1, 1, 1], dtype=uint64)
        >>> envs.close()
        """
        with self._entered("stats"):
            return self._pool.stats()

    @property
    def late(self) -> list[int]:
        """Envs that have not answered for longer than ``step_timeout``."""
        if self._step_timeout is None or self.closed:
            return []
        return [env for _, env, _ in self._pool.late(int(self._step_timeout * 1e9))]

    def _envs(self, env_ids: Any) -> npt.NDArray[np.int64]:
        return self._everyone if env_ids is None else arguments.env_ids(env_ids)

    def _idle_groups(self, what: str, envs: npt.NDArray[np.int64]) -> Sequence[int]:
        """Those of the envs, which must have nothing pending."""
        if self._state != "send" or self._lease is not None or self._layout_due:
            self._expect_idle(what)
        try:
            groups = self._results.batch.groups_of(envs)
        except (IndexError, ValueError) as error:
            raise type(error)(f"cannot choose envs: {error}") from None
        if self._state == "send":
            for group in groups:
                kept = self._kept is not None and group in self._kept[0]
                if kept or self._pool.is_pending(group):
                    raise AlreadyPendingCallError(
                        f"Calling `{what}` for env {self._groups[group][0]} while waiting for a "
                        "pending call to `send` to complete",
                        "send",
                    )
        return groups

    # -- call ------------------------------------------------------------------------------------

    def call(self, name: str, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """A method of each env, or an attribute."""
        self.call_async(name, *args, **kwargs)
        return self.call_wait()

    def call_async(self, name: str, /, *args: Any, **kwargs: Any) -> None:
        """Call a method of each env; ``call_wait`` has what they return."""
        with self._entered("call_async"):
            self._expect_idle("call_async")
            if name in ("reset", "step", "close", "_setattr", "_check_spaces"):
                raise ValueError(
                    f"Trying to call function `{name}` with `call`, use `{name}` directly instead."
                )
            self._ask_all("call", call, (name, args, kwargs), f"{name}()", None)

    def call_wait(self, timeout: float | None = None) -> tuple[Any, ...]:
        """What the envs return from the call that is pending."""
        with self._entered("call_wait"):
            self._expect("call", "call_wait")
            answers = self._answers("call_wait", timeout)
        self._state = self._kept = None
        return answers

    def apply(
        self,
        function: Callable[..., Any],
        *args: Any,
        envs: Sequence[int] | None = None,
    ) -> tuple[Any, ...]:
        """What ``function(env, *args)`` returns for each env, or for those of some indices.

        It runs where the env is; function, arguments and results are pickled.

        >>> envs = VectorEnv([lambda: gym.make("CartPole-v1")] * 3, num_workers=1)
        >>> envs.apply(lambda env, x: env.unwrapped.gravity * x, 10, envs=[0, 2])
        (98.0, 98.0)
        >>> envs.close()
        """
        with self._entered("apply"):
            self._expect_idle("apply")
            name = getattr(function, "__name__", type(function).__name__)
            chosen = None if envs is None else arguments.indices(envs, self.num_envs)
            self._ask_all("apply", function, args, f"{name}()", chosen)
            results = self._answers("apply", None)
        self._state = self._kept = None
        if chosen is None:
            return results
        by_env = dict(zip(sorted(set(chosen)), results, strict=True))
        return tuple(by_env[env] for env in chosen)

    def _ask_all(
        self,
        state: str,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        what: str,
        envs: Any,
    ) -> None:
        job = Apply(function, args, what, envs)
        self._request(dict.fromkeys(range(len(self._groups)), job), state)

    def _answers(self, what: str, timeout: float | None) -> tuple[Any, ...]:
        def read(answers: Sequence[Answer]) -> tuple[Any, ...]:
            if failures := [(g, said) for g, said, _ in answers if isinstance(said, Failure)]:
                raise self._pool.error_of(*first(failures))
            by_group = {group: said or () for group, said, _ in answers}
            return tuple(one for group in sorted(by_group) for one in by_group[group])

        self._keep(what, timeout, read)
        answers: tuple[Any, ...] = self._kept_results()
        return answers

    def get_attr(self, name: str) -> tuple[Any, ...]:
        """An attribute of each env."""
        return self.call(name)

    def set_attr(self, name: str, values: list[Any] | tuple[Any, ...] | Any) -> None:
        """Set an attribute of each env: to its own of a list or tuple, or all to one value."""
        with self._entered("set_attr"):
            if not isinstance(values, (list, tuple)):
                values = [values] * self.num_envs
            if len(values) != self.num_envs:
                raise ValueError(
                    "Values must be a list or tuple with length equal to the number of "
                    f"environments. Got `{len(values)}` values for {self.num_envs} environments."
                )
            self._expect_idle("set_attr")
            jobs = {
                group: SetAttribute(name, [values[env] for env in envs])
                for group, envs in enumerate(self._groups)
            }
            self._request(jobs, "set_attr")
            self._answers("set_attr", None)
        self._state = self._kept = None

    def render(self) -> tuple[RenderFrame, ...] | None:
        """What each env renders."""
        return self.call("render")

    @property
    def np_random_seed(self) -> tuple[int, ...]:  # type: ignore[override]
        """Of each env."""
        return self.get_attr("np_random_seed")

    @property  # type: ignore[misc]
    def np_random(self) -> tuple[np.random.Generator, ...]:  # type: ignore[override]
        """A copy of the generator of each env."""
        return self.get_attr("np_random")

    # -- what they share -------------------------------------------------------------------------

    def _next_frame(self) -> int:
        self._tell_columns()
        return self._results.next()

    def _request(self, jobs: Mapping[int, Job], state: str) -> None:
        """Give every group a job."""
        self._state = state  # pending as soon as anything of it is sent
        self._pool.request(self._all_parts(), jobs)

    def _tell_columns(self) -> None:
        if columns := self._results.new_columns():
            self._pool.note(lambda _: AddColumns(columns))
            self._results.told(columns)

    def _all_parts(self) -> list[tuple[int, int]]:
        return [(group, self._results.frame) for group in range(len(self._groups))]

    def _finish(self, what: str, timeout: float | None) -> Stepped:
        """Wait for what is pending; observations, rewards, terminated, truncated, infos."""
        self._keep(what, timeout, self._read)
        results: Stepped = self._kept_results()
        self.observations = results[0]
        return results

    def _keep(
        self, what: str, timeout: float | None, read: Callable[[Sequence[Answer]], Any]
    ) -> None:
        """Wait until all that is pending is there, and keep what is read of it."""
        if self._kept is not None:
            return
        answers = self._pool.wait(arguments.seconds(timeout, what))
        if answers is None:
            raise _timed_out(what, timeout)
        try:
            self._kept = self._all_groups, read(answers), None
        except EnvError as error:
            self._kept = self._all_groups, None, error

    def _kept_results(self) -> Any:
        """What is kept, or raise it; it is pending no more."""
        assert self._kept is not None
        groups, results, error = self._kept
        if groups is self._all_groups:
            self._pool.take_all()
        else:
            self._pool.take(groups)
        if error is None:
            return results
        if self._state == "send":
            self._batches += 1
        else:
            self._state = None
        self._kept = None
        raise error

    def _entered(self, what: str) -> _core.Entry:
        """A context: it is open, in the process that made it, and no other thread is in here."""
        if self.closed:
            raise self._closed_error()
        return self._guard.entry(f"call {what}")

    def _closed_error(self) -> _ClosedError:
        return _ClosedError(
            f"Trying to operate on `{type(self).__name__}`, after a call to `close()`."
        )

    @property
    def _pending(self) -> str | None:
        """What is pending: the last call, if it still is."""
        return self._state if self._at_work else None

    @property
    def _at_work(self) -> bool:
        """Whether anything is in flight, or has come back and is on its way to the caller."""
        return self._kept is not None or self._pool.pending > 0

    def _expect_idle(self, what: str) -> None:
        """Nothing is pending, and the frames are this object's own."""
        if self._state is None and self._lease is None and not self._layout_due:
            return
        lease = self._lease
        if self._state in _WHOLE and lease is None and self._pending is not None:
            self._drop_work("a call", ended=True)  # interrupted, and there is no wait for it
        state = self._pending
        if lease is not None and not lease.lent_back:
            state = lease.name
            if lease.over:
                self._reclaim()
                return
        elif self._layout_due:
            self._drop_work("a call", ended=True)
            self._lay_out(*self._usual_layout)
            return
        if state is not None:
            raise AlreadyPendingCallError(
                f"Calling `{what}` while waiting for a pending call to `{state}` to complete",
                state,
            )

    def _expect(self, state: str, what: str) -> None:
        if self._state != state or self._pending is None:
            prior = "`send` or `async_reset`" if state == "send" else f"`{state}_async`"
            raise NoAsyncCallError(f"Calling `{what}` without any prior call to {prior}.", state)

    # -- lent to a sampler -----------------------------------------------------------------------

    def _reclaim(self) -> None:
        """Take the envs back from a sampler that is done with them. May be repeated."""
        lease = self._lease
        assert lease is not None
        self._drop_work(lease.what, ended=lease.end())
        if self.closed:
            raise self._closed_error()
        if self._layout_due or lease.laid_out:
            self._lay_out(*self._usual_layout)
        self._lease = None

    def _drop_work(self, what: str, *, ended: bool) -> None:
        """Wait for the end of what is under way and not wanted; or else end the workers."""
        pool = self._pool
        if pool.closed:
            return
        pool.drop_standing()
        if not ended or not self._drained():
            left = pool.pending - pool.ready
            pool.kill()
            warnings.warn(
                f"the vector env was closed with {what} under way: {left} envs did not return",
                stacklevel=4,
            )
        self._state = self._kept = None

    def _drained(self) -> bool:
        """Whether all that was in flight has come back in time, well or not."""
        pool = self._pool
        deadline = now() + int(GRACE * 1e9)
        while not pool.closed and pool.pending:
            try:
                if pool.wait(max(0.0, (deadline - now()) / 1e9)) is None:
                    return False
                pool.take_all()
            except (EnvError, LostError):
                continue
            except PysamplerError:  # an env is late
                return False
        return True

    # -- ending ----------------------------------------------------------------------------------

    @property
    def closed(self) -> bool:
        """Whether it was closed, or has ended because a worker was lost."""
        pool = getattr(self, "_pool", None)
        return pool is None or pool.closed

    @closed.setter
    def closed(self, _: bool) -> None:
        """gymnasium's ``close`` sets it when all has been closed."""

    def close(self, **kwargs: Any) -> None:
        """End the workers: ``close_extras`` has the arguments.

        A signal handler may call it while its own thread waits here: that wait ends with the error
        of a closed vector env. In a fork it does nothing: the envs are its parent's.
        """
        if not self._guard.mine:
            return
        try:
            super().close(**kwargs)
        finally:
            self._let_go()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        # Ctrl-C: an env in a long step does not hold that up, and no warning is wanted.
        self._hurry = ends_by_signal(kind)
        self.close(terminate=self._hurry)

    def _let_go(self) -> None:
        if self.closed:
            self._pool.kill()  # goes on where one was interrupted
            # The memory goes once no view of it is left.
            self._results = self._write = self._read = None  # type: ignore[assignment]
            self._kept = None
            if not self.copy:
                self.observations = None
            if self._recorder is not None:
                self._recorder.close()

    def close_extras(self, timeout: float | None = None, terminate: bool = False) -> None:  # noqa: FBT001, FBT002
        """End the workers: after what is pending, or at once; GRACE at most."""
        if self._guard.closed:  # one that was interrupted
            self._pool.kill()
            return
        entry = self._guard.closing("call close")
        with entry:
            if entry.nested:
                self._pool.give_up_wait()
            try:
                self._close(timeout, terminate=terminate)
            finally:
                self._guard.close()

    def _close(self, timeout: float | None, *, terminate: bool) -> None:
        if (lease := self._lease) is not None:
            lease.over = True
            if not terminate:
                self._drop_work(lease.what, ended=lease.end())
        elif (pending := self._pending) is not None:
            if not self._hurry:
                logger.warn(
                    f"Calling `close` while waiting for a pending call to `{pending}` to complete."
                )
            terminate = terminate or not self._settled(GRACE if timeout is None else timeout)
        if terminate:
            self._pool.kill()
        else:
            self._pool.close()

    def _settled(self, timeout: float) -> bool:
        try:
            if self._pool.wait(timeout) is None:
                return False
            self._pool.take_all()
        except (EnvError, LostError, BusyError, ClosedError):
            pass
        except WaitTimeoutError:  # an env is late
            return False
        return True

    __copy__, __deepcopy__, __reduce__ = Single.__copy__, Single.__deepcopy__, Single.__reduce__

    def __del__(self) -> None:
        if (pool := getattr(self, "_pool", None)) is not None:
            pool.kill(wait=0)

    def __repr__(self) -> str:
        name = self._name if self.spec is None else self.spec.id
        return (
            f"{type(self).__name__}({name}, num_envs={self.num_envs}, "
            f"num_workers={self.num_workers})"
        )


def _timed_out(what: str, timeout: float | None) -> _TimeoutError:
    return _TimeoutError(
        f"The call to `{what}` has timed out after {timeout} second(s). What is pending stays so."
    )
