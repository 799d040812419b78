"""What was gathered from a file → tables of one part."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

import numpy as np
import polars as pl

from stepscope.read.assemble.timeline import KIND_CODE
from stepscope.read.xplane import xplane_kinds
from stepscope.read.xplane.batches import EPOCH
from stepscope.read.xplane.compiled_programs import Operations, Programs
from stepscope.read.xplane.dispatch import dispatches
from stepscope.read.xplane.gathered_rows import Rows
from stepscope.read.xplane.scopes import module
from stepscope.read.xplane.xplane_facts import Facts
from stepscope.read.xplane.xplane_steps import steps
from stepscope.trace.losses import LossLedger
from stepscope.trace.schema import KINDS
from stepscope.trace.tables import conform, dtype, empty

_ARROWS = {"kind": pl.String, "from_track": pl.Int32, "from_ts": pl.Int64, "to_track": pl.Int32, "to_ts": pl.Int64}
_KINDS = pl.Series(list(KINDS), dtype=dtype("enum:kind"))
_OPERAND = re.compile(r"(\w+)\[([\d,]*)\]")
_ALLOCATOR = r"GPU_(\d+)_"
#: Instructions whose parts are events of their own.
_CONTAINERS = ("while", "call", "conditional")


@dataclass(frozen=True)
class Gathered:
    """All that a file holds.

    Attributes:
        rows: What the planes hold.
        programs: The compiled programs.
        operations: The instructions that events name.
        facts: What the file says of itself.
    """

    rows: Rows
    programs: Programs
    operations: Operations
    facts: Facts


def build(gathered: Gathered, ledger: LossLedger) -> dict[str, pl.DataFrame]:
    """Make the tables of one file."""
    rows, facts = gathered.rows, gathered.facts
    ledger.add("start_unknown", int(not facts.start))
    operations = _operations(gathered)
    found_steps = steps(rows, operations)
    since = _since_epoch(facts.start)
    spans = _spans(rows, operations, facts.start)
    return {
        "operators": _operators(spans, operations),
        "collectives": _collectives(spans, operations),
        "kernels": rows.table("kernels"),
        "arguments": rows.table("arguments"),
        "allocations": _allocations(rows.tables.get("allocations", [])).with_columns(since),
        "steps": found_steps.with_columns(since),
        "dispatches": dispatches(rows).with_columns(since, _since_epoch(facts.start, "end")),
        "instructions": gathered.programs.table(),
        "metadata": facts.table(),
        "tracks": _tracks(rows, facts.host),
        "arrows": pl.DataFrame(schema=_ARROWS),
        "spans": spans.drop("operation"),
    }


def _since_epoch(start: int, time: str = "ts") -> pl.Expr:
    """Return times since the Unix epoch."""
    return pl.when(pl.col(time) > EPOCH).then(pl.col(time)).otherwise(pl.col(time) + start).clip(lower_bound=0)


def _tracks(rows: Rows, host: str) -> pl.DataFrame:
    frame = pl.DataFrame(rows.tracks, infer_schema_length=None) if rows.tracks else empty("tracks")
    return conform("tracks", frame.with_columns(host=pl.lit(host)))


def _operations(gathered: Gathered) -> pl.DataFrame:
    """Return what is known of the instructions that events name, by their number."""
    asked = gathered.operations.table(gathered.programs)
    # Where the program is not in the file, its instructions' names mostly begin with what they do.
    said = [xplane_kinds.operation(text) for text in asked.select(pl.coalesce("opcode", "name")).to_series().to_list()]
    inputs = [_inputs(text) for text in asked["operands"].to_list()]
    return asked.with_columns(
        operation=pl.coalesce("operation", pl.Series(said, dtype=pl.String)),
        module=pl.Series([None if scope is None else module(scope) for scope in asked["scope"]], dtype=pl.String),
        shapes=pl.Series([shapes for shapes, _ in inputs], dtype=pl.String),
        dtypes=pl.Series([dtypes for _, dtypes in inputs], dtype=pl.String),
        flops=pl.when(~pl.col("opcode").is_in(_CONTAINERS)).then("flops"),
    )


def _inputs(operands: str | None) -> tuple[str | None, str | None]:
    """Return shapes and types of the operands ``f32[64,128], s32[]`` as JSON lists."""
    if operands is None:
        return None, None
    found = _OPERAND.findall(operands)
    shapes = [[int(size) for size in sizes.split(",") if size] for _, sizes in found]
    return json.dumps(shapes, separators=(",", ":")), json.dumps([kind for kind, _ in found])


def _spans(rows: Rows, operations: pl.DataFrame, start: int) -> pl.DataFrame:
    """Return the table ``spans``, with ``operation`` besides; the columns are given up one by one."""
    columns = {name: column.taken() for name, column in rows.spans.items()}
    ts, kind, operation = columns["ts"], columns["kind"], columns["operation"]
    np.add(ts, start, out=ts, where=ts <= EPOCH)
    np.maximum(ts, 0, out=ts)
    # Of spans that run no instruction the number is −1: the last row.
    communicates = np.append(operations["operation"].is_not_null().to_numpy(), np.False_)
    kind[communicates[operation]] = KIND_CODE["collective"]
    phase = pl.concat([operations["phase"].cast(dtype("enum:phase")), pl.Series("phase", [None], dtype("enum:phase"))])
    names = pl.concat([pl.Series("name", [], pl.String), *rows.names]).cast(pl.Categorical())
    frame = pl.DataFrame({name: columns[name] for name in ("track", "ts", "dur", "operation")})
    frame = frame.with_columns(
        names[pl.Series(columns.pop("name"))].alias("name"),
        _KINDS[pl.Series(kind)].alias("kind"),
        phase[pl.Series(operation % len(phase))].alias("said_phase"),
    )
    return frame.with_columns(_correlation(rows)) if rows.correlations else frame


def _correlation(rows: Rows) -> pl.Series:
    spans, numbers = (np.concatenate(column) for column in zip(*rows.correlations, strict=True))
    values, known = np.zeros(rows.count, np.int64), np.zeros(rows.count, np.bool_)
    values[spans], known[spans] = numbers, True
    return pl.Series("correlation", values).set(pl.Series(~known), None)


def _operators(spans: pl.DataFrame, operations: pl.DataFrame) -> pl.DataFrame:
    """Return the table ``operators``: a row for every run of an instruction, on a thread or on a stream."""
    running = (spans["operation"] >= 0).arg_true()
    operation = spans["operation"].gather(running)
    texts = pl.col("module", "shapes", "dtypes").cast(pl.Categorical())
    details = operations.select("instruction", texts, "flops")
    columns = [details[name].gather(operation) for name in details.columns]
    frame = pl.DataFrame({"span": running.cast(pl.Int64), **{column.name: column for column in columns}})
    return conform("operators", frame.with_columns(flops=pl.when(_counts(spans, running)).then("flops")))


def _counts(spans: pl.DataFrame, running: pl.Series) -> pl.Series:
    """Return which spans count the FLOPs of their instruction: of its kernels only those that take most of its time."""
    rows = spans.select("operation", "name", "dur")[running.to_numpy()]
    totals = rows.group_by("operation", "name").agg(pl.col("dur").sum()).sort("dur", "name", descending=True)
    chosen = totals.unique("operation", keep="first", maintain_order=True).sort("operation")
    # Instructions are numbered in the order in which they first ran, and all of them ran.
    place = chosen["operation"].search_sorted(rows["operation"])
    return chosen["name"].gather(place) == rows["name"]


def _collectives(spans: pl.DataFrame, operations: pl.DataFrame) -> pl.DataFrame:
    """Return the table ``collectives``; its groups are of devices, by their numbers."""
    details = operations.select(
        "operation",
        "dtype",
        "bytes_in",
        "bytes_out",
        "group_size",
        group="group_ranks",
        # The only group; pairs of a permutation are none.
        group_ranks=pl.when(pl.col("operation") != "permute").then(
            pl.col("group_ranks").str.extract(r"^\[(\[[\d,]*\])\]$")
        ),
    )
    names = details.columns
    communicating = (spans["kind"] == "collective").arg_true()
    rows = pl.DataFrame({name: spans[name].gather(communicating) for name in ("operation", "name")})
    rows = rows.rename({"operation": "number"}).with_columns(span=communicating)
    numbered = details.with_row_index("number").with_columns(pl.col("number").cast(pl.Int32))
    joined = rows.join(numbered, on="number", how="left", maintain_order="left")
    name = pl.col("name").cast(pl.String).str.to_lowercase()
    by_library = pl.when(name.str.contains(r"^(?:void )?[nr]ccl")).then(pl.lit("nccl"))
    spelled = name.str.extract(r"(all_?reduce|all_?gather|reduce_?scatter|all_?to_?all|broadcast|send|recv)")
    joined = joined.with_columns(operation=pl.coalesce("operation", spelled, name), transport=by_library)
    return conform("collectives", joined.select("span", "transport", *names))


def _allocations(frames: list[pl.DataFrame]) -> pl.DataFrame:
    """Return the table ``allocations``, with ``track`` besides: what the allocators of devices report."""
    if not frames:
        return empty("allocations")
    device = pl.col("allocator").str.extract(_ALLOCATOR)
    return pl.concat(frames).select(
        "ts",
        "track",
        "address",
        "allocated",
        bytes=pl.when("freed").then(-pl.col("bytes")).otherwise("bytes"),
        device=pl.when(device.is_not_null()).then(pl.lit("cuda:") + device).otherwise(pl.lit("cpu")),
    )
