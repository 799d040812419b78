"""Counters of real GPUs as NVIDIA's management library has them, and the files made of them."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest

from stepscope.collect.cuda.nvml import NvmlCollector
from stepscope.collect.journal.journal import Journal
from stepscope.collect.options import Options
from stepscope.collect.protocol import Context
from tests.unit.collect.reading import read_journal

from .conftest import Window

torch = pytest.importorskip("torch", reason="PyTorch is not installed")


def test_copies_and_memory_are_seen(tmp_path: Path) -> None:
    reason = NvmlCollector().available()
    if reason is not None:
        pytest.skip(reason)
    journal = Journal(tmp_path / "journal.ssj")
    collector = NvmlCollector()
    collector.prepare(Context(0, tmp_path, Options(counters_hz=20, pcie=True), journal))
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
    # A GPU may have no sensor in its memory, or no NVLink; everything else is there
    assert {name.split(" ", 2)[2] for name in described.get("missing", {})} <= {"memory temperature", "NVLink"}
    assert largest["memory used"]["value"] >= 1 << 30
    assert 0 < largest["memory busy"]["value"] <= 100
    assert largest["PCIe received"]["value"] > 1e9
    assert largest["PCIe received"]["lane"].startswith("GPU ")
    assert largest["GPU busy"]["value"] > 0
    assert 10 < largest["power"]["value"] < 2000
    assert 10 < largest["temperature"]["value"] < 110
    assert largest["SM clock"]["value"] > 100
    assert {"slowed by power cap", "slowed by heat"} <= set(largest)
    if "HBM traffic" in largest:  # Hopper and later
        assert 0 < largest["HBM busy"]["value"] <= 100
        assert largest["HBM traffic"]["value"] > 1e9


def test_a_window_has_the_files_of_traffic(record: Callable[..., Window]) -> None:
    reason = NvmlCollector().available()
    if reason is not None:
        pytest.skip(reason)

    def copy() -> None:
        source, end = torch.zeros(1 << 26).pin_memory(), time.monotonic() + 2
        while time.monotonic() < end:
            source.to("cuda")
            torch.cuda.synchronize()

    window = record(copy)
    pcie, hbm = window.rank.result("pcie"), window.rank.result("hbm")
    assert isinstance(pcie, pl.DataFrame)
    assert isinstance(hbm, pl.DataFrame)
    received = pcie.filter(pl.col("Mode") == "Rx(MB/s)")
    if not hbm["Total(MB/s)"].null_count():  # Hopper and later have counters of their own, PCIe's among them
        assert received["Max"].max() > 1000
    assert hbm.height == torch.cuda.device_count()
    assert hbm["Busy(%)"].is_between(0, 100).all()
