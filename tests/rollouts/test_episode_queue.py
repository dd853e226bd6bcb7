"""The results of evaluate do not depend on how it was run."""

import functools

import numpy as np
import pytest
from gymnasium.wrappers import NormalizeObservation
from walks import SPECS, Walk, results

import pysampler
from pysampler import EpisodeSpec

played = functools.partial(pysampler.evaluate, seed=11)


class Drawing:
    """A recurrent policy that draws, and takes all further arguments."""

    def initial_state(self, count):
        return np.ones((count, 2))

    def __call__(self, observations, state, generators, previous_actions, previous_rewards):
        noise = np.array([generator.normal() for generator in generators])
        state = state * 0.8 + observations[:, :2]
        actions = noise + state[:, 0] + 0.1 * previous_actions[:, 0] + 0.1 * previous_rewards
        return actions[:, None], {"state": state}


@functools.cache
def expected(episodes=None):
    """Return results of a plain loop over single episodes, with the policy's documented inputs."""
    found, repeats = [], {}
    for index, spec in enumerate(SPECS):
        seed = 11 + index if spec.seed is None else spec.seed
        repeats[seed] = repeat = repeats.get(seed, -1) + 1
        generator = np.random.default_rng(np.random.SeedSequence((seed, repeat)))
        env, policy = Walk(), Drawing()
        observation, _ = env.reset(seed=seed, options=spec.options)
        state, over, total, steps = policy.initial_state(1), False, 0.0, 0
        action, reward = np.zeros((1, 1)), 0.0
        while not over:
            action, extras = policy(
                *(observation[None], state, [generator], action, np.array([reward], np.float32))
            )
            state = extras["state"]
            observation, reward, over, _, info = env.step(action[0])
            total, steps = total + reward, steps + 1
        found.append((seed, total, steps, info["is_success"]))
    return found


@pytest.mark.parametrize("where", ["main", "workers"])
@pytest.mark.parametrize("num_envs", [1, 2, 16])
def test_results_do_not_depend_on_the_number_of_envs(num_envs, where):
    evaluation = played(Walk, Drawing(), SPECS, num_envs=num_envs, num_workers=0, policy_in=where)
    assert results(evaluation) == expected()


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        {"policy_in": "workers"},
        {"groups": 2},
        {"groups": 4, "min_envs": 1},
        {"timeout": 0.0002},
        {"policy_in": "workers", "groups": 2},
        {"batch": 5},
        {"batch": 1},
        {"batch": 5, "policy_in": "workers"},
        {"main_envs": 3},
    ],
    ids=str,
)
@pytest.mark.parametrize("workers", [1, 2])
def test_results_do_not_depend_on_workers_and_options(workers, options):
    evaluation = played(Walk, Drawing(), SPECS, num_envs=7, num_workers=workers, **options)
    assert results(evaluation) == expected()


@pytest.mark.slow
@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("where", ["main", "workers"])
def test_episodes_of_a_killed_worker_begin_again(tmp_path, where, groups):
    options = {"policy_in": where, "groups": groups, "on_worker_loss": "restart"}
    make = functools.partial(Walk, tmp_path / "died")
    evaluation = played(make, Drawing(), SPECS, num_envs=8, num_workers=2, **options)
    assert (tmp_path / "died").exists()
    assert results(evaluation) == expected()


@pytest.mark.parametrize("where", ["main", "workers"])
def test_envs_without_an_episode_are_not_stepped(where):
    """Walk raises if it is stepped after its end."""
    with pysampler.VectorEnv([Walk] * 6, num_workers=0) as envs:
        for episodes in (2, 6, 9):
            evaluation = pysampler.evaluate(envs, Drawing(), SPECS[:episodes], seed=11)
            assert results(evaluation) == expected()[:episodes]
            assert len(evaluation.episodes) == episodes


@pytest.mark.slow
@pytest.mark.parametrize("chunk", [None, 4])
@pytest.mark.parametrize(
    ("env", "wrapper", "count"),
    [
        ("CartPole-v1", None, 8),
        ("CartPole-v1", None, 16),
        ("CartPole-v1", NormalizeObservation, 16),
        ("Pendulum-v1", NormalizeObservation, 8),
        ("Hopper-v5", None, 8),
    ],
)
def test_every_step_is_one_of_an_episode(env, wrapper, count, chunk):
    """Also where envs step together, such as native MuJoCo."""
    if env == "Hopper-v5":
        pytest.importorskip("mujoco")
    wrappers = None if wrapper is None else [wrapper]
    with pysampler.make_vec(
        env, count, num_workers=1, max_episode_steps=50, wrappers=wrappers
    ) as envs:
        steps = () if chunk is None else (chunk,)

        def policy(observations):
            space = envs.single_action_space
            return np.zeros((len(observations), *steps, *space.shape), space.dtype)

        stacks = envs.describe()
        envs.reset(seed=1)  # statistics that have seen nothing are refused
        evaluation = pysampler.evaluate(envs, policy, count + 3, seed=3, chunk=chunk)
        assert envs.stats().steps.count.sum() == evaluation.lengths.sum()
        if wrapper is None:  # otherwise the envs step by themselves until they are reset
            assert envs.describe() == stacks
        if env != "CartPole-v1":  # which warns
            envs.step(envs.action_space.sample())  # all of them
            assert envs.stats().steps.count.sum() == evaluation.lengths.sum() + count


def test_a_vector_env_steps_all_envs_again_after_an_evaluation():
    with pysampler.VectorEnv([Walk] * 3, num_workers=0) as envs:
        pysampler.evaluate(envs, Drawing(), 2, seed=11)
        envs.reset(seed=1)
        before = envs.reset(seed=1)[0]
        assert (envs.step(np.ones((3, 1)))[0] != before).any(axis=1).all()


@pytest.mark.parametrize("native", [True, False])
def test_blocks_that_step_together_give_the_same_results(native):
    def policy(observations, generators):
        return np.array([generator.uniform(-2, 2, 1) for generator in generators], np.float32)

    runs = [
        pysampler.evaluate(
            *("Pendulum-v1", policy, 9), seed=3, num_envs=n, num_workers=0, native=native and "auto"
        )
        for n in (1, 4, 8)
    ]
    assert runs[0].episodes == runs[1].episodes == runs[2].episodes


def test_normalized_results_do_not_depend_on_the_number_of_envs():
    normalizer = pysampler.Normalizer()

    def policy(observations):
        return observations[:, :1]

    with pysampler.Rollouts(
        Walk, policy, 30, num_envs=2, num_workers=0, seed=1, normalize=normalizer
    ) as rollouts:
        next(rollouts)
    runs = [
        pysampler.evaluate(
            *(Walk, policy, 12),
            seed=3,
            num_envs=n,
            num_workers=0,
            normalize=normalizer,
            policy_in=where,
        )
        for n, where in ((1, "main"), (5, "main"), (5, "workers"))
    ]
    assert runs[0].episodes == runs[1].episodes == runs[2].episodes
    assert (runs[0].returns != pysampler.evaluate(Walk, policy, 12, seed=3).returns).any()


@pytest.mark.parametrize(
    ("episodes", "error", "text"),
    [
        ([], ValueError, "episodes is empty, expected at least one EpisodeSpec"),
        ([3], TypeError, "episode 0 is a int, expected a pysampler.EpisodeSpec"),
        ([EpisodeSpec(seed=-1)], ValueError, "the seed of episode 0 -1"),
        (0, ValueError, "episodes 0, expected a whole number of at least 1"),
    ],
)
def test_bad_episodes_are_refused(episodes, error, text):
    with pytest.raises(error, match=f"cannot evaluate: {text}"):
        pysampler.evaluate(Walk, Drawing(), episodes)


def test_tasks_and_states_are_options_of_the_reset():
    spec = EpisodeSpec(options={"bonus": 1}, task={"goal": 2}, state=[3])
    assert spec.reset_options == {"bonus": 1, "task": {"goal": 2}, "state": [3]}
    assert EpisodeSpec().reset_options is None
    assert EpisodeSpec(options={}).reset_options == {}


@pytest.mark.parametrize(("num_envs", "batch"), [(1, 4), (3, 2), (7, 3), (2, 1)])
def test_a_policy_with_a_fixed_batch_always_gets_this_many_rows(num_envs, batch):
    seen = set()

    def policy(observations, generators):
        assert len(generators) == len(observations)
        seen.add(len(observations))
        return observations[:, :1]

    evaluation = pysampler.evaluate(
        Walk, policy, 12, seed=3, num_envs=num_envs, num_workers=0, batch=batch
    )
    assert seen == {batch}
    plain = pysampler.evaluate(Walk, policy, 12, seed=3, num_envs=num_envs, num_workers=0)
    assert evaluation.episodes == plain.episodes


@pytest.mark.slow
def test_a_network_with_a_fixed_batch_gives_the_same_results_for_any_number_of_envs():
    torch = pytest.importorskip("torch")
    torch.manual_seed(1)
    layers = torch.nn.Linear(3, 256), torch.nn.Tanh(), torch.nn.Linear(256, 1)
    net = torch.nn.Sequential(*layers)
    runs = [
        pysampler.evaluate(
            *("Pendulum-v1", net, 6), seed=3, num_envs=n, num_workers=0, batch=8, policy_in=where
        )
        for n, where in ((1, "main"), (3, "main"), (6, "main"), (4, "workers"))
    ]
    assert runs[0].episodes == runs[1].episodes == runs[2].episodes == runs[3].episodes


@pytest.mark.parametrize("batch", [0, 1.5, "8"])
def test_bad_batches_are_refused(batch):
    with pytest.raises(ValueError, match="cannot evaluate: batch"):
        pysampler.evaluate(Walk, Drawing(), 2, batch=batch)
