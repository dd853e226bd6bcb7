"""Compares random vector envs and programs of calls with gymnasium's SyncVectorEnv, bit for bit.

    python tests/faults/differential.py --seconds 600
    python tests/faults/differential.py --repro SEED

The seed of a case decides its envs, their wrappers, the options of the vector env, and the calls.
Both vector envs get the same calls; results must be equal in every bit and dtype, and if one
raises, the other raises the same exception or a subclass. ``--repro`` repeats one case, leaves out
what the difference does not need, and prints the rest.
"""

import copy
import faulthandler
import itertools
import os
import random
import sys
import threading
import time
import traceback
import warnings
from dataclasses import replace
from pathlib import Path

import gymnasium as gym
from gymnasium.vector import AutoresetMode

from pysampler.envs.mujoco import make_env

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))
import campaigns
from pairs import OUTER, Case, DifferenceError, Pair
from random_envs import (
    Dice,
    Recipe,
    Slide,
    Small,
    Walk,
    batched_recipe,
    random_recipe,
    random_small,
    varied,
)

HANG = 60  # seconds that a case may take at most


# -- cases ----------------------------------------------------------------------------------------


CALLS = {
    "reset": 2,
    "masked_reset": 1,
    "steps": 8,
    "chunk": 1,
    "call": 1,
    "get_attr": 1,
    "set_attr": 1,
    "apply": 2,
    "hold": 1,
    "render": 0.3,
    "partial": 1,
    "set_options": 0.5,
    "kill": 0.2,
}


def case_of(seed):
    dice = random.Random(seed)
    count = dice.choice([1, 2, 2, 3, 5, 8, 9, 16, 16, 24])
    recipe = random_recipe(dice)
    if on_batches := dice.random() < 0.35:
        recipe, count = batched_recipe(dice), dice.choice([8, 16, 16, 24])
    kind = dice.random()
    if kind < 0.5:
        recipes = [recipe] * count
    elif kind < 0.6:
        recipes = [copy.deepcopy(recipe) for _ in range(count)]
    else:
        recipes = [recipe] * count
        for _ in range(dice.randrange(1, 3)):
            recipes[dice.randrange(count)] = varied(dice, recipe)
    where = dice.random()
    if where < 0.5 and not (on_batches and dice.random() < 0.7):
        options = {"num_workers": 0}
    elif where < 0.65:
        options = {"num_workers": dice.randrange(1, 4), "context": "threads"}
    else:
        options = {"num_workers": 1 if on_batches else dice.randrange(1, 4)}
        if dice.random() < 0.2:
            options["main_envs"] = min(dice.randrange(4), count - 1)
    options["num_workers"] = min(options["num_workers"], count)
    if dice.random() < 0.3:
        options["groups"] = dice.randrange(1, 4)
    if dice.random() < 0.3:
        options["copy"] = False
    if dice.random() < (0.02 if on_batches else 0.2):
        options["native"] = False
    if dice.random() < 0.1:
        options["observation_mode"] = "different"
    if recipe.make is Dice:
        options.pop("context", None)  # threads share the generators
        options["seed_globals"] = True
    if options["num_workers"] and options.get("context") != "threads" and dice.random() < 0.3:
        options["on_worker_loss"] = "restart"
    mode = dice.choice(list(AutoresetMode))
    if mode is AutoresetMode.SAME_STEP:  # gymnasium's final_obs would be the env's buffer
        for one in recipes:
            one.kwargs.pop("observed", None)
    form = dice.choice(["recipe", "recipe", "partial", "make_vec"])
    if "table" in recipe.kwargs or "levels" in recipe.kwargs:  # make_vec would share them
        form = "recipe"
    special, outer = dice.random(), None
    if special < 0.06:
        form = "nested"  # gets arrays of actions, and returns those of the space's dtype
        small = Recipe(Small, {**random_small(dice), "observed": "space", "words": ()})
        small.kwargs["infos"] = dice.choice(["none", "numbers"])  # each decides the dtypes
        if mode is AutoresetMode.SAME_STEP:  # final_obs keeps the types that each env returned
            mode = AutoresetMode.NEXT_STEP
        recipes = [small] * count
    elif special < 0.1:
        form, recipes = "task", [Recipe(make_env, {"task": Slide})] * count
    elif special < 0.14:
        form = "batch"
        recipes = [Recipe(Walk, layers=[("OrderEnforcing", {})])] * count
    elif special < 0.24:
        outer = dice.choice([*OUTER])
    if recipes[0].make is not Dice:
        options.pop("seed_globals", None)
    if form in ("nested", "task", "batch"):
        for name in ("observation_mode", "seed_globals"):
            options.pop(name, None)
    calls = [
        (name, dice.randrange(1 << 20))
        for name in dice.choices([*CALLS], [*CALLS.values()], k=dice.randrange(2, 14))
    ]
    if dice.random() < 0.95:
        calls.insert(0, ("seeded_reset", dice.randrange(1 << 20)))
    else:
        for one in recipes:  # more words get values of random types, some of which cannot be joined
            if "words" in one.kwargs:
                one.kwargs["words"] = one.kwargs["words"][:2]
    return Case(recipes, options, mode, form, outer, calls)


# -- running --------------------------------------------------------------------------------------


class Watchdog:
    """Ends the process, with the seed, if a case takes too long."""

    def __init__(self):
        self.seed, self.end = None, float("inf")
        threading.Thread(target=self._watch, daemon=True).start()

    def begin(self, seed):
        self.seed, self.end = seed, time.monotonic() + HANG
        faulthandler.dump_traceback_later(HANG + 10, exit=True)  # if the lock is not released

    def _watch(self):
        while time.monotonic() < self.end:
            time.sleep(0.5)
        print(f"HANG: {command(self.seed)}", file=sys.stderr, flush=True)
        faulthandler.dump_traceback(all_threads=True)
        os._exit(1)


def command(seed):
    return f"python tests/faults/differential.py --repro {seed}"


def difference(case):
    """Run a case; return its difference or None, and the calls that were made."""
    pair = Pair(case)
    try:
        pair.run()
    except DifferenceError as error:
        return error, pair.log
    except Exception as error:  # of this program
        traceback.print_exc()
        return DifferenceError(f"raised {error!r}", "fault of the fuzzer"), pair.log
    return None, pair.log


def smaller(case):
    """Yield cases with less in them."""
    for i in reversed(range(len(case.calls))):
        if case.calls[i][0] == "seeded_reset":  # without it, results are random
            continue
        yield replace(case, calls=case.calls[:i] + case.calls[i + 1 :])
    count = len(case.recipes)
    for some in (1, 2, count // 2, count - 1):
        if 0 < some < count:
            options = {**case.options, "num_workers": min(some, case.options["num_workers"])}
            options.pop("main_envs", None)
            yield replace(case, recipes=case.recipes[:some], options=options)
            yield replace(case, recipes=case.recipes[-some:], options=options)
    if case.outer:
        yield replace(case, outer=None)
    if any(one is not case.recipes[0] for one in case.recipes):
        yield replace(case, recipes=case.recipes[:1] * count)
        yield replace(case, recipes=case.recipes[-1:] * count)
    for name in case.options:
        if name not in ("num_workers", "seed_globals"):
            yield replace(case, options={k: v for k, v in case.options.items() if k != name})
    if case.options["num_workers"]:
        yield replace(case, options={**case.options, "num_workers": 0})
    distinct = {id(one): one for one in case.recipes}
    for key, one in distinct.items():
        fewer = [
            replace(one, layers=one.layers[:i] + one.layers[i + 1 :])
            for i in range(len(one.layers))
        ]
        fewer += [replace(one, change=None)] * (one.change is not None)
        for name in one.kwargs:
            if name not in ("observation_space", "action_space"):
                kwargs = {k: v for k, v in one.kwargs.items() if k != name}
                fewer.append(replace(one, kwargs=kwargs))
        for simpler in fewer:
            yield replace(case, recipes=[simpler if id(r) == key else r for r in case.recipes])


def shrunk(case, kind, watchdog, seed):
    """Return a small case with a difference of this kind."""
    going = True
    while going:
        going = False
        for one in smaller(case):
            watchdog.begin(seed)
            found, _ = difference(one)
            if found is not None and found.kind == kind:
                case, going = one, True
                break
    return case


def main():
    parser = campaigns.parser(__doc__, 600, "--repro", out=False)
    parser.add_argument("--cases", type=int, help="stop after this many")
    args = parser.parse_args()
    faulthandler.enable()
    warnings.simplefilter("ignore")
    warnings.showwarning = lambda *_, **__: None  # gymnasium shows its own always
    gym.logger.min_level = gym.logger.ERROR + 10
    watchdog = Watchdog()
    if args.case is not None:
        watchdog.begin(args.case)
        case = case_of(args.case)
        print(case)
        found, log = difference(case)
        print("\n".join(log), f"\n{found}\n" if found else "\nno difference")
        if found:
            case = shrunk(case, found.kind, watchdog, args.case)
            found, log = difference(case)
            print(f"smaller: {case}", *log, found, sep="\n")
        return bool(found)
    print(f"from --seed {args.seed}", flush=True)
    count, differ = 0, []
    for seed in itertools.islice(campaigns.seeds(args), args.cases):
        watchdog.begin(seed)
        if (what := difference(case_of(seed))[0]) is not None:
            print(f"DIFFERENCE: {what}\n  {command(seed)}", flush=True)
            differ.append(seed)
        count += 1
    faulthandler.cancel_dump_traceback_later()
    print(f"{count} cases, {len(differ)} of them differ")
    for seed in differ:
        print(f"DIFFERENCE: {command(seed)}", file=sys.stderr)
    return bool(differ)


if __name__ == "__main__":
    sys.exit(main())
