"""Statistics of observations and returns: merging, saving and loading."""

import functools

import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.wrappers.utils import RunningMeanStd
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from policies_in_tests import still
from scripted import Scripted
from small_envs import Small

import pysampler
from pysampler._policies.normalize import Moments

NUMBERS = st.floats(-1e6, 1e6, width=32)
PARTS = st.lists(hnp.arrays(np.float64, st.tuples(st.integers(0, 5), st.just(2)), elements=NUMBERS))


@given(PARTS, st.randoms(use_true_random=False))
def test_merged_moments_equal_those_of_all_rows(parts, random):
    moments = [Moments.of(part) for part in parts]
    random.shuffle(moments)
    while len(moments) > 1:
        first = moments.pop(random.randrange(len(moments)))
        at = random.randrange(len(moments))
        moments[at] = moments[at].merged(first)
    rows = np.concatenate([np.zeros((0, 2)), *parts])
    if len(rows) == 0:
        assert all(one.count == 0 for one in moments)
        return
    [merged] = moments
    assert merged.count == len(rows)
    # Sums of squares of up to 1e12 in float64.
    np.testing.assert_allclose(merged.mean, rows.mean(axis=0), rtol=1e-9, atol=1e-8)
    np.testing.assert_allclose(merged.variance, rows.var(axis=0), rtol=1e-9, atol=1e-2)


@given(hnp.arrays(np.float64, (4, 3, 2), elements=NUMBERS))
def test_moments_equal_gymnasiums_bit_for_bit(batches):
    theirs = RunningMeanStd(shape=(2,))
    ours = Moments.initial((2,))
    for batch in batches:
        theirs.update(batch)
        ours = ours.merged(Moments.of(batch))
    np.testing.assert_array_equal(ours.mean, theirs.mean)
    np.testing.assert_array_equal(ours.variance, theirs.var)
    assert ours.count == theirs.count


def used(normalizer):
    """Use a normalizer in a rollout; return it."""
    envs = [lambda: Scripted("..t.")] * 4
    with pysampler.Rollouts(envs, still, 5, seed=1, num_workers=0, normalize=normalizer) as some:
        next(some)
    return normalizer


def test_checkpoints_store_the_statistics(tmp_path):
    normalizer = used(pysampler.Normalizer())
    checkpoints = pysampler.Checkpoints(tmp_path)
    checkpoints.save(1, normalizer=normalizer)
    restored = pysampler.Normalizer()
    checkpoints.restore(normalizer=restored)
    assert restored.state_dict().keys() == {
        f"{name}.{part}"
        for name in ("observations", "returns")
        for part in ("mean", "variance", "count")
    }
    for name, value in normalizer.state_dict().items():
        np.testing.assert_array_equal(restored.state_dict()[name], value)
    assert restored.count == normalizer.count == 24
    rows = np.ones((2, 4))
    np.testing.assert_array_equal(restored.normalized(rows), normalizer.normalized(rows))
    used(restored)  # continues from the restored statistics
    assert restored.count == 48


def test_state_dict_returns_a_copy():
    normalizer = used(pysampler.Normalizer())
    state = normalizer.state_dict()
    before = {name: value.copy() for name, value in state.items()}
    used(normalizer)
    assert normalizer.state_dict()["returns.count"] > before["returns.count"]
    for name, value in before.items():
        np.testing.assert_array_equal(state[name], value)


def test_a_frozen_normalizer_does_not_change():
    normalizer = used(pysampler.Normalizer())
    frozen = normalizer.frozen()
    assert (normalizer.update, frozen.update) == (True, False)
    before = frozen.state_dict()
    used(frozen)
    used(normalizer)
    for name, value in before.items():
        np.testing.assert_array_equal(frozen.state_dict()[name], value)
    assert normalizer.count > frozen.count


def test_normalized_works_without_envs():
    normalizer = pysampler.Normalizer(epsilon=1.0)
    mean, variance = np.array([1.0, 2.0]), np.array([3.0, 8.0])
    normalizer.load_state_dict(
        {
            "observations['a'][0].mean": mean,
            "observations['a'][0].variance": variance,
            "observations['a'][0].count": 5,
        }
    )
    image = np.ones((2, 3), np.uint8)
    batch = {"a": (np.array([[1, 2], [3, 5]], np.float32), image)}
    normalized = normalizer.normalized(batch)
    np.testing.assert_array_equal(normalized["a"][0], [[0, 0], [1, 1]])
    assert normalized["a"][0].dtype == np.float32
    np.testing.assert_array_equal(normalized["a"][1], image)
    assert normalizer.count == 5


@pytest.mark.parametrize(
    ("state", "why"),
    [
        ({"observations.mean": np.zeros(4)}, r"expected .*observations\.count"),
        (
            {
                "observations.mean": np.zeros(4),
                "observations.variance": np.ones(3),
                "observations.count": 1,
            },
            r"a mean of shape \(4,\), a variance of \(3,\)",
        ),
        (
            {
                "observations.mean": np.zeros(3),
                "observations.variance": np.ones(3),
                "observations.count": 1,
            },
            r"'observations': \(3,\)}, expected {'observations': \(4,\)",
        ),
    ],
)
def test_statistics_of_wrong_shapes_are_refused(state, why):
    normalizer = used(pysampler.Normalizer())
    before = normalizer.state_dict()
    with pytest.raises(ValueError, match=f"cannot load statistics: .*{why}"):
        normalizer.load_state_dict(state)
    for name, value in before.items():
        np.testing.assert_array_equal(normalizer.state_dict()[name], value)


@pytest.mark.parametrize(
    ("options", "error", "why"),
    [
        ({"gamma": 1.5}, ValueError, "gamma 1.5, expected 0 to 1"),
        ({"gamma": "no"}, ValueError, "gamma 'no'"),
        ({"epsilon": 0}, ValueError, "epsilon 0, expected more than 0"),
        ({"rewards": "no"}, TypeError, "rewards 'no', expected True or False"),
        ({"observations": 1}, TypeError, "observations 1, expected True or False"),
        ({"update": None}, TypeError, "update None, expected True or False"),
    ],
)
def test_bad_options_are_refused(options, error, why):
    with pytest.raises(error, match=f"cannot normalize: {why}"):
        pysampler.Normalizer(**options)


def test_a_normalizer_of_other_envs_is_refused():
    normalizer = used(pysampler.Normalizer())
    with pytest.raises(ValueError, match=r"statistics of .*\(4,\).*, expected .*\(3,\)"):
        pysampler.Rollouts("Pendulum-v1", still, 5, num_envs=2, normalize=normalizer)


def test_normalize_must_be_a_normalizer():
    with pytest.raises(TypeError, match=r"normalize is a bool, expected a pysampler\.Normalizer"):
        pysampler.Rollouts("Pendulum-v1", still, 5, num_envs=2, normalize=True)


def test_a_normalizer_without_float_parts_or_rewards_is_refused():
    given = spaces.Box(0, 255, (2, 2), np.uint8), spaces.Discrete(2)
    images = functools.partial(Small, spaces=given)
    with pytest.raises(ValueError, match="nothing to normalize"):
        pysampler.Rollouts(
            images, still, 5, num_envs=2, normalize=pysampler.Normalizer(rewards=False)
        )


def parts(*names):
    """Return an env with a float part around 100, whose other part may be an integer."""

    def observe(env):
        noise = env.np_random.normal(size=1).astype(np.float32)
        values = {"number": 777, "near": noise, "far": 100 + noise}
        return {name: values[name] for name in names}

    box = spaces.Box(-1e3, 1e3, (1,), np.float32)
    kinds = {"number": spaces.Discrete(1000), "near": box, "far": box}
    space = spaces.Dict([(name, kinds[name]) for name in names])
    return Small(observe=observe, spaces=(space, spaces.Discrete(2)))


def zeros_for_parts(observations):
    return np.zeros(len(next(iter(observations.values()))), int)


def rollouts_of(names, normalizer, **options):
    return pysampler.Rollouts(
        [lambda: parts(*names)] * 2, zeros_for_parts, 8, normalize=normalizer, **options
    )


@pytest.mark.slow
def test_statistics_are_matched_by_name_not_by_position():
    normalizer = pysampler.Normalizer(rewards=False)
    with rollouts_of(["number", "far"], normalizer, seed=1) as first:
        next(first)
    with rollouts_of(["far"], normalizer, seed=1) as second:
        next(second)
    with rollouts_of(["number", "far"], normalizer, seed=1) as first:
        rollout = next(first)
    assert (rollout.observations["number"] == 777).all()
    assert abs(rollout.observations["far"]).max() < 10


@pytest.mark.slow
def test_only_one_open_sampler_updates_a_normalizer():
    normalizer = pysampler.Normalizer()
    with rollouts_of(["far"], normalizer) as rollouts:
        with pytest.raises(ValueError, match="another open sampler updates the normalizer"):
            rollouts_of(["far"], normalizer)
        next(rollouts)
    with rollouts_of(["far"], normalizer) as rollouts:
        next(rollouts)


def test_an_unused_normalizer_accepts_any_envs():
    normalizer = pysampler.Normalizer()
    with pytest.raises(TypeError, match="policy"):
        pysampler.Rollouts([lambda: parts("far")] * 2, 42, 8, normalize=normalizer)
    with rollouts_of(["near", "far"], normalizer) as rollouts:
        next(rollouts)
    with pytest.raises(ValueError, match="the normalizer has statistics of"):
        rollouts_of(["far"], normalizer)


def test_normalized_accepts_json_and_refuses_other_trees():
    normalizer = pysampler.Normalizer(rewards=False)
    with rollouts_of(["number", "far"], normalizer) as rollouts:
        next(rollouts)
    given = {"number": np.array([1, 2]), "far": [[100], [110]]}  # integers, as from JSON
    far = normalizer.normalized(given)["far"]
    assert far.dtype == np.float64
    assert far[1, 0] - far[0, 0] > 5
    assert normalizer.normalized(given)["number"] is given["number"]
    for wrong in (np.zeros((2, 1)), {"number": np.zeros(2)}, {"far": np.zeros((2, 3))}):
        with pytest.raises(ValueError, match="cannot normalize observations: "):
            normalizer.normalized(wrong)


@pytest.mark.parametrize(
    "change",
    [{"variance": -1.0}, {"mean": np.nan}, {"count": np.inf}, {"count": 0.0}],
    ids=lambda change: next(iter(change)),
)
def test_invalid_statistics_are_refused(change):
    normalizer = pysampler.Normalizer(rewards=False)
    with rollouts_of(["far"], normalizer) as rollouts:
        next(rollouts)
    state = normalizer.state_dict()
    [(part, value)] = change.items()
    name = next(name for name in state if name.endswith(part))
    state[name] = np.full(state[name].shape, value)
    with pytest.raises(ValueError, match="must hold mean, variance and count"):
        normalizer.load_state_dict(state)
    with pytest.raises(TypeError, match="expected a dict of arrays"):
        normalizer.load_state_dict([1])
    with pytest.raises(TypeError, match="cannot evaluate: normalize is a bool"):
        pysampler.evaluate("CartPole-v1", zeros_for_parts, 1, normalize=True)


def test_frozen_keeps_the_subclass():
    class Own(pysampler.Normalizer):
        def __init__(self, name):
            super().__init__(rewards=False)
            self.name = name

    assert Own("mine").frozen().name == "mine"


def test_state_from_before_the_first_use_is_that_of_new_statistics():
    with pysampler.Rollouts(
        [lambda: Scripted("..t.")] * 4, still, 8, seed=1, normalize=pysampler.Normalizer()
    ) as rollouts:
        next(rollouts)
        rollouts.normalizer.load_state_dict(pysampler.Normalizer().state_dict())
        assert rollouts.normalizer.count == 0
        next(rollouts)
