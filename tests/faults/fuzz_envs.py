"""Fuzzes envs and policies: garbage that they return or raise gives clear errors and no harm.

    python tests/faults/fuzz_envs.py --seconds 600

The seed of a case decides the envs, the calls, and the garbage that envs and policy return instead
of results. Every other env is honest and counts its steps: its rows must be right in all results.
An exception must be one of pysampler's, or name what it expected, or come from gymnasium's own
code; afterwards the vector env can be reset or closed.
"""

import contextlib
import copy
import faulthandler
import functools
import os
import random
import sys
import traceback
import warnings
from collections import Counter
from pathlib import Path

import gymnasium as gym
import numpy as np
from gymnasium import spaces

import pysampler
from pysampler.errors import EnvError, PysamplerError

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))
import campaigns
from campaigns import Wrong, expect

HANG = 60.0  # seconds that a case may take at most
OURS = str(Path(pysampler.__file__).parent)


class UnwritableError(Exception):
    def __str__(self):
        raise ValueError("no text")


class Raising:
    """Raises from every conversion."""

    def __array__(self, *_, **__):
        raise RuntimeError("no array")

    def __float__(self):
        raise RuntimeError("no number")

    __bool__ = __len__ = __iter__ = __int__ = __index__ = __float__
    __reduce__ = __deepcopy__ = __float__


def no_load():
    raise RuntimeError("no load")


class Unloadable:
    def __reduce__(self):
        return no_load, ()

    def __deepcopy__(self, _):
        return self


def recursive():
    made = []
    made.append(made)
    return made


GARBAGE = [
    *(lambda value=value: value for value in (None, 0, -1, 1.5, 2**70, 1j, "x", b"y", ..., int)),
    *(lambda value=value: value for value in (np.nan, np.inf, True, (), (1, 2), range(3))),
    *(list, dict, set, object, Raising, Unloadable, recursive),
    lambda: np.zeros(0),
    lambda: np.zeros((3, 3)),
    lambda: np.zeros(2, np.float16),
    lambda: np.zeros(2, complex),
    lambda: np.array(["a", "b"]),
    lambda: np.array([None, 1], object),
    lambda: np.zeros((), "M8[s]"),
    lambda: np.zeros(2, [("a", "i4")]),
    lambda: np.zeros(4, ">f4")[::2],
    lambda: np.ma.masked_equal(np.zeros(2, np.float32), 0),
    lambda: np.float32(1),
    lambda: np.bool_(1),
    lambda: np.broadcast_to(np.float32(0), (2,)),
    lambda: {1: 2, None: 3, "a": {"b": Raising()}},
    lambda: {"deep": functools.reduce(lambda inner, _: {"in": inner}, range(50), 1)},
    lambda: (value for value in "generator"),
    lambda: memoryview(b"bytes"),
    lambda: np.zeros(100_000),
    lambda: lambda: 0,
]
RAISED = [
    ValueError("v"),
    KeyError("k"),
    UnwritableError(),
    RecursionError(),
    StopIteration(1),
    OSError(2, "o"),
    UnicodeDecodeError("utf8", b"a", 0, 1, "u"),
    MemoryError(),
    GeneratorExit(),
    AssertionError(),
    ExceptionGroup("group", [UnwritableError(), TypeError("t")]),
    SystemExit(3),
]


class Honest(gym.Env):
    """Observes the steps of its life and of its episode; episodes last five steps."""

    observation_space = spaces.Box(-1, 2.0**30, (2,), np.float32)
    action_space = spaces.Discrete(3)
    metadata = {"render_modes": ["rgb_array"]}  # noqa: RUF012
    render_mode = "rgb_array"

    def __init__(self):
        self.steps = self.episode = 0

    def _observe(self):
        return np.array([self.steps, self.episode], np.float32)

    def reset(self, *, seed=None, options=None):
        self.episode = 0
        return self._observe(), {"steps": self.steps}

    def step(self, action):
        self.steps += 1
        self.episode += 1
        return self._observe(), float(self.steps), False, self.episode == 5, {"steps": self.steps}

    def render(self):
        return np.full((4, 4, 3), self.steps % 256, np.uint8)

    def asked(self):
        return self.steps


class Hostile(Honest):
    """Returns garbage, raises or exits at random."""

    def __init__(self, seed, often, dies):
        super().__init__()
        self.dice = random.Random(seed)
        self.often = often
        self.dies = dies

    def _or_garbage(self, value):
        dice = self.dice
        if dice.random() >= self.often:
            return value
        kind = dice.randrange(10)
        if kind == 0:
            raise copy.copy(dice.choice(RAISED))
        if kind == 1 and self.dies and dice.random() < 0.1:
            os._exit(3)
        if kind == 2 and isinstance(value, tuple):
            return value[: dice.randrange(len(value))]
        if kind == 3 and isinstance(value, tuple):
            return [*value, None]
        if kind < 8 and isinstance(value, tuple):
            values = list(value)
            values[dice.randrange(len(values))] = dice.choice(GARBAGE)()
            return tuple(values)
        if kind == 8 and isinstance(value, tuple):
            return *value[:-1], {dice.choice(["steps", "a", 1]): dice.choice(GARBAGE)()}
        return dice.choice(GARBAGE)()

    def reset(self, **kwargs):
        return self._or_garbage(super().reset(**kwargs))

    def step(self, action):
        return self._or_garbage(super().step(action))

    def render(self):
        return self._or_garbage(super().render())

    def asked(self):
        return self._or_garbage(super().asked())

    def close(self):
        self._or_garbage(None)


class Policy:
    def __init__(self, seed, often):
        self.dice = random.Random(seed)
        self.often = often

    def __call__(self, observations):
        actions = np.ones(len(observations), np.int64)
        results = actions, {"value": observations[:, 0].copy()}
        dice = self.dice
        if dice.random() >= self.often:
            return results
        kind = dice.randrange(6)
        if kind == 0:
            raise copy.copy(dice.choice(RAISED[:-1]))
        if kind == 1:
            observations[:] = 7
        if kind == 2:
            return actions, {dice.choice(["value", "b", None]): dice.choice(GARBAGE)()}
        if kind == 3:
            return dice.choice(GARBAGE)(), results[1]
        if kind == 4:
            return (*results, dice.choice(GARBAGE)())
        return dice.choice(GARBAGE)()


class Case:
    def __init__(self, seed):
        self.dice = random.Random(seed)
        self.errors = Counter()  # exceptions by type

    def run(self):
        dice = self.dice
        workers = dice.choice([0, 1, 2])
        often = dice.choice([0.02, 0.1, 0.5])
        self.dies = workers > 0 and dice.random() < 0.5
        fns = [
            Honest if i % 2 else functools.partial(Hostile, dice.random(), often, self.dies)
            for i in range(4)
        ]
        kwargs = {
            "num_workers": workers,
            "groups": dice.choice([1, 2]),
            "autoreset_mode": dice.choice(["NextStep", "SameStep", "Disabled"]),
            "infos": dice.choice(["all", "final", "none"]),
            "copy": dice.random() < 0.7,
            "on_worker_loss": dice.choice(["raise", "restart"]) if workers else "raise",
        }
        with self._checked():
            envs = pysampler.VectorEnv(fns, **kwargs)
            try:
                what = dice.choice([self.steps, self.steps, self.rollouts, self.actors])
                for _ in range(dice.randrange(1, 4)):
                    what(envs)
            finally:
                with self._checked():
                    envs.close()
                expect(envs.closed, "close() left it open")

    @contextlib.contextmanager
    def _checked(self):
        """Count an exception; raise Wrong unless its text is meant for the user."""
        try:
            yield
        except Wrong:
            raise
        except BaseException as error:
            innermost = traceback.extract_tb(error.__traceback__)[-1]
            words = str(error)
            meant = isinstance(error, (PysamplerError, gym.error.Error)) or (
                isinstance(error, (TypeError, ValueError)) and words.startswith("cannot ")
            )
            if isinstance(error, EnvError) and not words:
                raise Wrong(f"{type(error).__name__} without a word") from error
            if not meant and innermost.filename.startswith(OURS):
                raise Wrong(f"{type(error).__name__}: {words}, at {innermost}") from error
            if not isinstance(error, Exception) and not isinstance(
                error, SystemExit | GeneratorExit
            ):
                raise
            self.errors[type(error).__name__] += 1

    def steps(self, envs):
        dice = self.dice
        actions = np.ones(4, np.int64)
        seen = None
        for _ in range(dice.randrange(1, 12)):
            kind = dice.randrange(8)
            with self._checked():
                if kind == 0 or seen is None:
                    envs.reset(seed=dice.choice([None, 3]))
                    seen = True
                elif kind == 1:
                    list(envs.call("asked"))
                elif kind == 2:
                    envs.render()
                elif kind == 3:
                    envs.set_attr("extra", [dice.choice(GARBAGE)() for _ in range(4)])
                    repr(envs), envs.stats()
                else:
                    observations, *_ = envs.step(actions)
                    steps = observations[:, 0] if self.dies else envs.get_attr("steps")
                    for env in (1, 3):
                        shown, made = observations[env, 0], steps[env]
                        expect(shown == made, f"env {env} has made {made} steps, shows {shown}")

    def rollouts(self, envs):
        dice = self.dice
        where = dice.choice(["main", "workers"])
        overlap = where == "main" and dice.random() < 0.5
        policy = Policy(dice.random(), dice.choice([0, 0.1, 0.5]))
        with (
            self._checked(),
            pysampler.Rollouts(
                envs, policy, 4, policy_in=where, overlap=overlap, info_keys=["steps"], seed=3
            ) as rollouts,
        ):
            for _ in range(4):
                with self._checked():
                    rollout = next(rollouts)
                    for env in (1, 3):
                        counted = rollout.rewards[:, env][rollout.valid[:, env]]
                        if not rollout.lost[:, env].any() and (np.diff(counted) != 1).any():
                            raise Wrong(f"env {env} counted {counted}")

    def actors(self, envs):
        dice = self.dice
        policy = Policy(dice.random(), dice.choice([0, 0.1]))
        with self._checked(), pysampler.Actors(envs, policy, seed=3) as actors:
            for _ in range(4):
                if (records := actors.take(8)) is None:
                    break
                honest = records.env % 2 == 1
                if (records.value[honest] + 1 != records.rewards[honest]).any():
                    raise Wrong("an honest env's records are not its own")


def campaign(args):
    """Run cases until the time is over; return their count, exceptions and violations."""
    errors, wrong, count = Counter(), [], 0
    for seed in campaigns.seeds(args, hang=HANG):
        case = Case(seed)
        try:
            case.run()
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt):
                raise
            traceback.print_exc()
            wrong.append((seed, f"{type(error).__name__}: {error}"))
        errors += case.errors
        count += 1
    return count, errors, wrong


def main():
    args = campaigns.parser(__doc__, 600, out=False).parse_args()
    faulthandler.enable()
    warnings.simplefilter("ignore")
    print(f"from --seed {args.seed if args.case is None else args.case}", flush=True)
    count, errors, wrong = campaign(args)
    print(f"{count} cases; errors: {dict(errors.most_common())}")
    for seed, what in wrong:
        campaigns.say_wrong(seed, what)
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
