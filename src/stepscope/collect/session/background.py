"""Compute results, or write them in another layout: in another process, during the training or after it."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from stepscope.collect.error_stream import is_there
from stepscope.collect.own_process import own_command, own_environment

#: Name of the background process's output, in the rank's directory.
LOG = "analysis.log"
_NICEST = 19


def start_analysis(rank: Path, *arguments: str) -> subprocess.Popen[bytes]:
    """Start ``stepscope report --quiet`` for a rank, at the lowest priority and in a new session.

    It outlives this process, uses one core, and writes its messages to ``analysis.log``. The caller must wait for it
    on another thread; otherwise it stays a zombie.

    Raises:
        OSError: The process cannot be started.
    """
    with (rank / LOG).open("wb") as log:
        process = subprocess.Popen(  # noqa: S603 - our own command
            own_command("stepscope", "report", str(rank), "--quiet", *arguments),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd=rank,
            env=own_environment(POLARS_MAX_THREADS="1"),
            start_new_session=True,
        )
    try:
        os.setpriority(os.PRIO_PROCESS, process.pid, _NICEST)
    except (OSError, AttributeError):
        return process  # it has ended already, or the system has no priorities
    return process


def run_report(rank: Path, *arguments: str, within: float | None = None) -> int:
    """Run ``stepscope report`` for a rank, its output on standard error, and return its exit code.

    Standard output belongs to the program that was profiled. With ``--quiet``, nothing is shown. Ctrl-C reaches this
    process alone, which then ends that one: Python itself would print a traceback while it starts there.

    Args:
        rank: Directory of the rank, or of the run.
        arguments: Further arguments of ``stepscope report``.
        within: Seconds that it may take.

    Raises:
        OSError: The process cannot be started.
        subprocess.TimeoutExpired: It took longer, and was ended.
    """
    return _run("report", str(rank), *arguments, shows="--quiet" not in arguments, within=within)


def run_export(rank: Path, *arguments: str) -> int:
    """Run ``stepscope export`` for a rank, without its list of files, and return its exit code.

    Raises:
        OSError: The process cannot be started.
    """
    return _run("export", str(rank), *arguments, shows=False)


def _run(*arguments: str, shows: bool, within: float | None = None) -> int:
    errors = 2 if is_there() else subprocess.DEVNULL
    done = subprocess.run(  # noqa: S603 - our own command
        own_command("stepscope", *arguments),
        stdin=subprocess.DEVNULL,
        stdout=errors if shows else subprocess.DEVNULL,
        stderr=errors,
        env=own_environment(),
        start_new_session=True,
        check=False,
        timeout=within,
    )
    return done.returncode
