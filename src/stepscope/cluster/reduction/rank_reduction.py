"""Tables of a rank → its summary: everything that the analysis of a job needs, and nothing that grows with events."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

import numpy as np
import polars as pl

from stepscope.analyse.intervals import EMPTY, Times, unite
from stepscope.analyse.operators.operator_calls import or_negative, rows_of
from stepscope.analyse.step import sample
from stepscope.analyse.step.activity import Windows, located, of_kinds, on_tracks, span_codes, span_kinds, windows
from stepscope.analyse.step.framework import framework_of
from stepscope.analyse.step.phase_times import SHOWN, phase_times
from stepscope.analyse.step.run_steps import summarised
from stepscope.analyse.step.step_trace_time import Split, split
from stepscope.cluster.rank_summary import NULL, ColumnValues, Integers, RankSummary, Texts
from stepscope.cluster.reduction.message_batches import kernels_of_messages
from stepscope.cluster.reduction.operator_totals import LONGEST, OperatorTotals, coded
from stepscope.cluster.reduction.python_functions import python_functions
from stepscope.read.assemble.assemble import settled
from stepscope.read.common.dense import or_null
from stepscope.trace.manifest import Manifest
from stepscope.trace.schema import TOTALS
from stepscope.trace.tables import RankTables, Tables, columns_of, empty, facts, has_rows, of_arrays, with_series

#: Most events of a rank, the longest ones.
_MOST_EVENTS = 500
#: Parts and phases of a step → columns.
_PARTS = {
    name: name.replace(" ", "_")
    for name in ("computing", "communication", "copy", "data wait", "sync", "host only", "idle")
}
_PHASES = {name: "communication_phase" if name == "communication" else name for name in SHOWN}
#: Parts that are not known from a sample of the operators, on a rank with a device.
_OF_THE_HOST = ("sync", "host only", "idle")
_NULL = pl.Series([NULL])
#: Losses of a recording that ended before it should have.
_CUT = frozenset({"file_cut", "file_corrupt", "block_cut", "ended_abruptly", "steps_not_recorded", "disk_full"})
#: Transports whose work runs on the host: nothing on a stream shows it.
_ON_THE_HOST = frozenset({"gloo", "mpi", "ucc", "tcp"})
#: What the name of an operation contains, without dashes and case → the operation. A kernel `SendRecv` is either.
_OPERATIONS = {
    "allreduce": "allreduce", "allgather": "allgather", "reducescatter": "reduce_scatter", "alltoall": "alltoall",
    "broadcast": "broadcast", "barrier": "barrier", "sendrecv": "sendrecv", "send": "send", "recv": "recv",
    "receive": "recv",
}  # fmt: skip
#: Kinds of spans that are events, and what the events are called.
_EVENTS = {"garbage": "garbage collection", "compile": "compile"}
#: Counters: cores that other processes use (%), and the clock of a device (MHz).
_OTHER_CPU, _CLOCK = "other CPU", "SM clock"
#: Times before 2001 are not those of a wall clock.
_WALL = 978_307_200 * 1_000_000_000
#: Facts in which frameworks say their versions.
_VERSIONS = {"torch": ("torch", "torch_version"), "mindspore": ("mindspore",), "jax": ("jax_version", "jax")}


def reduce(tables: Tables, manifest: Manifest, *, directory: str = "") -> RankSummary:
    """Return the summary of a rank.

    Args:
        tables: Its tables.
        manifest: What it says of itself.
        directory: Name of its directory or capture.
    """
    marked, imported = tables, manifest.get("source") == "import"
    tables = steps_of_device(tables) if imported else tables
    parts = split(tables)
    marks = parts.windows if tables is marked else windows(marked, located(marked))
    usual = OperatorTotals(tables, parts)
    groups, of_group = _groups(tables)
    columns: dict[str, Mapping[str, ColumnValues]] = {
        "steps": _steps(tables, parts, marks, recorded=not imported),
        "collectives": _collectives(tables, parts, of_group),
        "operators": usual.columns(),
        "functions": python_functions(tables, parts.windows),
        "events": _events(tables),
    }
    losses = columns_of(tables, "losses", "what", "count", "severity").rows()
    facts = {
        "directory": directory,
        **_facts(tables, manifest, parts),
        "code": usual.fingerprint(),
        "cut": any(what in _CUT for what, _, _ in losses),
    }
    return RankSummary(
        int(manifest.get("rank") or 0),
        {name: value for name, value in facts.items() if value is not None},
        groups,
        losses,
        {
            table: {name: values for name, values in found.items() if not _is_null(values)}
            for table, found in columns.items()
        },
    )


def steps_of_device(tables: Tables) -> Tables:
    """Return the tables with steps that end when the device has done what they asked it for, as recorded ones do.

    The marks of another tool's file are those of the host. One that runs ahead gives each step the device's work of
    others, and none the work that is left at the end.
    """
    steps = columns_of(tables, "steps", *empty("steps").columns)
    kernels = columns_of(tables, "kernels", "span", "launch")
    if not steps.height or not kernels.height or (steps["source"] == "inferred").all():
        return tables
    spans = columns_of(tables, "spans", *empty("spans").columns)
    if np.isin(steps["ts"].to_numpy(), spans["ts"].to_numpy()[~on_tracks(tables, "thread")]).all():
        return tables  # they are steps of the device already
    work, call = rows_of(spans["id"], kernels["span"]), rows_of(spans["id"], kernels["launch"])
    known = (work >= 0) & (call >= 0)
    work, call = work[known], call[known]
    asked = {"ts": spans["ts"].to_numpy()[call], "end": (spans["ts"] + spans["dur"]).to_numpy()[work]}
    ended = settled(steps, of_arrays(asked))
    if ended["dur"].equals(steps["dur"]):
        return tables
    step = or_negative(spans["step"]).copy()
    step[work] = step[call]
    changed = {"steps": ended, "spans": with_series(spans, [or_null("step", step).cast(pl.Int32)])}
    in_memory = tables.in_memory if isinstance(tables, RankTables) else {}
    return RankTables({**tables, **{name: frame.lazy() for name, frame in changed.items()}}, {**in_memory, **changed})


def _is_null(values: ColumnValues) -> bool:
    return bool((values.codes < 0).all() if isinstance(values, Texts) else (values == NULL).all())


def _integers(column: pl.Series) -> Integers:
    """Return a column with :data:`NULL` for null."""
    nulls = column.null_count()
    if nulls and nulls == len(column):
        return np.full(len(column), NULL)
    known = column if column.dtype == pl.Int64 else column.cast(pl.Int64)
    if nulls:
        known = _NULL.zip_with(pl.Series(np.isnan(known.to_numpy())), known)
    return known.to_numpy()


def _texts(column: pl.Series) -> Texts:
    if column.null_count() == len(column):
        return Texts(np.full(len(column), -1), ())
    said = coded(column)
    without = int(said.texts[0] is None)
    return Texts(said.codes - without, [text[:LONGEST] for text in said.texts if text is not None])


# ---- facts of the rank


def _facts(tables: Tables, manifest: Manifest, parts: Split) -> dict[str, Any]:
    said = facts(tables)
    tracks = columns_of(tables, "tracks", "kind", "device", "host", "process")
    windows, spans = parts.windows, columns_of(tables, "spans", "ts", "dur")
    ts, end = spans["ts"].to_numpy(), (spans["ts"] + spans["dur"]).to_numpy()
    begin = min([int(part.min()) for part in (ts, windows.start) if len(part)], default=None)
    streams = [device for device, kind in tracks[["device", "kind"]].rows() if kind == "stream"]
    device = next(iter(sorted(streams)), "cpu") if parts.work.on_device else "cpu"
    framework = framework_of(tables, _names(tables)) or None
    compared = summarised(tables).typical
    return {
        "world_size": manifest.get("world_size"),
        "host": manifest.get("host") or next(filter(None, tracks["host"].to_list()), None),
        "process": manifest.get("process") or next((p for p in tracks["process"].to_list() if p is not None), None),
        "framework": framework,
        "version": _version(said, framework),
        "device": device,
        "device_name": _device_name(said, device),
        "begin": begin,
        "end": max([int(part.max()) for part in (end, windows.end) if len(part)], default=None),
        "wall_clock": None if begin is None else begin > _WALL,
        "other_load": _counter(tables, _OTHER_CPU, "mean", 100),
        "cores": ",".join(map(str, manifest.get("cores", ()))) or None,
        "clock_mhz": _counter(tables, _CLOCK, "median", 1),
        "step_count": len(windows.start) if windows.declared else 0,
        "inferred": set(columns_of(tables, "steps", "source")["source"]) == {"inferred"},
        "other_steps": compared and compared.others,
        "other_step": compared and round(compared.others_ns),
        "typical": compared and compared.typical,
        "imported": manifest.get("source") == "import",
        "checked": TOTALS in said,
    }


def _names(tables: Tables) -> Iterator[str]:
    """Yield the distinct names of spans."""
    names = columns_of(tables, "spans", "name")["name"]
    yield from filter(None, coded(names, values=span_codes(tables).name).texts)


def _value(said: Mapping[str, str], key: str) -> Any:  # noqa: ANN401 - any JSON
    with suppress(ValueError, RecursionError):
        return json.loads(said.get(key, "null"), strict=False)
    return None


def _version(said: Mapping[str, str], framework: str | None) -> str | None:
    for key in _VERSIONS.get(framework or "", (framework or "", f"{framework}_version")):
        value = _value(said, key)
        value = value.get("version") if isinstance(value, dict) else value
        if isinstance(value, str) and value[:1].isdigit():
            return value
    return None


def _device_name(said: Mapping[str, str], device: str) -> str | None:
    number = device.rpartition(":")[2]
    for key in ("deviceProperties", "NPU_INFO"):
        listed = _value(said, key)
        for one in listed if isinstance(listed, list) else ():
            if isinstance(one, dict) and str(one.get("id")) == number and isinstance(one.get("name"), str):
                return str(one["name"])
    return None


def _counter(tables: Tables, name: str, how: str, unit: float) -> float | None:
    if not has_rows(tables, "counters"):
        return None
    names = columns_of(tables, "counters", "name")["name"]
    rows = np.flatnonzero((names == name).to_numpy())
    if not len(rows):
        return None
    values = columns_of(tables, "counters", "value")["value"].to_numpy()[rows]
    return float(np.mean(values) if how == "mean" else np.median(values)) / unit


# ---- steps


def _steps(tables: Tables, parts: Split, marks: Windows, *, recorded: bool) -> dict[str, ColumnValues]:
    """Return the table ``steps``; what only the host does is counted between its own ``marks``."""
    windows, work = parts.windows, parts.work
    start, end = windows.start, windows.end
    nothing = np.full(len(start), NULL)
    sampled = sample.fraction(tables) < 1
    unknown = set(parts.unknown) | (set(_OF_THE_HOST if work.on_device else _PARTS) if sampled else set())
    communication = work.communication.within(start, end)
    phases = {} if sampled else phase_times(tables, windows, work)
    busy = unite(
        *(
            np.concatenate(edges)
            for edges in zip(
                *((one.start, one.end) for one in (work.computing, work.communication, work.copying)), strict=True
            )
        )
    )
    pauses = _spans_of(tables, "garbage")
    prepares = work.on_device and "copy" not in unknown
    return {
        "step": windows.number,
        "ts": start,
        "dur": end - start,
        **{column: nothing if name in unknown else parts.parts[name] for name, column in _PARTS.items()},
        "overlapped": nothing if "communication" in unknown else communication - parts.parts["communication"],
        **{column: phases.get(name, nothing) for name, column in _PHASES.items()},
        "data_total": work.data.within(marks.start, marks.end) if len(work.data) else nothing,
        "preparing": np.minimum(busy.first_from(start), end) - start if prepares else nothing,
        "garbage": unite(*pauses).within(marks.start, marks.end) if recorded or len(pauses[0]) else nothing,
        **_of_the_thread(tables, windows.number),
    }


def _spans_of(tables: Tables, kind: str) -> tuple[Times, Times]:
    rows = np.flatnonzero(of_kinds(span_kinds(tables), kind))
    if not len(rows):
        return EMPTY.start, EMPTY.end
    spans = columns_of(tables, "spans", "ts", "dur")
    ts = spans["ts"].to_numpy()[rows]
    return ts, ts + spans["dur"].to_numpy()[rows]


def _of_the_thread(tables: Tables, numbers: Integers) -> dict[str, Integers]:
    rows = columns_of(tables, "run_steps", "number", "cpu", "delay")
    place = {number: row for row, number in enumerate(rows["number"].to_list())}
    chosen = np.array([place.get(number, -1) for number in numbers.tolist()], np.int64)
    return {name: np.append(_integers(rows[name]), NULL)[chosen] for name in ("cpu", "delay")}


# ---- collectives


def _groups(tables: Tables) -> tuple[list[dict[str, Any]], Integers]:
    """Return the process groups, and for each row of ``collectives`` the number of its group."""
    rows = columns_of(tables, "collectives", "group", "group_ranks", "group_size", "transport")
    known: dict[tuple[str | None, str | None], dict[str, Any]] = {}
    numbers = []
    described = _descriptions(tables)
    for name, ranks, size, transport in rows.iter_rows():
        if name is None and ranks is None:
            numbers.append(NULL)
            continue
        group = known.get((name, ranks))
        if group is None:
            listed = _listed(ranks)
            group = {"id": len(known), "name": name, "ranks": listed, "size": len(listed) if listed else size}
            group |= {"description": described.get(name), "transport": transport}
            known[name, ranks] = group
        group["transport"] = group["transport"] or transport
        numbers.append(group["id"])
    found = [{key: value for key, value in group.items() if value is not None} for group in known.values()]
    return found, np.array(numbers, np.int64)


def _listed(ranks: str | None) -> list[int] | None:
    value = _value({"": ranks}, "") if ranks else None
    if not isinstance(value, list) or not all(type(rank) is int for rank in value):
        return None
    return sorted(value) or None


def _descriptions(tables: Tables) -> dict[str | None, str]:
    """Return what the program calls its groups, as the facts of PyTorch's profiler say it."""
    said = facts(tables)
    config = (_value(said, "distributedInfo") or {}) if "distributedInfo" in said else {}
    listed = config.get("pg_config") if isinstance(config, dict) else None
    return {
        str(group.get("pg_name")): str(group["pg_desc"])
        for group in (listed if isinstance(listed, list) else ())
        if isinstance(group, dict) and group.get("pg_desc")
    }


def _collectives(tables: Tables, parts: Split, group: Integers) -> dict[str, ColumnValues]:
    if not has_rows(tables, "collectives"):
        return {}
    names = ("sequence", "bytes_in", "bytes_out", "source", "destination", "transit", "wait")
    rows = columns_of(tables, "collectives", "span", "transport", "operation", "group", "dtype", *names)
    spans = columns_of(tables, "spans", "id", "ts", "dur", "step")
    place = rows_of(spans["id"], rows["span"])
    streams = on_tracks(tables, "stream")
    kernel = kernels_of_messages(tables, rows, streams[place])
    # A message of a batch happens when the kernel of the batch does; the kernel itself is then no row.
    called, place = spans["ts"].to_numpy()[place], np.where(kernel >= 0, place[kernel], place)
    order = np.argsort(spans["ts"].to_numpy()[place], kind="stable")
    order = order[~np.isin(order, kernel)] if (kernel >= 0).any() else order
    if len(order) < len(place) or (np.diff(order) != 1).any():
        rows, place = rows[order], place[order]
    ts, dur = (spans[name].to_numpy()[place] for name in ("ts", "dur"))
    on_stream, calls = streams[place], of_kinds(span_kinds(tables)[place], "operator")
    windows, unknown = parts.windows, parts.unknown & {"computing"}
    step = _integers(spans["step"])[place] if windows.declared else np.zeros(len(place), np.int64)
    exposed = dur - parts.work.computing.within(ts, ts + dur)
    return {
        "step": step,
        "group": group[order],
        "ts": ts,
        "dur": dur,
        "launch": np.where(kernel[order] >= 0, called[order], _launches(tables, place, ts, on_stream)),
        "exposed": np.full(len(ts), NULL) if unknown or sample.fraction(tables) < 1 else exposed,
        "launched": _launched(rows, on_stream, calls, on_device=parts.work.on_device),
        "operation": _operations(rows["operation"]),
        "dtype": _texts(rows["dtype"]),
        **{name: _integers(rows[name]) for name in names},
    }


def _operations(column: pl.Series) -> Texts:
    """Return operations under one name each, whoever names them: ranks that say `all_reduce` and `AllReduce` meet."""
    said = _texts(column)
    plain = [text.lower().replace("_", "").replace("-", "") for text in said.pool]
    named = [
        next((name for part, name in _OPERATIONS.items() if part in text), said.pool[place])
        for place, text in enumerate(plain)
    ]
    pool = list(dict.fromkeys(named))
    return Texts(np.array([*(pool.index(name) for name in named), -1], np.int64)[said.codes], pool)


def _launches(tables: Tables, place: Integers, ts: Times, on_stream: Any) -> Integers:  # noqa: ANN401 - a mask
    """Return when the host called: what launched the kernel, else the operator around it; a call on a thread itself."""
    result = np.where(on_stream, NULL, ts)
    kernels = columns_of(tables, "kernels", "span", "launch", "operator")
    if not len(kernels) or not on_stream.any():
        return result
    spans = columns_of(tables, "spans", "id", "ts")
    starts = np.append(spans["ts"].to_numpy(), NULL)
    of_span = np.full(len(spans) + 1, -1)
    of_span[rows_of(spans["id"], kernels["span"])] = np.arange(len(kernels))
    launch, operator = (
        np.append(rows_of(spans["id"], kernels[name]), -1)[of_span[place]] for name in ("launch", "operator")
    )
    known = np.where(launch >= 0, starts[launch], np.where(operator >= 0, starts[operator], NULL))
    return np.asarray(np.where(on_stream, known, result), np.int64)


def _launched(rows: pl.DataFrame, on_stream: Any, calls: Any, *, on_device: bool) -> Integers:  # noqa: ANN401 - masks
    """Return 1 for what ran, 0 for calls of which no work is there: of a rank with a device, and of gloo."""
    if not on_device:
        return np.asarray(~calls, np.int64)
    transport = coded(rows["transport"])
    of_host = np.array([text in _ON_THE_HOST for text in transport.texts], np.bool_)[transport.codes]
    return np.asarray(on_stream | (of_host & ~calls), np.int64)


# ---- events


def _events(tables: Tables) -> dict[str, ColumnValues]:
    known = columns_of(tables, "run_events", "name", "ts", "dur")
    rows = [(str(name), ts, dur) for name, ts, dur in known.iter_rows()]
    said = {name for name, _, _ in rows}
    for kind, name in _EVENTS.items():
        if name not in said:  # the program's own record of it comes first
            rows += [
                (name, ts, end - ts)
                for ts, end in zip(*(edge.tolist() for edge in _spans_of(tables, kind)), strict=True)
            ]
    if not rows:
        return {}
    rows = sorted(rows, key=lambda row: (-row[2], row))[:_MOST_EVENTS]
    names, ts, dur = zip(*sorted(rows, key=lambda row: row[1:]), strict=True)
    return {"name": _texts(pl.Series(names)), "ts": np.array(ts, np.int64), "dur": np.array(dur, np.int64)}
