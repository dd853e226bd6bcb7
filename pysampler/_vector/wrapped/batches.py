"""Batches: alike envs that step together in a block, beside their real envs.

``TaskBatch`` simulates MuJoCo envs, and ``PythonBatch`` steps envs in Python; both run layers in
place of the wrappers around them.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any, Protocol

from pysampler import _core
from pysampler._vector.env_server import layers_of
from pysampler._vector.wrapped.block import LayeredBlock, PythonEnvs
from pysampler._vector.wrapped.layers import (
    ChangedRewards,
    Layer,
    NormalizedRewards,
    NotBatchedError,
)
from pysampler._vector.wrapped.stack import layers_for
from pysampler._vector.wrapped.watched import Watched

if TYPE_CHECKING:
    from collections.abc import Sequence

    import gymnasium as gym

    from pysampler._vector.mujoco.block import TaskBlock
    from pysampler._vector.mujoco.real import RealEnv
    from pysampler._vector.mujoco.trial import KnownTask

__all__ = ["Batch", "PythonBatch", "TaskBatch"]


class _Server(Protocol):
    """The env server of a batch."""

    envs: list[gym.Env[Any, Any]]
    first: int
    here: bool
    meter: _core.Meter

    def made(self, i: int) -> gym.Env[Any, Any]:
        """Return the real env ``i``."""

    def why_shared(self, rows: Sequence[int]) -> str | None:
        """Return which statistics some envs share with others; None if they share none."""

    def leave(self, batch: Batch, why: str, but: int | None = None) -> _core.EnvBlock:
        """Step the envs of a batch one by one from now on, in the block that this returns."""


class Batch:
    """Envs of a server that step together in ``block``.

    Args:
        server: The server.
        rows: The indices of the envs among those of the server.
        depth: The number of wrappers, from the outermost on, that layers stand for.
    """

    block: Any

    def __init__(self, server: _Server, rows: range, depth: int) -> None:
        self.rows = rows
        self._server = server
        self._stacks: list[list[Any]] = []
        if depth:
            envs = server.envs[rows.start : rows.stop]
            self._stacks = [list(itertools.islice(layers_of(env), depth)) for env in envs]
        self.layers = layers_for(self._stacks) if depth else []

    def _layered(self, inner: Any) -> LayeredBlock:
        """Return a block that runs the layers around an inner block."""
        outermost, innermost = self._stacks[0][0], self._stacks[0][-1]
        spaces = innermost.env.observation_space, outermost.observation_space
        return LayeredBlock(inner, self.layers, *spaces, lambda why: self._server.leave(self, why))

    @property
    def _managed(self) -> set[str]:
        return {name for layer in self.layers for name in layer.state}

    def store(self, place: int) -> gym.Env[Any, Any]:
        """Load the state of an env into its real env, and return that."""
        if not (self.layers and place in self.block.in_wrappers):
            for layer in self.layers:
                layer.store(place)
        return self._server.made(self.rows[place])

    def take(self, place: int) -> str | None:
        """Take the state of a real env; return why if the batch cannot continue with it."""
        if self.layers and place in self.block.in_wrappers:
            return None  # the next step leaves the batch
        if (name := self._changed(place)) is not None:
            return f"{name} of env {self._server.first + self.rows[place]} was changed"
        try:
            for layer in self.layers:
                layer.load(place)
        except NotBatchedError as error:
            return str(error)
        return self._server.why_shared([self.rows[place]]) if self.layers else None

    def _changed(self, place: int) -> str | None:
        """Take the state of the env within the wrappers, or return what has changed otherwise."""
        raise NotImplementedError

    def ordinary(self, block: _core.EnvBlock, but: int | None = None) -> None:
        """Let the envs continue in a block that steps them one by one.

        Args:
            block: The block.
            but: An env whose real env has the right state already; None: no env has.
        """
        for place in range(len(self.rows)):
            if place != but:
                self.store(place)
        self._hand_over(block)

    def _hand_over(self, block: _core.EnvBlock) -> None:
        raise NotImplementedError


class TaskBatch(Batch):
    """Envs that simulate a MuJoCo task. Their real envs are made when they are needed."""

    def __init__(self, server: _Server, rows: range, depth: int, known: KnownTask) -> None:
        from pysampler._vector.mujoco.block import TaskBlock  # noqa: PLC0415 - mujoco is an extra

        super().__init__(server, rows, depth)
        self.task: TaskBlock = TaskBlock(
            *(known.task, len(rows), server.first + rows.start, known.limit, server.meter),
            here=server.here,
        )
        self._real: dict[int, RealEnv] = {}
        self.block = self._layered(self.task) if self.layers else self.task
        for place, i in enumerate(rows):
            if server.envs[i] is not None:
                self._real_env(place).save(self.task, place)

    def _real_env(self, place: int) -> RealEnv:
        from pysampler._vector.mujoco.real import RealEnv  # noqa: PLC0415 - mujoco is an extra

        if place not in self._real:
            env = self._server.made(self.rows[place])
            self._real[place] = RealEnv(env, self.task.task, self._managed)
        return self._real[place]

    def store(self, place: int) -> gym.Env[Any, Any]:
        self._real_env(place).load(self.task, place)
        return super().store(place)

    def _changed(self, place: int) -> str | None:
        from pysampler.envs.mujoco._checks import ChangedError  # noqa: PLC0415 - mujoco is an extra

        real = self._real[place]
        if (name := real.changed()) is None:
            try:
                real.save(self.task, place)
            except ChangedError as error:
                name = str(error)
        return name

    def _hand_over(self, block: _core.EnvBlock) -> None:
        task = self.task
        last = self.block.last if self.layers and self.block.observes else task.last_observations()
        if len(task.seeds) == task.count:
            block.replace([task.seeds[place] for place in range(task.count)])
        for place in range(task.count):
            block.set_ended(place, bool(task.ended[place]))
            if task.begun[place]:
                block.set_last(place, last[place])
            if place in task.options:
                options, version = task.options[place]
                block.set_options(place, options, version, int(task.used[place]))


def _take_ints(layers: Sequence[Layer]) -> bool:
    """Return whether rewards may be ints: a function of a user may treat them in another way."""
    for layer in reversed(layers):
        if isinstance(layer, (ChangedRewards, NormalizedRewards)):
            return isinstance(layer, NormalizedRewards)
    return True


class PythonBatch(Batch):
    """Envs that step in Python, within wrappers that layers stand for."""

    def __init__(self, server: _Server, rows: range, depth: int) -> None:
        super().__init__(server, rows, depth)
        self._watched = [Watched(stack, self._managed) for stack in self._stacks]
        self.envs = PythonEnvs(
            [stack[-1].env for stack in self._stacks],
            *(server.first + rows.start, server.meter),
            observations=any(layer.observes for layer in self.layers),
            ints=_take_ints(self.layers),
        )
        self.block = self._layered(self.envs)

    @property
    def env_block(self) -> _core.EnvBlock:
        """The block in C++ that steps the envs."""
        block: _core.EnvBlock = self.envs.block
        return block

    def _changed(self, place: int) -> str | None:
        return self._watched[place].changed()

    def _hand_over(self, block: _core.EnvBlock) -> None:
        inner, layered = self.envs.block, self.block
        ended = inner.ended_envs()
        if self.envs.seeds:
            block.replace(self.envs.seeds)
        for place in range(len(self.rows)):
            block.set_ended(place, place in ended)
            last = layered.last[place] if layered.observes else inner.last(place)
            if last is not None:
                block.set_last(place, last)
            if place in self.envs.options:
                options, version = self.envs.options[place]
                block.set_options(place, options, version, inner.options_used(place))
