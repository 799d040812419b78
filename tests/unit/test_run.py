"""A run as one object: tables are made once, made again when stale, and filtered by step."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import stepscope
from stepscope.analyse.results import RESULTS, kinds
from stepscope.analyse.step.summarise import summarise
from stepscope.cli.main import main
from stepscope.errors import DamagedTraceError, FormatVersionError, NotARunError, UsageError
from stepscope.trace.run_directory import RankDirectory
from stepscope.trace.schema import TABLES, columns_as_text

CAPTURE = Path(__file__).parents[1] / "data" / "kineto" / "alexnet_simple_add.json.gz"
#: A capture of several steps.
STEPS = CAPTURE.parents[1] / "xplane" / "steps.xplane.pb"


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
    with monkeypatch.context() as patched:
        patched.setattr("stepscope.run.columns_as_text", lambda: columns_as_text().replace("dur", "duration"))
        stepscope.open(run_path).tables["spans"].collect()
    written = run_path / "rank0" / "tables" / "spans.parquet"
    first = written.stat().st_mtime_ns
    stepscope.open(run_path).tables["spans"].collect()
    assert written.stat().st_mtime_ns > first


def test_tables_can_be_deleted(run_path: Path) -> None:
    before = stepscope.open(run_path).tables["spans"].collect()
    shutil.rmtree(run_path / "rank0" / "tables")
    assert stepscope.open(run_path).tables["spans"].collect().equals(before)


def flip_a_bit(path: Path, place: int) -> None:
    """Change one bit of a file in its middle, and nothing else about it."""
    content, status = bytearray(path.read_bytes()), path.stat()
    content[place % len(content)] ^= 1 << place % 8
    path.write_bytes(content)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def test_a_path_that_is_not_utf_8(run_path: Path) -> None:
    odd = run_path.with_name(os.fsdecode(b"odd-\xff"))
    run_path.rename(odd)
    made = stepscope.open(odd).tables["spans"].collect()
    again = stepscope.open(odd)  # from the tables on the disk
    assert again.tables["spans"].collect().equals(made)
    assert again.result("op_statistic").equals(stepscope.open(odd).result("op_statistic"))


def test_a_capture_that_is_a_link_to_itself_is_a_loss(run_path: Path) -> None:
    capture = run_path / "rank0" / "capture"
    (capture / "more.ssr").symlink_to("more.ssr")
    losses = stepscope.open(run_path).tables["losses"].collect()["what"].cast(pl.String).to_list()
    assert "file_unreadable" in losses


@pytest.mark.parametrize("place", [0, 4_001, 9_003, -1])
def test_tables_that_are_not_as_they_were_written_are_made_again(run_path: Path, place: int) -> None:
    before = stepscope.open(run_path).tables["spans"].collect()
    for file in ("spans.parquet", "fingerprint.json"):
        flip_a_bit(run_path / "rank0" / "tables" / file, place)
        assert stepscope.open(run_path).tables["spans"].collect().equals(before)
    (run_path / "rank0" / "tables" / "spans.parquet").unlink()
    assert stepscope.open(run_path).tables["spans"].collect().equals(before)


def test_damaged_tables_that_cannot_be_made_again_are_refused(run_path: Path) -> None:
    stepscope.open(run_path).tables["spans"].collect()
    flip_a_bit(run_path / "rank0" / "tables" / "spans.parquet", 4_001)
    (run_path / "rank0" / "capture" / "trace.json.gz").unlink()
    with pytest.raises(NotARunError, match="Put its files back"):
        stepscope.open(run_path).tables  # noqa: B018 - the property does the work


def test_a_capture_that_the_manifest_names_and_that_is_gone_is_a_loss(run_path: Path) -> None:
    captures = ["capture/trace.json.gz", "capture/other.ssr"]
    manifest = {"status": "complete", "rank": 0, "captures": captures}
    RankDirectory(run_path / "rank0").write_manifest(manifest)
    losses = stepscope.open(run_path).tables["losses"].collect()
    gone = losses.filter(pl.col("what") == "capture_missing")
    assert gone["source"].to_list() == ["other.ssr"]
    # and what the file held does not count as idle
    summary = stepscope.open(run_path).summary
    assert summary.split == ()
    assert "idle" in summary.not_recorded


@pytest.mark.parametrize("source", ["earlier", "later"])
def test_times_of_steps_of_another_run_are_a_loss_and_are_not_used(tmp_path: Path, source: str) -> None:
    # Given two runs of one process, as of a container whose process has the same number at each start
    for name in ("earlier", "later"):
        with stepscope.profile(output=tmp_path / name, analyse="later", counters_hz=0, quiet=True) as profile:
            for _ in range(4 if name == source else 2):
                profile.step()
        assert profile.recorded[0].wait(60)
    runs = {name: next((tmp_path / name).glob("*/rank0")) for name in ("earlier", "later")}
    (other,) = runs.keys() - {source}
    assert stepscope.open(runs[other]).tables["run_steps"].collect().height == 2
    # When the file of one is copied into the other
    shutil.copy(runs[source] / "capture" / "steps.ssj", runs[other] / "capture" / "steps.ssj")
    tables = stepscope.open(runs[other]).tables
    losses = tables["losses"].filter(pl.col("what") == "step_times_foreign").collect()
    assert losses["source"].to_list() == ["steps.ssj"]
    assert tables["run_steps"].collect().height in (0, 2)
    assert tables["steps"].collect()["number"].to_list() == [0, 1]


def test_derived_files_that_rot_are_written_again(run_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(run_path)]) == 0
    printed = capsys.readouterr().out
    derived = {path: path.read_bytes() for path in run_path.rglob("*.*") if "capture" not in path.parts}
    derived = {path: content for path, content in derived.items() if path.name != "manifest.json"}
    rotten = [path for path in derived if path.parent.name == "results" or path.name == "summary.json"]
    assert len(rotten) > 10
    for path in rotten:
        flip_a_bit(path, derived[path].index(b"0") if b"0" in derived[path] else 0)
    assert main(["report", str(run_path)]) == 0
    assert capsys.readouterr().out == printed
    assert {path: path.read_bytes() for path in derived} == derived


def test_a_selection_of_steps_leaves_the_results_of_the_run_as_they_are(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # Given a run of several steps whose files of every format are written
    directory = RankDirectory(tmp_path / "run" / "rank0")
    directory.create()
    shutil.copyfile(STEPS, directory.capture / STEPS.name)
    directory.write_manifest({"status": "complete", "rank": 0})
    assert main(["report", str(tmp_path / "run"), "--format", "all"]) == 0
    printed = capsys.readouterr().out
    first, *_, last = stepscope.open(tmp_path / "run").tables["steps"].collect()["number"].sort().to_list()
    before = {
        path: (path.read_bytes(), path.stat().st_mtime_ns) for path in directory.path.rglob("*") if path.is_file()
    }
    # When one step is asked for
    assert main(["report", str(tmp_path / "run"), "--format", "all", "--steps", f"{last}-{last}"]) == 0
    # Then its files lie beside those of the run, which are as they were, and so is the summary
    assert f"results_steps_{last}-{last}" in capsys.readouterr().out
    assert {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in before} == before
    selected = directory.path / f"results_steps_{last}-{last}"
    assert {path.name for path in selected.iterdir()} >= {"step_trace_time.csv", "trace_view.json"}
    steps = pl.read_csv(selected / "step_trace_time.csv")["Step"].to_list()
    assert (first, last) != (last, last)
    assert set(steps) == {last}
    assert main(["report", str(tmp_path / "run")]) == 0
    assert capsys.readouterr().out == printed


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
def computed(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
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
    kinds.cache_clear()
    yield names
    kinds.cache_clear()


def test_a_result_is_computed_when_it_is_read_and_once(run_path: Path, computed: list[str]) -> None:
    run = stepscope.open(run_path)
    assert len(run.results) == len(list(run.results)) == 19
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
    monkeypatch.setattr("stepscope.run.columns_as_text", lambda: columns_as_text().replace("dur", "duration"))


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
