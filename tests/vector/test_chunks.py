"""Chunks: several steps of each env with one command, the same as calls of step."""

import contextlib
import functools
import threading

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.error import NoAsyncCallError
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.vector.utils import concatenate, create_empty_array
from interrupts import at_each_point
from interrupts_in_tests import closing_while_pending, counters, reset_if_lost
from made_up import SpaceEnv, interrupt_once, same
from told_envs import END, RAISE, SmallEnv
from vectors import begun, info_of

import pysampler
from pysampler._frames.frames import SKIPPED
from pysampler._vector.jobs import Rest
from pysampler._vector.vector_env import core_of
from pysampler._workers.pool import Pool
from pysampler.envs import classic
from pysampler.errors import EnvError, EnvTimeoutError, WorkerLostError

MODES = list(AutoresetMode)
NEXT_STEP, SAME_STEP, DISABLED = MODES
BOX = spaces.Box(-1, 1, (3,), np.float32)


class OneByOne:
    """Makes chunks as calls of ``step`` of a SyncVectorEnv for each env."""

    def __init__(self, env_fns, mode):
        self.envs = [SyncVectorEnv([env_fn], autoreset_mode=mode) for env_fn in env_fns]
        self.mode = mode
        self.over = [False] * len(env_fns)

    def reset(self, seed=None, mask=None):
        for i, env in enumerate(self.envs):
            if mask is None or mask[i]:
                env.reset(seed=None if seed is None else seed + i)
                self.over[i] = False

    def step_chunk(self, actions_of, steps):
        """Return for each env: its observations, rewards, ends, the last infos and its actions."""
        results = []
        for i, env in enumerate(self.envs):
            begins = self.mode is NEXT_STEP and self.over[i]
            observations, rewards = [], np.zeros(steps)
            taken = 0
            for k in range(steps):
                seen, reward, terminated, truncated, infos = env.step(actions_of(i, k))
                observations.append(seen)
                rewards[k] = reward[0]
                taken += not begins
                self.over[i] = bool(terminated[0] or truncated[0])
                if self.over[i] or begins:
                    break
            results.append((observations, rewards, terminated[0], truncated[0], infos, taken))
        return results

    def close(self):
        for env in self.envs:
            env.close()


# An env's infos whose type depends on the batch.
VARYING = "steps", "either"


def compare(make, mode, workers, observations, *, seed, chunks=10, most=6, **options):
    """Compare chunks of random lengths; return how many episodes ended before their chunk did."""
    rng = np.random.default_rng(seed)
    cut = 0
    with (
        pysampler.VectorEnv(make, autoreset_mode=mode, num_workers=workers, **options) as ours,
        contextlib.closing(OneByOne(make, mode)) as theirs,
    ):
        space = ours.single_action_space
        space.seed(seed)
        ours.reset(seed=3)
        theirs.reset(seed=3)
        for _ in range(chunks):
            steps = int(rng.integers(1, most))
            drawn = [[space.sample() for _ in range(steps)] for _ in make]
            stacked = stack(space, drawn)
            got = ours.step_chunk(stacked, observations=observations)
            expected = theirs.step_chunk(lambda i, k, d=drawn: batch_of_one(space, d[i][k]), steps)
            for i, (seen, rewards, terminated, truncated, infos, taken) in enumerate(expected):
                every = seen + [seen[-1]] * (steps - len(seen))
                for k, one in enumerate(every if observations == "all" else seen[-1:]):
                    same(row(got[0], i, k if observations == "all" else None), row(one, 0, None))
                assert got[1][i].tobytes() == rewards.tobytes()
                assert (got[2][i], got[3][i]) == (terminated, truncated)
                assert got[4]["steps"][i] == taken
                np.testing.assert_equal(info_of(got[4], i, VARYING), info_of(infos, 0, VARYING))
                cut += taken < steps
            over = got[2] | got[3]
            if mode is DISABLED and over.any():
                ours.reset(options={"reset_mask": over})
                theirs.reset(mask=over)
    return cut


def row(tree, i, k):
    if isinstance(tree, dict):
        return {key: row(value, i, k) for key, value in tree.items()}
    if isinstance(tree, tuple):
        return tuple(row(value, i, k) for value in tree)
    return tree[i] if k is None else tree[i, k]


def stack(space, drawn):
    """Return actions [envs][steps] as arrays [envs, steps, ...]."""
    if isinstance(space, spaces.Dict):
        return {
            key: stack(one, [[action[key] for action in steps] for steps in drawn])
            for key, one in space.items()
        }
    return np.array(drawn, space.dtype)


def batch_of_one(space, action):
    if isinstance(space, spaces.Discrete):
        return np.array([action], space.dtype)
    return concatenate(space, [action], create_empty_array(space, 1))


@pytest.mark.parametrize("observations", ["last", "all"])
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("mode", MODES)
def test_chunk_returns_what_single_steps_return(mode, workers, observations):
    make = [functools.partial(SpaceEnv, BOX, BOX, infos="numbers")] * 3
    assert compare(make, mode, workers, observations, seed=4) > 3


@pytest.mark.slow
@pytest.mark.parametrize("observations", ["last", "all"])
@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("main_envs", [0, 2])
@pytest.mark.parametrize("infos", ["numbers", "all"])
@pytest.mark.parametrize("mode", MODES)
def test_chunk_returns_what_single_steps_return_with_any_division(
    mode, infos, main_envs, groups, observations
):
    space = spaces.Dict({"a": BOX, "b": spaces.Discrete(3)})
    make = [functools.partial(SpaceEnv, space, space, infos=infos)] * 5
    workers, options = (1 if main_envs else 2), {"main_envs": main_envs, "groups": groups}
    for seed in range(3):
        compare(make, mode, workers, observations, seed=seed, chunks=15, **options)


class Scripted(SmallEnv):
    """Observes (steps of the episode, episodes)."""

    def observe(self):
        return np.array([self.steps, self.resets], np.float64)

    def info(self, action):
        return {"n": self.steps}


def scripted(count=4, mode=NEXT_STEP, **options):
    return begun([Scripted] * count, seed=1, autoreset_mode=mode, **{"num_workers": 2, **options})


def chunk(envs, steps=4, **actions):
    """Return a chunk of action 0, except those given as env_2=[0, 3]."""
    chosen = np.zeros((envs.num_envs, steps), np.int64)
    for name, given in actions.items():
        chosen[int(name[4:]), : len(given)] = given
    return chosen


@pytest.mark.parametrize("workers", [0, 2])
def test_next_step_mode_spends_a_chunk_on_the_reset(workers):
    with scripted(num_workers=workers) as envs:
        seen, rewards, terminated, _, infos = envs.step_chunk(chunk(envs, env_1=[0, 1]))
        assert terminated.tolist() == [False, True, False, False]
        assert seen[1].tolist() == [2, 1]
        assert rewards[1].tolist() == [1, 1, 0, 0]
        seen, rewards, terminated, _, infos = envs.step_chunk(chunk(envs))
        assert infos["steps"].tolist() == [4, 0, 4, 4]
        assert seen[1].tolist() == [0, 2]
        assert rewards[1].tolist() == [0, 0, 0, 0]
        assert not terminated.any()
        assert envs.step_chunk(chunk(envs))[4]["steps"].tolist() == [4] * 4


def test_same_step_mode_resets_in_the_step_that_ends():
    with scripted(mode=SAME_STEP) as envs:
        seen, _, terminated, _, infos = envs.step_chunk(chunk(envs, env_1=[0, 1]))
        assert terminated[1]
        assert infos["steps"].tolist() == [4, 2, 4, 4]
        assert seen[1].tolist() == [0, 2]
        assert infos["final_obs"][1].tolist() == [2, 1]
        assert infos["final_info"]["n"][1] == 2


def test_observations_after_the_end_repeat_the_last():
    with scripted(mode=DISABLED) as envs:
        seen, *_ = envs.step_chunk(chunk(envs, env_1=[0, 1]), observations="all")
        assert seen.shape == (4, 4, 2)
        assert seen[0, :, 0].tolist() == [1, 2, 3, 4]
        assert seen[1, :, 0].tolist() == [1, 2, 2, 2]


def test_chunk_is_one_command_for_each_group():
    with scripted() as envs:
        native = envs._pool.native
        envs.step_chunk(chunk(envs))
        before = [native.number_of(group) for group in range(2)]
        envs.step_chunk(chunk(envs))
        assert [native.number_of(group) for group in range(2)] == [n + 1 for n in before]


def test_usual_chunk_is_one_call_of_cpp(monkeypatch):
    with scripted() as envs:
        for _ in range(3):  # infos get columns
            envs.step_chunk(chunk(envs))
        monkeypatch.setattr(envs, "_step_chunk", None)
        assert envs.step_chunk(chunk(envs))[0][:, 0].tolist() == [16] * 4


def test_steps_and_chunks_may_alternate():
    with scripted() as envs:
        for round_ in range(1, 5):
            seen, *_ = envs.step_chunk(chunk(envs, 2 + round_ % 2))
            first = seen[0, 0]
            assert envs.step(np.zeros(4, np.int64))[0][:, 0].tolist() == [first + 1] * 4
            assert envs.step(np.zeros(4, np.int64))[0][:, 0].tolist() == [first + 2] * 4


@pytest.mark.parametrize("observations", ["last", "all"])
def test_the_vector_envs_own_observations_are_the_last_ones(observations):
    space = spaces.Dict({"a": BOX, "b": spaces.Tuple([spaces.Discrete(3)])})
    fns = [functools.partial(SpaceEnv, space, BOX, ends=0)] * 3
    with begun(fns, seed=1, num_workers=1) as envs:
        for _ in range(3):
            seen = envs.step_chunk(np.zeros((3, 2, 3), np.float32), observations=observations)[0]
            last = row(seen, slice(None), None if observations == "last" else -1)
            same(envs.observations, last)
            assert envs.observations["a"].shape == (3, 3)


def test_results_of_a_chunk_are_not_overwritten():
    with scripted() as envs:
        first = envs.step_chunk(chunk(envs), observations="all")
        copies = [array.copy() for array in first[:4]]
        envs.step_chunk(chunk(envs, env_0=[1]), observations="all")
        for array, copy in zip(first[:4], copies, strict=True):
            np.testing.assert_array_equal(array, copy)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("given", [np.float32, np.float64, np.float16])
def test_actions_of_a_chunk_keep_their_dtype(given, workers):
    fns = [functools.partial(SpaceEnv, BOX, BOX, infos="all", ends=0)] * 2
    with begun(fns, num_workers=workers) as envs:
        infos = envs.step_chunk(np.ones((2, 3, 3), given))[4]
        assert all(np.dtype(given).name in text for text in infos["action"])


class TwoRewards(Scripted):
    reward_space = spaces.Box(-np.inf, np.inf, (2,), np.float64)

    def step(self, action):
        seen, _, *rest = super().step(action)
        return seen, np.array([self.steps, -self.steps], np.float64), *rest


def test_rewards_of_several_numbers_come_for_each_step():
    with begun([TwoRewards] * 3, num_workers=1) as envs:
        for call in range(4):  # the later ones are one call of C++ each
            rewards = envs.step_chunk(chunk(envs, 2))[1]
            expected = [[2 * call + k, -2 * call - k] for k in (1, 2)]
            assert rewards.tolist() == [expected] * 3


def test_actions_may_be_nested_lists():
    with scripted() as envs:
        assert envs.step_chunk([[0, 0, 1]] * 4)[2].all()


BAD = {
    "one step": (np.zeros(4, np.int64), ValueError, r"shape \(4,\), expected \(4, steps\)"),
    "other envs": (np.zeros((3, 2), np.int64), ValueError, r"shape \(3, 2\), expected \(4, 2\)"),
    "no steps": (np.zeros((4, 0), np.int64), ValueError, "0 steps, expected 1 to 65535"),
    "floats": (np.zeros((4, 2)), TypeError, "dtype float64, expected int64"),
    "masked": (np.ma.zeros((4, 2), np.int64), ValueError, "masked, expected an array without a"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_chunks_of_actions_are_refused(name):
    actions, error, text = BAD[name]
    with scripted() as envs:
        with pytest.raises(error, match=f"cannot send actions: {text}"):
            envs.step_chunk(actions)
        with pytest.raises(ValueError, match='observations 1, expected "last" or "all"'):
            envs.step_chunk(chunk(envs), observations=1)
        assert envs.step_chunk(chunk(envs))[4]["steps"].tolist() == [4] * 4


def test_envs_that_step_together_only_make_no_chunks():
    nested = functools.partial(SyncVectorEnv, [Scripted] * 2)
    with (
        begun([nested], num_workers=1) as envs,
        pytest.raises(ValueError, match="SyncVectorEnv.* steps all of its envs or none"),
    ):
        envs.step_chunk(chunk(envs))


@pytest.mark.parametrize("native", [True, False])
def test_resting_envs_make_no_step_of_a_chunk(native):
    """Their rows are marked as left out, as after the end of an episode."""
    make, count = (cart, 16) if native else (Scripted, 4)
    with pysampler.VectorEnv([make] * count, num_workers=1) as envs:
        assert ("native" in repr(envs)) == native
        envs.reset(seed=1)
        envs.step_chunk(np.zeros((count, 3), np.int64))  # lays out the frames
        before = envs.stats().steps.count.copy()
        core = core_of(envs)
        with core.enter("rest"):
            core.pool.note(lambda _: Rest([1, 2]))
        rewards = envs.step_chunk(np.zeros((count, 3), np.int64))[1]
        frames = core.results.frames
        skipped = frames.has_final[frames.ring : frames.ring + 3] == SKIPPED
        assert (skipped.sum(axis=0) == [0, 3, 3] + [0] * (count - 3)).all()
        assert not rewards[1:3].any()
        assert rewards[0].tolist() == [1] * 3
        made = envs.stats().steps.count - before
        assert made.tolist() == [3, 0, 0] + [3] * (count - 3)
        with pytest.raises(EnvError):  # native envs are then stepped one by one
            envs.step_chunk(np.full((count, 1), 7 if native else RAISE))
        envs.step_chunk(np.zeros((count, 2), np.int64))
        assert (envs.stats().steps.count - before)[:4].tolist() == [6, 0, 0, 6]


def test_nan_in_any_step_of_a_chunk_is_refused():
    fns = [functools.partial(SpaceEnv, BOX, BOX)] * 2
    with begun(fns, num_workers=0, check_actions=True) as envs:
        actions = np.zeros((2, 3, 3), np.float32)
        actions[1, 2, 0] = np.nan
        with pytest.raises(ValueError, match="nan for env 1"):
            envs.step_chunk(actions)


# -- faults ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("observations", ["last", "all"])
def test_env_that_raises_is_named_with_its_step(observations, workers):
    with scripted(num_workers=workers) as envs:
        with pytest.raises(EnvError, match="env 2.* raised ValueError in step 3 of a chunk") as got:
            envs.step_chunk(chunk(envs, env_2=[0, 0, 2]), observations=observations)
        assert got.value.env == 2
        seen, _, _, _, infos = envs.step_chunk(chunk(envs))
        assert infos["steps"].tolist() == [4] * 4
        assert seen[:, 0].tolist() == [8, 8, 6, 8]  # the others made all of their steps


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("observations", ["last", "all"])
def test_worker_lost_in_a_chunk_ends_the_episodes_of_its_envs(observations, mode):
    with scripted(mode=mode, on_worker_loss="restart") as envs:
        before = envs.step_chunk(chunk(envs))[0]
        seen, rewards, terminated, truncated, infos = envs.step_chunk(
            chunk(envs, env_2=[0, 0, 3]), observations=observations
        )
        assert truncated.tolist() == [False, False, True, True]
        assert not terminated.any()
        assert infos["worker_lost"].tolist() == [False, False, True, True]
        assert infos["steps"].tolist() == [4, 4, 0, 0]
        assert rewards.tolist() == [[1] * 4] * 2 + [[0] * 4] * 2
        last = seen[:, -1] if observations == "all" else seen
        if mode is SAME_STEP:
            assert last[2:].tolist() == [[0, 1]] * 2
            assert [one.tolist() for one in infos["final_obs"][2:]] == before[2:].tolist()
        else:
            assert last[2:].tolist() == before[2:].tolist()
        if mode is DISABLED:
            envs.reset(options={"reset_mask": truncated})
        steps = envs.step_chunk(chunk(envs))[4]["steps"]
        assert steps.tolist() == ([4, 4, 0, 0] if mode is NEXT_STEP else [4] * 4)
        assert envs.step_chunk(chunk(envs))[4]["steps"].tolist() == [4] * 4


def test_first_chunk_knows_the_last_observations_of_a_lost_worker():
    with scripted(on_worker_loss="restart") as envs:
        before = envs.step(np.zeros(4, np.int64))[0]
        seen = envs.step_chunk(chunk(envs, env_0=[3]))[0]
        assert seen[:2].tolist() == before[:2].tolist()


@pytest.mark.parametrize("chunks", [1, 3])  # the third is one call of C++
def test_step_after_a_chunk_knows_the_last_observations_of_a_lost_worker(chunks):
    with scripted(on_worker_loss="restart") as envs:
        for _ in range(chunks):
            before = envs.step_chunk(chunk(envs))[0]
        seen = envs.step(chunk(envs, 1, env_0=[3])[:, 0])[0]
        assert seen[:2].tolist() == before[:2].tolist()


@pytest.mark.parametrize("workers", [0, 2])
def test_seeded_globals_make_chunks_as_single_steps(workers):
    make = [functools.partial(SpaceEnv, BOX, BOX)] * 3
    assert compare(make, NEXT_STEP, workers, "last", seed=4, seed_globals=True) > 3


def test_worker_lost_in_a_chunk_is_an_error():
    with scripted() as envs, pytest.raises(WorkerLostError, match=r"signal 9 .*stepping envs 2-3"):
        envs.step_chunk(chunk(envs, env_2=[0, 3]))


@pytest.mark.slow
@closing_while_pending
def test_step_timeout_names_the_env_that_hangs_in_a_chunk():
    with scripted(step_timeout=0.3) as envs:
        with pytest.raises(EnvTimeoutError, match="env 2 .*has not answered") as got:
            envs.step_chunk(chunk(envs, env_2=[0, 4]))
        assert got.value.env == 2
        envs.close(terminate=True)


class Sleeper(Scripted):
    def step(self, action):
        threading.Event().wait(0.1)
        return super().step(action)


@pytest.mark.slow
def test_step_timeout_counts_each_step_of_a_chunk():
    with begun([Sleeper] * 2, num_workers=1, step_timeout=0.5) as envs:
        assert envs.step_chunk(chunk(envs, 8))[4]["steps"].tolist() == [8, 8]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")
@pytest.mark.parametrize("main_envs", [0, 2, 4])
@pytest.mark.parametrize("observations", ["last", "all"])
def test_next_wait_returns_an_interrupted_chunk(observations, main_envs):
    options = {"num_workers": 0} if main_envs == 4 else {"main_envs": main_envs}
    with begun(counters(**options)) as envs:
        actions = np.zeros((4, 3), np.int64)
        envs.step_chunk(actions)
        steps = 3

        def check(results, where):
            nonlocal steps
            if results is None and envs.pending:
                results = envs.step_wait()
            if results is not None and reset_if_lost(envs, results, main_envs) is not None:
                steps += 3
                envs.set_attr("steps", steps)
            elif results is not None:
                steps += 3
                seen, rewards, _, _, infos = results
                last = seen[:, -1] if observations == "all" else seen
                assert last[:, 1].tolist() == [steps] * 4, where
                assert rewards.tolist() == [[steps - 2, steps - 1, steps]] * 4, where
                assert infos["text"].tolist() == [f"{n} {steps}" for n in range(4)], where
            assert envs.get_attr("steps") == (steps,) * 4, where

        program = functools.partial(envs.step_chunk, actions, observations=observations)
        assert at_each_point(program, check) > 20


# -- some envs at a time --------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [0, 2])
def test_recv_returns_chunks_of_some_envs(workers):
    with scripted(num_workers=workers, groups=2) as envs:
        actions = chunk(envs, env_0=[0, 1])
        chosen = [1, 0] if workers == 0 else [3, 0]  # whole groups
        envs.send_chunk(actions[chosen], chosen)
        seen, rewards, *_, infos = envs.recv(2)
        assert sorted(infos["env_id"].tolist()) == sorted(chosen)
        assert rewards.shape == (2, 4)
        assert infos["steps"].tolist() == [4 if env else 2 for env in infos["env_id"]]
        assert seen[:, 0].tolist() == infos["steps"].tolist()


def test_recv_returns_chunks_of_all_as_step_chunk_does():
    with scripted(groups=2) as ours, scripted(groups=2) as theirs:
        for observations in ("last", "all", "last"):
            actions = chunk(ours, env_1=[0, 1], env_3=[1])
            expected = theirs.step_chunk(actions, observations=observations)
            ours.send_chunk(actions, observations=observations)
            got = ours.recv()
            order = np.argsort(got[4].pop("env_id"))
            got[4].pop("_env_id")
            same([one[order] for one in got[:4]], list(expected[:4]))
            same({key: one[order] for key, one in got[4].items()}, expected[4])


def test_chunks_of_groups_may_have_other_lengths():
    with scripted() as envs:
        envs.send_chunk(chunk(envs, 3)[:2], [0, 1])
        envs.recv(2)
        envs.send_chunk(chunk(envs, 2)[:2], [0, 1])
        envs.send_chunk(chunk(envs, 3)[:2], [2, 3])
        seen, rewards, *_, infos = envs.recv()
        steps = dict(zip(infos["env_id"].tolist(), infos["steps"].tolist(), strict=True))
        assert steps == {0: 2, 1: 2, 2: 3, 3: 3}
        assert rewards.sum(axis=1).tolist() == infos["steps"].tolist()
        assert seen[:, 0].tolist() == [5 if env < 2 else 3 for env in infos["env_id"]]


def test_reset_among_chunks_takes_no_action():
    with scripted(mode=DISABLED) as envs:
        envs.send_chunk(chunk(envs, 3))
        envs.recv()
        envs.async_reset(env_ids=[0, 1])
        envs.send_chunk(chunk(envs, 3)[:2], [2, 3])
        _, rewards, *_, infos = envs.recv()
        steps = dict(zip(infos["env_id"].tolist(), infos["steps"].tolist(), strict=True))
        assert steps == {0: 0, 1: 0, 2: 3, 3: 3}
        assert rewards.shape == (4, 3)
        assert rewards.sum(axis=1).tolist() == infos["steps"].tolist()


@pytest.mark.parametrize("make", ["in Python", "native"])
def test_step_that_resets_among_chunks_takes_no_action(make):
    """With NEXT_STEP, ``send`` to envs whose episode has ended resets them."""
    fns = [cart] * 32 if make == "native" else [Scripted] * 4
    with pysampler.VectorEnv(fns, num_workers=2) as envs:
        assert ("native" in repr(envs)) == (make == "native")
        envs.reset(seed=1)
        half = envs.num_envs // 2
        first, second = np.arange(half), np.arange(half, 2 * half)
        ends = np.zeros((half, 12), np.int64)
        if make == "in Python":
            ends[0, 3] = END
        envs.send_chunk(ends, first)
        *_, terminated, truncated, infos = envs.recv(half)
        over = (terminated | truncated)[np.argsort(infos["env_id"])]
        assert over.any()
        for action, expected in ((0, ~over), (1, np.ones(half, bool))):
            envs.send_chunk(np.zeros((half, 12), np.int64), second)
            envs.send(np.full(half, action), first)
            *_, infos = envs.recv()
            steps = infos["steps"][np.argsort(infos["env_id"])]
            assert steps[:half].tolist() == expected.astype(int).tolist()


def test_send_after_chunks_returns_steps_again():
    with scripted() as envs:
        envs.send_chunk(chunk(envs))
        assert envs.recv()[1].shape == (4, 4)
        envs.send(np.zeros(4, np.int64))
        assert envs.recv()[1].shape == (4,)


@closing_while_pending
def test_recv_of_no_chunk_in_time_has_no_rows():
    with scripted() as envs:
        envs.send_chunk(chunk(envs, env_1=[4])[:2], [0, 1], observations="all")
        seen, rewards, *_, infos = envs.recv(timeout=0)
        assert (seen.shape, rewards.shape) == ((0, 4, 2), (0, 4))
        assert infos["steps"].shape == infos["env_id"].shape == (0,)
        envs.close(terminate=True)


def test_longer_chunk_while_others_are_under_way_is_refused():
    with scripted() as envs:
        envs.send_chunk(chunk(envs, 3)[:2], [0, 1])
        with pytest.raises(gym.error.AlreadyPendingCallError, match="Calling `send_chunk`"):
            envs.send_chunk(chunk(envs, 5)[2:], [2, 3])
        envs.recv()
        envs.send_chunk(chunk(envs, 5)[2:], [2, 3])
        assert envs.recv(2)[4]["steps"].tolist() == [5, 5]


def test_error_of_one_group_keeps_the_chunks_of_others():
    with scripted() as envs:
        envs.send_chunk(chunk(envs, env_0=[0, 2]))
        errors, received = 0, []
        while envs.pending:
            try:
                received += envs.recv(1)[4]["env_id"].tolist()
            except EnvError as error:
                assert "in step 2 of a chunk" in str(error)
                errors += 1
        assert (errors, sorted(received)) == (1, [2, 3])


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")
@pytest.mark.parametrize("main_envs", [0, 2])
def test_interrupted_recv_loses_no_chunk(main_envs):
    with begun(counters(6, groups=3, main_envs=main_envs)) as envs:
        envs.step_chunk(np.zeros((6, 3), np.int64))
        got = np.full(6, 3)
        envs.send_chunk(np.zeros((6, 3), np.int64))

        def check(results, where):
            if results is None:
                assert envs.pending == 6, where
                results = envs.recv(2)
            if (counted := reset_if_lost(envs, results, main_envs)) is not None:
                got[:] = counted
                envs.send_chunk(np.zeros((6, 3), np.int64))
                return
            seen, rewards, *_, infos = results
            ids = infos["env_id"]
            got[ids] += 3
            assert seen.tolist() == [[env, got[env]] for env in ids], where
            assert rewards[:, -1].tolist() == got[ids].tolist(), where
            envs.send_chunk(np.zeros((len(ids), 3), np.int64), ids)
            assert envs.pending == 6, where

        assert at_each_point(lambda: envs.recv(2), check) > 20
        while envs.pending:
            envs.recv()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")
def test_interrupted_send_chunk_is_sent_whole_or_not_at_all():
    with begun(counters(4, groups=2)) as envs:
        envs.step_chunk(np.zeros((4, 2), np.int64))  # lays out the frames
        steps = np.full(4, 2)

        def check(result, where):
            assert envs.pending in (0, 4), where
            if envs.pending:
                steps[:] += 2
                seen = envs.recv()[0]
                assert sorted(map(tuple, seen)) == [(n, steps[n]) for n in range(4)], where

        assert at_each_point(lambda: envs.send_chunk(np.zeros((4, 2), np.int64)), check) > 10
        assert envs.get_attr("steps") == tuple(steps)


# -- frames that are not read ----------------------------------------------------------------------


class Camera(Scripted):
    """Notes whether its observation is read in each step, and renders only then."""

    def __init__(self):
        super().__init__()
        self.unseen, self.said, self.rendered = False, [], []

    def skip_frames(self, unseen):
        self.said.append(unseen)
        self.unseen = unseen

    def reset(self, **options):
        seen, info = super().reset(**options)
        return (np.full(2, np.nan) if self.unseen else seen), info

    def step(self, action):
        result = super().step(action)
        ended = result[2]
        if not self.unseen or ended:
            self.rendered.append(self.steps)
            return result
        return np.full(2, np.nan), *result[1:]


def cameras(mode=NEXT_STEP, make=Camera, **options):
    return begun([make] * 2, autoreset_mode=mode, **{"num_workers": 1, **options})


@pytest.mark.parametrize("make", [Camera, lambda: gym.wrappers.OrderEnforcing(Camera())])
@pytest.mark.parametrize("workers", [0, 1])
def test_env_is_told_which_observations_are_not_read(workers, make):
    with cameras(make=make, num_workers=workers) as envs:
        seen = envs.step_chunk(chunk(envs))[0]
        assert seen[:, 0].tolist() == [4, 4]
        assert envs.get_attr("rendered") == ([4], [4])
        assert envs.get_attr("said") == ([True, False],) * 2


class Broken(Camera):
    interrupts = False

    def step(self, action):
        if self.interrupts:
            raise KeyboardInterrupt
        return super().step(action)


def test_interrupted_chunk_leaves_no_env_with_observations_that_are_not_read():
    with cameras(make=Broken, num_workers=0) as envs:
        envs.step_chunk(chunk(envs))
        envs.set_attr("interrupts", [True, False])
        with pytest.raises(KeyboardInterrupt):
            envs.step_chunk(chunk(envs))
        envs._core.drop_work("a chunk", stopped=True)
        envs.set_attr("interrupts", values=False)
        assert not np.isnan(envs.reset()[0]).any()
        assert not np.isnan(envs.step(chunk(envs)[:, 0])[0]).any()


@pytest.mark.parametrize("mode", MODES)
def test_end_of_an_episode_is_always_seen(mode):
    with cameras(mode) as envs:
        seen, *_, infos = envs.step_chunk(chunk(envs, env_0=[0, 1]))
        last = infos["final_obs"][0] if mode is SAME_STEP else seen[0]
        assert last[0] == 2
        assert not np.isnan(seen).any()
        assert envs.get_attr("rendered") == ([2], [4])
        assert envs.get_attr("unseen") == (False, False)


@pytest.mark.parametrize("observations", ["last", "all"])
def test_single_steps_and_all_observations_are_seen(observations):
    with cameras() as envs:
        envs.step_chunk(chunk(envs, 1 if observations == "last" else 3), observations=observations)
        envs.step(np.zeros(2, np.int64))
        assert envs.get_attr("said") == ([], [])


def test_env_that_raised_in_a_chunk_is_told_that_its_next_step_is_seen():
    with cameras() as envs:
        with pytest.raises(EnvError):
            envs.step_chunk(chunk(envs, env_0=[0, 2]))
        assert envs.get_attr("unseen") == (False, False)
        assert envs.step(np.zeros(2, np.int64))[0][0, 0] == 2


# -- envs that step together ----------------------------------------------------------------------


def cart(wrapper=None):
    env = gym.make("CartPole-v1")
    return env if wrapper is None else wrapper(env)


def normalized(env):
    stacked = gym.wrappers.FrameStackObservation(gym.wrappers.NormalizeObservation(env), 3)
    return gym.wrappers.NormalizeReward(stacked)


@pytest.mark.parametrize("mode", MODES)
def test_native_envs_make_chunks_as_single_steps(mode):
    assert compare([cart] * 16, mode, 1, "last", seed=5, most=9) > 10


@pytest.mark.slow
@pytest.mark.parametrize("observations", ["last", "all"])
@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("wrapper", [None, normalized])
@pytest.mark.parametrize("mode", MODES)
def test_native_envs_in_layers_make_chunks_as_single_steps(mode, wrapper, workers, observations):
    make = [functools.partial(cart, wrapper)] * 16
    assert compare(make, mode, workers, observations, seed=5, chunks=25, most=9) > 10


@pytest.mark.slow
@pytest.mark.parametrize("limit", [5, 13])
@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("env_id", ["HalfCheetah-v5", "Hopper-v5"])
def test_native_mujoco_makes_chunks_as_single_steps(env_id, mode, workers, limit):
    pytest.importorskip("mujoco")
    make = [functools.partial(gym.make, env_id, max_episode_steps=limit)] * 3
    assert compare(make, mode, workers, "last", seed=5, chunks=12, most=9) > 3


def test_native_envs_stay_native_after_a_chunk():
    with begun([functools.partial(cart, normalized)] * 16, num_workers=1) as envs:
        envs.step_chunk(np.zeros((16, 3), np.int64))
        assert "native" in envs.describe()


def test_layers_around_python_envs_make_way_for_chunks():
    fns = [lambda: gym.wrappers.NormalizeObservation(SpaceEnv(BOX, BOX))] * 24
    with begun(fns, num_workers=1) as envs:
        if "on the batch" not in envs.describe():
            pytest.skip("these envs have no layers")
        envs.step_chunk(np.zeros((24, 3, 3), np.float32))
        assert "it was sent a chunk of steps" in envs.describe()


@pytest.mark.parametrize("mode", MODES)
def test_layers_around_python_envs_make_chunks_as_single_steps(mode):
    make = [lambda: gym.wrappers.NormalizeObservation(SpaceEnv(BOX, BOX))] * 24
    compare(make, mode, 1, "last", seed=2, chunks=4)


def test_native_env_with_an_invalid_action_is_named_with_its_step():
    with (
        begun([cart] * 16, seed=1, num_workers=1) as envs,
        pytest.raises(EnvError, match="env 3 .*raised AssertionError in step 2 of a chunk"),
    ):
        actions = np.zeros((16, 4), np.int64)
        actions[3, 1] = 7
        envs.step_chunk(actions)


@pytest.mark.parametrize("mode", MODES)
def test_step_that_a_time_limit_ends_is_seen(mode):
    limited = lambda: gym.wrappers.TimeLimit(Camera(), 6)  # noqa: E731
    with cameras(mode, limited) as envs:
        envs.step_chunk(chunk(envs))
        seen, _, _, truncated, infos = envs.step_chunk(chunk(envs))
        last = np.stack(infos["final_obs"]) if mode == SAME_STEP else seen
        assert truncated.all()
        assert last[:, 0].tolist() == [6, 6]


class Huge(Camera):
    observation_space = spaces.Box(0, 1, (2, 1 << 20))

    def observe(self):
        return np.full((2, 1 << 20), self.steps, np.float32)


def test_chunk_without_memory_for_it_leaves_the_envs_usable():
    with cameras(make=Huge) as envs:
        with pytest.raises(MemoryError, match="cannot send a chunk of 60000 steps: cannot make"):
            envs.step_chunk(np.zeros((2, 60_000), int))
        assert envs.step(np.zeros(2, int))[1].tolist() == [1, 1]
        assert envs.step_chunk(np.zeros((2, 3), int))[4]["steps"].tolist() == [3, 3]


@pytest.mark.parametrize("options", [{}, {"main_envs": 1}])
def test_nothing_is_pending_after_an_interrupted_first_chunk(monkeypatch, options):
    with begun(pysampler.make_vec("CartPole-v1", 4, num_workers=2, **options), seed=1) as envs:
        interrupt_once(monkeypatch, Pool, "wait", before=True)
        with pytest.raises(KeyboardInterrupt):
            envs.step_chunk(np.zeros((4, 3), int))
        assert (envs.pending, envs.ready) == (0, 0)
        with pytest.raises(NoAsyncCallError):
            envs.step_wait()
        assert envs.step_chunk(np.zeros((4, 3), int))[4]["steps"].tolist() == [3] * 4


def test_chunks_of_a_batch_env_beside_a_single_env_work_without_workers():
    env_fns = [lambda: classic.CartPole(3), lambda: gym.make("CartPole-v1")]
    with begun(env_fns, seed=1, num_workers=0) as envs:
        assert envs.step_chunk(np.ones((4, 3), int))[1].tolist() == [[1.0] * 3] * 4


@pytest.mark.parametrize("wrap", [lambda env: env, gym.wrappers.RecordEpisodeStatistics])
def test_chunk_that_only_resets_makes_no_steps_beside_an_action_that_none_makes(wrap):
    def make():
        return wrap(gym.make("MountainCar-v0", max_episode_steps=3))

    found = []
    for native in (True, False):
        with begun([make] * 70, seed=1, num_workers=1, native=native) as envs:
            for _ in range(3):
                envs.step(np.ones(70, int))
            actions = np.ones((70, 4), int)
            actions[6, 2] = 7
            chunk = envs.step_chunk(actions)
            found.append([*chunk[:4], *envs.step(np.ones(70, int))[:4]])
    same(*found)


def test_last_step_before_a_time_limit_is_seen_with_seeded_globals_too():
    limited = lambda: gym.wrappers.TimeLimit(Camera(), 3)  # noqa: E731
    with cameras(make=limited, seed_globals=True) as envs:
        observations, _, _, truncated, infos = envs.step_chunk(chunk(envs, 5))
        assert observations[:, 0].tolist() == [3, 3]
        assert truncated.all()
        assert infos["steps"].tolist() == [3, 3]


def test_step_with_actions_that_travel_as_objects_counts_as_one():
    class Rows(SmallEnv):
        action_space = BOX

        def ends(self, action):
            return False

    with begun([Rows] * 2, num_workers=2) as envs:
        envs.send_chunk(np.zeros((1, 3, 3), np.float32), [0])
        envs.send([np.zeros(3)], [1])  # not of the dtype of the space
        *_, infos = envs.recv()
        assert dict(zip(infos["env_id"], infos["steps"], strict=True)) == {0: 3, 1: 1}


def test_recv_after_a_chunk_of_all_and_a_reset_has_no_chunks():
    with begun([Scripted] * 2, num_workers=0) as envs:
        envs.step_chunk(chunk(envs, 3))
        envs.async_reset(seed=2)
        _, rewards, *_, infos = envs.recv()
        assert rewards.shape == (2,)
        assert "steps" not in infos


class OddSkips(SmallEnv):
    """Raises when its method skip_frames is looked for."""

    @property
    def skip_frames(self):
        raise RuntimeError("not started")


def test_chunks_raise_what_looking_for_skip_frames_raises():
    with begun([SmallEnv, OddSkips, SmallEnv], num_workers=1) as envs:
        for _ in range(2):
            with pytest.raises(EnvError, match="not started"):
                envs.step_chunk(np.zeros((3, 2), np.int64))
