"""VectorEnv: the drop-in replacement for ``gymnasium.vector.AsyncVectorEnv``.

Its methods check their arguments and drive a ``VectorCore``, which owns the pool and the frames.
The code favours ``step`` and ``recv``: a usual ``step`` is one call of C++ (see the map above it),
and rare features are imported only when they are used.
"""

from __future__ import annotations

import functools
import inspect
import warnings
import weakref
from copy import deepcopy
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

import gymnasium as gym
import numpy as np
from gymnasium.error import NoAsyncCallError
from gymnasium.vector.utils import batch_space, iterate
from gymnasium.vector.vector_env import AutoresetMode
from gymnasium.vector.vector_env import VectorEnv as GymVectorEnv

from pysampler import _core
from pysampler._common.closing import Uncopyable, comes_true, ends_by_signal
from pysampler._common.numbers import whole_number
from pysampler._frames.spec import Spaces, spec_of
from pysampler._vector import arguments
from pysampler._vector.blocks import copied_info
from pysampler._vector.core import FrameLayout, VectorCore
from pysampler._vector.division import Division, divide
from pysampler._vector.env_calls import call, reward_shape
from pysampler._vector.env_server import EnvDescription, EnvServer
from pysampler._vector.jobs import (
    Apply,
    GetStacks,
    GetStates,
    Replacements,
    Reset,
    SetAttribute,
    SetOptions,
    SetStates,
    StepWith,
)
from pysampler._vector.partial import BatchWait, PartialBatches
from pysampler._vector.preloads import modules_of_envs, modules_of_servers
from pysampler._vector.registry import registered
from pysampler._vector.results import first
from pysampler._vector.serving import WorkerInfo, make_server, worker_init_for
from pysampler._vector.stacks import described, log_once, might_be_native, why_not_native
from pysampler._vector.waiting import WaitCheck
from pysampler._workers import fork_server
from pysampler._workers.jobs import Failure
from pysampler._workers.pool import Pool
from pysampler._workers.processes import WorkerAssignment
from pysampler._workers.recovery import MAX_RESTARTS, RESTART_WINDOW
from pysampler.errors import BusyError

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Sequence
    from types import TracebackType
    from typing import Self

    import numpy.typing as npt
    from gymnasium.core import RenderFrame

    from pysampler._frames.spec import Spec
    from pysampler._vector.chunks import ChunkObservations
    from pysampler._vector.results import Stepped
    from pysampler._vector.spares import SpareEnvs
    from pysampler._workers.counters import Stats
    from pysampler._workers.jobs import Answer
    from pysampler._workers.tracer import Tracer

__all__ = ["DEFAULTS", "VectorEnv", "core_of"]

# Seconds that ``close`` waits for a call of another thread, and again after it has told it to end.
_CALL_OF_ANOTHER = 1.0


class VectorEnv(GymVectorEnv[Any, Any, np.ndarray]):
    """A drop-in for gymnasium's ``AsyncVectorEnv`` that runs several envs in each worker process.

    It takes the arguments of ``gymnasium.vector.AsyncVectorEnv``, raises the same exceptions, and
    returns the same results as ``SyncVectorEnv``, bit for bit. A call from a second thread while
    another is in progress raises ``BusyError``; a call in a forked child raises ``ClosedError``.

    Args:
        env_fns: Functions that each make an env or a gymnasium vector env. A worker steps a whole
            vector env in one call. ``num_envs`` counts its envs, but ``num_workers``, ``groups``
            and ``main_envs`` divide the functions. Its autoreset mode must equal
            ``autoreset_mode``, or be DISABLED if that is SAME_STEP.
        shared_memory: Accepted for compatibility: results always travel in shared memory. Pass
            False only to allow custom spaces, which gymnasium refuses with True.
        copy: Return observations that later steps never overwrite. Large ones are not copied if
            enough frames are free: their frame is not reused while you refer to them. False
            returns views of shared memory, see ``frames``.
        context: How workers start. By default ("forkserver") they are forked from a clean
            interpreter. "fork" forks this process with everything that it has loaded, which is
            unsafe if it has threads or a CUDA context. "spawn" starts an interpreter per worker.
            "threads": workers are threads of this process, for envs that release the GIL, or
            Python without it. No other option chooses them.
        daemon: Accepted for compatibility and ignored: workers always end with this process, and
            may start processes.
        worker: Only None, gymnasium's default: a function raises TypeError. Wrap the envs to change
            what they do.
        observation_mode: Pass "different", or a pair of spaces (batched, single), if the bounds of
            the envs' observation spaces differ, as in gymnasium.
        autoreset_mode: When to reset an env whose episode has ended, as in gymnasium: in the next
            step (NEXT_STEP), in the same step (SAME_STEP), or never (DISABLED).
        max_concurrency: The largest number of processes that step envs, as in gymnasium.
        num_workers: The number of worker processes, at most one per env. By default, the number of
            CPUs that this process may use: lower it to leave CPUs to a learner, raise it if envs
            wait for something other than a CPU (a log warning says so, with a number). 0 steps all
            envs in this process, for debugging or for very short steps, and refuses options that
            need workers. "auto" times one extra env
            for some milliseconds and chooses ``num_workers`` and ``main_envs`` for the fastest
            steps; see ``division``. With ``worker_init``, ``step_timeout``,
            ``on_worker_loss="restart"`` and ``recycle_...``, which only workers have, it is the
            default. Threads refuse it.
        main_envs: The number of envs that this process steps while the workers step theirs; it
            takes the last envs. With one process per CPU this beats one more worker, so the default
            ``num_workers`` is then one lower. "auto" times one extra env to choose the number.
            ``on_worker_loss``, ``step_timeout`` and ``worker_init`` do not cover these envs, a
            crash of one ends the program, and samplers cannot act in the workers.
        groups: Split each worker's envs into this many groups, which can be stepped independently:
            ``recv`` returns whole groups, and a sampler acts for one group while another steps.
        frames: The number of steps whose results fit into shared memory. With ``copy=False`` a
            returned observation does not change for ``frames - 1`` further steps: raise this to
            keep views for longer.
        wait: How processes wait for each other. "adaptive" learns how long to spin before sleeping.
            "park" sleeps at once, which leaves the CPU to other programs. "spin" keeps the CPU
            busy. "yield" offers it to others for 1 ms, then sleeps.
        infos: Which infos to return: "all", "final" (only in steps that end an episode) or "none".
            Fewer infos make steps faster. With SAME_STEP, ``final_obs`` is always returned.
        preload: Names of modules that the fork server imports before it forks workers, so that they
            start faster. By default, these are gymnasium's modules of the envs whose ids
            ``env_fns`` mention, unless these set environment variables or there is a
            ``worker_init``. Name large libraries of your envs (``["torch"]``) if you have many
            workers, or if workers are replaced: then workers start sooner, and share the memory of
            these modules. If a module creates a random generator during its import, all workers
            draw the same numbers: leave it out, or seed the generator in ``worker_init``.
        check_actions: Raise ValueError if actions contain NaN, before any env gets them. Steps are
            slower.
        on_worker_loss: If a worker dies, "raise" raises ``WorkerLostError``, and "restart" starts
            another with new envs: the interrupted step ends their episodes (``truncated``, the last
            observation seen, ``info["worker_lost"]``), and their next resets get fresh seeds.
        max_restarts: With "restart", raise nevertheless if one worker dies more often than this
            within ``restart_window``, or in one call, such as a reset, without a step in between.
        restart_window: Seconds in which restarts are counted; see ``max_restarts``.
        step_timeout: Raise if an env takes longer than this many seconds to answer; see
            ``on_hang``. None waits forever.
        on_hang: What to do when ``step_timeout`` has passed: "raise" raises ``EnvTimeoutError``,
            which names the env and leaves the step pending; "wait" issues a warning and continues
            to wait; "restart" replaces the env's worker.
        recycle_after: Renew each worker after this many episodes of its envs together, so that
            memory that a simulator leaks is freed: another process takes its place. A worker with
            one env waits for the end of its episode; running episodes of several are truncated.
        recycle_above: Renew a worker that itself uses more memory than this: bytes, or text with a
            unit such as "2 GB" or "500 MiB". Memory that it shares with others does not count.
            Workers are measured every few seconds.
        record_to: A file to which ``recv`` writes the envs of each batch, for ``replay_from``.
        replay_from: A file that ``record_to`` wrote in an earlier run: ``recv`` returns the same
            batches in the same order.
        worker_init: A function that each worker runs before it makes its envs. If it takes an
            argument, it gets a :class:`pysampler.WorkerInfo` with the worker's number and envs.
            Workers import modules anew, so use it to repeat changes that your program made to them
            (``cfg.SIZE = 5``). The level and format of the root logger carry over without it.
        seed_globals: Let a seed of ``reset`` also seed ``random``, ``np.random`` and torch (if
            imported) for the env. Each env then draws from its own states of these generators, so
            its results depend neither on ``num_workers`` nor on other envs. Envs are stepped one by
            one, and each step takes some microseconds longer.
        trace: A file for a timeline of env steps and of processes waiting for each other, in the
            JSON format of ``torch.profiler``; open it in ui.perfetto.dev. A separate process writes
            it until ``close``, or until it has 1,000 MB.
        native: Let workers step gymnasium's MuJoCo and classic control envs together, and run
            gymnasium's wrappers on arrays of all their envs. Results are the same, bit for bit.
            "auto" does so where short trials find no difference; ``describe()`` shows where, and
            gives the reason elsewhere. True raises ValueError if an env cannot be stepped this way.
            False steps envs one by one.
        isolate: Whether envs must not share a process. True gives each function a worker, whatever
            ``num_workers``, ``main_envs`` and ``max_concurrency`` are. "check" runs
            :func:`pysampler.check_isolation` first if envs would share a process, beside envs of
            two other functions if they differ, and does so too, with a log warning, unless the
            check finds that they may. It checks the envs that functions make, also if workers then
            step them together.
        spare_envs: Make so many further envs. If an episode ends, its slot goes on at once with a
            spare env that has been reset, and the env that ended is reset while others step.
            ``num_workers`` is then by default the number of all envs. Episodes have other seeds
            than without spares, which follow from the seed of ``reset``.
            ``infos["env_in_slot"]`` says which env steps in each slot.

    Attributes:
        division: How the envs are divided between workers and this process, and why: a
            :class:`pysampler.Division`, which prints as a sentence.

    >>> envs = VectorEnv([lambda: gym.make("CartPole-v1")] * 8, num_workers=2)
    >>> envs
    VectorEnv(CartPole-v1, num_envs=8, num_workers=2, native)
    >>> observations, infos = envs.reset(seed=1)
    >>> observations, rewards, terminated, truncated, infos = envs.step(envs.action_space.sample())
    >>> rewards
    array([1., 1., 1., 1., 1., 1., 1., 1.])
    >>> envs.close()
    """

    division: Division
    num_workers: int
    reward_space: gym.spaces.Box | None
    _name: str
    _core: VectorCore
    _only_envs_with = ""  # an option that needs functions that make single envs

    def __init__(
        self,
        env_fns: Sequence[Callable[[], gym.Env[Any, Any] | GymVectorEnv[Any, Any, Any]]],
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
        recycle_after: int | None = None,
        recycle_above: int | str | None = None,
        record_to: str | os.PathLike[str] | None = None,
        replay_from: str | os.PathLike[str] | None = None,
        worker_init: Callable[..., Any] | None = None,
        seed_globals: bool = False,
        trace: str | os.PathLike[str] | None = None,
        native: Literal["auto"] | bool = "auto",
        isolate: Literal["check"] | bool = False,
        spare_envs: int = 0,
    ) -> None:
        given = {name: value for name, value in locals().items() if name != "self"}
        self._spares: SpareEnvs | None = None
        if whole_number("make vector env", "spare_envs", spare_envs, 0) > 0:
            self._open_with_spares(given)
        else:
            self._open(arguments.checked(given))

    def _open_with_spares(self, given: dict[str, Any]) -> None:
        """Make the envs, of which some are spare, in a vector env inside of this one."""
        from pysampler._vector.spares import SpareEnvs, divided  # noqa: PLC0415 - rare

        functions = arguments.env_fns(given.pop("env_fns"))
        outer, inner = divided(given)
        count, mode = given["spare_envs"], arguments.autoreset_mode(given["autoreset_mode"])
        spares = SpareEnvs(_make_inner, core_of, functions, count, mode, inner)
        outer |= {"env_fns": [lambda: spares], "num_workers": 0}
        self._open(arguments.checked({**DEFAULTS, **outer}))
        spares.serve(self._core.pool)
        self._spares, self.env_fns = spares, functions
        self.division = replace(spares.inner.division, spare_envs=count)
        self.num_workers, self._name = spares.inner.num_workers, spares.inner._name
        self.context, self.worker_init = given["context"], given["worker_init"]
        self.seed_globals = given["seed_globals"]

    def _open(self, options: Any) -> None:
        """Make the envs, with options that ``arguments.checked`` has returned."""
        self.env_fns = options.env_fns
        self.shared_memory, self.copy = options.shared_memory, options.copy
        self.context, self.daemon, self.worker = options.context, options.daemon, options.worker
        self.worker_init, self.seed_globals = options.worker_init, options.seed_globals
        self.observation_mode = options.observation_mode
        self.autoreset_mode: AutoresetMode = options.autoreset_mode
        self.max_concurrency = options.max_concurrency
        self._check_actions = options.check_actions
        self._step_timeout = options.step_timeout
        self._replacements = Replacements()
        self._tracer: Tracer | None = None
        self._waits: WaitCheck | None = None
        self._timed_return = _core.TimedReturn()  # of recv
        self._divide(options)
        assignments, inline = self.division.assignments(len(self.env_fns), options.groups)
        if options.trace is not None and not assignments:
            raise ValueError("cannot make vector env: trace needs workers, got none")
        self._pool = self._start(options, assignments, inline)
        try:
            self._lay_out(options, mixed=inline is not None)
            self._batches = PartialBatches(self._core, options.record_to, options.replay_from)
            shares = self.division.shares(len(self.env_fns))
            if options.num_workers is None and assignments and shares:
                self._waits = WaitCheck(self._pool, len(self.env_fns))
            # Made once: these calls must be fast.
            guard = self._core.guard
            self._entries = {name: guard.entry(f"call {name}") for name in ("send", "recv")}
            if options.trace is not None:
                from pysampler._workers.tracer import Tracer  # noqa: PLC0415 - rare

                self._tracer = Tracer(options.trace, self._pool.number)
        except BaseException:
            self._pool.abandon()
            raise

    def _divide(self, options: Any) -> None:
        """Divide the envs between workers and this process."""
        functions, num_workers = self.env_fns, options.num_workers
        # "auto" goes by the time of a step in Python, and may step envs in this process.
        alike = all(function is functions[0] for function in functions)
        tasks = alike and getattr(functions[0], "makes_tasks", False)
        for_workers = options.worker_init is not None or options.faults.for_workers
        untried = ""
        if num_workers == "auto" and (tasks or for_workers):
            num_workers = None
            untried = "workers may step envs of this kind together"
            if for_workers:
                untried = "worker_init, step_timeout, restarts and recycling need workers"
        self.division = divide(
            num_workers,
            options.main_envs,
            functions,
            self.max_concurrency,
            groups=options.groups,
            native=options.why_python is None,
            isolate=options.isolate is True,
            untried=untried,
        )
        if self.division.num_workers == 0 and options.main_envs != "auto":
            arguments.refuse("num_workers=0", vars(options))
        if options.isolate == "check" and self.division.shares(len(functions)):
            from pysampler._vector.isolation.check import may_share  # noqa: PLC0415 - rare

            of_workers = options.worker_init, options.process
            if not may_share(functions, *of_workers, seed_globals=self.seed_globals):
                self.division = Division(len(functions), 0)
        self.num_workers = self.division.num_workers
        if isinstance(num_workers, int) and num_workers > len(functions):
            log_once(
                f"num_workers={num_workers} for {len(functions)} envs, expected at most one worker "
                f"for each: {self.num_workers} were started"
            )

    def _start(
        self, options: Any, assignments: Sequence[WorkerAssignment], inline: WorkerAssignment | None
    ) -> Pool:
        """Start the workers; each makes its envs, and this process those that are ``inline``."""
        process, in_python = options.process, options.why_python is not None
        specs = registered() if assignments and process in ("forkserver", "spawn") else b""
        numbers = {one.first: number for number, one in enumerate(assignments)}

        def make(assignment: WorkerAssignment) -> tuple[Callable[..., EnvServer], tuple[Any, ...]]:
            # This process has the specs already, and worker_init is for workers only.
            is_inline = assignment is inline
            number = 0 if is_inline else numbers[assignment.first]
            worker = WorkerInfo(number, len(assignments), assignment.envs)
            init = worker_init_for(options.worker_init, worker)
            chosen = self.env_fns[assignment.first : assignment.envs.stop]
            of_server = chosen, assignment.first, assignment.sizes
            prepared = (b"", None) if is_inline else (specs, init)
            how = options.why_python, is_inline or process == "threads", self.seed_globals
            return make_server, (*of_server, *prepared, *how)

        needs = modules_of_servers(in_python=in_python)
        # Neither worker_init nor what imports depend on may come too late.
        foresees = len(assignments) > 0 and process == "forkserver" and options.modules is None
        if foresees and self.worker_init is None and fork_server.current().has_surroundings():
            needs += modules_of_envs(self.env_fns, in_python=in_python)
        return Pool(
            assignments,
            make,
            inline,
            context=process,
            needs=needs,
            preload=options.modules or (),
            policy=options.policy,
            faults=options.faults,
            for_replaced=self._replacements.notes,
            ended=_called_weakly(self._ended),
        )

    def _lay_out(self, options: Any, *, mixed: bool) -> None:
        """Look at the envs that were made, and lay out frames for them.

        Args:
            options: The options.
            mixed: Whether this process steps envs too.
        """
        self.num_envs = self._pool.group_envs[-1].stop  # a function may return a vector env
        descriptions = self._pool.descriptions
        faults = options.faults
        option = "recycle_above" if faults.recycle_after is None else "recycle_after"
        self._refuse_several(option if faults.recycles else self._only_envs_with)
        nested = [one for description in descriptions for one in description.nested]
        spec = self._describe(descriptions)
        for found in sorted({one for d in descriptions for one in d.interfering}):
            log_once(found)
        self._expect_native(options.native, options.isolate, descriptions)
        descriptions.clear()  # envs' spaces may be large
        self._core = VectorCore(
            self._pool,
            spec,
            # Two frames, so that the last results seen outlive a step in which an env raises or is
            # lost. One more, so that they outlive one that is interrupted.
            FrameLayout(max(options.frames, 2) + mixed, self.autoreset_mode, options.infos),
            copy=self.copy,
            restarts=faults.replaces or mixed,
            closed_message=(
                f"Trying to operate on `{type(self).__name__}`, after a call to `close()`."
            ),
            nested=nested,
        )
        self.observations = self._core.results.observations()

    def _ended(self, envs: range) -> list[bool] | None:
        """Return which envs ended their episodes in the last step; None: a sampler drives them."""
        return None if self._core.lease is not None else self._core.results.ended(envs)

    def _refuse_several(self, option: str) -> None:
        """Raise ValueError if a function has made several envs, and this option is given."""
        if option and any(description.several for description in self._pool.descriptions):
            raise ValueError(f"cannot make vector env: {option} needs envs, not vector envs")

    def _describe(self, descriptions: Sequence[EnvDescription]) -> Spec:
        """Set the spaces, metadata and render mode, and return the spec."""
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
        rewards = reward_shape(one.reward_space)
        for description in descriptions[1:]:
            if reward_shape(description.reward_space) != rewards:
                raise ValueError(
                    f"cannot batch rewards: some envs have the reward_space {one.reward_space}, "
                    f"others {description.reward_space}"
                )
        self.reward_space = one.reward_space
        spec = spec_of(self.single_observation_space, self.single_action_space, rewards)
        if self.shared_memory:
            arguments.refuse_custom(self.single_observation_space, spec)
        return spec

    def _expect_native(
        self, native: Any, isolate: Any, descriptions: Sequence[EnvDescription]
    ) -> None:
        """Record whether all envs are native; raise or log a warning if they could be but are not.

        Raises:
            ValueError: ``native`` is True, but some are not.
        """
        stacks = [stack for one in descriptions for stack in one.stacks]
        why = why_not_native(stacks)
        self._native = why is None
        if why is not None and native is True:
            given = "native=True" + f" with isolate={isolate!r}" * (isolate is not False)
            raise ValueError(f"cannot make vector env: {given}, but {why}")
        if why is not None and native == "auto" and might_be_native(stacks):
            log_once(f"{self._name} is stepped in Python, which is slow: {why}")

    # -- reset -----------------------------------------------------------------------------------

    def reset(
        self,
        *,
        seed: int | list[int | None] | None = None,
        options: dict[str, Any] | list[dict[str, Any] | None] | None = None,
    ) -> tuple[Any, dict[str, Any]]:
        """Reset all envs, or those of ``options["reset_mask"]``, and wait for the results.

        If an exception such as Ctrl-C has interrupted a ``step``, a reset of all envs drops the
        results of that step.

        Args:
            seed: A number, to which each env's index is added, or a list with one seed per env.
                None leaves the envs' random generators as they are.
            options: Options for each env's ``reset``: a dict for all, or a list with one per env.
                ``{"reset_mask": mask}`` resets only the envs where the mask is True.

        Returns:
            Observations and infos.
        """
        self._start_reset(seed, options, awaited=False)
        return self.reset_wait()

    def reset_async(
        self,
        seed: int | list[int | None] | None = None,
        options: dict[str, Any] | list[dict[str, Any] | None] | None = None,
    ) -> None:
        """Start a reset; ``reset_wait`` returns its results.

        Args:
            seed: See ``reset``.
            options: See ``reset``.
        """
        self._start_reset(seed, options, awaited=True)

    def _start_reset(self, seed: Any, options: Any, *, awaited: bool) -> None:
        core = self._core
        with core.enter("reset_async"):
            seeds = arguments.seeds(seed, self.num_envs)
            mask = None
            if isinstance(options, dict) and "reset_mask" in options:
                mask = arguments.reset_mask(options["reset_mask"], self.num_envs)
                options = {k: v for k, v in options.items() if k != "reset_mask"}
            each = arguments.reset_options(options, self.num_envs)
            core.expect_idle("reset_async", resets_all=mask is None)
            self._replacements.begin_seeds(seed)
            core.next_frame()
            jobs = {
                group: Reset(
                    [seeds[env] for env in envs],
                    [each[env] for env in envs],
                    None if mask is None else [bool(mask[env]) for env in envs],
                )
                for group, envs in enumerate(core.groups)
            }
            core.request(jobs, "reset", awaited=awaited)

    def reset_wait(self, timeout: float | None = None) -> tuple[Any, dict[str, Any]]:
        """Wait for the pending reset and return observations and infos.

        Args:
            timeout: Raise WaitTimeoutError after this many seconds; the reset stays pending, so
                that you can wait again. None waits forever.
        """
        core = self._core
        with core.enter("reset_wait"):
            self._expect_pending("reset", "reset_wait")
            self._batches.chunks = None
            observations, _, _, _, infos = self._finish("reset_wait", timeout)
        core.call.returned = True
        self.observations = observations
        return observations, infos

    # -- step ------------------------------------------------------------------------------------

    # The stages of a step, and the code of each (C++ is in csrc/):
    #
    #          usual step: one call of C++          any other step: _step(), in Python
    #  write   FrameAccess::write                   the same, or Results.write (results.py), or
    #                                               _send_objects(): pickled, not in the frame
    #  wake    PyPool::step (bindings/py_pool.h)    Pool.step (_workers/pool.py), Commands.step
    #          Each worker gets a command in its ring, which wakes it if it sleeps
    #          (command_sender.h).
    #  wait    PyPool::wait_all_back                Pool.wait
    #          The completion of the last group wakes this process (doorbell.h).
    #  read    FrameAccess::read                    Results.read
    #  return  Call::hand_over                      core.finish()
    #
    # A step is usual if the previous call was a step that arm_fast_path() accepted. With
    # check_actions=True, none is. If C++ needs Python (an env raised, a worker died), it stops and
    # returns whether commands were sent. docs/design/waiting.md lists how a wait can end.
    #
    # A signal handler may raise between almost any two lines, so the groups stay in flight until
    # `core.call.returned = True`: an assignment, since Python runs no handler between it and the
    # return, as it would after a call. If an exception comes earlier, step_wait() reads again.

    def step(self, actions: Any) -> Stepped:
        """Step all envs and wait for the results.

        Args:
            actions: A batch of actions, one per env, as ``action_space`` samples them.

        Returns:
            Observations, rewards, terminated, truncated, infos.

        Raises:
            EnvError: An env raised. The error's ``results`` are those of the other envs, and the
                next step goes on: pysampler does not reset the env that raised.
        """
        core = self._core
        try:
            results: Stepped | bool = core.call.step(actions)  # csrc/bindings/call.cpp
            if isinstance(results, bool):  # False: nothing was sent. True: Python waits and reads.
                results = self._step(actions, sent=results)
        except BaseException:
            core.call.returned = False
            raise
        core.call.returned = True
        self.observations = results[0]
        return results

    def _step(self, actions: Any, *, sent: bool) -> Stepped:
        core = self._core
        if core.pool.closed:
            raise core.closed_error()
        with core.step_entry:
            if not sent:
                self._send(actions, awaited=False)
            results = self._finish("step_wait", None)
            if not self._check_actions and (self._waits is None or self._waits.look()):
                core.arm_fast_path()
        return results

    def step_async(self, actions: Any) -> None:
        """Start a step; ``step_wait`` returns its results.

        Args:
            actions: See ``step``.
        """
        with self._core.enter("step_async"):
            self._send(actions, awaited=True)

    def step_wait(self, timeout: float | None = None) -> Stepped:
        """Wait for the pending step and return its results, like ``step``.

        Args:
            timeout: Raise WaitTimeoutError after this many seconds; the step stays pending, so that
                you can wait again. None waits forever.
        """
        core = self._core
        with core.enter("step_wait"):
            self._expect_pending("step", "step_wait")
            results = self._finish("step_wait", timeout)
            last = self._last_of(results[0])
        core.call.returned = True
        self.observations = last
        return results

    def _send(self, actions: Any, *, awaited: bool) -> None:
        """Write actions to the next frame and command all groups to step."""
        core = self._core
        core.expect_idle("step_async")
        if self._check_actions:
            arguments.refuse_nan(core.spec, self.num_envs, actions)
        frame = core.next_frame()
        self._batches.chunks = None
        core.begin("step", awaited=awaited)
        # FrameAccess.write takes the space's dtype and Python numbers, Results.write any dtype.
        if core.results.access.write(frame, actions) or core.results.write(actions):
            core.pool.step(frame)
        else:
            self._send_objects(actions, core.everyone, core.group_frames())

    def _send_objects(
        self, actions: Any, envs: npt.NDArray[np.int64], group_frames: Sequence[tuple[int, int]]
    ) -> None:
        """Send actions that do not fit into arrays as one object per env, split by gymnasium."""
        space = self.action_space
        if len(envs) < self.num_envs:
            space = batch_space(self.single_action_space, len(envs))
        # Pickling copies them for a worker process; an env here must not write to the caller's.
        items = list(iterate(space, deepcopy(actions)))
        if len(items) != len(envs):
            raise ValueError(f"cannot send actions: {len(items)} of them, expected {len(envs)}")
        by_env = dict(zip(envs.tolist(), items, strict=True))
        jobs = {g: StepWith([by_env[env] for env in self._core.groups[g]]) for g, _ in group_frames}
        self._core.pool.request(group_frames, jobs)

    def step_chunk(self, actions: Any, *, observations: ChunkObservations = "last") -> Stepped:
        """Let each env make several steps in a row, with one command, and wait for the results.

        The results are those of calls of ``step``, bit for bit. An env whose episode ends stops
        there, since the rest of its actions were chosen for that episode: their rewards are 0. With
        SAME_STEP it is reset in that step. With NEXT_STEP its next chunk only resets it, and takes
        none of the actions. With DISABLED you reset it.

        Args:
            actions: Arrays as in ``step``, with a dimension for the steps: ``[num_envs, steps]``,
                and then that of an action.
            observations: "last" returns the observations after each env's last step. "all" returns
                those after each step, ``[num_envs, steps, ...]``; after the end of an episode, the
                last one is repeated. The attribute ``observations`` has the last ones, as after
                ``step``.

        Returns:
            Observations, rewards (``[num_envs, steps]``), terminated, truncated, infos of each
            env's last step. ``info["steps"]`` says how many actions each env took.

        >>> envs = VectorEnv([lambda: gym.make("CartPole-v1")] * 2, num_workers=1)
        >>> _ = envs.reset(seed=1)
        >>> _, rewards, terminated, _, infos = envs.step_chunk(np.ones((2, 12), int))
        >>> terminated, infos["steps"], rewards.sum(axis=1)
        (array([ True,  True]), array([ 9, 10]), array([ 9., 10.]))
        >>> envs.close()
        """
        core = self._core
        results: Stepped | bool = False
        try:
            if observations == "last":
                results = core.call.step_chunk(actions)  # as in step
            if isinstance(results, bool):
                results, last = self._step_chunk(actions, observations, sent=results)
            else:
                last = results[0]
        except BaseException:
            core.call.returned = False
            raise
        core.call.returned = True
        self.observations = last
        return results

    def _step_chunk(
        self, actions: Any, observations: ChunkObservations, *, sent: bool
    ) -> tuple[Stepped, Any]:
        """Return the results of a chunk, and the observations after the last steps."""
        from pysampler._vector.chunks import Chunks  # noqa: PLC0415 - most programs need none

        core = self._core
        with core.enter("step_chunk"):
            if not sent:
                core.expect_idle("step_chunk")
                chunks = Chunks.of(core, "step_chunk", observations)
                check = self._check_actions
                steps = chunks.write("step_chunk", actions, core.everyone, check=check)
                self._batches.chunks = chunks
                chunks.send("step", core.all_groups, steps)
            results = self._finish("step_wait", None)
            if not self._check_actions:
                core.arm_fast_path(results[1].shape[1])
            return results, self._last_of(results[0])

    def _last_of(self, observations: Any) -> Any:
        """Return the observations after the last steps, out of those that a call returns."""
        chunks = self._batches.chunks
        return observations if chunks is None else chunks.last_of(observations)

    def _finish(self, what: str, timeout: float | None) -> Stepped:
        """Wait for all groups and read their results from the frame."""
        core = self._core
        chunks = self._batches.chunks
        of_step = core.results.read_step if what == "step_wait" else core.results.read
        read, groups = (of_step, None) if chunks is None else (chunks.read, core.all_groups)
        return core.finish(what, timeout, read, groups=groups, seen=True)

    def _expect_pending(self, state: str, what: str) -> None:
        core = self._core
        if core.call.name != state or core.pending is None:
            prior = "`send` or `async_reset`" if state == "send" else f"`{state}_async`"
            raise NoAsyncCallError(f"Calling `{what}` without any prior call to {prior}.", state)

    # -- some envs at a time ---------------------------------------------------------------------

    def send(self, actions: Any, env_ids: Any = None) -> None:
        """Start a step of some or all envs; ``recv`` returns the results.

        Args:
            actions: A batch of actions: row i is for env ``env_ids[i]``.
            env_ids: The indices of the envs to step, none of which may be pending; None: all. To
                answer a batch, pass its ``info["env_id"]``. The envs of a group step together, so
                ``env_ids`` must cover whole groups, in any order.
        """
        core = self._core
        if core.pool.closed:
            raise core.closed_error()
        with self._entries["send"]:
            envs = self._indices(env_ids)
            groups = self._batches.idle_groups("send", envs)
            if self._check_actions:
                arguments.refuse_nan(core.spec, len(envs), actions)
            self._batches.forget_chunks(groups)
            core.announce_columns()
            results = core.results
            group_frames = results.access.start(groups)
            core.begin("send", awaited=True)
            if results.access.write_some(group_frames, actions) or results.write(actions, envs):
                core.pool.step_some(group_frames)
            else:
                self._send_objects(actions, envs, group_frames)

    def send_chunk(
        self, actions: Any, env_ids: Any = None, *, observations: ChunkObservations = "last"
    ) -> None:
        """Start a chunk of steps of some or all envs; ``recv`` returns results as ``step_chunk``.

        From then on ``recv`` returns rewards of ``[envs, steps]`` until all chunks have come back
        and you call ``send``. A reset takes no action: ``info["steps"]`` is 0.

        Args:
            actions: Arrays with a row for each of ``env_ids``; see ``step_chunk``. A first chunk,
                or one that is longer than all before, needs a moment when no env is pending.
            env_ids: The indices of the envs; see ``send``.
            observations: See ``step_chunk``.
        """
        from pysampler._vector.chunks import Chunks  # noqa: PLC0415 - most programs need none

        core = self._core
        with core.enter("send_chunk"):
            envs = self._indices(env_ids)
            groups = self._batches.idle_groups("send_chunk", envs)
            before = self._batches.chunks
            chunks = Chunks.of(core, "send_chunk", observations, before)
            steps = chunks.write("send_chunk", actions, envs, check=self._check_actions)
            self._batches.chunks = chunks
            chunks.send("send", groups, steps)

    def async_reset(
        self,
        seed: int | Sequence[int | None] | None = None,
        options: dict[str, Any] | list[dict[str, Any] | None] | None = None,
        env_ids: Any = None,
    ) -> None:
        """Start a reset of some or all envs; ``recv`` returns the results.

        Args:
            seed: A number, to which each env's index is added, or a list with one seed for each of
                ``env_ids``. None leaves the envs' random generators as they are.
            options: Options for each env's ``reset``: a dict for all, or a list with one for each
                of ``env_ids``.
            env_ids: The indices of the envs to reset; see ``send``.
        """
        core = self._core
        with core.enter("async_reset"):
            if isinstance(options, dict) and "reset_mask" in options:
                raise ValueError("cannot reset: options have a reset_mask, expected env_ids")
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
            self._batches.forget_chunks(groups)
            core.announce_columns()
            jobs = {}
            for group in groups:
                rows = [row_of[env] for env in core.groups[group]]
                jobs[group] = Reset([seeds[row] for row in rows], [each[row] for row in rows])
            core.begin("send", awaited=True)
            core.pool.request(core.results.access.start(groups), jobs)

    def recv(
        self,
        min_envs: int | Literal["auto"] | None = None,
        max_envs: int | None = None,
        timeout: float | Literal["auto"] | None = None,
        *,
        timeout_from: Literal["call", "first"] = "call",
    ) -> Stepped:
        """Wait until ``min_envs`` envs are ready, and return the results of all ready envs.

        Envs come in whole groups; the group that has been ready for longest comes first. If an env
        raised, this call raises its exception, and the next call returns the results of the others.

        If you come from EnvPool: its ``recv`` waits without a deadline and returns exactly
        ``batch_size`` envs. Here, pass ``min_envs=batch_size, max_envs=batch_size``, with groups
        whose size divides it. ``info["env_id"]`` and ``async_reset()`` mean the same; episodes end
        according to ``autoreset_mode``.

        Args:
            min_envs: Wait until this many envs are ready; None: all that are pending. Lower it so
                that slow envs do not delay the others. "auto" measures several numbers in short
                trials now and then, and uses the one with the most env steps per second;
                ``stats().batches`` shows the choice.
            max_envs: Return at most this many envs; the others stay ready. None: no limit.
            timeout: Return the ready envs after this many seconds; if there are none, all arrays
                are empty. None waits forever. "auto" measures whether a time-out gives more env
                steps per second, and returns at least one env.
            timeout_from: Count ``timeout`` from the "call" of ``recv``; or from the moment the
                "first" env is ready, for which ``recv`` then waits without limit.

        Returns:
            Observations, rewards (0 for resets), terminated, truncated, infos. Later calls do not
            overwrite the arrays. ``info["env_id"]`` holds the env of each row.
        """
        core, batches = self._core, self._batches
        choose_timeout = arguments.is_auto("timeout", timeout)
        deadline = after_first = None
        if arguments.from_first("receive", timeout_from, timeout):
            after_first = arguments.nanoseconds(timeout)
        elif not choose_timeout:
            deadline = arguments.deadline(timeout)
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
            wait = BatchWait(least, most, wait_end, after_first)
            results = batches.receive(wait, tuner)
            held_until = deadline if batches.timed_out else None
            if results is not None and held_until is not None:
                self._timed_return.hold_until(held_until)
        if results is not None:
            batches.returned += 1
            core.call.returned = True
            return results
        if self.closed:  # by a signal handler during the wait
            raise core.closed_error()
        if held_until is not None:
            self._timed_return.hold_until(held_until)
        return core.results.nothing() if batches.chunks is None else batches.chunks.nothing()

    @property
    def pending(self) -> int:
        """The number of envs whose results ``recv`` has yet to return."""
        return self._pool.pending if self._has_frames else 0

    @property
    def ready(self) -> int:
        """The number of envs whose results ``recv`` would return without waiting."""
        return self._pool.ready if self._has_frames else 0

    @property
    def _has_frames(self) -> bool:
        """Whether results may be pending: not while the workers attach to other frames."""
        return not self.closed and self._core.call.laid_out

    def _indices(self, env_ids: Any) -> npt.NDArray[np.int64]:
        return self._core.everyone if env_ids is None else arguments.env_ids(env_ids)

    # -- options and counters --------------------------------------------------------------------

    def set_options(self, env_ids: Any, options: Any) -> int:
        """Set options, such as a task, for the next and later resets of envs, automatic or not.

        This call does not wait, and you may call it while envs are stepping: the options travel
        with the next commands. Options passed to ``reset`` take precedence.

        Args:
            env_ids: The indices of the envs; None: all.
            options: A dict for all of them, or a list with one per env. None in place of a dict
                removes the options.

        Returns:
            The version of these options. ``info["options_version"]`` holds the version that each
            env's current episode was reset with; 0 if none were set.
        """
        core = self._core
        if self._spares is not None and self._spares.next_step:
            raise ValueError(
                "cannot set options: autoreset_mode NEXT_STEP with spare_envs, which are reset "
                "before they take a slot, expected SAME_STEP or DISABLED"
            )
        with core.enter("set_options"):
            if (lease := core.lease) is not None and lease.free_running and not lease.over:
                raise BusyError(
                    f"cannot set options: {lease.name} read none until they are closed; set them "
                    "before they begin, or let the envs draw their own"
                )
            envs = arguments.indices(self._indices(env_ids), self.num_envs)
            each = copied_info(arguments.options(options, envs))
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
        """Return counters of the envs and workers so far; print them to see a table.

        >>> envs = VectorEnv([lambda: gym.make("CartPole-v1")] * 4, num_workers=2)
        >>> _ = envs.reset()
        >>> _ = envs.step(envs.action_space.sample())
        >>> envs.stats().steps.count
        array([1, 1, 1, 1], dtype=uint64)
        >>> envs.close()
        """
        if self._spares is not None:
            return self._spares.stats()
        with self._core.enter("stats"):
            tuner, sizes = self._core.tuner, dict(self._core.batch_sizes)
            return replace(
                self._pool.stats(),
                native=self._native,
                batches=None if tuner is None else tuner.choice,
                batch_sizes=sizes,
            )

    def describe(self) -> str:
        """Return a table that says how each env and wrapper is stepped, and why.

        "native": together with other envs. "on the batch": the wrapper runs on arrays of all envs.
        "in Python": one by one, with the reason.

        >>> envs = VectorEnv([lambda: gym.make("CartPole-v1")] * 2, num_workers=1)
        >>> print(envs.describe())
        envs 0 to 1:
          TimeLimit          native
          OrderEnforcing     native
          PassiveEnvChecker  native
          CartPole-v1        native
        >>> envs.close()
        """
        core = self._core
        with core.enter("describe"):
            core.expect_idle("describe")
            if self._spares is not None:
                return self._spares.describe()
            core.request(dict.fromkeys(core.all_groups, GetStacks()), "describe")
            stacks = self._answers("describe", None)
        core.call.returned = True
        why = f"\n{self.division}" if self.division.untried else ""
        return described(stacks) + why

    @property
    def late(self) -> list[int]:
        """The indices of envs that have not answered for longer than ``step_timeout``."""
        if self._spares is not None:
            return self._spares.late
        if self._step_timeout is None or self.closed:
            return []
        return [env for _, env, _ in self._pool.overdue(int(self._step_timeout * 1e9))]

    # -- calls -----------------------------------------------------------------------------------

    def call(self, name: str, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Call a method of each env, or get an attribute that is not callable.

        Args:
            name: The name of the method or attribute.
            *args: Positional arguments of the method.
            **kwargs: Keyword arguments of the method.

        Returns:
            The results, one per env.
        """
        self._start_call("call", name, args, kwargs)
        return self.call_wait()

    def call_async(self, name: str, /, *args: Any, **kwargs: Any) -> None:
        """Start calling a method of each env; ``call_wait`` returns the results.

        Args:
            name: The name of the method or attribute.
            *args: Positional arguments of the method.
            **kwargs: Keyword arguments of the method.
        """
        self._start_call("call_async", name, args, kwargs)

    def _start_call(
        self, what: str, name: str, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> None:
        core = self._core
        with core.enter(what):
            core.expect_idle(what)
            if name in ("reset", "step", "close", "_setattr", "_check_spaces"):
                raise ValueError(
                    f"Trying to call function `{name}` with `call`, use `{name}` directly instead."
                )
            job = Apply(call, (name, args, kwargs or {}), f"{name}()")
            awaited = what == "call_async"
            core.request(dict.fromkeys(core.all_groups, job), "call", awaited=awaited)

    def call_wait(self, timeout: float | None = None) -> tuple[Any, ...]:
        """Wait for the pending call and return its results, one per env.

        Args:
            timeout: Raise WaitTimeoutError after this many seconds; the call stays pending, so that
                you can wait again. None waits forever.
        """
        core = self._core
        with core.enter("call_wait"):
            self._expect_pending("call", "call_wait")
            answers = self._answers("call_wait", timeout)
        core.call.returned = True
        return answers

    def apply(
        self, function: Callable[..., Any], *args: Any, envs: Sequence[int] | None = None
    ) -> tuple[Any, ...]:
        """Call ``function(env, *args)`` in the process of each env, and return the results.

        Args:
            function: A function that takes an env. It is pickled, like its arguments and results;
                lambdas and closures work.
            *args: Further arguments of the function.
            envs: The indices of the envs; None: all.

        Returns:
            The results, one per env.

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
        """Wait for a call and return its results, in the order of envs or of groups."""
        core = self._core

        def read(answers: Sequence[Answer]) -> tuple[Any, ...]:
            if failures := [(g, result) for g, result in answers if isinstance(result, Failure)]:
                raise core.pool.error_of(*first(failures))
            result_of = dict(answers)
            each = [result_of[group] for group in sorted(result_of)]
            return tuple(each) if by_group else tuple(one for some in each for one in some or ())

        return core.finish(what, timeout, read)

    def get_state(self, env_ids: Any = None) -> npt.NDArray[Any]:
        """Return the states of envs, one row each, to pass to ``set_state``.

        Rows of native MuJoCo envs have named parts: the states of the physics, the episode and the
        random generator. Other envs must have methods ``get_state()`` and ``set_state(state)``.

        Args:
            env_ids: The indices of the envs; None: all.

        Raises:
            AttributeError: An env has no such methods.
        """
        core = self._core
        with core.enter("get_state"):
            core.expect_idle("get_state")
            self._expect_no_spares("get states")
            envs = arguments.indices(self._indices(env_ids), self.num_envs)
            chosen = [[env for env in envs if env in group] for group in core.groups]
            core.request(dict(enumerate(map(GetStates, chosen))), "get_state")
            states = arguments.joined(self._answers("get_state", None, by_group=True))
        core.call.returned = True
        order = np.argsort([env for ids in chosen for env in ids], kind="stable")
        return states[order[np.argsort(np.argsort(envs, kind="stable"))]]

    def set_state(self, states: npt.NDArray[Any], env_ids: Any = None) -> None:
        """Set envs to states that ``get_state`` returned for these or other envs.

        To continue all envs from the state of the first, pass
        ``np.repeat(envs.get_state([0]), envs.num_envs)``. If a worker was replaced and you set all
        envs of one of its groups, the loss is not reported; the group resumes from these states.

        Args:
            states: One row per env.
            env_ids: The indices of the envs; None: all.
        """
        core = self._core
        with core.enter("set_state"):
            core.expect_idle("set_state")
            self._expect_no_spares("set states")
            envs = arguments.indices(self._indices(env_ids), self.num_envs)
            states = arguments.rows(states)
            if len(states) != len(envs):
                raise ValueError(f"cannot set state: {len(states)} states, expected {len(envs)}")
            row = {env: row for row, env in enumerate(envs)}
            jobs = []
            for group in core.groups:
                ids = [env for env in row if env in group]
                jobs.append(SetStates(ids, states[[row[env] for env in ids]]))
            core.request(dict(enumerate(jobs)), "set_state")
            self._answers("set_state", None)
            core.results.continue_episodes(envs)
        core.call.returned = True

    def _expect_no_spares(self, what: str) -> None:
        if self._spares is not None:
            raise ValueError(f"cannot {what}: the vector env has spare_envs, and envs change slots")

    def get_attr(self, name: str) -> tuple[Any, ...]:
        """Return an attribute of each env.

        Args:
            name: The name of the attribute.
        """
        self._start_call("get_attr", name)
        return self.call_wait()

    def set_attr(self, name: str, values: list[Any] | tuple[Any, ...] | Any) -> None:
        """Set an attribute of each env.

        Args:
            name: The name of the attribute.
            values: A list or tuple with one value per env, or one value for all.
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
        """Return the result of each env's ``render``."""
        self._start_call("render", "render")
        return self.call_wait()

    @property
    def np_random_seed(self) -> tuple[int, ...]:  # type: ignore[override]
        """The seed of each env's random generator, as in gymnasium."""
        return self.get_attr("np_random_seed")

    @property  # type: ignore[misc]
    def np_random(self) -> tuple[np.random.Generator, ...]:  # type: ignore[override]
        """Copies of the envs' random generators: drawing from them does not change the envs."""
        return self.get_attr("np_random")

    # -- ending ----------------------------------------------------------------------------------

    @property
    def closed(self) -> bool:
        """Whether ``close`` was called, or an error ended the workers."""
        pool = getattr(self, "_pool", None)
        return pool is None or pool.closed

    @closed.setter
    def closed(self, _: bool) -> None:
        """Ignore the assignment in gymnasium's ``close``: the pool records whether it is closed."""

    def close(self, **kwargs: Any) -> None:
        """Close the envs and end the workers.

        A signal handler may call this while its thread waits in another method, which then raises
        ClosedError. If another thread is in a call, this waits for up to a second until the call
        returns; then it makes the call raise ClosedError. In a fork of the process that made the
        envs, it does nothing.

        Args:
            **kwargs: Arguments of ``close_extras``: ``timeout`` and ``terminate``.
        """
        if not self._core.guard.mine:
            return
        if self._spares is not None:  # the workers, of which some may reset envs for long
            self._spares.inner._core.hurry = True  # no warning of a reset that is pending
            try:
                self._spares.inner.close(**kwargs)
            except BaseException:
                self._closes(**kwargs)
                raise
        seconds = 0.0 if kwargs.get("terminate") else _CALL_OF_ANOTHER
        if comes_true(functools.partial(self._closes, **kwargs), seconds):
            return
        self._core.guard.close()
        self._pool.give_up()
        if not comes_true(self._closes, _CALL_OF_ANOTHER):
            warnings.warn(
                "pysampler: another thread is still in a call of the closed vector env, whose envs "
                "in this process cannot be interrupted: another close() will close them",
                stacklevel=2,
            )

    def _closes(self, **kwargs: Any) -> bool:
        """Close, and return whether no other thread is in a call."""
        try:
            try:
                super().close(**kwargs)
            finally:
                if self.closed:
                    entry = self._core.guard.closing("call close")
                    with entry:
                        self._release(at_once=not (entry.nested or self._core.lease))
        except BusyError:
            return False
        return True

    def _release(self, *, at_once: bool) -> None:
        """Drop what the vector env had, see ``VectorCore.release``. May be repeated."""
        try:
            self._pool.close_inline()
        finally:
            self._core.release(at_once=at_once)
            if not self.copy:
                self.observations = None
            self._batches.close()
            if self._tracer is not None:
                self._tracer.close()

    def close_extras(self, timeout: float | None = None, terminate: bool = False) -> None:  # noqa: FBT001, FBT002
        """Wait for pending calls, then end the workers. ``close`` calls this.

        Args:
            timeout: Seconds to wait for pending calls before the workers are killed; None: ten.
            terminate: Kill the workers without waiting for pending calls or closing the envs.
        """
        core = self._core
        entry = core.guard.closing("call close")
        with entry:
            if core.guard.closed:  # an earlier call was interrupted
                core.pool.kill()
                return
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
        # After Ctrl-C, do not wait for an env in a long step, and do not warn about it.
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
        inline = self.division.main_envs if self.num_workers > 0 else 0
        main = f", main_envs={inline}" if inline else ""
        return (
            f"{type(self).__name__}({name}, num_envs={self.num_envs}, "
            f"num_workers={self.num_workers}{main}{', native' * self._native})"
        )


# The options as VectorEnv declares them, and their defaults.
_PARAMETERS = inspect.signature(VectorEnv).parameters.values()
DEFAULTS = {one.name: one.default for one in _PARAMETERS if one.default is not one.empty}


def _make_inner(*args: Any, **options: Any) -> VectorEnv:
    """Make the vector env of slots and spares."""
    envs = VectorEnv.__new__(VectorEnv)
    envs._only_envs_with = "spare_envs"
    VectorEnv.__init__(envs, *args, **options)
    return envs


def _called_weakly(method: Callable[[range], Any]) -> Callable[[range], Any]:
    """Return a function that calls a method, and None once its object is gone.

    A pool that referred to the vector env would keep the workers of a dropped one alive.
    """
    weak = weakref.WeakMethod(method)

    def called(envs: range) -> Any:
        alive = weak()
        return None if alive is None else alive(envs)

    return called


def core_of(envs: VectorEnv) -> VectorCore:
    """Return the core of a vector env, for a sampler that leases it."""
    return envs._core
