"""``export --layout ascend`` of an Ascend capture says what that capture said, and nothing more."""

from __future__ import annotations

import csv
import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest

import stepscope
from stepscope.report.ascend.overlap_analysis import RankWork
from stepscope.report.ascend.variant import MINDSPORE, PYTORCH
from stepscope.report.protocol import Source
from stepscope.report.registry import layout
from stepscope.trace.tables import is_derived_fact
from tests.unit.ascend_build import OUTPUT

LEVELS = ("text_level0", "text_level2")


def original(shared_data: Path, capture: str) -> Path:
    return shared_data / "ascend" / capture / "rank0_ascend_pt" / OUTPUT


def exported(path: Path, directory: Path, types: str = "text") -> Path:
    rank = stepscope.open(path).ranks[0]
    (root,) = layout("ascend", types).write(Source(rank.tables, rank.results, rank.manifest), directory)
    return root / OUTPUT


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return [{key: cell.strip() for key, cell in row.items()} for row in csv.DictReader(file)]


def processes(path: Path) -> set[str]:
    return {one["args"]["name"] for one in json.loads(path.read_text()) if one["name"] == "process_name"}


def same(mine: str, theirs: str) -> bool:
    """Cells are the same text, or the same number to the rounding of times."""
    try:
        return mine == theirs or abs(float(mine) - float(theirs)) < 0.1
    except ValueError:
        return False


@pytest.mark.parametrize("capture", LEVELS)
def test_every_file_has_the_columns_of_the_captures(capture: str, shared_data: Path, tmp_path: Path) -> None:
    source = original(shared_data, capture)
    found = exported(source.parent, tmp_path)
    for path in source.glob("*.csv"):
        with path.open(encoding="utf-8") as theirs, (found / path.name).open(encoding="utf-8") as mine:
            assert next(csv.reader(mine)) == next(csv.reader(theirs)), path.name
    # dataset.csv is ours.
    assert {path.name for path in found.iterdir()} - {"dataset.csv"} == {path.name for path in source.iterdir()}
    assert processes(found / "trace_view.json") == processes(source / "trace_view.json")


def test_kernels_of_the_lowest_level(shared_data: Path, tmp_path: Path) -> None:
    source = original(shared_data, "text_level0")
    mine, theirs = rows(exported(source.parent, tmp_path) / "kernel_details.csv"), rows(source / "kernel_details.csv")
    assert len(mine) == len(theirs) == 191
    different = [
        (one, other)
        for one, other in zip(mine, theirs, strict=True)
        if not all(map(same, one.values(), other.values()))
    ]
    assert different == []


@pytest.mark.parametrize("capture", LEVELS)
def test_time_of_operators_on_the_device_and_on_its_ai_cores(capture: str, shared_data: Path, tmp_path: Path) -> None:
    source = original(shared_data, capture)
    mine = rows(exported(source.parent, tmp_path) / "operator_details.csv")
    theirs = [row for row in rows(source / "operator_details.csv") if "DataLoader" not in row["Name"]]
    assert [row["Name"] for row in mine] == [row["Name"] for row in theirs]
    for name in (name for name in mine[0] if name.startswith("Device")):
        assert [float(row[name]) for row in mine] == pytest.approx([float(row[name]) for row in theirs], abs=0.1), name
    on_cores = sum(float(row["Device Self Duration With AICore(us)"]) for row in mine)
    assert 0 < on_cores < sum(float(row["Device Self Duration(us)"]) for row in mine)


def test_the_lowest_level_has_no_bandwidths_and_none_are_made_up(shared_data: Path, tmp_path: Path) -> None:
    for number, capture in enumerate(("text_level0", "db_level0")):
        found = exported(shared_data / "ascend" / capture, tmp_path / str(number), "text,db")
        assert not list(found.glob("communication*.json"))


@pytest.mark.parametrize("capture", LEVELS)
def test_steps_are_those_that_the_capture_states(capture: str, shared_data: Path, tmp_path: Path) -> None:
    source = original(shared_data, capture)
    (mine,), (theirs,) = (rows(path / "step_trace_time.csv") for path in (exported(source.parent, tmp_path), source))
    assert list(mine) == list(theirs)
    assert [float(cell) for cell in mine.values()] == pytest.approx([float(cell) for cell in theirs.values()], abs=1e-3)


@pytest.mark.parametrize("capture", LEVELS)
def test_the_arithmetic_gives_the_stated_steps(capture: str, shared_data: Path) -> None:
    tables = stepscope.open(shared_data / "ascend" / capture).ranks[0].tables
    stated = RankWork(tables).step_trace_time(PYTORCH).row(0)
    bare = {**tables, "metadata": tables["metadata"].filter(~is_derived_fact())}
    assert RankWork(bare).step_trace_time(PYTORCH).row(0) == pytest.approx(stated, abs=0.2)


@pytest.mark.parametrize(
    ("name", "of_torch", "of_mindspore"),
    [("hcom_receive__868", True, True), ("hcom_send__868", False, True), ("hcom_batchSendRecv__868", False, True)],
)
def test_what_a_bubble_is(name: str, of_torch: bool, of_mindspore: bool, shared_data: Path, tmp_path: Path) -> None:
    source = original(shared_data, "text_level0")
    root = tmp_path / "rank0_ascend_pt" / OUTPUT
    root.mkdir(parents=True)
    text = (source / "trace_view.json").read_text()
    (root / "trace_view.json").write_text(text.replace("hcom_allReduce__868_1", f"{name}_1"))
    work = RankWork(stepscope.open(tmp_path).ranks[0].tables)
    for variant, counts in ((PYTORCH, of_torch), (MINDSPORE, of_mindspore)):
        (bubble,) = work.step_trace_time(variant)["Bubble"]
        assert bubble == pytest.approx(2193.584 if counts else 0, abs=0.01)


def later_version(root: Path) -> None:
    """Make of a capture one of a later version: communication has another name, and files begin with the device."""
    path = root / "trace_view.json"
    path.write_text(path.read_text().replace('"name": "HCCL"', '"name": "Communication"'))
    path = root / "kernel_details.csv"
    path.write_text(path.read_text().replace(",HCCL,", ",COMMUNICATION,"))
    for name in ("step_trace_time.csv", "op_statistic.csv"):
        path = root / name
        header, *lines = path.read_text().splitlines()
        path.write_text("\n".join([f"Device_id,{header}", *(f"0,{line}" for line in lines), ""]))
    path = root / "api_statistic.csv"
    header, *lines = path.read_text().splitlines()
    path.write_text("\n".join([f"Device_id,{header}", *(f"host,{line}" for line in lines), ""]))


@pytest.mark.parametrize("change", [later_version])
def test_words_and_columns_of_another_version(
    change: Callable[[Path], None], shared_data: Path, tmp_path: Path
) -> None:
    root = Path(shutil.copytree(original(shared_data, "text_level2").parent, tmp_path / "rank0_ascend_pt"))
    change(root / OUTPUT)
    found = exported(root, tmp_path / "made")
    for name in ("step_trace_time.csv", "op_statistic.csv", "api_statistic.csv", "kernel_details.csv"):
        mine, theirs = rows(found / name), rows(root / OUTPUT / name)
        assert list(mine[0]) == list(theirs[0]), name
        assert len(mine) == len(theirs)
    assert {row["Accelerator Core"] for row in rows(found / "kernel_details.csv")} == {
        row["Accelerator Core"] for row in rows(root / OUTPUT / "kernel_details.csv")
    }
    assert "Communication" in processes(found / "trace_view.json")
    assert "HCCL" not in processes(found / "trace_view.json")
    (step,) = rows(found / "step_trace_time.csv")
    assert step["Device_id"] == "0"


def test_what_is_not_the_captures_own_is_computed(shared_data: Path) -> None:
    # A choice of steps that the file of steps has not, and another variant, have the arithmetic.
    rank = stepscope.open(shared_data / "ascend" / "text_level2").ranks[0]
    work = RankWork(rank.tables)
    other = replace(MINDSPORE, stage_of_work=False)
    moved = {**rank.tables, "steps": rank.tables["steps"].with_columns(pl.lit(51, pl.Int32).alias("number"))}
    assert RankWork(moved).step_trace_time(other)["Step"].to_list() == [51]
    assert work.step_trace_time(PYTORCH)["Step"].to_list() == [50]
