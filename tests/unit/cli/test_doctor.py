"""``stepscope doctor`` as a user calls it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from stepscope.cli.main import main
from stepscope.collect.doctor import diagnosis


@pytest.fixture(autouse=True)
def missing_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    missing = {"error": "not installed\x1b[31m", "remedy": "pip install torch"}
    monkeypatch.setattr(diagnosis, "probe_torch", lambda: missing)


def test_every_finding_is_a_line_with_its_remedy_below(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--output", str(tmp_path / "out")]) == 0
    lines = capsys.readouterr().out.splitlines()
    index = lines.index("✗ PyTorch               not installed\\x1b[31m")
    assert lines[index + 1] == " " * 24 + "→ pip install torch"
    assert any(line.startswith("✓ stepscope ") for line in lines)
    assert not (tmp_path / "out").exists()


def test_as_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--json", "--output", str(tmp_path)]) == 0
    findings = {check["name"]: check for check in json.loads(capsys.readouterr().out)}
    assert findings["PyTorch"]["state"] == "no"
    assert findings["PyTorch"]["detail"] == "not installed\x1b[31m"


def test_a_directory_that_cannot_be_written_is_a_finding_not_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    assert main(["doctor", "--output", str(tmp_path / "file")]) == 0
    assert "✗ output" in capsys.readouterr().out


def test_without_torch_no_gpu_is_tried(tmp_path: Path) -> None:
    (tmp_path / "site").mkdir()
    program = "import sys; from stepscope import trial; sys.path[:] = sys.argv[1:]; print(trial.check())"
    command = [sys.executable, "-c", program, str(tmp_path / "site")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert (done.returncode, done.stdout) == (0, "None\n")


def test_help_says_what_it_does(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["doctor", "--help"])
    assert stopped.value.code == 0
    assert "Nothing is installed" in " ".join(capsys.readouterr().out.split())


def test_a_terminal_without_unicode(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "stepscope", "doctor", "-o", str(tmp_path / "ö")]
    environment = {**os.environ, "PYTHONIOENCODING": "ascii", "PYTHONPATH": str(tmp_path)}
    (tmp_path / "torch.py").write_text("raise ImportError('nö')")
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300, env=environment)
    assert (done.returncode, done.stderr) == (0, "")
    assert "\n+ stepscope " in "\n" + done.stdout
    assert "\\xf6" in done.stdout


def test_the_real_command(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "stepscope", "doctor", "--json", "-o", str(tmp_path / "out")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=180)
    assert (done.returncode, done.stderr) == (0, "")
    assert len(json.loads(done.stdout)) >= 15
