"""Ascend's directories that are partial, damaged, foreign or hostile: what can be read is, the rest is counted.

Nothing is ever written into them: they are looked at before and after.
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import sqlite3
import struct
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import polars as pl
import pytest

import stepscope
from stepscope.cli.main import main
from stepscope.errors import InputError
from stepscope.read import read_files
from stepscope.trace.tables import Frames
from tests.sizes import first_quick
from tests.unit import ascend_build as build
from tests.unit.ascend_build import OUTPUT, capture

GB = 1 << 30
TEXT = "text_level2/rank0_ascend_pt"
DATABASE = "db_level1/rank0_ascend_pt"
#: Files that are counted if they are missing; a capture may lack the others.
MISSING = {
    *("trace_view.json", "kernel_details.csv", "memory_record.csv", "operator_memory.csv"),
    *("communication.json", "communication_matrix.json", "analysis.db"),
}
#: What a missing file may bring with it.
ALLOWED = {"file_missing", "correlation_dangling", "counters_unmatched", "flow_dangling", "span_crosses_parent"}


def tree(root: Path) -> dict[str, tuple[int, int, int, int]]:
    """Return everything below a directory: number, mode, size and time of change."""
    found = {}
    for path in [root, *root.rglob("*")]:
        status = path.lstat()
        found[str(path)] = (status.st_ino, status.st_mode, status.st_size, status.st_mtime_ns)
    return found


@pytest.fixture
def copy(tmp_path: Path, shared_data: Path) -> Callable[[str], Path]:
    """Copy a real capture."""

    def copied(name: str) -> Path:
        root = tmp_path / "source" / Path(name).name
        # Other tools may have the same files open, and logs beside them.
        shutil.copytree(shared_data / "ascend" / name, root, ignore=shutil.ignore_patterns("*-wal", "*-shm"))
        return root

    return copied


def read_untouched(root: Path) -> Frames:
    before = tree(root)
    try:
        return read_files([root])
    finally:
        assert tree(root) == before


def losses(read: Frames) -> dict[str, str]:
    return dict(read["losses"].select("what", "source").cast(pl.String).iter_rows())


@pytest.mark.parametrize(
    ("sort", "name"),
    [
        *((TEXT, name) for name in ("trace_view.json", "kernel_details.csv", "memory_record.csv", "l2_cache.csv")),
        *((TEXT, name) for name in ("operator_memory.csv", "communication.json", "communication_matrix.json")),
        *((TEXT, name) for name in ("op_statistic.csv", "npu_module_mem.csv", "step_trace_time.csv")),
        (DATABASE, "analysis.db"),
    ],
)
def test_a_file_that_is_missing(sort: str, name: str, copy: Callable[[str], Path]) -> None:
    root = copy(sort)
    (root / OUTPUT / name).unlink()
    read = read_untouched(root)
    assert read["spans"].height
    counted = losses(read)
    assert counted.get("file_missing") == (name if name in MISSING else None)
    assert not set(counted) - ALLOWED


@pytest.mark.parametrize(
    "name",
    first_quick(
        [
            *(
                "trace_view.json",
                "kernel_details.csv",
                "communication.json",
                "memory_record.csv",
                "operator_memory.csv",
            ),
            *("operator_memory.csv", "l2_cache.csv", "communication_matrix.json", "npu_module_mem.csv"),
            "operator_details.csv",
        ],
        quick=3,
    ),
)
def test_a_file_that_is_cut(name: str, copy: Callable[[str], Path]) -> None:
    root = copy(TEXT)
    path = root / OUTPUT / name
    os.truncate(path, path.stat().st_size // 2 + 3)
    read = read_untouched(root)
    named = read["losses"].filter(pl.col("source").cast(pl.String) == f"{OUTPUT}/{name}")["what"].cast(pl.String)
    # The half of this file ends in the last cell of a row, where nothing proves the cut
    expected = {"line_end_missing"} if name == "l2_cache.csv" else {"file_cut", "file_unreadable"}
    assert set(named) & expected, losses(read)
    assert read["spans"].height


@pytest.mark.parametrize("name", ["ascend_pytorch_profiler_0.db", "analysis.db"])
@pytest.mark.parametrize("part", [0.02, 0.5, 0.95])
def test_a_database_that_is_cut(name: str, part: float, copy: Callable[[str], Path]) -> None:
    root = copy(DATABASE)
    path = root / OUTPUT / name
    os.truncate(path, int(path.stat().st_size * part))
    try:
        read = read_untouched(root)
    except InputError as error:
        assert error.remedy  # only where nothing else is there
        assert "profiler_0" in name
    else:
        assert set(losses(read)) & {"file_cut", "file_unreadable"}


@pytest.mark.parametrize("number", [1 << 32, (1 << 63) - 1, -(1 << 62), -1, None])
def test_numbers_that_cannot_be(number: int | None, copy: Callable[[str], Path]) -> None:
    root = copy(DATABASE)
    for path in (root / OUTPUT).glob("*.db"):
        with closing(sqlite3.connect(path)) as database, database:
            for (table,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall():
                for row, column in enumerate(database.execute(f"PRAGMA table_info({table})").fetchall()):
                    is_key = column[5]
                    if not is_key:  # in each row another one
                        database.execute(f'UPDATE {table} SET "{column[1]}" = ? WHERE rowid = ?', (number, row + 1))
    read = read_untouched(root)
    assert read["spans"].height
    if number is not None and abs(number) >= 1 << 31:
        assert losses(read)["value_unreadable"]


@pytest.mark.parametrize("name", ["trace_view.json", "kernel_details.csv", "communication.json", "memory_record.csv"])
@pytest.mark.parametrize(
    "content",
    first_quick([b"", b"<html>no</html>\n", b"PK\x03\x04\0\0", b"\x7fELF", b"null", b"[[[[", b"a,b\n1"], quick=2),
)
def test_a_file_of_another_program(name: str, content: bytes, copy: Callable[[str], Path]) -> None:
    root = copy(TEXT)
    (root / OUTPUT / name).write_bytes(content)
    read = read_untouched(root)
    assert read["allocations"].height
    assert not content or losses(read) or name.endswith(".csv")


def test_a_version_that_is_not_known(tmp_path: Path) -> None:
    root = capture(tmp_path)
    path = root / OUTPUT / "kernel_details.csv"
    header, rest = path.read_text().split("\n", 1)
    moved = "\n".join(f"7,{line}" if line else "" for line in rest.split("\n"))
    path.write_text(f"Column Of Tomorrow,{header}\n{moved}")
    (root / "profiler_info_0.json").write_text(json.dumps({"cann_version": "99.9", "config": {"unheard": [1]}}))
    read = read_untouched(root)
    assert losses(read) == {}
    assert read["tasks"].filter(pl.col("blocks").is_not_null()).height == 3
    assert json.loads(dict(read["metadata"].iter_rows())["cann_version"]) == "99.9"


@pytest.mark.parametrize("formula", first_quick(["=1+2", "=HYPERLINK(0)", "+cmd|' /C calc'!A0", "@SUM(A1)", "-2+3"]))
def test_formulas_are_text_and_stay_text(formula: str, tmp_path: Path) -> None:
    """They are read as names, and written so that no spreadsheet takes them for formulas."""
    root = capture(tmp_path / "source")
    for name in ("trace_view.json", "kernel_details.csv"):
        path = root / OUTPUT / name
        path.write_text(path.read_text().replace("aclnnAdd_Add_0", formula))
    before = tree(root)
    assert main(["import", str(root), "--output", str(tmp_path / "runs"), "--quiet"]) == 0
    assert tree(root) == before
    (run,) = (tmp_path / "runs").iterdir()
    names = stepscope.open(run).ranks[0].tables["spans"].select(pl.col("name").cast(pl.String)).collect()["name"]
    assert formula in set(names)
    (path,) = run.rglob("results/kernel_details.csv")
    cells = pl.read_csv(path, infer_schema=False)["Name"].to_list()
    assert any(formula in cell and not cell.startswith(formula[0]) for cell in cells), cells


def test_numbers_that_are_formulas_are_counted(tmp_path: Path) -> None:
    root = capture(tmp_path)
    path = root / OUTPUT / "memory_record.csv"
    path.write_text(path.read_text().replace("2048.5", "=1+2"))
    assert losses(read_untouched(root)) == {"value_unreadable": f"{OUTPUT}/memory_record.csv"}


def within(seconds: float, gigabytes: float, action: Callable[[], Frames]) -> Frames:
    """Do something that must take little of the processor and of memory."""
    begin, before = time.process_time(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    result = action()
    assert time.process_time() - begin < seconds
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < gigabytes * (1 << 20)
    return result


@pytest.mark.parametrize(
    ("name", "begin"),
    first_quick(
        [
            ("trace_view.json", b'[{"ph": "X", "name": "'),
            ("kernel_details.csv", b"Name,Task ID\n"),
            ("communication.json", b'{"step1": {"p2p": {"'),
            ("../profiler_info_0.json", b"{"),
            ("trace_view.json", b""),
            ("kernel_details.csv", b""),
            ("memory_record.csv", b'Component,"'),
            ("communication.json", b""),
            ("communication_matrix.json", b"{"),
            ("../profiler_metadata.json", b'{"a": "'),
        ],
        quick=4,
    ),
)
def test_ten_gigabytes_of_nothing(name: str, begin: bytes, tmp_path: Path) -> None:
    """A sparse file takes no room on the disk, and claims ten gigabytes."""
    root = capture(tmp_path)
    path = root / OUTPUT / name
    path.write_bytes(begin)
    os.truncate(path, 10 * GB)
    read = within(60, 1.5, lambda: read_untouched(root))
    counted = losses(read)
    assert "metadata_damaged" in counted or any(Path(name).name in source for source in counted.values()), counted
    assert read["allocations"].height


def test_ten_gigabytes_in_the_head_of_a_record(tmp_path: Path) -> None:
    root = tmp_path / "host_1_ascend_ms"
    (root / "FRAMEWORK").mkdir(parents=True)
    (root / "profiler_info_0.json").write_text("{}")
    ranges = struct.Struct("<5Qi3Hb3?")
    fixed = (11, 0, 1, build.START * 1000, build.START * 1000 + 500, 42, 3, 28, 0, 0, False, False, False)
    sound = build.record(ranges, fixed, {13: "MatMul", 14: "Default/MatMul-op1"})
    path = root / "FRAMEWORK" / "mindspore.op_range"
    path.write_bytes(sound + struct.pack("<HI", 0, 0xFFFFFFFF))
    os.truncate(path, 10 * GB)
    read = within(20, 0.5, lambda: read_untouched(root))
    assert read["spans"].height == 1
    assert "event_damaged" in losses(read)


@pytest.mark.parametrize("name", ["ascend_pytorch_profiler_0.db", "analysis.db"])
def test_a_database_that_claims_ten_gigabytes(name: str, copy: Callable[[str], Path]) -> None:
    root = copy(DATABASE)
    with (root / OUTPUT / name).open("r+b") as file:
        file.seek(28)
        file.write(struct.pack(">I", 10 * GB // 4096))  # number of pages that the head states
    within(30, 1, lambda: read_untouched(root))
    os.truncate(root / OUTPUT / name, 10 * GB)
    assert within(30, 1, lambda: read_untouched(root))["spans"].height


def test_links_in_circles_and_to_nothing(tmp_path: Path) -> None:
    root = capture(tmp_path / "job")
    (root / "PROF_1_2_A").symlink_to(root)
    (root / "PROF_2_2_B").symlink_to(tmp_path)
    (root / OUTPUT / "ASCEND_PROFILER_OUTPUT").symlink_to(root / OUTPUT)
    (root / OUTPUT / "memory_record_1.csv").symlink_to("memory_record_1.csv")
    (root / OUTPUT / "npu_module_mem_1.csv").symlink_to(tmp_path / "nowhere.csv")
    (tmp_path / "job" / "again").symlink_to(tmp_path / "job")
    read = read_untouched(root)
    assert losses(read) == {}
    assert read["spans"].filter(pl.col("kind") == "kernel").height == 3
    assert [rank.rank for rank in stepscope.open(tmp_path / "job").ranks] == [0]


def test_links_to_directories_outside_lead_nowhere(tmp_path: Path) -> None:
    outside = capture(tmp_path / "outside", rank=5)
    root = capture(tmp_path / "job")
    (root / "PROF_1_2_A").symlink_to(outside)
    (tmp_path / "job" / "rank5").symlink_to(outside)
    assert [rank.rank for rank in stepscope.open(tmp_path / "job").ranks] == [0]
    before = tree(tmp_path)
    assert main(["import", str(tmp_path / "job"), "--output", str(tmp_path / "runs"), "--quiet"]) == 0
    shutil.rmtree(tmp_path / "runs")
    after = tree(tmp_path)
    assert {key: value for key, value in after.items() if key != str(tmp_path)} == {
        key: value for key, value in before.items() if key != str(tmp_path)
    }


def test_a_link_to_a_file_is_that_file(tmp_path: Path) -> None:
    """Users link large files; their copy in a run is not a link."""
    root = capture(tmp_path / "job")
    path = root / OUTPUT / "trace_view.json"
    (tmp_path / "store").mkdir()
    kept = path.rename(tmp_path / "store" / "trace_view.json")
    path.symlink_to(kept)
    assert main(["import", str(root), "--output", str(tmp_path / "runs"), "--quiet"]) == 0
    copies = list((tmp_path / "runs").rglob("trace_view.json"))
    assert copies
    assert not any(copied.is_symlink() for copied in copies)
    assert kept.stat().st_size == path.stat().st_size


@pytest.mark.parametrize("sort", [TEXT, DATABASE])
def test_nothing_is_written_into_the_source(sort: str, copy: Callable[[str], Path], tmp_path: Path) -> None:
    """Whether the directory is writable or not."""
    root = copy(sort)
    for path in [*root.rglob("*"), root]:
        path.chmod(0o500 if path.is_dir() else 0o400)
    before = tree(root)
    opened = stepscope.open(root)
    assert opened.ranks[0].result("op_statistic").height  # type: ignore[union-attr]
    assert main(["import", str(root), "--output", str(tmp_path / "runs"), "--quiet"]) == 0
    (run,) = (tmp_path / "runs").iterdir()
    for kind in ("text", "db"):
        target = tmp_path / f"export_{kind}"
        assert main(["export", str(run), "--layout", "ascend", "--type", kind, "--output", str(target)]) == 0
    assert tree(root) == before
    for path in [root, *root.rglob("*")]:
        path.chmod(0o700 if path.is_dir() else 0o600)
