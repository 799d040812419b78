"""Profile files of fluid.profiler → tables: of paddlepaddle 1.8.5, of 3.3.1's old bindings, and made for a GPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
import pytest

from stepscope.errors import DamagedTraceError, InputError, NotATraceError
from stepscope.read import read_files
from stepscope.read.paddle import fluid_profile
from stepscope.read.sniff import look
from stepscope.trace.losses import LossLedger
from stepscope.trace.tables import Frames
from tests import paddle_schemas

DATA = Path(__file__).resolve().parents[3] / "data" / "paddle" / "fluid185"
START = 1_700_000_000_000_000_000
US = 1000


def losses(frames: Frames) -> dict[str, int]:
    return dict(frames["losses"].select(pl.col("what").cast(pl.String), "count").iter_rows())


def counted(frames: Frames, kind: str) -> dict[str, int]:
    spans = frames["spans"].filter(kind=kind)
    return dict(spans.group_by(pl.col("name").cast(pl.String)).len().iter_rows())


def test_operators_their_parts_and_blocks() -> None:
    frames = read_files([DATA / "all_total.pb"])
    assert counted(frames, "operator") == {"feed": 4, "conv2d": 8, "elementwise_add": 8, "relu": 4}
    parts = counted(frames, "annotation")
    assert parts["conv2d/compute"] == 8
    assert parts["block_0"] == 4
    inside = frames["spans"].filter(pl.col("name").cast(pl.String) == "conv2d/compute")
    around = frames["spans"].join(inside.select(id="parent"), on="id")
    assert set(around["name"].cast(pl.String)) == {"conv2d"}
    assert losses(frames) == {}


def test_every_run_of_the_executor_is_a_step() -> None:
    frames = read_files([DATA / "all_total.pb"])
    steps = frames["steps"]
    assert steps["number"].to_list() == [0, 1, 2, 3]
    assert set(steps["source"]) == {"inferred"}
    assert (steps["ts"] + steps["dur"])[:-1].to_list() == steps["ts"][1:].to_list()
    assert frames["spans"].filter(kind="operator")["step"].null_count() == 0


def test_threads_have_tracks_and_the_one_that_runs_most_has_the_steps() -> None:
    frames = read_files([DATA / "threads_total.pb"])
    assert sorted(frames["tracks"]["name"]) == ["thread 0", "thread 1", "thread 2"]
    assert frames["steps"].height == 3


def test_memory_lies_in_the_operators_that_took_it() -> None:
    frames = read_files([DATA / "all_total.pb"])
    allocations = frames["allocations"]
    assert allocations["bytes"].sum() == 0
    assert allocations["allocated"].min() == 0
    taken = allocations.filter(pl.col("bytes") > 0).join(
        frames["spans"].select(span="id", operator=pl.col("name").cast(pl.String)), on="span", how="left"
    )
    assert dict(taken.group_by("operator").len().iter_rows()) == {
        None: 4,
        "conv2d": 16,
        "elementwise_add": 8,
        "relu": 4,
    }


def test_phases_of_a_training(shared_data: Path) -> None:
    frames = read_files([shared_data / "paddle" / "fluid185" / "train100.pb"])
    operators = frames["spans"].filter(kind="operator")
    phases = dict(operators.group_by(pl.col("phase").cast(pl.String)).len().iter_rows())
    assert phases == {"forward": 900, "backward": 900, "optimizer": 400, "other": 400}
    assert frames["steps"].height == 100
    assert losses(frames) == {}


def test_what_the_old_bindings_of_paddle_3_write(shared_data: Path) -> None:
    path = shared_data / "paddle" / "fluid_profile_from_331.pb"
    frames = read_files([path])
    assert look(path)[0].format == "fluid"
    assert counted(frames, "operator") == {"feed": 2, "conv2d": 2, "elementwise_add": 2, "fetch_v2": 2}
    assert frames["steps"].height == 2


def test_a_profile_without_events() -> None:
    frames = read_files([DATA / "empty.pb"])
    assert frames["spans"].is_empty()
    assert losses(frames) == {}


def a_gpu_profile() -> Any:
    profile = paddle_schemas.profile()(start_ns=0, end_ns=0)

    def add(name: str, ts: int, dur: int, where: tuple[int, int], **further: Any) -> None:
        device, sub = where
        profile.events.add(
            name=name,
            start_ns=START + ts * US,
            end_ns=START + (ts + dur) * US,
            device_id=device,
            sub_device_id=sub,
            **further,
        )

    for step in (0, 100):
        add("conv2d", step, 20, (2, 0), type=0)
        add("conv2d/compute", step + 2, 15, (2, 0), type=0)
        add("cudaLaunchKernel", step + 5, 3, (-1, 0), type=0)
        add("conv2d/compute", step + 30, 40, (0, 7), type=1, detail_info="implicit_gemm<float>")
        add("MEMCPY_HtoD", step + 80, 4, (0, 7), type=1, memcopy={"bytes": 4096})
        add("MEMSET", step + 90, 1, (0, 9), type=1)
    return profile


def test_kernels_lie_on_streams_under_their_own_names(tmp_path: Path) -> None:
    path = tmp_path / "gpu_profile"
    path.write_bytes(a_gpu_profile().SerializeToString())
    frames = read_files([path])
    assert counted(frames, "kernel") == {"implicit_gemm<float>": 2}
    assert counted(frames, "memcpy") == {"MEMCPY_HtoD": 2}
    assert counted(frames, "memset") == {"MEMSET": 2}
    assert counted(frames, "runtime") == {"cudaLaunchKernel": 2}
    tracks = frames["tracks"].filter(kind="stream").select("device", "stream").cast({"device": pl.String})
    assert sorted(tracks.rows()) == [("cuda:0", 7), ("cuda:0", 9)]
    assert frames["kernels"]["bytes"].drop_nulls().to_list() == [4096, 4096]
    # The format does not say which call launched what.
    assert losses(frames) == {"correlation_dangling": 6}


def test_a_kernel_belongs_to_the_last_operator_of_its_name_that_began_before(tmp_path: Path) -> None:
    path = tmp_path / "gpu_profile"
    path.write_bytes(a_gpu_profile().SerializeToString())
    frames = read_files([path])
    spans = frames["spans"]
    start = dict(spans.select("id", "ts").iter_rows())
    name = dict(spans.select("id", pl.col("name").cast(pl.String)).iter_rows())
    kernels = frames["kernels"].filter(pl.col("operator").is_not_null())
    found = [(start[span], name[operator], start[operator]) for span, operator in kernels["span", "operator"].rows()]
    assert sorted(found) == [(START + (at + 30) * US, "conv2d", START + at * US) for at in (0, 100)]


def test_bad_times_are_counted_and_left_out(tmp_path: Path) -> None:
    profile = paddle_schemas.profile()(start_ns=0, end_ns=0)
    profile.events.add(name="good", start_ns=START, end_ns=START + 5)
    profile.events.add(name="backwards", start_ns=START, end_ns=START - 5)
    profile.events.add(name="far", start_ns=(1 << 64) - 1, end_ns=(1 << 64) - 1)
    profile.events.add(start_ns=START, end_ns=START + 5)
    path = tmp_path / "profile"
    path.write_bytes(profile.SerializeToString())
    frames = read_files([path])
    assert frames["spans"]["name"].cast(pl.String).to_list() == ["good"]
    assert losses(frames) == {"event_negative_duration": 1, "event_bad_time": 1, "event_damaged": 1}


def test_other_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"\n\n\n{}")
    with pytest.raises(NotATraceError, match=r"is not a profile file of paddle\.fluid\.profiler"):
        fluid_profile.load(path, LossLedger("x"))
    path.write_bytes((DATA / "all_total.pb").read_bytes()[:20])
    with pytest.raises(InputError):
        read_files([path])


def test_a_file_that_ends_in_its_first_event_is_damaged(tmp_path: Path) -> None:
    path = tmp_path / "profile"
    path.write_bytes((DATA / "all_total.pb").read_bytes()[:25])
    with pytest.raises(DamagedTraceError, match="before its first event"):
        read_files([path])
