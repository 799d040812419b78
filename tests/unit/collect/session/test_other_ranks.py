"""The first rank waits for the results of the others: as long as they can still come, and never longer than it says."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

from stepscope.collect.session.other_ranks import OtherRanks, wait_for_others
from stepscope.trace.run_directory import RankDirectory


def rank(run: Path, number: int, *, process: int, host: str = socket.gethostname(), ready: bool = False) -> Path:
    """Make the directory of a rank, with its results if it is ready, and return the path of its summary."""
    directory = RankDirectory(run / f"rank{number}")
    directory.create()
    directory.write_manifest({"rank": number, "host": host, "process": process})
    if ready:
        directory.summary_path.write_text("{}")
    return directory.summary_path


def ended() -> int:
    """Return the number of a process that has ended."""
    process = subprocess.Popen([sys.executable, "-S", "-c", ""])
    process.wait()
    return process.pid


def test_results_that_are_there_are_not_waited_for(tmp_path: Path) -> None:
    rank(tmp_path, 1, process=os.getpid(), ready=True)
    rank(tmp_path, 2, process=os.getpid(), host="elsewhere", ready=True)
    begin = time.monotonic()
    assert wait_for_others(tmp_path, 3, 0, 60.0) == OtherRanks()
    assert time.monotonic() - begin < 30


def test_results_that_come_meanwhile_end_the_wait(tmp_path: Path) -> None:
    summary = rank(tmp_path, 0, process=os.getpid())
    late = threading.Timer(0.2, lambda: summary.write_text("{}"))
    late.start()
    assert wait_for_others(tmp_path, 2, 1, 60.0) == OtherRanks()
    late.join()


def test_a_rank_that_was_killed_is_not_waited_for(tmp_path: Path) -> None:
    """Given a killed rank, then what it recorded is there, and no results will come."""
    rank(tmp_path, 1, process=ended())
    begin = time.monotonic()
    assert wait_for_others(tmp_path, 2, 0, 60.0) == OtherRanks()
    assert time.monotonic() - begin < 30


def test_a_killed_rank_whose_launcher_does_not_know_yet_is_not_waited_for(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-S", "-c", ""], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.read() == b""  # it ends, and is a zombie until somebody waits for it
        rank(tmp_path, 1, process=process.pid)
        assert wait_for_others(tmp_path, 2, 0, 60.0) == OtherRanks()


def test_after_the_wait_late_and_absent_ranks_are_named(tmp_path: Path) -> None:
    rank(tmp_path, 1, process=os.getpid())
    rank(tmp_path, 2, process=ended(), host="elsewhere")  # whether it has ended cannot be seen from here
    rank(tmp_path, 3, process=os.getpid(), ready=True)
    (tmp_path / "rank4").mkdir()  # it has only begun
    assert wait_for_others(tmp_path, 7, 0, 0.3) == OtherRanks((1, 2, 4), (5, 6))


def test_a_damaged_manifest_is_no_reason_to_stop(tmp_path: Path) -> None:
    rank(tmp_path, 1, process=os.getpid()).with_name("manifest.json").write_text("{")
    assert wait_for_others(tmp_path, 2, 0, 0.2) == OtherRanks((1,))
