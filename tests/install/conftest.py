"""A copy of the checkout, and the wheel made of it."""

from __future__ import annotations

import importlib.util
import shutil
from pathlib import Path

import pytest

from tests.install.building import OFFLINE, PACKAGING, PIP, ROOT, run


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the checkout, so that building changes nothing in it."""
    if importlib.util.find_spec("setuptools") is None:
        pytest.skip("setuptools is not installed here, and a test needs no network")
    folder = tmp_path_factory.mktemp("source")
    for name in PACKAGING:
        shutil.copy(ROOT / name, folder)
    ignored = shutil.ignore_patterns("*.so", "*.c", "__pycache__")
    shutil.copytree(ROOT / "src" / "stepscope", folder / "src" / "stepscope", ignore=ignored)
    (folder / "src" / "stepscope" / "native" / "empty.c").write_text("int stepscope_nothing;\n")
    return folder


@pytest.fixture(scope="module")
def wheel(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    run(*PIP, "wheel", *OFFLINE, "--wheel-dir", folder, source)
    (built,) = folder.glob("*.whl")
    return built
