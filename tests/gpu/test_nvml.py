"""PCIe traffic and memory of real GPUs, as NVIDIA's management library has them."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from stepscope.collect.collectors.nvml import NvmlCollector
from stepscope.collect.collectors.protocol import Context
from stepscope.collect.journal import Journal
from stepscope.collect.options import Options
from tests.unit.collect.reading import read_journal

torch = pytest.importorskip("torch", reason="PyTorch is not installed")


def test_copies_and_memory_are_seen(tmp_path: Path) -> None:
    reason = NvmlCollector().available()
    if reason is not None:
        pytest.skip(reason)
    journal = Journal(tmp_path / "journal.ssj")
    collector = NvmlCollector()
    collector.prepare(Context(0, tmp_path, Options(counters_hz=20, pcie=True, hbm_ddr=True), journal))
    collector.start()
    # Given: 1 GiB on the GPU, and copies to it for a second
    held = torch.zeros(1 << 28, device="cuda")
    source, end = torch.zeros(1 << 26).pin_memory(), time.monotonic() + 1
    while time.monotonic() < end:
        held[: 1 << 26].copy_(source)
    torch.cuda.synchronize()
    assert collector.stop() == []
    journal.close()
    described = collector.describe()
    found = read_journal(tmp_path / "journal.ssj")
    largest = {row["name"]: row for row in sorted(found.counters, key=lambda row: row["value"])}
    assert described["gpus"] == torch.cuda.device_count()
    assert "missing" not in described
    assert largest["memory used"]["value"] >= 1 << 30
    assert 0 < largest["memory busy"]["value"] <= 100
    assert largest["PCIe received"]["value"] > 1e9
    assert largest["PCIe received"]["lane"].startswith("GPU ")
