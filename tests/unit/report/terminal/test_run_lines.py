"""What the summary says of all steps of the run."""

from __future__ import annotations

from dataclasses import replace

import pytest

from stepscope.analyse.quantities import duration_text
from stepscope.analyse.step.long_steps import Outlier
from stepscope.analyse.step.run_steps import NONE, RunSteps, Typical
from stepscope.report.terminal.run_lines import picture, run_lines

MS = 1_000_000
RUN = RunSteps(
    count=1204,
    recorded=5,
    median_ns=174.0 * MS,
    low_ns=171.0 * MS,
    high_ns=181.0 * MS,
    picture=(*[175 * MS] * 7, 2100 * MS, *[175 * MS] * 3),
    outliers=4,
    longest=(Outlier(700, 2100 * MS, (("checkpoint", 1900 * MS),)), Outlier(9, 900 * MS, ())),
    typical=Typical(typical=True, recorded_ns=174.0 * MS, others=1189, others_ns=174.2 * MS),
    disturbed=0,
    delay_share=0.01,
    other_cpu=0.1,
)


def lines(run: RunSteps, *, ascii_only: bool = False) -> dict[str, str]:
    return {label: text.plain for label, text in run_lines(run, duration_text, 65, ascii_only=ascii_only)}


def test_the_run_its_picture_and_its_outliers() -> None:
    said = lines(RUN)
    assert said["whole run"] == "1,204 steps  ▁▁▁▁▁▁▁█▁▁▁  median 174 ms (171 ms–181 ms)"
    assert said[""] == "step 700 took 2.10 s: checkpoint 1.90 s; step 9 took 900 ms; 2 more took long"
    assert said["recorded"] == "5 steps, typical of the others: median 174 ms, of the other 1,189 174 ms"
    assert "disturbed" not in said
    assert lines(RUN, ascii_only=True)["whole run"].isascii()


def test_of_a_run_whose_end_is_unknown_the_number_of_steps_is_a_lower_limit() -> None:
    assert lines(replace(RUN, ended=False))["whole run"].startswith("at least 1,204 steps  ▁")
    assert lines(replace(NONE, count=60, ahead=True, ended=False))["whole run"].startswith("at least 60 steps; ")


def test_a_host_that_runs_ahead_tells_no_time_of_a_step() -> None:
    said = lines(replace(NONE, count=60, recorded=5, ahead=True))
    assert said == {"whole run": "60 steps; only the recorded ones are timed: the host runs ahead of the computation"}


def test_recorded_steps_that_are_not_typical() -> None:
    other = Typical(
        typical=False,
        recorded_ns=63.7 * MS,
        others=195,
        others_ns=85.2 * MS,
        cause="data wait",
        recorded_part=1.0 * MS,
        others_part=22.5 * MS,
    )
    said = lines(replace(RUN, typical=other))["not typical"]
    assert said == (
        "the recorded steps take 63.7 ms, the other 195 85.2 ms: these wait 1.00 ms for data, the others 22.5 ms"
    )
    faults = replace(other, cause="page faults", recorded_part=5000.0, others_part=0.0)
    assert lines(replace(RUN, typical=faults))["not typical"].endswith("these have 5,000 page faults, the others 0")
    recording = replace(other, cause="recording", recorded_part=45_000.0, others_part=40.0)
    assert lines(replace(RUN, typical=recording))["not typical"].endswith("recording 40 calls a step adds 45.0 µs")
    unknown = replace(other, cause="")
    assert lines(replace(RUN, typical=unknown))["not typical"].endswith("the other 195 85.2 ms")


@pytest.mark.parametrize(
    ("other_cpu", "end"),
    [
        (1.23, ": other processes used 1.2 cores"),
        (0.1, ": the program has more threads and workers that compute than there are cores"),
        (None, "(a tenth or more of 3 of 5 steps)"),
    ],
)
def test_who_took_the_core(other_cpu: float | None, end: str) -> None:
    said = lines(replace(RUN, disturbed=3, delay_share=0.23, other_cpu=other_cpu))["disturbed"]
    assert said.startswith("the training thread waited for a core 23 % of the recorded time")
    assert said.endswith(end)


def test_of_recorded_steps_alone_nothing_is_said() -> None:
    assert lines(NONE) == {}
    assert lines(replace(RUN, count=5)) == {}


@pytest.mark.parametrize("width", [7, 20, 60])
def test_the_picture_keeps_the_longest_step_in_any_width(width: int) -> None:
    durations = [100 + number % 5 for number in range(60)]
    durations[37] = 1000
    drawn = picture(durations, width, ascii_only=False)
    assert len(drawn) <= width
    assert drawn.count("█") == 1
    # and noise is flat
    assert set(picture([100 + number % 5 for number in range(60)], width, ascii_only=False)) <= {"▁", "▂"}
