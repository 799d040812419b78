"""Buffers of CUPTI become the right rows: every kind, every layout; damage is counted."""

from __future__ import annotations

import gzip
import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from stepscope.read import read_files
from stepscope.read.cupti.activity_records import RecordDecoder
from stepscope.read.cupti.occupancy import achieved, active_blocks, cuda_device
from stepscope.read.sniff import look
from stepscope.trace.cupti_layout import Kind, cuda_of, layout_of
from stepscope.trace.losses import LossLedger
from stepscope.trace.schema import GAPS
from tests.conftest import WriteTrace
from tests.unit.cupti_build import VERSIONS, File, record
from tests.unit.recorder_build import without

EPOCH = 1_700_000_000_000_000_000


def names(frame: pl.DataFrame, column: str = "name") -> list[str]:
    return frame[column].cast(pl.String).to_list()


def losses(frames: dict[str, pl.DataFrame]) -> dict[str, int]:
    table = frames["losses"]
    return dict(zip(table["what"].cast(pl.String).to_list(), table["count"].to_list(), strict=True))


@pytest.mark.parametrize(("cuda", "kind"), [(cuda, kind) for cuda in VERSIONS for kind in layout_of(cuda).sizes])
def test_every_field_of_every_kind_in_every_layout(kind: Kind, cuda: int) -> None:
    layout = layout_of(cuda)
    # Given: records in which every field has its own value, between records of other kinds
    fields = {name: 1 + place for place, name in enumerate(layout.fields(kind))}
    other = Kind.EXTERNAL_CORRELATION if kind is not Kind.EXTERNAL_CORRELATION else Kind.CONTEXT
    foreign = record(layout, other)
    mine = [record(layout, kind, **{name: value * factor for name, value in fields.items()}) for factor in (1, 2)]
    ledger = LossLedger("file")
    decoder = RecordDecoder(layout, ledger)
    # When: they are decoded
    decoder.add(b"".join([foreign, mine[0], foreign, foreign, mine[1]]), {})
    # Then: every value is where it was put
    found = decoder.of(kind)
    assert len(found) == 2
    assert len(decoder.of(other)) == 3
    for name, value in fields.items():
        assert found[name].tolist() == [value, 2 * value], name
    assert [loss.what for loss in ledger.rows() if loss.severity != "info"] == []


def test_versions_are_told_apart_by_number_and_file_name() -> None:
    assert cuda_of(17, 11) == 1106
    assert cuda_of(18, 11) == 1108
    assert cuda_of(18, 12) == 1200  # CUDA 12.0 and 12.1 say what 11.8 says
    assert cuda_of(28, 12) == 1209
    assert cuda_of(130001, 13) == 1300
    assert layout_of(1108).sizes[Kind.CONCURRENT_KERNEL] == 200
    assert layout_of(1200).sizes[Kind.CONCURRENT_KERNEL] == 208


@pytest.mark.parametrize(
    ("version", "major"), [(12, 10), (25, 12), (29, 12), (130600, 13), (140000, 14), (130001, 12), (0, 0)]
)
def test_an_unknown_version_is_refused(version: int, major: int) -> None:
    with pytest.raises(ValueError, match=f"version {version} "):
        cuda_of(version, major)


def a_capture(path: Path) -> File:
    """One of everything, on the clock of CUPTI: 10 µs apart, from 10 µs on."""
    file = File(path)
    make = file.record
    file.names(
        [
            (0xABC0, "_Z3addPf", "add(float*)"),
            (0xABD0, "ncclDevKernel_AllReduce_Sum_f32", "ncclDevKernel_AllReduce_Sum_f32(x)"),
        ]
    )
    place = {"device": 0, "context": 1, "stream": 7}
    file.buffer(
        make(Kind.CONTEXT, context=1, device=0),
        make(Kind.RUNTIME, callback=211, start=10_000, end=12_000, process=4711, thread=4712, correlation=1),
        make(
            Kind.CONCURRENT_KERNEL,
            start=15_000,
            end=18_000,
            correlation=1,
            name=0xABC0,
            registers=32,
            static_shared=1024,
            dynamic_shared=512,
            cache=0x12,
            grid_x=264,
            grid_y=2,
            grid_z=1,
            block_x=128,
            block_y=1,
            block_z=2,
            graph=3,
            graph_node=9,
            **place,
        ),
        make(Kind.RUNTIME, callback=41, start=20_000, end=22_000, process=4711, thread=4712, correlation=2),
        make(
            Kind.MEMCPY,
            copy_kind=1,
            source_kind=2,
            destination_kind=3,
            bytes=4096,
            start=25_000,
            end=27_000,
            correlation=2,
            **place,
        ),
        make(Kind.MEMSET, bytes=64, memory_kind=3, start=30_000, end=31_000, correlation=3, **place),
        make(
            Kind.MEMCPY2,
            copy_kind=10,
            source_kind=3,
            destination_kind=3,
            bytes=1 << 20,
            start=35_000,
            end=39_000,
            source_device=0,
            destination_device=1,
            correlation=4,
            **place,
        ),
    )
    file.buffer(
        make(Kind.DRIVER, callback=307, start=40_000, end=41_000, process=4711, thread=4713, correlation=5),
        make(
            Kind.CONCURRENT_KERNEL,
            start=45_000,
            end=49_000,
            correlation=5,
            name=0xABD0,
            grid_x=1,
            grid_y=1,
            grid_z=1,
            block_x=32,
            block_y=1,
            block_z=1,
            **{**place, "stream": 20},
        ),
        make(Kind.SYNCHRONIZATION, sort=3, start=50_000, end=52_000, context=1, stream=7, correlation=6),
        make(Kind.OVERHEAD, overhead_kind=1 << 16, start=60_000, end=61_000),
        make(Kind.EXTERNAL_CORRELATION, external=77, correlation=1),
        make(
            Kind.MEMORY2,
            operation=1,
            memory_kind=3,
            address=0xFF00_0000_0000_0000,
            bytes=512,
            start=70_000,
            device=0,
            process=4711,
        ),
        make(
            Kind.MEMORY2,
            operation=2,
            memory_kind=3,
            address=0xFF00_0000_0000_0000,
            bytes=512,
            start=71_000,
            device=0,
            process=4711,
        ),
        make(Kind.MEMORY2, operation=1, memory_kind=2, address=1, bytes=512, start=72_000, device=0, process=4711),
    )
    return file


def test_everything_becomes_rows(tmp_path: Path) -> None:
    path = a_capture(tmp_path / "cupti.ssc").close()
    assert look(path)[0].format == "cupti"
    frames = read_files([path])
    assert losses(frames) == {"correlation_dangling": 2}
    spans = (
        frames["spans"].join(frames["tracks"].select(track="id", lane="name", device="device"), on="track").sort("ts")
    )
    rows = list(zip(names(spans, "kind"), names(spans), spans["lane"], names(spans, "device"), strict=True))
    assert rows == [
        ("runtime", "cudaLaunchKernel", "thread 4712", "cpu"),
        ("kernel", "add(float*)", "stream 7", "cuda:0"),
        ("runtime", "cudaMemcpyAsync", "thread 4712", "cpu"),
        ("memcpy", "Memcpy HtoD (Pinned -> Device)", "stream 7", "cuda:0"),
        ("memset", "Memset (Device)", "stream 7", "cuda:0"),
        ("memcpy", "Memcpy PtoP (Device -> Device)", "stream 7", "cuda:0"),
        ("driver", "cuLaunchKernel", "thread 4713", "cpu"),
        ("collective", "ncclDevKernel_AllReduce_Sum_f32(x)", "stream 20", "cuda:0"),
        ("sync", "Stream Sync", "stream 7 synchronisation", "cuda:0"),
        ("overhead", "Buffer Flush", "profiler overhead", "cpu"),
    ]
    assert spans["ts"].to_list() == [EPOCH + 1000 * at for at in (10, 15, 20, 25, 30, 35, 40, 45, 50, 60)]
    assert spans["dur"].to_list() == [2_000, 3_000, 2_000, 2_000, 1_000, 4_000, 1_000, 4_000, 2_000, 1_000]


def test_details_of_the_work(tmp_path: Path) -> None:
    frames = read_files([a_capture(tmp_path / "cupti.ssc").close()])
    kernels = frames["kernels"].join(frames["spans"].select(span="id", ts="ts"), on="span").sort("ts")
    first, copy, fill, between, last = kernels.rows(named=True)
    assert first["grid"] == [264, 2, 1]
    assert first["block"] == [128, 1, 2]
    assert (first["device"], first["context"], first["stream"]) == (0, 1, 7)
    assert (first["registers"], first["shared_memory"], first["graph"], first["graph_node"]) == (32, 1536, 3, 9)
    assert (first["blocks_per_sm"], first["warps_per_sm"]) == (4.0, 32.0)
    assert first["occupancy"] == 50.0  # four blocks of 256 threads, of 2048
    assert (copy["bytes"], copy["bandwidth"], copy["grid"], copy["registers"]) == (4096, 2.048, None, None)
    assert (fill["bytes"], fill["bandwidth"], fill["graph"]) == (64, None, None)
    assert between["bytes"] == 1 << 20
    calls = frames["spans"].filter(pl.col("kind").is_in(["runtime", "driver"])).sort("ts")["id"].to_list()
    assert kernels["launch"].to_list() == [calls[0], calls[1], None, None, calls[2]]
    assert last["bytes"] is None
    assert frames["allocations"].select("bytes", "ts").rows() == [(512, EPOCH + 70_000), (-512, EPOCH + 71_000)]
    facts = dict(frames["metadata"].rows())
    assert json.loads(facts["deviceProperties"])[0]["name"] == "NVIDIA H100 80GB HBM3"
    assert json.loads(facts["cuda"]) == "13.0"


def test_work_belongs_to_the_operator_of_another_capture(tmp_path: Path, write_trace: WriteTrace) -> None:
    # Given: operators of a framework on two threads, in a capture that knows no device
    operators = [
        {"cat": "cpu_op", "name": "outer", "pid": 4711, "tid": 4712, "ts": 5.0, "dur": 20.0},
        {"cat": "cpu_op", "name": "inner", "pid": 4711, "tid": 4712, "ts": 9.0, "dur": 4.0},
        {"cat": "cpu_op", "name": "elsewhere", "pid": 4711, "tid": 4713, "ts": 9.0, "dur": 4.0},
    ]
    trace = write_trace(operators, baseTimeNanoseconds=EPOCH)
    frames = read_files([trace, a_capture(tmp_path / "cupti.ssc").close()])
    # Then: each piece of work belongs to the innermost operator around the call that launched it
    spans = frames["spans"].select("id", pl.col("name").cast(pl.String))
    work = frames["kernels"].join(spans.rename({"id": "operator", "name": "by"}), on="operator", how="left")
    work = work.join(spans.rename({"id": "span", "name": "what"}), on="span")
    assert dict(work.select("what", "by").rows()) == {
        "add(float*)": "inner",
        "Memcpy HtoD (Pinned -> Device)": "outer",
        "Memset (Device)": None,
        "Memcpy PtoP (Device -> Device)": None,
        "ncclDevKernel_AllReduce_Sum_f32(x)": None,
    }
    threads = frames["tracks"].filter(pl.col("thread") == 4712)
    assert threads.height == 1


def test_a_name_counts_as_it_was_when_its_buffer_was_full(tmp_path: Path) -> None:
    file = File(tmp_path / "cupti.ssc")
    for number, symbol in enumerate(("_Z1av", "_Z1bv")):  # a module was unloaded, another took its place
        file.names([(0x10, symbol, symbol)])
        file.buffer(file.record(Kind.CONCURRENT_KERNEL, start=10 + number, end=11 + number, name=0x10))
    file.buffer(file.record(Kind.CONCURRENT_KERNEL, start=20, end=21, name=0x99))
    frames = read_files([file.close()])
    assert names(frames["spans"].sort("ts")) == ["_Z1av", "_Z1bv", "unknown kernel"]
    assert losses(frames)["device_name_missing"] == 1


def test_impossible_records_are_counted_and_left_out(tmp_path: Path) -> None:
    file = File(tmp_path / "cupti.ssc")
    make = file.record
    file.buffer(
        make(Kind.CONCURRENT_KERNEL, start=10, end=20),
        make(Kind.CONCURRENT_KERNEL, start=0, end=0),
        make(Kind.CONCURRENT_KERNEL, start=20, end=10),
        make(Kind.CONCURRENT_KERNEL, start=1 << 63, end=(1 << 63) + 1),
        make(Kind.CONCURRENT_KERNEL, start=10, end=20, device=0xFFFF_FFFF),
        make(Kind.MEMORY2, operation=7, memory_kind=3, start=10),
    )
    frames = read_files([file.close()])
    assert frames["spans"].height == 1
    found = losses(frames)
    assert found["event_without_duration"] == 1
    assert found["event_negative_duration"] == 1
    assert found["event_bad_time"] == 1
    assert found["device_records_damaged"] == 2


@pytest.mark.parametrize("damage", ["unknown kind", "cut", "zeros"])
def test_what_lies_before_a_damage_is_used(tmp_path: Path, damage: str) -> None:
    file = File(tmp_path / "cupti.ssc")
    good = [file.record(Kind.CONCURRENT_KERNEL, start=10 + n, end=11 + n) for n in range(5)]
    bad = {"unknown kind": b"\x77" * 64, "cut": good[0][:100], "zeros": bytes(64)}[damage]
    file.buffer(*good, bad)
    frames = read_files([file.close()])
    assert frames["spans"].height == 5
    assert losses(frames)["device_records_damaged"] == 1


def test_what_was_lost_while_recording_is_shown(tmp_path: Path) -> None:
    file = File(tmp_path / "cupti.ssc")
    file.facts(losses={"device_records_dropped": 3, "device_buffers_lost": 0})
    path = file.path
    file.frames.close()  # the process was killed
    found = losses(read_files([path]))
    assert found["device_records_dropped"] == 3
    assert found["ended_abruptly"] == 1
    assert "device_buffers_lost" not in found


@pytest.mark.parametrize(
    ("block", "gaps"),
    [(None, []), (2, [[1.0, 3.0]]), (4, [[2.0, 4.0]]), ("end", [[3.0, None]])],
)
def test_it_is_known_when_records_are_missing(
    tmp_path: Path, block: int | str | None, gaps: list[list[float | None]]
) -> None:
    # Given: block 0 says when the recording began; then buffers follow, each behind the time at which it is written
    file = File(tmp_path / "cupti.ssc")
    for seconds in (2, 3, 4):
        at = seconds * 1_000_000_000
        file.facts(anchors=[(at, EPOCH + at, 10)])
        file.buffer(file.record(Kind.CONCURRENT_KERNEL, start=at - 500, end=at - 100))
    path = file.path if block == "end" else file.close()
    frames = read_files([without(path, block) if isinstance(block, int) else path])
    (said,) = frames["metadata"].filter(pl.col("key") == GAPS)["value"].to_list() or ["[]"]
    seconds = [[None if at is None else (at - EPOCH) / 1e9 for at in gap] for gap in json.loads(said)]
    assert seconds == gaps


def test_random_damage_never_crashes(tmp_path: Path) -> None:
    chance = random.Random(5)
    layout = layout_of(1300)
    make = [
        record(layout, kind, start=5, end=9)
        if "start" in layout.fields(kind) and "end" in layout.fields(kind)
        else record(layout, kind)
        for kind in layout.sizes
    ]
    whole = b"".join(chance.choices(make, k=300))
    for attempt in range(150):
        damaged = bytearray(whole)
        for _ in range(chance.randint(1, 30)):
            start = chance.randrange(len(damaged))
            damaged[start : start + chance.randint(0, 9)] = chance.randbytes(chance.randint(0, 9))
        file = File(tmp_path / f"{attempt}.ssc")
        file.buffer(bytes(damaged))
        read_files([file.close()])


def test_blocks_that_are_none_of_ours_are_counted(tmp_path: Path) -> None:
    file = a_capture(tmp_path / "cupti.ssc")
    for payload in (b"", b"X", b"Rnothing", b"Fnothing", b"R" + b"x" * 100):
        file.frames.append(payload)
    file.facts(cuda=9900)
    frames = read_files([file.close()])
    assert losses(frames)["journal_unreadable"] == 6
    assert frames["spans"].height == 10


@pytest.mark.slow
def test_occupancy_is_kinetos(shared_data: Path) -> None:
    # Given: every kernel of real captures whose devices are described (V100, A100, H100, B200)
    limits = {(7, 5): 16, (8, 6): 16, (8, 9): 24}
    compared = 0
    for path in sorted((shared_data / "kineto").rglob("*.json*")):
        document = kernels_of(path)
        for properties, arguments in document:
            threads = np.array([[*row["block"]] for row in arguments]).prod(axis=1)
            blocks = np.array([[*row["grid"]] for row in arguments]).prod(axis=1)
            device = cuda_device(
                {
                    "major": properties["computeMajor"],
                    "multiprocessors": properties["numSms"],
                    "threads": properties["maxThreadsPerMultiprocessor"],
                    "warp_threads": properties["warpSize"],
                    "blocks": limits.get((properties["computeMajor"], properties["computeMinor"]), 32),
                    "registers": properties["regsPerMultiprocessor"],
                    "registers_per_block": properties["regsPerBlock"],
                    "shared_memory": properties["sharedMemPerMultiprocessor"],
                }
            )
            assert device is not None
            registers = np.array([row["registers per thread"] for row in arguments])
            shared = np.array([row["shared memory"] for row in arguments])
            ours = achieved(device, blocks, threads, active_blocks(device, threads, registers, shared))
            theirs = np.array([row["est. achieved occupancy %"] for row in arguments])
            # Then: ours is Kineto's, but for large shared memory, where Kineto says 0
            usual = (shared <= 48 << 10) | (theirs > 0)
            assert ours[usual].tolist() == theirs[usual].tolist(), path
            compared += int(usual.sum())
    assert compared > 20_000


def kernels_of(path: Path) -> list[tuple[dict[str, Any], list[dict[str, Any]]]]:
    """Return the described devices of a capture, each with the arguments of its kernels."""
    content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    try:
        document = json.loads(content, strict=False)
    except ValueError:
        return []
    if not isinstance(document, dict):
        return []
    devices = {row.get("id"): row for row in document.get("deviceProperties", []) if row.get("regsPerMultiprocessor")}
    found: dict[int, list[dict[str, Any]]] = {}
    for event in document.get("traceEvents", []):
        arguments = event.get("args", {})
        if (
            event.get("cat") == "kernel"
            and "est. achieved occupancy %" in arguments
            and arguments.get("device") in devices
        ):
            found.setdefault(arguments["device"], []).append(arguments)
    return [(devices[number], rows) for number, rows in found.items()]
