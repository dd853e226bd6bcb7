"""Batches: alike envs that step together in a block, until a call may change one of them.

``NativeBatch`` steps them natively, and ``PythonBatch`` in Python; both run layers instead of the
wrappers around them.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from pysampler import _core
from pysampler._vector.wrapped.block import LayeredBlock
from pysampler._vector.wrapped.layers import (
    ChangedRewards,
    EpisodeStatistics,
    Layer,
    NormalizedRewards,
    NotBatchedError,
)
from pysampler._vector.wrapped.stack import layers_for, outermost
from pysampler.envs._errors import ChangedError

if TYPE_CHECKING:
    from collections.abc import Sequence

    import gymnasium as gym

    from pysampler._vector.native.real import RealEnv
    from pysampler._vector.native.trial import KnownEnv

__all__ = ["Batch", "NativeBatch", "PythonBatch"]


class _Server(Protocol):
    """The env server of a batch."""

    envs: list[gym.Env[Any, Any]]
    first: int
    inline: bool
    meter: _core.Meter

    def made(self, i: int) -> gym.Env[Any, Any]:
        """Return the real env ``i``."""

    def leave(self, batch: Batch, why: str) -> _core.EnvBlock:
        """Let the envs of a batch step one by one from now on; return the block that steps them."""


class Batch:
    """Envs of a server that step together in ``block``.

    Args:
        server: The server.
        rows: The indices of the envs among those of the server.
        depth: The number of wrappers, from the outermost on, that layers replace.
    """

    block: Any
    inner: Any  # the block of the envs without these wrappers

    def __init__(self, server: _Server, rows: range, depth: int) -> None:
        self.rows = rows
        self._server = server
        self._stacks: list[list[Any]] = []
        if depth:
            self._stacks = [outermost(env, depth) for env in server.envs[rows.start : rows.stop]]
        self.layers = layers_for(self._stacks) if depth else []

    def _layered(self, inner: Any) -> LayeredBlock:
        """Return a block that runs the layers around an inner block."""
        outer, innermost = self._stacks[0][0], self._stacks[0][-1]
        spaces = innermost.env.observation_space, outer.observation_space
        return LayeredBlock(inner, self.layers, *spaces, lambda why: self._server.leave(self, why))

    def store(self, place: int) -> gym.Env[Any, Any]:
        """Load the state of an env into its real env, and return the real env."""
        if not (self.layers and place in self.block.in_wrappers):
            for layer in self.layers:
                layer.store(place)
        return self._server.made(self.rows[place])

    def take(self, place: int) -> None:
        """Take what reading has changed in a real env: its generator may be made then."""

    def ordinary(self, block: _core.EnvBlock) -> None:
        """Let the envs continue in a block that steps them one by one."""
        for place in range(len(self.rows)):
            self.store(place)
        inner, ended, used = self.inner, self.inner.ended, self.inner.used
        observations = self._last_observations()
        for place in np.flatnonzero(inner.resting).tolist():
            block.rest(place)
        # Fresh until set_ended().
        block.replace([inner.seeds.get(place) for place in range(len(self.rows))], ended.tolist())
        for place, observation in enumerate(observations):
            if not inner.is_fresh(place):
                block.set_ended(place, bool(ended[place]))
            if observation is not None:
                block.set_last(place, observation)
            if place in inner.options:
                block.set_options(place, *inner.options[place])
                block.used[place] = used[place]

    def resume(self, place: int, ended: bool, rests: bool, last: Any) -> None:  # noqa: FBT001, ARG002
        """Let an env continue that was stepped one by one.

        Args:
            place: Its place in the batch.
            ended: Whether the next step resets it.
            rests: Whether steps leave it alone.
            last: Its last observation; None if it has none.
        """
        if rests:
            self.inner.rest(place)
        if self.layers and self.block.observes and last is not None:
            self.block.last[place] = last

    def _last_observations(self) -> Sequence[Any]:
        """Return the last observation of each env; None for envs without one."""
        raise NotImplementedError


class NativeBatch(Batch):
    """Envs that a native block replaces. Their real envs are made on demand."""

    def __init__(self, server: _Server, rows: range, depth: int, known: KnownEnv) -> None:
        super().__init__(server, rows, depth)
        odd = known.reward_types - {float, np.float64}
        if self.layers and odd and not (odd == {int} and _take_ints(self.layers)):
            raise NotBatchedError("its rewards are of a type that wrappers may treat otherwise")
        for layer in self.layers:
            if isinstance(layer, EpisodeStatistics) and layer.key in known.info_keys:
                raise NotBatchedError(f"its infos have the key {layer.key!r}")
        self._known = known
        first = server.first + rows.start
        self.inner = known.block(len(rows), first, known.limit, server.meter, inline=server.inline)
        if np.float64 not in known.reward_types:
            self.inner.double_rewards = np.zeros(len(rows), bool)
        self._real: dict[int, RealEnv] = {}
        self.block = self._layered(self.inner) if self.layers else self.inner
        if not self.layers:  # with layers, the outer block asks the inner one whether it can step
            self.inner.leave = functools.partial(server.leave, self)
        for place, i in enumerate(rows):
            if server.envs[i] is not None:
                try:
                    self._real_env(place).save(self.inner, place)
                except ChangedError as error:
                    raise NotBatchedError(
                        f"{error} of env {server.first + i} was changed"
                    ) from None

    def _real_env(self, place: int) -> RealEnv:
        if place not in self._real:
            self._real[place] = self._known.real(self._server.made(self.rows[place]))
        return self._real[place]

    def store(self, place: int) -> gym.Env[Any, Any]:
        self._real_env(place).load(self.inner, place)
        return super().store(place)

    def take(self, place: int) -> None:
        self._real[place].save(self.inner, place)

    def resume(self, place: int, ended: bool, rests: bool, last: Any) -> None:  # noqa: FBT001
        super().resume(place, ended, rests, last)
        self.inner.ended[place] = ended

    def _last_observations(self) -> Sequence[Any]:
        observing = self.layers and self.block.observes
        last = self.block.last if observing else self.inner.stepper.observe(None)
        return [one if begun else None for one, begun in zip(last, self.inner.begun, strict=True)]


def _take_ints(layers: Sequence[Layer]) -> bool:
    """Return whether rewards may be ints, for which a user's function may act differently."""
    for layer in reversed(layers):
        if isinstance(layer, (ChangedRewards, NormalizedRewards)):
            return isinstance(layer, NormalizedRewards)
    return True


class PythonBatch(Batch):
    """Envs that step in Python, while layers replace the wrappers around them."""

    def __init__(self, server: _Server, rows: range, depth: int) -> None:
        super().__init__(server, rows, depth)
        self.inner = _core.EnvBlock(
            [stack[-1].env for stack in self._stacks], server.first + rows.start, server.meter
        )
        observations = any(layer.observes for layer in self.layers)
        self.inner.report_unlike(observations, _take_ints(self.layers))
        self.block = self._layered(self.inner)

    def resume(self, place: int, ended: bool, rests: bool, last: Any) -> None:  # noqa: FBT001
        super().resume(place, ended, rests, last)
        self.inner.set_ended(place, ended)
        if not self.block.observes and last is not None:
            self.inner.set_last(place, last)

    def _last_observations(self) -> Sequence[Any]:
        inner = [self.inner.last(place) for place in range(len(self.rows))]
        if not self.block.observes:
            return inner
        outer = zip(inner, self.block.last, strict=True)
        return [None if within is None else last for within, last in outer]
