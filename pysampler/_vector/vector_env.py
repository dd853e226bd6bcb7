"""The drop-in replacement for ``gymnasium.vector.AsyncVectorEnv``."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

import gymnasium as gym
import numpy as np
from gymnasium.error import (
    NoAsyncCallError,
)
from gymnasium.vector.utils import batch_space, iterate
from gymnasium.vector.vector_env import AutoresetMode
from gymnasium.vector.vector_env import VectorEnv as GymVectorEnv

from pysampler import _core
from pysampler._closing import Uncopyable, ends_by_signal
from pysampler._frames.spec import Spaces, spec_of
from pysampler._numbers import true_or_false
from pysampler._vector import arguments
from pysampler._vector.core import FrameLayout, VectorCore
from pysampler._vector.division import divide
from pysampler._vector.env_server import EnvDescription, EnvServer, call, make_server
from pysampler._vector.jobs import (
    Apply,
    GetStates,
    Replacements,
    Reset,
    Restore,
    SetAttribute,
    SetOptions,
    SetStates,
    StepWith,
)
from pysampler._vector.partial import Batches
from pysampler._vector.registry import registered
from pysampler._vector.results import first
from pysampler._workers.jobs import Failure
from pysampler._workers.pool import Pool
from pysampler._workers.processes import WorkerAssignment
from pysampler._workers.recovery import MAX_RESTARTS, RESTART_WINDOW

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Sequence
    from types import TracebackType
    from typing import Self

    import numpy.typing as npt
    from gymnasium.core import RenderFrame

    from pysampler._frames.spec import Spec
    from pysampler._vector.results import Stepped
    from pysampler._workers.counters import Stats
    from pysampler._workers.jobs import Answer
    from pysampler._workers.tracer import Tracer

__all__ = ["VectorEnv", "core_of"]


class VectorEnv(GymVectorEnv[Any, Any, np.ndarray]):
    """A gymnasium vector env whose envs run in a few worker processes, several in each.

    It takes what ``gymnasium.vector.AsyncVectorEnv`` takes, raises what that raises, and returns
    what ``SyncVectorEnv`` returns, bit for bit. Calls from another thread while one is at work
    raise ``BusyError``, calls in a forked child ``ClosedError``.

    Args:
        env_fns: Functions that each make an env.
        shared_memory: Results always travel in shared memory. False only admits spaces that
            gymnasium does not know.
        copy: Whether returned observations are copies. Large observations are not copied either
            way: a frame that is still referred to is not written again.
        context: Where workers come from. None or "forkserver": they are forked from a clean
            interpreter. "fork": from this process. "spawn": each is an interpreter of its own.
        daemon: Ignored: workers always end with this process, and may have children.
        worker: A worker function as gymnasium's. It runs in a thread of the process that its env
            lives in.
        observation_mode: As gymnasium's: "same", "different", or a pair of spaces.
        autoreset_mode: As gymnasium's.
        max_concurrency: The largest number of workers.
        num_workers: The number of worker processes, at most one an env. By default the CPUs that
            this process may use. 0 steps the envs in this process: for debugging, and where steps
            are so short that workers cost more than they save. "auto" makes one more env, steps it
            for some milliseconds, and chooses ``main_envs`` too, so that a step of all envs takes
            the least time; ``division`` says what was chosen and why.
        main_envs: How many envs, the last ones, live in this process, which steps them while the
            workers step theirs: on as many CPUs as there are processes, faster than a worker more.
            "auto" chooses the number by a trial of one more env. By default there is a worker less
            then. ``on_worker_loss``, ``step_timeout`` and ``worker_init`` do not cover these envs,
            a crash of one ends the program, policies of samplers cannot be in workers, and envs
            that are simulated together cannot live here.
        groups: Each worker's envs are split into this many groups, which can be stepped
            independently.
        frames: The number of steps whose results have room in shared memory. With ``copy=False`` a
            returned observation is a view that stays as it is for ``frames - 1`` further steps.
        wait: How the processes wait for one another: "adaptive" learns how long to spin before it
            sleeps; "spin", "yield" and "park" are fixed.
        infos: "all"; "final" keeps those of steps that end an episode, "none" none. ``final_obs``
            is always there where envs are reset in the step that ends their episode.
        preload: Names of modules that the fork server imports before it forks workers. By default,
            modules of installed packages that the first vector env imported are preloaded for later
            ones; with more than two workers for each CPU, those that its first worker imported are
            preloaded for the others. If a module creates a random generator while it is imported,
            all workers draw the same numbers: do not preload such a module, or seed it in
            ``worker_init``.
        check_actions: Whether actions with nan raise ValueError.
        on_worker_loss: "raise" raises ``WorkerLostError``. "restart" starts another worker with new
            envs: the step in which the worker was lost ends their episodes (``truncated``, the last
            observation seen, ``info["worker_lost"]``), and their next resets have fresh seeds.
        max_restarts: A worker that is lost more often than this within ``restart_window`` seconds
            raises all the same.
        restart_window: See ``max_restarts``.
        step_timeout: Raise if an env takes longer than this many seconds to answer; see
            ``on_hang``.
        on_hang: What to do about such an env: "raise" raises ``EnvTimeoutError``, which names it
            and leaves the step pending; "wait" warns; "restart" replaces its worker.
        record_to: A file to which ``recv`` writes which envs formed each batch.
        replay_from: A file of an earlier run: ``recv`` returns the same batches in the same order.
        worker_init: A function without arguments that each worker runs before it makes its envs. It
            sets up what the program has set in modules (``cfg.SIZE = 5``), which workers import
            anew. The level and format of the root logger are taken over without it.
        trace: A file to which another process writes when each env stepped, and who waited for
            what, until ``close``. It is JSON, as ``torch.profiler`` writes, for ui.perfetto.dev. It
            ends at 1,000 MB.

    >>> envs = VectorEnv([lambda: gym.make("CartPole-v1")] * 8, num_workers=2)
    >>> envs
    VectorEnv(CartPole-v1, num_envs=8, num_workers=2)
    >>> observations, infos = envs.reset(seed=1)
    >>> observations, rewards, terminated, truncated, infos = envs.step(envs.action_space.sample())
    >>> rewards
    array([1., 1., 1., 1., 1., 1., 1., 1.])
    >>> envs.close()
    """

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
        num_workers: int | Literal["auto"] | None = None,
        main_envs: int | Literal["auto"] = 0,
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
        trace: str | os.PathLike[str] | None = None,
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
        self.max_concurrency = arguments.max_concurrency(max_concurrency)
        if not (worker_init is None or callable(worker_init)):
            raise TypeError(
                f"cannot make vector env: worker_init {worker_init!r}, expected a function"
            )
        self._check_actions = true_or_false("make vector env", "check_actions", check_actions)
        options = arguments.Options(groups=groups, frames=frames, wait=wait, infos=infos)
        faults = arguments.faults(
            *("make vector env", on_worker_loss, max_restarts, restart_window),
            *(step_timeout, on_hang),
        )
        self._replacements = Replacements()
        self._tracer: Tracer | None = None
        self._step_timeout = step_timeout
        self._timed_return = _core.TimedReturn()  # of recv
        functions = self.env_fns
        alike = all(function is functions[0] for function in functions)
        self._native = native = alike and getattr(functions[0], "native", False)
        if native and main_envs != 0:
            raise ValueError(
                f"cannot make vector env: main_envs {main_envs!r} for envs that are simulated "
                "together; pass native=False"
            )
        if native and num_workers == "auto":
            num_workers = None
        self.division = divide(num_workers, main_envs, functions, self.max_concurrency)
        self.num_workers = self.division.num_workers
        process = arguments.context(context)
        modules = arguments.preload(preload)
        assignments, own = self.division.assignments(self.num_envs, groups)
        specs = registered() if self.num_workers > 0 and process != "fork" else b""

        if worker is not None:
            from pysampler._vector.piped import PipedEnv, check_worker  # noqa: PLC0415 - rare

            check_worker(worker)
            if "restart" in (on_worker_loss, on_hang):
                raise ValueError("cannot make vector env: what `worker` runs cannot be restarted")
            functions = [
                functools.partial(PipedEnv, worker, i, env_fn, self.autoreset_mode)
                for i, env_fn in enumerate(functions)
            ]

        def make(assignment: WorkerAssignment) -> tuple[Callable[..., EnvServer], tuple[Any, ...]]:
            # This process has the specs, and sets itself up.
            prepared = (b"", None) if assignment is own else (specs, worker_init)
            if native:
                from pysampler._vector.mujoco.env_server import make_task_server  # noqa: PLC0415

                return make_task_server, (
                    functions[0],
                    assignment.first,
                    assignment.sizes,
                    *prepared,
                )
            chosen = functions[assignment.first : assignment.members.stop]
            return make_server, (chosen, assignment.first, assignment.sizes, *prepared)

        self._pool = Pool(
            assignments,
            make,
            own,
            context=process,
            preload=modules,
            policy=options.policy,
            faults=faults,
            restore=Restore(),
            for_replaced=self._replacements.notes,
        )
        try:
            spec = self._describe(self._pool.descriptions)
            self._pool.descriptions.clear()  # envs' spaces may be large
            self._core = core = VectorCore(
                self._pool,
                spec,
                FrameLayout(options.frames, self.autoreset_mode, options.infos),
                copy=self.copy,
                restarts="restart" in (on_worker_loss, on_hang),
                resets_itself=worker is not None,
                closed_message=(
                    f"Trying to operate on `{type(self).__name__}`, after a call to `close()`."
                ),
            )
            self.observations = core.results.observations()
            self._batches = Batches(core, record_to, replay_from)
            # Contexts of the calls in which speed counts.
            self._entries = {name: core.guard.entry(f"call {name}") for name in ("send", "recv")}
            if trace is not None:
                if not assignments:
                    raise ValueError("cannot make vector env: trace needs workers, there are none")
                from pysampler._workers.tracer import Tracer  # noqa: PLC0415 - rare

                self._tracer = Tracer(trace, self._pool.number)
        except BaseException:
            self._pool.abandon()
            raise

    def _describe(self, descriptions: Sequence[EnvDescription]) -> Spec:
        """Take over the envs' spaces and what else gymnasium says a vector env has."""
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
        return spec_of(self.single_observation_space, self.single_action_space)

    # -- reset -----------------------------------------------------------------------------------

    def reset(
        self,
        *,
        seed: int | list[int | None] | None = None,
        options: dict[str, Any] | list[dict[str, Any] | None] | None = None,
    ) -> tuple[Any, dict[str, Any]]:
        """Reset all envs, or those of ``options["reset_mask"]``.

        Args:
            seed: A number, to which the index of each env is added; or a list with one for each.
            options: What each env's ``reset`` gets: a dict, or a list with one for each.

        Returns:
            Observations and infos.
        """
        self.reset_async(seed=seed, options=options)
        return self.reset_wait()

    def reset_async(
        self,
        seed: int | list[int | None] | None = None,
        options: dict[str, Any] | list[dict[str, Any] | None] | None = None,
    ) -> None:
        """Begin a reset, whose results ``reset_wait`` returns.

        Args:
            seed: As of ``reset``.
            options: As of ``reset``.
        """
        core = self._core
        with core.enter("reset_async"):
            seeds = arguments.seeds(seed, self.num_envs)
            core.expect_idle("reset_async")
            self._replacements.begin_seeds(seed)
            mask = None
            if isinstance(options, dict) and "reset_mask" in options:
                mask = arguments.reset_mask(options["reset_mask"], self.num_envs)
                options = {k: v for k, v in options.items() if k != "reset_mask"}
            each = arguments.reset_options(options, self.num_envs)
            core.next_frame()
            jobs = {
                group: Reset(
                    [seeds[env] for env in envs],
                    [each[env] for env in envs],
                    None if mask is None else [bool(mask[env]) for env in envs],
                )
                for group, envs in enumerate(core.groups)
            }
            core.request(jobs, "reset")

    def reset_wait(self, timeout: float | None = None) -> tuple[Any, dict[str, Any]]:
        """Wait for the pending reset, and return observations and infos.

        Args:
            timeout: Seconds after which WaitTimeoutError is raised; the reset stays pending.
        """
        core = self._core
        with core.enter("reset_wait"):
            self._expect_pending("reset", "reset_wait")
            observations, _, _, _, infos = self._finish("reset_wait", timeout)
        core.call.returned = True
        self.observations = observations
        return observations, infos

    # -- step ------------------------------------------------------------------------------------

    # A step, and where each part of it is (C++ is in csrc/):
    #
    #          a usual step: one call of C++        any other: _step(), Python
    #  write   FrameAccess::write                   the same, or Results.write (results.py), or
    #                                               _send_objects(): pickled, not in the frame
    #  wake    PyPool::step (bindings/py_pool.h)    Pool.step (_workers/pool.py), Commands.step
    #          A command goes to the ring of each worker, and wakes it if it sleeps
    #          (command_sender.h).
    #  wait    PyPool::wait_all_back                Pool.wait
    #          The completion of the last group wakes this process (doorbell.h).
    #  read    FrameAccess::read                    Results.read
    #  return  Call::keep, PyPool::take_all         core.wait_and_keep(), core.hand_over()
    #
    # A step is usual if the call before it was a step that arm_fast_path() accepted, and no other
    # call came between. With check_actions=True none is. Where something needs Python, C++ stops,
    # and returns whether commands were sent. docs/design/waiting.md lists how a wait can end.
    #
    # A signal handler may raise between almost any two lines. So results stay in core.call until
    # `core.call.returned = True`, an assignment, since Python runs no handler between it and the
    # return, as it would after a call. If an exception comes before it, step_wait() returns them.

    def step(self, actions: Any) -> Stepped:
        """Step all envs.

        Args:
            actions: One for each env.

        Returns:
            Observations, rewards, terminated, truncated, infos.
        """
        core = self._core
        results: Stepped | bool = core.call.step(actions)  # csrc/bindings/call.cpp
        if isinstance(results, bool):  # False: nothing is sent. True: Python has to wait and read.
            results = self._step(actions, sent=results)
        core.call.returned = True
        self.observations = results[0]
        return results

    def _step(self, actions: Any, *, sent: bool) -> Stepped:
        core = self._core
        if core.pool.closed:
            raise core.closed_error()
        with core.step_entry:
            if not sent:
                self._send(actions)
            results = self._finish("step_wait", None)
            if not self._check_actions:
                core.arm_fast_path()
        return results

    def step_async(self, actions: Any) -> None:
        """Begin a step, whose results ``step_wait`` returns.

        Args:
            actions: One for each env.
        """
        with self._core.enter("step_async"):
            self._send(actions)

    def step_wait(self, timeout: float | None = None) -> Stepped:
        """Wait for the pending step, and return its results as ``step`` does.

        Args:
            timeout: Seconds after which WaitTimeoutError is raised; the step stays pending.
        """
        core = self._core
        with core.enter("step_wait"):
            self._expect_pending("step", "step_wait")
            results = self._finish("step_wait", timeout)
        core.call.returned = True
        self.observations = results[0]
        return results

    def _send(self, actions: Any) -> None:
        """Write actions to the next frame, and command all groups to step with it."""
        core = self._core
        core.expect_idle("step_async")
        if self._check_actions:
            arguments.refuse_nan(core.spec, self.num_envs, actions)
        frame = core.next_frame()
        core.call.begin("step")
        # Of the space's dtype or Python's own numbers; else of any dtype; else pickled.
        if core.results.access.write(frame, actions) or core.results.write(actions):
            core.pool.step(frame)
        else:
            self._send_objects(actions, core.everyone, core.group_frames())

    def _send_objects(
        self, actions: Any, envs: npt.NDArray[np.int64], group_frames: Sequence[tuple[int, int]]
    ) -> None:
        """Send actions that do not fit into arrays, split into one for each env by gymnasium."""
        space = self.action_space
        if len(envs) < self.num_envs:
            space = batch_space(self.single_action_space, len(envs))
        items = list(iterate(space, actions))
        if len(items) != len(envs):
            raise ValueError(f"cannot send actions: {len(items)} of them, expected {len(envs)}")
        by_env = dict(zip(envs.tolist(), items, strict=True))
        jobs = {g: StepWith([by_env[env] for env in self._core.groups[g]]) for g, _ in group_frames}
        self._core.pool.request(group_frames, jobs)

    def _finish(self, what: str, timeout: float | None) -> Stepped:
        """Wait until all groups are back, and read their results from the frame."""
        core = self._core
        core.wait_and_keep(what, timeout, core.results.read)
        results: Stepped = core.hand_over()
        return results

    def _expect_pending(self, state: str, what: str) -> None:
        core = self._core
        if core.call.name != state or core.pending is None:
            prior = "`send` or `async_reset`" if state == "send" else f"`{state}_async`"
            raise NoAsyncCallError(f"Calling `{what}` without any prior call to {prior}.", state)

    # -- some envs at a time ---------------------------------------------------------------------

    def send(self, actions: Any, env_ids: Any = None) -> None:
        """Begin a step of some envs or all, whose results ``recv`` returns.

        Args:
            actions: Row i is for env ``env_ids[i]``.
            env_ids: The envs: ``info["env_id"]`` of a batch answers that batch. The envs of a group
                step together, so they must be those of whole groups, in any order. None of them may
                be pending. None: all envs.
        """
        core = self._core
        if core.pool.closed:
            raise core.closed_error()
        with self._entries["send"]:
            envs = self._indices(env_ids)
            groups = self._batches.idle_groups("send", envs)
            if self._check_actions:
                arguments.refuse_nan(core.spec, len(envs), actions)
            core.announce_columns()
            results = core.results
            group_frames = results.access.start(groups)
            core.call.begin("send")
            if results.access.write_some(group_frames, actions) or results.write(actions, envs):
                core.pool.step_some(group_frames)
            else:
                self._send_objects(actions, envs, group_frames)

    def async_reset(
        self,
        seed: int | Sequence[int | None] | None = None,
        options: dict[str, Any] | list[dict[str, Any] | None] | None = None,
        env_ids: Any = None,
    ) -> None:
        """Begin a reset of some envs or all, whose results ``recv`` returns.

        Args:
            seed: A number, to which the index of each env is added; or a list with one for each of
                ``env_ids``.
            options: What each env's ``reset`` gets: a dict, or a list with one for each of
                ``env_ids``.
            env_ids: As of ``send``.
        """
        core = self._core
        with core.enter("async_reset"):
            chosen = self._indices(env_ids)
            groups = self._batches.idle_groups("async_reset", chosen)
            envs = chosen.tolist()
            if isinstance(seed, (int, np.integer)):
                seeds: list[int | None] = [int(seed) + env for env in envs]
            else:
                seeds = arguments.seeds(seed, len(envs))
            if env_ids is None:
                self._replacements.begin_seeds(seed)
            each = arguments.reset_options(options, len(envs))
            row_of = {env: row for row, env in enumerate(envs)}
            core.announce_columns()
            jobs = {}
            for group in groups:
                rows = [row_of[env] for env in core.groups[group]]
                jobs[group] = Reset([seeds[row] for row in rows], [each[row] for row in rows])
            core.call.begin("send")
            core.pool.request(core.results.access.start(groups), jobs)

    def recv(
        self,
        min_envs: int | Literal["auto"] | None = None,
        max_envs: int | None = None,
        timeout: float | Literal["auto"] | None = None,
    ) -> Stepped:
        """Return the results of envs that are ready, as soon as ``min_envs`` are.

        All envs that are ready are returned, longest ready first, by whole groups. An env that
        raised does so here; what others had to return comes with the next call.

        For EnvPool users: there ``recv`` waits without a deadline for ``batch_size`` envs and
        returns exactly that many. Here that is ``min_envs=batch_size, max_envs=batch_size`` with
        groups whose size divides it. ``info["env_id"]`` and ``async_reset()`` mean the same;
        episodes end as the ``autoreset_mode`` says.

        Args:
            min_envs: Wait until this many are ready; by default all that are pending. "auto": as
                many as give the most env steps a second, which calls with the same arguments try
                now and then. ``stats().batches`` says what was chosen.
            max_envs: Return at most this many.
            timeout: Seconds after which those that are ready are returned, perhaps none: then every
                array is empty. "auto": the time-out that gives the most env steps a second, if any;
                then at least one env is returned.

        Returns:
            Observations, rewards (0 for resets), terminated, truncated, infos, all the caller's
            own. ``info["env_id"]`` says which env each row belongs to.
        """
        core, batches = self._core, self._batches
        choose_timeout = arguments.is_auto("timeout", timeout)
        deadline = None if choose_timeout else arguments.deadline(timeout)
        wait_end = None if deadline is None else self._timed_return.wait_until(deadline)
        if core.pool.closed:
            raise core.closed_error()
        with self._entries["recv"]:
            self._expect_pending("send", "recv")
            least, most = self.num_envs, self.num_envs
            if min_envs is not None or max_envs is not None:
                least, most = arguments.batch(min_envs, max_envs, core.groups)
            tuner = None
            if choose_timeout or min_envs == "auto":
                chosen = None if min_envs == "auto" else least
                tuner = batches.tuner(chosen, most, timeouts=choose_timeout)
            results = batches.receive(least, most, wait_end, tuner)
        if results is not None:
            batches.returned += 1
            core.call.returned = True
            return results
        if self.closed:  # a signal handler has closed it meanwhile
            raise core.closed_error()
        if deadline is not None and not batches.replayed:
            self._timed_return.hold_until(deadline)
        return core.results.nothing()

    @property
    def pending(self) -> int:
        """The number of envs whose results ``recv`` has yet to return."""
        return 0 if self.closed else self._pool.pending + self._core.envs_kept

    @property
    def ready(self) -> int:
        """The number of envs whose results ``recv`` would return at once."""
        return 0 if self.closed else self._pool.ready + self._core.envs_kept

    def _indices(self, env_ids: Any) -> npt.NDArray[np.int64]:
        return self._core.everyone if env_ids is None else arguments.env_ids(env_ids)

    # -- options and counters --------------------------------------------------------------------

    def set_options(self, env_ids: Any, options: Any) -> int:
        """Set the options of envs' next resets, automatic or not: their tasks, for example.

        They travel with the next commands: nothing waits for it, and it may be called while envs
        are at work. Options given to ``reset`` take precedence.

        Args:
            env_ids: The envs; None: all.
            options: A dict for all of them, or a list with one for each. None instead of a dict
                removes the options.

        Returns:
            The version of these options: ``info["options_version"]`` says which version each env's
            episode was reset with, 0 for none.
        """
        core = self._core
        with core.enter("set_options"):
            envs = arguments.indices(self._indices(env_ids), self.num_envs)
            each = arguments.options(options, envs)
            core.options_version += 1
            core.results.show_versions = True
            by_env = {env: (one, core.options_version) for env, one in each}
            self._replacements.options.update(by_env)

            def note_for(envs: range) -> SetOptions | None:
                chosen = {env: by_env[env] for env in envs if env in by_env}
                return SetOptions(chosen) if chosen else None

            core.pool.note(note_for)
            return core.options_version

    def stats(self) -> Stats:
        """Return what envs and workers have done so far; a table when printed.

        >>> envs = VectorEnv([lambda: gym.make("CartPole-v1")] * 4, num_workers=2)
        >>> _ = envs.reset()
        >>> _ = envs.step(envs.action_space.sample())
        >>> envs.stats().steps.count
        array([1, 1, 1, 1], dtype=uint64)
        >>> envs.close()
        """
        with self._core.enter("stats"):
            return replace(self._pool.stats(), native=self._native, batches=self._batches.choice)

    @property
    def late(self) -> list[int]:
        """The envs that have not answered for longer than ``step_timeout``."""
        if self._step_timeout is None or self.closed:
            return []
        return [env for _, env, _ in self._pool.overdue(int(self._step_timeout * 1e9))]

    # -- calls -----------------------------------------------------------------------------------

    def call(self, name: str, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Call a method of each env, or get an attribute.

        Args:
            name: The name of the method or attribute.
            *args: Arguments of the method.
            **kwargs: Arguments of the method.

        Returns:
            The results, one for each env.
        """
        self.call_async(name, *args, **kwargs)
        return self.call_wait()

    def call_async(self, name: str, /, *args: Any, **kwargs: Any) -> None:
        """Begin to call a method of each env, whose results ``call_wait`` returns.

        Args:
            name: The name of the method or attribute.
            *args: Arguments of the method.
            **kwargs: Arguments of the method.
        """
        core = self._core
        with core.enter("call_async"):
            core.expect_idle("call_async")
            if name in ("reset", "step", "close", "_setattr", "_check_spaces"):
                raise ValueError(
                    f"Trying to call function `{name}` with `call`, use `{name}` directly instead."
                )
            job = Apply(call, (name, args, kwargs), f"{name}()")
            core.request(dict.fromkeys(core.all_groups, job), "call")

    def call_wait(self, timeout: float | None = None) -> tuple[Any, ...]:
        """Wait for the pending call, and return its results, one for each env.

        Args:
            timeout: Seconds after which WaitTimeoutError is raised; the call stays pending.
        """
        core = self._core
        with core.enter("call_wait"):
            self._expect_pending("call", "call_wait")
            answers = self._answers("call_wait", timeout)
        core.call.returned = True
        return answers

    def apply(
        self,
        function: Callable[..., Any],
        *args: Any,
        envs: Sequence[int] | None = None,
    ) -> tuple[Any, ...]:
        """Call ``function(env, *args)`` where each env is, and return the results.

        Args:
            function: A function of an env. It is pickled, as are its arguments and results.
            *args: Its further arguments.
            envs: Indices of the envs; None: all.

        Returns:
            The results, one for each env.

        >>> envs = VectorEnv([lambda: gym.make("CartPole-v1")] * 3, num_workers=1)
        >>> envs.apply(lambda env, x: env.unwrapped.gravity * x, 10, envs=[0, 2])
        (98.0, 98.0)
        >>> envs.close()
        """
        core = self._core
        with core.enter("apply"):
            core.expect_idle("apply")
            name = getattr(function, "__name__", type(function).__name__)
            chosen = None if envs is None else arguments.indices(envs, self.num_envs)
            job = Apply(function, args, f"{name}()", chosen)
            core.request(dict.fromkeys(core.all_groups, job), "apply")
            results = self._answers("apply", None)
        core.call.returned = True
        if chosen is None:
            return results
        by_env = dict(zip(sorted(set(chosen)), results, strict=True))
        return tuple(by_env[env] for env in chosen)

    def _answers(
        self, what: str, timeout: float | None, *, by_group: bool = False
    ) -> tuple[Any, ...]:
        """Wait for a call, and return its results, in the order of envs or of groups."""
        core = self._core

        def read(answers: Sequence[Answer]) -> tuple[Any, ...]:
            if failures := [(g, said) for g, said, _ in answers if isinstance(said, Failure)]:
                raise core.pool.error_of(*first(failures))
            said_by = {group: said for group, said, _ in answers}
            each = [said_by[group] for group in sorted(said_by)]
            return tuple(each) if by_group else tuple(one for said in each for one in said or ())

        core.wait_and_keep(what, timeout, read)
        results: tuple[Any, ...] = core.hand_over()
        return results

    def get_state(self, env_ids: Any = None) -> npt.NDArray[Any]:
        """Return the states of envs, a row each, which ``set_state`` restores.

        MuJoCo envs that are simulated together have rows with named parts: the state of the
        physics, of the episode and of the random generator. Other envs offer their state by methods
        ``get_state()`` and ``set_state(state)``, without which AttributeError is raised.

        Args:
            env_ids: The envs; None: all.
        """
        core = self._core
        with core.enter("get_state"):
            core.expect_idle("get_state")
            envs = arguments.indices(self._indices(env_ids), self.num_envs)
            chosen = [[env for env in envs if env in group] for group in core.groups]
            core.request(dict(enumerate(map(GetStates, chosen))), "get_state")
            states = np.concatenate(self._answers("get_state", None, by_group=True))
        core.call.returned = True
        order = np.argsort([env for ids in chosen for env in ids], kind="stable")
        result: npt.NDArray[Any] = states[order[np.argsort(np.argsort(envs, kind="stable"))]]
        return result

    def set_state(self, states: npt.NDArray[Any], env_ids: Any = None) -> None:
        """Give envs states that ``get_state`` has returned: their own, or those of other envs.

        With ``np.repeat(envs.get_state([0]), envs.num_envs)`` all go on as the first would. Where a
        worker was replaced and all envs of one of its groups are given states, the loss is not
        reported; the group resumes from the given states.

        Args:
            states: A row for each env.
            env_ids: The envs; None: all.
        """
        core = self._core
        with core.enter("set_state"):
            core.expect_idle("set_state")
            envs = arguments.indices(self._indices(env_ids), self.num_envs)
            states = arguments.rows(states)
            if len(states) != len(envs):
                raise ValueError(f"cannot set state: {len(states)} states, expected {len(envs)}")
            row = {env: row for row, env in enumerate(envs)}
            jobs = []
            for group in core.groups:
                ids = [env for env in row if env in group]
                of_all = len(ids) == len(group)
                jobs.append(SetStates(ids, states[[row[env] for env in ids]], of_all))
            core.request(dict(enumerate(jobs)), "set_state")
            self._answers("set_state", None)
        core.call.returned = True

    def get_attr(self, name: str) -> tuple[Any, ...]:
        """Return an attribute of each env.

        Args:
            name: The name of the attribute.
        """
        return self.call(name)

    def set_attr(self, name: str, values: list[Any] | tuple[Any, ...] | Any) -> None:
        """Set an attribute of each env.

        Args:
            name: The name of the attribute.
            values: A list or tuple with a value for each env, or one value for all.
        """
        core = self._core
        with core.enter("set_attr"):
            if not isinstance(values, (list, tuple)):
                values = [values] * self.num_envs
            if len(values) != self.num_envs:
                raise ValueError(
                    "Values must be a list or tuple with length equal to the number of "
                    f"environments. Got `{len(values)}` values for {self.num_envs} environments."
                )
            core.expect_idle("set_attr")
            jobs = {
                group: SetAttribute(name, [values[env] for env in envs])
                for group, envs in enumerate(core.groups)
            }
            core.request(jobs, "set_attr")
            self._answers("set_attr", None)
        core.call.returned = True

    def render(self) -> tuple[RenderFrame, ...] | None:
        """Return what each env renders."""
        return self.call("render")

    @property
    def np_random_seed(self) -> tuple[int, ...]:  # type: ignore[override]
        """The seed of each env's generator."""
        return self.get_attr("np_random_seed")

    @property  # type: ignore[misc]
    def np_random(self) -> tuple[np.random.Generator, ...]:  # type: ignore[override]
        """A copy of each env's generator."""
        return self.get_attr("np_random")

    # -- ending ----------------------------------------------------------------------------------

    @property
    def closed(self) -> bool:
        """Whether it was closed, or has ended because a worker was lost."""
        pool = getattr(self, "_pool", None)
        return pool is None or pool.closed

    @closed.setter
    def closed(self, _: bool) -> None:
        """Ignore what gymnasium's ``close`` sets when all has been closed."""

    def close(self, **kwargs: Any) -> None:
        """End the workers.

        A signal handler may call it while its own thread waits in another method, which then
        raises ClosedError. In a fork of the process that made the envs it does nothing.

        Args:
            **kwargs: Arguments of ``close_extras``.
        """
        if not self._core.guard.mine:
            return
        try:
            super().close(**kwargs)
        finally:
            if self.closed:
                try:
                    self._pool.close_inline()
                finally:
                    self._core.release()
                    if not self.copy:
                        self.observations = None
                    self._batches.close()
                    if self._tracer is not None:
                        self._tracer.close()

    def close_extras(self, timeout: float | None = None, terminate: bool = False) -> None:  # noqa: FBT001, FBT002
        """End the workers after what is pending.

        Args:
            timeout: Seconds to wait for what is pending, by default ten.
            terminate: Whether to end them at once.
        """
        core = self._core
        if core.guard.closed:  # an earlier call was interrupted
            core.pool.kill()
            return
        entry = core.guard.closing("call close")
        with entry:
            if entry.nested:
                core.pool.interrupt_wait()
            try:
                core.end(timeout, terminate=terminate)
            finally:
                core.guard.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        # Ctrl-C does not wait for an env in a long step, and needs no warning.
        self._core.hurry = ends_by_signal(kind)
        self.close(terminate=self._core.hurry)

    __copy__, __deepcopy__ = Uncopyable.__copy__, Uncopyable.__deepcopy__
    __reduce__ = Uncopyable.__reduce__

    def __del__(self) -> None:
        if (pool := getattr(self, "_pool", None)) is not None:
            pool.kill(wait=0)
        if (tracer := getattr(self, "_tracer", None)) is not None:
            tracer.end()

    def __repr__(self) -> str:
        name = self._name if self.spec is None else self.spec.id
        own = self.division.main_envs if self.num_workers > 0 else 0
        main = f", main_envs={own}" if own else ""
        return (
            f"{type(self).__name__}({name}, num_envs={self.num_envs}, "
            f"num_workers={self.num_workers}{main}{', native' * self._native})"
        )


def core_of(envs: VectorEnv) -> VectorCore:
    """Return the core of a vector env, for a sampler that leases it."""
    return envs._core
