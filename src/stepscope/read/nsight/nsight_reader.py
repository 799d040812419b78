"""Nsight Systems' export (``nsys export --type sqlite``): file → tables.

Tables and columns are those of the manual's section “SQLite Schema Reference”; each may be missing. Times are ns since
the session began. What the manual does not know, and lies on a thread or a device, keeps its time.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from stepscope.read.common.database.sqlite import SqliteDatabase, database, has_table
from stepscope.read.common.distinct import combinations, of_each, same, without_nulls
from stepscope.read.common.named_steps import add_named_steps
from stepscope.read.common.part_builder import PartBuilder, TrackRow, as_json, sound_spans
from stepscope.read.common.source import Progress, tell_all
from stepscope.read.nsight import nvtx_ranges
from stepscope.read.nsight.nsight_tables import (
    CALLS,
    DIAGNOSTICS,
    DIALECT,
    MEMORY,
    OVERHEAD,
    PLACE,
    WAITS,
    device,
    process,
    thread,
)
from stepscope.read.nsight.nsight_work import MEMORIES, WORK, columns, spelled
from stepscope.trace.ascend_columns import INT, NAME
from stepscope.trace.losses import LossLedger

SUFFIX, REPORTS = ".sqlite", (".nsys-rep", ".qdrep")
#: Tables that hold no time of work: words, and what describes others.
_WITHOUT_TIME = re.compile(
    r"ENUM_.*|META_DATA_.*|TARGET_INFO_.*|.*_CALLCHAINS|StringIds|ThreadNames|PROCESSES|ProcessStreams"
    r"|ANALYSIS_(?:DETAILS|FILE)|EXPORTED_.*|NVTX_(?:PAYLOAD|SCHEMA|COUNTER).*|CUDA_GRAPH_.*"
    r"|CUPTI_ACTIVITY_KIND_CUDA_EVENT"
)
#: ``ENUM_CUPTI_SYNC_TYPE`` by number, as Kineto spells them.
_WAITS = ("Unknown Sync", "Event Sync", "Stream Wait Event", "Stream Sync", "Context Sync")
_ON_DEVICE = (MEMORIES.index("Device"), MEMORIES.index("Managed"))
#: Keys of ``deviceProperties`` as Kineto has them → columns of the table of GPUs.
_PROPERTIES = {"name": "name", "totalGlobalMem": "totalMemory", "numSms": "smCount", "computeMajor": "computeMajor",
               "computeMinor": "computeMinor", "warpSize": "threadsPerWarp", "maxThreadsPerBlock": "maxThreadsPerBlock",
               "regsPerMultiprocessor": "maxRegistersPerSm", "sharedMemPerMultiprocessor": "maxShmemPerSm"}  # fmt: skip
#: ``ENUM_NSYS_EVENT_TYPE``: ranges of a thread, ranges between any two calls; the second of each, of NVTX's text form.
_PUSHED, _STARTED = (59, 70), (60, 71)
#: Versions of the schema that are known, by their first number.
_KNOWN_VERSIONS = ("", "1", "2", "3")
#: How its diagnostics say that events are missing, and how many characters of one are kept.
_DROPPED = re.compile(r"\b(?:drop|lost\b|overflow|discard|overwrit)", re.IGNORECASE)
_LONGEST_WORDS = 300
_MOST = 1 << 61
_BITS = (1 << 24) - 1
_VERSION = re.compile(r"_v\d+$")
_TABLE_NAME = re.compile(r"\w{1,80}", re.ASCII)
_SPAN: dict[str, Any] = {
    "track": pl.Int32, "ts": pl.Int64, "dur": pl.Int64, "name": pl.Categorical(), "kind": pl.String,
    "correlation": pl.Int64, "sequence": pl.Int64, "external": pl.Int64, "forward_thread": pl.Int64,
}  # fmt: skip
_DETAIL: dict[str, Any] = {
    **dict.fromkeys(("device", "context", "stream", "registers", "shared_memory"), pl.Int64),
    **dict.fromkeys(("bytes", "graph", "graph_node"), pl.Int64),
    **{"grid": pl.List(pl.Int64), "block": pl.List(pl.Int64), "bandwidth": pl.Float64},
}  # fmt: skip


def is_export(path: Path, head: bytes) -> bool:
    """Return whether a file that begins so is a database of Nsight Systems."""
    found = has_table(path, head, ("StringIds", "META_DATA_EXPORT"))
    return path.name.endswith(SUFFIX) if found is None else found


def read(path: Path, ledger: LossLedger, progress: Progress | None = None) -> dict[str, pl.DataFrame]:
    """Read one file. All processes in it are one rank.

    Raises:
        InputError: The file cannot be read, or is damaged at its head.
    """
    with database(path, ledger, DIALECT) as opened:
        part = _Nsight(opened, ledger).part()
    tell_all(path, progress)
    return part.tables()


class _Nsight:
    """One open file.

    Args:
        opened: The database.
        ledger: Counts losses.
    """

    def __init__(self, opened: SqliteDatabase, ledger: LossLedger) -> None:
        self._opened = opened
        self._ledger = ledger
        said = opened.rows("TARGET_INFO_SESSION_START_TIME")["utcEpochNs"].drop_nulls().to_list()
        self._begin = said[0] if said and 0 < said[0] < _MOST else 0
        ledger.add("start_unknown", int(not self._begin))
        facts = dict(opened.rows("TARGET_INFO_SYSTEM_ENV").rows())
        self._part = PartBuilder(host=facts.get("Hostname") or "")
        names = opened.rows("ThreadNames").drop_nulls()
        self._threads = dict(zip(names["globalTid"].to_list(), names["nameId"].to_list(), strict=True))
        #: Numbers of calls are those of their process.
        self._processes: dict[int | None, int] = {}

    def part(self) -> PartBuilder:
        """Return everything in the file."""
        self._add_calls()
        self._add_ranges()
        self._add_work()
        self._add_waits()
        self._add_memory()
        self._add_others()
        self._add_facts()
        self._count_dropped()
        if not self._part.spans:
            self._ledger.add("files_without_events")
        return self._part

    def _timed(self, rows: pl.DataFrame) -> list[pl.Series]:
        """Return ``ts`` and ``dur``; null where a time is impossible."""
        start, end = (column.set(~column.is_between(-_MOST, _MOST), None) for column in (rows["start"], rows["end"]))
        return [(start + self._begin).alias("ts"), (end - start).alias("dur")]

    def _correlation(self, rows: pl.DataFrame, processes: pl.Series) -> pl.Series:
        """Return the number that a call and its work share, unique in the file: that of the first process as it is."""
        given = rows["correlationId"]
        found, which = combinations(processes)
        numbers = [self._processes.setdefault(one, len(self._processes)) for (one,) in found]
        shifted = given + pl.Series(numbers, dtype=pl.Int64)[pl.Series(which, dtype=pl.UInt32)] * (1 << 32)
        return shifted.set(~given.is_between(1, (1 << 32) - 1), None).alias("correlation")

    def _host(self, rows: pl.DataFrame, *lane: str) -> pl.Series:
        """Return the track of each row: its thread, or a lane of its process."""

        def make(number: int | None) -> TrackRow:
            owner, own = (None, None) if number is None else (number >> 24 & _BITS, number & _BITS)
            if lane:
                return TrackRow("other", "cpu", lane[0], owner)
            return TrackRow("thread", "cpu", self._threads.get(number) or f"thread {own}", owner, own)

        return self._part.tracks.numbered(make, rows["globalTid"])

    def _add(self, frame: pl.DataFrame) -> pl.DataFrame:
        """Add the spans of rows that have possible times; return these with the column ``span``."""
        missing = [pl.Series(name, [None], kind).new_from_index(0, len(frame)) for name, kind in _SPAN.items()
                   if name not in frame.columns]  # fmt: skip
        kept = sound_spans(frame.hstack(missing), self._ledger)
        first = self._part.add_spans(kept.select(pl.col(name).cast(kind) for name, kind in _SPAN.items()))
        return kept.with_columns(pl.Series("span", range(first, first + len(kept)), pl.Int64))

    def _add_calls(self) -> None:
        for table, kind in CALLS.items():
            rows = self._opened.rows(table)
            if not rows.height:
                continue
            name = of_each(lambda text: _VERSION.sub("", text or "unknown call"), rows["nameId"]).alias("name")
            kinds = of_each(lambda text, kind=kind: kind or _api(text), name, dtype=pl.String()).alias("kind")
            of = process(rows["globalTid"])
            lane = ("profiler overhead",) if table == OVERHEAD else ()
            columns = [*self._timed(rows), name, kinds, self._host(rows, *lane)]
            self._add(pl.DataFrame([*columns, self._correlation(rows, of)] if kind is None else columns))

    def _add_ranges(self) -> None:
        rows = self._opened.rows("NVTX_EVENTS")
        between = rows["eventType"].is_in([*_PUSHED, *_STARTED])
        self._ledger.add("event_unknown_kind", rows.height - int(between.sum()), "Marks and names of NVTX.")
        rows = rows.filter(between.fill_null(value=False))
        ended = rows.drop_nulls("end")
        self._ledger.add("event_unmatched_begin", rows.height - ended.height)
        text = ended["text"].zip_with(ended["text"].is_not_null(), ended["textId"]).alias("text")
        started = ended["eventType"].is_in(_STARTED)
        threads = self._host(ended.filter(~started))
        lanes = self._host(ended.filter(started), "NVTX ranges")
        track = np.empty(ended.height, np.int32)
        track[(~started).to_numpy()], track[started.to_numpy()] = threads.to_numpy(), lanes.to_numpy()
        said = nvtx_ranges.ranges(pl.DataFrame([text, thread(ended["globalTid"]).alias("thread")]))
        made = [*self._timed(ended), pl.Series("track", track), *said.get_columns()]
        kept = self._add(add_named_steps(self._part, sound_spans(pl.DataFrame(made), self._ledger)))
        operators = kept.filter(kept["kind"] == "operator").select("span", "shapes", "external", "forward_thread")
        self._part.add("operators", operators)

    def _add_work(self) -> None:
        """Add kernels, copies, fills, and graphs that were recorded as a whole."""
        found = {table: rows for table in WORK if (rows := self._opened.rows(table)).height}
        if not found:
            return
        processes = {table: process(rows["globalPid"]) for table, rows in found.items()}
        several = pl.concat(processes.values()).n_unique() > 1
        frames = []
        for table, rows in found.items():
            own = processes[table] if several else same("process", None, rows.height, pl.Int64())
            numbered = self._correlation(rows, processes[table])
            frames.append(pl.DataFrame([*self._timed(rows), numbered, own, *columns(table, rows)]))
        work = pl.concat(frames, how="diagonal")
        context = work.select(pl.when(pl.col("context").n_unique().over("device", "process") > 1).then("context"))
        places = (work["device"], work["stream"], context.to_series(), work["process"])
        work = work.with_columns(self._part.tracks.numbered(_stream, *places))
        work = work.with_columns(
            pl.lit(None, kind).alias(name) for name, kind in _DETAIL.items() if name not in work.columns
        )
        kept = self._add(work)
        copied = pl.when((pl.col("kind") == "memcpy") & (pl.col("dur") > 0)).then(pl.col("bytes") / pl.col("dur"))
        self._part.add(
            "kernels", kept.with_columns(bandwidth=copied).select("span", *_DETAIL).cast({"device": pl.Int32})
        )

    def _add_waits(self) -> None:
        rows = self._opened.rows(WAITS)
        if rows.height:
            on, stream = device(rows), rows["streamId"].set(~rows["streamId"].is_between(0, (1 << 31) - 1), None)
            names = of_each(lambda number: spelled(_WAITS, number, _WAITS[0]), rows["syncType"]).alias("name")
            track = self._part.tracks.numbered(_waiting, on, stream)
            columns = [*self._timed(rows), names, track, self._correlation(rows, process(rows["globalPid"]))]
            self._add(pl.DataFrame(columns).with_columns(kind=pl.lit("sync")))

    def _add_memory(self) -> None:
        rows = self._opened.rows(MEMORY)
        rows = rows.filter(rows["memKind"].is_in(_ON_DEVICE) & rows["memoryOperationType"].is_in((0, 1)))
        sound = rows["start"].is_between(-_MOST, _MOST) & rows["bytes"].is_between(0, _MOST)
        kept = without_nulls(rows.filter(sound), ["start", "bytes"])
        self._ledger.add("event_damaged", rows.height - kept.height)
        freed = (kept["memoryOperationType"] == 1).to_numpy()
        self._part.add(
            "allocations",
            {
                "ts": kept["start"] + self._begin,
                "device": of_each(lambda number: f"cuda:{number}", device(kept)),
                "address": kept["address"],
                "bytes": pl.Series(
                    np.where(freed, -kept["bytes"].to_numpy(), kept["bytes"].to_numpy()), dtype=pl.Int64
                ),
            },
        )

    def _add_others(self) -> None:
        """Add what has a time and a place, in tables that the manual does not have or stepscope does not know."""
        for table, held in self._opened.tables.items():
            if table in DIALECT.tables or _WITHOUT_TIME.fullmatch(table):
                continue
            which = f"Table {table}." if _TABLE_NAME.fullmatch(table) else ""
            if not {"start", "end"} <= set(held) or not {"globalTid", "deviceId"} & set(held):
                self._ledger.add("table_unknown", 1, which)
                continue
            wanted = {**PLACE, "globalTid": INT, "nameId": NAME, "textId": NAME}
            rows = self._opened.rows(table, wanted)
            self._ledger.add("kind_unknown", rows.height, which)
            name = rows["nameId"].zip_with(rows["nameId"].is_not_null(), rows["textId"])
            named = of_each(lambda text, table=table: text or table, name).alias("name")
            if "globalTid" in held:
                track = self._host(rows)
            else:
                track = self._part.tracks.numbered(_stream, device(rows), rows["streamId"], rows["contextId"])
            self._add(pl.DataFrame([*self._timed(rows), named, track]).with_columns(kind=pl.lit("other")))

    def _add_facts(self) -> None:
        said = {name: value for name, value in self._opened.rows("META_DATA_EXPORT").rows() if name and value}
        version = said.get("EXPORT_SCHEMA_VERSION", said.get("EXPORT_SCHEMA_VERSION_MAJOR", ""))
        self._ledger.add("version_unknown", int(version.partition(".")[0] not in _KNOWN_VERSIONS))
        devices = [
            {"id": gpu["id"] if gpu["cuDevice"] is None else gpu["cuDevice"],
             **{key: gpu[column] for key, column in _PROPERTIES.items() if gpu[column] is not None}}
            for gpu in self._opened.rows("TARGET_INFO_GPU").to_dicts()
        ]  # fmt: skip
        self._part.add_facts(
            as_json({**({"nsight": said} if said else {}), **({"deviceProperties": devices} if devices else {})})
        )

    def _count_dropped(self) -> None:
        """Count what Nsight Systems says that it dropped, in its own words."""
        for text in self._opened.rows(DIAGNOSTICS)["text"].drop_nulls().unique(maintain_order=True).to_list():
            if _DROPPED.search(text):
                words = " ".join(text.split())[:_LONGEST_WORDS].rstrip(".")
                self._ledger.add("events_dropped", 1, f"Nsight Systems: {words}.")


def _api(name: str | None) -> str:
    """Return the kind of a call of CUDA: those of the driver begin with ``cu`` alone."""
    return "driver" if re.match(r"cu[A-Z]", name or "") else "runtime"


def _stream(on: int, stream: int | None, context: int | None, owner: int | None = None) -> TrackRow:
    own = f"stream {'of unknown number' if stream is None else stream}"
    name = own if context is None else f"{own} of context {context}"
    return TrackRow("stream", f"cuda:{on}", name, owner, stream=stream)


def _waiting(on: int, stream: int | None) -> TrackRow:
    name = "context" if stream is None else f"stream {stream}"
    return TrackRow("other", f"cuda:{on}", f"{name} synchronisation", stream=stream)
