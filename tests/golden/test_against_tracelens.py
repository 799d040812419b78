"""Results agree with the timelines and sums that TraceLens publishes with its traces."""

from __future__ import annotations

import csv
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest

from stepscope.analyse.device.device_time import device_time
from stepscope.analyse.device.kernel_details import kernel_details
from stepscope.trace.tables import Tables

#: Capture → folder of the published results. TraceLens computes with floats; that is what the tolerance is for.
PUBLISHED = {
    "h100_small_2025": "Falconsai_nsfw_image_detection__1016002",
    "h100_large_2025": "facebook_timesformer-base-finetuned-k400__1016002",
    "mi210_2025": "mi210_gpu_only",
}
MS = 0.002

Read = Callable[[str], Tables]
each = pytest.mark.parametrize("name", PUBLISHED)


@pytest.fixture
def published(shared_data: Path) -> Callable[[str, str], list[dict[str, str]]]:
    def read(name: str, file: str) -> list[dict[str, str]]:
        path = shared_data / "kineto/tracelens/expected" / PUBLISHED[name] / f"{file}.csv"
        with path.open(encoding="utf-8", newline="") as lines:
            return list(csv.DictReader(lines))

    return read


Published = Callable[[str, str], list[dict[str, str]]]


@each
def test_the_timeline_of_the_device(name: str, tables_of: Read, published: Published) -> None:
    expected = {row["type"]: float(row["time ms"]) for row in published(name, "gpu_timeline")}
    row = device_time(tables_of(name)).row(0, named=True)
    found = {
        "computation_time": row["Computing(us)"],
        "exposed_comm_time": row["Communication(Not Overlapped)(us)"],
        "exposed_memcpy_time": row["Copy(Not Overlapped)(us)"],
        "busy_time": row["Busy(us)"],
        "idle_time": row["Idle(us)"],
        "total_time": row["Range(us)"],
        "total_comm_time": row["Communication(us)"],
        "total_memcpy_time": row["Copy(us)"],
    }
    assert {key: us / 1000 for key, us in found.items()} == pytest.approx(expected, abs=MS)


@each
def test_time_by_operator_kernel_and_stream(name: str, tables_of: Read, published: Published) -> None:
    """Every row of TraceLens' kernel summary, to the nanosecond; it leaves out copies and fills."""
    frame = kernel_details(tables_of(name)).filter(pl.col("Type").is_in(["kernel", "collective"]))
    found: dict[tuple[str | None, str, int], list[int]] = defaultdict(list)
    for row in frame.rows(named=True):
        found[row["Operator"], row["Name"], row["Stream ID"]].append(round(row["Duration(us)"] * 1000))
    sums = {key: (len(times), sum(times), min(times), max(times)) for key, times in found.items()}
    assert sums == {_key(row): _times(row) for row in published(name, "kernel_summary")}


def _key(row: dict[str, str]) -> tuple[str | None, str, int]:
    return row.get("Parent cpu_op") or None, row["Kernel name"], int(row["Kernel stream"])


def _times(row: dict[str, str]) -> tuple[int, ...]:
    total, least, most = (round(float(row[f"Kernel duration (µs)_{what}"]) * 1000) for what in ("sum", "min", "max"))
    return int(row["Kernel duration (µs)_count"]), total, least, most


@pytest.mark.parametrize("name", [name for name in PUBLISHED if name != "mi210_2025"])
def test_device_time_by_operator_name(name: str, tables_of: Read, published: Published) -> None:
    frame = kernel_details(tables_of(name))
    found: dict[str, float] = defaultdict(float)
    for row in frame.filter(frame["Operator"].is_not_null()).rows(named=True):
        found[row["Operator"]] += row["Duration(us)"]
    expected = {row["name"]: float(row["total_direct_kernel_time_sum"]) for row in published(name, "ops_summary")}
    assert found == pytest.approx(expected, abs=MS * 1000)
