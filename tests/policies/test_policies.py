"""Policies: their arguments, results and copies."""

import functools
import threading

import numpy as np
import pytest

pytest.importorskip("torch")
import torch
from policies_in_tests import WAYS, first, still
from small_envs import Small

import pysampler
import pysampler.envs.meta

STILL = np.zeros((4, 2), np.float32)


# -- arguments -------------------------------------------------------------------------------------


def deterministic(observations, deterministic=1):
    return still(observations), {"is": np.full(len(observations), deterministic == 1)}


def cleanrl(observations, action=None):
    return still(observations), {"is": np.full(len(observations), action is None)}


def by_keyword(observations, *, state):
    count = np.zeros(len(observations)) if state is None else state
    return still(observations), {"is": np.ones(len(observations), bool), "state": count + 1}


def by_position(observations, state, /):
    count = np.zeros(len(observations)) if state is None else state
    return still(observations), {"is": np.ones(len(observations), bool), "state": count + 1}


def drawn(observations, generators):
    return still(observations), {"is": np.full(len(observations), generators == "mine")}


def decorated(observations, deterministic=1):
    @functools.wraps(deterministic)
    def any_arguments(*args):
        assert len(args) == 1
        return still(args[0]), {"is": np.ones(len(args[0]), bool)}

    return any_arguments(observations)


class AnyArguments:
    def __call__(self, *args, **kwargs):
        assert not kwargs
        return still(args[0]), {"is": np.full(len(args[0]), len(args) == 1)}


class Default(torch.nn.Module):
    def forward(self, observations, deterministic=1):
        seen = torch.full((len(observations),), deterministic == 1)
        return torch.zeros(len(observations), 2), {"is": seen}


@pytest.mark.parametrize("way", WAYS, ids=str)
@pytest.mark.parametrize(
    "policy",
    [
        deterministic,
        cleanrl,
        by_keyword,
        by_position,
        decorated,
        functools.partial(drawn, generators="mine"),
        AnyArguments(),
        Default(),
    ],
    ids=lambda policy: getattr(policy, "__name__", type(policy).__name__),
)
def test_only_a_parameter_named_state_gets_the_state(envs, policy, way):
    assert first(envs, policy, **way)["is"].all()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # from tracing
@pytest.mark.parametrize("how", ["traced", "compiled"])
def test_traced_and_compiled_modules_get_observations(envs, how):
    class Net(torch.nn.Module):
        def forward(self, observations):
            return torch.tanh(observations[:, :2].float())

    if how == "traced":
        net = torch.jit.trace(Net(), torch.zeros(4, 4, dtype=torch.float64))
    else:
        net = torch.compile(Net(), backend="eager")
    assert first(envs, net, seed=1)["actions"].any()


def test_evaluate_does_not_set_other_parameters(envs):
    seen = []

    def policy(observations, deterministic=1):
        seen.append(deterministic)
        return still(observations)

    pysampler.evaluate(envs, policy, 4)
    assert set(seen) == {1}


class Hidden:
    """Declares itself recurrent and takes its state under another name."""

    recurrent = True

    def __call__(self, observations, hidden, greedy=0):
        count = np.zeros(len(observations)) if hidden is None else hidden
        return still(observations), {"seen": count, "state": count + 1}


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_the_attribute_recurrent_makes_a_policy_recurrent(envs, way):
    assert first(envs, Hidden(), **way)["seen"].max() > 0


class Layered(torch.nn.Module):
    """Has a layer named ``recurrent``, elsewhere the name of a bool."""

    def __init__(self):
        super().__init__()
        self.recurrent = torch.nn.Linear(4, 2)

    def forward(self, observations):
        return torch.tanh(self.recurrent(observations.float()))


def test_a_layer_named_recurrent_does_not_make_a_module_recurrent(envs):
    first(envs, Layered())


@pytest.mark.parametrize(
    ("policy", "takes"),
    [
        (lambda: 0, ""),
        (lambda observations, hidden: 0, "observations, hidden"),
        (lambda observations, *, temperature: 0, "observations, temperature"),
        (lambda *, observations: 0, "observations"),
        (lambda observations, a, b, c, state, /: 0, "observations, a, b, c, state"),
        (lambda observations, generators, /: 0, "observations, generators"),
    ],
)
def test_unknown_required_parameters_are_refused(envs, policy, takes):
    with pytest.raises(
        TypeError, match=rf"the policy takes \({takes}\), expected \(observations\)"
    ):
        pysampler.Rollouts(envs, policy, 5)
    with pytest.raises(TypeError, match="named 'state', or the attribute recurrent = True"):
        pysampler.Actors(envs, policy)
    with pytest.raises(TypeError, match=r"expected \(observations, tasks, params\)"):
        pysampler.MultiTaskSampler("pysampler.envs.meta:Navigation2D-v0", policy, num_envs=1)


def test_settings_are_passed_by_name(envs):
    def policy(observations, epsilon):
        return still(observations) + np.float32(epsilon)[:, None]

    with pysampler.Actors(envs, policy, settings={"epsilon": 3}) as actors:
        assert (actors.take(4, min_records=1).actions == 3).all()


# -- results ---------------------------------------------------------------------------------------


def test_returning_more_than_a_pair_is_refused(envs):
    def policy(observations):
        return still(observations), 1.0, 2.0, 3.0

    with (
        pysampler.Rollouts(envs, policy, 5) as rollouts,
        pytest.raises(
            TypeError, match=r"returned \(ndarray, float, float, float\).*\(actions, ext"
        ),
    ):
        next(rollouts)


def test_extras_must_have_names(envs):
    with (
        pysampler.Rollouts(envs, lambda o: (still(o), {None: np.zeros(4)}), 5) as rollouts,
        pytest.raises(TypeError, match="extras have the key None, expected str"),
    ):
        next(rollouts)


def test_masked_actions_are_refused(envs):
    with (
        pysampler.Rollouts(envs, lambda o: np.ma.masked_equal(still(o), 0), 5) as rollouts,
        pytest.raises(TypeError, match="the policy returned a masked array"),
    ):
        next(rollouts)


class Half(torch.nn.Module):
    def forward(self, observations):
        values = torch.full((len(observations),), 1.5, dtype=torch.bfloat16)
        return torch.zeros(len(observations), 2, dtype=torch.bfloat16), {"value": values}


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_bfloat16_is_recorded_as_float32(envs, way):
    extras = first(envs, Half(), **way)
    assert extras["value"].dtype == np.float32
    assert (extras["value"] == 1.5).all()


def in_place(observations):
    before = observations.copy()
    observations += 1
    return still(observations), {"before": before}


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_a_function_may_write_to_its_observations(envs, way):
    with pysampler.Rollouts(envs, in_place, 5, **way) as rollouts:
        for _ in range(2):
            rollout = next(rollouts)
            np.testing.assert_array_equal(rollout.extras["before"], rollout.observations[:-1])


class InPlace(torch.nn.Module):
    """Changes its observations in a way that torch's version counter sees, or not."""

    def __init__(self, counted):
        super().__init__()
        self.counted = counted

    def forward(self, observations):
        before = observations.clone()
        if self.counted:
            observations[:, 1:].mul_(2)
        else:
            observations.numpy()[:] = 0
        observations.unsqueeze_(0)
        return torch.zeros(len(before), 2), {"before": before}


@pytest.mark.parametrize("way", WAYS, ids=str)
@pytest.mark.parametrize("counted", [False, True])
@pytest.mark.parametrize("inference", [False, True])
def test_a_module_may_write_to_its_observations(envs, way, counted, inference):
    with (
        torch.inference_mode(inference),
        pysampler.Rollouts(envs, InPlace(counted), 5, **way) as rollouts,
    ):
        for _ in range(2):
            rollout = next(rollouts)
            np.testing.assert_array_equal(rollout.extras["before"], rollout.observations[:-1])
            assert rollout.observations.any()


def test_a_policy_may_change_its_own_copy_of_settings(envs):
    def policy(observations, epsilon):
        epsilon *= 0.5
        return still(observations), {"epsilon": epsilon}

    with pysampler.Actors(envs, policy, settings={"epsilon": 1.0}) as actors:
        for _ in range(3):
            assert (actors.take(20).epsilon == 0.5).all()
        assert (actors.settings["epsilon"] == 1).all()


# -- copies ----------------------------------------------------------------------------------------


def test_with_overlap_a_copy_of_the_function_acts(envs):
    calls = []

    def policy(observations):
        calls.append(len(observations))
        return still(observations)

    with pysampler.Rollouts(envs, policy, 5, overlap=True) as rollouts:
        next(rollouts)
        next(rollouts)
    assert len(calls) == 1  # only the trial calls the original


def test_overlap_refuses_a_function_that_cannot_be_copied(envs):
    lock = threading.Lock()

    def policy(observations):
        with lock:
            return still(observations)

    with (
        pysampler.Rollouts(envs, policy, 5, overlap=True) as rollouts,
        pytest.raises(TypeError, match="cannot copy the policy: .* without overlap"),
    ):
        next(rollouts)


class CountsInPlace:
    """Adds to the state that it gets, and says what that was."""

    def initial_state(self, count):
        return np.zeros((count, 1))

    def __call__(self, observations, state):
        seen = state[:, 0].copy()
        state += 1
        return still(observations), {"seen": seen, "state": state}


@pytest.mark.parametrize("options", [*WAYS, {"min_envs": 4}])
def test_a_policy_may_write_to_the_state_that_it_gets(envs, options):
    with pysampler.Rollouts(envs, CountsInPlace(), 3, **options) as rollouts:
        rollout = next(rollouts)
        for found in (rollout.state[..., 0], rollout.extras["seen"]):
            assert found[:2].tolist() == [[0] * 4, [1] * 4]


class Reuses:
    """Returns its own array in each call."""

    def __init__(self, *, copies):
        self.array, self.copies = np.zeros(2, np.int64), copies

    def __call__(self, observations):
        self.array[:] = observations[:, 2] > 0
        return self.array.copy() if self.copies else self.array


def test_a_policy_that_reuses_its_array_may_act_for_batches_of_a_fixed_size():
    copies, own = (
        pysampler.evaluate(
            "CartPole-v1", Reuses(copies=copies), 4, num_envs=4, num_workers=0, batch=2, seed=1
        )
        for copies in (True, False)
    )
    assert copies.lengths.tolist() == own.lengths.tolist()


def test_a_policy_that_reuses_its_array_may_act_for_each_task():
    array = np.zeros((2, 2), np.float32)

    def policy(observations, params=None):
        return np.clip(params - observations, -0.1, 0.1, out=array)[:, :]

    goals = [np.full(2, 0.5, np.float32), np.full(2, -0.5, np.float32)]
    with pysampler.MultiTaskSampler(
        "Navigation2D-v0", policy, num_envs=4, num_workers=0, seed=1
    ) as sampler:
        rollout = sampler.sample(5, params=goals, tasks=[{"goal": goal} for goal in goals])
        assert np.sign(rollout.actions[0, :, 0]).tolist() == [1, 1, -1, -1]


class OwnState:
    """Returns its state in an array that it writes to."""

    def initial_state(self, count):
        self.state = np.zeros((count, 1))
        return self.state

    def __call__(self, observations, state):
        seen = state[:, 0].copy()
        self.state = getattr(self, "state", np.zeros((4, 1)))
        self.state[: len(state)] = state + 1
        return observations, {"seen": seen, "state": self.state[: len(state)]}


@pytest.mark.parametrize(
    "options", [{}, {"policy_in": "workers"}, {"min_envs": 4}, {"num_workers": 0}], ids=str
)
def test_a_policy_may_write_to_the_state_that_it_returned(options):
    make = functools.partial(Small, 50)
    with pysampler.Rollouts(make, OwnState(), 3, num_envs=4, **options) as rollouts:
        rollout = next(rollouts)
        assert rollout.state[:2, :, 0].tolist() == [[0] * 4, [1] * 4]
        assert rollout.extras["seen"][:2].tolist() == [[0] * 4, [1] * 4]
