"""``check_batch_env``: tests that a BatchEnv keeps the rules that workers rely on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import numpy.typing as npt

    from pysampler.envs.batch import BatchEnv

    Array = npt.NDArray[Any]

__all__ = ["check_batch_env"]


def check_batch_env(
    make: Callable[[int], BatchEnv], num_envs: int = 5, steps: int = 200, seed: int = 0
) -> None:
    """Step a ``BatchEnv`` with random actions; raise ValueError for the first rule that it breaks.

    The rules: results have the shapes and dtypes of the spaces; the same seeds and actions give the
    same results; rows do not depend on each other, nor on which of them step together; ``reset``
    and ``step`` change only their ``ids``, and no action; all state is in the arrays of ``rows``.

    Args:
        make: The class, or a function of the number of envs.
        num_envs: The number of envs.
        steps: The number of steps.
        seed: The seed of the envs and of the actions.

    Raises:
        ValueError: A rule is broken.
    """
    _Check(make, num_envs, steps, seed).run()


class _Envs:
    """A batch that is reset where an episode has ended, with a generator for each env."""

    def __init__(self, env: BatchEnv, seeds: list[int]) -> None:
        self.env = env
        self.name = type(env).__name__
        self.count = len(seeds)
        env.rngs[:] = [gym.utils.seeding.np_random(seed)[0] for seed in seeds]
        self.rngs = env.rngs
        self.arrays = dict(env.memory)
        self.elapsed = np.zeros(self.count, int)

    def fail(self, text: str) -> ValueError:
        return ValueError(f"cannot use {self.name}: {text}")

    def reset(self, ids: Array) -> None:
        before = self.state()
        infos = self.env.reset(ids, self.rngs.of(ids))
        self.check_infos("reset", infos, len(ids))
        self.expect_only("reset", before, ids)
        self.elapsed[ids] = 0

    def step(self, ids: Any, actions: Array) -> tuple[Array, Array, Any]:
        """Step some envs, and return rewards, terminated and infos."""
        before, given = self.state(), actions.copy()
        results = self.env.step(ids, actions)
        rows = np.arange(self.count)[ids]
        if not isinstance(results, tuple) or len(results) not in (2, 3):
            raise self.fail(f"step returned {results!r}, expected rewards, terminated[, infos]")
        rewards, terminated, *infos = results
        if np.shape(rewards) != (len(rows),):
            raise self.fail(f"step returned rewards {rewards!r}, expected {len(rows)} numbers")
        terminated = np.broadcast_to(np.asarray(terminated), len(rows))
        if terminated.dtype != np.bool_:
            raise self.fail(f"step returned terminated of {terminated.dtype}, expected bool")
        self.check_infos("step", infos[0] if infos else None, len(rows))
        if not np.array_equal(actions, given):
            raise self.fail("step changed its actions")
        self.expect_only("step", before, rows)
        self.elapsed[rows] += 1
        return np.array(rewards, float), terminated.copy(), infos

    def check_infos(self, method: str, infos: Any, count: int) -> None:
        if infos is None:
            return
        if not isinstance(infos, dict):
            raise self.fail(f"{method} returned infos {infos!r}, expected a dict")
        for key, value in infos.items():
            if not isinstance(value, np.ndarray) or value.shape[:1] != (count,):
                raise self.fail(
                    f"{method} returned info {key!r} of shape {np.shape(value)}, expected an array "
                    f"of {count} rows"
                )

    def expect_only(self, method: str, before: dict[str, Array], ids: Array) -> None:
        """Raise an error if a method has changed other rows, or replaced an array."""
        held = {id(one) for one in self._held()}
        others = np.setdiff1d(np.arange(self.count), ids)
        for name, array in self.arrays.items():
            if id(array) not in held:
                raise self.fail(
                    f"{method} replaced an array of rows; change it in place: array[ids] = ..."
                )
            if not _same(array[others], before[name][others]):
                row = next(i for i in others if not _same(array[i], before[name][i]))
                raise self.fail(f"{method} changed env {row}, which was not among ids {ids}")

    def _held(self) -> Iterator[Any]:
        """Yield the attributes of the envs, and what is in tuples, lists and dicts of them."""
        for name, value in vars(self.env).items():
            yield value
            if name != "memory" and isinstance(value, (tuple, list, dict)):
                yield from value.values() if isinstance(value, dict) else value

    def observe(self, ids: Any) -> Array:
        space, rows = self.env.observation_space, np.arange(self.count)[ids]
        seen, expected = self.env.observe(ids), (len(rows), *(space.shape or ()))
        if not isinstance(seen, np.ndarray) or seen.shape != expected:
            raise self.fail(f"observe returned shape {np.shape(seen)}, expected {expected}")
        if seen.dtype != space.dtype:
            raise self.fail(f"observe returned {seen.dtype}, expected {space.dtype} as the space")
        for row, one in zip(rows, seen, strict=True):
            if not space.contains(one if space.shape else seen.dtype.type(one)):
                raise self.fail(f"the observation {one} of env {row} is not in {space}")
        return seen.copy()

    def state(self) -> dict[str, Array]:
        return {name: array.copy() for name, array in self.arrays.items()}

    def all_state(self) -> Any:
        return self.state(), [rng.bit_generator.state for rng in self.rngs], self.elapsed.copy()

    def return_to(self, state: Any) -> None:
        arrays, generators, elapsed = state
        for name, array in self.arrays.items():
            array[...] = arrays[name]
        for rng, one in zip(self.rngs, generators, strict=True):
            rng.bit_generator.state = one
        self.elapsed[...] = elapsed

    def ended(self, terminated: Array) -> Array:
        limit = self.env.max_episode_steps
        return np.flatnonzero(terminated | (self.elapsed >= (limit or np.inf)))


class _Check:
    def __init__(self, make: Callable[[int], BatchEnv], count: int, steps: int, seed: int) -> None:
        self._make, self._count, self._steps = make, count, steps
        self._seeds = list(range(seed, seed + count))
        self._random = np.random.default_rng(seed)

    def run(self) -> None:
        whole = _Envs(self._make(self._count), self._seeds)
        again = _Envs(self._make(self._count), self._seeds)
        parts = _Envs(self._make(self._count), self._seeds)
        alone = [_Envs(self._make(1), [seed]) for seed in self._seeds]
        space = whole.env.action_space
        space.seed(self._seeds[0])
        everyone = np.arange(self._count, dtype=np.int32)
        self._reset_all(whole, again, parts, alone, everyone)
        self._compare(whole, again, parts, alone)
        for step in range(self._steps):
            actions = np.array([space.sample() for _ in everyone], space.dtype)
            if step == self._steps // 2:
                self._expect_restored(whole, actions)
            rewards, terminated, _ = whole.step(slice(None), actions)
            others = {
                "with the same seeds and actions": again.step(slice(None), actions)[:2],
                "if others step apart from it": self._in_parts(parts, actions),
                "if it is alone": self._alone(alone, actions),
            }
            for how, (other_rewards, other_terminated) in others.items():
                self._expect_same(whole, f"reward of step {step}", rewards, other_rewards, how)
                what = f"terminated of step {step}"
                self._expect_same(whole, what, terminated, other_terminated, how)
            self._compare(whole, again, parts, alone)
            ended = whole.ended(terminated)
            if len(ended):
                self._reset_all(whole, again, parts, alone, ended.astype(np.int32))
                self._compare(whole, again, parts, alone)
        for one in (whole, again, parts, *alone):
            one.env.close()

    def _reset_all(
        self, whole: _Envs, again: _Envs, parts: _Envs, alone: list[_Envs], ids: Array
    ) -> None:
        for one in (whole, again, parts):
            one.reset(ids)
        for i in ids:
            alone[i].reset(np.zeros(1, np.int32))

    def _alone(self, alone: list[_Envs], actions: Array) -> tuple[Array, Array]:
        """Step each env by itself."""
        each = [one.step(slice(None), actions[i : i + 1]) for i, one in enumerate(alone)]
        return tuple(np.concatenate(part) for part in list(zip(*each, strict=True))[:2])  # type: ignore[return-value]

    def _in_parts(self, envs: _Envs, actions: Array) -> tuple[Array, Array]:
        """Step the envs in two calls, of some of them each."""
        chosen = self._random.random(self._count) < 0.5
        rewards, terminated = np.zeros(self._count), np.zeros(self._count, bool)
        for mask in (chosen, ~chosen):
            ids = np.flatnonzero(mask).astype(np.int32)
            if len(ids):
                rewards[ids], terminated[ids], _ = envs.step(ids, actions[ids])
        return rewards, terminated

    def _compare(self, whole: _Envs, again: _Envs, parts: _Envs, alone: list[_Envs]) -> None:
        seen = whole.observe(slice(None))
        each = np.concatenate([one.observe(slice(None)) for one in alone])
        for kind, other in (
            ("with the same seeds and actions", again.observe(slice(None))),
            ("if others step apart from it", parts.observe(np.arange(self._count, dtype=np.int32))),
            ("if it is alone", each),
        ):
            self._expect_same(whole, "observation", seen, other, kind)

    def _expect_same(self, envs: _Envs, what: str, one: Array, other: Array, kind: str) -> None:
        for row in self._differing(one, other):
            raise envs.fail(f"the {what} of env {row} is {one[row]}, but {other[row]} {kind}")

    def _differing(self, one: Array, other: Array) -> Iterator[int]:
        return (row for row in range(self._count) if not _same(one[row], other[row]))

    def _expect_restored(self, envs: _Envs, actions: Array) -> None:
        """Raise an error if envs continue differently after a return to an earlier state."""
        before, results = envs.all_state(), []
        for _ in range(2):
            rewards, terminated, _ = envs.step(slice(None), actions)
            if len(ended := envs.ended(terminated)):
                envs.reset(ended.astype(np.int32))
            results.append((rewards, terminated, envs.observe(slice(None))))
            envs.return_to(before)
        for one, other in zip(*results, strict=True):
            for row in self._differing(one, other):
                raise envs.fail(
                    f"env {row} steps differently after a return to the same state: not all state "
                    "is in the arrays of rows()"
                )


def _same(one: Any, other: Any) -> bool:
    one, other = np.asarray(one), np.asarray(other)
    return np.array_equal(one, other, equal_nan=one.dtype.kind in "fc")
