"""Envs for tests, and ``same``, the exact comparison of results."""

import copy
import os
import threading
import time

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode


class SpaceEnv(gym.Env):
    """Draws observations from a space; its infos describe the action exactly as it arrived."""

    metadata = {"render_modes": ["rgb_array"], "made_up": True}  # noqa: RUF012
    render_mode = "rgb_array"

    def __init__(self, observation_space, action_space=None, infos="none", ends=0.1):
        self.observation_space = copy.deepcopy(observation_space)
        self.action_space = spaces.Discrete(3) if action_space is None else action_space
        self.infos = infos
        self.ends = ends
        self.kept = []
        self.steps = 0

    def _observe(self):
        return self.observation_space.sample()

    def _info(self, where):
        rng, kind = self.np_random, self.infos
        if kind == "none":
            return {}
        if kind == "numbers":
            return {
                "x": float(rng.normal()),
                "n": int(rng.integers(9)),
                "f": np.float32(rng.normal()),
            }
        info = {
            where: True,
            "always": self.steps,
            "either": 1 if rng.random() < 0.5 else 0.5,
            "array": rng.normal(size=3).astype(np.float32),
            "text": "abc"[: rng.integers(4)],
            "nested": {"deep": {"x": rng.normal(), "none": None}, "i": np.int16(rng.integers(9))},
            "numpy_bool": np.bool_(rng.random() < 0.5),
            "scalar_array": np.array(rng.normal()),
        }
        if rng.random() < 0.3:
            info["sometimes"] = rng.normal()
        if rng.random() < 0.2:
            info["empty"] = {}
        if rng.random() < 0.1:
            info["nested"]["rare"] = [1, 2]
        return info

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        if seed is not None:
            self.observation_space.seed(seed)
        self.steps = 0
        info = self._info("reset")
        if options:
            info["options"] = repr(options)
        return self._observe(), info

    def step(self, action):
        self.steps += 1
        self.kept.append((action, describe(action)))
        info = self._info("step")
        if self.infos == "all":
            info["action"] = describe(action)
            # Actions do not change after they were handed over.
            info["kept"] = all(describe(a) == described for a, described in self.kept[-5:])
        end, cut = self.np_random.random() < self.ends, self.np_random.random() < self.ends
        return self._observe(), self.np_random.normal(), bool(end), bool(cut), info

    def render(self):
        return np.full((2, 2, 3), self.steps, np.uint8)

    def double(self, x, *, plus=0):
        return 2 * x + plus


def describe(value):
    """Return the type, dtype, shape and content of an action as text."""
    if isinstance(value, dict):
        return {k: describe(v) for k, v in value.items()}.__repr__()
    if isinstance(value, (tuple, list)):
        return f"{type(value).__name__}{[describe(v) for v in value]}"
    if isinstance(value, np.ndarray):
        content = value.tolist() if value.dtype == object else value.tobytes().hex()
        return f"array {value.dtype} {value.shape} {content}"
    return f"{type(value).__name__} {value!r}"


class TellingEnv(gym.Env):
    """Fails in the way its action selects: the faults that users meet."""

    observation_space = spaces.Box(-1, 1, (2,), np.float32)
    action_space = spaces.Discrete(16)
    OK, RAISE, EXIT, OS_EXIT, BAD_SHAPE, FOUR, NO_DICT, PRINT, SLEEP, HUGE_INFO = range(10)
    HANG, TWO_ENDS, NOTHING, WORD = range(10, 14)

    def __init__(self, fault=None):
        if fault == "raise":
            raise ValueError("cannot be made")
        if fault == "exit":
            raise SystemExit(3)
        if fault == "os._exit":
            os._exit(4)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        if options and options.get("raise"):
            raise KeyError("no reset")
        return np.zeros(2, np.float32), {}

    def step(self, action):
        info = {}
        obs = np.ones(2, np.float32)
        if action == self.RAISE:
            raise ValueError("told to raise")
        if action == self.EXIT:
            raise SystemExit(5)
        if action == self.OS_EXIT:
            os._exit(6)
        if action == self.BAD_SHAPE:
            obs = np.ones(3, np.float32)
        if action == self.FOUR:
            return obs, 0.0, False, {}
        if action == self.NO_DICT:
            info = [1]
        if action == self.NOTHING:
            return None
        if action == self.WORD:
            return obs, "one", False, False, {}
        if action == self.TWO_ENDS:
            return obs, 1.0, np.zeros(2, bool), False, {}
        if action == self.PRINT:
            print("said by an env")
        if action == self.SLEEP:
            time.sleep(0.5)  # an env that is slow
        if action == self.HANG:
            threading.Event().wait()
        if action == self.HUGE_INFO:
            info = {"huge": "x" * 1_000_000}
        return obs, 1.0, False, False, info

    def close(self):
        if os.environ.get("PYSAMPLER_TEST_CLOSE") == "raise":
            raise OSError("cannot be closed")


def same(a, b, place=""):
    """Assert that two values are equal in type, dtype, shape and every bit."""
    assert type(a) is type(b), f"{place}: {type(a)} and {type(b)}"
    if isinstance(a, dict):
        assert a.keys() == b.keys(), f"{place}: {sorted(map(str, a))} and {sorted(map(str, b))}"
        for key in a:
            same(a[key], b[key], f"{place}[{key!r}]")
    elif isinstance(a, (tuple, list)):
        assert len(a) == len(b), place
        for i, (x, y) in enumerate(zip(a, b, strict=True)):
            same(x, y, f"{place}[{i}]")
    elif isinstance(a, np.ndarray):
        assert a.dtype == b.dtype, f"{place}: {a.dtype} and {b.dtype}"
        assert a.shape == b.shape, f"{place}: {a.shape} and {b.shape}"
        if a.dtype == object:
            same(list(a.ravel()), list(b.ravel()), place)
        else:
            np.testing.assert_array_equal(a, b, err_msg=place)
    elif isinstance(a, np.generic):
        np.testing.assert_array_equal(a, b, err_msg=place)
    else:
        assert a == b or (a != a and b != b), f"{place}: {a!r} and {b!r}"


def equal(a, b):
    """Return whether two values are equal in structure, shape and content."""
    if isinstance(a, dict):
        return isinstance(b, dict) and a.keys() == b.keys() and all(equal(a[k], b[k]) for k in a)
    if isinstance(a, (tuple, list)) or (isinstance(a, np.ndarray) and a.dtype == object):
        alike = isinstance(b, (tuple, list, np.ndarray)) and len(a) == len(b)
        return alike and all(map(equal, a, b))
    return np.array_equal(a, b)


def step_alike(ours, theirs, mode, steps, masked, options, seeds):
    """Step two vector envs with the same seeds and actions; assert that all results are equal.

    Args:
        ours: One vector env, which is closed.
        theirs: The other, which draws the actions, and is closed too.
        mode: Their autoreset mode; if it is DISABLED, ended envs are reset.
        steps: The number of steps.
        masked: Options of those resets.
        options: Options of a reset at the end.
        seeds: Seeds of another.
    """
    try:
        same(ours.reset(seed=7), theirs.reset(seed=7), "reset")
        theirs.action_space.seed(3)
        for step in range(steps):
            actions = theirs.action_space.sample()
            a, b = ours.step(actions), theirs.step(actions)
            same(a, b, f"step {step}")
            ended = a[2] | a[3]
            if mode == AutoresetMode.DISABLED and ended.any():
                again = [o.reset(options={"reset_mask": ended, **masked}) for o in (ours, theirs)]
                same(*again, f"reset after step {step}")
        same(ours.reset(options=options), theirs.reset(options=options), "reset with options")
        same(ours.reset(seed=seeds), theirs.reset(seed=seeds), "seeds")
    finally:
        ours.close()
        theirs.close()


def interrupt_once(monkeypatch, kind, name, *, before=False, left=None):
    """Let the next call of a method raise KeyboardInterrupt, after its work or before it.

    With one list ``left``, one of several methods raises.
    """
    method, left = getattr(kind, name), [1] if left is None else left

    def interrupted(self, *given, **named):
        if before and left:
            raise KeyboardInterrupt(left.pop())
        results = method(self, *given, **named)
        if left:
            raise KeyboardInterrupt(left.pop())
        return results

    monkeypatch.setattr(kind, name, interrupted)


def identical(ours, theirs, place=""):
    """Assert that two results are equal, down to the signs of zeros."""
    same(ours, theirs, place)
    for one, other in zip(_leaves(ours), _leaves(theirs), strict=True):
        there = ~np.isnan(one)
        np.testing.assert_array_equal(np.signbit(one[there]), np.signbit(other[there]), place)


def _leaves(value):
    """Yield every array of floats in a result."""
    if isinstance(value, dict):
        for key in sorted(value, key=str):
            yield from _leaves(value[key])
    elif isinstance(value, (tuple, list)) or (
        isinstance(value, np.ndarray) and value.dtype == object
    ):
        for one in value:
            yield from _leaves(one)
    elif isinstance(value, (float, np.floating, np.ndarray)):
        value = np.asarray(value)
        if value.dtype.kind == "f":
            yield value
