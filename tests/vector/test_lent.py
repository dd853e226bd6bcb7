"""Large observations are not copied: the caller gets views, and their frames are not reused."""

import gc

import numpy as np
import pytest
from gymnasium import spaces
from told_envs import SmallEnv
from vectors import begun


class Counting(SmallEnv):
    """Observes its step count and an image filled with it."""

    observation_space = spaces.Dict(
        image=spaces.Box(0, 255, (128, 128), np.uint8), n=spaces.Discrete(256)
    )

    def observe(self):
        return {"image": np.full((128, 128), self.steps, np.uint8), "n": self.steps}


@pytest.fixture(params=[0, 2], ids=["in process", "in workers"])
def envs(request):
    with begun([Counting] * 4, num_workers=request.param) as envs:
        yield envs


def step(envs):
    return envs.step(np.zeros(4, np.int64))[0]


def lent(envs, observation):
    return np.shares_memory(observation["image"], envs._core.results.frames.observations[0])


def test_large_observations_are_views_and_small_ones_are_copies(envs):
    for n in range(1, 20):
        observation = step(envs)
        assert lent(envs, observation)
        assert not np.shares_memory(observation["n"], envs._core.results.frames.observations[1])
        assert observation["image"].shape == (4, 128, 128)
        assert (observation["image"] == n).all()


def test_held_observations_are_not_overwritten(envs):
    held = [step(envs) for _ in range(10)]
    assert [lent(envs, o) for o in held].count(True) == 2  # of three frames one must stay free
    for n, observation in enumerate(held, start=1):
        assert (observation["image"] == n).all()
        observation["image"][:] = 99  # belongs to the caller
    assert (step(envs)["image"] == 11).all()
    # Once the views are dropped, their frames are lent again.
    del held, observation
    gc.collect()
    step(envs)
    assert lent(envs, step(envs))


def test_slice_of_an_observation_keeps_its_frame_in_use(envs):
    parts = [step(envs)["image"][1, 5:7].T for _ in range(6)]
    for n, part in enumerate(parts, start=1):
        assert (part == n).all()


def test_lent_observations_outlive_the_vector_env():
    with begun([Counting] * 4, num_workers=2) as envs:
        observation = step(envs)
        assert lent(envs, observation)
    del envs
    gc.collect()
    assert (observation["image"] == 1).all()
