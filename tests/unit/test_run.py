"""A run as one object: tables are made once, made again when stale, and filtered by step."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest

import stepscope
from stepscope.errors import DamagedTraceError, FormatVersionError, NotARunError, UsageError
from stepscope.trace.run_directory import RankDirectory
from stepscope.trace.schema import TABLES

CAPTURE = Path(__file__).parents[1] / "data" / "kineto" / "alexnet_simple_add.json.gz"


@pytest.fixture
def run_path(tmp_path: Path) -> Path:
    return make_rank(tmp_path / "run", 0).parent


def make_rank(run: Path, rank: int) -> Path:
    directory = RankDirectory(run / f"rank{rank}")
    directory.create()
    shutil.copyfile(CAPTURE, directory.capture / "trace.json.gz")
    directory.write_manifest({"status": "complete", "rank": rank})
    return directory.path


def test_open_gives_lazy_tables_and_result_frames(run_path: Path) -> None:
    run = stepscope.open(run_path)
    assert set(run.tables) == set(TABLES)
    assert all(isinstance(frame, pl.LazyFrame) for frame in run.tables.values())
    kernels = run.tables["spans"].filter(pl.col("kind") == "kernel").collect()
    assert len(kernels) == 79  # counted in the JSON itself: 79 events of category `kernel`
    assert isinstance(run.result("op_statistic"), pl.DataFrame)


def test_tables_are_made_once_and_again_when_the_capture_changes(run_path: Path) -> None:
    stepscope.open(run_path).tables["spans"].collect()
    written = run_path / "rank0" / "tables" / "spans.parquet"
    first = written.stat().st_mtime_ns
    stepscope.open(run_path).tables["spans"].collect()
    assert written.stat().st_mtime_ns == first
    capture = run_path / "rank0" / "capture" / "trace.json.gz"
    shutil.copyfile(CAPTURE.with_name("cuda_event_sync.json.gz"), capture)
    spans = stepscope.open(run_path).tables["spans"].collect()
    assert spans.filter(pl.col("kind") == "kernel").height == 4


def test_tables_of_another_schema_are_made_again(run_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    older = {name: replace(table, columns=table.columns[:-1]) for name, table in TABLES.items()}
    with monkeypatch.context() as patched:
        patched.setattr("stepscope.run.TABLES", older)
        stepscope.open(run_path).tables["spans"].collect()
    written = run_path / "rank0" / "tables" / "spans.parquet"
    first = written.stat().st_mtime_ns
    stepscope.open(run_path).tables["spans"].collect()
    assert written.stat().st_mtime_ns > first


def test_tables_can_be_deleted(run_path: Path) -> None:
    before = stepscope.open(run_path).tables["spans"].collect()
    shutil.rmtree(run_path / "rank0" / "tables")
    assert stepscope.open(run_path).tables["spans"].collect().equals(before)


def test_several_ranks_are_asked_for_by_number(run_path: Path) -> None:
    make_rank(run_path, 1)
    run = stepscope.open(run_path)
    assert [rank.rank for rank in run.ranks] == [0, 1]
    with pytest.raises(UsageError, match=r"run\.ranks\[0\]"):
        run.result("op_statistic")
    assert isinstance(run.ranks[1].result("op_statistic"), pl.DataFrame)


def test_one_rank_directory_opens_alone(run_path: Path) -> None:
    assert stepscope.open(run_path / "rank0").tables["spans"].collect().height > 0


def test_unknown_result_names_the_known_ones(run_path: Path) -> None:
    with pytest.raises(UsageError, match="step_trace_time"):
        stepscope.open(run_path).result("nothing")


def test_steps_that_are_not_there(run_path: Path) -> None:
    with pytest.raises(UsageError, match="No step between 7000 and 8000"):
        stepscope.open(run_path, steps=(7000, 8000)).tables  # noqa: B018 - the property does the work


@pytest.mark.parametrize("path", ["nowhere", "."])
def test_no_run(tmp_path: Path, path: str) -> None:
    with pytest.raises(NotARunError, match="stepscope run"):
        stepscope.open(tmp_path / path)


def test_rank_without_capture(run_path: Path) -> None:
    (run_path / "rank0" / "capture" / "trace.json.gz").unlink()
    with pytest.raises(NotARunError, match="no capture"):
        stepscope.open(run_path).tables  # noqa: B018 - the property does the work


def test_manifest_of_a_newer_version(run_path: Path) -> None:
    (run_path / "rank0" / "manifest.json").write_text('{"format_version": 999}')
    with pytest.raises(FormatVersionError, match="Upgrade stepscope"):
        stepscope.open(run_path).manifest  # noqa: B018 - the property does the work


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"format_version": '])
def test_damaged_manifest(run_path: Path, text: str) -> None:
    (run_path / "rank0" / "manifest.json").write_text(text)
    with pytest.raises(DamagedTraceError, match=r"manifest\.json is damaged"):
        stepscope.open(run_path).manifest  # noqa: B018 - the property does the work


def test_a_recording_that_was_never_closed_says_so(run_path: Path) -> None:
    RankDirectory(run_path / "rank0").write_manifest({"status": "recording", "rank": 0})
    losses = stepscope.open(run_path).tables["losses"].collect()
    assert "ended_abruptly" in losses["what"].to_list()
