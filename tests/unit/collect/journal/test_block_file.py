"""Files of blocks beside the journal: complete, bounded, and never an error in the training."""

from __future__ import annotations

import errno
import json
import logging
import os
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from stepscope.collect.journal import block_file
from stepscope.collect.journal.block_file import BlockFile
from stepscope.collect.journal.journal import Journal
from stepscope.trace.blocks import read_frames, unpack
from stepscope.trace.losses import LossLedger
from tests.unit.collect.conftest import Recording
from tests.unit.collect.reading import descriptor


def contents(path: Path) -> list[dict[str, Any]]:
    ledger = LossLedger("test")
    found = [json.loads(unpack(payload)) for payload in read_frames(path, ledger)]
    assert not ledger.rows()
    return found


def from_list(waiting: list[dict[str, Any]]) -> Any:
    return lambda: waiting.pop(0) if waiting else None


def test_everything_is_written_in_order_and_the_last_block_says_so(recording: Recording, tmp_path: Path) -> None:
    path = tmp_path / "numbers.ssj"
    file = BlockFile(path, from_list([{"number": number} for number in range(5)]), recording.journal)
    file.close()
    *written, last = contents(path)
    assert [block["number"] for block in written] == list(range(5))
    assert last["closed"] is True
    assert len(last["anchors"]) == 2
    assert path.stat().st_mode & 0o777 == 0o600


def test_it_is_written_while_the_program_runs(
    recording: Recording, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(block_file, "INTERVAL", 0.01)
    path = tmp_path / "numbers.ssj"
    file = BlockFile(path, from_list([{"number": 7}]), recording.journal)
    deadline = time.monotonic() + 5
    while not any("number" in block for block in contents(path)) and time.monotonic() < deadline:
        time.sleep(0.01)
    # Then: what a killed process leaves is there already, and is not marked as complete
    assert [block["number"] for block in contents(path)] == [7]
    file.close()


def test_a_source_that_fails_ends_the_file_and_is_counted(
    recording: Recording, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def fails() -> dict[str, Any] | None:
        raise ZeroDivisionError

    with caplog.at_level(logging.WARNING):
        BlockFile(tmp_path / "numbers.ssj", fails, recording.journal).close()
    assert recording.read().counted == {"capture_not_written": 1}
    assert "training goes on" in caplog.text


def test_a_full_disk_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Given: a file on a disk that fills up after its header
    journal = Journal(tmp_path / "journal.ssj")
    monkeypatch.setattr(block_file, "INTERVAL", 60)
    file = BlockFile(tmp_path / "numbers.ssj", from_list([{"number": 1}]), journal)
    ours, write = descriptor(tmp_path / "numbers.ssj"), os.write

    def full(number: int, content: bytes) -> int:
        if number == ours:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(number, content)

    monkeypatch.setattr(os, "write", full)
    file.close()
    assert journal.close()
    assert [(loss.what, loss.count) for loss in journal.ledger.rows()] == [("disk_full", 1)]


def test_no_thread_is_left(recording: Recording, tmp_path: Path) -> None:
    before = threading.active_count()
    BlockFile(tmp_path / "numbers.ssj", lambda: None, recording.journal).close()
    assert threading.active_count() == before
