"""Spare envs: a slot goes on with an env that was reset before, and no step waits for a reset."""

import contextlib
import functools
import os
import signal
import threading

import gymnasium as gym
import numpy as np
import pytest
from fork_server_in_tests import wait_until
from gymnasium.error import AlreadyPendingCallError
from gymnasium.vector.utils import iterate
from made_up import equal
from told_envs import SmallEnv
from vectors import begun

import pysampler
from pysampler._workers.counters import SpareUse
from pysampler.errors import (
    ClosedError,
    EnvError,
    EnvTimeoutError,
    WaitTimeoutError,
    WorkerLostError,
)

MODES = ["NextStep", "SameStep", "Disabled"]


class Counting(gym.Env):
    """Has episodes of a random length, and observes random numbers of its own."""

    observation_space = gym.spaces.Dict(
        x=gym.spaces.Box(-np.inf, np.inf, (2,), np.float64),
        t=gym.spaces.Tuple([gym.spaces.Discrete(100), gym.spaces.Text(8)]),
    )
    action_space = gym.spaces.Dict(a=gym.spaces.Discrete(3), b=gym.spaces.Box(-1, 1, (2,)))
    gravity = 1.0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.seed, self.options = seed, options
        self.left = self.np_random.integers(2, 7)
        return self._observe(), {"seed": -1 if seed is None else seed}

    def step(self, action):
        self.left -= 1
        reward = float(action["a"]) + float(action["b"][0])
        return self._observe(), reward, bool(self.left <= 0), False, {"left": int(self.left)}

    def _observe(self):
        return {"x": self.np_random.random(2), "t": (int(self.left), "x" * int(self.left))}


class Simple(Counting):
    """The same with plain spaces."""

    observation_space = gym.spaces.Box(-np.inf, np.inf, (2,), np.float64)
    action_space = gym.spaces.Discrete(3)

    def step(self, action):
        return super().step({"a": action, "b": np.zeros(2)})

    def _observe(self):
        return super()._observe()["x"]


def make(env=Counting, num=4, spares=2, **options):
    return pysampler.VectorEnv([env] * num, spare_envs=spares, **options)


def run(envs, mode, steps=50, seed=5):
    """Return all that a program sees of some steps, slot by slot."""
    envs.action_space.seed(0)
    space = envs.observation_space
    observations, infos = envs.reset(seed=seed)
    seen = [(list(iterate(space, observations)), infos)]
    for _ in range(steps):
        observations, *rest = envs.step(envs.action_space.sample())
        seen.append((list(iterate(space, observations)), *rest))
        over = rest[1] | rest[2]
        if mode == "Disabled" and over.any():
            observations, infos = envs.reset(options={"reset_mask": over})
            seen.append((list(iterate(space, observations)), infos))
    return seen


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
def test_episodes_do_not_depend_on_the_number_of_workers(mode):
    runs = []
    for workers in (None, 2, 1):
        with make(autoreset_mode=mode, num_workers=workers) as envs:
            runs.append(run(envs, mode))
            runs.append(run(envs, mode))
            assert envs.num_workers == (workers or 6)
    assert all(equal(runs[0], one) for one in runs[1:])


def replayed(seen, actions, mode, slot):
    """Step an env by hand as a slot shows it; return the seeds of its episodes."""
    env, step, over, seeds = Counting(), 0, False, []
    observation, _ = env.reset(seed=5 + slot)
    assert equal(seen[0][0][slot], observation)

    def begin(infos):
        seeds.append(int(infos["seed"][slot]))
        return env.reset(seed=seeds[-1])[0]

    for observations, *rest in seen[1:]:
        infos = rest[-1]
        if len(rest) == 1:  # a masked reset
            observation = begin(infos) if over else observation
            over = False
        elif mode == "NextStep" and over:
            observation, over = begin(infos), False
            assert (rest[0][slot], rest[1][slot]) == (0, False)
            step += 1
        else:
            observation, reward, over, _, info = env.step(actions[step][slot])
            step += 1
            assert (reward, over) == (rest[0][slot], rest[1][slot])
            if mode == "SameStep" and over:
                assert equal(infos["final_obs"][slot], observation)
                assert infos["final_info"]["left"][slot] == info["left"]
                observation = begin(infos)
        assert equal(observations[slot], observation)
    assert step == len(actions)
    return seeds


@pytest.mark.parametrize("mode", MODES)
def test_each_slot_shows_whole_episodes(mode):
    with make(autoreset_mode=mode, num_workers=2) as envs:
        seen = run(envs, mode)
        envs.action_space.seed(0)
        actions = [list(iterate(envs.action_space, envs.action_space.sample())) for _ in range(50)]
    seeds = [seed for slot in range(4) for seed in replayed(seen, actions, mode, slot)]
    assert len(set(seeds)) == len(seeds) > 20
    assert {int(env) for *_, infos in seen for env in infos["env_in_slot"]} == set(range(6))


class Waits(Simple):
    """Waits in each reset but the first until a file is there."""

    def __init__(self, gate):
        self.gate, self.resets = gate, 0

    def reset(self, **kwargs):
        self.resets += 1
        while self.resets > 1 and not os.path.exists(self.gate):  # noqa: PTH110
            threading.Event().wait(0.001)
        return super().reset(**kwargs)


def test_others_step_while_an_env_resets(tmp_path):
    gate = str(tmp_path / "gate")
    with begun([lambda: Waits(gate)] * 2, seed=1, spare_envs=4, autoreset_mode="SameStep") as envs:
        ends = 0
        while ends < 3:  # episodes have ended, and no reset of a spare env has
            _, _, terminated, _, _ = envs.step(np.zeros(2, int))
            ends += terminated.sum()
        use = envs.stats().spares
        assert (use.episodes, use.waits) == (ends, 0)
        (tmp_path / "gate").touch()
        for _ in range(30):
            envs.step(np.zeros(2, int))


def test_stats_say_how_many_spares_would_have_been_enough():
    use = SpareUse(2).after(waited=False, seconds=0.0).after(waited=True, seconds=0.5)
    assert use[:4] == (2, 2, 1, 0.5)
    use = use.with_needed({1: 90, 4: 6, 9: 4})
    assert use.enough == 4
    assert str(use).startswith("2 episodes began with one of 2 spare envs; 1 waited for it, ")
    assert str(use).endswith("each; spare_envs=4 would have been enough for 95 %")
    assert str(SpareUse(1, 3)).endswith("which was always ready")
    with make() as envs:
        run(envs, "NextStep", steps=20)
        stats = envs.stats()
        assert stats.spares.episodes > 4
        assert len(stats.steps.count) == 6
        assert str(stats).splitlines()[-1] == str(stats.spares)


def test_calls_reach_the_envs_in_the_slots():
    with begun(make(Simple, num=2, spares=1, autoreset_mode="SameStep"), seed=1) as envs:
        ended = False
        while not ended:
            _, _, terminated, _, infos = envs.step(np.zeros(2, int))
            ended = terminated.any()
        assert sorted(infos["env_in_slot"].tolist()) != [0, 1]
        seeds = np.array(envs.get_attr("seed"))
        assert seeds[terminated].tolist() == infos["seed"][terminated].tolist()
        assert envs.apply(lambda env, plus: env.seed + plus, 1) == tuple(seeds + 1)
        envs.set_attr("gravity", 3.0)
        assert envs.get_attr("gravity") == (3.0, 3.0)
        with pytest.raises(ValueError, match="the values differ, and envs change slots"):
            envs.set_attr("gravity", [1.0, 2.0])


def test_a_call_of_some_envs_reaches_no_other_slot():
    with begun(make(Simple, num=3, spares=2), seed=1) as envs:
        envs.apply(lambda env: setattr(env.unwrapped, "marked", True), envs=[2, 0])
        marked = envs.apply(lambda env: hasattr(env.unwrapped, "marked"))
        assert marked == (True, False, True)
        seeds = envs.get_attr("seed")
        assert envs.apply(lambda env: env.unwrapped.seed, envs=[2, 1]) == (seeds[2], seeds[1])


def test_seeds_and_options_of_a_masked_reset_go_to_the_env_in_the_slot():
    with begun(make(Simple, num=2, spares=1, autoreset_mode="Disabled"), seed=1) as envs:
        mask = np.array([True, False])
        _, infos = envs.reset(seed=[77, None], options={"reset_mask": mask})
        assert infos["seed"][0] == 77
        assert infos["env_in_slot"][0] == 0
        _, infos = envs.reset(options={"reset_mask": mask, "size": 3})
        assert infos["env_in_slot"][0] == 0
        assert envs.get_attr("options")[0] == {"size": 3}
        _, infos = envs.reset(options={"reset_mask": mask})
        assert infos["env_in_slot"][0] == 2


@pytest.mark.slow
def test_lost_workers_are_replaced():
    with begun(make(Simple, on_worker_loss="restart", autoreset_mode="SameStep"), seed=1) as envs:
        os.kill(envs.apply(lambda _: os.getpid())[1], signal.SIGKILL)
        lost = False
        for _ in range(30):
            *_, infos = envs.step(np.zeros(4, int))
            lost = lost or "worker_lost" in infos.get("final_info", {})
        assert lost
        assert envs.stats().losses.sum() == 1


class DiesOnce(Simple):
    """Its first reset as a spare ends its process, if a file does not exist."""

    def __init__(self, once):
        self.once = once

    def reset(self, *, seed=None, options=None):
        if seed > 1000 and not os.path.exists(self.once):  # noqa: PTH110
            open(self.once, "w").close()  # noqa: PTH123
            os._exit(3)
        return super().reset(seed=seed, options=options)


@pytest.mark.parametrize("mode", ["NextStep", "SameStep"])
def test_a_worker_that_is_lost_in_the_reset_of_a_spare_ends_no_episode(tmp_path, mode):
    options = {"on_worker_loss": "restart", "autoreset_mode": mode}
    with begun(make(lambda: DiesOnce(str(tmp_path / "once")), 2, 1, **options), seed=1) as envs:
        while envs.stats().spares.episodes < 3:
            *_, truncated, infos = envs.step(np.zeros(2, int))
            assert not truncated.any()
            assert not {"worker_lost", "_worker_lost"} & infos.keys()
        assert envs.stats().losses.sum() == 1


class Fails(Simple):
    def step(self, action):
        if action == 2:
            raise LookupError("no such action")
        return super().step(action)


def test_an_exception_of_an_env_is_raised_and_the_others_go_on():
    with begun(make(Fails, autoreset_mode="SameStep"), seed=1) as envs:
        with pytest.raises(LookupError, match="no such action"):
            envs.step(np.array([0, 2, 0, 0]))
        for _ in range(20):
            envs.step(np.zeros(4, int))


def zero(observations):
    return np.zeros(len(observations), int)


@pytest.mark.slow
def test_rollouts_take_spare_envs():
    found = []
    for workers in (None, 2):
        options = {"spare_envs": 2, "num_workers": workers, "seed": 3}
        with pysampler.Rollouts([Simple] * 4, zero, 20, **options) as rollouts:
            for _ in range(3):
                rollout = next(rollouts)
                assert rollout.valid.all()
            found.append(rollout.observations.copy())
            assert rollouts.envs.stats().spares.episodes > 8
    assert np.array_equal(*found)


class Dies(SmallEnv):
    """Its process ends in its fourth step, if it is mortal."""

    def __init__(self, mortal):
        self.mortal = mortal

    def act(self, action):
        if self.mortal and self.steps == 3:
            os._exit(3)


@pytest.mark.slow
@pytest.mark.parametrize("how", [{}, {"min_envs": 1}])
def test_rollouts_mark_steps_in_which_a_worker_was_lost(how):
    def rollout(**options):
        options = {"seed": 3, "on_worker_loss": "restart", **options, **how}
        env_fns = [lambda: Dies(mortal=True), lambda: Dies(mortal=False)]
        with pysampler.Rollouts(env_fns, zero, 8, **options) as rollouts:
            return next(rollouts)

    one, other = rollout(spare_envs=1), rollout(num_workers=2)
    assert np.argwhere(other.lost).tolist() == [[3, 0], [7, 0]]
    for name in ("lost", "valid", "truncated", "starts", "rewards"):
        assert np.array_equal(getattr(one, name), getattr(other, name)), name
    lengths = [[len(episode) for episode in each.episodes()] for each in (one, other)]
    assert lengths[0] == lengths[1] == [3, 3, 8]


def test_evaluations_refuse_spare_envs():
    with make(Simple) as envs, pytest.raises(ValueError, match="the vector env has spare_envs"):
        pysampler.evaluate(envs, zero, 2)


@pytest.mark.parametrize("sampler", ["Rollouts", "Actors"])
def test_policies_in_workers_refuse_spare_envs(sampler):
    kind = getattr(pysampler, sampler)
    options = {"horizon": 8, "policy_in": "workers"} if sampler == "Rollouts" else {}
    with pytest.raises(ValueError, match="with spare_envs=1: the workers do not"):
        kind(Simple, zero, num_envs=2, spare_envs=1, **options)


def test_spare_envs_make_no_chunks():
    with begun(make(Simple), seed=1) as envs:
        with pytest.raises(ValueError, match="a vector env with spare_envs steps all of its envs"):
            envs.step_chunk(np.zeros((4, 3), int))
        envs.step(np.zeros(4, int))


def test_spare_envs_have_no_states_and_say_so():
    with begun(make(Simple), seed=1) as envs:
        with pytest.raises(ValueError, match="cannot get states: the vector env has spare_envs"):
            envs.get_state()
        with pytest.raises(ValueError, match="cannot set states: the vector env has spare_envs"):
            envs.set_state(np.zeros(4))
        with pytest.raises(ValueError, match="NEXT_STEP with spare_envs"):
            envs.set_options(None, {"size": 1})
        assert envs.describe().splitlines()[0] == "envs 0 to 5:"


class NeverReset(Simple):
    """Its second reset hangs."""

    resets = 0

    def reset(self, **options):
        self.resets += 1
        if self.resets > 1:
            threading.Event().wait()
        return super().reset(**options)


@pytest.mark.parametrize("how", [{"terminate": True}, {"timeout": 0.1}])
def test_close_does_not_wait_for_resets_of_spares(how):
    envs = begun(make(NeverReset), seed=1)
    while not envs._spares.inner.pending:
        envs.step(np.zeros(4, int))
    envs.close(**how)
    assert envs._spares.inner.closed


class FailsLater(Simple):
    """Its second reset raises."""

    resets = 0

    def reset(self, **options):
        self.resets += 1
        if self.resets == 2:
            raise LookupError("no second reset")
        return super().reset(**options)

    def step(self, action):
        observation, *results, info = super().step(action)
        return observation, *results, {**info, "action": int(action)}


def test_step_after_a_failed_reset_takes_its_own_actions():
    with begun(make(FailsLater, autoreset_mode="NextStep"), seed=1) as envs:
        with pytest.raises(LookupError, match="no second reset"):
            while True:
                envs.step(np.ones(4, int))
        infos = None
        while infos is None:
            with contextlib.suppress(LookupError):  # of another spare
                infos = envs.step(np.full(4, 2))[4]
        assert set(infos["action"][infos["_action"]].tolist()) == {2}


class Fixed(Simple):
    """Has episodes of three steps. Action 1 raises, action 2 waits for a file."""

    def __init__(self, gate=""):
        self.gate, self.waited = gate, 0

    def reset(self, **options):
        result = super().reset(**options)
        self.left = 3
        return result

    def wait(self):
        self.waited += 1
        while not os.path.exists(self.gate):  # noqa: PTH110
            threading.Event().wait(0.001)

    def step(self, action):
        if action == 1:
            raise LookupError("no such action")
        if action == 2:
            self.wait()
        observation, *results, info = super().step(action)
        return observation, *results, {**info, "action": int(action)}


def swap(envs):
    """Step to the end of all episodes of Fixed, and reset: spares take the slots."""
    while not envs.step(np.zeros(2, int))[2].all():
        pass
    _, infos = envs.reset(options={"reset_mask": np.ones(2, bool)})
    assert infos["env_in_slot"].tolist() == [2, 3]


def test_others_are_reset_in_a_step_in_which_an_env_raises():
    with begun(make(Fixed, num=2, autoreset_mode="SameStep"), seed=1) as envs:
        envs.step(np.zeros(2, int))
        envs.step(np.zeros(2, int))
        with pytest.raises(LookupError, match="no such action"):
            envs.step(np.array([0, 1]))  # the episode in slot 0 ends here
        *_, terminated, _, infos = envs.step(np.zeros(2, int))
        assert terminated.tolist() == [False, True]
        assert infos["left"][0] == 2
        assert infos["env_in_slot"][0] == 2


def test_errors_name_the_slot_and_its_env():
    with begun(make(Fixed, num=2, autoreset_mode="Disabled"), seed=1) as envs:
        swap(envs)
        with pytest.raises(LookupError, match=r"^slot 1: env 3 in worker 3 \(pid \d+\)") as raised:
            envs.step(np.array([0, 1]))
        assert (raised.value.env, raised.value.worker) == (1, 3)
        with pytest.raises(AttributeError, match="^slot 0: env 2 in worker 2") as raised:
            envs.call("fly")
        assert raised.value.env == 0
        assert "in fly()" in str(raised.value)


def test_each_env_that_raised_in_a_step_is_stepped_again():
    with begun(make(Fixed, num=3, num_workers=1), seed=1) as envs:
        for _ in range(3):
            with pytest.raises(LookupError) as raised:
                envs.step(np.array([0, 1, 1]))
            assert raised.value.env == 1
        *_, infos = envs.step(np.zeros(3, int))
        assert infos["left"].tolist()[1:] == [2, 2]


def late_in_slot_1(tmp_path, **options):
    """Return envs in whose slot 1 env 3 waits for a file."""
    gate = tmp_path / "gate"
    envs = make(lambda: Fixed(str(gate)), num=2, autoreset_mode="Disabled", **options)
    envs.reset(seed=1)
    swap(envs)
    return envs, gate


@pytest.mark.slow
def test_a_late_step_names_its_slot_and_continues(tmp_path):
    envs, gate = late_in_slot_1(tmp_path, step_timeout=0.2)
    with envs:
        with pytest.raises(EnvTimeoutError, match="slot 1: env 3 in worker 3") as raised:
            envs.step(np.array([0, 2]))
        assert not isinstance(raised.value, EnvError)
        assert (raised.value.env, raised.value.worker) == (1, 3)
        assert envs.late == [1]
        with pytest.raises(EnvTimeoutError):
            envs.step_wait()
        with pytest.raises(AlreadyPendingCallError):
            envs.step(np.zeros(2, int))
        gate.touch()
        *_, infos = envs.step_wait()
        assert infos["action"].tolist() == [0, 2]
        assert envs.late == []


def test_timeouts_of_waits_count_for_spares(tmp_path):
    envs, gate = late_in_slot_1(tmp_path)
    with envs:
        envs.step_async(np.array([0, 2]))
        with pytest.raises(WaitTimeoutError, match="The call to `step_wait` has timed out"):
            envs.step_wait(timeout=0.01)
        gate.touch()
        assert envs.step_wait(timeout=60)[4]["action"].tolist() == [0, 2]
        gate.unlink()
        envs.send(np.array([0, 2]))
        assert len(envs.recv(timeout=0.01)[1]) == 0
        gate.touch()
        assert envs.recv(timeout=60)[4]["action"].tolist() == [0, 2]


@pytest.mark.slow
def test_a_late_call_names_its_slot_and_continues(tmp_path):
    envs, gate = late_in_slot_1(tmp_path, step_timeout=0.2)
    with envs:
        with pytest.raises(EnvTimeoutError, match="slot 0: env 2|slot 1: env 3"):
            envs.call("wait")
        with pytest.raises(EnvTimeoutError):
            envs.call_wait()
        gate.touch()
        assert envs.call_wait() == (None, None)
        assert envs.get_attr("waited") == (1, 1)


class EndsBy2(Waits):
    """Ends its episode with action 2."""

    def step(self, action):
        self.left = 1 if action == 2 else 10
        return super().step(action)


@pytest.mark.slow
def test_a_late_reset_is_reported_only_once_a_slot_waits_for_it(tmp_path):
    gate = str(tmp_path / "gate")
    with make(lambda: EndsBy2(gate), 1, 1, step_timeout=1.0, autoreset_mode="SameStep") as envs:
        envs.reset(seed=1)
        assert envs.step(np.array([2]))[2].all()
        while not envs._spares.inner._pool.overdue(1_500_000_000):
            envs.step(np.zeros(1, int))
        assert envs.late == []
        with pytest.raises(EnvTimeoutError, match="^slot 0: env 0 in worker 0") as raised:
            envs.step(np.array([2]))
        assert raised.value.env == 0
        assert envs.late == [0]
        (tmp_path / "gate").touch()
        assert envs.step_wait()[4]["env_in_slot"].tolist() == [0]


@pytest.mark.slow
@pytest.mark.parametrize("spares", [{"spares": 1}, {"spares": 2, "num_workers": 3}])
def test_a_late_reset_costs_no_worker_before_a_slot_waits_for_it(tmp_path, spares):
    gate = str(tmp_path / "gate")
    late = {"step_timeout": 0.2, "on_hang": "restart", "autoreset_mode": "SameStep", **spares}
    with begun(make(lambda: EndsBy2(gate), 1, **late), seed=1) as envs:
        assert envs.step(np.array([2]))[2].all()
        while not envs._spares.inner._pool.overdue(500_000_000):
            envs.step(np.zeros(1, int))
            assert envs.stats().losses.sum() == 0
        while envs.stats().losses.sum() == 0:
            envs.step(np.array([2]))
        (tmp_path / "gate").touch()


def test_closing_in_a_handler_names_the_call_that_it_ended(tmp_path):
    envs, _ = late_in_slot_1(tmp_path)

    def close(*_):
        if envs._spares.inner.pending:
            envs.close(terminate=True)

    before = signal.signal(signal.SIGALRM, close)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.05, 0.05)
        with pytest.raises(ClosedError, match="^cannot call step: it was closed meanwhile"):
            envs.step(np.array([0, 2]))
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_a_lost_worker_closes_spare_envs():
    with begun(make(Fixed, num=2), seed=1) as envs:
        os.kill(envs.apply(lambda _: os.getpid())[1], signal.SIGKILL)
        with pytest.raises(WorkerLostError, match="signal 9") as raised:
            while True:
                envs.step(np.zeros(2, int))
        assert not isinstance(raised.value, EnvError)
        assert raised.value.worker == 1
        assert envs.closed
        with pytest.raises(ClosedError):
            envs.step(np.zeros(2, int))


class FixedFailsLater(FailsLater, Fixed):
    """Both."""


def test_seeds_of_a_reset_count_after_a_failed_reset():
    with begun(make(FixedFailsLater, num=2, spares=1, autoreset_mode="SameStep"), seed=1) as envs:
        with pytest.raises(LookupError, match="slot 1: .*no second reset"):
            while True:
                envs.step(np.zeros(2, int))
        with contextlib.suppress(LookupError):
            envs.reset(seed=50)
        _, infos = envs.reset(seed=60)
        assert infos["seed"].tolist() == [60, 61]


class Fractions(SmallEnv):
    """Its infos are whole in a reset, and have a fraction in a step. Resets of spares wait."""

    def __init__(self, gate):
        self.gate = gate

    def reset(self, *, seed=None, options=None):
        if seed is not None and seed > 100:  # not one of the slots' seeds
            self.gate.read_bytes()  # until a writer has come and gone
        return super().reset(seed=seed, options=options)

    def begins(self):
        return {"x": 0, "y": np.float32(0), "z": True}

    def info(self, action):
        return {"x": 0.5, "y": 1, "z": np.array([1])}


@pytest.mark.parametrize("rested", [False, True])
def test_infos_of_slots_have_their_own_types(rested, tmp_path):
    """Whether a spare's reset comes in the batch of the steps or not."""
    os.mkfifo(tmp_path / "gate")
    make = functools.partial(Fractions, tmp_path / "gate")
    with begun([make] * 2, num_workers=2, seed=1) as plain:
        expected = plain.step(np.zeros(2, int))[4]
    with begun([make] * 2, spare_envs=1, seed=1) as envs:
        inner = envs._spares.inner
        if rested:
            (tmp_path / "gate").write_bytes(b"")
            wait_until(lambda: inner.ready == inner.pending == 1)
        infos = envs.step(np.zeros(2, int))[4]
        if not rested:
            (tmp_path / "gate").write_bytes(b"")
    for key, values in expected.items():
        np.testing.assert_array_equal(infos[key], values, strict=True)


def test_vector_env_is_closed_if_an_env_raises_in_close():
    class Unclosable(SmallEnv):
        def close(self):
            raise ValueError("not closed")

    envs = begun([Unclosable] * 2, num_workers=1, spare_envs=1)
    with pytest.raises(ValueError, match="not closed"):
        envs.close()
    assert envs.closed
