"""rocprofv3's JSON: what it says of kernels, copies and calls, against the standard library's reader."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import stepscope
from stepscope.errors import DamagedTraceError
from stepscope.read import read_files
from stepscope.read.sniff import look
from stepscope.trace.schema import TOTALS
from tests.unit import rocprof_build


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return rocprof_build.write(tmp_path / "1_results.json")


def test_a_real_file_gives_what_it_holds(shared_data: Path) -> None:
    path = shared_data / "rocprof" / "908_results.json.gz"
    (tool,) = json.loads(gzip.decompress(path.read_bytes()))["rocprofiler-sdk-tool"]
    names = {symbol["kernel_id"]: symbol["formatted_kernel_name"] for symbol in tool["kernel_symbols"]}
    count: Counter[str] = Counter()
    time: Counter[str] = Counter()
    for one in tool["buffer_records"]["kernel_dispatch"]:
        name = names[one["dispatch_info"]["kernel_id"]]
        count[name] += 1
        time[name] += one["end_timestamp"] - one["start_timestamp"]
    frames = read_files([path])
    spans = frames["spans"].with_columns(pl.col("name").cast(str))
    found = spans.group_by("name").agg(pl.len(), pl.col("dur").sum())
    assert {name: (number, dur) for name, number, dur in found.rows()} == {
        name: (count[name], time[name]) for name in count
    }
    assert frames["kernels"].height == 43_915
    assert set(frames["tracks"]["device"].cast(str)) == {"cuda:0"}
    assert set(frames["tracks"]["host"].cast(str)) == {tool["metadata"]["node"]["hostname"]}
    collective = spans.filter(pl.col("kind").cast(str) == "collective")["name"].unique().to_list()
    assert [name.partition("(")[0] for name in collective] == ["ncclDevKernel_Generic_1"]
    losses = frames["losses"].select(pl.col("what").cast(str), "severity").rows()
    assert losses == [("correlation_dangling", "info")]  # it was recorded without the calls


def test_kernels_have_their_calls_and_sizes(file: Path) -> None:
    run = stepscope.open(file)
    kernels = run.tables["kernels"].collect()
    assert kernels.height == 40
    spans = run.tables["spans"].collect()
    launches = spans.select(launch="id", call="name")
    joined = kernels.join(launches, on="launch").join(spans.select(span="id", name="name", kind="kind"), on="span")
    assert dict(joined.group_by(pl.col("call").cast(str)).len().rows()) == {"hipLaunchKernel": 20, "hipMemcpyAsync": 20}
    first = joined.filter(pl.col("kind").cast(str) == "kernel").row(0, named=True)
    assert (first["grid"], first["block"], first["registers"], first["shared_memory"]) == (
        [10, 2, 1],
        [64, 2, 1],
        32,
        512,
    )
    copies = joined.filter(pl.col("kind").cast(str) == "memcpy")
    assert (copies["bytes"].sum(), set(copies["name"].cast(str))) == (20 * 4096, {"Memcpy HtoD"})
    # copies of 50 ns and kernels of 100 ns, 1,000 ns apart, and nothing at once
    (busy,) = run.result("device_time").select("Device_id", "Busy(us)", "Copy(us)").rows()  # type: ignore[union-attr]
    assert busy == ("cuda:1", 3.0, 1.0)


def test_marks_and_calls_of_libraries(file: Path) -> None:
    spans = read_files([file])["spans"].select(pl.col("name").cast(str), pl.col("kind").cast(str), "ts", "dur").rows()
    assert ("forward", "annotation", 50_000, 10_000) in spans
    assert ("ncclAllReduce", "runtime", 70_000, 100) in spans


def test_names_stay_text(tmp_path: Path) -> None:
    hostile = ("\x1b[31m\n=1+1", "<script>", "\u202e" * 3, "a" * 5000, "")
    path = rocprof_build.write(tmp_path / "r.json", kernels=5, names=hostile)
    spans = read_files([path])["spans"].filter(pl.col("kind").cast(str) == "kernel")
    assert set(spans["name"].cast(str)) == {*hostile[:4], "kernel 4"}


def broken(change: str, value: Any) -> dict[str, Any]:
    document = rocprof_build.document()
    document["rocprofiler-sdk-tool"][0]["buffer_records"]["kernel_dispatch"][0][change] = value
    return document


@pytest.mark.parametrize(
    ("change", "value", "loss"),
    [
        ("start_timestamp", "soon", "event_damaged"),
        ("start_timestamp", -1, "event_damaged"),
        ("end_timestamp", 1 << 70, "event_damaged"),
        ("end_timestamp", 1, "event_negative_duration"),
        ("correlation_id", 3, "event_damaged"),
    ],
)
def test_a_damaged_record_costs_itself(tmp_path: Path, change: str, value: Any, loss: str) -> None:
    path = tmp_path / "r.json"
    path.write_text(json.dumps(broken(change, value)))
    frames = read_files([path])
    assert frames["kernels"].height == 39
    assert loss in frames["losses"]["what"].cast(str).to_list()


@pytest.mark.parametrize(("known", "work"), [("kernel_dispatch", True), ("memory_copy", True), ("marker_api", False)])
def test_a_list_that_is_not_known_keeps_its_time_and_is_named(file: Path, known: str, work: bool) -> None:
    document = json.loads(file.read_text())
    (tool,) = document["rocprofiler-sdk-tool"]
    before = times(file, {"marker_api": "annotation", "memory_copy": "memcpy"}.get(known))
    tool["buffer_records"]["kernel_sent"] = tool["buffer_records"].pop(known)
    file.write_text(json.dumps(document))
    assert times(file, "other") == before
    frames = read_files([file])
    others = frames["spans"].filter(pl.col("kind").cast(str) == "other")
    on_device = frames["tracks"].filter(pl.col("device").cast(str) == "cuda:1").select(track="id")
    assert others.join(on_device, on="track", how="semi").height == (others.height if work else 0)
    rows = frames["losses"].filter(pl.col("what").cast(str) == "kind_unknown").select("count", "advice").rows()
    assert [(count, "list 'kernel_sent'" in text) for count, text in rows] == [(len(before), True)]


def test_the_numbers_and_times_that_a_summary_states_are_compared(file: Path) -> None:
    """Given a file of `rocprofv3 --stats`, which sums up its domains: 20 kernels of 100 ns, 20 copies of 50 ns."""
    document = json.loads(file.read_text())
    (tool,) = document["rocprofiler-sdk-tool"]
    sums = {"KERNEL_DISPATCH": (20, 2000), "MEMORY_COPY": (20, 1000), "HIP_API": (40, 300)}
    tool["summary"] = [
        {"domain": domain, "stats": {"count": count, "sum": ns, "mean": 0.5, "operations": []}}
        for domain, (count, ns) in sums.items()
    ]
    file.write_text(json.dumps(document))
    frames = read_files([file])
    compared = json.loads(dict(frames["metadata"].iter_rows())[TOTALS])
    assert [text.rpartition(": ")[2] for text in compared] == ["kernels", "kernels", "copies", "copies"]
    assert "total_differs" not in frames["losses"]["what"].cast(str).to_list()
    tool["buffer_records"]["kernel_dispatch"].pop()
    file.write_text(json.dumps(document))
    differs = read_files([file])["losses"].filter(pl.col("what").cast(str) == "total_differs")
    assert ["states 20 of kernels" in text for text in differs["advice"].to_list()] == [True]


def times(file: Path, kind: str | None) -> list[tuple[int, int]]:
    """Begin and duration of spans of a kind; without one, of kernels and collectives."""
    kinds = ["kernel", "collective"] if kind is None else [kind]
    spans = read_files([file])["spans"].filter(pl.col("kind").cast(str).is_in(kinds))
    return spans.select("ts", "dur").sort("ts").rows()


@pytest.mark.parametrize(
    ("name", "lost"), [("pc_sample_host_trap", "event_unknown_kind"), ("sensors", "event_damaged")]
)
def test_records_without_times_are_counted(file: Path, name: str, lost: str) -> None:
    document = json.loads(file.read_text())
    document["rocprofiler-sdk-tool"][0]["buffer_records"][name] = [{"value": 3}] * 2
    file.write_text(json.dumps(document))
    assert (lost, 2) in read_files([file])["losses"].select(pl.col("what").cast(str), "count").rows()


def test_a_cut_file_is_refused(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-100])
    assert look(file)[0].format == "rocprof"
    with pytest.raises(DamagedTraceError, match="is cut or damaged"):
        read_files([file])


def test_several_processes_are_ranks(tmp_path: Path) -> None:
    for process in (908, 909):
        rocprof_build.write(tmp_path / f"{process}_results.json")
    assert [rank.rank for rank in stepscope.open(tmp_path).ranks] == [0, 1]
