"""The report of ``paddle.fluid.profiler``: the text that Paddle 1.8 prints when its profiler stops.

Columns, widths, orders and numbers equal the original's. One error of the original is corrected: if a program contains
an operator several times, each call counts for its own instance.
"""

from __future__ import annotations

import math
import operator
import re
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import Any

import polars as pl

#: State of the profiler → the place that the report prints.
PLACES = {"CPU": "CPU", "GPU": "CUDA", "All": "All"}
#: Key to sort by → its text in the report. ``None`` is ``default``.
ORDERS = {
    "default": "event first end time",
    "calls": "number of calls",
    "total": "total time",
    "max": "maximum time",
    "min": "minimum time",
    "ave": "average time",
}
#: How much detail is shown: operators; also their parts; also the instances of operators in the program.
TRACER_OPTIONS = ("Default", "OpDetail", "AllOpDetail")

_WIDTH, _HEAD_WIDTH, _BEHIND_NAME = 12, 25, 8
_MEMORY_NAME_WIDTH, _MEMORY_WIDTH = 55, 18
_MS, _MIB = 1e6, 1024.0 * 1024.0
_DASHES = "-" * 25
# The part of an instance's name that distinguishes it from other instances of its operator: its first output.
_OUTPUT = re.compile(r"%[^%]*%")


@dataclass(frozen=True)
class FluidReportOptions:
    """What a report shows.

    Attributes:
        state: ``CPU``, ``GPU`` or ``All``: whose time counts.
        sorted_key: A key of :data:`ORDERS`; None for ``default``.
        tracer_option: One of :data:`TRACER_OPTIONS`.
    """

    state: str = "All"
    sorted_key: str | None = None
    tracer_option: str = "Default"

    @property
    def order(self) -> str:
        """The key to sort by."""
        return self.sorted_key or "default"


@dataclass(frozen=True)
class _Item:
    """All events of one name; times in ms.

    Attributes:
        role: ``ordinary``, ``instance`` (of an operator in the program) or ``inner`` (part of an operator).
    """

    name: str
    calls: int
    total: float
    lowest: float
    highest: float
    cpu: float
    gpu: float
    role: str
    ratio: float = 0.0

    @property
    def average(self) -> float:
        return self.total / self.calls


@dataclass
class _Report:
    """The contents of a report of one or more lists of events.

    Attributes:
        main: Per list, the top-level items in order.
        children: Items by the name of their parent.
        overhead: The text between head and table; empty if the original prints none.
        widest: Length of the longest name, in characters.
    """

    main: list[list[_Item]] = field(default_factory=list)
    children: dict[str, list[_Item]] = field(default_factory=dict)
    overhead: str = ""
    widest: int = 0


def render(events: pl.DataFrame, options: FluidReportOptions) -> str:
    """Return the report: for several threads first all of them merged, then each thread, newest first.

    Args:
        events: In the order in which they ended on their thread: ``name`` (parts of an event begin with its name and a
            slash), ``thread`` (number, larger is newer), ``ts`` and ``end`` in ns, ``gpu`` (ns of device work that was
            launched in it); optionally ``role``, see :class:`_Item`, which otherwise follows from the names.
        options: What to show.
    """
    named = _with_shown_names(events)
    threads = [named.filter(thread=number) for number in sorted(set(named["thread"].to_list()), reverse=True)]
    text = _text([named.sort("thread", descending=True, maintain_order=True)], options) if len(threads) > 1 else ""
    prefixed = [frame.with_columns(name=pl.format("thread{}::{}", "thread", "name")) for frame in threads]
    return text + _text(prefixed or [named], options, merged=False)


def render_memory(memory: pl.DataFrame) -> str:
    """Return the memory report, which the original prints if its log is verbose (``GLOG_v=5``).

    Args:
        memory: In order of time, a row per allocation or free: ``place`` (``cpu``, ``cuda:0``, ``cuda_pinned``),
            ``inside`` (name of the event it happened in, ``Unknown`` for none), ``bytes`` (negative: freed).
    """
    head = _row("Event", ("Alloc Calls", "Size(MB)", "Free Calls", "Size(MB)"), _MEMORY_NAME_WIDTH, _MEMORY_WIDTH)
    taken, freed = pl.col("bytes") >= 0, pl.col("bytes") < 0
    sums = memory.group_by("place", "inside", maintain_order=True).agg(
        taken.sum().alias("allocs"),
        pl.col("bytes").filter(taken).sum().alias("taken"),
        freed.sum().alias("frees"),
        -pl.col("bytes").filter(freed).sum().alias("freed"),
    )
    rows = [head]
    # Devices before the host; within a place the last new event comes first, as in the original's hash table.
    newest_first = sums.reverse().rows()
    for place, inside, allocs, size, frees, back in sorted(newest_first, key=_place_order):
        cells = (str(allocs), _number(size / _MIB), str(frees), _number(back / _MIB))
        rows.append(_row(f"{_place(place)}:{inside}", cells, _MEMORY_NAME_WIDTH, _MEMORY_WIDTH))
    arrows = _DASHES + ">", "<" + _DASHES
    return f"\n{arrows[0]}    Memory Profiling Report     {arrows[1]}\n\n" + "".join(rows) + "\n"


def _place(place: str) -> str:
    device, _, number = place.partition(":")
    return {"cuda": f"CUDAPlace({number})", "cpu": "CPUPlace", "cuda_pinned": "CUDAPinnedPlace"}.get(device, place)


def _place_order(row: tuple[Any, ...]) -> tuple[int, str]:
    device = row[0].partition(":")[0]
    known = ("cuda", "cpu", "cuda_pinned")
    return known.index(device) if device in known else len(known), row[0]


def _with_shown_names(events: pl.DataFrame) -> pl.DataFrame:
    """Return events with roles, and with the number of each instance in its name instead of its output."""
    named = events.with_columns(role=_role_by_name()) if "role" not in events.columns else events
    marked = named.filter(pl.col("name").str.contains("%", literal=True))
    if marked.is_empty():
        return named
    first_begun = marked.sort("thread", "ts", descending=[True, False])["name"].unique(maintain_order=True)
    return named.with_columns(pl.col("name").replace(_shown(first_begun.to_list())))


def _role_by_name() -> pl.Expr:
    return (
        pl.when(pl.col("name").str.ends_with("%"))
        .then(pl.lit("instance"))
        .when(pl.col("name").str.contains("/", literal=True) & ~pl.col("name").str.contains(r"/GpuMemcpy[^/]*$"))
        .then(pl.lit("inner"))
        .otherwise(pl.lit("ordinary"))
    )


def _shown(names: Iterable[str]) -> dict[str, str]:
    """Return the shown name of each name: ``conv2d/conv2d%tmp_1%`` → ``conv2d/conv2d0`` for the first instance."""
    met: dict[str, list[str]] = {}

    def number(match: re.Match[str]) -> str:
        outputs = met.setdefault(match.string[: match.start()], [])
        if match[0] not in outputs:
            outputs.append(match[0])
        return str(outputs.index(match[0]))

    return {name: _OUTPUT.sub(number, name) for name in names}


def _text(lists: list[pl.DataFrame], options: FluidReportOptions, *, merged: bool = True) -> str:
    """Return one report of several lists of events."""
    report = _Report()
    for frame in lists:
        _add(report, frame, options, alone=len(lists) == 1)
    arrows = _DASHES + ">", "<" + _DASHES
    lines = [f"\n{arrows[0]}     Profiling Report     {arrows[1]}\n\n"]
    lines += ["Note! This Report merge all thread info into one.\n"] if merged else []
    lines += [f"Place: {PLACES[options.state]}\nTime unit: ms\n"]
    lines += [f"Sorted by {ORDERS[options.order]} in descending order in the same thread\n\n", report.overhead]
    lines += [f"\n{_DASHES}       Event Summary       {_DASHES}\n\n"]
    width = report.widest + _BEHIND_NAME
    head = ["Calls", "Total", "Min.", "Max.", "Ave.", "Ratio."]
    times = _row("", ("CPU Time (Ratio)", "GPU Time (Ratio)"), 0, 2 * _WIDTH)[:-1] if options.state == "All" else ""
    lines += [_row("Event", head[:2], width)[:-1], times, _row("", head[2:], 0)]
    lines += [_rows(item, report, options, 0) for items in report.main for item in items]
    return "".join(lines)


def _add(report: _Report, events: pl.DataFrame, options: FluidReportOptions, *, alone: bool) -> None:
    """Add a list of events to a report; if it is ``alone``, also its overhead."""
    items = _items(events, options)
    report.widest = max([report.widest, *(len(_counted_name(item, options)) for item in items.values())])
    parent = {name: name.rpartition("/")[0] for name in items}
    main = [item for name, item in items.items() if parent[name] not in items]
    total = sum(item.total for item in main)
    with_ratio = {name: replace(item, ratio=_float(_divided(item.total, total))) for name, item in items.items()}
    parts: dict[str, list[_Item]] = {}
    for name, item in with_ratio.items():
        if parent[name] in items:
            parts.setdefault(parent[name], []).append(item)
    if alone:
        report.overhead = _overhead(total, [part for name in sorted(parts) for part in parts[name]])
    report.main.append(_ordered([with_ratio[item.name] for item in main], options))
    for name, shown in _shown_parts(parts, with_ratio, options).items():
        report.children.setdefault(name, []).extend(_ordered(shown, options))


def _items(events: pl.DataFrame, options: FluidReportOptions) -> dict[str, _Item]:
    """Return the items of a list of events by name, in the order in which each first ended.

    Times are added one after the other in ms, as the original does: the last digit of a sum depends on it.
    """
    cpu, gpu = (pl.col("end") - pl.col("ts")) / _MS, pl.col("gpu") / _MS
    time = {"CPU": cpu, "GPU": gpu, "All": gpu + cpu}[options.state]
    lists = events.group_by("name", maintain_order=True).agg(
        time.alias("total"), cpu.alias("cpu"), gpu.alias("gpu"), role=pl.col("role").first()
    )
    items = {}
    for name, times, cpu_times, gpu_times, role in lists.iter_rows():
        total, cpu_time, gpu_time = (reduce(operator.add, each) for each in (times, cpu_times, gpu_times))
        items[name] = _Item(name, len(times), total, min(times), max(times), cpu_time, gpu_time, role)
    return items


def _counted_name(item: _Item, options: FluidReportOptions) -> str:
    """Return the part of a name that the width of its column depends on."""
    detailed = options.tracer_option != "Default"
    if item.role == "inner" and detailed and item.name.count("/") >= 2:
        return _behind_slash(item.name, 2)
    if item.role == "inner" and detailed:
        return item.name
    return _behind_slash(item.name, 1)


def _behind_slash(name: str, number: int) -> str:
    """Return the last ``number`` pieces of a name split at slashes; the whole name if it has fewer."""
    pieces = name.split("/")
    return "/".join(pieces[-number:]) if len(pieces) > number else name


def _shown_parts(
    parts: Mapping[str, list[_Item]], items: Mapping[str, _Item], options: FluidReportOptions
) -> dict[str, list[_Item]]:
    """Return the parts that are shown below each item: without detail only copies and ordinary events."""
    if options.tracer_option != "Default":
        return dict(parts)
    shown: dict[str, list[_Item]] = {}
    for name in sorted(parts):
        for part in parts[name]:
            if "GpuMemcpy" in part.name:
                owner = _ordinary(name, items)
                moved = replace(part, name=f"{owner}/{_behind_slash(part.name, 1)}")
                shown.setdefault(owner, []).append(moved)
            elif part.role == "ordinary":
                shown.setdefault(name, []).append(part)
    return shown


def _ordinary(name: str, items: Mapping[str, _Item]) -> str:
    """Return the nearest item, from ``name`` upwards, whose role is ``ordinary``."""
    while items[name].role != "ordinary" and name.rpartition("/")[0] in items:
        name = name.rpartition("/")[0]
    return name


def _ordered(items: list[_Item], options: FluidReportOptions) -> list[_Item]:
    value = {
        "calls": lambda item: item.calls,
        "total": lambda item: item.total,
        "max": lambda item: item.highest,
        "min": lambda item: item.lowest,
        "ave": lambda item: item.average,
    }.get(options.order)
    return items if value is None else sorted(items, key=value, reverse=True)


def _rows(item: _Item, report: _Report, options: FluidReportOptions, depth: int) -> str:
    """Return the row of an item, and below it the rows of its parts."""
    name = "  " * depth + _behind_slash(item.name, 2 if item.role == "inner" else 1)
    numbers = [_number(value) for value in (item.lowest, item.highest, item.average, item.ratio)]
    times = ""
    if options.state == "All":
        cells = [f"{_fixed(time)} ({_fixed(_divided(time, item.total))})" for time in (item.cpu, item.gpu)]
        times = _row("", cells, 0, 2 * _WIDTH)[:-1]
    row = _row(name, (str(item.calls), _number(item.total)), report.widest + _BEHIND_NAME)[:-1]
    below = [_rows(part, report, options, depth + 1) for part in report.children.get(item.name, [])]
    return row + times + _row("", numbers, 0) + "".join(below)


def _overhead(total: float, parts: list[_Item]) -> str:
    """Return the share of computation and of the framework's overhead in the time, and the summary of copies."""
    compute = 0.0
    for part in parts:
        if "compute" in part.name and "compute/" not in part.name:
            compute = _float(compute + part.ratio)
    framework = _float(1.0 - compute)
    lines = [f"Total time: {_number(total)}\n"]
    for label, ratio in (("  Computation time", compute), ("  Framework overhead", framework)):
        share = _number(_float(ratio * 100))
        lines.append(f"{label:<{_HEAD_WIDTH}}Total: {_number(total * ratio):<{_WIDTH}}Ratio: {share}%\n")
    lines.append(f"\n{_DASHES}     GpuMemCpy Summary     {_DASHES}\n\n")
    asynchronous = [part for part in parts if "GpuMemcpyAsync" in part.name]
    synchronous = [part for part in parts if "GpuMemcpySync" in part.name]
    lines.append(_copies("GpuMemcpy", asynchronous + synchronous))
    for name, copies in (("  GpuMemcpyAsync", asynchronous), ("  GpuMemcpySync", synchronous)):
        lines += [_copies(name, copies)] if copies else []
    return "".join(lines)


def _copies(label: str, parts: list[_Item]) -> str:
    calls, total = sum(part.calls for part in parts), sum(part.total for part in parts)
    share = _number(_float(_float(sum(part.ratio for part in parts)) * 100))
    return f"{label:<{_HEAD_WIDTH}}Calls: {calls:<{_WIDTH}}Total: {_number(total):<{_WIDTH}}Ratio: {share}%\n"


def _row(name: str, cells: Iterable[str], width: int, cell_width: int = _WIDTH) -> str:
    return name.ljust(width) + "".join(cell.ljust(cell_width) for cell in cells) + "\n"


def _divided(part: float, whole: float) -> float:
    """Divide; a zero ``whole`` gives NaN, as 0.0 / 0.0 does in C."""
    return part / whole if whole else math.nan


def _float(value: float) -> float:
    """Round a number to 32 bits, the precision of the original's ratios."""
    narrow: float = struct.unpack("f", struct.pack("f", value))[0]
    return narrow


def _number(value: float) -> str:
    """Return a number as C++ streams write it: six significant digits; NaN as x86 produces it, with a sign."""
    return "-nan" if math.isnan(value) else f"{value:g}"


def _fixed(value: float) -> str:
    return "-nan" if math.isnan(value) else f"{value:f}"
