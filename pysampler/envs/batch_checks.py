"""``check_batch_env``: tests that a BatchEnv keeps the rules that workers rely on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt

    from pysampler.envs.batch import BatchEnv

    Array = npt.NDArray[Any]

__all__ = ["check_batch_env"]


def check_batch_env(
    make: Callable[[int], BatchEnv], num_envs: int = 5, steps: int = 200, seed: int = 0
) -> None:
    """Test a ``BatchEnv`` with random actions, and raise ValueError for the first broken rule.

    The rules:

    - Results have the shapes and dtypes of the spaces.
    - The same seeds and actions give the same results.
    - Rows do not depend on each other, nor on which of them step together.
    - ``reset`` and ``step`` change only the rows ``ids``.
    - All state is in the arrays of ``rows`` and in ``rngs``.

    Args:
        make: The class, or a function that takes the number of envs.
        num_envs: The number of envs to test with.
        steps: The number of steps to make.
        seed: The seed of the envs and of the actions.

    Raises:
        ValueError: A rule is broken.
    """
    _Check(make, num_envs, steps, seed).run()


class _Envs:
    """A BatchEnv with a generator per env, which resets envs whose episodes have ended."""

    def __init__(self, env: BatchEnv, seeds: list[int]) -> None:
        self.env = env
        self.name = type(env).__name__
        self.count = len(seeds)
        env.rngs[:] = [gym.utils.seeding.np_random(seed)[0] for seed in seeds]
        self.rngs = env.rngs
        self.arrays = dict(env.memory)
        # The attributes that hold arrays of ``rows``: they must stay the same objects.
        self.attributes = {
            name: value
            for name, value in vars(env).items()
            if any(value is array for array in self.arrays.values())
        }
        self.elapsed = np.zeros(self.count, int)

    def fail(self, text: str) -> ValueError:
        return ValueError(f"cannot use {self.name}: {text}")

    def reset(self, ids: Array) -> dict[str, Array]:
        before = self.state()
        infos = self.env.reset(ids, self.rngs.of(ids))
        self.check_infos("reset", infos, len(ids))
        self.expect_only("reset", before, ids)
        self.elapsed[ids] = 0
        return {key: value.copy() for key, value in (infos or {}).items()}

    def step(self, ids: Any, actions: Array) -> dict[str, Array]:
        """Step some envs, and return rewards, terminated and infos by name."""
        before = self.state()
        results = self.env.step(ids, actions.copy())
        rows = np.arange(self.count)[ids]
        if not isinstance(results, tuple) or len(results) not in (2, 3):
            raise self.fail(f"step returned {results!r}, expected rewards, terminated[, infos]")
        rewards, terminated, *infos = results
        space = self.env.reward_space
        shape = len(rows), *(() if space is None else space.shape)
        if np.shape(rewards) != shape:
            raise self.fail(f"step returned rewards {rewards!r}, expected numbers of shape {shape}")
        terminated = np.asarray(terminated)
        if terminated.dtype != np.bool_ or terminated.shape not in ((), (len(rows),)):
            raise self.fail(
                f"step returned terminated of {terminated.dtype} {terminated.shape}, expected bool "
                f"{(len(rows),)}"
            )
        terminated = np.broadcast_to(terminated, len(rows))
        self.check_infos("step", infos[0] if infos else None, len(rows))
        self.expect_only("step", before, rows)
        self.elapsed[rows] += 1
        named = {f"info {key!r}": value.copy() for key, value in (infos or [{}])[0].items()}
        return {"reward": np.array(rewards, float), "terminated": terminated.copy(), **named}

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
        for name, array in self.attributes.items():
            if vars(self.env).get(name) is not array:
                raise self.fail(
                    f"{method} replaced {name}, an array of rows; change it in place: "
                    f"self.{name}[ids] = ..."
                )
        others = np.setdiff1d(np.arange(self.count), ids)
        for name, array in self.arrays.items():
            if not _same(array[others], before[name][others]):
                row = next(i for i in others if not _same(array[i], before[name][i]))
                raise self.fail(f"{method} changed env {row}, which was not among ids {ids}")

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
        for i, one in enumerate(generators):  # new objects, as set_state makes them
            self.rngs[i] = np.random.default_rng()
            self.rngs[i].bit_generator.state = one
        self.elapsed[...] = elapsed

    def ended(self, terminated: Array) -> Array:
        limit = self.env.max_episode_steps
        return np.flatnonzero(terminated | (self.elapsed >= (limit or np.inf)))


class _Check:
    """Steps several instances of a BatchEnv, whose results must agree.

    ``whole`` steps all envs together, ``again`` does the same, ``parts`` steps some of them at a
    time, and each of ``alone`` has one env.
    """

    def __init__(self, make: Callable[..., BatchEnv], count: int, steps: int, seed: int) -> None:
        seeds = list(range(seed, seed + count))
        self._count, self._steps = count, steps
        self._everyone = np.arange(count, dtype=np.int32)
        self._random = np.random.default_rng(seed)

        def made(seeds: list[int]) -> _Envs:
            size = len(seeds)
            return _Envs(make(num_envs=size) if isinstance(make, type) else make(size), seeds)

        self.whole, self.again, self.parts = (made(seeds) for _ in range(3))
        self.alone = [made([seed]) for seed in seeds]
        self._space = self.whole.env.action_space
        self._space.seed(seed)

    def run(self) -> None:
        self._reset(self._everyone)
        for step in range(self._steps):
            actions = self._actions()
            results = self.whole.step(slice(None), actions)
            others = {
                _AGAIN: self.again.step(slice(None), actions),
                _PARTS: self._in_parts(actions),
                _ALONE: self._alone(actions),
            }
            for how, other in others.items():
                self._expect_same(f"of step {step}", results, other, how)
            self._compare_observations()
            ended = self.whole.ended(results["terminated"])
            if step % 7 == 3:  # also some that have not ended
                ended = np.union1d(ended, self._random.integers(0, self._count, 1))
            if len(ended):
                self._reset(ended.astype(np.int32))
            if step % max(1, self._steps // 5) == 1:
                self._expect_restored()
        for one in (self.whole, self.again, self.parts, *self.alone):
            one.env.close()

    def _actions(self) -> Array:
        return np.array([self._space.sample() for _ in self._everyone], self._space.dtype)

    def _reset(self, ids: Array) -> None:
        infos = self.whole.reset(ids)
        each = [self.alone[i].reset(np.zeros(1, np.int32)) for i in ids]
        for how, other in (
            (_AGAIN, self.again.reset(ids)),
            (_PARTS, self.parts.reset(ids)),
            (_ALONE, {key: np.concatenate([one[key] for one in each]) for key in infos}),
        ):
            ours, theirs = ({f"info {key!r}": one[key] for key in infos} for one in (infos, other))
            self._expect_same("of a reset", ours, theirs, how)
        self._compare_observations()

    def _alone(self, actions: Array) -> dict[str, Array]:
        each = [one.step(slice(None), actions[i : i + 1]) for i, one in enumerate(self.alone)]
        return {key: np.concatenate([one[key] for one in each]) for key in each[0]}

    def _in_parts(self, actions: Array) -> dict[str, Array]:
        """Step the envs in two calls, each for a part of them."""
        chosen = self._random.random(self._count) < 0.5
        order = [np.flatnonzero(mask).astype(np.int32) for mask in (chosen, ~chosen)]
        each = [self.parts.step(ids, actions[ids]) for ids in order if len(ids)]
        rows = np.argsort(np.concatenate(order))
        return {key: np.concatenate([one[key] for one in each])[rows] for key in each[0]}

    def _compare_observations(self) -> None:
        seen = self.whole.observe(slice(None))
        chosen = np.flatnonzero(self._random.random(self._count) < 0.5).astype(np.int32)
        parts = seen.copy()
        if len(chosen):
            parts[chosen] = self.parts.observe(chosen)
        each = np.concatenate([one.observe(slice(None)) for one in self.alone])
        for how, other in (
            (_AGAIN, self.again.observe(slice(None))),
            (_PARTS, parts),
            (_ALONE, each),
        ):
            self._expect_same("", {"observation": seen}, {"observation": other}, how)

    def _expect_same(
        self, when: str, ours: dict[str, Array], others: dict[str, Array], how: str
    ) -> None:
        for name, array in ours.items():
            other = others.get(name)
            for row in range(len(array)):
                if other is None or not _same(array[row], other[row]):
                    got = "missing" if other is None else other[row]
                    what = " ".join(filter(None, (name, when)))
                    raise self.whole.fail(
                        f"the {what} of env {row} is {array[row]}, but {got} {how}"
                    )

    def _expect_restored(self) -> None:
        """Raise an error if envs continue differently after restoring an earlier state."""
        envs, before, runs = self.whole, self.whole.all_state(), []
        actions = [self._actions() for _ in range(4)]
        for _ in range(2):
            results = [envs.observe(slice(None))]
            for step, one in enumerate(actions):
                named = envs.step(slice(None), one)
                ended = self._everyone if step == 2 else envs.ended(named["terminated"])
                if len(ended):
                    envs.reset(ended.astype(np.int32))
                results += [*named.values(), envs.observe(slice(None))]
            runs.append(results)
            envs.return_to(before)
        if not all(_same(one, other) for one, other in zip(*runs, strict=True)):
            raise envs.fail(
                "envs step differently after a return to the same state: not all state is in the "
                "arrays of rows() and in self.rngs"
            )


_AGAIN, _PARTS = "with the same seeds and actions", "if others step apart from it"
_ALONE = "if it is alone"


def _same(one: Any, other: Any) -> bool:
    one, other = np.asarray(one), np.asarray(other)
    return np.array_equal(one, other, equal_nan=one.dtype.kind in "fc")
