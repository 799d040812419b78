"""Did an advice hold?"""

from __future__ import annotations

from pathlib import Path

import pytest

import stepscope
from stepscope.advise.finding import Confidence, Evidence
from stepscope.comparison.prediction import (
    AS_PREDICTED,
    LESS,
    MORE,
    UNKNOWN,
    PredictedGain,
    followed,
    gains_of,
    held,
    measured_against,
)
from stepscope.comparison.verdict import StepChange
from stepscope.comparison.wording import promise
from tests.simulator.random_faults import random_job
from tests.simulator.shapes import random_shape

GAIN = PredictedGain("data-loader-slow", "18 ms wait", 8.2e6, 7.6e6, 8.8e6)


def step(saved: float, half: float) -> StepChange:
    change, width = -saved / 41e6, half / 41e6
    return StepChange(
        a_ns=41e6,
        b_ns=41e6 - saved,
        change=change,
        low=change - width,
        high=change + width,
        runs=(3, 3),
        verdict="faster",
    )


@pytest.mark.parametrize(
    ("saved", "half", "verdict"), [(7.5e6, 0.3e6, LESS), (8.0e6, 0.3e6, AS_PREDICTED), (9.9e6, 0.2e6, MORE)]
)
def test_a_gain_is_measured_against_its_prediction(saved: float, half: float, verdict: str) -> None:
    found = held([GAIN], step(saved, half), None)
    assert found is not None
    assert found.verdict == verdict
    assert found.measured_ns == pytest.approx(saved)


def test_it_is_told_in_one_line() -> None:
    found = held([GAIN], step(7.5e6, 0.3e6), None)
    assert found is not None
    assert promise(found) == (
        "data-loader-slow: predicted 8.20 ms (7.60 ms … 8.80 ms), measured 7.50 ms ± 300 µs: less than predicted"
    )


def test_one_run_a_side_cannot_tell() -> None:
    single = StepChange(a_ns=1e6, b_ns=1e6, change=0.0, runs=(1, 1), verdict="one run a side")
    found = held([GAIN], single, None)
    assert found is not None
    assert (found.verdict, found.measured_ns) == (UNKNOWN, None)


def test_an_advice_was_followed_if_its_finding_is_gone() -> None:
    other = PredictedGain("many-small-operators", "", 1e6)
    fact = PredictedGain("page-faults")
    assert followed([GAIN, other, fact], [other]) == [GAIN]
    assert followed([GAIN, other, fact], None) == [GAIN]
    assert held([], None, None) is None


def test_findings_are_those_of_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    trace = Path(__file__).parents[2] / "data" / "kineto" / "alexnet_simple_add.json.gz"
    run = stepscope.open(trace)
    finding = stepscope.Finding(
        cause="data-loader-slow",
        title="18 ms wait",
        gain_ns=8,
        gain_low_ns=7,
        gain_high_ns=9,
        confidence=Confidence.MEASURED,
        evidence=(Evidence(text="x"),),
        remedy="num_workers=2",
    )
    monkeypatch.setattr("stepscope.run.Run.findings", [finding])
    assert gains_of(run) == [PredictedGain("data-loader-slow", "18 ms wait", 8, 7, 9)]


@pytest.mark.parametrize(("fault", "cause"), [("operator", "slow-rank"), ("loader", "data-wait-rank")])
def test_the_finding_of_a_job_is_measured_on_the_rank_that_is_compared(fault: str, cause: str, tmp_path: Path) -> None:
    shape = random_shape(3, 8, "ddp")
    for level in ("easy", "healthy"):
        random_job(shape, level, fault if level == "easy" else "").write(tmp_path / level)
    found = stepscope.compare(tmp_path / "easy", tmp_path / "healthy")
    assert found.rank == 0
    assert found.prediction is not None
    assert (found.prediction.causes, found.prediction.verdict) == ([cause], AS_PREDICTED)


def test_turns_measure_what_one_run_a_side_cannot() -> None:
    one_run = held([GAIN], None, None)
    assert one_run is not None
    assert one_run.verdict == UNKNOWN
    measured = measured_against(one_run, step(8.0e6, 0.3e6), None)
    assert (measured.verdict, measured.measured_ns) == (AS_PREDICTED, pytest.approx(8.0e6))


def test_a_gain_of_slow_recorded_steps_is_predicted_of_the_measured_step() -> None:
    gain = PredictedGain("data-loader-slow", "", 16.4e6, 15.2e6, 17.6e6, step_ns=82e6)
    found = held([gain], step(8.0e6, 0.3e6), None)
    assert found is not None
    assert (found.verdict, found.predicted_ns, found.of_ns) == (AS_PREDICTED, pytest.approx(8.2e6), 41e6)


def test_other_processes_are_no_advice() -> None:
    assert followed([PredictedGain("other-processes", "", 5e6, 4e6, 6e6), GAIN], []) == [GAIN]
