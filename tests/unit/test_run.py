"""A run as one object: tables are made once, made again when stale, and filtered by step."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import stepscope
from stepscope.analyse.results import RESULTS
from stepscope.analyse.step.summary import summarise
from stepscope.cli.main import main
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


@pytest.fixture
def computed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the results, and ``summary``, in the order in which they are computed."""
    names: list[str] = []

    def counted(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            names.append(name)
            return function(*arguments)

        return call

    for name, kind in RESULTS.items():
        monkeypatch.setitem(RESULTS, name, replace(kind, function=counted(name, kind.function)))
    monkeypatch.setattr("stepscope.run.summarise", counted("summary", summarise))
    return names


def test_a_result_is_computed_when_it_is_read_and_once(run_path: Path, computed: list[str]) -> None:
    run = stepscope.open(run_path)
    assert len(run.results) == len(list(run.results)) == 11
    assert "op_statistic" in run.results
    assert "pcie" not in run.results
    assert not computed
    first = run.results["op_statistic"]
    assert run.result("op_statistic") is run.results["op_statistic"] is first
    assert computed == ["op_statistic"]
    with pytest.raises(KeyError):
        run.results["pcie"]
    assert run.result("pcie").is_empty()  # type: ignore[union-attr]


def test_a_timeline_needs_no_result(run_path: Path, computed: list[str]) -> None:
    assert main(["export", str(run_path), "--to", "pftrace"]) == 0
    assert not computed


def test_a_second_report_computes_nothing(
    run_path: Path, computed: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["report", str(run_path)]) == 0
    assert {"step_trace_time", "op_statistic", "communication", "summary"} <= set(computed)
    printed = capsys.readouterr().out
    files = {path: path.stat().st_mtime_ns for path in run_path.rglob("*.*")}
    computed.clear()
    assert main(["report", str(run_path)]) == 0
    assert main(["report", str(run_path), "--format", "csv"]) == 0
    assert not computed
    assert capsys.readouterr().out == 2 * printed
    assert files == {path: path.stat().st_mtime_ns for path in run_path.rglob("*.*")}


def touched(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.utime(run / "rank0" / "capture" / "trace.json.gz")


def of_another_version(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stepscope, "__version__", "0.0.0")


def of_another_schema(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    older = {name: replace(table, columns=table.columns[:-1]) for name, table in TABLES.items()}
    monkeypatch.setattr("stepscope.run.TABLES", older)


@pytest.mark.parametrize("change", [touched, of_another_version, of_another_schema])
def test_a_report_of_something_else_computes_again(
    run_path: Path, computed: list[str], monkeypatch: pytest.MonkeyPatch, change: Callable[..., None]
) -> None:
    assert main(["report", str(run_path), "-q"]) == 0
    _ = stepscope.open(run_path).summary
    computed.clear()
    change(run_path, monkeypatch)
    assert main(["report", str(run_path)]) == 0
    assert {"step_trace_time", "op_statistic", "communication", "summary"} <= set(computed)


def test_only_what_is_missing_is_computed(run_path: Path, computed: list[str]) -> None:
    assert main(["report", str(run_path)]) == 0
    computed.clear()
    assert main(["report", str(run_path), "--format", "csv,json,pftrace"]) == 0
    assert not computed
    results = run_path / "rank0" / "results"
    (results / "op_statistic.csv").write_text("spoilt")
    assert main(["report", str(run_path), "--format", "json"]) == 0
    assert not computed
    assert main(["report", str(run_path)]) == 0
    assert "op_statistic" in computed
    assert (results / "op_statistic.csv").read_text() != "spoilt"


@pytest.mark.parametrize("content", [b"", b"{", b'{"csv": 1}', b"[]"])
def test_a_damaged_record_of_files_or_summary_costs_a_computation(
    run_path: Path, computed: list[str], content: bytes
) -> None:
    assert main(["report", str(run_path)]) == 0
    before = set(computed)
    computed.clear()
    (run_path / "rank0" / "results" / ".written.json").write_bytes(content)
    (run_path / "rank0" / "summary.json").write_bytes(content)
    assert main(["report", str(run_path)]) == 0
    assert set(computed) == before
