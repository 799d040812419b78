"""A change is called by the argument of the trainer that runs the loop, and by the framework's where none does."""

from __future__ import annotations

import json
from typing import Any

import pytest

from stepscope.advise.observed import Observed
from stepscope.advise.rank_findings import found_in
from stepscope.advise.trainers import trainer_says
from tests.unit.advise.rules.trainings import STEP, Training
from tests.unit.analyse.build import ORIGIN, Rank

PACKAGES = "/venv/lib/python3.11/site-packages"


def sampled_in(rank: Rank, *files: str) -> Rank:
    """Add samples of the training thread in functions of these files, which the program calls."""
    frames = [{"file": file, "line": 7, "function": "run"} for file in (*files, "/home/me/train.py")]
    rank.add("stacks", id=0, frames=frames)
    for number in range(40):
        said = {"count": 1, "process": 100, "thread": 100, "name": "MainThread", "state": "python", "stack": 0}
        rank.add("samples", ts=ORIGIN + number * 1000, dur=1000, cpu=1000, worker=None, **said)
    return rank


def late_batches(framework: str, *files: str) -> Rank:
    """A step of 100 µs that waits 90 µs for its batch."""
    rank = Rank()
    host = rank.thread()
    rank.step(0, 0, 100_000)
    wait = rank.span(host, "data", 0, 90_000, "loader.__next__")
    rank.span(host, "operator", 90_000, 10_000, "MatMul", step=0)
    for key, value in {"workers": 0, "cores": 4}.items():
        rank.add("arguments", span=wait, key=key, value=json.dumps(value))
    rank.add("metadata", key={"paddle": "profiler"}.get(framework, framework), value='"paddle.profiler"')
    return sampled_in(rank, *files)


@pytest.mark.parametrize(
    ("framework", "file", "advice"),
    [
        ("torch", "transformers/trainer.py", "TrainingArguments(dataloader_num_workers=3, dataloader_persistent_"),
        ("torch", "transformers/modeling_utils.py", "DataLoader(…, num_workers=3, persistent_workers=True)"),
        ("torch", "lightning/pytorch/loops/fit_loop.py", "DataLoader(…, num_workers=3, persistent_workers=True)"),
        ("paddle", "paddle/hapi/model.py", "model.fit(…, num_workers=3)"),
        ("torch", "keras/src/backend/torch/trainer.py", "model.fit(torch.utils.data.DataLoader(…, num_workers=3, "),
        ("paddle", "paddle/io/reader.py", "DataLoader(…, num_workers=3)"),
    ],
)
def test_workers_are_asked_of_who_makes_the_loader(framework: str, file: str, advice: str) -> None:
    [finding] = found_in(Observed(late_batches(framework, f"{PACKAGES}/{file}").tables()))
    assert finding.cause == "data-loader-slow"
    assert advice in finding.remedy


@pytest.mark.parametrize(
    ("file", "advice"),
    [
        ("transformers/trainer.py", "eval_steps=500"),
        ("pytorch_lightning/loops/fit_loop.py", "check_val_every_n_epoch=10"),
        ("lightning/pytorch/loops/fit_loop.py", "check_val_every_n_epoch=10"),
        ("keras/src/backend/torch/trainer.py", "validation_freq=10"),
        ("torch/nn/modules/module.py", "if step % 500 == 0: evaluate()"),
    ],
)
def test_how_often_is_the_trainers_argument(file: str, advice: str) -> None:
    training = Training()
    training.run_steps(120)
    sampled_in(training.rank, f"{PACKAGES}/{file}")
    for number in range(0, 120, 4):
        row: dict[str, Any] = {"name": "evaluation", "ts": ORIGIN + number * STEP, "dur": 8_000_000}
        training.rank.add("run_events", **row)
    [finding] = training.findings()
    assert finding.cause == "frequent-evaluation"
    assert advice in finding.remedy


def test_a_word_that_a_trainer_lacks_is_the_frameworks() -> None:
    observed = Observed(sampled_in(Rank(), f"{PACKAGES}/lightning/pytorch/loops/fit_loop.py").tables())
    assert trainer_says(observed, "fused optimizer", "fused=True") == "fused=True"


def test_loggers_of_paddle_are_not_what_prints_its_progress() -> None:
    """``log_freq`` of ``Model.fit`` is about the progress; Paddle's loggers log every batch."""
    observed = Observed(sampled_in(Rank(), f"{PACKAGES}/paddle/hapi/model.py").tables())
    assert "log_freq" not in trainer_says(observed, "logging", "")
