"""Spread, trend and first step, and what grew in slow steps: against numbers computed by hand."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

from stepscope.analyse.anatomy.slow_steps import slow_steps
from stepscope.analyse.anatomy.step_variation import slope, step_variation
from tests.unit.analyse.build import ORIGIN, Rank


def test_the_slope_is_the_median_of_all_pairs() -> None:
    # Given a line of slope 2 with one value far off it: 55 pairs, of which the 10 with that value are off
    values = np.array([2.0 * place for place in range(11)])
    values[4] = 1000.0
    found = slope(values)
    assert found is not None
    assert found.middle == 2
    # Then its interval is that of the ranks (55 ± 1.96 · √(11·10·27/18)) / 2: the 14th and the 41st slope
    slopes = sorted((values[j] - values[i]) / (j - i) for i in range(11) for j in range(i + 1, 11))
    assert (found.low, found.high) == (slopes[14 - 1], slopes[41])


def test_few_values_have_no_slope_and_many_are_grouped() -> None:
    assert slope(np.arange(7.0)) is None
    found = slope(np.arange(10_000.0) * 3)
    assert found is not None
    assert (found.low, found.middle, found.high) == pytest.approx((3, 3, 3))


def run_of(times: list[int]) -> Rank:
    rank = Rank()
    rank.thread()
    at = 0
    for number, dur in enumerate(times):
        row = {"number": number, "ts": ORIGIN + at, "dur": dur, "recorded": False, "cpu": dur - 100 * (number % 3)}
        rank.add("run_steps", **row, delay=100 * (number % 3))
        at += dur
    return rank


def test_the_first_step_stands_apart_and_the_parts_explain_the_whole() -> None:
    times = [50_000, *(10_000 + 10 * number for number in range(30))]
    found = step_variation(run_of(times).tables())
    assert found["Of"].to_list() == ["step", "cpu time", "run queue delay"]  # it waits in no step
    step = found.row(0, named=True)
    assert (step["Count"], step["Median(us)"], step["First(us)"]) == (30, 10.145, 50)
    assert step["First Excess(us)"] == pytest.approx(39.855)
    assert step["Slope(us/step)"] == pytest.approx(0.01)
    assert step["Trend(%)"] == pytest.approx(100 * 0.29 / 10.145)
    assert found["Variation(%)"][1:].sum() == pytest.approx(100)
    delay = found.row(2, named=True)
    whole, part = np.array(times[1:], float), np.array([100.0 * (number % 3) for number in range(1, 31)])
    share = 100 * np.cov(whole, part)[0, 1] / np.cov(whole, whole)[0, 1]
    assert delay["Variation(%)"] == pytest.approx(share)


def test_a_step_that_does_not_vary_has_no_shares() -> None:
    assert step_variation(run_of([1000] * 12).tables())["Variation(%)"].null_count() > 0


def slow_third_step() -> Rank:
    """Four steps of which the third collates a longer batch and has a kernel more."""
    rank = Rank()
    host, stream = rank.thread(), rank.stream()
    at = 0
    for number in range(4):
        slow = number == 2
        dur = 10_000 + 6_000 * slow
        rank.step(number + 10, at, dur)
        rank.span(host, "data", at, 1_000 + 4_000 * slow, "next", step=number + 10)
        outer = at + 6_000
        rank.span(host, "operator", outer, 3_000, "outer", step=number + 10)
        rank.span(host, "operator", outer + 500, 2_000 - 100 * number, "inner", step=number + 10)
        for call in range(2 + slow):
            rank.span(stream, "kernel", outer + 2_000 * call, 1_500, "gemm", step=number + 10)
        at += dur
    return rank


def test_what_grew_in_the_slow_step_is_named() -> None:
    found = slow_steps(slow_third_step().tables())
    rows = {row["Name"]: row for row in found.iter_rows(named=True)}
    assert set(found["Steps"]) == {"slow"}
    assert found["Name"][0] == "step"
    assert (rows["step"]["Usual Time(us)"], rows["step"]["Time(us)"], rows["step"]["Share of Growth(%)"]) == (
        10,
        16,
        100,
    )
    named = found.filter(~pl.col("Kind").is_in(["step", "part"]))
    assert named["Name"].to_list() == ["next", "gemm", "outer", "inner"]
    assert rows["next"]["Growth(us)"] == 4
    assert rows["next"]["Share of Growth(%)"] == pytest.approx(100 * 4 / 6)
    assert (rows["gemm"]["Usual Calls"], rows["gemm"]["Calls"], rows["gemm"]["Growth(us)"]) == (2, 3, 1.5)
    # The usual steps are 10 and 11, whose inner operator takes 1.95 µs on average; its own time is not its caller's
    assert rows["inner"]["Growth(us)"] == pytest.approx(-0.15)
    assert rows["outer"]["Growth(us)"] == pytest.approx(0.15)


def test_the_first_step_of_the_run_is_compared_with_the_others() -> None:
    rank = slow_third_step()
    for row in rank.rows["steps"]:
        row["number"] -= 10
        rank.add("run_steps", number=row["number"], ts=row["ts"], dur=row["dur"], recorded=True)
    for row in rank.rows["spans"]:
        row["step"] -= 10
    found = slow_steps(rank.tables())
    assert found["Steps"].unique(maintain_order=True).to_list() == ["slow", "first"]
    first = found.filter((pl.col("Steps") == "first") & (pl.col("Name") == "step")).row(0, named=True)
    assert (first["Time(us)"], first["Usual Time(us)"]) == (10, 12)
