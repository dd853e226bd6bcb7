"""What a worker hosts: the envs of its groups, as blocks."""

from __future__ import annotations

import contextlib
import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import cloudpickle
import gymnasium as gym
from gymnasium.envs import registration

from pysampler import _core
from pysampler.alone import Alone
from pysampler.errors import WorkerLostError
from pysampler.infos import Column, add_columns
from pysampler.remote import Raised, Report, dumps, dumps_by_value, report

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from pysampler.acting import Role, RolledOut
    from pysampler.alone import Crew, Errand, Show
    from pysampler.frames import Frames
    from pysampler.sync import Segment

__all__ = [
    "Description",
    "EnvHost",
    "Failure",
    "Restored",
    "call",
    "failure_of",
    "make_host",
    "plain",
    "registered",
]


@dataclass(frozen=True)
class Description:
    """What the parent must know of the envs before it can lay out frames."""

    observation_spaces: list[gym.Space[Any]]
    action_spaces: list[gym.Space[Any]]
    metadata: dict[str, Any]  # of the first env, as the next two
    render_mode: str | None
    name: str


# What the policy of a host was doing, by what the host was asked for.
_POLICY = {
    "rollout": "acting",
    "act": "acting",
    "show": "acting",
    "act_with": "when it was taken over",
}


@dataclass(frozen=True)
class Failure:
    """What an env raised, or its host if ``env`` is None.

    ``doing`` is empty if that was just what it had been asked for.
    """

    env: int | None
    doing: str
    report: Report
    error: BaseException | None = None  # itself, where it need not travel

    def __reduce__(self) -> tuple[type[Failure], tuple[Any, ...]]:
        return Failure, (self.env, self.doing, self.report)

    def told(self, where: str, doing: str) -> str:
        """In a sentence: which env, ``where`` it is, and what it was doing."""
        who = "the host of envs" if self.env is None else f"env {self.env}"
        if self.doing in _POLICY:
            return f"the policy{where} raised {self.report.kind} {_POLICY[self.doing]}"
        doing = f"in {self.doing}" if "(" in self.doing else self.doing or doing
        return f"{who}{where} raised {self.report.kind} {doing}"


@dataclass(frozen=True)
class Restored:
    """What a group says whose worker was lost and replaced meanwhile."""

    said: Any
    stepping: bool  # or resetting


def failure_of(error: BaseException, doing: str) -> Failure:
    """What to tell the parent about an exception."""
    if isinstance(error, Raised):
        return Failure(error.env, error.doing, report(error.__cause__ or error), error.__cause__)
    return Failure(None, doing, report(error), error)


def plain(leftovers: list[tuple[int, int, Any]]) -> list[tuple[int, int, Any]]:
    """What a block had left, with exceptions as failures."""
    return [
        (kind, env, Failure(env, "", report(thing), thing))
        if kind == _core.EnvBlock.ERROR
        else (kind, env, thing)
        for kind, env, thing in leftovers
    ]


def _shared(space: gym.Space[Any], known: dict[bytes, gym.Space[Any]]) -> gym.Space[Any]:
    """Return one space for all that are the same: a pickle of them has it once."""
    try:
        return known.setdefault(dumps(space), space)
    except Exception:  # what cannot be pickled is told of when all are
        return space


class EnvHost:
    """Envs ``first`` and following, in groups of the given sizes."""

    def __init__(
        self, env_fns: Sequence[Callable[[], gym.Env[Any, Any]]], first: int, sizes: Sequence[int]
    ) -> None:
        self.first = first
        self.sizes = sizes
        self.envs: list[gym.Env[Any, Any]] = []
        for i, env_fn in enumerate(env_fns):
            try:
                env = env_fn()
                _expect_env(env, first + i)
                self.envs.append(env)
            except BaseException as error:
                self.close()
                if isinstance(error, KeyboardInterrupt):  # the user's, not the env's
                    raise
                raise Raised(first + i, "being made") from error
        self.blocks: list[_core.EnvBlock] = []
        self._new: set[int] = set()  # blocks of envs in the place of lost ones
        self._seeds: Sequence[int] = ()  # of those envs

    def describe(self) -> Description:
        """The spaces of every env, and what else is asked of the first."""
        env = self.envs[0]
        known: dict[bytes, gym.Space[Any]] = {}
        return Description(
            [_shared(e.observation_space, known) for e in self.envs],
            [_shared(e.action_space, known) for e in self.envs],
            dict(env.metadata),
            env.render_mode,
            env.spec.id if env.spec is not None else type(env.unwrapped).__name__,
        )

    def count_with(self, meter: _core.Meter) -> None:
        """What envs do is counted with it."""
        self._meter = meter

    def attach(
        self,
        frames: Frames,
        segment: Segment,
        autoreset: str,
        keep: str,
        columns: Sequence[Column],
    ) -> None:
        """Let the blocks work on these frames; ``columns`` of infos there are already."""
        self.frames = frames
        self.segment = segment
        self._acting: Alone | None = None
        self._infos = _core.Infos()
        self._known: set[int] = set()
        self.add_columns(0, columns)
        for block in self.blocks:
            block.use(frames, self._infos, autoreset, keep)
        if self.blocks:
            return
        at = 0
        for size in self.sizes:
            envs = self.envs[at : at + size]
            first = self.first + at
            self.blocks.append(
                _core.EnvBlock(envs, first, frames, self._infos, self._meter, autoreset, keep)
            )
            at += size

    def answer(self, name: str, block: int, frame: int, arguments: tuple[Any, ...]) -> Any:
        """Do what is asked of a block: the name of one of the methods below."""
        if name in ("step", "reset", "restore"):
            self._new.discard(block)
            return plain(getattr(self, name)(block, frame, *arguments))
        if name == "rollout":
            return self.rollout(block, frame, *arguments)
        return getattr(self, name)(block, *arguments)

    # -- requests: each is called with the block it is about -------------------------------------

    def step(self, block: int, frame: int, actions: list[Any]) -> list[tuple[int, int, Any]]:
        """With actions that could not be written to the frame."""
        self.blocks[block].step(frame, actions)
        return self.blocks[block].take_leftovers()

    def reset(
        self,
        block: int,
        frame: int,
        seeds: Sequence[int | None],
        options: dict[str, Any] | None,
        mask: Sequence[bool] | None,
    ) -> list[tuple[int, int, Any]]:
        """Reset the envs of a block, or those of the mask."""
        calls: list[tuple[int | None, dict[str, Any] | None] | None] = [
            (seed, copy.deepcopy(options)) for seed in seeds
        ]
        if mask is not None:
            calls = [call if reset else None for call, reset in zip(calls, mask, strict=True)]
        self.blocks[block].reset(frame, calls)
        return self.blocks[block].take_leftovers()

    def apply(
        self,
        block: int,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        doing: str,
        envs: Sequence[int] | None,
    ) -> list[Any]:
        """What the function makes of each env of the block, or of those among the given."""
        results = []
        for i in self._indices(block):
            if envs is None or self.first + i in envs:
                with self._at(i, doing):
                    results.append(function(self.envs[i], *args))
        return results

    def set_attr(self, block: int, name: str, values: Sequence[Any]) -> None:
        """An attribute of each env."""
        for i, value in zip(self._indices(block), values, strict=True):
            with self._at(i, f"set_attr({name!r})"):
                self.envs[i].set_wrapper_attr(name, value)

    def restore(self, block: int, frame: int) -> list[tuple[int, int, Any]]:
        """Instead of the step in which other envs were lost."""
        self.blocks[block].restore(frame)
        return self.blocks[block].take_leftovers()

    def rollout(self, block: int, frame: int, steps: int, group: int, last: int) -> RolledOut:
        """Act for the envs of a block, so many steps on from a frame; they are at what lies in
        the frame ``last``."""
        assert self._acting is not None
        rows = self._indices(block)
        envs = slice(self.first + rows.start, self.first + rows.stop)
        again = block in self._new

        def take() -> list[tuple[int, int, Any]]:
            return plain(self.blocks[block].take_leftovers())

        report = self._acting.roll_out(
            self.blocks[block], take, envs, group, frame, steps, last=last, again=again
        )
        if report.restored:  # or else in the next rollout: this one was complete
            self._new.discard(block)
        return report

    def act(self, block: int, group: int, errand: Errand) -> RolledOut:  # noqa: ARG002
        """Act for the envs of all blocks, on and on."""
        assert self._acting is not None
        again, self._new = bool(self._new), set()
        return self._acting.act_on(self._crew, self._everyone, group, errand, again=again)

    def show(self, block: int, group: int, show: Show) -> RolledOut:  # noqa: ARG002
        """Episodes of the policy in the only env, on and on."""
        assert self._acting is not None
        again, self._new = bool(self._new), set()
        env = self.envs[0]
        return self._acting.show(self._crew, self._everyone, env, show, again=again)

    @property
    def _crew(self) -> Crew:
        def taking(block: _core.EnvBlock) -> Callable[[], list[tuple[int, int, Any]]]:
            return lambda: plain(block.take_leftovers())

        return [(block, taking(block)) for block in self.blocks]

    @property
    def _everyone(self) -> slice:
        return slice(self.first, self.first + len(self.envs))

    def fail(self, block: int, lost: str) -> None:  # noqa: ARG002
        """Instead of what other envs were asked for when they were lost."""
        raise WorkerLostError(lost)

    # -- notes: each is about the worker, and has no answer ----------------------------------------

    def add_columns(self, block: int, columns: Sequence[Column]) -> None:  # noqa: ARG002
        """Where infos have a place from now on."""
        new = [column for column in columns if column.mask not in self._known]
        self._known.update(column.mask for column in new)
        add_columns(self._infos, self.frames, new)

    def replace(self, block: int, seeds: Sequence[int]) -> None:  # noqa: ARG002
        """These envs take the place of lost ones; seeds of their next resets."""
        self._seeds = seeds
        for at in range(len(self.sizes)):
            self.blocks[at].replace([seeds[i] for i in self._indices(at)])
            self._new.add(at)

    def act_with(self, block: int, role: Role) -> None:  # noqa: ARG002
        """The policy of rollouts from now on."""
        again = self._seeds if self._acting is None and self._new else ()
        self._acting = Alone(role, self.frames, self.segment, self._acting, again=again)

    def set_options(self, block: int, options: dict[int, tuple[Any, int]]) -> None:  # noqa: ARG002
        """What envs are reset with from their next reset on, and its version."""
        for at in range(len(self.sizes)):
            for place, i in enumerate(self._indices(at)):
                if self.first + i in options:
                    self.blocks[at].set_options(place, *options[self.first + i])

    def close(self) -> None:
        """Close the envs, each whatever the others raise; the first exception is raised again."""
        raised: Raised | None = None
        for i, env in enumerate(self.envs):
            try:
                env.close()
            except KeyboardInterrupt:
                raise
            except BaseException as error:
                if raised is None:
                    raised = Raised(self.first + i, "close()")
                    raised.__cause__ = error
        self.envs = []
        if raised is not None:
            raise raised

    @contextlib.contextmanager
    def _at(self, i: int, doing: str) -> Iterator[None]:
        """One env is at work."""
        self._meter.at(self.first + i)
        try:
            yield
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            raise Raised(self.first + i, doing) from error
        finally:
            self._meter.idle()

    def _indices(self, block: int) -> range:
        at = sum(self.sizes[:block])
        return range(at, at + self.sizes[block])


def call(env: gym.Env[Any, Any], name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A method of an env, or an attribute that is none."""
    attribute = env.get_wrapper_attr(name)
    return attribute(*args, **kwargs) if callable(attribute) else attribute


def make_host(
    specs: bytes,
    env_fns: Sequence[Callable[[], gym.Env[Any, Any]]],
    first: int,
    sizes: Sequence[int],
    init: Callable[[], Any] | None = None,
) -> EnvHost:
    """In the worker: run the user's ``init``, register what the parent has, make the envs."""
    if init is not None:
        try:
            init()
        except Exception as error:
            raise Raised(None, "worker_init()") from error
    if specs:
        _inherit(cloudpickle.loads(specs))
    return EnvHost(env_fns, first, sizes)


def _expect_env(env: Any, number: int) -> None:
    """What is not derived from ``gymnasium.Env`` may do, if it looks like one."""
    methods = all(callable(getattr(env, name, None)) for name in ("reset", "step"))
    if isinstance(env, type) or not methods:
        got = f"the class {env.__name__}" if isinstance(env, type) else type(env).__name__
        raise TypeError(f"the function of env {number} returned {got}, expected a gymnasium.Env")
    for name in ("observation_space", "action_space"):
        space = getattr(env, name, None)
        if not isinstance(space, gym.Space):
            raise TypeError(
                f"the function of env {number} returned {type(env).__name__} whose {name} is "
                f"{type(space).__name__}, expected a gymnasium.Space"
            )


class _Registry:
    """gymnasium's logger, as its registry uses it in a worker.

    A module that registers envs is imported here after the parent's specs of them have entered the
    registry: gymnasium alone would not warn of that.
    """

    def __init__(self, ids: set[str]) -> None:
        self._inherited = {f"Overriding environment {one} already in registry.": one for one in ids}

    def __getattr__(self, name: str) -> Any:
        return getattr(gym.logger, name)

    def warn(self, message: str, *args: Any, **kwargs: Any) -> None:
        """Warn, unless it is the first time that an inherited spec is replaced."""
        if self._inherited.pop(message, None) is None:
            gym.logger.warn(message, *args, **kwargs)


def _inherit(specs: Sequence[Any]) -> None:
    new = [spec for spec in specs if gym.registry.get(spec.id) != spec]
    gym.registry.update({spec.id: spec for spec in new})
    registration.logger = _Registry({spec.id for spec in new})  # type: ignore[assignment, attr-defined]


def registered() -> bytes:
    """The envs that were registered by others than gymnasium, for ``make_host``."""
    specs = [
        spec
        for spec in gym.registry.values()
        if not (
            isinstance(spec.entry_point, str) and spec.entry_point.startswith("gymnasium.envs.")
        )
    ]
    if not specs:
        return b""
    try:
        return dumps_by_value(specs)
    except Exception:
        sendable = []
        for spec in specs:
            with contextlib.suppress(Exception):
                dumps_by_value(spec)
                sendable.append(spec)
        return dumps_by_value(sendable)
