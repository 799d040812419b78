"""Details of Kineto spans: kernels, operators, arguments, memory, counters, stacks and arrows."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import polars as pl

from stepscope.read.assemble.stacks import parse_frame
from stepscope.read.chrome_json.columns import Codes, Integers, parse_arguments
from stepscope.read.chrome_json.event_schema import ABSENT, BAD, FIELDS, Class
from stepscope.read.common.dense import distinct_rows, or_null
from stepscope.read.kineto import kineto_arrows, kineto_collectives
from stepscope.read.kineto.kineto_facts import Facts
from stepscope.read.kineto.kineto_spans import Spans, distinct, gather, nullable, rows_of, text_of
from stepscope.read.kineto.kineto_tracks import Key, Place
from stepscope.trace.losses import LossLedger
from stepscope.trace.tables import FRAME, empty, schema

# c10::DeviceType, as [memory] events number it.
_DEVICE_TYPES = {
    0: "cpu",
    1: "cuda",
    6: "hip",
    9: "xla",
    12: "xpu",
    13: "mps",
    14: "meta",
    15: "hpu",
    18: "ipu",
    19: "mtia",
    20: "privateuseone",
}
# Arguments that Kineto adds to ranges of its own accord.
_OWN_ARGUMENTS = frozenset(
    {"Ev Idx", "Trace name", "Trace iteration", "Profiler Event Index", "Device", "finished", "scope"}
    | {
        spelling
        for kind in (Class.ANNOTATION, Class.COLLECTIVE)
        for item in FIELDS[kind]
        for spelling in item.spellings
    }
)


def build(spans: Spans, facts: Facts, ledger: LossLedger) -> dict[str, pl.DataFrame]:
    """Return the tables with details of spans, and those of marks."""
    operators, stacks = _operators(spans)
    return {
        "kernels": _kernels(spans),
        "operators": operators,
        "stacks": stacks,
        "collectives": kineto_collectives.build(spans, facts),
        "arguments": _arguments(spans),
        "kernel_counters": _kernel_counters(spans),
        "counters": _counters(spans, facts),
        "allocations": _allocations(spans, facts),
        "arrows": kineto_arrows.build(spans, facts, ledger),
    }


def _kernels(spans: Spans) -> pl.DataFrame:
    columns, ids = rows_of(spans, Class.DEVICE, ("kernel", "memcpy", "memset", "collective"))
    if not len(ids):
        return empty("kernels")
    device, stream = spans.tracks.places()
    track = spans.track[ids]
    integers = ("context", "registers", "shared_memory", "bytes", "graph", "graph_node", "priority")
    reals = ("occupancy", "blocks_per_sm", "warps_per_sm", "bandwidth")
    return pl.DataFrame(
        {
            "span": ids,
            "device": pl.Series(device[track]).cast(pl.Int32),
            "stream": stream[track],
            "grid": _dimensions(spans, columns["grid"]),
            "block": _dimensions(spans, columns["block"]),
            **{name: nullable(columns[name]) for name in integers},
            **{name: pl.Series(columns[name]).fill_nan(None) for name in reals},
        }
    )


def _dimensions(spans: Spans, codes: Codes) -> pl.Series:
    """Return lists of three numbers such as grid sizes."""
    found = distinct(codes, spans.events.texts)
    values = [_integers(text_of(spans.events, code)) for code in found]
    return gather(pl.Series(values, dtype=pl.List(pl.Int64)), found, codes)


def _integers(text: str) -> list[int] | None:
    try:
        values = json.loads(text) if text else None
    except (ValueError, RecursionError):
        return None
    whole = isinstance(values, list) and all(isinstance(value, int) and abs(value) < 1 << 63 for value in values)
    return values if whole else None


def _operators(spans: Spans) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return the tables ``operators`` and ``stacks``."""
    parts, codes = [], []
    for kind in (Class.OPERATOR, Class.ANNOTATION):
        columns, ids = rows_of(spans, kind, ("operator", "collective"))
        if not len(ids):
            continue
        texts = {name: spans.texts(columns[name]) for name in ("shapes", "dtypes", "strides", "concrete")}
        texts["module"] = spans.texts(_without_empty(spans, columns["module"]))
        integers = {name: nullable(columns[name]) for name in ("scope", "flops", "external", "forward_thread")}
        parts.append(pl.DataFrame({"span": ids, **texts, **integers}))
        codes.append(columns["stack"])
    if not parts:
        return empty("operators"), empty("stacks")
    stack, stacks = _stacks(spans, np.concatenate(codes))
    return pl.concat(parts).hstack([stack]), stacks


def _without_empty(spans: Spans, codes: Codes) -> Codes:
    """Return codes of texts with −1 where Kineto writes an empty text for none."""
    empty = spans.events.texts.index("") if "" in spans.events.texts else -1
    return np.where(codes == empty, np.int32(-1), codes)


def _stacks(spans: Spans, codes: Codes) -> tuple[pl.Series, pl.DataFrame]:
    """Return the stack's id of each code, in the order in which they come, and the table ``stacks``."""
    first, inverse = distinct_rows([codes])
    frames = [_frames(text_of(spans.events, int(codes[place]))) for place in first]
    ids = np.where([bool(stack) for stack in frames], np.cumsum([bool(stack) for stack in frames]) - 1, -1)
    kept = [stack for stack in frames if stack]
    table = pl.DataFrame({"id": range(len(kept)), "frames": kept}, schema={"id": pl.Int64, "frames": pl.List(FRAME)})
    return or_null("stack", ids[inverse]), table


def _frames(text: str) -> list[dict[str, Any]]:
    return [parse_frame(part.strip()) for part in text.replace("\\n", ";").split(";") if part.strip()]


def _arguments(spans: Spans) -> pl.DataFrame:
    """Return the arguments of ranges that are not Kineto's own."""
    rows: list[tuple[int, str, str]] = []
    for kind, hidden in ((Class.ANNOTATION, _OWN_ARGUMENTS), (Class.OTHER, frozenset[str]())):
        columns, ids = rows_of(spans, kind, ("annotation", "step", "data", "collective"))
        category = spans.events.base["category"][columns["event"]]
        measured = [text_of(spans.events, code) == "cuda_profiler_range" for code in category.tolist()]
        for span, code, ranges in zip(ids.tolist(), columns["arguments"].tolist(), measured, strict=True):
            given = {} if ranges else _raw_arguments(text_of(spans.events, code))
            rows.extend((span, key, value) for key, value in given.items() if key not in hidden)
    return _table("arguments", rows, "span", "key", "value")


def _table(name: str, rows: Sequence[tuple[Any, ...]], *columns: str) -> pl.DataFrame:
    """Return rows as a table of the schema, as far as its columns go."""
    kinds = {column: schema(name)[column] for column in columns}
    return pl.DataFrame(rows, schema=kinds, orient="row") if rows else empty(name)


def _raw_arguments(source: str) -> dict[str, str]:
    """Return arguments by name, each as JSON."""
    try:
        found = msgspec.json.decode(source.encode("utf-8", "surrogateescape"), type=dict[str, msgspec.Raw])
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return {key: json.dumps(value) for key, value in parse_arguments(source).items()}
    return {key: bytes(value).decode("utf-8", "backslashreplace") for key, value in found.items()}


def _whole(spans: Spans, phase: str) -> tuple[Integers, list[dict[str, Any]]]:
    """Return the events of a phase whose arguments are kept as a whole, and those arguments."""
    columns = spans.events.of(Class.OTHER)
    chosen = spans.events.base["phase"][columns["event"]] == ord(phase)
    parsed = {
        code: parse_arguments(text_of(spans.events, code)) for code in np.unique(columns["arguments"][chosen]).tolist()
    }
    return columns["event"][chosen], [parsed[code] for code in columns["arguments"][chosen].tolist()]


def _kernel_counters(spans: Spans) -> pl.DataFrame:
    """Return the hardware counters of CUPTI's ranges."""
    events, arguments = _whole(spans, "X")
    category = spans.events.base["category"]
    rows = [
        (span, key, float(value), "")
        for event, span, given in zip(events.tolist(), spans.of_event[events].tolist(), arguments, strict=True)
        if span >= 0 and text_of(spans.events, category[event]) == "cuda_profiler_range"
        for key, value in given.items()
        if _is_number(value)
    ]
    return _table("kernel_counters", rows, "span", "name", "value", "unit")


def _is_number(value: Any) -> bool:  # noqa: ANN401 - any JSON value
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < 1e300


def _counters(spans: Spans, facts: Facts) -> pl.DataFrame:
    """Return the samples of counter events; each process and name has its lane."""
    events, arguments = _whole(spans, "C")
    base = spans.events.base
    rows = []
    for event, given in zip(events.tolist(), arguments, strict=True):
        if not BAD < base["ts"][event] < 1 << 62:
            continue
        name = text_of(spans.events, base["name"][event])
        process = text_of(spans.events, base["process"][event])
        track = spans.tracks.number(Key("counter", Place(process, name)))
        for key, value in given.items():
            if _is_number(value):
                series = name if len(given) == 1 else f"{name}: {key}"
                rows.append((int(base["ts"][event]) + facts.base_ns, track, series, float(value), ""))
    return _table("counters", rows, "ts", "track", "name", "value", "unit")


def _allocations(spans: Spans, facts: Facts) -> pl.DataFrame:
    """Return memory taken and freed, each with the track of its thread."""
    columns, base = spans.events.of(Class.MEMORY), spans.events.base
    ts = base["ts"][columns["event"]]
    kept = (ts > BAD) & (np.abs(ts) < 1 << 62) & (columns["bytes"] != ABSENT)
    if not kept.any():
        return empty("allocations")
    columns = {name: column[kept] for name, column in columns.items()}
    device = [_device(*pair) for pair in zip(columns["device_type"].tolist(), columns["device"].tolist(), strict=True)]
    return pl.DataFrame(
        {
            "ts": ts[kept] + facts.base_ns,
            "device": pl.Series(device, dtype=pl.String),
            "address": nullable(columns["address"]),
            "bytes": columns["bytes"],
            "allocated": nullable(columns["allocated"]),
            "reserved": nullable(columns["reserved"]),
            "track": spans.tracks.of_thread(columns["event"]),
        }
    )


def _device(kind: int, index: int) -> str:
    name = _DEVICE_TYPES.get(kind, f"device{kind}" if kind != ABSENT else "cpu")
    return name if index < 0 or name == "cpu" else f"{name}:{index}"
