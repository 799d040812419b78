"""The start-up hook comes with the package, from a wheel or editable, and loads nothing when it is not used."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

from stepscope.collect.start.environment import MINDSPORES, OURS

ROOT = Path(__file__).resolve().parents[2]
HOOK = "stepscope.pth"


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


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the checkout, so that building changes nothing in it."""
    if importlib.util.find_spec("setuptools") is None:
        pytest.skip("setuptools is not installed here, and a test needs no network")
    folder = tmp_path_factory.mktemp("source")
    for name in ("setup.py", "pyproject.toml", "README.md", HOOK):
        shutil.copy(ROOT / name, folder)
    ignored = shutil.ignore_patterns("*.so", "*.c", "__pycache__")
    shutil.copytree(ROOT / "src" / "stepscope", folder / "src" / "stepscope", ignore=ignored)
    (folder / "src" / "stepscope" / "native" / "empty.c").write_text("int stepscope_nothing;\n")
    return folder


PIP = (sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check")
OFFLINE = ("--no-deps", "--no-index", "--no-build-isolation")


def installed(folder: Path, *what: str | Path) -> Path:
    """Install stepscope into a new virtual environment and return its Python."""
    venv.create(folder, with_pip=False)
    python = folder / "bin" / "python"
    run(*PIP, "--python", python, "install", *OFFLINE, *what, PYTHONPATH=sysconfig.get_path("purelib"))
    return python


@pytest.fixture(scope="module")
def wheel(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    run(*PIP, "wheel", *OFFLINE, "--wheel-dir", folder, source)
    (built,) = folder.glob("*.whl")
    return built


def test_the_wheel_holds_the_hook_and_its_record(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        assert archive.read(HOOK) == (ROOT / HOOK).read_bytes()
        (record,) = [name for name in archive.namelist() if name.endswith("RECORD")]
        assert any(line.startswith(f"{HOOK},sha256=") for line in archive.read(record).decode().splitlines())


@pytest.mark.parametrize("how", ["wheel", "editable"])
def test_it_works_where_it_is_installed(how: str, wheel: Path, source: Path, tmp_path: Path) -> None:
    python = installed(tmp_path / "env", *([wheel] if how == "wheel" else ["--editable", source]))
    (tmp_path / "jax.py").write_text("")  # a package that goes by the name of a framework
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import jax; print('stepscope.collect' in sys.modules)"
    assert run(python, "-c", code) == "False\n"
    assert run(python, "-c", code, STEPSCOPE_OPTIONS='{"start": false}') == "True\n"
    assert run(python, "-c", code, MS_PROFILER_OPTIONS='{"start": false}') == "True\n"
    # and no longer where Python is told to leave such files alone
    assert run(python, "-S", "-c", code, STEPSCOPE_OPTIONS='{"start": false}') == "False\n"
    # it goes with the package
    run(*PIP, "--python", python, "uninstall", "--yes", "stepscope")
    assert not list((tmp_path / "env").rglob(HOOK))
    assert run(python, "-c", code, STEPSCOPE_OPTIONS='{"start": true}') == "False\n"


def test_the_hook_is_one_line_that_asks_the_environment_first() -> None:
    (line,) = (ROOT / HOOK).read_text().splitlines()
    assert line.startswith("import os; ")
    assert all(name in line for name in (OURS, MINDSPORES))


def test_it_loads_nothing_that_python_does_not(tmp_path: Path) -> None:
    """What the line costs is measured by benchmarks/startup_hook.py."""
    venv.create(tmp_path / "env", with_pip=False)
    python = tmp_path / "env" / "bin" / "python"
    site = Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip())
    modules = "import sys; print(sorted(sys.modules), sys.meta_path)"
    without = run(python, "-c", modules)
    shutil.copy(ROOT / HOOK, site)
    assert run(python, "-c", modules) == without
    # And a hook that did load something would be seen.
    (site / HOOK).write_text("import json\n")
    assert run(python, "-c", modules) != without
