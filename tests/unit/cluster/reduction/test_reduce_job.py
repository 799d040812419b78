"""Reducing a job: every engine writes the same bytes, only what changed is done again, and a fault costs one rank."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import polars as pl
import pytest

import stepscope
from stepscope.cluster.job_tables import JOB_SCHEMA
from stepscope.cluster.rank_summary import decode
from stepscope.cluster.reduction import reduce_job as reducing
from stepscope.cluster.reduction.engines import Engine
from stepscope.cluster.reduction.reduce_job import reduce_job, reduce_rank, works_at
from stepscope.errors import NotARunError

SERIAL = Engine("serial")


def summaries(job: Path) -> dict[str, bytes]:
    return {path.parent.name: path.read_bytes() for path in sorted(job.glob("rank*/summary.json"))}


@pytest.fixture(scope="module")
def reduced(dlrm: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    job = tmp_path_factory.mktemp("reduced") / "job"
    assert reduce_job([str(dlrm)], job, engine=SERIAL) == (8, {})
    return job


def test_processes_and_shards_write_the_same_bytes_as_one_process(dlrm: Path, reduced: Path, tmp_path: Path) -> None:
    reduce_job([str(dlrm)], tmp_path / "processes", engine=Engine("processes", workers=2))
    for number in (2, 0, 1):
        reduce_job([str(dlrm)], tmp_path / "shards", engine=SERIAL, shard=(number, 3))
    assert len(summaries(reduced)) == 8
    assert summaries(tmp_path / "processes") == summaries(reduced)
    assert summaries(tmp_path / "shards") == summaries(reduced)


def test_a_reduced_job_is_the_job_of_its_captures(dlrm: Path, reduced: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    captures = stepscope.job(dlrm).tables
    monkeypatch.setattr(reducing, "reduce", None)  # the merge reads summaries only
    merged = stepscope.job(reduced).tables
    for name in JOB_SCHEMA:
        left, right = getattr(captures, name), getattr(merged, name)
        if name == "ranks":
            left, right = left.drop("directory"), right.drop("directory")
        assert left.equals(right), name


def test_captures_are_neither_copied_nor_needed(dlrm: Path, tmp_path: Path) -> None:
    shutil.copytree(dlrm, tmp_path / "traces")
    reduce_job([str(tmp_path / "traces")], tmp_path / "job", engine=SERIAL)
    assert sum(path.stat().st_size for path in (tmp_path / "job").rglob("*") if path.is_file()) < 8 * 100_000
    whole = stepscope.open(tmp_path / "job")
    assert whole.ranks[3].results["step_trace_time"].height == 1  # read in place
    shutil.rmtree(tmp_path / "traces")
    assert stepscope.job(tmp_path / "job").tables.collectives.height == 64
    with pytest.raises(NotARunError, match="not here"):
        _ = stepscope.open(tmp_path / "job").ranks[0].captures


def test_only_what_changed_is_reduced_again(dlrm: Path, tmp_path: Path) -> None:
    traces, job = tmp_path / "traces", tmp_path / "job"
    shutil.copytree(dlrm, traces)
    assert reduce_job([str(traces)], job, engine=SERIAL)[0] == 8
    assert reduce_job([str(traces)], job, engine=SERIAL)[0] == 0
    before = summaries(job)
    changed = next(traces.glob("worker5*"))
    os.utime(changed, ns=(1, 1))
    assert reduce_job([str(traces)], job, engine=SERIAL)[0] == 1
    assert {name for name, content in summaries(job).items() if content != before[name]} == {"rank5"}
    (job / "rank2" / "summary.json").write_text("{")
    assert reduce_job([str(traces)], job, engine=SERIAL)[0] == 1
    assert summaries(job)["rank2"] == before["rank2"]


def test_kept_captures_give_results_of_single_ranks(dlrm: Path, tmp_path: Path) -> None:
    traces, job = tmp_path / "traces", tmp_path / "job"
    shutil.copytree(dlrm, traces)
    assert reduce_job([str(traces)], job, engine=Engine("processes", workers=2), keep=True) == (8, {})
    assert reduce_job([str(traces)], job, engine=SERIAL, keep=True) == (0, {})
    shutil.rmtree(traces)
    run = stepscope.open(job)
    assert run.ranks[7].results["step_trace_time"].height == 1
    assert run.job.tables.ranks["fault"].null_count() == 8


def test_a_file_that_cannot_be_read_costs_its_rank_by_name(dlrm: Path, tmp_path: Path) -> None:
    traces, job = tmp_path / "traces", tmp_path / "job"
    shutil.copytree(dlrm, traces)
    broken = next(traces.glob("worker4*"))
    content = broken.read_bytes()
    broken.unlink()
    named = traces / "rank4.pt.trace.json"
    named.write_bytes(b"")
    assert reduce_job([str(traces)], job, engine=SERIAL) == (7, {})
    for ranks in (stepscope.job(job).tables.ranks, stepscope.job(traces).tables.ranks):
        assert ranks["rank"].to_list() == list(range(8))
        assert ranks.filter(ranks["fault"].is_not_null()).select("rank", "directory").rows() == [(4, named.name)]
    named.write_bytes(content)
    assert reduce_job([str(traces)], job, engine=SERIAL) == (2, {})  # rank 0, which named it, too
    assert stepscope.job(job).tables.ranks.filter(pl.col("rank") == 4)["fault"].to_list() == [None]


def test_a_rank_that_fails_while_it_is_reduced_has_its_reason(dlrm: Path, tmp_path: Path) -> None:
    traces = tmp_path / "traces"
    shutil.copytree(dlrm, traces)
    works = works_at([str(traces)])
    next(traces.glob("worker4*")).unlink()
    facts = decode(reduce_rank(works[4])).facts
    assert facts["directory"] == "rank4"
    assert "No such file" in facts["fault"]
    assert "fault" not in decode(reduce_rank(works[5])).facts


def test_a_reader_that_breaks_costs_one_rank(dlrm: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def breaks(*_: object, **__: object) -> None:
        raise ZeroDivisionError

    work = works_at([str(dlrm)])[2]
    monkeypatch.setattr(reducing, "reduce", breaks)
    assert decode(reduce_rank(work)).facts["fault"].startswith("Internal error: ZeroDivisionError")


def test_a_file_that_is_cut_says_so(dlrm: Path, tmp_path: Path) -> None:
    traces = tmp_path / "traces"
    shutil.copytree(dlrm, traces)
    cut = next(traces.glob("worker6*"))
    cut.write_bytes(cut.read_bytes()[: cut.stat().st_size // 2])
    tables = stepscope.job(traces).tables
    assert tables.ranks.filter(tables.ranks["cut"])["rank"].to_list() == [6]
    assert "file_cut" in tables.losses.filter(tables.losses["rank"] == 6)["what"].to_list()
    assert tables.ranks["code"].n_unique() > 1
