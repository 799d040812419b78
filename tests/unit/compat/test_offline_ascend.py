"""``analyse`` on what an Ascend device did: results beside the captures, and nothing in them changes."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from stepscope.cli.main import main
from stepscope.compat.mindspore import analyse
from tests.unit.ascend_build import capture


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
        results = Path("job") / "STEPSCOPE_OUTPUT" / source.name / f"rank{rank}" / "results"
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
    assert "holds 1 steps" in caplog.text


def test_report_makes_a_run_elsewhere(capsys: pytest.CaptureFixture[str]) -> None:
    source = capture(Path("job"))
    before = contents(source)
    assert main(["report", str(source), "--format", "csv"]) == 0
    (table,) = Path("stepscope-runs").glob("*/rank0/results/kernel_details.csv")
    assert "aclnnAdd_Add_0" in table.read_text()
    assert "stepscope-runs" in capsys.readouterr().out
    assert contents(source) == before
    assert [path.name for path in Path("job").iterdir()] == [source.name]
