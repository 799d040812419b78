"""The verbs that look at runs: what they print, write and return."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from stepscope import native
from stepscope.cli.main import VERBS, main

DATA = Path(__file__).parents[2] / "data" / "kineto"
TRACE = DATA / "alexnet_simple_add.json.gz"


@pytest.fixture
def run_path(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    assert main(["import", str(TRACE), "--output", str(tmp_path / "runs"), "--quiet"]) == 0
    return Path(capsys.readouterr().out.strip())


def test_import_makes_a_run_and_keeps_the_file(run_path: Path) -> None:
    assert (run_path / "rank0" / "capture" / TRACE.name).read_bytes() == TRACE.read_bytes()
    assert (run_path / "rank0" / "results" / "step_trace_time.csv").exists()
    assert (run_path.stat().st_mode & 0o777) == 0o700


def test_import_twice_makes_two_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for _ in range(2):
        assert main(["import", str(TRACE), "--output", str(tmp_path), "--quiet"]) == 0
    first, second = capsys.readouterr().out.split()
    assert first != second


def test_report_prints_the_summary(run_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(run_path)]) == 0
    text = capsys.readouterr().out
    assert "\x1b" not in text, "no escape codes where standard output is no terminal"
    assert "stepscope export" in text


def test_check_lists_tables_and_losses(run_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", str(run_path)]) == 0
    text = capsys.readouterr().out
    assert "losses" in text
    assert "spans" in text


def test_export_prints_the_paths_it_wrote(run_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export", str(run_path), "--to", "trace,pftrace,db"]) == 0
    paths = [Path(line) for line in capsys.readouterr().out.splitlines()]
    assert {path.name for path in paths} == {"trace_view.json", "trace.pftrace", "stepscope.db"}
    assert all(path.stat().st_size > 0 for path in paths)
    json.loads(next(path for path in paths if path.name == "trace_view.json").read_bytes())


def test_unknown_format_names_the_known_ones(run_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export", str(run_path), "--to", "pdf"]) == 2
    assert "pftrace" in capsys.readouterr().err


BAD = {
    "empty": (b"", 4),
    "cut": (TRACE.read_bytes()[:200], 4),
    "not JSON": (b"hello, world", 4),
    "JSON of something else": (b'{"name": "a package", "version": 3}', 4),
}


@pytest.mark.parametrize("name", BAD)
def test_import_of_a_bad_file_is_one_line(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    content, code = BAD[name]
    path = tmp_path / "trace.json"
    path.write_bytes(content)
    assert main(["import", str(path), "--output", str(tmp_path / "runs")]) == code
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "trace.json" in error
    assert not list((tmp_path / "runs").glob("*")), "nothing half-made stays behind"


@pytest.mark.parametrize("verb", ["report", "check"])
def test_a_directory_without_a_run(verb: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([verb, str(tmp_path)]) == 4
    assert "stepscope run" in capsys.readouterr().err


def test_import_into_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "occupied").write_text("mine")
    assert main(["import", str(TRACE), "--output", str(tmp_path / "occupied")]) == 2
    assert "--output" in capsys.readouterr().err
    assert (tmp_path / "occupied").read_text() == "mine"


def test_output_that_nobody_reads_is_no_error(run_path: Path) -> None:
    command = f"{sys.executable} -m stepscope check {run_path} | true"
    done = subprocess.run(["bash", "-o", "pipefail", "-c", command], capture_output=True, text=True, check=False)
    assert done.stderr == ""


def test_version_and_no_verb(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("stepscope 0")
    assert main([]) == 2


@pytest.mark.parametrize("verb", [verb.rstrip("_") for verb in VERBS])
def test_every_verb_prints_its_help(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main([verb, "--help"])
    assert left.value.code == 0
    assert f"usage: stepscope {verb}" in capsys.readouterr().out


@pytest.mark.parametrize(("error", "code"), [(KeyboardInterrupt(), 130), (ImportError("polars is broken"), 5)])
def test_a_start_that_fails_is_one_line(
    error: BaseException, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(_name: str) -> None:
        raise error

    monkeypatch.setattr("importlib.import_module", fail)
    assert main(["doctor"]) == code
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.skipif(sys.platform != "linux" or native.available() is not None, reason="needs the C part, on Linux")
@pytest.mark.parametrize("megabytes", [150, 300])
def test_too_little_memory_for_a_library_is_one_line(run_path: Path, megabytes: int) -> None:
    # Given a limit that a library is not loaded with, or aborts with; the results are made anew
    shutil.rmtree(run_path / "rank0" / "tables")
    code = (
        f"import resource, runpy; resource.setrlimit(resource.RLIMIT_AS, ({megabytes << 20}, {megabytes << 20}))\n"
        f"import sys; sys.argv = ['stepscope', 'report', {str(run_path)!r}]\n"
        "runpy.run_module('stepscope', run_name='__main__')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    (line,) = done.stderr.splitlines()
    assert (done.returncode, line.startswith("stepscope: ")) == (5, True)
    assert f"{megabytes * 1.048576 / 1000:.1f} GB of memory (ulimit -v, ulimit -d)" in line


@pytest.mark.parametrize("option", ["--local_rank=1", "--local-rank=1"])
def test_the_rank_that_a_launcher_gives_a_module_is_the_programs(option: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import sys; print(sys.argv[1:])")
    command = [sys.executable, "-m", "stepscope", option, "run", "--output", "runs", "train.py", "--epochs", "3"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, f"['--epochs', '3', '{option}']\n"), done.stderr
