"""The verbs of a job: `reduce`, at once and in shards, and `merge`: what they write, print and return."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import stepscope
from stepscope.cli.main import main
from stepscope.cluster.job import kept_summary
from stepscope.cluster.rank_summary import LIMIT


@pytest.fixture(autouse=True)
def threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Restore what the verbs set for their own process."""
    monkeypatch.setenv("POLARS_MAX_THREADS", "1")


def reduce(*arguments: object) -> int:
    return main(["reduce", *map(str, arguments)])


def test_shards_and_a_merge_make_the_job(dlrm: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for number in range(3):
        assert reduce(dlrm, "--output", tmp_path / "job", "--shard", f"{number}/3", "-q") == 0
    assert capsys.readouterr().out.split() == [str(tmp_path / "job")] * 3
    assert main(["merge", str(tmp_path / "job")]) == 0
    assert "8 ranks" in capsys.readouterr().out
    assert {"clocks.csv", "cluster_ranks.csv", "findings.json"} <= {
        path.name for path in (tmp_path / "job" / "cluster").iterdir()
    }
    assert not (tmp_path / "job" / "rank0" / "results").exists()


def test_a_shard_that_is_missing_is_named_by_the_merge(
    dlrm: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    reduce(dlrm, "--output", tmp_path / "job", "--shard", "0/2", "-q")
    capsys.readouterr()
    assert main(["merge", str(tmp_path / "job")]) == 0
    assert "missing" in capsys.readouterr().out


def test_what_cannot_be_read_is_named_and_the_others_are_there(
    dlrm: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    traces = tmp_path / "traces"
    shutil.copytree(dlrm, traces)
    (traces / "rank8.pt.trace.json").write_bytes(b"")
    assert reduce(traces, "-o", tmp_path / "job") == 0
    capsys.readouterr()
    assert main(["merge", str(tmp_path / "job")]) == 0
    assert "Rank 8 cannot be read" in capsys.readouterr().out


def test_report_of_a_reduced_job_needs_no_captures(dlrm: Path, tmp_path: Path) -> None:
    shutil.copytree(dlrm, tmp_path / "traces")
    assert reduce(tmp_path / "traces", "-o", tmp_path / "job", "-q") == 0
    shutil.rmtree(tmp_path / "traces")
    assert main(["report", str(tmp_path / "job"), "-q"]) == 0
    assert (tmp_path / "job" / "cluster" / "clocks.csv").exists()


@pytest.mark.parametrize("shard", ["3/3", "1", "-1/2", "a/b", "0/0"])
def test_a_shard_that_is_none_is_refused(shard: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        reduce("traces", "-o", "job", f"--shard={shard}")
    assert "is not a shard" in capsys.readouterr().err


def test_results_of_a_job_leave_the_columns_of_each_rank(dlrm: Path, tmp_path: Path) -> None:
    """What ``import`` computes while the tables are in memory serves the job: it is not read again."""
    assert main(["import", str(dlrm), "--output", str(tmp_path), "-q"]) == 0
    run = stepscope.open(tmp_path)
    for rank in run.ranks:
        assert kept_summary(rank) is not None
        assert (rank.directory.path / "summary.json").stat().st_size < LIMIT
    assert stepscope.open(tmp_path).job.tables.collectives.height == 64
