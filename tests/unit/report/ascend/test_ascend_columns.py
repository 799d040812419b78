"""What Ascend's layout writes is read back, column by column: both sides are made from one table of columns."""

from __future__ import annotations

import csv
import sqlite3
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path

import polars as pl
import pytest
from polars.testing import assert_frame_equal

from stepscope.cli.main import main
from stepscope.read.ascend.database import event_database
from stepscope.read.ascend.text import csv_files, csv_rows
from stepscope.read.ascend.text.csv_rows import AscendRows
from stepscope.report.ascend.variant import MINDSPORE, PYTORCH, Variant
from stepscope.trace import ascend_columns
from stepscope.trace.ascend_columns import DATABASE, SAMPLES, AscendColumn
from stepscope.trace.losses import LossLedger
from tests.unit.ascend_build import OUTPUT, capture

#: File → its columns, and what reads it.
FILES: dict[str, tuple[tuple[AscendColumn, ...], Callable[[AscendRows], pl.DataFrame]]] = {
    "kernel_details.csv": (ascend_columns.KERNEL_DETAILS, csv_files.kernels),
    "memory_record.csv": (ascend_columns.MEMORY_RECORD, partial(csv_files.memory, of_mindspore=False)),
    "operator_memory.csv": (ascend_columns.OPERATOR_MEMORY, csv_files.blocks),
    "npu_module_mem.csv": (ascend_columns.NPU_MODULE_MEM, csv_files.module_memory),
    "static_op_mem.csv": (ascend_columns.STATIC_OP_MEM, csv_files.static_memory),
    "l2_cache.csv": (ascend_columns.L2_CACHE_RATES, csv_files.l2_cache),
    "operator_details.csv": (ascend_columns.OPERATOR_DETAILS, csv_files.inputs),
}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return capture(tmp_path_factory.mktemp("capture"))


@pytest.fixture(scope="module", params=[MINDSPORE, PYTORCH], ids=["mindspore", "torch"])
def variant(request: pytest.FixtureRequest) -> Variant:
    found: Variant = request.param
    return found


@pytest.fixture(scope="module")
def written(root: Path, variant: Variant, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Import the capture, and write it as text and as databases."""
    folder = tmp_path_factory.mktemp("written")
    assert main(["import", str(root), "--output", str(folder / "run"), "--quiet"]) == 0
    (run,) = (folder / "run").iterdir()
    for kind in ("text", "db"):
        arguments = ["--layout", variant.ending, "--type", kind, "--output", str(folder / kind)]
        assert main(["export", str(run), *arguments]) == 0
    return folder


def read(path: Path, make: Callable[[AscendRows], pl.DataFrame]) -> pl.DataFrame:
    ledger = LossLedger(path.name)
    frame = pl.concat([make(rows) for rows in csv_rows.read(path, ledger)])
    assert list(ledger.rows()) == []
    return frame.with_columns(pl.col(pl.Categorical).cast(pl.String))


@pytest.mark.parametrize("name", FILES)
def test_a_text_file_has_the_columns_of_the_table(name: str, written: Path, variant: Variant) -> None:
    (path,) = written.glob(f"text/*/{OUTPUT}/{name}")
    headers = next(csv.reader(path.read_text(encoding="utf-8").splitlines()))
    wanted = [column.header(mindspore=variant is MINDSPORE) for column in FILES[name][0]]
    wanted = [header for header in wanted if header]
    # kernel_details.csv ends with hardware counters.
    assert headers[: len(wanted)] == wanted
    assert name == "kernel_details.csv" or len(headers) == len(wanted)


@pytest.mark.parametrize("name", [name for name in FILES if name != "operator_details.csv"])
def test_a_text_file_is_read_back_column_by_column(name: str, root: Path, written: Path, variant: Variant) -> None:
    (path,) = written.glob(f"text/*/{OUTPUT}/{name}")
    columns, make = FILES[name]
    if name == "memory_record.csv":
        expected, found = read(root / OUTPUT / name, make), read(path, partial(csv_files.memory, of_mindspore=True))
        if variant is PYTORCH:
            found = read(path, make)
    else:
        expected, found = read(root / OUTPUT / name, make), read(path, make)
    given = next(csv.reader((root / OUTPUT / name).read_text(encoding="utf-8").splitlines()))
    kept = [
        one.ours for one in columns if one.ours and one.header(mindspore=variant is MINDSPORE) and one.torch in given
    ]
    kept = [one for one in kept if one in found.columns]
    assert kept
    assert_frame_equal(found.select(kept).sort(pl.all()), expected.select(kept).sort(pl.all()))


def test_what_is_unknown_is_written_as_ascend_writes_it(written: Path, variant: Variant) -> None:
    (path,) = written.glob(f"text/*/{OUTPUT}/static_op_mem.csv")
    (row,) = csv.DictReader(path.read_text(encoding="utf-8").splitlines())
    assert row["Node Index End"] == "4294967295"
    (path,) = written.glob(f"text/*/{OUTPUT}/kernel_details.csv")
    row = next(csv.DictReader(path.read_text(encoding="utf-8").splitlines()))
    assert (row["Model ID"], row["Output Formats"], row["Context ID"]) == ("4294967295", "N/A", "N/A")
    (path,) = written.glob(f"text/*/{OUTPUT}/operator_memory.csv")
    *_, row = csv.DictReader(path.read_text(encoding="utf-8").splitlines())
    assert row["Release Time(us)"] == ("N/A\t" if variant is MINDSPORE else "")


def test_a_database_has_the_columns_of_the_table_in_their_order(written: Path) -> None:
    sampled = {one.table: {"deviceId", "timestampNs", *one.labels, *one.values} for one in SAMPLES}
    known = set()
    for path in written.glob(f"db/*/{OUTPUT}/*.db"):
        with closing(sqlite3.connect(path)) as connection:
            for (table,) in connection.execute("SELECT name FROM sqlite_master").fetchall():
                found = [row[1] for row in connection.execute(f"PRAGMA table_info({table})")]
                if table in DATABASE:
                    known.add(table)
                    assert found == [column for column in DATABASE[table] if column in found]
                elif table in sampled:
                    known.add(table)
                    assert set(found) == sampled[table]
                else:
                    assert table.startswith("ENUM_") or table in ("STRING_IDS", "StepTraceTime")
    assert {"TASK", "COMPUTE_TASK_INFO", "COMMUNICATION_OP", "CommAnalyzerTime", "HBM", "NPU_MODULE_MEM"} <= known


def test_a_database_is_read_back_column_by_column(root: Path, written: Path, variant: Variant) -> None:
    (events,) = written.glob(f"db/*/{OUTPUT}/ascend_*.db")
    frames = event_database.read(events, None, LossLedger(events.name))
    kernels = read(root / OUTPUT / "kernel_details.csv", csv_files.kernels).filter(pl.col("core") != "HCCL")
    kept = [one.ours for one in ascend_columns.KERNEL_DETAILS if one.database and one.ours != "attributes"]
    kept += ["ts", "dur", "task", "stream", "model", "blocks"]
    found = frames["tasks"].filter(pl.col("op_type").is_not_null()).with_columns(pl.col(pl.Categorical).cast(pl.String))
    assert_frame_equal(found.select(kept).sort(pl.all()), kernels.select(kept).sort(pl.all()))
    modules = frames["counters"].filter(pl.col("group") == ascend_columns.MODULE_MEMORY)
    assert modules.select(pl.col("name").cast(pl.String), "value").rows() == [("HCCL", 1024 * 1024)]
    hbm = frames["counters"].filter(pl.col("group") == "HBM")
    assert hbm.select(pl.col("name", "unit").cast(pl.String), "value").rows() == [("HBM 0/Read", "MB/s", 12.5)]
    if variant is PYTORCH:  # MindSpore's databases have no memory of the framework
        for name, columns in (("blocks", ascend_columns.OPERATOR_MEMORY), ("memory", ascend_columns.MEMORY_RECORD)):
            make = {"blocks": csv_files.blocks, "memory": FILES["memory_record.csv"][1]}[name]
            file = {"blocks": "operator_memory.csv", "memory": "memory_record.csv"}[name]
            expected = read(root / OUTPUT / file, make)
            stored = frames[name].with_columns(pl.col(pl.Categorical).cast(pl.String))
            kept = [one.ours for one in columns if one.ours]
            if name == "memory":  # the memory of the whole process is in NPU_MEM
                expected, stored = (one.filter(pl.col("component") == "PTA") for one in (expected, stored))
            assert_frame_equal(stored.select(kept).sort(pl.all()), expected.select(kept).sort(pl.all()))
