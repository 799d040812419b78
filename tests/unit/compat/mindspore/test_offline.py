"""``analyse`` on what an Ascend device did: results beside the captures, and nothing in them changes."""

from __future__ import annotations

import csv
import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from stepscope.cli.main import main
from stepscope.compat.mindspore import analyse
from tests.sizes import first_quick
from tests.unit.ascend_build import HOST, OUTPUT, capture, kernel, us


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def contents(root: Path) -> dict[Path, str]:
    return {path: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(root.rglob("*")) if path.is_file()}


def test_two_ranks_below_a_directory() -> None:
    sources = [capture(Path("job"), rank) for rank in (0, 1)]
    before = [contents(source) for source in sources]
    analyse("job", max_process_number=2, pretty=True, step_list=[1], data_simplification=True)
    for rank, source in enumerate(sources):
        results = Path("job") / "STEPSCOPE_OUTPUT" / source.name / f"rank{rank}" / "results_steps_7-7"
        assert {"kernel_details.csv", "l2_cache.csv", "trace_view.json"} <= {path.name for path in results.iterdir()}
        assert (results / "communication.json").read_text().startswith("{\n")
        assert list(json.loads((results / "communication.json").read_text())) == ["step7"]
    assert [contents(source) for source in sources] == before


def test_the_capture_itself_and_a_second_time() -> None:
    source = capture(Path("job"))
    before = contents(source)
    analyse(str(source))
    made = sorted(Path("job", "STEPSCOPE_OUTPUT").rglob("manifest.json"))
    stamps = [path.stat().st_mtime_ns for path in made]
    analyse("job")
    assert sorted(Path("job", "STEPSCOPE_OUTPUT").rglob("manifest.json")) == made
    assert [path.stat().st_mtime_ns for path in made] == stamps
    assert contents(source) == before


def test_steps_that_are_not_there(caplog: pytest.LogCaptureFixture) -> None:
    source = capture(Path("job"))
    analyse(str(source), step_list=[5])
    assert "holds 1 step." in caplog.text


def test_report_makes_a_run_elsewhere(capsys: pytest.CaptureFixture[str]) -> None:
    source = capture(Path("job"))
    before = contents(source)
    assert main(["report", str(source), "--format", "csv"]) == 0
    (table,) = Path("stepscope-runs").glob("*/rank0/results/kernel_details.csv")
    assert "aclnnAdd_Add_0" in table.read_text()
    assert "stepscope-runs" in capsys.readouterr().out
    assert contents(source) == before
    assert [path.name for path in Path("job").iterdir()] == [source.name]


def steps_of(source: Path, *numbers: int) -> Path:
    """Give a capture further steps, a kernel in each."""
    path = source / OUTPUT / "trace_view.json"
    events = json.loads(path.read_text())
    for place, number in enumerate(numbers, start=1):
        at = 1000.0 * place
        mark = {"ph": "X", "name": f"ProfilerStep#{number}", "pid": HOST, "tid": HOST, "ts": us(at), "dur": 1000}
        events += [mark | {"cat": "cpu_op"}, kernel(20 + place) | {"name": f"Mul_{number}", "ts": us(at + 100)}]
    path.write_text(json.dumps(events))
    return source


def column(path: Path, name: str) -> list[str]:
    with path.open(newline="", encoding="utf-8") as file:
        return [row[name] for row in csv.DictReader(file)]


@pytest.mark.parametrize(
    ("step_list", "kept"), first_quick([([2, 3], ["8", "9"]), (None, ["7", "8", "9"]), ([1], ["7"]), ([3], ["9"])])
)
def test_steps_that_are_kept(step_list: list[int] | None, kept: list[str]) -> None:
    source = steps_of(capture(Path("job")), 8, 9)
    before = contents(source)
    analyse(str(source), step_list=step_list)
    (results,) = Path("job", "STEPSCOPE_OUTPUT").glob("*/rank0/results*")
    assert column(results / "step_trace_time.csv", "Step") == kept
    names = column(results / "kernel_details.csv", "Name")
    assert [name for name in names if name.startswith("Mul_")] == [f"Mul_{step}" for step in kept if step != "7"]
    assert contents(source) == before


@pytest.mark.parametrize("pretty", [False, True])
def test_documents_are_indented_where_that_is_asked_for(pretty: bool) -> None:
    analyse(str(capture(Path("job"))), pretty=pretty)
    (document,) = Path("job", "STEPSCOPE_OUTPUT").glob("*/rank0/results/communication.json")
    assert ("\n" in document.read_text().strip()) is pretty


@pytest.mark.parametrize("data_simplification", [False, True])
def test_what_was_recorded_is_never_removed(data_simplification: bool) -> None:
    source = capture(Path("job"))
    for name in ("FRAMEWORK", "PROF_1_2_A"):
        (source / name).mkdir()
        (source / name / "raw.bin").write_bytes(b"raw")
    before = contents(source)
    analyse(str(source), data_simplification=data_simplification)
    assert contents(source) == before


@pytest.mark.parametrize("max_process_number", first_quick([2, 1, 64]))
def test_any_number_at_once_gives_the_same(max_process_number: int, caplog: pytest.LogCaptureFixture) -> None:
    sources = [capture(Path("job"), rank) for rank in (0, 1, 2)]
    analyse("job", max_process_number=max_process_number)
    found = [
        (Path("job") / "STEPSCOPE_OUTPUT" / source.name / f"rank{rank}" / "results" / "kernel_details.csv").read_text()
        for rank, source in enumerate(sources)
    ]
    assert found[0] == found[1] == found[2]
    assert "max_process_number" not in caplog.text


@pytest.mark.parametrize("max_process_number", first_quick([0, -1, "2", None, True]))
def test_a_wrong_number_is_replaced(max_process_number: Any, caplog: pytest.LogCaptureFixture) -> None:
    analyse(str(capture(Path("job"))), max_process_number=max_process_number)
    assert "Parameter 'max_process_number' should be of type int" in caplog.text
    assert list(Path("job", "STEPSCOPE_OUTPUT").glob("*/rank0/results/kernel_details.csv"))


@pytest.mark.parametrize("sort", ["text_level2", "db_level1"])
def test_real_captures(sort: str, shared_data: Path) -> None:
    shutil.copytree(shared_data / "ascend" / sort, "job", ignore=shutil.ignore_patterns("*-wal", "*-shm"))
    before = contents(Path("job"))
    analyse("job", max_process_number=2, pretty=True, step_list=[1], data_simplification=True)
    made = {
        path.parents[1].name: path
        for path in Path("job", "STEPSCOPE_OUTPUT").rglob("results_steps_*/step_trace_time.csv")
    }
    assert {rank: column(path, "Step") for rank, path in made.items()} == {"rank0": ["50"], "rank1": ["50"]}
    after = contents(Path("job"))
    assert {path: digest for path, digest in after.items() if "STEPSCOPE_OUTPUT" not in path.parts} == before
