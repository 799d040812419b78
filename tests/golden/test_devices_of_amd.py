"""Captures of AMD GPUs: one device has one name, whatever number the profiler's parts know it by."""

from __future__ import annotations

from pathlib import Path

import pytest

import stepscope
from stepscope.read import read_files


@pytest.mark.parametrize("name", ["mi300_bert_small.json.gz", "sglang_decode/capture_traces/bs_32_rank0.json.gz"])
def test_kernels_and_memory_are_of_one_device(shared_data: Path, name: str) -> None:
    """Given kernels of agent 2 or 9 and memory of the only GPU that the process sees, then both are cuda:0's."""
    tables = read_files([shared_data / "kineto" / "tracelens" / name])
    streams = tables["tracks"].filter(tables["tracks"]["kind"] == "stream")
    memory = set(tables["allocations"]["device"].cast(str).to_list()) - {"cpu"}
    assert set(streams["device"].cast(str).to_list()) == memory == {"cuda:0"}
    assert set(tables["kernels"]["device"].to_list()) == {0}


def test_the_only_visible_gpu_needs_no_memory_events(shared_data: Path) -> None:
    run = stepscope.open(shared_data / "kineto/tracelens/torch_compile_triton/trace.json.gz")
    assert run.summary.devices == ("cuda:0",)


def test_a_number_that_nothing_identifies_is_kept(shared_data: Path) -> None:
    """Given eight visible GPUs, work of one and no memory of any, then nothing says which of the eight it is."""
    run = stepscope.open(shared_data / "kineto/tracelens/ddp_resnet18_no_pool/train_resnet18.json.gz")
    assert run.summary.devices == ("cuda:2",)
