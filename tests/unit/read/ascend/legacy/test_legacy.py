"""Files of MindSpore 1.x: on a GPU, links, operations of floating point numbers, AI CPU, data pipeline, shapes."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import stepscope
from stepscope.cli.main import main
from stepscope.read import read_files
from stepscope.trace.tables import Frames
from tests.unit import ascend_build as build
from tests.unit.ascend_build import OUTPUT, START, capture

T0 = START * 1000
KERNEL = "ElewiseArithKernel<float, AddFunc<float> >(int, float const*)"
TIMELINE = "op_name, stream_id, start_time(ms), duration(ms)\n" + "".join(
    f"Default/{name},519,{at},0.5\n" for name, at in (("Add-op1", 438068.0), ("MatMul-op2", 438069.0))
)


def rows(frame: pl.DataFrame, *columns: str) -> list[tuple[Any, ...]]:
    return frame.select(columns).rows()


def spans(read: Frames, kind: str) -> pl.DataFrame:
    return read["spans"].filter(pl.col("kind") == kind).sort("ts")


def losses(read: Frames) -> set[str]:
    return set(read["losses"]["what"].cast(pl.String))


def of_gpu(folder: Path) -> Path:
    (folder / "gpu_op_execute_timestamp_0.txt").write_text(
        f"Default/Add-op6;Ops;{T0},75.616 {T0 + 500_000},48.5 \nDefault/Conv;Ops;soon\n"
    )
    (folder / "activity_execute_timestamp_0.txt").write_text(
        f"{KERNEL};17;{T0 + 10_000};3.904\n{KERNEL};17;{T0 + 510_000};3.0\nbroken line\n"
    )
    (folder / "gpu_activity_data_0.csv").write_text(
        "name,type,op_full_name,stream_id,block_dim,grid_dim,occurrences,total_duration(us)\n"
        f'"{KERNEL}",cuLaunchKernel,Default/Add-op6,17,"256,1,1","8,1,1",2,6.904\n'
    )
    (folder / "gpu_op_type_info_0.csv").write_text("op_type,type_occurrences,total_time\nAdd,2,124.1\n")
    return folder


def test_operators_and_kernels_of_a_gpu(tmp_path: Path) -> None:
    read = read_files([of_gpu(tmp_path)])
    assert rows(spans(read, "operator"), "name", "ts", "dur") == [
        ("Default/Add-op6", T0, 75_616),
        ("Default/Add-op6", T0 + 500_000, 48_500),
    ]
    assert rows(spans(read, "kernel"), "name", "ts", "dur") == [
        (KERNEL, T0 + 10_000, 3_904),
        (KERNEL, T0 + 510_000, 3_000),
    ]
    assert rows(read["kernels"], "stream", "grid", "block") == [(17, [8, 1, 1], [256, 1, 1])] * 2
    assert set(read["tracks"]["device"].cast(pl.String)) == {"cpu", "cuda:0"}
    assert rows(read["arguments"], "key", "value") == [("operator", '"Default/Add-op6"')] * 2
    assert {"event_damaged", "correlation_dangling"} == losses(read)
    assert "gpu_op_type_info_0.csv" in set(read["metadata"]["key"])


def test_the_timeline_that_mindspore_drew_of_a_gpu(tmp_path: Path) -> None:
    arguments = {
        "type": "cuLaunchKernel",
        "op_full_name": "Default/Add-op6",
        "block_dim": "256,1,1",
        "grid_dim": "8,1,1",
    }
    events = [
        {"name": "Default/Add-op6", "ph": "X", "tid": "Ops", "ts": START + 0.5, "dur": 303.84, "pid": 0},
        {"name": KERNEL, "ph": "X", "tid": "17", "ts": START + 10, "dur": 5.792, "pid": 0, "args": arguments},
    ]
    (tmp_path / "gpu_timeline_display_0.json").write_text(json.dumps(events))
    read = read_files([tmp_path])
    assert rows(spans(read, "operator"), "name", "ts", "dur") == [("Default/Add-op6", T0 + 500, 303_840)]
    assert rows(spans(read, "kernel"), "name", "ts", "dur") == [(KERNEL, T0 + 10_000, 5_792)]
    assert rows(read["kernels"], "stream", "grid", "block") == [(17, [8, 1, 1], [256, 1, 1])]


@pytest.mark.parametrize(
    "text",
    [
        f"a,{T0} f,{T0 + 100} b,{T0 + 500} e,{T0 + 1000}\na,{T0 + 1000} f,{T0 + 1100} b,{T0 + 1500} e,{T0 + 2000}"
        f" AllReduce,{T0 + 5},{T0 + 9}\n",
        f"f {T0 // 10},{T0 // 10 + 5} {T0 // 10 + 100},{T0 // 10 + 105} \nb 1,2 3,4 \n"
        f"e {T0 // 10 + 90},{T0 // 10 + 100} {T0 // 10 + 190},{T0 // 10 + 200} \n",
    ],
    ids=["launched", "waited for"],
)
def test_steps_of_a_gpu(text: str, tmp_path: Path) -> None:
    (of_gpu(tmp_path) / "step_trace_profiling_0.txt").write_text(text)
    assert rows(read_files([tmp_path])["steps"], "number", "ts", "dur") == [(1, T0, 1000), (2, T0 + 1000, 1000)]


#: Steps of 100 ms, each with a reduce on two streams, as MindSpore 1.x writes them (units of 10 ns).
REDUCES = "step_num,start_point,end_point,total,fp_point,bp_point,iteration_interval,fp_and_bp,tail" + "".join(
    f",stream_{stream}_parallel_0_start_point,stream_{stream}_parallel_0_end_point,stream_{stream}_parallel_0"
    for stream in (520, 522)
)


def step_trace(steps: int) -> str:
    """Return ``step_trace_raw_*.csv`` of so many steps, and its line of averages."""
    lines = [REDUCES]
    for number in range(1, steps + 1):
        start = 43_806_800_000 + (number - 1) * 10_000_000
        first, second = (start + 1_000_000, start + 3_000_000), (start + 2_000_000, start + 4_000_000)
        reduces = [str(point) for pair in (first, second) for point in (*pair, pair[1] - pair[0])]
        lines.append(f"{number},{start},{start + 10_000_000},10000000,{start},{start},0,0,0,{','.join(reduces)}")
    return "\n".join([*lines, "-" + ",1" * (REDUCES.count(",")), ""])


def test_steps_without_kernels_are_not_idle(tmp_path: Path) -> None:
    (tmp_path / "step_trace_raw_1_detail_time.csv").write_text(step_trace(2))
    (rank,) = stepscope.open(tmp_path).ranks
    steps = rank.result("step_trace_time")
    assert isinstance(steps, pl.DataFrame)
    assert steps["Total"].to_list() == [100_000.0] * 2
    # The reduces of two streams overlap: from 10 to 40 ms.
    assert steps["Communication"].to_list() == [30_000.0] * 2
    assert steps["Computing"].to_list() == [None] * 2
    assert steps["Idle"].to_list() == [None] * 2
    assert rank.summary.split == ()
    assert rank.summary.not_recorded[0] == "computing"


def test_a_file_of_kernels_that_was_cut_is_not_averaged_over_all_steps(tmp_path: Path) -> None:
    # Given 322 steps and kernels of the first 14, one of 1 ms in each, and of a part of the 15th.
    (tmp_path / "step_trace_raw_1_detail_time.csv").write_text(step_trace(322))
    kernels = "".join(f"Default/Add-op1,519,{438_068 + 100 * step + 95},1.0\n" for step in range(14))
    cut = f"Default/Add-op1,519,{438_068 + 1400 + 10},1.0\n"
    (tmp_path / "output_timeline_data_1.txt").write_text(
        f"op_name, stream_id, start_time(ms), duration(ms)\n{kernels}{cut}"
    )
    (rank,) = stepscope.open(tmp_path).ranks
    assert rank.summary.steps.count == 14
    computing = next(part for part in rank.summary.split if part.name == "computing")
    assert computing.mean_ns == 1_000_000
    lost = rank.tables["losses"].filter(pl.col("what").cast(pl.String) == "steps_without_events").collect()
    assert lost["count"].to_list() == [308]


def test_a_folder_of_several_ranks(tmp_path: Path) -> None:
    folder = tmp_path / "profiler"
    folder.mkdir()
    for rank in (0, 1, 2):
        (folder / f"output_timeline_data_{rank}.txt").write_text(TIMELINE.replace("0.5", f"0.{rank + 1}"))
        (folder / f"aicore_intermediate_{rank}_type.csv").write_text("kernel_type\n")
    (folder / "step_trace_raw_1_detail_time.csv").write_text(
        "step_num,start_point,end_point\n1,43806800000,43806900000\n"
    )
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    run = stepscope.open(folder)
    assert [rank.rank for rank in run.ranks] == [0, 1, 2]
    for one in run.ranks:
        kernels = one.tables["spans"].filter(pl.col("kind") == "kernel").collect()
        assert kernels["dur"].to_list() == [(one.rank + 1) * 100_000] * 2
        assert one.tables["steps"].collect().height == (1 if one.rank == 1 else 0)
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before
    assert main(["import", str(folder), "--output", str(tmp_path / "runs"), "--quiet"]) == 0
    (made,) = (tmp_path / "runs").iterdir()
    copied = {path.name for path in made.glob("rank1/capture/*/*")}
    assert copied == {
        "output_timeline_data_1.txt",
        "step_trace_raw_1_detail_time.csv",
        *(f"aicore_intermediate_{rank}_type.csv" for rank in (0, 1, 2)),
    }
    assert [rank.tables["kernels"].collect().height for rank in stepscope.open(made).ranks] == [2, 2, 2]


def test_links_of_hccl(tmp_path: Path) -> None:
    whole = {"1-0": {"SDMA": [2.5, 52706.816, 21082726.4]}, "0-0": {"SDMA": ["x"]}}
    single = {"stream_41_0_AllReduce-op4582": ["1", 0.003, 0.01, {"1-0": {"SDMA": [0.002, 4.096, 2048000.0]}}]}
    cells = [json.dumps(one).replace('"', '""') for one in (whole, single)]
    (tmp_path / "hccl_raw_0.csv").write_text(
        "step_num,communication_cost,wait_cost,link_info,communication_operator_cost\n"
        f'1,2.6,270.25,"{cells[0]}","{cells[1]}"\n-,2.6,270.25,"{cells[0]}","{cells[1]}"\n'
    )
    read = read_files([tmp_path])
    columns = ("step", "operation", "place", "source", "destination", "transport", "bytes", "transit", "bandwidth")
    assert rows(read["links"], *columns) == [
        (1, "Total", "total", 1, 0, "SDMA", 52_706_816, 2_500_000, pytest.approx(21.0827264)),
        (1, "allreduce", "one", 1, 0, "SDMA", 4096, 2_000, pytest.approx(2.048)),
    ]
    assert "value_unreadable" in losses(read)
    (said,) = read["metadata"].filter(pl.col("key") == "hccl_raw")["value"]
    assert json.loads(said)[0] == {"step_num": "1", "communication_cost": "2.6", "wait_cost": "270.25"}


def test_floating_point_operations_and_ai_cpu(tmp_path: Path) -> None:
    (tmp_path / "output_timeline_data_1.txt").write_text(TIMELINE)
    (tmp_path / "flops_1.txt").write_text(
        "full_kernel_name, MFLOPs(10^6 cube), GFLOPS(10^9 cube), MFLOPs(10^6 vector), GFLOPS(10^9 vector)\n"
        "Default/MatMul-op2, 2, 4, 0.5, 1\n"
    )
    (tmp_path / "flops_summary_1.json").write_text('{"FLOPs": 8167.743}')
    (tmp_path / "aicpu_intermediate_1.csv").write_text(
        "serial_number,op_type,total_time,dispatch_time,run_start,run_end\n1,GetNext,0.888,0.132,438068500,438068660\n"
    )
    read = read_files([tmp_path])
    assert rows(spans(read, "kernel"), "name", "ts", "dur") == [
        ("Default/Add-op1", 438_068_000_000, 500_000),
        ("GetNext", 438_068_500_000, 160_000),
        ("Default/MatMul-op2", 438_069_000_000, 500_000),
    ]
    assert sorted(rows(read["kernel_counters"], "name", "value", "unit")) == [
        ("cube FLOPS", 4e9, "1/s"),
        ("cube FLOPs", 2e6, ""),
        ("dispatch_time", 0.132, "ms"),
        ("total_time", 0.888, "ms"),
        ("vector FLOPS", 1e9, "1/s"),
        ("vector FLOPs", 5e5, ""),
    ]
    assert json.loads(dict(read["metadata"].iter_rows())["flops_summary_1.json"]) == {"FLOPs": 8167.743}


def test_the_table_of_the_data_pipeline(tmp_path: Path) -> None:
    root = capture(tmp_path)
    (root / OUTPUT / "minddata_pipeline_raw_0.csv").write_text(
        "op_id,op_type,num_workers,output_queue_size,output_queue_average_size,output_queue_length,"
        "output_queue_usage_rate,sample_interval,parent_id,children_id\n"
        '0,Batch,4,,,,0,10,,[1]\n1,Shuffle,1,"[10, 20]",15.0,64,0.3,10,0,"[2, 3]"\n'
    )
    read = read_files([root])
    assert rows(read["pipeline"], "id", "name", "workers", "capacity", "interval", "children") == [
        (0, "Batch", 4, None, 10_000_000, [1]),
        (1, "Shuffle", 1, 64, 10_000_000, [2, 3]),
    ]
    queue = read["counters"].filter(pl.col("name").cast(pl.String) == "output queue")
    assert rows(queue, "ts", "value") == [(T0, 10.0), (T0 + 10_000_000, 20.0)]
    assert "clock_unknown" in losses(read)


def test_the_raw_files_of_the_data_pipeline(tmp_path: Path) -> None:
    root = capture(tmp_path)
    framework, host = root / "FRAMEWORK", root / "PROF_1_2_A" / "host"
    framework.mkdir()
    host.mkdir(parents=True)
    (host / "start_info").write_text(json.dumps({"collectionTimeBegin": str(START), "clockMonotonicRaw": "5000000"}))
    operation = {"op_id": 0, "op_type": "BatchOp", "num_workers": 4, "children": []}
    operation["metrics"] = {"output_queue": {"length": 8, "size": [3, 4]}}
    (framework / "pipeline_profiling_0.json").write_text(json.dumps({"sampling_interval": 1, "op_info": [operation]}))
    (framework / "minddata_cpu_utilization_0.json").write_text(json.dumps({"time_stamp": [5, 6], "op_info": []}))
    read = read_files([root])
    queue = read["counters"].filter(pl.col("name").cast(pl.String) == "output queue")
    assert rows(queue, "ts", "value") == [(T0, 3.0), (T0 + 1_000_000, 4.0)]
    assert rows(read["pipeline"], "name", "capacity") == [("BatchOp", 8)]
    assert "clock_unknown" not in losses(read)


def test_shapes_that_mindspore_recorded_on_an_npu(tmp_path: Path) -> None:
    root = tmp_path / "host_1_ascend_ms"
    (root / "FRAMEWORK").mkdir(parents=True)
    (root / "profiler_info_0.json").write_text("{}")
    ranges, nothing = struct.Struct("<5Qi3Hb3?"), struct.Struct("")
    fixed = (11, 0, 1, T0, T0 + 500, 4242, 3, 28, 0, 0, False, False, False)
    later = (11, 0, 1, T0 + 600, T0 + 900, 4242, 3, 28, 0, 0, False, False, False)
    names = {13: "MatMul", 14: "Default/MatMul-op1"}
    (root / "FRAMEWORK" / "mindspore.op_range").write_bytes(
        build.record(ranges, fixed, names) + build.record(ranges, later, names)
    )
    (root / "FRAMEWORK" / "mindspore.record_shapes").write_bytes(
        build.record(nothing, (), {0: "Default/MatMul-op1", 1: "2,3;3,4", 2: "Float32;Float32"})
        + build.record(nothing, (), {0: "Default/MatMul-op1", 1: "5,3;3,4", 2: "Float32;Float32"})
    )
    told = read_files([root])["operators"].drop_nulls("shapes")
    assert rows(told, "shapes", "dtypes") == [
        ("[[2,3],[3,4]]", '["Float32", "Float32"]'),
        ("[[5,3],[3,4]]", '["Float32", "Float32"]'),
    ]
