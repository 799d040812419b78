"""Ranks whose host holds them up in every step, though their device shows it in one step or has no peers."""

from __future__ import annotations

from pathlib import Path

import pytest

import stepscope
from stepscope.advise.job_findings import job_findings
from tests.simulator.random_faults import random_job
from tests.simulator.shapes import random_shape


@pytest.mark.parametrize(
    ("seed", "kind", "level", "fault", "causes"),
    [
        (300_000, "fsdp", "easy", "loader", {"data-wait-rank"}),
        (300_017, "3d", "easy", "garbage", {"host-bound-rank", "slow-rank"}),
        (300_010, "3d", "easy", "garbage", {"host-bound-rank", "slow-rank"}),
        (700_018, "3d", "hard", "loader", {"data-wait-rank"}),
    ],
    ids=[
        "loader-behind-a-device-that-has-work",
        "only-rank-of-a-stage",
        "hidden-in-the-bubbles",
        "only-loader-that-is-slow",
    ],
)
def test_a_host_that_holds_up_its_rank_is_named(
    tmp_path: Path, seed: int, kind: str, level: str, fault: str, causes: set[str]
) -> None:
    job = random_job(random_shape(seed, 8, kind), level, fault)
    job.write(tmp_path / "job")
    first, *_ = job_findings(stepscope.job(tmp_path / "job"))
    assert job.fault is not None
    assert first.cause in causes
    assert first.ranks == job.fault.ranks


def test_one_pause_is_one_pause(tmp_path: Path) -> None:
    random_job(random_shape(300_120, 8, "3d"), "healthy", "hiccup").write(tmp_path / "job")
    assert job_findings(stepscope.job(tmp_path / "job")) == []
