"""The start-up hook comes with the package, from a wheel or editable, and loads nothing when it is not used."""

from __future__ import annotations

import shutil
import venv
import zipfile
from pathlib import Path

import pytest

from stepscope.collect.start.environment import MINDSPORES, OURS
from tests.install.building import HOOK, PIP, ROOT, installed, run


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
