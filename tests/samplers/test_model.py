"""Losses, errors and interrupts of samplers against a model of what their envs do.

Each env tells a story: the next observation, the reward and the end follow from an observation
alone, and so do the policy's actions and state. A wrong action changes the reward, the policy
checks its state and the last rewards, and the sinks (rollouts, evaluations, records of actors) are
checked step by step. Events strike at random steps: a worker dies, an env raises, or a signal
handler raises in the main process. A sampler may lose what its page says that it loses, and nothing
that it hands over may be wrong.

PYSAMPLER_MODEL_CASES=200 tries more cases.
"""

import contextlib
import functools
import os
import random
import signal
import weakref
from collections import defaultdict

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode
from interrupts import Interrupted, handler

import pysampler
from pysampler._policies.frame_policy import FramePolicy
from pysampler._policies.worker_policy import WorkerPolicy
from pysampler._rollouts.episode_rows import EpisodeRows
from pysampler.errors import EnvError

SLOTS = 1_000_000  # between the names of two envs' lives
CASES = int(os.environ.get("PYSAMPLER_MODEL_CASES", "8"))  # of each sampler


# -- a story ---------------------------------------------------------------------------------------


def length_of(story):
    return 2 + story % 9


def reward_of(story, step):
    """Return the reward of the step that leads to the observation with this step."""
    return story % 97 + step


def total_of(story):
    return sum(reward_of(story, step) for step in range(1, length_of(story) + 1))


def terminates(story):
    return story % 2 == 0


def after(story):
    return (story * 31 + 7) % 100_003


def action_of(story, step, chunk):
    """Return the action for an observation: a chunk of them begins with the episode."""
    first = step - step % (chunk or 1)
    return (story * 7 + first * 13) % 1000 + step - first


class Story(gym.Env):
    """Observes (story, step, name of its life); ``events`` are steps of a life, and their kinds."""

    observation_space = spaces.Box(-(2.0**40), 2.0**40, (3,), np.float64)
    action_space = spaces.Box(-(2.0**40), 2.0**40, (1,), np.float64)
    takes_tasks = True

    def __init__(self, index, events, folder, chunk, parent):
        self.folder, self.events, self.chunk, self.parent = folder, events, chunk, parent
        self.index, self.story, self.life = index, index + 1, 0
        with (folder / f"lives of env {index}").open("ab") as file:
            file.write(b".")
            self.name = index * SLOTS + file.tell()

    def observe(self):
        return np.array([self.story, self.step_, self.name], np.float64)

    def reset(self, *, seed=None, options=None):
        self.story = after(self.story) if seed is None else seed % 100_003
        if task := (options or {}).get("task"):
            self.reset_task(task)
        self.step_ = 0
        for at, kind in self.events:
            if kind == "die in reset" and at <= self.life:
                self.strike(kind, at)
        return self.observe(), {"number": -1, "odd": np.full(2, -1)}

    def sample_tasks(self, count):
        return [{"number": number} for number in self.np_random.integers(1000, size=count)]

    def reset_task(self, task):
        self.story = after(task["number"])

    def step(self, action):
        expected = action_of(self.story, self.step_, self.chunk)
        wrong = action.tolist() != [expected]
        self.life += 1
        for at, kind in self.events:
            if at == self.life and kind != "die in reset":
                self.strike(kind, at)
        self.step_ += 1
        over = self.step_ == length_of(self.story)
        ends = over and terminates(self.story), over and not terminates(self.story)
        info = {"number": self.step_} | ({"odd": np.full(2, self.step_)} if self.step_ % 2 else {})
        reward = float(reward_of(self.story, self.step_)) + wrong / 2
        return self.observe(), reward, *ends, info

    def strike(self, kind, at):
        try:
            (self.folder / f"{kind} at {at} of env {self.index}").touch(exist_ok=False)
        except FileExistsError:
            return
        if kind.startswith("die"):
            os._exit(7)
        if kind == "raise":
            raise ValueError("told to")
        os.kill(self.parent, signal.SIGUSR1)


class Policy:
    """Acts by the story; counts the steps of an episode in its state, and checks this."""

    def __init__(self, chunk):
        self.chunk = chunk

    def act(self, observations, state):
        story, step, _ = np.asarray(observations).T.astype(np.int64)
        count = np.zeros(len(story), np.int64) if state is None else np.asarray(state)
        assert (count == step).all(), f"state {count}, expected {step}"
        steps = range(self.chunk or 1)
        actions = np.stack([(story * 7 + step * 13) % 1000 + k for k in steps], 1)[..., None]
        seen = np.stack([step + k for k in steps], 1)
        extras = {"seen": seen if self.chunk else seen[:, 0], "state": count + (self.chunk or 1)}
        return (actions if self.chunk else actions[:, 0]).astype(np.float64), extras

    def __call__(self, observations, state):
        return self.act(observations, state)


class WithRewards(Policy):
    def __call__(self, observations, state, previous_rewards):
        story, step, _ = np.asarray(observations).T.astype(np.int64)
        expected = np.where(step > 0, reward_of(story, step), 0)
        assert (np.asarray(previous_rewards) == expected).all(), (
            f"{previous_rewards}, expected {expected}"
        )
        return self.act(observations, state)


class WithTasks(Policy):
    def __call__(self, observations, tasks, params, state):
        assert (params[tasks] == tasks).all(), f"params {params} of tasks {tasks}"
        return self.act(observations, state)


def together(env_fns, mode, *, workers):
    """Return a vector env: gymnasium's, or ours with a worker, which may be lost."""
    if workers:
        losses = {"on_worker_loss": "restart", "max_restarts": 10}
        return pysampler.VectorEnv([*env_fns], num_workers=1, autoreset_mode=mode, **losses)
    return gym.vector.SyncVectorEnv([*env_fns], autoreset_mode=mode)


# -- samplers --------------------------------------------------------------------------------------


def finalizes(frame):
    """Return whether a finalizer runs: Python drops an exception that a handler raises there."""
    while frame is not None:
        if frame.f_code.co_name == "__del__" or frame.f_code.co_filename == weakref.__file__:
            return True
        frame = frame.f_back
    return False


VECTORS = [
    {"num_workers": 2},
    {"num_workers": 2, "groups": 2},
    {"num_workers": 0},
    {"num_workers": 2},
    {"num_workers": 1, "context": "threads"},
]


class Case:
    """A sampler, its envs and their events, drawn at random."""

    def __init__(self, sampler, number, folder, **vector):
        self.dice = dice = random.Random(f"{sampler} {number}")
        self.folder = folder
        self.armed = False
        self.make, self.options = SAMPLERS[sampler]
        self.chunk = self.options.get("chunk")
        self.num_envs = dice.choice([2, 4, 6])
        self.seed = dice.randrange(1000)
        self.vector = VECTORS[number % len(VECTORS)]
        if self.options.get("device"):
            self.vector = {"num_workers": 2}
        if vector:
            self.vector = {"num_workers": 2, "groups": dice.choice([1, 2]), **vector}
        alone = self.chunk or self.make is tasks or self.vector != {"num_workers": 2}
        self.of = 1 if alone else dice.choice([1, 2])
        self.in_processes = self.vector["num_workers"] > 1
        kinds = ["signal"] + ["die", "die", "die in reset"] * self.in_processes
        if self.make is not records:
            kinds.append("raise")
        self.events = defaultdict(list)
        self.killed = set()  # workers
        for _ in range(dice.choice([1, 1, 2, 3])):
            env, kind = dice.randrange(self.num_envs), dice.choice(kinds)
            self.events[env].append((dice.randrange(1, dice.choice([6, 30])), kind))
            if kind.startswith("die"):
                self.killed.add(self.worker_of(env))

    def __repr__(self):
        drawn = f"{self.vector} of {self.of} seed {self.seed} {dict(self.events)}"
        return f"{self.make.__name__} {self.options} {drawn}"

    def envs(self):
        fns = [
            functools.partial(
                *(Story, index, self.events[index], self.folder, self.chunk, os.getpid())
            )
            for index in range(self.num_envs)
        ]
        options = dict(self.vector)
        if self.of > 1:
            mode = AutoresetMode.DISABLED if self.make is episodes else AutoresetMode.SAME_STEP
            pairs = zip(fns[::2], fns[1::2], strict=True)
            workers = self.dice.random() < 0.3
            fns = [functools.partial(together, pair, mode, workers=workers) for pair in pairs]
            options["autoreset_mode"] = mode
        if self.in_processes:
            options |= {"on_worker_loss": "restart", "max_restarts": 10}
        return pysampler.VectorEnv(fns, **options)

    def worker_of(self, env):
        return env // (self.num_envs // 2)

    def may_be_lost(self, env):
        """Return whether a step of an env may be lost: its worker was killed, or is this one."""
        return not self.in_processes or self.of > 1 or self.worker_of(env) in self.killed

    def kill_a_worker(self, envs):
        """Kill a worker between two calls, and wait until it has ended."""
        worker = self.dice.randrange(len(envs._pool.pids))
        self.killed.add(worker)
        os.kill(envs._pool.pids[worker], signal.SIGKILL)
        assert envs._pool._processes.children[worker].ended(10)

    def policy(self):
        kinds = (
            [WithTasks] if self.make is tasks else [Policy] if self.chunk else [Policy, WithRewards]
        )
        return self.dice.choice(kinds)(self.chunk)

    def call(self, function):
        """Call a function, in which events may raise; return (its result, the exception)."""
        try:
            self.armed = True
            result = function()
        except Interrupted as error:
            return None, error
        except EnvError as error:
            assert isinstance(error, ValueError), error
            assert "told to" in str(error)
            assert self.of > 1 or [*self.folder.glob(f"raise at * of env {error.env}")], error
            return None, error
        finally:
            self.armed = False
        return result, None

    def run(self):
        def interrupt(_, frame):
            if self.armed and not finalizes(frame):
                self.armed = False
                raise Interrupted

        with handler(interrupt), contextlib.closing(self.envs()) as envs:
            self.make(self, envs)


def rollouts(case, envs):
    """Check rollouts of a policy: each begins where the last one ended, or with a reset."""
    horizon = 6
    keys = ["number", "odd"] if case.dice.random() < 0.5 else []
    last, reset = None, True
    with pysampler.Rollouts(
        *(envs, case.policy(), horizon), seed=case.seed, info_keys=keys, **case.options
    ) as some:
        left = 8
        while left:
            left -= 1
            if case.in_processes and case.dice.random() < 0.05:
                case.kill_a_worker(envs)
            rollout, error = case.call(some.__next__)
            if error is not None:
                # Raised after the rollout was complete, the exception has lost only that.
                last, reset = None, isinstance(error, EnvError)
                continue
            if reset or case.options.get("reset_each"):
                assert rollout.starts[0].all()
                last = None
            last = _checked(rollout, case, last, keys)
            reset = False


def _checked(rollout, case, last, keys):
    """Check a rollout; return the last observation of each env."""
    newest = []
    ended = iter(
        zip(
            *(getattr(rollout.ended, name) for name in ("env", "step", "returns", "lengths")),
            strict=True,
        )
    )
    for env in range(case.num_envs):
        before = None if last is None else last[env]
        for t in range(rollout.lengths[env]):
            story, step, name = now = rollout.observations[t, env].astype(int).tolist()
            following = rollout.observations[t + 1, env].astype(int).tolist()
            where = f"step {t} of env {env}, {now} -> {following}"
            assert name // SLOTS == env, where
            assert before is None or before == now, f"{where}, before {before}"
            before = following
            valid, lost = rollout.valid[t, env], rollout.lost[t, env]
            ends = bool(rollout.terminated[t, env]), bool(rollout.truncated[t, env])
            assert rollout.starts[t, env] == (step == 0) or not valid, where
            if lost:
                assert case.may_be_lost(env), where
                assert not valid, where
                assert rollout.rewards[t, env] == 0, where
                assert ends == (False, True), where
                assert rollout.final_observations[t, env].tolist() == now, where
                assert following[1] == 0, where
                assert following[2] > name or not case.in_processes, where
            elif not valid:  # the rest of a chunk
                assert case.chunk, where
                assert t % case.chunk, where
                assert following == now, where
                assert step == 0, where
                assert ends == (False, False), where
            else:
                assert rollout.actions[t, env].tolist() == [action_of(story, step, case.chunk)]
                assert rollout.rewards[t, env] == reward_of(story, step + 1), where
                assert rollout.extras["seen"][t, env] == step, where
                first = step - step % (case.chunk or 1)
                assert rollout.state[t, env] == first or step != first, where
                over = step + 1 == length_of(story)
                assert ends == (over and terminates(story), over and not terminates(story)), where
                expected = [after(story), 0, name] if over else [story, step + 1, name]
                assert following == expected, where
                if over:
                    final = rollout.final_observations[t, env].tolist()
                    assert final == [story, step + 1, name], where
                    assert next(ended) == (env, t, total_of(story), length_of(story)), where
            for key in keys:
                given = bool(valid) and (key == "number" or step % 2 == 0)
                mask = rollout.info_masks.get(key)
                assert (mask is not None and mask[t, env]) == given, (where, key)
                if given:
                    assert (rollout.infos[key][t, env] == step + 1).all(), (where, key)
        if rollout.lengths[env]:
            assert rollout.last_observations[env].astype(int).tolist() == before
        newest.append(before)
    assert next(ended, None) is None
    pieces = [piece.observations.astype(int) for piece in rollout.episodes()]
    assert sum(map(len, pieces)) == rollout.steps == rollout.valid.sum()
    assert all((np.diff(piece, axis=0) == (0, 1, 0)).all() for piece in pieces)
    # An env that made no step of this rollout has its observation in frame 0 only.
    return [None if rollout.lengths[env] == 0 else one for env, one in enumerate(newest)]


def tasks(case, envs):
    """Check rollouts of many tasks, each of which begins with a reset."""
    with pysampler.MultiTaskSampler(envs, case.policy(), seed=case.seed, **case.options) as sampler:
        for number in range(8):
            if number % 3 == 0 or not sampler.tasks:
                case.call(lambda: sampler.sample_tasks(case.num_envs))
                continue
            rollout, error = case.call(lambda: sampler.sample(6, params=np.arange(case.num_envs)))
            if error is None:
                assert rollout.starts[0].all()
                _checked(rollout, case, None, [])


def episodes(case, envs):
    """Check evaluations, which continue in their file after an event has ended one."""
    count, resume = case.dice.choice([1, 3, 15]), case.folder / "results"
    if case.dice.random() < 0.3:
        resume = None
    policy = case.policy()
    for _ in range(10):
        evaluation, error = case.call(
            lambda: pysampler.evaluate(
                *(envs, policy, count), seed=case.seed, resume=resume, **case.options
            )
        )
        if error is None:
            break
    assert [one.seed for one in evaluation.episodes] == list(range(case.seed, case.seed + count))
    for one in evaluation.episodes:
        assert (one.return_, one.length) == (total_of(one.seed), length_of(one.seed)), one
        assert one.terminated == terminates(one.seed), one


def records(case, envs):
    """Check records of actors, in the order in which each env began them."""
    steps = case.options.get("steps")
    last = {}
    with pysampler.Actors(envs, case.policy(), seed=case.seed, **case.options) as actors:
        count = 30 // (steps or 1)
        while len(last) < case.num_envs or min(number for _, number in last.values()) < count:
            batch, _ = case.call(lambda: actors.take(40, min_records=case.dice.choice([1, 7])))
            if batch is None:
                continue
            for row in batch.rows:
                env, number = int(row["env"]), int(row["number"])
                before, newest = last.get(env, (None, -1))
                assert number > newest, f"record {number} of env {env} after {newest}"
                if number > newest + 1:  # a record was lost
                    assert case.may_be_lost(env)
                    before = None
                last[env] = _record(row, before), number


def _record(row, before):
    """Check a record; return the first observation that the next one may have."""
    many = np.ndim(row["rewards"]) == 1
    at = (lambda name, t: row[name][t]) if many else (lambda name, t: row[name])
    for t in range(len(row["rewards"]) if many else 1):
        story, step, name = now = at("observations", t).astype(int).tolist()
        where = f"{now} in {row}"
        assert name // SLOTS == row["env"], where
        assert before in (None, now), f"{where}, expected {before}"
        assert at("actions", t).tolist() == [action_of(story, step, None)], where
        assert at("rewards", t) == reward_of(story, step + 1), where
        assert at("lengths", t) == step + 1, where
        total = sum(reward_of(story, k) for k in range(1, step + 2))
        assert at("returns", t) == total, where
        assert at("seen", t) == step, where
        assert at("next_observations", t).tolist() == [story, step + 1, name], where
        over = step + 1 == length_of(story)
        assert at("terminated", t) == (over and terminates(story)), where
        assert at("truncated", t) == (over and not terminates(story)), where
        before = [after(story), 0, name] if over else [story, step + 1, name]
    return before


SAMPLERS = {
    "main": (rollouts, {}),
    "main, overlap": (rollouts, {"overlap": True}),
    "main, ready": (rollouts, {"min_envs": 1}),
    "main, partial": (rollouts, {"min_envs": 1, "allow_partial": True}),
    "main, resets": (rollouts, {"reset_each": True}),
    "main, chunks": (rollouts, {"chunk": 3}),
    "workers": (rollouts, {"policy_in": "workers"}),
    "workers, overlap": (rollouts, {"policy_in": "workers", "overlap": True}),
    "workers, chunks": (rollouts, {"policy_in": "workers", "chunk": 3}),
    "tasks": (tasks, {}),
    "tasks, ready": (tasks, {"min_envs": 1}),
    "episodes": (episodes, {}),
    "episodes, ready": (episodes, {"min_envs": 1}),
    "episodes, chunks": (episodes, {"chunk": 2}),
    "episodes, workers": (episodes, {"policy_in": "workers"}),
    "episodes, workers, chunks": (episodes, {"policy_in": "workers", "chunk": 2}),
    "records": (records, {}),
    "records, steps": (records, {"steps": 5}),
    "records, central": (records, {"device": "cpu"}),
    "records, central, steps": (records, {"device": "cpu", "steps": 3}),
}


def run(sampler, folder, count, **vector):
    for number in range(count):
        own = folder / str(number)
        own.mkdir()
        case = Case(sampler, number, own, **vector)
        try:
            case.run()
        except BaseException as error:
            error.add_note(f"case {number}: {case}")
            raise


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_samplers_hand_over_what_the_envs_told(sampler, tmp_path):
    run(sampler, tmp_path, CASES)


# -- what the model would notice -------------------------------------------------------------------


def nothing(*_, **__):
    return None


def shared(self, _, overflow):
    return ARE_NEW(self, 0, overflow)


def uncounted(self):
    self._return[:] = self._length[:] = 0


def late(self, *arguments):
    begin = self.begin_episodes
    self.begin_episodes = nothing
    AFTER_STEP(self, *arguments)
    self.begin_episodes = begin


def continued(self, at, starts):
    returns = self._returns.copy()
    BEGIN(self, at, starts)
    for env, start in starts.items():
        if start.index in BEGUN:
            self._returns[env] = returns[env]
        BEGUN.add(start.index)


BEGUN, BEGIN = set(), EpisodeRows.begin
ARE_NEW, AFTER_STEP = WorkerPolicy._are_new, FramePolicy.after_step
FRAMES, PACKER = "_policies.frame_policy.FramePolicy", "_actors.packer.Packer.begin_episodes"
CARRY, IN_WORKERS = f"{FRAMES}.carry", "_policies.worker_policy"
READY_CARRY = "_rollouts.ready_runner.ReadyRunner._carry"
EPISODES = "_rollouts.episode_rows.EpisodeRows.begin"
BREAKS = {
    "lost steps are not marked": ("main", "_rollouts.main_runner.end_lost_episodes", nothing),
    "workers do not mark them": ("workers", f"{IN_WORKERS}.end_lost_episodes", nothing),
    "states outlive episodes": ("main", f"{FRAMES}.after_step", late),
    "steps across rollouts are not copied": ("main, partial", READY_CARRY, nothing),
    "last observations are not copied": ("main, ready", CARRY, nothing),
    "workers do not copy them": ("workers", CARRY, nothing),
    "chunks end where episodes do": ("main, chunks", f"{FRAMES}.after_chunk", nothing),
    "groups do not report infos": ("workers", f"{IN_WORKERS}.WorkerPolicy._are_new", shared),
    "returns outlive lost episodes": ("records", PACKER, nothing),
    "lost records have no number": ("records, steps", PACKER, uncounted),
    "lost episodes go on": ("episodes, workers", EPISODES, continued),
}


@pytest.mark.slow
@pytest.mark.parametrize("broken", BREAKS)
def test_the_model_notices(broken, tmp_path, monkeypatch):
    sampler, place, function = BREAKS[broken]
    monkeypatch.setattr(f"pysampler.{place}", function)
    with pytest.raises((AssertionError, EnvError)):
        run(sampler, tmp_path, 100, context="fork")
