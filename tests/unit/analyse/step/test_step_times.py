"""All steps of a run: whether the recorded ones are typical, what was in the long ones, who disturbed them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from stepscope.advise.verdict import rank_verdict
from stepscope.analyse.operators.op_statistic import host_work
from stepscope.analyse.step.run_steps import RunSteps, step_times, summarised
from stepscope.analyse.step.summarise import summarise
from stepscope.trace.tables import Tables
from tests.unit.analyse.build import ORIGIN, Rank

MS = 1_000_000


class RunOfSteps(Rank):
    """A rank whose steps follow each other without a gap."""

    def __init__(self) -> None:
        super().__init__()
        self.end = 0

    def run_step(self, dur: float | None, *, recorded: bool = False, **figures: Any) -> int:
        """Add a step of so many ms; return its start."""
        number, start = len(self.rows["run_steps"]), self.end
        lasted = None if dur is None else round(dur * MS)
        self.add("run_steps", number=number, ts=ORIGIN + start, dur=lasted, recorded=recorded, **figures)
        if recorded:
            self.step(number, start, lasted or 0)
        self.end += lasted or 0
        return start


def run_of(durations: Any, recorded: range, **figures: Any) -> Tables:
    rank = RunOfSteps()
    for number, dur in enumerate(durations):
        own = {name: int(MS * values[number]) for name, values in figures.items()}
        rank.run_step(dur, recorded=number in recorded, **own)
    return rank.tables()


def noisy(level: float, count: int, seed: int = 1) -> Any:
    return level * (1 + 0.02 * np.random.default_rng(seed).standard_normal(count))


def test_recorded_steps_like_the_others_are_typical() -> None:
    found = summarised(run_of(noisy(85, 200), range(5, 10)))
    assert (found.count, found.recorded, found.outliers) == (200, 5, 0)
    assert found.typical is not None
    assert found.typical.typical
    assert found.median_ns == pytest.approx(85 * MS, rel=0.01)
    assert found.low_ns < found.median_ns < found.high_ns < 92 * MS


def test_recorded_steps_that_find_their_batches_ready_are_not() -> None:
    # Given steps of 85 ms, 21 ms of which wait for data, and five of 63.7 ms that wait for nothing
    waits = np.full(200, 21.0)
    waits[5:10] = 0
    durations = noisy(64, 200) + waits
    found = summarised(run_of(durations, range(5, 10), data_wait=waits, cpu=durations - waits, delay=0 * waits)).typical
    assert found is not None
    assert not found.typical
    assert (found.others, found.cause) == (190, "data wait")  # without the ten of the warm-up
    assert (found.recorded_part, found.others_part) == (0, 21 * MS)
    assert found.recorded_ns == pytest.approx(64 * MS, rel=0.05)
    assert found.others_ns == pytest.approx(85 * MS, rel=0.02)


@pytest.mark.parametrize(
    ("cause", "column"), [("run queue", "delay"), ("computing", "cpu"), ("page faults", "minor_faults")]
)
def test_what_differs_most_is_the_cause(cause: str, column: str) -> None:
    rank = RunOfSteps()
    for number in range(60):
        recorded = 20 <= number < 25
        figures = {"cpu": 50 * MS, "delay": 0, "minor_faults": 0}
        if recorded:
            figures[column] += 20_000 if column == "minor_faults" else 20 * MS
        if column == "minor_faults":
            figures["cpu"] += 20 * MS * recorded
        rank.run_step(70 if recorded else 50, recorded=recorded, **figures)
    found = summarised(rank.tables()).typical
    assert found is not None
    assert (found.typical, found.cause) == (False, cause)


@pytest.mark.parametrize(("calls", "cause"), [(40, "recording"), (10, "computing")])
def test_what_recording_its_calls_costs_is_no_other_step(calls: int, cause: str) -> None:
    # Given steps of 0.3 ms of which the recorded ones take 45 µs longer, for 40 recorded operators or for 10
    rank = RunOfSteps()
    main = rank.thread()
    for number in range(60):
        recorded = 20 <= number < 25
        work = 0.345 if recorded else 0.3
        start = rank.run_step(work, recorded=recorded, cpu=round(work * MS), delay=0, minor_faults=0)
        for call in range(calls * recorded):
            rank.span(main, "operator", start + 1_000 * call, 500, step=number)
    found = summarised(rank.tables()).typical
    assert found is not None
    assert (found.typical, found.cause) == (False, cause)
    if cause == "recording":
        assert (found.recorded_part, found.others_part) == (45_000, calls)


def test_phases_of_the_machine_are_no_difference() -> None:
    # Given a run in phases of 20 steps, of 50 and of 56 ms, recorded in one of them
    durations = [50 + 6 * (number // 20 % 2) for number in range(200)]
    found = summarised(run_of(durations, range(45, 50))).typical
    assert found is not None
    assert found.typical


def test_too_few_others_and_unknown_figures_say_nothing() -> None:
    assert summarised(run_of(noisy(10, 12), range(5, 10))).typical is None
    found = summarised(run_of([10] * 30 + [30] * 30, range(5)))
    assert (found.delay_share, found.disturbed, found.other_cpu) == (None, 0, None)
    assert found.typical is not None
    assert (found.typical.typical, found.typical.cause) == (False, "")


def test_a_long_step_says_what_was_in_it() -> None:
    rank = RunOfSteps()
    for number in range(100):
        if number == 40:
            start = rank.run_step(2100, delay=0, data_wait=0)
            rank.add("run_events", name="checkpoint", ts=ORIGIN + start + MS, dur=2000 * MS)
            rank.add("run_events", name="logging", ts=ORIGIN + start + 2050 * MS, dur=MS)
        elif number == 60:
            rank.run_step(500, delay=400 * MS, data_wait=0)
        elif number == 80:
            rank.run_step(400, delay=0, data_wait=350 * MS)
        elif number == 90:
            rank.run_step(300, delay=0, data_wait=0)
        else:
            rank.run_step(170 + number % 3, delay=0, data_wait=0)
    tables = rank.tables()
    found = summarised(tables)
    assert found.outliers == 4
    told = {step.number: step.causes for step in found.longest}
    assert told == {40: (("checkpoint", 2000 * MS),), 60: (("run queue", 400 * MS),), 80: (("data wait", 350 * MS),)}
    assert max(found.picture) == 2100 * MS
    assert len(found.picture) == 60
    rows = step_times(tables)
    assert rows["Contains"][40] == "checkpoint, logging"
    assert rows.filter("Outlier")["Step"].to_list() == [40, 60, 80, 90]
    assert rows.filter("Disturbed")["Step"].to_list() == [60]


def test_a_few_steps_have_a_range_and_no_outliers() -> None:
    found = summarised(run_of([10, 10, 10, 90], range(1)))
    assert (found.low_ns, found.high_ns, found.outliers) == (10 * MS, 90 * MS, 0)


def test_a_step_of_unknown_start_is_counted() -> None:
    rank = RunOfSteps()
    rank.run_step(None)
    for _ in range(3):
        rank.run_step(10)
    found = summarised(rank.tables())
    assert (found.count, found.median_ns) == (4, 10 * MS)


def disturbed_run(delays: list[int]) -> Tables:
    """Return steps of 10 ms with ten calls of `mul_` and `mm` each; of a delay, `mul_` has all in one call."""
    rank = RunOfSteps()
    thread = rank.thread()
    for delay in delays:
        start = rank.run_step(10 + delay, recorded=True, delay=delay * MS, cpu=9 * MS)
        for call in range(10):
            rank.span(thread, "operator", start, 10_000, "aten::mul_", step=len(rank.rows["run_steps"]) - 1)
            start += 10_000
            took = 800_000
            rank.span(thread, "operator", start, took, "aten::mm", step=len(rank.rows["run_steps"]) - 1)
            start += took
            if call == 4:
                took = 10_000 + delay * MS
                rank.span(thread, "operator", start, took, "aten::mul_", step=len(rank.rows["run_steps"]) - 1)
                start += took
    return rank.tables()


def test_a_preempted_call_is_not_the_cause() -> None:
    # Given a step of five in which another process took the core for 40 ms, during one call of `mul_`
    summary = summarise(disturbed_run([0, 0, 40, 0, 0]))
    assert summary.run.disturbed == 1
    assert summary.operators[0].name == "aten::mm"
    assert (summary.preempted, summary.preempted_ns) == (1, 40 * MS)
    assert summarise(disturbed_run([0, 0, 8, 0, 0])).operators[0].name == "aten::mm"
    # but the tables keep what was recorded
    assert host_work(disturbed_run([0, 0, 40, 0, 0]))["time"].max() == 40 * MS + 10_000


def test_all_steps_may_be_disturbed() -> None:
    summary = summarise(disturbed_run([20, 30, 40, 20, 30]))
    assert summary.operators[0].name == "aten::mm"
    assert rank_verdict([], summary).startswith("Disturbed: the training thread waited 74 %")
    assert summary.preempted_ns == 140 * MS


def test_a_long_call_without_a_delay_stays() -> None:
    rank = RunOfSteps()
    thread = rank.thread()
    for number in range(5):
        start = rank.run_step(50, recorded=True, delay=0)
        for call in range(10):
            rank.span(thread, "operator", start + call * MS, 10_000, "aten::mul_", step=number)
        rank.span(thread, "operator", start + 20 * MS, 20 * MS, "aten::mul_", step=number)
    summary = summarise(rank.tables())
    assert (summary.preempted, summary.operators[0].total_ns) == (0, 100 * MS + 500_000)


def test_without_steps_there_is_nothing_to_say() -> None:
    assert summarised(Rank().tables()) == RunSteps(0, 0, 0.0, 0.0, 0.0, (), 0, (), None, 0, None, None)


def test_steps_of_a_host_that_runs_ahead_are_not_timed() -> None:
    # Given a host that asks for a step in 1 ms and waits for all of them in every twentieth, and steps of 30 ms
    rank = RunOfSteps()
    for number in range(60):
        rank.run_step(600 if number % 20 == 19 else 1, recorded=30 <= number < 35, delay=0)
    for row in rank.rows["steps"]:
        row["dur"] = 30 * MS
    run = summarised(rank.tables())
    assert (run.ahead, run.count, run.median_ns, run.picture, run.outliers, run.typical) == (True, 60, 0.0, (), 0, None)
    # of which a few say no more, before it has waited for any
    few = RunOfSteps()
    for number in range(11):
        few.run_step(1, recorded=5 <= number < 10, delay=0)
    for row in few.rows["steps"]:
        row["dur"] = 30 * MS
    assert (summarised(few.tables()).ahead, summarised(few.tables()).median_ns) == (True, 0.0)
    # whose other steps would be timed if each took as long as what it computes
    even = RunOfSteps()
    for number in range(60):
        even.run_step(30, recorded=30 <= number < 35, delay=0)
    assert not summarised(even.tables()).ahead
