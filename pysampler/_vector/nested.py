"""NestedBlock: steps the envs of a gymnasium vector env that a function returned, in one call.

Its results are copied once, from its arrays into the rows of the frames. A vector env may save that
copy with a method ``use_buffers(observations, rewards, terminated, truncated)``: it is called
before each step and reset with the arrays for the results of that call, the rows of the frame. (A
reset returns only observations, so the other arrays are outside of the frame then.)
"""

from __future__ import annotations

import copy
import functools
from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium.error import AlreadyPendingCallError
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import concatenate, create_empty_array

from pysampler import _core
from pysampler._common.torch import is_tensor, tensor_from, to_array
from pysampler._frames.frames import BEGUN, FINAL, FINAL_BY_MAIL, LOST
from pysampler._frames.spec import build, leaves
from pysampler._vector.blocks import GivenActions, WholeBlock
from pysampler._workers.jobs import is_users
from pysampler._workers.remote import dumps
from pysampler.sync import now

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    import numpy.typing as npt

    from pysampler._frames.frames import Frames

    Array = npt.NDArray[Any]
    # The seed and options for resetting an env; None: no reset.
    Call = tuple[int | None, dict[str, Any] | None] | None

__all__ = ["NestedBlock", "info_of_row"]

_INFO, _ERROR, _LOST = _core.EnvBlock.INFO, _core.EnvBlock.ERROR, _core.EnvBlock.LOST
# How long to wait for the rest of an interrupted call, in seconds.
_LEFT_SECONDS = 10.0
_FINAL_KEYS = "final_obs", "_final_obs", "final_info", "_final_info"
_FINAL_OBS, _UNSHAPED = _core.EnvBlock.FINAL_OBS, _core.EnvBlock.UNSHAPED_OBS


class NestedBlock(WholeBlock):
    """The envs of a vector env, from number ``first`` on.

    In the user's process, an exception may end a wait of spare envs (``waits_again``). The block is
    then halted, and the same command goes on with that wait. Any other vector env is lost.

    Args:
        env: The vector env.
        mode: Its autoreset mode.
        first: The number of its first env.
        meter: Counts steps and resets.
        inline: Whether the block is in the user's process.
    """

    def __init__(
        self, env: Any, mode: AutoresetMode, first: int, meter: _core.Meter, *, inline: bool
    ) -> None:
        super().__init__(inline=inline)
        self._env = env
        self.first = first
        self.count: int = env.num_envs
        self._all: Array = np.arange(self.count, dtype=np.int32)
        self._meter = meter
        self._mode = mode
        self._use_buffers: Callable[..., None] | None = getattr(env, "use_buffers", None)
        self._over: Array = np.zeros(self.count, bool)  # envs whose episodes the last step ended
        self._resting: Array = np.zeros(self.count, bool)  # envs that have no actions
        self._any_rests = False
        self._device: Any = None  # the torch device, if it returns tensors
        self._last: Any = None  # the newest observations
        self._seed: int | None = None  # for the next reset, of replacements
        self.fresh = False  # whether the envs replace others, and have not begun
        self._begins = False  # whether the next step or reset resets all envs, which were lost
        self._options: dict[int, tuple[Any, int]] = {}
        self._used = np.zeros(self.count, np.int64)  # the options version of each episode
        # Writes the results of a step of all envs; the vector env counts and ends episodes.
        self._rows = _core.BatchRows(first, self.count, meter, np.zeros(self.count, np.int64), 0)
        self._mute = ""  # why it is not called any more, if it does not answer
        self._waits = False  # whether a call has begun whose wait may be made again
        self._stage: Callable[[], None]  # what a halted command goes on with

    def use(self, frames: Frames, infos: _core.Infos, autoreset: str, keep: str) -> None:
        """Use these frames from now on; the envs do not change."""
        envs = slice(self.first, self.first + self.count)
        self._infos, self._keep = infos, keep
        self._resting[:] = self._any_rests = False
        self._same_step = autoreset == "SAME_STEP"
        if self._use_buffers is not None:  # a view of the frames before
            self._last = copy.deepcopy(self._last)
        if (use_mode := getattr(self._env, "use_mode", None)) is not None:
            self._mode = use_mode(AutoresetMode[autoreset])
        self._resets = self._same_step and self._mode is AutoresetMode.DISABLED
        self._resets_late = self._same_step and self._mode is AutoresetMode.NEXT_STEP
        self._tree, self._action_tree = frames.spec.observation_tree, frames.spec.action_tree
        self._kinds = list(_kinds(self._tree))
        self._shaped = all(kind == "leaf" for kind, _ in self._kinds)
        self._is_array = self._kinds == [("leaf", 0)] and self._tree[0] == "leaf"
        self._observations = [leaf[:, envs] for leaf in frames.observations]
        self._finals = [leaf[:, envs] for leaf in frames.final_observations]
        self._rewards = frames.rewards[:, envs]
        self._terminated, self._truncated = frames.terminated[:, envs], frames.truncated[:, envs]
        self._buffers = [self._buffers_of(frame) for frame in range(frames.count)]
        ends = np.zeros((2, self.count), bool)
        self._unused = np.zeros_like(self._rewards[0]), *ends
        self._has_final = frames.has_final[:, envs]
        self._versions = frames.options_versions[:, envs]
        self._actions = [
            GivenActions(frames, self.first, self.count, leaf)
            for leaf in range(len(frames.actions))
        ]
        self._rows.use(frames, infos, all_infos=False)

    # -- called by workers -----------------------------------------------------------------------

    def step(self, frame: int, actions: Sequence[Any] | None = None) -> bool:
        """Step every env. Those whose episodes have ended are reset by the vector env."""
        if self._begins:
            self.fresh = False
            return self._serve(frame, lambda: self._reset_all(frame))
        if self.fresh:
            return self._serve(frame, lambda: self._end_lost(frame))
        return self._serve(frame, lambda: self._step_all(frame, actions))

    def reset(self, frame: int, calls: Sequence[Call]) -> bool:
        """Reset each env with its (seed, options); leave it unchanged if that is None.

        If the envs are fresh, or lost in the step before, all are reset.
        """
        return self._serve(frame, lambda: self._reset(frame, calls))

    def replace(self, seeds: Sequence[int | None], over: Sequence[bool]) -> None:
        """Let the envs replace others; their next reset gets the first of ``seeds``."""
        self._seed = seeds[0]
        self._last = None  # in the user's process, of a step before the one that was interrupted
        self.halted = False
        self.fresh = True
        self._begins = self._mode is AutoresetMode.NEXT_STEP and bool(over) and all(over)

    def _end_lost(self, frame: int) -> None:
        """End the episodes of the lost envs, which the fresh ones replace."""
        self._begun_lost(frame)
        self._clear(frame, self._all)
        self._truncated[frame] = True
        if self._same_step:
            self._rest_no_more(self._all)
            self._begin_episodes(frame, self._all)
        else:
            self._begins = True

    def _begun_lost(self, frame: int) -> None:
        self.fresh = False
        self._has_final[frame] = LOST
        for i in self._all.tolist():
            self._leave(_LOST, i, None)

    def set_options(self, i: int, options: Any, version: int) -> None:
        """Use these options for resets of env ``i`` from now on."""
        if not self._resets and self._mode is not AutoresetMode.DISABLED:
            raise ValueError(
                f"cannot set options of env {self.first + i}: {type(self._env).__name__} resets "
                "its envs itself, without options; pass them to reset()"
            )
        self._options[i] = options, version

    def rest(self, i: int) -> None:
        """Step env ``i`` with another env's action until it is reset; if all rest, step none."""
        self._resting[i] = self._any_rests = True

    def _serve(self, frame: int, work: Callable[[], None]) -> bool:
        """Prepare the frame and do some work; report an exception as an error of the first env."""
        halted, self.halted = self.halted, False
        if not halted:
            self._overflow, self._waits, self._stage = [], False, work
        try:
            if not halted:
                self._rows.begin(frame)
            self._stage()
        except BaseException as error:
            if is_users(error, inline=self.inline):
                if self._waits or hasattr(error, "for_caller"):
                    self.halted, self.torn = True, False
                raise
            self._leave(_ERROR, 0, error)
            for i in range(1, self.count):
                self._leave(_core.EnvBlock.NO_RESULTS, i, None)
        self._meter.idle()
        if self._options:
            self._versions[frame] = self._used
        return bool(self._overflow)

    def _call(self, name: str, frame: int, *args: Any, **kwargs: Any) -> Any:
        """Call a method of the vector env."""
        if self._use_buffers is not None:
            own = self._buffers[frame]
            self._use_buffers(*(own if name == "step" else (own[0], *self._unused)))
        if getattr(self._env, "waits_again", False):
            results = self._call_in_parts(name, *args, **kwargs)
        else:
            results = self._call_at_once(name, *args, **kwargs)
        for i, raised in getattr(self._env, "errors", ()):  # of single envs
            self._leave(_ERROR, i, raised)
        for i in getattr(self._env, "lost", ()):
            self._leave(_LOST, i, None)
        return self._as_arrays(results)

    def _as_arrays(self, results: Any) -> Any:
        """Convert tensors in results to arrays; if there are any, later actions become tensors."""
        first: Any = results[0] if isinstance(results, tuple) and results else None
        while isinstance(first, (dict, tuple)) and first:
            first = next(iter(first.values() if isinstance(first, dict) else first))
        if not is_tensor(first):
            return results
        self._device = first.device
        return _mapped(lambda one: to_array(one) if is_tensor(one) else one, results)

    def _call_at_once(self, name: str, *args: Any, **kwargs: Any) -> Any:
        """Call a method; first drop the rest of a call that an exception has interrupted."""
        if self._mute:
            raise RuntimeError(self._mute)
        function = getattr(self._env, name)
        try:
            return function(*args, **kwargs)
        except AlreadyPendingCallError as error:
            if not self.inline:
                raise
            left = getattr(self._env, f"{error.name}_wait")
        try:
            left(timeout=_LEFT_SECONDS)
        except Exception as error:
            self._mute = (
                f"an exception interrupted {type(self._env).__name__}, which has not answered "
                "since: make it anew"
            )
            raise RuntimeError(self._mute) from error
        return function(*args, **kwargs)

    def _call_in_parts(self, name: str, *args: Any, **kwargs: Any) -> Any:
        """Begin a call and wait for it, or go on with the wait of one that has begun."""
        if not self._waits:
            torn, self.torn = self.torn, True
            getattr(self._env, f"{name}_async")(*args, **kwargs)
            self._waits, self.torn = True, torn
        results = getattr(self._env, f"{name}_wait")()
        self._waits = False
        return results

    def _buffers_of(self, frame: int) -> tuple[Any, Array, Array, Array]:
        """Return the rows of a frame; parts of observations without a fixed shape are None."""
        observations = build(
            self._tree, lambda leaf: self._observations[leaf][frame], lambda _: None
        )
        ends = self._terminated[frame], self._truncated[frame]
        return observations, self._rewards[frame], *ends

    # -- actions ---------------------------------------------------------------------------------

    def _given(self, frame: int) -> Any:
        """Return the actions in a frame."""

        def of_leaf(leaf: int) -> Array:
            actions = self._actions[leaf].of(frame)
            if self._any_rests:
                actions[self._resting] = actions[self._resting.argmin()]  # a valid one
            return actions

        return build(self._action_tree, of_leaf, _never)

    def _batched(self, actions: Sequence[Any]) -> Any:
        """Return actions that were passed one by one as a batch."""
        space = self._env.single_action_space
        out: Any = create_empty_array(space, self.count)
        return concatenate(space, actions, out)

    # -- results ---------------------------------------------------------------------------------

    def _step_all(self, frame: int, actions: Sequence[Any] | None) -> None:
        if self._any_rests and self._resting.all():
            self._clear(frame, self._all)
            return
        given = self._given(frame) if actions is None else self._batched(actions)
        if self._device is not None:
            given = _mapped(functools.partial(tensor_from, device=self._device), given)
        results = self._call("step", frame, given)
        observations, rewards, terminated, truncated, infos = _expect_length("step", results, 5)
        array = _as_dtype(observations, self._observations[0].dtype) if self._is_array else None
        ends = np.asarray(terminated, bool), np.asarray(truncated, bool)
        ended, _ = self._rows.write(frame, None, array, rewards, ends[0], {}, ends[1])
        begun, self._over = self._over, ends[0] | ends[1]
        if array is None:
            self._write_observations(frame, observations)
        self._last = observations
        if "worker_lost" in infos:  # in a reset, it ends no episode
            for i in np.flatnonzero(infos["worker_lost"] & ends[1]).tolist():
                self._leave(_LOST, i, None)
        if self._resets_late:
            self._has_final[frame, begun] = BEGUN
            self._write_late(frame, observations, infos)
            return
        if ended is None or (self._keep == "ALL" and not self._same_step):
            if self._keep == "ALL":
                self._write_infos(frame, self._all, infos)
            return
        if not self._same_step:
            self._write_infos(frame, ended, infos)
        elif self._resets:
            self._write_finals(frame, ended, observations)
            self._write_infos(frame, ended, infos, "final_info")
            if self._keep == "ALL":
                self._write_infos(frame, np.delete(self._all, ended), infos)
            self._begin_episodes(frame, ended)
        else:
            infos = self._write_given_finals(frame, ended, infos)
            if self._keep == "ALL":
                self._write_infos(frame, self._all, infos)

    def _write_late(self, frame: int, observations: Any, infos: dict[str, Any]) -> None:
        """Write the results of a step that also reset the envs whose episodes the last step ended.

        If an episode ends now, the next step begins another one. So its last observation is
        in the frame twice: as an observation and as a final one.
        """
        ended: Array = np.flatnonzero(self._over)
        if len(ended):
            self._write_finals(frame, ended, observations)
            self._write_infos(frame, ended, infos, "final_info")
        if self._keep == "ALL":
            self._write_infos(frame, np.flatnonzero(~self._over), infos)

    def _write_rows(self, what: str, rows: Array, given: Any) -> None:
        if given is rows:
            return
        given = np.asarray(given)
        if given.shape != rows.shape:
            raise ValueError(f"{what} have shape {given.shape}, expected {rows.shape}")
        np.copyto(rows, given, casting="same_kind")

    def _write_observations(self, frame: int, observations: Any) -> None:
        unshaped = []
        for (kind, number), (path, value) in zip(
            self._kinds, leaves(self._tree, observations), strict=True
        ):
            if kind == "leaf":
                self._write_rows(f"observations{path}", self._observations[number][frame], value)
            else:
                unshaped.append(value)
        for i in self._all.tolist() if unshaped else ():
            self._leave(_UNSHAPED, i, tuple(value[i] for value in unshaped))

    def _write_finals(self, frame: int, ended: Array, observations: Any) -> None:
        """Write the last observations of ended episodes, out of the observations of all envs."""
        for (kind, number), (_, value) in zip(
            self._kinds, leaves(self._tree, observations), strict=True
        ):
            if kind == "leaf":
                self._finals[number][frame, ended] = np.asarray(value)[ended]
        self._has_final[frame, ended] = FINAL if self._shaped else FINAL_BY_MAIL
        for i in () if self._shaped else ended.tolist():
            # A copy, since the reset that follows may write to the same arrays.
            self._leave(_FINAL_OBS, i, copy.deepcopy(_row(self._tree, observations, i)))

    def _write_given_finals(
        self, frame: int, ended: Array, infos: dict[str, Any]
    ) -> dict[str, Any]:
        """Write the last observations and infos of ended episodes; return the other infos.

        The others belong to the first observations of the next episodes.
        """
        finals, given = infos.get("final_obs"), infos.get("final_info", {})
        objects = isinstance(finals, np.ndarray) and finals.dtype == object
        if finals is None or (objects and any(finals[i] is None for i in ended.tolist())):
            raise ValueError(
                f"{type(self._env).__name__} ended episodes without info['final_obs'], which its "
                "autoreset mode SAME_STEP requires"
            )
        if objects:
            for i in ended.tolist():
                for (kind, number), (_, value) in zip(
                    self._kinds, leaves(self._tree, finals[i]), strict=True
                ):
                    if kind == "leaf":
                        self._finals[number][frame, i] = value
                # A frame would turn an array without dimensions into a number.
                held = self._shaped and np.ndim(finals[i]) > 0 if self._is_array else self._shaped
                self._has_final[frame, i] = FINAL if held else FINAL_BY_MAIL
                if not held:
                    self._leave(_FINAL_OBS, i, finals[i])
        else:
            self._write_finals(frame, ended, finals)
        self._write_infos(frame, ended, given, "final_info")
        return {key: one for key, one in infos.items() if key not in _FINAL_KEYS}

    def _leave(self, kind: int, i: int, value: Any) -> None:
        self._overflow.append((kind, self.first + i, value))

    # -- resets ----------------------------------------------------------------------------------

    def _reset(self, frame: int, calls: Sequence[Call]) -> None:
        """Reset some envs; write the observations of all envs and the infos of those."""
        if self.fresh or self._begins:
            calls = [(None, None) if call is None else call for call in calls]
        if self.fresh:
            self._begun_lost(frame)
        chosen = np.array([i for i, call in enumerate(calls) if call is not None], np.int64)
        self._clear(frame, chosen)
        left = np.setdiff1d(self._all, chosen)
        waits = self._mode is AutoresetMode.NEXT_STEP and not self._same_step  # for the next step
        self._terminated[frame, left] = self._over[left] & waits
        self._truncated[frame, left] = False
        self._rest_no_more(chosen)
        if len(chosen):
            self._begin_episodes(frame, chosen, calls)
        elif self._last is not None:
            self._write_observations(frame, self._last)

    def _rest_no_more(self, envs: Array) -> None:
        self._resting[envs] = False
        self._any_rests = bool(self._resting.any())

    def _reset_all(self, frame: int) -> None:
        self._reset(frame, [(None, None)] * self.count)

    def _clear(self, frame: int, envs: Array) -> None:
        for rows in (self._rewards, self._terminated, self._truncated):
            rows[frame, envs] = 0

    def _begin_episodes(self, frame: int, envs: Array, calls: Sequence[Call] | None = None) -> None:
        self._stage = functools.partial(self._begin_episodes, frame, envs, calls)
        began = now()
        infos: list[tuple[Array, Any]] = []
        for rows, own, seed, options in self._resets_of(envs, calls):
            observations, info = self._reset_some(frame, rows, seed, options)
            infos.append((own, info))
        self._write_observations(frame, observations)
        for rows, info in infos if self._keep == "ALL" else ():
            self._write_infos(frame, rows, info)
        self._over[envs] = False
        self._begins, self._seed = False, None
        self._meter.were_reset(self.first + envs, (now() - began) // len(envs))

    def _resets_of(
        self, envs: Array, calls: Sequence[Call] | None
    ) -> Iterator[tuple[Array, Array, Any, dict[str, Any] | None]]:
        """Yield for each ``reset`` the envs that it resets, those that it should, seed and options.

        The first call resets all envs, because only envs that were reset can be left out.
        """
        seeds: list[int | None] = [None] * self.count
        by_options: dict[bytes, tuple[list[int], dict[str, Any] | None]] = {}
        options_of: dict[int, dict[str, Any] | None] = {}
        for i in envs.tolist():
            call = None if calls is None else calls[i]
            seeds[i], options = (None, None) if call is None else call
            self._used[i] = 0
            if not options and i in self._options:
                options, self._used[i] = self._options[i]
            options_of[i] = options or None
            by_options.setdefault(dumps(options or None), ([], options or None))[0].append(i)
        if getattr(self._env, "resets_with_options_of", False):  # in one call
            by_options = {b"": (envs.tolist(), {"options_of": options_of})}
        groups = [(np.array(rows), options) for rows, options in by_options.values()]
        for own, options in groups:
            rows = self._all if self._last is None and len(envs) == self.count else own
            yield rows, own, self._seed_of(seeds, rows), options

    def _seed_of(self, seeds: Sequence[int | None], rows: Array) -> Any:
        """Return the ``seed`` argument of a reset: one number if the seeds are successive."""
        chosen = [seeds[i] for i in rows.tolist()]
        if all(seed is None for seed in chosen):
            return self._seed
        if len(rows) < self.count:
            return [seeds[i] if i in rows else None for i in range(self.count)]
        first = chosen[0]
        successive = first is not None and chosen == [first + i for i in range(self.count)]
        return first if successive else chosen

    def _reset_some(self, frame: int, rows: Array, seed: Any, options: Any) -> tuple[Any, Any]:
        """Reset the envs in some rows; raise ValueError if others were reset too."""
        before = None
        if len(rows) < self.count:
            if self._last is None:
                raise ValueError("cannot reset some envs: they were not all reset before")
            mask = np.zeros(self.count, bool)
            mask[rows] = True
            options = {**(options or {}), "reset_mask": mask}
            if self._use_buffers is None:  # else the caller may have written to the last ones
                before = self._shaped_rows(self._last, ~mask)
        results = self._call("reset", frame, seed=seed, options=options)
        observations, info = _expect_length("reset", results, 2)
        if before is not None:
            after = self._shaped_rows(observations, ~mask)
            if not all(map(_same, before, after)):
                raise ValueError(
                    f"cannot reset some envs: {type(self._env).__name__}.reset() ignores "
                    "options['reset_mask'], and has reset all of them"
                )
        self._last = observations
        return observations, info

    def _shaped_rows(self, observations: Any, mask: Array) -> list[Array]:
        """Return copies of some rows of the observations that have a fixed shape."""
        pairs = zip(self._kinds, leaves(self._tree, observations), strict=True)
        return [np.asarray(value)[mask] for (kind, _), (_, value) in pairs if kind == "leaf"]

    # -- infos -----------------------------------------------------------------------------------

    def _write_infos(
        self, frame: int, rows: Array, infos: dict[str, Any], under: str | None = None
    ) -> None:
        """Write the infos of some envs: arrays to their columns, other values env by env.

        Args:
            frame: The frame.
            rows: The envs.
            infos: The infos of all envs.
            under: The key of a dict to nest them in; None: do not nest them.
        """
        if self._keep == "NONE":
            return
        by_env: dict[int, dict[str, Any]] = {} if under is None else {i: {} for i in rows.tolist()}
        for key, value, mask in _entries(infos, self.count):
            if key == "env_id" and under is None and _is_integer(value):
                value = value + self.first
            chosen = rows if mask is None else rows[mask[rows]]
            if _has_rows(value, self.count) and value.dtype != object and len(chosen):
                ids, final = chosen.astype(np.int32), under is not None
                if self._rows.write_infos(frame, ids, ids, {key: value}, final) is None:
                    continue
            for i in chosen.tolist():
                item = info_of_row(value, i, self.count)
                by_env.setdefault(i, {})[key] = copy.deepcopy(item) if self._resets else item
        for i, info in by_env.items():
            rest = self._infos.store(frame, self.first + i, info, under)
            if rest is not None:
                self._leave(_INFO, i, rest)


def _mapped(function: Callable[[Any], Any], tree: Any) -> Any:
    """Apply a function to the leaves of nested dicts and tuples."""
    if isinstance(tree, dict):
        return {key: _mapped(function, one) for key, one in tree.items()}
    if isinstance(tree, tuple):
        return tuple(_mapped(function, one) for one in tree)
    return function(tree)


def _kinds(tree: Any) -> Iterator[tuple[str, int]]:
    """Yield ("leaf", number) or ("unshaped", number) for each leaf of a tree, in order."""
    kind, content = tree
    if kind in ("leaf", "unshaped"):
        yield kind, content
    for child in content if kind == "tuple" else ():
        yield from _kinds(child)
    for _, child in content if kind == "dict" else ():
        yield from _kinds(child)


def _row(tree: Any, batch: Any, i: int) -> Any:
    """Return the observation of one env from a batch of all envs."""
    values = [value for _, value in leaves(tree, batch)]
    numbers = list(_kinds(tree))
    return build(
        tree,
        lambda leaf: values[numbers.index(("leaf", leaf))][i],
        lambda leaf: values[numbers.index(("unshaped", leaf))][i],
    )


def _never(_: int) -> Any:
    raise AssertionError("actions without a fixed shape are not in frames")


def _expect_length(name: str, results: Any, length: int) -> tuple[Any, ...]:
    if not isinstance(results, tuple) or len(results) != length:
        got = f"{len(results)} values" if isinstance(results, tuple) else type(results).__name__
        raise ValueError(f"{name}() returned {got}, expected {length} values")
    return results


def _same(before: Array, after: Array) -> bool:
    return np.array_equal(before, after, equal_nan=before.dtype.kind in "fc")


def _is_integer(value: Any) -> bool:
    return isinstance(value, np.ndarray) and value.dtype.kind in "iu"


def _as_dtype(value: Any, dtype: np.dtype[Any]) -> Array:
    """Convert an array to this dtype; raise TypeError if that changes the kind of numbers."""
    array = np.asarray(value)
    return array if array.dtype == dtype else array.astype(dtype, casting="same_kind")


def _has_rows(value: Any, count: int) -> bool:
    """Return whether a value is an array with a row for each env."""
    return isinstance(value, np.ndarray) and value.shape[:1] == (count,)


def _entries(infos: Mapping[str, Any], count: int) -> Iterator[tuple[str, Any, Array | None]]:
    """Yield the key, value and mask of each info; the mask None means that all envs have it."""
    masks = {
        key: np.asarray(infos[f"_{key}"])
        for key in infos
        if isinstance(key, str) and _is_mask(infos.get(f"_{key}"), count)
    }
    for key, value in infos.items():
        if isinstance(key, str) and key.startswith("_") and key[1:] in masks:
            continue
        if not isinstance(value, np.ndarray) and hasattr(value, "__array__"):  # a tensor
            value = np.asarray(value)
        yield key, value, masks.get(key)


def _is_mask(value: Any, count: int) -> bool:
    if value is None or not hasattr(value, "__len__") or isinstance(value, (str, dict)):
        return False
    array = np.asarray(value)
    return array.dtype == np.bool_ and array.shape == (count,)


def info_of_row(value: Any, i: int, count: int) -> Any:
    """Return the info of one env, with a type that batches to the same arrays again."""
    if isinstance(value, dict):
        return {
            key: info_of_row(one, i, count)
            for key, one, mask in _entries(value, count)
            if mask is None or mask[i]
        }
    if _has_rows(value, count):
        if value.ndim > 1:
            return value[i].copy()
        return bool(value[i]) if value.dtype == np.bool_ else value[i]
    return value[i] if isinstance(value, (list, tuple)) and len(value) == count else value
