"""MindSpore on a CPU: a directory of its profiler's files → tables of one part.

The directory is that of our collector, with ``stepscope.json``, or one that MindSpore's own profiler wrote
(``…_ascend_ms``). Operators lie on the threads that launched them if the host's events say them, else on lanes of their
own. Times of operators, events and memory are ns since the epoch; those of the data pipeline are milliseconds of the
monotonic clock, which the pairs of clocks in ``stepscope.json`` carry to the epoch.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from stepscope.errors import DamagedTraceError
from stepscope.read.common import minddata_files as pipeline_of
from stepscope.read.common import stated_totals
from stepscope.read.common.distinct import of_each
from stepscope.read.common.minddata_files import DataPipeline
from stepscope.read.common.nesting import Integers
from stepscope.read.common.part_builder import LARGEST_TIME, PartBuilder, PartTracks, TrackRow, as_json, sound_rows
from stepscope.read.common.plain_text import document_of, lines_of
from stepscope.read.common.source import Capture, Progress
from stepscope.read.common.stated_totals import StatedTotals
from stepscope.read.mindspore import called_operators as calls_of
from stepscope.read.mindspore import host_pipeline as events_of
from stepscope.read.mindspore import mindspore_operators as operators_of
from stepscope.read.mindspore.mindspore_files import begin_ns, description
from stepscope.read.mindspore.mindspore_flops import count as count_flops
from stepscope.trace.clock import Anchor, Clock
from stepscope.trace.losses import LossLedger
from stepscope.trace.schema import ANY_WORK, NOT_RECORDED
from stepscope.trace.tables import dtype

#: When and on which thread an operator was called.
_CALL = ("call_ts", "call_thread")
_LANE = "CPU kernels"
_MEMORY = ("ts", "allocated", "reserved", "active")
_MS = 1_000_000
#: Keys of ``stepscope.json`` that are not facts for the user.
_INTERNAL = frozenset({"format", "anchors", "shapes", "pipeline_begin", "parameter_types"})


def read(capture: Capture, ledger: LossLedger, progress: Progress | None = None) -> dict[str, pl.DataFrame]:
    """Read the files of one process, any of which may be missing.

    Raises:
        InputError: A file cannot be read.
        DamagedTraceError: All files are empty or damaged.
    """
    tables = _CaptureReader(capture, ledger).tables()
    if progress is not None:
        progress(capture.size, capture.size)
    # Of a process that was killed, or in which nothing ran, only our own files exist.
    written = set(capture.files) - {"description", "calls"}
    nothing = not any(tables[name].height for name in ("spans", "counters", "allocations", "pipeline"))
    lost = {loss.what for loss in ledger.rows() if loss.severity != "info"}
    if lost == {"operators_missing"} and not capture.of("times"):
        return tables  # other files say what ran
    damaged = lost or not all(path.stat().st_size for path in capture.all)
    if written and nothing and not damaged:
        ledger.add("files_without_events")
    elif written and nothing:
        message = f"{capture.root} holds nothing that was recorded: its files are empty or damaged."
        raise DamagedTraceError(message, "Record it again; the profiler was stopped before anything ran.")
    return tables


class _CaptureReader:
    """Reads the files of one capture."""

    def __init__(self, capture: Capture, ledger: LossLedger) -> None:
        self._capture = capture
        self._ledger = ledger
        self._said = description(capture)
        ledger.add("metadata_damaged", int(bool(capture.of("description")) and not self._said))

    def tables(self) -> dict[str, pl.DataFrame]:
        """Return the tables of the part."""
        capture, ledger, host = self._capture, self._ledger, self._said.get("host")
        events = events_of.read(capture.of("events"), ledger)
        ends_early = ledger.ends_early  # threads write their events in turns: others than the last ones are missing
        count, process, stated = operators_of.read_counts(capture.of("details"), ledger)
        operators = self._operators(events)
        dispatches = events_of.dispatches(events, operators)
        ledger.add("step_ends_unknown", int(operators.height > 0 and not dispatches.height and bool(self._said)))
        operators = calls_of.with_graphs(operators, events)
        missing = max(0, (count or 0) - operators.height)
        ledger.add("operators_missing", missing)
        files = pipeline_of.MindDataFiles(*(capture.of(sort) for sort in ("pipeline", "cpu", "batches")))
        begin = self._said.get("pipeline_begin")
        pipeline = pipeline_of.read(files, ledger, begin_ms=begin // _MS if type(begin) is int else 0)

        part = PartBuilder(_whole(self._said.get("rank")) or 0, host if isinstance(host, str) else "")
        first = int(events["process"][0]) if events.height else None
        tracks = _MindSporeTracks(part.tracks, _whole(self._said.get("process")) or process or first)
        operators = _placed(operators, tracks)
        memory = _allocations(capture, operators, ledger)
        part.add("allocations", memory)
        lanes = pipeline.operations["lane"]
        part.add("pipeline", pipeline.operations.drop("lane").hstack([tracks.of_lanes(lanes)]))
        starts = [int(frame["ts"].min()) for frame in (operators, events, memory) if frame.height]  # type: ignore[arg-type]
        part.add("counters", _counters(pipeline, self._clock(pipeline, min(starts, default=0)), tracks))
        _add_spans(part, operators, events, tracks)
        part.add("collectives", operators_of.details(operators, self._said))
        unrecorded = self._not_recorded(operators, events, lost=bool(missing or ends_early))
        part.add_facts({**self._facts(), **(as_json({NOT_RECORDED: unrecorded}) if unrecorded else {})})
        compared = [events_of.totals(capture.of("sums"), capture.of("events"), events)]
        if capture.of("details", "times") and operators.height:
            totals = StatedTotals(LossLedger(", ".join(path.name for path in capture.of("details"))))
            totals.times("operators", stated, float(operators["dur"].sum()))
            totals.counts("calls of operators", count, operators.height)
            compared.append(totals)
        stated_totals.add(part, compared)
        return {**part.tables(), "dispatches": dispatches}

    def _operators(self, events: pl.DataFrame) -> pl.DataFrame:
        """Return the operators with threads, shapes, phases, calls and operations, numbered as spans."""
        capture, ledger = self._capture, self._ledger
        operators = operators_of.read(capture.of("times"), ledger, compiled=self._said.get("mode") == "graph")
        operators = operators_of.with_shapes(operators, capture.of("framework"), ledger)
        operators = calls_of.with_phases(operators_of.with_threads(operators, events), events)
        operators = calls_of.join(operators, calls_of.read(capture.of("calls"), ledger), ledger)
        operators = calls_of.with_events(operators, events)
        return operators.with_columns(count_flops(operators), span=pl.int_range(pl.len(), dtype=pl.Int64))

    def _not_recorded(self, operators: pl.DataFrame, events: pl.DataFrame, *, lost: bool) -> list[str]:
        """Return the parts of a step that the files say nothing of; they would count as idle.

        MindSpore's own profiler writes times of operators, and no host events: what lies between is in no file. Host
        events without the operators that they launch are what its RuntimeProfiler writes alone.
        """
        launched = not operators.height and events["name"].is_in(events_of.LAUNCHES).any()
        if lost or launched:
            return ANY_WORK
        return ["data wait", "sync", "host only"] if operators.height and not events.height and not self._said else []

    def _clock(self, pipeline: DataPipeline, first: int) -> Clock:
        """Return the clock of the data pipeline; without pairs of clocks its first sample is put at time ``first``."""
        anchors = [Anchor(*pair, 0) for pair in _pairs(self._said.get("anchors"))]
        if anchors or not pipeline.counters.height:
            return Clock(anchors or [Anchor(0, 0, 0)])
        self._ledger.add("clock_unknown", pipeline.counters.height)
        earliest = int(pipeline.counters["ms"].min())  # type: ignore[arg-type]
        return Clock([Anchor(earliest * _MS, first, 0)])

    def _facts(self) -> dict[str, str]:
        user: dict[str, Any] = {}
        for path in self._capture.of("metadata"):
            user.update(document_of(path, self._ledger))
        facts = {key: value for key, value in self._said.items() if key not in _INTERNAL}
        return {key: json.dumps(value) for key, value in {**user, **facts, "profiler": "mindspore.profiler"}.items()}


@dataclass(frozen=True)
class _MindSporeTracks:
    """The tracks of the part, and the process; None where the files do not say it."""

    tracks: PartTracks
    process: int | None

    def of_threads(self, threads: pl.Series) -> pl.Series:
        """Return the tracks of host threads."""
        return self.tracks.numbered(
            lambda thread: TrackRow("thread", "cpu", f"thread {thread}", self.process, thread), threads
        )

    def of_kernels(self, lanes: Integers) -> pl.Series:
        """Return the tracks of operators whose thread is unknown; there are as many lanes as run at once."""
        names = {0: _LANE}
        return self.tracks.numbered(
            lambda lane: TrackRow("thread", "cpu", names.get(lane, f"{_LANE} ({lane + 1})"), self.process),
            pl.Series(lanes),
        )

    def of_lanes(self, lanes: pl.Series) -> pl.Series:
        """Return the tracks of lanes of counters."""
        return self.tracks.numbered(
            lambda lane: TrackRow("counter", "cpu", lane, self.process), lanes.cast(pl.Categorical())
        )


def _placed(operators: pl.DataFrame, tracks: _MindSporeTracks) -> pl.DataFrame:
    """Give operators their tracks: the thread's, else a lane on which nothing else runs at that time."""
    known = operators["thread"].is_not_null()
    track = np.zeros(operators.height, np.int32)
    track[known.to_numpy()] = tracks.of_threads(operators["thread"].filter(known)).to_numpy()
    unknown = operators.filter(~known)
    start, duration = (unknown[name].to_numpy() for name in ("ts", "dur"))
    track[~known.to_numpy()] = tracks.of_kernels(operators_of.lanes(start, start + duration)).to_numpy()
    return operators.with_columns(track=pl.Series(track))


def _add_spans(part: PartBuilder, operators: pl.DataFrame, events: pl.DataFrame, tracks: _MindSporeTracks) -> None:
    """Add operators, then events; an event names its operator as an argument."""
    kind = pl.when(pl.col("operation").is_not_null()).then(pl.lit("collective")).otherwise(pl.lit("operator"))
    phase = pl.col("phase").cast(dtype("enum:phase"))
    part.add_spans(operators.select("track", "ts", "dur", name="type", kind=kind, said_phase=phase))
    on_threads = [tracks.of_threads(events["thread"])]
    first = part.add_spans(events.select("ts", "dur", "name", "kind").hstack(on_threads))
    part.add("operators", operators.select("span", "shapes", "dtypes", "concrete", "module", "flops", *_CALL))
    named = events.with_row_index("span", offset=first).filter((pl.col("op") != "") & (pl.col("op") != pl.col("name")))
    value = of_each(json.dumps, named["op"].cast(pl.Categorical()))
    part.add("arguments", named.select("span", key=pl.lit("operator")).hstack([value.alias("value")]))


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
    possible = pl.all_horizontal(pl.col("ts", "allocated", "reserved").is_between(0, LARGEST_TIME))
    return sound_rows(rows, ledger, event_damaged=possible)


def _counters(pipeline: DataPipeline, clock: Clock, tracks: _MindSporeTracks) -> pl.DataFrame:
    frame = pipeline.counters
    times = frame["ms"].unique(maintain_order=True)
    epochs = pl.Series(clock.epochs([ms * _MS for ms in times.to_list()]), dtype=pl.Int64)
    timed = frame.join(pl.DataFrame({"ms": times, "ts": epochs}), on="ms", how="left", maintain_order="left")
    return timed.select("ts", "name", "value", "unit").hstack([tracks.of_lanes(frame["lane"])])


def _pairs(value: object) -> list[tuple[int, int]]:
    """Return the pairs of both clocks that are pairs of integers."""
    items = [item[:2] for item in value if isinstance(item, list)] if isinstance(value, list) else []
    whole = [item for item in items if all(type(one) is int and abs(one) < LARGEST_TIME for one in item)]
    return [(item[0], item[1]) for item in whole if len(item) == 2]


def _whole(value: object) -> int | None:
    return value if type(value) is int and 0 <= value < 1 << 31 else None
