"""Users' tasks: simulated together they equal the same tasks as ordinary envs."""

import contextlib
import functools

import gymnasium as gym
import mujoco
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import SyncVectorEnv
from mujoco_in_tests import MODES, NEXT_STEP, SAME_STEP, compare, drawn_actions, identical

import pysampler
from pysampler._vector import stacks
from pysampler.envs.mujoco import HalfCheetah, Task, draw
from pysampler.envs.mujoco.env import TaskEnv, make_env
from pysampler.errors import EnvError

MODEL = """<mujoco>
  <option timestep="0.01" integrator="{integrator}"/>
  <worldbody>
    <geom type="plane" size="5 5 1"/>
    <body name="goal" mocap="true" pos="0 0 1"><geom size="0.05" contype="0"/></body>
    <body name="cart" pos="0 0 0.2">
      <joint name="x" type="slide" axis="1 0 0"/><joint name="y" type="slide" axis="0 1 0"/>
      <geom name="body" type="box" size="0.1 0.1 0.1"/>
      <body name="arm" pos="0 0 0.1"><joint name="arm" axis="0 1 0" damping="0.1"/>
        <geom type="capsule" fromto="0 0 0 0 0 0.4" size="0.03"/><site name="tip" pos="0 0 0.4"/>
      </body>
    </body>
  </worldbody>
  <actuator>
    <motor joint="x" ctrlrange="-3 2" gear="4"/>
    <general joint="y" ctrlrange="-1 1" dyntype="filter" dynprm="0.1" gainprm="6"/>
  </actuator>
  <sensor><accelerometer site="tip"/></sensor>
</mujoco>"""


class Cart(Task):
    """Uses every feature: fields of all kinds, memory, tasks, infos of all dtypes."""

    fields = ("site_xpos", "xmat", "cfrc_ext", "sensordata", "actuator_force")
    forces = True
    max_episode_steps = 14

    def __init__(self, weight=1.0, integrator="RK4", frame_skip=3):
        super().__init__(
            mujoco.MjModel.from_xml_string(MODEL.format(integrator=integrator)), frame_skip
        )
        self.weight = weight
        self.metadata = {"render_modes": ["rgb_array"], "render_fps": 33}

    def allocate(self):
        self.goals = np.zeros((self.count, 2))
        self.smooth = np.zeros(self.count, np.float32)

    def observe(self, d):
        goal = d.site_xpos[:, 0, :2] - self.goals[d.ids]
        return np.concatenate((d.qpos, d.qvel, d.act, goal, d.sensordata), axis=1)

    def before(self, d):
        return d.site_xpos[:, 0].copy()

    def reward(self, d, before, action):
        moved = np.linalg.norm(d.site_xpos[:, 0] - before, axis=1)
        self.smooth[d.ids] = 0.5 * self.smooth[d.ids] + moved.astype(np.float32)
        infos = {
            "moved": moved,
            "smooth": self.smooth[d.ids].copy(),
            "strong": (np.abs(d.actuator_force) > 1).sum(axis=1, dtype=np.int32),
            "upright": d.xmat.reshape(len(d), -1, 9)[:, -1, 8] > 0.5,
            "force": d.cfrc_ext[:, 2, 3:].astype(np.float32),
            "time": d.time.copy(),
            "action": action.astype(np.float64),
        }
        return self.weight * moved - np.abs(d.qpos[:, 2]) + d.mocap_pos[:, 0, 2] * 0.1, infos

    def terminated(self, d):
        return np.abs(d.qpos[:, 2]) > 0.4

    def reset(self, rngs, ids):
        self.smooth[ids] = 0
        qpos = draw(rngs, lambda rng: rng.normal(scale=0.1, size=3))
        return qpos, draw(rngs, lambda rng: rng.uniform(-0.5, 0.5, 3))

    def reset_info(self, d):
        return {"goal": self.goals[d.ids].copy(), "tip": d.site_xpos[:, 0].copy()}

    def set_tasks(self, ids, tasks):
        self.goals[ids] = tasks


def together(task=Cart, count=5, arguments=None, **options):
    options = {"num_workers": 0, "native": True, **options}
    return pysampler.make_vec(task, count, vector_kwargs=options, **(arguments or {}))


def one_by_one(count=5, mode=NEXT_STEP, **arguments):
    return SyncVectorEnv(
        [functools.partial(make_env, Cart, **arguments)] * count, autoreset_mode=mode
    )


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("workers", "groups"), [(0, 2), (1, 1), (2, 2), (5, 1)])
def test_a_task_equals_its_ordinary_env(mode, workers, groups):
    options = {"num_workers": workers, "groups": groups, "autoreset_mode": mode}
    ours, theirs = together(**options), one_by_one(mode=mode)
    assert ours.observation_space == theirs.observation_space
    assert ours.action_space == theirs.action_space
    assert ours.metadata == theirs.metadata
    identical(ours.reset(seed=1), theirs.reset(seed=1))
    actions = list(drawn_actions(theirs.action_space, 1, 60, beyond=2))
    assert compare(ours, theirs, actions[:40]) > 10
    goals = {"options": {"task": [0.3, -0.2]}}
    identical(ours.reset(seed=6, **goals), theirs.reset(seed=6, **goals))
    compare(ours, theirs, actions[40:])
    ours.close()
    theirs.close()


class Counting(Cart):
    """Remembers something across episodes, and never resets it."""

    def allocate(self):
        super().allocate()
        self.steps = np.zeros(self.count)

    def reward(self, d, before, action):
        self.steps[d.ids] += 1
        return self.steps[d.ids].copy()


@pytest.mark.parametrize("mode", [NEXT_STEP, SAME_STEP])
def test_memory_of_a_task_changes_only_in_its_own_steps(mode):
    ours = together(Counting, autoreset_mode=mode)
    theirs = SyncVectorEnv([functools.partial(make_env, Counting)] * 5, autoreset_mode=mode)
    identical(ours.reset(seed=1), theirs.reset(seed=1))
    assert compare(ours, theirs, drawn_actions(theirs.action_space, 1, 30, beyond=2)) > 5
    ours.close()
    theirs.close()


@pytest.mark.parametrize(
    "arguments",
    [
        {"weight": 0.3},
        {"integrator": "implicitfast", "frame_skip": 1},
        {"integrator": "Euler", "max_episode_steps": 3},
    ],
    ids=str,
)
def test_arguments_of_a_task_equal_its_ordinary_env(arguments):
    ours, theirs = together(arguments=arguments), one_by_one(**arguments)
    identical(ours.reset(seed=1), theirs.reset(seed=1))
    compare(ours, theirs, drawn_actions(theirs.action_space, 1, 30))
    ours.close()
    theirs.close()


def test_max_episode_steps_overrides_the_tasks_time_limit():
    for arguments, limit in (({}, 14), ({"max_episode_steps": 4}, 4)):
        with contextlib.closing(together(arguments=arguments)) as envs:
            envs.reset(seed=1)
            steps = [envs.step(np.zeros((5, 2)))[3] for _ in range(limit)]
            assert not np.any(steps[:-1])
            assert (steps[-1] | (envs.get_state()["elapsed"] < limit)).all()


def test_a_task_may_have_no_time_limit():
    class Endless(Cart):
        max_episode_steps = None

        def terminated(self, d):
            return False

    with contextlib.closing(together(Endless, 2)) as envs:
        envs.reset(seed=1)
        for _ in range(40):
            _, _, terminated, truncated, _ = envs.step(np.zeros((2, 2)))
            assert not (terminated | truncated).any()


@pytest.mark.filterwarnings("ignore:.*Box observation space", "ignore:.*Box action spaces")
def test_make_env_passes_gymnasiums_check():
    env = make_env(Cart, integrator="Euler")
    assert isinstance(env.unwrapped, TaskEnv)
    check_env(env.unwrapped, skip_render_check=True)
    env.close()


def test_gymnasiums_tasks_can_be_subclassed():
    """Gymnasium's task classes can be subclassed and constructed without an env."""

    class Backwards(HalfCheetah):
        def __init__(self, **kwargs):
            super().__init__(gym.make("HalfCheetah-v5").unwrapped.model, **kwargs)

        def reward(self, d, before, action):
            rewards, infos = super().reward(d, before, action)
            return -rewards, infos

    arguments = {"ctrl_cost_weight": 0.2, "max_episode_steps": 6}
    ours = together(Backwards, 3, arguments)
    theirs = SyncVectorEnv([functools.partial(make_env, Backwards, **arguments)] * 3)
    plain = gym.make_vec("HalfCheetah-v5", 3, "sync", **arguments)
    results = [envs.reset(seed=3) for envs in (ours, theirs, plain)]
    identical(results[0], results[1])
    for actions in drawn_actions(theirs.action_space, 1, 15):
        a, b, c = (envs.step(actions) for envs in (ours, theirs, plain))
        identical(a, b)
        identical(a[1] + 0.0, -c[1] + 0.0)
    for envs in (ours, theirs, plain):
        envs.close()


@pytest.mark.parametrize("workers", [0, 2])
def test_states_include_a_tasks_memory(workers):
    options = {"num_workers": workers, "groups": 2, "autoreset_mode": SAME_STEP}
    with contextlib.closing(together(**options)) as envs:
        envs.reset(seed=1)
        envs.set_options(None, [{"task": [i, -i]} for i in range(5)])
        envs.reset()
        actions = list(drawn_actions(envs.action_space, 1, 20))
        for row in actions[:5]:
            envs.step(row)
        states = envs.get_state()
        assert states["memory_goals"].tolist() == [[i, -i] for i in range(5)]
        assert (states["memory_smooth"] > 0).any()
        first = [envs.step(row) for row in actions]
        envs.set_options(None, {"task": [9, 9]})
        envs.reset(seed=5)
        assert (envs.get_state()["memory_goals"] == 9).all()
        envs.set_options(None, [{"task": [i, -i]} for i in range(5)])
        envs.set_state(states)
        for row, expected in zip(actions, first, strict=True):
            *results, infos = envs.step(row)
            # The state does not include the options' version.
            infos["options_version"] = expected[4]["options_version"]
            identical((*results, infos), expected)
        envs.set_state(states[::-1].copy())
        assert envs.get_state()["memory_goals"].tolist() == [[4 - i, i - 4] for i in range(5)]


def one_step(env):
    return env.unwrapped.task.goals.tolist(), env.step(np.full(2, 0.5))


@pytest.mark.parametrize("workers", [0, 2])
def test_calls_see_and_keep_a_tasks_memory(workers):
    """Calls see their env's goals, and their changes persist."""
    ours, theirs = together(num_workers=workers, groups=2), one_by_one()
    goals = {"options": {"task": [0.3, -0.2]}}
    identical(ours.reset(seed=1, **goals), theirs.reset(seed=1, **goals))
    actions = list(drawn_actions(theirs.action_space, 1, 10))
    compare(ours, theirs, actions[:3])
    assert ours.get_attr("_elapsed_steps") == theirs.get_attr("_elapsed_steps")
    identical(ours.apply(one_step), tuple(one_step(env) for env in theirs.envs))
    compare(ours, theirs, actions[3:6])
    identical(ours.reset(seed=5), theirs.reset(seed=5))
    compare(ours, theirs, actions[6:])
    ours.close()
    theirs.close()


def test_an_env_of_a_task_can_be_sent():
    with pysampler.VectorEnv([lambda: make_env(Cart)] * 2, num_workers=1) as envs:
        envs.reset(seed=1)
        first, second = envs.get_attr("unwrapped")
        assert first.data.qpos.tolist() != second.data.qpos.tolist()


def test_a_list_of_task_envs_is_ordinary():
    """A VectorEnv of ordinary task envs."""
    fns = [functools.partial(make_env, Cart)] * 3
    ours, theirs = pysampler.VectorEnv(fns, num_workers=2), one_by_one(3)
    assert "native" not in repr(ours)
    identical(ours.reset(seed=1), theirs.reset(seed=1))
    compare(ours, theirs, drawn_actions(theirs.action_space, 1, 20))
    ours.close()
    theirs.close()


def test_a_wrapped_task_is_an_ordinary_env():
    envs = pysampler.make_vec(Cart, 2, None, {"num_workers": 0}, [gym.wrappers.ClipAction])
    assert "native" not in repr(envs)
    envs.reset()
    envs.step(np.full((2, 2), 9.0))
    envs.close()


# -- errors ---------------------------------------------------------------------------------------


def changed(**attributes):
    return type("Changed", (Cart,), attributes)


def test_undeclared_fields_are_refused():
    task = changed(fields=Cart.fields[:2])
    with pytest.raises(
        (ValueError, AttributeError), match="no field 'sensordata', expected one of Task.fields"
    ):
        together(task)


@pytest.mark.parametrize(
    ("field", "message"),
    [
        ("no_such", "field 'no_such', expected an array of mjData$"),
        ("site_xposs", "field 'site_xposs', expected an array of mjData: 'site_xpos'\\?"),
        ("contact", "field 'contact', expected an array of mjData"),
        ("ncon", "field 'ncon', expected an array of mjData"),
        ("xfrc_applied", "field 'xfrc_applied' is not among those that MuJoCo copies"),
    ],
)
def test_unknown_fields_are_refused(field, message):
    with pytest.raises(ValueError, match=message):
        together(changed(fields=(*Cart.fields, field)))


def test_fields_must_be_a_tuple():
    with pytest.raises(ValueError, match=r"fields 'xpos', expected \('xpos',\)"):
        together(changed(fields="xpos"))


def test_fields_may_repeat_those_of_the_state():
    with contextlib.closing(together(changed(fields=(*Cart.fields, "qpos", "time")))) as envs:
        envs.reset()


def test_a_task_that_differs_from_its_env_is_reported(caplog, monkeypatch):
    """A task may keep one value for all simulations by mistake."""

    def reward(self, d, before, action):
        self.last = getattr(self, "last", 0) + d.qpos[:, 0].sum()  # of all simulations
        return np.full(len(d), self.last)

    monkeypatch.setattr(stacks, "_logged", set())
    together(changed(reward=reward), native="auto").close()
    assert "which is slow: its simulations differ from it: rewards" in caplog.text
    with pytest.raises(ValueError, match="native=True, but its simulations differ from it"):
        together(changed(reward=reward))


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("method", ["reset", "before", "reset_info", "set_tasks"])
def test_a_task_methods_error_names_an_env(method, workers):
    """Armed after the trial."""

    def fails(self, *given):
        if self.armed:
            raise LookupError(f"in {method}")
        return getattr(Cart, method)(self, *given)

    task = changed(armed=False, **{method: fails})
    with contextlib.closing(together(task, 4, num_workers=workers)) as envs:
        envs.apply(lambda env: setattr(type(env.unwrapped.task), "armed", True))
        with pytest.raises(EnvError, match=f"env [0-3] .*raised LookupError .*in {method}"):
            envs.reset(seed=1, options={"task": [0, 0]})
            envs.step(np.zeros((4, 2)))
        task.armed = False
        if workers == 0:  # and the envs continue
            identical(envs.reset(seed=2)[0], one_by_one(4).reset(seed=2)[0])


class Configured(Cart):
    """Has an object, and numbers under a name that ``mjData`` has too."""

    def __init__(self, bonus=0.0):
        super().__init__()
        self.config = object()
        self.data = np.full(1, bonus)

    def reward(self, d, before, action):
        rewards, infos = super().reward(d, before, action)
        return rewards + self.data, infos


def test_tasks_with_objects_step_together_in_wrappers():
    wrappers = [gym.wrappers.NormalizeObservation]
    with pysampler.make_vec(Configured, 6, num_workers=1, wrappers=wrappers) as envs:
        assert "in Python" not in envs.describe()


def test_tasks_that_differ_in_numbers_step_with_their_own():
    makers = [pysampler.make_vec(Configured, 2, num_workers=0, bonus=one) for one in (0.0, 1000.0)]
    functions = [function for maker in makers for function in maker.env_fns]
    with pysampler.VectorEnv(functions, num_workers=1) as envs:
        envs.reset(seed=1)
        rewards = envs.step(envs.action_space.sample())[1]
        assert (rewards > 500).tolist() == [False, False, True, True]
    for maker in makers:
        maker.close()


class Late(Cart):
    """Begins at another time, and says of all simulations at once that none has ended."""

    def reset(self, rngs, ids):
        qpos, qvel = super().reset(rngs, ids)
        return {"qpos": qpos, "qvel": qvel, "time": np.full(len(ids), 3.0)}

    def terminated(self, d):
        return np.bool_(False)  # noqa: FBT003


def test_a_task_may_set_the_time_and_return_numpys_bool():
    theirs = SyncVectorEnv([functools.partial(make_env, Late)] * 2)
    with contextlib.closing(together(Late, 2)) as ours, contextlib.closing(theirs):
        identical(ours.reset(seed=1), theirs.reset(seed=1))
        actions = list(drawn_actions(theirs.action_space, 1, 20, beyond=2))
        compare(ours, theirs, actions)
        assert ours.step(actions[0])[4]["time"].min() > 3
