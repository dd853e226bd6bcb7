"""Random envs, described as data: an id or a small class, arguments, wrappers and changes.

A ``Recipe`` makes one env. Two vector envs that compare their results get deep copies of the same
recipes, so that they share no mutable object.
"""

import contextlib
import copy
import functools
import random
import re
import tempfile
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import gymnasium as gym
import mujoco
import numpy as np
from gymnasium import spaces, wrappers
from gymnasium.envs.mujoco import mujoco_env
from made_up import SpaceEnv

from pysampler.envs import BatchEnv
from pysampler.envs.mujoco import Task, draw

# -- small envs -----------------------------------------------------------------------------------

DTYPES = [np.float64, np.float32, np.float16, np.uint8, np.int16, np.int64]


def random_space(dice, depth=2, *, shaped=False):
    """Return a space; a ``shaped`` one is an array."""
    kinds = ["box"] * 4 + ["discrete", "discrete", "multi", "binary"]
    if depth and not shaped:
        kinds += ["dict", "tuple", "text", "sequence"]
    kind = dice.choice(kinds)
    if kind == "box":
        dtype = dice.choice(DTYPES)
        shape = tuple(dice.randrange(1, 4) for _ in range(dice.randrange(3)))
        low, high = (0, 100) if np.dtype(dtype).kind in "iu" else dice.choice([(-1, 1), (0, 9)])
        return spaces.Box(low, high, shape, dtype)
    if kind == "discrete":
        return spaces.Discrete(dice.randrange(1, 6), start=dice.choice([0, 0, -2, 3]))
    if kind == "multi":
        return spaces.MultiDiscrete([dice.randrange(1, 5) for _ in range(dice.randrange(1, 4))])
    if kind == "binary":
        return spaces.MultiBinary(dice.randrange(1, 5))
    if kind == "text":
        return spaces.Text(dice.randrange(1, 5))
    if kind == "sequence":
        return spaces.Sequence(spaces.Discrete(4), stack=dice.random() < 0.3)
    inner = [random_space(dice, depth - 1) for _ in range(dice.randrange(1, 4))]
    if kind == "tuple":
        return spaces.Tuple(inner)
    return spaces.Dict(dict(zip("bac", inner, strict=False)))


REWARDS = {
    "float": float,
    "float32": np.float32,
    "float64": np.float64,
    "int": lambda r: int(10 * r),
    "bool": lambda r: bool(r > 0),
    "array": np.asarray,
    "one": lambda r: np.array([r]),
}
ENDS = {"bool": bool, "numpy": np.bool_, "int": int, "array": np.array}
# What observations are, where the space is a box.
OBSERVED = {
    "space": lambda _, o: o,
    "float64": lambda _, o: o.astype(np.float64),
    "list": lambda _, o: o.tolist(),
    "fortran": lambda _, o: np.asfortranarray(o),
    "flat": lambda _, o: o.reshape(-1),
    "deep": lambda _, o: o.reshape(1, *o.shape),
    "buffer": lambda env, o: env.buffered(o),
}
# Keys of infos that mean something elsewhere; not those of both a value and the mask of another.
WORDS = ["a", "__a", "b", "episode", "final_obs", "x y", "steps", "worker_lost", "env_id"]


class Small(SpaceEnv):
    """A SpaceEnv whose results have odd types, and whose infos odd keys."""

    def __init__(
        self,
        observation_space,
        action_space=None,
        infos="none",
        ends=0.1,
        *,
        reward="float",
        end="bool",
        observed="space",
        words=(),
        scale=1.0,
        levels=(1.0, 2.0),
        table=None,
    ):
        super().__init__(observation_space, action_space, infos, ends)
        self.reward, self.end, self.observed, self.words = reward, end, observed, words
        self.scale, self.levels, self.table = scale, levels, table
        self.buffer = None

    def buffered(self, observation):
        if self.buffer is None:
            self.buffer = observation.copy()
        self.buffer[...] = observation
        return self.buffer

    def _observe(self):
        observation = super()._observe()
        if isinstance(self.observation_space, spaces.Box):
            return OBSERVED[self.observed](self, observation)
        return observation

    def _info(self, where):
        info = super()._info(where)
        for word in self.words:
            if self.np_random.random() < 0.6:
                kind = self.np_random.integers(6)
                values = 1, 0.5, "word", np.arange(2), {"_a": 1, "b": None}, np.float32(2)
                info[word] = values[kind] if len(self.words) > 2 else 1.5 * self.steps
        return info

    def step(self, action):
        observation, reward, end, cut, info = super().step(action)
        reward = reward * self.scale * self.levels[-1]
        if self.table is not None:
            self.table += 1
        end, cut = ENDS[self.end](end), ENDS[self.end](cut)
        return observation, REWARDS[self.reward](reward), end, cut, info

    # States, as get_state() of a vector env asks for them.
    def rescale(self, by):
        self.scale *= by
        return self.scale


def random_small(dice):
    """Return keyword arguments of ``Small``."""
    observation = random_space(dice, shaped=dice.random() < 0.6)
    kwargs = {
        "observation_space": observation,
        "action_space": random_space(dice, shaped=dice.random() < 0.7),
        "infos": dice.choice(["none", "none", "numbers", "all"]),
        "ends": dice.choice([0.0, 0.1, 0.4]),
        "scale": number(dice, dice.choice([0.5, 3, -1.5])),
    }
    if dice.random() < 0.5:
        kwargs["reward"] = dice.choice([*REWARDS])
    if dice.random() < 0.3:
        kwargs["end"] = dice.choice([*ENDS])
    if dice.random() < 0.4:
        kwargs["observed"] = dice.choice([*OBSERVED])
    if dice.random() < 0.3:
        kwargs["words"] = tuple(dice.sample(WORDS, dice.randrange(1, 4)))
    if dice.random() < 0.2:
        kwargs["levels"] = [1.0, number(dice, 2.0)]
    if dice.random() < 0.15:
        kwargs["table"] = np.arange(3.0)
    return kwargs


def number(dice, value):
    """Return a number as some type."""
    kind = dice.choice([float, float, np.float64, np.float32])
    return kind(value)


class Dice(SpaceEnv):
    """Draws from the global generators."""

    def step(self, action):
        observation, reward, *rest = super().step(action)
        reward += np.random.random() + np.random.normal() + random.gauss(0, 1)
        return observation, reward, *rest

    def reset(self, **kwargs):
        observation, info = super().reset(**kwargs)
        return observation, {**info, "drawn": random.random() + np.random.random()}


class Walk(gym.Env):
    """One env of ``Walks``. Actions beyond its space raise.

    Options of a reset may raise, name the key of an info, or say where it begins.
    """

    metadata = {}  # noqa: RUF012
    observation_space = spaces.Box(-9, 9, (2,), np.float64)
    action_space = spaces.Discrete(3)
    key = "x"  # of an info

    def reset(self, *, seed=None, options=None):
        if (options or {}).get("fail"):
            raise LookupError("options")
        super().reset(seed=seed)
        self.key = (options or {}).get("key", self.key)
        self.at = self.np_random.uniform(-1, 1, 2) + (options or {}).get("low", 0)
        self.steps = 0
        return self.at.copy(), {"first": self.at[0]}

    def step(self, action):
        if action > 2:
            raise LookupError("action")
        self.steps += 1
        self.at += (action - 1) * 0.3
        infos = {self.key: self.at[1], "n": self.at * 2}
        over = bool(np.abs(self.at).max() > 1.5)
        return self.at.copy(), -np.abs(self.at[0]), over, self.steps == 9, infos


class Walks(BatchEnv):
    """Many of ``Walk`` at once."""

    observation_space, action_space, max_episode_steps = (
        Walk.observation_space,
        Walk.action_space,
        9,
    )

    def __init__(self, num_envs):
        super().__init__(num_envs)
        self.at = self.rows((2,))
        self.begins = {}  # by env, where it begins

    key = Walk.key

    def set_options(self, ids, options):
        if any(one.get("fail") for one in options):
            raise LookupError("options")
        self.key = options[0].get("key", self.key)
        self.begins.update((i, one.get("low", 0)) for i, one in zip(ids, options, strict=True))

    def reset(self, ids, rngs):
        self.at[ids] = rngs.uniform(-1, 1, 2)
        self.at[ids] += np.array([self.begins.pop(i, 0) for i in ids])[:, None]
        return {"first": self.at[ids, 0].copy()}

    def step(self, ids, actions):
        if actions.max() > 2:
            raise LookupError("action")
        self.at[ids] += (actions[:, None] - 1) * 0.3
        at = self.at[ids]
        infos = {self.key: at[:, 1].copy(), "n": at * 2}
        return -np.abs(at[:, 0]), np.abs(at).max(1) > 1.5, infos

    def observe(self, ids):
        return self.at[ids]


MODEL = """<mujoco>
  <worldbody>
    <body><joint name="x" type="slide" axis="1 0 0"/><geom type="box" size="0.1 0.1 0.1"/></body>
  </worldbody>
  <actuator><motor joint="x" ctrlrange="-3 2" gear="4"/></actuator>
</mujoco>"""


class Slide(Task):
    """A task of a program."""

    max_episode_steps = 7

    def __init__(self):
        super().__init__(mujoco.MjModel.from_xml_string(MODEL), 2)

    def allocate(self):
        self.moved = np.zeros(self.count, np.float32)

    def observe(self, d):
        return np.concatenate((d.qpos, d.qvel), axis=1)

    def before(self, d):
        return d.qpos[:, 0].copy()

    def reward(self, d, before, action):
        moved = d.qpos[:, 0] - before
        self.moved[d.ids] += moved.astype(np.float32)
        return moved, {"moved": self.moved[d.ids].copy(), "time": d.time.copy()}

    def terminated(self, d):
        return np.abs(d.qpos[:, 0]) > 0.1

    def reset(self, rngs, ids):
        self.moved[ids] = 0
        qpos = draw(rngs, lambda rng: rng.normal(scale=0.1, size=1))
        return qpos, draw(rngs, lambda rng: rng.uniform(-0.5, 0.5, 1))


# -- ids ------------------------------------------------------------------------------------------


class Heavy:
    """A mixin: a subclass that overrides one method."""

    def step(self, action):
        observation, reward, *rest = super().step(action)
        return observation, reward * 2, *rest


@functools.cache
def subclass(entry_point):
    """Return a subclass of an env's class, whose rewards are doubled."""
    module, _, name = entry_point.partition(":")
    base = getattr(__import__(module, fromlist=[name]), name)
    return type(f"Heavy{name}", (Heavy, base), {})


IDS = {
    "CartPole-v1": {"sutton_barto_reward": [True, False]},
    "MountainCar-v0": {"goal_velocity": [0.0, 0.02]},
    "Acrobot-v1": {},
    "Pendulum-v1": {"g": [9.81, 10]},
    "MountainCarContinuous-v0": {"goal_velocity": [0.0, 0.02]},
    "FrozenLake-v1": {"is_slippery": [True, False]},
    "Taxi-v4" if "Taxi-v4" in gym.registry else "Taxi-v3": {},
    "Blackjack-v1": {"natural": [True, False]},
    "CliffWalking-v1": {},
}


def weaker(name):
    """Return a copy of a model of gymnasium's whose first motor is half as strong."""
    text = Path(mujoco_env.__file__).with_name("assets").joinpath(name).read_text()
    text = re.sub(r'gear="(\d+)"', lambda found: f'gear="{int(found[1]) / 2}"', text, count=1)
    path = Path(tempfile.gettempdir(), f"weaker_{name}")
    if not path.exists() or path.read_text() != text:
        path.write_text(text)
    return str(path)


MUJOCO = {
    "InvertedPendulum-v5": {"reset_noise_scale": [0.01, 0.1]},
    "InvertedDoublePendulum-v5": {"healthy_reward": [10.0, 3]},
    "HalfCheetah-v5": {
        "xml_file": [weaker("half_cheetah.xml")],
        "ctrl_cost_weight": [0.1, 0.5],
        "forward_reward_weight": [1.0, 2],
    },
    "Hopper-v5": {
        "xml_file": [weaker("hopper.xml")],
        "healthy_z_range": [(0.7, np.inf), [0.9, 2.0]],
        "ctrl_cost_weight": [1e-3, 0.1],
    },
    "Walker2d-v5": {"healthy_angle_range": [(-1.0, 1.0), [-0.5, 0.5]], "healthy_reward": [1.0, 2]},
    "Swimmer-v5": {"ctrl_cost_weight": [1e-4, 0.1]},
    "Reacher-v5": {"reward_dist_weight": [1, 2]},
}


@dataclass
class Recipe:
    """How to make an env.

    Attributes:
        make: An id, or a class.
        kwargs: Arguments.
        layers: Wrappers: the name and the arguments of each, the innermost first.
        change: A change of the env after it was made, by its name in ``CHANGES``.
        held: Collects the envs, as a program does that holds them.
    """

    make: Any
    kwargs: dict[str, Any] = field(default_factory=dict)
    layers: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    change: str | None = None
    held: list[Any] | None = None

    def __call__(self):
        kwargs = copy.deepcopy(self.kwargs)  # envs of a worker would share what others do not
        env = gym.make(self.make, **kwargs) if isinstance(self.make, str) else self.make(**kwargs)
        for name, kwargs in self.layers:
            env = LAYERS[name](env, **copy.deepcopy(kwargs))
        if self.change is not None:
            CHANGES[self.change](env)
        if self.held is not None:
            self.held.append(env)
        return env

    def __repr__(self):
        name = self.make if isinstance(self.make, str) else self.make.__name__
        parts = [f"{name}({_words(self.kwargs)})"]
        parts += [f"{layer}({_words(kwargs)})" for layer, kwargs in self.layers]
        if self.change:
            parts.append(f"change {self.change}")
        return " | ".join(parts)


def _words(kwargs):
    def word(value):
        return value.__name__ if callable(value) and hasattr(value, "__name__") else repr(value)

    return ", ".join(f"{name}={word(value)}" for name, value in kwargs.items())


# -- wrappers -------------------------------------------------------------------------------------

TABLE = np.array(2.0)


def double(x):
    return 2 * x


def third(x):
    return x / 3


def inverse(x):
    return 1 / x


def negative(x):
    return -x


def inverse_of_negative(x):
    return np.divide(1, -x)


def clipped(x):
    return np.clip(x, -0.5, 0.5)


def method_clipped(x):
    return x.clip(-0.5, 0.5)


def root(x):
    return np.sqrt(np.abs(x))


def summed(x):
    return x.sum()


def shifted(x):
    return x + TABLE


def in_place(x):
    x *= 2
    return x


FUNCTIONS = [
    *(double, third, inverse, negative, inverse_of_negative, clipped, method_clipped, root),
    *(summed, shifted, in_place),
]


def from_table(env):
    """Transform by an array that the env changes."""
    table = env.unwrapped.table
    return wrappers.TransformObservation(env, lambda o: o + table.sum(), None)


class Odd(gym.Wrapper):
    """A wrapper of a program."""

    def __init__(self, env, by=2.0):
        super().__init__(env)
        self.by = by

    def step(self, action):
        observation, reward, *rest = self.env.step(action)
        return observation, reward * self.by, *rest


class OddStatistics(wrappers.RecordEpisodeStatistics):
    """A subclass that overrides one method."""

    def reset(self, **kwargs):
        observation, info = super().reset(**kwargs)
        return observation, {**info, "begun": self.episode_count}


class OddReward(wrappers.TransformReward):
    def reward(self, reward):
        return super().reward(reward) + 1


LAYERS = {
    name: getattr(wrappers, name)
    for name in [
        *("TimeLimit", "OrderEnforcing", "PassiveEnvChecker", "RecordEpisodeStatistics"),
        *("NormalizeObservation", "NormalizeReward", "ClipAction", "RescaleAction"),
        *("TransformAction", "TransformObservation", "FlattenObservation", "ReshapeObservation"),
        *("RescaleObservation", "DtypeObservation", "FrameStackObservation", "TransformReward"),
        *("ClipReward", "TimeAwareObservation", "DelayObservation", "StickyAction"),
        *("MaxAndSkipObservation", "Autoreset"),
    ]
    if hasattr(wrappers, name)
}
LAYERS |= {"Odd": Odd, "OddStatistics": OddStatistics, "OddReward": OddReward}
LAYERS["from_table"] = from_table


def box(dice, space):
    """Return a box, like a space or beside it, in bits or by type."""
    low, high = dice.choice([(-1, 1), (0, 1), (-2.5, 0.5)])
    shape = getattr(space, "shape", None) or ()
    dtype = dice.choice([np.float32, np.float64, getattr(space, "dtype", None) or np.float32])
    return spaces.Box(low, high, shape, dtype if np.dtype(dtype).kind == "f" else np.float32)


def arguments_of(name, dice, env):
    """Return random arguments of a wrapper."""
    function, maybe = dice.choice(FUNCTIONS), dice.random() < 0.5
    low, high = dice.choice([(-1, 1), (0.0, 0.5), (-3, np.float32(1e-3))])
    of = {
        "TimeLimit": lambda: {"max_episode_steps": dice.randrange(1, 9)},
        "RecordEpisodeStatistics": lambda: dice.choice(
            [{}, {}, {"buffer_length": 3}, {"stats_key": "a"}, {"stats_key": "ep"}]
        ),
        "NormalizeObservation": lambda: {"epsilon": number(dice, dice.choice([1e-8, 0.5]))},
        "NormalizeReward": lambda: {
            "gamma": number(dice, 0.9),
            "epsilon": number(dice, dice.choice([1e-8, 0.5])),
        },
        "RescaleAction": lambda: {
            "min_action": number(dice, -1),
            "max_action": number(dice, dice.choice([1, 0.5])),
        },
        "TransformAction": lambda: {"func": function, "action_space": None},
        "TransformObservation": lambda: {
            "func": function,
            "observation_space": None if maybe else box(dice, env.observation_space),
        },
        "TransformReward": lambda: {"func": function},
        "OddReward": lambda: {"func": function},
        "ReshapeObservation": lambda: {
            "shape": dice.choice([(-1,), (1, *(env.observation_space.shape or ())), (2, 2)])
        },
        "RescaleObservation": lambda: {
            "min_obs": number(dice, 0),
            "max_obs": number(dice, dice.choice([1, 255])),
        },
        "DtypeObservation": lambda: {"dtype": dice.choice(DTYPES)},
        "FrameStackObservation": lambda: {
            "stack_size": dice.randrange(1, 5),
            "padding_type": dice.choice(["reset", "zero"]),
        },
        "ClipReward": lambda: dice.choice(
            [{"min_reward": low}, {"max_reward": high}, {"min_reward": low, "max_reward": high}]
        ),
        "DelayObservation": lambda: {"delay": dice.randrange(3)},
        "StickyAction": lambda: {"repeat_action_probability": 0.3},
        "MaxAndSkipObservation": lambda: {"skip": 2},
        "Odd": lambda: {"by": number(dice, 3)},
    }
    return of[name]() if name in of else {}


# -- changes of envs ------------------------------------------------------------------------------


def _wrapper(env, kind):
    """Return the outermost wrapper of a kind."""
    while env is not env.unwrapped:
        if isinstance(env, kind):
            return env
        env = env.env
    raise AttributeError(kind.__name__)


def _patch_step(env):
    base = env.unwrapped
    step = type(base).step

    def patched(action):
        observation, reward, *rest = step(base, action)
        return observation, reward + 1, *rest

    base.step = patched


def _patch_wrapper(env):
    if env is env.unwrapped:
        raise AttributeError("no wrapper")
    step = env.step

    def patched(action):
        observation, reward, *rest = step(action)
        return observation, reward - 1, *rest

    env.step = patched


def _lower_high(env):
    base = env.unwrapped
    base.action_space.high[...] = base.action_space.high / 2


def _set_elapsed(env):
    _wrapper(env, wrappers.TimeLimit)._elapsed_steps += 2


def _grow_list(env):
    base = env.unwrapped
    for name in ("levels", "_healthy_z_range", "_healthy_angle_range"):
        if isinstance(value := getattr(base, name, None), list):
            value[-1] = value[-1] * 0.5
            return value[-1]
    raise AttributeError("no list")


def _set_number(env):
    base = env.unwrapped
    for name in (
        *("gravity", "force", "scale", "g", "power", "_ctrl_cost_weight", "torque_noise_max"),
    ):
        if hasattr(base, name):
            setattr(base, name, getattr(base, name) * 1.5)
            return name
    raise AttributeError("no number")


def _set_state(env):
    env.unwrapped.state = tuple(0.9 * x for x in env.unwrapped.state)


def _reset_statistics(env):
    one = _wrapper(env, (wrappers.NormalizeObservation, wrappers.NormalizeReward))
    for name in ("obs_rms", "return_rms"):
        if hasattr(one, name):
            getattr(one, name).mean = getattr(one, name).mean * 2


def _stop_learning(env):
    _wrapper(
        env, (wrappers.NormalizeObservation, wrappers.NormalizeReward)
    ).update_running_mean = False


def _reseed(env):
    env.unwrapped.np_random = np.random.default_rng(9)


def _qpos(env):
    base = env.unwrapped
    base.set_state(base.init_qpos, base.init_qvel)


def _step_once(env):
    """Step an env behind the back of its vector env."""
    env.action_space.seed(4)
    return env.step(env.action_space.sample())[1]


CHANGES = {
    "patch step": _patch_step,
    "patch wrapper": _patch_wrapper,
    "lower high": _lower_high,
    "elapsed": _set_elapsed,
    "list": _grow_list,
    "number": _set_number,
    "state": _set_state,
    "statistics": _reset_statistics,
    "stop learning": _stop_learning,
    "reseed": _reseed,
    "qpos": _qpos,
    "step": _step_once,
}
AT_BIRTH = ["patch step", "patch wrapper", "lower high", "number", "stop learning"]


# -- recipes --------------------------------------------------------------------------------------


# Wrappers that vector envs may run on arrays of all envs.
ON_BATCHES = [
    *("RecordEpisodeStatistics", "NormalizeObservation", "NormalizeReward", "ClipAction"),
    *("RescaleAction", "TransformAction", "TransformObservation", "FlattenObservation"),
    *("RescaleObservation", "DtypeObservation", "FrameStackObservation", "TransformReward"),
    *("ClipReward", "RecordEpisodeStatistics", "TransformReward", "from_table"),
]


def with_layers(dice, recipe, most, names=tuple(LAYERS)):
    """Return the recipe with random wrappers; most of those that cannot be made are left out."""
    env = recipe()
    layers = list(recipe.layers)
    for _ in range(dice.randrange(most + 1)):
        name = dice.choice(names)
        kwargs = arguments_of(name, dice, env)
        try:
            wrapped = LAYERS[name](env, **copy.deepcopy(kwargs))
        except Exception:
            if dice.random() < 0.01:
                layers.append((name, kwargs))
                break
            continue
        env = wrapped
        layers.append((name, kwargs))
    with contextlib.suppress(Exception):
        env.close()
    return replace(recipe, layers=layers)


def batched_recipe(dice):
    """Return a recipe of envs of which many may be stepped on arrays."""
    kind = dice.random()
    if kind < 0.3:
        kwargs = random_small(dice)
        kwargs["observation_space"] = spaces.Box(-1, 9, (3,), dice.choice([np.float32, np.float64]))
        kwargs["observed"] = dice.choice(["space", "space", "buffer", "float64"])
        recipe = Recipe(Small, kwargs)
    else:
        names = ["CartPole-v1", "MountainCar-v0", "Acrobot-v1", "Pendulum-v1", *MUJOCO]
        recipe = Recipe(dice.choice(names), {"max_episode_steps": dice.randrange(3, 40)})
    return with_layers(dice, recipe, 6, ON_BATCHES)


def random_recipe(dice, most=6):
    kind = dice.random()
    if kind < 0.05:
        space = random_space(dice, shaped=True)
        recipe = Recipe(Dice, {"observation_space": space, "ends": dice.choice([0.0, 0.3])})
    elif kind < 0.45:
        recipe = Recipe(Small, random_small(dice))
    else:
        ids = MUJOCO if kind < 0.6 else IDS
        env_id = dice.choice([*ids][:3] * 3 + [*ids])
        kwargs = {
            name: dice.choice(some) for name, some in ids[env_id].items() if dice.random() < 0.3
        }
        kwargs = {
            name: number(dice, value) if isinstance(value, float) else value
            for name, value in kwargs.items()
        }
        entry_point = gym.spec(env_id).entry_point
        what = dice.random()
        if what < 0.8:
            kwargs["max_episode_steps"] = dice.randrange(3, 40)
            recipe = Recipe(env_id, kwargs)
        elif what < 0.9 or env_id.startswith(("FrozenLake", "Taxi")):
            if dice.random() < 0.5:
                kwargs["disable_env_checker"] = True
            recipe = Recipe(env_id, kwargs)
        elif what < 0.95:
            recipe = Recipe(subclass(entry_point), kwargs)
        else:
            module, _, name = entry_point.partition(":")
            recipe = Recipe(getattr(__import__(module, fromlist=[name]), name), kwargs)
    recipe = with_layers(dice, recipe, most if dice.random() < 0.7 else 0)
    if dice.random() < 0.08:
        recipe.change = dice.choice(AT_BIRTH)
    return recipe


def varied(dice, recipe):
    """Return a recipe like this one, with one argument, wrapper or change of its own."""
    with contextlib.suppress(Exception):  # of a change that the env cannot have
        return _varied(dice, recipe)
    return recipe


def _varied(dice, recipe):
    recipe = replace(recipe, kwargs=dict(recipe.kwargs), layers=list(recipe.layers))
    kind = dice.randrange(4)
    if kind == 0 and dice.random() < 0.3:
        space = recipe.kwargs["observation_space"]
        recipe.kwargs["observation_space"] = spaces.Box(-2, 10, space.shape, space.dtype)
    elif kind == 0 and isinstance(recipe.make, str):
        known = {**IDS, **MUJOCO}[recipe.make]
        for name, some in known.items():
            recipe.kwargs[name] = dice.choice(some)
        recipe.kwargs["max_episode_steps"] = dice.randrange(3, 40)
    elif kind == 0:
        if "scale" in recipe.kwargs:
            recipe.kwargs["scale"] = number(dice, recipe.kwargs["scale"])
    elif kind == 1 and recipe.layers:
        i = dice.randrange(len(recipe.layers))
        name, kwargs = recipe.layers[i]
        changed = dict(kwargs)
        for key, value in kwargs.items():
            if isinstance(value, (float, np.floating)):
                changed[key] = dice.choice([float, np.float64, np.float32])(value)
            elif key == "func":
                changed[key] = dice.choice(FUNCTIONS)
            elif key in ("max_episode_steps", "buffer_length"):
                changed[key] = value + dice.randrange(2)
        recipe.layers[i] = name, changed
    elif kind == 2:
        recipe.change = dice.choice(AT_BIRTH)
    else:
        base = replace(recipe, layers=[])
        return with_layers(dice, base, 6)
    return recipe
