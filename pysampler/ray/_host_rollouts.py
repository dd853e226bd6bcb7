"""The rollouts that ``take`` returns, and the learner's buffers that hold them.

Ray's store keeps a host's rollout, read-only, while anything refers to it; a host on the driver's
machine keeps it in its frames (_host_memory.py). The learner copies it once, to a buffer that holds
the envs of all hosts side by side: the rollouts of several hosts are one batch without a second
copy.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, overload

import numpy as np

from pysampler import _core
from pysampler._policies.trees import mapped
from pysampler._rollouts.info_arrays import of_unlike_shapes
from pysampler._rollouts.rollout import STEP_FIELDS, Ended, Rollout
from pysampler.ray._host_memory import Part

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt

    from pysampler._frames.infos import Path
    from pysampler.ray._host_memory import HostMemory
    from pysampler.sync import Segment

__all__ = ["HostRollout", "HostRollouts", "InfoShapes", "LearnerBuffer", "Packed", "packed"]

_FINAL = "final_observations"


@dataclass(frozen=True, repr=False)
class HostRollout(Rollout):
    """The rollout of one host: a :class:`pysampler.Rollout` with the following attributes.

    Attributes:
        host: The index of the host.
        node: The node of the host: its address and the beginning of its id.
        restarts: The number of restarts of the host so far. If it has grown since the host's last
            rollout, that rollout's unfinished episodes are lost, and this one has new envs.
        number: The number of rollouts requested from the host before this one. A gap means that a
            rollout was lost with the host, or dropped because it was too old.
        version: The version of the policy that acted, from 1 on.
        lag: The number of versions published since then.
        host_seconds: Seconds that the host took for the rollout.
    """

    host: int
    node: str
    restarts: int
    number: int
    host_seconds: float

    def __repr__(self) -> str:
        return f"{super().__repr__()[:-1]}, host {self.host}>"


@dataclass(frozen=True)
class Packed:
    """A rollout as a host sends it: the fields of ``Rollout`` by name, and its metadata.

    Attributes:
        fields: Arrays, or trees of arrays; ``final_observations`` has one row for each step that
            ended an episode.
        lengths: The number of steps of each env.
        ended: The episodes that ended.
        version: The version of the policy that acted.
        seconds: The time spent on the host, by activity.
        seen: The statistics that a normalizer gathered in it, as arrays by name; None without one.
        memory: The memory of the host's frames; None once the driver has tried to map it.
        in_memory: Whether ``fields`` has ``Part``s of that memory instead of arrays.
    """

    fields: dict[str, Any]
    lengths: npt.NDArray[np.int64]
    ended: Ended
    version: int
    seconds: dict[str, float]
    seen: Mapping[str, npt.NDArray[Any]] | None = None
    memory: HostMemory | None = None
    in_memory: bool = False

    def sent_from(self, memory: HostMemory, *, mapped_by_driver: bool) -> Packed:
        """Return the rollout with the parts of this memory that the driver can read there."""
        fields = self.fields
        if mapped_by_driver:
            fields = {name: mapped(memory.part, tree) for name, tree in fields.items()}
        return replace(self, fields=fields, memory=memory, in_memory=mapped_by_driver)

    def read_in(self, segment: Segment) -> Packed:
        """Return the rollout with views of the mapped segment with the host's frames."""
        assert self.memory is not None
        frames = self.memory.view(segment)
        fields = {
            name: mapped(lambda one: one.read(frames) if isinstance(one, Part) else one, tree)
            for name, tree in self.fields.items()
        }
        return replace(self, fields=fields, memory=None, in_memory=False)

    def own(self) -> tuple[npt.NDArray[np.int64], Ended]:
        """Return copies of ``lengths`` and ``ended``: views would keep the rollout in the store."""
        ended = self.ended
        env, step = ended.env.copy(), ended.step.copy()
        own = Ended(env, step, ended.returns.copy(), ended.lengths.copy())
        return self.lengths.copy(), own

    @property
    def nbytes(self) -> int:
        """The number of bytes of the arrays."""
        sizes: list[int] = []
        for tree in self.fields.values():
            mapped(lambda array: sizes.append(array.nbytes), tree)
        return sum(sizes)


class InfoShapes:
    """The shapes of infos, by path: the first that any host has sent."""

    def __init__(self) -> None:
        self._known: dict[Path, tuple[Any, Any]] = {}  # with the dtypes
        self._warned: set[Path] = set()

    def fitting(self, fields: dict[str, Any]) -> dict[str, Any]:
        """Return the fields with infos of other shapes marked as missing; warn once about each."""
        steps = fields["terminated"].shape
        infos, masks = self._fitting((), fields["infos"], fields["info_masks"], steps)
        return {**fields, "infos": infos, "info_masks": masks}

    def _fitting(
        self, path: Path, infos: Any, masks: Any, steps: tuple[int, ...]
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        fitting: dict[str, Any] = {}
        fitting_masks: dict[str, Any] = {}
        for name, info in infos.items():
            place, mask = (*path, name), masks[name]
            is_dict = isinstance(info, Mapping)
            shape, dtype = ("dict", None) if is_dict else (info.shape[2:], info.dtype)
            known, known_dtype = self._known.setdefault(place, (shape, dtype))
            if shape != known:
                if place not in self._warned:
                    self._warned.add(place)
                    warnings.warn(
                        f"pysampler: {of_unlike_shapes(place, known, shape)}",
                        stacklevel=6 + len(place),  # the caller of ``take``
                    )
                if known == "dict":
                    info, mask = {}, {}
                else:
                    info = np.zeros((*steps, *known), known_dtype)
                    mask = np.zeros(steps, np.bool_)
            elif is_dict:
                info, mask = self._fitting(place, info, mask, steps)
            fitting[name], fitting_masks[name] = info, mask
        return fitting, fitting_masks


class LearnerBuffer:
    """Memory for rollouts of several hosts, reused once nothing refers to any of them.

    Args:
        num_envs: The number of envs of a host.
        hosts: The initial capacity, in hosts.
        info_shapes: The shapes of infos.
    """

    def __init__(self, num_envs: int, hosts: int, info_shapes: InfoShapes) -> None:
        self._num_envs = num_envs
        self._room = hosts
        self._info_shapes = info_shapes
        self._fields: dict[str, Any] = {}
        self._lent: dict[int, _core.Lent] = {}  # by the id of an array, which it keeps alive

    @property
    def held(self) -> bool:
        """Whether anything refers to a rollout in it."""
        return any(array.held for array in self._lent.values())

    def reserve(self, hosts: int) -> None:
        """Make room for this many hosts; growing discards the contents of the buffer."""
        if hosts > self._room:
            self._room, self._fields, self._lent = hosts, {}, {}

    def write(self, packed: Packed, position: int) -> None:
        """Copy a host's rollout to its place."""
        envs = self._envs(position)
        for name, tree in self._info_shapes.fitting(packed.fields).items():
            if name == _FINAL:
                put = functools.partial(self._put_rows, _ends(packed.fields), envs)
            else:
                put = functools.partial(self._put, envs)
            self._fields[name] = self._written(self._fields.get(name), tree, envs, put)

    def _written(self, target: Any, tree: Any, envs: slice, put: Callable[..., Any]) -> Any:
        """Copy a tree to ``target``, and return the target, which may have grown."""
        if isinstance(tree, Mapping):
            known = target if isinstance(target, dict) else {}
            # Infos may have new keys, which other hosts' envs may never return.
            for name in known.keys() - tree.keys():
                mapped(functools.partial(_clear, envs), known[name])
            return {
                **known,
                **{
                    name: self._written(known.get(name), part, envs, put)
                    for name, part in tree.items()
                },
            }
        if isinstance(tree, (tuple, list)):
            parts = target if isinstance(target, tuple) else (None,) * len(tree)
            return tuple(
                self._written(one, part, envs, put) for one, part in zip(parts, tree, strict=True)
            )
        return put(target, tree)

    def _put(self, envs: slice, target: Any, array: npt.NDArray[Any]) -> npt.NDArray[Any]:
        shape = (array.shape[0], self._room * self._num_envs, *array.shape[2:])
        if target is None:
            target = np.zeros(shape, array.dtype)
        elif (dtype := np.result_type(target, array)) != target.dtype:
            target = target.astype(dtype)  # an info that was an integer so far
        target[:, envs] = array
        return np.asarray(target)

    def _put_rows(
        self, at: npt.NDArray[np.bool_], envs: slice, target: Any, rows: npt.NDArray[Any]
    ) -> npt.NDArray[Any]:
        if target is None:
            shape = (len(at), self._room * self._num_envs, *rows.shape[1:])
            target = np.zeros(shape, rows.dtype)
        target[:, envs][at] = rows
        return np.asarray(target)

    def _envs(self, position: int, count: int = 1) -> slice:
        return slice(position * self._num_envs, (position + count) * self._num_envs)

    def views(self, position: int, count: int = 1) -> dict[str, Any]:
        """Return the fields of the rollouts of some hosts, side by side."""
        envs = self._envs(position, count)
        fields = {
            name: mapped(lambda array: self._view(array)[:, envs], tree)
            for name, tree in self._fields.items()
        }
        return {"state": None, **fields}

    def _view(self, array: npt.NDArray[Any]) -> npt.NDArray[Any]:
        if (lent := self._lent.get(id(array))) is None:
            lent = self._lent[id(array)] = _core.Lent(array, of_this_process=True)
        view: npt.NDArray[Any] = lent.view()
        return view


def _clear(envs: slice, array: npt.NDArray[Any]) -> None:
    array[:, envs] = np.zeros((), array.dtype)


def packed(
    rollout: Rollout, version: int, seen: Mapping[str, npt.NDArray[Any]] | None = None
) -> Packed:
    """Return a rollout in the form that a host sends; Ray copies its arrays to its store."""
    fields = {name: getattr(rollout, name) for name in STEP_FIELDS}
    fields = {name: tree for name, tree in fields.items() if tree is not None}
    at = _ends(fields)
    fields[_FINAL] = mapped(lambda array: array[at], fields[_FINAL])
    return Packed(fields, rollout.lengths, rollout.ended, version, rollout.seconds, seen)


def _ends(fields: Mapping[str, Any]) -> npt.NDArray[np.bool_]:
    """Return which steps ended an episode; ``final_observations`` has data only in these."""
    return np.asarray(fields["terminated"] | fields["truncated"])


class HostRollouts(Sequence[HostRollout]):
    """A list of the rollouts of some hosts, from ``Rollouts.take``.

    The host that has waited for longest comes first.

    Args:
        rollouts: The rollouts.
        buffer: The buffer that holds them, one after the other.
        num_envs: The number of envs of a host.
        first: The position of the first rollout in the buffer.
    """

    def __init__(
        self,
        rollouts: Sequence[HostRollout],
        buffer: LearnerBuffer,
        num_envs: int,
        first: int = 0,
    ) -> None:
        self._rollouts = list(rollouts)
        self._buffer = buffer
        self._num_envs = num_envs
        self._first = first

    def __len__(self) -> int:
        return len(self._rollouts)

    @overload
    def __getitem__(self, index: int) -> HostRollout: ...

    @overload
    def __getitem__(self, index: slice) -> list[HostRollout]: ...

    def __getitem__(self, index: int | slice) -> HostRollout | list[HostRollout]:
        return self._rollouts[index]

    @property
    def hosts(self) -> list[int]:
        """The index of each rollout's host."""
        return [one.host for one in self._rollouts]

    @property
    def joined(self) -> Rollout:
        """All rollouts as one, with the envs of the hosts side by side, as views.

        ``version`` and ``lag`` are those of the oldest policy that acted.

        Raises:
            ValueError: There are no rollouts.
        """
        if not self._rollouts:
            raise ValueError("cannot join rollouts: there are none")
        parts = self._rollouts
        offsets = np.repeat(
            np.arange(len(parts)) * self._num_envs, [len(one.ended) for one in parts]
        )
        ended = Ended(
            np.concatenate([one.ended.env for one in parts]) + offsets,
            np.concatenate([one.ended.step for one in parts]),
            np.concatenate([one.ended.returns for one in parts]),
            np.concatenate([one.ended.lengths for one in parts]),
        )
        seconds = {
            name: float(np.mean([one.seconds[name] for one in parts])) for name in parts[0].seconds
        }
        return Rollout(
            **self._buffer.views(self._first, len(parts)),
            lengths=np.concatenate([one.lengths for one in parts]),
            ended=ended,
            version=min(one.version for one in parts),
            lag=max(one.lag for one in parts),
            seconds=seconds,
            memory=np.zeros(0, np.uint8),
        )

    def parted(self) -> tuple[HostRollouts, HostRollouts]:
        """Split off the first rollout: return it and a list of the others."""
        buffer, count, first = self._buffer, self._num_envs, self._first
        return (
            HostRollouts(self._rollouts[:1], buffer, count, first),
            HostRollouts(self._rollouts[1:], buffer, count, first + 1),
        )

    def copy(self) -> HostRollouts:
        """Return copies in separate memory, which you can keep for as long as you like."""
        count = len(self._rollouts)
        buffer = LearnerBuffer(self._num_envs, count, InfoShapes())
        for position, one in enumerate(self._rollouts):
            buffer.write(packed(one, one.version), position)
        own = [replace(one, **buffer.views(i)) for i, one in enumerate(self._rollouts)]
        return HostRollouts(own, buffer, self._num_envs)

    def __repr__(self) -> str:
        return f"<pysampler.ray.HostRollouts of hosts {self.hosts}>"
