"""Results: writes actions to frames and reads results from them, in gymnasium's form.

Observations, rewards and infos with a column are read from the frame by ``_core.FrameAccess``.
Overflow (errors, other infos, observations without a fixed shape) arrives by mail and is merged
here, in Python, so only envs with overflow pay for it.
"""

from __future__ import annotations

import warnings
from contextlib import contextmanager, suppress
from copy import deepcopy
from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium.vector.vector_env import VectorEnv as GymVectorEnv

from pysampler import _core
from pysampler._frames.frames import FINAL_BY_MAIL, SKIPPED
from pysampler._frames.infos import Infos
from pysampler._frames.spec import build, checked_actions
from pysampler._workers.exceptions import error_from, report
from pysampler._workers.jobs import Answer, Failure
from pysampler.errors import EnvError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    import numpy.typing as npt

    from pysampler._frames.frames import Frames
    from pysampler._frames.infos import Column

    # Observations, rewards, terminated, truncated, infos.
    Stepped = tuple[
        Any, npt.NDArray[np.float64], npt.NDArray[np.bool_], npt.NDArray[np.bool_], dict[str, Any]
    ]

__all__ = ["Batcher", "Results", "first"]

_BLOCK = _core.EnvBlock
_NO_RESULTS = _BLOCK.ERROR, _BLOCK.NO_RESULTS


class Results:
    """Writes actions and reads results, for all envs or some groups."""

    def __init__(
        self,
        frames: Frames,
        groups: Sequence[range],
        columns: list[Column],
        error_of: Callable[[int, Failure], EnvError],
        batcher: Batcher,
        *,
        copy: bool,
        final: bool,
        restarts: bool,
        workers: bool,
    ) -> None:
        self._warnings: set[Any] = set()
        self._batcher = batcher
        self._infos = Infos(frames, columns, self._batcher.add, pickled=workers)
        self.frames = frames
        self._spec = frames.spec
        self._groups = groups
        self._error_of = error_of
        self._copy = copy
        self._final = final  # whether envs are reset in the step that ends their episode
        self._unshaped: list[list[Any]] = [
            [None] * frames.envs for _ in range(self._spec.unshaped_observations)
        ]
        self._announced = len(columns)  # number of info columns that workers know
        # The last observations of lost envs, by env: the same if results are read again.
        self.lost_finals: dict[int, Any] = {}
        self.show_versions = False  # whether infos include the versions of options
        self.usual = False  # whether the last results had no overflow
        self._ids = [np.arange(g.start, g.stop) for g in groups]
        self._no_ids = np.zeros(0, np.int64)
        self._nothing = (
            self._built(lambda leaf: frames.observations[leaf][0, :0].copy(), lambda _: ()),
            np.zeros((0, *self._spec.rewards)),
            *(np.zeros(0, np.bool_) for _ in range(2)),
        )
        # If a worker is lost, the last returned frame is still needed: do not overwrite it next.
        spare = 2 if restarts else 1
        ranges = [(group.start, len(group)) for group in groups]
        self.access = _core.FrameAccess(frames, self._infos.core, copy, ranges, spare)

    def release(self) -> None:
        """Drop all arrays of the frames."""
        vars(self.frames).clear()
        vars(self).clear()

    @property
    def frame(self) -> int:
        """The frame that all envs use."""
        return self.access.frame

    def new_columns(self) -> list[Column]:
        """Return the columns of infos that are new to the workers, which then use them."""
        self._infos.catch_up()
        return self._infos.columns[self._announced :]

    def announced(self, columns: Sequence[Column]) -> None:
        """Note that the workers have been told about these columns."""
        self._announced += len(columns)

    # -- actions ---------------------------------------------------------------------------------

    def write(self, actions: Any, envs: npt.NDArray[np.int64] | None = None) -> bool:
        """Write actions to the frame, or return False if some do not fit into arrays.

        Args:
            actions: Actions of any dtypes and nesting.
            envs: The envs of the actions; each uses the frame that ``access.start`` chose for it.
                None: all envs.
        """
        frame: Any = self.frame
        rows: Any = slice(None)
        count = self.frames.envs
        if envs is not None:
            frame_of = [self.access.frame_of(group) for group in range(len(self._ids))]
            frame = np.repeat(frame_of, [len(ids) for ids in self._ids])[envs]
            rows, count = envs, len(envs)
        arrays = checked_actions(self._spec, count, actions)
        if arrays is None:
            return False
        for leaf, array in enumerate(arrays):
            self.frames.action_types[frame, rows, leaf] = array.dtype.num
            self.frames.actions_as(leaf, array.dtype)[frame, rows] = array
        return True

    def continue_episodes(self, envs: Sequence[int]) -> None:
        """Note that a call has put envs into the middle of an episode."""
        for group, ids in enumerate(self._groups):
            rows = self.access.seen(group), [env for env in envs if env in ids]
            self.frames.terminated[rows] = self.frames.truncated[rows] = False

    def ended(self, envs: range) -> list[bool]:
        """Return which of a worker's envs ended their episodes in the step that the caller saw."""
        over: list[bool] = []
        for group, ids in enumerate(self._groups):
            if ids.start in envs:
                rows = self.access.seen(group), slice(ids.start, ids.stop)
                over += (self.frames.terminated[rows] | self.frames.truncated[rows]).tolist()
        return over

    # -- results ---------------------------------------------------------------------------------

    def read(self, answers: Sequence[Answer]) -> Stepped:
        """Return the results of all envs from their common frame."""
        self.expect_none_failed(answers)
        frame = self.frame
        rest, final = self._unpack(answers, lambda _: frame) if answers else ([], {})
        observations, rewards, terminated, truncated, infos, mixed = self.access.read(frame)
        if self.show_versions:
            self._add_versions(infos, self.frames.options_versions[frame].copy())
        self.usual = not (answers or mixed or observations is None or self.show_versions)
        if rest or mixed or final:
            rows = [(frame, env) for env in range(self.frames.envs)]
            infos = self._merged(infos, mixed, rows, rest, final)
        if observations is None:
            observations = self.observations()
        return observations, rewards, terminated, truncated, infos

    def read_step(self, answers: Sequence[Answer]) -> Stepped:
        """Return the results of a step like ``read``; an error of envs has those of the others."""
        if not (answers and (failures := self.failed(answers))):
            return self.read(answers)
        error = self._error(failures)
        with suppress(EnvError):  # infos that cannot be batched
            error.results = self.read([self._without_failed(one) for one in answers])
        raise error

    def _without_failed(self, answer: Answer) -> Answer:
        """Replace the results of envs that raised by their last observations."""
        group, result = answer
        if isinstance(result, Failure):
            overflow, failed = [], list(self._groups[group])
        else:
            failed = sorted({env for kind, env, _ in result if kind in _NO_RESULTS})
            overflow = [one for one in result if one[1] not in failed]
        frames, frame, seen = self.frames, self.frame, self.access.seen(group)
        for leaf in frames.observations:
            leaf[frame, failed] = leaf[seen, failed]
        for rows in (frames.rewards, frames.terminated, frames.truncated, frames.has_final):
            rows[frame, failed] = 0
        self._infos.clear(frame, failed)
        overflow += [(_BLOCK.INFO, env, {"env_error": True}) for env in failed]
        return Answer(group, overflow)

    def expect_none_failed(self, answers: Sequence[Answer]) -> None:
        """Raise the error of the first env that failed."""
        if answers and (failures := self.failed(answers)):
            raise self._error(failures)

    def read_some(self, groups: Sequence[int], answers: Sequence[Answer]) -> Stepped:
        """Return the results of some groups, each from the frame that ``access.start`` chose.

        The caller must have checked that none ``failed``. The info ``env_id`` names each row's env.
        """
        frame_of = self.access.frame_of
        rest, final = self._unpack(answers, frame_of) if answers else ([], {})
        group_frames = [(group, frame_of(group)) for group in groups]
        observations, rewards, terminated, truncated, infos, mixed = self.access.read_some(
            group_frames
        )
        if rest or mixed or final:
            rows = [(frame, env) for group, frame in group_frames for env in self._groups[group]]
            infos = self._merged(infos, mixed, rows, rest, final)
        envs = np.concatenate([self._ids[group] for group in groups])
        if observations is None:
            frames = np.concatenate(
                [np.full(len(self._ids[group]), frame) for group, frame in group_frames]
            )
            observations = self._built(
                lambda leaf: self.frames.observations[leaf][frames, envs],
                lambda leaf: deepcopy(tuple(self._unshaped[leaf][env] for env in envs)),
            )
        if self.show_versions:
            versions = self.frames.options_versions
            of_groups = [versions[frame, self._ids[group]] for group, frame in group_frames]
            self._add_versions(infos, np.concatenate(of_groups))
        self.add_env_ids(infos, groups)
        return observations, rewards, terminated, truncated, infos

    def add_env_ids(self, infos: dict[str, Any], groups: Sequence[int]) -> None:
        """Add the info ``env_id``, which names the env of each row."""
        infos["env_id"] = np.concatenate([self._ids[group] for group in groups])
        infos["_env_id"] = np.ones(len(infos["env_id"]), np.bool_)

    def read_chunks(
        self,
        chunks: Sequence[tuple[int, int, int]],
        answers: Sequence[Answer],
        most: int,
        *,
        every: bool,
    ) -> Stepped:
        """Return the results of chunks of steps of some groups, each env's from its last step.

        The caller must have checked that none ``failed``. The info ``steps`` says how many actions
        each env took.

        Args:
            chunks: The groups, each with its first frame and its number of steps; 0: a reset.
            answers: The answers of the groups.
            most: The number of columns of rewards.
            every: Whether to return the observations of all steps.
        """
        begins = {group: frame for group, frame, _ in chunks}
        rest: list[tuple[int, dict[str, Any]]] = []
        final: dict[int, Any] = {}
        none = [group for group, _, steps in chunks if steps == 0]
        if answers:
            steps_of = {group: steps for group, _, steps in chunks}
            last = [self._of_last_step(one, begins[one[0]], steps_of[one[0]]) for one in answers]
            rest, final = self._unpack(last, begins.__getitem__)
        observations, terminated, truncated, infos, mixed, at, taken = self.access.read_chunks(
            [(group, frame, steps or 1) for group, frame, steps in chunks]
        )
        envs = np.concatenate([self._ids[group] for group, *_ in chunks])
        if rest or mixed or final:
            rows = list(zip(at.tolist(), envs.tolist(), strict=True))
            infos = self._merged(infos, mixed, rows, rest, final)
        if every:
            first = np.concatenate([np.full(len(self._ids[g]), f) for g, f, _ in chunks])
            arrays = [
                _repeating(self._of_all_steps(leaf, chunks, most), at - first)
                for leaf in self.frames.observations
            ]
            observations = build(self._spec.observation_tree, arrays.__getitem__, _nothing)
        elif observations is None:
            observations = self._built(
                lambda leaf: self.frames.observations[leaf][at, envs],
                lambda leaf: deepcopy(tuple(self._unshaped[leaf][env] for env in envs)),
            )
        if self.show_versions:
            self._add_versions(infos, self.frames.options_versions[at, envs])
        for group in none:
            taken[np.isin(envs, self._ids[group])] = 0
        lost = [one[1] for _, overflow in answers for one in overflow if one[0] == _BLOCK.LOST]
        taken[np.isin(envs, lost)] = 0
        infos["steps"] = taken
        infos["_steps"] = np.ones(len(envs), np.bool_)
        self.usual = not (answers or mixed or every or self.show_versions or self._unshaped)
        self._note_seen([group for group, *_ in chunks], at, envs)
        rewards = self._of_all_steps(self.frames.rewards, chunks, most)
        return observations, rewards, terminated, truncated, infos

    def _note_seen(
        self, groups: Sequence[int], at: npt.NDArray[np.int64], envs: npt.NDArray[np.int64]
    ) -> None:
        """Copy the last results to a frame of steps: an env may raise, or be lost, in the next."""
        frames = [np.full(len(self._ids[g]), frame) for g, frame in self.access.start(groups)]
        for leaf in _seen_of(self.frames):
            leaf[np.concatenate(frames), envs] = leaf[at, envs]

    def take_last(self, before: Results) -> None:
        """Take the last observations that the caller has seen from results in other frames."""
        for group, envs in enumerate(self._ids):
            seen = before.access.seen(group)
            for to, leaf in zip(_seen_of(self.frames), _seen_of(before.frames), strict=True):
                to[0, envs] = leaf[seen, envs]
        self._unshaped = before._unshaped

    def _of_last_step(self, answer: Answer, frame: int, steps: int) -> Answer:
        """Return the answer with the overflow of each env's last step."""
        skipped = self.frames.has_final == SKIPPED
        overflow = [
            one[:3]
            for one in answer.result
            if len(one) == 3 or one[3] + 1 == steps or skipped[frame + one[3] + 1, one[1]]
        ]
        return Answer(answer.group, overflow)

    def _of_all_steps(
        self, array: npt.NDArray[Any], chunks: Sequence[tuple[int, int, int]], most: int
    ) -> npt.NDArray[Any]:
        """Return the rows of chunks in an array of frames as ``[envs, steps, ...]``, as a copy."""
        _, frame, steps = chunks[0]
        if chunks == [(group, frame, most) for group in range(len(self._groups))]:
            return array[frame : frame + most].swapaxes(0, 1).copy()
        count = sum(len(self._ids[group]) for group, *_ in chunks)
        rows = np.zeros((count, most, *array.shape[2:]), array.dtype)
        begin = 0
        for group, frame, steps in chunks:
            envs = self._ids[group]
            of_group = array[frame : frame + max(1, steps), envs].swapaxes(0, 1)
            rows[begin : begin + len(envs), : of_group.shape[1]] = of_group
            begin += len(envs)
        return rows

    def nothing(self) -> Stepped:
        """Return empty results, for no env. Calls may share the empty arrays."""
        return *self._nothing, {"env_id": self._no_ids, "_env_id": self._nothing[2]}

    def no_chunks(self, steps: int, *, every: bool) -> Stepped:
        """Return empty results of chunks."""
        observations, rewards, terminated, truncated, infos = self.nothing()
        if every:
            arrays = self.frames.observations
            shapes = [(0, steps, *leaf.shape[2:]) for leaf in arrays]
            observations = build(
                self._spec.observation_tree,
                lambda leaf: np.zeros(shapes[leaf], arrays[leaf].dtype),
                _nothing,
            )
        rewards = np.zeros((0, steps, *rewards.shape[1:]))
        infos = {**infos, "steps": self._no_ids, "_steps": terminated}
        return observations, rewards, terminated, truncated, infos

    def observations(self) -> Any:
        """Return the observations of all envs in the current frame."""
        arrays = self.frames.observations
        if self._copy:
            return self._built(
                lambda leaf: arrays[leaf][self.frame].copy(),
                lambda leaf: deepcopy(tuple(self._unshaped[leaf])),
            )
        return self._built(
            lambda leaf: arrays[leaf][self.frame], lambda leaf: tuple(self._unshaped[leaf])
        )

    def _built(self, leaf: Callable[[int], Any], unshaped: Callable[[int], Any]) -> Any:
        if not self._unshaped:
            return build(self._spec.observation_tree, leaf, unshaped)
        with _batching("observations"):
            return build(self._spec.observation_tree, leaf, unshaped)

    def _merged(
        self,
        infos: dict[str, Any],
        mixed: Sequence[str],
        rows: Sequence[tuple[int, int]],
        rest: Sequence[tuple[int, dict[str, Any]]],
        final: dict[int, Any],
    ) -> dict[str, Any]:
        """Add mailed infos and final observations to the infos of (frame, env) rows."""
        if final:
            at = {env: i for i, (_, env) in enumerate(rows)}
            for env, observation in final.items():
                infos["final_obs"][at[env]] = observation
        if rest or mixed:
            self._batcher.num_envs = len(rows)
            with _batching("infos"):
                infos = self._infos.merge(rows, infos, mixed, rest)
            self.learn(rest)
        return infos

    def infos_of(
        self,
        rows: Sequence[tuple[int, int]],
        keys: Iterable[str],
        mailed: Sequence[tuple[int, int, dict[str, Any]]],
    ) -> dict[str, Any]:
        """Return the infos of (frame, env) rows under some keys, batched like gymnasium's.

        If an episode ended, these are the infos of its last step, not of the reset after it.

        Args:
            rows: The frames and envs.
            keys: The keys.
            mailed: Infos without a column, as (frame, env, dict).
        """
        by_mail: dict[tuple[int, int], dict[str, Any]] = {}
        for frame, env, info in mailed:
            by_mail.setdefault((frame, env), {}).update(info)
        infos: dict[str, Any] = {}
        self._batcher.num_envs = len(rows)
        for at, row in enumerate(rows):
            here = by_mail.get(row, {})
            final = self._infos.core.row(*row, "final_info").get("final_info", {})
            final = {**final, **here.get("final_info", {})}
            info = {}
            for key in keys:
                source = final or here
                if not final and key not in here:
                    source = self._infos.core.row(*row, key)
                if key in source:
                    info[key] = source[key]
            infos = self._batcher.add(infos, info, at)
        return infos

    @property
    def columns(self) -> Sequence[Column]:
        return self._infos.columns

    def learn(self, rest: Sequence[tuple[int, dict[str, Any]]]) -> Sequence[Column]:
        """Make columns for the keys of mailed infos, and return all columns."""
        self._infos.learn(rest)
        return self._infos.columns

    def warn_once(self, message: str, about: Any = None) -> None:
        """Warn the caller of a sampler, once about a thing; by default, once per message."""
        if (about or message) not in self._warnings:
            self._warnings.add(about or message)
            warnings.warn(f"pysampler: {message}", stacklevel=7)

    def _add_versions(self, infos: dict[str, Any], versions: npt.NDArray[np.int64]) -> None:
        infos["options_version"] = versions
        infos["_options_version"] = np.ones(len(versions), np.bool_)

    def failed(self, answers: Sequence[Answer]) -> list[tuple[int, Failure]]:
        """Return the failures among the answers, each with its group."""
        failures = []
        for group, result in answers:
            if isinstance(result, Failure):
                failures.append((group, result))
                continue
            failures += [(group, value) for kind, _, value, *_ in result if kind == _BLOCK.ERROR]
        return failures

    def _unpack(
        self, answers: Sequence[Answer], frame_of: Callable[[int], int]
    ) -> tuple[list[tuple[int, dict[str, Any]]], dict[int, Any]]:
        """Return the mailed infos, and the mailed final observations by env.

        Observations without a fixed shape are stored in ``_unshaped``.
        """
        rest: list[tuple[int, dict[str, Any]]] = []
        final: dict[int, Any] = {}
        for group, overflow in answers:
            for kind, env, value in overflow:
                if kind == _BLOCK.INFO:
                    rest.append((env, value))
                elif kind == _BLOCK.FINAL_OBS:
                    final[env] = value
                elif kind == _BLOCK.UNSEEN:
                    for rows in self.frames.observations:
                        rows[frame_of(group), env] = rows[self.access.seen(group), env]
                elif kind == _BLOCK.LOST:
                    rest.append((env, self._end_lost(group, env, frame_of(group), final)))
                elif kind == _BLOCK.UNSHAPED_OBS:
                    for leaf, observation in enumerate(value):
                        self._unshaped[leaf][env] = observation
        return rest, final

    def _end_lost(self, group: int, env: int, frame: int, final: dict[int, Any]) -> dict[str, Any]:
        """Give an env that was lost in a step its last observation; return its info.

        An env that was lost in a reset was reset again; no episode ends.
        """
        lost: dict[str, Any] = {"worker_lost": True}
        if self.frames.truncated[frame, env]:
            seen = self.access.seen(group)
            if self._final:  # the env was reset in the same step
                self.frames.has_final[frame, env] = FINAL_BY_MAIL
                lost["final_info"] = {"worker_lost": True}
                if env not in self.lost_finals:
                    self.lost_finals[env] = self._observation(seen, env)
                final[env] = self.lost_finals[env]
            else:
                for leaf in self.frames.observations:
                    leaf[frame, env] = leaf[seen, env]
                self.frames.options_versions[frame, env] = self.frames.options_versions[seen, env]
        return lost

    def _observation(self, frame: int, env: int) -> Any:
        return self._built(
            lambda leaf: deepcopy(self.frames.observations[leaf][frame, env]),
            lambda leaf: deepcopy(self._unshaped[leaf][env]),
        )

    def _error(self, failures: Sequence[tuple[int, Failure]]) -> EnvError:
        """Return the error of the first env, with the errors of others as notes."""
        chosen = first(failures)
        error = self._error_of(*chosen)
        for one in sorted(failures, key=_env_of):
            if one is not chosen:
                report = one[1].report
                whose = "another worker" if one[1].env is None else f"env {one[1].env}"
                error.add_note(f"{whose} also raised {report.kind}: {report.text}")
        return error


def _seen_of(frames: Frames) -> list[npt.NDArray[Any]]:
    """Return the arrays that a step needs of the one before, if an env raises or is lost."""
    return [*frames.observations, frames.terminated, frames.truncated, frames.options_versions]


def _repeating(rows: npt.NDArray[Any], last: npt.NDArray[np.int64]) -> npt.NDArray[Any]:
    """Let each env's rows after its last one repeat that one."""
    for env in np.flatnonzero(last + 1 < rows.shape[1]):
        rows[env, last[env] + 1 :] = rows[env, last[env]]
    return rows


def _nothing(_: int) -> None:
    """Stand for parts of observations without a fixed shape, of which there are none."""


# dtypes whose values gymnasium batches to the same dtype as those of Python's types.
_PLAIN = [np.dtype(kind) for kind in (bool, int, float)]


class Batcher(GymVectorEnv[Any, Any, Any]):
    """Batches infos with gymnasium's method.

    It has no reference to the vector env: the cycle would keep the workers alive after the vector
    env is dropped.

    Attributes:
        keeps_types: Whether an array becomes one of objects for a value that it would convert.
    """

    keeps_types = False

    def add(self, infos: dict[str, Any], info: dict[str, Any], env: int) -> dict[str, Any]:
        """Return ``infos`` with the info of an env added."""
        return self._add_info(infos, info, env)

    def _add_info(self, infos: Any, info: dict[str, Any], env: int) -> dict[str, Any]:
        for key, value in info.items() if self.keeps_types else ():
            array = infos.get(key)
            if isinstance(array, np.ndarray) and not array.dtype.hasobject:
                numbers = isinstance(value, (int, float, np.number, np.bool_, np.ndarray))
                one = np.asarray(value if numbers else None)
                if one.dtype != array.dtype or one.shape != array.shape[1:]:
                    plain = array.ndim == 1 and array.dtype in _PLAIN  # as envs give them
                    infos[key] = np.fromiter(array.tolist() if plain else array, object, len(array))
        return super()._add_info(infos, info, env)


@contextmanager
def _batching(what: str) -> Iterator[None]:
    """Report an exception in this context as an error of the envs."""
    try:
        yield
    except Exception as error:
        message = f"cannot batch {what} of envs: {type(error).__name__}"
        raise error_from(report(error), message) from error


def first(failures: Sequence[tuple[int, Failure]]) -> tuple[int, Failure]:
    """Return the failure of the env server, if any, otherwise the one of the first env."""
    return min(failures, key=_env_of)


def _env_of(one: tuple[int, Failure]) -> int:
    return -1 if one[1].env is None else one[1].env
