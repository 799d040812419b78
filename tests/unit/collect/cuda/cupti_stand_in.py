"""Builds the library in C that stands in for CUPTI, and for NVIDIA's driver, where there is no GPU."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.cupti_wheels import unpack

SOURCE = Path(__file__).with_suffix(".c")


def build(home: Path) -> dict[str, str]:
    """Make ``home`` a CUDA directory whose CUPTI is the stand-in; return the variables by which programs find it."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("there is no C compiler")
    libraries = home / "lib64"
    libraries.mkdir()
    flags = unpack("oldest", 13, home / "nvidia").flags
    command = [
        compiler,
        *flags,
        "-D_GNU_SOURCE",
        "-Wall",
        "-Werror",
        "-O1",
        "-shared",
        "-fPIC",
        "-pthread",
        str(SOURCE),
    ]
    for name in ("libcupti.so.13", "libcuda.so.1"):
        subprocess.run([*command, f"-Wl,-soname,{name}", "-o", str(libraries / name)], check=True)
    return {"CUDA_HOME": str(home), "LD_LIBRARY_PATH": str(libraries)}
