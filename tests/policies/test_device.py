"""Policies on a device: they get tensors, and their results are read after the copies arrive.

Where the order of copies matters the GPU is simulated; tests/samplers/test_cuda.py uses a real one.
"""

import contextlib
from types import SimpleNamespace

import numpy as np
import pytest

import pysampler

torch = pytest.importorskip("torch")

from modules_in_tests import Net  # noqa: E402 - needs torch

from pysampler._policies import calling, device  # noqa: E402 - needs torch
from pysampler._rollouts import rollouts as rollouts_module  # noqa: E402

ENV = "CartPole-v1"


def sample(policy, count=3, **options):
    with pysampler.Rollouts(ENV, policy, 16, num_envs=4, num_workers=0, seed=1, **options) as made:
        return [next(made).copy() for _ in range(count)]


def same(one, other):
    for mine, theirs in zip(one, other, strict=True):
        np.testing.assert_array_equal(mine.observations, theirs.observations)
        np.testing.assert_array_equal(mine.actions, theirs.actions)
        assert mine.extras.keys() == theirs.extras.keys()
        for name in mine.extras:
            np.testing.assert_array_equal(mine.extras[name], theirs.extras[name])


def test_a_function_gets_tensors_on_the_device():
    def policy(observations):
        assert isinstance(observations, torch.Tensor)
        assert not torch.is_grad_enabled()
        observations += 1  # a copy
        return [int(x) for x in observations[:, 2] > 1]  # a list is accepted

    def plain(observations):
        return (observations[:, 2] > 0).astype(int)

    same(sample(policy, device="cpu"), sample(plain))
    same(sample(policy, device=torch.device("cpu")), sample(plain))
    evaluation = pysampler.evaluate(ENV, policy, 3, seed=1, device="cpu")
    assert evaluation.mean == pysampler.evaluate(ENV, plain, 3, seed=1).mean


def test_tasks_are_sampled_on_a_device():
    import pysampler.envs.meta

    def policy(observations, tasks, params):
        assert isinstance(observations, torch.Tensor)
        return params - observations

    with pysampler.MultiTaskSampler(
        "pysampler.envs.meta:Navigation2D-v0", policy, num_envs=4, num_workers=0, device="cpu"
    ) as sampler:
        assert sampler.sample(5, params=0.5).steps == 20


def test_a_module_must_be_on_the_device():
    net = Net()
    same(sample(net), sample(net, device="cpu"))
    with pytest.raises(
        ValueError, match=r"the policy is on cpu, expected meta: policy.to\('meta'\)"
    ):
        sample(net, device="meta")


def test_unknown_devices_and_policies_in_workers_are_refused():
    with pytest.raises(ValueError, match="cannot act: device 'nowhere': "):
        sample(Net(), device="nowhere")
    with pytest.raises(ValueError, match="policies in workers act on the CPU"):
        sample(Net(), device="cpu", policy_in="workers")


class Gpu:
    """A GPU whose copies arrive only when its stream is awaited."""

    def __init__(self):
        self.calls, self.pending = [], []

    def copy(self, tensor, _):
        arrives = torch.full_like(tensor, 1)  # a valid action, but for wrong observations
        self.pending.append((arrives, tensor.detach().clone()))
        return arrives

    def synchronize(self):
        self.calls.append("await")
        for arrives, tensor in self.pending:
            arrives.copy_(tensor)
        self.pending.clear()

    def wait_event(self, event):
        self.calls.append(event)

    def record_event(self):
        self.calls.append("weights")
        return "after the weights"

    @contextlib.contextmanager
    def stream(self, stream):
        self.calls.append("act")
        yield


@pytest.fixture
def gpu(monkeypatch):
    gpu = Gpu()

    class Device(device.PolicyDevice):
        def __init__(self, at):
            super().__init__(at)
            self.is_gpu, self._stream = True, gpu
            cuda = SimpleNamespace(stream=gpu.stream, current_stream=lambda _: gpu)
            self._torch = SimpleNamespace(cuda=cuda, no_grad=torch.no_grad)

    monkeypatch.setattr(device, "PolicyDevice", Device)
    monkeypatch.setattr(device, "_begin_copy", gpu.copy)
    monkeypatch.setattr(rollouts_module, "register_memory", lambda memory: None)
    return gpu


@pytest.mark.parametrize("options", [{}, {"overlap": True}, {"min_envs": 2}], ids=str)
def test_results_are_read_after_their_copies_arrive(gpu, monkeypatch, options):
    torch.manual_seed(1)
    net = Net()
    found = sample(net, **options)
    assert not gpu.pending
    calls, gpu.calls = gpu.calls, []
    acts = [call for call in calls if call != "weights"]
    assert acts == ["act", "after the weights", "await"] * (len(acts) // 3)
    monkeypatch.undo()
    same(found, sample(net, **options))
    # Each rollout waits for the weights at its beginning, not for later ones.
    assert calls.count("weights") >= 3
    assert calls.count("await") >= 3 * 16


def test_without_synchronize_results_would_be_wrong(gpu, monkeypatch):
    """Shows that the test above can fail."""
    torch.manual_seed(1)
    net = Net()
    monkeypatch.setattr(Gpu, "synchronize", lambda self: None)
    found = sample(net)
    monkeypatch.undo()
    assert any((a.actions != b.actions).any() for a, b in zip(found, sample(net), strict=True))


def test_the_same_device_keeps_its_stream():
    before = device.policy_device("cpu", None)
    assert device.policy_device(torch.device("cpu"), before) is before
    assert device.policy_device("meta", before) is not before
    assert calling.policy_device is device.policy_device
