"""The model of a sampler with a time-out agrees with hand computations."""

from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
LENGTH = 40
ENVS = 10
SLICE = 0.004


@pytest.fixture
def model(monkeypatch):
    monkeypatch.syspath_prepend(BENCHMARKS)
    import timeout_model

    return timeout_model


def constant(*seconds):
    """Return rounds of workers, each with a constant duration."""
    return [[one] * LENGTH for one in seconds]


def varied(workers):
    return [[0.01 + 0.002 * ((7 * w + 3 * i) % 5) for i in range(LENGTH)] for w in range(workers)]


def sampled(model, rounds, cpus=100, costs=None, **world):
    """Return the outcome of a sample; costs that are not given are zero."""
    every = model.Costs(rounds, **{"policy": [(1, 0.0)], "slice": SLICE, **(costs or {})})
    one = model.Model(every, model.World(len(rounds), ENVS, cpus, LENGTH, **world))
    one._rounds = rounds  # each worker uses its own rounds instead of drawing them
    return one.run()


def seconds(outcome, workers):
    """Return how long the sample took."""
    return workers * ENVS * LENGTH / outcome.rate


def test_equal_workers_take_a_round_and_a_call_per_step(model):
    outcome = sampled(model, constant(*[0.01] * 8), costs={"policy": [(1, 0.002)]})
    assert seconds(outcome, 8) == pytest.approx(LENGTH * 0.012)
    assert outcome.batch == 1.0


def test_each_cost_of_the_parent_counts(model):
    costs = {"call": 0.002, "receive": 0.0003, "send": 0.00001, "hop": 0.0005}
    outcome = sampled(model, constant(*[0.01] * 4), costs=costs)
    # The last worker begins after four sends; the parent receives four answers.
    step = 0.002 + 4 * 0.00001 + 0.0005 + 0.01 + 0.0005 + 4 * 0.0003
    assert seconds(outcome, 4) == pytest.approx(LENGTH * step)


@pytest.mark.parametrize("time", [SLICE / 4, SLICE * 25])
def test_two_workers_on_one_cpu_take_twice_as_long(model, time):
    outcome = sampled(model, constant(time, time), cpus=1)
    assert seconds(outcome, 2) == pytest.approx(LENGTH * 2 * time)


def test_rounds_on_one_cpu_are_scheduled_in_slices(model):
    together = sampled(model, constant(0.1, 0.1), cpus=1, timeout=0.15)
    # The first ends at 0.196 s, the other at 0.2 s, so the parent receives the first alone.
    assert seconds(together, 2) == pytest.approx(LENGTH * 0.2, rel=0.01)
    cpus = model.Cpus(simulation := model.Simulation(), 1, SLICE)
    ended = {}

    def work(name, time):
        yield model.Thread(cpus), time
        ended[name] = simulation.now

    for name, time in (("short", 0.003), ("long", 0.099), ("longest", 0.11)):
        simulation.start(work(name, time))
    simulation.run(lambda: False)
    assert ended["short"] == pytest.approx(0.003)
    assert ended["long"] == pytest.approx(0.003 + 2 * 0.099, abs=1.1 * SLICE)
    assert ended["longest"] == pytest.approx(0.003 + 0.099 + 0.11)


def test_a_woken_thread_preempts_after_a_slice(model):
    cpus = model.Cpus(simulation := model.Simulation(), 1, SLICE)
    ended = {}

    def work(name, sleeps, time):
        yield sleeps
        yield model.Thread(cpus), time
        ended[name] = simulation.now

    simulation.start(work("busy", 0.0, 1.0))
    simulation.start(work("woken", 0.001, 0.001))
    simulation.run(lambda: False)
    assert ended == {"woken": pytest.approx(SLICE + 0.001), "busy": pytest.approx(1.001)}


def test_waiting_for_all_sums_slowest_rounds_and_waiting_for_one_sums_each(model):
    # The workers alternate in being slow: waiting for all always takes the slower one's time.
    rounds = [[0.01, 0.05] * (LENGTH // 2), [0.05, 0.01] * (LENGTH // 2)]
    every = sampled(model, rounds)
    assert seconds(every, 2) == pytest.approx(LENGTH * 0.05)
    for world in ({"min_workers": 1}, {"timeout": 0.0}):
        one = sampled(model, rounds, **world)
        assert seconds(one, 2) == pytest.approx(LENGTH * 0.03)
        assert one.batch < 1.0


def test_a_straggler_bounds_waiting_for_all(model):
    rounds = constant(*[0.01] * 7, 0.05)
    assert seconds(sampled(model, rounds), 8) == pytest.approx(LENGTH * 0.05)
    short = sampled(model, rounds, timeout=0.02)
    assert seconds(short, 8) >= LENGTH * 0.05  # the straggler makes as many steps
    assert short.batch < 0.9


def test_a_constant_policy_cost_favors_waiting_for_all(model):
    rounds = constant(*(0.01 + 0.0001 * worker for worker in range(8)))
    costs = {"policy": [(1, 0.02)]}
    for on_cpu in (True, False):
        every = sampled(model, rounds, costs={**costs, "on_cpu": on_cpu})
        one = sampled(model, rounds, costs={**costs, "on_cpu": on_cpu}, min_workers=1)
        assert one.rate < every.rate


def test_a_policy_cost_that_grows_with_the_batch_favors_parts(model):
    rounds = constant(0.02, 0.021)
    costs = {"policy": [(ENVS, 0.01), (2 * ENVS, 0.02)]}
    every = sampled(model, rounds, costs=costs)
    one = sampled(model, rounds, costs=costs, min_workers=1)
    assert seconds(every, 2) == pytest.approx(LENGTH * (0.021 + 0.02))
    assert seconds(one, 2) == pytest.approx(LENGTH * (0.021 + 0.01), rel=0.05)


def test_a_policy_off_the_cpu_leaves_it_to_the_workers(model):
    rounds = constant(0.04, 0.08)
    costs = {"policy": [(1, 0.04)]}
    on_one = sampled(model, rounds, 1, costs, min_workers=1)
    elsewhere = sampled(model, rounds, 1, {**costs, "on_cpu": False}, min_workers=1)
    # On one CPU each step takes at least both rounds and a call.
    assert seconds(on_one, 2) >= LENGTH * (0.04 + 0.08 + 0.04)
    assert LENGTH * (0.04 + 0.08) <= seconds(elsewhere, 2) < LENGTH * (0.04 + 0.08 + 0.04)


@pytest.mark.parametrize("world", [{}, {"timeout": 0.0}, {"timeout": 0.012}, {"min_workers": 3}])
def test_more_cpus_are_never_slower(model, world):
    costs = {"policy": [(ENVS, 0.001), (6 * ENVS, 0.003)], "call": 1e-4}
    rates = [sampled(model, varied(6), cpus, costs, **world).rate for cpus in (1, 2, 4, 7, 20)]
    assert rates == sorted(rates)
    assert rates[-1] > 3 * rates[0]


def test_the_timeout_ends_the_wait_with_the_answers_so_far(model):
    rounds = constant(0.01, 0.02, 0.03, 0.2)
    for timeout, first in ((0.005, 1), (0.015, 1), (0.025, 2), (0.035, 3), (0.5, 4)):
        one = model.Model(
            model.Costs(rounds, [(1, 0.0)]), model.World(4, ENVS, 9, LENGTH, timeout=timeout)
        )
        one._rounds = rounds
        one.run()
        assert one._batches[:2] == [4, first]


def test_the_articles_timeout_begins_with_the_first_answer(model):
    rounds = constant(0.01, 0.014, 0.03, 0.2)
    for timeout, first in ((0.0, 1), (0.005, 2), (0.025, 3)):
        world = model.World(4, ENVS, 9, LENGTH, timeout=timeout, after_first=True)
        one = model.Model(model.Costs(rounds, [(1, 0.0)]), world)
        one._rounds = rounds
        one.run()
        assert one._batches[:2] == [4, first]


def test_costs_are_interpolated_linearly_and_extrapolated(model):
    costs = model.Costs([[1.0]], [(10, 1.0), (20, 3.0), (40, 4.0)])
    assert [costs.policy_seconds(rows) for rows in (5, 15, 30, 60)] == [1.0, 2.0, 3.5, 5.0]


def test_samples_repeat_by_seed(model):
    costs = model.Costs(varied(5), [(1, 0.001)])
    world = model.World(8, ENVS, 2, LENGTH, timeout=0.001)
    first, same, other = (model.Model(costs, world, seed).run() for seed in (1, 1, 2))
    assert first == same != other


def test_workers_follow_traces_in_blocks(model):
    count = 2 * model.BLOCK + 20
    traces = [[1000 * trace + i for i in range(count)] for trace in range(3)]
    world = model.World(4, ENVS, cpus=1, length=2 * count)
    one = model.Model(model.Costs(traces, [(1, 0.0)]), world)
    for rounds in one._rounds:
        assert [r % 1000 for r in rounds[: 2 * count]] == [*range(count)] * 2
        assert len({r // 1000 for r in rounds[: model.BLOCK]}) == 1
    assert len({r // 1000 for rounds in one._rounds for r in rounds}) == 3


def test_an_unused_timeout_does_not_end_a_later_wait(model):
    outcome = sampled(model, constant(0.01, 0.02), timeout=0.03)
    assert outcome.batch == 1.0


def test_choices_are_sorted_and_prefer_waiting_for_all(model):
    equal = model.Costs(constant(0.01), [(1, 0.001)])
    world = model.World(4, ENVS, 9, LENGTH)
    best = model.choices(equal, world, [0.0, 0.1, None])[0]
    assert (best.min_workers, best.timeout, best.gain) == (4, None, 1.0)
    uneven = model.Costs(varied(5), [(1, 0.0)])
    ways = model.choices(uneven, world, [0.0, 0.1, None])
    assert ways[0].gain == max(way.gain for way in ways) > 1.05
