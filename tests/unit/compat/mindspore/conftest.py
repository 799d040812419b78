"""Profiles of MindSpore's interface that record without MindSpore: the journal is all there is."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from stepscope.compat.mindspore import handler, parameters, recorder, switches


@pytest.fixture(autouse=True)
def fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Give each test a directory and a process that has logged nothing; end profiles that it leaves running."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("STEPSCOPE_MINDSPORE_STRICT", raising=False)
    monkeypatch.setattr(handler, "chosen", (None, None))
    monkeypatch.setattr(parameters, "logged", set())
    monkeypatch.setattr(switches, "logged", set())
    caplog.set_level(logging.INFO, "stepscope")
    yield
    while (leader := recorder.running_leader()) is not None:
        leader.end()


@pytest.fixture
def lenient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Exceptions of the documents are log lines, as in MindSpore 2.10."""
    monkeypatch.setenv("STEPSCOPE_MINDSPORE_STRICT", "0")
