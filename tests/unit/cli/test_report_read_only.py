"""A run on a file system that cannot be written to is reported, checked, viewed and exported elsewhere."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import polars as pl
import pytest

import stepscope
from stepscope.cli.main import main
from stepscope.trace.run_directory import RankDirectory
from stepscope.view.served_run import ServedRun

CAPTURE = Path(__file__).parents[2] / "data" / "xplane" / "steps.xplane.pb"


@pytest.fixture
def read_only() -> Iterator[Callable[[Path], None]]:
    """Make a directory read-only, for root too."""
    mounted: list[Path] = []
    changed: list[Path] = []

    def make(folder: Path) -> None:
        if os.geteuid():
            changed.extend((folder, *folder.rglob("*")))
            for path in changed:
                path.chmod(0o500 if path.is_dir() else 0o400)
            return
        for options in (["--bind", str(folder)], ["-o", "remount,ro,bind"]):
            if subprocess.run(["mount", *options, str(folder)], capture_output=True, check=False).returncode:
                pytest.skip("cannot mount a read-only file system here")
            mounted.append(folder)

    yield make
    for folder in set(mounted):
        subprocess.run(["umount", "--lazy", str(folder)], check=True)
    for path in changed:
        path.chmod(0o700)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    directory = RankDirectory(tmp_path / "media" / "job_20261121-093012" / "rank0")
    directory.create()
    shutil.copyfile(CAPTURE, directory.capture / CAPTURE.name)
    directory.write_manifest({"status": "complete", "rank": 0})
    return directory.path.parent


@pytest.mark.parametrize("damaged", [False, True])
def test_a_run_that_cannot_be_written_to(
    run: Path,
    tmp_path: Path,
    read_only: Callable[[Path], None],
    capsys: pytest.CaptureFixture[str],
    damaged: bool,
) -> None:
    # Given a run without tables, or with tables that are damaged
    if damaged:
        stepscope.open(run).tables["spans"].collect()
        (run / "rank0" / "tables" / "spans.parquet").unlink()
    expected = shutil.copytree(run, tmp_path / "writable" / run.name)
    assert main(["report", str(expected)]) == 0
    summary = capsys.readouterr().out.partition(" results ")[0]
    read_only(run)
    before = {path.relative_to(run): path.stat().st_mtime_ns for path in run.rglob("*")}
    # When it is reported, checked, viewed and exported
    assert main(["report", str(run)]) == 0
    reported = capsys.readouterr().out
    assert main(["check", str(run)]) == 0
    checked = capsys.readouterr().out
    viewed = ServedRun(stepscope.open(run))
    assert viewed.of(None).content["title"]
    assert viewed.of(None).pyramid.spans.total > 0
    assert viewed.of(None).part("findings")["verdict"]
    viewed.close()
    assert main(["export", str(run), "--to", "all", "-o", str(tmp_path / "files")]) == 0
    assert main(["export", str(run), "--layout", "ascend", "--type", "text,db", "-o", str(tmp_path / "ascend")]) == 0
    # Then everything is as for a run that can be written to, and the report says where the results are not
    assert reported.partition(" results ")[0] == summary
    assert "Cannot write" in reported
    assert f"stepscope export {run} --to csv,json --output DIR" in reported
    assert f" next         stepscope view {run}   or, after a change, stepscope compare {run} NEW\n" in reported
    assert "spans" in checked
    written = expected / "rank0" / "results" / "step_trace_time.csv"
    assert (tmp_path / "files" / "step_trace_time.csv").read_bytes() == written.read_bytes()
    assert list((tmp_path / "ascend").glob("*_ascend_*"))
    assert stepscope.open(run).tables["steps"].select(pl.len()).collect().item() > 1
    assert {path.relative_to(run): path.stat().st_mtime_ns for path in run.rglob("*")} == before


@pytest.mark.parametrize("asked", [["-q"], ["--format", "csv"]])
def test_results_that_are_asked_for_and_cannot_be_written_are_an_error(
    run: Path, read_only: Callable[[Path], None], capsys: pytest.CaptureFixture[str], asked: list[str]
) -> None:
    read_only(run)
    assert main(["report", str(run), *asked]) == 2
    assert "Cannot write" in capsys.readouterr().err


def test_results_that_are_there_are_shown(
    run: Path, read_only: Callable[[Path], None], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["report", str(run)]) == 0
    printed = capsys.readouterr().out
    read_only(run)
    assert main(["report", str(run)]) == 0
    assert capsys.readouterr().out == printed


@pytest.mark.parametrize(
    ("place", "said"),
    [
        ("results", "results/step_trace_time.csv: {run}/rank0/results is a file"),
        ("results/step_trace_time.csv/inner", "results/step_trace_time.csv: it is a directory"),
        ("m.prom/inner", "m.prom: it is a directory"),
    ],
)
def test_what_stands_in_the_way_is_named_and_the_summary_is_shown(
    run: Path, capsys: pytest.CaptureFixture[str], place: str, said: str
) -> None:
    taken = run / "rank0" / place
    taken.parent.mkdir(parents=True, exist_ok=True)
    taken.write_text("mine")
    assert main(["report", str(run), "--metrics", str(run / "rank0" / "m.prom")]) == 2
    shown = capsys.readouterr()
    assert "steps/s" in shown.out
    assert f"{said.format(run=run)}. Remove or rename what is there" in shown.err
    assert taken.read_text() == "mine"
