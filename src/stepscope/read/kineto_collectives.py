"""Communication details of a Kineto trace, from the host's calls and from the kernels."""

from __future__ import annotations

import json
import re

import polars as pl

from stepscope.read import kineto_details
from stepscope.read.kineto_columns import Codes, Columns
from stepscope.read.kineto_facts import Facts
from stepscope.read.kineto_schema import Class
from stepscope.read.kineto_spans import Spans, distinct, nullable, text_of

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


def build(spans: Spans, facts: Facts) -> pl.DataFrame:
    """Return the table ``collectives``."""
    parts = [_of_class(spans, kind, facts) for kind in (Class.DEVICE, Class.OPERATOR, Class.ANNOTATION)]
    return pl.concat(parts)


def _of_class(spans: Spans, kind: Class, facts: Facts) -> pl.DataFrame:
    columns, ids = kineto_details.rows_of(spans, kind, ("collective",))
    names = _per_name(spans, columns, facts)
    size = _element_size(spans, columns["dtype"])
    return pl.DataFrame(
        {
            "span": ids,
            **names,
            "group": _group(spans, columns),
            "group_ranks": _group_ranks(spans, columns, facts),
            "group_size": nullable(columns["group_size"]),
            "dtype": spans.texts(columns["dtype"]).cast(pl.String),
            "bytes_in": nullable(columns["elements_in"]) * size,
            "bytes_out": nullable(columns["elements_out"]) * size,
            "source": nullable(columns["source_rank"]),
            "destination": nullable(columns["destination_rank"]),
            "sequence": nullable(columns["collective_sequence"]),
        }
    )


def _per_name(spans: Spans, columns: Columns, facts: Facts) -> dict[str, pl.Series]:
    """Return operation, algorithm and transport, which the name of the event may tell."""
    names = spans.events.base["name"][columns["event"]]
    found = distinct(names, spans.events.texts)
    parsed = [_parse_name(text_of(spans.events, code), facts) for code in found]
    operation, algorithm, transport = (
        kineto_details.gather(pl.Series([row[place] for row in parsed], dtype=pl.String), found, names)
        for place in range(3)
    )
    said = spans.texts(columns["collective"]).cast(pl.String).str.to_lowercase()
    return {
        "operation": said.fill_null(operation) if len(said) else said,
        "algorithm": algorithm,
        "transport": transport,
    }


def _parse_name(name: str, facts: Facts) -> tuple[str, str | None, str | None]:
    kernel = _KERNEL_NAME.match(name)
    if kernel:
        algorithm = _ALGORITHM.search(kernel[2])
        return kernel[1].lower(), algorithm[0].lower() if algorithm else None, "nccl"
    prefix, colon, operation = name.partition(":")
    if colon and operation and operation[0] != ":":
        return operation.lower(), None, prefix.lower()
    return name.lower(), None, facts.backend


def _element_size(spans: Spans, codes: Codes) -> pl.Series:
    found = distinct(codes, spans.events.texts)
    sizes = [_ELEMENT_SIZE.get(text_of(spans.events, code).lower().removeprefix("c10::")) for code in found]
    return kineto_details.gather(pl.Series(sizes, dtype=pl.Int64), found, codes)


def _group(spans: Spans, columns: Columns) -> pl.Series:
    return spans.texts(columns["group"]).cast(pl.String)


def _group_ranks(spans: Spans, columns: Columns, facts: Facts) -> pl.Series:
    """Return the ranks of the group as the event lists them, else as the document does."""
    said = spans.texts(columns["group_ranks"]).cast(pl.String)
    listed = {name: json.dumps(ranks) for name, ranks in facts.groups.items()}
    group = _group(spans, columns)
    known = pl.Series([listed.get(name) for name in group.to_list()], dtype=pl.String)
    return said.zip_with(said.is_not_null() & (said != ""), known) if len(said) else said
