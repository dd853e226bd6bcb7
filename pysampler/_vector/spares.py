"""SpareEnvs: a vector env whose slots change to spare envs, so that nobody waits for resets.

It steps N of its N + M envs, in processes of an inner vector env. If an episode ends, its slot goes
on with a spare env that has been reset before; the env that ended becomes the last of the spares,
and is reset while the others step.

Spares are used in the order in which they became spares, even if a later one is ready before. So
which env is in which slot, and with which seed, follows from the seed of the run and from the steps
at which episodes end: it does not depend on time or on the number of workers.

To its ``VectorEnv`` this is a vector env in the user's process, in one block (nested.py), as is any
other that a function returns: samplers, autoreset modes and frames need nothing more. Calls
have two parts, so that a second attempt continues one that was interrupted while it waited.
"""

from __future__ import annotations

import itertools
import time
from collections import Counter, deque
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np
from gymnasium.error import AlreadyPendingCallError
from gymnasium.vector import AutoresetMode
from gymnasium.vector import VectorEnv as GymVectorEnv
from gymnasium.vector.utils import batch_space, create_empty_array

from pysampler._numbers import whole_number
from pysampler._vector.arguments import seeds as seeds_of
from pysampler._vector.env_calls import reward_shape
from pysampler._vector.nested import info_of_row
from pysampler._workers.counters import SpareUse
from pysampler._workers.remote import dumps
from pysampler.errors import EnvError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy.typing as npt

    from pysampler._vector.core import VectorCore
    from pysampler._workers.counters import Stats

__all__ = ["SpareEnvs", "divided"]

# Options of the vector env around it; all others are for the workers.
_OUTER = ("autoreset_mode", "copy", "frames", "infos", "check_actions", "shared_memory")
_NOT_WITH = {
    "main_envs": 0,
    "groups": 1,
    "worker": None,
    "observation_mode": "same",
    "record_to": None,
    "replay_from": None,
}


def divided(options: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the options of the vector env around the spares, and those of the inner one.

    Raises:
        ValueError: Some do not work with spare envs.
    """
    for name, default in _NOT_WITH.items():
        if options[name] != default:
            raise ValueError(
                f"cannot make vector env: {name} {options[name]!r} with spare_envs, expected "
                f"{default!r}"
            )
    if options["num_workers"] in (0, "auto"):
        raise ValueError(
            f"cannot make vector env: num_workers {options['num_workers']!r} with spare_envs, "
            "whose resets need workers"
        )
    outer = {name: options[name] for name in _OUTER}
    both = {*_OUTER, *_NOT_WITH, "spare_envs"}
    return outer, {name: one for name, one in options.items() if name not in both}


class SpareEnvs(GymVectorEnv[Any, Any, Any]):
    """N slots and M spare envs.

    Args:
        make: Makes the inner vector env: ``VectorEnv``.
        core_of: Returns the core of a vector env.
        env_fns: Functions that make the envs of the slots. The spares come from them too, in turn.
        spares: The number of spares.
        mode: The autoreset mode of the vector env around it.
        options: The options of the inner vector env.
    """

    applies_to_each = True  # functions that are applied to it get each env

    def __init__(
        self,
        make: Callable[..., Any],
        core_of: Callable[[Any], VectorCore],
        env_fns: Sequence[Callable[[], Any]],
        spares: int,
        mode: AutoresetMode,
        options: dict[str, Any],
    ) -> None:
        spares = whole_number("make vector env", "spare_envs", spares, 0)
        functions = [*env_fns, *itertools.islice(itertools.cycle(env_fns), spares)]
        count = len(functions)
        if options["num_workers"] is None:  # a worker steps nothing while it resets an env
            options = {**options, "num_workers": count}
        # Each env is a group, so that each can step while others reset.
        self.inner = make(
            functions, autoreset_mode=AutoresetMode.DISABLED, groups=count, infos="all", **options
        )
        self._pool = core_of(self.inner).pool  # the group of each env has its number
        try:
            if self.inner.num_envs != count:
                raise ValueError("cannot make vector env: spare_envs needs envs, not vector envs")
        except BaseException:
            self.inner.close(terminate=True)
            raise
        self.num_envs = len(env_fns)
        self.use_mode(mode)
        self.render_mode = self.inner.render_mode
        self.single_observation_space = self.inner.single_observation_space
        self.single_action_space = self.inner.single_action_space
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self.action_space = batch_space(self.single_action_space, self.num_envs)
        self.reward_space = self.inner.reward_space
        self._observations: Any = create_empty_array(self.single_observation_space, self.num_envs)
        self._env_of: npt.NDArray[np.int64] = np.arange(self.num_envs)  # by slot
        self._spares: deque[int] = deque(range(self.num_envs, count))  # the next one first
        # Of spares that have been reset: the batch that they came in, the row there, the info.
        self._reset_results: dict[int, tuple[Any, int, dict[str, Any]] | EnvError] = {}
        self._sequence: np.random.SeedSequence | None = None  # of seeds; None: none was given
        self._was_reset = False
        self._pending = ""  # the call that is under way
        self._awaited: dict[int, int] = {}  # the slots of envs that are at work for it
        self._to_change: list[int] = []  # slots that still have to take a spare in it
        self._batch: Any = None  # received from the inner vector env, not yet read
        self._error: EnvError | None = None  # of an env in a slot, to be raised at the end
        self._infos: dict[int, dict[str, Any]] = {}  # by slot
        self._over: npt.NDArray[np.bool_] = np.zeros(self.num_envs, bool)
        self._use = SpareUse(spares)
        self._needed: Counter[int] = Counter()
        self._begin_results()

    def use_mode(self, mode: AutoresetMode) -> AutoresetMode:
        """Follow the autoreset mode of new frames; return that of this vector env for them.

        For SAME_STEP it is DISABLED: the block then asks for a reset in the step.
        """
        self._next_step = mode is AutoresetMode.NEXT_STEP
        own = mode if self._next_step else AutoresetMode.DISABLED
        self.metadata = {**self.inner.metadata, "autoreset_mode": own}
        return own

    def _begin_results(self) -> None:
        self._infos = {}
        self._rewards = np.zeros((self.num_envs, *reward_shape(self.reward_space)))
        self._terminated = np.zeros(self.num_envs, bool)
        self._truncated = np.zeros(self.num_envs, bool)

    # -- step ------------------------------------------------------------------------------------

    def step_async(self, actions: Any) -> None:
        """Start a step of the envs in the slots."""
        self._expect_idle()
        slots = np.flatnonzero(~self._over) if self._next_step else np.arange(self.num_envs)
        envs = self._env_of[slots]
        # An exception of a signal handler may have come right after some of them were sent.
        idle: Any = [not self._pool.is_pending(env) for env in envs.tolist()]
        self._begin_results()
        self._awaited = dict(zip(envs.tolist(), slots.tolist(), strict=True))
        self._to_change = np.flatnonzero(self._over).tolist() if self._next_step else []
        if any(idle):
            chosen = _rows(self.single_action_space, actions, slots[idle])
            self.inner.send(chosen, env_ids=envs[idle])
        self._pending = "step"

    def step_wait(self) -> Any:
        """Return the results of the step."""
        infos = self._finish()
        self._over = self._terminated | self._truncated
        results = self._rewards, self._terminated, self._truncated, infos
        self._pending = ""
        self._raise_error()
        return self._observations, *results

    def step(self, actions: Any) -> Any:
        """Step the envs in the slots; in the mode NEXT_STEP, change those that have ended."""
        self.step_async(actions)
        return self.step_wait()

    # -- reset -----------------------------------------------------------------------------------

    def reset_async(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> None:
        """Start a reset of all slots, or of those in a mask.

        Slots without a seed and options take spares, once all envs have been reset.
        """
        self._expect_idle()
        options = dict(options or {})
        mask = options.pop("reset_mask", None)
        seeds = seeds_of(seed, self.num_envs)
        slots: list[int] = list(range(self.num_envs))
        self._to_change = []
        if mask is None and self._was_reset and all(one is None for one in seeds):
            mask = np.ones(self.num_envs, bool)
        if mask is None:
            self._settle()
            self._reset_results.clear()
            self._env_of[:] = slots
            self._spares = deque(range(self.num_envs, self.inner.num_envs))
            if any(one is not None for one in seeds):
                entropy = [0 if one is None else abs(int(one)) for one in seeds]
                self._sequence = np.random.SeedSequence(entropy)
        else:
            slots = np.flatnonzero(mask).tolist()
            if not options:
                self._to_change = [slot for slot in slots if seeds[slot] is None]
                slots = [slot for slot in slots if seeds[slot] is not None]
        envs = self._env_of[slots].tolist()
        self._begin_results()
        self._awaited = dict(zip(envs, slots, strict=True))
        self._over[slots] = False
        if slots:
            given = [seeds[slot] for slot in slots]
            self.inner.async_reset(given, options=options or None, env_ids=envs)
        if mask is None:
            for env in self._spares:
                self._reset_spare(env)
        self._pending = "reset"

    def reset_wait(self) -> tuple[Any, dict[str, Any]]:
        """Return the observations of all slots, and the infos of those that were reset."""
        infos = self._finish()
        self._was_reset = True
        self._pending = ""
        self._raise_error()
        return self._observations, infos

    def reset(
        self, *, seed: Any = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Reset all slots, or those in a mask."""
        self.reset_async(seed=seed, options=options)
        return self.reset_wait()

    def _reset_spare(self, env: int) -> None:
        """Start the reset of a spare with the next seed."""
        seed = None
        if self._sequence is not None:
            seed = int(self._sequence.spawn(1)[0].generate_state(1)[0])
        self.inner.async_reset([seed], env_ids=[env])

    # -- results ---------------------------------------------------------------------------------

    def _expect_idle(self) -> None:
        if self._pending:
            raise AlreadyPendingCallError(f"a {self._pending} is pending", self._pending)

    def _finish(self) -> dict[str, Any]:
        """Wait for the envs of the pending call; change slots to spares; return the infos."""
        while self._awaited:
            self._receive(len(self._awaited))
        if self._to_change:
            busy = sum(env not in self._reset_results for env in self._spares)
            self._needed[busy + len(self._to_change)] += len(self._to_change)
        while self._to_change:
            self._change(self._to_change[0])
            del self._to_change[0]
        infos: dict[str, Any] = {}
        for slot, info in self._infos.items():
            infos = self._add_info(infos, info, slot)
        infos["env_in_slot"] = self._env_of.copy()
        infos["_env_in_slot"] = np.ones(self.num_envs, bool)
        return infos

    def _receive(self, least: int) -> None:
        """Receive results of at least so many envs, in slots or not."""
        if self._batch is None:
            try:
                self._batch = self.inner.recv(min_envs=min(least, self.inner.pending))
            except EnvError as error:
                if error.env is None:
                    raise
                slot = self._awaited.pop(error.env, None)
                if slot is None:
                    self._reset_results[error.env] = error
                else:
                    self._error = self._error or error
                return
        observations, rewards, terminated, truncated, infos = self._batch
        envs = infos["env_id"].tolist()
        rest = {key: one for key, one in infos.items() if key not in ("env_id", "_env_id")}
        rows, slots = [], []
        for row, env in enumerate(envs):
            info = info_of_row(rest, row, len(envs)) if rest else {}
            slot = self._awaited.get(env)
            if slot is None:
                self._reset_results[env] = observations, row, info
                continue
            rows.append(row)
            slots.append(slot)
            if info:
                self._infos[slot] = info
        if rows:
            space = self.single_observation_space
            self._observations = _place(space, self._observations, slots, observations, rows)
            self._rewards[slots] = rewards[rows]
            self._terminated[slots], self._truncated[slots] = terminated[rows], truncated[rows]
        for row in rows:
            self._awaited.pop(envs[row], None)
        self._batch = None

    def _change(self, slot: int) -> None:
        """Let a slot go on with the next spare, and reset its env."""
        env, old = self._spares[0], int(self._env_of[slot])
        if not self._pool.is_pending(old) and old not in self._reset_results:
            self._reset_spare(old)
        waits = env not in self._reset_results
        began = time.perf_counter()
        while env not in self._reset_results:
            self._receive(1)
        result = self._reset_results[env]
        if isinstance(result, EnvError):
            del self._reset_results[env]
            self._reset_spare(env)
            self._spares.rotate(-1)
            raise result
        self._use = self._use.after(waited=waits, seconds=time.perf_counter() - began)
        observations, row, info = result
        space = self.single_observation_space
        self._observations = _place(space, self._observations, [slot], observations, [row])
        self._infos[slot] = info
        self._over[slot] = False
        self._env_of[slot] = env
        self._spares.append(old)
        self._spares.popleft()
        del self._reset_results[env]

    def _raise_error(self) -> None:
        error, self._error = self._error, None
        if error is not None:
            raise error

    def _settle(self) -> None:
        """Wait for the resets under way, so that the envs can be called."""
        while self._batch is not None or self.inner.pending:
            self._receive(1)

    # -- calls -----------------------------------------------------------------------------------

    def call(self, name: str, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Call a method of all envs; return the results of those in slots."""
        self._settle()
        results = self.inner.call(name, *args, **kwargs)
        return tuple(results[env] for env in self._env_of)

    def apply(self, function: Callable[..., Any], *args: Any) -> tuple[Any, ...]:
        """Call a function with each env in a slot."""
        self._settle()
        results: tuple[Any, ...] = self.inner.apply(function, *args, envs=self._env_of.tolist())
        return results

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
        self._settle()
        self.inner.set_attr(name, [values] * self.inner.num_envs)

    def stats(self) -> Stats:
        """Return the statistics of all envs, with those of the spares."""
        stats: Stats = self.inner.stats()
        return replace(stats, spares=self._use.with_needed(self._needed))

    def close_extras(self, **kwargs: Any) -> None:
        """Close all envs."""
        self.inner.close(**kwargs)


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
