"""SpareEnvs: a vector env whose slots change to spare envs, so that steps wait for no resets.

It steps N of its N + M envs, in processes of an inner vector env. If an episode ends, its slot
becomes vacant: the env that ended becomes the last of the spares and is reset while the others
step, and the first of the spares, which has been reset before, takes the slot.

Spares are used in the order in which they became spares, even if a later one is ready before. So
which env is in which slot, and with which seed, follows from the seed of the run and from the steps
at which episodes end: it does not depend on time or on the number of workers.

To its ``VectorEnv`` this is a vector env in the user's process, in one block (nested.py), as is any
other that a function returns: samplers, autoreset modes and frames need nothing more.

A signal handler may raise at any point. If that ends a wait, the block waits again: all that waits
change is in one immutable value (slots.py), which each transition replaces by a single assignment.
If it interrupts the beginning of a call, all slots and spares are reset, as if they had been lost.
"""

from __future__ import annotations

import contextlib
import itertools
import time
import weakref
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode
from gymnasium.vector import VectorEnv as GymVectorEnv
from gymnasium.vector.utils import batch_space, create_empty_array

from pysampler._common.numbers import whole_number
from pysampler._vector.arguments import CONFLICTS, refuse
from pysampler._vector.arguments import seeds as seeds_of
from pysampler._vector.env_calls import call, reward_shape
from pysampler._vector.jobs import Apply
from pysampler._vector.nested import info_of_row
from pysampler._vector.slots import Slots
from pysampler._workers.counters import SpareUse
from pysampler._workers.jobs import for_caller
from pysampler._workers.remote import dumps
from pysampler.errors import (
    ClosedError,
    EnvError,
    EnvTimeoutError,
    PysamplerError,
    WaitTimeoutError,
)
from pysampler.sync import now

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import numpy.typing as npt

    from pysampler._vector.core import VectorCore
    from pysampler._workers.counters import Stats
    from pysampler._workers.pool import Pool

    Array = npt.NDArray[np.int64]

__all__ = ["SpareEnvs", "divided"]

# Options of the vector env around it; all others are for the workers.
_OUTER = ("autoreset_mode", "copy", "frames", "infos", "check_actions", "shared_memory")
# The largest number of envs in a worker, and of workers unless num_workers is given.
_MOST = 1024


def divided(options: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the options of the vector env around the spares, and those of the inner one.

    Raises:
        ValueError: Some do not work with spare envs.
    """
    refuse("spare_envs", options)
    outer = {name: options[name] for name in _OUTER}
    both = {*_OUTER, *CONFLICTS["spare_envs"], "spare_envs"} - {"num_workers"}
    return outer, {name: one for name, one in options.items() if name not in both}


class SpareEnvs(GymVectorEnv[Any, Any, Any]):
    """N slots and M spare envs.

    Args:
        make: Makes the inner vector env, a ``VectorEnv``.
        core_of: Returns the core of a vector env.
        env_fns: Functions that make the envs of the slots. The spares come from them too, in turn.
        spares: The number of spares.
        mode: The autoreset mode of the vector env around it.
        options: The options of the inner vector env.
    """

    title = "a vector env with spare_envs"  # in errors
    applies_to_each = True  # functions that are applied to it get each env
    resets_with_options_of = True  # each env, in one call
    waits_again = True  # after an exception, for what step_async or reset_async has begun

    def __init__(
        self,
        make: Callable[..., Any],
        core_of: Callable[[Any], VectorCore],
        env_fns: Sequence[Callable[[], Any]],
        spares: int,
        mode: AutoresetMode,
        options: dict[str, Any],
    ) -> None:
        count = len(env_fns) + spares
        if options["num_workers"] is None:  # a worker steps nothing while it resets an env
            options = {**options, "num_workers": count}
            most = _MOST
        else:
            most = _MOST * whole_number("make vector env", "num_workers", options["num_workers"], 1)
        if count > most:
            raise ValueError(
                f"cannot make vector env: spare_envs {spares}, expected at most "
                f"{max(0, most - len(env_fns))} for {len(env_fns)} envs and this num_workers"
            )
        functions = [*env_fns, *itertools.islice(itertools.cycle(env_fns), spares)]
        # Each env is a group, so that each can step while others reset.
        self.inner = make(
            functions, autoreset_mode=AutoresetMode.DISABLED, groups=count, infos="all", **options
        )
        self._core = core_of(self.inner)
        self._core.batcher.keeps_types = True  # batches mix spares' resets with slots' steps
        self._pool = self._core.pool  # the group of each env has its number
        self.num_envs = len(env_fns)
        self.use_mode(mode)
        self.render_mode = self.inner.render_mode
        self.single_observation_space = self.inner.single_observation_space
        self.single_action_space = self.inner.single_action_space
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self.action_space = batch_space(self.single_action_space, self.num_envs)
        self.reward_space = self.inner.reward_space
        self._observations: Any = create_empty_array(self.single_observation_space, self.num_envs)
        self._step_timeout: float | None = options["step_timeout"]
        slots = tuple(range(self.num_envs))
        self._state = Slots(slots, (), use=SpareUse(spares)).restarted(count, was_reset=False)
        self._batch: Any = None  # received from the inner vector env; the state may not have it yet
        self._sound = True  # whether no exception has interrupted the beginning of a call
        self._asked = 0  # the number of the newest command that called envs

    def serve(self, outer: Pool) -> None:
        """Serve the pool of the vector env around it, without a reference that keeps it alive."""
        self._outer = weakref.ref(outer)

    def use_mode(self, mode: AutoresetMode) -> AutoresetMode:
        """Follow the autoreset mode of new frames; return that of this vector env for them.

        For SAME_STEP it is DISABLED: the block then asks for a reset in the step.
        """
        self.next_step = mode is AutoresetMode.NEXT_STEP
        own = mode if self.next_step else AutoresetMode.DISABLED
        self.metadata = {**self.inner.metadata, "autoreset_mode": own}
        return own

    # -- steps and resets ------------------------------------------------------------------------

    def step_async(self, actions: Any) -> None:
        """Step the envs in the slots; fill vacant slots, which take no action.

        In the mode NEXT_STEP, slots whose episodes have ended become vacant before.
        """

        def send(slots: Array, envs: Array) -> None:
            self.inner.send(_rows(self.single_action_space, actions, slots), env_ids=envs)

        with self._calling("step"):
            self._drop_apply()
            state = self._state.vacated(self._state.over)
            stepped = [slot for slot in range(self.num_envs) if slot not in state.vacant]
            self._begin(state.with_call(stepped, state.vacant), send)

    def step_wait(self) -> Any:
        """Return the results of the step; again, if an exception has interrupted this."""
        with self._calling("step"):
            return self._finish()

    def reset_async(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> None:
        """Reset all slots, or those of ``options["reset_mask"]``.

        Slots without a seed and options take spares. With seeds for all slots, everything starts
        again. The options of each slot are in ``options["options_of"]``.
        """
        given = options or {}
        mask, options_of = given.get("reset_mask"), given.get("options_of", {})
        seeds = seeds_of(seed, self.num_envs)
        slots = range(self.num_envs) if mask is None else np.flatnonzero(mask).tolist()
        seeded = [slot for slot in slots if seeds[slot] is not None]

        def send(slots: Array, envs: Array) -> None:
            each = [options_of.get(slot) for slot in slots.tolist()]
            self.inner.async_reset([seeds[slot] for slot in slots], each, env_ids=envs)

        with self._calling("reset"):
            self._drop_apply()
            state = self._state
            if len(seeded) == self.num_envs or not (state.was_reset and state.done and self._sound):
                self._await_idle()
                entropy = tuple(0 if one is None else abs(int(one)) for one in seeds)
                state = self._state.restarted(self.inner.num_envs, entropy if seeded else None)
                self._begin(state.with_call(range(self.num_envs), ()), send)
                return
            own = [slot for slot in slots if options_of.get(slot) or slot in seeded]
            self._await_idle(state.spares[: len(set(own).intersection(state.vacant))])
            to_fill = [slot for slot in slots if slot not in own]
            self._begin(self._state.keeping(own).vacated(to_fill).with_call(own, to_fill), send)

    def reset_wait(self) -> tuple[Any, dict[str, Any]]:
        """Return the results of the reset; again, if an exception has interrupted this."""
        with self._calling("reset"):
            observations, *_, infos = self._finish()
            return observations, infos

    def _begin(self, state: Slots, send: Callable[[Array, Array], None]) -> None:
        """Begin a call: send its commands, and the resets of spares."""
        self._sound = False
        self._state = state
        if state.awaited:
            send(np.array(list(state.awaited.values())), np.array(list(state.awaited)))
        self._send_resets()
        self._sound = True

    def _finish(self) -> Any:
        """Wait for the envs of the call, fill vacant slots, and return the results."""
        while self._state.awaited:
            self._receive(len(self._state.awaited))
        while self._state.to_fill:
            self._fill(self._state.to_fill[0])
        results = self._batched(self._state)
        if not self._state.done:
            _, _, terminated, truncated, _ = results
            ended = np.flatnonzero((terminated | truncated) & self.next_step)
            self._state = self._state.ended(ended.tolist())
        return results

    def _fill(self, slot: int) -> None:
        """Let the next spare take a vacant slot, or record that it could not be reset."""
        env = self._state.spares[0]
        waits = env not in self._state.ready
        needed = sum(one not in self._state.ready for one in self._state.spares)
        began = time.perf_counter()
        while env not in self._state.ready:
            self._receive(1)
        state, result = self._state, self._state.ready[env]
        if isinstance(result, EnvError):
            self._state = state.not_filled(slot, result)
            self._send_resets()
            return
        use = state.use.after(waited=waits, seconds=time.perf_counter() - began)
        self._state = state.begun(slot, result, use, needed)

    # -- the inner vector env --------------------------------------------------------------------

    @property
    def _served(self) -> Pool:
        outer = self._outer()
        assert outer is not None
        return outer

    def _receive(self, least: int, *, every: bool = False) -> None:
        """Receive results of at least so many envs, in slots or not.

        Args:
            least: The number of envs.
            every: Whether the call waits for all envs, rather than for those in slots.
        """
        if self._batch is self._state.received:
            self._send_resets()
            deadline = self._served.deadline
            timeout = None if deadline is None else max(0, deadline - now()) / 1e9
            # No slot waits for other spares, which may take long to reset.
            self._pool.time_only(None if every else frozenset(self._waiting))
            try:
                self._batch = self.inner.recv(min(least, self.inner.pending), timeout=timeout)
            except EnvError as error:
                self._batch = error
        batch = self._batch
        if isinstance(batch, EnvError):
            env = next(env for env in self._state.at_work if not self._pool.is_pending(env))
            self._state = self._state.received_error(env, batch)
            return
        self._state = self._state.received_batch(batch)
        if not len(batch[1]):
            raise WaitTimeoutError("cannot wait for envs any longer: the time is up")

    def _send_resets(self) -> None:
        """Send the resets of spares that have not been sent."""
        if self._state.unsent:
            for env, seed in self._state.unsent.items():
                if not self._pool.is_pending(env):
                    self.inner.async_reset([seed], env_ids=[env])
            self._state = self._state.resets_sent()

    def _await_idle(self, envs: Sequence[int] | None = None) -> None:
        """Wait until some envs are not at work, by default all."""
        if self._batch is not self._state.received:
            self._receive(0)
        self._pool.time_only(None)
        chosen = range(self.inner.num_envs) if envs is None else envs
        while any(map(self._pool.is_pending, chosen)):
            self._receive(1, every=True)

    def _drop_apply(self) -> None:
        """Drop the rest of a call of methods that was interrupted."""
        if self._core.call.name not in (None, "send") and self._core.at_work:
            self._core.drop_work("a call", stopped=True)

    def _batched(self, state: Slots) -> Any:
        """Return the results of the call, with the last observations of all slots."""
        rewards = np.zeros((self.num_envs, *reward_shape(self.reward_space)))
        ends = np.zeros((2, self.num_envs), bool)
        info_of: dict[int, dict[str, Any]] = {}
        batches = {id(one.batch): one.batch for one in state.results.values()}
        for number, batch in batches.items():
            slots = [slot for slot, one in state.results.items() if id(one.batch) == number]
            rows = [state.results[slot].row for slot in slots]
            observations, *columns, infos = batch
            space = self.single_observation_space
            self._observations = _place(space, self._observations, slots, observations, rows)
            for target, column in zip((rewards, *ends), columns, strict=True):
                target[slots] = column[rows]
            named = {key: one for key, one in infos.items() if key not in ("env_id", "_env_id")}
            for slot, row in zip(slots, rows, strict=True):
                info = info_of[slot] = info_of_row(named, row, len(columns[0]))
                if state.results[slot].of_spare:  # a worker that was lost then ended no episode
                    info.pop("worker_lost", None)
        merged: dict[str, Any] = {}
        for slot in sorted(info_of):
            merged = self._add_info(merged, info_of[slot], slot)
        merged["env_in_slot"] = np.array(state.env_of)
        merged["_env_in_slot"] = np.ones(self.num_envs, bool)
        return self._observations, rewards, *ends, merged

    # -- errors ----------------------------------------------------------------------------------

    @property
    def errors(self) -> list[tuple[int, EnvError]]:
        """The errors of envs in the last call, with their slots."""
        return [(slot, _named(error, slot)) for slot, error in self._state.errors]

    @property
    def lost(self) -> tuple[int, ...]:
        """The slots whose envs were lost with a worker in the last call, if that was a step."""
        return self._state.lost

    @property
    def late(self) -> list[int]:
        """The slots whose envs have not answered for longer than ``step_timeout``."""
        return sorted(slot for slot, *_ in self._overdue())

    @property
    def _waiting(self) -> dict[int, int]:
        """The envs that slots wait for, with these slots."""
        state = self._state
        return {**state.awaited, **dict(zip(state.spares, state.to_fill, strict=False))}

    def _overdue(self) -> Iterator[tuple[int, int, int]]:
        """Yield (slot, worker, env) where a slot waits for an env that is late."""
        if self._step_timeout is None or self.inner.closed:
            return
        # If there are none, envs are called, if any.
        waiting = self._waiting or {env: slot for slot, env in enumerate(self._state.env_of)}
        for worker, env, _ in self._pool.overdue(int(self._step_timeout * 1e9)):
            if env in waiting:
                yield waiting[env], worker, env

    def _late_error(self, error: EnvTimeoutError) -> EnvTimeoutError:
        """Return the error of the first slot that waits for a late env."""
        for slot, worker, env in self._overdue():
            late = EnvTimeoutError(
                f"slot {slot}: env {env} in worker {worker} (pid {self._pool.pids[worker]}) has "
                f"not answered for longer than step_timeout, {self._step_timeout:.3g} s"
            )
            late.env, late.worker = slot, worker
            return late
        error.env = -1  # it is in no slot
        return error

    @contextlib.contextmanager
    def _calling(self, name: str) -> Iterator[None]:
        """Raise errors that are not of envs to the caller; close with the inner vector env.

        Args:
            name: The name of the call, for errors.
        """
        try:
            yield
        except EnvError as error:  # of a call of methods
            if error.env is not None:
                slot_of = {env: slot for slot, env in enumerate(self._state.env_of)}
                _named(error, slot_of.get(error.env))
            raise
        except EnvTimeoutError as error:
            late = self._late_error(error)
            for_caller(late)
            raise late from None
        except PysamplerError as error:
            if self.inner.closed and (outer := self._outer()) is not None and not outer.closed:
                outer.interrupt_wait()
                outer.kill()
            if isinstance(error, ClosedError) and str(error).startswith("cannot call "):
                _, colon, cause = str(error).partition(":")  # of a call of the inner vector env
                error.args = (f"cannot call {name}{colon}{cause}",)
            for_caller(error)
            raise

    # -- calls -----------------------------------------------------------------------------------

    def apply(self, function: Callable[..., Any], *args: Any, slots: Sequence[int]) -> list[Any]:
        """Call a function with the env in each of some slots."""
        envs = [self._state.env_of[slot] for slot in slots]
        with self._calling("call"):
            number = self._served.native.number_of(0)
            if self._core.pending != "call" or self._asked != number:
                self._drop_apply()
                self._await_idle()
                envs = [self._state.env_of[slot] for slot in slots]
                what = args[0] if function is call else getattr(function, "__name__", "a function")
                job = Apply(function, args, f"{what}()", envs)
                self._asked = number
                with self._core.enter("apply"):
                    self._core.expect_idle("apply")
                    self._core.request(dict.fromkeys(self._core.all_groups, job), "call")
            results = self.inner.call_wait()
        by_env = dict(zip(sorted(set(envs)), results, strict=True))
        return [by_env[env] for env in envs]

    def set_attr(self, name: str, values: Any) -> None:
        """Set an attribute of all envs."""
        if isinstance(values, (list, tuple)):
            first = dumps(values[0])
            if any(dumps(value) != first for value in values):
                raise ValueError(
                    f"cannot set {name}: the values differ, and envs change slots; expected the "
                    "same for all"
                )
            values = values[0]
        with self._calling("set_attr"):
            self._drop_apply()
            self._await_idle()
            self.inner.set_attr(name, [values] * self.inner.num_envs)

    def describe(self) -> str:
        """Return how each env is stepped."""
        with self._calling("describe"):
            self._drop_apply()
            self._await_idle()
            return self.inner.describe()

    def stats(self) -> Stats:
        """Return the statistics of all envs, with those of the spares."""
        stats: Stats = self.inner.stats()
        return replace(stats, spares=self._state.use.with_needed(self._state.needed))

    def close_extras(self, **kwargs: Any) -> None:
        """Close all envs."""
        self.inner.close(**kwargs)


def _named(error: EnvError, slot: int | None) -> EnvError:
    """Let an error of an env name its slot too; None: it is in no slot. May be repeated."""
    error.env = slot
    text = "a spare: " if slot is None else f"slot {slot}: "
    if not str(error).startswith(text):
        error.args = (f"{text}{error}",)
    return error


def _place(
    space: gym.Space[Any], target: Any, slots: list[int], source: Any, rows: list[int]
) -> Any:
    """Copy rows of a batch of observations to slots of another; return that."""
    if isinstance(space, gym.spaces.Dict):
        for key, one in space.spaces.items():
            target[key] = _place(one, target[key], slots, source[key], rows)
        return target
    if isinstance(space, gym.spaces.Tuple):
        parts = zip(space.spaces, target, source, strict=True)
        return tuple(_place(one, old, slots, new, rows) for one, old, new in parts)
    if isinstance(target, np.ndarray):
        target[slots] = source[rows]
        return target
    each = list(target)  # objects: one for each env
    for slot, row in zip(slots, rows, strict=True):
        each[slot] = source[row]
    return tuple(each)


def _rows(space: gym.Space[Any], batch: Any, rows: npt.NDArray[np.int64]) -> Any:
    """Return some rows of a batch of actions."""
    if isinstance(space, gym.spaces.Dict):
        return {key: _rows(one, batch[key], rows) for key, one in space.spaces.items()}
    if isinstance(space, gym.spaces.Tuple):
        return tuple(_rows(one, part, rows) for one, part in zip(space.spaces, batch, strict=True))
    if isinstance(batch, np.ndarray):
        return batch[rows]
    return tuple(batch[row] for row in rows.tolist())
