"""Traces that XProf wrote as JSON (``*.trace.json.gz`` of ``jax.profiler``): what their events are.

Their events have no category. Processes are called ``/host:CPU`` and ``/device:GPU:0``, and arguments say what a range
is: ``step_num`` a step, ``hlo_op`` an instruction of a compiled program.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import polars as pl

from stepscope.read.chrome_json.columns import ChromeEvents
from stepscope.read.common.communication import transport_of_kernel
from stepscope.read.common.distinct import of_each
from stepscope.read.common.part_builder import PartBuilder
from stepscope.read.common.xla import xla_host_events
from stepscope.read.kineto.kineto_tracks import said_names
from stepscope.trace.tables import dtype, with_series

_HOST, _DEVICE = re.compile(r"/host:\w+"), re.compile(r"/device:([A-Za-z_]+):(\d{1,9})")
_STREAM, _OPERATIONS = re.compile(r"Stream #(\d{1,18})"), re.compile(r"(?:Async )?XLA Ops")
_COPY, _FILL = re.compile(r"(?i)mem ?cpy|copy(host|device)to"), re.compile(r"(?i)mem ?set")


def processes(events: ChromeEvents) -> dict[str, str]:
    """Return the names of processes by their numbers, if XProf gave them; else nothing."""
    named = {process: name for (process, _), name in said_names(events, "process_name").items()}
    return named if any(_HOST.fullmatch(name) or _DEVICE.match(name) for name in named.values()) else {}


def refined(tables: dict[str, pl.DataFrame], named: Mapping[str, str]) -> dict[str, pl.DataFrame]:
    """Return the tables of a part with steps, operators, Python functions and streams told apart."""
    spans, arguments = tables["spans"], tables["arguments"]
    tracks = _tracks(tables["tracks"], named)
    on_device = pl.Series(tracks["kind"].cast(pl.String) == "stream")[spans["track"].cast(pl.UInt32)]
    said = {key: _spans_with(arguments, key) for key in ("_src", "step_num", "hlo_op", "correlation_id")}
    of_xla = pl.Series(tables["tracks"]["name"].cast(pl.String).str.contains("/", literal=True))
    own = of_xla[spans["track"].cast(pl.UInt32)] | pl.int_range(spans.height, eager=True).is_in(
        said["_src"]["span"].implode()
    )
    kinds = of_each(_kind, spans["name"], on_device, own, dtype=pl.String())
    for key, kind in (("step_num", "step"), ("hlo_op", "operator"), ("correlation_id", "runtime")):
        rows = said[key]["span"].filter(~on_device[said[key]["span"]])
        kinds = kinds.scatter(rows, kind)
    part = PartBuilder()
    steps = said["step_num"].filter(~on_device[said["step_num"]["span"]])
    number = steps["value"].str.strip_chars('"').cast(pl.Int64, strict=False)
    part.add_steps(spans[steps["span"]].select("ts", "dur").with_columns(number=number), "declared")
    part.add("kernels", _kernels(spans, tracks, on_device))
    made = {name: part.piece(name) for name in ("steps", "kernels")}
    return {
        **tables,
        **made,
        "tracks": tracks,
        "spans": with_series(spans, [kinds.cast(dtype("enum:kind")).alias("kind")]),
    }


def _spans_with(arguments: pl.DataFrame, key: str) -> pl.DataFrame:
    return arguments.filter(arguments["key"].cast(pl.String) == key).unique("span", keep="first", maintain_order=True)


def _kind(name: str, on_device: bool, own: bool) -> str:  # noqa: FBT001
    """Return the kind of a span; ``own``: XLA's thread, or a place in XLA's source, makes it XLA's own work."""
    if not on_device:
        sort = xla_host_events.class_of(name)
        if sort == xla_host_events.PYTHON:
            return "python"
        return (
            "runtime" if sort == xla_host_events.INTERNAL or (own and sort == xla_host_events.OTHER) else "annotation"
        )
    if transport_of_kernel(name):
        return "collective"
    return "memcpy" if _COPY.search(name) else "memset" if _FILL.search(name) else "kernel"


def _tracks(tracks: pl.DataFrame, named: Mapping[str, str]) -> pl.DataFrame:
    """Return the tracks with those of devices as streams; their other lanes show groups of what streams do."""
    rows = tracks.to_dicts()
    for row in rows:
        match = _DEVICE.match(named.get(str(row["process"]), ""))
        if match is None:
            continue
        sort = "cuda" if match[1] == "GPU" else match[1].lower()
        stream, works = _STREAM.match(row["name"]), _OPERATIONS.match(row["name"])
        number = int(stream[1]) if stream else row["thread"] if works else None
        row.update(device=f"{sort}:{match[2]}", kind="stream" if stream or works else "annotation", stream=number)
        row.update(process=None, thread=None)
    return pl.DataFrame(rows, schema=tracks.schema)


def _kernels(spans: pl.DataFrame, tracks: pl.DataFrame, on_device: pl.Series) -> pl.DataFrame:
    rows = on_device.arg_true()
    lane = tracks[spans["track"][rows].cast(pl.UInt32)]
    device = lane["device"].cast(pl.String).str.extract(r"(\d+)$").cast(pl.Int32)
    return pl.DataFrame({"span": rows.cast(pl.Int64), "device": device, "stream": lane["stream"]})
