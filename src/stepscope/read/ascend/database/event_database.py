"""Databases of Ascend's profilers → the frames of :mod:`stepscope.read.ascend.ascend_frames`.

``ascend_pytorch_profiler_{rank}.db``, ``ascend_mindspore_profiler_{rank}.db`` and ``msprof_{time}.db`` hold events;
``analysis.db`` and ``communication_analyzer.db`` hold what the profiler added up about communication. The tables are
those that CANN's and torch_npu's documents describe; each may be missing, and so may each column.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import polars as pl

from stepscope.read.ascend import stated_sums
from stepscope.read.ascend.ascend_frames import Frames, complete, conform, empty
from stepscope.read.ascend.ascend_kinds import parted
from stepscope.read.ascend.database import database_communication as communication_of
from stepscope.read.ascend.database import database_device as device_of
from stepscope.read.ascend.database import database_host as host_of
from stepscope.read.ascend.database import database_samples as samples_of
from stepscope.read.common.database.sqlite import Dialect, LeftOut, SqliteDatabase, database
from stepscope.read.common.distinct import without_nulls
from stepscope.trace.ascend_columns import DATABASE, FLOAT, INT, NAME, SAMPLES
from stepscope.trace.losses import LossLedger

#: Tables that say the same as others, or belong to tools that opened the file.
_DERIVED = {"ENUM_OVERLAP_ANALYSIS_TYPE", "connectionCats", "status_info"}
#: Further tables that are read, besides those of DATABASE and SAMPLES.
_FURTHER = {
    *("STRING_IDS", "COMMUNICATION_SCHEDULE_TASK_INFO", "DPU_TASK", "MSTX_EVENTS", "OSRT_API", "NPU_OP_MEM"),
    *("SAMPLE_PMU_SUMMARY", "StepTraceTime", "OVERLAP_ANALYSIS"),
}
#: Table → those that mean little without it.
_NEEDED = {
    "STRING_IDS": {"CANN_API", "COMPUTE_TASK_INFO", "COMMUNICATION_OP", "PYTORCH_API", "MSTX_EVENTS"},
    "TASK": {"COMPUTE_TASK_INFO", "COMMUNICATION_TASK_INFO", "TASK_PMU_INFO"},
}
#: Major version of the events' tables that is known.
_MAJOR = 1
_ASCEND = Dialect(DATABASE)


#: What the analysis of a job does not need: samples, memory, counters, stacks, and what describes inputs.
_NOT_OF_A_JOB: LeftOut = {
    **{sampled.table: None for sampled in SAMPLES},
    **dict.fromkeys(("MEMORY_RECORD", "NPU_MEM", "OP_MEMORY", "NPU_OP_MEM", "PYTORCH_CALLCHAINS", "TASK_PMU_INFO")),
    **dict.fromkeys(("COMPUTE_TASK_INFO", "COMMUNICATION_SCHEDULE_TASK_INFO"), device_of.DESCRIPTIONS),
    "PYTORCH_API": frozenset({"inputShapes", "inputDtypes", "callchainId"}),
    "CommAnalyzerMatrix": None,
}


def read(events: Path | None, analysis: Path | None, ledger: LossLedger, *, brief: bool = False) -> Frames:
    """Read the databases of one rank.

    Args:
        events: Database of events, if the capture has one.
        analysis: Database of communication, if the capture has one.
        ledger: Counts losses.
        brief: Leave out what the analysis of a job does not need.

    Raises:
        InputError: A file cannot be read.
        DamagedTraceError: A file is not a database, or damaged at its head.
    """
    frames: dict[str, pl.DataFrame] = {}
    left_out = _NOT_OF_A_JOB if brief else None
    if events is not None:
        with database(events, ledger, _ASCEND, left_out) as opened:
            frames = _events(opened, ledger)
    if analysis is not None:
        with database(analysis, ledger, _ASCEND, left_out) as opened:
            frames |= communication_of.summed(opened, frames.get("communications"))
            rows = stated_sums.of_table(opened.rows("StepTraceTime"))
            said = (
                stated_sums.sums("step_trace_time", rows, f"StepTraceTime of {analysis.name}")
                if rows.height
                else empty("stated")
            )
            frames["stated"] = pl.concat([frames.get("stated", empty("stated")), said])
            frames["facts"] = pl.concat(
                [frames.get("facts", empty("facts")), stated_sums.facts([("step_trace_time", rows)])]
            )
            _count_unknown(opened, ledger)
    return complete(frames)


def _events(opened: SqliteDatabase, ledger: LossLedger) -> dict[str, pl.DataFrame]:
    _count_unknown(opened, ledger)
    tasks, plane_tasks = device_of.tasks(opened)
    communications = communication_of.operations(opened)
    plane_parts = communication_of.tasks(opened, communications, plane_tasks)
    tasks, of_streams = parted(tasks, communications)
    host, stacks = host_of.calls(opened, ledger)
    frames = {
        "host": host,
        "stacks": stacks,
        "tasks": tasks,
        "task_counters": device_of.counters(opened, tasks),
        "communications": communications,
        "communication_tasks": pl.concat([conform("communication_tasks", plane_parts), of_streams]),
        "flows": host_of.flows(opened, host, tasks, communications),
        "steps": _steps(opened),
        "memory": samples_of.memory(opened),
        "blocks": samples_of.blocks(opened),
        "counters": samples_of.counters(opened),
        "facts": _facts(opened),
        "stated": _overlap(opened, ledger),
    }
    # No frame names the rows of these, so rows without a time can be left out.
    for name in ("memory", "counters"):
        known = without_nulls(frames[name], ["ts"])
        ledger.add("event_bad_time", len(frames[name]) - len(known))
        frames[name] = known
    return frames


def _steps(opened: SqliteDatabase) -> pl.DataFrame:
    rows = opened.rows("STEP_TIME").drop_nulls("id")
    return opened.intervals(rows.select(number="id", ts="startNs", dur=pl.col("endNs") - pl.col("startNs")))


def _overlap(opened: SqliteDatabase, ledger: LossLedger) -> pl.DataFrame:
    """Return the sums of the table ``OVERLAP_ANALYSIS``, whose types are the lanes in order."""
    rows = opened.rows("OVERLAP_ANALYSIS", {"startNs": INT, "endNs": INT, "type": INT})
    lane = pl.col("type").replace_strict(dict(enumerate(stated_sums.LANES)), default=None, return_dtype=pl.String)
    lanes = rows.select(lane.alias("lane"), (pl.col("endNs") - pl.col("startNs")).alias("dur"))
    return stated_sums.of_lanes(lanes, f"OVERLAP_ANALYSIS of {ledger.source}")


def _count_unknown(opened: SqliteDatabase, ledger: LossLedger) -> None:
    """Count tables that nothing here reads, those that others need and are missing, and a version that is not known."""
    used = _DERIVED | _FURTHER | DATABASE.keys() | {sampled.table for sampled in SAMPLES}
    unknown = [name for name in opened.tables if name not in used and not name.startswith("ENUM_")]
    ledger.add("table_unknown", len(unknown))
    for table, needing in _NEEDED.items():
        ledger.add("table_missing", int(table not in opened.tables and not needing.isdisjoint(opened.tables)))
    facts = dict(opened.rows("META_DATA").rows())
    major = str(facts.get("SCHEMA_VERSION_MAJOR", _MAJOR))
    ledger.add("version_unknown", int(major != str(_MAJOR)))


def _facts(opened: SqliteDatabase) -> pl.DataFrame:
    rows = [(key, _json(value)) for key, value in _said(opened)]
    return pl.DataFrame(rows, schema={"key": pl.String, "value": pl.String}, orient="row")


def _said(opened: SqliteDatabase) -> Iterator[tuple[str, str]]:
    """Yield the facts of the table of facts, then those that have tables of their own."""
    for key, value in opened.rows("META_DATA").rows():
        if key is not None and not key.startswith("SCHEMA_VERSION_"):
            yield key, value or ""
    for table, columns in _FACT_TABLES.items():
        rows = opened.rows(table, columns).to_dicts()
        if rows:
            yield table, json.dumps(rows if table in _SEVERAL else rows[0])


_FACT_TABLES: dict[str, dict[str, str] | None] = {
    **dict.fromkeys(("SESSION_TIME_INFO", "NPU_INFO", "HOST_INFO", "RANK_DEVICE_MAP")),
    "SAMPLE_PMU_SUMMARY": {"deviceId": INT, "metric": NAME, "value": FLOAT, "coreId": INT, "coreType": NAME},
}
_SEVERAL = ("NPU_INFO", "SAMPLE_PMU_SUMMARY")


def _json(value: str) -> str:
    """Return ``value``, which may be JSON; otherwise the value as a JSON string."""
    try:
        json.loads(value)
    except (ValueError, RecursionError):
        return json.dumps(value)
    return value
