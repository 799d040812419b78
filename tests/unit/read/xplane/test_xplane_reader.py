"""XPlane files → tables: files written by Google's library, of what the real captures do not have."""

from __future__ import annotations

import gzip
import random
import shutil
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import polars as pl
import pytest

from stepscope.cli.main import main
from stepscope.errors import InputError, NotATraceError
from stepscope.read import read_files, sniff
from stepscope.read.xplane import xplane_events, xplane_kinds
from stepscope.read.xplane.compiled_programs import module
from stepscope.trace.tables import Frames
from stepscope.trace.xplane_marks import NATIVE_ID, THREAD_MARK
from tests.xplane_schemas import PlaneBuilder, xspace

SAMPLE = Path(__file__).resolve().parents[3] / "data" / "xplane" / "steps.xplane.pb"
START = 1_795_000_000_000_000_123


def read(tmp_path: Path, fill: Callable[[Any], None], start: int | None = START) -> Frames:
    """Read a file that a function fills."""
    space = xspace()()
    fill(space)
    if start is not None:
        PlaneBuilder(space, "Task Environment", profile_start_time=start)
    path = tmp_path / "host.xplane.pb"
    path.write_bytes(space.SerializeToString())
    return read_files([path])


def spans(frames: Frames) -> pl.DataFrame:
    return frames["spans"].with_columns(pl.col("name", "kind").cast(pl.String))


def losses(frames: Frames) -> dict[str, int]:
    return dict(frames["losses"].select(pl.col("what").cast(pl.String), "count").iter_rows())


def test_times_are_rounded_to_ns_and_count_from_the_beginning_of_the_recording(tmp_path: Path) -> None:
    def fill(space: Any) -> None:
        plane = PlaneBuilder(space, "/host:CPU", process_id=7)
        line = plane.line("python", timestamp_ns=1_000)
        plane.event(line, "outer", 0.4, 10.2)
        plane.event(line, "inner", 0.5, 10.1)
        late = plane.line("other", 2, timestamp_ns=START + 5)
        plane.event(late, "absolute", 1, 1)

    found = spans(read(tmp_path, fill)).select("name", "ts", "dur", "depth").rows()
    assert sorted(found) == [
        ("absolute", START + 6, 1, 0),
        # 10.6 ns end at 11: what lay within still does.
        ("inner", START + 1_001, 10, 1),
        ("outer", START + 1_000, 11, 0),
    ]


def test_a_file_that_does_not_say_when_it_began(tmp_path: Path) -> None:
    def fill(space: Any) -> None:
        plane = PlaneBuilder(space, "/host:CPU")
        plane.event(plane.line("python"), "load", 5, 1)

    frames = read(tmp_path, fill, start=None)
    assert frames["spans"]["ts"].to_list() == [5]
    assert losses(frames) == {"start_unknown": 1}


def test_noise_and_sums_are_left_out_and_counted(tmp_path: Path) -> None:
    def fill(space: Any) -> None:
        plane = PlaneBuilder(space, "/host:CPU")
        line = plane.line("tf_XLAEigen/1")
        for name in ("ThreadpoolListener::Record", "ThreadpoolListener::StartRegion", "end: dot", "ends"):
            plane.event(line, name, 0, 1)
        line.events.add(metadata_id=plane.event_metadata("sum"), num_occurrences=9, duration_ps=10)
        plane.event(line, "backwards", 5, -3)
        line.events.add(metadata_id=99, offset_ps=1)

    frames = read(tmp_path, fill)
    assert spans(frames)["name"].to_list() == ["ends"]
    assert losses(frames) == {
        "event_noise": 3,
        "event_aggregate": 1,
        "event_negative_duration": 1,
        "event_damaged": 1,
    }


def test_values_of_arguments_of_every_kind(tmp_path: Path) -> None:
    def fill(space: Any) -> None:
        plane = PlaneBuilder(space, "/host:CPU")
        event = plane.event(plane.line("python"), "load", 0, 1, signed=-3, double=0.5, text="by reference", _r=1)
        event.stats.add(metadata_id=plane.stat_metadata("unsigned"), uint64_value=2**64 - 1)
        event.stats.add(metadata_id=plane.stat_metadata("inline"), str_value="größe")
        event.stats.add(metadata_id=plane.stat_metadata("bytes"), bytes_value=b"\x00\xff")
        packed = zlib.compress(b"long text")
        event.stats.add(metadata_id=plane.stat_metadata("compressed"), compressed_str_value=packed)
        event.stats.add(metadata_id=plane.stat_metadata("strange"), compressed_str_value=b"?")
        event.stats.add(metadata_id=plane.stat_metadata("nothing"))

    frames = read(tmp_path, fill)
    assert dict(frames["arguments"].select(pl.col("key").cast(pl.String), "value").iter_rows()) == {
        "signed": "-3",
        "double": "0.5",
        "text": '"by reference"',
        "unsigned": "18446744073709551615",
        "inline": '"gr\\u00f6\\u00dfe"',
        "bytes": '"00ff"',
        "compressed": '"long text"',
        "strange": "null",
        "nothing": "null",
    }
    assert losses(frames) == {"value_unreadable": 1}


def test_what_runs_on_threads(tmp_path: Path) -> None:
    kind_of = {
        "$train.py:3 step": "python",
        "PjitFunction(step)": "runtime",
        "my own range": "annotation",
        "CommonPjRtBuffer::Await": "runtime",
    }

    def fill(space: Any) -> None:
        plane = PlaneBuilder(space, "/host:CPU")
        python, own = plane.line("python"), plane.line("tf_XLAEigen/2", 2)
        for place, name in enumerate(kind_of):
            plane.event(python, name, place, 1)
        plane.event(python, "train", 20, 5, step_num=4)
        plane.event(own, "dce", 0, 1)
        plane.event(own, "dot.3", 2, 1, hlo_op="dot.3", hlo_module="jit_f", program_id=1, run_id=5)
        plane.event(own, "all-reduce.1", 4, 1, hlo_op="all-reduce.1", hlo_module="jit_f", program_id=1, run_id=5)
        plane.event(own, "cuLaunchKernel", 6, 1, hlo_op="dot.3", program_id=1, correlation_id=77)

    frames = read(tmp_path, fill)
    found = dict(spans(frames).select("name", "kind").iter_rows())
    rest = {"train": "step", "dce": "runtime", "dot.3": "operator", "all-reduce.1": "collective"}
    assert found == {**kind_of, **rest, "cuLaunchKernel": "runtime"}
    assert frames["steps"].select("number", "dur").rows() == [(4, 5)]
    # The program is not in the file, but the instruction's name tells.
    assert frames["collectives"]["operation"].cast(pl.String).to_list() == ["allreduce"]
    assert frames["operators"].height == 2


def test_a_marked_thread_is_known_by_its_native_number(tmp_path: Path) -> None:
    def fill(space: Any) -> None:
        plane = PlaneBuilder(space, "/host:CPU", process_id=4711)
        line = plane.line("python", 123_456_789_012)
        plane.event(line, THREAD_MARK, 0, 0, **{NATIVE_ID: 4712})
        plane.event(line, "load", 1, 1)

    frames = read(tmp_path, fill)
    assert frames["tracks"].select("process", "thread").rows() == [(4711, 4712)]
    assert spans(frames)["name"].to_list() == ["load"]


def an_nvidia_gpu(space: Any) -> None:
    own = {"clock_rate": 1_980_000, "core_count": 132, "memory_bandwidth": 3_350_000_000_000}
    gpu = PlaneBuilder(space, "/device:GPU:1", device_vendor="Nvidia", compute_cap_major=9, compute_cap_minor=0, **own)
    stream = gpu.line("Stream #7(Compute,MemcpyH2D)", 7)
    details = "regs:32 static_shared:16 dynamic_shared:1024 grid:4,2,1 block:128,1,1 occ_pct:62.5"
    gpu.event(stream, "fusion_3", 100, 40, correlation_id=1, kernel_details=details, hlo_op="fusion.3", program_id=1)
    gpu.event(stream, "ncclDevKernel_AllReduce_Sum_f32_RING_LL(args)", 150, 20, correlation_id=2)
    gpu.event(stream, "MemcpyH2D", 200, 10, correlation_id=3, memcpy_details="kind_src:pinned size:4000 dest:0 async:1")
    gpu.event(stream, "Memset", 220, 10, correlation_id=4, memset_details="kind:device num_bytes:64 async:1 size:64")
    gpu.event(gpu.line("XLA Modules", 90), "jit_step(1)", 100, 120)
    host = PlaneBuilder(space, "/host:CPU", process_id=9)
    line = host.line("python", 1)
    for number in range(1, 5):
        host.event(line, "cuLaunchKernel", 10 * number, 5, correlation_id=number)


def test_what_runs_on_an_nvidia_gpu(tmp_path: Path) -> None:
    frames = read(tmp_path, an_nvidia_gpu)
    device = spans(frames).join(frames["tracks"].select(track="id", on="kind", device="device"), on="track")
    streams = device.filter(pl.col("on").cast(pl.String) == "stream").sort("ts")
    assert set(streams["device"].cast(pl.String)) == {"cuda:1"}
    assert streams["kind"].to_list() == ["kernel", "collective", "memcpy", "memset"]
    kernel, _, copy, fill = frames["kernels"].sort("span").to_dicts()
    assert (kernel["grid"], kernel["block"], kernel["registers"]) == ([4, 2, 1], [128, 1, 1], 32)
    assert (kernel["shared_memory"], kernel["occupancy"], kernel["stream"]) == (1040, 62.5, 7)
    assert (copy["bytes"], copy["bandwidth"], fill["bytes"]) == (4000, 400.0, 64)
    calls = spans(frames).select(launch="id", call="name")
    assert frames["kernels"].join(calls, on="launch")["call"].to_list() == ["cuLaunchKernel"] * 4
    assert frames["collectives"].select(pl.col("operation", "transport").cast(pl.String)).rows() == [
        ("allreduce", "nccl")
    ]
    facts = dict(frames["metadata"].iter_rows())
    assert facts["device_peak_bandwidth"] == '{"cuda:1": 3350000000000}'
    # 66.9 TFLOP/s in single precision: what NVIDIA gives for the H100 SXM at this clock.
    assert facts["device_peak_flops"] == '{"cuda:1": 66908160000000}'


def test_what_runs_on_a_tpu(tmp_path: Path) -> None:
    def fill(space: Any) -> None:
        tpu = PlaneBuilder(space, "/device:TPU:0", peak_teraflops_per_second=275.0)
        for place in range(3):
            tpu.event(tpu.line("XLA Ops", 3), "%fusion.1 = f32[8] fusion()", 100 * place, 40)
        tpu.event(tpu.line("Steps", 1), "0", 0, 300)

    frames = read(tmp_path, fill)
    assert frames["tracks"].select(pl.col("kind", "device").cast(pl.String)).unique().sort("kind").rows() == [
        ("annotation", "tpu:0"),
        ("stream", "tpu:0"),
    ]
    assert sorted(spans(frames)["kind"]) == ["annotation", "kernel", "kernel", "kernel"]
    assert dict(frames["metadata"].iter_rows())["device_peak_flops"] == '{"tpu:0": 275000000000000.0}'


def test_lines_of_a_device_that_are_not_known_are_named(tmp_path: Path) -> None:
    def fill(space: Any) -> None:
        an_nvidia_gpu(space)
        (gpu,) = (plane for plane in space.planes if plane.name.startswith("/device"))
        gpu.lines[0].name = "Strom #7(Compute)"

    frames = read(tmp_path, fill)
    (loss,) = frames["losses"].filter(pl.col("what").cast(pl.String) == "line_unknown").to_dicts()
    assert (loss["count"], loss["severity"]) == (1, "data_loss")
    assert loss["advice"].startswith("Lines 'Strom #7(Compute)'. ")
    assert "line_unknown" not in losses(read(tmp_path, an_nvidia_gpu))


def test_operations_of_a_tpu_are_told_by_their_instructions(tmp_path: Path) -> None:
    """Given operations whose names are the texts of their instructions, as libtpu writes them, and no programs."""
    tile = "{1,0:T(8,128)(2,1)S(1)}"
    instructions = {
        "while.3": (
            f"%while.3 = (s32[], bf16[8,128]{tile}) while((s32[], bf16[8,128]{tile}) %tuple.1), body=%b",
            0,
            90,
        ),
        "fusion.1": (f"%fusion.1 = bf16[8,128]{tile} fusion(bf16[8,128]{tile} %all-reduce.5), kind=kOutput", 0, 40),
        "all-reduce.5": (f"%all-reduce.5 = bf16[8,128]{tile} all-reduce(bf16[8,128]{tile} %p), channel_id=1", 40, 30),
        "copy-start.2": (f"%copy-start.2 = (bf16[8]{tile}, u32[]) copy-start(bf16[8]{tile} %p)", 70, 10),
    }

    def fill(space: Any) -> None:
        tpu = PlaneBuilder(space, "/device:TPU:0")
        for text, ts, dur in instructions.values():
            tpu.event(tpu.line("XLA Ops", 3), text, ts, dur)

    frames = read(tmp_path, fill)
    assert dict(spans(frames).select("name", "kind").rows()) == {
        "while.3": "annotation",
        "fusion.1": "kernel",
        "all-reduce.5": "collective",
        "copy-start.2": "memcpy",
    }
    assert frames["collectives"]["operation"].cast(pl.String).to_list() == ["allreduce"]


def test_without_declared_steps_a_step_is_a_run_of_the_busiest_program(tmp_path: Path) -> None:
    def fill(space: Any) -> None:
        plane = PlaneBuilder(space, "/host:CPU")
        lines = plane.line("tf_XLAEigen/1"), plane.line("tf_XLAEigen/2", 2)
        for run in range(3):
            for place, line in enumerate(lines):
                given = {"hlo_module": "jit_step", "program_id": 1, "run_id": 50 + run}
                plane.event(line, "dot", 1000 * run + 10 * place, 400, hlo_op="dot", **given)
            plane.event(lines[0], "add", 1000 * run + 500, 20, hlo_op="add", program_id=2, run_id=80 + run)
        plane.event(lines[0], "init", 9000, 700, hlo_op="init", program_id=3, run_id=90)

    steps = read(tmp_path, fill)["steps"]
    assert (steps["ts"] - START).to_list() == [0, 1000, 2000]
    assert steps["dur"].to_list() == [1000, 1000, 410]
    assert set(steps["source"]) == {"inferred"}


def test_hosts_of_one_recording_are_the_ranks_of_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recording = tmp_path / "log" / "plugins" / "profile" / "2026_01_02_03_04_05"
    older = recording.with_name("2025_01_02_03_04_05")
    for directory, names in ((recording, ("node-a", "node-b", "node-c")), (older, ("node-a",))):
        directory.mkdir(parents=True)
        for name in names:
            shutil.copy(SAMPLE, directory / f"{name}.xplane.pb")
            (directory / f"{name}.trace.json.gz").write_bytes(b"not looked at")
    assert [capture.name for capture in sniff.ranks([sniff.look(recording)]).captures[1]] == ["node-b.xplane.pb"]
    assert sniff.look(tmp_path / "log") == sniff.look(recording)
    with pytest.raises(NotATraceError, match="3 ranks"):
        read_files([recording])
    assert main(["import", str(recording), "--output", str(tmp_path / "runs"), "--quiet"]) == 0
    (run,) = (tmp_path / "runs").iterdir()
    assert sorted(path.name for path in run.iterdir() if path.name.startswith("rank")) == ["rank0", "rank1", "rank2"]
    assert (run / "rank2" / "capture" / "node-c.xplane.pb").read_bytes() == SAMPLE.read_bytes()
    assert "node-b" in (run / "rank1" / "manifest.json").read_text()


def test_a_compressed_file_is_the_same(tmp_path: Path) -> None:
    path = tmp_path / "host.xplane.pb.gz"
    path.write_bytes(gzip.compress(SAMPLE.read_bytes()))
    assert [(found.format, found.host) for found in sniff.look(path)] == [("xplane", "host")]
    assert read_files([path])["spans"].equals(read_files([SAMPLE])["spans"])


def test_a_file_is_known_by_what_is_in_it(tmp_path: Path) -> None:
    path = Path(shutil.copy(SAMPLE, tmp_path / "anything"))
    assert sniff.look(path)[0].format == "xplane"


@pytest.mark.parametrize("content", [b"{}", b"\x0a", b"\x08\x01", b"\x0a\x02\x12\x00", b"\xff" * 100])
def test_what_is_none_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "host.xplane.pb"
    path.write_bytes(content)
    with pytest.raises(InputError, match=r"host\.xplane\.pb"):
        read_files([path])


@pytest.mark.parametrize(
    ("scope", "expected"),
    [
        ("jit(step)/transpose(jvp(loss))/layer2/dot_general", "loss/layer2"),
        ("jit(step)/jvp(model)/encoder/jit(relu)/max", "model/encoder"),
        ("jit(train)/while/body/closed_call/block/tanh", "block"),
        ("jit(f)/vmap(jvp(a/b))/add", "a/b"),
        ("jit(step)/mul", None),
        ("dot", None),
        ("", None),
    ],
)
def test_layers_of_a_scope(scope: str, expected: str | None) -> None:
    assert module(scope) == expected


@pytest.mark.parametrize(
    ("opcode", "operation"),
    [
        ("all-reduce", "allreduce"),
        ("all-gather-start", "allgather"),
        ("collective-permute-done.3", "permute"),
        ("reduce", None),
        ("dot.2", None),
    ],
)
def test_operations_of_opcodes(opcode: str, operation: str | None) -> None:
    assert xplane_kinds.operation(opcode) == operation


def test_the_decoder_in_c_and_its_twin_give_the_same_of_any_bytes() -> None:
    """Lines of random events, in which random bytes are changed."""
    chance = random.Random(7)
    for _ in range(300):
        space = xspace()()
        plane = PlaneBuilder(space, "/host:CPU")
        line = plane.line("python", chance.randrange(1 << 62), chance.randrange(1 << 40))
        for _ in range(chance.randrange(60)):
            given = {"a": chance.randrange(-(1 << 40), 1 << 40), "b": chance.random(), "c": "text", "d": b"bytes"}
            chosen = {key: given[key] for key in chance.sample(sorted(given), chance.randint(0, 4))}
            plane.event(line, "event", chance.randrange(1 << 30), chance.randrange(1 << 20), **chosen)
        content = bytearray(line.SerializeToString())
        for _ in range(chance.randint(0, 3)):
            content[chance.randrange(len(content))] = chance.randrange(256)
        _compare(content)


def _compare(content: bytearray) -> None:
    end = len(content)
    padded = content + bytes(16)
    fast = xplane_events.line(padded, 0, end)
    in_c = list(xplane_events.batches(padded, fast))
    with patch.object(xplane_events.native, "walk", return_value=None):  # as without the library in C
        slow = xplane_events.line(padded, 0, end)
        in_python = list(xplane_events.batches(padded, slow))
    assert fast == slow
    for one, other in zip(in_c, in_python, strict=True):
        # Of damaged events nothing is used.
        sound = ~one.damaged
        assert np.array_equal(one.damaged, other.damaged)
        for name in ("metadata", "offset", "duration", "aggregate"):
            assert np.array_equal(getattr(one, name)[sound], getattr(other, name)[sound]), name
        kept, others = (events.stats.where(sound[events.stats.owner]) for events in (one, other))
        for name in ("owner", "key", "field", "value", "end"):
            assert np.array_equal(getattr(kept, name), getattr(others, name)), name


def test_marks_whose_number_no_step_has_are_counted(tmp_path: Path) -> None:
    def fill(space: Any) -> None:
        plane = PlaneBuilder(space, "/host:CPU")
        python = plane.line("python")
        for place, number in enumerate((2_000_000_000, 1 << 31, 1_764_111_111_111_111_111, -1)):
            plane.event(python, "train", 20 * place, 5, step_num=number)

    frames = read(tmp_path, fill)
    assert frames["steps"]["number"].to_list() == [2_000_000_000]
    assert losses(frames) == {"step_number_large": 3}
