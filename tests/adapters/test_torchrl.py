"""TorchRL samples pysampler's envs and accepts its rollouts as TensorDicts."""

import functools

import gymnasium as gym
import numpy as np
import pytest
from made_up import SpaceEnv
from scripted import Mortal

pytest.importorskip("torchrl")
import torch
from tensordict.nn import TensorDictModule
from torchrl.collectors import Collector
from torchrl.envs import GymWrapper
from torchrl.envs.utils import check_env_specs
from torchrl.objectives.value import GAE

import pysampler
from pysampler.adapters.torchrl import RolloutCollector, make_env, tensordict_of

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]


def cartpole():
    return gym.make("CartPole-v1", max_episode_steps=12)


# -- envs ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["SameStep", "Disabled"])
def test_gym_wrapper_accepts_a_vector_env(mode):
    env = GymWrapper(pysampler.VectorEnv([cartpole] * 4, num_workers=2, autoreset_mode=mode))
    rollout = env.rollout(60, break_when_any_done=False)
    assert rollout.shape == (4, 60)
    assert rollout["next", "done"].any()
    env.close()


def test_make_env_chooses_an_autoreset_mode_that_torchrl_supports():
    with pytest.raises(RuntimeError, match="auto-reset mode"):
        make_env("CartPole-v1", 2, vector_kwargs={"autoreset_mode": "NextStep"})
    env = make_env(
        *("CartPole-v1", 4),
        vector_kwargs={"num_workers": 2},
        wrapper_kwargs={"categorical_action_encoding": True},
        max_episode_steps=12,
    )
    collector = Collector(env, None, frames_per_batch=160, total_frames=320)
    for data in collector:
        assert data.batch_size == (4, 40)
        done = data["next", "done"][:, :-1, 0]
        assert data["next", "truncated"].any()
        # The next observation is the following step's observation unless the episode ended.
        same = (data["observation"][:, 1:] == data["next", "observation"][:, :-1]).all(-1)
        assert torch.equal(same, ~done)
    collector.shutdown()


# -- rollouts --------------------------------------------------------------------------------------


def lean(observations):
    values = observations.sum(-1)
    return (observations[:, 2] > 0).astype(int), {"state_value": values[:, None]}


def rollouts(horizon=40, env=cartpole, policy=lean, **options):
    return pysampler.Rollouts(env, policy, horizon, num_envs=4, seed=1, **options)


def shares(tensor, array):
    return np.shares_memory(tensor.numpy(), array)


def test_tensordict_of_shares_the_rollouts_memory():
    with rollouts() as sampler:
        rollout = next(sampler)
        before = rollout.copy()
        data = tensordict_of(rollout)
        assert data.batch_size == (4, 40)
        assert data.names == [None, "time"]
        assert shares(data["observation"], rollout.observations)
        assert shares(data["action"], rollout.actions)
        assert shares(data["state_value"], rollout.extras["state_value"])
        assert shares(data["next", "terminated"], rollout.terminated)
        assert shares(data["next", "observation"], rollout.final_observations)
        np.testing.assert_array_equal(data["observation"], before.observations[:-1].swapaxes(0, 1))
        np.testing.assert_array_equal(data["next", "reward"][..., 0], before.rewards.T)
        np.testing.assert_array_equal(data["next", "truncated"][..., 0], before.truncated.T)
        np.testing.assert_array_equal(data["is_init"][..., 0], before.starts[:-1].T)
        assert data["next", "reward"].dtype == torch.float32
        assert data["collector", "mask"].all()
        done = before.terminated | before.truncated
        assert done.any()
        np.testing.assert_array_equal(data["next", "done"][..., 0], done.T)
        expected = np.where(done[..., None], before.final_observations, before.observations[1:])
        np.testing.assert_array_equal(data["next", "observation"], expected.swapaxes(0, 1))
        # The rollout itself is unchanged.
        np.testing.assert_array_equal(rollout.observations, before.observations)
        np.testing.assert_array_equal(rollout.cut_observations, before.cut_observations)


def test_without_episode_ends_next_observations_are_views():
    with rollouts(3) as sampler:
        rollout = next(sampler)
        assert len(rollout.ended) == 0
        data = tensordict_of(rollout)
        assert shares(data["next", "observation"], rollout.observations)
        assert not shares(data["next", "observation"], rollout.final_observations)


def test_shapes_and_dtypes_equal_torchrls_collector():
    env = make_env(cartpole, 4, wrapper_kwargs={"categorical_action_encoding": True})
    collector = Collector(env, None, frames_per_batch=160, total_frames=160)
    theirs = next(iter(collector))
    with RolloutCollector(rollouts()) as ours:
        data = next(ours)
        for key in theirs.keys(include_nested=True, leaves_only=True):
            if key not in ("done", "terminated", "truncated", ("collector", "traj_ids")):
                assert data[key].shape == theirs[key].shape, key
                assert data[key].dtype == theirs[key].dtype, key
    collector.shutdown()


def test_torchrls_gae_equals_rollout_gae():
    value_net = torch.nn.Linear(4, 1)
    module = TensorDictModule(value_net, in_keys=["observation"], out_keys=["state_value"])
    advantage = GAE(gamma=0.9, lmbda=0.8, value_network=module, average_gae=False)

    def values(observations):
        return value_net(torch.from_numpy(observations)).detach()[..., 0].numpy()

    with rollouts(policy=lambda observations: lean(observations)[0]) as sampler:
        rollout = next(sampler)
        assert len(rollout.cut_indices[0]) > 0
        expected, _ = rollout.gae(
            *(values(rollout.observations[:-1]), values(rollout.last_observations)),
            values(rollout.cut_observations),
            gamma=0.9,
            gae_lambda=0.8,
        )
        data = advantage(tensordict_of(rollout))
        np.testing.assert_allclose(
            data["advantage"][..., 0].detach().numpy(), expected.T, rtol=1e-4, atol=1e-4
        )


def test_torchrls_gae_ignores_a_lost_step(tmp_path):
    module = TensorDictModule(lambda obs: 10 - obs[..., 1:], ["observation"], ["state_value"])
    advantage = GAE(gamma=0.9, lmbda=0.8, value_network=module, average_gae=False)
    fns = [functools.partial(Mortal, "die", 4, tmp_path / "died"), Mortal]
    kwargs = {"num_workers": 2, "on_worker_loss": "restart"}

    def still(observations):
        return np.zeros((len(observations), 1))

    with pysampler.Rollouts(fns, still, 8, vector_kwargs=kwargs) as sampler:
        rollout = next(sampler)
    assert np.argwhere(rollout.lost).tolist() == [[3, 0]]
    expected, _ = rollout.gae(
        10 - rollout.observations[:-1, :, 1],
        10 - rollout.last_observations[:, 1],
        10 - rollout.cut_observations[:, 1],
        gamma=0.9,
        gae_lambda=0.8,
    )
    data = tensordict_of(rollout)
    assert data["next", "truncated"][0, :, 0].tolist() == [step in (2, 3) for step in range(8)]
    assert not data["next", "done"][1].any()
    got = advantage(data)["advantage"][..., 0].numpy()
    np.testing.assert_allclose(got[rollout.valid.T], expected.T[rollout.valid.T], rtol=1e-5)


def test_a_collector_stops_after_total_frames_and_closes_the_rollouts():
    with RolloutCollector(rollouts(10), total_frames=90) as collector:
        assert [data.numel() for data in collector] == [40, 40, 40]
        assert collector.frames == 120
        assert repr(collector).startswith("<pysampler.adapters.torchrl.RolloutCollector of <pysamp")
    assert collector.rollouts.closed


def test_dict_observations_become_keys_and_infos_are_under_next():
    space = gym.spaces.Dict(a=gym.spaces.Box(0, 1, (2,)), b=gym.spaces.Discrete(5))

    def policy(observations):
        return np.zeros(len(observations["b"]), int)

    def env():
        return SpaceEnv(space, infos="numbers", ends=0.2)

    with rollouts(30, env, policy, info_keys=["x"]) as sampler:
        rollout = next(sampler)
        data = tensordict_of(rollout)
        assert data["a"].shape == (4, 30, 2)
        assert data["next", "b"].shape == (4, 30)
        assert shares(data["next", "x"], rollout.infos["x"])
        ends = data["next", "done"][:, :-1, 0]
        assert ends.any()
        assert torch.equal(data["a"][:, 1:][~ends], data["next", "a"][:, :-1][~ends])


TUPLE = gym.spaces.Tuple([gym.spaces.Discrete(2), gym.spaces.Box(0, 1, (3,))])


@pytest.mark.parametrize(
    ("space", "before"),
    [(TUPLE, ("observation",)), (gym.spaces.Dict(pair=TUPLE), ("pair",))],
    ids=["tuple", "in a dict"],
)
def test_tuple_parts_have_numbers_as_keys(space, before):
    def policy(observations):
        return np.zeros(4, int)

    with rollouts(20, lambda: SpaceEnv(space, ends=0.2), policy) as sampler:
        rollout = next(sampler)
        data = tensordict_of(rollout)
        seen = rollout.observations if before == ("observation",) else rollout.observations["pair"]
        for number in range(2):
            key = (*before, str(number))
            assert shares(data[key], seen[number])
            ends = data["next", "done"][:, :-1, 0]
            assert ends.any()
            following = data[("next", *key)][:, :-1]
            assert torch.equal(data[key][:, 1:][~ends], following[~ends])


def test_torchrl_steps_envs_with_tuple_observations():
    options = {"wrapper_kwargs": {"categorical_action_encoding": True}}
    env = make_env("Blackjack-v1", 3, vector_kwargs={"num_workers": 1}, **options)
    data = env.rollout(20, break_when_any_done=False)
    assert data.shape == (3, 20)
    for number in range(3):
        assert data["observation", str(number)].shape[:2] == (3, 20)
    assert (data["observation", "0"] >= 4).all()  # the least value of two cards
    assert data["next", "done"].any()
    env.close()
    env = make_env(lambda: SpaceEnv(gym.spaces.Dict(pair=TUPLE)), 2, **options)
    assert env.rollout(3)["pair", "1"].shape[-1] == 3
    env.close()


@pytest.mark.parametrize(
    "space",
    [
        gym.spaces.Box(-1, 1, (2, 3)),
        gym.spaces.MultiDiscrete([2, 3]),
        gym.spaces.Dict(a=gym.spaces.Box(0, 1, (2,)), b=gym.spaces.Dict(c=gym.spaces.Discrete(4))),
        TUPLE,
        gym.spaces.Dict(pair=TUPLE),
    ],
    ids=str,
)
@pytest.mark.parametrize("categorical", [False, True])
def test_envs_pass_torchrls_spec_check(space, categorical):
    options = {"wrapper_kwargs": {"categorical_action_encoding": categorical}}
    env = make_env(lambda: SpaceEnv(space), 3, vector_kwargs={"num_workers": 1}, **options)
    check_env_specs(env)
    env.close()


def test_a_reset_mask_resets_only_chosen_envs():
    env = make_env(cartpole, 4, vector_kwargs={"num_workers": 2})
    data = env.rollout(5, break_when_any_done=False)[:, -1]
    mask = torch.tensor([[True], [False], [False], [True]])
    after = env.reset(data["next"].clone().set("_reset", mask))
    kept = (after["observation"] == data["next", "observation"]).all(-1, keepdim=True)
    assert torch.equal(kept, ~mask)
    env.close()


def test_a_vector_env_equals_single_envs():
    options = {"categorical_action_encoding": True}
    many = make_env(cartpole, 3, wrapper_kwargs=options)
    many.set_seed(5)
    together = many.rollout(30, policy=torchrl_lean, break_when_any_done=False)
    one = GymWrapper(cartpole(), **options)
    one.set_seed(5)
    alone = one.rollout(12, policy=torchrl_lean)
    for key in ("observation", "action", ("next", "reward"), ("next", "terminated")):
        assert torch.equal(together[key][0, : len(alone)], alone[key]), key
    many.close()


def torchrl_lean(observation):
    return (observation[..., 2] > 0).long()


def test_partial_rollouts_are_refused():
    with rollouts(4) as sampler:
        rollout = next(sampler)
        rollout.lengths[2] = 3
        with pytest.raises(ValueError, match="an env has 3 steps, expected 4 for all"):
            tensordict_of(rollout)


def test_names_of_other_keys_are_refused():
    space = gym.spaces.Dict(x=gym.spaces.Discrete(2), action=gym.spaces.Discrete(2))
    with pysampler.Rollouts(
        functools.partial(SpaceEnv, space),
        lambda seen: np.zeros(len(seen["x"]), np.int64),
        *(3,),
        num_envs=2,
        num_workers=0,
    ) as sampler:
        rollout = next(sampler)
    with pytest.raises(ValueError, match="'action' has a reserved name"):
        tensordict_of(rollout)
