"""Communication details of a Kineto trace, from the host's calls and from the kernels."""

from __future__ import annotations

import json
import math
import re

import numpy as np
import polars as pl

from stepscope.read.chrome_json.columns import Codes, Columns
from stepscope.read.chrome_json.event_schema import ABSENT, Class
from stepscope.read.common.communication import operation_of, transport_of_kernel
from stepscope.read.common.dense import distinct_rows, nullable, places
from stepscope.read.common.distinct import either, where
from stepscope.read.common.nesting import Integers
from stepscope.read.common.part_builder import KIND_CODE
from stepscope.read.common.plain_text import printable
from stepscope.read.kineto.kineto_facts import KinetoFacts
from stepscope.read.kineto.kineto_spans import KinetoSpans, rows_of, text_of
from stepscope.trace.tables import empty, of_arrays

#: Bytes per element by the name that PyTorch gives the type, in lower case and without its namespace.
_ELEMENT_SIZE = {
    "bool": 1, "byte": 1, "char": 1, "qint8": 1, "quint8": 1, "unsigned char": 1, "signed char": 1,
    "float8_e4m3fn": 1, "float8_e5m2": 1, "float8_e4m3fnuz": 1, "float8_e5m2fnuz": 1, "float8_e8m0fnu": 1,
    "half": 2, "bfloat16": 2, "short": 2, "uint16": 2, "short int": 2,
    "float": 4, "int": 4, "uint32": 4, "complexhalf": 4,
    "double": 8, "long": 8, "long int": 8, "uint64": 8, "complexfloat": 8,
    "complexdouble": 16,
}  # fmt: skip

# ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>): operation, and how it was done.
_KERNEL_NAME = re.compile(r"nccl(?:Dev)?Kernel_([A-Za-z]+)_?(.*?)(?:\(|$)")
_ALGORITHM = re.compile(r"(RING|TREE|COLLNET\w*|NVLS(?:_TREE)?|PAT)_(LL128|LL|SIMPLE)", re.IGNORECASE)


def collectives(spans: KinetoSpans, facts: KinetoFacts) -> pl.DataFrame:
    """Return the table ``collectives``."""
    ids = np.flatnonzero(spans.kind == KIND_CODE["collective"])
    if not len(ids):
        return empty("collectives")
    found = _from_names(spans, spans.events.base["name"][spans.rows[ids]], facts)
    columns = spans.events.of(Class.COLLECTIVE)
    found |= _from_arguments(spans, _at(spans, columns, spans.of_event[columns["event"]], ids), facts)
    found["operation"] = either(found.pop("said"), found["operation"])
    if any(found[name].null_count() for name in ("dtype", "bytes_in", "bytes_out")):
        dtype, size = _from_shapes(spans, ids)
        found["dtype"], found["bytes_in"] = either(found["dtype"], dtype), either(found["bytes_in"], size)
        # These give every rank as much as it puts in.
        alike = found["operation"].is_in(["all_reduce", "allreduce", "broadcast"])
        found["bytes_out"] = either(found["bytes_out"], where(alike, size))
    return _with_only_group(of_arrays({"span": ids, **found}), facts)


def _at(spans: KinetoSpans, columns: Columns, owner: Integers, ids: Integers) -> Columns:
    """Return the last row of each wanted span in the columns, whose spans are ``owner``; absent values without one."""
    # One entry more, for events that are not spans.
    row = np.full(len(spans.rows) + 1, -1, np.int64)
    row[owner] = np.arange(len(owner))
    absent = {name: column.dtype.type(-1 if column.dtype == np.int32 else ABSENT) for name, column in columns.items()}
    return {name: np.append(column, absent[name])[row[ids]] for name, column in columns.items()}


def _from_names(spans: KinetoSpans, name: Codes, facts: KinetoFacts) -> dict[str, pl.Series]:
    """Return operation, algorithm and transport that the name of the event says; null for the others."""
    first, which = distinct_rows([name])
    parsed = zip(*(_parse_name(text_of(spans.events, code), facts) for code in name[first].tolist()), strict=True)
    rows = places(which)
    columns = zip(("operation", "algorithm", "transport"), parsed, strict=True)
    return {column: pl.Series(values, dtype=pl.String)[rows] for column, values in columns}


def _from_arguments(spans: KinetoSpans, columns: Columns, facts: KinetoFacts) -> dict[str, pl.Series]:
    """Return what torch.distributed wrote on the event."""
    size = spans.made_of(
        columns["dtype"], lambda text: _ELEMENT_SIZE.get(text.lower().removeprefix("c10::")), pl.Int64()
    )
    return {
        "said": spans.made_of(columns["collective"], lambda text: text.lower() or None, pl.String()),
        "group": spans.texts(columns["group"]).cast(pl.String),
        "group_ranks": _group_ranks(spans, columns, facts),
        "group_size": nullable(columns["group_size"], ABSENT),
        "dtype": spans.texts(columns["dtype"]).cast(pl.String),
        "bytes_in": nullable(columns["elements_in"], ABSENT) * size,
        "bytes_out": nullable(columns["elements_out"], ABSENT) * size,
        "source": nullable(columns["source_rank"], ABSENT),
        "destination": nullable(columns["destination_rank"], ABSENT),
        "sequence": nullable(columns["collective_sequence"], ABSENT),
    }


def _from_shapes(spans: KinetoSpans, ids: Integers) -> tuple[pl.Series, pl.Series]:
    """Return type and bytes of the inputs of calls that say no more than an operator does: those of gloo."""
    columns = _at(spans, *rows_of(spans, Class.ANNOTATION, ("collective",)), ids)
    first, which = distinct_rows([columns["shapes"], columns["dtypes"]])
    pairs = zip(columns["shapes"][first].tolist(), columns["dtypes"][first].tolist(), strict=True)
    dtypes, sizes = zip(
        *(_parse_inputs(*(text_of(spans.events, code) for code in pair)) for pair in pairs), strict=True
    )
    rows = places(which)
    return pl.Series(dtypes, dtype=pl.String)[rows], pl.Series(sizes, dtype=pl.Int64)[rows]


def _parse_inputs(shapes: str, dtypes: str) -> tuple[str | None, int | None]:
    """Return the type of the inputs, where they have one, and the bytes of all of them."""
    try:
        sizes = [_ELEMENT_SIZE[dtype] for dtype in json.loads(dtypes)]
        total = sum(size * math.prod(shape) for size, shape in zip(sizes, json.loads(shapes), strict=True))
    except (ValueError, TypeError, KeyError, RecursionError):
        return None, None
    if not isinstance(total, int) or not 0 <= total < 1 << 63:
        return None, None
    found = set(json.loads(dtypes))
    return (found.pop() if len(found) == 1 else None), total


def _with_only_group(frame: pl.DataFrame, facts: KinetoFacts) -> pl.DataFrame:
    """Name the only process group of a job for calls that do not say their group."""
    if len(facts.groups) != 1:
        return frame
    ((name, ranks),) = facts.groups.items()
    unsaid = pl.col("group").is_null()
    values = {"group": name, "group_ranks": json.dumps(ranks), "group_size": len(ranks)}
    return frame.with_columns(
        pl.when(unsaid & pl.col(column).is_null()).then(pl.lit(value)).otherwise(pl.col(column)).alias(column)
        for column, value in values.items()
    )


def _parse_name(name: str, facts: KinetoFacts) -> tuple[str, str | None, str | None]:
    kernel = _KERNEL_NAME.match(name)
    if kernel:
        algorithm = _ALGORITHM.search(kernel[2])
        return kernel[1].lower(), algorithm[0].lower() if algorithm else None, "nccl"
    prefix, colon, operation = name.partition(":")
    if colon and operation and operation[0] != ":":
        return operation.lower(), None, prefix.lower()
    return operation_of(name) or name.lower(), None, transport_of_kernel(name) or facts.backend


def _group_ranks(spans: KinetoSpans, columns: Columns, facts: KinetoFacts) -> pl.Series:
    """Return all ranks of the group, as JSON: as the document lists them, else the event; null if neither does.

    On events PyTorch writes out 30 ranks at most (``[0, 1, …, 29, ...]``), and besides the first rank and the step from
    one to the next, which are those of all only if they are those of the 30.
    """
    listed = {name: json.dumps(ranks) for name, ranks in facts.groups.items()}
    names = ("group", "group_ranks", "group_size", "first_rank", "rank_stride")
    first, which = distinct_rows([columns[name] for name in names])
    ranks = []
    for group, said, *numbers in zip(*(columns[name][first].tolist() for name in names), strict=True):
        known = listed.get(printable(text_of(spans.events, group))) if group >= 0 else None
        ranks.append(known or _whole_group(text_of(spans.events, said), *numbers))
    return pl.Series(ranks, dtype=pl.String)[places(which)]


def _whole_group(said: str, size: int, first: int, stride: int) -> str | None:
    """Return the ranks of a group, as JSON, from what an event says of them; None if that is not all of them."""
    shown, cut, _ = said.partition(", ...")
    try:
        ranks = json.loads(f"{shown}]" if cut else shown)
    except (ValueError, RecursionError):
        return None
    if not cut:
        return said or None
    everyone = list(range(first, first + size * stride, stride)) if stride > 0 and 0 < size < 1 << 24 else []
    return json.dumps(everyone) if ranks and everyone[: len(ranks)] == ranks else None
