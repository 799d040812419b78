"""Choose the directory of a window: one new directory for all ranks of a job, without communication.

A single process makes ``<output>/<worker>_<time>/rank0``. The ranks of a job agree through a file
``<output>/.job-<digest>.<generation>``: the rank that creates it (``O_EXCL``) writes the name of the run's directory
into it, and itself; the others read the name. A rank whose folder exists in that run goes on to the next generation, so
the second windows of all ranks share a second directory. Files are never written into an existing rank's directory.

The file goes when the last rank of the job has come. If the process that created it ends before, it moves the file
into the run, as ``.job``, where a rank still finds it for a while. A file whose creator was killed is stale: it belongs
to an older job, and the next rank of that digest removes it when it ends.
"""

from __future__ import annotations

import atexit
import os
import re
import socket
import sys
import time
from contextlib import suppress
from pathlib import Path

from stepscope.collect.ranks import JobRank, LaunchedJob, find_job, process_key
from stepscope.errors import OutputError
from stepscope.trace.run_directory import RankDirectory, make_private

#: Seconds to wait until the creator of a job file has written its lines.
_PATIENCE = 5.0
#: Where no launcher named the job: age in seconds at which a job file of another machine is stale, and seconds for
#: which a rank may join after the job's first rank has ended. A later job may have the same digest.
_JOINABLE, _LATE = 600.0, 30.0
#: Name of the file in a run whose first rank has ended; the latest runs in which it is looked for.
_ENDED, _LATEST = ".job", 16
_ATTEMPTS = 10_000

#: Digest of a job → generations that this process has used.
_passed: dict[str, int] = {}
#: Job files that this process takes away when it ends: the run that it began, or None for a stale file; and the
#: process, because a fork of it takes none away.
_left: dict[Path, tuple[Path | None, int]] = {}


def create_rank_directory(output: Path, worker: str, place: JobRank) -> RankDirectory:
    """Make and return the directory of this rank in a new run, or in the run that the job's other ranks began.

    Args:
        output: Directory of runs; it is made, with its parents, if it is missing.
        worker: First part of the run's name.
        place: This process in its job.

    Raises:
        OSError: A directory or file cannot be made.
        OutputError: Ten thousand runs of this name exist.
    """
    make_private(output)  # the times of all steps are kept before a session looks whether it can be written
    if place.world_size > 1:
        return _join(output, worker, place)
    directory = RankDirectory(output / _new_run(output, worker) / f"rank{place.rank}")
    directory.create()
    return directory


def move_to_job(directory: RankDirectory, worker: str, place: JobRank) -> RankDirectory:
    """Move what a process recorded alone into its job's run, and return the new directory.

    For a window that opened before the program had joined its job. Nothing may write into ``directory`` any more.

    Raises:
        OSError: It cannot be moved.
    """
    alone = directory.path.parent
    joined = create_rank_directory(alone.parent, worker, place)
    joined.capture.rmdir()
    directory.path.replace(joined.path)  # an empty directory
    with suppress(OSError):  # whatever else the user keeps there
        alone.rmdir()
    return joined


def _join(output: Path, worker: str, place: JobRank) -> RankDirectory:
    job = find_job()
    first = _passed.get(job.digest, 0)
    for generation in range(first, first + _ATTEMPTS):
        meeting = output / f".job-{job.digest}.{generation}"
        name = _agreed_name(meeting, worker, job)
        if name is None:
            continue
        directory = RankDirectory(output / name / f"rank{place.rank}")
        try:
            directory.create()
        except FileExistsError:
            continue
        _passed[job.digest] = generation + 1
        if sum(folder.name.startswith("rank") for folder in directory.path.parent.iterdir()) >= place.world_size:
            for path in (meeting, output / name / _ENDED):
                path.unlink(missing_ok=True)
        return directory
    raise _full(output)


def _agreed_name(meeting: Path, worker: str, job: LaunchedJob) -> str | None:
    """Return the run's name from the job file, which this rank creates if it is missing; None if it is stale."""
    if (ended := _ended_job(meeting, worker, job)) is not None:
        return ended
    deadline = time.monotonic() + _PATIENCE
    while time.monotonic() < deadline:
        with suppress(FileExistsError):
            handle = os.open(meeting, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            name = _new_run(meeting.parent, worker)
            _take_away_at_end(meeting, meeting.parent / name)
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                process, started = process_key(os.getpid())
                file.write(f"{name}\n{socket.gethostname()} {process} {started}\n{meeting.name}\n")
            return name
        with suppress(FileNotFoundError):  # an older job is complete: its file has just gone
            name, *creator = meeting.read_text(encoding="utf-8", errors="replace").split("\n")
            if len(creator) > 2:
                if name == as_file_name(name) and _is_fresh(meeting, creator[0], job):
                    return name
                break
        time.sleep(0.01)
    _take_away_at_end(meeting, None)
    return None


def _ended_job(meeting: Path, worker: str, job: LaunchedJob) -> str | None:
    """Return the run that the first rank of this job has begun, and ended, while this rank was on its way."""
    if meeting.exists():
        return None
    prefix = f"{as_file_name(worker)}_"
    names = sorted(path.name for path in meeting.parent.iterdir() if path.name.startswith(prefix))
    for name in reversed(names[-_LATEST:]):
        ended = meeting.parent / name / _ENDED
        with suppress(OSError):
            known = ended.read_text(encoding="utf-8", errors="replace").split("\n")[2:3] == [meeting.name]
            if known and (job.certain or time.time() - ended.stat().st_mtime <= _LATE):
                return name
    return None


def _is_fresh(meeting: Path, creator: str, job: LaunchedJob) -> bool:
    """Return whether the job of this file may still run: on this machine, whether the process that made it does."""
    host, _, process = creator.rpartition(" ")[0].rpartition(" ")
    if host == socket.gethostname() and process.isdecimal():
        return process_key(int(process)) == (int(process), creator.rpartition(" ")[2])
    return job.certain or time.time() - meeting.stat().st_mtime <= _JOINABLE


def _take_away_at_end(meeting: Path, run: Path | None) -> None:
    processes = sys.modules.get("multiprocessing.util")
    if processes is not None and all(process != os.getpid() for _, process in _left.values()):
        processes.Finalize(None, _take_away, exitpriority=-1)  # its children skip the functions of atexit
    _left[meeting] = run, os.getpid()


@atexit.register  # at the import, and so called last: a job whose ranks wait for each other at the end is complete then
def _take_away() -> None:
    for meeting, (run, process) in _left.items():
        if process == os.getpid():
            with suppress(OSError):
                if run is None:
                    meeting.unlink()
                else:
                    meeting.replace(run / _ENDED)
                    os.utime(run / _ENDED)


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
