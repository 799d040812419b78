"""Frames of an Ascend capture → tables of one part."""

from __future__ import annotations

import json
from dataclasses import dataclass

import polars as pl

from stepscope.read.ascend import samples
from stepscope.read.ascend.facts import Facts
from stepscope.read.ascend.frames import Frames
from stepscope.read.ascend.kinds import KIND_OF_SORT, LAYERS, RANGES, bytes_of, operation, task_kinds
from stepscope.read.ascend.tracks import Tracks, npu
from stepscope.trace.losses import LossLedger
from stepscope.trace.tables import conform, dtype

#: Spans of host, tasks, communications and their parts follow each other in this order.
_SPANS = ("host", "tasks", "communications", "communication_tasks")
_TIMES = ("ts", "dur")
_MOST = 1 << 62
#: Added to the number of an operator, so that it is no connection's.
_OPERATOR = 1 << 40
_TASK_COLUMNS = {
    "operation": "op_type",
    "core": "core",
    "state": "state",
    "blocks": "blocks",
    "mix_blocks": "mix_blocks",
    "reduced_precision": "hf32",
    "input_shapes": "input_shapes",
    "input_dtypes": "input_dtypes",
    "input_formats": "input_formats",
    "output_shapes": "output_shapes",
    "output_dtypes": "output_dtypes",
    "output_formats": "output_formats",
    "attributes": "attributes",
    "wait": "gap",
    "step": "step",
    "task": "task",
    "context": "context",
    "batch": "batch",
    "model": "model",
}


def build(frames: Frames, facts: Facts, rank: int | None, ledger: LossLedger) -> dict[str, pl.DataFrame]:
    """Return the tables of a part.

    Args:
        frames: What the capture says.
        facts: Host, process and groups.
        rank: Rank of the process; None where the capture does not say.
        ledger: Counts rows whose times cannot be.
    """
    return _Part(_sound(frames, ledger), facts, rank).tables()


def _sound(frames: Frames, ledger: LossLedger) -> Frames:
    """Return frames in which every span has a time: those without are given up, with what belongs to them."""
    result = dict(frames)
    for name in _SPANS:
        frame = result[name]
        ts, dur = pl.col("ts"), pl.col("dur")
        good = ts.is_between(0, _MOST) & dur.is_between(0, _MOST)
        if frame.select(good.fill_null(value=False).all()).item():
            continue
        ledger.add("event_negative_duration", frame.filter((dur < 0) & ts.is_not_null()).height)
        ledger.add(
            "event_bad_time", frame.filter(~good.fill_null(value=False) & ~(dur < 0).fill_null(value=False)).height
        )
        kept = frame.with_row_index("old").filter(good)
        moved = kept.select(pl.col("old").cast(pl.Int64), pl.int_range(pl.len(), dtype=pl.Int64).alias("new"))
        result[name] = kept.drop("old")
        _renumber(result, name, moved)
    return result


#: Frame → the frames and columns that name its rows, and whether a row without it still means something.
_NAMED_BY = {
    "tasks": (("task_counters", "row", False),),
    "communications": (("communication_tasks", "row", True), ("bandwidths", "row", True)),
}


def _renumber(frames: Frames, name: str, moved: pl.DataFrame) -> None:
    """Move the numbers of a frame's rows wherever they stand."""
    numbers = dict(moved.iter_rows())
    for other, column, alone in _NAMED_BY.get(name, ()):
        frame = frames[other].with_columns(pl.col(column).replace_strict(numbers, default=None, return_dtype=pl.Int64))
        frames[other] = frame if alone else frame.drop_nulls(column)
    flows = frames["flows"]
    to = pl.when(pl.col("frame") == name).then(
        pl.col("to").replace_strict(numbers, default=None, return_dtype=pl.Int64)
    )
    begin = pl.col("from").replace_strict(numbers, default=None, return_dtype=pl.Int64) if name == "host" else "from"
    frames["flows"] = flows.with_columns(begin, to.otherwise("to").alias("to")).drop_nulls(["from", "to"])


@dataclass
class _Part:
    frames: Frames
    facts: Facts
    rank: int | None

    def __post_init__(self) -> None:
        self.tracks = Tracks(self.rank or 0, self.facts.host)
        ends = [0]
        for name in _SPANS:
            ends.append(ends[-1] + self.frames[name].height)
        self.first = dict(zip(_SPANS, ends, strict=False))
        self.operator_of = {name: self._operators(name) for name in ("tasks", "communications")}

    def tables(self) -> dict[str, pl.DataFrame]:
        """Return the tables of the part."""
        host, tasks, lanes, planes = self._host(), self._tasks(), self._communications(), self._planes()
        spans = pl.concat([host, tasks, lanes, planes], how="diagonal_relaxed")
        named = samples.Named(self.frames, host)
        return {
            "spans": spans,
            "kernels": self._kernels(tasks),
            "tasks": self._details(tasks),
            "operators": self._operator_details(),
            "kernel_counters": self._counters(),
            "collectives": self._collectives(),
            "transfers": self._transfers(),
            "links": self._links(),
            "counters": samples.counters(self.frames, self.tracks),
            "allocations": samples.allocations(self.frames, named),
            "static_memory": samples.static_memory(self.frames),
            "pipeline": samples.operations(self.frames, self.tracks),
            "stacks": self.frames["stacks"],
            "steps": self._steps(),
            "arrows": self._arrows(spans),
            "arguments": self._arguments(),
            "metadata": self.frames["facts"].unique("key", keep="first", maintain_order=True),
            "tracks": self.tracks.frame(),
        }

    def _operators(self, name: str) -> pl.Series:
        """Return for each task the number of the operator that an arrow to it comes from; null for none."""
        flows = self.frames["flows"].filter((pl.col("frame") == name) & (pl.col("sort") == "operator"))
        first = flows.unique("to", keep="first").select(row="to", operator=pl.col("from") + _OPERATOR)
        rows = pl.DataFrame({"row": range(self.frames[name].height)}, schema={"row": pl.Int64})
        return rows.join(first, on="row", how="left", maintain_order="left")["operator"].alias("external")

    def _host(self) -> pl.DataFrame:
        """Return the spans of host threads."""
        host = self.frames["host"]
        launching = self.frames["flows"].filter(pl.col("sort") == "operator")["from"].unique()
        row = pl.int_range(pl.len(), dtype=pl.Int64)
        layer = pl.col("level").cast(pl.String).replace_strict(LAYERS, default=None, return_dtype=pl.String)
        name = pl.col("name").cast(pl.String)
        is_call = pl.col("sort") == "api"
        spans = host.select(
            *_TIMES,
            name=pl.when(is_call & layer.is_not_null()).then(pl.format("{}@{}", layer, name)).otherwise(name),
            kind=pl.col("sort")
            .cast(pl.String)
            .replace_strict(KIND_OF_SORT, default="operator", return_dtype=pl.String),
            correlation=pl.when(is_call).then("connection"),
            sequence="sequence",
            forward_thread="forward_thread",
            external=pl.when(row.is_in(launching.implode())).then(row + _OPERATOR),
        )
        places = host.select(
            process=pl.coalesce("process", pl.lit(self.facts.process, pl.Int64)),
            thread="thread",
            kind=pl.lit("thread"),
            device=pl.lit("cpu"),
            name=pl.format("thread {}", pl.col("thread").fill_null(0)),
        )
        return spans.with_columns(self.tracks.numbered(places)).with_columns(pl.col("name").fill_null("unknown"))

    def _tasks(self) -> pl.DataFrame:
        """Return the spans of streams, and of ranges on them."""
        tasks = self.frames["tasks"]
        is_range = pl.col("type").cast(pl.String).is_in(RANGES).fill_null(value=False)
        places = tasks.select(
            kind=pl.when(is_range).then(pl.lit("annotation")).otherwise(pl.lit("stream")),
            device=npu(),
            stream="stream",
            name=pl.when(is_range & pl.col("stream").is_null())
            .then(pl.lit("Step Trace"))
            .otherwise(pl.format("Stream {}", pl.col("stream").fill_null(0))),
        )
        kinds = tasks.with_columns(kind=task_kinds(tasks))
        return kinds.select(
            *_TIMES,
            name=pl.coalesce(pl.col("name").cast(pl.String), pl.col("type").cast(pl.String), pl.lit("unknown")),
            kind=pl.when(is_range).then(pl.lit("annotation")).otherwise("kind"),
            correlation="connection",
        ).with_columns(self.tracks.numbered(places), self.operator_of["tasks"])

    def _communications(self) -> pl.DataFrame:
        frame = self.frames["communications"]
        places = frame.select(
            kind=pl.lit("stream"),
            device=npu(),
            name=pl.format("Group {} Communication", pl.col("lane").fill_null(0)),
        )
        return frame.select(
            *_TIMES,
            name=pl.col("name").cast(pl.String).fill_null("unknown"),
            kind=pl.lit("collective"),
            correlation="connection",
        ).with_columns(self.tracks.numbered(places), self.operator_of["communications"])

    def _planes(self) -> pl.DataFrame:
        """Return the parts of communication; their lanes are no streams, as what they do is counted already."""
        frame = self.frames["communication_tasks"]
        places = frame.select(
            kind=pl.lit("other"),
            device=npu(),
            name=pl.format("Group {} Plane {}", pl.col("lane").fill_null(0), pl.col("plane").fill_null(0)),
        )
        waits = pl.col("name").cast(pl.String).str.contains("(?i)notify|wait|barrier").fill_null(value=False)
        return frame.select(
            *_TIMES,
            name=pl.col("name").cast(pl.String).fill_null("unknown"),
            kind=pl.when(waits).then(pl.lit("sync")).otherwise(pl.lit("collective")),
        ).with_columns(self.tracks.numbered(places))

    def _span(self, name: str) -> pl.Expr:
        return (pl.int_range(pl.len(), dtype=pl.Int64) + self.first[name]).alias("span")

    def _kernels(self, spans: pl.DataFrame) -> pl.DataFrame:
        """Return the table ``kernels``: kernels, copies and fills on streams, and communication."""
        tasks = self.frames["tasks"]
        work = tasks.with_columns(self._span("tasks"), kind=spans["kind"]).filter(
            pl.col("kind").is_in(["kernel", "memcpy", "memset"])
        )
        blocks = pl.when(pl.col("blocks") > 0).then(pl.concat_list("blocks", pl.lit(1, pl.Int64), pl.lit(1, pl.Int64)))
        device = pl.col("device").fill_null(0)
        grid = pl.coalesce(_sizes("grid"), blocks)
        of_tasks = work.select("span", "stream", device=device, grid=grid, block=_sizes("block"), bytes="bytes")
        of_lanes = self.frames["communications"].select(self._span("communications"), device=device)
        return conform("kernels", pl.concat([of_tasks, of_lanes], how="diagonal_relaxed"))

    def _details(self, spans: pl.DataFrame) -> pl.DataFrame:
        """Return the table ``tasks``."""
        tasks = self.frames["tasks"].with_columns(self._span("tasks"), kind=spans["kind"])
        kind = pl.coalesce(pl.col("type").cast(pl.String), pl.lit("UNKNOWN"))
        own = tasks.filter(pl.col("kind") != "annotation").select(
            "span", type=kind, **{name: pl.col(column) for name, column in _TASK_COLUMNS.items()}
        )
        said = pl.col("operation").cast(pl.String)
        lanes = self.frames["communications"].select(
            self._span("communications"),
            type=pl.lit("HCCL"),
            operation=pl.coalesce(said, pl.col("name").cast(pl.String).str.extract(r"^(hcom_[A-Za-z]+_?)", 1)),
            core=pl.lit("HCCL"),
            model="model",
            wait="gap",
            step="step",
        )
        planes = self.frames["communication_tasks"].select(
            self._span("communication_tasks"),
            "stream",
            "task",
            "context",
            type=pl.col("name").cast(pl.String).fill_null("UNKNOWN"),
        )
        rows = [_plain(conform("tasks", one)) for one in (own, lanes, planes)]
        return conform("tasks", pl.concat(rows))

    def _operator_details(self) -> pl.DataFrame:
        host = self.frames["host"].with_columns(self._span("host"))
        chosen = host.filter(pl.col("sort").cast(pl.String).is_in(["operator", "data", "step"]))
        return conform(
            "operators",
            chosen.select(
                "span",
                "stack",
                "module",
                "forward_thread",
                shapes=_made(chosen["shapes"], shapes_json),
                dtypes=_made(chosen["dtypes"], texts_json),
            ),
        )

    def _counters(self) -> pl.DataFrame:
        rows = self.frames["task_counters"].drop_nulls()
        inside = rows.filter(pl.col("row").is_between(0, self.frames["tasks"].height - 1))
        return inside.select(span=pl.col("row") + self.first["tasks"], name="name", value="value", unit="unit")

    def _collectives(self) -> pl.DataFrame:
        frame = self.frames["communications"]
        group = pl.col("group").cast(pl.String)
        groups = {key: one.get("group_name") or key for key, one in self.facts.groups.items()}
        ranks = {
            key: json.dumps(one["global_ranks"])
            for key, one in self.facts.groups.items()
            if isinstance(one.get("global_ranks"), list)
        }
        whole = self.frames["bandwidths"].filter(pl.col("packet").is_null() & pl.col("row").is_not_null())
        # SDMA is the engine that moves what HCCS or PCIE carries.
        carried = whole.sort((pl.col("transport") == "SDMA").cast(pl.Int8), -pl.col("bytes").fill_null(0))
        transport = carried.unique("row", keep="first", maintain_order=True).select("row", "transport")
        numbered = frame.with_row_index("row").with_columns(pl.col("row").cast(pl.Int64))
        joined = numbered.join(transport, on="row", how="left", maintain_order="left")
        name = pl.col("name").cast(pl.String).fill_null("unknown")
        operations = _made(joined.select(name)["name"].cast(pl.Categorical()), operation)
        return conform(
            "collectives",
            joined.select(
                self._span("communications"),
                operation=operations,
                group=group.replace(groups) if groups else group,
                group_ranks=group.replace_strict(ranks, default=None, return_dtype=pl.String),
                group_size=group.replace_strict(
                    {key: len(json.loads(one)) for key, one in ranks.items()}, default=None
                ),
                dtype=pl.col("dtype"),
                bytes_in=pl.col("count") * bytes_of(pl.col("dtype")),
                algorithm="algorithm",
                transport="transport",
                transit="transit",
                wait="wait",
                synchronisation="synchronisation",
                sequence=name.str.extract(r"__\d+_(\d{1,9})(?:_\d+)?$", 1).cast(pl.Int64, strict=False),
            ),
        )

    def _transfers(self) -> pl.DataFrame:
        of_operations = self.frames["bandwidths"].select(
            "step",
            "packet",
            "count",
            "bytes",
            "bandwidth",
            "large",
            span=pl.col("row") + self.first["communications"],
            transport=pl.col("transport").cast(pl.String).fill_null("OTHER"),
            transit="time",
        )
        planes = self.frames["communication_tasks"].with_columns(self._span("communication_tasks"))
        moving = planes.filter(pl.col("bytes").is_not_null() | pl.col("bandwidth").is_not_null()).select(
            "span",
            "source",
            "destination",
            "bytes",
            "bandwidth",
            transport=pl.col("transport").cast(pl.String).fill_null("OTHER"),
            link=pl.col("link").cast(pl.String),
            transit="dur",
        )
        return conform("transfers", pl.concat([of_operations, moving], how="diagonal_relaxed"))

    def _links(self) -> pl.DataFrame:
        frame = self.frames["matrix"]
        texts = [pl.col(name).cast(pl.String).fill_null("") for name in ("operation", "place", "group")]
        told = frame.with_columns(*texts, pl.col("point_to_point").fill_null(value=False))
        return conform("links", told.rename({"time": "transit"}))

    def _steps(self) -> pl.DataFrame:
        """Return the steps as they are marked; without marks, from the first to the last task counted to each."""
        marked = self.frames["steps"].drop_nulls().filter(pl.col("dur") >= 0)
        source = dtype("enum:step_source")
        if marked.height:
            return marked.with_columns(source=pl.lit("declared", source), epoch=pl.lit(None, pl.Int32))
        both = [self.frames[name].select(*_TIMES, "step") for name in ("tasks", "communications")]
        counted = pl.concat(both).drop_nulls("step")
        end = (pl.col("ts") + pl.col("dur")).max()
        found = counted.group_by(number="step").agg(pl.col("ts").min(), (end - pl.col("ts").min()).alias("dur"))
        return found.sort("number").with_columns(source=pl.lit("inferred", source), epoch=pl.lit(None, pl.Int32))

    def _arrows(self, spans: pl.DataFrame) -> pl.DataFrame:
        """Return arrows but those to what an operator launched, which its number tells."""
        kind = {"forward_backward": "forward_backward", "queue": "other", "range": "other", "launch": "launch"}
        drawn = self.frames["flows"].filter(pl.col("sort").cast(pl.String).is_in(list(kind)))
        first = pl.col("frame").cast(pl.String).replace_strict(self.first, default=0, return_dtype=pl.Int64)
        ends = drawn.with_columns(pl.col("to") + first)
        places = spans.select("track", "ts")
        begin, end = places[ends["from"]], places[ends["to"]]
        return pl.DataFrame(
            {
                "kind": drawn["sort"].cast(pl.String).replace_strict(kind, return_dtype=pl.String),
                "from_track": begin["track"],
                "from_ts": begin["ts"],
                "to_track": end["track"],
                "to_ts": end["ts"],
            }
        )

    def _arguments(self) -> pl.DataFrame:
        """Return what has no column of its own: domains of ranges, directions of copies, notifications."""
        said = (
            ("host", "domain", "domain"),
            ("tasks", "direction", "direction"),
            ("tasks", "operator", "operator"),
            ("communication_tasks", "notify", "notification"),
            ("communication_tasks", "dtype", "data type"),
            ("communication_tasks", "rdma", "rdma type"),
            ("communication_tasks", "estimated", "estimated duration (ns)"),
        )
        parts = [pl.DataFrame(schema=dict.fromkeys(("span", "key", "value"), pl.String) | {"span": pl.Int64})]
        for frame, column, key in said:
            if self.frames[frame].get_column(column).null_count() == self.frames[frame].height:
                continue
            rows = self.frames[frame].select(self._span(frame), pl.col(column)).drop_nulls(column)
            value = rows[column].cast(pl.String) if rows[column].dtype == pl.Int64 else _made(rows[column], json.dumps)
            parts.append(rows.select("span", key=pl.lit(key)).with_columns(value.cast(pl.String).alias("value")))
        return pl.concat(parts)


def _sizes(column: str) -> pl.Expr:
    """Return the three numbers of ``8,1,1``; null for other texts."""
    text = pl.col(column).cast(pl.String)
    numbers = text.str.split(",").cast(pl.List(pl.Int64), strict=False)
    return pl.when(text.str.contains(r"^\d{1,9},\d{1,9},\d{1,9}$")).then(numbers)


def _plain(frame: pl.DataFrame) -> pl.DataFrame:
    return frame.with_columns(pl.col(pl.Categorical).cast(pl.String))


def _made(column: pl.Series, make):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
    """Return what is made of each distinct text; null stays."""
    if column.null_count() == len(column):
        return pl.Series(column.name, [None], dtype=pl.String).new_from_index(0, len(column))
    rows = column.alias("text").to_frame()
    distinct = rows["text"].unique(maintain_order=True)
    made = [None if text is None else make(text) for text in distinct.cast(pl.String).to_list()]
    known = pl.DataFrame({"text": distinct, "made": pl.Series(made, dtype=pl.String)})
    found = rows.join(known, on="text", how="left", nulls_equal=True, maintain_order="left")
    return found["made"].alias(column.name)


def shapes_json(text: str) -> str:
    """Return shapes as JSON: ``32,3;;64`` → ``[[32,3],[],[64]]``; what is no number is kept as text."""
    shapes = [[_whole(part) for part in one.split(",") if part.strip()] for one in text.split(";")]
    return json.dumps(shapes, separators=(",", ":"))


def texts_json(text: str) -> str:
    """Return texts separated by semicolons as a JSON list."""
    return json.dumps([one.strip() for one in text.split(";")])


def _whole(text: str) -> int | str:
    stripped = text.strip()
    return int(stripped) if stripped.lstrip("-").isdecimal() and len(stripped) < 19 else stripped
