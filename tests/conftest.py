"""What all tests share."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import pytest

#: Writes a trace of events, and further top-level keys, and returns its path.
WriteTrace: TypeAlias = Callable[..., Path]


def files_in(directory: Path) -> list[Path]:
    """Return all files below a directory, in order; those of a file are itself."""
    if not directory.is_dir():
        return [directory]
    return sorted(path for path in directory.rglob("[!.]*") if path.is_file())


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder with real captures beside the checkout; skips where it is absent, fails where CI promises it."""
    folder = Path(__file__).resolve().parents[2] / "shared" / "data"
    if not folder.is_dir():
        reason = f"the real captures are not at {folder}"
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)
    return folder


@pytest.fixture
def write_trace(tmp_path: Path) -> WriteTrace:
    """Write a small trace the way Kineto does: events whose first key is ``ph``, among the document's other keys."""

    def write(events: Sequence[Mapping[str, Any]], /, name: str = "trace.json", **document: Any) -> Path:
        path = tmp_path / name
        text = json.dumps({"schemaVersion": 1, **document, "traceEvents": [{"ph": "X", **event} for event in events]})
        path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
        return path

    return write
