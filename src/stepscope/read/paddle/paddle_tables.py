"""What Paddle's profiler (``paddle.profiler``, Paddle 2.3 and later) records → tables of one part.

Its two files, JSON and protobuf, hold the same; their readers give it as :class:`Recorded`.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field

import numpy as np
import polars as pl

from stepscope.read.common.nesting import nest
from stepscope.trace.losses import LossLedger
from stepscope.trace.paddle_updates import UPDATES
from stepscope.trace.tables import conform, dtype, empty

#: Times beyond this, ns, are damage.
_MOST = 1 << 62

#: Paddle's types of events, in the order in which it numbers them, and what they are.
KIND_OF_TYPE: dict[str, str] = {
    "Operator": "operator",
    "Dataloader": "data",
    "ProfileStep": "step",
    "CudaRuntime": "runtime",
    "Kernel": "kernel",
    "Memcpy": "memcpy",
    "Memset": "memset",
    "UserDefined": "annotation",
    "OperatorInner": "annotation",
    "Forward": "phase",
    "Backward": "phase",
    "Optimization": "phase",
    "Communication": "collective",
    "PythonOp": "python",
    "PythonUserDefined": "annotation",
    "DygraphKernelLaunch": "annotation",
    "StaticKernelLaunch": "annotation",
}
TYPES = tuple(KIND_OF_TYPE)
DEVICE_TYPES = frozenset({"Kernel", "Memcpy", "Memset"})
_PHASE_OF_TYPE = {"Forward": "forward", "Backward": "backward", "Optimization": "optimizer"}
#: Memory events, in the order in which Paddle numbers them. The last two are the allocator's own.
MEMORY_TYPES = ("Allocate", "Free", "ReservedAllocate", "ReservedFree")

#: Operators of static programs: their executor's range, their names, those of backward, and those of no phase.
_PROGRAM_RUN = "StandaloneExecutor::run"
_IN_PROGRAM = r"^(?:pd_op\.)?(\w+?)_?$"
_GRADIENT = r"^(?:pd_op\.)?\w+_grad_?$"
_NO_PHASE = ("feed", "fetch", "data", "shadow_output", "full", "full_int_array", "fill_constant")

_STEP = r"#(\d{1,9})$"
_PLACE = re.compile(r"Place\((\w+?)(?::(\d+))?\)")
_OPERATION = r"(?i)(all_?reduce|all_?gather|reduce_?scatter|all_?to_?all|broadcast|reduce|scatter|send|recv|barrier)"

HOST: dict[str, pl.DataType | type[pl.DataType]] = {
    "name": pl.String,
    "type": pl.String,
    "ts": pl.Int64,
    "dur": pl.Int64,
    "process": pl.Int64,
    "thread": pl.Int64,
    "correlation": pl.Int64,
    "shapes": pl.String,
    "dtypes": pl.String,
    "stack": pl.String,
}
DEVICE: dict[str, pl.DataType | type[pl.DataType]] = {
    "name": pl.String,
    "type": pl.String,
    "ts": pl.Int64,
    "dur": pl.Int64,
    "device": pl.Int64,
    "context": pl.Int64,
    "stream": pl.Int64,
    "correlation": pl.Int64,
    "grid": pl.List(pl.Int64),
    "block": pl.List(pl.Int64),
    "registers": pl.Int64,
    "shared_memory": pl.Int64,
    "blocks_per_sm": pl.Float64,
    "warps_per_sm": pl.Float64,
    "occupancy": pl.Float64,
    "bytes": pl.Int64,
    "bandwidth": pl.Float64,
}
MEMORY: dict[str, pl.DataType | type[pl.DataType]] = {
    "ts": pl.Int64,
    "process": pl.Int64,
    "thread": pl.Int64,
    "type": pl.String,
    "address": pl.Int64,
    "bytes": pl.Int64,
    "place": pl.String,
    "allocated": pl.Int64,
    "reserved": pl.Int64,
}
_ARROWS = {"kind": pl.String, "from_track": pl.Int32, "from_ts": pl.Int64, "to_track": pl.Int32, "to_ts": pl.Int64}


@dataclass(frozen=True, eq=False)
class Recorded:
    """Everything of one file; times in ns since the epoch.

    Attributes:
        host: Columns of :data:`HOST`: events and calls of CUDA on threads.
        device: Columns of :data:`DEVICE`: work on streams.
        memory: Columns of :data:`MEMORY`.
        extra: What Paddle says besides: names of threads by their number, utilisation.
        metadata: Further facts, as JSON.
    """

    host: pl.DataFrame
    device: pl.DataFrame
    memory: pl.DataFrame
    extra: dict[str, str] = field(default_factory=dict)
    metadata: dict[str, str] = field(default_factory=dict)


def build(recorded: Recorded, ledger: LossLedger) -> dict[str, pl.DataFrame]:
    """Make the tables of one file; what cannot be a span is counted.

    Steps are declared by ``Profiler.step``. Phases are those that Paddle marks: layers (forward), ``backward`` and the
    step of the optimizer. A layer inside another is a part of it, and names the module of the operators in it. Parts of
    operators, launches of kernels and C++'s own ranges are annotations, as the user's are.
    """
    host = _sound(recorded.host, ledger)
    device = recorded.device
    device = _sound(device.filter(pl.col("type").is_in(list(DEVICE_TYPES))), ledger) if device.height else device
    memory = _sound_memory(recorded.memory, ledger)
    tracks = _tracks(host, device, memory, recorded.extra)
    host, device = _numbered(host, tracks, 0), _numbered(device, tracks, host.height)
    operators, stacks = _operators(host)
    return {
        "spans": _spans(host, device),
        "kernels": conform("kernels", device.select(_KERNEL_COLUMNS)) if device.height else empty("kernels"),
        "operators": operators,
        "stacks": stacks,
        "collectives": _collectives(host),
        "allocations": _allocations(memory, tracks),
        "steps": _steps(host),
        "metadata": _metadata(recorded),
        "tracks": tracks[[name for name in tracks.columns if name != "key"]],
        "arrows": pl.DataFrame(schema=_ARROWS),
    }


def _sound(frame: pl.DataFrame, ledger: LossLedger) -> pl.DataFrame:
    """Leave out events without a name, a known type or a place, and those whose times are none; count them."""
    if not frame.height:
        return frame
    where = [name for name in ("process", "thread", "device", "stream") if name in frame.columns]
    placed = pl.all_horizontal(pl.col(where).is_between(-(1 << 31), (1 << 31) - 1))
    named = frame.filter(pl.col("name").is_not_null() & pl.col("type").is_in(TYPES) & placed)
    ledger.add("event_damaged", frame.height - named.height)
    timed = named.filter(pl.col("ts").is_between(0, _MOST) & (pl.col("dur") <= _MOST))
    ledger.add("event_bad_time", named.height - timed.height)
    kept = timed.filter(pl.col("dur") >= 0)
    ledger.add("event_negative_duration", timed.height - kept.height)
    return kept


def _sound_memory(frame: pl.DataFrame, ledger: LossLedger) -> pl.DataFrame:
    if not frame.height:
        return frame
    whole = frame.filter(
        pl.col("ts").is_between(0, _MOST)
        & pl.col("bytes").is_between(-_MOST, _MOST)
        & pl.col("place").is_not_null()
        & pl.col("type").is_in(MEMORY_TYPES)
        & pl.all_horizontal(pl.col("process", "thread").is_between(-(1 << 31), (1 << 31) - 1))
    )
    ledger.add("event_damaged", frame.height - whole.height)
    return whole


def _key(*columns: str) -> pl.Expr:
    return pl.concat_str([pl.col(column).cast(pl.String) for column in columns], separator=" ")


def _tracks(host: pl.DataFrame, device: pl.DataFrame, memory: pl.DataFrame, extra: dict[str, str]) -> pl.DataFrame:
    """Return the table ``tracks``, with the key that events find theirs by."""
    places = pl.concat([frame[["process", "thread"]] for frame in (host, memory)])
    names = {int(key): value for key, value in extra.items() if key.isdigit() and len(key) < 19 and value}
    threads = places.unique().sort("process", "thread").with_columns(key=_key("process", "thread"))
    threads = threads.with_columns(
        device=pl.lit("cpu"),
        kind=pl.lit("thread"),
        name=pl.col("thread").replace_strict(
            names, default=pl.lit("thread ") + pl.col("thread").cast(pl.String), return_dtype=pl.String
        ),
    )
    streams = [_streams(device)] if device.height else []
    tracks = pl.concat([threads, *streams], how="diagonal").with_row_index("id")
    return tracks.with_columns(
        pl.col("id").cast(pl.Int32),
        pl.col("kind").cast(dtype("enum:track_kind")),
        rank=pl.lit(0, pl.Int32),
        host=pl.lit(""),
        order=pl.col("id").cast(pl.Int32),
    )


def _streams(device: pl.DataFrame) -> pl.DataFrame:
    """Return the tracks of streams, with their keys."""
    return (
        device.select("device", "stream")
        .unique()
        .sort("device", "stream")
        .select(
            "stream",
            key=pl.lit("on ") + _key("device", "stream"),
            device=pl.lit("cuda:") + pl.col("device").cast(pl.String),
            kind=pl.lit("stream"),
            name=pl.lit("stream ") + pl.col("stream").cast(pl.String),
        )
    )


def _numbered(frame: pl.DataFrame, tracks: pl.DataFrame, first: int) -> pl.DataFrame:
    """Give events their track and their number among the spans."""
    if not frame.height:
        return frame
    key = pl.lit("on ") + _key("device", "stream") if "device" in frame.columns else _key("process", "thread")
    known = tracks.select("key", track="id")
    placed = frame.with_columns(key=key).join(known, on="key", how="left", maintain_order="left")
    return placed.with_columns(span=pl.int_range(pl.len(), dtype=pl.Int64) + first)


def _spans(host: pl.DataFrame, device: pl.DataFrame) -> pl.DataFrame:
    frames = [frame for frame in (host, device) if frame.height]
    if not frames:
        return empty("spans")
    both = pl.concat(frames, how="diagonal_relaxed")
    phase = pl.col("type").replace_strict(_PHASE_OF_TYPE, default=None, return_dtype=pl.String)
    return both.select(
        "track",
        "ts",
        "dur",
        "name",
        "correlation",
        kind=pl.col("type").replace_strict(KIND_OF_TYPE).cast(dtype("enum:kind")),
        said_phase=pl.coalesce(phase, _phase_in_program(both["name"])).cast(dtype("enum:phase")),
    )


def _phase_in_program(names: pl.Series) -> pl.Expr:
    """Return the phase of the operators of a static program, which has no marks, by their names; null of all others.

    Only a program that also has a backward pass has phases.
    """
    operation = pl.col("name").str.extract(_IN_PROGRAM)
    if not ((names == _PROGRAM_RUN).any() and names.str.contains(_GRADIENT).any()):
        return pl.lit(None, pl.String)
    return (
        pl.when(pl.col("type") != "Operator")
        .then(None)
        .when(operation.is_in(list(UPDATES)))
        .then(pl.lit("optimizer"))
        .when(pl.col("name").str.contains(_GRADIENT))
        .then(pl.lit("backward"))
        .when(operation.is_not_null() & ~operation.is_in(_NO_PHASE) & ~pl.col("name").str.ends_with("GradNode"))
        .then(pl.lit("forward"))
    )


_KERNEL_COLUMNS = (
    "span",
    "device",
    "context",
    "stream",
    "grid",
    "block",
    "registers",
    "shared_memory",
    "occupancy",
    "blocks_per_sm",
    "warps_per_sm",
    "bytes",
    "bandwidth",
)


def _operators(host: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return the tables ``operators`` and ``stacks``."""
    if not (host["type"] == "Operator").any():
        return empty("operators"), empty("stacks")
    chosen = host.with_columns(module=_modules(host)).filter(type="Operator")
    texts = chosen["stack"].drop_nulls().unique(maintain_order=True)
    numbers = dict(zip(texts.to_list(), range(len(texts)), strict=True))
    stack = pl.col("stack").replace_strict(numbers, default=None, return_dtype=pl.Int64)
    frames = [[{"file": None, "line": None, "function": line} for line in text.splitlines()] for text in numbers]
    stacks = conform("stacks", pl.DataFrame({"id": list(numbers.values()), "frames": frames})) if frames else None
    operators = chosen.select("span", "shapes", "dtypes", "module", stack=stack)
    return conform("operators", operators), conform("stacks", _NO_STACKS) if stacks is None else stacks


_NO_STACKS = pl.DataFrame(schema={"id": pl.Int64, "frames": pl.List(pl.Null)})


def _modules(host: pl.DataFrame) -> pl.Series:
    """Return for each event the layers that it runs in, outermost first, with ``/`` between; null outside all."""
    track, ts, dur = (host[name].to_numpy() for name in ("track", "ts", "dur"))
    nesting = nest(track, ts, dur)
    layer = (host["type"] == "Forward").to_numpy()[nesting.order]
    names = host["name"].gather(pl.Series(nesting.order)).to_list()
    paths: list[str | None] = []
    for place, parent in enumerate(nesting.parent.tolist()):
        above = paths[parent] if parent >= 0 else None
        paths.append((f"{above}/{names[place]}" if above else names[place]) if layer[place] else above)
    place_of = np.empty(host.height, np.int64)
    place_of[nesting.order] = np.arange(host.height)
    return pl.Series(paths, dtype=pl.String).gather(pl.Series(place_of))


def _collectives(host: pl.DataFrame) -> pl.DataFrame:
    """Return the calls for communication; of what is sent, Paddle's events say nothing."""
    if not (host["type"] == "Communication").any():
        return empty("collectives")
    name = pl.col("name")
    operation = name.str.extract(_OPERATION).fill_null(name).str.to_lowercase()
    return conform("collectives", host.filter(type="Communication").select("span", operation=operation))


def _allocations(memory: pl.DataFrame, tracks: pl.DataFrame) -> pl.DataFrame:
    """Return memory taken and freed; what the allocator reserves for itself takes nothing, but says how much it has."""
    if not memory.height:
        return empty("allocations")
    places = memory["place"].unique().to_list()
    devices = {place: _device(place) for place in places}
    of_allocator = pl.col("type").str.starts_with("Reserved")
    placed = memory.with_columns(key=_key("process", "thread")).join(
        tracks.select("key", track="id"), on="key", how="left", maintain_order="left"
    )
    return placed.select(
        "ts",
        "track",
        "address",
        "allocated",
        "reserved",
        bytes=pl.when(of_allocator).then(0).otherwise("bytes"),
        device=pl.col("place").replace_strict(devices, return_dtype=pl.String),
    ).sort("ts", maintain_order=True)


def _device(place: str) -> str:
    """Return the device of a place: ``Place(gpu:0)`` is ``cuda:0``."""
    match = _PLACE.fullmatch(place)
    if match is None:
        return place
    name = "cuda" if match[1] == "gpu" else match[1]
    return name if match[2] is None else f"{name}:{match[2]}"


def _steps(host: pl.DataFrame) -> pl.DataFrame:
    if not (host["type"] == "ProfileStep").any():
        return empty("steps")
    number = pl.col("name").str.extract(_STEP).cast(pl.Int32, strict=False)
    marks = host.filter(type="ProfileStep").select("ts", "dur", number=number).drop_nulls("number").sort("ts")
    declared = pl.lit("declared").cast(dtype("enum:step_source"))
    return marks.with_columns(epoch=pl.lit(None, pl.Int32), source=declared)


def _metadata(recorded: Recorded) -> pl.DataFrame:
    facts = {key: json.dumps(value) for key, value in recorded.extra.items() if not key.isdigit()}
    rows = list({**recorded.metadata, **facts, "profiler": '"paddle.profiler"'}.items())
    return pl.DataFrame(rows, schema={"key": pl.String, "value": pl.String}, orient="row")
