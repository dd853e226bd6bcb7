"""Random numbers and states of policies."""

import copy
import functools
import os
import random
import signal

import imported
import numpy as np
import pytest

pytest.importorskip("torch")
import torch
from policies_in_tests import WAYS, first, still
from scripted import Mortal, Scripted

import pysampler


class OfTorch(torch.nn.Module):
    def forward(self, observations):
        return torch.rand(len(observations), 2)


def of_numpy(observations):
    return np.random.random((len(observations), 2)).astype(np.float32)


def of_python(observations):
    return np.array([[random.random()] * 2 for _ in observations], np.float32)


class OwnGenerator:
    def __init__(self):
        self.seed(0)

    def seed(self, number):
        self.generator = np.random.default_rng(number)

    def __call__(self, observations):
        return self.generator.random((len(observations), 2), np.float32)


def with_generators(observations, generators):
    return np.stack([one.random(2, np.float32) for one in generators])


RANDOM = [OfTorch(), of_numpy, of_python, OwnGenerator(), with_generators]


def named(policy):
    return getattr(policy, "__name__", type(policy).__name__)


def expect_own_numbers(policy, seed, context="forkserver"):
    envs = pysampler.VectorEnv([Scripted] * 4, num_workers=2, context=context)
    runs = [first(envs, policy, policy_in="workers", seed=seed)["actions"] for _ in range(2)]
    for _ in range(2):
        with pysampler.Actors(envs, policy, seed=seed, steps=5) as actors:
            batch = actors.take(4, min_records=4)
            runs.append(batch.actions[np.lexsort((batch.number, batch.env))].copy())
    envs.close()
    for run in runs:
        assert len(np.unique(run)) >= run.size / 2  # a worker may repeat a number
        assert not np.isin(run[:, :2], run[:, 2:]).any()
    assert np.array_equal(*runs[:2]) == (seed is not None)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [None, 7, [1, None, 3, 4]], ids=str)
@pytest.mark.parametrize("policy", RANDOM, ids=named)
def test_workers_draw_different_numbers(policy, seed):
    expect_own_numbers(policy, seed)


@pytest.mark.slow
@pytest.mark.parametrize("context", ["fork", "spawn"])
def test_workers_draw_different_numbers_with_fork_and_spawn(context):
    expect_own_numbers(OfTorch(), None, context)


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 2])
def test_a_policy_sent_again_does_not_repeat_numbers(workers):
    """A changed policy is pickled again, with the same generator for each worker."""
    envs = pysampler.VectorEnv([Scripted] * 4, num_workers=workers)

    class Changing(OwnGenerator):
        version = 0

    policy = Changing()
    with envs, pysampler.Rollouts(envs, policy, 5, policy_in="workers", seed=3) as rollouts:
        actions = []
        for policy.version in range(3):
            actions.append(next(rollouts).actions.copy())
    assert len(np.unique(actions)) == np.size(actions)


WHERE = [
    *({"num_workers": n, "policy_in": where} for n in (0, 1, 2) for where in ("main", "workers")),
    {"num_workers": 2, "groups": 2, "policy_in": "main"},
    {"num_workers": 2, "policy_in": "main", "overlap": True},
    {"num_workers": 2, "policy_in": "main", "min_envs": 2},
]


@pytest.mark.slow
def test_policies_with_generators_act_alike_everywhere():
    runs = []
    for way in WHERE:
        kwargs = {key: way[key] for key in ("num_workers", "groups") if key in way}
        options = {key: way[key] for key in way if key not in kwargs}
        envs = pysampler.VectorEnv([lambda: Scripted("..t.")] * 4, **kwargs)
        with envs, pysampler.Rollouts(envs, with_generators, 5, seed=11, **options) as rollouts:
            runs.append([next(rollouts).actions.copy() for _ in range(3)])
    assert len(np.unique(runs[0])) == np.size(runs[0])
    for way, run in zip(WHERE, runs, strict=True):
        np.testing.assert_array_equal(run, runs[0], err_msg=str(way))


@pytest.mark.slow
@pytest.mark.parametrize("policy", [OfTorch(), with_generators], ids=named)
def test_a_replacement_draws_new_numbers(policy):
    envs = pysampler.VectorEnv([Scripted] * 4, num_workers=2, on_worker_loss="restart")
    with envs, pysampler.Rollouts(envs, policy, 5, policy_in="workers", seed=5) as rollouts:
        before = next(rollouts).actions.copy()
        os.kill(envs._pool.pids[0], signal.SIGKILL)
        after = next(rollouts).actions.copy()
    assert len(np.unique([before, after])) == before.size * 2


class Forgetful(torch.nn.Module):
    def forward(self, *args):
        return torch.zeros(len(args[0]), 2), {"state": torch.zeros(len(args[0]))}


def test_returning_a_state_without_taking_one_is_refused(envs):
    with (
        pysampler.Rollouts(envs, Forgetful(), 5) as rollouts,
        pytest.raises(
            TypeError, match="returns a state but does not take one, expected a parameter"
        ),
    ):
        next(rollouts)


class HeldGenerator:
    def __init__(self):
        self.generator = np.random.default_rng(7)
        self.version = 0

    def act(self, observations):
        return self.generator.random((len(observations), 2), np.float32)

    __call__ = act


def closed_over():
    generator = np.random.default_rng(7)
    return lambda observations: generator.random((len(observations), 2), np.float32)


class Nested:
    """Holds a generator inside a list."""

    def __init__(self):
        self.parts = [HeldGenerator()]

    def __call__(self, observations):
        return self.parts[0](observations)


class OfItsClass:
    generator = np.random.default_rng(7)

    def __call__(self, observations):
        return self.generator.random((len(observations), 2), np.float32)


def as_default(observations, generator=np.random.default_rng(7)):  # noqa: B008
    return generator.random((len(observations), 2), np.float32)


class Head(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.generator = torch.Generator().manual_seed(7)

    def forward(self, observations):
        return torch.rand(len(observations), 2, generator=self.generator)


class Headed(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.head = Head()

    def forward(self, observations):
        return self.head(observations)


def given(generator, observations):
    return generator.random((len(observations), 2), np.float32)


class Seeded(HeldGenerator):
    def seed(self, number):
        self.generator = np.random.default_rng(number)


@pytest.mark.slow
@pytest.mark.parametrize(
    "make",
    [
        HeldGenerator,
        closed_over,
        lambda: Seeded().act,
        lambda: HeldGenerator().act,
        Nested,
        OfItsClass,
        lambda: as_default,
        Headed,
        lambda: functools.partial(given, np.random.default_rng(7)),
        lambda: imported.drawing,
    ],
    ids=[
        *("attribute", "closure", "method with seed", "method", "nested", "class", "default"),
        *("module of a module", "partial", "global of another module"),
    ],
)
def test_generators_inside_policies_differ_between_workers(make):
    with pysampler.VectorEnv([Scripted] * 4, num_workers=2) as envs:
        runs = [first(envs, make(), policy_in="workers", seed=3)["actions"] for _ in range(2)]
    assert not np.isin(runs[0][:, :2], runs[0][:, 2:]).any()
    np.testing.assert_array_equal(*runs)


@pytest.mark.parametrize("way", [{"overlap": True}, {"policy_in": "workers"}], ids=str)
def test_globals_of_a_function_travel_with_it(envs, way, monkeypatch):
    """The values at the beginning of the rollout are used."""
    monkeypatch.setattr(imported, "weights", np.zeros(1))
    with pysampler.Rollouts(envs, imported.constant, 50, **way) as rollouts:
        assert (next(rollouts).actions == 0).all()
        imported.weights[:] = 1
        assert (next(rollouts).actions == (0 if "overlap" in way else 1)).all()
        assert (next(rollouts).actions == 1).all()


@pytest.mark.slow
@pytest.mark.parametrize("way", [{"overlap": True}, {"policy_in": "workers"}], ids=str)
@pytest.mark.parametrize("policy", [imported.drawing, HeldGenerator()])
def test_copies_do_not_advance_the_original_generators(envs, policy, way):
    """Copies draw. With overlap the original draws only in the trial that lays out frames."""
    generator = getattr(policy, "generator", imported.generator)
    expected = copy.deepcopy(generator)
    first(envs, policy, seed=3, **way)
    policy(np.zeros((4, 4))[:, :2])
    for _ in range(2 if "overlap" in way else 1):
        expected.random((4, 2), np.float32)
    assert generator.random() == expected.random()


@pytest.mark.slow
@pytest.mark.parametrize("way", [{"overlap": True}, {"policy_in": "workers"}], ids=str)
def test_a_new_copy_of_a_changed_policy_does_not_repeat_numbers(envs, way):
    policy = HeldGenerator()
    with pysampler.Rollouts(envs, policy, 5, seed=3, **way) as rollouts:
        actions = []
        for policy.version in range(4):
            actions.append(next(rollouts).actions.copy())
    assert len(np.unique(actions)) == np.size(actions)


def test_a_copied_module_does_not_repeat_numbers_after_a_pause(envs):
    with pysampler.Rollouts(envs, Headed(), 5, seed=3, overlap=True) as rollouts:
        actions = []
        for _ in range(3):
            actions.append(next(rollouts).actions.copy())
            rollouts.pause()
    assert len(np.unique(actions)) > 0.99 * np.size(actions)


def narrow(observations, generators):
    return with_generators(observations, generators)[:, :1]


class Narrow(HeldGenerator):
    def __call__(self, observations):
        return self.act(observations)[:, :1]


@pytest.mark.slow
@pytest.mark.parametrize("policy", [narrow, Narrow()])
def test_a_seeded_run_repeats_with_a_replaced_worker(policy, tmp_path):
    runs = []
    for name in ("first", "second"):
        dies = functools.partial(Mortal, "die", 3, tmp_path / name)
        envs = pysampler.VectorEnv([dies], num_workers=1, on_worker_loss="restart")
        with envs, pysampler.Rollouts(envs, policy, 8, seed=5, policy_in="workers") as rollouts:
            rollout = next(rollouts)
            assert rollout.lost.sum() == 1
            runs.append((rollout.observations.copy(), rollout.actions.copy()))
    for one, other in zip(*runs, strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_seeded_run_repeats_despite_pauses_and_evaluations(envs):
    runs = []
    for episodes in (2, 5):
        with pysampler.Rollouts(envs, with_generators, 5, seed=3) as rollouts:
            runs.append([next(rollouts).actions.copy()])
            rollouts.pause()
            runs[-1].append(next(rollouts).actions.copy())
            pysampler.evaluate(rollouts, still, episodes, seed=9)
            runs[-1].append(next(rollouts).actions.copy())
    np.testing.assert_array_equal(*runs)
    assert len(np.unique(runs[0])) == np.size(runs[0])


def test_training_does_not_reuse_the_seeds_of_an_evaluation():
    envs = pysampler.make_vec("CartPole-v1", 2, vector_kwargs={"num_workers": 0})
    begun = []
    with envs, pysampler.Rollouts(envs, lambda o: np.zeros(len(o), int), 5, seed=3) as rollouts:
        for _ in range(2):
            next(rollouts)
            pysampler.evaluate(rollouts, lambda o: np.zeros(len(o), int), 2, seed=9)
            begun.append(next(rollouts).observations[0].copy())
    assert not np.isin(*begun).any()


# -- states ----------------------------------------------------------------------------------------


class Shapeless(torch.nn.Module):
    """Its state does not have a row for each env."""

    def forward(self, observations, state):
        return torch.zeros(len(observations), 2), {"state": torch.zeros(1, len(observations), 8)}


def one_row(observations, state):
    return still(observations), {"state": np.zeros((1, 3))}


class Begins:
    """Returns one row for any number of beginning envs."""

    def initial_state(self, count):
        return np.zeros((1, 3))

    def __call__(self, observations, state):
        return still(observations), {"state": np.zeros((len(observations), 3))}


@pytest.mark.parametrize("policy", [Shapeless(), one_row, Begins()])
def test_a_state_must_have_a_row_for_each_env(envs, policy):
    text = (
        r"the policy's '(state|initial_state)' has shape \(1, .*expected a row for each of 4 envs"
    )
    with pysampler.Rollouts(envs, policy, 5) as rollouts, pytest.raises(ValueError, match=text):
        next(rollouts)


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_a_policy_that_takes_a_state_must_return_one(envs, way):
    def policy(observations, state):
        return still(observations), {"states": np.zeros(len(observations))}

    with (
        pysampler.Rollouts(envs, policy, 5, **way) as rollouts,
        pytest.raises(TypeError, match="takes a state but does not return one"),
    ):
        next(rollouts)


def test_a_state_with_a_default_need_not_be_returned(envs):
    def policy(observations, state=None):
        return still(observations), {"none": np.full(len(observations), state is None)}

    assert first(envs, policy)["none"].all()
