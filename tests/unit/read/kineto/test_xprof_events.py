"""XProf's JSON: the same steps, operators and Python functions as the XPlane file of the same recording."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from pathlib import Path

import polars as pl
import pytest

import stepscope
from stepscope.read import read_files
from stepscope.read.sniff import look
from tests.conftest import WriteTrace

RECORDED = Path(__file__).resolve().parents[3] / "data" / "xplane" / "xprof"


def of_kind(path: Path, kind: str) -> Counter[tuple[str, int]]:
    spans = read_files([path])["spans"].filter(pl.col("kind").cast(pl.String) == kind)
    return Counter(spans.select(pl.col("name").cast(pl.String), "dur").rows())


@pytest.mark.parametrize("name", ["host.trace.json.gz", "perfetto_trace.json.gz"])
def test_json_says_the_same_as_xplane(name: str) -> None:
    json_, planes = RECORDED / name, RECORDED / "host.xplane.pb"
    for kind in ("step", "operator", "python", "runtime"):
        assert of_kind(json_, kind) == of_kind(planes, kind)
        assert of_kind(json_, kind)
    steps, of_planes = (read_files([path])["steps"] for path in (json_, planes))
    assert steps["number"].to_list() == [0, 1, 2]
    assert steps["dur"].to_list() == of_planes["dur"].to_list()
    assert steps["ts"].diff().to_list() == of_planes["ts"].diff().to_list()


@pytest.mark.parametrize("name", ["host.trace.json.gz", "perfetto_trace.json.gz"])
def test_the_steps_of_json_consist_of_the_same_parts(name: str) -> None:
    found = (stepscope.open(RECORDED / one).result("step_trace_time") for one in (name, "host.xplane.pb"))
    of_json, of_planes = (one.drop("Start Time(us)") for one in found)  # type: ignore[union-attr]
    assert of_json.equals(of_planes)
    assert of_planes["Host Only"].sum() > 0


def test_every_event_keeps_its_time() -> None:
    path = RECORDED / "host.trace.json.gz"
    events = [one for one in json.loads(gzip.decompress(path.read_bytes()))["traceEvents"] if one.get("ph") == "X"]
    spans = read_files([path])["spans"].select(pl.col("name").cast(pl.String), "dur").rows()
    assert Counter(spans) == Counter((one["name"], round(one["dur"] * 1000)) for one in events)


def test_beside_the_planes_the_same_events_are_not_read_again() -> None:
    assert [one.name for one in look(RECORDED)] == ["host.xplane.pb"]
    assert stepscope.job(RECORDED).tables.ranks.height == 1


def test_devices_have_streams(write_trace: WriteTrace) -> None:
    def named(process: int, thread: int, what: str, name: str) -> dict[str, object]:
        return {"ph": "M", "pid": process, "tid": thread, "name": what, "args": {"name": name}}

    path = write_trace([
        named(1, 0, "process_name", "/device:GPU:2"), named(1, 9, "thread_name", "Stream #13(Compute,MemcpyH2D)"),
        named(1, 10, "thread_name", "XLA Modules"), named(3, 0, "process_name", "/device:TPU:0"),
        named(3, 7, "thread_name", "XLA Ops"), named(701, 1, "thread_name", "python"),
        named(701, 0, "process_name", "/host:CPU"),
        {"pid": 1, "tid": 9, "ts": 10, "dur": 3, "name": "gemm_fusion_dot"},
        {"pid": 1, "tid": 9, "ts": 14, "dur": 2, "name": "MemcpyH2D"},
        {"pid": 1, "tid": 9, "ts": 17, "dur": 5, "name": "ncclDevKernel_AllReduce_Sum_f32_RING_LL()"},
        {"pid": 1, "tid": 10, "ts": 10, "dur": 12, "name": "jit_step"},
        {"pid": 3, "tid": 7, "ts": 10, "dur": 4, "name": "fusion.1"},
        {"pid": 701, "tid": 1, "ts": 5, "dur": 20, "name": "train", "args": {"step_num": "4"}},
    ])  # fmt: skip
    frames = read_files([path])
    tracks = frames["tracks"].select(track="id", device="device", of="kind", stream="stream")
    rows = frames["spans"].join(tracks, on="track").select("name", "kind", "device", "of", "stream")
    assert set(rows.with_columns(pl.col("name", "kind", "device", "of").cast(pl.String)).rows()) == {
        ("gemm_fusion_dot", "kernel", "cuda:2", "stream", 13),
        ("MemcpyH2D", "memcpy", "cuda:2", "stream", 13),
        ("ncclDevKernel_AllReduce_Sum_f32_RING_LL()", "collective", "cuda:2", "stream", 13),
        ("jit_step", "annotation", "cuda:2", "annotation", None),
        ("fusion.1", "kernel", "tpu:0", "stream", 7),
        ("train", "step", "cpu", "thread", None),
    }
    assert frames["steps"]["number"].to_list() == [4]
    assert frames["kernels"].height == 4
    busy = stepscope.open(path).result("device_time").select("Device_id", "Busy(us)").rows()  # type: ignore[union-attr]
    assert set(busy) == {("cuda:2", 10.0), ("tpu:0", 4.0)}
