"""Rollouts that the caller keeps: sampling continues in other memory, also after forks."""

import functools
import gc

import numpy as np
import pytest
from forks_in_tests import Fork
from small_envs import Small

import pysampler

HORIZON = 8


Counting = functools.partial(
    Small,
    50,
    cut=True,
    observe=lambda env: np.array([env.life], np.float64),
    reward=lambda env, _: env.life,
    info=lambda env: {"n": env.life},
)


def policy(observations, state=None):
    count = len(observations)
    if state is None:
        state = np.zeros((count, 1), np.float32)
    return observations, {"seen": observations[:, 0].copy(), "state": state + 1}


WAYS = {
    "main": {},
    "here": {"vector_kwargs": {"num_workers": 0}},
    "workers": {"policy_in": "workers"},
    "overlap": {"overlap": True},
    "halves": {"vector_kwargs": {"groups": 2}},
    "as ready": {"min_envs": 2},
    "normalized": {"normalize": True},
}


def rollouts_of(**options):
    if options.pop("normalize", False):
        options["normalize"] = pysampler.Normalizer()
    options["vector_kwargs"] = {"num_workers": 2, **options.pop("vector_kwargs", {})}
    return pysampler.Rollouts(
        Counting, policy, HORIZON, num_envs=4, info_keys=["n"], seed=1, **options
    )


def contents(rollout):
    return {
        name: np.array(value)
        for name, value in {
            **{
                name: getattr(rollout, name)
                for name in ("observations", "actions", "rewards", "terminated", "truncated")
            },
            **{name: getattr(rollout, name) for name in ("starts", "valid", "lost", "options")},
            **rollout.extras,
            "state": rollout.state,
            "n": rollout.infos["n"],
        }.items()
    }


def expect_equal(one, other):
    for name, array in one.items():
        np.testing.assert_array_equal(array, other[name], err_msg=name)


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS.keys())
def test_held_rollouts_equal_copies(way):
    with rollouts_of(**way) as rollouts:
        held, copies = [], []
        for _ in range(5):
            rollout = next(rollouts)
            held.append(rollout)
            copies.append(contents(rollout))
        for rollout, before in zip(held, copies, strict=True):
            expect_equal(contents(rollout), before)


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS.keys())
def test_holding_rollouts_does_not_change_the_next_ones(way):
    with rollouts_of(**way) as holding, rollouts_of(**way) as dropping:
        held = []
        for _ in range(5):
            held.append(next(holding))
            one = next(dropping)
            if "min_envs" not in way:
                expect_equal(contents(held[-1]), contents(one))
            del one


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS.keys())
def test_what_the_program_writes_to_a_rollout_reaches_no_other_one(way):
    with rollouts_of(**way) as written, rollouts_of(**way) as plain:
        for _ in range(4):
            one = next(written)
            expect_equal(contents(one), contents(next(plain)))
            for name in ("observations", "final_observations", "actions", "rewards", "state"):
                getattr(one, name)[:] = -9
            for name in ("terminated", "truncated", "starts", "valid", "lost"):
                getattr(one, name)[:] = True
            one.extras["seen"][:] = 7


def test_one_array_or_tensor_holds_its_rollout():
    torch = pytest.importorskip("torch")
    with rollouts_of() as rollouts:
        array = next(rollouts).rewards[2:5].T
        tensor = torch.from_numpy(next(rollouts).observations)[1]
        state = next(rollouts).state
        before = array.copy(), tensor.clone(), state.copy()
        for _ in range(6):
            next(rollouts)
        assert (array == before[0]).all()
        assert (tensor == before[1]).all()
        assert (state == before[2]).all()


def test_a_plain_loop_uses_the_memory_of_two_rollouts():
    with rollouts_of() as rollouts:
        addresses = set()
        for _ in range(8):
            rollout = next(rollouts)
            addresses.add(rollout.rewards.ctypes.data)
        assert len(addresses) == 2
        del rollout
        for _ in range(8):
            addresses.add(next(rollouts).rewards.ctypes.data)
        assert len(addresses) == 2


@pytest.mark.slow
@pytest.mark.parametrize("overlap", [False, True])
def test_too_many_held_rollouts_raise_and_suggest_copy(overlap):
    with rollouts_of(overlap=overlap) as rollouts:
        held = [next(rollouts) for _ in range(8)]
        before = contents(held[-1])
        for _ in range(2):
            with pytest.raises(pysampler.BusyError, match=r"you hold 8 of them.*rollout\.copy\(\)"):
                next(rollouts)
        expect_equal(contents(held[-1]), before)
        last = held.pop()
        del held[:]
        gc.collect()
        rollout = next(rollouts)  # continues where it stopped
        assert (rollout.rewards[0] == last.rewards[-1] + 1).all()
    with rollouts_of(overlap=overlap, keep_last=12) as rollouts:
        held = [next(rollouts) for _ in range(13)]
        assert [one.version for one in held] == [*range(1, 14)]


@pytest.mark.slow
def test_rollouts_in_garbage_cycles_do_not_count_as_held():
    with rollouts_of() as rollouts:
        gc.disable()
        try:
            for _ in range(20):
                cycle = [next(rollouts)]
                cycle.append(cycle)
        finally:
            gc.enable()


def test_a_forked_child_keeps_its_rollout():
    with rollouts_of() as rollouts:
        rollout = next(rollouts)
        expected = contents(rollout)

        def look(wait):
            before = contents(rollout)
            wait()
            after = contents(rollout)
            rollout.rewards[:] = -1
            return before, after

        fork = Fork(look)
        for _ in range(5):
            next(rollouts)
        before, after = fork.result()
        expect_equal(before, expected)
        expect_equal(after, expected)
        expect_equal(contents(rollout), expected)


def test_episodes_by_task_are_not_overwritten():
    import pysampler.envs.meta

    def act(observations, tasks, params):
        return np.full((len(observations), 2), params, np.float32)

    with pysampler.MultiTaskSampler("Navigation2D-v0", act, num_envs=4, seed=1) as sampler:
        tasks = sampler.sample_tasks(2)
        kept = []
        for n in range(4):
            sampler.sample(10, params=n / 100, tasks=tasks)
            collected = sampler.collect()
            episode = collected.episodes[0][0]
            kept.append((episode, episode.observations.copy()))
        for episode, before in kept:
            assert (episode.observations == before).all()
