"""Rollouts equal a plain loop over gymnasium's vector env, wherever the policy acts."""

import functools
import itertools
import os
import warnings

import gymnasium as gym
import numpy as np
import pytest
import scripted
from covering import ways
from fork_server_in_tests import wait_until
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st
from scripted import Counting, Gated, Scripted, gate_in, policy, slow_rollout
from small_envs import Small

import pysampler
from pysampler._rollouts.cuda import _copy_events
from pysampler._rollouts.main_runner import TurnRunner
from pysampler._rollouts.worker_runner import WorkerRunner
from pysampler._vector.tuner import BatchTuner
from pysampler._vector.vector_env import core_of
from pysampler.errors import BusyError, WorkerLostError

HORIZON = 5
WAYS = [
    {"policy_in": where, "num_workers": workers, "groups": groups, "overlap": overlap}
    for where, workers, groups, overlap in itertools.product(
        ("main", "workers"), (0, 2), (1, 2), (False, True)
    )
] + [
    {"num_workers": 3, "groups": 2, "min_envs": 1},
    {"num_workers": 3, "groups": 2, "min_envs": 3, "timeout": 0.0},
    {"num_workers": 2, "timeout": 0.001, "overlap": True},
    {"num_workers": 0, "groups": 3, "min_envs": 2},
    {"num_workers": 3, "groups": 2, "min_envs": "auto", "timeout": "auto"},
    {"num_workers": 2, "groups": 3, "timeout": "auto", "min_envs": 5, "overlap": True},
    {"num_workers": 3, "timeout": 0.0, "timeout_from": "first"},
]
SCRIPTS = [".....t", "..c", "b", ".t.c", "......", "c....", "...."]


def name_of(way):
    return "-".join(f"{key}={value}" for key, value in way.items())


def sampled(env_fns, policy, count, *, seed=3, horizon=HORIZON, num_workers=2, groups=1, **options):
    """Return copies of ``count`` consecutive rollouts."""
    envs = pysampler.VectorEnv(env_fns, num_workers=num_workers, groups=groups)
    with envs, pysampler.Rollouts(envs, policy, horizon, seed=seed, **options) as rollouts:
        return [next(rollouts).copy() for _ in range(count)]


def joined(rollouts, name):
    return np.concatenate([getattr(rollout, name) for rollout in rollouts])


def assert_equal(rollouts, expected):
    """Compare consecutive rollouts with the plain loop."""
    for name in ("actions", "rewards", "terminated", "truncated"):
        np.testing.assert_array_equal(joined(rollouts, name), expected[name], err_msg=name)
    seen = np.concatenate([rollout.observations[:-1] for rollout in rollouts])
    np.testing.assert_array_equal(seen, expected["observations"])
    np.testing.assert_array_equal(rollouts[-1].observations[-1], expected["last"])
    for one, other in itertools.pairwise(rollouts):
        np.testing.assert_array_equal(one.observations[-1], other.observations[0])
    np.testing.assert_array_equal(
        np.concatenate([rollout.starts[:-1] for rollout in rollouts]), expected["starts"]
    )
    over = expected["terminated"] | expected["truncated"]
    final = joined(rollouts, "final_observations")
    np.testing.assert_array_equal(final[over], expected["final"][over])
    for name, values in expected["extras"].items():
        np.testing.assert_array_equal(
            np.concatenate([rollout.extras[name] for rollout in rollouts]), values, err_msg=name
        )
    ended = sorted(
        (index * HORIZON + step, env, episode_return, length)
        for index, rollout in enumerate(rollouts)
        for env, step, episode_return, length in zip(
            *(rollout.ended.env, rollout.ended.step, rollout.ended.returns, rollout.ended.lengths),
            strict=True,
        )
    )
    assert [row[:2] + row[3:] for row in ended] == [row[:2] + row[3:] for row in expected["ended"]]
    np.testing.assert_allclose([row[2] for row in ended], [row[2] for row in expected["ended"]])
    assert all(rollout.valid.all() and not rollout.lost.any() for rollout in rollouts)
    assert all((rollout.lengths == HORIZON).all() for rollout in rollouts)


@pytest.mark.parametrize("way", WAYS, ids=name_of)
def test_rollouts_equal_a_plain_loop(way):
    env_fns = [functools.partial(Scripted, script) for script in SCRIPTS]
    rollouts = sampled(env_fns, policy, 4, **way)
    assert_equal(rollouts, slow_rollout(env_fns, policy, 4 * HORIZON, seed=3))
    overlap = way.get("overlap", False)
    assert [rollout.lag for rollout in rollouts] == [0, *[int(overlap)] * 3]
    assert [rollout.version for rollout in rollouts] == [1, 2, 3, 4]


@pytest.mark.slow
@pytest.mark.parametrize("where", ["main", "workers"])
@pytest.mark.parametrize("context", ["fork", "spawn"])
def test_rollouts_with_fork_and_spawn_equal_a_plain_loop(context, where):
    envs = pysampler.VectorEnv([functools.partial(Scripted, "..t")] * 4, context=context)
    with envs, pysampler.Rollouts(envs, policy, HORIZON, policy_in=where, seed=3) as rollouts:
        copies = [next(rollouts).copy() for _ in range(2)]
    assert_equal(copies, slow_rollout([functools.partial(Scripted, "..t")] * 4, policy, 10, seed=3))


@pytest.mark.parametrize("way", ways(WAYS), ids=name_of)
def test_policy_states_are_per_env_and_reset_with_episodes(way):
    env_fns = [functools.partial(Scripted, script) for script in SCRIPTS]
    rollouts = sampled(env_fns, Counting(), 3, **way)
    expected = slow_rollout(env_fns, Counting(), 3 * HORIZON, seed=3, stateful=True)
    assert_equal(rollouts, expected)
    steps = np.concatenate([rollout.state["steps"] for rollout in rollouts])
    np.testing.assert_array_equal(steps, [state["steps"] for state in expected["states"]])
    seen = np.concatenate([rollout.state["seen"][0] for rollout in rollouts])
    np.testing.assert_array_equal(seen, [state["seen"][0] for state in expected["states"]])


@pytest.mark.parametrize("way", ways(WAYS), ids=name_of)
def test_infos_are_those_of_the_step_not_of_the_next_reset(way):
    env_fns = [functools.partial(Scripted, script) for script in SCRIPTS]
    rollouts = sampled(env_fns, policy, 3, info_keys=("life", "half"), **way)
    expected = slow_rollout(env_fns, policy, 3 * HORIZON, seed=3)["life"]
    life = np.concatenate([rollout.infos["life"] for rollout in rollouts])
    np.testing.assert_array_equal(life, expected)
    half = np.concatenate([rollout.infos["half"] for rollout in rollouts])
    np.testing.assert_array_equal(half, np.stack([expected / 2] * 2, axis=-1))
    assert half.dtype == np.float32
    assert all(rollout.info_masks["life"].all() for rollout in rollouts)


class FunctionInfos(gym.Wrapper):
    """Its infos are a function of the number of steps."""

    def __init__(self, env, infos_of):
        super().__init__(env)
        self.infos_of = infos_of

    def step(self, action):
        *results, info = self.env.step(action)
        return *results, self.infos_of(info["life"])


def making(infos_of):
    return [lambda s=script: FunctionInfos(Scripted(s), infos_of) for script in SCRIPTS]


def nested(life):
    """Return nested infos, every third time with a type that has no column."""
    return {"all": {"life": life, "in": {"it": np.float16(life) if life % 3 == 0 else life}}}


def changing(life):
    kinds = int, np.int8, np.int16, np.float32, float, np.float16
    return {"mixed": kinds[life % len(kinds)](life)}


ARRAY = np.zeros(2)


def same_array(life):
    ARRAY[:] = life
    return {"array": ARRAY}


def rare(life):
    return {"end": life, "in": {"it": np.full(2, life / 2)}} if life % 9 == 8 else {}


def large(life):
    return {"large": np.full(2000, life), "small": life}


def parts_of(infos, path=()):
    """Yield the values of nested dicts and their paths."""
    for key, value in infos.items():
        if isinstance(value, dict):
            yield from parts_of(value, (*path, key))
        else:
            yield (*path, key), np.copy(value)


@pytest.mark.filterwarnings("ignore:pysampler. no env has given info")
@pytest.mark.parametrize("infos_of", [nested, changing, same_array, rare, large])
@pytest.mark.parametrize("way", ways(WAYS), ids=name_of)
def test_infos_are_arrays_of_the_steps_that_gave_them(way, infos_of):
    rollouts = sampled(making(infos_of), policy, 6, info_keys=infos_of(8).keys(), **way)
    known = set()
    for number, rollout in enumerate(rollouts):
        lives = range(number * HORIZON + 1, (number + 1) * HORIZON + 1)
        given = [dict(parts_of(infos_of(life))) for life in lives]
        known |= set().union(*given)
        masks = dict(parts_of(rollout.info_masks))
        found = dict(parts_of(rollout.infos))
        assert found.keys() == masks.keys() == known
        for path, values in found.items():
            for t, parts in enumerate(given):
                assert (masks[path][t] == (path in parts)).all()
                expected = np.broadcast_to(parts.get(path, 0), values[t].shape)
                np.testing.assert_array_equal(values[t], expected, err_msg=str(path))


@pytest.mark.parametrize("way", [WAYS[0], WAYS[-1]], ids=name_of)
def test_an_unknown_info_key_warns_once_and_lists_known_keys(way):
    env_fns = making(lambda life: {"success": 1.0, "name": "x", "in": {"x": life}})
    with warnings.catch_warnings(record=True, action="always") as caught:
        rollouts = sampled(env_fns, policy, 3, info_keys=("sucess", "in"), **way)
    assert [list(rollout.infos) for rollout in rollouts] == [["in"]] * 3
    [message] = [str(one.message) for one in caught if "no env" in str(one.message)]
    assert message.startswith("pysampler: no env has given info 'sucess', which is left out; got ")
    assert message.endswith("'in', 'life', 'name', 'success'")


class Starting(Scripted):
    """Its resets give infos that no step gives."""

    def reset(self, *, seed=None, options=None):
        observation, info = super().reset(seed=seed, options=options)
        return observation, {**info, "start": 7, "in": {"start": np.full(3, 7)}}


@pytest.mark.parametrize("way", [WAYS[0], WAYS[8], WAYS[-1]], ids=name_of)
def test_infos_of_resets_are_missing_with_a_warning(way):
    env_fns = [functools.partial(Starting, script) for script in ("...t", "..c", ".....b")]
    with warnings.catch_warnings(record=True, action="always") as caught:
        rollouts = sampled(env_fns, policy, 3, info_keys=("start", "in", "life"), **way)
    for rollout in rollouts:
        assert not rollout.infos["start"].any()
        assert not rollout.info_masks["start"].any()
        assert rollout.info_masks["life"].all()
    assert sorted(str(one.message) for one in caught if "resets" in str(one.message)) == [
        f"pysampler: info {key!r} came only with resets, which rollouts do not record"
        for key in ("in", "start")
    ]


@pytest.mark.parametrize("way", [WAYS[0], WAYS[-1]], ids=name_of)
@pytest.mark.parametrize("size", [2, 2000])  # with and without columns
def test_infos_of_other_shapes_are_missing_with_a_warning(size, way):
    env_fns = making(lambda life: {"in": {"goal": np.ones(size + life % 2)}})
    with warnings.catch_warnings(record=True, action="always") as caught:
        rollouts = sampled(env_fns, policy, 3, info_keys=("in",), **way)
    for rollout in rollouts:
        masks = rollout.info_masks["in"]["goal"]
        assert masks.any()
        assert not masks.all()
        assert (rollout.infos["in"]["goal"].all(axis=-1) == masks).all()
    [message] = [str(one.message) for one in caught if "shape" in str(one.message)]
    assert message.startswith("pysampler: info['in']['goal'] has shapes ")
    assert f"({size},)" in message
    assert f"({size + 1},)" in message


@pytest.mark.parametrize("way", [WAYS[0], WAYS[-1]], ids=name_of)
def test_omitted_infos_warn_once_with_their_path(way):
    env_fns = making(lambda life: {"name": "x" * life, "in": {"list": [1], "x": life}, "no": None})
    with warnings.catch_warnings(record=True, action="always") as caught:
        rollouts = sampled(env_fns, policy, 3, info_keys=("name", "in"), **way)
    assert [list(rollout.infos["in"]) for rollout in rollouts] == [["x"]] * 3
    messages = [str(one.message).split(",")[0] for one in caught if "left out" in str(one.message)]
    told = "pysampler: info['in']['list'] is a list", "pysampler: info['name'] is a str"
    assert sorted(messages) == [*told]


@settings(max_examples=15)
@given(
    scripts=st.lists(st.text("..tcb", min_size=1, max_size=7), min_size=3, max_size=5),
    way=st.sampled_from([way for way in WAYS if way.get("num_workers") == 0]),
)
def test_episodes_may_end_at_any_step(scripts, way):
    env_fns = [functools.partial(Scripted, script) for script in scripts]
    rollouts = sampled(env_fns, policy, 3, **way)
    expected = slow_rollout(env_fns, policy, 3 * HORIZON, seed=3)
    assert_equal(rollouts, expected)
    for rollout in rollouts:
        pieces = list(rollout.episodes())
        assert sum(map(len, pieces)) == rollout.steps
        for piece in pieces:
            steps, env = piece.steps, piece.env
            over = rollout.terminated[steps, env] | rollout.truncated[steps, env]
            assert not over[:-1].any()
            assert piece.begins == rollout.starts[steps.start, env]
            assert (piece.terminated, piece.truncated) == (
                rollout.terminated[steps.stop - 1, env],
                rollout.truncated[steps.stop - 1, env],
            )
            np.testing.assert_array_equal(piece.observations, rollout.observations[steps, env])
            if piece.terminated:
                assert piece.last_observation is None
            else:  # the episode continues
                assert piece.last_observation[2] == piece.observations[-1][2] + 1
        assert len(rollout.cut_observations) == (rollout.truncated & ~rollout.terminated).sum()


@pytest.mark.parametrize("where", ["main", "workers"])
@pytest.mark.parametrize("num_workers", [0, 2])
def test_rollout_arrays_are_views_of_the_frames(where, num_workers):
    envs = pysampler.VectorEnv([functools.partial(Scripted, "..t")] * 4, num_workers=num_workers)
    options = {"overlap": True, "policy_in": where, "info_keys": ["life"]}
    with envs, pysampler.Rollouts(envs, policy, HORIZON, **options) as rollouts:
        seen = []
        for rollout in itertools.islice(rollouts, 4):
            arrays = [
                *(rollout.observations, rollout.actions, rollout.rewards, rollout.terminated),
                *(rollout.truncated, rollout.final_observations, *rollout.extras.values()),
            ]
            assert all(np.shares_memory(array, rollout.memory) for array in arrays)
            seen.append(rollout.rewards.ctypes.data)
            frames = envs._core.results.frames  # the memory that workers write to
            assert np.shares_memory(rollout.memory, frames.observations[0])
        assert len({*seen}) <= 3  # one held, one returned, one being filled


def test_tensors_of_a_rollout_share_its_memory():
    pytest.importorskip("torch")
    envs = pysampler.VectorEnv([functools.partial(Scripted, "..t")] * 4, num_workers=2)
    with envs, pysampler.Rollouts(envs, policy, HORIZON) as rollouts:
        rollout = next(rollouts)
        tensors = rollout.torch()
        assert tensors.observations.data_ptr() == rollout.observations.ctypes.data
        assert tensors.actions.data_ptr() == rollout.actions.ctypes.data
        assert tensors.extras["value"].data_ptr() == rollout.extras["value"].ctypes.data


@pytest.mark.slow
@pytest.mark.parametrize("where", ["main", "workers"])
def test_sampling_allocates_nothing_per_step(where):
    import tracemalloc

    peaks = []
    with pysampler.VectorEnv([Scripted] * 2, num_workers=1) as envs:
        for horizon in (4096, 12288):  # NumPy's own buffers have room for 8192 numbers
            with pysampler.Rollouts(envs, policy, horizon, policy_in=where) as rollouts:
                next(rollouts)
                tracemalloc.start()
                next(rollouts)
                peaks.append(tracemalloc.get_traced_memory()[1])
                tracemalloc.stop()
    # One byte per step and env would be 16,384 more.
    assert peaks[1] - peaks[0] < 4000, peaks


@pytest.mark.parametrize("keep", [1, 3])
@pytest.mark.parametrize("overlap", [False, True])
def test_the_last_keep_last_rollouts_stay_unchanged(keep, overlap):
    envs = pysampler.VectorEnv([functools.partial(Scripted, "..t.c")] * 4, num_workers=2)
    with pysampler.Rollouts(envs, policy, HORIZON, keep_last=keep, overlap=overlap) as rollouts:
        kept = []
        for _ in range(5):
            rollout = next(rollouts)
            kept.append((rollout, rollout.copy()))
            for one, copied in kept[-keep:]:
                np.testing.assert_array_equal(one.observations, copied.observations)
                np.testing.assert_array_equal(one.rewards, copied.rewards)
                np.testing.assert_array_equal(one.starts, copied.starts)
    envs.close()


@pytest.mark.parametrize("overlap", [False, True])
def test_sampling_waits_for_copies_to_a_gpu(overlap, monkeypatch):
    """The next rollout begins after a pending copy to a GPU has ended."""
    waited_at = []
    steps = 0

    class Event:
        def synchronize(self):
            waited_at.append(steps)

    def counting(observations):
        nonlocal steps
        steps += 1
        return policy(observations)

    envs = pysampler.VectorEnv([functools.partial(Scripted, "..t.c")] * 4, num_workers=0)
    with envs, pysampler.Rollouts(envs, counting, HORIZON, overlap=overlap) as rollouts:
        for _ in range(3):
            one = next(rollouts)
            waited_at.clear()
            monkeypatch.setitem(_copy_events, one.memory.ctypes.data, [Event()])
            begun = steps
        next(rollouts)
        assert waited_at == [begun] or overlap
        assert len(waited_at) == 1
        next(rollouts)
        assert len(waited_at) == 1


class Nested(gym.Env):
    """Its observations and actions are dicts and tuples."""

    observation_space = spaces.Dict(
        {"x": spaces.Box(-9, 9, (3,), np.float32), "n": spaces.Discrete(100)}
    )
    action_space = spaces.Tuple((spaces.Discrete(4), spaces.Box(-1, 1, (2,), np.float32)))

    def _observe(self):
        return {"x": np.full(3, self.x, np.float32), "n": self.n}

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.n, self.x = 0, (seed or 0) / 10
        return self._observe(), {}

    def step(self, action):
        self.n += int(action[0])
        self.x += float(action[1].sum()) / 100
        return self._observe(), float(self.n), self.n > 9, False, {}


def nested_policy(observations):
    n = observations["n"]
    return ((n + 1) % 4, np.stack([observations["x"][:, 0]] * 2, -1) / 100), {}


@pytest.mark.parametrize("way", WAYS[:8:3], ids=name_of)
def test_observations_and_actions_may_be_dicts_and_tuples(way):
    [rollout] = sampled([Nested] * 3, nested_policy, 1, horizon=20, **way)
    reference = gym.vector.SyncVectorEnv([Nested] * 3, autoreset_mode="SameStep")
    observations, _ = reference.reset(seed=3)
    for t in range(20):
        np.testing.assert_array_equal(rollout.observations["n"][t], observations["n"])
        np.testing.assert_array_equal(rollout.observations["x"][t], observations["x"])
        actions, _ = nested_policy(observations)
        np.testing.assert_array_equal(rollout.actions[0][t], actions[0])
        observations, rewards, *_ = reference.step(actions)
        np.testing.assert_array_equal(rollout.rewards[t], rewards)
    reference.close()


@pytest.mark.parametrize("options", [{}, {"keep_last": 2}, {"overlap": True}], ids=str)
def test_with_allow_partial_slow_envs_do_not_delay_others(options):
    env_fns = [functools.partial(Scripted, ".t", slow) for slow in (0, 0, 0.02, 0)]
    envs = pysampler.VectorEnv(env_fns, num_workers=4)
    options = {"min_envs": 1, "allow_partial": True, "seed": 0, **options}
    lives = [[] for _ in env_fns]
    with envs, pysampler.Rollouts(envs, policy, 20, **options) as rollouts:
        for rollout in itertools.islice(rollouts, 12):
            assert rollout.lengths.max() == 20
            assert rollout.lengths[2] < 20
            for env, length in enumerate(rollout.lengths):
                assert rollout.valid[:, env].tolist() == [True] * length + [False] * (20 - length)
                # Rewards contain the number of steps, which shows lost or repeated ones.
                actions = rollout.actions[:length, env].astype(np.float64)
                numbers = rollout.rewards[:length, env] - actions.sum(axis=1) / 7
                lives[env] += np.rint(numbers).astype(int).tolist()
                at = rollout.observations[length, env]
                np.testing.assert_array_equal(rollout.last_observations[env], at)
            made = sum(map(len, lives))
            assert rollout.ended.lengths.tolist() == [2] * len(rollout.ended)
    assert all(life == list(range(1, len(life) + 1)) for life in lives)
    assert made == sum(map(len, lives))


def test_closed_rollouts_return_the_vector_env_unchanged():
    envs = pysampler.make_vec("CartPole-v1", 4, vector_kwargs={"num_workers": 2})
    envs.reset(seed=1)
    with pysampler.Rollouts(envs, lambda o: np.zeros(len(o), np.int64), 8) as rollouts:
        next(rollouts)
        with pytest.raises(gym.error.AlreadyPendingCallError):
            envs.step(np.zeros(4, np.int64))
        with pytest.raises(gym.error.AlreadyPendingCallError):
            pysampler.Rollouts(envs, policy, 8)
    expected = gym.make_vec("CartPole-v1", 4, vectorization_mode="sync")
    np.testing.assert_array_equal(envs.reset(seed=5)[0], expected.reset(seed=5)[0])
    for _ in range(60):  # beyond the end of episodes: the next step resets, as it did before
        actions = expected.action_space.sample()
        for ours, theirs in zip(envs.step(actions)[:4], expected.step(actions)[:4], strict=True):
            np.testing.assert_array_equal(ours, theirs)
    envs.close()
    expected.close()


@pytest.mark.parametrize("way", WAYS[-2::-5], ids=name_of)
def test_closing_the_vector_env_ends_its_rollouts(way):
    way = dict(way)
    envs = pysampler.VectorEnv(
        [Scripted] * 4, num_workers=way.pop("num_workers"), groups=way.pop("groups", 1)
    )
    rollouts = pysampler.Rollouts(envs, policy, 50, **way)
    next(rollouts)
    envs.close()
    with pytest.raises(pysampler.errors.ClosedError):
        next(rollouts)


def test_closing_the_vector_env_while_the_policy_is_copied_ends_the_call():
    class Closing:
        def __init__(self, envs):
            self.envs = envs

        def __getstate__(self):  # called for each copy
            self.envs.close()
            return {}

        def __call__(self, observations):
            return policy(observations)

    envs = pysampler.VectorEnv([Scripted] * 2, num_workers=2)
    rollouts = pysampler.Rollouts(envs, Closing(envs), HORIZON, overlap=True)
    with pytest.raises(pysampler.errors.ClosedError, match="closed meanwhile"):
        next(rollouts)


@pytest.mark.parametrize("where", ["main", "workers"])
def test_close_does_not_wait_for_the_pending_rollout(where):
    env_fns = [functools.partial(Scripted, ".", 0.005)] * 2
    envs = pysampler.VectorEnv(env_fns, num_workers=2)
    rollouts = pysampler.Rollouts(envs, scripted.policy, 20, overlap=True, policy_in=where)
    next(rollouts)
    rollouts.close()
    assert envs.stats().steps.count.max() < 40
    envs.reset()
    envs.close()


class CountingTuner(BatchTuner):
    """Notes the steps of each batch."""

    def received(self, count):
        self.counts.append(count)
        super().received(count)


def test_the_end_of_an_episode_in_progress_does_not_appear_in_a_partial_rollout(tmp_path):
    with gate_in(tmp_path) as (gate, open_gate):
        envs = pysampler.VectorEnv([functools.partial(Gated, gate), Gated], num_workers=2)
        options = {"min_envs": 1, "allow_partial": True}
        with pysampler.Rollouts(envs, lambda x: np.zeros(len(x), int), 4, **options) as rollouts:
            first = next(rollouts)
            assert first.lengths.tolist() == [0, 4]
            ends = core_of(envs).results.frames.terminated[:, 0]
            open_gate()
            wait_until(ends.any)
            assert not first.terminated[:, 0].any()
            assert first.terminated[:, 1].all()
            second = next(rollouts)
            assert second.lengths.tolist() == [1, 4]
            assert second.terminated[:, 0].tolist() == [True, False, False, False]
            open_gate()
        envs.close()


@pytest.mark.parametrize("allow_partial", [False, True])
def test_auto_counts_steps_that_bring_the_end_of_a_rollout_nearer(monkeypatch, allow_partial):
    monkeypatch.setattr(BatchTuner, "counts", [], raising=False)
    monkeypatch.setattr("pysampler._vector.tuner.BatchTuner", CountingTuner)
    env_fns = [functools.partial(Scripted, script) for script in SCRIPTS]
    options = {"min_envs": "auto", "timeout": "auto", "allow_partial": allow_partial}
    envs = pysampler.VectorEnv(env_fns, num_workers=3, groups=2)
    with pysampler.Rollouts(envs, policy, HORIZON, seed=1, **options) as rollouts:
        for _ in range(4):
            made = int(next(rollouts).valid.sum())
            assert sum(CountingTuner.counts) == (made if allow_partial else HORIZON * envs.num_envs)
            CountingTuner.counts.clear()
        rollouts._runner._steps[:] = 1, 2, 2, 2, 2, 2  # groups of 2, 1, 1, 1, 1, 1 envs
        assert rollouts._runner._progress == (12 if allow_partial else 7)
        stats = envs.stats()
        assert stats.batches.trials == 0
        assert "batches wait for 7 envs, in its first trial" in str(stats)
        assert sum(stats.batch_sizes) > 0
    with envs, pysampler.Rollouts(envs, policy, HORIZON, min_envs=2) as rollouts:
        next(rollouts)
        assert envs.stats().batches is None


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:pysampler")
def test_losses_that_are_steps_apart_do_not_repeat_one_rollout():
    make = functools.partial(Small, 3, before=lambda env: env.life == 30 and os._exit(3))
    options = {"on_worker_loss": "restart", "max_restarts": 1, "restart_window": 1e-6}
    with (
        pysampler.VectorEnv([make], num_workers=1, **options) as envs,
        pysampler.Rollouts(envs, lambda seen: seen, 200, policy_in="workers") as rollouts,
    ):
        assert next(rollouts).valid.sum() > 100
        assert envs.stats().losses.sum() > 3


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:pysampler")
def test_steps_of_a_neighbour_do_not_hide_that_an_env_is_lost_again():
    fns = [functools.partial(Small, 3), functools.partial(Small, 3, before=lambda _: os._exit(3))]
    options = {"on_worker_loss": "restart", "max_restarts": 2, "restart_window": 1e-6}
    with (
        pysampler.VectorEnv(fns, num_workers=1, **options) as envs,
        pysampler.Rollouts(envs, lambda seen: seen, 20, policy_in="workers") as rollouts,
        pytest.raises(WorkerLostError, match="it was replaced before"),
    ):
        next(rollouts)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:pysampler")
def test_an_env_whose_reset_after_a_step_ends_the_worker_each_time_raises():
    make = functools.partial(Small, 1, reset_info=lambda env: os._exit(3) if env.life == 1 else {})
    options = {"on_worker_loss": "restart", "max_restarts": 2, "restart_window": 1e-6}
    with (
        pysampler.VectorEnv([make], num_workers=1, **options) as envs,
        pysampler.Rollouts(envs, lambda seen: seen, 20, policy_in="workers") as rollouts,
        pytest.raises(WorkerLostError, match="it was replaced before"),
    ):
        next(rollouts)


def overlapping(where):
    make = functools.partial(Small, 50)
    options = {"num_envs": 2, "num_workers": 1, "overlap": True, "policy_in": where}
    return pysampler.Rollouts(make, lambda seen: seen, 4, **options)


def test_a_start_that_another_threads_call_refuses_is_made_again(monkeypatch):
    whole, refuses = WorkerRunner.start, []

    def refuse(*_):
        raise BusyError("another thread is in a call")

    def start(self, base):
        with monkeypatch.context() as patch:
            if refuses:
                refuses.pop()
                patch.setattr(self._core, "enter", refuse)
            whole(self, base)

    monkeypatch.setattr(WorkerRunner, "start", start)
    with overlapping("workers") as rollouts:
        next(rollouts)
        refuses.append(True)
        second, third = (next(rollouts).copy() for _ in range(2))
    assert not refuses
    np.testing.assert_array_equal(third.observations[0], second.observations[-1])
    assert third.version == second.version + 1


@pytest.mark.parametrize(("where", "runner"), [("main", TurnRunner), ("workers", WorkerRunner)])
def test_an_error_of_a_handler_after_a_start_drops_that_rollout(where, runner, monkeypatch):
    whole, nested = runner.start, []

    def start(self, base):
        whole(self, base)
        if nested:
            raise nested.pop()

    monkeypatch.setattr(runner, "start", start)
    with overlapping(where) as rollouts:
        next(rollouts)
        nested.append(BusyError("a signal handler may only close it"))
        assert next(rollouts).valid.all()
        with pytest.raises(BusyError, match="a signal handler"):
            next(rollouts)
        third, fourth = (next(rollouts).copy() for _ in range(2))
    assert third.starts[0].all()
    np.testing.assert_array_equal(fourth.observations[0], third.observations[-1])
