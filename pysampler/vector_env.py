"""The drop-in for ``gymnasium.vector.AsyncVectorEnv``."""

from __future__ import annotations

import contextlib
import functools
import multiprocessing
import os
import threading
from copy import deepcopy
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np
from gymnasium import logger
from gymnasium.error import (
    AlreadyPendingCallError,
    ClosedEnvironmentError,
    NoAsyncCallError,
)
from gymnasium.spaces.utils import is_space_dtype_shape_equiv
from gymnasium.vector.utils import batch_differing_spaces, batch_space, iterate
from gymnasium.vector.vector_env import AutoresetMode
from gymnasium.vector.vector_env import VectorEnv as GymVectorEnv

from pysampler import _core, arguments
from pysampler.block import Description, EnvHost, Failure, call, make_host, registered
from pysampler.errors import BusyError, ClosedError, EnvError, LostError, WaitTimeoutError
from pysampler.infos import Infos
from pysampler.local import LocalPool, LocalRequest
from pysampler.piped import PipedEnv, check_worker
from pysampler.pool import GRACE, Pool, Request, Share
from pysampler.spec import build, checked_actions, spec_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import numpy.typing as npt
    from gymnasium.core import RenderFrame

    # Observations, rewards, terminated, truncated, infos.
    Stepped = tuple[
        Any, npt.NDArray[np.float64], npt.NDArray[np.bool_], npt.NDArray[np.bool_], dict[str, Any]
    ]

__all__ = ["VectorEnv"]


class _TimeoutError(WaitTimeoutError, multiprocessing.TimeoutError):
    """Also what gymnasium raises."""


class _ClosedError(ClosedError, ClosedEnvironmentError):
    """Also what gymnasium raises."""


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
      default it learns them from the first vector env, for the next.
    - ``validate``: refuse actions that are not a number.

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
        validate: bool = False,
    ) -> None:
        self.closed = True  # until it is open: for __del__
        self.env_fns = arguments.env_fns(env_fns)
        self.num_envs = len(self.env_fns)
        self.shared_memory = shared_memory
        self.copy = copy
        self.context = context
        self.daemon = daemon
        self.worker = worker
        self.observation_mode = observation_mode
        self.autoreset_mode = AutoresetMode(autoreset_mode)
        self.max_concurrency = max_concurrency
        self.num_workers = arguments.workers(num_workers, self.num_envs, max_concurrency)
        self._validate = validate
        self._owner = os.getpid()
        self._turn = threading.Lock()
        self._state: str | None = None
        self._request: Request | LocalRequest | None = None
        self._frame = 0
        options = arguments.Options(groups=groups, frames=frames, wait=wait, infos=infos)
        process = arguments.context(context)
        modules = arguments.preload(preload)
        shares = arguments.shares(self.num_envs, max(self.num_workers, 1), groups)
        specs = registered() if self.num_workers > 0 and process != "fork" else b""

        functions = self.env_fns
        if worker is not None:
            check_worker(worker)
            functions = [
                functools.partial(PipedEnv, worker, i, env_fn, self.autoreset_mode)
                for i, env_fn in enumerate(functions)
            ]

        def make(share: Share) -> tuple[Callable[..., EnvHost], tuple[Any, ...]]:
            chosen = functions[share.first : share.envs.stop]
            return make_host, (specs, chosen, share.first, share.sizes)

        self._pool: Pool | LocalPool
        if self.num_workers == 0:
            self._pool = LocalPool(shares[0], make)
        else:
            self._pool = Pool(shares, make, context=process, preload=modules, policy=options.policy)
        try:
            self._open(self._pool.descriptions, options)
        except BaseException:
            self._pool.kill()
            raise
        self.closed = False

    def _open(self, descriptions: Sequence[Description], options: arguments.Options) -> None:
        first = descriptions[0]
        self.metadata = {**first.metadata, "autoreset_mode": self.autoreset_mode}
        self.render_mode = first.render_mode
        self._name = first.name
        self._set_spaces(
            [space for d in descriptions for space in d.observation_spaces],
            [space for d in descriptions for space in d.action_spaces],
        )
        self._spec = spec_of(self.single_observation_space, self.single_action_space)
        same_step = self.autoreset_mode == AutoresetMode.SAME_STEP
        self._frames = self._pool.attach(
            self._spec,
            options.frames,
            final=same_step,
            host=("DISABLED" if self.worker else self.autoreset_mode.name, options.infos.upper()),
        )
        # Not this one's own method: a cycle would keep the workers of a vector env that is dropped.
        batcher: GymVectorEnv[Any, Any, Any] = GymVectorEnv()
        batcher.num_envs = self.num_envs
        self._infos = Infos(self._frames, batcher._add_info)
        self._new_columns: list[Any] = []
        self._odd: list[list[Any]] = [
            [None] * self.num_envs for _ in range(self._spec.odd_observations)
        ]
        self._batch = _core.Batch(self._frames, self._infos.core, self.copy)
        envs_of = map(self._pool.envs_of, range(sum(self._pool.groups)))
        self._parts = [slice(envs.start, envs.stop) for envs in envs_of]  # of each group
        self.observations = self._observations(0)

    def _set_spaces(
        self, observations: list[gym.Space[Any]], actions: list[gym.Space[Any]]
    ) -> None:
        self.single_action_space = actions[0]
        self.action_space = batch_space(actions[0], self.num_envs)
        mode = self.observation_mode
        if isinstance(mode, tuple) and len(mode) == 2:
            if not all(isinstance(space, gym.Space) for space in mode):
                raise TypeError(
                    "Expected both elements of observation_mode to be Spaces, got "
                    f"{type(mode[0])} and {type(mode[1])}"
                )
            self.observation_space, self.single_observation_space = mode
        elif mode == "same":
            self.single_observation_space = observations[0]
            self.observation_space = batch_space(observations[0], self.num_envs)
        elif mode == "different":
            self.single_observation_space = observations[0]
            self.observation_space = batch_differing_spaces(observations)
        else:
            raise ValueError(
                "Invalid `observation_mode`, expected: 'same' or 'different' or tuple of single "
                f"and batch observation space, actual got {mode}"
            )
        single = self.single_observation_space
        for env, space in enumerate(observations):
            if mode == "same" and space != single:
                raise RuntimeError(
                    "cannot batch observations: the sub-environments observation spaces are not "
                    f"equivalent. Env {env} has {space}, env 0 {single}. If this is intentional, "
                    "use `observation_mode='different'` instead."
                )
            if mode != "same" and not is_space_dtype_shape_equiv(space, single):
                raise RuntimeError(
                    "cannot batch observations: the sub-environments observation spaces do not "
                    f"share a common shape and dtype. Env {env} has {space}, expected one like "
                    f"{single}."
                )
        for env, space in enumerate(actions):
            if space != self.single_action_space:
                raise RuntimeError(
                    f"cannot batch actions: env {env} has the action space {space}, env 0 "
                    f"{self.single_action_space}; expected the same for all"
                )
        if self.shared_memory:
            arguments.refuse_custom(single)

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
            mask = None
            if options is not None and "reset_mask" in options:
                mask = arguments.reset_mask(options["reset_mask"], self.num_envs)
                options = {k: v for k, v in options.items() if k != "reset_mask"}
            frame = self._next_frame()
            requests = {
                group: (
                    "reset",
                    (seeds[part], options, None if mask is None else mask[part].tolist()),
                )
                for group, part in enumerate(self._parts)
            }
            self._request = self._pool.request(frame, requests, "resetting")
            self._state = "reset"

    def reset_wait(self, timeout: float | None = None) -> tuple[Any, dict[str, Any]]:
        """What the envs return from the reset that is pending."""
        with self._entered("reset_wait"):
            self._expect("reset", "reset_wait")
            observations, _, _, _, infos = self._finish("reset_wait", timeout)
            return observations, infos

    # -- step ------------------------------------------------------------------------------------

    def step(self, actions: Any) -> Stepped:
        """Step all envs."""
        self._enter("step")
        try:
            self._send(actions)
            return self._finish("step_wait", None)
        finally:
            self._turn.release()

    def step_async(self, actions: Any) -> None:
        """Let the envs step; ``step_wait`` has what they return."""
        self._enter("step_async")
        try:
            self._send(actions)
        finally:
            self._turn.release()

    def _send(self, actions: Any) -> None:
        if self._state is not None:
            self._expect_idle("step_async")
        if self._validate:
            arguments.refuse_nan(self._spec, self.num_envs, actions)
        frame = self._next_frame()
        if self._batch.write(frame, actions) or self._write(frame, actions):
            self._pool.step(frame)
        else:
            self._send_objects(frame, actions)
        self._state = "step"

    def step_wait(self, timeout: float | None = None) -> Stepped:
        """What the envs return from the step that is pending."""
        self._enter("step_wait")
        try:
            self._expect("step", "step_wait")
            return self._finish("step_wait", timeout)
        finally:
            self._turn.release()

    def _write(self, frame: int, actions: Any) -> bool:
        """Actions of any dtypes and nesting, into the frame; False if they are not all arrays."""
        arrays = checked_actions(self._spec, self.num_envs, actions)
        if arrays is None:
            return False
        for leaf, array in enumerate(arrays):
            self._frames.action_types[frame, leaf] = array.dtype.num
            self._frames.actions_as(leaf, array.dtype)[frame] = array
        return True

    def _send_objects(self, frame: int, actions: Any) -> None:
        """Actions that are not arrays, or of spaces without a fixed shape: as gymnasium does."""
        items = list(iterate(self.action_space, actions))
        if len(items) != self.num_envs:
            raise ValueError(f"cannot send actions: {len(items)} of them, expected {self.num_envs}")
        requests = {group: ("step", (items[part],)) for group, part in enumerate(self._parts)}
        self._request = self._pool.request(frame, requests, "stepping")

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
            self._ask_all(call, (name, args, kwargs), f"{name}()", None)
            self._state = "call"

    def call_wait(self, timeout: float | None = None) -> tuple[Any, ...]:
        """What the envs return from the call that is pending."""
        with self._entered("call_wait"):
            self._expect("call", "call_wait")
            return self._results("call_wait", timeout)

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
            self._ask_all(function, args, f"{name}()", chosen)
            self._state = "call"
            results = self._results("apply", None)
        if chosen is None:
            return results
        by_env = dict(zip(sorted(set(chosen)), results, strict=True))
        return tuple(by_env[env] for env in chosen)

    def _ask_all(
        self, function: Callable[..., Any], args: tuple[Any, ...], what: str, envs: Any
    ) -> None:
        request = "apply", (function, args, what, envs)
        self._request = self._pool.request(
            self._frame, dict.fromkeys(range(len(self._parts)), request), f"calling {what} of"
        )

    def _results(self, what: str, timeout: float | None) -> tuple[Any, ...]:
        answers = self._answers(what, timeout)
        self._state = None
        return tuple(one for group in sorted(answers) for one in answers[group] or ())

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
            requests = {
                group: ("set_attr", (name, values[part])) for group, part in enumerate(self._parts)
            }
            self._request = self._pool.request(self._frame, requests, f"setting {name} of")
            self._state = "call"  # and stays so if Ctrl-C ends the wait
            self._results("set_attr", None)

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
        if self._new_columns:
            first = [sum(self._pool.groups[:w]) for w in range(len(self._pool.groups))]
            columns, self._new_columns = self._new_columns, []
            self._request = self._pool.request(
                0, dict.fromkeys(first, ("add_columns", (columns,))), "telling of columns"
            )
            self._state = "call"
            self._answers("add_columns", None)
            self._state = None
        self._frame = self._batch.next(self._frame)
        return self._frame

    def _answers(self, what: str, timeout: float | None) -> dict[int, Any]:
        request = self._request
        assert request is not None
        try:
            answers = request.wait(timeout)
        except LostError:
            self.closed = True
            raise
        except EnvError:
            self._state = self._request = None
            raise
        if answers is None:
            raise _timed_out(what, timeout)
        self._request = None
        return answers

    def _finish(self, what: str, timeout: float | None) -> Stepped:
        """Wait for what is pending; observations, rewards, terminated, truncated, infos."""
        if self._request is None:
            try:
                messages = self._pool.wait(timeout)
            except LostError:
                self.closed = True
                raise
            if messages is None:
                raise _timed_out(what, timeout)
        else:
            messages = list(self._answers(what, timeout).items())
        self._state = None
        rest, final = self._sorted(messages) if messages else ([], {})
        frame = self._frame
        observations, rewards, terminated, truncated, infos, mixed = self._batch.read(frame)
        for env, observation in final.items():
            infos["final_obs"][env] = observation
        if rest or mixed:
            infos = self._infos.merge(frame, infos, mixed, rest)
            self._new_columns += self._infos.learn(rest)
        if observations is None:
            observations = self._observations(frame)
        self.observations = observations
        return observations, rewards, terminated, truncated, infos

    def _sorted(
        self, messages: Sequence[tuple[int, Any]]
    ) -> tuple[list[tuple[int, dict[str, Any]]], dict[int, Any]]:
        """What came by the side channel: infos, and last observations of episodes, by env."""
        rest: list[tuple[int, dict[str, Any]]] = []
        final: dict[int, Any] = {}
        failures: list[Failure] = []
        for _, leftovers in messages:
            if isinstance(leftovers, Failure):
                failures.append(leftovers)
                continue
            for kind, env, thing in leftovers:
                if kind == _core.EnvBlock.INFO:
                    rest.append((env, thing))
                elif kind == _core.EnvBlock.FINAL_OBS:
                    final[env] = thing
                elif kind == _core.EnvBlock.ODD_OBS:
                    for leaf, value in enumerate(thing):
                        self._odd[leaf][env] = value
                else:
                    failures.append(thing)
        if failures:
            raise self._first_error(failures)
        return rest, final

    def _first_error(self, failures: list[Failure]) -> EnvError:
        """Of the first env. All are logged in gymnasium's words, though nothing is shut down."""
        failures.sort(key=lambda failure: -1 if failure.env is None else failure.env, reverse=True)
        for failure in failures:
            logger.error(
                f"Received the following error from Worker-{failure.env} - Shutting it down"
            )
            logger.error(failure.report.traceback)
        logger.error("Raising the last exception back to the main process.")
        return self._pool.error_of(failures[-1])

    def _observations(self, frame: int) -> Any:
        arrays = self._frames.observations
        if self.copy:
            return build(
                self._spec.observation_tree,
                lambda leaf: arrays[leaf][frame].copy(),
                lambda leaf: deepcopy(tuple(self._odd[leaf])),
            )
        return build(
            self._spec.observation_tree,
            lambda leaf: arrays[leaf][frame],
            lambda leaf: tuple(self._odd[leaf]),
        )

    def _enter(self, what: str) -> None:
        """It is open, in the process that made it, and no other thread is in here."""
        if self.closed or self._pool.closed:
            self.closed = True
            raise _ClosedError(
                f"Trying to operate on `{type(self).__name__}`, after a call to `close()`."
            )
        if os.getpid() != self._owner:
            raise _ClosedError(
                f"cannot call {what}: made by process {self._owner}, this is {os.getpid()}, a fork"
            )
        if not self._turn.acquire(blocking=False):
            raise BusyError(f"cannot call {what}: another thread is using this vector env")

    @contextlib.contextmanager
    def _entered(self, what: str) -> Iterator[None]:
        self._enter(what)
        try:
            yield
        finally:
            self._turn.release()

    def _expect_idle(self, what: str) -> None:
        if self._state is not None:
            raise AlreadyPendingCallError(
                f"Calling `{what}` while waiting for a pending call to `{self._state}` to complete",
                self._state,
            )

    def _expect(self, state: str, what: str) -> None:
        if self._state != state:
            raise NoAsyncCallError(
                f"Calling `{what}` without any prior call to `{state}_async`.", state
            )

    # -- ending ----------------------------------------------------------------------------------

    def close_extras(self, timeout: float | None = None, terminate: bool = False) -> None:  # noqa: FBT001, FBT002
        """End the workers: after what is pending, or at once; GRACE at most."""
        with self._entered("close"):
            if self._state is not None:
                logger.warn(
                    f"Calling `close` while waiting for a pending call to `{self._state}` to "
                    "complete."
                )
                self._state = None
                terminate = terminate or not self._settled(GRACE if timeout is None else timeout)
            self.closed = True
            try:
                if terminate:
                    self._pool.kill()
                else:
                    self._pool.close()
            finally:
                self._let_go()

    def _let_go(self) -> None:
        """Of the memory, once no view of it is left."""
        del self._batch, self._infos, self._frames
        if not self.copy:
            self.observations = None

    def _settled(self, timeout: float) -> bool:
        try:
            if self._request is not None:
                return self._request.wait(timeout) is not None
            return self._pool.wait(timeout) is not None
        except EnvError:
            return True

    def __del__(self) -> None:
        if not getattr(self, "closed", True):
            self._pool.kill()
            self.closed = True

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
