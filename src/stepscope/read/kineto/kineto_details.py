"""Details of Kineto spans: kernels, operators, arguments, memory, counters, stacks and arrows."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import numpy as np
import polars as pl

from stepscope.read.chrome_json.columns import Codes, parse_arguments
from stepscope.read.chrome_json.event_schema import ABSENT, BAD, FIELDS, Class
from stepscope.read.common.dense import distinct_rows, nullable, or_null
from stepscope.read.common.nesting import Integers
from stepscope.read.common.part_builder import LARGEST_TIME, PartBuilder
from stepscope.read.common.torch_events import device_name, parse_frame
from stepscope.read.kineto import kineto_arrows, kineto_collectives
from stepscope.read.kineto.kineto_facts import KinetoFacts
from stepscope.read.kineto.kineto_spans import KinetoSpans, rows_of, text_of
from stepscope.read.kineto.kineto_tracks import KinetoKey
from stepscope.trace.losses import LossLedger
from stepscope.trace.tables import of_arrays, together

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


def add_to(
    part: PartBuilder, spans: KinetoSpans, facts: KinetoFacts, ledger: LossLedger, *, brief: bool = False
) -> None:
    """Add details of spans, counters, memory and arrows; in brief, without what the analysis of a job does not need."""
    part.add("collectives", kineto_collectives.collectives(spans, facts))
    if brief:
        part.add("kernels", _places(spans))
        part.add("operators", _modules(spans))
        part.add_rows("counters", _counters(spans, facts), "ts", "track", "name", "value", "unit")
        part.add("arrows", kineto_arrows.arrows(spans, facts, ledger))
        return
    part.add("kernels", _kernels(spans))
    _add_operators(part, spans)
    part.add_rows("arguments", _arguments(spans), "span", "key", "value")
    part.add_rows("kernel_counters", _kernel_counters(spans), "span", "name", "value", "unit")
    part.add_rows("counters", _counters(spans, facts), "ts", "track", "name", "value", "unit")
    part.add("allocations", of_arrays(_allocations(spans, facts)))
    part.add("arrows", kineto_arrows.arrows(spans, facts, ledger))


def _kernels(spans: KinetoSpans) -> pl.DataFrame:
    columns, ids = rows_of(spans, Class.DEVICE, ("kernel", "memcpy", "memset", "collective"))
    device, stream = spans.tracks.places()
    track = spans.track[ids]
    integers = ("context", "registers", "shared_memory", "bytes", "graph", "graph_node", "priority")
    reals = ("occupancy", "blocks_per_sm", "warps_per_sm", "bandwidth")
    return of_arrays(
        {
            "span": ids,
            "device": pl.Series(device[track]).cast(pl.Int32),
            "stream": stream[track],
            **{name: spans.made_of(columns[name], _integers, pl.List(pl.Int64)) for name in ("grid", "block")},
            **{name: nullable(columns[name], ABSENT) for name in integers},
            **{name: nullable(columns[name], np.nan) for name in reals},
        }
    )


def _places(spans: KinetoSpans) -> pl.DataFrame:
    """Return the table ``kernels`` with what links them only."""
    columns, ids = rows_of(spans, Class.DEVICE, ("kernel", "memcpy", "memset", "collective"))
    device, stream = spans.tracks.places()
    track = spans.track[ids]
    graphs = {name: nullable(columns[name], ABSENT) for name in ("graph", "graph_node")}
    return of_arrays(
        {"span": ids, "device": pl.Series(device[track]).cast(pl.Int32), "stream": stream[track], **graphs}
    )


def _modules(spans: KinetoSpans) -> pl.DataFrame:
    """Return the table ``operators`` with the modules only."""
    columns, ids = rows_of(spans, Class.OPERATOR, ("operator", "collective"))
    return of_arrays({"span": ids, "module": spans.texts(_without_empty(spans, columns["module"]))})


def _integers(text: str) -> list[int] | None:
    """Return a JSON list of numbers such as a grid size; None for other texts."""
    try:
        values = json.loads(text) if text else None
    except (ValueError, RecursionError):
        return None
    whole = isinstance(values, list) and all(isinstance(value, int) and abs(value) < 1 << 63 for value in values)
    return values if whole else None


def _add_operators(part: PartBuilder, spans: KinetoSpans) -> None:
    """Add the tables ``operators`` and ``stacks``."""
    parts, codes = [], []
    for kind in (Class.OPERATOR, Class.ANNOTATION):
        columns, ids = rows_of(spans, kind, ("operator", "collective"))
        texts = {name: spans.texts(columns[name]) for name in ("shapes", "dtypes", "strides", "concrete")}
        texts["module"] = spans.texts(_without_empty(spans, columns["module"]))
        integers = {name: nullable(columns[name], ABSENT) for name in ("scope", "flops", "external", "forward_thread")}
        parts.append(of_arrays({"span": ids, **texts, **integers}))
        codes.append(columns["stack"])
    stack, frames = _stacks(spans, np.concatenate(codes))
    part.add("operators", together("operators", parts).hstack([stack]) if len(stack) else {})
    part.add_stacks(frames)


def _without_empty(spans: KinetoSpans, codes: Codes) -> Codes:
    """Return codes of texts with −1 where Kineto writes an empty text for none."""
    empty = spans.events.texts.index("") if "" in spans.events.texts else -1
    return np.where(codes == empty, np.int32(-1), codes)


def _stacks(spans: KinetoSpans, codes: Codes) -> tuple[pl.Series, list[list[dict[str, Any]]]]:
    """Return the number of each code's stack, in order of appearance, and the frames of all stacks."""
    first, inverse = distinct_rows([codes])
    texts = [text_of(spans.events, int(codes[place])).replace("\\n", ";") for place in first]
    frames = [[parse_frame(part.strip()) for part in text.split(";") if part.strip()] for text in texts]
    known = np.array([bool(stack) for stack in frames], np.bool_)
    return or_null("stack", np.where(known, np.cumsum(known) - 1, -1)[inverse]), [stack for stack in frames if stack]


def _arguments(spans: KinetoSpans) -> list[tuple[int, str, str]]:
    """Return span, key and value of the arguments of ranges that the program gave."""
    rows: list[tuple[int, str, str]] = []
    for kind, hidden in ((Class.ANNOTATION, _OWN_ARGUMENTS), (Class.OTHER, frozenset[str]())):
        columns, ids = rows_of(spans, kind, ("annotation", "step", "data", "collective"))
        category = spans.events.base["category"][columns["event"]]
        measured = [text_of(spans.events, code) == "cuda_profiler_range" for code in category.tolist()]
        for span, code, ranges in zip(ids.tolist(), columns["arguments"].tolist(), measured, strict=True):
            given = {} if ranges else _raw_arguments(text_of(spans.events, code))
            rows.extend((span, key, value) for key, value in given.items() if key not in hidden)
    return rows


def _raw_arguments(source: str) -> dict[str, str]:
    """Return arguments by name, each as JSON."""
    try:
        found = msgspec.json.decode(source.encode("utf-8", "surrogateescape"), type=dict[str, msgspec.Raw])
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return {key: json.dumps(value) for key, value in parse_arguments(source).items()}
    return {key: bytes(value).decode("utf-8", "backslashreplace") for key, value in found.items()}


def _whole(spans: KinetoSpans, phase: str) -> tuple[Integers, list[dict[str, Any]]]:
    """Return the events of a phase whose arguments are kept as a whole, and those arguments."""
    columns = spans.events.of(Class.OTHER)
    chosen = spans.events.base["phase"][columns["event"]] == ord(phase)
    parsed = {
        code: parse_arguments(text_of(spans.events, code)) for code in np.unique(columns["arguments"][chosen]).tolist()
    }
    return columns["event"][chosen], [parsed[code] for code in columns["arguments"][chosen].tolist()]


def _kernel_counters(spans: KinetoSpans) -> list[tuple[int, str, float, str]]:
    """Return the hardware counters of CUPTI's ranges."""
    events, arguments = _whole(spans, "X")
    category = spans.events.base["category"]
    return [
        (span, key, float(value), "")
        for event, span, given in zip(events.tolist(), spans.of_event[events].tolist(), arguments, strict=True)
        if span >= 0 and text_of(spans.events, category[event]) == "cuda_profiler_range"
        for key, value in given.items()
        if _is_number(value)
    ]


def _is_number(value: Any) -> bool:  # noqa: ANN401 - any JSON value
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < 1e300


def _counters(spans: KinetoSpans, facts: KinetoFacts) -> list[tuple[int, int, str, float, str]]:
    """Return the samples of counter events; each process and name has its lane."""
    events, arguments = _whole(spans, "C")
    base = spans.events.base
    rows = []
    for event, given in zip(events.tolist(), arguments, strict=True):
        if not BAD < base["ts"][event] < LARGEST_TIME:
            continue
        name = text_of(spans.events, base["name"][event])
        process = text_of(spans.events, base["process"][event])
        track = spans.tracks.number(KinetoKey("counter", process, name))
        for key, value in given.items():
            if _is_number(value):
                series = name if len(given) == 1 else f"{name}: {key}"
                rows.append((int(base["ts"][event]) + facts.base_ns, track, series, float(value), ""))
    return rows


def _allocations(spans: KinetoSpans, facts: KinetoFacts) -> dict[str, Any]:
    """Return columns of memory taken and freed, each with the track of its thread."""
    columns, base = spans.events.of(Class.MEMORY), spans.events.base
    ts = base["ts"][columns["event"]]
    kept = (ts > BAD) & (np.abs(ts) < LARGEST_TIME) & (columns["bytes"] != ABSENT)
    columns = {name: column[kept] for name, column in columns.items()}
    devices = zip(columns["device_type"].tolist(), columns["device"].tolist(), strict=True)
    device = [device_name(0 if kind == ABSENT else kind, index) for kind, index in devices]
    return {
        "ts": ts[kept] + facts.base_ns,
        "device": pl.Series(device, dtype=pl.String),
        "address": nullable(columns["address"], ABSENT),
        "bytes": columns["bytes"],
        "allocated": nullable(columns["allocated"], ABSENT),
        "reserved": nullable(columns["reserved"], ABSENT),
        "track": spans.tracks.of_thread(columns["event"]),
    }
