"""``trace_view.json`` of Ascend's layout: a Chrome trace as one array, with the processes that Ascend's tools look for.

Times are text, µs since the epoch with three decimals. Host threads, calls of the device's runtime (*CANN*), streams
(*Ascend Hardware*), communication by group (*HCCL*) and *Overlap Analysis* are processes of their own; in MindSpore's
variant *CPU OP* and *Scope Layer* too. Text is built by column, a chunk of slices at a time, as in
:mod:`stepscope.report.timeline.chrome_trace`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from io import BufferedWriter
from itertools import count
from pathlib import Path

import numpy as np
import polars as pl

from stepscope.report.ascend.overlap_analysis import RankWork
from stepscope.report.ascend.text.csv_tables import operator_shapes, texts
from stepscope.report.ascend.variant import Variant
from stepscope.report.files.json_results import dumps
from stepscope.report.protocol import Source
from stepscope.report.timeline import lanes
from stepscope.report.timeline.places import Lane
from stepscope.report.timeline.slices import Counter, Timeline, build
from stepscope.report.whole_files import replacing
from stepscope.trace.ascend_columns import UNKNOWN_32

_CHUNK = 100_000
#: Numbers of processes that exist only in the trace, above those of :mod:`stepscope.report.timeline.places`.
_MADE_UP, _RANKS = 10_000_500, 1_000_000
#: Process → its order when shown, as in Ascend's files.
_ORDER = {
    "Python": 0,
    "MindSpore": 1,
    "CPU OP": 2,
    "CANN": 7,
    "Scope Layer": 12,
    "Ascend Hardware": 13,
    "HCCL": 15,
    "Overlap Analysis": 23,
    "Counters": 24,
}
_FIXED = {"MindSpore": 1, "CPU OP": 2, "Scope Layer": 3}
#: Kinds on host threads that are calls of the device's software: kind → level.
_CANN = {"runtime": "Runtime", "driver": "Driver", "sync": "Synchronization"}
#: Category of the other kinds on host threads.
_CATEGORIES = {
    "operator": "cpu_op",
    "collective": "cpu_op",
    "python": "python_function",
    "data": "cpu_op",
    "garbage": "python_gc",
    "overhead": "overhead",
}
_ARROWS = {
    "launch": "HostToDevice",
    "forward_backward": "fwdbwd",
    "send_receive": "send_receive",
    "other": "flow",
    "wait": "wait",
}


def write(source: Source, work: RankWork, variant: Variant, path: Path) -> None:
    """Write the file."""
    timeline = build(source, step_name="ProfilerStep#", marked_steps=True)
    threads = _TraceThreads(timeline, variant)
    with replacing(path) as temporary, temporary.open("wb") as file:
        file.write(b"[")
        lines = _TraceLines(file, variant)
        for begin in range(0, len(timeline.slices), _CHUNK):
            lines.slices(_slices(timeline, timeline.slices[begin : begin + _CHUNK], work, threads))
        lines.slices(_communication(work, threads))
        lines.slices(_overlap(work, threads))
        if variant.processes:
            lines.slices(_scopes(work, threads))
        for arrows in _arrows(timeline, work, variant):
            lines.text(_arrow_lines(timeline, arrows, threads))
        for number, counter in enumerate(timeline.counters):
            lines.text(_samples(counter, number, threads))
        lines.text(pl.Series(threads.names(), dtype=pl.String))
        file.write(b"]\n")


class _TraceLines:
    """Writes events with commas between them."""

    def __init__(self, file: BufferedWriter, variant: Variant) -> None:
        self._file = file
        self._quote = '"' if variant.text_durations else ""
        self._begun = False

    def text(self, lines: pl.Series) -> None:
        """Write events that are JSON text already."""
        if lines.is_empty():
            return
        if self._begun:
            self._file.write(b",")
        self._begun = True
        body = lines.str.join(",\n").item()
        self._file.write(body.encode("utf-8") + b"\n")

    def slices(self, frame: pl.DataFrame) -> None:
        """Write slices, see :func:`slice_lines`."""
        if not frame.is_empty():
            self.text(slice_lines(frame, self._quote))


class _TraceThreads:
    """The processes and threads of the file, numbered when first used; no thread has the number 0."""

    def __init__(self, timeline: Timeline, variant: Variant) -> None:
        self.with_cells = variant.processes
        self._rank = timeline.rank
        self._processes: dict[tuple[str, int | None], int] = {}
        self._threads: dict[tuple[int, int | str], tuple[int, str]] = {}
        self._lanes = timeline.lanes
        self._slices: dict[tuple[int, str], tuple[int, int]] = {}

    def process(self, name: str, real: int | None = None) -> int:
        """Return the number of a process."""
        key = (name, real if name == "Python" else None)
        if key not in self._processes:
            made_up = _MADE_UP + 1000 * (self._rank % _RANKS) + len(self._processes)
            self._processes[key] = key[1] or _FIXED.get(name, made_up)
        return self._processes[key]

    def thread(self, pid: int, key: int | str, name: str, wanted: int = 1) -> int:
        """Return the number of the thread of a process for ``key``: the wanted one, if it is free."""
        if (pid, key) not in self._threads:
            taken = {tid for (process, _), (tid, _) in self._threads.items() if process == pid}
            tid = next(tid for tid in count(max(wanted, 1)) if tid not in taken)
            self._threads[pid, key] = (tid, name)
        return self._threads[pid, key][0]

    def of_slice(self, lane: int, kind: str) -> tuple[int, int]:
        """Return the numbers of the process and thread that show slices of one kind of a lane of the timeline."""
        if (lane, kind) not in self._slices:
            self._slices[lane, kind] = self._place(lane, self._lanes[lane], kind)
        return self._slices[lane, kind]

    def _place(self, number: int, lane: Lane, kind: str) -> tuple[int, int]:
        if lane.device is not None:
            pid = self.process("Ascend Hardware")
            return pid, self.thread(pid, number, f"{lane.process.name}: {lane.name}", lane.tid)
        host = "CPU OP" if kind in ("operator", "collective") else "MindSpore"
        name = "CANN" if kind in _CANN else host if self.with_cells else "Python"
        pid = self.process(name, lane.process.pid)
        return pid, self.thread(pid, number, lane.name, lane.tid)

    def names(self) -> list[str]:
        """Return the events that name processes and threads and give their order."""
        events = []
        for (name, _), pid in self._processes.items():
            label = "CPU" if name in ("Python", "MindSpore", "CPU OP", "CANN") else "NPU"
            events.append(_name("process_name", pid, name=name))
            events.append(_name("process_labels", pid, labels=label))
            events.append(_name("process_sort_index", pid, sort_index=_ORDER[name]))
        for (pid, _), (tid, name) in self._threads.items():
            events.append(_name("thread_name", pid, tid, name=name))
            events.append(_name("thread_sort_index", pid, tid, sort_index=tid))
        return events


def _name(what: str, pid: int, tid: int = 1, **arguments: object) -> str:
    return dumps({"ph": "M", "name": what, "pid": pid, "tid": tid, "args": arguments})


def slice_lines(frame: pl.DataFrame, quote: str = "") -> pl.Series:
    """Return slices as JSON.

    Args:
        frame: Columns name (JSON), category (null for none), args (JSON without braces), pid, tid, ts and dur (ns).
        quote: Quotation mark around a duration; empty for a number.
    """
    parts = [
        pl.concat_str(pl.lit('{"ph":"X","name":'), "name", pl.format(',"pid":{},"tid":{},"ts":"', "pid", "tid")),
        us_text("ts"),
        pl.lit(f'","dur":{quote}'),
        us_text("dur"),
        pl.lit(quote),
        pl.format(',"cat":"{}"', "category"),
        pl.concat_str(pl.lit(',"args":{'), "args", pl.lit("}}")),
    ]
    return frame.select(pl.concat_str(parts, ignore_nulls=True)).to_series()


def members(values: Mapping[str, pl.Expr | pl.Series | str]) -> pl.Expr:
    """Return the members of a JSON object: key → its JSON, or the column that holds it; those of null are left out."""
    texts_ = [pl.concat_str(pl.lit(f"{dumps(key)}:"), value) for key, value in values.items()]
    return pl.concat_str(texts_, separator=",", ignore_nulls=True)


def us_text(column: str) -> pl.Expr:
    """Return ns, not negative, as the text of µs with three decimals."""
    ns = pl.col(column)
    return (ns // 1000).cast(pl.String) + pl.lit(".") + (ns % 1000).cast(pl.String).str.zfill(3)


def _at(chunk: pl.DataFrame, threads: _TraceThreads) -> pl.DataFrame:
    """Return pid and tid of slices."""
    pairs = chunk.select("lane", "kind").unique(maintain_order=True)
    found = [threads.of_slice(lane, kind) for lane, kind in pairs.rows()]
    numbers = pl.DataFrame(found, schema={"pid": pl.Int64, "tid": pl.Int64}, orient="row")
    known = pl.concat([pairs, numbers], how="horizontal")
    rows = chunk.select("lane", "kind").join(known, on=["lane", "kind"], how="left", maintain_order="left")
    return rows.select("pid", "tid")


def _slices(timeline: Timeline, chunk: pl.DataFrame, work: RankWork, threads: _TraceThreads) -> pl.DataFrame:
    """Return the slices to write, with the resolved steps instead of the source's marks."""
    chunk = chunk.filter((pl.col("kind") != "step") | pl.col("id").is_null())
    names = pl.Series(timeline.names.json, dtype=pl.String).gather(chunk["name"])
    device = pl.Series([lane.device is not None for lane in timeline.lanes], dtype=pl.Boolean).gather(chunk["lane"])
    stream = pl.Series([lane.stream for lane in timeline.lanes], dtype=pl.Int64).gather(chunk["lane"])
    frame = chunk.select("id", "ts", "dur", "kind", "correlation", "sequence")
    frame = pl.concat([frame, _at(chunk, threads)], how="horizontal")
    frame = frame.with_columns(name=names, device=device, stream=stream).join(
        _details(work, chunk["id"]), on="id", how="left", maintain_order="left"
    )
    category = pl.col("kind").replace_strict(_CATEGORIES, default="user_annotation", return_dtype=pl.String)
    cann = pl.col("kind").is_in(list(_CANN)) & ~pl.col("device")
    level = pl.col("kind").replace_strict(_CANN, default="", return_dtype=pl.String)
    # Operators of cells have their whole path, as MindSpore writes it.
    before = pl.when(cann).then(level + pl.lit("@")).when(threads.with_cells).then("module").fill_null("")
    return frame.select(
        pl.concat_str(pl.lit('"'), before, pl.col("name").str.slice(1)).alias("name"),
        pl.when(~cann & ~pl.col("device")).then(category).alias("category"),
        _arguments(cann).alias("args"),
        "pid",
        "tid",
        "ts",
        "dur",
    )


def _details(work: RankWork, ids: pl.Series) -> pl.DataFrame:
    """Return id, shapes and types of operators, in the form of the timeline: a line for each input."""
    wanted = pl.DataFrame({"id": ids.drop_nulls()}).lazy()
    rows = (
        work.tables["operators"]
        .select(pl.col("span").alias("id"), "shapes", "dtypes", "module")
        .join(wanted, on="id", how="semi")
    )
    found = rows.unique("id").collect()
    cells = texts(found["module"], lambda module: dumps(module)[1:-1] + "/").alias("module")
    return found.with_columns(cells, *(texts(found[name], _lines).alias(name) for name in ("shapes", "dtypes")))


def _lines(text: str) -> str:
    return dumps(operator_shapes(text).replace("\n", "\r\n"))


def _arguments(cann: pl.Expr) -> pl.Expr:
    """Return the arguments of slices; ``cann``: which are calls of the device's software."""
    connection: dict[str, pl.Expr | pl.Series | str] = {"connection_id": "correlation"}
    kind = pl.format('"{}"', pl.col("kind").str.to_uppercase())
    hardware = {"Model Id": pl.lit(UNKNOWN_32), "Task Type": kind, "Physic Stream Id": "stream", **connection}
    operator: dict[str, pl.Expr | pl.Series | str] = {
        "Sequence number": pl.col("sequence").fill_null(-1),
        **{"Fwd thread id": pl.lit(0), "Input Dims": "shapes", "Input type": "dtypes"},
    }
    on_host = pl.when(pl.col("kind").is_in(["operator", "collective"])).then(members(operator)).otherwise(pl.lit(""))
    return pl.when("device").then(members(hardware)).when(cann).then(members(connection)).otherwise(on_host)


def _communication(work: RankWork, threads: _TraceThreads) -> pl.DataFrame:
    """Return the communication, a thread for each group, and another one for what crosses there."""
    rows = []
    for call in work.calls:
        one = call.operation
        known = {"data_type": None, "alg_type": None, "count": one.size}
        args = dumps({"group": one.group, **{key: value for key, value in known.items() if value is not None}})
        rows.append((dumps(call.name), call.group, one.start, one.elapsed, args[1:-1]))
    schema = {"name": pl.String, "group": pl.String, "ts": pl.Int64, "dur": pl.Int64, "args": pl.String}
    frame = pl.DataFrame(rows, schema=schema, orient="row")
    return _on_threads(frame, "group", "HCCL", "Group {} Communication", threads)


def _overlap(work: RankWork, threads: _TraceThreads) -> pl.DataFrame:
    parts = [
        pl.DataFrame({"lane": name, "name": dumps(name), "ts": lane.start, "dur": lane.end - lane.start})
        for name, lane in work.overlap.items()
    ]
    # A lane without events has columns of no type.
    schema = {"lane": pl.String, "name": pl.String, "ts": pl.Int64, "dur": pl.Int64}
    frame = pl.concat(part.cast(schema) for part in parts)  # type: ignore[arg-type]
    return _on_threads(frame.with_columns(args=pl.lit("")), "lane", "Overlap Analysis", "{}", threads)


def _scopes(work: RankWork, threads: _TraceThreads) -> pl.DataFrame:
    """Return the lanes *Scope Layer*: the cells that the work belongs to, one lane for each depth.

    Adjacent tasks in one cell make one bar, with the gaps between them, as MindSpore draws it.
    """
    owner = pl.when(pl.col("kind") == "operator").then("id").otherwise("operator").alias("span")
    modules = work.tables["operators"].select("span", pl.col("module").cast(pl.String).str.split("/")).collect()
    rows = work.computing.select(owner, "ts", (pl.col("ts") + pl.col("dur")).alias("end"))
    rows = rows.join(modules, on="span", how="left", maintain_order="left")
    deepest = rows["module"].list.len().max()
    bars = [_bars(rows, depth) for depth in range(deepest if isinstance(deepest, int) else 0)]
    nothing = pl.DataFrame(schema={"depth": pl.Int64, "name": pl.String, "ts": pl.Int64, "dur": pl.Int64})
    found = pl.concat([nothing, *bars])
    names = pl.Series("name", [dumps(name) for name in found["name"]], dtype=pl.String)
    return _on_threads(found.with_columns(names, args=pl.lit("")), "depth", "Scope Layer", "Scope {}", threads)


def _bars(rows: pl.DataFrame, depth: int) -> pl.DataFrame:
    """Return the bars of one depth: runs of tasks in the same cell."""
    path = pl.when(pl.col("module").list.len() > depth).then(pl.col("module").list.head(depth + 1).list.join("/"))
    runs = rows.with_columns(path.alias("path")).with_columns(pl.col("path").rle_id().alias("run")).drop_nulls("path")
    bars = runs.group_by("run", maintain_order=True).agg(
        pl.col("module").list.get(depth).first().alias("name"), pl.col("ts").first(), pl.col("end").max()
    )
    return bars.select(
        pl.lit(depth, pl.Int64).alias("depth"), "name", "ts", (pl.col("end") - pl.col("ts")).alias("dur")
    )


def _on_threads(frame: pl.DataFrame, by: str, process: str, title: str, threads: _TraceThreads) -> pl.DataFrame:
    """Put slices on a thread of ``process`` for each value of a column, and on more threads those that cross."""
    if frame.is_empty():
        return frame
    values = frame[by].unique(maintain_order=True)
    code = frame[by].replace_strict(values, pl.Series(range(len(values))), return_dtype=pl.Int64).to_numpy()
    order, lane = lanes.assign(code, frame["ts"].to_numpy(), frame["dur"].to_numpy())
    pid = threads.process(process)
    pairs, inverse = np.unique(code << 32 | lane, return_inverse=True)
    tids = []
    for pair in pairs.tolist():
        extra = f" ({(pair & 0xFFFFFFFF) + 1})" if pair & 0xFFFFFFFF else ""
        name = title.format(values[pair >> 32]) + extra
        tids.append(threads.thread(pid, name, name))
    numbers = pl.Series("tid", np.array(tids, np.int64)[inverse])
    placed = frame.with_columns(numbers, pl.lit(pid).alias("pid"), pl.lit(None, pl.String).alias("category"))
    return placed[order]


def _arrows(timeline: Timeline, work: RankWork, variant: Variant) -> Iterator[pl.DataFrame]:
    """Return origin and target (rows of the slices), name and category of the arrows."""
    category = pl.col("kind").replace_strict(_ARROWS, return_dtype=pl.String).alias("category")
    yield timeline.arrows.select("origin", "target", category, category.alias("name"))
    rows = timeline.slices.select("id").with_row_index("row").drop_nulls()
    owners = work.tables["kernels"].select("operator", "span").drop_nulls().collect()
    ends = owners.join(rows.rename({"id": "operator", "row": "origin"}), on="operator").join(
        rows.rename({"id": "span", "row": "target"}), on="span"
    )
    yield ends.select("origin", "target", category=pl.lit("async_npu"), name=pl.lit(variant.launch))


def _arrow_lines(timeline: Timeline, arrows: pl.DataFrame, threads: _TraceThreads) -> pl.Series:
    """Return the two events of each arrow; Ascend puts the number into the name of an arrow to the device."""
    numbered = arrows.with_row_index("number", offset=1)
    halves = []
    for row, phase in (("origin", '"s"'), ("target", '"f","bp":"e"')):
        slices = timeline.slices[numbered[row]]
        frame = pl.concat([numbered, slices.select("ts"), _at(slices, threads)], how="horizontal")
        number = pl.col("number").cast(pl.String)
        text = pl.concat_str(
            pl.lit(f'{{"ph":{phase},"id":"'),
            number,
            pl.lit('","cat":"'),
            "category",
            pl.lit('","name":"'),
            "name",
            pl.when(pl.col("category") == "HostToDevice").then(number).otherwise(pl.lit("")),
            pl.format('","pid":{},"tid":{},"ts":"', "pid", "tid"),
            us_text("ts"),
            pl.lit('"}'),
        )
        halves.append(frame.select(text).to_series())
    return pl.concat(halves)


def _samples(counter: Counter, number: int, threads: _TraceThreads) -> pl.Series:
    pid = threads.process("Counters")
    head = f'{{"ph":"C","name":{dumps(counter.name)},"id":{number},"pid":{pid},"tid":1,"ts":"'
    unit = dumps(counter.unit or "value")
    text = pl.concat_str(pl.lit(head), us_text("ts"), pl.lit(f'","args":{{{unit}:'), "value", pl.lit("}}"))
    return counter.samples.select(text).to_series()
