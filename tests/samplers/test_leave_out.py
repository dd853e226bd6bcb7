"""leave_out: observation parts without a fixed shape that samplers omit by name."""

import functools
import os
import signal

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from scripted import Scripted

import pysampler

NAMES = ["inner.graph", "mission"]


class Speaking(gym.ObservationWrapper):
    """Scripted with a text and a sequence whose lengths change in each step."""

    def __init__(self, script=".....t"):
        super().__init__(Scripted(script))
        box = self.env.observation_space
        self.observation_space = spaces.Dict(
            {
                "first": box,
                "inner": spaces.Dict({"graph": spaces.Sequence(box), "last": box}),
                "mission": spaces.Text(100),
            }
        )

    def observation(self, observation):
        steps = int(observation[2])
        return {
            "first": observation,
            "inner": {"graph": (observation,) * steps, "last": -observation},
            "mission": "ab" * (1 + steps),
        }


class Silent(Speaking):
    """The same without the text and the sequence."""

    def __init__(self, script=".....t"):
        super().__init__(script)
        box = self.env.observation_space
        self.observation_space = spaces.Dict({"first": box, "inner": spaces.Dict({"last": box})})

    def observation(self, observation):
        return {"first": observation, "inner": {"last": -observation}}


class Words(gym.Space):
    """A space that gymnasium does not know."""

    def __init__(self):
        super().__init__(None, None)

    def contains(self, x):
        return isinstance(x, str)

    def __eq__(self, other):
        return isinstance(other, Words)

    __hash__ = None


class UnknownTextSpace(Speaking):
    def __init__(self):
        super().__init__()
        self.observation_space = spaces.Dict({**self.observation_space.spaces, "mission": Words()})


class Spaced(gym.Env):
    def __init__(self, observation_space, action_space=None):
        self.observation_space = observation_space
        self.action_space = action_space or spaces.Discrete(2)


def policy(observations):
    assert list(observations) == ["first", "inner"]
    assert list(observations["inner"]) == ["last"]
    first = observations["first"]
    return (first[:, 1:3] + observations["inner"]["last"][:, 2:4]).astype(np.float32)


class PolicyWithWeight:
    """Acts like ``policy`` plus its weight."""

    def __init__(self):
        self.weight = np.zeros(1)

    def state_dict(self):
        return {"weight": self.weight}

    def load_state_dict(self, state):
        self.weight = state["weight"].copy()

    def __call__(self, observations):
        return policy(observations) + self.weight.astype(np.float32)


def assert_equal(one, other):
    if isinstance(one, dict):
        assert one.keys() == other.keys()
        for key in one:
            assert_equal(one[key], other[key])
    else:
        np.testing.assert_array_equal(one, other)


def rollouts_of(env_fn, count, names, **options):
    options = {"num_workers": 2, "seed": 3, **options}
    with pysampler.Rollouts([env_fn] * 4, policy, 8, leave_out=names, **options) as rollouts:
        return [next(rollouts).copy() for _ in range(count)]


@pytest.mark.parametrize(
    "options",
    [
        {"policy_in": "main"},
        {"policy_in": "main", "num_workers": 0},
        {"policy_in": "main", "groups": 2, "overlap": True},
        {"policy_in": "main", "reset_each": True},
        {"policy_in": "workers"},
        {"policy_in": "workers", "num_workers": 0},
    ],
    ids=str,
)
def test_rollouts_equal_those_of_envs_without_the_parts(options):
    theirs = rollouts_of(Silent, 3, [], **options)
    for one, other in zip(rollouts_of(Speaking, 3, NAMES, **options), theirs, strict=True):
        for name in ("observations", "final_observations", "actions", "rewards", "terminated"):
            assert_equal(getattr(one, name), getattr(other, name))


def test_parts_of_unknown_space_types_can_be_left_out():
    one, other = rollouts_of(UnknownTextSpace, 1, NAMES), rollouts_of(Silent, 1, [])
    assert_equal(one[0].observations, other[0].observations)
    with pytest.raises(ValueError, match="part 'mission' of the observations has no fixed shape"):
        rollouts_of(UnknownTextSpace, 1, ["inner.graph"])


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("steps", [None, 4])
def test_records_omit_the_parts(steps, workers):
    with pysampler.Actors(
        [Speaking] * 4, policy, num_workers=workers, steps=steps, leave_out=NAMES
    ) as actors:
        records = actors.take(40, min_records=40).copy()
    assert list(records.observations) == ["first", "inner"]
    assert list(records.observations["inner"]) == ["last"]
    first = records.observations["first"]
    np.testing.assert_array_equal(records.observations["inner"]["last"], -first)
    assert first[..., 2].max() > 2
    assert actors.envs.closed


def test_the_vector_env_returns_the_parts_again_afterwards():
    with pysampler.VectorEnv([Speaking] * 2, num_workers=1) as envs:
        with pysampler.Rollouts(envs, policy, 4, leave_out=NAMES) as rollouts:
            next(rollouts)
        observations, _ = envs.reset()
        assert observations["mission"] == ("ab", "ab")
        observations, *_ = envs.step(envs.action_space.sample())
        assert observations["mission"] == ("abab", "abab")


def test_replacements_leave_out_the_parts():
    options = {"num_workers": 2, "on_worker_loss": "restart"}
    with pysampler.VectorEnv([Speaking] * 2, **options) as envs:
        with pysampler.Rollouts(envs, policy, 4, leave_out=NAMES) as rollouts:
            next(rollouts)
            os.kill(envs._pool.pids[0], signal.SIGKILL)
            assert any(next(rollouts).lost.any() for _ in range(3))
        observations, _ = envs.reset()
        assert observations["mission"] == ("ab", "ab")


def test_evaluations_use_the_leave_out_of_rollouts():
    with pysampler.Rollouts([Speaking] * 2, policy, 4, leave_out=NAMES) as rollouts:
        next(rollouts)
        lengths = pysampler.evaluate(rollouts, policy, 4).lengths
    assert set(lengths.tolist()) == {2, 6}
    again = pysampler.evaluate([Speaking] * 2, policy, 4, leave_out=NAMES)
    assert again.lengths.tolist() == [6] * 4


def test_watchers_use_the_leave_out_of_actors():
    with (
        pysampler.Actors([Speaking], PolicyWithWeight(), leave_out=NAMES) as actors,
        pysampler.Watcher(actors, Speaking) as watcher,
    ):
        assert watcher.wait(1)["length"][0] == 6


# -- errors ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("sampler", ["Rollouts", "Actors", "Watcher"])
def test_errors_suggest_leave_out(sampler):
    call = {
        "Rollouts": lambda **options: pysampler.Rollouts([Speaking], policy, 4, **options),
        "Actors": lambda **options: pysampler.Actors([Speaking], policy, **options),
        "Watcher": lambda **options: pysampler.Watcher(policy, Speaking, **options),
    }[sampler]
    message = (
        "part 'inner.graph' of the observations has no fixed shape; leave it out with "
        r"leave_out=\['inner.graph', 'mission'\]"
    )
    with pytest.raises(ValueError, match=message):
        call()
    with pytest.raises(ValueError, match="part 'mission' of the observations has no fixed shape"):
        call(leave_out=["inner.graph"])
    with pytest.raises(ValueError, match=r"leave_out has 'first', expected names of parts"):
        call(leave_out=[*NAMES, "first"])
    with pytest.raises(ValueError, match=r"leave_out 'mission', expected a list of names"):
        call(leave_out="mission")


@pytest.mark.parametrize(
    "given",
    [
        {"observation_space": spaces.Text(3)},
        {"observation_space": spaces.Dict({"a": spaces.Text(3)})},
        {
            "observation_space": spaces.Discrete(2),
            "action_space": spaces.Sequence(spaces.Discrete(2)),
        },
    ],
    ids=["observations", "all parts", "actions"],
)
def test_spaces_with_no_remaining_part_are_refused(given):
    env_fn = functools.partial(Spaced, **given)
    with pytest.raises(ValueError, match="^cannot sample rollouts: .* parts without a fixed shape"):
        pysampler.Rollouts([env_fn], policy, 4, vector_kwargs={"num_workers": 0})


def test_wrapped_vector_envs_are_refused():
    with pysampler.VectorEnv([Speaking], num_workers=0) as envs:
        wrapped = gym.wrappers.vector.TransformReward(envs, lambda reward: reward)
        with pytest.raises(ValueError, match="they would see the parts in leave_out"):
            pysampler.Rollouts(wrapped, policy, 4, leave_out=NAMES)
