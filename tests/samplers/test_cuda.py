"""Rollouts on a GPU: page-locked memory, and copies awaited before memory is reused."""

import numpy as np
import pytest

pytest.importorskip("torch")
import torch
from modules_in_tests import Net
from scripted import Scripted

import pysampler
from pysampler._rollouts import cuda, rollouts

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")

ENVS, HORIZON = 64, 256


def policy(observations):
    return np.zeros((ENVS, 2), np.float32)


def sampler(of=policy, horizon=HORIZON, **options):
    envs = [lambda: Scripted("....t.c")] * ENVS
    return pysampler.Rollouts(envs, of, horizon, vector_kwargs={"num_workers": 2, **options})


def keep_gpu_busy():
    """Queue work of about half a second, so that later work is late."""
    torch.cuda._sleep(int(1e9))


def late_copies(count):
    """Return pairs of observations: late GPU copies, and as first returned."""
    pairs = []
    with sampler() as made:
        for rollout in (next(made) for _ in range(count)):
            there = rollout.torch("cuda")  # the first copy registers the memory
            before = rollout.observations.copy()
            keep_gpu_busy()
            there = rollout.torch("cuda")
            pairs.append((there.observations, before))
    return [(tensor.cpu().numpy(), array) for tensor, array in pairs]


def test_a_late_copy_has_the_numbers_of_its_rollout():
    for on_gpu, before in late_copies(4):
        np.testing.assert_array_equal(on_gpu, before)


def test_without_the_wait_a_late_copy_would_be_wrong(monkeypatch):
    """Shows that the test above can fail."""
    monkeypatch.setattr(rollouts, "wait_for_copies", lambda memory: None)
    assert any((on_gpu != before).any() for on_gpu, before in late_copies(4))


def test_memory_is_registered_once_and_unregistered():
    with sampler() as made:
        rollout = next(made)
        address = rollout.memory.ctypes.data
        rollout.torch("cuda")
        assert address in cuda._registered
        assert torch.from_numpy(rollout.observations).is_pinned()
        rollout.torch("cuda")
        del rollout
    del made
    torch.cuda.synchronize()
    assert address not in cuda._registered
    assert address not in cuda._copy_events


@pytest.mark.parametrize("context", ["forkserver", "fork", "spawn"])
def test_workers_start_after_the_program_used_the_gpu(context):
    torch.zeros(1, device="cuda")
    with sampler(context=context) as made:
        assert next(made).torch("cuda").rewards.shape == (HORIZON, ENVS)


def test_a_module_on_a_gpu_acts_in_the_main_process():
    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(4, 2)

        def forward(self, observations):
            assert observations.device.type == "cuda"
            return torch.tanh(self.layer(observations.float()) / 100)

    with sampler(Net().cuda(), 5) as made:
        assert next(made).actions.shape[:2] == (5, ENVS)


def acted(net, **options):
    with pysampler.Rollouts(
        "CartPole-v1", net, 32, num_envs=8, num_workers=2, seed=1, **options
    ) as made:
        return [next(made).copy() for _ in range(4)]


@pytest.mark.parametrize("options", [{}, {"overlap": True}, {"min_envs": 4}], ids=str)
def test_a_policy_acts_alike_on_gpu_and_cpu(options):
    torch.manual_seed(1)
    net = Net()
    on_cpu = acted(net, **options)
    on_gpu = acted(net.to("cuda"), device="cuda", **options)
    for one, other in zip(on_cpu, on_gpu, strict=True):
        np.testing.assert_array_equal(one.actions, other.actions)
        np.testing.assert_allclose(one.extras["logits"], other.extras["logits"], atol=1e-5)


def test_acting_does_not_wait_for_the_learners_stream():
    net = Net().to("cuda")
    with pysampler.Rollouts("CartPole-v1", net, 32, num_envs=8, overlap=True, seed=1) as made:
        rollout = next(made)
        assert rollout.memory.ctypes.data in cuda._registered
        busy = torch.cuda.Event()
        torch.cuda._sleep(int(4e9))  # a learner's work of some seconds
        busy.record()
        next(made)  # had begun before
        assert not busy.query()


def test_actors_act_on_the_gpu_with_published_weights():
    module = torch.nn.Linear(4, 2).double().to("cuda")
    options = {"num_envs": 4, "num_workers": 2, "groups": 2, "device": "cuda"}
    with pysampler.Actors(lambda: Scripted("....t.c"), module, **options) as actors:
        actors.take(1)
        with torch.no_grad():
            module.weight.zero_()
            module.bias.fill_(3.0)
        version = actors.publish()
        while not (new := (records := actors.take(32)).version == version).any():
            pass
        assert (records.actions[new] == 3.0).all()
