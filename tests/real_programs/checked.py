"""What holds of every healthy program that is recorded: its steps, their parts, and who may be named as a cause."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path
from typing import NamedTuple

from stepscope.advise.finding import Finding
from stepscope.run import RankRun, Run
from tests.integrations.recorded import recorded_in
from tests.planted.measure import ROOT, python_of

PROGRAMS = Path(__file__).parent / "programs"
TIMEOUT_S = 900
#: What is true of a machine that other processes use, whatever the program does.
_OF_THE_MACHINE = {"other-processes"}


class Program(NamedTuple):
    """One real program.

    Attributes:
        name: Stem of its file.
        environment: Whose environment runs it.
        causes: Causes of the catalogue that are really there, on some machine.
    """

    name: str
    environment: str
    causes: frozenset[str] = frozenset()

    @property
    def path(self) -> Path:
        """Return its file."""
        return PROGRAMS / f"{self.name}.py"


def check(program: Program, output: Path) -> None:
    """Record a program under ``stepscope run`` with its default options; what is said of it is true."""
    elsewhere = output / "elsewhere"  # frameworks write logs where they run
    elsewhere.mkdir(parents=True)
    command = [python_of(program.environment), "-m", "stepscope", "run", "-o", str(output / "runs"), str(program.path)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(
        command, cwd=elsewhere, env=environment, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
    said = re.search(r"^trained (\d+) steps$", done.stdout, re.M)
    assert said is not None, done.stdout
    rank = recorded_in(output / "runs")
    _check_steps(rank, int(said[1]))
    findings = Run(rank.directory.path.parent).findings
    foreign = [one.title for one in findings if one.cause not in program.causes | _OF_THE_MACHINE]
    assert not foreign, foreign
    for finding in findings:
        _check_finding(finding, program)


def _check_steps(rank: RankRun, trained: int) -> None:
    summary = rank.summary
    assert summary.run.count == trained
    assert 0 < summary.steps.count <= trained
    assert sum(part.total_ns for part in summary.split) == summary.steps.total_ns
    assert not summary.phases or sum(part.total_ns for part in summary.phases) == summary.steps.total_ns
    assert {phase.name for phase in summary.phases} >= {"forward", "backward"} or summary.framework in {
        "jax",
        "mindspore",
    }


def _check_finding(finding: Finding, program: Program) -> None:
    if finding.gain_ns is not None:
        assert finding.gain_low_ns is not None
        assert finding.gain_high_ns is not None
        assert 0 <= finding.gain_low_ns <= finding.gain_ns <= finding.gain_high_ns <= (finding.step_ns or 0)
    lines = program.path.read_text().splitlines()
    sources = [one.source for one in finding.evidence if one.source]
    named = [source for source in sources if source.startswith(f"{program.path}:")]
    shown = re.findall(rf"{program.name}\.py:(\d+)", f"{finding.title} {finding.remedy}")
    for number in [*(source.rpartition(":")[2] for source in named), *shown]:
        assert lines[int(number) - 1].strip()
    assert all(Path(source.rpartition(":")[0]).exists() for source in sources)
