"""Two processes of ``msrun`` that reduce one tensor a step; one of them sleeps in every step, or none does."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import stepscope
from stepscope.advise.finding import Finding
from stepscope.advise.job_findings import job_findings
from tests.frameworks.mindspore.test_distributed import msrun

pytestmark = pytest.mark.slow

SLOW, LATE_MS = 1, 240

TRAINING = """
import json, os, sys, time, numpy as np, mindspore as ms
from mindspore import nn, ops
from mindspore.communication import get_rank, init
ms.set_device("CPU")
ms.set_context(mode=ms.PYNATIVE_MODE)
init()
import stepscope
late = float(sys.argv[2]) / 1e3 if get_rank() == 1 else 0.0
dense, reduce, x = nn.Dense(64, 64), ops.AllReduce(), ms.Tensor(np.ones((64, 64), np.float32))
slept = []

def step():
    began = time.perf_counter()
    time.sleep(late)
    slept.append(time.perf_counter() - began)
    reduce(dense(x)).asnumpy()

for _ in range(3):
    step()
with stepscope.profile(output=sys.argv[1], record_shapes=True) as profile:
    for _ in range(8):
        step()
        profile.step()
if get_rank() == 1:
    with open(os.path.join(os.path.dirname(__file__), "slept.json"), "w") as file:
        json.dump(slept, file)
"""


def findings(folder: Path, late: int) -> list[Finding]:
    folder.mkdir(exist_ok=True)
    return job_findings(stepscope.job(msrun(folder, TRAINING, "train.py", "{}", str(late))))


def test_the_rank_that_sleeps_is_named(tmp_path: Path) -> None:
    first, *_ = findings(tmp_path, LATE_MS)
    assert (first.cause, first.ranks) == ("host-bound-rank", (SLOW,))
    slept = json.loads((tmp_path / "slept.json").read_text())
    assert first.added_ns is not None
    assert 0.9e9 * min(slept) <= first.added_ns <= 1.1e9 * max(slept)
    assert ", in step (train.py:" in first.title


def test_equal_ranks_are_not_blamed(tmp_path: Path) -> None:
    # (another process may take the core from one rank for most of a job, and not of one job after the other)
    assert any(findings(tmp_path / str(job), 0) == [] for job in range(3))
