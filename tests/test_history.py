"""The history of speed: rows are appended, and drops of ratios are found machine by machine."""

import importlib
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
RESULTS = BENCHMARKS / "results"


@pytest.fixture
def history(monkeypatch):
    pytest.importorskip("psutil")
    monkeypatch.syspath_prepend(BENCHMARKS)
    return importlib.import_module("history")


def row(middle, width=0.02, machine="A, 2 CPUs", name="Flag"):
    quartiles = [middle - width / 2, middle, middle + width / 2]
    return {"machine": machine, "ratios": {name: quartiles}}


def test_history_appends_a_row_for_each_run(history, tmp_path):
    path = tmp_path / "results" / "history.jsonl"
    assert history.read(path) == []
    assert history.append(path, row(0.8)) == [row(0.8)]
    first = path.read_text()
    assert history.append(path, row(0.9)) == [row(0.8), row(0.9)]
    assert path.read_text().startswith(first)


def test_a_drop_of_more_than_three_quartile_ranges_is_found(history):
    earlier = [row(0.8)] * 4
    assert history.drops([*earlier, row(0.745)]) == []
    assert history.drops([*earlier, row(0.95)]) == []
    (drop,) = history.drops([*earlier, row(0.73)])
    assert drop == (
        "Flag fell from 0.80 to 0.73: more than 3 quartile ranges of 0.020 (4 earlier rows)"
    )


def test_the_spread_between_runs_widens_what_a_ratio_may_fall(history):
    earlier = [row(one) for one in (0.7, 0.75, 0.8, 0.85, 0.9)]  # quartiles 0.1 apart
    assert history.drops([*earlier, row(0.55)]) == []
    assert len(history.drops([*earlier, row(0.45)])) == 1


def test_rows_of_other_machines_are_not_compared(history):
    earlier = [row(0.8, machine="B, 16 CPUs")] * 3
    assert history.drops([*earlier, row(0.1)]) == []
    assert len(history.drops([*earlier, row(0.8), row(0.1)])) == 1
    assert "| - |" in history.report([{**one, **ABOUT} for one in (*earlier, row(0.1))])


def test_ratios_are_compared_with_recent_rows_that_have_them(history):
    assert history.drops([row(0.8, name="recv"), row(0.1)]) == []
    old, recent = [row(0.8)] * 50, [row(0.5)] * history.RECENT
    assert history.drops([*old, *recent, row(0.49)]) == []
    assert len(history.drops([*recent, *old, row(0.49)])) == 1


ABOUT = {"date": "2026-01-01", "commit": "0", "kernel": "6", "load": 0.0, "stolen": 0.0}


@pytest.mark.long
def test_history_measures_a_ratio_and_draws_it(history, tmp_path):
    pytest.importorskip("matplotlib")
    command = [sys.executable, str(BENCHMARKS / "history.py"), "--quick", "--only", "Flag"]
    for count in (1, 2):
        done = subprocess.run(
            [*command, "--out", str(tmp_path)], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        rows = history.read(tmp_path / "history.jsonl")
        assert [list(one["ratios"]) for one in rows] == [["Flag"]] * count
        assert ("no earlier row of this machine" in done.stderr) == (count == 1)
    assert (tmp_path / "history.md").read_text() == history.report(rows)
    assert "<svg" in (tmp_path / "history.svg").read_text()


def test_the_page_shows_the_newest_row(history):
    rows = history.read(RESULTS / "history.jsonl")
    assert (RESULTS / "history.md").read_text() == history.report(rows)
