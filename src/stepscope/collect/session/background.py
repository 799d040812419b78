"""Compute results in another process: at low priority during the training, or after it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

#: Name of the background process's output, in the rank's directory.
LOG = "analysis.log"
_NICEST = 19


def report_command(rank: Path, *arguments: str) -> list[str]:
    """Return the command line of ``stepscope report`` for a rank's directory.

    Raises:
        OSError: ``sys.executable`` is empty, because Python is embedded in another program.
    """
    if not sys.executable:
        message = "the path of this Python is unknown: sys.executable is empty"
        raise OSError(message)
    return [sys.executable, "-m", "stepscope", "report", str(rank), *arguments]


def start_analysis(rank: Path, *arguments: str) -> subprocess.Popen[bytes]:
    """Start ``stepscope report --quiet`` for a rank, at the lowest priority and in a new session.

    It outlives this process, uses one core, and writes its messages to ``analysis.log``. The caller must wait for it
    on another thread; otherwise it stays a zombie.

    Raises:
        OSError: The process cannot be started.
    """
    environment = {**os.environ, "POLARS_MAX_THREADS": "1"}
    with (rank / LOG).open("wb") as log:
        process = subprocess.Popen(  # noqa: S603 - our own command
            report_command(rank, "--quiet", *arguments),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd=rank,
            env=environment,
            start_new_session=True,
        )
    try:
        os.setpriority(os.PRIO_PROCESS, process.pid, _NICEST)
    except (OSError, AttributeError):
        return process  # it has ended already, or the system has no priorities
    return process


def run_report(rank: Path, *arguments: str) -> int:
    """Run ``stepscope report`` for a rank, its output on standard error, and return its exit code.

    Standard output belongs to the program that was profiled.

    Raises:
        OSError: The process cannot be started.
    """
    command = report_command(rank, *arguments)
    return subprocess.run(command, stdin=subprocess.DEVNULL, stdout=_error_stream(), check=False).returncode  # noqa: S603


def _error_stream() -> int:
    """Return descriptor 2; the null device if the program has closed it."""
    try:
        os.fstat(2)
    except OSError:
        return subprocess.DEVNULL
    return 2
