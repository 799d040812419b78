"""What unit tests share: files of a job of eight ranks, which real GPUs wrote."""

from __future__ import annotations

import tarfile
from pathlib import Path

import pytest

SHARED = Path(__file__).resolve().parents[3] / "shared" / "data"


@pytest.fixture(scope="session")
def dlrm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the directory of the files; none may be changed."""
    archive = SHARED / "kineto" / "param" / "dlrm_kineto.tar.gz"
    if not archive.exists():
        pytest.skip("the shared captures are not here")
    directory = tmp_path_factory.mktemp("dlrm")
    with tarfile.open(archive) as files:
        files.extractall(directory, filter="data")
    return directory / "dlrm_kineto"
