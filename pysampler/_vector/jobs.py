"""The jobs and notes of a vector env: all its commands except a plain step."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

import pysampler._frames.spec  # noqa: F401 - plans need it: a fork server imports it once for all workers
from pysampler._frames.frames import Frames
from pysampler._vector.env_calls import of_each, set_of_each
from pysampler._workers.jobs import Attach, Job, Note, Repeated, Replace

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pysampler._frames.frames import Plan
    from pysampler._frames.infos import Column
    from pysampler._vector.blocks import Overflow
    from pysampler._vector.env_server import EnvServer
    from pysampler._vector.frozen import FrozenNames
    from pysampler._vector.stacks import Stack
    from pysampler.sync import Segment

__all__ = [
    "AddColumns",
    "Apply",
    "AttachFrames",
    "FreezeWrappers",
    "GetStacks",
    "GetStates",
    "Replacements",
    "Reset",
    "Rest",
    "SetAttribute",
    "SetOptions",
    "SetStates",
    "StepWith",
]


@dataclass(frozen=True)
class AttachFrames(Attach):
    """Move the envs to other frames, in which infos already have ``columns``."""

    plan: Plan
    offset: int
    autoreset: str
    infos: str  # which infos to write
    columns: Sequence[Column]
    frozen: bool  # whether wrappers stay as they are while these frames are in use

    def attach(self, server: EnvServer, segment: Segment) -> None:
        frames = Frames(self.plan, segment, self.offset)
        server.attach(frames, segment, self.autoreset, self.infos, self.columns)
        if self.frozen:  # also envs that replace lost ones
            server.freeze(range(server.count))
        else:
            server.thaw()


@dataclass(frozen=True)
class StepWith(Repeated):
    """Step the envs of a group with actions that do not fit into arrays."""

    actions: list[Any]
    doing = "stepping"
    of_members = renews = steps_envs = True

    def run(self, server: EnvServer, block: int, frame: int) -> Overflow:
        server.blocks[block].step(frame, self.actions)
        return server.take_overflow(block)


@dataclass(frozen=True)
class Reset(Repeated):
    """Reset the envs of a group that the mask selects, each with its seed and options.

    If they replace lost envs, all are reset.
    """

    seeds: Sequence[int | None]
    options: Sequence[dict[str, Any] | None] | None = None
    mask: Sequence[bool] | None = None
    doing = "resetting"
    of_members = renews = True

    @property
    def begins_all(self) -> bool:  # type: ignore[override]
        return self.mask is None or all(self.mask)

    def run(self, server: EnvServer, block: int, frame: int) -> Overflow:
        options = self.options or [None] * len(self.seeds)
        calls: list[tuple[int | None, dict[str, Any] | None] | None] = [
            (seed, copy.deepcopy(one)) for seed, one in zip(self.seeds, options, strict=True)
        ]
        if self.mask is not None:
            calls = [call if reset else None for call, reset in zip(calls, self.mask, strict=True)]
        if self.begins_all:
            server.begin_all(block)
        server.blocks[block].reset(frame, calls)
        return server.take_overflow(block)


@dataclass(frozen=True)
class Apply(Job):
    """Call a function with each env of a group, or with the envs of some indices."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    what: str  # the call's name in errors
    envs: Sequence[int] | None = None

    @property
    def doing(self) -> str:  # type: ignore[override]
        return f"calling {self.what} of"

    def run(self, server: EnvServer, block: int, frame: int) -> list[Any]:  # noqa: ARG002
        env: Any
        results = []
        for rows, chosen in server.calls(block, self.envs):
            places, at = [i - rows.start for i in chosen], rows.start
            if getattr(self.function, "reads_of_pysampler", None) == "nothing":
                at = server.alike(at)
            with server.using(at, self.what) as env:
                if getattr(env, "applies_to_each", False):  # a vector env of processes
                    results += env.apply(self.function, *self.args, slots=places)
                    continue
                result = server.called(at, env, self.function, self.args, self.what)
            each = of_each(result, len(rows)) if rows.start in server.nested else [result]
            results += [each[place] for place in places]
        return results


@dataclass(frozen=True)
class FreezeWrappers(Repeated):
    """Freeze the wrappers of a group's envs, until frames are laid out that are not ``frozen``."""

    doing = "freezing the wrappers of"

    def run(self, server: EnvServer, block: int, frame: int) -> list[FrozenNames]:  # noqa: ARG002
        return [one.names for one in server.freeze(server.rows(block))]


@dataclass(frozen=True)
class GetStacks(Job):
    """Return how the envs of a group are stepped."""

    doing = "describing"

    def run(self, server: EnvServer, block: int, frame: int) -> list[Stack]:  # noqa: ARG002
        return [server.stacks[i] for i in server.rows(block)]


@dataclass(frozen=True)
class GetStates(Job):
    """Return the states of some envs of a group, one row each."""

    envs: Sequence[int]
    doing = "getting states of"

    def run(self, server: EnvServer, block: int, frame: int) -> Any:  # noqa: ARG002
        return server.states(block, [env - server.first for env in self.envs])


@dataclass(frozen=True)
class SetStates(Job):
    """Set the states of some envs of a group, one row each."""

    envs: Sequence[int]
    states: Any
    doing = "setting states of"

    def run(self, server: EnvServer, block: int, frame: int) -> None:  # noqa: ARG002
        server.set_states(block, [env - server.first for env in self.envs], self.states)


@dataclass(frozen=True)
class SetAttribute(Job):
    """Set an attribute of the envs of a group, with one value per env."""

    name: str
    values: Sequence[Any]

    @property
    def doing(self) -> str:  # type: ignore[override]
        return f"setting {self.name} of"

    def run(self, server: EnvServer, block: int, frame: int) -> None:  # noqa: ARG002
        begin = server.rows(block).start
        for rows, _ in server.calls(block, None):
            what = f"set_attr({self.name!r})"
            with server.using(rows.start, what) as env:
                server.end_batch(rows.start, f"{what} was called")
                values = [self.values[i - begin] for i in rows]
                if rows.start in server.nested:
                    set_of_each(env, self.name, values)
                else:
                    env.set_wrapper_attr(self.name, *values)


@dataclass(frozen=True)
class AddColumns(Note):
    """Add columns of infos to the frames."""

    columns: Sequence[Column]
    doing = "adding columns of infos"

    def apply(self, server: EnvServer) -> None:
        server.add_columns(self.columns)


@dataclass(frozen=True)
class SetOptions(Note):
    """Set the options of envs' later resets. They are given by env, with their version."""

    options: dict[int, tuple[Any, int]]
    doing = "setting options"

    def snapshot(self) -> SetOptions:
        """Return a copy, whose options the caller cannot change."""
        return SetOptions(copy.deepcopy(self.options))

    def apply(self, server: EnvServer) -> None:
        server.note_options(self.options)
        for block, env_block in enumerate(server.blocks):
            for place, i in enumerate(server.rows(block)):
                if server.first + i in self.options:
                    options, version = self.options[server.first + i]
                    env_block.set_options(place, copy.deepcopy(options), version)


@dataclass(frozen=True)
class Rest(Note):
    """Let steps leave envs alone until they are reset."""

    envs: Sequence[int]
    doing = "resting envs"

    def apply(self, server: EnvServer) -> None:
        for block, env_block in enumerate(server.blocks):
            for place, i in enumerate(server.rows(block)):
                if server.first + i in self.envs:
                    env_block.rest(place)


class Replacements:
    """Fresh seeds and reset options for envs that replace lost ones.

    The seeds are spawned from the seed of the last reset of all envs.

    Attributes:
        options: By env, the options of its resets and their version.
    """

    def __init__(self) -> None:
        self._sequence = np.random.SeedSequence()
        self.options: dict[int, tuple[Any, int]] = {}

    def begin_seeds(self, seed: Any) -> None:
        """Restart the sequence from the seed of a reset of all envs; None leaves it unchanged."""
        if isinstance(seed, (int, np.integer)):
            self._sequence = np.random.SeedSequence(abs(int(seed)))
        elif seed is not None and all(one is not None for one in seed):
            self._sequence = np.random.SeedSequence([abs(int(one)) for one in seed])

    def notes(self, envs: range) -> list[Note]:
        seeds = [int(child.generate_state(1)[0]) for child in self._sequence.spawn(len(envs))]
        notes: list[Note] = [Replace(seeds)]
        if options := {env: self.options[env] for env in envs if env in self.options}:
            notes.append(SetOptions(options))
        return notes
