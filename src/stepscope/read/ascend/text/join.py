"""Joins the rows of several text files about one kernel or one communication.

Files identify a task by its stream, its number and its start. Numbers begin again after 65536 tasks, and older files
round the start to a quarter of a µs; so of equal numbers the task with the nearest start matches, within a µs.
"""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from stepscope.read.ascend.ascend_frames import FRAMES, Frames, coalesced, conform, numbered, stacked
from stepscope.read.common.distinct import same, without_nulls
from stepscope.trace.ascend_columns import COMMUNICATION_TIMES
from stepscope.trace.losses import LossLedger

#: Cores whose rows among the kernels are communication.
_COMMUNICATION = ("HCCL", "COMMUNICATION")
#: ns by which two files may differ about the start of a task.
_ROUNDING = 1000
#: … and about the start of an operation: that of its first task in one file, its own in another.
_FIRST_TASK = 50_000_000
_COUNTER = "counter "
_TIMES = ("ts", "dur")
_OF_OPERATION = ("device", "gap", "step", "core")
_SUMS = tuple(one.ours for one in COMMUNICATION_TIMES if one.ours not in ("ts", "dur"))


def with_kernels(frames: Frames, kernels: pl.DataFrame) -> Frames:
    """Return frames with what ``kernel_details.csv`` says: of tasks, their counters, and of communication.

    Kernels that no timeline shows become tasks; operations that none shows become communications.
    """
    core = pl.col("core").cast(pl.String).str.to_uppercase()
    is_communication = core.is_in(_COMMUNICATION).fill_null(value=False)
    sound = kernels.filter(pl.col("ts").is_not_null() & (pl.col("dur") >= 0))
    computing = sound.filter(~is_communication)
    tasks, rows = _merged_tasks(frames["tasks"], computing)
    counters = pl.concat([frames["task_counters"], _counters(computing, rows)], how="vertical_relaxed")
    communications = _with_operations(frames["communications"], sound.filter(is_communication))
    return {**frames, "tasks": tasks, "task_counters": counters, "communications": communications}


def _merged_tasks(tasks: pl.DataFrame, kernels: pl.DataFrame) -> tuple[pl.DataFrame, pl.Series]:
    """Return the tasks with what the kernels say of them, and the task of each kernel."""
    of_kernel = _matches(tasks, kernels, ["stream", "task"], _ROUNDING)
    missing = of_kernel.is_null()
    if missing.any():
        of_kernel = of_kernel.fill_null(_matches(tasks, kernels, ["name"], _ROUNDING))
    # Of two kernels of one task the first matches.
    of_kernel = of_kernel.set(~of_kernel.is_first_distinct(), None)
    new = of_kernel.is_null()
    appended = conform("tasks", kernels.filter(new))
    numbers = pl.Series("row", range(tasks.height, tasks.height + appended.height), dtype=pl.Int64)
    rows = of_kernel.scatter(new.arg_true(), numbers) if appended.height else of_kernel
    known = conform("tasks", kernels).with_columns(row=of_kernel).filter(~new)
    # The times are the kernel's, which are to the ns.
    completed = coalesced(numbered(tasks), known, "row", FRAMES["tasks"].keys() - set(_TIMES), _TIMES)
    return pl.concat([completed.select(list(FRAMES["tasks"])), appended]), rows


def _matches(tasks: pl.DataFrame, kernels: pl.DataFrame, key: list[str], tolerance: int) -> pl.Series:
    """Return for each kernel the row of the task with the same key that begins nearest; null for none."""
    known = numbered(tasks).select(*key, "row", "ts").drop_nulls().sort("ts")
    asked = kernels.select(*key, "ts").with_row_index("kernel").sort("ts")
    found = asked.join_asof(known, on="ts", by=key, strategy="nearest", tolerance=tolerance, check_sortedness=False)
    return found.sort("kernel")["row"]


def _counters(kernels: pl.DataFrame, rows: pl.Series) -> pl.DataFrame:
    """Return the counters of kernels, one row each, in the order of the kernels."""
    columns = [name for name in kernels.columns if name.startswith(_COUNTER)]
    parts = []
    for column in columns:
        name, _, unit = column.removeprefix(_COUNTER).rpartition("|")
        frame = without_nulls(pl.DataFrame([rows.alias("row"), kernels[column].alias("value")]), ["row", "value"])
        parts.append(frame.hstack([same("name", name, len(frame)), same("unit", unit, len(frame))]))
    return stacked("task_counters", parts).sort("row", maintain_order=True)


def _with_operations(communications: pl.DataFrame, said: pl.DataFrame) -> pl.DataFrame:
    """Return communications with the times, gaps and operations of the kernels' file."""
    row = _matches(communications, said, ["name"], _ROUNDING)
    known = said.select(*_TIMES, *_OF_OPERATION, operation="op_type").with_columns(row=row)
    first = known.drop_nulls("row").unique("row", keep="first")
    completed = coalesced(numbered(communications), first, "row", _OF_OPERATION, (*_TIMES, "operation"))
    new = said.filter(row.is_null()).with_columns(operation="op_type")
    return stacked("communications", (completed, new))


def with_sums(frames: Frames, operations: pl.DataFrame, bandwidths: pl.DataFrame) -> Frames:
    """Return frames with the times of operations and the bytes they moved, from ``communication.json``."""
    communications = frames["communications"]
    asked = operations.with_columns(pl.col("name", "group").cast(pl.Categorical()))
    row = _matches(communications, asked, ["name"], _FIRST_TASK)
    new = asked.filter(row.is_null()).drop_nulls(["ts", "dur"]).filter(pl.col("dur") >= 0)
    known = asked.with_columns(row=row, began="ts").drop_nulls("row").unique("row", keep="first")
    completed = coalesced(numbered(communications), known, "row", ("group", *_SUMS, "began", "step"))
    whole = stacked("communications", (completed, new.with_columns(began="ts")))
    key = ["name", "group", "step"]
    places = numbered(whole).select("row", *key).unique(key, keep="first")
    moved = bandwidths.drop("row").join(places, on=key, how="left", nulls_equal=True, maintain_order="left")
    return {**frames, "communications": whole, "bandwidths": conform("bandwidths", moved)}


def with_counters(frames: Frames, said: Sequence[pl.DataFrame], ledger: LossLedger) -> Frames:
    """Return frames with counters of files that name the kernel by stream, number and name.

    The n-th row of a key matches the n-th task of the key.
    """
    tasks = numbered(frames["tasks"]).select("row", "stream", "task", "ts", "name")
    parts = [frames["task_counters"]]
    for rows in said:
        named_alike = rows["op"].is_in(tasks["name"].unique().implode()).any()
        key = ["stream", "task", *(["op"] if named_alike else [])]
        known = _nth(tasks.drop_nulls(["stream", "task"]).sort("ts").rename({"name": "op"}), key)
        counted = _nth(rows, [*key, "name"])
        found = counted.join(known, on=[*key, "number"], how="left", suffix="_task", maintain_order="left")
        ledger.add("counters_unmatched", found["row"].null_count())
        parts.append(conform("task_counters", found.drop_nulls("row")))
    return {**frames, "task_counters": pl.concat(parts).sort("row", maintain_order=True)}


def _nth(frame: pl.DataFrame, key: list[str]) -> pl.DataFrame:
    return frame.with_columns(pl.int_range(pl.len()).over(key).alias("number"))


def with_inputs(frames: Frames, inputs: pl.DataFrame) -> Frames:
    """Return frames with the shapes of operators' inputs, if the timeline has none; both files have the same order."""
    host = numbered(frames["host"])
    operators = host.filter(pl.col("sort") == "operator").sort("ts", maintain_order=True)
    if not operators.height or operators["shapes"].null_count() < operators.height:
        return frames
    given = inputs if "dtypes" in inputs.columns else inputs.with_columns(dtypes=pl.lit(None, pl.Categorical()))
    named = operators.select("row", "name", "module")
    if "module" in named.columns and not given["name"].is_in(named["name"].unique().implode()).any():
        # MindSpore's records name operators in full, its timeline with their part of the program in front.
        named = named.with_columns(name=pl.coalesce("module", "name"))
    found = _nth(named, ["name"]).join(_nth(given, ["name"]), on=["name", "number"], how="inner")
    host = coalesced(host, found.select("row", "shapes", "dtypes"), "row", ("shapes", "dtypes"))
    return {**frames, "host": conform("host", host)}
