"""Results of a sample of the operators say that they are one, and how far their estimates may be off."""

from __future__ import annotations

import json
import random
from io import StringIO
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from rich.console import Console

from stepscope.analyse import results
from stepscope.analyse.step import sample
from stepscope.analyse.step.summarise import summarise
from stepscope.read import read_files
from stepscope.report.terminal.printed_summary import render
from stepscope.trace.tables import Tables, lazy
from tests.unit.recorder_build import File

NAMES = {"aten::mm": (2_000, 500.0, 0.3), "aten::add": (6_000, 40.0, 0.1), "aten::rare": (700, 3_000.0, 0.4)}


def calls(seed: int) -> list[tuple[str, int]]:
    """Return name and duration of the calls of a program, in order."""
    chance = np.random.default_rng(seed)
    rows = [
        (name, int(time))
        for name, (count, median, spread) in NAMES.items()
        for time in chance.lognormal(np.log(median), spread, count)
    ]
    return [rows[place] for place in chance.permutation(len(rows))]


def recorded(path: Path, program: list[tuple[str, int]], fraction: float, seed: int, **sizes: int) -> Tables:
    """Record a program; all steps are there.

    Args:
        path: Where.
        program: Its calls.
        fraction: Of the calls; each is in the sample with the same probability.
        seed: Of what is drawn.
        sizes: ``step``, the calls of a step; ``first``, the steps after which whole steps are drawn.
    """
    path.unlink(missing_ok=True)
    file, chance, now = File(path, sample=fraction), random.Random(seed), 0
    step = sizes.get("step", 1_000)
    thread, rate, rates = file.thread(), fraction, [(0, fraction)]
    for place, (name, time) in enumerate(program):
        if place % step == 0:
            if place // step >= sizes.get("first", len(program)):
                rate = float(chance.random() < fraction)
                rates.append((now, rate))
            thread.begin(now, f"ProfilerStep#{place // step}", scope=7, identity=1)
        now += 10
        if chance.random() < rate:
            thread.begin(now, name)
            thread.end(now + time)
        now += time
        if place % step == step - 1 or place == len(program) - 1:
            thread.end_of(now, 1)
    if fraction < 1:
        file.rates(rates)
    return lazy(read_files([file.close(now + 1)]))


def by_name(tables: Tables) -> dict[str, dict[str, float]]:
    frame = results.compute("op_statistic", tables)
    assert isinstance(frame, pl.DataFrame)
    return {row["OP Type"]: row for row in frame.to_dicts()}


@pytest.mark.parametrize("sizes", [{}, {"step": 40, "first": 4}], ids=["calls are drawn", "steps are drawn"])
def test_estimates_are_off_by_as_much_as_they_say(sizes: dict[str, int], tmp_path: Path) -> None:
    # Given: the same program, sampled again and again
    program = calls(1)
    true = {name: [time for each, time in program if each == name] for name in NAMES}
    scores: dict[str, list[float]] = {"count": [], "total": []}
    for seed in range(25):
        found = by_name(recorded(tmp_path / "a.ssr", program, 0.1, seed, **sizes))
        for name, times in true.items():
            row = found[name]
            scores["count"].append((row["Count"] - len(times)) / row["Count Error"])
            scores["total"].append((row["Total Time(us)"] - sum(times) / 1e3) / row["Total Time Error(us)"])
            # How many steps are drawn varies by a tenth, and is known: the estimate is not ten times the sample.
            assert row["Sampled Calls"] == pytest.approx(row["Count"] / 10, abs=1, rel=0.4 if sizes else 0)
    # Then: deviations over standard errors have mean 0 and variance 1 (75 values each: ± 3 standard deviations)
    for values in scores.values():
        assert abs(np.mean(values)) < 3 / np.sqrt(75)
        assert 0.75 < np.std(values) < 1.3


def test_of_steps_that_are_alike_a_few_tell_all(tmp_path: Path) -> None:
    program = [(name, 50) for _ in range(400) for name in ["aten::mm"] * 30 + ["aten::add"] * 10]
    by_step = by_name(recorded(tmp_path / "a.ssr", program, 0.04, 7, step=40, first=5))
    by_call = by_name(recorded(tmp_path / "b.ssr", program, 0.04, 7, step=40))
    for name, count in (("aten::mm", 12_000), ("aten::add", 4_000)):
        assert (by_step[name]["Count"], by_step[name]["Count Error"]) == (count, 0)
        assert by_step[name]["Total Time(us)"] == pytest.approx(count * 0.05)
        assert 0 < abs(by_call[name]["Count"] - count) < 4 * by_call[name]["Count Error"]


def test_too_few_drawn_steps_are_taken_to_be_like_the_first(tmp_path: Path) -> None:
    # Given: five steps of which calls were drawn, then five of which one step was
    file = File(tmp_path / "a.ssr", sample=0.25)
    file.rates([(0, 0.25), (50_000, 0.0), (70_000, 1.0), (80_000, 0.0)])
    thread = file.thread()
    for number in range(10):
        thread.begin(number * 10_000, f"ProfilerStep#{number}", scope=7, identity=1)
        if number < 5 or number == 7:
            for name in ["aten::mm"] * (10 if number < 5 else 40) + ["aten::late"] * (number == 7):
                thread.begin(number * 10_000 + 10, name)
                thread.end(number * 10_000 + 20)
        thread.end_of(number * 10_000 + 9_990, 1)
    found = by_name(lazy(read_files([file.close(100_000)])))
    # Then: 50 calls in 5 of 10 steps stand for 4 × 50 × 2; what only the drawn step has is off by as much as it is
    assert (found["aten::mm"]["Count"], found["aten::mm"]["Sampled Calls"]) == (400, 50)
    assert found["aten::mm"]["Count Error"] == pytest.approx(np.sqrt(50 * 0.75) * 8, abs=0.001)
    assert (found["aten::late"]["Count"], found["aten::late"]["Count Error"]) == (4, pytest.approx(12**0.5, abs=0.001))


def test_every_table_of_results_says_so(tmp_path: Path) -> None:
    tables = recorded(tmp_path / "a.ssr", calls(2)[:3_000], 0.05, 2)
    answers = {name: answer for name, answer in results.Results(tables).items() if isinstance(answer, pl.DataFrame)}
    assert {"op_statistic", "operator_details", "step_trace_time", "kernel_details"} <= set(answers)
    for name, answer in answers.items():
        assert answer.columns[-1] == sample.COLUMN, name
        assert set(answer[sample.COLUMN]) <= {5.0}, name
    steps = answers["step_trace_time"]
    assert steps.height == 3
    unknown = steps.drop("Step", "Start Time(us)", "Total", sample.COLUMN)
    assert unknown.null_count().row(0) == (3,) * unknown.width
    assert answers["operator_details"]["Host Self Duration(us)"].null_count() == answers["operator_details"].height


def test_the_summary_says_so(tmp_path: Path) -> None:
    summary = summarise(recorded(tmp_path / "a.ssr", calls(3)[:3_000], 0.05, 3))
    assert summary.sampled == 0.05
    assert summary.split == ()
    assert all(entry.error_ns > 0 for entry in summary.operators)
    console = Console(width=100, record=True, file=StringIO(), force_terminal=False)
    render(summary, [], {}, console)
    text = console.export_text()
    assert "5 % of the operators was recorded" in text
    assert "operators, 5 % sample" in text
    assert "±" in text
    assert "estimated from a sample" in text


def test_a_whole_recording_says_nothing_of_it(tmp_path: Path) -> None:
    program = calls(4)[:2_000]
    tables = recorded(tmp_path / "a.ssr", program, 1.0, 4)
    assert sample.fraction(tables) == 1
    assert "operator_sample" not in dict(tables["metadata"].collect().rows())
    found = by_name(tables)
    assert {name: row["Count"] for name, row in found.items()} == {
        name: sum(each == name for each, _ in program) for name in NAMES
    }
    assert not {sample.COLUMN, "Count Error"} & set(next(iter(found.values())))
    assert summarise(tables).sampled == 1


@pytest.mark.parametrize("said", ['"x"', "2", "-1", "0", "null", "nan", "[0.5]"])
def test_a_fraction_that_cannot_be_is_none(said: str, tmp_path: Path) -> None:
    tables = dict(recorded(tmp_path / "a.ssr", calls(5)[:10], 0.9, 5))
    tables["metadata"] = pl.DataFrame({"key": ["operator_sample"], "value": [said]}).lazy()
    assert sample.fraction(tables) == 1


def test_a_fraction_is_what_the_recorder_says(tmp_path: Path) -> None:
    tables = recorded(tmp_path / "a.ssr", calls(6)[:10], 0.25, 6)
    assert json.loads(dict(tables["metadata"].collect().rows())["operator_sample"]) == 0.25
    assert sample.fraction(tables) == 0.25
