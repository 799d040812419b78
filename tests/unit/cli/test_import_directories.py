"""``stepscope import`` of directories: what becomes of each, and what is refused in one line."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from stepscope.cli.main import main
from stepscope.run import Run

DATA = Path(__file__).parents[2] / "data"
OWN = DATA / "mindspore_cpu" / "own_graph"


def imported(traces: list[Path], output: Path, capsys: pytest.CaptureFixture[str]) -> Run:
    assert main(["import", *map(str, traces), "--output", str(output), "--quiet"]) == 0
    return Run(capsys.readouterr().out.strip())


def test_only_what_the_reader_needs_is_copied_and_private(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    original = Path(shutil.copytree(OWN, tmp_path / "own"))
    (profile,) = original.iterdir()
    (profile / "PROF_1_2_abc").mkdir()
    (profile / "PROF_1_2_abc" / "raw.bin").write_bytes(b"x" * 100)
    run = imported([original], tmp_path / "runs", capsys)
    capture = run.path / "rank0" / "capture"
    names = sorted(path.name for path in capture.rglob("*") if path.is_file())
    assert "raw.bin" not in names
    assert names == sorted(path.name for path in OWN.rglob("*") if path.is_file())
    assert {path.stat().st_mode & 0o777 for path in capture.rglob("*") if path.is_file()} == {0o600}
    assert {path.stat().st_mode & 0o777 for path in capture.rglob("*") if path.is_dir()} == {0o700}
    assert run.manifest["format"] == "mindspore"
    metadata = dict(run.tables["metadata"].collect().rows())
    assert json.loads(metadata["a"]) == "b"


def test_two_directories_of_one_name_are_two_captures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for folder in ("monday", "tuesday"):
        shutil.copytree(DATA / "mindspore_cpu" / "collected_graph", tmp_path / "both" / folder / "mindspore")
    run = imported([tmp_path / "both"], tmp_path / "runs", capsys)
    assert [path.name for path in run.ranks[0].captures] == ["mindspore", "mindspore_2"]


def test_a_file_and_a_directory_become_two_ranks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    directory = DATA / "mindspore_cpu" / "two_ranks" / "graph_rank1"
    run = imported([directory, DATA / "kineto" / "alexnet_simple_add.json.gz"], tmp_path / "runs", capsys)
    assert [rank.manifest["format"] for rank in run.ranks] == ["kineto", "mindspore"]


def test_two_directories_that_say_the_same_rank_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = DATA / "mindspore_cpu" / "own_pynative"
    assert main(["import", str(OWN), str(other), "--output", str(tmp_path / "runs")]) == 2
    assert "both say they are rank 0" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["empty", "of something else", "all files empty"])
def test_a_directory_without_a_recording_is_one_line(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = tmp_path / "given"
    directory.mkdir()
    if name == "of something else":
        (directory / "notes.txt").write_text("hello")
    elif name == "all files empty":
        (directory / "cpu_op_execute_timestamp_0.txt").write_text("")
    assert main(["import", str(directory), "--output", str(tmp_path / "runs")]) == 4
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "given" in error
    assert not list((tmp_path / "runs").glob("*")), "nothing half-made stays behind"


def test_captures_at_an_address_are_for_reduce(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["import", "s3://bucket/traces", "--output", str(tmp_path / "runs")])
    assert ended.value.code == 2
    assert "`stepscope reduce s3://bucket/traces --output JOB`" in capsys.readouterr().err
    assert main(["import", f"file://{OWN}", "--output", str(tmp_path / "runs"), "--quiet"]) == 0
