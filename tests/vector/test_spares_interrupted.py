"""Spare envs against a model of one process, with signal handlers that raise or close meanwhile."""

import contextlib
import itertools
import os
import random
import signal
import sys
import threading

import gymnasium as gym
import numpy as np
import pytest
from interrupts import Interrupted, at_point, handler, points, signal_later
from interrupts_in_tests import closing_while_pending
from made_up import equal
from told_envs import Drawing
from vectors import begun

import pysampler
from pysampler._vector import slots, spares
from pysampler.errors import ClosedError, EnvError

MODES = ["NextStep", "SameStep", "Disabled"]


class Dice(Drawing):
    """Action 3 raises, and so do resets with some seeds."""

    action_space = gym.spaces.Discrete(4)
    lengths = 2, 6
    fails = True

    def reset(self, *, seed=None, options=None):
        if self.fails and seed is not None and seed % 11 == 0:
            raise LookupError("no such seed")
        return super().reset(seed=seed, options=options)

    def begins(self):
        return {"begins": self.left}

    def act(self, action):
        if self.fails and action == 3:
            raise LookupError("no such action")
        if self.fails and self.left <= 0:
            raise RuntimeError("its episode has ended")

    def reward(self, action):
        return float(action)


class Sound(Dice):
    """Never raises."""

    fails = False


def make(mode, num=3, count=2, env=Dice, **options):
    options = {"num_workers": 2, **options}
    return pysampler.VectorEnv([env] * num, spare_envs=count, autoreset_mode=mode, **options)


class Model:
    """What spare envs return, one env after the other."""

    def __init__(self, mode, num, count, env=Dice):
        self.mode, self.num = mode, num
        self.envs = [env() for _ in range(num + count)]
        self.options = [None] * num
        self.seen = np.zeros((num, 2))

    def draw(self):
        child = np.random.SeedSequence(self.entropy, spawn_key=(self.drawn,))
        self.drawn += 1
        return int(child.generate_state(1)[0])

    def reset_spare(self, env):
        """Note the result of a reset, which no caller sees before the env takes a slot."""
        try:
            self.ready[env] = self.envs[env].reset(seed=self.draw())
        except LookupError:
            self.ready[env] = None

    def reset_all(self, seed, options=None):
        seeds = seed if isinstance(seed, list) else [seed + slot for slot in range(self.num)]
        self.entropy, self.drawn = seeds, 0
        self.env_of = list(range(self.num))
        self.spares = list(range(self.num, len(self.envs)))
        self.ready, self.vacant, self.over = {}, [], []
        for env in self.spares:
            self.reset_spare(env)
        self.begin()
        for slot in range(self.num):
            self.reset_own(slot, seeds[slot], options or self.options[slot])
        return self.result(reset=True)

    def begin(self):
        self.rewards, self.ends = np.zeros(self.num), np.zeros(self.num, bool)
        self.infos = [{} for _ in range(self.num)]
        self.failed = []

    def result(self, *, reset):
        if self.failed:
            return min(self.failed)
        infos = [dict(one) for one in self.infos]
        rest = () if reset else (self.rewards.copy(), self.ends.copy())
        for slot, info in enumerate(infos):
            if not reset or info:  # a reset returns the infos of its slots
                info["env"] = self.env_of[slot]
        return self.seen.copy(), *rest, infos

    def reset_own(self, slot, seed, options):
        if slot in self.vacant:
            env = self.spares.pop(0)
            self.vacant.remove(slot)
            self.env_of[slot] = env
        if slot in self.over:
            self.over.remove(slot)
        try:
            self.seen[slot], info = self.envs[self.env_of[slot]].reset(seed=seed, options=options)
            self.infos[slot].update(info)
        except LookupError:
            self.failed.append(slot)

    def vacate(self, slots):
        for slot in slots:
            if slot in self.over:
                self.over.remove(slot)
            if slot not in self.vacant:
                self.spares.append(self.env_of[slot])
                self.vacant.append(slot)
                self.reset_spare(self.env_of[slot])

    def fill(self, slots):
        for slot in slots:
            env = self.spares.pop(0)
            if self.ready[env] is None:
                self.failed.append(slot)
                self.spares.append(env)
                self.reset_spare(env)
                continue
            self.seen[slot], info = self.ready[env]
            self.infos[slot].update(info)
            self.env_of[slot] = env
            self.vacant.remove(slot)

    def step(self, actions):
        self.begin()
        self.vacate(list(self.over))
        to_fill = list(self.vacant)
        for slot in range(self.num):
            if slot not in to_fill:
                try:
                    result = self.envs[self.env_of[slot]].step(actions[slot])
                    self.seen[slot], self.rewards[slot], self.ends[slot], _, info = result
                    self.infos[slot].update(info)
                except (LookupError, RuntimeError):
                    self.failed.append(slot)
        self.fill(to_fill)
        ended = np.flatnonzero(self.ends).tolist()
        if self.mode == "NextStep":
            self.over += ended
        if self.mode == "SameStep" and ended:
            for slot in ended:
                final = {"final": (self.seen[slot].copy(), dict(self.infos[slot]))}
                self.infos[slot] = final
            self.reset(ended, [None] * self.num, None)
        return self.result(reset=False)

    def reset(self, chosen, seeds, options):
        own = [slot for slot in chosen if options or self.options[slot] or seeds[slot] is not None]
        for slot in own:
            self.reset_own(slot, seeds[slot], options or self.options[slot])
        rest = [slot for slot in chosen if slot not in own]
        self.vacate(rest)
        self.fill(rest)

    def reset_some(self, mask, seeds, options):
        if all(mask) and None not in seeds:
            return self.reset_all(seeds, options)
        self.begin()
        self.reset(np.flatnonzero(mask).tolist(), seeds, options)
        return self.result(reset=True)


def each(infos, num):
    """Return infos env by env, as the model has them."""
    found = [{} for _ in range(num)]
    for key in ("begins", "left"):
        for slot in np.flatnonzero(infos.get(f"_{key}", ())):
            found[slot][key] = infos[key][slot]
    for slot in np.flatnonzero(infos["_env_in_slot"]):
        found[slot]["env"] = infos["env_in_slot"][slot]
    for slot in np.flatnonzero(infos.get("_final_info", ())):
        final = {"left": infos["final_info"]["left"][slot]}
        found[slot]["final"] = infos["final_obs"][slot], final
    return found


LOST = -1


def seen_of(call, num):
    """Return the results of a call as the model has them; the slot, if an env raised, or LOST."""
    try:
        observations, *rest, infos = call()
    except EnvError as error:
        assert f"slot {error.env}: " in str(error)
        return error.env
    lost = infos.get("final_info", infos).get("worker_lost", np.zeros(1, bool))
    if lost.all():
        assert not rest or rest[2].all()
        return LOST
    rest = rest[:2]  # without truncated
    return observations.copy(), *rest, each(infos, num)


def program(dice, mode, num):
    """Yield calls as (name, arguments of the vector env, a function of the model)."""
    while True:
        if dice.random() < 0.03:
            seed = dice.randrange(1000)
            yield "reset", {"seed": seed}, lambda model, seed=seed: model.reset_all(seed)
        elif dice.random() < (0.3 if mode == "Disabled" else 0.1):
            mask = np.array([dice.random() < 0.5 for _ in range(num)])
            mask[dice.randrange(num)] = True
            seeds = [dice.randrange(1000) if dice.random() < 0.2 else None for _ in range(num)]
            options = {"size": 1} if dice.random() < 0.2 else None
            yield (
                "reset",
                {"seed": seeds, "options": {"reset_mask": mask, **(options or {})}},
                lambda model, one=(mask, seeds, options): model.reset_some(*one),
            )
        else:
            weights = [5, 5, 5, 0.3]
            actions = np.array(dice.choices(range(4), weights, k=num))
            yield "step", actions, lambda model, actions=actions: model.step(actions)


def call_of(envs, name, arguments):
    return (lambda: envs.step(arguments)) if name == "step" else lambda: envs.reset(**arguments)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("mode", MODES)
def test_calls_return_what_a_model_of_one_process_returns(mode, seed):
    dice = random.Random(seed)
    num, count = dice.randint(1, 5), dice.randint(1, 4)
    model = Model(mode, num, count)
    with make(mode, num, count, num_workers=dice.randint(1, num + count)) as envs:
        call = call_of(envs, "reset", {"seed": 1})
        assert equal(seen_of(call, num), model.reset_all(1))
        for name, arguments, of_model in itertools.islice(program(dice, mode, num), 300):
            if mode != "NextStep" and dice.random() < 0.05:
                slot, options = dice.randrange(num), dice.choice([None, {"size": 2}])
                envs.set_options([slot], options)
                model.options[slot] = options
            call = call_of(envs, name, arguments)
            assert equal(seen_of(call, num), of_model(model)), (name, arguments)
        assert envs.get_attr("options") == tuple(model.envs[e].options for e in model.env_of)


class Lines:
    """Trace function that raises before the n-th line of ``SpareEnvs``.

    Python runs no signal handlers before most lines: only an exception on its way to an ``except``
    could be lost there.
    """

    files = spares.__file__, slots.__file__

    def __init__(self, at):
        self.left = at
        self.in_wait = False  # whether it raised in a wait for envs

    def __call__(self, frame, event, _):
        if frame.f_code.co_filename not in self.files:
            return None
        return self.inside

    def inside(self, frame, event, _):
        if event == "line" and self.left > 0:
            self.left -= 1
            if self.left == 0:
                while frame is not None and not self.in_wait:
                    self.in_wait = frame.f_code.co_name in ("step_wait", "reset_wait")
                    self.in_wait &= frame.f_code.co_filename in self.files
                    frame = frame.f_back
                raise Interrupted
        return self.inside


def at_line(n, call, wait):
    """Raise at the n-th line of a call, then wait for it; return the results and the function."""
    lines = Lines(n)
    sys.settrace(lines)
    try:
        results = call()
    except Interrupted:
        sys.settrace(None)
        results = wait()
    finally:
        sys.settrace(None)
    return results, lines


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
def test_results_are_the_same_if_a_handler_raises_at_any_line_of_a_wait(mode):
    def run(envs, at=0):
        """Raise at line ``at`` of each call; stop if that loses the envs."""
        found, left = [], at
        for name, arguments, _ in itertools.islice(calls(), 8):
            wait = envs.step_wait if name == "step" else envs.reset_wait
            results, lines = at_line(at, call_of(envs, name, arguments), wait)
            found.append(seen_of(lambda results=results: results, 3))
            left = min(left, lines.left)
            if lines.left == 0 < at and not lines.in_wait:
                assert found[-1] == LOST or name == "reset"
                return None, 0
        return found, left

    def calls():
        yield "reset", {"seed": 5}, None
        yield from program(random.Random(1), mode, 3)

    losses = 0
    with make(mode, 3, 1, Sound) as envs:
        expected, _ = run(envs)
        at, left = 0, 0
        while left == 0:
            at += 1
            found, left = run(envs, at)
            if found is None:
                losses += 1
                found, _ = run(envs)
            assert equal(found, expected), at
    assert at - losses > 60
    assert losses > 5


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
def test_next_wait_returns_an_interrupted_call_or_says_that_envs_were_lost(mode):
    model, kept, losses = Model(mode, 3, 1, Sound), 0, 0
    calls = program(random.Random(2), mode, 3)
    with make(mode, 3, 1, Sound) as envs:
        assert equal(seen_of(lambda: envs.reset(seed=3), 3), model.reset_all(3))
        for n in points():
            name, arguments, of_model = next(calls)
            call = call_of(envs, name, arguments)
            wait = envs.step_wait if name == "step" else envs.reset_wait
            where = reached = None

            def interrupted(n=n, call=call, wait=wait):
                nonlocal where, reached
                reached, results, where = at_point(n, call)
                if results is None and envs.pending:
                    reached, results, where = at_point(n, wait)
                    results = wait() if results is None and envs.pending else results
                return call() if results is None else results

            found, expected = seen_of(interrupted, 3), of_model(model)
            kept += equal(found, expected)
            if not equal(found, expected):
                losses += 1
                made_again = name == "reset" or found == LOST
                assert made_again or all("begins" in info for info in found[-1]), (n, where)
                again = seen_of(lambda n=n: envs.reset(seed=n), 3)
                assert equal(again, model.reset_all(n)), (n, where)
            if n > 700:
                break
    assert kept
    assert losses


@pytest.mark.slow
@closing_while_pending
def test_handler_can_close_at_any_point_of_a_step():
    closed = 0
    for n in range(1, 2000, 83):
        with begun(make("SameStep", 2, 1, Sound), seed=n) as envs:

            def close(*_, envs=envs):
                envs.close()

            try:
                reached, results, where = at_point(n, lambda envs=envs: envs.step([0, 0]), close)
            except ClosedError:
                reached, closed = True, closed + 1
            else:
                assert not reached or results is not None, where
            assert envs.closed == envs._spares.inner.closed == reached
        if not reached:
            break
    assert closed > 5


class Hangs(Sound):
    """Action 3 never returns, nor does any reset but the first, if ``slow_resets``."""

    slow_resets = False
    resets = 0

    def reset(self, **options):
        self.resets += 1
        if self.resets > 1 and self.slow_resets:
            threading.Event().wait()
        return super().reset(**options)

    def step(self, action):
        if action == 3:
            threading.Event().wait()
        return super().step(action)


class ResetsOnce(Hangs):
    slow_resets = True


@pytest.mark.slow
@closing_while_pending
@pytest.mark.parametrize("waits", ["for a step", "for a spare"])
def test_closing_in_a_handler_ends_an_endless_wait(waits):
    kind, action = (Hangs, 3) if waits == "for a step" else (ResetsOnce, 0)
    envs = begun(make("SameStep", 2, 1, kind, num_workers=None), seed=1)
    timer = signal_later(0.2)
    with handler(lambda *_: envs.close(terminate=True)):
        timer.start()
        with pytest.raises(ClosedError):
            while True:
                envs.step(np.full(2, action))
        timer.join()
    assert envs.closed
    assert envs._spares.inner.closed


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
def test_slots_have_different_envs_while_workers_die(mode, caplog):
    dice = random.Random(4)
    options = {"on_worker_loss": "restart", "max_restarts": 10**6, "num_workers": 3}
    with make(mode, 3, 2, **options) as envs:
        pool = envs._spares.inner._pool
        envs.reset(seed=1)
        over, lost = np.zeros(3, bool), 0
        for step in range(150):
            if dice.random() < 0.1:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(dice.choice(pool.pids), signal.SIGKILL)
            wait = envs.step_wait
            if mode == "Disabled" and over.any():
                call, wait = (
                    lambda over=over: envs.reset(options={"reset_mask": over}),
                    envs.reset_wait,
                )
            else:
                call = lambda step=step: envs.step(np.full(3, step % 3))  # noqa: E731
            try:
                _, results, where = at_point(dice.randrange(1, 3000), call)
                if results is None:
                    results = wait() if envs.pending else call()
            except EnvError:  # a reset with a bad seed, or an episode that had ended
                continue
            *_, infos = results
            if "env_in_slot" in infos:  # not if an exception has lost all envs
                in_slot = infos["env_in_slot"][infos["_env_in_slot"]].tolist()
                assert len(set(in_slot)) == len(in_slot), where
            over = results[2] | results[3] if len(results) == 5 else np.zeros(3, bool)
            lost += np.sum(infos.get("worker_lost", 0))
            lost += np.sum(infos.get("final_info", {}).get("worker_lost", 0))
        assert lost > 0
        assert envs.stats().losses.sum() > 3
