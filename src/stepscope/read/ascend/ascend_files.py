"""Finds captures of Ascend devices: their directories, the files that are read, and their ranks.

A capture is ``…_ascend_ms`` or ``…_ascend_pt`` with ``ASCEND_PROFILER_OUTPUT``; ``PROF_…`` with
``mindstudio_profiler_output`` or the timelines of its devices; or the ``profiler`` folder of MindSpore 1.x. Any
directory above several of these holds several captures.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from stepscope.errors import InputError, NotATraceError
from stepscope.read.common.database.sqlite import has_table
from stepscope.read.common.source import DEEPEST, HEAD, Capture, Directories, open_trace, rank_in_name
from stepscope.read.common.torch_events import KEYS_OF_KINETO

OUTPUT = "ASCEND_PROFILER_OUTPUT"
_FRAMEWORK = "FRAMEWORK"
_PROF = re.compile(r"PROF_.+")
#: Names of the directories in a capture that are searched.
_INNER = re.compile(
    r"ASCEND_PROFILER_OUTPUT|FRAMEWORK|mindstudio_profiler_output|timeline|summary|host|device_\d{1,6}|PROF_.+|metadata"
)

#: Sort of file → its names; the group is the rank.
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
    **{
        f"stated_{result}": re.compile(rf"{result}[\d_]*\.csv")
        for result in ("step_trace_time", "op_statistic", "api_statistic")
    },
    # The files below do not make a capture by themselves.
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
        r"(?:communication_statistic|task_time|step_trace)[\d_]*\.csv"
        r"|(?:aicore_intermediate|output_op_compute_time).*|minddata_pipeline_summary_\d{1,6}\.(?:csv|json)"
    ),
    "info": re.compile(r"profiler_info(?:_(\d{1,6}))?\.json"),
    "metadata": re.compile(r"profiler_metadata\.json"),
    "clock": re.compile(r"host_start\.log(?:\.\d{1,6})?"),
    "device": re.compile(r"info\.json(?:\.\d{1,6})?|(?:host_|device_)?start_info(?:\.\d{1,6})?|end_info(?:\.\d{1,6})?"),
}
#: Directory of one rank, as the profilers name it.
_OF_RANK = re.compile(r".+_ascend_(?:ms|pt)")
_SORTS = list(NAMES)
#: Sorts of MindSpore 1.x on a GPU.
OF_GPU = frozenset({"gpu_kernels", "gpu_operators", "gpu_display"})
#: Sorts that make a directory a capture.
SUBSTANTIAL = frozenset(_SORTS[: _SORTS.index("framework_1")])
#: Files of MindSpore's profiler on a CPU; :mod:`stepscope.read.mindspore` reads those captures.
_OF_CPU = re.compile(
    r"cpu_op_execute_timestamp_\d{1,6}\.txt|cpu_op_detail_info_\d{1,6}\.csv|cpu_framework_\d{1,6}\.txt"
)
_DEVICE_DIRECTORY = re.compile(r"device_(\d{1,6})")
#: Of two sorts the one that is read, and the one that says the same.
_INSTEAD = (
    ("trace", "parts"),
    ("trace", "op_range"),  # the timeline was drawn of it
    ("blocks", "memory_usage"),
    ("timeline_1", "display_1"),
    ("gpu_kernels", "gpu_display"),
    ("gpu_operators", "gpu_display"),
    ("inputs", "calls"),
)
#: One expression for all names: most files of a file system match none, and are passed over at once.
_ALL_NAMES = {**NAMES, "cpu": _OF_CPU}
_ANY = re.compile("|".join(pattern.pattern.replace("(\\d", "(?:\\d") for pattern in _ALL_NAMES.values()))
_MOST_RANK = 1_000_000
#: Most bytes of a file of facts that are read.
_MOST_FACTS = 64 << 20


def captures(directory: Path, directories: Directories) -> list[Capture]:
    """Return the captures in a directory and below it, in order of name; empty if there are none.

    A directory may hold the files of several ranks, as those of MindSpore 1.x do: each rank is a capture, and its root
    the first of its files.

    Raises:
        InputError: A directory cannot be read.
    """
    found: list[Capture] = []
    _search(directory, 0, directories, found)
    return found


def without_events(directories: Directories, taken: Sequence[Path]) -> list[Capture]:
    """Return the directories of ranks that hold no file with events, each with its fault.

    Args:
        directories: What was searched.
        taken: Roots of captures.
    """
    found = []
    for directory, (files, inner) in sorted(directories.known.items()):
        described = any(NAMES["info"].fullmatch(name) for name in files)
        if not (described or _OF_RANK.fullmatch(directory.name)):
            continue
        if any(root.is_relative_to(directory) or directory.is_relative_to(root) for root in taken):
            continue
        held = ", ".join([*files, *inner][:3]) or "nothing"
        fault = f"{directory} is the directory of a rank and holds no file with events, only {held}."
        facts = {"info": [directory / name for name in files if NAMES["info"].fullmatch(name)]}
        found.append(Capture("ascend", directory, {}, _rank_of(directory, facts), worker=str(directory), fault=fault))
    return found


def is_part(path: Path) -> bool:
    """Return whether the name of a file says that it belongs to a capture, and to which rank of it."""
    return any(_rank_in(path.name, sort) is not None for sort in SUBSTANTIAL if sort != "events_db")


def single(path: Path) -> Capture | None:
    """Return the capture that one file of a capture is by itself; None if its name is that of no such file.

    Raises:
        NotATraceError: It is a file that says nothing without the others; the message says what it is.
    """
    sort = next((sort for sort, pattern in NAMES.items() if pattern.fullmatch(path.name)), None)
    if sort is None or sort == "device":  # other programs write files of these names too
        return None
    if sort == "trace" and _is_of_kineto(path):
        return None
    # Beside the file, or above ASCEND_PROFILER_OUTPUT, lies what says the rank.
    root = path.parent.parent if _INNER.fullmatch(path.parent.name) else path.parent
    if sort not in SUBSTANTIAL or sort in _DETAILS:
        what = _DETAILS.get(sort, "facts and sums about a recording")
        message = f"{path} is a file of an Ascend profiler: {what}. It says nothing by itself."
        raise NotATraceError(message, f"Name its directory {root}, with the files of the same recording.")
    facts = {"info": sorted(root.glob("profiler_info*.json"))}
    rank = _rank_in(path.name, sort)
    return Capture("ascend", path, {sort: [path]}, _rank_of(root, facts) if rank is None else rank, worker=str(path))


def _is_of_kineto(path: Path) -> bool:
    """Return whether a timeline is in PyTorch's form; what stepscope exports has Ascend's name, too."""
    try:
        with open_trace(path) as file:
            head = file.read(HEAD).lstrip()
    except InputError:  # it is named where it is read
        return False
    return head.startswith(b"{") and any(b'"%b"' % key.encode() in head for key in KEYS_OF_KINETO)


def sort_of_content(path: Path, head: bytes) -> str | None:
    """Return which file of Ascend's profilers this is, by its tables, columns or keys; None for any other file."""
    # Many files are one line of JSON: each of its commas would cost as much as a column.
    first = head[:_LONGEST_COLUMNS].removeprefix(b"\xef\xbb\xbf").partition(b"\n")[0].strip()
    columns = {name.strip(' "') for name in first.decode("utf-8", "replace").split(",")}
    for sort, own in _COLUMNS:
        if own <= columns and not columns & _OF_CLUSTER:
            return sort
    if _BY_STEP.match(head):
        return next((sort for sort, key in _KEYS.items() if key in head), None)
    return next((sort for sort, names in _TABLES.items() if has_table(path, head, names)), None)


#: Sort of database → tables that only it has.
_TABLES = {
    "events_db": ("PYTORCH_API", "CANN_API", "COMPUTE_TASK_INFO"),
    "analysis_db": ("StepTraceTime", "CommAnalyzerTime", "CommAnalyzerBandwidth", "CommAnalyzerMatrix"),
}
#: More bytes than the first line of any of these CSV files has.
_LONGEST_COLUMNS = 4 << 10
#: Sorts of CSV files with columns that only they have together; and columns of the sums over the ranks of a job.
_COLUMNS = (
    ("kernels", {"Name", "Start Time(us)", "Duration(us)", "Accelerator Core"}),
    ("kernels", {"Op Name", "OP Type", "Task Duration(us)"}),
    ("blocks", {"Name", "Size(KB)", "Allocation Time(us)", "Release Time(us)"}),
    ("memory", {"Component", "Timestamp(us)", "Total Allocated(MB)", "Total Reserved(MB)"}),
    ("modules", {"Component", "Timestamp(us)", "Total Reserved(MB)", "Device"}),
    ("stated_step_trace_time", {"Step", "Computing", "Communication(Not Overlapped)", "Free"}),
    ("stated_op_statistic", {"OP Type", "Core Type", "Total Time(us)"}),
    ("stated_api_statistic", {"Level", "API Name", "Time(us)"}),
)
_OF_CLUSTER = {"Index"}
#: Beginning of the JSON files about communication, and sort → a key that only it has.
_BY_STEP = re.compile(rb'(?:\xef\xbb\xbf)?\s*\{\s*"step[^"]{0,20}"\s*:\s*\{\s*"(?:p2p|collective)"\s*:')
_KEYS = {"communication": b'"Communication Time Info"', "matrix": b'"Transport Type"'}
#: Sorts of files that add to the rows of others, and what they hold.
_DETAILS = {
    "l2": "how kernels used the L2 cache",
    "ai_cpu": "times of AI CPU tasks",
    "inputs": "inputs, stacks and times of operators",
    "calls": "inputs of operators",
    "framework_1": "what kernels are",
    "gpu_activities": "what kernels are",
    "flops_1": "operations of kernels",
    "pipeline": "operations of the data pipeline",
    "queues": "queues of the data pipeline",
    "queue_cpu": "processors that the data pipeline used",
    "batches": "times of batches",
}


def _search(directory: Path, depth: int, directories: Directories, found: list[Capture]) -> None:
    files, inner = _files_of_capture(directory, directories)
    substantial = set(files) & SUBSTANTIAL
    described = any(path.parent == directory for path in files.get("info", []))
    of_cpu = "cpu" in files and substantial <= {"trace", "parts"} and not described
    files.pop("cpu", None)
    if substantial and not of_cpu:
        found += _of_each_rank(directory, files)
    elif depth < DEEPEST and not of_cpu:
        for name in inner:
            _search(directory / name, depth + 1, directories, found)


def _files_of_capture(directory: Path, directories: Directories) -> tuple[dict[str, list[Path]], list[str]]:
    """Return the files by sort that a capture with this root would have, and the directories in the root."""
    names, inner = directories.listed(directory)
    described = any(NAMES["info"].fullmatch(name) for name in names)
    whole = OUTPUT in inner or described or (_FRAMEWORK in inner and any(map(_PROF.fullmatch, inner)))
    below = inner if whole or _PROF.fullmatch(directory.name) else []
    files: dict[str, list[Path]] = {}
    for path in [*(directory / name for name in names if _ANY.fullmatch(name)), *_below(directory, below, directories)]:
        sort = next((sort for sort, pattern in _ALL_NAMES.items() if pattern.fullmatch(path.name)), None)
        if sort is not None and not (sort == "trace" and _is_of_kineto(path)):
            files.setdefault(sort, []).append(path)
    return files, inner


def _below(directory: Path, names: list[str], directories: Directories, depth: int = 0) -> Iterator[Path]:
    for path in (directory / name for name in names if _INNER.fullmatch(name)):
        files, inner = directories.listed(path)
        yield from (path / name for name in files if _ANY.fullmatch(name))
        if depth < DEEPEST:
            yield from _below(path, inner, directories, depth + 1)


def _of_each_rank(root: Path, files: dict[str, list[Path]]) -> list[Capture]:
    """Return a capture, or one for each rank in it that has a substantial file of its own."""
    said = {rank for sort, paths in files.items() for path in paths if (rank := _rank_in(path.name, sort)) is not None}
    if len(said) <= 1:
        chosen = _chosen(root, files)
        return [Capture("ascend", root, chosen, min(said) if said else _rank_of(root, chosen))]
    found = []
    for rank in sorted(said):
        own = {
            sort: [path for path in paths if _rank_in(path.name, sort) in (None, rank)] for sort, paths in files.items()
        }
        chosen = _chosen(root, own)
        substantial = ((sort, path) for sort in _SORTS if sort in SUBSTANTIAL for path in chosen.get(sort, []))
        first = next((path for sort, path in substantial if _rank_in(path.name, sort) == rank), None)
        if first is not None:
            found.append(Capture("ascend", first, chosen, rank))
    return found


def _rank_in(name: str, sort: str) -> int | None:
    """Return the rank that the name of a file of a kind says; None if it says none, or is of another kind."""
    match = NAMES[sort].fullmatch(name)
    return int(match[1]) if match and match.re.groups and match[1] else None


def _chosen(root: Path, files: Mapping[str, list[Path]]) -> dict[str, list[Path]]:
    """Leave out duplicates: CANN's own results beside those made of them, parts of a timeline beside the timeline."""
    chosen = dict(files)
    if any(path.parent.name == OUTPUT for sort in SUBSTANTIAL for path in chosen.get(sort, [])):
        for sort in chosen.keys() - {"device", "clock"}:
            chosen[sort] = [
                path for path in chosen[sort] if not any(map(_PROF.fullmatch, path.relative_to(root).parts[:-1]))
            ]
    for better, worse in _INSTEAD:
        if chosen.get(better):
            chosen.pop(worse, None)
    return {sort: paths for sort, paths in chosen.items() if paths}


def document(path: Path) -> dict[str, Any]:
    """Return a small JSON object; an empty one if the file holds none.

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
        # The collector of a device writes `filesize:…` after its JSON.
        found, _ = json.JSONDecoder(strict=False).raw_decode(text.decode("utf-8", "replace").lstrip("\ufeff \t\r\n"))
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _rank_of(root: Path, files: Mapping[str, list[Path]]) -> int | None:
    """Return the rank that the contents of files, or the names of directories, say."""
    for path in (*files.get("info", []), *files.get("device", [])):
        said = document(path)
        of_framework = said.get("ms_profiler_info")
        for part in (said, of_framework if isinstance(of_framework, dict) else {}):
            rank = part.get("rank_id")
            if type(rank) is int and 0 <= rank < _MOST_RANK:
                return rank
    named = rank_in_name(root)
    if named is not None:
        return named
    parts = {part for paths in files.values() for path in paths for part in path.parts}
    devices = {match[1] for part in parts if (match := _DEVICE_DIRECTORY.fullmatch(part))}
    return int(devices.pop()) if len(devices) == 1 else None
