"""The timeline in Chrome's JSON format, ``trace_view.json``, with the field names of PyTorch's Kineto.

For ui.perfetto.dev, chrome://tracing, and tools that read Kineto files (HolisticTraceAnalysis, torch-tb-profiler). Text
is built by column, a chunk of slices at a time: no event becomes a Python object, the file is never whole in memory.

Times are µs with three decimals, counted from ``baseTimeNanoseconds`` as PyTorch does, so that a reader that keeps them
as floating-point numbers still has the exact nanosecond.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from io import BufferedWriter
from pathlib import Path

import polars as pl

from stepscope.report.files.json_results import dumps
from stepscope.report.protocol import Source
from stepscope.report.timeline.places import Lane
from stepscope.report.timeline.slice_arguments import OWN, Argument
from stepscope.report.timeline.slices import Counter, Timeline, build
from stepscope.report.timeline.word_lists import Vocabulary
from stepscope.report.whole_files import replacing
from stepscope.trace.tables import is_derived_fact

#: Slices whose text is in memory at one time.
_CHUNK = 100_000
#: Times count from the beginning of a week (of the Unix epoch, in ns): the same for all ranks of a job, as readers that
#: overlay ranks expect, and short enough for exact floating-point numbers.
WEEK = 7 * 24 * 3600 * 1_000_000_000

#: Kineto's category of each kind of span, on a host thread and on a device.
_CATEGORIES: dict[str, tuple[str, str]] = {
    "step": ("user_annotation", "gpu_user_annotation"),
    "phase": ("user_annotation", "gpu_user_annotation"),
    "operator": ("cpu_op", "cpu_op"),
    "kernel": ("kernel", "kernel"),
    "memcpy": ("gpu_memcpy", "gpu_memcpy"),
    "memset": ("gpu_memset", "gpu_memset"),
    "runtime": ("cuda_runtime", "cuda_runtime"),
    "driver": ("cuda_driver", "cuda_driver"),
    "collective": ("cpu_op", "kernel"),
    "python": ("python_function", "python_function"),
    "annotation": ("user_annotation", "gpu_user_annotation"),
    "data": ("user_annotation", "user_annotation"),
    "sync": ("cuda_runtime", "cuda_sync"),
    "garbage": ("python_gc", "python_gc"),
    "overhead": ("overhead", "overhead"),
    "compile": ("user_annotation", "user_annotation"),
    "other": ("user_annotation", "kernel"),
}
#: What makes up the work of a stream lies on lanes of its own; readers count as work what has a category of work.
_WORK = ("kernel", "gpu_memcpy", "gpu_memset")
_DEVICE, _STREAM = Argument("device", "device", "integer"), Argument("stream", "stream", "integer")
#: How PyTorch names its range around a collective: ``nccl:all_reduce``, not ``c10d::allreduce_``.
_BACKEND_RANGE = re.compile(r"\w+:(?!:)")
#: Kineto's category (and name) of each kind of arrow.
_ARROWS = {
    "launch": "ac2g",
    "forward_backward": "fwdbwd",
    "send_receive": "send_receive",
    "other": "flow",
    "wait": "wait",
}


@dataclass(frozen=True)
class TraceView:
    """``trace_view.json``.

    It holds one complete event (``X``) for every row of ``spans``, and for every step that the source file did not mark
    under that name itself, an event ``ProfilerStep#N``.
    """

    name: str = "trace"

    def write(self, source: Source, directory: Path) -> list[Path]:
        """Write the file; see :class:`stepscope.report.protocol.Format`."""
        return self.write_ranks([source], directory)

    def write_ranks(self, sources: Iterable[Source], directory: Path) -> list[Path]:
        """Write one file of several ranks; see :class:`stepscope.report.protocol.TimelineFormat`.

        What the file says of itself (``distributedInfo``, …) is what the first rank says.
        """
        path = directory / "trace_view.json"
        base, arrows = 0, 0
        with replacing(path) as temporary, temporary.open("wb") as file:
            for place, source in enumerate(sources):
                timeline = build(source, step_name="ProfilerStep#", marked_steps=False)
                if place == 0:
                    base = timeline.start // WEEK * WEEK
                    file.write(_head(source, timeline, base).encode("utf-8"))
                else:
                    file.write("".join(f",{name}\n" for name in _names(timeline)).encode("utf-8"))
                _write_rank(file, timeline, base, arrows)
                arrows += len(timeline.arrows)
            file.write(b"]}\n")
        return [path]


def _write_rank(file: BufferedWriter, timeline: Timeline, base: int, arrows: int) -> None:
    for begin in range(0, len(timeline.slices), _CHUNK):
        _write_lines(file, _slices(timeline, timeline.slices[begin : begin + _CHUNK], base))
    for begin in range(0, len(timeline.arrows), _CHUNK):
        _write_lines(file, _arrows(timeline, timeline.arrows[begin : begin + _CHUNK], base, arrows + begin))
    for number, counter in enumerate(timeline.counters):
        _write_lines(file, _samples(counter, number, base))


def _head(source: Source, timeline: Timeline, base: int) -> str:
    """Return the file up to the first slice: facts about the run, one a line, and the names of processes and lanes."""
    facts = _facts(source)
    distributed = facts.pop("distributedInfo", None)
    rank = timeline.rank
    lines = [
        '"schemaVersion": 1',
        # HolisticTraceAnalysis looks for the rank by a pattern, line by line, and takes the first it finds.
        f'"distributedInfo": {dumps({**(distributed if isinstance(distributed, dict) else {}), "rank": rank})}',
        '"displayTimeUnit": "ns"',
        f'"baseTimeNanoseconds": {base}',
        *(f"{dumps(key)}: {dumps(value)}" for key, value in facts.items()),
        f'"stepscope": {dumps({"crossing": timeline.crossing, "arrows_left_out": timeline.arrows_left_out})}',
    ]
    names = "\n,".join(_names(timeline))
    return "{\n" + ",\n".join(lines) + ',\n"traceEvents": [\n' + names + "\n"


def _facts(source: Source) -> dict[str, object]:
    found: dict[str, object] = {}
    taken = {"traceEvents", "schemaVersion", "displayTimeUnit", "baseTimeNanoseconds", "stepscope"}
    said = source.tables["metadata"]
    said = said.filter(~is_derived_fact()) if source.label else said  # of a rank, in a file of several
    for key, text in said.collect().iter_rows():
        if key not in taken:
            try:
                found[key] = json.loads(text)
            except (ValueError, RecursionError):
                found[key] = text
    return found


def _names(timeline: Timeline) -> list[str]:
    """Return the events that name processes and lanes and give their order."""
    events = []
    for process in timeline.processes:
        events.append(_name("process_name", process.pid, process.pid, name=process.name))
        events.append(_name("process_sort_index", process.pid, process.pid, sort_index=process.order))
    if timeline.label and timeline.processes:
        pid = timeline.processes[0].pid
        events.append(_name("process_labels", pid, pid, labels=timeline.label))
    for lane in timeline.lanes:
        events.append(_name("thread_name", lane.process.pid, lane.tid, name=lane.name))
        events.append(_name("thread_sort_index", lane.process.pid, lane.tid, sort_index=lane.order))
    return events


def _name(what: str, pid: int, tid: int, **arguments: object) -> str:
    return dumps({"ph": "M", "name": what, "pid": pid, "tid": tid, "args": arguments})


def _slices(timeline: Timeline, chunk: pl.DataFrame, base: int) -> pl.Series:
    arguments = [(argument, chunk[argument.column]) for argument in OWN]
    arguments += [each for each in timeline.details.of(chunk["id"]) if each[0].name not in ("device", "stream")]
    devices = [lane.device for lane in timeline.lanes]
    # A stream without a number has that of its lane: readers find streams by device and number.
    streams = [lane.tid if lane.is_stream and lane.stream is None else lane.stream for lane in timeline.lanes]
    for argument, numbers in ((_DEVICE, devices), (_STREAM, streams)):
        arguments.append((argument, pl.Series(numbers, dtype=pl.Int64).gather(chunk["lane"])))
    columns = {f"a{number}": _argument(*each, timeline.details.texts) for number, each in enumerate(arguments)}
    frame = pl.DataFrame(
        {
            "name": _json(timeline.names).gather(chunk["name"]),
            "at": _at(timeline.lanes).gather(chunk["lane"]),
            "category": _category(chunk, timeline),
            "ts": chunk["ts"] - base,
            "dur": chunk["dur"],
            **columns,
        }
    )
    given = pl.concat_str(list(columns), separator=",", ignore_nulls=True)
    event = ',{{"ph":"X","cat":"{}","name":{}{},"ts":{},"dur":{},"args":{{{}}}}}'
    text = pl.format(event, "category", "name", "at", us_text("ts"), us_text("dur"), given)
    return frame.select(text).to_series()


def _argument(argument: Argument, values: pl.Series, texts: Vocabulary) -> pl.Series:
    """Return one argument as JSON text, ``"name": value``, null without a value."""
    if argument.form == "text":
        values = _json(texts).gather(values)
    key = dumps(argument.name)
    return f"{key}:" + values.cast(pl.String)


def _json(words: Vocabulary) -> pl.Series:
    return pl.Series(words.json, dtype=pl.String)


def _at(lanes: list[Lane]) -> pl.Series:
    return pl.Series([f',"pid":{lane.process.pid},"tid":{lane.tid}' for lane in lanes], dtype=pl.String)


def _category(chunk: pl.DataFrame, timeline: Timeline) -> pl.Series:
    on_device = pl.Series([lane.device is not None for lane in timeline.lanes], dtype=pl.Boolean).gather(chunk["lane"])
    host, device = ({kind: pair[side] for kind, pair in _CATEGORIES.items()} for side in (0, 1))
    kind = chunk["kind"]
    category = kind.replace_strict(host).zip_with(~on_device, kind.replace_strict(device))
    beside = pl.Series([lane.device is not None and not lane.is_stream for lane in timeline.lanes], dtype=pl.Boolean)
    category = category.set(beside.gather(chunk["lane"]) & category.is_in(_WORK), "gpu_user_annotation")
    ranges = pl.Series([bool(_BACKEND_RANGE.match(name)) for name in timeline.names.texts], dtype=pl.Boolean)
    return category.set(ranges.gather(chunk["name"]) & (kind == "collective") & ~on_device, "user_annotation")


def us_text(column: str) -> pl.Expr:
    """Return ns, not negative, as the text of µs with three decimals."""
    ns = pl.col(column)
    return (ns // 1000).cast(pl.String) + pl.lit(".") + (ns % 1000).cast(pl.String).str.zfill(3)


def _arrows(timeline: Timeline, chunk: pl.DataFrame, base: int, first: int) -> pl.Series:
    """Return the two events of each arrow; they bind to the slice that begins at their time on their lane."""
    at = _at(timeline.lanes)
    kind = chunk["kind"].replace_strict(_ARROWS)
    halves = []
    for row, phase in (("origin", '"s"'), ("target", '"f","bp":"e"')):
        slices = timeline.slices[chunk[row]]
        frame = pl.DataFrame({"kind": kind, "at": at.gather(slices["lane"]), "ts": slices["ts"] - base})
        event = f',{{{{"ph":{phase},"id":{{}},"cat":"{{}}","name":"{{}}"{{}},"ts":{{}}}}}}'
        text = pl.format(event, pl.int_range(pl.len()) + first + 1, "kind", "kind", "at", us_text("ts"))
        halves.append(frame.select(text).to_series())
    return pl.concat(halves)


def _samples(counter: Counter, number: int, base: int) -> pl.Series:
    head = f',{{"ph":"C","name":{dumps(counter.name)},"id":{number},"pid":{counter.process.pid},"ts":'
    unit = dumps(counter.unit or "value")
    frame = counter.samples.with_columns(ts=pl.col("ts") - base)
    text = pl.concat_str(pl.lit(head), us_text("ts"), pl.lit(f',"args":{{{unit}:'), "value", pl.lit("}}"))
    return frame.select(text).to_series()


def _write_lines(file: BufferedWriter, lines: pl.Series) -> None:
    # Every line is JSON without a line break or a quote that CSV would touch: the fast way to write a column of text.
    pl.DataFrame([lines]).write_csv(file, include_header=False, quote_style="never")
