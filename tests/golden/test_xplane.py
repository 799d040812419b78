"""Real XPlane files of JAX, on a CPU and on eight AMD GPUs, against the same files read by Google's library."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import polars as pl
import pytest

from stepscope.analyse.step.step_trace_time import split
from stepscope.read import read_files
from stepscope.trace.tables import Frames, lazy
from tests import xplane_schemas
from tests.xplane_schemas import Event

SMALL = Path(__file__).resolve().parents[1] / "data" / "xplane" / "steps.xplane.pb"
CPU, GPU = "jax_cpu_mlp.xplane.pb", "jax_mi300_conv.xplane.pb"
#: Which begin so are marks of thread pools and of ends; which end so are the allocators' reports.
NOISE, MEMORY = ("ThreadpoolListener::", "end: "), ("MemoryAllocation", "MemoryDeallocation")


class Capture:
    """A file: its tables, its events as another reader gives them, and when its recording began."""

    def __init__(self, path: Path) -> None:
        self.frames: Frames = read_files([path])
        self.events: list[Event] = list(xplane_schemas.events(path))
        space = xplane_schemas.xspace().FromString(path.read_bytes())
        (task,) = (plane for plane in space.planes if plane.name == "Task Environment")
        self.start: int = xplane_schemas.stats(task, task.stats)["profile_start_time"]

    def spans(self, *kinds: str) -> pl.DataFrame:
        spans = self.frames["spans"].with_columns(pl.col("name", "kind").cast(pl.String))
        return spans.filter(pl.col("kind").is_in(kinds)) if kinds else spans

    def work(self) -> list[Event]:
        """The events that are work."""
        return [event for event in self.events if not event.name.startswith(NOISE) and event.name not in MEMORY]

    def times(self, event: Event) -> tuple[int, int]:
        """Start of an event since the epoch, and its duration, in ns: both ends rounded, without floats."""
        begin = self.start + event.timestamp_ns + (event.offset_ps + 500) // 1000
        return begin, self.start + event.timestamp_ns + (event.offset_ps + event.duration_ps + 500) // 1000 - begin


@pytest.fixture(scope="module", params=["small", CPU, GPU])
def capture(request: pytest.FixtureRequest) -> Capture:
    if request.param == "small":
        return Capture(SMALL)
    return Capture(request.getfixturevalue("shared_data") / "xplane" / request.param)


@pytest.fixture(scope="module")
def on_cpu(shared_data: Path) -> Capture:
    return Capture(shared_data / "xplane" / CPU)


@pytest.fixture(scope="module")
def on_gpu(shared_data: Path) -> Capture:
    return Capture(shared_data / "xplane" / GPU)


def test_every_event_is_a_span_with_its_time_or_is_counted(capture: Capture) -> None:
    expected = Counter((event.name, *capture.times(event)) for event in capture.work())
    assert Counter(capture.spans().select("name", "ts", "dur").iter_rows()) == expected
    losses = {row["what"]: row["count"] for row in capture.frames["losses"].to_dicts()}
    assert losses.pop("event_noise") == sum(event.name.startswith(NOISE) for event in capture.events)
    assert set(losses) <= {"span_crosses_parent", "correlation_dangling"}
    assert capture.frames["allocations"].height == sum(event.name in MEMORY for event in capture.events)


def test_operators_take_as_long_as_their_events(capture: Capture) -> None:
    """On threads: instructions that run; on streams: all work."""
    expected: Counter[str] = Counter()
    for event in capture.events:
        runs = "hlo_op" in event.stats and "correlation_id" not in event.stats
        if event.plane.startswith("/device") or runs:
            expected[event.name] += event.duration_ps
    found = capture.spans("operator", "kernel", "collective", "memcpy")
    sums = dict(found.group_by("name").agg(pl.col("dur").sum()).iter_rows())
    count = Counter(found["name"].to_list())
    assert set(sums) == set(expected)
    for name, total in expected.items():
        assert abs(sums[name] - total / 1000) <= count[name], name


def test_the_parts_of_every_step_add_up_to_it(capture: Capture) -> None:
    result = split(lazy(capture.frames))
    steps = capture.frames["steps"]
    assert sum(parts for parts in result.parts.values()).tolist() == steps["dur"].to_list()
    assert result.parts["computing"].sum() > 0


def test_the_steps_that_the_program_declared(on_cpu: Capture) -> None:
    marks = [event for event in on_cpu.events if "step_num" in event.stats]
    steps = on_cpu.frames["steps"]
    assert len(marks) == 200
    assert steps.select("number", "ts", "dur").rows() == [
        (event.stats["step_num"], *on_cpu.times(event)) for event in marks
    ]
    assert set(steps["source"]) == {"declared"}


def test_annotations_keep_their_arguments(on_cpu: Capture) -> None:
    arguments = on_cpu.frames["arguments"].join(on_cpu.spans().select(span="id", name="name"), on="span")
    batches = arguments.filter(pl.col("key").cast(pl.String) == "batch")
    assert set(batches["name"]) == {"data"}
    assert sorted(map(int, batches["value"])) == sorted(
        event.stats["batch"] for event in on_cpu.events if "batch" in event.stats
    )


def test_operators_know_their_layer_and_phase(on_cpu: Capture) -> None:
    """What takes most of the time is the backward pass of the third layer, see the scope that XLA keeps."""
    operators = on_cpu.frames["operators"].select("span", "module", "instruction", "flops")
    spans = on_cpu.spans("operator").select("id", "name", "phase").join(operators, left_on="id", right_on="span")
    instructions = on_cpu.frames["instructions"].select(instruction="id", scope=pl.col("scope").cast(pl.String))
    joined = spans.join(instructions, on="instruction", how="left").filter(name="ynn_fusion.6")
    assert set(joined["scope"]) == {"jit(step)/transpose(jvp(loss))/layer2/dot_general"}
    assert set(joined["phase"].cast(pl.String)) == {"backward"}
    assert set(joined["module"].cast(pl.String)) == {"loss/layer2"}
    assert joined["flops"].min() == joined["flops"].max() != 0
    assert spans["instruction"].null_count() == 0


def test_kernels_have_their_launch(on_gpu: Capture) -> None:
    spans = on_gpu.spans("kernel", "memcpy").select("id", "name")
    kernels = on_gpu.frames["kernels"].join(spans, left_on="span", right_on="id")
    found = Counter(
        (row["name"], row["device"], row["stream"], *row["grid"], *row["block"], row["shared_memory"])
        for row in kernels.iter_rows(named=True)
    )
    expected: Counter[tuple[object, ...]] = Counter()
    for event in on_gpu.events:
        if event.plane.startswith("/device"):
            details = dict(pair.split(":") for pair in event.stats["kernel_details"].split())
            sizes = [int(size) for key in ("grid", "block") for size in details[key].split(",")]
            stream = int(event.line.split("#")[1].split("(")[0])
            device = int(event.plane[-1])
            expected[(event.name, device, stream, *sizes, int(details["group_mem"]))] += 1
    assert found == expected
    assert kernels["launch"].null_count() == 0
    calls = on_gpu.spans("runtime").select(launch="id", call="name")
    host = [event for event in on_gpu.events if event.plane == "/host:CPU"]
    called = {event.stats["correlation_id"]: event.name for event in host if "correlation_id" in event.stats}
    launches = Counter(
        (event.name, called[event.stats["correlation_id"]])
        for event in on_gpu.events
        if event.plane.startswith("/device")
    )
    assert Counter(kernels.join(calls, on="launch").select("name", "call").iter_rows()) == launches


def test_steps_are_the_runs_of_the_program_that_takes_the_time(on_gpu: Capture) -> None:
    """Nothing declares steps: the convolution runs five times, and each run begins with the same kernel."""
    first = [
        event
        for event in on_gpu.events
        if event.plane == "/device:GPU:0" and event.stats.get("hlo_op") == "loop_transpose_fusion"
    ]
    steps = on_gpu.frames["steps"]
    assert steps["ts"].to_list() == sorted(on_gpu.times(event)[0] for event in first)
    assert set(steps["source"]) == {"inferred"}
    assert (steps["ts"] + steps["dur"])[:-1].to_list() == steps["ts"][1:].to_list()


def test_devices_say_what_they_can_do(on_gpu: Capture) -> None:
    facts = dict(on_gpu.frames["metadata"].iter_rows())
    assert '"cuda:7": 2662400000000' in facts["device_peak_bandwidth"]
    # 304 compute units at 2.1 GHz, 256 FLOPs a cycle: AMD gives 163.4 TFLOP/s for the MI300X.
    assert '"cuda:0": 163430400000000' in facts["device_peak_flops"]


def test_memory_comes_back_to_where_it_was(on_gpu: Capture) -> None:
    """What the allocator says is in use changes by what it says was taken and given back."""
    rows = on_gpu.frames["allocations"].with_columns(pl.col("device").cast(pl.String))
    for device in rows["device"].unique():
        own = rows.filter(device=device).sort("ts")
        before = own["allocated"].to_list()[:-1]
        after = (own["allocated"] - own["bytes"]).to_list()[1:]
        assert sum(one == other for one, other in zip(before, after, strict=True)) >= 0.9 * len(after), device
