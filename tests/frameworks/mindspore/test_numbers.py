"""What stepscope says of a training with MindSpore, against what MindSpore says of the same training."""

from __future__ import annotations

import csv
import json
import os
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mindspore
import polars as pl
import pytest
from mindspore.profiler.analysis.parser.ms_minddata_parser import MindDataParser
from mindspore.profiler.analysis.viewer.ms_minddata_viewer import (
    MindDataPipelineRawViewer,
    MindDataPiplineSummaryViewer,
)
from mindspore.profiler.common.log import ProfilerLogger

import stepscope
from stepscope.analyse.results import compute
from stepscope.cli.main import main
from stepscope.read import read_files
from stepscope.run import Run
from stepscope.trace.tables import lazy
from tests.clocks import check_ends
from tests.golden.mindspore_oracle import record

PROGRAM = """
import sys, time
import numpy as np, mindspore as ms, mindspore.dataset as ds
from mindspore import nn
ms.set_device("CPU")
ms.set_context(mode=ms.GRAPH_MODE if sys.argv[1] == "graph" else ms.PYNATIVE_MODE)

class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.conv, self.relu, self.flat = nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten()
        self.fc = nn.Dense(8 * 16 * 16, 10)

    def construct(self, x):
        return self.fc(self.flat(self.relu(self.conv(x))))

net = Net()
loss = nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean")
step = nn.TrainOneStepCell(nn.WithLossCell(net, loss), nn.Momentum(net.trainable_params(), 0.1, 0.9))
step.set_train()
rng = np.random.default_rng(0)
images, labels = rng.random((4, 16, 3, 16, 16), np.float32), rng.integers(0, 10, (4, 16))
data = [(ms.Tensor(images[n]), ms.Tensor(labels[n], ms.int32)) for n in range(4)]
"""

RECORDED = (
    PROGRAM
    + """
import stepscope
for x, y in data[:2]:
    step(x, y).asnumpy()
with stepscope.profile(output=sys.argv[2], profile_memory=True) as profile:
    stamps = [time.perf_counter_ns()]
    for number in range(6):
        step(*data[number % 4]).asnumpy()
        profile.step()
        stamps.append(time.perf_counter_ns())
print(*stamps)
"""
)

OWN = (
    PROGRAM
    + """
from mindspore.profiler import ProfilerActivity, profile, tensorboard_trace_handler
for x, y in data[:2]:
    step(x, y).asnumpy()
handler = tensorboard_trace_handler(sys.argv[2])
with profile(activities=[ProfilerActivity.CPU], profile_memory=True, on_trace_ready=handler) as recording:
    for number in range(6):
        step(*data[number % 4]).asnumpy()
        recording.step()
"""
)


def run_program(code: str, directory: Path, mode: str) -> list[str]:
    program = directory / "train.py"
    program.write_text(code)
    command = [sys.executable, str(program), mode, str(directory / "runs")]
    environment = {**os.environ, "PYTHONPATH": str(Path(stepscope.__file__).parents[1])}
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=300, cwd=directory, env=environment, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


@pytest.fixture(scope="module", params=["graph", "pynative"])
def recorded(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Run, list[int], str]:
    """A training that stepscope recorded, a stopwatch read around its steps (ns), and the mode."""
    directory = tmp_path_factory.mktemp(request.param)
    stamps = run_program(RECORDED, directory, request.param)
    (path,) = (directory / "runs").iterdir()
    return stepscope.open(path), list(map(int, stamps[-7:])), request.param


def test_operators_are_those_of_mindspores_own_table(recorded: tuple[Run, list[int], str]) -> None:
    run, _, _ = recorded
    told = record(run.ranks[0].directory.capture / "mindspore")
    expected: dict[str, list[float]] = {}
    for name, (calls, ms) in told.counted.items():
        entry = expected.setdefault(name.rsplit("/", 1)[-1].rsplit("-op", 1)[0], [0, 0.0])
        entry[0] += calls
        entry[1] += ms
    statistic = run.result("op_statistic")
    assert isinstance(statistic, pl.DataFrame)
    ours = {
        name: (count, us / 1e3) for name, count, us in statistic.select("OP Type", "Count", "Total Time(us)").rows()
    }
    assert set(ours) == set(expected)
    for name, (calls, ms) in expected.items():
        assert ours[name][0] == calls
        assert ours[name][1] == pytest.approx(ms, rel=0.05)
    assert expected["Conv2D"][0] == 6
    assert expected["MatMul"][0] == 18


def test_memory_peaks_where_mindspores_record_does(recorded: tuple[Run, list[int], str]) -> None:
    run, _, _ = recorded
    (path,) = run.ranks[0].directory.capture.rglob("cpu_ms_memory_record_*.txt")
    peak = max(int(line.split(",")[1]) for line in path.read_text().splitlines()[1:])
    assert peak > 16 * 8 * 16 * 16 * 4  # the activations at least
    (memory,) = run.summary.memory
    assert memory.allocated == peak
    table = run.result("memory_record")
    assert isinstance(table, pl.DataFrame)
    framework = table.filter(pl.col("Component") == "Framework")
    assert framework["Total Allocated(MB)"].max() == peak / 2**20
    owners = run.result("operator_memory")
    assert isinstance(owners, pl.DataFrame)
    assert "ReLU" in owners["Name"].cast(pl.String).drop_nulls().to_list()


def test_steps_are_those_of_a_stopwatch_and_their_parts_add_up(recorded: tuple[Run, list[int], str]) -> None:
    run, stamps, _ = recorded
    steps = run.tables["steps"].sort("number").collect()
    check_ends(steps, stamps)
    found = run.result("step_trace_time")
    assert isinstance(found, pl.DataFrame)
    parts = (
        "Computing",
        "Communication(Not Overlapped)",
        "Copy(Not Overlapped)",
        "Data Wait",
        "Sync",
        "Host Only",
        "Idle",
    )
    for row, duration in zip(found.to_dicts(), steps["dur"].to_list(), strict=True):
        assert sum(row[part] for part in parts) == pytest.approx(duration / 1e3, abs=1e-3)
    # (what takes the core from one thread lengthens the step, and not what another one computes)
    shares = [row["Computing"] / (duration / 1e3) for row, duration in zip(found.to_dicts(), steps["dur"], strict=True)]
    assert min(shares) > 0
    assert max(shares) > 0.1


def test_every_operator_has_step_thread_and_phase(recorded: tuple[Run, list[int], str]) -> None:
    run, _, mode = recorded
    tracks = run.tables["tracks"].select(pl.col("id").alias("track"), "thread", "process")
    spans = run.tables["spans"].filter(pl.col("kind") == "operator").join(tracks, on="track").collect()
    assert set(spans["step"]) == set(range(6))
    assert spans["thread"].null_count() == 0
    assert spans["process"].n_unique() == 1
    phases = spans.with_columns(pl.col("name", "phase").cast(pl.String)).group_by("name").agg(pl.col("phase").unique())
    known = {name: set(found) for name, found in phases.rows()}
    assert known["Conv2D"] == known["ReLU"] == {"forward"}
    assert known["Conv2DBackpropFilter"] == known["ReluGrad"] == {"backward"}
    assert known["MatMul"] == {"forward", "backward"}
    assert known["ApplyMomentum"] == {"optimizer"}
    if mode == "graph":
        modules = run.tables["operators"].select(pl.col("module").cast(pl.String)).collect()["module"]
        assert "network-WithLossCell/_backbone-Net/conv-Conv2d" in modules.to_list()


@pytest.mark.parametrize("mode", ["graph", "pynative"])
def test_a_directory_of_mindspores_own_profiler(mode: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_program(OWN, tmp_path, mode)
    (directory,) = (tmp_path / "runs").glob("*_ascend_ms")
    assert main(["import", str(directory), "--output", str(tmp_path / "imported"), "--quiet"]) == 0
    run = Run(capsys.readouterr().out.strip())
    told = record(directory)
    statistic = run.result("op_statistic")
    assert isinstance(statistic, pl.DataFrame)
    assert statistic["Count"].sum() == sum(calls for calls, _ in told.counted.values())
    assert statistic["Total Time(us)"].sum() == pytest.approx(
        1e3 * sum(ms for _, ms in told.counted.values()), rel=1e-4
    )
    assert run.summary.memory[0].allocated == max(row[1] for row in told.memory)


# The data pipeline against the code of MindSpore's that makes these deliverables


def a_pipeline(chance: random.Random) -> tuple[dict[str, Any], dict[str, Any], str]:
    """Return the files of a random tree of operations, sound as MindSpore writes them."""
    types = ["Map", "Batch", "Shuffle", "Generator", "Zip", "Rename", "Repeat", "Concat", "ImageFolder", "Filter"]
    count, samples = chance.randint(1, 7), chance.randint(1, 12)
    children: list[list[int]] = [[] for _ in range(count)]
    for number in range(1, count):
        children[chance.randrange(max(0, number - 2), number)].append(number)
    ops, cpu = [], []
    high = chance.choice([15, 60, 120])
    for number in range(count):
        kind = "DeviceQueue" if number == 0 and chance.random() < 0.3 else chance.choice(types)
        queue = {"length": 16, "size": [chance.choice([0, 1, 15, 16]) for _ in range(samples)]}
        inline = kind in ("Rename", "Repeat", "Concat", "Zip", "DeviceQueue")
        op = {"op_id": number, "op_type": f"{kind}Op", "num_workers": chance.choice([1, 2, 4])}
        op["metrics"] = None if inline else {"output_queue": queue}
        if children[number]:
            op["children"] = children[number]
        ops.append(op)
        use = {
            name: [chance.randint(0, high) for _ in range(samples)] for name in ("user_utilization", "sys_utilization")
        }
        cpu.append({"op_id": number, "metrics": use})
    lines, time = [], 5_000
    for batch in range(1, chance.randint(2, 9)):
        taken = chance.randint(0, 40)
        time += taken + 1
        lines += [f"0 1 {batch} 0 {time}", f"0 2 {batch} {taken} {time}", f"0 0 {batch} {taken} {time}"]
        lines.append(f"1 16 {batch} {chance.randint(0, 16)} {time}")
    times = [5_000 + 10 * place for place in range(samples)]
    told = {"cpu_processor_num": 2, "op_info": cpu, "time_stamp": times, "sampling_interval": 10}
    return {"op_info": ops, "sampling_interval": 10}, told, "\n".join(lines) + "\n"


def written_by_mindspore(directory: Path) -> Callable[[str], Path]:
    """Let MindSpore make its deliverables of the files; return where each is."""
    output = directory / "ASCEND_PROFILER_OUTPUT"
    output.mkdir()
    options = {
        "activities": ["CPU", "NPU"],
        "rank_id": 0,
        "device_id": 0,
        "framework_path": str(directory),
        "ascend_ms_dir": str(directory),
        "ascend_profiler_output_path": str(output),
    }
    ProfilerLogger.init(str(directory))
    data = MindDataParser(**options)._parse({})
    # The raw viewer changes the operations that it is given.
    MindDataPiplineSummaryViewer(**options).save(data)
    MindDataPipelineRawViewer(**options).save(data)
    return lambda name: output / name


@pytest.mark.skipif(not mindspore.__version__.startswith("2.1"), reason="the classes are those of MindSpore 2.10")
@pytest.mark.parametrize("seed", range(60))
def test_the_data_pipeline_is_what_mindspores_code_makes_of_it(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    pipeline, cpu, batches = a_pipeline(chance)
    kind = "device_queue" if pipeline["op_info"][0]["op_type"] == "DeviceQueueOp" else "dataset_iterator"
    (tmp_path / "pipeline_profiling_0.json").write_text(json.dumps(pipeline))
    (tmp_path / "minddata_cpu_utilization_0.json").write_text(json.dumps(cpu))
    (tmp_path / f"{kind}_profiling_0.txt").write_text(batches)
    theirs = written_by_mindspore(tmp_path)
    tables = lazy(read_files([tmp_path]))
    summary = compute("minddata_pipeline_summary", tables)
    assert summary == json.loads(theirs("minddata_pipeline_summary_0.json").read_text())
    raw = compute("minddata_pipeline_raw", tables)
    assert isinstance(raw, pl.DataFrame)
    with theirs("minddata_pipeline_raw_0.csv").open(newline="") as file:
        header, *rows = csv.reader(file)
    assert raw.columns == header
    assert [["" if value is None else str(value) for value in row] for row in raw.iter_rows()] == rows
