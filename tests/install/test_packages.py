"""The source distribution, the wheel made of it, and an editable install: what they hold, and their version."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

import stepscope
from tests.install.building import HOOK, OFFLINE, PACKAGING, PIP, ROOT, installed, run

SOURCE = ROOT / "src" / "stepscope"
#: The browser side, where `make page` has built it.
BUNDLE = SOURCE / "report" / "page" / "bundle"
PAGE = [BUNDLE / name for name in ("page.js", "worker.js", "page.css")] if BUNDLE.is_dir() else []
#: Most bytes of a source distribution: the code, without captures and pictures.
MOST_BYTES = 2_000_000
BUILD_SDIST = "import sys; from setuptools.build_meta import build_sdist; build_sdist(sys.argv[1])"


@pytest.fixture(scope="module")
def distribution(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The source distribution of the whole checkout, captures of tests included in what it is made from."""
    folder = tmp_path_factory.mktemp("checkout")
    for name in PACKAGING:
        shutil.copy(ROOT / name, folder)
    shutil.copytree(SOURCE, folder / "src" / "stepscope", ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    (folder / "tests" / "data").mkdir(parents=True)
    (folder / "tests" / "test_something.py").write_text("")
    (folder / "tests" / "data" / "capture.json").write_text("{}")
    made = tmp_path_factory.mktemp("sdist")
    subprocess.run([sys.executable, "-c", BUILD_SDIST, made], cwd=folder, check=True, capture_output=True, timeout=300)
    (archive,) = made.glob("*.tar.gz")
    return archive


def test_the_source_distribution_holds_the_code_and_no_captures(distribution: Path) -> None:
    assert distribution.name == f"stepscope-{stepscope.__version__}.tar.gz"
    assert distribution.stat().st_size < MOST_BYTES
    with tarfile.open(distribution) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    code = {path for suffix in ("py", "c", "h", "cpp") for path in SOURCE.rglob(f"*.{suffix}")}
    assert {path.relative_to(ROOT).as_posix() for path in (*code, *PAGE)} <= names
    assert {*PACKAGING} <= names
    assert not [name for name in names if name.startswith(("tests", "docs", "benchmarks", "node_modules"))]


@pytest.mark.slow
def test_a_wheel_is_built_from_the_source_distribution(distribution: Path, tmp_path: Path) -> None:
    """Without Node: nothing but Python, and a C compiler if there is one."""
    tools = tmp_path / "bin"
    tools.mkdir()
    for name in ("cc", "gcc", "x86_64-linux-gnu-gcc", "as", "ld", "collect2"):
        if found := shutil.which(name):
            (tools / name).symlink_to(found)
    run(*PIP, "wheel", *OFFLINE, "--wheel-dir", tmp_path, distribution, PATH=str(tools))
    (wheel,) = tmp_path.glob("*.whl")
    name, version, python, abi, platform = wheel.stem.split("-")
    assert (name, version, python, abi) == ("stepscope", stepscope.__version__, "cp311", "abi3")
    assert platform.startswith("linux_")
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        (said,) = [text for text in names if text.endswith(".dist-info/WHEEL")]
        assert "Root-Is-Purelib: false" in archive.read(said).decode()
    kept = [*SOURCE.rglob("*.py"), *(SOURCE / "native" / "recorder").glob("*.[ch]*"), SOURCE / "py.typed", *PAGE]
    assert {path.relative_to(SOURCE.parent).as_posix() for path in kept} <= names
    assert HOOK in names
    if shutil.which("cc"):
        python_there = installed(tmp_path / "env", wheel)
        look = "from stepscope import native; print(native.available())"
        assert run(python_there, "-c", look) == "None\n"


@pytest.mark.slow
def test_an_editable_install_builds_changed_c_again(source: Path, tmp_path: Path) -> None:
    if shutil.which("cc") is None:
        pytest.skip("there is no C compiler")
    native = source / "src" / "stepscope" / "native"

    def says() -> int:
        """Install, load a copy of the library (the loader keeps what it has read once), and ask it."""
        installed(tmp_path / str(len(list(tmp_path.iterdir()))), "--editable", source)
        (library,) = native.glob("_stepscope*.so")
        copied = shutil.copy(library, tmp_path / f"{len(list(tmp_path.iterdir()))}.so")
        return int(ctypes.CDLL(copied).answer())

    visible = '__attribute__((visibility("default"))) int answer(void)'
    for file, text, expected in [
        ("answer.h", "#define ANSWER 1\n", None),
        ("empty.c", f'#include "answer.h"\n{visible} {{ return ANSWER; }}\n', 1),
        ("answer.h", "#define ANSWER 2\n", 2),
        ("empty.c", f"{visible} {{ return 3; }}\n", 3),
    ]:
        (native / file).write_text(text)
        if expected is not None:
            assert says() == expected


def test_the_version_is_written_once() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert "version" not in project
    assert project["dynamic"] == ["version"]
    written = [
        path for path in (ROOT / "setup.py", ROOT / "pyproject.toml") if stepscope.__version__ in path.read_text()
    ]
    assert written == []
