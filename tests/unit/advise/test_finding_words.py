"""What is advised to a program of one framework names functions of no other one."""

from __future__ import annotations

import json

import pytest

from stepscope.advise.finding import Finding
from tests.unit.advise.rules.trainings import STEP, Training
from tests.unit.analyse.build import ORIGIN

#: Framework → the fact that shows it, its value, and names that belong to others.
FRAMEWORKS = {
    "torch": ("torch", "2.13.0", ("jax.", "paddle.", "mindspore")),
    "jax": ("profiler", "xplane", ("torch.mul", "zero_grad", "paddle.", "mindspore", "data loader")),
    "paddle": ("profiler", "paddle.profiler", ("torch", "zero_grad", "jax.", "mindspore")),
    "mindspore": ("mindspore", "2.10", ("torch", "zero_grad", "jax.", "paddle.", "data loader")),
}


def training_in(framework: str) -> Training:
    """Return a training in which another framework's facts are not known."""
    training = Training()
    training.rank.rows["metadata"].clear()
    key, value, _ = FRAMEWORKS[framework]
    training.rank.add("metadata", key=key, value=json.dumps(value))
    return training


def only_own_words(framework: str, finding: Finding) -> bool:
    """Return whether a finding names nothing that belongs to another framework."""
    return not any(word in finding.remedy for word in FRAMEWORKS[framework][2])


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_page_faults(framework: str) -> None:
    training = training_in(framework)
    training.run_steps(minor_faults=5_000)
    [finding] = training.findings()
    assert finding.cause == "allocator-page-faults"
    assert only_own_words(framework, finding)


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_python_in_the_step(framework: str) -> None:
    training = training_in(framework)
    training.run_steps()
    frames = [{"file": "/home/me/train.py", "line": 7, "function": "tokenize"}]
    training.rank.add("stacks", id=0, frames=frames)
    for number in range(40):
        said = {"count": 1, "process": 100, "thread": 100, "name": "MainThread", "state": "python", "stack": 0}
        at = ORIGIN + number * STEP + STEP // 2
        training.rank.add("samples", ts=at, dur=STEP // 2, cpu=STEP // 2, worker=None, **said)
    [finding] = training.findings()
    assert finding.cause == "python-in-step"
    assert only_own_words(framework, finding)
