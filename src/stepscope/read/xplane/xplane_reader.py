"""Files that the XLA profiler writes (``jax.profiler``, TensorBoard: ``*.xplane.pb``) → tables.

The file is read plane by plane: the bytes of one plane, and what is gathered from the planes before it, are in memory
at once.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import polars as pl

from stepscope.errors import DamagedTraceError
from stepscope.read.common.communication import transport_of_kernel
from stepscope.read.common.part_builder import KIND_CODE, kinds_of
from stepscope.read.common.plain_text import printable
from stepscope.read.common.source import Progress, read_blocks
from stepscope.read.xplane import xplane_files, xplane_kinds
from stepscope.read.xplane.batches import EPOCH
from stepscope.read.xplane.compiled_programs import CompiledPrograms, RunInstructions, module
from stepscope.read.xplane.device_planes import DevicePlane, device_of
from stepscope.read.xplane.gathered_rows import XplaneRows
from stepscope.read.xplane.host_planes import HostPlane
from stepscope.read.xplane.planes import Plane
from stepscope.read.xplane.program_runs import dispatches, steps
from stepscope.read.xplane.xplane_facts import XplaneFacts
from stepscope.trace.losses import LossLedger
from stepscope.trace.tables import dtype, empty

_OPERAND = re.compile(r"(\w+)\[([\d,]*)\]")
_ALLOCATOR = r"GPU_(\d+)_"
#: Instructions whose parts are events of their own.
_CONTAINERS = ("while", "call", "conditional")
#: Lines that are not known: how many are named, and how much of a name.
_NAMED, _LONGEST = 3, 40


def read(path: Path, ledger: LossLedger, progress: Progress | None = None) -> dict[str, pl.DataFrame]:
    """Read one file.

    Operators are the instructions of compiled programs that run on threads, or as kernels on streams. Steps are those
    of ``StepTraceAnnotation``, else the runs of the program that takes most of the time, unless each operation is
    dispatched by itself.

    Raises:
        InputError: It cannot be read, or has another format.
        DamagedTraceError: It ends before its first event.
    """
    rows, programs, running, facts = XplaneRows(), CompiledPrograms(ledger), RunInstructions(), XplaneFacts()
    unknown: list[str] = []
    for part in xplane_files.parts(read_blocks(path, ledger, progress), path, ledger):
        if part.number == xplane_files.PLANES:
            plane = Plane.of(part, ledger)
            device = device_of(plane)
            facts.read(plane, device)
            programs.read(plane)
            if device is None:
                HostPlane(plane, rows, running).read()
            else:
                unknown += DevicePlane(plane, device, rows, running).read()
            ledger.add("event_damaged", int(plane.fields.broken[0]))
        elif part.number == xplane_files.HOSTS:
            facts.host = bytes(part.content[: part.length]).decode("utf-8", "replace")
    if not rows.count and (ledger.rows() or not facts.start):
        message = f"{path} is damaged: it ends before its first event."
        raise DamagedTraceError(message, "Record it again, or copy it again from where it was recorded.")
    ledger.add("start_unknown", int(not facts.start))
    named = ", ".join(repr(printable(name)[:_LONGEST]) for name in unknown[:_NAMED])
    ledger.add("line_unknown", len(unknown), f"Lines {named}{', …' if len(unknown) > _NAMED else ''}.")
    return _tables(rows, programs, running, facts)


def _tables(
    rows: XplaneRows, programs: CompiledPrograms, running: RunInstructions, facts: XplaneFacts
) -> dict[str, pl.DataFrame]:
    """Make the tables of one file."""
    part, since = rows.part, _since_epoch(facts.start)
    operations = _operations(running.table(programs))
    spans = _spans(rows, operations, facts.start)
    part.add_spans(spans.drop("operation"))
    part.add("operators", _operators(spans, operations))
    part.add("collectives", _collectives(spans, operations))
    part.add("allocations", _allocations(rows.pieces.get("allocations", [])).with_columns(since))
    instructions = programs.table()
    part.add("steps", steps(rows, operations, instructions).with_columns(since))
    part.add("instructions", instructions)
    part.add_facts(facts.as_json())
    part.tracks.host = facts.host
    return {**part.tables(), "dispatches": dispatches(rows).with_columns(since, _since_epoch(facts.start, "end"))}


def _since_epoch(start: int, time: str = "ts") -> pl.Expr:
    """Return times since the Unix epoch."""
    return pl.when(pl.col(time) > EPOCH).then(pl.col(time)).otherwise(pl.col(time) + start).clip(lower_bound=0)


def _operations(asked: pl.DataFrame) -> pl.DataFrame:
    """Return what is known of the instructions that events name, by their number."""
    # The names of instructions of a program that the file lacks mostly begin with what they do.
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


def _spans(rows: XplaneRows, operations: pl.DataFrame, start: int) -> pl.DataFrame:
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
        kinds_of(kind).alias("kind"),
        phase[pl.Series(operation % len(phase))].alias("said_phase"),
    )
    return frame.with_columns(_correlation(rows)) if rows.correlations else frame


def _correlation(rows: XplaneRows) -> pl.Series:
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
    return frame.with_columns(flops=pl.when(_counts(spans, running)).then("flops"))


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
    transports = [transport_of_kernel(text) for text in joined["name"].cast(pl.String).to_list()]
    by_library = pl.Series(transports, dtype=pl.String)
    spelled = name.str.extract(
        r"(all[_-]?reduce|all[_-]?gather|reduce[_-]?scatter|all[_-]?to[_-]?all|collective-permute|broadcast|send|recv)"
    ).replace(xplane_kinds.OPERATIONS)
    joined = joined.with_columns(operation=pl.coalesce("operation", spelled, name), transport=by_library)
    return joined.select("span", "transport", *names)


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
