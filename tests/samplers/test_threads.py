"""Policies in workers that are threads: the results of processes, without copies of weights."""

import functools
import random
import threading

import numpy as np
import pytest
from scripted import Scripted

import pysampler
from pysampler._policies import sampler

ENVS = [functools.partial(Scripted, script) for script in ("..t", ".c", "...b", ".")]


def rollouts_in(context, policy, count=3, **options):
    """Return copies of rollouts with the policy in two workers."""
    options = {"num_workers": 2, "policy_in": "workers", "seed": 3, **options}
    with pysampler.Rollouts(ENVS, policy, 4, context=context, **options) as rollouts:
        return [next(rollouts).copy() for _ in range(count)]


def assert_as_in_processes(policy, **options):
    found = rollouts_in("threads", policy, **options)
    expected = rollouts_in("fork", policy, **options)
    for one, other in zip(found, expected, strict=True):
        for name in ("observations", "actions", "rewards"):
            np.testing.assert_array_equal(getattr(one, name), getattr(other, name), err_msg=name)
        for name, values in other.extras.items():
            np.testing.assert_array_equal(one.extras[name], values, err_msg=name)


def plain(observations):
    return np.stack([observations[:, 2], observations[:, 3] % 3], 1).astype(np.float32)


class Recurrent:
    def initial_state(self, count):
        return np.zeros(count)

    def __call__(self, observations, state):
        state = state + observations[:, 2]
        return np.stack([state, state], 1).astype(np.float32) % 7, {"state": state}


def draws(observations, generators):
    return np.stack([one.random(2) for one in generators]).astype(np.float32)


class Counts:
    """Acts with the number of its calls."""

    calls = 0

    def __call__(self, observations):
        self.calls += 1
        return np.full((len(observations), 2), self.calls % 10, np.float32)


class Draws:
    def __init__(self):
        self.numbers = np.random.default_rng(0)
        self.others = random.Random(0)

    def __call__(self, observations):
        number = self.others.random()
        return (self.numbers.random((len(observations), 2)) + number).astype(np.float32)


NUMBERS = np.random.default_rng(0)


def draws_from_its_module(observations):
    return NUMBERS.random((len(observations), 2)).astype(np.float32)


POLICIES = [plain, Recurrent(), draws, Counts(), Draws(), draws_from_its_module]


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize(
    "policy", POLICIES, ids=lambda one: getattr(one, "__name__", type(one).__name__)
)
def test_rollouts_equal_those_of_processes(policy, overlap):
    assert_as_in_processes(policy, overlap=overlap)


def test_the_programs_own_generators_are_left_alone():
    random.seed(0)
    np.random.seed(0)
    states = [random.getstate(), np.random.get_state()[1].tolist(), NUMBERS.bit_generator.state]
    rollouts_in("threads", draws_from_its_module)
    now = [random.getstate(), np.random.get_state()[1].tolist(), NUMBERS.bit_generator.state]
    assert now == states


def test_a_policy_is_the_programs_own_if_it_cannot_be_pickled():
    lock, seen = threading.Lock(), set()

    def locked(observations):
        with lock:
            seen.add(threading.current_thread().name)
        return plain(observations)

    found = rollouts_in("threads", locked)
    assert {"pysampler-0", "pysampler-1"} <= seen
    for one, other in zip(found, rollouts_in("fork", plain), strict=True):
        np.testing.assert_array_equal(one.observations, other.observations)
    with pytest.raises(TypeError, match="cannot copy the policy"):
        rollouts_in("fork", locked)


class Locked:
    """Has weights, and cannot be pickled."""

    def __init__(self):
        self.lock = threading.Lock()

    def state_dict(self):
        return {"gain": np.ones(1)}

    def load_state_dict(self, state):
        raise NotImplementedError

    def __call__(self, observations):
        return plain(observations)


def test_a_policy_with_weights_must_be_copied():
    with (
        pysampler.Actors(ENVS, Locked(), num_workers=2, context="threads") as actors,
        pytest.raises(TypeError, match="cannot copy the policy"),
    ):
        actors.take(1)


def test_workers_count_rows_of_a_normalizer_apart():
    normalizer = pysampler.Normalizer(rewards=False)
    envs = pysampler.VectorEnv(ENVS, num_workers=2, context="threads")
    actors = pysampler.Actors(envs, plain, seed=3, normalize=normalizer)
    actors.take(64, min_records=64)
    actors.stop()
    for _ in actors.batches(64):
        pass
    actors.close()
    assert normalizer.count == sum(envs.stats().steps.count) + len(ENVS)  # of the resets, too
    envs.close()


# -- modules -------------------------------------------------------------------------------------


@pytest.fixture
def torch():
    return pytest.importorskip("torch")


def network(torch, forward):
    """Return a module with a layer and this forward."""

    class Network(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(4, 2)
            torch.nn.init.constant_(self.layer.weight, 0.01)
            torch.nn.init.zeros_(self.layer.bias)
            self.norm = torch.nn.BatchNorm1d(4, dtype=torch.float64)

    Network.forward = forward
    return Network()


def test_rollouts_of_a_module_equal_those_of_processes(torch):
    def forward(self, observations):  # each copy counts its own rows
        return self.layer(self.norm(observations).float())

    module = network(torch, forward)
    assert_as_in_processes(module)
    assert not module.norm.num_batches_tracked


DISTRIBUTIONS = {
    "Normal": lambda d, x: d.Normal(x, 1.0),
    "Beta": lambda d, x: d.Beta(x.exp(), 1.0),
    "Gamma": lambda d, x: d.Gamma(x.exp(), 1.0),
    "Uniform": lambda d, x: d.Uniform(x, x + 1),
    "Exponential": lambda d, x: d.Exponential(x.exp()),
    "Cauchy": lambda d, x: d.Cauchy(x, 1.0),
    "StudentT": lambda d, x: d.StudentT(x.exp()),
    "Dirichlet": lambda d, x: d.Dirichlet(x.exp()),
    "MultivariateNormal": lambda d, x: d.MultivariateNormal(x, x.new_ones(2).diag()),
    "TransformedDistribution": lambda d, x: d.TransformedDistribution(
        d.Independent(d.Normal(x, 1.0), 1), d.TanhTransform()
    ),
    "MixtureSameFamily": lambda d, x: d.MixtureSameFamily(
        d.Categorical(x.new_ones(len(x), 3)),
        d.Independent(d.Normal(x[:, None].expand(-1, 3, -1), 1.0), 1),
    ),
    "Bernoulli": lambda d, x: d.Bernoulli(logits=x),
    "Poisson": lambda d, x: d.Poisson(x.exp()),
    "Binomial": lambda d, x: d.Binomial(3, logits=x),
}


@pytest.mark.parametrize("kind", DISTRIBUTIONS)
def test_draws_from_distributions_equal_those_of_processes(torch, kind):
    def forward(self, observations):
        return DISTRIBUTIONS[kind](torch.distributions, self.layer(observations.float() % 3))

    assert_as_in_processes(network(torch, forward))


def test_distributions_with_a_generator_of_their_own_draw_from_that(torch):
    class Own(torch.distributions.Normal):
        def sample(self, shape=()):
            own = torch.Generator().manual_seed(1)
            return torch.normal(self.loc, self.scale, generator=own)

    def forward(self, observations):
        return Own(self.layer(observations.float() % 3), 1.0)

    assert_as_in_processes(network(torch, forward))


def test_all_threads_use_the_weights_of_the_program(torch):
    seen = set()

    def forward(self, observations):
        seen.add((threading.current_thread().name, self.layer.weight.data_ptr()))
        return self.layer(observations.float())

    module = network(torch, forward)
    options = {"num_workers": 2, "context": "threads", "policy_in": "workers", "seed": 3}
    with pysampler.Rollouts(ENVS, module, 4, **options) as rollouts:
        next(rollouts)
        seen.clear()
        with torch.no_grad():
            module.layer.weight.zero_()
            module.layer.bias.fill_(7)
        assert (next(rollouts).actions == 7).all()
    where = module.layer.weight.data_ptr()
    assert seen == {("pysampler-0", where), ("pysampler-1", where)}


def test_evaluations_in_threads_share_one_copy_of_the_weights(torch):
    seen = {}

    def forward(self, observations):
        seen[threading.current_thread().name] = self.layer.weight
        return self.layer(observations.float())

    options = {"num_workers": 2, "context": "threads", "policy_in": "workers", "seed": 3}
    pysampler.evaluate([ENVS[0]] * 2, network(torch, forward), 4, **options)
    assert seen["pysampler-0"] is seen["pysampler-1"] is not seen["MainThread"]


def test_each_thread_has_its_own_attributes_of_a_module(torch):
    both = threading.Barrier(2)

    def forward(self, observations):
        self.last = observations
        if threading.current_thread().name.startswith("pysampler-"):
            both.wait()  # until the other thread is in its call, too
        return self.layer(self.last.float()), {"seen": self.last}

    for one in rollouts_in("threads", network(torch, forward)):
        np.testing.assert_array_equal(one.extras["seen"], one.observations[:-1])


@pytest.mark.parametrize("overlap", [False, True])
def test_changes_of_weights_reach_rollouts_between_them(torch, overlap):
    def forward(self, observations):
        bias = self.layer.bias.expand(len(observations), 2)
        return torch.zeros(len(observations), 2), {"bias": bias}

    module = network(torch, forward)
    options = {"num_workers": 2, "context": "threads", "policy_in": "workers", "seed": 3}
    with pysampler.Rollouts(ENVS, module, 4, overlap=overlap, **options) as rollouts:
        for number in range(6):
            seen = next(rollouts).extras["bias"]
            assert (seen == max(0, number - overlap)).all()
            with torch.no_grad():
                module.layer.bias.fill_(number + 1)


def test_actors_act_with_published_weights_only(torch):
    def forward(self, observations):
        bias = self.layer.bias.expand(len(observations), 2)
        return torch.zeros(len(observations), 2), {"bias": bias}

    module = network(torch, forward)
    options = {"num_workers": 2, "context": "threads", "seed": 3}
    with pysampler.Actors(ENVS, module, refresh_share=1.0, **options) as actors:
        actors.begin()
        for version in range(1, 6):
            newest = 0
            while newest < version:
                records = actors.take(8)
                newest = records.version.max()
                assert (records.bias == records.version[:, None] - 1).all()
            with torch.no_grad():
                module.layer.bias.fill_(version)
                actors.take(8)  # acts with what was published before
            actors.publish()


def test_a_sampler_may_be_freed_when_modules_are_empty_already(monkeypatch):
    rollouts = pysampler.Rollouts(ENVS, plain, 4, num_workers=2, context="threads")
    next(rollouts)
    monkeypatch.setattr(sampler, "contextlib", None)  # as when a program ends
    rollouts.__del__()
    assert rollouts._core.closed
