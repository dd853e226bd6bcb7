"""``context="threads"``: workers that are threads of this process."""

import ctypes
import gc
import os
import signal
import threading
import time
import warnings
import weakref

import numpy as np
import pytest
from fork_server_in_tests import run
from forks_in_tests import Fork
from gymnasium.error import AlreadyPendingCallError
from gymnasium.vector import SyncVectorEnv
from interrupts import handler
from made_up import equal
from told_envs import Drawing, SmallEnv
from vectors import begun

import pysampler
from pysampler._vector.env_calls import trial_or
from pysampler._workers import pool
from pysampler._workers import threads as workers
from pysampler._workers.jobs import failure_of
from pysampler.errors import ClosedError, EnvError, EnvTimeoutError, WorkerLostError


class Short(Drawing):
    lengths = 1, 6

    def begins(self):
        return {"left": self.left}

    def reward(self, action):
        return float(action)


class Gate(Short):
    """Waits in a step with action 2 until ``opened``."""

    opened = threading.Event()
    waiting = threading.Semaphore(0)
    closed = 0

    def reset(self, *, seed=None, options=None):
        return np.zeros(2), {"self": self}

    def step(self, action):
        if action == 2:
            Gate.waiting.release()
            Gate.opened.wait()
        if action == 1:
            raise KeyError("no such key", self)
        return np.zeros(2), float(action), False, False, {"self": self}

    def close(self):
        Gate.closed += 1


@pytest.fixture(autouse=True)
def _gates():
    Gate.opened.clear()
    Gate.waiting = threading.Semaphore(0)
    Gate.closed = 0
    yield
    Gate.opened.set()


def threads():
    return [one for one in threading.enumerate() if one.name.startswith("pysampler-")]


def make(env=Gate, num=2, **options):
    options = {"num_workers": 2, **options}
    return pysampler.VectorEnv([env] * num, context="threads", **options)


@pytest.mark.parametrize("mode", ["NextStep", "SameStep"])
@pytest.mark.parametrize("infos", ["all", "final"])
def test_results_are_those_of_sync_vector_env(mode, infos):
    reference = SyncVectorEnv([Short] * 5, autoreset_mode=mode)
    reference.action_space.seed(3)
    with make(Short, 5, autoreset_mode=mode, infos=infos) as envs:
        assert envs.num_workers == len(threads()) == 2
        results, expected = envs.reset(seed=4), reference.reset(seed=4)
        assert equal(results[0], expected[0])
        for _ in range(40):
            actions = reference.action_space.sample()
            results, expected = envs.step(actions), reference.step(actions)
            assert all(map(equal, results[:4], expected[:4]))
            if infos == "all":
                assert equal(results[4], expected[4])


def test_nothing_is_pickled():
    lock = threading.Lock()  # which pickle refuses
    with begun([lambda: Gate() if lock else None] * 2, context="threads") as envs:
        envs.step(np.zeros(2, int))
        live = envs.get_attr("unwrapped")
        assert live == envs.apply(lambda env: env.unwrapped)
        envs.set_attr("lock", lock)
        assert all(env.lock is lock for env in live)


def test_an_exception_of_an_env_is_the_live_object():
    with begun(make()) as envs:
        with pytest.raises(EnvError, match=r"env 1 in thread 1 raised KeyError stepping") as error:
            envs.step(np.array([0, 1]))
        assert isinstance(error.value, KeyError)
        assert error.value.env == 1
        raised = error.value.__cause__
        assert raised.args[1] is envs.get_attr("unwrapped")[1]
        assert raised.__traceback__.tb_frame.f_code.co_name == "step"


def test_an_env_that_cannot_be_made_ends_all_threads():
    def refuses():
        raise RuntimeError("no display")

    with pytest.raises(EnvError, match="env 0 in thread 0 raised RuntimeError being made: no disp"):
        pysampler.VectorEnv([refuses, Gate], context="threads", num_workers=2)
    assert all(not one.is_alive() for one in joined(threads()))


def joined(found):
    for one in found:
        one.join()
    return found


def test_a_step_timeout_names_the_env_and_the_step_stays_pending():
    with begun(make(step_timeout=0.01)) as envs:
        envs.step_async(np.array([0, 2]))
        with pytest.raises(EnvTimeoutError, match="env 1 in thread 1 has not answered") as error:
            envs.step_wait()
        assert (error.value.env, error.value.worker) == (1, 1)
        Gate.opened.set()
        with pytest.raises(AlreadyPendingCallError):
            envs.step(np.zeros(2, int))
        while True:
            try:
                _, rewards, *_ = envs.step_wait()
                break
            except EnvTimeoutError:  # the thread has not run since
                continue
        assert rewards.tolist() == [0, 2]


@pytest.mark.parametrize(
    "option",
    [
        {"on_worker_loss": "restart"},
        {"on_hang": "restart", "step_timeout": 1.0},
        {"recycle_after": 3},
        {"recycle_above": "1 GB"},
        {"isolate": True},
        {"isolate": "check"},
        {"seed_globals": True},
        {"trace": "steps.json"},
        {"num_workers": "auto"},
        {"main_envs": "auto"},
    ],
)
def test_options_that_need_processes_are_refused(option):
    name = next(iter(option))
    with pytest.raises(ValueError, match=f"{name} .* with context 'threads', "):
        make(**option)


def test_options_that_threads_refuse_are_refused_before_a_trial():
    def never():
        pytest.fail("an env was made")

    with pytest.raises(ValueError, match="seed_globals True with context 'threads'"):
        pysampler.VectorEnv([never] * 4, context="threads", num_workers="auto", seed_globals=True)


def test_close_waits_for_the_step_under_way():
    envs = begun(make())
    envs.step_async(np.array([0, 2]))
    Gate.waiting.acquire()
    closing = threading.Timer(0, Gate.opened.set)
    closing.start()
    with pytest.warns(UserWarning, match="pending call to `step`"):
        envs.close()
    closing.join()
    assert Gate.closed == 2
    assert not joined(threads())


class Lingering(SmallEnv):
    """Its thread needs 50 ms to free its memory in C, after the last line of Python."""

    libc = ctypes.CDLL(None)
    key = ctypes.c_uint()

    def step(self, action):
        self.libc.pthread_setspecific(self.key, ctypes.c_void_p(50_000))
        return super().step(action)


def test_close_waits_until_threads_have_freed_the_memory_of_libraries():
    # MKL does so with a lock, which a fork at that time would hold for ever.
    assert (
        Lingering.libc.pthread_key_create(ctypes.byref(Lingering.key), Lingering.libc.usleep) == 0
    )
    try:
        with begun(make(Lingering)) as envs:
            envs.step(np.zeros(2, int))
            tasks = [f"/proc/self/task/{thread.native_id}" for thread in threads()]
            assert all(map(os.path.exists, tasks))
        assert not any(map(os.path.exists, tasks))
    finally:
        Lingering.libc.pthread_key_delete(Lingering.key)


@pytest.mark.slow
def test_close_warns_of_an_env_that_does_not_end():
    envs = begun(make())
    envs.step_async(np.array([0, 2]))
    Gate.waiting.acquire()
    goes_on = "env 1 in thread 1 goes on until its step ends"
    with pytest.warns(match="pending call to `step`"), pytest.warns(match=goes_on):
        envs.close(terminate=True)
    Gate.opened.set()
    joined(threads())
    assert Gate.closed == 2


def test_ctrl_c_ends_a_wait_and_the_step_goes_on():
    def raises(*_):
        raise InterruptedError

    with begun(make()) as envs, handler(raises):
        envs.step_async(np.array([0, 2]))
        Gate.waiting.acquire()
        sender = threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGUSR1))
        sender.start()
        with pytest.raises(InterruptedError):
            envs.step_wait()
        Gate.opened.set()
        assert envs.step_wait()[1].tolist() == [0, 2]
        sender.join()


def test_a_fork_of_the_program_is_refused():
    with begun(make()) as envs:

        def step():
            with pytest.raises(ClosedError, match="made by process .*, a fork"):
                envs.step(np.zeros(2, int))

        Fork(step).result()
        assert envs.step(np.zeros(2, int))[1].tolist() == [0, 0]


def test_a_dropped_vector_env_is_collected_and_closes_its_envs():
    envs = begun(make())
    found = threads()
    gone = weakref.ref(envs)
    del envs
    gc.collect()
    assert gone() is None
    joined(found)
    assert Gate.closed == 2


def test_a_thread_that_fails_is_a_lost_worker():
    with begun(make()) as envs:
        envs._pool._answered.clear()
        # Where the thread leaves the error of its env.
        envs._pool._processes.children[1].desk.answers = None
        with pytest.raises(WorkerLostError, match="thread 1 ended while stepping env 1") as error:
            envs.step(np.array([0, 1]))
        assert error.value.worker == 1


@pytest.mark.slow
@pytest.mark.parametrize(("seconds", "output"), [(0.2, "the end\nclosed\n"), (None, "the end\n")])
def test_a_program_that_ends_lets_steps_end_and_envs_close_for_a_while(seconds, output):
    program = f"""
        import os, threading, gymnasium as gym, numpy as np, pysampler

        class Slow(gym.Env):
            observation_space = gym.spaces.Box(-1, 1, (2,))
            action_space = gym.spaces.Discrete(2)
            began = threading.Semaphore(0)

            def reset(self, *, seed=None, options=None):
                return np.zeros(2, np.float32), {{}}

            def step(self, action):
                Slow.began.release()
                threading.Event().wait({seconds})
                return np.zeros(2, np.float32), 0.0, False, False, {{}}

            def close(self):
                os.write(1, b"closed\\n")

        envs = pysampler.VectorEnv([Slow], context="threads")
        envs.reset()
        envs.step_async(np.zeros(1, int))
        Slow.began.acquire()
        print("the end", flush=True)
    """
    assert run(program) == output


@pytest.mark.slow
@pytest.mark.parametrize("env", ["Busy", "BusyBatch"])
def test_a_program_ends_while_envs_run_python(env):
    """Pythons before 3.14 unwind such a thread when it comes for the lock."""
    program = f"""
        import threading, gymnasium as gym, numpy as np, pysampler
        from pysampler.envs import BatchEnv

        began = threading.Event()

        class Busy(gym.Env):
            observation_space = gym.spaces.Box(-1, 1, (2,))
            action_space = gym.spaces.Discrete(2)

            def reset(self, *, seed=None, options=None):
                return np.zeros(2, np.float32), {{}}

            def step(self, action):
                began.set()
                while True:
                    sum(range(100))

        class BusyBatch(BatchEnv):
            observation_space, action_space = Busy.observation_space, Busy.action_space

            def observe(self, ids):
                return np.zeros((1, 2), np.float32)

            def reset(self, ids, rngs):
                pass

            def step(self, ids, actions):
                Busy.step(self, actions)

        envs = pysampler.make_vec({env}, num_envs=1, num_workers=1, context="threads")
        envs.reset()
        envs.step_async(np.zeros(1, int))
        began.wait()
    """
    run(program)


@pytest.mark.slow
def test_a_program_may_end_within_simulations():
    pytest.importorskip("mujoco")
    pytest.importorskip("glfw")
    program = """
        import os, sys, pysampler
        from pysampler._workers import threads

        class Ends:
            \"\"\"Is deleted while the interpreter ends; then waits until the thread sleeps.\"\"\"

            def __init__(self, folder):
                self.state, self.time = [
                    os.open(f"{folder}/{name}", os.O_RDONLY) for name in ("stat", "schedstat")
                ]

            def ns(self):
                return int(os.pread(self.time, 99, 0).split()[0])

            def __del__(self, read=os.pread):
                while read(self.state, 99, 0).split()[2] == b"R":
                    pass

        threads._AT_EXIT = 0
        envs = pysampler.make_vec("Humanoid-v5", 128, num_workers=1, context="threads")
        envs.reset(seed=0)
        sys.ends = Ends(f"/proc/self/task/{envs._pool.pids[0]}")
        envs.step(envs.action_space.sample())
        begin = sys.ends.ns() + 2_000_000
        envs.step_async(envs.action_space.sample())
        while sys.ends.ns() < begin:  # it is within the simulations
            pass
        print("the end")
    """
    assert run(program) == "the end\n"


class Nests(Short):
    def __init__(self):
        self.inner = make(Short)

    def reset(self, *, seed=None, options=None):
        return self.inner.reset(seed=seed)[0][0], {}

    def step(self, action):
        observations, rewards, *_ = self.inner.step(np.full(2, action))
        return observations[0], float(rewards.sum()), False, False, {}

    def close(self):
        self.inner.close()


def test_envs_may_have_vector_envs_of_threads():
    with begun(make(Nests), seed=1) as envs:
        envs.step(np.ones(2, int))
        assert envs.step(np.full(2, 2))[1].max() <= 4
        assert len(threads()) == 6
    assert not joined(threads())


def ones(observations):
    return np.ones(len(observations), np.int64)


@pytest.mark.parametrize("policy_in", ["main", "workers"])
def test_rollouts_are_those_of_processes(policy_in):
    found = []
    for context in ("threads", "fork"):
        options = {"num_workers": 2, "context": context, "policy_in": policy_in, "seed": 1}
        with pysampler.Rollouts([Short] * 4, ones, 8, **options) as rollouts:
            found.append([next(rollouts).observations.copy() for _ in range(3)])
    assert all(map(np.array_equal, *found))


def test_evaluations_and_actors_run_in_threads():
    result = pysampler.evaluate([Short] * 3, ones, 6, seed=1, num_workers=2, context="threads")
    expected = pysampler.evaluate([Short] * 3, ones, 6, seed=1, num_workers=0)
    assert result.returns.tolist() == expected.returns.tolist()
    with pysampler.Actors([Short] * 2, ones, context="threads", seed=1) as actors:
        assert actors.take(20, min_records=20).rewards.tolist() == [1] * 20


def test_groups_come_back_as_they_are_ready():
    with make(groups=1) as envs:
        envs.async_reset()
        *_, infos = envs.recv(min_envs=2)
        envs.send(np.array([2, 0]))
        *_, infos = envs.recv(min_envs=1)
        assert infos["env_id"].tolist() == [1]
        Gate.opened.set()
        *_, infos = envs.recv(min_envs=1)
        assert infos["env_id"].tolist() == [0]


class Waits(Drawing):
    """Waits for a gate in its reset, and tells its task."""

    gate = threading.Event()

    def reset(self, *, seed=None, options=None):
        self.gate.wait(60)
        observation, info = super().reset(seed=seed)
        return observation, {**info, "task": options["task"]}


@pytest.mark.parametrize("call", ["reset_async", "async_reset"])
def test_options_of_a_reset_may_change_once_it_was_sent(call):
    Waits.gate.clear()
    options = {"task": 1}
    with pysampler.VectorEnv([Waits] * 2, num_workers=1, groups=2, context="threads") as envs:
        getattr(envs, call)(seed=1, options=options)
        options["task"] = 2
        Waits.gate.set()
        infos = envs.reset_wait()[1] if call == "reset_async" else envs.recv()[4]
        assert infos["task"].tolist() == [1, 1]


@pytest.mark.slow
def test_close_names_a_thread_in_which_no_env_is_at_work():
    opened = threading.Event()

    class Shut(SmallEnv):
        def close(self):
            opened.wait()

    envs = begun([Shut] * 2, num_workers=2, context="threads")
    with pytest.warns(match="pysampler: thread 0, thread 1 goes on until its step ends"):
        envs.close(terminate=True)
    opened.set()


def test_actors_leave_once_their_vector_env_has_ended():
    envs = make(Short)
    actors = pysampler.Actors(envs, ones, seed=1)
    actors.take(4, min_records=4)
    found = threads()
    envs.close(terminate=True)  # as after Ctrl-C in a `with` block
    joined(found)


def test_a_start_that_fails_ends_threads_that_attach_later(monkeypatch):
    class Late(workers.CommandLoop):
        def __init__(self, index, attachment, segment, server, link):
            super().__init__(index, attachment, segment, server, link)
            if index == 0:
                link._desk.begun.put(failure_of(RuntimeError("late"), "starting"))
            while not link._desk.ended:
                time.sleep(0.001)  # poll: the end of a pool sets it and wakes nobody

    monkeypatch.setattr(workers, "CommandLoop", Late)
    with pytest.raises(EnvError, match="late"):
        make()
    joined(threads())
    assert Gate.closed == 2


def test_envs_of_a_thread_that_cannot_describe_them_are_closed():
    class Locked(Gate):
        metadata = {"lock": threading.Lock()}  # noqa: RUF012

    with pytest.raises(EnvError, match="metadata"):
        make(Locked)
    joined(threads())
    assert Gate.closed == 2


def test_trials_at_the_same_time_leave_the_filters_of_warnings_as_they_were():
    entered, leave, first_left = threading.Event(), threading.Event(), threading.Event()

    def first():
        with trial_or(ValueError, ValueError):
            entered.set()
            leave.wait()

    def second():
        with trial_or(ValueError, ValueError):
            entered.set()
            first_left.wait()

    before = warnings.filters[:]
    trials = [threading.Thread(target=one, daemon=True) for one in (first, second)]
    for one in trials:
        entered.clear()
        one.start()
        entered.wait(0.1)  # the second waits for its turn
    leave.set()
    trials[0].join()
    first_left.set()
    trials[1].join()
    assert warnings.filters == before


def test_closing_in_a_handler_while_close_waits_for_a_thread(monkeypatch):
    waits = []

    def await_ends(*args):
        waits.append(None)
        if len(waits) == 1:
            signal.raise_signal(signal.SIGUSR1)
        workers_await_ends(*args)

    workers_await_ends = workers.await_ends
    monkeypatch.setattr(pool.Pool.kill, "__defaults__", (0.1,))
    envs = begun(make())
    envs.step_async(np.array([0, 2]))
    Gate.waiting.acquire()
    with (
        handler(lambda *_: envs.close()),
        warnings.catch_warnings(record=True, action="always") as told,
    ):
        monkeypatch.setattr(workers, "await_ends", await_ends)  # collected pools call it, too
        envs.close(terminate=True)
        monkeypatch.undo()
    assert len(waits) >= 2
    assert ["thread 1 goes on" in str(one.message) for one in told].count(True) == 1
    Gate.opened.set()
    joined(threads())
