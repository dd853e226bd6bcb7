"""Policies of observations alone, whose results C++ copies, equal all other policies."""

import numpy as np
import pytest
from gymnasium import spaces
from policies_in_tests import WAYS
from scripted import Scripted

import pysampler


class Views(np.ndarray):
    pass


# Alternatives to a plain array that a policy may return.
KINDS = {
    "array": lambda array: array,
    "list": lambda array: array.tolist(),
    "column order": np.asfortranarray,
    "part of a larger array": lambda array: np.repeat(array, 2, axis=0)[::2],
    "another class": lambda array: array.view(Views),
    "other byte order": lambda array: array.astype(array.dtype.newbyteorder()),
    "larger shape": lambda array: np.broadcast_to(array[:1], array.shape),
}


class Policy:
    """Returns actions and extras of ``kind`` from the second call on."""

    def __init__(self, kind="array", dtype=np.float32):
        self.kind, self.dtype, self.calls = kind, dtype, 0

    def __call__(self, observations):
        self.calls += 1
        assert observations.flags.owndata
        assert observations.flags.writeable
        actions = np.stack([observations[:, 2] % 3, observations[:, 3] / 7], 1).astype(self.dtype)
        extras = {"value": observations.sum(1), "pair": observations[:, 1:3].astype(np.int32)}
        observations[:] = -1  # a copy
        if self.kind == "larger shape":
            actions[:], extras["pair"][:] = actions[0], extras["pair"][0]
        change = KINDS[self.kind if self.calls > 1 else "array"]
        if self.kind == "list":  # Python floats are not float32
            return change(actions.astype(np.int64)), extras
        return change(actions), {"value": extras["value"], "pair": change(extras["pair"])}


class CopiedByPython(Policy):
    """The same, but takes more than observations, so that Python copies its results."""

    def __call__(self, observations, generators):
        return super().__call__(observations)


def two_rollouts(policy, num_workers, **options):
    envs = pysampler.VectorEnv([lambda: Scripted("..t.c")] * 6, num_workers=num_workers)
    with pysampler.Rollouts(envs, policy, 7, seed=3, **options) as rollouts:
        return [next(rollouts).copy() for _ in range(2)]


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("options", WAYS, ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_results_of_any_array_kind_are_recorded(kind, options, num_workers):
    made = two_rollouts(Policy(kind), num_workers, **options)
    expected = two_rollouts(CopiedByPython(kind), num_workers, **options)
    for one, other in zip(made, expected, strict=True):
        for name in ("observations", "actions", "rewards", "starts", "final_observations"):
            assert np.array_equal(getattr(one, name), getattr(other, name)), name
        for name in ("value", "pair"):
            assert np.array_equal(one.extras[name], other.extras[name]), name
            assert one.extras[name].any()


# Alternatives to a plain tensor that a policy may return.
TENSORS = {
    "tensor": lambda tensor: tensor,
    "part of a graph": lambda tensor: tensor.float().requires_grad_() * 1,
    "part of a larger tensor": lambda tensor: tensor.repeat_interleave(2, 0)[::2],
    "rounded": lambda tensor: tensor.bfloat16(),
}


def of_tensors(kind, *, takes_more):
    """Return a module that returns tensors of ``kind``, for the integers of ``Policy``."""
    torch = pytest.importorskip("torch")

    class Module(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.policy = Policy()

        def forward(self, observations):
            actions, extras = self.policy(observations.numpy().copy())
            observations.fill_(-1)  # a copy
            extras = {name: torch.from_numpy(array) for name, array in extras.items()}
            with torch.enable_grad():  # as a policy may
                return TENSORS[kind](torch.from_numpy(actions.round())), {
                    "value": extras["value"],
                    "pair": TENSORS[kind](extras["pair"]),
                }

    class TakesMore(Module):
        def forward(self, observations, generators):
            return super().forward(observations)

    return TakesMore() if takes_more else Module()


@pytest.mark.slow
@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("options", WAYS, ids=str)
@pytest.mark.parametrize("kind", TENSORS)
def test_tensors_of_any_kind_are_recorded(kind, options, num_workers):
    made = two_rollouts(of_tensors(kind, takes_more=False), num_workers, **options)
    expected = two_rollouts(of_tensors(kind, takes_more=True), num_workers, **options)
    for one, other in zip(made, expected, strict=True):
        assert one.actions.dtype == other.actions.dtype
        assert np.array_equal(one.observations, other.observations)
        assert np.array_equal(one.actions, other.actions)
        assert one.actions.any()
        for name in ("value", "pair"):
            assert np.array_equal(one.extras[name], other.extras[name]), name
            assert one.extras[name].any()


@pytest.mark.parametrize("options", WAYS, ids=str)
@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16])
def test_nan_actions_are_refused_in_later_steps(dtype, options):
    def policy(observations):
        actions = np.zeros((len(observations), 2), dtype)
        actions[observations[:, 2] == 3] = np.nan
        return actions

    box = spaces.Box(-10, 10, (2,), dtype)
    envs = pysampler.VectorEnv([lambda: Scripted(action_space=box)] * 4, num_workers=2)
    with (
        pysampler.Rollouts(envs, policy, 9, **options) as rollouts,
        pytest.raises((ValueError, pysampler.EnvError), match="nan for"),
    ):
        next(rollouts)


@pytest.mark.parametrize("where", ["main", "workers"])
def test_policies_get_dict_and_tuple_observations(where):
    class Nested(Scripted):
        observation_space = spaces.Dict(
            {"a": Scripted.observation_space, "b": spaces.Tuple([spaces.Discrete(9)])}
        )

        def _observe(self, action=0.0):
            return {"a": super()._observe(action), "b": (np.int64(self.steps % 9),)}

    def policy(observations):
        (b,) = observations["b"]
        return np.stack([observations["a"][:, 2], b], 1).astype(np.float32)

    envs = pysampler.VectorEnv([lambda: Nested("...t")] * 4, num_workers=2)
    with pysampler.Rollouts(envs, policy, 9, policy_in=where) as rollouts:
        for _ in range(2):
            rollout = next(rollouts)
            assert np.array_equal(rollout.actions[..., 0], rollout.observations["a"][:-1, :, 2])
            assert np.array_equal(rollout.actions[..., 1], rollout.observations["b"][0][:-1])
            assert rollout.actions.any()


@pytest.mark.parametrize(("space", "nothing"), [(spaces.Dict({}), {}), (spaces.Tuple(()), ())])
def test_policies_of_empty_action_spaces_act(space, nothing):
    class Actionless(Scripted):
        def __init__(self):
            super().__init__()
            self.action_space = space

        def step(self, action):
            return super().step(np.zeros(2, np.float32))

    def policy(observations):
        return nothing, {"seen": observations.sum(1)}

    with pysampler.Rollouts([Actionless] * 2, policy, 3, num_workers=1) as rollouts:
        assert next(rollouts).extras["seen"].shape == (3, 2)
