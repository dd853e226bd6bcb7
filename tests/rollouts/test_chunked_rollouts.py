"""Rollouts whose policy acts for several steps at once, against a plain loop."""

import functools

import numpy as np
import pytest
from scripted import Mortal, Scripted

import pysampler
from pysampler.errors import EnvError

STEPS = 4
SCRIPTS = ["..t...c.", ".....", "t..c", "....b.......t", "c"]
WHERE = [
    {"policy_in": "main", "num_workers": 0},
    {"policy_in": "main", "num_workers": 2},
    {"policy_in": "main", "num_workers": 2, "groups": 2},
    {"policy_in": "main", "num_workers": 2, "overlap": True},
    {"policy_in": "workers", "num_workers": 0},
    {"policy_in": "workers", "num_workers": 2, "groups": 2},
]


class Plans:
    """Plans ``STEPS`` actions from an observation, with the number of plans in an episode."""

    def initial_state(self, count):
        return np.zeros(count)

    def __call__(self, observations, state):
        steps = np.arange(STEPS)
        seen = observations.sum(axis=1)[:, None] / 7 + state[:, None]
        actions = np.stack([np.sin(seen + steps), np.cos(seen - steps)], axis=-1)
        return actions.astype(np.float32), {"value": seen * steps, "state": state + 1}


def loop(rounds, horizon):
    """Return the rows of rollouts that a plain loop makes: those of observations, one more."""
    envs = [Scripted(script) for script in SCRIPTS]
    policy, count = Plans(), len(SCRIPTS)
    now = np.stack([env.reset(seed=5 + i)[0] for i, env in enumerate(envs)])
    state = policy.initial_state(count)
    rows = []
    for _ in range(rounds * horizon // STEPS):
        actions, outputs = policy(now.copy(), state)
        state = outputs["state"].copy()
        stopped = np.zeros(count, bool)
        for k in range(STEPS):
            row = {
                "observations": now.copy(),
                "valid": ~stopped,
                "value": outputs["value"][:, k],
                "actions": actions[:, k],
                "rewards": np.zeros(count),
                "terminated": np.zeros(count, bool),
                "truncated": np.zeros(count, bool),
                "life": np.zeros(count, int),
            }
            for i in np.flatnonzero(~stopped):
                seen, reward, terminated, truncated, info = envs[i].step(actions[i, k])
                row["rewards"][i] = reward
                row["terminated"][i], row["truncated"][i] = terminated, truncated
                row["life"][i] = info["life"]
                if terminated or truncated:
                    seen, stopped[i], state[i] = envs[i].reset()[0], True, 0
                now[i] = seen
            rows.append(row)
    rows.append({"observations": now.copy()})
    return rows


def stacked(rows, name):
    return np.stack([row[name] for row in rows if name in row])


@pytest.mark.parametrize("options", WHERE, ids=str)
def test_rollouts_of_chunks_are_those_of_a_plain_loop(options):
    fns = [functools.partial(Scripted, script) for script in SCRIPTS]
    horizon = 12
    with pysampler.Rollouts(
        fns, Plans(), horizon, chunk=STEPS, seed=5, info_keys=["life"], **options
    ) as rollouts:
        got = [next(rollouts).copy() for _ in range(4)]
    expected = loop(4, horizon)
    for at, rollout in enumerate(got):
        rows = expected[at * horizon : (at + 1) * horizon + 1]
        valid = rollout.valid
        np.testing.assert_array_equal(valid, stacked(rows[:-1], "valid"))
        np.testing.assert_array_equal(rollout.observations, stacked(rows, "observations"))
        for name in ("rewards", "terminated", "truncated"):
            np.testing.assert_array_equal(getattr(rollout, name), stacked(rows[:-1], name))
        np.testing.assert_array_equal(rollout.actions, stacked(rows[:-1], "actions"))
        np.testing.assert_array_equal(rollout.extras["value"], stacked(rows[:-1], "value"))
        life = stacked(rows[:-1], "life")
        np.testing.assert_array_equal(rollout.infos["life"][valid], life[valid])
        assert not rollout.infos["life"][~valid].any()


def test_episodes_and_advantages_leave_out_steps_that_were_not_made():
    fns = [functools.partial(Scripted, script) for script in SCRIPTS]
    with pysampler.Rollouts(fns, Plans(), 24, chunk=STEPS, seed=5, num_workers=0) as rollouts:
        rollout = next(rollouts)
    ended = rollout.ended
    assert ended.lengths[ended.env == 2][:4].tolist() == [1, 3, 1, 3]
    for episode in rollout.episodes():
        assert rollout.valid[episode.steps, episode.env].all()
        if episode.begins:
            assert episode.observations[:, 2].tolist() == list(range(len(episode.rewards)))
    values = rollout.observations[:-1].sum(axis=2) / 9
    last, cut = rollout.last_observations.sum(axis=1), rollout.cut_observations.sum(axis=1)
    advantages, _ = rollout.gae(values, last, cut)
    assert not advantages[~rollout.valid].any()
    for env in range(len(SCRIPTS)):
        made = np.flatnonzero(rollout.valid[:, env])
        of_env = rollout.cut_indices[1] == env
        step = np.searchsorted(made, rollout.cut_indices[0][of_env])
        alone, _ = pysampler.gae(
            *(rollout.rewards[made][:, [env]], values[made][:, [env]], last[[env]]),
            *(rollout.terminated[made][:, [env]], rollout.truncated[made][:, [env]]),
            cut[of_env],
            cut=(step, np.zeros(len(step), int)),
        )
        np.testing.assert_allclose(advantages[made, env], alone[:, 0])


def still(observations):
    return np.zeros((len(observations), STEPS, 1))


@pytest.mark.parametrize("policy_in", ["main", "workers"])
def test_env_that_raises_in_a_chunk_is_named_with_its_step(policy_in):
    fns = [functools.partial(Mortal, *fault) for fault in [(), ("raise", 7), ()]]
    with pysampler.Rollouts(
        fns, still, 12, chunk=STEPS, policy_in=policy_in, num_workers=2
    ) as rollouts:
        with pytest.raises(EnvError, match="env 1 .*raised ValueError in step 3 of a chunk"):
            next(rollouts)
        assert next(rollouts).valid.all()


def takes_previous(observations, previous_actions):
    return still(observations)


REFUSED = {
    "horizon": ({"horizon": 10}, still, "horizon 10, expected a multiple of chunk"),
    "none": ({"chunk": 0}, still, "chunk 0, expected a whole number of at least 1"),
    "min_envs": ({"min_envs": 2}, still, "with chunk the policy acts for all envs together"),
    "normalize": ({"normalize": pysampler.Normalizer()}, still, "normalize follows single steps"),
    "previous": ({}, takes_previous, "takes previous_actions, which chunks"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_options_that_chunks_cannot_have_are_refused(name):
    options, policy, text = REFUSED[name]
    given = {"horizon": 12, "chunk": STEPS, "num_workers": 0, **options}
    with pytest.raises(ValueError, match=text):
        pysampler.Rollouts([Mortal] * 3, policy, **given)


@pytest.mark.parametrize(
    ("shape", "text"),
    [
        ((3, 2, 1), r"\(3, 2, 1\), expected \(3, 4, 1\)"),
        ((3, 1), r"\(3, 1\), expected \(3, 4, 1\)"),
    ],
)
def test_policy_must_return_the_actions_of_a_chunk(shape, text):
    def policy(_):
        return np.zeros(shape)

    with (
        pysampler.Rollouts([Mortal] * 3, policy, 12, chunk=STEPS, num_workers=0) as rollouts,
        pytest.raises(ValueError, match=f"actions of shape {text}.* with 4 actions .chunk=4.$"),
    ):
        next(rollouts)


def test_extras_need_a_row_for_each_step_of_a_chunk():
    def policy(observations):
        return still(observations), {"value": observations[:, 0]}

    with (
        pysampler.Rollouts([Mortal] * 3, policy, 12, chunk=STEPS, num_workers=0) as rollouts,
        pytest.raises(ValueError, match="'value' has shape .* of 3 envs and 4 steps"),
    ):
        next(rollouts)


@pytest.mark.parametrize("actions", ["discrete", "box"])
def test_a_policy_may_return_a_distribution_of_chunks(actions):
    torch = pytest.importorskip("torch")
    env = "CartPole-v1" if actions == "discrete" else "Pendulum-v1"

    def policy(observations):
        mean = torch.as_tensor(observations).sum(1)[:, None].repeat(1, 3)
        if actions == "discrete":
            return torch.distributions.Categorical(logits=torch.stack([mean, -mean], -1))
        return torch.distributions.Normal(mean[..., None].tanh(), 0.1)

    with pysampler.Rollouts(env, policy, 12, chunk=3, num_envs=4, num_workers=0) as rollouts:
        rollout = next(rollouts)
    assert rollout.extras["log_probs"].shape == (12, 4)
    if actions == "discrete":
        assert (rollout.extras["log_probs"] <= 0).all()
