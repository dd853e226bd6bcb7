"""The simulation of rounds with main envs agrees with arithmetic."""

from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def model(monkeypatch):
    monkeypatch.syspath_prepend(BENCHMARKS)
    import division_model

    return division_model


def test_round_time_is_the_sum_of_its_parts(model):
    costs = model.Costs(send=(3, 1), wake=(5, 2), notice=(7, 0), read=11, spread=0)
    assert model.simulated(8, 2, 0, 10, costs) == pytest.approx(5 + 9 + 4 * 10 + 7 + 11)
    # The parent's six envs outlast the worker's two; then the worker's six the parent's two.
    assert model.simulated(8, 1, 6, 10, costs) == pytest.approx(4 + 6 * 10 + 11)
    assert model.simulated(8, 1, 2, 10, costs) == pytest.approx(4 + 7 + 6 * 10 + 11)


def test_round_ends_with_the_slowest_process(model):
    even, uneven = (
        model.simulated(64, 8, 0, 100, model.Costs(spread=spread)) for spread in (0, 0.1)
    )
    assert uneven > even * 1.1


def test_gain_is_that_of_the_best_number_of_main_envs(model):
    faster, own = model.gain(64, 2, 5.5)
    usual = model.simulated(64, 2, 0, 5.5)
    others = [usual / model.simulated(64, 1, n, 5.5) for n in range(1, 64)]
    assert faster == max(others) == others[own - 1]
