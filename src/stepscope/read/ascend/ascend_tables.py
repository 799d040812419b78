"""Frames of an Ascend capture → tables of one part."""

from __future__ import annotations

import json
import re
from functools import cached_property

import numpy as np
import polars as pl

from stepscope.read.ascend import ascend_samples
from stepscope.read.ascend.ascend_facts import AscendFacts
from stepscope.read.ascend.ascend_frames import Frames
from stepscope.read.ascend.ascend_kinds import KIND_OF_SORT, call_name, npu, operation, plane_kind, task_kinds
from stepscope.read.common.dense import first_places, or_null, places
from stepscope.read.common.distinct import either, filled, of_each, same, where, without_nulls
from stepscope.read.common.nesting import looked_up
from stepscope.read.common.part_builder import PartBuilder, TrackRow
from stepscope.trace.ascend_columns import BYTES_OF_TYPE
from stepscope.trace.losses import LossLedger
from stepscope.trace.tables import dtype, with_series

#: The frames with spans, in the order of the spans.
SPANS = ("host", "tasks", "communications", "communication_tasks")
_TIMES = ("ts", "dur")
_MOST = 1 << 62
_INT, _SIZES, _KIND = pl.Int64(), pl.List(pl.Int64()), dtype("enum:kind")
#: Three sizes; the name of an operation in that of its call; the number of an operation within its group.
_THREE, _HCOM = re.compile(r"[0-9]{1,9},[0-9]{1,9},[0-9]{1,9}"), re.compile(r"hcom_[A-Za-z]+_?")
_NUMBERED = re.compile(r"__\d+_([0-9]{1,9})(?:_\d+)?\Z")
#: ``sort`` of the frame ``flows`` → kind of the flow.
_KIND_OF_FLOW = {"forward_backward": "forward_backward", "queue": "other", "range": "other", "launch": "launch"}
#: Added to the number of an operator, so that it differs from those of connections.
_OPERATOR = 1 << 40
#: Column of the table ``tasks`` → that of the frame.
_TASK_COLUMNS = {
    **{"operation": "op_type", "reduced_precision": "hf32", "wait": "gap"},
    **{one: one for one in ("core", "state", "blocks", "mix_blocks", "attributes", "step", "task", "context", "batch")},
    **{f"{way}_{what}": f"{way}_{what}" for way in ("input", "output") for what in ("shapes", "dtypes", "formats")},
    "model": "model",
}


def build(
    frames: Frames, facts: AscendFacts, rank: int | None, ledger: LossLedger, *, brief: bool = False
) -> PartBuilder:
    """Return a part with the tables of a capture.

    Args:
        frames: What the capture says.
        facts: Host, process and groups.
        rank: Rank of the process; None if the capture does not give it.
        ledger: Counts rows with impossible times, and impossible numbers of devices and steps.
        brief: Leave out what the analysis of a job does not need.
    """
    part = _AscendPart(_sound(_small(frames, ledger), ledger), facts, rank, ledger)
    return part.linked() if brief else part.built()


#: Columns that have 32 bits in the tables.
_SMALL = ("device", "step", "number")


def _small(frames: Frames, ledger: LossLedger) -> Frames:
    """Return frames in which a number that does not fit its column of a table is null."""
    result = dict(frames)
    for name, frame in frames.items():
        for column in (frame[one] for one in _SMALL if one in frame.columns):
            fits = column.is_between(-(1 << 31), (1 << 31) - 1)
            if not fits.all():
                ledger.add("value_unreadable", int((~fits).sum()))
                result[name] = result[name].with_columns(where(fits, column))
    return result


def _sound(frames: Frames, ledger: LossLedger) -> Frames:
    """Return frames in which every span has a time: those without are removed, with the rows that belong to them."""
    result = dict(frames)
    for name in SPANS:
        frame = result[name]
        if all(_all_sound(frame[column]) for column in _TIMES):
            continue
        ts, dur = pl.col("ts"), pl.col("dur")
        good = ts.is_between(0, _MOST) & dur.is_between(0, _MOST)
        ledger.add("event_negative_duration", frame.filter((dur < 0) & ts.is_not_null()).height)
        ledger.add(
            "event_bad_time", frame.filter(~good.fill_null(value=False) & ~(dur < 0).fill_null(value=False)).height
        )
        kept = frame.with_row_index("old").filter(good)
        moved = kept.select(pl.col("old").cast(pl.Int64), pl.int_range(pl.len(), dtype=pl.Int64).alias("new"))
        result[name] = kept.drop("old")
        _renumber(result, name, moved)
    return result


def _all_sound(times: pl.Series) -> bool:
    return not times.null_count() and bool(((times >= 0) & (times <= _MOST)).all())


#: Frame → the frames and columns that name its rows, and whether a row without it still means something.
_NAMED_BY = {
    "tasks": (("task_counters", "row", False),),
    "communications": (("communication_tasks", "row", True), ("bandwidths", "row", True)),
}


def _renumber(frames: Frames, name: str, moved: pl.DataFrame) -> None:
    """Renumber the rows of a frame in all frames that name them."""
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


class _AscendPart:
    def __init__(self, frames: Frames, facts: AscendFacts, rank: int | None, ledger: LossLedger) -> None:
        self.frames = frames
        self.ledger = ledger
        self.facts = facts
        self.part = PartBuilder(rank or 0, facts.host)
        #: Number of the first span of each frame.
        self.first: dict[str, int] = {}

    def built(self) -> PartBuilder:
        """Return the part with all tables."""
        self.linked()
        self._add_kernel_counters()
        self._add_transfers()
        self._add_links()
        ascend_samples.add(self.part, self.frames, self._host)
        self.part.add("stacks", self.frames["stacks"])
        self._add_arguments()
        return self.part

    def linked(self) -> PartBuilder:
        """Return the part with spans, steps, arrows and facts, and the tables that belong to spans."""
        kind = task_kinds(self.frames["tasks"])
        spans = (self._host, self._tasks(kind), self._communications(), self._planes())
        self.first = {name: self.part.add_spans(frame) for name, frame in zip(SPANS, spans, strict=True)}
        self._add_kernels(kind)
        self._add_tasks(kind)
        self._add_operators()
        self._add_collectives()
        self._add_steps()
        self._add_arrows()
        self.part.add("metadata", self.frames["facts"].unique("key", keep="first", maintain_order=True))
        return self.part

    def _operators(self, name: str) -> pl.Series:
        """Return for each task the number of the operator that an arrow to it comes from; null for none."""
        flows = self.frames["flows"]
        drawn = (flows["sort"] == "operator") & (flows["frame"] == name)
        first = first_places(flows["to"].filter(drawn).to_numpy(), np.arange(self.frames[name].height))
        return or_null("external", looked_up(flows["from"].filter(drawn).to_numpy() + _OPERATOR, first))

    @cached_property
    def _host(self) -> pl.DataFrame:
        """Return the spans of host threads."""
        host = self.frames["host"]
        launching = np.full(len(host), -1)
        rows = self.frames["flows"]["from"].filter(self.frames["flows"]["sort"] == "operator").to_numpy()
        launching[rows] = rows + _OPERATOR
        return pl.DataFrame(
            [
                *(host[name] for name in _TIMES),
                of_each(call_name, host["name"], host["sort"], host["level"]),
                of_each(lambda one: KIND_OF_SORT.get(one, "operator"), host["sort"], dtype=_KIND).alias("kind"),
                where(host["sort"] == "api", host["connection"]).alias("correlation"),
                host["sequence"],
                host["forward_thread"],
                or_null("external", launching),
                self.part.tracks.numbered(_thread, filled(host["process"], self.facts.process), host["thread"]),
            ]
        )

    def _tasks(self, kind: pl.Series) -> pl.DataFrame:
        """Return the spans of streams, and of ranges on them."""
        tasks = self.frames["tasks"]
        unknown = tasks["type"].filter(kind == "other").fill_null("UNKNOWN")
        for type_, count in zip(*unknown.value_counts(), strict=True):
            self.ledger.add("kind_unknown", count, f"Tasks of the type {type_}.")
        return pl.DataFrame(
            [
                *(tasks[name] for name in _TIMES),
                filled(either(tasks["name"], tasks["type"]), "unknown"),
                kind,
                tasks["connection"].alias("correlation"),
                self._operators("tasks"),
                self.part.tracks.numbered(_stream, kind, tasks["device"], tasks["stream"]),
            ]
        )

    def _communications(self) -> pl.DataFrame:
        """Return the spans of communication operations."""
        frame = self.frames["communications"]
        return pl.DataFrame(
            [
                *(frame[name] for name in _TIMES),
                filled(frame["name"], "unknown"),
                same("kind", "collective", len(frame), _KIND),
                frame["connection"].alias("correlation"),
                self._operators("communications"),
                self.part.tracks.numbered(_group, frame["device"], frame["lane"]),
            ]
        )

    def _planes(self) -> pl.DataFrame:
        """Return the parts of communication; their lanes are not streams, as their operation is counted."""
        frame = self.frames["communication_tasks"]
        return pl.DataFrame(
            [
                *(frame[name] for name in _TIMES),
                filled(frame["name"], "unknown"),
                of_each(plane_kind, frame["name"], dtype=_KIND).alias("kind"),
                self.part.tracks.numbered(_plane, frame["device"], frame["lane"], frame["plane"]),
            ]
        )

    def _span(self, name: str) -> pl.Series:
        """Return the numbers of the spans of a frame."""
        first = self.first[name]
        return pl.Series("span", np.arange(first, first + self.frames[name].height))

    def _add_kernels(self, kind: pl.Series) -> None:
        """Add kernels, copies and fills on streams, and communication."""
        tasks, lanes = self.frames["tasks"], self.frames["communications"]
        works = of_each(lambda one: one in ("kernel", "memcpy", "memset", "other"), kind, dtype=pl.Boolean())
        columns = ("stream", "device", "grid", "block", "blocks", "bytes")
        work = pl.DataFrame([one.filter(works) for one in (self._span("tasks"), *(tasks[name] for name in columns))])
        of_tasks = [
            *(work[name] for name in ("span", "stream", "bytes", "device")),
            of_each(_grid, work["grid"], work["blocks"], dtype=_SIZES),
            of_each(_sizes, work["block"], dtype=_SIZES),
        ]
        self.part.add("kernels", pl.DataFrame(of_tasks))
        self.part.add("kernels", pl.DataFrame([self._span("communications"), lanes["device"]]))

    def _add_tasks(self, kind: pl.Series) -> None:
        tasks, lanes, planes = (self.frames[name] for name in ("tasks", "communications", "communication_tasks"))
        columns = [self._span("tasks"), filled(tasks["type"], "UNKNOWN")]
        columns += [tasks[column].alias(name) for name, column in _TASK_COLUMNS.items()]
        of_lanes = [
            self._span("communications"),
            same("type", "HCCL", len(lanes)),
            either(lanes["operation"], of_each(_operation, lanes["name"])),
            filled(lanes["core"], "HCCL"),
            lanes["model"],
            lanes["gap"].alias("wait"),
            lanes["step"],
        ]
        of_planes = [
            self._span("communication_tasks"),
            *(planes[name] for name in ("stream", "task", "context")),
            filled(planes["name"], "UNKNOWN").alias("type"),
        ]
        for rows in ([column.filter(kind != "annotation") for column in columns], of_lanes, of_planes):
            self.part.add("tasks", pl.DataFrame(rows))

    def _add_operators(self) -> None:
        host = self.frames["host"]
        chosen = of_each(lambda sort: sort in ("operator", "data", "step"), host["sort"], dtype=pl.Boolean())
        columns = [
            self._span("host"),
            *(host[name] for name in ("stack", "module", "forward_thread")),
            of_each(shapes_json, host["shapes"]),
            of_each(texts_json, host["dtypes"]),
        ]
        self.part.add("operators", pl.DataFrame([column.filter(chosen) for column in columns]))

    def _add_kernel_counters(self) -> None:
        rows = without_nulls(self.frames["task_counters"], self.frames["task_counters"].columns)
        inside = (rows["row"] >= 0) & (rows["row"] < self.frames["tasks"].height)
        columns = [(rows["row"] + self.first["tasks"]).alias("span"), rows["name"], rows["value"], rows["unit"]]
        self.part.add("kernel_counters", pl.DataFrame([column.filter(inside) for column in columns]))

    def _add_collectives(self) -> None:
        frame = self.frames["communications"]
        groups = {key: str(one.get("group_name") or key) for key, one in self.facts.groups.items()}
        ranks = {
            key: one["global_ranks"]
            for key, one in self.facts.groups.items()
            if isinstance(one.get("global_ranks"), list)
        }
        same_columns = ("dtype", "algorithm", "transit", "wait", "synchronisation")
        name, group = filled(frame["name"], "unknown"), frame["group"]
        made = [
            self._span("communications"),
            of_each(operation, name).alias("operation"),
            of_each(lambda one: groups.get(one, one), group),
            of_each(lambda one: json.dumps(ranks[one]) if one in ranks else None, group).alias("group_ranks"),
            of_each(lambda one: len(ranks[one]) if one in ranks else None, group, dtype=_INT).alias("group_size"),
            (frame["count"] * of_each(BYTES_OF_TYPE.get, frame["dtype"], dtype=_INT)).alias("bytes_in"),
            self._transport(),
            of_each(_sequence, name, dtype=_INT).alias("sequence"),
            *(frame[column] for column in same_columns),
        ]
        self.part.add("collectives", pl.DataFrame(made))

    def _transport(self) -> pl.Series:
        """Return what carried each communication operation: of several what moved most."""
        sums = self.frames["bandwidths"]
        moved = sums.filter(sums["packet"].is_null() & sums["row"].is_not_null())
        # SDMA is the engine that moves what HCCS or PCIE carries.
        carried = moved.sort((pl.col("transport") == "SDMA").cast(pl.Int8), -pl.col("bytes").fill_null(0))
        place = first_places(carried["row"].to_numpy(), np.arange(self.frames["communications"].height))
        return carried["transport"][places(place)]

    def _add_transfers(self) -> None:
        sums, planes = self.frames["bandwidths"], self.frames["communication_tasks"]
        of_operations = [
            *(sums[name] for name in ("step", "packet", "count", "bytes", "bandwidth", "large")),
            (sums["row"] + self.first["communications"]).alias("span"),
            filled(sums["transport"], "OTHER"),
            sums["time"].alias("transit"),
        ]
        of_planes = [
            self._span("communication_tasks"),
            *(planes[name] for name in ("source", "destination", "bytes", "bandwidth", "link")),
            filled(planes["transport"], "OTHER"),
            planes["dur"].alias("transit"),
        ]
        moving = planes["bytes"].is_not_null() | planes["bandwidth"].is_not_null()
        self.part.add("transfers", pl.DataFrame(of_operations))
        self.part.add("transfers", pl.DataFrame([column.filter(moving) for column in of_planes]))

    def _add_links(self) -> None:
        frame = self.frames["matrix"].rename({"time": "transit"})
        texts = [filled(frame[name], "") for name in ("operation", "place", "group")]
        self.part.add("links", with_series(frame, [*texts, filled(frame["point_to_point"], value=False)]))

    def _add_steps(self) -> None:
        """Add the marked steps; without marks, a step lasts from the first to the last work that has its number.

        Communication alone does not say how long a step is: only numbers that tasks have count.
        """
        marked = self.frames["steps"].drop_nulls().filter(pl.col("dur") >= 0)
        if marked.height:
            self.part.add_steps(self._with_events(marked), "declared")
            return
        both = [self.frames[name].select(*_TIMES, "step") for name in ("tasks", "communications")]
        numbers = both[0]["step"].drop_nulls().unique()
        counted = pl.concat(both).filter(pl.col("step").is_in(numbers.implode()))
        end = (pl.col("ts") + pl.col("dur")).max()
        found = counted.group_by(number="step").agg(pl.col("ts").min(), (end - pl.col("ts").min()).alias("dur"))
        self.part.add_steps(found.sort("number"), "inferred")

    def _with_events(self, steps: pl.DataFrame) -> pl.DataFrame:
        """Leave out the steps behind the last event, and the one in which a file was cut.

        A step without any event behind it is the last of the recording, and whole.
        """
        ends = [(self.frames[name]["ts"] + self.frames[name]["dur"]).max() for name in ("host", "tasks")]
        last = max((end for end in ends if isinstance(end, int)), default=None)
        if last is None or not (steps["ts"] >= last).any():
            return steps
        whole = steps.filter(pl.col("ts") + pl.col("dur") <= last)
        self.ledger.add("steps_without_events", steps.height - whole.height)
        return whole

    def _add_arrows(self) -> None:
        """Add the arrows except those from operators to tasks, which follow from the operator's number."""
        flows, spans = self.frames["flows"], self.part.piece("spans")
        others = flows["sort"] != "operator"
        sort, frame, begin, end = (flows[name].filter(others) for name in ("sort", "frame", "from", "to"))
        end = end + of_each(lambda name: self.first.get(name, 0), frame, dtype=_INT)
        ends = {"from": begin.cast(pl.UInt32), "to": end.cast(pl.UInt32)}
        joined = {
            f"{side}_{column}": spans[column][place] for side, place in ends.items() for column in ("track", "ts")
        }
        self.part.add("arrows", {"kind": of_each(_KIND_OF_FLOW.get, sort, dtype=pl.String()), **joined})

    def _add_arguments(self) -> None:
        """Add values without a column of their own: domains of ranges, directions of copies, notifications."""
        said = (
            ("host", "domain", "domain"),
            ("tasks", "direction", "direction"),
            ("tasks", "operator", "operator"),
            ("communication_tasks", "notify", "notification"),
            ("communication_tasks", "dtype", "data type"),
            ("communication_tasks", "rdma", "rdma type"),
            ("communication_tasks", "estimated", "estimated duration (ns)"),
        )
        for frame, column, key in said:
            values = self.frames[frame][column]
            if values.null_count() == len(values):
                continue
            known = values.is_not_null()
            value = of_each(json.dumps, values.filter(known))
            rows = {"span": self._span(frame).filter(known), "key": same("key", key, len(value)), "value": value}
            self.part.add("arguments", rows)


def _thread(process: int | None, thread: int | None) -> TrackRow:
    return TrackRow("thread", "cpu", f"thread {thread or 0}", process, thread)


def _stream(kind: str, device: int | None, stream: int | None) -> TrackRow:
    is_range = kind == "annotation"
    name = "Step Trace" if is_range and stream is None else f"Stream {stream or 0}"
    return TrackRow("annotation" if is_range else "stream", npu(device), name, stream=stream)


def _group(device: int | None, lane: int | None) -> TrackRow:
    return TrackRow("stream", npu(device), f"Group {lane or 0} Communication")


def _plane(device: int | None, lane: int | None, plane: int | None) -> TrackRow:
    # The files of the lowest level do not say the planes.
    return TrackRow("other", npu(device), f"Group {lane or 0} {'Tasks' if plane is None else f'Plane {plane}'}")


def _sizes(text: str | None) -> list[int] | None:
    """Return the three numbers of ``8,1,1``; None for other texts."""
    return list(map(int, text.split(","))) if text is not None and _THREE.fullmatch(text) else None


def _grid(grid: str | None, blocks: int | None) -> list[int] | None:
    return _sizes(grid) or ([blocks, 1, 1] if blocks is not None and blocks > 0 else None)


def _operation(name: str | None) -> str | None:
    found = _HCOM.match(name or "")
    return found[0] if found else None


def _sequence(name: str) -> int | None:
    found = _NUMBERED.search(name)
    return int(found[1]) if found else None


def shapes_json(text: str | None) -> str | None:
    """Return shapes as JSON: ``32,3;;64`` → ``[[32,3],[],[64]]``; other parts stay text."""
    if text is None:
        return None
    shapes = [[_whole(part) for part in one.split(",") if part.strip()] for one in text.split(";")]
    return json.dumps(shapes, separators=(",", ":"))


def texts_json(text: str | None) -> str | None:
    """Return texts separated by semicolons as a JSON list."""
    return None if text is None else json.dumps([one.strip() for one in text.split(";")])


def _whole(text: str) -> int | str:
    stripped = text.strip()
    return int(stripped) if stripped.lstrip("-").isdecimal() and len(stripped) < 19 else stripped
