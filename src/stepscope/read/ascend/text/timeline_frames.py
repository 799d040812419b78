"""The events of ``trace_view.json`` and of CANN's timelines → frames.

The name of a process of the trace says what its events are. A slice of a plane may be among the tasks of a stream too;
it becomes one row, a part of its communication. What the profiler computed itself (overlap, scopes) is left out, as it
follows from the rest.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl

from stepscope.read.ascend import stated_sums
from stepscope.read.ascend.ascend_frames import FRAMES, Frames, complete, conform, numbered
from stepscope.read.ascend.ascend_kinds import parted
from stepscope.read.ascend.stated_sums import LANES
from stepscope.read.ascend.text.event_columns import BASE, COMPLETE, AscendEvents, chosen
from stepscope.read.common.torch_events import parse_frame
from stepscope.trace.ascend_columns import BYTES, COMMUNICATION_PROCESS, LAYERS, UNKNOWN_32, unit_of
from stepscope.trace.losses import LossLedger
from stepscope.trace.tables import FRAME

_OVERLAP = "overlap analysis"
#: Name of a process in the trace, in lower case → what its events are.
_SORT_OF_PROCESS = {
    "ascend hardware": "tasks",
    "hccl": "communications",
    "communication": "communications",
    "cann": "api",
    _OVERLAP: "derived",
    "scope layer": "derived",
    # The same work once more: by core, by pipeline of a core, and as instructions of the engine of communication.
    "block detail": "derived",
    "biu perf": "derived",
    "ccu": "derived",
    "step trace": "tasks",
}
_SORT_OF_CATEGORY = {
    "cpu_op": "operator",
    "python_function": "python",
    "enqueue": "enqueue",
    "dequeue": "dequeue",
    "user_annotation": "range",
    "mstx": "range",
    "msproftx": "range",
    "MsTx": "range",
    "GC": "garbage",
    "gc": "garbage",
}
#: Layer of CANN in front of the name of a call → its level.
_LEVELS = {layer.lower(): level for _, level, layer in LAYERS} | {"ge": "model", "communication": "hccl"}
#: Kind of events → the columns that are read.
_OF_TASKS = ("connection", "model", "task", "batch", "context", "stream", "bytes", "type", "direction")
_WANTED: dict[str, tuple[str, ...]] = {
    "host": (*BASE, "shapes", "dtypes", "stack", "sequence", "forward_thread", "correlation", "domain"),
    "api": (*BASE, "connection", "level"),
    "tasks": (*BASE, *_OF_TASKS, "iteration", "core_ms", "cycles"),
    "communications": tuple(name for name in COMPLETE if name not in ("shapes", "dtypes", "stack", "grid", "block")),
}
_STEP_CATEGORY = "Iteration Time"
#: Marks of CANN's step trace, which are ranges on a stream.
_STEP_TRACE = (_STEP_CATEGORY, "FP_BP Time", "Iteration Refresh", "Reduce")
_STEP = r"^(?:ProfilerStep#|Iteration )(\d+)$"
_DATA_LOADER = "enumerate(DataLoader)#"
_FLOW_SORT = {
    "async_npu": "operator",
    "async_task_queue": "queue",
    "fwdbwd": "forward_backward",
    "MsTx": "range",
    "async_mindspore": "queue",
}
#: Beginning of the names of the last level cache's counters.
_CACHE = "LLC "
_PLANE = re.compile(r"(?i)plane (\d{1,6})")
_GROUP = re.compile(r"(?i)group (\d{1,6})")
_DEVICE = re.compile(r"NPU[ _:]?(\d{1,4})")


@dataclass(frozen=True)
class _TraceOwners:
    """Which process of the trace holds which events.

    Attributes:
        sort: Process of the trace → kind of its events; the other processes are of the host.
        strange: Process of a device that stepscope does not know → its name, which is the type of its tasks.
        host: The host's process; None if the trace has none or several.
        device: Number of the device; None if the trace does not give it.
        devices: Process of the trace → number of its device, if the trace has several.
        overlap: Processes in which the profiler sums up what the device did.
        computing: Processes whose operators ran on the host itself.
    """

    sort: dict[int, str]
    strange: dict[int, str]
    host: int | None
    device: int | None
    devices: dict[int, int]
    overlap: list[int]
    computing: list[int]

    @property
    def device_of(self) -> pl.Expr:
        """The number of the device that an event's process belongs to."""
        return pl.col("process").replace_strict(self.devices, default=self.device, return_dtype=pl.Int64)


def frames(events: AscendEvents, device: int | None, ledger: LossLedger) -> Frames:
    """Return what a trace says.

    Args:
        events: Its events.
        device: Number of the device, if known; else the trace may give it.
        ledger: Counts losses.
    """
    owners = _owners_of(events, device)
    sort = pl.col("process").replace_strict(owners.sort, default="host", return_dtype=pl.String)
    found = events.complete.with_columns(sort=sort)
    of = {name: chosen(found.filter(pl.col("sort") == name), columns) for name, columns in _WANTED.items()}
    lanes = found.filter(pl.col("process").is_in(owners.overlap), pl.col("name").cast(pl.String).is_in([*LANES]))
    stated = stated_sums.of_lanes(lanes.select("dur", lane="name"), f"Overlap Analysis of {ledger.source}")
    # For large files each of these takes a large part of the memory.
    del found
    events.complete = events.complete.clear()
    is_step = of["tasks"]["category"].cast(pl.String).is_in(_STEP_TRACE).fill_null(value=False)
    host, stacks = _host(of["host"], of["api"], owners)
    communications, parts = _communications(of["communications"], events, owners)
    tasks = _tasks(of["tasks"], is_step, owners)
    tasks, of_streams = parted(pl.concat([_without_parts(tasks, parts)]), communications)
    made = {
        "host": host,
        "stacks": stacks,
        "tasks": tasks,
        "task_counters": _core_counters(tasks),
        "communications": communications,
        "communication_tasks": pl.concat([conform("communication_tasks", parts), of_streams]),
        "steps": _steps(host, of["tasks"].filter(is_step)),
        "counters": _counters(events, owners),
        "stated": stated,
        "facts": _words(events, owners),
    }
    made["flows"] = _flows(events, made, owners, ledger)
    return complete(made)


def _owners_of(events: AscendEvents, device: int | None) -> _TraceOwners:
    bare = {process: re.sub(r"\s*\(.*\)$", "", name).strip().lower() for process, name in events.processes.items()}
    known = {process: _SORT_OF_PROCESS[name] for process, name in bare.items() if name in _SORT_OF_PROCESS}
    of_device = [process for process, label in events.labels.items() if not label.startswith("CPU")]
    strange = {process: events.processes.get(process, "UNKNOWN") for process in of_device if process not in known}
    sort = {**known, **dict.fromkeys(strange, "tasks")}
    hosts = events.complete.filter(~pl.col("process").is_in(list(sort)))["process"].drop_nulls().unique().to_list()
    # CANN numbers the processes of its trace: the process of the host, five bits for the kind, five for the device.
    real = [process for process in hosts if process >> 10 not in hosts]
    host = real[0] if len(real) == 1 else None
    devices = {process: process & 31 for process in sort if host is not None and process >> 10 == host}
    labelled = {process: _DEVICE.fullmatch(label) for process, label in events.labels.items() if process in sort}
    devices |= {process: int(match[1]) for process, match in labelled.items() if match}
    of_works = {number for process, number in devices.items() if sort[process] in ("tasks", "communications")}
    if device is None and devices:
        device = min(of_works or devices.values())
    overlap = [process for process, name in bare.items() if name == _OVERLAP]
    computing = [process for process, name in bare.items() if name == "cpu op"]
    return _TraceOwners(sort, strange, host, device, devices if len(of_works) > 1 else {}, overlap, computing)


def _host(host: pl.DataFrame, api: pl.DataFrame, owners: _TraceOwners) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return the frame ``host`` of events of the host and calls of CANN, and the frame ``stacks``."""
    name = pl.col("name").cast(pl.String)
    given = pl.col("category").cast(pl.String).replace_strict(_SORT_OF_CATEGORY, default="operator")
    sort = (
        pl.when(name.str.contains(_STEP))
        .then(pl.lit("step"))
        .when(name.str.starts_with(_DATA_LOADER))
        .then(pl.lit("data"))
        .otherwise(given)
    )
    ours = host.with_columns(
        sort=sort,
        connection="correlation",
        sequence=pl.when(pl.col("sequence") >= 0).then("sequence"),
        forward_thread=pl.when(pl.col("forward_thread") > 0).then("forward_thread"),
        shapes=_one_line("shapes"),
        dtypes=_one_line("dtypes"),
        # MindSpore's operators on a CPU are work; those of a device's framework only ask for it.
        level=pl.when(pl.col("process").is_in(owners.computing)).then(pl.lit("cpu")).cast(pl.Categorical()),
    )
    stack, stacks = _stacks(ours["stack"])
    calls = _calls(api, host, owners)
    return pl.concat([ours.with_columns(stack), calls], how="diagonal_relaxed"), stacks


def _one_line(column: str) -> pl.Expr:
    """Return texts without the line ends that torch_npu writes after each separator."""
    return pl.col(column).cast(pl.String).str.replace_all(r"[\r\n]", "").cast(pl.Categorical())


def _calls(api: pl.DataFrame, host: pl.DataFrame, owners: _TraceOwners) -> pl.DataFrame:
    """Return calls of CANN, whose process is the host's on whose thread they ran."""
    split = pl.col("name").cast(pl.String).str.splitn("@", 2)
    layer = split.struct.field("field_0").str.to_lowercase().replace_strict(_LEVELS, default=None)
    named = split.struct.field("field_1")
    threads = host.select("thread", real="process").drop_nulls().unique("thread", keep="first")
    known = api.join(threads, on="thread", how="left", maintain_order="left")
    return known.select(
        "ts",
        "dur",
        "thread",
        "connection",
        process=pl.coalesce("real", pl.lit(owners.host, pl.Int64)),
        name=pl.when(layer.is_not_null() & named.is_not_null()).then(named).otherwise(pl.col("name").cast(pl.String)),
        sort=pl.lit("api"),
        level=pl.coalesce(pl.col("level").cast(pl.String).str.to_lowercase().replace("communication", "hccl"), layer),
    ).with_columns(pl.col("name", "level").cast(pl.Categorical()))


def _stacks(texts: pl.Series) -> tuple[pl.Series, pl.DataFrame]:
    """Return the number of each text's stack, and the stacks; frames are separated by semicolons and line ends."""
    distinct = texts.drop_nulls().unique(maintain_order=True)
    whole = [
        [parse_frame(line.strip()) for line in re.split(r";\s*[\r\n]+", text) if line.strip()] for text in distinct
    ]
    stacks = pl.DataFrame({"id": range(len(whole)), "frames": whole}, schema={"id": pl.Int64, "frames": pl.List(FRAME)})
    known = pl.DataFrame([distinct.alias("text"), stacks["id"]])
    numbers = texts.alias("text").to_frame().join(known, on="text", how="left", maintain_order="left")["id"]
    return numbers.alias("stack"), stacks


def _tasks(found: pl.DataFrame, is_step: pl.Series, owners: _TraceOwners) -> pl.DataFrame:
    """Return the frame ``tasks`` with the columns that the trace has."""
    strange = pl.col("process").replace_strict(owners.strange, default="UNKNOWN", return_dtype=pl.String)
    kind = pl.when(is_step).then(pl.lit("STEP_TRACE")).otherwise(pl.col("type").cast(pl.String).fill_null(strange))
    return found.with_columns(
        # A stream is a thread of the trace; the physical stream among the arguments may be another.
        stream=pl.when(is_step).then(None).otherwise("thread"),
        physical="stream",
        type=kind.cast(pl.Categorical()),
        device=owners.device_of,
        context=_known("context"),
    )


def _known(column: str) -> pl.Expr:
    return pl.when(pl.col(column) != UNKNOWN_32).then(pl.col(column)).alias(column)


def _core_counters(tasks: pl.DataFrame) -> pl.DataFrame:
    """Return what old timelines say of the core's time beside a task."""
    rows = numbered(tasks.select("core_ms", "cycles"))
    return pl.concat(
        rows.drop_nulls(column).select("row", name=pl.lit(name), value=column, unit=pl.lit(unit))
        for column, name, unit in (("core_ms", "aicore_time", "ms"), ("cycles", "total_cycles", ""))
    )


def _communications(
    found: pl.DataFrame, events: AscendEvents, owners: _TraceOwners
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return the frames ``communications`` and ``communication_tasks``."""
    lanes = _lanes(found, events)
    found = found.join(lanes, on=["process", "thread"], how="left", maintain_order="left")
    device = owners.device_of.alias("device")
    operations = found.filter(pl.col("plane").is_null()).with_columns(device).sort("ts", maintain_order=True)
    parts = found.filter(pl.col("plane").is_not_null()).with_columns(
        device, _known("source"), _known("destination"), _known("context")
    )
    own = numbered(operations).select("row", "process", "lane", at="ts", end=pl.col("ts") + pl.col("dur"))
    placed = parts.sort("ts", maintain_order=True).join_asof(
        own, left_on="ts", right_on="at", by=["process", "lane"], strategy="backward", check_sortedness=False
    )
    inside = pl.when(pl.col("ts") <= pl.col("end")).then("row").alias("row")
    return operations, placed.with_columns(inside, estimated=(pl.col("estimated") * 1000).round(0).cast(pl.Int64))


def _lanes(found: pl.DataFrame, events: AscendEvents) -> pl.DataFrame:
    """Return for each lane of communication the number of its group, and its plane; that of operations has none."""
    rows: list[tuple[Any, ...]] = []
    group: dict[int, int] = {}
    lanes = found.select("process", "thread").drop_nulls().unique().sort("process", "thread")
    for process, thread in lanes.iter_rows():
        name = events.threads.get((process, thread), "")
        plane, number = _PLANE.search(name), _GROUP.search(name)
        if plane is None and not _is_plane_without_name(found, process, thread):
            # Planes follow the lane of their group.
            group[process] = int(number[1]) if number else group.get(process, -1) + 1
        at = int(plane[1]) if plane else None if process in group and not plane else thread
        rows.append((process, thread, group.get(process, 0), at))
    schema = {"process": pl.Int64, "thread": pl.Int64, "lane": pl.Int64, "plane": pl.Int64}
    return pl.DataFrame(rows, schema=schema, orient="row")


def _is_plane_without_name(found: pl.DataFrame, process: int, thread: int) -> bool:
    own = found.filter((pl.col("process") == process) & (pl.col("thread") == thread))
    return own["type"].null_count() < own.height


def _without_parts(tasks: pl.DataFrame, parts: pl.DataFrame) -> pl.DataFrame:
    """Return tasks without the parts of communication, which are on the planes too."""
    key = ["device", "stream", "task", "context"]
    planes = parts.select(key).drop_nulls(["stream", "task"]).unique()
    physical = tasks.with_row_index("place").select("place", "device", "task", "context", stream="physical")
    twice = physical.join(planes, on=key, how="semi", nulls_equal=True)["place"]
    return tasks.with_row_index("place").filter(~pl.col("place").is_in(twice.implode())).drop("place")


def _steps(host: pl.DataFrame, marks: pl.DataFrame) -> pl.DataFrame:
    """Return the steps: the framework's marks, else those of CANN's step trace."""
    number = pl.col("name").cast(pl.String).str.extract(_STEP, 1).cast(pl.Int64, strict=False).alias("number")
    declared = host.filter(pl.col("sort") == "step").select(number, "ts", "dur")
    if declared.height:
        return declared.drop_nulls()
    of_device = marks.filter(pl.col("category").cast(pl.String) == _STEP_CATEGORY)
    return of_device.select(pl.coalesce("iteration", number).alias("number"), "ts", "dur").drop_nulls().unique("number")


def _words(events: AscendEvents, owners: _TraceOwners) -> pl.DataFrame:
    """Return how this version of the profiler calls the process with the communication, as a fact."""
    names = [name for process, name in events.processes.items() if owners.sort.get(process) == "communications"]
    rows = [(COMMUNICATION_PROCESS, json.dumps(names[0].strip()))] if names else []
    return pl.DataFrame(rows, schema=FRAMES["facts"], orient="row")


def _counters(events: AscendEvents, owners: _TraceOwners) -> pl.DataFrame:
    """Return samples; the key of a value has the unit, sizes become bytes."""
    found = events.counters
    distinct = found.select(pl.col("name", "key").cast(pl.String)).unique()
    rows = [(one, other, *_unit(one, other)) for one, other in distinct.iter_rows()]
    schema = {"name": pl.String, "key": pl.String, "title": pl.String, "unit": pl.String, "factor": pl.Float64}
    known = pl.DataFrame(rows, schema=schema, orient="row").with_columns(pl.col(pl.String).cast(pl.Categorical))
    joined = found.join(known, on=["name", "key"], how="left", maintain_order="left")
    processes = {process: name for process, name in events.processes.items() if name}
    lanes = pl.DataFrame({"process": list(processes), "group": list(processes.values())}, schema=_LANES)
    group = found.select("process").join(lanes, on="process", how="left", maintain_order="left")["group"]
    return _in_per_cent(
        joined.select(
            "ts",
            "unit",
            device=owners.device_of.fill_null(0),
            group=group.fill_null("Counters"),
            name="title",
            value=pl.col("value") * pl.col("factor"),
        )
    )


_LANES: dict[str, pl.DataType] = {"process": pl.Int64(), "group": pl.Categorical()}


def _in_per_cent(samples: pl.DataFrame) -> pl.DataFrame:
    """Return samples whose shares are per cent: CANN's timeline has 0.84 under ``Hit Rate(%)``, its database 84."""
    names = samples.filter(pl.col("unit") == "%")["name"].unique().cast(pl.String)
    is_share = pl.col("name").is_in(names.filter(names.str.starts_with(_CACHE)).implode()) & (pl.col("unit") == "%")
    shares = samples.filter(is_share)["value"] if len(names) else pl.Series([])
    if shares.is_empty() or not shares.is_between(0, 1).all():
        return samples
    # Nine decimals survive the way back.
    value = pl.when(is_share).then((pl.col("value") * 100).round(9)).otherwise("value").alias("value")
    return samples.with_columns(value)


def _unit(name: str, key: str) -> tuple[str, str, float]:
    """Return a counter's name and unit, and what its values are multiplied with."""
    bare, unit = unit_of(key)
    if bare in BYTES:
        return name, "bytes", float(BYTES[bare])
    if bare in ("MHz", "value", "MB/s", "%"):
        return name, {"value": ""}.get(bare, bare), 1.0
    said = bare.lower() in name.lower()
    return name if said else f"{name}/{bare}", unit, 1.0


def _flows(
    events: AscendEvents, made: dict[str, pl.DataFrame], owners: _TraceOwners, ledger: LossLedger
) -> pl.DataFrame:
    """Return arrows whose ends are slices; from one start several may go out."""
    sort = pl.col("category").cast(pl.String).replace_strict(_FLOW_SORT, default=None, return_dtype=pl.String)
    known = events.arrows.with_columns(sort=sort)
    ledger.add("event_unknown_kind", known["sort"].null_count())
    drawn = known.drop_nulls("sort")
    key = ["category", "id"]
    begin = drawn.filter("start").unique(key, keep="first", maintain_order=True)
    ends = drawn.filter(~pl.col("start"))
    arrows = ends.join(begin, on=key, how="left", suffix="_from", maintain_order="left").with_row_index("arrow")
    origin = _rows_at(made["host"], arrows, "_from", None)
    parts = []
    of = pl.col("process").replace_strict(owners.sort, default="host", return_dtype=pl.String)
    for frame in ("host", "tasks", "communications"):
        inside = arrows.filter(of == frame)
        target = _rows_at(made[frame], inside, "", frame)
        joined = target.join(origin.rename({"row": "from"}), on="arrow")
        parts.append(joined.select("from", pl.lit(frame).alias("frame"), pl.col("row").alias("to"), "arrow"))
    found = pl.concat(parts).join(arrows.select("arrow", "sort"), on="arrow").drop("arrow")
    ledger.add("flow_dangling", arrows.height - found.height)
    return found


def _rows_at(frame: pl.DataFrame, arrows: pl.DataFrame, side: str, name: str | None) -> pl.DataFrame:
    """Return arrow and row of the slice that starts at an arrow's end; of several the last, which is the innermost."""
    thread = "stream" if name == "tasks" else "thread"
    rows = numbered(frame).select("row", "ts", thread=thread)
    rows = rows.unique(["thread", "ts"], keep="last", maintain_order=True)
    ends = arrows.select("arrow", ts=f"ts{side}", thread=f"thread{side}")
    return ends.join(rows, on=["thread", "ts"], how="inner").select("arrow", "row")


def merged(parts: Sequence[Frames]) -> Frames:
    """Return the frames of several traces as one; rows are renumbered."""
    result: dict[str, list[pl.DataFrame]] = {}
    counts: dict[str, int] = dict.fromkeys(("host", "stacks", "tasks", "communications"), 0)
    for part in parts:
        moved = {
            **part,
            "host": part["host"].with_columns(pl.col("stack") + counts["stacks"]),
            "stacks": part["stacks"].with_columns(pl.col("id") + counts["stacks"]),
            "task_counters": part["task_counters"].with_columns(pl.col("row") + counts["tasks"]),
            "communication_tasks": part["communication_tasks"].with_columns(pl.col("row") + counts["communications"]),
            "bandwidths": part["bandwidths"].with_columns(pl.col("row") + counts["communications"]),
            "flows": part["flows"].with_columns(
                pl.col("from") + counts["host"],
                pl.col("to") + pl.col("frame").cast(pl.String).replace_strict(counts, return_dtype=pl.Int64),
            ),
        }
        for name, frame in moved.items():
            result.setdefault(name, []).append(frame)
        for name in counts:
            counts[name] += part[name].height
    return complete({name: pl.concat(found) for name, found in result.items()})
