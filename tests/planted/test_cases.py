"""Each planted program has a case whose cause is in the catalogue; some are run, and their cause is found."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.planted.cases import BY_NAME, CASES, PROGRAMS
from tests.planted.evaluate import judge
from tests.planted.measure import ROOT, TrueTimes, profiled

#: What several programs share.
_SHARED = {"ticks", "torch_parts"}
#: Programs whose cause is in what they call, whatever else the machine does.
_SURE = (
    *("anomaly_mode", "double_precision", "growing_graph", "optimizer_loop", "padding", "sample_loop", "stop_script"),
    *("teacher_gradients", "jax_callback", "jax_not_donated", "sleep_each_step", "posted_metrics"),
    *("ignored_labels", "growing_sequences", "jax_frozen"),
)


def test_each_program_is_a_case_whose_cause_is_in_the_catalogue() -> None:
    assert {path.stem for path in PROGRAMS.glob("*.py")} - _SHARED == set(BY_NAME)
    assert len(CASES) >= 30
    sections = {line.removeprefix("### ") for line in (ROOT / "docs/findings.md").read_text().splitlines()}
    assert all(case.causes & sections for case in CASES)


def test_the_first_finding_and_its_gain_are_judged() -> None:
    case, times = BY_NAME["double_precision"], TrueTimes([10e6, 12e6, 11e6], [6e6, 5e6, 7e6])
    busy = {"cause": "other-processes", "gain_ns": 9e6}
    right = judge(case, times, [busy, {"cause": "double-precision", "gain_ns": 7e6}], [busy])
    assert (right["named"], right["gain_right"], right["on_twin"]) == (True, True, [])
    far = judge(case, times, [{"cause": "double-precision", "gain_ns": 8e6}], [])
    assert (far["named"], far["gain_right"]) == (True, False)
    assert (right["caused"], judge(case, TrueTimes([10e6], [9.5e6]), [], [])["caused"]) == (True, False)
    late = judge(case, times, [{"cause": "slow-rank"}, {"cause": "double-precision", "gain_ns": 5e6}], [{"cause": "x"}])
    assert (late["named"], late["listed"], late["on_twin"]) == (False, True, ["x"])


@pytest.mark.slow
@pytest.mark.parametrize("name", _SURE)
def test_the_cause_is_found_and_not_on_the_repaired_twin(name: str, tmp_path: Path) -> None:
    case = BY_NAME[name]
    for repaired in (False, True):
        document, _ = profiled(case, tmp_path / str(repaired), 40, repaired=repaired)
        causes = {finding["cause"] for finding in document["findings"]}
        assert bool(causes & case.causes) is not repaired, causes
