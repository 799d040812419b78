"""What Ascend's profilers state of their own captures, against what is read of them."""

from __future__ import annotations

import io
import json
import shutil
from pathlib import Path

import polars as pl
import pytest
from rich.console import Console

import stepscope
from stepscope.advise.rank_findings import rank_findings
from stepscope.report.terminal.printed_summary import render
from stepscope.run import RankRun
from tests.unit.ascend_build import OUTPUT

#: Capture → µs of computing and of communication that no computing hides, of rank 0: of Overlap Analysis and the files
#: of steps (``StepTraceTime`` of the databases).
STATED = {
    "text_level0": (8827.473, 81515.607),
    "text_level2": (8868.240, 95962.016),
    "db_level0": (8843.910, 85881.122),
    "db_level1": (8903.431, 98071.947),
    "timeline_only": (1788.250, 0),
}


def page(rank: RankRun) -> str:
    console = Console(file=io.StringIO(), width=200)
    render(rank.summary, rank_findings(rank), rank.manifest, console)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def losses(rank: RankRun) -> dict[str, str]:
    return dict(rank.tables["losses"].select(pl.col("what").cast(pl.String), "advice").collect().iter_rows())


@pytest.mark.parametrize("capture", list(STATED))
def test_computing_and_communication_are_what_the_capture_states(capture: str, shared_data: Path) -> None:
    rank = stepscope.open(shared_data / "ascend" / capture).ranks[0]
    found = rank.result("step_trace_time")
    assert isinstance(found, pl.DataFrame)
    computing, exposed = STATED[capture]
    assert found["Computing"].sum() == pytest.approx(computing, abs=0.2)
    assert found["Communication(Not Overlapped)"].sum() == pytest.approx(exposed, abs=0.2)
    assert "total_differs" not in losses(rank)
    assert "nothing (checked against the file's own totals)" in page(rank)


def test_reading_a_number_waits_for_the_device_where_no_call_is_recorded(shared_data: Path) -> None:
    # Given a capture of level 0, which has no call of the runtime, and one of level 2 of the same program
    sync = {}
    for capture in ("text_level0", "text_level2"):
        found = stepscope.open(shared_data / "ascend" / capture).ranks[0].result("step_trace_time")
        assert isinstance(found, pl.DataFrame)
        sync[capture] = found["Sync"].sum()
    # Then the host waits in `.item()` for a device that has nothing to do; level 2 has further calls that wait
    document = json.loads((shared_data / "ascend/text_level0/rank0_ascend_pt" / OUTPUT / "trace_view.json").read_text())
    reads = [float(event["dur"]) for event in document if event.get("name") == "aten::_local_scalar_dense"]
    assert 1_000 < sync["text_level0"] < min(sum(reads), sync["text_level2"])


def test_tasks_of_an_unknown_type_keep_their_time_and_are_named(shared_data: Path) -> None:
    rank = stepscope.open(shared_data / "ascend" / "timeline_only").ranks[0]
    kinds = rank.tables["spans"].group_by("kind").agg(pl.len(), pl.col("dur").sum()).collect()
    (other,) = kinds.filter(pl.col("kind") == "other").rows()
    # 274 tasks of the type “Other”; the names of two say that they are copies.
    assert other == ("other", 272, pytest.approx(1_460_690, abs=300))
    assert losses(rank)["kind_unknown"].startswith("Tasks of the type Other. ")


@pytest.mark.parametrize("rank", [0, 1])
def test_a_task_with_details_of_a_kernel_is_one_whatever_its_type(rank: int, shared_data: Path) -> None:
    found = stepscope.open(shared_data / "ascend" / "db_level0").ranks[rank].tables
    spans = found["spans"].select(pl.col("id").alias("span"), "kind")
    tasks = found["tasks"].filter(pl.col("type").cast(pl.String) == "STARS_COMMON").join(spans, on="span").collect()
    assert tasks["kind"].to_list() == ["kernel", "kernel"]


def test_copies_of_communication_are_not_the_users(shared_data: Path) -> None:
    copies = {}
    for capture in ("text_level0", "text_level2"):
        tables = stepscope.open(shared_data / "ascend" / capture).ranks[0].tables
        spans = tables["spans"].filter(pl.col("kind") == "memcpy")
        copies[capture] = spans.select(pl.len(), pl.col("dur").sum() / 1000).collect().row(0)
    # 14 over PCIe and 10 within the device; 72 of SDMA are HCCL's.
    assert copies["text_level0"] == (24, pytest.approx(1027.86 + 6.72, abs=0.1))
    assert copies["text_level2"][0] == 24
    parts = tables["tasks"].filter(pl.col("type").cast(pl.String) == "Memcpy").select(pl.len()).collect().item()
    assert parts == 36  # they are there, on the planes


@pytest.mark.parametrize("task_type", ["AI_CORE", "MIX_AIV"])
def test_a_total_that_differs_is_named_with_both_numbers(task_type: str, shared_data: Path, tmp_path: Path) -> None:
    source = shared_data / "ascend" / "text_level2" / "rank0_ascend_pt" / OUTPUT / "trace_view.json"
    target = tmp_path / "rank0_ascend_pt" / OUTPUT / "trace_view.json"
    target.parent.mkdir(parents=True)
    events = json.loads(source.read_text())
    target.write_text(json.dumps([one for one in events if one.get("args", {}).get("Task Type") != task_type]))
    shutil.copy(source.with_name("step_trace_time.csv"), target.parent)
    rank = stepscope.open(tmp_path).ranks[0]
    rows = rank.tables["losses"].filter(pl.col("what").cast(pl.String) == "total_differs").collect()
    assert set(rows["source"]) == {f"Overlap Analysis of {OUTPUT}/trace_view.json", "step_trace_time.csv"}
    here = rank.result("step_trace_time")["Computing"].sum() / 1000  # type: ignore[index]
    said = next(text for text in rows["advice"] if "of computing" in text)
    assert "states 8.868 ms of computing" in said
    assert f"has {here:.3f} ms" in said
    assert "8.868 ms" in page(rank)
    assert "nothing" not in page(rank).split("lost")[1]


def test_times_of_collectives_are_compared_with_those_that_the_capture_states(
    shared_data: Path, tmp_path: Path
) -> None:
    capture = Path(shutil.copytree(shared_data / "ascend/text_level2/rank0_ascend_pt", tmp_path / "rank0_ascend_pt"))
    path = capture / OUTPUT / "communication.json"
    path.write_text(path.read_text().replace("86.4709076875", "172.4709076875"))
    rows = stepscope.open(capture).ranks[0].tables["losses"].filter(pl.col("severity") == "error").collect()
    assert rows["source"].to_list() == ["communication.json"]
    assert (
        "states 185.973 ms of operations of communication, what was read of the capture has 99.973 ms"
        in (rows["advice"][0])
    )
