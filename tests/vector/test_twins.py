"""gymnasium's classic control steps natively in large groups, and nothing but the speed changes."""

import contextlib
import functools
import os
import signal
import sys

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import wrappers
from gymnasium.envs.classic_control import AcrobotEnv, CartPoleEnv
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from interrupts import OURS
from made_up import same, step_alike
from vectors import begun

import pysampler
from pysampler._vector.wrapped.server import BatchServer
from pysampler.envs import classic
from pysampler.errors import EnvError

MODES = NEXT_STEP, SAME_STEP, DISABLED = list(AutoresetMode)
ENVS = "CartPole-v1", "MountainCar-v0", "Acrobot-v1"
COUNT = 16  # native in one group
pytestmark = pytest.mark.filterwarnings(
    "ignore:.*precision lowered by casting", "ignore:.*step\\(\\)"
)


def functions(env_id, count=COUNT, **kwargs):
    """Return functions that make envs, whose episodes are short."""
    return [functools.partial(gym.make, env_id, max_episode_steps=40, **kwargs)] * count


@contextlib.contextmanager
def both(env_id, count=COUNT, **options):
    """Yield native envs and a SyncVectorEnv of the same functions, reset alike."""
    env_fns = functions(env_id, count)
    with begun(env_fns, seed=1, **{"num_workers": 1, **options}) as ours:
        assert ours.stats().native
        theirs = SyncVectorEnv(env_fns)
        theirs.reset(seed=1)
        yield ours, theirs


def drawn(envs, steps, seed=0):
    """Return actions for some steps."""
    rng = np.random.default_rng(seed)
    space = envs.single_action_space
    if space.shape:
        return rng.uniform(-2, 2, (steps, envs.num_envs, *space.shape)).astype(space.dtype)
    return rng.integers(0, space.n, (steps, envs.num_envs))


def step_both(ours, theirs, steps, seed=0):
    for step, actions in enumerate(drawn(theirs, steps, seed)):
        same(ours.step(actions), theirs.step(actions), f"step {step}")


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("env_id", ENVS)
def test_results_equal_sync_vector_env(env_id, mode):
    ours = pysampler.VectorEnv(functions(env_id, 32), num_workers=2, autoreset_mode=mode)
    theirs = SyncVectorEnv(functions(env_id, 32), autoreset_mode=mode)
    assert ours.stats().native
    step_alike(
        *(ours, theirs, mode, 100, {"low": -0.5, "high": -0.45}),
        *({"low": -0.6, "high": -0.4}, list(range(32))),
    )


@pytest.mark.parametrize(
    "options",
    [
        {"num_workers": 0},
        {"num_workers": 1, "groups": 2},
        {"num_workers": 1, "main_envs": 16},
        {"num_workers": 1, "autoreset_mode": SAME_STEP},
    ],
)
@pytest.mark.parametrize("env_id", ["CartPole-v1"])
def test_results_of_ids_are_equal(env_id, options):
    mode = options.get("autoreset_mode", NEXT_STEP)
    ours = pysampler.make_vec(env_id, 32, max_episode_steps=40, **options)
    theirs = SyncVectorEnv(functions(env_id, 32), autoreset_mode=mode)
    assert ours.stats().native
    step_alike(ours, theirs, mode, 60, {}, None, [3] * 32)


@pytest.mark.parametrize(
    ("env_id", "kwargs"),
    [("CartPole-v1", {"sutton_barto_reward": True}), ("MountainCar-v0", {"goal_velocity": 0.02})],
)
def test_arguments_are_followed(env_id, kwargs):
    ours = pysampler.VectorEnv(functions(env_id, **kwargs), num_workers=1)
    assert ours.stats().native
    step_alike(ours, SyncVectorEnv(functions(env_id, **kwargs)), NEXT_STEP, 60, {}, None, None)


def test_lists_of_bools_are_actions():
    with both("CartPole-v1") as (ours, theirs):
        for row in drawn(theirs, 30):
            given = [bool(one) for one in row]
            same(ours.step(given), theirs.step(given))
        assert "in Python" not in ours.describe()


def wrapped(env_id):
    env = gym.make(env_id, max_episode_steps=40)
    env = wrappers.NormalizeObservation(env)
    return wrappers.TransformReward(env, lambda reward: np.clip(reward * 3, -2, 2))


@pytest.mark.parametrize("mode", MODES)
def test_wrappers_run_on_the_batch(mode):
    env_fns = [functools.partial(wrapped, "CartPole-v1")] * COUNT
    ours = pysampler.VectorEnv(env_fns, num_workers=1, autoreset_mode=mode)
    assert ours.stats().native
    assert ours.describe().count("on the batch") == 2
    theirs = SyncVectorEnv(env_fns, autoreset_mode=mode)
    step_alike(ours, theirs, mode, 80, {}, None, list(range(COUNT)))


@pytest.mark.parametrize("env_id", ENVS)
def test_calls_act_as_on_real_envs(env_id):
    with both(env_id) as (ours, theirs):
        for steps in (0, 1, 30):
            step_both(ours, theirs, steps, steps)
            states = ours.get_attr("state"), theirs.get_attr("state")
            for one, other in zip(*states, strict=True):
                assert type(one) is type(other)
                assert [type(x) for x in one] == [type(x) for x in other]
                same(np.array(one), np.array(other))
            same(ours.call("np_random_seed"), theirs.call("np_random_seed"))
        elapsed = ours.get_attr("_elapsed_steps")
        assert list(elapsed) == [env.get_wrapper_attr("_elapsed_steps") for env in theirs.envs]
        assert "in Python" not in ours.describe()
        for envs in (ours, theirs):
            envs.set_attr("state", list(envs.get_attr("state"))[::-1])
        step_both(ours, theirs, 30)
        assert "in Python: set_attr('state') was called" in ours.describe()
        same(ours.reset(), theirs.reset())
        assert "in Python" not in ours.describe()
        step_both(ours, theirs, 30)


def test_pictures_are_gymnasiums():
    pytest.importorskip("pygame")
    env_fns = functions("CartPole-v1", render_mode="rgb_array")
    with begun(env_fns, seed=1, num_workers=1) as ours:
        assert ours.stats().native
        theirs = SyncVectorEnv(env_fns)
        theirs.reset(seed=1)
        step_both(ours, theirs, 9)
        same(ours.render()[-1], theirs.render()[-1])
        step_both(ours, theirs, 9)
        assert "in Python" not in ours.describe()


CHANGES = {
    "CartPole-v1": ("gravity", 3.0),
    "MountainCar-v0": ("force", 0.002),
    "Acrobot-v1": ("torque_noise_max", 0.5),
}


@pytest.mark.parametrize("env_id", ENVS)
def test_changed_attributes_are_followed_env_by_env(env_id):
    name, value = CHANGES[env_id]
    with both(env_id) as (ours, theirs):
        step_both(ours, theirs, 30)
        for envs in (ours, theirs):
            envs.set_attr(name, [value] * COUNT)
        step_both(ours, theirs, 60)
        assert f"in Python: set_attr({name!r}) was called" in ours.describe()
        same(ours.reset(), theirs.reset())
        assert "in Python: a call has changed it" in ours.describe()
        step_both(ours, theirs, 60)


@pytest.mark.parametrize("env_id", ENVS[:2])
def test_states_in_another_precision_are_followed_env_by_env(env_id):
    with both(env_id) as (ours, theirs):
        for envs in (ours, theirs):
            envs.set_attr("state", [np.float32(one) for one in envs.get_attr("state")])
        step_both(ours, theirs, 30)
        assert "in Python: set_attr('state') was called" in ours.describe()


def changed():
    env = gym.make("CartPole-v1")
    env.unwrapped.force_mag = 20.0
    return env


class Mine(CartPoleEnv):
    """A user's class, which may override anything."""


def change_the_class():
    AcrobotEnv.book_or_nips = "nips"


def with_another_space():
    env = gym.make("CartPole-v1")
    env.unwrapped.action_space = gym.spaces.Discrete(2, start=1)
    return env


def faster():
    AcrobotEnv.MAX_VEL_1 = 10.0


ORDINARY = {
    "another space": (with_another_space, {}, "action_space was changed after the env was made"),
    "another limit": (
        functools.partial(gym.make, "Acrobot-v1"),
        {"worker_init": faster},
        "differ from it",
    ),
    "in this process": (
        lambda: gym.make("CartPole-v1"),
        {"num_workers": 0},
        "the program may hold on to envs in its own process",
    ),
    "changed by its function": (changed, {}, "force_mag was changed after the env was made"),
    "a subclass": (Mine, {}, "Mine has no native counterpart"),
    "drawn in a window": (
        functools.partial(CartPoleEnv, render_mode="human"),
        {},
        "each step of an env with render_mode='human' draws a picture",
    ),
    "a changed class": (
        functools.partial(gym.make, "Acrobot-v1"),
        {"worker_init": change_the_class},
        "differ from it",
    ),
    "no batches": (functools.partial(gym.make, "CartPole-v1"), {"native": False}, "native=False"),
}


@pytest.mark.parametrize("what", ORDINARY)
def test_envs_that_may_differ_stay_in_python(what):
    make, options, why = ORDINARY[what]
    with pysampler.VectorEnv([make] * COUNT, **{"num_workers": 1, **options}) as envs:
        assert not envs.stats().native
        assert why in envs.describe()


def test_envs_that_a_registered_function_holds_stay_in_python(monkeypatch):
    held = []

    def make():
        held.append(CartPoleEnv())
        return held[-1]

    monkeypatch.setitem(gym.registry, "Held-v0", gym.envs.registration.EnvSpec("Held-v0", make))
    fns = [functools.partial(gym.make, "Held-v0")] * COUNT
    with begun(fns, num_workers=0):
        assert held[0].state is not None


def test_one_object_for_all_stays_in_python_with_a_warning(monkeypatch, caplog):
    monkeypatch.setattr("pysampler._vector.stacks._logged", set())

    def shared():
        env = gym.make("CartPole-v1")
        return [lambda: env] * COUNT

    ours = pysampler.VectorEnv(shared(), num_workers=1)
    assert "env 0 is the same object as another env" in ours.describe()
    assert caplog.messages == [
        "pysampler: several env_fns return one env, so its episodes mix: make one in each"
    ]
    theirs = SyncVectorEnv(shared())
    step_alike(ours, theirs, NEXT_STEP, 30, {}, None, None)


def mid_episode():
    env = CartPoleEnv()
    env.state = np.array([2.3, 1.0, 0.0, 0.0])
    return env


def inner_begun():
    env = gym.make("CartPole-v1")
    env.unwrapped.reset(seed=1)
    return env


def test_envs_that_were_begun_without_a_reset_go_on():
    with pysampler.VectorEnv([mid_episode] * COUNT, num_workers=1) as ours:
        theirs = SyncVectorEnv([mid_episode] * COUNT)
        assert ours.stats().native
        seen = 0
        for _ in range(8):  # long enough for an autoreset, which draws from each env's generator
            a, b = ours.step(np.ones(COUNT, int)), theirs.step(np.ones(COUNT, int))
            if seen == 0:
                same(a, b)
            seen += b[2].sum()
        assert seen
        theirs.close()
    with (
        pysampler.VectorEnv([inner_begun] * COUNT, num_workers=1) as ours,
        pytest.raises(EnvError, match="Cannot call env.step"),
    ):
        ours.step(np.ones(COUNT, int))


def test_a_state_of_none_is_followed():
    with both("CartPole-v1") as (ours, _):
        ours.set_attr("state", [None] * COUNT)
        with pytest.raises(EnvError, match="Call reset before using step method"):
            ours.step(np.ones(COUNT, int))


FACTOR = np.float32(0.1)


def by(factor):
    return lambda reward: reward * factor * 3


@pytest.mark.parametrize(
    "scaled",
    [
        by(np.float32(0.1)),
        lambda reward: reward * FACTOR * 3,
        lambda reward: reward * np.float32(0.1) * 3,
        lambda reward: np.maximum(reward, np.float32(0)) / 3,
    ],
)
def test_rewards_are_numbers_of_python(scaled):
    """With a NumPy float32 they make a float32, which a NumPy float64 would not."""

    def make():
        env = gym.make("CartPole-v1", max_episode_steps=9)
        return wrappers.NormalizeReward(wrappers.TransformReward(env, scaled))

    env_fns = [make] * COUNT
    ours, theirs = pysampler.VectorEnv(env_fns, num_workers=1), SyncVectorEnv(env_fns)
    step_alike(ours, theirs, NEXT_STEP, 30, {}, None, None)
    env_fns = [lambda: wrappers.RecordEpisodeStatistics(gym.make("CartPole-v1"))] * 80
    with pysampler.VectorEnv(env_fns, num_workers=1) as ours:
        assert ours.describe().count("native") == 4
        ours.reset(seed=1)
        ours.step(np.ones(80, int))
        assert {type(one) for one in ours.get_attr("episode_returns")} == {float}


def test_zeros_of_rewards_have_no_sign():
    with begun(functions("CartPole-v1", sutton_barto_reward=True), seed=1, num_workers=1) as ours:
        assert not np.signbit(ours.step(np.ones(COUNT, int))[1]).any()


# Attributes of NumPy and of twins that make a twin differ from its env.
TRAPS = {
    "CartPole-v1": ("bounds", (-0.04, 0.05)),
    "MountainCar-v0": ("bounds", (-0.5, -0.4)),
    "Acrobot-v1": ("bounds", (-0.1, 0.2)),
    "Pendulum-v1": ("bounds", (-3.0, 3.0)),
    "MountainCarContinuous-v0": ("bounds", (-0.5, -0.4)),
}


@pytest.mark.parametrize("env_id", TRAPS)
def test_a_difference_falls_back(env_id, monkeypatch):
    monkeypatch.setattr(getattr(classic, env_id.partition("-")[0]), *TRAPS[env_id])
    with pysampler.make_vec(env_id, COUNT, num_workers=0) as envs:
        assert "differ from it" in envs.describe()
        with pytest.raises(ValueError, match="native=True, but its simulations differ from it"):
            pysampler.make_vec(env_id, COUNT, num_workers=0, native=True)


@pytest.mark.parametrize("mode", [NEXT_STEP, SAME_STEP])
def test_counts_are_those_of_envs_in_python(mode):
    """A step that resets an env counts as a reset, also where all envs step together."""
    totals = []
    for native in ("auto", False):
        with begun(
            pysampler.make_vec(
                *("CartPole-v1", COUNT), num_workers=1, native=native, autoreset_mode=mode
            ),
            seed=1,
        ) as envs:
            for actions in drawn(envs, 90):
                envs.step(actions)
            counted = envs.stats()
            totals.append((counted.steps.count.tolist(), counted.resets.count.tolist()))
    assert totals[0] == totals[1]


def alike_after_an_error(fails, count=COUNT, env_id="CartPole-v1", **options):
    """Return what native envs and those in Python raised, and step both afterwards."""
    both = [
        pysampler.VectorEnv(functions(env_id, count), num_workers=1, native=native, **options)
        for native in ("auto", False)
    ]
    assert both[0].stats().native
    errors = []
    for envs in both:
        envs.reset(seed=1)
        with pytest.raises(EnvError) as raised:
            fails(envs)
        errors.append(raised.value)
    assert errors[0].env == errors[1].env
    assert type(errors[0]) is type(errors[1])
    same(*(np.array(envs.get_attr("state")) for envs in both))
    if options.get("autoreset_mode") is not DISABLED:
        same(*(envs.reset(seed=[3] * count) for envs in both))
    for actions in drawn(both[0], 50):
        same(*(envs.step(actions) for envs in both))
    why = both[0].describe()
    for envs in both:
        envs.close()
    return why


def with_one(value, at=5, dtype=np.int64):
    actions = np.ones(COUNT, dtype)
    actions[at] = value
    return actions


BAD = {"low": 1.0, "high": 0.0}
ERRORS = {
    "an action": (lambda envs: envs.step(with_one(2)), "an action was not in its space"),
    "a negative action": (lambda envs: envs.step(with_one(-1)), "an action was not in its space"),
    "uint64": (lambda envs: envs.step(with_one(1, dtype=np.uint64)), "an action was not in its"),
    "bools": (lambda envs: envs.step(np.ones(COUNT, bool)), "an action was not in its space"),
    "options": (
        lambda envs: envs.reset(options=[{"low": 2.0, "high": 2.3}] * 5 + [BAD] + [None] * 10),
        "it was given invalid options",
    ),
    "masked options": (
        lambda envs: envs.reset(options={"reset_mask": BELOW, **BAD}),
        "it was given invalid options",
    ),
    "options of later resets": (
        lambda envs: (envs.set_options([7], [BAD]), [envs.step(row) for row in drawn(envs, 99)]),
        "it was given invalid options",
    ),
}
BELOW = np.arange(COUNT) == 3


@pytest.mark.parametrize("what", ERRORS)
def test_errors_are_gymnasiums_and_other_envs_go_on(what):
    fails, why = ERRORS[what]
    if what == "options of later resets":
        with pytest.raises(EnvError, match="env 7 "):
            alike_after_an_error(fails, max_restarts=3)
        return
    assert why in alike_after_an_error(fails)


@pytest.mark.parametrize(
    ("env_id", "bad"),
    [("CartPole-v1", {"low": -np.inf}), ("Pendulum-v1", {"x_init": -1.0, "y_init": 1.0})],
    ids=str,
)
def test_only_the_env_whose_range_numpy_refuses_raises(env_id, bad):
    def fails(envs):
        envs.reset(options=[bad if i == 1 else None for i in range(COUNT)])

    assert "it was given invalid options" in alike_after_an_error(fails, env_id=env_id)


def test_actions_of_ended_envs_may_be_anything():
    with both("CartPole-v1") as (ours, theirs):
        ended, seen = np.zeros(COUNT, bool), 0
        for actions in drawn(theirs, 80):
            given = np.where(ended, 99, actions)
            result = ours.step(given)
            same(result, theirs.step(actions))
            ended = result[2] | result[3]
            seen += ended.sum()
        assert seen > 10


@pytest.mark.parametrize("env_id", ENVS)
def test_states_are_restored(env_id):
    with pysampler.make_vec(env_id, COUNT, num_workers=1, max_episode_steps=20) as envs:
        envs.reset(seed=1)
        actions = drawn(envs, 60)
        for one in actions[:25]:
            envs.step(one)
        states = envs.get_state()
        first = [envs.step(one) for one in actions]
        envs.set_state(states)
        same([envs.step(one) for one in actions], first)


def test_replaced_envs_begin_again():
    with begun(
        pysampler.make_vec("CartPole-v1", 2 * COUNT, num_workers=2, on_worker_loss="restart"),
        seed=1,
    ) as envs:
        os.kill(envs._pool.pids[0], signal.SIGKILL)
        *_, truncated, infos = envs.step(np.ones(2 * COUNT, int))
        assert list(truncated) == list(infos["worker_lost"]) == [True] * COUNT + [False] * COUNT
        observations, rewards, *_ = envs.step(np.ones(2 * COUNT, int))
        assert list(rewards) == [0] * COUNT + [1] * COUNT
        assert (np.abs(observations[:COUNT]) <= 0.05).all()
        assert envs.describe().count("CartPole-v1        native") == 1


def test_envs_go_on_after_an_interrupt_at_the_end_of_their_batch(monkeypatch):
    whole = BatchServer._note_python

    def interrupted(*_):
        monkeypatch.setattr(BatchServer, "_note_python", whole)
        raise KeyboardInterrupt

    theirs = SyncVectorEnv([functools.partial(gym.make, "CartPole-v1")] * 2)
    theirs.reset(seed=1)
    with begun(pysampler.make_vec("CartPole-v1", 2, num_workers=0, native=True), seed=1) as ours:
        monkeypatch.setattr(BatchServer, "_note_python", interrupted)
        with pytest.raises(KeyboardInterrupt):
            ours.apply(np.shape)
        for seed in range(2):
            step_both(ours, theirs, 3, seed)
            states = zip(*(one.get_attr("state") for one in (ours, theirs)), strict=True)
            assert all(np.array_equal(*one) for one in states)


def test_a_state_set_after_a_loss_stays_when_the_batch_ends():
    with begun(
        pysampler.make_vec("CartPole-v1", COUNT, num_workers=1, on_worker_loss="restart"), seed=1
    ) as envs:
        state = envs.get_state([0])
        os.kill(envs._pool.pids[0], signal.SIGKILL)
        with pytest.raises(EnvError, match="lost: signal 9 while setting states"):
            envs.set_state(state, [0])
        envs.set_state(state, [0])
        envs.set_attr("tau", 0.02)
        assert "in Python" in envs.describe()
        *_, truncated, infos = envs.step(np.ones(COUNT, int))
        assert list(truncated) == list(infos["worker_lost"]) == [False] + [True] * (COUNT - 1)


def test_half_precision_actions_of_wrappers_equal_sync_vector_env():
    env_fns = [
        lambda: wrappers.TransformAction(gym.make("Pendulum-v1"), lambda action: action / 2, None)
    ] * COUNT
    theirs = SyncVectorEnv(env_fns)
    theirs.reset(seed=1)
    with begun(env_fns, seed=1, num_workers=1) as ours:
        assert "on the batch" in ours.describe()
        for actions in drawn(theirs, 20):
            given = actions.astype(np.float16)
            same(ours.step(given), theirs.step(given))


def test_the_work_of_making_envs_grows_no_faster_than_their_number():
    def lines_of(count):
        lines = 0

        def trace(frame, event, arg):
            nonlocal lines
            lines += event == "line"
            return trace if frame.f_code.co_filename.startswith(OURS) else None

        before = sys.gettrace()
        sys.settrace(trace)
        try:
            envs = pysampler.make_vec("CartPole-v1", count, num_workers=0)
        finally:
            sys.settrace(before)
        envs.close()
        return lines

    lines_of(COUNT)  # imports, and keeps what all such envs share
    few, more = lines_of(300), lines_of(600)
    assert more < 2.5 * few


def test_only_the_env_whose_stored_options_are_refused_raises():
    with begun(functions("Pendulum-v1"), seed=1, num_workers=1) as envs:
        envs.set_options([2], {"x_init": -1.0})
        with pytest.raises(EnvError) as info:
            envs.reset()
        assert info.value.env == 2


def seeded_space():
    env = gym.make("CartPole-v1")
    env.action_space.seed(5)
    return env


def test_seeds_of_spaces_are_kept():
    with pysampler.VectorEnv([seeded_space] * 3, num_workers=1) as envs:
        drawn = envs.apply(lambda env: [int(env.action_space.sample()) for _ in range(30)])
        assert drawn[0] == drawn[1] == drawn[2]
