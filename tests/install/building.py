"""Building and installing the package from a copy of the checkout, without a network."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

from stepscope.collect.start.environment import MINDSPORES, OURS

ROOT = Path(__file__).resolve().parents[2]
HOOK = "stepscope.pth"
PACKAGING = ("setup.py", "pyproject.toml", "MANIFEST.in", "README.md", "CHANGELOG.md", "LICENSE", HOOK)


def clean(**variables: str) -> dict[str, str]:
    drop = (OURS, MINDSPORES, "PYTHONPATH", "STEPSCOPE_STARTUP")
    return {**{key: value for key, value in os.environ.items() if key not in drop}, **variables}


def run(*command: str | Path, **variables: str) -> str:
    """Run a command to its end and return its output; fail with what it said where it fails."""
    done = subprocess.run(
        list(map(str, command)), env=clean(**variables), capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


PIP = (sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check")
OFFLINE = ("--no-deps", "--no-index", "--no-build-isolation")


def installed(folder: Path, *what: str | Path) -> Path:
    """Install stepscope into a new virtual environment and return its Python."""
    venv.create(folder, with_pip=False)
    python = folder / "bin" / "python"
    run(*PIP, "--python", python, "install", *OFFLINE, *what, PYTHONPATH=sysconfig.get_path("purelib"))
    return python
