"""The columns of the events of Ascend's timelines, for both readers: the C tokenizer and msgspec."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

import polars as pl

#: A value of a sample: its key, a suffix of its name that makes it unique, and the value.
Sample: TypeAlias = tuple[str, str, float]

#: Column → the spellings of the argument that it holds; a text.
TEXTS: dict[str, tuple[str, ...]] = {
    "shapes": ("Input Dims", "Input Shapes"),
    "dtypes": ("Input type", "Input Data Types"),
    "stack": ("Call stack", "call_stack"),
    "level": ("level",),
    "item": ("item_id",),
    "type": ("Task Type", "task type"),
    "direction": ("memcpy direction",),
    "notify": ("notify_id",),
    "transport": ("transport type",),
    "link": ("link type",),
    "rdma": ("rdma type",),
    "dtype": ("data type", "data_type"),
    "algorithm": ("alg_type",),
    "domain": ("domain",),
    "group": ("group name", "groupName", "group_name"),
    "full_name": ("op_full_name",),
    "grid": ("grid_dim",),
    "block": ("block_dim",),
}
#: … a whole number.
INTEGERS: dict[str, tuple[str, ...]] = {
    "sequence": ("Sequence number",),
    "forward_thread": ("Fwd thread id",),
    "correlation": ("correlation_id",),
    "connection": ("connection_id",),
    "model": ("Model Id", "model id"),
    "stream": ("Physic Stream Id", "Stream Id", "stream id"),
    "task": ("Task Id", "task id"),
    "batch": ("Batch Id",),
    "context": ("Subtask Id", "context id"),
    "bytes": ("size(Byte)", "data size(Byte)", "size(B)"),
    "source": ("src rank",),
    "destination": ("dst rank",),
    "count": ("count",),
    "iteration": ("Iteration ID",),
}
#: … a real number.
REALS: dict[str, tuple[str, ...]] = {
    "estimated": ("duration estimated(us)",),
    "bandwidth": ("bandwidth(GB/s)",),
    "core_ms": ("Aicore Time(ms)",),
    "cycles": ("Total Cycle",),
}
#: Spelling → column.
COLUMN_OF = {
    spelling: column
    for fields in (TEXTS, INTEGERS, REALS)
    for column, spellings in fields.items()
    for spelling in spellings
}
#: Members of complete events, without their arguments.
BASE: dict[str, pl.DataType] = {
    "ts": pl.Int64(),
    "dur": pl.Int64(),
    "process": pl.Int64(),
    "thread": pl.Int64(),
    "name": pl.Categorical(),
    "category": pl.Categorical(),
}
#: Columns of complete events.
COMPLETE: dict[str, pl.DataType] = {
    **BASE,
    **dict.fromkeys(TEXTS, pl.Categorical()),
    **dict.fromkeys(INTEGERS, pl.Int64()),
    **dict.fromkeys(REALS, pl.Float64()),
}
#: Columns of samples.
COUNTERS: dict[str, pl.DataType] = {
    "ts": pl.Int64(),
    "process": pl.Int64(),
    "name": pl.Categorical(),
    "key": pl.Categorical(),
    "value": pl.Float64(),
}
#: Columns of ends of arrows.
ARROWS: dict[str, pl.DataType] = {
    "ts": pl.Int64(),
    "process": pl.Int64(),
    "thread": pl.Int64(),
    "category": pl.Categorical(),
    "id": pl.Categorical(),
    "start": pl.Boolean(),
}
#: Arrows that follow from the connection of call and task, and marks that repeat the slices they join.
KNOWN_ARROWS = ("HostToDevice", "Data_aug Bound")


@dataclass
class AscendEvents:
    """What a file's events say.

    Attributes:
        complete: Intervals: those columns of :data:`COMPLETE` that occur, :data:`BASE` always.
        counters: Samples: ts, process, name, key, value.
        arrows: Ends of arrows: ts, process, thread, category, id, start.
        processes: Process → its name.
        threads: Process, thread → its name.
        labels: Process → where its events ran: ``CPU``, ``NPU``, ``NPU 3``.
    """

    complete: pl.DataFrame
    counters: pl.DataFrame
    arrows: pl.DataFrame
    processes: dict[int, str] = field(default_factory=dict)
    threads: dict[tuple[int, int], str] = field(default_factory=dict)
    labels: dict[int, str] = field(default_factory=dict)


def chosen(events: pl.DataFrame, columns: Iterable[str]) -> pl.DataFrame:
    """Return columns of intervals; those that do not occur are null."""
    return events.select(
        pl.col(name) if name in events.columns else pl.lit(None, COMPLETE[name]).alias(name) for name in columns
    )


def samples_of(arguments: Mapping[str, object]) -> Iterator[Sample]:
    """Yield the values of a sample's arguments."""
    of = f" {arguments['acc_id']}" if "acc_id" in arguments else ""
    for key, value in arguments.items():
        if key != "acc_id" and isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e300:
            yield key, of, float(value)


def names_of(samples: pl.DataFrame) -> pl.DataFrame:
    """Return samples with unique names."""
    return samples.with_columns(pl.concat_str(pl.col("name").cast(pl.String), "of").cast(pl.Categorical()))


def name_given(sort: str, arguments: Mapping[str, object]) -> object:
    """Return what an event of metadata calls its process or thread; null if it names none."""
    return arguments.get("labels" if sort == "process_labels" else "name")


def numbers(labels: pl.Series) -> pl.Series:
    """Return processes or threads; of a text like ``Stream 3`` its number."""
    text = labels.str.strip_chars('"')
    number = text.cast(pl.Int64, strict=False)
    return number.fill_null(text.str.extract(r"(\d{1,18})").cast(pl.Int64, strict=False))
