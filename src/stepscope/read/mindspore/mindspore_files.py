"""Finds captures of MindSpore on a CPU: their directories, files and ranks.

A capture is the directory that our collector writes, or ``…_ascend_ms`` with ``FRAMEWORK/`` of MindSpore's own
profiler. Any directory above several of these holds several captures.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from stepscope.errors import FormatVersionError, InputError, NotATraceError
from stepscope.read.common.plain_text import json_of
from stepscope.read.common.source import DEEPEST, Capture, Directories, open_trace

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
    "sums": re.compile(r"RuntimeProfilerSummary\d*\.csv"),
    "calls": re.compile(r"shapes_(\d{1,6})\.ssj"),
    "metadata": re.compile(r"profiler_metadata\.json"),
    "description": re.compile(re.escape(DESCRIPTION)),
}
#: Files that make no capture alone.
_COMPANIONS = frozenset({"metadata", "types", "details", "sums", "calls"})
_RANK_DIRECTORY = re.compile(r"rank_(\d{1,6})")
_INNER_DIRECTORY = re.compile(r"FRAMEWORK|minddata|rank_\d{1,6}")
# Results that MindSpore made of its files, and the raw data of other devices.
_SKIPPED_DIRECTORY = re.compile(r"ASCEND_PROFILER_OUTPUT|PROF_\d+_.*|logs")
_MADE = re.compile(r"_(\d{14})(\d{3})_ascend_ms")
#: One expression for all names: most files of a file system match none, and are passed over at once.
_ANY = re.compile("|".join(pattern.pattern for pattern in _NAMES.values()))


def captures(directory: Path, directories: Directories, taken: Sequence[Path] = ()) -> list[Capture]:
    """Return the captures in a directory and below it, but for those inside ``taken``, in order of name.

    Raises:
        InputError: A directory cannot be read.
        NotATraceError: One directory holds the files of several ranks.
    """
    found: dict[Path, dict[str, list[Path]]] = {}
    ranks: dict[Path, set[int]] = {}
    for path in _below(directory, 0, directories):
        sort, match = next((sort, match) for sort, name in _NAMES.items() if (match := name.fullmatch(path.name)))
        # A file belongs to the capture of its directory, or of the one above, but of none above the one named.
        inner = path.parent != directory and _INNER_DIRECTORY.fullmatch(path.parent.name)
        root = path.parent.parent if inner else path.parent
        found.setdefault(root, {}).setdefault(sort, []).append(path)
        rank = match if match.re.groups else _RANK_DIRECTORY.fullmatch(path.parent.name)
        if rank:
            ranks.setdefault(root, set()).add(int(rank[1]))
    result = []
    for root, files in sorted(found.items()):
        said = ranks.get(root, set())
        if not files.keys() - _COMPANIONS or any(root.is_relative_to(other) for other in taken):
            continue
        if len(said) > 1:
            message = f"{root} holds the files of ranks {', '.join(map(str, sorted(said)))}."
            raise NotATraceError(message, "Put the files of each rank into a directory of its own.")
        result.append(Capture("mindspore", root, files, min(said) if said else _described_rank(root, files)))
    return result


def single(path: Path) -> Capture | None:
    """Return the capture that one file of MindSpore on a CPU is by itself; None if its name is that of no such file.

    Raises:
        NotATraceError: It is a file that says nothing without the others; the message says what it is.
    """
    named = ((sort, name.fullmatch(path.name)) for sort, name in _NAMES.items() if sort not in _OF_OTHERS)
    sort, match = next(((sort, match) for sort, match in named if match), ("", None))
    if match is None:
        return None
    if sort not in _ALONE:
        message = f"{path} is a file of MindSpore's profiler on a CPU. It says nothing by itself."
        root = path.parent.parent if _INNER_DIRECTORY.fullmatch(path.parent.name) else path.parent
        raise NotATraceError(message, f"Name its directory {root}, with the files of the same recording.")
    return Capture("mindspore", path, {sort: [path]}, int(match[1]) if match.re.groups else None, worker=str(path))


#: Sorts whose files are a capture by themselves; those of the data pipeline are read together.
_ALONE = frozenset({"times", "memory", "events"})
#: Sorts whose names other profilers use, and that of our own file.
_OF_OTHERS = frozenset({"calls", "metadata", "description", "pipeline", "cpu", "batches"})


def _below(directory: Path, depth: int, directories: Directories) -> Iterator[Path]:
    files, inner = directories.listed(directory)
    yield from (directory / name for name in files if _ANY.fullmatch(name))
    for name in inner:
        if depth < DEEPEST and not _SKIPPED_DIRECTORY.fullmatch(name):
            yield from _below(directory / name, depth + 1, directories)


def description(capture: Capture) -> dict[str, Any]:
    """Return what our collector wrote beside the files; empty if that file is missing or damaged.

    Raises:
        FormatVersionError: A newer stepscope wrote it.
        InputError: It cannot be read.
    """
    for path in capture.of("description"):
        try:
            with open_trace(path) as file:
                document = json_of(file.read())
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


def _described_rank(root: Path, files: dict[str, list[Path]]) -> int | None:
    rank = description(Capture("mindspore", root, files)).get("rank")
    return rank if isinstance(rank, int) and not isinstance(rank, bool) and 0 <= rank < 1_000_000 else None
