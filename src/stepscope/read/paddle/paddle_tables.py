"""What Paddle's profiler (``paddle.profiler``, Paddle 2.3 and later) records → tables of one part.

Its two files, JSON and protobuf, hold the same; their readers give it as :class:`PaddleRecording`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import polars as pl

from stepscope.read.common.nesting import nest
from stepscope.read.common.part_builder import LARGEST_TIME, PartBuilder, PartTracks, TrackRow, sound_rows
from stepscope.read.paddle.paddle_inputs import with_inputs
from stepscope.trace.losses import LossLedger
from stepscope.trace.paddle_terms import UPDATES
from stepscope.trace.tables import dtype

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

#: What Paddle marks as operators, although it only runs a block of others: loops, branches, programs of ``to_static``.
CONTAINER = (
    r"^(?:(?:while|if|cond|pylayer)_instruction|(?:Global_)?(?:Dy2StGradNode|GradNodeRunProgram|RunProgramGradNode)(?:Final)?"
    r"|(?:pd_op\.)?(?:while|if|conditional_block|pylayer|run_program)(?:_grad)?_?(?: dygraph)?)$"
)

_STEP = r"#(\d+)$"
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


@dataclass(frozen=True, eq=False)
class PaddleRecording:
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


def tables(recorded: PaddleRecording, ledger: LossLedger) -> dict[str, pl.DataFrame]:
    """Make the tables of one file; what cannot be a span is counted.

    Steps are declared by ``Profiler.step``. Phases are those that Paddle marks: layers (forward), ``backward`` and the
    step of the optimizer. A layer inside another is a part of it, and names the module of the operators in it. Parts of
    operators, launches of kernels and ranges of C++ are annotations, as ranges of the user are.
    """
    part = PartBuilder()
    host, memory = with_inputs(_sound(recorded.host, ledger)), _sound_memory(recorded.memory, ledger)
    device = _sound(recorded.device, ledger)
    thread = _register_tracks(part.tracks, (host, memory), device, recorded.extra)
    container = (pl.col("type") == "Operator") & pl.col("name").str.contains(CONTAINER)
    host = host.with_columns(type=pl.when(container).then(pl.lit("OperatorInner")).otherwise("type"))
    host = _numbered(host, part.tracks.numbered(thread, host["process"], host["thread"]), 0)
    device = _numbered(device, part.tracks.numbered(_stream, device["device"], device["stream"]), host.height)
    names = pl.concat([host["name"], device["name"]])
    marked = pl.col("type").replace_strict(_PHASE_OF_TYPE, default=None, return_dtype=pl.String)
    phase = pl.coalesce(marked, _phase_in_program(names)).cast(dtype("enum:phase"))
    kind = pl.col("type").replace_strict(KIND_OF_TYPE, default="other").cast(dtype("enum:kind"))
    unknown = pl.concat([host["type"], device["type"]])
    for type_, count in unknown.filter(~unknown.is_in(TYPES)).value_counts(sort=True).iter_rows():
        ledger.add("kind_unknown", count, f"Events of the type {type_}.")
    for frame in (host, device):
        if frame.height:
            part.add_spans(frame.select("track", "ts", "dur", "name", "correlation", kind=kind, said_phase=phase))
    if device.height:
        part.add("kernels", device.select("span", *_KERNEL_COLUMNS))
    _add_operators(part, host)
    part.add("collectives", _collectives(host))
    if memory.height:
        track = part.tracks.numbered(thread, memory["process"], memory["thread"])
        part.add("allocations", _allocations(memory.with_columns(track)))
    number = pl.col("name").str.extract(_STEP).cast(pl.Int64, strict=False)
    marks = host.filter(pl.col("name").str.contains(_STEP), type="ProfileStep").select("ts", "dur", number=number)
    part.add_steps(marks.sort("ts"), "declared")
    facts = {key: json.dumps(value) for key, value in recorded.extra.items() if not key.isdigit()}
    part.add_facts({**recorded.metadata, **facts, "profiler": '"paddle.profiler"'})
    return part.tables()


def _sound(frame: pl.DataFrame, ledger: LossLedger) -> pl.DataFrame:
    """Leave out events without name, type, track or possible times; count them."""
    where = [name for name in ("process", "thread", "device", "stream") if name in frame.columns]
    return sound_rows(
        frame,
        ledger,
        event_damaged=pl.col("name").is_not_null() & pl.col("type").is_not_null() & _small(*where),
        event_bad_time=pl.col("ts").is_between(0, LARGEST_TIME) & (pl.col("dur") <= LARGEST_TIME),
        event_negative_duration=pl.col("dur") >= 0,
    )


def _sound_memory(frame: pl.DataFrame, ledger: LossLedger) -> pl.DataFrame:
    known = pl.col("place").is_not_null() & pl.col("type").is_in(MEMORY_TYPES) & _small("process", "thread")
    possible = pl.col("ts").is_between(0, LARGEST_TIME) & pl.col("bytes").is_between(-LARGEST_TIME, LARGEST_TIME)
    return sound_rows(frame, ledger, event_damaged=known & possible)


def _small(*columns: str) -> pl.Expr:
    return pl.all_horizontal(pl.col(columns).is_between(-(1 << 31), (1 << 31) - 1))


def _register_tracks(
    tracks: PartTracks, on_threads: Sequence[pl.DataFrame], device: pl.DataFrame, extra: Mapping[str, str]
) -> Callable[[int, int], TrackRow]:
    """Register threads, then streams, in order of their numbers; return what makes the track of a thread."""
    names = {int(key): value for key, value in extra.items() if key.isdigit() and len(key) < 19 and value}

    def thread(process: int, number: int) -> TrackRow:
        return TrackRow("thread", "cpu", names.get(number, f"thread {number}"), process, number)

    threads = pl.concat([frame[["process", "thread"]] for frame in on_threads])
    for make, keys in ((thread, threads), (_stream, device[["device", "stream"]])):
        for row in keys.unique().sort(pl.all()).rows():
            tracks.number(make(*row))
    return thread


def _stream(device: int, stream: int) -> TrackRow:
    return TrackRow("stream", f"cuda:{device}", f"stream {stream}", stream=stream)


def _numbered(frame: pl.DataFrame, track: pl.Series, first: int) -> pl.DataFrame:
    """Give events their track and their number among the spans."""
    return frame.with_columns(track, span=pl.int_range(pl.len(), dtype=pl.Int64) + first)


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


def _add_operators(part: PartBuilder, host: pl.DataFrame) -> None:
    """Add the tables ``operators`` and ``stacks``."""
    if not (host["type"] == "Operator").any():
        return
    chosen = host.with_columns(module=_modules(host)).filter(type="Operator")
    texts = chosen["stack"].drop_nulls().unique(maintain_order=True).to_list()
    numbers = dict(zip(texts, range(len(texts)), strict=True))
    stack = pl.col("stack").replace_strict(numbers, default=None, return_dtype=pl.Int64)
    part.add("operators", chosen.select("span", "shapes", "dtypes", "concrete", "module", stack=stack))
    part.add_stacks([[{"file": None, "line": None, "function": line} for line in one.splitlines()] for one in texts])


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
    """Return the calls for communication; Paddle's events say nothing of what is sent."""
    operation = pl.col("name").str.extract(_OPERATION).fill_null(pl.col("name")).str.to_lowercase()
    return host.filter(type="Communication").select("span", operation=operation)


def _allocations(memory: pl.DataFrame) -> pl.DataFrame:
    """Return memory taken and freed; a reservation takes no memory, but says how much the allocator holds."""
    devices = {place: _device(place) for place in memory["place"].unique().to_list()}
    return memory.select(
        "ts",
        "track",
        "address",
        "allocated",
        "reserved",
        bytes=pl.when(pl.col("type").str.starts_with("Reserved")).then(0).otherwise("bytes"),
        device=pl.col("place").replace_strict(devices, return_dtype=pl.String),
    ).sort("ts", maintain_order=True)


def _device(place: str) -> str:
    """Return the device of a place: ``Place(gpu:0)`` is ``cuda:0``."""
    match = _PLACE.fullmatch(place)
    if match is None:
        return place
    name = "cuda" if match[1] == "gpu" else match[1]
    return name if match[2] is None else f"{name}:{match[2]}"
