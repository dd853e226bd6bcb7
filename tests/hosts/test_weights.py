"""Publishing the policy to hosts: training with hosts equals local training."""

import numpy as np
import pytest
from hosts_in_tests import HasWeights, Life, assert_equal, local, rollouts, scripted, weighted

from pysampler.errors import EnvError
from pysampler.ray._policy_states import PolicyVersions, update_policy


class Weighted(HasWeights):
    """Acts by its weights and changes them: arrays from Ray's store are read-only."""

    def __init__(self):
        super().__init__(w=np.zeros(3), calls=np.zeros((), np.int64))

    def __call__(self, observations):
        self.weights["calls"] += 1
        actions = np.full((len(observations), 2), self.weights["w"].sum() / 10, np.float32)
        return actions, {"w": np.full(len(observations), self.weights["w"][0])}

    def learn(self, rollout):
        self.weights["w"] += rollout.rewards.mean() / 7
        self.weights["calls"] *= 0  # so that its own calls do not count as changes


class Plain:
    """A policy as a closure over an array."""

    def __init__(self):
        weight = self.weight = np.zeros(1)

        def act(observations):
            return np.full((len(observations), 2), weight[0] / 10, np.float32), {
                "w": np.full(len(observations), weight[0])
            }

        self.act = act

    def learn(self, rollout):
        self.weight += rollout.rewards.mean() / 7


class Network:
    """A torch module."""

    def __init__(self):
        import torch

        class Module(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.linear = torch.nn.Linear(4, 2)
                self.register_buffer("seen", torch.zeros((), dtype=torch.int64))

            def forward(self, observations):
                actions = torch.tanh(self.linear(observations.float() / 100))
                return actions, {"w": self.linear.bias[0].expand(len(observations))}

        torch.manual_seed(1)
        self.act = Module()
        self.optimizer = torch.optim.SGD(self.act.parameters(), 0.1)

    def learn(self, rollout):
        import torch

        actions, _ = self.act(torch.from_numpy(rollout.observations[:-1].reshape(-1, 4)))
        loss = (actions * torch.from_numpy(rollout.rewards.reshape(-1, 1))).mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.act.seen += 1


def learner(kind):
    one = kind()
    return one, getattr(one, "act", one)


@pytest.mark.parametrize("policy_in", ["main", "workers"])
@pytest.mark.parametrize("kind", [Weighted, Plain, Network])
def test_training_with_one_host_equals_local_training(simulated, kind, policy_in):
    here, policy = learner(kind)
    there, other = learner(kind)
    with (
        local(scripted(), policy, host=0, policy_in=policy_in) as expected,
        rollouts(scripted(), other, hosts=1, in_flight=1, policy_in=policy_in) as some,
    ):
        for n in range(6):
            one, [taken] = next(expected), some.take()
            assert_equal(taken, one)
            assert (taken.version, taken.lag) == (n + 1, 0)
            here.learn(one)
            there.learn(taken)
        assert len(np.unique(taken.extras["w"])) == 1
        assert some.version == 6


def test_two_hosts_act_with_the_same_policy(simulated):
    weight = np.zeros(1)
    with rollouts(policy=weighted(weight), in_flight=1) as some:
        for n in range(4):
            weight[:] = n
            for one in some.take():
                assert (one.extras["w"] == n).all()
                assert (one.version, one.lag) == (n + 1, 0)


def test_an_unchanged_policy_is_sent_once(simulated):
    with rollouts() as some:
        some.take()
        size = some.stats().bytes_published
        for _ in range(3):
            assert all(one.lag == 0 for one in some.take())
        assert some.version == 1
        assert some.stats().bytes_published == size
        assert "load" not in simulated.requests


def test_with_two_in_flight_rollouts_lag_by_one(simulated):
    weight = np.zeros(1)
    with rollouts(policy=weighted(weight)) as some:
        for n in range(6):
            for one in some.take():
                assert (one.extras["w"] == one.version - 1).all()
                assert one.lag == some.version - one.version
                # This rollout was sampled while the learner learned from the last one.
                assert one.version == max(n, 1)
            simulated.settle()
            weight += 1
        assert some.version == 6


def test_a_queued_call_uses_the_newest_policy(simulated):
    weight = np.zeros(1)
    for node in simulated.alive:
        node.seconds = 1
    with rollouts(policy=weighted(weight), in_flight=3) as some:
        some.take()  # two more are running or queued
        weight += 1
        versions = [one.version for _ in range(3) for one in some.take()]
        assert versions == [1, 1, 2, 2, 2, 2]


def test_with_overlap_rollouts_use_the_previous_policy(simulated):
    weight = np.zeros(1)
    with (
        local(Life, weighted(weight), host=0, overlap=True) as expected,
        rollouts(policy=weighted(weight), hosts=1, in_flight=1, overlap=True) as some,
    ):
        for n in range(5):
            one, [taken] = next(expected), some.take()
            assert_equal(taken, one)
            assert (taken.extras["w"] == taken.version - 1).all()
            assert taken.lag == one.lag == (n > 0)
            weight += 1


def test_rollouts_beyond_max_lag_are_dropped_and_counted(simulated):
    weight = np.zeros(1)
    with rollouts(policy=weighted(weight), max_lag=0, in_flight=2) as some:
        numbers = {0: [], 1: []}
        for _ in range(5):
            for one in some.take():
                assert one.lag == 0
                assert (one.extras["w"] == weight[0]).all()
                numbers[one.host].append(one.number)
            simulated.settle()
            weight += 1
        stats = some.stats()
        last = sum(max(of_host) + 1 for of_host in numbers.values())
        assert stats.dropped == last - stats.taken > 0
        assert stats.lag == 0


def test_dropped_rollouts_do_not_count_for_min_hosts(simulated):
    weight = np.zeros(1)
    with rollouts(policy=weighted(weight), max_lag=0) as some:
        some.take()
        simulated.settle()
        weight += 1
        assert some.take(min_hosts=2).hosts == [0, 1]
        simulated.settle()
        weight += 1
        for node in simulated.alive:
            node.seconds = 10
        assert some.take(timeout=1).hosts == []


def drawing(observations, generators):
    return np.array([generator.integers(1000) for generator in generators])


class RandomPolicy:
    def __init__(self):
        self.rng = np.random.default_rng(1)

    def __call__(self, observations):
        return self.rng.integers(1000, size=len(observations))


def test_generators_depend_on_the_seeds_of_each_host(simulated):
    own = [local(Life, drawing, host=host) for host in range(2)]
    with rollouts(policy=drawing) as some:
        for _ in range(2):
            taken = some.take()
            assert len({one.actions.tobytes() for one in taken}) == 2
            for one in taken:
                assert_equal(one, next(own[one.host]))
    for one in own:
        one.close()


def test_random_policies_differ_by_host_and_repeat_by_seed(simulated):
    def drawn(seed):
        with rollouts(policy=RandomPolicy(), seed=seed) as some:
            return [one.actions.copy() for _ in range(2) for one in some.take()]

    first, again, other = drawn(1), drawn(1), drawn(2)
    np.testing.assert_array_equal(first, again)
    assert len({actions.tobytes() for actions in (*first, *other)}) == 8


def test_a_changed_policy_does_not_repeat_random_numbers(simulated):
    policy = RandomPolicy()
    policy.weight = 0
    with rollouts(policy=policy, in_flight=1) as some:
        drawn = []
        for _ in range(3):
            drawn += [one.actions.copy().tobytes() for one in some.take()]
            policy.weight += 1
        assert len(set(drawn)) == 6


def test_an_unpicklable_policy_is_refused(simulated):
    lock = __import__("threading").Lock()

    def policy(observations):
        with lock:
            return np.zeros(len(observations), np.int64)

    with pytest.raises(TypeError, match="cannot send envs and policy to the hosts"):
        rollouts(policy=policy)
    assert simulated.processes == []


def test_a_policy_error_names_its_host(simulated):
    def policy(observations):
        if observations[0, 0] == 5:  # the seed of the second host's first env
            raise ZeroDivisionError("told to")
        return np.zeros(len(observations), np.int64)

    with rollouts(policy=policy) as some:
        with pytest.raises(ZeroDivisionError, match="host 1 .*told to") as caught:
            some.take()
        assert isinstance(caught.value, EnvError)
        assert some.take(min_hosts=1).hosts == [0]


# -- change detection ----------------------------------------------------------------------------


class State:
    def __init__(self, **arrays):
        self.arrays = arrays

    def state_dict(self):
        return self.arrays

    def load_state_dict(self, arrays):
        self.arrays = arrays


@pytest.fixture
def versions(simulated):
    return PolicyVersions()


def changes(versions, before, after):
    versions.publish_if_changed(State(w=before))
    known = versions.version
    versions.publish_if_changed(State(w=after))
    return versions.version - known


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (np.array([1.0, np.nan]), np.array([1.0, np.nan])),
        (np.arange(6).reshape(2, 3).T, np.arange(6).reshape(2, 3).T.copy()),
        (np.arange(10)[::2], np.arange(0, 10, 2)),
        (np.zeros((0, 3)), np.zeros((0, 3))),
        (np.array(3), np.array(3)),
    ],
)
def test_equal_bits_are_not_a_change(versions, before, after):
    assert changes(versions, before, after) == 0


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (np.array([0.0]), np.array([-0.0])),
        (np.array([1]), np.array([1.0])),
        (np.array([1, 0], np.int8), np.array([True, False])),
    ],
)
def test_different_bits_or_dtypes_are_a_change(versions, before, after):
    assert changes(versions, before, after) == 1


@pytest.mark.parametrize(
    ("after", "expected"),
    [
        ({"w": np.zeros((3, 2))}, r"w of shape \(3, 2\), expected \(2, 3\)"),
        ({"w": np.zeros((2, 4))}, r"w of shape \(2, 4\), expected \(2, 3\)"),
        ({"v": np.zeros((2, 3))}, r"\['v'\], expected \['w'\]"),
        ({"v": np.zeros(1), "w": np.zeros((2, 3))}, r"\['v', 'w'\], expected"),
    ],
)
def test_different_names_and_shapes_are_refused(versions, after, expected):
    versions.publish_if_changed(State(w=np.zeros((2, 3))))
    with pytest.raises(ValueError, match=f"cannot publish weights: {expected}"):
        versions.publish_if_changed(State(**after))
    assert versions.version == 1
    versions.publish_if_changed(State(w=np.ones((2, 3))))
    assert versions.version == 2


def test_in_place_changes_are_noticed(versions):
    weight = np.zeros(3)
    versions.publish_if_changed(State(w=weight))
    weight[2] = 1
    versions.publish_if_changed(State(w=weight))
    assert versions.version == 2
    assert versions.bytes_put == 2 * weight.nbytes


def test_the_object_store_keeps_two_versions(versions, simulated):
    for n in range(5):
        versions.publish(State(w=np.full(1000, n)).state_dict())
    assert simulated.stored_bytes == 2 * 8000
    np.testing.assert_array_equal(simulated.get(versions.newest)["w"], np.full(1000, 4))


def test_published_weights_do_not_change_with_the_policy(versions, simulated):
    weight = np.zeros(3)
    versions.publish_if_changed(State(w=weight))
    weight += 1
    np.testing.assert_array_equal(simulated.get(versions.newest)["w"], np.zeros(3))


def test_the_policy_of_a_host_stays_on_its_device():
    torch = pytest.importorskip("torch")
    policy = torch.nn.Linear(2, 1)
    state = {name: value.numpy() for name, value in policy.state_dict().items()}
    update_policy(policy, state, (1,), "meta")  # in place of a GPU
    assert {one.device.type for one in policy.parameters()} == {"meta"}
