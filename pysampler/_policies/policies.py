"""Policies: what acts. Any callable, or a torch module, asked with a batch of observations.

``policy(observations)`` returns actions, or (actions, extras): a dict of arrays with a row for each
env. A ``torch.nn.Module`` is called with tensors on its device, without gradients, anything else
with NumPy arrays. Both are copies: a policy may write to them. Other parameters are left alone if
they have a default.

A recurrent policy has a parameter named ``state``, or an attribute ``recurrent = True`` and takes
its state second. ``extras["state"]`` is what it gets back with the next call, row by row; zeros, or
what its ``initial_state(count)`` says, where an episode begins (None when it is asked for the very
first time, without such a method).

A policy with a parameter named ``generators`` is called with a list of ``np.random.Generator``, one
for each row. Each env has its own, which depends on the seed and on the env alone: such a policy
makes the same rollouts wherever it is, with any number of workers and groups. Of other random
policies, workers have random numbers of their own: the global generators of Python, NumPy and torch
are seeded for each, and so are generators that a copy of a policy has, by its method
``seed(number)`` if there is one.

Where a policy is copied, for a worker or to act while you learn, that is: of a module, what is in
its ``state_dict()``, before each rollout; of anything else all of it, whenever that has changed,
and of a function what it refers to in its own module. What other modules hold is not copied: a
worker has them as they were when it started.
"""

from __future__ import annotations

import copy
import functools
import inspect
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from pysampler._frames.spec import Field, build, leaves

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    import numpy.typing as npt

    from pysampler._frames.frames import Frames
    from pysampler._frames.spec import Spec

    Arrays = Sequence[npt.NDArray[Any]]
    # Which envs, and the frame each of them is at: all at one, or an array with that of each.
    Rows = slice | npt.NDArray[np.int64]
    At = int | npt.NDArray[np.int64]

__all__ = [
    "Acting",
    "Actor",
    "Said",
    "copy_weights",
    "has_weights",
    "is_module",
    "load_weights",
    "needs_torch",
    "portable",
    "rebuilt",
    "weights_of",
]

STATE = "state"
GENERATORS = "generators"
_VARIABLE = inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD


@dataclass(frozen=True)
class Said:
    """What a policy says, as fields: found out once, the same ever after."""

    actions: tuple[np.dtype[Any], ...]  # of the leaves
    extras: tuple[tuple[str, Field], ...]
    state: tuple[Any, tuple[Field, ...]] | None  # its structure, and leaves

    @property
    def fields(self) -> tuple[Field, ...]:
        """Of the frames' extras: those of the policy, then its state."""
        return (*(field for _, field in self.extras), *(self.state[1] if self.state else ()))


@dataclass(frozen=True)
class _Call:
    """What a policy is called with beside what each of its kind is."""

    state: Literal["by name", "by position"] | None
    generators: bool
    needs_state: bool = False  # its state has no default


def _call_of(policy: Any, always: Sequence[str], settings: Iterable[str]) -> _Call:
    """Find out what to call a policy with: ``always`` by position, ``settings`` by name."""
    recurrent = getattr(policy, "recurrent", None)  # a module may have a layer of that name
    recurrent = bool(recurrent) if isinstance(recurrent, (bool, np.bool_)) else None
    by_position: Literal["by position"] | None = "by position" if recurrent else None
    try:
        function = getattr(policy, "_orig_mod", policy).forward if is_module(policy) else policy
        parameters = inspect.signature(function).parameters  # of a compiled one, what it was
    except (TypeError, ValueError):  # compiled, or written in C
        return _Call(by_position, generators=False)
    kinds = inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD
    positional = [name for name, one in parameters.items() if one.kind in kinds]
    # Of `def policy(observations, state, /)`: it cannot be given by name.
    second = parameters.get(STATE)
    if recurrent is None and second is not None and second.kind is kinds[0]:
        recurrent = positional.index(STATE) == len(always)
        by_position = "by position" if recurrent else None
    given = positional[: len(always) + bool(recurrent)]
    bound = policy.keywords if isinstance(policy, functools.partial) else ()
    rest = {n: one for n, one in parameters.items() if n not in given and n not in bound}
    variable = [one.kind for one in rest.values() if one.kind in _VARIABLE]
    known = {STATE, GENERATORS, *settings}
    if (len(positional) < len(always) and inspect.Parameter.VAR_POSITIONAL not in variable) or any(
        one.default is one.empty
        and one.kind not in _VARIABLE
        and (name not in known or one.kind is kinds[0])
        for name, one in rest.items()
    ):
        raise TypeError(
            f"cannot act: the policy takes ({', '.join(parameters)}), expected "
            f"({', '.join(always)}) and parameters with a default; with one named 'state', or the "
            "attribute recurrent = True, if it is recurrent; `settings` of actors are given by name"
        )
    named = STATE in rest and recurrent is not False
    state = parameters.get(positional[len(always)] if by_position else STATE)
    needs = bool(named or recurrent) and (state is None or state.default is state.empty)
    return _Call("by name" if named else by_position, GENERATORS in rest, needs)


class Actor:
    """A policy with arrays in and checked arrays out.

    ``settings`` it is called with by name: arrays with a row for each env.
    """

    _always: tuple[str, ...] = ("observations",)  # what a policy is called with by position

    def __init__(
        self, policy: Any, spec: Spec, settings: Mapping[str, npt.NDArray[Any]] | None = None
    ) -> None:
        if not callable(policy):
            raise TypeError(
                f"cannot act: the policy is a {type(policy).__name__}, expected a function of "
                "observations, or a torch module"
            )
        self.policy = policy
        self._spec = spec
        self._module = is_module(policy)
        self._settings = dict(settings or {})
        self._call = _call_of(policy, self._always, self._settings)
        self._generators: list[np.random.Generator] = []
        self._plain_observations = spec.observation_tree[0] == "leaf"
        self._plain_actions = spec.action_tree[0] == "leaf"
        self.settle()
        self._pairs = spec.action_tree[0] == "tuple"  # an action that is a tuple itself

    def settle(self) -> None:
        """Look where the module is: between rollouts it may have been moved."""
        self._device = None
        if self._module:
            device = next((p.device for p in self.policy.parameters()), None)
            self._device = None if device is None or device.type == "cpu" else device

    @property
    def draws(self) -> bool:
        """Whether the policy takes its random numbers from generators of the envs."""
        return self._call.generators

    def draw_with(self, entropy: Any, envs: int) -> None:
        """Give each env a generator of its own, of this entropy and the index of the env."""
        if self.draws:
            seeds = (np.random.SeedSequence(entropy, spawn_key=(env,)) for env in range(envs))
            self._generators = list(map(np.random.default_rng, seeds))

    def draw_on(self, other: Actor) -> None:
        """Go on with the generators of another one."""
        self._generators = other._generators

    def initial_state(self, count: int) -> Any:
        """Of so many envs at the beginning of their episodes; None if the policy does not say."""
        initial = getattr(self.policy, "initial_state", None)
        if initial is None:
            return None
        return _mapped(lambda part: _row_each("initial_state", part, count), initial(count))

    def __call__(
        self, observations: Arrays, state: Any, envs: Rows
    ) -> tuple[list[npt.NDArray[Any]], dict[str, npt.NDArray[Any]], Any]:
        """Actions (leaf by leaf), extras and new state for a batch of these envs."""
        return self.checked(self._ask(observations, state, envs), len(observations[0]))

    def checked(
        self, said: Any, count: int
    ) -> tuple[list[npt.NDArray[Any]], dict[str, npt.NDArray[Any]], Any]:
        """What a policy said about so many envs, taken apart."""
        extras: Mapping[Any, Any] = {}
        if isinstance(said, tuple) and len(said) == 2 and isinstance(said[1], Mapping):
            said, extras = said
        elif self._pairs:
            raise TypeError(
                "cannot act: actions are tuples here, so that the policy has to return "
                "(actions, extras); extras may be an empty dict"
            )
        elif isinstance(said, tuple):
            of = ", ".join(type(one).__name__ for one in said)
            raise TypeError(
                f"cannot act: the policy returned ({of}), expected actions, or (actions, extras) "
                "with a dict of what it says beside them, such as {'values': values}"
            )
        if odd := [name for name in extras if not isinstance(name, str)]:
            raise TypeError(
                f"cannot act: the policy's extras have the key {odd[0]!r}, expected str"
            )
        actions = self._checked(said, count)
        arrays = {}
        new = None
        for name, value in extras.items():
            if name == STATE and self._call.state is None:
                raise TypeError(
                    "cannot act: the policy says its state and takes none, expected a parameter "
                    "named 'state' or the attribute recurrent = True"
                )
            if name == STATE:
                new = _mapped(lambda part: _row_each(STATE, part, count), value)
            else:
                arrays[name] = _row_each(name, value, count)
        return actions, arrays, new

    def _ask(self, observations: Arrays, state: Any, envs: Rows) -> Any:
        if self._device is None:
            observations = list(map(_own, observations))
        if not self._module:
            return self.call(self._batch(observations), state, envs)
        import torch  # noqa: PLC0415 - only where there is a module of it

        def tensor(array: npt.NDArray[Any]) -> Any:
            one = torch.from_numpy(array)
            return one if self._device is None else one.to(self._device)

        with torch.no_grad():
            before = None if state is None else _mapped(tensor, state)
            return self.call(self._batch(list(map(tensor, observations))), before, envs)

    def _batch(self, observations: Sequence[Any]) -> Any:
        if self._plain_observations:
            return observations[0]
        return build(self._spec.observation_tree, lambda i: observations[i], no_odd)

    def call(self, batch: Any, state: Any, envs: Rows) -> Any:
        """Ask the policy itself."""
        return self._called((batch,), state, envs)

    def _called(self, always: tuple[Any, ...], state: Any, envs: Rows) -> Any:
        named = {name: self._setting(array[envs]) for name, array in self._settings.items()}
        if self._call.generators:
            rows = np.arange(len(self._generators))[envs]
            named[GENERATORS] = [self._generators[row] for row in rows]
        if self._call.state == "by name":
            named[STATE] = state
        elif self._call.state is not None:
            always = (*always, state)
        return self.policy(*always, **named)

    def _setting(self, rows: npt.NDArray[Any]) -> Any:
        rows = _own(rows)  # which the policy may change
        if not self._module:
            return rows
        import torch  # noqa: PLC0415 - it is there

        one = torch.from_numpy(rows)
        return one if self._device is None else one.to(self._device)

    def _checked(self, said: Any, count: int) -> list[npt.NDArray[Any]]:
        """Actions as arrays of the right shape, without NaN."""
        fields = self._spec.actions
        if self._plain_actions:
            return [_checked_leaf(said, "", fields[0], count)]
        parts = leaves(self._spec.action_tree, said)
        return [
            _checked_leaf(value, place, field, count)
            for (place, value), field in zip(parts, fields, strict=True)
        ]

    def describe(self, actions: Arrays, extras: Mapping[str, npt.NDArray[Any]], state: Any) -> Said:
        """What it said, as fields."""
        structure = None
        if state is None and self._call.needs_state:
            raise TypeError(
                "cannot act: the policy takes a state and returns none, expected (actions, extras) "
                "with the new one in extras['state']"
            )
        if state is None:
            state = self.initial_state(1)
        if state is not None:
            tree = _structure(state)
            structure = (tree, tuple(map(_field, _flat(state, tree))))
        return Said(
            tuple(array.dtype for array in actions),
            tuple((name, _field(array)) for name, array in extras.items()),
            structure,
        )


def _row_each(name: str, value: Any, count: int) -> npt.NDArray[Any]:
    """Return what the policy said as an array with a row for each env, or raise ValueError."""
    array = _as_array(value)
    if array.shape[:1] != (count,):
        raise ValueError(
            f"cannot act: the policy's {name!r} has shape {array.shape}, expected a row for each "
            f"of {count} envs"
        )
    return array


def _expect_same(name: str, array: npt.NDArray[Any], to: npt.NDArray[Any]) -> None:
    """The policy says what it said at first: of this shape, and no wider numbers."""
    if array.shape[1:] != to.shape[2:] or (
        array.dtype != to.dtype and not np.can_cast(array.dtype, to.dtype, "safe")
    ):
        raise ValueError(
            f"cannot act: what the policy said has changed: {name} of {array.dtype} "
            f"{array.shape[1:]} a row, before {to.dtype} {to.shape[2:]}"
        )


def _checked_leaf(value: Any, place: str, field: Field, count: int) -> npt.NDArray[Any]:
    array = _as_array(value)
    at = f" at {place}" if place else ""
    if array.shape != (count, *field.shape):
        raise ValueError(
            f"cannot act: the policy returned actions of shape {array.shape}{at}, "
            f"expected {(count, *field.shape)}"
        )
    if array.dtype != field.dtype and not _castable(array.dtype, field.dtype):
        raise TypeError(
            f"cannot act: the policy returned actions of dtype {array.dtype}{at}, "
            f"expected {field.dtype}"
        )
    if array.dtype.kind == "f" and np.isnan(array).any():
        bad = np.flatnonzero(np.isnan(array).reshape(count, -1).any(axis=1))
        raise ValueError(
            f"cannot act: the policy returned nan for {len(bad)} of {count} envs{at}, the "
            f"first in row {bad[0]}"
        )
    return array


class Acting:
    """A policy at some frames: reads observations where they lie, writes what it says beside them.

    Acting for envs at frame f: observations, state and extras lie in f, actions and the new state
    in f + 1, where the step that they are for writes its results. Nothing is kept anywhere else.
    """

    def __init__(self, actor: Actor, said: Said, frames: Frames) -> None:
        self.actor = actor
        self.said = said
        self._frames = frames
        self.actions = [frames.actions_as(i, dtype) for i, dtype in enumerate(said.actions)]
        frames.action_types[:] = [dtype.num for dtype in said.actions]
        count = len(said.extras)
        self.extras = dict(
            zip((name for name, _ in said.extras), frames.extras[:count], strict=True)
        )
        self._structure = said.state and said.state[0]
        self._state = frames.extras[count:]
        # What goes on from a rollout's last frame to the first of the next.
        self.carried = [*frames.observations, *self._state, frames.options_versions]

    def act(self, at: At, envs: Rows) -> None:
        """For these envs."""
        observations = [leaf[at, envs] for leaf in self._frames.observations]
        state = None
        if self._state:
            state = rebuilt(self._structure, iter([leaf[at, envs].copy() for leaf in self._state]))
        self.write(at, envs, *self.actor(observations, state, envs))

    def write(
        self,
        at: At,
        envs: Rows,
        actions: Arrays,
        extras: Mapping[str, npt.NDArray[Any]],
        state: Any,
    ) -> None:
        """What the policy said for these envs."""
        if extras.keys() != self.extras.keys():
            raise ValueError(
                f"cannot act: the policy said {sorted(extras)} beside its actions, before it was "
                f"{sorted(self.extras)}"
            )
        for name, array in extras.items():
            _expect_same(name, array, self.extras[name])
            self.extras[name][at, envs] = array
        for to, array in zip(self.actions, actions, strict=True):
            _expect_same("actions", array, to)
            to[at + 1, envs] = array
        if self._state:
            new = [leaf[at, envs] for leaf in self._state]
            if state is not None:
                new = _flat(state, self._structure)
            for to, array in zip(self._state, new, strict=True):
                _expect_same(STATE, array, to)
                to[at + 1, envs] = array

    def after(self, at: At, envs: Rows) -> None:
        """These envs have made the step that ends at a frame: episodes may be over."""
        if self._state:
            frames = self._frames
            ended = frames.terminated[at, envs] | frames.truncated[at, envs]
            if ended.any():
                self.forget(at, np.arange(frames.envs)[envs][ended])

    def forget(self, at: At, envs: Rows, initial: Any = None) -> None:
        """They begin new episodes at a frame, in this state or one the policy is asked for."""
        if not self._state:
            return
        rows = np.arange(self._frames.envs)[envs]
        if initial is None:
            initial = self.actor.initial_state(len(rows))
        parts = [0] * len(self._state) if initial is None else _flat(initial, self._structure)
        for leaf, part in zip(self._state, parts, strict=True):
            leaf[at, rows] = part

    def recorded_state(self, frames: slice) -> Any:
        """Which envs were in, in some frames; None if there is none."""
        if not self._state:
            return None
        return rebuilt(self._structure, iter([leaf[frames] for leaf in self._state]))


# -- torch ---------------------------------------------------------------------------------------


def is_module(policy: Any) -> bool:
    """Whether it is one of torch's; without importing that."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(policy, torch.nn.Module)


def needs_torch(policy: Any) -> bool:
    """Return whether unpickling it imports torch: as one of its modules, or with its file."""
    home = getattr(policy, "__module__", None)
    if home == "__main__" or home not in sys.modules:  # pickled by value
        return is_module(policy)
    imported = [one for one in vars(sys.modules[home]).values() if isinstance(one, ModuleType)]
    return is_module(policy) or any(one.__name__.split(".")[0] == "torch" for one in imported)


def get_torch_threads() -> int | None:
    """Return how many threads torch uses on the CPU; None if torch is not imported."""
    torch = sys.modules.get("torch")
    return None if torch is None else int(torch.get_num_threads())


def set_torch_threads(count: int | None) -> None:
    """Set how many threads torch uses, if torch is imported. None changes nothing."""
    if count is not None and (torch := sys.modules.get("torch")) is not None:
        torch.set_num_threads(count)


def has_weights(policy: Any) -> bool:
    """Whether they can travel apart from it: a module, or what has the same two methods."""
    return all(callable(getattr(policy, name, None)) for name in ("state_dict", "load_state_dict"))


def weights_of(policy: Any) -> dict[str, npt.NDArray[Any]]:
    """Parameters and buffers."""
    weights = policy.state_dict()
    if is_module(policy):
        return {name: _array_of(name, value) for name, value in weights.items()}
    return {name: np.asarray(value) for name, value in weights.items()}


def _array_of(name: str, value: Any) -> npt.NDArray[Any]:
    try:
        return np.asarray(value.detach().cpu().numpy())
    except (AttributeError, TypeError) as error:
        raise TypeError(
            f"cannot send weights: {name} is {getattr(value, 'dtype', type(value).__name__)}, "
            "expected tensors of what NumPy has"
        ) from error


def load_weights(policy: Any, weights: Mapping[str, npt.NDArray[Any]]) -> None:
    """Those that ``weights_of`` returned. A module works with these very arrays from now on."""
    if is_module(policy):
        import torch  # noqa: PLC0415 - it is there

        tensors = {name: torch.from_numpy(array) for name, array in weights.items()}
        policy.load_state_dict(tensors, assign=True)
    else:
        policy.load_state_dict(dict(weights))


def copy_weights(module: Any, other: Any) -> None:
    """Give a module the weights of another like it."""
    import torch  # noqa: PLC0415

    with torch.no_grad():
        values = other.state_dict()
        for name, value in module.state_dict().items():
            value.copy_(values[name])


def portable(policy: Any) -> Any:
    """The policy as another process or thread can have it: a module's copy on the CPU."""
    return copy.deepcopy(policy).cpu() if is_module(policy) else policy


# -- trees of arrays: dicts, tuples and lists -----------------------------------------------------


def _mapped(function: Callable[[Any], Any], tree: Any) -> Any:
    if isinstance(tree, Mapping):
        return {key: _mapped(function, child) for key, child in tree.items()}
    if isinstance(tree, (tuple, list)):
        return tuple(_mapped(function, child) for child in tree)
    return function(tree)


def _flat(tree: Any, structure: Any) -> list[npt.NDArray[Any]]:
    """The leaves, in the order of a structure that the tree must have."""
    if isinstance(structure, Mapping):
        if not isinstance(tree, Mapping) or tree.keys() != structure.keys():
            raise ValueError(f"cannot act: a state of {_structure(tree)}, before {structure}")
        return [leaf for key in structure for leaf in _flat(tree[key], structure[key])]
    if isinstance(structure, tuple):
        if not isinstance(tree, tuple) or len(tree) != len(structure):
            raise ValueError(f"cannot act: a state of {_structure(tree)}, before {structure}")
        return [leaf for one, own in zip(tree, structure, strict=True) for leaf in _flat(one, own)]
    if isinstance(tree, (Mapping, tuple)):
        raise ValueError(f"cannot act: a state of {_structure(tree)}, before an array")
    return [tree]


def _structure(tree: Any) -> Any:
    if isinstance(tree, Mapping):
        return {key: _structure(child) for key, child in tree.items()}
    return tuple(map(_structure, tree)) if isinstance(tree, tuple) else None


def rebuilt(structure: Any, parts: Any) -> Any:
    """A tree of this structure, of the next parts."""
    if isinstance(structure, Mapping):
        return {key: rebuilt(child, parts) for key, child in structure.items()}
    if isinstance(structure, tuple):
        return tuple(rebuilt(child, parts) for child in structure)
    return next(parts)


def _field(array: npt.NDArray[Any]) -> Field:
    return Field(array.shape[1:], array.dtype)


def _as_array(value: Any) -> npt.NDArray[Any]:
    if isinstance(value, np.ma.MaskedArray):
        raise TypeError("cannot act: the policy returned a masked array, expected one without")
    if isinstance(value, np.ndarray):
        array = value
    elif hasattr(value, "detach"):
        value = value.detach().cpu()
        array = (value.float() if str(value.dtype) == "torch.bfloat16" else value).numpy()
    else:
        array = _converted(value)
    if array.dtype.kind not in "biufc":
        raise TypeError(f"cannot act: the policy returned {value!r}, expected arrays of numbers")
    return array


def _converted(value: Any) -> npt.NDArray[Any]:
    try:
        return np.asarray(value)
    except Exception as error:
        raise TypeError(
            f"cannot act: the policy returned a {type(value).__name__} that cannot be made an array"
        ) from error


def _castable(dtype: np.dtype[Any], to: np.dtype[Any]) -> bool:
    return dtype.itemsize <= max(8, to.itemsize) and np.can_cast(dtype, to, "same_kind")


def _own(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    return array if array.flags.owndata else array.copy()


def no_odd(_: int) -> Any:
    """What is in no frame: such spaces are refused before."""
    raise AssertionError("refused before")
