"""The jobs of a vector env: everything but a plain step that a worker's envs do."""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

import pysampler._frames.spec  # noqa: F401 - plans need it: a fork server imports it once for all workers
from pysampler._frames.frames import Frames
from pysampler._workers.jobs import Job, Note, Repeated, Replace, Replaced

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pysampler._frames.frames import Plan
    from pysampler._frames.infos import Column
    from pysampler._vector.env_server import EnvServer, Overflow
    from pysampler.sync import Segment

__all__ = [
    "AddColumns",
    "Apply",
    "AttachFrames",
    "GetStates",
    "Replacements",
    "Reset",
    "Restore",
    "SetAttribute",
    "SetOptions",
    "SetStates",
    "StepWith",
]


@dataclass(frozen=True)
class AttachFrames:
    """Let the envs work on frames from now on, in which infos have ``columns`` already."""

    plan: Plan
    offset: int
    autoreset: str
    infos: str  # which of them are kept
    columns: Sequence[Column]

    def attach(self, server: EnvServer, segment: Segment) -> None:
        """Give the envs the frames in a segment."""
        frames = Frames(self.plan, segment, self.offset)
        server.attach(frames, segment, self.autoreset, self.infos, self.columns)


@dataclass(frozen=True)
class Restore(Repeated):
    """Reset envs that replaced lost ones, instead of the step in which those were lost."""

    doing = "being restored"
    replaces: Replaced | None = "step"
    settles = "group"

    def run(self, server: EnvServer, block: int, frame: int) -> Overflow:
        """Do the job in the worker."""
        server.replaced.discard(block)
        server.blocks[block].restore(frame)
        return server.take_overflow(block)


@dataclass(frozen=True)
class StepWith(Repeated):
    """Step the envs of a group with actions that do not fit into arrays."""

    actions: list[Any]
    doing = "stepping"
    of_members = True

    def run(self, server: EnvServer, block: int, frame: int) -> Overflow:
        """Do the job in the worker."""
        server.blocks[block].step(frame, self.actions)
        return server.take_overflow(block)

    def for_replaced(self) -> Job:
        """Restore the envs: those that were lost had begun the step."""
        return Restore()


@dataclass(frozen=True)
class Reset(Repeated):
    """Reset the envs of a group, each with a seed and options, or those that the mask selects."""

    seeds: Sequence[int | None]
    options: Sequence[dict[str, Any] | None] | None = None
    mask: Sequence[bool] | None = None
    replaces: Replaced | None = None
    doing = "resetting"
    settles = "group"
    of_members = True

    def run(self, server: EnvServer, block: int, frame: int) -> Overflow:
        """Do the job in the worker."""
        options = self.options or [None] * len(self.seeds)
        calls: list[tuple[int | None, dict[str, Any] | None] | None] = [
            (seed, copy.deepcopy(one)) for seed, one in zip(self.seeds, options, strict=True)
        ]
        if self.mask is not None:
            calls = [call if reset else None for call, reset in zip(calls, self.mask, strict=True)]
        server.replaced.discard(block)
        server.blocks[block].reset(frame, calls)
        return server.take_overflow(block)

    def for_replaced(self) -> Job:
        """Reset all envs of the group: none of the new ones has been reset yet."""
        return replace(self, mask=None, replaces="reset")


@dataclass(frozen=True)
class Apply(Job):
    """Call a function of each env of a group, or of those with the indices ``envs``."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    what: str  # as errors name it
    envs: Sequence[int] | None = None

    @property
    def doing(self) -> str:  # type: ignore[override]
        """What the envs were doing, in errors."""
        return f"calling {self.what} of"

    def run(self, server: EnvServer, block: int, frame: int) -> list[Any]:  # noqa: ARG002
        """Do the job in the worker."""
        results = []
        for i in server.rows(block):
            if self.envs is None or server.first + i in self.envs:
                with server.using(i, self.what) as env:
                    results.append(server.kept(self.function(env, *self.args)))
        return results


@dataclass(frozen=True)
class GetStates(Job):
    """Return the states of some envs of a group, a row each."""

    envs: Sequence[int]
    doing = "getting states of"

    def run(self, server: EnvServer, block: int, frame: int) -> Any:  # noqa: ARG002
        """Do the job in the worker."""
        return server.states(block, [env - server.first for env in self.envs])


@dataclass(frozen=True)
class SetStates(Job):
    """Give envs of a group, some or all, these states, a row each."""

    envs: Sequence[int]
    states: Any
    of_all: bool
    doing = "setting states of"

    @property
    def settles(self) -> Literal["none", "group"]:  # type: ignore[override]
        """Whether envs that replace lost ones need no reset after this."""
        return "group" if self.of_all else "none"

    def run(self, server: EnvServer, block: int, frame: int) -> None:  # noqa: ARG002
        """Do the job in the worker."""
        server.set_states(block, [env - server.first for env in self.envs], self.states)
        if self.of_all:
            server.replaced.discard(block)


@dataclass(frozen=True)
class SetAttribute(Job):
    """Set an attribute of each env of a group to a value of its own."""

    name: str
    values: Sequence[Any]

    @property
    def doing(self) -> str:  # type: ignore[override]
        """What the envs were doing, in errors."""
        return f"setting {self.name} of"

    def run(self, server: EnvServer, block: int, frame: int) -> None:  # noqa: ARG002
        """Do the job in the worker."""
        for i, value in zip(server.rows(block), self.values, strict=True):
            with server.using(i, f"set_attr({self.name!r})") as env:
                env.set_wrapper_attr(self.name, value)


@dataclass(frozen=True)
class AddColumns(Note):
    """Put infos in these columns, too, from now on."""

    columns: Sequence[Column]
    doing = "adding columns of infos"

    def apply(self, server: EnvServer) -> None:
        """Add them in the worker."""
        server.add_columns(self.columns)


@dataclass(frozen=True)
class SetOptions(Note):
    """Set the options of envs' next resets: by env, the options and their version."""

    options: dict[int, tuple[Any, int]]
    doing = "setting options"

    def snapshot(self) -> SetOptions:
        """Return it with options that the caller cannot change."""
        return SetOptions(copy.deepcopy(self.options))

    def apply(self, server: EnvServer) -> None:
        """Set them in the worker."""
        for block, env_block in enumerate(server.blocks):
            for place, i in enumerate(server.rows(block)):
                if server.first + i in self.options:
                    options, version = self.options[server.first + i]
                    env_block.set_options(place, copy.deepcopy(options), version)


class Replacements:
    """What envs that replace lost ones are given: fresh seeds, and the options of their resets.

    The seeds are a sequence that begins with the seed of the last reset of all envs.

    Attributes:
        options: By env, the options of its resets and their version.
    """

    def __init__(self) -> None:
        self._sequence = np.random.SeedSequence()
        self.options: dict[int, tuple[Any, int]] = {}

    def begin_seeds(self, seed: Any) -> None:
        """Begin the sequence with the seed of a reset of all envs; None leaves it as it is."""
        if isinstance(seed, (int, np.integer)):
            self._sequence = np.random.SeedSequence(abs(int(seed)))
        elif seed is not None and all(one is not None for one in seed):
            self._sequence = np.random.SeedSequence([abs(int(one)) for one in seed])

    def notes(self, envs: range) -> list[Note]:
        """Return the notes for the envs of a worker."""
        seeds = [int(child.generate_state(1)[0]) for child in self._sequence.spawn(len(envs))]
        notes: list[Note] = [Replace(seeds)]
        if options := {env: self.options[env] for env in envs if env in self.options}:
            notes.append(SetOptions(options))
        return notes
