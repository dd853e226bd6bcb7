"""Worker recovery: replacing lost workers, and time-outs for envs that hang."""

import functools
import os
import signal

import gymnasium as gym
import numpy as np
import pytest
import told_envs
from gymnasium import spaces
from gymnasium.vector import AutoresetMode
from suspended import suspended
from told_envs import SmallEnv
from vectors import begun

import pysampler
from pysampler._workers.recovery import Recovery
from pysampler.errors import EnvError, EnvTimeoutError, WorkerLostError

MODES = list(AutoresetMode)
NEXT_STEP, SAME_STEP, DISABLED = MODES


class Counting(SmallEnv):
    """Reports the task of its options, which can make a reset end its process, as a call can."""

    def begins(self):
        if self.options is None:
            return {}
        if self.options.get("dies"):
            self.dies()
        return {"task": self.options.get("task", -1)}

    def dies(self):
        os._exit(9)


def make(count=6, **kwargs):
    given = {"num_workers": 3, "on_worker_loss": "restart", **kwargs}
    return pysampler.VectorEnv([Counting] * count, **given)


def step(envs, **actions):
    """Step all envs with action 0, except those given as env_3=action."""
    all_actions = np.zeros(envs.num_envs, np.int64)
    for name, action in actions.items():
        all_actions[int(name[4:])] = action
    return envs.step(all_actions)


@pytest.mark.parametrize("options", [{}, {"groups": 2}, {"frames": 1}])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("death", ["SEGV", "OS_EXIT", "KILL"])
def test_worker_loss_in_a_step_truncates_only_its_episodes(death, mode, options):
    with begun(make(autoreset_mode=mode, **options), seed=0) as envs:
        for _ in range(3):
            step(envs)
        observations, rewards, terminated, truncated, infos = step(
            envs, env_2=getattr(told_envs, death)
        )
        lost = np.array([False, False, True, True, False, False])
        assert truncated.tolist() == infos["worker_lost"].tolist() == lost.tolist()
        assert infos["_worker_lost"].tolist() == lost.tolist()
        assert not terminated.any()
        assert rewards.tolist() == (~lost).tolist()
        assert observations[~lost].tolist() == [[4, env] for env in (0, 1, 4, 5)]
        last_seen = [[3, 2], [3, 3]]
        if mode == SAME_STEP:
            assert [o.tolist() for o in infos["final_obs"][lost]] == last_seen
            assert infos["final_info"]["worker_lost"].tolist() == lost.tolist()
        else:
            assert observations[lost].tolist() == last_seen
            if mode == NEXT_STEP:
                observations, rewards, _, truncated, infos = step(envs)
                assert rewards.tolist() == (~lost).tolist()
                assert not truncated.any()
                assert infos == {}
            else:
                observations = envs.reset(options={"reset_mask": lost})[0]
        assert observations[lost, 0].tolist() == [0, 0]
        seeds = observations[lost, 1].tolist()
        assert len(set(seeds)) == 2
        assert min(seeds) > 5  # fresh seeds
        observations = step(envs)[0]
        assert observations[lost].tolist() == [[1, seed] for seed in seeds]
        assert observations[~lost, 1].tolist() == [0, 1, 4, 5]
        assert envs.stats().losses.tolist() == [0, 1, 0]


def test_seeds_of_replaced_envs_follow_from_the_reset_seed():
    def seeds():
        with begun(make(autoreset_mode=SAME_STEP), seed=3) as envs:
            return [step(envs, env_0=told_envs.KILL)[0][:2, 1].tolist() for _ in range(2)]

    first = seeds()
    assert first == seeds()
    assert first[0] != first[1]


def test_loss_of_an_idle_worker_truncates_its_next_step():
    with begun(make(groups=2), seed=0) as envs:
        envs.send(np.zeros(6, np.int64))
        envs.recv()
        os.kill(envs._pool.pids[0], signal.SIGKILL)
        envs.send(np.zeros(4, np.int64), [2, 3, 4, 5])
        envs.recv()
        envs.send(np.zeros(2, np.int64), [0, 1])
        observations, rewards, _, truncated, infos = envs.recv()
        assert sorted(infos["env_id"]) == [0, 1]
        assert truncated.tolist() == [True, True]
        assert observations[:, 0].tolist() == [1, 1]
        assert rewards.tolist() == [0, 0]
        assert step(envs)[0][:2, 0].tolist() == [0, 0]


@pytest.mark.parametrize("mode", MODES)
def test_replacement_worker_repeats_an_unfinished_reset(mode, tmp_path):
    """It uses the same seeds, and resets all its envs: all of them are new."""
    with begun(make(autoreset_mode=mode), seed=0) as envs:
        step(envs)
        pid = envs._pool.pids[1]
        os.kill(pid, signal.SIGKILL)
        observations, infos = envs.reset(seed=10)
        assert observations.tolist() == [[0, 10 + env] for env in range(6)]
        assert infos["worker_lost"].tolist() == [False, False, True, True, False, False]
        assert step(envs)[0][:, 0].tolist() == [1] * 6


@pytest.mark.parametrize("mode", [NEXT_STEP, DISABLED])
def test_a_masked_reset_returns_the_last_observations_of_lost_envs(mode):
    with begun(make(autoreset_mode=mode), seed=0) as envs:
        step(envs)
        lost = step(envs, env_2=told_envs.KILL)[0]
        mask = np.array([True, False, False, False, False, True])
        observations, infos = envs.reset(options={"reset_mask": mask})
        assert observations[1:5].tolist() == lost[1:5].tolist() == [[2, 1], [1, 2], [1, 3], [2, 4]]
        assert "worker_lost" not in infos


@pytest.mark.parametrize("mode", [NEXT_STEP, SAME_STEP])
def test_a_masked_reset_after_a_loss_returns_what_the_envs_observe(mode):
    """Env 2 has ended, env 3 has not: the reset of env 0 finds a block that is partly fresh."""
    with begun(make(num_workers=1, autoreset_mode=mode), seed=0) as envs:
        seen = step(envs, env_2=told_envs.END)[0].copy()
        os.kill(envs._pool.pids[0], signal.SIGKILL)
        mask = np.array([True, False, False, False, False, False])
        observations, infos = envs.reset(options={"reset_mask": mask})
        starts = [True, True, mode == SAME_STEP, True, True, True]
        assert infos["worker_lost"].tolist() == starts
        rewards = step(envs)[1]  # in which env 2 begins, as it would have without the loss
        assert envs.get_attr("steps") == tuple(map(int, starts))
        assert rewards.tolist() == [*map(int, starts)]
        assert observations[:, 0].tolist() == [0 if one else seen[2, 0] for one in starts]


class Kept(Counting):
    def get_state(self):
        return self.steps, self.seed

    def set_state(self, state):
        self.steps, self.seed = state


@pytest.mark.parametrize("kind", [Kept, "CartPole-v1"])
def test_masked_reset_after_a_loss_keeps_a_state_that_was_set(kind):
    options = {"num_workers": 1, "on_worker_loss": "restart"}
    with pysampler.make_vec(kind, 3, **options) as envs, pysampler.make_vec(kind, 3) as other:
        for one in (envs, other):
            one.reset(seed=1)
            one.step(np.zeros(3, int))
        states, expected = envs.get_state(), other.step(np.zeros(3, int))[0][0]
        os.kill(envs._pool.pids[0], signal.SIGKILL)
        with pytest.raises(WorkerLostError):
            envs.set_state(states[:1], [0])
        envs.set_state(states[:1], [0])
        _, infos = envs.reset(options={"reset_mask": np.array([False, True, False])})
        assert infos["worker_lost"].tolist() == [False, True, True]
        assert envs.step(np.zeros(3, int))[0][0].tolist() == expected.tolist()


class Rescaled(Counting):
    """Counts in a wrapper that pysampler runs on arrays of many envs."""

    observation_space = spaces.Box(0, 1000, (2,), np.float64)


def rescaled():
    return gym.wrappers.RescaleObservation(Rescaled(), np.zeros(2), np.full(2, 2000.0))


@pytest.mark.parametrize("ends_batch", [False, True])
def test_a_masked_reset_returns_the_last_observations_of_wrapped_lost_envs(ends_batch):
    with begun([rescaled] * 16, seed=0, num_workers=1, on_worker_loss="restart") as envs:
        seen = envs.step(np.full(16, told_envs.END))[0].copy()
        os.kill(envs._pool.pids[0], signal.SIGKILL)
        with pytest.raises(WorkerLostError):
            envs.get_attr("steps")
        if ends_batch:
            envs.set_attr("extra", 1)
        mask = np.arange(16) == 0
        observations = envs.reset(options={"reset_mask": mask})[0]
        assert observations[1:].tolist() == seen[1:].tolist()


def test_a_loss_in_a_first_chunk_ends_no_episode_twice():
    with begun(make(num_workers=1), seed=0) as envs:
        step(envs, env_2=told_envs.END)
        actions = np.zeros((6, 3), np.int64)
        actions[3] = told_envs.KILL
        *_, truncated, infos = envs.step_chunk(actions)
        assert truncated.tolist() == [env != 2 for env in range(6)]
        assert infos["steps"].tolist() == [0] * 6


def test_a_loss_in_the_step_that_begins_the_next_episode_ends_none():
    with begun(make(autoreset_mode=NEXT_STEP), seed=0) as envs:
        terminated = step(envs, env_2=told_envs.END)[2]
        assert terminated.tolist() == [False, False, True, False, False, False]
        *_, truncated, infos = step(envs, env_3=told_envs.KILL)
        assert truncated.tolist() == [False, False, False, True, False, False]
        assert infos["worker_lost"].tolist() == truncated.tolist()
        assert step(envs)[0][:, 0].tolist() == [3, 3, 1, 0, 3, 3]


def test_worker_loss_in_a_call_raises_and_stepping_continues():
    with begun(make(), seed=0) as envs:
        said = r"did not answer: worker \d .* exit code 9 while calling dies\(\) of"
        with pytest.raises(WorkerLostError, match=said):
            envs.apply(Counting.dies, envs=[2])
        observations, _, _, truncated, infos = step(envs)
        assert truncated.tolist() == [False, False, True, True, False, False]
        assert infos["worker_lost"].tolist() == truncated.tolist()
        assert observations[:2].tolist() == [[1, 0], [1, 1]]


def test_replaced_envs_keep_their_options():
    with begun(make(autoreset_mode=SAME_STEP), seed=0) as envs:
        envs.set_options([2], {"task": 5})
        infos = step(envs, env_3=told_envs.KILL)[4]
        assert infos["task"].tolist() == [0, 0, 5, 0, 0, 0]
        assert infos["options_version"].tolist() == [0, 0, 1, 0, 0, 0]


@pytest.mark.parametrize(
    "context", ["forkserver", "fork", pytest.param("spawn", marks=pytest.mark.slow)]
)
def test_every_context_replaces_lost_workers(context):
    with begun(make(context=context), seed=0) as envs:
        assert step(envs, env_0=told_envs.KILL)[3].tolist() == [True] * 2 + [False] * 4
        assert step(envs)[0][:2, 0].tolist() == [0, 0]


def test_error_after_too_many_losses_lists_the_earlier_ones():
    envs = begun(make(autoreset_mode=SAME_STEP, max_restarts=2))
    step(envs, env_4=told_envs.OS_EXIT)
    step(envs, env_0=told_envs.KILL)
    step(envs, env_5=told_envs.KILL)
    with pytest.raises(WorkerLostError, match="it was replaced before") as caught:
        step(envs, env_4=told_envs.SEGV)
    story = str(caught.value)
    assert story.count("worker 2") == 3
    assert [how in story for how in ("signal 11", "signal 9", "exit code 7")] == [True] * 3
    assert envs.closed


@pytest.mark.parametrize("receives", [False, True])
def test_error_after_too_many_hangs_lists_the_earlier_ones(receives):
    options = {"max_restarts": 1, "restart_window": 60, "autoreset_mode": SAME_STEP}
    envs = begun(make(step_timeout=0.3, on_hang="restart", **options))
    step(envs, env_4=told_envs.HANG)
    with pytest.raises(WorkerLostError, match="killed, since env 5 .* it was replaced") as caught:
        if receives:
            envs.send(np.array([0] * 5 + [told_envs.HANG]))
            while True:
                envs.recv()
        step(envs, env_5=told_envs.HANG)
    assert (caught.value.env, caught.value.worker) == (5, 2)
    assert envs.closed


@pytest.mark.slow
def test_an_env_that_hangs_each_time_is_given_up_whatever_the_window():
    options = {"step_timeout": 2.0, "max_restarts": 2, "restart_window": 3.0}
    envs = begun(make(on_hang="restart", **options))
    with pytest.raises(WorkerLostError, match="it was replaced before"):
        for _ in range(9):
            step(envs, env_4=told_envs.HANG)
    assert envs.closed


class DiesOnceLost(Counting):
    """Ends its process while it is made, if another process has made it before."""

    def __init__(self, path):
        super().__init__()
        if path.exists():
            os._exit(7)
        path.touch()


def test_workers_that_end_while_they_make_their_envs_are_given_up_whatever_the_window(tmp_path):
    envs = begun(
        [functools.partial(DiesOnceLost, tmp_path / "made")],
        num_workers=1,
        on_worker_loss="restart",
        max_restarts=2,
        restart_window=1e-6,
    )
    with pytest.raises(WorkerLostError, match="exit code 7 .*it was replaced before"):
        step(envs, env_0=told_envs.KILL)
    assert envs.closed


@pytest.mark.parametrize("recycles", [False, True])
def test_large_answers_of_workers_that_replace_others_arrive(recycles):
    options = {"recycle_after": 1} if recycles else {"on_worker_loss": "restart"}
    with begun([Ends if recycles else Counting] * 2, seed=1, num_workers=1, **options) as envs:
        pid = envs._pool.pids[0]
        if not recycles:
            step(envs, env_1=told_envs.KILL)
        for _ in range(8):
            step(envs)
        assert envs._pool.pids[0] != pid
        assert [*map(len, envs.apply(lambda _: bytes(100_000)))] == [100_000] * 2
        assert not envs._pool._processes.children[0].connection.poll()  # nothing is left unread


class Ends(Counting):
    def step(self, action):
        observation, reward, _, truncated, info = super().step(action)
        return observation, reward, True, truncated, info


def test_max_restarts_0_raises_at_the_first_loss():
    envs = begun(make(autoreset_mode=SAME_STEP, max_restarts=0, restart_window=60))
    with pytest.raises(WorkerLostError, match=r"signal 9 while stepping envs 0-1, at env 0$"):
        step(envs, env_0=told_envs.KILL)
    assert envs.closed


class OnlyOnce(Counting):
    def __init__(self, path):
        super().__init__()
        path.touch(exist_ok=False)


def test_replacement_that_cannot_start_raises_worker_lost_error(tmp_path):
    envs = pysampler.VectorEnv(
        [functools.partial(OnlyOnce, tmp_path / "there")], num_workers=1, on_worker_loss="restart"
    )
    envs.reset()
    with pytest.raises(WorkerLostError, match="could not start: FileExistsError"):
        envs.step(np.array([told_envs.KILL]))
    assert envs.closed


@pytest.mark.filterwarnings("ignore:.*ERROR")
def test_env_error_does_not_replace_the_worker():
    with begun(make()) as envs:
        pids = envs._pool.pids
        with pytest.raises(EnvError, match="raised SystemExit"):
            step(envs, env_1=told_envs.EXIT)
        assert envs._pool.pids == pids


# -- envs that do not answer ----------------------------------------------------------------------


@pytest.mark.parametrize("hang", ["HANG", "HANG_IN_C"])
def test_step_timeout_names_the_env(hang):
    envs = begun(make(step_timeout=0.3, num_workers=2))
    envs.step_async(np.array([0, 0, 0, 0, getattr(told_envs, hang), 0]))
    for _ in range(2):  # the call stays pending
        with pytest.raises(EnvTimeoutError, match=r"env 4 in worker 1 .* step_timeout is 0.3 s"):
            envs.step_wait()
    assert envs.late == [4]
    with pytest.warns(UserWarning, match="pending"):
        envs.close(terminate=True)


def test_step_timeout_names_the_env_while_others_keep_stepping():
    with make(step_timeout=0.3, num_workers=2) as envs:
        envs.async_reset()
        envs.recv()
        envs.send(np.array([0, 0, 0, 0, told_envs.HANG, 0]))
        with pytest.raises(EnvTimeoutError, match="env 4 in worker 1"):
            while True:
                ids = envs.recv(min_envs=1)[4]["env_id"]
                envs.send(np.zeros(len(ids), np.int64), ids)
        assert len(envs.recv(min_envs=1)[0])  # the others still answer
        with pytest.warns(UserWarning, match="pending"):
            envs.close(terminate=True)


def test_worker_stopped_before_a_reset_exceeds_step_timeout():
    with begun(make(step_timeout=0.3, num_workers=2, on_hang="restart")) as envs:
        with suspended([envs._pool.pids[1]]):
            envs.reset()
        assert envs.stats().losses.tolist() == [0, 1]


@pytest.mark.parametrize("on_hang", ["raise", "restart"])
def test_worker_stopped_between_steps_exceeds_step_timeout(on_hang):
    with begun(make(step_timeout=0.3, num_workers=2, on_hang=on_hang)) as envs:
        step(envs)
        stopped = envs._pool.pids[1]
        with suspended([stopped]):
            if on_hang == "restart":
                assert envs.step(np.zeros(6, np.int64))[3].tolist() == [False] * 3 + [True] * 3
                assert envs.stats().losses.tolist() == [0, 1]
            else:
                with pytest.raises(EnvTimeoutError, match="env 3 in worker 1"):
                    envs.step(np.zeros(6, np.int64))
        if on_hang == "raise":
            envs.step_wait()


def test_worker_stopped_before_a_call_exceeds_step_timeout():
    with begun(make(step_timeout=0.3, num_workers=2)) as envs:
        with suspended([envs._pool.pids[1]]), pytest.raises(EnvTimeoutError, match="env 3 in"):
            envs.get_attr("spec")
        assert envs.call_wait() == (None,) * 6


def test_on_hang_wait_warns_and_keeps_waiting(tmp_path):
    envs = begun(make(step_timeout=0.3, on_hang="wait"))
    envs.step_async(np.array([0, told_envs.HANG, 0, 0, 0, 0]))
    with (
        pytest.warns(UserWarning, match="env 1 in worker 0"),
        pytest.raises(TimeoutError),
    ):
        envs.step_wait(timeout=0.7)
    with pytest.warns(UserWarning, match="pending"):
        envs.close(terminate=True)


@pytest.mark.parametrize("hang", ["HANG", "HANG_IN_C"])
def test_on_hang_restart_replaces_the_worker(hang):
    with begun(make(step_timeout=0.3, on_hang="restart", on_worker_loss="raise"), seed=0) as envs:
        truncated, infos = step(envs, env_1=getattr(told_envs, hang))[3:]
        assert truncated.tolist() == infos["worker_lost"].tolist() == [True] * 2 + [False] * 4
        assert step(envs)[0].tolist()[2:] == [[2, env] for env in range(2, 6)]
        envs.send(np.array([0, 0, 0, told_envs.HANG, 0, 0]))
        assert envs.recv(min_envs=4)[4]["env_id"].tolist() != []
        while envs.pending:
            truncated = envs.recv(min_envs=1)[3]
        assert truncated.tolist() == [True, True]


def test_late_worker_is_replaced_even_if_interrupted_after_its_kill(monkeypatch):
    class Hit(Exception):  # noqa: N818
        pass

    replace, calls = Recovery._replace, []

    def hit_once(self, index, why=""):
        calls.append(index)
        if len(calls) == 1:
            raise Hit
        replace(self, index, why)

    monkeypatch.setattr(Recovery, "_replace", hit_once)
    with begun(make(step_timeout=0.3, on_hang="restart", on_worker_loss="raise"), seed=0) as envs:
        envs.step_async(np.array([0, told_envs.HANG, 0, 0, 0, 0]))
        with pytest.raises(Hit):
            envs.step_wait()
        assert envs.step_wait()[3].tolist() == [True] * 2 + [False] * 4


# -- closing, resets and final observations after a loss ------------------------------------------


class Closing(Counting):
    def __init__(self, path):
        super().__init__()
        self.path = path

    def close(self):
        self.path.touch()


@pytest.mark.parametrize("policy", ["raise", "restart"])
def test_close_reaches_other_workers_after_one_died(policy, tmp_path):
    """The other workers still close their envs."""
    paths = [tmp_path / str(i) for i in range(3)]
    fns = [functools.partial(Closing, path) for path in paths]
    with begun(fns, num_workers=3, on_worker_loss=policy) as envs:
        pid = envs._pool.pids[1]
        os.kill(pid, signal.SIGKILL)
        envs._pool._links.watch.wait()
    assert [path.exists() for path in paths] == [True, False, True]


def test_masked_reset_after_a_loss_also_resets_replaced_envs():
    with begun(make(autoreset_mode=DISABLED), seed=0) as envs:
        with pytest.raises(WorkerLostError):
            envs.apply(Counting.dies, envs=[2])
        mask = np.array([False, False, True, False, False, False])
        observations, infos = envs.reset(options={"reset_mask": mask})
        assert observations[:, 0].tolist() == [0] * 6
        assert infos["worker_lost"].tolist() == [False, False, True, True, False, False]
        assert step(envs)[0][:, 0].tolist() == [1] * 6


@pytest.mark.parametrize("frames", [1, 2, 3])
def test_final_obs_after_a_loss_is_right_while_frames_are_held(frames):
    """Large observations are views; a frame in use, or the last one, is not written next."""

    with pysampler.VectorEnv(
        [Large] * 2,
        num_workers=2,
        on_worker_loss="restart",
        frames=frames,
        autoreset_mode="SameStep",
    ) as envs:
        held = [envs.reset(seed=0)[0]]
        for turn in range(1, 8):
            last = told_envs.KILL if turn % 3 == 0 else 0
            observations, *_, infos = envs.step(np.array([0, last]))
            if turn % 3 == 0:
                assert (infos["final_obs"][1] == held[-1][1]).all()
                assert not (observations[1] == held[-1][1]).all()
            held.append(observations)
        assert [seen[0, 0] for seen in held] == list(range(8))


class Large(Counting):
    observation_space = spaces.Box(-1, 2**40, (1 << 13,), np.float64)

    def observe(self):
        observation = np.full(1 << 13, self.seed, np.float64)
        observation[0] = self.steps
        return observation
