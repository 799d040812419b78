"""Results on real captures equal an independent computation in plain Python."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable

import pytest

from stepscope.analyse.api_statistic import api_statistic
from stepscope.analyse.device_time import device_time
from stepscope.analyse.op_statistic import op_statistic
from stepscope.analyse.operator_details import operator_details
from stepscope.analyse.step_trace_time import PARTS, split, step_trace_time
from stepscope.trace.tables import Tables

from . import oracle
from .conftest import FILES

Read = Callable[[str], Tables]
Load = Callable[[str], oracle.Trace]

each = pytest.mark.parametrize("name", FILES)


def ns(us: float) -> int:
    return round(us * 1000)


@each
def test_the_split_of_every_step(name: str, tables_of: Read, trace_of: Load) -> None:
    result, trace = split(tables_of(name)), trace_of(name)
    expected = oracle.windows(trace)
    windows = zip(
        result.windows.number.tolist(), result.windows.start.tolist(), result.windows.end.tolist(), strict=True
    )
    assert list(windows) == expected
    for place, (_, start, end) in enumerate(expected):
        parts = {part: int(result.parts[part][place]) for part in PARTS}
        assert parts == oracle.split(trace, start, end)


@each
def test_the_columns_of_step_trace_time(name: str, tables_of: Read, trace_of: Load) -> None:
    trace = trace_of(name)
    rows = step_trace_time(tables_of(name)).rows(named=True)
    for row, (number, start, end) in zip(rows, oracle.windows(trace), strict=True):
        parts = oracle.split(trace, start, end)
        communication = oracle.covered(trace, start, end, "communication")
        assert row["Step"] == number
        assert ns(row["Computing"]) == oracle.covered(trace, start, end, "computing") == parts["computing"]
        assert ns(row["Communication"]) == communication
        assert ns(row["Overlapped"]) == communication - parts["communication"]
        assert ns(row["Free"]) == end - start - parts["computing"] - parts["communication"]
        assert ns(row["Preparing"]) == oracle.first_work(trace, start, end) - start


@each
def test_time_by_kernel_name(name: str, tables_of: Read, trace_of: Load) -> None:
    frame = op_statistic(tables_of(name))
    columns = ("Count", "Total Time(us)", "Min Time(us)", "Max Time(us)")
    found: dict[tuple[str, str], list[tuple[int, int, int, int]]] = defaultdict(list)
    for row in frame.filter(frame["Device_id"] != "cpu").rows(named=True):
        count, *times = (row[column] for column in columns)
        found[row["OP Type"], row["Core Type"]].append((count, *map(ns, times)))
    merged = {key: _over_devices(rows) for key, rows in found.items()}
    assert merged == oracle.device_totals(trace_of(name))


def _over_devices(rows: list[tuple[int, int, int, int]]) -> tuple[int, int, int, int]:
    counts, totals, least, most = zip(*rows, strict=True)
    return sum(counts), sum(totals), min(least), max(most)


@each
def test_time_by_runtime_call(name: str, tables_of: Read, trace_of: Load) -> None:
    rows = api_statistic(tables_of(name)).rows(named=True)
    found = {
        (row["Level"], row["API Name"]): (row["Count"], *(ns(row[key]) for key in ("Time(us)", "Min(us)", "Max(us)")))
        for row in rows
        if row["Level"] in {"Runtime", "Driver"}
    }
    assert found == oracle.call_totals(trace_of(name))


@each
def test_total_and_self_time_of_operators(name: str, tables_of: Read, trace_of: Load) -> None:
    trace, frame = trace_of(name), operator_details(tables_of(name))
    found: dict[str, list[int]] = defaultdict(list)
    for operator, total in zip(frame["Name"], frame["Host Total Duration(us)"], strict=True):
        found[operator].append(ns(total))
    expected: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for (operator, _), (count, total) in oracle.operator_totals(trace).items():
        expected[operator][0] += count
        expected[operator][1] += total
    assert {operator: [len(times), sum(times)] for operator, times in found.items()} == expected


@each
def test_device_work_by_launching_operator(name: str, tables_of: Read, trace_of: Load) -> None:
    frame = operator_details(tables_of(name))
    found: dict[str, int] = defaultdict(int)
    for operator, time in zip(frame["Name"], frame["Device Self Duration(us)"], strict=True):
        found[operator] += ns(time)
    assert {operator: time for operator, time in found.items() if time} == oracle.device_time_by_operator(
        trace_of(name)
    )


@each
def test_busy_time_of_the_device(name: str, tables_of: Read, trace_of: Load) -> None:
    trace, frame = trace_of(name), device_time(tables_of(name))
    if not trace.device:
        assert frame.is_empty()
        return
    start, end = oracle.device_range(trace)
    parts = oracle.split(trace, start, end)
    row = frame.row(0, named=True)
    assert frame.height == 1
    assert ns(row["Range(us)"]) == end - start
    assert ns(row["Computing(us)"]) == parts["computing"]
    assert ns(row["Communication(Not Overlapped)(us)"]) == parts["communication"]
    assert ns(row["Copy(Not Overlapped)(us)"]) == parts["copy"]
    assert ns(row["Busy(us)"]) == parts["computing"] + parts["communication"] + parts["copy"]
