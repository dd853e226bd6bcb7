"""MultiTaskSampler: one task per env, and episodes by task."""

import functools
import itertools
import signal
import threading
import time

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.error import AlreadyPendingCallError
from interrupts import at_each_point, at_point, points

import pysampler
from pysampler.envs.meta import TaskWrapper


class EnvWithTasks(gym.Env):
    """Observes (task, steps); rewards are 100 * task + steps; reset accepts no options."""

    observation_space = spaces.Box(-1e6, 1e6, (2,), np.float64)
    action_space = spaces.Box(-1e6, 1e6, (1,), np.float64)

    def __init__(self, ends="never"):
        self.ends = ends
        self.task = -1

    def sample_tasks(self, count):
        return [int(number) for number in self.np_random.integers(1000, size=count)]

    def reset_task(self, task):
        self.task = task

    def _observe(self):
        return np.array([self.task, self.steps], np.float64)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        assert not options
        self.steps = 0
        return self._observe(), {}

    def step(self, action):
        self.steps += 1
        over = self.steps == 3
        reward = 100.0 * self.task + self.steps + float(action[0])
        return self._observe(), reward, over and self.ends == "t", over and self.ends == "c", {}


def policy(observations, tasks, params):
    bonus = np.zeros(len(observations)) if params is None else params[tasks]
    return bonus[:, None], {"task_index": tasks.astype(np.int64)}


def sampler(count=6, ends="never", **options):
    given = {"vector_kwargs": {"num_workers": 2, "groups": 2}, "num_envs": count, **options}
    return pysampler.MultiTaskSampler(functools.partial(EnvWithTasks, ends), policy, **given)


WAITS = [
    {},
    {"min_envs": 1},
    {"min_envs": 2, "timeout": 0.0},
    {"min_envs": "auto", "timeout": "auto"},
    {"timeout": 0.0, "timeout_from": "first"},
]


@pytest.mark.parametrize("options", WAITS, ids=str)
@pytest.mark.parametrize("num_workers", [0, 2])
def test_envs_and_policy_get_their_tasks_and_parameters(num_workers, options):
    kwargs = {"vector_kwargs": {"num_workers": num_workers, "groups": 2}}
    with sampler(**kwargs, **options) as one:
        for round_ in range(3):
            tasks = [10 + round_, 20 + round_, 30 + round_]
            params = np.array([0.25, 0.5, 0.75]) + round_
            rollout = one.sample(5, params=params, tasks=tasks)
            of = [0, 0, 1, 1, 2, 2]
            assert rollout.observations[:, :, 0].tolist() == [[tasks[i] for i in of]] * 6
            assert rollout.observations[:, :, 1].tolist() == [[float(t)] * 6 for t in range(6)]
            expected = [[100 * tasks[i] + t + params[i] for i in of] for t in range(1, 6)]
            assert rollout.rewards.tolist() == expected
            assert rollout.extras["task_index"].tolist() == [of] * 5
            collected = one.collect()
            assert collected.tasks == tasks
            assert [[e.env for e in some] for some in collected.episodes] == [
                [0, 1],
                [2, 3],
                [4, 5],
            ]


@pytest.mark.slow
def test_auto_remembers_its_trials_in_samples_of_another_length():
    with sampler(min_envs="auto") as one:
        one.sample(5)
        while not one.envs.stats().batches.trials:
            one.sample(5)
        one.sample(4)
        assert one.envs.stats().batches.trials > 0


def test_tasks_are_drawn_once_and_kept():
    with sampler(seed=4) as one:
        first = one.sample(2).copy()
        assert len(set(one.tasks)) == 6
        again = one.sample(2).copy()
        assert (again.observations[:, :, 0] == one.tasks).all()
        assert (first.observations[:, :, 0] == one.tasks).all()
        assert (again.options[0] == first.options[0]).all()
        drawn = one.tasks
    with sampler(seed=4) as one:
        assert one.sample_tasks(6) == drawn


@pytest.mark.parametrize(("ends", "last"), [("t", None), ("c", 3.0)])
def test_collect_returns_episodes_with_last_observations(ends, last):
    with sampler(ends=ends) as one:
        one.sample(8, tasks=[7, 8])
        collected = one.collect()
    assert [len(some) for some in collected.episodes] == [9, 9]  # 3 + 3 + 2 steps of each env
    for task, some in zip((7, 8), collected.episodes, strict=True):
        for episode in some:
            assert episode.observations[:, 0].tolist() == [task] * len(episode)
            assert episode.observations[:, 1].tolist() == list(range(len(episode)))
            assert episode.begins
            whole = len(episode) == 3
            assert (episode.terminated, episode.truncated) == (
                whole and ends == "t",
                whole and ends == "c",
            )
            after = episode.last_observation
            if not whole:
                assert after.tolist() == [task, 2.0]
            elif last is None:
                assert after is None
            else:
                assert after.tolist() == [task, last]
    ragged = collected.ragged()
    padded = collected.padded()
    assert ragged["offsets"].tolist()[-1] == 48 == padded["mask"].sum()
    assert ragged["task"].tolist() == [0] * 9 + [1] * 9 == padded["task"].tolist()
    assert padded["rewards"].shape == (18, 3)
    np.testing.assert_array_equal(padded["rewards"][padded["mask"]], ragged["rewards"])
    np.testing.assert_array_equal(padded["observations"][padded["mask"]], ragged["observations"])
    np.testing.assert_array_equal(padded["task_index"][padded["mask"]], ragged["task_index"])
    assert (padded["rewards"][~padded["mask"]] == 0).all()
    assert ragged["last_observations"].shape == (18, 2)
    assert (ragged["terminated"].any(), ragged["truncated"].any()) == (ends == "t", ends == "c")


def test_stepping_by_hand_equals_sample():
    with sampler(min_envs=1) as one:
        expected = one.sample(5, tasks=[1, 2, 3]).copy()
        for _ in range(2):
            one.begin(5, tasks=[1, 2, 3])
            seen = 0
            while (ready := one.step_recv(timeout=0.01)) is not None:
                assert ready.observations[:, 0].tolist() == (ready.tasks + 1).tolist()
                one.step_send(np.zeros((len(ready.envs), 1)), {"task_index": ready.tasks})
                seen += len(ready.envs)
            assert seen == 30
            assert one.step_recv() is None
            rewards = sorted(
                episode.rewards.tolist() for some in one.collect().episodes for episode in some
            )
            assert rewards == sorted(expected.rewards.T.tolist())


class EnvWithTasksAndInfos(EnvWithTasks):
    """Its infos hold its steps and, in a dict, its action; episodes have three steps."""

    def step(self, action):
        *results, _ = super().step(action)
        infos = {"steps": self.steps, "of": {"action": float(action[0])}}
        if self.steps == 2:
            infos["second"] = np.arange(self.task, self.task + 3)
        return *results, infos


@pytest.mark.parametrize("num_workers", [0, 2])
def test_step_recv_returns_all_results_of_a_step(num_workers):
    options = {"vector_kwargs": {"num_workers": num_workers, "groups": 3}, "min_envs": 1}
    make = functools.partial(EnvWithTasksAndInfos, "c")
    keys = ["steps", "of", "second"]
    with pysampler.MultiTaskSampler(make, policy, num_envs=6, info_keys=keys, **options) as one:
        one.begin(7, tasks=[1, 2, 3])
        made = np.zeros(6, int)
        sent = np.zeros(6)
        while (ready := one.step_recv(timeout=0.01)) is not None:
            for row, env in enumerate(ready.envs):
                steps = (made[env] - 1) % 3 + 1 if made[env] else 0  # 0: only reset so far
                task = one.tasks[ready.tasks[row]]
                reward = 100 * task + steps + sent[env] if steps else 0.0
                assert (ready.rewards[row], ready.truncated[row]) == (reward, steps == 3)
                assert not ready.terminated[row]
                # After an episode's end, the observation is the next episode's.
                assert ready.observations[row].tolist() == [task, steps % 3]
                infos = ready.infos
                if steps:
                    assert (infos["steps"][row], infos["_steps"][row]) == (steps, True)
                    assert infos["of"]["action"][row] == sent[env]
                if steps == 2:
                    assert infos["second"][row].tolist() == [task, task + 1, task + 2]
                elif "second" in infos:
                    assert not infos["_second"][row]
            actions = np.arange(len(ready.envs), dtype=float)
            sent[ready.envs] = actions
            made[ready.envs] += 1
            one.step_send(actions[:, None], {"task_index": ready.tasks})
        assert made.tolist() == [7] * 6


@pytest.mark.parametrize("num_workers", [0, 2])
def test_step_send_may_answer_some_envs(num_workers):
    """The other envs are received again; a group steps once all its envs have actions."""
    options = {"vector_kwargs": {"num_workers": num_workers, "groups": 3 // (num_workers or 1)}}
    with sampler(min_envs=1, **options) as one:
        expected = one.sample(4, tasks=[1, 2, 3]).copy()
        one.begin(4, tasks=[1, 2, 3])
        answered = np.zeros(6, int)
        turn = 0
        while (ready := one.step_recv(timeout=0.01)) is not None:
            turn += 1
            chosen = ready.envs[turn % 2 :: 2]  # every other env
            if not len(chosen):
                chosen = ready.envs
            answered[chosen] += 1
            extras = {"task_index": one._task_of[chosen]}
            one.step_send(np.zeros((len(chosen), 1)), extras, envs=chosen)
            if len(chosen) < len(ready.envs):
                with pytest.raises(ValueError, match="does not wait for one"):
                    one.step_send(np.zeros((len(chosen), 1)), extras, envs=chosen)
        assert answered.tolist() == [4] * 6
        rewards = [e.rewards.tolist() for some in one.collect().episodes for e in some]
        assert sorted(rewards) == sorted(expected.rewards.T.tolist())
        one.begin(2, tasks=[1])
        ready = one.step_recv()
        with pytest.raises(ValueError, match="two actions for the same env"):
            one.step_send(np.zeros((2, 1)), {"task_index": np.zeros(2, int)}, [0, 0])
        with pytest.raises(TypeError, match="indices of dtype"):
            one.step_send(np.zeros((2, 1)), {"task_index": np.zeros(2, int)}, [0.5, 1])


def test_an_unfinished_sample_by_hand_is_dropped():
    with sampler() as one:
        one.begin(5, tasks=[1, 2])
        ready = one.step_recv()
        one.step_send(np.zeros((len(ready.envs), 1)), {"task_index": ready.tasks})
        with pytest.raises(ValueError, match="cannot collect: there is no complete sample"):
            one.collect()
        with pytest.raises(ValueError, match="no env waits"):
            one.step_send(np.zeros((6, 1)))
        rollout = one.sample(4, tasks=[5])
        assert (rollout.observations[:, :, 0] == 5).all()


@pytest.mark.slow
def test_bad_arguments_are_refused_before_any_step():
    with sampler() as one:
        one.sample(2, tasks=[1, 2])
        before = one.envs.stats().steps.count.sum()
        for tasks, error, text in (
            ([1, 2, 3, 4], ValueError, "4 tasks, expected 6, one for each env, or a divisor"),
            ([], ValueError, "0 tasks, expected 6"),
            ("ab", TypeError, "str, expected a list"),
            (3, TypeError, "int, expected a list"),
        ):
            with pytest.raises(error, match=text):
                one.sample(2, tasks=tasks)
        for length in (0, -1, 2.5, True):
            with pytest.raises(ValueError, match="max_length"):
                one.sample(length)
        with pytest.raises(ValueError, match=r"shape \(2, 1\), expected \(6, 1\)"):
            one.begin(3)
            one.step_recv()
            one.step_send(np.zeros((2, 1)), {"task_index": np.zeros(2, int)})
        assert one.envs.stats().steps.count.sum() == before
        assert one.sample(2, tasks=[3]).rewards.shape == (2, 6)
    with pytest.raises(pysampler.errors.ClosedError):
        one.sample(2)
    envs = pysampler.VectorEnv([EnvWithTasks] * 2, num_workers=1)
    with pytest.raises(TypeError, match="env 0 does not take tasks.*TaskWrapper"):
        pysampler.MultiTaskSampler(envs, policy)
    with pytest.raises(ValueError, match="num_envs is for envs to make"):
        pysampler.MultiTaskSampler(envs, policy, num_envs=3)
    with pytest.raises(TypeError, match="observations, tasks, params"):
        pysampler.MultiTaskSampler(EnvWithTasks, lambda observations: observations, num_envs=1)
    envs.close()
    for seed in (-3, "x", 2.5):
        with pytest.raises(
            ValueError, match=f"cannot sample tasks: seed {seed!r}, expected a whole"
        ):
            sampler(seed=seed)
    with pytest.raises(ValueError, match="cannot sample tasks: timeout 'x', expected seconds"):
        sampler(timeout="x")
    with sampler(seed=np.int64(3)) as one, pytest.raises(ValueError, match="tasks: count 0"):
        one.sample_tasks(0)
    with pytest.raises(pysampler.errors.EnvError, match="no method sample_tasks"):
        pysampler.MultiTaskSampler("CartPole-v1", policy, num_envs=2)


def test_a_failed_sample_leaves_nothing_to_collect():
    envs = pysampler.VectorEnv([lambda: TaskWrapper(EnvWithTasks())] * 4, num_workers=2)
    with envs, pysampler.MultiTaskSampler(envs, policy) as one:
        one.sample(3, tasks=[8, 9])
        with pytest.raises(ValueError, match="max_length 0"):
            one.sample(0, tasks=[1, 2])
        assert one.collect().tasks == [8, 9]  # no sample was begun
        one._end_rollouts()
        with pysampler.Rollouts(envs, lambda seen: np.zeros((len(seen), 1)), 2):
            for tasks in ([1, 2], None):
                with pytest.raises(AlreadyPendingCallError):
                    one.sample(3, tasks=tasks)
                with pytest.raises(ValueError, match="there is no complete sample"):
                    one.collect()
        one.sample(3, tasks=[3])
        assert [len(some) for some in one.collect().episodes] == [4]


@pytest.mark.slow
def test_sampling_continues_after_a_handler_raises_at_the_end_of_a_sample():
    with sampler() as one:
        lengths = itertools.cycle([2, 3])
        one.sample(next(lengths), tasks=[1, 2])

        def check(result, where):
            tasks = [one.envs.stats().steps.count.sum(), -1]
            one.sample(next(lengths), tasks=tasks)
            for task, some in zip(tasks, one.collect().episodes, strict=True):
                assert all((episode.observations[:, 0] == task).all() for episode in some), where

        ending = (
            *("_end_rollouts", "close", "let_go", "_give_back", "_end", "take_back", "drop_work"),
        )
        assert at_each_point(lambda: one.sample(next(lengths)), check, only=ending) > 20


class SlowSampleTasks(EnvWithTasks):
    """sample_tasks creates a file and waits for another one."""

    def __init__(self, folder):
        super().__init__()
        self.folder = folder

    def sample_tasks(self, count):
        (self.folder / "drawing").touch()
        while not (self.folder / "go on").exists():
            time.sleep(0.001)
        return super().sample_tasks(count)


def test_sampling_continues_after_ctrl_c_in_sample_tasks(tmp_path):
    make = functools.partial(SlowSampleTasks, tmp_path)
    main = threading.get_ident()

    def interrupt():
        while not (tmp_path / "drawing").exists():
            time.sleep(0.001)
        signal.pthread_kill(main, signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    with pysampler.MultiTaskSampler(make, policy, num_envs=2, num_workers=1) as one:
        thread.start()
        with pytest.raises(KeyboardInterrupt):
            one.sample_tasks(2)
        thread.join()
        (tmp_path / "go on").touch()
        assert one.sample(3, tasks=[1, 2]).observations[0, :, 0].tolist() == [1, 2]
        assert len(one.sample_tasks(2)) == 2


def with_generators(observations, tasks, params, generators):
    return np.stack([one.random(1) for one in generators])


def test_a_seeded_run_repeats_with_any_lengths():
    runs = []
    for _ in range(2):
        options = {"num_envs": 2, "seed": 3, "vector_kwargs": {"num_workers": 1}}
        with pysampler.MultiTaskSampler(EnvWithTasks, with_generators, **options) as one:
            runs.append([one.sample(length, tasks=[1]).actions.copy() for length in (4, 5, 4)])
    for first, second in zip(*runs, strict=True):
        np.testing.assert_array_equal(first, second)
    assert len(np.unique(np.concatenate(runs[0]))) == 26


def test_received_observations_are_copies():
    with sampler() as one:
        one.begin(3, tasks=[1, 2, 3])
        while (ready := one.step_recv()) is not None:
            ready.observations[...] = 99
            one.step_send(np.zeros((len(ready.envs), 1)), {"task_index": ready.tasks})
        for episodes in one.collect().episodes:
            for episode in episodes:
                assert (episode.observations < 99).all()


def test_a_given_vector_env_is_used_and_returned():
    envs = pysampler.VectorEnv([lambda: TaskWrapper(EnvWithTasks())] * 4, num_workers=2)
    with pysampler.MultiTaskSampler(envs, policy, min_envs=1) as one:
        assert one.sample(3, tasks=[8, 9]).observations[0, :, 0].tolist() == [8, 8, 9, 9]
    assert envs.reset()[0].shape == (4, 2)
    envs.close()


def recurrent(observations, tasks, params, state):
    steps = np.zeros(len(observations)) if state is None else state
    return steps[:, None], {"state": steps + 1}


def test_policy_states_reset_with_each_sample():
    options = {"num_envs": 4, "vector_kwargs": {"num_workers": 2}, "min_envs": 1}
    make = functools.partial(EnvWithTasks, "t")
    with pysampler.MultiTaskSampler(make, recurrent, **options) as one:
        for _ in range(2):
            rollout = one.sample(5, tasks=[1])
            assert rollout.state.T.tolist() == [[0, 1, 2, 0, 1]] * 4


def toward(observations, tasks, params):
    return params[tasks] - observations


def goals_of(tasks):
    return np.array([task["goal"] for task in tasks], np.float32)


@pytest.mark.slow
def test_interrupted_tasks_are_set_again():
    made = pysampler.MultiTaskSampler("Navigation2D-v0", toward, num_envs=4, seed=1)
    with made as sampler:
        tasks = sampler.sample_tasks(4)
        sampler.sample(5, params=goals_of(tasks), tasks=tasks)
        for n in points(5):
            others = sampler.sample_tasks(4)
            reached, _, where = at_point(n, lambda others=others: sampler._set_tasks(others))
            sampler.sample(5, params=goals_of(sampler.tasks))
            reported = [task["goal"] for task in sampler.collect().tasks]
            sampler._rollouts.pause()
            actual = sampler.envs.apply(lambda env: env.unwrapped.goal)
            assert np.allclose(reported, actual), where
            if not reached:
                break


@pytest.mark.parametrize("name", ["rewards", "task", "mask", "offsets", "last_observations"])
def test_extras_named_like_collected_fields_are_refused(name):
    def clashing(observations, tasks, params):
        return policy(observations, tasks, params)[0], {name: np.zeros(len(observations))}

    with (
        pysampler.MultiTaskSampler(EnvWithTasks, clashing, num_envs=2, num_workers=0) as one,
        pytest.raises(ValueError, match=f"the policy's extra {name!r} has the name of a field"),
    ):
        one.sample(3, params=np.zeros(2), tasks=[10, 20])


@pytest.mark.slow
def test_sample_tasks_works_after_an_interrupt():
    with sampler() as one:
        one.sample(3)

        def check(result, where):
            assert len(one.sample_tasks(2)) == 2, where

        assert at_each_point(lambda: one.sample_tasks(2), check) > 20
        one.sample(3)


class Gated(EnvWithTasks):
    """Its step with a positive action waits until a file exists."""

    def __init__(self, folder):
        super().__init__()
        self.folder = folder

    def step(self, action):
        while action[0] > 0 and not (self.folder / "go on").exists():
            time.sleep(0.001)
        return super().step(action)


def test_ready_envs_are_received_while_another_steps(tmp_path):
    make = functools.partial(Gated, tmp_path)
    with pysampler.MultiTaskSampler(make, policy, num_envs=3, num_workers=3) as one:
        one.begin(4, tasks=[1, 2, 3])
        assert one.step_recv().envs.tolist() == [0, 1, 2]
        one.step_send(np.ones((1, 1)), {"task_index": np.zeros(1, int)}, envs=[0])
        for _ in range(3):  # env 0 is still stepping
            assert one.step_recv(timeout=0.01).envs.tolist() == [1, 2]
        (tmp_path / "go on").touch()
        assert one.step_recv().envs.tolist() == [0, 1, 2]


def test_step_recv_uses_the_timeout_of_the_sampler(tmp_path):
    make = functools.partial(Gated, tmp_path)
    with pysampler.MultiTaskSampler(make, policy, num_envs=2, num_workers=2, timeout=0.01) as one:
        one.begin(4, tasks=[1, 2])
        while len(one.step_recv().envs) < 2:
            pass
        one.step_send(np.ones((1, 1)), {"task_index": np.zeros(1, int)}, envs=[0])
        assert one.step_recv().envs.tolist() == [1]  # env 0 is still stepping
        (tmp_path / "go on").touch()


def test_env_kwargs_reach_each_env():
    options = {"num_envs": 2, "num_workers": 1, "env_kwargs": {"ends": "t"}}
    with pysampler.MultiTaskSampler(EnvWithTasks, policy, **options) as one:
        assert one.sample(3, tasks=[1]).terminated[-1].all()
        with pytest.raises(ValueError, match="env_kwargs is for envs to make, not for"):
            pysampler.MultiTaskSampler(one.envs, policy, env_kwargs={"ends": "t"})


def test_step_recv_raises_where_no_sample_is_under_way():
    with sampler() as one:
        with pytest.raises(ValueError, match=r"no sample is under way; call begin\(\) first"):
            one.step_recv()
        one.begin(5, tasks=[1, 2, 3])
        one.sample_tasks(3)
        with pytest.raises(ValueError, match="no sample is under way"):
            one.step_recv()


def test_floats_left_out_of_step_send_are_nan():
    def with_log_probs(observations, tasks, params):
        return np.zeros((len(observations), 1)), {"log_probs": np.zeros(len(observations))}

    with pysampler.MultiTaskSampler(EnvWithTasks, with_log_probs, num_envs=2, num_workers=1) as one:
        one.begin(2, tasks=[1])
        for extras in (None, {"log_probs": np.ones(2)}):
            one.step_recv()
            one.step_send(np.zeros((2, 1)), extras)
        assert one.step_recv() is None
        [episodes] = one.collect().episodes
        for episode in episodes:
            np.testing.assert_array_equal(episode.extras["log_probs"], [np.nan, 1])


def test_integers_left_out_of_step_send_are_named():
    with sampler(2) as one:
        one.begin(2, tasks=[1])
        one.step_recv()
        with pytest.raises(ValueError, match="cannot send actions: extras have no 'task_index'"):
            one.step_send(np.zeros((2, 1)))
        one.step_send(np.zeros((2, 1)), {"task_index": np.zeros(2, int)})


def test_wrong_env_kwargs_are_refused():
    with pytest.raises(TypeError, match="cannot sample tasks: env_kwargs 5, expected a dict"):
        sampler(2, env_kwargs=5)


def test_simulations_that_take_tasks_need_no_env_each():
    def policy(observations, tasks, params):
        return np.zeros((len(observations), 6), np.float32)

    with (
        pysampler.make_vec("HalfCheetahDir-v5", 16, num_workers=0, native=True) as envs,
        pysampler.MultiTaskSampler(envs, policy, seed=1) as one,
    ):
        assert one.sample(3, tasks=one.sample_tasks(4)).steps == 48
        made = envs._pool._inline._server.envs
        assert [env is not None for env in made] == [True] + [False] * 15
