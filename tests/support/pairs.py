"""Runs a program of calls on a vector env and on SyncVectorEnv, and compares all bits."""

import contextlib
import copy
import functools
import os
import pickle
import random
import re
import signal
from collections import deque
from dataclasses import dataclass, field
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers import vector as vector_wrappers
from gymnasium.wrappers.utils import RunningMeanStd
from interrupts import at_point
from made_up import identical
from random_envs import CHANGES, LAYERS, Slide, Walks

import pysampler


class DifferenceError(AssertionError):
    """The two vector envs differ. A smaller case must differ in the same ``kind`` of way."""

    def __init__(self, words, kind="results"):
        super().__init__(words)
        self.kind = kind


@dataclass
class Case:
    """A pair of vector envs and the calls that both get.

    Attributes:
        recipes: How each env is made; equal ones may be the same object.
        options: Options of pysampler's vector env.
        mode: The autoreset mode of both.
        form: How the functions are given: "recipe", "partial", "make_vec", "nested" (as vector
            envs), "task" or "batch".
        outer: A vector wrapper around both, by its name in ``OUTER``.
        calls: The name of each call and the seed of its arguments.
        inner: The autoreset mode of nested vector envs, if not ``mode``.
    """

    recipes: list[Any]
    options: dict[str, Any]
    mode: AutoresetMode
    form: str = "recipe"
    outer: str | None = None
    calls: list[tuple[str, int]] = field(default_factory=list)
    inner: AutoresetMode | None = None

    def __str__(self):
        same = len({id(one) for one in self.recipes}) == 1
        lines = [f"  {one!r}" for one in (self.recipes[:1] if same else self.recipes)]
        return "\n".join(
            [
                f"{len(self.recipes)} envs, {'one function' if same else 'functions'}:",
                *lines,
                f"{self.form}, {self.mode.name}, {self.options}, within {self.outer}",
                f"calls: {self.calls}",
            ]
        )


OUTER = {
    "statistics": vector_wrappers.RecordEpisodeStatistics,
    "observations": vector_wrappers.NormalizeObservation,
    "rewards": vector_wrappers.NormalizeReward,
    "transform": lambda envs: vector_wrappers.TransformObservation(envs, lambda o: o * 2),
    "dtype": lambda envs: vector_wrappers.DtypeObservation(envs, np.float32),
    "flat": vector_wrappers.FlattenObservation,
    "clip": vector_wrappers.ClipAction,
    "rescale": lambda envs: vector_wrappers.RescaleAction(envs, -1, 1),
    "infos": vector_wrappers.DictInfoToList,
}


def functions_of(case, recipes):
    """Return functions that make envs."""
    shares = case.options["num_workers"] == 0  # a list in the arguments
    of = {}
    for one in recipes:
        bare = isinstance(one.make, str) and not one.layers and one.change is None
        lists = any(isinstance(value, list) for value in one.kwargs.values())
        if case.form == "recipe" or not bare or (lists and not shares):
            of[id(one)] = one
        else:
            of[id(one)] = functools.partial(gym.make, one.make, **one.kwargs)
    return [of[id(one)] for one in recipes]


# -- results --------------------------------------------------------------------------------------

_WORDS = (str, bytes, bool, int, float, complex, type(None), np.generic)


def plain(value):
    """Return a value in parts that ``identical`` compares; without times."""
    if isinstance(value, dict):
        if {"r", "l", "t"} <= value.keys():  # of RecordEpisodeStatistics: "t" is a time
            value = {**value, "t": value["t"] * 0}
        return {key: plain(part) for key, part in value.items()}
    if type(value) in (list, tuple):
        return type(value)(plain(part) for part in value)
    if isinstance(value, deque):
        return ["deque", value.maxlen, *map(plain, value)]
    if type(value) is np.ndarray and value.dtype == object:
        return ["objects", value.shape, *map(plain, value.ravel())]
    if isinstance(value, np.ndarray) and value.ndim == 0:  # a RunningMeanStd has one at first
        value = value[()]
    if isinstance(value, np.ndarray):
        return [type(value).__name__, np.asarray(value)]
    if isinstance(value, np.random.Generator):
        return plain(value.bit_generator.state)
    if isinstance(value, RunningMeanStd):
        return plain(vars(value))
    if isinstance(value, spaces.Space):
        return repr(value)
    return value if isinstance(value, _WORDS) else type(value).__name__


# What a vector RecordEpisodeStatistics counts.
_COUNTED = ("episode_returns", "episode_lengths", "episode_start_times", "prev_dones")
# Of gymnasium's copies of observations into one array, and of a reward of one element.
_REFUSED = (
    *("Output array", "Cannot cast array data", "all input arrays must have the same shape"),
    "setting an array element with a sequence",
)


def documented(failed, refused):
    """Return whether docs/migrate.md says that only one raises, or both different exceptions."""
    if failed is not None and str(failed).startswith("cannot send actions: "):
        return True
    if refused is None and re.search(r"observation has shape .*, expected", str(failed)):
        return True
    if str(refused) == "'NoneType' object is not subscriptable":  # an env that was never reset
        return True
    if refused is not None and str(failed).startswith("cannot batch infos"):
        return True  # the keys come in another order
    # A later env may raise here: all envs step before their results are joined.
    if isinstance(failed, pysampler.EnvError):
        return str(refused).startswith((*_REFUSED, "'numpy.ndarray' object has no attribute 'get'"))
    return failed is None and str(refused).startswith(_REFUSED)


def outcome(function, *args, **kwargs):
    """Return the result of a call, or its exception."""
    try:
        return function(*args, **kwargs), None
    except Exception as error:
        return None, error


class Pair:
    """Runs a case."""

    def __init__(self, case):
        self.case, self.mode = case, case.mode
        self.ours = self.theirs = None
        self.ended = np.zeros(len(case.recipes), bool)
        self.seeded = case.calls[:1] and case.calls[0][0] == "seeded_reset"
        self.kept = deque(maxlen=4)
        self.options, self.version = [None] * len(case.recipes), 0
        context = case.options.get("context")
        self.in_processes = case.options["num_workers"] > 0 and context != "threads"
        self.log = []

    def run(self):
        try:
            if self.make():
                for name, seed in self.case.calls:
                    if not getattr(self, name)(random.Random(seed)) or not self.seeded:
                        break
        finally:
            for envs in (self.ours, self.theirs):
                if envs is not None:
                    with contextlib.suppress(Exception):
                        envs.close()

    def make(self):
        case, count = self.case, len(self.case.recipes)
        mine, other = copy.deepcopy(case.recipes), copy.deepcopy(case.recipes)
        self.held = [], []
        if case.options["num_workers"] == 0:
            for some, held in zip((mine, other), self.held, strict=True):
                for one in some:
                    one.held = held
        first = mine[0]
        options = {**case.options, "autoreset_mode": case.mode}
        if case.form == "nested":
            size = 1 + count // 3
            chunks = [mine[i : i + size] for i in range(0, count, size)]
            fns = [functools.partial(nested, one, case.inner or case.mode) for one in chunks]
            options["num_workers"] = min(options["num_workers"], len(fns))
            options["main_envs"] = min(options.pop("main_envs", 0), len(fns) - 1)
            make = functools.partial(pysampler.VectorEnv, fns, **options)
        elif case.form in ("task", "batch"):
            kind = Walks if case.form == "batch" else Slide
            make = functools.partial(pysampler.make_vec, kind, count, vector_kwargs=options)
        elif case.form == "make_vec" and first.change is None and all(r is first for r in mine):
            layers = [functools.partial(LAYERS[name], **kwargs) for name, kwargs in first.layers]

            def make():
                return pysampler.make_vec(
                    first.make, count, wrappers=layers, vector_kwargs=options, **first.kwargs
                )
        else:
            make = functools.partial(pysampler.VectorEnv, functions_of(case, mine), **options)
        self.ours, failed = outcome(make)
        theirs = functools.partial(
            SyncVectorEnv,
            functions_of(case, other),
            observation_mode=case.options.get("observation_mode", "same"),
            autoreset_mode=case.mode,
            copy=case.options.get("copy", True),
        )
        self.theirs, refused = outcome(theirs)
        if not self.alike("make", (None, failed), (None, refused)):
            return False
        for name in ("single_observation_space", "observation_space", "single_action_space"):
            if getattr(self.ours, name) != getattr(self.theirs, name):
                raise DifferenceError(f"{name} differs")
        self.compare(self.ours.metadata, self.theirs.metadata, "metadata")
        self.compare(self.ours.render_mode, self.theirs.render_mode, "render_mode")
        if case.options.get("seed_globals"):
            self.theirs.envs = [Alone(env) for env in self.theirs.envs]
        self.outer = self.ours, self.theirs
        if case.outer is not None:
            both = [outcome(OUTER[case.outer], envs) for envs in self.outer]
            if not self.alike("outer", *[(None, error) for _, error in both]):
                return False
            self.outer = [envs for envs, _ in both]
        return True

    def compare(self, ours, theirs, what):
        ours, theirs = plain(ours), plain(theirs)
        if pickle.dumps(ours) == pickle.dumps(theirs):  # the fast way
            return
        try:
            identical(ours, theirs, what)
        except AssertionError as error:
            raise DifferenceError(str(error).strip()) from None

    def alike(self, what, ours, theirs):
        """Compare two outcomes; return whether the program goes on."""
        (mine, failed), (other, refused) = ours, theirs
        if self.version and isinstance(mine, tuple) and mine and isinstance(mine[-1], dict):
            for key in ("options_version", "_options_version"):
                mine[-1].pop(key, None)
        if failed is None and refused is None:
            if self.seeded:
                self.compare(mine, other, what)
            return True
        if documented(failed, refused) or not self.seeded:  # then envs may raise by chance
            return False
        if failed is None or refused is None:
            one, error = ("gymnasium", refused) if failed is None else ("pysampler", failed)
            kind = f"only {one} raises {type(error).__name__}"
            raise DifferenceError(f"{what}: only {one} raises {error!r}", kind) from error
        if not isinstance(failed, type(refused)):
            kind = f"{type(failed).__name__} and {type(refused).__name__}"
            raise DifferenceError(f"{what}: {failed!r} and {refused!r}", kind) from failed
        return False

    def both(self, what, function, pair=None):
        """Call a function with each vector env and compare the results."""
        self.log.append(what)
        ours, theirs = pair or (self.ours, self.theirs)
        first = outcome(function, ours)
        return self.alike(what, first, outcome(function, theirs))

    # -- calls ------------------------------------------------------------------------------------

    def seeded_reset(self, dice):
        return self.reset(dice, seeds=[7, [dice.randrange(99) for _ in self.ended]])

    def reset(self, dice, seeds=None):
        count = len(self.ended)
        seeds = seeds or [None, None, 3, [dice.choice([None, 5]) for _ in range(count)]]
        seed = dice.choice(seeds)
        options = dice.choice([None, None, None, {}, {"a": 1}, {"low": -0.02, "high": 0.01}])
        self.ended[:] = False
        return self.both(
            f"reset(seed={seed}, options={options})",
            lambda envs: envs.reset(seed=copy.copy(seed), options=copy.copy(options)),
            self.outer,
        )

    def masked_reset(self, dice, mask=None):
        if mask is None:
            mask = np.array([dice.random() < 0.5 for _ in self.ended])
            mask[dice.randrange(len(mask))] = True
        seed = dice.choice([None, None, 11])
        rest = dice.choice([{}, {}, {"a": 2}])
        self.ended[mask] = False

        def masked(envs):
            counted = [vars(envs).get(name) for name in _COUNTED]
            options = {"reset_mask": mask.copy(), **copy.copy(rest)}
            results = envs.reset(seed=seed, options=options)
            if "reset_mask" not in options:  # SyncVectorEnv took it, so the wrapper counts anew
                for name, before in zip(_COUNTED, counted, strict=True):
                    if before is not None:
                        vars(envs)[name] = np.where(mask, vars(envs)[name], before)
            return results

        what = f"reset(seed={seed}, options={rest} with reset_mask={mask.tolist()})"
        return self.both(what, masked, self.outer)

    def ready(self, dice):
        """Reset ended envs where gymnasium wants that; return whether the program goes on."""
        if self.mode is not AutoresetMode.DISABLED or not self.ended.any():
            return True
        return self.masked_reset(dice, self.ended.copy())

    def actions(self, dice):
        """Return actions, some of which are odd, and their description."""
        self.theirs.action_space.seed(dice.randrange(1 << 20))
        actions = self.theirs.action_space.sample()
        odd = isinstance(actions, np.ndarray) and self.case.form != "nested"
        if dice.random() < 0.7 or not odd:
            return actions, ""
        row = dice.randrange(len(actions))
        name, change = dice.choice(
            [
                ("list", lambda a: a.tolist()),
                ("rows", list),
                ("float64", lambda a: a.astype(np.float64)),
                ("float32", lambda a: a.astype(np.float32)),
                ("float16", lambda a: a.astype(np.float16)),
                ("int32", lambda a: a.astype(np.int32)),
                ("uint8", lambda a: a.astype(np.uint8)),
                ("big-endian", lambda a: a.astype(a.dtype.newbyteorder(">"))),
                ("fortran", np.asfortranarray),
                ("strided", lambda a: np.repeat(a, 2, 0)[::2]),
                ("out of bounds", lambda a: a * 3 + 1),
                ("one too high", lambda a: _set(a, row, 99)),
                ("negative", lambda a: _set(a, row, -1)),
                ("NaN", lambda a: _set(a, row, np.nan)),
                ("inf", lambda a: _set(a, row, np.inf)),
                ("-0.0", lambda a: a * 0 - 0.0),
                ("short", lambda a: a[:-1]),
                ("deep", lambda a: a[..., None]),
                ("object", lambda a: a.astype(object)),
            ]
        )
        if name in ("short", "deep", "object", "one too high", "negative") and dice.random() < 0.7:
            return actions, ""
        with contextlib.suppress(ValueError, OverflowError):  # NaN is no integer
            return change(actions), name
        return actions, ""

    def steps(self, dice):
        how = dice.choice(["step", "step", "step", "async"])
        for _ in range(dice.choice([1, 1, 2, 5, 12])):
            if not self.ready(dice):
                return False
            actions, name = self.actions(dice)
            given = [copy.deepcopy(actions) for _ in range(2)]
            self.log.append(f"{how} {name}")
            ours = outcome(self.step_ours, how, given[0])
            theirs = outcome(self.outer[1].step, given[1])
            what = f"{how}({name}) with {actions!r:.300}"
            if not self.alike(what, ours, theirs):
                return False
            self.compare(given[0], actions, "the actions of the caller")
            if not self.seeded:  # whether it ends an episode is random
                return False
            self.seen(*ours[0])
        return True

    def step_ours(self, how, actions):
        if how == "step" or self.case.outer:
            return self.outer[0].step(actions)
        self.ours.step_async(actions)
        return self.ours.step_wait()

    def seen(self, observations, rewards, terminated, truncated, infos):
        self.ended = terminated | truncated
        if self.case.options.get("copy", True):
            results = observations, rewards, terminated, truncated, infos
            self.kept.append((results, copy.deepcopy(results)))
        else:
            self.kept.append(((rewards, infos), copy.deepcopy((rewards, infos))))
        for results, as_they_were in [] if self.case.outer else self.kept:
            self.compare(results, as_they_were, "earlier results, later")

    def chunk(self, dice):
        space = self.theirs.single_action_space
        arrays = spaces.Box, spaces.Discrete, spaces.MultiDiscrete
        if self.case.outer or self.case.form == "nested" or not isinstance(space, arrays):
            return True
        if not self.ready(dice):
            return False
        self.theirs.action_space.seed(dice.randrange(1 << 20))
        rows = [self.theirs.action_space.sample() for _ in range(dice.randrange(1, 6))]
        actions = np.stack(rows, axis=1)
        self.log.append(f"step_chunk of {len(rows)}")
        ours = outcome(self.ours.step_chunk, actions.copy())
        if not self.alike(self.log[-1], ours, outcome(steps_in_a_row, self.theirs, actions)):
            return False
        self.seen(*ours[0])
        return True

    def call(self, dice):
        name, args = dice.choice(
            [("double", (3,)), ("rescale", (2.0,)), ("rescale", (np.float32(0.1),)), ("no", ())]
        )
        done = self.both(f"call({name!r}, {args})", lambda envs: envs.call(name, *args))
        return done or name in ("double", "rescale", "no")

    def get_attr(self, dice):
        if self.case.form == "batch":  # has attributes of its own
            return True
        names = [
            *("_elapsed_steps", "state", "np_random_seed", "np_random", "scale", "obs_rms"),
            *("return_rms", "return_queue", "length_queue", "episode_count", "gravity", "levels"),
            *("action_space", "observation_space", "render_mode", "no", "discounted_reward"),
            *("episode_returns", "episode_lengths", "unwrapped", "has_reset", "spec", "low", "s"),
            *("init_qpos", "obs_queue", "steps"),
        ]
        name = dice.choice(names)
        if name == "unwrapped" and self.in_processes:  # may not be pickled
            return True
        self.both(f"get_attr({name!r})", lambda envs: envs.get_attr(name))
        return True

    def set_attr(self, dice):
        if self.case.form == "batch":  # it has one value for all of its envs
            return True
        count = len(self.ended)
        name, value = dice.choice(
            [
                *(("scale", 3.0), ("gravity", 5.0), ("force", 0.002), ("g", np.float64(3))),
                *(("extra", [1] * count), ("update_running_mean", False), ("_elapsed_steps", 2)),
                *(("gamma", 0.5), ("epsilon", 0.25), ("max_torque", 1.0), ("scale", np.float32(2))),
                *(("_ctrl_cost_weight", 2.0), ("extra", [dice.random() for _ in range(count)])),
            ]
        )
        return self.both(
            f"set_attr({name!r}, {value})", lambda envs: envs.set_attr(name, copy.copy(value))
        )

    def apply(self, dice):
        if self.case.form in ("nested", "task", "batch"):
            return True
        name = dice.choice([*CHANGES])
        if name == "step" and self.case.options.get("seed_globals"):  # is not covered
            return True
        if name == "step" and self.case.recipes[0].kwargs.get("observed") == "buffer":
            return True  # gymnasium keeps the env's array, which changes with that step
        if name == "lower high" and self.case.outer:  # SyncVectorEnv's space is that of its env 0
            return True
        some = sorted(dice.sample(range(len(self.ended)), dice.randrange(1, len(self.ended) + 1)))
        some = dice.choice([[0], some, [*range(len(self.ended))]])

        def function(envs):
            if envs is self.ours:
                return envs.apply(CHANGES[name], envs=some)
            return tuple(CHANGES[name](getattr(envs.envs[i], "alone", envs.envs[i])) for i in some)

        alike = all(one is self.case.recipes[0] for one in self.case.recipes)
        done = self.both(f"apply({name!r}) of {some}", function)
        return done or (alike and name != "step")  # else some envs may have changed in one only

    def hold(self, dice):
        """Change an env that the program holds, not through the vector env."""
        options = self.case.options
        if self.in_processes or self.case.form in ("nested", "task", "batch"):
            return True
        i, name = dice.randrange(len(self.ended)), dice.choice([*CHANGES])
        if name == "step" and options.get("seed_globals"):
            return True
        by = dice.choice(["list", "unwrapped"])
        if by == "list" and not len(self.held[0]) == len(self.held[1]) == len(self.ended):
            by = "unwrapped"

        def function(envs):
            if by == "list":
                env = self.held[envs is self.theirs][i]
            else:
                env = envs.get_attr("unwrapped")[i]
            return CHANGES[name](env)

        self.both(f"{name} of env {i}, held by {by}", function)
        return True

    def render(self, dice):
        if self.case.form == "batch":  # it has no such method
            return True
        return self.both("render()", lambda envs: envs.render())

    def partial(self, dice):
        """Step some groups with ``send`` and ``recv``."""
        if self.case.outer or not self.ready(dice):
            return self.case.outer is not None
        actions, _ = self.actions(dice)
        if not isinstance(actions, np.ndarray) or len(actions) != len(self.ended):
            return True
        groups = [list(group) for group in self.ours._core.groups]
        chosen = dice.sample(groups, dice.randrange(1, len(groups) + 1))
        ids = [env for group in chosen for env in group]
        self.log.append(f"send and recv of {ids}")
        ours = outcome(self.send_and_recv, actions[ids], ids)
        order = ids if ours[0] is None else ours[0][4]["env_id"].tolist()
        theirs = outcome(steps_in_a_row, self.theirs, actions[:, None], order)
        if not self.alike(f"{self.log[-1]} with {actions!r:.300}", ours, theirs):
            return False
        _, _, terminated, truncated, _ = ours[0]
        self.ended[order] = terminated | truncated
        return True

    def send_and_recv(self, actions, ids):
        self.ours.send(actions, ids)
        return self.ours.recv()

    def set_options(self, dice):
        """Set options of later resets; in gymnasium, each env's reset gets them."""
        if self.case.outer or self.case.form == "nested":
            return True
        some = sorted(dice.sample(range(len(self.ended)), dice.randrange(1, len(self.ended) + 1)))
        options = dice.choice([{"b": 5}, {"low": -0.03, "high": 0.0}, None])
        self.log.append(f"set_options({some}, {options})")
        self.version = self.ours.set_options(some, options)
        for i in some:
            self.options[i] = options
            env = self.theirs.envs[i]
            if not hasattr(env.reset, "reset"):
                env.reset = WithOptions(env.reset, self.options, i)
        return True

    def kill(self, dice):
        """Kill a worker: the others' results are right, and so are all after a reset."""
        options = self.case.options
        if options.get("on_worker_loss") != "restart" or self.case.outer or not self.seeded:
            return True
        learns = any(name.startswith("Normalize") for name, _ in self.case.recipes[0].layers)
        resets = self.mode is AutoresetMode.SAME_STEP or self.ended.any()
        if not self.ready(dice) or (learns and resets):
            return True  # wrappers of replacements learn from their first reset
        worker = dice.randrange(len(self.ours._pool.pids))
        killed = list(self.ours._pool.assignments[worker].envs)
        begins = self.ended & (self.mode is AutoresetMode.NEXT_STEP)
        pid = self.ours._pool.pids[worker]
        self.log.append("kill")
        before = copy.deepcopy(self.theirs._observations)
        os.kill(pid, signal.SIGKILL)
        actions = self.theirs.action_space.sample()
        theirs = outcome(self.theirs.step, actions)
        (ours, failed) = outcome(self.ours.step, actions)
        if failed or theirs[1]:
            return self.alike("step after kill", (ours, failed), theirs)
        lost = ours[4].get("worker_lost", np.zeros(len(begins), bool))
        gone = np.isin(np.arange(len(lost)), killed) & ~begins
        expected = lost if self.case.form == "nested" else gone  # which loses all or none
        if (lost != expected).any() or (lost & ~ours[3]).any():
            raise DifferenceError(f"after a kill, worker_lost is {lost} and truncated {ours[3]}")
        for mine, other in zip(ours[1:4], theirs[0][1:4], strict=True):
            self.compare(mine[~lost], other[~lost], "results of other workers")
        if isinstance(before, np.ndarray):
            last = ours[0]
            if self.mode is AutoresetMode.SAME_STEP:
                last = ours[4]["final_obs"]
            for i in np.flatnonzero(lost):
                self.compare(last[i], before[i], f"the last observation of env {i}, which was lost")
        for i in killed:
            self.theirs.envs[i] = copy.deepcopy(self.case.recipes[i])()
            if options.get("seed_globals"):
                self.theirs.envs[i] = Alone(self.theirs.envs[i])
            if self.options[i] is not None:
                self.theirs.envs[i].reset = WithOptions(self.theirs.envs[i].reset, self.options, i)
        return self.seeded_reset(dice)

    def stumble(self, dice):
        """Let one env raise in a step: all others make theirs."""
        space = self.theirs.single_action_space
        going = np.flatnonzero(~self.ended)
        if not isinstance(space, spaces.Discrete) or not len(going) or not self.ready(dice):
            return True
        i = dice.choice(going.tolist())
        actions = self.theirs.action_space.sample()
        actions[i] = 99
        self.log.append(f"step({actions.tolist()})")
        before = self.theirs._observations[i].copy()
        rows = [row for row in range(len(actions)) if row != i]
        _, failed = outcome(self.ours.step, actions.copy())
        if not isinstance(failed, pysampler.EnvError):
            raise DifferenceError(f"action {actions[i]} of env {i} raised {failed!r}")
        *results, infos = failed.results
        marks = infos["env_error"]
        if self.case.form in ("batch", "nested"):  # those of one object step together
            return marks[i] and self.seeded_reset(dice)
        if failed.env != i or marks.tolist() != [row == i for row in range(len(actions))]:
            raise DifferenceError(f"env {i} raised, the error says {failed} and {marks}")
        _, refused = outcome(self.theirs.envs[i].step, actions[i])
        if not isinstance(failed, type(refused)):
            raise DifferenceError(f"{failed!r} and {refused!r}")
        nothing = before, np.float64(0), np.False_, np.False_
        self.compare(tuple(one[i] for one in results), nothing, f"the results of env {i}")
        theirs = steps_in_a_row(self.theirs, actions[:, None], rows)
        for name, mine, other in zip("ORTt", results, theirs, strict=False):
            self.compare(mine[rows], other, f"{name} of the others")
        self.ended[rows] = theirs[2] | theirs[3]
        return True

    def bad_options(self, dice):
        """Let the reset of one env raise: its episode and all others go on."""
        going = np.flatnonzero(~self.ended)
        if not len(going):
            return True
        mask = np.zeros(len(self.ended), bool)
        mask[dice.choice(going.tolist())] = True
        self.both(
            f"reset with options that fail of {mask.tolist()}",
            lambda envs: envs.reset(options={"reset_mask": mask.copy(), "fail": True}),
        )
        return True

    def new_key(self, dice):
        """Let all envs have an info that they have not had."""
        key = dice.choice("uvw")
        self.ended[:] = False
        return self.both(f"reset(key={key})", lambda envs: envs.reset(options={"key": key}))

    def interrupt(self, dice):
        """Raise in a signal handler within a step: after a reset all is well."""
        learns = any(name.startswith("Normalize") for name, _ in self.case.recipes[0].layers)
        if self.case.options["num_workers"] or learns or not self.seeded or not self.ready(dice):
            return True  # a reset leaves what wrappers have learned
        actions = self.theirs.action_space.sample()
        reached, _, where = at_point(dice.randrange(1, 60), lambda: self.ours.step(actions))
        self.log.append(f"interrupted at {where}" if reached else "not interrupted")
        if reached and dice.random() < 0.5:
            with contextlib.suppress(gym.error.NoAsyncCallError):
                self.ours.step_wait()
        return self.seeded_reset(dice)


class WithOptions:
    """The reset of an env that gets the options of ``set_options``."""

    def __init__(self, reset, options, i):
        self.reset, self.options, self.i = reset, options, i

    def __call__(self, **kwargs):
        if not kwargs.get("options") and self.options[self.i] is not None:
            kwargs["options"] = self.options[self.i]
        return self.reset(**kwargs)


class Alone:
    """Stands for an env with global generators of its own, as ``seed_globals`` promises."""

    def __init__(self, env):
        self.alone, self.state = env, None

    def __getattr__(self, name):
        return getattr(self.alone, name)

    def step(self, action):
        return self._swapped(lambda: self.alone.step(action))

    def reset(self, *, seed=None, options=None):
        return self._swapped(lambda: self.alone.reset(seed=seed, options=options), seed)

    def _swapped(self, function, seed=None):
        before = random.getstate(), np.random.get_state()
        if self.state is not None:
            random.setstate(self.state[0])
            np.random.set_state(self.state[1])
        if seed is not None:
            random.seed(seed)
            np.random.seed(seed)
        try:
            return function()
        finally:
            self.state = random.getstate(), np.random.get_state()
            random.setstate(before[0])
            np.random.set_state(before[1])


def nested(recipes, mode):
    return SyncVectorEnv(recipes, autoreset_mode=mode)


def _set(actions, row, value):
    actions = actions.copy()
    actions[row] = value
    return actions


def steps_in_a_row(envs, actions, ids=None):
    """Return what ``step_chunk`` returns, or ``recv`` for these envs, by steps of single envs."""
    mode, length = envs.autoreset_mode, actions.shape[1]
    rows = list(range(envs.num_envs)) if ids is None else ids
    part = gym.vector.VectorEnv()
    part.num_envs = count = len(rows)
    rewards, taken, infos = np.zeros((count, length)), np.zeros(count, np.int64), {}
    iterated = [list(envs_actions(envs, actions[:, k])) for k in range(length)]
    for row, i in enumerate(rows):
        env = envs.envs[i]
        if mode is AutoresetMode.NEXT_STEP and envs._autoreset_envs[i]:
            observation, info = env.reset()
            end = cut = False
        else:
            if mode is AutoresetMode.DISABLED:
                assert not envs._autoreset_envs[i]
            for k in range(length):
                observation, rewards[row, k], end, cut, info = env.step(iterated[k][i])
                taken[row] += 1
                if end or cut:
                    break
            if mode is AutoresetMode.SAME_STEP and (end or cut):
                final = {"final_obs": observation, "final_info": info}
                infos = part._add_info(infos, final, row)
                observation, info = env.reset()
        infos = part._add_info(infos, info, row)
        envs._env_obs[i] = observation
        envs._terminations[i], envs._truncations[i] = end, cut
        envs._rewards[i] = 0
    envs._autoreset_envs = envs._terminations | envs._truncations
    space = envs.single_observation_space
    empty = gym.vector.utils.create_empty_array(space, count, np.zeros)
    seen = [envs._env_obs[i] for i in rows]
    observations = copy.deepcopy(gym.vector.utils.concatenate(space, seen, empty))
    if all(one is not None for one in envs._env_obs):
        envs._observations = gym.vector.utils.concatenate(space, envs._env_obs, envs._observations)
    ends = envs._terminations[rows], envs._truncations[rows]
    if ids is None:
        infos["steps"], infos["_steps"] = taken, np.ones(count, bool)
    else:
        infos["env_id"], infos["_env_id"] = np.array(ids), np.ones(count, bool)
        rewards = rewards[:, 0]
    return observations, rewards, *ends, infos


def envs_actions(envs, actions):
    return gym.vector.utils.iterate(envs.action_space, actions)
