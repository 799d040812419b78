"""Kernels recorded with CUPTI on a real GPU: of no framework, of PyTorch against its own profiler, of others.

Each program runs in a process of its own, because CUPTI belongs to a process.
"""

from __future__ import annotations

import csv
import json
import subprocess
import sys
import textwrap
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from tests.gpu.plain_cuda import BLOCK, BYTES, GRID, NAME, SPELLED

from .conftest import Window

ROOT = Path(__file__).parents[2]


def run(program: str) -> str:
    """Run a program in a process of its own and return what it printed."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        capture_output=True,
        text=True,
        timeout=280,
        cwd=ROOT,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def window_of(output: Path) -> Window:
    (path,) = output.iterdir()
    return Window(path)


def collector(window: Window) -> dict[str, Any]:
    described: dict[str, Any] = window.manifest["collectors"]["cupti"]
    return described


@pytest.mark.parametrize("moment", ["before", "while"])
def test_a_program_without_a_framework(tmp_path: Path, moment: str) -> None:
    # Given: a program that comes to use CUDA before, or while, it is recorded
    first = "program = Program()" if moment == "before" else "program = None"
    out = run(f"""
        import time
        import stepscope
        from tests.gpu.plain_cuda import Program
        {first}
        with stepscope.profile(output={str(tmp_path / "runs")!r}, analyse="later"):
            if program is None:
                program = Program()
                time.sleep(1)  # by then the recording has begun
            took = program.work(200)
        print(took)
    """)
    window = window_of(tmp_path / "runs")
    described = collector(window)
    assert described["version"] > 0, described
    assert "failed" not in described
    # Then: everything that the device did is there
    kernels = window.work("kernel")
    assert set(kernels["name"]) == {SPELLED}
    assert kernels.height == 200
    assert kernels["grid"].to_list() == [list(GRID)] * 200
    assert kernels["block"].to_list() == [list(BLOCK)] * 200
    assert kernels["registers"].min() > 0
    assert kernels["occupancy"].is_between(0, 100).all()
    copies = window.work("memcpy")
    assert {name[:11] for name in copies["name"]} == {"Memcpy HtoD", "Memcpy DtoH"}
    assert set(copies["bytes"]) == {BYTES}
    assert set(window.work("memset")["bytes"]) == {BYTES}
    # and was launched by a call on the thread of the program, before it began
    launches = window.spans("driver").select(launch="id", called="ts", by="name", caller="thread")
    started = kernels.join(launches, on="launch")
    assert started.height == 200
    assert set(started["by"]) == {"cuLaunchKernel"}
    assert (started["ts"] >= started["called"] - 2_000).all()
    assert set(started["caller"]) == {window.manifest["process"]}
    # and took as long as the device's own events say
    assert 0.5 * float(out) * 1000 <= kernels["dur"].sum() <= 1.02 * float(out) * 1000
    losses = window.table("losses").filter(pl.col("severity") == "data_loss")
    assert losses.is_empty(), losses


def test_steps_of_such_a_program_are_split(tmp_path: Path) -> None:
    run(f"""
        import stepscope
        from tests.gpu.plain_cuda import Program
        program = Program()
        schedule = stepscope.schedule(wait=1, warmup=1, active=3, repeat=1)
        with stepscope.profile(schedule=schedule, output={str(tmp_path / "runs")!r}, analyse="later") as profile:
            for _ in range(6):
                program.work(20)
                profile.step()
    """)
    window = window_of(tmp_path / "runs")
    split = window.rank.result("step_trace_time")
    assert isinstance(split, pl.DataFrame)
    assert split["Step"].to_list() == [2, 3, 4]
    assert (split["Computing"] > 0).all()
    assert window.work("kernel").height == 60


_TORCH = """
    import json, sys, torch
    def work():
        for _ in range(10):
            left.mm(left)
            left.add(1).relu().sum()
        torch.cuda.synchronize()
    left = torch.randn(4096, 4096, device="cuda")
    for _ in range(5):
        work()
    def kineto(path):
        from torch.profiler import ProfilerActivity, profile
        with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
            work()
        profiler.export_chrome_trace(path)
"""


def kernels_of(path: Path) -> pl.DataFrame:
    """Return name, duration, grid and registers of the kernels in a capture, in order."""
    from stepscope.read import read_files

    frames = read_files([path])
    spans = frames["spans"].select("ts", "dur", "kind", pl.col("name").cast(pl.String), span="id")
    rows = frames["kernels"].join(spans, on="span").filter(pl.col("kind") == "kernel").sort("ts")
    return rows.select("name", "dur", "grid", "block", "registers", "shared_memory", "stream")


def test_kernels_are_those_of_torchs_profiler(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="PyTorch is not installed")
    # Given: the same work, recorded by torch's profiler, by us, and by torch's profiler again, in one process
    run(
        _TORCH
        + f"""
    from pathlib import Path
    from stepscope.collect.cuda import cupti_library
    from stepscope.collect.cuda.cupti_recorder import CuptiRecorder
    folder = Path({str(tmp_path)!r})
    kineto(str(folder / "warm.json"))
    kineto(str(folder / "before.json"))
    recorder = CuptiRecorder(folder / "cupti.ssc", cupti_library.load())
    recorder.start()
    work()
    recorder.stop()
    kineto(str(folder / "after.json"))
    """
    )
    before, ours, after = (kernels_of(tmp_path / name) for name in ("before.json", "cupti.ssc", "after.json"))
    # Then: the same kernels in the same order, with the same sizes, and torch's profiler works on
    same = ["name", "grid", "block", "registers", "shared_memory", "stream"]
    assert ours.height > 30
    assert ours.select(same).equals(before.select(same))
    assert after.select(same).equals(before.select(same))
    # and the long ones took as long, within 1 %
    shortest = pl.col("dur").filter(pl.col("dur") > 100_000).min()
    times = [frame.group_by("name").agg(shortest).drop_nulls().sort("name") for frame in (before, ours)]
    assert times[0]["name"].equals(times[1]["name"])
    assert times[1]["dur"].to_list() == pytest.approx(times[0]["dur"].to_list(), rel=0.01)


def test_torch_is_left_to_kineto(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="PyTorch is not installed")
    run(
        _TORCH
        + f"""
    import stepscope
    with stepscope.profile(output={str(tmp_path / "runs")!r}, analyse="later", collector="kineto"):
        work()
    """
    )
    window = window_of(tmp_path / "runs")
    assert "Kineto" in collector(window)["unavailable"]
    assert window.work("kernel").height > 30
    assert window.work("kernel")["operator"].null_count() == 0


def log_of(path: Path) -> tuple[list[str], list[dict[str, str]]]:
    lines = path.read_text().splitlines()
    rows = [line for line in lines if not line.startswith(("#", "NV_Warning"))]
    return [line for line in lines if line not in rows], list(csv.DictReader(rows))


def test_the_log_of_cuda_profiler(tmp_path: Path) -> None:
    out = run(f"""
        from stepscope.compat.fluid.cuda_profiler import cuda_profiler
        from tests.gpu.plain_cuda import Program
        program = Program()
        program.work(3)
        config = ["gpustarttimestamp", "gpuendtimestamp", "gridsize3d", "threadblocksize", "regperthread", "streamid",
                  "memtransfersize", "memtransferdir", "conckerneltrace", "active_warps"]
        with cuda_profiler({str(tmp_path / "log.csv")!r}, "csv", config):
            took = program.work(50)
        with cuda_profiler({str(tmp_path / "log.txt")!r}, "kvp", ["regperthread"]):  # one kernel at a time
            program.work(5)
        try:
            with cuda_profiler({str(tmp_path / "failed.csv")!r}):
                program.work(5)
                raise KeyError("the program's own")
        except KeyError:
            pass
        program.work(3)
        print(took)
    """)
    head, rows = log_of(tmp_path / "log.csv")
    assert head[0] == "# CUDA_PROFILE_LOG_VERSION 2.0"
    assert head[1].startswith("# CUDA_DEVICE 0 ")
    assert "NV_Warning: Ignoring the invalid profiler config option: active_warps" in head
    kernels = [row for row in rows if row["method"] == NAME]
    assert len(kernels) == 50
    for row in kernels:
        length = int(row["gpuendtimestamp"], 16) - int(row["gpustarttimestamp"], 16)
        assert float(row["gputime"]) == length / 1000
        assert float(row["cputime"]) > 0
        assert 0 < float(row["occupancy"]) <= 1
        assert [int(row[f"gridsize{axis}"]) for axis in "XYZ"] == list(GRID)
        assert [int(row[f"threadblocksize{axis}"]) for axis in "XYZ"] == list(BLOCK)
    assert sum(float(row["gputime"]) for row in kernels) <= 1.02 * float(out)
    copies = {row["method"].removesuffix("async"): row for row in rows if row["method"].startswith("memcpy")}
    assert set(copies) == {"memcpyHtoD", "memcpyDtoH"}
    assert {row["memtransfersize"] for row in copies.values()} == {str(BYTES)}
    assert (copies["memcpyHtoD"]["memtransferdir"], copies["memcpyDtoH"]["memtransferdir"]) == ("0", "1")
    pairs = (tmp_path / "log.txt").read_text()
    assert pairs.count(f"method=[ {NAME} ] gputime=[ ") == 5
    assert (tmp_path / "failed.csv").read_text().count(NAME) == 5


@pytest.mark.parametrize("framework", ["jax", "paddle"])
def test_kernels_of_another_framework(tmp_path: Path, framework: str) -> None:
    if find_spec(framework) is None:
        pytest.skip(f"{framework} is not installed")
    programs = {
        "jax": """
            import jax, jax.numpy as np
            if jax.default_backend() != "gpu":
                raise SystemExit(77)
            left = np.ones((2048, 2048))
            step = jax.jit(lambda values: values @ values)
            def work():
                for _ in range(10):
                    step(left).block_until_ready()
        """,
        "paddle": """
            import paddle
            if not paddle.device.is_compiled_with_cuda():
                raise SystemExit(77)
            left = paddle.ones([2048, 2048])
            def work():
                for _ in range(10):
                    paddle.matmul(left, left)
                paddle.device.synchronize()
        """,
    }
    program = textwrap.dedent(programs[framework]) + textwrap.dedent(f"""
        import stepscope
        work()
        with stepscope.profile(output={str(tmp_path / "runs")!r}, analyse="later"):
            work()
    """)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=280, check=False)
    if done.returncode == 77:
        pytest.skip(f"this {framework} has no CUDA")
    assert done.returncode == 0, done.stderr
    window = window_of(tmp_path / "runs")
    kernels = window.work("kernel")
    assert kernels.height >= 10, json.dumps(collector(window))
    assert kernels["launch"].null_count() == 0
