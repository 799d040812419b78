"""Real captures, read once for all golden tests: tables of stepscope, and the oracle's own reading."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from stepscope.read import read_files
from stepscope.trace import tables
from stepscope.trace.tables import Tables

from . import oracle

#: Short name → file below ``shared/data/kineto``. More than ten, of every make, age and defect.
FILES: dict[str, str] = {
    "v100_2021_no_workers": "kineto/resnet50_num_workers_0/worker0.1623143089861.pt.trace.json.gz",
    "v100_2021_workers": "kineto/resnet50_num_workers_4/worker0.1623212756351.pt.trace.json.gz",
    "v100_2021_small": "kineto/gpu_metrics/gpu_metrics_input.json",
    "a100_nccl_2022": "hta/trace_diff/control/control.json.gz",
    "v100_nccl_2022": "hta/trace_diff/test/test.json.gz",
    "nccl_2023_rank0": "hta/trace_filter/sampled_rank-0.json.gz",
    "nccl_2023_rank1": "hta/trace_filter/sampled_rank-1.json.gz",
    "alexnet_2023": "hta/critical_path/alexnet/benchmark_result_2869224_1695835535_trace.json.gz",
    "event_sync_2024": "hta/critical_path/cuda_event_sync/event_sync_trace.json.gz",
    "multi_stream_2024": "hta/critical_path/cuda_event_sync_multi_stream/event_sync_trace.json.gz",
    "nanoseconds_2024": "hta/ns_resolution_trace/rank-0.Apr_03_18_51_38.1102.pt.trace.json.gz",
    "gloo_cpu_2024": "hta/cpu_only_old/rank-34.Jul_15_10_52_41.1074.pt.trace.json.gz",
    "host_only_2022": "hta/rank_non_gpu/rank_non_gpu.json.gz",
    "mtia_2024": "hta/mtia_trace_single_rank/mtia_rank_0.json.gz",
    "mtia_2026": "hta/mtia_inference_trace/mtia_inference_rank_0.json.gz",
    "h100_small_2025": "tracelens/h100/Falconsai_nsfw_image_detection__1016002.json.gz",
    "h100_large_2025": "tracelens/h100/facebook_timesformer-base-finetuned-k400__1016002.json.gz",
    "b200_2026": "tracelens/b200/eager_trace.json.gz",
    "mi210_2025": "tracelens/mi210/gpu_only_trace/gpu_only_trace.json.gz",
    "mi300_ddp_2026": "tracelens/ddp_resnet18_no_pool/train_resnet18.json.gz",
    "triton_2026": "tracelens/torch_compile_triton/trace.json.gz",
}

#: Captures for which an independent computation takes seconds.
LARGE = ("mtia_2024", "v100_nccl_2022", "a100_nccl_2022", "v100_2021_workers", "v100_2021_no_workers")


def small_quick(names: Iterable[str]) -> list[Any]:
    """Return captures as values of a parametrized test, of which the large ones are slow."""
    return [pytest.param(name, marks=pytest.mark.slow) if name in LARGE else name for name in names]


#: Ascend's own tool, in an environment of its own.
TOOL = Path(__file__).resolve().parents[2] / ".envs" / "msprof" / "bin" / "msprof-analyze"
#: Directory and mode → directory of the tool's results.
Analyse: TypeAlias = Callable[[Path, str], Path]


@pytest.fixture(scope="session")
def captures(shared_data: Path) -> dict[str, Path]:
    """Path of each capture by its short name."""
    return {name: shared_data / "kineto" / path for name, path in FILES.items()}


@pytest.fixture(scope="session")
def tables_of(captures: dict[str, Path]) -> Callable[[str], Tables]:
    """Read a capture into tables, once."""
    return cache(lambda name: tables.lazy(read_files([captures[name]])))


@pytest.fixture(scope="session")
def trace_of(captures: dict[str, Path]) -> Callable[[str], oracle.Trace]:
    """Read a capture with the oracle, once."""
    return cache(lambda name: oracle.load(captures[name]))


@pytest.fixture(scope="session")
def steps_of(trace_of: Callable[[str], oracle.Trace]) -> Callable[[str], list[tuple[int, int, int, oracle.Measure]]]:
    """Number, start, end and the oracle's measure of each step, once."""

    @cache
    def measure(name: str) -> list[tuple[int, int, int, oracle.Measure]]:
        trace = trace_of(name)
        return [(number, start, end, oracle.measure(trace, start, end)) for number, start, end in oracle.windows(trace)]

    return measure


@pytest.fixture(scope="module")
def analyse(tmp_path_factory: pytest.TempPathFactory) -> Analyse:
    """Run the tool, once for each directory and mode."""
    if not TOOL.exists():
        reason = f"{TOOL} is not there; `make .envs/msprof/.ready` installs it"
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)

    @cache
    def run(directory: Path, mode: str) -> Path:
        output = tmp_path_factory.mktemp(mode)
        command = [str(TOOL), "-d", str(directory), "-m", mode, "-o", str(output)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
        said = done.stdout + done.stderr
        assert done.returncode == 0, said
        assert "[ERROR]" not in said, said
        return output / "cluster_analysis_output"

    return run
