"""Steppers: what a ``_core.BatchBlock`` steps. They know no frames, autoreset modes or losses.

The block calls ``prepare``, ``begin`` and ``advance``, writes the results into the frames, and does
the rest of gymnasium's contract.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np

from pysampler import _core
from pysampler._vector.env_calls import reward_shape, reward_space_of
from pysampler.envs.batch import Generators

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    Array = npt.NDArray[Any]
    # Results of a step: observations, rewards, terminated, infos. Of a reset: observations, infos.
    Advanced = tuple[Array, Any, Any, dict[str, Array]]
    Begun = tuple[Array, dict[str, Array]]

__all__ = ["BatchEnvStepper", "Stepper"]

# Classes of this module step in C++. Others that derive from them may override methods. The module
# is not imported here: most workers do without it.
_CLASSIC = "pysampler.envs.classic"
_LOW = (1 << 64) - 1
# Bytes of a seed in a state.
_SEED = 32
# Bytes of the name of an env in a state.
_NAME = 32


class Stepper:
    """Envs that step together.

    Args:
        count: The number of envs.
        action_shape: The shape of an action.

    Attributes:
        errors: Errors of single envs, as (env, exception), for the block to take after each call.
        rngs: The generator of each env; None before its first reset.
        rng_seeds: The seed of each generator.
    """

    # Whether a reset undoes any effect of stepping an env whose episode has ended. Then all envs
    # step together even if some must be reset.
    steps_ended = False
    # Whether the block asks ``takes`` and ``takes_actions`` before a call.
    checks = False
    # What steps the envs without Python; None: the methods of this object.
    kernel: _core.Classic | None = None

    def __init__(self, count: int, action_shape: tuple[int, ...]) -> None:
        self.count = count
        self._action_shape = action_shape
        self.errors: list[tuple[int, Exception]] = []
        self.rngs: list[Any] = [None] * count
        self.rng_seeds: list[int | None] = [None] * count

    # -- the envs --------------------------------------------------------------------------------

    def advance(self, ids: Array | None, actions: Array, dropped: Array | None) -> Advanced:
        """Step some envs, or all.

        Args:
            ids: The envs; None: all.
            actions: Their actions.
            dropped: A mask of envs whose results the block drops; their actions may be invalid.
        """
        raise NotImplementedError

    def begin(self, ids: Array) -> Begun:
        """Begin episodes of some envs."""
        raise NotImplementedError

    def observe(self, ids: Array | None) -> Array:
        """Return the observations of some envs; None: of all."""
        raise NotImplementedError

    @property
    def kind(self) -> type:
        """The class of the envs, whose name is in their states."""
        raise NotImplementedError

    @property
    def memory(self) -> dict[str, Array]:
        """The arrays that hold the states of the envs, a row for each."""
        raise NotImplementedError

    def take_options(self, places: Sequence[int], options: Sequence[Any]) -> None:
        """Set the options, or None, of resets that follow immediately."""

    # -- called by the block ---------------------------------------------------------------------

    def prepare(self, ids: Array, seeds: Sequence[Any], options: Sequence[Any]) -> list[int]:
        """Seed envs and set their options before a reset; return those that took both."""
        kept, chosen = [], []
        for place, seed, given in zip(ids.tolist(), seeds, options, strict=True):
            try:
                if seed is not None or self.rngs[place] is None:
                    self.rngs[place], self.rng_seeds[place] = gym.utils.seeding.np_random(seed)
            except Exception as error:
                self.errors.append((place, error))
                continue
            kept.append(place)
            chosen.append(given)
        try:
            self.take_options(kept, chosen)
        except Exception:
            pairs = zip(kept, chosen, strict=True)
            return [place for place, given in pairs if self._takes_options(place, given)]
        return kept

    def _takes_options(self, place: int, options: Any) -> bool:
        try:
            self.take_options([place], [options])
        except Exception as error:
            self.errors.append((place, error))
            return False
        return True

    def alike(self, ids: Array, actions: Sequence[Any]) -> list[tuple[Array, Array]]:
        """Return envs and their actions, of those that were passed one by one, by dtype."""
        shape = self._action_shape
        arrays = [np.asarray(actions[i]) for i in ids.tolist()]
        if all((array.shape, array.dtype) == (shape, arrays[0].dtype) for array in arrays):
            return [(ids, np.stack(arrays))]
        by_type: dict[Any, list[tuple[int, Array]]] = {}
        for i, array in zip(ids.tolist(), arrays, strict=True):
            if array.shape == shape and array.dtype.kind in "biuf":
                by_type.setdefault(array.dtype, []).append((i, array))
            else:
                text = f"Action dimension mismatch. Expected {shape}, found {array.shape}"
                self.errors.append((i, ValueError(text)))
        return [
            (np.array([i for i, _ in some], np.int32), np.stack([array for _, array in some]))
            for some in by_type.values()
        ]

    # -- states ----------------------------------------------------------------------------------

    @property
    def _name(self) -> bytes:
        return self.kind.__name__.encode()[:_NAME]

    def _state_type(self, arrays: dict[str, Array]) -> np.dtype[Any]:
        """Return the dtype of an env's state: its own, and that of the episode."""
        return np.dtype(
            [
                *((name, array.dtype, array.shape[1:]) for name, array in arrays.items()),
                *(("seeded", np.bool_), ("seed", np.uint8, _SEED), ("generator", np.uint64, 6)),
                ("env", np.bytes_, _NAME),
            ]
        )

    def states(self, ids: Sequence[int], episodes: dict[str, Array]) -> Array:
        """Return the states of envs, one row each; ``episodes`` are arrays of the block."""
        arrays = {**self.memory, **episodes}
        states = np.zeros(len(ids), self._state_type(arrays))
        states["env"] = self._name
        for name, array in arrays.items():
            states[name] = array[ids]
        for row, i in enumerate(ids):
            if (rng := self.rngs[i]) is not None:
                states["seeded"][row] = True
                states["seed"][row] = _bytes_of_seed(self.rng_seeds[i])
                states["generator"][row] = _numbers_of(rng)
        return states

    def set_states(self, ids: Sequence[int], states: Array, episodes: dict[str, Array]) -> None:
        """Set the states of envs, and those of their episodes."""
        arrays = {**self.memory, **episodes}
        if states.dtype != (expected := self._state_type(arrays)):
            ours, theirs = ({*(dtype.names or ())} for dtype in (expected, states.dtype))
            differing = ", ".join(sorted(ours ^ theirs)) or "other sizes"
            raise ValueError(f"cannot set state: it belongs to other envs ({differing})")
        if (wrong := states["env"] != self._name).any():
            other, name = states["env"][wrong.argmax()].decode(), self._name.decode()
            raise ValueError(f"cannot set state: it belongs to {other or 'no env'}, not to {name}")
        for name, array in arrays.items():
            array[ids] = states[name]
        for row, i in enumerate(ids):
            if states["seeded"][row]:
                self.rngs[i] = _generator_of(states["generator"][row])
                self.rng_seeds[i] = int.from_bytes(states["seed"][row], "little", signed=True)
            elif episodes["begun"][i]:
                self.rngs[i], self.rng_seeds[i] = gym.utils.seeding.np_random()
            else:
                self.rngs[i] = self.rng_seeds[i] = None


class BatchEnvStepper(Stepper):
    """The envs of a ``BatchEnv``.

    Args:
        env: The envs.
    """

    def __init__(self, env: Any) -> None:
        super().__init__(env.num_envs, env.action_space.shape or ())
        self.env = env
        self._reward_shape = reward_shape(reward_space_of(env))
        self.rngs = env.rngs = Generators(self.rngs)
        if type(env).__module__ == _CLASSIC:
            self.kernel = env.kernel

    def block(self, first: int, meter: _core.Meter, *, inline: bool) -> _core.BatchBlock:
        """Return a block of these envs, from number ``first`` on."""
        limit = self.env.max_episode_steps
        return _core.BatchBlock(self, self.count, first, meter, limit, inline)

    def advance(self, ids: Array | None, actions: Array, dropped: Array | None) -> Advanced:  # noqa: ARG002
        rows = slice(None) if ids is None else ids
        results = self.env.step(rows, actions)
        if not isinstance(results, tuple) or len(results) not in (2, 3):
            got = f"{len(results)} values" if isinstance(results, tuple) else repr(results)
            raise ValueError(f"step returned {got}, expected rewards, terminated[, infos]")
        rewards, terminated, *infos = results
        # Copies, since observe() may return the same memory.
        count = self.count if ids is None else len(ids)
        rewards, terminated = np.array(rewards, np.float64), np.array(terminated)
        for name, array, shapes in (
            ("rewards", rewards, [(count, *self._reward_shape)]),
            ("terminated", terminated, [(count,), ()]),
        ):
            if array.shape not in shapes:
                raise ValueError(f"step returned {name} of {array.shape}, expected {shapes[0]}")
        if terminated.dtype != np.bool_:
            raise ValueError(f"step returned terminated of {terminated.dtype}, expected bool")
        if terminated.ndim == 0:
            terminated = np.broadcast_to(terminated, count)
        return self.observe(ids), rewards, terminated, infos[0] if infos else {}

    def begin(self, ids: Array) -> Begun:
        infos = self.env.reset(ids, Generators([self.rngs[i] for i in ids.tolist()]))
        return self.observe(ids), infos or {}

    def observe(self, ids: Array | None) -> Array:
        observations = self.env.observe(slice(None) if ids is None else ids)
        space = self.env.observation_space
        expected = self.count if ids is None else len(ids), *(space.shape or ())
        got = np.shape(observations), getattr(observations, "dtype", type(observations).__name__)
        if got != (expected, space.dtype):
            raise ValueError(
                f"observe returned {got[1]} of shape {got[0]}, expected {space.dtype} of {expected}"
            )
        return observations

    @property
    def kind(self) -> type:
        return type(self.env)

    @property
    def memory(self) -> dict[str, Array]:
        return self.env.memory

    def take_options(self, places: Sequence[int], options: Sequence[Any]) -> None:
        given = {place: one for place, one in zip(places, options, strict=True) if one}
        if given:
            self.env.set_options(np.array(list(given), np.int32), list(given.values()))


def _bytes_of_seed(seed: int | None) -> Array:
    """Return a seed as bytes; -1 stands for no seed, as in gymnasium."""
    try:
        seed_bytes = (-1 if seed is None else seed).to_bytes(_SEED, "little", signed=True)
    except OverflowError:
        raise ValueError(f"cannot get state: a seed of more than {8 * _SEED - 1} bits") from None
    return np.frombuffer(seed_bytes, np.uint8)


def _numbers_of(rng: np.random.Generator) -> list[int]:
    """Return the state of a generator as six 64-bit numbers."""
    state: Any = rng.bit_generator.state
    if state["bit_generator"] != "PCG64":
        raise ValueError(f"cannot get state: the generator is {state['bit_generator']}")
    wide = state["state"]["state"], state["state"]["inc"]
    halves = [part for number in wide for part in (number & _LOW, number >> 64)]
    return [*halves, state["has_uint32"], state["uinteger"]]


def _generator_of(numbers: Array) -> np.random.Generator:
    low, high, inc_low, inc_high, has_uint32, uinteger = (int(number) for number in numbers)
    generator = np.random.PCG64()
    generator.state = {
        "bit_generator": "PCG64",
        "state": {"state": low | high << 64, "inc": inc_low | inc_high << 64},
        "has_uint32": has_uint32,
        "uinteger": uinteger,
    }
    return np.random.Generator(generator)
