"""Bad input raises a clear error before anything is sent."""

import functools

import numpy as np
import pytest
from gymnasium import spaces
from scripted import Scripted, policy
from small_envs import Small

import pysampler
import pysampler.envs.meta  # registers Navigation2D


@pytest.fixture(params=[0, 2], ids=["serial", "workers"])
def envs(request):
    with pysampler.VectorEnv([Scripted] * 4, num_workers=request.param) as envs:
        yield envs


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"horizon": 0}, "horizon 0, expected a whole number of at least 1"),
        ({"horizon": 2.5}, "horizon 2.5"),
        ({"horizon": True}, "horizon True"),
        ({"keep_last": 0}, "keep_last 0"),
        ({"policy_in": "elsewhere"}, 'policy_in \'elsewhere\', expected one of "main", "workers"'),
        ({"min_envs": 0}, "min_envs 0"),
        ({"timeout": -1}, "timeout -1"),
        ({"timeout": float("nan")}, "timeout nan"),
        ({"timeout": "soon"}, "timeout 'soon', expected seconds >= 0, None or .auto."),
        ({"info_keys": "life"}, r"info_keys 'life', expected a list of keys: \['life'\]"),
        ({"info_keys": 5}, "info_keys 5, expected a list of keys"),
        ({"policy_in": "workers", "min_envs": 2}, "are for a policy in .main."),
        ({"policy_in": "workers", "allow_partial": True}, "are for a policy in .main."),
        ({"policy_in": "workers", "reset_each": True}, "are for a policy in .main."),
        ({"reset_each": True, "allow_partial": True}, "reset_each would lose"),
        ({"num_envs": 3}, "num_envs is for envs to make, not for"),
    ],
)
def test_bad_arguments_are_refused(envs, options, text):
    given = {"horizon": 5, **options}
    with pytest.raises(ValueError, match=text):
        pysampler.Rollouts(envs, policy, **given)
    envs.reset()  # the sampler did not take the envs


@pytest.mark.parametrize("name", ["overlap", "allow_partial", "reset_each"])
@pytest.mark.parametrize("got", ["no", 1, None])
def test_bool_options_reject_other_values(envs, name, got):
    with pytest.raises(TypeError, match=f"{name} {got!r}, expected True or False"):
        pysampler.Rollouts(envs, policy, 5, **{name: got})


def test_vector_kwargs_must_be_a_dict():
    for make in (
        lambda: pysampler.make_vec("CartPole-v1", 2, vector_kwargs=5),
        lambda: pysampler.make_vec(Scripted, 2, vector_kwargs=5),
        lambda: pysampler.Rollouts("CartPole-v1", policy, 5, vector_kwargs=5),
    ):
        with pytest.raises(TypeError, match="vector_kwargs 5, expected a dict of options"):
            make()


@pytest.mark.parametrize(
    "make",
    [
        lambda **options: pysampler.Rollouts("CartPole-v1", policy, 5, **options),
        lambda **options: pysampler.Actors("CartPole-v1", policy, **options),
        lambda **options: pysampler.MultiTaskSampler("Navigation2D-v0", lambda *_: 0, **options),
    ],
    ids=["rollouts", "actors", "tasks"],
)
def test_samplers_accept_options_of_the_vector_env(make):
    with make(num_envs=3, num_workers=2, frames=4) as sampler:
        assert sampler.envs.num_workers == 2
    for misspelt, meant in (("num_worker", "num_workers"), ("num_env", "num_envs")):
        expected = f"unknown option '{misspelt}'; did you mean '{meant}'"
        with pytest.raises(TypeError, match=expected):
            make(**{misspelt: 2})
    with pytest.raises(TypeError, match="unknown option 'zzz'$"):
        make(zzz=2)
    with pytest.raises(TypeError, match="num_workers is given twice, also in vector_kwargs"):
        make(num_workers=2, vector_kwargs={"num_workers": 2})
    with (
        pysampler.VectorEnv([Scripted], num_workers=0) as envs,
        pytest.raises(ValueError, match="num_workers is for envs to make, not for"),
    ):
        pysampler.Rollouts(envs, policy, 5, num_workers=2)


def test_evaluate_accepts_options_of_the_vector_env():
    def right(observations):
        return np.ones(len(observations), int)

    assert len(pysampler.evaluate("CartPole-v1", right, 2, num_workers=0).returns) == 2
    with pytest.raises(TypeError, match="unknown option 'max_step'; did you mean 'max_steps'"):
        pysampler.evaluate(Scripted, policy, 2, max_step=5)


def test_a_policy_must_be_a_function(envs):
    with pytest.raises(TypeError, match="the policy is a int, expected a function"):
        pysampler.Rollouts(envs, 3, 5)


@pytest.mark.parametrize(
    "sample",
    [
        lambda envs: pysampler.evaluate(policy, envs, 5),
        lambda envs: pysampler.evaluate(policy, envs, 5, policy_in="workers"),
        lambda envs: pysampler.Rollouts(policy, envs, 5, num_envs=2),
        lambda envs: pysampler.Actors(policy, envs, num_envs=2),
        lambda envs: pysampler.Watcher(envs, policy),
        lambda envs: pysampler.MultiTaskSampler(policy, envs, num_envs=2),
    ],
    ids=["evaluate", "evaluate in workers", "Rollouts", "Actors", "Watcher", "MultiTaskSampler"],
)
@pytest.mark.parametrize(
    "envs", ["CartPole-v1", [Scripted], lambda: Scripted()], ids=["id", "list", "function"]
)
def test_swapped_envs_and_policy_are_named(sample, envs):
    with pytest.raises(TypeError, match="expected a function .* envs and the policy swapped"):
        sample(envs)


def test_policy_without_arguments_is_not_taken_for_envs_beside_envs():
    with pytest.raises(TypeError) as raised:
        pysampler.evaluate(lambda: Scripted(), lambda: 0, 2, num_envs=2, num_workers=0)
    assert "swapped" not in str(raised.value)


@pytest.mark.parametrize("way", ["main", "workers"])
@pytest.mark.parametrize("one", [lambda at: int(at[0]), lambda at: 1 if at[0] > 0 else 0])
def test_error_in_a_policy_for_one_observation_says_that_it_gets_several(one, way):
    with pytest.raises((TypeError, ValueError)) as raised:
        pysampler.evaluate(Scripted, one, 2, num_envs=2, num_workers=1, policy_in=way)
    assert raised.value.__notes__[0] == (
        "the policy gets the observations of several envs, and returns an action for each"
    )


def test_action_for_one_env_is_refused():
    with pytest.raises(ValueError, match=r"shape \(\), expected \(2, 2\): a row for each env"):
        pysampler.evaluate(Scripted, lambda _: 1, 2, num_envs=2, num_workers=1)


def changed(*returned):
    """Return a policy that returns one result after another."""
    left = list(returned)

    def policy(observations):
        return left.pop(0) if len(left) > 1 else left[0]

    return policy


GOOD = np.zeros((4, 2), np.float32)
NAN = np.array([[0, 0], [0, np.nan], [0, 0], [np.nan, 0]], np.float32)


@pytest.mark.parametrize("where", ["main", "workers"])
@pytest.mark.parametrize(
    ("returned", "error", "text"),
    [
        (GOOD[:3], ValueError, r"actions of shape \(3, 2\), expected \(4, 2\)"),
        (GOOD[:, :1], ValueError, r"actions of shape \(4, 1\), expected \(4, 2\)"),
        (None, TypeError, "the policy returned None, expected arrays of numbers"),
        ("north", TypeError, "the policy returned 'north'"),
        (GOOD.astype(complex), TypeError, "dtype complex128, expected float32"),
        (GOOD > 0, TypeError, r"dtype bool, expected float32; use .astype\(np.float32\)"),
        (NAN, ValueError, "returned nan for 2 of 4 envs, the first in row 1"),
        (
            (GOOD, 3),
            TypeError,
            r"returned \(ndarray, int\), expected actions, or \(actions, extras\)",
        ),
        ((GOOD, {"value": np.zeros(3)}), ValueError, r"'value' has shape \(3,\), expected a row"),
        ((GOOD, {"value": object()}), TypeError, "expected arrays of numbers"),
    ],
    ids=lambda value: None if isinstance(value, (type, str)) else "",
)
def test_bad_first_results_of_a_policy_are_refused(envs, where, returned, error, text):
    with (
        pysampler.Rollouts(envs, changed(returned), 5, policy_in=where) as rollouts,
        pytest.raises(error, match=text),
    ):
        next(rollouts)
    assert envs.stats().steps.count.sum() == 0


@pytest.mark.parametrize("min_envs", [None, 1])
@pytest.mark.parametrize(
    ("returned", "text"),
    [
        (GOOD[:3], "shape"),
        (NAN, "nan for 2 of 4 envs"),
        (
            (GOOD, {"value": np.zeros(4)}),
            r"returned extras \['value'\], expected those of its first call, \[\]",
        ),
    ],
    ids=["shape", "nan", "extras"],
)
def test_bad_later_results_of_a_policy_are_refused(envs, returned, text, min_envs):
    options = {"min_envs": min_envs} if envs.num_workers == 0 else {}
    with (
        pysampler.Rollouts(envs, changed(GOOD, GOOD, GOOD, returned), 5, **options) as rollouts,
        pytest.raises(ValueError, match=text),
    ):
        next(rollouts)
    assert envs.stats().steps.count.max() <= 3


def test_extras_that_change_their_shape_are_refused():
    envs = pysampler.VectorEnv([Scripted] * 4, num_workers=0)
    policy = changed((GOOD, {"a": np.zeros((4, 2))}), (GOOD, {"a": np.zeros((4, 3))}))
    with (
        pysampler.Rollouts(envs, policy, 5) as rollouts,
        pytest.raises(
            ValueError, match=r"have changed: a of float64 \(3,\) a row, before float64 \(2,\)"
        ),
    ):
        next(rollouts)
    envs.close()


def test_spaces_without_a_fixed_shape_are_refused():
    given = spaces.Text(5), spaces.Discrete(2)
    envs = pysampler.VectorEnv([functools.partial(Small, spaces=given)], num_workers=0)
    with envs, pytest.raises(ValueError, match="have parts without a fixed shape"):
        pysampler.Rollouts(envs, policy, 5)


def test_actions_that_are_tuples_need_extras_beside_them():
    pair = spaces.Tuple((spaces.Discrete(2), spaces.Discrete(3)))
    make = functools.partial(Scripted, action_space=pair)
    envs = pysampler.VectorEnv([make] * 2, num_workers=0)
    zeros = np.zeros(2, np.int64)
    with (
        pysampler.Rollouts(envs, lambda _: (zeros, zeros), 5) as rollouts,
        pytest.raises(TypeError, match=r"actions are tuples.*\(actions, extras\)"),
    ):
        next(rollouts)
    envs.close()


def test_array_for_actions_that_are_dicts_is_refused():
    make = functools.partial(Scripted, action_space=spaces.Dict(a=spaces.Discrete(2)))
    with pytest.raises(TypeError, match="^cannot act: the policy's actions: ndarray, expected a d"):
        pysampler.evaluate(make, lambda at: np.zeros(len(at)), 2, num_envs=2, num_workers=1)


class Named(Scripted):
    def step(self, action):
        *results, _ = super().step(action)
        return *results, {"name": "a"}


def test_infos_that_are_not_numbers_warn_and_are_left_out():
    with pysampler.Rollouts(Named, policy, 5, num_envs=2, info_keys=["name", "no"]) as rollouts:
        with pytest.warns(UserWarning, match=r"info\['name'\] is a str, expected numbers") as told:
            rollout = next(rollouts)
        assert [one.filename for one in told] == [__file__]
        assert rollout.infos == rollout.info_masks == {}


def test_an_unpicklable_policy_acts_only_in_the_main_process():
    import threading

    lock = threading.Lock()
    envs = pysampler.VectorEnv([Scripted] * 2, num_workers=1)

    def locked(observations):
        with lock:
            return policy(observations)

    with (
        pysampler.Rollouts(envs, locked, 5, policy_in="workers") as rollouts,
        pytest.raises(TypeError, match="cannot copy the policy"),
    ):
        next(rollouts)
    with envs, pysampler.Rollouts(envs, locked, 5) as rollouts:
        next(rollouts)


@pytest.mark.parametrize("episodes", [0, -1, 2.5, True])
def test_evaluate_refuses_bad_episodes(envs, episodes):
    with pytest.raises(ValueError, match="episodes .* expected a whole number of at least 1"):
        pysampler.evaluate(envs, policy, episodes)


@pytest.mark.parametrize("name", ["gamma", "gae_lambda"])
@pytest.mark.parametrize("value", ["0.9", 99, -1, None])
def test_gae_refuses_discounts_outside_0_to_1(name, value):
    zeros = np.zeros((2, 1))
    with pytest.raises(ValueError, match=f"{name} {value!r}, expected 0 to 1"):
        pysampler.gae(zeros, zeros, zeros[0], zeros > 0, zeros > 0, **{name: value})


def test_gae_refuses_bad_arrays():
    ones, never = np.ones((3, 2)), np.zeros((3, 2), bool)
    with pytest.raises(ValueError, match=r"values of shape \(4, 2\)"):
        pysampler.gae(ones, np.ones((4, 2)), np.ones(2), never, never)
    for cut in ((), np.ones((6, 1))):
        with pytest.raises(ValueError, match=r"cut_values of shape .*, expected \(6,\)"):
            pysampler.gae(ones, ones, np.ones(2), never, ~never, cut)
    with pytest.raises(ValueError, match=r"terminated of shape \(3, 1\), expected \(3, 2\)"):
        pysampler.gae(ones, ones, np.ones(2), never[:, :1], never)
    with pytest.raises(ValueError, match="terminated of int64 from 2 to 2, expected whole"):
        pysampler.gae(ones, ones, np.ones(2), 2 * ones.astype(int), never)
    with pytest.raises(ValueError, match=r"rewards of shape \(3,\), expected \[T, N\]"):
        pysampler.gae(ones[:, 0], ones, np.ones(2), never, never)


@pytest.mark.parametrize("convert", [np.ndarray.tolist, lambda marks: marks.astype(np.uint8)])
def test_gae_accepts_lists_and_integers_as_flags(convert):
    random = np.random.default_rng(1)
    ends, cuts = (random.random((2, 6, 3)) < 0.3).astype(bool)
    ends &= ~cuts
    rewards, values = random.random((2, 6, 3))
    cut_values = random.random(int(cuts.sum()))
    expected = pysampler.gae(rewards, values, values[0], ends, cuts, cut_values)
    got = pysampler.gae(rewards, values, values[0], convert(ends), convert(cuts), cut_values)
    for one, other in zip(got, expected, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("name", ["state", "generators"])
def test_settings_with_reserved_names_are_refused(envs, name):
    with pytest.raises(ValueError, match=f"settings .*expected names other than '{name}'"):
        pysampler.Actors(envs, lambda observations, **_: 0, settings={name: 1})
