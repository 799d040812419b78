"""MindSpore on a CPU: a directory of its profiler's files → tables of one part.

The directory is that of our collector, with ``stepscope.json``, or one that MindSpore's own profiler wrote
(``…_ascend_ms``). Operators lie on the threads that launched them where the host's events tell, else on lanes of their
own. Times of operators, events and memory are ns since the epoch; those of the data pipeline are milliseconds of the
monotonic clock, which the pairs of clocks in ``stepscope.json`` carry to the epoch.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from stepscope.errors import DamagedTraceError
from stepscope.read.common.plain_text import MOST, document_of, lines_of
from stepscope.read.common.source import Capture, Progress, files_of
from stepscope.read.mindspore import called_operators as calls_of
from stepscope.read.mindspore import host_pipeline as events_of
from stepscope.read.mindspore import minddata_files as pipeline_of
from stepscope.read.mindspore import mindspore_operators as operators_of
from stepscope.read.mindspore.minddata_files import DataPipeline
from stepscope.read.mindspore.mindspore_files import begin_ns, capture_of, description
from stepscope.read.mindspore.mindspore_flops import count as count_flops
from stepscope.read.mindspore.mindspore_phases import with_called_phases
from stepscope.trace.clock import Anchor, Clock
from stepscope.trace.losses import LossLedger
from stepscope.trace.tables import conform, dtype

_LANE = "CPU kernels"
_MEMORY = ("ts", "allocated", "reserved", "active")
_MS = 1_000_000
#: Keys of ``stepscope.json`` that are not facts for the user.
_INTERNAL = frozenset({"format", "anchors", "shapes", "pipeline_begin", "parameter_types"})


def read(directory: Path, ledger: LossLedger, progress: Progress | None = None) -> dict[str, pl.DataFrame]:
    """Read the files of one process.

    Args:
        directory: Directory with the files of one process; any of them may be missing.
        ledger: Counts losses.
        progress: Called once, when everything is read.

    Raises:
        NotATraceError: It holds no file of MindSpore's profiler, or those of several processes.
        InputError: A file cannot be read.
        DamagedTraceError: All files are empty or damaged.
    """
    capture = capture_of(directory)
    tables = _Part(capture, ledger).tables()
    if progress is not None:
        size = sum(path.stat().st_size for path in files_of(directory))
        progress(size, size)
    # Of a process that was killed, or in which nothing ran, what we wrote ourselves is all there is.
    written = set(capture.files) - {"description", "calls"}
    if written and not any(tables[name].height for name in ("spans", "counters", "allocations", "pipeline")):
        message = f"{directory} holds nothing that was recorded: its files are empty or damaged."
        raise DamagedTraceError(message, "Record it again; the profiler was stopped before anything ran.")
    return tables


class _Part:
    """Everything of one capture."""

    def __init__(self, capture: Capture, ledger: LossLedger) -> None:
        self._capture = capture
        self._ledger = ledger
        self._said = description(capture)
        ledger.add("metadata_damaged", int(bool(capture.of("description")) and not self._said))

    def tables(self) -> dict[str, pl.DataFrame]:
        """Return the tables of the part."""
        capture, ledger = self._capture, self._ledger
        compiled = self._said.get("mode") == "graph"
        operators = operators_of.read(capture.of("times"), ledger, compiled=compiled)
        count, process = operators_of.read_counts(capture.of("details"), ledger)
        ledger.add("operators_missing", max(0, (count or 0) - operators.height) if capture.of("times") else 0)
        events = events_of.read(capture.of("events"), ledger)
        operators = operators_of.with_shapes(operators, capture.of("framework"), ledger)
        operators = with_called_phases(operators_of.with_threads(operators, events), events)
        operators = calls_of.join(operators, calls_of.read(capture.of("calls"), ledger), ledger)
        operators = calls_of.with_graphs(calls_of.with_events(operators, events), events)
        operators = operators.with_columns(count_flops(operators))
        files = pipeline_of.Files(*(capture.of(sort) for sort in ("pipeline", "cpu", "batches")))
        begin = self._said.get("pipeline_begin")
        pipeline = pipeline_of.read(files, ledger, begin_ms=begin // _MS if type(begin) is int else 0)
        tracks = _Tracks(_whole(self._said.get("process")) or process or _first(events["process"]))
        operators = _placed(operators, tracks)
        memory = _allocations(capture, operators, ledger)
        starts = [int(frame["ts"].min()) for frame in (operators, events, memory) if frame.height]  # type: ignore[arg-type]
        operations = _pipeline(pipeline, tracks)
        counters = _counters(pipeline, self._clock(pipeline, min(starts, default=0)), tracks)
        spans, arguments = _spans(operators, events, tracks)
        operators = operators.with_columns(span=pl.int_range(pl.len(), dtype=pl.Int64))
        return {
            "spans": spans,
            "arguments": arguments,
            "operators": _details(operators),
            "collectives": conform("collectives", operators_of.details(operators, self._said)),
            "allocations": memory,
            "counters": counters,
            "pipeline": operations,
            "metadata": self._metadata(),
            "tracks": tracks.frame(self._said),
        }

    def _clock(self, pipeline: DataPipeline, first: int) -> Clock:
        """Return the clock of the data pipeline; without pairs of clocks its first sample is put at time ``first``."""
        anchors = [Anchor(*pair, 0) for pair in _pairs(self._said.get("anchors"))]
        if anchors or not pipeline.counters.height:
            return Clock(anchors or [Anchor(0, 0, 0)])
        self._ledger.add("clock_unknown", pipeline.counters.height)
        earliest = int(pipeline.counters["ms"].min())  # type: ignore[arg-type]
        return Clock([Anchor(earliest * _MS, first, 0)])

    def _metadata(self) -> pl.DataFrame:
        user: dict[str, Any] = {}
        for path in self._capture.of("metadata"):
            user.update(document_of(path, self._ledger))
        facts = {key: value for key, value in self._said.items() if key not in _INTERNAL}
        rows = [(key, json.dumps(value)) for key, value in {**user, **facts}.items()]
        return pl.DataFrame(rows, schema={"key": pl.String, "value": pl.String}, orient="row")


@dataclass
class _Tracks:
    """The tracks of the part, numbered as they are first asked for.

    Attributes:
        process: Number of the process; None where the files do not say.
    """

    process: int | None
    _numbers: dict[tuple[str, int | None, str], int] = field(default_factory=dict)

    def thread(self, thread: int) -> int:
        """Return the track of a host thread."""
        return self._number("thread", thread, f"thread {thread}")

    def kernels(self, lane: int) -> int:
        """Return the track of operators whose thread is not known; as many as run at once."""
        return self._number("thread", None, _LANE if lane == 0 else f"{_LANE} ({lane + 1})")

    def counter(self, lane: str) -> int:
        """Return the track of a lane of counters."""
        return self._number("counter", None, lane)

    def _number(self, kind: str, thread: int | None, name: str) -> int:
        return self._numbers.setdefault((kind, thread, name), len(self._numbers))

    def frame(self, said: Mapping[str, Any]) -> pl.DataFrame:
        """Return the table ``tracks``."""
        host = said.get("host")
        frame = pl.DataFrame(
            [(number, kind, thread, name, number) for (kind, thread, name), number in self._numbers.items()],
            schema={"id": pl.Int32, "kind": pl.String, "thread": pl.Int64, "name": pl.String, "order": pl.Int32},
            orient="row",
        )
        return frame.with_columns(
            pl.col("kind").cast(dtype("enum:track_kind")),
            rank=pl.lit(_whole(said.get("rank")) or 0, pl.Int32),
            host=pl.lit(host if isinstance(host, str) else ""),
            device=pl.lit("cpu"),
            process=pl.lit(self.process, pl.Int64),
            stream=pl.lit(None, pl.Int64),
        )


def _placed(operators: pl.DataFrame, tracks: _Tracks) -> pl.DataFrame:
    """Give operators their tracks: the thread's, else a lane on which nothing else runs at that time."""
    lost = operators["thread"].is_null()
    track = np.zeros(operators.height, np.int32)
    for thread in operators["thread"].drop_nulls().unique(maintain_order=True).to_list():
        track[(operators["thread"] == thread).fill_null(value=False).to_numpy()] = tracks.thread(thread)
    rows = np.flatnonzero(lost.to_numpy())
    start = operators["ts"].to_numpy()[rows]
    lane = operators_of.lanes(start, start + operators["dur"].to_numpy()[rows])
    for number in np.unique(lane).tolist():
        track[rows[lane == number]] = tracks.kernels(number)
    return operators.with_columns(track=pl.Series(track))


def _details(operators: pl.DataFrame) -> pl.DataFrame:
    """Return the table ``operators``, and when and on which thread each was called."""
    details = operators.select("span", "shapes", "dtypes", "concrete", "module", "flops")
    return pl.concat([conform("operators", details), operators.select("call_ts", "call_thread")], how="horizontal")


def _spans(operators: pl.DataFrame, events: pl.DataFrame, tracks: _Tracks) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return the spans, operators before events, and as arguments the operators that events name."""
    kind = pl.when(pl.col("operation").is_not_null()).then(pl.lit("collective")).otherwise(pl.lit("operator"))
    ran = operators.select(
        "track", "ts", "dur", name="type", kind=kind, said_phase=pl.col("phase").cast(dtype("enum:phase"))
    )
    on_threads = events.with_columns(_numbered(events["thread"], tracks.thread))
    host = on_threads.select("track", "ts", "dur", "name", "kind")
    spans = pl.concat([ran, host], how="diagonal")
    return spans, _arguments(events.with_row_index("span", offset=operators.height))


def _arguments(events: pl.DataFrame) -> pl.DataFrame:
    """Return the table ``arguments``: the operator that an event names besides its own name."""
    named = events.filter((pl.col("op") != "") & (pl.col("op") != pl.col("name")))
    distinct = named["op"].unique(maintain_order=True)
    values = pl.Series([json.dumps(op) for op in distinct.to_list()], dtype=pl.String)
    texts = pl.DataFrame({"op": distinct, "value": values})
    joined = named.join(texts, on="op", how="left", maintain_order="left")
    return joined.select(pl.col("span").cast(pl.Int64), key=pl.lit("operator"), value="value")


def _allocations(capture: Capture, operators: pl.DataFrame, ledger: LossLedger) -> pl.DataFrame:
    """Return the table ``allocations``: what changed from line to line.

    MindSpore takes an operator's memory just before it starts it, so that growth belongs to the operator that starts
    next; ``at`` is its start, and ``track`` its track. What the first line took is not known. Lines from before the
    recording, which MindSpore repeats from earlier ones, are left out.
    """
    sound = _memory(capture.of("memory"), ledger)
    begin, starts = begin_ns(capture), operators["ts"].to_list()[:1]
    if begin is not None and starts and begin <= starts[0]:
        sound = sound.filter(pl.col("ts") >= begin)
    change = pl.col("allocated").diff().fill_null(0)
    taken = sound.select(*_MEMORY, bytes=change, device=pl.lit("cpu")).sort("ts", maintain_order=True)
    following = operators.select("ts", at="ts", track="track").sort("ts")
    owned = taken.join_asof(following, on="ts", strategy="forward")
    grown = pl.col("bytes") > 0
    return owned.with_columns(pl.when(grown).then("at").alias("at"), pl.when(grown).then("track").alias("track"))


def _memory(paths: Sequence[Path], ledger: LossLedger) -> pl.DataFrame:
    """Return the lines of memory records that are sound: ts, allocated, reserved, active."""
    lines = pl.concat([pl.Series("line", [], dtype=pl.String), *(lines_of(path, ledger)[1:] for path in paths)])
    split = lines.to_frame().select(pl.col("line").str.strip_chars().str.splitn(",", 4).alias("at")).unnest("at")
    rows = split.rename(dict(zip(split.columns, _MEMORY, strict=True))).select(pl.all().cast(pl.Int64, strict=False))
    sound = rows.filter(pl.all_horizontal(pl.col("ts", "allocated", "reserved").is_between(0, MOST)))
    ledger.add("event_damaged", rows.height - sound.height)
    return sound


def _counters(pipeline: DataPipeline, clock: Clock, tracks: _Tracks) -> pl.DataFrame:
    frame = pipeline.counters
    times = frame["ms"].unique(maintain_order=True)
    epochs = pl.Series(clock.epochs([ms * _MS for ms in times.to_list()]), dtype=pl.Int64)
    timed = frame.join(pl.DataFrame({"ms": times, "ts": epochs}), on="ms", how="left", maintain_order="left")
    return timed.with_columns(_numbered(frame["lane"], tracks.counter)).select("ts", "track", "name", "value", "unit")


def _numbered(values: pl.Series, number: Callable[[Any], int]) -> pl.Series:
    """Return as ``track`` the number of each value's track."""
    distinct = values.unique(maintain_order=True)
    numbers = pl.Series("track", [number(value) for value in distinct.to_list()], dtype=pl.Int32)
    known = pl.DataFrame([distinct.alias("value"), numbers])
    return values.alias("value").to_frame().join(known, on="value", how="left", maintain_order="left")["track"]


def _pipeline(pipeline: DataPipeline, tracks: _Tracks) -> pl.DataFrame:
    operations = pipeline.operations
    return operations.drop("lane").with_columns(_numbered(operations["lane"], tracks.counter))


def _pairs(value: object) -> list[tuple[int, int]]:
    """Return the pairs of both clocks that are pairs of integers."""
    items = value if isinstance(value, list) else []
    return [
        (item[0], item[1])
        for item in items
        if isinstance(item, list) and len(item) >= 2 and all(type(one) is int and abs(one) < MOST for one in item[:2])
    ]


def _whole(value: object) -> int | None:
    return value if type(value) is int and 0 <= value < 1 << 31 else None


def _first(values: pl.Series) -> int | None:
    return int(values[0]) if len(values) else None
