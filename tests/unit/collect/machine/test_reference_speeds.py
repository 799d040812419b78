"""The speeds of the machine: measured by a process of its own, kept, and written into the run."""

from __future__ import annotations

import ctypes
import json
import mmap
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

import stepscope
from stepscope.collect.machine import speed_trial
from stepscope.collect.machine.reference_speeds import reference_speeds
from tests.frameworks.torch.programs import LOOP, python

torch = pytest.importorskip("torch", reason="PyTorch is not installed")


def test_the_speeds_are_measured_once_and_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    speeds = reference_speeds("torch", torch.__version__, threads=1)
    assert speeds is not None
    (kept,) = (tmp_path / "stepscope").glob("speeds-*.json")
    assert json.loads(kept.read_bytes()) == speeds
    assert reference_speeds("torch", torch.__version__, threads=1) == speeds
    # They are those of a machine
    assert (speeds["framework"], speeds["device"], speeds["threads"]) == ("torch", "cpu", 1)
    one = {dtype: found["flops_per_s"] for dtype, found in speeds["one_core"].items() if found is not None}
    assert all(1e7 < one[dtype] < 1e13 for dtype in ("float32", "float64"))
    assert 1e6 < speeds["copy_bytes_per_s"] < 1e13
    assert 100 < speeds["call_ns"] < 1e9
    assert 50 < speeds["fault_ns"] < 1e6
    # and a page fault costs what one of a large array does, which the C library maps
    first, second, unmapped = map(min, zip(*(_costs_of_a_page() for _ in range(9)), strict=True))
    assert speeds["fault_ns"] == pytest.approx(first - second + unmapped, rel=0.4)


def _costs_of_a_page() -> list[float]:
    """Return the CPU times, ns, of each page that the C library maps: written once, written again, and unmapped."""
    library, size = ctypes.CDLL(None), 64 << 20
    library.malloc.restype = ctypes.c_void_p
    times = [time.thread_time_ns()]
    block = ctypes.c_void_p(library.malloc(ctypes.c_size_t(size)))
    for value in range(2):
        ctypes.memset(block, value, size)
        times.append(time.thread_time_ns())
    library.free(block)
    times.append(time.thread_time_ns())
    return [(later - earlier) / size * mmap.PAGESIZE for earlier, later in pairwise(times)]


@pytest.mark.slow
def test_a_run_has_the_speeds_of_its_machine(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(LOOP)
    done = python("-m", "stepscope", "run", "--steps", "4-5", "--output", tmp_path / "runs", script)
    assert done.returncode == 0, done.stderr
    run = stepscope.open(tmp_path / "runs")
    facts = dict(run.tables["metadata"].collect().iter_rows())
    assert json.loads(facts["machine.speeds"]) == run.manifest["speeds"]
    assert [one["framework"] for one in run.manifest["speeds"]] == ["torch"]


def test_where_nothing_can_be_kept_nothing_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "cache").write_text("a file, not a directory")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert reference_speeds("torch", "1.0") is None


def test_a_framework_that_cannot_be_imported_has_no_speeds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert reference_speeds("no_such_framework", "1.0") is None


@pytest.fixture
def threads() -> Iterator[int]:
    before = torch.get_num_threads()
    yield 1
    torch.set_num_threads(before)


def test_a_trial_computes_for_less_than_two_seconds(threads: int) -> None:
    begin = time.thread_time()
    speeds = speed_trial.measure("torch", threads)
    assert time.thread_time() - begin < 2
    assert speeds["products"]["float32"]["flops_per_s"] > 0


@pytest.mark.parametrize("left", [0.0, 0.2])
def test_a_trial_whose_time_is_used_leaves_the_rest_unknown(
    threads: int, left: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(speed_trial, "BUDGET_S", left)
    begin = time.thread_time()
    speeds = speed_trial.measure("torch", threads)
    # What ends late ends with the product that it is in
    assert time.thread_time() - begin < left + 0.5
    assert speeds["fault_ns"] is speeds["call_ns"] is speeds["one_core"]["float64"] is None
    assert (speeds["products"]["float32"] is None) is (left == 0)
