"""Lost workers of envs simulated together: their replacements equal ordinary envs."""

import contextlib
import os
import signal

import mujoco
import numpy as np
import pytest
from mujoco_in_tests import (
    CHEETAH,
    DISABLED,
    MODES,
    NEXT_STEP,
    SAME_STEP,
    drawn_actions,
    identical,
    one_by_one,
    ordinary,
    together,
)

import pysampler
from pysampler.envs.mujoco import Task, draw
from pysampler.errors import EnvError, WorkerLostError

pytestmark = pytest.mark.slow  # replacements import mujoco

BOTH = together, ordinary
RESTART = {"num_workers": 3, "on_worker_loss": "restart"}
LOST = [False, False, True, True, False, False]  # worker 1's envs of six


def kill(envs, worker):
    """Kill an idle worker and wait until the pool can notice."""
    os.kill(envs._pool.pids[worker], signal.SIGKILL)
    envs._pool._links.watch.wait()


@contextlib.contextmanager
def running(env_id, count=6, arguments=None, **options):
    """Yield envs simulated together and ordinary ones."""
    pair = [make(env_id, count, arguments, **RESTART | options) for make in BOTH]
    for envs in pair:
        envs.reset(seed=3)
    yield pair
    for envs in pair:
        envs.close()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("groups", [1, 2])
def test_a_loss_truncates_only_its_own_episodes(mode, groups):
    with running(CHEETAH, autoreset_mode=mode, groups=groups) as pair:
        ours = pair[0]
        actions = list(drawn_actions(ours.action_space, 1, 8))
        before = [ours.step(row) for row in actions[:3]][-1][0]
        expected = [pair[1].step(row) for row in actions[:4]][-1]
        kill(ours, 1)
        observations, rewards, terminated, truncated, infos = ours.step(actions[3])
        lost = np.array(LOST)
        assert truncated.tolist() == infos["worker_lost"].tolist() == LOST
        assert infos["_worker_lost"].tolist() == LOST
        assert not terminated.any()
        identical(rewards, np.where(lost, 0.0, expected[1]))
        identical(observations[~lost], expected[0][~lost])
        if mode == SAME_STEP:
            identical(np.stack(infos["final_obs"][lost]), before[lost])
            assert infos["final_info"]["worker_lost"].tolist() == LOST
        else:
            identical(observations[lost], before[lost])
            if mode == NEXT_STEP:
                assert ours.step(actions[4])[3].tolist() == [False] * 6
            else:
                ours.reset(options={"reset_mask": lost})
        assert np.array(ours.get_attr("_elapsed_steps"))[lost].tolist() == [0, 0]
        seeds = np.array(ours.np_random_seed)
        assert seeds[~lost].tolist() == [3, 4, 7, 8]
        assert len(set(seeds[lost]) - set(range(3, 9))) == 2
        assert ours.stats().losses.tolist() == [0, 1, 0]


@pytest.mark.parametrize(
    ("env_id", "mode"), [("Ant-v5", NEXT_STEP), (CHEETAH, SAME_STEP), ("Humanoid-v5", DISABLED)]
)
def test_steps_after_losses_equal_ordinary_envs(env_id, mode):
    """Fresh seeds included; two workers are lost, one of them twice."""
    times = {4: 1, 13: 0, 14: 1}  # step: the worker that is lost
    limit = {"max_episode_steps": 6}
    with running(env_id, arguments=limit, autoreset_mode=mode, groups=2) as pair:
        ended = np.zeros(pair[0].num_envs, bool)
        for step, actions in enumerate(drawn_actions(pair[0].action_space, 1, 30)):
            lost = False
            if step in times:
                for envs in pair:
                    kill(envs, times[step])
                own = slice(2 * times[step], 2 * times[step] + 2)
                lost = not (mode == NEXT_STEP and ended[own].all())
            a, b = (envs.step(actions) for envs in pair)
            identical(a, b, f"step {step}")
            assert ("worker_lost" in a[4]) == lost
            ended = a[2] | a[3]
            if mode == DISABLED and (over := a[2] | a[3]).any():
                resets = [envs.reset(options={"reset_mask": over}) for envs in pair]
                identical(*resets, f"reset after step {step}")
        identical(*(envs.reset(seed=8) for envs in pair))


@pytest.mark.parametrize("mode", MODES)
def test_replacements_answer_a_reset(mode):
    with running(CHEETAH, autoreset_mode=mode) as pair:
        for envs in pair:
            envs.step(np.ones((6, 6)))
            kill(envs, 1)
        identical(*(envs.reset(seed=10) for envs in pair))
        identical(*(envs.step(np.ones((6, 6))) for envs in pair))
        for envs in pair:
            kill(envs, 2)
        mask = np.array([True, False, False, False, False, True])
        identical(*(envs.reset(options={"reset_mask": mask}) for envs in pair))
        identical(*(envs.step(np.ones((6, 6))) for envs in pair))


def test_each_group_of_a_lost_worker_reports_in_its_next_step():
    with running(CHEETAH, groups=2) as pair:
        for envs in pair:
            kill(envs, 0)
        for ids in ([2, 3, 4, 5], [1], [0], [0, 1]):
            batches = []
            for envs in pair:
                envs.send(np.ones((len(ids), 6)), ids)
                batches.append(envs.recv())
            order = [np.argsort(batch[4]["env_id"]) for batch in batches]
            for one, other in zip(*batches, strict=True):
                if not isinstance(one, dict):
                    identical(one[order[0]], other[order[1]])
            lost = batches[0][4].get("worker_lost", np.zeros(len(ids), bool))
            assert lost.tolist() == [ids in ([0], [1])] * len(ids)


def test_replacements_keep_the_tasks_of_lost_envs():
    options = {"autoreset_mode": SAME_STEP}
    with running("HalfCheetahVel-v5", **options) as pair:
        for envs in pair:
            envs.set_options([2, 5], {"task": {"velocity": 0.25}})
            kill(envs, 1)
        identical(*(envs.step(np.ones((6, 6))) for envs in pair))
        velocities = [envs.get_attr("velocity") for envs in pair]
        assert velocities[0] == velocities[1] == (1.0, 1.0, 0.25, 1.0, 1.0, 1.0)


def dies(env):
    os._exit(9)


def test_a_call_that_kills_a_worker_raises_and_the_envs_continue():
    with running(CHEETAH) as pair:
        for envs in pair:
            envs.step(np.ones((6, 6)))
            with pytest.raises(WorkerLostError, match=r"exit code 9 while calling dies\(\) of"):
                envs.apply(dies, envs=[2])
        identical(*(envs.step(np.ones((6, 6))) for envs in pair))
        identical(*(envs.step(np.ones((6, 6))) for envs in pair))


def test_states_can_be_restored_after_a_loss():
    """Envs of the lost worker continue exactly from states taken before the loss."""
    with running(CHEETAH, autoreset_mode=SAME_STEP) as (envs, _):
        actions = list(drawn_actions(envs.action_space, 1, 10))
        for row in actions[:4]:
            envs.step(row)
        states = envs.get_state()
        expected = [envs.step(row) for row in actions[4:]]
        kill(envs, 1)
        assert envs.step(actions[0])[3].tolist() == LOST
        envs.set_state(states)
        for row, result in zip(actions[4:], expected, strict=True):
            identical(envs.step(row), result)


def test_states_can_be_set_before_a_replacements_first_step():
    """Before its first step: no step reports the loss, and no env is reset."""
    with running(CHEETAH) as (envs, _):
        actions = list(drawn_actions(envs.action_space, 1, 10))
        states = envs.get_state()
        expected = [envs.step(row) for row in actions]
        kill(envs, 1)
        with pytest.raises(WorkerLostError):
            envs.get_attr("spec")
        envs.set_state(states)
        for row, result in zip(actions, expected, strict=True):
            identical(envs.step(row), result)


def test_without_restarts_a_loss_raises():
    envs = together(CHEETAH, 4, num_workers=2)
    envs.reset()
    kill(envs, 0)
    with pytest.raises(WorkerLostError, match="signal 9"):
        envs.step(np.ones((4, 6)))
    assert envs.closed


def test_actors_continue_after_a_loss():
    with contextlib.closing(together(CHEETAH, 6, {"max_episode_steps": 9}, **RESTART)) as envs:
        actors = pysampler.Actors(envs, _still, seed=1)
        actors.take(50)
        os.kill(envs._pool.pids[1], signal.SIGKILL)
        while envs.stats().losses.tolist() != [0, 1, 0]:
            actors.take(50)
        seen = set()
        while seen != set(range(6)):
            seen.update(actors.take(50).env.tolist())
        actors.stop()


def _still(observations):
    return np.zeros((len(observations), 6), np.float32)


# -- in the middle of a step ----------------------------------------------------------------------


class Deadly(Task):
    """A cart on a rail. In the method ``where`` (reward, terminated or observe) an action of 7
    kills the process and one of 6 raises."""

    def __init__(self, where="reward"):
        super().__init__(
            mujoco.MjModel.from_xml_string("""<mujoco><worldbody><body>
            <joint name="rail" type="slide" axis="1 0 0"/><geom size="0.1"/>
            </body></worldbody><actuator><motor joint="rail" ctrlrange="-9 9"/></actuator>
            </mujoco>""")
        )
        self.where = where

    def fault(self, where, numbers):
        if where == self.where and (numbers == 7).any():
            os.kill(os.getpid(), signal.SIGKILL)
        if where == self.where and (numbers == 6).any():
            raise ArithmeticError("told to")

    def observe(self, d):
        self.fault("observe", d.ctrl)
        return np.concatenate((d.qpos, d.qvel), axis=1)

    def reward(self, d, before, action):
        self.fault("reward", action)
        return -np.abs(d.qpos[:, 0])

    def terminated(self, d):
        self.fault("terminated", d.ctrl)
        return False

    def reset(self, rngs, ids):
        return draw(rngs, lambda rng: rng.uniform(-1, 1, 1)), np.zeros((len(ids), 1))


@pytest.mark.parametrize(
    ("where", "mode"), [("reward", DISABLED), ("terminated", NEXT_STEP), ("observe", SAME_STEP)]
)
def test_a_task_that_kills_its_process_is_a_worker_loss(where, mode):
    with running(Deadly, arguments={"where": where}, autoreset_mode=mode) as pair:
        for step in range(6):
            actions = np.full((6, 1), 0.5)
            actions[3] = 7 if step == 2 else 0.5
            a, b = (envs.step(actions) for envs in pair)
            identical(a, b, f"step {step}")
            if step == 2:
                assert a[4]["worker_lost"].tolist() == LOST
            if mode == DISABLED and (over := a[2] | a[3]).any():
                identical(*(envs.reset(options={"reset_mask": over}) for envs in pair))


@pytest.mark.parametrize("where", ["reward", "terminated", "observe"])
@pytest.mark.parametrize("workers", [0, 3])
def test_a_task_error_names_an_env_of_its_group(where, workers):
    options = {"num_workers": workers, "groups": 1, "on_worker_loss": "raise"}
    with running(Deadly, arguments={"where": where}, **options) as pair:
        actions = np.full((6, 1), 0.5)
        actions[3] = 6
        with pytest.raises(EnvError, match="raised ArithmeticError stepping: told to") as caught:
            pair[0].step(actions)
        assert isinstance(caught.value, ArithmeticError)
        assert caught.value.env in (range(6) if workers == 0 else (2, 3))
        assert not pair[0].closed
        identical(*(envs.reset(seed=5) for envs in pair))
        identical(*(envs.step(np.ones((6, 1))) for envs in pair))


@pytest.mark.parametrize("method", ["observe", "reset_info"])
@pytest.mark.parametrize("mode", [NEXT_STEP, SAME_STEP])
def test_an_interrupted_step_loses_the_envs_and_a_reset_begins_them(method, mode):
    """Ctrl-C may come after the physics have stepped, or after a reset has drawn numbers."""
    arguments = {"max_episode_steps": 4}
    ours = together(CHEETAH, 3, arguments, autoreset_mode=mode)
    theirs = one_by_one(CHEETAH, 3, arguments, mode)
    seen, _ = ours.reset(seed=1)
    identical(seen, theirs.reset(seed=1)[0])
    [block] = ours._pool._inline._server.blocks
    interrupts = 0
    for step, row in enumerate(drawn_actions(theirs.action_space, 2, 14)):
        method_of_task = getattr(block.stepper.task, method)
        calls = []

        def interrupted(*given, function=method_of_task, calls=calls):
            calls.append(1)
            if len(calls) == 1:
                function(*given)
                raise KeyboardInterrupt
            return function(*given)

        setattr(block.stepper.task, method, interrupted)
        try:
            results = ours.step(row)
        except KeyboardInterrupt:
            interrupts += 1
            observations, rewards, _, truncated, infos = ours.step_wait()
            assert not rewards.any()
            if mode == NEXT_STEP and method == "reset_info":  # their episodes had ended
                assert not truncated.any()
                assert "worker_lost" not in infos
            else:
                lost = infos["final_info"] if mode == SAME_STEP else infos
                assert list(truncated) == list(lost["worker_lost"]) == [True] * 3
                last = np.stack(infos["final_obs"]) if mode == SAME_STEP else observations
                identical(last, seen)
            results = ours.reset(seed=step)
            identical(results, theirs.reset(seed=step), f"step {step}")
        else:
            identical(results, theirs.step(row), f"step {step}")
        delattr(block.stepper.task, method)
        seen = results[0].copy()
    assert interrupts >= (14 if method == "observe" else 2)
    ours.close()
    theirs.close()
