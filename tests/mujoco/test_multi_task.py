"""Sampling many tasks with envs simulated together equals ordinary envs bit for bit."""

import mujoco
import numpy as np
import pytest
from mujoco_in_tests import META_IDS, each, identical

import pysampler
from pysampler.envs.mujoco import Task, draw

pytestmark = pytest.mark.slow


def policy(observations, tasks, params):
    """Depends on all of its arguments."""
    return np.tanh(observations @ params[0] + params[1][tasks]).astype(np.float32)


def sampler_of(env_id, native, **options):
    vector_kwargs = {"num_workers": 2, "native": native, **options.pop("vector_kwargs", {})}
    return pysampler.MultiTaskSampler(
        env_id, policy, num_envs=6, seed=3, vector_kwargs=vector_kwargs, **options
    )


def sampled(env_id, native, **options):
    """Return the tasks, results and episodes of two samples with different tasks."""
    with sampler_of(env_id, native, **options) as sampler:
        assert ("native" in repr(sampler.envs)) == native
        space = sampler.envs.single_observation_space
        sizes = space.shape[0], sampler.envs.single_action_space.shape[0]
        rng = np.random.default_rng(0)
        params = 0.1 * rng.normal(size=sizes), rng.normal(size=(6, sizes[1]))
        seen = []
        for count in (6, 3):
            tasks = sampler.sample_tasks(count)
            rollout = sampler.sample(30, params, tasks)
            seen += [tasks, rollout.observations.copy(), rollout.rewards.copy()]
            seen.append([len(episodes) for episodes in sampler.collect().episodes])
        return seen


@pytest.mark.parametrize("env_id", each(META_IDS))
def test_sampling_many_tasks_equals_ordinary_envs(env_id):
    ours, theirs = sampled(env_id, native=True), sampled(env_id, native=False)
    for one, other in zip(ours, theirs, strict=True):
        if isinstance(one, np.ndarray):
            identical(one, other)
        else:
            assert one == other


@pytest.mark.parametrize("env_id", each(META_IDS))
def test_native_is_the_default(env_id):
    with pysampler.MultiTaskSampler(
        env_id, policy, num_envs=2, vector_kwargs={"num_workers": 0}
    ) as sampler:
        assert sampler.envs.stats().native


def test_sampling_in_groups_equals_ordinary_envs():
    options = {"min_envs": 2, "vector_kwargs": {"groups": 3}}
    ours = sampled("HalfCheetahDir-v5", native=True, **options)
    theirs = sampled("HalfCheetahDir-v5", native=False, **options)
    for one, other in zip(ours, theirs, strict=True):
        if isinstance(one, np.ndarray):
            identical(one, other)


class Slide(Task):
    """Slides to a goal; the goal is its task."""

    max_episode_steps = 10

    def __init__(self):
        super().__init__(
            mujoco.MjModel.from_xml_string(
                """<mujoco><worldbody><body><joint name="x" type="slide" axis="1 0 0"/>
                <geom size="0.1"/></body></worldbody>
                <actuator><motor joint="x" ctrlrange="-1 1"/></actuator></mujoco>"""
            ),
            5,
        )

    def allocate(self):
        self.goals = np.zeros(self.count)

    def observe(self, d):
        return np.concatenate((d.qpos, d.qvel), axis=1)

    def reward(self, d, before, action):
        return -np.abs(d.qpos[:, 0] - self.goals[d.ids])

    def reset(self, rngs, ids):
        return draw(rngs, lambda rng: rng.uniform(-1, 1, 1)), np.zeros((len(ids), 1))

    def set_tasks(self, ids, tasks):
        self.goals[ids] = tasks

    def sample_tasks(self, count, rng):
        return rng.uniform(-2, 2, count).tolist()


def test_sampling_a_users_task_equals_ordinary_envs():
    ours, theirs = sampled(Slide, native=True), sampled(Slide, native=False)
    for one, other in zip(ours, theirs, strict=True):
        if isinstance(one, np.ndarray):
            identical(one, other)
        else:
            assert one == other


def test_a_task_without_sample_tasks_needs_given_tasks():
    class Fixed(Slide):
        sample_tasks = Task.sample_tasks

    with sampler_of(Fixed, native="auto", vector_kwargs={"num_workers": 0}) as sampler:
        with pytest.raises(
            NotImplementedError, match=r"Fixed has no method sample_tasks\(count, rng\)"
        ):
            sampler.sample_tasks(2)
        sampler.sample(5, (np.zeros((2, 1)), np.zeros((6, 1))), [0.5, 1.0])
