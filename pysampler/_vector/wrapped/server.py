"""BatchServer: an env server that steps alike envs together, with the same results.

It makes every env, like its base class, but keeps none that it can make again. Consecutive envs
of a group become a batch, which steps in one block, if a native block can replace them or layers
exist for their wrappers.

A batch stands for envs that nobody else can see or change. To read an attribute or to render, it
loads the state of an env into a real env, which it may have to make first. Any other call,
which runs code of an env, ends the batch: its envs step one by one from then on, until a reset of
all of them finds that they equal new envs again. In the user's process the program may hold on to
envs, so only those are batched that pysampler makes itself, until a part of one is handed out.
"""

from __future__ import annotations

import collections
import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np

from pysampler import _core
from pysampler._vector.blocks import GroupBlock
from pysampler._vector.env_calls import (
    attribute_called,
    attribute_of,
    call,
    layers_of,
    reward_space_of,
)
from pysampler._vector.env_server import EnvServer
from pysampler._vector.native.known import BLOCK_WRAPPERS, NotNativeError, expect_known, has_task
from pysampler._vector.same import replaced_method, same
from pysampler._vector.stacks import Stack, StackPart, log_once, parts_of
from pysampler._vector.wrapped.batches import Batch, NativeBatch, PythonBatch
from pysampler._vector.wrapped.layers import LAYERS, NotBatchedError
from pysampler._vector.wrapped.stack import alike, expect_equal, peel

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from pysampler._vector.native.trial import KnownEnv

__all__ = ["BatchServer"]

# The maximum number of kinds of envs in a worker, since each takes a trial.
_MAX_KINDS = 4
# The microseconds of a step of a batch in Python, without those of its layers and envs.
_COSTS = 40.0


@dataclass(eq=False)
class _Kind:
    """The properties that all envs of a batch share."""

    outer: list[Any]  # wrappers of the first env that layers replace, outermost first
    inner: gym.Env[Any, Any]  # the env inside of them
    known: KnownEnv | None  # makes native blocks; None: steps in Python
    stack: Stack

    def fits(self, outer: Sequence[Any], inner: gym.Env[Any, Any]) -> bool:
        """Return whether an env is of this kind."""
        if not alike(outer, self.outer):
            return False
        if self.known is not None:
            return self.known.has(inner)
        return all(
            same(getattr(inner, name), getattr(self.inner, name))
            for name in ("observation_space", "action_space")
        )


class BatchServer(EnvServer):
    """The envs of a worker, from number ``first`` on, in groups of the given sizes.

    Args:
        env_fns: Functions that each make an env.
        first: The number of the first env.
        sizes: The sizes of the groups.
        in_main: Whether they are in the main process.
    """

    def __init__(
        self,
        env_fns: Sequence[Callable[[], gym.Env[Any, Any]]],
        first: int,
        sizes: Sequence[int],
        *,
        in_main: bool = False,
    ) -> None:
        self._in_main = in_main
        self._kinds: list[_Kind] = []
        # Why trials failed, by the classes of wrappers and envs, so that they are not repeated.
        self._refused: dict[tuple[type, ...], str] = {}
        self._batches: list[Batch] = []
        self._found: list[_Kind | None] = []  # the kind of each env that steps in a batch
        # Kinds of envs whose batch a call has ended, and those that were called since they were
        # last compared with new envs.
        self._before: dict[int, _Kind | None] = {}
        self._left: set[int] = set()
        self._options: dict[int, tuple[Any, int]] = {}  # of later resets, by number of the env
        super().__init__(env_fns, first, sizes)

    def add(self, env_fn: Callable[[], gym.Env[Any, Any]]) -> None:
        """Make the next env and find its kind; skip both if it equals the env before it."""
        i = len(self.envs)
        makes_alike = getattr(env_fn, "makes_alike", False)
        like = None
        if makes_alike and i > 0 and env_fn is self.env_fns[-1]:
            like = self._found[-1]
            if like is not None and not like.outer:
                self.envs.append(None)  # type: ignore[arg-type]
                self.stacks.append(like.stack)
                self._found.append(like)
                return
        super().add(env_fn)
        if i in self.nested:
            self._found += [None] * len(self.nested[i])
            return
        make = env_fn if makes_alike else None
        held = self._in_main and not (makes_alike and _is_own(env_fn))
        found = self._kind_of(self.envs[i], make, like, held=held)
        self._found.append(found if isinstance(found, _Kind) else None)
        self.stacks[i] = found.stack if isinstance(found, _Kind) else found
        # A MuJoCo env of gymnasium takes a megabyte beside its simulation.
        known = found.known if isinstance(found, _Kind) and not found.outer else None
        if known is not None and not self._in_main and known.could_be_new(self.envs[i]):
            self.envs[i] = None  # type: ignore[call-overload]

    def made(self, i: int) -> gym.Env[Any, Any]:
        """Return the real env ``i``; make it if this is its first use."""
        if self.envs[i] is None:
            kind: Any = self._found[i]
            alike = getattr(self.env_fns[i], "makes_alike", False)
            self.envs[i] = self.env_fns[i]() if alike else kind.known.new()
        return self.envs[i]

    def space_of(self, i: int, name: str) -> gym.Space[Any]:
        kind = self._found[i]
        if self.envs[i] is None and kind is not None:  # it equals the first of its kind
            return getattr(kind.inner, name)
        return super().space_of(i, name)

    # -- choosing --------------------------------------------------------------------------------

    def _kind_of(
        self,
        env: gym.Env[Any, Any],
        make: Callable[[], gym.Env[Any, Any]] | None,
        like: _Kind | None,
        *,
        held: bool = False,
        again: KnownEnv | None = None,
    ) -> _Kind | Stack:
        """Return the kind of an env, or the stack of an env that steps by itself.

        Args:
            env: The env.
            make: Makes another such env; None if the function that made it is unknown code.
            like: The kind of another env that ``make`` has made, or None.
            held: Whether the program may hold on to it.
            again: What the env was known as before a call; None: this needs a trial.
        """
        if reward_space_of(env) is not None:
            return _in_python(env, "its rewards are arrays")
        outer, inner, why = peel(env)
        if outer and self._in_main:
            return _in_python(env, "the program may hold on to wrappers in its own process")
        if like is not None and like.known is not None and alike(outer, like.outer):
            return like
        for kind in self._kinds:
            if kind.known is not None and not held and kind.fits(outer, inner):
                return kind
        known = None
        try:
            if again is None:
                known = self._known_env(env, inner, why, make, held=held)
            elif again.has(inner):
                # The call may have changed classes and modules, too.
                again.expect_equal(make and (lambda: peel(make())[1]))
                known = again
            else:
                raise NotNativeError("a call has changed it")
        except (NotNativeError, NotBatchedError) as error:
            why = why or str(error)
            for kind in self._kinds:
                if kind.known is None and kind.fits(outer, inner):
                    return kind
        if not outer and known is None:
            return _in_python(env, why or "")
        try:
            self._expect_equal(outer, inner)
        except NotBatchedError as error:
            return _in_python(env, str(error))
        batched = [StackPart(type(one).__name__, "on the batch") for one in outer]
        within = tuple(parts_of(inner, "native")) if known else _in_python(inner, why or "")
        self._kinds.append(_Kind(outer, inner, known, (*batched, *within)))
        return self._kinds[-1]

    def _known_env(
        self,
        env: gym.Env[Any, Any],
        inner: gym.Env[Any, Any],
        why: str | None,
        make: Callable[[], gym.Env[Any, Any]] | None,
        *,
        held: bool,
    ) -> KnownEnv:
        """Return the env within some wrappers as a ``KnownEnv``, or raise NotNativeError."""
        expect_known(env.unwrapped)  # first, since most envs are not known
        if why is not None:
            raise NotBatchedError(why)
        _expect_limits_inside(inner)
        known = _known_as(inner)
        if held:
            raise NotNativeError("the program may hold on to envs in its own process")
        classes = tuple(type(layer) for layer in layers_of(inner))
        if classes in self._refused:
            raise NotNativeError(self._refused[classes])
        try:
            known.expect_equal(None if make is None else lambda: peel(make())[1])
        except NotNativeError as error:
            self._refused[classes] = str(error)
            raise
        return known

    def _expect_equal(self, outer: Sequence[Any], inner: gym.Env[Any, Any]) -> None:
        if len(self._kinds) == _MAX_KINDS:
            raise NotBatchedError(f"the worker has more than {_MAX_KINDS} kinds of envs")
        if not outer:
            return
        classes = tuple(type(one) for one in outer)
        if classes in self._refused:
            raise NotBatchedError(self._refused[classes])
        try:
            expect_equal(outer, inner)
        except NotBatchedError as error:
            self._refused[classes] = str(error)
            raise

    def key_of(self, i: int) -> Any:
        return self._found[i] or super().key_of(i)

    def block_of(self, key: Any, rows: range) -> Any:
        if not isinstance(key, _Kind):
            return super().block_of(key, rows)
        try:
            batch = self._batch(key, rows)
        except NotBatchedError as error:  # a wrapper has a state that layers cannot have
            for i in rows:
                self.made(i)
            self._note_python(rows, key, str(error))
            return self.env_block(rows)
        self._batches.append(batch)
        batch.block.use(*self._use)
        return batch.block

    def _shared(self, rows: Sequence[int]) -> str | None:
        """Return which statistics some envs share with others; None if they share none."""
        owners = collections.Counter(id(one) for env in self.envs for _, one in _statistics_of(env))
        for i in rows:
            for name, one in _statistics_of(self.envs[i]):
                if owners[id(one)] > 1:
                    return f"env {self.first + i} shares its {name} with another env"
        return None

    def _batch(self, kind: _Kind, rows: range) -> Batch:
        parts = {i: list(_own_parts(env)) for i, env in enumerate(self.envs) if env is not None}
        owners = collections.Counter(id(part) for some in parts.values() for _, part in some)
        for i in rows:
            for what, part in parts.get(i, ()):
                if owners[id(part)] > 1:
                    raise NotBatchedError(f"env {self.first + i} {what} another env")
        if kind.outer and (why := self._shared(rows)) is not None:
            raise NotBatchedError(why)
        for one in {type(layer) for layer in (*kind.outer, *layers_of(kind.inner))}:
            if (name := replaced_method(one)) is not None:
                raise NotBatchedError(f"{name} was replaced")
        if kind.known is not None:
            return NativeBatch(self, rows, len(kind.outer), kind.known)
        layers = [LAYERS[type(one)] for one in kind.outer]
        saved = len(rows) * sum(layer.saves for layer in layers)
        if saved < _COSTS + sum(layer.costs for layer in layers):
            raise NotBatchedError(f"too few envs to gain by it ({len(rows)})")
        return PythonBatch(self, rows, len(kind.outer))

    # -- calls of single envs --------------------------------------------------------------------

    def _batch_of(self, i: int) -> tuple[Batch, int] | None:
        """Return the batch of an env and its place there; None if it steps by itself."""
        for batch in self._batches:
            if i in batch.rows:
                return batch, batch.rows.index(i)
        return None

    def alike(self, i: int) -> int:
        found = self._batch_of(i)
        return i if found is None else found[0].rows.start

    def lend(self, i: int) -> gym.Env[Any, Any]:
        found = self._batch_of(i)
        if found is None:
            return super().lend(i)
        batch, place = found
        return batch.store(place)

    def take_back(self, i: int) -> None:
        found = self._batch_of(i)
        if found is not None:
            batch, place = found
            batch.take(place)

    def called(
        self, i: int, env: Any, function: Callable[..., Any], args: tuple[Any, ...], what: str
    ) -> Any:
        if i in self.nested:
            return super().called(i, env, function, args, what)
        reads = getattr(function, "reads_of_pysampler", None)
        if function is call and args[0] == "render":
            reads = "picture"
        elif function is call:
            attribute = attribute_of(env, args[0])  # once, since a property runs code
            function, args = attribute_called, (attribute, *args[1:])
            reads = None if callable(attribute) else "attribute"
        if reads is None:
            self.end_batch(i, f"{what} was called")
        result = super().called(i, env, function, args, what)
        if reads == "attribute" and self._in_main and not _is_copied(result):
            self.end_batch(i, f"{what} handed out a part of the env")
        return result

    def end_batch(self, i: int, why: str, *, log: bool = True) -> None:
        if i in self._before:
            self._left.add(i)
        # All batches of the worker, since the call may reach whatever their envs share with this
        # one: a class, a module, an argument, the model of the first env.
        for batch in list(self._batches):
            kind = self._found[batch.rows.start]
            self.leave(batch, why)
            first, last = self.first + batch.rows[0], self.first + batch.rows[-1]
            envs = f"envs {first}-{last} do" if last > first else f"env {first} does"
            until = ""
            if not self._in_main:
                self._left.update(batch.rows)
                self._before.update(dict.fromkeys(batch.rows, kind))
                until = "; the next reset of all envs puts those that equal new ones together again"
            if log:
                log_once(f"{envs} not step in a batch any more, since {why}{until}")

    def leave(self, batch: Batch, why: str) -> _core.EnvBlock:
        """Step the envs of a batch one by one from now on, in the block that this returns."""
        for i in batch.rows:
            self.made(i)
        block = self.env_block(batch.rows)
        batch.ordinary(block)
        block.torn = batch.block.torn
        kind = self._found[batch.rows.start]
        assert kind is not None
        self._note_python(batch.rows, kind, why)
        others = [one for one in self._batches if one is not batch]
        # Each in one statement: after an interrupt, a batch of the list has its envs' states.
        for at, old in enumerate(self.blocks):
            if old is batch.block:
                self.blocks[at], self._batches = block, others
            elif isinstance(old, GroupBlock) and batch.block in old.blocks:
                blocks = [block if one is batch.block else one for one in old.blocks]
                old.blocks, self._batches = blocks, others
        return block

    def note_options(self, options: dict[int, tuple[Any, int]]) -> None:
        self._options.update(options)

    def begin_all(self, block: int) -> None:
        rows = self.rows(block)
        if self._left.isdisjoint(rows) or not self.nested.keys().isdisjoint(rows):
            return
        if any(self.env_block_of(i)[0].seeds for i in rows):  # which the next resets use
            return
        for batch in [one for one in self._batches if one.rows.start in rows]:
            self.leave(batch, "")
        self._left.difference_update(rows)
        self._refused.clear()
        self._kinds.clear()  # calls may have changed the envs that these compare with
        again: dict[_Kind, KnownEnv] = {}
        for i in rows:
            if (kind := self._before.get(i) or self._found[i]) is not None:
                found = self._kind_again(i, kind, again)
                self._found[i] = found if isinstance(found, _Kind) else None
                self.stacks[i] = found.stack if isinstance(found, _Kind) else found
        if all(self._found[i] is None for i in rows):
            return
        places = [self._places[i] for i in rows]
        new = self.blocks[block] = self.make_block(block)
        for place, (i, (old, at)) in enumerate(zip(rows, places, strict=True)):
            if (given := self._options.get(self.first + i)) is not None:
                new.set_options(place, *copy.deepcopy(given))
            self._continue(i, bool(old.ended[at]), bool(old.resting[at]), old.last(at))

    def _continue(self, i: int, ended: bool, rests: bool, last: Any) -> None:  # noqa: FBT001
        """Continue env ``i`` where its old block left it, since its reset may raise."""
        found = self._batch_of(i)
        if found is not None:
            found[0].resume(found[1], ended, rests, last)
            return
        block, place = self._places[i]
        block.set_ended(place, ended)
        if last is not None:
            block.set_last(place, last)
        if rests:
            block.rest(place)

    def _kind_again(self, i: int, kind: _Kind, again: dict[_Kind, KnownEnv]) -> _Kind | Stack:
        """Return the kind of an env whose batch has ended, or its stack.

        Args:
            i: The env.
            kind: Its kind before.
            again: For each kind before, a new env of it; grows.
        """
        env_fn = self.env_fns[i]
        make = env_fn if getattr(env_fn, "makes_alike", False) else None
        try:
            if kind.known is not None and kind not in again:
                again[kind] = kind.known.again(make and (lambda: peel(env_fn())[1]))
            return self._kind_of(self.envs[i], make, None, again=again.get(kind))
        except Exception as error:  # of a user's code, which makes the new env
            why = f"a new env to compare it with raised {type(error).__name__}: {error}"
            return _in_python(self.envs[i], why)

    def _note_python(self, rows: range, kind: _Kind, why: str) -> None:
        """Record why envs of a kind step in Python, for ``describe``."""
        for i in rows:
            if kind.known is not None:
                self.stacks[i] = _in_python(self.envs[i], why)
            else:  # only their wrappers were in Python
                first, *others = [StackPart(type(one).__name__, "in Python") for one in kind.outer]
                within = kind.stack[len(kind.outer) :]
                self.stacks[i] = (StackPart(first.name, first.how, why), *others, *within)

    # -- states ----------------------------------------------------------------------------------

    def env_block_of(self, i: int) -> tuple[_core.EnvBlock, int]:
        found = self._batch_of(i)
        return super().env_block_of(i) if found is None else (found[0].inner, found[1])

    def batch_block_of(self, i: int) -> tuple[Any, int] | None:
        found = self._batch_of(i)
        if found is not None and isinstance(found[0], NativeBatch):
            return found[0].block, found[1]
        return super().batch_block_of(i)

    def states(self, block: int, envs: Sequence[int]) -> Any:
        """Return the states of some of a block's envs, one row each."""
        rows = self.rows(block)
        for batch in self._batches:
            if isinstance(batch, NativeBatch) and batch.rows == rows:
                with self.blaming(envs[0] if envs else rows.start, "get_state()"):
                    return batch.block.states([batch.rows.index(i) for i in envs])
        return super().states(block, envs)


def _own_parts(env: Any) -> Iterator[tuple[str, Any]]:
    """Yield the objects that an env must have for itself, each after what sharing it would be."""
    base = env.unwrapped
    yield "is the same object as", base
    if (data := vars(base).get("data")) is not None:
        yield "shares its data with", data


def _statistics_of(env: Any) -> Iterator[tuple[str, Any]]:
    """Yield the running statistics of an env's wrappers, with their attribute names."""
    for layer in layers_of(env) if env is not None else ():
        for name in ("obs_rms", "return_rms"):
            if name in vars(layer):
                yield name, vars(layer)[name]


def _is_own(env_fn: Any) -> bool:
    """Return whether a program can change nothing of the envs that an ``EnvMaker`` makes."""
    safe = "id", "task", "default_camera_config", "visual_options"  # the last two: for pictures
    return all(_is_copied(one) for name, one in env_fn.kwargs.items() if name not in safe)


def _is_copied(value: Any) -> bool:
    """Return whether a value cannot change, so that a program that holds it changes no env."""
    if type(value) is tuple:
        return all(map(_is_copied, value))
    return isinstance(value, (type(None), bool, int, float, complex, str, bytes, np.generic))


def _known_as(env: gym.Env[Any, Any]) -> KnownEnv:
    """Return the ``KnownEnv`` for an env of a known class, without a trial."""
    if has_task(env.unwrapped):
        from pysampler._vector.mujoco.trial import KnownTask  # noqa: PLC0415 - mujoco is an extra

        return KnownTask(env)
    from pysampler._vector.native.twins import KnownTwin  # noqa: PLC0415 - most workers need none

    return KnownTwin(env)


def _in_python(env: gym.Env[Any, Any], why: str) -> Stack:
    """Return the stack of an env in Python, with the reason at the wrapper that it names."""
    parts = parts_of(env, "in Python")
    at = next((i for i, one in enumerate(parts) if f"the wrapper {one.name} " in why), -1)
    parts[at] = StackPart(parts[at].name, "in Python", why, parts[at].has_task)
    return tuple(parts)


def _expect_limits_inside(env: gym.Env[Any, Any]) -> None:
    """Raise NotNativeError if a TimeLimit or the like is outside of a wrapper with a layer."""
    if type(env) in BLOCK_WRAPPERS:
        for one in layers_of(env):
            if type(one) in LAYERS:
                outside, inside = type(env).__name__, type(one).__name__
                raise NotNativeError(f"the wrapper {outside} stands outside of {inside}")
