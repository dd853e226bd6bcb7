"""Each kind of block beside SyncVectorEnv, in random programs of everything that a block promises.

A block steps envs of one kind: in Python, of a BatchEnv, simulated together, of a nested vector
env, within layers of wrappers, or several of these. Each has the same contract, in three autoreset
modes: steps, chunks, groups, seeds and options at random times, infos with new keys, envs that
raise in a step or reset, killed workers, and exceptions of signal handlers.
"""

import random

import pytest
from gymnasium.vector import AutoresetMode
from pairs import Case, Pair
from random_envs import Recipe, Slide, Walk, double, subclass

from pysampler.envs.mujoco import make_env

MODES = NEXT_STEP, SAME_STEP, DISABLED = list(AutoresetMode)
ORDERED = [("OrderEnforcing", {})]
NORMALIZED = [
    ("NormalizeObservation", {}),
    ("TransformReward", {"func": double}),
    ("ClipReward", {"min_reward": -1, "max_reward": 1.5}),
]
PLACES = {
    "inline": {"num_workers": 0, "groups": 2},
    "workers": {"num_workers": 2, "groups": 2},
    "one worker": {"num_workers": 1},
    "threads": {"num_workers": 2, "context": "threads"},
}
CARTPOLE = Recipe("CartPole-v1", {"max_episode_steps": 9})
HEAVY = Recipe(subclass("gymnasium.envs.classic_control.cartpole:CartPoleEnv"), {}, ORDERED)
# By kind: the recipes, and how they are given.
KINDS = {
    "python": ([Recipe(Walk, layers=ORDERED)] * 6, "recipe"),
    "batch": ([Recipe(Walk, layers=ORDERED)] * 6, "batch"),
    "nested": ([Recipe(Walk, layers=ORDERED)] * 6, "nested"),
    "nested, reset by ours": ([Recipe(Walk, layers=ORDERED)] * 6, "nested"),
    "task": ([Recipe(make_env, {"task": Slide})] * 6, "task"),
    "classic": ([CARTPOLE] * 16, "make_vec"),
    "mujoco": ([Recipe("InvertedPendulum-v5", {"max_episode_steps": 7})] * 6, "make_vec"),
    "layers": ([Recipe(Walk, layers=[*ORDERED, *NORMALIZED])] * 16, "recipe"),
    "layers on classic": ([Recipe(CARTPOLE.make, CARTPOLE.kwargs, NORMALIZED)] * 16, "make_vec"),
    "several": ([CARTPOLE] * 8 + [HEAVY] * 2 + [CARTPOLE] * 8, "recipe"),
}
CALLS = {
    "steps": 6,
    "chunk": 3,
    "partial": 2,
    "reset": 1,
    "masked_reset": 2,
    "set_options": 1,
    "new_key": 1,
    "stumble": 2,
    "bad_options": 1,
    "interrupt": 1,
    "kill": 0.5,
}


@pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning")  # odd actions
@pytest.mark.parametrize("program", range(4))
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", KINDS)
def test_a_block_keeps_the_contract_of_vector_envs(kind, mode, place, program):
    recipes, form = KINDS[kind]
    dice = random.Random(f"{kind} {mode} {place} {program}")
    names = ["seeded_reset", *dice.choices([*CALLS], [*CALLS.values()], k=16)]
    calls = [(name, dice.randrange(1 << 20)) for name in names]
    inner = DISABLED if kind == "nested, reset by ours" and mode is SAME_STEP else None
    options = dict(PLACES[place])
    if "worker" in place:
        options["on_worker_loss"] = "restart"
    case = Case(recipes, options, mode, form, None, calls, inner)
    pair = Pair(case)
    try:
        pair.run()
    finally:
        print(case, *pair.log, sep="\n")
