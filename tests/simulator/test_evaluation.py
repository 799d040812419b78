"""Evaluation from files to verdicts, with two jobs that nobody can mistake."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.simulator import evaluate
from tests.simulator.random_faults import random_job
from tests.simulator.scoring import judge
from tests.simulator.shapes import random_shape


@pytest.mark.parametrize(("level", "sort"), [("easy", "clocks"), ("healthy", "")])
def test_a_job_is_evaluated_from_its_files(tmp_path: Path, level: str, sort: str) -> None:
    shape = replace(random_shape(5, 4, "ddp"), steps=6, events=700, device=True, dialect="2.13", ranks_per_host=1)
    job = random_job(shape, level, sort)
    job.write(tmp_path / "job", compress=True)
    verdict, clocks = evaluate.evaluate(tmp_path / "job")
    assert verdict.named, verdict
    assert len(clocks.uncertainties) == 4
    # The clocks are wrong by seconds, and apart by less than the drift of the window after alignment.
    assert max(abs(clock.offset_ns) for clock in job.clocks) > 1e5
    assert max(clocks.to_reference) < 20_000
    if sort:
        assert verdict.gain_error is not None
        assert not judge(job.truth(), []).named


def test_the_command_prints_shares(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shape = replace(random_shape(5, 4, "ddp"), steps=6, events=700, device=True, ranks_per_host=1)
    random_job(shape, "easy", "missing").write(tmp_path / "jobs" / "one")
    monkeypatch.setattr("sys.argv", ["evaluate", "--directory", str(tmp_path / "jobs")])
    evaluate.main()
    assert "faults named with rank and cause: 1 of 1 (100%)" in capsys.readouterr().out


def test_the_command_passes_over_a_job_that_cannot_have_the_fault(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["evaluate", "--fault", "network", "--kind", "ddp", "--jobs", "1", "--ranks", "4"]
    monkeypatch.setattr("sys.argv", arguments)
    evaluate.main()
    said = capsys.readouterr()
    assert said.out.startswith("0 jobs")
    assert "cannot have the fault network" in said.err


def test_a_rank_that_never_calls_a_collective_of_gloo_is_named(tmp_path: Path) -> None:
    shape = replace(random_shape(300_001, 8, "ddp"), device=False)
    job = random_job(shape, "easy", "hung")
    job.write(tmp_path / "job")
    verdict, _ = evaluate.evaluate(tmp_path / "job")
    assert verdict.named, verdict
