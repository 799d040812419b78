"""Events, names and GPU time of ``fluid.profiler`` from the tables of a run; modules that a package lacks."""

from __future__ import annotations

import importlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from stepscope.collect.hooks.absent_modules import AbsentModules
from stepscope.compat.fluid import events, profile_file, report
from stepscope.read import read_files
from stepscope.read.paddle import fluid_profile
from stepscope.read.paddle.fluid_profile import CUDA_CALLS
from stepscope.trace.losses import LossLedger
from tests.conftest import WriteTrace

_US = 1000


def _host(name: str, ts: int, dur: int, cat: str = "cpu_op", **args: Any) -> dict[str, Any]:
    return {"name": name, "cat": cat, "ts": ts, "dur": dur, "pid": 1, "tid": args.pop("tid", 7), "args": args}


def _device(name: str, ts: int, dur: int, correlation: int, cat: str = "kernel", **args: Any) -> dict[str, Any]:
    args = {"device": 0, "stream": 13, "correlation": correlation, **args}
    return {"name": name, "cat": cat, "ts": ts, "dur": dur, "pid": 0, "tid": 13, "args": args}


#: A range with an operator that launches a copy and a kernel; another thread with a gradient.
TRACE = (
    _host("batch", 100, 400, "user_annotation"),
    _host("aten::linear", 110, 200, **{"External id": 1}),
    _host("aten::copy_", 120, 50, **{"External id": 2}),
    _host("cudaMemcpyAsync", 130, 30, "cuda_runtime", correlation=11, **{"External id": 2}),
    _host("aten::addmm", 200, 100, **{"External id": 3}),
    _host("cudaLaunchKernel", 210, 10, "cuda_runtime", correlation=12, **{"External id": 3}),
    _host("autograd::engine::evaluate_function: AddmmBackward0", 600, 90, tid=8),
    _host("AddmmBackward0", 610, 70, tid=8, **{"External id": 4}),
    _host("cudaLaunchKernel", 620, 10, "cuda_runtime", tid=8, correlation=13, **{"External id": 4}),
    _device("Memcpy HtoD (Pageable -> Device)", 140, 25, 11, "gpu_memcpy", bytes=4096),
    _device("void gemm()", 230, 60, 12),
    _device("void gemm_backward()", 640, 75, 13),
)


@pytest.fixture
def recorded(write_trace: WriteTrace) -> events.Recorded:
    frames = read_files([write_trace(TRACE)])
    return events.recorded([{name: frame.lazy() for name, frame in frames.items()}])


def test_events_have_the_names_of_those_around_them(recorded: events.Recorded) -> None:
    rows = recorded.events.select("name", "thread", pl.col("end") - pl.col("ts"), "gpu", "role").rows()
    linear = "batch/aten::linear"
    assert rows == [
        (f"{linear}/aten::copy_/GpuMemcpyAsync", 0, 30 * _US, 25 * _US, "inner"),
        (f"{linear}/aten::copy_", 0, 50 * _US, 25 * _US, "inner"),
        (f"{linear}/aten::addmm", 0, 100 * _US, 60 * _US, "inner"),
        (f"{linear}/compute", 0, 200 * _US, 85 * _US, "inner"),
        (linear, 0, 200 * _US, 85 * _US, "ordinary"),
        ("batch", 0, 400 * _US, 85 * _US, "ordinary"),
        ("AddmmBackward0/compute", 1, 70 * _US, 75 * _US, "inner"),
        ("AddmmBackward0", 1, 70 * _US, 75 * _US, "ordinary"),
    ]


def test_report_of_gpu_time(recorded: events.Recorded) -> None:
    text = report.render(recorded.events, report.FluidReportOptions("GPU", "total"))
    _, merged, alone = text.split("Profiling Report")
    assert "Place: CUDA" in merged
    # 85 µs below `batch` and 75 µs of the gradient.
    assert "Total time: 0.16\n" in merged
    assert "GpuMemcpyAsync         Calls: 1           Total: 0.025       " in merged
    rows = alone[alone.index("\nthread1::") :].splitlines()[1:]
    assert [row.split()[:3] for row in rows[:3]] == [
        ["thread1::AddmmBackward0", "1", "0.075"],
        ["thread0::batch", "1", "0.085"],
        ["aten::linear", "1", "0.085"],
    ]
    # The original shows copies in every detail.
    assert rows[3].startswith("    aten::linear/GpuMemcpyAsync")


def test_file_has_work_of_the_gpu_under_the_name_of_its_event(recorded: events.Recorded, tmp_path: Path) -> None:
    profile_file.write(recorded.profile, tmp_path / "profile")
    ledger = LossLedger("profile")
    profile = fluid_profile.load(tmp_path / "profile", ledger)
    assert not list(ledger.rows())
    work = profile.events.filter("on_gpu").select("name", "device", "sub", "bytes", "detail").rows()
    assert work == [
        ("MEMCPY_HtoD", 0, 13, 4096, ""),
        ("batch/aten::linear/aten::addmm", 0, 13, None, "void gemm()"),
        ("AddmmBackward0", 0, 13, None, "void gemm_backward()"),
    ]
    calls = profile.events.filter(pl.col("device") == CUDA_CALLS)["name"].to_list()
    assert sorted(calls) == ["cudaLaunchKernel", "cudaLaunchKernel"]


def test_gpu_time_of_a_real_capture(shared_data: Path) -> None:
    """All that was launched by operators is counted once at the top."""
    path = shared_data / "kineto" / "tracelens" / "torch_compile_triton" / "trace.json.gz"
    frames = read_files([path])
    found = events.recorded([{name: frame.lazy() for name, frame in frames.items()}])
    spans = frames["spans"].select("id", "dur")
    linked = frames["kernels"].filter(pl.col("operator").is_not_null()).join(spans, left_on="span", right_on="id")
    top = found.events.filter(~pl.col("name").str.contains("/", literal=True))
    assert linked.height
    assert top["gpu"].sum() >= linked["dur"].sum() > 0
    work = found.profile.events.filter("on_gpu")
    assert work.height == frames["kernels"].height
    assert (work["end"] - work["ts"]).sum() >= top["gpu"].sum()


NAMES = {
    ("operator", "pd_op.conv2d"): "conv2d",
    ("operator", "pd_op.add_"): "add",
    ("operator", "onednn_op.conv2d"): "conv2d",
    ("operator", "adam_ dygraph"): "adam",
    ("operator", "Global_Conv2dGradNodeFinal"): "conv2d_grad",
    ("operator", "Global_CrossEntropyWithSoftmaxGradNode"): "cross_entropy_with_softmax_grad",
    ("operator", "Global_GradNodeAccumulation"): "GradNodeAccumulation",
    ("operator", "elementwise_add"): "elementwise_add",
    ("operator", "aten::add_"): "aten::add_",
    ("collective", "c_allreduce_sum"): "c_allreduce_sum",
    ("annotation", "my range"): "my range",
    ("annotation", "Torch-Compiled Region: 0/1"): "Torch-Compiled Region: 0|1",
    ("annotation", "backward"): "backward",
}
NO_EVENTS = (
    ("annotation", "StandaloneExecutor::run"),
    ("annotation", "default-0"),
    ("annotation", "conv2d pybind_imperative_func"),
    ("annotation", "full kernel launch"),
    ("phase", "Conv2D"),
    ("phase", "Optimization Step"),
    ("data", "DataLoader"),
    ("python", "forward"),
    ("runtime", "cudaLaunchKernel"),
)


@pytest.mark.parametrize(("what", "label"), NAMES.items())
def test_labels(what: tuple[str, str], label: str) -> None:
    assert _events_of([what]) == [label]


@pytest.mark.parametrize("what", NO_EVENTS)
def test_what_is_no_event(what: tuple[str, str]) -> None:
    assert _events_of([what]) == []


PARTS = {
    "conv2d kernel launch": "compute",
    "compute": "compute",
    "conv2d infer_meta": "infer_shape",
    "PhiKernelInstruction::infermeta": "infer_shape",
    "conv2d node_creation": "node_creation",
    "prepare_data": "prepare_data",
    "of the user": "of the user",
}


@pytest.mark.parametrize(("name", "part"), PARTS.items())
def test_parts(name: str, part: str) -> None:
    chain = [("operator", "pd_op.conv2d"), ("annotation", name), ("annotation", "conv2d kernel launch")]
    assert f"conv2d/{part}" in _events_of(chain)


def test_paddles_range_of_all_gradients_is_no_event() -> None:
    chain = [("phase", "Gradient Backward"), ("annotation", "backward"), ("operator", "Global_MeanGradNode")]
    assert _events_of([*chain, ("annotation", "Local_MeanGradNode"), ("annotation", "mean_grad kernel launch")]) == [
        "mean_grad/compute",
        "mean_grad",
    ]


def _events_of(chain: list[tuple[str, str]]) -> list[str]:
    """Return the events of spans that lie in each other, without what a framework does not tell of its parts."""
    from stepscope.trace.tables import complete, conform

    count = len(chain)
    spans = pl.DataFrame(
        {
            "id": range(count),
            "track": [0] * count,
            "ts": range(1000, 1000 + count),
            "dur": range(100, 100 - 2 * count, -2),
            "name": [name for _, name in chain],
            "kind": [kind for kind, _ in chain],
            "parent": [None, *range(count - 1)],
            "depth": range(count),
        }
    )
    track = {"id": [0], "kind": ["thread"], "rank": [0], "host": [""], "device": ["cpu"], "thread": [5]}
    tracks = pl.DataFrame({**track, "name": ["MainThread"], "order": [0]})
    frames = complete({"spans": conform("spans", spans), "tracks": conform("tracks", tracks)})
    found = events.recorded([{name: frame.lazy() for name, frame in frames.items()}]).events["name"].to_list()
    told = any("compute" in name or "kernel launch" in name for _, name in chain)
    return [name for name in found if told or not name.endswith("/compute")]


def test_importing_is_light() -> None:
    code = """
import sys
import stepscope.compat.fluid.profiler as profiler
loaded = {"polars", "numpy", "torch", "paddle"} & set(sys.modules)
assert not loaded, loaded
assert sorted(profiler.__all__) == ["cuda_profiler", "profiler", "reset_profiler", "start_profiler", "stop_profiler"]
try:
    profiler.cuda_profiler("x", "xml").__enter__()
except ValueError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=300)
    assert done.stdout == "The output mode must be 'kvp' or 'csv'.\n"


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[AbsentModules]:
    """A package of a new version, which has one of three old modules."""
    folder = tmp_path / "newpackage"
    folder.mkdir()
    (folder / "__init__.py").write_text("__version__ = '3.0'\n")
    (folder / "kept.py").write_text("own = True\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    absent = AbsentModules(["newpackage.old", "newpackage.old.tool", "newpackage.kept"], "there is only a tool")
    absent.install()
    yield absent
    absent.remove()
    for name in [name for name in sys.modules if name.startswith("newpackage")]:
        del sys.modules[name]


def test_absent_modules(package: AbsentModules) -> None:
    import newpackage.old.tool as tool  # type: ignore[import-not-found]
    from newpackage import kept, old

    assert old.tool is tool
    assert kept.own
    said = r"^newpackage 3\.0 has no newpackage\.old\.layers, and there is only a tool\. Write the rest for this"
    with pytest.raises(AttributeError, match=said):
        old.layers  # noqa: B018
    with pytest.raises(ModuleNotFoundError, match=said):
        from newpackage.old import layers  # noqa: F401
    with pytest.raises(ModuleNotFoundError, match=said):
        importlib.import_module("newpackage.old.layers")
    with pytest.raises(ModuleNotFoundError, match=r"No module named 'newpackage\.older'"):
        importlib.import_module("newpackage.older")
    package.remove()
    assert not hasattr(sys.modules["newpackage"], "old")
    assert [name for name in sys.modules if name.startswith("newpackage")] == ["newpackage", "newpackage.kept"]
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("newpackage.old")
