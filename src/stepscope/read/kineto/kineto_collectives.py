"""Communication details of a Kineto trace, from the host's calls and from the kernels."""

from __future__ import annotations

import json
import math
import re

import numpy as np
import polars as pl

from stepscope.read.chrome_json.columns import Codes, Columns
from stepscope.read.chrome_json.event_schema import ABSENT, Class
from stepscope.read.common.dense import nullable
from stepscope.read.common.part_builder import KIND_CODE
from stepscope.read.kineto.kineto_facts import KinetoFacts
from stepscope.read.kineto.kineto_spans import KinetoSpans, rows_of, text_of
from stepscope.trace.tables import empty

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
# Kernels that reduce through multicast memory or peers' memory carry the operation somewhere in their name.
_OPERATION = re.compile(r"all_?reduce|all_?gather|reduce_?scatter|all_?to_?all|broadcast", re.IGNORECASE)
_ALGORITHM = re.compile(r"(RING|TREE|COLLNET\w*|NVLS(?:_TREE)?|PAT)_(LL128|LL|SIMPLE)", re.IGNORECASE)


def collectives(spans: KinetoSpans, facts: KinetoFacts) -> pl.DataFrame:
    """Return the table ``collectives``."""
    ids = np.flatnonzero(spans.kind == KIND_CODE["collective"])
    if not len(ids):
        return empty("collectives")
    name = spans.events.base["name"][spans.rows[ids]]
    frame = pl.DataFrame({"span": ids, **_from_names(spans, name, facts)})
    columns = spans.events.of(Class.COLLECTIVE)
    said = _from_arguments(spans, columns, facts).filter(pl.col("span") >= 0).unique("span", keep="last")
    shaped = _from_shapes(spans)
    joined = frame.join(said, on="span", how="left", maintain_order="left")
    joined = joined.join(shaped, on="span", how="left", maintain_order="left", suffix="_shaped")
    filled = joined.with_columns(
        operation=pl.coalesce("said", "operation"),
        dtype=pl.coalesce("dtype", "dtype_shaped"),
        bytes_in=pl.coalesce("bytes_in", "bytes_shaped"),
    )
    # These give every rank as much as it puts in.
    alike = pl.col("operation").is_in(["all_reduce", "allreduce", "broadcast"])
    filled = filled.with_columns(bytes_out=pl.coalesce("bytes_out", pl.when(alike).then("bytes_shaped")))
    return _with_only_group(filled.drop("said", "dtype_shaped", "bytes_shaped"), facts)


def _from_names(spans: KinetoSpans, name: Codes, facts: KinetoFacts) -> dict[str, pl.Series]:
    """Return operation, algorithm and transport that the name of the event says; null for the others."""
    columns = ("operation", "algorithm", "transport")
    said = pl.Struct(dict.fromkeys(columns, pl.String))
    parsed = spans.made_of(name, lambda text: dict(zip(columns, _parse_name(text, facts), strict=True)), said)
    return {column: parsed.struct.field(column) for column in columns}


def _from_arguments(spans: KinetoSpans, columns: Columns, facts: KinetoFacts) -> pl.DataFrame:
    """Return what torch.distributed wrote on the event."""
    size = spans.made_of(
        columns["dtype"], lambda text: _ELEMENT_SIZE.get(text.lower().removeprefix("c10::")), pl.Int64()
    )
    return pl.DataFrame(
        {
            "span": spans.of_event[columns["event"]],
            "said": spans.texts(columns["collective"]).cast(pl.String).str.to_lowercase(),
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
    )


def _from_shapes(spans: KinetoSpans) -> pl.DataFrame:
    """Return type and bytes of the inputs of calls that say no more than an operator does: those of gloo."""
    columns, ids = rows_of(spans, Class.ANNOTATION, ("collective",))
    codes = np.column_stack([columns["shapes"], columns["dtypes"]])
    pairs, which = np.unique(codes, axis=0, return_inverse=True)
    parsed = [_parse_inputs(*(text_of(spans.events, code) for code in pair)) for pair in pairs]
    known = pl.DataFrame(parsed, schema={"dtype": pl.String, "bytes_shaped": pl.Int64}, orient="row")
    return known[which.ravel()].with_columns(span=pl.Series(ids, dtype=pl.Int64)).unique("span", keep="last")


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
    operation_in_name = _OPERATION.search(name)
    return (operation_in_name[0] if operation_in_name else name).lower(), None, facts.backend


def _group_ranks(spans: KinetoSpans, columns: Columns, facts: KinetoFacts) -> pl.Series:
    """Return the ranks of the group as the event lists them, else as the document does."""
    said = spans.texts(columns["group_ranks"]).cast(pl.String)
    listed = {name: json.dumps(ranks) for name, ranks in facts.groups.items()}
    group = spans.texts(columns["group"]).cast(pl.String)
    known = pl.Series([listed.get(name) for name in group.to_list()], dtype=pl.String)
    return said.zip_with(said.is_not_null() & (said != ""), known) if len(said) else said
