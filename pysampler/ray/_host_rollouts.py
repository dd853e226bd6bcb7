"""The rollouts that ``take`` returns: those of several hosts, with their envs side by side.

Ray's store keeps a host's rollout, read-only, while anything refers to it; a host on the driver's
machine keeps it in its frames (_host_memory.py). The learner copies it once, to arrays with the
envs of all hosts, so that the rollouts of several hosts are one batch without a second copy.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, overload

import numpy as np

from pysampler._policies.trees import mapped
from pysampler._rollouts.info_arrays import of_unlike_shapes
from pysampler._rollouts.rollout import OF_HOSTS, STEP_FIELDS, Ended, Rollout
from pysampler.ray._host_memory import Part

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt

    from pysampler._frames.infos import Path
    from pysampler.ray._host_memory import HostMemory
    from pysampler.sync import Segment

__all__ = [
    "HostRollout",
    "HostRollouts",
    "InfoShapes",
    "Packed",
    "of_host",
    "packed",
    "side_by_side",
]

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
    """The shapes of infos, by path: the first that any host has sent; and dtypes that fit all."""

    def __init__(self) -> None:
        self._known: dict[Path, tuple[Any, Any]] = {}
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
                        stacklevel=5 + len(place),  # the caller of ``take``
                    )
                if known == "dict":
                    info, mask = {}, {}
                else:
                    info = np.zeros((*steps, *known), known_dtype)
                    mask = np.zeros(steps, np.bool_)
            elif is_dict:
                info, mask = self._fitting(place, info, mask, steps)
            elif dtype != known_dtype:  # such as an integer so far
                dtype = np.result_type(known_dtype, dtype)
                self._known[place] = shape, dtype
                info = info.astype(dtype, copy=False)
            fitting[name], fitting_masks[name] = info, mask
        return fitting, fitting_masks


def side_by_side(parts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Copy the fields of some rollouts, with their envs side by side.

    Args:
        parts: The fields of each rollout, with rows of ``final_observations`` as in ``Packed``.
    """
    ends = [_ends(part) for part in parts]
    joined = {name: _joined([part[name] for part in parts]) for name in parts[0] if name != _FINAL}

    def finals(*rows: npt.NDArray[Any]) -> npt.NDArray[Any]:
        array = np.zeros((*joined["terminated"].shape, *rows[0].shape[1:]), rows[0].dtype)
        envs = ends[0].shape[1]
        for i, (at, own) in enumerate(zip(ends, rows, strict=True)):
            array[:, i * envs : (i + 1) * envs][at] = own
        return array

    return {"state": None, **joined, _FINAL: mapped(finals, *(part[_FINAL] for part in parts))}


def of_envs(fields: Mapping[str, Any], envs: slice) -> dict[str, Any]:
    """Return views of the fields of rollouts, for some envs."""
    return _mapped(lambda array: array[:, envs], fields)


def _mapped(function: Callable[..., Any], fields: Mapping[str, Any]) -> dict[str, Any]:
    return {name: None if tree is None else mapped(function, tree) for name, tree in fields.items()}


def of_host(fields: Mapping[str, Any], position: int, num_envs: int) -> dict[str, Any]:
    """Return views of the fields of rollouts, for the envs of one host."""
    return of_envs(fields, slice(position * num_envs, (position + 1) * num_envs))


def _joined(trees: Sequence[Any]) -> Any:
    """Return trees of arrays as one; infos that only some of the hosts gave are 0 for others."""
    first = next(tree for tree in trees if tree is not None)
    if isinstance(first, Mapping):
        known = [tree or {} for tree in trees]
        names = dict.fromkeys(name for tree in known for name in tree)
        return {name: _joined([tree.get(name) for tree in known]) for name in names}
    if isinstance(first, tuple):
        return tuple(map(_joined, zip(*trees, strict=True)))
    return np.concatenate([np.zeros_like(first) if tree is None else tree for tree in trees], 1)


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
        rollouts: The rollouts, whose arrays are views of those in ``fields``.
        fields: Their fields, with the envs of all.
        num_envs: The number of envs of a host.
    """

    def __init__(
        self, rollouts: Sequence[HostRollout], fields: dict[str, Any], num_envs: int
    ) -> None:
        self._rollouts = list(rollouts)
        self._fields = fields
        self._num_envs = num_envs

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
        counts = [len(one.ended) for one in parts]
        offsets = np.repeat(np.arange(len(parts)) * self._num_envs, counts)
        ended = Ended(
            np.concatenate([one.ended.env for one in parts]) + offsets,
            np.concatenate([one.ended.step for one in parts]),
            np.concatenate([one.ended.returns for one in parts]),
            np.concatenate([one.ended.lengths for one in parts]),
        )
        each = [one.seconds for one in parts]
        seconds = {name: float(np.mean([one[name] for one in each])) for name in each[0]}
        return Rollout(
            **self._fields,
            lengths=np.concatenate([one.lengths for one in parts]),
            ended=ended,
            version=min(one.version for one in parts),
            lag=max(one.lag for one in parts),
            seconds=seconds,
            memory=np.zeros(0, np.uint8),
            _run=OF_HOSTS,
        )

    def parted(self) -> tuple[HostRollouts, HostRollouts]:
        """Split off the first rollout: return it and a list of the others."""
        count = self._num_envs
        return (
            HostRollouts(self._rollouts[:1], of_envs(self._fields, slice(count)), count),
            HostRollouts(self._rollouts[1:], of_envs(self._fields, slice(count, None)), count),
        )

    def copy(self) -> HostRollouts:
        """Return copies in separate memory, which you can keep for as long as you like."""
        fields = _mapped(np.copy, self._fields)
        own = [
            replace(one, **of_host(fields, i, self._num_envs))
            for i, one in enumerate(self._rollouts)
        ]
        return HostRollouts(own, fields, self._num_envs)
