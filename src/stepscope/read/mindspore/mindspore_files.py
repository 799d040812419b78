"""Which files of a directory are those of MindSpore on a CPU, and whose they are.

Three layouts: the directory that our collector writes; ``…_ascend_ms`` with ``FRAMEWORK/`` of MindSpore's own
profiler; and any directory above several of these, which is several captures.
"""

from __future__ import annotations

import json
import os
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from stepscope.errors import FormatVersionError, InputError, NotATraceError
from stepscope.read.common.source import Capture, open_trace

#: Version of ``stepscope.json`` that this code reads.
FORMAT = 1
#: What our collector writes beside MindSpore's files.
DESCRIPTION = "stepscope.json"

#: Sort of file → its name; the group is the rank.
_NAMES = {
    "times": re.compile(r"cpu_op_execute_timestamp_(\d{1,6})\.txt"),
    "framework": re.compile(r"cpu_framework_(\d{1,6})\.txt"),
    "details": re.compile(r"cpu_op_detail_info_(\d{1,6})\.csv"),
    "types": re.compile(r"cpu_op_type_info_(\d{1,6})\.csv"),
    "memory": re.compile(r"cpu_ms_memory_record_(\d{1,6})\.txt"),
    "pipeline": re.compile(r"pipeline_profiling_(\d{1,6})\.json"),
    "cpu": re.compile(r"minddata_cpu_utilization_(\d{1,6})\.json"),
    "batches": re.compile(r"(?:dataset_iterator|device_queue)_profiling_(\d{1,6})\.txt"),
    "events": re.compile(r"RuntimeProfilerDetail\d*\.csv"),
    "calls": re.compile(r"shapes_(\d{1,6})\.ssj"),
    "metadata": re.compile(r"profiler_metadata\.json"),
    "description": re.compile(re.escape(DESCRIPTION)),
}
#: Files that say nothing alone.
_COMPANIONS = frozenset({"metadata", "types", "details", "calls"})
_RANK_DIRECTORY = re.compile(r"rank_(\d{1,6})")
_INNER_DIRECTORY = re.compile(r"FRAMEWORK|minddata|rank_\d{1,6}")
# Results that MindSpore made of its files, and the raw data of other devices.
_SKIPPED_DIRECTORY = re.compile(r"ASCEND_PROFILER_OUTPUT|PROF_\d+_.*|logs|\..*")
_MADE = re.compile(r"_(\d{14})(\d{3})_ascend_ms")
_DEEPEST = 6


def captures(directory: Path) -> list[Capture]:
    """Return the captures in a directory and below it, in order of name.

    Raises:
        InputError: The directory cannot be read.
        NotATraceError: It holds no file of MindSpore's profiler on a CPU, or one directory the files of several ranks.
    """
    found: dict[Path, Capture] = {}
    for path in _walk(directory, 0):
        _add(found, path, directory)
    whole = [capture for _, capture in sorted(found.items()) if set(capture.files) - _COMPANIONS]
    if not whole:
        message = f"{directory} holds no file of MindSpore's profiler on a CPU."
        raise NotATraceError(message, "Name a directory that ends in _ascend_ms, or one above it.")
    for capture in whole:
        if len(capture.ranks) > 1:
            message = f"{capture.root} holds the files of ranks {', '.join(map(str, sorted(capture.ranks)))}."
            raise NotATraceError(message, "Put the files of each rank into a directory of its own.")
    return whole


def capture_of(directory: Path) -> Capture:
    """Return the one capture in a directory.

    Raises:
        InputError: The directory cannot be read.
        NotATraceError: It holds none, or several of which none lies in it directly.
    """
    found = captures(directory)
    own = [capture for capture in found if capture.root == directory] or found
    if len(own) > 1:
        message = f"{directory} holds {len(own)} captures: {own[0].root.name}, {own[1].root.name} …"
        raise NotATraceError(message, "Name them one by one, or use `stepscope import`.")
    return own[0]


def _walk(directory: Path, depth: int) -> list[Path]:
    """Return the files below a directory; not behind links, so that none is met twice."""
    try:
        entries = sorted(os.scandir(directory), key=lambda entry: entry.name)
    except (OSError, ValueError) as error:
        message = f"{directory} cannot be read: {getattr(error, 'strerror', None) or error}."
        raise InputError(message, "Check the path and its permissions.") from None
    paths: list[Path] = []
    for entry in entries:
        if entry.is_file():
            paths.append(Path(entry.path))
        elif entry.is_dir(follow_symlinks=False) and depth < _DEEPEST and not _SKIPPED_DIRECTORY.fullmatch(entry.name):
            paths += _walk(Path(entry.path), depth + 1)
    return paths


def _add(found: dict[Path, Capture], path: Path, directory: Path) -> None:
    """Add a file to the capture that it belongs to: of its directory or the one above, but of none above the given."""
    for sort, pattern in _NAMES.items():
        match = pattern.fullmatch(path.name)
        if match is None:
            continue
        inner = path.parent != directory and _INNER_DIRECTORY.fullmatch(path.parent.name)
        root = path.parent.parent if inner else path.parent
        capture = found.setdefault(root, Capture(root))
        capture.files.setdefault(sort, []).append(path)
        rank = match if match.re.groups else _RANK_DIRECTORY.fullmatch(path.parent.name)
        if rank:
            capture.ranks.add(int(rank[1]))


def description(capture: Capture) -> dict[str, Any]:
    """Return what our collector wrote beside the files; empty where there is none or it is damaged.

    Raises:
        FormatVersionError: A newer stepscope wrote it.
        InputError: It cannot be read.
    """
    for path in capture.of("description"):
        try:
            with open_trace(path) as file:
                document = json.loads(file.read())
        except (ValueError, RecursionError):
            continue
        except OSError as error:
            message = f"{path} cannot be read: {error.strerror or error}."
            raise InputError(message, "Check the disk or the network share, and try again.") from None
        if isinstance(document, dict):
            version = document.get("format")
            if isinstance(version, int) and version > FORMAT:
                message = f"{path} has format {version}; this stepscope reads up to {FORMAT}."
                raise FormatVersionError(message, "Upgrade stepscope: pip install -U stepscope.")
            return document
    return {}


def begin_ns(capture: Capture) -> int | None:
    """Return when MindSpore's own profiler made the directory, as its name says in UTC, ns since the Unix epoch."""
    match = _MADE.search(capture.root.name)
    if match is None:
        return None
    try:
        made = datetime.strptime(match[1], "%Y%m%d%H%M%S").replace(tzinfo=UTC)
    except ValueError:
        return None
    return int(made.timestamp()) * 1_000_000_000 + int(match[2]) * 1_000_000


def rank_of(capture: Capture) -> int | None:
    """Return the rank of a capture's process; None where neither its files' names nor our description say."""
    if capture.ranks:
        return min(capture.ranks)
    rank = description(capture).get("rank")
    return rank if isinstance(rank, int) and not isinstance(rank, bool) and 0 <= rank < 1_000_000 else None
