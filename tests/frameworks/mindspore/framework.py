"""What the contract suite has to know of MindSpore."""

from __future__ import annotations

from pathlib import Path

from tests.frameworks.contract.framework import Framework
from tests.frameworks.mindspore.programs import STEPS, TRAINING, counts, host_events
from tests.unit.collect.reading import read_journal


def check(run: Path) -> None:
    """The host pipeline and the waits of five steps are there."""
    assert host_events(run)
    journal = read_journal(run / "rank0" / "capture" / "journal.ssj")
    assert len([span for span in journal.spans if span["kind"] == "data"]) == 5


FRAMEWORK = Framework(
    name="mindspore",
    title="MindSpore",
    program=TRAINING + STEPS["cell"],
    found={"by": "runs of graphs with an optimizer", "optimizers": ["Momentum"]},
    updates=lambda run: counts(run)["ApplyMomentum"] // 4,
    operators=("MatMul", "BiasAdd", "ApplyMomentum", "ReluGrad", "SparseSoftmax"),
    advice=("msrun … python -m stepscope",),
    arguments=("graph", "no"),
    shown=TRAINING + STEPS["model"],
    statistic="ApplyMomentum",
    check=check,
)
