"""BatchTuner: how recv chooses the number of envs to wait for, and the time-out."""

import functools
import random

import numpy as np
import pytest
from gymnasium import spaces
from interrupts import at_each_point
from made_up import SpaceEnv

import pysampler
from pysampler._vector import tuner
from pysampler._vector.tuner import BatchTuner, WaitRule, wait_rules

SECOND = 1_000_000_000


class Loop:
    """A loop of recv and policy with a simulated clock.

    ``batch`` returns, for a rule, the number of envs in a batch and its duration in ns.
    """

    def __init__(self, batch, given, envs=16, **options):
        self.now = 0
        self.batch = batch
        self.tuner = BatchTuner(given, envs, clock=lambda: self.now, **options)

    def turn(self, pause=0):
        self.now += pause
        self.tuner.called()
        envs, ns = self.batch(self.tuner.rule)
        self.now += ns
        self.tuner.received(envs)

    def trial(self):
        """Run until a trial is over; return the choice."""
        trials = self.tuner.choice.trials
        while self.tuner.choice.trials == trials:
            self.turn()
        return self.tuner.choice


def priced(prices):
    """Return a ``batch`` for Loop: exactly ``min_envs`` envs, at a price in ns for each."""
    return lambda rule: (rule.min_envs, prices[rule] * rule.min_envs)


FOUR = [WaitRule(16), WaitRule(12), WaitRule(8), WaitRule(1)]


@pytest.mark.parametrize("best", FOUR)
def test_fastest_batch_setting_is_chosen(best):
    prices = {rule: 50_000 if rule == best else 60_000 for rule in FOUR}
    choice = Loop(priced(prices), FOUR, timeouts=False).trial()
    assert (choice.min_envs, choice.timeout) == best
    assert choice.rates == {tuple(rule): pytest.approx(1e9 / ns) for rule, ns in prices.items()}


def test_all_envs_are_awaited_unless_something_is_clearly_faster():
    prices = {WaitRule(16): 50_000, WaitRule(12): 50_000, WaitRule(8): 49_900, WaitRule(1): 55_000}
    assert Loop(priced(prices), FOUR, timeouts=False).trial().min_envs == 16


def test_choice_is_kept_for_twenty_times_its_trial():
    prices = {
        WaitRule(16): 90_000,
        WaitRule(12): 80_000,
        WaitRule(8): 50_000,
        WaitRule(1): 1_000_000,
    }
    loop = Loop(priced(prices), FOUR, timeouts=False)
    loop.trial()
    took = loop.now
    while loop.tuner.rule == WaitRule(8):
        loop.turn()
    assert 20 * took <= loop.now - took <= 20 * took + SECOND


def test_rare_slow_steps_do_not_change_the_choice():
    """Rare long steps slow all rules but one, though not in every window."""
    for seed in range(10):
        dice = random.Random(seed)

        def batch(rule, dice=dice):
            if rule == WaitRule(8):
                return 8, 8 * 60_000
            long = sum(dice.random() < 0.01 for _ in range(rule.min_envs))
            return rule.min_envs, rule.min_envs * 50_000 + long * 3_000_000

        assert Loop(batch, FOUR, timeouts=False).trial().min_envs == 8, seed


def test_pauses_of_the_caller_are_not_measured():
    prices = {WaitRule(16): 60_000, WaitRule(12): 60_000, WaitRule(8): 50_000, WaitRule(1): 60_000}
    loop = Loop(priced(prices), FOUR, timeouts=False)
    turns = 0
    while loop.tuner.choice.trials == 0:
        best = loop.tuner.rule == WaitRule(8)
        turns += best
        # The caller trains for a second, twice while the best rule is measured.
        loop.turn(SECOND if best and turns in (10, 20) else 0)
    assert turns > 20
    assert loop.tuner.choice.min_envs == 8


def test_changed_rate_starts_a_new_trial():
    loop = Loop(
        priced({WaitRule(16): 50_000, WaitRule(1): 50_000}),
        [WaitRule(16), WaitRule(1)],
        timeouts=False,
    )
    assert loop.trial().min_envs == 16
    took = loop.now
    loop.batch = priced({WaitRule(16): 100_000, WaitRule(1): 50_000})
    assert loop.trial().min_envs == 1
    assert loop.now - took < 10 * took  # in simulated time


def test_timeouts_are_tried_when_a_few_batches_are_slow():
    """One of 16 envs sometimes resets for 5 ms; the policy takes 5 ms for any batch."""
    dice = random.Random(1)

    def batch(rule):
        if rule.min_envs == 1:
            return 8, 6_000_000
        if dice.random() < 0.85:
            return 16, 1_000_000 + 5_000_000
        if rule.timeout is None:
            return 16, 5_000_000 + 5_000_000
        return 15, int(rule.timeout * 1e9) + 5_000_000

    loop = Loop(batch, [WaitRule(16), WaitRule(1)])
    loop.turn = functools.partial(_with_policy, loop)
    choice = loop.trial()
    assert choice.min_envs == 16
    assert choice.timeout is not None
    assert 0.001 < choice.timeout < 0.005


def _with_policy(loop):
    """Loop.turn with 5 ms of each batch spent outside recv."""
    loop.now += 5_000_000
    loop.tuner.called()
    envs, ns = loop.batch(loop.tuner.rule)
    loop.now += ns - 5_000_000
    loop.tuner.received(envs)


def test_time_before_resumed_does_not_count():
    """A learner between two rollouts makes no batch slower."""
    prices = dict.fromkeys(FOUR, 50000)
    loop = Loop(priced(prices), FOUR, timeouts=False)
    trials, turns = loop.tuner.choice.trials, 0
    while loop.tuner.choice.trials == trials:
        loop.turn()
        turns += 1
        if turns % 10 == 0:
            loop.now += SECOND
            loop.tuner.resumed()
    assert list(loop.tuner.choice.rates.values()) == pytest.approx([20_000] * 4)


@pytest.mark.parametrize(
    ("groups", "max_envs", "expected"),
    [
        ([1] * 16, 16, [16, 15, 14, 12, 8, 4, 1]),
        ([1] * 16, 8, [8, 7, 6, 4, 2, 1]),
        ([8, 8], 16, [16, 8]),
        ([5, 4, 4], 13, [13, 8, 4]),
        ([3], 3, [3]),
        ([1] * 64, 64, [64, 63, 62, 60, 56, 48, 32, 16, 1]),
    ],
)
def test_candidate_batch_sizes_depend_on_groups_and_max_envs(groups, max_envs, expected):
    assert [rule.min_envs for rule in wait_rules(groups, max_envs)] == expected


@pytest.mark.slow
def test_tuner_continues_after_an_interrupt(monkeypatch):
    monkeypatch.setattr(tuner, "_SWEEPS", (1, 1, 2))
    prices = {WaitRule(16): 50_000, WaitRule(12): 50_000, WaitRule(8): 50_000, WaitRule(1): 60_000}
    loops = []

    def trial():
        loops.append(Loop(priced(prices), FOUR, timeouts=False))
        return loops[-1].trial()

    def check(_, where):
        assert loops[-1].trial().min_envs in (16, 12, 8), where
        assert loops[-1].tuner.rule == WaitRule(*loops[-1].tuner.choice[:2]), where

    inside = "_end_part", "_go_on", "_drop_slow", "_choose", "_take", "_begin_window"
    assert at_each_point(trial, check, only=inside) > 100


# -- recv ------------------------------------------------------------------------------------------

FNS = [functools.partial(SpaceEnv, spaces.Box(0, 100, (2,), np.float32), spaces.Discrete(5))] * 6


def play(envs, batches, **arguments):
    """Answer batches; return the env ids and observations of each."""
    envs.async_reset(seed=1)
    seen = []
    for _ in range(batches):
        observations, _, _, _, infos = envs.recv(**arguments)
        seen.append((infos["env_id"].tolist(), observations.tolist()))
        envs.send(infos["env_id"] % 5, infos["env_id"])
    envs.recv()
    return seen


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize(
    "arguments",
    [
        {"min_envs": "auto"},
        {"timeout": "auto"},
        {"min_envs": "auto", "timeout": "auto"},
        {"min_envs": "auto", "max_envs": 3, "timeout": "auto"},
        {"min_envs": 2, "timeout": "auto"},
    ],
    ids=str,
)
def test_stats_report_the_chosen_batch(arguments, workers):
    with pysampler.VectorEnv(FNS, num_workers=workers, groups=3) as envs:
        assert envs.stats().batches is None
        assert all(ids for ids, _ in play(envs, 20, **arguments))
        chosen = envs.stats().batches
        assert isinstance(chosen, pysampler.BatchChoice)
        assert 1 <= chosen.min_envs <= arguments.get("max_envs", 6)
        assert chosen.trials == 0
        assert f"{chosen.min_envs} envs" in str(envs.stats())


def test_each_set_of_recv_arguments_is_tuned_separately():
    with pysampler.VectorEnv(FNS, num_workers=0, groups=3) as envs:
        play(envs, 5, min_envs="auto")
        assert envs.stats().batches.min_envs == 6
        play(envs, 5, min_envs="auto", max_envs=4, timeout=0.5)
        assert envs.stats().batches.min_envs == 4
        # The time-out is not part of the key: a caller may compute a new one for each call.
        play(envs, 5, min_envs="auto", max_envs=4, timeout=0.25)
        play(envs, 5)
        assert envs.stats().batches.min_envs == 4


def test_replay_repeats_the_recorded_batches(tmp_path):
    """Even if the tuner would choose differently in the replay."""

    def run(**where):
        with pysampler.VectorEnv(FNS, num_workers=2, groups=3, **where) as envs:
            return play(envs, 200, min_envs="auto", timeout="auto")

    recorded = run(record_to=tmp_path / "batches")
    assert run(replay_from=tmp_path / "batches") == recorded


def test_tuner_counts_every_received_env(monkeypatch):
    counts = []
    monkeypatch.setattr(BatchTuner, "received", lambda _, count: counts.append(count))
    with pysampler.VectorEnv(FNS, num_workers=2, groups=3) as envs:
        seen = play(envs, 20, min_envs="auto", max_envs=3)
    assert counts == [len(ids) for ids, _ in seen]
