"""The simulation of recv agrees with arithmetic, and the tuner comes close to the best rate."""

from pathlib import Path

import pytest

from pysampler._vector.tuner import BatchTuner, WaitRule, wait_rules

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
COSTS = {"step": 100e-6, "batch": 40e-6, "row": 1e-6, "hop": 20e-6}


@pytest.fixture
def model(monkeypatch):
    monkeypatch.syspath_prepend(BENCHMARKS)
    import batch_model

    return batch_model


def rate(model, rule, length=2000, **loop):
    """Return the env steps per second with a fixed rule."""
    simulated = model.Loop(**{**COSTS, "steps": "constant", **loop})
    return model.simulated(simulated, lambda _: model.Fixed(rule), length, warm_up=100)


def test_round_time_is_the_sum_of_its_parts(model):
    seconds = 20e-6 + 8 * 100e-6 + 20e-6 + 40e-6 + 16 * 1e-6  # wake, steps, wake, recv and send
    assert rate(model, WaitRule(16), workers=2, envs=16) == pytest.approx(16 / seconds)
    seconds += 500e-6 + 16 * 10e-6
    policy = {"policy": 500e-6, "policy_row": 10e-6}
    assert rate(model, WaitRule(16), workers=2, envs=16, **policy) == pytest.approx(16 / seconds)


def test_workers_keep_stepping_while_the_parent_answers_others(model):
    """With a free policy, both workers are always busy."""
    assert rate(model, WaitRule(4), workers=2, envs=16) == pytest.approx(2 / 100e-6)


def test_timeout_ends_the_wait_for_a_straggler(model):
    """One of two workers takes ten times as long; the other one's env does not wait for it."""
    slow = {"steps": "straggler", "workers": 2, "envs": 2}
    all_of_them = rate(model, WaitRule(2), **slow)
    assert rate(model, WaitRule(2, 200e-6), **slow) > 2 * all_of_them
    assert rate(model, WaitRule(2, 1.0), **slow) == all_of_them


def test_isolated_straggler_does_not_delay_other_envs(model):
    loop = model.Loop(3, 9, "straggler", isolated=True)
    assert [loop.worker_of(env) for env in range(9)] == [0, 1, 1, 1, 1, 2, 2, 2, 2]
    slow = {"steps": "straggler", "workers": 3, "envs": 9}
    assert rate(model, WaitRule(9), isolated=True, **slow) > 1.03 * rate(model, WaitRule(9), **slow)


def test_parent_that_shares_a_cpu_delays_workers(model):
    enough = rate(model, WaitRule(4), workers=2, envs=16)
    assert rate(model, WaitRule(4), workers=2, envs=16, cpus=3) == enough
    assert rate(model, WaitRule(4), workers=2, envs=16, cpus=2) < 0.97 * enough


@pytest.mark.slow
@pytest.mark.parametrize("policy", [0, 1e-3])
@pytest.mark.parametrize("steps", ["constant", "exponential", "straggler", "resets"])
@pytest.mark.parametrize(("workers", "envs"), [(2, 16), (8, 32)])
def test_tuner_comes_close_to_the_best_rate(model, workers, envs, steps, policy):
    """Over twenty simulated seconds, first trial included; it costs most if steps vary a lot."""
    loop = {"workers": workers, "envs": envs, "steps": steps, "policy": policy}
    given = wait_rules([1] * envs, envs)
    fixed = {
        rule: rate(model, rule, 10_000, **loop)
        for rule in [*given, *(WaitRule(envs, timeout) for timeout in (3e-4, 1e-3, 3e-3))]
    }
    auto = model.simulated(
        model.Loop(**COSTS, **loop),
        lambda clock: BatchTuner(given, envs, clock=clock),
        int(20 * max(fixed.values())),
    )
    assert auto > (0.92 if steps == "resets" else 0.95) * max(fixed.values())
    assert auto > 0.98 * fixed[WaitRule(envs)]
