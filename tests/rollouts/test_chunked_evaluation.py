"""Evaluations whose policy acts for several steps at once, against a plain loop."""

import functools
import threading

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import SyncVectorEnv
from scripted import Mortal
from walks import SPECS, Walk, results

import pysampler
from pysampler.errors import EnvError

STEPS = 4


class Planning:
    """A recurrent policy that draws, and plans several actions."""

    def __init__(self, steps=STEPS):
        self.steps = steps

    def initial_state(self, count):
        return np.ones((count, 2))

    def __call__(self, observations, state, generators):
        noise = np.array([generator.normal(size=self.steps) for generator in generators])
        state = state * 0.8 + observations[:, :2]
        actions = noise + state[:, :1] + 0.1 * observations[:, 1:2] * np.arange(self.steps)
        return actions[..., None], {"state": state, "noise": noise}


def describe(episode):
    infos = episode.infos["total"]
    assert len(episode.observations) == len(episode.actions) == len(infos)
    parts = episode.observations, episode.actions[:, 0], episode.extras["noise"], infos
    of_part = [float(np.sum(part.T * np.arange(1, len(infos) + 1))) for part in parts]
    return dict(zip(("observations", "actions", "noise", "infos"), of_part, strict=True))


STATISTICS = pysampler.EpisodeStatistics(
    describe, keep=["observations", "actions", "rewards", "extras", "infos"]
)


class Told(Walk):
    """Says the same array in each info, which it changes."""

    def __init__(self, *args):
        super().__init__(*args)
        self.said = np.zeros(())

    def step(self, action):
        *result, info = super().step(action)
        self.said[()] = self.total
        return *result, {**info, "total": self.said}


@functools.cache
def expected(chunk=STEPS):
    """Return results of a plain loop over single episodes, and the statistics of their steps."""
    found, described, repeats = [], [], {}
    for index, spec in enumerate(SPECS):
        seed = 11 + index if spec.seed is None else spec.seed
        repeats[seed] = repeat = repeats.get(seed, -1) + 1
        generator = np.random.default_rng(np.random.SeedSequence((seed, repeat)))
        env, policy = Walk(), Planning(chunk)
        observation, _ = env.reset(seed=seed, options=spec.options)
        state, over, total, steps = policy.initial_state(1), False, 0.0, []
        while not over:
            actions, extras = policy(observation[None], state, [generator])
            state = extras["state"]
            for action, noise in zip(actions[0], extras["noise"][0], strict=True):
                before = observation
                observation, reward, over, _, info = env.step(action)
                total += reward
                steps.append((before, action[0], noise, env.total))
                if over:
                    break
        found.append((seed, total, len(steps), info["is_success"]))
        weights = np.arange(1, len(steps) + 1)
        sums = [float(np.sum(np.array(part).T * weights)) for part in zip(*steps, strict=True)]
        described.append(
            dict(zip(("observations", "actions", "noise", "infos"), sums, strict=True))
        )
    return found, described


def evaluate(make=Told, policy=None, episodes=SPECS, **options):
    return pysampler.evaluate(
        make, policy or Planning(), episodes, **{"seed": 11, "chunk": STEPS, **options}
    )


@pytest.mark.parametrize("where", ["main", "workers"])
@pytest.mark.parametrize("num_envs", [1, 2, 16])
@pytest.mark.parametrize("statistics", [None, STATISTICS])
def test_results_of_chunks_do_not_depend_on_the_number_of_envs(num_envs, where, statistics):
    evaluation = evaluate(num_envs=num_envs, num_workers=0, policy_in=where, statistics=statistics)
    assert results(evaluation) == expected()[0]
    if statistics is not None:
        assert [one.statistics for one in evaluation.episodes] == expected()[1]


@pytest.mark.parametrize("where", ["main", "workers"])
@pytest.mark.parametrize("chunk", [1, 3, 70, 300])  # 300: more than an evaluation's usual frames
def test_chunks_of_any_length_are_those_of_a_plain_loop(chunk, where):
    evaluation = evaluate(
        policy=Planning(chunk), chunk=chunk, num_envs=3, num_workers=0, policy_in=where
    )
    assert results(evaluation) == expected(chunk)[0]


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        {"policy_in": "workers"},
        {"groups": 2},
        {"policy_in": "workers", "groups": 2, "statistics": STATISTICS},
        {"statistics": STATISTICS},
        {"batch": 5},
        {"batch": 5, "policy_in": "workers"},
        {"main_envs": 3},
    ],
    ids=str,
)
@pytest.mark.parametrize("workers", [1, 2])
def test_results_of_chunks_do_not_depend_on_workers_and_options(workers, options):
    evaluation = evaluate(num_envs=7, num_workers=workers, **options)
    assert results(evaluation) == expected()[0]
    if "statistics" in options:
        assert [one.statistics for one in evaluation.episodes] == expected()[1]


class Hangs(Told):
    """Does not return from the first step 3 after which its file is missing."""

    def __init__(self, file):
        super().__init__()
        self.file = file

    def step(self, action):
        if self.steps == 2 and not self.file.exists():
            self.file.touch()
            threading.Event().wait()
        return super().step(action)


@pytest.mark.slow
@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("where", ["main", "workers"])
@pytest.mark.parametrize("env", [Told, Hangs])
def test_episodes_of_a_lost_worker_begin_again_in_chunks(tmp_path, where, groups, env):
    hangs = {"step_timeout": 0.5, "on_hang": "restart"} if env is Hangs else {}
    evaluation = evaluate(
        functools.partial(env, tmp_path / "died"),
        num_envs=8,
        num_workers=2,
        policy_in=where,
        groups=groups,
        on_worker_loss="restart",
        **hangs,
    )
    assert (tmp_path / "died").exists()
    assert results(evaluation) == expected()[0]


@pytest.mark.parametrize("where", ["main", "workers"])
def test_envs_without_an_episode_make_no_chunks(where):
    """Walk raises if it is stepped after its end."""
    with pysampler.VectorEnv([Told] * 6, num_workers=0) as envs:
        for episodes in (2, 6, 9):
            evaluation = evaluate(envs, episodes=SPECS[:episodes], policy_in=where)
            assert results(evaluation) == expected()[0][:episodes]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("env", "counts"),
    [("CartPole-v1", (1, 5, 16)), ("Pendulum-v1", (1, 16)), ("Hopper-v5", (1, 6))],
)
def test_native_envs_give_the_same_results_in_chunks(env, counts):
    if env == "Hopper-v5":
        pytest.importorskip("mujoco")
    single = gym.make(env)

    def policy(observations, generators):
        def draw(generator):
            if isinstance(single.action_space, spaces.Discrete):
                return generator.integers(2, size=STEPS)
            return generator.uniform(-1, 1, (STEPS, *single.action_space.shape))

        return np.stack([draw(generator) for generator in generators]).astype(
            single.action_space.dtype
        )

    runs = [
        evaluate(env, policy, 19, num_envs=n, num_workers=1, native=native, policy_in=where)
        for n in counts
        for native in ("auto", False)
        for where in ("main", "workers")
    ]
    for run in runs[1:]:
        assert run.episodes == runs[0].episodes


def still(observations):
    return np.zeros((len(observations), STEPS, 1))


def test_chunks_of_open_rollouts_are_those_of_their_evaluations():
    with pysampler.Rollouts([Mortal] * 3, still, 12, chunk=STEPS, num_workers=0) as rollouts:
        next(rollouts)
        with pytest.raises(ValueError, match="took more than max_steps, 50"):
            pysampler.evaluate(rollouts, still, 3, max_steps=50)


@pytest.mark.slow
def test_env_that_raises_in_a_chunk_of_an_evaluation_is_named_with_its_step():
    fns = [functools.partial(Mortal, *fault) for fault in [(), ("raise", 7), ()]]
    for where in ("main", "workers"):
        with pytest.raises(EnvError, match="env 1 .*raised ValueError in step 3 of a chunk"):
            evaluate(fns, still, 3, policy_in=where, num_workers=2)


class Camera(gym.Env):
    """Draws only the frames that are read, and 20 steps."""

    observation_space = spaces.Box(0, 255, (16, 16, 3), np.uint8)
    action_space = spaces.Box(-1, 1, (1,), np.float64)
    unseen = False

    def skip_frames(self, unseen):
        self.unseen = unseen

    def draw(self):
        self.drawn += 1
        self.picture = np.full((16, 16, 3), self.steps, np.uint8)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = self.drawn = 0
        self.draw()
        return self.picture, {}

    def step(self, action):
        self.steps += 1
        over = self.steps == 18
        if over or not self.unseen:
            self.draw()
        return self.picture, float(self.picture[0, 0, 0]), over, False, {"is_success": self.drawn}


def test_envs_may_skip_the_frames_that_no_policy_sees():
    drawn = []

    class Noting(Camera):
        def step(self, action):
            result = super().step(action)
            if result[2]:
                drawn.append(self.drawn)
            return result

    for keep, expected in ((None, 1 + 4 + 1), (["rewards"], 1 + 4 + 1), (["observations"], 19)):
        drawn.clear()
        statistics = keep and pysampler.EpisodeStatistics(lambda _: {}, keep=keep)
        evaluate(Noting, still, 3, num_workers=0, num_envs=2, statistics=statistics)
        assert drawn == [expected] * 3  # the first, one a chunk, the last; or all


def takes_previous(observations, previous_actions):
    return still(observations)


REFUSED = {
    "none": ({"chunk": 0}, still, "cannot evaluate: chunk 0, expected a whole number"),
    "min_envs": ({"min_envs": 2}, still, "cannot evaluate: min_envs and timeout are for single"),
    "timeout": ({"timeout": 1.0}, still, "cannot evaluate: min_envs and timeout are for single"),
    "normalize": (
        {"normalize": pysampler.Normalizer()},
        still,
        "cannot evaluate: normalize follows single steps",
    ),
    "previous": ({}, takes_previous, "takes previous_actions, which chunks"),
    "shape": ({"chunk": 3}, still, r"actions of shape \(3, 4, 1\), expected \(3, 3, 1\)"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_options_that_evaluations_in_chunks_cannot_have_are_refused(name):
    options, policy, text = REFUSED[name]
    with pytest.raises(ValueError, match=text):
        evaluate([Mortal] * 3, policy, 3, num_workers=0, **options)


def test_vector_envs_that_step_all_envs_or_none_make_no_chunks():
    nested = functools.partial(SyncVectorEnv, [Mortal] * 2)
    with pysampler.VectorEnv([nested], num_workers=0) as ours:
        for envs in (ours, SyncVectorEnv([Mortal] * 2)):
            with pytest.raises(
                ValueError, match=r"cannot evaluate: .* all of its envs or none, ex"
            ):
                evaluate(envs, still, 3)


def test_wrapped_vector_envs_make_no_chunks():
    envs = gym.wrappers.vector.TransformReward(
        pysampler.VectorEnv([Mortal] * 2, num_workers=0), np.sign
    )
    with pytest.raises(ValueError, match="they would not see each step of a chunk"):
        evaluate(envs, still, 3)
    envs.close()
