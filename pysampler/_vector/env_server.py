"""EnvServer: makes, calls and closes a worker's envs.

Steps and resets run in blocks (``_core.EnvBlock``, in C++), one per group, which call the envs and
write results to the frames. Rarer calls run here, in Python.
"""

from __future__ import annotations

import contextlib
import copy
import itertools
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode
from gymnasium.vector import VectorEnv as GymVectorEnv

from pysampler import _core
from pysampler._frames.infos import Column, add_columns
from pysampler._vector.blocks import GroupBlock, Overflow
from pysampler._vector.env_calls import (
    autoreset_of,
    expect_batch,
    expect_env,
    expect_whole,
    is_several,
    layers_of,
    reward_shape,
    reward_space_of,
)
from pysampler._vector.native.known import name_of
from pysampler._vector.registry import register
from pysampler._vector.stacks import StackPart, parts_of
from pysampler._workers.exceptions import Raised, report
from pysampler._workers.jobs import Failure, Server, is_users
from pysampler._workers.remote import dumps
from pysampler.envs.batch import BatchEnv
from pysampler.errors import EnvError

if TYPE_CHECKING:
    import types
    from collections.abc import Callable, Iterator, Sequence

    from pysampler._frames.frames import Frames
    from pysampler._vector.frozen import Frozen
    from pysampler._vector.stacks import Stack
    from pysampler._workers.gauges import WorkerGauges
    from pysampler.sync import Segment

__all__ = ["EnvDescription", "EnvServer", "Overflow", "prepare"]


@dataclass(frozen=True)
class EnvDescription:
    """The facts about envs that the parent needs to lay out frames."""

    observation_spaces: list[gym.Space[Any]]
    action_spaces: list[gym.Space[Any]]
    metadata: dict[str, Any]  # of the first env, like the next two
    render_mode: str | None
    name: str
    reward_space: gym.spaces.Box | None  # of all of these envs; None: rewards are numbers
    stacks: list[Stack]  # how each env is stepped
    sizes: tuple[int, ...]  # of the groups
    # The names and autoreset modes of nested vector envs; None: it follows any mode.
    nested: list[tuple[str, AutoresetMode | None]]
    several: bool  # whether a function has made several envs: a vector env or a BatchEnv
    # How envs interfere with each other, if it is known, and what helps, as sentences.
    interfering: list[str]


def with_failures(overflow: Overflow) -> Overflow:
    """Return a block's overflow, with its exceptions converted to failures."""
    return [
        (one[0], one[1], Failure(one[1], _doing(*one[3:]), report(one[2])))
        if one[0] == _core.EnvBlock.ERROR
        else one
        for one in overflow
    ]


def _doing(step: int | None = None) -> str:
    """Return what raised in a step of a chunk; nothing for other commands."""
    return "" if step is None else f"in step {step + 1} of a chunk"


def _identity(space: gym.Space[Any]) -> Any:
    """Return a key that is the same for equal spaces.

    Pickles could be keys for all spaces, but Python 3.11 and 3.12 move attributes of a pickled
    object to a dict, where lookups are slower: an env that reads its spaces in each step loses 2 %.
    So the usual spaces are compared by their contents.
    """
    if getattr(space, "_np_random", space) is None:  # no generator that has been seeded
        if type(space) is gym.spaces.Discrete:
            return gym.spaces.Discrete, int(space.n), int(space.start), str(space.dtype)
        if type(space) is gym.spaces.Box:
            arrays = space.low, space.high, space.bounded_below, space.bounded_above
            kind = gym.spaces.Box, space.shape, str(space.dtype)
            return *kind, *((str(a.dtype), a.tobytes()) for a in arrays)
    return dumps(space)


class EnvServer(Server):
    """The envs of a worker, from number ``first`` on, in groups of the given sizes.

    Attributes:
        inline: Whether the envs live in the user's process, whose signal handlers raise exceptions.
        stacks: How each env is stepped.
        meter: Counts steps and resets, once ``count_with`` was called.
        gauges: Where a policy records its numbers.
        acting: The policy of a sampler that acts in the workers.
    """

    acting: Any = None

    def __init__(
        self,
        env_fns: Sequence[Callable[[], gym.Env[Any, Any]]],
        first: int,
        sizes: Sequence[int],
        why_python: str = "",
        *,
        seed_globals: bool = False,
    ) -> None:
        self.first = first
        self._seed_globals = seed_globals
        self._why_python = why_python
        self.envs: list[gym.Env[Any, Any]] = []  # a vector env occurs once per row
        self.env_fns: list[Callable[[], gym.Env[Any, Any]]] = []  # the function that made each env
        self.nested: dict[int, range] = {}  # by row, all rows of its vector env
        self.blocks: list[Any] = []  # for each group
        self._own: dict[int, _core.BatchBlock] = {}  # the block of each BatchEnv, by its first env
        self._places: dict[int, tuple[_core.EnvBlock, int]] = {}
        self.stacks: list[Stack] = []
        made = []  # the number of envs of each function
        for env_fn in env_fns:
            count = len(self.envs)
            try:
                self.add(env_fn)
            except BaseException as error:
                self.close()
                if isinstance(error, KeyboardInterrupt):  # from the user, not from the env
                    raise
                raise Raised(first + count, "being made") from error
            self.env_fns += [env_fn] * (len(self.envs) - count)
            made.append(len(self.envs) - count)
        ends = itertools.accumulate(sizes, initial=0)
        self.sizes = [sum(made[begin:end]) for begin, end in itertools.pairwise(ends)]
        self.seeds: Sequence[int] = ()  # for the first resets of the replacements
        self._frozen: dict[int, Frozen] = {}  # by id of the env

    def add(self, env_fn: Callable[[], gym.Env[Any, Any]]) -> None:
        """Make the next env, or the envs of a nested vector env."""
        env: Any = env_fn()
        i = len(self.envs)
        if not is_several(env):
            expect_env(env, self.first + i)
            self.envs.append(env)
            self.stacks.append(tuple(parts_of(env, "in Python", self._why_python)))
            return
        expect = expect_whole if isinstance(env, GymVectorEnv) else expect_batch
        expect(env, self.first + i)
        rows = range(i, i + env.num_envs)
        self.nested.update(dict.fromkeys(rows, rows))
        self.envs += [env] * len(rows)
        *outer, inner = parts_of(env, "in one call")
        inner = StackPart(f"{inner.name} of {len(rows)} envs", "in one call")
        self.stacks += [(*outer, inner)] * len(rows)

    def describe(self) -> EnvDescription:
        """Return the spaces of every env, and the name and metadata of the first."""
        env = self.envs[0]
        known: dict[Any, gym.Space[Any]] = {}
        metadata = dict(env.metadata)
        if not self.inline:
            with self._sending(0, "metadata"):
                dumps(metadata)
        return EnvDescription(
            [self._described(i, "observation_space", known) for i in range(len(self.envs))],
            [self._described(i, "action_space", known) for i in range(len(self.envs))],
            metadata,
            env.render_mode,
            name_of(env),
            self._reward_space(),
            self.stacks,
            tuple(self.sizes),
            [
                (
                    getattr(env, "title", None) or name_of(env),
                    None if hasattr(env, "use_mode") else autoreset_of(env),
                )
                for rows in dict.fromkeys(self.nested.values())
                if isinstance(env := self.envs[rows.start], GymVectorEnv)
            ],
            bool(self.nested),
            self._interfering(),
        )

    def _interfering(self) -> list[str]:
        from pysampler._vector.isolation.known import interfering  # noqa: PLC0415 - only workers need it

        made = {id(env): env for env in self.envs if env is not None}
        found = interfering(made.values()) if len(made) > 1 else []
        found = [f"{one}; pass isolate=True" for one in found]
        ones = [env for i, env in enumerate(self.envs) if env is not None and i not in self.nested]
        if len({id(env.unwrapped) for env in ones}) < len(ones):
            found.append("several env_fns return one env, so its episodes mix: make one in each")
        return found

    def _reward_space(self) -> gym.spaces.Box | None:
        """Return the space of all envs' rewards, if these are arrays."""
        first: gym.spaces.Box | None = None
        for i, env in enumerate(self.envs):
            if env is None or (i > 0 and env is self.envs[i - 1]):  # as the one before it
                continue
            with self._sending(i, "reward_space"):
                space = reward_space_of(env)
                if i == 0:
                    first = space
                elif reward_shape(space) != reward_shape(first):
                    raise ValueError(f"its reward_space is {space}, that of the others {first}")
        return first

    def _described(self, i: int, name: str, known: dict[Any, gym.Space[Any]]) -> gym.Space[Any]:
        """Return a space of an env: one object for all equal spaces, so a pickle stores it once."""
        space = self.space_of(i, name)
        if self.inline:  # it need not be pickled
            return space
        with self._sending(i, name):
            return known.setdefault(_identity(space), space)

    def space_of(self, i: int, name: str) -> gym.Space[Any]:
        single = "single_" if isinstance(self.envs[i], GymVectorEnv) else ""
        return getattr(self.envs[i], f"{single}{name}")

    @contextlib.contextmanager
    def _sending(self, i: int, name: str) -> Iterator[None]:
        """Report a failure to pickle an attribute of env ``i`` as an error of this env."""
        try:
            yield
        except Exception as error:
            raise Raised(self.first + i, f"sending its {name}") from error

    def count_with(self, meter: _core.Meter, gauges: WorkerGauges, first: int) -> None:
        """Count steps and resets with ``meter``; policies record their times in ``gauges``.

        The first env has the number ``first`` from now on. This was not known before, since
        functions of other workers may make several envs.
        """
        self.first = first
        self.meter = meter
        self.gauges = gauges

    @property
    def track(self) -> _core.Track | None:
        """The track for trace events; None if tracing is off."""
        return self.meter.track

    def attach(
        self, frames: Frames, segment: Segment, autoreset: str, keep: str, columns: Sequence[Column]
    ) -> None:
        """Let the blocks use these frames, in which infos already have ``columns``."""
        self.frames = frames
        self.segment = segment
        self.acting = None
        self._infos = _core.Infos()
        self._columns: list[Column] = []
        self._use = frames, self._infos, autoreset, keep
        if self.blocks:
            for block in self.blocks:
                block.use(*self._use)
        else:
            self.blocks = [self.make_block(block) for block in range(len(self.sizes))]
        self.add_columns(columns)

    def make_block(self, block: int) -> Any:
        """Return the block of a group's envs, which uses the frames."""
        parts = [(key, [*rows]) for key, rows in itertools.groupby(self.rows(block), self.key_of)]
        blocks = [self.block_of(key, range(rows[0], rows[-1] + 1)) for key, rows in parts]
        if len(blocks) == 1:
            return blocks[0]
        sizes = [len(rows) for _, rows in parts]
        return GroupBlock(blocks, self.first + self.rows(block).start, sizes, self.frames)

    def key_of(self, i: int) -> Any:
        """Return a key; one block steps consecutive envs with equal keys."""
        return self.nested.get(i)

    def block_of(self, key: Any, rows: range) -> Any:
        """Make the block for consecutive envs with this key."""
        if not isinstance(key, range):
            return self.env_block(rows)
        env: Any = self.envs[rows.start]
        of_block = self.first + rows.start, self.meter
        block: Any
        if isinstance(env, BatchEnv):
            from pysampler._vector.stepper import BatchEnvStepper  # noqa: PLC0415 - rare

            block = BatchEnvStepper(env).block(*of_block, inline=self.inline)
            self._own[rows.start] = block
        else:
            from pysampler._vector.nested import NestedBlock  # noqa: PLC0415 - rare

            own = self.stepped(rows.start)
            block = NestedBlock(own, autoreset_of(env), *of_block, inline=self.inline)
        block.use(*self._use)
        return block

    def env_block(self, rows: range) -> _core.EnvBlock:
        """Make a block in C++ that steps envs one by one."""
        envs = [self.stepped(i) for i in rows]
        block = _core.EnvBlock(envs, self.first + rows.start, self.meter, self.inline)
        block.use(*self._use)
        self._places.update({i: (block, place) for place, i in enumerate(rows)})
        return block

    def stepped(self, i: int) -> Any:
        """Return what a block steps and resets as env ``i``."""
        if not self._seed_globals:
            return self.envs[i]
        from pysampler._vector.env_globals import GlobalsOf  # noqa: PLC0415 - rare

        return GlobalsOf(self.envs[i])

    def take_overflow(self, block: int) -> Overflow:
        """Take the overflow of a block's step or reset, with exceptions as failures."""
        return with_failures(self.blocks[block].take_overflow())

    def peek_overflow(self, block: int) -> Overflow:
        """Return the overflow as ``take_overflow`` does, but keep it until the next step."""
        return with_failures(self.blocks[block].peek_overflow())

    def add_columns(self, columns: Sequence[Column]) -> None:
        """Write infos to these columns too."""
        new = [column for column in columns if column not in self._columns]
        # A signal handler may raise at any point, and the columns are then added again.
        add_columns(self._infos, self.frames, new)
        self._columns += new

    def freeze(self, rows: range) -> list[Frozen]:
        """Freeze the wrappers of some envs, and return those that are frozen."""
        from pysampler._vector.frozen import Frozen, changes_in_steps  # noqa: PLC0415 - for evaluations

        frozen = []
        for i in rows:
            env = self.envs[i]
            if id(env) not in self._frozen:
                if env is None or not changes_in_steps(env):  # a BatchServer makes it later
                    continue
                self._frozen[id(env)] = Frozen()
            frozen.append(self._frozen[id(env)])
            if not frozen[-1].whole:
                with self.blaming(i, "freezing its wrappers"):
                    self.end_batch(i, "an evaluation leaves its wrappers as they are", log=False)
                    frozen[-1].freeze(env)
        return frozen

    def thaw(self) -> None:
        """Restore the wrappers of all envs that are frozen."""
        for i, env in enumerate(self.envs):
            if (frozen := self._frozen.get(id(env))) is not None:
                self.end_batch(i, "an evaluation leaves its wrappers as they are", log=False)
                frozen.thaw()
                del self._frozen[id(env)]

    def replace(self, seeds: Sequence[int], over: Sequence[bool]) -> None:
        """Prepare envs that replace others; ``seeds`` are for their next resets."""
        self.seeds = seeds
        for block in range(len(self.sizes)):
            rows = self.rows(block)
            of_block = [bool(over[i]) for i in rows] if len(over) else []
            self.blocks[block].replace([seeds[i] for i in rows], of_block)

    @property
    def policy_seeds(self) -> Sequence[int]:
        """Seeds for the first policy of envs that replace others; empty if they have begun."""
        return self.seeds if self.fresh else ()

    @property
    def fresh(self) -> bool:
        """Whether an env has not begun since it replaced another."""
        return any(block.fresh for block in self.blocks)

    def stop(self) -> None:
        """Let a step end after its current env, and a job after its current step."""
        for block in self.blocks:
            block.stop()
        if (acting := self.acting) is not None:  # the worker may change it meanwhile
            acting.progress.stop(drop=True)

    def close(self) -> None:
        """Close all envs, even if some raise; then raise the first exception again.

        After an interrupt, the next call closes the others.
        If a signal handler calls this during a step, the step stops after the current env.
        """
        for block in self.blocks:
            block.stop()
        raised: Raised | None = None
        envs: list[Any] = self.envs
        for i, env in enumerate(envs):
            envs[i] = None
            try:
                # A BatchServer may not have made this env yet. A vector env closes all of its envs.
                first = env is not None and self.nested.get(i, range(i, i + 1)).start == i
                if first and not (i < len(self.env_fns) and is_kept_open(self.env_fns[i])):
                    env.close()
            except BaseException as error:
                if is_users(error, inline=self.inline):
                    raise
                if raised is None:
                    raised = Raised(self.first + i, "close()")
                    raised.__cause__ = error
        self.envs = []
        if raised is not None:
            raise raised

    @property
    def count(self) -> int:
        """The number of envs."""
        return len(self.envs)

    def using(self, i: int, doing: str) -> AbstractContextManager[gym.Env[Any, Any]]:
        """Return a context that yields env ``i`` and reports exceptions as errors of this env."""
        return _Blaming(self, i, doing, lends=True)

    def lend(self, i: int) -> gym.Env[Any, Any]:
        """Return env ``i`` in its current state, to call it."""
        return self.envs[i]

    def alike(self, i: int) -> int:
        """Return an env with the same classes and attributes as env ``i``, which exists already."""
        return i

    def called(
        self,
        i: int,  # noqa: ARG002
        env: Any,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        what: str,  # noqa: ARG002
    ) -> Any:
        """Return the result of a function of env ``i``, lent for a call named ``what``."""
        return function(env, *args)

    def note_options(self, options: dict[int, tuple[Any, int]]) -> None:
        """Record options that blocks use for later resets, if a server needs them again."""

    def take_back(self, i: int) -> None:
        """Take back env ``i`` after it was lent."""

    def end_batch(self, i: int, why: str, *, log: bool = True) -> None:
        """Step the batch of env ``i`` one by one from now on, since a call may change the env."""

    def begin_all(self, block: int) -> None:
        """Prepare a reset of all envs of a block: those that equal new envs may form batches."""

    def blaming(self, i: int, doing: str) -> AbstractContextManager[Any]:
        """Return a context that reports exceptions as errors of env ``i``."""
        return _Blaming(self, i, doing)

    def count_at(self, i: int | None) -> None:
        """Record env ``i`` as the env at work; None: no env is."""
        if i is None:
            self.meter.idle()
        else:
            self.meter.at(self.first + i)

    def env_block_of(self, i: int) -> tuple[_core.EnvBlock, int]:
        """Return the block in C++ that steps env ``i``, and the env's place there."""
        return self._places[i]

    def states(self, block: int, envs: Sequence[int]) -> Any:  # noqa: ARG002
        """Return the states of some of a block's envs as an array of objects."""
        states = np.empty(len(envs), object)
        for row, i in enumerate(envs):
            with self.blaming(i, "get_state()"):
                if (found := self.batch_block_of(i)) is not None:
                    batch_block, place = found
                    states[row] = batch_block.states([place])[0]
                    continue
                layers = list(layers_of(self.envs[i]))
                elapsed = [vars(one).get("_elapsed_steps") for one in layers]
                state = copy.deepcopy(_offered(layers, "get_state")())  # the env may change it
                env_block, place = self.env_block_of(i)
                episode = bool(env_block.ended[place]), int(env_block.used[place])
                states[row] = state, elapsed, episode
        return states

    def set_states(self, block: int, envs: Sequence[int], states: Any) -> None:  # noqa: ARG002
        """Set the states of some of a block's envs."""
        for i, one in zip(envs, states, strict=True):
            with self.blaming(i, "set_state()"):
                other = "cannot set state: it belongs to other envs"
                if (found := self.batch_block_of(i)) is not None:
                    batch_block, place = found
                    if not isinstance(one, np.void):
                        raise ValueError(f"{other} (stepped one by one)")
                    batch_block.set_states([place], np.array([one], one.dtype))
                    continue
                if not isinstance(one, tuple):
                    raise ValueError(f"{other} (simulated together)")
                state, elapsed, (ended, used) = one
                layers = list(layers_of(self.envs[i]))
                _offered(layers, "set_state")(copy.deepcopy(state))  # as it may this one
                for layer, steps in zip(layers, elapsed, strict=True):
                    if steps is not None:
                        layer._elapsed_steps = steps  # of a TimeLimit
                    if "_has_reset" in vars(layer):  # of an OrderEnforcing
                        vars(layer)["_has_reset"] = True
                env_block, place = self.env_block_of(i)
                env_block.set_ended(place, ended)
                env_block.seeds.pop(place, None)
                env_block.used[place] = used

    def batch_block_of(self, i: int) -> tuple[Any, int] | None:
        """Return the block with the state of env ``i``, and the env's place there.

        None if the state is the env's own.
        """
        if i not in self.nested:
            return None
        first = self.nested[i].start
        if first not in self._own:
            raise AttributeError(
                f"{name_of(self.envs[i])} is a vector env, whose envs have no states of their own"
            )
        return self._own[first], i - first

    def calls(self, block: int, envs: Sequence[int] | None) -> Iterator[tuple[range, list[int]]]:
        """Yield, for each call of a single or vector env, its envs and those that were asked for.

        Args:
            block: The block.
            envs: The numbers of the envs to reach; None: all envs of the block.
        """
        for _, places in itertools.groupby(self.rows(block), lambda i: self.nested.get(i, i)):
            rows = list(places)
            chosen = [i for i in rows if envs is None or self.first + i in envs]
            if chosen:
                yield range(rows[0], rows[-1] + 1), chosen

    def rows(self, block: int) -> range:
        """Return the indices, among the server's envs, of a block's envs."""
        at = sum(self.sizes[:block])
        return range(at, at + self.sizes[block])


class _Blaming(AbstractContextManager[Any]):
    """Reports exceptions as errors of one env. A generator would warn when Python drops it.

    Args:
        server: The server of the env.
        i: The env.
        doing: The action of the env, for the error.
        lends: Whether the env is lent during the block.
    """

    def __init__(self, server: EnvServer, i: int, doing: str, *, lends: bool = False) -> None:
        self._server, self._i, self._doing, self._lends = server, i, doing, lends

    def __enter__(self) -> Any:
        env = None
        if self._lends:
            with self._server.blaming(self._i, self._doing):
                env = self._server.lend(self._i)
        self._server.count_at(self._i)
        return env

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: types.TracebackType | None,
    ) -> None:
        if self._lends:  # also after an exception, since earlier changes remain
            with self._server.blaming(self._i, self._doing):
                self._server.take_back(self._i)
        self._server.count_at(None)
        if error is not None and not is_users(error, inline=self._server.inline):
            first, of_one = self._server.first + self._i, self._i not in self._server.nested
            env: int | None = first
            if isinstance(error, EnvError) and not of_one:
                env = None if error.env is None else first + error.env
            raise Raised(env, self._doing) from error


def is_kept_open(env_fn: Any) -> bool:
    """Return whether this function returns a vector env that its owner closes."""
    return getattr(env_fn, "keeps_open", False)


def _offered(layers: Sequence[Any], name: str) -> Callable[..., Any]:
    """Return the method ``name`` of the outermost layer that can both get and set a state."""
    for layer in layers:
        if all(callable(getattr(type(layer), both, None)) for both in ("get_state", "set_state")):
            return getattr(layer, name)
    raise AttributeError(
        f"{type(layers[-1]).__name__} has no methods get_state() and set_state(state), which envs "
        "need unless they are simulated together"
    )


def prepare(specs: bytes, init: Callable[[], Any] | None) -> None:
    """Run the user's ``init`` and register the parent's specs."""
    if init is not None:
        try:
            init()
        except Exception as error:
            raise Raised(None, "worker_init()") from error
    if specs:
        register(specs)
