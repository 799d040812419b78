"""What the Makefile makes again: the environment of the trainers, when other versions of them are asked for."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
OLD = "transformers==4.57.1 keras==3.12.*"


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout in which everything before the environment of the trainers is made."""
    for name in ("Makefile", "pyproject.toml", "setup.py"):
        shutil.copy(ROOT / name, tmp_path)
    for place, stamp in enumerate((".framework", ".ready", ".test")):
        file = tmp_path / ".envs" / "torch" / stamp
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
        now = file.stat().st_mtime + place
        os.utime(file, (now, now))
    return tmp_path


def wanted(checkout: Path, trainers: str) -> str:
    """Return the commands that make would run for the environment of these versions."""
    command = ["make", "--dry-run", "--no-print-directory", ".envs/trainers/.ready", f"TRAINERS={trainers}"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    done = subprocess.run(command, cwd=checkout, env=environment, capture_output=True, text=True, check=True)
    return done.stdout if "pip install" in done.stdout else ""


def test_other_versions_of_trainers_make_their_environment_again(checkout: Path) -> None:
    stamp = checkout / ".envs" / "trainers" / ".ready"
    stamp.parent.mkdir()
    for versions, others in (("", OLD), (OLD, "")):
        assert "venv --clear .envs/trainers" in wanted(checkout, versions)
        assert "--group trainers jax==" in wanted(checkout, versions)
        assert versions in wanted(checkout, versions)
        # When it has been made, it stays until other versions are asked for
        stamp.write_text(f"{versions}\n")
        later = (checkout / ".envs" / "torch" / ".test").stat().st_mtime + 1
        os.utime(stamp, (later, later))
        assert not wanted(checkout, versions)
        assert wanted(checkout, others)
