"""``trace_view.json`` of a rank that an NPU's profiler recorded: the events that it wrote itself, in its form.

Every stream, plane of communication and thread keeps its number, also stream 0, so that reading this file gives what
reading the profiler's file gave.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import polars as pl

from stepscope.report.ascend.database.host_events import QUEUED, queued
from stepscope.report.ascend.database.task_events import communication, said_of_parts
from stepscope.report.ascend.overlap_analysis import RankWork
from stepscope.report.ascend.text.csv_tables import operator_shapes, operator_types, texts
from stepscope.report.ascend.text.device_trace import members, slice_lines, us_text
from stepscope.report.files.json_results import dumps
from stepscope.report.whole_files import replacing
from stepscope.trace.ascend_columns import COMMUNICATION_PROCESS, LAYERS, MODULE_MEMORY, UNKNOWN_32

#: Process of the trace → its order, which is part of its number.
_ORDER = {"CANN": 7, "Ascend Hardware": 13, "HCCL": 15, "Overlap Analysis": 23}
_FIRST_OF_COUNTERS = 24
_CATEGORIES = {"operator": "cpu_op", "data": "cpu_op", "step": "cpu_op", "python": "python_function"}
_CATEGORIES |= {"annotation": "user_annotation", "garbage": "GC"}
_LEVELS = {layer: level for _, level, layer in LAYERS}
_NOT_IN_TRACE = f"^(Memory of |{MODULE_MEMORY}$)"


def write(work: RankWork, path: Path) -> None:
    """Write the file."""
    with replacing(path) as temporary, temporary.open("w", encoding="utf-8") as file:
        file.write("[")
        for number, lines in enumerate(lines for lines in _NpuTrace(work).events() if len(lines)):
            file.write(",\n" if number else "")
            file.write(lines.str.join(",\n").item())
        file.write("]\n")


def _json(column: pl.Series) -> pl.Series:
    return texts(column.cast(pl.String), dumps)


def _lines(frame: pl.DataFrame, category: pl.Expr | None = None) -> pl.Series:
    """Return slices as JSON: columns name, pid, tid, ts, dur, args (JSON without braces)."""
    none = pl.lit(None, pl.String)
    kind = (none if category is None else category).alias("category")  # of the name before it is quoted
    return slice_lines(frame.with_columns(kind, _json(frame["name"]).alias("name")))


class _NpuTrace:
    """The events of one rank."""

    def __init__(self, work: RankWork) -> None:
        self._work = work
        tracks = work.tables["tracks"].collect().with_columns(pl.col("device").cast(pl.String))
        processes = tracks["process"].drop_nulls()
        self._process = int(processes[0]) if len(processes) else 1
        number = tracks["device"].str.extract(r"^npu:(\d+)$").drop_nulls()
        self._device = int(number[0]) if len(number) else 0
        self._tracks = tracks
        self._spans = work.tables["spans"].join(
            tracks.lazy().select(
                track="id", place="kind", process="process", thread="thread", stream="stream", lane="name"
            ),
            on="track",
        )
        self._communication_process = str(work.fact(COMMUNICATION_PROCESS) or "HCCL")
        self._names: dict[int, tuple[str, str]] = {}
        self._threads: dict[tuple[int, int], str] = {}
        self._lanes = self._hccl_lanes()

    def _pid(self, name: str, place: int | None = None, *, shown: bool = True) -> int:
        """Return the number of a process; it is named in the file if something is shown in it."""
        pid = self._process << 10 | (_ORDER[name] if place is None else place) << 5 | self._device
        if shown:
            written = self._communication_process if name == "HCCL" else name
            self._names[pid] = (written, "CPU" if name == "CANN" else "NPU")
        return pid

    def _hccl_lanes(self) -> pl.DataFrame:
        """Return lane → thread: a group's operations, then its planes."""
        names = self._tracks.filter(pl.col("name").str.contains(r"^Group \d+ (Communication|Plane)"))["name"]
        parts = names.to_frame("lane").with_columns(
            group=pl.col("lane").str.extract(r"Group (\d+)").cast(pl.Int64),
            plane=pl.col("lane").str.extract(r"Plane (\d+)").cast(pl.Int64).fill_null(-1),
        )
        lanes = parts.unique().sort("group", "plane").with_row_index("tid").cast({"tid": pl.Int64})
        pid = self._pid("HCCL") if len(lanes) else 0
        for tid, lane, _, plane in lanes.iter_rows():
            self._threads[pid, tid] = lane if plane < 0 else f"Plane {plane}"
        return lanes.select("lane", pl.col("tid"))

    def events(self) -> Iterator[pl.Series]:
        """Yield the events as JSON, one text each."""
        yield self._host()
        yield self._calls()
        yield self._tasks()
        yield self._communication()
        yield self._planes()
        yield self._overlap()
        yield from self._arrows()
        yield self._samples()
        yield pl.Series(list(self._metadata()), dtype=pl.String)

    def _host(self) -> pl.Series:
        kinds = pl.col("kind").is_in(list(_CATEGORIES)) & (pl.col("place") == "thread")
        inputs = self._work.tables["operators"].select(
            pl.col("span").alias("id"), "shapes", "dtypes", "forward_thread", "stack"
        )
        rows = self._spans.filter(kinds | ((pl.col("place") == "thread") & queued())).sort("id")
        frame = rows.join(inputs.unique("id"), on="id", how="left", maintain_order="left").collect()
        pairs = self._queue()
        numbers = pl.concat([pairs.select(pl.col(end).alias("id"), "number") for end in ("from", "to")]).unique("id")
        frame = frame.join(numbers, on="id", how="left", maintain_order="left")
        frame = frame.join(self._stacks(), on="stack", how="left", maintain_order="left").with_columns(
            texts(frame["shapes"], lambda text: dumps(operator_shapes(text).replace("\n", "\r\n"))).alias("shapes"),
            texts(frame["dtypes"], lambda text: dumps(operator_types(text).replace("\n", "\r\n"))).alias("dtypes"),
        )
        of_operator = members(
            {
                "Sequence number": pl.col("sequence").fill_null(-1),
                "Fwd thread id": pl.col("forward_thread").fill_null(0),
                **{"Input Dims": "shapes", "Input type": "dtypes", "Call stack": "lines"},
            }
        )
        of_queue = members({"correlation_id": "number"})
        is_operator = pl.col("kind").is_in(["operator", "data", "step"])
        args = pl.when(is_operator).then(of_operator).when(pl.col("number").is_not_null()).then(of_queue)
        queue = (
            pl.when(pl.col("name").cast(pl.String) == "Enqueue").then(pl.lit("enqueue")).otherwise(pl.lit("dequeue"))
        )
        kind = pl.col("kind").cast(pl.String)
        category = pl.coalesce(kind.replace_strict(_CATEGORIES, default=None, return_dtype=pl.String), queue)
        return _lines(frame.with_columns(args.otherwise(pl.lit("")).alias("args"), *self._on_threads()), category)

    def _on_threads(self) -> list[pl.Expr]:
        return [pl.col("process").fill_null(self._process).alias("pid"), pl.col("thread").fill_null(0).alias("tid")]

    def _stacks(self) -> pl.DataFrame:
        rows = self._work.tables["stacks"].collect()
        lines = [dumps(";\r\n".join(map(_line, frames))) for frames in rows["frames"]]
        return pl.DataFrame({"stack": rows["id"], "lines": lines}, schema={"stack": pl.Int64, "lines": pl.String})

    def _queue(self) -> pl.DataFrame:
        """Return pairs of the queue: from, to, and a number that they share."""
        origins = self._work.tables["spans"].filter(queued()).select(pl.col("id").alias("from"))
        pairs = self._work.tables["flows"].filter(pl.col("kind") == "other").join(origins, on="from", how="semi")
        return pairs.select("from", "to").with_row_index("number", offset=1).collect()

    def _calls(self) -> pl.Series:
        calls = (pl.col("kind").is_in(["runtime", "driver", "sync"])) & (pl.col("place") == "thread") & ~queued()
        frame = self._spans.filter(calls).sort("id").collect()
        layer = pl.col("name").cast(pl.String).str.extract("^([A-Za-z]+)@", 1)
        level = layer.replace_strict(_LEVELS, default="runtime", return_dtype=pl.String)
        thread = pl.col("thread").fill_null(0)
        args = members({"Thread Id": thread, "level": pl.format('"{}"', level), "connection_id": "correlation"})
        pid = self._pid("CANN", shown=bool(len(frame)))
        for thread in frame["thread"].drop_nulls().unique():
            self._threads[pid, thread] = f"Thread {thread}"
        return _lines(frame.with_columns(args.alias("args"), *self._on_threads()).with_columns(pid=pl.lit(pid)))

    def _with_details(self, place: str) -> pl.DataFrame:
        tasks = self._work.tables["tasks"].rename({"span": "id", "stream": "physical"})
        chosen = ("id", "type", "physical", "task", "context", "batch", "model", "core")
        rows = self._spans.filter(pl.col("place") == place).join(tasks.select(chosen), on="id", how="left")
        return rows.sort("ts", "id").collect()

    def _tasks(self) -> pl.Series:
        frame = self._with_details("stream").filter(pl.col("stream").is_not_null())
        sizes = self._work.tables["kernels"].select(pl.col("span").alias("id"), "bytes").collect()
        frame = frame.join(sizes.unique("id"), on="id", how="left", maintain_order="left")
        frame = frame.join(self._argument("direction"), on="id", how="left", maintain_order="left")
        args = members(
            {
                "Model Id": pl.col("model").fill_null(UNKNOWN_32),
                "Task Type": _json(frame["type"]),
                **{"Physic Stream Id": "stream", "Task Id": "task", "Batch Id": "batch"},
                "Subtask Id": pl.col("context").fill_null(UNKNOWN_32),
                **{"connection_id": "correlation", "data size(Byte)": "bytes", "memcpy direction": "direction"},
            }
        )
        pid = self._pid("Ascend Hardware")
        for stream in frame["stream"].unique():
            self._threads[pid, stream] = f"Stream {stream}"
        return _lines(frame.with_columns(args.alias("args"), pid=pl.lit(pid), tid="stream"))

    def _argument(self, key: str) -> pl.DataFrame:
        rows = self._work.tables["arguments"].filter(pl.col("key").cast(pl.String) == key)
        return rows.select(pl.col("span").alias("id"), pl.col("value").alias(key)).unique("id").collect()

    def _communication(self) -> pl.Series:
        frame = self._with_details("stream").join(self._lanes, on="lane", how="inner", maintain_order="left")
        details = communication(self._work, pl.DataFrame(schema={"span": pl.Int64, "connectionId": pl.Int64}))
        ids = pl.Series("id", [call.operation.span for call in self._work.calls], dtype=pl.Int64)
        said = (
            self._work.tables["collectives"]
            .select(pl.col("span").alias("id"), pl.col("dtype").cast(pl.String))
            .collect()
        )
        counts = pl.concat([ids.to_frame(), details.select("count", "algType")], how="horizontal")
        frame = frame.join(counts, on="id", how="left", maintain_order="left").join(
            said.unique("id"), on="id", how="left", maintain_order="left"
        )
        args = members(
            {
                "connection_id": "correlation",
                "model id": pl.col("model").fill_null(UNKNOWN_32),
                "data_type": _json(frame["dtype"]),
                "alg_type": _json(frame["algType"].replace("N/A", None)),
                "count": "count",
            }
        )
        return _lines(frame.with_columns(args.alias("args"), pid=pl.lit(self._pid("HCCL", shown=bool(len(frame))))))

    def _planes(self) -> pl.Series:
        frame = self._with_details("other").join(self._lanes, on="lane", how="inner", maintain_order="left")
        frame = frame.join(said_of_parts(self._work), on="id", how="left", maintain_order="left")
        estimated = self._argument("estimated duration (ns)").rename({"estimated duration (ns)": "estimated"})
        frame = frame.join(estimated, on="id", how="left", maintain_order="left")
        fields: dict[str, pl.Expr | pl.Series | str] = {
            "notify_id": _json(frame["notification"]),
            "duration estimated(us)": pl.col("estimated").cast(pl.Int64) / 1000,
            "stream id": "physical",
            "task id": "task",
            "context id": pl.col("context").fill_null(UNKNOWN_32),
            "task type": _json(frame["type"]),
            "src rank": pl.col("source").fill_null(UNKNOWN_32),
            "dst rank": pl.col("destination").fill_null(UNKNOWN_32),
            "transport type": _json(frame["transport"]),
            "size(Byte)": "bytes",
            "data type": _json(frame["data type"]),
            "link type": _json(frame["link"]),
            "rdma type": _json(frame["rdma type"]),
            "bandwidth(GB/s)": "bandwidth",
        }
        return _lines(
            frame.with_columns(members(fields).alias("args"), pid=pl.lit(self._pid("HCCL", shown=bool(len(frame)))))
        )

    def _overlap(self) -> pl.Series:
        pid = self._pid("Overlap Analysis")
        parts = []
        for tid, (name, lane) in enumerate(self._work.overlap.items()):
            self._threads[pid, tid] = name
            frame = pl.DataFrame({"ts": lane.start, "dur": lane.end - lane.start})
            parts.append(frame.with_columns(name=pl.lit(name), tid=pl.lit(tid), pid=pl.lit(pid), args=pl.lit("")))
        return _lines(pl.concat(parts))

    def _arrows(self) -> Iterator[pl.Series]:
        flows = self._work.tables["flows"]
        launched = self._work.tables["kernels"].select(pl.col("operator").alias("from"), pl.col("span").alias("to"))
        both = {
            "async_npu": ("torch_to_npu", launched.drop_nulls().collect()),
            "fwdbwd": ("fwdbwd", flows.filter(pl.col("kind") == "forward_backward").select("from", "to").collect()),
            "async_task_queue": ("enqueue_to_dequeue", self._queue().select("from", "to")),
            "HostToDevice": ("HostToDevice", flows.filter(pl.col("kind") == "launch").select("from", "to").collect()),
        }
        for category, (name, pairs) in both.items():
            for end, phase in (("from", '"s"'), ("to", '"f","bp":"e"')):
                yield self._ends(pairs, end, f'{{"ph":{phase},"name":"{name}","cat":"{category}","id":')

    def _ends(self, pairs: pl.DataFrame, end: str, head: str) -> pl.Series:
        numbered = pairs.with_row_index("number").select("number", pl.col(end).alias("id"))
        frame = numbered.join(self._spans.collect(), on="id", how="left", maintain_order="left")
        frame = frame.join(self._lanes, on="lane", how="left", maintain_order="left")
        on_thread = pl.col("place") == "thread"
        is_call = on_thread & (pl.col("kind") == "runtime") & ~pl.col("name").cast(pl.String).str.contains(QUEUED)
        pid = (
            pl.when(is_call)
            .then(self._pid("CANN", shown=False))
            .when(on_thread)
            .then(pl.col("process").fill_null(self._process))
            .when(pl.col("stream").is_not_null())
            .then(self._pid("Ascend Hardware", shown=False))
            .otherwise(self._pid("HCCL", shown=False))
        )
        tid = pl.coalesce("thread", "stream", "tid", pl.lit(0, pl.Int64))
        line = pl.concat_str(
            pl.lit(head), "number", pl.format(',"pid":{},"tid":{},"ts":"', pid, tid), us_text("ts"), pl.lit('"}')
        )
        return frame.drop_nulls("ts").select(line).to_series()

    def _samples(self) -> pl.Series:
        lanes = self._tracks.filter((pl.col("kind") == "counter") & ~pl.col("name").str.contains(_NOT_IN_TRACE))
        places = {
            name: self._pid(name, _FIRST_OF_COUNTERS + number)
            for number, name in enumerate(lanes["name"].unique(maintain_order=True))
        }
        known = lanes.select(track="id", lane="name").with_columns(
            pl.col("lane").replace_strict(places, return_dtype=pl.Int64).alias("pid")
        )
        counters = self._work.tables["counters"].with_columns(pl.col("name", "unit").cast(pl.String))
        rows = counters.join(known.lazy(), on="track").sort("ts", maintain_order=True).collect()
        last = pl.col("name").str.extract("([^/]+)$", 1)
        key = (
            pl.when(pl.col("unit") == "bytes")
            .then(pl.lit("KB"))
            .when(pl.col("unit") == "MHz")
            .then("unit")
            .when(pl.col("unit") == "")
            .then(pl.lit("value"))
            .otherwise(pl.format("{}({})", last, "unit"))
        )
        rows = rows.with_columns(
            key.alias("key"),
            pl.when(pl.col("unit") == "bytes")
            .then(pl.col("value") / 1024)
            # Under `Hit Rate(%)` CANN's timeline has parts of one.
            .when((pl.col("unit") == "%") & pl.col("name").str.starts_with("LLC "))
            .then((pl.col("value") / 100).round(11))
            .otherwise("value")
            .alias("value"),
        )
        line = pl.concat_str(
            pl.lit('{"ph":"C","name":'),
            _json(rows["name"]),
            pl.format(',"pid":{},"tid":0,"ts":"', "pid"),
            us_text("ts"),
            pl.lit('","args":{'),
            _json(rows["key"]),
            pl.lit(":"),
            pl.col("value").cast(pl.String),
            pl.lit("}}"),
        )
        return rows.select(line).to_series()

    def _metadata(self) -> Iterator[str]:
        names = {**self._names, **self._hosts()}
        for pid, (name, label) in names.items():
            yield _named("process_name", pid, 0, name=name)
            yield _named("process_labels", pid, 0, labels=label)
        for (pid, tid), name in self._threads.items():
            yield _named("thread_name", pid, tid, name=name)

    def _hosts(self) -> dict[int, tuple[str, str]]:
        threads = self._tracks.filter(pl.col("kind") == "thread")
        for process, thread in threads.select("process", "thread").drop_nulls().iter_rows():
            self._threads[process, thread] = f"Thread {thread}"
        return dict.fromkeys(threads["process"].drop_nulls().unique(), ("Python", "CPU"))


def _line(frame: dict[str, object]) -> str:
    where = f"{frame['file']}({frame['line'] or 0}): " if frame["file"] else ""
    return f"{where}{frame['function']}"


def _named(what: str, pid: int, tid: int, **arguments: object) -> str:
    return json.dumps({"ph": "M", "name": what, "pid": pid, "tid": tid, "args": arguments})
