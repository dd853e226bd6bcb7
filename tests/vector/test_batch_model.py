"""The simulation of recv agrees with arithmetic, and the tuner comes close to the best rate."""

import batch_model
import pytest

from pysampler._vector.tuner import BatchTuner, WaitRule, wait_rules

COSTS = {"step": 100e-6, "batch": 40e-6, "row": 1e-6, "hop": 20e-6}


def rate(rule, length=2000, **loop):
    """Return the env steps per second with a fixed rule."""
    simulated = batch_model.Loop(**{**COSTS, "steps": "constant", **loop})
    return batch_model.simulated(simulated, lambda _: batch_model.Fixed(rule), length, warm_up=100)


def test_round_time_is_the_sum_of_its_parts():
    seconds = 20e-6 + 8 * 100e-6 + 20e-6 + 40e-6 + 16 * 1e-6  # wake, steps, wake, recv and send
    assert rate(WaitRule(16), workers=2, envs=16) == pytest.approx(16 / seconds)
    seconds += 500e-6 + 16 * 10e-6
    policy = {"policy": 500e-6, "policy_row": 10e-6}
    assert rate(WaitRule(16), workers=2, envs=16, **policy) == pytest.approx(16 / seconds)


def test_workers_keep_stepping_while_the_parent_answers_others():
    """With a free policy, both workers are always busy."""
    assert rate(WaitRule(4), workers=2, envs=16) == pytest.approx(2 / 100e-6)


def test_timeout_ends_the_wait_for_a_straggler():
    """One of two workers takes ten times as long; the other one's env does not wait for it."""
    slow = {"steps": "straggler", "workers": 2, "envs": 2}
    all_of_them = rate(WaitRule(2), **slow)
    assert rate(WaitRule(2, 200e-6), **slow) > 2 * all_of_them
    assert rate(WaitRule(2, 1.0), **slow) == all_of_them


def test_isolated_straggler_does_not_delay_other_envs():
    loop = batch_model.Loop(3, 9, "straggler", isolated=True)
    assert [loop.worker_of(env) for env in range(9)] == [0, 1, 1, 1, 1, 2, 2, 2, 2]
    slow = {"steps": "straggler", "workers": 3, "envs": 9}
    assert rate(WaitRule(9), isolated=True, **slow) > 1.03 * rate(WaitRule(9), **slow)


def test_parent_that_shares_a_cpu_delays_workers():
    enough = rate(WaitRule(4), workers=2, envs=16)
    assert rate(WaitRule(4), workers=2, envs=16, cpus=3) == enough
    assert rate(WaitRule(4), workers=2, envs=16, cpus=2) < 0.97 * enough


@pytest.mark.slow
@pytest.mark.parametrize("policy", [0, 1e-3])
@pytest.mark.parametrize("steps", ["constant", "exponential", "straggler", "resets"])
@pytest.mark.parametrize(("workers", "envs"), [(2, 16), (8, 32)])
def test_tuner_comes_close_to_the_best_rate(workers, envs, steps, policy):
    """Over twenty simulated seconds, first trial included; it costs most if steps vary a lot."""
    loop = {"workers": workers, "envs": envs, "steps": steps, "policy": policy}
    given = wait_rules([1] * envs, envs)
    fixed = {
        rule: rate(rule, 10_000, **loop)
        for rule in [*given, *(WaitRule(envs, timeout) for timeout in (3e-4, 1e-3, 3e-3))]
    }
    auto = batch_model.simulated(
        batch_model.Loop(**COSTS, **loop),
        lambda clock: BatchTuner(given, envs, clock=clock),
        int(20 * max(fixed.values())),
    )
    assert auto > (0.92 if steps == "resets" else 0.95) * max(fixed.values())
    assert auto > 0.98 * fixed[WaitRule(envs)]
