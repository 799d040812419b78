"""Results on real captures equal an independent computation in plain Python."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable

import pytest

from stepscope.analyse.communication.collective_times import communication
from stepscope.analyse.device.api_statistic import api_statistic
from stepscope.analyse.device.device_time import device_time
from stepscope.analyse.device.kernel_details import kernel_details
from stepscope.analyse.memory.memory_record import operator_memory
from stepscope.analyse.operators.op_statistic import op_statistic
from stepscope.analyse.operators.operator_details import operator_details
from stepscope.analyse.step.step_trace_time import PARTS, split, step_trace_time
from stepscope.trace.tables import Tables

from . import oracle
from .conftest import FILES, small_quick

Read = Callable[[str], Tables]
Load = Callable[[str], oracle.Trace]
Measure = Callable[[str], list[tuple[int, int, int, oracle.Measure]]]

each = pytest.mark.parametrize("name", small_quick(FILES))


def ns(us: float) -> int:
    return round(us * 1000)


@each
def test_the_split_of_every_step(name: str, tables_of: Read, steps_of: Measure) -> None:
    result = split(tables_of(name))
    windows = zip(
        result.windows.number.tolist(), result.windows.start.tolist(), result.windows.end.tolist(), strict=True
    )
    assert list(windows) == [step[:3] for step in steps_of(name)]
    for place, (_, _, _, expected) in enumerate(steps_of(name)):
        assert {part: int(result.parts[part][place]) for part in PARTS} == expected.split


@each
def test_the_columns_of_step_trace_time(name: str, tables_of: Read, steps_of: Measure) -> None:
    rows = step_trace_time(tables_of(name)).rows(named=True)
    for row, (number, start, end, expected) in zip(rows, steps_of(name), strict=True):
        exposed = expected.split["communication"]
        assert row["Step"] == number
        assert ns(row["Computing"]) == expected.covered["computing"] == expected.split["computing"]
        assert ns(row["Communication"]) == expected.covered["communication"]
        assert ns(row["Overlapped"]) == expected.covered["communication"] - exposed
        assert ns(row["Free"]) == end - start - expected.split["computing"] - exposed
        assert (ns(row["Start Time(us)"]), ns(row["Total"])) == (start, end - start)
        # Only a device is prepared.
        assert row["Preparing"] is None or ns(row["Preparing"]) == expected.first_work - start


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
def test_every_piece_of_device_work(name: str, tables_of: Read, trace_of: Load) -> None:
    trace, frame = trace_of(name), kernel_details(tables_of(name))
    if not trace.device:
        assert (frame["Device_id"] == "cpu").all()
        return
    columns = ("Start Time(us)", "Duration(us)", "Name", "Type", "Step ID", "Wait Time(us)")
    rows = [(int(start * 1000), ns(dur), *more, ns(wait)) for start, dur, *more, wait in frame.select(columns).rows()]
    assert Counter(row[:5] for row in rows) == Counter(oracle.pieces(trace))
    assert sorted((row[0], row[5]) for row in rows) == oracle.waits(trace)


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
    parts = oracle.measure(trace, start, end).split
    row = frame.row(0, named=True)
    assert frame.height == 1
    assert ns(row["Range(us)"]) == end - start
    assert ns(row["Computing(us)"]) == parts["computing"]
    assert ns(row["Communication(Not Overlapped)(us)"]) == parts["communication"]
    assert ns(row["Copy(Not Overlapped)(us)"]) == parts["copy"]
    assert ns(row["Busy(us)"]) == parts["computing"] + parts["communication"] + parts["copy"]


@pytest.mark.parametrize("name", ["v100_2021_no_workers", "h100_small_2025", "h100_large_2025", "mi300_ddp_2026"])
def test_life_of_every_block_of_memory(name: str, tables_of: Read, trace_of: Load) -> None:
    frame = operator_memory(tables_of(name))
    held = [None if us is None else ns(us) for us in frame["Duration(us)"]]
    taken = [int(time * 1000) for time in frame["Allocation Time(us)"]]
    found = zip(taken, (int(size * 1024) for size in frame["Size(KB)"]), held, strict=True)
    expected = oracle.blocks(trace_of(name))
    assert len(expected) > 100
    assert list(found) == expected


@pytest.mark.parametrize(
    "name", ["a100_nccl_2022", "v100_nccl_2022", "nccl_2023_rank0", "nccl_2023_rank1", "b200_2026"]
)
def test_communication_of_every_step(name: str, tables_of: Read, trace_of: Load) -> None:
    document = communication(tables_of(name))
    found = {}
    for step, sorts in document.items():
        total = sorts["collective"].pop("Total Op Info")["Communication Time Info"]["Elapse Time(ms)"]
        found[int(step.removeprefix("step"))] = (len(sorts["collective"]), round(total * 1e6))
    assert found == oracle.elapsed_by_step(trace_of(name))
