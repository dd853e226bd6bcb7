"""Main envs: envs that step in the user's process beside workers, and the choice of how many."""

import contextlib
import functools
import gc
import os
import random
import signal
import time
import weakref
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from interrupts_in_tests import Counter, closing_while_pending, counters
from made_up import same
from scripted import Scripted
from vectors import alike, begun

import pysampler
from pysampler._vector import division, env_trial
from pysampler._vector.division import divide, fastest
from pysampler.errors import BusyError, ClosedError, EnvError, EnvTimeoutError, WorkerLostError
from pysampler.sync import usable_cpus


def scripted(count=5, **kwargs):
    fns = [lambda n=n: Scripted("...t..c"[n % 3 :]) for n in range(count)]
    return pysampler.VectorEnv(fns, **{"num_workers": 2, "main_envs": 2, **kwargs}), fns


@pytest.mark.parametrize("mode", list(AutoresetMode)[:2])
@pytest.mark.parametrize("kwargs", [{}, {"groups": 2}, {"copy": False}, {"num_workers": 1}])
def test_main_envs_return_the_same_results_as_sync_vector_env(mode, kwargs):
    ours, fns = scripted(autoreset_mode=mode, **kwargs)
    theirs = SyncVectorEnv(fns, autoreset_mode=mode)
    with contextlib.closing(ours), contextlib.closing(theirs):
        same(ours.reset(seed=3), theirs.reset(seed=3), "reset")
        for step in range(12):
            actions = np.full((5, 2), step, np.float32)
            same(ours.step(actions), theirs.step(actions), f"step {step}")
        ours.step_async(actions)
        same(ours.step_wait(), theirs.step(actions), "step_wait")
        assert ours.get_attr("life") == theirs.get_attr("life")
        ours.set_attr("life", [4, 5, 6, 7, 8])
        theirs.set_attr("life", [4, 5, 6, 7, 8])
        same(ours.step(actions), theirs.step(actions), "after set_attr")
        same(ours.reset(options={"a": 1}), theirs.reset(options={"a": 1}), "reset with options")


class Where(Scripted):
    """Can return the pid of its process."""

    def where(self):
        return os.getpid()


def test_main_envs_are_the_last_envs():
    with pysampler.VectorEnv([Where] * 5, num_workers=2, main_envs=2) as envs:
        here = [pid == os.getpid() for pid in envs.call("where")]
        assert here == [False, False, False, True, True]
        assert (envs.num_workers, envs.division.main_envs) == (2, 2)
        assert repr(envs) == "VectorEnv(Where, num_envs=5, num_workers=2, main_envs=2)"
        envs.reset()
        envs.step(np.zeros((5, 2), np.float32))
        stats = envs.stats()
        assert stats.steps.count.tolist() == [1] * 5
        assert stats.worker_of.tolist() == [0, 0, 1, 2, 2]


def test_send_and_recv_work_with_main_envs():
    with scripted(groups=2)[0] as envs:
        envs.async_reset(seed=0)
        ids = envs.recv()[4]["env_id"]
        assert sorted(ids) == [0, 1, 2, 3, 4]
        envs.send(np.zeros((1, 2), np.float32), [4])
        assert (envs.pending, envs.ready) == (1, 1)
        observations, _, _, _, infos = envs.recv()
        assert infos["env_id"].tolist() == [4]
        assert observations[:, 2].tolist() == [1]
        envs.send(np.zeros((4, 2), np.float32), [0, 1, 2, 3])
        first = envs.recv(1)[4]["env_id"]
        assert 3 in first  # it stepped within send()
        rest = [env for _ in range(3) if envs.pending for env in envs.recv()[4]["env_id"]]
        assert sorted([*first, *rest]) == [0, 1, 2, 3]


@pytest.mark.parametrize("env", [0, 4])
def test_errors_name_the_env(env):
    class Raises(Scripted):
        def step(self, action):
            if self.seed == env:
                raise RuntimeError("told to")
            return super().step(action)

    with begun([Raises] * 5, seed=0, num_workers=2, main_envs=2) as envs:
        with pytest.raises(EnvError, match=rf"env {env}.* raised RuntimeError stepping: told to"):
            envs.step(np.zeros((5, 2), np.float32))
        assert envs.pending == 0
        envs.reset(seed=5)
        assert envs.step(np.zeros((5, 2), np.float32))[0][:, 2].tolist() == [1] * 5


class Interrupts(Counter):
    """Raises SIGINT once, in its second step, if it is in the user's process."""

    parent = os.getpid()

    def step(self, action):
        if os.getpid() == self.parent and self.steps == 1 and not self.asked_already:
            self.asked_already = True
            signal.raise_signal(signal.SIGINT)
        return super().step(action)

    asked_already = False


@pytest.mark.parametrize("groups", [1, 2])
def test_step_interrupted_in_a_main_env_loses_the_envs_of_its_group_only(groups):
    Interrupts.parent = os.getpid()
    fns = [lambda n=n: (Interrupts if n == 4 else Counter)(n) for n in range(6)]
    with begun(fns, num_workers=2, main_envs=3, groups=groups) as envs:
        envs.step([0] * 6)
        with pytest.raises(KeyboardInterrupt):
            envs.step([0] * 6)
        observations, rewards, _, truncated, infos = envs.step_wait()
        lost = [n in ((3, 4, 5) if groups == 1 else (3, 4)) for n in range(6)]
        assert infos["worker_lost"].tolist() == truncated.tolist() == lost
        assert rewards.tolist() == [0 if one else 2 for one in lost]
        assert observations.tolist() == [[n, 1 if lost[n] else 2] for n in range(6)]
        assert infos["text"].tolist() == [None if lost[n] else f"{n} 2" for n in range(6)]
        assert [text is None for text in envs.step([0] * 6)[4]["text"]] == [False] * 6
        assert envs.get_attr("resets") == tuple(2 if one else 1 for one in lost)


class Killed(Counter):
    def step(self, action):
        if action == 9:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().step(action)


def test_lost_worker_is_replaced_while_main_envs_continue():
    fns = [lambda n=n: Killed(n, talks=False) for n in range(4)]
    with begun(fns, num_workers=2, main_envs=2, on_worker_loss="restart") as envs:
        envs.step([0] * 4)
        _, _, _, truncated, infos = envs.step([9, 0, 0, 0])
        assert truncated.tolist() == [True, False, False, False]
        assert infos["worker_lost"].tolist() == [True, False, False, False]
        assert envs.step([0] * 4)[0][:, 1].tolist() == [0, 3, 3, 3]
        assert envs.stats().losses.tolist() == [1, 0, 0]


def test_lost_worker_raises_with_main_envs():
    fns = [lambda n=n: Killed(n, talks=False) for n in range(4)]
    envs = begun(pysampler.VectorEnv(fns, num_workers=2, main_envs=2))
    with pytest.raises(WorkerLostError, match="worker 1"):
        envs.step([0, 9, 0, 0])
    assert envs.closed


class Waits(Counter):
    def step(self, action):
        if action == 9:
            signal.pause()
        return super().step(action)


@closing_while_pending
def test_step_timeout_names_a_worker_env_beside_main_envs():
    fns = [lambda n=n: Waits(n, talks=False) for n in range(4)]
    envs = begun(pysampler.VectorEnv(fns, num_workers=2, main_envs=2, step_timeout=0.2))
    for _ in range(3):  # the last one on the fast path
        envs.step([0] * 4)
    with pytest.raises(EnvTimeoutError, match="env 1 in worker 1"):
        envs.step([0, 9, 0, 0])
    envs.close(terminate=True)


def test_main_envs_reject_policies_in_workers():
    with scripted()[0] as envs:
        with pytest.raises(ValueError, match=r"cannot sample .* 2 of the envs live in this"):
            pysampler.Rollouts(envs, lambda obs: np.zeros((len(obs), 2)), 4, policy_in="workers")
        with pytest.raises(ValueError, match="cannot act with a policy in the workers: 2 of the"):
            pysampler.Actors(envs, lambda obs: np.zeros((len(obs), 2)))
        with pysampler.Rollouts(envs, lambda obs: np.zeros((len(obs), 2)), 4) as rollouts:
            assert next(rollouts).rewards.shape == (4, 5)


# -- num_workers="auto" and main_envs="auto" -------------------------------------------------------


@pytest.fixture
def _two_cpus(monkeypatch):
    costs = type("Costs", (), {"cpus": 2, "park_ns": 20_000})()
    monkeypatch.setattr(division._core, "usable_cpus", lambda: 2)
    monkeypatch.setattr(division._core, "wait_costs", lambda: costs)


@pytest.mark.usefixtures("_two_cpus")
def test_fastest_division_depends_on_step_time_and_cpus():
    def of(envs, seconds, cpus=2):
        chosen = fastest(envs, cpus, seconds)
        return chosen.num_workers, chosen.main_envs

    assert of(1, 1e-5) == (0, 1)
    assert of(64, 1e-5, cpus=1) == (0, 64)
    assert of(2, 1e-7) == (0, 2)  # nothing to gain
    assert of(8, 5e-6) == (1, 4)
    assert of(7, 30e-6) == (1, 3)  # the main process also sends and reads
    assert of(8, 10e-3) == (2, 0)  # as fast, and the main process stays free


def statistics_of(env_id):
    return gym.wrappers.RecordEpisodeStatistics(gym.make(env_id))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("make", "count", "workers"),
    [
        (functools.partial(gym.make, "CartPole-v1"), 512 * usable_cpus(), usable_cpus()),
        # A block of 16 takes about as long as one of 512.
        (functools.partial(gym.make, "CartPole-v1"), 16 * usable_cpus(), 1),
        (functools.partial(gym.make, "CartPole-v1"), 2, None),
        (functools.partial(statistics_of, "HalfCheetah-v5"), 8 * usable_cpus(), usable_cpus()),
        (functools.partial(statistics_of, "InvertedPendulum-v5"), 1, None),
    ],
)
def test_auto_keeps_envs_in_workers_that_may_step_them_together(make, count, workers, monkeypatch):
    if usable_cpus() < 2:
        pytest.skip("one CPU: no choice to make")
    # On a busy machine, waking a worker seems to take so long that none pays.
    costs = type("Costs", (), {"cpus": usable_cpus(), "park_ns": 20_000})()
    monkeypatch.setattr(division._core, "wait_costs", lambda: costs)
    with pysampler.VectorEnv([make] * count, num_workers="auto") as envs:
        by_kind = "workers may step envs of this kind together" in str(envs.division)
        assert by_kind == (workers is not None)
        if by_kind:
            assert (envs.num_workers, envs.division.main_envs) == (workers, 0)
            assert envs.stats().native
    with pysampler.VectorEnv([make] * count, num_workers="auto", native=False) as envs:
        assert "of this kind" not in str(envs.division)


@pytest.mark.parametrize(
    "option",
    [
        {"worker_init": int},
        {"step_timeout": 5.0},
        {"on_worker_loss": "restart"},
        {"recycle_after": 3},
    ],
    ids=str,
)
def test_auto_keeps_envs_in_workers_for_options_that_need_them(option):
    with pysampler.VectorEnv([Scripted] * 2, num_workers="auto", **option) as envs:
        assert (envs.num_workers, envs.division.main_envs) == (min(2, usable_cpus()), 0)


def test_auto_trial_is_reported_and_leaves_global_generators_alone():
    class Draws(Scripted):
        def __init__(self):
            super().__init__()
            random.random()
            np.random.rand()

    random.seed(1)
    np.random.seed(1)
    chosen = divide("auto", 0, [Draws] * 2, None)
    assert (random.random(), np.random.rand()) == (
        random.Random(1).random(),
        np.random.RandomState(1).rand(),
    )
    assert chosen.step_seconds > 0
    assert "a step of one env takes" in str(chosen)
    with pysampler.VectorEnv([Scripted] * 4, num_workers="auto") as envs:
        assert envs.division.num_workers == envs.num_workers
        assert envs.reset()[0].shape == (4, 4)
    with pysampler.VectorEnv([Scripted] * 4, main_envs="auto") as envs:
        assert envs.num_workers == 1
        assert 1 <= envs.division.main_envs <= 3


@pytest.mark.slow
def test_auto_trial_leaves_torchs_generator_alone():
    torch = pytest.importorskip("torch")

    class Draws(Scripted):
        def __init__(self):
            super().__init__()
            torch.rand(1)

    before = torch.get_rng_state()
    divide("auto", 0, [Draws] * 2, None)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("options", [{"worker_init": int}, {"step_timeout": 60}])
def test_auto_says_why_it_made_no_trial(options):
    with pysampler.VectorEnv([Scripted] * 2, num_workers="auto", **options) as envs:
        assert str(envs.division).endswith(
            "without a trial: worker_init, step_timeout, restarts and recycling need workers"
        )
        assert envs.num_workers > 0


def test_auto_says_that_workers_may_step_envs_together():
    pytest.importorskip("gymnasium.envs.mujoco", reason="native envs")
    with pysampler.make_vec("Swimmer-v5", 2, num_workers="auto") as envs:
        assert str(envs.division).endswith(
            "without a trial: workers may step envs of this kind together"
        )


class Slow(gym.Env):
    """Advances a simulated clock by ``step_seconds`` in each step."""

    observation_space = action_space = spaces.Discrete(2)
    now = 0.0
    step_seconds = 1.0

    def reset(self, *, seed=None, options=None):
        return 0, {}

    def step(self, action):
        type(self).now += self.step_seconds
        return 0, 0.0, False, False, {}


@pytest.mark.parametrize(("seconds", "steps"), [(1.0, 1), (1e-3, 20), (1e-6, 5000)])
def test_trial_length_depends_on_the_step_time(monkeypatch, seconds, steps):
    monkeypatch.setattr(env_trial.time, "perf_counter", lambda: Slow.now)
    monkeypatch.setattr(Slow, "step_seconds", seconds)
    Slow.now = 0.0
    assert env_trial.try_env(Slow)[0] == pytest.approx(seconds)
    assert Slow.now == pytest.approx(steps * seconds, rel=0.01)


def test_trial_ignores_pauses_without_a_cpu(monkeypatch):
    """The process loses its CPU for 10 ms in the third step, and again in the 4,000th."""
    monkeypatch.setattr(env_trial.time, "perf_counter", lambda: Slow.now)
    Slow.now, steps = 0.0, 0

    def step(self, action):
        nonlocal steps
        steps += 1
        Slow.now += 10e-3 if steps in (3, 4000) else 1e-6
        return 0, 0.0, False, False, {}

    monkeypatch.setattr(Slow, "step", step)
    assert env_trial.try_env(Slow)[0] == pytest.approx(1e-6)
    assert steps > 4900


# -- the fast path: one native call per step -------------------------------------------------------


def counting_reads(envs):
    """Count the steps whose results Python reads."""
    results, reads = envs._core.results, []
    read = results.read

    def counted(answers):
        reads.append(1)
        return read(answers)

    results.read = counted
    return reads


@pytest.mark.parametrize("main_envs", [0, 2])
def test_steps_after_the_first_are_one_native_call(main_envs):
    with begun(counters(talks=False, main_envs=main_envs)) as envs:
        reads = counting_reads(envs)
        for step in range(5):
            assert envs.step([0] * 4)[0][:, 1].tolist() == [step + 1] * 4
        assert len(reads) == 1


@pytest.mark.parametrize(
    "other",
    [
        lambda envs: envs.reset(),
        lambda envs: envs.set_options(None, {"a": 1}),
        lambda envs: (envs.step_async([0] * 4), envs.step_wait()),
        lambda envs: envs.get_attr("steps"),
        lambda envs: (envs.send([0] * 4), envs.recv()),
    ],
)
def test_step_after_any_other_call_leaves_the_fast_path(other):
    with begun(counters(talks=False)) as envs:
        for _ in range(2):
            envs.step([0] * 4)
        other(envs)
        reads = counting_reads(envs)
        envs.step([0] * 4)
        assert len(reads) == 1


@pytest.mark.parametrize("main_envs", [0, 2])
def test_infos_that_do_not_fit_the_frame_still_arrive(main_envs):
    with begun(counters(main_envs=main_envs)) as envs:  # infos with texts
        for step in range(1, 6):
            assert envs.step([0] * 4)[4]["text"].tolist() == [f"{n} {step}" for n in range(4)]


@pytest.mark.parametrize("main_envs", [0, 2])
def test_results_survive_an_exception_raised_as_the_call_returns(main_envs):
    with begun(counters(talks=False, main_envs=main_envs)) as envs:
        for _ in range(2):
            envs.step([0] * 4)
        # As if a signal handler had raised just as the call returned.
        assert isinstance(envs._core.call.step(np.zeros(4, int)), tuple)
        with pytest.raises(gym.error.AlreadyPendingCallError):
            envs.step([0] * 4)
        assert envs.step_wait()[0][:, 1].tolist() == [3] * 4
        assert envs.step([0] * 4)[0][:, 1].tolist() == [4] * 4


@pytest.mark.slow
@pytest.mark.parametrize("num_workers", [0, 1])
def test_close_unmaps_all_segments(num_workers):
    def mapped():
        with Path("/proc/self/maps").open() as maps:
            return sum("memfd:pysampler" in line for line in maps)

    gc.collect()
    before = mapped()
    options = {"main_envs": 2} if num_workers else {}
    with begun(counters(talks=False, num_workers=num_workers, copy=False, **options)) as envs:
        for _ in range(3):
            envs.step([0] * 4)
        assert mapped() > before
    gc.collect()
    assert mapped() <= before


# -- closing, and sharing work with workers --------------------------------------------------------


class Closes(Counter):
    """Records its steps and closes in ``calls``; each step calls ``do`` first."""

    def __init__(self, number, calls):
        super().__init__(number, talks=False)
        self.calls = calls
        self.do = lambda: None

    def step(self, action):
        self.calls.append("step")
        self.do()
        return super().step(action)

    def close(self):
        self.calls.append("close")


def closing(**kwargs):
    calls = []
    own = [Closes(n, calls) for n in (2, 3)]
    fns = [lambda n=n: Killed(n, talks=False) for n in range(2)]
    return begun([*fns, *(lambda env=env: env for env in own)], **kwargs), own, calls


@pytest.mark.parametrize("how", ["close", "terminate", "loss"])
def test_main_envs_are_closed_once(how):
    envs, _, calls = closing(num_workers=1, main_envs=2)
    envs.step([0] * 4)
    calls.clear()
    if how == "loss":
        with pytest.raises(WorkerLostError):
            envs.step([9, 0, 0, 0])
    envs.close(terminate=how == "terminate")
    envs.close()
    assert [call for call in calls if call == "close"] == ["close"] * 2


@closing_while_pending
def test_close_does_not_resume_an_interrupted_step():
    envs, own, calls = closing(num_workers=1, main_envs=2)

    def interrupted():
        raise KeyboardInterrupt

    own[0].do = interrupted
    with pytest.raises(KeyboardInterrupt):
        envs.step([0] * 4)
    envs.close()
    assert calls == ["step", "close", "close"]


@closing_while_pending
@pytest.mark.parametrize("kwargs", [{"num_workers": 1, "main_envs": 2}, {"num_workers": 0}])
def test_handler_can_close_while_a_main_env_steps(kwargs):
    envs, own, calls = closing(**kwargs)
    own[0].do = envs.close  # like a signal handler that runs then
    with pytest.raises(ClosedError):
        envs.step([0] * 4)
    assert calls == ["step", "close", "close"]


def test_recv_alternates_between_main_and_worker_envs():
    with counters(8, talks=False, main_envs=4, groups=4) as envs:
        envs.async_reset()
        seen = np.zeros(8, int)
        for _ in range(10):
            while envs.ready < 8:
                pass
            ids = envs.recv(4, 4)[4]["env_id"]
            seen[ids] += 1
            envs.send([0] * 4, ids)
        assert seen.tolist() == [5] * 8
        envs.recv()


def test_main_envs_get_copies_of_options_and_states():
    options = {"x": [1]}

    class Keeps(Counter):
        def reset(self, *, seed=None, options=None):
            self.options = options
            return super().reset(seed=seed)

        def get_state(self):
            return self.memory

        def set_state(self, state):
            self.memory = state

        memory = [0]  # noqa: RUF012

    fns = [lambda n=n: Keeps(n, talks=False) for n in range(4)]
    with pysampler.VectorEnv(fns, num_workers=1, main_envs=2) as envs:
        envs.set_options(None, options)
        options["x"].append(2)
        envs.reset()
        assert envs.get_attr("options") == ({"x": [1]},) * 4
        states = envs.get_state()
        Keeps.memory[0] = 1
        assert states[3][0] == [0]


def test_native_envs_in_main_equal_sync_vector_env():
    pytest.importorskip("gymnasium.envs.mujoco", reason="native envs")
    with pysampler.make_vec("HalfCheetah-v5", 4, num_workers=1, main_envs=2, native=True) as ours:
        theirs = gym.make_vec("HalfCheetah-v5", 4, vectorization_mode="sync")
        alike(ours, theirs, 5, seed=1)


@pytest.mark.parametrize("main_envs", [0, 2])
def test_cycle_through_the_native_step_is_collected(main_envs):
    envs = begun(counters(talks=False, main_envs=main_envs))
    for _ in range(3):
        envs.step([0] * 4)
    envs._pool.refers_to = envs  # like the traceback of a WorkerLostError
    ref = weakref.ref(envs)
    del envs
    gc.collect()
    assert ref() is None


def test_recv_orders_main_and_worker_envs_by_readiness(tmp_path):
    """Env 1 is ready first, then env 0 in the worker, then env 2."""
    begun = tmp_path / "env 2 has begun to step"
    vector = []

    class One(Scripted):
        def __init__(self, number):
            super().__init__()
            self.number = number

        def step(self, action):
            if self.number == 0:
                while not begun.exists():
                    time.sleep(0.001)  # poll: another process creates the file
            if self.number == 2:
                begun.touch()  # env 1 has stepped by now
                while not vector[0]._pool.native.is_ready(0):
                    time.sleep(0.001)  # poll: a wait would be a nested call
            return super().step(action)

    fns = [functools.partial(One, number) for number in range(3)]
    with pysampler.VectorEnv(fns, num_workers=1, main_envs=2, groups=2) as envs:
        vector.append(envs)
        envs.async_reset(seed=1)
        envs.recv()
        for most in (3, 1):
            begun.unlink(missing_ok=True)
            envs.send(np.zeros((3, 2), np.float32))
            ids = envs.recv(min_envs=1, max_envs=most)[4]["env_id"]
            assert ids.tolist() == [1, 0, 2][:most]
        envs.recv()
        vector.clear()


@pytest.mark.slow
@pytest.mark.parametrize("kwargs", [{"num_workers": 0}, {"num_workers": 1}, {"num_workers": 2}])
def test_policy_that_steps_its_own_envs_is_refused(kwargs):
    """Also right after a warm-up, which ends with an ordinary step."""

    class Stepping:
        def __init__(self, envs):
            self.envs = envs
            self.refused = 0

        def __call__(self, observations):
            actions = np.zeros((len(observations), 2), np.float32)
            try:
                self.envs.step(actions)
            except (gym.error.AlreadyPendingCallError, BusyError):
                self.refused += 1
            return actions

    for seed in range(1, 9):
        with pysampler.VectorEnv([Scripted] * 4, **kwargs) as envs:
            policy = Stepping(envs)
            with pysampler.Rollouts(envs, policy, 3, seed=seed, warm_up=3) as rollouts:
                next(rollouts)
            assert policy.refused >= 3
