"""Calling a policy, and checking its outputs."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from pysampler._common.torch import (
    drawing_from,
    is_distribution,
    is_module,
    is_tensor,
    loaded_torch,
)
from pysampler._frames.spec import Field, leaves
from pysampler._policies.device import PolicyDevice, device_of, policy_device
from pysampler._policies.signatures import (
    GENERATORS,
    PREVIOUS_ACTIONS,
    PREVIOUS_REWARDS,
    STATE,
    PolicySignature,
    signature_of,
)
from pysampler._policies.trees import batch_from, leaves_in, mapped, structure_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy.typing as npt

    from pysampler._frames.spec import Spec

    Arrays = Sequence[npt.NDArray[Any]]
    # Envs, and the frames with their results: one frame for all, or an array with one for each.
    Rows = slice | npt.NDArray[np.int64]
    At = int | npt.NDArray[np.int64]
    # The actions leaf by leaf, the extras by name, and the new state as a tree or None.
    Outputs = tuple[list[npt.NDArray[Any]], dict[str, npt.NDArray[Any]], Any]

__all__ = ["PolicyCaller", "PolicyOutputs", "as_arrays"]


@dataclass(frozen=True)
class PolicyOutputs:
    """The fields of a policy's outputs: determined by its first call, then fixed."""

    actions: tuple[np.dtype[Any], ...]
    extras: tuple[tuple[str, Field], ...]
    state: tuple[Any, tuple[Field, ...]] | None  # its structure, and leaves
    # Further inputs of the policy: leaves of the previous actions, previous rewards.
    previous: tuple[tuple[str, Field], ...] = ()

    @property
    def recorded(self) -> tuple[tuple[str, Field], ...]:
        """The fields recorded for each step in addition to the actions, by name."""
        return *self.extras, *self.previous

    @property
    def fields(self) -> tuple[Field, ...]:
        """The fields of the frames' extras: the recorded fields, then the policy's state."""
        return (*(field for _, field in self.recorded), *(self.state[1] if self.state else ()))


class PolicyCaller:
    """Calls a policy with arrays, and returns checked arrays.

    Args:
        policy: A callable or a torch module.
        spec: The spaces of the envs.
        settings: Keyword arguments of the policy: arrays with a row for each env.
        known: Names of further keyword arguments that a subclass passes.
        device: The device to act on; None: the device of a module's parameters, if it is one.
        chunk: The number of steps that the policy acts for at once; None: one, without a dimension.

    Attributes:
        policy: The policy.
        spec: The spaces of the envs.
        chunk: The argument of that name.
        torch_generator: The generator that distributions draw from; None: torch's global one.
    """

    _positional: tuple[str, ...] = ("observations",)  # the policy's positional arguments

    def __init__(
        self,
        policy: Any,
        spec: Spec,
        settings: Mapping[str, npt.NDArray[Any]] | None = None,
        known: Sequence[str] = (),
        device: Any = None,
        chunk: int | None = None,
    ) -> None:
        self._settings = dict(settings or {})
        self._signature = signature_of(policy, self._positional, (*self._settings, *known))
        if chunk is not None and self._signature.previous:
            raise ValueError(
                f"cannot act: the policy takes {min(self._signature.previous)}, which chunks of "
                "steps do not have, expected chunk=None"
            )
        self.policy = policy
        self.spec = spec
        self.chunk = chunk
        self._is_module = is_module(policy)
        self._given_device = device
        self.generators: list[np.random.Generator] = []
        self.torch_generator: Any = None
        self._device: PolicyDevice | None = None
        self.find_device()

    def find_device(self) -> None:
        """Find the device of a module, which may be moved between rollouts."""
        wanted = self._given_device
        own = device_of(self.policy) if self._is_module else None
        if wanted is None and not self._is_module:
            return
        given = own if wanted is None else wanted
        self._device = policy_device("cpu" if given is None else given, self._device)
        device = self._device.device
        if own is not None and own != device:
            raise ValueError(
                f"cannot act: the policy is on {own}, expected {device}: policy.to({str(device)!r})"
            )

    @property
    def device(self) -> Any:
        """The torch device that the policy acts on; None for a policy of arrays."""
        return None if self._device is None else self._device.device

    @property
    def on_gpu(self) -> bool:
        """Whether the policy acts on a GPU."""
        return self._device is not None and self._device.is_gpu

    def follow_weights(self) -> None:
        """Make further calls wait for work that this thread has queued, such as weight updates."""
        if self._device is not None:
            self._device.follow()

    def on_arrays(self) -> Callable[[Any], Any] | None:
        """Return the policy as a function of arrays of observations.

        Return None if the policy takes further arguments or acts on a GPU.
        """
        policy, device = self.policy, self._device
        if self._settings or self._signature != PolicySignature(state=None, generators=False):
            return None
        if device is None:
            return policy

        def on_tensors(observations: Any) -> Any:
            with device.acting():
                return self._drawn(policy(mapped(device.tensor, observations)))

        return on_tensors if device.device.type == "cpu" else None

    @property
    def uses_generators(self) -> bool:
        """Whether the policy takes its random numbers from the envs' generators."""
        return self._signature.generators

    def seed_generators(self, entropy: Any, envs: int) -> None:
        """Give each env a generator, seeded with this entropy and the index of the env."""
        if self.uses_generators:
            seeds = (np.random.SeedSequence(entropy, spawn_key=(env,)) for env in range(envs))
            self.generators = list(map(np.random.default_rng, seeds))

    def seed_generator(self, env: int, entropy: Any) -> None:
        """Give one env a new generator, seeded with this entropy."""
        if self.uses_generators:
            self.generators[env] = np.random.default_rng(np.random.SeedSequence(entropy))

    def initial_state(self, count: int) -> Any:
        """Return the state of ``count`` envs that begin an episode; None if the policy has none."""
        initial = getattr(self.policy, "initial_state", None)
        if initial is None:
            return None
        return mapped(lambda part: _rows("initial_state", part, (count,)), initial(count))

    @property
    def uses_previous(self) -> bool:
        """Whether the policy takes the previous actions or rewards."""
        return bool(self._signature.previous)

    def __call__(
        self, observations: Arrays, state: Any, envs: Rows, previous: Arrays | None = None
    ) -> Outputs:
        """Return actions, extras and new state for observations of these envs.

        Args:
            observations: The envs' observations, leaf by leaf.
            state: The envs' states.
            envs: The envs.
            previous: The leaves of the envs' previous actions, and their rewards; None for zeros.
                Ignored if the policy takes neither.
        """
        count = len(observations[0])
        if not self.on_gpu:
            observations = [one if one.flags.owndata else one.copy() for one in observations]
        if previous is None and self.uses_previous:
            previous = [np.zeros((count, *f.shape), f.dtype) for _, f in self._previous_fields]
        device = self._device
        if device is None:
            batch = self._batch(observations)
            returned = self._call(batch, state, envs, self._previous(previous))
        else:
            with device.acting():
                batch = self._batch(list(map(device.tensor, observations)))
                before = None if state is None else mapped(device.tensor, state)
                if previous is not None:
                    previous = list(map(device.tensor, previous))
                returned = self._call(batch, before, envs, self._previous(previous))
                returned = device.fetched(self._drawn(returned))
        return self.checked(returned, count)

    @property
    def _previous_fields(self) -> list[tuple[str, Field]]:
        """The recorded fields of the previous actions, leaf by leaf, and rewards."""
        actions = self.spec.actions
        names = [PREVIOUS_ACTIONS + str(i) * (len(actions) > 1) for i in range(len(actions))]
        fields = list(zip(names, actions, strict=True))
        return [*fields, (PREVIOUS_REWARDS, Field(self.spec.rewards, np.dtype(np.float32)))]

    def _previous(self, leaves: Sequence[Any] | None) -> dict[str, Any]:
        """Return those of the previous actions and rewards that the policy takes, by name."""
        if leaves is None:
            return {}
        actions = batch_from(self.spec.action_tree, leaves.__getitem__)
        values = {PREVIOUS_ACTIONS: actions, PREVIOUS_REWARDS: leaves[-1]}
        return {name: values[name] for name in self._signature.previous}

    def _batch(self, observations: Sequence[Any]) -> Any:
        return batch_from(self.spec.observation_tree, observations.__getitem__)

    def _call(self, batch: Any, state: Any, envs: Rows, named: dict[str, Any]) -> Any:
        """Call the policy itself; ``named`` are keyword arguments that not all callers pass."""
        return self._call_with((batch,), state, envs, **named)

    def _call_with(self, positional: tuple[Any, ...], state: Any, envs: Rows, **named: Any) -> Any:
        for name, array in self._settings.items():
            named[name] = self._setting(array[envs])
        if self._signature.generators:
            rows = np.arange(len(self.generators))[envs]
            named[GENERATORS] = [self.generators[row] for row in rows]
        if self._signature.state == "by name":
            named[STATE] = state
        elif self._signature.state is not None:
            positional = (*positional, state)
        try:
            return self.policy(*positional, **named)
        except (TypeError, ValueError) as error:
            error.add_note(
                "the policy gets the observations of several envs, and returns an action for each"
            )
            raise

    def _setting(self, rows: npt.NDArray[Any]) -> Any:
        rows = rows.copy()  # a copy, which the policy may change
        return rows if self._device is None else self._device.tensor(rows)

    def _drawn(self, returned: Any) -> Any:
        """Return a policy's outputs; if actions are a distribution, draw from it.

        A Bernoulli distribution draws floats; they become whole numbers if those of the envs are.
        """
        extras: Mapping[Any, Any] = {}
        distribution = returned
        if isinstance(returned, tuple) and len(returned) == 2 and isinstance(returned[1], Mapping):
            distribution, extras = returned
        if not is_distribution(distribution):
            return returned
        with drawing_from(self.torch_generator):
            actions = distribution.sample()
        fields = self.spec.actions
        log_probs = distribution.log_prob(actions)
        if len(fields) == 1 and fields[0].dtype.kind in "biu" and actions.is_floating_point():
            actions = actions.to(getattr(loaded_torch(), str(fields[0].dtype)))
        own = 1 + (self.chunk is not None)  # dimensions of rows, and of the steps of a chunk
        if log_probs.ndim > own:
            log_probs = log_probs.flatten(own).sum(own)
        return actions, {"log_probs": log_probs, **extras}

    def checked(self, returned: Any, count: int) -> Outputs:
        """Return a policy's outputs for ``count`` envs as arrays, or raise if they are invalid."""
        returned = self._drawn(returned)
        actions = returned
        extras: Mapping[Any, Any] = {}
        if isinstance(returned, tuple) and len(returned) == 2 and isinstance(returned[1], Mapping):
            actions, extras = returned
        elif self.spec.action_tree[0] == "tuple":
            raise TypeError(
                "cannot act: actions are tuples, so the policy must return (actions, extras); "
                "extras may be an empty dict"
            )
        elif isinstance(returned, tuple):
            got = ", ".join(type(one).__name__ for one in returned)
            raise TypeError(
                f"cannot act: the policy returned ({got}), expected actions, or (actions, extras) "
                "with a dict of further outputs, such as {'values': values}"
            )
        if wrong := [name for name in extras if not isinstance(name, str)]:
            raise TypeError(
                f"cannot act: the policy's extras have the key {wrong[0]!r}, expected str"
            )
        if STATE in extras and self._signature.state is None:
            raise TypeError(
                "cannot act: the policy returns a state but does not take one, expected a "
                "parameter named 'state' or the attribute recurrent = True"
            )
        try:
            by_leaf = list(leaves(self.spec.action_tree, actions))
        except (TypeError, ValueError) as error:
            raise type(error)(f"cannot act: the policy's actions: {error}") from None
        parts = zip(by_leaf, self.spec.actions, strict=True)
        rows = (count,) if self.chunk is None else (count, self.chunk)
        checked = [_checked_actions(value, place, field, rows) for (place, value), field in parts]
        arrays = {name: _rows(name, value, rows) for name, value in extras.items() if name != STATE}
        state = None
        if STATE in extras:
            state = mapped(lambda part: _rows(STATE, part, (count,)), extras[STATE])
        return checked, arrays, state

    def _of_step(self, array: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return the rows of one step of an output."""
        return array if self.chunk is None else array[:, 0]

    def describe(
        self, actions: Arrays, extras: Mapping[str, npt.NDArray[Any]], state: Any
    ) -> PolicyOutputs:
        """Return the fields of the policy's outputs, given those of its first call."""
        if state is None and self._signature.requires_state:
            raise TypeError(
                "cannot act: the policy takes a state but does not return one, expected (actions, "
                "extras) with the new state in extras['state']"
            )
        if state is None:
            state = self.initial_state(1)
        described = None
        if state is not None:
            structure = structure_of(state)
            described = structure, tuple(map(_field, leaves_in(structure, state)))
        previous = tuple(self._previous_fields) if self.uses_previous else ()
        if taken := sorted(extras.keys() & dict(previous)):
            raise ValueError(
                f"cannot act: the policy's extra {taken[0]!r} has the name of one of its "
                "arguments; rename it"
            )
        return PolicyOutputs(
            tuple(array.dtype for array in actions),
            tuple((name, _field(self._of_step(array))) for name, array in extras.items()),
            described,
            previous,
        )


def as_arrays(outputs: Any) -> Any:
    """Return a policy's outputs with tensors on the CPU as arrays that share their memory."""
    if type(outputs) is tuple and len(outputs) == 2 and type(outputs[1]) is dict:
        actions, extras = outputs
        return _shared(actions), {name: _shared(value) for name, value in extras.items()}
    return _shared(outputs)


def _shared(value: Any) -> Any:
    if is_tensor(value):
        # Not on the CPU; bfloat16; of a library other than torch.
        with contextlib.suppress(RuntimeError, TypeError, AttributeError):
            return value.detach().contiguous().numpy()
    return value


def _field(array: npt.NDArray[Any]) -> Field:
    return Field(array.shape[1:], array.dtype)


def _rows(name: str, value: Any, rows: tuple[int, ...]) -> npt.NDArray[Any]:
    """Return one output as an array with a row for each env (and step), or raise ValueError."""
    array = _as_array(value)
    if array.shape[: len(rows)] != rows:
        and_steps = "".join(f" and {steps} steps" for steps in rows[1:])
        raise ValueError(
            f"cannot act: the policy's {name!r} has shape {array.shape}, expected a row for each "
            f"of {rows[0]} envs{and_steps}"
        )
    return array


def _checked_actions(
    value: Any, place: str, field: Field, rows: tuple[int, ...]
) -> npt.NDArray[Any]:
    """Return a leaf of the actions as an array; raise unless it fits its space."""
    array = _as_array(value)
    at = f" at {place}" if place else ""
    count = rows[0]
    if array.shape != (*rows, *field.shape):
        steps = "".join(f" with {chunk} actions (chunk={chunk})" for chunk in rows[1:])
        raise ValueError(
            f"cannot act: the policy returned actions of shape {array.shape}{at}, "
            f"expected {(*rows, *field.shape)}: a row for each env{steps}"
        )
    if array.dtype == bool and field.dtype.itemsize > 1:  # a byte, as of MultiBinary, holds it
        raise TypeError(
            f"cannot act: the policy returned actions of dtype bool{at}, expected {field.dtype}; "
            f"use .astype(np.{field.dtype})"
        )
    if array.dtype != field.dtype and not (
        array.dtype.itemsize <= max(8, field.dtype.itemsize)
        and np.can_cast(array.dtype, field.dtype, "same_kind")
    ):
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


def _as_array(value: Any) -> npt.NDArray[Any]:
    """Return an output as an array of numbers; bfloat16 becomes float32."""
    if isinstance(value, np.ma.MaskedArray):
        raise TypeError(
            "cannot act: the policy returned a masked array, expected one without a mask"
        )
    if is_tensor(value):
        value = value.detach().cpu()
        array = (value.float() if str(value.dtype) == "torch.bfloat16" else value).numpy()
    else:
        try:
            array = np.asarray(value)
        except Exception as error:
            raise TypeError(
                f"cannot act: the policy returned a {type(value).__name__}, which NumPy cannot "
                "convert to an array"
            ) from error
    if array.dtype.kind not in "biufc":
        raise TypeError(f"cannot act: the policy returned {value!r}, expected arrays of numbers")
    return np.asarray(array)
