"""A run in the layout of Ascend's deliverables, so that ``msprof-analyze`` and MindStudio Insight open it.

::

    <directory>/
      {worker}_{pid}_{UTC}_ascend_ms/        one for each rank, or …_ascend_pt
        profiler_info_{rank}.json            the rank, the options of the recording
        profiler_metadata.json               user metadata, process groups
        ASCEND_PROFILER_OUTPUT/              trace_view.json, the CSV files, communication.json, or databases

Ranks are side by side, where the tools look for them. ``docs/ascend-definitions.md`` defines each file, and what
replaces the unknown.
"""

from __future__ import annotations

import json
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from stepscope.errors import OutputError
from stepscope.report.ascend import calls as ascend_calls
from stepscope.report.ascend.database import written_database as ascend_database
from stepscope.report.ascend.overlap_analysis import RankWork
from stepscope.report.ascend.text import csv_tables as ascend_tables
from stepscope.report.ascend.text import device_trace as ascend_trace
from stepscope.report.ascend.text import npu_trace
from stepscope.report.ascend.variant import MINDSPORE, PYTORCH, Variant
from stepscope.report.files.csv_results import Csv
from stepscope.report.files.json_results import Json, dumps
from stepscope.report.protocol import Source
from stepscope.report.whole_files import refusal, replacing
from stepscope.trace.manifest import Manifest
from stepscope.trace.run_directory import make_private
from stepscope.trace.tables import is_derived_fact

OUTPUT = "ASCEND_PROFILER_OUTPUT"
_INFO, _METADATA = "profiler_info_{rank}.json", "profiler_metadata.json"
#: Facts of torch_npu's ``profiler_info``.
_OF_THE_INFO = ("config", "start_info", "end_info", "rank_id")
#: Facts that belong to the source file and not to the run.
_OF_THE_FILE = {"schemaVersion", "displayTimeUnit", "baseTimeNanoseconds", "traceName", "trace_id", "traceEvents"}


@dataclass(frozen=True)
class Ascend:
    """The layout of Ascend's deliverables, one directory a rank.

    Attributes:
        variant: Whose files; None takes torch_npu's for a run of PyTorch and MindSpore's for all others.
        types: Kinds of files: ``text``, ``db``.
    """

    variant: Variant | None = None
    types: tuple[str, ...] = ("text",)
    name: str = "ascend"

    def write(self, source: Source, directory: Path) -> list[Path]:
        """Write one rank's directory into ``directory`` and return its path.

        A directory of the same name that stepscope wrote is replaced.

        Raises:
            OutputError: The directory cannot be made or written, or one of that name is not stepscope's.
        """
        variant = self.variant or (PYTORCH if _is_torch(source) else MINDSPORE)
        work = RankWork(source.tables)
        target = directory / f"{_rank_name(source, work)}_{variant.ending}"
        with _replacing(target) as temporary:
            self._fill(temporary, source, work, variant)
        return [target]

    def _fill(self, directory: Path, source: Source, work: RankWork, variant: Variant) -> None:
        from stepscope import __version__

        rank = rank_of(source)
        info = _mindspore_info(source, rank) if variant is MINDSPORE else _torch_info(source, rank)
        document({**info, "written_by": f"stepscope {__version__}"}, directory / _INFO.format(rank=rank))
        document(_metadata(source, work), directory / _METADATA)
        output = directory / OUTPUT
        if "text" in self.types:
            _text(output, source, work, variant)
        if "db" in self.types:
            ascend_database.write(source, work, variant, output, rank)


def document(value: object, path: Path) -> None:
    """Write a JSON file."""
    with replacing(path) as temporary:
        temporary.write_text(dumps(value), encoding="utf-8")


def _text(output: Path, source: Source, work: RankWork, variant: Variant) -> None:
    for name, frame in ascend_tables.files(work, source.results, variant).items():
        ascend_tables.write(frame, output / name)
    if work.recorded_by_npu:
        npu_trace.write(work, output / "trace_view.json")
    else:
        ascend_trace.write(source, work, variant, output / "trace_view.json")
    if work.communication_known:
        stepless = not work.windows.declared
        document(ascend_calls.communication(work.calls, stepless=stepless), output / "communication.json")
        document(work.matrix, output / "communication_matrix.json")
    pipeline = {f"{name}_{rank_of(source)}": result for name, result in source.results.items() if "minddata" in name}
    for written in (Csv(), Json()):
        written.write(replace(source, results=pipeline), output)


def rank_of(source: Source) -> int:
    """Return the rank: the manifest's, else that of the tracks."""
    if "rank" in source.manifest:
        return int(source.manifest["rank"])
    ranks = source.tables["tracks"].select("rank").first().collect()["rank"]
    return int(ranks[0]) if len(ranks) else 0


def _rank_name(source: Source, work: RankWork) -> str:
    """Return the name of a rank's directory up to its ending: worker, process and UTC to the millisecond."""
    manifest, rank = source.manifest, rank_of(source)
    # Threads come first; sources often give process 0 to tracks without a process.
    tracks = source.tables["tracks"].sort("kind", "order").select("host", "process").collect()
    hosts = [host for host in tracks["host"] if host]
    processes = [process for process in tracks["process"] if process]
    worker = manifest.get("worker") or manifest.get("host") or (hosts[0] if hosts else f"rank{rank}")
    process = manifest.get("process") or (processes[0] if processes else rank)
    start = manifest.get("window", {}).get("start_ns") or (int(work.located.ts.min()) if len(work.located) else 0)
    moment = datetime.fromtimestamp(start // 10**9, UTC)
    time = f"{moment:%Y%m%d%H%M%S}{start // 10**6 % 1000:03d}"
    name = re.sub(r"[^A-Za-z0-9.-]+", "-", str(worker)).strip("-.")[:100] or f"rank{rank}"
    return f"{name}_{int(process)}_{time}"


def _is_torch(source: Source) -> bool:
    """Return whether PyTorch was recorded: by its collector, or in a file of its profiler or of torch_npu's."""
    manifest = source.manifest
    if _collected(manifest, "mindspore"):
        return False
    if manifest.get("format") == "ascend":
        by_torch_npu = _has_config(_facts_of(source))
        return by_torch_npu or str(manifest.get("imported_from")).endswith(f"_{PYTORCH.ending}")
    return _collected(manifest, "torch") or manifest.get("format") == "kineto"


def _has_config(facts: dict[str, Any]) -> bool:
    """Return whether the facts are those of torch_npu's profiler."""
    config = facts.get("config")
    return isinstance(config, dict) and "common_config" in config


def _facts_of(source: Source) -> dict[str, Any]:
    """Return the facts of the source; a value that is not JSON stays text."""
    facts: dict[str, Any] = {}
    for key, text in source.tables["metadata"].filter(~is_derived_fact()).collect().iter_rows():
        try:
            facts[key] = json.loads(text)
        except (ValueError, RecursionError):
            facts[key] = text
    return facts


def _collected(manifest: Manifest, collector: str) -> bool:
    state = manifest.get("collectors", {}).get(collector)
    return state is not None and not {"unused", "unavailable"} & set(state)


def _options(source: Source) -> dict[str, Any]:
    options = source.manifest.get("options")
    return dict(options) if isinstance(options, dict) else {}


def _mindspore_info(source: Source, rank: int) -> dict[str, Any]:
    collectors = source.manifest.get("collectors", {})
    return {
        "profiler_parameters": {"is_set_schedule": bool(source.manifest.get("schedule")), **_options(source)},
        "ms_profiler_info": {"rank_id": rank, "device_id": source.manifest.get("local_rank", 0)},
        "cann_profiler_info": {},
        "ms_version": collectors.get("mindspore", {}).get("version", ""),
        "cann_version": "",
    }


def _torch_info(source: Source, rank: int) -> dict[str, Any]:
    window = source.manifest.get("window", {})
    facts = _facts_of(source)
    if _has_config(facts):
        told = {key: facts[key] for key in _OF_THE_INFO if key in facts}
        return {**told, "rank_id": rank}
    return {
        "config": {"common_config": _options(source), "experimental_config": {"_export_type": "text"}},
        "start_info": {"collectionTimeBegin": window.get("start_ns", 0)},
        "end_info": {"collectionTimeEnd": window.get("end_ns", 0)},
        "rank_id": rank,
    }


def _metadata(source: Source, work: RankWork) -> dict[str, Any]:
    facts = {key: value for key, value in _facts_of(source).items() if key not in _OF_THE_FILE}
    if _has_config(facts):
        facts = {key: value for key, value in facts.items() if key not in _OF_THE_INFO}
    groups = ascend_calls.parallel_group_info(work.calls)
    return {**({"parallel_group_info": groups} if groups else {}), **facts}


@contextmanager
def _replacing(target: Path) -> Iterator[Path]:
    """Yield a new directory (0700) that replaces one that stepscope wrote, once it is complete."""
    _refuse_foreign(target)
    try:
        make_private(target.parent)
        temporary = Path(tempfile.mkdtemp(prefix=".stepscope-", dir=target.parent))
    except OSError as error:
        raise refusal(target, error) from None
    try:
        yield temporary
        if target.exists():
            shutil.rmtree(target)
        temporary.rename(target)
    except OSError as error:
        raise refusal(target, error) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _refuse_foreign(target: Path) -> None:
    """Raise an error if ``target`` exists and something else wrote it."""
    if not target.exists() and not target.is_symlink():
        return
    try:
        infos = [json.loads(path.read_text(encoding="utf-8")) for path in target.glob("profiler_info_*.json")]
    except (OSError, ValueError):
        infos = []
    if not any(isinstance(info, dict) and str(info.get("written_by")).startswith("stepscope") for info in infos):
        message = f"{target} exists already, and stepscope did not write it."
        raise OutputError(message, "Choose another directory with --output.")
