"""Which directories are captures of Ascend devices, which of their files are read, and whose they are.

``…_ascend_ms`` and ``…_ascend_pt`` with ``ASCEND_PROFILER_OUTPUT``; ``PROF_…`` with ``mindstudio_profiler_output`` or
the timelines of its devices; the ``profiler`` folder of MindSpore 1.x; and any directory above several of these.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

from stepscope.errors import InputError, NotATraceError
from stepscope.read.common.source import Capture, open_trace
from stepscope.trace.run_directory import MANIFEST

OUTPUT = "ASCEND_PROFILER_OUTPUT"
#: Folder for runs that are made of captures, beside or below them.
MADE = "STEPSCOPE_OUTPUT"
_FRAMEWORK = "FRAMEWORK"
_PROF = re.compile(r"PROF_.+")
#: Directories of a capture that are looked into, by their name in it.
_INNER = re.compile(
    r"ASCEND_PROFILER_OUTPUT|FRAMEWORK|mindstudio_profiler_output|timeline|summary|host|device_\d{1,6}|PROF_.+|metadata"
)

#: Sort of file → its names; a group is the rank.
NAMES: dict[str, re.Pattern[str]] = {
    "events_db": re.compile(r"ascend_(?:pytorch|mindspore)_profiler(?:_(\d{1,6}))?\.db|msprof_\d+\.db"),
    "analysis_db": re.compile(r"analysis\.db|communication_analyzer\.db"),
    "trace": re.compile(r"trace_view\.json|msprof(?:_slice)?_[\d_]+\.json"),
    "parts": re.compile(r"(?:task_time|hccl|step_trace)_[\d_]+\.json"),
    "kernels": re.compile(r"kernel_details\.csv|op_summary[\d_]*\.csv|op_summary_slice[\d_]*\.csv"),
    "memory": re.compile(r"memory_record[\d_]*\.csv"),
    "blocks": re.compile(r"operator_memory[\d_]*\.csv"),
    "modules": re.compile(r"npu_module_mem[\d_]*\.csv"),
    "static": re.compile(r"static_op_mem[\d_]*\.csv"),
    "l2": re.compile(r"l2_cache[\d_]*\.csv"),
    "ai_cpu": re.compile(r"data_preprocess\.csv|aicpu_\d[\d_]*\.csv"),
    "nic": re.compile(r"nic[\d_]*\.csv"),
    "roce": re.compile(r"roce[\d_]*\.csv"),
    "communication": re.compile(r"communication\.json"),
    "matrix": re.compile(r"communication_matrix\.json"),
    "op_range": re.compile(r"mindspore\.op_range"),
    "memory_usage": re.compile(r"mindspore\.memory_usage"),
    "timeline_1": re.compile(r"output_timeline_data_(\d{1,6})\.txt"),
    "display_1": re.compile(r"(?:ascend_)?timeline_display_(\d{1,6})\.json"),
    "steps_1": re.compile(r"step_trace_raw_(\d{1,6})_detail_time\.csv"),
    "ai_cpu_1": re.compile(r"aicpu_intermediate_(\d{1,6})\.csv"),
    "links_1": re.compile(r"hccl_raw_(\d{1,6})\.csv"),
    "gpu_kernels": re.compile(r"activity_execute_timestamp_(\d{1,6})\.txt"),
    "gpu_operators": re.compile(r"(?:gpu_)?op_execute_timestamp_(\d{1,6})\.txt"),
    "gpu_display": re.compile(r"gpu_timeline_display_(\d{1,6})\.json"),
    # From here on files that say nothing alone.
    "framework_1": re.compile(r"framework_raw_(\d{1,6})\.csv"),
    "gpu_activities": re.compile(r"gpu_activity_data_(\d{1,6})\.csv"),
    "gpu_steps": re.compile(r"step_trace_profiling_(\d{1,6})\.txt"),
    "flops_1": re.compile(r"flops_(\d{1,6})\.txt"),
    "inputs": re.compile(r"operator_details\.csv"),
    "calls": re.compile(r"mindspore\.record_shapes"),
    "pipeline": re.compile(r"minddata_pipeline_raw_(\d{1,6})\.csv"),
    "queues": re.compile(r"pipeline_profiling_(\d{1,6})\.json"),
    "queue_cpu": re.compile(r"minddata_cpu_utilization_(\d{1,6})\.json"),
    "batches": re.compile(r"(?:dataset_iterator|device_queue)_profiling_(\d{1,6})\.txt"),
    "summed": re.compile(
        r"(?:hbm|ddr|pcie|hccs|llc_read_write|dataset|fusion_op)[\d_]*\.csv"
        r"|gpu_op_(?:detail|type)_info_\d{1,6}\.csv|(?:ascend|gpu)_cluster_analyse_[\w-]+\.csv"
    ),
    "documents": re.compile(
        r"(?:flops_summary|flops_scope|parallel_strategy|dynamic_shape_info|memory_usage_summary|step_trace_point_info"
        r"|(?:ascend|gpu)_timeline_summary)_(\d{1,6})\.json"
    ),
    "derived": re.compile(
        r"(?:op_statistic|api_statistic|step_trace_time|communication_statistic|task_time|step_trace)[\d_]*\.csv"
        r"|(?:aicore_intermediate|output_op_compute_time).*"
    ),
    "info": re.compile(r"profiler_info(?:_(\d{1,6}))?\.json"),
    "metadata": re.compile(r"profiler_metadata\.json"),
    "clock": re.compile(r"host_start\.log(?:\.\d{1,6})?"),
    "device": re.compile(r"info\.json(?:\.\d{1,6})?|(?:host_|device_)?start_info(?:\.\d{1,6})?|end_info(?:\.\d{1,6})?"),
}
_SORTS = list(NAMES)
#: Sorts of MindSpore 1.x on a GPU.
OF_GPU = frozenset({"gpu_kernels", "gpu_operators", "gpu_display"})
#: Sorts that make a directory a capture.
SUBSTANTIAL = frozenset(_SORTS[: _SORTS.index("framework_1")])
#: Files of MindSpore's profiler on a CPU, whose timeline is read from other files.
_OF_CPU = re.compile(
    r"cpu_op_execute_timestamp_\d{1,6}\.txt|cpu_op_detail_info_\d{1,6}\.csv|cpu_framework_\d{1,6}\.txt"
)
_RANK_IN_NAME = re.compile(r"(?:^|[^a-z])rank[-_]?(\d{1,6})(?!\d)", re.IGNORECASE)
_DEVICE_DIRECTORY = re.compile(r"device_(\d{1,6})")
_DEEPEST = 6
_MOST_RANK = 1_000_000
#: No file of facts is larger.
_MOST_FACTS = 64 << 20


def captures(directory: Path) -> list[Capture]:
    """Return the captures in a directory and below it, in order of name; none where there is none.

    Of a directory that holds the files of several ranks, as those of MindSpore 1.x do, each rank is a capture, and its
    root the first of its files.

    Raises:
        InputError: The directory cannot be read.
    """
    found: list[Capture] = []
    _search(directory, 0, found)
    return found


def is_part(path: Path) -> bool:
    """Return whether a file is one of a rank's that says by its name which rank's it is."""
    return any(_rank_in(path, sort) is not None for sort in SUBSTANTIAL if sort != "events_db")


def capture_of(directory: Path) -> Capture:
    """Return the one capture at a directory, or that of which a file is a part.

    Raises:
        InputError: The directory cannot be read.
        NotATraceError: It holds none, or several.
    """
    if directory.is_dir():
        found = captures(directory)
    else:
        found = [capture for capture in captures(directory.parent) if directory in capture.all]
    if len(found) == 1:
        return found[0]
    if not found:
        message = f"{directory} holds no file of Ascend's profilers."
        raise NotATraceError(message, "Name a directory that ends in _ascend_ms or _ascend_pt, or one above it.")
    message = f"{directory} holds {len(found)} captures: {found[0].root.name}, {found[1].root.name} …"
    raise NotATraceError(message, "Name them one by one, or use `stepscope import`.")


def _search(directory: Path, depth: int, found: list[Capture]) -> None:
    files, directories = _listed(directory)
    capture, of_cpu = _capture(directory, files, directories)
    if capture is not None:
        found += _of_each_rank(capture)
    elif depth < _DEEPEST and not of_cpu:
        for inner in directories:
            if inner.name == MADE or any(path.name == MANIFEST for path in files):
                continue  # a run of ours, which holds copies
            _search(inner, depth + 1, found)


def _listed(directory: Path) -> tuple[list[Path], list[Path]]:
    """Return the files and the directories of a directory; links to directories are not followed."""
    try:
        entries = sorted(os.scandir(directory), key=lambda entry: entry.name)
        entries = [entry for entry in entries if not entry.name.startswith(".")]
        files = [Path(entry.path) for entry in entries if _is_file(entry)]
        return files, [Path(entry.path) for entry in entries if entry.is_dir(follow_symlinks=False)]
    except (OSError, ValueError) as error:
        message = f"{directory} cannot be read: {getattr(error, 'strerror', None) or error}."
        raise InputError(message, "Check the path and its permissions.") from None


def _is_file(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_file()
    except OSError:  # a link to itself, or one to what may not be looked at
        return False


def _capture(directory: Path, files: list[Path], directories: list[Path]) -> tuple[Capture | None, bool]:
    """Return the capture whose root a directory is, None where it is none; and whether it is one of a CPU instead."""
    names = {path.name for path in directories}
    told = any(NAMES["info"].fullmatch(path.name) for path in files)
    whole = OUTPUT in names or told or (_FRAMEWORK in names and any(map(_PROF.fullmatch, names)))
    inner = directories if whole or _PROF.fullmatch(directory.name) else []
    capture, of_cpu = Capture(directory), False
    for path in [*files, *_below(inner, 0)]:
        of_cpu |= bool(_OF_CPU.fullmatch(path.name))
        _add(capture, path)
    substantial = set(capture.files) & SUBSTANTIAL
    of_cpu = of_cpu and substantial <= {"trace", "parts"} and not told
    return (capture if substantial and not of_cpu else None), of_cpu


def _below(directories: list[Path], depth: int) -> list[Path]:
    paths: list[Path] = []
    for directory in directories:
        if _INNER.fullmatch(directory.name) and depth < _DEEPEST:
            files, inner = _listed(directory)
            paths += files + _below(inner, depth + 1)
    return paths


def _add(capture: Capture, path: Path) -> None:
    for sort, pattern in NAMES.items():
        match = pattern.fullmatch(path.name)
        if match is None:
            continue
        capture.files.setdefault(sort, []).append(path)
        if match.re.groups and match[1]:
            capture.ranks.add(int(match[1]))
        return


def _of_each_rank(capture: Capture) -> list[Capture]:
    """Return a capture, or one for each of its ranks that has a file which says something alone."""
    if len(capture.ranks) <= 1:
        _choose(capture)
        return [capture]
    found = []
    for rank in sorted(capture.ranks):
        own = {
            sort: [path for path in paths if _rank_in(path, sort) in (None, rank)]
            for sort, paths in capture.files.items()
        }
        part = Capture(capture.root, own, {rank})
        _choose(part)
        first = next((path for path in part.of(*_SORTS) if _is_own(path, rank)), None)
        if first is not None:
            found.append(Capture(first, part.files, {rank}))
    return found


def _is_own(path: Path, rank: int) -> bool:
    return any(_rank_in(path, sort) == rank for sort in SUBSTANTIAL)


def _rank_in(path: Path, sort: str) -> int | None:
    """Return the rank that a file of a sort says by its name; None where it says none, or is of another sort."""
    match = NAMES[sort].fullmatch(path.name)
    return int(match[1]) if match and match.re.groups and match[1] else None


def _choose(capture: Capture) -> None:
    """Leave out what is there twice: CANN's own results beside those made of them, parts of a timeline beside it."""
    if any(path.parent.name == OUTPUT for path in capture.of(*SUBSTANTIAL)):
        for sort, paths in list(capture.files.items()):
            kept = [path for path in paths if sort in ("device", "clock") or not _of_prof(path, capture.root)]
            capture.files[sort] = kept
    if capture.of("trace"):
        capture.files.pop("parts", None)
        # What the timeline was drawn of.
        capture.files.pop("op_range", None)
    if capture.of("blocks"):
        capture.files.pop("memory_usage", None)
    if capture.of("timeline_1"):
        capture.files.pop("display_1", None)
    if capture.of("gpu_kernels", "gpu_operators"):
        capture.files.pop("gpu_display", None)
    if capture.of("inputs"):
        capture.files.pop("calls", None)
    for sort in [sort for sort, paths in capture.files.items() if not paths]:
        del capture.files[sort]


def _of_prof(path: Path, root: Path) -> bool:
    return any(map(_PROF.fullmatch, path.relative_to(root).parts[:-1]))


def document(path: Path) -> dict[str, Any]:
    """Return a small JSON object; an empty one where the file holds none.

    Raises:
        InputError: It cannot be read.
    """
    with open_trace(path) as file:
        try:
            text = file.read(_MOST_FACTS)
        except OSError as error:
            message = f"{path} cannot be read: {error.strerror or error}."
            raise InputError(message, "Check the disk or the network share, and try again.") from None
    try:
        # The collector of a device puts `filesize:…` behind its JSON.
        found, _ = json.JSONDecoder(strict=False).raw_decode(text.decode("utf-8", "replace").lstrip("\ufeff \t\r\n"))
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def rank_of(capture: Capture) -> int | None:
    """Return the rank of a capture's process; None where neither files nor names say."""
    if capture.ranks:
        return min(capture.ranks)
    for path in capture.of("info", "device"):
        said = document(path)
        of_framework = said.get("ms_profiler_info")
        for place in (said, of_framework if isinstance(of_framework, dict) else {}):
            rank = place.get("rank_id")
            if type(rank) is int and 0 <= rank < _MOST_RANK:
                return rank
    named = _RANK_IN_NAME.search(capture.root.name)
    if named:
        return int(named[1])
    devices = {match[1] for path in capture.all for part in path.parts if (match := _DEVICE_DIRECTORY.fullmatch(part))}
    return int(devices.pop()) if len(devices) == 1 else None
