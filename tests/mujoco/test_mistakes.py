"""Mistakes in tasks and their error messages."""

import contextlib

import gymnasium as gym
import mujoco
import numpy as np
import pytest
from gymnasium.envs.mujoco.half_cheetah_v5 import HalfCheetahEnv
from gymnasium.vector import SyncVectorEnv
from mujoco_in_tests import identical

import pysampler
from pysampler._vector import stacks
from pysampler.envs.mujoco import HalfCheetah, Task, TaskEnv, draw, make_env
from pysampler.errors import EnvError

MODEL = """<mujoco><worldbody>
  <body name="goal" mocap="true"><geom size="0.05" contype="0"/></body>
  <body><joint name="x" type="slide" axis="1 0 0"/><joint name="y" type="slide" axis="0 1 0"/>
    <geom size="0.1"/></body>
</worldbody><actuator>
  <motor joint="x" ctrlrange="-1 1"/><motor joint="y" ctrlrange="-1 1"/>
</actuator></mujoco>"""


class Slide(Task):
    """A correct task."""

    fields = ("xpos",)

    def __init__(self, frame_skip=5):
        super().__init__(mujoco.MjModel.from_xml_string(MODEL), frame_skip)

    def allocate(self):
        self.goals = np.zeros(self.count)

    def observe(self, d):
        return np.concatenate((d.qpos, d.qvel), axis=1)

    def before(self, d):
        return d.qpos[:, 0].copy()

    def reward(self, d, before, action):
        moved = d.qpos[:, 0] - before
        return moved - self.goals[d.ids], {"moved": moved}

    def terminated(self, d):
        return d.qpos[:, 0] > 0.9

    def reset(self, rngs, ids):
        self.goals[ids] = draw(rngs, lambda rng: rng.uniform(-1, 1))
        return np.zeros((len(ids), 2)), draw(rngs, lambda rng: rng.uniform(-1, 1, 2))

    def reset_info(self, d):
        return {"x": d.qpos[:, 0].copy()}


def changed(**attributes):
    return type("Changed", (Slide,), attributes)


def made(task, count=3, *, native=True, **options):
    return pysampler.make_vec(
        task, count, vector_kwargs={"num_workers": 0, "native": native, **options}
    )


def reward_with(info):
    return lambda self, d, before, action: (np.zeros(len(d)), {"told": info(d)})


# By mistake: the changed attributes and the error.
MISTAKES = {
    "no observe": ({"observe": Task.observe}, r"Changed has no method observe\(d\)"),
    "no reward": ({"reward": Task.reward}, r"Changed has no method reward\(d, before, action\)"),
    "no reset": ({"reset": Task.reset}, r"Changed has no method reset\(rngs, ids\)"),
    "observe a list": (
        {"observe": lambda self, d: d.qpos.tolist(), "observation_space": None},
        "observe: expected an array.*got a list",
    ),
    "observe another number": (
        {"observe": lambda self, d: np.zeros((len(d), 4 + (d.time[0] > 0)))},
        r"Changed.observe: expected an array\(1, 4\), got float64\(1, 5\)",
    ),
    "observe another dtype": (
        {"observe": lambda self, d: np.zeros((len(d), 4), "f8" if d.time[0] > 0 else "f4")},
        r"Changed.observe: expected float32 as in the space, got float64\(1, 4\)",
    ),
    "a column of rewards": (
        {"reward": lambda self, d, before, action: d.qpos[:, :1]},
        r"Changed.reward: expected 1 numbers, got float64\(1, 1\)",
    ),
    "terminated numbers": (
        {"terminated": lambda self, d: np.zeros(len(d), int)},
        r"Changed.terminated: expected bool\(1,\), got int64\(1,\)",
    ),
    "terminated nothing": (
        {"terminated": lambda self, d: None},
        r"Changed.terminated: expected bool\(1,\), got a NoneType",
    ),
    "an info that is a number": (
        {"reward": reward_with(lambda d: 1.0)},
        "Changed.reward: info 'told': expected an array with a row .* got a float",
    ),
    "an info of another length": (
        {"reward": reward_with(lambda d: np.zeros(7))},
        r"Changed.reward: info 'told': expected an array with a row .* got float64\(7,\)",
    ),
    "infos of a reset": (
        {"reset_info": lambda self, d: [1]},
        "Changed.reset_info: expected a dict of infos, got a list",
    ),
    "only positions": (
        {"reset": lambda self, rngs, ids: np.zeros((len(ids), 2))},
        "Changed.reset: expected positions and velocities, or a dict",
    ),
    "positions for one": (
        {"reset": lambda self, rngs, ids: (np.zeros(2), np.zeros((len(ids), 2)))},
        r"Changed.reset: positions: expected an array\(1, 2\), got float64\(2,\)",
    ),
    "a field that cannot begin": (
        {"reset": lambda self, rngs, ids: {"xpos": np.zeros((len(ids), 3, 3))}},
        "cannot begin with 'xpos', expected one of time, qpos",
    ),
    "a view of the past": (
        {"before": lambda self, d: d.qpos[:, 0]},
        "Changed.before: returned memory of d.qpos, which the step overwrites",
    ),
    "a view among others": (
        {"before": lambda self, d: {"a": (1, d.xpos)}, "reward": lambda self, *_: np.zeros(1)},
        "Changed.before: returned memory of d.xpos, which the step overwrites",
    ),
    "a field that is written to": (
        {"before": lambda self, d: d.qvel.__imul__(0.5)},
        "read-only",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
@pytest.mark.parametrize("native", [True, "auto"])
def test_a_mistake_is_reported_before_envs_are_made(mistake, native):
    """The traceback shows the user's line, and there is no fallback to ordinary envs."""
    attributes, said = MISTAKES[mistake]
    if "observation_space" in attributes:
        attributes = {**attributes, "observation_space": Slide().observation_space}
    with pytest.raises((TypeError, ValueError, NotImplementedError), match=said):
        made(changed(**attributes), native=native)


def test_the_trial_finds_mistakes_with_subsets_of_simulations(caplog, monkeypatch):
    """The reward uses all goals instead of ``goals[d.ids]``, which agree for one or all envs."""
    monkeypatch.setattr(stacks, "_logged", set())

    def reward(self, d, before, action):
        return d.qpos[:, 0] - self.goals

    with pytest.raises(ValueError, match=r"its simulations raised .*rewards of shape \(2,\)"):
        made(changed(reward=reward))
    made(changed(reward=reward), native="auto").close()
    assert "is stepped in Python, which is slow: its simulations raised" in caplog.text


def test_a_wrong_shape_in_a_later_step_is_an_env_error():
    """Shapes are not checked after the first step, but wrong results are never returned."""

    def reward(self, d, before, action):
        late = d.time.max() > 0.155
        return np.zeros(len(d) + late), {}

    with contextlib.closing(made(changed(reward=reward))) as envs:
        envs.reset(seed=1)
        with pytest.raises(EnvError, match="rewards of shape .*, expected a row for each"):
            for _ in range(40):
                envs.step(np.zeros((3, 2)))


def test_infos_may_change_shape_or_byte_order():
    """Infos may change their shape or byte order, as in ordinary envs."""

    def reward(self, d, before, action):
        late = d.time.max() > 0.155
        rows = np.zeros(len(d) * 6)
        shape = (len(d), 2, 3) if late else (len(d), 6)
        numbers = np.full(len(d), 300, ">i4" if late else "<i4")
        return np.zeros(len(d)), {"shaped": rows.reshape(shape), "numbers": numbers}

    ours = made(changed(reward=reward, terminated=Task.terminated))
    with contextlib.closing(ours) as envs:
        envs.reset(seed=1)
        for step in range(40):
            infos = envs.step(np.zeros((3, 2)))[4]
            late = (step + 1) * 0.01 > 0.155
            assert np.shape(infos["shaped"][0]) == ((2, 3) if late else (6,))
            assert list(infos["numbers"]) == [300] * 3


def test_a_redefined_class_is_tried_again():
    """As in a notebook, where the user fixes a mistake."""

    class Again(Slide):
        def reward(self, d, before, action):
            return d.qpos[:, 0] - self.goaals

    with pytest.raises(AttributeError, match="goaals"):
        made(Again)

    class Again(Slide):
        pass

    made(Again).close()

    class Again(Slide):
        def reward(self, d, before, action):
            return d.qpos[:, 0] - d.qpos[:, 0].mean()

    with pytest.raises(ValueError, match="its simulations differ from it: rewards"):
        made(Again)


@pytest.mark.parametrize("frame_skip", [0, -1])
def test_frame_skip_below_1_is_refused(frame_skip):
    """MuJoCo would abort the process."""
    for make in (lambda: made("HalfCheetah-v5"), lambda: made(Slide)):
        make().close()
    with pytest.raises(ValueError, match=f"native=True, but frame_skip is {frame_skip}"):
        pysampler.make_vec(
            Slide, 2, vector_kwargs={"num_workers": 0, "native": True}, frame_skip=frame_skip
        )


def test_frame_skip_below_1_of_gymnasiums_env_is_ordinary():
    options = {"num_workers": 0}
    envs = pysampler.make_vec("HalfCheetah-v5", 2, vector_kwargs=options, frame_skip=-1)
    assert not envs.stats().native
    envs.close()


def test_a_task_instance_is_refused():
    with pytest.raises(TypeError, match=r"got its class; use TaskEnv\(Slide"):
        TaskEnv(Slide)
    with pytest.raises(Exception, match="a class of tasks"):
        made(Slide())
    with pytest.raises(ValueError, match="render_mode 'human', expected 'rgb_array' or None"):
        TaskEnv(Slide(), "human")


# -- features of tasks ----------------------------------------------------------------------------


class Placed(Slide):
    """Places a mocap body and maps one action to two controls."""

    def __init__(self):
        super().__init__()
        self.action_space = type(self.action_space)(-1, 1, (1,), np.float32)

    def control(self, action):
        return np.concatenate((action, -action), axis=1)

    def reset(self, rngs, ids):
        begun = zip(("qpos", "qvel"), super().reset(rngs, ids), strict=True)
        places = draw(rngs, lambda rng: rng.uniform(-1, 1, (1, 3)))
        return {**dict(begun), "mocap_pos": places, "ctrl": np.ones((len(ids), 2))}

    def observe(self, d):
        goal = d.mocap_pos[:, 0]
        return np.concatenate((super().observe(d), goal, d.xpos[:, 1], d.ctrl), axis=1)


@pytest.mark.parametrize("workers", [0, 2])
def test_tasks_may_reset_mocap_bodies_and_map_controls(workers):
    ours = made(Placed, 4, num_workers=workers)
    theirs = SyncVectorEnv([lambda: make_env(Placed)] * 4)
    identical(ours.reset(seed=1), theirs.reset(seed=1))
    rng = np.random.default_rng(1)
    for step in range(60):
        actions = rng.uniform(-1, 1, (4, 1)).astype(np.float32 if step % 2 else np.float64)
        identical(ours.step(actions), theirs.step(actions), f"step {step}")
    assert len(np.unique(ours.reset()[0][:, 4:7], axis=0)) == 4
    ours.close()
    theirs.close()


@pytest.mark.parametrize("native", [True, False])
@pytest.mark.parametrize("workers", [0, 2])
def test_states_of_native_and_ordinary_tasks_restore(native, workers):
    """Arrays set in ``allocate`` are part of the state automatically."""
    with contextlib.closing(made(Placed, 4, native=native, num_workers=workers)) as envs:
        envs.reset(seed=1)
        actions = np.random.default_rng(1).uniform(-1, 1, (30, 4, 1))
        for row in actions[:5]:
            envs.step(row)
        states = envs.get_state()
        first = [envs.step(row) for row in actions]
        envs.reset(seed=9)
        envs.set_state(states)
        for row, expected in zip(actions, first, strict=True):
            identical(envs.step(row), expected)


def test_states_of_other_envs_are_refused():
    with (
        contextlib.closing(made(Slide, 2)) as native,
        contextlib.closing(made(Slide, 2, native=False)) as ordinary,
        contextlib.closing(made("HalfCheetah-v5", 2)) as cheetahs,
    ):
        for envs in (native, ordinary, cheetahs):
            envs.reset(seed=1)
        states = native.get_state()
        with pytest.raises(ValueError, match=r"to other envs \(memory_goals, xpos\)"):
            cheetahs.set_state(states)
        with pytest.raises(ValueError, match="to other envs"):
            ordinary.set_state(states)
        with pytest.raises(ValueError, match="to other envs"):
            native.set_state(ordinary.get_state())


@pytest.mark.parametrize("workers", [0, 2])
def test_calls_see_the_data_of_their_env(workers):
    """Although one real env represents all of them."""
    with contextlib.closing(made(Slide, 4, num_workers=workers)) as envs:
        envs.reset(seed=1)
        observations = envs.step(np.ones((4, 2)))[0]
        seen = envs.apply(lambda env: env.unwrapped.data.qpos)
        identical(np.array(seen), observations[:, :2])
        identical(np.array([data.qpos for data in envs.get_attr("data")]), observations[:, :2])
    with contextlib.closing(made(Slide, 4, num_workers=workers)) as envs:
        envs.reset(seed=1)
        goals = envs.get_state()["memory_goals"]
        tasks = envs.get_attr("task")
        assert [task.goals[0] for task in tasks] == goals.tolist()


@pytest.mark.parametrize("workers", [0, 2])
def test_parameters_of_a_task_can_be_changed(workers):
    changes = (
        lambda env: setattr(env.unwrapped.task, "frame_skip", 2),
        lambda env: env.unwrapped.task.init_qpos.__iadd__(0.5),
        lambda env: setattr(env.unwrapped.task, "note", 3),
    )
    ours, theirs = made(Slide, 4, num_workers=workers), SyncVectorEnv([lambda: make_env(Slide)] * 4)
    identical(ours.reset(seed=1), theirs.reset(seed=1))
    for change in reversed(changes):
        ours.apply(change, envs=[1])
        change(theirs.envs[1])
        for _ in range(3):
            identical(ours.step(np.ones((4, 2))), theirs.step(np.ones((4, 2))))
        assert "<lambda>() was called" in ours.describe()
    noted = ours.apply(lambda env: getattr(env.unwrapped.task, "note", None))
    assert noted == (None, 3, None, None)
    ours.close()
    theirs.close()


def test_a_subclass_of_gymnasiums_tasks_may_allocate():
    """Arrays of the base class and of the subclass are both in the state."""

    class Fatigue(HalfCheetah):
        def __init__(self):
            super().__init__(mujoco.MjModel.from_xml_path(_path_of("half_cheetah.xml")))

        def allocate(self):
            super().allocate()
            self.tired = np.zeros(self.count)

        def reward(self, d, before, action):
            rewards, infos = super().reward(d, before, action)
            self.tired[d.ids] += np.abs(action).sum(axis=1)
            return rewards - self.tired[d.ids], infos

    with contextlib.closing(made(Fatigue)) as envs:
        envs.reset(seed=1)
        envs.step(np.ones((3, 6)))
        assert envs.get_state()["memory_tired"].tolist() == [6.0] * 3


def _path_of(name):
    from gymnasium.envs import mujoco as package

    return f"{package.__path__[0]}/assets/{name}"


class Remembers(Slide):
    """Has a table whose length may equal the number of simulations, and rebinds an attribute."""

    def __init__(self):
        super().__init__()
        self.away = None

    def allocate(self):
        super().allocate()
        self.table = np.arange(4.0)

    def reward(self, d, before, action):
        self.away = d.qpos[:, 0] - self.goals[d.ids] + self.table[:1]
        return self.away


@pytest.mark.parametrize("workers", [0, 2])
def test_a_call_may_rebind_an_array_of_the_state(workers):
    with contextlib.closing(made(Remembers, 4, num_workers=workers)) as envs:
        envs.reset(seed=1)
        goals = envs.get_state()["memory_goals"].tolist()
        for value in (np.array([7.0]), np.array([8]), np.zeros(3), 7.0):
            envs.apply(
                lambda env, value: setattr(env.unwrapped.task, "goals", value), value, envs=[2]
            )
            seen = envs.apply(lambda env: np.ravel(env.unwrapped.task.goals)[0])
            assert seen == (goals[0], goals[1], np.ravel(value)[0], goals[3])


@pytest.mark.parametrize("count", [1, 3, 4])
def test_only_arrays_with_a_row_per_simulation_are_state(count):
    """A table is not part of the state, whatever the number of simulations."""
    with contextlib.closing(made(Remembers, count)) as envs:
        envs.reset(seed=1)
        states = envs.get_state()
        assert "memory_goals" in states.dtype.names
        assert "memory_table" not in states.dtype.names
        envs.set_state(states[::-1])
        envs.step(np.zeros((count, 2)))
        assert envs.apply(lambda env: env.unwrapped.task.table.tolist()) == ([0, 1, 2, 3],) * count
        envs.apply(lambda env: env.step(np.zeros(2))[1])  # sets ``away``


def test_a_removed_generator_is_seeded_anew():
    """Envs without a generator seed themselves at the next reset, as in gymnasium."""
    with contextlib.closing(made("HalfCheetah-v5", 3)) as envs:
        envs.reset(seed=1)
        envs.apply(lambda env: vars(env.unwrapped).update(_np_random=None), envs=[1])
        envs.reset()
        seeds = envs.np_random_seed
        assert seeds[0] == 1
        assert seeds[1] not in (2, -1, None)


def test_init_qpos_of_a_pusher_can_be_changed():
    ours, theirs = made("Pusher-v5", 2), SyncVectorEnv([lambda: gym.make("Pusher-v5")] * 2)
    for envs in (ours, theirs):
        envs.reset(seed=1)
    ours.apply(lambda env: env.unwrapped.init_qpos.__setitem__(0, 0.5), envs=[0])
    theirs.envs[0].unwrapped.init_qpos[0] = 0.5
    identical(ours.reset(seed=3), theirs.reset(seed=3))
    ours.close()
    theirs.close()


def test_a_trial_that_ran_out_of_memory_is_repeated(monkeypatch, caplog):
    from pysampler import _core

    monkeypatch.setattr(stacks, "_logged", set())
    closed = []
    close = HalfCheetahEnv.close
    monkeypatch.setattr(HalfCheetahEnv, "close", lambda env: closed.append(env) or close(env))

    def fails(*_):
        raise MemoryError("none left")

    with monkeypatch.context() as patch:
        patch.setattr(_core, "Simulations", fails)
        made("HalfCheetah-v5", native="auto").close()
    assert "in Python, which is slow: a trial raised MemoryError: none left" in caplog.text
    assert len(closed) >= 3 + 2  # the vector env's envs and both of the trial
    envs = made("HalfCheetah-v5", native="auto")
    assert envs.stats().native
    envs.close()
