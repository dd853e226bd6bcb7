"""Functions may return vector envs: their envs are as those of other functions."""

import functools
import os
import signal
import time

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.envs.classic_control.cartpole import CartPoleVectorEnv
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers import vector as vector_wrappers
from made_up import SpaceEnv, same, step_alike
from told_envs import END, HANG, INTERRUPT, KILL, OK, RAISE, SmallBatch, SmallEnv
from vectors import alike, begun

import pysampler
from pysampler._frames.frames import LOST
from pysampler.errors import EnvError, EnvTimeoutError, WorkerLostError

MODES = NEXT_STEP, SAME_STEP, DISABLED = list(AutoresetMode)
BOX = spaces.Box(0, 100, (3,), np.float32)
SPACES = {
    "box": BOX,
    "image": spaces.Box(0, 255, (8, 8, 3), np.uint8),
    "discrete": spaces.Discrete(5, start=-2),
    "dict": spaces.Dict(a=BOX, b=spaces.Discrete(3), c=spaces.Tuple((BOX, spaces.MultiBinary(2)))),
    "text": spaces.Text(5),
    "dict with text": spaces.Dict(a=BOX, t=spaces.Tuple((spaces.Text(3), BOX))),
}


def batch(count, mode=NEXT_STEP, observations="box", actions="discrete", infos="numbers"):
    """Return a function that makes a vector env of made-up envs."""
    env = functools.partial(SpaceEnv, SPACES[observations], SPACES[actions], infos)
    return functools.partial(SyncVectorEnv, [env] * count, autoreset_mode=mode)


def zeros(observations):
    return np.zeros(len(observations), int)


def compare(ours, theirs, steps=40, mode=NEXT_STEP):
    """Assert that two vector envs return the same results, types included."""
    seeds = [5, 3, *range(ours.num_envs - 2)]
    step_alike(ours, theirs, mode, steps, {"a": 1}, {"b": 2}, seeds)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", SPACES)
@pytest.mark.parametrize("num_workers", [0, pytest.param(2, marks=pytest.mark.slow)])
def test_batches_equal_one_sync_vector_env(kind, mode, num_workers):
    ours = pysampler.VectorEnv(
        [batch(3, mode, kind), batch(2, mode, kind)], autoreset_mode=mode, num_workers=num_workers
    )
    compare(ours, batch(5, mode, kind)(), mode=mode)


@pytest.mark.parametrize("kind", SPACES)
def test_batches_get_every_kind_of_action(kind):
    ours = pysampler.VectorEnv([batch(2, actions=kind)] * 2, num_workers=2)
    compare(ours, batch(4, actions=kind)())


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    "options",
    [
        {"num_workers": 0},
        {"num_workers": 1, "groups": 3},
        {"num_workers": 2, "main_envs": 3},
        {"num_workers": 4},
    ],
)
def test_lists_may_mix_batches_and_envs(mode, options):
    env = functools.partial(SpaceEnv, BOX, SPACES["discrete"], "numbers")
    functions = [env, batch(3, mode), env, env, batch(1, mode), batch(2, mode)]
    ours = pysampler.VectorEnv(functions, autoreset_mode=mode, **options)
    assert ours.num_envs == 9
    compare(ours, batch(9, mode)(), mode=mode)


@pytest.mark.parametrize("infos", ["all", "final", "none"])
@pytest.mark.parametrize("mode", MODES)
def test_infos_option_keeps_those_of_batches_like_those_of_envs(infos, mode):
    env = functools.partial(SpaceEnv, BOX, SPACES["discrete"], "numbers")
    options = {"autoreset_mode": mode, "num_workers": 1, "infos": infos}
    compare(
        pysampler.VectorEnv([batch(3, mode)], **options),
        pysampler.VectorEnv([env] * 3, **options),
        mode=mode,
    )


def test_batches_that_leave_resets_to_the_caller_are_reset_in_the_same_step():
    ours = pysampler.VectorEnv([batch(3, DISABLED)] * 2, autoreset_mode=SAME_STEP, num_workers=2)
    compare(ours, batch(6, SAME_STEP)(), steps=60)


def test_infos_of_all_kinds_arrive_as_the_batch_returned_them():
    with pysampler.VectorEnv([batch(3, infos="all")], num_workers=1) as ours:
        theirs = batch(3, infos="all")()
        same(ours.reset(seed=1), theirs.reset(seed=1))
        for step in range(60):
            actions = theirs.action_space.sample()
            got, expected = ours.step(actions)[4], theirs.step(actions)[4]
            same(got["nested"]["i"], expected["nested"]["i"], f"step {step}")
            for key, value in expected.items():
                if key.startswith("_"):
                    same(got[key], value, f"step {step} {key}")
                elif isinstance(value, np.ndarray):
                    chosen = expected[f"_{key}"]
                    same(list(got[key][chosen]), list(value[chosen]), f"step {step} {key}")


def step_by_hand(ours, theirs, actions, place):
    """Step ours and the batches by hand; assert that all results but the infos are equal."""
    results, parts = ours.step(actions), np.split(actions, len(theirs))
    by_hand = [env.step(some) for env, some in zip(theirs, parts, strict=True)]
    for part in (0, 2, 3):
        same(results[part], np.concatenate([one[part] for one in by_hand]), place)
    assert np.array_equal(results[1], np.concatenate([one[1] for one in by_hand]))
    return results, by_hand


@pytest.mark.parametrize("num_workers", [0, 2])
def test_cartpole_batches_equal_those_stepped_by_hand(num_workers):
    with pysampler.VectorEnv(
        [functools.partial(CartPoleVectorEnv, 32)] * 4, num_workers=num_workers
    ) as ours:
        theirs = [CartPoleVectorEnv(32) for _ in range(4)]
        observations, _ = ours.reset(seed=3)
        by_hand = [env.reset(seed=3 + 32 * i)[0] for i, env in enumerate(theirs)]
        same(observations, np.concatenate(by_hand))
        rng = np.random.default_rng(0)
        for step in range(400):
            step_by_hand(ours, theirs, rng.integers(0, 2, 128), f"step {step}")


@pytest.mark.slow
@pytest.mark.parametrize("mode", [NEXT_STEP, SAME_STEP])
def test_atari_batches_equal_those_stepped_by_hand(mode):
    ale_py = pytest.importorskip("ale_py.vector_env")
    make = functools.partial(
        ale_py.AtariVectorEnv, "breakout", 2, num_threads=1, autoreset_mode=mode
    )
    with pysampler.VectorEnv([make] * 2, autoreset_mode=mode, num_workers=2) as ours:
        theirs = [make(), make()]
        observations, infos = ours.reset(seed=3)
        by_hand = [env.reset(seed=3 + 2 * i) for i, env in enumerate(theirs)]
        same(observations, np.concatenate([one[0] for one in by_hand]))
        assert list(infos["env_id"]) == [0, 1, 2, 3]
        rng, ends = np.random.default_rng(0), 0
        for step in range(700):
            place = f"step {step}"
            results, by_hand = step_by_hand(ours, theirs, rng.integers(0, 4, 4), place)
            for key in ("lives", "frame_number"):
                same(results[4][key], np.concatenate([one[4][key] for one in by_hand]), key)
            for env in np.flatnonzero(results[2] | results[3]):
                ends += 1
                if mode is SAME_STEP:
                    final = by_hand[env // 2][4]["final_obs"][env % 2]
                    same(results[4]["final_obs"][env], final, place)
        assert ends > 0


# -- autoreset -------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("own", MODES)
def test_autoreset_modes_that_differ_are_refused_with_both_named(mode, own):
    if mode is own or (own, mode) == (DISABLED, SAME_STEP):
        return
    with pytest.raises(ValueError, match=f"mode {mode.name}: its own is {own.name}"):
        pysampler.VectorEnv([batch(2, own)], autoreset_mode=mode, num_workers=1)


@pytest.mark.parametrize("own", [SAME_STEP, DISABLED])
def test_rollouts_of_batches_equal_those_of_envs(own):
    env = functools.partial(SpaceEnv, BOX, SPACES["discrete"], "numbers")

    def rollouts(functions, mode):
        options = {"autoreset_mode": mode, "num_workers": 2, "policy_in": "workers", "seed": 3}
        with pysampler.Rollouts(functions, zeros, 8, **options) as sampler:
            some = [next(sampler) for _ in range(3)]
            return [
                (one.observations.copy(), one.rewards.copy(), one.terminated.copy()) for one in some
            ]

    same(rollouts([batch(3, own)] * 2, own), rollouts([env] * 6, SAME_STEP))


class Dying(SpaceEnv):
    """An env that kills its process in the fifth step of the one that was reset with seed 1."""

    dies_in = 0

    def reset(self, *, seed=None, options=None):
        self.dies_in = 5 if seed == 1 else 0
        return super().reset(seed=seed, options=options)

    def step(self, action):
        self.dies_in -= 1
        if self.dies_in == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().step(action)


@pytest.mark.slow
@pytest.mark.parametrize("policy_in", ["main", "workers"])
@pytest.mark.parametrize("mode", MODES)
def test_rollouts_mark_steps_in_which_a_batch_lost_a_worker(mode, policy_in):
    env = functools.partial(Dying, BOX, SPACES["discrete"], "numbers")
    options = {"on_worker_loss": "restart", "autoreset_mode": mode}
    inner = functools.partial(pysampler.VectorEnv, [env] * 2, num_workers=2, **options)
    found = []
    for functions in ([inner], [env] * 2):
        with (
            pysampler.VectorEnv(functions, num_workers=len(functions), **options) as envs,
            pysampler.Rollouts(envs, zeros, 6, policy_in=policy_in, seed=0) as rollouts,
        ):
            found.append(next(rollouts))
    nested, flat = found
    assert np.argwhere(nested.lost).tolist() == [[4, 1]]
    for name in ("valid", "lost", "truncated", "terminated", "rewards", "observations"):
        same(getattr(nested, name)[:5, 1], getattr(flat, name)[:5, 1])
    same(nested.final_observations[4, 1], flat.final_observations[4, 1])


# -- resets ----------------------------------------------------------------------------------------


def test_masked_reset_of_a_batch_that_ignores_masks_raises():
    with begun([functools.partial(CartPoleVectorEnv, 2)] * 2, seed=1, num_workers=1) as envs:
        mask = np.array([True, False, False, False])
        with pytest.raises(EnvError, match=r"CartPoleVectorEnv.reset\(\) ignores options"):
            envs.reset(options={"reset_mask": mask})


def test_masked_reset_leaves_batches_without_chosen_envs_alone():
    with pysampler.VectorEnv([functools.partial(CartPoleVectorEnv, 2)] * 2, num_workers=1) as envs:
        before, _ = envs.reset(seed=1)
        after, _ = envs.reset(options={"reset_mask": np.array([False, False, True, True])})
        same(after[:2], before[:2])
        assert not np.array_equal(after[2:], before[2:])


def test_options_may_differ_between_the_envs_of_a_batch():
    with begun([batch(3, DISABLED, infos="all")], seed=1, autoreset_mode=DISABLED) as envs:
        _, infos = envs.reset(options=[{"x": 1}, {"x": 2}, {"x": 1}])
        assert ["1" in one for one in infos["options"]] == [True, False, True]


def test_set_options_is_refused_by_batches_that_reset_themselves():
    with begun([batch(2)], seed=1, num_workers=1) as envs:
        envs.set_options([1], {"x": 1})
        with pytest.raises(
            EnvError, match="cannot set options of env 1: SyncVectorEnv resets its envs"
        ):
            envs.step(np.zeros(2, int))


def test_set_options_reach_resets_of_batches_that_leave_them_to_the_caller():
    make = batch(2, DISABLED, infos="all")
    with begun([make], seed=1, autoreset_mode=SAME_STEP, num_workers=1) as envs:
        envs.set_options(None, {"x": 1})
        for _ in range(100):
            *_, terminated, truncated, infos = envs.step(np.zeros(2, int))
            if (terminated | truncated).any():
                break
        assert "{'x': 1" in infos["options"][np.flatnonzero(terminated | truncated)[0]]
        assert infos["options_version"].max() == 1


@pytest.mark.parametrize("mode", MODES)
def test_first_reset_may_have_options_that_differ(mode):
    with pysampler.VectorEnv(
        [batch(3, mode, infos="all")], autoreset_mode=mode, num_workers=1
    ) as envs:
        _, infos = envs.reset(options=[{"x": 1}, {"x": 2}, None])
        assert list(infos["_options"]) == [True, True, False]
        assert ["2" in str(one) for one in infos["options"]] == [False, True, False]


@pytest.mark.parametrize("mode", [SAME_STEP, DISABLED])
def test_replaced_batch_gets_options_that_differ(mode):
    make = batch(3, DISABLED, infos="all")
    options = {"num_workers": 1, "on_worker_loss": "restart", "autoreset_mode": mode}
    with begun([make], seed=1, **options) as envs:
        envs.set_options([0], {"x": 1})
        os.kill(envs._pool.pids[0], signal.SIGKILL)
        assert envs.step(np.zeros(3, int))[3].all()
        _, infos = envs.reset()
        assert "'x': 1" in infos["options"][0]


# -- results ---------------------------------------------------------------------------------------


def test_final_observations_are_copied_before_the_reset():
    class Growing(SmallEnv):
        observation_space = spaces.Dict(a=spaces.Box(-1e6, 1e6, (2,), np.float64), t=spaces.Text(9))

        def observe(self):
            return {"a": np.full(2, float(self.steps)), "t": str(self.steps)}

        def ends(self, action):
            return self.steps > 2

    make = functools.partial(SyncVectorEnv, [Growing] * 2, copy=False, autoreset_mode=DISABLED)
    with begun([make], seed=1, autoreset_mode=SAME_STEP, num_workers=1) as envs:
        for _ in range(3):
            *_, infos = envs.step(np.zeros(2, int))
        same(infos["final_obs"][0], {"a": np.full(2, 3.0), "t": "3"})


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (np.array(0.5), [0.5] * 3),
        (np.arange(3.0), [0.0, 1.0, 2.0]),
        ([4, 5, 6], [4, 5, 6]),
        (np.arange(2.0), [[0.0, 1.0]] * 3),
        ("text", ["text"] * 3),
        ({"y": np.arange(3), "_y": np.array([True, False, True])}, [{"y": 0}, {}, {"y": 2}]),
    ],
)
def test_infos_with_a_row_for_each_env_are_divided_and_others_are_those_of_all(value, expected):
    make = functools.partial(SmallBatch, NEXT_STEP, 3, infos=lambda calls: {"x": value})
    with pysampler.VectorEnv([make], num_workers=1) as envs:
        single = pysampler.VectorEnv(
            [functools.partial(Given, one) for one in expected], num_workers=0
        )
        envs.reset(seed=1)
        single.reset(seed=1)
        for _ in range(3):
            same(envs.step(np.zeros(3, int))[4], single.step(np.zeros(3, int))[4])
    single.close()


class Given(SmallEnv):
    """An env with a given info."""

    def __init__(self, value):
        self.value = np.asarray(value) if isinstance(value, list) else value

    def begins(self):
        return {"x": self.value}

    def info(self, action):
        return {"x": self.value}


def test_infos_whose_length_changes_are_never_cut():
    infos = lambda calls: {"x": np.arange(3.0) if calls % 2 else np.arange(9.0) * 10}  # noqa: E731
    with begun([lambda: SmallBatch(NEXT_STEP, 3, infos=infos)], seed=1, num_workers=1) as envs:
        for step in range(6):
            x = envs.step(np.zeros(3, int))[4]["x"]
            assert x.shape == ((3, 9) if step % 2 else (3,))


def test_keys_that_begin_with_an_underscore_may_be_no_masks():
    infos = lambda calls: {"x": np.arange(2), "_x": "word", "_y": np.arange(2)}  # noqa: E731
    with begun([lambda: SmallBatch(NEXT_STEP, infos=infos)], seed=1, num_workers=1) as envs:
        assert list(envs.step(np.zeros(2, int))[4]["_y"]) == [0, 1]


@pytest.mark.parametrize("num_workers", [0, 1])
def test_ends_may_be_numbers_but_observations_keep_their_kind(num_workers):
    class Numbers(SmallBatch):
        single_observation_space = spaces.Box(0, 255, (2,), np.uint8)

        def step(self, actions):
            observations, rewards, over, _, infos = super().step(actions)
            return observations + self.extra, rewards, over.astype(int), [0, 0], infos

    class Fractions(Numbers):
        extra = 0.5

    class Whole(Numbers):
        extra = np.uint8(1)

        def __init__(self):
            super().__init__(NEXT_STEP)
            self.at = np.zeros((2, 2), np.uint8)

    with begun([Whole], seed=1, num_workers=num_workers) as envs:
        assert envs.step(np.zeros(2, int))[2].dtype == bool
    with (
        pysampler.VectorEnv(
            [functools.partial(Fractions, NEXT_STEP)], num_workers=num_workers
        ) as envs,
        pytest.raises(EnvError, match="Cannot cast .* to dtype"),
    ):
        envs.reset(seed=1)


# -- calls -----------------------------------------------------------------------------------------


class Own(CartPoleVectorEnv):
    """A batch with methods and attributes, and without ``call``."""

    per_env = property(lambda self: np.arange(self.num_envs))

    def __init__(self, count, closed=None):
        super().__init__(count)
        self._file = closed

    def double(self, x):
        return 2 * x

    def pid(self):
        return os.getpid()

    def close(self):
        if self._file is not None:
            with self._file.open("a") as file:
                file.write("closed\n")


def test_calls_reach_a_batch_once_and_return_one_result_per_env():
    with pysampler.VectorEnv(
        [functools.partial(Own, 2), functools.partial(Own, 3)], num_workers=2
    ) as envs:
        assert envs.call("double", 4) == (8,) * 5
        assert envs.get_attr("gravity") == (9.8,) * 5
        assert envs.get_attr("per_env") == (0, 1, 0, 1, 2)
        assert envs.apply(lambda env: env.num_envs) == (2, 2, 3, 3, 3)
        assert envs.apply(lambda env: env.per_env, envs=[4, 1]) == (2, 1)
        assert len(set(envs.call("pid"))) == 2
        envs.set_attr("gravity", [1, 1, 2, 2, 2])
        assert envs.get_attr("gravity") == (1, 1, 2, 2, 2)
        with pytest.raises(EnvError, match="Own is a vector env without set_attr"):
            envs.set_attr("gravity", [1, 2, 3, 3, 3])
        with pytest.raises(EnvError, match="Own is a vector env, whose envs have no states"):
            envs.get_state()


def test_calls_of_a_batch_with_a_call_method_are_those_of_its_envs():
    with begun([batch(2), batch(1)], seed=1, num_workers=2) as envs:
        assert envs.call("double", 4, plus=1) == (9,) * 3
        envs.set_attr("ends", [0.1, 0.2, 0.3])
        assert envs.get_attr("ends") == (0.1, 0.2, 0.3)
        same(envs.render(), (np.zeros((2, 2, 3), np.uint8),) * 3)


def test_calls_pass_wrappers_of_a_batch():
    make = lambda: vector_wrappers.RecordEpisodeStatistics(batch(2)())  # noqa: E731
    with begun([make], seed=1, num_workers=1) as envs:
        assert envs.call("double", 4) == (8, 8)
        envs.set_attr("ends", [0.5, 0.25])
        assert envs.get_attr("ends") == (0.5, 0.25)
        assert envs.get_attr("episode_count") == (0, 0)  # of the wrapper


def test_each_batch_is_closed_once(tmp_path):
    path = tmp_path / "closed"
    envs = pysampler.VectorEnv([functools.partial(Own, 3, path)] * 2, num_workers=2)
    envs.close()
    assert path.read_text() == "closed\n" * 2


def test_describe_and_stats_cover_batches():
    with begun([batch(3)], seed=1, num_workers=1) as envs:
        envs.step(np.zeros(3, int))
        assert envs.describe() == "envs 0 to 2:\n  SyncVectorEnv of 3 envs  in one call"
        stats = envs.stats()
        assert list(stats.steps.count) == list(stats.resets.count) == [1, 1, 1]
        with pytest.raises(ValueError, match="native=True, but it is a vector env"):
            pysampler.VectorEnv([batch(3)], native=True)


def test_vector_wrappers_around_a_batch_take_part():
    def make():
        return vector_wrappers.RecordEpisodeStatistics(CartPoleVectorEnv(4))

    with pysampler.VectorEnv([make], num_workers=1) as envs:
        theirs = make()
        envs.reset(seed=1)
        theirs.reset(seed=1)
        ends = 0
        for _ in range(60):
            infos, expected = (one.step(np.ones(4, int))[4] for one in (envs, theirs))
            assert infos.keys() == expected.keys()
            if "episode" in expected:
                ends += 1
                same(infos["_episode"], expected["_episode"])
                same(
                    infos["episode"]["r"][infos["_episode"]],
                    expected["episode"]["r"][expected["_episode"]],
                )
        assert ends > 0


# -- some envs at a time, faults -------------------------------------------------------------------


def test_recv_returns_whole_batches():
    make = functools.partial(CartPoleVectorEnv, 4)
    with pysampler.VectorEnv([make] * 4, num_workers=2, groups=2) as envs:
        assert [len(group) for group in envs._core.groups] == [4] * 4
        envs.async_reset(seed=1)
        seen = set()
        for _ in range(20):
            infos = envs.recv(min_envs=4, max_envs=4)[4]
            seen.add(tuple(infos["env_id"]))
            envs.send(np.zeros(4, int), infos["env_id"])
        envs.recv()
        assert seen <= {tuple(range(i, i + 4)) for i in range(0, 16, 4)}


class Faulty(SmallBatch):
    """Its results may also be wrong."""

    SHAPE, FOUR = 10, 11

    def step(self, actions):
        observations, *results = super().step(actions)
        if actions[0] == self.FOUR:
            return observations, *results[1:]
        if actions[0] == self.SHAPE:
            return observations[:1], *results
        return observations, *results


def faulty(count=2, mode=NEXT_STEP, **kwargs):
    options = {"num_workers": count, "autoreset_mode": mode, **kwargs}
    return pysampler.VectorEnv([functools.partial(Faulty, mode, 3)] * count, **options)


def only_first(action, count=6):
    actions = np.zeros(count, int)
    actions[0] = action
    return actions


@pytest.mark.parametrize(
    ("action", "error"),
    [
        (RAISE, "told to raise"),
        (Faulty.SHAPE, "one row for each env"),
        (Faulty.FOUR, r"step\(\) returned 4 values, expected 5"),
    ],
)
@pytest.mark.parametrize("num_workers", [0, 2])
def test_errors_of_a_batch_name_it_and_leave_the_others_going(action, error, num_workers):
    with begun(faulty(num_workers=num_workers), seed=1) as envs:
        with pytest.raises(EnvError, match=f"env 0 .*{error}"):
            envs.step(only_first(action))
        observations, *_ = envs.step(only_first(OK))
        assert list(observations[3:, 1]) == [2, 2, 2]


def test_lost_batch_raises_with_all_of_its_envs():
    envs = begun(faulty(), seed=1)
    with pytest.raises(WorkerLostError, match="signal 9 while stepping envs 0-2"):
        envs.step(only_first(KILL))


@pytest.mark.parametrize("mode", MODES)
def test_replaced_batch_ends_its_episodes_and_begins_again(mode):
    with begun(faulty(mode=mode, on_worker_loss="restart"), seed=1) as envs:
        envs.step(only_first(OK))
        observations, rewards, _, truncated, infos = envs.step(only_first(KILL))
        assert list(truncated) == [True] * 3 + [False] * 3
        assert list(infos["worker_lost"]) == [True] * 3 + [False] * 3
        assert list(rewards) == [0] * 3 + [1] * 3
        if mode is SAME_STEP:
            same(infos["final_obs"][1], np.array([2.0, 1.0]))
        else:
            same(observations[:3, 1], np.ones(3))
        if mode is DISABLED:
            observations, _ = envs.reset(options={"reset_mask": truncated})
        elif mode is NEXT_STEP:
            observations, *_ = envs.step(only_first(OK))
        assert list(observations[:3, 1]) == [0] * 3
        assert observations[0, 0] > 2  # a fresh seed
        same(np.diff(observations[:3, 0]), np.ones(2))


def test_replacement_with_another_number_of_envs_raises(tmp_path):
    path = tmp_path / "count"

    def make():
        count = 2 if path.exists() else 3
        path.touch()
        return SmallBatch(NEXT_STEP, count)

    with (
        begun([make], seed=1, num_workers=1, on_worker_loss="restart") as envs,
        pytest.raises(WorkerLostError, match=r"now make 2 envs, .* expected 3"),
    ):
        for _ in range(3):
            envs.step(only_first(KILL, 3))
            envs.step(only_first(OK, 3))


def test_late_batch_is_named():
    envs = begun(faulty(step_timeout=0.3), seed=1)
    with pytest.raises(EnvTimeoutError, match="env 0 in worker 0"):
        envs.step(only_first(HANG))
    with pytest.warns(UserWarning, match="pending call to `step`"):
        envs.close(terminate=True)


def interrupt(block, name, call, *arguments, **named):
    """Let a method of a block raise KeyboardInterrupt in its first call; make a call that does."""
    method, hits = getattr(block, name), []

    def once(*args, **kwargs):
        if not hits:
            hits.append(True)
            raise KeyboardInterrupt
        return method(*args, **kwargs)

    setattr(block, name, once)
    with pytest.raises(KeyboardInterrupt):
        call(*arguments, **named)


def after_interrupt(envs, block, name, actions):
    """Step with an interrupt in a method of a block, and return the results."""
    interrupt(block, name, envs.step, actions)
    return envs.step_wait()


def expect_lost(results, seen):
    """Check that all envs were lost in a step, and have the observations that were seen last."""
    observations, rewards, terminated, truncated, infos = results
    assert truncated.all()
    assert infos["worker_lost"].all()
    assert not rewards.any()
    assert not terminated.any()
    same(observations, seen)


@pytest.mark.parametrize("which", [0, 1])
def test_interrupted_step_loses_every_batch(which):
    with faulty(num_workers=0) as envs:
        seen, _ = envs.reset(seed=1)
        block = envs._pool._inline._server.blocks[0].blocks[which]
        expect_lost(after_interrupt(envs, block, "_write_infos", only_first(OK)), seen)
        for steps in range(3):
            assert list(envs.step(only_first(OK))[0][:, 1]) == [steps] * 6


@pytest.mark.parametrize("batches", [1, 2])
def test_interrupted_step_with_actions_without_a_shape_loses_every_batch(batches):
    make = functools.partial(SmallBatch, NEXT_STEP, actions=spaces.Text(3))
    with pysampler.VectorEnv([make] * batches, num_workers=0) as envs:
        seen, _ = envs.reset(seed=1)
        block = envs._pool._inline._server.blocks[0]
        block = block.blocks[1] if batches == 2 else block
        actions = ("a", "b") * batches
        expect_lost(after_interrupt(envs, block, "_write_infos", actions), seen)


ending = functools.partial(SmallBatch, DISABLED, length=3)


def test_interrupt_between_a_step_and_its_reset_keeps_the_last_observations_seen():
    with begun([ending], seed=1, autoreset_mode=SAME_STEP, num_workers=0) as envs:
        for _ in range(2):
            seen = envs.step(np.zeros(2, int))[0]
        block = envs._pool._inline._server.blocks[0]
        interrupt(block, "_begin_episodes", envs.step, np.zeros(2, int))
        interrupt(block, "_write_observations", envs.step_wait)
        observations, _, _, truncated, infos = envs.step_wait()
        assert truncated.all()
        same(np.stack(infos["final_obs"]), seen)
        assert list(observations[:, 1]) == [0, 0]


def test_interrupted_step_with_late_resets_loses_all_envs():
    env = functools.partial(SpaceEnv, BOX, SPACES["discrete"], "numbers", 0.5)
    envs = SyncVectorEnv([env] * 2)
    expected = SyncVectorEnv([env] * 2)
    with (
        pysampler.Rollouts(envs, zeros, 16, seed=3) as rollouts,
        pysampler.Rollouts(expected, zeros, 16, seed=3) as theirs,
    ):
        first, other = next(rollouts), next(theirs)
        same(first.valid, other.valid)
        block = rollouts.envs._pool._inline._server.blocks[0]
        write = block._write_late

        def late(*args):
            write(*args)
            block._write_late = write
            raise KeyboardInterrupt

        block._write_late = late
        with pytest.raises(KeyboardInterrupt):
            rollouts._core.pool.round(1)
        rollouts._core.pool.wait()
        rollouts._core.pool.take_all()
        frame = rollouts._core.results.frames.has_final[1]
        same(frame, np.full(2, LOST, np.uint8))
    envs.close()
    expected.close()


class Sleepy(SmallEnv):
    observation_space = spaces.Box(-1, 1e6, (1,), np.float64)

    def act(self, action):
        time.sleep(0.05)

    def observe(self):
        return np.full(1, float(self.steps))


# Those of ours check actions, so that each call waits in Python.
WITH_WORKERS = [
    gym.vector.AsyncVectorEnv,
    functools.partial(pysampler.VectorEnv, check_actions=True),
]


def wait_of(envs, name):
    """Return the name of the method in which a vector env with workers waits for a call."""
    is_ours = isinstance(envs, pysampler.VectorEnv)
    return "_finish" if is_ours else f"{name}_wait"


@pytest.mark.parametrize("kind", WITH_WORKERS)
def test_batch_with_workers_is_lost_if_its_call_is_interrupted(kind):
    envs = kind([Sleepy] * 2)
    with pysampler.VectorEnv([lambda: envs], num_workers=0) as ours:
        seen, _ = ours.reset(seed=1)
        actions = np.zeros(2, int)
        interrupt(envs, wait_of(envs, "step"), ours.step, actions)
        expect_lost(ours.step_wait(), seen)
        for steps in range(3):
            assert ours.step(actions)[0].ravel().tolist() == [steps] * 2
        interrupt(envs, wait_of(envs, "reset"), ours.reset, seed=1)
        assert ours.reset_wait()[0].ravel().tolist() == [0, 0]
        assert ours.step(actions)[0].ravel().tolist() == [1, 1]


@pytest.mark.parametrize("kind", WITH_WORKERS)
@pytest.mark.parametrize("beside", [True, False])
def test_reset_after_an_interrupt_begins_all_envs_of_a_batch(kind, beside):
    """Alone, and beside a single env in a group."""
    envs = kind([Sleepy] * 2)
    with begun([lambda: envs, *[Sleepy] * beside], seed=1, num_workers=0) as ours:
        actions = np.zeros(ours.num_envs, int)
        for _ in range(3):
            ours.step(actions)
        interrupt(envs, wait_of(envs, "step"), ours.step, actions)
        for steps in range(3):
            seen = ours.step(actions) if steps else ours.reset(seed=2)
            assert seen[0].ravel().tolist() == [steps] * ours.num_envs
            assert "worker_lost" not in seen[-1]


def test_batch_that_does_not_answer_after_an_interrupt_is_refused_from_then_on():
    """Its next answer might be that of the call before."""
    envs = gym.vector.AsyncVectorEnv([Sleepy] * 2)
    ours = begun([lambda: envs], num_workers=0, seed=1)
    actions = np.zeros(2, int)
    wait = envs.step_wait
    interrupt(envs, "step_wait", ours.step, actions)
    ours.step_wait()

    def late(timeout=None):
        raise TimeoutError

    for answers in (late, wait):
        envs.step_wait = answers
        with pytest.raises(EnvError, match="has not answered since: make it anew"):
            ours.step(actions)
    with pytest.warns(UserWarning, match="pending call to `step`"):
        ours.close()


@pytest.mark.parametrize("mode", [NEXT_STEP, DISABLED])
def test_masked_reset_of_a_lost_batch_begins_all_of_its_envs(mode):
    inner = gym.vector.SyncVectorEnv([Sleepy] * 2, autoreset_mode=mode)
    with begun([lambda: inner], seed=1, num_workers=0, autoreset_mode=mode) as ours:
        actions = np.zeros(2, int)
        for _ in range(2):
            seen = ours.step(actions)[0]
        interrupt(inner, "step", ours.step, actions)
        expect_lost(ours.step_wait(), seen)
        observations, _ = ours.reset(options={"reset_mask": np.array([True, False])})
        assert observations.ravel().tolist() == [0, 0]
        assert ours.step(actions)[0].ravel().tolist() == [1, 1]


def test_interrupted_masked_reset_of_fresh_envs_resets_all_of_them():
    with begun([Sleepy] * 2, seed=1, num_workers=0) as ours:
        _, second = ours._pool._inline._server.envs
        interrupt(second, "step", ours.step, np.zeros(2, int))
        ours._core.drop_work("a step", stopped=True)
        mask = np.array([False, True])
        interrupt(second, "reset", ours.reset, options={"reset_mask": mask})
        observations, infos = ours.reset_wait()
        assert observations.ravel().tolist() == [0, 0]
        assert infos["worker_lost"].all()
        assert ours.step(np.zeros(2, int))[0].ravel().tolist() == [1, 1]


# -- functions -------------------------------------------------------------------------------------


class Buffered(SmallBatch):
    """A batch that writes its results into the arrays that it was given."""

    def use_buffers(self, observations, rewards, terminated, truncated):
        self.buffers = observations, rewards, terminated, truncated

    def reset(self, **kwargs):
        self.buffers[0][...] = super().reset(**kwargs)[0]
        return self.buffers[0], {}

    def step(self, actions):
        results = super().step(actions)
        for buffer, result in zip(self.buffers, results, strict=False):
            buffer[...] = result
        return *self.buffers, {}


def test_reset_in_a_step_does_not_clear_the_buffers_of_its_results():
    class Clearing(SmallBatch):
        def use_buffers(self, *buffers):
            self.buffers = buffers

        def reset(self, **kwargs):
            self.buffers[0][...] = super().reset(**kwargs)[0]
            for buffer in self.buffers[1:]:
                buffer[...] = 0
            return self.buffers[0], {}

        def step(self, actions):
            for buffer, result in zip(self.buffers, super().step(actions), strict=False):
                buffer[...] = result
            return *self.buffers, {}

    with begun(
        [lambda: Clearing(DISABLED, length=3)], seed=1, autoreset_mode=SAME_STEP, num_workers=1
    ) as envs:
        for _ in range(3):
            _, rewards, terminated, _, infos = envs.step(np.zeros(2, int))
        assert list(rewards) == [1, 1]
        assert list(terminated) == [True, True]
        same(infos["final_obs"][0], np.array([1.0, 3.0]))


@pytest.mark.parametrize("num_workers", [0, 1])
def test_batches_may_write_into_the_frames_themselves(num_workers):
    ours, theirs = (
        pysampler.VectorEnv([functools.partial(kind, NEXT_STEP)] * 2, num_workers=num_workers)
        for kind in (Buffered, SmallBatch)
    )
    with ours, theirs:
        alike(ours, theirs, 5, np.zeros(4, int), seed=1)


def test_batch_that_is_no_whole_vector_env_is_refused():
    class Some(SmallBatch):
        batch_size = 2

    with pytest.raises(EnvError, match="with batch_size 2, expected 3"):
        pysampler.VectorEnv([lambda: Some(NEXT_STEP, 3)], num_workers=1)


def test_vector_env_with_another_autoreset_mode_than_gymnasiums_is_named():
    with pytest.raises(EnvError, match="env 0 is a SmallBatch with autoreset_mode 'NEXT_STEP'"):
        pysampler.VectorEnv([functools.partial(SmallBatch, "NEXT_STEP")], num_workers=1)


def test_make_vec_uses_the_registered_vector_class():
    with pysampler.make_vec("CartPole-v1", 7, "vector_entry_point", num_workers=2) as envs:
        assert (envs.num_envs, envs.num_workers) == (7, 2)
        assert "CartPole-v1 of 4 envs  in one call" in envs.describe()
        assert envs.spec.kwargs["vectorization_mode"] == "vector_entry_point"
    with pysampler.make_vec(envs.spec) as again:
        assert again.num_envs == 7


@pytest.mark.parametrize(
    ("options", "sizes"),
    [
        ({"num_workers": 0}, [6]),
        ({"num_workers": 2, "groups": 2}, [2, 2, 1, 1]),
        ({"num_workers": 1, "main_envs": 2}, [4, 2]),
        ({"num_workers": 9}, [1] * 6),
    ],
)
def test_make_vec_divides_vector_classes_between_groups(options, sizes):
    with pysampler.make_vec("CartPole-v1", 6, "vector_entry_point", **options) as envs:
        assert [len(group) for group in envs._core.groups] == sizes


class Drifting(SmallEnv):
    """Observes a random number, plus its steps."""

    observation_space = gym.spaces.Box(-np.inf, np.inf, (1,), np.float64)

    def observe(self):
        if self.steps == 0:
            self.first = self.np_random.normal(size=1)
        return self.first + self.steps


def test_envs_with_different_options_can_be_reset_after_an_interrupt():
    mode = AutoresetMode.DISABLED
    make = functools.partial(SyncVectorEnv, [Drifting] * 3, autoreset_mode=mode)
    with pysampler.VectorEnv([make], num_workers=0, autoreset_mode=mode) as envs:
        envs.set_options([0, 1, 2], [{"o": 1}, {"o": 2}, {"o": 2}])
        envs.reset(seed=1)
        with pytest.raises(KeyboardInterrupt):
            envs.step(np.array([0, 0, INTERRUPT]))
        envs.step_wait()
        for _ in range(2):
            observations, _ = envs.reset()
            stepped = envs.step(np.zeros(3, int))[0]
            assert (stepped == observations + 1).all()


@pytest.mark.parametrize("lag", range(4))
def test_loss_after_a_masked_reset_ends_the_episodes_that_it_left_alone(lag):
    """Also if the frame was used by a step that ended episodes, and not if they had ended."""

    def make():
        return SyncVectorEnv([SmallEnv] * 2)

    losses = []
    for fns in ([make] * 2, [SmallEnv] * 4):
        with begun(fns, num_workers=2, on_worker_loss="restart") as envs:
            envs.step(np.array([END, END, OK, OK]))
            for _ in range(lag):
                envs.step(np.full(4, OK))
            envs.reset(options={"reset_mask": np.array([False, False, True, True])})
            _, _, _, truncated, infos = envs.step(np.array([KILL, KILL, OK, OK]))
            lost = infos.get("worker_lost", np.zeros(4, bool))
            losses.append((truncated[:2].tolist(), lost[:2].tolist()))
    assert losses == [([lag > 0] * 2,) * 2] * 2


def test_observations_of_a_batch_with_buffers_may_be_changed_before_a_masked_reset():
    large = spaces.Box(-np.inf, np.inf, (20_000,), np.float64)  # so that views are returned

    class Wide(Buffered):
        single_observation_space = large

        def __init__(self):
            super().__init__(NEXT_STEP)
            self.at = np.zeros((2, 20_000))

    with begun([Wide] * 2, num_workers=1) as envs:
        observations = envs.step(np.zeros(4, int))[0]
        observations[:] = -7
        mask = np.array([True, False, True, True])
        observations, _ = envs.reset(options={"reset_mask": mask})
        assert observations[:, 1].tolist() == [0, 1, 0, 0]
