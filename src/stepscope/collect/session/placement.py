"""Choose the directory of a window: one new directory for all ranks of a job, without communication.

A single process makes ``<output>/<worker>_<time>/rank0``. The ranks of a job agree through a file
``<output>/.job-<digest>.<generation>``: the rank that creates it (``O_EXCL``) writes the name of the run's directory
into it, and the others read the name. A rank whose folder exists in that run goes on to the next generation, so the
second windows of all ranks share a second directory. Files are never written into an existing rank's directory.
"""

from __future__ import annotations

import os
import re
import time
from pathlib import Path

from stepscope.collect.ranks import Job, JobRank, find_job
from stepscope.errors import OutputError
from stepscope.trace.run_directory import RankDirectory

#: Seconds to wait until the creator of a job file has written its line.
_PATIENCE = 5.0
#: Age in seconds at which a job file is stale, if no launcher named the job: it belongs to an older job.
_JOINABLE = 600.0
_ATTEMPTS = 10_000

#: Digest of a job → generations that this process has used.
_passed: dict[str, int] = {}


def create_rank_directory(output: Path, worker: str, place: JobRank) -> RankDirectory:
    """Make and return the directory of this rank in a new run, or in the run that the job's other ranks began.

    Args:
        output: Directory of runs; it exists.
        worker: First part of the run's name.
        place: This process in its job.

    Raises:
        OSError: A directory or file cannot be made.
        OutputError: Ten thousand runs of this name exist.
    """
    if place.world_size > 1:
        return _join(output, worker, place)
    directory = RankDirectory(output / _new_run(output, worker) / f"rank{place.rank}")
    directory.create()
    return directory


def _join(output: Path, worker: str, place: JobRank) -> RankDirectory:
    job = find_job()
    first = _passed.get(job.digest, 0)
    for generation in range(first, first + _ATTEMPTS):
        name = _agreed_name(output / f".job-{job.digest}.{generation}", worker, job)
        if name is None:
            continue
        directory = RankDirectory(output / name / f"rank{place.rank}")
        try:
            directory.create()
        except FileExistsError:
            continue
        _passed[job.digest] = generation + 1
        return directory
    raise _full(output)


def _agreed_name(meeting: Path, worker: str, job: Job) -> str | None:
    """Return the run's name from the job file, which this rank creates if it is missing; None if it is stale."""
    try:
        handle = os.open(meeting, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return _read_name(meeting, job)
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        name = _new_run(meeting.parent, worker)
        file.write(f"{name}\n")
    return name


def _read_name(meeting: Path, job: Job) -> str | None:
    if not job.certain and time.time() - meeting.stat().st_mtime > _JOINABLE:
        return None
    deadline = time.monotonic() + _PATIENCE
    while time.monotonic() < deadline:
        text = meeting.read_text(encoding="utf-8")
        if text.endswith("\n"):
            return text[:-1] if text[:-1] == as_file_name(text[:-1]) else None
        time.sleep(0.01)
    return None


def _new_run(output: Path, worker: str) -> str:
    """Make the directory of a new run and return its name."""
    first = f"{as_file_name(worker)}_{time.strftime('%Y%m%d-%H%M%S')}"
    for attempt in range(1, _ATTEMPTS):
        name = first if attempt == 1 else f"{first}-{attempt}"
        try:
            (output / name).mkdir(mode=0o700)
        except FileExistsError:
            continue
        return name
    raise _full(output)


def as_file_name(text: str) -> str:
    """Return ``text`` as one safe component of a path: letters, digits, ``_``, ``-`` and inner dots."""
    return re.sub(r"[^\w.-]+", "_", text)[:100].strip(".") or "run"


def _full(output: Path) -> OutputError:
    return OutputError(f"{output} holds {_ATTEMPTS} runs of this name.", "Choose another directory with --output.")
