"""What a GPU does is in the tables: kernels, streams, copies, memory, graphs, collectives, and the steps' split."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import stepscope

from .conftest import Window

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

Record = Callable[..., Window]


def test_every_kernel_has_its_launch_its_operator_and_its_size(record: Record) -> None:
    # Given: ten products of large matrices, timed by the device itself
    left = torch.randn(2048, 2048, device="cuda")
    times: list[float] = []

    def multiply() -> None:
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for _ in range(10):
            left.mm(left)
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) * 1e6)

    window = record(multiply, record_shapes=True)
    # Then: each product has its kernel, with where it ran and who launched it
    products = window.spans("operator").filter(pl.col("name") == "aten::mm")
    kernels = window.work("kernel")
    mine = kernels.filter(pl.col("operator").is_in(products["id"].to_list()))
    assert products.height == 10
    assert mine.n_unique("operator") == 10
    assert set(mine["device"]) == {f"cuda:{torch.cuda.current_device()}"}
    assert mine.select("grid", "block", "registers", "launch", "correlation").null_count().sum_horizontal().item() == 0
    launches = window.spans("runtime", "driver")
    assert set(mine["launch"]) <= set(launches["id"])
    started = mine.join(launches.select(launch="id", launched="ts"), on="launch")
    assert (started["ts"] >= started["launched"]).all()
    # and their time is what the device measured around them, less the gaps
    assert 0.5 * times[-1] <= mine["dur"].sum() <= 1.02 * times[-1]
    shapes = window.table("operators").filter(pl.col("span").is_in(products["id"].to_list()))["shapes"].cast(pl.String)
    assert {json.dumps(json.loads(text)[:2]) for text in shapes} == {"[[2048, 2048], [2048, 2048]]"}


def test_streams_are_tracks_and_overlap_counts_once(record: Record) -> None:
    # Given: long kernels on two streams at once
    streams = [torch.cuda.Stream() for _ in range(2)]

    def sleep() -> None:
        for stream in streams:
            with torch.cuda.stream(stream):
                torch.cuda._sleep(20_000_000)
        torch.cuda.synchronize()

    window = record(sleep)
    kernels = window.work("kernel")
    assert kernels.n_unique("stream") == 2
    assert kernels.n_unique("track") == 2
    one, other = kernels.partition_by("track")
    overlap = min(one["ts"][0] + one["dur"][0], other["ts"][0] + other["dur"][0]) - max(one["ts"][0], other["ts"][0])
    assert overlap > 0
    device = window.rank.result("device_time")
    assert isinstance(device, pl.DataFrame)
    busy = device["Computing(us)"].item()
    assert busy == pytest.approx((kernels["dur"].sum() - overlap) / 1e3, rel=0.01)


def test_copies_and_fills_have_their_bytes(record: Record) -> None:
    count = 16 << 20
    pinned = torch.empty(count, dtype=torch.uint8, pin_memory=True)
    device, other = (torch.empty(count, dtype=torch.uint8, device="cuda") for _ in range(2))

    def copy() -> None:
        device.copy_(pinned, non_blocking=True)
        other.copy_(device)
        pinned.copy_(other, non_blocking=True)
        other.zero_()

    window = record(copy)
    copies = window.work("memcpy")
    assert [name for name in ("HtoD", "DtoD", "DtoH") if copies["name"].str.contains(name).any()] == [
        "HtoD",
        "DtoD",
        "DtoH",
    ]
    assert set(copies["bytes"]) == {count}
    across = copies.filter(~pl.col("name").str.contains("DtoD"))
    measured = across["bytes"] / across["dur"]
    assert across["bandwidth"].to_list() == pytest.approx(measured.to_list(), rel=0.02)
    fills = window.work("memset")
    assert fills.is_empty() or set(fills["bytes"]) == {count}


def test_memory_is_that_of_the_allocator(record: Record) -> None:
    count = 96 << 20

    def allocate() -> None:
        torch.empty(count, dtype=torch.uint8, device="cuda")

    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated()
    window = record(allocate, warm=False, profile_memory=True)
    rows = window.table("allocations").with_columns(pl.col("device").cast(pl.String))
    rows = rows.filter(pl.col("device") == f"cuda:{torch.cuda.current_device()}")
    assert {count, -count} <= set(rows["bytes"])
    assert rows["allocated"].max() == before + count
    assert rows["reserved"].max() >= before + count
    taken = rows.filter(pl.col("bytes") == count)
    operators = window.spans("operator").filter(pl.col("id").is_in(taken["span"].drop_nulls().to_list()))
    assert operators["name"].to_list() == ["aten::empty"]


def test_a_graph_shows_every_kernel_of_every_replay(record: Record) -> None:
    # Given: a graph of three kernels
    values = torch.ones(1 << 20, device="cuda")
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        values.mul(2).add(1).sqrt()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        values.mul(2).add(1).sqrt()

    def replay() -> None:
        for _ in range(5):
            graph.replay()

    window = record(replay)
    kernels = window.work("kernel")
    assert kernels.height == 15
    launches = window.spans("runtime", "driver").filter(pl.col("name").str.contains("(?i)graphlaunch"))
    assert launches.height == 5
    assert set(kernels["launch"]) == set(launches["id"])
    if kernels["graph"].null_count() < kernels.height:  # Kineto names graphs since torch 2.2
        assert kernels.n_unique("graph") == 1
        assert kernels.n_unique("graph_node") == 3


def test_waits_for_the_device_are_seen(record: Record) -> None:
    def wait() -> None:
        torch.cuda._sleep(50_000_000)
        torch.cuda.synchronize()

    window = record(wait)
    waits = window.spans("runtime", "sync").filter(pl.col("name").str.contains("(?i)synchronize"))
    kernel = window.work("kernel")["dur"].sum()
    assert waits["dur"].max() > 0.5 * kernel


def test_nccl_on_one_device(record: Record, tmp_path: Path, collector: str) -> None:
    if collector == "native":
        pytest.skip("details of collectives are Kineto's; with several ranks, or torch.distributed, it records")
    distributed = torch.distributed
    if not distributed.is_available() or not distributed.is_nccl_available():
        pytest.skip("this torch has no NCCL")
    distributed.init_process_group("nccl", init_method=f"file://{tmp_path / 'store'}", rank=0, world_size=1)
    try:
        values, gathered = torch.ones(1 << 20, device="cuda"), [torch.empty(1 << 20, device="cuda")]

        def communicate() -> None:
            distributed.all_reduce(values)
            distributed.all_gather(gathered, values)

        window = record(communicate)
    finally:
        distributed.destroy_process_group()
    rows = window.table("collectives").with_columns(pl.col("operation", "dtype").cast(pl.String))
    calls = rows.filter(pl.col("group_size") == 1)
    assert calls["operation"].str.contains("(?i)all_?reduce").any()
    assert calls["operation"].str.contains("(?i)all_?gather").any()
    assert set(calls["dtype"].str.to_lowercase()) <= {"float", "float32"}
    assert 4 << 20 in set(calls["bytes_in"])


def train(steps: int, after: Callable[[], object] = lambda: None) -> list[float]:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(512, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 512)).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    losses = []
    for _ in range(steps):
        with stepscope.span("batch", images=256):
            batch = torch.randn(256, 512, generator=torch.Generator().manual_seed(1)).cuda()
        loss = model(batch).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss))
        after()
    return losses


def test_training_is_the_same_and_steps_are_split(tmp_path: Path, collector: str) -> None:
    alone = train(8)
    schedule = stepscope.schedule(wait=1, warmup=1, active=4, repeat=1)
    output = tmp_path / "runs"
    with stepscope.profile(schedule=schedule, output=output, analyse="later", collector=collector) as profile:
        watched = train(8, profile.step)
    assert watched == alone
    (recorded,) = profile.recorded
    assert recorded.wait(120)
    window = Window(recorded.path)
    steps = window.table("steps")
    assert steps["number"].to_list() == [2, 3, 4, 5]
    split = window.rank.result("step_trace_time")
    assert isinstance(split, pl.DataFrame)
    assert split["Step"].to_list() == [2, 3, 4, 5]
    for row, dur in zip(split.iter_rows(named=True), steps["dur"], strict=True):
        whole = row["Computing"] + row["Communication(Not Overlapped)"] + row["Free"]
        assert whole == pytest.approx(dur / 1e3, abs=0.002)
        assert row["Computing"] > 0
    phases = window.spans("kernel")["phase"].cast(pl.String)
    assert {"forward", "backward", "optimizer"} <= set(phases.drop_nulls())
    assert window.spans("annotation").filter(pl.col("name") == "batch").height == 4


def test_several_windows_each_have_their_kernels(tmp_path: Path, collector: str) -> None:
    # pytorch#192021: some CUPTI lose the kernels of a session's first moments; warmup is there for that.
    schedule = stepscope.schedule(wait=1, warmup=2, active=2, repeat=3)
    output = tmp_path / "runs"
    with stepscope.profile(schedule=schedule, output=output, analyse="later", collector=collector) as profile:
        train(18, profile.step)
    assert len(profile.recorded) == 3
    counts = []
    for recorded in profile.recorded:
        assert recorded.wait(120)
        counts.append(Window(recorded.path).work("kernel").height)
    assert min(counts) > 0.9 * max(counts)


def test_running_out_of_memory_stays_the_trainings_error(tmp_path: Path, collector: str) -> None:
    profile = stepscope.profile(output=tmp_path / "runs", analyse="later", collector=collector)
    with pytest.raises(torch.cuda.OutOfMemoryError), profile:
        torch.ones(4, device="cuda").add(1)
        torch.empty(1 << 50, dtype=torch.uint8, device="cuda")
    (recorded,) = profile.recorded
    assert recorded.wait(120)
    assert Window(recorded.path).work("kernel").height > 0


def test_the_doctor_finds_the_gpu(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    from stepscope.cli.main import main

    assert main(["doctor", "--json", "--output", str(tmp_path)]) == 0
    findings: dict[str, Any] = {check["name"]: check for check in json.loads(capsys.readouterr().out)}
    assert findings["GPU kernels"]["state"] == "yes", findings["GPU kernels"]
