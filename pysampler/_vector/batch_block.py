"""BatchBlock: gymnasium's contract around envs that step together, and their results in frames.

It is the counterpart of csrc/bindings/env_block.cpp, and has the same features: three autoreset
modes, time limits, seeds, options, infos with masks, states, and the results of envs that replace
lost ones. Subclasses step and reset the envs: MuJoCo tasks, or a ``BatchEnv`` of a user.

A step of all envs is the fast path: one call of the envs and one of ``BatchRows``, which writes
results to the frame. If some are reset or not begun, ``_step_some`` handles subsets, one call each.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np

from pysampler import _core
from pysampler._frames.frames import BEGUN, FINAL, LOST
from pysampler._vector.blocks import ChunkBlock, GivenActions, of_all
from pysampler._vector.columns import InfoColumns, row_of
from pysampler._vector.env_calls import reward_shape, reward_space_of
from pysampler._workers.jobs import is_users
from pysampler.envs._errors import RowError
from pysampler.envs.batch import Generators

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy.typing as npt

    from pysampler._frames.frames import Frames
    from pysampler._frames.infos import Column
    from pysampler.envs.batch import BatchEnv

    Array = npt.NDArray[Any]
    # Results of a step: observations, rewards, terminated, infos. Of a reset: observations, infos.
    Advanced = tuple[Array, Any, Any, dict[str, Array]]
    Begun = tuple[Array, dict[str, Array]]

__all__ = ["BatchBlock", "OwnBlock"]

_INFO, _ERROR, _LOST = _core.EnvBlock.INFO, _core.EnvBlock.ERROR, _core.EnvBlock.LOST
_UNSEEN = _core.EnvBlock.UNSEEN
_LOW = (1 << 64) - 1
# Bytes of a seed in a state.
_SEED = 32
# Bytes of the name of an env in a state.
_NAME = 32
# More steps than any episode has.
_NEVER = 1 << 62


class BatchBlock(ChunkBlock):
    """Envs that step together, in place of the ``count`` envs from ``first`` on.

    Args:
        count: The number of envs.
        first: The index of the first env.
        action_shape: The shape of an action.
        max_episode_steps: The number of steps after which an episode is truncated; None: no limit.
        meter: Counts steps and resets.
        here: Whether the block is in the user's process.

    Attributes:
        ended: For each env, whether the next step resets it.
        any_ended: Whether the next step resets any env.
        seeds: By env, the seed of its next reset, unless the call passes another one.
        options: By env, the options of its later resets and their version.
        used: For each env, the version of the options of its current episode.
        failed: Whether the last step or reset raised before it had written all results.
    """

    def __init__(
        self,
        count: int,
        first: int,
        action_shape: tuple[int, ...],
        max_episode_steps: int | None,
        meter: _core.Meter,
        *,
        here: bool = False,
    ) -> None:
        super().__init__(here=here)
        self.count = count
        self.first = first
        self.all: Array = np.arange(count, dtype=np.int32)
        self._action_shape = action_shape
        self._meter = meter
        self._limit = max_episode_steps or _NEVER
        self.rngs: list[Any] = [None] * count  # or the generator of each env
        self.rng_seeds: list[int | None] = [None] * count
        self.elapsed = np.zeros(count, np.int64)
        # Writes the results of steps and resets.
        self._rows = _core.BatchRows(first, count, meter, self.elapsed, max_episode_steps or _NEVER)
        self.begun = np.zeros(count, bool)  # reset at least once
        self._all_begun = False  # and none rests
        self.resting = np.zeros(count, bool)  # steps leave these alone
        self._fresh = np.zeros(count, bool)  # these replace others, and have not begun
        self.fresh = False  # whether any does
        self.ended = np.zeros(count, bool)  # to be reset by the next step
        self.any_ended = False
        self.seeds: dict[int, int] = {}
        self.options: dict[int, tuple[Any, int]] = {}
        self.used = np.zeros(count, np.int64)  # the options version of each episode
        self.failed = False

    double_rewards: Any = True  # rewards are NumPy's float64
    # Called with a reason, makes a block that steps the envs one by one; None: they never leave.
    leave: Callable[[str], Any] | None = None
    # Whether a reset undoes any effect of stepping an env whose episode has ended. Then all envs
    # step together even if some must be reset.
    steps_ended = False

    # -- the envs --------------------------------------------------------------------------------

    def advance(self, ids: Array | None, actions: Array) -> Advanced:
        """Step some envs; None: all."""
        raise NotImplementedError

    def begin_rows(self, ids: Array, rngs: Generators) -> Begun:
        """Begin episodes of some envs, with their random generators."""
        raise NotImplementedError

    def observe(self, ids: Array | None) -> Array:
        """Return the observations of some envs; None: of all."""
        raise NotImplementedError

    @property
    def kind(self) -> type:
        """The class of the envs, whose name is in their states."""
        raise NotImplementedError

    @property
    def memory(self) -> dict[str, Array]:
        """The arrays that hold the states of the envs, a row for each."""
        raise NotImplementedError

    def take_options(self, places: Sequence[int], options: Sequence[Any]) -> None:
        """Set the options, or None, of resets that follow immediately."""

    def why_leave(self, frame: int, actions: Any) -> str | None:  # noqa: ARG002
        """Return why the envs cannot step together; None if they can."""
        return None

    def why_not_reset(self, calls: Sequence[Any]) -> str | None:  # noqa: ARG002
        """Return why the envs cannot be reset together; None if they can."""
        return None

    # -- frames ----------------------------------------------------------------------------------

    def use(self, frames: Frames, infos: _core.Infos, autoreset: str, keep: str) -> None:  # noqa: ARG002
        """Use these frames from now on; the envs do not change.

        Args:
            frames: The frames.
            infos: How other blocks write infos; ``add_columns`` gives this one its columns.
            autoreset: The name of the autoreset mode.
            keep: Which infos are kept.
        """
        rows = slice(self.first, self.first + self.count)
        self._autoreset, self._keep = autoreset, keep
        self.resting[:] = False
        self._count_begun()
        [observations] = frames.observations
        self._observations = observations[:, rows]
        self._rewards = frames.rewards[:, rows]
        self._terminated = frames.terminated[:, rows]
        self._truncated = frames.truncated[:, rows]
        self._has_final = frames.has_final[:, rows]
        self._versions = frames.options_versions[:, rows]
        self._actions = GivenActions(frames, self.first, self.count)
        self._rows.use(frames, keep == "ALL")
        self._infos = InfoColumns(frames, self._rows)

    def add_columns(self, columns: Sequence[Column]) -> None:
        """Write infos to these columns too."""
        self._infos.add(columns)

    def _begin(self, frame: int) -> None:
        self._rows.begin(frame)
        self._overflow = []

    # -- called by workers -----------------------------------------------------------------------

    def step(self, frame: int, actions: Sequence[Any] | Array | None = None) -> bool:
        """Step every env, or reset it if its episode has ended.

        Args:
            frame: The frame.
            actions: Actions to use in place of those in the frame.

        Returns:
            Whether there is overflow.
        """
        self.failed = False
        try:
            if actions is None:
                actions = self._actions.of(frame)
            given = actions if self._all_begun and isinstance(actions, np.ndarray) else None
            if self.stopped is not None or self.fresh:
                given = None
            self._begin(frame)
            if given is not None and not self.any_ended:
                self._step(frame, None, given)
            elif given is not None and self.steps_ended and self._any_goes_on():
                self._step_and_reset(frame, given)
            else:
                self._step_some(frame, actions)
        except BaseException as error:
            self._report(error)
        self._meter.idle()
        return self._done(frame)

    def _report(self, error: BaseException) -> None:
        """Report an exception as the error of an env, or raise it if it is the user's."""
        if is_users(error, here=self.here):
            raise error
        self.failed = True
        at = error.row if isinstance(error, RowError) else 0
        self._leave(_ERROR, at, error)
        for i in np.delete(self.all, at).tolist():
            self._leave(self.NO_RESULTS, i, None)

    def step_in_chunk(self, frame: int) -> bool:
        return BatchBlock.step(self, frame)  # a subclass may leave the batch, which it did before

    def _step_and_reset(self, frame: int, actions: Array) -> None:
        """Step all envs and discard the steps of those that had ended, which are reset instead."""
        going = ~self.ended
        resets = self.all[self.ended]
        observations, rewards, terminated, infos = self.advance(None, actions)
        rows, rest = self._rows.write(
            frame, None, observations, rewards, terminated, infos, uncounted=self.ended
        )
        if rest is not None:
            self._leave_infos(self.all[going], rest, self.all[going])
        self._reset(frame, resets, has_final=BEGUN)  # which clears the ends of these envs
        if rows is not None and len(rows := rows[going[rows]]):
            self._end_some(frame, rows, rows, observations, infos)

    def _any_goes_on(self) -> bool:
        return int(np.count_nonzero(self.ended)) < self.count

    def _done(self, frame: int) -> bool:
        """Write the options version of each episode, and return whether there is overflow."""
        if self.options:
            self._versions[frame] = self.used
        return bool(self._overflow)

    def begin_episode(self, i: int) -> None:
        """Mark env ``i`` as reset, after a user's call has reset it."""
        self.begun[i] = True
        self._count_begun()

    def _count_begun(self) -> None:
        self._all_begun = bool((self.begun & ~self.resting).all())

    def rest(self, i: int) -> None:
        """Let steps leave env ``i`` alone until it is reset."""
        self.resting[i] = True
        self._count_begun()

    def _step_some(self, frame: int, actions: Sequence[Any] | Array) -> None:
        """Step the envs that have begun an episode, and reset those whose episodes have ended."""
        given = actions if isinstance(actions, np.ndarray) else self._stacked(actions)
        makes_none = np.zeros(self.count, bool) if self.stopped is None else self.stopped.copy()
        if self.fresh:
            makes_none |= self._end_lost(frame)
        resets = np.flatnonzero(self.ended & ~makes_none)
        if len(resets):
            self._reset(frame, resets.astype(np.int32), has_final=BEGUN)
        going = self.begun & ~self.resting
        going[resets] = False
        going &= ~makes_none
        steps: Array = np.flatnonzero(going).astype(np.int32)
        if not self._all_begun:
            for i in np.flatnonzero(~(self.begun | makes_none)):
                text = "Cannot call env.step() before calling env.reset()"
                self._leave(_ERROR, int(i), gym.error.ResetNeeded(text))
        if given is not None:
            alike = [(steps, given[steps])] if len(steps) else []
        else:
            alike = self._alike(steps, list(actions))
        for ids, chosen in alike:
            self._step(frame, ids, chosen)

    def _end_lost(self, frame: int) -> Array:
        """End the episodes of lost envs that fresh ones replace; return these as a mask."""
        lost = self._begun_lost()
        ids = np.flatnonzero(lost).astype(np.int32)
        if self._autoreset == "SAME_STEP":
            self._reset(frame, ids)
        self._has_final[frame, lost] = LOST
        self._rewards[frame, lost] = self._terminated[frame, lost] = 0
        self._truncated[frame, lost] = True
        if self._autoreset == "NEXT_STEP":
            self.ended[lost] = self.any_ended = True
        return lost

    def _begun_lost(self) -> Array:
        """Return a mask of the fresh envs, which are not fresh any more."""
        lost, self._fresh = self._fresh, np.zeros(self.count, bool)
        self.fresh = False
        for i in np.flatnonzero(lost).tolist():
            self._leave(_LOST, i, None)
        return lost

    def _stacked(self, actions: Sequence[Any]) -> Array | None:
        """Return actions as one array; None if dtypes differ or a shape does not fit the space."""
        arrays = [np.asarray(action) for action in actions]
        shape = self._action_shape
        if any(array.shape != shape or array.dtype != arrays[0].dtype for array in arrays):
            return None
        return np.stack(arrays)

    def _alike(self, steps: Array, actions: Sequence[Any]) -> list[tuple[Array, Array]]:
        """Return envs and their valid actions, grouped by dtype."""
        shape = self._action_shape
        by_type: dict[Any, list[tuple[int, Array]]] = {}
        for i in steps.tolist():
            array = np.asarray(actions[i])
            if array.shape == shape and array.dtype.kind in "biuf":
                by_type.setdefault(array.dtype, []).append((i, array))
            else:
                text = f"Action dimension mismatch. Expected {shape}, found {array.shape}"
                self._leave(_ERROR, i, ValueError(text))
        return [
            (np.array([i for i, _ in some], np.int32), np.stack([array for _, array in some]))
            for some in by_type.values()
        ]

    def _step(self, frame: int, ids: Array | None, actions: Array) -> None:
        """Step some envs and write their results; None: all."""
        observations, rewards, terminated, infos = self.advance(ids, actions)
        rows, rest = self._rows.write(frame, ids, observations, rewards, terminated, infos)
        if rest is not None:
            every = self.all if ids is None else ids
            going = self.all[: len(every)]
            if rows is not None and self._autoreset == "SAME_STEP":  # the others become final
                going = np.delete(going, rows)
            self._leave_infos(every[going], rest, going)
        if rows is not None:
            ended = rows if ids is None else ids[rows]
            self._end_some(frame, ended, rows, observations, infos)

    def _end_some(
        self, frame: int, ended: Array, rows: Array, observations: Array, infos: dict[str, Array]
    ) -> None:
        """Handle the episodes that ended in a step.

        Args:
            frame: The frame.
            ended: The envs.
            rows: Their rows in the results of the step.
            observations: The observations of all envs that made it.
            infos: Their infos.
        """
        if self._autoreset == "SAME_STEP":
            self._rows.write_finals(frame, ended, rows, observations, FINAL)
            if self._keep != "NONE":
                rest = self._rows.write_infos(frame, ended, rows, infos, final=True)
                for row, i in zip(rows, ended, strict=True) if rest is not None else ():
                    self._leave(_INFO, int(i), {"final_info": row_of(rest, row)})
            self._reset(frame, ended, has_final=None)
            return
        if self._autoreset == "NEXT_STEP":
            self.ended[ended] = self.any_ended = True
        if self._keep == "FINAL" and (rest := self._rows.write_infos(frame, ended, rows, infos)):
            self._leave_infos(ended, rest, rows)

    def reset(self, frame: int, calls: Sequence[tuple[int | None, Any] | None]) -> bool:
        """Reset each env with its (seed, options); leave it unchanged if that is None.

        If some are fresh, the others have lost their episodes, too: all are reset.
        """
        self._begin(frame)
        self.failed = False
        lost = np.zeros(self.count, bool)
        if self.fresh:
            calls = of_all(calls)
            lost = self._begun_lost()
        try:
            ids = [i for i, call in enumerate(calls) if call is not None]
            kept = [i for i, call in enumerate(calls) if call is None]
            left = np.array([i for i in kept if self.begun[i]], np.int32)
            if len(left):
                self._observations[frame, left] = self.observe(left)
            for i in kept:
                if not self.begun[i]:
                    self._leave(_UNSEEN, i, None)
            self._terminated[frame, kept] = self.ended[kept]
            self._truncated[frame, kept] = False
            chosen = [call for call in calls if call is not None]
            self._reset(frame, np.array(ids, np.int32), chosen)
            self._has_final[frame, lost] = LOST
        except BaseException as error:
            self._report(error)
        self._meter.idle()
        return self._done(frame)

    def _reset(
        self,
        frame: int,
        ids: Array,
        calls: Sequence[tuple[int | None, Any]] | None = None,
        *,
        has_final: int | None = 0,
    ) -> None:
        """Begin episodes of some envs, and write their first observations.

        Args:
            frame: The frame.
            ids: The envs.
            calls: The seed and options of each; None: no seeds or options.
            has_final: What takes the place of the results of a step; None: a step has just
                written them.
        """
        if calls is not None or self.seeds or self.options or not self._all_begun:
            ids = self._prepared(ids, calls or [(None, None)] * len(ids))
        if not len(ids):
            return
        rngs = Generators([self.rngs[i] for i in ids.tolist()])
        observations, infos = self.begin_rows(ids, rngs)
        if not self._all_begun:
            self.begun[ids] = True
            self.resting[ids] = False
            self._count_begun()
        if self.any_ended:
            self.ended[ids] = False
            self.any_ended = int(np.count_nonzero(self.ended)) > 0
        if rest := self._rows.write_resets(frame, ids, observations, infos, has_final):
            self._leave_infos(ids, rest, range(len(ids)))

    def _prepared(self, ids: Array, calls: Sequence[tuple[int | None, Any]]) -> Array:
        """Seed envs and set their options; return those whose seed was valid."""
        kept, options = [], []
        for place, (seed, given) in zip(ids.tolist(), calls, strict=True):
            own = self.seeds.pop(place, None)
            chosen = own if seed is None else seed
            try:
                if chosen is not None or self.rngs[place] is None:
                    self.rngs[place], self.rng_seeds[place] = gym.utils.seeding.np_random(chosen)
            except Exception as error:
                self._leave(_ERROR, place, error)
                continue
            kept.append(place)
            options.append(given)
        return np.array(self._choose_options(kept, options), np.int32)

    def _choose_options(self, places: list[int], options: Sequence[Any]) -> list[int]:
        """Set the options of envs; return those whose options were valid."""
        chosen = []
        for place, given in zip(places, options, strict=True):
            self.used[place] = 0
            if not given and place in self.options:
                given, self.used[place] = self.options[place]
            chosen.append(given)
        try:
            self.take_options(places, chosen)
        except Exception as error:
            if is_users(error, here=self.here):
                raise
            pairs = zip(places, chosen, strict=True)
            return [place for place, given in pairs if self._takes(place, given)]
        return places

    def _takes(self, place: int, options: Any) -> bool:
        """Set the options of one env; return False after an error, which is reported."""
        try:
            self.take_options([place], [options])
        except Exception as error:
            if is_users(error, here=self.here):
                raise
            self._leave(_ERROR, place, error)
            return False
        return True

    def replace(self, seeds: Sequence[int | None], over: Sequence[bool]) -> None:
        """Let the envs replace others: they are fresh; ``seeds`` are for their next resets."""
        self.seeds.update({i: seed for i, seed in enumerate(seeds) if seed is not None})
        self.begun[:] = self._all_begun = False
        are_over = list(over) if over and self._autoreset != "SAME_STEP" else [False] * self.count
        self.ended[:] = are_over if self._autoreset == "NEXT_STEP" else False
        self.any_ended = bool(self.ended.any())
        self._fresh[:] = np.logical_not(are_over)
        self.fresh = bool(self._fresh.any())

    def set_options(self, i: int, options: Any, version: int) -> None:
        """Use these options for resets of env ``i`` from now on."""
        self.options[i] = options, version

    # -- states ----------------------------------------------------------------------------------

    @property
    def _name(self) -> bytes:
        return self.kind.__name__.encode()[:_NAME]

    @property
    def _state_type(self) -> np.dtype[Any]:
        """The dtype of an env's state: its own, and that of the episode."""
        return np.dtype(
            [
                *(
                    (name, array.dtype, array.shape[1:])
                    for name, array in self._state_arrays().items()
                ),
                *(("seeded", np.bool_), ("seed", np.uint8, _SEED), ("generator", np.uint64, 6)),
                ("env", np.bytes_, _NAME),
            ]
        )

    def _state_arrays(self) -> dict[str, Array]:
        episode = {"elapsed": self.elapsed, "begun": self.begun, "ended": self.ended}
        return {**self.memory, **episode}

    def states(self, ids: Sequence[int]) -> Array:
        """Return the states of envs, one row each."""
        states = np.zeros(len(ids), self._state_type)
        states["env"] = self._name
        for name, array in self._state_arrays().items():
            states[name] = array[ids]
        for row, i in enumerate(ids):
            if (rng := self.rngs[i]) is not None:
                states["seeded"][row] = True
                states["seed"][row] = _bytes_of_seed(self.rng_seeds[i])
                states["generator"][row] = _numbers_of(rng)
        return states

    def set_states(self, ids: Sequence[int], states: Array) -> None:
        """Set the states of envs."""
        if states.dtype != self._state_type:
            ours, theirs = ({*(dtype.names or ())} for dtype in (self._state_type, states.dtype))
            differing = ", ".join(sorted(ours ^ theirs)) or "other sizes"
            raise ValueError(f"cannot set state: it belongs to other envs ({differing})")
        if (wrong := states["env"] != self._name).any():
            other, name = states["env"][wrong.argmax()].decode(), self._name.decode()
            raise ValueError(f"cannot set state: it belongs to {other or 'no env'}, not to {name}")
        for name, array in self._state_arrays().items():
            array[ids] = states[name]
        self._fresh[ids] = False
        self.fresh = bool(self._fresh.any())
        self.ended &= self._autoreset == "NEXT_STEP"  # the states may come from another mode
        for row, i in enumerate(ids):
            self.seeds.pop(i, None)
            if states["seeded"][row]:
                self.rngs[i] = _generator_of(states["generator"][row])
                self.rng_seeds[i] = int.from_bytes(states["seed"][row], "little", signed=True)
            elif self.begun[i]:
                self.rngs[i], self.rng_seeds[i] = gym.utils.seeding.np_random()
            else:
                self.rngs[i] = self.rng_seeds[i] = None
        self._count_begun()
        self.any_ended = bool(self.ended.any())

    # -- helpers ---------------------------------------------------------------------------------

    def _leave_infos(self, ids: Array, infos: dict[str, Array], rows: Array | range) -> None:
        """Leave infos of some envs, which are these rows of the arrays."""
        for i, row in zip(ids, rows, strict=True):
            self._leave(_INFO, int(i), row_of(infos, row))

    def _leave(self, kind: int, i: int, value: Any) -> None:
        self._overflow.append((kind, self.first + i, value))


class OwnBlock(BatchBlock):
    """The envs of a ``BatchEnv``.

    Args:
        env: The envs.
        first: The index of the first env.
        meter: Counts steps and resets.
        here: Whether the block is in the user's process.
    """

    def __init__(self, env: BatchEnv, first: int, meter: _core.Meter, *, here: bool) -> None:
        self._env = env
        self._reward_shape = reward_shape(reward_space_of(env))
        shape = env.action_space.shape or ()
        super().__init__(env.num_envs, first, shape, env.max_episode_steps, meter, here=here)
        self.rngs = env.rngs = Generators(self.rngs)

    def advance(self, ids: Array | None, actions: Array) -> Advanced:
        rows = slice(None) if ids is None else ids
        results = self._env.step(rows, actions)
        if not isinstance(results, tuple) or len(results) not in (2, 3):
            got = f"{len(results)} values" if isinstance(results, tuple) else repr(results)
            raise ValueError(f"step returned {got}, expected rewards, terminated[, infos]")
        rewards, terminated, *infos = results
        # Copies, since observe() may return the same memory.
        count = self.count if ids is None else len(ids)
        rewards, terminated = np.array(rewards, np.float64), np.array(terminated)
        for name, array, shapes in (
            ("rewards", rewards, [(count, *self._reward_shape)]),
            ("terminated", terminated, [(count,), ()]),
        ):
            if array.shape not in shapes:
                raise ValueError(f"step returned {name} of {array.shape}, expected {shapes[0]}")
        if terminated.dtype != np.bool_:
            raise ValueError(f"step returned terminated of {terminated.dtype}, expected bool")
        if terminated.ndim == 0:
            terminated = np.broadcast_to(terminated, count)
        return self.observe(ids), rewards, terminated, infos[0] if infos else {}

    def begin_rows(self, ids: Array, rngs: Generators) -> Begun:
        infos = self._env.reset(ids, rngs)
        return self.observe(ids), infos or {}

    def observe(self, ids: Array | None) -> Array:
        observations = self._env.observe(slice(None) if ids is None else ids)
        space = self._env.observation_space
        expected = self.count if ids is None else len(ids), *(space.shape or ())
        got = np.shape(observations), getattr(observations, "dtype", type(observations).__name__)
        if got != (expected, space.dtype):
            raise ValueError(
                f"observe returned {got[1]} of shape {got[0]}, expected {space.dtype} of {expected}"
            )
        return observations

    @property
    def kind(self) -> type:
        return type(self._env)

    @property
    def memory(self) -> dict[str, Array]:
        return self._env.memory

    def take_options(self, places: Sequence[int], options: Sequence[Any]) -> None:
        given = {place: one for place, one in zip(places, options, strict=True) if one}
        if given:
            self._env.set_options(np.array(list(given), np.int32), list(given.values()))


def _bytes_of_seed(seed: int | None) -> Array:
    """Return a seed as bytes; -1 stands for no seed, as in gymnasium."""
    try:
        seed_bytes = (-1 if seed is None else seed).to_bytes(_SEED, "little", signed=True)
    except OverflowError:
        raise ValueError(f"cannot get state: a seed of more than {8 * _SEED - 1} bits") from None
    return np.frombuffer(seed_bytes, np.uint8)


def _numbers_of(rng: np.random.Generator) -> list[int]:
    """Return the state of a generator as six 64-bit numbers."""
    state: Any = rng.bit_generator.state
    if state["bit_generator"] != "PCG64":
        raise ValueError(f"cannot get state: the generator is {state['bit_generator']}")
    wide = state["state"]["state"], state["state"]["inc"]
    halves = [part for number in wide for part in (number & _LOW, number >> 64)]
    return [*halves, state["has_uint32"], state["uinteger"]]


def _generator_of(numbers: Array) -> np.random.Generator:
    low, high, inc_low, inc_high, has_uint32, uinteger = (int(number) for number in numbers)
    generator = np.random.PCG64()
    generator.state = {
        "bit_generator": "PCG64",
        "state": {"state": low | high << 64, "inc": inc_low | inc_high << 64},
        "has_uint32": has_uint32,
        "uinteger": uinteger,
    }
    return np.random.Generator(generator)
