"""Torch modules as policies: in the main process, in workers, and during training."""

import functools
import importlib

import numpy as np
import pytest

pytest.importorskip("torch")
import torch
from scripted import Scripted

import pysampler
from pysampler._common.torch import needs_torch


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 2)
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

    def forward(self, observations):
        assert not torch.is_grad_enabled()
        actions = torch.tanh(self.layer(observations.float()) / 100)
        return actions, {"bias": self.layer.bias.expand(len(observations), 2)}


class Recurrent(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.cell = torch.nn.GRUCell(4, 8)
        self.head = torch.nn.Linear(8, 2)

    def forward(self, observations, state):
        if state is None:
            state = observations.new_zeros(len(observations), 8).float()
        state = self.cell(observations.float() / 100, state)
        return torch.tanh(self.head(state)), {"state": state}


WAYS = [
    {"policy_in": where, "overlap": overlap}
    for where in ("main", "workers")
    for overlap in (False, True)
]


def make():
    return pysampler.VectorEnv([lambda: Scripted("....t.c")] * 4, num_workers=2)


@pytest.fixture
def envs():
    with make() as envs:
        yield envs


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS, ids=str)
def test_a_rollout_uses_the_weights_at_its_start(way, envs):
    net = Net()
    seen = []
    with pysampler.Rollouts(envs, net, 5, seed=1, **way) as rollouts:
        for version in range(1, 6):
            with torch.no_grad():
                net.layer.bias.fill_(float(version))
            rollout = next(rollouts)
            biases = np.unique(rollout.extras["bias"])
            assert len(biases) == 1  # never torn
            seen.append(float(biases[0]))
            assert rollout.version == version
            assert rollout.lag == (way["overlap"] and version > 1)
            with torch.no_grad():
                net.layer.bias.fill_(-1.0)  # the pending rollout must not see this
    assert seen == ([1.0, 1.0, 2.0, 3.0, 4.0] if way["overlap"] else [1.0, 2.0, 3.0, 4.0, 5.0])


@pytest.mark.slow
@pytest.mark.parametrize("net", [Net(), Recurrent()], ids=["plain", "recurrent"])
def test_rollouts_are_equal_in_main_and_workers(net):
    results = []
    for way in WAYS:
        with make() as envs, pysampler.Rollouts(envs, net, 6, seed=2, **way) as rollouts:
            results.append([next(rollouts).copy() for _ in range(3)])
    for others in results[1:]:
        for one, other in zip(results[0], others, strict=True):
            # Two batches of two round differently from one of four.
            np.testing.assert_allclose(one.actions, other.actions, rtol=1e-5, atol=1e-6)
            np.testing.assert_array_equal(one.terminated, other.terminated)
            np.testing.assert_allclose(one.rewards, other.rewards, rtol=1e-6)


def table_class():
    """Return a class of policies that travels by value."""

    class Table:
        bias = 0.0

        def __call__(self, observations):
            bias = np.full(len(observations), self.bias)
            return np.zeros((len(observations), 2), np.float32), {"bias": bias}

    return Table


def expect_new_biases(envs, holder, make_policy):
    """Change the bias of a policy or of its class before each rollout."""
    for way in WAYS:
        holder.bias = 0.0
        seen, table = [], make_policy()
        call = type(table).__call__
        with pysampler.Rollouts(envs, table, 3, **way) as rollouts:
            for _ in range(4):
                holder.bias += 1
                [bias] = np.unique(next(rollouts).extras["bias"])
                seen.append(bias)
        assert seen == ([1, 1, 2, 3] if way["overlap"] else [1, 2, 3, 4])
        assert type(table).__call__ is call


def test_a_changed_numpy_policy_is_sent_again(envs):
    table = table_class()()
    expect_new_biases(envs, table, lambda: table)


def test_class_attributes_of_a_policy_are_updated(envs):
    kind = table_class()
    expect_new_biases(envs, kind, kind)


@pytest.mark.slow
def test_random_policies_in_workers_differ_and_repeat_by_seed(envs):
    class Noisy(torch.nn.Module):
        def forward(self, observations):
            return torch.randn(len(observations), 2).clamp(-1, 1)

    def sampled(seed):
        with pysampler.Rollouts(envs, Noisy(), 6, seed=seed, policy_in="workers") as rollouts:
            return np.concatenate([next(rollouts).actions.copy() for _ in range(2)])

    first = sampled(5)
    np.testing.assert_array_equal(first, sampled(5))
    assert (first != sampled(6)).any()
    assert (first[:, 0] != first[:, 2]).any()  # two workers
    assert (first[:6] != first[6:]).any()


def test_tensors_share_memory_and_move_to_a_device(envs):
    with pysampler.Rollouts(envs, Net(), 5) as rollouts:
        rollout = next(rollouts)
        data = rollout.torch()
        rollout.rewards[0, 0] = 123.0
        assert data.rewards[0, 0] == 123.0
        assert data.starts.dtype == torch.bool
        for device in ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]:
            there = rollout.torch(device)
            assert there.observations.device.type == device
            assert there.rewards[0, 0].item() == 123.0
            assert len(there.cut_observations) == len(rollout.cut_observations)
            assert there.last_observations.shape == (4, 4)


def test_torch_is_preloaded_for_policies_that_import_it(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    for name, first in (("with_torch", "from torch import nn"), ("without", "import math")):
        (tmp_path / f"{name}.py").write_text(f"{first}\ndef policy(observations): ...\n")
        module = importlib.import_module(name)
        assert needs_torch(module.policy) == (name == "with_torch")
    assert needs_torch(torch.nn.Linear(1, 1))
    monkeypatch.setattr(module.policy, "__module__", "__main__")
    assert not needs_torch(module.policy)
    assert not needs_torch(functools.partial(module.policy))
