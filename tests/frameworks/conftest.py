"""Each framework has an environment of its own: what is not installed in this one is not collected in it."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

collect_ignore = [name for name in ("torch", "mindspore", "paddle", "jax") if find_spec(name) is None]


@pytest.fixture
def output(tmp_path: Path) -> Path:
    """Where a test's runs are recorded."""
    return tmp_path / "runs"
